/* Two levels. Hosts take turns: in turn d, each host sums the blocks of the host d further, one block per member, and
 * the members send the sums to the blocks' owners while the next turn's shares come in; the last turn is for the
 * host's own blocks. Where that host has more members, a turn has several parts.
 *
 * Rounds (h - 1) times the parts, and 1, for h hosts. Bytes: each block p - 1 times by all p ranks together, the least
 * possible; of these h - 1 times from one host to another, also the least possible, and each rank sends one block
 * across at a time. Wins for large blocks where hosts with several ranks are farther apart than their ranks. */
#include "plan.h"

/* What the members of `host` sum at a time: part `part` of the blocks of host `to`. */
struct turn {
    int32_t host, to, part;
};

static struct turn turn_at(const struct plan *p, int32_t host, int32_t number)
{
    int32_t parts = (p->host_most + p->host_least - 1) / p->host_least, distance = 1 + number / parts;
    if (distance >= p->host_count)
        return (struct turn){ host, host, 0 };
    return (struct turn){ host, (host + distance) % p->host_count, number % parts };
}

static int32_t turn_count(const struct plan *p)
{
    return (p->host_count - 1) * ((p->host_most + p->host_least - 1) / p->host_least) + 1;
}

/* The rank whose block the member in that place sums; -1: none. */
static int32_t owner_of(const struct plan *p, struct turn t, int32_t place)
{
    int32_t number = t.part * plan_host_size(p, t.host) + place;
    return number < plan_host_size(p, t.to) ? plan_member(p, t.to, number) : -1;
}

/* The shares of two turns: one turn's are summed and sent on while the next one's come. */
static int32_t slots_of(const struct plan *p, struct turn t, int32_t number)
{
    return number % 2 * plan_host_size(p, t.host);
}

static void swap_shares(struct plan *p, struct turn t, int32_t place, int32_t number)
{
    int32_t mine = owner_of(p, t, place);
    for (int32_t i = 0; i < plan_host_size(p, t.host); i++) {
        int32_t member = plan_member(p, t.host, i), theirs = owner_of(p, t, i);
        if (i != place && theirs >= 0)
            plan_send(p, member, plan_chunk(PLAN_SEND, theirs));
        if (i != place && mine >= 0)
            plan_recv(p, member, plan_slot(slots_of(p, t, number) + i, mine, 1));
    }
}

/* Sum the turn's shares and send them to their block's owner. */
static void pass_on(struct plan *p, struct turn t, int32_t place, int32_t number)
{
    int32_t owner = owner_of(p, t, place), first = slots_of(p, t, number);
    if (owner < 0)
        return;
    struct plan_region sum = plan_chunk(PLAN_SEND, owner);
    if (plan_host_size(p, t.host) > 1) {
        sum = plan_slot(first + place, owner, 1);
        plan_reduce_shares(p, sum, plan_chunk(PLAN_SEND, owner), place, plan_host_size(p, t.host), first);
    }
    plan_send(p, owner, sum);
}

/* The same turn of the host that sums for this one: does this rank's block come? */
static void take_in(struct plan *p, int32_t host, int32_t place, int32_t number, int *first)
{
    struct plan_region mine = plan_chunk(PLAN_RECV, p->rank);
    int32_t distance = (turn_at(p, host, number).to - host + p->host_count) % p->host_count;
    struct turn theirs = turn_at(p, (host - distance + p->host_count) % p->host_count, number);
    int32_t members = plan_host_size(p, theirs.host);
    if (place / members != theirs.part)
        return;
    struct plan_region sum = *first ? plan_chunk(PLAN_SEND, p->rank) : mine;
    plan_recv_reduce(p, plan_member(p, theirs.host, place % members), mine, sum, 0);
    *first = 0;
}

void algo_reduce_scatter_two_level(struct plan *p)
{
    int32_t host = plan_host_of(p, p->rank), place = plan_place(p, p->rank), turns = turn_count(p);
    struct plan_region mine = plan_chunk(PLAN_RECV, p->rank);
    int first = 1;
    for (int32_t i = 0; i < turns; i++) {
        if (i > 0) {
            pass_on(p, turn_at(p, host, i - 1), place, i - 1);
            take_in(p, host, place, i - 1, &first);
        }
        swap_shares(p, turn_at(p, host, i), place, i);
        plan_next_round(p);
    }
    plan_reduce_shares(p, mine, first ? plan_chunk(PLAN_SEND, p->rank) : mine, place, plan_host_size(p, host),
                       slots_of(p, turn_at(p, host, turns - 1), turns - 1));
    plan_average(p, mine);
    plan_next_round(p);
}

/* Two levels. Hosts take turns: in turn d, each rank sends its block to one member of the host d further, and each
 * rank passes on to its own host what came in the turn before. Where a host has fewer members than the one before,
 * several blocks are for the same member, and a turn has several parts.
 *
 * Rounds (h - 1) times the parts, and 1, for h hosts. Bytes: each block p - 1 times by all p ranks together, the least
 * possible; of these h - 1 times from one host to another, also the least possible, and each rank sends one block
 * across at a time. Wins for large blocks where hosts with several ranks are farther apart than their ranks. */
#include "plan.h"

static int32_t parts_of(const struct plan *p)
{
    return (p->host_most + p->host_least - 1) / p->host_least;
}

/* The rank whose block comes to the member of `host` in that place in a turn; -1: none. */
static int32_t sender_to(const struct plan *p, int32_t host, int32_t place, int32_t turn)
{
    int32_t distance = 1 + turn / parts_of(p), from = (host - distance + p->host_count) % p->host_count;
    int32_t number = turn % parts_of(p) * plan_host_size(p, host) + place;
    return number < plan_host_size(p, from) ? plan_member(p, from, number) : -1;
}

static void send_across(struct plan *p, int32_t host, int32_t place, int32_t turn)
{
    int32_t distance = 1 + turn / parts_of(p), to = (host + distance) % p->host_count, members = plan_host_size(p, to);
    if (place / members == turn % parts_of(p))
        plan_send(p, plan_member(p, to, place % members), plan_chunk(PLAN_SEND, p->rank));
}

/* To this rank's host: its own block before the first turn, then what a turn has brought. */
static void pass_on(struct plan *p, int32_t host, int32_t place, int32_t turn)
{
    int32_t mine = turn < 0 ? p->rank : sender_to(p, host, place, turn);
    for (int32_t i = 0; i < plan_host_size(p, host); i++) {
        int32_t member = plan_member(p, host, i), theirs = turn < 0 ? member : sender_to(p, host, i, turn);
        if (i != place && mine >= 0)
            plan_send(p, member, plan_chunk(turn < 0 ? PLAN_SEND : PLAN_RECV, mine));
        if (i != place && theirs >= 0)
            plan_recv(p, member, plan_chunk(PLAN_RECV, theirs));
    }
}

void algo_all_gather_two_level(struct plan *p)
{
    int32_t host = plan_host_of(p, p->rank), place = plan_place(p, p->rank), turns = (p->host_count - 1) * parts_of(p);
    plan_copy(p, plan_chunk(PLAN_RECV, p->rank), plan_chunk(PLAN_SEND, p->rank));
    for (int32_t turn = 0; turn <= turns; turn++) {
        int32_t sender = turn < turns ? sender_to(p, host, place, turn) : -1;
        if (turn < turns)
            send_across(p, host, place, turn);
        if (sender >= 0)
            plan_recv(p, sender, plan_chunk(PLAN_RECV, sender));
        pass_on(p, host, place, turn - 1);
        plan_next_round(p);
    }
}

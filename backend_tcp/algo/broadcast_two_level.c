/* Two levels. A binomial tree from the root to one rank of every other host, then one on each host.
 *
 * Rounds ceil(log2 h) + ceil(log2 m) for h hosts with up to m ranks. Across hosts the vector goes h - 1 times, the least possible,
 * wherever the ranks lie; a tree over all ranks sends it from host to host again and again unless neighbours share one.
 * Cut into slices, hosts pass on what they have while more comes. */
#include "plan.h"

/* Where a host's tree begins: at the root on its own, at the first rank on the others. */
static int32_t head_of(const struct plan *p, int32_t host)
{
    return host == plan_host_of(p, p->root) ? p->root : plan_member(p, host, 0);
}

/* The heads, counted from the root's host on. */
static int32_t head_at(const struct plan *p, int32_t number)
{
    return head_of(p, (plan_host_of(p, p->root) + number) % p->host_count);
}

/* The members of this rank's host, counted from its head on. */
static int32_t member_at(const struct plan *p, int32_t number)
{
    int32_t host = plan_host_of(p, p->rank);
    return plan_member(p, host, (plan_place(p, head_of(p, host)) + number) % plan_host_size(p, host));
}

/* A binomial tree over `count` ranks, of which this one is `number`; `rounds_for` gives the rounds, so that all hosts have as many. */
static void spread(struct plan *p, int32_t (*rank_at)(const struct plan *p, int32_t number), int32_t number, int32_t count,
                   int32_t rounds_for)
{
    struct plan_region data = plan_all(p, p->rank == p->root ? PLAN_SEND : PLAN_RECV);
    int32_t distance = 1;
    while (distance < rounds_for)
        distance *= 2;
    while (distance > 1) {
        distance /= 2;
        if (number % (2 * distance) == 0 && number + distance < count)
            plan_send(p, rank_at(p, number + distance), data);
        else if (number % (2 * distance) == distance)
            plan_recv(p, rank_at(p, number - distance), data);
        plan_next_round(p);
    }
}

void algo_broadcast_two_level(struct plan *p)
{
    int32_t host = plan_host_of(p, p->rank), hosts = p->host_count, members = plan_host_size(p, host);
    int32_t host_number = (host - plan_host_of(p, p->root) + hosts) % hosts;
    int32_t number = (plan_place(p, p->rank) - plan_place(p, head_of(p, host)) + members) % members;
    if (number == 0)
        spread(p, head_at, host_number, hosts, hosts);
    else
        for (int32_t distance = 1; distance < hosts; distance *= 2)
            plan_next_round(p);
    spread(p, member_at, number, members, p->host_most);
}

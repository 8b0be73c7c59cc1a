/* Two levels. A binomial tree from the root to one rank of every other host, then one on each host.
 *
 * Rounds ceil(log2 h) + ceil(log2 m) for h hosts with up to m ranks. Across hosts the vector goes h - 1 times, the
 * least possible, wherever the ranks lie; a tree over all ranks sends it from host to host again and again unless
 * neighbours share one. Wins for small vectors where hosts with several ranks are farther apart than their ranks. */
#include "plan.h"

/* A binomial tree over `count` ranks, of which this one is `number`; as many rounds as one over `rounds_for` ranks. */
static void spread(struct plan *p, int32_t (*rank_at)(const struct plan *p, int32_t number), int32_t number,
                   int32_t count, int32_t rounds_for)
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
    int32_t number = plan_member_number(p);
    if (number == 0)
        spread(p, plan_head, plan_host_number(p), p->host_count, p->host_count);
    else
        for (int32_t distance = 1; distance < p->host_count; distance *= 2)
            plan_next_round(p);
    spread(p, plan_fellow, number, plan_host_size(p, plan_host_of(p, p->rank)), p->host_most);
}

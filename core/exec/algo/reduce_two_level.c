/* Two levels: a broadcast's backwards. A binomial tree on each host sums at its head (the root on its own host, the
 * first rank on the others), then one over the heads sums at the root. Only the root has a RECV: the others sum in
 * scratch.
 *
 * Rounds ceil(log2 m) + ceil(log2 h) for h hosts with up to m ranks. Across hosts the vector goes h - 1 times, the
 * least possible, wherever the ranks lie. Rank order is kept if the ranks of a host follow each other and the root is
 * rank 0. Wins for small vectors where hosts with several ranks are farther apart than their ranks. */
#include "plan.h"

/* A binomial tree over `count` ranks, of which this one is `number`; its sum so far is in `sum`. Gives where it is
 * then. */
static struct plan_region collect(struct plan *p, int32_t (*rank_at)(const struct plan *p, int32_t number),
                                  int32_t number, int32_t count, int32_t rounds_for, struct plan_region sum)
{
    struct plan_region dst = p->rank == p->root ? plan_all(p, PLAN_RECV) : plan_slot(0, 0, p->size);
    for (int32_t distance = 1; distance < rounds_for; distance *= 2) {
        if (number % (2 * distance) == distance) {
            plan_send(p, rank_at(p, number - distance), sum);
        } else if (number % (2 * distance) == 0 && number + distance < count) {
            plan_recv_reduce(p, rank_at(p, number + distance), dst, sum, 1);
            sum = dst;
        }
        plan_next_round(p);
    }
    return sum;
}

void algo_reduce_two_level(struct plan *p)
{
    struct plan_region sum = plan_all(p, PLAN_SEND), result = plan_all(p, PLAN_RECV);
    int32_t number = plan_member_number(p);
    if (p->size == 1)
        plan_copy(p, result, sum);
    sum = collect(p, plan_fellow, number, plan_host_size(p, plan_host_of(p, p->rank)), p->host_most, sum);
    if (number == 0)
        collect(p, plan_head, plan_host_number(p), p->host_count, p->host_count, sum);
    else
        for (int32_t distance = 1; distance < p->host_count; distance *= 2)
            plan_next_round(p);
    if (p->rank == p->root)
        plan_average(p, result);
    plan_next_round(p);
}

/* Binomial tree. Ranks are numbered from the root on; in the round of distance d, those whose number is an odd multiple
 * of d hand their sum to the one d before and are done. Every sum is one of consecutive numbers, so rank order is kept
 * if the root is rank 0; with another root the order begins at the root and goes round. Only the root has a RECV: the
 * others sum in scratch. The odd numbers hand their own vectors on, all others sums.
 *
 * Rounds ceil(log2 p). Bytes per rank: n, sent once. Wins for small vectors. */
#include "plan.h"

void algo_reduce_binomial(struct plan *p)
{
    int32_t number = plan_around(p, p->rank - p->root);
    struct plan_region sum = plan_all(p, PLAN_SEND);
    struct plan_region dst = number == 0 ? plan_all(p, PLAN_SUMS) : plan_slot(0, 0, p->size);
    int sums_nothing = number % 2 == 0 && number + 1 == p->size;
    if (sums_nothing && (number == 0 || p->widens)) {
        plan_copy(p, dst, sum);
        sum = dst;
    }

    for (int32_t distance = 1; distance < p->size; distance *= 2) {
        if (number % (2 * distance) == distance) {
            plan_send(p, plan_around(p, p->rank - distance), sum);
        } else if (number % (2 * distance) == 0 && number + distance < p->size) {
            plan_recv_reduce(p, plan_around(p, p->rank + distance), dst, sum, 1);
            sum = dst;
        }
        plan_next_round(p);
    }
    if (number == 0)
        plan_finish_sums(p, 0, p->size);
    plan_next_round(p);
}

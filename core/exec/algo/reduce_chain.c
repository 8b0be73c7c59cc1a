/* Chain: a broadcast's backwards. Ranks are numbered from the root on; the sum goes from the last number to the root,
 * and every rank adds its share on the way. Alone that would take p - 1 times as long as one message; cut into k slices
 * by the engine, the slices follow each other and it takes (p - 2 + k) / k times as long. Rank order is kept if the
 * root is rank 0. Only the root has a RECV: the others sum in scratch.
 *
 * Rounds p - 1. Bytes per rank: n in, n out, the least possible. Wins for large vectors in many slices. */
#include "plan.h"

void algo_reduce_chain(struct plan *p)
{
    int32_t number = plan_around(p, p->rank - p->root);
    struct plan_region own = plan_all(p, PLAN_SEND);
    struct plan_region dst = number == 0 ? plan_all(p, PLAN_RECV) : plan_slot(0, 0, p->size);
    if (p->size == 1)
        plan_copy(p, dst, own);
    /* Number k sends in round p - 1 - k. */
    for (int32_t round = 0; round < p->size - 1; round++) {
        int32_t from = p->size - 1 - round;
        if (number == from)
            plan_send(p, plan_around(p, p->rank - 1), number + 1 == p->size ? own : dst);
        else if (number + 1 == from)
            plan_recv_reduce(p, plan_around(p, p->rank + 1), dst, own, 1);
        plan_next_round(p);
    }
    if (number == 0)
        plan_average(p, dst);
    plan_next_round(p);
}

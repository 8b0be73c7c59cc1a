/* Circulant. The blocks lie in scratch so that slot i is for rank + i. A round hands the far half of the slots that are
 * still open to the rank to which they are the near half, which adds them to its own; what is open shrinks from s to
 * ceil(s / 2) slots, until only this rank's own block is left.
 *
 * Rounds ceil(log2 p), for every size. Bytes per rank: p - 1 blocks, the least possible, and a copy of all blocks at
 * the start. Wins for small blocks. All blocks have one length, because slots are regrouped. The order of summation
 * depends on the block.
 *
 * Source: Traff 2024, "Optimal, non-pipelined reduce-scatter and allreduce algorithms". */
#include "plan.h"

void algo_reduce_scatter_circulant(struct plan *p)
{
    struct plan_region mine = plan_chunk(PLAN_RECV, p->rank), result = p->widens ? plan_slot(0, 0, 1) : mine;
    if (p->size == 1)
        plan_copy(p, result, plan_chunk(PLAN_SEND, 0));
    else
        for (int32_t i = 0; i < p->size; i++)
            plan_copy(p, plan_slot(i, 0, 1), plan_chunk(PLAN_SEND, plan_around(p, p->rank + i)));
    plan_next_round(p); /* messages may come to the slots only after this */

    for (int32_t open = p->size; open > 1;) {
        int32_t near = (open + 1) / 2, far = open - near;
        struct plan_region sum = plan_slot(0, 0, far);
        plan_send(p, plan_around(p, p->rank + near), plan_slot(near, 0, far));
        plan_recv_reduce(p, plan_around(p, p->rank - near), near == 1 ? result : sum, sum, 0);
        plan_next_round(p);
        open = near;
    }
    plan_average(p, result);
    if (p->widens)
        plan_copy(p, mine, result);
    plan_next_round(p);
}

/* Bruck. The blocks lie in scratch so that slot i is from rank + i. With the first h slots filled, a rank is sent the h
 * slots of the rank h further, which are its next h. At the end they are copied to their places.
 *
 * Rounds ceil(log2 p), for every size. Bytes per rank: p - 1 blocks, the least possible, and a copy of all blocks at
 * the end. Wins for small blocks. All blocks have one length, because slots are regrouped.
 *
 * Source: Bruck et al. 1997. */
#include "plan.h"

void algo_all_gather_bruck(struct plan *p)
{
    plan_copy(p, plan_slot(0, 0, 1), plan_chunk(PLAN_SEND, p->rank));
    for (int32_t have = 1; have < p->size; have *= 2) {
        int32_t more = have < p->size - have ? have : p->size - have;
        plan_send(p, plan_around(p, p->rank - have), plan_slot(0, 0, more));
        plan_recv(p, plan_around(p, p->rank + have), plan_slot(have, 0, more));
        plan_next_round(p);
    }
    for (int32_t i = 0; i < p->size; i++)
        plan_copy(p, plan_chunk(PLAN_RECV, plan_around(p, p->rank + i)), plan_slot(i, 0, 1));
    plan_next_round(p);
}

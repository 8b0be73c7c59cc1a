/* Direct. Every rank sends each block to its owner, which reduces what arrives in rank order with one rounding.
 *
 * Rounds 1. Bytes per rank: n (p - 1) / p of all blocks, the least possible. Wins between up to about 16 hosts. */
#include "plan.h"

void algo_reduce_scatter_direct(struct plan *p)
{
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, plan_chunk(PLAN_SEND, to));
        plan_recv(p, from, plan_slot(from, p->rank, 1));
    }
    plan_next_round(p);
    plan_reduce_ranks(p, plan_chunk(PLAN_RECV, p->rank), plan_chunk(PLAN_SEND, p->rank), 0);
    plan_next_round(p);
}

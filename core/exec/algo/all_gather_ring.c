/* Ring. Every rank passes on the block that it received last.
 *
 * Rounds p - 1. Bytes per rank: (p - 1) blocks, the least possible, to one neighbour: no incast. Wins for large blocks.
 */
#include "plan.h"

void algo_all_gather_ring(struct plan *p)
{
    struct plan_region last = plan_chunk(PLAN_SEND, p->rank);
    plan_copy(p, plan_chunk(PLAN_RECV, p->rank), last);
    for (int32_t i = 0; i < p->size - 1; i++) {
        struct plan_region dst = plan_chunk(PLAN_RECV, plan_around(p, p->rank - i - 1));
        plan_send(p, plan_around(p, p->rank + 1), last);
        plan_recv(p, plan_around(p, p->rank - 1), dst);
        plan_next_round(p);
        last = dst;
    }
    if (p->size == 1)
        plan_next_round(p);
}

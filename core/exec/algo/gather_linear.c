/* Linear. Every rank sends its block to the root, all at once.
 *
 * Rounds 1. Bytes at the root: p - 1 blocks. No block is sent twice and none passes a third rank, so lengths may differ
 * and need to be known only to the two concerned. Wins for large blocks, and for any between few hosts. */
#include "plan.h"

void algo_gather_linear(struct plan *p)
{
    struct plan_region mine = plan_chunk(PLAN_SEND, p->rank);
    if (p->rank != p->root) {
        plan_send(p, p->root, mine);
    } else {
        plan_copy(p, plan_chunk(PLAN_RECV, p->rank), mine);
        for (int32_t i = 1; i < p->size; i++) {
            int32_t from = plan_around(p, p->root + i);
            plan_recv(p, from, plan_chunk(PLAN_RECV, from));
        }
    }
    plan_next_round(p);
}

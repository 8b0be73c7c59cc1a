/* Linear. The root sends every rank its block, all at once.
 *
 * Rounds 1. Bytes at the root: p - 1 blocks. Lengths may differ and need to be known only to the two concerned. Wins
 * for large blocks, and for any between few hosts. */
#include "plan.h"

void algo_scatter_linear(struct plan *p)
{
    struct plan_region mine = plan_chunk(PLAN_RECV, p->rank);
    if (p->rank != p->root) {
        plan_recv(p, p->root, mine);
    } else {
        plan_copy(p, mine, plan_chunk(PLAN_SEND, p->rank));
        for (int32_t i = 1; i < p->size; i++) {
            int32_t to = plan_around(p, p->root + i);
            plan_send(p, to, plan_chunk(PLAN_SEND, to));
        }
    }
    plan_next_round(p);
}

/* Direct. Every rank sends its block to every other.
 *
 * Rounds 1. Bytes per rank: (p - 1) blocks, the least possible. Wins between up to about 16 hosts. */
#include "plan.h"

void algo_all_gather_direct(struct plan *p)
{
    struct plan_region mine = plan_chunk(PLAN_SEND, p->rank);
    plan_copy(p, plan_chunk(PLAN_RECV, p->rank), mine);
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, mine);
        plan_recv(p, from, plan_chunk(PLAN_RECV, from));
    }
    plan_next_round(p);
}

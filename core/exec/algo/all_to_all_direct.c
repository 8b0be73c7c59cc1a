/* Direct. All messages at once; each rank begins with its next neighbour, so that not all ranks send to rank 0 first.
 *
 * Rounds 1. Bytes per rank: p - 1 blocks. Lengths may differ and need to be known only to the two concerned. Wins for
 * all but tiny blocks while the switch takes p - 1 messages that arrive together. */
#include "plan.h"

void algo_all_to_all_direct(struct plan *p)
{
    plan_copy(p, plan_chunk(PLAN_RECV, p->rank), plan_chunk(PLAN_SEND, p->rank));
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, plan_chunk(PLAN_SEND, to));
        plan_recv(p, from, plan_chunk(PLAN_RECV, from));
    }
    plan_next_round(p);
}

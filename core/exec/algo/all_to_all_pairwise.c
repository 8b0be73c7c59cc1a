/* Pairwise. In round i every rank sends to the one i further and receives from the one i before, and waits for both.
 *
 * Rounds p - 1. Bytes per rank: p - 1 blocks. Lengths may differ and need to be known only to the two concerned. Wins
 * for large blocks between many hosts: every receiver has one sender at a time, so that nothing overruns the switch. */
#include "plan.h"

void algo_all_to_all_pairwise(struct plan *p)
{
    plan_copy(p, plan_chunk(PLAN_RECV, p->rank), plan_chunk(PLAN_SEND, p->rank));
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, plan_chunk(PLAN_SEND, to));
        plan_recv(p, from, plan_chunk(PLAN_RECV, from));
        plan_next_round(p);
    }
    if (p->size == 1)
        plan_next_round(p);
}

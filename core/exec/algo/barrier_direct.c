#include "plan.h"

/* Direct. Every rank tells every other. The messages are empty.
 *
 * Rounds 1. Messages per rank: p - 1. Wins between ranks that share memory, where a message is one line. */
void algo_barrier_direct(struct plan *p)
{
    struct plan_region nothing = plan_range(PLAN_SEND, 0, 0);
    for (int32_t i = 1; i < p->size; i++) {
        plan_send(p, plan_around(p, p->rank + i), nothing);
        plan_recv(p, plan_around(p, p->rank - i), nothing);
    }
    plan_next_round(p);
}

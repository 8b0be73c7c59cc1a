/* Chain. Each rank sends the vector on to the next. Alone that would take p - 1 times as long as one message; cut into
 * k slices by the engine, the slices follow each other and it takes (p - 2 + k) / k times as long.
 *
 * Rounds p - 1. Bytes per rank: n in, n out. Wins for large vectors in many slices. */
#include "plan.h"

void algo_broadcast_chain(struct plan *p)
{
    int32_t number = plan_around(p, p->rank - p->root);
    struct plan_region data = plan_all(p, number == 0 ? PLAN_SEND : PLAN_RECV);
    for (int32_t round = 0; round < p->size - 1; round++) {
        if (round == number)
            plan_send(p, plan_around(p, p->rank + 1), data);
        else if (round == number - 1)
            plan_recv(p, plan_around(p, p->rank - 1), data);
        plan_next_round(p);
    }
}

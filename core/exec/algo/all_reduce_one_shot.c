/* One shot. Every rank sends its whole vector to every other and reduces them all itself, in rank order. One rounding,
 * and the same bits on all ranks, because each does the same arithmetic.
 *
 * Rounds 1. Bytes per rank: (p - 1) n, and p n of scratch. Wins for a few hundred bytes between few hosts, where a
 * message's start costs more than its bytes. */
#include "plan.h"

void algo_all_reduce_one_shot(struct plan *p)
{
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, plan_all(p, PLAN_SEND));
        plan_recv(p, from, plan_slot(from * p->size, 0, p->size));
    }
    plan_next_round(p);
    plan_reduce_ranks(p, plan_all(p, PLAN_RECV), plan_all(p, PLAN_SEND), 0);
    plan_next_round(p);
}

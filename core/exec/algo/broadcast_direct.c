#include "plan.h"

/* Direct. The root sends the vector to every other rank.
 *
 * Rounds 1. Bytes at the root: (p - 1) n. Wins for small vectors between ranks that share memory. */
void algo_broadcast_direct(struct plan *p)
{
    if (p->rank != p->root)
        plan_recv(p, p->root, plan_all(p, PLAN_RECV));
    for (int32_t i = 1; i < p->size && p->rank == p->root; i++)
        plan_send(p, plan_around(p, p->root + i), plan_all(p, PLAN_SEND));
    plan_next_round(p);
}

#include "plan.h"

/* Direct. Every rank sends its vector to the root, which reduces them in rank order with one rounding.
 *
 * Rounds 1. Bytes at the root: (p - 1) n, and p n of scratch. Wins for small vectors between ranks that share
 * memory. */
void algo_reduce_direct(struct plan *p)
{
    if (p->rank != p->root)
        plan_send(p, p->root, plan_all(p, PLAN_SEND));
    for (int32_t i = 1; i < p->size && p->rank == p->root; i++) {
        int32_t from = plan_around(p, p->root + i);
        plan_recv(p, from, plan_slot(from * p->size, 0, p->size));
    }
    plan_next_round(p);
    if (p->rank != p->root)
        return;
    plan_reduce_ranks(p, plan_all(p, PLAN_RECV), plan_all(p, PLAN_SEND), 0);
    plan_next_round(p);
}

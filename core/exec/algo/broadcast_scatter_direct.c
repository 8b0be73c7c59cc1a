/* Scatter and all-gather, both direct: the root sends every rank its chunk, then every rank sends its chunk to every
 * rank but the root.
 *
 * Rounds 2. Bytes sent: 2 n (p - 1) / p by the root, about n by the others. Wins for medium vectors between up to about
 * 16 hosts. */
#include "plan.h"

void algo_broadcast_scatter_direct(struct plan *p)
{
    enum plan_buffer data = p->rank == p->root ? PLAN_SEND : PLAN_RECV;
    if (p->rank != p->root)
        plan_recv(p, p->root, plan_chunk(PLAN_RECV, p->rank));
    else
        for (int32_t i = 1; i < p->size; i++) {
            int32_t to = plan_around(p, p->rank + i);
            plan_send(p, to, plan_chunk(PLAN_SEND, to));
        }
    plan_next_round(p);

    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        if (to != p->root)
            plan_send(p, to, plan_chunk(data, p->rank));
        if (p->rank != p->root)
            plan_recv(p, from, plan_chunk(PLAN_RECV, from));
    }
    plan_next_round(p);
}

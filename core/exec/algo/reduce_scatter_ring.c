/* Ring. The partial sum of block r starts at rank r + 1 and goes round until it reaches its owner; each rank adds its
 * share. RECV has room for one block only, so the sums on their way lie in two slots of scratch: one is sent while the
 * other is filled.
 *
 * Rounds p - 1. Bytes per rank: n (p - 1) / p of all blocks, the least possible, to one neighbour. Wins for large
 * blocks. */
#include "plan.h"

void algo_reduce_scatter_ring(struct plan *p)
{
    struct plan_region mine = plan_chunk(PLAN_RECV, p->rank);
    struct plan_region sum = plan_chunk(p->size == 1 ? PLAN_RECV : PLAN_SEND, plan_around(p, p->rank - 1));
    if (p->size == 1)
        plan_copy(p, mine, plan_chunk(PLAN_SEND, 0));

    for (int32_t i = 0; i < p->size - 1; i++) {
        int32_t incoming = plan_around(p, p->rank - i - 2);
        struct plan_region dst = incoming == p->rank ? mine : plan_slot(i % 2, incoming, 1);
        plan_send(p, plan_around(p, p->rank + 1), sum);
        plan_recv_reduce(p, plan_around(p, p->rank - 1), dst, plan_chunk(PLAN_SEND, incoming), 0);
        plan_next_round(p);
        sum = dst;
    }
    plan_average(p, mine);
    plan_next_round(p);
}

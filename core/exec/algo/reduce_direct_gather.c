/* Direct reduce-scatter, then a gather. Rank r is sent chunk r of every rank, reduces them in rank order with one
 * rounding, and sends the result to the root.
 *
 * Rounds 2. Bytes per rank: about n; the root receives 2 n (p - 1) / p, where a tree would give it n log2(p). Wins for
 * vectors of more than a few KiB between up to about 16 hosts, and wherever one rounding is needed. */
#include "plan.h"

void algo_reduce_direct_gather(struct plan *p)
{
    /* Slot `rank` is free: this rank's own share stays in SEND. */
    struct plan_region mine = p->rank == p->root ? plan_chunk(PLAN_RECV, p->rank) : plan_slot(p->rank, p->rank, 1);
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, plan_chunk(PLAN_SEND, to));
        plan_recv(p, from, plan_slot(from, p->rank, 1));
    }
    plan_next_round(p);

    plan_reduce_ranks(p, mine, plan_chunk(PLAN_SEND, p->rank), 0);
    if (p->rank != p->root)
        plan_send(p, p->root, mine);
    else
        for (int32_t r = 0; r < p->size; r++)
            if (r != p->root)
                plan_recv(p, r, plan_chunk(PLAN_RECV, r));
    plan_next_round(p);
}

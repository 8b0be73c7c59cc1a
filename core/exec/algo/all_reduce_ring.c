/* Ring: a reduce-scatter and an all-gather round a ring. In round i of the first half, each rank passes on the chunk
 * that it has just summed and adds its own to the one that comes; after p - 1 rounds it owns the whole sum of chunk
 * rank + 1. The second half passes the results on. A chunk's first touch is RECV = received OP SEND, so out of place
 * needs no copy, and in place is the same.
 *
 * Rounds 2 (p - 1). Bytes per rank: 2 n (p - 1) / p, the least possible, and only to the next neighbour: no incast, two
 * connections, full streams. Wins for large vectors. The order of summation is a rotation that depends on the chunk.
 *
 * Source: Patarasuk and Yuan 2009. */
#include "plan.h"

void algo_all_reduce_ring(struct plan *p)
{
    int32_t next = plan_around(p, p->rank + 1), prev = plan_around(p, p->rank - 1);
    if (p->size == 1)
        plan_copy(p, plan_chunk(PLAN_RECV, 0), plan_chunk(PLAN_SEND, 0));

    for (int32_t i = 0; i < p->size - 1; i++) {
        int32_t incoming = plan_around(p, p->rank - i - 1);
        plan_send(p, next, plan_chunk(i == 0 ? PLAN_SEND : PLAN_RECV, plan_around(p, p->rank - i)));
        plan_recv_reduce(p, prev, plan_chunk(PLAN_RECV, incoming), plan_chunk(PLAN_SEND, incoming), 0);
        plan_next_round(p);
    }
    plan_average(p, plan_chunk(PLAN_RECV, next));
    for (int32_t i = 0; i < p->size - 1; i++) {
        plan_send(p, next, plan_chunk(PLAN_RECV, plan_around(p, p->rank + 1 - i)));
        plan_recv(p, prev, plan_chunk(PLAN_RECV, plan_around(p, p->rank - i)));
        plan_next_round(p);
    }
    if (p->size == 1)
        plan_next_round(p);
}

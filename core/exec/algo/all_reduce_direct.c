/* Direct: a reduce-scatter and an all-gather, each in one round with all peers at once. Rank r is sent chunk r of every
 * rank, reduces them in rank order with one rounding, and sends the result to every rank.
 *
 * Rounds 2. Bytes per rank: 2 n (p - 1) / p, the least possible. Wins for medium vectors between up to about 16 hosts,
 * and wherever one rounding is needed; with more peers p - 1 messages that arrive together overrun the switch. */
#include "plan.h"

void algo_all_reduce_direct(struct plan *p)
{
    struct plan_region mine = plan_chunk(PLAN_RECV, p->rank);
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, plan_chunk(PLAN_SEND, to));
        plan_recv(p, from, plan_slot(from, p->rank, 1));
    }
    plan_next_round(p);

    plan_reduce_ranks(p, mine, plan_chunk(PLAN_SEND, p->rank), 0);
    for (int32_t i = 1; i < p->size; i++) {
        int32_t to = plan_around(p, p->rank + i), from = plan_around(p, p->rank - i);
        plan_send(p, to, mine);
        plan_recv(p, from, plan_chunk(PLAN_RECV, from));
    }
    plan_next_round(p);
}

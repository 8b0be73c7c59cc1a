/* Scatter and all-gather (van de Geijn). Ranks are numbered from the root on and chunk c is number c's. A binomial tree
 * halves the vector on its way down, so that every rank gets its own chunk and those of the subtree below; then chunks
 * go round a ring, except to ranks that have them already.
 *
 * Rounds ceil(log2 p) + p - 1. Bytes sent: at most 2 n (p - 1) / p. Wins for large vectors between many ranks, where a
 * chain is too long.
 *
 * Source: Barnett, Shuler, van de Geijn et al. 1994; Thakur, Rabenseifner, Gropp 2005, section 4.2. */
#include "plan.h"

/* Where the subtree below `number` ends: the tree gives it chunks number .. end - 1. */
static int32_t end_of(const struct plan *p, int32_t number)
{
    int32_t below = number & -number;
    return number == 0 || below > p->size - number ? p->size : number + below;
}

static int has(const struct plan *p, int32_t number, int32_t chunk)
{
    return chunk >= number && chunk < end_of(p, number);
}

void algo_broadcast_scatter_ring(struct plan *p)
{
    int32_t number = plan_around(p, p->rank - p->root), next = plan_around(p, number + 1), distance = 1;
    enum plan_buffer data = number == 0 ? PLAN_SEND : PLAN_RECV;
    while (distance < p->size)
        distance *= 2;
    while (distance > 1) {
        distance /= 2;
        int32_t below = number + distance;
        if (number % (2 * distance) == 0 && below < p->size)
            plan_send(p, plan_around(p, p->root + below), plan_range(data, below, end_of(p, below) - below));
        else if (number % (2 * distance) == distance)
            plan_recv(p, plan_around(p, p->rank - distance), plan_range(data, number, end_of(p, number) - number));
        plan_next_round(p);
    }
    for (int32_t i = 0; i < p->size - 1; i++) {
        int32_t outgoing = plan_around(p, number - i), incoming = plan_around(p, number - i - 1);
        if (!has(p, next, outgoing))
            plan_send(p, plan_around(p, p->rank + 1), plan_chunk(data, outgoing));
        if (!has(p, number, incoming))
            plan_recv(p, plan_around(p, p->rank - 1), plan_chunk(data, incoming));
        plan_next_round(p);
    }
}

/* Dissemination. In round k every rank tells the rank 2^k further that it and all ranks that it has heard of are there;
 * after ceil(log2 p) rounds each has heard of every rank. The messages are empty.
 *
 * Rounds ceil(log2 p), for every size. Source: Hensgen, Finkel, Manber 1988. */
#include "plan.h"

void algo_barrier_dissemination(struct plan *p)
{
    struct plan_region nothing = plan_range(PLAN_SEND, 0, 0);
    for (int32_t distance = 1; distance < p->size; distance *= 2) {
        plan_send(p, plan_around(p, p->rank + distance), nothing);
        plan_recv(p, plan_around(p, p->rank - distance), nothing);
        plan_next_round(p);
    }
}

/* Binomial tree. Ranks are numbered from the root on; in the round of distance d, those whose number is a multiple of
 * 2d (they have the vector) send it to the one d further. The farthest first, because the subtree there is the deepest.
 *
 * Rounds ceil(log2 p). Bytes at the root: n times that. Wins for small vectors. */
#include "plan.h"

void algo_broadcast_binomial(struct plan *p)
{
    int32_t number = plan_around(p, p->rank - p->root), distance = 1;
    struct plan_region data = plan_all(p, number == 0 ? PLAN_SEND : PLAN_RECV);
    while (distance < p->size)
        distance *= 2;
    while (distance > 1) {
        distance /= 2;
        if (number % (2 * distance) == 0 && number + distance < p->size)
            plan_send(p, plan_around(p, p->rank + distance), data);
        else if (number % (2 * distance) == distance)
            plan_recv(p, plan_around(p, p->rank - distance), data);
        plan_next_round(p);
    }
}

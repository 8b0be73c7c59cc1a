/* Binomial tree. Ranks are numbered from the root on; in the round of distance d, those whose number is an odd multiple
 * of d hand all blocks that they have to the one d before. Slot i of the scratch is the block of number + i.
 *
 * Rounds ceil(log2 p). Bytes at the root: p - 1 blocks; others pass on what is below them. Wins for small blocks of
 * many ranks. All blocks have one length, because slots are regrouped. */
#include "plan.h"

void algo_gather_binomial(struct plan *p)
{
    int32_t number = plan_around(p, p->rank - p->root);
    plan_copy(p, plan_slot(0, 0, 1), plan_chunk(PLAN_SEND, p->rank));
    for (int32_t distance = 1; distance < p->size; distance *= 2) {
        int32_t below = number + distance;
        if (number % (2 * distance) == distance) {
            int32_t have = distance < p->size - number ? distance : p->size - number;
            plan_send(p, plan_around(p, p->rank - distance), plan_slot(0, 0, have));
        } else if (number % (2 * distance) == 0 && below < p->size) {
            int32_t more = distance < p->size - below ? distance : p->size - below;
            plan_recv(p, plan_around(p, p->rank + distance), plan_slot(distance, 0, more));
        }
        plan_next_round(p);
    }
    if (number == 0)
        for (int32_t i = 0; i < p->size; i++)
            plan_copy(p, plan_chunk(PLAN_RECV, plan_around(p, p->root + i)), plan_slot(i, 0, 1));
    plan_next_round(p);
}

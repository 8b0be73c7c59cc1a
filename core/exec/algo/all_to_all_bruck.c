/* Bruck. Slot i of the scratch holds a block that still has to travel i ranks. The round of distance d moves every
 * block d further whose i has that bit set: packed into one message, and put back under the same i, whose remaining
 * bits say how far it has yet to go.
 *
 * Rounds ceil(log2 p), for every size. Bytes per rank: about log2(p) / 2 times the least possible, with as many copies.
 * Wins for blocks of up to a few hundred bytes between many ranks. All blocks have one length, because slots are
 * regrouped.
 *
 * Source: Bruck et al. 1997. */
#include "plan.h"

void algo_all_to_all_bruck(struct plan *p)
{
    int32_t pack = p->size, unpack = pack + p->size / 2; /* at most half of the numbers below p have a given bit */
    for (int32_t i = 0; i < p->size; i++)
        plan_copy(p, plan_slot(i, 0, 1), plan_chunk(PLAN_SEND, plan_around(p, p->rank + i)));

    for (int32_t distance = 1; distance < p->size; distance *= 2) {
        int32_t moved = 0;
        for (int32_t i = 0; i < p->size; i++)
            if (i & distance)
                plan_copy(p, plan_slot(pack + moved++, 0, 1), plan_slot(i, 0, 1));
        plan_send(p, plan_around(p, p->rank + distance), plan_slot(pack, 0, moved));
        plan_recv(p, plan_around(p, p->rank - distance), plan_slot(unpack, 0, moved));
        plan_next_round(p);
        moved = 0;
        for (int32_t i = 0; i < p->size; i++)
            if (i & distance)
                plan_copy(p, plan_slot(i, 0, 1), plan_slot(unpack + moved++, 0, 1));
        plan_next_round(p); /* the next message may come to `unpack` only after this */
    }
    for (int32_t i = 0; i < p->size; i++)
        plan_copy(p, plan_chunk(PLAN_RECV, plan_around(p, p->rank - i)), plan_slot(i, 0, 1));
    plan_next_round(p);
}

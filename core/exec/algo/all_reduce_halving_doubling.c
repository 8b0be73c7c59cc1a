/* Recursive halving, then doubling (Rabenseifner). In round k of the first half, partners whose numbers differ in bit k
 * split the range of chunks that both still sum: each keeps one half and is sent the other's share of it. After log2(p)
 * rounds every rank has the whole sum of its last range, and the same partners in reverse swap ranges until all have
 * everything. The lower partner keeps the lower half, so every range is one piece; bit 0 goes first, so every partial
 * sum is one of consecutive ranks and rank order is kept. Sizes that are not a power of two fold neighbours first, as
 * in recursive doubling.
 *
 * Rounds 2 log2(p), with a fold 2 more. Bytes per rank: 2 n (p - 1) / p, the least possible, for powers of two; folded
 * ranks and their partners move another 2 n. Wins between recursive doubling and the ring where there are too many
 * ranks for direct.
 *
 * Source: Thakur, Rabenseifner, Gropp 2005, section 4.4. */
#include "plan.h"

/* The ranks that take part are numbered anew after the fold: the first `pairs` are the even ranks of the pairs. */
static int32_t unfold(int32_t number, int32_t pairs)
{
    return number < pairs ? 2 * number : number + pairs;
}

/* The chunks that `number` still sums when the rounds of the distances below `limit` are over. */
static struct plan_region range_of(const struct plan *p, enum plan_buffer buffer, int32_t number, int32_t limit)
{
    int32_t begin = 0, end = p->size;
    for (int32_t distance = 1; distance < limit; distance *= 2) {
        int32_t middle = begin + (end - begin) / 2;
        if (number & distance)
            begin = middle;
        else
            end = middle;
    }
    return plan_range(buffer, begin, end - begin);
}

/* All rounds of rank `number` of `power`; its share lies in `from`. */
static void halve_and_double(struct plan *p, enum plan_buffer from, int32_t number, int32_t power, int32_t pairs)
{
    for (int32_t distance = 1; distance < power; distance *= 2) {
        int32_t partner = number ^ distance;
        plan_send(p, unfold(partner, pairs), range_of(p, from, partner, 2 * distance));
        plan_recv_reduce(p, unfold(partner, pairs), range_of(p, PLAN_SUMS, number, 2 * distance),
                         range_of(p, from, number, 2 * distance), number < partner);
        if (2 * distance == power)
            plan_may_write_back(p, range_of(p, PLAN_RECV, partner, power));
        plan_next_round(p);
        from = PLAN_SUMS;
    }
    struct plan_region own = range_of(p, PLAN_RECV, number, power);
    plan_finish_sums(p, own.first, own.count);
    for (int32_t distance = power / 2; distance > 0; distance /= 2) {
        int32_t partner = number ^ distance;
        plan_send(p, unfold(partner, pairs), range_of(p, PLAN_RECV, number, 2 * distance));
        plan_recv(p, unfold(partner, pairs), range_of(p, PLAN_RECV, partner, 2 * distance));
        if (2 * distance == power)
            plan_unless_written(p);
        plan_next_round(p);
    }
}

void algo_all_reduce_halving_doubling(struct plan *p)
{
    struct plan_region send = plan_all(p, PLAN_SEND), recv = plan_all(p, PLAN_RECV);
    int32_t power = 1;
    while (2 * power <= p->size)
        power *= 2;
    int32_t pairs = p->size - power; /* how many fold */
    int paired = p->rank < 2 * pairs, folded = paired && p->rank % 2 == 1;
    int sums_first = paired || (p->widens && pairs > 0); /* all swap sums, or all the ranks' own vectors */

    if (p->size == 1)
        plan_copy(p, plan_all(p, PLAN_SUMS), send);
    if (folded)
        plan_send(p, p->rank - 1, send);
    else if (paired)
        plan_recv_reduce(p, p->rank + 1, plan_all(p, PLAN_SUMS), send, 1);
    else if (sums_first)
        plan_copy(p, plan_all(p, PLAN_SUMS), send);
    if (pairs > 0)
        plan_next_round(p);

    if (!folded)
        halve_and_double(p, sums_first ? PLAN_SUMS : PLAN_SEND, paired ? p->rank / 2 : p->rank - pairs, power, pairs);
    else
        for (int32_t distance = 1; distance < power; distance *= 2) {
            plan_next_round(p);
            plan_next_round(p);
        }

    if (folded)
        plan_recv(p, p->rank - 1, recv);
    else if (paired)
        plan_send(p, p->rank + 1, recv);
    plan_next_round(p);
}

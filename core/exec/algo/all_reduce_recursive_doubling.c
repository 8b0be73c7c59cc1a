/* Recursive doubling. In round k every rank swaps its whole partial sum with the partner whose number differs in bit k,
 * so after log2(p) rounds all have the sum of all. Sizes that are not a power of two fold first: of the neighbours (2i,
 * 2i + 1) at the front, the odd one hands its vector to the even one and is told the result at the end. Neighbours,
 * because then every partial sum is one of consecutive ranks: with the lower one always on the left the reduction keeps
 * rank order, and both partners compute the same bits.
 *
 * Rounds log2(p), with a fold 2 more. Bytes per rank: n log2(p). Wins for small vectors, where only rounds count.
 *
 * Source: Thakur, Rabenseifner, Gropp 2005, section 4.1. */
#include "plan.h"

/* The ranks that take part are numbered anew after the fold: the first `pairs` are the even ranks of the pairs. */
static int32_t unfold(int32_t number, int32_t pairs)
{
    return number < pairs ? 2 * number : number + pairs;
}

/* A rank cannot receive into what it is sending, and RECV may be SEND: so the sums alternate between two vectors of
 * scratch, and the last round goes to SUMS. If the only round is the last one, `sum` may be the memory of SUMS: then
 * the partner's vector is received beside it, and reduced when both messages are done. */
static void double_up(struct plan *p, struct plan_region sum, int32_t number, int32_t pairs, int32_t half)
{
    struct plan_region result = plan_all(p, PLAN_SUMS), beside = plan_slot(0, 0, p->size);
    if (half == 1) {
        plan_send(p, unfold(number ^ 1, pairs), sum);
        plan_recv(p, unfold(number ^ 1, pairs), beside);
        plan_next_round(p);
        plan_reduce(p, result, number == 0 ? sum : beside, number == 0 ? beside : sum);
        return;
    }
    for (int32_t distance = 1, k = 0; distance <= half; distance *= 2, k++) {
        int32_t partner = number ^ distance;
        struct plan_region dst = distance == half ? result : plan_slot(k % 2 * p->size, 0, p->size);
        plan_send(p, unfold(partner, pairs), sum);
        plan_recv_reduce(p, unfold(partner, pairs), dst, sum, number < partner);
        plan_next_round(p);
        sum = dst;
    }
}

void algo_all_reduce_recursive_doubling(struct plan *p)
{
    struct plan_region send = plan_all(p, PLAN_SEND), recv = plan_all(p, PLAN_RECV), sum = send;
    int32_t power = 1, rounds = 0;
    while (2 * power <= p->size) {
        power *= 2;
        rounds++;
    }
    int32_t pairs = p->size - power; /* how many fold */
    int paired = p->rank < 2 * pairs, folded = paired && p->rank % 2 == 1;
    int sums_first = p->widens && (pairs > 0 || power == 2); /* all swap sums, or all the ranks' own vectors */

    if (power == 1) { /* alone */
        plan_copy(p, plan_all(p, PLAN_SUMS), send);
        plan_finish_sums(p, 0, 1);
        plan_next_round(p);
        return;
    }
    if (folded) {
        plan_send(p, p->rank - 1, send);
    } else if (paired) {
        sum = plan_all(p, PLAN_SUMS);
        plan_recv_reduce(p, p->rank + 1, sum, send, 1);
    } else if (sums_first) {
        sum = plan_all(p, PLAN_SUMS);
        plan_copy(p, sum, send);
    }
    if (pairs > 0)
        plan_next_round(p);

    if (!folded)
        double_up(p, sum, paired ? p->rank / 2 : p->rank - pairs, pairs, power / 2);
    else
        for (int32_t k = 0; k < rounds; k++)
            plan_next_round(p);

    if (!folded)
        plan_finish_sums(p, 0, p->size);
    if (folded)
        plan_recv(p, p->rank - 1, recv);
    else if (paired)
        plan_send(p, p->rank + 1, recv);
    plan_next_round(p);
}

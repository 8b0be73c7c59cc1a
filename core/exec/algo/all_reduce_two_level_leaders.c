/* Two levels. The members of a host send their vectors to its first member, which sums them; the first members send
 * each other their sums, and sum these; then each sends the result to its host.
 *
 * Rounds 3, one of them across hosts. Bytes: n (2 (p - h) + h (h - 1)) by all p ranks together on h hosts, of which n h
 * (h - 1) go from one host to another. Wins for short vectors where ranks of one host share memory: fewest messages and
 * rounds go over the network, wherever the ranks lie; recursive doubling lets every rank of a host send there, and if
 * neighbours do not share a host it does so in each round. Each element is summed on every host alike, in rank order if
 * the ranks of a host follow each other. */
#include "plan.h"

static void to_first(struct plan *p, int32_t host)
{
    int32_t first = plan_member(p, host, 0);
    if (p->rank != first)
        plan_send(p, first, plan_all(p, PLAN_SEND));
    for (int32_t i = 1; p->rank == first && i < plan_host_size(p, host); i++)
        plan_recv(p, plan_member(p, host, i), plan_slot(i * p->size, 0, p->size));
    plan_next_round(p);
}

/* This rank is the first of its host. */
static void among_first(struct plan *p, int32_t host)
{
    int32_t members = plan_host_size(p, host), slot = members * p->size;
    struct plan_region sum = plan_all(p, members > 1 ? PLAN_RECV : PLAN_SEND);
    if (members > 1)
        plan_reduce_shares(p, sum, plan_all(p, PLAN_SEND), 0, members, 0);
    for (int32_t h = 0; h < p->host_count; h++)
        if (h != host) {
            plan_send(p, plan_member(p, h, 0), sum);
            plan_recv(p, plan_member(p, h, 0), plan_slot(slot + h * p->size, 0, p->size));
        }
    plan_next_round(p);
    plan_reduce_shares(p, plan_all(p, PLAN_RECV), sum, host, p->host_count, slot);
    plan_average(p, plan_all(p, PLAN_RECV));
}

void algo_all_reduce_two_level_leaders(struct plan *p)
{
    int32_t host = plan_host_of(p, p->rank), first = plan_member(p, host, 0);
    to_first(p, host);
    if (p->rank == first)
        among_first(p, host);
    else
        plan_next_round(p);
    if (p->rank != first)
        plan_recv(p, first, plan_all(p, PLAN_RECV));
    for (int32_t i = 1; p->rank == first && i < plan_host_size(p, host); i++)
        plan_send(p, plan_member(p, host, i), plan_all(p, PLAN_RECV));
    plan_next_round(p);
}

/* Two levels. The members of a host tell its first one that they are there; the first ones tell each other, as in
 * dissemination; then each tells its host. The messages are empty.
 *
 * Rounds 2 + ceil(log2 h) for h hosts, so fewer across hosts than dissemination, where every round may cross; and h
 * messages at most are on the network at a time. Wins with many ranks on a host. */
#include "plan.h"

void algo_barrier_two_level(struct plan *p)
{
    struct plan_region nothing = plan_range(PLAN_SEND, 0, 0);
    int32_t host = plan_host_of(p, p->rank), hosts = p->host_count, first = plan_member(p, host, 0);
    if (p->rank != first)
        plan_send(p, first, nothing);
    for (int32_t i = 1; p->rank == first && i < plan_host_size(p, host); i++)
        plan_recv(p, plan_member(p, host, i), nothing);
    plan_next_round(p);

    for (int32_t distance = 1; distance < hosts; distance *= 2) {
        if (p->rank == first) {
            plan_send(p, plan_member(p, (host + distance) % hosts, 0), nothing);
            plan_recv(p, plan_member(p, (host - distance + hosts) % hosts, 0), nothing);
        }
        plan_next_round(p);
    }

    if (p->rank != first)
        plan_recv(p, first, nothing);
    for (int32_t i = 1; p->rank == first && i < plan_host_size(p, host); i++)
        plan_send(p, plan_member(p, host, i), nothing);
    plan_next_round(p);
}

/* Two chains: a broadcast's backwards. On each host the sum goes from the last member to the head (the root on its own
 * host, the first rank on the others), then from the last host's head to the root; every rank adds its share on the
 * way. Only the root has a RECV: the others sum in scratch.
 *
 * Rounds m + h - 2 for h hosts with up to m ranks. Across hosts the vector goes h - 1 times, the least possible, and
 * no host sends or receives it more than once: cut into many slices, that is as fast as the network. Rank order is
 * kept if the ranks of a host follow each other and the root is rank 0. Wins for large vectors where hosts with
 * several ranks are farther apart than their ranks. */
#include "plan.h"

void algo_reduce_two_level_chain(struct plan *p)
{
    struct plan_region sum = plan_all(p, PLAN_SEND);
    struct plan_region dst = p->rank == p->root ? plan_all(p, PLAN_RECV) : plan_slot(0, 0, p->size);
    int32_t host = plan_host_number(p), number = plan_member_number(p), hosts = p->host_count, most = p->host_most;
    if (p->size == 1)
        plan_copy(p, dst, sum);
    /* Member k sends in round most - 1 - k; then the head of host k in round most - 1 + hosts - 1 - k. */
    for (int32_t round = 0; round < most + hosts - 2; round++) {
        int32_t from = most - 1 - round, from_host = most - 1 + hosts - 1 - round;
        if (number > 0 && from == number) {
            plan_send(p, plan_fellow(p, number - 1), sum);
        } else if (from == number + 1 && from < plan_host_size(p, plan_host_of(p, p->rank))) {
            plan_recv_reduce(p, plan_fellow(p, from), dst, sum, 1);
            sum = dst;
        } else if (number == 0 && host > 0 && from_host == host) {
            plan_send(p, plan_head(p, host - 1), sum);
        } else if (number == 0 && from_host == host + 1 && from_host < hosts) {
            plan_recv_reduce(p, plan_head(p, from_host), dst, sum, 1);
            sum = dst;
        }
        plan_next_round(p);
    }
    if (p->rank == p->root)
        plan_average(p, dst);
    plan_next_round(p);
}

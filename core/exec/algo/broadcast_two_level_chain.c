/* Two chains. One rank of each host, its head, passes the vector on to the next host's and to the next rank on its own,
 * which passes it on there.
 *
 * Rounds h + m - 2 for h hosts with up to m ranks. Across hosts the vector goes h - 1 times, the least possible, and
 * no host sends or receives it more than once: cut into many slices, that is as fast as the network. Wins for large
 * vectors where hosts with several ranks are farther apart than their ranks. */
#include "plan.h"

void algo_broadcast_two_level_chain(struct plan *p)
{
    struct plan_region data = plan_all(p, p->rank == p->root ? PLAN_SEND : PLAN_RECV);
    int32_t host = plan_host_number(p), number = plan_member_number(p), rounds = p->host_count + p->host_most - 2;
    for (int32_t round = 0; round < rounds; round++) {
        if (round == host + number - 1)
            plan_recv(p, number == 0 ? plan_head(p, host - 1) : plan_fellow(p, number - 1), data);
        if (round == host + number && number + 1 < plan_host_size(p, plan_host_of(p, p->rank)))
            plan_send(p, plan_fellow(p, number + 1), data);
        if (round == host && number == 0 && host + 1 < p->host_count)
            plan_send(p, plan_head(p, host + 1), data);
        plan_next_round(p);
    }
}

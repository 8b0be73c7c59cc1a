/* Two levels. The vector is cut into layers, as many as the smallest host has ranks; on each host one member owns each
 * layer, and a layer is cut into a part for each host. The members of a host send each layer to its owner, which sums
 * it (a reduce-scatter on the host); the owners of a layer on all hosts do the same with its parts, and send each other
 * the sums (a direct all_reduce across hosts, one per layer, all at the same time); then each owner sends its layer to
 * its host.
 *
 * Rounds 4, two of them across hosts. Bytes: 2 n (p - 1) by all p ranks together, the least possible; of these 2 n (h
 * - 1) go from one of the h hosts to another, also the least possible, and all members of a host send and receive them
 * alike if hosts have equally many. Wins where hosts with several ranks are farther apart than their ranks. Each
 * element is summed in one place, in rank order if the ranks of a host follow each other.
 *
 * Source: Bayatpour et al. 2017 (DPML), with as many leaders as there are ranks. */
#include "plan.h"

/* Chunks [first, first + count) of `all`, which are cut into `pieces`. */
static struct plan_region cut(struct plan_region all, int32_t pieces, int32_t piece)
{
    size_t begin, end;
    plan_cut((size_t)all.count, pieces, piece, &begin, &end);
    return plan_range((enum plan_buffer)all.buffer, all.first + (int32_t)begin, (int32_t)(end - begin));
}

static struct plan_region in(enum plan_buffer buffer, struct plan_region r)
{
    return plan_range(buffer, r.first, r.count);
}

/* Round 1: each layer goes to its owner on this host. */
static void collect_layers(struct plan *p, int32_t host, int32_t place, struct plan_region layer)
{
    for (int32_t i = 0; i < plan_host_size(p, host); i++) {
        int32_t member = plan_member(p, host, i);
        if (i != place && i < p->host_least)
            plan_send(p, member, cut(plan_all(p, PLAN_SEND), p->host_least, i));
        if (i != place && layer.count > 0)
            plan_recv(p, member, plan_slot(i * layer.count, layer.first, layer.count));
    }
    plan_next_round(p);
}

/* Rounds 2 and 3: this rank owns `layer`; the other hosts' owners of it are in the same place there. */
static void sum_layer(struct plan *p, int32_t host, int32_t place, struct plan_region layer)
{
    int32_t members = plan_host_size(p, host), slot = members * layer.count;
    struct plan_region sum = in(members > 1 ? PLAN_RECV : PLAN_SEND, layer), part = cut(layer, p->host_count, host);
    if (members > 1)
        plan_reduce_shares(p, sum, in(PLAN_SEND, layer), place, members, 0);
    for (int32_t h = 0; h < p->host_count; h++)
        if (h != host) {
            plan_send(p, plan_member(p, h, place), cut(sum, p->host_count, h));
            plan_recv(p, plan_member(p, h, place), plan_slot(slot + h * part.count, part.first, part.count));
        }
    plan_next_round(p);

    plan_reduce_shares(p, in(PLAN_RECV, part), in((enum plan_buffer)sum.buffer, part), host, p->host_count, slot);
    plan_average(p, in(PLAN_RECV, part));
    for (int32_t h = 0; h < p->host_count; h++)
        if (h != host) {
            plan_send(p, plan_member(p, h, place), in(PLAN_RECV, part));
            plan_recv(p, plan_member(p, h, place), cut(in(PLAN_RECV, layer), p->host_count, h));
        }
    plan_next_round(p);
}

void algo_all_reduce_two_level(struct plan *p)
{
    int32_t host = plan_host_of(p, p->rank), place = plan_place(p, p->rank), owners = p->host_least;
    struct plan_region all = plan_all(p, PLAN_RECV), layer = plan_range(PLAN_RECV, 0, 0);
    if (place < owners)
        layer = cut(all, owners, place);
    collect_layers(p, host, place, layer);
    if (place < owners) {
        sum_layer(p, host, place, layer);
    } else {
        plan_next_round(p);
        plan_next_round(p);
    }
    for (int32_t i = 0; i < plan_host_size(p, host); i++) {
        int32_t member = plan_member(p, host, i);
        if (i != place && place < owners)
            plan_send(p, member, layer);
        if (i != place && i < owners)
            plan_recv(p, member, cut(all, owners, i));
    }
    plan_next_round(p);
}

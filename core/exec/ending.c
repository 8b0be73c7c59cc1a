#include "ending.h"

#include <stdio.h>

#include "engine.h"
#include "groups.h"
#include "p2p.h"
#include "queue.h"
#include "say.h"
#include "text.h"

/* ---- A group that has failed ---- */

static void tell_members(struct exec_group *g, const struct reason *why)
{
    for (int32_t r = 0; r < g->size; r++) {
        struct port *p = group_port(g, r);
        if (r == g->rank || port_is_gone(p) || p->table->closing)
            continue;
        port_want(p);
        struct frame h = group_end_frame(g->id, why);
        p->ops->send_text(p, &h, why->text ? why->text : "", 0);
    }
}

static void end_ops(struct exec_group *g, struct exec_op *op, void (*cancel)(struct exec_op *op))
{
    struct exec_op *next;
    for (; op; op = next) {
        next = op->next;
        cancel(op);
        char what[OP_TEXT_BYTES], whole[FRAME_TEXT_MAX + 512];
        queue_describe(g, &op->op, what, sizeof what);
        group_say_reason(g, what, whole, sizeof whole);
        queue_done(g->domain, op->work, g->status, whole);
        queue_retire(op);
    }
}

/* Other backends of this rank's may have lost ranks, and the core ended the group here because of it. */
static void tell_what_others_lost(struct exec_group *g)
{
    if (g->status != COMM_ERR_PEER_LOST || g->why.reporter != g->rank)
        return;
    for (int32_t r = 0; r < g->size; r++) {
        uint64_t lost = (uint64_t)g->world_ranks[r] + 1;
        if (r == g->rank || lost == g->why.lost || !exec_host->rank_is_lost(g->token, g->world_ranks[r]))
            continue;
        if (g->why.lost == 0) {
            g->why.lost = lost;
            g->why.lost_here = 1;
        } else {
            tell_members(g, &(struct reason){ COMM_ERR_PEER_LOST, g->rank, g->why.text, lost, 1 });
        }
    }
}

static void end_group(struct exec_group *g)
{
    struct exec_op *collectives = g->head, *recvs = g->recvs.head, *sends = g->sends.head;
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank)
            group_port(g, r)->ops->forget(group_port(g, r), g);
    g->head = NULL;
    g->tail = &g->head;
    op_list_init(&g->recvs);
    op_list_init(&g->sends);
    end_ops(g, collectives, engine_cancel);
    end_ops(g, recvs, p2p_cancel);
    end_ops(g, sends, p2p_cancel);
    boxes_clear(g->boxes, g->size);
    boxes_clear(g->p2p_boxes, g->size);
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank)
            match_release(group_port(g, r)); /* of other groups' sends */
    exec_host->group_failed(g->token, g->status, g->error);
    tell_what_others_lost(g);
    tell_members(g, &g->why);
}

static void end_failed(struct domain *d)
{
    while (d->failed) {
        struct exec_group *g = d->failed;
        d->failed = g->failed_next;
        g->in_failed = 0;
        end_group(g);
    }
}

/* ---- A peer that is gone ---- */

/* A peer that has sent BYE, or was gone before it sent a frame, is lost only to operations that need it. */
static int is_missed(const struct exec_group *g, const struct port *p)
{
    if (g->status != COMM_OK)
        return 0;
    return (p->state != PORT_LEFT && p->heard) || (g->head && engine_needs(g->head, p)) || p2p_needs(g, p);
}

/* It has sent frames to this rank, and its connection ended without BYE, not through this rank's own fault. A peer that
 * has sent BYE, or never sent a frame, concerns only operations that need it. */
static int is_dead(const struct port *p)
{
    return p->state == PORT_LOST && p->heard && p->lost_status != COMM_ERR_BACKEND;
}

static void tell_loss(struct exec_group *g, struct port *p, const char *text)
{
    exec_host->rank_lost(g->token, p->peer, text);
    if (g->status != COMM_ERR_PEER_LOST)
        return;
    /* The group has ended because of another one: members without a connection to this one have not noticed. */
    struct reason why = { COMM_ERR_PEER_LOST, g->rank, (char *)text, (uint64_t)p->peer + 1, 0 };
    tell_members(g, &why);
}

/* It has said BYE, and its frames came before that: if a collective here still misses some, it has not called it. */
static void say_left(struct exec_group *g, struct port *p, char *text, size_t capacity)
{
    snprintf(text, capacity, "%s has closed its world before %s was done with it", text_peer(g, group_rank_of(g, p)),
             text_rank(g, g->rank));
    if (g->head && engine_needs(g->head, p))
        text_add(text, capacity, ", without calling collective #%llu", (unsigned long long)g->head->op.seq);
}

static void peer_gone(struct domain *d, struct port *p)
{
    int is_news = is_dead(p) && !p->loss_told;
    p->loss_told |= (uint8_t)is_news;
    for (struct exec_group *g = d->groups; g; g = g->next) {
        int32_t rank = group_rank_of(g, p);
        if (rank >= 0 && is_news)
            tell_loss(g, p, p->lost_text ? p->lost_text : "is lost");
        if (rank < 0 || !is_missed(g, p))
            continue;
        group_hear(g); /* it may be said there why this one went */
        if (!is_missed(g, p))
            continue;
        char whole[768];
        if (p->state == PORT_LEFT)
            say_left(g, p, whole, sizeof whole);
        else
            snprintf(whole, sizeof whole, "%s %s", text_peer(g, rank), p->lost_text ? p->lost_text : "is lost");
        comm_status status = p->state == PORT_LEFT ? COMM_ERR_PEER_LOST : p->lost_status;
        const int is_lost = status != COMM_ERR_BACKEND; /* else its address is not known, or it is this rank's fault */
        if (is_lost)
            exec_host->rank_lost(g->token, p->peer, whole);
        group_fail_as_reported(g, &(struct reason){ status, g->rank, whole, is_lost ? (uint64_t)p->peer + 1 : 0,
                                                    is_lost && !is_dead(p) });
    }
}

static void sweep_lost(struct domain *d)
{
    while (d->peers.lost_pending) {
        d->peers.lost_pending = 0;
        for (int32_t i = 0; i < d->peers.size; i++) {
            struct port *p = d->peers.at[i];
            p->ops->sweep(p);
            if (port_is_gone(p))
                peer_gone(d, p);
        }
    }
}

/* ---- The turn ---- */

static void start_next(struct exec_group *g)
{
    while (g->status == COMM_OK && g->head && !g->head->started) {
        struct exec_op *op = g->head;
        engine_start(op);
        if (g->head == op)
            break;
    }
}

void turn_end(struct domain *d)
{
    while (turn_has_news(d)) {
        while (d->ready) {
            struct exec_group *g = d->ready;
            d->ready = g->ready_next;
            g->is_ready = 0;
            start_next(g);
        }
        end_failed(d);
        sweep_lost(d);
    }
    while (d->retired) {
        struct exec_op *op = d->retired;
        d->retired = op->next;
        queue_put_back(d, op);
    }
}

void group_close(struct exec_group *g)
{
    struct domain *d = g->domain;
    if (g->head || g->recvs.head || g->sends.head)
        group_fail(g, COMM_ERR_ABORTED, "the group was closed with operations unfinished");
    turn_end(d);
    boxes_clear(g->boxes, g->size);
    boxes_clear(g->p2p_boxes, g->size);
    group_leave(g);
    turn_end(d);
    group_destroy(g);
}

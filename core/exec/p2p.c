/* Send and receive: matching by source and tag, in the order sent. What is matched is a message (match.c) like those
 * of collectives; its key is the sender's count. */
#include "p2p.h"

#include <stdio.h>
#include <string.h>

#include "copy.h"
#include "exec_group.h"
#include "queue.h"
#include "say.h"
#include "text.h"

static int fits(const struct exec_op *recv, int32_t from_rank, int32_t tag)
{
    return (recv->op.root == COMM_ANY_SOURCE || recv->op.root == from_rank) &&
           (recv->op.tag == COMM_ANY_TAG ? tag >= 0 : recv->op.tag == tag);
}

static struct exec_op *op_of(struct message *m)
{
    return (struct exec_op *)((char *)m - offsetof(struct exec_op, message));
}

/* ---- The end of an op ---- */

static void received(struct exec_op *op, int32_t from, int32_t tag)
{
    struct exec_group *g = op->group;
    const struct message *m = &op->message;
    size_t got = m->came < m->bytes ? m->came : m->bytes;
    exec_host->work_received(op->work, from, tag, got / op->element_bytes);
    if (m->came <= m->bytes) {
        queue_complete(op, COMM_OK, NULL);
        return;
    }
    char what[OP_TEXT_BYTES], text[512];
    queue_describe(g, &op->op, what, sizeof what);
    snprintf(text, sizeof text, "%s: the message from %s with tag %d has %zu B, the receive space for %zu B", what,
             text_rank(g, from), (int)tag, m->came, m->bytes);
    queue_complete(op, COMM_ERR_TRUNCATED, text);
}

static void on_done(struct message *m)
{
    struct exec_op *op = op_of(m);
    if (op->op.kind == COMM_OP_RECV)
        received(op, group_rank_of(op->group, m->port), op->head.tag);
    else
        queue_complete(op, COMM_OK, NULL);
}

static const struct message_user user = { .done = on_done };

/* ---- Matching ---- */

/* From now on the receive is for this message and no other. */
static void matched(struct exec_op *recv, struct port *p, const struct frame *h)
{
    recv->matched = 1;
    recv->head.seq = h->seq;
    recv->head.tag = h->tag;
    recv->message.port = p;
    recv->message.box = group_box(recv->group, p, COMM_OP_SEND);
}

static struct exec_op *posted_for(struct exec_group *g, int32_t from_rank, int32_t tag)
{
    for (struct exec_op *r = g->recvs.head; r; r = r->next)
        if (!r->matched && fits(r, from_rank, tag))
            return r;
    return NULL;
}

static struct unexpected *first_unexpected_from(const struct exec_op *op, int32_t rank)
{
    for (struct unexpected *u = op->group->p2p_boxes[rank].unexpected.head; u; u = u->next)
        if (!u->claimed && fits(op, rank, u->head.tag))
            return u;
    return NULL;
}

/* The message that was sent first and fits; from any source, the one that came first. */
static struct unexpected *first_unexpected(const struct exec_op *op)
{
    if (op->op.root != COMM_ANY_SOURCE)
        return first_unexpected_from(op, op->op.root);
    struct unexpected *first = NULL;
    for (int32_t r = 0; r < op->group->size; r++) {
        struct unexpected *u = first_unexpected_from(op, r);
        if (u && (!first || u->arrival < first->arrival))
            first = u;
    }
    return first;
}

/* Two ranks have a buffer each, or two if they send by turns. */
static int is_long(const struct exec_group *g, size_t bytes)
{
    return cache_is_passed(&g->domain->cache, bytes, 2 * bytes, 2);
}

/* ---- To this rank itself ---- */

static void deliver_to_self(struct exec_op *send, struct exec_op *recv)
{
    int32_t self = send->group->rank;
    size_t n = send->message.bytes < recv->message.bytes ? send->message.bytes : recv->message.bytes;
    if (n)
        copy_part(recv->message.data, send->message.data, n, is_long(send->group, n));
    recv->message.came = send->message.bytes;
    int32_t tag = send->op.tag;
    queue_complete(send, COMM_OK, NULL);
    received(recv, self, tag);
}

static struct exec_op *send_to_self_for(struct exec_group *g, const struct exec_op *recv)
{
    for (struct exec_op *s = g->sends.head; s; s = s->next)
        if (s->op.root == g->rank && fits(recv, g->rank, s->op.tag))
            return s;
    return NULL;
}

/* ---- Posting ---- */

static void post_send(struct exec_op *op)
{
    struct exec_group *g = op->group;
    op_list_append(&g->sends, op);
    if (op->op.root == g->rank) {
        struct exec_op *recv = posted_for(g, g->rank, op->op.tag);
        if (recv)
            deliver_to_self(op, recv);
        return;
    }
    op->message.port = group_port(g, op->op.root);
    op->message.box = &g->p2p_boxes[op->op.root];
    if (op->op.flags & COMM_OP_FLAG_BEGUN) {
        op->head.seq = g->sends_begun;
        if (match_adopt(&op->message, 1))
            queue_complete(op, COMM_OK, NULL);
        return;
    }
    op->head.seq = ++g->sends_begun;
    match_send_in_order(&op->message);
}

/* Be connected to all that it may come from, so that their death is noticed. */
static void want_sources(const struct exec_group *g)
{
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank)
            port_want(group_port(g, r));
}

static void post_recv(struct exec_op *op)
{
    struct exec_group *g = op->group;
    op_list_append(&g->recvs, op);
    if (op->op.root == COMM_ANY_SOURCE || op->op.root == g->rank) {
        struct exec_op *send = send_to_self_for(g, op);
        if (send) {
            deliver_to_self(send, op);
            return;
        }
    }
    struct unexpected *u = first_unexpected(op);
    if (u) {
        matched(op, u->port, &u->head);
        if (match_post(&op->message, u))
            on_done(&op->message);
        return;
    }
    if (op->op.root == COMM_ANY_SOURCE)
        want_sources(g);
    else if (op->op.root != g->rank)
        op->message.port = group_port(g, op->op.root);
    match_await(&op->message);
}

void p2p_submit(struct exec_op *op)
{
    int is_send = op->op.kind == COMM_OP_SEND;
    const comm_buffers *side = is_send ? &op->op.send : &op->op.recv;
    op->started = 1;
    op->begun_tick = op->group->domain->ticks;
    op->head.kind = COMM_OP_SEND;
    op->head.tag = op->op.tag;
    op->head.signature = 0;
    op->message = (struct message){ .user = &user, .owner = op->group, .head = &op->head, .data = side->data,
                                    .bytes = side->count * op->element_bytes };
    op->message.is_long = (uint8_t)is_long(op->group, op->message.bytes);
    if (op->message.bytes >= HUGE_PAGES_LONG_BYTES)
        huge_pages_moved(&op->group->domain->huge_pages, side->data, op->message.bytes);
    if (is_send)
        post_send(op);
    else
        post_recv(op);
}

void p2p_cancel(struct exec_op *op)
{
    match_cancel(&op->message);
}

/* ---- Arrivals ---- */

int p2p_begins(struct exec_group *g, struct port *p, const struct frame *h)
{
    struct message *m = NULL;
    if (h->type == FRAME_DATA) {
        m = match_find_posted(group_box(g, p, COMM_OP_SEND), h);
    } else {
        struct exec_op *op = posted_for(g, group_rank_of(g, p), h->tag);
        if (op)
            matched(op, p, h);
        m = op ? &op->message : NULL;
    }
    if (m)
        match_begins(m, p, h);
    return m != NULL;
}

int p2p_announced(struct exec_group *g, struct port *p, const struct frame *h)
{
    struct exec_op *op = posted_for(g, group_rank_of(g, p), h->tag);
    if (!op)
        return 0;
    matched(op, p, h);
    match_post(&op->message, NULL);
    match_announced(&op->message, h);
    return 1;
}

/* ---- Lost peers ---- */

static int all_gone(const struct exec_group *g)
{
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank && !port_is_gone(group_port(g, r)))
            return 0;
    return g->size > 1;
}

int p2p_needs(const struct exec_group *g, const struct port *p)
{
    int32_t rank = group_rank_of(g, p);
    for (const struct exec_op *op = g->sends.head; op; op = op->next)
        if (op->op.root == rank)
            return 1;
    for (const struct exec_op *op = g->recvs.head; op; op = op->next)
        if (op->op.root == rank || (op->matched && op->message.port == p) ||
            (op->op.root == COMM_ANY_SOURCE && op->op.tag >= COMM_ANY_TAG && all_gone(g)))
            return 1;
    return 0;
}

/* ---- What came instead ---- */

static const struct unexpected *first_unmatched(const struct exec_group *g, int32_t rank)
{
    const struct unexpected *u = rank == g->rank ? NULL : g->p2p_boxes[rank].unexpected.head;
    while (u && (u->claimed || u->head.tag < 0))
        u = u->next;
    return u;
}

void p2p_say_unexpected(const struct exec_op *recv, char *text, size_t capacity)
{
    const struct exec_group *g = recv->group;
    for (int32_t r = 0; r < g->size; r++) {
        const struct unexpected *u =
            recv->op.root == COMM_ANY_SOURCE || recv->op.root == r ? first_unmatched(g, r) : NULL;
        if (u) {
            text_add(text, capacity, "; %s has sent a message with tag %d that no receive asks for", text_rank(g, r),
                     (int)u->head.tag);
            return;
        }
    }
}

/* Send and receive: matching by source and tag, in the order sent. Short messages go out at once while there is credit; longer
 * ones are announced (RTS) and wait until the receiver has posted its receive (CTS). */
#include <string.h>

#include "tcp.h"

static int fits(const struct tcp_op *recv, int32_t from_rank, int32_t tag)
{
    return (recv->op.root == COMM_ANY_SOURCE || recv->op.root == from_rank) &&
           (recv->op.tag == COMM_ANY_TAG ? tag >= 0 : recv->op.tag == tag);
}

/* ---- Lists ---- */

void p2p_list_init(struct op_list *list)
{
    list->head = NULL;
    list->tail = &list->head;
}

static void list_append(struct op_list *list, struct tcp_op *op)
{
    op->next = NULL;
    op->at = list->tail;
    *list->tail = op;
    list->tail = &op->next;
}

static void list_remove(struct op_list *list, struct tcp_op *op)
{
    *op->at = op->next;
    if (op->next)
        op->next->at = op->at;
    else
        list->tail = op->at;
}

static void hold(struct link *l, struct tcp_op *op)
{
    if (!l->held)
        l->held_tail = &l->held;
    op->held_next = NULL;
    op->held_at = l->held_tail;
    *l->held_tail = op;
    l->held_tail = &op->held_next;
}

static void hold_no_more(struct link *l, struct tcp_op *op)
{
    *op->held_at = op->held_next;
    if (op->held_next)
        op->held_next->held_at = op->held_at;
    else
        l->held_tail = op->held_at;
}

static struct link *link_of(struct tcp_group *g, int32_t rank)
{
    return &g->mesh->links[g->world_ranks[rank]];
}

static void message_header(struct tcp_op *op, uint8_t type, uint64_t seq, int32_t tag, struct frame *h)
{
    memset(h, 0, sizeof *h);
    h->type = type;
    h->kind = COMM_OP_SEND;
    h->dtype = (uint8_t)op->op.dtype;
    h->group = op->group->id;
    h->seq = seq;
    h->tag = tag;
    h->count = op->bytes / op->element_bytes;
    h->bytes = type == FRAME_CTS ? 0 : op->bytes;
}

void p2p_fill(struct tcp_op *op, const uint8_t *data, size_t message_bytes)
{
    size_t n = message_bytes < op->bytes ? message_bytes : op->bytes;
    if (n) /* a receive of nothing may have no buffer */
        memcpy(op->op.recv.data, data, n);
}

/* A receive has its message, of `message_bytes`. */
void p2p_received(struct tcp_op *op, size_t message_bytes)
{
    struct tcp_group *g = op->group;
    if (op->op.root != COMM_ANY_SOURCE)
        link_interest(link_of(g, op->op.root), -1);
    list_remove(&g->recvs, op);
    size_t got = message_bytes < op->bytes ? message_bytes : op->bytes;
    exec_host->work_received(op->work, op->matched_from, op->matched_tag, got / op->element_bytes);
    if (message_bytes <= op->bytes) {
        group_complete(op, COMM_OK, NULL);
        return;
    }
    char what[256], text[512];
    group_describe(g, &op->op, what, sizeof what);
    snprintf(text, sizeof text, "%s: the message from %s with tag %d has %zu B, the receive room for %zu B", what,
             text_rank(g, op->matched_from), (int)op->matched_tag, message_bytes, op->bytes);
    group_complete(op, COMM_ERR_TRUNCATED, text);
}

void p2p_sent(struct tcp_op *op)
{
    list_remove(&op->group->sends, op);
    group_complete(op, COMM_OK, NULL);
}

static void matched(struct tcp_op *recv, int32_t from, int32_t tag, uint64_t seq)
{
    recv->p2p_state = STEP_SENDING;
    recv->matched_from = from;
    recv->matched_tag = tag;
    recv->matched_seq = seq;
}

static void clear_to_send(struct tcp_op *recv)
{
    struct frame h;
    message_header(recv, FRAME_CTS, recv->matched_seq, recv->matched_tag, &h);
    link_send(link_of(recv->group, recv->matched_from), &h, NULL, 0, NULL, 0, 0);
}

static struct tcp_op *posted_for(struct tcp_group *g, int32_t from_rank, int32_t tag)
{
    for (struct tcp_op *r = g->recvs.head; r; r = r->next)
        if (r->p2p_state == STEP_POSTED && fits(r, from_rank, tag))
            return r;
    return NULL;
}

/* ---- To oneself ---- */

static void deliver_to_self(struct tcp_op *send, struct tcp_op *recv)
{
    size_t n = send->bytes < recv->bytes ? send->bytes : recv->bytes;
    if (n)
        memcpy(recv->op.recv.data, send->op.send.data, n);
    matched(recv, send->group->rank, send->op.tag, 0);
    size_t bytes = send->bytes;
    p2p_sent(send);
    p2p_received(recv, bytes);
}

static struct tcp_op *send_to_self_for(struct tcp_group *g, const struct tcp_op *recv)
{
    for (struct tcp_op *s = g->sends.head; s; s = s->next)
        if (s->op.root == g->rank && fits(recv, g->rank, s->op.tag))
            return s;
    return NULL;
}

/* ---- Posting ---- */

static int goes_at_once(const struct link *l, const struct tcp_op *op)
{
    return op->bytes <= (size_t)l->mesh->eager_bytes && l->credit >= (int64_t)(op->bytes + TCP_FRAME_COST);
}

static int may_go(const struct link *l, const struct tcp_op *op)
{
    return l->announced < TCP_ANNOUNCED_MOST || goes_at_once(l, op);
}

/* Send it, or announce it. */
static void go(struct link *l, struct tcp_op *op)
{
    struct frame h;
    if (goes_at_once(l, op)) {
        l->credit -= (int64_t)(op->bytes + TCP_FRAME_COST);
        op->p2p_state = STEP_SENDING;
        message_header(op, FRAME_EAGER, op->matched_seq, op->op.tag, &h);
        if (link_send(l, &h, op->op.send.data, op->bytes, op, 0, 0))
            p2p_sent(op);
    } else {
        l->announced++;
        link_interest(l, +1);
        op->p2p_state = STEP_AWAITS_CTS;
        message_header(op, FRAME_RTS, op->matched_seq, op->op.tag, &h);
        link_send(l, &h, NULL, 0, NULL, 0, 0);
    }
}

void p2p_release(struct link *l)
{
    while (l->held && may_go(l, l->held)) {
        struct tcp_op *op = l->held;
        hold_no_more(l, op);
        go(l, op);
    }
}

void p2p_forget(struct tcp_op *op)
{
    if (op->op.kind != COMM_OP_SEND || op->op.root == op->group->rank)
        return;
    struct link *l = link_of(op->group, op->op.root);
    if (op->p2p_state == STEP_TODO)
        hold_no_more(l, op);
    else if (op->p2p_state == STEP_AWAITS_CTS)
        l->announced--;
}

static void post_send(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    list_append(&g->sends, op);
    if (op->op.root == g->rank) {
        struct tcp_op *recv = posted_for(g, g->rank, op->op.tag);
        if (recv)
            deliver_to_self(op, recv);
        return;
    }
    struct link *l = link_of(g, op->op.root);
    op->matched_seq = ++g->sends_begun;
    mesh_want(g->mesh, l->peer);
    op->p2p_state = STEP_TODO;
    hold(l, op);
    p2p_release(l);
}

static void take_early(struct tcp_op *op, struct early *e)
{
    struct tcp_group *g = op->group;
    size_t bytes = (size_t)e->header.bytes;
    matched(op, g->rank_of[e->from], e->header.tag, e->header.seq);
    if (e->header.type == FRAME_RTS) {
        clear_to_send(op);
    } else if (!e->complete) {
        e->claimed = op;
        return;
    } else {
        p2p_fill(op, e->data, bytes);
    }
    int whole = e->header.type == FRAME_EAGER;
    early_drop(g->mesh, e);
    if (whole)
        p2p_received(op, bytes);
}

static struct early *first_early_from(const struct tcp_op *op, int32_t rank)
{
    for (struct early *e = op->group->early_p2p[rank].head; e; e = e->next)
        if (!e->claimed && e->from >= 0 && fits(op, rank, e->header.tag))
            return e;
    return NULL;
}

/* The message that was sent first and fits; from any source, the one that came first. */
static struct early *first_early(const struct tcp_op *op)
{
    if (op->op.root != COMM_ANY_SOURCE)
        return first_early_from(op, op->op.root);
    struct early *first = NULL;
    for (int32_t r = 0; r < op->group->size; r++) {
        struct early *e = first_early_from(op, r);
        if (e && (!first || e->arrival < first->arrival))
            first = e;
    }
    return first;
}

static void post_recv(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    op->p2p_state = STEP_POSTED;
    list_append(&g->recvs, op);
    if (op->op.root != COMM_ANY_SOURCE)
        link_interest(link_of(g, op->op.root), +1);
    if (op->op.root == COMM_ANY_SOURCE || op->op.root == g->rank) {
        struct tcp_op *send = send_to_self_for(g, op);
        if (send) {
            deliver_to_self(send, op);
            return;
        }
    }
    struct early *e = first_early(op);
    if (e) {
        take_early(op, e);
        return;
    }
    /* Be connected to whom we wait for, so that its death is noticed. */
    for (int32_t r = 0; r < g->size; r++) {
        const struct link *l = link_of(g, r);
        if (op->op.root != COMM_ANY_SOURCE && op->op.root != r)
            continue;
        mesh_want(g->mesh, l->peer);
        if (l->state == LINK_LOST || l->state == LINK_LEFT)
            g->mesh->lost_pending = 1;
    }
}

void p2p_submit(struct tcp_op *op)
{
    const comm_buffers *side = op->op.kind == COMM_OP_SEND ? &op->op.send : &op->op.recv;
    op->bytes = side->count * op->element_bytes;
    op->started = 1;
    if (op->op.kind == COMM_OP_SEND)
        post_send(op);
    else
        post_recv(op);
}

/* ---- Arrivals ---- */

int p2p_sink(struct tcp_group *g, struct link *l, const struct frame *h, struct sink *ret_sink)
{
    int32_t from = g->rank_of[l->peer];
    struct tcp_op *op = NULL;
    if (h->type == FRAME_DATA) {
        for (struct tcp_op *r = g->recvs.head; r && !op; r = r->next)
            if (r->p2p_state == STEP_SENDING && r->matched_from == from && r->matched_seq == h->seq)
                op = r;
    } else {
        op = posted_for(g, from, h->tag);
        if (op)
            matched(op, from, h->tag, h->seq);
    }
    if (!op)
        return 0;
    ret_sink->kind = SINK_COPY;
    ret_sink->dst = op->op.recv.data;
    ret_sink->dst_bytes = op->bytes;
    ret_sink->op = op;
    return 1;
}

void p2p_rts(struct tcp_group *g, struct link *l, const struct frame *h)
{
    int32_t from = g->rank_of[l->peer];
    struct tcp_op *op = posted_for(g, from, h->tag);
    if (op) {
        matched(op, from, h->tag, h->seq);
        clear_to_send(op);
    } else if (!early_add(g->mesh, &g->early_p2p[from], l->peer, h)) {
        link_lose(l, COMM_ERR_PROTOCOL, "announced too many messages");
    }
}

void p2p_cts(struct tcp_group *g, struct link *l, const struct frame *h)
{
    for (struct tcp_op *op = g->sends.head; op; op = op->next) {
        if (op->p2p_state != STEP_AWAITS_CTS || op->matched_seq != h->seq || link_of(g, op->op.root) != l)
            continue;
        struct frame data;
        l->announced--;
        link_interest(l, -1);
        op->p2p_state = STEP_SENDING;
        message_header(op, FRAME_DATA, op->matched_seq, op->op.tag, &data);
        if (link_send(l, &data, op->op.send.data, op->bytes, op, 0, 0))
            p2p_sent(op);
        p2p_release(l);
        return;
    }
}

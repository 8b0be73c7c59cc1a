#include "match.h"

#include <comm/backend.h>

#include <stdlib.h>
#include <string.h>

/* ---- Unexpected frames ---- */

void matching_init(struct matching *matching)
{
    for (size_t i = 0; i < MATCH_ANNOUNCED_BUCKETS; i++)
        matching->announced[i].tail = &matching->announced[i].head;
}

void matching_finish(struct matching *matching)
{
    while (matching->pool) {
        struct unexpected *u = matching->pool;
        matching->pool = u->next;
        free(u);
    }
}

void unexpected_list_init(struct unexpected_list *list, size_t *count)
{
    list->head = NULL;
    list->tail = &list->head;
    list->count = count;
}

void unexpected_list_clear(struct unexpected_list *list)
{
    while (list->head)
        unexpected_drop(list->head);
}

static void list_append(struct unexpected_list *list, struct unexpected *u)
{
    u->next = NULL;
    u->at = list->tail;
    u->list = list;
    *list->tail = u;
    list->tail = &u->next;
    if (list->count)
        ++*list->count;
}

static void list_remove(struct unexpected *u)
{
    *u->at = u->next;
    if (u->next)
        u->next->at = u->at;
    else
        u->list->tail = u->at;
    if (u->list->count)
        --*u->list->count;
}

void unexpected_move(struct unexpected *u, struct unexpected_list *list)
{
    list_remove(u);
    list_append(list, u);
}

static size_t payload_bytes(const struct frame *h)
{
    return h->type == FRAME_EAGER ? (size_t)h->bytes : 0;
}

static void pool_put(struct unexpected *u, struct matching *matching)
{
    u->next = matching->pool;
    matching->pool = u;
}

struct unexpected *unexpected_add(struct unexpected_list *list, struct port *p, const struct frame *h)
{
    struct matching *matching = p->table->matching;
    struct unexpected *u = matching->pool;
    if (p->unexpected_count >= MATCH_UNEXPECTED_MAX)
        return NULL;
    if (u)
        matching->pool = u->next;
    else if (!(u = malloc(sizeof *u)))
        return NULL;
    u->port = p;
    u->head = *h;
    u->arrival = matching->arrivals++;
    u->offer = p->offer;
    u->complete = payload_bytes(h) == 0;
    u->claimed = NULL;
    u->data = u->inline_data;
    if (payload_bytes(h) > sizeof u->inline_data && !(u->data = malloc(payload_bytes(h)))) {
        pool_put(u, matching);
        return NULL;
    }
    p->unexpected_count++;
    matching->count++;
    list_append(list, u);
    return u;
}

void unexpected_drop(struct unexpected *u)
{
    struct port *p = u->port;
    list_remove(u);
    assert(p->unexpected_count > 0);
    p->unexpected_count--;
    p->table->matching->count--;
    if (!u->complete && p->sink.unexpected == u) {
        /* The rest of its payload is still coming, or never will. */
        p->sink.kind = SINK_DISCARD;
        p->sink.unexpected = NULL;
    } else if (u->head.type == FRAME_EAGER && !port_is_gone(p)) {
        port_consumed(p, payload_bytes(&u->head));
    }
    if (u->data != u->inline_data)
        free(u->data);
    pool_put(u, p->table->matching);
}

/* ---- Lists of messages, and what is awaited ---- */

static void message_append(struct message_list *list, struct message *m)
{
    m->next = NULL;
    m->at = list->tail;
    m->list = list;
    *list->tail = m;
    list->tail = &m->next;
}

static void message_remove(struct message *m)
{
    if (!m->list)
        return;
    *m->at = m->next;
    if (m->next)
        m->next->at = m->at;
    else
        m->list->tail = m->at;
    m->list = NULL;
}

static void await(struct message *m)
{
    if (!m->awaited)
        port_interest(m->port, +1);
    m->awaited = 1;
}

static void await_no_more(struct message *m)
{
    if (m->awaited)
        port_interest(m->port, -1);
    m->awaited = 0;
}

static int has_key(const struct frame *h, uint64_t seq, uint32_t slice, uint16_t round)
{
    return h->seq == seq && h->slice == slice && h->round == round;
}

/* Point-to-point has no slices and rounds, and the frames of it none that count. */
static int is_for(const struct message *m, const struct frame *h)
{
    return has_key(h, m->head->seq, m->slice, m->round);
}

static struct unexpected *find_unexpected(const struct unexpected_list *list, const struct message *m)
{
    for (struct unexpected *u = list->head; u; u = u->next)
        if (is_for(m, &u->head) && !u->claimed)
            return u;
    return NULL;
}

static struct message *find_message(const struct message_list *list, const struct box *box, const struct frame *h)
{
    struct message *m = list->head;
    while (m && (m->box != box || !is_for(m, h)))
        m = m->next;
    return m;
}

struct box *boxes_create(int32_t size, size_t *count)
{
    struct box *boxes = calloc((size_t)size, sizeof *boxes);
    for (int32_t i = 0; boxes && i < size; i++) {
        unexpected_list_init(&boxes[i].unexpected, count);
        unexpected_list_init(&boxes[i].cleared, count);
        boxes[i].posted.tail = &boxes[i].posted.head;
    }
    return boxes;
}

void boxes_clear(struct box *boxes, int32_t size)
{
    for (int32_t i = 0; i < size; i++) {
        unexpected_list_clear(&boxes[i].unexpected);
        unexpected_list_clear(&boxes[i].cleared);
    }
}

/* ---- Sending ---- */

static struct frame header(const struct message *m, uint8_t type)
{
    struct frame h = *m->head;
    h.type = type;
    h.slice = m->slice;
    h.round = m->round;
    h.bytes = type == FRAME_CTS ? 0 : m->bytes;
    return h;
}

/* 1 if it is sent. */
static int send_payload(struct message *m, uint8_t type)
{
    struct frame h = header(m, type);
    m->state = MESSAGE_MOVING;
    if (!m->port->ops->send(m->port, &h, m->data, m->bytes, m))
        return 0;
    m->state = MESSAGE_DONE;
    return 1;
}

int64_t match_eager_bytes(const struct matching *m, int32_t kind)
{
    uint32_t traits = comm_op_traits_of(kind)->traits;
    int64_t most = traits & COMM_OP_TRAIT_REDUCES                               ? m->eager_reduced_bytes
                   : traits & (COMM_OP_TRAIT_PEER | COMM_OP_TRAIT_SEND_AT_ROOT) ? m->eager_spread_bytes
                                                                                : m->eager_swapped_bytes;
    return most > m->eager_bytes ? most : m->eager_bytes;
}

static int is_short(const struct message *m)
{
    const struct matching *matching = m->port->table->matching;
    if (m->may_write_back && matching->write_back_bytes)
        return m->bytes < (size_t)matching->write_back_bytes;
    return m->bytes <= (size_t)match_eager_bytes(matching, m->head->kind);
}

static int may_be_eager(const struct message *m)
{
    return is_short(m) && port_finds_credit(m->port, m->bytes);
}

static int send_eager(struct message *m)
{
    port_spend(m->port, m->bytes);
    return send_payload(m, FRAME_EAGER);
}

static struct message_list *announced_in(const struct port *p, const struct box *box, uint64_t seq)
{
    return &p->table->matching->announced[((uintptr_t)box / sizeof *box + seq) % MATCH_ANNOUNCED_BUCKETS];
}

/* Announced messages are offered where ports can do that, and then no receiver says CTS before it knows of them; but
 * not those of reductions, which are seldom read in the sender's memory, unless the result is written back. Both ranks
 * decide alike. */
static int is_offered(const struct message *m)
{
    return m->port->ops->offer &&
           (m->may_write_back || !(comm_op_traits_of(m->head->kind)->traits & COMM_OP_TRAIT_REDUCES));
}

/* It waits for the receiver. */
static void put_announced(struct message *m)
{
    m->state = MESSAGE_AWAITS_CTS;
    await(m);
    message_append(announced_in(m->port, m->box, m->head->seq), m);
}

static void announce(struct message *m)
{
    const struct port_ops *ops = m->port->ops;
    struct frame h = header(m, FRAME_RTS);
    put_announced(m);
    if (is_offered(m))
        m->offered = (uint8_t)ops->offer(m->port, &h, m);
    else
        ops->send(m->port, &h, NULL, 0, NULL);
}

/* Has its CTS come already? Drops the CTS of earlier collectives: a receiver whose eager_bytes are fewer clears
 * what was sent without. */
static int take_cts(const struct message *m)
{
    struct unexpected *next, *cts = NULL;
    for (struct unexpected *u = m->box->cleared.head; u && !cts; u = next) {
        next = u->next;
        if (is_for(m, &u->head))
            cts = u;
        else if (u->head.seq < m->head->seq)
            unexpected_drop(u);
    }
    if (cts)
        unexpected_drop(cts);
    return cts != NULL;
}

int match_send(struct message *m)
{
    port_want(m->port);
    if (take_cts(m))
        return send_payload(m, FRAME_DATA);
    if (may_be_eager(m))
        return send_eager(m);
    announce(m);
    return 0;
}

/* ---- Sending in order ---- */

static void announced_less(struct port *p)
{
    assert(p->announced > 0);
    p->announced--;
}

void match_release(struct port *p)
{
    while (p->held.head && (p->announced < MATCH_ANNOUNCED_MAX || may_be_eager(p->held.head))) {
        struct message *m = p->held.head;
        message_remove(m);
        if (!may_be_eager(m)) {
            p->announced++;
            announce(m);
        } else if (send_eager(m)) {
            m->user->done(m);
        }
    }
}

void match_send_in_order(struct message *m)
{
    m->in_order = 1;
    port_want(m->port);
    m->state = MESSAGE_HELD;
    message_append(&m->port->held, m);
    match_release(m->port);
}

/* ---- Begun at once ---- */

int match_adopt(struct message *m, int in_order)
{
    const struct port_ops *ops = m->port->ops;
    enum port_begun begun = ops->adopt ? ops->adopt(m->port, m) : PORT_NOT_OFFERED;
    if (begun == PORT_READ || (begun == PORT_NOT_OFFERED && !in_order)) {
        m->state = MESSAGE_DONE;
        return 1;
    }
    port_want(m->port); /* the peer may have left since it was begun: then nothing reads it, and the op fails */
    m->offered = 1;
    m->in_order = (uint8_t)in_order;
    m->port->announced += (uint32_t)in_order;
    put_announced(m);
    return 0;
}

/* ---- Receiving ---- */

struct unexpected *match_find_unexpected(const struct message *m)
{
    return find_unexpected(&m->box->unexpected, m);
}

/* Put a message that is here to its place. */
static void take(struct message *m, const uint8_t *data, size_t bytes)
{
    m->came = bytes;
    if (m->kernel && m->local_is_lower)
        m->kernel(m->data, m->local, data, bytes / m->element_bytes);
    else if (m->kernel)
        m->kernel(m->data, data, m->local, bytes / m->element_bytes);
    else if (m->bytes && bytes) /* a receive of nothing may have no buffer */
        memcpy(m->data, data, bytes < m->bytes ? bytes : m->bytes);
}

static void clear_to_send(struct message *m)
{
    struct frame h = header(m, FRAME_CTS);
    if (m->cleared)
        return;
    m->cleared = 1;
    m->port->ops->send(m->port, &h, NULL, 0, NULL);
}

/* It is announced: have it read, or sent. */
static void ask_for(struct message *m, uint32_t offer)
{
    if (offer)
        m->port->ops->accept(m->port, offer);
    else
        clear_to_send(m);
}

void match_await(struct message *m)
{
    m->state = MESSAGE_POSTED;
    if (!m->port)
        return;
    await(m);
    port_want(m->port);
}

int match_post(struct message *m, struct unexpected *u)
{
    match_await(m);
    if (u && u->head.type == FRAME_EAGER) {
        m->state = MESSAGE_MOVING;
        if (!u->complete) {
            u->claimed = m;
            return 0;
        }
        take(m, u->data, (size_t)u->head.bytes);
        unexpected_drop(u);
        await_no_more(m);
        m->state = MESSAGE_DONE;
        return 1;
    }
    message_append(&m->box->posted, m);
    if (u) {
        uint32_t offer = u->offer;
        unexpected_drop(u);
        ask_for(m, offer);
    } else if (!is_short(m) && !is_offered(m)) {
        clear_to_send(m);
    }
    return 0;
}

void match_cancel(struct message *m)
{
    if (m->state == MESSAGE_AWAITS_CTS && m->in_order)
        announced_less(m->port);
    message_remove(m);
    await_no_more(m);
    m->state = MESSAGE_DONE;
}

/* ---- Arrivals ---- */

struct message *match_find_posted(const struct box *box, const struct frame *h)
{
    return find_message(&box->posted, box, h);
}

static int length_fits(struct message *m, const struct frame *h)
{
    if (h->bytes == m->bytes || !m->user->wrong_length)
        return 1;
    m->user->wrong_length(m, h);
    return 0;
}

void match_begins(struct message *m, struct port *p, const struct frame *h)
{
    struct sink *s = &p->sink;
    if (!length_fits(m, h))
        return; /* The sink stays at "discard". */
    message_remove(m);
    m->state = MESSAGE_MOVING; /* A second message with this key is not for it. */
    m->came = (size_t)h->bytes;
    s->kind = m->kernel ? SINK_REDUCE : SINK_COPY;
    s->dst = m->data;
    s->dst_bytes = m->bytes;
    s->local = m->local;
    s->local_is_lower = m->local_is_lower;
    s->is_long = m->is_long;
    s->kept = m->kept;
    s->element_bytes = m->element_bytes;
    s->result_bytes = m->result_bytes;
    s->kernel = m->kernel;
    s->to_two = m->to_two;
    s->message = m;
}

void match_announced(struct message *m, const struct frame *h)
{
    if (length_fits(m, h))
        ask_for(m, m->port->offer);
}

/* Its CTS has come, or it has been read. Returns 1 if another one may be announced in its place. */
static int leave_announced(struct message *m)
{
    message_remove(m);
    await_no_more(m);
    if (m->in_order)
        announced_less(m->port);
    return m->in_order;
}

int match_cleared(struct port *p, const struct box *box, const struct frame *h)
{
    struct message *m = find_message(announced_in(p, box, h->seq), box, h);
    if (!m)
        return 0;
    if (m->offered)
        return 1; /* a correct peer reads it, and sends no CTS */
    int in_order = leave_announced(m);
    if (send_payload(m, FRAME_DATA))
        m->user->done(m);
    if (in_order)
        match_release(p);
    return 1;
}

void match_received(struct message *m)
{
    await_no_more(m);
    m->state = MESSAGE_DONE;
    m->user->done(m);
}

void match_unexpected_complete(struct unexpected *u)
{
    u->complete = 1;
    struct message *m = u->claimed;
    if (!m)
        return;
    /* Its receive was posted while the payload was coming. */
    take(m, u->data, (size_t)u->head.bytes);
    unexpected_drop(u);
    match_received(m);
}

void match_sent(struct message *m)
{
    struct port *p = m->port;
    int in_order = m->offered && leave_announced(m);
    m->state = MESSAGE_DONE;
    m->user->done(m);
    if (in_order)
        match_release(p);
}

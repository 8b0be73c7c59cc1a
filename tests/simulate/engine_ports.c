/* Ports in memory: what goes from one rank to another is a list of frames, which arrive in pieces and are read in
 * others; some messages are offered, and read in the sender's memory; some payloads are kept. Nothing of backend_tcp's
 * links, sockets and loop is in it: the backend over them is made of port.h, match.h, submit.h and ending.h. */
#include <stdlib.h>
#include <string.h>

#include "core/exec/ending.h"
#include "core/exec/groups.h"
#include "core/exec/queue.h"
#include "core/exec/receive.h"
#include "core/exec/submit.h"
#include "engine.h"

/* A frame at its receiver: its header, and as much of the payload as has come. */
struct incoming {
    struct incoming *next;
    struct frame head;
    uint32_t offer;
    int begun; /* the header has been read */
    size_t have, read;
    uint8_t bytes[];
};

/* A frame at its sender. */
struct outgoing {
    struct outgoing *next;
    struct frame head;
    const uint8_t *payload;
    size_t bytes, moved;
    struct incoming *there; /* NULL: the header has not gone */
    struct message *message;
    const void *owner;
    uint8_t *owned;         /* the payload, if it is the port's */
    uint32_t offer;         /* an RTS: of its message */
};

/* A message that the peer may read here. */
struct offered {
    struct offered *next;
    uint32_t number;
    struct frame head;      /* of a DATA frame */
    struct message *message;
    const void *owner;
    int wanted;             /* the peer has a receive for it */
    int is_read;
};

/* A piece of a payload that is kept. */
struct kept_piece {
    struct kept_piece *next;
    struct kept *kept;
    uint8_t bytes[];
};

struct memory_port {
    struct port port; /* first */
    struct kept *kept;
    struct kept_piece *pieces;
    struct outgoing *out, **out_tail;
    struct incoming *in, **in_tail;
    struct offered *offered;
    uint32_t offers, reading; /* how many there were; the number of the peer's that is being read, 0: none */
    size_t until_cut; /* bytes; SIZE_MAX: never */
    int cut;
};

static struct memory_port *ports; /* [ports_size * ports_size], by owner and peer */
static int32_t ports_size;

static struct memory_port *port_at(int32_t rank, int32_t peer)
{
    return &ports[rank * ports_size + peer];
}

static struct memory_port *of(const struct port *p)
{
    return (struct memory_port *)p;
}

void ports_open(int32_t size)
{
    ports_size = size;
    ports = calloc((size_t)size * (size_t)size, sizeof *ports);
    for (int32_t i = 0; i < size * size; i++) {
        ports[i].out_tail = &ports[i].out;
        ports[i].in_tail = &ports[i].in;
        ports[i].until_cut = SIZE_MAX;
    }
}

static void out_pop(struct memory_port *mp)
{
    struct outgoing *o = mp->out;
    mp->out = o->next;
    if (!mp->out) {
        mp->out_tail = &mp->out;
        port_interest(&mp->port, -1);
    }
    free(o->owned);
    free(o);
}

static void in_pop(struct memory_port *mp)
{
    struct incoming *i = mp->in;
    mp->in = i->next;
    if (!mp->in)
        mp->in_tail = &mp->in;
    free(i);
}

/* All of this owner; NULL: all. */
static void drop_offers(struct memory_port *mp, const void *owner)
{
    for (struct offered **at = &mp->offered, *o; (o = *at);) {
        if (owner && o->owner != owner) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        free(o);
    }
}

/* ---- Payloads that are kept ---- */

static void take_out(struct memory_port *mp, struct kept *kept)
{
    struct kept **at = &mp->kept;
    while (*at != kept)
        at = &(*at)->next;
    *at = kept->next;
    kept->pieces = 0;
    for (struct kept_piece **piece = &mp->pieces, *k; (k = *piece);) {
        if (k->kept != kept) {
            piece = &k->next;
            continue;
        }
        *piece = k->next;
        free(k);
    }
}

static void put_to_place(struct memory_port *mp, struct kept *kept)
{
    for (size_t at = 0, i = 0; at < kept->bytes; at += kept->piece_bytes, i++) {
        size_t left = kept->bytes - at;
        memcpy(kept->dst + at, kept->piece[i], left < kept->piece_bytes ? left : kept->piece_bytes);
    }
    take_out(mp, kept);
}

uint64_t ports_kept;

static void ports_let_go(struct port *p, struct kept *kept)
{
    ports_kept++;
    take_out(of(p), kept);
}

/* The owner's are not wanted any more. */
static void forget_kept(struct memory_port *mp, const void *owner)
{
    for (struct kept *k = mp->kept, *next; k; k = next) {
        next = k->next;
        if (k->owner == owner)
            take_out(mp, k);
    }
}

static void keep_none(struct memory_port *mp)
{
    while (mp->kept)
        put_to_place(mp, mp->kept);
}

/* How many of the bytes that are here are kept: a whole piece; 0: none. */
static size_t keep(struct memory_port *mp, const uint8_t *bytes, size_t have)
{
    struct sink *s = &mp->port.sink;
    struct kept *k = s->kept;
    if (s->kind != SINK_COPY || !k || (s->done && !k->pieces))
        return 0;
    size_t piece = s->done ? k->piece_bytes : (size_t)16 << mix(s->total, (uint64_t)mp->port.peer) % 8;
    size_t n = piece < sink_left(s) ? piece : sink_left(s);
    if (have < n || s->done / piece == KEPT_PIECES_MAX || one_in(16)) {
        if (s->done && k->pieces)
            put_to_place(mp, k);
        return 0;
    }
    if (s->done == 0) {
        *k = (struct kept){ .next = mp->kept, .owner = s->message->owner, .dst = s->dst, .piece_bytes = piece };
        mp->kept = k;
    }
    struct kept_piece *kept = malloc(sizeof *kept + n);
    *kept = (struct kept_piece){ .next = mp->pieces, .kept = k };
    memcpy(kept->bytes, bytes, n);
    mp->pieces = kept;
    k->piece[k->pieces++] = kept->bytes;
    k->bytes += n;
    s->done += n;
    return n;
}

static void drop_all(struct memory_port *mp)
{
    keep_none(mp);
    drop_offers(mp, NULL);
    while (mp->out)
        out_pop(mp);
    while (mp->in)
        in_pop(mp);
}

void ports_close(void)
{
    free(ports);
}

/* ---- Sending ---- */

static void cut_pair(struct memory_port *a)
{
    struct memory_port *b = port_at(a->port.peer, a->port.table->rank);
    a->cut = b->cut = 1;
    a->port.table->lost_pending = b->port.table->lost_pending = 1;
}

/* Bytes go, unless that breaks the connection. */
static int may_go(struct memory_port *mp, size_t bytes)
{
    if (mp->until_cut <= bytes)
        cut_pair(mp);
    if (mp->cut)
        return 0;
    if (mp->until_cut != SIZE_MAX)
        mp->until_cut -= bytes;
    world->moves++;
    return 1;
}

/* Move some of a frame to the peer; 1 if all of it is there. */
static int push(struct memory_port *mp, struct outgoing *o)
{
    struct memory_port *peer = port_at(mp->port.peer, mp->port.table->rank);
    if (!o->there) {
        if (!may_go(mp, PORT_FRAME_COST))
            return 0;
        struct incoming *i = calloc(1, sizeof *i + o->bytes);
        i->head = o->head;
        i->offer = o->offer;
        *peer->in_tail = i;
        peer->in_tail = &i->next;
        o->there = i;
    }
    if (o->moved < o->bytes && (generous || !one_in(4))) {
        size_t n = some_of(o->bytes - o->moved);
        if (!may_go(mp, n))
            return 0;
        memcpy(o->there->bytes + o->moved, o->payload + o->moved, n);
        o->moved += n;
        o->there->have = o->moved;
    }
    return o->moved == o->bytes;
}

static int post(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m, uint8_t *owned,
                uint32_t offer)
{
    struct memory_port *mp = of(p);
    if (port_is_gone(p)) {
        p->table->lost_pending = 1;
        free(owned);
        return 0;
    }
    h->credit = port_take_owed(p);
    struct outgoing draft = { .head = *h, .payload = payload, .bytes = bytes, .message = m, .owned = owned,
                              .offer = offer };
    draft.owner = m ? m->owner : NULL;
    if (p->state == PORT_UP && !mp->out && (generous || !one_in(4)) && push(mp, &draft)) {
        free(owned);
        return 1;
    }
    struct outgoing *o = malloc(sizeof *o);
    *o = draft;
    if (!mp->out)
        port_interest(p, +1);
    *mp->out_tail = o;
    mp->out_tail = &o->next;
    return 0;
}

static int ports_send(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m)
{
    return post(p, h, payload, bytes, m, NULL, 0);
}

static void ports_send_text(struct port *p, struct frame *h, const char *text, int is_reply)
{
    size_t bytes = strlen(text) < FRAME_TEXT_MAX ? strlen(text) : FRAME_TEXT_MAX;
    uint8_t *copy = malloc(bytes + 1);
    (void)is_reply;
    memcpy(copy, text, bytes);
    h->bytes = bytes;
    post(p, h, copy, bytes, NULL, copy, 0);
}

static void ports_give_credit(struct port *p)
{
    struct frame h = { .type = FRAME_CREDIT };
    if (p->credit_owed >= p->credit_step && p->state == PORT_UP && !of(p)->out)
        ports_send(p, &h, NULL, 0, NULL);
}

/* ---- Offers ---- */

static int ports_offer(struct port *p, struct frame *h, struct message *m)
{
    struct memory_port *mp = of(p);
    if (port_is_gone(p) || one_in(3))
        return ports_send(p, h, NULL, 0, NULL), 0;
    struct offered *o = calloc(1, sizeof *o);
    *o = (struct offered){ .next = mp->offered, .number = ++mp->offers, .head = *h, .message = m, .owner = m->owner };
    o->head.type = FRAME_DATA;
    o->head.credit = 0;
    mp->offered = o;
    post(p, h, NULL, 0, NULL, NULL, o->number);
    return 1;
}

static struct offered *offered_by_peer(const struct memory_port *mp, uint32_t number)
{
    struct offered *o = port_at(mp->port.peer, mp->port.table->rank)->offered;
    while (o && (number ? o->number != number : !o->wanted))
        o = o->next;
    return o;
}

static void ports_accept(struct port *p, uint32_t offer)
{
    struct offered *o = offered_by_peer(of(p), offer);
    if (o)
        o->wanted = 1;
}

/* Begin or go on with a message in the peer's memory; 1 if something has happened. */
static int read_offered(struct memory_port *mp)
{
    struct port *p = &mp->port;
    struct sink *s = &p->sink;
    struct offered *o = offered_by_peer(mp, mp->reading);
    if (mp->reading && !o) { /* its operation has ended there */
        p->in.type = 0;
        s->kind = SINK_NONE;
        s->message = NULL;
        mp->reading = 0;
        return 1;
    }
    if (!o || (!mp->reading && p->in.type))
        return 0;
    world->moves++;
    if (!mp->reading) {
        o->wanted = 0;
        mp->reading = o->number;
        port_begins(p, &o->head);
    }
    while (p->state == PORT_UP && sink_left(s) && (generous || !one_in(4))) {
        size_t n = sink_takes(s, some_of(sink_left(s)));
        sink_feed(s, p->table->bounce, o->message->data + s->done, n);
    }
    if (p->state == PORT_UP && sink_left(s))
        return 1;
    mp->reading = 0;
    o->is_read = 1;
    if (p->state == PORT_UP)
        port_complete(p);
    return 1;
}

/* Those that the peer has read are sent. */
static void note_read(struct memory_port *mp)
{
    for (struct offered **at = &mp->offered, *o; mp->port.state == PORT_UP && (o = *at);) {
        struct message *m = o->message;
        if (!o->is_read) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        free(o);
        world->moves++;
        mp->port.table->events->sent(m);
        at = &mp->offered; /* the user may have sent more */
    }
}

static void flush(struct memory_port *mp)
{
    note_read(mp);
    while (mp->port.state == PORT_UP && mp->out && (generous || !one_in(8)) && push(mp, mp->out)) {
        struct message *m = mp->out->message;
        out_pop(mp);
        if (m)
            mp->port.table->events->sent(m);
    }
    ports_give_credit(&mp->port);
}

/* ---- Receiving ---- */

/* Feed some of the payload, straight to its place or by way of elsewhere; 0 if no more of it is here. */
static int feed(struct memory_port *mp, struct incoming *i)
{
    struct port *p = &mp->port;
    size_t n = i->have > i->read ? some_of(i->have - i->read) : 0, takes;
    if (!n)
        return 0;
    size_t kept = keep(mp, i->bytes + i->read, i->have - i->read);
    if (kept) {
        n = kept;
    } else if (one_in(2)) {
        uint8_t *window = sink_window(&p->sink, p->table->bounce, &takes);
        n = n < takes ? n : takes;
        memcpy(window, i->bytes + i->read, n);
        sink_feed(&p->sink, p->table->bounce, window, n);
    } else {
        n = sink_takes(&p->sink, n);
        sink_feed(&p->sink, p->table->bounce, i->bytes + i->read, n);
    }
    i->read += n;
    return 1;
}

static int ports_read(struct port *p)
{
    struct memory_port *mp = of(p);
    int came = p->state == PORT_UP && read_offered(mp);
    while (p->state == PORT_UP && mp->in && !mp->reading && (generous || !one_in(16))) {
        struct incoming *i = mp->in;
        if (!i->begun) {
            i->begun = came = 1;
            world->moves++;
            struct frame h = i->head;
            p->offer = i->offer;
            port_begins(p, &h);
            p->offer = 0;
        } else if (feed(mp, i)) {
            came = 1;
            world->moves++;
            if (sink_left(&p->sink) == 0)
                port_complete(p);
        } else {
            break;
        }
        if (!p->in.type && p->state == PORT_UP)
            in_pop(mp);
    }
    int more = mp->in && (!mp->in->begun || mp->in->have > mp->in->read);
    if (p->state == PORT_UP && mp->cut && !more) {
        port_lose(p, COMM_ERR_PEER_LOST, "closed the connection");
        return 1;
    }
    return came;
}

/* ---- Operations that are over, and ports that are lost ---- */

static void keep_rest(struct outgoing *o)
{
    if (o->moved == o->bytes)
        return;
    o->owned = malloc(o->bytes);
    memcpy(o->owned, o->payload, o->bytes);
    o->payload = o->owned;
}

static void ports_forget(struct port *p, const void *owner)
{
    struct memory_port *mp = of(p);
    if (p->in.type && p->sink.message && p->sink.message->owner == owner) {
        p->sink.kind = SINK_DISCARD;
        p->sink.message = NULL;
        p->sink.kept = NULL;
    }
    forget_kept(mp, owner);
    drop_offers(mp, owner);
    struct outgoing **at = &mp->out;
    while (*at) {
        struct outgoing *o = *at;
        if (o->message && o->owner == owner && !o->there) {
            port_untake(p, &o->head);
            *at = o->next;
            free(o);
            if (!mp->out)
                port_interest(p, -1);
            continue;
        }
        if (o->message && o->owner == owner) {
            o->message = NULL;
            keep_rest(o);
        }
        at = &o->next;
    }
    mp->out_tail = at;
}

static void ports_sweep(struct port *p)
{
    struct memory_port *mp = of(p);
    if (p->state == PORT_UP && mp->cut) /* as after a failed send: what the peer said before counts */
        while (p->state == PORT_UP)
            ports_read(p);
    if (!port_is_gone(p))
        return;
    p->in.type = 0;
    mp->reading = 0;
    drop_all(mp);
}

/* ---- The backend over them ---- */

static const struct port_ops operations = {
    .open = world_want,
    .send = ports_send,
    .offer = ports_offer,
    .accept = ports_accept,
    .send_text = ports_send_text,
    .give_credit = ports_give_credit,
    .read = ports_read,
    .let_go = ports_let_go,
    .forget = ports_forget,
    .sweep = ports_sweep,
};

static struct domain *ports_domain(int32_t rank)
{
    struct domain *d = calloc(1, sizeof *d);
    if (!domain_init(d, "tcp", rank, ports_size, &receive_events))
        abort();
    for (int32_t i = 0; i < ports_size; i++)
        port_init(&port_at(rank, i)->port, &operations, &d->peers, i);
    d->keeps_from = one_in(2) ? 2 : 0;
    return d;
}

static void ports_silence(struct domain *d)
{
    for (int32_t i = 0; i < ports_size; i++)
        d->peers.at[i]->state = PORT_LOST;
}

static void ports_close_domain(struct domain *d)
{
    unexpected_list_clear(&d->unexpected);
    for (int32_t i = 0; i < ports_size; i++) {
        drop_all(of(d->peers.at[i]));
        port_finish(d->peers.at[i]);
    }
    domain_finish(d);
    free(d);
}

static void ports_enter(struct domain *d)
{
    (void)d;
}

static void ports_leave(struct domain *d)
{
    struct completion done;
    turn_end(d);
    while (queue_take_done(d, &done, 1)) {
        host.work_complete(done.work, done.status, done.error);
        free(done.error);
    }
}

static comm_status ports_group_open(struct domain *d, const comm_group_info *info, void **ret_state)
{
    struct exec_group *g = NULL;
    comm_status status = group_create(d, info, &g);
    if (status != COMM_OK)
        return status;
    group_enter(g);
    ports_leave(d);
    *ret_state = g;
    return COMM_OK;
}

static void ports_group_close(void *state)
{
    struct domain *d = ((struct exec_group *)state)->domain;
    group_close(state);
    ports_leave(d);
}

static void ports_group_abort(void *state)
{
    struct exec_group *g = state;
    group_fail(g, COMM_ERR_ABORTED, "because");
    ports_leave(g->domain);
}

/* As a backend, it hands no work over within submit. */
static comm_status ports_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct exec_group *g = state;
    int async;
    comm_status status = submit_ops(g, ops, works, count, &async);
    turn_end(g->domain);
    return status;
}

static void ports_visit(struct port *p)
{
    if (one_in(4))
        keep_none(of(p));
    if (generous || !one_in(4))
        flush(of(p));
    if (p->state == PORT_UP && (generous || !one_in(4)))
        ports_read(p);
}

static void ports_up(struct port *p)
{
    p->state = PORT_UP;
    p->heard = 1;
    flush(of(p));
    ports_leave(domain_of(p));
}

static int ports_has_queued(const struct port *p, const void *owner, int begun)
{
    for (const struct outgoing *o = of(p)->out; o; o = o->next)
        if (!owner || (o->message && o->owner == owner && (o->there != NULL) >= begun))
            return 1;
    return 0;
}

static void ports_check(const struct port *p)
{
    if (of(p)->in)
        complain("port %d -> %d: a frame has not been read", p->table->rank, p->peer);
}

static int ports_is_empty(void)
{
    return 1; /* ports_check has looked */
}

static void ports_cut(int32_t from, int32_t to, size_t after_bytes)
{
    struct memory_port *mp = port_at(from, to);
    mp->until_cut = after_bytes;
    if (after_bytes == 0)
        cut_pair(mp);
}

const struct sim_carrier memory_ports = {
    .name = "ports",
    .open = ports_domain,
    .silence = ports_silence,
    .close = ports_close_domain,
    .group_open = ports_group_open,
    .group_close = ports_group_close,
    .group_abort = ports_group_abort,
    .submit = ports_submit,
    .enter = ports_enter,
    .visit = ports_visit,
    .leave = ports_leave,
    .up = ports_up,
    .has_queued = ports_has_queued,
    .check = ports_check,
    .is_empty = ports_is_empty,
    .cut = ports_cut,
};

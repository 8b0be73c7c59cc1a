/* One peer: a queue of frames out, records in. Pairs know no groups and no operations: what a message is for is asked
 * through port_events when its header is here, and from then on the payload goes straight from the ring to its place.
 *
 * Only duplex_flush and duplex_read tell that something was sent or has come, and only a driver calls those two.
 *
 * A rank that goes to sleep says so in the memory that it shares with each peer (ring_shared.asleep), then looks once
 * more. A sender writes first and looks at that word afterwards. So one of the two notices the other, and there is no
 * system call while both are awake. The barrier that both need in between is made by the rank that goes to sleep, for
 * all of them, if the kernel has such barriers (membarrier) and the rank seldom sleeps; else each makes its own. */
#include "duplex.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "descriptor.h"
#include "events.h"
#include "greeting.h"
#include "keep.h"
#include "lend.h"
#include "region.h"
#include "split.h"

_Static_assert(sizeof(struct frame) == RING_LINE, "a header is a line");

enum {
    REPLIES_MAX = 256,       /* answers waiting for a peer to read them; a correct one asks once per group and
                              * deadline */
    READS_MAX = 64,          /* records at a time: others want to be looked after, too */
};

/* A frame on its way out. */
struct tx {
    struct tx *next;
    struct frame head;
    struct loan loan;        /* the payload, and how it is lent */
    size_t sent;             /* of the payload */
    struct message *message; /* to be told when it is sent; NULL: none */
    const void *owner;       /* the message's */
    void *owned;             /* payload memory to free */
    uint8_t lends;           /* it is to be lent */
    uint8_t begun;           /* the header has gone */
    uint8_t is_reply;        /* counted in duplex->replies */
    uint8_t was_read;        /* in duplex->begun_head */
    uint8_t written_back;    /* it has been read, and its result is where it belongs */
};

/* ---- Frames out ---- */

static struct tx *tx_get(struct fabric *f)
{
    struct tx *tx = f->tx_pool;
    if (tx)
        f->tx_pool = tx->next;
    else
        tx = malloc(sizeof *tx);
    return tx;
}

static void tx_put(struct duplex *p, struct tx *tx)
{
    free(tx->owned);
    assert(p->replies >= tx->is_reply);
    p->replies -= tx->is_reply;
    tx->next = p->fabric->tx_pool;
    p->fabric->tx_pool = tx;
}

static int tx_is_sent(const struct tx *tx)
{
    return tx->begun && tx->sent == tx->loan.bytes;
}

static void lent_append(struct duplex *p, struct tx *tx)
{
    if (!p->lent_head)
        port_interest(&p->port, +1);
    tx->next = NULL;
    *p->lent_tail = tx;
    p->lent_tail = &tx->next;
}

/* Take it off the list of those that are lent; the loan has ended. */
static struct tx *lent_take(struct duplex *p, struct tx **at)
{
    struct tx *tx = *at;
    *at = tx->next;
    if (!*at)
        p->lent_tail = at;
    if (!p->lent_head)
        port_interest(&p->port, -1);
    lend_end(p, &tx->loan);
    return tx;
}

static void lent_remove(struct duplex *p, struct tx **at)
{
    tx_put(p, lent_take(p, at));
}

/* The peer has gone. Where an op has been begun at once and is not submitted yet, what has become of its message is
 * asked then: what the peer has read is sent. */
static void lent_drop_all(struct duplex *p)
{
    while (p->lent_head) {
        int is_kept = !p->lent_head->message, was_read = is_kept && lend_is_taken(p, &p->lent_head->loan);
        int written_back = was_read && lend_take_result(p, &p->lent_head->loan);
        struct tx *tx = lent_take(p, &p->lent_head);
        tx->was_read = (uint8_t)was_read;
        tx->written_back = (uint8_t)written_back;
        if (!is_kept) {
            tx_put(p, tx);
            continue;
        }
        tx->next = p->begun_head;
        p->begun_head = tx;
    }
}

static void tx_drop_all(struct duplex *p)
{
    lent_drop_all(p);
    if (p->tx_head)
        port_interest(&p->port, -1);
    while (p->tx_head) {
        struct tx *tx = p->tx_head;
        p->tx_head = tx->next;
        tx_put(p, tx);
    }
    p->tx_tail = &p->tx_head;
}

/* Lines that the next record of the frame takes, and its payload. */
static uint64_t next_record(const struct ring_out *r, const struct tx *tx, uint32_t *ret_bytes)
{
    size_t left = tx->loan.bytes - tx->sent, most = ring_piece_bytes(r->capacity);
    *ret_bytes = (uint32_t)(left < most ? left : most);
    return tx->begun ? 1 + ring_payload_lines(*ret_bytes) : ring_frame_lines(*ret_bytes);
}

/* Is there space for so many lines? If not, the peer shall say when there is. */
static int has_space(struct duplex *p, uint64_t lines)
{
    int64_t space = ring_free(&p->out, lines);
    if (space < (int64_t)lines && space >= 0) {
        atomic_store_explicit(&p->out.shared->waits, 1, memory_order_relaxed);
        ring_fence(); /* before a last look: see duplex_look_after_writer */
        space = ring_free(&p->out, lines);
    }
    if (space < 0)
        port_lose(&p->port, COMM_ERR_PROTOCOL, "says that it has read what was never written");
    return space >= (int64_t)lines;
}

/* Is its payload better read by the peer, in our memory? Only one that the peer has asked for: it reads that at
 * once. */
static uint8_t may_lend(struct duplex *p, struct tx *tx)
{
    return tx->message && tx->head.type == FRAME_DATA && tx->loan.bytes &&
           lend_suits(p, &tx->head, &tx->loan);
}

/* A frame of no operation has no kind. */
static int reduces(const struct frame *h)
{
    const comm_op_traits *t = comm_op_traits_of(h->kind);
    return t && (t->traits & COMM_OP_TRAIT_REDUCES) != 0;
}

/* Write the frame, as far as there is space. */
static void write_frame(struct duplex *p, struct tx *tx)
{
    uint32_t bytes;
    if (tx->lends && !tx->begun && has_space(p, ring_frame_lines(0))) {
        lend_begin(p, &tx->loan);
        ring_put_lent(&p->out, ring_key(&tx->head), &tx->head, &tx->loan.place);
        tx->begun = 1;
        tx->sent = tx->loan.bytes;
    }
    p->out.copy.overlaps = lend_overlaps(&tx->head, tx->loan.bytes);
    p->out.copy.reduces = reduces(&tx->head);
    while (!tx->lends && !tx_is_sent(tx) && has_space(p, next_record(&p->out, tx, &bytes))) {
        if (tx->begun) {
            ring_put_more(&p->out, tx->loan.payload + tx->sent, bytes);
        } else {
            lend_not(p, &tx->head, &tx->loan);
            ring_put_frame(&p->out, ring_key(&tx->head), &tx->head, tx->loan.payload, bytes);
        }
        tx->begun = 1;
        tx->sent += bytes;
    }
    p->out.copy.overlaps = p->out.copy.reduces = 0;
}

void duplex_wake(struct duplex *p)
{
    if (atomic_exchange(&p->out.shared->asleep, 0))
        bell_ring(p->bell);
}

/* Frames that are queued will carry it, and such frames do not pile up. A peer that has waited for room of late will
 * wait for the next of them, too: then they give back less, and come sooner (room.h). Else they would only be in the
 * way of this rank's messages. */
void duplex_give_credit(struct port *p)
{
    enum { FEW = 4, MANY = 16, OF_LATE = 256 };
    struct frame h = { .type = FRAME_CREDIT };
    if (p->credit_owed < p->credit_step || p->state != PORT_UP || duplex_of(p)->tx_head)
        return;
    _Atomic uint32_t *awaits = &duplex_of(p)->in.shared->awaits_credit;
    uint32_t *small_steps = &duplex_of(p)->small_steps;
    *small_steps -= *small_steps > 0;
    if (atomic_load_explicit(awaits, memory_order_relaxed)) {
        atomic_store_explicit(awaits, 0, memory_order_relaxed);
        *small_steps = OF_LATE;
    }
    p->credit_step = PORT_CREDIT_WINDOW / (*small_steps ? MANY : FEW);
    duplex_send(p, &h, NULL, 0, NULL);
}

static struct tx *tx_pop(struct duplex *p)
{
    struct tx *tx = p->tx_head;
    p->tx_head = tx->next;
    if (!p->tx_head) {
        p->tx_tail = &p->tx_head;
        port_interest(&p->port, -1);
    }
    return tx;
}

/* Take the frames off the queue that are sent. */
static void note_sent(struct duplex *p)
{
    while (p->tx_head && tx_is_sent(p->tx_head)) {
        struct tx *tx = tx_pop(p);
        struct message *m = tx->message;
        if (tx->loan.place.loan) {
            lent_append(p, tx);
            continue;
        }
        tx_put(p, tx);
        if (m)
            p->port.table->events->sent(m);
    }
}

/* The first loan that the peer has read, NULL: none. One that was made at once has no message yet. */
static struct tx **first_taken(struct duplex *p)
{
    struct tx **at = &p->lent_head;
    while (*at && !((*at)->message && lend_is_taken(p, &(*at)->loan)))
        at = &(*at)->next;
    return *at ? at : NULL;
}

static void note_taken(struct duplex *p)
{
    struct tx **at;
    while (p->port.state == PORT_UP && (at = first_taken(p))) {
        struct message *m = (*at)->message;
        m->written_back = (uint8_t)lend_take_result(p, &(*at)->loan);
        lent_remove(p, at);
        p->port.table->events->sent(m);
    }
}

void duplex_flush(struct duplex *p)
{
    assert(!p->port.table->in_round);
    uint64_t before = ring_written(&p->out);
    while (p->port.state == PORT_UP && p->tx_head) {
        if (!p->tx_head->begun)
            p->tx_head->lends = may_lend(p, p->tx_head);
        write_frame(p, p->tx_head);
        if (!tx_is_sent(p->tx_head))
            break;
        note_sent(p);
    }
    if (p->port.state == PORT_UP && ring_written(&p->out) != before)
        duplex_ring_bell(p);
    note_taken(p);
    duplex_give_credit(&p->port);
}

/* The rest of a frame waits for space. NULL without memory: the peer is lost then. */
static struct tx *enqueue(struct duplex *p, const struct tx *draft)
{
    struct tx *tx = tx_get(p->fabric);
    if (!tx) {
        port_lose(&p->port, COMM_ERR_NO_MEMORY, "cannot be sent a message: no memory to queue it");
        return NULL;
    }
    *tx = *draft;
    if (!p->tx_head)
        port_interest(&p->port, +1);
    *p->tx_tail = tx;
    p->tx_tail = &tx->next;
    return tx;
}

int duplex_send(struct port *port, struct frame *h, const void *payload, size_t bytes, struct message *m)
{
    struct duplex *p = duplex_of(port);
    if (port_is_gone(port)) {
        port->table->lost_pending = 1;
        return 0;
    }
    if (p->bye_sent)
        return 1; /* Nothing follows a BYE. */
    h->credit = port_take_owed(port);
    struct tx draft = { .head = *h, .loan = { .payload = payload, .bytes = bytes }, .message = m };
    if (m) {
        draft.owner = m->owner;
        draft.loan.write_back = m->write_back;
        draft.loan.is_long = m->is_long;
    }
    if (port->state == PORT_UP && !p->tx_head && (draft.lends = may_lend(p, &draft))) {
        struct tx *tx = enqueue(p, &draft);
        if (tx)
            write_frame(p, tx);
        if (tx && tx->loan.place.loan)
            lent_append(p, tx_pop(p));
        duplex_ring_bell(p);
        return 0;
    }
    if (port->state == PORT_UP && !p->tx_head) {
        write_frame(p, &draft);
        if (draft.begun)
            duplex_ring_bell(p);
        if (tx_is_sent(&draft))
            return 1;
    }
    enqueue(p, &draft);
    return 0;
}

/* ---- Offers ---- */

struct tx *duplex_draft_offer(struct duplex *p, const struct frame *h, const struct loan *loan)
{
    if (!duplex_is_clear(p) || loan->bytes == 0 || !lend_has_offers(p))
        return NULL;
    struct tx *tx = tx_get(p->fabric);
    if (!tx)
        return NULL;
    *tx = (struct tx){ .loan = *loan };
    if (lend_suits(p, h, &tx->loan) && has_space(p, ring_frame_lines(0)))
        return tx;
    tx_put(p, tx);
    return NULL;
}

static void put_lent(struct duplex *p, struct frame *h, struct loan *l)
{
    h->credit = port_take_owed(&p->port);
    lend_begin(p, l);
    ring_put_lent(&p->out, ring_key(h), h, &l->place);
}

void duplex_put_lent(struct duplex *p, struct frame *h, struct loan *l)
{
    port_spend(&p->port, l->bytes);
    p->messages_before = p->messages;
    put_lent(p, h, l);
}

void duplex_make_offer(struct duplex *p, struct frame *h, struct tx *tx, const void *owner)
{
    tx->owner = owner;
    put_lent(p, h, &tx->loan);
    lent_append(p, tx);
}

void duplex_drop_draft(struct duplex *p, struct tx *tx)
{
    tx_put(p, tx);
}

int duplex_has_credit(struct duplex *p, size_t bytes)
{
    if (!port_has_credit(&p->port, bytes))
        duplex_read_credit(p);
    return port_has_credit(&p->port, bytes) && !port_is_gone(&p->port);
}

struct tx *duplex_draft_lent(struct duplex *p, const struct frame *h, const struct loan *loan, enum lend_flow flow)
{
    struct loan drafted = *loan;
    if (p->port.state != PORT_UP || p->bye_sent)
        return NULL;
    if (flow != LEND_BOTH && p->lends_later) {
        p->lends_later--;
        return NULL;
    }
    if (!duplex_has_credit(p, loan->bytes) || p->tx_head || !lend_is_sooner(p, h, &drafted, flow) ||
        !has_space(p, ring_frame_lines(0)))
        return NULL;
    struct tx *tx = tx_get(p->fabric);
    if (!tx)
        return NULL;
    *tx = (struct tx){ .loan = drafted };
    return tx;
}

void duplex_make_lent(struct duplex *p, struct frame *h, struct tx *tx, const void *owner)
{
    tx->owner = owner;
    duplex_put_lent(p, h, &tx->loan);
    lent_append(p, tx);
}

/* For all of its pieces, which go to the lanes in turn? */
static int has_space_for_all(struct duplex *p, size_t bytes)
{
    size_t piece = ring_piece_bytes(p->out.capacity), rounds = (bytes / piece + RING_LANES) / RING_LANES;
    uint64_t lines = rounds * ring_frame_lines((uint32_t)(bytes < piece ? bytes : piece));
    int has = 1;
    for (unsigned lane = 0; lane < RING_LANES; lane++)
        has &= ring_free_in(&p->out, lane, lines) >= (int64_t)lines;
    return has;
}

static void end_offer(struct duplex *p, struct tx *tx)
{
    struct tx **at = &p->lent_head;
    while (*at != tx)
        at = &(*at)->next;
    lent_remove(p, at);
}

/* A peer that does not look costs a wait with each message that is lent. */
static void lend_later(struct duplex *p)
{
    enum { LEAST = 32, MOST = 1024 };
    p->lends_later = !p->lends_later_next ? LEAST : p->lends_later_next;
    p->lends_later_next = p->lends_later < MOST ? 2 * p->lends_later : MOST;
}

int duplex_send_instead(struct duplex *p, struct frame *h, struct tx *tx)
{
    const void *payload = tx->loan.payload;
    size_t bytes = tx->loan.bytes;
    int has_room = p->port.state == PORT_UP && duplex_has_credit(p, bytes) && !p->tx_head &&
                   has_space_for_all(p, bytes);
    if (has_room && !lend_withdraw(p, &tx->loan))
        return 0;
    lend_later(p);
    if (!has_room)
        return 0;
    end_offer(p, tx);
    port_spend(&p->port, bytes);
    h->type = FRAME_EAGER;
    return duplex_send(&p->port, h, payload, bytes, NULL);
}

int duplex_offer(struct port *port, struct frame *h, struct message *m)
{
    struct duplex *p = duplex_of(port);
    const struct loan loan = { .payload = m->data, .bytes = m->bytes, .write_back = m->write_back,
                               .is_long = m->is_long };
    struct tx *tx = duplex_draft_offer(p, h, &loan);
    if (!tx) {
        duplex_send(port, h, NULL, 0, NULL);
        return 0;
    }
    duplex_make_offer(p, h, tx, m->owner);
    tx->message = m;
    duplex_ring_bell(p);
    return 1;
}

int duplex_is_read(struct duplex *p, struct tx *tx)
{
    if (lend_is_taken(p, &tx->loan))
        return 1;
    if (tx->loan.splits)
        split_write(p, &tx->loan);
    return 0;
}

int duplex_take_result(struct duplex *p, struct tx *tx)
{
    return lend_take_result(p, &tx->loan);
}

void duplex_end_offer(struct duplex *p, struct tx *tx)
{
    p->lends_later_next = 0;
    end_offer(p, tx);
}

/* The one that was made at once of this message, in that list; its end if it is not there. */
static struct tx **find_begun(struct tx **at, const struct message *m)
{
    while (*at && ((*at)->message || (*at)->owner != m->owner || (*at)->loan.payload != m->data))
        at = &(*at)->next;
    return at;
}

enum port_begun duplex_adopt(struct port *port, struct message *m)
{
    struct duplex *p = duplex_of(port);
    struct tx *lent = *find_begun(&p->lent_head, m), **begun = find_begun(&p->begun_head, m);
    if (lent) {
        lent->message = m;
        return PORT_OFFERED;
    }
    if (!*begun)
        return PORT_NOT_OFFERED;
    struct tx *tx = *begun;
    const enum port_begun was = tx->was_read ? PORT_READ : PORT_OFFERED;
    *begun = tx->next;
    m->written_back = tx->written_back;
    tx_put(p, tx);
    return was;
}

/* ---- Texts ---- */

void duplex_send_text(struct port *port, struct frame *h, const char *text, int is_reply)
{
    struct duplex *p = duplex_of(port);
    if (is_reply && p->replies >= REPLIES_MAX) {
        port_lose(port, COMM_ERR_PROTOCOL, "sent %d queries without reading the replies", REPLIES_MAX);
        return;
    }
    size_t bytes = strlen(text);
    if (bytes > FRAME_TEXT_MAX)
        bytes = utf8_cut(text, FRAME_TEXT_MAX);
    char *copy = port_is_gone(port) ? NULL : malloc(bytes + 1);
    if (!copy)
        return;
    memcpy(copy, text, bytes);
    h->bytes = bytes;
    struct tx **place = p->tx_tail;
    if (duplex_send(port, h, copy, bytes, NULL) || *place == NULL) {
        free(copy); /* It is gone already, or could not be sent. */
        return;
    }
    (*place)->owned = copy;
    (*place)->is_reply = is_reply != 0;
    p->replies += is_reply != 0;
}

/* ---- Records in ---- */

void duplex_look_after_writer(struct duplex *p)
{
    ring_fence();
    if (!atomic_load_explicit(&p->in.shared->waits, memory_order_relaxed))
        return;
    atomic_store(&p->in.shared->waits, 0);
    duplex_ring_bell(p);
}

static const char *wrong_frame(const struct frame *h, uint32_t bytes)
{
    int has_payload = h->type == FRAME_EAGER || h->type == FRAME_DATA || h->type == FRAME_FAIL ||
                      h->type == FRAME_ANSWER;
    if (h->type == 0 || h->type >= FRAME_TYPE_END)
        return "a frame of unknown type";
    if (h->type == FRAME_EAGER && h->bytes > FRAME_EAGER_MAX)
        return "an eager message beyond the limit";
    if ((h->type == FRAME_FAIL || h->type == FRAME_ANSWER) && h->bytes > FRAME_TEXT_MAX)
        return "a text beyond the limit";
    int may_be_lent = h->type == FRAME_DATA || h->type == FRAME_EAGER;
    if (bytes > (has_payload ? h->bytes : 0) || (has_payload && h->bytes && !bytes && !may_be_lent))
        return "a payload that does not belong to its frame";
    return NULL;
}

/* Feed so many bytes, which lie in the ring, to the frame that they belong to. */
static void feed(struct duplex *p, const uint8_t *data, size_t bytes)
{
    struct sink *s = &p->port.sink;
    while (bytes && p->port.in.type) {
        size_t n = sink_takes(s, bytes);
        sink_feed(s, p->port.table->bounce, data, n);
        data += n;
        bytes -= n;
        if (sink_left(s) == 0)
            port_complete(&p->port);
    }
}

/* The same, all of it at once; 0: it does not go to a receive, or not as a whole. What is done when it is complete is
 * not measured. */
static int feed_copied(struct duplex *p, const uint8_t *data, size_t bytes)
{
    struct sink *s = &p->port.sink;
    if (s->kind != SINK_COPY || sink_left(s) < bytes || s->dst_bytes - s->done < bytes || s->is_long)
        return 0;
    duplex_copy_out(p, s->dst + s->done, data, bytes);
    s->done += bytes;
    if (sink_left(s) == 0)
        port_complete(&p->port);
    return 1;
}

/* Only if it has changed: the peer reads it before each copy, and misses it in its caches when it has been written. */
static void tell_take_ns(_Atomic uint32_t *told, int64_t ns)
{
    enum { SHARE = 16 };
    int64_t told_ns = atomic_load_explicit(told, memory_order_relaxed);
    if (llabs(ns - told_ns) > told_ns / SHARE)
        atomic_store_explicit(told, (uint32_t)ns, memory_order_relaxed);
}

/* A long record has come through the ring. */
static void took_long(struct duplex *p)
{
    p->peer_lends = 0;
    p->pieces++;
}

/* Of an eager message: now and then it is measured, and the peer is told. */
void duplex_copy_long(struct duplex *p, void *to, const uint8_t *payload, size_t bytes)
{
    enum { OFTEN = 8, COLD = 4 };
    took_long(p);
    uint32_t records = p->records++;
    if (records < COLD || records % OFTEN) {
        memcpy(to, payload, bytes);
        return;
    }
    int64_t began_ns = clock_now_ns();
    memcpy(to, payload, bytes);
    copy_out_note(&p->record_ns, clock_now_ns() - began_ns, bytes);
    tell_take_ns(&p->in.shared->record_ns, p->record_ns);
}

/* What this rank does while the peer writes a message for it to read. */
static enum copy_out_reader reader_of(const struct duplex *p)
{
    const struct sink *s = &p->port.sink;
    return !lend_overlaps(&p->port.in, s->total) ? COPY_OUT_SENDER
           : s->kind == SINK_REDUCE              ? COPY_OUT_REDUCER
                                                 : COPY_OUT_COPIER;
}

/* Now and then a piece of a long message is measured, and the peer is told; each piece that went another way than the
 * one before it, for those are few. After the last piece other things are done, for the message is
 * complete. Which way a piece went is what the peer says of it. */
static void feed_measured(struct duplex *p, const struct ring_record *record, enum ring_found what, uint32_t bytes)
{
    enum { LONG_BYTES = 4 << 10, OFTEN = 8 };
    const uint8_t *payload = ring_payload(record, what, bytes);
    const struct sink *s = &p->port.sink;
    int is_taken = s->kind == SINK_COPY || s->kind == SINK_REDUCE, is_inner = bytes < sink_left(s);
    const enum copy_out_reader reader = reader_of(p);
    if (s->kept && p->port.in.type && keep_payload(p, payload, bytes)) {
        if (bytes >= LEND_EAGER_LEAST)
            took_long(p);
        return;
    }
    if (p->port.in.type == FRAME_EAGER && what == RING_FRAME && bytes >= LEND_EAGER_LEAST &&
        feed_copied(p, payload, bytes))
        return;
    if (what != RING_MORE || bytes < LONG_BYTES || !is_taken || !is_inner ||
        (s->kind == SINK_REDUCE && reader == COPY_OUT_SENDER)) {
        feed(p, payload, bytes);
        return;
    }
    uint32_t way = *(const volatile uint32_t *)&record->credit == COPY_OUT_PAST ? COPY_OUT_PAST : COPY_OUT_CACHED;
    int is_other = way != p->piece_way;
    p->piece_way = way;
    int is_cold = ++p->pieces < COPY_OUT_COLD_LAPS * ring_pieces(p->in.capacity);
    if (is_cold || (p->pieces % OFTEN && !is_other)) {
        feed(p, payload, bytes);
        return;
    }
    int64_t began_ns = clock_now_ns(), *known_ns = &p->take_ns[reader][way];
    feed(p, payload, bytes);
    copy_out_note(known_ns, clock_now_ns() - began_ns, bytes);
    tell_take_ns(&p->in.shared->take_ns[reader][way], *known_ns);
}

/* Numbers of loans come again, after 2^30 of them: what was taken back, and is still in another slot, is not this. */
static void forget_offer(struct duplex *p, uint32_t loan)
{
    for (uint32_t i = 0; i < RING_LOANS; i++)
        if (p->offers[i].place.loan == loan) {
            p->offers[i].place.loan = 0;
            p->accepted &= ~(1u << i);
        }
}

/* The peer has announced a message, which lies there. It is told of, and read if there is a receive for it. */
static const char *announced(struct duplex *p, const struct frame *h, const struct ring_place *place)
{
    const char *wrong = h->bytes ? lend_check(place) : "an offer of nothing";
    if (wrong)
        return wrong;
    struct offer *o = &p->offers[place->slot];
    forget_offer(p, place->loan);
    *o = (struct offer){ *h, *place };
    o->head.type = FRAME_DATA;
    o->head.credit = 0;
    p->accepted &= ~(1u << place->slot);
    p->port.offer = place->loan;
    port_begins(&p->port, h);
    p->port.offer = 0;
    return NULL;
}

void duplex_accept(struct port *port, uint32_t offer)
{
    struct duplex *p = duplex_of(port);
    for (uint32_t i = 0; i < RING_LOANS; i++)
        if (p->offers[i].place.loan == offer)
            p->accepted |= 1u << i;
    events_awake(p->fabric); /* nobody rings for it: a helper that sleeps must look */
}

static const char *begin_lent(struct duplex *p, const struct frame *h, const struct ring_place *place)
{
    const char *wrong = lend_accept(p, h, place);
    if (!wrong)
        port_begins(&p->port, h);
    return wrong;
}

/* An eager message that is lent. One that was taken back comes through the ring, or not at all; it has cost credit. */
static const char *begin_lent_eager(struct duplex *p, const struct frame *h, const struct ring_place *place)
{
    const char *wrong = lend_check(place);
    if (wrong)
        return wrong;
    if (!lend_claim(p, place)) {
        port_took(&p->port, FRAME_EAGER, (size_t)h->bytes, h->credit);
        return NULL;
    }
    p->peer_lends = 1;
    return begin_lent(p, h, place);
}

int duplex_claim_lent(struct duplex *p, const struct frame *h, const struct ring_record *record,
                      struct ring_place *ret_place)
{
    *ret_place = ring_place(record);
    const char *wrong = h->bytes > FRAME_EAGER_MAX ? "an eager message beyond the limit" : lend_check(ret_place);
    if (wrong) {
        port_lose(&p->port, COMM_ERR_PROTOCOL, "sent %s", wrong);
        return 0;
    }
    p->peer_lends = 1;
    if (lend_claim(p, ret_place))
        return 1;
    duplex_took_record(p, FRAME_EAGER, (size_t)h->bytes, record->credit, 0);
    return 0;
}

int duplex_read_claimed(struct duplex *p, const struct frame *h, const struct ring_place *place, uint32_t credit,
                        void *to)
{
    int is_read = lend_read_now(p, h, place, to);
    if (p->port.state == PORT_UP)
        duplex_took_record(p, FRAME_EAGER, (size_t)h->bytes, credit, 0);
    return is_read;
}

static void say_wrong(struct duplex *p, const char *wrong)
{
    if (wrong)
        port_lose(&p->port, COMM_ERR_PROTOCOL, "sent %s", wrong);
}

/* Begin one of the messages that were offered and are wanted. */
static void read_offered(struct duplex *p)
{
    int slot = __builtin_ctz(p->accepted);
    const struct offer o = p->offers[slot];
    p->accepted &= ~(1u << slot);
    p->offers[slot].place.loan = 0;
    say_wrong(p, begin_lent(p, &o.head, &o.place));
}

int duplex_say_notice(struct duplex *p)
{
    struct frame h = { .type = FRAME_CREDIT, .flags = FRAME_CREDIT_NOTICE };
    const uint64_t lines = ring_frame_lines(0);
    if (p->bye_sent || (p->tx_head && p->tx_head->begun) || ring_free(&p->out, lines) < (int64_t)lines)
        return 0;
    h.credit = port_take_owed(&p->port);
    ring_put_frame(&p->out, ring_key(&h), &h, NULL, 0);
    return 1;
}

/* What it says of the socket's end is for on_socket. */
static const char *hear_notices(struct duplex *p, const struct frame *h)
{
    int has_ended;
    return h->type == FRAME_CREDIT && h->flags & FRAME_CREDIT_NOTICE ? region_notices(p, &has_ended) : NULL;
}

/* A frame begins. The place is that of a payload that is not in the record. */
static const char *begin(struct duplex *p, const struct frame *h, const struct ring_place *place)
{
    const char *wrong = hear_notices(p, h);
    if (wrong)
        return wrong;
    p->messages += h->type == FRAME_EAGER || h->type == FRAME_DATA || h->type == FRAME_RTS;
    if (place && h->type == FRAME_DATA && h->bytes)
        return begin_lent(p, h, place);
    if (place && h->type == FRAME_EAGER && h->bytes)
        return begin_lent_eager(p, h, place);
    if (place && h->type == FRAME_RTS && place->loan)
        return announced(p, h, place);
    port_begins(&p->port, h);
    return NULL;
}

/* Take in one record. */
static void take(struct duplex *p, const struct ring_record *record, enum ring_found what)
{
    uint32_t bytes = *(const volatile uint32_t *)&record->bytes;
    const char *wrong = NULL;
    if (!ring_holds(&p->in, bytes) || (what == RING_MORE) != (p->port.in.type != 0)) {
        wrong = "a record that makes no sense";
    } else if (what == RING_MORE) {
        if (bytes == 0 || bytes > sink_left(&p->port.sink))
            wrong = "more than its frame said";
    } else {
        struct frame h = ring_frame(record);
        struct ring_place place = ring_place(record);
        wrong = wrong_frame(&h, bytes);
        if (!wrong)
            wrong = begin(p, &h, bytes ? NULL : &place);
    }
    say_wrong(p, wrong);
    if (wrong)
        return;
    feed_measured(p, record, what, bytes);
    uint64_t lines = what == RING_MORE ? 1 + ring_payload_lines(bytes) : ring_frame_lines(bytes);
    if (ring_pop(&p->in, lines))
        duplex_look_after_writer(p);
}

/* For the engine, which does not wait for room (room.h), but announces what it has no credit for. Where ranks share
 * cores that costs a turn of the peer. Else it costs next to nothing, and keeps the sender near the receiver. */
void duplex_take_credit(struct port *port)
{
    if (duplex_of(port)->fabric->domain->shares_cores)
        duplex_read_credit(duplex_of(port));
}

int duplex_read_credit(struct duplex *p)
{
    const struct ring_record *record;
    for (int i = 0; i < READS_MAX && p->port.state == PORT_UP && !p->port.in.type; i++) {
        enum ring_found what = ring_look(&p->in, &record);
        if (what != RING_FRAME)
            return what == RING_NOTHING;
        struct frame h = ring_frame(record);
        if (h.type != FRAME_CREDIT || record->bytes)
            return 0;
        duplex_took(p, FRAME_CREDIT, 0, h.credit);
        say_wrong(p, hear_notices(p, &h));
    }
    return p->port.state == PORT_UP && !p->port.in.type;
}

int duplex_passes_credit(struct duplex *p)
{
    uint64_t before = ring_lines_read(&p->in);
    duplex_read_credit(p);
    return p->port.state == PORT_UP && ring_lines_read(&p->in) != before;
}

static void lose_what_ended(struct duplex *p)
{
    if (*p->why)
        port_lose(&p->port, COMM_ERR_PEER_LOST, "has given this rank up, which %s", p->why);
    else
        port_lose(&p->port, COMM_ERR_PEER_LOST, "closed the connection: its process has ended, or was killed");
}

/* Other records than those that duplex_read takes in count, too: those that are done with at once. */
static int keeps_much(const struct duplex *p)
{
    return UNLIKELY(p->kept != NULL) && ring_keeps_much(&p->in);
}

int duplex_read(struct port *port)
{
    struct duplex *p = duplex_of(port);
    const struct ring_record *record;
    const struct domain *d = p->fabric->domain;
    size_t done = d->done_count;
    int came = 0;
    assert(!port->table->in_round);
    /* When a work is complete its thread goes on first, and when all is here that was awaited from this peer the others
     * are looked at. What is for the next operations would be copied as unexpected messages, and those after it, too:
     * then none would find its messages in the ring. */
    const int is_awaited = port->interest > 0;
    for (int i = 0; i < READS_MAX && port->state == PORT_UP && d->done_count == done; i++) {
        /* What was written before the socket ended is seen after that is noticed. */
        int ended = p->hung_up;
        if (p->accepted && !p->port.in.type)
            read_offered(p);
        if (p->borrowed.loan) {
            lend_read(p);
            return 1;
        }
        if (keeps_much(p))
            keep_none(p);
        enum ring_found what = ring_look(&p->in, &record);
        if (p->lent_head) {
            note_taken(p); /* before the peer's BYE, which came later */
            /* An operation that went on has taken in credit: that was this record. Or its work is complete. */
            if (p->in.next != record || d->done_count != done)
                continue;
        }
        if (what == RING_NOTHING && ended)
            lose_what_ended(p);
        if (what == RING_NOTHING)
            break;
        came = 1;
        if (!p->probed)
            lend_probe(p);
        take(p, record, what);
        if (is_awaited && port->interest == 0 && !port->in.type)
            break;
    }
    return came;
}

int duplex_has_news(struct duplex *p)
{
    const struct ring_record *record;
    uint32_t bytes;
    return keeps_much(p) || p->hung_up || p->borrowed.loan || p->accepted || first_taken(p) ||
           ring_look(&p->in, &record) != RING_NOTHING ||
           (p->tx_head && has_space(p, next_record(&p->out, p->tx_head, &bytes)));
}

/* ---- Operations that are over ---- */

/* Half of it is gone already: the rest must follow, or the peer could not read what comes after. 0 without memory. */
static int keep_rest(struct tx *tx)
{
    uint8_t *copy = malloc(tx->loan.bytes ? tx->loan.bytes : 1);
    if (!copy)
        return 0;
    if (tx->loan.bytes)
        memcpy(copy, tx->loan.payload, tx->loan.bytes);
    tx->loan.payload = tx->owned = copy;
    return 1;
}

/* A frame that will not go out. */
static void unsend(struct duplex *p, struct tx *tx)
{
    port_untake(&p->port, &tx->head);
    tx_put(p, tx);
    if (!p->tx_head)
        port_interest(&p->port, -1);
}

void duplex_forget(struct port *port, const void *owner)
{
    struct duplex *p = duplex_of(port);
    if (port->in.type && port->sink.message && port->sink.message->owner == owner) {
        port->sink.kind = SINK_DISCARD;
        port->sink.message = NULL;
        port->sink.kept = NULL;
    }
    keep_forget(p, owner);
    for (struct tx **at = &p->lent_head; *at;)
        if ((*at)->owner == owner)
            lent_remove(p, at);
        else
            at = &(*at)->next;
    for (struct tx **at = &p->begun_head, *tx; (tx = *at);)
        if (tx->owner == owner) {
            *at = tx->next;
            tx_put(p, tx);
        } else {
            at = &tx->next;
        }
    struct tx **at = &p->tx_head;
    while (*at) {
        struct tx *tx = *at;
        if (!tx->message || tx->owner != owner) {
            at = &tx->next;
            continue;
        }
        if (!tx->begun) {
            *at = tx->next;
            unsend(p, tx);
            continue;
        }
        tx->message = NULL;
        at = &tx->next;
        if (!tx_is_sent(tx) && !keep_rest(tx)) {
            port_lose(port, COMM_ERR_NO_MEMORY, "cannot be sent a message: no memory to finish it");
            return;
        }
    }
    p->tx_tail = at;
}

/* ---- Life ---- */

/* Something about registered memory, or the end. */
static void on_socket(struct watch *w)
{
    struct duplex *p = (struct duplex *)((char *)w - offsetof(struct duplex, watch));
    int has_ended;
    say_wrong(p, region_notices(p, &has_ended));
    if (!has_ended)
        return;
    events_unwatch(p->fabric, w);
    p->hung_up = 1;
    duplex_read(&p->port);
}

/* A child of the peer's may keep the socket open: one that was made without fork()'s handlers, which close it. */
static void on_process_end(struct watch *w)
{
    struct duplex *p = (struct duplex *)((char *)w - offsetof(struct duplex, process));
    events_unwatch(p->fabric, w);
    on_socket(&p->watch);
    p->hung_up = 1;
    duplex_read(&p->port);
}

/* Where the kernel cannot tell, or may not, the socket does. */
static void watch_process(struct duplex *p)
{
    pid_t pid = greeting_peer(p->watch.fd);
    p->process.ready = on_process_end;
    p->process.fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (p->process.fd >= 0 && !events_watch(p->fabric, &p->process))
        descriptor_close(&p->process.fd);
}

/* The four lanes of a pair are used together, and a rank's pairs. */
static uint64_t first_line(const struct duplex *p, int ring)
{
    uint64_t pair = (uint64_t)(p->fabric->domain->peers.rank + p->port.peer);
    return (uint64_t)ring * RING_LANES * RING_APART + 2 * pair % RING_APART; /* a short record is two lines */
}

void duplex_up(struct duplex *p, const uint64_t salts[2])
{
    struct fabric *f = p->fabric;
    int mine = f->domain->peers.rank > p->port.peer, theirs = !mine;
    struct segment *s = &p->segment;
    ring_open_out(&p->out, &s->shared[mine], s->ring[mine], s->ring_bytes, salts[mine], first_line(p, mine));
    p->out.copy.way = p->fabric->copy_way;
    p->out.copy.taken_ns = p->take_ns[COPY_OUT_SENDER];
    ring_open_in(&p->in, &s->shared[theirs], s->ring[theirs], s->ring_bytes, salts[theirs],
                 first_line(p, theirs));
    p->out.shared->probe_word = f->probe_word;
    atomic_store_explicit(&p->out.shared->probe_at, (uintptr_t)&f->probe_word, memory_order_release);
    atomic_store_explicit(&p->in.shared->is_barred, (uint32_t)f->is_barred, memory_order_relaxed);
    lend_probe(p);
    p->port.state = PORT_UP;
    p->up_index = f->up_count;
    f->up[f->up_count++] = p;
    p->watch.ready = on_socket;
    if (!events_watch(f, &p->watch)) {
        port_lose(&p->port, COMM_ERR_NO_MEMORY, "cannot be watched: the kernel has no memory for it, or "
                  "fs.epoll.max_user_watches is reached");
        return;
    }
    watch_process(p);
    events_awake(f);
    duplex_flush(p);
}

void duplex_leave(struct duplex *p)
{
    struct frame bye = { .type = FRAME_BYE };
    duplex_send(&p->port, &bye, NULL, 0, NULL);
    p->bye_sent = 1;
}

void duplex_close(struct duplex *p)
{
    struct fabric *f = p->fabric;
    if (p->segment.shared && p->up_index >= 0) {
        struct duplex *last = f->up[--f->up_count];
        f->up[p->up_index] = last;
        last->up_index = p->up_index;
    }
    p->up_index = -1;
    keep_none(p);
    events_unwatch(f, &p->watch);
    events_unwatch(f, &p->process);
    descriptor_close(&p->watch.fd);
    descriptor_close(&p->process.fd);
    descriptor_close(&p->bell);
    segment_unmap(&p->segment);
    region_unmap_all(p);
    p->port.in.type = 0;
    p->borrowed.loan = p->accepted = 0;
}

void duplex_sweep(struct port *port)
{
    struct duplex *p = duplex_of(port);
    if (!port_is_gone(port))
        return;
    if (port->state == PORT_LOST && port->lost_text && p->up_index >= 0)
        region_say_end(p->watch.fd, port->lost_text);
    tx_drop_all(p);
    lend_end_all(p);
    duplex_close(p);
}

static void tx_put_list(struct duplex *p, struct tx *tx)
{
    while (tx) {
        struct tx *next = tx->next;
        tx_put(p, tx);
        tx = next;
    }
}

void duplex_finish(struct duplex *p)
{
    tx_put_list(p, p->tx_head);
    tx_put_list(p, p->lent_head);
    tx_put_list(p, p->begun_head);
    port_finish(&p->port);
}

void duplex_pool_finish(struct fabric *f)
{
    while (f->tx_pool) {
        struct tx *tx = f->tx_pool;
        f->tx_pool = tx->next;
        free(tx);
    }
}

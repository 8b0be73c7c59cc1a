/* Sends and receives at once. A short send for which there is space goes to the ring, or is lent to the peer, if that
 * is faster; a longer one is offered, and read soon, or left to the engine. A receive takes a message that is in front
 * of its sender's ring, or comes there soon. All else is the engine's: receives from any source, and whatever is behind
 * others. */
#include "message.h"

#include <string.h>

#include "base/likely.h"
#include "duplex.h"
#include "events.h"
#include "fabric.h"
#include "room.h"
#include "say.h"
#include "small.h"
#include "split.h"

/* Of an EAGER frame. */
static inline uint64_t key_of(const struct exec_group *g, int32_t tag, uint64_t bytes)
{
    const struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = g->id, .tag = tag, .bytes = bytes };
    return ring_key(&h);
}

/* The header of the latest send. */
static inline void write_header(struct frame *to, uint8_t type, const struct exec_group *g, const comm_op *op,
                                uint32_t credit)
{
    to->type = type;
    to->kind = COMM_OP_SEND;
    to->dtype = (uint8_t)op->dtype;
    to->redop = 0;
    to->credit = credit;
    to->group = g->id;
    to->seq = g->sends_begun;
    to->signature = 0;
    to->slice = 0;
    to->round = 0;
    to->tag = op->tag;
    to->count = op->send.count;
    to->bytes = op->send.count * op->element_bytes;
}

static void put_eager(struct duplex *p, const struct exec_group *g, const comm_op *op)
{
    size_t bytes = op->send.count * op->element_bytes;
    uint32_t credit = port_take_owed(&p->port);
    port_spend(&p->port, bytes);
    uint64_t key = key_of(g, op->tag, bytes);
    struct ring_record *record = ring_begin_frame(&p->out, key, credit, (uint32_t)bytes);
    write_header(&record->frame, FRAME_EAGER, g, op, credit);
    ring_end_frame(&p->out, record, op->send.data, (uint32_t)bytes);
    duplex_ring_bell(p);
    duplex_take_next(p, (uint32_t)bytes, 0);
    duplex_say_core(p, duplex_own_core(p->fabric));
}

/* A function of its own: with this in the loop of a rank that spins, ping-pong of 1 KiB took a fifth longer. */
__attribute__((noinline)) static int yield_and_look(struct fabric *f, const struct duplex *p, unsigned turn,
                                                    int64_t spin_ns, int64_t *until_ns)
{
    unsigned looks = duplex_is_elsewhere(p, duplex_own_core(f)) ? FABRIC_LOOKS_LONG : FABRIC_LOOKS_ONCE;
    return fabric_look_again(f, turn, looks, spin_ns, until_ns);
}

static inline int look_again(struct fabric *f, const struct duplex *p, unsigned turn, int64_t spin_ns,
                             int64_t *until_ns)
{
    return waiting_spins(f->looks.waiting) ? fabric_look_again(f, turn, FABRIC_LOOKS_ONCE, spin_ns, until_ns)
                                           : yield_and_look(f, p, turn, spin_ns, until_ns);
}

/* Wait until the peer has read it. */
static comm_status wait_until_read(struct fabric *f, struct duplex *p, struct tx *tx, size_t bytes,
                                   int64_t spin_ns)
{
    int64_t until_ns = 0;
    spin_ns += lend_read_ns(bytes);
    exec_host->run_waits();
    unsigned turn = 1;
    for (; !duplex_is_read(p, tx); turn++)
        if (!look_again(f, p, turn, spin_ns, &until_ns))
            return COMM_IN_PROGRESS;
    fabric_found(f, turn, until_ns);
    duplex_end_offer(p, tx);
    return COMM_OK;
}

/* The same of an eager one. To send that must not wait for the receive: what nobody has read by then goes to the
 * ring. */
static comm_status wait_for_lent(struct fabric *f, struct duplex *p, struct tx *tx, struct frame *h, int64_t spin_ns)
{
    comm_status status = wait_until_read(f, p, tx, (size_t)h->bytes, spin_ns);
    return status == COMM_IN_PROGRESS && duplex_send_instead(p, h, tx) ? COMM_OK : status;
}

/* Let the peer read an eager message, if that is sooner done; UNSUPPORTED: it is not. */
__attribute__((noinline)) static comm_status lend_now(struct fabric *f, struct duplex *p, struct exec_group *g,
                                                      const comm_op *op, int64_t spin_ns)
{
    const size_t bytes = op->send.count * op->element_bytes;
    const struct loan loan = { .payload = op->send.data, .bytes = bytes, .splits = split_suits(p, bytes) };
    struct frame h;
    write_header(&h, FRAME_EAGER, g, op, 0);
    struct tx *tx = duplex_draft_lent(p, &h, &loan, duplex_is_in_turn(p) ? LEND_IN_TURN : LEND_STREAM);
    if (!tx)
        return COMM_ERR_UNSUPPORTED;
    h.seq = ++g->sends_begun;
    duplex_make_lent(p, &h, tx, g);
    duplex_ring_bell(p);
    return wait_for_lent(f, p, tx, &h, spin_ns);
}

/* Where ranks share cores a stream of them is sent without a turn of the peer for each. */
static inline int may_be_lent(const struct fabric *f, struct duplex *p, size_t bytes)
{
    if (LIKELY(bytes < LEND_EAGER_LEAST) || bytes > (size_t)match_eager_bytes(p->port.table->matching, COMM_OP_SEND))
        return 0;
    if (p->ring_for) {
        p->ring_for--;
        return 0;
    }
    return waiting_spins(f->looks.waiting) || duplex_is_in_turn(p);
}

/* UNSUPPORTED: it cannot be offered. */
static comm_status offer_now(struct fabric *f, struct duplex *p, struct exec_group *g, const comm_op *op,
                             int64_t spin_ns)
{
    const size_t bytes = op->send.count * op->element_bytes;
    const struct loan loan = { .payload = op->send.data, .bytes = bytes, .splits = split_suits(p, bytes) };
    struct frame h;
    write_header(&h, FRAME_RTS, g, op, 0);
    struct tx *tx = duplex_draft_offer(p, &h, &loan);
    if (!tx)
        return COMM_ERR_UNSUPPORTED;
    h.seq = ++g->sends_begun;
    duplex_make_offer(p, &h, tx, g);
    duplex_ring_bell(p);
    return wait_until_read(f, p, tx, loan.bytes, spin_ns);
}

/* It is long, or there is no room for it; *ret_has_room: it is short, and now there is. A function of its own, as
 * yield_and_look. */
__attribute__((noinline)) static comm_status send_other(struct fabric *f, struct duplex *p, struct exec_group *g,
                                                        const comm_op *op, int64_t spin_ns, int *ret_has_room)
{
    size_t bytes = op->send.count * op->element_bytes;
    int is_eager = bytes <= (size_t)match_eager_bytes(p->port.table->matching, COMM_OP_SEND);
    int64_t until_ns = 0;
    int has_room = is_eager && (room_is_there(p, bytes) || room_await(f, p, bytes, spin_ns, &until_ns) ||
                                room_is_there(p, bytes));
    *ret_has_room = has_room && bytes <= SMALL_BYTES;
    if (*ret_has_room)
        return COMM_OK;
    int is_engines = bytes > (size_t)(is_eager ? SMALL_BYTES : LEND_OFFER_BYTES);
    return is_engines ? COMM_ERR_UNSUPPORTED : offer_now(f, p, g, op, until_ns ? 0 : spin_ns);
}

static comm_status send_now(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    struct port *port = group_port(g, op->root);
    struct duplex *p = duplex_of(port);
    size_t bytes = op->send.count * op->element_bytes;
    if (!duplex_is_clear(p) || port->held.head)
        return COMM_ERR_UNSUPPORTED;
    if (UNLIKELY(may_be_lent(f, p, bytes))) {
        comm_status status = lend_now(f, p, g, op, spin_ns);
        if (status != COMM_ERR_UNSUPPORTED || port->state != PORT_UP || p->tx_head) /* it has looked for credit */
            return status;
    }
    int has_room = bytes <= SMALL_BYTES &&
                   bytes <= (size_t)match_eager_bytes(port->table->matching, COMM_OP_SEND) &&
                   room_for(p, bytes, ring_frame_lines((uint32_t)bytes));
    if (!has_room) {
        comm_status status = send_other(f, p, g, op, spin_ns, &has_room);
        if (!has_room)
            return status;
    }
    g->sends_begun++;
    put_eager(p, g, op);
    return COMM_OK;
}

/* A short message whose record this is. */
static inline void take_short(struct duplex *p, const struct ring_record *record, size_t bytes, void *to)
{
    if (bytes)
        duplex_copy_out(p, to, ring_payload(record, RING_FRAME, (uint32_t)bytes), bytes);
    duplex_took(p, FRAME_EAGER, bytes, record->credit);
}

/* Take the message, if this is its record, and all of it is here or can be read. IN_PROGRESS: the record was that of a
 * message that its sender has taken back, and which comes again. */
static comm_status take(struct duplex *p, const struct exec_group *g, const comm_op *op,
                        const struct ring_record *record)
{
    const struct frame h = ring_frame(record);
    struct ring_place place = ring_place(record);
    size_t capacity = op->recv.count * op->element_bytes;
    int fits = op->tag == COMM_ANY_TAG ? h.tag >= 0 : h.tag == op->tag;
    if (h.kind != COMM_OP_SEND || h.group != g->id || !fits || h.bytes > capacity)
        return COMM_ERR_UNSUPPORTED;
    if (h.type == FRAME_RTS && place.loan && h.bytes && h.bytes <= LEND_OFFER_BYTES && record->bytes == 0) {
        if (!lend_read_now(p, &h, &place, op->recv.data))
            return COMM_ERR_UNSUPPORTED;
        duplex_took(p, FRAME_RTS, (size_t)h.bytes, h.credit);
        return COMM_OK;
    }
    if (h.type == FRAME_EAGER && !h.round && h.bytes && place.loan && record->bytes == 0) {
        int is_read = duplex_claim_lent(p, &h, record, &place) &&
                      duplex_read_claimed(p, &h, &place, h.credit, op->recv.data);
        return is_read ? COMM_OK : p->port.state == PORT_UP ? COMM_IN_PROGRESS : COMM_ERR_UNSUPPORTED;
    }
    if (h.type != FRAME_EAGER || h.round || h.bytes > p->in.short_bytes || record->bytes != h.bytes)
        return COMM_ERR_UNSUPPORTED;
    take_short(p, record, (size_t)h.bytes, op->recv.data);
    return COMM_OK;
}

/* What is in front is not as the receive expects it. IN_PROGRESS: that was credit, or what was taken back, and there is
 * time to look again; a peer could send nothing else. A function of its own, as yield_and_look. */
__attribute__((noinline)) static comm_status take_other(struct fabric *f, struct duplex *p, const struct exec_group *g,
                                                        const comm_op *op, const struct ring_record *record,
                                                        unsigned turn, int64_t spin_ns, int64_t *until_ns)
{
    comm_status status = COMM_IN_PROGRESS;
    if (!duplex_passes_credit(p))
        status = p->port.state == PORT_UP ? take(p, g, op, record) : COMM_ERR_UNSUPPORTED;
    return status != COMM_IN_PROGRESS || look_again(f, p, turn, spin_ns, until_ns) ? status : COMM_ERR_UNSUPPORTED;
}

/* Most messages are as long as the receive. The record of a short one is known by its key, without its second line. */
static comm_status receive_now(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    if (op->root == COMM_ANY_SOURCE || g->recvs.head || g->p2p_boxes[op->root].unexpected.head)
        return COMM_ERR_UNSUPPORTED;
    struct duplex *p = duplex_of(group_port(g, op->root));
    const size_t bytes = op->recv.count * op->element_bytes;
    const uint64_t key = key_of(g, op->tag, bytes);
    const int has_key = bytes <= p->in.short_bytes && op->tag != COMM_ANY_TAG;
    const struct ring_record *record;
    int64_t until_ns = 0;
    if (p->port.state != PORT_UP || p->port.in.type)
        return COMM_ERR_UNSUPPORTED;
    exec_host->run_waits();
    for (unsigned turn = 1;; turn++) {
        enum ring_found what = ring_look(&p->in, &record);
        if (what == RING_FRAME) {
            comm_status status = COMM_OK;
            if (has_key && record->key == key && record->bytes == bytes)
                take_short(p, record, bytes, op->recv.data);
            else
                status = take_other(f, p, g, op, record, turn, spin_ns, &until_ns);
            if (UNLIKELY(status == COMM_IN_PROGRESS))
                continue;
            fabric_found(f, turn, until_ns);
            return status;
        }
        if (what == RING_MORE || (!look_again(f, p, turn, spin_ns, &until_ns) && !fabric_waits_on(f, until_ns)))
            return COMM_ERR_UNSUPPORTED;
    }
}

ON_EACH_CALL comm_status message_run(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    if (g->status != COMM_OK || op->root == g->rank)
        return COMM_ERR_UNSUPPORTED;
    events_awake(f);
    fabric_runs(f);
    return op->kind == COMM_OP_SEND ? send_now(f, g, op, spin_ns) : receive_now(f, g, op, spin_ns);
}

/* Sends and receives at once. A short send for which there is space goes to the ring; a longer one is offered, and read
 * soon, or left to the engine. A receive takes a message that is in front of its sender's ring, or comes there soon.
 * All else is the engine's: receives from any source, and whatever is behind others. */
#include "message.h"

#include <string.h>

#include "duplex.h"
#include "events.h"
#include "fabric.h"
#include "small.h"

static void put_eager(struct duplex *p, struct frame *h, const void *payload)
{
    h->type = FRAME_EAGER;
    port_spend(&p->port, (size_t)h->bytes);
    port_take_owed(&p->port, h);
    ring_put_frame(&p->out, ring_key(h), h, payload, (uint32_t)h->bytes);
    duplex_ring_bell(p);
}

/* Wait until the peer has read it. A short message, for which there is space in the ring, goes that way after all. */
static comm_status wait_until_read(struct fabric *f, struct duplex *p, struct tx *tx, struct frame *h,
                                   const void *payload, int64_t spin_ns)
{
    int64_t until_ns = 0;
    spin_ns += (int64_t)h->bytes / SMALL_BYTES_PER_NS;
    for (unsigned turn = 1; !duplex_is_read(p, tx); turn++)
        if (!fabric_look_again(f, turn, spin_ns, &until_ns)) {
            if (!duplex_withdraw(p, tx))
                return COMM_IN_PROGRESS;
            h->flags = FRAME_INSTEAD;
            put_eager(p, h, payload);
            return COMM_OK;
        }
    waiting_paid(f->looks.waiting);
    duplex_end_offer(p, tx);
    return COMM_OK;
}

/* Can it go through the ring at once, behind an RTS? */
static int is_short(struct duplex *p, size_t bytes)
{
    uint64_t lines = ring_frame_lines(0) + ring_frame_lines((uint32_t)bytes);
    return bytes <= SMALL_BYTES && bytes <= (size_t)p->port.table->matching->eager_bytes &&
           port_has_credit(&p->port, bytes) && ring_free(&p->out, lines) >= (int64_t)lines;
}

static comm_status send_now(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    struct port *port = group_port(g, op->root);
    struct duplex *p = duplex_of(port);
    size_t bytes = op->send.count * op->element_bytes;
    if (port->state != PORT_UP || port->held.head || p->tx_head || p->bye_sent)
        return COMM_ERR_UNSUPPORTED;
    struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_SEND, .dtype = (uint8_t)op->dtype, .group = g->id,
                       .seq = g->sends_begun + 1, .tag = op->tag, .count = op->send.count, .bytes = bytes };
    int goes_eagerly = is_short(p, bytes), answers = p->received_last;
    const struct loan loan = { .payload = op->send.data, .bytes = bytes, .may_be_withdrawn = (uint8_t)goes_eagerly };
    struct tx *tx = NULL;
    p->received_last = 0;
    if (bytes <= SMALL_OFFER_BYTES && (!goes_eagerly || (answers && bytes > SMALL_AWAITED_BYTES)))
        tx = duplex_draft_offer(p, &h, &loan);
    if (!tx && !goes_eagerly)
        return COMM_ERR_UNSUPPORTED;
    g->sends_begun++;
    if (!tx) {
        put_eager(p, &h, op->send.data);
        return COMM_OK;
    }
    duplex_make_offer(p, &h, tx, g);
    duplex_ring_bell(p);
    return wait_until_read(f, p, tx, &h, op->send.data, spin_ns);
}

/* Take the message, if this is its record, and all of it is here or can be read. */
static comm_status take(struct duplex *p, const struct exec_group *g, const comm_op *op,
                        const struct ring_record *record)
{
    const struct frame h = ring_frame(record);
    const struct ring_place place = ring_place(record);
    size_t capacity = op->recv.count * op->element_bytes;
    int fits = op->tag == COMM_ANY_TAG ? h.tag >= 0 : h.tag == op->tag;
    if (h.kind != COMM_OP_SEND || h.group != g->id || !fits || h.bytes > capacity)
        return COMM_ERR_UNSUPPORTED;
    if (h.type == FRAME_RTS && place.loan && h.bytes && h.bytes <= SMALL_OFFER_BYTES && record->bytes == 0) {
        if (!lend_read_now(p, &h, &place, op->recv.data))
            return COMM_ERR_UNSUPPORTED;
        duplex_took(p, &h, ring_frame_lines(0));
        return COMM_OK;
    }
    if (h.type != FRAME_EAGER || h.bytes > SMALL_BYTES || record->bytes != h.bytes)
        return COMM_ERR_UNSUPPORTED;
    if (h.bytes)
        memcpy(op->recv.data, ring_payload(record, RING_FRAME, (uint32_t)h.bytes), (size_t)h.bytes);
    duplex_took(p, &h, ring_frame_lines((uint32_t)h.bytes));
    return COMM_OK;
}

static comm_status receive_now(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    if (op->root == COMM_ANY_SOURCE || g->recvs.head || g->p2p_boxes[op->root].unexpected.head)
        return COMM_ERR_UNSUPPORTED;
    struct duplex *p = duplex_of(group_port(g, op->root));
    const struct ring_record *record;
    int64_t until_ns = 0;
    if (p->port.state != PORT_UP || p->port.in.type)
        return COMM_ERR_UNSUPPORTED;
    events_awake(f);
    for (unsigned turn = 1;; turn++) {
        enum ring_found what = ring_look(&p->in, &record);
        if (what == RING_FRAME) {
            comm_status status = take(p, g, op, record);
            waiting_paid(f->looks.waiting);
            p->received_last = status == COMM_OK;
            return status;
        }
        if (what == RING_MORE || !fabric_look_again(f, turn, spin_ns, &until_ns))
            return COMM_ERR_UNSUPPORTED;
    }
}

comm_status message_run(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    if (g->status != COMM_OK || op->root == g->rank)
        return COMM_ERR_UNSUPPORTED;
    fabric_runs(f);
    return op->kind == COMM_OP_SEND ? send_now(f, g, op, spin_ns) : receive_now(f, g, op, spin_ns);
}

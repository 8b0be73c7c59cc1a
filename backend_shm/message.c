/* Sends and receives at once. A short send for which there is space goes to the ring; a longer one is offered, and read
 * soon, or left to the engine. A receive takes a message that is in front of its sender's ring, or comes there soon.
 * All else is the engine's: receives from any source, and whatever is behind others. */
#include "message.h"

#include <string.h>

#include "duplex.h"
#include "events.h"
#include "fabric.h"
#include "small.h"

static struct frame header(const struct exec_group *g, const comm_op *op, uint8_t type, size_t bytes)
{
    return (struct frame){ .type = type, .kind = COMM_OP_SEND, .dtype = (uint8_t)op->dtype, .group = g->id,
                           .seq = g->sends_begun + 1, .tag = op->tag, .count = op->send.count, .bytes = bytes };
}

/* Offer it, and wait until it is read. */
static comm_status offer_now(struct fabric *f, struct exec_group *g, const comm_op *op, size_t bytes, int64_t spin_ns)
{
    struct duplex *p = duplex_of(group_port(g, op->root));
    struct frame h = header(g, op, FRAME_RTS, bytes);
    struct tx *tx = bytes <= SMALL_OFFER_BYTES
                        ? duplex_draft_offer(p, &h, &(struct loan){ .payload = op->send.data, .bytes = bytes })
                        : NULL;
    int64_t until_ns = 0;
    if (!tx)
        return COMM_ERR_UNSUPPORTED;
    g->sends_begun++;
    duplex_make_offer(p, &h, tx, g);
    duplex_ring_bell(p);
    for (unsigned turn = 1; !duplex_is_read(p, tx); turn++)
        if (!fabric_look_again(f, turn, spin_ns + (int64_t)bytes / SMALL_BYTES_PER_NS, &until_ns))
            return COMM_IN_PROGRESS;
    waiting_paid(f->looks.waiting);
    duplex_end_offer(p, tx);
    return COMM_OK;
}

static void put_eager(struct duplex *p, struct frame *h, const void *payload)
{
    port_spend(&p->port, (size_t)h->bytes);
    port_take_owed(&p->port, h);
    ring_put_frame(&p->out, ring_key(h), h, payload, (uint32_t)h->bytes);
    duplex_ring_bell(p);
}

static comm_status send_now(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    struct port *port = group_port(g, op->root);
    struct duplex *p = duplex_of(port);
    size_t bytes = op->send.count * op->element_bytes;
    if (port->state != PORT_UP || port->held.head || p->tx_head || p->bye_sent)
        return COMM_ERR_UNSUPPORTED;
    if (bytes > (size_t)port->table->matching->eager_bytes)
        return offer_now(f, g, op, bytes, spin_ns);
    if (bytes > SMALL_BYTES || !port_has_credit(port, bytes))
        return COMM_ERR_UNSUPPORTED;
    uint64_t lines = ring_frame_lines((uint32_t)bytes);
    if (ring_free(&p->out, lines) < (int64_t)lines)
        return COMM_ERR_UNSUPPORTED;
    struct frame h = header(g, op, FRAME_EAGER, bytes);
    g->sends_begun++;
    put_eager(p, &h, op->send.data);
    return COMM_OK;
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
            waiting_paid(f->looks.waiting);
            return take(p, g, op, record);
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

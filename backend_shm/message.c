/* Short sends and receives at once. A send for which there is space goes to the ring; a receive takes a message that is
 * in front of its sender's ring, or comes there soon. All else is the engine's: long messages, receives from any
 * source, and whatever is behind others. */
#include "message.h"

#include <string.h>

#include "duplex.h"
#include "events.h"
#include "fabric.h"

enum { MESSAGE_BYTES = 16 << 10 };

static comm_status send_now(struct exec_group *g, const comm_op *op)
{
    struct port *port = group_port(g, op->root);
    struct duplex *p = duplex_of(port);
    size_t bytes = op->send.count * op->element_bytes;
    if (port->state != PORT_UP || port->held.head || p->tx_head || p->said_goodbye || bytes > MESSAGE_BYTES ||
        bytes > (size_t)port->table->matching->eager_bytes || !port_has_credit(port, bytes))
        return COMM_ERR_UNSUPPORTED;
    uint64_t lines = ring_frame_lines((uint32_t)bytes);
    if (ring_free(&p->out, lines) < (int64_t)lines)
        return COMM_ERR_UNSUPPORTED;
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .dtype = (uint8_t)op->dtype, .group = g->id,
                       .seq = ++g->sends_begun, .tag = op->tag, .count = op->send.count, .bytes = bytes };
    port_spend(port, bytes);
    port_take_owed(port, &h);
    ring_put_frame(&p->out, ring_key(&h), &h, op->send.data, (uint32_t)bytes);
    duplex_ring_bell(p);
    return COMM_OK;
}

/* Take the record if it is for this receive, and all of it is here. */
static comm_status take(struct duplex *p, const struct exec_group *g, const comm_op *op,
                        const struct ring_record *record)
{
    const struct frame h = ring_frame(record);
    size_t capacity = op->recv.count * op->element_bytes;
    int fits = op->tag == COMM_ANY_TAG ? h.tag >= 0 : h.tag == op->tag;
    if (h.type != FRAME_EAGER || h.kind != COMM_OP_SEND || h.group != g->id || !fits || h.bytes > capacity ||
        h.bytes > MESSAGE_BYTES || record->bytes != h.bytes)
        return COMM_ERR_UNSUPPORTED;
    if (h.bytes)
        memcpy(op->recv.data, ring_payload(record, RING_FRAME, (uint32_t)h.bytes), (size_t)h.bytes);
    duplex_took(p, &h);
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
    return op->kind == COMM_OP_SEND ? send_now(g, op) : receive_now(f, g, op, spin_ns);
}

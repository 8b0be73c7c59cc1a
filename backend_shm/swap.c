/* Two ranks that sum half of a vector each, where results are written back (write_back.h): one offer goes each way, and
 * nothing else. The engine does the same, but through its lists, looks at all else meanwhile, and is told by the
 * driver, which takes it 0.5 to 1 us longer: with registered memory an all_reduce of 32 KiB 1.8 us, and 1.3 so.
 *
 * The offers are the engine's. It goes on from wherever this ends: with the offers, if the peer's has not come or the
 * own one is not taken in time; with the second round, if a result could not be written. */
#include "swap.h"

#include "base/likely.h"
#include "duplex.h"
#include "fabric.h"
#include "lend.h"
#include "match.h"
#include "operands.h"
#include "queue.h"
#include "say.h"

/* ---- Learning ---- */

/* The first round: one message each way, whose results may be written back. AVG divides what comes of it. */
static int is_swap(const struct exec_op *op)
{
    const struct plan *p = op->plan;
    return p->size == 2 && !p->widens && p->step_count >= 2 && op->op.redop != COMM_REDOP_AVG &&
           p->steps[0].kind == PLAN_STEP_SEND && p->steps[1].kind == PLAN_STEP_RECV_REDUCE &&
           p->steps[0].write_back == PLAN_MAY_WRITE_BACK && p->steps[1].write_back == PLAN_MAY_WRITE_BACK &&
           p->steps[0].source.buffer == PLAN_SEND && p->steps[1].source.buffer == PLAN_SEND &&
           p->steps[0].dst.buffer == PLAN_RECV && p->steps[1].dst.buffer == PLAN_RECV;
}

static size_t place_in(const struct exec_op *op, const uint8_t *base, const struct plan_region *region,
                       size_t *ret_bytes)
{
    size_t count;
    const uint8_t *at = operand_region(op, &op->slots[0], region, &count);
    *ret_bytes = count * op->element_bytes;
    return (size_t)(at - base);
}

int swap_learn(struct swap *s, const struct exec_op *op)
{
    if (!is_swap(op))
        return 0;
    const struct plan_step *send = &op->plan->steps[0], *sum = &op->plan->steps[1];
    const uint8_t *in = op->in.data, *out = op->op.recv.data;
    size_t unused;
    *s = (struct swap){ .peer = (struct duplex *)group_port(op->group, send->peer), .element_bytes = op->element_bytes,
                        .is_lower = sum->source_is_lower, .kernel = op->kernel, .to_two = op->to_two };
    s->send_from = place_in(op, in, &send->source, &s->send_bytes);
    s->back_to = place_in(op, out, &send->dst, &unused);
    s->sum_from = place_in(op, in, &sum->source, &s->sum_bytes);
    s->sum_to = place_in(op, out, &sum->dst, &unused);
    size_t least = (size_t)op->group->domain->matching.write_back_bytes; /* of what the engine does not send */
    return least && s->send_bytes >= least && s->sum_bytes >= least && s->send_bytes <= LEND_OFFERS_BYTES &&
           s->sum_bytes <= LEND_OFFERS_BYTES; /* the lock is kept for as long as it takes */
}

/* ---- A call ---- */

/* The peer's offer, which nothing is in front of; NULL if that takes too long. */
static const struct ring_record *await_offer(const struct swap *s, struct fabric *f, const struct frame *h,
                                             int64_t spin_ns)
{
    const uint64_t key = ring_key(h);
    int64_t until_ns = 0;
    for (unsigned turn = 1;; turn++) {
        const struct ring_record *record;
        enum ring_found what = ring_look(&s->peer->in, &record);
        if (LIKELY(what == RING_FRAME && record->key == key && record->bytes == 0)) {
            fabric_found(f, turn, turn > 1 ? until_ns : 0);
            return record;
        }
        if (what != RING_NOTHING && !duplex_passes_credit(s->peer))
            return NULL;
        if (!fabric_look_again(f, turn, FABRIC_LOOKS_ONCE, spin_ns, &until_ns) && !fabric_waits_on(f, until_ns))
            return NULL;
    }
}

static int sum_offer(const struct swap *s, const struct frame *h, const struct ring_record *record, const uint8_t *send,
                     uint8_t *recv, int *ret_written)
{
    struct sink sink;
    const struct ring_place place = ring_place(record);
    const uint32_t credit = record->credit;
    sink_reset(&sink);
    sink.kind = SINK_REDUCE;
    sink.dst = recv + s->sum_to;
    sink.local = send + s->sum_from;
    sink.local_is_lower = s->is_lower;
    sink.element_bytes = sink.result_bytes = s->element_bytes;
    sink.kernel = s->kernel;
    sink.to_two = s->to_two;
    sink.total = s->sum_bytes;
    if (!place.loan || !lend_reduce_now(s->peer, h, &place, &sink, ret_written))
        return 0;
    duplex_took(s->peer, FRAME_RTS, s->sum_bytes, credit);
    return 1;
}

static int is_taken(const struct swap *s, struct fabric *f, struct tx *tx, int64_t spin_ns)
{
    int64_t until_ns = 0;
    for (unsigned turn = 1; !duplex_is_read(s->peer, tx); turn++)
        if (!fabric_look_again(f, turn, FABRIC_LOOKS_ONCE, spin_ns, &until_ns))
            return 0;
    return 1;
}

comm_status swap_run(const struct swap *s, struct fabric *f, struct exec_group *g, const comm_op *op,
                     const struct frame *head, int64_t spin_ns)
{
    const uint8_t *send = op->send.data ? op->send.data : op->recv.data;
    uint8_t *recv = op->recv.data;
    struct duplex *p = s->peer;
    const struct loan loan = { .payload = send + s->send_from, .bytes = s->send_bytes, .write_back = recv + s->back_to,
                               .must_write_back = 1 };
    const int64_t wait_ns = spin_ns + lend_read_ns(s->sum_bytes);
    struct frame h = *head;
    int written = 0;
    h.type = FRAME_RTS;
    h.seq = op->seq;
    h.bytes = s->send_bytes;
    struct tx *tx = p->port.state == PORT_UP && !p->port.in.type ? duplex_draft_offer(p, &h, &loan) : NULL;
    if (!tx)
        return COMM_ERR_UNSUPPORTED;
    duplex_make_offer(p, &h, tx, g);
    duplex_ring_bell(p);
    exec_host->run_waits();
    queue_runs(g, op);
    h.bytes = s->sum_bytes;
    const struct ring_record *record = await_offer(s, f, &h, wait_ns);
    if (!record || !sum_offer(s, &h, record, send, recv, &written))
        return COMM_IN_PROGRESS;
    g->begun = (struct begun){ .received = 1, .written = written ? SLOT_HAS_WRITTEN : 0 };
    if (!is_taken(s, f, tx, wait_ns))
        return COMM_IN_PROGRESS;
    if (duplex_take_result(p, tx))
        g->begun.written |= SLOT_WAS_WRITTEN;
    duplex_end_offer(p, tx);
    if (g->begun.written != (SLOT_HAS_WRITTEN | SLOT_WAS_WRITTEN)) {
        g->begun.round = 1;
        g->begun.received = 0;
        g->begun.not_sent = 1;
        return COMM_IN_PROGRESS;
    }
    g->begun = (struct begun){ 0 };
    queue_ran(g, op->seq);
    return COMM_OK;
}

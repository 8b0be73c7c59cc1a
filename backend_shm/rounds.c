/* Small collectives of several rounds at once: recursive doubling, trees, a reduce-scatter and an all-gather. The
 * engine would do the same, but plans each message anew, and goes through its lists between two rounds: with 4 ranks
 * an all_reduce of 4 KiB took twice as long so.
 *
 * The plan's steps are kept, once per shape of op, with all that does not change. A call does a round's local steps,
 * writes its records, looks until those of the others are there, takes them all, and goes on to the next round. The
 * records are the engine's. If a round takes too long the engine goes on from there: group.begun says which round that
 * is. Nothing of it has been taken out of the rings then, and the scratch memory is the engine's own. */
#include "rounds.h"

#include <string.h>

#include "base/likely.h"
#include "duplex.h"
#include "fabric.h"
#include "operands.h"
#include "queue.h"
#include "room.h"
#include "say.h"

/* ---- Learning ---- */

static int is_local(const struct plan_step *step)
{
    return step->kind != PLAN_STEP_SEND && step->kind != PLAN_STEP_RECV && step->kind != PLAN_STEP_RECV_REDUCE;
}

/* Where a region lies; 0: farther than a place tells. */
static int learn_place(struct rounds_place *ret, size_t *ret_count, const struct exec_op *op,
                       const struct plan_region *region)
{
    const struct slot *slot = &op->slots[0];
    const uint8_t *const bases[] = { op->in.data, op->op.recv.data, slot->scratch };
    const uint8_t *at = operand_region(op, slot, region, ret_count);
    const uint8_t buffer = region->buffer == PLAN_SUMS ? PLAN_SCRATCH : region->buffer;
    size_t offset = at ? (size_t)(at - bases[buffer]) : 0;
    *ret = (struct rounds_place){ .offset = (uint32_t)offset, .buffer = buffer };
    return offset <= UINT32_MAX;
}

static int learn_message(struct rounds_step *s, const struct exec_op *op, const struct plan_step *step, size_t longest)
{
    struct frame h = op->head;
    s->peer = (struct duplex *)group_port(op->group, step->peer);
    s->rank = step->peer;
    size_t bytes = s->count * operand_message_element_bytes(op, step);
    s->bytes = (uint32_t)bytes;
    h.type = FRAME_EAGER;
    h.round = step->round;
    h.bytes = s->bytes;
    s->key = ring_key_base(&h);
    return bytes <= longest;
}

static int learn_step(struct rounds *r, const struct exec_op *op, const struct plan_step *step, size_t longest)
{
    size_t unused;
    if (r->steps == ROUNDS_STEPS_MAX)
        return 0;
    struct rounds_step *s = &r->step[r->steps++];
    *s = (struct rounds_step){ .kind = step->kind, .source_is_lower = step->source_is_lower };
    int fits = learn_place(&s->source, &unused, op, &step->source);
    if (step->kind == PLAN_STEP_SEND)
        s->count = unused;
    else
        fits = fits && learn_place(&s->dst, &s->count, op, &step->dst);
    fits = fits && learn_place(&s->other, &unused, op, &step->other);
    s->is_wide = (uint8_t)plan_is_wide(op->plan, &step->dst);
    s->converts = step->kind == PLAN_STEP_COPY && s->is_wide != plan_is_wide(op->plan, &step->source);
    s->kernel = operand_kernel(op, step);
    s->copy_bytes = s->count * operand_element_bytes(op, &step->dst);
    return fits && (is_local(step) || learn_message(s, op, step, longest));
}

/* What comes in this round, from `step` on, is what the next round reduces in rank order first: then it is reduced in
 * the rings, with this round, and is never copied to the scratch memory. So the engine cannot do that step once this
 * round is over. Returns the step, or NULL. */
static const struct plan_step *reduces_next(const struct plan *p, const struct plan_step *step)
{
    const struct plan_step *end = p->steps + p->step_count, *next = step;
    while (next < end && next->round == step->round)
        next++;
    if (next == end || next->kind != PLAN_STEP_REDUCE_RANKS || next->other.slot != 0)
        return NULL;
    int receives = 0;
    for (const struct plan_step *s = step; s < next; s++) {
        if (s->kind == PLAN_STEP_RECV_REDUCE)
            return NULL;
        if (s->kind != PLAN_STEP_RECV)
            continue;
        receives++;
        if (s->dst.buffer != PLAN_SCRATCH || s->dst.slot != s->peer * s->dst.count)
            return NULL;
    }
    return receives == p->size - 1 ? next : NULL;
}

static int is_fenced(const struct rounds_part *part, const struct rounds_step *sends)
{
    size_t longest = 0;
    for (int i = 0; i < part->sends; i++)
        longest = sends[i].bytes > longest ? sends[i].bytes : longest;
    return part->sends && duplex_wants_fence(sends[0].peer, part->sends, part->receives > 0, longest);
}

/* The steps of one round, which begin at `step`; `skip` has been done in the round before. */
static int learn_round(struct rounds *r, const struct exec_op *op, const struct plan_step *step, size_t longest,
                       const struct plan_step **skip)
{
    const struct plan *p = op->plan;
    const struct plan_step *end = p->steps + p->step_count, *reduces = reduces_next(p, step), *last = step;
    struct rounds_part *part = &r->part[r->parts++];
    *part = (struct rounds_part){ .round = step->round, .first = (uint8_t)r->steps };
    int fits = 1;
    while (last < end && last->round == step->round)
        last++;
    for (const struct plan_step *s = step; s < last && fits; s++)
        if (is_local(s) && s != *skip)
            fits = ++part->locals && s->kind != PLAN_STEP_REDUCE_RANKS && learn_step(r, op, s, longest);
    for (const struct plan_step *s = step; s < last && fits; s++)
        if (s->kind == PLAN_STEP_SEND)
            fits = ++part->sends <= ROUNDS_MESSAGES_MAX && learn_step(r, op, s, longest);
    for (const struct plan_step *s = step; s < last && fits; s++)
        if (!is_local(s) && s->kind != PLAN_STEP_SEND)
            fits = ++part->receives <= ROUNDS_MESSAGES_MAX && learn_step(r, op, s, longest);
    part->reduces_ranks = reduces != NULL;
    *skip = reduces;
    fits = fits && (!reduces || learn_step(r, op, reduces, longest));
    part->is_fenced = fits && is_fenced(part, &r->step[part->first + part->locals]);
    return fits;
}

/* Do the records fit into the rings? Both of a pair are equally long. A peer whose record is longer than its ring must
 * not have it read: with what comes after the ring. */
static int fit_rings(const struct rounds *r, int *known)
{
    int fits = 1;
    for (int i = 0; i < r->steps; i++) {
        const struct rounds_step *s = &r->step[i];
        if (!s->peer)
            continue;
        *known &= s->peer->port.state == PORT_UP;
        fits &= *known && s->bytes <= s->peer->in.short_bytes;
    }
    return fits;
}

int rounds_learn(struct rounds *r, struct exec_op *op, size_t longest, int *known)
{
    const struct plan *p = op->plan;
    const struct plan_step *skip = NULL;
    int fits = 1;
    r->parts = r->steps = 0;
    r->scratch_bytes = operand_scratch_bytes(op, op->total);
    for (size_t i = 0; i < p->step_count && fits; i++)
        if (i == 0 || p->steps[i].round != p->steps[i - 1].round)
            fits = r->parts < ROUNDS_MAX && learn_round(r, op, &p->steps[i], longest, &skip);
    return fits && p->step_count && fit_rings(r, known);
}

/* ---- A call ---- */

struct rounds_call {
    struct fabric *fabric;
    struct exec_group *group;
    const comm_op *op;
    const struct frame *head;
    int64_t spin_ns, until_ns; /* for how long to wait, in all rounds together */
    uint8_t *bases[3]; /* by enum plan_buffer */
    const struct ring_record *records[ROUNDS_MESSAGES_MAX];
};

static inline uint8_t *at(const struct rounds_call *c, struct rounds_place place)
{
    return c->bases[place.buffer] + place.offset;
}

/* reduce_many of this rank's own and of what has come. */
static void reduce_ranks(const struct rounds_call *c, const struct rounds_step *step, const struct rounds_step *recvs,
                         int count)
{
    const void *sources[ROUNDS_MESSAGES_MAX + 1];
    sources[c->group->rank] = at(c, step->source);
    for (int i = 0; i < count; i++)
        sources[recvs[i].rank] = ring_payload(c->records[i], RING_FRAME, recvs[i].bytes);
    if (step->count)
        exec_host->reduce_many(at(c, step->dst), sources, (size_t)count + 1, step->count, c->op->redop, c->op->dtype);
}

static void copy(const struct rounds_call *c, const struct rounds_step *step, uint8_t *dst, const uint8_t *source)
{
    if (!step->converts) {
        if (dst != source)
            memcpy(dst, source, step->copy_bytes);
    } else if (step->is_wide) {
        exec_host->widen((float *)(void *)dst, source, step->count, c->op->dtype);
    } else {
        exec_host->narrow(dst, (const float *)(const void *)source, step->count, c->op->dtype);
    }
}

static void do_local(const struct rounds_call *c, const struct rounds_step *step)
{
    uint8_t *dst = at(c, step->dst), *source = at(c, step->source);
    if (step->count == 0)
        return;
    switch (step->kind) {
    case PLAN_STEP_COPY:
        copy(c, step, dst, source);
        break;
    case PLAN_STEP_REDUCE:
        step->kernel(dst, source, at(c, step->other), step->count);
        break;
    case PLAN_STEP_AVERAGE:
        if (c->op->redop == COMM_REDOP_AVG)
            exec_host->divide(dst, step->count, step->is_wide ? COMM_DTYPE_F32 : c->op->dtype, c->group->size);
        break;
    default: /* messages, and REDUCE_RANKS of what was copied to the scratch memory: not among local steps here */
        break;
    }
}

/* Room for all that this rank sends in the round. It may be there, but for credit that has not been taken in: in most
 * rounds a rank sends to one peer and reads the ring of another. A rank that awaits nothing waits for room; what else
 * would come of it is an announcement. */
static int has_room(struct rounds_call *c, const struct rounds_part *part, const struct rounds_step *sends)
{
    for (int i = 0; i < part->sends; i++) {
        struct duplex *p = sends[i].peer;
        uint64_t lines = ring_frame_lines(sends[i].bytes);
        if (UNLIKELY(!duplex_is_clear(p)))
            return 0;
        if (LIKELY(room_for(p, sends[i].bytes, lines)))
            continue;
        duplex_read_credit(p);
        if (!part->receives && !room_for(p, sends[i].bytes, lines))
            room_await(c->fabric, p, sends[i].bytes, c->spin_ns, &c->until_ns);
        if (!duplex_is_clear(p) || !room_for(p, sends[i].bytes, lines))
            return 0;
    }
    return 1;
}

static int can_receive(const struct rounds_step *recvs, int count)
{
    for (int i = 0; i < count; i++)
        if (UNLIKELY(recvs[i].peer->port.state != PORT_UP || recvs[i].peer->port.in.type))
            return 0;
    return 1;
}

static void put_record(const struct rounds_call *c, const struct rounds_step *step, uint16_t round)
{
    struct duplex *p = step->peer;
    port_spend(&p->port, step->bytes);
    uint32_t credit = port_take_owed(&p->port);
    struct ring_record *record = ring_begin_frame(&p->out, ring_key_of(step->key, c->op->seq), credit, step->bytes);
    record->frame = *c->head;
    record->frame.type = FRAME_EAGER;
    record->frame.seq = c->op->seq;
    record->frame.bytes = step->bytes;
    record->frame.round = round;
    record->frame.credit = credit;
    ring_end_frame(&p->out, record, at(c, step->source), step->bytes);
}

static void send_all(const struct rounds_call *c, const struct rounds_part *part, const struct rounds_step *sends)
{
    for (int i = 0; i < part->sends; i++)
        put_record(c, &sends[i], part->round);
    if (part->is_fenced)
        ring_fence();
    for (int i = 0; i < part->sends; i++)
        if (part->is_fenced)
            duplex_ring_bell_fenced(sends[i].peer);
        else
            duplex_ring_bell(sends[i].peer);
    if (part->sends == 1)
        duplex_take_next(sends[0].peer, sends[0].bytes, part->receives > 0);
}

/* Wait for all messages of the round; 0 if that takes too long, or something else is in front of one. */
static int are_here(struct rounds_call *c, const struct rounds_step *recvs, int count)
{
    int here = 0;
    for (unsigned turn = 1;; turn++) {
        for (; here < count; here++) {
            const struct rounds_step *step = &recvs[here];
            const struct ring_record *record;
            enum ring_found what = ring_look(&step->peer->in, &record);
            if (what == RING_NOTHING)
                break;
            c->records[here] = record;
            if (LIKELY(what == RING_FRAME && record->key == ring_key_of(step->key, c->op->seq) &&
                       record->bytes == step->bytes))
                continue;
            if (!duplex_passes_credit(step->peer))
                return 0;
            break; /* and look at the clock: a peer could send nothing else */
        }
        if (here == count) {
            fabric_found(c->fabric, turn, turn > 1 ? c->until_ns : 0);
            return 1;
        }
        if (!fabric_look_again(c->fabric, turn, FABRIC_LOOKS_ONCE, c->spin_ns, &c->until_ns) &&
            !fabric_waits_on(c->fabric, c->until_ns))
            return 0;
    }
}

static void take_all(const struct rounds_call *c, const struct rounds_part *part,
                     const struct rounds_step *recvs)
{
    if (part->reduces_ranks)
        reduce_ranks(c, &recvs[part->receives], recvs, part->receives);
    for (int i = 0; i < part->receives; i++) {
        const struct rounds_step *step = &recvs[i];
        const uint8_t *payload = ring_payload(c->records[i], RING_FRAME, step->bytes);
        if (step->kind == PLAN_STEP_RECV && step->bytes && !part->reduces_ranks)
            memcpy(at(c, step->dst), payload, step->bytes);
        else if (step->kind == PLAN_STEP_RECV_REDUCE && step->source_is_lower)
            step->kernel(at(c, step->dst), at(c, step->source), payload, step->count);
        else if (step->kind == PLAN_STEP_RECV_REDUCE)
            step->kernel(at(c, step->dst), payload, at(c, step->source), step->count);
        duplex_took(step->peer, FRAME_EAGER, step->bytes, c->records[i]->credit);
    }
}

/* The round's local steps have been done. */
static comm_status hand_over(struct exec_group *g, const struct rounds_part *part, int has_sent)
{
    g->begun = (struct begun){ .round = part->round, .not_sent = !has_sent, .did_local = 1 };
    return COMM_IN_PROGRESS;
}

static void say_that_it_runs(const struct rounds_call *c)
{
    exec_host->run_waits();
    queue_runs(c->group, c->op);
}

static inline int can_begin(struct rounds_call *c, const struct rounds_part *part, const struct rounds_step *sends)
{
    return LIKELY(can_receive(sends + part->sends, part->receives) && has_room(c, part, sends));
}

comm_status rounds_run(struct rounds *r, struct fabric *f, struct exec_group *g, const comm_op *op,
                       const struct frame *head, int64_t spin_ns)
{
    enum { SPINS = 4 }; /* 16 KiB between 16 ranks take 13 us */
    uint8_t *send = op->send.data ? op->send.data : op->recv.data, *recv = op->recv.data ? op->recv.data : send;
    struct rounds_call c = { .fabric = f, .group = g, .op = op, .head = head, .spin_ns = SPINS * spin_ns,
                             .bases = { send, recv, g->scratch } };
    if (UNLIKELY(g->scratch_bytes < r->scratch_bytes)) /* there was no memory for another op's */
        return COMM_ERR_UNSUPPORTED;
    for (int i = 0; i < r->parts; i++) {
        const struct rounds_part *part = &r->part[i];
        const struct rounds_step *locals = &r->step[part->first], *sends = locals + part->locals,
                                 *recvs = sends + part->sends;
        if (i == 0 && !can_begin(&c, part, sends))
            return COMM_ERR_UNSUPPORTED;
        for (int k = 0; k < part->locals; k++)
            do_local(&c, &locals[k]);
        if (i > 0 && !can_begin(&c, part, sends))
            return hand_over(g, part, 0);
        send_all(&c, part, sends);
        if (i == 0)
            say_that_it_runs(&c);
        if (UNLIKELY(!are_here(&c, recvs, part->receives)))
            return hand_over(g, part, 1);
        take_all(&c, part, recvs);
    }
    queue_ran(g, op->seq);
    return COMM_OK;
}

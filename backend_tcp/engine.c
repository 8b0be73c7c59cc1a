/* Executes plans. An op is cut into slices; up to `lanes` slices are under way at a time, each running the whole plan on
 * its part, so that one slice is reduced while another is on the wire. A slice goes through its plan round by round: local steps first, then all
 * messages of the round at once.
 *
 * A message of up to eager_bytes goes out at once if there is credit. A longer one waits for the receiver's clearance (CTS), which the
 * receiver gives unasked as soon as it reaches that round; so data never waits in anybody's memory, and no link is ever stopped. */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

/* ---- Where a region lies ---- */

static int is_block_op(int32_t kind)
{
    return kind != COMM_OP_BROADCAST && kind != COMM_OP_ALL_REDUCE && kind != COMM_OP_REDUCE;
}

static int has_block_per_rank(int32_t kind, int send_side)
{
    if (kind == COMM_OP_ALL_TO_ALL)
        return 1;
    return send_side ? kind == COMM_OP_SCATTER || kind == COMM_OP_REDUCE_SCATTER
                     : kind == COMM_OP_ALL_GATHER || kind == COMM_OP_GATHER;
}

/* Block `chunk` of one side, as a pointer and its elements. */
static uint8_t *block(const struct tcp_op *op, const comm_buffers *side, int send_side, int32_t chunk, size_t *ret_count)
{
    if (has_block_per_rank(op->op.kind, send_side) && (side->data || side->list || side->counts))
        return comm_op_block(side, op->element_bytes, chunk, ret_count);
    *ret_count = side->count;
    return side->data;
}

/* How long chunk `chunk` of a block op is, whatever buffer it lies in. */
static size_t block_elements(const struct tcp_op *op, int32_t chunk)
{
    size_t count = 0;
    switch (op->op.kind) {
    case COMM_OP_ALL_GATHER:
        block(op, &op->op.recv, 0, chunk, &count);
        return count;
    case COMM_OP_REDUCE_SCATTER:
        block(op, &op->op.send, 1, chunk, &count);
        return count;
    case COMM_OP_GATHER:
        return op->op.send.count;
    case COMM_OP_SCATTER:
        return op->op.recv.count;
    case COMM_OP_ALL_TO_ALL:
        return op->op.send.count;
    default:
        return 0;
    }
}

static size_t largest_chunk(const struct tcp_op *op, size_t slice_elements)
{
    if (!is_block_op(op->op.kind)) {
        size_t begin, end;
        plan_cut(slice_elements, op->group->size, 0, &begin, &end);
        return end - begin;
    }
    size_t most = 0;
    for (int32_t r = 0; r < op->group->size; r++) {
        size_t n = block_elements(op, r);
        if (n > most)
            most = n;
    }
    return most < slice_elements ? most : slice_elements;
}

/* Of this slice: the last one may be shorter, and its slots then lie closer together, without gaps. */
static size_t slot_stride(const struct tcp_op *op, const struct slot *slot)
{
    return largest_chunk(op, slot->end - slot->begin) * op->element_bytes;
}

/* Elements [begin, end) of a block of `count`, cut down to the slice. */
static void cut_slice(const struct slot *slot, size_t count, size_t *ret_begin, size_t *ret_count)
{
    size_t begin = slot->begin < count ? slot->begin : count;
    size_t end = slot->end < count ? slot->end : count;
    *ret_begin = begin;
    *ret_count = end - begin;
}

static uint8_t *region(const struct tcp_op *op, const struct slot *slot, const struct plan_region *r, size_t *ret_count)
{
    int32_t size = op->group->size;
    size_t count = 0;
    if (r->count <= 0) {
        *ret_count = 0;
        return NULL;
    }
    if (!is_block_op(op->op.kind)) {
        size_t begin, end, unused;
        plan_cut(slot->end - slot->begin, size, r->first, &begin, &unused);
        plan_cut(slot->end - slot->begin, size, r->first + r->count - 1, &unused, &end);
        *ret_count = end - begin;
        if (r->buffer == PLAN_SCRATCH)
            return slot->scratch + (size_t)r->slot * slot_stride(op, slot);
        const comm_buffers *side = r->buffer == PLAN_SEND ? &op->in : &op->op.recv;
        return side->data ? (uint8_t *)side->data + (slot->begin + begin) * op->element_bytes : NULL;
    }
    uint8_t *at = NULL;
    size_t total = 0, begin = 0;
    for (int32_t c = r->first; c < r->first + r->count; c++) {
        uint8_t *data = NULL;
        if (r->buffer == PLAN_SCRATCH)
            count = block_elements(op, c);
        else
            data = block(op, r->buffer == PLAN_SEND ? &op->in : &op->op.recv, r->buffer == PLAN_SEND, c, &count);
        size_t n;
        size_t from;
        cut_slice(slot, count, &from, &n);
        if (c == r->first) {
            at = data;
            begin = from;
        }
        total += n;
    }
    *ret_count = total;
    if (r->buffer == PLAN_SCRATCH)
        return slot->scratch + (size_t)r->slot * slot_stride(op, slot);
    return at ? at + begin * op->element_bytes : NULL;
}

/* ---- Local steps ---- */

static void user_reduce(const struct tcp_op *op, void *dst, const void **sources, size_t count)
{
    /* inout[i] = in[i] OP inout[i] with `in` from lower ranks: the running result is always `in`, the next rank's
     * part always `inout`. Every source but this rank's own is scratch, which may be overwritten. */
    const void *running = sources[0];
    for (int32_t r = 1; r < op->group->size; r++) {
        op->op.reduce_fn(running, (void *)sources[r], count, op->op.dtype, op->op.reduce_context);
        running = sources[r];
    }
    if (running != dst)
        memcpy(dst, running, count * op->element_bytes);
}

static void reduce_ranks(struct tcp_op *op, struct slot *slot, const struct plan_step *step)
{
    enum { FEW = 64 };
    int32_t size = op->group->size;
    size_t count, own_count;
    uint8_t *dst = region(op, slot, &step->dst, &count);
    uint8_t *own = region(op, slot, &step->source, &own_count);
    if (count == 0)
        return;
    const void *few[FEW];
    const void **sources = size <= FEW ? few : malloc((size_t)size * sizeof *sources);
    if (!sources) {
        group_fail(op->group, COMM_ERR_NO_MEMORY, "no memory to reduce", 1);
        return;
    }
    size_t stride = slot_stride(op, slot) * (size_t)step->source.count;
    uint8_t *first = slot->scratch + (size_t)step->other.slot * slot_stride(op, slot);
    for (int32_t r = 0; r < size; r++)
        sources[r] = r == op->group->rank ? own : first + (size_t)r * stride;
    if (op->op.redop == COMM_REDOP_USER) {
        uint8_t *mine = first + (size_t)op->group->rank * stride;
        memcpy(mine, own, count * op->element_bytes);
        sources[op->group->rank] = mine;
        user_reduce(op, dst, sources, count);
    } else {
        tcp_host->reduce_many(dst, sources, (size_t)size, count, op->op.redop, op->op.dtype);
    }
    if (sources != few)
        free(sources);
}

static void local_step(struct tcp_op *op, struct slot *slot, const struct plan_step *step)
{
    size_t count, n;
    if (step->kind == PLAN_STEP_REDUCE_RANKS) {
        reduce_ranks(op, slot, step);
        return;
    }
    uint8_t *dst = region(op, slot, &step->dst, &count);
    if (count == 0 || !dst)
        return;
    if (step->kind == PLAN_STEP_COPY) {
        uint8_t *source = region(op, slot, &step->source, &n);
        if (source != dst)
            memmove(dst, source, (n < count ? n : count) * op->element_bytes);
    } else if (step->kind == PLAN_STEP_REDUCE) {
        uint8_t *a = region(op, slot, &step->source, &n);
        uint8_t *b = region(op, slot, &step->other, &n);
        tcp_host->reduce_kernel(op->op.redop, op->op.dtype)(dst, a, b, count);
    } else if (step->kind == PLAN_STEP_AVERAGE && op->op.redop == COMM_AVG) {
        tcp_host->divide(dst, count, op->op.dtype, op->group->size);
    }
}

/* ---- Messages ---- */

static int is_receive(const struct plan_step *step)
{
    return step->kind == PLAN_STEP_RECV || step->kind == PLAN_STEP_RECV_REDUCE;
}

static int is_message(const struct plan_step *step)
{
    return is_receive(step) || step->kind == PLAN_STEP_SEND;
}

static struct link *peer_link(const struct tcp_op *op, const struct plan_step *step)
{
    return &op->group->mesh->links[op->group->world_ranks[step->peer]];
}

static void message_header(struct tcp_op *op, const struct slot *slot, uint8_t type, size_t bytes,
                           struct wire_header *h)
{
    group_header(op, type, h);
    h->slice = slot->slice;
    h->round = slot->round;
    h->bytes = bytes;
}

/* The step is done; returns 1 if that was the round's last. */
static void step_done(struct slot *slot, uint32_t step)
{
    slot->steps[step - slot->first].state = STEP_DONE;
    slot->pending--;
}

static int needs_clearance(const struct tcp_op *op, size_t bytes)
{
    return bytes > (size_t)op->group->mesh->eager_bytes;
}

static void send_now(struct tcp_op *op, struct slot *slot, uint32_t index, uint8_t type)
{
    const struct plan_step *step = &op->plan->steps[index];
    struct link *l = peer_link(op, step);
    size_t count;
    uint8_t *data = region(op, slot, &step->source, &count);
    size_t bytes = count * op->element_bytes;
    struct wire_header h;
    message_header(op, slot, type, bytes, &h);
    slot->steps[index - slot->first].state = STEP_SENDING;
    if (link_send(l, &h, data, bytes, op, (uint32_t)(slot - op->slots), index))
        step_done(slot, index);
}

static void post_send(struct tcp_op *op, struct slot *slot, uint32_t index)
{
    struct tcp_group *g = op->group;
    struct mesh *m = g->mesh;
    const struct plan_step *step = &op->plan->steps[index];
    struct link *l = peer_link(op, step);
    size_t count;
    region(op, slot, &step->source, &count);
    size_t bytes = count * op->element_bytes, cost = bytes + TCP_FRAME_COST;
    mesh_want(m, l->peer);
    if (l->state == LINK_LOST || l->state == LINK_LEFT)
        m->lost_pending = 1;
    struct early *cts = early_find(&g->early[step->peer], WIRE_CTS, op->op.seq, slot->slice, slot->round);
    if (cts) {
        early_drop(m, cts);
        send_now(op, slot, index, WIRE_DATA);
    } else if (!needs_clearance(op, bytes) && l->credit >= (int64_t)cost) {
        l->credit -= (int64_t)cost;
        send_now(op, slot, index, WIRE_EAGER);
    } else {
        struct wire_header h;
        message_header(op, slot, WIRE_RTS, bytes, &h);
        slot->steps[index - slot->first].state = STEP_AWAITS_CTS;
        link_interest(l, +1);
        link_send(l, &h, NULL, 0, NULL, 0, 0);
    }
}

static void clear_to_send(struct tcp_op *op, struct slot *slot, uint32_t index, size_t bytes)
{
    struct step *state = &slot->steps[index - slot->first];
    if (state->cleared)
        return;
    state->cleared = 1;
    struct wire_header h;
    message_header(op, slot, WIRE_CTS, bytes, &h);
    h.bytes = 0;
    link_send(peer_link(op, &op->plan->steps[index]), &h, NULL, 0, NULL, 0, 0);
}

static void fill_sink(struct tcp_op *op, struct slot *slot, uint32_t index, struct sink *s)
{
    const struct plan_step *step = &op->plan->steps[index];
    size_t count, n;
    s->dst = region(op, slot, &step->dst, &count);
    s->dst_bytes = count * op->element_bytes;
    s->kind = SINK_COPY;
    if (step->kind == PLAN_STEP_RECV_REDUCE) {
        s->kind = SINK_REDUCE;
        s->local = region(op, slot, &step->source, &n);
        s->local_is_lower = step->source_is_lower;
        s->element_bytes = op->element_bytes;
        s->kernel = tcp_host->reduce_kernel(op->op.redop, op->op.dtype);
    }
    s->op = op;
    s->slot = (uint32_t)(slot - op->slots);
    s->step = index;
}

void engine_take_early(struct tcp_op *op, uint32_t slot, uint32_t step, const struct early *e)
{
    struct sink s;
    fill_sink(op, &op->slots[slot], step, &s);
    size_t bytes = (size_t)e->header.bytes;
    if (bytes == 0)
        return;
    if (s.kind == SINK_COPY)
        memcpy(s.dst, e->data, bytes);
    else if (s.local_is_lower)
        s.kernel(s.dst, s.local, e->data, bytes / s.element_bytes);
    else
        s.kernel(s.dst, e->data, s.local, bytes / s.element_bytes);
}

/* A length that is not what the step expects: the ranks' counts differ. */
static int lengths_agree(struct tcp_op *op, struct link *l, const struct wire_header *h, size_t bytes)
{
    if (h->bytes == bytes)
        return 1;
    char what[256], text[768];
    group_describe(op->group, &op->op, what, sizeof what);
    snprintf(text, sizeof text,
             "%s: %s sends a block of %llu B where this rank expects %zu B: their counts must be the same", what,
             mesh_peer_text(op->group->mesh, l->peer), (unsigned long long)h->bytes, bytes);
    group_fail(op->group, COMM_ERR_MISMATCH, text, 1);
    return 0;
}

static void post_recv(struct tcp_op *op, struct slot *slot, uint32_t index)
{
    struct tcp_group *g = op->group;
    struct mesh *m = g->mesh;
    const struct plan_step *step = &op->plan->steps[index];
    struct link *l = peer_link(op, step);
    size_t count;
    region(op, slot, &step->dst, &count);
    size_t bytes = count * op->element_bytes;
    slot->steps[index - slot->first].state = STEP_POSTED;
    link_interest(l, +1);
    mesh_want(m, l->peer);
    if (l->state == LINK_LOST || l->state == LINK_LEFT)
        m->lost_pending = 1;
    struct early *e = early_find(&g->early[step->peer], 0, op->op.seq, slot->slice, slot->round);
    if (e && !lengths_agree(op, l, &e->header, bytes))
        return;
    if (e && e->header.type == WIRE_EAGER) {
        if (!e->complete) {
            e->claimed = op;
            e->slot = (uint32_t)(slot - op->slots);
            e->step = index;
            return;
        }
        engine_take_early(op, (uint32_t)(slot - op->slots), index, e);
        early_drop(m, e);
        link_interest(l, -1);
        step_done(slot, index);
        return;
    }
    int asked = e != NULL;
    if (e) {
        early_drop(m, e);
    }
    if (asked || needs_clearance(op, bytes))
        clear_to_send(op, slot, index, bytes);
}

/* ---- Rounds and slices ---- */

/* Begin the next slice in this place; 0 if there is none left. */
static int begin_slice(struct tcp_op *op, struct slot *slot, size_t total)
{
    if (op->slice_next >= op->slice_count)
        return 0;
    slot->active = 1;
    slot->slice = op->slice_next++;
    slot->begin = slot->slice * op->slice_elements;
    slot->end = slot->begin + op->slice_elements;
    if (slot->end > total)
        slot->end = total;
    slot->round = 0;
    slot->first = slot->last = 0;
    slot->pending = 0;
    return 1;
}

static void begin_round(struct tcp_op *op, struct slot *slot)
{
    const struct plan *p = op->plan;
    slot->first = slot->last;
    while (slot->last < p->step_count && p->steps[slot->last].round == slot->round)
        slot->last++;
    for (uint32_t i = slot->first; i < slot->last; i++) {
        slot->steps[i - slot->first] = (struct step){ STEP_TODO, 0 };
        if (is_message(&p->steps[i]))
            slot->pending++;
        else
            local_step(op, slot, &p->steps[i]);
    }
    /* Receives first: their clearances should be under way while we send. */
    for (uint32_t i = slot->first; i < slot->last && op->group->status == COMM_OK; i++)
        if (is_receive(&p->steps[i]))
            post_recv(op, slot, i);
    for (uint32_t i = slot->first; i < slot->last && op->group->status == COMM_OK; i++)
        if (p->steps[i].kind == PLAN_STEP_SEND)
            post_send(op, slot, i);
}

static size_t total_elements(const struct tcp_op *op)
{
    if (!is_block_op(op->op.kind))
        return op->op.kind == COMM_OP_BROADCAST || op->op.send.data ? op->op.send.count : op->op.recv.count;
    size_t most = 0, n = 0;
    for (int32_t r = 0; r < op->group->size; r++) {
        block(op, &op->op.send, 1, r, &n);
        most = n > most ? n : most;
        block(op, &op->op.recv, 0, r, &n);
        most = n > most ? n : most;
    }
    return most;
}

/* Go on as far as possible without waiting. */
static void run(struct tcp_op *op, struct slot *slot)
{
    size_t total = op->slice_elements * op->slice_count;
    while (slot->active && slot->pending == 0 && op->group->status == COMM_OK && !op->dying) {
        if (slot->last == op->plan->step_count) {
            slot->active = 0;
            op->slices_done++;
            if (!begin_slice(op, slot, total < total_elements(op) ? total : total_elements(op)))
                break;
        } else {
            slot->round = op->plan->steps[slot->last].round;
        }
        begin_round(op, slot);
    }
    if (op->slices_done == op->slice_count && !op->dying && op->group->status == COMM_OK)
        group_complete(op, COMM_OK, NULL);
}

void engine_sent(struct tcp_op *op, uint32_t slot_index, uint32_t step)
{
    struct slot *slot = &op->slots[slot_index];
    step_done(slot, step);
    run(op, slot);
}

void engine_received(struct tcp_op *op, uint32_t slot_index, uint32_t step)
{
    struct slot *slot = &op->slots[slot_index];
    link_interest(peer_link(op, &op->plan->steps[step]), -1);
    step_done(slot, step);
    run(op, slot);
}

/* The step of the running op that a message from `l` belongs to; -1 if it is not that far yet (or is past it). */
static int64_t find_step(struct tcp_group *g, struct link *l, const struct wire_header *h, int receive,
                         struct slot **ret_slot)
{
    struct tcp_op *op = g->head;
    if (!op || !op->started || op->op.seq != h->seq)
        return -1;
    for (uint32_t s = 0; s < op->slot_count; s++) {
        struct slot *slot = &op->slots[s];
        if (!slot->active || slot->slice != h->slice || slot->round != h->round)
            continue;
        for (uint32_t i = slot->first; i < slot->last; i++) {
            const struct plan_step *step = &op->plan->steps[i];
            if (step->peer >= 0 && is_message(step) && is_receive(step) == receive && peer_link(op, step) == l) {
                *ret_slot = slot;
                return i;
            }
        }
    }
    return -1;
}

int engine_sink(struct tcp_group *g, struct link *l, const struct wire_header *h, struct sink *ret_sink)
{
    struct slot *slot;
    if (!group_matches(g, l, h, NULL, 0))
        return 1; /* The sink stays at "discard". */
    int64_t index = find_step(g, l, h, 1, &slot);
    if (index < 0)
        return 0;
    struct tcp_op *op = g->head;
    struct step *state = &slot->steps[index - slot->first];
    if (state->state != STEP_POSTED)
        return 0;
    size_t count;
    region(op, slot, &op->plan->steps[index].dst, &count);
    if (!lengths_agree(op, l, h, count * op->element_bytes))
        return 1;
    state->state = STEP_SENDING; /* Bytes are coming; a second message for this step is not ours. */
    fill_sink(op, slot, (uint32_t)index, ret_sink);
    return 1;
}

void engine_rts(struct tcp_group *g, struct link *l, const struct wire_header *h)
{
    struct slot *slot;
    if (!group_matches(g, l, h, NULL, 0))
        return;
    int64_t index = find_step(g, l, h, 1, &slot);
    if (index < 0) {
        if (h->seq > g->ended_seq && !early_add(g->mesh, early_list_of(g, l->peer, h->kind), l->peer, h))
            link_lose(l, COMM_ERR_PROTOCOL, "%s announced too many messages", mesh_peer_text(g->mesh, l->peer));
        return;
    }
    struct tcp_op *op = g->head;
    size_t count;
    region(op, slot, &op->plan->steps[index].dst, &count);
    if (lengths_agree(op, l, h, count * op->element_bytes) && slot->steps[index - slot->first].state == STEP_POSTED)
        clear_to_send(op, slot, (uint32_t)index, count * op->element_bytes);
}

void engine_cts(struct tcp_group *g, struct link *l, const struct wire_header *h)
{
    struct slot *slot;
    if (!group_matches(g, l, h, NULL, 0))
        return;
    int64_t index = find_step(g, l, h, 0, &slot);
    if (index < 0 || slot->steps[index - slot->first].state == STEP_TODO) {
        if (h->seq > g->ended_seq && !early_add(g->mesh, early_list_of(g, l->peer, h->kind), l->peer, h))
            link_lose(l, COMM_ERR_PROTOCOL, "%s cleared too many messages", mesh_peer_text(g->mesh, l->peer));
        return;
    }
    if (slot->steps[index - slot->first].state != STEP_AWAITS_CTS)
        return;
    struct tcp_op *op = g->head;
    link_interest(l, -1);
    send_now(op, slot, (uint32_t)index, WIRE_DATA);
    run(op, slot);
}

int32_t engine_awaits(const struct tcp_op *op)
{
    for (uint32_t s = 0; op->started && s < op->slot_count; s++) {
        const struct slot *slot = &op->slots[s];
        for (uint32_t i = slot->first; slot->active && i < slot->last; i++) {
            uint8_t state = slot->steps[i - slot->first].state;
            if (is_message(&op->plan->steps[i]) && state != STEP_DONE)
                return op->plan->steps[i].peer;
        }
    }
    return -1;
}

int engine_needs(const struct tcp_op *op, int32_t world_rank)
{
    if (!op->started)
        return 0;
    for (uint32_t s = 0; s < op->slot_count; s++) {
        const struct slot *slot = &op->slots[s];
        for (uint32_t i = slot->first; slot->active && i < slot->last; i++) {
            const struct plan_step *step = &op->plan->steps[i];
            if (is_message(step) && op->group->world_ranks[step->peer] == world_rank &&
                slot->steps[i - slot->first].state != STEP_DONE)
                return 1;
        }
    }
    return 0;
}

void engine_restore_interest(struct tcp_group *g)
{
    struct tcp_op *op = g->head;
    for (uint32_t s = 0; op && op->started && s < op->slot_count; s++) {
        const struct slot *slot = &op->slots[s];
        for (uint32_t i = slot->first; slot->active && i < slot->last; i++) {
            const struct plan_step *step = &op->plan->steps[i];
            uint8_t state = slot->steps[i - slot->first].state;
            if (is_message(step) && (is_receive(step) ? state != STEP_DONE && state != STEP_TODO : state == STEP_AWAITS_CTS))
                link_interest(peer_link(op, step), +1);
        }
    }
    for (op = g->recvs; op; op = op->next)
        if (op->op.root != COMM_ANY_SOURCE)
            link_interest(&g->mesh->links[g->world_ranks[op->op.root]], +1);
}

/* ---- Start ---- */

static uint32_t needs_of(const struct tcp_op *op)
{
    const comm_op *o = &op->op;
    uint32_t needs = 0;
    int reduces = o->kind == COMM_OP_ALL_REDUCE || o->kind == COMM_OP_REDUCE || o->kind == COMM_OP_REDUCE_SCATTER;
    int narrow = o->dtype == COMM_DTYPE_F16 || o->dtype == COMM_DTYPE_BF16 || o->dtype == COMM_DTYPE_F8E4M3 ||
                 o->dtype == COMM_DTYPE_F8E5M2;
    int integer = o->dtype <= COMM_DTYPE_BOOL;
    int rounds = o->redop == COMM_SUM || o->redop == COMM_AVG || o->redop == COMM_PRODUCT || o->redop == COMM_PREMUL_SUM;
    if (reduces && ((narrow && rounds) || (integer && o->redop == COMM_AVG) || o->redop == COMM_REDOP_USER ||
                    (o->flags & COMM_OP_FLAG_RANK_ORDER) || op->group->size == 1))
        needs |= ALGO_ONE_ROUNDING; /* with one rank the others only copy: no NaN or BOOL would get its one form */
    if (o->flags & COMM_OP_FLAG_UNEVEN)
        needs |= o->kind == COMM_OP_ALL_GATHER || o->kind == COMM_OP_REDUCE_SCATTER ? ALGO_AGREED : ALGO_UNEVEN;
    return needs;
}

static uint32_t widest_round(const struct plan *p)
{
    uint32_t most = 1, n = 0;
    for (size_t i = 0; i < p->step_count; i++) {
        n = i && p->steps[i].round == p->steps[i - 1].round ? n + 1 : 1;
        most = n > most ? n : most;
    }
    return most;
}

static const struct plan_entry *plan_for(struct tcp_group *g, const struct algo *algo, int32_t root)
{
    for (struct plan_entry *e = g->plans; e; e = e->next)
        if (e->algo == algo && e->root == root)
            return e;
    struct plan_entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->algo = algo;
    e->root = root;
    plan_init(&e->plan, g->rank, g->size, root);
    algo->build(&e->plan);
    if (e->plan.failed) {
        plan_finish(&e->plan);
        free(e);
        return NULL;
    }
    e->widest = widest_round(&e->plan);
    e->next = g->plans;
    g->plans = e;
    return e;
}

/* Memory that is kept from op to op; NULL if there is none. */
static uint8_t *grow(uint8_t **memory, size_t *room, size_t bytes)
{
    if (*room < bytes) {
        free(*memory);
        *room = 0;
        *memory = NULL;
        if (posix_memalign((void **)memory, 4096, bytes) != 0) {
            *memory = NULL;
            return NULL;
        }
        *room = bytes;
    }
    return *memory;
}

/* PREMUL_SUM multiplies this rank's input; an in-place all_to_all must read what it overwrites: both work on a copy. */
static int prepare_input(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    const comm_op *o = &op->op;
    op->in = o->send;
    int in_place_exchange = o->kind == COMM_OP_ALL_TO_ALL && o->send.data && o->send.data == o->recv.data;
    int premul = o->redop == COMM_PREMUL_SUM &&
                 (o->kind == COMM_OP_ALL_REDUCE || o->kind == COMM_OP_REDUCE || o->kind == COMM_OP_REDUCE_SCATTER);
    if (!premul && !in_place_exchange)
        return 1;
    int per_rank = has_block_per_rank(o->kind, 1);
    size_t total = per_rank ? 0 : o->send.count;
    for (int32_t r = 0; per_rank && r < g->size; r++) {
        size_t n;
        comm_op_block(&o->send, op->element_bytes, r, &n);
        total += n;
    }
    uint8_t *copy = grow(&g->prepared, &g->prepared_bytes, total * op->element_bytes + 1);
    if (!copy)
        return 0;
    uint8_t *at = copy;
    for (int32_t r = 0; r < (per_rank ? g->size : 1); r++) {
        size_t n = o->send.count;
        void *from = per_rank ? comm_op_block(&o->send, op->element_bytes, r, &n) : o->send.data;
        if (n && premul)
            tcp_host->premultiply(at, from, n, o->dtype, o->premul);
        else if (n)
            memcpy(at, from, n * op->element_bytes);
        at += n * op->element_bytes;
    }
    op->in = (comm_buffers){ .data = copy, .count = o->send.count, .counts = o->send.counts };
    return 1;
}

static int prepare_slots(struct tcp_op *op, const struct plan_entry *entry)
{
    struct tcp_group *g = op->group;
    size_t scratch = (size_t)entry->plan.scratch_slots * largest_chunk(op, op->slice_elements) * op->element_bytes;
    size_t steps = (size_t)entry->widest * op->slot_count * sizeof(struct step);
    uint8_t *step_memory = (uint8_t *)g->step_pool;
    if (!grow(&step_memory, &g->step_pool_room, steps))
        return 0;
    g->step_pool = (struct step *)step_memory;
    if (scratch && !grow(&g->scratch, &g->scratch_bytes, scratch * op->slot_count))
        return 0;
    for (uint32_t i = 0; i < op->slot_count; i++) {
        op->slots[i].active = 0;
        op->slots[i].steps = g->step_pool + (size_t)i * entry->widest;
        op->slots[i].scratch = scratch ? g->scratch + i * scratch : NULL;
    }
    return 1;
}

static void choose_slices(struct tcp_op *op, size_t total)
{
    struct tcp_group *g = op->group;
    size_t slice_bytes = g->slice_bytes ? (size_t)g->slice_bytes : op->route.slice_bytes;
    int may_slice = !(is_block_op(op->op.kind) && (op->plan->ranged || (op->op.flags & COMM_OP_FLAG_UNEVEN)));
    op->slice_count = 1;
    op->slice_elements = total;
    if (slice_bytes && may_slice && total * op->element_bytes > slice_bytes) {
        op->slice_count = (uint32_t)((total * op->element_bytes + slice_bytes - 1) / slice_bytes);
        op->slice_elements = (total + op->slice_count - 1) / op->slice_count;
        op->slice_count = (uint32_t)((total + op->slice_elements - 1) / op->slice_elements);
    }
    op->slot_count = op->slice_count < g->lanes ? op->slice_count : g->lanes;
}

void engine_start(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    size_t total = total_elements(op);
    size_t bytes = total * op->element_bytes * (is_block_op(op->op.kind) ? (size_t)g->size : 1);
    struct select_query query = { op->op.kind, g->size, bytes, needs_of(op) };
    op->route = select_route(&query, g->overrides);
    const struct plan_entry *entry = op->route.algo ? plan_for(g, op->route.algo, op->op.root) : NULL;
    op->slices_done = op->slice_next = 0;
    if (entry) {
        op->plan = &entry->plan;
        choose_slices(op, total);
    }
    if (!entry || !prepare_slots(op, entry) || !prepare_input(op)) {
        char what[256], text[512];
        group_describe(g, &op->op, what, sizeof what);
        snprintf(text, sizeof text, "%s: %s", what, op->route.algo ? "no memory for its buffers" : "no algorithm fits");
        group_fail(g, COMM_ERR_NO_MEMORY, text, 1);
        return;
    }
    op->started = 1;
    for (uint32_t i = 0; i < op->slot_count && g->status == COMM_OK && !op->dying; i++) {
        struct slot *slot = &op->slots[i];
        if (!begin_slice(op, slot, total))
            break;
        begin_round(op, slot);
        run(op, slot);
    }
}

/* Executes plans. An op is cut into slices; up to `lanes` slices are under way at a time, each running the whole plan on
 * its part, so that one slice is reduced while another is on the wire. A slice goes through its plan round by round: local steps first, then all
 * messages of the round at once.
 *
 * A message of up to eager_bytes goes out at once if there is credit. A longer one waits for the receiver's clearance (CTS), which the
 * receiver gives unasked as soon as it reaches that round; so data never waits in anybody's memory, and no link is ever stopped.
 *
 * Rounds begin in run() and nowhere else, and never one within another: what a round does, it does through link_send, which does not call
 * back, and whatever was sent or has come is told from the driver's loop. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

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
                           struct frame *h)
{
    group_header(op, type, h);
    h->slice = slot->slice;
    h->round = slot->round;
    h->bytes = bytes;
}

/* The step is done; whoever calls goes on with run() when it can. */
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
    uint8_t *data = operand_region(op, slot, &step->source, &count);
    size_t bytes = count * op->element_bytes;
    struct frame h;
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
    operand_region(op, slot, &step->source, &count);
    size_t bytes = count * op->element_bytes, cost = bytes + TCP_FRAME_COST;
    mesh_want(m, l->peer);
    if (l->state == LINK_LOST || l->state == LINK_LEFT)
        m->lost_pending = 1;
    struct early *cts = early_find(&g->early[step->peer], FRAME_CTS, op->op.seq, slot->slice, slot->round);
    if (cts) {
        early_drop(m, cts);
        send_now(op, slot, index, FRAME_DATA);
    } else if (!needs_clearance(op, bytes) && l->credit >= (int64_t)cost) {
        l->credit -= (int64_t)cost;
        send_now(op, slot, index, FRAME_EAGER);
    } else {
        struct frame h;
        message_header(op, slot, FRAME_RTS, bytes, &h);
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
    struct frame h;
    message_header(op, slot, FRAME_CTS, bytes, &h);
    h.bytes = 0;
    link_send(peer_link(op, &op->plan->steps[index]), &h, NULL, 0, NULL, 0, 0);
}

static void fill_sink(struct tcp_op *op, struct slot *slot, uint32_t index, struct sink *s)
{
    const struct plan_step *step = &op->plan->steps[index];
    size_t count, n;
    s->dst = operand_region(op, slot, &step->dst, &count);
    s->dst_bytes = count * op->element_bytes;
    s->kind = SINK_COPY;
    if (step->kind == PLAN_STEP_RECV_REDUCE) {
        s->kind = SINK_REDUCE;
        s->local = operand_region(op, slot, &step->source, &n);
        s->local_is_lower = step->source_is_lower;
        s->element_bytes = op->element_bytes;
        s->kernel = exec_host->reduce_kernel(op->op.redop, op->op.dtype);
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
static int lengths_agree(struct tcp_op *op, struct link *l, const struct frame *h, size_t bytes)
{
    if (h->bytes == bytes)
        return 1;
    group_lengths_differ(op, l, h, bytes);
    return 0;
}

static void post_recv(struct tcp_op *op, struct slot *slot, uint32_t index)
{
    struct tcp_group *g = op->group;
    struct mesh *m = g->mesh;
    const struct plan_step *step = &op->plan->steps[index];
    struct link *l = peer_link(op, step);
    size_t count;
    operand_region(op, slot, &step->dst, &count);
    size_t bytes = count * op->element_bytes;
    slot->steps[index - slot->first].state = STEP_POSTED;
    link_interest(l, +1);
    mesh_want(m, l->peer);
    if (l->state == LINK_LOST || l->state == LINK_LEFT)
        m->lost_pending = 1;
    struct early *e = early_find(&g->early[step->peer], 0, op->op.seq, slot->slice, slot->round);
    if (e && !lengths_agree(op, l, &e->header, bytes))
        return;
    if (e && e->header.type == FRAME_EAGER) {
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

/* Out of line: run() is called for every message and mostly has nothing to begin. */
__attribute__((noinline)) static void begin_round(struct tcp_op *op, struct slot *slot)
{
    const struct plan *p = op->plan;
    slot->first = slot->last;
    while (slot->last < p->step_count && p->steps[slot->last].round == slot->round)
        slot->last++;
    for (uint32_t i = slot->first; i < slot->last; i++) {
        slot->steps[i - slot->first] = (struct step){ STEP_TODO, 0 };
        if (is_message(&p->steps[i]))
            slot->pending++;
        else if (!operand_local_step(op, slot, &p->steps[i]))
            group_fail(op->group, COMM_ERR_NO_MEMORY, "no memory to reduce");
    }
    /* Receives first: their clearances should be under way while we send. */
    for (uint32_t i = slot->first; i < slot->last && op->group->status == COMM_OK; i++)
        if (is_receive(&p->steps[i]))
            post_recv(op, slot, i);
    for (uint32_t i = slot->first; i < slot->last && op->group->status == COMM_OK; i++)
        if (p->steps[i].kind == PLAN_STEP_SEND)
            post_send(op, slot, i);
}

/* Go on as far as possible without waiting. */
static void run(struct tcp_op *op, struct slot *slot)
{
    struct mesh *m = op->group->mesh;
    assert(!m->in_round);
    m->in_round = 1;
    size_t total = op->slice_elements * op->slice_count;
    while (slot->active && slot->pending == 0 && op->group->status == COMM_OK && !op->dying) {
        if (slot->last == op->plan->step_count) {
            slot->active = 0;
            op->slices_done++;
            if (!begin_slice(op, slot, total < operand_total(op) ? total : operand_total(op)))
                break;
        } else {
            slot->round = op->plan->steps[slot->last].round;
        }
        begin_round(op, slot);
    }
    m->in_round = 0;
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
static int64_t find_step(struct tcp_group *g, struct link *l, const struct frame *h, int receive,
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

int engine_sink(struct tcp_group *g, struct link *l, const struct frame *h, struct sink *ret_sink)
{
    struct slot *slot;
    if (!group_matches(g, l, h))
        return 1; /* The sink stays at "discard". */
    int64_t index = find_step(g, l, h, 1, &slot);
    if (index < 0)
        return 0;
    struct tcp_op *op = g->head;
    struct step *state = &slot->steps[index - slot->first];
    if (state->state != STEP_POSTED)
        return 0;
    size_t count;
    operand_region(op, slot, &op->plan->steps[index].dst, &count);
    if (!lengths_agree(op, l, h, count * op->element_bytes))
        return 1;
    state->state = STEP_SENDING; /* Bytes are coming; a second message for this step is not ours. */
    fill_sink(op, slot, (uint32_t)index, ret_sink);
    return 1;
}

void engine_rts(struct tcp_group *g, struct link *l, const struct frame *h)
{
    struct slot *slot;
    if (!group_matches(g, l, h))
        return;
    int64_t index = find_step(g, l, h, 1, &slot);
    if (index < 0) {
        if (h->seq > g->ended_seq && !early_add(g->mesh, early_list_of(g, l->peer, h->kind), l->peer, h))
            link_lose(l, COMM_ERR_PROTOCOL, "announced too many messages");
        return;
    }
    struct tcp_op *op = g->head;
    size_t count;
    operand_region(op, slot, &op->plan->steps[index].dst, &count);
    if (lengths_agree(op, l, h, count * op->element_bytes) && slot->steps[index - slot->first].state == STEP_POSTED)
        clear_to_send(op, slot, (uint32_t)index, count * op->element_bytes);
}

void engine_cts(struct tcp_group *g, struct link *l, const struct frame *h)
{
    struct slot *slot;
    if (!group_matches(g, l, h))
        return;
    int64_t index = find_step(g, l, h, 0, &slot);
    if (index < 0 || slot->steps[index - slot->first].state == STEP_TODO) {
        if (h->seq > g->ended_seq && !early_add(g->mesh, early_list_of(g, l->peer, h->kind), l->peer, h))
            link_lose(l, COMM_ERR_PROTOCOL, "cleared too many messages");
        return;
    }
    if (slot->steps[index - slot->first].state != STEP_AWAITS_CTS)
        return;
    struct tcp_op *op = g->head;
    link_interest(l, -1);
    send_now(op, slot, (uint32_t)index, FRAME_DATA);
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
    for (op = g->recvs.head; op; op = op->next)
        if (op->op.root != COMM_ANY_SOURCE)
            link_interest(&g->mesh->links[g->world_ranks[op->op.root]], +1);
    for (op = g->sends.head; op; op = op->next)
        if (op->p2p_state == STEP_AWAITS_CTS)
            link_interest(&g->mesh->links[g->world_ranks[op->op.root]], +1);
}

/* ---- Start ---- */

void engine_start(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    size_t total = operand_total(op);
    const char *wrong = prepare_op(op, total);
    if (wrong) {
        char what[256], text[512];
        group_describe(g, &op->op, what, sizeof what);
        snprintf(text, sizeof text, "%s: %s", what, wrong);
        group_fail(g, COMM_ERR_NO_MEMORY, text);
        return;
    }
    op->started = 1;
    for (uint32_t i = 0; i < op->slot_count && g->status == COMM_OK && !op->dying; i++) {
        struct slot *slot = &op->slots[i];
        if (!begin_slice(op, slot, total))
            break;
        run(op, slot);
    }
}

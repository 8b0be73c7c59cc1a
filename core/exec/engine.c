/* Executes plans. An op is cut into slices; up to `lanes` slices are under way at a time, each running the whole plan
 * on its part, so that one slice is reduced while another is on the wire. A slice goes through its plan round by
 * round: local steps first, then all messages of the round at once.
 *
 * How a message gets across is the business of match.c; a receiver clears long messages unasked as soon as it reaches
 * their round, so data never waits in memory of the library's, and no port is ever stopped.
 *
 * Rounds begin in run() and nowhere else, and never one within another: what a round does, it does through match_send
 * and match_post, which do not call back, and whatever was sent or has come is told from the driver's loop. */
#include "engine.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "copy.h"
#include "exec_group.h"
#include "operands.h"
#include "prepare.h"
#include "queue.h"
#include "text.h"

static void run(struct exec_op *op, struct slot *slot);

/* ---- Messages ---- */

static int is_receive(const struct plan_step *step)
{
    return step->kind == PLAN_STEP_RECV || step->kind == PLAN_STEP_RECV_REDUCE;
}

static int is_message(const struct plan_step *step)
{
    return is_receive(step) || step->kind == PLAN_STEP_SEND;
}

static void step_done(struct slot *slot)
{
    assert(slot->pending > 0);
    slot->pending--;
}

static void note_written(struct slot *slot, const struct message *m)
{
    if (m->written_back)
        slot->written |= m->write_back ? SLOT_WAS_WRITTEN : SLOT_HAS_WRITTEN;
}

static void on_done(struct message *m)
{
    struct slot *slot = ((struct step *)m)->slot;
    note_written(slot, m);
    step_done(slot);
    run(slot->op, slot);
}

/* Its length is not what the step expects: the ranks' counts differ. */
static void on_wrong_length(struct message *m, const struct frame *h)
{
    const struct exec_op *op = ((struct step *)m)->slot->op;
    struct exec_group *g = op->group;
    char text[768];
    text_lengths(g, group_rank_of(g, m->port), h, &op->call, m->bytes, text, sizeof text);
    group_fail(g, COMM_ERR_MISMATCH, text);
}

static const struct message_user user = { .done = on_done, .wrong_length = on_wrong_length };

/* In a group of two nothing that comes is sent on, so nothing reads it soon. But a result that is written back in place
 * replaces what has been sent just before, and is in the caches. */
static int is_long(const struct exec_op *op, const struct plan_step *step)
{
    int in_place = !op->in.data || op->in.data == op->op.recv.data;
    return step->dst.buffer == PLAN_RECV && op->group->size == 2 && (is_receive(step) || !in_place) &&
           operand_is_long(op);
}

/* All that is to be known of the step's message, once for all that will happen to it. */
static void fill_message(const struct exec_op *op, struct slot *slot, const struct plan_step *step, struct step *state)
{
    struct exec_group *g = op->group;
    struct message *m = &state->message;
    size_t count, unused;
    state->slot = slot;
    *m = (struct message){ .user = &user, .owner = g, .port = group_port(g, step->peer), .box = &g->boxes[step->peer],
                           .head = &op->head,
                           .slice = slot->slice, .round = slot->round };
    m->data = operand_region(op, slot, is_receive(step) ? &step->dst : &step->source, &count);
    m->element_bytes = operand_message_element_bytes(op, step);
    m->bytes = count * m->element_bytes;
    m->may_write_back = step->write_back == PLAN_MAY_WRITE_BACK && op->op.redop != COMM_REDOP_AVG;
    if (m->may_write_back && step->kind == PLAN_STEP_SEND)
        m->write_back = operand_region(op, slot, &step->dst, &unused);
    m->is_long = (uint8_t)is_long(op, step);
    if (step->may_stay && slot->kept) {
        m->kept = &slot->kept[step->peer];
        assert(m->kept->pieces == 0);
    }
    if (step->kind != PLAN_STEP_RECV_REDUCE)
        return;
    m->local = operand_region(op, slot, &step->source, &unused);
    m->local_is_lower = step->source_is_lower;
    m->kernel = operand_kernel(op, step);
    m->to_two = op->to_two;
    m->result_bytes = operand_element_bytes(op, &step->dst);
}

/* Is this the round that the backend's `run` has come to? */
static int is_begun(const struct slot *slot)
{
    return slot->op->op.flags & COMM_OP_FLAG_BEGUN && slot->round == slot->op->begun.round;
}

/* The receive of that index in its round. */
static void post_recv(struct slot *slot, struct message *m, int index)
{
    if (is_begun(slot) && index < slot->op->begun.received) {
        m->state = MESSAGE_DONE;
        step_done(slot);
        return;
    }
    struct unexpected *u = match_find_unexpected(m);
    if (u && u->head.bytes != m->bytes)
        on_wrong_length(m, &u->head);
    else if (match_post(m, u))
        step_done(slot);
}

/* 1 if it is sent. The backend's `run` may have sent or offered all of the round. */
static int send_step(struct slot *slot, struct message *m)
{
    if (!is_begun(slot) || slot->op->begun.not_sent)
        return match_send(m);
    int is_sent = match_adopt(m, 0);
    note_written(slot, m); /* by a peer that has gone since */
    return is_sent;
}

/* ---- Rounds and slices ---- */

/* Begin the next slice in this place; 0 if there is none left. */
static int begin_slice(struct exec_op *op, struct slot *slot)
{
    size_t total = op->slice_elements * op->slice_count;
    if (op->slice_next >= op->slice_count)
        return 0;
    if (total > op->total)
        total = op->total;
    slot->active = 1;
    slot->slice = op->slice_next++;
    slot->begin = slot->slice * op->slice_elements;
    slot->end = slot->begin + op->slice_elements;
    if (slot->end > total)
        slot->end = total;
    slot->stride = operand_stride(op, slot->end - slot->begin);
    slot->round = 0;
    slot->written = 0;
    slot->first = slot->last = 0;
    slot->pending = 0;
    return 1;
}

/* Has what this message would bring been written already? */
static int is_written(const struct slot *slot, const struct plan_step *step)
{
    return step->write_back == PLAN_UNLESS_WRITTEN &&
           slot->written & (is_receive(step) ? SLOT_WAS_WRITTEN : SLOT_HAS_WRITTEN);
}

/* Out of line: run() is called for every message and mostly has nothing to begin. */
__attribute__((noinline)) static void begin_round(struct exec_op *op, struct slot *slot)
{
    const struct plan *p = op->plan;
    const struct exec_group *g = op->group;
    slot->first = slot->last;
    while (slot->last < p->step_count && p->steps[slot->last].round == slot->round)
        slot->last++;
    for (uint32_t i = slot->first; i < slot->last; i++) {
        struct step *state = &slot->steps[i - slot->first];
        if (is_message(&p->steps[i]) && !is_written(slot, &p->steps[i])) {
            fill_message(op, slot, &p->steps[i], state);
            slot->pending++;
            continue;
        }
        state->message.state = MESSAGE_DONE;
        if (g->status == COMM_OK && !is_message(&p->steps[i]) && !(is_begun(slot) && op->begun.did_local))
            operand_local_step(op, slot, &p->steps[i]);
    }
    /* Receives first: their CTS should be under way while we send. */
    int receives = 0;
    for (uint32_t i = slot->first; i < slot->last && g->status == COMM_OK; i++)
        if (is_receive(&p->steps[i]) && !is_written(slot, &p->steps[i]))
            post_recv(slot, &slot->steps[i - slot->first].message, receives++);
    for (uint32_t i = slot->first; i < slot->last && g->status == COMM_OK; i++)
        if (p->steps[i].kind == PLAN_STEP_SEND && !is_written(slot, &p->steps[i]) &&
            send_step(slot, &slot->steps[i - slot->first].message))
            step_done(slot);
}

/* Go on as far as possible without waiting. */
static void run(struct exec_op *op, struct slot *slot)
{
    struct exec_group *g = op->group;
    struct port_table *peers = &g->domain->peers;
    assert(!peers->in_round);
    peers->in_round = 1;
    while (slot->active && slot->pending == 0 && g->status == COMM_OK && !op->retired) {
        if (slot->last == op->plan->step_count) {
            slot->active = 0;
            op->slices_done++;
            if (!begin_slice(op, slot))
                break;
        } else {
            slot->round = op->plan->steps[slot->last].round;
        }
        begin_round(op, slot);
    }
    peers->in_round = 0;
    if (op->slices_done == op->slice_count && !op->retired && g->status == COMM_OK)
        queue_complete(op, COMM_OK, NULL);
}

/* The rounds that the backend's `run` is done with. Such an op has one slice. */
static void skip_done(const struct exec_op *op, struct slot *slot)
{
    const struct plan *p = op->plan;
    while (op->op.flags & COMM_OP_FLAG_BEGUN && slot->last < p->step_count &&
           p->steps[slot->last].round < op->begun.round)
        slot->last++;
}

void engine_start(struct exec_op *op)
{
    struct exec_group *g = op->group;
    const char *wrong = prepare_op(op);
    if (wrong) {
        char what[OP_TEXT_BYTES], text[512];
        queue_describe(g, &op->op, what, sizeof what);
        snprintf(text, sizeof text, "%s: %s", what, wrong);
        group_fail(g, COMM_ERR_NO_MEMORY, text);
        return;
    }
    op->started = 1;
    op->begun = g->begun;
    g->begun = (struct begun){ 0 };
    for (uint32_t i = 0; i < op->slot_count && g->status == COMM_OK && !op->retired; i++) {
        struct slot *slot = &op->slots[i];
        if (!begin_slice(op, slot))
            break;
        skip_done(op, slot);
        slot->written = op->begun.written;
        run(op, slot);
    }
}

/* ---- What is under way ---- */

/* The op's next message that is not done, from that slot and step on; NULL if there is none. *ret_step is its step. */
static struct message *next_open(const struct exec_op *op, uint32_t *slot_index, uint32_t *step_index,
                                 const struct plan_step **ret_step)
{
    for (; op->started && *slot_index < op->slot_count; (*slot_index)++, *step_index = 0) {
        const struct slot *slot = &op->slots[*slot_index];
        while (slot->active && slot->first + *step_index < slot->last) {
            const struct plan_step *step = &op->plan->steps[slot->first + *step_index];
            struct message *m = &slot->steps[(*step_index)++].message;
            if (!is_message(step) || m->state == MESSAGE_DONE)
                continue;
            *ret_step = step;
            return m;
        }
    }
    return NULL;
}

int32_t engine_awaits(const struct exec_op *op)
{
    const struct plan_step *step;
    uint32_t slot = 0, at = 0;
    return next_open(op, &slot, &at, &step) ? step->peer : -1;
}

int engine_needs(const struct exec_op *op, const struct port *p)
{
    const struct plan_step *step;
    uint32_t slot = 0, at = 0;
    struct message *m;
    while ((m = next_open(op, &slot, &at, &step)))
        if (m->port == p)
            return 1;
    return 0;
}

void engine_cancel(struct exec_op *op)
{
    const struct plan_step *step;
    uint32_t slot = 0, at = 0;
    struct message *m;
    while ((m = next_open(op, &slot, &at, &step)))
        match_cancel(m);
}

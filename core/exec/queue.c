#include "queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/likely.h"
#include "base/utf8.h"
#include "say.h"
#include "text.h"

/* ---- Completed works ---- */

comm_status queue_expect(struct domain *d, size_t count)
{
    if (d->done_capacity < d->works_out + count) {
        size_t capacity = 2 * (d->works_out + count) + 64;
        struct completion *grown = realloc(d->done, capacity * sizeof *grown);
        if (!grown)
            return exec_fail(COMM_ERR_NO_MEMORY, "no memory for %zu operations", count);
        d->done = grown;
        d->done_capacity = capacity;
    }
    d->works_out += count;
    return COMM_OK;
}

void queue_expect_not(struct domain *d, size_t count)
{
    assert(d->works_out >= count);
    d->works_out -= count;
}

/* There is room: queue_expect has seen to it, so that a work is completed whatever happens. */
void queue_done(struct domain *d, comm_work *work, comm_status status, const char *text)
{
    assert(d->done_count < d->works_out && d->done_count < d->done_capacity);
    d->done[d->done_count++] = (struct completion){ work, status, text ? strdup(text) : NULL };
}

size_t queue_take_done(struct domain *d, struct completion *ret_done, size_t most)
{
    size_t n = d->done_count < most ? d->done_count : most;
    if (n) {
        memcpy(ret_done, d->done, n * sizeof *ret_done);
        memmove(d->done, d->done + n, (d->done_count - n) * sizeof *ret_done);
    }
    d->done_count -= n;
    assert(d->works_out >= n);
    d->works_out -= n;
    return n;
}

/* ---- Ops ---- */

/* Ranks that have chosen otherwise are in different collectives, even if all messages have the same lengths. */
static struct call call_of(const struct exec_group *g, const comm_op *op)
{
    return (struct call){
        .seq = op->seq,
        .signature = op->signature ^ g->settings_mark,
        .count = op->send.count ? op->send.count : op->recv.count,
        .root = op->root,
        .kind = (uint8_t)op->kind,
        .dtype = (uint8_t)op->dtype,
        .redop = (uint8_t)op->redop,
    };
}

static struct frame head_of(const struct exec_group *g, const struct call *call)
{
    return (struct frame){
        .kind = call->kind,
        .dtype = call->dtype,
        .redop = call->redop,
        .group = g->id,
        .seq = call->seq,
        .signature = call->signature,
        .root = call->root,
        .count = call->count,
    };
}

struct exec_op *queue_op(struct exec_group *g, const comm_op *o, comm_work *work)
{
    struct domain *d = g->domain;
    struct exec_op *op = d->op_pool;
    if (op)
        d->op_pool = op->next;
    else
        op = malloc(sizeof *op);
    if (!op)
        return NULL;
    memset(op, 0, sizeof *op);
    op->group = g;
    op->op = *o;
    op->traits = comm_op_traits_of(o->kind);
    op->call = call_of(g, o);
    op->head = head_of(g, &op->call);
    op->work = work;
    op->element_bytes = o->element_bytes;
    int64_t begun_ns = o->submitted_ns ? o->submitted_ns : clock_now_ns();
    op->deadline_ns = o->timeout_ns > INT64_MAX - begun_ns ? INT64_MAX : begun_ns + o->timeout_ns;
    return op;
}

void queue_put_back(struct domain *d, struct exec_op *op)
{
    op->next = d->op_pool;
    d->op_pool = op;
}

void queue_ready(struct exec_group *g)
{
    if (g->is_ready)
        return;
    g->is_ready = 1;
    g->ready_next = g->domain->ready;
    g->domain->ready = g;
}

void queue_append(struct exec_op *op)
{
    struct exec_group *g = op->group;
    op->begun_tick = g->domain->ticks;
    g->entered_seq = op->call.seq;
    op->next = NULL;
    *g->tail = op;
    g->tail = &op->next;
    if (g->head == op)
        queue_ready(g);
}

void queue_retire(struct exec_op *op)
{
    struct domain *d = op->group->domain;
    op->retired = 1;
    op->next = d->retired;
    d->retired = op;
    if (op->op.flags & COMM_OP_FLAG_WAITING)
        return;
    int before = atomic_fetch_sub(&d->async_works, 1);
    assert(before > 0);
    (void)before;
}

ON_EACH_CALL void queue_runs(struct exec_group *g, const comm_op *op)
{
    g->ended[op->seq % GROUP_ENDED_MAX] = call_of(g, op);
}

static void leave_queue(struct exec_op *op)
{
    struct exec_group *g = op->group;
    assert(g->head == op);
    g->ended_seq = op->call.seq;
    g->ended[op->call.seq % GROUP_ENDED_MAX] = op->call;
    g->head = op->next;
    if (g->head)
        queue_ready(g); /* The next one starts at the end of the turn, not on top of this stack. */
    else
        g->tail = &g->head;
}

void queue_complete(struct exec_op *op, comm_status status, const char *text)
{
    struct exec_group *g = op->group;
    if (op->retired)
        return;
    if (g->asks_for == op)
        g->asks_for = NULL;
    if (op->op.kind == COMM_OP_SEND)
        op_list_remove(&g->sends, op);
    else if (op->op.kind == COMM_OP_RECV)
        op_list_remove(&g->recvs, op);
    else
        leave_queue(op);
    queue_done(g->domain, op->work, status, text);
    queue_retire(op);
}

void op_list_init(struct op_list *list)
{
    list->head = NULL;
    list->tail = &list->head;
}

void op_list_append(struct op_list *list, struct exec_op *op)
{
    op->next = NULL;
    op->at = list->tail;
    *list->tail = op;
    list->tail = &op->next;
}

void op_list_remove(struct op_list *list, struct exec_op *op)
{
    *op->at = op->next;
    if (op->next)
        op->next->at = op->at;
    else
        list->tail = op->at;
}

/* ---- A group fails ---- */

void queue_describe(const struct exec_group *g, const comm_op *op, char *text, size_t capacity)
{
    exec_host->describe(g->token, op, text, capacity);
}

/* Where the text goes on if it speaks of this operation already, though perhaps from another rank; else NULL. `what` is
 * "all_reduce #3 on group 'g' (rank 1 of 4)". */
static const char *after_op(const char *text, const char *what)
{
    const char *rank = strstr(what, " (rank "), *end;
    size_t same = rank ? (size_t)(rank - what) : strlen(what);
    if (strncmp(text, what, same) != 0)
        return NULL;
    end = strstr(text + same, "): ");
    return end ? end + 3 : text + same;
}

void group_say_reason(const struct exec_group *g, const char *what, char *text, size_t capacity)
{
    const char *reason = g->why.text ? g->why.text : "the group has ended, and there was no memory for the reason";
    const char *after = after_op(reason, what);
    *text = '\0';
    if (*what)
        text_add(text, capacity, "%s: ", what);
    if (g->why.reporter != g->rank)
        text_add(text, capacity, "%s reports: ", text_rank(g, g->why.reporter));
    text_add(text, capacity, "%s", *what && after ? after : reason);
    utf8_clean_string(text); /* the user's words are in it too, and it may have been cut within a character */
}

void group_fail_as_reported(struct exec_group *g, const struct reason *why)
{
    char said[FRAME_TEXT_MAX + 256];
    if (g->status != COMM_OK)
        return;
    g->why = *why;
    g->why.text = strdup(why->text);
    if (why->status > COMM_ERR_PEER_LOST || why->status < COMM_ERR_BACKEND)
        g->why.status = COMM_ERR_BACKEND; /* NO_MEMORY would say that the group is still usable. */
    g->status = g->why.status;
    group_say_reason(g, "", said, sizeof said);
    g->error_memory = strdup(said);
    g->error = g->error_memory ? g->error_memory : "the group has ended, and there was no memory for the reason";
    g->asks_for = NULL;
    g->in_failed = 1;
    g->failed_next = g->domain->failed;
    g->domain->failed = g;
}

void group_fail(struct exec_group *g, comm_status status, const char *text)
{
    group_fail_as_reported(g, &(struct reason){ .status = status, .reporter = g->rank, .text = (char *)text });
}

/* ---- Ranks in different collectives ---- */

const struct call *queue_call(const struct exec_group *g, uint64_t seq)
{
    for (const struct exec_op *queued = g->head; queued; queued = queued->next)
        if (queued->call.seq == seq)
            return &queued->call;
    const struct call *past = &g->ended[seq % GROUP_ENDED_MAX];
    return seq == 0 || past->seq != seq ? NULL : past;
}

static void mismatch(struct exec_group *g, const struct port *p, const struct frame *h, const struct call *mine)
{
    char text[FRAME_TEXT_MAX];
    text_mismatch(g, group_rank_of(g, p), h, mine, text, sizeof text);
    group_fail(g, COMM_ERR_MISMATCH, text);
}

int queue_matches_call(struct exec_group *g, const struct port *p, const struct frame *h, const struct call *mine)
{
    if (mine->signature == h->signature)
        return 1;
    mismatch(g, p, h, mine);
    return 0;
}

/* Operations from submission until the device is past them. */
#include <sched.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "nccl.h"

enum { SETTLE_NS = 50000 };

/* ---- Flights ---- */

void flight_append(struct flight_list *list, struct flight *f)
{
    f->next = NULL;
    if (list->first)
        list->last->next = f;
    else
        list->first = f;
    list->last = f;
}

struct flight *flight_remove_first(struct flight_list *list)
{
    struct flight *f = list->first;
    if (f)
        list->first = f->next;
    return f;
}

static int add_chunk(struct communicator *c)
{
    struct group *g = c->group;
    struct flight *chunk = g->chunk_count < CHUNKS_MAX ? calloc(FLIGHTS_PER_CHUNK, sizeof *chunk) : NULL;
    for (uint32_t i = 0; chunk && i < FLIGHTS_PER_CHUNK; i++) {
        struct flight *f = &chunk[i];
        f->index = g->chunk_count * FLIGHTS_PER_CHUNK + i;
        f->at = c;
        f->next = c->free;
        c->free = f;
    }
    if (chunk)
        g->chunks[g->chunk_count++] = chunk;
    return chunk != NULL;
}

static int make_event(struct communicator *c, cuda_event *event)
{
    struct device_scope scope;
    if (device_enter(&scope, c->device) != COMM_OK)
        return 0;
    cuda_status status = cuda.EventCreateWithFlags(event, CUDA_EVENT_DISABLE_TIMING);
    device_leave(&scope);
    if (status != CUDA_OK)
        fail_cuda(status, "cudaEventCreateWithFlags");
    return status == CUDA_OK;
}

/* NULL: host->last_error says why. */
static struct flight *take(struct communicator *c, const comm_op *op, comm_work *work)
{
    if (!c->free && !add_chunk(c)) {
        fail(COMM_ERR_NO_MEMORY, "too many operations are in flight");
        return NULL;
    }
    struct flight *f = c->free;
    if (!f->done && !make_event(c, &f->done))
        return NULL;
    c->free = f->next;
    f->work = work;
    f->made = NCCL_NO_REDOP;
    f->number = 0;
    f->captured = f->issued = f->entered = 0;
    f->of_batch = BATCH_NONE;
    comm_op_copy(&f->op, op);
    f->began_ns = op->submitted_ns ? op->submitted_ns : host->now_ns();
    f->deadline_ns = op->timeout_ns > INT64_MAX - f->began_ns ? INT64_MAX : f->began_ns + op->timeout_ns;
    return f;
}

void flight_give_back(struct flight *f)
{
    f->generation++;
    f->work = NULL;
    f->next = f->at->free;
    f->at->free = f;
}

void flights_free(struct group *g)
{
    for (uint32_t i = 0; i < g->chunk_count; i++) {
        for (uint32_t k = 0; k < FLIGHTS_PER_CHUNK; k++)
            if (g->chunks[i][k].done)
                cuda.EventDestroy(g->chunks[i][k].done);
        free(g->chunks[i]);
    }
}

/* What a work's slot holds: 0; a flight's index and generation, even; or, for an operation in a graph, its stream, odd.
 * A flight is used again when its operation is over, then its generation has changed. */
static void *slot_of_flight(const struct flight *f)
{
    return (void *)(((uintptr_t)f->generation << 32 | (uintptr_t)(f->index + 1) << 1));
}

struct flight *flight_of_work(struct group *g, comm_work *work)
{
    uintptr_t slot = (uintptr_t)*host->work_slot(work);
    uint32_t index = (uint32_t)((slot & 0xffffffffu) >> 1) - 1;
    if (!slot || slot & 1)
        return NULL;
    struct flight *f = &g->chunks[index / FLIGHTS_PER_CHUNK][index % FLIGHTS_PER_CHUNK];
    return f->generation == (uint32_t)(slot >> 32) ? f : NULL;
}

/* ---- Streams ---- */

static comm_status order(struct communicator *c, cuda_stream first, cuda_stream then)
{
    cuda_status status = cuda.EventRecord(c->entry, first);
    if (status != CUDA_OK)
        return fail_cuda(status, "cudaEventRecord");
    status = cuda.StreamWaitEvent(then, c->entry, 0);
    return status == CUDA_OK ? COMM_OK : fail_cuda(status, "cudaStreamWaitEvent");
}

/* The caller's own stream where it can be: with ON_STREAM, and for a caller that waits for the operation anyway. The
 * legacy default stream would hold up the program's other streams meanwhile, scratch memory is ordered by the
 * communicator's stream, and in one stream the messages of a batch would wait for each other. */
static cuda_stream stream_for(const struct communicator *c, const comm_op *op)
{
    size_t bytes;
    if (c->source >= 0 || op_needs_scratch(op, c->size, &bytes))
        return c->stream;
    if (op->flags & COMM_OP_FLAG_ON_STREAM || (op->flags & COMM_OP_FLAG_WAITING && (uintptr_t)op->stream > 1))
        return op->stream;
    return c->stream;
}

/* `done` marks what the caller's stream has now, unless the operation runs in that stream itself. */
static comm_status enter_of_batch(struct flight *f)
{
    struct device_scope scope;
    f->of_batch = BATCH_ENTERED;
    if (is_to_self(f->at) || stream_for(f->at, &f->op) != f->at->stream)
        return COMM_OK;
    comm_status status = device_enter(&scope, f->at->device);
    if (status != COMM_OK)
        return status;
    cuda_status recorded = cuda.EventRecord(f->done, f->op.stream);
    f->entered = recorded == CUDA_OK;
    device_leave(&scope);
    return f->entered ? COMM_OK : fail_cuda(recorded, "cudaEventRecord");
}

static comm_status enter(struct communicator *c, const struct flight *f)
{
    if (!f->entered)
        return order(c, f->op.stream, c->stream);
    cuda_status status = cuda.StreamWaitEvent(c->stream, f->done, 0);
    return status == CUDA_OK ? COMM_OK : fail_cuda(status, "cudaStreamWaitEvent");
}

/* ---- Streams that several communicators use ---- */

static int is_on(const struct flight *f, const void *stream)
{
    return f->op.flags & COMM_OP_FLAG_ON_STREAM && f->op.stream == stream;
}

/* NCCL launches by a thread of its own: meanwhile the stream must be left alone. */
static int others_launch_on(const struct communicator *c, const void *stream)
{
    for (const struct communicator *other = c->group->communicators; other; other = other->next)
        for (const struct flight *f = other == c ? NULL : other->issuing.first; f; f = f->next)
            if (is_on(f, stream) && f->stream == stream)
                return 1;
    return 0;
}

/* Operations that were submitted earlier are not in the stream yet. */
static int is_preceded(const struct flight *f)
{
    for (const struct communicator *c = f->at->group->communicators; c; c = c->next)
        for (int i = 0; i < 2; i++)
            for (const struct flight *o = i ? c->queued.first : c->issuing.first; o; o = o->next)
                if (is_on(o, f->op.stream) && o->submission < f->submission)
                    return 1;
    return 0;
}

/* The whole batch at once, when none of it is preceded, so that its operations are not ordered among each other. */
static int batch_enters(struct flight *first)
{
    struct group *g = first->at->group;
    struct flight *f = first;
    comm_status status = COMM_OK;
    do
        if (is_preceded(f))
            return 0;
    while ((f = f->mate) != first);
    do
        status = enter_of_batch(f);
    while (status == COMM_OK && (f = f->mate) != first);
    if (status != COMM_OK)
        group_end_failed(g, status);
    return 1;
}

/* Operations in one stream keep the order in which they were submitted. */
int flights_must_wait(struct flight *first)
{
    if (first->of_batch == BATCH_NONE)
        return is_preceded(first);
    return first->of_batch == BATCH_TO_ENTER && !batch_enters(first);
}

/* ---- To NCCL ---- */

/* What NCCL chooses its connections by, other than the call itself: then it makes none any more, and waits for no other
 * rank. 0: not known. */
static uint64_t likeness(const struct communicator *c, const struct flight *first)
{
    const comm_op *op = &first->op;
    uint64_t sides[2] = { op->send.count, op->recv.count }, number = 1;
    if (c->source >= 0) /* one connection, for all messages; one of nothing does not make it */
        return op->send.count || op->recv.count ? number : number + 1;
    if (first->next || op->flags & COMM_OP_FLAG_UNEVEN || op->send.list || op->recv.list || op->send.counts ||
        op->recv.counts)
        return 0;
    uint64_t what = (uint64_t)op->kind << 48 ^ (uint64_t)op->dtype << 40 ^ (uint64_t)op->redop << 32 ^
                    (uint64_t)(uint32_t)op->root ^ (uint64_t)(op->send.data == op->recv.data) << 60;
    for (int i = 0; i < 2; i++)
        number = (number ^ sides[i] * op->element_bytes) * 0x9e3779b97f4a7c15u;
    number = (number ^ what) * 0x9e3779b97f4a7c15u;
    return (number ^ number >> 29) | 1;
}

/* May it be called in the thread that submits it? With blocking=1 NCCL could wait there for the other ranks, which may
 * wait for what this thread calls next. */
static int calls_here(const struct communicator *c, const struct flight *first)
{
    uint64_t number;
    if (!communicator_can_block(c) || first->captured)
        return 1;
    number = likeness(c, first);
    return number && c->known[number % KNOWN_MAX] == number;
}

/* Nothing of the flight is read after a call that may block: one that outlasts the group's end finds it used again. */
static nccl_status call_nccl(struct communicator *c, struct flight *first)
{
    int is_group = first->next != NULL;
    nccl_status status = is_group ? nccl.GroupStart() : NCCL_OK;
    if (status != NCCL_OK)
        return status;
    for (struct flight *f = first; f && (status == NCCL_OK || status == NCCL_IN_PROGRESS);
         f = is_group ? f->next : NULL) {
        nccl_status one = issue_op(c, f);
        status = one == NCCL_OK ? status : one;
    }
    if (is_group) {
        nccl_status end = nccl.GroupEnd();
        status = status == NCCL_OK || status == NCCL_IN_PROGRESS ? end : status;
    }
    return status;
}

/* A non-blocking communicator launches by a thread of NCCL's own, which takes some microseconds: so much is waited
 * for. */
static nccl_status settle(struct communicator *c)
{
    int64_t until_ns = host->now_ns() + SETTLE_NS;
    nccl_status status = NCCL_IN_PROGRESS;
    do {
        nccl_status asked = nccl.CommGetAsyncError(c->comm, &status);
        if (asked != NCCL_OK)
            return asked;
        if (status == NCCL_IN_PROGRESS)
            sched_yield();
    } while (status == NCCL_IN_PROGRESS && host->now_ns() < until_ns);
    return status;
}

/* Without the lock, so that the group can end meanwhile; then the ender has this thread leave NCCL. */
static nccl_status call_that_blocks(struct communicator *c, struct flight *first)
{
    struct group *g = c->group;
    enum communicator_state before = c->state;
    uint64_t number = likeness(c, first);
    if (before == COMMUNICATOR_READY)
        c->state = COMMUNICATOR_CALLING;
    c->is_called = 1;
    pthread_mutex_unlock(&g->lock);
    nccl_status status = call_nccl(c, first);
    pthread_mutex_lock(&g->lock);
    c->is_called = 0;
    c->state = before;
    if (status == NCCL_OK && number)
        c->known[number % KNOWN_MAX] = number;
    pthread_cond_broadcast(&g->changed);
    return status;
}

static int leaves_for_stream(const struct flight *f)
{
    return f->op.flags & COMM_OP_FLAG_ON_STREAM && f->stream != (cuda_stream)f->op.stream;
}

/* NCCL has the flights of c->issuing. Those that the caller's stream is to wait for stay there while NCCL launches
 * something else on that stream; the communicator's thread comes back for them. */
comm_status flights_issued(struct communicator *c)
{
    struct flight *f, *first = c->issuing.first;
    comm_status status = COMM_OK;
    while (status == COMM_OK && (f = c->issuing.first) &&
           !(leaves_for_stream(f) && others_launch_on(c, f->op.stream))) {
        cuda_status recorded = CUDA_OK;
        if (f->made != NCCL_NO_REDOP)
            nccl.RedOpDestroy(f->made, c->comm);
        if (leaves_for_stream(f))
            status = order(f->at, f->stream, f->op.stream);
        if (!f->captured)
            recorded = cuda.EventRecord(f->done, f->stream);
        if (recorded != CUDA_OK)
            status = fail_cuda(recorded, "cudaEventRecord");
        f->issued = 1;
        flight_remove_first(&c->issuing);
        flight_append(f->captured ? &c->captured : &c->pending, f);
        if (!f->captured && !c->unsaid)
            c->unsaid = f;
    }
    if (c->issuing.first != first)
        pthread_cond_broadcast(&c->group->changed);
    return status;
}

/* Divide scratch memory among the flights of a batch; how much it takes. */
size_t flights_scratch(const struct communicator *c, struct flight *first)
{
    size_t whole = 0, bytes;
    for (struct flight *f = first; f && f->batch == first->batch; f = f->next)
        if (op_needs_scratch(&f->op, c->size, &bytes)) {
            f->scratch_at = whole;
            whole += (bytes + 255) & ~(size_t)255;
        }
    return whole;
}

/* Copies within the rank: a send and a receive wait for each other. */
static comm_status meet_self(struct communicator *c, struct flight *f)
{
    struct group *g = c->group;
    int is_send = f->op.kind == COMM_OP_SEND;
    struct flight *other = flight_remove_first(&g->to_self[!is_send]);
    cuda_status status = cuda.EventRecord(f->done, f->op.stream);
    f->stream = c->stream;
    flight_append(other ? &c->issuing : &g->to_self[is_send], f);
    if (!other)
        return status == CUDA_OK ? COMM_OK : fail_cuda(status, "cudaEventRecord");
    flight_append(&c->issuing, other); /* after a failure the end of the group completes both */
    const comm_op *send = is_send ? &f->op : &other->op, *recv = is_send ? &other->op : &f->op;
    size_t bytes = send->send.count * send->element_bytes;
    status = status == CUDA_OK ? cuda.StreamWaitEvent(c->stream, f->done, 0) : status;
    status = status == CUDA_OK ? cuda.StreamWaitEvent(c->stream, other->done, 0) : status;
    if (bytes > recv->recv.count * recv->element_bytes)
        return fail(COMM_ERR_INVALID, "a message of %zu bytes to this rank itself meets a receive of %zu bytes", bytes,
                    recv->recv.count * recv->element_bytes);
    if (status == CUDA_OK && bytes)
        status = cuda.MemcpyAsync(recv->recv.data, send->send.data, bytes, CUDA_COPY_DEFAULT, c->stream);
    if (status != CUDA_OK)
        return fail_cuda(status, "cudaMemcpyAsync");
    (is_send ? other : f)->op.recv.count = send->send.count;
    if (other->at != c) { /* of another device, where its event is recorded */
        comm_status ordered = order(c, c->stream, other->stream);
        if (ordered != COMM_OK)
            return ordered;
    }
    return flights_issued(c);
}

/* Give the flights of `list`, a batch, to NCCL. The group's lock is held, the device is current. They are in c->pending
 * then; or, with *ret_nccl IN_PROGRESS, in c->issuing until NCCL says that it is ready. */
comm_status flights_issue(struct communicator *c, struct flight_list *list, nccl_status *ret_nccl)
{
    comm_status status = COMM_OK;
    *ret_nccl = NCCL_OK;
    if (is_to_self(c))
        return meet_self(c, flight_remove_first(list));
    for (struct flight *f = list->first; f && status == COMM_OK; f = f->next) {
        f->stream = stream_for(c, &f->op);
        if (f->stream == c->stream)
            status = enter(c, f);
    }
    if (status != COMM_OK)
        return status;
    const comm_op_traits *traits = comm_op_traits_of(list->first->op.kind);
    c->issuing = *list; /* also after a failure: a part of it may be in the stream */
    list->first = NULL;
    *ret_nccl = communicator_can_block(c) ? call_that_blocks(c, c->issuing.first) : call_nccl(c, c->issuing.first);
    if (*ret_nccl == NCCL_IN_PROGRESS)
        *ret_nccl = settle(c);
    if (*ret_nccl != NCCL_OK && *ret_nccl != NCCL_IN_PROGRESS)
        return fail_nccl(c, *ret_nccl, traits->name);
    return *ret_nccl == NCCL_OK ? flights_issued(c) : COMM_OK;
}

/* ---- Submission ---- */

static comm_status check_capture(const comm_op *op, struct communicator *c, int *ret_captured)
{
    unsigned int capture = CUDA_CAPTURE_NONE;
    if (cuda.StreamIsCapturing(op->stream, &capture) != CUDA_OK) {
        cuda.GetLastError(); /* the legacy stream, while another one is captured: it cannot be captured itself */
        capture = CUDA_CAPTURE_NONE;
    }
    *ret_captured = capture != CUDA_CAPTURE_NONE;
    if (capture == CUDA_CAPTURE_NONE)
        return COMM_OK;
    if (!(op->flags & COMM_OP_FLAG_ON_STREAM))
        return fail(COMM_ERR_INVALID, "the stream is being captured into a graph, where nothing can be waited for: "
                    "give COMM_OP_FLAG_ON_STREAM");
    communicator_settle(c); /* an operation that connected it may be over before its thread has left */
    if (c->state != COMMUNICATOR_READY || is_to_self(c))
        return fail(COMM_ERR_INVALID, "the stream is being captured into a graph, and %s: call comm_group_connect, or "
                    "run the operation once, before the capture",
                    is_to_self(c)                 ? "messages to this rank itself cannot be captured"
                    : communicator_makes_child(c) ? "a group is being made of this one (from_parent=1)"
                                                  : "the ranks are not connected yet");
    return COMM_OK;
}

static void pair_of(const struct group *g, const comm_op *op, int *ret_source, int *ret_target)
{
    *ret_source = op->kind == COMM_OP_SEND ? g->info->rank : op->kind == COMM_OP_RECV ? op->root : -1;
    *ret_target = op->kind == COMM_OP_RECV ? g->info->rank : op->kind == COMM_OP_SEND ? op->root : -1;
}

/* A flight for the op, on its communicator, which is made if need be. */
static comm_status prepare(struct group *g, const comm_op *op, comm_work *work, struct flight **ret_flight)
{
    struct communicator *c;
    int device, source, target, captured;
    pair_of(g, op, &source, &target);
    comm_status status = device_of(op->device, &device);
    if (status == COMM_OK)
        status = device_check_reduction(op, g->info->size);
    if (status == COMM_OK && g->check_buffers)
        status = device_check_op(op, device, g->info->size);
    if (status == COMM_OK)
        status = communicator_want(g, device, source, target, &c);
    if (status == COMM_OK)
        status = check_capture(op, c, &captured);
    if (status != COMM_OK)
        return status;
    *ret_flight = take(c, op, work);
    if (!*ret_flight)
        return COMM_ERR_NO_MEMORY;
    (*ret_flight)->captured = (uint8_t)captured;
    return COMM_OK;
}

/* What is given to NCCL as one group: the messages of a pair; but each collective alone, because NCCL changes the order
 * within a group, and other ranks may make the same calls without a batch. With group_batches=1 they do not. */
static struct flight_list next_part(const struct communicator *c, struct flight_list *list)
{
    struct flight_list part = { NULL, NULL };
    do
        flight_append(&part, flight_remove_first(list));
    while (((c->source >= 0 && !is_to_self(c)) || c->group->group_batches) && list->first);
    return part;
}

/* To NCCL if it takes calls now, else into the queue of the communicator's thread. */
static comm_status start_part(struct communicator *c, struct flight_list *part, nccl_status *ret_nccl)
{
    comm_status status = COMM_OK;
    uint32_t batch = ++c->group->batches;
    for (struct flight *f = part->first; f; f = f->next)
        f->batch = batch;
    if (c->state == COMMUNICATOR_READY && !atomic_load(&c->group->ended) && !c->issuing.first && !c->queued.first &&
        calls_here(c, part->first) && flights_scratch(c, part->first) <= c->scratch_bytes &&
        !flights_must_wait(part->first))
        status = flights_issue(c, part, ret_nccl);
    for (struct flight *f; (f = flight_remove_first(part));)
        flight_append(&c->queued, f); /* also after a failure: the end of the group completes them */
    return status;
}

/* The flights of one communicator, in order. */
static comm_status start(struct communicator *c, struct flight_list *list)
{
    struct device_scope scope;
    nccl_status nccl_says;
    comm_status status = device_enter(&scope, c->device);
    if (status != COMM_OK)
        return status;
    while (status == COMM_OK && list->first) {
        struct flight_list part = next_part(c, list);
        status = start_part(c, &part, &nccl_says);
    }
    device_leave(&scope);
    if (status == COMM_OK && (c->issuing.first || c->queued.first) && c->state == COMMUNICATOR_READY &&
        !atomic_load(&c->group->ended))
        status = communicator_start_thread(c);
    return status;
}

/* Take the flights of one communicator out of a batch. */
static struct flight_list of_communicator(struct flight_list *all, const struct communicator *c)
{
    struct flight_list mine = { NULL, NULL }, rest = { NULL, NULL };
    for (struct flight *f; (f = flight_remove_first(all));)
        flight_append(f->at == c ? &mine : &rest, f);
    *all = rest;
    return mine;
}

static comm_status start_all(struct flight_list *all)
{
    comm_status status = COMM_OK;
    struct flight *f;
    while (all->first) {
        struct communicator *c = all->first->at;
        struct flight_list mine = of_communicator(all, c);
        if (status == COMM_OK && !atomic_load(&c->group->ended))
            status = start(c, &mine);
        while ((f = flight_remove_first(&mine))) /* after a failure: the end of the group completes them */
            flight_append(&c->queued, f);
    }
    return status;
}

static void note_last_op(struct group *g, const comm_op *op)
{
    if (!op->seq)
        return;
    g->last_kind = op->kind;
    g->last_seq = op->group_seq;
}

comm_status flights_submit(struct group *g, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct flight_list all = { NULL, NULL };
    struct flight *f;
    comm_status status = COMM_OK;
    for (size_t i = 0; i < count && status == COMM_OK; i++) {
        status = prepare(g, ops[i], works[i], &f);
        if (status == COMM_OK)
            flight_append(&all, f);
    }
    if (status != COMM_OK) {
        while ((f = flight_remove_first(&all)))
            flight_give_back(f);
        return status;
    }
    g->submissions++;
    for (struct flight *each = all.first; each; each = each->next) {
        each->submission = g->submissions;
        each->number = ++each->at->given;
        communicator_hurry(each->at, each->deadline_ns);
        each->of_batch = count > 1 ? BATCH_TO_ENTER : BATCH_NONE;
        each->mate = each->next ? each->next : all.first;
        *host->work_slot(each->work) = each->captured ? (void *)((uintptr_t)each->op.stream | 1) : slot_of_flight(each);
        note_last_op(g, &each->op);
    }
    if (count > 1)
        batch_enters(all.first);
    status = start_all(&all);
    if (status != COMM_OK)
        group_end_failed(g, status); /* the other ranks do it: there is no way back */
    return COMM_OK;
}

/* The group has ended. As long as the reason is not certain, the ender completes what comes. */
comm_status flights_end(struct group *g, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct flight_list all = { NULL, NULL };
    struct flight *f;
    size_t taken = 0;
    if (!g->asks || !g->communicators)
        return group_ended_why(g);
    while (taken < count && (f = take(g->communicators, ops[taken], works[taken]))) {
        flight_append(&all, f);
        taken++;
    }
    while ((f = flight_remove_first(&all)))
        if (taken == count)
            flight_append(&g->communicators->queued, f);
        else
            flight_give_back(f);
    return taken == count ? COMM_OK : group_ended_why(g);
}

/* ---- Works and streams ---- */

comm_status flight_wait_stream(struct group *g, comm_work *work, cuda_stream stream)
{
    uintptr_t slot = (uintptr_t)*host->work_slot(work);
    cuda_status status = CUDA_OK;
    struct flight *f;
    pthread_mutex_lock(&g->lock);
    while ((f = flight_of_work(g, work)) && !atomic_load(&g->ended) && !f->issued)
        pthread_cond_wait(&g->changed, &g->lock);
    if (f && f->issued) {
        status = cuda.StreamWaitEvent(stream, f->done, 0);
    } else if (slot & 1) {
        cuda_event event;
        status = cuda.EventCreateWithFlags(&event, CUDA_EVENT_DISABLE_TIMING);
        if (status == CUDA_OK) {
            status = cuda.EventRecord(event, (cuda_stream)(slot & ~(uintptr_t)1));
            status = status == CUDA_OK ? cuda.StreamWaitEvent(stream, event, 0) : status;
            cuda.EventDestroy(event);
        }
    }
    pthread_mutex_unlock(&g->lock);
    return status == CUDA_OK ? COMM_OK : fail_cuda(status, "cudaStreamWaitEvent");
}

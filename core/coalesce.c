/* Coalescing: a thread's calls on a group are written down in a batch, then submitted in one go. A batch is kept until
 * the one work that stands for it is gone, then reused, so that the same batch again allocates nothing. */
#include "coalesce.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "round_robin.h"
#include "thread.h"

struct batch {
    comm_group *group;  /* where it was begun; the batch keeps its memory and goes back to it */
    struct batch *next; /* of this thread's open ones, or of the group's free ones */
    struct channel *channel; /* NULL until the end in a round-robin group: whose turn it will be is not known before */
    comm_op *ops;
    comm_op **pointers;   /* to the ops, for the submission */
    struct arena *arrays; /* of each op */
    comm_work **works;    /* one for each op, from the submission on */
    size_t count, capacity;
    /* What its end was given for all of it; limit_ns is BATCH_LIMIT if that was nothing. */
    int64_t limit_ns;
    void *stream;
    uint32_t flags;
    char label[NAME_BYTES_MAX + 1];
};

static _Thread_local struct batch *open_batches; /* as many as comm__thread counts */

/* ---- Arrays of an op ---- */

static size_t padded(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

static size_t side_bytes(const comm_buffers *side, size_t size)
{
    size_t bytes = 0;
    if (side->counts)
        bytes += padded(size * sizeof *side->counts);
    if (side->offsets)
        bytes += padded(size * sizeof *side->offsets);
    if (side->list)
        bytes += padded(size * sizeof *side->list);
    return bytes;
}

static int copies_premul(const comm_op *op)
{
    return op->premul && !(op->flags & COMM_OP_FLAG_PREMUL_ON_DEVICE);
}

static size_t arrays_bytes(const comm_op *op, size_t size)
{
    return side_bytes(&op->send, size) + side_bytes(&op->recv, size) +
           (copies_premul(op) ? padded(op->element_bytes) : 0) + (op->label ? padded(strlen(op->label) + 1) : 0);
}

/* Room for all that will be copied, at once: growing moves it. */
static comm_status reserve(struct arena *arena, size_t bytes)
{
    arena->used = 0;
    if (bytes <= arena->bytes)
        return COMM_OK;
    void *memory = realloc(arena->memory, bytes);
    if (!memory)
        return comm__fail(COMM_ERR_NO_MEMORY, "%zu bytes for the arguments of an operation", bytes);
    arena->memory = memory;
    arena->bytes = bytes;
    return COMM_OK;
}

static void *copy(struct arena *arena, const void *data, size_t bytes)
{
    if (!data)
        return NULL;
    void *to = (char *)arena->memory + arena->used;
    memcpy(to, data, bytes);
    arena->used += padded(bytes);
    return to;
}

static void keep_side(comm_buffers *side, size_t size, struct arena *arena)
{
    side->counts = copy(arena, side->counts, size * sizeof *side->counts);
    side->offsets = copy(arena, side->offsets, size * sizeof *side->offsets);
    side->list = copy(arena, side->list, size * sizeof *side->list);
}

comm_status comm__op_keep_arrays(comm_op *op, int32_t size, struct arena *arena)
{
    size_t bytes = arrays_bytes(op, (size_t)size);
    comm_status status = bytes ? reserve(arena, bytes) : COMM_OK;
    if (status != COMM_OK || !bytes)
        return status;
    keep_side(&op->send, (size_t)size, arena);
    keep_side(&op->recv, (size_t)size, arena);
    if (copies_premul(op))
        op->premul = copy(arena, op->premul, op->element_bytes);
    if (op->label)
        op->label = copy(arena, op->label, strlen(op->label) + 1);
    return COMM_OK;
}

/* ---- Writing down ---- */

struct batch *comm__batch_of(const comm_group *group)
{
    struct batch *batch = comm__thread.in.batches ? open_batches : NULL;
    while (batch && batch->group != group)
        batch = batch->next;
    return batch;
}

comm_status comm__batch_refuse(const comm_group *group, const char *call)
{
    return comm__batch_of(group) ? comm__fail(COMM_ERR_INVALID,
                                              "%s on group '%s': this call waits, so it cannot stand between "
                                              "comm_coalesce_begin and end",
                                              call, group->name)
                                 : COMM_OK;
}

comm_status comm_coalesce_begin(comm_group *group)
{
    comm_status status = comm__group_usable(group, "comm_coalesce_begin");
    if (status != COMM_OK)
        return status;
    if (comm__batch_of(group))
        return comm__fail(COMM_ERR_INVALID, "comm_coalesce_begin on group '%s': this thread has an open batch on it "
                          "already", group->name);
    pthread_mutex_lock(&group->batch_lock);
    struct batch *batch = group->free_batches;
    if (batch)
        group->free_batches = batch->next;
    pthread_mutex_unlock(&group->batch_lock);
    if (!batch)
        batch = calloc(1, sizeof *batch);
    if (!batch)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_coalesce_begin on group '%s'", group->name);
    batch->group = group;
    batch->channel = NULL;
    batch->count = 0;
    batch->next = open_batches;
    open_batches = batch;
    comm__thread.in.batches++;
    comm__group_ref(group);
    return COMM_OK;
}

static comm_status make_room(struct batch *batch)
{
    if (batch->count < batch->capacity)
        return COMM_OK;
    size_t capacity = batch->capacity ? batch->capacity * 2 : 8;
    comm_op *ops = realloc(batch->ops, capacity * sizeof *ops);
    if (ops)
        batch->ops = ops;
    comm_op **pointers = ops ? realloc(batch->pointers, capacity * sizeof *pointers) : NULL;
    if (pointers)
        batch->pointers = pointers;
    comm_work **works = pointers ? realloc(batch->works, capacity * sizeof *works) : NULL;
    if (works)
        batch->works = works;
    struct arena *arrays = works ? realloc(batch->arrays, capacity * sizeof *arrays) : NULL;
    if (!arrays)
        return comm__fail(COMM_ERR_NO_MEMORY, "a batch of %zu operations", capacity);
    memset(arrays + batch->capacity, 0, (capacity - batch->capacity) * sizeof *arrays);
    batch->arrays = arrays;
    batch->capacity = capacity;
    return COMM_OK;
}

/* All ops of a batch go to one backend. */
static comm_status same_channel(struct batch *batch, const comm_op *op, struct channel *channel)
{
    if (batch->channel && batch->channel != channel)
        return comm__fail(COMM_ERR_INVALID,
                          "%s on group '%s': a batch goes to one backend, and its first operation went to '%s'; begin "
                          "another batch for the other device",
                          comm__op_name(op->kind), batch->group->name, batch->channel->backend->name);
    batch->channel = channel;
    return COMM_OK;
}

comm_status comm__batch_add(struct batch *batch, const comm_op *op, struct channel *channel)
{
    comm_group *group = batch->group;
    if (group->round_robin && batch->count > 0 && comm__op_is_peer(batch->ops[0].kind) != comm__op_is_peer(op->kind))
        return comm__fail(COMM_ERR_INVALID,
                          "%s on group '%s': a batch of a round-robin group takes collectives or sends and receives, "
                          "not both",
                          comm__op_name(op->kind), group->name);
    comm_status status = make_room(batch);
    if (status != COMM_OK)
        return status;
    comm_op *kept = &batch->ops[batch->count];
    *kept = *op;
    status = comm__op_keep_arrays(kept, group->size, &batch->arrays[batch->count]);
    if (status == COMM_OK)
        status = same_channel(batch, op, channel);
    batch->count += status == COMM_OK;
    return status;
}

static struct batch *take_open(const comm_group *group)
{
    struct batch **link = &open_batches;
    while (*link && (*link)->group != group)
        link = &(*link)->next;
    struct batch *batch = *link;
    if (batch) {
        *link = batch->next;
        assert(comm__thread.in.batches > 0);
        comm__thread.in.batches--;
    }
    return batch;
}

static comm_status fail_none(const comm_group *group, const char *call)
{
    return comm__fail(COMM_ERR_INVALID, "%s: this thread has no open batch on %s%s%s", call,
                      group ? "group '" : "", group ? group->name : "a NULL group", group ? "'" : "");
}

/* ---- Submitting, or not ---- */

/* Nothing of it was submitted, so it has taken nothing either: no number, no turn, no work. */
static void forget(struct batch *batch)
{
    batch->count = 0;
    comm__batch_return(batch);
}

void comm__batch_forget(const comm_group *group)
{
    struct batch *batch = take_open(group);
    if (batch)
        forget(batch);
}

comm_status comm_coalesce_cancel(comm_group *group)
{
    struct batch *batch = group ? take_open(group) : NULL;
    if (!batch)
        return fail_none(group, "comm_coalesce_cancel");
    forget(batch);
    return COMM_OK;
}

/* The work that stands for the batch; from here on the batch belongs to it. */
static comm_work *make_parent(comm_group *target, struct batch *batch)
{
    futex_lock_take(&target->submission);
    comm_work *parent = comm__work_take(target);
    futex_lock_release(&target->submission);
    if (!parent)
        return NULL;
    parent->batch = batch;
    parent->began = ticks_now();
    parent->timeout_ns = batch->limit_ns == BATCH_LIMIT ? INT64_MAX : batch->limit_ns;
    parent->due_ns = DEADLINE_NEVER; /* its operations have their own */
    parent->seq = 0;
    atomic_store_explicit(&parent->unfinished, batch->count, memory_order_relaxed);
    return parent;
}

/* ---- What end gives to the whole batch ---- */

static comm_status check_options(const comm_group *group, const comm_op_options *o)
{
    const char *field = o->flags & ~(uint32_t)COMM_OP_FLAG_ON_STREAM ? "flags (but COMM_OP_FLAG_ON_STREAM)"
                        : o->tag                                     ? "tag"
                        : o->device                                  ? "device"
                        : o->premul                                  ? "premul"
                        : o->reduce_fn                               ? "reduce_fn"
                        : o->reduce_context                          ? "reduce_context"
                        : o->element_bytes                           ? "element_bytes"
                                                                     : NULL;
    if (field)
        return comm__fail(
            COMM_ERR_INVALID,
            "comm_coalesce_end on group '%s': options->%s belongs to the calls of the batch; its end takes "
            "timeout_ms, label, stream and COMM_OP_FLAG_ON_STREAM",
            group->name, field);
    if (o->timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID,
                          "comm_coalesce_end on group '%s': options->timeout_ms is %lld; it is milliseconds, 0 or "
                          "COMM_TIMEOUT_INFINITE",
                          group->name, (long long)o->timeout_ms);
    return o->label ? comm__check_name("comm_coalesce_end", "the label", o->label) : COMM_OK;
}

static comm_status take_options(struct batch *batch, const comm_op_options *given)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_status status = comm__check_struct(given, sizeof *given, "comm_op_options");
    if (status == COMM_OK && given)
        memcpy(&options, given, given->struct_bytes < sizeof options ? given->struct_bytes : sizeof options);
    if (status == COMM_OK)
        status = check_options(batch->group, &options);
    if (status != COMM_OK)
        return status;
    batch->limit_ns = options.timeout_ms ? comm__group_limit_ns(batch->group, options.timeout_ms) : BATCH_LIMIT;
    batch->stream = options.stream;
    batch->flags = options.flags;
    snprintf(batch->label, sizeof batch->label, "%s", options.label ? options.label : "");
    return COMM_OK;
}

static void give_options(const struct batch *batch, comm_op *op)
{
    if (op->timeout_ns == BATCH_LIMIT)
        op->timeout_ns =
            batch->limit_ns == BATCH_LIMIT ? comm__group_limit_ns(batch->group, COMM_TIMEOUT_DEFAULT) : batch->limit_ns;
    else if (batch->limit_ns != BATCH_LIMIT && batch->limit_ns < op->timeout_ns)
        op->timeout_ns = batch->limit_ns;
    if (!op->stream)
        op->stream = batch->stream;
    if (!op->label && *batch->label)
        op->label = batch->label;
    op->flags |= batch->flags;
}

/* What was left to the end: the options of the batch, and the backend if the group that it goes to was not known
 * before. */
static comm_status make_ready(comm_group *target, struct batch *batch, int waits)
{
    comm_status status = COMM_OK;
    int is_changed = target != batch->group || batch->flags || batch->stream;
    for (size_t i = 0; status == COMM_OK && i < batch->count; i++) {
        comm_op *op = &batch->ops[i];
        struct channel *channel = batch->channel;
        give_options(batch, op);
        batch->pointers[i] = op;
        if (waits)
            op->flags |= COMM_OP_FLAG_WAITING;
        if (is_changed)
            status = comm__group_route(target, op, &channel);
        if (status == COMM_OK)
            status = same_channel(batch, op, channel);
    }
    return status;
}

/* Takes the batch. */
static comm_status submit_to(comm_group *target, struct batch *batch, int waits, comm_work **ret_parent)
{
    comm_status status = make_ready(target, batch, waits);
    comm_work *parent = status == COMM_OK ? make_parent(target, batch) : NULL;
    if (status == COMM_OK && !parent)
        status = comm__fail(COMM_ERR_NO_MEMORY, "comm_coalesce_end on group '%s'", target->name);
    if (status != COMM_OK) {
        forget(batch);
        return status;
    }
    if (batch->count == 0)
        comm__work_complete(parent, COMM_OK, NULL);
    else
        status = comm__group_submit(target, batch->channel, batch->pointers, batch->works, batch->count, parent);
    if (status != COMM_OK) {
        batch->count = 0; /* the works are gone */
        comm__work_drop(parent);
        return status;
    }
    *ret_parent = parent;
    return COMM_OK;
}

comm_status comm_coalesce_end(comm_group *group, const comm_op_options *options, comm_work **ret_work)
{
    comm_status status = ret_work ? comm__refuse_in_hook("comm_coalesce_end")
                                  : comm__refuse_in_callback("comm_coalesce_end");
    if (status != COMM_OK)
        return status;
    struct batch *batch = group ? comm__batch_of(group) : NULL;
    if (!batch)
        return fail_none(group, "comm_coalesce_end");
    status = take_options(batch, options);
    if (status != COMM_OK)
        return status;
    take_open(group);
    status = comm__group_usable(group, "comm_coalesce_end");
    if (status != COMM_OK) {
        forget(batch);
        return status;
    }
    size_t count = batch->count;
    int takes_turn = count > 0 && !comm__op_is_peer(batch->ops[0].kind);
    comm_work *parent;
    comm_group *target = comm__turn_begin(group, takes_turn);
    status = submit_to(target, batch, ret_work == NULL, &parent);
    comm__turn_end(group, takes_turn, status == COMM_OK ? count : 0);
    if (status == COMM_OK && ret_work)
        *ret_work = parent;
    else if (status == COMM_OK)
        status = comm__work_finish(parent);
    return status;
}

/* ---- For the work that stands for a batch ---- */

comm_status comm__batch_drive(struct batch *batch, int64_t deadline_ns)
{
    comm_status status = COMM_OK;
    for (size_t i = 0; status == COMM_OK && i < batch->count; i++)
        status = comm__work_drive(batch->works[i], deadline_ns);
    return status;
}

void comm__batch_nudge(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (!work_is_done(batch->works[i])) {
            int32_t done; /* a failure of this one is the parent's to report */
            comm_work_test(batch->works[i], &done);
            return;
        }
}

comm_status comm__batch_wait_stream(comm_work *parent, void *stream)
{
    struct batch *batch = parent->batch;
    comm_status status = COMM_OK;
    for (size_t i = 0; status == COMM_OK && i < batch->count; i++)
        status = comm_work_wait_stream(batch->works[i], stream);
    return status;
}

void comm__batch_return(struct batch *batch)
{
    comm_group *group = batch->group;
    for (size_t i = 0; i < batch->count; i++)
        comm_work_release(batch->works[i]);
    batch->count = 0;
    pthread_mutex_lock(&group->batch_lock);
    batch->next = group->free_batches;
    group->free_batches = batch;
    pthread_mutex_unlock(&group->batch_lock);
    comm__group_unref(group);
}

void comm__batch_free_all(comm_group *group)
{
    while (group->free_batches) {
        struct batch *batch = group->free_batches;
        group->free_batches = batch->next;
        for (size_t i = 0; i < batch->capacity; i++)
            free(batch->arrays[i].memory);
        free(batch->arrays);
        free(batch->ops);
        free(batch->pointers);
        free(batch->works);
        free(batch);
    }
}

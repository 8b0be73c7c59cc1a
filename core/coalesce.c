/* Coalescing: a thread's calls on a group are written down in a batch, then submitted in one go. A batch is kept until
 * the one work that stands for it is gone, then reused, so that the same batch again allocates nothing. */
#include "coalesce.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "round_robin.h"

struct batch {
    comm_group *group;
    struct batch *next; /* of this thread's open ones, or of the group's free ones */
    struct channel *channel;
    comm_op *ops;
    comm_work **works; /* one for each op; the arrays of an op are in its work's arena */
    size_t count, room;
};

static _Thread_local struct batch *open_batches;

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

size_t comm__op_arrays_bytes(const comm_op *op, int32_t size)
{
    return side_bytes(&op->send, (size_t)size) + side_bytes(&op->recv, (size_t)size) +
           (op->premul ? padded(comm_dtype_bytes(op->dtype)) : 0) + (op->label ? padded(strlen(op->label) + 1) : 0);
}

static void keep_side(comm_buffers *side, size_t size, comm_work *work)
{
    side->counts = comm__work_copy(work, side->counts, size * sizeof *side->counts);
    side->offsets = comm__work_copy(work, side->offsets, size * sizeof *side->offsets);
    side->list = comm__work_copy(work, side->list, size * sizeof *side->list);
}

void comm__op_keep_arrays(comm_op *op, int32_t size, comm_work *work)
{
    keep_side(&op->send, (size_t)size, work);
    keep_side(&op->recv, (size_t)size, work);
    op->premul = comm__work_copy(work, op->premul, comm_dtype_bytes(op->dtype));
    if (op->label)
        op->label = comm__work_copy(work, op->label, strlen(op->label) + 1);
}

/* ---- Writing down ---- */

struct batch *comm__batch_of(const comm_group *group)
{
    struct batch *batch = open_batches;
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
    if (group && group->turns)
        return comm__turns_begin(group);
    comm_status status = comm__group_usable(group, "comm_coalesce_begin");
    if (status != COMM_OK)
        return status;
    if (comm__batch_of(group))
        return comm__fail(COMM_ERR_INVALID, "comm_coalesce_begin on group '%s': this thread has begun already",
                          group->name);
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
    comm__group_ref(group);
    return COMM_OK;
}

static comm_status make_room(struct batch *batch)
{
    if (batch->count < batch->room)
        return COMM_OK;
    size_t room = batch->room ? batch->room * 2 : 8;
    comm_op *ops = realloc(batch->ops, room * sizeof *ops);
    if (ops)
        batch->ops = ops;
    comm_work **works = ops ? realloc(batch->works, room * sizeof *works) : NULL;
    if (!works)
        return comm__fail(COMM_ERR_NO_MEMORY, "a batch of %zu operations", room);
    batch->works = works;
    batch->room = room;
    return COMM_OK;
}

comm_status comm__batch_add(struct batch *batch, const comm_op *op, struct channel *channel)
{
    comm_group *group = batch->group;
    if (batch->count > 0 && batch->channel != channel)
        return comm__fail(COMM_ERR_INVALID,
                          "%s on group '%s': a batch goes to one backend, and its first operation went to '%s'; begin "
                          "another batch for the other device",
                          comm__op_name(op->kind), group->name, batch->channel->backend->name);
    comm_status status = make_room(batch);
    if (status != COMM_OK)
        return status;
    pthread_mutex_lock(&group->lock);
    comm_work *work = comm__work_take(group);
    pthread_mutex_unlock(&group->lock);
    status = work ? comm__work_reserve(work, comm__op_arrays_bytes(op, group->size))
                  : comm__fail(COMM_ERR_NO_MEMORY, "a work on group '%s'", group->name);
    if (status != COMM_OK) {
        if (work)
            comm__work_drop(work);
        return status;
    }
    batch->channel = channel;
    batch->works[batch->count] = work;
    batch->ops[batch->count] = *op;
    comm__op_keep_arrays(&batch->ops[batch->count++], group->size, work);
    return COMM_OK;
}

static struct batch *take_open(const comm_group *group)
{
    struct batch **link = &open_batches;
    while (*link && (*link)->group != group)
        link = &(*link)->next;
    struct batch *batch = *link;
    if (batch)
        *link = batch->next;
    return batch;
}

/* ---- Submitting, or not ---- */

static void forget(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->works[i])
            comm__work_drop(batch->works[i]);
    batch->count = 0;
    comm__batch_return(batch);
}

comm_status comm_coalesce_cancel(comm_group *group)
{
    if (group && group->turns)
        return comm__turns_cancel(group);
    struct batch *batch = group ? take_open(group) : NULL;
    if (!batch)
        return comm__fail(COMM_ERR_INVALID, "comm_coalesce_cancel: nothing was begun by this thread on %s%s%s",
                          group ? "group '" : "", group ? group->name : "a NULL group", group ? "'" : "");
    forget(batch);
    comm__group_unref(group);
    return COMM_OK;
}

/* The work that stands for the batch; from here on the batch belongs to it. */
static comm_work *make_parent(struct batch *batch)
{
    comm_group *group = batch->group;
    pthread_mutex_lock(&group->lock);
    comm_work *parent = comm__work_take(group);
    pthread_mutex_unlock(&group->lock);
    if (!parent)
        return NULL;
    parent->batch = batch;
    parent->submitted_ns = clock_now_ns();
    parent->deadline_ns = DEADLINE_NEVER;
    parent->seq = 0;
    atomic_store_explicit(&parent->unfinished, batch->count, memory_order_relaxed);
    for (size_t i = 0; i < batch->count; i++)
        batch->works[i]->parent = parent;
    return parent;
}

static comm_status submit(comm_group *group, struct batch *batch, int waits, comm_work **ret_parent)
{
    comm_status status = comm__group_usable(group, "comm_coalesce_end");
    comm_work *parent = status == COMM_OK ? make_parent(batch) : NULL;
    if (status == COMM_OK && !parent)
        status = comm__fail(COMM_ERR_NO_MEMORY, "comm_coalesce_end on group '%s'", group->name);
    if (status != COMM_OK) {
        forget(batch);
        return status;
    }
    if (batch->count == 0) {
        comm__work_complete(parent, COMM_OK, NULL);
        *ret_parent = parent;
        return COMM_OK;
    }
    for (size_t i = 0; waits && i < batch->count; i++)
        batch->ops[i].flags |= COMM_OP_FLAG_WAITING;
    status = comm__group_submit(group, batch->channel, batch->ops, batch->works, batch->count);
    if (status == COMM_OK) {
        *ret_parent = parent;
        return COMM_OK;
    }
    batch->count = 0; /* submit dropped the works */
    comm__work_drop(parent);
    return status;
}

comm_status comm_coalesce_end(comm_group *group, comm_work **ret_work)
{
    if (group && group->turns)
        return comm__turns_end(group, ret_work);
    comm_status status = ret_work ? comm__refuse_in_hook("comm_coalesce_end")
                                  : comm__refuse_in_callback("comm_coalesce_end");
    if (status != COMM_OK)
        return status;
    struct batch *batch = group ? take_open(group) : NULL;
    if (!batch)
        return comm__fail(COMM_ERR_INVALID, "comm_coalesce_end: nothing was begun by this thread on %s%s%s",
                          group ? "group '" : "", group ? group->name : "a NULL group", group ? "'" : "");
    comm_work *parent;
    status = submit(group, batch, ret_work == NULL, &parent);
    if (status == COMM_OK && ret_work) {
        *ret_work = parent;
    } else if (status == COMM_OK) {
        status = comm__work_finish(parent);
    }
    comm__group_unref(group);
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

comm_status comm__batch_nudge(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (!work_is_done(batch->works[i])) {
            int32_t done; /* a failure of this one is the parent's to report */
            comm_work_test(batch->works[i], &done);
            return COMM_OK;
        }
    return COMM_OK;
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
}

void comm__batch_free_all(comm_group *group)
{
    while (group->free_batches) {
        struct batch *batch = group->free_batches;
        group->free_batches = batch->next;
        free(batch->ops);
        free(batch->works);
        free(batch);
    }
}

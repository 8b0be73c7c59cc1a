/* Round-robin groups. All ranks call the collectives of a group in the same order, so each counts its turns for itself
 * and all come to the same group. Point-to-point has no such order: it all goes to the first group. */
#include "round_robin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "fork.h"

/* ---- Making ---- */

void comm__turns_destroy(struct turns *turns)
{
    if (!turns)
        return;
    for (size_t i = 0; turns->groups && i < turns->count; i++)
        comm__group_unref(turns->groups[i]);
    pthread_mutex_destroy(&turns->lock);
    free(turns->groups);
    free(turns);
}

static struct turns *turns_create(comm_group *const *groups, size_t count)
{
    struct turns *turns = calloc(1, sizeof *turns);
    if (!turns)
        return NULL;
    pthread_mutex_init(&turns->lock, NULL);
    turns->groups = malloc(count * sizeof(comm_group *));
    if (!turns->groups) {
        comm__turns_destroy(turns);
        return NULL;
    }
    turns->count = count;
    for (size_t i = 0; i < count; i++) {
        turns->groups[i] = groups[i];
        comm__group_ref(groups[i]);
    }
    return turns;
}

static comm_status check_groups(comm_group *const *groups, size_t count, const char *call)
{
    if (!groups || count == 0)
        return comm__fail(COMM_ERR_INVALID, "%s: there are no groups", call);
    for (size_t i = 0; i < count; i++) {
        comm_status status = comm__group_usable(groups[i], call);
        if (status != COMM_OK)
            return comm__fail_while(status, "%s: group %zu", call, i);
        if (groups[i]->turns)
            return comm__fail(COMM_ERR_INVALID, "%s: '%s' is a round-robin group itself", call, groups[i]->name);
        if (groups[i]->world != groups[0]->world || groups[i]->size != groups[0]->size ||
            memcmp(groups[i]->world_ranks, groups[0]->world_ranks,
                   (size_t)groups[0]->size * sizeof *groups[0]->world_ranks) != 0)
            return comm__fail(COMM_ERR_INVALID, "%s: '%s' and '%s' do not have the same ranks in the same order", call,
                              groups[0]->name, groups[i]->name);
        for (size_t j = 0; j < i; j++)
            if (groups[j] == groups[i])
                return comm__fail(COMM_ERR_INVALID, "%s: '%s' is listed twice", call, groups[i]->name);
    }
    return COMM_OK;
}

static comm_status check_options(const comm_group_options *given, comm_group_options *ret_options, const char *call)
{
    comm_status status = comm__check_struct(given, sizeof *given, "comm_group_options");
    if (status != COMM_OK)
        return status;
    if (given)
        memcpy(ret_options, given, given->struct_bytes < sizeof *given ? given->struct_bytes : sizeof *given);
    if (ret_options->flags || ret_options->backend)
        return comm__fail(COMM_ERR_INVALID, "%s: options->%s", call,
                          ret_options->flags ? "flags: there are none yet" : "backend: the groups have theirs");
    return COMM_OK;
}

comm_status comm_group_round_robin(comm_group *const *groups, size_t count, const comm_group_options *given,
                                   comm_group **ret_group)
{
    static const char call[] = "comm_group_round_robin";
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    if (!ret_group)
        return comm__fail(COMM_ERR_INVALID, "%s: ret_group is NULL", call);
    comm_status status = check_groups(groups, count, call);
    if (status == COMM_OK)
        status = check_options(given, &options, call);
    if (status != COMM_OK)
        return status;
    struct turns *turns = turns_create(groups, count);
    uint64_t *ids = malloc(count * sizeof *ids);
    if (!turns || !ids) {
        comm__turns_destroy(turns);
        free(ids);
        return comm__fail(COMM_ERR_NO_MEMORY, "%s over %zu groups", call, count);
    }
    char name[GROUP_NAME_BYTES];
    snprintf(name, sizeof name, "turns over %zu of %.60s", count, groups[0]->name);
    for (size_t i = 0; i < count; i++)
        ids[i] = groups[i]->id;
    struct group_plan plan = {
        .world = groups[0]->world,
        .world_ranks = groups[0]->world_ranks,
        .rank = groups[0]->rank,
        .size = groups[0]->size,
        .id = XXH64(ids, count * sizeof *ids, 1),
        .name = options.name ? options.name : name,
        .description = options.description,
        .backend = groups[0]->backend_text,
        .timeout_ms = options.timeout_ms ? options.timeout_ms : comm_group_timeout(groups[0]),
    };
    free(ids);
    return comm__group_open_turns(&plan, turns, ret_group);
}

/* ---- Whose turn ---- */

/* If one of the groups has ended, all of it has: the other ranks would wait for us there. */
static comm_status usable(const comm_group *group, const char *call)
{
    comm_status status = comm__group_usable(group, call);
    for (size_t i = 0; status == COMM_OK && i < group->turns->count; i++) {
        const comm_group *one = group->turns->groups[i];
        status = comm__group_usable(one, call);
        if (status == COMM_OK && atomic_load(&one->closing))
            status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': its group '%s' was closed before it", call,
                                group->name, one->name);
    }
    return status;
}

/* The user's options, with this group's timeout where they name none. */
static comm_status own_timeout(const comm_group *group, const comm_op_options *given, comm_op_options *options)
{
    comm_status status = comm__check_struct(given, sizeof *given, "comm_op_options");
    if (status == COMM_OK && given)
        memcpy(options, given, given->struct_bytes < sizeof *options ? given->struct_bytes : sizeof *options);
    options->struct_bytes = sizeof *options;
    if (options->timeout_ms == COMM_TIMEOUT_DEFAULT)
        options->timeout_ms = comm_group_timeout(group);
    return status;
}

/* Give the op to the group whose turn it is. A call that is refused takes no turn: nothing happened. */
static comm_status take_turn(comm_group *group, comm_op *op, const comm_op_options *options, int waits,
                             comm_work **ret_work)
{
    struct turns *turns = group->turns;
    comm__callbacks_defer(); /* they may submit to this group */
    pthread_mutex_lock(&turns->lock);
    comm_status status = comm__group_start(turns->groups[turns->taken % turns->count], op, options, waits, ret_work);
    if (status == COMM_OK) {
        turns->taken++;
        atomic_fetch_add_explicit(&group->seq, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&turns->lock);
    comm__callbacks_run();
    return status;
}

/* ---- Batches ----
 *
 * The first call decides where a batch goes: to the group whose turn it is, or, if it is a send or a receive, to the
 * first one. */

struct turn_batch {
    comm_group *group, *target; /* target: NULL until the first call */
    int is_peer;
    struct turn_batch *next;
};

static _Thread_local struct turn_batch *open_batches;

static struct turn_batch *batch_of(const comm_group *group)
{
    struct turn_batch *batch = open_batches;
    while (batch && batch->group != group)
        batch = batch->next;
    return batch;
}

static void batch_close(struct turn_batch *batch)
{
    struct turn_batch **link = &open_batches;
    while (*link != batch)
        link = &(*link)->next;
    *link = batch->next;
    comm__group_unref(batch->group);
    free(batch);
}

static comm_status fail_no_batch(const comm_group *group, const char *call)
{
    return comm__fail(COMM_ERR_INVALID, "%s: nothing was begun by this thread on group '%s'", call, group->name);
}

comm_status comm__turns_begin(comm_group *group)
{
    comm_status status = usable(group, "comm_coalesce_begin");
    if (status == COMM_OK && batch_of(group))
        status = comm__fail(COMM_ERR_INVALID, "comm_coalesce_begin on group '%s': this thread has begun already",
                            group->name);
    if (status != COMM_OK)
        return status;
    struct turn_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_coalesce_begin on group '%s'", group->name);
    batch->group = group;
    batch->next = open_batches;
    open_batches = batch;
    comm__group_ref(group);
    return COMM_OK;
}

/* The first call of a batch. If it is refused, the batch is as it was and no turn is taken. */
static comm_status first_call(struct turn_batch *batch, comm_op *op, const comm_op_options *options,
                              comm_work **ret_work)
{
    struct turns *turns = batch->group->turns;
    int is_peer = comm__op_is_peer(op->kind);
    pthread_mutex_lock(&turns->lock);
    comm_group *target = turns->groups[is_peer ? 0 : turns->taken % turns->count];
    comm_status status = comm_coalesce_begin(target);
    if (status == COMM_OK) {
        status = comm__group_call(target, op, options, ret_work);
        if (status != COMM_OK)
            comm_coalesce_cancel(target);
    }
    if (status == COMM_OK) {
        turns->taken += !is_peer;
        batch->target = target;
        batch->is_peer = is_peer;
    }
    pthread_mutex_unlock(&turns->lock);
    return status;
}

static comm_status batch_call(struct turn_batch *batch, comm_op *op, const comm_op_options *options,
                              comm_work **ret_work)
{
    int is_peer = comm__op_is_peer(op->kind);
    comm_group *group = batch->group;
    if (batch->target && batch->is_peer != is_peer)
        return comm__fail(COMM_ERR_INVALID,
                          "%s on group '%s': a batch of a round-robin group takes collectives or sends and receives, "
                          "not both",
                          comm__op_name(op->kind), group->name);
    comm_status status = batch->target ? comm__group_call(batch->target, op, options, ret_work)
                                       : first_call(batch, op, options, ret_work);
    if (status == COMM_OK && !is_peer)
        atomic_fetch_add_explicit(&group->seq, 1, memory_order_relaxed);
    return status;
}

comm_status comm__turns_end(comm_group *group, comm_work **ret_work)
{
    struct turn_batch *batch = batch_of(group);
    if (!batch)
        return fail_no_batch(group, "comm_coalesce_end");
    comm_group *target = batch->target;
    comm_status status = COMM_OK;
    if (!target) { /* an empty batch takes no turn */
        target = group->turns->groups[0];
        status = comm_coalesce_begin(target);
    }
    batch_close(batch);
    return status == COMM_OK ? comm_coalesce_end(target, ret_work) : status;
}

comm_status comm__turns_cancel(comm_group *group)
{
    struct turn_batch *batch = batch_of(group);
    if (!batch)
        return fail_no_batch(group, "comm_coalesce_cancel");
    comm_group *target = batch->target;
    batch_close(batch);
    return target ? comm_coalesce_cancel(target) : COMM_OK;
}

/* ---- Calls ---- */

comm_status comm__turns_call(comm_group *group, const comm_op *given, const comm_op_options *options,
                             comm_work **ret_work)
{
    comm_op op = *given;
    comm_op_options own = COMM_OP_OPTIONS_INIT;
    struct turn_batch *batch = batch_of(group);
    comm_status status = usable(group, comm__op_name(op.kind));
    if (status == COMM_OK)
        status = own_timeout(group, options, &own);
    if (status != COMM_OK)
        return status;
    if (batch)
        return batch_call(batch, &op, &own, ret_work);
    if (comm__op_is_peer(op.kind))
        return comm__group_call(group->turns->groups[0], &op, &own, ret_work);
    comm_work *work = NULL;
    status = take_turn(group, &op, &own, ret_work == NULL, &work);
    if (status != COMM_OK)
        return status;
    if (!ret_work)
        return comm__work_finish(work);
    *ret_work = work;
    return COMM_OK;
}

comm_status comm__turns_flush(comm_group *group, int64_t timeout_ms)
{
    comm_status first = usable(group, "comm_group_flush");
    if (first != COMM_OK)
        return first;
    char text[COMM_ERROR_BYTES];
    int64_t deadline_ns = timeout_ms == 0 ? DEADLINE_NEVER : clock_deadline_ns(timeout_ms);
    for (size_t i = 0; i < group->turns->count; i++) {
        int64_t left_ms = clock_left_ms(deadline_ns);
        comm_status status = comm_group_flush(group->turns->groups[i], left_ms == 0 ? 1 : left_ms);
        if (status != COMM_OK && first == COMM_OK) {
            first = status;
            memcpy(text, comm_last_error(), sizeof text);
        }
    }
    return first == COMM_OK ? COMM_OK : comm__fail(first, "%s", text);
}

comm_status comm__turns_status(const comm_group *group)
{
    comm_status status = COMM_OK;
    for (size_t i = 0; status == COMM_OK && i < group->turns->count; i++)
        status = comm_group_status(group->turns->groups[i]);
    return status;
}

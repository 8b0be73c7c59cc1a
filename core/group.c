/* How groups end, flush, and questions to a group. */
#include "group.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/likely.h"
#include "base/utf8.h"
#include "fork.h"
#include "round_robin.h"
#include "watchdog.h"

struct op_place comm__group_op_place(const comm_group *group)
{
    return (struct op_place){ group->name, group->rank, group->size, group->world_ranks[group->rank] };
}

void comm__group_rank_text(const comm_group *group, int32_t rank, char text[GROUP_RANK_BYTES])
{
    int32_t world_rank = group->world_ranks[rank];
    if (world_rank != rank)
        snprintf(text, GROUP_RANK_BYTES, "rank %d (world rank %d)", rank, world_rank);
    else
        snprintf(text, GROUP_RANK_BYTES, "rank %d", rank);
}

void comm__group_place(const comm_group *group, char text[OP_PLACE_BYTES])
{
    struct op_place place = comm__group_op_place(group);
    comm__op_place_text(&place, text);
}

void comm__group_describe(const comm_group *group, const comm_op *op, char *text, size_t capacity)
{
    struct op_place place = comm__group_op_place(group);
    comm__op_describe(op, &place, text, capacity);
}

/* ---- Can it be used, and how it ends ---- */

comm_status comm__fail_forked(const comm_group *group, const char *call)
{
    return comm__fail(
        COMM_ERR_FORKED,
        "%s: group '%s' was opened before fork(); it lives on in the parent only. Open a world of another name in "
        "the child, or fork before comm_init",
        call, group->name);
}

static comm_status fail_ended(const comm_group *group, const char *call)
{
    char where[OP_PLACE_BYTES];
    comm__group_place(group, where);
    return comm__fail(atomic_load_explicit(&group->ended, memory_order_acquire),
                      "%s on %s: the group ended earlier: %s", call, where, group->ended_text);
}

comm_status comm__group_usable(const comm_group *group, const char *call)
{
    if (!group)
        return comm__fail(COMM_ERR_INVALID, "%s: the group is NULL", call);
    if (comm__forked_since(group->generation))
        return comm__fail_forked(group, call);
    if (UNLIKELY(comm__thread.in.reductions))
        return comm__refuse_in_reduce_fn(call);
    /* Pairs with the release in remember_end. */
    if (atomic_load_explicit(&group->ended, memory_order_acquire) != COMM_OK)
        return fail_ended(group, call);
    return group->round_robin ? comm__round_robin_usable(group, call) : COMM_OK;
}

static int remember_end(comm_group *group, comm_status status, const char *text)
{
    if (atomic_exchange(&group->ending, 1)) {
        /* Another thread is writing the reason, which takes a moment. A thread that is told of a failed operation must
         * find the group ended. */
        while (atomic_load_explicit(&group->ended, memory_order_acquire) == COMM_OK)
            sched_yield();
        return 0;
    }
    snprintf(group->ended_text, sizeof group->ended_text, "%s", text && *text ? text : comm_status_name(status));
    group->ended_ns = clock_now_ns();
    atomic_store_explicit(&group->ended, status, memory_order_release);
    comm__hooks_ended(group, status, group->ended_text);
    return 1;
}

void comm__group_end(comm_group *group, const struct channel *from, comm_status status, const char *text)
{
    if (!remember_end(group, status, text))
        return;
    /* The backend that has ended it knows; the group's other backends do not, nor does a backend that wraps it. */
    if (!from && (group->channel_count > 1 || comm__inner_works_any(&group->inner_works))) {
        atomic_store(&group->untold, 1);
        comm__watch_from(group, 0);
    }
    if (!from)
        return;
    for (size_t i = 0; i < group->channel_count; i++)
        if (&group->channels[i] != from && group->channels[i].state)
            group->channels[i].backend->group_abort(group->channels[i].state, status, text);
}

comm_status comm__group_end_for(comm_group *group, const struct channel *from, comm_status status)
{
    char text[COMM_ERROR_BYTES];
    if (comm_status_scope(status) < COMM_SCOPE_OBJECT)
        return status;
    snprintf(text, sizeof text, "%s", comm_last_error());
    comm__group_end(group, from, status, text);
    return comm__fail(status, "%s", text); /* ending other channels may have written over it */
}

void comm__group_abort(comm_group *group, comm_status status, const char *text)
{
    char copy[COMM_ERROR_BYTES];
    snprintf(copy, sizeof copy, "%s", text); /* it may be this thread's error text, which a backend may overwrite */
    /* A thread that waits for the works that this ends may close the group next, while this call is still in it. */
    comm__group_stay(group);
    remember_end(group, status, copy);
    for (size_t i = 0; i < group->channel_count; i++)
        if (group->channels[i].state)
            group->channels[i].backend->group_abort(group->channels[i].state, status, copy);
    for (size_t i = 0; group->round_robin && i < group->round_robin->count; i++)
        comm__group_abort(group->round_robin->groups[i], status, copy);
    if (comm__pending_count(group) > 0)
        comm__watch(group, group->ended_ns + WATCHDOG_GRACE_NS);
    comm__group_let_go(group);
}

comm_status comm_group_abort(comm_group *group, const char *reason)
{
    if (!group)
        return comm__fail(COMM_ERR_INVALID, "comm_group_abort: the group is NULL");
    if (comm__forked_since(group->generation))
        return comm__fail_forked(group, "comm_group_abort");
    comm_status status = comm__refuse_in_reduce_fn("comm_group_abort");
    if (status != COMM_OK)
        return status;
    char text[COMM_ERROR_BYTES], self[GROUP_RANK_BYTES];
    comm__group_rank_text(group, group->rank, self);
    snprintf(text, sizeof text, "%s of group '%s' called comm_group_abort%s%s", self, group->name,
             reason && *reason ? ": " : "", reason ? reason : "");
    utf8_clean_string(text); /* the reason may be anything */
    comm__group_abort(group, COMM_ERR_ABORTED, text);
    return COMM_OK;
}

/* The open groups of the world. Each is held: closing it waits until it is released. Gives *ret_groups (free). */
static comm_status hold_all(struct world *world, comm_group ***ret_groups, size_t *ret_count)
{
    size_t count = 0;
    pthread_mutex_lock(&world->lock);
    for (const comm_group *group = world->groups; group; group = group->next_open)
        count++;
    comm_group **groups = malloc((count + 1) * sizeof(comm_group *));
    *ret_count = 0;
    for (comm_group *group = groups ? world->groups : NULL; group; group = group->next_open) {
        comm__group_stay(group);
        groups[(*ret_count)++] = group;
    }
    pthread_mutex_unlock(&world->lock);
    *ret_groups = groups;
    return groups ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "comm_group_abort_all on world '%s'", world->name);
}

comm_status comm_group_abort_all(comm_group *any, const char *reason)
{
    comm_group **groups;
    size_t count;
    if (!any)
        return comm__fail(COMM_ERR_INVALID, "comm_group_abort_all: the group is NULL");
    if (comm__forked_since(any->generation))
        return comm__fail_forked(any, "comm_group_abort_all");
    comm_status status = comm__refuse_in_reduce_fn("comm_group_abort_all");
    if (status == COMM_OK)
        status = hold_all(any->world, &groups, &count);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        char text[COMM_ERROR_BYTES], self[GROUP_RANK_BYTES];
        comm__group_rank_text(groups[i], groups[i]->rank, self);
        snprintf(text, sizeof text, "%s of group '%s' called comm_group_abort_all%s%s", self, groups[i]->name,
                 reason && *reason ? ": " : "", reason ? reason : "");
        utf8_clean_string(text);
        comm__group_abort(groups[i], COMM_ERR_ABORTED, text);
        comm__group_let_go(groups[i]);
    }
    free(groups);
    return COMM_OK;
}

/* ---- Flush ---- */

comm_status comm_group_flush(comm_group *group, int64_t timeout_ms)
{
    comm_status first = comm__refuse_in_callback("comm_group_flush");
    if (first == COMM_OK)
        first = comm__group_usable(group, "comm_group_flush");
    if (first != COMM_OK)
        return first;
    if (timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "comm_group_flush: timeout_ms is %lld; it is milliseconds, 0 or "
                          "COMM_TIMEOUT_INFINITE", (long long)timeout_ms);
    char text[COMM_ERROR_BYTES];
    int64_t deadline_ns = timeout_ms == 0 ? DEADLINE_NEVER : clock_deadline_ns(timeout_ms);
    if (group->round_robin)
        return comm__round_robin_flush(group, deadline_ns);
    uint64_t newest = comm__pending_newest(group);
    comm_work *work;
    while ((work = comm__pending_oldest(group, newest)) != NULL) {
        comm_status status = comm__work_drive(work, deadline_ns);
        int timed_out = status != COMM_OK;
        if (!timed_out)
            status = comm__work_result(work);
        if (status != COMM_OK && first == COMM_OK) {
            first = status;
            memcpy(text, comm_last_error(), sizeof text);
        }
        comm_work_release(work);
        if (timed_out)
            break;
    }
    return first == COMM_OK ? COMM_OK : comm__fail(first, "%s", text);
}

/* ---- Questions ---- */

int32_t comm_group_rank(const comm_group *group)
{
    return group ? group->rank : -1;
}

int32_t comm_group_size(const comm_group *group)
{
    return group ? group->size : -1;
}

const char *comm_group_name(const comm_group *group)
{
    return group ? group->name : "";
}

const char *comm_group_backend(const comm_group *group)
{
    return group ? group->backend_text : "";
}

const char *comm_group_description(const comm_group *group)
{
    return group && group->description ? group->description : "";
}

comm_device comm_group_device(const comm_group *group)
{
    comm_device only = COMM_DEVICE_DEFAULT;
    if (group && group->round_robin)
        return comm_group_device(group->round_robin->groups[0]);
    for (int32_t d = COMM_DEVICE_CPU; group && d < DEVICE_KIND_END; d++)
        if (group->routes[d]) {
            if (only != COMM_DEVICE_DEFAULT)
                return COMM_DEVICE_DEFAULT;
            only = d;
        }
    return only;
}

int64_t comm_group_timeout(const comm_group *group)
{
    return group ? atomic_load_explicit(&group->timeout_ms, memory_order_relaxed) : 0;
}

comm_status comm_group_set_timeout(comm_group *group, int64_t timeout_ms)
{
    if (!group || timeout_ms == 0 || timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "comm_group_set_timeout: %s",
                          group ? "give milliseconds, or COMM_TIMEOUT_INFINITE" : "the group is NULL");
    atomic_store_explicit(&group->timeout_ms, timeout_ms, memory_order_relaxed);
    return COMM_OK;
}

uint64_t comm_group_seq(const comm_group *group)
{
    return group ? atomic_load_explicit(&group->seq, memory_order_relaxed) : 0;
}

comm_status comm_group_status(const comm_group *group)
{
    if (!group)
        return comm__fail(COMM_ERR_INVALID, "comm_group_status: the group is NULL");
    if (comm__forked_since(group->generation))
        return comm__fail_forked(group, "comm_group_status");
    comm_status status = atomic_load_explicit(&group->ended, memory_order_acquire);
    if (status == COMM_OK && group->round_robin)
        return comm__round_robin_status(group);
    return status == COMM_OK ? COMM_OK : comm__fail(status, "%s", group->ended_text);
}

comm_store *comm_group_store(comm_group *group)
{
    if (comm__group_usable(group, "comm_group_store") == COMM_ERR_FORKED || !group)
        return NULL;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "user/%016" PRIx64, group->id);
    pthread_mutex_lock(&group->lock);
    if (!group->user_store && comm_store_prefix(prefix, group->world->store, &group->user_store) != COMM_OK)
        group->user_store = NULL;
    comm_store *store = group->user_store;
    pthread_mutex_unlock(&group->lock);
    return store;
}

comm_status comm_group_world_rank(const comm_group *group, int32_t rank, int32_t *ret_world_rank)
{
    if (!group || !ret_world_rank)
        return comm__fail(COMM_ERR_INVALID, "comm_group_world_rank: %s is NULL",
                          group ? "ret_world_rank" : "the group");
    if (rank < 0 || rank >= group->size)
        return comm__fail(COMM_ERR_NOT_FOUND, "there is no rank %d in group '%s'; the ranks are 0 to %d", rank,
                          group->name, group->size - 1);
    *ret_world_rank = group->world_ranks[rank];
    return COMM_OK;
}

comm_status comm_group_rank_of(const comm_group *group, int32_t world_rank, int32_t *ret_rank)
{
    if (!group || !ret_rank)
        return comm__fail(COMM_ERR_INVALID, "comm_group_rank_of: %s is NULL", group ? "ret_rank" : "the group");
    for (int32_t r = 0; r < group->size; r++)
        if (group->world_ranks[r] == world_rank) {
            *ret_rank = r;
            return COMM_OK;
        }
    return comm__fail(COMM_ERR_NOT_FOUND, "world rank %d is not in group '%s'", world_rank, group->name);
}

comm_status comm_group_ranks(const comm_group *group, int32_t *ret_ranks)
{
    if (!group || !ret_ranks)
        return comm__fail(COMM_ERR_INVALID, "comm_group_ranks: %s is NULL", group ? "ret_ranks" : "the group");
    memcpy(ret_ranks, group->world_ranks, (size_t)group->size * sizeof *ret_ranks);
    return COMM_OK;
}

comm_status comm_group_hosts(const comm_group *group, int32_t *ret_hosts)
{
    if (!group || !ret_hosts)
        return comm__fail(COMM_ERR_INVALID, "comm_group_hosts: %s is NULL", group ? "ret_hosts" : "the group");
    for (int32_t r = 0; r < group->size; r++)
        ret_hosts[r] = group->world->hosts[group->world_ranks[r]];
    return COMM_OK;
}

comm_status comm_group_lost_ranks(const comm_group *group, int32_t *ret_ranks, size_t capacity, size_t *ret_count)
{
    if (!group || !ret_count || (!ret_ranks && capacity))
        return comm__fail(COMM_ERR_INVALID, "comm_group_lost_ranks: an argument is NULL");
    size_t count = 0;
    for (int32_t r = 0; r < group->size; r++) {
        if (!atomic_load_explicit(&group->world->lost[group->world_ranks[r]], memory_order_acquire))
            continue;
        if (count < capacity)
            ret_ranks[count] = r;
        count++;
    }
    *ret_count = count;
    return COMM_OK;
}

static void never_reduces(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    (void)in, (void)inout, (void)count, (void)dtype, (void)context;
}

/* The op that such a call would make, without elements, takes the path of every call up to its submission. */
int32_t comm_group_supports(comm_group *group, int32_t kind, comm_dtype dtype, comm_redop redop, comm_device device)
{
    static const double scalar[2];
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_op op = { .kind = kind, .dtype = dtype, .redop = redop, .root = -1, .timeout_ns = INT64_MAX };
    const comm_op_traits *traits = comm_op_traits_of(kind);
    struct channel *channel;
    comm_status status = comm__group_usable(group, "comm_group_supports");
    if (status == COMM_OK && !traits)
        status = comm__fail(COMM_ERR_INVALID, "comm_group_supports on group '%s': there is no kind of operation %d",
                            group->name, kind);
    if (status != COMM_OK)
        return 0;
    options.device = device;
    if (traits->traits & COMM_OP_TRAIT_REDUCES) {
        options.premul = redop == COMM_REDOP_PREMUL_SUM ? scalar : NULL;
        options.reduce_fn = redop == COMM_REDOP_USER ? never_reduces : NULL;
    }
    if (traits->traits & (COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_PEER))
        op.root = 0;
    comm_group *asked = group->round_robin ? group->round_robin->groups[0] : group;
    struct op_place place = comm__group_op_place(asked);
    status = comm__op_prepare(&op, &place, &options);
    return status == COMM_OK && comm__group_route(asked, &op, &channel) == COMM_OK;
}

comm_status comm_group_find(comm_group *world, const char *name, comm_group **ret_group)
{
    if (!world || !name || !ret_group)
        return comm__fail(COMM_ERR_INVALID, "comm_group_find: an argument is NULL");
    if (comm__forked_since(world->generation))
        return comm__fail_forked(world, "comm_group_find");
    pthread_mutex_lock(&world->world->lock);
    comm_group *group = world->world->groups;
    while (group && strcmp(group->name, name) != 0)
        group = group->next_open;
    pthread_mutex_unlock(&world->world->lock);
    if (!group)
        return comm__fail(COMM_ERR_NOT_FOUND, "no open group of world '%s' in this process is called '%s'",
                          world->world->name, name);
    *ret_group = group;
    return COMM_OK;
}

int32_t comm_group_count(const comm_group *world)
{
    int32_t count = 0;
    if (!world || comm__forked_since(world->generation))
        return -1;
    pthread_mutex_lock(&world->world->lock);
    for (const comm_group *group = world->world->groups; group; group = group->next_open)
        count++;
    pthread_mutex_unlock(&world->world->lock);
    return count;
}

/* The caller's records are shorter or longer than ours: `record_bytes` each. */
static comm_status give_records(struct recorder *recorder, char *to, size_t record_bytes, size_t capacity,
                                size_t *ret_count)
{
    const size_t own = sizeof(comm_record), kept = record_bytes < own ? record_bytes : own;
    if (capacity > recorder->most)
        capacity = recorder->most;
    comm_record *records = malloc((capacity + 1) * own);
    if (!records)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_group_records: %zu records", capacity);
    *ret_count = comm__recorder_read(recorder, records, capacity);
    for (size_t i = 0; i < *ret_count; i++, to += record_bytes) {
        memset(to, 0, record_bytes);
        memcpy(to, &records[i], kept);
    }
    free(records);
    return COMM_OK;
}

comm_status comm_group_records(const comm_group *group, comm_record *ret_records, size_t record_bytes, size_t capacity,
                               size_t *ret_count)
{
    if (!group || !ret_count || (!ret_records && capacity))
        return comm__fail(COMM_ERR_INVALID, "comm_group_records: an argument is NULL");
    if (record_bytes == 0 || record_bytes > 65536)
        return comm__fail(COMM_ERR_INVALID, "comm_group_records: record_bytes is %zu; give sizeof(comm_record)",
                          record_bytes);
    comm_status status = comm__refuse_in_hook("comm_group_records");
    if (status != COMM_OK)
        return status;
    /* reading takes its lock, and writes down what works have not yet; the group stays what it was */
    comm_group *g = (comm_group *)group;
    /* a child of fork has no other thread, and the lock may be held for ever */
    int is_parent = !comm__forked_since(g->generation);
    if (is_parent)
        futex_lock_take(&g->submission);
    comm__works_settle(g);
    if (record_bytes == sizeof *ret_records)
        *ret_count = comm__recorder_read(&g->recorder, ret_records, capacity);
    else
        status = give_records(&g->recorder, (char *)ret_records, record_bytes, capacity, ret_count);
    if (is_parent)
        futex_lock_release(&g->submission);
    return status;
}

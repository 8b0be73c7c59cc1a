/* The table that backends get: what they may ask of the core. Thin wrappers, so that a plugin links to nothing of
 * ours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auto.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/param.h"
#include "group.h"
#include "inner_work.h"
#include "join.h"
#include "rank_check.h"
#include "reduce.h"
#include "registry.h"

static comm_status host_fail(comm_status status, const char *text)
{
    return comm__fail(status, "%s", text);
}

static void host_log(int32_t level, const char *text)
{
    comm__log(level, "%s", text);
}

static int32_t host_log_wanted(int32_t level)
{
    return comm__log_wanted(level);
}

static void host_work_complete(comm_work *work, comm_status status, const char *error)
{
    if (work_is_inner(work))
        comm__inner_work_complete(work, status, error);
    else
        comm__work_complete(work, status, error);
}

static void host_work_received(comm_work *work, int32_t source_rank, int32_t tag, size_t count)
{
    if (work_is_inner(work))
        comm__inner_work_received(work, source_rank, tag, count);
    else
        comm__work_received(work, source_rank, tag, count);
}

static void host_work_facts(const comm_work *work, int32_t *ret_source_rank, int32_t *ret_tag, size_t *ret_count)
{
    *ret_source_rank = work->source;
    *ret_tag = work->tag;
    *ret_count = work->received_count;
}

static void **host_work_slot(comm_work *work)
{
    return &work->slot;
}

static comm_status host_work_create(void *group_token, comm_work_done_fn done, void *context, comm_work **ret_work)
{
    return comm__inner_work_create(group_token, done, context, ret_work);
}

static int32_t host_work_done(const comm_work *work)
{
    return work_is_done(work);
}

static void host_group_failed(void *group_token, comm_status status, const char *error)
{
    char text[COMM_ERROR_BYTES];
    if (comm_status_scope(status) < COMM_SCOPE_OBJECT || !comm__status_known(status)) {
        snprintf(text, sizeof text, "a backend ended the group with the status %d, which ends no group%s%s", status,
                 error ? ": " : "", error ? error : "");
        status = COMM_ERR_BACKEND;
        error = text;
    }
    comm__group_end(group_token, NULL, status, error);
}

static void host_describe(void *group_token, const comm_op *op, char *text, size_t capacity)
{
    comm__group_describe(group_token, op, text, capacity);
}

/* What backends know as their store. While the world opens, what they set is noted on this rank's card; what is on
 * another's card is known without asking the store. */
static comm_status host_store_set(void *store, const char *key, const void *data, size_t bytes)
{
    struct world_backend *wb = store;
    comm_status status = comm_store_set(wb->store, key, data, bytes);
    if (status == COMM_OK)
        comm__cards_note(&wb->world->cards, wb->choice.backend->name, key, data, bytes);
    return status;
}

/* While the world opens: there may be none, and then what is awaited will never come. */
static comm_status look_after_others(struct world *world)
{
    comm_status status = COMM_OK;
    if (pthread_mutex_trylock(&world->looking) != 0)
        return COMM_OK; /* another thread does */
    if (world->joining)
        status = comm__join_look(world->joining);
    pthread_mutex_unlock(&world->looking);
    return status;
}

/* In pieces, as the wait ends when the world does not open or `group` (may be NULL) ends. */
static comm_status wait_for_key(struct world_backend *wb, const comm_group *group, const char *key, int64_t timeout_ms,
                                void **ret_data, size_t *ret_bytes)
{
    const int64_t began_ns = clock_now_ns();
    int64_t deadline_ns = clock_deadline_ns(timeout_ms ? timeout_ms : comm_store_timeout(wb->store));
    for (int pieces = 0;; pieces++) {
        int64_t left = clock_left_ms(deadline_ns);
        int last = left >= 0 && left <= JOIN_LOOK_MS;
        comm_status status = comm_store_get(wb->store, key, last ? (left ? left : 1) : JOIN_LOOK_MS, ret_data,
                                            ret_bytes);
        if (status == COMM_ERR_TIMEOUT && last && pieces > 0) /* the store has timed the last piece only */
            return comm__fail_while(status, "waiting for %lld ms", (long long)(clock_now_ns() - began_ns) / 1000000);
        if (status != COMM_ERR_TIMEOUT || last)
            return status;
        status = look_after_others(wb->world);
        if (status == COMM_OK && group)
            status = comm__group_usable(group, "waiting for another rank's key");
        if (status != COMM_OK)
            return status;
    }
}

static comm_status host_store_get(void *store, void *group_token, const char *key, int64_t timeout_ms, void **ret_data,
                                  size_t *ret_bytes)
{
    struct world_backend *wb = store;
    if (comm__cards_find(&wb->world->cards, wb->choice.backend->name, key, ret_data, ret_bytes) == COMM_OK)
        return COMM_OK;
    if (timeout_ms == COMM_HANDED_OUT)
        return COMM_ERR_NOT_FOUND;
    return wait_for_key(wb, group_token, key, timeout_ms, ret_data, ret_bytes);
}

static comm_status host_store_add(void *store, const char *key, int64_t amount, int64_t *ret_value)
{
    struct world_backend *wb = store;
    return comm_store_add(wb->store, key, amount, ret_value);
}

static comm_status host_store_check(void *store, const char *key, int32_t *ret_exists)
{
    struct world_backend *wb = store;
    return comm_store_check(wb->store, &key, 1, ret_exists);
}

static comm_status host_store_delete(void *store, const char *key)
{
    struct world_backend *wb = store;
    int32_t existed;
    return comm_store_delete(wb->store, key, &existed);
}

/* ---- Parameters ---- */

const char *comm__option_of(const struct backend_choice *choice, const char *backend, const char *name)
{
    size_t length = strlen(backend);
    int is_named = choice && (comm__is_auto(choice->pair) || strcmp(choice->backend->name, backend) == 0);
    for (size_t i = 0; choice && i < choice->pair->option_count; i++) {
        const char *option = choice->pair->options[i].name;
        int is_prefixed = strncmp(option, backend, length) == 0 && option[length] == '.';
        if ((is_named && strcmp(option, name) == 0) || (is_prefixed && strcmp(option + length + 1, name) == 0))
            return choice->pair->options[i].value;
    }
    return NULL;
}

static const char *host_param_text(const void *options, const char *backend, const char *name)
{
    const comm_backend *b = comm__registry_known(backend);
    return b ? comm__param_backend_text(b, name, comm__option_of(options, backend, name)) : NULL;
}

static int64_t host_param_int(const void *options, const char *backend, const char *name)
{
    const comm_backend *b = comm__registry_known(backend);
    return b ? comm__param_backend_int(b, name, comm__option_of(options, backend, name)) : 0;
}

/* ---- For all ---- */

static void host_rank_lost(void *group_token, int32_t world_rank, const char *why)
{
    comm_group *group = group_token;
    struct world *world = group->world;
    if (world_rank < 0 || world_rank >= world->size || world_rank == world->rank) /* others may have lost this one */
        return;
    if (!atomic_exchange(&world->lost[world_rank], 1))
        comm__log(COMM_LOG_INFO, "world '%s': rank %d is lost: %s", world->name, world_rank,
                  why ? why : "no reason was given");
}

static int32_t host_rank_is_lost(void *group_token, int32_t world_rank)
{
    const struct world *world = ((const comm_group *)group_token)->world;
    return world_rank >= 0 && world_rank < world->size &&
           atomic_load_explicit(&world->lost[world_rank], memory_order_acquire);
}

static comm_status host_rank_check(void *group_token, int32_t world_rank)
{
    return comm__rank_check(((comm_group *)group_token)->world, world_rank);
}

#define TEXT_OF(x) #x
#define DOTTED(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const comm_host comm__host = {
    .struct_bytes = sizeof(comm_host),
    .abi_major = COMM_BACKEND_ABI_MAJOR,
    .abi_minor = COMM_BACKEND_ABI_MINOR,
    .version = DOTTED(COMM_VERSION_MAJOR, COMM_VERSION_MINOR, COMM_VERSION_PATCH),
    .fail = host_fail,
    .last_error = comm_last_error,
    .log = host_log,
    .log_wanted = host_log_wanted,
    .work_complete = host_work_complete,
    .work_received = host_work_received,
    .work_done = host_work_done,
    .group_failed = host_group_failed,
    .describe = host_describe,
    .store_set = host_store_set,
    .store_get = host_store_get,
    .store_add = host_store_add,
    .store_check = host_store_check,
    .store_delete = host_store_delete,
    .free_memory = comm_free,
    .reduce_kernel = comm__reduce_kernel,
    .reduce_many = comm__reduce_many,
    .premultiply = comm__premultiply,
    .divide = comm__divide,
    .dtype_bytes = comm_dtype_bytes,
    .dtype_name = comm_dtype_name,
    .redop_name = comm_redop_name,
    .op_name = comm__op_name,
    .param_text = host_param_text,
    .param_int = host_param_int,
    .now_ns = clock_now_ns,
    .work_slot = host_work_slot,
    .rank_lost = host_rank_lost,
    .backend_find = comm__registry_find,
    .work_create = host_work_create,
    .work_facts = host_work_facts,
    .work_release = comm__inner_work_release,
    .rank_check = host_rank_check,
    .rank_is_lost = host_rank_is_lost,
    .run_waits = comm__run_waits,
    .widening_kernel = comm__widening_kernel,
    .widen = comm__widen,
    .narrow = comm__narrow,
    .reduce_to_two_kernel = comm__reduce_to_two_kernel,
    .run_may_wait = comm__run_may_wait,
    .some_are_told = comm__some_are_told,
    .reduce_fn_begins = comm__reduce_fn_begins,
    .reduce_fn_ends = comm__reduce_fn_ends,
};

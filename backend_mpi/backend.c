/* The mpi backend's table: see include/comm/backend.h for what each slot promises. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

const comm_host *host;

static void cond_init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Are there more ranks than cores on this host? The launcher counts ranks of this machine that COMM_HOST_ID or
 * containers put on several hosts. */
static int is_crowded(const comm_world_info *info)
{
    enum { END = offsetof(comm_world_info, local_cores) + sizeof info->local_cores };
    int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN), ranks = 0;
    int32_t cores = info->struct_bytes >= END && info->local_cores > 0 ? info->local_cores : online;
    for (int32_t r = 0; r < info->size; r++)
        ranks += info->hosts[r] == info->hosts[info->rank];
    return ranks > cores || info->local_size > online;
}

/* ---- Worlds ---- */

static void world_free(struct world *w)
{
    notes_free(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static comm_status mpi_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    char key[KEY_BYTES], card[256];
    comm_status status = library_check(info);
    struct world *w = status == COMM_OK ? calloc(1, sizeof *w) : NULL;
    (void)context;
    if (status != COMM_OK)
        return status;
    if (!w)
        return fail(COMM_ERR_NO_MEMORY, "the world's state");
    w->info = info;
    w->yields = is_crowded(info);
    w->linger_ms = host->param_int(info->options, "mpi", "linger_ms");
    pthread_mutex_init(&w->lock, NULL);
    cond_init_monotonic(&w->changed);
    status = start_begin(info, card, sizeof card);
    if (status != COMM_OK) {
        world_free(w);
        return status;
    }
    snprintf(key, sizeof key, "rank.%d", info->rank);
    status = host->store_set(info->store, key, card, strlen(card));
    if (status != COMM_OK) {
        start_world_closed(0);
        world_free(w);
        return status;
    }
    *ret_world = w;
    return COMM_OK;
}

static void mpi_world_close(void *world, int32_t forked)
{
    struct world *w = world;
    if (forked)
        return;
    poller_stop(w);
    note_leave(w);
    int64_t until_ns = host->now_ns() + w->linger_ms * 1000000;
    leaving_wait(w, until_ns);
    start_world_closed(until_ns);
    world_free(w);
}

/* ---- Groups ---- */

static void group_free(struct group *g)
{
    flights_free(g);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->user);
    free(g);
}

static comm_status mpi_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct world *w = world;
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return fail(COMM_ERR_NO_MEMORY, "the group's state");
    g->world = w;
    memcpy(g->info, info, info->struct_bytes < sizeof *info ? info->struct_bytes : sizeof *info);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->user, NULL);
    cond_init_monotonic(&g->changed);
    g->queued_end = &g->queued;
    g->pending_end = &g->pending;
    g->arrivals_end = &g->arrivals;
    g->heard = MPI_REQUEST_NULL;
    g->suspect = g->lost = -1;
    g->native_ops = (int)host->param_int(info->options, "mpi", "native_ops");
    g->direct_ranks = (int)host->param_int(info->options, "mpi", "direct_ranks");
    g->max_count = host->param_int(info->options, "mpi", "max_count");
    comm_status status = communicator_start(g);
    if (status != COMM_OK) {
        group_free(g);
        return status;
    }
    pthread_mutex_lock(&w->lock);
    g->next = w->groups;
    w->groups = g;
    pthread_mutex_unlock(&w->lock);
    *ret_state = g;
    return COMM_OK;
}

static comm_status start_poller(struct world *w)
{
    if (atomic_load(&w->has_poller))
        return COMM_OK;
    pthread_mutex_lock(&w->lock);
    comm_status status = poller_start(w);
    pthread_mutex_unlock(&w->lock);
    return status;
}

static comm_status mpi_group_connect(void *state, comm_device device, int64_t deadline_ns)
{
    struct group *g = state;
    (void)device;
    comm_status status = start_poller(g->world); /* it looks after the ranks that are waited for */
    if (status != COMM_OK)
        return status;
    communicator_awaited(g, 1);
    pthread_mutex_lock(&g->lock);
    status = communicator_wait(g, deadline_ns);
    pthread_mutex_unlock(&g->lock);
    communicator_awaited(g, -1);
    return status;
}

static void mpi_group_abort(void *state, comm_status status, const char *reason)
{
    struct group *g = state;
    struct finished_list list;
    finished_begin(&list);
    pthread_mutex_lock(&g->lock);
    group_end(g, status, reason, &list);
    pthread_mutex_unlock(&g->lock);
    finished_complete(&list);
    poller_wake(g->world);
}

static void unlist(struct group *g)
{
    struct world *w = g->world;
    pthread_mutex_lock(&w->lock);
    while (w->polled)
        pthread_cond_wait(&w->changed, &w->lock);
    for (struct group **at = &w->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    pthread_mutex_unlock(&w->lock);
}

static void mpi_group_close(void *state, int32_t forked)
{
    struct group *g = state;
    if (forked)
        return; /* MPI does not work in a child: its memory is left alone */
    unlist(g);
    communicator_end(g);
    note_group(g);
    if (g->has_thread || g->pending || g->tellings)
        return; /* MPI still uses what is in it */
    group_free(g);
}

/* ---- Operations ---- */

static comm_status mpi_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct group *g = state;
    int waited_for = (int)(ops[0]->flags & COMM_OP_FLAG_WAITING), has_begun = (int)(ops[0]->flags & COMM_OP_FLAG_BEGUN);
    comm_status status = start_poller(g->world);
    if (status != COMM_OK)
        return status;
    pthread_mutex_lock(&g->lock);
    status = has_begun ? COMM_OK : communicator_usable(g);
    if (status == COMM_OK)
        status = flights_submit(g, ops, works, count);
    pthread_mutex_unlock(&g->lock);
    if (status == COMM_OK && !waited_for)
        poller_wake(g->world);
    return status;
}

static comm_status mpi_run(void *state, const comm_op *op, int64_t spin_ns)
{
    struct group *g = state;
    comm_status status = start_poller(g->world); /* what was sent may need it, and submit must not fail for it */
    if (status != COMM_OK)
        return status;
    pthread_mutex_lock(&g->lock);
    status = flight_run(g, op, spin_ns);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static comm_status mpi_progress(void *state, comm_work *work, int64_t deadline_ns)
{
    return poll_wait(state, work, deadline_ns);
}

/* ---- The table ---- */

#define PARAM(...) &(const comm_backend_param){ sizeof(comm_backend_param), __VA_ARGS__ },
#define PARAM_INT(name, initial, minimum, maximum, help) PARAM(COMM_PARAM_INT, name, #initial, minimum, maximum, help)
#define PARAM_AGREED_INT(name, initial, minimum, maximum, help) \
    PARAM(COMM_PARAM_INT | COMM_PARAM_AGREED, name, #initial, minimum, maximum, help)
#define PARAM_TEXT(name, initial, help) PARAM(COMM_PARAM_TEXT, name, initial, 0, 0, help)
static const comm_backend_param *const params[] = {
#include "param.def"
    NULL
};

static const comm_backend mpi_backend = {
    COMM_BACKEND_INIT,
    .traits = COMM_BACKEND_CANNOT_CANCEL,
    .name = "mpi",
    .version = "0.1.0",
    .license = "Apache-2.0",
    .devices = "cpu",
    .preference = 0, /* only by name: it needs MPI's launcher */
    .params = params,
    .query = library_query,
    .world_open = mpi_world_open,
    .world_close = mpi_world_close,
    .group_open = mpi_group_open,
    .group_connect = mpi_group_connect,
    .group_abort = mpi_group_abort,
    .group_close = mpi_group_close,
    .submit = mpi_submit,
    .run = mpi_run,
    .progress = mpi_progress,
    .describe_routes = describe_calls,
};

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *from);

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *from)
{
    host = from;
    return &mpi_backend;
}

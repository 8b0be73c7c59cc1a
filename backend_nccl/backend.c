/* The nccl backend's table: see include/comm/backend.h for what each slot promises. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

enum { CLOSE_NS = 2000000000 };

const comm_host *host;

static comm_status nccl_query(void *context)
{
    int count = 0;
    (void)context;
    comm_status status = libraries_open();
    if (status != COMM_OK)
        return status;
    cuda_status found = cuda.GetDeviceCount(&count);
    if (found == CUDA_OK && count > 0)
        return COMM_OK;
    cuda.GetLastError();
    return fail(COMM_ERR_UNSUPPORTED, "no GPU: %s", found == CUDA_OK ? "the CUDA driver lists none"
                                                                     : cuda.GetErrorString(found));
}

static void cond_init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* ---- Worlds ---- */

static void world_free(struct world *w)
{
    peers_free(w);
    pthread_cond_destroy(&w->wake);
    pthread_cond_destroy(&w->stopped);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static comm_status nccl_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    struct world *w = calloc(1, sizeof *w);
    (void)context;
    if (!w)
        return fail(COMM_ERR_NO_MEMORY, "the world's state");
    w->info = info;
    pthread_mutex_init(&w->lock, NULL);
    cond_init_monotonic(&w->wake);
    cond_init_monotonic(&w->stopped);
    *ret_world = w;
    return COMM_OK;
}

static void nccl_world_close(void *world, int32_t forked)
{
    struct world *w = world;
    if (forked)
        return;
    listener_stop(w);
    poller_stop(w);
    peers_take_leave(w);
    world_free(w);
}

/* ---- Groups ---- */

static int32_t *copy_of(const int32_t *ranks, int32_t count)
{
    int32_t *copy = count ? malloc((size_t)count * sizeof *copy) : NULL;
    if (copy)
        memcpy(copy, ranks, (size_t)count * sizeof *copy);
    return copy;
}

static void read_parameters(struct group *g)
{
    const void *options = g->info->options;
    g->blocking = (int)host->param_int(options, "nccl", "blocking");
    g->check_buffers = (int)host->param_int(options, "nccl", "check_buffers");
    g->high_priority = (int)host->param_int(options, "nccl", "high_priority");
    g->from_parent = (int)host->param_int(options, "nccl", "from_parent");
    g->group_batches = (int)host->param_int(options, "nccl", "group_batches");
    g->share = (int)host->param_int(options, "nccl", "share");
    g->windows = (int)host->param_int(options, "nccl", "windows");
    g->max_ctas = (int)host->param_int(options, "nccl", "max_ctas");
}

static void note_parent(struct group *g, struct group *parent)
{
    int is_shrink = g->info->excluded_count > 0;
    g->parent = parent;
    g->call = is_shrink ? g->info->id : g->info->everyone ? g->info->call : 0;
    g->callers = is_shrink ? g->info->size : parent->info->size;
    while (parent->info->world_ranks[g->color] != g->info->world_ranks[0])
        g->color++;
    g->excluded = copy_of(g->info->excluded, g->info->excluded_count);
}

static comm_status nccl_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct world *w = world;
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return fail(COMM_ERR_NO_MEMORY, "the group's state");
    g->world = w;
    memcpy(g->info, info, info->struct_bytes < sizeof *info ? info->struct_bytes : sizeof *info);
    pthread_mutex_init(&g->lock, NULL);
    cond_init_monotonic(&g->changed);
    read_parameters(g);
    if (g->from_parent && info->parent)
        note_parent(g, info->parent);
    pthread_mutex_lock(&w->lock);
    g->next = w->groups;
    w->groups = g;
    pthread_mutex_unlock(&w->lock);
    *ret_state = g;
    return COMM_OK;
}

/* The threads start with the first communicator: a group that only has CPU operations costs none. */
static comm_status start_threads(struct world *w)
{
    pthread_mutex_lock(&w->lock);
    comm_status status = COMM_OK;
    if (!w->has_listener && w->info->size > 1)
        status = listener_start(w);
    if (status == COMM_OK && !atomic_load(&w->has_poller))
        status = poller_start(w);
    pthread_mutex_unlock(&w->lock);
    return status;
}

static comm_status nccl_group_connect(void *state, comm_device device, int64_t deadline_ns)
{
    struct group *g = state;
    struct communicator *c;
    int index;
    if (comm_device_index(device) < 0 && comm_device_index(g->info->device) >= 0)
        device = g->info->device;
    comm_status status = device_of(device, &index);
    if (status == COMM_OK)
        status = start_threads(g->world);
    if (status != COMM_OK)
        return status;
    unsigned int mode = capture_relax();
    pthread_mutex_lock(&g->lock);
    status = atomic_load(&g->ended) ? group_ended_why(g) : communicator_want(g, index, -1, -1, &c);
    if (status == COMM_OK)
        status = communicator_wait_ready(c, deadline_ns);
    pthread_mutex_unlock(&g->lock);
    capture_restore(mode);
    return status;
}

static void nccl_group_abort(void *state, comm_status status, const char *reason)
{
    struct group *g = state;
    pthread_mutex_lock(&g->lock);
    group_end(g, status, reason, 0);
    pthread_mutex_unlock(&g->lock);
}

static void group_free(struct group *g)
{
    struct communicator *c;
    while ((c = g->communicators)) {
        g->communicators = c->next;
        cuda.SetDevice(c->device);
        communicator_free(c);
    }
    flights_free(g);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g->excluded);
    free(g);
}

/* No child's thread comes to it any more; also not that of a child that another thread is closing. */
static void leave_children(struct group *g)
{
    pthread_mutex_lock(&g->world->lock);
    struct group *lists[] = { g->world->groups, g->world->closing };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (struct group *child = lists[i]; child; child = child->next)
            if (child->parent == g)
                child->parent = NULL;
    pthread_mutex_unlock(&g->world->lock);
}

/* With the world's lock. */
static void list_remove(struct group **list, const struct group *g)
{
    while (*list && *list != g)
        list = &(*list)->next;
    if (*list)
        *list = g->next;
}

static void begin_closing(struct group *g)
{
    struct world *w = g->world;
    pthread_mutex_lock(&w->lock);
    list_remove(&w->groups, g);
    g->next = w->closing;
    w->closing = g;
    while (w->checked == g)
        pthread_cond_wait(&w->stopped, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void end_closing(struct group *g)
{
    pthread_mutex_lock(&g->world->lock);
    list_remove(&g->world->closing, g);
    pthread_mutex_unlock(&g->world->lock);
}

static int needs_ranks(const struct communicator *c)
{
    return communicator_connects(c) || communicator_makes_child(c);
}

/* A communicator that connects, or of which NCCL makes a child's, needs ranks that may never come: then the group ends,
 * and they hear of it. */
static void stop_connecting(struct group *g)
{
    char where[128], text[TEXT_BYTES];
    int64_t until_ns = host->now_ns() + CLOSE_NS;
    pthread_mutex_lock(&g->lock);
    for (struct communicator *c = g->communicators; c && !atomic_load(&g->ended); c = c->next) {
        if (!needs_ranks(c) || communicator_wait_ready(c, until_ns) != COMM_ERR_TIMEOUT || !needs_ranks(c))
            continue;
        say_communicator(c, where, sizeof where);
        snprintf(text, sizeof text, "the group was closed before %s had come together%s", where,
                 communicator_connects(c) ? "" : " to make a group's of it");
        group_end(g, COMM_ERR_ABORTED, text, 0);
    }
    pthread_mutex_unlock(&g->lock);
}

static void nccl_group_close(void *state, int32_t forked)
{
    struct group *g = state;
    if (forked)
        return; /* CUDA does not work in a child: its memory is left alone */
    pthread_mutex_lock(&g->lock);
    g->is_closing = 1;
    pthread_mutex_unlock(&g->lock);
    stop_connecting(g);
    leave_children(g);
    begin_closing(g);
    group_finish_ending(g);
    unsigned int mode = capture_relax();
    int before, is_stuck = 0;
    cuda_status known = cuda.GetDevice(&before);
    for (struct communicator *c = g->communicators; c; c = c->next)
        communicator_end(c, 0);
    end_closing(g);
    peers_note(g);
    for (struct communicator *c = g->communicators; c; c = c->next)
        is_stuck |= c->is_stuck;
    if (!is_stuck)
        group_free(g);
    if (known == CUDA_OK)
        cuda.SetDevice(before);
    capture_restore(mode);
}

/* ---- Operations ---- */

static comm_status nccl_supports(void *state, const comm_op *op)
{
    const struct group *g = state;
    return op_supported(op, g->info->size);
}

static int has_on_stream(const comm_op *const *ops, size_t count)
{
    uint32_t flags = 0;
    for (size_t i = 0; i < count; i++)
        flags |= ops[i]->flags;
    return (flags & COMM_OP_FLAG_ON_STREAM) != 0;
}

static comm_status nccl_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct group *g = state;
    struct finished_list list;
    int on_stream = has_on_stream(ops, count), waited_for = (int)(ops[0]->flags & COMM_OP_FLAG_WAITING);
    list.count = 0;
    comm_status status = atomic_load(&g->world->has_poller) ? COMM_OK : start_threads(g->world);
    if (status != COMM_OK)
        return status;
    unsigned int mode = capture_relax();
    pthread_mutex_lock(&g->lock);
    if (atomic_load(&g->ended))
        status = flights_end(g, ops, works, count);
    else
        status = flights_submit(g, ops, works, count);
    if (on_stream)
        finished_take_enqueued(g, &list);
    pthread_mutex_unlock(&g->lock);
    capture_restore(mode);
    finished_complete(&list);
    if (list.count == FINISHED_MAX)
        group_finish(g);
    if (status == COMM_OK && (on_stream || !waited_for))
        poller_wake(g->world);
    return status;
}

static comm_status nccl_progress(void *state, comm_work *work, int64_t deadline_ns)
{
    return poll_wait(state, work, deadline_ns);
}

static comm_status nccl_wait_stream(void *state, comm_work *work, void *stream)
{
    unsigned int mode = capture_relax();
    comm_status status = flight_wait_stream(state, work, stream);
    capture_restore(mode);
    return status;
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

static const comm_backend nccl_backend = {
    COMM_BACKEND_INIT,
    .traits = COMM_BACKEND_KEEPS_DEADLINES,
    .name = "nccl",
    .version = "0.1.0",
    .license = "Apache-2.0",
    .devices = "cuda",
    .preference = 100,
    .params = params,
    .query = nccl_query,
    .world_open = nccl_world_open,
    .world_close = nccl_world_close,
    .group_open = nccl_group_open,
    .group_connect = nccl_group_connect,
    .group_abort = nccl_group_abort,
    .group_close = nccl_group_close,
    .supports = nccl_supports,
    .submit = nccl_submit,
    .progress = nccl_progress,
    .wait_stream = nccl_wait_stream,
    .memory_open = nccl_memory_open,
    .memory_close = nccl_memory_close,
    .describe_routes = describe_calls,
};

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *from);

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *from)
{
    host = from;
    return &nccl_backend;
}

/* A plugin that wraps another backend and delays what that one completes, by a random time per operation: "delay"
 * on tcp, and "delay_loopback" and "delay_pretend" on backends of these names if they are there. It is written against
 * comm/backend.h alone and shows how to wrap: the other's worlds and groups are opened with the infos of the core, ops
 * go through as they are, with works of ours. */
#include <comm/backend.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const comm_host *host;

/* Which backend, and its name with a delay: the context of the table. */
struct instance {
    const char *name, *inner_name;
    const comm_backend *inner;
    comm_backend table;
};

struct world {
    const struct instance *instance;
    void *inner;
};

struct group {
    const struct instance *instance;
    void *inner, *token;
    int64_t most_ns;
    pthread_t thread;     /* completes the works of `queue` when they are due */
    pthread_mutex_t lock; /* guards what follows; a leaf but for host functions on works that do not call out */
    pthread_cond_t changed;
    struct op *queue; /* what is back, by time */
    struct op *kept;  /* what was given back, for wait_stream: the core does not say when a work is released */
    uint64_t random;
    int aborts, closing;
};

/* An op that the other backend has. */
struct op {
    struct op *next;
    struct group *group;
    comm_work *work, *inner;
    int64_t due_ns;
    comm_status status;
    char *error;
    int references; /* the other backend's, then the queue's, then that of `kept`; one per thread in its progress */
    int is_back;
};

/* ---- Completion ---- */

static void wait_until(struct group *g, int64_t ns)
{
    struct timespec until = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
    if (ns == INT64_MAX)
        pthread_cond_wait(&g->changed, &g->lock);
    else
        pthread_cond_timedwait(&g->changed, &g->lock, &until);
}

/* Holds the lock. */
static int64_t draw_due_ns(struct group *g)
{
    int64_t now_ns = host->now_ns();
    if (g->aborts || g->most_ns == 0)
        return now_ns;
    g->random ^= g->random << 13;
    g->random ^= g->random >> 7;
    g->random ^= g->random << 17;
    return now_ns + (int64_t)(g->random % (uint64_t)g->most_ns);
}

/* The other backend has completed our work; perhaps inside its submit, with locks of the core held. */
static void is_back(comm_work *inner, comm_status status, const char *error, void *context)
{
    struct op *op = context;
    struct group *g = op->group;
    (void)inner;
    op->status = status;
    op->error = error ? strdup(error) : NULL;
    pthread_mutex_lock(&g->lock);
    op->is_back = 1;
    op->due_ns = draw_due_ns(g);
    struct op **link = &g->queue;
    while (*link && (*link)->due_ns <= op->due_ns)
        link = &(*link)->next;
    op->next = *link;
    *link = op;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* Holds the lock. */
static void drop(struct op *op)
{
    if (--op->references > 0)
        return;
    host->work_release(op->inner);
    free(op->error);
    free(op);
}

/* Give the work back, with what the other backend has said. Lets the lock go meanwhile: the user may be called. */
static void give_back(struct group *g, struct op *op)
{
    comm_work *work = op->work;
    int32_t source, tag;
    size_t count;
    host->work_facts(op->inner, &source, &tag, &count);
    if (source >= 0)
        host->work_received(work, source, tag, count);
    int is_kept = g->instance->inner->wait_stream != NULL;
    if (is_kept) {
        op->next = g->kept;
        g->kept = op;
    } else {
        *host->work_slot(work) = NULL;
    }
    comm_status status = op->status;
    pthread_mutex_unlock(&g->lock);
    host->work_complete(work, status, op->error);
    pthread_mutex_lock(&g->lock);
    if (!is_kept)
        drop(op);
    pthread_cond_broadcast(&g->changed);
}

static void *complete_when_due(void *state)
{
    struct group *g = state;
    pthread_mutex_lock(&g->lock);
    while (!g->closing || g->queue) {
        struct op *op = g->queue;
        if (op && (g->aborts || op->due_ns <= host->now_ns())) {
            g->queue = op->next;
            give_back(g, op);
        } else {
            wait_until(g, op ? op->due_ns : INT64_MAX);
        }
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- Worlds and groups ---- */

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    const struct instance *instance = context;
    struct world *w = calloc(1, sizeof *w);
    if (!w)
        return host->fail(COMM_ERR_NO_MEMORY, "a world");
    w->instance = instance;
    comm_status status = instance->inner->world_open(instance->inner->context, info, &w->inner);
    if (status == COMM_OK)
        *ret_world = w;
    else
        free(w);
    return status;
}

static void world_close(void *world, int32_t forked)
{
    struct world *w = world;
    w->instance->inner->world_close(w->inner, forked);
    free(w);
}

static comm_status begin(struct group *g)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&g->lock, NULL);
    return pthread_create(&g->thread, NULL, complete_when_due, g) == 0
               ? COMM_OK
               : host->fail(COMM_ERR_SYSTEM, "no thread to delay with");
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    const struct world *w = world;
    const struct instance *instance = w->instance;
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return host->fail(COMM_ERR_NO_MEMORY, "a group");
    g->instance = instance;
    g->token = info->token;
    g->most_ns = host->param_int(info->options, instance->name, "microseconds") * 1000;
    g->random = info->id + (uint64_t)info->rank * 0x9E3779B97F4A7C15u + 1;
    /* The parent's state is ours there, and must be the other backend's. */
    comm_group_info theirs = { 0 };
    size_t bytes = info->struct_bytes < sizeof theirs ? info->struct_bytes : sizeof theirs;
    memcpy(&theirs, info, bytes);
    theirs.struct_bytes = (uint32_t)bytes;
    theirs.parent = info->parent ? ((struct group *)info->parent)->inner : NULL;
    comm_status status = instance->inner->group_open(w->inner, &theirs, &g->inner);
    if (status == COMM_OK && (status = begin(g)) != COMM_OK)
        instance->inner->group_close(g->inner, 0);
    if (status == COMM_OK)
        *ret_state = g;
    else
        free(g);
    return status;
}

static comm_status group_connect(void *state, comm_device device, int64_t deadline_ns)
{
    struct group *g = state;
    const comm_backend *inner = g->instance->inner;
    return inner->group_connect ? inner->group_connect(g->inner, device, deadline_ns) : COMM_OK;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    struct group *g = state;
    g->instance->inner->group_abort(g->inner, status, reason);
    pthread_mutex_lock(&g->lock);
    g->aborts++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void group_close(void *state, int32_t forked)
{
    struct group *g = state;
    g->instance->inner->group_close(g->inner, forked);
    if (!forked) { /* else the thread is not here, and may have had the lock */
        pthread_mutex_lock(&g->lock);
        g->closing = 1;
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->thread, NULL);
        while (g->kept) {
            struct op *op = g->kept;
            g->kept = op->next;
            drop(op);
        }
        pthread_cond_destroy(&g->changed);
        pthread_mutex_destroy(&g->lock);
    }
    free(g);
}

/* ---- Ops ---- */

static comm_status supports(void *state, const comm_op *op)
{
    struct group *g = state;
    const comm_backend *inner = g->instance->inner;
    return inner->supports ? inner->supports(g->inner, op) : COMM_OK;
}

static struct op *new_op(struct group *g, comm_work *work)
{
    struct op *op = calloc(1, sizeof *op);
    if (!op || host->work_create(g->token, is_back, op, &op->inner) != COMM_OK) {
        free(op);
        return NULL;
    }
    op->group = g;
    op->work = work;
    op->references = 1;
    *host->work_slot(work) = op; /* before submit, as the op may be back before it returns */
    return op;
}

/* The other backend has not begun them. */
static void take_back(struct group *g, comm_work *const *works, size_t count)
{
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < count; i++) {
        drop(*host->work_slot(works[i]));
        *host->work_slot(works[i]) = NULL;
    }
    pthread_mutex_unlock(&g->lock);
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct group *g = state;
    comm_work **theirs = malloc(count * sizeof *theirs);
    comm_status status = theirs ? COMM_OK : host->fail(COMM_ERR_NO_MEMORY, "a batch");
    size_t made = 0;
    while (status == COMM_OK && made < count) {
        struct op *op = new_op(g, works[made]);
        if (op)
            theirs[made++] = op->inner;
        else
            status = host->fail(COMM_ERR_NO_MEMORY, "an operation");
    }
    if (status == COMM_OK)
        status = g->instance->inner->submit(g->inner, ops, theirs, count);
    if (status < 0)
        take_back(g, works, made);
    free(theirs);
    return status;
}

/* An op that is begun at once would not be delayed: only without a delay. */
static comm_status run(void *state, const comm_op *op, int64_t spin_ns)
{
    struct group *g = state;
    if (g->most_ns > 0)
        return host->fail(COMM_ERR_UNSUPPORTED, "it is to be delayed");
    return g->instance->inner->run(g->inner, op, spin_ns);
}

static comm_status wait_stream(void *state, comm_work *work, void *stream)
{
    struct group *g = state;
    const struct op *op = *host->work_slot(work);
    return g->instance->inner->wait_stream(g->inner, op->inner, stream);
}

/* While the other backend has the op, help there; then sleep until the op is due. Holds the lock. */
static void help(struct group *g, comm_work *work, int64_t deadline_ns)
{
    const comm_backend *inner = g->instance->inner;
    struct op *op = *host->work_slot(work);
    if (!op || op->is_back || !inner->progress) {
        if (deadline_ns)
            wait_until(g, deadline_ns);
        return;
    }
    op->references++;
    pthread_mutex_unlock(&g->lock);
    inner->progress(g->inner, op->inner, deadline_ns);
    pthread_mutex_lock(&g->lock);
    drop(op);
}

static comm_status progress(void *state, comm_work *work, int64_t deadline_ns)
{
    struct group *g = state;
    pthread_mutex_lock(&g->lock);
    int aborts = g->aborts;
    do
        if (!host->work_done(work))
            help(g, work, deadline_ns);
    while (!host->work_done(work) && g->aborts == aborts && host->now_ns() < deadline_ns);
    pthread_mutex_unlock(&g->lock);
    return COMM_OK;
}

static comm_status memory_open(void *state, comm_memory_info *info, void **ret_handle)
{
    struct group *g = state;
    return g->instance->inner->memory_open(g->inner, info, ret_handle);
}

static void memory_close(void *state, void *handle, int32_t forked)
{
    struct group *g = state;
    g->instance->inner->memory_close(g->inner, handle, forked);
}

static comm_status query(void *context)
{
    const struct instance *instance = context;
    return instance->inner->query ? instance->inner->query(instance->inner->context) : COMM_OK;
}

/* ---- The tables ---- */

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* What the other backend does not know must not reach it, so this one does not know it either. */
static const comm_backend *make(struct instance *instance, const comm_backend *next)
{
    static const comm_backend_param microseconds = {
        sizeof microseconds, COMM_PARAM_INT, "microseconds", "300", 0, 10000000, "the longest delay of an operation"
    };
    static const comm_backend_param *const params[] = { &microseconds, NULL };
    const comm_backend *inner;
    if (host->backend_find(instance->inner_name, &inner) != COMM_OK)
        return next;
    instance->inner = inner;
    instance->table = (comm_backend){ COMM_BACKEND_INIT,
                                      .name = instance->name,
                                      .version = "1",
                                      .license = "Apache-2.0",
                                      .devices = inner->devices,
                                      .traits = inner->traits,
                                      .context = instance,
                                      .params = params,
                                      .next = next,
                                      .query = query,
                                      .world_open = world_open,
                                      .world_close = world_close,
                                      .group_open = group_open,
                                      .group_connect = group_connect,
                                      .group_abort = group_abort,
                                      .group_close = group_close,
                                      .supports = supports,
                                      .submit = submit,
                                      .run = inner->run ? run : NULL,
                                      .progress = progress,
                                      .wait_stream = inner->wait_stream ? wait_stream : NULL,
                                      .memory_open = inner->memory_open ? memory_open : NULL,
                                      .memory_close = inner->memory_open ? memory_close : NULL };
    instance->table.op_flags &= inner->op_flags;
    instance->table.kind_end = smaller(instance->table.kind_end, inner->kind_end);
    instance->table.dtype_end = smaller(instance->table.dtype_end, inner->dtype_end);
    instance->table.redop_end = smaller(instance->table.redop_end, inner->redop_end);
    return &instance->table;
}

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given);
COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given)
{
    static struct instance on_tcp = { .name = "delay", .inner_name = "tcp" };
    static struct instance on_loopback = { .name = "delay_loopback", .inner_name = "loopback" };
    static struct instance on_pretend = { .name = "delay_pretend", .inner_name = "pretend" };
    host = given;
    return make(&on_tcp, make(&on_loopback, make(&on_pretend, NULL)));
}

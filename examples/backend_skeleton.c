/* A backend to begin from: small, but whole. It moves data through the world's store, which is slow and needs nothing
 * else, so that all of it is about libcomm and nothing about a network. docs/backends.md explains it step by step.
 *
 * Each group has a thread that takes its operations in order. For operation `seq` each rank sets a key with what it
 * sends, gets the keys of all ranks, and works out its own result. It does broadcast, all_reduce, all_gather and
 * barrier. */
#include <comm/backend.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* What libcomm offers; lives for ever. */
static const comm_host *host;

/* An operation that waits for its turn, or has it. */
struct job {
    struct job *next;
    comm_op op;
    comm_work *work;
};

struct world {
    void *store;
};

struct group {
    void *store, *token;
    uint64_t id;
    int32_t rank, size;
    int64_t max_bytes;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows. Never held while a work is completed: the user may be called then */
    pthread_cond_t changed;
    struct job *first, **last;
    int closing;
    comm_status ended; /* why nothing is taken any more */
    char reason[512];
};

/* What a rank sends, as it is in the store. */
struct piece {
    uint64_t signature; /* ranks that call different operations are told so */
    char data[];
};

/* ---- Operations ---- */

static void write_key(const struct group *g, uint64_t seq, int32_t rank, char key[80])
{
    snprintf(key, 80, "%016" PRIx64 "/%" PRIu64 "/%d", g->id, seq, rank);
}

static comm_status set_own(const struct group *g, const comm_op *op)
{
    char key[80];
    size_t bytes = op->send.count * op->element_bytes;
    struct piece *piece = malloc(sizeof *piece + bytes);
    if (!piece)
        return host->fail(COMM_ERR_NO_MEMORY, "a copy of what is sent");
    piece->signature = op->signature;
    if (bytes)
        memcpy(piece->data, op->send.data, bytes);
    write_key(g, op->seq, g->rank, key);
    comm_status status = host->store_set(g->store, key, piece, sizeof *piece + bytes);
    free(piece);
    return status;
}

/* Get the pieces of all ranks. The wait ends, with an error, when the group does. The core ends the group at an
 * operation's time limit, as this backend does not say KEEPS_DEADLINES. */
static comm_status get_all(const struct group *g, const comm_op *op, struct piece **pieces)
{
    char key[80], text[160];
    for (int32_t r = 0; r < g->size; r++) {
        void *data;
        size_t bytes;
        write_key(g, op->seq, r, key);
        comm_status status = host->store_get(g->store, g->token, key, COMM_TIMEOUT_INFINITE, &data, &bytes);
        if (status != COMM_OK)
            return status;
        pieces[r] = data;
        if (bytes >= sizeof *pieces[r] && pieces[r]->signature == op->signature)
            continue;
        snprintf(text, sizeof text, "rank %d called another operation, or this one with other arguments", r);
        return host->fail(COMM_ERR_MISMATCH, text);
    }
    return COMM_OK;
}

static comm_status reduce(const struct group *g, const comm_op *op, struct piece *const *pieces)
{
    const void **sources = calloc((size_t)g->size, sizeof *sources);
    if (!sources)
        return host->fail(COMM_ERR_NO_MEMORY, "a list of what is reduced");
    for (int32_t r = 0; r < g->size; r++)
        sources[r] = pieces[r]->data;
    comm_status status =
        host->reduce_many(op->recv.data, sources, (size_t)g->size, op->recv.count, op->redop, op->dtype);
    free(sources);
    return status;
}

/* Equal signatures say that the pieces are as long as this rank expects. */
static comm_status combine(const struct group *g, const comm_op *op, struct piece *const *pieces)
{
    size_t count = op->recv.count;
    if (op->kind == COMM_OP_ALL_REDUCE)
        return reduce(g, op, pieces);
    if (op->kind == COMM_OP_BROADCAST && g->rank != op->root && count > 0)
        memcpy(op->recv.data, pieces[op->root]->data, count * op->element_bytes);
    for (int32_t r = 0; op->kind == COMM_OP_ALL_GATHER && r < g->size; r++) {
        void *block = comm_op_block(&op->recv, op->element_bytes, r, &count);
        if (count > 0)
            memcpy(block, pieces[r]->data, count * op->element_bytes);
    }
    return COMM_OK;
}

static comm_status run_op(const struct group *g, const comm_op *op)
{
    char key[80];
    struct piece **pieces = calloc((size_t)g->size, sizeof *pieces);
    if (!pieces)
        return host->fail(COMM_ERR_NO_MEMORY, "a list of what the ranks send");
    comm_status status = set_own(g, op);
    if (status == COMM_OK)
        status = get_all(g, op, pieces);
    if (status == COMM_OK)
        status = combine(g, op, pieces);
    for (int32_t r = 0; r < g->size; r++)
        host->free_memory(pieces[r]);
    free(pieces);
    /* A rank that is at this operation has finished the one before. */
    write_key(g, op->seq - 1, g->rank, key);
    if (status == COMM_OK && op->seq > 1)
        status = host->store_delete(g->store, key);
    return status;
}

static void *run_ops(void *state)
{
    struct group *g = state;
    pthread_mutex_lock(&g->lock);
    while (g->first || !g->closing) {
        struct job *job = g->first;
        if (!job) {
            pthread_cond_wait(&g->changed, &g->lock);
            continue;
        }
        g->first = job->next;
        if (!g->first)
            g->last = &g->first;
        pthread_mutex_unlock(&g->lock);
        comm_status status = run_op(g, &job->op);
        host->work_complete(job->work, status, status == COMM_OK ? NULL : host->last_error());
        free(job);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- Slots ---- */

/* Local: no other rank is waited for. A backend that listens would open its socket here and set its address in the
 * store. */
static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    struct world *w = calloc(1, sizeof *w);
    (void)context;
    if (!w)
        return host->fail(COMM_ERR_NO_MEMORY, "a world");
    w->store = info->store;
    *ret_world = w;
    return COMM_OK;
}

static void world_close(void *world, int32_t forked)
{
    (void)forked;
    free(world);
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return host->fail(COMM_ERR_NO_MEMORY, "a group");
    g->store = ((struct world *)world)->store;
    g->token = info->token;
    g->id = info->id;
    g->rank = info->rank;
    g->size = info->size;
    g->max_bytes = host->param_int(info->options, "skeleton", "max_bytes");
    g->last = &g->first;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    if (pthread_create(&g->thread, NULL, run_ops, g) != 0) {
        free(g);
        return host->fail(COMM_ERR_SYSTEM, "a thread for the group could not be started");
    }
    *ret_state = g;
    return COMM_OK;
}

/* What has not begun ends here. What has begun is waiting for a key, and ends because the group has ended. */
static void group_abort(void *state, comm_status status, const char *reason)
{
    struct group *g = state;
    pthread_mutex_lock(&g->lock);
    if (g->ended == COMM_OK) {
        g->ended = status;
        snprintf(g->reason, sizeof g->reason, "%s", reason);
    }
    struct job *job = g->first;
    g->first = NULL;
    g->last = &g->first;
    pthread_mutex_unlock(&g->lock);
    while (job) {
        struct job *next = job->next;
        host->work_complete(job->work, status, reason);
        free(job);
        job = next;
    }
}

static void group_close(void *state, int32_t forked)
{
    struct group *g = state;
    if (!forked) { /* in a child of fork() there is no thread */
        pthread_mutex_lock(&g->lock);
        g->closing = 1;
        pthread_cond_signal(&g->changed);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->thread, NULL);
        pthread_cond_destroy(&g->changed);
        pthread_mutex_destroy(&g->lock);
    }
    free(g);
}

/* All ranks must answer alike, so only what they have alike may count. */
static comm_status supports(void *state, const comm_op *op)
{
    const struct group *g = state;
    int can = op->kind == COMM_OP_BROADCAST || op->kind == COMM_OP_ALL_REDUCE || op->kind == COMM_OP_ALL_GATHER ||
              op->kind == COMM_OP_BARRIER;
    char text[160];
    if (!can || (op->flags & COMM_OP_FLAG_UNEVEN)) {
        snprintf(text, sizeof text, "it can broadcast, all_reduce, all_gather and barrier only, blocks of one size");
        return host->fail(COMM_ERR_UNSUPPORTED, text);
    }
    if (op->kind == COMM_OP_ALL_REDUCE && (op->redop == COMM_REDOP_PREMUL_SUM || op->redop == COMM_REDOP_USER)) {
        snprintf(text, sizeof text, "it cannot reduce by %s", host->redop_name(op->redop));
        return host->fail(COMM_ERR_UNSUPPORTED, text);
    }
    size_t bytes = (op->send.count > op->recv.count ? op->send.count : op->recv.count) * op->element_bytes;
    if (bytes > (size_t)g->max_bytes) {
        snprintf(text, sizeof text, "%zu bytes are more than max_bytes, which is %" PRId64, bytes, g->max_bytes);
        return host->fail(COMM_ERR_UNSUPPORTED, text);
    }
    return COMM_OK;
}

static void free_jobs(struct job *job)
{
    while (job) {
        struct job *next = job->next;
        free(job);
        job = next;
    }
}

/* Take all or nothing. The ops are lent for this call only, so they are copied; what they point to stays. */
static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct group *g = state;
    struct job *first = NULL, **last = &first;
    for (size_t i = 0; i < count; i++) {
        struct job *job = calloc(1, sizeof *job);
        if (!job) {
            free_jobs(first);
            return host->fail(COMM_ERR_NO_MEMORY, "an operation");
        }
        comm_op_copy(&job->op, ops[i]);
        job->work = works[i];
        *last = job;
        last = &job->next;
    }
    pthread_mutex_lock(&g->lock);
    comm_status ended = g->ended;
    if (ended == COMM_OK) {
        *g->last = first;
        g->last = last;
        pthread_cond_signal(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    if (ended == COMM_OK)
        return COMM_OK;
    free_jobs(first);
    return host->fail(ended, g->reason);
}

static void describe_routes(void *context, void (*line)(const char *text, void *line_context), void *line_context)
{
    (void)context;
    line("everything: each rank sets a key in the store and gets those of all", line_context);
}

/* ---- The table ---- */

static const comm_backend_param max_bytes = {
    sizeof max_bytes, COMM_PARAM_BYTES | COMM_PARAM_AGREED, "max_bytes", "1M", 0, (int64_t)1 << 30,
    "longer buffers are refused; the same on all ranks",
};
static const comm_backend_param *const params[] = { &max_bytes, NULL };

static const comm_backend backend = {
    COMM_BACKEND_INIT,
    .name = "skeleton",
    .version = "1",
    .license = "Apache-2.0",
    .devices = "cpu",
    .traits = COMM_BACKEND_CHECKS_SIGNATURES,
    .params = params,
    .world_open = world_open,
    .world_close = world_close,
    .group_open = group_open,
    .group_abort = group_abort,
    .group_close = group_close,
    .supports = supports,
    .submit = submit,
    .describe_routes = describe_routes,
};

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given);
COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given)
{
    host = given;
    return &backend;
}

/* The simplest backend that is right: the rank that comes last to a collective does all of it, for every rank, one
 * after the other, from copies of what the ranks send. It uses comm/backend.h and nothing else, so it also shows that
 * the ABI suffices. It has no threads and no progress slot: the core sleeps until the last one has come. Deadlines are
 * left to the core. */
#include "loopback.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const comm_host *host;

/* One rank's part in an op. */
struct part {
    struct part *next;
    comm_op op;
    comm_work *work;
    int32_t rank;
    comm_status status; /* what to complete the work with */
    char error[400];
};

/* One collective that is coming together. */
struct meeting {
    struct meeting *next;
    uint64_t seq;
    int32_t came;
    struct part *parts[]; /* by rank */
};

/* What the ranks of a group share; found by the group's id. Guarded by `lock`. */
struct hub {
    struct hub *next;
    uint64_t id;
    int32_t size, open;
    comm_status ended;
    char ended_text[400];
    struct meeting *meetings;
    struct part *messages; /* sends and receives without a partner, oldest first */
};

struct state {
    struct hub *hub;
    int32_t rank;
    void *token;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hub *hubs;

/* ---- Parts that are done, and are completed without the lock ---- */

struct done {
    struct part *first, **last;
};

static void finish(struct done *done, struct part *part, comm_status status, const char *error)
{
    part->status = status;
    snprintf(part->error, sizeof part->error, "%s", error ? error : "");
    part->next = NULL;
    *done->last = part;
    done->last = &part->next;
}

static void complete(struct done *done)
{
    while (done->first) {
        struct part *part = done->first;
        done->first = part->next;
        host->work_complete(part->work, part->status, part->error);
        free(part);
    }
}

/* ---- The operations ---- */

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    if (bytes)
        memcpy(copy, data, bytes);
    return copy;
}

/* What rank `from` sends to rank `to`: its block `to`, or all that it has; as a copy. */
static void *sent(struct part *const *parts, int32_t from, int32_t to, int has_blocks, size_t *ret_count)
{
    const comm_op *op = &parts[from]->op;
    size_t element = op->element_bytes;
    if (has_blocks) {
        const void *block = comm_op_block(&op->send, element, to, ret_count);
        return copy_of(block, *ret_count * element);
    }
    *ret_count = op->send.count;
    return copy_of(op->send.data, *ret_count * element);
}

/* dst = the reduction of what all ranks send to `to`. */
static void reduce(struct part *const *parts, int32_t size, int32_t to, int has_blocks, void *dst)
{
    const comm_op *op = &parts[0]->op;
    void **sources = calloc((size_t)size, sizeof *sources);
    size_t count = 0, element = op->element_bytes;
    for (int32_t r = 0; r < size; r++) {
        sources[r] = sent(parts, r, to, has_blocks, &count);
        if (op->redop == COMM_REDOP_PREMUL_SUM)
            host->premultiply(sources[r], sources[r], count, op->dtype, parts[r]->op.premul);
    }
    if (op->redop == COMM_REDOP_USER) {
        for (int32_t r = size - 2; r >= 0; r--)
            op->reduce_fn(sources[r], sources[size - 1], count, op->dtype, op->reduce_context);
        if (count)
            memcpy(dst, sources[size - 1], count * element);
    } else if (count) {
        host->reduce_many(dst, (const void *const *)sources, (size_t)size, count,
                          op->redop == COMM_REDOP_PREMUL_SUM ? COMM_REDOP_SUM : op->redop, op->dtype);
    }
    for (int32_t r = 0; r < size; r++)
        free(sources[r]);
    free(sources);
}

/* All results are computed before any is written: buffers may be in place. */
struct result {
    void *dst, *data;
    size_t bytes;
};

static size_t add_result(struct result *results, size_t at, void *dst, void *data, size_t bytes)
{
    results[at] = (struct result){ dst, data, bytes };
    return at + 1;
}

/* Rank `to`'s results. Returns 0 if a block is not as long as the receiver expects. */
static int results_of(struct part *const *parts, int32_t size, int32_t to, struct result *results, size_t *at)
{
    const comm_op *op = &parts[to]->op;
    size_t element = op->element_bytes, count, expected;
    int32_t kind = op->kind;
    int from_blocks = kind == COMM_OP_SCATTER || kind == COMM_OP_REDUCE_SCATTER || kind == COMM_OP_ALL_TO_ALL;
    if (kind == COMM_OP_BARRIER || ((kind == COMM_OP_GATHER || kind == COMM_OP_REDUCE) && to != op->root) ||
        (kind == COMM_OP_BROADCAST && to == op->root))
        return 1;
    if (kind == COMM_OP_ALL_REDUCE || kind == COMM_OP_REDUCE || kind == COMM_OP_REDUCE_SCATTER) {
        void *data = malloc(op->recv.count * element + 1);
        reduce(parts, size, to, from_blocks, data);
        *at = add_result(results, *at, op->recv.data, data, op->recv.count * element);
        return 1;
    }
    for (int32_t from = 0; from < size; from++) {
        if ((kind == COMM_OP_SCATTER || kind == COMM_OP_BROADCAST) && from != op->root)
            continue;
        void *data = sent(parts, from, to, from_blocks, &count), *dst = op->recv.data;
        expected = op->recv.count;
        if (kind == COMM_OP_ALL_GATHER || kind == COMM_OP_GATHER || kind == COMM_OP_ALL_TO_ALL)
            dst = comm_op_block(&op->recv, element, from, &expected);
        *at = add_result(results, *at, dst, data, count * element);
        if (count != expected)
            return 0;
    }
    return 1;
}

static const char *run(struct part *const *parts, int32_t size)
{
    const char *error = NULL;
    struct result *results = calloc((size_t)size * (size_t)size, sizeof *results);
    size_t count = 0;
    for (int32_t r = 1; r < size; r++)
        if (parts[r]->op.signature != parts[0]->op.signature)
            error = "the ranks called different operations";
    for (int32_t to = 0; !error && to < size; to++)
        if (!results_of(parts, size, to, results, &count))
            error = "a rank sends a block of another length than its receiver expects";
    for (size_t i = 0; i < count; i++) {
        if (!error && results[i].bytes)
            memcpy(results[i].dst, results[i].data, results[i].bytes);
        free(results[i].data);
    }
    free(results);
    return error;
}

/* ---- Coming together ---- */

static void end_all(struct hub *hub, comm_status status, const char *reason, struct done *done)
{
    if (hub->ended == COMM_OK) {
        hub->ended = status;
        snprintf(hub->ended_text, sizeof hub->ended_text, "%s", reason);
    }
    while (hub->meetings) {
        struct meeting *m = hub->meetings;
        hub->meetings = m->next;
        for (int32_t r = 0; r < hub->size; r++)
            if (m->parts[r])
                finish(done, m->parts[r], status, reason);
        free(m);
    }
    while (hub->messages) {
        struct part *part = hub->messages;
        hub->messages = part->next;
        finish(done, part, status, reason);
    }
}

static void join_collective(struct hub *hub, struct part *part, struct done *done)
{
    struct meeting **link = &hub->meetings;
    while (*link && (*link)->seq != part->op.seq)
        link = &(*link)->next;
    struct meeting *m = *link;
    if (!m) {
        m = *link = calloc(1, sizeof *m + (size_t)hub->size * sizeof *m->parts);
        m->seq = part->op.seq;
    }
    m->parts[part->rank] = part;
    if (++m->came < hub->size)
        return;
    *link = m->next;
    const char *error = run(m->parts, hub->size);
    for (int32_t r = 0; r < hub->size; r++)
        finish(done, m->parts[r], error ? COMM_ERR_MISMATCH : COMM_OK, error);
    free(m);
    if (error)
        end_all(hub, COMM_ERR_MISMATCH, error, done);
}

static int is_match(const struct part *send, const struct part *recv)
{
    return send->op.kind == COMM_OP_SEND && recv->op.kind == COMM_OP_RECV && send->op.root == recv->rank &&
           (recv->op.root == COMM_ANY_SOURCE || recv->op.root == send->rank) &&
           (recv->op.tag == send->op.tag || (recv->op.tag == COMM_ANY_TAG && send->op.tag >= 0));
}

static void deliver(struct part *send, struct part *recv, struct done *done)
{
    size_t element = recv->op.element_bytes, bytes = send->op.send.count * send->op.element_bytes;
    size_t capacity = recv->op.recv.count * element;
    if (bytes && capacity)
        memcpy(recv->op.recv.data, send->op.send.data, bytes < capacity ? bytes : capacity);
    host->work_received(recv->work, send->rank, send->op.tag, (bytes < capacity ? bytes : capacity) / element);
    finish(done, send, COMM_OK, NULL);
    char text[128];
    snprintf(text, sizeof text, "a message of %zu B for a receive of %zu B", bytes, capacity);
    finish(done, recv, bytes > capacity ? COMM_ERR_TRUNCATED : COMM_OK, bytes > capacity ? text : NULL);
}

static void join_message(struct hub *hub, struct part *part, struct done *done)
{
    struct part **link = &hub->messages;
    for (; *link; link = &(*link)->next) {
        struct part *other = *link;
        int sends = part->op.kind == COMM_OP_SEND;
        if (!is_match(sends ? part : other, sends ? other : part))
            continue;
        *link = other->next;
        deliver(sends ? part : other, sends ? other : part, done);
        return;
    }
    part->next = NULL;
    *link = part;
}

/* ---- The slots ---- */

static int the_world; /* has no state: groups find each other by their ids */

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context, (void)info;
    *ret_world = &the_world;
    return COMM_OK;
}

static void world_close(void *world, int32_t forked)
{
    (void)world, (void)forked;
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    (void)world;
    struct state *state = calloc(1, sizeof *state);
    pthread_mutex_lock(&lock);
    struct hub *hub = hubs;
    while (hub && hub->id != info->id)
        hub = hub->next;
    if (!hub) {
        hub = calloc(1, sizeof *hub);
        hub->id = info->id;
        hub->size = info->size;
        hub->next = hubs;
        hubs = hub;
    }
    hub->open++;
    pthread_mutex_unlock(&lock);
    state->hub = hub;
    state->rank = info->rank;
    state->token = info->token;
    *ret_state = state;
    return COMM_OK;
}

static void group_abort(void *opaque, comm_status status, const char *reason)
{
    struct state *state = opaque;
    struct done done = { NULL, &done.first };
    pthread_mutex_lock(&lock);
    end_all(state->hub, status, reason, &done);
    pthread_mutex_unlock(&lock);
    complete(&done);
}

static void group_close(void *opaque, int32_t forked)
{
    struct state *state = opaque;
    if (!forked) {
        pthread_mutex_lock(&lock);
        struct hub *hub = state->hub, **link = &hubs;
        if (--hub->open == 0) {
            while (*link != hub)
                link = &(*link)->next;
            *link = hub->next;
            free(hub);
        }
        pthread_mutex_unlock(&lock);
    }
    free(state);
}

static comm_status submit(void *opaque, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct state *state = opaque;
    struct hub *hub = state->hub;
    struct done done = { NULL, &done.first };
    pthread_mutex_lock(&lock);
    if (hub->ended != COMM_OK) {
        comm_status status = host->fail(hub->ended, hub->ended_text);
        pthread_mutex_unlock(&lock);
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        struct part *part = calloc(1, sizeof *part);
        comm_op_copy(&part->op, ops[i]);
        part->work = works[i];
        part->rank = state->rank;
        if (comm_op_traits_of(ops[i]->kind)->traits & COMM_OP_TRAIT_PEER)
            join_message(hub, part, &done);
        else
            join_collective(hub, part, &done);
    }
    pthread_mutex_unlock(&lock);
    complete(&done);
    return COMM_OK;
}

const comm_backend *loopback_entry(const comm_host *given)
{
    static const comm_backend backend = {
        COMM_BACKEND_INIT,
        .traits = COMM_BACKEND_CHECKS_SIGNATURES,
        .name = "loopback",
        .version = "1",
        .license = "Apache-2.0",
        .devices = "cpu,xpu",
        .world_open = world_open,
        .world_close = world_close,
        .group_open = group_open,
        .group_abort = group_abort,
        .group_close = group_close,
        .submit = submit,
    };
    host = given;
    return &backend;
}

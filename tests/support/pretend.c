/* Wraps the loopback backend. */
#include "pretend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loopback.h"

struct pretend_stream pretend_default;
comm_op pretend_last;
int pretend_pieces, pretend_pieces_forked, pretend_no_handle;
comm_status pretend_status;
const char *pretend_text;
atomic_int pretend_expected, pretend_in_connect, pretend_connects;
comm_device pretend_device;

static const comm_host *host;
static comm_backend inner;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int rounds; /* of connecting that are over; guarded by lock, as is `aborted` */

struct state {
    void *inner;
    int aborted;
};

struct piece {
    void *allocated;
};

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct state *state = calloc(1, sizeof *state);
    *ret_state = state;
    return inner.group_open(world, info, &state->inner);
}

static void group_abort(void *opaque, comm_status status, const char *reason)
{
    struct state *state = opaque;
    pthread_mutex_lock(&lock);
    state->aborted = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    inner.group_abort(state->inner, status, reason);
}

static void group_close(void *opaque, int32_t forked)
{
    struct state *state = opaque;
    inner.group_close(state->inner, forked);
    free(state);
}

/* Wait until all have come; 0 if the time is over or the group was aborted. */
static int meet(const struct state *state, int64_t deadline_ns)
{
    int round = rounds;
    if (atomic_fetch_add(&pretend_in_connect, 1) + 1 == pretend_expected) {
        atomic_store(&pretend_in_connect, 0);
        rounds++;
        pthread_cond_broadcast(&changed);
    }
    while (rounds == round && !state->aborted && host->now_ns() < deadline_ns) {
        struct timespec until; /* in small pieces: this condition has the other clock */
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&changed, &lock, &until);
    }
    if (rounds == round)
        atomic_fetch_sub(&pretend_in_connect, 1);
    return rounds != round;
}

static comm_status group_connect(void *opaque, comm_device device, int64_t deadline_ns)
{
    const struct state *state = opaque;
    if (pretend_status != COMM_OK)
        return host->fail(pretend_status, pretend_text);
    pthread_mutex_lock(&lock);
    pretend_device = device;
    atomic_fetch_add(&pretend_connects, 1);
    int met = meet(state, deadline_ns);
    pthread_mutex_unlock(&lock);
    return met ? COMM_OK : host->fail(COMM_ERR_TIMEOUT, "connecting timed out: not all ranks have come");
}

/* ---- Streams ---- */

static struct pretend_stream *stream_of(void *stream)
{
    return stream ? stream : &pretend_default;
}

static comm_status submit(void *opaque, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct state *state = opaque;
    pthread_mutex_lock(&lock); /* ranks are threads */
    pretend_last = *ops[count - 1];
    pthread_mutex_unlock(&lock);
    if (!(ops[0]->flags & COMM_OP_FLAG_ON_STREAM))
        return inner.submit(state->inner, ops, works, count);
    for (size_t i = 0; i < count; i++) {
        struct pretend_stream *stream = stream_of(ops[i]->stream);
        stream->ops[stream->queued++] = *ops[i];
        host->work_complete(works[i], COMM_OK, NULL);
    }
    return COMM_OK;
}

void pretend_run(struct pretend_stream *stream)
{
    for (int i = 0; i < stream->queued; i++) {
        const comm_op *op = &stream->ops[i];
        const float factor = op->premul ? *(const float *)op->premul : 1;
        for (size_t j = 0; j < op->send.count; j++)
            ((float *)op->recv.data)[j] = factor * ((const float *)op->send.data)[j];
    }
    stream->queued = 0;
}

static comm_status wait_stream(void *opaque, comm_work *work, void *stream)
{
    (void)opaque, (void)work;
    stream_of(stream)->waits++;
    return COMM_OK;
}

/* ---- Memory ---- */

static comm_status memory_open(void *opaque, comm_memory_info *info, void **ret_handle)
{
    (void)opaque;
    if (pretend_status != COMM_OK)
        return host->fail(pretend_status, pretend_text);
    if (pretend_no_handle)
        return COMM_OK;
    struct piece *piece = calloc(1, sizeof *piece);
    if (!info->data)
        info->data = piece->allocated = malloc(info->bytes);
    pretend_pieces++;
    pretend_device = info->device;
    *ret_handle = piece;
    return COMM_OK;
}

static void memory_close(void *opaque, void *handle, int32_t forked)
{
    struct piece *piece = handle;
    (void)opaque;
    pretend_pieces--;
    pretend_pieces_forked += forked;
    free(piece->allocated);
    free(piece);
}

const comm_backend *pretend_entry(const comm_host *given)
{
    static comm_backend backend;
    host = given;
    inner = *loopback_entry(given);
    backend = inner;
    backend.name = "pretend";
    backend.devices = "xpu";
    backend.group_open = group_open;
    backend.group_abort = group_abort;
    backend.group_close = group_close;
    backend.group_connect = group_connect;
    backend.submit = submit;
    backend.wait_stream = wait_stream;
    backend.memory_open = memory_open;
    backend.memory_close = memory_close;
    return &backend;
}

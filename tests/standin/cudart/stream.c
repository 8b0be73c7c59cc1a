/* Streams: a thread each, which runs what is enqueued, in order. */
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

#define LEGACY ((cuda_stream)1)
#define PER_THREAD ((cuda_stream)2)
enum { LAUNCH_STREAMS_MAX = 64 };

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct CUstream_st *streams;
static struct CUstream_st *legacy[DEVICES_MAX];
static _Thread_local struct CUstream_st *per_thread[DEVICES_MAX];
static bool actor_used[ACTORS_MAX];
static uint32_t actor_time[ACTORS_MAX];

void node_free(struct node *node)
{
    if (node->kind != NODE_RUN)
        point_release(node->point);
    free(node);
}

/* Locked, but not while it runs. */
static void node_run(struct node *node)
{
    if (node->kind == NODE_WAIT) {
        point_await(node->point);
        return;
    }
    pthread_mutex_unlock(&lock);
    standin_delay();
    if (node->kind == NODE_RUN) {
        node->run(node->argument);
        if (node->release)
            node->release(node->argument);
    }
    pthread_mutex_lock(&lock);
    if (node->kind == NODE_RECORD)
        point_reach(node->point);
}

static void *stream_main(void *argument)
{
    cuda_stream stream = argument;
    pthread_mutex_lock(&lock);
    while (stream->head || !stream->is_closed) {
        struct node *node = stream->head;
        if (!node) {
            pthread_cond_wait(&stream->work, &lock);
            continue;
        }
        stream->head = node->next;
        if (!node->next)
            stream->tail = &stream->head;
        stream->is_busy = true;
        node_run(node);
        node_free(node);
        stream->is_busy = false;
    }
    actor_time[stream->actor] = stream->clock.at[stream->actor];
    actor_used[stream->actor] = false;
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&stream->work);
    standin_quarantine(stream);
    return NULL;
}

static int actor_take(void)
{
    for (int i = 0; i < ACTORS_MAX; i++)
        if (!actor_used[i]) {
            actor_used[i] = true;
            return i;
        }
    return -1;
}

/* Locked. NULL: there are too many. */
static cuda_stream stream_create(int device, bool is_blocking)
{
    int actor = actor_take();
    if (actor < 0)
        return NULL;
    cuda_stream stream = calloc(1, sizeof *stream);
    stream->is_blocking = is_blocking;
    stream->device = device;
    stream->actor = actor;
    stream->tail = &stream->head;
    clock_merge(&stream->clock, &host_clock);
    stream->clock.at[actor] = actor_time[actor];
    pthread_cond_init(&stream->work, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, stream_main, stream))
        abort();
    pthread_detach(thread);
    stream->next = streams;
    streams = stream;
    return stream;
}

static cuda_stream legacy_stream(int device)
{
    if (!legacy[device]) {
        legacy[device] = stream_create(device, false);
        legacy[device]->is_default = true;
    }
    return legacy[device];
}

cuda_stream stream_find(cuda_stream handle, int device, const char *call)
{
    if (!handle || handle == LEGACY)
        return legacy_stream(device);
    if (handle == PER_THREAD && !per_thread[device])
        per_thread[device] = stream_create(device, true);
    if (handle == PER_THREAD)
        return per_thread[device];
    for (cuda_stream stream = streams; stream; stream = stream->next)
        if (stream == handle)
            return stream;
    standin_rule("use a stream between its creation and its destruction", "%s on stream %p, which does not exist", call,
                 (void *)handle);
    return NULL;
}

static void push(cuda_stream stream, struct node *node)
{
    *stream->tail = node;
    stream->tail = &node->next;
    pthread_cond_signal(&stream->work);
}

void stream_run(cuda_stream stream, void (*run)(void *), void (*release)(void *), void *argument)
{
    struct node *node = malloc(sizeof *node);
    *node = (struct node){.kind = NODE_RUN, .run = run, .release = release, .argument = argument};
    if (stream->capture)
        capture_push(stream, node, NULL);
    else
        push(stream, node);
}

void stream_wait(cuda_stream stream, struct point *point)
{
    if (!point || point->done)
        return;
    struct node *node = malloc(sizeof *node);
    *node = (struct node){.kind = NODE_WAIT, .point = point_ref(point)};
    push(stream, node);
}

struct point *stream_end(cuda_stream stream)
{
    if (!stream->head && !stream->is_busy)
        return NULL;
    struct node *node = malloc(sizeof *node);
    *node = (struct node){.kind = NODE_RECORD, .point = point_create(&stream->clock)};
    push(stream, node);
    return point_ref(node->point);
}

static void order_after(cuda_stream stream, cuda_stream before)
{
    clock_merge(&stream->clock, &before->clock);
    if (stream->capture)
        return;
    struct point *end = stream_end(before);
    stream_wait(stream, end);
    point_release(end);
}

static bool check_held(cuda_stream stream, const char *call)
{
    if (stream->held)
        standin_rule("poll ncclCommGetAsyncError until it is not ncclInProgress any more",
                     "%s on a stream on which %s is still being launched", call, stream->held_text);
    return !stream->held;
}

bool stream_order(cuda_stream stream, const char *call)
{
    if (!check_held(stream, call))
        return false;
    if (stream->capture)
        return true;
    clock_merge(&stream->clock, &host_clock);
    if (!stream->is_default) {
        if (stream->is_blocking && legacy[stream->device])
            order_after(stream, legacy[stream->device]);
        return true;
    }
    for (cuda_stream other = streams; other; other = other->next) {
        if (!other->is_blocking || other->device != stream->device)
            continue;
        if (other->capture) {
            capture_spoil(other->capture, CUDA_CAPTURE_IMPLICIT, call,
                          "capture in streams made with cudaStreamNonBlocking, or keep off the default stream");
            return false;
        }
        order_after(stream, other);
    }
    return true;
}

bool stream_begin(cuda_stream stream, const char *call)
{
    bool may = stream_order(stream, call);
    stream->clock.at[stream->actor]++;
    return may;
}

void standin_hold(cuda_stream handle, int device, int change, const char *text)
{
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, device, text);
    if (stream) {
        stream->held += change;
        stream->held_text = text;
    }
    pthread_mutex_unlock(&lock);
}

cuda_status cudaStreamCreateWithPriority(cuda_stream *stream, unsigned int flags, int priority)
{
    cuda_status status = standin_fault("cudaStreamCreateWithPriority");
    if (status)
        return error(status);
    (void)priority;
    pthread_mutex_lock(&lock);
    *stream = stream_create(current_device, !(flags & CUDA_STREAM_NON_BLOCKING));
    pthread_mutex_unlock(&lock);
    if (*stream)
        standin_count("streams", 1);
    return error(*stream ? CUDA_OK : CUDA_NO_MEMORY);
}

cuda_status cudaStreamCreateWithFlags(cuda_stream *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cuda_status cudaStreamCreate(cuda_stream *stream)
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

/* What was enqueued goes on: the stream's thread ends after it. */
cuda_status cudaStreamDestroy(cuda_stream handle)
{
    cuda_status status = standin_fault("cudaStreamDestroy");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, "cudaStreamDestroy");
    if (stream && (stream != handle || stream->is_default || stream->capture)) {
        standin_rule("end the capture first, and destroy streams only that cudaStreamCreate made",
                     "cudaStreamDestroy of a default stream, or of one that captures");
        stream = NULL;
    }
    if (stream && check_held(stream, "cudaStreamDestroy")) {
        struct CUstream_st **at = &streams;
        while (*at != stream)
            at = &(*at)->next;
        *at = stream->next;
        stream->is_closed = true;
        pthread_cond_signal(&stream->work);
        standin_count("streams", -1);
    } else {
        status = CUDA_INVALID_HANDLE;
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

/* Locked: the stream, if the host may ask for its state. */
static cuda_status host_looks(cuda_stream handle, cuda_stream *stream, const char *call)
{
    *stream = stream_find(handle, current_device, call);
    if (!*stream || !check_held(*stream, call))
        return CUDA_INVALID_HANDLE;
    if ((*stream)->capture)
        return capture_spoil((*stream)->capture, CUDA_CAPTURE_UNSUPPORTED, call, "end the capture first");
    if (!capture_allows(call))
        return CUDA_CAPTURE_UNSUPPORTED;
    return (*stream)->is_default && !stream_order(*stream, call) ? CUDA_CAPTURE_IMPLICIT : CUDA_OK;
}

/* Locked, but not while it waits. */
static void await_stream(cuda_stream stream)
{
    struct clock clock = stream->clock;
    struct point *end = stream_end(stream);
    if (end)
        point_await(end);
    point_release(end);
    clock_merge(&host_clock, &clock);
}

cuda_status cudaStreamSynchronize(cuda_stream handle)
{
    cuda_status status = standin_fault("cudaStreamSynchronize");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream;
    status = host_looks(handle, &stream, "cudaStreamSynchronize");
    if (!status && host_waits("cudaStreamSynchronize"))
        await_stream(stream);
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaStreamQuery(cuda_stream handle)
{
    cuda_status status = standin_fault("cudaStreamQuery");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream;
    status = host_looks(handle, &stream, "cudaStreamQuery");
    if (!status && (stream->head || stream->is_busy))
        status = CUDA_NOT_READY;
    if (!status)
        clock_merge(&host_clock, &stream->clock);
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaDeviceSynchronize(void)
{
    cuda_status status = standin_fault("cudaDeviceSynchronize");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    struct point *ends[ACTORS_MAX];
    int count = 0;
    if (!capture_allows("cudaDeviceSynchronize"))
        status = CUDA_CAPTURE_UNSUPPORTED;
    else if (host_waits("cudaDeviceSynchronize"))
        for (cuda_stream stream = streams; stream; stream = stream->next)
            if (stream->device == current_device && check_held(stream, "cudaDeviceSynchronize") && !stream->capture) {
                struct point *end = stream_end(stream);
                ends[count++] = end ? end : point_create(&stream->clock);
                ends[count - 1]->done |= !end;
            }
    for (int i = 0; i < count; i++) {
        point_await(ends[i]);
        clock_merge(&host_clock, &ends[i]->clock);
        point_release(ends[i]);
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

/* Locked: the others wait for the first, or it for them. */
static void join(cuda_stream *all, int count, bool first_waits)
{
    for (int i = 1; i < count; i++)
        if (all[i] != all[0])
            order_after(first_waits ? all[0] : all[i], first_waits ? all[i] : all[0]);
}

static void chain_to(struct standin_chain *chain, cuda_stream stream)
{
    point_release(chain->last);
    chain->last = stream_end(stream);
}

/* Locked: the streams of the handles; false, with a violation: they cannot be used together, or not now. */
static bool launch_streams(const struct standin_launch *launch, cuda_stream *all)
{
    for (int i = 0; i < launch->stream_count; i++) {
        all[i] = stream_find(launch->streams[i], launch->device, launch->text);
        if (!all[i] || !stream_order(all[i], launch->text))
            return false;
        if (all[i]->device != launch->device) {
            standin_rule("give it a stream of the communicator's device", "%s of device %d on a stream of device %d",
                         launch->text, launch->device, all[i]->device);
            return false;
        }
        if (all[i]->capture != all[0]->capture) {
            standin_rule("let all streams of a group capture, or none", "%s on streams of which some capture",
                         launch->text);
            return false;
        }
    }
    return true;
}

/* Locked: the operation, in the queue of the stream or in its capture. */
static void launch_on(cuda_stream stream, const struct standin_launch *launch)
{
    struct node *node = malloc(sizeof *node);
    *node =
        (struct node){.kind = NODE_RUN, .run = launch->run, .release = launch->release, .argument = launch->argument};
    if (stream->capture) {
        capture_push(stream, node, launch->chain);
        return;
    }
    push(stream, node);
    chain_to(launch->chain, stream);
}

unsigned int standin_launch(const struct standin_launch *launch)
{
    cuda_stream all[LAUNCH_STREAMS_MAX], first;
    pthread_mutex_lock(&lock);
    bool may = launch->stream_count > 0 && launch->stream_count <= LAUNCH_STREAMS_MAX && launch_streams(launch, all);
    if (may) {
        first = all[0];
        join(all, launch->stream_count, true);
        if (launch->chain->last && !first->capture) {
            clock_merge(&first->clock, &launch->chain->last->clock);
            stream_wait(first, launch->chain->last);
        }
        first->clock.at[first->actor]++;
        may = memory_use(launch->accesses, launch->access_count, first, launch->device, launch->text);
        if (may)
            launch_on(first, launch);
        join(all, launch->stream_count, false);
    }
    pthread_mutex_unlock(&lock);
    return may ? CUDA_OK : CUDA_INVALID_VALUE;
}

void standin_chain_end(struct standin_chain *chain)
{
    pthread_mutex_lock(&lock);
    if (chain->last)
        clock_merge(&host_clock, &chain->last->clock);
    point_release(chain->last);
    chain->last = NULL;
    pthread_mutex_unlock(&lock);
}

void standin_chain_wait(struct standin_chain *chain)
{
    pthread_mutex_lock(&lock);
    struct point *last = point_ref(chain->last);
    if (last) {
        point_await(last);
        clock_merge(&host_clock, &last->clock);
    }
    point_release(last);
    pthread_mutex_unlock(&lock);
}

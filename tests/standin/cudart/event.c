/* Events: each record makes a new point; a wait is for the point of the moment at which it begins. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cudart.h"

enum { QUARANTINE = 1024 };

static _Thread_local int group_depth;

void standin_group(int change)
{
    group_depth += change;
}

bool host_waits(const char *call)
{
    if (group_depth)
        standin_rule("call it after ncclGroupEnd",
                     "%s between ncclGroupStart and ncclGroupEnd, where nothing is launched yet", call);
    return !group_depth;
}

void standin_quarantine(void *object)
{
    static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    static void *kept[QUARANTINE];
    static int next;
    pthread_mutex_lock(&own);
    free(kept[next]);
    kept[next] = object;
    next = (next + 1) % QUARANTINE;
    pthread_mutex_unlock(&own);
}

struct point *point_create(const struct clock *clock)
{
    struct point *point = calloc(1, sizeof *point);
    point->refs = 1;
    point->clock = *clock;
    pthread_cond_init(&point->changed, NULL);
    return point;
}

struct point *point_ref(struct point *point)
{
    if (point)
        point->refs++;
    return point;
}

void point_release(struct point *point)
{
    if (!point || --point->refs)
        return;
    pthread_cond_destroy(&point->changed);
    free(point);
}

void point_reach(struct point *point)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    point->time_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
    point->done = true;
    pthread_cond_broadcast(&point->changed);
}

void point_await(struct point *point)
{
    while (!point->done)
        pthread_cond_wait(&point->changed, &lock);
}

/* The event of a handle; NULL, with a violation: there is none. */
static cuda_event event_find(cuda_event event, const char *call)
{
    if (event && event->live)
        return event;
    standin_rule("use an event between its creation and its destruction", "%s of event %p, which does not exist", call,
                 (void *)event);
    return NULL;
}

cuda_status cudaEventCreateWithFlags(cuda_event *event, unsigned int flags)
{
    cuda_status status = standin_fault("cudaEventCreateWithFlags");
    if (status)
        return error(status);
    *event = calloc(1, sizeof **event);
    **event =
        (struct CUevent_st){.live = true, .device = current_device, .has_time = !(flags & CUDA_EVENT_DISABLE_TIMING)};
    standin_count("events", 1);
    return CUDA_OK;
}

cuda_status cudaEventCreate(cuda_event *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cuda_status cudaEventDestroy(cuda_event event)
{
    cuda_status status = standin_fault("cudaEventDestroy");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    if (event_find(event, "cudaEventDestroy")) {
        event->live = false;
        point_release(event->point);
        event->point = NULL;
        standin_quarantine(event);
        standin_count("events", -1);
    } else {
        status = CUDA_INVALID_HANDLE;
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

static cuda_status record(cuda_event event, cuda_stream stream)
{
    if (event->device != stream->device) {
        standin_rule("create the event while the stream's device is current",
                     "cudaEventRecord of an event of device %d on a stream of device %d", event->device,
                     stream->device);
        return CUDA_INVALID_HANDLE;
    }
    if (!stream_begin(stream, "cudaEventRecord"))
        return CUDA_CAPTURE_IMPLICIT;
    point_release(event->point);
    if (stream->capture) {
        event->point = point_create(&stream->clock);
        event->point->capture = stream->capture->id;
        return CUDA_OK;
    }
    event->point = stream_end(stream);
    if (!event->point) {
        event->point = point_create(&stream->clock);
        point_reach(event->point);
    }
    return CUDA_OK;
}

cuda_status cudaEventRecord(cuda_event event, cuda_stream handle)
{
    cuda_status status = standin_fault("cudaEventRecord");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream =
        event_find(event, "cudaEventRecord") ? stream_find(handle, current_device, "cudaEventRecord") : NULL;
    status = stream ? record(event, stream) : CUDA_INVALID_HANDLE;
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaStreamWaitEvent(cuda_stream handle, cuda_event event, unsigned int flags)
{
    (void)flags;
    const char *call = "cudaStreamWaitEvent";
    cuda_status status = standin_fault(call);
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = event_find(event, call) ? stream_find(handle, current_device, call) : NULL;
    if (!stream) {
        status = CUDA_INVALID_HANDLE;
    } else if (event->point && (stream->capture || event->point->capture)) {
        status = capture_joins(stream, event);
    } else if (!stream_order(stream, call)) {
        status = CUDA_CAPTURE_IMPLICIT;
    } else if (event->point) {
        clock_merge(&stream->clock, &event->point->clock);
        stream_wait(stream, event->point);
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

/* Locked: may the host look at the event? */
static cuda_status host_looks(cuda_event event, const char *call)
{
    if (!event_find(event, call))
        return CUDA_INVALID_HANDLE;
    if (event->point && event->point->capture) {
        struct capture *capture = capture_find(event->point->capture);
        return capture_spoil(capture, CUDA_CAPTURED_EVENT, call,
                             "record the event outside of the capture, or ask cudaStreamIsCapturing first");
    }
    return capture_allows(call) ? CUDA_OK : CUDA_CAPTURE_UNSUPPORTED;
}

cuda_status cudaEventQuery(cuda_event event)
{
    cuda_status status = standin_fault("cudaEventQuery");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    status = host_looks(event, "cudaEventQuery");
    if (!status && event->point && event->point->done)
        clock_merge(&host_clock, &event->point->clock);
    else if (!status && event->point)
        status = CUDA_NOT_READY;
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaEventSynchronize(cuda_event event)
{
    cuda_status status = standin_fault("cudaEventSynchronize");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    status = host_looks(event, "cudaEventSynchronize");
    if (!status && host_waits("cudaEventSynchronize") && event->point) {
        struct point *point = point_ref(event->point);
        point_await(point);
        clock_merge(&host_clock, &point->clock);
        point_release(point);
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaEventElapsedTime(float *milliseconds, cuda_event from, cuda_event to)
{
    cuda_status status = standin_fault("cudaEventElapsedTime");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    if (!event_find(from, "cudaEventElapsedTime") || !event_find(to, "cudaEventElapsedTime") || !from->has_time ||
        !to->has_time || !from->point || !to->point || from->device != to->device)
        status = CUDA_INVALID_HANDLE;
    else if (!from->point->done || !to->point->done)
        status = CUDA_NOT_READY;
    else
        *milliseconds = (float)(to->point->time_ms - from->point->time_ms);
    pthread_mutex_unlock(&lock);
    return error(status);
}

/* Copies, fills and calls of the host in streams. */
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

struct copy {
    void *to, *staged;
    const void *from;
    size_t bytes;
    int value; /* of a fill; -1: a copy */
};

static void copy_run(void *argument)
{
    struct copy *copy = argument;
    if (copy->value >= 0)
        memset(standin_view(copy->to), copy->value, copy->bytes);
    else
        memmove(standin_view(copy->to), standin_view(copy->staged ? copy->staged : copy->from), copy->bytes);
}

static void copy_release(void *argument)
{
    struct copy *copy = argument;
    free(copy->staged);
    free(copy);
}

/* A copy's source and target, where they are memory that the runtime knows. */
static int copy_accesses(struct standin_access *accesses, void *to, const void *from, size_t bytes, unsigned int kind)
{
    enum { TO_DEVICE = 1, FROM_DEVICE = 2, ON_DEVICE = 3 };
    int count = 0;
    if (memory_type(from) || kind == FROM_DEVICE || kind == ON_DEVICE)
        accesses[count++] = (struct standin_access){from, bytes, false};
    if (memory_type(to) || kind == TO_DEVICE || kind == ON_DEVICE)
        accesses[count++] = (struct standin_access){to, bytes, true};
    return count;
}

/* Locked. Memory of malloc is read before the call returns. */
static cuda_status enqueue_copy(void *to, const void *from, size_t bytes, unsigned int kind, cuda_stream stream)
{
    struct standin_access accesses[2];
    int count = copy_accesses(accesses, to, from, bytes, kind);
    if (!stream_begin(stream, "cudaMemcpyAsync"))
        return CUDA_CAPTURE_IMPLICIT;
    if (!memory_use(accesses, count, stream, -1, "cudaMemcpyAsync"))
        return CUDA_INVALID_VALUE;
    struct copy *copy = malloc(sizeof *copy);
    *copy = (struct copy){.to = to, .from = from, .bytes = bytes, .value = -1};
    if (!memory_type(from) && !stream->capture && bytes)
        copy->staged = memcpy(malloc(bytes), from, bytes);
    stream_run(stream, copy_run, copy_release, copy);
    return CUDA_OK;
}

/* Locked, but not while it waits. */
static void await(cuda_stream stream)
{
    struct point *end = stream_end(stream);
    if (end)
        point_await(end);
    if (end)
        clock_merge(&host_clock, &end->clock);
    point_release(end);
}

cuda_status cudaMemcpyAsync(void *to, const void *from, size_t bytes, unsigned int kind, cuda_stream handle)
{
    cuda_status status = standin_fault("cudaMemcpyAsync");
    if (status || !bytes)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, "cudaMemcpyAsync");
    status = stream ? enqueue_copy(to, from, bytes, kind, stream) : CUDA_INVALID_HANDLE;
    if (!status && !memory_type(to) && !stream->capture)
        await(stream);
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaMemcpy(void *to, const void *from, size_t bytes, unsigned int kind)
{
    cuda_status status = standin_fault("cudaMemcpy");
    if (status || !bytes)
        return error(status);
    pthread_mutex_lock(&lock);
    if (!capture_allows("cudaMemcpy")) {
        status = CUDA_CAPTURE_IMPLICIT;
    } else {
        cuda_stream stream = stream_find(NULL, current_device, "cudaMemcpy");
        status = enqueue_copy(to, from, bytes, kind, stream);
        if (!status && host_waits("cudaMemcpy"))
            await(stream);
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaMemsetAsync(void *at, int value, size_t bytes, cuda_stream handle)
{
    cuda_status status = standin_fault("cudaMemsetAsync");
    if (status || !bytes)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, "cudaMemsetAsync");
    struct standin_access access = {at, bytes, true};
    if (!stream || !stream_begin(stream, "cudaMemsetAsync") ||
        !memory_use(&access, 1, stream, stream->device, "cudaMemsetAsync")) {
        status = CUDA_INVALID_VALUE;
    } else {
        struct copy *fill = malloc(sizeof *fill);
        *fill = (struct copy){.to = at, .bytes = bytes, .value = value & 0xff};
        stream_run(stream, copy_run, copy_release, fill);
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaMemset(void *at, int value, size_t bytes)
{
    return cudaMemsetAsync(at, value, bytes, NULL);
}

struct host_call {
    cuda_host_call call;
    void *argument;
    struct clock clock;
};

/* What the call tells other threads is not seen: all of it is as if they had waited for the stream. */
static void host_call_run(void *argument)
{
    struct host_call *call = argument;
    pthread_mutex_lock(&lock);
    clock_merge(&host_clock, &call->clock);
    pthread_mutex_unlock(&lock);
    in_host_call = true;
    call->call(call->argument);
    in_host_call = false;
}

cuda_status cudaLaunchHostFunc(cuda_stream handle, cuda_host_call function, void *argument)
{
    cuda_status status = standin_fault("cudaLaunchHostFunc");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, "cudaLaunchHostFunc");
    if (stream && stream_begin(stream, "cudaLaunchHostFunc")) {
        struct host_call *call = malloc(sizeof *call);
        *call = (struct host_call){function, argument, stream->clock};
        stream_run(stream, host_call_run, free, call);
    } else {
        status = CUDA_INVALID_HANDLE;
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

/* Buffers on GPUs: the little of the CUDA runtime that comm-bench needs, opened when a backend for GPUs is measured. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { NON_BLOCKING = 1, COPY_BY_ADDRESS = 4, CAPTURE_OF_THREAD = 1 };

static struct {
    unsigned int (*get_device_count)(int *count);
    unsigned int (*set_device)(int device);
    unsigned int (*stream_create)(void **stream, unsigned int flags);
    unsigned int (*stream_synchronize)(void *stream);
    unsigned int (*memcpy)(void *to, const void *from, size_t bytes, unsigned int kind);
    const char *(*get_error_string)(unsigned int status);
    unsigned int (*stream_begin_capture)(void *stream, unsigned int mode);
    unsigned int (*stream_end_capture)(void *stream, void **graph);
    unsigned int (*graph_instantiate)(void **executable, void *graph, unsigned long long flags);
    unsigned int (*graph_launch)(void *executable, void *stream);
    unsigned int (*graph_destroy)(void *graph);
    unsigned int (*graph_exec_destroy)(void *executable);
} cuda;

static int take(void *object, const char *name, void *function, char *error, size_t capacity)
{
    void *symbol = dlsym(object, name);
    memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast from object to function pointer */
    if (!symbol)
        snprintf(error, capacity, "the CUDA runtime has no %s", name);
    return symbol != NULL;
}

/* The library that the nccl backend takes, too. */
static int open_cuda(char *error, size_t capacity)
{
    const char *given = getenv("COMM_NCCL_CUDART");
    const char *names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so" };
    void *object = given && *given ? dlopen(given, RTLD_NOW) : NULL;
    for (size_t i = 0; !(given && *given) && !object && i < sizeof names / sizeof *names; i++)
        object = dlopen(names[i], RTLD_NOW);
    if (!object) {
        snprintf(error, capacity, "the CUDA runtime is missing: %s; comm-info says more", dlerror());
        return 0;
    }
    return take(object, "cudaGetDeviceCount", &cuda.get_device_count, error, capacity) &&
           take(object, "cudaSetDevice", &cuda.set_device, error, capacity) &&
           take(object, "cudaStreamCreateWithFlags", &cuda.stream_create, error, capacity) &&
           take(object, "cudaStreamSynchronize", &cuda.stream_synchronize, error, capacity) &&
           take(object, "cudaMemcpy", &cuda.memcpy, error, capacity) &&
           take(object, "cudaGetErrorString", &cuda.get_error_string, error, capacity) &&
           take(object, "cudaStreamBeginCapture", &cuda.stream_begin_capture, error, capacity) &&
           take(object, "cudaStreamEndCapture", &cuda.stream_end_capture, error, capacity) &&
           take(object, "cudaGraphInstantiateWithFlags", &cuda.graph_instantiate, error, capacity) &&
           take(object, "cudaGraphLaunch", &cuda.graph_launch, error, capacity) &&
           take(object, "cudaGraphDestroy", &cuda.graph_destroy, error, capacity) &&
           take(object, "cudaGraphExecDestroy", &cuda.graph_exec_destroy, error, capacity);
}

int bench_device_open(comm_device *device, int32_t local_rank, void **ret_stream, char *error, size_t capacity)
{
    int count = 0, index = comm_device_index(*device);
    if (!open_cuda(error, capacity))
        return -1;
    unsigned int status = cuda.get_device_count(&count);
    if (index < 0)
        index = count > 0 ? local_rank % count : 0;
    if (status == 0)
        status = cuda.set_device(index);
    if (status == 0)
        status = cuda.stream_create(ret_stream, NON_BLOCKING);
    if (status != 0) {
        snprintf(error, capacity, "cuda:%d of %d: %s", index, count, cuda.get_error_string(status));
        return -1;
    }
    *device = comm_device_at(COMM_DEVICE_CUDA, index);
    return 0;
}

static void check(unsigned int status, const char *doing)
{
    if (status == 0)
        return;
    fprintf(stderr, "comm-bench: %s: %s\n", doing, cuda.get_error_string(status));
    exit(EXIT_FAILURE);
}

void bench_device_copy(void *to, const void *from, size_t bytes)
{
    check(cuda.memcpy(to, from, bytes, COPY_BY_ADDRESS), "copying to or from the device");
    check(cuda.stream_synchronize(NULL), "copying to or from the device");
}

void bench_device_wait(void *stream)
{
    check(cuda.stream_synchronize(stream), "waiting for the stream");
}

/* ---- Graphs ---- */

void bench_device_begin_capture(void *stream)
{
    check(cuda.stream_begin_capture(stream, CAPTURE_OF_THREAD), "beginning to capture a graph");
}

void *bench_device_end_capture(void *stream)
{
    void *graph, *executable;
    check(cuda.stream_end_capture(stream, &graph), "capturing a graph");
    check(cuda.graph_instantiate(&executable, graph, 0), "making a graph that can be launched");
    check(cuda.graph_destroy(graph), "giving back a graph");
    return executable;
}

void bench_device_drop_capture(void *stream)
{
    void *graph = NULL;
    cuda.stream_end_capture(stream, &graph);
    if (graph)
        cuda.graph_destroy(graph);
}

void bench_device_launch(void *graph, void *stream)
{
    check(cuda.graph_launch(graph, stream), "launching a graph");
}

void bench_device_destroy_graph(void *graph)
{
    check(cuda.graph_exec_destroy(graph), "giving back a graph");
}

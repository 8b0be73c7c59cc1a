/* Buffers on GPUs: the little of the CUDA runtime that comm-bench needs, opened when a backend for GPUs is measured. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { NON_BLOCKING = 1, COPY_BY_ADDRESS = 4 };

static struct {
    unsigned int (*get_device_count)(int *count);
    unsigned int (*set_device)(int device);
    unsigned int (*stream_create)(void **stream, unsigned int flags);
    unsigned int (*stream_synchronize)(void *stream);
    unsigned int (*memcpy)(void *to, const void *from, size_t bytes, unsigned int kind);
    const char *(*get_error_string)(unsigned int status);
} cuda;

static int take(void *object, const char *name, void *function, char *error, size_t room)
{
    void *symbol = dlsym(object, name);
    memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast from object to function pointer */
    if (!symbol)
        snprintf(error, room, "the CUDA runtime has no %s", name);
    return symbol != NULL;
}

/* The library that the nccl backend takes, too. */
static int open_cuda(char *error, size_t room)
{
    const char *given = getenv("COMM_NCCL_CUDART");
    const char *names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so" };
    void *object = given && *given ? dlopen(given, RTLD_NOW) : NULL;
    for (size_t i = 0; !(given && *given) && !object && i < sizeof names / sizeof *names; i++)
        object = dlopen(names[i], RTLD_NOW);
    if (!object) {
        snprintf(error, room, "the CUDA runtime is missing: %s; comm-info says more", dlerror());
        return 0;
    }
    return take(object, "cudaGetDeviceCount", &cuda.get_device_count, error, room) &&
           take(object, "cudaSetDevice", &cuda.set_device, error, room) &&
           take(object, "cudaStreamCreateWithFlags", &cuda.stream_create, error, room) &&
           take(object, "cudaStreamSynchronize", &cuda.stream_synchronize, error, room) &&
           take(object, "cudaMemcpy", &cuda.memcpy, error, room) &&
           take(object, "cudaGetErrorString", &cuda.get_error_string, error, room);
}

int bench_device_open(comm_device *device, int32_t local_rank, void **ret_stream, char *error, size_t room)
{
    int count = 0, index = comm_device_index(*device);
    if (!open_cuda(error, room))
        return -1;
    unsigned int status = cuda.get_device_count(&count);
    if (index < 0)
        index = count > 0 ? local_rank % count : 0;
    if (status == 0)
        status = cuda.set_device(index);
    if (status == 0)
        status = cuda.stream_create(ret_stream, NON_BLOCKING);
    if (status != 0) {
        snprintf(error, room, "cuda:%d of %d: %s", index, count, cuda.get_error_string(status));
        return -1;
    }
    *device = comm_device_at(COMM_DEVICE_CUDA, index);
    return 0;
}

void bench_device_copy(void *to, const void *from, size_t bytes)
{
    unsigned int status = cuda.memcpy(to, from, bytes, COPY_BY_ADDRESS);
    if (status == 0)
        status = cuda.stream_synchronize(NULL);
    if (status == 0)
        return;
    fprintf(stderr, "comm-bench: copying %zu bytes to or from the device: %s\n", bytes, cuda.get_error_string(status));
    exit(EXIT_FAILURE);
}

void bench_device_wait(void *stream)
{
    unsigned int status = cuda.stream_synchronize(stream);
    if (status == 0)
        return;
    fprintf(stderr, "comm-bench: waiting for the stream: %s\n", cuda.get_error_string(status));
    exit(EXIT_FAILURE);
}

#include "train_device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NON_BLOCKING = 1, COPY_BY_ADDRESS = 4 };

static struct {
    unsigned int (*get_device_count)(int *count);
    unsigned int (*set_device)(int device);
    unsigned int (*stream_create)(void **stream, unsigned int flags);
    unsigned int (*stream_destroy)(void *stream);
    unsigned int (*stream_synchronize)(void *stream);
    unsigned int (*memcpy_async)(void *to, const void *from, size_t bytes, unsigned int kind, void *stream);
    const char *(*get_error_string)(unsigned int status);
} cuda;

static void *open_runtime(void)
{
    static const char *const names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so" };
    const char *given = getenv("COMM_NCCL_CUDART"); /* as libcomm's backend */
    void *object = NULL;

    if (given && *given)
        return dlopen(given, RTLD_NOW);
    for (size_t i = 0; !object && i < sizeof names / sizeof *names; i++)
        object = dlopen(names[i], RTLD_NOW);
    return object;
}

/* ISO C has no cast from object to function pointer. */
static int take(void *object, const char *name, void *function)
{
    void *symbol = dlsym(object, name);

    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

int device_open(struct device *device, int32_t local_rank, char *error, size_t capacity)
{
    int count = 0;

    void *object = open_runtime();
    if (!object) {
        snprintf(error, capacity, "--device cuda needs the CUDA runtime: %s. Install it, or name its file in "
                 "COMM_NCCL_CUDART; comm-info says what libcomm finds", dlerror());
        return -1;
    }
    if (!take(object, "cudaGetDeviceCount", &cuda.get_device_count) ||
        !take(object, "cudaSetDevice", &cuda.set_device) ||
        !take(object, "cudaStreamCreateWithFlags", &cuda.stream_create) ||
        !take(object, "cudaStreamDestroy", &cuda.stream_destroy) ||
        !take(object, "cudaStreamSynchronize", &cuda.stream_synchronize) ||
        !take(object, "cudaMemcpyAsync", &cuda.memcpy_async) ||
        !take(object, "cudaGetErrorString", &cuda.get_error_string)) {
        snprintf(error, capacity, "--device cuda: what was found is no CUDA runtime");
        return -1;
    }
    unsigned int status = cuda.get_device_count(&count);
    int index = count > 0 && local_rank > 0 ? local_rank % count : 0;
    if (status == 0)
        status = cuda.set_device(index);
    if (status == 0)
        status = cuda.stream_create(&device->stream, NON_BLOCKING);
    if (status != 0) {
        snprintf(error, capacity, "--device cuda: no GPU can be used: %s", cuda.get_error_string(status));
        return -1;
    }
    device->device = comm_device_at(COMM_DEVICE_CUDA, index);
    return 0;
}

comm_status device_allocate(struct device *device, comm_group *group, size_t bytes)
{
    return comm_mem_alloc(group, bytes, device->device, &device->data, &device->memory);
}

void device_close(struct device *device)
{
    if (device->memory)
        comm_mem_release(device->memory);
    if (device->stream)
        cuda.stream_destroy(device->stream);
    *device = (struct device){ 0 };
}

unsigned int device_write(const struct device *device, const void *from, size_t offset, size_t bytes)
{
    return cuda.memcpy_async((char *)device->data + offset, from, bytes, COPY_BY_ADDRESS, device->stream);
}

unsigned int device_read(const struct device *device, void *to, size_t offset, size_t bytes)
{
    const char *from = (const char *)device->data + offset;

    unsigned int status = cuda.memcpy_async(to, from, bytes, COPY_BY_ADDRESS, device->stream);
    return status ? status : cuda.stream_synchronize(device->stream);
}

comm_status device_failed(unsigned int error)
{
    fprintf(stderr, "train_bytes: copying gradients: CUDA error %u: %s\n", error, cuda.get_error_string(error));
    return COMM_ERR_BACKEND;
}

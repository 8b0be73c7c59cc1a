#include "gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

struct gpu_calls gpu;
static bool is_open;
static int own_device, device_count;

bool gpu_in(const char *backend)
{
    return backend && strstr(backend, "cuda") != NULL;
}

static void *open_runtime(void)
{
    static const char *const names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so" };
    const char *given = getenv("COMM_NCCL_CUDART");
    void *object = given && *given ? dlopen(given, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; !(given && *given) && !object && i < sizeof names / sizeof *names; i++)
        object = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!object)
        ranks_fail(__FILE__, __LINE__, "the CUDA runtime: %s", dlerror());
    return object;
}

static void take(void *object, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(object, name);
    if (!symbol)
        ranks_fail(__FILE__, __LINE__, "the CUDA runtime has no %s", name);
    memcpy(function, &symbol, bytes);
}

void gpu_open(const char *backend, int rank)
{
    if (!gpu_in(backend))
        return;
    void *object = open_runtime();
#define CALL(result, name, arguments) take(object, "cuda" #name, &gpu.name, sizeof gpu.name);
#include "cuda.def"
#include "cuda_more.def"
#undef CALL
    CHECK_CUDA(gpu.GetDeviceCount(&device_count));
    CHECK(device_count > 0);
    own_device = rank % device_count;
    is_open = true;
    gpu_thread();
}

int gpu_count(void)
{
    return device_count;
}

comm_device gpu_device(void)
{
    return comm_device_at(COMM_DEVICE_CUDA, own_device);
}

void gpu_thread(void)
{
    if (is_open)
        CHECK_CUDA(gpu.SetDevice(own_device));
}

static bool is_complex(comm_dtype dtype)
{
    return dtype == COMM_DTYPE_C64 || dtype == COMM_DTYPE_C128;
}

static bool is_float(comm_dtype dtype)
{
    return dtype >= COMM_DTYPE_F16 && dtype <= COMM_DTYPE_F8E5M2;
}

bool gpu_reduces(comm_redop redop, comm_dtype dtype, int32_t size)
{
    if (dtype == COMM_DTYPE_BYTE || dtype == COMM_DTYPE_I16 || dtype == COMM_DTYPE_U16)
        return false;
    if (dtype == COMM_DTYPE_BOOL)
        return redop <= COMM_REDOP_BOR && redop != COMM_REDOP_AVG;
    if (is_complex(dtype))
        return redop == COMM_REDOP_SUM || redop == COMM_REDOP_AVG;
    if (redop == COMM_REDOP_AVG)
        return is_float(dtype);
    if (redop == COMM_REDOP_PREMUL_SUM)
        return size > 1 || (dtype != COMM_DTYPE_F8E4M3 && dtype != COMM_DTYPE_F8E5M2);
    return redop <= COMM_REDOP_MAX;
}

void *gpu_buffer(comm_device device, size_t bytes)
{
    void *buffer = NULL;
    if (comm_device_kind(device) == COMM_DEVICE_CUDA)
        CHECK_CUDA(gpu.MallocManaged(&buffer, bytes ? bytes : 1, 1));
    else
        buffer = malloc(bytes);
    CHECK(buffer || bytes == 0);
    return buffer;
}

void gpu_buffer_free(comm_device device, void *buffer)
{
    if (comm_device_kind(device) == COMM_DEVICE_CUDA)
        CHECK_CUDA(gpu.Free(buffer));
    else
        free(buffer);
}

void *gpu_memory(size_t bytes)
{
    void *memory = NULL;
    CHECK_CUDA(gpu.Malloc(&memory, bytes ? bytes : 1));
    return memory;
}

void gpu_memory_free(void *memory)
{
    CHECK_CUDA(gpu.Free(memory));
}

void gpu_write(void *device_memory, const void *from, size_t bytes)
{
    if (bytes)
        CHECK_CUDA(gpu.Memcpy(device_memory, from, bytes, CUDA_COPY_DEFAULT));
}

void gpu_read(void *to, const void *device_memory, size_t bytes)
{
    if (bytes)
        CHECK_CUDA(gpu.Memcpy(to, device_memory, bytes, CUDA_COPY_DEFAULT));
}

cuda_stream gpu_stream(void)
{
    cuda_stream stream;
    CHECK_CUDA(gpu.StreamCreateWithFlags(&stream, CUDA_STREAM_NON_BLOCKING));
    return stream;
}

cuda_event gpu_event(void)
{
    cuda_event event;
    CHECK_CUDA(gpu.EventCreateWithFlags(&event, CUDA_EVENT_DISABLE_TIMING));
    return event;
}

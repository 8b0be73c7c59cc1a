/* Memory, streams and graphs of GPUs for test programs, by the CUDA runtime that the backend uses, too
 * (COMM_NCCL_CUDART or the system's). For a group without GPUs buffers are plain memory. */
#ifndef COMM_TESTS_GPU_H
#define COMM_TESTS_GPU_H

#include <comm/comm.h>
#include <stdbool.h>

#include "standin.h"

struct gpu_calls {
#define CALL(result, name, arguments) result(*name) arguments;
#include "cuda.def"
#include "cuda_more.def"
#undef CALL
};
extern struct gpu_calls gpu; /* filled by gpu_open */

/* Does the backend string serve GPUs? */
bool gpu_in(const char *backend);
/* In each rank, after the fork: open the runtime, and make cuda:(rank % their number) the thread's device. Nothing if
 * the backend string serves no GPUs. */
void gpu_open(const char *backend, int rank);
int gpu_count(void);
/* This rank's GPU, "cuda:2". */
comm_device gpu_device(void);
/* In each further thread: make this rank's GPU its device. */
void gpu_thread(void);

/* In a group of `size` ranks: by NCCL's manual, and what libcomm makes of it (a bool is a byte, a complex number two);
 * and as found on GPUs: a rank alone cannot multiply 8-bit floats. */
bool gpu_reduces(comm_redop redop, comm_dtype dtype, int32_t size);

/* A buffer that the CPU can read and write, and operations on `device` too: managed memory for a GPU, else malloc.
 * Never NULL. */
void *gpu_buffer(comm_device device, size_t bytes);
void gpu_buffer_free(comm_device device, void *buffer);

/* Memory that only the current device reaches, and copies from and to it that wait. */
void *gpu_memory(size_t bytes);
void gpu_memory_free(void *memory);
void gpu_write(void *device_memory, const void *from, size_t bytes);
void gpu_read(void *to, const void *device_memory, size_t bytes);

cuda_stream gpu_stream(void);
cuda_event gpu_event(void);

#define CHECK_CUDA(call)                                                                                              \
    do {                                                                                                               \
        cuda_status check_cuda_ = (call);                                                                              \
        if (check_cuda_ != CUDA_OK)                                                                                    \
            ranks_fail(__FILE__, __LINE__, "%s: CUDA error %u: %s", #call, check_cuda_,                                \
                       gpu.GetErrorString(check_cuda_));                                                               \
    } while (0)

#endif

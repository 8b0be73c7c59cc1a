/* cuda_api.h: the part of the CUDA runtime that the backend calls, opened when the program runs.
 *
 * The declarations are our own, so the backend is built on machines without CUDA and links to nothing of it; the
 * numbers and layouts are those of CUDA 11 to 13 (tests/nccl/headers.c compares them with the real headers). A status
 * is 0 or an error's number. */
#ifndef NCCL_CUDA_API_H
#define NCCL_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned int cuda_status; /* cudaError_t */
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;

enum {
    CUDA_OK = 0,
    CUDA_NO_DEVICE = 100,
    CUDA_NOT_READY = 600,
};
enum { CUDA_STREAM_NON_BLOCKING = 1, CUDA_EVENT_DISABLE_TIMING = 2, CUDA_EVENT_BLOCKING_SYNC = 1 };
enum { CUDA_CAPTURE_NONE = 0, CUDA_CAPTURE_ACTIVE = 1, CUDA_CAPTURE_INVALIDATED = 2 };
enum { CUDA_CAPTURE_MODE_GLOBAL = 0, CUDA_CAPTURE_MODE_THREAD_LOCAL = 1, CUDA_CAPTURE_MODE_RELAXED = 2 };
enum { CUDA_MEMORY_UNREGISTERED = 0, CUDA_MEMORY_HOST = 1, CUDA_MEMORY_DEVICE = 2, CUDA_MEMORY_MANAGED = 3 };
enum { CUDA_ATTRIBUTE_COMPUTE_MAJOR = 75 };
enum { CUDA_COPY_DEFAULT = 4 }; /* cudaMemcpyKind: by the addresses */

typedef struct cuda_pointer_attributes {
    unsigned int type; /* CUDA_MEMORY_ */
    int device;
    void *device_pointer, *host_pointer;
    long reserved[8]; /* since CUDA 13 */
} cuda_pointer_attributes;

struct cuda_api {
#define CALL(result, name, arguments) result(*name) arguments;
#include "cuda.def"
#undef CALL
    int version; /* 13000 is 13.0 */
    char path[256];
};

extern struct cuda_api cuda; /* filled by libraries_open */

#endif

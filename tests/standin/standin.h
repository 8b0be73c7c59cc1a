/* standin.h: what the stand-in libnccl uses of the stand-in libcudart, and what test programs use of both beside
 * cuda_api.h and nccl_api.h. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_api.h"
#include "nccl_api.h"

#define STANDIN_EXPORT __attribute__((visibility("default")))

typedef void (*cuda_host_call)(void *argument);
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphExec_st *cuda_graph_exec;

/* CUDA's numbers of errors. */
enum {
    CUDA_INVALID_VALUE = 1,
    CUDA_NO_MEMORY = 2,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_HANDLE = 400,
    CUDA_CAPTURE_UNSUPPORTED = 900,
    CUDA_CAPTURE_SPOILT = 901, /* cudaErrorStreamCaptureInvalidated */
    CUDA_CAPTURE_UNMATCHED = 903,
    CUDA_CAPTURE_UNJOINED = 904,
    CUDA_CAPTURE_ISOLATION = 905,
    CUDA_CAPTURE_IMPLICIT = 906,
    CUDA_CAPTURED_EVENT = 907,
    CUDA_CAPTURE_WRONG_THREAD = 908,
};

struct point;

/* A piece of memory that an operation reads or writes. */
struct standin_access {
    const void *at;
    size_t bytes;
    bool write;
};

/* Where the operations of one communicator stand: each runs after the one before. */
struct standin_chain {
    struct point *last;
};

/* An operation of libnccl on streams: it runs on the first stream; the others wait for it, and it for them. `run` is
 * called once, or in a graph once per launch; `release` when it will not be called again. */
struct standin_launch {
    cuda_stream *streams;
    int stream_count, device;
    const struct standin_access *accesses;
    int access_count;
    struct standin_chain *chain;
    void (*run)(void *argument);
    void (*release)(void *argument);
    void *argument;
    const char *text; /* for errors: "ncclAllReduce(...) of rank 1" */
};

/* A rule was violated: print what was done and the cure, and end the process with 97; returns if STANDIN_RULES=log. */
STANDIN_EXPORT void standin_rule(const char *cure, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What STANDIN_FAIL says that this call returns; 0: the call goes on. */
STANDIN_EXPORT unsigned int standin_fault(const char *call);
/* Sleep for a random time, if STANDIN_SEED or STANDIN_DELAY_US is set. */
STANDIN_EXPORT void standin_delay(void);
/* For tests: from now on what NCCL does in a thread of its own, a "launch" or a "split", stops where it has all but
 * come to its end, until it is told to go on or its communicator is aborted; how many have stopped since. */
STANDIN_EXPORT void standin_stop(const char *what);
STANDIN_EXPORT void standin_go_on(void);
STANDIN_EXPORT int standin_stopped(void);
/* What may be stopped comes by. */
STANDIN_EXPORT void standin_pass(const char *what, atomic_bool *aborted);
/* A random number below `limit`; 0 without a seed. */
STANDIN_EXPORT uint32_t standin_random(uint32_t limit);
/* The numbers of processes that share a seed become different ones. */
STANDIN_EXPORT void standin_salt(uint32_t salt);
/* Something is created (1) or destroyed (-1): for the list of leaks. */
STANDIN_EXPORT void standin_count(const char *kind, int change);

STANDIN_EXPORT unsigned int standin_launch(const struct standin_launch *launch);
/* An operation of `text` will be launched on the stream by another thread (1), or has been (-1). */
STANDIN_EXPORT void standin_hold(cuda_stream stream, int device, int change, const char *text);
/* All operations of the chain are over: they have been aborted. */
STANDIN_EXPORT void standin_chain_end(struct standin_chain *chain);
/* The host waits until the chain's operations are over. */
STANDIN_EXPORT void standin_chain_wait(struct standin_chain *chain);
/* The calling thread is inside of a group of NCCL (1), or has left it (-1). */
STANDIN_EXPORT void standin_group(int change);
/* The device of memory, and whether the range is live memory that a device can reach; -1: it is not. */
STANDIN_EXPORT int standin_memory_device(const void *at, size_t bytes);
/* Where the stand-in itself reads and writes memory: a program that follows a pointer to device memory is ended by
 * SIGSEGV. */
STANDIN_EXPORT void *standin_view(const void *at);
/* Keep an object that was destroyed, so that later uses of it are found. */
STANDIN_EXPORT void standin_quarantine(void *object);

#define CALL(result, name, arguments) STANDIN_EXPORT result cuda##name arguments;
#include "cuda.def"
#include "cuda_more.def"
#undef CALL
#define CALL(since, result, name, arguments) STANDIN_EXPORT result nccl##name arguments;
#include "nccl.def"
#include "nccl_more.def"
#undef CALL

#endif

/* cudart.h: the state of the stand-in CUDA runtime. One lock guards all of it; "locked" in a comment says that the
 * caller holds it.
 *
 * Order. Every stream has a component in a vector clock, and the host has the union of all that any of its threads has
 * awaited. What a thread has awaited counts for all threads: how threads synchronise among themselves is not seen, and
 * a correct program must not be blamed. */
#ifndef STANDIN_CUDART_H
#define STANDIN_CUDART_H

#include <pthread.h>

#include "standin.h"

enum { DEVICES_MAX = 16, ACTORS_MAX = 256, TEXT_BYTES = 120 };

struct clock {
    uint32_t at[ACTORS_MAX];
};

/* A place in the queue of a stream: an event's record, or the end of what was enqueued. */
struct point {
    int refs;
    bool done;
    uint64_t capture; /* not 0: it was recorded in this capture, and is never reached */
    struct clock clock;
    double time_ms;
    pthread_cond_t changed;
};

enum node_kind { NODE_RUN, NODE_WAIT, NODE_RECORD };
struct node {
    struct node *next;
    enum node_kind kind;
    struct point *point;
    void (*run)(void *argument);
    void (*release)(void *argument);
    void *argument;
    struct standin_chain *chain; /* of a captured operation */
};

struct CUstream_st {
    struct CUstream_st *next;
    bool is_default, is_blocking, is_busy, is_closed;
    int device, actor;
    struct node *head, **tail;
    pthread_cond_t work;
    struct clock clock;
    struct capture *capture;
    struct clock before_capture;
    int held; /* operations that another thread will launch here */
    const char *held_text;
};

struct CUevent_st {
    bool live, has_time;
    int device;
    struct point *point; /* NULL: not recorded */
};

/* What an operation did to memory, until it is known to be over. */
struct access {
    struct access *next;
    uintptr_t from, to;
    int actor;
    uint32_t time;
    bool write;
    char text[TEXT_BYTES];
};

struct memory {
    struct memory *next;
    uintptr_t from, to;
    unsigned int type; /* CUDA_MEMORY_ */
    int device;
    struct access *accesses;
};

/* Operations in the order of their capture, which is an order in which they can run. */
struct graph {
    int refs;
    struct node *head, **tail;
    struct access *accesses;
};

struct capture {
    struct capture *next;
    uint64_t id;
    unsigned int mode;
    pthread_t thread;
    cuda_stream origin;
    bool spoilt;
    struct graph *graph;
};

extern pthread_mutex_t lock;
extern struct clock host_clock;
extern struct CUstream_st *streams;
extern struct capture *captures;

/* rules.c */
extern _Thread_local bool in_host_call; /* in which calls of CUDA are forbidden */
long parameter(const char *name, long otherwise);

/* device.c */
extern _Thread_local int current_device;
int device_count(void);
/* The status, which cudaGetLastError will return. */
cuda_status error(cuda_status status);

/* order.c, locked */
void clock_merge(struct clock *into, const struct clock *from);
/* An operation of the stream, which has just been counted in its clock, uses memory: a violation if it is not ordered
 * after what others do with it. */
void access_add(struct access **list, const struct standin_access *access, cuda_stream stream, const char *text);
void accesses_free(struct access *list);
/* Forget accesses that the host knows to be over. */
void accesses_prune(struct access **list);

/* memory.c, locked */
/* A violation unless the range is live memory that the device (-1: some device) can reach. */
bool memory_check(const struct standin_access *access, int device, const char *text);
/* Check the accesses of an operation that is being enqueued on a stream, and keep them. */
bool memory_use(const struct standin_access *accesses, int count, cuda_stream stream, int device, const char *text);
/* CUDA_MEMORY_ */
unsigned int memory_type(const void *at);

/* stream.c, locked */
/* The stream of a handle, of the current device if it is a default stream; NULL, with a violation: there is none. */
cuda_stream stream_find(cuda_stream handle, int device, const char *call);
/* What comes now is ordered after what the rules of default streams say; false, with a violation: it may not. */
bool stream_order(cuda_stream stream, const char *call);
/* The same, for an operation: the stream's clock goes on. */
bool stream_begin(cuda_stream stream, const char *call);
void stream_run(cuda_stream stream, void (*run)(void *), void (*release)(void *), void *argument);
/* Without the order of clocks. NULL: nothing. */
void stream_wait(cuda_stream stream, struct point *point);
/* A reference to the end of what is enqueued; NULL: the stream is idle. */
struct point *stream_end(cuda_stream stream);
void node_free(struct node *node);

/* event.c, locked */
struct point *point_create(const struct clock *clock);
struct point *point_ref(struct point *point);
void point_release(struct point *point);
void point_reach(struct point *point);
/* Wait, without the lock meanwhile. */
void point_await(struct point *point);
/* A violation if this thread is in a group of NCCL. */
bool host_waits(const char *call);

/* capture.c, locked */
/* False, with a violation: this call may not be made during a capture. */
bool capture_allows(const char *call);
void capture_push(cuda_stream stream, struct node *node, struct standin_chain *chain);
/* The stream waits for an event: it joins the event's capture, or stays in its own. Not CUDA_OK: a violation. */
cuda_status capture_joins(cuda_stream stream, const struct CUevent_st *event);
struct capture *capture_find(uint64_t id);
/* The capture goes wrong by this call, which is a violation. */
cuda_status capture_spoil(struct capture *capture, cuda_status status, const char *call, const char *cure);

#endif

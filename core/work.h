/* Works: one operation under way or done. They come from their group's pool, are completed exactly once, and go back to
 * the pool when the last reference is gone; the group's memory stays as long as one of them is out.
 *
 * References: one of the caller's handle (or of the call that waits), one of the backend's until it has completed the
 * work. Fields without a note are written before submit and only read afterwards. */
#ifndef COMM_CORE_WORK_H
#define COMM_CORE_WORK_H

#include <comm/backend.h>
#include <stdatomic.h>

struct channel;
struct batch;

/* Memory for copies of an op's arrays, which live until it completes; kept for the next use. */
struct arena {
    void *memory;
    size_t bytes, used;
};

enum { WORK_PENDING = 0, WORK_SLEEPERS = 1, WORK_DONE = 2 };
enum { WORK_KIND_INNER = -1 }; /* as comm_work.kind: see inner_work.h */
enum { WORK_BY_NONE = 0, WORK_BY_BACKEND = 1, WORK_BY_CORE = 2 };

struct comm_work {
    _Atomic uint32_t state;   /* WORK_; a futex. The release of DONE pairs with the acquire in work_is_done */
    _Atomic uint32_t claimed; /* WORK_BY_: who completes it, or has */
    atomic_int references;
    uint8_t internal;  /* of the library itself: flush does not wait for it */
    uint8_t is_hooked; /* hook_record is filled: a hook wants to know */
    comm_group *group;
    struct channel *channel; /* where it runs; NULL for the one work of a batch */
    int32_t kind;            /* 0: of a batch; WORK_KIND_INNER */
    void *slot;              /* the backend's own */
    uint64_t seq, record;
    int64_t submitted_ns, deadline_ns;
    int64_t due_ns; /* when the core ends the group because of this work */
    size_t element_bytes;

    /* Written by the completing thread before DONE. */
    comm_status status;
    char *error; /* heap, or NULL */
    int64_t completed_ns;
    int32_t source, tag;
    size_t received_count;

    atomic_int callback, has_callback; /* see run_callback and comm_work_on_complete */
    comm_work_fn fn;
    void *context;
    _Atomic int fd; /* -1 until asked for */

    struct comm_work *parent;                 /* the work of the batch that this op belongs to */
    struct batch *batch;                      /* of a parent: its ops and their works */
    _Atomic size_t unfinished;                /* of a parent: works of the batch */
    _Atomic(struct comm_work *) first_failed; /* of a parent */

    uint64_t number; /* of the group's works, and its neighbours among those that are pending; see pending.h */
    struct comm_work *older, *newer;

    comm_record hook_record;
    struct arena arena; /* unless the batch has them */
    struct comm_work *next_free, *next_of_all, *next_deferred;
};

static inline int work_is_done(const comm_work *work)
{
    return atomic_load(&work->state) == WORK_DONE;
}

/* A fresh work with two references, and back. take needs group->lock; NULL if there is no memory. */
comm_work *comm__work_take(comm_group *group);
void comm__work_free_all(comm_group *group);

void comm__work_ref(comm_work *work);

/* Give up a work that was taken but never submitted. */
void comm__work_drop(comm_work *work);

/* What the backend calls, through the host table. */
void comm__work_complete(comm_work *work, comm_status status, const char *error);
void comm__work_received(comm_work *work, int32_t source, int32_t tag, size_t count);

/* Complete the work without its backend, which keeps its reference until it completes the work after all. Returns 0 if the
 * backend is completing it already. */
int comm__work_abandon(comm_work *work, comm_status status, const char *error);

/* "all_reduce #12 on group 'world' (rank 2 of 8)" */
void comm__work_describe(const comm_work *work, char *text, size_t room);

/* When the core does what the backend has not done (overdue.c). */
int64_t comm__work_due_ns(const comm_work *work);

/* Drive the backend until the work is done (OK, whatever its own status) or the deadline passes (TIMEOUT). */
comm_status comm__work_drive(comm_work *work, int64_t deadline_ns);

/* The status of a finished work, with its text as this thread's error. */
comm_status comm__work_result(const comm_work *work);

/* INVALID if this thread is in a work's callback or in a hook, which must not wait: what they wait for may be next in line
 * behind them. enter and leave are put around every function of the user's that is called for a work. */
comm_status comm__refuse_in_callback(const char *call);
void comm__callback_enter(void);
void comm__callback_leave(void);

/* Between begin and end, callbacks of works that this thread completes wait: the thread holds a lock that they may
 * need. */
void comm__callbacks_defer(void);
void comm__callbacks_run(void);

#endif

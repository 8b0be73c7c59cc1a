/* Works: one operation under way or done. They come from their group's pool, are completed exactly once, and go back to
 * the pool when the last reference is gone; the group's memory stays as long as one of them is out.
 *
 * All that several threads decide about a work is in one word: which side completes it, whether it is done, what must
 * be told of it, and how many references there are: one of the caller's handle (or of the call that waits), one of the
 * backend's until it has completed the work. Fields without a note are written before submit and only read
 * afterwards. */
#ifndef COMM_CORE_WORK_H
#define COMM_CORE_WORK_H

#include <comm/backend.h>
#include <stdatomic.h>

#include "base/likely.h"
#include "thread.h"

struct channel;
struct batch;

/* Memory for copies of an op's arrays, which live until it completes; kept for the next use. */
struct arena {
    void *memory;
    size_t bytes, used;
};

enum {
    WORK_DONE = 1,        /* its result may be read */
    WORK_SLEEPERS = 2,    /* a thread sleeps on the word, which is a futex */
    WORK_BY_BACKEND = 4,  /* the side that completes it, or has */
    WORK_BY_CORE = 8,
    WORK_PENDING = 16,    /* a backend has it, and it is not done */
    WORK_PROMISED = 32,   /* comm_work_on_complete has been called ... */
    WORK_CALLBACK = 64,   /* ... and the function is there */
    WORK_HAS_FD = 128,    /* so is the descriptor */
    WORK_REFERENCE = 256, /* one reference; their count is in the bits from here on */
};
enum { WORK_KIND_INNER = -1 }; /* as comm_work.kind: see inner_work.h */

struct comm_work {
    _Atomic uint32_t state; /* WORK_ */
    int32_t kind;           /* 0: of a batch; WORK_KIND_INNER */
    comm_group *group;
    struct channel *channel; /* where it runs; NULL for the one work of a batch */
    void *slot;              /* the backend's own */
    uint64_t seq;
    int32_t root, op_tag; /* of the op */
    uint64_t number; /* in the list of pending works, with its neighbours there: see pending.h. 0: not there */
    struct comm_work *older, *newer;
    uint64_t record; /* its record, if the end is not written there yet; guarded by the submission lock */
    int64_t began;   /* ticks */
    int64_t timeout_ns;
    int64_t due_ns;  /* when the core ends the group because of this work */
    uint8_t internal;  /* of the library itself: flush does not wait for it */
    uint8_t is_hooked; /* hook_record is filled: a hook wants to know */

    /* Written by the completing thread before DONE. */
    comm_status status;
    _Atomic int64_t ended; /* ticks */
    char *error;           /* heap, or NULL */
    int32_t source, tag;
    size_t received_count;

    struct comm_work *parent; /* the work of the batch that this op belongs to */
    struct batch *batch;      /* of a parent: its ops and their works */
    struct comm_work *next_free, *next_of_all, *next_deferred;

    comm_work_fn fn; /* written before CALLBACK */
    void *context;
    _Atomic int fd; /* -1 until asked for */
    _Atomic size_t unfinished;                /* of a parent: works of the batch */
    _Atomic(struct comm_work *) first_failed; /* of a parent */
    struct arena arena; /* unless the batch has them */
    comm_record hook_record;
};

static inline int work_is_done(const comm_work *work)
{
    return (atomic_load(&work->state) & WORK_DONE) != 0;
}

/* A fresh work with two references, and back; NULL if there is no memory. Needs the submission lock. */
comm_work *comm__work_take(comm_group *group);

/* Has the pool a work, so that take cannot fail? Makes some if it has none. */
enum { WORKS_AT_ONCE = 4 };
int comm__work_is_there(comm_group *group);

/* The group is closed: from here on it has a reference for each work that is out. */
void comm__works_close(comm_group *group);
void comm__work_free_all(comm_group *group);

void comm__work_ref(comm_work *work);

/* The work goes to a backend. And the backend has refused it, with this status: 0 if it has completed it all the
 * same. */
void comm__work_begin(comm_work *work);
int comm__work_take_back(comm_work *work, comm_status status);

/* Write to the records how their works have ended. Needs the submission lock. */
void comm__works_settle(comm_group *group);

/* Give up a work that was taken but never submitted. */
void comm__work_drop(comm_work *work);

/* What the backend calls, through the host table. */
void comm__work_complete(comm_work *work, comm_status status, const char *error);
void comm__work_received(comm_work *work, int32_t source, int32_t tag, size_t count);

/* Complete the work without its backend, which keeps its reference until it completes the work after all. Returns 0 if
 * the backend is completing it already. */
int comm__work_abandon(comm_work *work, comm_status status, const char *error);

/* "all_reduce #12 on group 'world' (rank 2 of 8)" */
void comm__work_describe(const comm_work *work, char *text, size_t capacity);

/* When the core does what the backend has not done (overdue.c). */
int64_t comm__work_due_ns(const comm_work *work);

/* Drive the backend until the work is done (OK, whatever its own status) or the deadline passes (TIMEOUT). */
comm_status comm__work_drive(comm_work *work, int64_t deadline_ns);

/* The status of a finished work, with its text as this thread's error. */
comm_status comm__work_result(const comm_work *work);

/* INVALID if this thread is in a work's callback or in a hook, which must not wait: what they wait for may be next in
 * line behind them. enter and leave are put around every function of the user's that is called for a work. */
comm_status comm__refuse_in_callback(const char *call);
void comm__callback_enter(void);
void comm__callback_leave(void);
/* Nor from a reduce_fn of the user's, at all: the thread may hold what the call would wait for. */
comm_status comm__refuse_in_reduce_fn(const char *call);
int32_t comm__some_are_told(void);
void comm__reduce_fn_begins(void);
void comm__reduce_fn_ends(void);

/* Between begin and end, callbacks of works that this thread completes wait: the thread holds a lock that they may
 * need. */
static inline void comm__callbacks_defer(void)
{
    comm__thread.defers++;
}

void comm__callbacks_run_due(void);

static inline void comm__callbacks_run(void)
{
    if (--comm__thread.defers == 0 && UNLIKELY(comm__thread.first_due))
        comm__callbacks_run_due();
}

#endif

/* What libcomm knows of a thread, in one place that costs one load: a call that finds `busy` zero need not ask
 * further. */
#ifndef COMM_CORE_THREAD_H
#define COMM_CORE_THREAD_H

#include <comm/comm.h>

#include "base/error.h"

struct comm__thread {
    union {
        uint64_t busy; /* zero: none of the following */
        struct {
            uint32_t batches;   /* open ones: coalesce.c */
            uint16_t callbacks; /* functions of the user's that this thread is in: works' callbacks, hooks */
            uint8_t hooks;      /* of these the hooks */
            uint8_t reductions; /* reduce_fns of the user's that it is in; the backend may hold locks meanwhile */
        } in;
    };
    int takes_turn;                  /* of a round-robin group: other threads of it wait: round_robin.c */
    struct run *run;                 /* the op that this thread is doing in a backend's slot `run`: submit.c */
    uint32_t defers;                 /* work.c: how many ask to keep callbacks back */
    comm_work *first_due, *last_due; /* callbacks that are kept back */
};

extern _Thread_local struct comm__thread comm__thread COMM__THREAD_VARIABLE;

#endif

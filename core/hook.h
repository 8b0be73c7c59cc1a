/* Hooks: functions of the user's that are told of each operation of a group, and of its end. */
#ifndef COMM_CORE_HOOK_H
#define COMM_CORE_HOOK_H

#include <comm/backend.h>
#include <pthread.h>
#include <stdatomic.h>

struct hook {
    int32_t id;
    uint32_t events;
    comm_event_fn fn;
    void *context;
};

/* The lock is held for reading while hooks run, so that removing one waits until it does not. A leaf: a hook may not
 * call libcomm. */
struct hooks {
    pthread_rwlock_t lock; /* guards what follows */
    struct hook *list;
    size_t count;
    int32_t last_id;
    _Atomic uint32_t wanted; /* the events that some hook wants; read without the lock, so that no hook costs nothing */
};

void comm__hooks_init(struct hooks *hooks);
void comm__hooks_finish(struct hooks *hooks);

/* Does some hook want to know of operations? */
static inline int comm__hooks_want_ops(const struct hooks *hooks)
{
    return (atomic_load_explicit(&hooks->wanted, memory_order_relaxed) & (COMM_EVENT_SUBMIT | COMM_EVENT_COMPLETE)) !=
           0;
}

/* An op is about to go to the backend, and its work has completed. The second follows only where the first was. */
void comm__hooks_submitted(comm_group *group, const comm_op *op, comm_work *work);
void comm__hooks_completed(comm_group *group, comm_work *work);
/* Nothing came of it after all: the backend refused. */
void comm__hooks_refused(comm_group *group, comm_work *work, comm_status status);
void comm__hooks_ended(comm_group *group, comm_status status, const char *text);

/* INVALID if this thread is in a hook: for what takes a lock that is held while hooks run. */
comm_status comm__refuse_in_hook(const char *call);

#endif

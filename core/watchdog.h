/* The watchdog: ends works that no thread waits for and that their backend does not end, and ends a group on all of its
 * backends once one of them has ended it. One thread for the process, from the first group that needs it until the last
 * of them is closed. */
#ifndef COMM_CORE_WATCHDOG_H
#define COMM_CORE_WATCHDOG_H

#include "group.h"

/* How long after a work's deadline a backend that keeps deadlines may take to end the group itself: it knows which rank
 * is missing, and has to ask the other ranks for that. */
#define WATCHDOG_VERDICT_NS ((int64_t)3000000000)

/* How long after the end of a group a backend may take to complete its works itself. */
#define WATCHDOG_GRACE_NS ((int64_t)1000000000)

/* When the watchdog would next look without being told: INT64_MAX while it does not sleep at all, so that a thread that
 * submits then tells it. */
extern _Atomic int64_t comm__watchdog_wakes_ns;

/* The group may have to be looked after at `due_ns`. */
void comm__watch_from(comm_group *group, int64_t due_ns);

/* The same for submissions, at the cost of two loads: most are due later than what the watchdog waits for. */
static inline void comm__watch(comm_group *group, int64_t due_ns)
{
    if (due_ns < atomic_load(&comm__watchdog_wakes_ns) ||
        !atomic_load_explicit(&group->is_watched, memory_order_relaxed))
        comm__watch_from(group, due_ns);
}

/* The group is being closed: nothing new begins for it from here on; and what had begun is over. */
void comm__unwatch(comm_group *group);
void comm__watchdog_let_go(comm_group *group);

/* In the child of a fork: the thread is the parent's. */
void comm__watchdog_forked(void);

#endif

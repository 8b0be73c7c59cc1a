/* The works of a group that a backend has, oldest first: what flush waits for, close ends, and the watchdog looks at. */
#ifndef COMM_CORE_PENDING_H
#define COMM_CORE_PENDING_H

#include <comm/comm.h>
#include <pthread.h>
#include <stdatomic.h>

struct pending {
    pthread_mutex_t lock; /* guards what follows; a leaf */
    comm_work *first, *last;
    uint64_t submitted; /* works so far */
    atomic_int count;   /* of the list; read without the lock */
};

void comm__pending_init(struct pending *p);
void comm__pending_finish(struct pending *p);

/* A work goes to a backend, and comes back. It numbers the works. */
void comm__pending_add(struct pending *p, comm_work *work);
void comm__pending_remove(struct pending *p, comm_work *work);

/* The number of the newest work so far. */
uint64_t comm__pending_newest(struct pending *p);

/* The oldest work that is pending, of those up to number `most`, with a reference; `internal`: the library's own too. NULL if
 * there is none. */
comm_work *comm__pending_oldest(struct pending *p, uint64_t most, int internal);

/* The earliest deadline; INT64_MAX if there is none. And a work whose deadline is not after `ns`, with a reference, or NULL. */
int64_t comm__pending_due_ns(struct pending *p);
comm_work *comm__pending_overdue(struct pending *p, int64_t ns);

#endif

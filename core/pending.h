/* The works of a group that a backend has: what flush waits for, close ends, and the watchdog looks at.
 *
 * There are two ways to them. Flush has a list in the order of submission. It belongs to the submission lock; a work
 * that is done stays in it until it is used again or the list is read, so that completing needs no lock. The others go
 * through the whole pool, in no order, without any lock: the watchdog may not wait for one, and is in no hurry. */
#ifndef COMM_CORE_PENDING_H
#define COMM_CORE_PENDING_H

#include <comm/comm.h>

struct pending {
    comm_work *oldest, *newest;
    uint64_t submitted; /* works so far */
};

/* A work goes to a backend: it gets its number. And is used again. Both need the submission lock. */
void comm__pending_add(struct pending *p, comm_work *work);
void comm__pending_forget(struct pending *p, comm_work *work);

/* How many works were submitted so far; and the oldest of the user's that is pending, of those up to number `most`,
 * with a reference. NULL if there is none. Both take the submission lock. */
uint64_t comm__pending_newest(comm_group *group);
comm_work *comm__pending_oldest(comm_group *group, uint64_t most);

/* Without a lock: the next one after `last` (NULL: the first), in no order, with a reference; NULL after the last.
 * Takes the reference to `last` away. */
comm_work *comm__pending_next(comm_group *group, comm_work *last);

size_t comm__pending_count(const comm_group *group);

/* When the first one is due; INT64_MAX if none is. And the oldest work that is due at `ns`, with a reference, or
 * NULL. */
int64_t comm__pending_due_ns(comm_group *group);
comm_work *comm__pending_overdue(comm_group *group, int64_t ns);

#endif

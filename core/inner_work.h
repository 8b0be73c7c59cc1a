/* Works that a backend makes for the backend that it wraps (host->work_create). The other backend takes them for works
 * like all others; for the core they are no operations: no number, no record, not waited for. They come from a pool of
 * their own with a lock of its own, because a backend makes them in submit, where the submission lock is held. */
#ifndef COMM_CORE_INNER_WORK_H
#define COMM_CORE_INNER_WORK_H

#include <comm/backend.h>
#include <pthread.h>

#include "work.h"

struct inner_work;

struct inner_works {
    pthread_mutex_t lock; /* guards what follows; a leaf */
    struct inner_work *all, *free;
    size_t out; /* made and not released */
};

static inline int work_is_inner(const comm_work *work)
{
    return work->kind == WORK_KIND_INNER;
}

void comm__inner_works_init(struct inner_works *works);
/* The group's channels are closed, or it has none: free all, and log what was not released. */
void comm__inner_works_finish(comm_group *group, int32_t forked);

/* Has a backend of the group's made such works? If so, it wraps another one. */
int comm__inner_works_any(struct inner_works *works);
comm_status comm__inner_work_create(comm_group *group, comm_work_done_fn done, void *context, comm_work **ret_work);
void comm__inner_work_release(comm_work *work);

/* What the other backend says of it, through the host table. */
void comm__inner_work_complete(comm_work *work, comm_status status, const char *error);
void comm__inner_work_received(comm_work *work, int32_t source, int32_t tag, size_t count);

#endif

/* The pool of a group's inner works, and their completion. */
#include "inner_work.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "group.h"

struct inner_work {
    comm_work work; /* what backends know; must be first */
    atomic_int completed;
    comm_work_done_fn done;
    void *context;
    struct inner_work *next_of_all, *next_free;
};

void comm__inner_works_init(struct inner_works *works)
{
    pthread_mutex_init(&works->lock, NULL);
}

void comm__inner_works_finish(comm_group *group, int32_t forked)
{
    struct inner_works *works = &group->inner_works;
    if (works->out > 0 && !forked)
        comm__log(COMM_LOG_WARN, "group '%s': a backend has not released %zu works that it made with work_create",
                  group->name, works->out);
    while (works->all) {
        struct inner_work *inner = works->all;
        works->all = inner->next_of_all;
        free(inner);
    }
    works->free = NULL;
    works->out = 0;
}

/* Holds the lock. */
static struct inner_work *take(struct inner_works *works)
{
    struct inner_work *inner = works->free;
    if (inner) {
        works->free = inner->next_free;
    } else if ((inner = calloc(1, sizeof *inner)) != NULL) {
        inner->next_of_all = works->all;
        works->all = inner;
    }
    works->out += inner != NULL;
    return inner;
}

int comm__inner_works_any(struct inner_works *works)
{
    pthread_mutex_lock(&works->lock);
    int any = works->all != NULL;
    pthread_mutex_unlock(&works->lock);
    return any;
}

comm_status comm__inner_work_create(comm_group *group, comm_work_done_fn done, void *context, comm_work **ret_work)
{
    struct inner_works *works = &group->inner_works;
    pthread_mutex_lock(&works->lock);
    struct inner_work *inner = take(works);
    pthread_mutex_unlock(&works->lock);
    if (!inner)
        return comm__fail(COMM_ERR_NO_MEMORY, "a work on group '%s'", group->name);
    inner->work.kind = WORK_KIND_INNER;
    inner->work.group = group;
    inner->work.source = inner->work.tag = -1;
    inner->work.received_count = 0;
    inner->work.slot = NULL;
    inner->done = done;
    inner->context = context;
    atomic_store(&inner->work.state, 0);
    atomic_store(&inner->completed, 0);
    *ret_work = &inner->work;
    return COMM_OK;
}

void comm__inner_work_release(comm_work *work)
{
    if (!work)
        return;
    struct inner_work *inner = (struct inner_work *)work;
    struct inner_works *works = &work->group->inner_works;
    atomic_store(&inner->completed, 1); /* a completion from now on comes too late */
    pthread_mutex_lock(&works->lock);
    inner->next_free = works->free;
    works->free = inner;
    works->out--;
    pthread_mutex_unlock(&works->lock);
}

void comm__inner_work_complete(comm_work *work, comm_status status, const char *error)
{
    struct inner_work *inner = (struct inner_work *)work;
    comm_group *group = work->group;
    if (atomic_exchange(&inner->completed, 1)) {
        comm__log(COMM_LOG_ERROR,
                  "group '%s': a backend completed a work twice, which another backend has made for it; the second "
                  "status, %s, is ignored",
                  group->name, comm_status_name(status));
        return;
    }
    atomic_fetch_add(&group->drivers, 1); /* close waits until done() is over, which may use the state of its backend */
    atomic_store(&work->state, WORK_DONE);
    inner->done(work, status, error, inner->context);
    atomic_fetch_sub(&group->drivers, 1);
}

void comm__inner_work_received(comm_work *work, int32_t source, int32_t tag, size_t count)
{
    work->source = source;
    work->tag = tag;
    work->received_count = count;
}

/* A list in the order of submission, from which any work may go at any time. */
#include "pending.h"

#include <assert.h>

#include "work.h"

void comm__pending_init(struct pending *p)
{
    pthread_mutex_init(&p->lock, NULL);
}

void comm__pending_finish(struct pending *p)
{
    pthread_mutex_destroy(&p->lock);
}

/* A change of the count under the lock needs no atomic addition. */
static void count(struct pending *p, int more)
{
    int changed = atomic_load_explicit(&p->count, memory_order_relaxed) + more;
    assert(changed >= 0);
    atomic_store_explicit(&p->count, changed, memory_order_release);
}

void comm__pending_add(struct pending *p, comm_work *work)
{
    pthread_mutex_lock(&p->lock);
    work->number = ++p->submitted;
    work->newer = NULL;
    work->older = p->last;
    *(p->last ? &p->last->newer : &p->first) = work;
    p->last = work;
    count(p, 1);
    pthread_mutex_unlock(&p->lock);
}

void comm__pending_remove(struct pending *p, comm_work *work)
{
    pthread_mutex_lock(&p->lock);
    *(work->older ? &work->older->newer : &p->first) = work->newer;
    *(work->newer ? &work->newer->older : &p->last) = work->older;
    count(p, -1);
    pthread_mutex_unlock(&p->lock);
}

uint64_t comm__pending_newest(struct pending *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t newest = p->submitted;
    pthread_mutex_unlock(&p->lock);
    return newest;
}

/* In the list, so its backend has a reference too. Holds the lock. */
static comm_work *with_reference(comm_work *work)
{
    if (work)
        comm__work_ref(work);
    return work;
}

comm_work *comm__pending_oldest(struct pending *p, uint64_t most, int internal)
{
    pthread_mutex_lock(&p->lock);
    comm_work *work = p->first;
    while (work && work->internal && !internal)
        work = work->newer;
    work = with_reference(work && work->number <= most ? work : NULL);
    pthread_mutex_unlock(&p->lock);
    return work;
}

int64_t comm__pending_due_ns(struct pending *p)
{
    int64_t due_ns = INT64_MAX;
    pthread_mutex_lock(&p->lock);
    for (const comm_work *work = p->first; work; work = work->newer)
        due_ns = work->due_ns < due_ns ? work->due_ns : due_ns;
    pthread_mutex_unlock(&p->lock);
    return due_ns;
}

comm_work *comm__pending_overdue(struct pending *p, int64_t ns)
{
    pthread_mutex_lock(&p->lock);
    comm_work *work = p->first;
    while (work && work->due_ns > ns)
        work = work->newer;
    work = with_reference(work);
    pthread_mutex_unlock(&p->lock);
    return work;
}

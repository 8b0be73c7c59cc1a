/* A list from which works go late, and the pool. */
#include "pending.h"

#include "group.h"

static int is_pending(uint32_t state)
{
    return (state & (WORK_PENDING | WORK_DONE)) == WORK_PENDING;
}

/* A pending work has a reference of its backend's; it goes back to the pool only after another state. */
static int take(comm_work *work)
{
    /* what has completed is to be seen, too */
    uint32_t state = atomic_load_explicit(&work->state, memory_order_acquire);
    do
        if (!is_pending(state))
            return 0;
    while (!atomic_compare_exchange_weak_explicit(&work->state, &state, state + WORK_REFERENCE, memory_order_acquire,
                                                  memory_order_acquire));
    return 1;
}

/* ---- The list ---- */

void comm__pending_add(struct pending *p, comm_work *work)
{
    work->number = ++p->submitted;
    work->newer = NULL;
    work->older = p->newest;
    *(p->newest ? &p->newest->newer : &p->oldest) = work;
    p->newest = work;
}

void comm__pending_forget(struct pending *p, comm_work *work)
{
    if (work->number == 0)
        return;
    *(work->older ? &work->older->newer : &p->oldest) = work->newer;
    *(work->newer ? &work->newer->older : &p->newest) = work->older;
    work->number = 0;
}

uint64_t comm__pending_newest(comm_group *group)
{
    futex_lock_take(&group->submission);
    uint64_t newest = group->pending.submitted;
    futex_lock_release(&group->submission);
    return newest;
}

comm_work *comm__pending_oldest(comm_group *group, uint64_t most)
{
    struct pending *p = &group->pending;
    comm_work *found = NULL;
    futex_lock_take(&group->submission);
    for (comm_work *work = p->oldest, *newer; !found && work && work->number <= most; work = newer) {
        newer = work->newer;
        if (!take(work))
            comm__pending_forget(p, work);
        else if (work->internal)
            comm_work_release(work);
        else
            found = work;
    }
    futex_lock_release(&group->submission);
    return found;
}

/* ---- The pool ---- */

comm_work *comm__pending_next(comm_group *group, comm_work *last)
{
    comm_work *work = last ? last->next_of_all : atomic_load_explicit(&group->all_works, memory_order_acquire);
    while (work && !take(work))
        work = work->next_of_all;
    comm_work_release(last);
    return work;
}

size_t comm__pending_count(const comm_group *group)
{
    size_t count = 0;
    for (const comm_work *work = atomic_load_explicit(&group->all_works, memory_order_acquire); work;
         work = work->next_of_all)
        count += (size_t)is_pending(atomic_load_explicit(&work->state, memory_order_acquire));
    return count;
}

int64_t comm__pending_due_ns(comm_group *group)
{
    int64_t due_ns = INT64_MAX;
    for (comm_work *work = NULL; (work = comm__pending_next(group, work));)
        due_ns = work->due_ns < due_ns ? work->due_ns : due_ns;
    return due_ns;
}

comm_work *comm__pending_overdue(comm_group *group, int64_t ns)
{
    comm_work *oldest = NULL;
    for (comm_work *work = NULL; (work = comm__pending_next(group, work));)
        if (work->due_ns <= ns && (!oldest || work->began < oldest->began)) {
            comm_work_release(oldest);
            oldest = work;
            comm__work_ref(oldest);
        }
    return oldest;
}

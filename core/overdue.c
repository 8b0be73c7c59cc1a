/* What the core does when a backend does not end its works in time. A work that is not complete when it is due, which
 * is some time after its deadline if its backend keeps deadlines, ends its group. A work that is not complete a grace
 * period after its group has ended is completed without the backend, which then keeps its reference to it: should it
 * complete the work after all, that does no harm. A waiting thread applies these rules to what it waits for; the
 * watchdog applies them to the rest. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "group.h"
#include "watchdog.h"

enum { REASON_BYTES_MAX = 800 }; /* so that what is added to it fits into a text */

static int has_ended(const comm_group *group)
{
    return atomic_load_explicit(&group->ended, memory_order_acquire) != COMM_OK;
}

static int64_t with_grace(int64_t ns)
{
    return ns > DEADLINE_NEVER - WATCHDOG_GRACE_NS ? DEADLINE_NEVER : ns + WATCHDOG_GRACE_NS;
}

int64_t comm__work_due_ns(const comm_work *work)
{
    return has_ended(work->group) ? with_grace(work->group->ended_ns) : work->due_ns;
}

int64_t comm__group_due_ns(comm_group *group)
{
    if (atomic_load(&group->untold) && atomic_load(&group->is_open))
        return 0;
    if (!has_ended(group))
        return comm__pending_due_ns(group);
    return comm__pending_count(group) > 0 ? with_grace(group->ended_ns) : DEADLINE_NEVER;
}

static void end_for(const comm_work *work)
{
    char who[COMM_ERROR_BYTES / 2], text[COMM_ERROR_BYTES];
    comm__work_describe(work, who, sizeof who);
    snprintf(text, sizeof text, "%s: timed out: not finished within %" PRId64 " ms", who,
             work->timeout_ns / 1000000);
    comm__group_abort(work->group, COMM_ERR_DEADLINE, text);
}

static void abandon_all(comm_group *group)
{
    for (comm_work *work = NULL; (work = comm__pending_next(group, work));) {
        char text[COMM_ERROR_BYTES];
        size_t bytes = strlen(group->ended_text);
        if (bytes > REASON_BYTES_MAX)
            bytes = utf8_cut(group->ended_text, REASON_BYTES_MAX);
        snprintf(text, sizeof text,
                 "%.*s; backend '%s' has not completed the operation: its buffers may be in use until the "
                 "group is closed",
                 (int)bytes, group->ended_text, work->channel->backend->name);
        comm__work_abandon(work, group->ended, text); /* unless the backend completes it at this moment */
    }
}

void comm__group_enforce(comm_group *group)
{
    int64_t now_ns = clock_now_ns();
    if (atomic_exchange(&group->untold, 0)) {
        comm__group_abort(group, group->ended, group->ended_text);
    } else if (has_ended(group)) {
        if (with_grace(group->ended_ns) <= now_ns)
            abandon_all(group);
    } else {
        comm_work *work = comm__pending_overdue(group, now_ns);
        if (work)
            end_for(work);
        comm_work_release(work);
    }
}

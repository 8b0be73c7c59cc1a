/* Tells the hooks of a group what happens to it. */
#include "hook.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/ticks.h"
#include "fork.h"
#include "group.h"
#include "thread.h"

#define EVENTS_ALL ((uint32_t)(COMM_EVENT_SUBMIT | COMM_EVENT_COMPLETE | COMM_EVENT_END))

void comm__hooks_init(struct hooks *hooks)
{
    pthread_rwlock_init(&hooks->lock, NULL);
}

void comm__hooks_finish(struct hooks *hooks)
{
    pthread_rwlock_destroy(&hooks->lock);
    free(hooks->list);
}

/* ---- Telling ---- */

static int wanted(struct hooks *hooks, uint32_t event)
{
    return (atomic_load_explicit(&hooks->wanted, memory_order_relaxed) & event) != 0;
}

static void tell(comm_group *group, int32_t kind, const comm_record *record, comm_status status, const char *error)
{
    const comm_event event = { .struct_bytes = sizeof event,
                               .kind = kind,
                               .group = group,
                               .record = record,
                               .status = status,
                               .record_bytes = record ? (uint32_t)sizeof *record : 0,
                               .error = error ? error : "" };
    struct hooks *hooks = &group->hooks;
    comm__callback_enter();
    comm__thread.in.hooks++;
    pthread_rwlock_rdlock(&hooks->lock);
    for (size_t i = 0; i < hooks->count; i++)
        if (hooks->list[i].events & (uint32_t)kind)
            hooks->list[i].fn(&event, hooks->list[i].context);
    pthread_rwlock_unlock(&hooks->lock);
    assert(comm__thread.in.hooks > 0);
    comm__thread.in.hooks--;
    comm__callback_leave();
}

comm_status comm__refuse_in_hook(const char *call)
{
    return comm__thread.in.hooks == 0
               ? COMM_OK
               : comm__fail(COMM_ERR_INVALID, "%s: a hook may not call this; let another thread do it", call);
}

void comm__hooks_submitted(comm_group *group, const comm_op *op, comm_work *work)
{
    if (work->internal || !comm__hooks_want_ops(&group->hooks))
        return;
    comm__record_fill(&work->hook_record, op, clock_wall_ns());
    work->is_hooked = 1;
    if (wanted(&group->hooks, COMM_EVENT_SUBMIT))
        tell(group, COMM_EVENT_SUBMIT, &work->hook_record, COMM_IN_PROGRESS, NULL);
}

/* When it has ended is in the work by now. */
static void tell_completed(comm_group *group, comm_work *work, comm_status status, const char *error)
{
    if (!work->is_hooked || !wanted(&group->hooks, COMM_EVENT_COMPLETE))
        return;
    comm_record *record = &work->hook_record;
    record->status = status;
    record->completed_ns = record->submitted_ns +
                           ticks_between_ns(work->began, atomic_load_explicit(&work->ended, memory_order_relaxed),
                                            comm__ns_per_tick());
    if (work->kind == COMM_OP_RECV && status == COMM_OK) {
        record->peer = work->source;
        record->tag = work->tag;
        record->count = work->received_count;
    }
    tell(group, COMM_EVENT_COMPLETE, record, status, error);
}

void comm__hooks_completed(comm_group *group, comm_work *work)
{
    tell_completed(group, work, work->status, work->error);
}

void comm__hooks_refused(comm_group *group, comm_work *work, comm_status status)
{
    tell_completed(group, work, status, comm_last_error());
}

void comm__hooks_ended(comm_group *group, comm_status status, const char *text)
{
    if (wanted(&group->hooks, COMM_EVENT_END))
        tell(group, COMM_EVENT_END, NULL, status, text);
}

/* ---- Adding and removing ---- */

/* Holds the lock for writing. */
static void sum_up(struct hooks *hooks)
{
    uint32_t events = 0;
    for (size_t i = 0; i < hooks->count; i++)
        events |= hooks->list[i].events;
    atomic_store_explicit(&hooks->wanted, events, memory_order_relaxed);
}

static comm_status check_group(const comm_group *group, const char *call)
{
    if (!group)
        return comm__fail(COMM_ERR_INVALID, "%s: the group is NULL", call);
    return comm__forked_since(group->generation) ? comm__fail_forked(group, call) : comm__refuse_in_hook(call);
}

static int is_hook(const struct hooks *hooks, int32_t id)
{
    for (size_t i = 0; i < hooks->count; i++)
        if (hooks->list[i].id == id)
            return 1;
    return 0;
}

/* Positive. They come again after 2^31 hooks. */
static int32_t new_id(struct hooks *hooks)
{
    do
        hooks->last_id = hooks->last_id == INT32_MAX ? 1 : hooks->last_id + 1;
    while (is_hook(hooks, hooks->last_id));
    return hooks->last_id;
}

comm_status comm_group_hook_add(comm_group *group, uint32_t events, comm_event_fn fn, void *context, int32_t *ret_hook)
{
    comm_status status = check_group(group, "comm_group_hook_add");
    if (status != COMM_OK)
        return status;
    if (!fn || !ret_hook || events == 0 || (events & ~EVENTS_ALL))
        return comm__fail(COMM_ERR_INVALID, "comm_group_hook_add on group '%s': %s", group->name,
                          !fn         ? "the function is NULL"
                          : !ret_hook ? "ret_hook is NULL"
                                      : "events must be some of COMM_EVENT_SUBMIT, _COMPLETE and _END");
    if (group->round_robin)
        return comm__fail(COMM_ERR_UNSUPPORTED,
                          "comm_group_hook_add on group '%s': it takes turns over other groups; add the hook to those",
                          group->name);
    struct hooks *hooks = &group->hooks;
    pthread_rwlock_wrlock(&hooks->lock);
    struct hook *list = realloc(hooks->list, (hooks->count + 1) * sizeof *list);
    if (list) {
        hooks->list = list;
        *ret_hook = new_id(hooks);
        list[hooks->count++] = (struct hook){ *ret_hook, events, fn, context };
        sum_up(hooks);
    }
    pthread_rwlock_unlock(&hooks->lock);
    return list ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "comm_group_hook_add on group '%s'", group->name);
}

comm_status comm_group_hook_remove(comm_group *group, int32_t hook)
{
    comm_status status = check_group(group, "comm_group_hook_remove");
    if (status != COMM_OK)
        return status;
    struct hooks *hooks = &group->hooks;
    pthread_rwlock_wrlock(&hooks->lock);
    size_t i = 0;
    while (i < hooks->count && hooks->list[i].id != hook)
        i++;
    int is_there = i < hooks->count;
    if (is_there) {
        memmove(&hooks->list[i], &hooks->list[i + 1], (hooks->count - i - 1) * sizeof *hooks->list);
        hooks->count--;
        sum_up(hooks);
    }
    pthread_rwlock_unlock(&hooks->lock);
    return is_there
               ? COMM_OK
               : comm__fail(COMM_ERR_NOT_FOUND, "comm_group_hook_remove: group '%s' has no hook %d", group->name, hook);
}

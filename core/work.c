/* Completion, waiting, callbacks and error texts of works, written once for all backends. */
#include "work.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counter.h"
#include "base/error.h"
#include "base/log.h"
#include "base/ticks.h"
#include "base/utf8.h"
#include "coalesce.h"
#include "fork.h"
#include "group.h"
#include "op.h"
#include "registry.h"
#include "thread.h"

_Thread_local struct comm__thread comm__thread;

/* ---- Pool ---- */

/* In returned_works: the group is closed. */
static comm_work closed;

/* Several, as later on one exchange then takes as many of them back. */
static comm_work *works_create(comm_group *group)
{
    comm_work *first = NULL;
    for (int i = 0; i < WORKS_AT_ONCE; i++) {
        comm_work *work = calloc(1, sizeof *work);
        if (!work)
            break;
        work->group = group;
        atomic_init(&work->fd, -1);
        work->next_of_all = atomic_load_explicit(&group->all_works, memory_order_relaxed);
        atomic_store_explicit(&group->all_works, work, memory_order_release);
        group->work_count++;
        work->next_free = first;
        first = work;
    }
    return first;
}

/* Its end is in the work until it is used again. */
static void settle(comm_group *group, comm_work *work)
{
    if (work->record)
        comm__recorder_end(&group->recorder, work->record, work->status,
                           atomic_load_explicit(&work->ended, memory_order_relaxed));
    work->record = 0;
}

void comm__works_settle(comm_group *group)
{
    for (comm_work *work = atomic_load(&group->all_works); work; work = work->next_of_all)
        if (work_is_done(work))
            settle(group, work);
}

int comm__work_is_there(comm_group *group)
{
    if (group->free_works)
        return 1;
    group->free_works = atomic_exchange_explicit(&group->returned_works, NULL, memory_order_acquire);
    if (!group->free_works)
        group->free_works = works_create(group);
    return group->free_works != NULL;
}

comm_work *comm__work_take(comm_group *group)
{
    if (!comm__work_is_there(group))
        return NULL;
    comm_work *work = group->free_works;
    group->free_works = work->next_free;
    settle(group, work);
    comm__pending_forget(&group->pending, work);
    atomic_store_explicit(&work->first_failed, NULL, memory_order_relaxed);
    work->internal = 0;
    work->is_hooked = 0;
    work->channel = NULL;
    work->parent = NULL;
    work->batch = NULL;
    work->kind = 0;
    work->slot = NULL;
    work->status = COMM_OK;
    work->source = work->tag = -1;
    work->received_count = 0;
    atomic_store_explicit(&work->state, 2 * WORK_REFERENCE, memory_order_relaxed);
    return work;
}

/* The last reference is gone: back to the pool. Any thread; only comm__work_take empties the list, all of it at once,
 * so that there is no ABA problem. */
static void work_return(comm_work *work)
{
    comm_group *group = work->group;
    if (work->error)
        free(work->error);
    work->error = NULL;
    if (atomic_load_explicit(&work->state, memory_order_relaxed) & WORK_HAS_FD)
        close(atomic_exchange(&work->fd, -1));
    if (work->batch)
        comm__batch_return(work->batch);
    comm_work *head = atomic_load_explicit(&group->returned_works, memory_order_acquire);
    do {
        if (head == &closed) {
            comm__group_unref(group);
            return;
        }
        work->next_free = head;
    } while (!atomic_compare_exchange_weak_explicit(&group->returned_works, &head, work, memory_order_release,
                                                    memory_order_acquire));
}

static size_t count_free(const comm_work *work)
{
    size_t count = 0;
    for (; work; work = work->next_free)
        count++;
    return count;
}

void comm__works_close(comm_group *group)
{
    atomic_fetch_add(&group->references, (int)group->work_count); /* more than enough while we count */
    comm_work *returned = atomic_exchange(&group->returned_works, &closed);
    atomic_fetch_sub(&group->references, (int)(count_free(group->free_works) + count_free(returned)));
}

void comm__work_ref(comm_work *work)
{
    atomic_fetch_add_explicit(&work->state, WORK_REFERENCE, memory_order_relaxed);
}

comm_work *comm_work_retain(comm_work *work)
{
    if (work)
        comm__work_ref(work);
    return work;
}

void comm_work_release(comm_work *work)
{
    if (!work)
        return;
    /* The only reference is ours, and no other thread can get one: the work is done, or was never begun. */
    uint32_t state = atomic_load_explicit(&work->state, memory_order_acquire);
    if (state / WORK_REFERENCE > 1)
        state = atomic_fetch_sub_explicit(&work->state, WORK_REFERENCE, memory_order_acq_rel);
    assert(state / WORK_REFERENCE > 0);
    if (state / WORK_REFERENCE == 1)
        work_return(work);
}

void comm__work_drop(comm_work *work)
{
    comm_work_release(work);
    comm_work_release(work);
}

void comm__work_free_all(comm_group *group)
{
    comm_work *next = atomic_load(&group->all_works);
    while (next) {
        comm_work *work = next;
        next = work->next_of_all;
        free(work->arena.memory);
        free(work);
    }
}

void comm__work_begin(comm_work *work)
{
    /* Sequentially consistent, as what comm__watch loads next is: the watchdog sees the work, or we see it asleep. */
    atomic_store(&work->state, 2 * WORK_REFERENCE | WORK_PENDING);
}

/* ---- Completion ---- */

comm_status comm__refuse_in_reduce_fn(const char *call)
{
    return comm__thread.in.reductions == 0
               ? COMM_OK
               : comm__fail(COMM_ERR_INVALID,
                            "%s: a reduce_fn must not call libcomm: the operation that it is called for waits for it. "
                            "Call this before or after the operation, or let another thread do it", call);
}

void comm__reduce_fn_begins(void)
{
    comm__thread.in.reductions++;
}

void comm__reduce_fn_ends(void)
{
    assert(comm__thread.in.reductions > 0);
    comm__thread.in.reductions--;
}

comm_status comm__refuse_in_callback(const char *call)
{
    if (comm__thread.in.callbacks)
        return comm__fail(COMM_ERR_INVALID,
                          "%s: a work's callback or a hook must not wait; let another thread call this", call);
    return comm__refuse_in_reduce_fn(call);
}

void comm__callback_enter(void)
{
    comm__thread.in.callbacks++;
}

void comm__callback_leave(void)
{
    assert(comm__thread.in.callbacks > 0);
    comm__thread.in.callbacks--;
}

static void call_back(comm_work *work)
{
    comm__callback_enter();
    work->fn(work, work->status, work->context);
    comm__callback_leave();
}

/* Close waits until this is over, callback included. */
static void completing_begins(comm_work *work)
{
    atomic_fetch_add(&work->group->drivers, 1);
}

static void completing_ends(comm_work *work)
{
    count_down(&work->group->drivers);
}

/* For a callback that runs later than the completion, or after it: the work stays, and close waits, until it is
 * over. */
static void hold_for_callback(comm_work *work)
{
    comm__work_ref(work);
    completing_begins(work);
}

static void call_back_held(comm_work *work)
{
    call_back(work);
    completing_ends(work);
    comm_work_release(work);
}

static void run_callback(comm_work *work)
{
    if (comm__thread.defers == 0) {
        call_back(work);
        return;
    }
    hold_for_callback(work);
    work->next_deferred = NULL;
    if (comm__thread.first_due)
        comm__thread.last_due->next_deferred = work;
    else
        comm__thread.first_due = work;
    comm__thread.last_due = work;
}

void comm__callbacks_run_due(void)
{
    while (comm__thread.first_due) {
        comm_work *work = comm__thread.first_due;
        comm__thread.first_due = work->next_deferred;
        call_back_held(work);
    }
}

/* One work of a batch is done; the last one completes the batch's own, with the status of the first that failed. */
static void complete_parent(comm_work *work)
{
    comm_work *parent = work->parent, *none = NULL;
    if (work->status != COMM_OK)
        atomic_compare_exchange_strong(&parent->first_failed, &none, work);
    size_t unfinished = atomic_fetch_sub(&parent->unfinished, 1);
    assert(unfinished > 0);
    if (unfinished > 1)
        return;
    comm_work *failed = atomic_load(&parent->first_failed);
    comm__work_complete(parent, failed ? failed->status : COMM_OK, failed ? failed->error : NULL);
}

void comm__work_describe(const comm_work *work, char *text, size_t capacity)
{
    comm_op op = { .kind = work->kind, .group_seq = work->seq, .root = work->root, .tag = work->op_tag };
    comm__group_describe(work->group, &op, text, capacity);
}

/* Does the text name the operation already, with whatever label? */
static int names_op(const comm_work *work, const char *text)
{
    const char *name = comm_work_op(work);
    char group[GROUP_NAME_BYTES + 16];
    snprintf(group, sizeof group, " on group '%s'", work->group->name);
    return strncmp(text, name, strlen(name)) == 0 && strstr(text, group) != NULL;
}

/* The text of a work that failed: what failed and where, the backend that says so, and its text. */
static void write_failure(const comm_work *work, const char *error, char *text, size_t capacity)
{
    char who[COMM_ERROR_BYTES / 2];
    comm__work_describe(work, who, sizeof who);
    if (!work->channel || names_op(work, error)) /* of a batch: one of its operations has written it */
        snprintf(text, capacity, "%s", error);
    else if (comm_group_status(work->group) != COMM_OK && strstr(error, work->group->ended_text))
        snprintf(text, capacity, "%s: %s", who, error); /* not the backend's words */
    else
        snprintf(text, capacity, "%s: backend '%s': %s", who, work->channel->backend->name, error);
    utf8_trim(text);
}

static void wake(comm_work *work)
{
    syscall(SYS_futex, &work->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Works under way with a callback, and with a descriptor. */
static atomic_int told;

int32_t comm__some_are_told(void)
{
    return atomic_load_explicit(&told, memory_order_relaxed) > 0;
}

/* The work is done from here on. A thread that waits for it may then close the group, so what close must wait for is
 * announced before. A callback that is set by now is called here, a later one by the thread that sets it; likewise with
 * the descriptor. */
static void publish(comm_work *work)
{
    uint32_t state = atomic_load_explicit(&work->state, memory_order_relaxed);
    int is_announced = work->parent != NULL;
    if (is_announced)
        completing_begins(work);
    do {
        if ((state & WORK_CALLBACK) && !is_announced) {
            completing_begins(work);
            is_announced = 1;
        }
    } while (!atomic_compare_exchange_weak_explicit(&work->state, &state,
                                                    (state & ~(uint32_t)(WORK_PENDING | WORK_SLEEPERS)) | WORK_DONE,
                                                    memory_order_seq_cst, memory_order_relaxed));
    if (state & WORK_SLEEPERS)
        wake(work);
    if (state & (WORK_CALLBACK | WORK_HAS_FD))
        atomic_fetch_sub(&told, !!(state & WORK_CALLBACK) + !!(state & WORK_HAS_FD));
    if (state & WORK_HAS_FD)
        eventfd_write(atomic_load(&work->fd), 1);
    if (state & WORK_CALLBACK)
        run_callback(work);
    if (work->parent)
        complete_parent(work);
    if (is_announced)
        completing_ends(work);
}

/* Where there is no memory for the text, the group has it. */
static void fail(comm_work *work, comm_status status, const char *error)
{
    char text[COMM_ERROR_BYTES];
    write_failure(work, error, text, sizeof text);
    work->error = strdup(text);
    if (comm_status_scope(status) >= COMM_SCOPE_OBJECT)
        comm__group_end(work->group, work->channel, status, text);
}

/* Takes the claim, and a reference. */
static void complete(comm_work *work, comm_status status, const char *error)
{
    comm_group *group = work->group;
    work->status = status;
    atomic_store_explicit(&work->ended, ticks_now(), memory_order_relaxed);
    if (status != COMM_OK)
        fail(work, status, error && *error ? error : "it gave no reason");
    comm__hooks_completed(group, work);
    publish(work);
    comm_work_release(work);
}

/* The end of most works: it went well, and neither a waiter nor a callback is to be told. One exchange says so and
 * gives the reference up. */
static int complete_quietly(comm_work *work)
{
    if (work->is_hooked || work->parent)
        return 0;
    uint32_t state = atomic_load_explicit(&work->state, memory_order_relaxed);
    while (!(state & (WORK_DONE | WORK_SLEEPERS | WORK_BY_BACKEND | WORK_BY_CORE | WORK_CALLBACK | WORK_HAS_FD))) {
        atomic_store_explicit(&work->ended, ticks_now(), memory_order_relaxed);
        uint32_t done = ((state & ~(uint32_t)WORK_PENDING) | WORK_DONE | WORK_BY_BACKEND) - WORK_REFERENCE;
        if (!atomic_compare_exchange_weak_explicit(&work->state, &state, done, memory_order_seq_cst,
                                                   memory_order_relaxed))
            continue;
        if (done < WORK_REFERENCE)
            work_return(work);
        return 1;
    }
    return 0;
}

/* A status that cannot end a work, or not with that text. */
static comm_status strange(comm_status status, const char *error, char *text, size_t capacity)
{
    if (status == COMM_OK)
        snprintf(text, capacity, "it completed it with COMM_OK and the error text '%s'", error);
    else
        snprintf(text, capacity, "it completed it with the status %d, which is no error%s%s", status, error ? ": " : "",
                 error ? error : "");
    return COMM_ERR_BACKEND;
}

void comm__work_complete(comm_work *work, comm_status status, const char *error)
{
    char text[COMM_ERROR_BYTES];
    if (status == COMM_OK && !(error && *error) && complete_quietly(work))
        return;
    uint32_t before = atomic_fetch_or(&work->state, WORK_BY_BACKEND);
    if (before & WORK_BY_BACKEND) {
        comm__log(COMM_LOG_ERROR, "a backend completed %s #%" PRIu64 " twice; the second status, %s, is ignored",
                  comm_work_op(work), work->seq, comm_status_name(status));
        return;
    }
    if (before & WORK_BY_CORE) {
        comm_work_release(work); /* after all */
        return;
    }
    if (status == COMM_OK ? error && *error : status > 0 || !comm__status_known(status)) {
        status = strange(status, error, text, sizeof text);
        error = text;
    }
    complete(work, status, error);
}

/* Claim a work that its backend has not completed; `more` is added to its state. */
static int claim(comm_work *work, uint32_t more)
{
    uint32_t state = atomic_load_explicit(&work->state, memory_order_relaxed);
    do
        if (state & (WORK_BY_BACKEND | WORK_BY_CORE))
            return 0;
    while (!atomic_compare_exchange_weak(&work->state, &state, (state | WORK_BY_CORE) + more));
    return 1;
}

int comm__work_abandon(comm_work *work, comm_status status, const char *error)
{
    if (!claim(work, WORK_REFERENCE)) /* complete() takes one away, and the backend keeps its own */
        return 0;
    complete(work, status, error);
    return 1;
}

int comm__work_take_back(comm_work *work, comm_status status)
{
    if (!claim(work, 0))
        return 0;
    work->status = status;
    atomic_store_explicit(&work->ended, ticks_now(), memory_order_relaxed);
    /* A thread that flushes the group may wait for it already. */
    if (atomic_fetch_or(&work->state, WORK_DONE) & WORK_SLEEPERS)
        wake(work);
    comm_work_release(work);
    return 1;
}

void comm__work_received(comm_work *work, int32_t source, int32_t tag, size_t count)
{
    /* it has ended without the backend: see overdue.c */
    if (atomic_load(&work->state) & (WORK_BY_BACKEND | WORK_BY_CORE))
        return;
    work->source = source;
    work->tag = tag;
    work->received_count = count;
}

/* ---- Waiting ---- */

static void sleep_until(comm_work *work, int64_t deadline_ns)
{
    uint32_t state = atomic_fetch_or(&work->state, WORK_SLEEPERS);
    if (state & WORK_DONE)
        return;
    struct timespec until = { (time_t)(deadline_ns / 1000000000), (long)(deadline_ns % 1000000000) };
    /* FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time; wake-ups for nothing are the caller's to loop over. */
    syscall(SYS_futex, &work->state, FUTEX_WAIT_BITSET_PRIVATE, state | WORK_SLEEPERS,
            deadline_ns == DEADLINE_NEVER ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* The slot progress has failed, which the rules do not allow: the state of the works is unknown, so the backend must
 * end them. */
static void progress_failed(comm_group *group, const struct channel *channel, comm_status status, uint64_t fail_count)
{
    if (atomic_load(&group->ended) != COMM_OK)
        return;
    status = comm__slot_failed("progress", status, fail_count);
    comm__fail_while(status, "backend '%s': progress failed", channel->backend->name);
    comm__group_abort(group, comm_status_scope(status) == COMM_SCOPE_OBJECT ? status : COMM_ERR_BACKEND,
                      comm_last_error());
}

/* One turn: in the backend, unless its group is being closed or it has threads of its own. */
static void drive_once(comm_work *work, int64_t until_ns)
{
    comm_group *group = work->group;
    const struct channel *channel = work->channel;
    int drives = channel && channel->backend->progress;
    if (drives) {
        /* Sequentially consistent, as is the store of `closing` in comm_group_close: either we see it, or it sees
         * us. */
        atomic_fetch_add(&group->drivers, 1);
        int has_ended = atomic_load(&group->ended) != COMM_OK;
        drives = !atomic_load(&group->closing);
        uint64_t fail_count = comm__fail_count();
        comm_status status = drives ? channel->backend->progress(channel->state, work, until_ns) : COMM_OK;
        if (status != COMM_OK) {
            progress_failed(group, channel, status, fail_count);
            drives = !has_ended; /* what it had to end is awaited asleep */
        }
        count_down(&group->drivers);
    }
    if (!drives && until_ns)
        sleep_until(work, until_ns);
}

comm_status comm__work_drive(comm_work *work, int64_t deadline_ns)
{
    if (!work_is_done(work)) {
        comm_status status = comm__refuse_in_callback(comm_work_op(work));
        if (status != COMM_OK)
            return status;
    }
    if (work->batch) {
        comm_status status = comm__batch_drive(work->batch, deadline_ns);
        if (status != COMM_OK)
            return status;
    }
    const int64_t since_ns = deadline_ns < DEADLINE_NEVER && !work_is_done(work) ? clock_now_ns() : 0;
    while (!work_is_done(work)) {
        int64_t due_ns = comm__work_due_ns(work);
        drive_once(work, deadline_ns < due_ns ? deadline_ns : due_ns);
        if (work_is_done(work))
            break;
        int64_t now = clock_now_ns();
        if (now >= due_ns)
            comm__group_enforce(work->group);
        if (now >= deadline_ns) {
            char who[COMM_ERROR_BYTES];
            comm__work_describe(work, who, sizeof who);
            return comm__fail(COMM_ERR_TIMEOUT,
                              "waiting for %s timed out after %lld ms: not finished yet; the operation goes on", who,
                              (long long)((now - since_ns) / 1000000));
        }
    }
    return COMM_OK;
}

comm_status comm__work_result(const comm_work *work)
{
    return work->status == COMM_OK ? COMM_OK : comm__fail(work->status, "%s", comm_work_error(work));
}

static comm_status check_work(const comm_work *work, const char *call)
{
    if (!work)
        return comm__fail(COMM_ERR_INVALID, "%s: the work is NULL", call);
    if (comm__forked_since(work->group->generation) && !work_is_done(work))
        return comm__fail_forked(work->group, call);
    return COMM_OK;
}

static int64_t wait_deadline(int64_t timeout_ms)
{
    return timeout_ms == 0 ? DEADLINE_NEVER : clock_deadline_ns(timeout_ms);
}

static comm_status check_timeout(const char *call, int64_t timeout_ms)
{
    return timeout_ms >= COMM_TIMEOUT_INFINITE
               ? COMM_OK
               : comm__fail(COMM_ERR_INVALID, "%s: timeout_ms is %lld; it is milliseconds, 0 or COMM_TIMEOUT_INFINITE",
                            call, (long long)timeout_ms);
}

static comm_status wait_until(comm_work *work, int64_t deadline_ns)
{
    comm_status status = check_work(work, "comm_work_wait");
    if (status == COMM_OK && !work_is_done(work))
        status = comm__work_drive(work, deadline_ns);
    return status == COMM_OK ? comm__work_result(work) : status;
}

comm_status comm_work_wait(comm_work *work, int64_t timeout_ms)
{
    comm_status status = check_timeout("comm_work_wait", timeout_ms);
    return status == COMM_OK ? wait_until(work, wait_deadline(timeout_ms)) : status;
}

comm_status comm_work_wait_all(comm_work *const *works, size_t count, int64_t timeout_ms)
{
    if (!works && count > 0)
        return comm__fail(COMM_ERR_INVALID, "comm_work_wait_all: the array is NULL, but count is %zu", count);
    comm_status first = check_timeout("comm_work_wait_all", timeout_ms);
    if (first != COMM_OK)
        return first;
    int64_t deadline_ns = wait_deadline(timeout_ms);
    char text[COMM_ERROR_BYTES];
    for (size_t i = 0; i < count; i++) {
        comm_status status = works[i] ? wait_until(works[i], deadline_ns) : COMM_OK;
        if (status == COMM_OK || first != COMM_OK)
            continue;
        first = status;
        memcpy(text, comm_last_error(), sizeof text);
    }
    return first == COMM_OK ? COMM_OK : comm__fail(first, "%s", text);
}

comm_status comm_work_test(comm_work *work, int32_t *ret_done)
{
    comm_status status = check_work(work, "comm_work_test");
    if (status == COMM_OK && !ret_done)
        status = comm__fail(COMM_ERR_INVALID, "comm_work_test: ret_done is NULL");
    if (status == COMM_OK && !work_is_done(work))
        status = comm__refuse_in_reduce_fn("comm_work_test");
    if (status != COMM_OK)
        return status;
    if (!work_is_done(work) && work->batch)
        comm__batch_nudge(work->batch);
    else if (!work_is_done(work))
        drive_once(work, 0);
    *ret_done = work_is_done(work);
    return *ret_done ? comm__work_result(work) : COMM_OK;
}

/* The work may have completed: when its op was enqueued, say. Its group may have been closed since, and then there is
 * nothing to order any more. */
static comm_status order_stream(comm_work *work, void *stream)
{
    comm_group *group = work->group;
    const struct channel *channel = work->channel;
    atomic_fetch_add(&group->drivers, 1); /* see drive_once */
    uint64_t fail_count = comm__fail_count();
    comm_status status = COMM_OK;
    if (!atomic_load(&group->closing))
        status = channel->backend->wait_stream(channel->state, work, stream);
    if (status != COMM_OK) {
        status = comm__slot_failed("wait_stream", status, fail_count);
        comm__fail_while(status, "comm_work_wait_stream: backend '%s'", channel->backend->name);
    }
    count_down(&group->drivers);
    return status;
}

comm_status comm_work_wait_stream(comm_work *work, void *stream)
{
    comm_status status = check_work(work, "comm_work_wait_stream");
    if (status == COMM_OK)
        status = comm__refuse_in_reduce_fn("comm_work_wait_stream");
    if (status != COMM_OK)
        return status;
    if (work->batch)
        return comm__batch_wait_stream(work, stream);
    if (!work->channel || !work->channel->backend->wait_stream || (work_is_done(work) && work->status != COMM_OK))
        return comm_work_wait(work, 0);
    return order_stream(work, stream);
}

/* ---- Being told ---- */

comm_status comm_work_on_complete(comm_work *work, comm_work_fn fn, void *context)
{
    comm_status status = check_work(work, "comm_work_on_complete");
    if (status != COMM_OK)
        return status;
    if (!fn)
        return comm__fail(COMM_ERR_INVALID, "comm_work_on_complete: the function is NULL");
    if (atomic_fetch_or(&work->state, WORK_PROMISED) & WORK_PROMISED)
        return comm__fail(COMM_ERR_INVALID, "comm_work_on_complete: %s has a callback already", comm_work_op(work));
    work->fn = fn;
    work->context = context;
    atomic_fetch_add(&told, 1);
    uint32_t state = atomic_load_explicit(&work->state, memory_order_acquire);
    while (!(state & WORK_DONE))
        if (atomic_compare_exchange_weak_explicit(&work->state, &state, state | WORK_CALLBACK, memory_order_release,
                                                  memory_order_acquire))
            return COMM_OK;
    atomic_fetch_sub(&told, 1);
    hold_for_callback(work);
    call_back_held(work);
    return COMM_OK;
}

comm_status comm_work_fd(comm_work *work, int32_t *ret_fd)
{
    comm_status status = check_work(work, "comm_work_fd");
    if (status == COMM_OK && !ret_fd)
        status = comm__fail(COMM_ERR_INVALID, "comm_work_fd: ret_fd is NULL");
    if (status != COMM_OK)
        return status;
    int fd = atomic_load(&work->fd), none = -1;
    if (fd < 0) {
        fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
            return comm__fail(COMM_ERR_SYSTEM, "comm_work_fd: eventfd: %s", strerror(errno));
        if (!atomic_compare_exchange_strong(&work->fd, &none, fd)) {
            close(fd);
            fd = none;
        }
        atomic_fetch_add(&told, 1);
        uint32_t before = atomic_fetch_or(&work->state, WORK_HAS_FD);
        if (before & (WORK_DONE | WORK_HAS_FD)) /* it is not told any more, or counted by another thread */
            atomic_fetch_sub(&told, 1);
        if (before & WORK_DONE)
            eventfd_write(fd, 1);
    }
    *ret_fd = fd;
    return COMM_OK;
}

/* ---- Facts ---- */

comm_status comm_work_status(const comm_work *work)
{
    if (!work)
        return comm__fail(COMM_ERR_INVALID, "comm_work_status: the work is NULL");
    return work_is_done(work) ? work->status : COMM_IN_PROGRESS;
}

const char *comm_work_error(const comm_work *work)
{
    if (!work || !work_is_done(work) || work->status == COMM_OK)
        return "";
    if (work->error)
        return work->error;
    int group_knows = atomic_load_explicit(&work->group->ended, memory_order_acquire) == work->status;
    return group_knows ? work->group->ended_text : "there was no memory for the text that says why";
}

int32_t comm_work_source_rank(const comm_work *work)
{
    return work && work_is_done(work) ? work->source : -1;
}

int32_t comm_work_tag(const comm_work *work)
{
    return work && work_is_done(work) ? work->tag : -1;
}

size_t comm_work_received_count(const comm_work *work)
{
    return work && work_is_done(work) ? work->received_count : 0;
}

uint64_t comm_work_seq(const comm_work *work)
{
    return work ? work->seq : 0;
}

int64_t comm_work_duration_ns(const comm_work *work)
{
    if (!work || !work_is_done(work))
        return -1;
    return ticks_between_ns(work->began, atomic_load_explicit(&work->ended, memory_order_relaxed), comm__ns_per_tick());
}

int64_t comm_work_timeout(const comm_work *work)
{
    return !work || work->timeout_ns == DEADLINE_NEVER ? COMM_TIMEOUT_INFINITE : work->timeout_ns / 1000000;
}

const char *comm_work_op(const comm_work *work)
{
    return work && work->kind ? comm__op_name(work->kind) : "coalesced";
}

/* The way of an op from a public call to its backend; how groups end; questions to a group. */
#include "group.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counter.h"
#include "base/utf8.h"
#include "coalesce.h"
#include "fork.h"
#include "memory.h"
#include "registry.h"
#include "round_robin.h"
#include "watchdog.h"

static struct op_place place_of(const comm_group *group)
{
    return (struct op_place){ group->name, group->rank, group->size, group->world_ranks[group->rank] };
}

void comm__group_rank_text(const comm_group *group, int32_t rank, char text[GROUP_RANK_BYTES])
{
    int32_t world_rank = group->world_ranks[rank];
    if (world_rank != rank)
        snprintf(text, GROUP_RANK_BYTES, "rank %d (world rank %d)", rank, world_rank);
    else
        snprintf(text, GROUP_RANK_BYTES, "rank %d", rank);
}

void comm__group_place(const comm_group *group, char text[OP_PLACE_BYTES])
{
    struct op_place place = place_of(group);
    comm__op_place_text(&place, text);
}

void comm__group_describe(const comm_group *group, const comm_op *op, char *text, size_t room)
{
    struct op_place place = place_of(group);
    comm__op_describe(op, &place, text, room);
}

__attribute__((format(printf, 4, 5))) static comm_status refuse(const comm_group *group, const comm_op *op, comm_status status,
                                                                const char *format, ...)
{
    char what[OP_DESCRIBED_BYTES], text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    comm__group_describe(group, op, what, sizeof what);
    return comm__fail(status, "%s: %s", what, text);
}

/* ---- Can it be used, and how it ends ---- */

comm_status comm__fail_forked(const comm_group *group, const char *call)
{
    return comm__fail(
        COMM_ERR_FORKED,
        "%s: group '%s' was opened before fork(); it lives on in the parent only. Open a world of another name in "
        "the child, or fork before comm_init",
        call, group->name);
}

static comm_status fail_ended(const comm_group *group, const char *call)
{
    char where[OP_PLACE_BYTES];
    comm__group_place(group, where);
    return comm__fail(atomic_load_explicit(&group->ended, memory_order_acquire), "%s on %s: the group ended earlier: %s", call,
                      where, group->ended_text);
}

comm_status comm__group_usable(const comm_group *group, const char *call)
{
    if (!group)
        return comm__fail(COMM_ERR_INVALID, "%s: the group is NULL", call);
    if (comm__forked_since(group->generation))
        return comm__fail_forked(group, call);
    /* Pairs with the release in remember_end. */
    if (atomic_load_explicit(&group->ended, memory_order_acquire) != COMM_OK)
        return fail_ended(group, call);
    return group->turns ? comm__turns_usable(group, call) : COMM_OK;
}

static int remember_end(comm_group *group, comm_status status, const char *text)
{
    if (atomic_exchange(&group->ending, 1)) {
        /* Another thread is writing the reason, which takes a moment. Whoever is told of a failed operation must find the
         * group ended. */
        while (atomic_load_explicit(&group->ended, memory_order_acquire) == COMM_OK)
            sched_yield();
        return 0;
    }
    snprintf(group->ended_text, sizeof group->ended_text, "%s", text && *text ? text : comm_status_name(status));
    group->ended_ns = clock_now_ns();
    atomic_store_explicit(&group->ended, status, memory_order_release);
    comm__hooks_ended(group, status, group->ended_text);
    return 1;
}

void comm__group_end(comm_group *group, const struct channel *from, comm_status status, const char *text)
{
    if (!remember_end(group, status, text))
        return;
    if (!from && group->channel_count > 1) {
        atomic_store(&group->untold, 1);
        comm__watch_from(group, 0);
    }
    if (!from)
        return;
    for (size_t i = 0; i < group->channel_count; i++)
        if (&group->channels[i] != from && group->channels[i].state)
            group->channels[i].backend->group_abort(group->channels[i].state, status, text);
}

void comm__group_abort(comm_group *group, comm_status status, const char *text)
{
    char copy[COMM_ERROR_BYTES];
    snprintf(copy, sizeof copy, "%s", text); /* it may be this thread's error text, which a backend may overwrite */
    /* Whoever waits for the works that this ends may close the group next, when we are not out of it yet. */
    comm__group_ref(group);
    atomic_fetch_add(&group->drivers, 1);
    remember_end(group, status, copy);
    for (size_t i = 0; i < group->channel_count; i++)
        if (group->channels[i].state)
            group->channels[i].backend->group_abort(group->channels[i].state, status, copy);
    for (size_t i = 0; group->turns && i < group->turns->count; i++)
        comm__group_abort(group->turns->groups[i], status, copy);
    if (atomic_load(&group->pending.count) > 0)
        comm__watch(group, group->ended_ns + WATCHDOG_GRACE_NS);
    count_down(&group->drivers);
    comm__group_unref(group);
}

comm_status comm_group_abort(comm_group *group, const char *reason)
{
    if (!group)
        return comm__fail(COMM_ERR_INVALID, "comm_group_abort: the group is NULL");
    if (comm__forked_since(group->generation))
        return comm__fail_forked(group, "comm_group_abort");
    char text[COMM_ERROR_BYTES], self[GROUP_RANK_BYTES];
    comm__group_rank_text(group, group->rank, self);
    snprintf(text, sizeof text, "%s of group '%s' called comm_group_abort%s%s", self, group->name,
             reason && *reason ? ": " : "", reason ? reason : "");
    utf8_clean_string(text); /* the reason may be anything */
    comm__group_abort(group, COMM_ERR_ABORTED, text);
    return COMM_OK;
}

/* The open groups of the world. They are held, so that closing one waits until it is let go. Gives *ret_groups (free). */
static comm_status hold_all(struct world *world, comm_group ***ret_groups, size_t *ret_count)
{
    size_t count = 0;
    pthread_mutex_lock(&world->lock);
    for (const comm_group *group = world->groups; group; group = group->next_open)
        count++;
    comm_group **groups = malloc((count + 1) * sizeof(comm_group *));
    *ret_count = 0;
    for (comm_group *group = groups ? world->groups : NULL; group; group = group->next_open) {
        comm__group_ref(group);
        atomic_fetch_add(&group->drivers, 1);
        groups[(*ret_count)++] = group;
    }
    pthread_mutex_unlock(&world->lock);
    *ret_groups = groups;
    return groups ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "comm_group_abort_all on world '%s'", world->name);
}

comm_status comm_group_abort_all(comm_group *any, const char *reason)
{
    comm_group **groups;
    size_t count;
    if (!any)
        return comm__fail(COMM_ERR_INVALID, "comm_group_abort_all: the group is NULL");
    if (comm__forked_since(any->generation))
        return comm__fail_forked(any, "comm_group_abort_all");
    comm_status status = hold_all(any->world, &groups, &count);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        char text[COMM_ERROR_BYTES], self[GROUP_RANK_BYTES];
        comm__group_rank_text(groups[i], groups[i]->rank, self);
        snprintf(text, sizeof text, "%s of group '%s' called comm_group_abort_all%s%s", self, groups[i]->name,
                 reason && *reason ? ": " : "", reason ? reason : "");
        utf8_clean_string(text);
        comm__group_abort(groups[i], COMM_ERR_ABORTED, text);
        count_down(&groups[i]->drivers);
        comm__group_unref(groups[i]);
    }
    free(groups);
    return COMM_OK;
}

/* ---- What backends return ---- */

/* What a slot said of an op that was not begun, with the op and the backend in front. */
static comm_status refused(const comm_group *group, const struct channel *channel, const comm_op *op, const char *slot,
                           comm_status status, uint64_t fail_count)
{
    char what[OP_DESCRIBED_BYTES];
    const char *name = comm__op_name(op->kind);
    status = comm__slot_failed(slot, status, fail_count);
    if (strncmp(comm_last_error(), name, strlen(name)) == 0)
        return status; /* it says so itself */
    comm__group_describe(group, op, what, sizeof what);
    return comm__fail_while(status, "%s: backend '%s'", what, channel->backend->name);
}

/* ---- Submitting ---- */

/* The scalar of PREMUL_SUM is read by the CPU, unless the user says otherwise. What lies on a device may be an address that the
 * CPU cannot read: so ask the kernel, which answers where we would crash. */
static comm_status check_scalar(const comm_group *group, const comm_op *op)
{
    char copy[sizeof(double) * 2];
    struct iovec to = { copy, comm_dtype_bytes(op->dtype) }, from = { (void *)op->premul, to.iov_len };
    if (!op->premul || (op->flags & COMM_OP_FLAG_PREMUL_ON_DEVICE) || comm_device_kind(op->device) == COMM_DEVICE_CPU ||
        process_vm_readv(getpid(), &to, 1, &from, 1, 0) >= 0 || errno != EFAULT)
        return COMM_OK;
    return refuse(group, op, COMM_ERR_INVALID,
                  "options->premul must be in memory that the CPU can read, also if the buffers are on a device; or say "
                  "COMM_OP_FLAG_PREMUL_ON_DEVICE");
}

/* A backend is never handed what it did not know when it was compiled. */
static comm_status check_known(const comm_group *group, const comm_op *op, const comm_backend *backend)
{
    const uint32_t demands = COMM_OP_FLAG_RANK_ORDER | COMM_OP_FLAG_ON_STREAM | COMM_OP_FLAG_PREMUL_ON_DEVICE |
                             COMM_OP_FLAG_UNEVEN;
    const char *what = NULL;
    if (op->kind >= backend->kind_end)
        what = comm__op_name(op->kind);
    else if (op->dtype >= backend->dtype_end)
        what = comm_dtype_name(op->dtype);
    else if ((comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_REDUCES) && op->redop >= backend->redop_end)
        what = comm_redop_name(op->redop);
    else if (op->flags & demands & ~backend->op_flags)
        what = "one of the flags";
    if (!what)
        return COMM_OK;
    return refuse(group, op, COMM_ERR_UNSUPPORTED, "backend '%s' %s does not know %s: it was built with an older libcomm",
                  backend->name, backend->version ? backend->version : "", what);
}

static comm_status find_channel(const comm_group *group, const comm_op *op, struct channel **ret_channel)
{
    int32_t kind = comm_device_kind(op->device);
    char device[DEVICE_NAME_BYTES + 16];
    *ret_channel = op->device >= 0 && kind < DEVICE_KIND_END ? group->routes[kind] : NULL;
    if (*ret_channel)
        return COMM_OK;
    if (op->device == COMM_DEVICE_DEFAULT)
        return refuse(group, op, COMM_ERR_INVALID,
                      "the group has several devices (%s); say in options->device where the buffers are", group->backend_text);
    comm__device_text(op->device, device, sizeof device);
    return refuse(group, op, COMM_ERR_UNSUPPORTED, "the group has no backend for device %s; it was opened with '%s'", device,
                  group->backend_text);
}

/* Say where the buffers are if the user has not, and drop what means nothing there. */
static void settle_device(const comm_group *group, const struct channel *channel, comm_op *op)
{
    if (comm_device_kind(op->device) == COMM_DEVICE_DEFAULT) {
        int32_t kind = COMM_DEVICE_CPU;
        while (group->routes[kind] != channel)
            kind++;
        op->device = comm_device_kind(group->device) == kind ? group->device : kind;
    }
    if (comm_device_kind(op->device) == COMM_DEVICE_CPU) /* has no streams, and its memory is the CPU's */
        op->flags &= ~(uint32_t)(COMM_OP_FLAG_ON_STREAM | COMM_OP_FLAG_PREMUL_ON_DEVICE);
}

comm_status comm__group_route(comm_group *group, comm_op *op, struct channel **ret_channel)
{
    comm_status status = find_channel(group, op, ret_channel);
    if (status != COMM_OK)
        return status;
    const comm_backend *backend = (*ret_channel)->backend;
    settle_device(group, *ret_channel, op);
    status = check_scalar(group, op);
    if (status == COMM_OK)
        status = check_known(group, op, backend);
    if (status == COMM_OK && comm__memory_any(group))
        comm__memory_find(group, *ret_channel, op);
    if (status != COMM_OK || !backend->supports)
        return status;
    uint64_t fail_count = comm__fail_count();
    status = backend->supports((*ret_channel)->state, op);
    return status == COMM_OK ? COMM_OK : refused(group, *ret_channel, op, "supports", status, fail_count);
}

static void release_works(comm_work **works, size_t count)
{
    for (size_t i = 0; i < count; i++)
        comm_work_release(works[i]);
}

/* Arrays that must outlive the call: those of a batch have been copied, and those of a call that waits need not be. */
static comm_status keep_arrays(const comm_group *group, comm_op *op, comm_work *work)
{
    return work->parent || (op->flags & COMM_OP_FLAG_WAITING) ? COMM_OK
                                                              : comm__op_keep_arrays(op, group->size, &work->arena);
}

static comm_status take_works(comm_group *group, comm_op *const *ops, comm_work **works, size_t count, comm_work *parent)
{
    comm_status status = COMM_OK;
    size_t taken = 0;
    while (status == COMM_OK && taken < count) {
        comm_work *work = comm__work_take(group);
        if (!work) {
            status = comm__fail(COMM_ERR_NO_MEMORY, "a work on group '%s'", group->name);
            break;
        }
        works[taken] = work;
        work->parent = parent;
        status = keep_arrays(group, ops[taken++], work);
    }
    if (status != COMM_OK) { /* both references, as no backend has them */
        release_works(works, taken);
        release_works(works, taken);
    }
    return status;
}

/* When the core ends the group because of the op: at its deadline, or later for a backend that can say more about it. */
static int64_t due_ns(const struct channel *channel, int64_t deadline_ns)
{
    int64_t grace_ns = channel->backend->traits & COMM_BACKEND_KEEPS_DEADLINES ? WATCHDOG_GRACE_NS : 0;
    return deadline_ns > DEADLINE_NEVER - grace_ns ? DEADLINE_NEVER : deadline_ns + grace_ns;
}

/* Number, fill in and record one op. */
static void begin(comm_group *group, struct channel *channel, comm_op *op, comm_work *work, int64_t now_ns)
{
    if (comm__op_is_peer(op->kind)) {
        op->seq = ++channel->peer_seq;
        op->group_seq = ++group->peer_seq;
    } else {
        op->seq = ++channel->seq;
        op->group_seq = atomic_load_explicit(&group->seq, memory_order_relaxed) + 1;
        atomic_store_explicit(&group->seq, op->group_seq, memory_order_relaxed);
    }
    op->flags &= channel->backend->op_flags; /* hints; what an op demands was checked */
    work->channel = channel;
    work->kind = op->kind;
    work->seq = op->group_seq;
    work->submitted_ns = now_ns;
    work->deadline_ns = comm__op_deadline_ns(op);
    work->due_ns = due_ns(channel, work->deadline_ns);
    work->internal = op->tag < COMM_ANY_TAG;
    work->record = comm__recorder_begin(&group->recorder, op, now_ns);
    comm__pending_add(&group->pending, work);
    comm__hooks_submitted(group, op, work);
}

/* The backend has not begun the op. */
static void take_back(comm_group *group, comm_work *work, comm_status status, int64_t now_ns)
{
    uint32_t none = WORK_BY_NONE;
    if (!atomic_compare_exchange_strong(&work->claimed, &none, WORK_BY_CORE))
        return; /* though it has completed it */
    comm__pending_remove(&group->pending, work);
    comm__recorder_end(&group->recorder, work->record, status, now_ns);
    comm__hooks_refused(group, work, status, now_ns);
    comm_work_release(work);
}

/* Number the ops and give them to the backend. Holds the lock. */
static comm_status hand_over(comm_group *group, struct channel *channel, comm_op *const *ops, comm_work **works,
                             size_t count)
{
    uint64_t seq = atomic_load_explicit(&group->seq, memory_order_relaxed), peer_seq = group->peer_seq;
    uint64_t channel_seq = channel->seq, channel_peer_seq = channel->peer_seq;
    int64_t now_ns = ops[0]->submitted_ns;
    for (size_t i = 0; i < count; i++)
        begin(group, channel, ops[i], works[i], now_ns);
    uint64_t fail_count = comm__fail_count();
    comm_status status = channel->backend->submit(channel->state, (const comm_op *const *)ops, works, count);
    if (status == COMM_OK)
        return COMM_OK;
    /* Nothing was started, so the numbers are free again: otherwise the other ranks would be one behind. */
    atomic_store_explicit(&group->seq, seq, memory_order_relaxed);
    group->peer_seq = peer_seq;
    channel->seq = channel_seq;
    channel->peer_seq = channel_peer_seq;
    int is_clear = status < 0 && comm__status_known(status);
    status = refused(group, channel, ops[0], "submit", status, fail_count);
    for (size_t i = 0; i < count; i++)
        if (is_clear)
            take_back(group, works[i], status, now_ns);
        else /* who knows whether it was started */
            comm__work_abandon(works[i], status, comm_last_error());
    return status;
}

int64_t comm__op_deadline_ns(const comm_op *op)
{
    return op->timeout_ns > DEADLINE_NEVER - op->submitted_ns ? DEADLINE_NEVER : op->submitted_ns + op->timeout_ns;
}

static int64_t earliest_due_ns(const struct channel *channel, comm_op *const *ops, size_t count)
{
    int64_t earliest_ns = DEADLINE_NEVER;
    for (size_t i = 0; i < count; i++) {
        int64_t ns = due_ns(channel, comm__op_deadline_ns(ops[i]));
        earliest_ns = ns < earliest_ns ? ns : earliest_ns;
    }
    return earliest_ns;
}

comm_status comm__group_submit(comm_group *group, struct channel *channel, comm_op *const *ops, comm_work **works,
                               size_t count, comm_work *parent)
{
    /* Before the backend has the ops: they may be over, and their memory be used again, when it comes back. */
    int64_t watch_ns = ops[0]->flags & COMM_OP_FLAG_WAITING ? DEADLINE_NEVER : earliest_due_ns(channel, ops, count);
    comm__callbacks_defer();
    pthread_mutex_lock(&group->lock);
    comm_status status = take_works(group, ops, works, count, parent);
    int were_taken = status == COMM_OK;
    if (were_taken)
        status = hand_over(group, channel, ops, works, count);
    pthread_mutex_unlock(&group->lock);
    if (status == COMM_OK && watch_ns < DEADLINE_NEVER)
        comm__watch(group, watch_ns);
    if (comm_status_scope(status) >= COMM_SCOPE_OBJECT) { /* the backend says so first here */
        char text[COMM_ERROR_BYTES];
        memcpy(text, comm_last_error(), sizeof text);
        comm__group_end(group, channel, status, text);
        comm__fail(status, "%s", text); /* ending other channels may have written over it */
    }
    comm__callbacks_run();
    if (status != COMM_OK && were_taken)
        release_works(works, count);
    return status;
}

/* What checked options say; DEFAULT if they do not. */
static int64_t own_timeout_ms(const comm_op_options *options)
{
    int has_timeout =
        options && options->struct_bytes >= offsetof(comm_op_options, timeout_ms) + sizeof options->timeout_ms;
    return has_timeout ? options->timeout_ms : COMM_TIMEOUT_DEFAULT;
}

int64_t comm__group_limit_ns(const comm_group *group, int64_t timeout_ms)
{
    if (timeout_ms == COMM_TIMEOUT_DEFAULT)
        timeout_ms = atomic_load_explicit(&group->timeout_ms, memory_order_relaxed);
    return timeout_ms < 0 || timeout_ms > INT64_MAX / 1000000 ? INT64_MAX : timeout_ms * 1000000;
}

/* Check the options and the op, and make it whole but for what the submission gives: device and numbers. */
static comm_status prepare(comm_group *group, comm_op *op, const comm_op_options *options)
{
    struct op_place place = place_of(group);
    comm_status status = comm__op_prepare(op, &place, options);
    op->submitted_ns = clock_now_ns();
    op->timeout_ns = comm__group_limit_ns(group, status == COMM_OK ? own_timeout_ms(options) : COMM_TIMEOUT_DEFAULT);
    return status;
}

comm_status comm__work_finish(comm_work *work)
{
    comm_status status = comm__work_drive(work, DEADLINE_NEVER);
    if (status == COMM_OK)
        status = comm__work_result(work);
    comm_work_release(work);
    return status;
}

/* Write the op down in this thread's batch. A round-robin group does not know yet where the batch will go; what its first
 * group refuses is refused at once. */
static comm_status write_down(comm_group *group, struct batch *batch, comm_op *op, const comm_op_options *options)
{
    struct channel *channel;
    comm_op routed = *op;
    comm_status status = comm__group_route(group->turns ? group->turns->groups[0] : group, &routed, &channel);
    if (status != COMM_OK)
        return status;
    if (own_timeout_ms(options) == COMM_TIMEOUT_DEFAULT)
        op->timeout_ns = routed.timeout_ns = BATCH_LIMIT;
    return group->turns ? comm__batch_add(batch, op, NULL) : comm__batch_add(batch, &routed, channel);
}

static comm_status submit_now(comm_group *group, comm_op *op, comm_work **ret_work)
{
    struct channel *channel;
    int takes_turn = !comm__op_is_peer(op->kind);
    comm_group *target = comm__turn_begin(group, takes_turn);
    comm_status status = comm__group_route(target, op, &channel);
    if (status == COMM_OK)
        status = comm__group_submit(target, channel, &op, ret_work, 1, NULL);
    comm__turn_end(group, takes_turn, status == COMM_OK);
    return status;
}

/* Check, then write down (coalescing) or submit. *ret_work is NULL if the call was written down. `waits`: the caller will
 * wait at once. */
static comm_status start(comm_group *group, comm_op *op, const comm_op_options *options, int waits,
                         comm_work **ret_work)
{
    comm_status status = comm__refuse_in_hook(comm__op_name(op->kind));
    if (status == COMM_OK)
        status = comm__group_usable(group, comm__op_name(op->kind));
    if (status == COMM_OK)
        status = prepare(group, op, options);
    if (status != COMM_OK)
        return status;
    struct batch *batch = comm__batch_of(group);
    *ret_work = NULL;
    if (batch && !waits)
        return refuse(group, op, COMM_ERR_INVALID,
                      "ret_work must be NULL between comm_coalesce_begin and end; end gives one work for all");
    if (batch)
        return write_down(group, batch, op, options);
    if (waits) {
        op->flags |= COMM_OP_FLAG_WAITING;
        status = comm__refuse_in_callback(comm__op_name(op->kind));
    }
    return status == COMM_OK ? submit_now(group, op, ret_work) : status;
}

comm_status comm__group_call(comm_group *group, comm_op *op, const comm_op_options *options, comm_work **ret_work)
{
    comm_work *work;
    comm_status status = start(group, op, options, ret_work == NULL, &work);
    if (status == COMM_OK && ret_work)
        *ret_work = work;
    else if (status == COMM_OK && work)
        status = comm__work_finish(work);
    return status;
}

comm_status comm__group_call_internal(comm_group *group, comm_op *op, comm_work **ret_work)
{
    op->struct_bytes = sizeof *op;
    op->element_bytes = (uint32_t)comm_dtype_bytes(op->dtype);
    op->submitted_ns = clock_now_ns();
    op->timeout_ns = INT64_MAX;
    *ret_work = NULL;
    comm_status status = comm__group_usable(group, comm__op_name(op->kind));
    return status == COMM_OK ? submit_now(group, op, ret_work) : status;
}

/* ---- Flush ---- */

comm_status comm_group_flush(comm_group *group, int64_t timeout_ms)
{
    comm_status first = comm__refuse_in_callback("comm_group_flush");
    if (first == COMM_OK)
        first = comm__group_usable(group, "comm_group_flush");
    if (first != COMM_OK)
        return first;
    if (timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "comm_group_flush: timeout_ms is %lld; it is milliseconds, 0 or "
                          "COMM_TIMEOUT_INFINITE", (long long)timeout_ms);
    char text[COMM_ERROR_BYTES];
    int64_t deadline_ns = timeout_ms == 0 ? DEADLINE_NEVER : clock_deadline_ns(timeout_ms);
    if (group->turns)
        return comm__turns_flush(group, deadline_ns);
    uint64_t newest = comm__pending_newest(&group->pending);
    comm_work *work;
    while ((work = comm__pending_oldest(&group->pending, newest, 0)) != NULL) {
        comm_status status = comm__work_drive(work, deadline_ns);
        int timed_out = status != COMM_OK;
        if (!timed_out)
            status = comm__work_result(work);
        if (status != COMM_OK && first == COMM_OK) {
            first = status;
            memcpy(text, comm_last_error(), sizeof text);
        }
        comm_work_release(work);
        if (timed_out)
            break;
    }
    return first == COMM_OK ? COMM_OK : comm__fail(first, "%s", text);
}

/* ---- Questions ---- */

int32_t comm_group_rank(const comm_group *group)
{
    return group ? group->rank : -1;
}

int32_t comm_group_size(const comm_group *group)
{
    return group ? group->size : -1;
}

const char *comm_group_name(const comm_group *group)
{
    return group ? group->name : "";
}

const char *comm_group_backend(const comm_group *group)
{
    return group ? group->backend_text : "";
}

const char *comm_group_description(const comm_group *group)
{
    return group && group->description ? group->description : "";
}

comm_device comm_group_device(const comm_group *group)
{
    comm_device only = COMM_DEVICE_DEFAULT;
    if (group && group->turns)
        return comm_group_device(group->turns->groups[0]);
    for (int32_t d = COMM_DEVICE_CPU; group && d < DEVICE_KIND_END; d++)
        if (group->routes[d]) {
            if (only != COMM_DEVICE_DEFAULT)
                return COMM_DEVICE_DEFAULT;
            only = d;
        }
    return only;
}

int64_t comm_group_timeout(const comm_group *group)
{
    return group ? atomic_load_explicit(&group->timeout_ms, memory_order_relaxed) : 0;
}

comm_status comm_group_set_timeout(comm_group *group, int64_t timeout_ms)
{
    if (!group || timeout_ms == 0 || timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "comm_group_set_timeout: %s",
                          group ? "give milliseconds, or COMM_TIMEOUT_INFINITE" : "the group is NULL");
    atomic_store_explicit(&group->timeout_ms, timeout_ms, memory_order_relaxed);
    return COMM_OK;
}

uint64_t comm_group_seq(const comm_group *group)
{
    return group ? atomic_load_explicit(&group->seq, memory_order_relaxed) : 0;
}

comm_status comm_group_status(const comm_group *group)
{
    if (!group)
        return comm__fail(COMM_ERR_INVALID, "comm_group_status: the group is NULL");
    comm_status status = atomic_load_explicit(&group->ended, memory_order_acquire);
    if (status == COMM_OK && group->turns)
        return comm__turns_status(group);
    return status == COMM_OK ? COMM_OK : comm__fail(status, "%s", group->ended_text);
}

comm_store *comm_group_store(comm_group *group)
{
    if (comm__group_usable(group, "comm_group_store") == COMM_ERR_FORKED || !group)
        return NULL;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "user/%016" PRIx64, group->id);
    pthread_mutex_lock(&group->lock);
    if (!group->user_store && comm_store_prefix(prefix, group->world->store, &group->user_store) != COMM_OK)
        group->user_store = NULL;
    comm_store *store = group->user_store;
    pthread_mutex_unlock(&group->lock);
    return store;
}

comm_status comm_group_world_rank(const comm_group *group, int32_t rank, int32_t *ret_world_rank)
{
    if (!group || !ret_world_rank)
        return comm__fail(COMM_ERR_INVALID, "comm_group_world_rank: %s is NULL",
                          group ? "ret_world_rank" : "the group");
    if (rank < 0 || rank >= group->size)
        return comm__fail(COMM_ERR_NOT_FOUND, "there is no rank %d in group '%s'; the ranks are 0 to %d", rank,
                          group->name, group->size - 1);
    *ret_world_rank = group->world_ranks[rank];
    return COMM_OK;
}

comm_status comm_group_rank_of(const comm_group *group, int32_t world_rank, int32_t *ret_rank)
{
    if (!group || !ret_rank)
        return comm__fail(COMM_ERR_INVALID, "comm_group_rank_of: %s is NULL", group ? "ret_rank" : "the group");
    for (int32_t r = 0; r < group->size; r++)
        if (group->world_ranks[r] == world_rank) {
            *ret_rank = r;
            return COMM_OK;
        }
    return comm__fail(COMM_ERR_NOT_FOUND, "world rank %d is not in group '%s'", world_rank, group->name);
}

comm_status comm_group_ranks(const comm_group *group, int32_t *ret_ranks)
{
    if (!group || !ret_ranks)
        return comm__fail(COMM_ERR_INVALID, "comm_group_ranks: %s is NULL", group ? "ret_ranks" : "the group");
    memcpy(ret_ranks, group->world_ranks, (size_t)group->size * sizeof *ret_ranks);
    return COMM_OK;
}

comm_status comm_group_hosts(const comm_group *group, int32_t *ret_hosts)
{
    if (!group || !ret_hosts)
        return comm__fail(COMM_ERR_INVALID, "comm_group_hosts: %s is NULL", group ? "ret_hosts" : "the group");
    for (int32_t r = 0; r < group->size; r++)
        ret_hosts[r] = group->world->hosts[group->world_ranks[r]];
    return COMM_OK;
}

comm_status comm_group_lost_ranks(const comm_group *group, int32_t *ret_ranks, size_t room, size_t *ret_count)
{
    if (!group || !ret_count || (!ret_ranks && room))
        return comm__fail(COMM_ERR_INVALID, "comm_group_lost_ranks: an argument is NULL");
    size_t count = 0;
    for (int32_t r = 0; r < group->size; r++) {
        if (!atomic_load_explicit(&group->world->lost[group->world_ranks[r]], memory_order_acquire))
            continue;
        if (count < room)
            ret_ranks[count] = r;
        count++;
    }
    *ret_count = count;
    return COMM_OK;
}

static void never_reduces(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    (void)in, (void)inout, (void)count, (void)dtype, (void)context;
}

/* What the call with these arguments would become, without elements, goes the way of every call until it would be submitted. */
int32_t comm_group_supports(comm_group *group, int32_t kind, comm_dtype dtype, comm_redop redop, comm_device device)
{
    static const double scalar[2];
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_op op = { .kind = kind, .dtype = dtype, .redop = redop, .root = -1, .timeout_ns = INT64_MAX };
    const comm_op_traits *traits = comm_op_traits_of(kind);
    struct channel *channel;
    comm_status status = comm__group_usable(group, "comm_group_supports");
    if (status == COMM_OK && !traits)
        status = comm__fail(COMM_ERR_INVALID, "comm_group_supports on group '%s': there is no kind of operation %d", group->name,
                            kind);
    if (status != COMM_OK)
        return 0;
    options.device = device;
    options.premul = scalar;
    options.reduce_fn = never_reduces;
    if (traits->traits & (COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_PEER))
        op.root = 0;
    comm_group *asked = group->turns ? group->turns->groups[0] : group;
    struct op_place place = place_of(asked);
    status = comm__op_prepare(&op, &place, &options);
    return status == COMM_OK && comm__group_route(asked, &op, &channel) == COMM_OK;
}

comm_status comm_group_find(comm_group *world, const char *name, comm_group **ret_group)
{
    if (!world || !name || !ret_group)
        return comm__fail(COMM_ERR_INVALID, "comm_group_find: an argument is NULL");
    if (comm__forked_since(world->generation))
        return comm__fail_forked(world, "comm_group_find");
    pthread_mutex_lock(&world->world->lock);
    comm_group *group = world->world->groups;
    while (group && strcmp(group->name, name) != 0)
        group = group->next_open;
    pthread_mutex_unlock(&world->world->lock);
    if (!group)
        return comm__fail(COMM_ERR_NOT_FOUND, "no open group of world '%s' in this process is called '%s'",
                          world->world->name, name);
    *ret_group = group;
    return COMM_OK;
}

int32_t comm_group_count(const comm_group *world)
{
    int32_t count = 0;
    if (!world || comm__forked_since(world->generation))
        return -1;
    pthread_mutex_lock(&world->world->lock);
    for (const comm_group *group = world->world->groups; group; group = group->next_open)
        count++;
    pthread_mutex_unlock(&world->world->lock);
    return count;
}

/* The caller's records are shorter or longer than ours: `record_bytes` each. */
static comm_status give_records(struct recorder *recorder, char *to, size_t record_bytes, size_t room, size_t *ret_count)
{
    const size_t own = sizeof(comm_record), kept = record_bytes < own ? record_bytes : own;
    if (room > recorder->most)
        room = recorder->most;
    comm_record *records = malloc((room + 1) * own);
    if (!records)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_group_records: %zu records", room);
    *ret_count = comm__recorder_read(recorder, records, room);
    for (size_t i = 0; i < *ret_count; i++, to += record_bytes) {
        memset(to, 0, record_bytes);
        memcpy(to, &records[i], kept);
    }
    free(records);
    return COMM_OK;
}

comm_status comm_group_records(const comm_group *group, comm_record *ret_records, size_t record_bytes, size_t room,
                               size_t *ret_count)
{
    if (!group || !ret_count || (!ret_records && room))
        return comm__fail(COMM_ERR_INVALID, "comm_group_records: an argument is NULL");
    if (record_bytes == 0 || record_bytes > 65536)
        return comm__fail(COMM_ERR_INVALID, "comm_group_records: record_bytes is %zu; give sizeof(comm_record)", record_bytes);
    /* Reading takes the recorder's lock; the group stays what it was. */
    struct recorder *recorder = &((comm_group *)group)->recorder;
    if (record_bytes != sizeof *ret_records)
        return give_records(recorder, (char *)ret_records, record_bytes, room, ret_count);
    *ret_count = comm__recorder_read(recorder, ret_records, room);
    return COMM_OK;
}

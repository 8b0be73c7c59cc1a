/* The path of an op from a public call to its backend. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/likely.h"
#include "coalesce.h"
#include "cuda_memory.h"
#include "fork.h"
#include "group.h"
#include "memory.h"
#include "registry.h"
#include "round_robin.h"
#include "thread.h"
#include "watchdog.h"

__attribute__((format(printf, 4, 5))) static comm_status refuse(const comm_group *group, const comm_op *op,
                                                                comm_status status, const char *format, ...)
{
    char what[OP_DESCRIBED_BYTES], text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    comm__group_describe(group, op, what, sizeof what);
    return comm__fail(status, "%s: %s", what, text);
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

/* ---- Which backend, and can it ---- */

/* The scalar of PREMUL_SUM is read by the CPU, unless the user says otherwise. An address on a device may be one that
 * the CPU cannot read, so let the kernel read it: it reports an error where we would crash. */
static comm_status check_scalar(const comm_group *group, const comm_op *op)
{
    char copy[sizeof(double) * 2];
    struct iovec to = { copy, comm_dtype_bytes(op->dtype) }, from = { (void *)op->premul, to.iov_len };
    if (!op->premul || (op->flags & COMM_OP_FLAG_PREMUL_ON_DEVICE) || comm_device_kind(op->device) == COMM_DEVICE_CPU ||
        process_vm_readv(getpid(), &to, 1, &from, 1, 0) >= 0 || errno != EFAULT)
        return COMM_OK;
    return refuse(
        group, op, COMM_ERR_INVALID,
        "options->premul must be in memory that the CPU can read, also if the buffers are on a device; or say "
        "COMM_OP_FLAG_PREMUL_ON_DEVICE");
}

/* What lies on a device may be an address where the CPU crashes. */
static comm_status check_memory(const comm_group *group, const struct channel *channel, const comm_op *op)
{
    const char *buffer = NULL;
    char device[DEVICE_NAME_BYTES + 16], cure[CURE_BYTES], add[COMM_ERROR_BYTES / 4] = "";
    comm_device where = comm_device_kind(op->device) == COMM_DEVICE_CPU
                            ? comm__memory_of_device(group, op, &buffer)
                            : COMM_DEVICE_DEFAULT;
    if (where == COMM_DEVICE_DEFAULT)
        return COMM_OK;
    comm__device_text(where, device, sizeof device);
    comm__device_cure(where, cure);
    if (!group->routes[comm_device_kind(where)])
        snprintf(add, sizeof add, ", and add %s to the backend string", cure);
    return refuse(group, op, COMM_ERR_INVALID,
                  "the %s is in the memory of %s, but this operation runs on the CPU backend '%s'; set "
                  "options->device%s, or copy it to memory of the CPU",
                  buffer, device, channel->backend->name, add);
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
    return refuse(group, op, COMM_ERR_UNSUPPORTED,
                  "backend '%s' %s does not know %s: it was built with an older libcomm", backend->name,
                  backend->version ? backend->version : "", what);
}

static comm_status find_channel(const comm_group *group, const comm_op *op, struct channel **ret_channel)
{
    int32_t kind = comm_device_kind(op->device);
    char text[COMM_ERROR_BYTES / 2];
    *ret_channel = op->device >= 0 && kind < DEVICE_KIND_END ? group->routes[kind] : NULL;
    if (*ret_channel)
        return COMM_OK;
    comm_status status = comm__group_no_channel(group, op->device, text, sizeof text);
    return refuse(group, op, status, "%s", text);
}

/* Say where the buffers are if the user has not, and drop what has no meaning there. */
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
        status = check_memory(group, *ret_channel, op);
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

/* ---- Submitting ---- */

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

static comm_status take_works(comm_group *group, comm_op *const *ops, comm_work **works, size_t count,
                              comm_work *parent)
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

/* When the core ends the group because of the op: when its time is over, or later for a backend that can say more about
 * it. */
static int64_t due_ns(const struct channel *channel, const comm_op *op)
{
    if (op->timeout_ns == DEADLINE_NEVER)
        return DEADLINE_NEVER;
    int64_t grace_ns = channel->backend->traits & COMM_BACKEND_KEEPS_DEADLINES ? WATCHDOG_VERDICT_NS : 0;
    int64_t begin_ns = (op->submitted_ns ? op->submitted_ns : clock_soon_ns()) + grace_ns;
    return op->timeout_ns > DEADLINE_NEVER - begin_ns ? DEADLINE_NEVER : begin_ns + op->timeout_ns;
}

static void number(comm_group *group, struct channel *channel, comm_op *op)
{
    if (comm__op_is_peer(op->kind)) {
        op->seq = ++channel->peer_seq;
        op->group_seq = ++group->peer_seq;
    } else {
        op->seq = ++channel->seq;
        op->group_seq = atomic_load_explicit(&group->seq, memory_order_relaxed) + 1;
        atomic_store_explicit(&group->seq, op->group_seq, memory_order_relaxed);
    }
}

/* Nothing of these ops was begun, so their numbers are free again: otherwise the other ranks would be one behind. */
static void unnumber(comm_group *group, struct channel *channel, comm_op *const *ops, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (comm__op_is_peer(ops[i]->kind)) {
            channel->peer_seq--;
            group->peer_seq--;
        } else {
            channel->seq--;
            atomic_store_explicit(&group->seq, atomic_load_explicit(&group->seq, memory_order_relaxed) - 1,
                                  memory_order_relaxed);
        }
}

/* The work is that of this op, which is recorded there. The backend gets it next. */
static void fill_in(comm_group *group, struct channel *channel, const comm_op *op, const struct record_slot *slot,
                    comm_work *work)
{
    work->channel = channel;
    work->kind = op->kind;
    work->seq = op->group_seq;
    work->root = op->root;
    work->op_tag = op->tag;
    work->began = slot->began;
    work->record = slot->number;
    work->timeout_ns = op->timeout_ns;
    work->due_ns = due_ns(channel, op);
    work->internal = op->tag < COMM_ANY_TAG;
    comm__pending_add(&group->pending, work);
    comm__hooks_submitted(group, op, work);
    comm__work_begin(work);
}

/* Now, or earlier if the backend has waited already. */
static int64_t began(const comm_op *op)
{
    int64_t waited_ns = op->submitted_ns ? clock_now_ns() - op->submitted_ns : 0;
    return ticks_now() - (waited_ns ? (int64_t)((double)waited_ns / comm__ns_per_tick()) : 0);
}

/* Number, record and fill in one op. */
static void begin(comm_group *group, struct channel *channel, comm_op *op, comm_work *work)
{
    number(group, channel, op);
    op->flags &= channel->backend->op_flags; /* hints; what an op demands was checked */
    fill_in(group, channel, op, recorder_begin(&group->recorder, op, began(op)), work);
}

/* The backend has not begun the op. */
static void take_back(comm_group *group, comm_work *work, comm_status status)
{
    comm__work_ref(work); /* for the hooks */
    if (comm__work_take_back(work, status))
        comm__hooks_refused(group, work, status);
    comm_work_release(work);
}

/* Number the ops and give them to the backend. Holds the submission lock. */
static comm_status hand_over(comm_group *group, struct channel *channel, comm_op *const *ops, comm_work **works,
                             size_t count)
{
    for (size_t i = 0; i < count; i++)
        begin(group, channel, ops[i], works[i]);
    uint64_t fail_count = comm__fail_count();
    comm_status status = channel->backend->submit(channel->state, (const comm_op *const *)ops, works, count);
    if (status == COMM_OK)
        return COMM_OK;
    unnumber(group, channel, ops, count);
    int is_clear = status < 0 && comm__status_known(status);
    status = refused(group, channel, ops[0], "submit", status, fail_count);
    for (size_t i = 0; i < count; i++)
        if (is_clear)
            take_back(group, works[i], status);
        else /* it may have been started */
            comm__work_abandon(works[i], status, comm_last_error());
    return status;
}

static int64_t earliest_due_ns(comm_work *const *works, size_t count)
{
    int64_t earliest_ns = DEADLINE_NEVER;
    for (size_t i = 0; i < count; i++)
        earliest_ns = works[i]->due_ns < earliest_ns ? works[i]->due_ns : earliest_ns;
    return earliest_ns;
}

static comm_status check_open(const comm_group *group, const comm_op *op)
{
    return UNLIKELY(atomic_load_explicit(&group->closing, memory_order_relaxed))
               ? comm__fail(COMM_ERR_INVALID, "%s: group '%s' has been closed", comm__op_name(op->kind), group->name)
               : COMM_OK;
}

/* Submit, and have the watchdog look after works for which no thread waits. Holds the submission lock. */
static comm_status submit_held(comm_group *group, struct channel *channel, comm_op *const *ops, comm_work **works,
                               size_t count, comm_work *parent)
{
    int waits = (ops[0]->flags & COMM_OP_FLAG_WAITING) != 0;
    comm_status status = check_open(group, ops[0]);
    if (status != COMM_OK)
        return status;
    status = take_works(group, ops, works, count, parent);
    if (status != COMM_OK)
        return status;
    status = hand_over(group, channel, ops, works, count);
    int64_t watch_ns = waits ? DEADLINE_NEVER : earliest_due_ns(works, count);
    if (status != COMM_OK)
        release_works(works, count);
    else if (watch_ns < DEADLINE_NEVER)
        comm__watch(group, watch_ns);
    return status;
}

/* The end of every submission. */
static inline comm_status unlock_submission(comm_group *group, const struct channel *channel, comm_status status)
{
    int ends = UNLIKELY(status != COMM_OK) && comm_status_scope(status) >= COMM_SCOPE_OBJECT;
    if (ends)
        comm__group_stay(group); /* others may close it when the submission lock is free */
    futex_lock_release(&group->submission);
    if (ends) {
        comm__group_end_for(group, channel, status);
        comm__group_let_go(group);
    }
    comm__callbacks_run();
    return status;
}

comm_status comm__group_submit(comm_group *group, struct channel *channel, comm_op *const *ops, comm_work **works,
                               size_t count, comm_work *parent)
{
    comm__callbacks_defer();
    futex_lock_take(&group->submission);
    comm_status status = submit_held(group, channel, ops, works, count, parent);
    return unlock_submission(group, channel, status);
}

/* ---- Running ---- */

/* How long a backend may keep a caller, and with it the other threads of the group, before the op gets a work. About
 * what it costs to go to sleep and to be woken. */
enum { RUN_SPIN_NS = 10000 };

/* Can the backend do the op of a waiting caller without a work? Not if hooks want to know, nor without the memory for
 * the case that it takes longer. Holds the submission lock. */
static inline int can_run(comm_group *group, const struct channel *channel, const comm_op *op)
{
    return (op->flags & COMM_OP_FLAG_WAITING) && channel->backend->run && !comm__hooks_want_ops(&group->hooks) &&
           (group->free_works || comm__work_is_there(group));
}

/* An op that a backend does in its slot `run`. */
struct run {
    comm_group *group;
    const comm_op *op;
    const struct record_what *what;
    struct record_slot *slot; /* NULL: not recorded yet */
    int64_t since_ns;         /* when the backend first asked whether it may wait on; 0: it has not */
};

static inline void record_run(struct run *run)
{
    struct recorder *r = &run->group->recorder;
    struct record_slot *slot = recorder_next(r, run->op->group_seq, ticks_now());
    slot->what = *run->what;
    if (UNLIKELY(run->op->label))
        comm__recorder_label(r, slot, run->op->label);
    run->slot = slot;
}

ON_EACH_CALL void comm__run_waits(void)
{
    struct run *run = comm__thread.run;
    if (LIKELY(run && !run->slot))
        record_run(run);
}

/* The op's limit counts from the first time that this is asked, which is some microseconds late. Who waits for the turn
 * of a round-robin group is not known. */
int32_t comm__run_may_wait(void)
{
    struct run *run = comm__thread.run;
    if (!run || comm__thread.takes_turn || futex_lock_is_awaited(&run->group->submission))
        return 0;
    int64_t now = clock_now_ns();
    if (!run->since_ns)
        run->since_ns = now;
    return now - run->since_ns < run->op->timeout_ns;
}

/* The op takes longer: it gets a work. From here on it cannot be refused, only fail. */
static comm_status go_on(struct run *run, struct channel *channel, comm_op *op, comm_work **ret_work)
{
    comm_group *group = run->group;
    comm_work *work = comm__work_take(group);
    *ret_work = work;
    op->flags |= COMM_OP_FLAG_BEGUN;
    fill_in(group, channel, op, run->slot, work);
    uint64_t fail_count = comm__fail_count();
    comm_status status = channel->backend->submit(channel->state, (const comm_op *const *)&op, &work, 1);
    op->flags &= ~(uint32_t)COMM_OP_FLAG_BEGUN;
    if (status == COMM_OK)
        return COMM_OK;
    int is_clear = status < 0 && comm__status_known(status);
    status = refused(group, channel, op, "submit", status, fail_count);
    if (comm_status_scope(status) < COMM_SCOPE_OBJECT) /* the other ranks go on with what this one has begun */
        status = comm__fail_while(COMM_ERR_BACKEND, "an operation that has begun");
    comm__work_abandon(work, status, comm_last_error());
    if (is_clear) /* the backend has not taken the work, and so will not complete it */
        comm_work_release(work);
    comm_work_release(work);
    return status;
}

/* What the slot run returned was not OK. */
__attribute__((noinline)) static comm_status run_otherwise(struct run *run, struct channel *channel, comm_op *op,
                                                           comm_status status, uint64_t fail_count,
                                                           comm_work **ret_work)
{
    comm_group *group = run->group;
    if (status == COMM_ERR_UNSUPPORTED) {
        unnumber(group, channel, &op, 1);
        group->recorder.written -= run->slot != NULL;
        return submit_held(group, channel, &op, ret_work, 1, NULL);
    }
    if (status == COMM_IN_PROGRESS)
        return go_on(run, channel, op, ret_work);
    unnumber(group, channel, &op, 1);
    run->slot->ended = run->slot->began;
    run->slot->status = refused(group, channel, op, "run", status, fail_count);
    return run->slot->status;
}

/* Do the op in the call. *ret_work: NULL, or the work to wait for. Holds the submission lock. */
static inline comm_status run_held(comm_group *group, struct channel *channel, comm_op *op,
                                   const struct record_what *what, comm_work **ret_work)
{
    struct run run = { .group = group, .op = op, .what = what };
    *ret_work = NULL;
    number(group, channel, op);
    op->flags &= channel->backend->op_flags;
    uint64_t fail_count = comm__fail_count();
    comm__thread.run = &run;
    comm_status status = channel->backend->run(channel->state, op, RUN_SPIN_NS);
    if (UNLIKELY(!run.slot && status != COMM_ERR_UNSUPPORTED))
        record_run(&run);
    comm__thread.run = NULL;
    if (UNLIKELY(status != COMM_OK)) {
        op->submitted_ns = run.since_ns;
        status = run_otherwise(&run, channel, op, status, fail_count, ret_work);
        op->submitted_ns = 0; /* the next call may use this op */
        return status;
    }
    run.slot->status = COMM_OK;
    /* To read the counter again would cost as much as the rest of a short call. */
    run.slot->ended = UNLIKELY(run.since_ns) ? ticks_now() : run.slot->began;
    return COMM_OK;
}

/* The op of a caller that waits, or not. `what` is for its record, if it is run. *ret_work is NULL if the op is over.
 * Holds the submission lock. */
static inline comm_status submit_or_run(comm_group *group, struct channel *channel, comm_op *op,
                                        const struct record_what *what, comm_work **ret_work)
{
    if (UNLIKELY(!can_run(group, channel, op)))
        return submit_held(group, channel, &op, ret_work, 1, NULL);
    comm_status status = check_open(group, op);
    return status == COMM_OK ? run_held(group, channel, op, what, ret_work) : status;
}

/* ---- Calls ---- */

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
    struct op_place place = comm__group_op_place(group);
    comm_status status = comm__op_prepare(op, &place, options);
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

/* Write the op down in this thread's batch. A round-robin group does not know yet where the batch will go; what its
 * first group refuses is refused at once. */
static comm_status write_down(comm_group *group, struct batch *batch, comm_op *op, const comm_op_options *options)
{
    struct channel *channel;
    comm_op routed = *op;
    comm_status status = comm__group_route(group->round_robin ? group->round_robin->groups[0] : group, &routed,
                                           &channel);
    if (status != COMM_OK)
        return status;
    if (own_timeout_ms(options) == COMM_TIMEOUT_DEFAULT)
        op->timeout_ns = routed.timeout_ns = BATCH_LIMIT;
    return group->round_robin ? comm__batch_add(batch, op, NULL) : comm__batch_add(batch, &routed, channel);
}

static struct checked *checked_of(comm_group *group, const struct plain_call *call)
{
    return &group->checked[call->kind];
}

/* `call` is what the op came from, if it came from one. */
static comm_status submit_one(comm_group *group, struct channel *channel, comm_op *op, const struct plain_call *call,
                              comm_work **ret_work)
{
    struct record_what what;
    record_what(&what, op);
    comm__callbacks_defer();
    futex_lock_take(&group->submission);
    comm_status status = submit_or_run(group, channel, op, &what, ret_work);
    if (status == COMM_OK && call && !comm__memory_any(group)) {
        struct op_place place = comm__group_op_place(group);
        *checked_of(group, call) = (struct checked){ *call, comm__op_extent(op, &place), channel, what, *op };
    }
    return unlock_submission(group, channel, status);
}

static comm_status submit_now(comm_group *group, comm_op *op, const struct plain_call *call, comm_work **ret_work)
{
    struct channel *channel;
    int takes_turn = group->round_robin && !comm__op_is_peer(op->kind);
    comm_group *target = comm__turn_begin(group, takes_turn);
    comm_status status = comm__group_route(target, op, &channel);
    if (status == COMM_OK)
        status = submit_one(target, channel, op, target == group ? call : NULL, ret_work);
    if (takes_turn) /* another group may be closed by now */
        comm__turn_end(group, takes_turn, status == COMM_OK);
    return status;
}

/* Check, then write down (coalescing) or submit. *ret_work is NULL if the call was written down. `waits`: the caller
 * will wait at once. */
static comm_status start(comm_group *group, comm_op *op, const struct plain_call *call, const comm_op_options *options,
                         int waits, comm_work **ret_work)
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
    return status == COMM_OK ? submit_now(group, op, call, ret_work) : status;
}

static comm_status call_checking(comm_group *group, comm_op *op, const struct plain_call *call,
                                 const comm_op_options *options, comm_work **ret_work)
{
    comm_work *work;
    comm_status status = start(group, op, call, options, ret_work == NULL, &work);
    if (status == COMM_OK && ret_work)
        *ret_work = work;
    else if (status == COMM_OK && work)
        status = comm__work_finish(work);
    return status;
}

comm_status comm__group_call(comm_group *group, comm_op *op, const comm_op_options *options, comm_work **ret_work)
{
    return call_checking(group, op, NULL, options, ret_work);
}

comm_status comm__group_call_internal(comm_group *group, comm_op *op, comm_work **ret_work)
{
    op->struct_bytes = sizeof *op;
    op->element_bytes = (uint32_t)comm_dtype_bytes(op->dtype);
    op->timeout_ns = INT64_MAX;
    *ret_work = NULL;
    comm_status status = comm__group_usable(group, comm__op_name(op->kind));
    return status == COMM_OK ? submit_now(group, op, NULL, ret_work) : status;
}

/* ---- The same call again ---- */

static int is_like(const struct plain_call *a, const struct plain_call *b)
{
    size_t differs = (a->send_count ^ b->send_count) | (a->recv_count ^ b->recv_count);
    return !(differs | (size_t)((a->kind ^ b->kind) | (a->dtype ^ b->dtype) | (a->redop ^ b->redop) |
                                (a->root ^ b->root)));
}

/* What the options say: a tag, and the device, which must be said in a group of several devices. */
static inline int has_options(const struct checked *c, const comm_group *group, const comm_op_options *options)
{
    comm_device device = options ? options->device : COMM_DEVICE_DEFAULT;
    int32_t tag = options && comm__op_is_peer(c->call.kind) ? options->tag : 0;
    return tag == c->op.tag && (device == c->op.device || (!device && group->channel_count == 1));
}

/* Buffers that were not looked at: may the CPU touch them? Those of the call before were. */
static inline int may_touch(const struct checked *c, const struct plain_call *call)
{
    int is_new = (c->extent.send_bytes && call->send != c->op.send.data) ||
                 (c->extent.recv_bytes && call->recv != c->op.recv.data);
    return !is_new || comm_device_kind(c->op.device) != COMM_DEVICE_CPU || !comm__cuda_is_there() ||
           ((!c->extent.send_bytes || comm__cuda_device_of(call->send) < 0) &&
            (!c->extent.recv_bytes || comm__cuda_device_of(call->recv) < 0));
}

/* Give the op the buffers of the call. 0: they must be checked. */
static inline int take_buffers(struct checked *c, const struct plain_call *call)
{
    if (LIKELY(call->send == c->call.send && call->recv == c->call.recv))
        return 1;
    if (!op_extent_takes(&c->extent, call->send, call->recv) || !may_touch(c, call))
        return 0;
    if (c->extent.send_bytes)
        c->op.send.data = (void *)call->send;
    if (c->extent.recv_bytes)
        c->op.recv.data = call->recv;
    c->call.send = call->send;
    c->call.recv = call->recv;
    return 1;
}

/* Submit the call as the one before, perhaps with other buffers. 0: it must be checked. */
static int repeat(comm_group *group, const struct plain_call *call, const comm_op_options *options, int waits,
                  comm_work **ret_work, comm_status *ret_status)
{
    struct checked *c = checked_of(group, call);
    if (UNLIKELY(comm__thread.busy || comm__forked_since(group->generation)))
        return 0;
    futex_lock_take(&group->submission);
    if (UNLIKELY(!is_like(&c->call, call) || !has_options(c, group, options) || comm__memory_any(group) ||
                 atomic_load_explicit(&group->ended, memory_order_acquire) != COMM_OK || !take_buffers(c, call))) {
        futex_lock_release(&group->submission);
        return 0;
    }
    comm__callbacks_defer();
    comm_op *op = &c->op;
    op->flags = waits ? op->flags | COMM_OP_FLAG_WAITING : op->flags & ~(uint32_t)COMM_OP_FLAG_WAITING;
    op->timeout_ns = comm__group_limit_ns(group, COMM_TIMEOUT_DEFAULT);
    *ret_status = submit_or_run(group, c->channel, op, &c->record, ret_work);
    *ret_status = unlock_submission(group, c->channel, *ret_status);
    return 1;
}

/* Nothing but, perhaps, the device and a tag. */
static inline int say_little(const comm_op_options *o)
{
    if (UNLIKELY(o->struct_bytes != sizeof *o)) /* it may end before these fields */
        return 0;
    uintptr_t more = (uintptr_t)o->stream | (uintptr_t)o->premul | (uintptr_t)o->reduce_fn |
                     (uintptr_t)o->reduce_context | (uintptr_t)o->label;
    return !(o->flags | o->timeout_ms | o->element_bytes | o->reserved | more);
}

/* A function of its own, so that the fast path needs neither its registers nor its stack. */
__attribute__((noinline)) static comm_status call_anew(comm_group *group, const struct plain_call *call,
                                                       const comm_op_options *options, comm_work **ret_work)
{
    comm_op op = { .kind = call->kind,
                   .dtype = call->dtype,
                   .redop = call->redop,
                   .root = call->root,
                   .send = { .data = (void *)call->send, .count = call->send_count },
                   .recv = { .data = call->recv, .count = call->recv_count } };
    return call_checking(group, &op, !options || say_little(options) ? call : NULL, options, ret_work);
}

ON_EACH_CALL comm_status comm__group_call_plain(comm_group *group, const struct plain_call *call,
                                                const comm_op_options *options, comm_work **ret_work)
{
    comm_work *work;
    comm_status status;
    int is_plain = group && (!options || say_little(options));
    if (UNLIKELY(!is_plain || !repeat(group, call, options, ret_work == NULL, &work, &status)))
        return call_anew(group, call, options, ret_work);
    if (LIKELY(status != COMM_OK || !work))
        return status;
    if (!ret_work)
        return comm__work_finish(work);
    *ret_work = work;
    return COMM_OK;
}

/* Ops on their way: to the other backend when their batch is due, and back to the core when they are. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chaos.h"

/* How long an op is held for another one to overtake it, beside its delay. */
static const int64_t hold_ns = 10000000;
/* How many batches a later one looks past. */
enum { LOOK_PAST = 16 };

void chaos_wait(struct group *g, int64_t deadline_ns)
{
    struct timespec until = { (time_t)(deadline_ns / 1000000000), (long)(deadline_ns % 1000000000) };
    if (deadline_ns == INT64_MAX)
        pthread_cond_wait(&g->changed, &g->lock);
    else
        pthread_cond_timedwait(&g->changed, &g->lock, &until);
}

static int64_t draw_delay_ns(const struct group *g, const struct op *op, int use)
{
    int64_t ns = chaos_hits(&g->plan, op->number, FAULT_DELAY) ? chaos_draw_delay_ns(&g->plan, op->number, use) : 0;
    if (ns > 0)
        chaos_tell(COMM_LOG_INFO, g, op, "%s %" PRId64 " us later", use == DRAW_BEGIN_DELAY ? "begins" : "ends",
                   ns / 1000);
    return ns;
}

/* ---- Ops ---- */

static void is_back(comm_work *inner, comm_status status, const char *error, void *context);

/* Holds the lock. */
static void link_op(struct op **at, struct op *op)
{
    op->next = *at;
    op->at = at;
    if (op->next)
        op->next->at = &op->next;
    *at = op;
}

static void unlink_op(struct op *op)
{
    *op->at = op->next;
    if (op->next)
        op->next->at = op->at;
}

struct op *chaos_op_create(struct group *g, const comm_op *op, comm_work *work)
{
    struct op *it = calloc(1, sizeof *it);
    if (!it || chaos_host->work_create(g->token, is_back, it, &it->inner) != COMM_OK) {
        free(it);
        return NULL;
    }
    comm_op_copy(&it->op, op);
    it->op.flags &= g->inner->op_flags;
    if (it->op.submitted_ns == 0)
        it->op.submitted_ns = chaos_host->now_ns(); /* its limit counts from here, not from where it is handed over */
    it->limit_ns = op->timeout_ns > INT64_MAX - it->op.submitted_ns ? INT64_MAX
                                                                    : it->op.submitted_ns + op->timeout_ns;
    it->group = g;
    it->work = work;
    it->number = ++g->number;
    it->references = 1;
    pthread_mutex_lock(&g->lock);
    link_op(&g->ops, it);
    *chaos_host->work_slot(work) = it; /* before it is handed over, as it may be back at once */
    pthread_mutex_unlock(&g->lock);
    return it;
}

void chaos_op_unref(struct op *op)
{
    if (--op->references > 0)
        return;
    chaos_host->work_release(op->inner);
    free(op->copy);
    free(op->error);
    free(op);
}

/* ---- Back to the core ---- */

/* They have been overtaken, and are due. Holds the lock. */
static void release_held(struct group *g)
{
    for (struct op *op = g->back, *next; op; op = next) {
        next = op->next;
        if (!op->is_held)
            continue;
        op->is_held = false;
        op->due_ns = 0;
        unlink_op(op);
        link_op(&g->back, op);
    }
}

void chaos_end(struct group *g, comm_status status, const char *reason)
{
    g->inner->group_abort(g->state, status, reason);
    pthread_mutex_lock(&g->lock);
    if (g->aborts++ == 0) {
        g->end_status = status;
        g->end_reason = reason ? strdup(reason) : NULL;
    }
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* Holds the lock, and lets it go meanwhile: the user may be called. */
static void give_back(struct group *g, struct op *op)
{
    comm_work *work = op->work;
    comm_status status = op->status;
    int32_t source, tag;
    size_t count;
    chaos_host->work_facts(op->inner, &source, &tag, &count);
    if (source >= 0)
        chaos_host->work_received(work, source, tag, count);
    unlink_op(op);
    /* After ON_STREAM a stream can be made to wait when the work has completed; else there is nothing to wait for. */
    bool is_kept = HAS(g->inner, wait_stream) && (op->op.flags & COMM_OP_FLAG_ON_STREAM) && status == COMM_OK;
    if (is_kept)
        link_op(&g->kept, op);
    else
        *chaos_host->work_slot(work) = NULL;
    op->references++;
    bool ends = op->has_failed && !g->is_closing && status <= COMM_ERR_PEER_LOST;
    pthread_mutex_unlock(&g->lock);
    if (ends) /* the other backend knows nothing of it */
        chaos_end(g, status, op->error);
    chaos_host->work_complete(work, status, op->error);
    pthread_mutex_lock(&g->lock);
    release_held(g);
    chaos_op_unref(op);
    if (!is_kept)
        chaos_op_unref(op);
    pthread_cond_broadcast(&g->changed);
}

/* Holds the lock. */
static void end_op(struct op *op, comm_status status, const char *error, int64_t due_ns)
{
    struct op **at = &op->group->back;
    op->status = status;
    op->error = error ? strdup(error) : NULL;
    op->place = OP_IS_BACK;
    op->due_ns = due_ns;
    unlink_op(op);
    while (*at && (*at)->due_ns <= due_ns)
        at = &(*at)->next;
    link_op(at, op);
}

/* The other backend has completed it, perhaps inside its submit with locks of the core held; or it is lost. */
static void is_back(comm_work *inner, comm_status status, const char *error, void *context)
{
    struct op *op = context;
    struct group *g = op->group;
    (void)inner;
    int64_t delay_ns = draw_delay_ns(g, op, DRAW_END_DELAY);
    if (status == COMM_OK && op->flips)
        chaos_flip_result(g, op);
    if (status == COMM_OK && op->fails) {
        status = g->plan.status;
        error = "an error, as the option error has asked for";
        op->has_failed = true;
        chaos_tell(COMM_LOG_WARN, g, op, "%s", error);
    }
    pthread_mutex_lock(&g->lock);
    end_op(op, status, error, chaos_host->now_ns() + delay_ns + (op->is_held ? hold_ns : 0));
    if (g->is_closing)
        give_back(g, op); /* the thread may have ended */
    else
        pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* ---- To the other backend ---- */

/* Its numbers must have no gaps, and some ops do not get there. Holds `handing`. */
static void number(struct group *g, comm_op *op)
{
    bool is_peer = comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_PEER;
    op->seq = is_peer ? ++g->peer_seq : ++g->seq;
}

/* The other backend knows no memory: neither its ops. */
static void forget_memory(const struct group *g, comm_op *op)
{
    if (!HAS(g->inner, memory_open))
        op->send.memory = op->recv.memory = NULL;
}

/* The ops of a batch that the other backend gets, with a reference to each. Holds `handing`. */
static size_t list_ops(struct group *g, const struct batch *batch, const comm_op **ops, comm_work **works)
{
    size_t count = 0;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < batch->count; i++) {
        struct op *op = batch->ops[i];
        op->references++;
        if (op->is_dropped || op->is_lost)
            continue;
        number(g, &op->op);
        forget_memory(g, &op->op);
        op->place = OP_IS_THERE;
        ops[count] = &op->op;
        works[count++] = op->inner;
    }
    pthread_cond_broadcast(&g->changed); /* a waiting thread can help the other backend now */
    pthread_mutex_unlock(&g->lock);
    return count;
}

static void kill_in_batch(const struct group *g, const struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->ops[i]->kills)
            chaos_kill(g, batch->ops[i], "once it has begun");
}

/* What became of those that the other backend has not got. */
static void settle(struct group *g, const struct batch *batch, comm_status status)
{
    for (size_t i = 0; status == COMM_OK && i < batch->count; i++)
        if (batch->ops[i]->is_lost && !batch->ops[i]->is_dropped)
            is_back(NULL, COMM_OK, NULL, batch->ops[i]);
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < batch->count; i++) {
        struct op *op = batch->ops[i];
        if (status == COMM_OK && op->is_dropped)
            op->place = OP_IS_STUCK;
        chaos_op_unref(op);
    }
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* Holds `handing`. After a CALL status nothing was begun, and the batch is as before. */
static comm_status hand_over(struct group *g, const struct batch *batch)
{
    const uint64_t seq = g->seq, peer_seq = g->peer_seq;
    const comm_op **ops = malloc(batch->count * sizeof *ops);
    comm_work **works = malloc(batch->count * sizeof *works);
    comm_status status = ops && works ? COMM_OK : chaos_host->fail(COMM_ERR_NO_MEMORY, "a batch");
    if (status == COMM_OK) {
        size_t count = list_ops(g, batch, ops, works);
        if (count > 0)
            status = g->inner->submit(g->state, ops, works, count);
        if (status == COMM_OK)
            kill_in_batch(g, batch);
        settle(g, batch, status);
    }
    if (status != COMM_OK) {
        g->seq = seq;
        g->peer_seq = peer_seq;
    }
    free(ops);
    free(works);
    return status;
}

void chaos_batch_destroy(struct group *g, struct batch *batch)
{
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < batch->count; i++) {
        *chaos_host->work_slot(batch->ops[i]->work) = NULL;
        unlink_op(batch->ops[i]);
        chaos_op_unref(batch->ops[i]);
    }
    pthread_mutex_unlock(&g->lock);
    free(batch);
}

/* ---- Whose turn it is ---- */

/* May one be handed over before the other, which came first? */
static bool op_may_pass(const comm_op *op, const comm_op *first)
{
    if (op->kind != first->kind) /* a collective and a message, or a send and a receive */
        return (comm_op_traits_of(op->kind)->traits | comm_op_traits_of(first->kind)->traits) & COMM_OP_TRAIT_PEER;
    if (op->kind != COMM_OP_SEND && op->kind != COMM_OP_RECV)
        return false;
    bool same_peer = op->root == first->root || op->root == COMM_ANY_SOURCE || first->root == COMM_ANY_SOURCE;
    if (op->kind == COMM_OP_SEND) /* a receive of any tag takes the first */
        return !same_peer;
    bool same_tag = op->tag == first->tag || op->tag == COMM_ANY_TAG || first->tag == COMM_ANY_TAG;
    return !same_peer || !same_tag;
}

static bool may_pass(const struct group *g, const struct batch *batch, const struct batch *first)
{
    if (g->plan.rates[FAULT_REORDER].part == 0)
        return false;
    for (size_t i = 0; i < batch->count; i++)
        for (size_t k = 0; k < first->count; k++)
            if (!op_may_pass(&batch->ops[i]->op, &first->ops[k]->op))
                return false;
    return true;
}

/* Must it wait for one of the batches before `end`? Holds the lock. */
static bool is_behind(const struct group *g, const struct batch *batch, const struct batch *end)
{
    const struct batch *first = g->waiting;
    for (int i = 0; first != end; i++, first = first->next)
        if (i == LOOK_PAST || !may_pass(g, batch, first))
            return true;
    return false;
}

/* Where the first batch is that can be handed over now; or NULL, and when one can. Holds the lock. */
static struct batch **find_batch(struct group *g, int64_t now_ns, int64_t *wakes_ns)
{
    struct batch **at = &g->waiting;
    for (int i = 0; *at && i < LOOK_PAST; i++, at = &(*at)->next) {
        if (is_behind(g, *at, *at))
            continue;
        if ((*at)->due_ns <= now_ns)
            return at;
        *wakes_ns = (*at)->due_ns < *wakes_ns ? (*at)->due_ns : *wakes_ns;
    }
    return NULL;
}

static struct batch *take(struct group *g, struct batch **at)
{
    struct batch *batch = *at;
    *at = batch->next;
    if (!*at)
        g->waiting_end = at;
    return batch;
}

static void append(struct group *g, struct batch *batch)
{
    batch->next = NULL;
    *g->waiting_end = batch;
    g->waiting_end = &batch->next;
    pthread_cond_broadcast(&g->changed);
}

/* Devices have streams and a current device, which are those of the thread that submits: so it waits itself. */
static bool waits_itself(const struct batch *batch)
{
    return comm_device_kind(batch->ops[0]->op.device) != COMM_DEVICE_CPU;
}

comm_status chaos_queue_add(struct group *g, struct batch *batch)
{
    batch->due_ns = chaos_host->now_ns();
    for (size_t i = 0; i < batch->count; i++)
        batch->due_ns += draw_delay_ns(g, batch->ops[i], DRAW_BEGIN_DELAY) / (int64_t)batch->count;
    pthread_mutex_lock(&g->lock);
    while (waits_itself(batch) && !g->aborts && chaos_host->now_ns() < batch->due_ns)
        chaos_wait(g, batch->due_ns);
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&g->handing);
    pthread_mutex_lock(&g->lock);
    bool is_later = !g->aborts && (is_behind(g, batch, NULL) || chaos_host->now_ns() < batch->due_ns);
    if (is_later)
        append(g, batch);
    pthread_mutex_unlock(&g->lock);
    comm_status status = is_later ? COMM_OK : hand_over(g, batch);
    pthread_mutex_unlock(&g->handing);
    if (is_later)
        return COMM_OK;
    if (status == COMM_OK)
        free(batch);
    else
        chaos_batch_destroy(g, batch);
    return status;
}

/* ---- The thread ---- */

/* The other backend has refused it, long after the core was told that it has begun. */
static void fail_batch(struct group *g, struct batch *batch, comm_status status)
{
    char *error = strdup(chaos_host->last_error());
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < batch->count; i++)
        end_op(batch->ops[i], status, error, 0);
    pthread_mutex_unlock(&g->lock);
    /* The other ranks go on with it. */
    chaos_host->group_failed(g->token, status > COMM_ERR_PEER_LOST ? COMM_ERR_BACKEND : status, error);
    free(error);
}

/* Hand over one batch, if one is still due. Holds the lock, and lets it go meanwhile. */
static void hand_over_next(struct group *g)
{
    int64_t wakes_ns = INT64_MAX;
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&g->handing);
    pthread_mutex_lock(&g->lock);
    struct batch **at = find_batch(g, chaos_host->now_ns(), &wakes_ns), *batch = at ? take(g, at) : NULL;
    pthread_mutex_unlock(&g->lock);
    comm_status status = batch ? hand_over(g, batch) : COMM_OK;
    pthread_mutex_unlock(&g->handing);
    if (status != COMM_OK)
        fail_batch(g, batch, status);
    free(batch);
    pthread_mutex_lock(&g->lock);
}

/* The group has ended: what the other backend has not got ends here. Holds the lock. */
static void end_waiting(struct group *g)
{
    comm_status status = g->aborts ? g->end_status : COMM_ERR_ABORTED;
    while (g->waiting) {
        struct batch *batch = take(g, &g->waiting);
        for (size_t i = 0; i < batch->count; i++)
            end_op(batch->ops[i], status, g->end_reason, 0);
        free(batch);
    }
    for (struct op *op = g->ops, *next; op; op = next) {
        next = op->next;
        if (op->place == OP_IS_STUCK)
            end_op(op, status, g->end_reason, 0);
    }
}

/* The op that is to be given back now, or NULL, and when one is. Holds the lock. */
static struct op *find_due(const struct group *g, int64_t now_ns, int64_t *wakes_ns)
{
    struct op *first = g->back;
    if (!first || g->aborts || g->is_closing || first->due_ns <= now_ns)
        return first;
    *wakes_ns = first->due_ns < *wakes_ns ? first->due_ns : *wakes_ns;
    return NULL;
}

/* The table says that deadlines are kept: it is done here if the other backend does not. Gives the op that is late, or
 * NULL, and when one will be. Holds the lock. */
static const struct op *find_late(const struct group *g, int64_t now_ns, int64_t *wakes_ns)
{
    if (g->inner->traits & COMM_BACKEND_KEEPS_DEADLINES || g->is_overdue || g->aborts)
        return NULL;
    for (const struct op *op = g->ops; op; op = op->next) {
        if (op->limit_ns <= now_ns)
            return op;
        *wakes_ns = op->limit_ns < *wakes_ns ? op->limit_ns : *wakes_ns;
    }
    return NULL;
}

/* Holds the lock, and lets it go meanwhile. */
static void end_for(struct group *g, const struct op *late)
{
    char which[256], text[400];
    g->is_overdue = true;
    chaos_host->describe(g->token, &late->op, which, sizeof which);
    snprintf(text, sizeof text, "%s: timed out: not finished within %" PRId64 " ms", which,
             late->op.timeout_ns / 1000000);
    pthread_mutex_unlock(&g->lock);
    chaos_host->group_failed(g->token, COMM_ERR_DEADLINE, text);
    pthread_mutex_lock(&g->lock);
}

/* Do one thing that is due. False: nothing is until then. Holds the lock, and lets it go meanwhile. */
static bool move_one(struct group *g, int64_t *wakes_ns)
{
    int64_t now_ns = chaos_host->now_ns();
    struct op *op = find_due(g, now_ns, wakes_ns);
    const struct op *late = NULL;
    if (op)
        give_back(g, op);
    else if (g->is_closing)
        return false;
    else if (find_batch(g, now_ns, wakes_ns))
        hand_over_next(g);
    else if ((late = find_late(g, now_ns, wakes_ns)) != NULL)
        end_for(g, late);
    else
        return false;
    return true;
}

static void *move_what_is_due(void *state)
{
    struct group *g = state;
    bool ends = false;
    pthread_mutex_lock(&g->lock);
    while (!ends) {
        int64_t wakes_ns = INT64_MAX;
        if (g->aborts || g->is_closing)
            end_waiting(g);
        if (move_one(g, &wakes_ns))
            continue;
        ends = g->is_closing;
        if (!ends)
            chaos_wait(g, wakes_ns);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- Starting and stopping ---- */

/* The program's signals are not for this thread. */
static int create_thread(struct group *g)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&g->thread, NULL, move_what_is_due, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void destroy_locks(struct group *g)
{
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->handing);
}

comm_status chaos_queue_start(struct group *g)
{
    char text[128];
    pthread_condattr_t monotonic;
    g->waiting_end = &g->waiting;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->handing, NULL);
    int error = create_thread(g);
    if (error == 0)
        return COMM_OK;
    destroy_locks(g);
    snprintf(text, sizeof text, "no thread for the backend chaos: %s", strerror(error));
    return chaos_host->fail(COMM_ERR_SYSTEM, text);
}

void chaos_queue_stop(struct group *g)
{
    pthread_mutex_lock(&g->lock);
    g->is_closing = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
}

static void drop_all(struct op **list)
{
    while (*list) {
        struct op *op = *list;
        unlink_op(op);
        chaos_op_unref(op);
    }
}

void chaos_queue_finish(struct group *g)
{
    pthread_mutex_lock(&g->lock);
    drop_all(&g->ops);
    drop_all(&g->kept);
    pthread_mutex_unlock(&g->lock);
    destroy_locks(g);
}

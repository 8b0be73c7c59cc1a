/* The end of operations is noticed by the threads that wait for them; for the rest, by one thread per world. It also
 * watches time limits, and errors that NCCL reports later. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "nccl.h"

enum {
    CHECK_NS = 20000000,      /* between checks of time limits and asynchronous errors */
    SPIN_NS = 50000,          /* a waiting thread polls without a pause for so long */
    PAUSE_NS = 20000,         /* then with pauses of this, or of a 32nd of the time that it has waited, */
    LONGEST_PAUSE_NS = 500000, /* up to this */
    POLL_NS = 200000,         /* the poller's pause */
    BUSY_NS = 50000000,       /* after the last flight it goes on for so long, before it must be woken */
    IDLE_NS = 500000000,
};

/* ---- What is finished ---- */

static void note(struct finished_list *list, struct flight *f)
{
    int is_recv = f->op.kind == COMM_OP_RECV;
    if (f->work)
        list->entries[list->count++] = (struct finished){ f->work, is_recv ? f->op.root : -1, f->op.recv.count };
    f->work = NULL;
}

static void note_enqueued(struct communicator *c, struct finished_list *list)
{
    struct flight *f;
    while (list->count < FINISHED_MAX && (f = flight_remove_first(&c->captured))) {
        note(list, f);
        flight_give_back(f);
    }
    for (; c->unsaid && list->count < FINISHED_MAX; c->unsaid = c->unsaid->next)
        if (c->unsaid->op.flags & COMM_OP_FLAG_ON_STREAM)
            note(list, c->unsaid);
}

/* What NCCL has come to by itself since the last call. */
static nccl_status async_error(const struct communicator *c)
{
    nccl_status error = NCCL_OK;
    if (!c->connected || !c->comm || nccl.CommGetAsyncError(c->comm, &error) != NCCL_OK)
        return NCCL_OK;
    return error == NCCL_IN_PROGRESS ? NCCL_OK : error;
}

/* CUDA_OK, or the error that the device has come to. */
static cuda_status note_done(struct communicator *c, struct finished_list *list)
{
    struct flight *f = c->pending.first;
    if (!f || cuda.EventQuery(f->done) == CUDA_NOT_READY)
        return CUDA_OK;
    if (async_error(c) != NCCL_OK) {
        c->next_check_ns = 0; /* it may have left its kernels early: nothing counts as done */
        return CUDA_OK;
    }
    while ((f = c->pending.first) && list->count < FINISHED_MAX) {
        cuda_status status = cuda.EventQuery(f->done);
        if (status == CUDA_NOT_READY)
            return CUDA_OK;
        if (status != CUDA_OK)
            return status;
        if (c->unsaid == f)
            c->unsaid = f->next;
        flight_remove_first(&c->pending);
        note(list, f);
        flight_give_back(f);
    }
    return CUDA_OK;
}

static struct flight *overdue(const struct flight_list *list, int64_t now_ns)
{
    for (struct flight *f = list->first; f; f = f->next)
        if (f->deadline_ns <= now_ns)
            return f;
    return NULL;
}

static void check(struct communicator *c, int64_t now_ns)
{
    struct group *g = c->group;
    const struct flight *late = overdue(&c->pending, now_ns);
    late = late ? late : overdue(&c->queued, now_ns);
    late = late ? late : overdue(&c->issuing, now_ns);
    for (int i = 0; i < 2 && !late; i++)
        late = overdue(&g->to_self[i], now_ns);
    nccl_status error = async_error(c);
    if (error != NCCL_OK) {
        group_end_failed(g, fail_nccl(c, error, "an operation that was under way"));
    } else if (late) {
        group_end_late(g, late);
    }
    c->next_check_ns = now_ns + CHECK_NS;
}

/* Returns whether flights are left. The group's lock is held. */
static int poll_group(struct group *g, struct finished_list *list, int64_t now_ns)
{
    int left = g->to_self[0].first || g->to_self[1].first;
    if (atomic_load(&g->ended))
        return 0; /* an aborted operation looks finished to the device: the ender completes it, as failed */
    for (struct communicator *c = g->communicators; c; c = c->next) {
        note_enqueued(c, list);
        cuda_status status = note_done(c, list);
        if (status != CUDA_OK)
            group_end_failed(g, fail_cuda(status, "an operation on the device"));
        left |= c->pending.first || c->queued.first || c->issuing.first;
        if (now_ns >= c->next_check_ns)
            check(c, now_ns);
        if (atomic_load(&g->ended))
            break;
    }
    return left;
}

void finished_take_enqueued(struct group *g, struct finished_list *list)
{
    for (struct communicator *c = g->communicators; c && !atomic_load(&g->ended); c = c->next)
        note_enqueued(c, list);
}

void finished_complete(const struct finished_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct finished *f = &list->entries[i];
        if (f->source >= 0)
            host->work_received(f->work, f->source, 0, f->count);
        host->work_complete(f->work, COMM_OK, NULL);
    }
}

void group_finish(struct group *g)
{
    struct finished_list list;
    do {
        list.count = 0;
        pthread_mutex_lock(&g->lock);
        poll_group(g, &list, host->now_ns());
        pthread_mutex_unlock(&g->lock);
        finished_complete(&list);
    } while (list.count == FINISHED_MAX);
}

/* ---- A thread that waits ---- */

/* The pause between polls: at first none, so that a short operation is noticed at once. */
static void rest(int64_t waited_ns)
{
    int64_t ns = waited_ns / 32;
    if (waited_ns < SPIN_NS)
        sched_yield();
    else
        pause_for(ns < PAUSE_NS ? PAUSE_NS : ns > LONGEST_PAUSE_NS ? LONGEST_PAUSE_NS : ns);
}

comm_status poll_wait(struct group *g, comm_work *work, int64_t deadline_ns)
{
    int64_t began_ns = host->now_ns(), now_ns = began_ns;
    unsigned int mode = capture_relax();
    do {
        group_finish(g);
        if (host->work_done(work) || atomic_load(&g->ended))
            break;
        now_ns = host->now_ns();
        if (now_ns < deadline_ns)
            rest(now_ns - began_ns);
    } while (now_ns < deadline_ns);
    if (!host->work_done(work) && atomic_load(&g->ended) && now_ns < deadline_ns)
        pause_for(LONGEST_PAUSE_NS); /* the ender completes it; the core asks again */
    capture_restore(mode);
    return COMM_OK;
}

/* ---- The world's thread ---- */

static int poll_world(struct world *w, struct finished_list *list)
{
    int left = 0;
    int64_t now_ns = host->now_ns();
    for (struct group *g = w->groups; g; g = g->next) {
        pthread_mutex_lock(&g->lock);
        left |= poll_group(g, list, now_ns);
        pthread_mutex_unlock(&g->lock);
    }
    return left;
}

static void sleep_until(struct world *w, int64_t until_ns)
{
    struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
    pthread_cond_timedwait(&w->wake, &w->lock, &t);
}

/* Complete what is finished; returns whether there is more to come. The world's lock is held, but for completing. */
static int poll_round(struct world *w)
{
    struct finished_list list = { .count = 0 };
    int left = poll_world(w, &list);
    pthread_mutex_unlock(&w->lock);
    finished_complete(&list);
    pthread_mutex_lock(&w->lock);
    return left || list.count > 0;
}

static void *poller_main(void *context)
{
    struct world *w = context;
    int64_t busy_until_ns = 0;
    capture_relax();
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        int64_t now_ns = host->now_ns();
        if (poll_round(w))
            busy_until_ns = now_ns + BUSY_NS;
        if (now_ns < busy_until_ns) {
            sleep_until(w, now_ns + POLL_NS);
        } else if (!atomic_exchange(&w->idle, 1)) {
            continue; /* look once more: what comes from now on wakes this thread */
        } else {
            sleep_until(w, now_ns + IDLE_NS);
            atomic_store(&w->idle, 0);
            busy_until_ns = 0;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

comm_status poller_start(struct world *w)
{
    int error = pthread_create(&w->poller, NULL, poller_main, w);
    atomic_store(&w->has_poller, error == 0);
    return error == 0 ? COMM_OK : fail(COMM_ERR_NO_MEMORY, "the thread that looks after operations cannot be started: "
                                       "error %d", error);
}

void poller_wake(struct world *w)
{
    if (!atomic_load(&w->idle))
        return;
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void poller_stop(struct world *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = 1;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    if (atomic_load(&w->has_poller))
        pthread_join(w->poller, NULL);
}

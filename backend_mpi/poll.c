/* The end of operations is noticed by the threads that wait for them; for the rest, by one thread per world, which also
 * looks after ranks that have gone. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "state.h"

enum {
    SWEEP_EVERY = 16,          /* a waiting thread tests the other operations once in so many rounds */
    LOOK_NS = 1000000,         /* between checks whether another rank has ended the group */
    SPIN_NS = 20000000,        /* a waiting thread polls without a pause for so long */
    LONGEST_PAUSE_NS = 200000, /* then with pauses of a 64th of the time that it has waited, up to this */
    POLL_NS = 100000,          /* the poller's pause */
    BUSY_NS = 20000000,        /* after the last flight it goes on for so long, before it must be woken */
    IDLE_NS = 50000000, /* MPI may have to go on with what was sent */
};

/* ---- What is finished ---- */

void finished_begin(struct finished_list *list)
{
    list->first = NULL;
    list->end = &list->first;
}

/* Locked. Its place in the work is gone. */
void finished_add(struct finished_list *list, struct flight *f)
{
    flight_unlink(f);
    *host->work_slot(f->work) = NULL;
    f->next = NULL;
    *list->end = f;
    list->end = &f->next;
}

static size_t received_bytes(const struct flight *f)
{
    MPI_Count bytes = (MPI_Count)f->received_bytes;
    mpi_lock();
    if (f->op.tag < COMM_ANY_TAG)
        mpi.Get_elements_x(&f->received, MPI_BYTE, &bytes);
    mpi_unlock();
    return (size_t)bytes;
}

static int32_t tag_received(const struct flight *f)
{
    return f->op.tag < COMM_ANY_TAG ? f->op.tag : f->received.MPI_TAG;
}

static void complete_truncated(struct flight *f)
{
    char text[TEXT_BYTES], who[64];
    say_rank(f->group, f->received.MPI_SOURCE, who, sizeof who);
    snprintf(text, sizeof text, "the message of %zu bytes from %s with tag %d is longer than the %zu bytes that were "
             "given for it; the rest is lost", f->received_bytes, who, tag_received(f),
             f->op.recv.count * f->op.element_bytes);
    host->work_received(f->work, f->received.MPI_SOURCE, tag_received(f), f->op.recv.count);
    host->work_complete(f->work, COMM_ERR_TRUNCATED, text);
}

static void complete(struct flight *f)
{
    struct group *g = f->group;
    comm_status ended = f->is_whole ? COMM_OK : atomic_load(&g->ended);
    if (f->status == COMM_OK && ended == COMM_OK && flight_is_truncated(f)) {
        complete_truncated(f);
    } else if (f->status != COMM_OK) {
        host->work_complete(f->work, f->status, f->text ? f->text : "no memory for the reason");
    } else if (ended != COMM_OK) {
        host->work_complete(f->work, ended, g->ended_text);
    } else if (f->mpi_error) {
        mpi_lock();
        fail_mpi(f->mpi_error, "MPI");
        mpi_unlock();
        host->work_complete(f->work, COMM_ERR_BACKEND, host->last_error());
    } else {
        if (f->op.kind == COMM_OP_RECV)
            host->work_received(f->work, f->received.MPI_SOURCE, tag_received(f),
                                received_bytes(f) / f->op.element_bytes);
        host->work_complete(f->work, COMM_OK, NULL);
    }
}

void finished_complete(struct finished_list *list)
{
    struct flight *f;
    while ((f = list->first)) {
        struct group *g = f->group;
        list->first = f->next;
        complete(f);
        pthread_mutex_lock(&g->lock);
        flight_free(f);
        pthread_mutex_unlock(&g->lock);
    }
    list->end = &list->first;
}

/* ---- Looking: the group's lock is held ---- */

static int is_looked_after(const struct flight *f)
{
    return f->is_busy || f->is_begun;
}

static int advance(struct flight *f, struct finished_list *list)
{
    if (is_looked_after(f) || !flight_advance(f))
        return 0;
    finished_add(list, f);
    return 1;
}

void poll_sweep(struct group *g, struct finished_list *list)
{
    struct flight *next;
    /* While `advance` lets the lock go, others can take flights out, but not this one, which is busy then. When it is
     * taken out here, the one that followed it may be gone, too: so the list is begun again. */
    for (struct flight *f = g->pending; f; f = next)
        next = advance(f, list) ? g->pending : f->next;
}

static void look(struct group *g, int64_t now_ns, struct finished_list *list)
{
    if (now_ns - g->looked_ns < LOOK_NS)
        return;
    g->looked_ns = now_ns;
    group_look(g, list);
}

/* ---- A thread that waits ---- */

/* MPI moves data only while it is called. */
static void rest(const struct world *w, int64_t waited_ns)
{
    int64_t ns = waited_ns / 64;
    if (waited_ns >= SPIN_NS)
        pause_for(ns < LONGEST_PAUSE_NS ? ns : LONGEST_PAUSE_NS);
    else if (w->yields)
        sched_yield();
}

/* The thread does not wait any more, but the work goes on. */
static void leave_to_poller(struct group *g, comm_work *work)
{
    pthread_mutex_lock(&g->lock);
    struct flight *f = host->work_done(work) ? NULL : *host->work_slot(work);
    if (f)
        f->waited_ns = 0;
    pthread_mutex_unlock(&g->lock);
    poller_wake(g->world);
}

comm_status poll_wait(struct group *g, comm_work *work, int64_t deadline_ns)
{
    struct finished_list list;
    int64_t began_ns = host->now_ns(), now_ns = began_ns;
    finished_begin(&list);
    for (unsigned int round = 0;; round++) {
        pthread_mutex_lock(&g->lock);
        struct flight *f = host->work_done(work) ? NULL : *host->work_slot(work);
        if (f)
            f->waited_ns = deadline_ns ? now_ns : 0;
        if (f && f->is_issued)
            advance(f, &list);
        if (round % SWEEP_EVERY == SWEEP_EVERY - 1 || deadline_ns == 0)
            poll_sweep(g, &list);
        now_ns = host->now_ns();
        look(g, now_ns, &list);
        pthread_mutex_unlock(&g->lock);
        finished_complete(&list);
        if (host->work_done(work) || atomic_load(&g->ended) || now_ns >= deadline_ns)
            break;
        rest(g->world, now_ns - began_ns);
    }
    if (!host->work_done(work) && deadline_ns)
        leave_to_poller(g, work);
    if (!host->work_done(work) && atomic_load(&g->ended) && now_ns < deadline_ns)
        pause_for(LONGEST_PAUSE_NS); /* the poller completes it; the core asks again */
    return COMM_OK;
}

/* ---- The world's thread ---- */

/* Are there flights that no thread waits for? Those that one waits for it looks after itself: the poller, waking for
 * them, would take its core from it. */
static int is_needed(const struct group *g, int64_t now_ns)
{
    const struct flight *f = g->pending;
    while (f && (f->is_begun || now_ns - f->waited_ns < BUSY_NS))
        f = f->next;
    return f || g->queued;
}

/* Without the world's lock. Returns whether flights are left for the poller. */
static int poll_group(struct group *g)
{
    int64_t now_ns = host->now_ns();
    struct finished_list list;
    finished_begin(&list);
    pthread_mutex_lock(&g->lock);
    poll_sweep(g, &list);
    look(g, now_ns, &list);
    int left = is_needed(g, now_ns);
    pthread_mutex_unlock(&g->lock);
    finished_complete(&list);
    group_check_ranks(g);
    return left;
}

static int poll_round(struct world *w)
{
    int left = 0;
    for (struct group *g = w->groups; g; g = g->next) {
        w->polled = g; /* it stays where it is meanwhile */
        pthread_mutex_unlock(&w->lock);
        left |= poll_group(g);
        pthread_mutex_lock(&w->lock);
        w->polled = NULL;
        pthread_cond_broadcast(&w->changed);
    }
    leaving_look();
    return left;
}

static void sleep_until(struct world *w, int64_t until_ns)
{
    struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
    pthread_cond_timedwait(&w->changed, &w->lock, &t);
}

static void *poller_main(void *context)
{
    struct world *w = context;
    int64_t busy_until_ns = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        int64_t now_ns = host->now_ns();
        if (poll_round(w))
            busy_until_ns = now_ns + BUSY_NS;
        if (w->stopping)
            break;
        if (now_ns < busy_until_ns) {
            sleep_until(w, now_ns + POLL_NS);
        } else if (!atomic_exchange(&w->is_idle, 1)) {
            continue; /* look once more: what comes from now on wakes this thread */
        } else {
            sleep_until(w, now_ns + IDLE_NS);
            atomic_store(&w->is_idle, 0);
            busy_until_ns = 0;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* World locked. */
comm_status poller_start(struct world *w)
{
    sigset_t all, before;
    if (atomic_load(&w->has_poller))
        return COMM_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->poller, NULL, poller_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_store(&w->has_poller, error == 0);
    return error == 0 ? COMM_OK : fail(COMM_ERR_SYSTEM, "the thread that looks after operations cannot be started: %s",
                                       strerror(error));
}

void poller_wake(struct world *w)
{
    if (!atomic_load(&w->is_idle))
        return;
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void poller_stop(struct world *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (atomic_load(&w->has_poller))
        pthread_join(w->poller, NULL);
}

/* How a group ends: by an abort, a time limit, or an error of NCCL or the device. ncclCommAbort blocks, so a thread
 * does it, the ender. Works are completed when the device has left their buffers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

enum { LEAVE_NS = 5000000000LL, LOOK_NS = 200000, NAME_NS = 1000000000, NAME_LOOK_NS = 10000000 };

int flights_wait_for_device(const struct flight *first, int64_t until_ns)
{
    for (const struct flight *f = first; f; f = f->next)
        while (!f->captured && cuda.EventQuery(f->done) == CUDA_NOT_READY) {
            if (host->now_ns() > until_ns)
                return 0;
            pause_for(LOOK_NS);
        }
    return 1;
}

/* Until the device is past everything that was given to NCCL: its kernels leave when the communicator is aborted. Of
 * what NCCL had not taken whole, copies may be in the stream. */
static int wait_for_device(struct communicator *c)
{
    int64_t until_ns = host->now_ns() + LEAVE_NS;
    cuda.SetDevice(c->device);
    for (struct flight *f = c->issuing.first; f; f = f->next)
        if (!f->captured)
            cuda.EventRecord(f->done, f->stream);
    return flights_wait_for_device(c->pending.first, until_ns) && flights_wait_for_device(c->issuing.first, until_ns);
}

static comm_work *take_work(struct flight_list *list)
{
    struct flight *f;
    while ((f = flight_remove_first(list))) {
        comm_work *work = f->work;
        flight_give_back(f);
        if (work)
            return work;
    }
    return NULL;
}

static comm_work *next_work(struct group *g)
{
    comm_work *work = NULL;
    pthread_mutex_lock(&g->lock);
    for (struct communicator *c = g->communicators; c && !work; c = c->next) {
        struct flight_list *lists[] = { &c->captured, &c->pending, &c->issuing, &c->queued };
        c->unsaid = NULL;
        for (size_t i = 0; i < sizeof lists / sizeof *lists && !work; i++)
            work = take_work(lists[i]);
    }
    for (int i = 0; i < 2 && !work; i++)
        work = take_work(&g->to_self[i]);
    pthread_mutex_unlock(&g->lock);
    return work;
}

static int has_heard(struct group *g)
{
    pthread_mutex_lock(&g->lock);
    int heard = g->heard != COMM_OK;
    pthread_mutex_unlock(&g->lock);
    return heard;
}

/* NCCL has lost a peer. It may notice before the process's lifeline has broken: the kernel ends a process piece by
 * piece. Replaces `answer` when it is known who it was. */
static void await_name(struct group *g, char *answer, size_t capacity)
{
    int64_t until_ns = host->now_ns() + NAME_NS;
    while (!alarm_name_the_ended(g, answer, capacity) && !has_heard(g) && host->now_ns() < until_ns)
        pause_for(NAME_LOOK_NS);
}

/* Find out which rank is late, or lost. */
static void ask_who(struct group *g, const char *what, char *answer, size_t capacity)
{
    alarm_ask(g, what, answer, capacity);
    if (atomic_load(&g->ended) == COMM_ERR_PEER_LOST && !atomic_load(&g->store_failed))
        await_name(g, answer, capacity);
}

/* When a living rank has ended the group, that rank's reason counts: for it a connection breaks, a call of NCCL fails,
 * and who comes later finds nobody there. */
static void find_out_why(struct group *g)
{
    enum { HALF = TEXT_BYTES / 2 };
    char what[TEXT_BYTES], answer[HALF] = "";
    comm_status status = atomic_load(&g->ended);
    int is_loss = status == COMM_ERR_PEER_LOST, is_of_a_rank = is_loss || status == COMM_ERR_DEADLINE;
    pthread_mutex_lock(&g->lock);
    snprintf(what, sizeof what, "%.*s", is_of_a_rank ? HALF - 1 : TEXT_BYTES - 1, g->ended_text);
    pthread_mutex_unlock(&g->lock);
    if (!is_loss || !alarm_name_the_ended(g, answer, sizeof answer)) {
        alarm_look_for_reason(g);
        if (is_of_a_rank && !has_heard(g))
            ask_who(g, what, answer, sizeof answer);
    }
    pthread_mutex_lock(&g->lock);
    if (g->heard && is_of_a_rank)
        snprintf(g->ended_text, sizeof g->ended_text, "%s", g->heard_text);
    else if (g->heard)
        snprintf(g->ended_text, sizeof g->ended_text, "%.*s; on this rank: %.*s", HALF, g->heard_text, HALF - 32, what);
    else
        snprintf(g->ended_text, sizeof g->ended_text, "%.*s%s", is_of_a_rank ? HALF : TEXT_BYTES - 1, what, answer);
    if (g->heard) {
        atomic_store(&g->ended, g->heard);
        g->told = 1;
    }
    g->asks = 0;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void *ender_main(void *context)
{
    struct group *g = context;
    comm_work *work;
    int free = 1, asks = g->asks;
    capture_relax();
    if (asks)
        find_out_why(g);
    comm_status status = atomic_load(&g->ended);
    if (status == COMM_ERR_PEER_LOST && (!asks || g->told))
        alarm_look_for_lost(g); /* there may be more than this rank was told */
    if (!g->told)
        g->told = alarm_raise(g); /* before the connections break: the others shall hear the reason first */
    for (struct communicator *c = g->communicators; c; c = c->next)
        communicator_end(c, 1);
    for (struct communicator *c = g->communicators; c; c = c->next)
        free &= wait_for_device(c);
    if (!free)
        host->log(COMM_LOG_ERROR, "nccl: the device has not come to the end of aborted operations within 5 s: it waits "
                                  "for earlier work in their streams. Their buffers stay in use");
    while ((work = next_work(g)))
        host->work_complete(work, status, g->ended_text);
    host->group_failed(g->info->token, status, g->ended_text);
    return NULL;
}

static void begin_end(struct group *g, comm_status status, int told)
{
    g->told = told;
    atomic_store(&g->ended, status);
    g->has_ender = pthread_create(&g->ender, NULL, ender_main, g) == 0; /* else the core completes the works */
    if (!g->has_ender)
        g->asks = 0;
    pthread_cond_broadcast(&g->changed);
}

void group_end(struct group *g, comm_status status, const char *text, int told)
{
    if (atomic_load(&g->ended))
        return;
    snprintf(g->ended_text, sizeof g->ended_text, "%s", text ? text : "");
    begin_end(g, status, told);
}

comm_status group_ended_why(struct group *g)
{
    while (g->asks)
        pthread_cond_wait(&g->changed, &g->lock);
    return fail(atomic_load(&g->ended), "%s", g->ended_text);
}

void group_end_failed(struct group *g, comm_status status)
{
    if (!atomic_load(&g->ended))
        g->asks = 1;
    group_end(g, status_that_ends(status), host->last_error(), 0);
}

void group_end_late(struct group *g, const struct flight *f)
{
    char what[256];
    if (atomic_load(&g->ended))
        return;
    host->describe(g->info->token, &f->op, what, sizeof what);
    snprintf(g->ended_text, sizeof g->ended_text, "%s: timed out: not finished within %lld ms%s", what,
             (long long)(f->op.timeout_ns / 1000000),
             f->issued ? "" : ": the ranks have not come together for it");
    g->asks = 1;
    begin_end(g, COMM_ERR_DEADLINE, 0);
}

void group_finish_ending(struct group *g)
{
    if (g->has_ender)
        pthread_join(g->ender, NULL);
    else if (atomic_load(&g->ended))
        ender_main(g);
    g->has_ender = 0;
}

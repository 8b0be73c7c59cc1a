/* How a group ends. MPI cannot cancel what has begun, but for receives: their works are completed when MPI has finished
 * with their buffers, or else by the core, a second later. The rank that ends a group tells the others by a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum { CHECK_NS = 1000000000, CHECK_MAX = 16, TELL_NS = 200000000, LET_GO_NS = 1000000000 };

/* ---- Telling ---- */

void group_listen(struct group *g)
{
    g->heard = MPI_REQUEST_NULL;
    if (g->info->size > 1 && mpi.Irecv(g->heard_text, END_BYTES, MPI_BYTE, MPI_ANY_SOURCE, TAG_END, g->own,
                                       &g->heard) != MPI_SUCCESS)
        g->heard = MPI_REQUEST_NULL;
}

/* What is known when the group ends: another backend of this rank's may have lost it. -1: none. */
static int lost_rank(const struct group *g)
{
    if (g->lost >= 0)
        return g->lost;
    for (int rank = 0; rank < g->info->size; rank++)
        if (host->rank_is_lost(g->info->token, g->info->world_ranks[rank]))
            return rank;
    return -1;
}

void group_tell(struct group *g)
{
    comm_status status = atomic_load(&g->ended);
    if (g->told || g->info->size == 1)
        return;
    g->told = 1;
    if (status == COMM_ERR_PEER_LOST)
        g->lost = lost_rank(g);
    g->tellings = calloc((size_t)g->info->size, sizeof *g->tellings);
    if (!g->tellings)
        return;
    snprintf(g->end_text, sizeof g->end_text, "%d %d %s", status, g->lost, g->ended_text);
    mpi_lock();
    for (int r = 0; r < g->info->size; r++) {
        g->tellings[r] = MPI_REQUEST_NULL;
        if (r != g->info->rank &&
            mpi.Isend(g->end_text, END_BYTES, MPI_BYTE, r, TAG_END, g->own, &g->tellings[r]) != MPI_SUCCESS)
            g->tellings[r] = MPI_REQUEST_NULL;
    }
    mpi_unlock();
}

void flight_cancel(struct flight *f)
{
    mpi_lock();
    for (int i = f->done_count; i < f->receive_count && i < f->request_count; i++)
        mpi.Cancel(&f->requests[i]);
    mpi_unlock();
}

void group_end(struct group *g, comm_status status, const char *text, struct finished_list *list)
{
    if (atomic_load(&g->ended))
        return;
    snprintf(g->ended_text, sizeof g->ended_text, "%s", text && *text ? text : "no reason was given");
    atomic_store(&g->ended, status);
    if (status == COMM_ERR_PEER_LOST && g->state == COMMUNICATOR_READY)
        start_leak(); /* to finalise MPI would be to wait for that rank */
    while (g->queued)
        finished_add(list, g->queued);
    for (struct flight *f = g->pending; f; f = f->next)
        if (!f->is_busy)
            flight_cancel(f);
    if (g->state == COMMUNICATOR_READY)
        group_tell(g);
    pthread_cond_broadcast(&g->changed);
}

void group_look(struct group *g, struct finished_list *list)
{
    int is_over = 0;
    MPI_Status received;
    if (g->state != COMMUNICATOR_READY || g->heard == MPI_REQUEST_NULL || atomic_load(&g->ended))
        return;
    mpi_lock();
    int error = mpi.Test(&g->heard, &is_over, &received);
    mpi_unlock();
    if (error != MPI_SUCCESS || !is_over)
        return;
    /* What that rank sent before may be here: an operation that it completes was not cut off by the end. */
    poll_sweep(g, list);
    if (g->begun && !g->begun->is_busy)
        flight_advance(g->begun);
    char *text;
    g->heard_text[END_BYTES - 1] = '\0';
    comm_status status = status_that_ends((comm_status)strtol(g->heard_text, &text, 10));
    int lost = (int)strtol(text, &text, 10);
    g->told = 1;
    if (lost >= 0 && lost < g->info->size)
        host->rank_lost(g->info->token, g->info->world_ranks[lost], text + (*text == ' '));
    group_end(g, status, text + (*text == ' '), list);
    host->group_failed(g->info->token, status, g->ended_text);
}

/* ---- Ranks that are gone ---- */

/* Whether the oldest operation can need that rank; of those with a root only some ranks are known to be needed. */
static int is_needed(const struct flight *f, int rank, int self)
{
    const comm_op_traits *traits = comm_op_traits_of(f->op.kind);
    if (traits->traits & COMM_OP_TRAIT_PEER)
        return f->op.root == rank;
    if (traits->traits & COMM_OP_TRAIT_ROOTED)
        return self == f->op.root || rank == f->op.root;
    return 1;
}

/* The next one that `f` needs; NULL: that the communicators do, which take all. -1: none. */
static int next_rank(struct group *g, const struct flight *f)
{
    int size = g->info->size;
    for (int i = 0; i < size; i++) {
        int rank = (g->checked_rank + i) % size;
        if (rank != g->info->rank && (!f || is_needed(f, rank, g->info->rank))) {
            g->checked_rank = rank + 1;
            return rank;
        }
    }
    return -1;
}

/* Since when the communicators are waited for; 0: they are not. */
static int64_t connecting_ns(const struct group *g)
{
    return g->state != COMMUNICATOR_CONNECTING ? 0 : g->queued ? g->queued->began_ns : g->connect_ns;
}

static int is_idle(const struct group *g)
{
    return atomic_load(&g->ended) || (!g->pending && !connecting_ns(g));
}

static int find_suspect(struct group *g, int64_t now_ns)
{
    int64_t since_ns = connecting_ns(g);
    int rank = -1;
    if (is_idle(g))
        return -1;
    if (since_ns)
        return now_ns - since_ns < CHECK_NS ? -1 : next_rank(g, NULL);
    for (const struct flight *f = g->pending; f && rank < 0 && now_ns - f->began_ns >= CHECK_NS; f = f->next)
        rank = next_rank(g, f);
    return rank;
}

static void lose(struct group *g, int rank, const char *why)
{
    struct finished_list list;
    char who[64], text[TEXT_BYTES];
    finished_begin(&list);
    say_rank(g, rank, who, sizeof who);
    snprintf(text, sizeof text, "%s is lost: %.900s", who, why);
    host->rank_lost(g->info->token, g->info->world_ranks[rank], why);
    start_leak(); /* to finalise MPI would be to wait for that rank */
    pthread_mutex_lock(&g->lock);
    g->lost = rank;
    group_end(g, COMM_ERR_PEER_LOST, text, &list);
    pthread_mutex_unlock(&g->lock);
    finished_complete(&list);
    host->group_failed(g->info->token, COMM_ERR_PEER_LOST, text);
}

/* Whether an operation needs that rank, which has closed its world after so many collectives. */
static int is_missed(struct group *g, int rank, uint64_t count)
{
    int missed = 0, is_oldest = 1;
    int64_t now_ns = host->now_ns();
    pthread_mutex_lock(&g->lock);
    for (const struct flight *f = g->pending; f && !missed; f = f->next) {
        if (f->number == 0)
            missed = now_ns - f->began_ns > CHECK_NS && is_needed(f, rank, g->info->rank);
        else if (is_oldest)
            missed = f->number > count;
        is_oldest &= f->number == 0;
    }
    pthread_mutex_unlock(&g->lock);
    return missed;
}

/* Whether a rank that is gone is lost; `why` may become a better reason. */
static int is_lost(struct group *g, int rank, char why[TEXT_BYTES])
{
    uint64_t count;
    char self[64];
    if (!note_read(g, rank, &count))
        return 1;
    if (!is_missed(g, rank, count))
        return 0;
    say_rank(g, g->info->rank, self, sizeof self);
    snprintf(why, TEXT_BYTES, "it has closed its world before %s was done with it", self);
    return 1;
}

/* A rank counts as lost when it was gone at two looks, with the same operations still under way: what it sent before it
 * went must be given time to arrive. */
void group_check_ranks(struct group *g)
{
    int64_t now_ns = host->now_ns();
    if (now_ns - g->checked_ns < CHECK_NS)
        return;
    g->checked_ns = now_ns;
    for (int i = 0; i < CHECK_MAX && i < g->info->size; i++) {
        pthread_mutex_lock(&g->lock);
        int rank = g->suspect >= 0 ? g->suspect : find_suspect(g, now_ns);
        int is_over = is_idle(g);
        pthread_mutex_unlock(&g->lock);
        if (rank < 0 || is_over) {
            g->suspect = -1;
            return;
        }
        if (host->rank_check(g->info->token, g->info->world_ranks[rank]) == COMM_OK) {
            g->suspect = -1;
            continue;
        }
        if (g->suspect == rank) {
            g->suspect = -1;
            char why[TEXT_BYTES];
            snprintf(why, sizeof why, "%s", host->last_error());
            if (!is_lost(g, rank, why))
                continue;
            lose(g, rank, why);
            return;
        }
        g->suspect = rank;
        return;
    }
}

/* ---- Closing ---- */

static void wait_for_tellings(struct group *g)
{
    int64_t until_ns = host->now_ns() + TELL_NS;
    int left = g->tellings != NULL;
    while (left && host->now_ns() < until_ns) {
        left = 0;
        mpi_lock();
        for (int r = 0; r < g->info->size; r++) {
            int is_over = 1;
            if (g->tellings[r] != MPI_REQUEST_NULL && mpi.Test(&g->tellings[r], &is_over, MPI_STATUS_IGNORE) ==
                                                          MPI_SUCCESS)
                left |= !is_over;
        }
        mpi_unlock();
        if (left)
            pause_for(100000);
    }
    if (left) {
        start_leak();
        return; /* MPI may still read them */
    }
    free(g->tellings);
    g->tellings = NULL;
}

static void stop_listening(struct group *g)
{
    int is_over = 0;
    if (g->heard == MPI_REQUEST_NULL)
        return;
    mpi_lock();
    mpi.Cancel(&g->heard);
    for (int i = 0; i < 1000 && !is_over; i++)
        if (mpi.Test(&g->heard, &is_over, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            break;
    mpi_unlock();
    if (!is_over && g->heard != MPI_REQUEST_NULL)
        start_leak();
}

void group_let_go(struct group *g)
{
    struct finished_list list;
    int64_t until_ns = host->now_ns() + LET_GO_NS;
    char text[TEXT_BYTES];
    finished_begin(&list);
    pthread_mutex_lock(&g->lock);
    while (g->pending && host->now_ns() < until_ns) {
        struct flight *next;
        for (struct flight *f = g->pending; f; f = next) {
            next = f->next;
            if (flight_advance(f))
                finished_add(&list, f);
        }
        pthread_mutex_unlock(&g->lock);
        finished_complete(&list);
        if (g->pending)
            pause_for(200000);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    if (g->pending) {
        snprintf(text, sizeof text, "mpi: %s of a group that is closed has not ended, and MPI cannot cancel it: its "
                 "buffers stay in use, and MPI is not finalised at exit", host->op_name(g->pending->op.kind));
        host->log(COMM_LOG_WARN, text);
        start_leak();
    }
    wait_for_tellings(g);
    stop_listening(g);
    mpi_lock();
    match_drop(g);
    mpi_unlock();
}

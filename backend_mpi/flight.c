/* An operation from submission until MPI is past it.
 *
 * The collectives of a communicator must be called in one order on all ranks: a flight calls one when it is issued, and
 * from then on only exchanges messages, with a tag of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

static int is_peer(const comm_op *op)
{
    return op->kind == COMM_OP_SEND || op->kind == COMM_OP_RECV;
}

static int is_reduction(const comm_op *op)
{
    return op->kind == COMM_OP_ALL_REDUCE || op->kind == COMM_OP_REDUCE || op->kind == COMM_OP_REDUCE_SCATTER;
}

/* ---- Making and freeing ---- */

static struct flight *flight_make(struct group *g, const comm_op *op, comm_work *work)
{
    struct flight *f = g->free;
    if (f)
        g->free = f->next;
    else
        f = malloc(sizeof *f);
    if (!f) {
        fail(COMM_ERR_NO_MEMORY, "an operation");
        return NULL;
    }
    memset(f, 0, offsetof(struct flight, op));
    memset((char *)f + offsetof(struct flight, few), 0, sizeof *f - offsetof(struct flight, few));
    f->group = g;
    f->work = work;
    f->received.MPI_SOURCE = -1;
    f->requests = f->few;
    f->request_capacity = FEW_REQUESTS;
    comm_op_copy(&f->op, op);
    return f;
}

static void let_go_of_memory(struct flight *f)
{
    mpi_lock();
    for (int i = 0; i < f->type_count; i++)
        mpi.Type_free(&f->types[i]);
    mpi_unlock();
    for (int i = 0; i < f->block_count; i++)
        free(f->blocks[i]);
    if (f->requests != f->few)
        free(f->requests);
    free(f->types);
    free(f->text);
}

/* The group's lock is held. */
void flight_free(struct flight *f)
{
    if (f->type_count || f->block_count || f->requests != f->few || f->types || f->text)
        let_go_of_memory(f);
    f->next = f->group->free;
    f->group->free = f;
}

void flights_free(struct group *g)
{
    struct flight *f;
    while ((f = g->free)) {
        g->free = f->next;
        free(f);
    }
}

static void append(struct flight ***end, struct flight *f)
{
    f->next = NULL;
    f->at = *end;
    **end = f;
    *end = &f->next;
}

void flight_unlink(struct flight *f)
{
    struct group *g = f->group;
    *f->at = f->next;
    if (f->next)
        f->next->at = f->at;
    else if (g->pending_end == &f->next)
        g->pending_end = f->at;
    else
        g->queued_end = f->at;
}

/* ---- Issuing ---- */

/* The other ranks go on with it. */
static void note_failure(struct flight *f, comm_status status)
{
    f->status = status_that_ends(status);
    f->text = strdup(host->last_error());
    f->then = NULL;
}

void flight_fail(struct flight *f)
{
    note_failure(f, COMM_ERR_BACKEND);
}

int flight_is_truncated(const struct flight *f)
{
    return f->received_bytes > f->op.recv.count * f->op.element_bytes;
}

static comm_status refuse_tag(const struct flight *f)
{
    int most = start_tag_max();
    if (!is_peer(&f->op) || most < 0 || f->op.tag <= most)
        return COMM_OK;
    return fail(COMM_ERR_UNSUPPORTED, "tag %d: this MPI's tags end at %d (MPI_TAG_UB)", f->op.tag, most);
}

/* The flight is in `pending` from here on. */
static void issue(struct flight *f)
{
    struct group *g = f->group;
    append(&g->pending_end, f);
    f->is_issued = 1;
    f->number = is_peer(&f->op) ? 0 : ++g->collectives;
    comm_status status = refuse_tag(f); /* where it was not known when the op was submitted */
    if (status != COMM_OK) {
        f->status = status;
        f->text = strdup(host->last_error());
        return;
    }
    mpi_lock();
    status = issue_op(f);
    mpi_unlock();
    if (status != COMM_OK)
        note_failure(f, status);
}

void flights_issue_queued(struct group *g)
{
    struct flight *f;
    while ((f = g->queued)) {
        flight_unlink(f);
        issue(f);
    }
}

/* ---- Submission ---- */

static comm_status attach_begun(struct group *g, const comm_op *op, comm_work *work)
{
    struct flight *f = g->begun;
    g->begun = NULL;
    if (!f)
        return fail(COMM_ERR_BUG, "no operation has begun");
    f->work = work;
    f->op.timeout_ns = op->timeout_ns;
    f->is_begun = 0;
    f->waited_ns = f->began_ns;
    *host->work_slot(work) = f;
    return COMM_OK;
}

static void free_list(struct flight *first)
{
    while (first) {
        struct flight *next = first->next;
        flight_free(first);
        first = next;
    }
}

comm_status flights_submit(struct group *g, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct flight *first = NULL, **end = &first, *next;
    comm_status status = COMM_OK;
    if (ops[0]->flags & COMM_OP_FLAG_BEGUN)
        return attach_begun(g, ops[0], works[0]);
    for (size_t i = 0; i < count && status == COMM_OK; i++) {
        struct flight *f = flight_make(g, ops[i], works[i]);
        if (f)
            append(&end, f);
        status = f ? refuse_tag(f) : COMM_ERR_NO_MEMORY;
    }
    if (status != COMM_OK) {
        free_list(first);
        return status;
    }
    int64_t now_ns = host->now_ns();
    for (struct flight *f = first; f; f = next) {
        next = f->next;
        f->began_ns = now_ns;
        f->waited_ns = f->op.flags & COMM_OP_FLAG_WAITING ? now_ns : 0;
        *host->work_slot(f->work) = f;
        if (g->state != COMMUNICATOR_READY)
            append(&g->queued_end, f);
        else
            issue(f);
    }
    return COMM_OK;
}

/* ---- Ending ---- */

/* MPI is locked. */
static int is_done(struct flight *f)
{
    struct group *g = f->group;
    if (f->is_unmatched)
        match_arrivals(g);
    if (f->is_unmatched && atomic_load(&g->ended)) {
        f->is_unmatched = 0;
        g->unmatched--;
    }
    if (f->is_unmatched)
        return 0;
    MPI_Status *status = f->op.kind == COMM_OP_RECV && f->op.tag < COMM_ANY_TAG ? &f->received : MPI_STATUS_IGNORE;
    while (f->done_count < f->request_count) {
        int is_over = 0, error = mpi.Test(&f->requests[f->done_count], &is_over, status);
        if (error != MPI_SUCCESS) {
            f->mpi_error = f->mpi_error ? f->mpi_error : error;
            is_over = 1;
        }
        if (!is_over)
            return 0;
        f->done_count++;
    }
    return 1;
}

int flight_advance(struct flight *f)
{
    struct group *g = f->group;
    for (;;) {
        mpi_lock();
        int over = is_done(f);
        mpi_unlock();
        if (!over)
            return 0;
        comm_status (*then)(struct flight *) = f->then;
        f->is_whole |= !then && !atomic_load(&g->ended);
        if (!then || f->mpi_error || atomic_load(&g->ended))
            return 1;
        f->then = NULL;
        f->request_count = f->done_count = f->receive_count = 0;
        f->is_busy = 1;
        pthread_mutex_unlock(&g->lock);
        comm_status status = then(f);
        pthread_mutex_lock(&g->lock);
        f->is_busy = 0;
        if (status != COMM_OK)
            note_failure(f, status);
        if (atomic_load(&g->ended))
            flight_cancel(f);
    }
}

/* ---- At once, in the call ---- */

/* A function of the user's is not called while the core holds its locks. */
static int can_run(const struct group *g, const comm_op *op)
{
    return g->state == COMMUNICATOR_READY && !atomic_load(&g->ended) && !g->begun &&
           !(is_reduction(op) && op->redop == COMM_REDOP_USER);
}

static int is_over_within(struct flight *f, int64_t spin_ns)
{
    int64_t until_ns = 0;
    for (;;) {
        for (int i = 0; i < 8; i++)
            if (flight_advance(f))
                return 1;
        int64_t now_ns = host->now_ns();
        until_ns = until_ns ? until_ns : now_ns + spin_ns;
        if (now_ns >= until_ns)
            return 0;
    }
}

comm_status flight_run(struct group *g, const comm_op *op, int64_t spin_ns)
{
    struct flight *f = can_run(g, op) ? flight_make(g, op, NULL) : NULL;
    if (!f || refuse_tag(f) != COMM_OK) {
        if (f)
            flight_free(f);
        return COMM_ERR_UNSUPPORTED;
    }
    f->is_begun = 1;
    issue(f);
    host->run_waits();
    int is_over = f->status == COMM_OK && is_over_within(f, spin_ns);
    /* Not whole: the group has ended while `then` ran, and what that began was cut off. */
    if (is_over && f->is_whole && f->status == COMM_OK && f->mpi_error == MPI_SUCCESS && !flight_is_truncated(f)) {
        flight_unlink(f);
        flight_free(f);
        return COMM_OK;
    }
    f->began_ns = host->now_ns();
    g->begun = f;
    return COMM_IN_PROGRESS;
}

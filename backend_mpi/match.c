/* Receives of the user's. Messages are taken from MPI one after the other, as MPI_Improbe gives them, and matched with
 * the receives here. So their lengths are known before they are received: MPI may not say how long a message was that
 * did not fit, and Open MPI writes behind the buffer then. The data itself stays with MPI until it has a place. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

struct arrival {
    struct arrival *next;
    MPI_Message message;
    MPI_Status status;
};

static int fits(const struct flight *f, const MPI_Status *status)
{
    const comm_op *op = &f->op;
    return (op->root == COMM_ANY_SOURCE || op->root == status->MPI_SOURCE) &&
           (op->tag == COMM_ANY_TAG || op->tag == status->MPI_TAG);
}

static size_t bytes_of(const MPI_Status *status)
{
    MPI_Count bytes = 0;
    return mpi.Get_elements_x(status, MPI_BYTE, &bytes) == MPI_SUCCESS && bytes > 0 ? (size_t)bytes : 0;
}

static comm_status keep_what_fits(struct flight *f)
{
    memcpy(f->op.recv.data, f->scratch, f->op.recv.count * f->op.element_bytes);
    return COMM_OK;
}

static comm_status take(struct flight *f, MPI_Message *message, const MPI_Status *status)
{
    static char nothing[16];
    size_t bytes = bytes_of(status), capacity = f->op.recv.count * f->op.element_bytes;
    char *to = f->op.recv.data ? f->op.recv.data : nothing;
    int count;
    MPI_Datatype type;
    f->is_unmatched = 0;
    f->received = *status;
    f->received_bytes = bytes;
    if (bytes > capacity) {
        to = f->scratch = flight_memory(f, bytes);
        f->then = capacity ? keep_what_fits : NULL;
    }
    comm_status described = to ? counted(f, bytes, &count, &type) : COMM_ERR_NO_MEMORY;
    MPI_Request *request = described == COMM_OK ? request_next(f) : NULL;
    if (!request)
        return described != COMM_OK ? described : COMM_ERR_NO_MEMORY;
    int error = mpi.Imrecv(to, count, type, message, request);
    if (error != MPI_SUCCESS)
        f->request_count--;
    return fail_mpi(error, "MPI_Imrecv");
}

comm_status match_posted(struct flight *f)
{
    struct group *g = f->group;
    for (struct arrival **at = &g->arrivals; *at; at = &(*at)->next) {
        struct arrival *a = *at;
        if (!fits(f, &a->status))
            continue;
        comm_status status = take(f, &a->message, &a->status);
        *at = a->next;
        if (!*at)
            g->arrivals_end = at;
        free(a);
        return status;
    }
    f->is_unmatched = 1;
    g->unmatched++;
    return COMM_OK;
}

/* Is there memory for a message that no receive fits yet? It is asked for before MPI gives the message. What MPI has
 * given cannot be given back: it would be lost, and a later one taken in its place. */
static int has_spare(struct group *g)
{
    if (!g->spare)
        g->spare = malloc(sizeof *g->spare);
    return g->spare != NULL;
}

/* No receive fits yet. */
static void keep(struct group *g, MPI_Message message, const MPI_Status *status)
{
    struct arrival *a = g->spare;
    g->spare = NULL;
    a->next = NULL;
    a->message = message;
    a->status = *status;
    *g->arrivals_end = a;
    g->arrivals_end = &a->next;
}

static struct flight *first_unmatched(const struct group *g, const MPI_Status *fitting)
{
    struct flight *f = g->pending;
    while (f && !(f->is_unmatched && (!fitting || fits(f, fitting))))
        f = f->next;
    return f;
}

static void fail_unmatched(struct group *g)
{
    struct flight *f;
    fail(COMM_ERR_NO_MEMORY, "no memory to look for the message of a receive: messages that no receive fits have to be "
         "kept");
    while ((f = first_unmatched(g, NULL))) {
        f->is_unmatched = 0;
        flight_fail(f);
    }
    g->unmatched = 0;
}

void match_arrivals(struct group *g)
{
    int is_there = 1;
    while (g->unmatched > 0 && is_there) {
        MPI_Message message;
        MPI_Status status;
        if (!has_spare(g)) {
            fail_unmatched(g);
            return;
        }
        if (mpi.Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, g->comm, &is_there, &message, &status) != MPI_SUCCESS || !is_there)
            return;
        struct flight *f = first_unmatched(g, &status);
        if (!f) {
            keep(g, message, &status);
            continue;
        }
        g->unmatched--;
        if (take(f, &message, &status) != COMM_OK)
            flight_fail(f);
    }
}

static void discard(MPI_Message *message, const MPI_Status *status)
{
    MPI_Request request;
    size_t bytes = bytes_of(status);
    char *to = bytes <= INT_MAX ? malloc(bytes + 1) : NULL;
    int is_over = 0;
    if (to && mpi.Imrecv(to, (int)bytes, MPI_BYTE, message, &request) == MPI_SUCCESS)
        for (int i = 0; i < 1000 && !is_over; i++)
            if (mpi.Test(&request, &is_over, MPI_STATUS_IGNORE) != MPI_SUCCESS)
                break;
    if (is_over)
        free(to);
    else
        start_leak(); /* MPI may still write to it */
}

/* Closing: what was sent and never received is received now, so that the sender is not left with it. */
void match_drop(struct group *g)
{
    struct arrival *a;
    while ((a = g->arrivals)) {
        g->arrivals = a->next;
        discard(&a->message, &a->status);
        free(a);
    }
    free(g->spare);
    g->spare = NULL;
}

/* The same before a communicator is freed: MPICH would give what is left to the next one that gets its number. */
void match_discard(MPI_Comm comm)
{
    int is_there = 1;
    while (is_there) {
        MPI_Message message;
        MPI_Status status;
        if (mpi.Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &is_there, &message, &status) != MPI_SUCCESS)
            return;
        if (is_there)
            discard(&message, &status);
    }
}

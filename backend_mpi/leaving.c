/* Communicators of closed groups. A member that has closed its group may still be needed by MPI: what it has sent can
 * wait for it to go on with it. So the members tell each other that they have closed the group, by an MPI_Ibarrier on
 * libcomm's own communicator, and the communicators are freed when it is over. Closing the world waits for that for a
 * while, and finalising MPI for as long as it takes. */
#include <stdlib.h>

#include "state.h"

struct leaving {
    struct leaving *next;
    const struct world *world;
    MPI_Comm comm, own;
    MPI_Request request;
    int is_over, has_ended;
};

enum { PAUSE_NS = 100000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct leaving *all;

/* `keeps`: MPI still uses the communicators. */
void leaving_add(struct group *g, int keeps)
{
    struct leaving *l = g->info->size > 1 ? malloc(sizeof *l) : NULL;
    mpi_lock();
    if (!l) {
        if (!keeps) {
            mpi.Comm_free(&g->own);
            mpi.Comm_free(&g->comm);
        }
        mpi_unlock();
        return;
    }
    *l = (struct leaving){ .world = g->world, .comm = g->comm, .own = g->own, .has_ended = atomic_load(&g->ended) };
    int error = mpi.Ibarrier(g->own, &l->request);
    mpi_unlock();
    if (error != MPI_SUCCESS || keeps) {
        start_leak(); /* with `keeps`, the request is MPI's: it is not tested any more */
        free(l);
        return;
    }
    pthread_mutex_lock(&lock);
    l->next = all;
    all = l;
    pthread_mutex_unlock(&lock);
}

/* Free those that all have left. Not those of a group that has ended: its operations have left messages that may be
 * on their way still, and the number must not be given to another communicator. Returns whether there are more, of that
 * world or (NULL) of any. */
static int look(const struct world *w)
{
    int left = 0;
    pthread_mutex_lock(&lock);
    for (struct leaving **at = &all; *at;) {
        struct leaving *l = *at;
        mpi_lock();
        if (mpi.Test(&l->request, &l->is_over, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            l->is_over = 0;
        if (l->is_over && !l->has_ended) {
            match_discard(l->comm);
            match_discard(l->own);
            mpi.Comm_free(&l->own);
            mpi.Comm_free(&l->comm);
        }
        mpi_unlock();
        if (l->is_over) {
            *at = l->next;
            free(l);
            continue;
        }
        left |= !w || l->world == w;
        at = &l->next;
    }
    pthread_mutex_unlock(&lock);
    return left;
}

void leaving_look(void)
{
    look(NULL);
}

void leaving_wait(const struct world *w, int64_t until_ns)
{
    while (look(w) && host->now_ns() < until_ns)
        pause_for(PAUSE_NS);
}

/* The lifelines of joining (lifeline.c) stay open if the world has a backend without NOTICES_LOSS. A check connects to
 * the rank's lifeline, or looks at the connection of an earlier check: it ends with the process. The rank does not
 * accept, so each connection is kept. */
#include "rank_check.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "group.h"
#include "lifeline.h"

struct lifelines {
    struct lifeline own;
    struct watch *watches; /* [size] of ranks that were checked; NULL until the first check */
    int32_t size;
    pthread_mutex_t lock; /* guards the watches */
    struct lifelines *next, **at;
};

/* All that are open. A child of fork() closes its copies: else the others would think that its parent lives on. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lifelines *all;

enum { CONNECT_NS = 100000000, LOOK_MS = 5 };

static const char owner[] = "core"; /* of the note on the card; no backend can have this name */

static void key_of(int32_t rank, char key[32])
{
    snprintf(key, 32, "lifeline.%d", rank);
}

static int is_needed(const struct world *world)
{
    int needed = 0;
    for (size_t i = 0; i < world->backend_count; i++)
        needed |= !(world->backends[i].choice.backend->traits & COMM_BACKEND_NOTICES_LOSS);
    return needed && world->size > 1;
}

static void close_descriptors(struct lifelines *l)
{
    for (int32_t rank = 0; l->watches && rank < l->size; rank++)
        comm__watch_end(&l->watches[rank]);
    comm__lifeline_close(&l->own);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    for (struct lifelines *l = all; l; l = l->next)
        close_descriptors(l);
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void enlist(struct lifelines *l)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    l->next = all;
    l->at = &all;
    if (all)
        all->at = &l->next;
    all = l;
    pthread_mutex_unlock(&lock);
}

static void delist(struct lifelines *l)
{
    pthread_mutex_lock(&lock);
    *l->at = l->next;
    if (l->next)
        l->next->at = l->at;
    pthread_mutex_unlock(&lock);
}

void comm__lifelines_keep(struct world *world, struct lifeline *joined)
{
    char key[32];
    struct lifelines *l = is_needed(world) && joined->listener >= 0 ? calloc(1, sizeof *l) : NULL;
    if (!l)
        return;
    pthread_mutex_init(&l->lock, NULL);
    l->size = world->size;
    l->own = *joined;
    joined->listener = -1;
    enlist(l);
    key_of(world->rank, key);
    comm__cards_note(&world->cards, owner, key, l->own.endpoint, strlen(l->own.endpoint));
    world->lifelines = l;
}

void comm__lifelines_finish(struct world *world)
{
    struct lifelines *l = world->lifelines;
    if (!l)
        return;
    delist(l);
    close_descriptors(l);
    free(l->watches);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void begin(struct world *world, int32_t rank, struct watch *w)
{
    char key[32];
    void *endpoint;
    size_t bytes;
    key_of(rank, key);
    if (comm__cards_find(&world->cards, owner, key, &endpoint, &bytes) != COMM_OK)
        return;
    comm__watch_begin(w, endpoint);
    free(endpoint);
}

static int has_ended(struct watch *w)
{
    int64_t until_ns = clock_now_ns() + CONNECT_NS;
    for (;;) {
        if (comm__watch_look(w) || comm__watch_refused(w))
            return 1;
        if (!w->begun || w->connected || clock_now_ns() > until_ns)
            return 0;
        poll(NULL, 0, LOOK_MS);
    }
}

comm_status comm__rank_check(struct world *world, int32_t rank)
{
    struct lifelines *l = world->lifelines;
    int ended = 0;
    if (!l || rank < 0 || rank >= world->size || rank == world->rank)
        return COMM_OK;
    pthread_mutex_lock(&l->lock);
    if (!l->watches)
        l->watches = calloc((size_t)world->size, sizeof *l->watches);
    if (l->watches) {
        struct watch *w = &l->watches[rank];
        if (!w->begun)
            begin(world, rank, w);
        ended = has_ended(w);
    }
    pthread_mutex_unlock(&l->lock);
    return ended ? comm__fail(COMM_ERR_PEER_LOST, "its process has ended, or it has closed its world") : COMM_OK;
}

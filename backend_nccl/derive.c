/* A communicator that is made of the parent's (from_parent=1), and how the ranks agree on it.
 *
 * ncclCommSplit and ncclCommShrink are collectives of the parent's communicator: all ranks must come to them in the
 * same order, among each other and among its operations. Else NCCL takes one group's call for another's. No order of a
 * program's calls promises that, as groups are independent: two threads can make and first use them in any order. So
 * the ranks vote, by the store:
 *
 *   from.CALL.NUMBER.GIVEN.WINDOWS   how many ranks could split the parent's NUMBERth communicator at this place in its
 *                                    order, and how many have taken that back (TAKEN_BACK each); CALL made the group
 *   way.CALL                         the result: "parent", or "id" if the groups of that call connect by unique ids
 *   read.CALL                        how many ranks know it
 *
 * A rank offers its parent's communicator when nothing is under way there, in the device's streams neither: NCCL
 * allows no outstanding operations of a communicator that is split, as a deadlock could follow. (Of graphs that were
 * captured nobody knows here when they run.) It is offered to one child at a time; until the result is known, what is
 * submitted to it is queued. So the calls that are decided for the parent come in one order on all ranks. (If rank A
 * did X before it voted on Y, and rank B did Y before it voted on X, each needed the other's vote before its own.) It
 * is "parent" when all ranks have voted at one place, as the last of them says. A rank that has no such communicator,
 * or takes it back because others want it, or the other ranks have not come within PATIENCE_NS or a quarter of the
 * smallest limit that waits, says "id", unless all have voted already. So no rank waits here for one that does not
 * come, and an id is always right.
 *
 * The last rank that knows the result deletes it. One that never uses its group leaves way and read, two keys. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "nccl.h"

enum {
    LOOK_NS = 1000000,
    PATIENCE_NS = 2000000000,
    LAST_WORD_NS = 1000000000, /* after the group's end, for the rank that has voted last to say so */
    CHILD_LOOK_NS = 5000000,
    ASK_FIRST_MS = 4,
    ASK_LAST_MS = 20, /* so long may the parent be kept from who wants it */
};
#define TAKEN_BACK ((int64_t)1 << 32)
#define VOTES(count) ((count) & (TAKEN_BACK - 1))

/* By what all ranks know alike: could NCCL make it of the parent's? */
static int can_be_derived(const struct communicator *c)
{
    const struct group *g = c->group;
    if (!g->call || c->source >= 0 || c->number > 0)
        return 0;
    if (g->info->excluded_count > 0)
        return nccl.CommShrink != NULL;
    return !g->blocking || g->share; /* what is split from a root shares its flag of abort */
}

/* ---- The parent's communicator ---- */

/* Of the same device, with the locks of the world, which keeps the parent open, and of the parent. NULL, and no lock:
 * there is none. */
static struct communicator *lock_parents(const struct communicator *c)
{
    struct world *w = c->group->world;
    pthread_mutex_lock(&w->lock);
    struct group *parent = c->group->parent;
    if (parent) {
        pthread_mutex_lock(&parent->lock);
        for (struct communicator *p = parent->communicators; p && !atomic_load(&parent->ended); p = p->next)
            if (p->source < 0 && p->device == c->device)
                return p;
        pthread_mutex_unlock(&parent->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void unlock_parents(const struct communicator *c, struct communicator *p)
{
    pthread_mutex_unlock(&p->group->lock);
    pthread_mutex_unlock(&c->group->world->lock);
}

enum offer { OFFER_NONE, OFFER_LATER, OFFER_MADE };

static enum offer try_to_offer(const struct communicator *c, char place[KEY_BYTES])
{
    enum offer offer = OFFER_LATER;
    struct communicator *p = lock_parents(c);
    if (!p)
        return OFFER_NONE;
    if (p->group->is_closing || (c->group->info->excluded_count > 0 && !c->group->excluded)) {
        offer = OFFER_NONE;
    } else if (p->state == COMMUNICATOR_READY && !p->wanted && flights_wait_for_device(p->pending.first, 0)) {
        p->voter = c;
        communicator_hold(p);
        snprintf(place, KEY_BYTES, "from.%" PRIx64 ".%d.%" PRIu64 ".%d", c->group->call, p->number, p->given,
                 p->windows);
        offer = OFFER_MADE;
    }
    unlock_parents(c, p);
    return offer;
}

static int is_wanted(const struct communicator *c)
{
    struct communicator *p = lock_parents(c);
    if (!p)
        return 1;
    int wanted = p->wanted || p->queued.first || p->group->is_closing;
    unlock_parents(c, p);
    return wanted;
}

static void end_offer(const struct communicator *c)
{
    struct communicator *p = lock_parents(c);
    if (!p)
        return; /* its end has come, and needs nothing of it */
    if (p->voter == c) {
        p->voter = NULL;
        communicator_give_back(p);
    }
    unlock_parents(c, p);
}

/* It stays until it is given back. NULL: it has gone since it was offered. */
static struct communicator *borrow(const struct communicator *c)
{
    struct communicator *p = lock_parents(c), *borrowed = NULL;
    if (!p)
        return NULL;
    if (p->voter == c) {
        p->voter = NULL;
        communicator_borrow(p);
        borrowed = p;
    }
    unlock_parents(c, p);
    return borrowed;
}

/* ---- The vote: on the communicator's thread, without locks ---- */

static void key_of_way(const struct communicator *c, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "way.%" PRIx64, c->group->call);
}

static comm_status say(const struct communicator *c, int by_parent)
{
    char key[KEY_BYTES];
    const char *way = by_parent ? "parent" : "id";
    key_of_way(c, key);
    return host->store_set(c->group->world->info->store, key, way, strlen(way));
}

void communicator_hurry(struct communicator *c, int64_t deadline_ns)
{
    if (c->connected)
        return;
    int64_t now_ns = host->now_ns(), decide_ns = now_ns + (deadline_ns - now_ns) / 4;
    if (decide_ns < atomic_load(&c->decide_ns)) /* set with the group's lock only */
        atomic_store(&c->decide_ns, decide_ns);
}

static int is_late(const struct communicator *c, int64_t began_ns)
{
    int64_t now_ns = host->now_ns();
    return now_ns > began_ns + PATIENCE_NS || now_ns > atomic_load(&c->decide_ns);
}

/* Until it is said which way, or this rank is the first to say "id". */
static comm_status await_way(const struct communicator *c, const char *place, int64_t began_ns, int *ret_by_parent)
{
    void *store = c->group->world->info->store, *way;
    char key[KEY_BYTES];
    int takes_back = 0;
    int64_t ask_ms = ASK_FIRST_MS, taken_back_ns = 0, votes;
    size_t bytes;
    comm_status status;
    key_of_way(c, key);
    /* Not as the group: after its end, too, as what all ranks have voted for needs this one. */
    while ((status = host->store_get(store, NULL, key, ask_ms, &way, &bytes)) == COMM_ERR_TIMEOUT) {
        int64_t now_ns = host->now_ns();
        int has_ended = atomic_load(&c->group->ended) != COMM_OK;
        if (takes_back && has_ended && now_ns > taken_back_ns + LAST_WORD_NS)
            return COMM_ERR_ABORTED;
        if (!takes_back && (has_ended || is_late(c, began_ns) || is_wanted(c))) {
            takes_back = 1;
            taken_back_ns = now_ns;
            status = host->store_add(store, place, TAKEN_BACK, &votes);
            if (status != COMM_OK || VOTES(votes) < c->group->callers)
                return status == COMM_OK ? say(c, 0) : status;
        }
        ask_ms = ask_ms * 5 / 4 < ASK_LAST_MS ? ask_ms * 5 / 4 : ASK_LAST_MS;
    }
    if (status != COMM_OK)
        return status;
    *ret_by_parent = bytes == strlen("parent");
    host->free_memory(way);
    return COMM_OK;
}

/* This rank has no more to say. Places differ if the result is "id", and each rank deletes its own: without its vote no
 * other one can come to be the last there. If it is "parent", the count is needed until all know. */
static void leave_vote(const struct communicator *c, const char *place, int by_parent)
{
    void *store = c->group->world->info->store;
    char key[KEY_BYTES];
    int64_t known;
    snprintf(key, KEY_BYTES, "read.%" PRIx64, c->group->call);
    if (!by_parent && *place)
        host->store_delete(store, place);
    if (host->store_add(store, key, 1, &known) != COMM_OK || known < c->group->callers)
        return;
    if (by_parent)
        host->store_delete(store, place);
    host->store_delete(store, key);
    key_of_way(c, key);
    host->store_delete(store, key);
}

static comm_status vote_at(const struct communicator *c, const char *place, int64_t began_ns, int *ret_by_parent)
{
    int64_t votes;
    comm_status status = host->store_add(c->group->world->info->store, place, 1, &votes);
    if (status == COMM_OK && votes == c->group->callers)
        status = say(c, 1);
    return status == COMM_OK ? await_way(c, place, began_ns, ret_by_parent) : status;
}

/* If *ret_by_parent is 1 then, all ranks come to the same call, and the parent's communicator is held for it. */
static comm_status vote(const struct communicator *c, int *ret_by_parent)
{
    char place[KEY_BYTES] = "";
    int64_t began_ns = host->now_ns();
    enum offer offer;
    *ret_by_parent = 0;
    while ((offer = try_to_offer(c, place)) == OFFER_LATER && !is_late(c, began_ns) &&
           !atomic_load(&c->group->ended))
        pause_for(LOOK_NS);
    comm_status status = offer == OFFER_MADE ? vote_at(c, place, began_ns, ret_by_parent) : say(c, 0);
    if (offer == OFFER_MADE && !*ret_by_parent)
        end_offer(c);
    if (status == COMM_OK)
        leave_vote(c, place, *ret_by_parent);
    return status;
}

/* ---- The call ---- */

/* Until NCCL is done with p->made, or a group that waits for it has ended. */
static nccl_status wait_for_child(const struct communicator *p, const struct group *child)
{
    nccl_status status = NCCL_IN_PROGRESS;
    while (status == NCCL_IN_PROGRESS && !atomic_load(&child->ended) && !atomic_load(&p->group->ended))
        status = communicator_wait_for_nccl(p, p->root, host->now_ns() + CHILD_LOOK_NS);
    return status;
}

/* NCCL's result goes to the parent's communicator, as this one may be gone before NCCL is done. */
static comm_status make_of_parents(struct communicator *c, nccl_config *config)
{
    struct group *g = c->group;
    int excluded_count = g->info->excluded_count;
    const char *call = excluded_count > 0 ? "ncclCommShrink" : "ncclCommSplit";
    struct communicator *p = borrow(c);
    if (!p)
        return fail(COMM_ERR_ABORTED, "%s: the group's parent has ended, or was closed, when all ranks were to make "
                    "the group's communicator of its (from_parent=1)", call);
    nccl_status status = excluded_count > 0
                             ? nccl.CommShrink(p->root, g->excluded, excluded_count, &p->made, config,
                                               NCCL_SHRINK_DEFAULT)
                             : nccl.CommSplit(p->root, g->color, c->rank, &p->made, config);
    int in_progress = status == NCCL_IN_PROGRESS;
    if (in_progress)
        status = wait_for_child(p, g);
    comm_status result = status == NCCL_OK ? COMM_OK : status == NCCL_IN_PROGRESS ? COMM_ERR_ABORTED
                                                                                  : fail_nccl(p, status, call);
    if (status == NCCL_IN_PROGRESS)
        fail(COMM_ERR_ABORTED, "%s: the group or its parent has ended", call);
    struct group *parent = p->group; /* it stays open while p is borrowed */
    pthread_mutex_lock(&parent->lock);
    if (status == NCCL_OK) {
        c->root = p->made;
        p->made = NULL;
    }
    p->makes_orphan = in_progress && status != NCCL_OK;
    communicator_give_back(p);
    pthread_mutex_unlock(&parent->lock);
    return result;
}

/* It would compute with other ranks. */
static comm_status check_ranks(const struct communicator *c)
{
    int size, rank;
    nccl_status status = nccl.CommCount(c->root, &size);
    if (status != NCCL_OK)
        return fail_nccl(c, status, "ncclCommCount");
    status = nccl.CommUserRank(c->root, &rank);
    if (status != NCCL_OK)
        return fail_nccl(c, status, "ncclCommUserRank");
    if (size == c->size && rank == c->rank)
        return COMM_OK;
    return fail(COMM_ERR_BACKEND, "NCCL made the wrong ranks a group of the parent's communicator (from_parent=1): "
                "this is rank %d of %d there, and rank %d of %d in the group", rank, size, c->rank, c->size);
}

comm_status communicator_derive(struct communicator *c, nccl_config *config, int *ret_done)
{
    *ret_done = 0;
    if (!can_be_derived(c))
        return COMM_OK;
    comm_status status = vote(c, ret_done);
    if (status == COMM_ERR_PEER_LOST)
        atomic_store(&c->group->store_failed, 1);
    if (status != COMM_OK)
        return fail(status, "agreeing by the store on how the group connects (from_parent=1): %s", host->last_error());
    if (!*ret_done)
        return COMM_OK;
    status = make_of_parents(c, config);
    if (status != COMM_OK || communicator_wait_for_nccl(c, c->root, INT64_MAX) != NCCL_OK)
        return status;
    return check_ranks(c);
}

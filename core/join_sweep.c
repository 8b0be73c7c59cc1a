/* What earlier worlds of a name have left in the store.
 *
 * A rank that has joined world n sweeps world n - 2. All its ranks have come back from that world's comm_init, for they
 * came together as world n - 1 since. So none of them reads what they came together by; of world n - 1, one may do so
 * still. World n - 2 may be open, though: what its backends have set stays as long as ranks may ask for it, which they
 * do not if it was on the cards that were handed out (cards.h). Where the cards were not handed out, there is no card
 * any more: comm__join_confirm has deleted it.
 *
 * Each rank deletes what it has set, and the first and the last rank some keys of all: so it costs each a few store
 * calls, whatever the world's size. It does so while it waits for others, if it ever does. A store that cannot delete
 * keeps its keys. */
#include "join_sweep.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "cards.h"

enum { SWEEP_MS = 1000 }; /* at most: when all have come together, the store's server may stop */

/* The terms go first, and "all" last: to commrun, ranks wait for a world that has terms, but no "all". */
static const char *const first_ranks[] = { "terms", "joined", "verdict", "all", NULL };
static const char *const last_ranks[] = { "nonce", "twice", "opened", "outcome", "open", NULL };

static comm_status remove_backends(comm_store *old, const char *card, size_t bytes)
{
    const char *at = card, *end = card + bytes, *name;
    size_t name_bytes, value_bytes;
    comm_status status = COMM_OK;
    while (status == COMM_OK && comm__cards_next(&at, end, &name, &name_bytes, &value_bytes)) {
        char key[1024];
        if (snprintf(key, sizeof key, "backend/%.*s", (int)name_bytes, name) < (int)sizeof key)
            status = comm_store_delete(old, key, NULL);
    }
    return status;
}

static comm_status remove_card(comm_store *old, int32_t rank)
{
    char key[32];
    const char *keys[] = { key };
    int32_t there = 0;
    void *card;
    size_t bytes;
    snprintf(key, sizeof key, "card/%d", rank);
    comm_status status = comm_store_check(old, keys, 1, &there);
    if (status != COMM_OK || !there)
        return status;
    status = comm_store_get(old, key, JOIN_LOOK_MS, &card, &bytes);
    if (status != COMM_OK)
        return status;
    status = remove_backends(old, card, bytes);
    comm_free(card);
    return status == COMM_OK ? comm_store_delete(old, key, NULL) : status;
}

static comm_status remove_own(comm_store *old, int32_t rank)
{
    char key[32];
    comm_status status = remove_card(old, rank);
    snprintf(key, sizeof key, "rank/%d", rank);
    return status == COMM_OK ? comm_store_delete(old, key, NULL) : status;
}

void comm__join_sweep(struct joining *j)
{
    char prefix[32];
    comm_store *old = NULL;
    if (j->number < 2 || j->swept)
        return;
    j->swept = 1;
    snprintf(prefix, sizeof prefix, "%" PRId64, j->number - 2);
    comm_status status = comm_store_prefix(prefix, j->names, &old);
    if (status == COMM_OK) {
        int64_t deadline_ns = clock_deadline_ns(SWEEP_MS);
        comm__store_set_deadline(old, deadline_ns < j->deadline_ns ? deadline_ns : j->deadline_ns);
        status = remove_own(old, j->rank);
    }
    const char *const *key = j->rank == 0 ? first_ranks : last_ranks;
    for (; status == COMM_OK && (j->rank == 0 || j->rank == j->size - 1) && *key; key++)
        status = comm_store_delete(old, *key, NULL);
    if (status != COMM_OK)
        comm__log(COMM_LOG_INFO, "world '%s' (rank %d): keys of an earlier world stay in the store: %s", j->name,
                  j->rank, comm_last_error());
    comm_store_close(old);
}

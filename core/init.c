/* comm_init: find the store, come together (join.c), and open the world group. */
#include <comm/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/param.h"
#include "deadline.h"
#include "fork.h"
#include "group.h"
#include "join.h"
#include "rendezvous.h"

/* When the time is over, there is so much more to say why, and to hear what the others have said. */
enum { LAST_WORDS_MS = 250 };

/* ---- The world ---- */

static comm_status check_options(const comm_init_options *given, comm_init_options *ret_options)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_status status = comm__check_struct(given, sizeof *given, "comm_init_options");
    if (status != COMM_OK)
        return status;
    if (given)
        memcpy(&options, given, given->struct_bytes < sizeof options ? given->struct_bytes : sizeof options);
    if (!options.name || !*options.name)
        options.name = "world";
    if (strlen(options.name) >= GROUP_NAME_BYTES / 2)
        return comm__fail(COMM_ERR_INVALID, "the name '%s' is longer than %d bytes", options.name,
                          GROUP_NAME_BYTES / 2 - 1);
    if (options.world_size < 0 || (options.world_size > 0 && options.rank >= options.world_size) ||
        (options.world_size > 0 && options.rank < 0))
        return comm__fail(COMM_ERR_INVALID, "rank %d of a world of %d", options.rank, options.world_size);
    if (options.store && options.rendezvous)
        return comm__fail(COMM_ERR_INVALID, "give a store or a rendezvous URL ('%s'), not both",
                          options.rendezvous);
    if (options.store && options.world_size == 0)
        return comm__fail(COMM_ERR_INVALID, "with a store of your own, give rank and world_size too");
    if (options.timeout_ms < 0 && options.timeout_ms != COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "a timeout of %lld ms", (long long)options.timeout_ms);
    if (options.timeout_ms == 0)
        options.timeout_ms = comm__param_int("core", "timeout_ms");
    if (!options.secret)
        options.secret = comm__param_text("core", "secret");
    *ret_options = options;
    return COMM_OK;
}

/* The store of the world: in the user's, or in the rendezvous's, which we then own. */
static comm_status find_store(struct world *world, const comm_init_options *o, struct joining *j)
{
    comm_store *outer = o->store;
    j->rank = o->rank;
    j->size = o->world_size;
    if (!outer) {
        int64_t left_ms = clock_left_ms(j->deadline_ns); /* never less than 0 but for INFINITE, which is -1 */
        comm_status status = comm__rendezvous(o->rendezvous ? o->rendezvous : "env://", o->world_size ? o->rank : -1,
                                              o->world_size, left_ms ? left_ms : 1, &world->rendezvous, &j->rank,
                                              &j->size, &world->takes_leave);
        if (status != COMM_OK)
            return status;
        outer = world->rendezvous;
    }
    /* torchrun restarts its workers against the same store; each round needs keys of its own. */
    const char *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    char prefix[GROUP_NAME_BYTES + 64];
    snprintf(prefix, sizeof prefix, "comm/%s%s%.20s", o->name, restart && *restart ? "/" : "", restart ? restart : "");
    comm_status status = comm_store_prefix(prefix, outer, &j->names);
    if (status == COMM_OK && j->deadline_ns != DEADLINE_NEVER)
        comm__store_set_deadline(j->names, j->deadline_ns + LAST_WORDS_MS * (int64_t)1000000);
    return status;
}

static comm_status come_together(struct world *world, const comm_init_options *o, struct joining *j)
{
    comm_status status = find_store(world, o, j);
    if (status == COMM_OK)
        status = comm__join(j);
    comm_store_close(j->names);
    world->store = j->store;
    world->rank = j->rank;
    world->size = j->size;
    world->takes_leave &= j->joined;
    j->names = j->store = NULL;
    return status;
}

/* A program that opens one world after the other at one address can come so early that it finds the last world's
 * server, which then ends: rank 0 is about to serve the next one. Otherwise a lost server is a lost rank 0. */
static int came_too_early(const struct world *world, const struct joining *j, comm_status status)
{
    return status == COMM_ERR_PEER_LOST && world->rendezvous && j->number != 0 && clock_left_ms(j->deadline_ns) != 0;
}

static comm_status meet(struct world *world, const comm_init_options *o, struct joining *j)
{
    comm_status status = come_together(world, o, j);
    while (came_too_early(world, j, status)) {
        comm_store_close(world->store);
        comm_store_close(world->rendezvous);
        world->store = world->rendezvous = NULL;
        j->number = -1;
        j->joined = 0;
        status = come_together(world, o, j);
    }
    return status;
}

static comm_status open_world(struct world *world, const comm_init_options *o, const struct joining *j,
                              comm_group **ret_world)
{
    size_t secret_bytes = strlen(o->secret) + 1 + JOIN_NONCE_TEXT;
    world->secret = malloc(secret_bytes);
    world->name = strdup(o->name);
    int32_t *ranks = malloc((size_t)j->size * sizeof *ranks);
    if (!world->secret || !world->name || !ranks) {
        free(ranks);
        return comm__fail(COMM_ERR_NO_MEMORY, "a world of %d ranks", j->size);
    }
    snprintf(world->secret, secret_bytes, "%s:%s", o->secret, j->nonce);
    for (int32_t r = 0; r < j->size; r++)
        ranks[r] = r;
    struct group_plan plan = {
        .world = world,
        .world_ranks = ranks,
        .rank = j->rank,
        .size = j->size,
        .id = XXH64(j->nonce, JOIN_NONCE_TEXT - 1, 0),
        .name = o->name,
        .backend = o->backend,
        .timeout_ms = o->timeout_ms,
    };
    comm_status status = comm__group_open(&plan, ret_world);
    free(ranks);
    return status;
}

/* The views that were made on the way have it, too. */
static void lift_deadline(struct world *world)
{
    comm__store_set_deadline(world->store, DEADLINE_NEVER);
    for (size_t i = 0; i < world->backend_count; i++)
        comm__store_set_deadline(world->backends[i].store, DEADLINE_NEVER);
}

comm_status comm_init(const comm_init_options *given, comm_group **ret_world)
{
    comm_init_options o = COMM_INIT_OPTIONS_INIT;
    struct backend_string string;
    if (!ret_world)
        return comm__fail(COMM_ERR_INVALID, "comm_init: ret_world is NULL");
    comm__fork_watch();
    comm_status status = check_options(given, &o);
    if (status == COMM_OK) /* a misspelt string should not cost the others a rendezvous */
        status = comm__backend_string_parse(o.backend, &string);
    if (status != COMM_OK)
        return comm__fail_while(status, "comm_init");
    comm__backend_string_finish(&string);

    struct world *world = calloc(1, sizeof *world);
    if (!world)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_init");
    pthread_mutex_init(&world->open_lock, NULL);
    pthread_mutex_init(&world->lock, NULL);
    struct joining j = { .name = o.name, .secret = o.secret, .number = -1 };
    j.began_ns = clock_now_ns();
    j.deadline_ns = clock_deadline_ns(o.timeout_ms);
    status = meet(world, &o, &j);
    if (status == COMM_OK)
        status = open_world(world, &o, &j, ret_world);
    if (status != COMM_OK) {
        char text[COMM_ERROR_BYTES]; /* closing stores may fail too, which is no news */
        if (j.size > 0)
            comm__fail_while(status, "comm_init of world '%s' (rank %d of %d)", o.name, j.rank, j.size);
        else
            comm__fail_while(status, "comm_init of world '%s'", o.name);
        snprintf(text, sizeof text, "%s", comm_last_error());
        comm__world_destroy(world, 0);
        return comm__fail(status, "%s", text);
    }
    lift_deadline(world);
    return status;
}

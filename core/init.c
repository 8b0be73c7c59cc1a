/* comm_init: find the store, come together (join.c), and open the world group. */
#include <comm/store.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "auto.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/misspelt.h"
#include "base/param.h"
#include "base/deadline.h"
#include "fork.h"
#include "group.h"
#include "join.h"
#include "rank_check.h"
#include "rendezvous.h"
#include "tuning.h"

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
    status = comm__check_name("the world", "the name", options.name);
    if (status != COMM_OK)
        return status;
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
        options.timeout_ms = comm__param_int("timeout_ms");
    if (!options.secret)
        options.secret = comm__param_text("secret");
    if (!options.backend && *comm__param_text("backend"))
        options.backend = comm__param_text("backend");
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
                                              &j->size, &j->served);
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

/* What all ranks must have alike. free() both. */
static comm_status write_terms(struct world *world, char **ret_terms, char **ret_settings)
{
    comm_status status = comm__world_terms(world, ret_terms);
    return status == COMM_OK ? comm__world_settings(world, ret_settings) : status;
}

/* Rank and size are known: the world group can be made, and its backends chosen. */
static comm_status choose_backends(struct world *world, const comm_init_options *o, const struct joining *j,
                                   char **ret_terms, char **ret_settings)
{
    size_t size = (size_t)j->size;
    world->name = strdup(o->name);
    world->lost = calloc(size, sizeof *world->lost);
    int32_t *ranks = malloc(size * sizeof *ranks);
    comm_status status = world->name && world->lost && ranks
                             ? COMM_OK
                             : comm__fail(COMM_ERR_NO_MEMORY, "a world of %d ranks", j->size);
    for (int32_t r = 0; ranks && r < j->size; r++)
        ranks[r] = r;
    struct group_plan plan = {
        .world = world,
        .world_ranks = ranks,
        .rank = j->rank,
        .size = j->size,
        .name = o->name,
        .backend = o->backend,
        .timeout_ms = o->timeout_ms,
        .device = o->device,
    };
    if (status == COMM_OK)
        status = comm__tuning_read(&world->tuning);
    if (status == COMM_OK)
        status = comm__world_choose(&plan);
    free(ranks);
    return status == COMM_OK ? write_terms(world, ret_terms, ret_settings) : status;
}

static comm_status come_together(struct world *world, const comm_init_options *o, struct joining *j)
{
    char *terms = NULL, *settings = NULL;
    comm_status status = find_store(world, o, j);
    if (status != COMM_OK)
        return status;
    comm_status able = choose_backends(world, o, j, &terms, &settings);
    j->backends = able == COMM_OK ? terms : "";
    j->settings = able == COMM_OK ? settings : "";
    j->unusable = comm__auto_reasons(world);
    j->tuning = comm__tuning_mark(world->tuning);
    if (j->size > 1)
        status = comm__join(j, able);
    else
        status = able == COMM_OK ? comm__join_alone(j) : able;
    j->backends = j->settings = NULL;
    free(terms);
    free(settings);
    world->store = j->store;
    world->rank = j->rank;
    world->size = j->size;
    free(world->hosts);
    world->hosts = j->hosts;
    world->local_cores = j->local_cores;
    j->hosts = NULL;
    world->takes_leave = j->served && j->joined;
    return status;
}

/* A program that opens one world after the other at one address can come so early that it finds the last world's
 * server, which then ends: rank 0 is about to serve the next one. Otherwise a lost server is a lost rank 0. */
static int came_too_early(const struct world *world, const struct joining *j, comm_status status)
{
    return status == COMM_ERR_PEER_LOST && !j->heard && world->rendezvous && j->number != 0 &&
           clock_left_ms(j->deadline_ns) != 0;
}

static void close_names(struct joining *j)
{
    comm_store_close(j->names);
    j->names = NULL;
}

static void begin_again(struct world *world, struct joining *j)
{
    comm__join_end(j);
    close_names(j);
    comm_store_close(world->store);
    comm_store_close(world->rendezvous);
    world->store = j->store = world->rendezvous = NULL;
    if (world->root)
        comm__group_unref(world->root);
    world->root = NULL;
    free(world->name);
    free(world->tuning);
    free(world->lost);
    world->name = world->tuning = NULL;
    world->lost = NULL;
    j->number = -1;
    j->joined = j->swept = 0;
}

static comm_status meet(struct world *world, const comm_init_options *o, struct joining *j)
{
    comm_status status = come_together(world, o, j);
    while (came_too_early(world, j, status)) {
        begin_again(world, j);
        status = come_together(world, o, j);
    }
    return status;
}

static void set_joining(struct world *world, struct joining *j)
{
    pthread_mutex_lock(&world->looking);
    world->joining = j;
    pthread_mutex_unlock(&world->looking);
}

/* Why messages take longer than elsewhere. Each host's first rank says it. */
static void explain_cores(const struct world *world)
{
    int32_t ranks = 0;
    for (int32_t r = 0; r < world->size; r++) {
        if (world->hosts[r] != world->hosts[world->rank])
            continue;
        if (ranks++ == 0 && r != world->rank)
            return;
    }
    if (world->local_cores > 0 && ranks > world->local_cores && comm__param_int("explain"))
        comm__log(COMM_LOG_WARN,
                  "world '%s': the %d ranks on the host of rank %d may run on %d core%s together, so one that waits "
                  "lets the others run",
                  world->root->name, ranks, world->rank, world->local_cores, world->local_cores == 1 ? "" : "s");
}

static comm_status open_world(struct world *world, const comm_init_options *o, struct joining *j)
{
    size_t secret_bytes = strlen(o->secret) + 1 + JOIN_NONCE_TEXT;
    world->secret = malloc(secret_bytes);
    if (!world->secret)
        return comm__fail(COMM_ERR_NO_MEMORY, "a world of %d ranks", j->size);
    snprintf(world->secret, secret_bytes, "%s:%s", o->secret, j->nonce);
    world->root->id = XXH64(j->nonce, JOIN_NONCE_TEXT - 1, 0);
    explain_cores(world);
    set_joining(world, j->size > 1 ? j : NULL);
    comm_status status = comm__world_open(world);
    set_joining(world, NULL);
    return status;
}

/* The world is open here; or it is not, for the last error's reason. Once it is open on all ranks, each knows where
 * every other one is. */
static comm_status confirm(struct world *world, struct joining *j, comm_status able)
{
    size_t own_bytes, bytes;
    comm__lifelines_keep(world, &j->lifeline);
    const char *own = comm__cards_own(&world->cards, &own_bytes);
    const void *cards;
    if (j->size == 1)
        return able;
    comm_status status = comm__join_confirm(j, able, own, own_bytes, &cards, &bytes);
    if (status == COMM_OK)
        comm__cards_take(&world->cards, cards, bytes);
    return status;
}

/* The views that were made on the way have it, too. */
static void lift_deadline(struct world *world)
{
    comm__store_set_deadline(world->store, DEADLINE_NEVER);
    for (size_t i = 0; i < world->backend_count; i++)
        comm__store_set_deadline(world->backends[i].store, DEADLINE_NEVER);
}

static comm_status fail_init(struct world *world, const comm_init_options *o, const struct joining *j,
                             comm_status status)
{
    char text[COMM_ERROR_BYTES]; /* closing stores may fail too, which is no news */
    if (status == COMM_ERR_PEER_LOST && !j->heard && j->served)
        comm__fail(status, "%s (rank 0 serves it: its process has ended, or was killed)", comm_last_error());
    if (j->size > 0)
        comm__fail_while(status, "comm_init of world '%s' (rank %d of %d)", o->name, j->rank, j->size);
    else
        comm__fail_while(status, "comm_init of world '%s'", o->name);
    snprintf(text, sizeof text, "%s", comm_last_error());
    comm__world_destroy(world, 0);
    return comm__fail(status, "%s", text);
}

/* By one rank: the others mostly have the same ones. The backends are registered by now. */
static void warn_of_variables(int32_t rank)
{
    static atomic_flag once = ATOMIC_FLAG_INIT;
    if (rank <= 0 && !atomic_flag_test_and_set(&once))
        comm__misspelt_warn();
}

static comm_status init(const comm_init_options *given, comm_group **ret_world)
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
    pthread_mutex_init(&world->looking, NULL);
    comm__cards_init(&world->cards);
    struct joining j = { .name = o.name, .secret = o.secret, .number = -1, .lifeline.listener = -1 };
    j.began_ns = clock_now_ns();
    j.deadline_ns = clock_deadline_ns(o.timeout_ms);
    status = meet(world, &o, &j);
    if (status == COMM_OK)
        status = confirm(world, &j, open_world(world, &o, &j));
    close_names(&j);
    warn_of_variables(j.rank);
    if (status == COMM_OK) {
        lift_deadline(world);
        world->came_together = 1;
        comm__world_enter(world, ret_world);
    } else {
        fail_init(world, &o, &j, status);
    }
    comm__join_end(&j);
    return status;
}

comm_status comm_init(const comm_init_options *given, comm_group **ret_world)
{
    char text[COMM_ERROR_BYTES];
    comm__error_before(text);
    return comm__error_after(init(given, ret_world), text);
}

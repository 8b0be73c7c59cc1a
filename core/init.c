/* comm_init: find the store, come together, and open the world group.
 *
 * Coming together costs each rank a handful of store calls, whatever the world's size. Keys, below "comm/<world
 * name>[/<restart>]/": rank/<r>   "host pid nonce" of whoever joined as rank r; a second one is refused nonce      of
 * the world, from rank 0: makes the world's id, and the secret of connections fresh joined     how many have; the last
 * one sets all        which is all that everybody waits for */
#include <comm/store.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/param.h"
#include "fork.h"
#include "group.h"

enum { NONCE_BYTES = 16, NONCE_TEXT = 2 * NONCE_BYTES + 1 };

/* One comm_init under way. */
struct joining {
    const char *name;
    comm_store *store; /* the prefixed view */
    int32_t rank, size;
    int64_t began_ns, deadline_ns;
    char nonce[NONCE_TEXT];
};

static comm_status make_nonce(char text[NONCE_TEXT])
{
    uint8_t bytes[NONCE_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return comm__fail(COMM_ERR_SYSTEM, "joining a world: getrandom gives no random bytes");
    for (int i = 0; i < NONCE_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return COMM_OK;
}

static int64_t left_ms(const struct joining *j)
{
    int64_t ms = clock_left_ms(j->deadline_ns);
    return ms == 0 ? 1 : ms; /* 0 would be the store's default */
}

/* ---- Joining ---- */

static comm_status claim_rank(struct joining *j)
{
    char key[32], host[65] = "?", mine[160], nonce[NONCE_TEXT];
    comm_status status = make_nonce(nonce);
    if (status != COMM_OK)
        return status;
    gethostname(host, sizeof host - 1);
    snprintf(key, sizeof key, "rank/%d", j->rank);
    snprintf(mine, sizeof mine, "host %s, process %d, %.8s", host, (int)getpid(), nonce);
    void *there;
    size_t bytes;
    status = comm_store_compare_set(j->store, key, "", 0, mine, strlen(mine), &there, &bytes);
    if (status != COMM_OK)
        return status;
    if (bytes != strlen(mine) || memcmp(there, mine, bytes) != 0)
        status = comm__fail(COMM_ERR_INVALID,
                            "rank %d has joined already (%.*s). Either two processes have this rank, or the store %s "
                            "holds an earlier run: start a fresh one",
                            j->rank, (int)bytes, (const char *)there, comm_store_url(j->store));
    comm_free(there);
    return status;
}

static comm_status count_in(struct joining *j)
{
    int64_t joined;
    comm_status status = comm_store_add(j->store, "joined", 1, &joined);
    if (status != COMM_OK)
        return status;
    if (joined > j->size)
        return comm__fail(COMM_ERR_INVALID,
                          "%" PRId64
                          " ranks have joined, but the world has %d. The store %s holds an earlier run, or two "
                          "worlds use the name '%s', or the ranks disagree about the world size",
                          joined, j->size, comm_store_url(j->store), j->name);
    return joined == j->size ? comm_store_set(j->store, "all", "1", 1) : COMM_OK;
}

static comm_status join(struct joining *j)
{
    comm_status status = claim_rank(j);
    if (status == COMM_OK && j->rank == 0) {
        status = make_nonce(j->nonce);
        if (status == COMM_OK)
            status = comm_store_set(j->store, "nonce", j->nonce, strlen(j->nonce));
    }
    return status == COMM_OK ? count_in(j) : status;
}

/* ---- Waiting for the others ---- */

/* "61 of 64 ranks have joined, missing: 3, 17, 40" */
static void write_missing(struct joining *j, char *text, size_t room)
{
    char missing[256] = "";
    size_t used = 0;
    int32_t count = 0;
    for (int32_t r = 0; r < j->size; r++) {
        char key[32];
        const char *keys[] = { key };
        int32_t there = 0;
        snprintf(key, sizeof key, "rank/%d", r);
        if (comm_store_check(j->store, keys, 1, &there) != COMM_OK || there)
            continue;
        count++;
        if (used < sizeof missing - 16)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", r);
        else if (missing[used - 1] != '.')
            used += (size_t)snprintf(missing + used, sizeof missing - used, " ...");
    }
    snprintf(text, room, "%d of %d ranks have joined, missing: %s", j->size - count, j->size, count ? missing : "none");
}

static comm_status wait_for_all(struct joining *j)
{
    const char *all[] = { "all" };
    int64_t slice_ms = comm__param_int("core", "progress_log_ms");
    int32_t level = j->rank == 0 ? COMM_LOG_WARN : COMM_LOG_INFO;
    char text[512];
    for (;;) {
        int64_t left = clock_left_ms(j->deadline_ns);
        if (left == 0)
            break;
        comm_status status = comm_store_wait(j->store, all, 1, left < 0 || left > slice_ms ? slice_ms : left);
        if (status != COMM_ERR_TIMEOUT)
            return status;
        if (clock_left_ms(j->deadline_ns) == 0 || !comm__log_wanted(level))
            continue;
        write_missing(j, text, sizeof text);
        comm__log(level, "world '%s' (rank %d): %s", j->name, j->rank, text);
    }
    write_missing(j, text, sizeof text);
    return comm__fail(COMM_ERR_TIMEOUT, "after %" PRId64 " ms %s", (clock_now_ns() - j->began_ns) / 1000000, text);
}

static comm_status come_together(struct joining *j)
{
    comm_status status = join(j);
    if (status == COMM_OK)
        status = wait_for_all(j);
    if (status != COMM_OK || j->rank == 0)
        return status;
    void *nonce;
    size_t bytes;
    status = comm_store_get(j->store, "nonce", left_ms(j), &nonce, &bytes);
    if (status != COMM_OK)
        return status;
    if (bytes == NONCE_TEXT - 1)
        memcpy(j->nonce, nonce, NONCE_TEXT);
    else
        status =
            comm__fail(COMM_ERR_PROTOCOL, "the store %s holds a nonce of %zu bytes", comm_store_url(j->store), bytes);
    comm_free(nonce);
    return status;
}

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
        return comm__fail(COMM_ERR_INVALID, "comm_init: the name '%s' is longer than %d bytes", options.name,
                          GROUP_NAME_BYTES / 2 - 1);
    if (options.world_size < 0 || (options.world_size > 0 && options.rank >= options.world_size) ||
        (options.world_size > 0 && options.rank < 0))
        return comm__fail(COMM_ERR_INVALID, "comm_init: rank %d of a world of %d", options.rank, options.world_size);
    if (options.store && options.rendezvous)
        return comm__fail(COMM_ERR_INVALID, "comm_init: give a store or a rendezvous URL ('%s'), not both",
                          options.rendezvous);
    if (options.store && options.world_size == 0)
        return comm__fail(COMM_ERR_INVALID, "comm_init: with a store of your own, give rank and world_size too");
    if (options.timeout_ms == 0)
        options.timeout_ms = comm__param_int("core", "timeout_ms");
    if (!options.secret)
        options.secret = comm__param_text("core", "secret");
    *ret_options = options;
    return COMM_OK;
}

/* The store of the world: below the user's, or below the rendezvous's, which we then own. */
static comm_status find_store(struct world *world, const comm_init_options *o, struct joining *j)
{
    comm_store *outer = o->store;
    j->rank = o->rank;
    j->size = o->world_size;
    if (!outer) {
        comm_status status = comm_rendezvous(o->rendezvous ? o->rendezvous : "env://", o->world_size ? o->rank : -1,
                                             o->world_size, o->timeout_ms, &world->rendezvous, &j->rank, &j->size);
        if (status != COMM_OK)
            return status;
        outer = world->rendezvous;
    }
    /* torchrun restarts its workers against the same store; each round needs keys of its own. */
    const char *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    char prefix[GROUP_NAME_BYTES + 64];
    snprintf(prefix, sizeof prefix, "comm/%s%s%.20s", o->name, restart && *restart ? "/" : "", restart ? restart : "");
    comm_status status = comm_store_prefix(prefix, outer, &world->store);
    j->store = world->store;
    return status;
}

static comm_status open_world(struct world *world, const comm_init_options *o, const struct joining *j,
                              comm_group **ret_world)
{
    size_t secret_bytes = strlen(o->secret) + 1 + NONCE_TEXT;
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
        .id = XXH64(j->nonce, NONCE_TEXT - 1, 0),
        .name = o->name,
        .backend = o->backend,
        .timeout_ms = o->timeout_ms,
    };
    comm_status status = comm__group_open(&plan, ret_world);
    free(ranks);
    return status;
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
        return status;
    comm__backend_string_finish(&string);

    struct world *world = calloc(1, sizeof *world);
    if (!world)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_init");
    pthread_mutex_init(&world->open_lock, NULL);
    pthread_mutex_init(&world->lock, NULL);
    struct joining j = { .name = o.name, .began_ns = clock_now_ns(), .deadline_ns = clock_deadline_ns(o.timeout_ms) };
    status = find_store(world, &o, &j);
    if (status == COMM_OK)
        status = come_together(&j);
    if (status == COMM_OK)
        status = open_world(world, &o, &j, ret_world);
    if (status != COMM_OK) {
        status = comm__fail_while(status, "comm_init of world '%s' (rank %d of %d)", o.name, j.rank, j.size);
        comm__world_destroy(world, 0);
    }
    return status;
}

/* How ranks come together. It costs each rank a handful of store calls, whatever the world's size.
 *
 * Keys, below "comm/<world name>[/<restart>]/":
 *   worlds      how many worlds of this name have come together here
 * and for the world number <n>, which is that count at its beginning, below "<n>/":
 *   rank/<r>    who has joined as rank r; a second one is refused
 *   terms       the world's size and the mark of its secret, and who said so first; whoever disagrees ends the
 *               joining for everybody
 *   nonce       from rank 0: makes the world's id, and the secret of connections, fresh
 *   joined      how many have; the last one to come sets
 *   verdict     "ok", or "<status> <why there will be no world>"; the first one holds
 *   all         the same, for those who wait: PyTorch 1.13's server wakes nobody after a compare_set
 *   left, gone  how many have closed the world; all of them have (only if rank 0 serves the store)
 *
 * The numbers let a program open one world after the other on a store that outlives them (commrun's, torchrun's). Only
 * the processes of the last world may open the next one: anybody else is a second process that claims the same rank, or
 * comes to a store that an earlier run has left behind. */
#include "join.h"

#include <inttypes.h>
#include <stdatomic.h>
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

#define ALL_WELL "ok"

enum {
    WHO_BYTES = 160,      /* "host h, process 17|<process id>-<claim>" */
    WHO_SHOWN = 120,      /* of what a store says, at most */
    CHECKED_AT_ONCE = 64, /* ranks, to find those who are missing */
};

static comm_status make_nonce(char text[JOIN_NONCE_TEXT])
{
    uint8_t bytes[JOIN_NONCE_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return comm__fail(COMM_ERR_SYSTEM, "joining a world: getrandom gives no random bytes");
    for (int i = 0; i < JOIN_NONCE_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return COMM_OK;
}

static int64_t left_ms(const struct joining *j)
{
    int64_t ms = clock_left_ms(j->deadline_ns);
    return ms == 0 ? 1 : ms; /* 0 would be the store's default */
}

/* ---- Who is it? ---- */

/* Pids and host names repeat among containers; with this number they do not. (A child of fork has another pid.) */
static uint32_t process_id(void)
{
    static _Atomic uint32_t id;
    uint32_t none = 0, fresh = 0;
    if (atomic_load(&id) == 0 && getrandom(&fresh, sizeof fresh, 0) == (ssize_t)sizeof fresh)
        atomic_compare_exchange_strong(&id, &none, fresh | 1);
    return atomic_load(&id);
}

/* All but the claim is the same for all claims of this process. Gives the length of that. */
static size_t write_who(char who[WHO_BYTES], const char *claim)
{
    char host[65] = "?";
    gethostname(host, sizeof host - 1);
    int same = snprintf(who, WHO_BYTES, "host %s, process %d|%08x-", host, (int)getpid(), process_id());
    snprintf(who + same, WHO_BYTES - (size_t)same, "%.8s", claim);
    return (size_t)same;
}

/* How much of `who` to show. */
static int shown(const char *who, size_t bytes)
{
    size_t n = 0;
    while (n < bytes && n < WHO_SHOWN && who[n] != '|' && who[n] != '\0')
        n++;
    return (int)n;
}

static comm_status fail_claimed(const struct joining *j, const char *who, size_t bytes)
{
    char mine[WHO_BYTES];
    size_t same = write_who(mine, "");
    if (bytes >= same && memcmp(who, mine, same) == 0)
        return comm__fail(COMM_ERR_INVALID,
                          "rank %d has joined already, in this process. After a world that did not come together, begin "
                          "with another name or a fresh store than %s",
                          j->rank, comm_store_url(j->names));
    return comm__fail(COMM_ERR_INVALID,
                      "rank %d has joined already (%.*s). Either two processes have this rank, or the store %s holds "
                      "an earlier run: start a fresh one",
                      j->rank, shown(who, bytes), who, comm_store_url(j->names));
}

/* ---- Which world? ---- */

/* If there was a world before this one, and this rank was in it, was it this process? */
static comm_status check_heritage(struct joining *j)
{
    char key[64], mine[WHO_BYTES];
    const char *keys[] = { key };
    int32_t there = 0;
    snprintf(key, sizeof key, "%" PRId64 "/rank/%d", j->number - 1, j->rank);
    comm_status status = comm_store_check(j->names, keys, 1, &there);
    if (status != COMM_OK || !there)
        return status;
    void *who;
    size_t bytes;
    status = comm_store_get(j->names, key, left_ms(j), &who, &bytes);
    if (status != COMM_OK)
        return status;
    size_t same = write_who(mine, "");
    if (bytes < same || memcmp(who, mine, same) != 0)
        status = fail_claimed(j, who, bytes);
    comm_free(who);
    return status;
}

static comm_status find_number(struct joining *j)
{
    char prefix[32];
    comm_status status = comm_store_add(j->names, "worlds", 0, &j->number);
    if (status == COMM_OK && j->number > 0)
        status = check_heritage(j);
    snprintf(prefix, sizeof prefix, "%" PRId64, j->number);
    return status == COMM_OK ? comm_store_prefix(prefix, j->names, &j->store) : status;
}

/* ---- Joining ---- */

static comm_status claim_rank(struct joining *j)
{
    char key[32], mine[WHO_BYTES], claim[JOIN_NONCE_TEXT];
    comm_status status = make_nonce(claim);
    if (status != COMM_OK)
        return status;
    write_who(mine, claim);
    snprintf(key, sizeof key, "rank/%d", j->rank);
    void *there;
    size_t bytes;
    status = comm_store_compare_set(j->store, key, "", 0, mine, strlen(mine), &there, &bytes);
    if (status != COMM_OK)
        return status;
    if (bytes != strlen(mine) || memcmp(there, mine, bytes) != 0)
        status = fail_claimed(j, there, bytes);
    comm_free(there);
    return status;
}

/* What "all" says. Nobody's text is longer than this, but the store may be anybody's. */
static comm_status take_verdict(struct joining *j, const char *verdict, size_t bytes)
{
    j->joined = 1;
    if (strcmp(verdict, ALL_WELL) == 0)
        return COMM_OK;
    comm_status status = strtol(verdict, NULL, 10) == COMM_ERR_TIMEOUT ? COMM_ERR_TIMEOUT : COMM_ERR_INVALID;
    const char *text = memchr(verdict, ' ', bytes);
    return comm__fail(status, "%.900s", text ? text + 1 : verdict);
}

/* The first verdict holds, for those who wait and those who come. */
static comm_status decide(struct joining *j, const char *verdict)
{
    void *there;
    size_t bytes;
    comm_status status = comm_store_compare_set(j->store, "verdict", "", 0, verdict, strlen(verdict), &there, &bytes);
    if (status != COMM_OK)
        return status;
    status = comm_store_set(j->store, "all", there, bytes);
    if (status == COMM_OK)
        status = take_verdict(j, there, bytes);
    comm_free(there);
    return status;
}

static comm_status decide_against(struct joining *j, comm_status status, const char *text)
{
    char verdict[COMM_ERROR_BYTES];
    snprintf(verdict, sizeof verdict, "%d %.1000s", status, text);
    comm_status decided = decide(j, verdict);
    /* Without the store, this rank at least has its reason. */
    return j->joined ? decided : comm__fail(status, "%s", text);
}

/* Sixteen bits of the secret's hash: enough to notice that two ranks have different ones, and too few to be of use to
 * somebody who guesses. */
static unsigned mark_of(const char *secret)
{
    return (unsigned)(XXH64(secret, strlen(secret), 0) & 0xffff);
}

static comm_status disagree(struct joining *j, const char *mine, const char *theirs, size_t bytes)
{
    char text[2 * WHO_BYTES + 300];
    const char *me = strstr(mine, "rank "), *them = strstr(theirs, "rank "); /* a store's values end with a NUL */
    me = me ? me : mine;
    them = them ? them : theirs;
    if (strtol(theirs, NULL, 10) != j->size)
        snprintf(text, sizeof text,
                 "the ranks disagree about the world size: it has %.*s, but %.*s. Give all ranks the same (or, if that "
                 "is an earlier run, a fresh store)",
                 shown(mine, strlen(mine)), mine, shown(theirs, bytes), theirs);
    else
        snprintf(text, sizeof text,
                 "the ranks have different secrets: %.*s has another one than %.*s. Give all ranks the same COMM_SECRET",
                 shown(me, strlen(me)), me, shown(them, (size_t)(theirs + bytes - them)), them);
    return decide_against(j, COMM_ERR_INVALID, text);
}

/* A world of which one rank believes that it is smaller would begin too early, and ranks with different secrets would
 * wait for each other's connections in vain. */
static comm_status agree_on_terms(struct joining *j)
{
    char mine[WHO_BYTES + 48], who[WHO_BYTES];
    write_who(who, "");
    int same = snprintf(mine, sizeof mine, "%d ranks, says rank %d (%.*s)|", j->size, j->rank, shown(who, strlen(who)), who);
    snprintf(mine + same, sizeof mine - (size_t)same, "%04x", mark_of(j->secret));
    void *there;
    size_t bytes;
    comm_status status = comm_store_compare_set(j->store, "terms", "", 0, mine, strlen(mine), &there, &bytes);
    if (status != COMM_OK)
        return status;
    const char *their_mark = memchr(there, '|', bytes);
    if (strtol(there, NULL, 10) != j->size || !their_mark || strcmp(their_mark, mine + same - 1) != 0)
        status = disagree(j, mine, there, bytes);
    comm_free(there);
    return status;
}

static comm_status count_in(struct joining *j)
{
    int64_t joined, worlds;
    comm_status status = comm_store_add(j->store, "joined", 1, &joined);
    if (status != COMM_OK)
        return status;
    if (joined > j->size)
        return comm__fail(COMM_ERR_INVALID, "%" PRId64 " ranks have joined, but the world has %d; the store %s holds "
                          "an earlier run: start a fresh one", joined, j->size, comm_store_url(j->store));
    if (joined < j->size)
        return COMM_OK;
    /* In this order: whoever knows that all are here finds the next world if it joins again. */
    status = comm_store_add(j->names, "worlds", 1, &worlds);
    return status == COMM_OK ? decide(j, ALL_WELL) : status;
}

static comm_status show_up(struct joining *j)
{
    comm_status status = find_number(j);
    if (status == COMM_OK)
        status = claim_rank(j);
    if (status == COMM_OK)
        status = agree_on_terms(j);
    if (status == COMM_OK && j->rank == 0) {
        status = make_nonce(j->nonce);
        if (status == COMM_OK)
            status = comm_store_set(j->store, "nonce", j->nonce, strlen(j->nonce));
    }
    return status == COMM_OK ? count_in(j) : status;
}

/* ---- Waiting for the others ---- */

static int is_there(struct joining *j, int32_t first, int32_t last)
{
    char names[CHECKED_AT_ONCE][24];
    const char *keys[CHECKED_AT_ONCE];
    int32_t there = 0;
    for (int32_t r = first; r < last; r++) {
        snprintf(names[r - first], sizeof names[0], "rank/%d", r);
        keys[r - first] = names[r - first];
    }
    return comm_store_check(j->store, keys, (size_t)(last - first), &there) != COMM_OK || there;
}

/* "61 of 64 ranks have joined, missing: 3, 17, 40". Asks about many ranks at once, and not further than it can say. */
static void write_missing(struct joining *j, char *text, size_t room)
{
    char missing[256] = "", why[300];
    size_t used = 0;
    int64_t joined = 0;
    snprintf(why, sizeof why, "%s", comm_last_error()); /* of waiting for them: it had more time to be right */
    if (comm_store_add(j->store, "joined", 0, &joined) != COMM_OK) {
        snprintf(text, room, "the store does not say who has joined (%s)", why);
        return;
    }
    for (int32_t first = 0; first < j->size && used < sizeof missing - 16; first += CHECKED_AT_ONCE) {
        int32_t last = j->size - first < CHECKED_AT_ONCE ? j->size : first + CHECKED_AT_ONCE;
        if (is_there(j, first, last))
            continue;
        for (int32_t r = first; r < last && used < sizeof missing - 16; r++)
            if (!is_there(j, r, r + 1))
                used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", r);
    }
    snprintf(text, room, "%" PRId64 " of %d ranks have joined, missing: %s%s", joined, j->size,
             used ? missing : "nobody; the last one has not said so yet",
             used >= sizeof missing - 16 ? " ..." : "");
}

static comm_status give_up(struct joining *j)
{
    char missing[512], who[WHO_BYTES], text[COMM_ERROR_BYTES];
    write_missing(j, missing, sizeof missing);
    write_who(who, "");
    snprintf(text, sizeof text, "rank %d (%.*s) timed out after %" PRId64 " ms: %s", j->rank, shown(who, strlen(who)),
             who, (clock_now_ns() - j->began_ns) / 1000000, missing);
    return decide_against(j, COMM_ERR_TIMEOUT, text); /* or all have come at the last moment */
}

static comm_status wait_for_all(struct joining *j)
{
    int64_t slice_ms = comm__param_int("core", "progress_log_ms");
    int32_t level = j->rank == 0 ? COMM_LOG_WARN : COMM_LOG_INFO;
    char text[512];
    for (;;) {
        void *verdict;
        size_t bytes;
        int64_t left = clock_left_ms(j->deadline_ns);
        int64_t look_ms = left < 0 || left > slice_ms ? slice_ms : left;
        if (left == 0)
            break;
        comm_status status = comm_store_get(j->store, "all", look_ms, &verdict, &bytes);
        if (status == COMM_OK) {
            status = take_verdict(j, verdict, bytes);
            comm_free(verdict);
            return status;
        }
        if (status != COMM_ERR_TIMEOUT)
            return status;
        if (clock_left_ms(j->deadline_ns) == 0 || !comm__log_wanted(level))
            continue;
        write_missing(j, text, sizeof text);
        comm__log(level, "world '%s' (rank %d): %s", j->name, j->rank, text);
    }
    return give_up(j);
}

static comm_status take_nonce(struct joining *j)
{
    void *nonce;
    size_t bytes;
    comm_status status = comm_store_get(j->store, "nonce", left_ms(j), &nonce, &bytes);
    if (status != COMM_OK)
        return status;
    if (bytes == JOIN_NONCE_TEXT - 1)
        memcpy(j->nonce, nonce, JOIN_NONCE_TEXT);
    else
        status =
            comm__fail(COMM_ERR_PROTOCOL, "the store %s holds a nonce of %zu bytes", comm_store_url(j->store), bytes);
    comm_free(nonce);
    return status;
}

comm_status comm__join(struct joining *j)
{
    comm_status status = show_up(j);
    if (status == COMM_OK)
        status = wait_for_all(j);
    return status == COMM_OK && j->rank != 0 ? take_nonce(j) : status;
}

/* ---- Leaving ---- */

void comm__leave(comm_store *view, int32_t rank, int32_t size)
{
    int64_t left, patience_ms = comm__param_int("core", "leave_ms");
    const char *gone[] = { "gone" };
    if (patience_ms == 0)
        return;
    /* The server's process may have been stopped, or cut off: that is no reason to stay. Nor is there more time than comm_init
     * had, if it is comm_init that gives up: the view has its deadline. */
    if (comm_store_set_timeout(view, patience_ms) != COMM_OK || comm_store_add(view, "left", 1, &left) != COMM_OK)
        return;
    if (left == size)
        (void)comm_store_set(view, "gone", "", 0);
    else if (rank == 0)
        (void)comm_store_wait(view, gone, 1, patience_ms);
}

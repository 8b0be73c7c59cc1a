/* How ranks come together. It costs each rank a handful of store calls, whatever the world's size.
 *
 * Keys, below "comm/<world name>[/<restart>]/":
 *   worlds      how many worlds of this name have come together here
 * and for the world number <n>, which is that count at its beginning, below "<n>/":
 *   rank/<r>    the process that has joined as rank r, its host (host_id.c), its cores (host_cores.c), what its host is
 *               known by (host_difference.c), and the port that shows that it lives (lifeline.c); a second one is
 *               refused (commrun looks at these, and may set the verdict)
 *   terms       the world's size, the marks of its secret and its tuning, its backends and their settings, and the
 *               process that said so
 *               first; a rank that disagrees ends the joining for all
 *   twice       a process that was refused, since its rank had joined: "rank 1 (host a, process 7)"
 *   nonce       from rank 0: makes the world's id, and the secret of connections, fresh
 *   left, gone  how many have closed the world; all of them have (only if rank 0 serves the store)
 *
 * There are two rounds: in the first each rank shows up, in the second it says that its backends are open. Each has
 *   joined, opened    how many have come; the last one sets
 *   verdict, outcome  "ok", a NUL and what all should know (the nonce, which ranks share a host, and each host's
 *                     cores; where each rank is), or "<status> <why there will be no world>"; the first one holds
 *   all, open         the same, for ranks that wait: PyTorch 1.13's server wakes no client after a compare_set
 * and in the second
 *   card/<r>          what rank r's backends have published
 *
 * The numbers let a program open one world after the other on a store that outlives them (commrun's, torchrun's). Only
 * the processes of the last world may open the next one: any other is a second process that claims the same rank, or
 * comes to a store that an earlier run has left behind. When they do, they delete what the world before the last one
 * has left (join_sweep.c). */
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
#include "host_cores.h"
#include "host_id.h"
#include "join_sweep.h"

#define ALL_WELL "ok"

enum {
    WHO_BYTES = 160,      /* "host h, process 17|<process id>-<claim>" */
    WHO_SHOWN = 120,      /* of what a store says, at most */
    CHECKED_AT_ONCE = 64, /* ranks, to find those that are missing */
    BACKENDS_SHOWN = 160,
    VERDICT_SHOWN = 900,  /* of a text why there will be no world, at most */
    FETCHED_AT_ONCE = 128, /* keys; so that no answer of a store is long */
    CARDS_MAX = 1024,     /* ranks; the last one to open fetches the cards of so many for all */
    HOST_TEXT = 18,       /* comm__host_id in a claim, and two spaces; between them comm__host_cores_mine, and at last
                           * comm__host_parts_mine */
};

struct round {
    const char *member; /* the key of a rank that has come, without its number */
    const char *count, *verdict, *all;
    const char *done; /* "3 of 4 ranks have ..." */
    int refusals_count;
};

/* A refused connection to another host may be a firewall's answer, so it does not count in the first round. In the
 * second round all ranks have joined, and one that is not open yet should be soon: there a refusal counts. */
static const struct round showing_up = { "rank", "joined", "verdict", "all", "joined", 0 };
static const struct round opening = { "card", "opened", "outcome", "open", "opened the world", 1 };

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

/* ---- The name of this process ---- */

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

/* If this process was to be another rank, that one is missing: the ranks that wait for it should know why. */
static void leave_note(const struct joining *j)
{
    char who[WHO_BYTES], note[WHO_BYTES + 32];
    write_who(who, "");
    int bytes = snprintf(note, sizeof note, "rank %d (%.*s)", j->rank, shown(who, strlen(who)), who);
    (void)comm_store_set(j->store, "twice", note, (size_t)bytes);
}

static comm_status fail_claimed(const struct joining *j, const char *who, size_t bytes)
{
    char mine[WHO_BYTES];
    size_t same = write_who(mine, "");
    if (bytes >= same && memcmp(who, mine, same) == 0)
        return comm__fail(
            COMM_ERR_INVALID,
            "rank %d has joined already, in this process. If an earlier comm_init failed, use another name "
            "for the world, or another store than %s",
            j->rank, comm_store_url(j->names));
    if (j->store)
        leave_note(j);
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

/* The key holds this process's name, its host and cores, then its lifeline: from the moment that a rank counts as
 * there, others can watch it. */
static comm_status claim_rank(struct joining *j)
{
    char key[32], mine[WHO_BYTES + 1 + HOST_TEXT + HOST_CORES_TEXT + HOST_PARTS_TEXT + LIFELINE_ENDPOINT_BYTES];
    char who[WHO_BYTES], claim[JOIN_NONCE_TEXT], cores[HOST_CORES_TEXT], parts[HOST_PARTS_TEXT];
    comm_status status = make_nonce(claim);
    if (status != COMM_OK)
        return status;
    write_who(who, claim);
    comm__host_cores_mine(cores);
    comm__host_parts_mine(parts);
    snprintf(mine, sizeof mine, "%s\n%016" PRIx64 " %s %s\n%s", who, comm__host_id(), cores, parts,
             j->lifeline.endpoint);
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

/* What "all" says; takes `verdict`. No text of ours is longer than this, but another program's store may hold
 * anything. */
static comm_status take_verdict(struct joining *j, char *verdict, size_t bytes)
{
    j->joined = j->heard = 1;
    comm_free(j->verdict);
    j->verdict = verdict;
    j->verdict_bytes = bytes;
    if (strcmp(verdict, ALL_WELL) == 0)
        return COMM_OK;
    comm_status status = (comm_status)strtol(verdict, NULL, 10);
    if (status >= 0 || comm_status_scope(status) == COMM_SCOPE_PROCESS || !comm__status_known(status))
        status = COMM_ERR_INVALID;
    const char *text = memchr(verdict, ' ', bytes);
    return comm__fail(status, "%.*s", (int)VERDICT_SHOWN, text ? text + 1 : verdict);
}

/* What all should know, behind the verdict's NUL. */
static const void *payload(const struct joining *j, size_t *ret_bytes)
{
    size_t before = sizeof ALL_WELL;
    *ret_bytes = j->verdict_bytes > before ? j->verdict_bytes - before : 0;
    return j->verdict + before;
}

/* The first verdict holds, for ranks that wait and ranks that come later. */
static comm_status decide(struct joining *j, const struct round *round, const char *verdict, size_t verdict_bytes)
{
    void *there;
    size_t bytes;
    j->heard = 0;
    comm_status status =
        comm_store_compare_set(j->store, round->verdict, "", 0, verdict, verdict_bytes, &there, &bytes);
    if (status != COMM_OK)
        return status;
    status = comm_store_set(j->store, round->all, there, bytes);
    if (status == COMM_OK)
        return take_verdict(j, there, bytes);
    comm_free(there);
    return status;
}

static comm_status decide_against(struct joining *j, const struct round *round, comm_status status, const char *text)
{
    char verdict[COMM_ERROR_BYTES];
    snprintf(verdict, sizeof verdict, "%d %.1000s", status, text);
    comm_status decided = decide(j, round, verdict, strlen(verdict));
    /* Without the store, this rank at least has its reason. */
    return j->heard ? decided : comm__fail(status, "%s", text);
}

/* This rank cannot take part, for the last error's reason: all should know. */
static comm_status refuse(struct joining *j, const struct round *round, comm_status able)
{
    char text[COMM_ERROR_BYTES], who[WHO_BYTES];
    write_who(who, "");
    snprintf(text, sizeof text, "rank %d (%.*s) cannot open the world: %.800s", j->rank, shown(who, strlen(who)), who,
             comm_last_error());
    comm_status status = decide_against(j, round, able, text);
    return status == COMM_OK ? comm__fail(able, "%s", text) : status;
}

/* Sixteen bits of the secret's hash: enough to notice that two ranks have different ones, and too few to help an
 * attacker who guesses the secret. */
static unsigned mark_of(const char *secret)
{
    return (unsigned)(XXH64(secret, strlen(secret), 0) & 0xffff);
}

/* What a rank says the world is like: "4 ranks, says rank 1 (host a, process 7)|5a3f|0|||cpu:tcp"; settings are lines.
 * What is not there is "": a store may hold anything. */
struct terms {
    long size;
    const char *rank; /* "rank 1 (host a, process 7)" */
    int rank_shown;
    const char *mark, *tuning, *unusable, *settings, *backends;
};

static struct terms read_terms(char *text)
{
    struct terms t = { .size = strtol(text, NULL, 10), .rank = text };
    char *rest = text, *said = strsep(&rest, "|"), *mark = strsep(&rest, "|"), *tuning = strsep(&rest, "|");
    char *unusable = strsep(&rest, "|"), *settings = strsep(&rest, "|");
    char *rank = strstr(said, "rank ");
    t.rank = rank ? rank : said;
    t.rank_shown = shown(t.rank, strlen(t.rank));
    t.mark = mark ? mark : "";
    t.tuning = tuning ? tuning : "";
    t.unusable = unusable ? unusable : "";
    t.settings = settings ? settings : "";
    t.backends = rest ? rest : "";
    return t;
}

static int has_tuning(const struct terms *t)
{
    return strcmp(t->tuning, "0") != 0;
}

/* At most `shown` bytes, with a mark where there is more. */
static void append_cut(char *text, size_t capacity, const char *more, size_t shown)
{
    size_t used = strlen(text), bytes = strlen(more);
    int is_cut = bytes > shown;
    snprintf(text + used, capacity - used, "%.*s%s", (int)(is_cut ? shown - 3 : bytes), more, is_cut ? "..." : "");
}

/* With what auto cannot take there, if that differs: then the strings may be the same. */
static void write_backends(char *text, size_t capacity, const struct terms *t, size_t reason_shown)
{
    snprintf(text, capacity, "%.*s has '", t->rank_shown, t->rank);
    append_cut(text, capacity, t->backends, BACKENDS_SHOWN);
    strcat(text, "'");
    if (!reason_shown || !*t->unusable)
        return;
    strcat(text, ", for it cannot use ");
    append_cut(text, capacity, t->unusable, reason_shown);
}

/* The reasons share what the rest of the text leaves; a short one leaves more to the other one. */
static size_t reason_share(size_t left, const char *other_reason)
{
    size_t other = strlen(other_reason);
    return other < left / 2 ? left - other : left / 2;
}

static void write_other_backends(char *text, size_t capacity, const struct terms *mine, const struct terms *theirs)
{
    enum { MARKS = 90 }; /* "the ranks have different backends: ", ", but ", ", for it cannot use " twice */
    char we[VERDICT_SHOWN], they[VERDICT_SHOWN];
    const int differ = strcmp(mine->unusable, theirs->unusable) != 0;
    const char *cure =
        differ ? "Name one that all of them can use, such as cpu:tcp, or mend what keeps some of them from it"
               : "Give all ranks the same string (what differs from host to host goes into the environment, such as "
                 "COMM_TCP_INTERFACE)";
    write_backends(we, sizeof we, mine, 0);
    write_backends(they, sizeof they, theirs, 0);
    if (differ) {
        size_t left = VERDICT_SHOWN - MARKS - strlen(we) - strlen(they) - strlen(cure);
        write_backends(we, sizeof we, mine, reason_share(left, theirs->unusable));
        write_backends(they, sizeof they, theirs, reason_share(left, mine->unusable));
    }
    snprintf(text, capacity, "the ranks have different backends: %s, but %s. %s", we, they, cure);
}

/* What is said of the variable on the line `at` ("COMM_SHM_ALGO=ring\n"), and 0 if there it has the same value. */
static int write_setting(char *text, size_t capacity, const char *at, const struct terms *here,
                         const struct terms *there)
{
    enum { VALUE_SHOWN = 200 };
    int name = (int)strcspn(at, "=\n"), line = (int)strcspn(at, "\n");
    const char *other = there->settings;
    while (*other && strncmp(other, at, (size_t)name + 1) != 0)
        other += strcspn(other, "\n") + (strchr(other, '\n') != NULL);
    int other_line = (int)strcspn(other, "\n");
    if (other_line == line && strncmp(other, at, (size_t)line) == 0)
        return 0;
    const char *value = at + name + (at[name] == '='), *other_value = *other ? other + name + 1 : "";
    int shown_here = line - (int)(value - at), shown_there = *other ? other_line - name - 1 : 0;
    snprintf(text, capacity,
             "the ranks have different settings: %.*s has %.*s=%.*s, but %.*s has %s%.*s. Give all ranks the same %.*s",
             here->rank_shown, here->rank, name, at, shown_here < VALUE_SHOWN ? shown_here : VALUE_SHOWN, value,
             there->rank_shown, there->rank, *other ? "" : "the default",
             shown_there < VALUE_SHOWN ? shown_there : VALUE_SHOWN, other_value, name, at);
    return 1;
}

/* Of the first variable that one of them has set and the other one has not, or otherwise. */
static void write_settings(char *text, size_t capacity, const struct terms *mine, const struct terms *theirs)
{
    for (int side = 0; side < 2; side++) {
        const struct terms *here = side ? theirs : mine, *there = side ? mine : theirs;
        for (const char *at = here->settings; *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL))
            if (write_setting(text, capacity, at, here, there))
                return;
    }
    snprintf(text, capacity, "the ranks have different settings. Give all ranks the same environment");
}

static comm_status disagree(struct joining *j, const struct terms *mine, const struct terms *theirs)
{
    char text[COMM_ERROR_BYTES];
    if (theirs->size != mine->size)
        snprintf(
            text, sizeof text,
            "the ranks disagree about the world size: it has %ld ranks, says %.*s, but %ld ranks, says %.*s. Give all "
            "ranks the same (or, if that is an earlier run, a fresh store)",
            mine->size, mine->rank_shown, mine->rank, theirs->size, theirs->rank_shown, theirs->rank);
    else if (strcmp(theirs->mark, mine->mark) != 0)
        snprintf(
            text, sizeof text,
            "the ranks have different secrets: %.*s has another one than %.*s. Give all ranks the same COMM_SECRET",
            mine->rank_shown, mine->rank, theirs->rank_shown, theirs->rank);
    else if (strcmp(theirs->tuning, mine->tuning) != 0)
        snprintf(text, sizeof text,
                 "the ranks have different tuning files: %.*s has %s, but %.*s has %s. Give all ranks the same "
                 "COMM_TUNING",
                 mine->rank_shown, mine->rank, has_tuning(mine) ? "one" : "none", theirs->rank_shown, theirs->rank,
                 !has_tuning(theirs) ? "none" : has_tuning(mine) ? "another one" : "one");
    else if (strcmp(theirs->backends, mine->backends) != 0)
        write_other_backends(text, sizeof text, mine, theirs);
    else
        write_settings(text, sizeof text, mine, theirs);
    return decide_against(j, &showing_up, COMM_ERR_INVALID, text);
}

/* As a part of its own. */
static char *append_part(char *to, const char *part)
{
    for (; *part; part++)
        *to++ = (char)(*part == '|' ? '/' : *part);
    return stpcpy(to, "|");
}

static void append_terms(char *terms, const struct joining *j)
{
    char *to = append_part(terms + strlen(terms), j->unusable);
    stpcpy(append_part(to, j->settings), j->backends);
}

/* A world of which one rank believes that it is smaller would begin too early; ranks with different secrets would
 * refuse each other's connections until the time limit; ranks with different backends would not reach each other at
 * all; and ranks with different settings would send each other other messages than are awaited. */
static comm_status agree_on_terms(struct joining *j)
{
    char who[WHO_BYTES];
    size_t capacity = strlen(j->backends) + strlen(j->unusable) + strlen(j->settings) + WHO_BYTES + 96, bytes;
    write_who(who, "");
    char *mine = malloc(capacity);
    if (!mine)
        return comm__fail(COMM_ERR_NO_MEMORY, "joining a world");
    snprintf(mine, capacity, "%d ranks, says rank %d (%.*s)|%04x|%" PRIx64 "|", j->size, j->rank,
             shown(who, strlen(who)), who, mark_of(j->secret), j->tuning);
    append_terms(mine, j);
    void *there;
    comm_status status = comm_store_compare_set(j->store, "terms", "", 0, mine, strlen(mine), &there, &bytes);
    if (status == COMM_OK) {
        struct terms a = read_terms(mine), b = read_terms(there);
        if (a.size != b.size || strcmp(a.mark, b.mark) != 0 || strcmp(a.tuning, b.tuning) != 0 ||
            strcmp(a.backends, b.backends) != 0 || strcmp(a.settings, b.settings) != 0)
            status = disagree(j, &a, &b);
        comm_free(there);
    }
    free(mine);
    return status;
}

/* One more has come; *ret_last: it was the last one. */
static comm_status count_in(struct joining *j, const struct round *round, int *ret_last)
{
    int64_t count;
    comm_status status = comm_store_add(j->store, round->count, 1, &count);
    if (status != COMM_OK)
        return status;
    if (count > j->size)
        return comm__fail(COMM_ERR_INVALID, "%" PRId64 " ranks have %s, but the world has %d; the store %s holds an "
                          "earlier run: start a fresh one", count, round->done, j->size, comm_store_url(j->store));
    *ret_last = count == j->size;
    return COMM_OK;
}

static comm_status show_up(struct joining *j, comm_status able)
{
    char why[COMM_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", comm_last_error());
    comm_status status = find_number(j);
    if (status == COMM_OK)
        status = claim_rank(j);
    if (status == COMM_OK && able != COMM_OK) {
        comm__fail(able, "%s", why);
        return refuse(j, &showing_up, able);
    }
    if (status == COMM_OK)
        status = agree_on_terms(j);
    if (status == COMM_OK && j->rank == 0) {
        status = make_nonce(j->nonce);
        if (status == COMM_OK)
            status = comm_store_set(j->store, "nonce", j->nonce, strlen(j->nonce));
    }
    return status;
}

/* ---- Waiting for the others ---- */

static int is_there(struct joining *j, const struct round *round, int32_t first, int32_t last)
{
    char names[CHECKED_AT_ONCE][24];
    const char *keys[CHECKED_AT_ONCE];
    int32_t there = 0;
    for (int32_t r = first; r < last; r++) {
        snprintf(names[r - first], sizeof names[0], "%s/%d", round->member, r);
        keys[r - first] = names[r - first];
    }
    return comm_store_check(j->store, keys, (size_t)(last - first), &there) != COMM_OK || there;
}

/* "; a second process came as rank 1 (host a, process 7)", or "". */
static void write_note(struct joining *j, char *text, size_t capacity)
{
    const char *keys[] = { "twice" };
    int32_t there = 0;
    void *note;
    size_t bytes;
    *text = '\0';
    if (comm_store_check(j->store, keys, 1, &there) != COMM_OK || !there ||
        comm_store_get(j->store, keys[0], JOIN_LOOK_MS, &note, &bytes) != COMM_OK)
        return;
    snprintf(text, capacity, "; a second process came as %.*s, and was refused: give each process a rank of its own",
             shown(note, bytes), (const char *)note);
    comm_free(note);
}

/* "61 of 64 ranks have joined, missing: 3, 17, 40". Asks about many ranks at once, and not further than it can say. */
static void write_missing(struct joining *j, const struct round *round, char *text, size_t capacity)
{
    char missing[256] = "", why[300], note[WHO_BYTES + 128] = "";
    size_t used = 0;
    int64_t joined = 0;
    snprintf(why, sizeof why, "%s", comm_last_error()); /* of waiting for them: it had more time to be right */
    if (comm_store_add(j->store, round->count, 0, &joined) != COMM_OK) {
        snprintf(text, capacity, "the store does not say who has %s (%s)", round->done, why);
        return;
    }
    for (int32_t first = 0; first < j->size && used < sizeof missing - 16; first += CHECKED_AT_ONCE) {
        int32_t last = j->size - first < CHECKED_AT_ONCE ? j->size : first + CHECKED_AT_ONCE;
        if (is_there(j, round, first, last))
            continue;
        for (int32_t r = first; r < last && used < sizeof missing - 16; r++)
            if (!is_there(j, round, r, r + 1))
                used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", r);
    }
    if (used && round == &showing_up)
        write_note(j, note, sizeof note);
    snprintf(text, capacity, "%" PRId64 " of %d ranks have %s, missing: %s%s%s", joined, j->size, round->done,
             used ? missing : "none; the last rank has not reported it yet",
             used >= sizeof missing - 16 ? " ..." : "", note);
}

static comm_status give_up(struct joining *j, const struct round *round)
{
    char missing[640], who[WHO_BYTES], text[COMM_ERROR_BYTES];
    write_missing(j, round, missing, sizeof missing);
    write_who(who, "");
    snprintf(text, sizeof text, "rank %d (%.*s) timed out after %" PRId64 " ms: %s", j->rank, shown(who, strlen(who)),
             who, (clock_now_ns() - j->began_ns) / 1000000, missing);
    return decide_against(j, round, COMM_ERR_TIMEOUT, text); /* or all have come at the last moment */
}

/* The lowest rank that is there says which ranks are missing. */
static int speaks(struct joining *j, const struct round *round)
{
    for (int32_t r = 0; r < j->rank; r++)
        if (is_there(j, round, r, r + 1))
            return 0;
    return 1;
}

static void say_who_is_missing(struct joining *j, const struct round *round)
{
    char text[640];
    int32_t level = comm__log_wanted(COMM_LOG_INFO) ? COMM_LOG_INFO : COMM_LOG_WARN;
    if (!comm__log_wanted(COMM_LOG_WARN))
        return;
    if (speaks(j, round))
        level = COMM_LOG_WARN;
    else if (level == COMM_LOG_WARN)
        return;
    write_missing(j, round, text, sizeof text);
    comm__log(level, "world '%s' (rank %d): %s", j->name, j->rank, text);
}

/* ---- Which rank has ended? ----
 *
 * A rank watches the next seven, and those 8, 16, 32 ... further: so in a small world every rank watches every other,
 * and in a large one each is watched by several, which need not all be waiting yet. */

static int32_t watched_rank(const struct joining *j, int i)
{
    int64_t distance = i < 7 ? i + 1 : (int64_t)8 << (i - 7);
    return distance < j->size ? (int32_t)((j->rank + distance) % j->size) : -1;
}

static int begin_watch(struct joining *j, int32_t rank, struct watch *w)
{
    char key[32];
    const char *keys[] = { key };
    int32_t there = 0;
    void *claim;
    snprintf(key, sizeof key, "%s/%d", showing_up.member, rank);
    if (comm_store_check(j->store, keys, 1, &there) != COMM_OK || !there ||
        comm_store_get(j->store, key, JOIN_LOOK_MS, &claim, NULL) != COMM_OK)
        return 0;
    /* a store's values end with a NUL */
    const char *host = strchr(claim, '\n'), *endpoint = host ? strchr(host + 1, '\n') : NULL;
    comm__watch_begin(w, endpoint ? endpoint + 1 : "");
    comm_free(claim);
    return 1;
}

/* A rank whose process has ended, as far as can be told; else -1. */
static int32_t find_ended(struct joining *j, const struct round *round)
{
    if (!j->watches)
        j->watches = calloc(LIFELINE_WATCHES_MAX, sizeof *j->watches);
    for (int i = 0; j->watches && i < LIFELINE_WATCHES_MAX; i++) {
        struct watch *w = &j->watches[i];
        int32_t rank = watched_rank(j, i);
        if (rank < 0)
            break;
        if ((w->begun || begin_watch(j, rank, w)) &&
            (comm__watch_look(w) ||
             (round->refusals_count && comm__watch_refused(w) && !is_there(j, round, rank, rank + 1))))
            return rank;
    }
    return -1;
}

static comm_status tell_ended(struct joining *j, const struct round *round, int32_t ended)
{
    char key[32], who[WHO_BYTES], text[COMM_ERROR_BYTES];
    void *them = NULL;
    size_t bytes = 0;
    snprintf(key, sizeof key, "rank/%d", ended);
    if (comm_store_get(j->store, key, left_ms(j), &them, &bytes) != COMM_OK)
        them = NULL;
    write_who(who, "");
    snprintf(text, sizeof text,
             "rank %d (%.*s) has ended, or has given up, before all ranks had %s, as rank %d (%.*s) noticed", ended,
             them ? shown(them, bytes) : 1, them ? (const char *)them : "?", round->done, j->rank,
             shown(who, strlen(who)), who);
    comm_free(them);
    return decide_against(j, round, COMM_ERR_PEER_LOST, text); /* or all have come, and it is on its way */
}

/* ---- The rounds ---- */

static comm_status wait_for_all(struct joining *j, const struct round *round)
{
    int64_t news_ms = comm__param_int("progress_log_ms");
    int64_t news_ns = clock_deadline_ns(news_ms);
    for (;;) {
        void *verdict;
        size_t bytes;
        int64_t left = clock_left_ms(j->deadline_ns), look_ms = news_ms < JOIN_LOOK_MS ? news_ms : JOIN_LOOK_MS;
        if (left == 0)
            return give_up(j, round);
        comm_status status =
            comm_store_get(j->store, round->all, left < 0 || left > look_ms ? look_ms : left, &verdict, &bytes);
        if (status == COMM_OK)
            return take_verdict(j, verdict, bytes);
        if (status != COMM_ERR_TIMEOUT)
            return status;
        int32_t ended = find_ended(j, round);
        if (ended >= 0)
            return tell_ended(j, round, ended);
        if (clock_now_ns() < news_ns)
            continue;
        say_who_is_missing(j, round);
        news_ns = clock_deadline_ns(news_ms);
    }
}

comm_status comm__join_look(struct joining *j)
{
    const char *keys[] = { opening.all };
    int32_t there = 0;
    void *verdict;
    size_t bytes;
    comm_status status = comm_store_check(j->store, keys, 1, &there);
    if (status == COMM_OK && there)
        status = comm_store_get(j->store, opening.all, JOIN_LOOK_MS, &verdict, &bytes);
    if (status != COMM_OK)
        return COMM_OK;
    if (there)
        return take_verdict(j, verdict, bytes);
    int32_t ended = find_ended(j, &opening);
    return ended >= 0 ? tell_ended(j, &opening, ended) : COMM_OK;
}

/* The last one to come tells all: `more` is what they should know. */
static comm_status decide_for(struct joining *j, const struct round *round, const void *more, size_t bytes)
{
    char *verdict = malloc(sizeof ALL_WELL + bytes);
    if (!verdict)
        return decide_against(j, round, COMM_ERR_NO_MEMORY, "the last rank to come had no memory to tell the others");
    memcpy(verdict, ALL_WELL, sizeof ALL_WELL);
    if (bytes)
        memcpy(verdict + sizeof ALL_WELL, more, bytes);
    comm_status status = decide(j, round, verdict, sizeof ALL_WELL + bytes);
    free(verdict);
    return status;
}

/* What all ranks have set under `member`, and at the end, if not NULL, what is under `more`. */
struct fetched {
    size_t count;
    char (*names)[32];
    const char **keys;
    void **values;
    size_t *bytes;
};

static void fetched_finish(struct fetched *f)
{
    for (size_t i = 0; f->values && i < f->count; i++)
        comm_free(f->values[i]);
    free(f->names);
    free(f->keys);
    free(f->values);
    free(f->bytes);
}

static comm_status fetch(struct joining *j, const char *member, const char *more, struct fetched *f)
{
    f->count = (size_t)j->size + (more != NULL);
    f->names = calloc(f->count, sizeof *f->names);
    f->keys = calloc(f->count, sizeof *f->keys);
    f->values = calloc(f->count, sizeof *f->values);
    f->bytes = calloc(f->count, sizeof *f->bytes);
    if (!f->names || !f->keys || !f->values || !f->bytes)
        return comm__fail(COMM_ERR_NO_MEMORY, "what %d ranks have said", j->size);
    for (int32_t r = 0; r < j->size; r++) {
        snprintf(f->names[r], sizeof f->names[r], "%s/%d", member, r);
        f->keys[r] = f->names[r];
    }
    if (more)
        f->keys[j->size] = more;
    comm_status status = COMM_OK;
    for (size_t done = 0, count; status == COMM_OK && done < f->count; done += count) {
        count = f->count - done < FETCHED_AT_ONCE ? f->count - done : FETCHED_AT_ONCE;
        status = comm_store_multi_get(j->store, f->keys + done, count, left_ms(j), f->values + done, f->bytes + done);
    }
    return status;
}

/* The hosts of the ranks that have made these claims, and the hosts' cores. */
static comm_status write_hosts(struct joining *j, const struct fetched *claims, char **ret_hosts, char **ret_cores)
{
    uint64_t *ids = calloc((size_t)j->size, sizeof *ids);
    int32_t *hosts = calloc((size_t)j->size, sizeof *hosts);
    const char **masks = calloc((size_t)j->size, sizeof *masks);
    comm_status status = ids && hosts && masks ? COMM_OK
                                               : comm__fail(COMM_ERR_NO_MEMORY, "the hosts of %d ranks", j->size);
    for (int32_t r = 0; status == COMM_OK && r < j->size; r++) {
        char *id = strchr(claims->values[r], '\n'), *end = id;
        ids[r] = id ? strtoull(id + 1, &end, 16) : 0;
        masks[r] = id && *end == ' ' ? end + 1 : NULL;
    }
    if (status == COMM_OK)
        status = comm__hosts_number(ids, j->size, hosts);
    if (status == COMM_OK)
        status = comm__hosts_write(hosts, j->size, ret_hosts);
    if (status == COMM_OK)
        status = comm__host_cores_write(hosts, masks, j->size, ret_cores);
    free(ids);
    free(hosts);
    free(masks);
    return status;
}

/* "<nonce> <hosts> <cores>". */
static comm_status tell_start(struct joining *j, const struct fetched *claims)
{
    int64_t worlds;
    char *hosts = NULL, *cores = NULL;
    comm_status status = write_hosts(j, claims, &hosts, &cores);
    if (status != COMM_OK) {
        free(hosts);
        return decide_against(j, &showing_up, status, comm_last_error());
    }
    size_t nonce_bytes = claims->bytes[j->size], bytes = nonce_bytes + 2 + strlen(hosts) + strlen(cores);
    char *start = malloc(bytes + 1);
    if (start) {
        memcpy(start, claims->values[j->size], nonce_bytes);
        sprintf(start + nonce_bytes, " %s %s", hosts, cores);
        /* In this order: a rank that knows that all are here finds the next world if it joins again. */
        status = comm_store_add(j->names, "worlds", 1, &worlds);
    }
    if (status == COMM_OK)
        status = start ? decide_for(j, &showing_up, start, bytes)
                       : decide_against(j, &showing_up, COMM_ERR_NO_MEMORY,
                                        "the last rank to come had no memory to tell the others");
    free(start);
    free(hosts);
    free(cores);
    return status;
}

static comm_status tell_nonce_and_hosts(struct joining *j)
{
    struct fetched claims = { 0 };
    comm_status status = fetch(j, showing_up.member, "nonce", &claims);
    if (status == COMM_OK)
        status = tell_start(j, &claims);
    fetched_finish(&claims);
    return status;
}

static comm_status take_nonce_and_hosts(struct joining *j)
{
    size_t bytes, nonce_bytes = JOIN_NONCE_TEXT - 1;
    const char *start = payload(j, &bytes); /* ends with a NUL, as all that comes from a store */
    if (bytes <= nonce_bytes || start[nonce_bytes] != ' ')
        return comm__fail(COMM_ERR_PROTOCOL, "the store %s holds a nonce of %zu bytes", comm_store_url(j->store),
                          bytes);
    memcpy(j->nonce, start, nonce_bytes);
    j->nonce[nonce_bytes] = '\0';
    j->hosts = malloc((size_t)j->size * sizeof *j->hosts);
    if (!j->hosts)
        return comm__fail(COMM_ERR_NO_MEMORY, "the hosts of %d ranks", j->size);
    const char *hosts = start + nonce_bytes + 1, *cores = strchr(hosts, ' ');
    comm_status status = comm__hosts_read(hosts, j->size, j->hosts);
    if (status == COMM_OK)
        j->local_cores = comm__host_cores_read(cores ? cores + 1 : NULL, j->hosts[j->rank]);
    return status;
}

comm_status comm__join(struct joining *j, comm_status able)
{
    int last = 0;
    comm__lifeline_open(&j->lifeline);
    comm_status status = show_up(j, able);
    if (status == COMM_OK)
        status = count_in(j, &showing_up, &last);
    if (status == COMM_OK && !last)
        comm__join_sweep(j); /* while others come */
    if (status == COMM_OK)
        status = last ? tell_nonce_and_hosts(j) : wait_for_all(j, &showing_up);
    return status == COMM_OK ? take_nonce_and_hosts(j) : status;
}

static comm_status count_own_cores(struct joining *j)
{
    char mine[HOST_CORES_TEXT], *text;
    const char *mask = mine;
    comm__host_cores_mine(mine);
    comm_status status = comm__host_cores_write(j->hosts, &mask, 1, &text);
    if (status != COMM_OK)
        return status;
    j->local_cores = comm__host_cores_read(text, 0);
    free(text);
    return COMM_OK;
}

comm_status comm__join_alone(struct joining *j)
{
    j->lifeline.listener = -1;
    comm_status status = make_nonce(j->nonce);
    j->hosts = calloc(1, sizeof *j->hosts);
    if (status == COMM_OK && !j->hosts)
        status = comm__fail(COMM_ERR_NO_MEMORY, "a world of one rank");
    if (status == COMM_OK)
        status = count_own_cores(j);
    return status == COMM_OK ? comm_store_open("hash://", NULL, &j->store) : status;
}

/* All cards, one after the other: they are short, and each rank would have to ask for those of most others sooner or
 * later. None, if they are more than the parameter allows. */
static comm_status gather_cards(struct joining *j, char **ret_cards, size_t *ret_bytes)
{
    struct fetched cards = { 0 };
    size_t total = 0, most = (size_t)comm__param_int("handout_bytes");
    comm_status status = fetch(j, opening.member, NULL, &cards);
    for (size_t r = 0; status == COMM_OK && r < cards.count; r++)
        total += cards.bytes[r];
    char *all = status == COMM_OK && total <= most ? malloc(total + 1) : NULL;
    *ret_bytes = 0;
    for (size_t r = 0; all && r < cards.count; r++) {
        memcpy(all + *ret_bytes, cards.values[r], cards.bytes[r]);
        *ret_bytes += cards.bytes[r];
    }
    *ret_cards = all;
    fetched_finish(&cards);
    return status;
}

static comm_status tell_cards(struct joining *j)
{
    char *cards = NULL;
    size_t bytes = 0;
    comm_status status = COMM_OK;
    if (j->size <= CARDS_MAX && comm__param_int("handout_bytes") > 0)
        status = gather_cards(j, &cards, &bytes);
    if (status == COMM_OK)
        status = decide_for(j, &opening, cards, bytes);
    free(cards);
    return status;
}

comm_status comm__join_confirm(struct joining *j, comm_status able, const void *card, size_t bytes,
                               const void **ret_cards, size_t *ret_bytes)
{
    char key[32];
    int last = 0;
    j->heard = 0;
    if (able != COMM_OK)
        return refuse(j, &opening, able);
    snprintf(key, sizeof key, "%s/%d", opening.member, j->rank);
    comm_status status = comm_store_set(j->store, key, card, bytes);
    if (status == COMM_OK)
        status = count_in(j, &opening, &last);
    if (status == COMM_OK && !last)
        comm__join_sweep(j);
    if (status == COMM_OK)
        status = last ? tell_cards(j) : wait_for_all(j, &opening);
    if (status != COMM_OK)
        return status;
    comm__join_sweep(j); /* who came last both times: the others do not wait for it */
    *ret_cards = payload(j, ret_bytes);
    if (*ret_bytes == 0 && bytes > 0) /* not handed out: ranks ask for what is on it, and it must not be swept */
        (void)comm_store_delete(j->store, key, NULL);
    return COMM_OK;
}

void comm__join_end(struct joining *j)
{
    for (int i = 0; j->watches && i < LIFELINE_WATCHES_MAX; i++)
        comm__watch_end(&j->watches[i]);
    free(j->watches);
    j->watches = NULL;
    comm_free(j->verdict);
    j->verdict = NULL;
    free(j->hosts);
    j->hosts = NULL;
    comm__lifeline_close(&j->lifeline);
}

/* ---- Leaving ---- */

void comm__leave(comm_store *view, int32_t rank, int32_t size, int64_t most_ms)
{
    int64_t left, patience_ms = comm__param_int("leave_ms");
    if (patience_ms > most_ms)
        patience_ms = most_ms;
    const char *gone[] = { "gone" };
    if (patience_ms == 0)
        return;
    /* The server's process may have been stopped, or cut off: that is no reason to stay. Nor is there more time than
     * comm_init had, if it is comm_init that gives up: the view has its deadline. */
    if (comm_store_set_timeout(view, patience_ms) != COMM_OK || comm_store_add(view, "left", 1, &left) != COMM_OK)
        return;
    if (left == size)
        (void)comm_store_set(view, "gone", "", 0);
    else if (rank == 0)
        (void)comm_store_wait(view, gone, 1, patience_ms);
}

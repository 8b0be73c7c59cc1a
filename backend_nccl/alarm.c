/* How the ranks of a group tell each other that it has ended, and ask which rank is late.
 *
 * NCCL has no way for it: a rank whose peer has ended waits until its own time limit. All of it goes through the
 * world's store. One thread per world listens.
 *
 *   alarms           how many there were
 *   alarm.K          the K-th alarm of the world: "E group status rank lost text" (ended; `lost` are the ranks that are
 *                    known to be: "3,7", or "-"), "L group 0 rank - text" (late), or "N": rank 0 has left a note
 *                    (peers.c), which is read while there is the store
 *   listens.RANK     that rank of the world hears of alarms, and answers
 *   answer.K.RANK    to a late one: what that rank of the group does
 *   ended.GROUP      the group's end is being told
 *   why.GROUP        its alarm, "E ...", for a rank that has passed over that, as it had not made the group yet */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

enum {
    SLOW_NS = 1000000000, /* an operation that takes longer is reason to look after the peers */
    LISTEN_MS = 500,
    PROBE_MS = 500,
    ANSWERS_MS = 300,
    REASON_MS = 1000,
    ANSWER_LOOK_NS = 10000000,
    SAID_MAX = 6,
    LOST_BYTES = 128, /* the list of lost ranks in an alarm; the others look themselves for those that do not fit in */
    ALARM_BYTES = TEXT_BYTES + LOST_BYTES + 96,
};

/* ---- The store ---- */

static comm_status set_text(struct world *w, const char *key, const char *text)
{
    return host->store_set(w->info->store, key, text, strlen(text));
}

/* NULL: not there within the time. free() it. */
static char *get_text(struct world *w, const char *key, int64_t timeout_ms)
{
    void *data;
    size_t bytes;
    if (host->store_get(w->info->store, NULL, key, timeout_ms, &data, &bytes) != COMM_OK)
        return NULL;
    char *text = strndup(data, bytes);
    host->free_memory(data);
    return text;
}

/* The store's calls have long time limits: first see whether it answers at all. */
static int store_answers(struct world *w)
{
    char *text = get_text(w, "alarms", PROBE_MS);
    free(text);
    return text != NULL;
}

char *alarm_get_text(struct world *w, const char *key)
{
    return get_text(w, key, PROBE_MS);
}

static void list_lost(const struct group *g, char *list, size_t capacity)
{
    size_t used = 0;
    snprintf(list, capacity, "-");
    for (int32_t rank = 0; rank < g->info->size && used + 12 < capacity; rank++)
        if (host->rank_is_lost(g->info->token, g->info->world_ranks[rank]))
            used += (size_t)snprintf(list + used, capacity - used, "%s%d", used ? "," : "", rank);
}

static int64_t append_text(struct world *w, const char *text)
{
    char key[KEY_BYTES];
    int64_t number;
    if (host->store_add(w->info->store, "alarms", 1, &number) != COMM_OK)
        return 0;
    snprintf(key, sizeof key, "alarm.%" PRId64, number);
    return set_text(w, key, text) == COMM_OK ? number : 0;
}

void alarm_leave(struct world *w)
{
    append_text(w, "N");
}

static void write_alarm(struct group *g, char kind, comm_status status, const char *why, char text[ALARM_BYTES])
{
    char lost[LOST_BYTES] = "-";
    if (status == COMM_ERR_PEER_LOST)
        list_lost(g, lost, sizeof lost);
    snprintf(text, ALARM_BYTES, "%c %" PRIx64 " %d %d %s %s", kind, g->info->id, status, g->info->rank, lost, why);
}

/* A rank that ends a group before it has used a device has no listener yet; the listener makes the count of alarms. */
static int listens(struct world *w)
{
    pthread_mutex_lock(&w->lock);
    int has = w->has_listener || (w->info->size > 1 && listener_start(w) == COMM_OK);
    pthread_mutex_unlock(&w->lock);
    return has;
}

int alarm_store_answers(struct world *w)
{
    return listens(w) && store_answers(w);
}

static void group_key(const struct group *g, const char *what, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s.%" PRIx64, what, g->info->id);
}

int alarm_raise(struct group *g)
{
    char key[KEY_BYTES], alarm[ALARM_BYTES];
    int64_t first;
    if (g->info->size == 1 || !alarm_store_answers(g->world))
        return 0;
    group_key(g, "ended", key);
    if (host->store_add(g->world->info->store, key, 1, &first) != COMM_OK)
        return 0;
    if (first != 1)
        return 1;
    write_alarm(g, 'E', atomic_load(&g->ended), g->ended_text, alarm);
    group_key(g, "why", key);
    return set_text(g->world, key, alarm) == COMM_OK && append_text(g->world, alarm) > 0;
}

/* ---- Peers that are lost ---- */

void alarm_look_for_lost(struct group *g)
{
    char why[WHY_BYTES];
    peers_lost(g, why);
}

int alarm_name_the_ended(struct group *g, char *text, size_t capacity)
{
    char who[64], why[WHY_BYTES];
    int rank = peers_lost(g, why);
    if (rank < 0)
        return 0;
    say_rank(g, rank, who, sizeof who);
    snprintf(text, capacity, "; lost %s: %s", who, why);
    return 1;
}

/* ---- A rank that is late: which others wait, and which do not ---- */

static void collect_answers(struct group *g, int64_t number, char **answers)
{
    int64_t until_ns = host->now_ns() + ANSWERS_MS * 1000000LL;
    int32_t missing = g->info->size - 1;
    while (missing > 0 && host->now_ns() < until_ns) {
        pause_for(ANSWER_LOOK_NS);
        for (int32_t rank = 0; rank < g->info->size; rank++) {
            char key[KEY_BYTES];
            int32_t exists = 0;
            if (rank == g->info->rank || answers[rank])
                continue;
            snprintf(key, sizeof key, "answer.%" PRId64 ".%d", number, rank);
            if (host->store_check(g->world->info->store, key, &exists) == COMM_OK && exists)
                answers[rank] = get_text(g->world, key, ANSWERS_MS);
            missing -= answers[rank] != NULL;
        }
    }
}

/* A rank that is asked and does not answer. */
static void say_why_silent(struct group *g, int rank, char *text, size_t capacity)
{
    char key[KEY_BYTES], why[WHY_BYTES];
    int32_t listens = 1;
    snprintf(key, sizeof key, "listens.%d", g->info->world_ranks[rank]);
    if (peers_look(g, rank, why) != PEER_THERE)
        snprintf(text, capacity, "does not answer: %s", why);
    else if (host->store_check(g->world->info->store, key, &listens) == COMM_OK && !listens)
        snprintf(text, capacity, "has called nothing on a GPU yet");
    else
        snprintf(text, capacity, "does not answer: it is stopped, or gets no CPU time");
}

static void say_answers(struct group *g, char *const *answers, char *text, size_t capacity)
{
    int said = 0;
    for (int32_t rank = 0; rank < g->info->size && said < SAID_MAX; rank++) {
        char who[64], silent[WHY_BYTES + 32];
        size_t used = strlen(text);
        if (rank == g->info->rank)
            continue;
        say_rank(g, rank, who, sizeof who);
        if (!answers[rank])
            say_why_silent(g, rank, silent, sizeof silent);
        snprintf(text + used, capacity - used, "; %s %s", who, answers[rank] ? answers[rank] : silent);
        said++;
    }
}

void alarm_ask(struct group *g, const char *what, char *answer, size_t capacity)
{
    *answer = '\0';
    if (!g->world->has_listener || g->info->size == 1)
        return;
    char alarm[ALARM_BYTES];
    char **answers = calloc((size_t)g->info->size, sizeof *answers);
    write_alarm(g, 'L', COMM_OK, what, alarm);
    int64_t number = answers && store_answers(g->world) ? append_text(g->world, alarm) : 0;
    if (number) {
        collect_answers(g, number, answers);
        say_answers(g, answers, answer, capacity);
    } else {
        snprintf(answer, capacity, "; the store does not answer, so the other ranks cannot be asked");
    }
    for (int32_t rank = 0; answers && rank < g->info->size; rank++)
        free(answers[rank]);
    free(answers);
}

/* ---- The listener ---- */

/* Called with the world's lock. */
static struct group *group_of_id(struct world *w, uint64_t id)
{
    for (struct group *g = w->groups; g; g = g->next)
        if (g->info->id == id)
            return g;
    return NULL;
}

static void answer(struct world *w, struct group *g, int64_t number)
{
    char key[KEY_BYTES], text[TEXT_BYTES / 4];
    const struct flight *f = NULL;
    pthread_mutex_lock(&g->lock);
    for (struct communicator *c = g->communicators; c && !f; c = c->next)
        f = c->pending.first ? c->pending.first : c->issuing.first ? c->issuing.first : c->queued.first;
    if (atomic_load(&g->ended))
        snprintf(text, sizeof text, "has noticed it, too");
    else if (f)
        snprintf(text, sizeof text, "waits in %s #%" PRIu64, comm_op_traits_of(f->op.kind)->name, f->op.group_seq);
    else if (g->last_kind)
        snprintf(text, sizeof text, "has not called it: its last collective was %s #%" PRIu64,
                 comm_op_traits_of(g->last_kind)->name, g->last_seq);
    else
        snprintf(text, sizeof text, "has not called it: it has called no collective of the group yet");
    pthread_mutex_unlock(&g->lock);
    snprintf(key, sizeof key, "answer.%" PRId64 ".%d", number, g->info->rank);
    pthread_mutex_unlock(&w->lock);
    set_text(w, key, text);
    pthread_mutex_lock(&w->lock);
}

static void hear_of_lost(const struct group *g, const char *list, const char *text)
{
    for (char *end; *list >= '0' && *list <= '9'; list = end + (*end == ',')) {
        long rank = strtol(list, &end, 10);
        if (rank < g->info->size && rank != g->info->rank)
            host->rank_lost(g->info->token, g->info->world_ranks[rank], text);
    }
}

struct alarm {
    char kind;
    uint64_t id;
    int status, rank;
    char lost[LOST_BYTES];
    const char *why;
};

static int read_alarm(const char *text, struct alarm *a)
{
    int at = 0;
    int found = sscanf(text, "%c %" SCNx64 " %d %d %127s %n", &a->kind, &a->id, &a->status, &a->rank, a->lost, &at);
    a->why = text + at;
    return found == 5 && at;
}

static int is_of_another(const struct group *g, const struct alarm *a)
{
    return a->rank >= 0 && a->rank < g->info->size && a->rank != g->info->rank;
}

/* Another rank has ended the group. */
static void hear_reason(struct group *g, const struct alarm *a)
{
    char text[TEXT_BYTES], who[64];
    say_rank(g, a->rank, who, sizeof who);
    snprintf(text, sizeof text, "%s reports: %s", who, a->why);
    hear_of_lost(g, a->lost, text); /* before the group ends */
    pthread_mutex_lock(&g->lock);
    if (g->asks && !g->heard) {
        g->heard = status_that_ends(a->status);
        snprintf(g->heard_text, sizeof g->heard_text, "%s", text);
    }
    group_end(g, status_that_ends(a->status), text, 1);
    pthread_mutex_unlock(&g->lock);
}

/* An alarm of another rank. Called with the world's lock, which keeps its groups. */
static void hear(struct world *w, int64_t number, const char *alarm)
{
    struct alarm a;
    struct group *g = read_alarm(alarm, &a) ? group_of_id(w, a.id) : NULL;
    if (!g || !is_of_another(g, &a))
        return;
    if (a.kind == 'L')
        answer(w, g, number);
    else
        hear_reason(g, &a);
}

void alarm_look_for_reason(struct group *g)
{
    char key[KEY_BYTES];
    struct alarm a;
    int32_t exists = 0;
    if (g->info->size == 1 || !alarm_store_answers(g->world))
        return;
    group_key(g, "ended", key);
    if (host->store_check(g->world->info->store, key, &exists) != COMM_OK || !exists)
        return;
    group_key(g, "why", key);
    char *text = get_text(g->world, key, REASON_MS);
    if (text && read_alarm(text, &a) && a.kind == 'E' && a.id == g->info->id && is_of_another(g, &a))
        hear_reason(g, &a);
    free(text);
}

/* NCCL would wait for them: over NVLink and shared memory it does not notice. */
static int is_slow(struct group *g, int64_t now_ns)
{
    int slow = 0;
    pthread_mutex_lock(&g->lock);
    for (struct communicator *c = g->communicators; c && !atomic_load(&g->ended); c = c->next) {
        const struct flight *oldest[] = { c->pending.first, c->issuing.first, c->queued.first };
        for (int i = 0; i < 3; i++)
            slow |= oldest[i] && now_ns - oldest[i]->began_ns > SLOW_NS;
        slow |= c->state == COMMUNICATOR_WORKING && now_ns - c->began_ns > SLOW_NS;
    }
    pthread_mutex_unlock(&g->lock);
    return slow;
}

static void end_for_peer(struct group *g, int rank, const char *why)
{
    char who[64], text[TEXT_BYTES];
    say_rank(g, rank, who, sizeof who);
    snprintf(text, sizeof text, "lost %s: %s", who, why);
    pthread_mutex_lock(&g->lock);
    group_end(g, COMM_ERR_PEER_LOST, text, 0);
    pthread_mutex_unlock(&g->lock);
}

/* Called with the world's lock. */
static struct group *next_to_check(struct world *w, int64_t now_ns)
{
    struct group *g = w->groups;
    while (g && (g->checked_ns > now_ns - SLOW_NS || !is_slow(g, now_ns)))
        g = g->next;
    return g;
}

/* Called with the world's lock, which is released meanwhile: w->checked keeps the group open, but not in the list. */
static void look_after_peers(struct world *w)
{
    int64_t now_ns = host->now_ns();
    for (struct group *g; !w->stopping && (g = next_to_check(w, now_ns));) {
        w->checked = g;
        pthread_mutex_unlock(&w->lock);
        char why[WHY_BYTES];
        int32_t gone = peers_gone_with_store(g);
        int rank = gone > g->awaited ? -1 : peers_lost(g, why); /* else what they sent may be on its way */
        g->awaited = gone;
        if (rank >= 0)
            end_for_peer(g, rank, why);
        pthread_mutex_lock(&w->lock);
        g->checked_ns = host->now_ns();
        w->checked = NULL;
        pthread_cond_broadcast(&w->stopped);
    }
}

static void *listener_main(void *context)
{
    struct world *w = context;
    char key[KEY_BYTES];
    int64_t next = 1, none;
    capture_relax();
    host->store_add(w->info->store, "alarms", 0, &none);
    snprintf(key, sizeof key, "listens.%d", w->info->rank);
    set_text(w, key, "");
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        snprintf(key, sizeof key, "alarm.%" PRId64, next);
        pthread_mutex_unlock(&w->lock);
        int64_t began_ns = host->now_ns();
        char *alarm = get_text(w, key, LISTEN_MS);
        int64_t until_ns = began_ns + LISTEN_MS * 1000000LL;
        if (alarm && *alarm == 'N')
            peers_read_first(w);
        pthread_mutex_lock(&w->lock);
        if (alarm)
            hear(w, next++, alarm);
        while (!alarm && !w->stopping && host->now_ns() < until_ns) { /* the store failed at once */
            struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
            pthread_cond_timedwait(&w->stopped, &w->lock, &t);
        }
        free(alarm);
        look_after_peers(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

comm_status listener_start(struct world *w)
{
    int error = pthread_create(&w->listener, NULL, listener_main, w);
    w->has_listener = error == 0;
    return error == 0 ? COMM_OK : fail(COMM_ERR_NO_MEMORY, "the thread that hears of other ranks' ends cannot be "
                                       "started: error %d", error);
}

void listener_stop(struct world *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = 1;
    pthread_cond_broadcast(&w->stopped);
    pthread_mutex_unlock(&w->lock);
    if (w->has_listener)
        pthread_join(w->listener, NULL);
    w->has_listener = 0;
}

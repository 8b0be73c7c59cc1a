/* The communicators of a group: one for its collectives and the user's messages, one for libcomm's own.
 *
 * A thread makes them from when the group is opened: all members must take part, but two that exchange a message must
 * not depend on what the others do. It calls MPI, which blocks, when all members have come, as they tell each other by
 * the store: so a member that never comes leaves no other inside MPI, and groups that share ranks can be made in any
 * order.
 *
 * The members are found among the processes of MPI_COMM_WORLD, by what each rank has written on its card. Processes
 * that are alone in theirs ("singletons") are joined one after the other, by a port of MPI's. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

enum { GET_MS = 200, CARD_BYTES = 256, JOIN_MS = 2000, LOOK_NS = 100000000, ASK_AGAIN_NS = 20000000,
       BACK_OFF_MOST = 4 };

/* ---- Processes ---- */

/* Groups of different worlds have no turns in common, but processes. So the members ask each other whether their
 * processes are free, and take them: all, or none, and then they ask again a little later. Groups of one rank wait for
 * each other, as two threads must not copy MPI_COMM_SELF at once; for the others only with a serialised MPI. */
struct taken {
    const struct group *by; /* NULL: it is free */
};

static struct taken process, self;
static pthread_mutex_t taken_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t taken_changed = PTHREAD_COND_INITIALIZER;

static struct taken *what_to_take(const struct group *g)
{
    return g->info->size == 1 && !mpi_is_serialised() ? &self : &process;
}

static int take(const struct group *g)
{
    struct taken *t = what_to_take(g);
    pthread_mutex_lock(&taken_lock);
    int is_free = !t->by;
    if (is_free)
        t->by = g;
    pthread_mutex_unlock(&taken_lock);
    return is_free;
}

/* If it is this group's still: it is not when its thread was abandoned. */
static void let_go(const struct group *g)
{
    struct taken *t = what_to_take(g);
    pthread_mutex_lock(&taken_lock);
    if (t->by == g)
        t->by = NULL;
    pthread_cond_broadcast(&taken_changed);
    pthread_mutex_unlock(&taken_lock);
}

static int has_taken(const struct group *g)
{
    pthread_mutex_lock(&taken_lock);
    int has = what_to_take(g)->by == g;
    pthread_mutex_unlock(&taken_lock);
    return has;
}

/* The poller looks for members that have died, as other groups wait for this process. */
static void watch(struct group *g)
{
    if (g->is_watched || !has_taken(g))
        return;
    g->is_watched = 1;
    pthread_mutex_lock(&g->world->lock);
    poller_start(g->world);
    pthread_mutex_unlock(&g->world->lock);
    communicator_awaited(g, 1);
}

void communicator_awaited(struct group *g, int change)
{
    pthread_mutex_lock(&g->lock);
    if (g->awaited == 0)
        g->connect_ns = host->now_ns();
    g->awaited += change;
    if (g->awaited == 0)
        g->connect_ns = 0;
    pthread_mutex_unlock(&g->lock);
}

/* ---- The store ---- */

static int is_stopping(const struct group *g)
{
    return atomic_load(&g->ended) || atomic_load(&g->closing);
}

/* A thread that was abandoned has no world, and no store, any more. */
static comm_status check_kept(const struct group *g)
{
    return atomic_load(&g->abandoned) ? fail(COMM_ERR_ABORTED, "the group was closed before it was made") : COMM_OK;
}

/* TIMEOUT after GET_MS. */
static comm_status get_once(struct group *g, const char *key, int can_stop, char *text, size_t capacity)
{
    void *data, *token = can_stop ? g->info->token : NULL;
    size_t bytes;
    comm_status status = check_kept(g);
    if (status == COMM_OK)
        status = host->store_get(g->world->info->store, token, key, GET_MS, &data, &bytes);
    if (status == COMM_ERR_TIMEOUT)
        watch(g);
    if (status != COMM_OK)
        return status;
    snprintf(text, capacity, "%.*s", (int)bytes, (const char *)data);
    host->free_memory(data);
    return COMM_OK;
}

static comm_status get_value(struct group *g, const char *key, int can_stop, char *text, size_t capacity)
{
    comm_status status;
    do
        status = get_once(g, key, can_stop, text, capacity);
    while (status == COMM_ERR_TIMEOUT && !(can_stop && is_stopping(g)) && !atomic_load(&g->abandoned));
    return status;
}

/* Ends when the group does, or is closed. */
static comm_status get(struct group *g, const char *key, char *text, size_t capacity)
{
    return get_value(g, key, 1, text, capacity);
}

static comm_status set(struct group *g, const char *key, const char *text)
{
    comm_status status = check_kept(g);
    return status != COMM_OK ? status : host->store_set(g->world->info->store, key, text, strlen(text));
}

static void key_of(const struct group *g, const char *what, int number, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s.%llx.%d", what, (unsigned long long)g->info->id, number);
}

/* Turns: the world makes one communicator at a time. MPICH gives two that threads make at once out of the same
 * processes numbers that do not agree, and under a serialised MPI nothing else could go on meanwhile. Rank 0 of each
 * group draws a number; the group whose turn it is passes the turn on to the next number. A number that is not wanted
 * any more is skipped. */
static void pass_turn(struct group *g, int64_t number)
{
    int32_t is_skipped = number != 0;
    char key[KEY_BYTES];
    while (is_skipped) {
        number++;
        snprintf(key, sizeof key, "turn.%lld", (long long)number);
        host->store_set(g->world->info->store, key, "yours", 5);
        snprintf(key, sizeof key, "skip.%lld", (long long)number);
        if (host->store_check(g->world->info->store, key, &is_skipped) != COMM_OK)
            return;
    }
}

static void skip_turn(struct group *g, int64_t number)
{
    int32_t has_come = 0;
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "skip.%lld", (long long)number);
    set(g, key, "skipped");
    snprintf(key, sizeof key, "turn.%lld", (long long)number);
    if (host->store_check(g->world->info->store, key, &has_come) == COMM_OK && has_come)
        pass_turn(g, number);
}

static comm_status take_turn(struct group *g, int64_t *ret_number)
{
    char key[KEY_BYTES], text[8];
    comm_status status = host->store_add(g->world->info->store, "turns", 1, ret_number);
    if (status != COMM_OK || *ret_number == 1)
        return status;
    snprintf(key, sizeof key, "turn.%lld", (long long)*ret_number);
    status = get(g, key, text, sizeof text);
    if (status == COMM_OK) {
        host->store_delete(g->world->info->store, key);
        return COMM_OK;
    }
    skip_turn(g, *ret_number);
    *ret_number = 0;
    return status;
}

/* Whether the communicators are made is decided once: rank 0 decides that they are when all members have come; a member
 * that leaves before decides that they are not. The first one counts. */
static int decide(struct group *g, const char *text)
{
    char key[KEY_BYTES];
    int64_t count = 0;
    key_of(g, "decided", 0, key);
    if (check_kept(g) != COMM_OK || host->store_add(g->world->info->store, key, 1, &count) != COMM_OK ||
        count != 1)
        return 0;
    key_of(g, "go", 0, key);
    set(g, key, text);
    return 1;
}

/* What was decided. */
static comm_status hear(struct group *g, int can_stop)
{
    char key[KEY_BYTES], text[END_BYTES], *reason;
    key_of(g, "go", 0, key);
    comm_status status = get_value(g, key, can_stop, text, sizeof text);
    if (status != COMM_OK || strcmp(text, "go") == 0)
        return status;
    g->told = 1;
    status = (comm_status)strtol(text, &reason, 10);
    return fail(status_that_ends(status), "%s", reason + (*reason == ' '));
}

static comm_status take_self(struct group *g)
{
    while (!take(g)) {
        if (is_stopping(g) || atomic_load(&g->abandoned))
            return atomic_load(&g->ended) ? fail(atomic_load(&g->ended), "%s", g->ended_text)
                                          : fail(COMM_ERR_ABORTED, "the group was closed before it was made");
        atomic_store(&g->awaits, AWAITS_OWN);
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec += (soon.tv_nsec + LOOK_NS) / 1000000000;
        soon.tv_nsec = (soon.tv_nsec + LOOK_NS) % 1000000000;
        pthread_mutex_lock(&taken_lock);
        if (what_to_take(g)->by)
            pthread_cond_timedwait(&taken_changed, &taken_lock, &soon);
        pthread_mutex_unlock(&taken_lock);
    }
    atomic_store(&g->awaits, AWAITS_RANKS);
    return COMM_OK;
}

/* As `get`, but a member that has left is not waited for. */
static comm_status get_of_all(struct group *g, const char *key, char *text, size_t capacity)
{
    char go[KEY_BYTES];
    int32_t is_decided;
    comm_status status, decided = COMM_OK;
    key_of(g, "go", 0, go);
    do {
        status = get_once(g, key, 1, text, capacity);
        if (status == COMM_ERR_TIMEOUT && host->store_check(g->world->info->store, go, &is_decided) == COMM_OK &&
            is_decided)
            decided = hear(g, 0);
    } while (status == COMM_ERR_TIMEOUT && decided == COMM_OK && !is_stopping(g) && !atomic_load(&g->abandoned));
    return decided == COMM_OK ? status : decided;
}

static void forget_round(struct group *g, int round)
{
    static const char *const whats[] = { "ask", "free", "taken" };
    char key[KEY_BYTES];
    for (size_t i = 0; round >= 0 && i < sizeof whats / sizeof *whats; i++) {
        key_of(g, whats[i], round, key);
        host->store_delete(g->world->info->store, key);
    }
}

/* *ret_taken: the processes of all are. This rank's may be, too, if the status is an error. */
static comm_status ask_processes(struct group *g, int round, int *ret_taken)
{
    const int64_t busy = (int64_t)1 << 32;
    char key[KEY_BYTES], text[8] = "";
    int64_t sum = 0;
    key_of(g, "ask", round, key);
    comm_status status = g->info->rank == 0 ? set(g, key, "now") : get_of_all(g, key, text, sizeof text);
    if (status != COMM_OK)
        return status;
    int is_mine = take(g);
    key_of(g, "free", round, key);
    status = host->store_add(g->world->info->store, key, is_mine ? 1 : 1 + busy, &sum);
    key_of(g, "taken", round, key);
    if (status == COMM_OK && sum % busy == g->info->size)
        status = set(g, key, sum < busy ? "yes" : "no");
    if (status == COMM_OK)
        status = get_of_all(g, key, text, sizeof text);
    *ret_taken = status == COMM_OK && strcmp(text, "yes") == 0;
    if (status == COMM_OK && !*ret_taken)
        let_go(g);
    atomic_store(&g->awaits, *ret_taken ? AWAITS_RANKS : is_mine ? AWAITS_OTHERS : AWAITS_OWN);
    return status;
}

static comm_status take_processes(struct group *g)
{
    comm_status status = COMM_OK;
    int taken = 0;
    for (int round = 0; status == COMM_OK && !taken; round++) {
        if (g->info->rank == 0 && round > 0) {
            forget_round(g, round - 2); /* all have come to the next one */
            pause_for(host->now_ns() % ((int64_t)ASK_AGAIN_NS << (round < BACK_OFF_MOST ? round : BACK_OFF_MOST)));
        }
        g->asked = round;
        status = ask_processes(g, round, &taken);
    }
    return status;
}

/* *ret_turn: of this group in the world, at rank 0. */
static comm_status come_together(struct group *g, int64_t *ret_turn)
{
    char come[KEY_BYTES], all[KEY_BYTES], text[8];
    int64_t count;
    key_of(g, "come", 0, come);
    key_of(g, "all", 0, all);
    comm_status status = host->store_add(g->world->info->store, come, 1, &count);
    if (status == COMM_OK && count == g->info->size)
        status = set(g, all, "here");
    if (status == COMM_OK && g->info->rank == 0)
        status = get(g, all, text, sizeof text);
    if (status == COMM_OK && g->info->rank == 0)
        status = take_turn(g, ret_turn);
    if (status == COMM_OK)
        status = take_processes(g);
    if (status == COMM_OK && g->info->rank == 0)
        decide(g, "go"); /* unless a member has left */
    return status == COMM_OK ? hear(g, 1) : status;
}

/* This rank cannot go on with `status` and host->last_error. COMM_OK: but it must, as all had come. */
static comm_status leave(struct group *g, comm_status status)
{
    char who[64], why[TEXT_BYTES], text[END_BYTES];
    say_rank(g, g->info->rank, who, sizeof who);
    if (atomic_load(&g->ended)) {
        status = atomic_load(&g->ended);
        snprintf(why, sizeof why, "%s", g->ended_text);
    } else if (atomic_load(&g->closing)) {
        status = COMM_ERR_PEER_LOST;
        snprintf(why, sizeof why, "%s has closed the group before all ranks had made it", who);
    } else {
        status = status_that_ends(status);
        snprintf(why, sizeof why, "%s: %.900s", who, host->last_error());
    }
    snprintf(text, sizeof text, "%d %s", status, why);
    if (decide(g, text))
        return fail(status, "%s", why);
    return hear(g, 0);
}

/* Rank 0, when the communicators are made: that took all members, so all have heard. */
static void forget(struct group *g)
{
    static const char *const whats[] = { "come", "all", "decided", "go" };
    char key[KEY_BYTES];
    for (size_t i = 0; i < sizeof whats / sizeof *whats; i++) {
        key_of(g, whats[i], 0, key);
        host->store_delete(g->world->info->store, key);
    }
    forget_round(g, g->asked - 1);
    forget_round(g, g->asked);
}

/* ---- Which rank is where ---- */

struct card {
    int mpi_rank; /* -1: alone */
    char variant[16], job[CARD_BYTES];
};

static comm_status read_card(struct group *g, int rank, struct card *card)
{
    char key[KEY_BYTES], text[CARD_BYTES], who[64];
    snprintf(key, sizeof key, "rank.%d", g->info->world_ranks[rank]);
    comm_status status = get(g, key, text, sizeof text);
    say_rank(g, rank, who, sizeof who);
    if (status != COMM_OK)
        return fail(status, "where %s is in MPI: %s", who, host->last_error());
    if (sscanf(text, "%d %15s %255s", &card->mpi_rank, card->variant, card->job) != 3)
        return fail(COMM_ERR_BACKEND, "what %s says of its place in MPI makes no sense: '%.80s'", who, text);
    return COMM_OK;
}

static comm_status fail_apart(const struct group *g, int a, int b, const char *how)
{
    char one[64], other[64];
    say_rank(g, a, one, sizeof one);
    say_rank(g, b, other, sizeof other);
    return fail(COMM_ERR_BACKEND, "%s and %s are not in one MPI_COMM_WORLD: %s. Start all ranks by one mpirun, such "
                "as `mpirun -n %d ./program`, or srun with PMI", one, other, how, g->info->size);
}

/* Ranks in MPI_COMM_WORLD; *ret_alone: there are none, as each process has one of its own. */
static comm_status find_members(struct group *g, int *ranks, int *ret_alone)
{
    struct card first, card;
    comm_status status = read_card(g, 0, &first);
    for (int r = 0; r < g->info->size && status == COMM_OK; r++) {
        status = read_card(g, r, &card);
        if (status != COMM_OK)
            break;
        ranks[r] = card.mpi_rank;
        if (strcmp(card.variant, first.variant) != 0)
            return fail_apart(g, 0, r, "one uses Open MPI, the other one MPICH");
        if ((card.mpi_rank < 0) != (first.mpi_rank < 0))
            return fail_apart(g, 0, r, "only one of them was started by MPI's launcher");
        if (card.mpi_rank >= 0 && strcmp(card.job, first.job) != 0)
            return fail_apart(g, 0, r, "they are of different jobs");
        for (int other = 0; card.mpi_rank >= 0 && other < r; other++)
            if (ranks[other] == card.mpi_rank)
                return fail_apart(g, other, r, "each has the same rank in its own");
    }
    *ret_alone = status == COMM_OK && first.mpi_rank < 0;
    return status;
}

/* ---- Making ---- */

static comm_status make_in_world(struct group *g, const int *ranks)
{
    MPI_Group all, members;
    int tag = (int)(g->info->id % (uint64_t)start_tag_max());
    int error = mpi.Comm_group(MPI_COMM_WORLD, &all);
    if (error != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Comm_group");
    error = mpi.Group_incl(all, g->info->size, ranks, &members);
    if (error == MPI_SUCCESS) {
        error = mpi.Comm_create_group(MPI_COMM_WORLD, members, tag, &g->comm);
        mpi.Group_free(&members);
    }
    mpi.Group_free(&all);
    return fail_mpi(error, "MPI_Comm_create_group");
}

static comm_status fail_to_join(int error, const char *call)
{
    char text[TEXT_BYTES / 2];
    fail_mpi(error, call);
    snprintf(text, sizeof text, "%.500s", host->last_error());
    return fail(COMM_ERR_UNSUPPORTED, "each process is alone in its MPI_COMM_WORLD, and this MPI cannot join them "
                "(%s). Start the ranks by mpirun, such as `mpirun -n 4 ./program`, or by srun with PMI"
#ifdef OPEN_MPI
                "; Open MPI joins processes only with its ompi-server (OMPI_MCA_pmix_server_uri)"
#endif
                , text);
}

/* Rank 0 opens a port. Of rank r's coming, the ranks below it are the accepting side. */
static comm_status make_by_joining(struct group *g)
{
    char port[MPI_MAX_PORT_NAME + 1] = "", key[KEY_BYTES], next[8];
    int rank = g->info->rank, error;
    comm_status status = COMM_OK;
    MPI_Comm joined = MPI_COMM_SELF, between, merged;
    key_of(g, "port", 0, key);
    if (rank == 0) {
        error = mpi.Open_port(MPI_INFO_NULL, port);
        status = error == MPI_SUCCESS ? COMM_OK : fail_to_join(error, "MPI_Open_port");
        comm_status told = set(g, key, status == COMM_OK ? port : "");
        status = status == COMM_OK ? told : status;
    } else {
        status = get(g, key, port, sizeof port);
        if (status == COMM_OK && !*port)
            status = fail(COMM_ERR_UNSUPPORTED, "rank 0 cannot open a port of MPI's, so the processes, each alone in "
                          "its MPI_COMM_WORLD, cannot be joined. Start the ranks by mpirun, such as "
                          "`mpirun -n 4 ./program`, or by srun with PMI");
    }
    for (int r = rank > 0 ? rank : 1; r < g->info->size && status == COMM_OK; r++) {
        key_of(g, "next", r, key);
        status = check_kept(g);
        if (status == COMM_OK && r == rank && r > 1)
            status = get(g, key, next, sizeof next);
        if (status != COMM_OK)
            break;
        error = r == rank ? mpi.Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &between)
                          : mpi.Comm_accept(port, MPI_INFO_NULL, 0, joined, &between);
        if (error == MPI_SUCCESS)
            error = mpi.Intercomm_merge(between, r == rank, &merged);
        if (error != MPI_SUCCESS)
            return fail_to_join(error, r == rank ? "MPI_Comm_connect" : "MPI_Comm_accept");
        joined = merged;
        mpi.Comm_set_errhandler(joined, MPI_ERRORS_RETURN);
        key_of(g, "next", r + 1, key);
        if (rank == 0)
            status = set(g, key, "yours");
    }
    g->comm = joined;
    return status;
}

static comm_status make_both(struct group *g, const int *ranks, int is_alone)
{
    comm_status status;
    if (g->info->size == 1)
        status = fail_mpi(mpi.Comm_dup(MPI_COMM_SELF, &g->comm), "MPI_Comm_dup");
    else
        status = is_alone ? make_by_joining(g) : make_in_world(g, ranks);
    if (status != COMM_OK)
        return status;
    int error = mpi.Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS)
        error = mpi.Comm_dup(g->comm, &g->own);
    if (error == MPI_SUCCESS)
        error = mpi.Comm_set_errhandler(g->own, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS)
        group_listen(g);
    return fail_mpi(error, "MPI_Comm_dup");
}

static comm_status make(struct group *g)
{
    int64_t turn = 0; /* rank 0's */
    int is_alone = 0, is_single = g->info->size == 1;
    int *ranks = malloc((size_t)g->info->size * sizeof *ranks);
    if (!ranks)
        return fail(COMM_ERR_NO_MEMORY, "a list of ranks");
    comm_status status = start_wait(g);
    if (status == COMM_OK && !is_single)
        status = find_members(g, ranks, &is_alone);
    if (status == COMM_OK && !is_single)
        status = come_together(g, &turn);
    atomic_store(&g->turn, turn);
    if (status != COMM_OK && !is_single && !g->told)
        status = leave(g, status);
    if (g->is_watched)
        communicator_awaited(g, -1);
    if (status == COMM_OK && is_single)
        status = take_self(g);
    if (status == COMM_OK) {
        atomic_store(&g->awaits, AWAITS_MPI);
        mpi_lock();
        status = check_kept(g);
        if (status == COMM_OK)
            status = make_both(g, ranks, is_alone);
        mpi_unlock();
    }
    let_go(g);
    if (!atomic_load(&g->abandoned))
        pass_turn(g, atomic_exchange(&g->turn, 0));
    free(ranks);
    return status;
}

static void *make_apart(void *context)
{
    struct group *g = context;
    struct finished_list list;
    comm_status status = make(g);
    if (atomic_load(&g->abandoned))
        return NULL;
    finished_begin(&list);
    pthread_mutex_lock(&g->lock);
    if (status != COMM_OK) {
        snprintf(g->failed_text, sizeof g->failed_text, "%s", host->last_error());
        g->failed = status_that_ends(status);
    }
    g->state = status == COMM_OK ? COMMUNICATOR_READY : COMMUNICATOR_FAILED;
    int ends = status != COMM_OK && g->queued; /* else the next operation says so */
    if (ends)
        group_end(g, g->failed, g->failed_text, &list);
    else if (status == COMM_OK && atomic_load(&g->ended))
        group_tell(g); /* which was not possible when it ended */
    else if (status == COMM_OK)
        flights_issue_queued(g);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    finished_complete(&list);
    if (ends)
        host->group_failed(g->info->token, g->failed, g->failed_text);
    poller_wake(g->world);
    if (status == COMM_OK && g->info->rank == 0 && g->info->size > 1)
        forget(g);
    return NULL;
}

comm_status communicator_start(struct group *g)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&g->thread, NULL, make_apart, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return fail(COMM_ERR_NO_MEMORY, "the thread that makes MPI's communicators cannot be started: %s",
                    strerror(error));
    g->has_thread = 1;
    return COMM_OK;
}

comm_status communicator_usable(const struct group *g)
{
    if (atomic_load(&g->ended))
        return fail(atomic_load(&g->ended), "%s", g->ended_text);
    return g->state == COMMUNICATOR_FAILED ? fail(g->failed, "%s", g->failed_text) : COMM_OK;
}

comm_status communicator_wait(struct group *g, int64_t deadline_ns)
{
    static const char *const whys[] = {
        [AWAITS_RANKS] = "a rank has not made the group",
        [AWAITS_MPI] = "MPI has not made it",
        [AWAITS_OWN] = "this process is still making another group's communicators",
        [AWAITS_OTHERS] = "the process of another rank is still making another group's communicators",
    };
    struct timespec t = { deadline_ns / 1000000000, deadline_ns % 1000000000 };
    int error = 0;
    while (g->state == COMMUNICATOR_CONNECTING && !atomic_load(&g->ended) && error == 0)
        error = deadline_ns == INT64_MAX ? pthread_cond_wait(&g->changed, &g->lock)
                                         : pthread_cond_timedwait(&g->changed, &g->lock, &t);
    if (atomic_load(&g->ended) || g->state != COMMUNICATOR_CONNECTING)
        return communicator_usable(g);
    return fail(COMM_ERR_TIMEOUT, "timed out: MPI's communicator of %d ranks has not come together yet: %s",
                g->info->size, whys[atomic_load(&g->awaits)]);
}

static int thread_ends_within(struct group *g, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_timedjoin_np(g->thread, NULL, &until) == 0;
}

/* A thread that is in MPI is left there, and may come back when the world and its store are gone. One that waits for
 * the store does not so for longer than GET_MS. Other groups do not wait for it. */
static int leave_thread(struct group *g)
{
    if (thread_ends_within(g, JOIN_MS))
        return 0;
    atomic_store(&g->abandoned, 1);
    thread_ends_within(g, 2 * GET_MS);
    let_go(g);
    pass_turn(g, atomic_exchange(&g->turn, 0));
    return 1;
}

void communicator_end(struct group *g)
{
    atomic_store(&g->closing, 1);
    if (g->has_thread && leave_thread(g)) {
        host->log(COMM_LOG_WARN, "mpi: making a communicator has not ended, and MPI cannot cancel it: MPI is not "
                  "finalised at exit");
        start_leak();
        return;
    }
    g->has_thread = 0;
    group_let_go(g);
    if (g->state == COMMUNICATOR_READY)
        leaving_add(g, g->pending || g->tellings);
}

/* Ranks that fail, die or disagree while a world comes together: comm_init gives all others the reason, soon, and says
 * which rank. And what comm_init's success is worth: all ranks are open, and are found without the store. */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"
#include "loopback.h"

enum { LONG_MS = 60000, SOON_MS = 2000, BUSY_MS = 3000 /* a machine with other work */ };

/* ---- A backend that fails or dies when a world opens ---- */

enum mischief { FAILS, DIES, IS_KILLED, MISCHIEF_END };
/* `awaits`: the other ranks wait in their opening for what the one that fails would put into the store. */

static struct {
    comm_backend table;
    const comm_host *host;
    comm_status (*open)(void *, const comm_world_info *, void **);
    int rank;
    enum mischief what;
    int awaits;
    struct page *page;
} fragile;

static comm_status fragile_open(void *context, const comm_world_info *info, void **ret_world)
{
    if (info->rank == fragile.rank) {
        atomic_store(&fragile.page->event_ns, fault_now_ns());
        if (fragile.what == FAILS)
            return fragile.host->fail(COMM_ERR_SYSTEM, "there are too many open files");
        if (fragile.what == IS_KILLED)
            raise(SIGKILL);
        _exit(1);
    }
    if (fragile.awaits) {
        void *data;
        size_t bytes;
        CHECK(fragile.host->store_get(info->store, NULL, "from the other", LONG_MS, &data, &bytes) != COMM_OK);
        return COMM_ERR_SYSTEM;
    }
    return fragile.open(context, info, ret_world);
}

static const comm_backend *fragile_entry(const comm_host *host)
{
    fragile.table = *loopback_entry(host);
    fragile.host = host;
    fragile.open = fragile.table.world_open;
    fragile.table.name = "fragile";
    fragile.table.world_open = fragile_open;
    return &fragile.table;
}

struct scenario {
    struct page *page;
    int rank; /* that fails */
    enum mischief what;
    const char *url; /* NULL: the ranks' file */
    int awaits;
};

static comm_status open_at(const char *url, int rank, int size, const char *backend, comm_group **ret_world)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.rendezvous = url;
    options.rank = rank;
    options.world_size = size;
    options.backend = backend;
    options.timeout_ms = LONG_MS;
    *ret_world = NULL;
    return url ? comm_init(&options, ret_world) : ranks_init(&options, ret_world);
}

static void one_fails(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    char name[32];
    comm_group *world;
    fragile.page = s->page;
    fragile.rank = s->rank;
    fragile.what = s->what;
    fragile.awaits = s->awaits;
    CHECK_OK(comm_backend_register(fragile_entry));
    comm_status status = open_at(s->url, rank, size, "cpu:fragile", &world);
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK_STATUS(status, s->what == FAILS ? COMM_ERR_SYSTEM : COMM_ERR_PEER_LOST);
    snprintf(name, sizeof name, "rank %d (", s->rank);
    if (s->url && s->rank == 0 && s->what != FAILS) {
        CHECK_ERROR_SAYS("rank 0 serves it");
        return;
    }
    CHECK_ERROR_SAYS(name);
    if (s->what == FAILS)
        CHECK_ERROR_SAYS("cannot open the world: opening backend 'fragile': there are too many open files");
    else
        CHECK_ERROR_SAYS("has ended, or has given up, before all ranks had opened the world");
}

static int run_one_fails(int size, int rank, enum mischief what, const char *url, int awaits)
{
    struct scenario s = { .page = page_new(size), .rank = rank, .what = what, .url = url, .awaits = awaits };
    char name[100];
    snprintf(name, sizeof name, "rank %d of %d %s, store: %s%s", rank, size,
             what == FAILS ? "fails" : what == DIES ? "dies" : "is killed", url ? "its own" : "a file",
             awaits ? "; the others wait for it" : "");
    struct ranks_options options = { .limit_s = 30, .name = name, .may_fail = what == FAILS ? 0 : 1ull << rank };
    int failed = ranks_run(size, &options, one_fails, &s);
    if (!failed && fault_report(s.page, size, name) > BUSY_MS) {
        fprintf(stderr, "%s: that is too late\n", name);
        failed = 1;
    }
    page_free(s.page);
    return failed;
}

/* ---- Before all have joined ---- */

/* Rank 3 does not come; rank 1 is killed while it waits. */
static void one_is_killed_while_others_are_missing(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world;
    int64_t joined = 0;
    atomic_store(&s->page->pids[rank], (int32_t)getpid());
    if (rank == 3) {
        comm_store *store = ranks_store();
        while (joined < 3)
            CHECK_OK(comm_store_add(store, "comm/world/0/joined", 0, &joined));
        atomic_store(&s->page->event_ns, fault_now_ns());
        CHECK(kill(atomic_load(&s->page->pids[1]), SIGKILL) == 0);
        comm_store_close(store);
        return;
    }
    CHECK_STATUS(open_at(NULL, rank, size, NULL, &world), COMM_ERR_PEER_LOST);
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK_ERROR_SAYS("rank 1 (host ");
    CHECK_ERROR_SAYS("has ended, or has given up, before all ranks had joined");
}

/* A store of the user's upon the ranks' file, which ends its process at the n-th call. */
static struct {
    comm_store *inner;
    int calls_left; /* -1: it never does */
    struct page *page;
} fatal;

static comm_status count_call(comm_status status, char *error, size_t capacity)
{
    if (fatal.calls_left > 0 && --fatal.calls_left == 0) {
        atomic_store(&fatal.page->event_ns, fault_now_ns());
        raise(SIGKILL);
    }
    if (status != COMM_OK)
        snprintf(error, capacity, "%s", comm_last_error());
    return status;
}

static comm_status fatal_set(void *context, const char *key, const void *data, size_t bytes, char *error,
                             size_t capacity)
{
    (void)context;
    return count_call(comm_store_set(fatal.inner, key, data, bytes), error, capacity);
}

static comm_status fatal_get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                             char *error, size_t capacity)
{
    (void)context;
    comm_status status = comm_store_get(fatal.inner, key, timeout_ms, ret_data, ret_bytes);
    if (status == COMM_ERR_TIMEOUT) { /* it will be called again */
        snprintf(error, capacity, "not yet");
        return status;
    }
    return count_call(status, error, capacity);
}

static comm_status fatal_add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                             size_t capacity)
{
    (void)context;
    return count_call(comm_store_add(fatal.inner, key, amount, ret_value), error, capacity);
}

static comm_status fatal_compare_set(void *context, const char *key, const void *expected, size_t expected_bytes,
                                     const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                                     char *error, size_t capacity)
{
    (void)context;
    comm_status status = comm_store_compare_set(fatal.inner, key, expected, expected_bytes, desired, desired_bytes,
                                                ret_data, ret_bytes);
    return count_call(status, error, capacity);
}

static comm_status fatal_check(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                               size_t capacity)
{
    (void)context;
    return count_call(comm_store_check(fatal.inner, keys, count, ret_all), error, capacity);
}

static comm_status fatal_remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
{
    (void)context;
    return count_call(comm_store_delete(fatal.inner, key, ret_existed), error, capacity);
}

/* Rank 1 ends right after its s->rank-th call of the store: with the second one it has said that it is there. */
static void one_ends_after_any_call(int rank, int size, void *arg)
{
    const comm_store_ops ops = {
        .struct_bytes = sizeof ops,
        .name = "fatal",
        .set = fatal_set,
        .get = fatal_get,
        .add = fatal_add,
        .compare_set = fatal_compare_set,
        .check = fatal_check,
        .remove = fatal_remove,
    };
    struct scenario *s = arg;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world = NULL;
    uint8_t byte = 0;
    fatal.inner = ranks_store();
    fatal.calls_left = rank == 1 ? s->rank : -1;
    fatal.page = s->page;
    CHECK_OK(comm_store_create(&ops, NULL, &options.store));
    options.rank = rank;
    options.world_size = size;
    options.timeout_ms = LONG_MS;
    comm_status status = comm_init(&options, &world);
    if (status == COMM_OK) /* rank 1 has been told so, too, or would have been by its next call */
        status = comm_recv(world, &byte, 1, COMM_DTYPE_U8, 1, NULL, NULL);
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK_STATUS(status, COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1 (");
    CHECK_OK(comm_group_close(world));
    comm_store_close(options.store);
    comm_store_close(fatal.inner);
}

static int run_one_ends(int calls)
{
    struct scenario s = { .page = page_new(3), .rank = calls };
    char name[60];
    snprintf(name, sizeof name, "rank 1 of 3 ends after %d calls of the store", calls);
    struct ranks_options options = { .limit_s = 30, .name = name, .may_fail = 1 << 1 };
    int failed = ranks_run(3, &options, one_ends_after_any_call, &s);
    if (!failed && fault_report(s.page, 3, name) > BUSY_MS) {
        fprintf(stderr, "%s: that is too late\n", name);
        failed = 1;
    }
    page_free(s.page);
    return failed;
}

/* ---- Disagreement ---- */

static void different_backends_are_told_to_all(int rank, int size, void *arg)
{
    static const char *const strings[] = { "CPU:tcp?lanes=2&eager_bytes=4096", "cpu:tcp?eager_bytes=4096&lanes=2",
                                           "tcp" };
    comm_group *world;
    (void)arg;
    CHECK_STATUS(open_at(NULL, rank, size, strings[rank], &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the ranks have different backends: rank ");
    CHECK_ERROR_SAYS("rank 2 (host ");
    CHECK_ERROR_SAYS("has 'cpu:tcp'");
    CHECK_ERROR_SAYS("has 'cpu:tcp?eager_bytes=4096&lanes=2'");
}

/* What one rank has set decides which messages it sends. */
static void different_settings_are_told_to_all(int rank, int size, void *arg)
{
    comm_group *world;
    const char *own = *(const char **)arg;
    setenv("COMM_TCP_SLICE_BYTES", rank ? "64K" : "65536", 1); /* the same */
    setenv("COMM_TCP_ALGO", rank == 2 && own ? own : "all_reduce:ring,broadcast:a|b", 1);
    if (rank == 2 && !own)
        unsetenv("COMM_TCP_ALGO");
    CHECK_STATUS(open_at(NULL, rank, size, "tcp", &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the ranks have different settings: rank ");
    CHECK_ERROR_SAYS("rank 2 (host ");
    CHECK_ERROR_SAYS(own ? " has COMM_TCP_ALGO=all_reduce:rin" : " has the default");
    CHECK_ERROR_SAYS("Give all ranks the same COMM_TCP_ALGO");
    CHECK_ERROR_SAYS("all_reduce:ring,broadcast:a/b");
}

static void settings_that_decide_nothing_may_differ(int rank, int size, void *arg)
{
    comm_group *world;
    (void)arg;
    setenv("COMM_TCP_SLICE_BYTES", rank ? "64K" : "65536", 1);
    if (rank == 1) {
        setenv("COMM_TCP_ALGO", "all_reduce:ring", 1); /* the string says another one */
        setenv("COMM_SHM_ALGO", "all_reduce:ring", 1); /* not of tcp, nor of shm-tcp */
        setenv("COMM_TCP_LINGER_MS", "1000", 1);
    }
    static const char *const strings[] = { "tcp?algo=all_reduce:direct", "cpu:tcp?lanes=2&tcp.algo=all_reduce:direct",
                                           "cpu:shm-tcp?tcp.algo=all_reduce:direct" };
    for (int i = 0; i < 3; i++) {
        CHECK_OK(open_at(NULL, rank, size, strings[i], &world));
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_group_close(world));
    }
    unsetenv("COMM_SHM_ALGO");
    if (rank > 0)
        setenv("COMM_SHM_SLICE_BYTES", rank == 1 ? "0" : "", 1); /* as by default */
    CHECK_OK(open_at(NULL, rank, size, "shm", &world));
    CHECK_OK(comm_group_close(world));
}

static void the_same_backends_in_other_words(int rank, int size, void *arg)
{
    static const char *const strings[] = { NULL, "cpu:auto", "CPU:AUTO", "auto" };
    comm_group *world;
    (void)arg;
    CHECK_OK(open_at(NULL, rank, size, strings[rank], &world));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static void a_backend_that_one_rank_lacks_is_told_to_all(int rank, int size, void *arg)
{
    comm_group *world;
    (void)arg;
    CHECK_STATUS(open_at(NULL, rank, size, rank == 1 ? "cpu:nonesuch" : "tcp", &world), COMM_ERR_NOT_FOUND);
    CHECK_ERROR_SAYS("rank 1 (host ");
    CHECK_ERROR_SAYS("cannot open the world: ");
    CHECK_ERROR_SAYS("nonesuch");
}

/* ---- The store is gone ---- */

/* The server is a process of its own; rank 0 kills it when the world is open. */
static pid_t serve(int ports[2])
{
    pid_t server = fork();
    if (server == 0) {
        comm_store *store;
        comm_store_options options = COMM_STORE_OPTIONS_INIT;
        options.serve = 1;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (comm_store_open("tcp://127.0.0.1:0", &options, &store) != COMM_OK)
            _exit(1);
        int32_t port = comm_store_port(store);
        if (write(ports[1], &port, sizeof port) != sizeof port)
            _exit(1);
        for (;;)
            pause();
    }
    return server;
}

static void open_on_server(const char *url, int rank, int size, comm_group **ret_world)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_store *store;
    CHECK_OK(comm_store_open(url, NULL, &store));
    options.store = store;
    options.rank = rank;
    options.world_size = size;
    options.timeout_ms = LONG_MS;
    CHECK_OK(comm_init(&options, ret_world));
    comm_store_close(store);
}

static int32_t sum_of(comm_group *group, int32_t value)
{
    CHECK_OK(comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    return value;
}

struct outlives {
    struct page *page;
    pid_t server;
    int signal;
    char url[64];
};

static void end_server(const struct outlives *o)
{
    if (o->signal == SIGSTOP)
        fault_stop(o->server);
    else
        CHECK(kill(o->server, o->signal) == 0);
}

static void a_job_outlives_its_store(int rank, int size, void *arg)
{
    struct outlives *o = arg;
    comm_group *world, *half, *reversed;
    int32_t ranks[FAULT_RANKS_MAX];
    open_on_server(o->url, rank, size, &world);
    fault_meet(o->page);
    if (rank == 0)
        end_server(o);
    fault_meet(o->page);
    int64_t begun = fault_now_ns();
    for (int r = 0; r < size; r++)
        ranks[r] = size - 1 - r;
    CHECK_OK(comm_group_create(world, ranks, (size_t)size, NULL, &reversed));
    CHECK_OK(comm_group_split(world, rank % 2, 0, NULL, &half));
    CHECK(sum_of(half, 1) == (size + 1 - rank % 2) / 2);
    for (int other = 0; other < size; other++) { /* each pair talks */
        int32_t mine = rank, theirs = -1;
        if (other == rank)
            continue;
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_send(world, &mine, 1, COMM_DTYPE_I32, other, NULL, NULL));
        CHECK_OK(comm_recv(world, &theirs, 1, COMM_DTYPE_I32, other, NULL, NULL));
        CHECK_OK(comm_coalesce_end(world, NULL, NULL));
        CHECK(theirs == other);
    }
    CHECK(sum_of(reversed, 1) == size);
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(reversed));
    CHECK_OK(comm_group_close(world));
    if (fault_now_ns() - begun > 10 * 1000000000ll)
        ranks_fail(__FILE__, __LINE__, "it took %lld ms", (long long)(fault_now_ns() - begun) / 1000000);
}

/* Where addresses are not handed out, a server that does not answer accuses no rank. */
static void a_lost_store_accuses_nobody(int rank, int size, void *arg)
{
    struct outlives *o = arg;
    comm_group *world;
    uint8_t byte = 0;
    size_t lost;
    setenv("COMM_HANDOUT_BYTES", "0", 1);
    setenv("COMM_TCP_CONNECT_MS", "1000", 1);
    setenv("COMM_BACKEND", "cpu:tcp", 1);
    open_on_server(o->url, rank, size, &world);
    fault_meet(o->page);
    if (rank == 0)
        end_server(o);
    fault_meet(o->page);
    if (rank == 0) {
        CHECK_STATUS(comm_send(world, &byte, 1, COMM_DTYPE_U8, 1, NULL, NULL), COMM_ERR_BACKEND);
        CHECK_ERROR_SAYS("rank 1 cannot be reached: the store, which has its address, does not answer");
        CHECK_OK(comm_group_lost_ranks(world, NULL, 0, &lost));
        CHECK(lost == 0);
    }
    fault_meet(o->page);
    (void)comm_group_close(world);
}

static int run_with_server(int size, void (*fn)(int, int, void *), int signal, const char *name)
{
    struct outlives o = { .page = page_new(size), .signal = signal };
    struct ranks_options options = { .limit_s = 60, .name = name };
    int32_t port;
    int ports[2];
    if (pipe(ports) != 0)
        return 1;
    o.server = serve(ports);
    int failed = read(ports[0], &port, sizeof port) != sizeof port;
    snprintf(o.url, sizeof o.url, "tcp://127.0.0.1:%d", (int)port);
    failed = failed || ranks_run(size, &options, fn, &o);
    kill(o.server, SIGKILL);
    waitpid(o.server, NULL, 0);
    close(ports[0]);
    close(ports[1]);
    page_free(o.page);
    return failed;
}

/* ---- Worlds of one rank ---- */

static void disjoint_worlds_of_one_share_a_prefix(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_store *store = ranks_store();
    comm_group *world;
    int64_t keys = 0, later = 0;
    (void)arg;
    (void)rank;
    options.store = store;
    options.rank = 0;
    options.world_size = 1;
    CHECK_OK(comm_store_num_keys(store, &keys));
    CHECK_OK(comm_init(&options, &world)); /* every process for itself */
    CHECK(sum_of(world, 5) == 5);
    CHECK_OK(comm_store_set(comm_group_store(world), "a", "b", 1));
    CHECK_OK(comm_group_close(world));
    CHECK_OK(comm_store_num_keys(store, &later));
    CHECK(keys == 0 && later == 0);
    comm_store_close(store);
    (void)size;
}

/* ---- Rank 0 does not come ---- */

struct heard {
    struct page *page;
    int rank;
};

static void listen_for(int32_t level, const char *text, void *context)
{
    struct heard *h = context;
    char words[100];
    snprintf(words, sizeof words, "world 'world' (rank %d): 2 of 4 ranks have joined, missing: 0, 2", h->rank);
    if (level == COMM_LOG_WARN && strstr(text, words)) {
        CHECK(h->rank == 1); /* the lowest that is there */
        fault_raise(h->page, 0);
    }
}

/* Processes 0 and 1 are ranks 1 and 3; the others come when one of these has said that they are missing. */
static void who_is_missing_is_said_without_rank_0(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    struct heard heard = { s->page, rank == 0 ? 1 : rank == 1 ? 3 : rank == 2 ? 0 : 2 };
    comm_group *world;
    setenv("COMM_PROGRESS_LOG_MS", "20", 1);
    comm_log_set_level(COMM_LOG_WARN); /* whatever COMM_LOG says */
    if (heard.rank % 2 == 0)
        fault_await(s->page, 0);
    comm_log_set(listen_for, &heard);
    CHECK_OK(open_at(NULL, heard.rank, size, NULL, &world));
    comm_log_set(NULL, NULL);
    CHECK_OK(comm_group_close(world));
}

static int run(int size, void (*fn)(int, int, void *), const char *name, uint64_t may_fail, int measured)
{
    struct scenario s = { .page = page_new(size) };
    struct ranks_options options = { .limit_s = 30, .name = name, .may_fail = may_fail };
    int failed = ranks_run(size, &options, fn, &s);
    if (measured && !failed && fault_report(s.page, size, name) > BUSY_MS) {
        fprintf(stderr, "%s: that is too late\n", name);
        failed = 1;
    }
    page_free(s.page);
    return failed;
}
#define RUN(size, fn) run(size, fn, #fn, 0, 0)

static const char *free_url(char url[64])
{
    snprintf(url, 64, "tcp://127.0.0.1:%d", fault_free_port());
    return url;
}

int main(void)
{
    int failed = 0;
    char url[64];
    signal(SIGPIPE, SIG_IGN);
    for (int what = 0; what < MISCHIEF_END; what++) {
        failed |= run_one_fails(2, 1, (enum mischief)what, NULL, 0);
        failed |= run_one_fails(4, what, (enum mischief)what, NULL, 0);
        failed |= run_one_fails(4, 3, (enum mischief)what, free_url(url), 0);
        failed |= run_one_fails(3, 1, (enum mischief)what, NULL, 1);
    }
    failed |= run_one_fails(4, 0, FAILS, free_url(url), 0);
    failed |= run_one_fails(4, 0, IS_KILLED, free_url(url), 0);
    for (int calls = 2; calls <= 6; calls++)
        failed |= run_one_ends(calls);
    failed |= run(4, one_is_killed_while_others_are_missing, "one is killed while others are missing", 1 << 1, 1);
    failed |= RUN(3, different_backends_are_told_to_all);
    for (int i = 0; i < 2; i++) {
        const char *own = i ? "all_reduce:rin" : NULL;
        failed |= ranks_run(3, &(struct ranks_options){ .limit_s = 30, .name = "different settings" },
                            different_settings_are_told_to_all, &own);
    }
    failed |= RUN(3, settings_that_decide_nothing_may_differ);
    failed |= RUN(4, the_same_backends_in_other_words);
    failed |= RUN(3, a_backend_that_one_rank_lacks_is_told_to_all);
    failed |= run_with_server(5, a_job_outlives_its_store, SIGKILL, "a job outlives its store, which is killed");
    failed |= run_with_server(4, a_job_outlives_its_store, SIGSTOP, "a job outlives its store, which is stopped");
    failed |= run_with_server(2, a_lost_store_accuses_nobody, SIGKILL, "a lost store accuses nobody");
    failed |= run_with_server(2, a_lost_store_accuses_nobody, SIGSTOP, "a stopped store accuses nobody");
    failed |= RUN(3, disjoint_worlds_of_one_share_a_prefix);
    failed |= RUN(4, who_is_missing_is_said_without_rank_0);
    return failed;
}

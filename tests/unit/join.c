/* comm_init: how ranks that are real processes come together, and what they are told when they do not. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

enum { TIMEOUT_MS = 30000, NEVER_MS = 600000 };

/* ---- Support ---- */

static int port; /* without a listener, for tcp:// with a fixed one */
static int to_others[2]; /* a pipe from a rank that knows to one that waits */

static void find_port(int family)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six;
    socklen_t bytes = family == AF_INET ? sizeof four : sizeof six;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    port = fd >= 0 && bind(fd, address, bytes) == 0 && getsockname(fd, address, &bytes) == 0
               ? ntohs(family == AF_INET ? four.sin_port : six.sin6_port)
               : 0;
    if (fd >= 0)
        close(fd);
}

/* One handle to the store that all ranks of a test have, for what they must tell each other. */
static comm_store *our_store(void)
{
    static comm_store *store;
    if (!store)
        store = ranks_store();
    return store;
}

static comm_status init_at(const char *url, int rank, int size, int64_t timeout_ms, comm_group **ret_world)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.rendezvous = url;
    options.rank = rank;
    options.world_size = size;
    options.timeout_ms = timeout_ms;
    *ret_world = (comm_group *)8;
    return comm_init(&options, ret_world);
}

static void check_sum(comm_group *world, int size)
{
    int32_t value = 1 << comm_group_rank(world);
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(value == (1 << size) - 1);
}

static const char *url_of_port(char url[64])
{
    snprintf(url, 64, "tcp://127.0.0.1:%d", port);
    return url;
}

/* ---- Worlds that succeed each other, or are there at the same time ---- */

static void worlds_follow_each_other_on_one_port(int rank, int size, void *arg)
{
    char url[64];
    (void)arg;
    for (int i = 0; i < 25; i++) {
        comm_group *world;
        CHECK_OK(init_at(url_of_port(url), rank, size, TIMEOUT_MS, &world));
        if (i % 3)
            check_sum(world, size);
        CHECK_OK(comm_group_close(world));
    }
}

static void worlds_follow_each_other_on_one_store(int rank, int size, void *arg)
{
    (void)arg;
    (void)rank;
    for (int i = 0; i < 10; i++) {
        comm_group *world = ranks_world(NULL);
        check_sum(world, size);
        CHECK_OK(comm_group_close(world));
    }
}

static void worlds_of_one_process_share_a_port(int rank, int size, void *arg)
{
    char url[64];
    comm_group *worlds[3];
    (void)arg;
    for (int i = 0; i < 3; i++)
        CHECK_OK(init_at(url_of_port(url), rank, size, TIMEOUT_MS, &worlds[i]));
    for (int i = 0; i < 3; i++)
        check_sum(worlds[i], size);
    CHECK_OK(comm_group_close(worlds[0])); /* whose rank 0 began the server */
    comm_group *later;
    CHECK_OK(init_at(url_of_port(url), rank, size, TIMEOUT_MS, &later));
    check_sum(later, size);
    check_sum(worlds[2], size);
    CHECK_OK(comm_group_close(worlds[1]));
    CHECK_OK(comm_group_close(later));
    CHECK_OK(comm_group_close(worlds[2]));
}

/* A broadcast's root is through before the ranks further down have asked its store where to connect. */
static void who_serves_leaves_last(int rank, int size, void *arg)
{
    char url[64];
    comm_group *world;
    int32_t value = rank == 0 ? 77 : -1;
    (void)arg;
    CHECK_OK(init_at(url_of_port(url), rank, size, TIMEOUT_MS, &world));
    CHECK_OK(comm_broadcast(world, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    CHECK(value == 77);
    CHECK_OK(comm_group_close(world));
}

/* A debugger, or a job that is suspended, may have stopped the process that serves the store. */
static void closing_ends_though_the_server_is_stopped(int rank, int size, void *arg)
{
    char url[64], go = 1;
    comm_group *world;
    int32_t pids[2] = { -1, -1 }, mine = (int32_t)getpid();
    (void)arg;
    CHECK_OK(init_at(url_of_port(url), rank, size, TIMEOUT_MS, &world));
    CHECK_OK(comm_all_gather(world, &mine, pids, 1, COMM_DTYPE_I32, NULL, NULL));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 0) {
        CHECK(read(to_others[0], &go, 1) == 1);
    } else {
        CHECK(kill(pids[0], SIGSTOP) == 0);
        CHECK_OK(comm_group_close(world)); /* or the server never goes on, and this test's limit ends it */
        CHECK(kill(pids[0], SIGCONT) == 0);
        CHECK(write(to_others[1], &go, 1) == 1);
        return;
    }
    CHECK_OK(comm_group_close(world));
}

static void ipv6_is_an_address_as_good(int rank, int size, void *arg)
{
    char url[64];
    comm_group *world;
    (void)arg;
    snprintf(url, sizeof url, "tcp://[::1]:%d?rank=%d&world_size=%d", port, rank, size);
    CHECK_OK(init_at(url, 0, 0, TIMEOUT_MS, &world));
    check_sum(world, size);
    CHECK_OK(comm_group_close(world));
}

static void a_file_brings_ranks_together_and_goes(int rank, int size, void *arg)
{
    char url[300];
    (void)arg;
    snprintf(url, sizeof url, "file://%s/meet?rank=%d&world_size=%d", ranks_folder(), rank, size);
    for (int i = 0; i < 3; i++) {
        comm_group *world;
        CHECK_OK(init_at(url, 0, 0, TIMEOUT_MS, &world));
        check_sum(world, size);
        CHECK_OK(comm_group_close(world));
        CHECK_OK(comm_store_barrier(our_store(), i == 0 ? "0" : i == 1 ? "1" : "2", size, TIMEOUT_MS));
    }
    snprintf(url, sizeof url, "%s/meet", ranks_folder());
    CHECK(access(url, F_OK) != 0);
    comm_store_close(our_store());
}

static comm_status meet_in_file(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms,
                                comm_store **ret_store, int32_t *ret_rank, int32_t *ret_world_size, void *context,
                                char *error, size_t capacity)
{
    char path[300];
    CHECK(timeout_ms > 0 && timeout_ms <= TIMEOUT_MS);
    snprintf(path, sizeof path, "file://%s/%s", (const char *)context, strstr(url, "://") + 3);
    *ret_rank = rank;
    *ret_world_size = world_size;
    comm_status status = comm_store_open(path, NULL, ret_store);
    if (status != COMM_OK)
        snprintf(error, capacity, "%s", comm_last_error());
    return status;
}

static void a_scheme_of_the_user_s_opens_a_world(int rank, int size, void *arg)
{
    char path[300];
    comm_group *world;
    (void)arg;
    CHECK_OK(comm_rendezvous_register("here", meet_in_file, (void *)ranks_folder()));
    CHECK_OK(init_at("here://mine", rank, size, TIMEOUT_MS, &world));
    check_sum(world, size);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
    snprintf(path, sizeof path, "%s/mine", ranks_folder());
    unlink(path);
}

/* ---- Ranks that do not fit together ---- */

static void a_wrong_world_size_is_told_to_all(int rank, int size, void *arg)
{
    char text[64];
    comm_group *world;
    int wrong = *(int *)arg;
    CHECK_STATUS(init_at(url_of_port(text), rank, rank == wrong ? size + 1 : size, NEVER_MS, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the ranks disagree about the world size");
    snprintf(text, sizeof text, "%d ranks, says rank %d (host ", size + 1, wrong);
    CHECK_ERROR_SAYS(text);
    snprintf(text, sizeof text, "%d ranks, says rank ", size);
    CHECK_ERROR_SAYS(text);
    CHECK(world == (comm_group *)8);
}

static void a_wrong_secret_is_told_to_all(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    char url[64];
    comm_group *world;
    (void)arg;
    options.rendezvous = url_of_port(url);
    options.rank = rank;
    options.world_size = size;
    options.timeout_ms = NEVER_MS;
    options.secret = rank == 1 ? "wrong" : "right";
    CHECK_STATUS(comm_init(&options, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the ranks have different secrets: rank ");
    CHECK_ERROR_SAYS(" has another one than rank ");
    CHECK_ERROR_SAYS("rank 1 (host ");
    CHECK(!strstr(comm_last_error(), "wrong") && !strstr(comm_last_error(), "right") &&
          !strchr(comm_last_error(), '|'));
}

/* Processes 1 and 2 both say that they are rank 1 of 2. */
static void one_of_two_that_claim_a_rank_is_refused(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world = NULL;
    int64_t refused = 0, met = 0;
    (void)arg;
    options.store = our_store();
    options.world_size = 2;
    options.rank = rank > 0;
    comm_status status = comm_init(&options, &world);
    if (status != COMM_OK) {
        CHECK_STATUS(status, COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("rank 1 has joined already (host ");
        CHECK_ERROR_SAYS("two processes have this rank");
        CHECK(!strchr(comm_last_error(), '|'));
    }
    CHECK_OK(comm_store_add(our_store(), status == COMM_OK ? "met" : "refused", 1, &met));
    if (status == COMM_OK)
        check_sum(world, 2);
    CHECK_OK(comm_store_barrier(our_store(), "done", size, TIMEOUT_MS));
    CHECK_OK(comm_store_add(our_store(), "met", 0, &met));
    CHECK_OK(comm_store_add(our_store(), "refused", 0, &refused));
    CHECK(met == 2 && refused == 1);
    CHECK_OK(comm_group_close(world));
    comm_store_close(our_store());
}

/* Processes 1 and 2 both say that they are rank 1 of 3, so rank 2 is missing. Rank 0 comes once one is refused. */
static void the_others_hear_that_a_rank_came_twice(int rank, int size, void *arg)
{
    const char *refused[] = { "refused" };
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world = NULL;
    (void)arg;
    options.store = our_store();
    options.world_size = size;
    options.rank = rank > 0;
    options.timeout_ms = rank == 0 ? 300 : TIMEOUT_MS;
    if (rank == 0)
        CHECK_OK(comm_store_wait(our_store(), refused, 1, TIMEOUT_MS));
    comm_status status = comm_init(&options, &world);
    if (rank > 0 && status == COMM_ERR_INVALID) {
        CHECK_ERROR_SAYS("rank 1 has joined already (host ");
        CHECK_OK(comm_store_set(our_store(), "refused", "", 0));
    } else {
        CHECK_STATUS(status, COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("missing: 2; a second process came as rank 1 (host ");
        CHECK_ERROR_SAYS("), and was refused: give each process a rank of its own");
    }
    CHECK_OK(comm_store_barrier(our_store(), "done", size, TIMEOUT_MS));
    comm_store_close(our_store());
}

/* A run leaves its file behind; the next run on it is told so, whether the first one had come together or not. */
static void the_file_of_an_earlier_run_is_noticed(int rank, int size, void *arg)
{
    char url[300], path[300];
    comm_group *world;
    int old_size = *(int *)arg, ready[2];
    (void)size;
    snprintf(url, sizeof url, "file://%s/meet", ranks_folder());
    CHECK(pipe(ready) == 0);
    pid_t old = fork();
    if (old == 0) {
        comm_store *store;
        int64_t joined = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* should the rank fail */
        if (old_size == 1) /* comes together, and is then killed */
            CHECK_OK(init_at(url, rank, 1, TIMEOUT_MS, &world));
        else if (fork() == 0) { /* comes, and is killed while it waits */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(init_at(url, rank, old_size, NEVER_MS, &world) == COMM_OK);
        }
        CHECK_OK(comm_store_open(url, NULL, &store));
        while (old_size > 1 && joined == 0)
            CHECK_OK(comm_store_add(store, "comm/world/0/joined", 0, &joined));
        CHECK(write(ready[1], "x", 1) == 1);
        pause();
    }
    char x;
    CHECK(read(ready[0], &x, 1) == 1);
    CHECK_STATUS(init_at(url, rank, old_size, TIMEOUT_MS, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS(old_size == 1 ? "an earlier job" : "holds an earlier run: start a fresh one");
    CHECK_ERROR_SAYS(url + strlen("file://"));
    kill(old, SIGKILL);
    CHECK(waitpid(old, NULL, 0) == old);
    CHECK_STATUS(init_at(url, rank, old_size, TIMEOUT_MS, &world), COMM_ERR_INVALID);
    snprintf(path, sizeof path, "%s/meet", ranks_folder());
    unlink(path);
}

/* ---- Ranks that do not come ---- */

/* Of four, ranks 1 and 3 do not come. */
static void a_timeout_names_who_is_missing(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    int64_t joined = 0;
    (void)arg;
    options.store = our_store();
    options.world_size = 4;
    options.rank = rank * 2;
    options.timeout_ms = rank == 0 ? 100 : 2000;
    while (rank == 0 && joined == 0) /* rank 2 first */
        CHECK_OK(comm_store_add(our_store(), "comm/world/0/joined", 0, &joined));
    CHECK_STATUS(comm_init(&options, &world), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("2 of 4 ranks have joined, missing: 1, 3");
    CHECK(size == 2);
    comm_store_close(our_store());
}

static void a_timeout_of_a_large_world_stays_short(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    (void)arg;
    (void)rank;
    (void)size;
    options.store = our_store();
    options.world_size = 100000;
    options.rank = 3;
    options.timeout_ms = 50;
    CHECK_STATUS(comm_init(&options, &world), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("1 of 100000 ranks have joined, ");
    CHECK_ERROR_SAYS("missing: 0, 1, 2, 4, ");
    CHECK_ERROR_SAYS(" ...");
    comm_store_close(our_store());
}

static void pass_on(int32_t level, const char *text, void *context)
{
    (void)context;
    if (level == COMM_LOG_WARN && strstr(text, (const char *)context) && write(to_others[1], "x", 1) != 1)
        abort();
}

/* Rank 1 comes when rank 0 has said that it is missing. */
static void who_waits_says_who_is_missing(int rank, int size, void *arg)
{
    char x, url[64];
    comm_group *world;
    (void)arg;
    setenv("COMM_PROGRESS_LOG_MS", "10", 1);
    comm_log_set_level(COMM_LOG_WARN); /* whatever COMM_LOG says */
    if (rank == 0)
        comm_log_set(pass_on, (void *)"world 'world' (rank 0): 1 of 2 ranks have joined, missing: 1");
    else
        CHECK(read(to_others[0], &x, 1) == 1);
    CHECK_OK(init_at(url_of_port(url), rank, size, TIMEOUT_MS, &world));
    comm_log_set(NULL, NULL);
    check_sum(world, size);
    CHECK_OK(comm_group_close(world));
}

/* Rank 0, which serves, comes when rank 1 has said that there is no server. */
static void who_finds_no_server_says_so(int rank, int size, void *arg)
{
    char x, url[64], words[64];
    comm_group *world;
    (void)arg;
    setenv("COMM_PROGRESS_LOG_MS", "10", 1);
    comm_log_set_level(COMM_LOG_WARN); /* whatever COMM_LOG says */
    snprintf(words, sizeof words, "no server at 127.0.0.1 port %d for 0 s yet (", port);
    if (rank == 1)
        comm_log_set(pass_on, words);
    else
        CHECK(read(to_others[0], &x, 1) == 1);
    CHECK_OK(init_at(url_of_port(url), rank, size, TIMEOUT_MS, &world));
    comm_log_set(NULL, NULL);
    check_sum(world, size);
    CHECK_OK(comm_group_close(world));
}

/* A port that no other socket can listen at: it is bound. */
static int bound_port(int *ret_fd)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof a;
    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(*ret_fd, (struct sockaddr *)&a, bytes) == 0 && getsockname(*ret_fd, (struct sockaddr *)&a, &bytes) == 0);
    return ntohs(a.sin_port);
}

static void nobody_there_is_an_error_with_the_address(int rank, int size, void *arg)
{
    char url[64], words[64];
    comm_group *world;
    int fd;
    (void)arg;
    (void)rank;
    (void)size;
    port = bound_port(&fd);
    CHECK_STATUS(init_at(url_of_port(url), 1, 2, 100, &world), COMM_ERR_TIMEOUT);
    snprintf(words, sizeof words, "127.0.0.1 port %d: Connection refused", port);
    CHECK_ERROR_SAYS(words);
    CHECK_ERROR_SAYS("rank 1 of 2");
    CHECK_STATUS(init_at("tcp://no-such-host.invalid:1", 1, 2, 100, &world), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("no-such-host.invalid");
    CHECK_STATUS(init_at("tcp://127.0.0.1:0", 0, 2, 100, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("other ranks cannot find port 0");
    close(fd);
}

/* ---- All of them ---- */

int main(void)
{
    int failed = 0, one = 1, two = 2, three = 3, first = 0, last = 3;
#define RUN(size, fn, arg)                                                                                             \
    (find_port(AF_INET), failed |= ranks_run(size, &(struct ranks_options){ .name = #fn }, fn, arg))
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(to_others, O_CLOEXEC) != 0)
        return 1;
    RUN(3, worlds_follow_each_other_on_one_port, NULL);
    RUN(3, worlds_follow_each_other_on_one_store, NULL);
    RUN(3, worlds_of_one_process_share_a_port, NULL);
    RUN(8, who_serves_leaves_last, NULL);
    find_port(AF_INET);
    failed |= ranks_run(2, &(struct ranks_options){ .limit_s = 30, .name = "the server is stopped" },
                        closing_ends_though_the_server_is_stopped, NULL);
    RUN(2, a_file_brings_ranks_together_and_goes, NULL);
    RUN(3, a_scheme_of_the_user_s_opens_a_world, NULL);
    RUN(4, a_wrong_world_size_is_told_to_all, &first);
    RUN(4, a_wrong_world_size_is_told_to_all, &last);
    RUN(3, a_wrong_secret_is_told_to_all, NULL);
    RUN(3, one_of_two_that_claim_a_rank_is_refused, NULL);
    RUN(3, the_others_hear_that_a_rank_came_twice, NULL);
    RUN(1, the_file_of_an_earlier_run_is_noticed, &one);
    RUN(1, the_file_of_an_earlier_run_is_noticed, &three);
    RUN(two, a_timeout_names_who_is_missing, NULL);
    RUN(1, a_timeout_of_a_large_world_stays_short, NULL);
    RUN(2, who_waits_says_who_is_missing, NULL);
    RUN(2, who_finds_no_server_says_so, NULL);
    RUN(1, nobody_there_is_an_error_with_the_address, NULL);
    find_port(AF_INET6);
    if (port)
        failed |= ranks_run(3, &(struct ranks_options){ .name = "ipv6" }, ipv6_is_an_address_as_good, NULL);
    else
        puts("this host has no ::1, so IPv6 is not tried");
    return failed;
}

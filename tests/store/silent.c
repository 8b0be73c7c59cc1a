/* Servers that do not answer: no call takes longer than its limit and half a second, and its error says that it was the
 * server. The server is a process that is stopped (SIGSTOP), a socket whose queue of connections is full (so a SYN gets
 * no answer), one that accepts and never reads, one that says a byte now and then, or a name server that says nothing.
 * For one that is cut off, see cut_off.c. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "lines.h"
#include "ranks.h"
#include "store/store.h" /* only to see that a thread is inside a call */
#include "store/wire.h"

/* ---- A server in a process ---- */

struct server {
    pid_t pid;
    int port;
    char url[64];
};

static void server_start(struct server *s)
{
    int ends[2], port = 0;
    CHECK(pipe(ends) == 0);
    s->pid = fork();
    CHECK(s->pid >= 0);
    if (s->pid == 0) {
        comm_store_options options = COMM_STORE_OPTIONS_INIT;
        comm_store *store;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive the test, stopped or not */
        options.serve = 1;
        CHECK_OK(comm_store_open("tcp://127.0.0.1:0", &options, &store));
        port = comm_store_port(store);
        CHECK(write(ends[1], &port, sizeof port) == (ssize_t)sizeof port);
        for (;;)
            pause();
    }
    CHECK(read(ends[0], &port, sizeof port) == (ssize_t)sizeof port);
    close(ends[0]);
    close(ends[1]);
    s->port = port;
    snprintf(s->url, sizeof s->url, "tcp://127.0.0.1:%d", port);
}

static void server_stop(const struct server *s)
{
    int status;
    CHECK(kill(s->pid, SIGSTOP) == 0);
    CHECK(waitpid(s->pid, &status, WUNTRACED) == s->pid && WIFSTOPPED(status));
}

static void server_end(const struct server *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
}

/* ---- Stopped ---- */

static comm_store *handles[2][CALL_COUNT];

static void check_stopped(const char *prefix, const char *when)
{
    struct server s;
    server_start(&s);
    open_handles(s.url, prefix, handles);
    server_stop(&s);
    check_all(when, handles);
    kill(s.pid, SIGCONT);
    check_good_again(handles);
    close_handles(handles);
    server_end(&s);
}

static void a_stopped_server(void)
{
    check_stopped(NULL, "stopped");
}

static void a_stopped_server_behind_a_view(void)
{
    check_stopped("some/where", "stopped, behind a view");
}

/* Open `url`; TIMEOUT in time. */
static void check_open(const char *url, int64_t limit_ms)
{
    int64_t took_ms = 0;
    for (int i = 0; i < 2; i++) {
        comm_store *store;
        comm_store_options options = COMM_STORE_OPTIONS_INIT;
        options.timeout_ms = limit_ms;
        int64_t began = now_ms();
        CHECK_STATUS(comm_store_open(url, &options, &store), COMM_ERR_TIMEOUT);
        took_ms = now_ms() - began;
        CHECK_ERROR_SAYS("timed out");
        CHECK_ERROR_SAYS("no server answered");
        if (took_ms <= limit_ms + PROMISED_MS)
            return;
    }
    ranks_fail(__FILE__, __LINE__, "opening %s with %d ms took %d", url, (int)limit_ms, (int)took_ms);
}

static void opening_at_a_stopped_server(void)
{
    struct server s;
    server_start(&s);
    server_stop(&s);
    check_open(s.url, BRIEF_MS);
    check_open(s.url, LONGER_MS);
    server_end(&s);
}

/* The server is stopped while calls wait in it. */
static void stopped_in_the_middle(void)
{
    struct server s;
    struct run runs[4];
    for (int again = 0; again < 2; again++) {
        int late = 0;
        server_start(&s);
        for (int i = 0; i < 4; i++) {
            comm_store *store = open_at(s.url, PLENTY_MS);
            run_start(&runs[i], &calls[i == 3 ? CALL_BARRIER : i], store, 2 * LONGER_MS);
            while (atomic_load(&store->calls) < 2)
                nanosleep(&(struct timespec){ 0, 100000 }, NULL);
        }
        comm_store *other = open_at(s.url, PLENTY_MS);
        int64_t came = 0;
        while (came == 0) { /* the barrier, the last of them, has been counted */
            int32_t there = 0;
            CHECK_OK(comm_store_check(other, (const char *[]){ "bar" }, 1, &there));
            came = there;
        }
        server_stop(&s);
        for (int i = 0; i < 4; i++) {
            pthread_join(runs[i].thread, NULL);
            run_check(&runs[i], "stopped in the middle");
            late |= run_is_late(&runs[i]);
            if (again && run_is_late(&runs[i]))
                fail_late(&runs[i], "stopped in the middle");
            comm_store_close(runs[i].store);
        }
        comm_store_close(other);
        server_end(&s);
        if (!late)
            return;
    }
}

/* One thread has much time, and another on the same handle has not. */
static void a_short_limit_beside_a_long_one(void)
{
    struct server s;
    struct run patient, brief;
    server_start(&s);
    comm_store *store = open_at(s.url, LONGER_MS * 2), *view;
    CHECK_OK(comm_store_prefix("view", store, &view));
    CHECK_OK(comm_store_set_timeout(view, BRIEF_MS));
    server_stop(&s);
    run_start(&patient, &calls[CALL_ADD], store, LONGER_MS * 2);
    while (atomic_load(&store->calls) < 2)
        nanosleep(&(struct timespec){ 0, 100000 }, NULL);
    for (int again = 0; again < 2; again++) {
        run_start(&brief, &calls[again ? CALL_GET : CALL_ADD], view, BRIEF_MS);
        pthread_join(brief.thread, NULL);
        run_check(&brief, "beside a patient call");
        if (run_is_late(&brief))
            fail_late(&brief, "beside a patient call");
    }
    comm_store_close(store); /* ends the other */
    pthread_join(patient.thread, NULL);
    CHECK(patient.status == COMM_ERR_ABORTED && !run_is_late(&patient));
    comm_store_close(view);
    server_end(&s);
}

/* ---- Sockets ---- */

/* A socket that accepts no more connections: a SYN gets no answer. */
static int listen_and_fill(int *ret_port, int held[8])
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t bytes = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 0) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &bytes) == 0);
    *ret_port = ntohs(a.sin_port);
    for (int i = 0; i < 8; i++) {
        held[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(held[i], (struct sockaddr *)&a, sizeof a);
    }
    struct pollfd last = { .fd = held[7], .events = POLLOUT };
    CHECK(poll(&last, 1, 100) == 0); /* it is full indeed */
    return fd;
}

static void a_full_queue(void)
{
    int port, held[8], fd = listen_and_fill(&port, held);
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    check_open(url, BRIEF_MS);
    check_open(url, LONGER_MS);
    for (int i = 0; i < 8; i++)
        close(held[i]);
    close(fd);
}

static void nobody_listens(void)
{
    char url[64];
    int port;
    close(lines_listen(&port));
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    check_open(url, BRIEF_MS);
    check_open(url, LONGER_MS);
    CHECK_ERROR_SAYS("Connection refused");
}

/* Hears what comes and says a byte of a value of a thousand now and then, to as many connections as come. */
struct slow {
    pthread_t thread;
    int listener, port, greet;
    atomic_int ends;
};

static void greet_back(int fd)
{
    uint8_t hello[10 + 1 + 8 + 8 + 15], reply[5];
    CHECK(recv(fd, hello, sizeof hello, MSG_WAITALL) == (ssize_t)sizeof hello);
    memcpy(reply, hello + 6, 4);
    reply[4] = WIRE_READY;
    lines_send(fd, reply, sizeof reply);
}

static void *slow_main(void *argument)
{
    static const uint8_t value[] = { 0, 0xe8, 3, 0, 0, 0, 0, 0, 0, 'x' }; /* STOP_WAITING; 1000 bytes */
    struct slow *s = argument;
    int fds[64], count = 0;
    size_t said[64] = { 0 };
    while (!atomic_load(&s->ends)) {
        struct pollfd p = { .fd = s->listener, .events = POLLIN };
        if (poll(&p, 1, 20) == 1 && count < 64) {
            fds[count] = lines_accept(s->listener);
            if (s->greet)
                greet_back(fds[count]);
            said[count++] = 0;
        }
        for (int i = 0; s->greet && i < count; i++)
            if (send(fds[i], &value[said[i] < 9 ? said[i] : 9], 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
                said[i]++;
    }
    while (count > 0)
        close(fds[--count]);
    return NULL;
}

static void slow_start(struct slow *s, int greet, char url[64])
{
    *s = (struct slow){ .greet = greet };
    s->listener = lines_listen(&s->port);
    snprintf(url, 64, "tcp://127.0.0.1:%d", s->port);
    CHECK(pthread_create(&s->thread, NULL, slow_main, s) == 0);
}

static void slow_end(struct slow *s)
{
    atomic_store(&s->ends, 1);
    pthread_join(s->thread, NULL);
    close(s->listener);
}

static void one_who_accepts_and_says_nothing(void)
{
    struct slow s;
    char url[64];
    slow_start(&s, 0, url);
    check_open(url, BRIEF_MS);
    check_open(url, LONGER_MS);
    slow_end(&s);
}

static void one_who_says_a_byte_now_and_then(void)
{
    struct slow s;
    struct run r;
    char url[64];
    slow_start(&s, 1, url);
    for (int i = 0, late = 0; i < 4; i++) {
        comm_store *store = open_at(url, PLENTY_MS);
        run_start(&r, &calls[CALL_GET], store, i % 2 ? LONGER_MS : BRIEF_MS);
        pthread_join(r.thread, NULL);
        run_check(&r, "a byte now and then");
        late += run_is_late(&r);
        if (late > 1)
            fail_late(&r, "a byte now and then");
        comm_store_close(store);
    }
    slow_end(&s);
}

/* ---- Names ---- */

static atomic_int names_may_come;

/* In the place of libc's: one name waits for a name server that says nothing. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **ret_list)
{
    int (*libc)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&libc = dlsym(RTLD_NEXT, "getaddrinfo");
    if (host && strcmp(host, "silent.invalid") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
        while (!atomic_load(&names_may_come))
            nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        return EAI_AGAIN;
    }
    return libc(host, service, hints, ret_list);
}

static void a_silent_name_server(void)
{
    check_open("tcp://silent.invalid:4711", BRIEF_MS);
    check_open("tcp://silent.invalid:4711", LONGER_MS);
    CHECK_ERROR_SAYS("silent.invalid");
    atomic_store(&names_may_come, 1);
}

/* ---- A store of the user's ---- */

enum { SLOW_MS = 150 };

static comm_store *behind; /* what the slow one hands its calls to */
static atomic_int slow_calls;

static void be_slow(void)
{
    nanosleep(&(struct timespec){ 0, SLOW_MS * 1000000 }, NULL);
    atomic_fetch_add(&slow_calls, 1);
}

static comm_status slow_said(comm_status status, char *error, size_t capacity)
{
    snprintf(error, capacity, "%s", status == COMM_OK ? "" : comm_last_error());
    return status;
}

static comm_status slow_set(void *context, const char *key, const void *data, size_t bytes, char *error,
                            size_t capacity)
{
    (void)context;
    be_slow();
    return slow_said(comm_store_set(behind, key, data, bytes), error, capacity);
}

static comm_status slow_get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                            char *error, size_t capacity)
{
    (void)context;
    be_slow();
    return slow_said(comm_store_get(behind, key, timeout_ms, ret_data, ret_bytes), error, capacity);
}

static comm_status slow_add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                            size_t capacity)
{
    (void)context;
    be_slow();
    return slow_said(comm_store_add(behind, key, amount, ret_value), error, capacity);
}

static comm_status slow_compare_set(void *context, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                                    char *error, size_t capacity)
{
    (void)context;
    be_slow();
    return slow_said(comm_store_compare_set(behind, key, expected, expected_bytes, desired, desired_bytes, ret_data,
                                            ret_bytes), error, capacity);
}

static comm_status slow_check(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                              size_t capacity)
{
    (void)context;
    be_slow();
    return slow_said(comm_store_check(behind, keys, count, ret_all), error, capacity);
}

static comm_status slow_remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
{
    (void)context;
    be_slow();
    return slow_said(comm_store_delete(behind, key, ret_existed), error, capacity);
}

static comm_status call_many(comm_store *s, int64_t limit_ms)
{
    enum { MANY = 50 };
    static char names[MANY][8];
    const char *keys[MANY];
    void *data[MANY];
    size_t bytes[MANY];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i);
        keys[i] = names[i];
        CHECK_OK(comm_store_set(behind, names[i], "v", 1));
    }
    return comm_store_multi_get(s, keys, MANY, limit_ms, data, bytes);
}

static comm_status call_set_many(comm_store *s, int64_t limit_ms)
{
    static const void *data[50];
    static const size_t bytes[50];
    const char *keys[50];
    (void)limit_ms;
    for (int i = 0; i < 50; i++)
        keys[i] = "same";
    return comm_store_multi_set(s, keys, 50, data, bytes);
}

/* It cannot be hurried, but what is made of many of its calls ends with the one that is under way, or one more. */
static void a_slow_store_of_the_user_s(void)
{
    const struct call made[] = { { "multi_get", call_many }, { "multi_set", call_set_many }, calls[CALL_WAIT],
                                 calls[CALL_BARRIER], calls[CALL_QUEUE_POP], calls[CALL_ALL_GATHER] };
    const comm_store_ops ops = { .struct_bytes = sizeof ops, .name = "slow", .set = slow_set, .get = slow_get,
                                 .add = slow_add, .compare_set = slow_compare_set, .check = slow_check,
                                 .remove = slow_remove };
    comm_store *store;
    CHECK_OK(comm_store_open("hash://", NULL, &behind));
    CHECK_OK(comm_store_create(&ops, NULL, &store));
    CHECK_OK(comm_store_set_timeout(store, 2 * BRIEF_MS));
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        struct run r;
        int before = atomic_load(&slow_calls);
        run_start(&r, &made[i], store, 2 * BRIEF_MS);
        pthread_join(r.thread, NULL);
        int took = atomic_load(&slow_calls) - before; /* counted, so that a loaded machine does not matter */
        if (r.status != COMM_ERR_TIMEOUT || !strstr(r.text, "timed out") || took > (2 * BRIEF_MS + 300) / SLOW_MS + 2)
            ranks_fail(__FILE__, __LINE__, "%s: %s after %d calls, %d ms: %s", made[i].name, comm_status_name(r.status),
                       took, (int)r.took_ms, r.text);
    }
    comm_store_close(store);
    comm_store_close(behind);
}

static atomic_int waits_begun;

static comm_status begin_wait(void *context, const char *const *keys, size_t count, int64_t timeout_ms, char *error,
                              size_t capacity)
{
    (void)context;
    atomic_fetch_add(&waits_begun, 1);
    return slow_said(comm_store_wait(behind, keys, count, timeout_ms), error, capacity);
}

/* A wait of the user's own is not begun either, if the step before it took all the time. */
static void a_wait_of_the_user_s_that_comes_too_late(void)
{
    const comm_store_ops ops = { .struct_bytes = sizeof ops, .name = "late", .set = slow_set, .get = slow_get,
                                 .add = slow_add, .compare_set = slow_compare_set, .check = slow_check,
                                 .remove = slow_remove, .wait = begin_wait };
    comm_store *store;
    CHECK_OK(comm_store_open("hash://", NULL, &behind));
    CHECK_OK(comm_store_create(&ops, NULL, &store));
    CHECK_STATUS(comm_store_barrier(store, "b", 2, SLOW_MS / 2), COMM_ERR_TIMEOUT);
    CHECK(atomic_load(&waits_begun) == 0);
    CHECK_STATUS(comm_store_barrier(store, "c", 2, 2 * SLOW_MS + BRIEF_MS), COMM_ERR_TIMEOUT);
    CHECK(atomic_load(&waits_begun) > 0);
    comm_store_close(store);
    comm_store_close(behind);
}

/* ---- Worlds ---- */

static comm_status init_at(const char *url, int64_t limit_ms, int64_t *ret_took_ms)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.rendezvous = url;
    options.rank = 1;
    options.world_size = 2;
    options.timeout_ms = limit_ms;
    int64_t began = now_ms();
    comm_status status = comm_init(&options, &world);
    *ret_took_ms = now_ms() - began;
    return status;
}

static void comm_init_at_a_stopped_server(void)
{
    struct server s;
    int64_t took_ms = 0;
    server_start(&s);
    server_stop(&s);
    for (int i = 0; i < 2 && (i == 0 || took_ms > 2500 + PROMISED_MS); i++) {
        CHECK_STATUS(init_at(s.url, 2500, &took_ms), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("timed out");
        CHECK_ERROR_SAYS("no server answered");
    }
    if (took_ms > 2500 + PROMISED_MS)
        ranks_fail(__FILE__, __LINE__, "comm_init with 2500 ms took %d", (int)took_ms);
    server_end(&s);
}

struct joiner {
    pthread_t thread;
    const char *url;
    int64_t took_ms;
    comm_status status;
    char text[1024];
};

static void *join_main(void *argument)
{
    struct joiner *j = argument;
    j->status = init_at(j->url, 2500, &j->took_ms);
    snprintf(j->text, sizeof j->text, "%s", comm_last_error());
    return NULL;
}

/* The server is stopped while rank 1 waits for the others. */
static void comm_init_whose_server_is_stopped(void)
{
    struct joiner j = { .took_ms = 0 };
    for (int i = 0; i < 2 && (i == 0 || j.took_ms > 2500 + PROMISED_MS); i++) {
        struct server s;
        server_start(&s);
        j.url = s.url;
        comm_store *other = open_at(s.url, PLENTY_MS);
        CHECK(pthread_create(&j.thread, NULL, join_main, &j) == 0);
        CHECK_OK(comm_store_wait(other, (const char *[]){ "comm/world/0/joined" }, 1, PLENTY_MS));
        server_stop(&s);
        pthread_join(j.thread, NULL);
        if (j.status != COMM_ERR_TIMEOUT || !strstr(j.text, "timed out") || !strstr(j.text, "127.0.0.1 port") ||
            (!strstr(j.text, "has not answered") && !strstr(j.text, "no server answered")))
            ranks_fail(__FILE__, __LINE__, "%s: %s", comm_status_name(j.status), j.text);
        comm_store_close(other);
        server_end(&s);
    }
    if (j.took_ms > 2500 + PROMISED_MS)
        ranks_fail(__FILE__, __LINE__, "comm_init with 2500 ms took %d", (int)j.took_ms);
}

/* 1 if the test failed. */
static int wait_for_one(void)
{
    int state;
    pid_t child = wait(&state);
    if (child > 0 && WIFEXITED(state) && WEXITSTATUS(state) == 0)
        return 0;
    printf("process %d failed: %s %d\n", (int)child, WIFSIGNALED(state) ? "signal" : "status",
           WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state));
    return 1;
}

/* Each in a process of its own, some at a time: nearly all of them only wait. */
int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        { "a stopped server", a_stopped_server },
        { "a stopped server behind a view", a_stopped_server_behind_a_view },
        { "opening at a stopped server", opening_at_a_stopped_server },
        { "stopped in the middle", stopped_in_the_middle },
        { "a short limit beside a long one", a_short_limit_beside_a_long_one },
        { "a full queue of connections", a_full_queue },
        { "nobody listens", nobody_listens },
        { "one who accepts and says nothing", one_who_accepts_and_says_nothing },
        { "one who says a byte now and then", one_who_says_a_byte_now_and_then },
        { "a silent name server", a_silent_name_server },
        { "a slow store of the user's", a_slow_store_of_the_user_s },
        { "a wait of the user's that comes too late", a_wait_of_the_user_s_that_comes_too_late },
        { "comm_init at a stopped server", comm_init_at_a_stopped_server },
        { "comm_init whose server is stopped", comm_init_whose_server_is_stopped },
    };
    enum { COUNT = sizeof tests / sizeof *tests, AT_ONCE = 5 };
    int failed = 0;
    for (int i = 0; i < COUNT; i++) {
        if (i >= AT_ONCE)
            failed |= wait_for_one();
        fflush(stdout);
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            alarm(110);
            tests[i].run();
            printf("%s: done\n", tests[i].name);
            exit(0);
        }
        printf("%s: process %d\n", tests[i].name, (int)child);
    }
    for (int i = 0; i < AT_ONCE && i < COUNT; i++)
        failed |= wait_for_one();
    return failed;
}

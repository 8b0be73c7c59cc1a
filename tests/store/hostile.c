/* Clients that mean harm, break off, are slow or are very many, while good ones work. The server is a process of its
 * own, whose memory is looked at. After each attack, good clients must have got on, and the server must still do
 * everything. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lines.h"
#include "ranks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum {
    MIB = 1 << 20,
    GOOD_CLIENTS = 2,
    MANY = SANITIZED ? 300 : 1000,          /* that wait for one key */
    CONNECTIONS = SANITIZED ? 1000 : 5000,  /* at once */
    SPARE_DESCRIPTORS = 100,
};

static uint64_t random_state;

static uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

/* ---- The server ---- */

struct server {
    pid_t pid;
    int lifeline, port;
};

static void serve(int lifeline, int report, int descriptors)
{
    comm_store *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    struct rlimit limit = { (rlim_t)descriptors, (rlim_t)descriptors };
    char byte;
    options.serve = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (descriptors && setrlimit(RLIMIT_NOFILE, &limit) != 0)
        _exit(3);
    if (comm_store_open("tcp://127.0.0.1:0", &options, &store) != COMM_OK)
        _exit(2);
    int port = comm_store_port(store);
    if (write(report, &port, sizeof port) != sizeof port)
        _exit(4);
    while (read(lifeline, &byte, 1) < 0 && errno == EINTR)
        ;
    comm_store_close(store);
    exit(0);
}

/* descriptors: how many it may have; 0 as many as we */
static struct server server_start(int descriptors)
{
    struct server server;
    int life[2], report[2];
    CHECK(pipe(life) == 0 && pipe(report) == 0);
    fflush(NULL);
    server.pid = fork();
    CHECK(server.pid >= 0);
    if (server.pid == 0) {
        close(life[1]);
        close(report[0]);
        serve(life[0], report[1], descriptors);
    }
    close(life[0]);
    close(report[1]);
    CHECK(read(report[0], &server.port, sizeof server.port) == sizeof server.port);
    close(report[0]);
    server.lifeline = life[1];
    fcntl(server.lifeline, F_SETFD, FD_CLOEXEC);
    return server;
}

static void server_stop(struct server *server)
{
    int status = -1;
    close(server->lifeline);
    CHECK(waitpid(server->pid, &status, 0) == server->pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        ranks_fail(__FILE__, __LINE__, "the server ended with status %x", status);
}

static long server_rss_mib(const struct server *server)
{
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)server->pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "VmRSS: %ld", &kib);
    if (file)
        fclose(file);
    return kib / 1024;
}

static void check_memory(const struct server *server, long most_mib)
{
    long mib = server_rss_mib(server);
    printf("  the server holds %ld MiB (at most %ld)\n", mib, most_mib);
    if (!SANITIZED && mib > most_mib)
        ranks_fail(__FILE__, __LINE__, "the server holds %ld MiB; it should be %ld at most", mib, most_mib);
}

static int greet(const struct server *server)
{
    int fd = lines_connect(server->port);
    lines_say(fd, "00 ce f7 85 3c 0d 17 32 00 00");
    lines_hear(fd, "17 32 00 00");
    return fd;
}

/* ---- Good clients, which work all the time ---- */

struct worker {
    pthread_t thread;
    comm_store *store;
    int index;
    atomic_int stop;
    atomic_long rounds;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    char key[32], value[32];
    for (long i = 0; !atomic_load(&w->stop); i++) {
        void *data = NULL;
        size_t bytes = 0;
        int64_t sum = -1;
        snprintf(key, sizeof key, "good/%d/%ld", w->index, i % 10);
        int n = snprintf(value, sizeof value, "value %ld", i);
        CHECK_OK(comm_store_set(w->store, key, value, (size_t)n));
        CHECK_OK(comm_store_get(w->store, key, 0, &data, &bytes));
        CHECK(bytes == (size_t)n && memcmp(data, value, bytes) == 0);
        comm_free(data);
        snprintf(key, sizeof key, "good/%d/sum", w->index);
        CHECK_OK(comm_store_add(w->store, key, 1, &sum));
        CHECK(sum == i + 1);
        atomic_fetch_add(&w->rounds, 1);
    }
    return NULL;
}

static void workers_start(const struct server *server, struct worker workers[GOOD_CLIENTS])
{
    char url[64];
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.timeout_ms = LINES_LIMIT_MS;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", server->port);
    for (int i = 0; i < GOOD_CLIENTS; i++) {
        workers[i].index = i;
        atomic_init(&workers[i].stop, 0);
        atomic_init(&workers[i].rounds, 0);
        CHECK_OK(comm_store_open(url, &options, &workers[i].store));
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
}

/* Each good client has done something more. */
static void workers_get_on(struct worker workers[GOOD_CLIENTS])
{
    for (int i = 0; i < GOOD_CLIENTS; i++) {
        long begin = atomic_load(&workers[i].rounds);
        while (atomic_load(&workers[i].rounds) < begin + 20)
            nanosleep(&(struct timespec){ 0, 200000 }, NULL);
    }
}

static void workers_stop(struct worker workers[GOOD_CLIENTS])
{
    for (int i = 0; i < GOOD_CLIENTS; i++)
        atomic_store(&workers[i].stop, 1);
    for (int i = 0; i < GOOD_CLIENTS; i++) {
        pthread_join(workers[i].thread, NULL);
        comm_store_close(workers[i].store);
    }
}

/* ---- Attacks ---- */

static void hang_up(int fd, int rudely)
{
    struct linger now = { 1, 0 };
    if (rudely)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

/* As much as the socket takes; the server may close it meanwhile. */
static void blurt(int fd, const void *data, size_t bytes)
{
    ssize_t ignored = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
}

static void junk(const struct server *server)
{
    static const char *const probes[] = {
        "GET / HTTP/1.0\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "\r\n\r\n",
        "help\n",
        "\x80\x9e\x01\x03\x01",
        "EHLO example\r\n",
        "\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        "*1\r\n$4\r\nPING\r\n",
    };
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        int fd = lines_connect(server->port);
        lines_send(fd, probes[i], strlen(probes[i]));
        lines_hear_end(fd);
        close(fd);
    }
    for (int i = 0; i < 300; i++) {
        uint8_t bytes[512];
        size_t count = random_u32() % sizeof bytes;
        for (size_t k = 0; k < count; k++)
            bytes[k] = (uint8_t)(random_u32() >> (k % 2 ? 4 : 27)); /* half of them small: lengths and queries */
        int fd = lines_connect(server->port);
        if (random_u32() % 2)
            lines_say(fd, "00 ce f7 85 3c");
        blurt(fd, bytes, count);
        hang_up(fd, random_u32() % 2 != 0);
    }
}

enum { HALF_SENT = 60 };

/* Announce as much as is allowed, send a part of it, and stop. */
static void half_sent(const struct server *server, struct worker workers[GOOD_CLIENTS])
{
    int fds[HALF_SENT];
    char *part = calloc(1, MIB);
    CHECK(part != NULL);
    for (int i = 0; i < HALF_SENT; i++) {
        fds[i] = greet(server);
        lines_say(fds[i], i % 2 ? "01 02.. '/k' 800000.." : "0b 20000.. 02.. '/k' 800000..");
        lines_send(fds[i], part, MIB);
    }
    workers_get_on(workers);
    check_memory(server, 64 + HALF_SENT * 3);
    for (int i = 0; i < HALF_SENT; i++)
        hang_up(fds[i], i % 3 == 0);
    free(part);
}

/* A request that never ends is ended: at the limit of 64 MiB, plus what two socket buffers hold. */
static void endless(const struct server *server)
{
    int fd = greet(server);
    char *pair = calloc(1, 4 * MIB);
    CHECK(pair != NULL);
    lines_say(fd, "0b 20000..");
    uint8_t head[LINES_BYTES_MAX];
    size_t head_bytes = lines_parse("02.. '/k' 3fff00..", head, NULL);
    memcpy(pair, head, head_bytes);
    size_t pair_bytes = head_bytes + 0x3fff00, sent = 0;
    while (sent < (size_t)200 * MIB) {
        size_t at = sent % pair_bytes;
        ssize_t n = send(fd, pair + at, pair_bytes - at, MSG_NOSIGNAL);
        if (n < 0)
            break;
        sent += (size_t)n;
    }
    free(pair);
    CHECK(sent < (size_t)200 * MIB);
    close(fd);
}

static void byte_by_byte(const struct server *server, struct worker workers[GOOD_CLIENTS])
{
    uint8_t bytes[LINES_BYTES_MAX];
    size_t count = lines_parse("00 ce f7 85 3c 01 05.. '/slow' 04.. 'word' 03 05.. '/slow'", bytes, NULL);
    int fd = lines_connect(server->port);
    for (size_t i = 0; i < count; i++) {
        lines_send(fd, bytes + i, 1);
        if (i % 16 == 0)
            workers_get_on(workers);
    }
    lines_hear(fd, "04.. 'word'");
    close(fd);
}

static void breaking_off(const struct server *server)
{
    static const char *const requests[] = {
        "01 02.. '/k' 04.. 'word'",
        "06 03.. 02.. '/a' 02.. '/b' 02.. '/c'",
        "12 02.. '/d' 64..",
        "0b 02.. 02.. '/a' 01.. 'x' 02.. '/z' 00..",
        "06 01.. 02.. '/q' 0f 02.. '/q'",
        "02 02.. '/k' 00.. 01.. 'x' 11 11 11",
    };
    for (int i = 0; i < 300; i++) {
        uint8_t bytes[LINES_BYTES_MAX];
        size_t count = lines_parse(requests[i % 6], bytes, NULL);
        int fd = lines_connect(server->port);
        lines_say(fd, "00 ce f7 85 3c");
        lines_send(fd, bytes, random_u32() % (count + 1));
        hang_up(fd, i % 2);
    }
}

enum { DEAF = 16, LARGE = 1 * MIB };

static void set_large(const struct server *server, const char *key)
{
    comm_store *store;
    char url[64], *large = malloc(LARGE);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", server->port);
    CHECK(large != NULL);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (char)(i * 2654435761u >> 24);
    CHECK_OK(comm_store_open(url, NULL, &store));
    CHECK_OK(comm_store_set(store, key, large, LARGE));
    void *back;
    size_t bytes;
    CHECK_OK(comm_store_get(store, key, 0, &back, &bytes)); /* it is there */
    comm_free(back);
    comm_store_close(store);
    free(large);
}

static void hear_large(int fd, char *buffer)
{
    lines_hear(fd, "100000..");
    size_t got = 0;
    for (ssize_t n; got < LARGE; got += (size_t)n) {
        n = recv(fd, buffer, LARGE - got, 0);
        CHECK(n > 0);
        for (ssize_t i = 0; i < n; i++)
            CHECK(buffer[i] == (char)((got + (size_t)i) * 2654435761u >> 24));
    }
}

/* They ask and ask for something large, and read nothing. */
static void deaf(const struct server *server, struct worker workers[GOOD_CLIENTS])
{
    int fds[DEAF];
    uint8_t ask[LINES_BYTES_MAX], *all = malloc(LARGE);
    size_t count = lines_parse("03 02.. '/L'", ask, NULL), n = 0;
    CHECK(all != NULL);
    set_large(server, "L");
    for (; n + count <= LARGE; n += count)
        memcpy(all + n, ask, count);
    for (int i = 0; i < DEAF; i++) {
        fds[i] = greet(server);
        blurt(fds[i], all, n);
    }
    workers_get_on(workers);
    check_memory(server, 128 + DEAF * 8);
    for (int round = 0; round < 20; round++) /* some of these are dropped: they have been told often enough */
        for (int i = 0; i < DEAF; i++)
            blurt(fds[i], all, n);
    workers_get_on(workers);
    check_memory(server, 128 + DEAF * 8);
    for (int i = 0; i < DEAF; i++)
        hang_up(fds[i], 0);
    free(all);
}

/* Slow is not deaf: a client that reads in the end gets all that it has asked for, in order; the server has not kept it
 * all meanwhile. */
static void slow_reader(const struct server *server, struct worker workers[GOOD_CLIENTS])
{
    enum { TIMES = 100 };
    int fd = greet(server);
    char *buffer = malloc(LARGE);
    CHECK(buffer != NULL);
    for (int i = 0; i < TIMES; i++)
        lines_say(fd, "03 02.. '/L'");
    lines_say(fd, "0a 64..");
    for (int i = 0; i < 100; i++)
        lines_say(fd, "02.. '/L'");
    lines_say(fd, "0d 01 02 03 04");
    workers_get_on(workers);
    check_memory(server, 192);
    for (int i = 0; i < TIMES + 100; i++)
        hear_large(fd, buffer);
    lines_hear(fd, "01 02 03 04");
    check_memory(server, 192);
    close(fd);
    free(buffer);
}

/* ---- Many ---- */

static int raise_limit(void)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit.rlim_cur > 1000000 ? 1000000 : (int)limit.rlim_cur;
}

static int most(int wanted)
{
    int allowed = raise_limit() - SPARE_DESCRIPTORS;
    if (allowed < wanted)
        printf("  only %d of %d: ulimit -n\n", allowed, wanted);
    return allowed < wanted ? allowed : wanted;
}

static void many_wait_for_one_key(const struct server *server)
{
    int count = most(MANY), *fds = calloc((size_t)count, sizeof *fds), setter = greet(server);
    char barrier[64];
    CHECK(fds != NULL);
    for (int i = 0; i < count; i++) {
        fds[i] = greet(server);
        lines_say(fds[i], "06 01.. 03.. '/go'");
    }
    lines_say(setter, "05 01.. 03.. '/go'");
    lines_hear(setter, "01");
    lines_say(setter, "01 03.. '/go' 00..");
    for (int i = 0; i < count; i++)
        lines_hear(fds[i], "00");
    snprintf(barrier, sizeof barrier, "12 05.. '/meet' %x..", (unsigned)count);
    for (int i = 0; i < count; i++) {
        if (i == count - 1)
            lines_hear_nothing(fds[0]);
        lines_say(fds[i], barrier);
    }
    for (int i = 0; i < count; i++) {
        lines_hear(fds[i], "00");
        lines_hear_nothing(fds[i]);
        close(fds[i]);
    }
    close(setter);
    free(fds);
}

static void ask(int fd, const char *request, const char *reply)
{
    lines_say(fd, request);
    lines_hear(fd, reply);
}

/* Clients of PyTorch's kind wait for a queue, are woken, and then pop. A client that is woken and does not pop, because
 * it leaves, gives up or asks for something else, passes the wake-up on: else the item would lie there and the other
 * wait. */
static void woken_poppers_that_do_not_pop(const struct server *server)
{
    for (int how = 0; how < 5; how++) {
        int setter = greet(server), fds[2] = { greet(server), greet(server) };
        struct pollfd who[2] = { { .fd = fds[0], .events = POLLIN }, { .fd = fds[1], .events = POLLIN } };
        for (int i = 0; i < 2; i++) {
            ask(fds[i], "0d 01 02 03 04", "01 02 03 04");
            lines_say(fds[i], "06 01.. 05.. '/jobs'");
        }
        ask(setter, "05 01.. 05.. '/jobs'", "01"); /* both wait now */
        lines_say(setter, "0e 05.. '/jobs' 01.. 'v'");
        CHECK(poll(who, 2, LINES_LIMIT_MS) > 0);
        int first = who[0].revents ? 0 : 1, other = 1 - first;
        lines_hear(fds[first], "00");
        lines_hear_nothing(fds[other]);
        switch (how) {
        case 0: close(fds[first]); break;
        case 1: hang_up(fds[first], 1); break;
        case 2: ask(fds[first], "0c", "01"); break; /* CANCEL_WAIT */
        case 3: ask(fds[first], "08 05.. '/none'", "00.."); break; /* DELETE of something else */
        default: ask(fds[first], "0f 05.. '/none'", "00.."); break; /* QUEUE_POP from another queue */
        }
        lines_hear(fds[other], "00");
        ask(fds[other], "0f 05.. '/jobs'", "01.. 01.. 'v'");
        if (how > 1)
            close(fds[first]);
        close(fds[other]);
        close(setter);
    }
}

/* In front of one that will pop, two clients wait that will not: of one, which is libcomm's, the server knows it, as no
 * QUEUE_POP came with its WAIT; the other one waits for a key, too. */
static void poppers_behind_who_only_waits(const struct server *server)
{
    int setter = greet(server), only = greet(server), more = greet(server), popper = greet(server);
    ask(only, "05 01.. 0f.. 'libcomm/ordered'", "00");
    lines_say(only, "06 01.. 05.. '/work'");
    ask(setter, "05 01.. 05.. '/work'", "01");
    lines_say(more, "06 02.. 05.. '/work' 06.. '/later'");
    ask(setter, "05 01.. 05.. '/work'", "01");
    lines_say(popper, "06 01.. 05.. '/work'");
    ask(setter, "05 01.. 05.. '/work'", "01");
    lines_say(setter, "0e 05.. '/work' 01.. 'v'");
    lines_hear(only, "00");
    lines_hear(popper, "00");
    ask(popper, "0f 05.. '/work'", "01.. 01.. 'v'");
    lines_hear_nothing(more);
    lines_say(setter, "01 06.. '/later' 00..");
    lines_hear(more, "00");
    close(setter);
    close(only);
    close(more);
    close(popper);
}

/* As many WAITs in a row as CANCEL_WAITs behind them: each costs no more than the first. */
static void waits_in_a_row(const struct server *server, struct worker workers[GOOD_CLIENTS])
{
    enum { WAITS = SANITIZED ? 20000 : 200000 };
    uint8_t wait[LINES_BYTES_MAX];
    size_t wait_bytes = lines_parse("06 01.. 06.. '/never'", wait, NULL);
    char *all = malloc(WAITS * wait_bytes), *replies = malloc(WAITS);
    int fd = greet(server);
    CHECK(all && replies);
    for (size_t i = 0; i < WAITS; i++)
        memcpy(all + i * wait_bytes, wait, wait_bytes);
    lines_send(fd, all, WAITS * wait_bytes);
    memset(all, 0x0c, WAITS);
    lines_send(fd, all, WAITS);
    workers_get_on(workers);
    CHECK(recv(fd, replies, WAITS, MSG_WAITALL) == WAITS);
    memset(all, 1, WAITS);
    CHECK(memcmp(replies, all, WAITS) == 0);
    lines_hear_nothing(fd);
    close(fd);
    free(all);
    free(replies);
}

static void *get_what_comes_and_goes(void *argument)
{
    comm_store *store = argument;
    void *values[2] = { NULL, NULL };
    size_t bytes[2];
    const char *keys[] = { "restless", "restless" };
    CHECK_OK(comm_store_get(store, keys[0], LINES_LIMIT_MS, &values[0], &bytes[0]));
    CHECK(bytes[0] == 5 && memcmp(values[0], "value", 5) == 0);
    comm_free(values[0]);
    CHECK_OK(comm_store_multi_get(store, keys, 2, LINES_LIMIT_MS, values, bytes));
    for (int i = 0; i < 2; i++) {
        CHECK(bytes[i] == 5 && memcmp(values[i], "value", 5) == 0);
        comm_free(values[i]);
    }
    return NULL;
}

/* A key that is set and deleted in one go wakes who waits for it, and then is not there: no value is made of that. */
static void a_key_comes_and_goes(const struct server *server)
{
    enum { GETTERS = 3, ROUNDS = 2000 };
    pthread_t threads[GETTERS];
    comm_store *stores[GETTERS];
    char url[64];
    int setter = greet(server);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", server->port);
    for (int i = 0; i < GETTERS; i++) {
        CHECK_OK(comm_store_open(url, NULL, &stores[i]));
        CHECK(pthread_create(&threads[i], NULL, get_what_comes_and_goes, stores[i]) == 0);
    }
    for (int i = 0; i < ROUNDS; i++)
        ask(setter, "01 09.. '/restless' 05.. 'value' 08 09.. '/restless'", "01..");
    lines_say(setter, "01 09.. '/restless' 05.. 'value'");
    for (int i = 0; i < GETTERS; i++) {
        pthread_join(threads[i], NULL);
        comm_store_close(stores[i]);
    }
    close(setter);
}

static void many_connections(const struct server *server, struct worker workers[GOOD_CLIENTS])
{
    int count = most(CONNECTIONS), *fds = calloc((size_t)count, sizeof *fds);
    CHECK(fds != NULL);
    for (int i = 0; i < count; i++)
        fds[i] = lines_connect(server->port); /* and say nothing, for the time being */
    workers_get_on(workers);
    for (int i = 0; i < count; i++)
        lines_say(fds[i], i % 2 ? "06" : "00 ce f7 85 3c 0d 01 02 03 04");
    for (int i = 0; i < count; i++)
        lines_hear(fds[i], i % 2 ? "?? 00 00 00 00 00 00 00" : "01 02 03 04");
    workers_get_on(workers);
    check_memory(server, 300);
    for (int i = 0; i < count; i++)
        close(fds[i]);
    free(fds);
}

/* A server without descriptors left goes on serving those it has, and takes the others when some leave. */
static void no_descriptors_left(void)
{
    enum { CLIENTS = 60 };
    struct server server = server_start(40);
    struct worker workers[GOOD_CLIENTS];
    int fds[CLIENTS];
    workers_start(&server, workers);
    workers_get_on(workers);
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = lines_connect(server.port);
    workers_get_on(workers);
    for (int i = 0; i < CLIENTS / 2; i++)
        close(fds[i]);
    for (int i = CLIENTS / 2; i < CLIENTS; i++) {
        lines_say(fds[i], "00 ce f7 85 3c 0d 01 02 03 04");
        lines_hear(fds[i], "01 02 03 04");
        close(fds[i]);
    }
    workers_stop(workers);
    server_stop(&server);
}

/* ---- The host of a client, or of the server, dies ---- */

enum { TCP_ESTABLISHED_STATE = 1, KEEPALIVE_TIMER = 2 };

/* How many ends of connections to this port there are, and of how many the kernel will probe the other one. */
static int count_ends(int port, int *ret_probed)
{
    char line[512];
    int ends = 0;
    FILE *file = fopen("/proc/net/tcp", "r");
    *ret_probed = 0;
    while (file && fgets(line, sizeof line, file)) {
        unsigned local, remote, state, timer;
        if (sscanf(line, " %*d: %*x:%x %*x:%x %x %*x:%*x %x:", &local, &remote, &state, &timer) != 4 ||
            (local != (unsigned)port && remote != (unsigned)port) || state != TCP_ESTABLISHED_STATE)
            continue;
        ends++;
        *ret_probed += timer == KEEPALIVE_TIMER;
    }
    if (file)
        fclose(file);
    return ends;
}

/* Neither says so: keepalive does, on both sides. A connection has that timer when nothing is on the way. */
static void both_sides_are_probed(void)
{
    struct server server = server_start(0);
    comm_store *store;
    char url[64];
    int probed = 0, ends, looks = 0;
    enum { ENDS = 4, LOOKS = 2000 }; /* the server's process has a handle, too */
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", server.port);
    CHECK_OK(comm_store_open(url, NULL, &store));
    while ((ends = count_ends(server.port, &probed)) != 0 && (ends < ENDS || probed < ends) && looks++ < LOOKS)
        nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
    CHECK(looks < LOOKS);
    if (ends == 0)
        printf("  not seen: there is no /proc/net/tcp\n");
    comm_store_close(store);
    server_stop(&server);
}

/* ---- The server dies ---- */

static void *wait_for_ever(void *argument)
{
    comm_store *store = argument;
    void *data;
    size_t bytes;
    CHECK_STATUS(comm_store_get(store, "never", COMM_TIMEOUT_INFINITE, &data, &bytes), COMM_ERR_PEER_LOST);
    return NULL;
}

/* Waiting calls are told, and all later ones are, at once. */
static void killed(void)
{
    struct server server = server_start(0);
    comm_store *store;
    char url[64];
    pthread_t threads[4];
    int64_t value;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", server.port);
    CHECK_OK(comm_store_open(url, NULL, &store));
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, wait_for_ever, store) == 0);
    CHECK_OK(comm_store_set(store, "k", "v", 1));
    CHECK(kill(server.pid, SIGKILL) == 0 && waitpid(server.pid, NULL, 0) == server.pid);
    close(server.lifeline);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_STATUS(comm_store_add(store, "n", 1, &value), COMM_ERR_PEER_LOST);
    CHECK_STATUS(comm_store_barrier(store, "b", 2, 0), COMM_ERR_PEER_LOST);
    CHECK_STATUS(comm_store_set(store, "k", "v", 1), COMM_ERR_PEER_LOST);
    comm_store_close(store);
}

int main(int argc, char **argv)
{
    struct worker workers[GOOD_CLIENTS];
    random_state = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)random_state);
    alarm(150);
    raise_limit();
    killed();
    both_sides_are_probed();
    no_descriptors_left();
    struct server server = server_start(0);
    workers_start(&server, workers);
#define ATTACK(call)                                                                                                   \
    do {                                                                                                               \
        printf("%s\n", #call);                                                                                         \
        fflush(stdout);                                                                                                \
        call;                                                                                                          \
        workers_get_on(workers);                                                                                       \
    } while (0)
    ATTACK(junk(&server));
    ATTACK(half_sent(&server, workers));
    ATTACK(endless(&server));
    ATTACK(byte_by_byte(&server, workers));
    ATTACK(breaking_off(&server));
    ATTACK(deaf(&server, workers));
    ATTACK(slow_reader(&server, workers));
    ATTACK(many_wait_for_one_key(&server));
    ATTACK(woken_poppers_that_do_not_pop(&server));
    ATTACK(poppers_behind_who_only_waits(&server));
    ATTACK(waits_in_a_row(&server, workers));
    ATTACK(a_key_comes_and_goes(&server));
    ATTACK(many_connections(&server, workers));
    workers_stop(workers);
    check_memory(&server, 300);
    server_stop(&server);
    return 0;
}

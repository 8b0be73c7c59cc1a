/* Load for a store's server: many clients in few threads. A client is a socket and what it waits for; it sends its next
 * request when it has the reply to the one before, so at any time each client has one request under way. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench_store.h"

enum {
    THREADS_MAX = 2,        /* one fills one server well enough; two leave it no pauses */
    EVENTS = 256,
    SILENCE_MS = 20000,     /* a server that says nothing for so long has failed */
    SPARE_DESCRIPTORS = 64,
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

struct client {
    int fd;
    enum bench_work work; /* of the request under way; never MIX */
    size_t due, got;      /* bytes of its reply */
    uint32_t step;
    double sent_us;
};

/* Owned by one thread while it runs. */
struct worker {
    const struct bench_load *load;
    struct client *clients;
    int client_count, epoll;
    long ops, sent, done, wrong;
    double *times;
    double begin_us, end_us;
    char *request, *reply, *value; /* reply: of the client that is being read, whole */
    int first_index;
    pthread_barrier_t *start;
    char error[160];
};

/* ---- Connections ---- */

static int allow_descriptors(int count, char *error, size_t capacity)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)count)
        return 0;
    limit.rlim_cur = (rlim_t)count > limit.rlim_max ? limit.rlim_max : (rlim_t)count;
    if (limit.rlim_cur == (rlim_t)count && setrlimit(RLIMIT_NOFILE, &limit) == 0)
        return 0;
    snprintf(error, capacity, "%d descriptors are needed and %llu allowed (ulimit -n)", count,
             (unsigned long long)limit.rlim_max);
    return -1;
}

static int send_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int connect_client(const struct bench_load *load, char *error, size_t capacity)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)load->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char hello[16];
    size_t bytes = bench_wire_start(&load->wire, hello);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0 && send_all(fd, hello, bytes) == 0)
        return fd;
    snprintf(error, capacity, "connecting to 127.0.0.1:%d: %s", load->port, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

static int receive_all(int fd, char *data, size_t bytes)
{
    struct timeval limit = { .tv_sec = SILENCE_MS / 1000 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes ? 0 : -1;
}

/* ---- Requests ---- */

static const char *key_text(const char *kind, long index, char key[BENCH_KEY_BYTES])
{
    snprintf(key, BENCH_KEY_BYTES, "/%s/%08ld", kind, index);
    return key;
}

static void make_value(char *value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        value[i] = (char)('a' + i % 26);
}

/* Write the client's next request; its reply's length goes into client->due. */
static size_t next_request(const struct worker *w, struct client *c, char *out)
{
    const struct bench_load *load = w->load;
    const struct bench_wire *wire = &load->wire;
    char key[BENCH_KEY_BYTES];
    long index = (long)((c->step * 2654435761u) % (uint32_t)load->keys);
    c->work = load->work == BENCH_WORK_MIX ? (enum bench_work)(c->step % BENCH_WORK_MIX) : load->work;
    c->step++;
    size_t n;
    switch (c->work) {
    case BENCH_WORK_SET: /* SET has no reply; the CHECK after it has, and shows that the value is there */
        key_text("value", index, key);
        c->due = 1;
        n = bench_wire_set(wire, out, key, w->value, load->value_bytes);
        return n + bench_wire_check(wire, out + n, key);
    case BENCH_WORK_GET:
        c->due = 8 + load->value_bytes;
        return bench_wire_get(wire, out, key_text("value", index, key));
    case BENCH_WORK_ADD:
        c->due = 8;
        return bench_wire_add(wire, out, key_text("count", index, key), 1);
    default: /* WAIT for what is there */
        c->due = 1;
        return bench_wire_wait(wire, out, key_text("value", index, key));
    }
}

static int reply_is_wrong(const struct worker *w, const struct client *c)
{
    uint64_t number;
    switch (c->work) {
    case BENCH_WORK_GET:
        memcpy(&number, w->reply, 8);
        return le64toh(number) != w->load->value_bytes || memcmp(w->reply + 8, w->value, w->load->value_bytes) != 0;
    case BENCH_WORK_ADD:
        memcpy(&number, w->reply, 8);
        return (int64_t)le64toh(number) < 1;
    default:
        return w->reply[0] != 0;
    }
}

static int send_next(struct worker *w, struct client *c)
{
    size_t bytes = next_request(w, c, w->request);
    c->got = 0;
    c->sent_us = now_us();
    w->sent++;
    return send_all(c->fd, w->request, bytes);
}

/* Take what has come for `c`. A long reply comes in pieces; only a whole one is looked at, so pieces are dropped
 * unless the reply came at once. */
static int receive(struct worker *w, struct client *c)
{
    ssize_t n = recv(c->fd, w->reply + c->got, c->due - c->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        snprintf(w->error, sizeof w->error, "the server closed a connection");
        return -1;
    }
    int was_whole = c->got == 0;
    c->got += (size_t)n;
    if (c->got < c->due)
        return 0;
    w->times[w->done++] = now_us() - c->sent_us;
    w->wrong += was_whole && reply_is_wrong(w, c);
    if (w->sent >= w->ops || send_next(w, c) == 0)
        return 0;
    snprintf(w->error, sizeof w->error, "sending a request: %s", strerror(errno));
    return -1;
}

static int run_loop(struct worker *w)
{
    struct epoll_event events[EVENTS];
    for (int i = 0; i < w->client_count && w->sent < w->ops; i++)
        if (send_next(w, &w->clients[i]) != 0)
            return -1;
    while (w->done < w->ops) {
        int n = epoll_wait(w->epoll, events, EVENTS, SILENCE_MS);
        if (n == 0)
            snprintf(w->error, sizeof w->error, "the server has not answered for %d s", SILENCE_MS / 1000);
        if (n == 0 || (n < 0 && errno != EINTR))
            return -1;
        for (int i = 0; i < n; i++)
            if (receive(w, events[i].data.ptr) != 0)
                return -1;
    }
    return 0;
}

/* ---- Workers ---- */

static int worker_init(struct worker *w)
{
    const struct bench_load *load = w->load;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->clients = calloc((size_t)w->client_count, sizeof *w->clients);
    w->times = calloc((size_t)w->ops + 1, sizeof *w->times);
    w->request = malloc(2 * BENCH_REQUEST_BYTES + load->value_bytes);
    w->reply = malloc(8 + load->value_bytes);
    w->value = malloc(load->value_bytes + 1);
    if (w->epoll < 0 || !w->clients || !w->times || !w->request || !w->reply || !w->value) {
        snprintf(w->error, sizeof w->error, "out of memory");
        return -1;
    }
    make_value(w->value, load->value_bytes);
    for (int i = 0; i < w->client_count; i++)
        w->clients[i].fd = -1;
    for (int i = 0; i < w->client_count; i++) {
        struct client *c = &w->clients[i];
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
        c->step = (uint32_t)(w->first_index + i) * 7919u;
        c->fd = connect_client(load, w->error, sizeof w->error);
        if (c->fd < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, c->fd, &event) != 0)
            return -1;
    }
    return 0;
}

static void worker_finish(struct worker *w)
{
    for (int i = 0; w->clients && i < w->client_count; i++)
        if (w->clients[i].fd >= 0)
            close(w->clients[i].fd);
    if (w->epoll >= 0)
        close(w->epoll);
    free(w->clients);
    free(w->times);
    free(w->request);
    free(w->reply);
    free(w->value);
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    pthread_barrier_wait(w->start);
    w->begin_us = now_us();
    if (run_loop(w) != 0 && !w->error[0])
        snprintf(w->error, sizeof w->error, "talking to the server: %s", strerror(errno));
    w->end_us = now_us();
    return NULL;
}

static void add_up(const struct worker *workers, int count, double *times, struct bench_load_result *ret_result)
{
    double begin = workers[0].begin_us, end = workers[0].end_us;
    size_t done = 0;
    *ret_result = (struct bench_load_result){ 0 };
    for (int i = 0; i < count; i++) {
        begin = workers[i].begin_us < begin ? workers[i].begin_us : begin;
        end = workers[i].end_us > end ? workers[i].end_us : end;
        memcpy(times + done, workers[i].times, (size_t)workers[i].done * sizeof *times);
        done += (size_t)workers[i].done;
        ret_result->wrong += workers[i].wrong;
    }
    ret_result->ops_per_s = (double)done / (end - begin) * 1e6;
    ret_result->p50_us = bench_quantile(times, done, 0.5);
    ret_result->p99_us = bench_quantile(times, done, 0.99);
}

/* Each worker with its share of the load. */
static int prepare_workers(const struct bench_load *load, struct worker *workers, int count, pthread_barrier_t *start,
                           char *error, size_t capacity)
{
    for (int i = 0; i < count; i++) {
        struct worker *w = &workers[i];
        w->load = load;
        w->client_count = load->clients / count + (i < load->clients % count);
        w->ops = load->ops / count + (i < load->ops % count);
        w->first_index = i * load->clients;
        w->start = start;
        if (worker_init(w) != 0) {
            snprintf(error, capacity, "%s", w->error);
            return -1;
        }
    }
    return 0;
}

static int run_workers(struct worker *workers, int count, char *error, size_t capacity)
{
    pthread_t threads[THREADS_MAX];
    int started = 0, result = 0;
    for (; started < count - 1; started++)
        if (pthread_create(&threads[started], NULL, worker_main, &workers[started + 1]) != 0)
            abort(); /* the others would wait at the barrier for ever */
    worker_main(&workers[0]);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++) {
        if (workers[i].error[0]) {
            snprintf(error, capacity, "%s", workers[i].error);
            result = -1;
        }
    }
    return result;
}

int bench_load_run(const struct bench_load *load, struct bench_load_result *ret_result, char *error, size_t capacity)
{
    struct worker workers[THREADS_MAX] = { { .epoll = -1 }, { .epoll = -1 } };
    pthread_barrier_t start;
    int count = load->clients < THREADS_MAX ? 1 : THREADS_MAX, result = -1;
    double *times = malloc((size_t)(load->ops + 1) * sizeof *times);
    pthread_barrier_init(&start, NULL, (unsigned)count);
    if (times && allow_descriptors(load->clients + SPARE_DESCRIPTORS, error, capacity) == 0 &&
        prepare_workers(load, workers, count, &start, error, capacity) == 0)
        result = run_workers(workers, count, error, capacity);
    if (result == 0)
        add_up(workers, count, times, ret_result);
    for (int i = 0; i < count; i++)
        worker_finish(&workers[i]);
    pthread_barrier_destroy(&start);
    free(times);
    return result;
}

int bench_load_fill(const struct bench_load *load, char *error, size_t capacity)
{
    char key[BENCH_KEY_BYTES], reply;
    char *value = malloc(load->value_bytes + 1), *request = malloc(BENCH_REQUEST_BYTES + load->value_bytes);
    int fd = value && request ? connect_client(load, error, capacity) : -1, result = fd < 0 ? -1 : 0;
    if (value)
        make_value(value, load->value_bytes);
    for (long i = 0; i < load->keys && result == 0; i++) {
        key_text("value", i, key);
        size_t n = bench_wire_set(&load->wire, request, key, value, load->value_bytes);
        result = send_all(fd, request, n);
    }
    size_t n = request ? bench_wire_check(&load->wire, request, key_text("value", load->keys - 1, key)) : 0;
    if (result == 0 && (send_all(fd, request, n) != 0 || receive_all(fd, &reply, 1) != 0 || reply != 0)) {
        snprintf(error, capacity, "the server did not take %d keys", load->keys);
        result = -1;
    }
    if (fd >= 0)
        close(fd);
    free(value);
    free(request);
    return result;
}

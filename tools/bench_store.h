/* `comm-bench store`: what the TCP store's server does, and PyTorch's beside it, under one and the same load.
 *   bench_store.c         what is measured, in which order, and the table of it
 *   bench_store_server.c  starting and stopping the two servers, each in a process of its own
 *   bench_store_load.c    many busy clients at once
 *   bench_store_wake.c    many that wait for one key
 *   bench_store_wire.c    requests as bytes, in either dialect of the protocol (docs/store_protocol.md)
 *
 * The clients are bare sockets on purpose: a thousand of them in one thread cost little, and neither side's client
 * library is in the figures. */
#ifndef COMM_BENCH_STORE_H
#define COMM_BENCH_STORE_H

#include "bench.h"

#define BENCH_CLIENTS_MAX 10000    /* each is a descriptor here and one in the server */
#define BENCH_WAITERS_MAX 16       /* numbers in --waiters */
#define BENCH_VALUE_BYTES_MAX (1 << 20)

struct bench_store_options {
    int clients;
    long ops;
    int keys;
    size_t value_bytes;
    int waiters[BENCH_WAITERS_MAX];
    int waiter_counts;
    const char *peer; /* the Python whose PyTorch serves too; NULL: none */
};

/* Returns the exit status. */
int bench_store(const struct bench_store_options *options, enum bench_format format);

/* ---- bench_store_server.c ---- */

struct bench_server {
    const char *name;
    int pid;      /* 0: not running */
    int lifeline; /* the server ends when this pipe closes */
    int port;
    int is_old;   /* speaks the dialect of PyTorch 1.13 to 2.1 only */
};
/* Start ours, or the PyTorch's of `python` (NULL: ours), on a port that the system chooses. 0, or -1 with a sentence in
 * `error`. */
int bench_server_start(struct bench_server *server, const char *python, char *error, size_t capacity);
/* When all servers have been started: keep off their core. */
void bench_server_leave_room(void);
/* CPU time that its threads have had, in microseconds; 0 where that is not told. */
double bench_server_cpu_us(const struct bench_server *server);
void bench_server_stop(struct bench_server *server);

/* ---- bench_store_wire.c ---- */

/* Each writes one request to `out` and returns its length. */
struct bench_wire {
    int is_old;
};
size_t bench_wire_start(const struct bench_wire *wire, char *out); /* what a connection begins with; may be 0 */
size_t bench_wire_set(const struct bench_wire *wire, char *out, const char *key, const void *value, size_t bytes);
size_t bench_wire_get(const struct bench_wire *wire, char *out, const char *key);
size_t bench_wire_add(const struct bench_wire *wire, char *out, const char *key, int64_t amount);
size_t bench_wire_wait(const struct bench_wire *wire, char *out, const char *key);
size_t bench_wire_check(const struct bench_wire *wire, char *out, const char *key);
#define BENCH_KEY_BYTES 32      /* room for a key of ours, with its NUL */
#define BENCH_REQUEST_BYTES 128 /* room for a request of ours, without the value */

/* ---- bench_store_load.c ---- */

enum bench_work { BENCH_WORK_SET, BENCH_WORK_GET, BENCH_WORK_ADD, BENCH_WORK_WAIT, BENCH_WORK_MIX, BENCH_WORK_END };

struct bench_load {
    int port;
    struct bench_wire wire;
    enum bench_work work;
    int clients;
    long ops; /* of all clients together */
    int keys;
    size_t value_bytes;
};
struct bench_load_result {
    double ops_per_s, p50_us, p99_us;
    long wrong; /* replies that were not what they must be */
};
/* Put the keys that the loads read. */
int bench_load_fill(const struct bench_load *load, char *error, size_t capacity);
/* Each client sends a request when it has the reply to the one before. 0, or -1 with a sentence in `error`. */
int bench_load_run(const struct bench_load *load, struct bench_load_result *ret_result, char *error, size_t capacity);

/* ---- bench_store_wake.c ---- */

/* Clients that wait for one key. Prepare, run any number of times, finish (also after a failure). */
struct bench_wake {
    struct bench_wire wire;
    int waiters, setter, epoll, runs;
    int *fds; /* of the waiters */
};
int bench_wake_prepare(struct bench_wake *wake, const struct bench_load *load, int waiters, char *error,
                       size_t capacity);
/* All wait for one fresh key, which is set: microseconds from there until the last one has heard of it. */
int bench_wake_run(struct bench_wake *wake, double *ret_us, char *error, size_t capacity);
void bench_wake_finish(struct bench_wake *wake);

#endif

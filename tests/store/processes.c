/* Several processes on one store: processes file|tcp [PREFIX]. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

enum { SIZE = 5, ROUNDS = 40, LONG_MS = 30000, SHORT_MS = 200 };

static const char *kind, *prefix;

/* The store under test; with tcp, rank 0 serves it and says where in the ranks' own store. */
static comm_store *open_store(int rank)
{
    comm_store *meeting = ranks_store(), *store, *view;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    char url[300];
    snprintf(url, sizeof url, "file://%s/under-test", ranks_folder());
    if (strcmp(kind, "tcp") == 0) {
        void *port = NULL;
        options.serve = rank == 0;
        if (rank == 0) {
            CHECK_OK(comm_store_open("tcp://127.0.0.1:0", &options, &store));
            int bytes = snprintf(url, sizeof url, "%d", (int)comm_store_port(store));
            CHECK_OK(comm_store_set(meeting, "port", url, (size_t)bytes));
        } else {
            CHECK_OK(comm_store_get(meeting, "port", LONG_MS, &port, NULL));
            snprintf(url, sizeof url, "tcp://127.0.0.1:%s", (char *)port);
            CHECK_OK(comm_store_open(url, &options, &store));
        }
        comm_free(port);
    } else {
        options.world_size = SIZE;
        CHECK_OK(comm_store_open(url, &options, &store));
    }
    comm_store_close(meeting);
    if (!prefix)
        return store;
    CHECK_OK(comm_store_prefix(prefix, store, &view));
    comm_store_close(store);
    return view;
}

/* The rank that serves leaves last. */
static void close_store(comm_store *store, int rank, int size)
{
    comm_store *meeting = ranks_store();
    CHECK_OK(comm_store_barrier(meeting, "all but rank 0 leave", size, LONG_MS));
    if (rank != 0)
        comm_store_close(store);
    CHECK_OK(comm_store_barrier(meeting, "rank 0 leaves", size, LONG_MS));
    if (rank == 0)
        comm_store_close(store);
    char path[300];
    snprintf(path, sizeof path, "%s/under-test", ranks_folder());
    CHECK(rank != 0 || access(path, F_OK) != 0); /* the last of the world has removed it */
    comm_store_close(meeting);
}

static int64_t add(comm_store *store, const char *key, int64_t amount)
{
    int64_t value = -4711;
    CHECK_OK(comm_store_add(store, key, amount, &value));
    return value;
}

static void counting(comm_store *store, int size)
{
    int64_t last = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t now = add(store, "count", 1);
        CHECK(now > last); /* each number is given out once, and they go up */
        last = now;
        CHECK_OK(comm_store_append(store, "log", "x", 1));
        char key[32];
        snprintf(key, sizeof key, "drawn %d", (int)now);
        CHECK(add(store, key, 1) == 1);
    }
    CHECK_OK(comm_store_barrier(store, "counted", size, LONG_MS));
    CHECK(add(store, "count", 0) == size * ROUNDS);
    void *data;
    size_t bytes;
    CHECK_OK(comm_store_get(store, "log", LONG_MS, &data, &bytes));
    CHECK(bytes == (size_t)(size * ROUNDS));
    comm_free(data);
}

/* A token goes round: each waits for its neighbour. */
static void passing(comm_store *store, int rank, int size)
{
    char mine[32], before[32], value[32];
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(mine, sizeof mine, "token %d.%d", i, rank);
        snprintf(before, sizeof before, "token %d.%d", rank ? i : i - 1, rank ? rank - 1 : size - 1);
        int64_t number = 0;
        if (rank || i) {
            void *data;
            CHECK_OK(comm_store_get(store, before, LONG_MS, &data, NULL));
            number = atoll(data);
            comm_free(data);
        }
        CHECK(number == (int64_t)i * size + rank);
        int bytes = snprintf(value, sizeof value, "%lld", (long long)number + 1);
        CHECK_OK(comm_store_set(store, mine, value, (size_t)bytes));
    }
}

/* Every rank pushes and pops: each item reaches one. */
static void queueing(comm_store *store, int rank, int size)
{
    for (int i = 0; i < ROUNDS; i++) {
        char item[16], key[40];
        int bytes = snprintf(item, sizeof item, "%d.%d", rank, i);
        void *data;
        CHECK_OK(comm_store_queue_push(store, "q", item, (size_t)bytes));
        CHECK_OK(comm_store_queue_pop(store, "q", LONG_MS, &data, NULL));
        snprintf(key, sizeof key, "popped %.10s", (char *)data);
        comm_free(data);
        CHECK(add(store, key, 1) == 1);
    }
    CHECK_OK(comm_store_barrier(store, "popped", size, LONG_MS));
    int64_t left = -7;
    CHECK_OK(comm_store_queue_len(store, "q", &left));
    CHECK(left == 0);
}

/* A lock made of compare_set: inside, a plain get and set must do. */
static void locking(comm_store *store, int rank)
{
    char me[16];
    int bytes = snprintf(me, sizeof me, "rank %d", rank);
    for (int done = 0; done < ROUNDS / 4;) {
        void *holder, *number;
        size_t holder_bytes;
        char next[16];
        CHECK_OK(comm_store_compare_set(store, "lock", "", 0, me, (size_t)bytes, &holder, &holder_bytes));
        int ours = holder_bytes == (size_t)bytes && memcmp(holder, me, holder_bytes) == 0;
        comm_free(holder);
        if (!ours)
            continue;
        CHECK_OK(comm_store_get(store, "guarded", LONG_MS, &number, NULL));
        int next_bytes = snprintf(next, sizeof next, "%d", atoi(number) + 1);
        comm_free(number);
        CHECK_OK(comm_store_set(store, "guarded", next, (size_t)next_bytes));
        CHECK_OK(comm_store_compare_set(store, "lock", me, (size_t)bytes, "", 0, &holder, NULL));
        comm_free(holder);
        done++;
    }
}

static void work_together(int rank, int size, void *arg)
{
    comm_store *store = open_store(rank);
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        char key[32];
        snprintf(key, sizeof key, "round %d", i);
        CHECK_OK(comm_store_barrier(store, key, size, LONG_MS));
    }
    counting(store, size);
    passing(store, rank, size);
    queueing(store, rank, size);
    if (rank == 0)
        CHECK_OK(comm_store_set(store, "guarded", "0", 1));
    CHECK_OK(comm_store_barrier(store, "to the lock", size, LONG_MS));
    locking(store, rank);
    CHECK_OK(comm_store_barrier(store, "all done", size, LONG_MS));
    void *data;
    CHECK_OK(comm_store_get(store, "guarded", LONG_MS, &data, NULL));
    CHECK(atoi(data) == size * (ROUNDS / 4));
    comm_free(data);
    close_store(store, rank, size);
}

/* The last two ranks are killed, one while it waits and one while it writes; the others do not notice. */
static void some_are_killed(int rank, int size, void *arg)
{
    comm_store *store = open_store(rank);
    const char *keys[] = { "here", "never" };
    char key[32];
    (void)arg;
    snprintf(key, sizeof key, "pid %d", rank);
    add(store, key, getpid());
    if (rank == size - 1) {
        comm_store_get(store, "never", COMM_TIMEOUT_INFINITE, &(void *){ NULL }, NULL);
        _exit(1);
    }
    for (int i = 0; rank == size - 2; i++) {
        static char big[200000];
        CHECK_OK(comm_store_set(store, "big", big, (size_t)(i * 7919) % sizeof big));
        add(store, "writes", 1);
    }
    if (rank == 0) {
        while (add(store, "writes", 0) < 3)
            continue;
        kill((pid_t)add(store, "pid 3", 0), SIGKILL);
        snprintf(key, sizeof key, "pid %d", size - 1);
        CHECK_OK(comm_store_wait(store, (const char *[]){ key }, 1, LONG_MS));
        while (add(store, key, 0) == 0)
            continue;
        kill((pid_t)add(store, key, 0), SIGKILL);
    }
    CHECK_OK(comm_store_set(store, "here", "v", 1));
    CHECK_OK(comm_store_barrier(store, "survivors", size - 2, LONG_MS));
    comm_status status;
    do /* a server that gets no time on a core has not said yet which keys are missing */
        status = comm_store_wait(store, keys, 2, SHORT_MS);
    while (status == COMM_ERR_TIMEOUT && strstr(comm_last_error(), "has not answered"));
    CHECK_STATUS(status, COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("never'");
    CHECK_ERROR_SAYS("1 key ");
    add(store, "after", 1);
    CHECK_OK(comm_store_barrier(store, "survivors again", size - 2, LONG_MS));
    CHECK(add(store, "after", 0) == size - 2);
    close_store(store, rank, size - 2);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    kind = argv[1];
    prefix = argc > 2 ? argv[2] : NULL;
    const struct ranks_options calm = { .name = "work together" },
                               killed = { .name = "some are killed", .may_fail = 3u << (SIZE - 2) };
    return ranks_run(SIZE, &calm, work_together, NULL) | ranks_run(SIZE, &killed, some_are_killed, NULL);
}

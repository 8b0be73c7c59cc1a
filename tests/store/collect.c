/* Collectives over a store: processes on a file store, threads on a hash store, and a tcp server that rank 0 runs. */
#include <pthread.h>
#include <string.h>

#include "ranks.h"

enum { PLENTY_MS = 30000 };

/* What rank r gives: r times the letter 'a' + r. */
static size_t part_of(int rank, char text[16])
{
    memset(text, 'a' + rank, (size_t)rank);
    return (size_t)rank;
}

static void check_parts(const char *data, const size_t *bytes, int size)
{
    char part[16];
    size_t at = 0;
    for (int r = 0; r < size; r++) {
        CHECK(bytes[r] == part_of(r, part) && memcmp(data + at, part, bytes[r]) == 0);
        at += bytes[r];
    }
    CHECK(data[at] == '\0');
}

static void exchange(comm_store *store, int rank, int size)
{
    char mine[16], key[32], expected[16];
    size_t mine_bytes = part_of(rank, mine), length = 99, *bytes = NULL;
    void *data = NULL;
    CHECK_OK(comm_store_all_gather(store, "all", mine, mine_bytes, rank, size, PLENTY_MS, &data, &bytes));
    check_parts(data, bytes, size);
    comm_free(data);
    comm_free(bytes);
    for (int root = 0; root < size; root++) {
        snprintf(key, sizeof key, "gather %d", root);
        data = &data;
        bytes = &length;
        CHECK_OK(comm_store_gather(store, key, mine, mine_bytes, root, rank, size, PLENTY_MS, &data, &bytes));
        CHECK((data != NULL) == (rank == root) && (bytes != NULL) == (rank == root));
        if (rank == root)
            check_parts(data, bytes, size);
        comm_free(data);
        comm_free(bytes);

        snprintf(key, sizeof key, "broadcast %d", root);
        CHECK_OK(comm_store_broadcast(store, key, rank == root ? mine : NULL, rank == root ? mine_bytes : 0, root, rank,
                                      size, PLENTY_MS, &data, &length));
        CHECK(length == part_of(root, expected) && memcmp(data, expected, length) == 0);
        comm_free(data);

        char parts[8][16];
        const void *pointers[8];
        size_t lengths[8];
        for (int r = 0; r < size; r++) {
            lengths[r] = part_of(r, parts[r]);
            pointers[r] = parts[r];
        }
        snprintf(key, sizeof key, "scatter %d", root);
        CHECK_OK(comm_store_scatter(store, key, rank == root ? pointers : NULL, rank == root ? lengths : NULL, root,
                                    rank, size, PLENTY_MS, &data, &length));
        CHECK(length == mine_bytes && memcmp(data, mine, length) == 0);
        comm_free(data);
    }
    int64_t sum = -1;
    CHECK_OK(comm_store_all_sum(store, "sum", rank - 2, rank, size, PLENTY_MS, &sum));
    CHECK(sum == (int64_t)size * (size - 1) / 2 - 2 * size);
    CHECK_OK(comm_store_all_sum(store, "wrap", rank == 0 ? INT64_MAX : 1, rank, size, PLENTY_MS, &sum));
    CHECK(sum == (int64_t)((uint64_t)INT64_MAX + (uint64_t)size - 1));
    CHECK_OK(comm_store_barrier(store, "over", size, PLENTY_MS));
}

static void strings_travel(int rank, int size, void *arg)
{
    (void)arg;
    comm_store *store = ranks_store();
    exchange(store, rank, size);
    comm_store_close(store);
}

/* The same through a server, whose address the ranks' own store tells. */
static void strings_travel_by_tcp(int rank, int size, void *arg)
{
    (void)arg;
    comm_store *meeting = ranks_store(), *store = NULL;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    char url[64];
    void *told = NULL;
    size_t bytes = 0;
    if (rank == 0) {
        options.serve = 1;
        CHECK_OK(comm_store_open("tcp://127.0.0.1:0", &options, &store));
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", comm_store_port(store));
    }
    CHECK_OK(comm_store_broadcast(meeting, "url", url, rank == 0 ? strlen(url) : 0, 0, rank, size, PLENTY_MS, &told,
                                  &bytes));
    if (rank != 0)
        CHECK_OK(comm_store_open(told, NULL, &store));
    comm_free(told);
    exchange(store, rank, size);
    CHECK_OK(comm_store_barrier(meeting, "server may go", size, PLENTY_MS));
    comm_store_close(store);
    comm_store_close(meeting);
}

static void who_is_missing_is_named(int rank, int size, void *arg)
{
    (void)arg;
    comm_store *store = ranks_store();
    void *data = &data;
    size_t bytes = 77, *lengths = &bytes;
    int64_t sum = 77;
    if (rank == 2) {
        CHECK_STATUS(comm_store_gather(store, "late", "x", 1, 2, rank, size, 50, &data, &lengths), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("1 of 4 ranks have come, missing: 0, 1, 3");
        CHECK_STATUS(comm_store_all_sum(store, "lonely", 1, rank, size, 50, &sum), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("missing: 0, 1, 3");
        CHECK_STATUS(comm_store_broadcast(store, "no root", NULL, 0, 0, rank, size, 50, &data, &bytes),
                     COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("the root, rank 0 of 4, has not come");
        CHECK_STATUS(comm_store_scatter(store, "no root either", NULL, NULL, 3, rank, size, 50, &data, &bytes),
                     COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("the root, rank 3 of 4, has not come");
        CHECK_STATUS(comm_store_all_gather(store, "late", "x", 1, rank, size, 50, &data, &lengths), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("rank 2 of 4 has used this key already");
        CHECK_OK(comm_store_set(store, "odd/0", "three ", 6));
        CHECK_STATUS(comm_store_all_sum(store, "odd", 1, 1, 2, 50, &sum), COMM_ERR_PROTOCOL);
        CHECK_ERROR_SAYS("rank 0 did not leave a number there");
        CHECK(data == &data && lengths == &bytes && bytes == 77 && sum == 77);
    }
    CHECK_STATUS(comm_store_all_sum(store, "k", 1, 4, 4, 0, &sum), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_all_sum(store, "k", 1, -1, 4, 0, &sum), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_all_sum(store, "", 1, 0, 4, 0, &sum), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_all_sum(NULL, "k", 1, 0, 4, 0, &sum), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_all_sum(store, "k", 1, 0, 4, -2, &sum), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_all_sum(store, "k", 1, 0, 4, 0, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_gather(store, "k", NULL, 0, 4, 0, 4, 0, &data, &lengths), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_broadcast(store, "k", NULL, 0, 0, 0, 4, 0, NULL, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_scatter(store, "k", NULL, NULL, 0, 0, 4, 0, &data, &bytes), COMM_ERR_INVALID);
    CHECK_OK(comm_store_barrier(store, "over", size, PLENTY_MS));
    comm_store_close(store);
}

/* One thread is inside a collective while another closes the handle. */
static void *gather_for_ever(void *context)
{
    void *data = NULL;
    size_t *bytes = NULL;
    CHECK_STATUS(comm_store_all_gather(context, "never", "x", 1, 0, 2, COMM_TIMEOUT_INFINITE, &data, &bytes),
                 COMM_ERR_ABORTED);
    return NULL;
}

static void closing_ends_it(void)
{
    comm_store *store, *other;
    pthread_t thread;
    const char *key = "never/0";
    CHECK_OK(comm_store_open("hash://closing", NULL, &store));
    CHECK_OK(comm_store_open("hash://closing", NULL, &other));
    CHECK(pthread_create(&thread, NULL, gather_for_ever, store) == 0);
    CHECK_OK(comm_store_wait(other, &key, 1, PLENTY_MS));
    comm_store_close(store);
    pthread_join(thread, NULL);
    comm_store_close(other);
}

int main(void)
{
    closing_ends_it();
    const struct ranks_options threads = { .threads = 1, .limit_s = 60 };
    for (int size = 1; size <= 5; size += 2)
        if (ranks_run(size, NULL, strings_travel, NULL) || ranks_run(size, &threads, strings_travel, NULL) ||
            ranks_run(size, NULL, strings_travel_by_tcp, NULL))
            return 1;
    return ranks_run(4, NULL, who_is_missing_is_named, NULL);
}

/* Stores and rendezvous. Most cases run on the world's own store, below a fresh prefix. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rows.h"

static comm_store *fresh(const struct place *p)
{
    comm_store *store;
    OK(comm_store_prefix(rows_fresh_key(), comm_group_store(p->world), &store));
    return store;
}

static void is_value(comm_store *store, const char *key, const char *expected)
{
    void *data = NULL;
    size_t bytes = 0;
    OK(comm_store_get(store, key, 0, &data, &bytes));
    IS(bytes == strlen(expected) && memcmp(data, expected, bytes) == 0);
    comm_free(data);
}

static void store_keys(const struct place *p)
{
    comm_store *store = fresh(p);
    const char *const keys[] = { "a", "b" };
    int64_t number = -1;
    int32_t there = -1;
    if (p->rank == 0) {
        OK(comm_store_check(store, keys, 2, &there));
        IS(there == 0);
        OK(comm_store_set(store, "a", "one", 3));
        OK(comm_store_set(store, "b", "", 0));
    }
    OK(comm_store_wait(store, keys, 2, 0));
    OK(comm_store_check(store, keys, 2, &there));
    IS(there == 1);
    is_value(store, "a", "one");
    is_value(store, "b", "");
    OK(comm_store_add(store, "n", p->rank + 1, &number));
    OK(comm_store_barrier(store, "added", p->size, 0));
    OK(comm_store_add(store, "n", 0, &number));
    IS(number == (int64_t)p->size * (p->size + 1) / 2);
    OK(comm_store_num_keys(store, &number));
    IS(number >= 3);
    OK(comm_store_barrier(store, "counted", p->size, 0));
    if (p->rank == 0) {
        OK(comm_store_delete(store, "a", &there));
        IS(there == 1);
        OK(comm_store_delete(store, "a", &there));
        IS(there == 0);
    }
    comm_store_close(store);
}

static void store_compare_set(const struct place *p)
{
    comm_store *store = fresh(p);
    void *data = NULL;
    size_t bytes = 0;
    char mine[16];
    size_t mine_bytes = (size_t)snprintf(mine, sizeof mine, "rank %d", p->rank);
    OK(comm_store_compare_set(store, "first", "", 0, mine, mine_bytes, &data, &bytes)); /* one of us wins */
    char winner[16] = "";
    memcpy(winner, data, bytes);
    comm_free(data);
    is_value(store, "first", winner);
    OK(comm_store_barrier(store, "seen", p->size, 0));
    if (strcmp(winner, mine) == 0) {
        OK(comm_store_compare_set(store, "first", mine, mine_bytes, "taken", 5, &data, &bytes));
        IS(bytes == 5);
        comm_free(data);
    }
    OK(comm_store_barrier(store, "taken", p->size, 0));
    is_value(store, "first", "taken");
    comm_store_close(store);
}

static void store_several(const struct place *p)
{
    comm_store *store = fresh(p);
    const char *const keys[] = { "x", "y" };
    const void *const data[] = { "1", "22" };
    const size_t bytes[] = { 1, 2 };
    void *got[2];
    size_t got_bytes[2], count = 0;
    char **listed = NULL;
    if (p->rank == 0)
        OK(comm_store_multi_set(store, keys, 2, data, bytes));
    OK(comm_store_multi_get(store, keys, 2, 0, got, got_bytes));
    IS(got_bytes[0] == 1 && got_bytes[1] == 2 && memcmp(got[1], "22", 2) == 0);
    comm_free(got[0]);
    comm_free(got[1]);
    OK(comm_store_barrier(store, "got", p->size, 0));
    if (p->rank == 0) {
        OK(comm_store_append(store, "x", "23", 2));
        is_value(store, "x", "123");
        OK(comm_store_list_keys(store, &listed, &count));
        int found = 0;
        for (size_t i = 0; i < count; i++)
            found += strcmp(listed[i], "x") == 0 || strcmp(listed[i], "y") == 0;
        IS(found == 2);
        comm_free(listed);
    }
    comm_store_close(store);
}

static void store_queue(const struct place *p)
{
    comm_store *store = fresh(p);
    void *data = NULL;
    size_t bytes = 0;
    int64_t length = -1;
    if (p->rank == 0) {
        OK(comm_store_queue_push(store, "q", "one", 3));
        OK(comm_store_queue_push(store, "q", "two", 3));
        OK(comm_store_queue_len(store, "q", &length));
        IS(length == 2);
        OK(comm_store_queue_pop(store, "q", 0, &data, &bytes));
        IS(bytes == 3 && memcmp(data, "one", 3) == 0);
        comm_free(data);
        OK(comm_store_queue_pop(store, "q", COMM_STORE_NO_WAIT, &data, &bytes));
        comm_free(data);
        GIVES(COMM_ERR_NOT_FOUND, comm_store_queue_pop(store, "q", COMM_STORE_NO_WAIT, &data, &bytes));
    }
    comm_store_close(store);
}

static void store_timeout(const struct place *p)
{
    comm_store *store = fresh(p);
    void *data;
    size_t bytes;
    OK(comm_store_set_timeout(store, 50));
    IS(comm_store_timeout(store) == 50);
    GIVES(COMM_ERR_TIMEOUT, comm_store_get(store, "never set", 0, &data, &bytes));
    SAYS("never set");
    GIVES(COMM_ERR_TIMEOUT, comm_store_barrier(store, "alone", p->size + 1, 50));
    comm_store_close(store);
}

static void store_clone(const struct place *p)
{
    comm_store *store = fresh(p), *second = NULL;
    OK(comm_store_clone(store, &second));
    OK(comm_store_set(second, "by the clone", "yes", 3));
    comm_store_close(second);
    is_value(store, "by the clone", "yes");
    comm_store_close(store);
}

static void store_tcp(const struct place *p)
{
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    comm_store *meeting = fresh(p), *store = NULL;
    char url[64];
    void *told = NULL;
    size_t bytes;
    if (p->rank == 0) { /* port 0: the system chooses, and we publish it */
        options.serve = 1;
        OK(comm_store_open("tcp://127.0.0.1:0", &options, &store));
        IS(comm_store_port(store) > 0 && strcmp(comm_store_host(store), "127.0.0.1") == 0);
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", comm_store_port(store));
        IS(strcmp(comm_store_kind(store), "tcp") == 0 && comm_store_url(store)[0] != '\0');
    }
    OK(comm_store_broadcast(meeting, "url", url, p->rank == 0 ? strlen(url) : 0, 0, p->rank, p->size, 0, &told,
                            &bytes));
    if (p->rank != 0)
        OK(comm_store_open(told, NULL, &store));
    comm_free(told);
    int64_t sum = -1;
    OK(comm_store_all_sum(store, "sum", 1, p->rank, p->size, 0, &sum));
    IS(sum == p->size);
    OK(comm_store_barrier(meeting, "done", p->size, 0)); /* the server is rank 0's */
    comm_store_close(store);
    comm_store_close(meeting);
}

static void store_file_and_hash(const struct place *p)
{
    comm_store *store = NULL, *same = NULL;
    char url[300], path[280];
    snprintf(path, sizeof path, "%s/a-file", p->folder);
    snprintf(url, sizeof url, "file://%s", path);
    OK(comm_store_open(url, NULL, &store));
    if (p->rank == 0)
        OK(comm_store_set(store, "k", "v", 1));
    is_value(store, "k", "v");
    IS(strcmp(comm_store_kind(store), "file") == 0 && comm_store_port(store) == -1);
    comm_store_close(store);
    OK(comm_barrier(p->world, NULL, NULL));
    if (p->rank == 0)
        unlink(path);
    OK(comm_store_open("hash://rows", NULL, &store));
    OK(comm_store_open("hash://rows", NULL, &same));
    OK(comm_store_set(store, "k", "v", 1));
    is_value(same, "k", "v");
    comm_store_close(same);
    comm_store_close(store);
    GIVES(COMM_ERR_NOT_FOUND, comm_store_open("carrier://pigeon", NULL, &store));
    IS(!*comm_store_kind(NULL) && !*comm_store_url(NULL) && !*comm_store_host(NULL));
    IS(comm_store_port(NULL) == -1 && comm_store_timeout(NULL) == 0);
    GIVES(COMM_ERR_INVALID, comm_store_open("tcp://host:99999", NULL, &store));
}

/* ---- A store of one's own: one key is enough for this ---- */

static char own_value[64];
static size_t own_bytes;
static int own_is_set, own_is_closed;

static comm_status own_set(void *context, const char *key, const void *data, size_t bytes, char *error, size_t capacity)
{
    (void)context, (void)key;
    if (bytes > sizeof own_value) {
        snprintf(error, capacity, "%zu bytes are too many", bytes);
        return COMM_ERR_UNSUPPORTED;
    }
    memcpy(own_value, data, bytes);
    own_bytes = bytes;
    own_is_set = 1;
    return COMM_OK;
}

static comm_status own_get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                           char *error, size_t capacity)
{
    (void)context, (void)timeout_ms;
    if (!own_is_set) {
        snprintf(error, capacity, "'%s' is not there", key);
        return COMM_ERR_TIMEOUT;
    }
    *ret_data = comm_alloc(own_bytes);
    if (!*ret_data)
        return COMM_ERR_NO_MEMORY;
    memcpy(*ret_data, own_value, own_bytes);
    *ret_bytes = own_bytes;
    return COMM_OK;
}

static comm_status own_add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                           size_t capacity)
{
    (void)context, (void)key, (void)error, (void)capacity;
    *ret_value = amount;
    return COMM_OK;
}

static comm_status own_compare_set(void *context, const char *key, const void *expected, size_t expected_bytes,
                                   const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                                   char *error, size_t capacity)
{
    (void)context, (void)key, (void)expected, (void)expected_bytes, (void)desired, (void)desired_bytes;
    (void)ret_data, (void)ret_bytes;
    snprintf(error, capacity, "not here");
    return COMM_ERR_UNSUPPORTED;
}

static comm_status own_check(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                             size_t capacity)
{
    (void)context, (void)keys, (void)count, (void)error, (void)capacity;
    *ret_all = own_is_set;
    return COMM_OK;
}

static comm_status own_remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
{
    (void)context, (void)key, (void)error, (void)capacity;
    *ret_existed = own_is_set;
    own_is_set = 0;
    return COMM_OK;
}

static void own_close(void *context)
{
    own_is_closed = context == (void *)own_value;
}

static void store_of_ones_own(const struct place *p)
{
    const comm_store_ops ops = { .struct_bytes = sizeof ops,
                                 .name = "one-key",
                                 .set = own_set,
                                 .get = own_get,
                                 .add = own_add,
                                 .compare_set = own_compare_set,
                                 .check = own_check,
                                 .remove = own_remove,
                                 .close = own_close };
    comm_store *store = NULL;
    char big[100] = "";
    (void)p;
    OK(comm_store_create(&ops, own_value, &store));
    IS(strcmp(comm_store_kind(store), "one-key") == 0);
    OK(comm_store_set(store, "k", "own", 3));
    is_value(store, "k", "own");
    OK(comm_store_set(store, "k", "", 0)); /* comm_alloc(0) is memory, too */
    is_value(store, "k", "");
    GIVES(COMM_ERR_UNSUPPORTED, comm_store_set(store, "k", big, sizeof big));
    SAYS("too many");
    OK(comm_store_delete(store, "k", NULL));
    comm_store_close(store);
    IS(own_is_closed);
}

static void store_collectives(const struct place *p)
{
    comm_store *store = fresh(p);
    char mine[8];
    const void *parts[16];
    size_t mine_bytes = (size_t)snprintf(mine, sizeof mine, "%d", p->rank), bytes = 0, part_bytes[16], *lengths = NULL;
    void *data = NULL;
    int64_t sum = -1;
    OK(comm_store_all_gather(store, "all", mine, mine_bytes, p->rank, p->size, 0, &data, &lengths));
    for (int r = 0; r < p->size; r++)
        IS(lengths[r] == 1 && ((char *)data)[r] == '0' + r);
    comm_free(data);
    comm_free(lengths);
    OK(comm_store_gather(store, "gather", mine, mine_bytes, 0, p->rank, p->size, 0, &data, &lengths));
    IS((data != NULL) == (p->rank == 0));
    comm_free(data);
    comm_free(lengths);
    for (int r = 0; r < p->size; r++) {
        parts[r] = "abcdefghijklmnop" + r;
        part_bytes[r] = 1;
    }
    OK(comm_store_scatter(store, "scatter", parts, part_bytes, 0, p->rank, p->size, 0, &data, &bytes));
    IS(bytes == 1 && *(char *)data == 'a' + p->rank);
    comm_free(data);
    OK(comm_store_broadcast(store, "one", p->rank == 0 ? "x" : NULL, p->rank == 0, 0, p->rank, p->size, 0, &data,
                            &bytes));
    IS(bytes == 1 && *(char *)data == 'x');
    comm_free(data);
    OK(comm_store_all_sum(store, "sum", p->rank, p->rank, p->size, 0, &sum));
    IS(sum == (int64_t)p->size * (p->size - 1) / 2);
    comm_store_close(store);
}

/* ---- Rendezvous ---- */

static comm_status meet(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms, comm_store **ret_store,
                        int32_t *ret_rank, int32_t *ret_world_size, void *context, char *error, size_t capacity)
{
    (void)timeout_ms, (void)error, (void)capacity;
    IS(strcmp(url, "friends://of/ours") == 0 && context == (void *)&meet);
    *ret_rank = rank;
    *ret_world_size = world_size;
    return comm_store_open("hash://friends", NULL, ret_store);
}

static void rendezvous(const struct place *p)
{
    comm_store *store = NULL;
    int32_t rank = -1, size = -1;
    char url[400], path[280];
    snprintf(path, sizeof path, "%s/rendezvous", p->folder);
    snprintf(url, sizeof url, "file://%s?rank=%d&world_size=%d", path, p->rank, p->size);
    OK(comm_rendezvous(url, -1, 0, 30000, &store, &rank, &size));
    IS(rank == p->rank && size == p->size);
    OK(comm_store_barrier(store, "met", p->size, 0));
    comm_store_close(store);
    OK(comm_barrier(p->world, NULL, NULL));
    if (p->rank == 0)
        unlink(path);
    GIVES(COMM_ERR_INVALID, comm_rendezvous(url, p->rank, p->size, 30000, &store, &rank, &size)); /* said twice */
    OK(comm_rendezvous_register("friends", (comm_rendezvous_fn)meet, (void *)&meet));
    GIVES(COMM_ERR_INVALID, comm_rendezvous_register("friends", (comm_rendezvous_fn)meet, NULL));
    OK(comm_rendezvous("friends://of/ours", p->rank, p->size, 30000, &store, &rank, &size));
    IS(rank == p->rank && strcmp(comm_store_kind(store), "hash") == 0);
    comm_store_close(store);
}

const struct row_case rows_stores[] = {
    { "store_keys", store_keys },
    { "store_compare_set", store_compare_set },
    { "store_several", store_several },
    { "store_queue", store_queue },
    { "store_timeout", store_timeout },
    { "store_clone", store_clone },
    { "store_tcp", store_tcp },
    { "store_file_and_hash", store_file_and_hash },
    { "store_of_ones_own", store_of_ones_own },
    { "store_collectives", store_collectives },
    { "rendezvous", rendezvous },
    { NULL, NULL },
};

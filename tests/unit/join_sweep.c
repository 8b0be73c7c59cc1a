/* What worlds leave in their store: no more than the last two of a name. */
#include <stdio.h>
#include <string.h>

#include "ranks.h"

enum { TIMEOUT_MS = 30000, WORLDS = 8 };

/* ---- A store that counts, and may refuse to delete ---- */

struct counting {
    comm_store *store;
    int refuses, removals;
};

static comm_status told(comm_status status, char *error, size_t capacity)
{
    if (status != COMM_OK)
        snprintf(error, capacity, "%s", comm_last_error());
    return status;
}

static comm_status counting_set(void *context, const char *key, const void *data, size_t bytes, char *error,
                                size_t capacity)
{
    struct counting *c = context;
    return told(comm_store_set(c->store, key, data, bytes), error, capacity);
}

static comm_status counting_get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                                char *error, size_t capacity)
{
    struct counting *c = context;
    return told(comm_store_get(c->store, key, timeout_ms, ret_data, ret_bytes), error, capacity);
}

static comm_status counting_add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                                size_t capacity)
{
    struct counting *c = context;
    return told(comm_store_add(c->store, key, amount, ret_value), error, capacity);
}

static comm_status counting_compare_set(void *context, const char *key, const void *expected, size_t expected_bytes,
                                        const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                                        char *error, size_t capacity)
{
    struct counting *c = context;
    return told(comm_store_compare_set(c->store, key, expected, expected_bytes, desired, desired_bytes, ret_data,
                                       ret_bytes),
                error, capacity);
}

static comm_status counting_check(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                                  size_t capacity)
{
    struct counting *c = context;
    return told(comm_store_check(c->store, keys, count, ret_all), error, capacity);
}

static comm_status counting_remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
{
    struct counting *c = context;
    c->removals++;
    if (!c->refuses)
        return told(comm_store_delete(c->store, key, ret_existed), error, capacity);
    snprintf(error, capacity, "this store deletes nothing");
    return COMM_ERR_UNSUPPORTED;
}

static comm_store *counting_open(struct counting *c)
{
    static const comm_store_ops ops = {
        .struct_bytes = sizeof ops,
        .name = "counting",
        .set = counting_set,
        .get = counting_get,
        .add = counting_add,
        .compare_set = counting_compare_set,
        .check = counting_check,
        .remove = counting_remove,
    };
    comm_store *store;
    CHECK_OK(comm_store_create(&ops, c, &store));
    return store;
}

/* ---- Tests ---- */

static comm_group *open_on(comm_store *store, int rank, int size)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.store = store;
    options.rank = rank;
    options.world_size = size;
    options.timeout_ms = TIMEOUT_MS;
    CHECK_OK(comm_init(&options, &world));
    return world;
}

static void check_sum(comm_group *world, int size)
{
    int32_t value = 1 << comm_group_rank(world);
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(value == (1 << size) - 1);
}

static int count_keys_of(comm_store *store, int world)
{
    char **keys, prefix[40];
    size_t count;
    int found = 0;
    snprintf(prefix, sizeof prefix, "comm/world/%d/", world);
    CHECK_OK(comm_store_list_keys(store, &keys, &count));
    for (size_t i = 0; i < count; i++)
        found += strncmp(keys[i], prefix, strlen(prefix)) == 0;
    comm_free(keys);
    return found;
}

/* By the world's own means, all have returned from comm_init. The third world of a name is the first that deletes. */
static void the_last_two_worlds_stay(int rank, int size, void *arg)
{
    comm_store *store = ranks_store();
    struct counting counting = { .store = store };
    comm_store *counted = counting_open(&counting);
    int whole = 0;
    (void)arg;
    for (int i = 0; i < WORLDS; i++) {
        comm_group *world = open_on(counted, rank, size);
        check_sum(world, size);
        CHECK_OK(comm_barrier(world, NULL, NULL));
        if (i == 0)
            whole = count_keys_of(store, 0);
        CHECK(whole >= 8 + 2 * size);
        CHECK((counting.removals > 0) == (i >= 2));
        for (int old = 0; old <= i; old++)
            if (count_keys_of(store, old) != (old + 2 > i ? whole : 0))
                ranks_fail(__FILE__, __LINE__, "in world %d there are %d keys of world %d; a world has %d", i,
                           count_keys_of(store, old), old, whole);
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_group_close(world));
    }
    comm_store_close(counted);
    comm_store_close(store);
}

static void a_store_that_deletes_nothing_will_do(int rank, int size, void *arg)
{
    comm_store *store = ranks_store();
    struct counting counting = { .store = store, .refuses = 1 };
    comm_store *counted = counting_open(&counting);
    (void)arg;
    for (int i = 0; i < WORLDS; i++) {
        comm_group *world = open_on(counted, rank, size);
        check_sum(world, size);
        CHECK_OK(comm_group_close(world));
    }
    CHECK(counting.removals == WORLDS - 2); /* it is asked once for each world */
    comm_store_close(counted);
    comm_store_close(store);
}

/* Where addresses are not handed out, ranks ask the store for them when they first talk, and may do so late. */
static void an_open_world_keeps_what_it_asks_for(int rank, int size, void *arg)
{
    comm_store *store = ranks_store();
    comm_group *worlds[WORLDS];
    setenv("COMM_HANDOUT_BYTES", arg ? "0" : "1000000", 1);
    setenv("COMM_BACKEND", "cpu:tcp", 1);
    for (int i = 0; i < WORLDS; i++)
        worlds[i] = open_on(store, rank, size);
    for (int i = 0; i < WORLDS; i++)
        check_sum(worlds[i], size);
    CHECK_OK(comm_barrier(worlds[0], NULL, NULL));
    CHECK((count_keys_of(store, 0) > 0) == (arg != NULL));
    CHECK_OK(comm_barrier(worlds[0], NULL, NULL));
    for (int i = 0; i < WORLDS; i++)
        CHECK_OK(comm_group_close(worlds[i]));
    comm_store_close(store);
}

int main(void)
{
    static int late;
    static const struct {
        const char *name;
        void (*run)(int rank, int size, void *arg);
        void *arg;
    } tests[] = {
        { "the last two worlds stay", the_last_two_worlds_stay, NULL },
        { "a store that deletes nothing will do", a_store_that_deletes_nothing_will_do, NULL },
        { "an open world keeps what it asks for", an_open_world_keeps_what_it_asks_for, &late },
        { "an open world has what was handed out", an_open_world_keeps_what_it_asks_for, NULL },
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        for (int size = 2; size <= 4; size += 2) {
            const struct ranks_options options = { .name = tests[i].name };
            failed |= ranks_run(size, &options, tests[i].run, tests[i].arg);
        }
    return failed;
}

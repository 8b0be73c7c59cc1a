/* Our store client against a server that is not ours: foreign URL [LACKING...], where LACKING names the calls that this
 * server has no query for ("queues", "list_keys"): they must say UNSUPPORTED, and everything else must work. The keys
 * that it uses begin with "c/", so that a server can be used again after `foreign` has ended: it removes them. */
#include <pthread.h>
#include <string.h>

#include "ranks.h"

enum { THREADS = 8, ADDS = 50, LARGE_BYTES = 3 << 20, MANY = 300 };

static int lacks_queues, lacks_list_keys;

static void check_value(comm_store *s, const char *key, const void *expected, size_t bytes)
{
    void *data = (void *)(uintptr_t)0xdead;
    size_t got = 12345;
    CHECK_OK(comm_store_get(s, key, 20000, &data, &got));
    CHECK(got == bytes);
    CHECK(memcmp(data, expected, bytes) == 0);
    CHECK(((char *)data)[bytes] == '\0');
    comm_free(data);
}

static void values(comm_store *s)
{
    static const char binary[] = "a\0b\377\n";
    CHECK_OK(comm_store_set(s, "c/one", "1", 1));
    check_value(s, "c/one", "1", 1);
    CHECK_OK(comm_store_set(s, "c/one", binary, sizeof binary));
    check_value(s, "c/one", binary, sizeof binary);
    CHECK_OK(comm_store_set(s, "c/one", NULL, 0));
    check_value(s, "c/one", "", 0);
    char *large = malloc(LARGE_BYTES);
    CHECK(large != NULL);
    for (size_t i = 0; i < LARGE_BYTES; i++)
        large[i] = (char)(i * 2654435761u >> 24);
    CHECK_OK(comm_store_set(s, "c/large", large, LARGE_BYTES));
    check_value(s, "c/large", large, LARGE_BYTES);
    free(large);
    CHECK_OK(comm_store_append(s, "c/appended", "ab", 2));
    CHECK_OK(comm_store_append(s, "c/appended", "\0c", 2));
    check_value(s, "c/appended", "ab\0c", 4);
}

static void compare(comm_store *s, const char *expected, const char *desired, const char *after)
{
    void *data = NULL;
    size_t bytes = 12345;
    CHECK_OK(
        comm_store_compare_set(s, "c/compared", expected, strlen(expected), desired, strlen(desired), &data, &bytes));
    CHECK(bytes == strlen(after));
    CHECK(memcmp(data, after, bytes) == 0);
    comm_free(data);
}

static void numbers(comm_store *s)
{
    int64_t value = -99;
    CHECK_OK(comm_store_add(s, "c/sum", 5, &value));
    CHECK(value == 5);
    CHECK_OK(comm_store_add(s, "c/sum", -7, &value));
    CHECK(value == -2);
    check_value(s, "c/sum", "-2", 2);
    CHECK_OK(comm_store_set(s, "c/text", "text", 4));
    CHECK_STATUS(comm_store_add(s, "c/text", 1, &value), COMM_ERR_INVALID);
    check_value(s, "c/text", "text", 4);

    int32_t existed = -1;
    compare(s, "z", "y", "z"); /* c10d's rule for a key that is not there */
    CHECK_OK(comm_store_delete(s, "c/compared", &existed));
    CHECK(existed == 0);
    compare(s, "", "a", "a");
    compare(s, "a", "b", "b");
    compare(s, "x", "y", "b");
    check_value(s, "c/compared", "b", 1);
}

static void presence(comm_store *s)
{
    const char *const both[] = { "c/one", "c/none" };
    int32_t all = -1, existed = -1;
    int64_t before = -1, after = -1;
    CHECK_OK(comm_store_check(s, both, 1, &all));
    CHECK(all == 1);
    CHECK_OK(comm_store_check(s, both, 2, &all));
    CHECK(all == 0);
    CHECK_OK(comm_store_num_keys(s, &before));
    CHECK_OK(comm_store_set(s, "c/short-lived", "x", 1));
    CHECK_OK(comm_store_num_keys(s, &after));
    CHECK(after == before + 1);
    CHECK_OK(comm_store_delete(s, "c/short-lived", &existed));
    CHECK(existed == 1);
    CHECK_OK(comm_store_delete(s, "c/short-lived", &existed));
    CHECK(existed == 0);
    CHECK_OK(comm_store_num_keys(s, &after));
    CHECK(after == before);
}

/* After each of these timeouts the store must still be in step. */
static void timeouts(comm_store *s)
{
    const char *const keys[] = { "c/one", "c/absent" };
    void *data;
    size_t bytes;
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(comm_store_wait(s, keys, 2, 50), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("c/absent");
        CHECK_STATUS(comm_store_get(s, "c/absent", 50, &data, &bytes), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("c/absent");
        check_value(s, "c/sum", "-2", 2);
    }
    CHECK_STATUS(comm_store_barrier(s, "c/barrier-of-two", 2, 50), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("1 of 2");
    check_value(s, "c/sum", "-2", 2);
}

static void several(comm_store *s)
{
    static char names[MANY][24], texts[MANY][8];
    const char *keys[MANY];
    const void *in[MANY];
    void *out[MANY];
    size_t in_bytes[MANY], out_bytes[MANY];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "c/many/%d", i);
        in_bytes[i] = (size_t)snprintf(texts[i], sizeof texts[i], "%d", i * i % 1000);
        keys[i] = names[i];
        in[i] = texts[i];
        out[i] = (void *)(uintptr_t)0xdead;
        out_bytes[i] = 12345;
    }
    CHECK_OK(comm_store_multi_set(s, keys, MANY, in, in_bytes));
    CHECK_OK(comm_store_multi_get(s, keys, MANY, 20000, out, out_bytes));
    for (int i = 0; i < MANY; i++) {
        CHECK(out_bytes[i] == in_bytes[i]);
        CHECK(memcmp(out[i], in[i], in_bytes[i]) == 0);
        comm_free(out[i]);
    }
    keys[MANY / 2] = "c/absent";
    CHECK_STATUS(comm_store_multi_get(s, keys, MANY, 50, out, out_bytes), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("c/absent");
    check_value(s, "c/sum", "-2", 2);
}

static void queues(comm_store *s)
{
    int64_t count = -1;
    void *data = NULL;
    size_t bytes = 12345;
    if (lacks_queues) {
        CHECK_STATUS(comm_store_queue_push(s, "c/queue", "1", 1), COMM_ERR_UNSUPPORTED);
        CHECK_STATUS(comm_store_queue_pop(s, "c/queue", COMM_STORE_NO_WAIT, &data, &bytes), COMM_ERR_UNSUPPORTED);
        CHECK_STATUS(comm_store_queue_len(s, "c/queue", &count), COMM_ERR_UNSUPPORTED);
        CHECK_ERROR_SAYS("QUEUE_LEN");
        return;
    }
    CHECK_STATUS(comm_store_queue_pop(s, "c/queue", COMM_STORE_NO_WAIT, &data, &bytes), COMM_ERR_NOT_FOUND);
    CHECK_STATUS(comm_store_queue_pop(s, "c/queue", 50, &data, &bytes), COMM_ERR_TIMEOUT);
    CHECK_OK(comm_store_queue_push(s, "c/queue", "1", 1));
    CHECK_OK(comm_store_queue_push(s, "c/queue", "\0two", 4));
    CHECK_OK(comm_store_queue_len(s, "c/queue", &count));
    CHECK(count == 2);
    CHECK_OK(comm_store_queue_pop(s, "c/queue", 20000, &data, &bytes));
    CHECK(bytes == 1 && memcmp(data, "1", 1) == 0);
    comm_free(data);
    CHECK_OK(comm_store_queue_pop(s, "c/queue", COMM_STORE_NO_WAIT, &data, &bytes));
    CHECK(bytes == 4 && memcmp(data, "\0two", 4) == 0);
    comm_free(data);
    CHECK_OK(comm_store_queue_len(s, "c/queue", &count));
    CHECK(count == 0);
}

static void listing(comm_store *s)
{
    char **keys = NULL;
    size_t count = 12345;
    comm_store *view;
    CHECK_OK(comm_store_prefix("c/many", s, &view));
    comm_status status = comm_store_list_keys(view, &keys, &count);
    if (lacks_list_keys) {
        CHECK_STATUS(status, COMM_ERR_UNSUPPORTED);
    } else {
        CHECK_OK(status);
        char seen[MANY] = { 0 };
        CHECK(count == MANY);
        for (size_t i = 0; i < count; i++)
            seen[atoi(keys[i]) % MANY]++;
        for (int i = 0; i < MANY; i++)
            CHECK(seen[i] == 1);
        comm_free(keys);
    }
    comm_store_close(view);
    check_value(s, "c/sum", "-2", 2);
}

/* Threads of one handle: while all wait for "c/go", others of them work. */
struct thread {
    comm_store *store;
    int index;
};

static void *run_thread(void *argument)
{
    struct thread *t = argument;
    comm_store *s = t->store;
    int64_t value;
    CHECK_OK(comm_store_barrier(s, "c/all-here", THREADS, 20000));
    if (t->index % 2 == 0)
        check_value(s, "c/go", "!", 1);
    for (int i = 0; i < ADDS; i++)
        CHECK_OK(comm_store_add(s, "c/threads", 1, &value));
    if (t->index % 2 && comm_store_add(s, "c/odd-done", 1, &value) == COMM_OK && value == THREADS / 2)
        CHECK_OK(comm_store_set(s, "c/go", "!", 1)); /* only now may the even ones go on */
    return NULL;
}

static void threads(comm_store *s)
{
    struct thread arguments[THREADS];
    pthread_t ids[THREADS];
    int64_t sum = -1;
    for (int i = 0; i < THREADS; i++) {
        arguments[i] = (struct thread){ s, i };
        CHECK(pthread_create(&ids[i], NULL, run_thread, &arguments[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    CHECK_OK(comm_store_add(s, "c/threads", 0, &sum));
    CHECK(sum == THREADS * ADDS);
}

static void clones(comm_store *s)
{
    comm_store *other, *view;
    CHECK_OK(comm_store_clone(s, &other));
    CHECK_OK(comm_store_prefix("c/view", other, &view));
    CHECK_OK(comm_store_set(view, "inner", "i", 1));
    check_value(other, "c/view/inner", "i", 1);
    comm_store_close(other);
    check_value(view, "inner", "i", 1);
    comm_store_close(view);
    check_value(s, "c/view/inner", "i", 1);
}

static void clean(comm_store *s)
{
    static const char *const keys[] = { "one",
                                        "large",
                                        "appended",
                                        "sum",
                                        "text",
                                        "compared",
                                        "barrier-of-two",
                                        "all-here",
                                        "all-here/num_members",
                                        "all-here/last_member",
                                        "barrier-of-two/num_members",
                                        "threads",
                                        "odd-done",
                                        "go",
                                        "view/inner" };
    char key[40];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "c/%s", keys[i]);
        CHECK_OK(comm_store_delete(s, key, NULL));
    }
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "c/many/%d", i);
        CHECK_OK(comm_store_delete(s, key, NULL));
    }
}

int main(int argc, char **argv)
{
    comm_store *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    int64_t before = -1, after = -1;
    if (argc < 2)
        return 2;
    for (int i = 2; i < argc; i++) {
        lacks_queues |= strcmp(argv[i], "queues") == 0;
        lacks_list_keys |= strcmp(argv[i], "list_keys") == 0;
    }
    options.timeout_ms = 20000;
    CHECK_OK(comm_store_open(argv[1], &options, &store));
    CHECK_OK(comm_store_num_keys(store, &before));
    values(store);
    numbers(store);
    presence(store);
    timeouts(store);
    several(store);
    queues(store);
    listing(store);
    threads(store);
    clones(store);
    clean(store);
    CHECK_OK(comm_store_num_keys(store, &after));
    CHECK(after == before);
    comm_store_close(store);
    return 0;
}

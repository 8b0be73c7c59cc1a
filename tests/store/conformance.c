/* One suite for every kind of store: conformance KIND [SEED]. The names of kinds are in kinds.h. */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t state;

uint64_t random_u64(void) /* splitmix64 */
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void random_bytes(void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t r = random_u64();
        memcpy((char *)to + i, &r, bytes - i < 8 ? bytes - i : 8);
    }
}

static char *allocate(size_t bytes)
{
    char *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        abort();
    return memory;
}

/* ---- Values and keys ---- */

static void values_come_back_whatever_their_bytes(struct pair *p)
{
    static const size_t sizes[] = { 0, 1, 2, 7, 8, 255, 256, 4095, 4096, 4097, 65536, 1000003 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char key[32], *data = allocate(sizes[i]);
        snprintf(key, sizeof key, "value %zu", sizes[i]);
        random_bytes(data, sizes[i]);
        if (sizes[i] > 2)
            memset(data + 1, 0, 2);
        CHECK_OK(comm_store_set(p->a, key, data, sizes[i]));
        check_value(p->b, key, data, sizes[i]);
        check_value(p->a, key, data, sizes[i]);
        free(data);
    }
    CHECK_OK(comm_store_set(p->a, "nothing", NULL, 0));
    check_value(p->b, "nothing", "", 0);
    void *data = NULL;
    CHECK_OK(comm_store_get(p->b, "nothing", 0, &data, NULL)); /* its length may be of no interest */
    comm_free(data);
}

static void set_overwrites(struct pair *p)
{
    static const char *const values[] = { "first", "", "a longer one, that needs other memory", "x", "12" };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        CHECK_OK(comm_store_set(i % 2 ? p->a : p->b, "k", values[i], strlen(values[i])));
        settle(i % 2 ? p->a : p->b);
        check_text(p->a, "k", values[i]);
        check_text(p->b, "k", values[i]);
    }
}

static void values_have_a_limit(struct pair *p)
{
    char *big = allocate(VALUE_MAX + 1);
    void *data = (void *)8;
    size_t bytes = 4711;
    memset(big, 'x', VALUE_MAX + 1);
    big[VALUE_MAX - 1] = '\0';
    CHECK_OK(comm_store_set(p->a, "big", big, VALUE_MAX));
    check_value(p->b, "big", big, VALUE_MAX);
    CHECK_OK(comm_store_compare_set(p->b, "made", NULL, 0, big, VALUE_MAX, &data, &bytes));
    CHECK(bytes == VALUE_MAX && memcmp(data, big, bytes) == 0);
    comm_free(data);
    CHECK_OK(comm_store_queue_push(p->a, "q", big, VALUE_MAX));
    CHECK_OK(comm_store_queue_pop(p->b, "q", LONG_MS, &data, &bytes));
    CHECK(bytes == VALUE_MAX && memcmp(data, big, bytes) == 0);
    comm_free(data);

    data = (void *)8;
    bytes = 4711;
    CHECK_STATUS(comm_store_set(p->a, "big", big, VALUE_MAX + 1), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("8388608 B");
    CHECK_ERROR_SAYS("8388609 B");
    CHECK_STATUS(comm_store_append(p->a, "new", big, VALUE_MAX + 1), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_append(p->a, "big", "x", 1), COMM_ERR_INVALID); /* what it would grow to */
    CHECK_ERROR_SAYS("8388608 B");
    CHECK_STATUS(comm_store_queue_push(p->a, "q", big, VALUE_MAX + 1), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_compare_set(p->a, "new", "", 0, big, VALUE_MAX + 1, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_compare_set(p->a, "new", big, VALUE_MAX + 1, "", 0, &data, &bytes), COMM_ERR_INVALID);
    CHECK(data == (void *)8 && bytes == 4711);
    const char *keys[] = { "new", "new too" };
    const void *values[] = { "x", big };
    CHECK_STATUS(comm_store_multi_set(p->a, keys, 2, values, (size_t[]){ 1, VALUE_MAX + 1 }), COMM_ERR_INVALID);
    CHECK(!is_there(p->a, "new") && !is_there(p->b, "new too")); /* nothing was stored */
    check_value(p->b, "big", big, VALUE_MAX);
    free(big);
}

static void keys_may_hold_any_bytes_but_nul(struct pair *p)
{
    static const char *const odd[] = { "\001opened", "/",    "//", "a/b", "init/",   "refcount/", " ", "\n",
                                       "\xff\xfe",   "%s%n", "0",  "-/x", "queue x", "prefix/k",  "k" };
    enum { ODD = sizeof odd / sizeof *odd, RANDOM = 200, LONGEST = 300 };
    char keys[RANDOM][LONGEST + 1];
    for (size_t i = 0; i < ODD; i++)
        CHECK(!is_there(p->a, odd[i]));
    for (size_t i = 0; i < ODD; i++)
        CHECK_OK(comm_store_set(p->a, odd[i], odd[i], strlen(odd[i])));
    for (size_t i = 0; i < ODD; i++)
        check_text(p->b, odd[i], odd[i]);
    for (size_t i = 0; i < RANDOM; i++) {
        size_t bytes = (size_t)snprintf(keys[i], LONGEST, "%zu ", i) + random_u64() % 250;
        for (size_t k = strlen(keys[i]); k <= bytes; k++)
            keys[i][k] = (char)(1 + random_u64() % 255);
        keys[i][bytes + 1] = '\0';
        CHECK_OK(comm_store_set(p->b, keys[i], &i, sizeof i));
    }
    for (size_t i = 0; i < RANDOM; i++)
        check_value(p->a, keys[i], &i, sizeof i);
}

static void keys_have_a_limit(struct pair *p)
{
    size_t longest = KEY_MAX - p->prefix_bytes;
    char *key = allocate(KEY_MAX + 2);
    void *data = NULL;
    size_t bytes;
    int32_t all = -7;
    memset(key, 'k', KEY_MAX + 1);
    key[longest] = '\0';
    CHECK_OK(comm_store_set(p->a, key, "v", 1));
    check_text(p->b, key, "v");
    CHECK_OK(comm_store_delete(p->b, key, NULL));
    key[longest] = 'k';
    key[longest + 1] = '\0';
    const char *const bad[] = { key, "", NULL };
    for (size_t i = 0; i < 3; i++) {
        CHECK_STATUS(comm_store_set(p->a, bad[i], "v", 1), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS(bad[i] == NULL ? "NULL" : !*bad[i] ? "empty" : "8191 B");
        CHECK_STATUS(comm_store_get(p->a, bad[i], 0, &data, &bytes), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_add(p->a, bad[i], 1, NULL), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_compare_set(p->a, bad[i], "", 0, "v", 1, &data, &bytes), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_append(p->a, bad[i], "v", 1), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_check(p->a, &bad[i], 1, &all), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_wait(p->a, &bad[i], 1, 0), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_delete(p->a, bad[i], NULL), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_multi_get(p->a, &bad[i], 1, 0, &data, &bytes), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_multi_set(p->a, &bad[i], 1, (const void *[]){ "v" }, &(size_t){ 1 }), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_queue_push(p->a, bad[i], "v", 1), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_queue_pop(p->a, bad[i], 0, &data, &bytes), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_queue_len(p->a, bad[i], &(int64_t){ 0 }), COMM_ERR_INVALID);
        CHECK_STATUS(comm_store_barrier(p->a, bad[i], 1, 0), COMM_ERR_INVALID);
    }
    CHECK(data == NULL && all == -7);
    CHECK_OK(comm_store_set(p->a, "fine", "v", 1)); /* the store is unharmed */
    check_text(p->b, "fine", "v");
    free(key);
}

static void many_keys_at_once_have_a_limit(struct pair *p)
{
    enum { COUNT_MAX = 131072 };
    const char **keys = (const char **)allocate((COUNT_MAX + 1) * sizeof *keys);
    int32_t all = -7;
    for (size_t i = 0; i <= COUNT_MAX; i++)
        keys[i] = "k";
    CHECK_OK(comm_store_set(p->a, "k", "v", 1));
    CHECK_STATUS(comm_store_check(p->a, keys, COUNT_MAX + 1, &all), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("131072");
    CHECK(all == -7);
    CHECK_OK(comm_store_check(p->a, keys, COUNT_MAX, &all));
    CHECK(all == 1);
    CHECK_OK(comm_store_wait(p->a, keys, COUNT_MAX, LONG_MS));
    free(keys);
}

/* ---- Numbers ---- */

static int64_t add(comm_store *store, const char *key, int64_t amount)
{
    int64_t value = -4711;
    CHECK_OK(comm_store_add(store, key, amount, &value));
    return value;
}

static void add_counts(struct pair *p)
{
    CHECK(add(p->a, "n", 5) == 5);
    CHECK(add(p->b, "n", -7) == -2);
    CHECK(add(p->a, "n", 0) == -2);
    check_text(p->b, "n", "-2");
    CHECK_OK(comm_store_add(p->b, "n", 1, NULL));
    check_text(p->a, "n", "-1");
    CHECK(add(p->a, "fresh", 0) == 0);
    CHECK(is_there(p->b, "fresh")); /* made by looking, as in PyTorch */
    CHECK_OK(comm_store_set(p->a, "set", "41", 2));
    CHECK(add(p->a, "set", 1) == 42);
    CHECK(add(p->a, "most", INT64_MAX) == INT64_MAX);
    CHECK(add(p->b, "most", INT64_MIN) == -1);
    CHECK(add(p->a, "least", INT64_MIN) == INT64_MIN);
    check_text(p->b, "least", "-9223372036854775808");
}

static void add_refuses_what_is_no_number(struct pair *p)
{
    static const char *const bad[] = { "", "x", "-", "9223372036854775808", "99999999999999999999999999" };
    int64_t value = -4711;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_OK(comm_store_set(p->a, "k", bad[i], strlen(bad[i])));
        CHECK_STATUS(comm_store_add(p->a, "k", 1, &value), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("'");
        check_text(p->a, "k", bad[i]); /* the store goes on, and the value is as it was */
    }
    CHECK(add(p->a, "n", INT64_MAX) == INT64_MAX);
    CHECK_STATUS(comm_store_add(p->a, "n", 1, &value), COMM_ERR_INVALID);
    CHECK_OK(comm_store_set(p->b, "m", "-9223372036854775808", 20));
    CHECK_STATUS(comm_store_add(p->b, "m", -1, &value), COMM_ERR_INVALID);
    CHECK(value == -4711);
    CHECK(add(p->b, "n", 0) == INT64_MAX && add(p->a, "m", 0) == INT64_MIN);
}

/* ---- compare_set, append, delete ---- */

static void swap(comm_store *store, const char *expected, const char *desired, const char *want)
{
    void *data = NULL;
    size_t bytes = 4711;
    CHECK_OK(comm_store_compare_set(store, "k", expected, strlen(expected), desired, strlen(desired), &data, &bytes));
    if (bytes != strlen(want) || memcmp(data, want, bytes + 1) != 0)
        ranks_fail(__FILE__, __LINE__, "compare_set('%s', '%s') gave '%s', not '%s'", expected, desired, (char *)data,
                   want);
    comm_free(data);
}

static void compare_set_follows_c10d(struct pair *p)
{
    swap(p->a, "something", "new", "something"); /* no key: nothing is made, and `expected` comes back */
    CHECK(!is_there(p->b, "k"));
    swap(p->a, "", "one", "one");
    check_text(p->b, "k", "one");
    swap(p->b, "", "two", "one"); /* an empty `expected` does not overwrite */
    swap(p->b, "on", "two", "one");
    swap(p->b, "one and more", "two", "one");
    swap(p->b, "one", "two", "two");
    check_text(p->a, "k", "two");
    swap(p->a, "two", "", "");
    check_text(p->b, "k", "");
    CHECK(is_there(p->b, "k"));
    swap(p->b, "", "three", "three");
    void *data = NULL; /* bytes, not strings */
    size_t bytes;
    CHECK_OK(comm_store_set(p->a, "k", "a\0b", 3));
    CHECK_OK(comm_store_compare_set(p->a, "k", "a\0c", 3, "new", 3, &data, &bytes));
    CHECK(bytes == 3 && memcmp(data, "a\0b", 3) == 0);
    comm_free(data);
    CHECK_OK(comm_store_compare_set(p->a, "k", "a\0b", 3, "\0", 1, &data, NULL));
    comm_free(data);
    check_value(p->b, "k", "\0", 1);
}

static void append_puts_at_the_end(struct pair *p)
{
    char want[64 * 50];
    size_t bytes = 0;
    CHECK_OK(comm_store_append(p->a, "k", NULL, 0)); /* makes the key */
    settle(p->a);
    CHECK(is_there(p->b, "k"));
    check_text(p->b, "k", "");
    for (int i = 0; i < 50; i++) {
        size_t more = random_u64() % 64;
        random_bytes(want + bytes, more);
        CHECK_OK(comm_store_append(i % 2 ? p->a : p->b, "k", want + bytes, more));
        settle(i % 2 ? p->a : p->b);
        bytes += more;
    }
    check_value(p->a, "k", want, bytes);
    check_value(p->b, "k", want, bytes);
    CHECK_OK(comm_store_append(p->a, "new", "x", 1));
    CHECK_OK(comm_store_set(p->a, "new", "y", 1));
    CHECK_OK(comm_store_append(p->a, "new", "z", 1));
    check_text(p->a, "new", "yz");
}

static void delete_says_whether_there_was_one(struct pair *p)
{
    int32_t existed = -7;
    CHECK_OK(comm_store_delete(p->a, "k", &existed));
    CHECK(existed == 0);
    CHECK_OK(comm_store_set(p->a, "k", "v", 1));
    settle(p->a);
    CHECK_OK(comm_store_delete(p->b, "k", &existed));
    CHECK(existed == 1);
    CHECK(!is_there(p->a, "k"));
    CHECK_OK(comm_store_delete(p->a, "k", &existed));
    CHECK(existed == 0);
    CHECK_OK(comm_store_delete(p->a, "k", NULL));
    CHECK(add(p->b, "k", 1) == 1); /* a new one, from 0 */
    CHECK_OK(comm_store_append(p->b, "k", "0", 1));
    check_text(p->b, "k", "10");
}

/* ---- Looking at keys ---- */

static void check_is_for_all_of_them(struct pair *p)
{
    int32_t all = -7;
    CHECK_OK(comm_store_check(p->a, NULL, 0, &all));
    CHECK(all == 1);
    CHECK_OK(comm_store_set(p->a, "1", "", 0));
    CHECK_OK(comm_store_set(p->a, "2", "", 0));
    settle(p->a);
    CHECK_OK(comm_store_check(p->b, (const char *[]){ "1", "2" }, 2, &all));
    CHECK(all == 1);
    CHECK_OK(comm_store_check(p->b, (const char *[]){ "1", "3", "2" }, 3, &all));
    CHECK(all == 0);
    CHECK_OK(comm_store_check(p->b, (const char *[]){ "1", "1" }, 2, &all));
    CHECK(all == 1);
}

static int64_t num_keys(comm_store *store)
{
    int64_t count = -7;
    CHECK_OK(comm_store_num_keys(store, &count));
    return count;
}

static void num_keys_counts(struct pair *p)
{
    int64_t count = -7;
    if (p->lacks & LACKS_NUM_KEYS) {
        CHECK_STATUS(comm_store_num_keys(p->a, &count), COMM_ERR_UNSUPPORTED);
        CHECK_ERROR_SAYS("has no num_keys");
        CHECK(count == -7);
        return;
    }
    settle(p->a);
    int64_t before = num_keys(p->a); /* a prefix counts the whole store */
    CHECK(before == 1 + (p->prefix_bytes ? 2 : 0));
    CHECK_OK(comm_store_set(p->a, "1", "x", 1));
    CHECK_OK(comm_store_set(p->a, "2", "x", 1));
    CHECK_OK(comm_store_set(p->a, "1", "y", 1));
    CHECK_OK(comm_store_queue_push(p->a, "q", "x", 1)); /* not a key */
    settle(p->a);
    CHECK(num_keys(p->b) == before + 2);
    CHECK_OK(comm_store_delete(p->a, "1", NULL));
    CHECK(num_keys(p->b) == before + 1);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void check_keys(comm_store *store, const char *const *want, size_t want_count)
{
    char **keys = NULL;
    size_t count = 4711;
    CHECK_OK(comm_store_list_keys(store, &keys, &count));
    qsort(keys, count, sizeof *keys, by_text);
    for (size_t i = 0; i < count && i < want_count; i++)
        if (strcmp(keys[i], want[i]) != 0)
            ranks_fail(__FILE__, __LINE__, "key %zu is '%s', not '%s'", i, keys[i], want[i]);
    CHECK(count == want_count);
    comm_free(keys);
}

static void list_keys_gives_this_views_keys(struct pair *p)
{
    if (p->lacks & LACKS_LIST_KEYS) {
        char **keys = (char **)8;
        size_t count = 4711;
        CHECK_STATUS(comm_store_list_keys(p->a, &keys, &count), COMM_ERR_UNSUPPORTED);
        CHECK_ERROR_SAYS("has no list_keys");
        CHECK(keys == (char **)8 && count == 4711);
        return;
    }
    check_keys(p->a, NULL, 0);
    static const char *const names[] = { "", "a", "a/b", "b" }; /* the empty one is left out below */
    for (size_t i = 1; i < 4; i++)
        CHECK_OK(comm_store_set(p->a, names[i], "x", 1));
    CHECK_OK(comm_store_queue_push(p->a, "q", "x", 1));
    settle(p->a);
    CHECK_OK(comm_store_delete(p->a, "settled", NULL));
    check_keys(p->b, names + 1, 3);
    comm_store *inner;
    CHECK_OK(comm_store_prefix("a", p->b, &inner));
    check_keys(inner, names + 3, 1);
    comm_store_close(inner);
    CHECK_OK(comm_store_delete(p->b, "a", NULL));
    check_keys(p->a, names + 2, 2);
}

/* ---- Several at once ---- */

static void multi_set_and_multi_get(struct pair *p)
{
    enum { COUNT = 700 };
    static char names[COUNT][16], values[COUNT][300];
    const char *keys[COUNT];
    const void *data[COUNT];
    void *got[COUNT];
    size_t bytes[COUNT], got_bytes[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "m%zu", i);
        bytes[i] = random_u64() % sizeof values[i];
        random_bytes(values[i], bytes[i]);
        keys[i] = names[i];
        data[i] = values[i];
    }
    CHECK_OK(comm_store_multi_set(p->a, keys, COUNT, data, bytes));
    CHECK_OK(comm_store_multi_get(p->b, keys, COUNT, LONG_MS, got, got_bytes));
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(got_bytes[i] == bytes[i] && memcmp(got[i], values[i], bytes[i]) == 0);
        CHECK(((char *)got[i])[bytes[i]] == '\0');
        comm_free(got[i]);
    }
    keys[1] = keys[0]; /* one twice */
    CHECK_OK(comm_store_multi_get(p->a, keys, 2, LONG_MS, got, got_bytes));
    CHECK(got[0] != got[1] && got_bytes[1] == bytes[0] && memcmp(got[1], values[0], bytes[0]) == 0);
    comm_free(got[0]);
    comm_free(got[1]);
    CHECK_OK(comm_store_multi_set(p->a, NULL, 0, NULL, NULL));
    CHECK_OK(comm_store_multi_get(p->a, NULL, 0, 0, NULL, NULL));
}

static void several_thousand_keys(struct pair *p)
{
    enum { COUNT = 3000 };
    char key[32], value[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(key, sizeof key, "key %d", i);
        snprintf(value, sizeof value, "value %d", i);
        CHECK_OK(comm_store_set(i % 2 ? p->a : p->b, key, value, strlen(value)));
    }
    settle(p->a);
    settle(p->b);
    for (int i = 0; i < COUNT; i += 7) {
        snprintf(key, sizeof key, "key %d", i);
        snprintf(value, sizeof value, "value %d", i);
        check_text(i % 2 ? p->b : p->a, key, value);
    }
    if (p->lacks & LACKS_NUM_KEYS)
        return;
    CHECK(num_keys(p->b) == COUNT + 1 + (p->prefix_bytes ? 2 : 0));
}

/* ---- Queues, without waiting ---- */

static void push(comm_store *store, const char *queue, const char *text)
{
    CHECK_OK(comm_store_queue_push(store, queue, text, strlen(text)));
}

static void check_pop(comm_store *store, const char *queue, int64_t timeout_ms, const char *want)
{
    void *data = NULL;
    size_t bytes = 4711;
    CHECK_OK(comm_store_queue_pop(store, queue, timeout_ms, &data, &bytes));
    if (bytes != strlen(want) || memcmp(data, want, bytes + 1) != 0)
        ranks_fail(__FILE__, __LINE__, "popped '%s', not '%s'", (char *)data, want);
    comm_free(data);
}

static int64_t queue_len(comm_store *store, const char *queue)
{
    int64_t count = -7;
    CHECK_OK(comm_store_queue_len(store, queue, &count));
    return count;
}

static void queues_are_first_in_first_out(struct pair *p)
{
    void *data = (void *)8;
    size_t bytes = 4711;
    CHECK(queue_len(p->a, "q") == 0);
    CHECK_STATUS(comm_store_queue_pop(p->a, "q", COMM_STORE_NO_WAIT, &data, &bytes), COMM_ERR_NOT_FOUND);
    CHECK_ERROR_SAYS("is empty");
    CHECK(data == (void *)8 && bytes == 4711);
    push(p->a, "q", "one");
    push(p->a, "q", "");
    push(p->a, "other", "elsewhere");
    push(p->a, "q", "three");
    CHECK(queue_len(p->a, "q") == 3);
    CHECK(queue_len(p->b, "other") == 1);
    check_pop(p->b, "q", LONG_MS, "one");
    check_pop(p->a, "q", COMM_STORE_NO_WAIT, "");
    push(p->a, "q", "four");
    check_pop(p->a, "q", LONG_MS, "three");
    check_pop(p->a, "q", COMM_STORE_NO_WAIT, "four");
    CHECK(queue_len(p->b, "q") == 0);
    CHECK_STATUS(comm_store_queue_pop(p->b, "q", COMM_STORE_NO_WAIT, &data, &bytes), COMM_ERR_NOT_FOUND);
    CHECK_OK(comm_store_queue_push(p->b, "q", "a\0b", 3));
    CHECK_OK(comm_store_queue_pop(p->b, "q", COMM_STORE_NO_WAIT, &data, NULL));
    CHECK(memcmp(data, "a\0b", 4) == 0);
    comm_free(data);
}

static void queues_have_a_name_space_of_their_own(struct pair *p)
{
    CHECK_OK(comm_store_set(p->a, "k", "value", 5));
    push(p->a, "k", "item");
    check_text(p->a, "k", "value");
    CHECK_OK(comm_store_delete(p->a, "k", NULL));
    CHECK(queue_len(p->a, "k") == 1);
    CHECK_OK(comm_store_add(p->a, "k", 3, NULL));
    check_pop(p->b, "k", LONG_MS, "item");
    check_text(p->b, "k", "3");

    void *data = (void *)8;
    size_t bytes = 4711;
    const char *name = "line";
    push(p->a, name, "item");
    settle(p->a);
    CHECK(queue_len(p->b, name) == 1);
    CHECK_STATUS(comm_store_get(p->b, name, SHORT_MS, &data, &bytes), COMM_ERR_TIMEOUT); /* it is no value */
    CHECK_ERROR_SAYS("line'");
    CHECK(data == (void *)8 && bytes == 4711);
    CHECK_STATUS(comm_store_multi_get(p->b, &name, 1, SHORT_MS, &data, &bytes), COMM_ERR_TIMEOUT);
    check_pop(p->b, name, LONG_MS, "item");
}

/* ---- Handles ---- */

static void handles_say_what_they_are(struct pair *p)
{
    CHECK(strcmp(comm_store_kind(p->a), p->kind) == 0);
    CHECK(strcmp(comm_store_kind(p->b), p->kind) == 0);
    CHECK(comm_store_url(p->a) && *comm_store_url(p->a));
    CHECK((comm_store_port(p->a) > 0) == (strcmp(comm_store_host(p->a), "127.0.0.1") == 0));
    CHECK(comm_store_port(p->a) == comm_store_port(p->b));
    if (comm_store_port(p->a) <= 0)
        CHECK(comm_store_port(p->a) == -1 && *comm_store_host(p->a) == '\0');
    CHECK(comm_store_timeout(p->a) == 300000);
    CHECK_OK(comm_store_set_timeout(p->a, 4711));
    CHECK(comm_store_timeout(p->a) == 4711 && comm_store_timeout(p->b) == 300000); /* of this handle alone */
    comm_store *other;
    CHECK_OK(comm_store_clone(p->a, &other));
    CHECK(comm_store_timeout(other) == 4711);
    comm_store_close(other);
    CHECK_OK(comm_store_prefix("x", p->a, &other));
    CHECK(comm_store_timeout(other) == 4711);
    CHECK(strcmp(comm_store_kind(other), "prefix") == 0);
    comm_store_close(other);
    CHECK_STATUS(comm_store_set_timeout(p->a, -2), COMM_ERR_INVALID);
    CHECK(comm_store_timeout(p->a) == 4711);
    CHECK_OK(comm_store_set_timeout(p->a, COMM_TIMEOUT_INFINITE));
    CHECK(comm_store_timeout(p->a) == COMM_TIMEOUT_INFINITE);
    CHECK_OK(comm_store_set_timeout(p->a, 0));
    CHECK(comm_store_timeout(p->a) == 300000);
}

static void null_is_refused(struct pair *p)
{
    size_t bytes;
    void *data = NULL;
    const char *key = "k";
    comm_store *store;
    CHECK_STATUS(comm_store_set(NULL, "k", "v", 1), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_clone(NULL, &store), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_clone(p->a, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_prefix("x", NULL, &store), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_prefix(NULL, p->a, &store), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_prefix("x", p->a, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_set(p->a, "k", NULL, 1), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_append(p->a, "k", NULL, 1), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_queue_push(p->a, "k", NULL, 1), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_get(p->a, "k", 0, NULL, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_compare_set(p->a, "k", NULL, 1, "v", 1, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_compare_set(p->a, "k", "v", 1, NULL, 1, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_compare_set(p->a, "k", "v", 1, "v", 1, NULL, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_check(p->a, &key, 1, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_check(p->a, NULL, 1, &(int32_t){ 0 }), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_wait(p->a, NULL, 1, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_num_keys(p->a, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_list_keys(p->a, NULL, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_list_keys(p->a, &(char **){ NULL }, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_multi_get(p->a, &key, 1, 0, NULL, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_multi_set(p->a, &key, 1, NULL, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_queue_pop(p->a, "k", COMM_STORE_NO_WAIT, NULL, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_queue_len(p->a, "k", NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_barrier(p->a, "k", 0, 0), COMM_ERR_INVALID);
    comm_store_close(NULL);
    CHECK(!is_there(p->a, "k"));
}

static void a_clone_lives_on_its_own(struct pair *p)
{
    comm_store *clone;
    CHECK_OK(comm_store_clone(p->b, &clone));
    CHECK(strcmp(comm_store_kind(clone), p->kind) == 0);
    comm_store_close(p->b);
    p->b = NULL;
    CHECK_OK(comm_store_set(clone, "k", "v", 1));
    check_text(p->a, "k", "v");
    comm_store_close(clone);
    check_text(p->a, "k", "v");
}

static void a_view_outlives_its_store(struct pair *p)
{
    comm_store *view, *nested;
    CHECK_OK(comm_store_prefix("x", p->b, &view));
    CHECK_OK(comm_store_prefix("y", view, &nested));
    comm_store_close(p->b);
    comm_store_close(view);
    p->b = NULL;
    CHECK_OK(comm_store_set(nested, "k", "v", 1));
    check_text(p->a, "x/y/k", "v");
    comm_store_close(nested);
}

static void after_fork_the_handle_is_the_parents(struct pair *p)
{
    CHECK_OK(comm_store_set(p->a, "k", "v", 1));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        comm_store *view = NULL;
        int32_t all = -7;
        const char *key = "k";
        int good = comm_store_set(p->a, "k", "w", 1) == COMM_ERR_FORKED && strstr(comm_last_error(), "fork") &&
                   comm_store_check(p->b, &key, 1, &all) == COMM_ERR_FORKED && all == -7 &&
                   comm_store_prefix("x", p->a, &view) == COMM_ERR_FORKED &&
                   comm_store_clone(p->a, &view) == COMM_ERR_FORKED && !view;
        comm_store_close(p->b); /* does nothing to the parent's */
        comm_store_close(p->a);
        _exit(good ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_text(p->b, "k", "v");
}

const struct test_case simple_cases[] = {
    { "values come back whatever their bytes", values_come_back_whatever_their_bytes },
    { "set overwrites", set_overwrites },
    { "values have a limit", values_have_a_limit },
    { "keys may hold any bytes but NUL", keys_may_hold_any_bytes_but_nul },
    { "keys have a limit", keys_have_a_limit },
    { "many keys at once have a limit", many_keys_at_once_have_a_limit },
    { "add counts", add_counts },
    { "add refuses what is no number", add_refuses_what_is_no_number },
    { "compare_set follows c10d", compare_set_follows_c10d },
    { "append puts at the end", append_puts_at_the_end },
    { "delete says whether there was one", delete_says_whether_there_was_one },
    { "check is for all of them", check_is_for_all_of_them },
    { "num_keys counts", num_keys_counts },
    { "list_keys gives this view's keys", list_keys_gives_this_views_keys },
    { "multi_set and multi_get", multi_set_and_multi_get },
    { "several thousand keys", several_thousand_keys },
    { "queues are first in, first out", queues_are_first_in_first_out },
    { "queues have a name space of their own", queues_have_a_name_space_of_their_own },
    { "handles say what they are", handles_say_what_they_are },
    { "NULL is refused", null_is_refused },
    { "a clone lives on its own", a_clone_lives_on_its_own },
    { "a view outlives its store", a_view_outlives_its_store },
    { "after fork the handle is the parent's", after_fork_the_handle_is_the_parents },
    { NULL, NULL },
};

static void run(const char *kind, const struct test_case *cases)
{
    for (; cases->name; cases++) {
        struct pair p;
        printf("%s: %s\n", kind, cases->name);
        fflush(stdout);
        alarm(100); /* a hang ends here, with the case's name as the last line */
        pair_open(kind, &p);
        cases->run(&p);
        pair_close(&p);
        alarm(0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s KIND [SEED]\n", argv[0]);
        return 2;
    }
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)state);
    run(argv[1], simple_cases);
    run(argv[1], waiting_cases);
    return 0;
}

/* A store of the user's, as it would be written from comm/store.h alone: a hash table under a lock. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kinds.h"
#include "ranks.h"

struct item {
    struct item *next;
    char *key; /* of a queue: "queue " and its name */
    char *data;
    size_t bytes;
};

enum { LISTS = 1024 };

struct user {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct item *lists[LISTS]; /* by a hash of the key */
};

static struct user *enter(void *context)
{
    struct user *u = context;
    pthread_mutex_lock(&u->lock);
    return u;
}

static comm_status leave(struct user *u, comm_status status)
{
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
    return status;
}

static struct item **list_of(struct user *u, const char *key)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *key; key++)
        hash = (hash ^ (uint8_t)*key) * 16777619u;
    return &u->lists[hash % LISTS];
}

static struct item **find(struct user *u, const char *key)
{
    struct item **at = list_of(u, key);
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

/* Without a NUL after it: that is the library's to add. */
static void *copy(const void *data, size_t bytes)
{
    void *to = malloc(bytes ? bytes : 1);
    if (!to)
        abort();
    if (bytes)
        memcpy(to, data, bytes);
    return to;
}

static void put(struct item **at, const char *key, const void *data, size_t bytes)
{
    if (!*at) {
        *at = calloc(1, sizeof **at);
        if (!*at || !((*at)->key = strdup(key)))
            abort();
    }
    void *fresh = copy(data, bytes);
    free((*at)->data);
    (*at)->data = fresh;
    (*at)->bytes = bytes;
}

static void drop(struct item **at)
{
    struct item *item = *at;
    *at = item->next;
    free(item->key);
    free(item->data);
    free(item);
}

/* Until the key is there. */
static comm_status sleep_for(struct user *u, const char *key, int64_t timeout_ms, char *error, size_t capacity)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ms < 1)
        timeout_ms = 3600000;
    int64_t ns = until.tv_nsec + timeout_ms % 1000 * 1000000;
    until.tv_sec += timeout_ms / 1000 + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    while (!*find(u, key))
        if (pthread_cond_timedwait(&u->changed, &u->lock, &until) == ETIMEDOUT) {
            snprintf(error, capacity, "nobody came");
            return COMM_ERR_TIMEOUT;
        }
    return COMM_OK;
}

static comm_status user_set(void *context, const char *key, const void *data, size_t bytes, char *error,
                            size_t capacity)
{
    struct user *u = enter(context);
    (void)error, (void)capacity;
    put(find(u, key), key, data, bytes);
    return leave(u, COMM_OK);
}

static comm_status user_get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                            char *error, size_t capacity)
{
    struct user *u = enter(context);
    comm_status status = sleep_for(u, key, timeout_ms, error, capacity);
    if (status == COMM_OK) {
        *ret_data = copy((*find(u, key))->data, (*find(u, key))->bytes);
        *ret_bytes = (*find(u, key))->bytes;
    }
    return leave(u, status);
}

static comm_status user_add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                            size_t capacity)
{
    struct user *u = enter(context);
    struct item **at = find(u, key);
    char text[64] = "0", *end;
    int64_t sum;
    if (*at)
        snprintf(text, sizeof text, "%.*s", (int)(*at)->bytes, (*at)->data);
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || errno || __builtin_add_overflow(number, amount, &sum)) {
        snprintf(error, capacity, "add to '%s': '%s' plus %lld does not work out", key, text, (long long)amount);
        return leave(u, COMM_ERR_INVALID);
    }
    snprintf(text, sizeof text, "%lld", (long long)sum);
    put(at, key, text, strlen(text));
    *ret_value = sum;
    return leave(u, COMM_OK);
}

static comm_status user_compare_set(void *context, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                                    char *error, size_t capacity)
{
    struct user *u = enter(context);
    struct item **at = find(u, key);
    (void)error, (void)capacity;
    if (*at ? (*at)->bytes == expected_bytes && (!expected_bytes || memcmp((*at)->data, expected, expected_bytes) == 0)
            : expected_bytes == 0)
        put(at, key, desired, desired_bytes);
    *ret_data = *at ? copy((*at)->data, (*at)->bytes) : copy(expected, expected_bytes);
    *ret_bytes = *at ? (*at)->bytes : expected_bytes;
    return leave(u, COMM_OK);
}

static comm_status user_check(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                              size_t capacity)
{
    struct user *u = enter(context);
    (void)error, (void)capacity;
    *ret_all = 1;
    for (size_t i = 0; i < count; i++)
        *ret_all &= *find(u, keys[i]) != NULL;
    return leave(u, COMM_OK);
}

static comm_status user_remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
{
    struct user *u = enter(context);
    struct item **at = find(u, key);
    (void)error, (void)capacity;
    *ret_existed = *at != NULL;
    if (*at)
        drop(at);
    return leave(u, COMM_OK);
}

static comm_status user_wait(void *context, const char *const *keys, size_t count, int64_t timeout_ms, char *error,
                             size_t capacity)
{
    struct user *u = enter(context);
    comm_status status = COMM_OK;
    for (size_t i = 0; i < count && status == COMM_OK; i++)
        status = sleep_for(u, keys[i], timeout_ms, error, capacity);
    return leave(u, status);
}

static comm_status user_append(void *context, const char *key, const void *data, size_t bytes, char *error,
                               size_t capacity)
{
    struct user *u = enter(context);
    struct item **at = find(u, key);
    size_t old = *at ? (*at)->bytes : 0;
    if (old + bytes > (size_t)8 << 20) {
        snprintf(error, capacity, "append to '%s': the limit is 8388608 B", key);
        return leave(u, COMM_ERR_INVALID);
    }
    char *joined = malloc(old + bytes + 1);
    if (!joined)
        abort();
    if (old)
        memcpy(joined, (*at)->data, old);
    if (bytes)
        memcpy(joined + old, data, bytes);
    put(at, key, joined, old + bytes);
    free(joined);
    return leave(u, COMM_OK);
}

static int is_queue(const struct item *item)
{
    return strncmp(item->key, "queue ", 6) == 0;
}

static comm_status user_num_keys(void *context, int64_t *ret_count, char *error, size_t capacity)
{
    struct user *u = enter(context);
    (void)error, (void)capacity;
    *ret_count = 0;
    for (size_t i = 0; i < LISTS; i++)
        for (struct item *item = u->lists[i]; item; item = item->next)
            *ret_count += !is_queue(item);
    return leave(u, COMM_OK);
}

static comm_status user_list_keys(void *context, char ***ret_keys, size_t *ret_count, char *error, size_t capacity)
{
    struct user *u = enter(context);
    size_t count = 0, bytes = 0;
    (void)error, (void)capacity;
    for (size_t i = 0; i < LISTS; i++)
        for (struct item *item = u->lists[i]; item; item = item->next)
            if (!is_queue(item)) {
                count++;
                bytes += strlen(item->key) + 1;
            }
    char **keys = malloc(count * sizeof *keys + bytes + 1), *to = (char *)(keys + count);
    if (!keys)
        abort();
    *ret_keys = keys;
    *ret_count = count;
    for (size_t i = 0; i < LISTS; i++)
        for (struct item *item = u->lists[i]; item; item = item->next)
            if (!is_queue(item)) {
                *keys++ = to;
                to = stpcpy(to, item->key) + 1;
            }
    return leave(u, COMM_OK);
}

static char *queue_key(const char *key)
{
    char *whole = malloc(strlen(key) + 7);
    if (!whole)
        abort();
    stpcpy(stpcpy(whole, "queue "), key);
    return whole;
}

static comm_status user_queue_push(void *context, const char *key, const void *data, size_t bytes, char *error,
                                   size_t capacity)
{
    struct user *u = enter(context);
    char *whole = queue_key(key);
    struct item **at = list_of(u, whole);
    (void)error, (void)capacity;
    while (*at)
        at = &(*at)->next;
    put(at, whole, data, bytes);
    free(whole);
    return leave(u, COMM_OK);
}

static comm_status user_queue_pop(void *context, const char *key, int64_t timeout_ms, void **ret_data,
                                  size_t *ret_bytes, char *error, size_t capacity)
{
    struct user *u = enter(context);
    char *whole = queue_key(key);
    comm_status status = COMM_OK;
    if (timeout_ms != COMM_STORE_NO_WAIT)
        status = sleep_for(u, whole, timeout_ms, error, capacity);
    else if (!*find(u, whole))
        status = COMM_ERR_NOT_FOUND;
    if (status == COMM_ERR_NOT_FOUND)
        snprintf(error, capacity, "the queue '%s' is empty", key);
    if (status == COMM_OK) {
        struct item **at = find(u, whole);
        *ret_data = copy((*at)->data, (*at)->bytes);
        *ret_bytes = (*at)->bytes;
        drop(at);
    }
    free(whole);
    return leave(u, status);
}

static comm_status user_queue_len(void *context, const char *key, int64_t *ret_count, char *error, size_t capacity)
{
    struct user *u = enter(context);
    char *whole = queue_key(key);
    (void)error, (void)capacity;
    *ret_count = 0;
    for (struct item *item = *list_of(u, whole); item; item = item->next)
        *ret_count += strcmp(item->key, whole) == 0;
    free(whole);
    return leave(u, COMM_OK);
}

static void user_close(void *context)
{
    struct user *u = context;
    for (size_t i = 0; i < LISTS; i++)
        while (u->lists[i])
            drop(&u->lists[i]);
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->changed);
    free(u);
}

comm_store *user_store_open(int with_all)
{
    comm_store_ops ops = {
        .struct_bytes = sizeof ops,
        .name = "tests",
        .set = user_set,
        .get = user_get,
        .add = user_add,
        .compare_set = user_compare_set,
        .check = user_check,
        .remove = user_remove,
        .close = user_close,
    };
    if (with_all) {
        ops.wait = user_wait;
        ops.append = user_append;
        ops.num_keys = user_num_keys;
        ops.list_keys = user_list_keys;
        ops.queue_push = user_queue_push;
        ops.queue_pop = user_queue_pop;
        ops.queue_len = user_queue_len;
    }
    struct user *u = calloc(1, sizeof *u);
    pthread_condattr_t monotonic;
    comm_store *store;
    CHECK(u != NULL);
    pthread_mutex_init(&u->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&u->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    CHECK_OK(comm_store_create(&ops, u, &store));
    return store;
}

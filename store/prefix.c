/* A view of another store: keys get "prefix/" in front, or stay as they are (a second handle). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "store.h"
#include "view.h"

struct view {
    comm_store base;
    struct store_kind kind;
    comm_store *inner;
    int plain;    /* a second handle, without a prefix */
    char *prefix; /* "name/", or "" */
};

/* prefix + key (free). The key alone was checked; a server closes the connection of a client that sends too long a
 * key. */
static comm_status whole(const comm_store *s, const char *key, char **ret_whole)
{
    const struct view *v = (const struct view *)s;
    size_t a = strlen(v->prefix), b = strlen(key);
    if (a + b > LIMIT_STORE_KEY_BYTES)
        return comm__fail(COMM_ERR_INVALID,
                          "a key of %zu B behind a prefix of %zu B ('%.60s'); together the longest is %zu B", b, a,
                          v->prefix, LIMIT_STORE_KEY_BYTES);
    char *text = malloc(a + b + 1);
    if (!text)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a key");
    memcpy(text, v->prefix, a);
    memcpy(text + a, key, b + 1);
    *ret_whole = text;
    return COMM_OK;
}

static comm_store *inner(const comm_store *s)
{
    return ((const struct view *)s)->inner;
}

static void free_keys(char **keys, size_t count)
{
    for (size_t i = 0; keys && i < count; i++)
        free(keys[i]);
    free(keys);
}

static comm_status whole_keys(const comm_store *s, const char *const *keys, size_t count, char ***ret_keys)
{
    char **all = calloc(count ? count : 1, sizeof *all);
    if (!all)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for %zu keys", count);
    for (size_t i = 0; i < count; i++) {
        comm_status status = whole(s, keys[i], &all[i]);
        if (status != COMM_OK) {
            free_keys(all, i);
            return status;
        }
    }
    *ret_keys = all;
    return COMM_OK;
}

static comm_status view_set(comm_store *s, const char *key, const void *data, size_t bytes,
                            const struct store_wait *wait)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = inner(s)->kind->set(inner(s), k, data, bytes, wait);
    free(k);
    return status;
}

static comm_status view_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = inner(s)->kind->get(inner(s), k, wait, ret_data, ret_bytes);
    free(k);
    return status;
}

static comm_status view_add(comm_store *s, const char *key, int64_t amount, const struct store_wait *wait,
                            int64_t *ret_value)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = inner(s)->kind->add(inner(s), k, amount, wait, ret_value);
    free(k);
    return status;
}

static comm_status view_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, const struct store_wait *wait,
                                    void **ret_data, size_t *ret_bytes)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = inner(s)->kind->compare_set(inner(s), k, expected, expected_bytes, desired, desired_bytes, wait,
                                             ret_data, ret_bytes);
    free(k);
    return status;
}

static comm_status view_check(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                              int32_t *ret_all)
{
    char **k = NULL;
    comm_status status = whole_keys(s, keys, count, &k);
    if (status == COMM_OK)
        status = inner(s)->kind->check(inner(s), (const char *const *)k, count, wait, ret_all);
    free_keys(k, count);
    return status;
}

static comm_status view_remove(comm_store *s, const char *key, const struct store_wait *wait, int32_t *ret_existed)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = inner(s)->kind->remove(inner(s), k, wait, ret_existed);
    free(k);
    return status;
}

static comm_status view_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    char **k = NULL;
    comm_status status = whole_keys(s, keys, count, &k);
    if (status == COMM_OK)
        status = store_call_wait(inner(s), (const char *const *)k, count, wait);
    free_keys(k, count);
    return status;
}

static comm_status view_multi_get(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                                  void **data, size_t *bytes)
{
    char **k = NULL;
    comm_status status = whole_keys(s, keys, count, &k);
    if (status == COMM_OK)
        status = store_call_multi_get(inner(s), (const char *const *)k, count, wait, data, bytes);
    free_keys(k, count);
    return status;
}

static comm_status view_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                                  const size_t *bytes, const struct store_wait *wait)
{
    char **k = NULL;
    comm_status status = whole_keys(s, keys, count, &k);
    if (status == COMM_OK)
        status = store_call_multi_set(inner(s), (const char *const *)k, count, data, bytes, wait);
    free_keys(k, count);
    return status;
}

static comm_status view_append(comm_store *s, const char *key, const void *data, size_t bytes,
                               const struct store_wait *wait)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = store_call_append(inner(s), k, data, bytes, wait);
    free(k);
    return status;
}

static comm_status view_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count)
{
    return store_call_num_keys(inner(s), wait, ret_count);
}

static comm_status view_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count)
{
    const char *prefix = ((struct view *)s)->prefix;
    size_t length = strlen(prefix), count = 0, kept = 0;
    char **keys;
    comm_status status = store_call_list_keys(inner(s), wait, &keys, &count);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        if (strncmp(keys[i], prefix, length) == 0)
            keys[kept++] = keys[i] + length;
    *ret_keys = keys;
    *ret_count = kept;
    return COMM_OK;
}

static comm_status view_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                                   const struct store_wait *wait)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = store_call_queue_push(inner(s), k, data, bytes, wait);
    free(k);
    return status;
}

static comm_status view_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                  void **ret_data, size_t *ret_bytes)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = store_call_queue_pop(inner(s), k, wait, may_wait, ret_data, ret_bytes);
    free(k);
    return status;
}

static comm_status view_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = store_call_queue_len(inner(s), k, wait, ret_count);
    free(k);
    return status;
}

static comm_status view_barrier(comm_store *s, const char *key, int32_t world_size, const struct store_wait *wait)
{
    char *k = NULL;
    comm_status status = whole(s, key, &k);
    if (status == COMM_OK)
        status = store_call_barrier(inner(s), k, world_size, wait);
    free(k);
    return status;
}

static comm_status view_clone(comm_store *s, const struct store_wait *wait, comm_store **ret_store)
{
    struct view *v = (struct view *)s;
    comm_store *other;
    comm_status status = v->inner->kind->clone(v->inner, wait, &other);
    if (status != COMM_OK)
        return status;
    status = store_view(v->plain ? NULL : v->prefix, atomic_load(&s->timeout_ms), other, ret_store);
    store_release(other);
    return status;
}

static void view_interrupt(comm_store *s)
{
    if (inner(s)->kind->interrupt)
        inner(s)->kind->interrupt(inner(s));
}

static void view_close(comm_store *s)
{
    struct view *v = (struct view *)s;
    if (v->inner)
        store_release(v->inner);
    free(v->prefix);
    store_finish(s);
    free(v);
}

static const struct store_kind view_kind = {
    .name = "prefix",
    .set = view_set,
    .get = view_get,
    .add = view_add,
    .compare_set = view_compare_set,
    .check = view_check,
    .remove = view_remove,
    .wait = view_wait,
    .append = view_append,
    .num_keys = view_num_keys,
    .list_keys = view_list_keys,
    .multi_get = view_multi_get,
    .multi_set = view_multi_set,
    .queue_push = view_queue_push,
    .queue_pop = view_queue_pop,
    .queue_len = view_queue_len,
    .barrier = view_barrier,
    .clone = view_clone,
    .interrupt = view_interrupt,
    .close = view_close,
};

comm_status store_view(const char *prefix, int64_t timeout_ms, comm_store *store, comm_store **ret_store)
{
    struct view *v = calloc(1, sizeof *v);
    if (!v)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a view of %s", store->url);
    v->kind = view_kind;
    v->plain = !prefix;
    if (v->plain)
        v->kind.name = store->kind->name; /* lives as long as the store, which we hold */
    v->prefix = strdup(prefix ? prefix : "");
    comm_status status = store_init(&v->base, &v->kind, store->url, store->host, store->port, timeout_ms);
    if (status == COMM_OK && !v->prefix)
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a view of %s", store->url);
    if (status != COMM_OK) {
        view_close(&v->base);
        return status;
    }
    store_ref(store);
    v->inner = store;
    *ret_store = &v->base;
    return COMM_OK;
}

comm_status comm_store_prefix(const char *prefix, comm_store *store, comm_store **ret_store)
{
    if (!prefix || !ret_store)
        return comm__fail(COMM_ERR_INVALID, "comm_store_prefix: %s is NULL", prefix ? "ret_store" : "the prefix");
    size_t bytes = strlen(prefix);
    if (bytes + 1 >= LIMIT_STORE_KEY_BYTES)
        return comm__fail(COMM_ERR_INVALID, "comm_store_prefix: a prefix of %zu B; with the key the longest is %zu B",
                          bytes, LIMIT_STORE_KEY_BYTES);
    comm_status status = store_enter(store, "comm_store_prefix");
    if (status != COMM_OK)
        return status;
    char *with_slash = malloc(bytes + 2);
    if (with_slash) {
        snprintf(with_slash, bytes + 2, "%s/", prefix);
        status = store_view(with_slash, atomic_load(&store->timeout_ms), store, ret_store);
        if (status == COMM_OK)
            atomic_store(&(*ret_store)->deadline_ns, atomic_load(&store->deadline_ns));
    } else {
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a prefix");
    }
    free(with_slash);
    return store_leave(store, status);
}

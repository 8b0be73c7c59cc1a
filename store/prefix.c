/* A view of another store: keys get "prefix/" in front, or stay as they are (a second handle). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "store.h"
#include "view.h"

struct view {
    comm_store base;
    comm_store *inner;
    char *prefix; /* "name/", or "" */
};

/* prefix + key; NULL without memory. */
static char *whole(const comm_store *s, const char *key)
{
    const struct view *v = (const struct view *)s;
    size_t a = strlen(v->prefix), b = strlen(key);
    char *text = malloc(a + b + 1);
    if (text) {
        memcpy(text, v->prefix, a);
        memcpy(text + a, key, b + 1);
    } else {
        comm__fail(COMM_ERR_NO_MEMORY, "no memory for a key");
    }
    return text;
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

static char **whole_keys(const comm_store *s, const char *const *keys, size_t count)
{
    char **all = calloc(count ? count : 1, sizeof *all);
    for (size_t i = 0; all && i < count; i++)
        if (!(all[i] = whole(s, keys[i]))) {
            free_keys(all, i);
            return NULL;
        }
    if (!all)
        comm__fail(COMM_ERR_NO_MEMORY, "no memory for %zu keys", count);
    return all;
}

static comm_status view_set(comm_store *s, const char *key, const void *data, size_t bytes)
{
    char *k = whole(s, key);
    comm_status status = k ? inner(s)->kind->set(inner(s), k, data, bytes) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    char *k = whole(s, key);
    comm_status status = k ? inner(s)->kind->get(inner(s), k, wait, ret_data, ret_bytes) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_add(comm_store *s, const char *key, int64_t amount, int64_t *ret_value)
{
    char *k = whole(s, key);
    comm_status status = k ? inner(s)->kind->add(inner(s), k, amount, ret_value) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes)
{
    char *k = whole(s, key);
    comm_status status = k ? inner(s)->kind->compare_set(inner(s), k, expected, expected_bytes, desired,
                                                         desired_bytes, ret_data, ret_bytes)
                           : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_check(comm_store *s, const char *const *keys, size_t count, int32_t *ret_all)
{
    char **k = whole_keys(s, keys, count);
    comm_status status =
        k ? inner(s)->kind->check(inner(s), (const char *const *)k, count, ret_all) : COMM_ERR_NO_MEMORY;
    free_keys(k, count);
    return status;
}

static comm_status view_remove(comm_store *s, const char *key, int32_t *ret_existed)
{
    char *k = whole(s, key);
    comm_status status = k ? inner(s)->kind->remove(inner(s), k, ret_existed) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    char **k = whole_keys(s, keys, count);
    comm_status status = k ? store_call_wait(inner(s), (const char *const *)k, count, wait) : COMM_ERR_NO_MEMORY;
    free_keys(k, count);
    return status;
}

static comm_status view_append(comm_store *s, const char *key, const void *data, size_t bytes)
{
    char *k = whole(s, key);
    comm_status status = k ? store_call_append(inner(s), k, data, bytes) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_num_keys(comm_store *s, int64_t *ret_count)
{
    return store_call_num_keys(inner(s), ret_count);
}

static comm_status view_list_keys(comm_store *s, char ***ret_keys, size_t *ret_count)
{
    const char *prefix = ((struct view *)s)->prefix;
    size_t length = strlen(prefix), count = 0, kept = 0;
    char **keys;
    comm_status status = store_call_list_keys(inner(s), &keys, &count);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        if (strncmp(keys[i], prefix, length) == 0)
            keys[kept++] = keys[i] + length;
    *ret_keys = keys;
    *ret_count = kept;
    return COMM_OK;
}

static comm_status view_queue_push(comm_store *s, const char *key, const void *data, size_t bytes)
{
    char *k = whole(s, key);
    comm_status status = k ? store_call_queue_push(inner(s), k, data, bytes) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                  void **ret_data, size_t *ret_bytes)
{
    char *k = whole(s, key);
    comm_status status =
        k ? store_call_queue_pop(inner(s), k, wait, may_wait, ret_data, ret_bytes) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_queue_len(comm_store *s, const char *key, int64_t *ret_count)
{
    char *k = whole(s, key);
    comm_status status = k ? store_call_queue_len(inner(s), k, ret_count) : COMM_ERR_NO_MEMORY;
    free(k);
    return status;
}

static comm_status view_clone(comm_store *s, comm_store **ret_store)
{
    struct view *v = (struct view *)s;
    comm_store *other;
    comm_status status = v->inner->kind->clone(v->inner, &other);
    if (status != COMM_OK)
        return status;
    status = store_view(s->kind->name, v->prefix, s->url, other, ret_store);
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

#define VIEW_FUNCTIONS                                                                                              \
    .set = view_set, .get = view_get, .add = view_add, .compare_set = view_compare_set, .check = view_check,        \
    .remove = view_remove, .wait = view_wait, .append = view_append, .num_keys = view_num_keys,                     \
    .list_keys = view_list_keys, .queue_push = view_queue_push, .queue_pop = view_queue_pop,                        \
    .queue_len = view_queue_len, .clone = view_clone, .interrupt = view_interrupt, .close = view_close

static const struct store_kind prefix_kind = { .name = "prefix", VIEW_FUNCTIONS };
static const struct store_kind hash_view_kind = { .name = "hash", VIEW_FUNCTIONS };
static const struct store_kind file_view_kind = { .name = "file", VIEW_FUNCTIONS };
#undef VIEW_FUNCTIONS

comm_status store_view(const char *kind, const char *prefix, const char *url, comm_store *store,
                       comm_store **ret_store)
{
    const struct store_kind *kinds[] = { &hash_view_kind, &file_view_kind, &prefix_kind };
    const struct store_kind *chosen = &prefix_kind;
    for (size_t i = 0; i < 3; i++)
        if (strcmp(kinds[i]->name, kind) == 0)
            chosen = kinds[i];
    struct view *v = calloc(1, sizeof *v);
    if (!v)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a view of %s", url);
    comm_status status =
        store_init(&v->base, chosen, url, store->host ? store->host : "", store->port, atomic_load(&store->timeout_ms));
    v->prefix = strdup(prefix);
    if (status == COMM_OK && !v->prefix)
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a view of %s", url);
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
    if (!prefix || !store || !ret_store)
        return comm__fail(COMM_ERR_INVALID, "comm_store_prefix: the prefix, the store or ret_store is NULL");
    size_t room = strlen(prefix) + 2;
    char *with_slash = malloc(room);
    if (!with_slash)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a prefix");
    snprintf(with_slash, room, "%s/", prefix);
    comm_status status = store_view("prefix", with_slash, store->url, store, ret_store);
    free(with_slash);
    return status;
}

/* Collectives over a store: slow, but they need nothing else, so they work before there is a group and where one has
 * ended. Made from the calls of comm/store.h. Each rank's part lies at "KEY/<rank>"; "KEY/<rank>/uses" is counted up
 * when the rank comes, for a key that is used again would give the parts of the first time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "store.h"

enum { OUR_KEY_BYTES = 1 + 10 + 5 }; /* "/<rank>/uses" */

struct call {
    const char *name;
    comm_store *store;
    const char *key;
    int32_t rank, world_size;
    struct store_wait wait;
};

/* On success the handle cannot be closed under us; `finish` must follow. */
static comm_status begin(struct call *c, const char *name, comm_store *store, const char *key, int32_t rank,
                         int32_t world_size, int64_t timeout_ms)
{
    *c = (struct call){ .name = name, .store = store, .key = key, .rank = rank, .world_size = world_size };
    if (!store || !key || !*key)
        return comm__fail(COMM_ERR_INVALID, "%s: %s", name, store ? "the key is NULL or empty" : "the store is NULL");
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': rank %d of a world of %d", name, key, rank, world_size);
    if (timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': a timeout of %" PRId64 " ms", name, key, timeout_ms);
    if (strlen(key) + OUR_KEY_BYTES > LIMIT_STORE_KEY_BYTES)
        return comm__fail(COMM_ERR_INVALID, "%s: a key of %zu B; the longest is %zu B here", name, strlen(key),
                          LIMIT_STORE_KEY_BYTES - OUR_KEY_BYTES);
    comm_status status = store_enter(store, name);
    c->wait = store_wait_of(store, timeout_ms);
    return status;
}

static comm_status finish(const struct call *c, comm_status status)
{
    return store_leave(c->store, status);
}

static comm_status check_results(const struct call *c, const void *data, const void *bytes)
{
    return data && bytes ? COMM_OK
                         : comm__fail(COMM_ERR_INVALID, "%s '%s': a pointer for the results is NULL", c->name, c->key);
}

static comm_status check_root(const struct call *c, int32_t root)
{
    if (root < 0 || root >= c->world_size)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': root %d; the ranks are 0 to %d", c->name, c->key, root,
                          c->world_size - 1);
    return COMM_OK;
}

static comm_status no_memory(const struct call *c)
{
    return comm__fail(COMM_ERR_NO_MEMORY, "%s '%s' of %d ranks", c->name, c->key, c->world_size);
}

/* ---- Keys ---- */

/* "KEY/<rank>" for the ranks first .. first + count - 1: pointers and texts in one block. */
static char **keys_create(const struct call *c, int32_t first, int32_t count)
{
    size_t capacity = strlen(c->key) + 13;
    char **keys = malloc((size_t)count * (sizeof *keys + capacity));
    for (int32_t i = 0; keys && i < count; i++) {
        keys[i] = (char *)(keys + count) + (size_t)i * capacity;
        snprintf(keys[i], capacity, "%s/%d", c->key, first + i);
    }
    return keys;
}

/* The first thing that is written, when all arguments are right. */
static comm_status join(const struct call *c)
{
    size_t capacity = strlen(c->key) + OUR_KEY_BYTES + 1;
    char *uses = malloc(capacity);
    int64_t times = 0;
    if (!uses)
        return no_memory(c);
    snprintf(uses, capacity, "%s/%d/uses", c->key, c->rank);
    comm_status status = c->store->kind->add(c->store, uses, 1, &c->wait, &times);
    free(uses);
    if (status == COMM_OK && times > 1)
        status =
            comm__fail(COMM_ERR_INVALID,
                       "%s '%s': rank %d of %d has used this key already, or another process claims to be that rank; "
                       "each use needs a fresh key",
                       c->name, c->key, c->rank, c->world_size);
    return status;
}

static comm_status put(const struct call *c, int32_t rank, const void *data, size_t bytes)
{
    char **key = keys_create(c, rank, 1);
    comm_status status = key ? store_check_value(c->name, c->key, data, bytes) : no_memory(c);
    if (status == COMM_OK)
        status = c->store->kind->set(c->store, key[0], data, bytes, &c->wait);
    free(key);
    return status;
}

/* After a timeout: is it the other ranks that did not come, or the store that does not answer? 0: the store. */
static int is_there(const struct call *c, const char *key, int32_t *ret_there)
{
    char text[COMM_ERROR_BYTES];
    const comm_status first = COMM_ERR_TIMEOUT;
    struct store_wait grace = store_grace(&c->wait);
    snprintf(text, sizeof text, "%s", comm_last_error());
    comm_status status = c->store->kind->check(c->store, &key, 1, &grace, ret_there);
    if (status != COMM_OK)
        comm__fail(first, "%s", text); /* it has said so */
    return status == COMM_OK;
}

/* What `from` has put for `rank`. */
static comm_status take(const struct call *c, int32_t rank, int32_t from, void **ret_data, size_t *ret_bytes)
{
    char **key = keys_create(c, rank, 1);
    comm_status status = key ? c->store->kind->get(c->store, key[0], &c->wait, ret_data, ret_bytes) : no_memory(c);
    int32_t there = 1;
    if (status == COMM_ERR_TIMEOUT && is_there(c, key[0], &there) && !there)
        comm__fail(status, "%s '%s' in %s timed out after %lld ms: the root, rank %d of %d, has not come", c->name,
                   c->key, c->store->url, store_wait_ms(&c->wait), from, c->world_size);
    free(key);
    return status;
}

/* The store's text names keys; say which ranks they are. */
static comm_status fail_missing(const struct call *c, char *const *keys)
{
    char missing[256] = "";
    size_t used = 0;
    int32_t came = 0;
    for (int32_t r = 0; r < c->world_size; r++) {
        int32_t there = 0;
        if (!is_there(c, keys[r], &there))
            return COMM_ERR_TIMEOUT;
        if (there)
            came++;
        else if (used < sizeof missing - 16)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", r);
        else if (missing[used - 1] != '.')
            used += (size_t)snprintf(missing + used, sizeof missing - used, " ...");
    }
    return comm__fail(COMM_ERR_TIMEOUT, "%s '%s' in %s timed out after %lld ms: %d of %d ranks have come, missing: %s",
                      c->name, c->key, c->store->url, store_wait_ms(&c->wait), came, c->world_size,
                      used ? missing : "none");
}

/* ---- All parts, one after the other ---- */

static comm_status join_parts(const struct call *c, void *const *parts, const size_t *bytes, void **ret_data)
{
    size_t total = 0, at = 0;
    for (int32_t r = 0; r < c->world_size; r++)
        if (__builtin_add_overflow(total, bytes[r], &total))
            return no_memory(c);
    char *data = total < PTRDIFF_MAX ? malloc(total + 1) : NULL;
    if (!data)
        return no_memory(c);
    for (int32_t r = 0; r < c->world_size; at += bytes[r++])
        if (bytes[r])
            memcpy(data + at, parts[r], bytes[r]);
    data[total] = '\0';
    *ret_data = data;
    return COMM_OK;
}

static comm_status take_all(const struct call *c, void **ret_data, size_t **ret_bytes)
{
    size_t count = (size_t)c->world_size;
    char **keys = keys_create(c, 0, c->world_size);
    void **parts = calloc(count, sizeof *parts);
    size_t *bytes = calloc(count, sizeof *bytes);
    comm_status status = COMM_OK;
    int have_parts = 0;
    if (!keys || !parts || !bytes)
        status = no_memory(c);
    if (status == COMM_OK)
        status = store_call_multi_get(c->store, (const char *const *)keys, count, &c->wait, parts, bytes);
    have_parts = status == COMM_OK;
    if (status == COMM_ERR_TIMEOUT)
        status = fail_missing(c, keys);
    if (status == COMM_OK)
        status = join_parts(c, parts, bytes, ret_data);
    for (size_t r = 0; have_parts && r < count; r++)
        comm_free(parts[r]);
    if (status == COMM_OK)
        *ret_bytes = bytes;
    else
        free(bytes);
    free(parts);
    free(keys);
    return status;
}

/* ---- The calls ---- */

comm_status comm_store_broadcast(comm_store *store, const char *key, const void *data, size_t bytes, int32_t root,
                                 int32_t rank, int32_t world_size, int64_t timeout_ms, void **ret_data,
                                 size_t *ret_bytes)
{
    struct call c;
    comm_status status = begin(&c, "comm_store_broadcast", store, key, rank, world_size, timeout_ms);
    if (status != COMM_OK)
        return status;
    status = check_root(&c, root);
    if (status == COMM_OK)
        status = check_results(&c, ret_data, ret_bytes);
    if (status == COMM_OK)
        status = join(&c);
    if (status == COMM_OK && rank == root)
        status = put(&c, root, data, bytes);
    return finish(&c, status == COMM_OK ? take(&c, root, root, ret_data, ret_bytes) : status);
}

comm_status comm_store_gather(comm_store *store, const char *key, const void *data, size_t bytes, int32_t root,
                              int32_t rank, int32_t world_size, int64_t timeout_ms, void **ret_data, size_t **ret_bytes)
{
    struct call c;
    comm_status status = begin(&c, "comm_store_gather", store, key, rank, world_size, timeout_ms);
    if (status != COMM_OK)
        return status;
    status = check_root(&c, root);
    if (status == COMM_OK)
        status = check_results(&c, ret_data, ret_bytes);
    if (status == COMM_OK)
        status = join(&c);
    if (status == COMM_OK)
        status = put(&c, rank, data, bytes);
    if (status == COMM_OK && rank == root) {
        status = take_all(&c, ret_data, ret_bytes);
    } else if (status == COMM_OK) {
        *ret_data = NULL;
        *ret_bytes = NULL;
    }
    return finish(&c, status);
}

static comm_status put_each(const struct call *c, const void *const *data, const size_t *bytes)
{
    char **keys = keys_create(c, 0, c->world_size);
    comm_status status = keys ? COMM_OK : no_memory(c);
    for (int32_t r = 0; r < c->world_size && status == COMM_OK; r++)
        status = store_check_value(c->name, c->key, data[r], bytes[r]);
    if (status == COMM_OK)
        status = store_call_multi_set(c->store, (const char *const *)keys, (size_t)c->world_size, data, bytes,
                                      &c->wait);
    free(keys);
    return status;
}

comm_status comm_store_scatter(comm_store *store, const char *key, const void *const *data, const size_t *bytes,
                               int32_t root, int32_t rank, int32_t world_size, int64_t timeout_ms, void **ret_data,
                               size_t *ret_bytes)
{
    struct call c;
    comm_status status = begin(&c, "comm_store_scatter", store, key, rank, world_size, timeout_ms);
    if (status != COMM_OK)
        return status;
    status = check_root(&c, root);
    if (status == COMM_OK)
        status = check_results(&c, ret_data, ret_bytes);
    if (status == COMM_OK && rank == root && (!data || !bytes))
        status = comm__fail(COMM_ERR_INVALID, "%s '%s': data or bytes of the root is NULL", c.name, key);
    if (status == COMM_OK)
        status = join(&c);
    if (status == COMM_OK && rank == root)
        status = put_each(&c, data, bytes);
    return finish(&c, status == COMM_OK ? take(&c, rank, root, ret_data, ret_bytes) : status);
}

comm_status comm_store_all_gather(comm_store *store, const char *key, const void *data, size_t bytes, int32_t rank,
                                  int32_t world_size, int64_t timeout_ms, void **ret_data, size_t **ret_bytes)
{
    struct call c;
    comm_status status = begin(&c, "comm_store_all_gather", store, key, rank, world_size, timeout_ms);
    if (status != COMM_OK)
        return status;
    status = check_results(&c, ret_data, ret_bytes);
    if (status == COMM_OK)
        status = join(&c);
    if (status == COMM_OK)
        status = put(&c, rank, data, bytes);
    return finish(&c, status == COMM_OK ? take_all(&c, ret_data, ret_bytes) : status);
}

/* Numbers, each with a blank behind it. Wraps around, as the integers of comm_all_reduce do. */
static comm_status add_parts(const struct call *c, const char *data, const size_t *bytes, int64_t *ret_sum)
{
    uint64_t sum = 0;
    for (int32_t r = 0; r < c->world_size; r++) {
        char *end;
        sum += (uint64_t)strtoll(data, &end, 10);
        if (end == data || *end != ' ')
            return comm__fail(COMM_ERR_PROTOCOL, "%s '%s': rank %d did not leave a number there", c->name, c->key, r);
        data += bytes[r];
    }
    *ret_sum = (int64_t)sum;
    return COMM_OK;
}

/* The parts are kept, not only their sum, so that a timeout can name the ranks. */
comm_status comm_store_all_sum(comm_store *store, const char *key, int64_t value, int32_t rank, int32_t world_size,
                               int64_t timeout_ms, int64_t *ret_sum)
{
    struct call c;
    char text[24];
    void *data = NULL;
    size_t *bytes = NULL;
    comm_status status = begin(&c, "comm_store_all_sum", store, key, rank, world_size, timeout_ms);
    if (status != COMM_OK)
        return status;
    status = check_results(&c, ret_sum, ret_sum);
    if (status == COMM_OK)
        status = join(&c);
    if (status == COMM_OK)
        status = put(&c, rank, text, (size_t)snprintf(text, sizeof text, "%" PRId64 " ", value));
    if (status == COMM_OK)
        status = take_all(&c, &data, &bytes);
    if (status == COMM_OK)
        status = add_parts(&c, data, bytes, ret_sum);
    comm_free(data);
    comm_free(bytes);
    return finish(&c, status);
}

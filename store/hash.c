/* The hash store: a table in this process, shared by all callers that open the same name. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/monotonic_cond.h"
#include "store.h"
#include "table.h"
#include "view.h"

struct hash_store {
    comm_store base;
    struct hash_store *next; /* guarded by names_lock */
    char *name;              /* "" is not shared */
    pthread_mutex_t lock;    /* guards the table */
    pthread_cond_t changed;
    struct table *table;
};

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hash_store *names;

static struct table_bytes text(const char *key)
{
    return (struct table_bytes){ key, strlen(key) };
}

static struct hash_store *enter(comm_store *s)
{
    struct hash_store *h = (struct hash_store *)s;
    pthread_mutex_lock(&h->lock);
    return h;
}

/* After a change: all waiting threads look again. */
static comm_status leave(struct hash_store *h, comm_status status)
{
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return status;
}

/* Sleep until something changes; TIMEOUT or ABORTED (without a text) end it. */
static comm_status sleep_until(struct hash_store *h, const struct store_wait *wait)
{
    if (store_wait_closed(wait))
        return COMM_ERR_ABORTED;
    if (wait->deadline_ns == DEADLINE_NEVER) {
        pthread_cond_wait(&h->changed, &h->lock);
        return COMM_OK;
    }
    if (clock_now_ns() >= wait->deadline_ns)
        return COMM_ERR_TIMEOUT;
    struct timespec until = { wait->deadline_ns / 1000000000, wait->deadline_ns % 1000000000 };
    pthread_cond_timedwait(&h->changed, &h->lock, &until);
    return COMM_OK;
}

static comm_status hash_set(comm_store *s, const char *key, const void *data, size_t bytes,
                            const struct store_wait *wait)
{
    (void)wait; /* here and below: no thread holds the lock for longer than a moment */
    struct hash_store *h = enter(s);
    return leave(h, table_set(h->table, text(key), (struct table_bytes){ data, bytes }));
}

static comm_status hash_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    struct hash_store *h = enter(s);
    struct table_bytes value;
    comm_status status = COMM_OK;
    while (!table_get(h->table, text(key), &value) && status == COMM_OK)
        status = sleep_until(h, wait);
    if (status == COMM_OK)
        status = table_copy(value, ret_data, ret_bytes);
    pthread_mutex_unlock(&h->lock);
    if (status == COMM_ERR_ABORTED)
        return store_fail_closed(wait);
    return status == COMM_ERR_TIMEOUT ? store_fail_timeout(wait, &key, 1, NULL) : status;
}

static comm_status hash_add(comm_store *s, const char *key, int64_t amount, const struct store_wait *wait,
                            int64_t *ret_value)
{
    (void)wait;
    struct hash_store *h = enter(s);
    return leave(h, table_add(h->table, text(key), amount, ret_value));
}

static comm_status hash_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, const struct store_wait *wait,
                                    void **ret_data, size_t *ret_bytes)
{
    (void)wait;
    struct hash_store *h = enter(s);
    struct table_bytes value;
    comm_status status = table_compare_set(h->table, text(key), (struct table_bytes){ expected, expected_bytes },
                                           (struct table_bytes){ desired, desired_bytes }, &value, NULL);
    if (status == COMM_OK)
        status = table_copy(value, ret_data, ret_bytes);
    return leave(h, status);
}

static int all_there(const struct hash_store *h, const char *const *keys, size_t count)
{
    size_t there = 0;
    while (there < count && table_get(h->table, text(keys[there]), NULL))
        there++;
    return there == count;
}

static comm_status hash_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    struct hash_store *h = enter(s);
    comm_status status = COMM_OK;
    while (status == COMM_OK && !all_there(h, keys, count))
        status = sleep_until(h, wait);
    pthread_mutex_unlock(&h->lock);
    if (status == COMM_ERR_ABORTED)
        return store_fail_closed(wait);
    return status == COMM_ERR_TIMEOUT ? store_fail_missing(s, keys, count, wait, NULL) : status;
}

static comm_status hash_check(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                              int32_t *ret_all)
{
    (void)wait;
    struct hash_store *h = enter(s);
    *ret_all = all_there(h, keys, count);
    pthread_mutex_unlock(&h->lock);
    return COMM_OK;
}

static comm_status hash_remove(comm_store *s, const char *key, const struct store_wait *wait, int32_t *ret_existed)
{
    (void)wait;
    struct hash_store *h = enter(s);
    *ret_existed = table_remove(h->table, text(key));
    pthread_mutex_unlock(&h->lock);
    return COMM_OK;
}

static comm_status hash_append(comm_store *s, const char *key, const void *data, size_t bytes,
                               const struct store_wait *wait)
{
    (void)wait;
    struct hash_store *h = enter(s);
    return leave(h, table_append(h->table, text(key), (struct table_bytes){ data, bytes }));
}

static comm_status hash_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count)
{
    (void)wait;
    struct hash_store *h = enter(s);
    *ret_count = (int64_t)table_count(h->table);
    pthread_mutex_unlock(&h->lock);
    return COMM_OK;
}

static comm_status hash_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                                   const struct store_wait *wait)
{
    (void)wait;
    struct hash_store *h = enter(s);
    return leave(h, table_queue_push(h->table, text(key), (struct table_bytes){ data, bytes }));
}

static comm_status hash_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                  void **ret_data, size_t *ret_bytes)
{
    struct hash_store *h = enter(s);
    comm_status status = COMM_OK;
    while (status == COMM_OK && !table_queue_pop(h->table, text(key), ret_data, ret_bytes))
        status = may_wait ? sleep_until(h, wait) : COMM_ERR_NOT_FOUND;
    pthread_mutex_unlock(&h->lock);
    if (status == COMM_ERR_NOT_FOUND)
        return comm__fail(status, "queue_pop: the queue '%s' is empty", key);
    if (status == COMM_ERR_ABORTED)
        return store_fail_closed(wait);
    return status == COMM_ERR_TIMEOUT ? store_fail_queue_timeout(wait, key, NULL) : status;
}

static comm_status hash_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count)
{
    (void)wait;
    struct hash_store *h = enter(s);
    *ret_count = (int64_t)table_queue_len(h->table, text(key));
    pthread_mutex_unlock(&h->lock);
    return COMM_OK;
}

static comm_status hash_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count)
{
    (void)wait;
    struct hash_store *h = enter(s);
    comm_status status = table_list(h->table, ret_keys, ret_count);
    pthread_mutex_unlock(&h->lock);
    return status;
}

static comm_status hash_clone(comm_store *s, const struct store_wait *wait, comm_store **ret_store)
{
    (void)wait;
    store_ref(s); /* every handle is a view of its own already */
    *ret_store = s;
    return COMM_OK;
}

static void hash_interrupt(comm_store *s)
{
    leave(enter(s), COMM_OK);
}

static void hash_destroy(struct hash_store *h)
{
    table_destroy(h->table);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    free(h->name);
    store_finish(&h->base);
    free(h);
}

static void hash_close(comm_store *s)
{
    struct hash_store *h = (struct hash_store *)s;
    pthread_mutex_lock(&names_lock);
    struct hash_store **at = &names;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    pthread_mutex_unlock(&names_lock);
    hash_destroy(h);
}

static const struct store_kind hash_kind = {
    .name = "hash",
    .set = hash_set,
    .get = hash_get,
    .add = hash_add,
    .compare_set = hash_compare_set,
    .check = hash_check,
    .remove = hash_remove,
    .wait = hash_wait,
    .append = hash_append,
    .num_keys = hash_num_keys,
    .list_keys = hash_list_keys,
    .queue_push = hash_queue_push,
    .queue_pop = hash_queue_pop,
    .queue_len = hash_queue_len,
    .clone = hash_clone,
    .interrupt = hash_interrupt,
    .close = hash_close,
};

static comm_status hash_new(const char *url, const char *name, int64_t timeout_ms, struct hash_store **ret_store)
{
    struct hash_store *h = calloc(1, sizeof *h);
    if (!h)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store");
    pthread_mutex_init(&h->lock, NULL);
    monotonic_cond_init(&h->changed);
    comm_status status = store_init(&h->base, &hash_kind, url, "", -1, timeout_ms);
    if (status == COMM_OK)
        status = table_create(&h->table);
    if (status == COMM_OK && !(h->name = strdup(name)))
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store");
    if (status != COMM_OK) {
        hash_destroy(h);
        return status;
    }
    *ret_store = h;
    return COMM_OK;
}

/* The table of that name, with a reference; made if it is not there. names_lock is held, so that two threads that open
 * one name at the same moment get one table. A table whose last handle is being closed is passed over, and so is what
 * the parent of a fork() had: a copy, whose lock another thread may have held. */
static comm_status find_or_make(const char *url, const char *name, int64_t timeout_ms, struct hash_store **ret_store)
{
    for (struct hash_store *h = *name ? names : NULL; h; h = h->next)
        if (strcmp(h->name, name) == 0 && h->base.owner_pid == (int32_t)getpid() && store_try_ref(&h->base)) {
            *ret_store = h;
            return COMM_OK;
        }
    struct hash_store *h = NULL;
    comm_status status = hash_new(url, name, timeout_ms, &h);
    if (status != COMM_OK)
        return status;
    h->next = names;
    names = h;
    *ret_store = h;
    return COMM_OK;
}

comm_status store_hash_open(const char *url, const comm_store_options *options, comm_store **ret_store)
{
    struct hash_store *h = NULL;
    pthread_mutex_lock(&names_lock);
    comm_status status = find_or_make(url, url + strlen("hash://"), options->timeout_ms, &h);
    pthread_mutex_unlock(&names_lock);
    if (status != COMM_OK)
        return status;
    /* Every opener has a handle of its own for the shared table. */
    status = store_view(NULL, options->timeout_ms, &h->base, ret_store);
    store_release(&h->base);
    return status;
}

/* Stores, whatever their kind: arguments are checked here, references are kept here, and what a kind lacks is made from
 * the rest here. */
#include "store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"

static const int64_t DEFAULT_TIMEOUT_MS = 300000;

/* ---- Life ---- */

comm_status store_init(comm_store *s, const struct store_kind *kind, const char *url, const char *host, int32_t port,
                       int64_t timeout_ms)
{
    s->kind = kind;
    s->owner_pid = (int32_t)getpid();
    s->port = port;
    atomic_store(&s->references, 1);
    atomic_store(&s->timeout_ms, timeout_ms);
    s->host = strdup(host);
    s->url = strdup(url);
    return s->host && s->url ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "no memory for the store %s", url);
}

void store_finish(comm_store *s)
{
    free(s->host);
    free(s->url);
}

void store_ref(comm_store *s)
{
    atomic_fetch_add(&s->references, 1);
}

void store_release(comm_store *s)
{
    if (atomic_fetch_sub(&s->references, 1) == 1)
        s->kind->close(s);
}

static comm_status full_options(const comm_store_options *options, comm_store_options *ret_full)
{
    *ret_full = (comm_store_options)COMM_STORE_OPTIONS_INIT;
    if (options && options->struct_bytes == 0)
        return comm__fail(COMM_ERR_INVALID, "comm_store_open: options.struct_bytes is 0; begin with COMM_STORE_OPTIONS_INIT");
    if (options)
        memcpy(ret_full, options,
               options->struct_bytes < sizeof *ret_full ? options->struct_bytes : sizeof *ret_full);
    for (size_t i = sizeof *ret_full; options && i < options->struct_bytes; i++)
        if (((const char *)options)[i])
            return comm__fail(COMM_ERR_VERSION, "comm_store_open: options of a newer libcomm than this one (%s)", comm_version());
    if (ret_full->timeout_ms == 0)
        ret_full->timeout_ms = DEFAULT_TIMEOUT_MS;
    return COMM_OK;
}

comm_status comm_store_open(const char *url, const comm_store_options *options, comm_store **ret_store)
{
    static const struct {
        const char *scheme;
        comm_status (*open)(const char *url, const comm_store_options *options, comm_store **ret_store);
    } kinds[] = { { "tcp://", store_tcp_open }, { "file://", store_file_open }, { "hash://", store_hash_open } };
    comm_store_options full;
    if (!url || !ret_store)
        return comm__fail(COMM_ERR_INVALID, "comm_store_open: the URL or ret_store is NULL");
    comm_status status = full_options(options, &full);
    for (size_t i = 0; status == COMM_OK && i < sizeof kinds / sizeof *kinds; i++)
        if (strncasecmp(url, kinds[i].scheme, strlen(kinds[i].scheme)) == 0)
            return kinds[i].open(url, &full, ret_store);
    return status != COMM_OK ? status
                             : comm__fail(COMM_ERR_NOT_FOUND, "no store has the scheme of '%s'; there are tcp:// file:// hash://", url);
}

void comm_store_close(comm_store *s)
{
    if (!s)
        return;
    unsigned calls = atomic_fetch_or(&s->calls, STORE_CLOSED);
    while (s->owner_pid == (int32_t)getpid() && (calls = atomic_load(&s->calls)) > STORE_CLOSED) {
        /* Whoever is inside is woken until all have left. */
        struct timespec pause = { 0, 1000000 };
        if (s->kind->interrupt)
            s->kind->interrupt(s);
        nanosleep(&pause, NULL);
    }
    if (s->owner_pid == (int32_t)getpid())
        store_release(s);
}

/* ---- Entering ---- */

static comm_status check_key(const char *what, const char *key)
{
    if (!key || !*key)
        return comm__fail(COMM_ERR_INVALID, "%s: the key is %s", what, key ? "empty" : "NULL");
    if (strlen(key) > LIMIT_STORE_KEY_BYTES)
        return comm__fail(COMM_ERR_INVALID, "%s: a key of %zu B; the longest is %zu B", what, strlen(key),
                          LIMIT_STORE_KEY_BYTES);
    return COMM_OK;
}

static comm_status check_value(const char *what, const char *key, const void *data, size_t bytes)
{
    if (!data && bytes)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': %zu B at NULL", what, key, bytes);
    if (bytes > LIMIT_STORE_VALUE_BYTES)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': a value of %zu B; the longest is %zu B", what, key, bytes,
                          LIMIT_STORE_VALUE_BYTES);
    return COMM_OK;
}

static comm_status enter(comm_store *s, const char *what)
{
    if (!s)
        return comm__fail(COMM_ERR_INVALID, "%s: the store is NULL", what);
    if (s->owner_pid != (int32_t)getpid())
        return comm__fail(COMM_ERR_FORKED, "%s: the store %s was opened before fork(); open one in this process", what, s->url);
    unsigned calls = atomic_fetch_add(&s->calls, 2);
    if (calls & STORE_CLOSED) {
        atomic_fetch_sub(&s->calls, 2);
        return comm__fail(COMM_ERR_ABORTED, "%s: the store is being closed", what);
    }
    return COMM_OK;
}

static comm_status enter_key(comm_store *s, const char *what, const char *key)
{
    comm_status status = check_key(what, key);
    return status == COMM_OK ? enter(s, what) : status;
}

static comm_status enter_keys(comm_store *s, const char *what, const char *const *keys, size_t count)
{
    if (!keys && count)
        return comm__fail(COMM_ERR_INVALID, "%s: the keys are NULL", what);
    if (count > LIMIT_STORE_KEYS)
        return comm__fail(COMM_ERR_INVALID, "%s: %zu keys at once; at most %zu", what, count, LIMIT_STORE_KEYS);
    for (size_t i = 0; i < count; i++) {
        comm_status status = check_key(what, keys[i]);
        if (status != COMM_OK)
            return status;
    }
    return enter(s, what);
}

static comm_status leave(comm_store *s, comm_status status)
{
    atomic_fetch_sub(&s->calls, 2);
    return status;
}

static struct store_wait wait_of(comm_store *s, int64_t timeout_ms)
{
    if (timeout_ms == 0)
        timeout_ms = atomic_load(&s->timeout_ms);
    return (struct store_wait){ clock_now_ns(), clock_deadline_ns(timeout_ms), s };
}

/* ---- Texts ---- */

comm_status store_fail_closed(const struct store_wait *wait)
{
    return comm__fail(COMM_ERR_ABORTED, "waiting in %s: the store was closed by another thread", wait->handle->url);
}

comm_status store_fail_timeout(const struct store_wait *wait, const char *const *missing, size_t count,
                               const char *note)
{
    char names[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used + 40 < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%.60s'", i ? ", " : "", missing[i]);
    return comm__fail(COMM_ERR_TIMEOUT, "waiting in %s: %zu key%s did not appear within %lld ms: %s%s%s", wait->handle->url,
                      count, count == 1 ? "" : "s", (long long)((clock_now_ns() - wait->began_ns) / 1000000), names,
                      note ? "; " : "", note ? note : "");
}

/* ---- What stands in for what a kind lacks ---- */

static comm_status poll_for_keys(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    int64_t pause_ns = 500000;
    for (;;) {
        int32_t all = 0;
        comm_status status = s->kind->check(s, keys, count, &all);
        if (status != COMM_OK || all)
            return status;
        if (store_wait_closed(wait))
            return store_fail_closed(wait);
        if (clock_now_ns() >= wait->deadline_ns)
            break;
        struct timespec pause = { 0, pause_ns };
        nanosleep(&pause, NULL);
        pause_ns = pause_ns < 10000000 ? pause_ns * 2 : pause_ns;
    }
    const char *missing[16];
    size_t n = 0;
    for (size_t i = 0; i < count && n < 16; i++) {
        int32_t there = 0;
        if (s->kind->check(s, &keys[i], 1, &there) == COMM_OK && !there)
            missing[n++] = keys[i];
    }
    return store_fail_timeout(wait, missing, n, NULL);
}

comm_status store_call_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    if (count == 0)
        return COMM_OK;
    return s->kind->wait ? s->kind->wait(s, keys, count, wait) : poll_for_keys(s, keys, count, wait);
}

static comm_status append_by_compare(comm_store *s, const char *key, const void *data, size_t bytes)
{
    for (;;) {
        void *old = NULL, *now = NULL;
        size_t old_bytes = 0, now_bytes = 0;
        int32_t there = 0;
        struct store_wait at_once = { clock_now_ns(), clock_deadline_ns(1000), s };
        comm_status status = s->kind->check(s, &key, 1, &there);
        if (status == COMM_OK && there)
            status = s->kind->get(s, key, &at_once, &old, &old_bytes);
        char *joined = status == COMM_OK ? malloc(old_bytes + bytes + 1) : NULL;
        if (status == COMM_OK && !joined)
            status = comm__fail(COMM_ERR_NO_MEMORY, "append '%s': no memory", key);
        if (status == COMM_OK) {
            if (old_bytes)
                memcpy(joined, old, old_bytes);
            if (bytes)
                memcpy(joined + old_bytes, data, bytes);
            status = s->kind->compare_set(s, key, old, old_bytes, joined, old_bytes + bytes, &now, &now_bytes);
        }
        int done = status != COMM_OK || (now_bytes == old_bytes + bytes && (!now_bytes || memcmp(now, joined, now_bytes) == 0));
        free(old);
        free(now);
        free(joined);
        if (done)
            return status;
    }
}

comm_status store_call_append(comm_store *s, const char *key, const void *data, size_t bytes)
{
    comm_status status = s->kind->append ? s->kind->append(s, key, data, bytes) : COMM_ERR_UNSUPPORTED;
    return status == COMM_ERR_UNSUPPORTED ? append_by_compare(s, key, data, bytes) : status;
}

static comm_status lacks(const comm_store *s, const char *what)
{
    return comm__fail(COMM_ERR_UNSUPPORTED, "a store of kind '%s' has no %s", s->kind->name, what);
}

comm_status store_call_num_keys(comm_store *s, int64_t *ret_count)
{
    return s->kind->num_keys ? s->kind->num_keys(s, ret_count) : lacks(s, "num_keys");
}

comm_status store_call_list_keys(comm_store *s, char ***ret_keys, size_t *ret_count)
{
    return s->kind->list_keys ? s->kind->list_keys(s, ret_keys, ret_count) : lacks(s, "list_keys");
}

comm_status store_call_multi_get(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                                 void **data, size_t *bytes)
{
    if (s->kind->multi_get)
        return s->kind->multi_get(s, keys, count, wait, data, bytes);
    comm_status status = store_call_wait(s, keys, count, wait);
    size_t got = 0;
    while (status == COMM_OK && got < count) {
        status = s->kind->get(s, keys[got], wait, &data[got], &bytes[got]);
        got += status == COMM_OK;
    }
    while (status != COMM_OK && got > 0) {
        free(data[--got]);
        data[got] = NULL;
    }
    return status;
}

comm_status store_call_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                                 const size_t *bytes)
{
    if (s->kind->multi_set)
        return s->kind->multi_set(s, keys, count, data, bytes);
    comm_status status = COMM_OK;
    for (size_t i = 0; i < count && status == COMM_OK; i++)
        status = s->kind->set(s, keys[i], data[i], bytes[i]);
    return status;
}

comm_status store_call_queue_push(comm_store *s, const char *key, const void *data, size_t bytes)
{
    return s->kind->queue_push ? s->kind->queue_push(s, key, data, bytes) : lacks(s, "queues");
}

comm_status store_call_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                 void **ret_data, size_t *ret_bytes)
{
    return s->kind->queue_pop ? s->kind->queue_pop(s, key, wait, may_wait, ret_data, ret_bytes) : lacks(s, "queues");
}

comm_status store_call_queue_len(comm_store *s, const char *key, int64_t *ret_count)
{
    return s->kind->queue_len ? s->kind->queue_len(s, key, ret_count) : lacks(s, "queues");
}

comm_status store_call_barrier(comm_store *s, const char *key, int32_t world_size, const struct store_wait *wait)
{
    if (s->kind->barrier)
        return s->kind->barrier(s, key, world_size, wait);
    size_t room = strlen(key) + 16;
    char *all = malloc(room);
    if (!all)
        return comm__fail(COMM_ERR_NO_MEMORY, "barrier '%s': no memory", key);
    snprintf(all, room, "%s/all_came", key);
    int64_t came = 0;
    comm_status status = s->kind->add(s, key, 1, &came);
    if (status == COMM_OK && came >= world_size)
        status = s->kind->set(s, all, "1", 1);
    else if (status == COMM_OK)
        status = store_call_wait(s, (const char *const *)&all, 1, wait);
    free(all);
    if (status != COMM_ERR_TIMEOUT)
        return status;
    if (s->kind->add(s, key, 0, &came) != COMM_OK)
        came = -1;
    return comm__fail(COMM_ERR_TIMEOUT, "barrier '%s' in %s: %lld of %d came within %lld ms", key, wait->handle->url,
                      (long long)came, (int)world_size, (long long)((clock_now_ns() - wait->began_ns) / 1000000));
}

/* ---- The public calls ---- */

comm_status comm_store_clone(comm_store *s, comm_store **ret_store)
{
    comm_status status = enter(s, "comm_store_clone");
    return status == COMM_OK ? leave(s, s->kind->clone(s, ret_store)) : status;
}

const char *comm_store_kind(const comm_store *s)
{
    return s->kind->name;
}

const char *comm_store_url(const comm_store *s)
{
    return s->url;
}

const char *comm_store_host(const comm_store *s)
{
    return s->host;
}

int32_t comm_store_port(const comm_store *s)
{
    return s->port;
}

int64_t comm_store_timeout(const comm_store *s)
{
    return atomic_load(&s->timeout_ms);
}

comm_status comm_store_set_timeout(comm_store *s, int64_t timeout_ms)
{
    if (timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "comm_store_set_timeout: %lld ms", (long long)timeout_ms);
    atomic_store(&s->timeout_ms, timeout_ms ? timeout_ms : DEFAULT_TIMEOUT_MS);
    return COMM_OK;
}

comm_status comm_store_set(comm_store *s, const char *key, const void *data, size_t bytes)
{
    comm_status status = enter_key(s, "comm_store_set", key);
    if (status != COMM_OK)
        return status;
    status = check_value("comm_store_set", key, data, bytes);
    return leave(s, status == COMM_OK ? s->kind->set(s, key, data, bytes) : status);
}

comm_status comm_store_get(comm_store *s, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes)
{
    comm_status status = enter_key(s, "comm_store_get", key);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = wait_of(s, timeout_ms);
    size_t bytes;
    return leave(s, s->kind->get(s, key, &wait, ret_data, ret_bytes ? ret_bytes : &bytes));
}

comm_status comm_store_add(comm_store *s, const char *key, int64_t amount, int64_t *ret_value)
{
    comm_status status = enter_key(s, "comm_store_add", key);
    int64_t value;
    return status == COMM_OK ? leave(s, s->kind->add(s, key, amount, ret_value ? ret_value : &value)) : status;
}

comm_status comm_store_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                   const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes)
{
    comm_status status = enter_key(s, "comm_store_compare_set", key);
    if (status != COMM_OK)
        return status;
    status = check_value("comm_store_compare_set", key, desired, desired_bytes);
    if (status == COMM_OK)
        status = s->kind->compare_set(s, key, expected, expected_bytes, desired, desired_bytes, ret_data, ret_bytes);
    return leave(s, status);
}

comm_status comm_store_append(comm_store *s, const char *key, const void *data, size_t bytes)
{
    comm_status status = enter_key(s, "comm_store_append", key);
    if (status != COMM_OK)
        return status;
    status = check_value("comm_store_append", key, data, bytes);
    return leave(s, status == COMM_OK ? store_call_append(s, key, data, bytes) : status);
}

comm_status comm_store_check(comm_store *s, const char *const *keys, size_t count, int32_t *ret_all)
{
    comm_status status = enter_keys(s, "comm_store_check", keys, count);
    return status == COMM_OK ? leave(s, s->kind->check(s, keys, count, ret_all)) : status;
}

comm_status comm_store_wait(comm_store *s, const char *const *keys, size_t count, int64_t timeout_ms)
{
    comm_status status = enter_keys(s, "comm_store_wait", keys, count);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = wait_of(s, timeout_ms);
    return leave(s, store_call_wait(s, keys, count, &wait));
}

comm_status comm_store_delete(comm_store *s, const char *key, int32_t *ret_existed)
{
    comm_status status = enter_key(s, "comm_store_delete", key);
    return status == COMM_OK ? leave(s, s->kind->remove(s, key, ret_existed)) : status;
}

comm_status comm_store_num_keys(comm_store *s, int64_t *ret_count)
{
    comm_status status = enter(s, "comm_store_num_keys");
    return status == COMM_OK ? leave(s, store_call_num_keys(s, ret_count)) : status;
}

comm_status comm_store_list_keys(comm_store *s, char ***ret_keys, size_t *ret_count)
{
    comm_status status = enter(s, "comm_store_list_keys");
    return status == COMM_OK ? leave(s, store_call_list_keys(s, ret_keys, ret_count)) : status;
}

comm_status comm_store_multi_get(comm_store *s, const char *const *keys, size_t count, int64_t timeout_ms, void **data,
                                 size_t *bytes)
{
    comm_status status = enter_keys(s, "comm_store_multi_get", keys, count);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = wait_of(s, timeout_ms);
    return leave(s, store_call_multi_get(s, keys, count, &wait, data, bytes));
}

comm_status comm_store_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                                 const size_t *bytes)
{
    comm_status status = enter_keys(s, "comm_store_multi_set", keys, count);
    return status == COMM_OK ? leave(s, store_call_multi_set(s, keys, count, data, bytes)) : status;
}

comm_status comm_store_queue_push(comm_store *s, const char *key, const void *data, size_t bytes)
{
    comm_status status = enter_key(s, "comm_store_queue_push", key);
    return status == COMM_OK ? leave(s, store_call_queue_push(s, key, data, bytes)) : status;
}

comm_status comm_store_queue_pop(comm_store *s, const char *key, int64_t timeout_ms, void **ret_data,
                                 size_t *ret_bytes)
{
    comm_status status = enter_key(s, "comm_store_queue_pop", key);
    if (status != COMM_OK)
        return status;
    int32_t may_wait = timeout_ms != COMM_STORE_NO_WAIT;
    struct store_wait wait = wait_of(s, may_wait ? timeout_ms : 0);
    return leave(s, store_call_queue_pop(s, key, &wait, may_wait, ret_data, ret_bytes));
}

comm_status comm_store_queue_len(comm_store *s, const char *key, int64_t *ret_count)
{
    comm_status status = enter_key(s, "comm_store_queue_len", key);
    return status == COMM_OK ? leave(s, store_call_queue_len(s, key, ret_count)) : status;
}

comm_status comm_store_barrier(comm_store *s, const char *key, int32_t world_size, int64_t timeout_ms)
{
    if (world_size < 1)
        return comm__fail(COMM_ERR_INVALID, "comm_store_barrier '%s': a world of %d", key ? key : "", (int)world_size);
    comm_status status = enter_key(s, "comm_store_barrier", key);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = wait_of(s, timeout_ms);
    return leave(s, store_call_barrier(s, key, world_size, &wait));
}

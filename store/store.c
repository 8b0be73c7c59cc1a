/* Stores, whatever their kind: arguments are checked here, and references are kept here. */
#include "store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counter.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/deadline.h"

/* ---- Life ---- */

comm_status store_init(comm_store *s, const struct store_kind *kind, const char *url, const char *host, int32_t port,
                       int64_t timeout_ms)
{
    s->kind = kind;
    s->owner_pid = (int32_t)getpid();
    s->port = port;
    atomic_store(&s->references, 1);
    atomic_store(&s->timeout_ms, timeout_ms);
    atomic_store(&s->deadline_ns, DEADLINE_NEVER);
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

int store_try_ref(comm_store *s)
{
    int references = atomic_load(&s->references);
    while (references > 0 && !atomic_compare_exchange_weak(&s->references, &references, references + 1))
        ;
    return references > 0;
}

void store_release(comm_store *s)
{
    if (count_down(&s->references) == 0)
        s->kind->close(s);
}

static comm_status check_options(const comm_store_options *o)
{
    if (o->timeout_ms < COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "comm_store_open: options.timeout_ms is %lld; give milliseconds, 0 for 5 "
                          "minutes, or COMM_TIMEOUT_INFINITE", (long long)o->timeout_ms);
    if (o->world_size < 0)
        return comm__fail(COMM_ERR_INVALID, "comm_store_open: options.world_size is %d; give a number of processes, or "
                          "0 if it is not known", (int)o->world_size);
    if (o->reserved != 0)
        return comm__fail(COMM_ERR_INVALID, "comm_store_open: options.reserved is %d; it must be 0: begin with "
                          "COMM_STORE_OPTIONS_INIT", (int)o->reserved);
    return COMM_OK;
}

static comm_status full_options(const comm_store_options *options, comm_store_options *ret_full)
{
    *ret_full = (comm_store_options)COMM_STORE_OPTIONS_INIT;
    if (options && options->struct_bytes == 0)
        return comm__fail(COMM_ERR_INVALID,
                          "comm_store_open: options.struct_bytes is 0; begin with COMM_STORE_OPTIONS_INIT");
    if (options)
        memcpy(ret_full, options, options->struct_bytes < sizeof *ret_full ? options->struct_bytes : sizeof *ret_full);
    for (size_t i = sizeof *ret_full; options && i < options->struct_bytes; i++)
        if (((const char *)options)[i])
            return comm__fail(COMM_ERR_VERSION, "comm_store_open: options of a newer libcomm than this one (%s)",
                              comm_version());
    return check_options(ret_full);
}

static const struct {
    const char *scheme;
    comm_status (*open)(const char *url, const comm_store_options *options, comm_store **ret_store);
} kinds[] = {
    { "tcp://", store_tcp_open },
    { "file://", store_file_open },
    { "hash://", store_hash_open },
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

static comm_status fail_scheme(const char *url)
{
    char schemes[256];
    size_t used = 0;
    for (size_t i = 0; i < KIND_COUNT && used < sizeof schemes; i++)
        used += (size_t)snprintf(schemes + used, sizeof schemes - used, " %s", kinds[i].scheme);
    return comm__fail(COMM_ERR_NOT_FOUND, "no store has the scheme of '%s'; there are%s", url, schemes);
}

comm_status comm_store_open(const char *url, const comm_store_options *options, comm_store **ret_store)
{
    comm_store_options full;
    if (!url || !ret_store)
        return comm__fail(COMM_ERR_INVALID, "comm_store_open: the URL or ret_store is NULL");
    comm_status status = full_options(options, &full);
    if (full.timeout_ms == 0)
        full.timeout_ms = STORE_TIMEOUT_MS;
    for (size_t i = 0; status == COMM_OK && i < KIND_COUNT; i++)
        if (strncasecmp(url, kinds[i].scheme, strlen(kinds[i].scheme)) == 0)
            return kinds[i].open(url, &full, ret_store);
    return status != COMM_OK ? status : fail_scheme(url);
}

void comm_store_close(comm_store *s)
{
    if (!s)
        return;
    unsigned calls = atomic_fetch_or(&s->calls, STORE_CLOSED);
    while (s->owner_pid == (int32_t)getpid() && (calls = atomic_load(&s->calls)) > STORE_CLOSED) {
        /* The threads that are inside are woken until all have left. */
        struct timespec pause = { 0, 1000000 };
        if (s->kind->interrupt)
            s->kind->interrupt(s);
        nanosleep(&pause, NULL);
    }
    if (s->owner_pid == (int32_t)getpid())
        store_release(s);
}

/* ---- Entering ---- */

comm_status store_check_key(const char *what, const char *key)
{
    if (!key || !*key)
        return comm__fail(COMM_ERR_INVALID, "%s: the key is %s", what, key ? "empty" : "NULL");
    if (strlen(key) > LIMIT_STORE_KEY_BYTES)
        return comm__fail(COMM_ERR_INVALID, "%s: a key of %zu B; the longest is %zu B", what, strlen(key),
                          LIMIT_STORE_KEY_BYTES);
    return COMM_OK;
}

comm_status store_check_value(const char *what, const char *key, const void *data, size_t bytes)
{
    if (!data && bytes)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': %zu B at NULL", what, key, bytes);
    if (bytes > LIMIT_STORE_VALUE_BYTES)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': a value of %zu B; the longest is %zu B", what, key, bytes,
                          LIMIT_STORE_VALUE_BYTES);
    return COMM_OK;
}

comm_status store_enter(comm_store *s, const char *what)
{
    if (!s)
        return comm__fail(COMM_ERR_INVALID, "%s: the store is NULL", what);
    if (s->owner_pid != (int32_t)getpid())
        return comm__fail(COMM_ERR_FORKED, "%s: the store %s was opened before fork(); open one in this process", what,
                          s->url);
    unsigned calls = atomic_fetch_add(&s->calls, 2);
    if (calls & STORE_CLOSED) {
        atomic_fetch_sub(&s->calls, 2);
        return comm__fail(COMM_ERR_ABORTED, "%s: the store is being closed", what);
    }
    return COMM_OK;
}

static comm_status enter_key(comm_store *s, const char *what, const char *key)
{
    comm_status status = store_check_key(what, key);
    return status == COMM_OK ? store_enter(s, what) : status;
}

static comm_status enter_keys(comm_store *s, const char *what, const char *const *keys, size_t count)
{
    if (!keys && count)
        return comm__fail(COMM_ERR_INVALID, "%s: the keys are NULL", what);
    if (count > LIMIT_STORE_KEYS)
        return comm__fail(COMM_ERR_INVALID, "%s: %zu keys at once; at most %zu", what, count, LIMIT_STORE_KEYS);
    for (size_t i = 0; i < count; i++) {
        comm_status status = store_check_key(what, keys[i]);
        if (status != COMM_OK)
            return status;
    }
    return store_enter(s, what);
}

comm_status store_leave(comm_store *s, comm_status status)
{
    unsigned calls = atomic_fetch_sub(&s->calls, 2);
    assert(calls >= 2);
    (void)calls;
    return status;
}

static comm_status fail_null(const char *what, const char *which)
{
    return comm__fail(COMM_ERR_INVALID, "%s: %s is NULL", what, which);
}

/* Only queue_pop knows COMM_STORE_NO_WAIT; elsewhere it must not pass for "infinite". */
static comm_status check_timeout(const char *what, int64_t timeout_ms)
{
    return timeout_ms >= COMM_TIMEOUT_INFINITE
               ? COMM_OK
               : comm__fail(COMM_ERR_INVALID,
                            "%s: a timeout of %lld ms; give 0 for the store's, or COMM_TIMEOUT_INFINITE", what,
                            (long long)timeout_ms);
}

struct store_wait store_wait_of(const comm_store *s, int64_t timeout_ms)
{
    int64_t deadline_ns = clock_deadline_ns(timeout_ms == 0 ? atomic_load(&s->timeout_ms) : timeout_ms);
    int64_t handle_ns = atomic_load(&s->deadline_ns);
    return (struct store_wait){ clock_now_ns(), deadline_ns < handle_ns ? deadline_ns : handle_ns, s };
}

struct store_wait store_grace(const struct store_wait *wait)
{
    struct store_wait grace = *wait;
    if (__builtin_add_overflow(wait->deadline_ns, STORE_GRACE_MS * (int64_t)1000000, &grace.deadline_ns))
        grace.deadline_ns = DEADLINE_NEVER;
    return grace;
}

void comm__store_set_deadline(comm_store *s, int64_t deadline_ns)
{
    atomic_store(&s->deadline_ns, deadline_ns);
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
    size_t used = 0, named = 0;
    for (; named < count && used + 80 < sizeof names; named++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%.60s'", named ? ", " : "", missing[named]);
    if (named < count)
        snprintf(names + used, sizeof names - used, " and %zu more", count - named);
    return comm__fail(COMM_ERR_TIMEOUT, "waiting in %s timed out after %lld ms: %zu key%s did not appear: %s%s%s",
                      wait->handle->url, store_wait_ms(wait), count, count == 1 ? "" : "s", names, note ? "; " : "",
                      note ? note : "");
}

comm_status store_fail_queue_timeout(const struct store_wait *wait, const char *key, const char *note)
{
    return comm__fail(COMM_ERR_TIMEOUT, "waiting in %s timed out after %lld ms: nothing was pushed to the queue "
                      "'%.60s'%s%s", wait->handle->url, store_wait_ms(wait), key, note ? "; " : "", note ? note : "");
}

comm_status store_fail_barrier(const struct store_wait *wait, const char *key, int64_t came, int32_t world_size)
{
    return comm__fail(COMM_ERR_TIMEOUT, "barrier '%s' in %s timed out after %lld ms: %lld of %d have come", key,
                      wait->handle->url, store_wait_ms(wait), (long long)came, (int)world_size);
}

/* ---- The public calls ---- */

comm_status comm_store_clone(comm_store *s, comm_store **ret_store)
{
    if (!ret_store)
        return fail_null("comm_store_clone", "ret_store");
    comm_status status = store_enter(s, "comm_store_clone");
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, s->kind->clone(s, &wait, ret_store));
}

const char *comm_store_kind(const comm_store *s)
{
    return s ? s->kind->name : "";
}

const char *comm_store_url(const comm_store *s)
{
    return s ? s->url : "";
}

const char *comm_store_host(const comm_store *s)
{
    return s ? s->host : "";
}

int32_t comm_store_port(const comm_store *s)
{
    return s ? s->port : -1;
}

int64_t comm_store_timeout(const comm_store *s)
{
    return s ? atomic_load(&s->timeout_ms) : 0;
}

comm_status comm_store_set_timeout(comm_store *s, int64_t timeout_ms)
{
    if (!s)
        return fail_null("comm_store_set_timeout", "the store");
    comm_status status = check_timeout("comm_store_set_timeout", timeout_ms);
    if (status == COMM_OK)
        atomic_store(&s->timeout_ms, timeout_ms ? timeout_ms : STORE_TIMEOUT_MS);
    return status;
}

comm_status comm_store_set(comm_store *s, const char *key, const void *data, size_t bytes)
{
    static const char what[] = "comm_store_set";
    comm_status status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    status = store_check_value(what, key, data, bytes);
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, status == COMM_OK ? s->kind->set(s, key, data, bytes, &wait) : status);
}

comm_status comm_store_get(comm_store *s, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes)
{
    static const char what[] = "comm_store_get";
    if (!ret_data)
        return fail_null(what, "ret_data");
    comm_status status = check_timeout(what, timeout_ms);
    if (status == COMM_OK)
        status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, timeout_ms);
    size_t bytes;
    return store_leave(s, s->kind->get(s, key, &wait, ret_data, ret_bytes ? ret_bytes : &bytes));
}

comm_status comm_store_add(comm_store *s, const char *key, int64_t amount, int64_t *ret_value)
{
    comm_status status = enter_key(s, "comm_store_add", key);
    int64_t value;
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, s->kind->add(s, key, amount, &wait, ret_value ? ret_value : &value));
}

comm_status comm_store_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                   const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes)
{
    static const char what[] = "comm_store_compare_set";
    if (!ret_data)
        return fail_null(what, "ret_data");
    comm_status status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    size_t bytes;
    struct store_wait wait = store_wait_of(s, 0);
    status = store_check_value(what, key, expected, expected_bytes);
    if (status == COMM_OK)
        status = store_check_value(what, key, desired, desired_bytes);
    if (status == COMM_OK)
        status = s->kind->compare_set(s, key, expected, expected_bytes, desired, desired_bytes, &wait,
                                      ret_data, ret_bytes ? ret_bytes : &bytes);
    return store_leave(s, status);
}

comm_status comm_store_append(comm_store *s, const char *key, const void *data, size_t bytes)
{
    static const char what[] = "comm_store_append";
    comm_status status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    status = store_check_value(what, key, data, bytes);
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, status == COMM_OK ? store_call_append(s, key, data, bytes, &wait) : status);
}

comm_status comm_store_check(comm_store *s, const char *const *keys, size_t count, int32_t *ret_all)
{
    static const char what[] = "comm_store_check";
    if (!ret_all)
        return fail_null(what, "ret_all");
    comm_status status = enter_keys(s, what, keys, count);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, s->kind->check(s, keys, count, &wait, ret_all));
}

comm_status comm_store_wait(comm_store *s, const char *const *keys, size_t count, int64_t timeout_ms)
{
    static const char what[] = "comm_store_wait";
    comm_status status = check_timeout(what, timeout_ms);
    if (status == COMM_OK)
        status = enter_keys(s, what, keys, count);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, timeout_ms);
    return store_leave(s, store_call_wait(s, keys, count, &wait));
}

comm_status comm_store_delete(comm_store *s, const char *key, int32_t *ret_existed)
{
    comm_status status = enter_key(s, "comm_store_delete", key);
    int32_t existed;
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, s->kind->remove(s, key, &wait, ret_existed ? ret_existed : &existed));
}

comm_status comm_store_num_keys(comm_store *s, int64_t *ret_count)
{
    static const char what[] = "comm_store_num_keys";
    if (!ret_count)
        return fail_null(what, "ret_count");
    comm_status status = store_enter(s, what);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, store_call_num_keys(s, &wait, ret_count));
}

comm_status comm_store_list_keys(comm_store *s, char ***ret_keys, size_t *ret_count)
{
    static const char what[] = "comm_store_list_keys";
    if (!ret_keys || !ret_count)
        return fail_null(what, ret_keys ? "ret_count" : "ret_keys");
    comm_status status = store_enter(s, what);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, store_call_list_keys(s, &wait, ret_keys, ret_count));
}

comm_status comm_store_multi_get(comm_store *s, const char *const *keys, size_t count, int64_t timeout_ms, void **data,
                                 size_t *bytes)
{
    static const char what[] = "comm_store_multi_get";
    if (count && (!data || !bytes))
        return fail_null(what, data ? "bytes" : "data");
    comm_status status = check_timeout(what, timeout_ms);
    if (status == COMM_OK)
        status = enter_keys(s, what, keys, count);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, timeout_ms);
    return store_leave(s, store_call_multi_get(s, keys, count, &wait, data, bytes));
}

comm_status comm_store_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                                 const size_t *bytes)
{
    static const char what[] = "comm_store_multi_set";
    if (count && (!data || !bytes))
        return fail_null(what, data ? "bytes" : "data");
    comm_status status = enter_keys(s, what, keys, count);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < count && status == COMM_OK; i++)
        status = store_check_value(what, keys[i], data[i], bytes[i]);
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, status == COMM_OK ? store_call_multi_set(s, keys, count, data, bytes, &wait) : status);
}

comm_status comm_store_queue_push(comm_store *s, const char *key, const void *data, size_t bytes)
{
    static const char what[] = "comm_store_queue_push";
    comm_status status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    status = store_check_value(what, key, data, bytes);
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, status == COMM_OK ? store_call_queue_push(s, key, data, bytes, &wait) : status);
}

comm_status comm_store_queue_pop(comm_store *s, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes)
{
    static const char what[] = "comm_store_queue_pop";
    int32_t may_wait = timeout_ms != COMM_STORE_NO_WAIT;
    if (!ret_data)
        return fail_null(what, "ret_data");
    comm_status status = may_wait ? check_timeout(what, timeout_ms) : COMM_OK;
    if (status == COMM_OK)
        status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, may_wait ? timeout_ms : 0);
    size_t bytes;
    return store_leave(s, store_call_queue_pop(s, key, &wait, may_wait, ret_data, ret_bytes ? ret_bytes : &bytes));
}

comm_status comm_store_queue_len(comm_store *s, const char *key, int64_t *ret_count)
{
    static const char what[] = "comm_store_queue_len";
    if (!ret_count)
        return fail_null(what, "ret_count");
    comm_status status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, 0);
    return store_leave(s, store_call_queue_len(s, key, &wait, ret_count));
}

comm_status comm_store_barrier(comm_store *s, const char *key, int32_t world_size, int64_t timeout_ms)
{
    static const char what[] = "comm_store_barrier";
    if (world_size < 1)
        return comm__fail(COMM_ERR_INVALID, "%s '%s': a world of %d", what, key ? key : "", (int)world_size);
    comm_status status = check_timeout(what, timeout_ms);
    if (status == COMM_OK)
        status = enter_key(s, what, key);
    if (status != COMM_OK)
        return status;
    struct store_wait wait = store_wait_of(s, timeout_ms);
    return store_leave(s, store_call_barrier(s, key, world_size, &wait));
}

/* The file store: a table, and behind it the file that all ranks share (file_share.c). A waiting thread looks again and
 * again, for a file cannot wake it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "file_share.h"
#include "store.h"
#include "view.h"

enum { PAUSE_FIRST_NS = 500000, PAUSE_MAX_NS = 10000000, WHO_BYTES = 700 };

struct file_store {
    comm_store base;
    struct file_share share;
    int32_t world_size;
};

static const struct table_bytes nothing = { NULL, 0 };

static struct table_bytes text(const char *key)
{
    return (struct table_bytes){ key, strlen(key) };
}

/* For a call that waits for nothing but the lock. */
static comm_status enter(comm_store *s, enum file_access access, const struct store_wait *wait,
                         struct file_share **ret_share)
{
    *ret_share = &((struct file_store *)s)->share;
    return file_enter(*ret_share, access, wait);
}

/* ---- Waiting ---- */

/* Look whether it is time to go on, inside; *ret_done. FILE_WRITE if it may change something. */
typedef comm_status (*look_fn)(struct file_share *f, void *context, int *ret_done);

/* The time ran out in front of a lock, but most of it went by between looks: what was looked for is the news, not the
 * lock. */
static int was_looking(const struct store_wait *wait, const struct store_wait *for_lock)
{
    return clock_now_ns() - for_lock->began_ns < for_lock->began_ns - wait->began_ns;
}

/* Until `look` is done; IN_PROGRESS when the time is over. */
static comm_status look_until(comm_store *s, enum file_access access, const struct store_wait *wait, look_fn look,
                              void *context)
{
    struct file_share *f = &((struct file_store *)s)->share;
    int64_t pause_ns = PAUSE_FIRST_NS;
    for (;;) {
        int done = 0;
        struct store_wait for_lock = { clock_now_ns(), wait->deadline_ns, wait->handle };
        comm_status status = file_enter(f, access, &for_lock);
        if (status == COMM_ERR_TIMEOUT && was_looking(wait, &for_lock))
            return COMM_IN_PROGRESS;
        if (status == COMM_OK)
            status = file_leave(f, look(f, context, &done));
        if (status != COMM_OK || done)
            return status;
        if (store_wait_closed(wait))
            return store_fail_closed(wait);
        int64_t left = wait->deadline_ns - clock_now_ns();
        if (left <= 0)
            return COMM_IN_PROGRESS;
        struct timespec pause = { 0, pause_ns < left ? pause_ns : left };
        nanosleep(&pause, NULL);
        pause_ns = pause_ns * 2 < PAUSE_MAX_NS ? pause_ns * 2 : PAUSE_MAX_NS;
    }
}

/* What is known of the others. Under f->lock. */
static void say_who(const struct file_share *f, char who[WHO_BYTES])
{
    size_t used = f->torn ? (size_t)snprintf(who, WHO_BYTES, "a process was killed while it wrote; ") : 0;
    file_say_who(f, who + used, WHO_BYTES - used);
}

/* TIMEOUT, with that, and with the keys that were missing at the last look: the file may be locked now. */
static comm_status out_of_time(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    struct file_share *f = &((struct file_store *)s)->share;
    char who[WHO_BYTES];
    const char **missing = calloc(count, sizeof *missing);
    size_t missing_count = 0;
    pthread_mutex_lock(&f->lock);
    say_who(f, who);
    for (size_t i = 0; missing && i < count; i++)
        if (!table_get(f->table, text(keys[i]), NULL))
            missing[missing_count++] = keys[i];
    pthread_mutex_unlock(&f->lock);
    comm_status status = missing_count > 0 ? store_fail_timeout(wait, missing, missing_count, who)
                                           : store_fail_timeout(wait, keys, count, who);
    free(missing);
    return status;
}

struct keys {
    const char *const *keys;
    size_t count;
};

static int all_there(const struct file_share *f, const char *const *keys, size_t count)
{
    size_t there = 0;
    while (there < count && table_get(f->table, text(keys[there]), NULL))
        there++;
    return there == count;
}

static comm_status look_for_keys(struct file_share *f, void *context, int *ret_done)
{
    const struct keys *k = context;
    *ret_done = all_there(f, k->keys, k->count);
    return COMM_OK;
}

static comm_status file_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    struct keys k = { keys, count };
    comm_status status = look_until(s, FILE_READ, wait, look_for_keys, &k);
    return status == COMM_IN_PROGRESS ? out_of_time(s, keys, count, wait) : status;
}

struct value {
    const char *key;
    void *data;
    size_t bytes;
};

static comm_status look_for_value(struct file_share *f, void *context, int *ret_done)
{
    struct value *v = context;
    struct table_bytes value;
    *ret_done = table_get(f->table, text(v->key), &value);
    return *ret_done ? table_copy(value, &v->data, &v->bytes) : COMM_OK;
}

static comm_status file_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    struct value v = { key, NULL, 0 };
    comm_status status = look_until(s, FILE_READ, wait, look_for_value, &v);
    if (status == COMM_IN_PROGRESS)
        return out_of_time(s, &key, 1, wait);
    if (status == COMM_OK) {
        *ret_data = v.data;
        *ret_bytes = v.bytes;
    }
    return status;
}

/* ---- Values ---- */

static comm_status file_set(comm_store *s, const char *key, const void *data, size_t bytes,
                            const struct store_wait *wait)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_WRITE, wait, &f);
    return status == COMM_OK ? file_leave(f, file_append(f, FILE_SET, text(key), (struct table_bytes){ data, bytes }))
                             : status;
}

static comm_status file_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                                  const size_t *bytes, const struct store_wait *wait)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_WRITE, wait, &f);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < count && status == COMM_OK; i++)
        status = file_append(f, FILE_SET, text(keys[i]), (struct table_bytes){ data[i], bytes[i] });
    return file_leave(f, status);
}

static comm_status file_check(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                              int32_t *ret_all)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_READ, wait, &f);
    if (status != COMM_OK)
        return status;
    *ret_all = all_there(f, keys, count);
    return file_leave(f, COMM_OK);
}

/* The sum, or INVALID. The value has a NUL behind it. */
static comm_status sum_of(const char *key, const char *value, int64_t amount, int64_t *ret_sum)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (end == value || errno)
        return comm__fail(COMM_ERR_INVALID, "add %lld to '%s': its value, '%.64s', is not a 64-bit number",
                          (long long)amount, key, value);
    if (__builtin_add_overflow((int64_t)number, amount, ret_sum))
        return comm__fail(COMM_ERR_INVALID, "add %lld to '%s': %lld would overflow", (long long)amount, key, number);
    return COMM_OK;
}

static comm_status file_add(comm_store *s, const char *key, int64_t amount, const struct store_wait *wait,
                            int64_t *ret_value)
{
    struct file_share *f;
    struct table_bytes old = { "0", 1 };
    char number[24];
    int64_t sum = 0;
    comm_status status = enter(s, FILE_WRITE, wait, &f);
    if (status != COMM_OK)
        return status;
    int there = table_get(f->table, text(key), &old);
    status = sum_of(key, old.data, amount, &sum);
    int bytes = snprintf(number, sizeof number, "%lld", (long long)sum);
    int same = there && old.bytes == (size_t)bytes && memcmp(old.data, number, old.bytes) == 0; /* only looked at */
    if (status == COMM_OK && !same)
        status = file_append(f, FILE_SET, text(key), (struct table_bytes){ number, (size_t)bytes });
    if (status == COMM_OK)
        *ret_value = sum;
    return file_leave(f, status);
}

static comm_status file_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, const struct store_wait *wait,
                                    void **ret_data, size_t *ret_bytes)
{
    struct file_share *f;
    struct table_bytes now;
    comm_status status = enter(s, FILE_WRITE, wait, &f);
    if (status != COMM_OK)
        return status;
    int there = table_get(f->table, text(key), &now);
    int equal = there ? now.bytes == expected_bytes && (!now.bytes || memcmp(now.data, expected, now.bytes) == 0)
                      : expected_bytes == 0;
    if (equal)
        status = file_append(f, FILE_SET, text(key), (struct table_bytes){ desired, desired_bytes });
    if (equal || !there)
        now = equal ? (struct table_bytes){ desired, desired_bytes } : (struct table_bytes){ expected, expected_bytes };
    if (status == COMM_OK)
        status = table_copy(now, ret_data, ret_bytes);
    return file_leave(f, status);
}

static comm_status file_remove(comm_store *s, const char *key, const struct store_wait *wait, int32_t *ret_existed)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_WRITE, wait, &f);
    if (status != COMM_OK)
        return status;
    int existed = table_get(f->table, text(key), NULL);
    if (existed)
        status = file_append(f, FILE_DELETE, text(key), nothing);
    if (status == COMM_OK)
        *ret_existed = existed;
    return file_leave(f, status);
}

static comm_status file_append_value(comm_store *s, const char *key, const void *data, size_t bytes,
                                     const struct store_wait *wait)
{
    struct file_share *f;
    struct table_bytes old = nothing;
    comm_status status = enter(s, FILE_WRITE, wait, &f);
    if (status != COMM_OK)
        return status;
    table_get(f->table, text(key), &old);
    if (bytes > LIMIT_STORE_VALUE_BYTES - old.bytes)
        status = comm__fail(COMM_ERR_INVALID, "append %zu B to '%s': its value would be %zu B; the limit is %zu B",
                            bytes, key, old.bytes + bytes, LIMIT_STORE_VALUE_BYTES);
    else
        status = file_append(f, FILE_APPEND, text(key), (struct table_bytes){ data, bytes });
    return file_leave(f, status);
}

static comm_status file_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_READ, wait, &f);
    if (status != COMM_OK)
        return status;
    *ret_count = (int64_t)table_count(f->table);
    return file_leave(f, COMM_OK);
}

static comm_status file_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_READ, wait, &f);
    return status == COMM_OK ? file_leave(f, table_list(f->table, ret_keys, ret_count)) : status;
}

/* ---- Queues ---- */

static comm_status file_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                                   const struct store_wait *wait)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_WRITE, wait, &f);
    return status == COMM_OK ? file_leave(f, file_append(f, FILE_PUSH, text(key), (struct table_bytes){ data, bytes }))
                             : status;
}

static comm_status look_for_item(struct file_share *f, void *context, int *ret_done)
{
    struct value *v = context;
    struct table_bytes first;
    *ret_done = table_queue_first(f->table, text(v->key), &first);
    if (!*ret_done)
        return COMM_OK;
    comm_status status = table_copy(first, &v->data, &v->bytes);
    if (status == COMM_OK)
        status = file_append(f, FILE_POP, text(v->key), nothing);
    if (status != COMM_OK)
        free(v->data);
    return status;
}

static comm_status file_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                  void **ret_data, size_t *ret_bytes)
{
    struct value v = { key, NULL, 0 };
    struct file_share *f;
    int done = 0;
    comm_status status;
    if (may_wait) {
        status = look_until(s, FILE_WRITE, wait, look_for_item, &v);
    } else {
        status = enter(s, FILE_WRITE, wait, &f);
        if (status == COMM_OK)
            status = file_leave(f, look_for_item(f, &v, &done));
        if (status == COMM_OK && !done)
            return comm__fail(COMM_ERR_NOT_FOUND, "queue_pop: the queue '%s' is empty", key);
    }
    if (status == COMM_IN_PROGRESS) {
        char who[WHO_BYTES];
        struct file_share *share = &((struct file_store *)s)->share;
        pthread_mutex_lock(&share->lock);
        say_who(share, who);
        pthread_mutex_unlock(&share->lock);
        return store_fail_queue_timeout(wait, key, who);
    }
    if (status == COMM_OK) {
        *ret_data = v.data;
        *ret_bytes = v.bytes;
    }
    return status;
}

static comm_status file_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count)
{
    struct file_share *f;
    comm_status status = enter(s, FILE_READ, wait, &f);
    if (status != COMM_OK)
        return status;
    *ret_count = (int64_t)table_queue_len(f->table, text(key));
    return file_leave(f, COMM_OK);
}

/* ---- Life ---- */

static comm_status file_clone(comm_store *s, const struct store_wait *wait, comm_store **ret_store)
{
    (void)wait;
    store_ref(s); /* every handle is a view of its own already */
    *ret_store = s;
    return COMM_OK;
}

static void file_close(comm_store *s)
{
    struct file_store *f = (struct file_store *)s;
    file_share_close(&f->share, f->world_size);
    store_finish(s);
    free(f);
}

static const struct store_kind file_kind = {
    .name = "file",
    .set = file_set,
    .get = file_get,
    .add = file_add,
    .compare_set = file_compare_set,
    .check = file_check,
    .remove = file_remove,
    .wait = file_wait,
    .append = file_append_value,
    .num_keys = file_num_keys,
    .list_keys = file_list_keys,
    .multi_set = file_multi_set,
    .queue_push = file_queue_push,
    .queue_pop = file_queue_pop,
    .queue_len = file_queue_len,
    .clone = file_clone,
    .close = file_close,
};

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

static comm_status decode_path(const char *url, const char *from, size_t length, char *to)
{
    for (size_t i = 0; i < length; i++) {
        if (from[i] != '%') {
            *to++ = from[i];
            continue;
        }
        int high = i + 2 < length ? hex_digit(from[i + 1]) : -1, low = i + 2 < length ? hex_digit(from[i + 2]) : -1;
        if (high < 0 || low < 0 || high + low == 0)
            return comm__fail(COMM_ERR_INVALID, "'%s': '%.*s' is no percent-encoded byte", url,
                              length - i < 3 ? (int)(length - i) : 3, from + i);
        *to++ = (char)(high * 16 + low);
        i += 2;
    }
    *to = '\0';
    return COMM_OK;
}

static comm_status parse_world_size(const char *url, const char *query, int32_t *ret_world_size)
{
    static const char name[] = "?world_size=";
    char *end = NULL;
    long number = 0;
    errno = 0;
    if (strncmp(query, name, sizeof name - 1) == 0 && query[sizeof name - 1] >= '0' && query[sizeof name - 1] <= '9')
        number = strtol(query + sizeof name - 1, &end, 10);
    if (!end || *end || errno || number < 1 || number > INT32_MAX)
        return comm__fail(COMM_ERR_INVALID, "'%s': '%s' is not ?world_size=N", url, query);
    *ret_world_size = (int32_t)number;
    return COMM_OK;
}

/* "file:///a%20b?world_size=4" -> "/a b", 4. */
static comm_status parse_url(const char *url, char **ret_path, int32_t *ret_world_size)
{
    const char *from = url + strlen("file://"), *query = strchr(from, '?');
    size_t length = query ? (size_t)(query - from) : strlen(from);
    if (*from != '/' || length < 2)
        return comm__fail(COMM_ERR_INVALID, "'%s': after file:// comes an absolute path", url);
    comm_status status = query ? parse_world_size(url, query, ret_world_size) : COMM_OK;
    if (status != COMM_OK)
        return status;
    char *path = malloc(length + 1);
    if (!path)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a path");
    status = decode_path(url, from, length, path);
    if (status != COMM_OK)
        free(path);
    else
        *ret_path = path;
    return status;
}

comm_status store_file_open(const char *url, const comm_store_options *options, comm_store **ret_store)
{
    char *path = NULL;
    int32_t world_size = options->world_size;
    comm_status status = parse_url(url, &path, &world_size);
    if (status != COMM_OK)
        return status;
    struct file_store *f = calloc(1, sizeof *f);
    if (!f) {
        free(path);
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store");
    }
    f->world_size = world_size;
    struct store_wait wait = { clock_now_ns(), clock_deadline_ns(options->timeout_ms), NULL };
    status = file_share_open(&f->share, path, world_size, &wait);
    free(path);
    if (status == COMM_OK)
        status = store_init(&f->base, &file_kind, url, "", -1, options->timeout_ms);
    if (status != COMM_OK) {
        file_close(&f->base);
        return status;
    }
    status = store_view(NULL, options->timeout_ms, &f->base, ret_store);
    store_release(&f->base);
    return status;
}

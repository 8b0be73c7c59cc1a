/* The file store: an append-only log of records that all ranks share, under flock. Each handle keeps a table of what it has
 * read so far and replays what others have appended.
 *
 * A record: magic, length of the key, length of the value (or DELETED), zero, XXH64 of all of it; then key and value. A record that is
 * torn or altered is an error that names the file and the offset; nobody waits for it to mend itself. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/limits.h"
#include "store.h"
#include "table.h"
#include "view.h"

static const uint32_t MAGIC = 0x4653434c; /* "LCSF" */
static const uint32_t DELETED = UINT32_MAX;
#define OPENED_KEY "\001opened" /* how many have opened, and closed it: for the last one to remove the file */
#define CLOSED_KEY "\001closed"

struct record {
    uint32_t magic, key_bytes, value_bytes, zero;
    uint64_t check;
};

struct file_store {
    comm_store base;
    pthread_mutex_t lock; /* guards what follows, and with flock the file */
    int fd;
    char *path;
    off_t read_to;
    struct table *table;
    int32_t world_size;
};

static struct table_bytes text(const char *key)
{
    return (struct table_bytes){ key, strlen(key) };
}

static uint64_t check_of(const struct record *r, const void *key, const void *value, size_t value_bytes)
{
    uint64_t h = XXH64(key, r->key_bytes, r->value_bytes);
    return XXH64(value, value_bytes, h ^ r->key_bytes);
}

static comm_status damaged(const struct file_store *f, const char *what)
{
    return comm__fail(COMM_ERR_PROTOCOL,
                      "the store file %s is damaged at offset %lld: %s. It is left from a crashed job or is not a libcomm "
                      "store; delete it, or use another path for each job",
                      f->path, (long long)f->read_to, what);
}

static comm_status read_exactly(struct file_store *f, void *data, size_t bytes, off_t at)
{
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = pread(f->fd, (char *)data + got, bytes - got, at + (off_t)got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return comm__fail(COMM_ERR_SYSTEM, "reading the store file %s: %s", f->path, strerror(errno));
        if (n == 0)
            return damaged(f, "a record ends in the middle");
        got += (size_t)n;
    }
    return COMM_OK;
}

/* Take in what others have appended. Both locks are held. */
static comm_status replay(struct file_store *f)
{
    struct stat st;
    comm_status status = COMM_OK;
    if (fstat(f->fd, &st) != 0)
        return comm__fail(COMM_ERR_SYSTEM, "looking at the store file %s: %s", f->path, strerror(errno));
    if (st.st_size < f->read_to)
        return damaged(f, "it has become shorter");
    while (status == COMM_OK && f->read_to < st.st_size) {
        struct record r;
        status = read_exactly(f, &r, sizeof r, f->read_to);
        if (status != COMM_OK)
            break;
        size_t value_bytes = r.value_bytes == DELETED ? 0 : r.value_bytes;
        if (r.magic != MAGIC || r.key_bytes > LIMIT_STORE_KEY_BYTES + 64 || value_bytes > LIMIT_STORE_VALUE_BYTES)
            return damaged(f, "no record begins there");
        char *body = malloc(r.key_bytes + value_bytes + 1);
        if (!body)
            return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a record of %s", f->path);
        status = read_exactly(f, body, r.key_bytes + value_bytes, f->read_to + (off_t)sizeof r);
        if (status == COMM_OK && check_of(&r, body, body + r.key_bytes, value_bytes) != r.check)
            status = damaged(f, "the checksum is wrong");
        struct table_bytes key = { body, r.key_bytes }, value = { body + r.key_bytes, value_bytes };
        if (status == COMM_OK && r.value_bytes == DELETED)
            table_remove(f->table, key);
        else if (status == COMM_OK)
            status = table_set(f->table, key, value);
        free(body);
        if (status == COMM_OK)
            f->read_to += (off_t)(sizeof r + r.key_bytes + value_bytes);
    }
    return status;
}

static comm_status append_record(struct file_store *f, struct table_bytes key, struct table_bytes value, int deleted)
{
    size_t bytes = sizeof(struct record) + key.bytes + value.bytes;
    char *whole = malloc(bytes);
    if (!whole)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a record of %s", f->path);
    struct record r = { MAGIC, (uint32_t)key.bytes, deleted ? DELETED : (uint32_t)value.bytes, 0, 0 };
    memcpy(whole + sizeof r, key.data, key.bytes);
    if (value.bytes)
        memcpy(whole + sizeof r + key.bytes, value.data, value.bytes);
    r.check = check_of(&r, whole + sizeof r, whole + sizeof r + key.bytes, value.bytes);
    memcpy(whole, &r, sizeof r);
    ssize_t n = pwrite(f->fd, whole, bytes, f->read_to);
    free(whole);
    if (n == (ssize_t)bytes)
        return replay(f);
    int error = n < 0 ? errno : ENOSPC;
    if (n > 0 && ftruncate(f->fd, f->read_to) != 0)
        error = errno;
    return comm__fail(COMM_ERR_SYSTEM, "writing to the store file %s: %s", f->path, strerror(error));
}

/* Both locks, and up to date. */
static comm_status enter(comm_store *s, int how, struct file_store **ret_file)
{
    struct file_store *f = (struct file_store *)s;
    pthread_mutex_lock(&f->lock);
    while (flock(f->fd, how) != 0)
        if (errno != EINTR) {
            pthread_mutex_unlock(&f->lock);
            return comm__fail(COMM_ERR_SYSTEM, "locking the store file %s: %s", f->path, strerror(errno));
        }
    *ret_file = f;
    comm_status status = replay(f);
    if (status != COMM_OK) {
        flock(f->fd, LOCK_UN);
        pthread_mutex_unlock(&f->lock);
    }
    return status;
}

static comm_status leave(struct file_store *f, comm_status status)
{
    flock(f->fd, LOCK_UN);
    pthread_mutex_unlock(&f->lock);
    return status;
}

static comm_status copy_out(struct table_bytes value, void **ret_data, size_t *ret_bytes)
{
    char *copy = malloc(value.bytes + 1);
    if (!copy)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a value of %zu B", value.bytes);
    if (value.bytes)
        memcpy(copy, value.data, value.bytes);
    copy[value.bytes] = '\0';
    *ret_data = copy;
    *ret_bytes = value.bytes;
    return COMM_OK;
}

static comm_status file_set(comm_store *s, const char *key, const void *data, size_t bytes)
{
    struct file_store *f;
    comm_status status = enter(s, LOCK_EX, &f);
    return status == COMM_OK ? leave(f, append_record(f, text(key), (struct table_bytes){ data, bytes }, 0)) : status;
}

static comm_status file_check(comm_store *s, const char *const *keys, size_t count, int32_t *ret_all)
{
    struct file_store *f;
    comm_status status = enter(s, LOCK_SH, &f);
    if (status != COMM_OK)
        return status;
    int all = 1;
    for (size_t i = 0; i < count && all; i++)
        all = table_get(f->table, text(keys[i]), NULL);
    *ret_all = all;
    return leave(f, COMM_OK);
}

static comm_status file_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    for (;;) {
        struct file_store *f;
        struct table_bytes value;
        comm_status status = store_call_wait(s, &key, 1, wait);
        if (status == COMM_OK)
            status = enter(s, LOCK_SH, &f);
        if (status != COMM_OK)
            return status;
        if (table_get(f->table, text(key), &value))
            return leave(f, copy_out(value, ret_data, ret_bytes));
        leave(f, COMM_OK); /* Deleted in between. */
    }
}

static comm_status file_add(comm_store *s, const char *key, int64_t amount, int64_t *ret_value)
{
    struct file_store *f;
    struct table_bytes old = { "0", 1 };
    char number[24];
    comm_status status = enter(s, LOCK_EX, &f);
    if (status != COMM_OK)
        return status;
    table_get(f->table, text(key), &old);
    errno = 0;
    char *end;
    long long value = strtoll(old.data, &end, 10);
    int64_t sum = 0;
    if (end == old.data || errno)
        return leave(f, comm__fail(COMM_ERR_INVALID, "add %lld to '%s': its value, '%.64s', is not a 64-bit number",
                                   (long long)amount, key, (const char *)old.data));
    if (__builtin_add_overflow((int64_t)value, amount, &sum))
        return leave(f, comm__fail(COMM_ERR_INVALID, "add %lld to '%s': %lld would overflow", (long long)amount, key, value));
    int n = snprintf(number, sizeof number, "%lld", (long long)sum);
    *ret_value = sum;
    return leave(f, append_record(f, text(key), (struct table_bytes){ number, (size_t)n }, 0));
}

static comm_status file_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes)
{
    struct file_store *f;
    struct table_bytes now;
    comm_status status = enter(s, LOCK_EX, &f);
    if (status != COMM_OK)
        return status;
    int there = table_get(f->table, text(key), &now);
    int equal = there ? now.bytes == expected_bytes && (!now.bytes || memcmp(now.data, expected, now.bytes) == 0)
                      : expected_bytes == 0;
    if (equal)
        status = append_record(f, text(key), (struct table_bytes){ desired, desired_bytes }, 0);
    if (equal || !there)
        now = equal ? (struct table_bytes){ desired, desired_bytes } : (struct table_bytes){ expected, expected_bytes };
    if (status == COMM_OK)
        status = copy_out(now, ret_data, ret_bytes);
    return leave(f, status);
}

static comm_status file_remove(comm_store *s, const char *key, int32_t *ret_existed)
{
    struct file_store *f;
    comm_status status = enter(s, LOCK_EX, &f);
    if (status != COMM_OK)
        return status;
    int existed = table_get(f->table, text(key), NULL);
    if (ret_existed)
        *ret_existed = existed;
    return leave(f, existed ? append_record(f, text(key), (struct table_bytes){ NULL, 0 }, 1) : COMM_OK);
}

static int is_internal(struct table_bytes key)
{
    return key.bytes > 0 && *(const char *)key.data == '\001';
}

static comm_status file_list_keys(comm_store *s, char ***ret_keys, size_t *ret_count)
{
    struct file_store *f;
    comm_status status = enter(s, LOCK_SH, &f);
    if (status != COMM_OK)
        return status;
    size_t count = 0, bytes = 0, cursor = 0, i = 0;
    struct table_bytes key;
    while (table_next(f->table, &cursor, &key, NULL))
        if (!is_internal(key)) {
            count++;
            bytes += key.bytes + 1;
        }
    char **keys = malloc(count * sizeof *keys + bytes + 1);
    if (!keys)
        return leave(f, comm__fail(COMM_ERR_NO_MEMORY, "no memory for %zu keys", count));
    char *at = (char *)(keys + count);
    for (cursor = 0; table_next(f->table, &cursor, &key, NULL);)
        if (!is_internal(key)) {
            keys[i++] = at;
            memcpy(at, key.data, key.bytes);
            at[key.bytes] = '\0';
            at += key.bytes + 1;
        }
    *ret_keys = keys;
    *ret_count = count;
    return leave(f, COMM_OK);
}

static comm_status file_num_keys(comm_store *s, int64_t *ret_count)
{
    char **keys;
    size_t count;
    comm_status status = file_list_keys(s, &keys, &count);
    if (status != COMM_OK)
        return status;
    free(keys);
    *ret_count = (int64_t)count;
    return COMM_OK;
}

static comm_status file_clone(comm_store *s, comm_store **ret_store)
{
    store_ref(s); /* every handle is a view of its own already */
    *ret_store = s;
    return COMM_OK;
}

static void file_close(comm_store *s)
{
    struct file_store *f = (struct file_store *)s;
    int64_t opened, closed;
    if (f->table && f->fd >= 0 && f->world_size > 0 && file_add(s, CLOSED_KEY, 1, &closed) == COMM_OK &&
        file_add(s, OPENED_KEY, 0, &opened) == COMM_OK && closed >= f->world_size && closed == opened)
        unlink(f->path);
    if (f->fd >= 0)
        close(f->fd);
    table_destroy(f->table);
    pthread_mutex_destroy(&f->lock);
    free(f->path);
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
    .num_keys = file_num_keys,
    .list_keys = file_list_keys,
    .clone = file_clone,
    .close = file_close,
};

/* "file:///a%20b?world_size=4" -> "/a b", 4. */
static comm_status parse_url(const char *url, char **ret_path, int32_t *world_size)
{
    const char *from = url + strlen("file://"), *query = strchr(from, '?');
    size_t length = query ? (size_t)(query - from) : strlen(from);
    if (*from != '/' || length < 2)
        return comm__fail(COMM_ERR_INVALID, "'%s': after file:// comes an absolute path", url);
    if (query && (strncmp(query, "?world_size=", 12) != 0 || (*world_size = atoi(query + 12)) < 1))
        return comm__fail(COMM_ERR_INVALID, "'%s': '%s' is not world_size=N", url, query);
    char *path = malloc(length + 1), *to = path;
    for (size_t i = 0; path && i < length; i++) {
        char hex[3] = { 0 };
        if (from[i] == '%' && i + 2 < length + 0 + 1) {
            memcpy(hex, from + i + 1, 2);
            char *end;
            long c = strtol(hex, &end, 16);
            if (*end || c == 0) {
                free(path);
                return comm__fail(COMM_ERR_INVALID, "'%s': '%.3s' is no percent-encoded byte", url, from + i);
            }
            *to++ = (char)c;
            i += 2;
        } else {
            *to++ = from[i];
        }
    }
    if (!path)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a path");
    *to = '\0';
    *ret_path = path;
    return COMM_OK;
}

comm_status store_file_open(const char *url, const comm_store_options *options, comm_store **ret_store)
{
    struct file_store *f = calloc(1, sizeof *f);
    if (!f)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store");
    int64_t opened;
    f->fd = -1;
    f->world_size = options->world_size;
    pthread_mutex_init(&f->lock, NULL);
    comm_status status = store_init(&f->base, &file_kind, url, "", -1, options->timeout_ms);
    if (status == COMM_OK)
        status = parse_url(url, &f->path, &f->world_size);
    if (status == COMM_OK && (f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0)
        status = comm__fail(COMM_ERR_SYSTEM, "opening the store file %s: %s", f->path, strerror(errno));
    if (status == COMM_OK)
        status = table_create(&f->table);
    if (status == COMM_OK)
        status = file_add(&f->base, OPENED_KEY, 1, &opened);
    if (status == COMM_OK && f->world_size > 0 && opened > f->world_size)
        status = comm__fail(COMM_ERR_INVALID,
                            "the store file %s has been opened %lld times, for a world of %d: it is left from a crashed job; "
                            "delete it, or use another path for each job",
                            f->path, (long long)opened, (int)f->world_size);
    if (status != COMM_OK) {
        char text_kept[COMM_ERROR_BYTES];
        snprintf(text_kept, sizeof text_kept, "%s", comm_last_error());
        f->world_size = 0;
        file_close(&f->base);
        return comm__fail(status, "%s", text_kept);
    }
    status = store_view(NULL, options->timeout_ms, &f->base, ret_store);
    store_release(&f->base);
    return status;
}

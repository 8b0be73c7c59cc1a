/* The file of a file store; see file_share.h.
 *
 * Locks are those of open file descriptions (F_OFD_SETLK), which end with their process, and work on network file
 * systems too. A reader or writer locks one byte far behind the data. Each opener also keeps a byte of its own locked
 * for as long as it lives: so an opener that has not written its CLOSE record and whose byte is free has crashed. If
 * all openers that have not closed the file have crashed, then it is left over from another job, and a new opener is
 * told so: its keys would lead it to ranks that have ended.
 *
 * The last of a world to close the file removes it, and only then is the path free for the next world. A process that
 * has closed it already and comes for the next world waits for that.
 *
 * No thread sleeps inside the kernel for a lock: a process that is stopped in the middle of a write must cost the
 * others no more than their time limit. */
#include "file_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/param.h"

static const off_t LOCK_AT = (off_t)1 << 61;          /* the byte to lock */
static const off_t WAITING_AT = ((off_t)1 << 61) + 1; /* locked, for reading, by all that try to lock that one */
static const off_t ALIVE_AT = ((off_t)1 << 61) + 2;   /* and from here on, one byte for each opener */
enum {
    CHUNK_BYTES = 64 << 10, /* read at once, unless a record is longer */
    PAUSE_FIRST_NS = 20000, /* between two tries for the lock */
    PAUSE_MAX_NS = 250000,
    AFTER_YOU_NS = 300000, /* longer than that, so that a waiting process gets it */
    CLOSE_MS = 1000,       /* for the lock, to write the CLOSE record */
    NAMED_MAX = 8,         /* openers that a text names */
    WHO_BYTES = 80,
    LOOK_FIRST_NS = 500000, /* between two looks whether the file is gone */
    LOOK_MAX_NS = 10000000,
};

/* ---- Locks ---- */

static int set_lock(int fd, short type, off_t at)
{
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
    int result;
    do
        result = fcntl(fd, F_OFD_SETLK, &lock);
    while (result != 0 && errno == EINTR);
    return result;
}

/* By another opener than this one. */
static int is_locked(int fd, off_t at)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static int is_alive(const struct file_share *f, size_t opener)
{
    return opener == f->number || is_locked(f->fd, ALIVE_AT + (off_t)opener);
}

void file_say_who(const struct file_share *f, char *text, size_t capacity)
{
    size_t alive = 0, crashed = 0, used = 0;
    *text = '\0';
    for (int gone = 0; gone < 2; gone++) {
        size_t named = 0;
        for (size_t i = 0; i < f->opener_count; i++) {
            const struct file_opener *o = &f->openers[i];
            if (o->closed || is_alive(f, i) == gone)
                continue;
            *(gone ? &crashed : &alive) += 1;
            if (named == NAMED_MAX || used + 100 > capacity)
                continue;
            used += (size_t)snprintf(text + used, capacity - used, "%s%.60s",
                                     named++ ? ", "
                                     : gone  ? "; gone without closing it: "
                                             : "the file is open in ",
                                     o->who);
        }
        size_t count = gone ? crashed : alive;
        if (count > named && used + 40 < capacity)
            used += (size_t)snprintf(text + used, capacity - used, " and %zu more", count - named);
    }
}

static comm_status fail_locked(const struct file_share *f, const struct store_wait *wait)
{
    char who[600];
    file_say_who(f, who, sizeof who);
    return comm__fail(
        COMM_ERR_TIMEOUT,
        "timed out: the store file %s has been locked by another process for %lld ms (is it stopped?); %s", f->path,
        store_wait_ms(wait), who);
}

/* One try: COMM_IN_PROGRESS if others have the file. */
static comm_status try_locks(struct file_share *f, enum file_access access, const struct store_wait *wait, int waiting)
{
    pthread_mutex_lock(&f->lock);
    comm_status status = COMM_IN_PROGRESS;
    if (waiting || !is_locked(f->fd, WAITING_AT)) {
        if (set_lock(f->fd, access == FILE_WRITE ? F_WRLCK : F_RDLCK, LOCK_AT) == 0)
            status = COMM_OK;
        else if (errno != EAGAIN && errno != EACCES)
            status = comm__fail(COMM_ERR_SYSTEM, "locking the store file %s: %s", f->path, strerror(errno));
        else if (waiting)
            set_lock(f->fd, F_RDLCK, WAITING_AT);
    }
    if (status == COMM_IN_PROGRESS && wait->handle && store_wait_closed(wait))
        status = store_fail_closed(wait);
    if (status == COMM_IN_PROGRESS && store_wait_over(wait))
        status = fail_locked(f, wait);
    if (waiting && status != COMM_IN_PROGRESS) /* another thread that waits will say so again */
        set_lock(f->fd, F_UNLCK, WAITING_AT);
    if (status != COMM_OK)
        pthread_mutex_unlock(&f->lock);
    return status;
}

/* A process that wants the lock lets those that wait already go first, once: else one that writes all the time would
 * have the lock all the time. */
static comm_status take_locks(struct file_share *f, enum file_access access, const struct store_wait *wait)
{
    struct timespec pause = { 0, AFTER_YOU_NS };
    comm_status status = try_locks(f, access, wait, 0);
    if (status == COMM_IN_PROGRESS && !is_locked(f->fd, WAITING_AT))
        status = try_locks(f, access, wait, 1);
    while (status == COMM_IN_PROGRESS) {
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec == AFTER_YOU_NS ? PAUSE_FIRST_NS : pause.tv_nsec * 2;
        if (pause.tv_nsec > PAUSE_MAX_NS)
            pause.tv_nsec = PAUSE_MAX_NS;
        status = try_locks(f, access, wait, 1);
    }
    return status;
}

comm_status file_leave(struct file_share *f, comm_status status)
{
    set_lock(f->fd, F_UNLCK, LOCK_AT);
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* ---- Reading ---- */

/* A file of which no record could be read may be anything, so nothing here says to delete it just so. */
static comm_status fail_damaged(const struct file_share *f, const char *why)
{
    if (f->read_to == 0)
        return comm__fail(COMM_ERR_PROTOCOL,
                          "the file %s is no store of libcomm's, or is damaged: at offset 0: %s. Use another path; or "
                          "remove it, if it is left from a job",
                          f->path, why);
    return comm__fail(COMM_ERR_PROTOCOL,
                      "the store file %s is damaged at offset %lld: %s. Something else has written to it; delete it, "
                      "or use another path for each job",
                      f->path, (long long)f->read_to, why);
}

static comm_status add_opener(struct file_share *f, struct table_bytes who)
{
    if (f->opener_count == f->opener_capacity) {
        size_t capacity = f->opener_capacity ? f->opener_capacity * 2 : 16;
        struct file_opener *openers = realloc(f->openers, capacity * sizeof *openers);
        if (!openers)
            return comm__fail(COMM_ERR_NO_MEMORY, "no memory for %zu openers of %s", capacity, f->path);
        f->openers = openers;
        f->opener_capacity = capacity;
    }
    char *copy = strndup(who.data, who.bytes);
    if (!copy)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for an opener of %s", f->path);
    f->openers[f->opener_count++] = (struct file_opener){ copy, 0 };
    return COMM_OK;
}

static void close_opener(struct file_share *f, struct table_bytes number)
{
    char text[24];
    snprintf(text, sizeof text, "%.*s", number.bytes < 20 ? (int)number.bytes : 20, (const char *)number.data);
    size_t opener = strtoull(text, NULL, 10);
    if (opener < f->opener_count)
        f->openers[opener].closed = 1;
}

static void drop_front(struct table *table, struct table_bytes queue)
{
    void *data = NULL;
    size_t bytes;
    if (table_queue_pop(table, queue, &data, &bytes))
        free(data);
}

static comm_status apply(struct file_share *f, const struct file_record *r)
{
    switch (r->kind) {
    case FILE_SET:
        return table_set(f->table, r->key, r->value);
    case FILE_DELETE:
        table_remove(f->table, r->key);
        return COMM_OK;
    case FILE_APPEND:
        return table_append(f->table, r->key, r->value);
    case FILE_PUSH:
        return table_queue_push(f->table, r->key, r->value);
    case FILE_POP:
        drop_front(f->table, r->key);
        return COMM_OK;
    case FILE_OPEN:
        return add_opener(f, r->value);
    case FILE_CLOSE:
        close_opener(f, r->value);
        return COMM_OK;
    }
    return comm__fail(COMM_ERR_BUG, "a record of kind %d", (int)r->kind);
}

/* Up to `bytes` from read_to on; fewer at the end of the file. */
static comm_status read_some(const struct file_share *f, char *to, size_t bytes, size_t *ret_bytes)
{
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = pread(f->fd, to + got, bytes - got, f->read_to + (off_t)got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return comm__fail(COMM_ERR_SYSTEM, "reading the store file %s: %s", f->path, strerror(errno));
        if (n == 0)
            break;
        got += (size_t)n;
    }
    *ret_bytes = got;
    return COMM_OK;
}

/* Take in the whole records among these bytes. *ret_needed is how many bytes the next one takes, at least. */
static comm_status take_records(struct file_share *f, const char *data, size_t bytes, size_t *ret_needed)
{
    *ret_needed = 1;
    for (size_t used = 0; used < bytes;) {
        struct file_record record;
        const char *why = NULL;
        size_t taken;
        enum file_verdict verdict = file_decode(data + used, bytes - used, &record, &taken, &why);
        if (verdict == FILE_BAD)
            return fail_damaged(f, why);
        *ret_needed = verdict == FILE_TORN ? taken : 1;
        if (verdict == FILE_TORN)
            return COMM_OK;
        comm_status status = apply(f, &record);
        if (status != COMM_OK)
            return status;
        f->read_to += (off_t)taken;
        used += taken;
    }
    return COMM_OK;
}

/* Take in what others have written, up to `end`. */
static comm_status read_log(struct file_share *f, off_t end)
{
    size_t capacity = CHUNK_BYTES < end - f->read_to ? CHUNK_BYTES : (size_t)(end - f->read_to), needed = 1;
    char *data = malloc(capacity);
    comm_status status = data ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "no memory to read %s", f->path);
    while (status == COMM_OK && f->read_to + (off_t)needed <= end) {
        if (needed > capacity) {
            char *more = realloc(data, needed);
            if (!more) {
                status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a record of %zu B of %s", needed, f->path);
                break;
            }
            data = more;
            capacity = needed;
        }
        size_t bytes = 0;
        status = read_some(f, data, capacity, &bytes);
        if (status == COMM_OK && bytes < needed)
            status = fail_damaged(f, "it has become shorter while it was read");
        if (status == COMM_OK)
            status = take_records(f, data, bytes, &needed);
    }
    free(data);
    f->torn = end - f->read_to;
    return status;
}

static comm_status catch_up(struct file_share *f)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return comm__fail(COMM_ERR_SYSTEM, "looking at the store file %s: %s", f->path, strerror(errno));
    if (st.st_nlink == 0)
        return comm__fail(COMM_ERR_PEER_LOST,
                          "the store file %s was deleted, or replaced, while it was open; processes that open "
                          "it now do not meet those that opened it before. Start the job again",
                          f->path);
    if (st.st_size < f->read_to)
        return fail_damaged(f, "it has become shorter while it was open");
    f->torn = 0;
    return st.st_size > f->read_to ? read_log(f, st.st_size) : COMM_OK;
}

comm_status file_enter(struct file_share *f, enum file_access access, const struct store_wait *wait)
{
    comm_status status = take_locks(f, access, wait);
    if (status != COMM_OK)
        return status;
    status = catch_up(f);
    return status == COMM_OK ? status : file_leave(f, status);
}

/* ---- Writing ---- */

/* No process writes now, so the one that wrote the torn record is gone, and its call has never returned. */
static comm_status cut_torn(struct file_share *f)
{
    if (f->torn == 0)
        return COMM_OK;
    if (ftruncate(f->fd, f->read_to) != 0)
        return comm__fail(COMM_ERR_SYSTEM, "cutting a torn record from the store file %s: %s", f->path,
                          strerror(errno));
    comm__log(COMM_LOG_WARN,
              "store file %s: a process was killed while it wrote; %lld B of a torn record at offset %lld are cut off",
              f->path, (long long)f->torn, (long long)f->read_to);
    f->torn = 0;
    return COMM_OK;
}

static comm_status write_whole(struct file_share *f, const char *data, size_t bytes)
{
    size_t put = 0;
    while (put < bytes) {
        ssize_t n = pwrite(f->fd, data + put, bytes - put, f->read_to + (off_t)put);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int error = n < 0 ? errno : ENOSPC;
            if (put > 0 && ftruncate(f->fd, f->read_to) != 0)
                error = errno;
            return comm__fail(COMM_ERR_SYSTEM, "writing %zu B to the store file %s: %s", bytes, f->path,
                              strerror(error));
        }
        put += (size_t)n;
    }
    return COMM_OK;
}

comm_status file_append(struct file_share *f, enum file_kind kind, struct table_bytes key, struct table_bytes value)
{
    struct file_record record = { kind, key, value };
    size_t bytes = file_record_bytes(&record);
    comm_status status = cut_torn(f);
    if (status != COMM_OK)
        return status;
    char *data = malloc(bytes);
    if (!data)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a record of %s", f->path);
    file_encode(&record, data);
    status = write_whole(f, data, bytes);
    free(data);
    if (status == COMM_OK)
        status = apply(f, &record);
    if (status == COMM_OK)
        f->read_to += (off_t)bytes;
    return status;
}

/* ---- Opening and closing ---- */

static int is_removed(const struct file_share *f)
{
    struct stat st;
    return fstat(f->fd, &st) == 0 && st.st_nlink == 0;
}

/* It is not the file any more: back to the beginning. Under the lock, which ends with it. */
static comm_status let_go(struct file_share *f)
{
    file_leave(f, COMM_OK);
    close(f->fd);
    table_destroy(f->table);
    for (size_t i = 0; i < f->opener_count; i++)
        free(f->openers[i].who);
    f->fd = -1;
    f->read_to = 0;
    f->opener_count = 0;
    f->table = NULL;
    return table_create(&f->table);
}

/* The file as it is now, with the lock on it. *ret_again if it was removed meanwhile. */
static comm_status open_once(struct file_share *f, const struct store_wait *wait, int *ret_again)
{
    struct stat st;
    *ret_again = 0;
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (f->fd < 0)
        return comm__fail(COMM_ERR_SYSTEM, "opening the store file %s: %s", f->path, strerror(errno));
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return comm__fail(COMM_ERR_INVALID, "opening the store file %s: it is not a regular file", f->path);
    comm_status status = take_locks(f, FILE_WRITE, wait);
    if (status != COMM_OK)
        return status;
    *ret_again = is_removed(f);
    if (*ret_again)
        return let_go(f);
    status = catch_up(f);
    return status == COMM_OK ? status : file_leave(f, status);
}

static void write_self(char who[WHO_BYTES])
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(who, WHO_BYTES, "%s:%d", host, (int)getpid());
}

/* All of the world have opened the file, and this process has closed it: what it opens now is the next world's. */
static int comes_for_the_next(const struct file_share *f, int32_t world_size)
{
    char who[WHO_BYTES];
    int has_closed = 0;
    write_self(who);
    for (size_t i = 0; i < f->opener_count; i++)
        has_closed |= f->openers[i].closed && strcmp(f->openers[i].who, who) == 0;
    return has_closed && world_size > 0 && f->opener_count >= (size_t)world_size;
}

/* Which openers live, which have crashed? COMM_IN_PROGRESS if the file is to be removed by those that live. */
static comm_status check_openers(struct file_share *f, int32_t world_size)
{
    size_t alive = 0, crashed = 0;
    char who[600];
    for (size_t i = 0; i < f->opener_count; i++)
        if (!f->openers[i].closed)
            *(is_alive(f, i) ? &alive : &crashed) += 1;
    if (crashed > 0 && alive == 0) {
        file_say_who(f, who, sizeof who);
        return comm__fail(
            COMM_ERR_INVALID,
            "the store file %s is left from a job that crashed%s; delete it, or use another path for each job", f->path,
            who);
    }
    if (alive > 0 && comes_for_the_next(f, world_size))
        return COMM_IN_PROGRESS;
    if (world_size > 0 && f->opener_count - crashed >= (size_t)world_size) {
        file_say_who(f, who, sizeof who);
        return comm__fail(
            COMM_ERR_INVALID,
            "the store file %s has been opened %zu times, by all of a world of %d: it is in use, or left from an "
            "earlier job; delete it, or use another path for each job%s%s",
            f->path, f->opener_count - crashed, (int)world_size, *who ? ". " : "", who);
    }
    return COMM_OK;
}

static comm_status sign_in(struct file_share *f)
{
    char who[WHO_BYTES];
    write_self(who);
    size_t number = f->opener_count;
    if (set_lock(f->fd, F_WRLCK, ALIVE_AT + (off_t)number) != 0)
        return comm__fail(COMM_ERR_SYSTEM, "locking the store file %s: %s", f->path, strerror(errno));
    comm_status status =
        file_append(f, FILE_OPEN, (struct table_bytes){ NULL, 0 }, (struct table_bytes){ who, strlen(who) });
    if (status == COMM_OK)
        f->number = number;
    return status;
}

/* Less and less often. */
static void say_still_open(const struct file_share *f, const struct store_wait *wait, int64_t *next_ms)
{
    char who[600];
    if (store_wait_ms(wait) < *next_ms)
        return;
    *next_ms = store_wait_ms(wait) * 2;
    file_say_who(f, who, sizeof who);
    comm__log(COMM_LOG_WARN,
              "this process has closed the store file %s, and has waited %lld s to open it anew, until the others have "
              "closed it, too; %s",
              f->path, store_wait_ms(wait) / 1000, who);
}

static comm_status fail_still_open(const struct file_share *f, const struct store_wait *wait)
{
    char who[600];
    file_say_who(f, who, sizeof who);
    return comm__fail(COMM_ERR_TIMEOUT,
                      "timed out after %lld ms: this process has closed the store file %s, but others of its world "
                      "have not, so the next world cannot open it; %s",
                      store_wait_ms(wait), f->path, who);
}

/* Without the lock, before and after. *ret_again: it is removed. */
static comm_status await_removal(struct file_share *f, int32_t world_size, const struct store_wait *wait,
                                 int *ret_again)
{
    struct timespec pause = { 0, LOOK_FIRST_NS };
    int64_t news_ms = comm__param_int("progress_log_ms");
    comm_status status = COMM_IN_PROGRESS;
    while (status == COMM_IN_PROGRESS) {
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 < LOOK_MAX_NS ? pause.tv_nsec * 2 : LOOK_MAX_NS;
        status = take_locks(f, FILE_READ, wait);
        if (status != COMM_OK)
            return status == COMM_ERR_TIMEOUT ? fail_still_open(f, wait) : status;
        *ret_again = is_removed(f);
        if (*ret_again)
            return let_go(f);
        status = catch_up(f);
        if (status == COMM_OK)
            status = check_openers(f, world_size);
        say_still_open(f, wait, &news_ms);
        if (status == COMM_IN_PROGRESS && store_wait_over(wait))
            status = fail_still_open(f, wait);
        file_leave(f, status);
    }
    return status;
}

/* Under the lock, which it gives back. *ret_again: the file that was opened is removed. */
static comm_status enter_world(struct file_share *f, int32_t world_size, const struct store_wait *wait, int *ret_again)
{
    comm_status status = check_openers(f, world_size);
    if (status == COMM_OK)
        status = sign_in(f);
    file_leave(f, status);
    return status == COMM_IN_PROGRESS ? await_removal(f, world_size, wait, ret_again) : status;
}

comm_status file_share_open(struct file_share *f, const char *path, int32_t world_size,
                            const struct store_wait *wait)
{
    int again = 1;
    *f = (struct file_share){ .fd = -1, .number = SIZE_MAX };
    pthread_mutex_init(&f->lock, NULL);
    f->path = strdup(path);
    comm_status status = f->path ? table_create(&f->table) : comm__fail(COMM_ERR_NO_MEMORY, "no memory for a path");
    while (status == COMM_OK && again) {
        status = open_once(f, wait, &again);
        if (status == COMM_OK && !again)
            status = enter_world(f, world_size, wait, &again);
    }
    return status;
}

/* The whole world has opened the file, and all have closed it. */
static int is_last(const struct file_share *f, int32_t world_size)
{
    size_t left = 0;
    for (size_t i = 0; i < f->opener_count; i++)
        left += i != f->number && !f->openers[i].closed && is_alive(f, i);
    return world_size > 0 && f->opener_count >= (size_t)world_size && left == 0;
}

static void sign_out(struct file_share *f, int32_t world_size)
{
    char number[24];
    struct store_wait wait = { clock_now_ns(), clock_deadline_ns(CLOSE_MS), NULL };
    if (file_enter(f, FILE_WRITE, &wait) != COMM_OK)
        return; /* deleted, damaged or locked: the caller cannot be told */
    int bytes = snprintf(number, sizeof number, "%zu", f->number);
    if (is_last(f, world_size))
        unlink(f->path);
    else
        file_append(f, FILE_CLOSE, (struct table_bytes){ NULL, 0 }, (struct table_bytes){ number, (size_t)bytes });
    file_leave(f, COMM_OK);
}

void file_share_close(struct file_share *f, int32_t world_size)
{
    if (f->fd >= 0 && f->number != SIZE_MAX)
        sign_out(f, world_size);
    if (f->fd >= 0)
        close(f->fd);
    table_destroy(f->table);
    for (size_t i = 0; i < f->opener_count; i++)
        free(f->openers[i].who);
    free(f->openers);
    free(f->path);
    pthread_mutex_destroy(&f->lock);
}

/* What is a file store's alone: its log on disk, and what happens to a file that others damage, delete, lock, or leave
 * behind. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/file_share.h"
#include "ranks.h"

enum { LONG_MS = 20000, SHORT_MS = 50, MIB = 1 << 20 };

static char folder[200], path[256], url[300];

static void fresh_path(void)
{
    static int number;
    snprintf(path, sizeof path, "%s/store %d", folder, number++);
    snprintf(url, sizeof url, "file://%s/store%%20%d", folder, number - 1);
}

static comm_status try_open_for(int64_t timeout_ms, int32_t world_size, comm_store **ret_store)
{
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.world_size = world_size;
    options.timeout_ms = timeout_ms;
    return comm_store_open(url, &options, ret_store);
}

static comm_status try_open(int32_t world_size, comm_store **ret_store)
{
    return try_open_for(0, world_size, ret_store);
}

static comm_store *open_store(int32_t world_size)
{
    comm_store *store;
    CHECK_OK(try_open(world_size, &store));
    return store;
}

static void check_text(comm_store *store, const char *key, const char *want)
{
    void *data = NULL;
    CHECK_OK(comm_store_get(store, key, LONG_MS, &data, NULL));
    if (strcmp(data, want) != 0)
        ranks_fail(__FILE__, __LINE__, "'%s' holds '%s', not '%s'", key, (char *)data, want);
    comm_free(data);
}

static off_t file_bytes(void)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_size : -1;
}

static void put_bytes(int flags, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | flags, 0600);
    CHECK(fd >= 0);
    CHECK(write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

/* ---- The bytes ---- */

static void the_log_holds_one_record_for_each_change(void)
{
    fresh_path();
    static const struct {
        enum file_kind kind;
        const char *key, *value;
    } want[] = {
        { FILE_OPEN, "", NULL },     { FILE_SET, "k", "v" },     { FILE_SET, "n", "7" }, { FILE_SET, "c", "x" },
        { FILE_APPEND, "k", "w" },   { FILE_PUSH, "q", "item" }, { FILE_POP, "q", "" },  { FILE_DELETE, "k", "" },
        { FILE_SET, "pre/k", "in" }, { FILE_SET, "1", "a" },     { FILE_SET, "2", "b" }, { FILE_CLOSE, "", "0" },
    };
    comm_store *store = open_store(0), *view;
    void *data;
    CHECK_OK(comm_store_set(store, "k", "v", 1));
    CHECK_OK(comm_store_add(store, "n", 7, NULL));
    CHECK_OK(comm_store_add(store, "n", 0, NULL)); /* looking writes nothing */
    CHECK_OK(comm_store_compare_set(store, "c", "", 0, "x", 1, &data, NULL));
    comm_free(data);
    CHECK_OK(comm_store_compare_set(store, "c", "other", 5, "y", 1, &data, NULL));
    comm_free(data);
    CHECK_OK(comm_store_append(store, "k", "w", 1));
    CHECK_OK(comm_store_queue_push(store, "q", "item", 4));
    CHECK_OK(comm_store_queue_pop(store, "q", LONG_MS, &data, NULL));
    comm_free(data);
    CHECK_OK(comm_store_delete(store, "k", NULL));
    CHECK_OK(comm_store_delete(store, "k", NULL));
    CHECK_OK(comm_store_prefix("pre", store, &view));
    CHECK_OK(comm_store_set(view, "k", "in", 2));
    comm_store_close(view);
    CHECK_OK(
        comm_store_multi_set(store, (const char *[]){ "1", "2" }, 2, (const void *[]){ "a", "b" }, (size_t[]){ 1, 1 }));
    comm_store_close(store);

    char log[4096], who[100];
    int fd = open(path, O_RDONLY);
    ssize_t bytes = read(fd, log, sizeof log);
    close(fd);
    size_t at = 0, i = 0, taken;
    snprintf(who, sizeof who, ":%d", (int)getpid());
    for (const char *why; at < (size_t)bytes; at += taken, i++) {
        struct file_record r;
        CHECK(file_decode(log + at, (size_t)bytes - at, &r, &taken, &why) == FILE_RECORD);
        CHECK(i < sizeof want / sizeof *want && r.kind == want[i].kind);
        CHECK(r.key.bytes == strlen(want[i].key) && memcmp(r.key.data, want[i].key, r.key.bytes) == 0);
        if (want[i].value)
            CHECK(r.value.bytes == strlen(want[i].value) && memcmp(r.value.data, want[i].value, r.value.bytes) == 0);
        else
            CHECK(memmem(r.value.data, r.value.bytes, who, strlen(who)) != NULL);
    }
    CHECK(i == sizeof want / sizeof *want);
    unlink(path);
}

static void a_later_opener_finds_everything(void)
{
    fresh_path();
    comm_store *store = open_store(0);
    char *big = calloc(1, 3 * MIB);
    CHECK(big != NULL);
    for (int i = 0; i < 200; i++)
        CHECK_OK(comm_store_set(store, "again and again", big, (size_t)i * 100));
    memset(big, 'b', 3 * MIB);
    CHECK_OK(comm_store_set(store, "big", big, 3 * MIB)); /* longer than what is read at once */
    CHECK_OK(comm_store_queue_push(store, "q", "left", 4));
    CHECK_OK(comm_store_set(store, "last", "v", 1));
    comm_store_close(store);
    store = open_store(0);
    void *data;
    size_t bytes;
    CHECK_OK(comm_store_get(store, "big", LONG_MS, &data, &bytes));
    CHECK(bytes == 3 * MIB && memcmp(data, big, bytes) == 0);
    comm_free(data);
    CHECK_OK(comm_store_get(store, "again and again", LONG_MS, &data, &bytes));
    CHECK(bytes == 19900);
    comm_free(data);
    CHECK_OK(comm_store_queue_pop(store, "q", COMM_STORE_NO_WAIT, &data, &bytes));
    CHECK(strcmp(data, "left") == 0);
    comm_free(data);
    check_text(store, "last", "v");
    comm_store_close(store);
    free(big);
    unlink(path);
}

/* ---- Damage ---- */

/* The beginning of a record that its writer did not finish. */
static void put_torn(size_t bytes)
{
    const struct file_record r = { FILE_SET, { "torn", 4 }, { "never finished", 14 } };
    char record[100];
    file_encode(&r, record);
    put_bytes(O_APPEND, record, bytes);
}

static void a_torn_record_is_cut_off(void)
{
    const size_t lengths[] = { 1, 3, 4, 12, 23, 24, 27, 41 };
    fresh_path();
    comm_store *a = open_store(0), *b = open_store(0);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int32_t there = -7;
        const char *key = "torn";
        char number[8];
        CHECK_OK(comm_store_add(a, "n", 1, NULL));
        off_t before = file_bytes();
        put_torn(lengths[i]);
        CHECK_OK(comm_store_check(b, &key, 1, &there)); /* to read it is no error, and it is not there */
        CHECK(there == 0);
        CHECK_STATUS(comm_store_wait(b, &key, 1, SHORT_MS), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("killed while it wrote");
        CHECK_OK(comm_store_add(b, "n", 1, NULL));
        CHECK(file_bytes() == before + 24 + 1 + (i * 2 + 2 < 10 ? 1 : 2)); /* one record more, and the torn one less */
        snprintf(number, sizeof number, "%zu", i * 2 + 2);
        check_text(a, "n", number);
    }
    put_torn(30);
    comm_store_close(b); /* writes, too */
    comm_store *c = open_store(0);
    check_text(c, "n", "16");
    comm_store_close(c);
    comm_store_close(a);
    unlink(path);
}

static void check_damaged(comm_store *store, const char *words)
{
    void *data = (void *)8;
    size_t bytes = 4711;
    int64_t value = -7;
    const char *key = "k";
    CHECK_STATUS(comm_store_get(store, "k", LONG_MS, &data, &bytes), COMM_ERR_PROTOCOL);
    CHECK_ERROR_SAYS(words);
    CHECK_ERROR_SAYS(path);
    CHECK_ERROR_SAYS("offset");
    CHECK_ERROR_SAYS("delete it");
    CHECK_STATUS(comm_store_set(store, "k", "v", 1), COMM_ERR_PROTOCOL);
    CHECK_STATUS(comm_store_add(store, "k", 1, &value), COMM_ERR_PROTOCOL);
    CHECK_STATUS(comm_store_wait(store, &key, 1, LONG_MS), COMM_ERR_PROTOCOL);
    CHECK_STATUS(comm_store_queue_pop(store, "q", LONG_MS, &data, &bytes), COMM_ERR_PROTOCOL);
    CHECK(data == (void *)8 && bytes == 4711 && value == -7);
    CHECK(comm_status_scope(COMM_ERR_PROTOCOL) == COMM_SCOPE_OBJECT);
}

static void garbage_is_an_error_at_once(void)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *words;
    } rows[] = {
        { "#!/bin/sh\necho hello\n", 21, "no record begins there" },
        { "\0\0\0\0\0\0\0\0", 8, "no record begins there" },
        { "C", 1, NULL }, /* could still become one */
        { "\x09\0\0\0refcount/\x01\0\0\0"
          "1",
          18, "FileStore of PyTorch" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        comm_store *store = NULL;
        fresh_path();
        put_bytes(O_CREAT, rows[i].bytes, rows[i].count);
        if (rows[i].words) {
            CHECK_STATUS(try_open(0, &store), COMM_ERR_PROTOCOL);
            CHECK_ERROR_SAYS(rows[i].words);
            CHECK_ERROR_SAYS(path);
            CHECK_ERROR_SAYS("is no store of libcomm's, or is damaged");
            CHECK(!strstr(comm_last_error(), "delete it"));
            CHECK(file_bytes() == (off_t)rows[i].count); /* another program's file: not touched */
        } else {
            CHECK_OK(try_open(0, &store));
            comm_store_close(store);
        }
        unlink(path);
    }
    fresh_path();
    comm_store *a = open_store(0), *b = open_store(0);
    CHECK_OK(comm_store_set(a, "k", "v", 1));
    put_bytes(O_APPEND, "a line that somebody has appended\n", 34);
    check_damaged(a, "no record begins there");
    check_damaged(b, "no record begins there");
    comm_store *c = NULL;
    CHECK_STATUS(try_open(0, &c), COMM_ERR_PROTOCOL);
    comm_store_close(a);
    comm_store_close(b);
    unlink(path);
}

static void a_changed_byte_is_found(void)
{
    fresh_path();
    comm_store *a = open_store(0), *b = open_store(0);
    check_text(a, (comm_store_set(b, "k", "value", 5), "k"), "value");
    off_t end = file_bytes();
    CHECK_OK(comm_store_set(b, "other", "value", 5)); /* a has not read this one */
    int fd = open(path, O_WRONLY);
    CHECK(pwrite(fd, "X", 1, end + 26) == 1);
    close(fd);
    check_damaged(a, "checksum");
    comm_store_close(a);
    comm_store_close(b);
    unlink(path);
}

static void a_truncated_file_is_found(void)
{
    fresh_path();
    comm_store *store = open_store(0);
    CHECK_OK(comm_store_set(store, "k", "v", 1));
    CHECK(truncate(path, 30) == 0);
    check_damaged(store, "shorter");
    CHECK(truncate(path, 0) == 0);
    check_damaged(store, "shorter");
    comm_store_close(store);
    unlink(path);
}

/* ---- Deleted ---- */

struct waiter {
    pthread_t thread;
    comm_store *store;
    int64_t timeout_ms;
    comm_status status;
    char text[1024];
};

static void *waiter_main(void *context)
{
    struct waiter *w = context;
    void *data;
    w->status = comm_store_get(w->store, "never", w->timeout_ms, &data, NULL);
    snprintf(w->text, sizeof w->text, "%s", comm_last_error());
    return NULL;
}

static void start_for(struct waiter *w, comm_store *store, int64_t timeout_ms)
{
    w->store = store;
    w->timeout_ms = timeout_ms;
    CHECK(pthread_create(&w->thread, NULL, waiter_main, w) == 0);
    while (atomic_load(&store->calls) < 2)
        nanosleep(&(struct timespec){ 0, 100000 }, NULL);
}

static void start(struct waiter *w, comm_store *store)
{
    start_for(w, store, COMM_TIMEOUT_INFINITE);
}

static void a_deleted_file_is_found(void)
{
    for (int replace = 0; replace < 2; replace++) {
        fresh_path();
        comm_store *store = open_store(2), *other;
        struct waiter w;
        start(&w, store); /* for ever, unless it is told */
        if (replace) {
            char name[300];
            snprintf(name, sizeof name, "%s.new", path);
            int fd = open(name, O_CREAT | O_WRONLY, 0600);
            close(fd);
            CHECK(rename(name, path) == 0);
        } else {
            CHECK(unlink(path) == 0);
        }
        pthread_join(w.thread, NULL);
        CHECK_STATUS(w.status, COMM_ERR_PEER_LOST);
        CHECK(strstr(w.text, "deleted") && strstr(w.text, path));
        CHECK_STATUS(comm_store_set(store, "k", "v", 1), COMM_ERR_PEER_LOST);
        other = open_store(2); /* a file of the same name is another store */
        CHECK_OK(comm_store_set(other, "k", "v", 1));
        comm_store_close(store);
        CHECK(file_bytes() > 0); /* and not ours to delete */
        comm_store_close(other);
        unlink(path);
    }
}

/* ---- Opening ---- */

static void check_refused(const char *what, comm_status want, const char *words)
{
    comm_store *store = (comm_store *)8;
    comm_status status = comm_store_open(what, NULL, &store);
    if (status != want || !strstr(comm_last_error(), words) || store != (comm_store *)8)
        ranks_fail(__FILE__, __LINE__, "%s: %s, '%s', should be %s and say '%s'", what, comm_status_name(status),
                   comm_last_error(), comm_status_name(want), words);
}

static void bad_paths_are_refused(void)
{
    char text[400];
    check_refused("file://", COMM_ERR_INVALID, "absolute path");
    check_refused("file:///", COMM_ERR_INVALID, "absolute path");
    check_refused("file://relative/x", COMM_ERR_INVALID, "absolute path");
    check_refused("file:///x?world_size=0", COMM_ERR_INVALID, "world_size=0");
    check_refused("file:///x?world_size=2x", COMM_ERR_INVALID, "world_size=2x");
    check_refused("file:///x?world_size=-1", COMM_ERR_INVALID, "world_size=-1");
    check_refused("file:///x?size=2", COMM_ERR_INVALID, "size=2");
    check_refused("file:///x%", COMM_ERR_INVALID, "percent-encoded");
    check_refused("file:///x%2", COMM_ERR_INVALID, "'%2'");
    check_refused("file:///x%zz", COMM_ERR_INVALID, "'%zz'");
    check_refused("file:///x%00", COMM_ERR_INVALID, "'%00'");
    snprintf(text, sizeof text, "file://%s/no/such/folder", folder);
    check_refused(text, COMM_ERR_SYSTEM, "No such file");
    snprintf(text, sizeof text, "file://%s", folder);
    check_refused(text, COMM_ERR_SYSTEM, "Is a directory");
    fresh_path();
    CHECK(mkfifo(path, 0600) == 0);
    check_refused(url, COMM_ERR_INVALID, "not a regular file");
    unlink(path);
}

static void a_folder_or_file_without_permission_is_refused(void)
{
    char closed[300], text[400];
    uid_t user = geteuid();
    snprintf(closed, sizeof closed, "%s/closed", folder);
    CHECK(mkdir(closed, 0500) == 0);
    CHECK(user != 0 || seteuid(65534) == 0); /* to root everything is permitted */
    snprintf(text, sizeof text, "file://%s/store", closed);
    check_refused(text, COMM_ERR_SYSTEM, "Permission denied");
    CHECK(seteuid(user) == 0);
    rmdir(closed);
    fresh_path();
    put_bytes(O_CREAT, "", 0);
    CHECK(chmod(folder, 0755) == 0 && chmod(path, 0444) == 0);
    CHECK(user != 0 || seteuid(65534) == 0);
    check_refused(url, COMM_ERR_SYSTEM, "Permission denied");
    CHECK(seteuid(user) == 0);
    unlink(path);
}

static void the_last_of_the_world_removes_the_file(void)
{
    fresh_path();
    comm_store *a = open_store(3), *b = open_store(3);
    CHECK_OK(comm_store_set(a, "k", "v", 1));
    comm_store_close(a); /* not all have come: the file stays */
    comm_store *c = open_store(3);
    check_text(c, "k", "v");
    comm_store_close(b);
    check_text(c, "k", "v");
    comm_store_close(c);
    CHECK(file_bytes() == -1);
    strcat(url, "?world_size=1");
    a = open_store(0);
    comm_store_close(a);
    CHECK(file_bytes() == -1);
}

static void one_more_than_the_world_is_refused(void)
{
    fresh_path();
    comm_store *a = open_store(2), *b = open_store(2), *c = (comm_store *)8;
    CHECK_STATUS(try_open(2, &c), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("2 times");
    CHECK_ERROR_SAYS("world of 2");
    comm_store_close(a);
    int status;
    fflush(NULL);
    pid_t child = fork(); /* has closed nothing here, so it does not come for the next world */
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        CHECK_STATUS(try_open_for(LONG_MS, 2, &c), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("in use");
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(c == (comm_store *)8);
    comm_store_close(b);
    CHECK(file_bytes() == -1);
}

static void *open_for_the_next_world(void *context)
{
    struct waiter *w = context;
    w->status = try_open_for(w->timeout_ms, 2, &w->store);
    snprintf(w->text, sizeof w->text, "%s", comm_last_error());
    return NULL;
}

static void start_next_world(struct waiter *w)
{
    *w = (struct waiter){ .timeout_ms = LONG_MS };
    CHECK(pthread_create(&w->thread, NULL, open_for_the_next_world, w) == 0);
}

static void the_next_world_waits_until_the_file_is_removed(void)
{
    fresh_path();
    comm_store *a = open_store(2), *b = open_store(2), *c = (comm_store *)8;
    char who[64];
    struct waiter w;
    CHECK_OK(comm_store_set(a, "k", "v", 1));
    comm_store_close(a);
    CHECK_STATUS(try_open_for(SHORT_MS, 2, &c), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("others of its world have not");
    CHECK_ERROR_SAYS(path);
    snprintf(who, sizeof who, ":%d", (int)getpid());
    CHECK_ERROR_SAYS(who);
    CHECK(c == (comm_store *)8);
    check_text(b, "k", "v");
    start_next_world(&w);
    comm_store_close(b);
    pthread_join(w.thread, NULL);
    CHECK(w.status == COMM_OK);
    int32_t there = -7;
    CHECK_OK(comm_store_check(w.store, (const char *[]){ "k" }, 1, &there));
    CHECK(there == 0);
    b = open_store(2);
    comm_store_close(w.store);
    comm_store_close(b);
    CHECK(file_bytes() == -1);
}

static void *open_and_close(void *context)
{
    atomic_int *opened = context;
    for (int i = 0; i < 200; i++) {
        comm_store *store;
        comm_status status = try_open(1, &store);
        if (status != COMM_OK) {
            CHECK_STATUS(status, COMM_ERR_INVALID);
            CHECK_ERROR_SAYS("in use");
            continue;
        }
        CHECK_OK(comm_store_set(store, "k", "v", 1)); /* never in a file that has been removed */
        comm_store_close(store);
        atomic_fetch_add(opened, 1);
    }
    return NULL;
}

static void opening_while_another_removes_the_file(void)
{
    pthread_t threads[3];
    atomic_int opened = 0;
    fresh_path();
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, open_and_close, &opened) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK(opened > 0); /* how many of them met an open file is a matter of luck */
    CHECK(file_bytes() == -1);
}

/* ---- Other processes that die or stop ---- */

/* Run in a child that opens a handle of its own; returns when the child has said it is ready, or died. */
static pid_t start_child(void (*fn)(comm_store *store, int ready_fd))
{
    int ready[2];
    char byte;
    CHECK(pipe(ready) == 0);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        fn(open_store(0), ready[1]);
        _exit(0); /* without closing the store */
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) >= 0);
    close(ready[0]);
    return child;
}

static void say_ready(int ready_fd)
{
    CHECK(write(ready_fd, "r", 1) == 1);
}

static void join_child(pid_t child, int want_signal)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (want_signal ? !WIFSIGNALED(status) || WTERMSIG(status) != want_signal
                    : !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        ranks_fail(__FILE__, __LINE__, "the child ended with status 0x%x, not by signal %d", (unsigned)status,
                   want_signal);
}

static void set_and_wait_for_the_end(comm_store *store, int ready_fd)
{
    CHECK_OK(comm_store_set(store, "child's", "v", 1));
    say_ready(ready_fd);
    for (;;)
        pause();
}

static void a_file_of_a_crashed_job_is_refused(void)
{
    char who[64];
    comm_store *store = (comm_store *)8;
    fresh_path();
    pid_t child = start_child(set_and_wait_for_the_end);
    snprintf(who, sizeof who, ":%d", (int)child);
    kill(child, SIGKILL);
    join_child(child, SIGKILL);
    off_t bytes = file_bytes();
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(try_open(i * 4, &store), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("crashed");
        CHECK_ERROR_SAYS(who);
        CHECK_ERROR_SAYS("delete it");
        CHECK_ERROR_SAYS(path);
    }
    CHECK(store == (comm_store *)8 && file_bytes() == bytes);
    CHECK(unlink(path) == 0); /* the cure */
    comm_store_close(open_store(0));
    unlink(path);
}

static void those_who_live_go_on_when_one_crashes(void)
{
    const char *key = "never";
    char who[64];
    fresh_path();
    comm_store *store = open_store(2);
    pid_t child = start_child(set_and_wait_for_the_end);
    check_text(store, "child's", "v");
    kill(child, SIGKILL);
    join_child(child, SIGKILL);
    check_text(store, "child's", "v");
    CHECK_STATUS(comm_store_wait(store, &key, 1, SHORT_MS), COMM_ERR_TIMEOUT); /* and names the process that is gone */
    snprintf(who, sizeof who, ":%d", (int)child);
    CHECK_ERROR_SAYS("gone without closing it");
    CHECK_ERROR_SAYS(who);
    snprintf(who, sizeof who, ":%d", (int)getpid());
    CHECK_ERROR_SAYS(who);
    comm_store *again = open_store(2); /* in its place */
    check_text(again, "child's", "v");
    comm_store_close(again);
    comm_store_close(store);
    CHECK(file_bytes() == -1); /* the world came, and has gone */
}

static void the_next_world_does_not_wait_for_the_dead(void)
{
    char who[64];
    struct waiter w;
    comm_store *c;
    fresh_path();
    comm_store *store = open_store(2);
    pid_t child = start_child(set_and_wait_for_the_end);
    comm_store_close(store);
    snprintf(who, sizeof who, ":%d", (int)child);
    CHECK_STATUS(try_open_for(SHORT_MS, 2, &c), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS(who);
    start_next_world(&w);
    kill(child, SIGKILL);
    join_child(child, SIGKILL);
    pthread_join(w.thread, NULL);
    CHECK(w.status == COMM_ERR_INVALID && strstr(w.text, "crashed") && strstr(w.text, who));
    unlink(path);

    fresh_path();
    store = open_store(2);
    comm_store *forgets = open_store(0); /* does not remove the file, for it knows of no world */
    comm_store_close(store);
    comm_store_close(forgets);
    CHECK_STATUS(try_open_for(LONG_MS, 2, &c), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("left from an earlier job");
    unlink(path);
}

/* The kernel ends the write in the middle, and then the process: the file may not grow any more. */
static void die_in_a_write(comm_store *store, int ready_fd)
{
    static char big[MIB];
    struct rlimit limit = { (rlim_t)file_bytes() + MIB / 2, (rlim_t)file_bytes() + MIB / 2 };
    setrlimit(RLIMIT_FSIZE, &limit);
    (void)ready_fd;
    comm_store_set(store, "torn", big, sizeof big);
}

static void a_writer_that_dies_in_the_middle_is_cut_off(void)
{
    fresh_path();
    comm_store *store = open_store(0);
    for (int i = 1; i <= 3; i++) {
        char number[8];
        int32_t there = -7;
        const char *key = "torn";
        CHECK_OK(comm_store_add(store, "n", 1, NULL));
        off_t before = file_bytes();
        join_child(start_child(die_in_a_write), SIGXFSZ);
        CHECK(file_bytes() > before + MIB / 4); /* it did leave half a record */
        CHECK_OK(comm_store_check(store, &key, 1, &there));
        CHECK(there == 0);
        snprintf(number, sizeof number, "%d", i);
        check_text(store, "n", number);
    }
    CHECK_OK(comm_store_add(store, "n", 1, NULL));
    CHECK(file_bytes() < MIB / 4);
    comm_store *other = open_store(0);
    check_text(other, "n", "4");
    comm_store_close(other);
    comm_store_close(store);
    unlink(path);
}

static void fill_the_disk(comm_store *store, int ready_fd)
{
    static char big[MIB];
    struct rlimit limit = { (rlim_t)file_bytes() + MIB / 2, RLIM_INFINITY };
    (void)ready_fd;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    off_t before = file_bytes();
    CHECK_STATUS(comm_store_set(store, "big", big, sizeof big), COMM_ERR_SYSTEM);
    CHECK_ERROR_SAYS("File too large");
    CHECK_ERROR_SAYS(path);
    CHECK(file_bytes() == before);
    CHECK_STATUS(comm_store_append(store, "kept", big, sizeof big), COMM_ERR_SYSTEM);
    CHECK_STATUS(comm_store_queue_push(store, "q", big, sizeof big), COMM_ERR_SYSTEM);
    CHECK(file_bytes() == before);
    check_text(store, "kept", "as it was");
    CHECK_OK(comm_store_set(store, "small", "v", 1)); /* the store is as good as before */
    comm_store_close(store);
}

static void a_full_disk_is_an_error_and_no_damage(void)
{
    fresh_path();
    comm_store *store = open_store(0);
    CHECK_OK(comm_store_set(store, "kept", "as it was", 9));
    join_child(start_child(fill_the_disk), 0);
    check_text(store, "small", "v");
    check_text(store, "kept", "as it was");
    comm_store_close(store);
    unlink(path);
}

/* A file system that is full indeed, if we may have one. */
static void fill_a_small_disk(comm_store *unused, int ready_fd)
{
    static char page[4096];
    int kept = 0;
    (void)unused;
    (void)ready_fd;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=128k") != 0) {
        printf("  not tried: no file system of our own: %s\n", strerror(errno));
        exit(0);
    }
    comm_store *store = open_store(0), *other = open_store(0);
    char key[24];
    comm_status status = COMM_OK;
    for (; status == COMM_OK && kept < 1000; kept += status == COMM_OK) {
        snprintf(key, sizeof key, "page %d", kept);
        status = comm_store_set(store, key, page, sizeof page);
    }
    CHECK(status == COMM_ERR_SYSTEM && kept > 4);
    CHECK_ERROR_SAYS("No space left on device");
    CHECK_ERROR_SAYS(path);
    for (int i = 0; i < kept; i++) {
        int32_t there = 0;
        snprintf(key, sizeof key, "page %d", i);
        CHECK_OK(comm_store_check(other, (const char *[]){ key }, 1, &there));
        CHECK(there == 1);
    }
    comm_store_close(other);
    comm_store_close(store);
}

static void a_disk_without_space_loses_nothing(void)
{
    fresh_path();
    comm_store *store = open_store(0);
    join_child(start_child(fill_a_small_disk), 0);
    comm_store_close(store);
    unlink(path);
}

static void write_all_the_time(comm_store *store, int ready_fd)
{
    static char big[300000];
    for (int i = 0;; i++) {
        CHECK_OK(comm_store_add(store, "child's", 1, NULL));
        CHECK_OK(comm_store_set(store, "big", big, (size_t)(i * 7919) % sizeof big));
        if (i == 3)
            say_ready(ready_fd);
    }
}

static void killed_writers_harm_nobody(void)
{
    fresh_path();
    comm_store *store = open_store(0);
    for (int i = 1; i <= 8; i++) {
        pid_t child = start_child(write_all_the_time);
        for (int k = 0; k < i; k++) /* at another moment each time */
            CHECK_OK(comm_store_add(store, "ours", 1, NULL));
        kill(child, SIGKILL);
        join_child(child, SIGKILL);
        CHECK_OK(comm_store_add(store, "child's", 0, NULL));
    }
    check_text(store, "ours", "36");
    comm_store_close(store);
    unlink(path);
}

static void stop_with_the_lock(comm_store *store, int ready_fd)
{
    struct file_share share;
    struct store_wait wait = { clock_now_ns(), clock_deadline_ns(LONG_MS), NULL };
    CHECK_OK(file_share_open(&share, path, 0, &wait));
    CHECK_OK(file_enter(&share, FILE_WRITE, &wait));
    say_ready(ready_fd);
    raise(SIGSTOP);
    file_leave(&share, COMM_OK);
    file_share_close(&share, 0);
    comm_store_close(store);
}

static void a_stopped_process_costs_the_others_their_time_limit(void)
{
    struct waiter w;
    void *data = (void *)8;
    int status;
    fresh_path();
    comm_store *store = open_store(0), *handle;
    pid_t child = start_child(stop_with_the_lock);
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    CHECK_STATUS(comm_store_get(store, "k", SHORT_MS, &data, NULL), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("is it stopped?");
    CHECK_ERROR_SAYS(path);
    CHECK_OK(comm_store_clone(store, &handle));
    start(&w, handle);
    comm_store_close(handle); /* a thread that waits for the lock can be ended, too */
    pthread_join(w.thread, NULL);
    CHECK_STATUS(w.status, COMM_ERR_ABORTED);
    kill(child, SIGCONT);
    CHECK_OK(comm_store_set(store, "k", "v", 1));
    join_child(child, 0);
    comm_store_close(store);
    unlink(path);
}

/* The lock is taken by another only when most of the time has gone by without the key: then the key is the news. */
static void a_late_lock_does_not_hide_the_missing_key(void)
{
    enum { LIMIT_MS = 1500 };
    struct waiter w;
    struct file_share share;
    fresh_path();
    comm_store *store = open_store(0);
    struct store_wait wait = { clock_now_ns(), clock_deadline_ns(LONG_MS), NULL };
    CHECK_OK(file_share_open(&share, path, 0, &wait));
    int64_t began_ns = clock_now_ns();
    start_for(&w, store, LIMIT_MS);
    while (clock_now_ns() < began_ns + LIMIT_MS * (int64_t)1000000 * 3 / 4)
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    CHECK_OK(file_enter(&share, FILE_WRITE, &wait));
    pthread_join(w.thread, NULL);
    file_leave(&share, COMM_OK);
    CHECK(w.status == COMM_ERR_TIMEOUT); /* its text is the other thread's */
    if (!strstr(w.text, "'never'") || strstr(w.text, "locked"))
        ranks_fail(__FILE__, __LINE__, "'%s' does not speak of the key alone", w.text);
    file_share_close(&share, 0);
    comm_store_close(store);
    unlink(path);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    { "the log holds one record for each change", the_log_holds_one_record_for_each_change },
    { "a later opener finds everything", a_later_opener_finds_everything },
    { "a torn record is cut off", a_torn_record_is_cut_off },
    { "garbage is an error at once", garbage_is_an_error_at_once },
    { "a changed byte is found", a_changed_byte_is_found },
    { "a truncated file is found", a_truncated_file_is_found },
    { "a deleted file is found", a_deleted_file_is_found },
    { "bad paths are refused", bad_paths_are_refused },
    { "a folder or file without permission is refused", a_folder_or_file_without_permission_is_refused },
    { "the last of the world removes the file", the_last_of_the_world_removes_the_file },
    { "one more than the world is refused", one_more_than_the_world_is_refused },
    { "the next world waits until the file is removed", the_next_world_waits_until_the_file_is_removed },
    { "opening while another removes the file", opening_while_another_removes_the_file },
    { "a file of a crashed job is refused", a_file_of_a_crashed_job_is_refused },
    { "those who live go on when one crashes", those_who_live_go_on_when_one_crashes },
    { "the next world does not wait for the dead", the_next_world_does_not_wait_for_the_dead },
    { "a writer that dies in the middle is cut off", a_writer_that_dies_in_the_middle_is_cut_off },
    { "a full disk is an error and no damage", a_full_disk_is_an_error_and_no_damage },
    { "a disk without space loses nothing", a_disk_without_space_loses_nothing },
    { "a late lock does not hide the missing key", a_late_lock_does_not_hide_the_missing_key },
    { "killed writers harm nobody", killed_writers_harm_nobody },
    { "a stopped process costs the others their time limit", a_stopped_process_costs_the_others_their_time_limit },
};

int main(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/comm-file-XXXXXX", base && *base ? base : "/tmp");
    CHECK(mkdtemp(folder) != NULL);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        printf("%s\n", tests[i].name);
        fflush(stdout);
        alarm(60);
        tests[i].run();
        alarm(0);
    }
    CHECK(rmdir(folder) == 0); /* nothing is left over */
    return 0;
}

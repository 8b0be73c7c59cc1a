/* file:// as a meeting point of real processes: once, again at the same path, after a crash, and with one too many. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

enum { SIZE = 4, LONG_MS = 30000, SHORT_MS = 200 };

static void url_of(char url[400], int rank, int size)
{
    int bytes = snprintf(url, 400, "file://%s/meet", ranks_folder());
    if (rank >= 0)
        snprintf(url + bytes, 400 - (size_t)bytes, "?rank=%d&world_size=%d", rank, size);
}

static int file_is_there(void)
{
    char path[400];
    url_of(path, -1, 0);
    return access(path + strlen("file://"), F_OK) == 0;
}

/* All are here; not by the file under test. */
static void together(int size, const char *where)
{
    comm_store *store = ranks_store();
    CHECK_OK(comm_store_barrier(store, where, size, LONG_MS));
    comm_store_close(store);
}

static void meet_and_part(int rank, int size, int by_arguments)
{
    char url[400];
    comm_store *store;
    int32_t got_rank = -7, got_size = -7;
    int64_t sum = 0;
    url_of(url, by_arguments ? -1 : rank, size);
    CHECK_OK(
        comm_rendezvous(url, by_arguments ? rank : 0, by_arguments ? size : 0, LONG_MS, &store, &got_rank, &got_size));
    CHECK(got_rank == rank && got_size == size && strcmp(comm_store_kind(store), "file") == 0);
    CHECK(comm_store_timeout(store) == LONG_MS);
    CHECK_OK(comm_store_all_sum(store, "sum", rank + 1, rank, size, LONG_MS, &sum));
    CHECK(sum == size * (size + 1) / 2);
    comm_store_close(store);
}

static void at_one_path_again_and_again(int rank, int size, void *arg)
{
    char where[32];
    (void)arg;
    for (int i = 0; i < 6; i++) {
        meet_and_part(rank, size, i % 2);
        snprintf(where, sizeof where, "parted %d", i);
        together(size, where);
        CHECK(!file_is_there()); /* the last one has removed it, so the keys of one run never reach the next */
        snprintf(where, sizeof where, "seen %d", i);
        together(size, where);
    }
}

static void a_world_meets_there(int rank, int size, void *arg)
{
    char url[400];
    (void)arg;
    for (int i = 0; i < 2; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world;
        int64_t sum = rank;
        url_of(url, rank, size);
        options.rendezvous = url;
        options.backend = "tcp";
        options.timeout_ms = LONG_MS;
        CHECK_OK(comm_init(&options, &world));
        CHECK_OK(comm_all_reduce(world, &sum, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
        CHECK(sum == size * (size - 1) / 2);
        CHECK_OK(comm_group_close(world));
        together(size, i ? "closed again" : "closed");
        CHECK(!file_is_there());
        together(size, i ? "seen again" : "seen");
    }
}

/* The ranks part at different times, and the first to leave comes first to the next world. */
static void one_world_after_the_other(int rank, int size, void *arg)
{
    char url[400];
    (void)arg;
    url_of(url, rank, size);
    for (int i = 0; i < 20; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world;
        options.rendezvous = url;
        options.backend = "shm";
        options.timeout_ms = LONG_MS;
        if (i % 2) {
            meet_and_part(rank, size, 0);
            continue;
        }
        CHECK_OK(comm_init(&options, &world));
        CHECK_OK(comm_group_close(world));
    }
    together(size, "done");
    CHECK(!file_is_there());
}

static void who_is_missing_is_named(int rank, int size, void *arg)
{
    char url[400];
    (void)arg;
    if (rank != size - 1) { /* the last one does not come */
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world = NULL;
        url_of(url, rank, size);
        options.rendezvous = url;
        options.backend = "tcp";
        options.timeout_ms = SHORT_MS * 5;
        CHECK_STATUS(comm_init(&options, &world), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("3");
        CHECK(!world);
    }
    together(size, "over");
}

static void one_too_many_is_refused(int rank, int size, void *arg)
{
    char url[400];
    comm_store *store = NULL;
    int32_t got_rank, got_size;
    (void)arg;
    if (rank == size - 1) {
        together(size, "met");
        url_of(url, 0, size - 1); /* says that it is rank 0 of a world that is complete */
        CHECK_STATUS(comm_rendezvous(url, 0, 0, LONG_MS, &store, &got_rank, &got_size), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("by all of a world of 3");
        CHECK_ERROR_SAYS("in use");
        together(size, "refused");
        return;
    }
    url_of(url, rank, size - 1);
    CHECK_OK(comm_rendezvous(url, 0, 0, LONG_MS, &store, &got_rank, &got_size));
    together(size, "met");
    together(size, "refused");
    comm_store_close(store);
}

/* A whole job is killed; the next one at that path is told on every rank, in any order, and starts after the
 * cure. */
static void after_a_crash_all_are_told(int rank, int size, void *arg)
{
    char url[400];
    comm_store *store = NULL;
    int32_t got_rank, got_size;
    (void)arg;
    url_of(url, rank, size);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        CHECK_OK(comm_rendezvous(url, 0, 0, LONG_MS, &store, &got_rank, &got_size));
        CHECK_OK(comm_store_set(store, "address", "of the dead", 11));
        CHECK_OK(comm_store_barrier(store, "up", size, LONG_MS));
        raise(SIGKILL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    together(size, "killed");
    CHECK_STATUS(comm_rendezvous(url, 0, 0, LONG_MS, &store, &got_rank, &got_size), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("left from a job that crashed");
    CHECK_ERROR_SAYS("delete it");
    CHECK(!store);
    together(size, "told");
    url_of(url, -1, 0);
    if (rank == 0)
        CHECK(unlink(url + strlen("file://")) == 0);
    together(size, "cured");
    meet_and_part(rank, size, 0);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(int rank, int size, void *arg);
    } tests[] = {
        { "at one path again and again", at_one_path_again_and_again },
        { "a world meets there", a_world_meets_there },
        { "one world after the other", one_world_after_the_other },
        { "who is missing is named", who_is_missing_is_named },
        { "one too many is refused", one_too_many_is_refused },
        { "after a crash all are told", after_a_crash_all_are_told },
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        const struct ranks_options options = { .name = tests[i].name };
        failed |= ranks_run(SIZE, &options, tests[i].run, NULL);
    }
    return failed;
}

/* What is a hash store's alone: handles find each other by name, also when they come and go at the same moment. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

enum { THREADS = 4, ROUNDS = 4000 };

static atomic_int came;

/* All threads leave this within nanoseconds of one another, if there are as many cores. */
static void gate(int round)
{
    atomic_fetch_add(&came, 1);
    while (atomic_load(&came) < (round + 1) * THREADS)
        sched_yield();
}

static comm_store *open_store(const char *url)
{
    comm_store *store;
    CHECK_OK(comm_store_open(url, NULL, &store));
    return store;
}

static void run_threads(void *(*main)(void *))
{
    pthread_t threads[THREADS];
    came = 0;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, main, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void *open_at_one_moment(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        char url[32];
        int64_t count = -7;
        snprintf(url, sizeof url, "hash://moment-%d", i);
        gate(i);
        comm_store *store = open_store(url);
        CHECK_OK(comm_store_add(store, "here", 1, NULL));
        CHECK_OK(comm_store_barrier(store, "all", THREADS, 5000)); /* never all, if there are two tables */
        CHECK_OK(comm_store_add(store, "here", 0, &count));
        CHECK(count == THREADS);
        comm_store_close(store);
    }
    return unused;
}

static void *come_and_go(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        int64_t count = -7;
        comm_store *store = open_store("hash://busy");
        CHECK_OK(comm_store_add(store, "inside", 1, &count));
        CHECK(count >= 1 && count <= THREADS); /* a table goes with its last handle */
        CHECK_OK(comm_store_add(store, "inside", -1, NULL));
        comm_store_close(store);
    }
    return unused;
}

static int is_there(comm_store *store)
{
    const char *key = "k";
    int32_t all = -7;
    CHECK_OK(comm_store_check(store, &key, 1, &all));
    return all;
}

static void names_are_apart(void)
{
    comm_store *a = open_store("hash://a"), *b = open_store("hash://b"), *again = open_store("HASH://a");
    comm_store *lone = open_store("hash://"), *other = open_store("hash://");
    CHECK_OK(comm_store_set(a, "k", "v", 1));
    CHECK_OK(comm_store_set(lone, "k", "v", 1));
    CHECK(is_there(again) && !is_there(b) && !is_there(other));
    comm_store_close(a);
    CHECK(is_there(again));
    comm_store_close(again);
    a = open_store("hash://a"); /* a fresh one */
    CHECK(!is_there(a));
    comm_store_close(a);
    comm_store_close(b);
    comm_store_close(lone);
    comm_store_close(other);
}

/* It is another process, whatever it has a copy of. */
static void a_child_of_fork_has_names_of_its_own(void)
{
    int status = -1;
    comm_store *store = open_store("hash://family");
    CHECK_OK(comm_store_set(store, "k", "v", 1));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        comm_store *own = open_store("hash://family"), *again = open_store("hash://family");
        CHECK(!is_there(own));
        CHECK_OK(comm_store_set(own, "k", "v", 1));
        CHECK(is_there(again));
        comm_store_close(own);
        comm_store_close(again);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(is_there(store));
    comm_store_close(store);
}

/* Of a store of any kind: they are checked before its scheme is looked at. */
static void wrong_options_are_refused(void)
{
    static const char *const says[] = { "options.timeout_ms is -5", "options.world_size is -3",
                                        "options.reserved is 7" };
    comm_store_options wrong[3] = { COMM_STORE_OPTIONS_INIT, COMM_STORE_OPTIONS_INIT, COMM_STORE_OPTIONS_INIT };
    comm_store *store;
    wrong[0].timeout_ms = -5;
    wrong[1].world_size = -3;
    wrong[2].reserved = 7;
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(comm_store_open("hash://", &wrong[i], &store), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS(says[i]);
    }
    wrong[0].timeout_ms = COMM_TIMEOUT_INFINITE;
    CHECK_OK(comm_store_open("hash://", &wrong[0], &store));
    CHECK(comm_store_timeout(store) == COMM_TIMEOUT_INFINITE);
    comm_store_close(store);
}

int main(void)
{
    alarm(100);
    names_are_apart();
    a_child_of_fork_has_names_of_its_own();
    wrong_options_are_refused();
    run_threads(open_at_one_moment);
    run_threads(come_and_go);
    return 0;
}

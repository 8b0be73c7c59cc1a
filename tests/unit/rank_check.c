/* comm_host.rank_check: a backend that would not notice that a rank's process has ended is told. */
#include <comm/backend.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "ranks.h"

/* ---- A backend that moves nothing ---- */

static const comm_host *host;
static void *token;

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context;
    *ret_world = (void *)(uintptr_t)info;
    return COMM_OK;
}

static void world_close(void *world, int32_t forked)
{
    (void)world, (void)forked;
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    token = info->token;
    *ret_state = world;
    return COMM_OK;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    (void)state, (void)status, (void)reason;
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    (void)state, (void)ops;
    for (size_t i = 0; i < count; i++)
        host->work_complete(works[i], COMM_OK, NULL);
    return COMM_OK;
}

static const comm_backend *mute_entry(const comm_host *given)
{
    static const comm_backend mute = {
        COMM_BACKEND_INIT,
        .name = "mute",
        .version = "1",
        .license = "Apache-2.0",
        .devices = "cpu,xpu",
        .world_open = world_open,
        .world_close = world_close,
        .group_open = group_open,
        .group_abort = group_abort,
        .group_close = world_close,
        .submit = submit,
    };
    host = given;
    return &mute;
}

/* ---- */

static void all_are_there(int size)
{
    for (int times = 0; times < 2; times++)
        for (int32_t other = 0; other < size; other++)
            CHECK_OK(host->rank_check(token, other));
}

static void wait_until_ended(int32_t rank)
{
    while (host->rank_check(token, rank) == COMM_OK)
        poll(NULL, 0, 1);
    CHECK_STATUS(host->rank_check(token, rank), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("its process has ended, or it has closed its world");
}

static void meet(const char *key, int size)
{
    int64_t there = 0;
    comm_store *store = ranks_store();
    CHECK_OK(comm_store_add(store, key, 1, &there));
    while (there < size) {
        poll(NULL, 0, 1);
        CHECK_OK(comm_store_add(store, key, 0, &there));
    }
    comm_store_close(store);
}

static void a_killed_rank_is_noticed(int rank, int size, void *arg)
{
    CHECK_OK(comm_backend_register(mute_entry));
    comm_group *world = ranks_world("cpu:mute");
    int last = size - 1;
    (void)arg;
    all_are_there(size);
    meet("looked", size);
    if (rank == last)
        raise(SIGKILL);
    wait_until_ended(last);
    for (int32_t other = 0; other < last; other++)
        CHECK_OK(host->rank_check(token, other));
    meet("noticed", last);
    CHECK_OK(comm_group_close(world));
}

/* Also by a rank that has not looked before, and although a child of the rank's lives on. */
static void its_children_do_not_hide_it(int rank, int size, void *arg)
{
    CHECK_OK(comm_backend_register(mute_entry));
    comm_group *world = ranks_world("cpu:mute");
    int ends[2];
    char byte;
    (void)arg;
    meet("open", size);
    if (rank == 0) {
        CHECK(pipe(ends) == 0);
        if (fork() == 0) {
            alarm(20);
            (void)!read(ends[0], &byte, 1); /* it has the other end itself: until the alarm */
            _exit(0);
        }
        meet("forked", size);
        raise(SIGKILL);
    }
    meet("forked", size);
    wait_until_ended(0);
    meet("noticed", size - 1);
    CHECK_OK(comm_group_close(world));
}

static void one_that_has_left_counts_as_ended(int rank, int size, void *arg)
{
    CHECK_OK(comm_backend_register(mute_entry));
    comm_group *world = ranks_world("cpu:tcp,xpu:mute");
    (void)arg;
    all_are_there(size);
    meet("looked", size);
    if (rank == 1)
        CHECK_OK(comm_group_close(world));
    else
        wait_until_ended(1);
    meet("left", size);
    if (rank != 1)
        CHECK_OK(comm_group_close(world));
}

static void a_stopped_one_is_there(int rank, int size, void *arg)
{
    CHECK_OK(comm_backend_register(mute_entry));
    comm_group *world = ranks_world("cpu:mute");
    (void)arg;
    comm_store *store = ranks_store();
    if (rank == 0) {
        void *pid;
        size_t bytes;
        CHECK_OK(comm_store_get(store, "pid", 20000, &pid, &bytes));
        pid_t stopped = *(pid_t *)pid;
        comm_free(pid);
        CHECK(kill(stopped, SIGSTOP) == 0);
        all_are_there(size);
        CHECK(kill(stopped, SIGCONT) == 0);
    } else {
        pid_t pid = getpid();
        CHECK_OK(comm_store_set(store, "pid", &pid, sizeof pid));
    }
    meet("done", size);
    comm_store_close(store);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    struct ranks_options last_may_die = { .may_fail = 1 << 2 }, first_may_die = { .may_fail = 1 << 0 };
    int failed = ranks_run(3, &last_may_die, a_killed_rank_is_noticed, NULL);
    failed |= ranks_run(3, &first_may_die, its_children_do_not_hide_it, NULL);
    failed |= ranks_run(4, NULL, one_that_has_left_counts_as_ended, NULL);
    failed |= ranks_run(2, NULL, a_stopped_one_is_there, NULL);
    return failed;
}

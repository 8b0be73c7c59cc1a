/* Backends that wrap others: the plugin of tests/support/delay.c, which must forward what the core asks of it, and
 * a backend here that makes works with host->work_create and is careless with them. COMM_PLUGIN_PATH leads to the
 * plugin; argv[1] is its file. With three more arguments it is another one that must forward the same: backend strings
 * on tcp, loopback and pretend. */
#include <comm/backend.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loopback.h"
#include "pretend.h"
#include "ranks.h"

enum { CPU = COMM_DEVICE_CPU };

static comm_work *post(comm_group *group, int32_t from)
{
    comm_work *work;
    CHECK_OK(comm_recv(group, NULL, 0, COMM_DTYPE_BYTE, from, NULL, &work));
    return work;
}

/* Wait as an event loop does: without helping. */
static void await(comm_work *work)
{
    int32_t fd;
    CHECK_OK(comm_work_fd(work, &fd));
    struct pollfd poller = { fd, POLLIN, 0 };
    CHECK(poll(&poller, 1, 30000) == 1);
}

static void check_sum(comm_group *group)
{
    int32_t value = 1;
    CHECK_OK(comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(value == comm_group_size(group));
}

/* Not by an operation of the group's, which a rank that goes on first could end. */
static void all_are_here(int size)
{
    comm_store *store = ranks_store();
    const char *all = "all are here";
    int64_t came;
    CHECK_OK(comm_store_add(store, "came", 1, &came));
    if (came == size)
        CHECK_OK(comm_store_set(store, all, "1", 1));
    CHECK_OK(comm_store_wait(store, &all, 1, 20000));
    comm_store_close(store);
}

/* ---- What is forwarded ---- */

static void groups_open_on_it(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend), *dup, *half, *of_half;
    int32_t got = -1;
    check_sum(world);
    CHECK_OK(comm_group_dup(world, NULL, &dup));
    CHECK_OK(comm_group_split(world, rank % 2, rank, NULL, &half));
    CHECK_OK(comm_group_dup(half, NULL, &of_half));
    check_sum(of_half);
    check_sum(dup);
    check_sum(half);
    comm_work *work; /* the facts of a receive come through */
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.tag = 40 + rank;
    CHECK_OK(comm_send(dup, &rank, 1, COMM_DTYPE_I32, (rank + 1) % size, &options, &work));
    comm_work *receive;
    options.tag = COMM_ANY_TAG;
    CHECK_OK(comm_recv(dup, &got, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, &options, &receive));
    CHECK_OK(comm_work_wait(receive, 0));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(got == (rank + size - 1) % size);
    CHECK(comm_work_source_rank(receive) == got && comm_work_tag(receive) == 40 + got);
    CHECK(comm_work_received_count(receive) == 1);
    comm_work_release(receive);
    comm_work_release(work);
    CHECK_OK(comm_group_close(of_half));
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(dup));
    CHECK_OK(comm_group_close(world));
}

static void a_batch_goes_through(int rank, int size, void *backend)
{
    enum { WORKS = 5 };
    comm_group *world = ranks_world(backend);
    int32_t values[WORKS];
    comm_work *batch;
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < WORKS; i++) {
        values[i] = rank + i;
        CHECK_OK(comm_all_reduce(world, &values[i], &values[i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    }
    CHECK_OK(comm_coalesce_end(world, NULL, &batch));
    await(batch);
    CHECK_OK(comm_work_wait(batch, 0));
    for (int i = 0; i < WORKS; i++)
        CHECK(values[i] == size * i + size * (size - 1) / 2);
    comm_work_release(batch);
    CHECK_OK(comm_group_flush(world, 0));
    CHECK_OK(comm_group_close(world));
}

static void abort_ends_it_on_all_ranks(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    check_sum(world);
    comm_work *work = post(world, COMM_ANY_SOURCE);
    all_are_here(size);
    if (rank == 0)
        CHECK_OK(comm_group_abort(world, "enough of it"));
    await(work);
    CHECK(comm_work_status(work) == COMM_ERR_ABORTED);
    CHECK(strstr(comm_work_error(work), "enough of it") != NULL);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_ABORTED);
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

static void close_ends_what_is_pending(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    (void)rank, (void)size;
    comm_work *work = post(world, COMM_ANY_SOURCE);
    CHECK_OK(comm_group_close(world));
    CHECK(comm_work_status(work) == COMM_ERR_ABORTED);
    comm_work_release(work);
}

static void a_lost_rank_is_named(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    check_sum(world);
    comm_work *work = rank == 1 ? NULL : post(world, 1);
    all_are_here(size);
    if (rank == 1)
        raise(SIGKILL);
    await(work);
    CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    comm_work_release(work);
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_PEER_LOST);
    CHECK_OK(comm_group_close(world));
}

static void deadlines_are_kept(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    (void)rank, (void)size;
    options.timeout_ms = 50;
    CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, COMM_ANY_SOURCE, &options, &work));
    await(work);
    CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_DEADLINE);
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

static void a_forked_child_lets_go(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    (void)rank, (void)size;
    check_sum(world);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(comm_group_close(world) == COMM_ERR_FORKED ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_sum(world);
    CHECK_OK(comm_group_close(world));
}

/* One library brings two backends: here it finds both of those that it can wrap. */
static void a_library_brings_several(const char *file)
{
    static const struct {
        const char *name, *devices;
    } expected[] = { { "delay", "cpu" }, { "delay_loopback", "cpu,xpu" }, { "delay_pretend", "xpu" } };
    comm_backend_info info;
    int found = 0;
    CHECK_OK(comm_backend_load(file));
    for (size_t i = 0; i < comm_backend_count(); i++) {
        info = (comm_backend_info){ .struct_bytes = sizeof info };
        CHECK_OK(comm_backend_query(i, &info));
        for (int e = 0; e < 3; e++)
            if (strcmp(info.name, expected[e].name) == 0) {
                CHECK(info.usable && strcmp(info.origin, file) == 0);
                CHECK(strcmp(info.devices, expected[e].devices) == 0);
                found++;
            }
    }
    CHECK(found == 3);
}

/* ---- A careless one ---- */

static const comm_host *host;
static atomic_int dones, logged;
static comm_work *left;

static void done(comm_work *inner, comm_status status, const char *error, void *context)
{
    atomic_fetch_add(&dones, 1);
    CHECK(host->work_done(inner) == 1);
    CHECK(*host->work_slot(inner) == &dones);
    host->work_complete(context, status, error);
}

/* It is both backends at once. Each op leaves one more work that is neither completed nor released. */
static comm_status careless_submit(void *token, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    (void)ops;
    for (size_t i = 0; i < count; i++) {
        comm_work *inner, *never;
        int32_t source, tag;
        size_t received;
        CHECK_OK(host->work_create(token, done, works[i], &inner));
        CHECK_OK(host->work_create(token, done, works[i], &left));
        CHECK_OK(host->work_create(token, done, works[i], &never));
        host->work_release(never); /* was not submitted */
        host->work_complete(never, COMM_OK, NULL);
        CHECK(host->work_done(inner) == 0 && *host->work_slot(inner) == NULL && *host->work_slot(works[i]) == NULL);
        host->work_facts(inner, &source, &tag, &received);
        CHECK(source == -1 && tag == -1 && received == 0);
        host->work_received(inner, 3, 4, 5);
        host->work_facts(inner, &source, &tag, &received);
        CHECK(source == 3 && tag == 4 && received == 5);
        *host->work_slot(inner) = &dones;
        host->work_complete(inner, COMM_OK, NULL);
        host->work_complete(inner, COMM_ERR_PROTOCOL, "once more");
        host->work_release(inner);
    }
    return COMM_OK;
}

static comm_status careless_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    (void)world;
    *ret_state = info->token;
    return COMM_OK;
}

static void careless_group_abort(void *state, comm_status status, const char *reason)
{
    (void)state, (void)status, (void)reason;
}

static void careless_group_close(void *state, int32_t forked)
{
    (void)state, (void)forked;
}

static const comm_backend *careless_entry(const comm_host *given)
{
    static comm_backend backend;
    host = given;
    backend = *loopback_entry(given);
    backend.name = "careless";
    backend.group_open = careless_group_open;
    backend.group_abort = careless_group_abort;
    backend.group_close = careless_group_close;
    backend.submit = careless_submit;
    return &backend;
}

static void note(int32_t level, const char *text, void *context)
{
    (void)level, (void)context;
    if (strstr(text, "completed a work twice, which another backend has made"))
        atomic_fetch_add(&logged, 1);
    if (strstr(text, "has not released 3 works"))
        atomic_fetch_add(&logged, 100);
}

static void made_works_end_once_and_go_with_the_group(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:careless"), *group;
    (void)rank, (void)size, (void)arg;
    comm_log_set(note, NULL);
    CHECK_OK(comm_group_dup(world, NULL, &group));
    for (int i = 0; i < 3; i++)
        CHECK_OK(comm_barrier(group, NULL, NULL));
    CHECK(atomic_load(&dones) == 3);
    CHECK(atomic_load(&logged) == 6); /* for each the second time, and after the release */
    CHECK(comm_group_seq(group) == 3);
    CHECK_OK(comm_group_close(group));
    CHECK(atomic_load(&dones) == 3 && atomic_load(&logged) == 106);
    CHECK_OK(comm_group_close(world));
    comm_log_set(NULL, NULL);
}

/* The other backend is asked, also after the work has completed, and only while the group is open. */
static void a_stream_waits_for_a_work(int rank, int size, void *backend)
{
    (void)rank, (void)size;
    comm_group *world = ranks_world(backend);
    struct pretend_stream stream = { .queued = 0 }, later = { .queued = 0 };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    float in = 3, out = 0;
    options.stream = &stream;
    options.flags = COMM_OP_FLAG_ON_STREAM;
    CHECK_OK(comm_all_reduce(world, &in, &out, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, &options, &work));
    CHECK_OK(comm_work_wait_stream(work, &later));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK_OK(comm_work_wait_stream(work, &later));
    CHECK(stream.queued == 1 && later.waits == 2);
    pretend_run(&stream);
    CHECK(out == 3);
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

static int forwards_all(char *on_tcp, char *on_loopback, char *on_pretend)
{
    const struct ranks_options threads = { .threads = 1 }, loses_1 = { .may_fail = 2 };
    return ranks_run(4, NULL, groups_open_on_it, on_tcp) || ranks_run(4, &threads, groups_open_on_it, on_tcp) ||
           ranks_run(4, &threads, groups_open_on_it, on_loopback) || ranks_run(3, NULL, a_batch_goes_through, on_tcp) ||
           ranks_run(3, &threads, a_batch_goes_through, on_loopback) ||
           ranks_run(3, NULL, abort_ends_it_on_all_ranks, on_tcp) ||
           ranks_run(3, &threads, abort_ends_it_on_all_ranks, on_loopback) ||
           ranks_run(1, NULL, close_ends_what_is_pending, on_tcp) ||
           ranks_run(1, &threads, close_ends_what_is_pending, on_loopback) ||
           ranks_run(3, &loses_1, a_lost_rank_is_named, on_tcp) || ranks_run(1, NULL, deadlines_are_kept, on_tcp) ||
           ranks_run(1, &threads, deadlines_are_kept, on_loopback) ||
           ranks_run(1, NULL, a_forked_child_lets_go, on_tcp) ||
           ranks_run(1, &threads, a_stream_waits_for_a_work, on_pretend);
}

int main(int argc, char **argv)
{
    const struct ranks_options threads = { .threads = 1 };
    static char delay[] = "cpu:delay?microseconds=2000", delay_loopback[] = "cpu:delay_loopback",
                delay_pretend[] = "xpu:delay_pretend?microseconds=2000";
    if (argc < 2 || comm_backend_register(loopback_entry) != COMM_OK ||
        comm_backend_register(careless_entry) != COMM_OK || comm_backend_register(pretend_entry) != COMM_OK)
        return 2;
    if (argc == 5)
        return forwards_all(argv[2], argv[3], argv[4]);
    a_library_brings_several(argv[1]);
    return forwards_all(delay, delay_loopback, delay_pretend) ||
           ranks_run(1, &threads, made_works_end_once_and_go_with_the_group, NULL);
}

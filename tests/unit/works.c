/* Works and coalescing, on the loopback backend; ranks are threads. */
#include <comm/comm.h>
#include <poll.h>
#include <string.h>

#include "loopback.h"
#include "ranks.h"

#define WORLD "cpu:loopback"

struct told {
    int times;
    comm_status status;
};

static void tell(comm_work *work, comm_status status, void *context)
{
    struct told *told = context;
    CHECK(comm_work_status(work) == status);
    told->times++;
    told->status = status;
}

static void completion_is_told_once_in_every_way(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(WORLD);
    comm_work *work;
    struct told told = { 0, 1 };
    float value = 1;
    int32_t fd = -1, done = 1;
    if (rank == 0) {
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_SUM, NULL, &work));
        CHECK(comm_work_status(work) == COMM_IN_PROGRESS);
        CHECK_OK(comm_work_on_complete(work, tell, &told));
        CHECK_STATUS(comm_work_on_complete(work, tell, &told), COMM_ERR_INVALID);
        CHECK_OK(comm_work_fd(work, &fd));
        CHECK_OK(comm_work_test(work, &done));
        CHECK(!done);
        CHECK_STATUS(comm_work_wait(work, 1), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("all_reduce #1 on group 'world' (rank 0 of");
        CHECK_OK(comm_send(world, NULL, 0, COMM_DTYPE_BYTE, 1, NULL, NULL)); /* now the others may come */
        struct pollfd poller = { fd, POLLIN, 0 };
        CHECK(poll(&poller, 1, 20000) == 1);
    } else {
        if (rank == 1)
            CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, 0, NULL, NULL));
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_SUM, NULL, &work));
    }
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(value == (float)size);
    if (rank == 0) { /* told is another thread's until the barrier */
        CHECK_OK(comm_work_test(work, &done));
        CHECK(done == 1);
    } else {
        CHECK_OK(comm_work_on_complete(work, tell, &told)); /* too late: told at once */
        CHECK(told.times == 1);
        CHECK_OK(comm_work_fd(work, &fd));
        struct pollfd poller = { fd, POLLIN, 0 };
        CHECK(poll(&poller, 1, 0) == 1);
    }
    CHECK(comm_work_seq(work) == 1 && comm_work_duration_ns(work) >= 0);
    CHECK(strcmp(comm_work_op(work), "all_reduce") == 0);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
    CHECK_OK(comm_work_status(work)); /* readable after its group */
    CHECK(strcmp(comm_work_error(work), "") == 0);
    comm_work_release(work);
    CHECK(rank != 0 || told.times == 1);
}

static void an_unfinished_work_may_be_dropped(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(WORLD);
    int32_t mine = rank, theirs = -1;
    comm_work *work;
    if (rank == 0) {
        CHECK_OK(comm_recv(world, &theirs, 1, COMM_DTYPE_I32, 1, NULL, &work));
        comm_work_release(work);
        CHECK_STATUS(comm_group_flush(world, 1), COMM_ERR_TIMEOUT);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 1)
        CHECK_OK(comm_send(world, &mine, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    if (rank == 0) {
        CHECK_OK(comm_group_flush(world, 0));
        CHECK(theirs == 1);
    }
    CHECK_OK(comm_group_close(world));
}

static void a_long_message_is_truncated_and_the_group_goes_on(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(WORLD);
    int32_t data[4] = { 1, 2, 3, 4 }, got[4] = { 0, 0, 9, 9 };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.tag = rank == 0 ? COMM_ANY_TAG : 5;
    if (rank == 1) {
        CHECK_OK(comm_send(world, data, 4, COMM_DTYPE_I32, 0, &options, NULL));
        CHECK_OK(comm_send(world, data, 3, COMM_DTYPE_I32, 0, &options, NULL));
    } else if (rank == 0) {
        comm_work *work;
        CHECK_STATUS(comm_recv(world, got, 2, COMM_DTYPE_I32, 1, &options, NULL), COMM_ERR_TRUNCATED);
        CHECK(got[0] == 1 && got[1] == 2 && got[2] == 9);
        CHECK_OK(comm_recv(world, got, 4, COMM_DTYPE_I32, COMM_ANY_SOURCE, &options, &work));
        CHECK_OK(comm_work_wait(work, 0));
        CHECK(comm_work_received_count(work) == 3 && comm_work_source_rank(work) == 1 && comm_work_tag(work) == 5);
        comm_work_release(work);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static void a_deadline_ends_the_group(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(WORLD);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.timeout_ms = 20;
    if (rank == 0) { /* loopback knows no deadlines, so this is the core's own, after its grace */
        CHECK_STATUS(comm_barrier(world, &options, NULL), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("barrier #1 on group 'world' (rank 0 of 3): not finished within 20 ms");
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("the group ended earlier: ");
        CHECK_STATUS(comm_group_status(world), COMM_ERR_DEADLINE);
    }
    CHECK_OK(comm_group_close(world));
}

static void coalescing_is_checked(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(WORLD);
    comm_work *work = NULL;
    float value = 1;
    CHECK_STATUS(comm_coalesce_end(world, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_coalesce_cancel(world), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_STATUS(comm_coalesce_begin(world), COMM_ERR_INVALID);
    CHECK_STATUS(comm_barrier(world, NULL, &work), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("ret_work must be NULL");
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_SUM, NULL, NULL));
    CHECK(value == 1); /* only written down */
    CHECK_OK(comm_coalesce_cancel(world));
    CHECK(comm_group_seq(world) == 0);
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_coalesce_end(world, &work)); /* an empty batch is done at once */
    CHECK_OK(comm_work_status(work));
    comm_work_release(work);
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < 20; i++)
        CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_coalesce_end(world, &work));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(strcmp(comm_work_op(work), "coalesced") == 0);
    comm_work_release(work);
    CHECK(comm_group_seq(world) == 20);
    CHECK_OK(comm_group_close(world));
}

/* A callback that submits: it must not run while the library holds a lock that it needs. */
static void chain(comm_work *work, comm_status status, void *context)
{
    comm_work *next;
    (void)work;
    if (status == COMM_OK && comm_barrier(context, NULL, &next) == COMM_OK)
        comm_work_release(next);
}

static void a_callback_may_submit(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(WORLD);
    for (int i = 0; i < 50; i++) {
        comm_work *work;
        CHECK_OK(comm_barrier(world, NULL, &work));
        CHECK_OK(comm_work_on_complete(work, chain, world));
        CHECK_OK(comm_work_wait(work, 0));
        comm_work_release(work);
        while (comm_group_seq(world) < (uint64_t)(2 * i + 2))
            ; /* until the callback has submitted its own */
        CHECK_OK(comm_group_flush(world, 0));
    }
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60 };
    if (comm_backend_register(loopback_entry) != COMM_OK)
        return 1;
    return ranks_run(3, &threads, completion_is_told_once_in_every_way, NULL) ||
           ranks_run(2, &threads, an_unfinished_work_may_be_dropped, NULL) ||
           ranks_run(3, &threads, a_long_message_is_truncated_and_the_group_goes_on, NULL) ||
           ranks_run(3, &threads, a_deadline_ends_the_group, NULL) ||
           ranks_run(3, &threads, coalescing_is_checked, NULL) || ranks_run(3, &threads, a_callback_may_submit, NULL);
}

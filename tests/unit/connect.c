/* Connecting ahead of the first operation; what a group says that it can do; ending all groups. */
#include <comm/backend.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "loopback.h"
#include "pretend.h"
#include "ranks.h"

static void all_come_and_go_on(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world("cpu:loopback,xpu:pretend");
    int32_t value = 1;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.device = COMM_DEVICE_XPU;
    pretend_expected = size;
    for (int i = 1; i <= 3; i++) {
        /* All devices; one; one with an index. The CPU's backend has nothing to do. */
        comm_device device = i == 1   ? COMM_DEVICE_DEFAULT
                             : i == 2 ? COMM_DEVICE_XPU
                                      : comm_device_at(COMM_DEVICE_XPU, 2);
        CHECK_OK(comm_group_connect(world, device, 0));
        CHECK_OK(comm_group_connect(world, COMM_DEVICE_CPU, 1));
        CHECK(pretend_device == (i == 3 ? device : COMM_DEVICE_XPU));
        options.device = COMM_DEVICE_CPU;
        CHECK_OK(comm_barrier(world, &options, NULL));
        CHECK(atomic_load(&pretend_connects) == i * size);
        CHECK_OK(comm_barrier(world, &options, NULL));
    }
    options.device = COMM_DEVICE_XPU;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL));
    CHECK(value == size);
    CHECK_OK(comm_group_close(world));
}

/* The group can be used, and connected, after it. */
static void who_waits_in_vain_is_told(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    pretend_expected = size;
    if (rank == 0) {
        CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_DEFAULT, 20), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("comm_group_connect on group 'world' (rank 0 of 2): backend 'pretend': connecting timed out");
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_connect(world, COMM_DEVICE_DEFAULT, COMM_TIMEOUT_INFINITE));
    CHECK_OK(comm_group_close(world));
}

static void *abort_when_connecting(void *group)
{
    while (atomic_load(&pretend_in_connect) == 0)
        sched_yield();
    CHECK_OK(comm_group_abort(group, "changed my mind"));
    return NULL;
}

static void abort_ends_the_wait(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    pthread_t thread;
    pretend_expected = 2; /* no other rank comes */
    CHECK(pthread_create(&thread, NULL, abort_when_connecting, world) == 0);
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_XPU, COMM_TIMEOUT_INFINITE), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("changed my mind");
    pthread_join(thread, NULL);
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_XPU, 0), COMM_ERR_ABORTED);
    CHECK_OK(comm_group_close(world));
}

static void what_the_backend_says_is_told(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    pretend_text = "the fabric is down";
    pretend_status = COMM_ERR_SYSTEM;
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_XPU, 0), COMM_ERR_SYSTEM);
    CHECK_ERROR_SAYS("backend 'pretend': the fabric is down");
    CHECK_OK(comm_group_status(world));
    pretend_status = COMM_ERR_PEER_LOST;
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_XPU, 0), COMM_ERR_PEER_LOST);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_PEER_LOST);
    pretend_status = COMM_OK;
    CHECK_OK(comm_group_close(world));
}

static void connect_here(comm_work *work, comm_status status, void *context)
{
    (void)work, (void)status;
    CHECK_STATUS(comm_group_connect(context, COMM_DEVICE_DEFAULT, 0), COMM_ERR_INVALID);
}

static void wrong_calls_are_refused(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp"), *turns;
    comm_work *work;
    int32_t value;
    comm_op_options tagged = COMM_OP_OPTIONS_INIT;
    CHECK_OK(comm_group_connect(world, COMM_DEVICE_DEFAULT, 0)); /* nothing to do */
    CHECK_OK(comm_group_round_robin(&world, 1, NULL, &turns));
    CHECK_OK(comm_group_connect(turns, COMM_DEVICE_DEFAULT, 0));
    CHECK_OK(comm_group_close(turns));
    CHECK_STATUS(comm_group_connect(NULL, COMM_DEVICE_DEFAULT, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_DEFAULT, -2), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_CUDA, 0), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("no backend for device cuda");
    tagged.tag = 5;
    CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_I32, 0, &tagged, &work));
    CHECK_OK(comm_work_on_complete(work, connect_here, world));
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_DEFAULT, 0), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("recv #1 from rank 0 with tag 5 on group 'world' (rank 0 of 1) has not finished");
    CHECK_OK(comm_send(world, &(int32_t){ 1 }, 1, COMM_DTYPE_I32, 0, &tagged, NULL));
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_STATUS(comm_group_connect(world, COMM_DEVICE_DEFAULT, 0), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_cancel(world));
    CHECK_OK(comm_group_close(world));
}

/* ---- What a group can do ---- */

static void a_group_says_what_it_can_do(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp,xpu:pretend");
    const comm_device cpu = COMM_DEVICE_CPU, xpu = COMM_DEVICE_XPU;
    for (int32_t kind = 1; kind < COMM_OP_KIND_END; kind++) {
        CHECK(comm_group_supports(world, kind, COMM_DTYPE_F32, COMM_REDOP_SUM, cpu) == 1);
        CHECK(comm_group_supports(world, kind, COMM_DTYPE_F32, COMM_REDOP_SUM, xpu) == 1);
        CHECK(comm_group_supports(world, kind, COMM_DTYPE_F32, COMM_REDOP_SUM, COMM_DEVICE_CUDA) == 0);
        CHECK_ERROR_SAYS("no backend for device cuda");
        CHECK(comm_group_supports(world, kind, COMM_DTYPE_F32, COMM_REDOP_SUM, COMM_DEVICE_DEFAULT) == 0);
    }
    for (int32_t redop = 0; redop < COMM_REDOP_END; redop++)
        for (int32_t dtype = 1; dtype < COMM_DTYPE_END; dtype++)
            CHECK(comm_group_supports(world, COMM_OP_ALL_REDUCE, dtype, redop, cpu) ==
                  comm_redop_supports(redop, dtype));
    CHECK(comm_group_supports(world, COMM_OP_SEND, COMM_DTYPE_BYTE, COMM_REDOP_SUM, cpu) == 1); /* it does not reduce */
    CHECK(comm_group_supports(world, COMM_OP_KIND_END, COMM_DTYPE_F32, COMM_REDOP_SUM, cpu) == 0);
    CHECK_ERROR_SAYS("no kind of operation");
    CHECK(comm_group_supports(world, COMM_OP_ALL_REDUCE, COMM_DTYPE_END, COMM_REDOP_SUM, cpu) == 0);
    CHECK(comm_group_supports(world, COMM_OP_ALL_REDUCE, COMM_DTYPE_F32, COMM_REDOP_END, cpu) == 0);
    CHECK(comm_group_supports(NULL, COMM_OP_BARRIER, 0, 0, cpu) == 0);
    CHECK(comm_group_seq(world) == 0); /* no backend was asked */
    CHECK_OK(comm_group_close(world));
}

/* ---- Ending all groups ---- */

static void all_groups_of_a_world_end(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("tcp"), *copy, *odd, *other;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.name = "another";
    CHECK_OK(ranks_init(&options, &other));
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    CHECK_OK(comm_group_split(world, rank % 2, 0, NULL, &odd));
    CHECK_OK(comm_barrier(copy, NULL, NULL));
    CHECK_OK(comm_barrier(other, NULL, NULL)); /* all have left that one */
    if (rank == 1)
        CHECK_OK(comm_group_abort_all(odd, "no way out"));
    /* On rank 1 at once, elsewhere because it says so: but a group that it is not in goes on. */
    CHECK_STATUS(comm_barrier(copy, NULL, NULL), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("no way out");
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("called comm_group_abort_all");
    if (rank % 2)
        CHECK_STATUS(comm_barrier(odd, NULL, NULL), COMM_ERR_ABORTED);
    else
        CHECK_OK(comm_barrier(odd, NULL, NULL));
    CHECK_OK(comm_barrier(other, NULL, NULL)); /* is of another family */
    CHECK_STATUS(comm_group_abort_all(NULL, NULL), COMM_ERR_INVALID);
    CHECK_OK(comm_group_close(odd));
    CHECK_OK(comm_group_close(copy));
    CHECK_OK(comm_group_close(world));
    CHECK_OK(comm_group_close(other));
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .name = "connect" }, processes = { .name = "connect" };
    CHECK_OK(comm_backend_register(loopback_entry));
    CHECK_OK(comm_backend_register(pretend_entry));
    return ranks_run(3, &threads, all_come_and_go_on, NULL) ||
           ranks_run(2, &threads, who_waits_in_vain_is_told, NULL) ||
           ranks_run(1, &processes, abort_ends_the_wait, NULL) ||
           ranks_run(1, &processes, what_the_backend_says_is_told, NULL) ||
           ranks_run(1, &processes, wrong_calls_are_refused, NULL) ||
           ranks_run(1, &processes, a_group_says_what_it_can_do, NULL) ||
           ranks_run(4, &processes, all_groups_of_a_world_end, NULL);
}

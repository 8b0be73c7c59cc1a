/* What the flags of devices mean: done when enqueued on a stream, and a scalar that the CPU must not read. */
#include <comm/backend.h>
#include <string.h>
#include <sys/mman.h>

#include "loopback.h"
#include "pretend.h"
#include "ranks.h"

static comm_status sum(comm_group *group, float *in, float *out, const comm_op_options *options, comm_work **ret_work)
{
    return comm_all_reduce(group, in, out, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, options, ret_work);
}

static void on_a_stream_it_is_done_when_enqueued(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    struct pretend_stream stream = { .queued = 0 }, later = { .queued = 0 };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    float in = 3, out = 0;
    options.stream = &stream;
    options.flags = COMM_OP_FLAG_ON_STREAM;
    CHECK_OK(sum(world, &in, &out, &options, NULL));
    CHECK(out == 0 && stream.queued == 1); /* the call did not wait for the device */
    pretend_run(&stream);
    CHECK(out == 3);
    out = 0;
    CHECK_OK(sum(world, &in, &out, &options, &work));
    CHECK(comm_work_status(work) == COMM_OK && out == 0 && stream.queued == 1);
    CHECK_OK(comm_work_wait_stream(work, &later)); /* though it has completed */
    CHECK(later.waits == 1);
    CHECK_OK(comm_work_wait_stream(work, NULL));
    CHECK(pretend_default.waits == 1);
    pretend_run(&stream);
    options.stream = NULL; /* the default one */
    CHECK_OK(sum(world, &in, &out, &options, NULL));
    CHECK(pretend_default.queued == 1);
    pretend_run(&pretend_default);
    /* Without the flag the result is in memory when the call returns. */
    out = 0;
    options.flags = 0;
    options.stream = &stream;
    CHECK_OK(sum(world, &in, &out, &options, NULL));
    CHECK(out == 3 && pretend_last.stream == &stream && !(pretend_last.flags & COMM_OP_FLAG_ON_STREAM));
    CHECK_OK(comm_group_close(world));
    CHECK_OK(comm_work_wait_stream(work, &later)); /* nothing is left to order */
    CHECK(later.waits == 1);
    comm_work_release(work);
}

static void a_batch_is_enqueued_as_a_whole(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    struct pretend_stream stream = { .queued = 0 }, other = { .queued = 0 };
    comm_op_options own = COMM_OP_OPTIONS_INIT, of_batch = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    float in = 3, out[2] = { 0 };
    own.stream = &other;
    of_batch.stream = &stream;
    of_batch.flags = COMM_OP_FLAG_ON_STREAM;
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(sum(world, &in, &out[0], NULL, NULL));
    CHECK_OK(sum(world, &in, &out[1], &own, NULL));
    CHECK_OK(comm_coalesce_end(world, &of_batch, &work));
    CHECK(comm_work_status(work) == COMM_OK && stream.queued == 1 && other.queued == 1 && out[0] == 0);
    CHECK_OK(comm_work_wait_stream(work, &stream));
    CHECK(stream.waits == 2); /* for each of its operations */
    comm_work_release(work);
    pretend_run(&stream);
    pretend_run(&other);
    CHECK(out[0] == 3 && out[1] == 3);
    CHECK_OK(comm_group_close(world));
}

static comm_status scaled(comm_group *group, float *in, float *out, const comm_op_options *options,
                          comm_work **ret_work)
{
    return comm_all_reduce(group, in, out, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, options, ret_work);
}

/* A read of the page ends the process. */
static void a_scalar_on_the_device_is_not_touched(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    struct pretend_stream stream = { .queued = 0 };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    float in = 3, out[3] = { 0 };
    float *scalar = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(scalar != MAP_FAILED);
    *scalar = 2;
    CHECK(mprotect(scalar, 4096, PROT_NONE) == 0);
    options.stream = &stream;
    options.premul = scalar;
    options.flags = COMM_OP_FLAG_ON_STREAM;
    CHECK_STATUS(scaled(world, &in, &out[0], &options, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("COMM_OP_FLAG_PREMUL_ON_DEVICE");
    options.flags |= COMM_OP_FLAG_PREMUL_ON_DEVICE;
    CHECK_OK(scaled(world, &in, &out[0], &options, NULL));
    CHECK(pretend_last.premul == scalar && (pretend_last.flags & COMM_OP_FLAG_PREMUL_ON_DEVICE));
    CHECK_OK(scaled(world, &in, &out[1], &options, &work));
    comm_work_release(work);
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(scaled(world, &in, &out[2], &options, NULL));
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK(pretend_last.premul == scalar);
    CHECK(mprotect(scalar, 4096, PROT_READ) == 0); /* the device reads it when its turn comes */
    pretend_run(&stream);
    CHECK(out[0] == 6 && out[1] == 6 && out[2] == 6);
    munmap(scalar, 4096);
    CHECK_OK(comm_group_close(world));
}

/* The CPU has no streams, and its memory is the CPU's. */
static void on_the_cpu_the_flags_mean_nothing(int rank, int size, void *arg)
{
    (void)rank;
    comm_group *world = ranks_world(arg);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    float in = 3, factor = 2, out = 0;
    options.stream = &options;
    options.premul = &factor;
    options.flags = COMM_OP_FLAG_ON_STREAM | COMM_OP_FLAG_PREMUL_ON_DEVICE;
    CHECK_OK(scaled(world, &in, &out, &options, NULL));
    CHECK(out == 6 * (float)size);
    out = 0;
    CHECK_OK(scaled(world, &in, &out, &options, &work));
    factor = 99; /* borrowed by the call */
    CHECK_OK(comm_work_wait_stream(work, NULL));
    CHECK(out == 6 * (float)size);
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

/* Each handle is released for itself. */
static void a_work_has_as_many_handles_as_were_retained(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp");
    comm_work *work, *again;
    CHECK_OK(comm_barrier(world, NULL, &work));
    again = comm_work_retain(work);
    CHECK(again == work && comm_work_retain(NULL) == NULL);
    comm_work_release(work);
    CHECK_OK(comm_work_wait(again, 0));
    CHECK_OK(comm_group_close(world));
    CHECK(comm_work_status(again) == COMM_OK);
    comm_work_release(again);
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .name = "streams" };
    CHECK_OK(comm_backend_register(loopback_entry));
    CHECK_OK(comm_backend_register(pretend_entry));
    return ranks_run(1, NULL, on_a_stream_it_is_done_when_enqueued, NULL) ||
           ranks_run(1, NULL, a_batch_is_enqueued_as_a_whole, NULL) ||
           ranks_run(1, NULL, a_scalar_on_the_device_is_not_touched, NULL) ||
           ranks_run(2, NULL, on_the_cpu_the_flags_mean_nothing, "cpu:tcp") ||
           ranks_run(2, &threads, on_the_cpu_the_flags_mean_nothing, "cpu:loopback") ||
           ranks_run(2, NULL, a_work_has_as_many_handles_as_were_retained, NULL);
}

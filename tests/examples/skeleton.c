/* The plugin examples/backend_skeleton.c; COMM_PLUGIN_PATH leads to it. */
#include <comm/comm.h>

#include "ranks.h"

static void it_computes(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:skeleton"), *half;
    int32_t all[8];
    comm_work *works[5];
    (void)arg;
    CHECK_OK(comm_group_split(world, rank % 2, 0, NULL, &half));
    for (int i = 0; i < 5; i++) {
        all[i] = rank + i;
        CHECK_OK(comm_all_reduce(world, &all[i], &all[i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &works[i]));
    }
    for (int i = 0; i < 5; i++) {
        CHECK_OK(comm_work_wait(works[i], 0));
        CHECK(all[i] == i * size + size * (size - 1) / 2);
        comm_work_release(works[i]);
    }
    CHECK_OK(comm_all_gather(world, &rank, all, 1, COMM_DTYPE_I32, NULL, NULL));
    for (int r = 0; r < size; r++)
        CHECK(all[r] == r);
    double value = rank == 1 ? 2.5 : 0, half_size = 1;
    CHECK_OK(comm_broadcast(world, &value, 1, COMM_DTYPE_F64, 1, NULL, NULL));
    CHECK(value == 2.5);
    CHECK_OK(comm_all_reduce(half, &half_size, &half_size, 1, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, NULL));
    CHECK(half_size == comm_group_size(half));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(world));
}

static void it_refuses(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:skeleton?max_bytes=1K");
    uint8_t bytes[2000] = { 0 };
    (void)rank, (void)size, (void)arg;
    CHECK_STATUS(comm_reduce(world, bytes, bytes, 1, COMM_DTYPE_U8, COMM_REDOP_SUM, 0, NULL, NULL),
                 COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("backend 'skeleton': it can broadcast");
    CHECK_STATUS(comm_broadcast(world, bytes, sizeof bytes, COMM_DTYPE_U8, 0, NULL, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("2000 bytes are more than max_bytes, which is 1024");
    CHECK_OK(comm_broadcast(world, bytes, 1000, COMM_DTYPE_U8, 0, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static void mismatch_is_told(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:skeleton");
    int32_t value = 1;
    (void)size, (void)arg;
    comm_status status;
    if (rank == 0)
        status = comm_barrier(world, NULL, NULL);
    else
        status = comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
    CHECK_STATUS(status, COMM_ERR_MISMATCH);
    CHECK_ERROR_SAYS("called another operation");
    CHECK_OK(comm_group_close(world));
}

static void it_ends(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:skeleton");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *works[3];
    (void)size, (void)arg;
    options.timeout_ms = 300;
    for (int i = 0; rank == 0 && i < 3; i++) /* the other rank never comes */
        CHECK_OK(comm_barrier(world, &options, &works[i]));
    for (int i = 0; rank == 0 && i < 3; i++) {
        CHECK_STATUS(comm_work_wait(works[i], 0), COMM_ERR_DEADLINE);
        comm_work_release(works[i]);
    }
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    return ranks_run(4, NULL, it_computes, NULL) || ranks_run(2, NULL, it_refuses, NULL) ||
           ranks_run(2, NULL, mismatch_is_told, NULL) || ranks_run(2, NULL, it_ends, NULL);
}

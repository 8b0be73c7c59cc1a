/* A rank that closes its world in good order is missed only by operations that need it, also where they take long.
 * Where small sends are not awaited: STANDIN_EAGER=1. Usage: leaves [BACKEND [CASE]]. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "faults.h"

enum { COUNT = 500, LEAVER = 1, LONG_S = 4, NOTICED_S = 8 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static comm_status all_reduce(comm_group *world, int32_t *vector)
{
    comm_op_options o = on_gpu();
    return comm_all_reduce(world, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL);
}

static void check_lost_count(comm_group *world, size_t wanted)
{
    int32_t lost[8] = { -1 };
    size_t count;
    CHECK_OK(comm_group_lost_ranks(world, lost, 8, &count));
    if (count != wanted || (wanted && lost[0] != LEAVER))
        ranks_fail(__FILE__, __LINE__, "%zu ranks are lost, the first is %d", count, lost[0]);
}

static void check_missed(comm_group *world, comm_status status, double began_s)
{
    CHECK_STATUS(status, COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    CHECK_ERROR_SAYS("closed its world before");
    CHECK(now_s() - began_s < NOTICED_S);
    check_lost_count(world, 1);
}

/* Ranks 0 and 2: each has come so far when the other goes on. */
static void meet(comm_group *world, int rank, int32_t *vector)
{
    comm_op_options o = on_gpu();
    for (int turn = 0; turn < 2; turn++)
        if ((rank == 2) == (turn == 0))
            CHECK_OK(comm_send(world, vector, 1, COMM_DTYPE_I32, 2 - rank, &o, NULL));
        else
            CHECK_OK(comm_recv(world, vector, 1, COMM_DTYPE_I32, 2 - rank, &o, NULL));
}

/* The leaver, whom nobody has missed before, has not called it. */
static void all_reduce_misses(comm_group *world, int rank, int32_t *vector)
{
    check_lost_count(world, 0);
    meet(world, rank, vector);
    double began_s = now_s();
    check_missed(world, all_reduce(world, vector), began_s);
}

static void close_all(comm_group *world, int32_t *vector)
{
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
}

static void hold(void *seconds)
{
    sleep(*(unsigned int *)seconds);
}

/* The stream is busy for a while. */
static cuda_stream held_stream(void)
{
    static unsigned int seconds = LONG_S;
    cuda_stream stream = gpu_stream();
    CHECK_CUDA(gpu.LaunchHostFunc(stream, hold, &seconds));
    return stream;
}

/* A gather is over at the rank that leaves, while another rank has not come to it. */
static void others_finish_a_collective(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank + 1), *all = vector_new(COUNT * (size_t)size, -1);
    (void)arg;
    CHECK_OK(all_reduce(world, vector));
    if (rank == 2)
        sleep(LONG_S);
    CHECK_OK(comm_gather(world, vector, all, COUNT, COMM_DTYPE_I32, 0, &o, NULL));
    if (rank == 0)
        CHECK_VECTOR(all, COUNT * (size_t)size, size);
    gpu_memory_free(all);
    if (rank != LEAVER)
        all_reduce_misses(world, rank, vector);
    close_all(world, vector);
}

static void exchange_late(comm_group *world, int rank, int32_t *vector)
{
    comm_op_options o = on_gpu();
    if (rank == 2) {
        sleep(LONG_S);
        vector_fill(vector, COUNT, 7);
        CHECK_OK(comm_send(world, vector, COUNT, COMM_DTYPE_I32, 0, &o, NULL));
    } else if (rank == 0) {
        CHECK_OK(comm_recv(world, vector, COUNT, COMM_DTYPE_I32, 2, &o, NULL));
        CHECK_VECTOR(vector, COUNT, 7);
    }
    if (rank != LEAVER)
        all_reduce_misses(world, rank, vector);
}

/* A message that the one who leaves has no part in. */
static void others_exchange_a_message(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, NULL);
    int32_t *vector = vector_new(COUNT, rank);
    (void)size;
    (void)arg;
    CHECK_OK(all_reduce(world, vector));
    exchange_late(world, rank, vector);
    close_all(world, vector);
}

static void one_leaves_without_an_operation(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, NULL);
    int32_t *vector = vector_new(COUNT, rank);
    (void)size;
    (void)arg;
    exchange_late(world, rank, vector);
    close_all(world, vector);
}

/* The sender's part is over long before the receivers' streams come to it. */
static void what_was_sent_arrives(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank), *other = vector_new(COUNT, 8);
    (void)size;
    (void)arg;
    CHECK_OK(all_reduce(world, vector));
    if (rank == LEAVER) { /* connects */
        CHECK_OK(comm_send(world, vector, COUNT, COMM_DTYPE_I32, 0, &o, NULL));
        CHECK_OK(comm_send(world, other, COUNT, COMM_DTYPE_I32, 0, &o, NULL));
    } else if (rank == 0) {
        CHECK_OK(comm_recv(world, vector, COUNT, COMM_DTYPE_I32, LEAVER, &o, NULL));
        o.stream = held_stream();
        CHECK_OK(comm_recv(world, vector, COUNT, COMM_DTYPE_I32, LEAVER, &o, NULL));
        CHECK_VECTOR(vector, COUNT, 8);
        CHECK_CUDA(gpu.StreamDestroy(o.stream));
        o.stream = NULL;
        check_lost_count(world, 0);
        double began_s = now_s();
        check_missed(world, comm_recv(world, vector, COUNT, COMM_DTYPE_I32, LEAVER, &o, NULL), began_s);
    }
    gpu_memory_free(other);
    close_all(world, vector);
}

static void what_was_broadcast_arrives(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank);
    (void)size;
    (void)arg;
    CHECK_OK(all_reduce(world, vector));
    vector_fill(vector, COUNT, rank + 5);
    if (rank != LEAVER)
        o.stream = held_stream();
    CHECK_OK(comm_broadcast(world, vector, COUNT, COMM_DTYPE_I32, LEAVER, &o, NULL));
    CHECK_VECTOR(vector, COUNT, LEAVER + 5);
    if (rank != LEAVER) {
        CHECK_CUDA(gpu.StreamDestroy(o.stream));
        all_reduce_misses(world, rank, vector);
    }
    close_all(world, vector);
}

/* It leaves a group that others use in a world that it has left, too; and one that it has done its part in. */
static void groups_are_told_apart(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, NULL), *copy;
    int32_t *vector = vector_new(COUNT, rank);
    (void)size;
    (void)arg;
    CHECK_OK(all_reduce(world, vector));
    CHECK_OK(all_reduce(world, vector));
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    CHECK_OK(all_reduce(copy, vector));
    if (rank != LEAVER) {
        double began_s = now_s();
        check_missed(copy, all_reduce(copy, vector), began_s);
    }
    CHECK_OK(comm_group_close(copy));
    close_all(world, vector);
}

/* Rank 0 serves the store, which ends with it. */
static comm_group *served_world(int rank, int size)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_store *told = ranks_store();
    comm_group *world;
    char url[64];
    void *at;
    size_t bytes;
    gpu_open("cuda:nccl", rank);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", rank == 0 ? fault_free_port() : 0);
    CHECK_OK(comm_store_broadcast(told, "url", url, strlen(url) + 1, 0, rank, size, 20000, &at, &bytes));
    comm_store_close(told);
    options.rank = rank;
    options.world_size = size;
    options.rendezvous = at;
    options.backend = "cuda:nccl";
    CHECK_OK(comm_init(&options, &world));
    comm_free(at);
    return world;
}

static void exchange_without_a_store(int rank, int size)
{
    comm_group *world = served_world(rank, size);
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank);
    CHECK_OK(all_reduce(world, vector));
    for (int i = 0; i < 2 && rank != 0; i++) {
        if (i == 1)
            sleep((unsigned int)(LONG_S * rank));
        CHECK_OK(rank == 1 ? comm_recv(world, vector, COUNT, COMM_DTYPE_I32, 2, &o, NULL)
                           : comm_send(world, vector, COUNT, COMM_DTYPE_I32, 1, &o, NULL));
    }
    check_lost_count(world, 0);
    close_all(world, vector);
}

static void the_store_leaves_too(int rank, int size, void *arg)
{
    (void)arg;
    exchange_without_a_store(rank, size);
}

/* Rank 1 is told 600 ms late that it has received: longer than its listener sleeps (LISTEN_MS), which so looks in
 * between. */
static void a_slow_device_receives(int rank, int size, void *arg)
{
    (void)arg;
    if (rank == 1)
        setenv("STANDIN_DELAY_US", "600000", 1);
    exchange_without_a_store(rank, size);
}

static const struct nccl_case cases[] = {
    { "others finish a collective", others_finish_a_collective, 3 },
    { "others exchange a message", others_exchange_a_message, 3 },
    { "one leaves without an operation", one_leaves_without_an_operation, 3 },
    { "what was sent arrives", what_was_sent_arrives, 2 },
    { "what was broadcast arrives", what_was_broadcast_arrives, 3 },
    { "groups are told apart", groups_are_told_apart, 3 },
    { "the store leaves, too", the_store_leaves_too, 3 },
    { "a slow device receives without a store", a_slow_device_receives, 3 },
};

int main(int argc, char **argv)
{
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

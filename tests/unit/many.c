/* Worlds of many ranks: more than the few for which there is room on a stack, that are looked at one by one, or asked
 * about at once. With an argument: at most so many processes. */
#include <comm/comm.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { RANKS_MAX = 130 };

static void check_all_reduce(comm_group *world, size_t count, int rank, int size)
{
    int32_t values[64];
    for (size_t i = 0; i < count; i++)
        values[i] = rank + (int32_t)i;
    CHECK_OK(comm_all_reduce(world, values, values, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    for (size_t i = 0; i < count; i++)
        CHECK(values[i] == size * (size - 1) / 2 + size * (int32_t)i);
}

/* Every rank waits for every other, by algorithms that have a message of each rank to each other, and by those that the
 * rules choose. */
static void all_to_all_ranks(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    int32_t in[RANKS_MAX], out[RANKS_MAX], blocks[RANKS_MAX];
    check_all_reduce(world, 1, rank, size);
    check_all_reduce(world, 64, rank, size);
    for (int r = 0; r < size; r++)
        blocks[r] = rank * 1000 + r;
    CHECK_OK(comm_reduce_scatter(world, blocks, out, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(out[0] == size * (size - 1) / 2 * 1000 + size * rank);
    CHECK_OK(comm_all_gather(world, &rank, out, 1, COMM_DTYPE_I32, NULL, NULL));
    for (int r = 0; r < size; r++)
        CHECK(out[r] == r);
    CHECK_OK(comm_gather(world, &rank, out, 1, COMM_DTYPE_I32, size - 1, NULL, NULL));
    CHECK_OK(comm_all_to_all(world, blocks, in, 1, COMM_DTYPE_I32, NULL, NULL));
    for (int r = 0; r < size; r++)
        CHECK(in[r] == r * 1000 + rank);
    /* One waits for many at once. */
    comm_work *works[RANKS_MAX];
    for (int r = 1; rank == 0 && r < size; r++)
        CHECK_OK(comm_recv(world, &in[r], 1, COMM_DTYPE_I32, r, NULL, &works[r]));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank > 0)
        CHECK_OK(comm_send(world, &rank, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    for (int r = 1; rank == 0 && r < size; r++) {
        CHECK_OK(comm_work_wait(works[r], 0));
        CHECK(in[r] == r);
        comm_work_release(works[r]);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* Five ranks on each host, in turn; more ranks than are asked about at once when hosts are numbered. */
static void ranks_on_many_hosts(int rank, int size, void *arg)
{
    char host[16];
    int32_t hosts[RANKS_MAX], count = size / 5, *values = calloc(20000, sizeof *values);
    snprintf(host, sizeof host, "host %d", rank % count);
    setenv("COMM_HOST_ID", host, 1);
    comm_group *world = ranks_world(arg);
    CHECK_OK(comm_group_hosts(world, hosts));
    for (int r = 0; r < size; r++)
        CHECK(hosts[r] == r % count);
    for (int i = 0; i < 20000; i++)
        values[i] = rank + i;
    CHECK_OK(comm_all_reduce(world, values, values, 20000, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    for (int i = 0; i < 20000; i++)
        CHECK(values[i] == size * (size - 1) / 2 + size * i);
    CHECK_OK(comm_broadcast(world, values, 20000, COMM_DTYPE_I32, size - 1, NULL, NULL));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
    free(values);
}

/* One rank does not come; all others name it, whatever its number. */
static void one_does_not_come(int rank, int size, void *arg)
{
    const int *missing = arg;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    char words[40];
    options.rank = rank;
    options.world_size = size;
    options.timeout_ms = 3000;
    if (rank == *missing)
        return;
    CHECK(ranks_init(&options, &world) != COMM_OK);
    snprintf(words, sizeof words, "missing: %d", *missing);
    CHECK_ERROR_SAYS(words);
}

int main(int argc, char **argv)
{
    static const int sizes[] = { 10, 65, RANKS_MAX }, missing[] = { 64, 129 };
    const struct ranks_options processes = { .limit_s = 60, .name = "many ranks" };
    /* As threads, they share a store that is not slow. */
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "many ranks" };
    const char *const direct =
        "cpu:tcp?algo=all_reduce:direct;reduce_scatter:direct;all_gather:direct;gather:linear;all_to_all:direct";
    const char *const two_level = "cpu:tcp?algo=all_reduce:two_level;broadcast:two_level_chain";
    int max = argc > 1 ? atoi(argv[1]) : RANKS_MAX, bad = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= max; i++)
        bad |= ranks_run(sizes[i], &processes, all_to_all_ranks, (void *)"cpu:tcp") ||
               ranks_run(sizes[i], &processes, all_to_all_ranks, (void *)direct);
    bad |= ranks_run(max, &processes, ranks_on_many_hosts, (void *)two_level) ||
           ranks_run(65, &processes, ranks_on_many_hosts, (void *)"cpu:tcp");
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        bad |= ranks_run(RANKS_MAX, &threads, one_does_not_come, (void *)&missing[i]);
    return bad;
}

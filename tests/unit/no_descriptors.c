/* A rank that has no descriptor left when others lend it memory that it would have to map: registered memory, staging
 * areas, copies for several. All goes on as before, another way. */
#include <comm/comm.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ranks.h"

enum { MOST = 100000 }; /* elements */

/* No descriptor can be made any more; those that there are stay. */
static struct rlimit take_descriptors(void)
{
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int lowest = dup(STDIN_FILENO);
    CHECK(lowest >= 0 && close(lowest) == 0);
    none = (struct rlimit){ .rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0 && dup(STDIN_FILENO) < 0);
    return before;
}

static void fill(int32_t *data, size_t count, int32_t first)
{
    for (size_t i = 0; i < count; i++)
        data[i] = first + (int32_t)i;
}

static void check(const int32_t *data, size_t count, int32_t first, int32_t step)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != first + step * (int32_t)i)
            ranks_fail(__FILE__, __LINE__, "element %zu of %zu: %d, not %d", i, count, (int)data[i],
                       (int)(first + step * (int32_t)i));
}

static void reduce_and_gather(comm_group *world, int rank, int size, int32_t *in, int32_t *out)
{
    static const size_t counts[] = { 1, 2000, 6000, 15000, 30000, MOST };
    const int32_t sum = size * (size - 1) / 2;
    for (int step = 0; step < 60; step++) {
        const size_t count = counts[step % 6], part = count / (size_t)size;
        fill(in, count, rank + step);
        CHECK_OK(comm_all_reduce(world, in, out, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        check(out, count, sum + size * step, size);
        CHECK_OK(comm_all_gather(world, in, out, part, COMM_DTYPE_I32, NULL, NULL));
        for (int i = 0; i < size; i++)
            check(out + (size_t)i * part, part, i + step, 1);
        if (rank == step % size)
            fill(out, count, step);
        CHECK_OK(comm_broadcast(world, out, count, COMM_DTYPE_I32, step % size, NULL, NULL));
        check(out, count, step, 1);
    }
}

static int warnings;

static void count_warnings(int32_t level, const char *text, void *context)
{
    (void)context;
    warnings += level == COMM_LOG_WARN && strstr(text, "shares: Too many open files. ") != NULL;
}

/* It says so once for each peer that lends to it: of what is registered all do. */
static void one_has_no_descriptors(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    int32_t *in = malloc(MOST * sizeof *in), *out = malloc(MOST * sizeof *out);
    comm_memory *memory[2];
    void *shared_in, *shared_out;
    struct rlimit before = { 0 };
    CHECK(in && out);
    CHECK_OK(comm_mem_alloc(world, MOST * sizeof *in, COMM_DEVICE_DEFAULT, &shared_in, &memory[0]));
    CHECK_OK(comm_mem_alloc(world, MOST * sizeof *out, COMM_DEVICE_DEFAULT, &shared_out, &memory[1]));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    comm_log_set(count_warnings, NULL);
    if (rank == size - 1)
        before = take_descriptors();
    CHECK_OK(comm_barrier(world, NULL, NULL));
    reduce_and_gather(world, rank, size, in, out);
    reduce_and_gather(world, rank, size, shared_in, shared_out);
    if (rank == size - 1)
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0 && warnings == size - 1);
    else
        CHECK(warnings == 0);
    CHECK_OK(comm_mem_release(memory[0]));
    CHECK_OK(comm_mem_release(memory[1]));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
    free(in);
    free(out);
}

int main(void)
{
    for (int size = 2; size <= 4; size++)
        if (ranks_run(size, NULL, one_has_no_descriptors, "cpu:shm") ||
            ranks_run(size, NULL, one_has_no_descriptors, "cpu:shm?cma_bytes=0") ||
            ranks_run(size, NULL, one_has_no_descriptors, "cpu:shm-tcp"))
            return 1;
    return 0;
}

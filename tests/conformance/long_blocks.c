/* Blocks about the length from which on they may be copied past the caches (core/exec/cache.h), in place and not. Odd
 * counts put the blocks behind the first one, and the halves of a vector, on other alignments. Usage: long_blocks
 * BACKEND; where nothing is to stay in the caches it is told so with cache_bytes=1. */
#include <comm/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "ranks.h"
#include "suite.h"

enum { SIZES = 2, BLOCK = (2 << 20) / 4 };
static const int sizes[SIZES] = { 2, 3 };

/* Elements of 4 bytes: of a block or message, and of the vector of an all_reduce. */
static const struct {
    enum kind kind;
    size_t counts[3];
} calls[] = {
    { ALL_REDUCE, { BLOCK - 1, BLOCK, 4 * BLOCK + 3 } }, { ALL_GATHER, { BLOCK - 1, BLOCK, BLOCK + 1 } },
    { ALL_TO_ALL, { BLOCK - 1, BLOCK, BLOCK + 1 } },    { BROADCAST, { BLOCK - 1, BLOCK, BLOCK + 1 } },
    { SEND_RECV, { BLOCK - 1, BLOCK, BLOCK + 1 } },
};

static void run_one(comm_group *g, enum kind kind, size_t count, bool in_place)
{
    struct one c = { .kind = kind, .device = COMM_DEVICE_CPU, .dtype = COMM_DTYPE_I32, .redop = COMM_REDOP_SUM,
                     .count = count, .in_place = in_place };
    struct memory memory;
    comm_work *work = NULL;
    c.root = comm_group_size(g) - 1;
    prepare(&c, g, &memory);
    CHECK_OK(call(&c, g, &memory, &work));
    CHECK_OK(comm_work_wait(work, 30000));
    comm_work_release(work);
    compare(&c, g, &memory, (int)count);
}

static void rank_main(int rank, int size, void *arg)
{
    char **argv = arg;
    comm_group *world = ranks_world(argv[1]);
    (void)rank, (void)size;
    calls_begin(world);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (int k = 0; k < 3; k++) {
            run_one(world, calls[i].kind, calls[i].counts[k], false);
            if (calls[i].kind != BROADCAST && calls[i].kind != SEND_RECV)
                run_one(world, calls[i].kind, calls[i].counts[k], true);
        }
    CHECK_OK(comm_group_close(world));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND\n", argv[0]);
        return 2;
    }
    return suite_run_sizes("long_blocks", argv, sizes, SIZES, rank_main);
}

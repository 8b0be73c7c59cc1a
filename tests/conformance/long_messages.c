/* Messages around and over what one write takes (1 MiB), in blocks of very different lengths, so that one is written in
 * pieces while others are done at once. Usage: long_messages BACKEND [TIMES]. */
#include <comm/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "gpu.h"
#include "ranks.h"
#include "suite.h"

enum { SIZES = 2, MIB = 1 << 20 };
static const int sizes[SIZES] = { 4, 8 };

/* Bytes of the blocks; rank r has the one at r % 4. */
static const size_t mixes[][4] = {
    { 127, 32768, 1125000, 81921 },
    { 0, 1200000, 1, 0 },
    { MIB - 64, MIB, MIB + 1, 3 * MIB },
    { 256 << 10, (64 << 10) + 1, 2 * MIB, 12 },
};
enum { MIXES = sizeof mixes / sizeof mixes[0] };

static const enum kind kinds[] = { ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL };

static void run_one(const struct one *c, comm_group *g, int number)
{
    struct memory memory;
    prepare(c, g, &memory);
    CHECK_OK(call(c, g, &memory, NULL));
    compare(c, g, &memory, number);
}

/* All block operations with this mix, as _v and as lists, and with equal blocks. */
static void run_blocks(comm_group *g, const size_t *mix, int round)
{
    int size = comm_group_size(g);
    uint64_t devices = (uint64_t)round;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (enum form form = PLAIN; form <= LIST; form++) {
            struct one c = { .kind = kinds[k], .form = form, .dtype = COMM_DTYPE_I32, .redop = COMM_REDOP_SUM };
            c.device = draw_device(&devices);
            c.root = round % size;
            c.count = mix[round % 4] / 4;
            c.layout = (uint64_t)(round * 31 + (int)k);
            for (int from = 0; from < size; from++)
                for (int to = 0; to < size; to++)
                    c.counts[from][to] = mix[(from + to + round) % 4] / 4;
            run_one(&c, g, round);
        }
}

/* Whole vectors of 3 MB, which with some algorithms travel in one message. */
static void run_vectors(comm_group *g, int round)
{
    static const enum kind vectors[] = { BROADCAST, REDUCE, ALL_REDUCE };
    uint64_t devices = (uint64_t)round;
    for (size_t k = 0; k < sizeof vectors / sizeof vectors[0]; k++) {
        struct one c = { .kind = vectors[k], .dtype = COMM_DTYPE_I32, .redop = COMM_REDOP_SUM, .count = 750000 };
        c.root = round % comm_group_size(g);
        c.device = draw_device(&devices);
        run_one(&c, g, round);
    }
}

static void rank_main(int rank, int size, void *arg)
{
    char **argv = arg;
    gpu_open(argv[1], rank);
    int times = argv[2] ? atoi(argv[2]) : 1;
    comm_group *world = ranks_world(argv[1]);
    (void)size;
    calls_begin(world);
    for (int round = 0; round < times; round++) {
        for (int m = 0; m < MIXES; m++)
            run_blocks(world, mixes[m], round);
        run_vectors(world, round);
    }
    CHECK_OK(comm_group_close(world));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [TIMES]\n", argv[0]);
        return 2;
    }
    return suite_run_sizes("long_messages", argv, sizes, SIZES, rank_main);
}

/* Ranks that come to an operation at different times, some microseconds apart: what one of them has begun at once is
 * finished by another thread's or rank's doing, or has to wait after all. Blocks are around every limit at which a
 * message goes another way. Some calls wait, some are asynchronous; ranks need not agree on that.
 * Usage: late BACKEND [SEED|fresh [CASES]]. */
#include <comm/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "gpu.h"
#include "ranks.h"
#include "suite.h"

enum { SIZES = 4, BURST = 4, TAGS = 2 };
static const int sizes[SIZES] = { 2, 3, 5, 8 };
static const size_t limits[] = { 0, 40, 4096, 16 << 10, 64 << 10, 128 << 10, 256 << 10 };
static const enum kind kinds[] = { BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL, REDUCE, ALL_REDUCE };

static uint64_t seed;
static int cases = 200;

static void be_late(uint64_t *own)
{
    static const int64_t most_ns[] = { 0, 1000, 8000, 20000, 200000 };
    int64_t wait_ns = (int64_t)below(own, 1 + (size_t)most_ns[below(own, 5)]);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < wait_ns);
}

/* Bytes, some elements of 4 around a limit. */
static size_t draw_bytes(uint64_t *state)
{
    size_t limit = limits[below(state, sizeof limits / sizeof limits[0])] + 4 * below(state, 3);
    return limit >= 4 ? limit - 4 : 0;
}

static void run_one(const struct one *c, comm_group *g, uint64_t *own, int number)
{
    struct memory memory;
    comm_work *work = NULL;
    prepare(c, g, &memory);
    be_late(own);
    if (below(own, 4)) {
        CHECK_OK(call(c, g, &memory, NULL));
    } else {
        CHECK_OK(call(c, g, &memory, &work));
        CHECK_OK(comm_work_wait(work, -1));
        comm_work_release(work);
    }
    compare(c, g, &memory, number);
}

/* An all_to_all comes once more in place, or not: a backend may take the second for the first. */
static void run_collective(comm_group *g, uint64_t *state, uint64_t *own, int number)
{
    struct one c = { .kind = kinds[below(state, sizeof kinds / sizeof kinds[0])], .form = PLAIN,
                     .device = draw_device(state), .dtype = COMM_DTYPE_I32, .redop = COMM_REDOP_SUM };
    c.count = draw_bytes(state) / 4;
    c.root = (int32_t)below(state, (size_t)comm_group_size(g));
    c.in_place = below(state, 2) != 0;
    run_one(&c, g, own, number);
    c.in_place = !c.in_place;
    if (c.kind == ALL_TO_ALL)
        run_one(&c, g, own, number);
}

/* ---- Between two ranks ---- */

struct letter {
    size_t bytes;
    int32_t tag;
    uint8_t first; /* byte */
};

static uint8_t letter_byte(const struct letter *l, size_t i)
{
    return (uint8_t)(l->first + i * 7 + i / 4096);
}

static void send_letters(comm_group *g, int32_t peer, const struct letter *letters, uint64_t *own)
{
    uint8_t *memory[BURST];
    comm_work *works[BURST] = { NULL };
    for (int i = 0; i < BURST; i++) {
        const struct letter *l = &letters[i];
        comm_op_options options = COMM_OP_OPTIONS_INIT;
        options.tag = l->tag;
        memory[i] = malloc(l->bytes + 1);
        for (size_t k = 0; k < l->bytes; k++)
            memory[i][k] = letter_byte(l, k);
        be_late(own);
        CHECK_OK(comm_send(g, memory[i], l->bytes, COMM_DTYPE_U8, peer, &options, below(own, 2) ? &works[i] : NULL));
        if (!works[i])
            memset(memory[i], POISON, l->bytes); /* it is ours again */
    }
    for (int i = 0; i < BURST; i++) {
        if (works[i])
            CHECK_OK(comm_work_wait(works[i], -1));
        comm_work_release(works[i]);
        free(memory[i]);
    }
}

/* In the order sent, whatever way each of them takes. */
static void receive_letters(comm_group *g, int32_t peer, const struct letter *letters, uint64_t *own)
{
    for (int i = 0; i < BURST; i++) {
        const struct letter *l = &letters[i];
        comm_op_options options = COMM_OP_OPTIONS_INIT;
        comm_work *work = NULL;
        uint8_t *memory = malloc(l->bytes + 8);
        memset(memory, POISON, l->bytes + 8);
        options.tag = below(own, 2) ? l->tag : COMM_ANY_TAG;
        be_late(own);
        CHECK_OK(comm_recv(g, memory, l->bytes + 4 * below(own, 2), COMM_DTYPE_U8,
                           below(own, 4) ? peer : COMM_ANY_SOURCE, &options, below(own, 2) ? &work : NULL));
        if (work)
            CHECK_OK(comm_work_wait(work, -1));
        comm_work_release(work);
        size_t k = 0;
        while (k < l->bytes + 8 && memory[k] == (k < l->bytes ? letter_byte(l, k) : POISON))
            k++;
        if (k < l->bytes + 8)
            fprintf(stderr, "message %d, of %zu B with tag %d: byte %zu is wrong\n", i, l->bytes, (int)l->tag, k);
        CHECK(k == l->bytes + 8);
        free(memory);
    }
}

/* Pairs of ranks: the even one writes first. */
static void run_letters(comm_group *g, uint64_t *state, uint64_t *own)
{
    struct letter letters[2][BURST];
    int32_t peer = comm_group_rank(g) ^ 1, odd = comm_group_rank(g) & 1;
    for (int i = 0; i < 2 * BURST; i++)
        letters[i / BURST][i % BURST] = (struct letter){ draw_bytes(state), (int32_t)below(state, TAGS),
                                                         (uint8_t)below(state, 256) };
    if (peer >= comm_group_size(g))
        return;
    for (int turn = 0; turn < 2; turn++)
        (turn == odd ? send_letters : receive_letters)(g, peer, letters[turn], own);
}

static void rank_main(int rank, int size, void *arg)
{
    char **argv = arg;
    gpu_open(argv[1], rank);
    comm_group *world = ranks_world(argv[1]);
    uint64_t state = seed, own = seed + 1000 * (uint64_t)size + (uint64_t)rank + 1;
    calls_begin(world);
    for (int i = 0; i < cases; i++) {
        run_collective(world, &state, &own, i);
        if (i % 4 == 0)
            run_letters(world, &state, &own);
    }
    CHECK_OK(comm_group_close(world));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [CASES]]\n", argv[0]);
        return 2;
    }
    seed = suite_seed(argc, argv);
    cases = argc > 3 ? atoi(argv[3]) : cases;
    return suite_run_sizes("late", argv, sizes, SIZES, rank_main);
}

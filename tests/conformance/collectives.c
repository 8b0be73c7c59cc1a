/* Does a backend do what comm.h says? Usage: collectives BACKEND [SEED [CASES [SIZE]]].
 *
 * Cases are drawn at random from all operations, dtypes, reduce ops, counts, roots, forms (plain, _v, _list), in and
 * out of place, waiting, asynchronous and coalesced, on the world and on groups made from it. All ranks draw the same
 * sequence. The seed is printed; give it again to repeat a failure. Every result is compared with values.c, and every
 * output is poisoned first, with a margin behind it that must stay poisoned. */
#include <comm/comm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "gpu.h"
#include "loopback.h"
#include "ranks.h"

enum { WAVE_MOST = 4 };
enum mode { WAITING, ASYNC, COALESCED };

struct suite {
    const char *backend;
    uint64_t seed;
    int cases;
    bool threads;
};

/* A few calls, in one of the three ways. */
static void run_wave(uint64_t *state, comm_group *g, int number)
{
    struct one *cases = calloc(WAVE_MOST, sizeof *cases);
    struct memory memory[WAVE_MOST];
    comm_work *works[WAVE_MOST] = { NULL };
    enum mode mode = (enum mode)below(state, 3);
    size_t count = mode == WAITING ? 1 : 1 + below(state, WAVE_MOST);
    comm_device device = draw_device(state);
    for (size_t i = 0; i < count; i++) {
        cases[i] = draw_one(state, comm_group_size(g), device);
        device = mode == COALESCED ? device : draw_device(state); /* a batch is for one device */
        if (mode == WAITING && cases[i].kind == SEND_RECV)
            cases[i].kind = BARRIER; /* a ring of waiting sends may wait for ever */
        prepare(&cases[i], g, &memory[i]);
    }
    if (mode == COALESCED)
        CHECK_OK(comm_coalesce_begin(g));
    for (size_t i = 0; i < count; i++)
        CHECK_OK(call(&cases[i], g, &memory[i], mode == ASYNC ? &works[i] : NULL));
    if (mode == COALESCED)
        CHECK_OK(comm_coalesce_end(g, NULL, number % 2 ? &works[0] : NULL));
    CHECK_OK(comm_work_wait_all(works, count, 30000));
    for (size_t i = 0; i < count; i++) {
        comm_work_release(works[i]);
        compare(&cases[i], g, &memory[i], number);
    }
    free(cases);
}

/* The ranks of the same parity, the last one first. */
static comm_group *part_of(comm_group *world, int rank)
{
    int32_t ranks[RANKS_MOST];
    size_t count = 0;
    comm_group *part;
    comm_status status = comm_group_split(world, rank % 2, -rank, NULL, &part);
    if (status != COMM_ERR_UNSUPPORTED)
        CHECK_OK(status);
    else { /* the ranks ask each other on the CPU, which this world does not serve */
        for (int32_t r = comm_group_size(world) - 1; r >= 0; r--)
            if (r % 2 == rank % 2)
                ranks[count++] = r;
        CHECK_OK(comm_group_create(world, ranks, count, NULL, &part));
    }
    return part;
}

static void rank_main(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    gpu_open(suite->backend, rank);
    comm_group *world = ranks_world(suite->backend), *dup, *part;
    uint64_t state = suite->seed + (uint64_t)size;
    calls_begin(world);
    CHECK_OK(comm_group_dup(world, NULL, &dup));
    part = part_of(world, rank);
    for (int i = 0; i < suite->cases; i++) {
        /* Each group has a sequence of its own, because the parts have different sizes. */
        uint64_t mine = draw(&state), which = mine % 4;
        run_wave(&mine, which == 0 ? dup : which == 1 ? part : world, i);
    }
    ranks_quiet(world);
    CHECK_OK(comm_group_close(part));
    CHECK_OK(comm_group_close(world)); /* before one of its children */
    comm_op_options anywhere = COMM_OP_OPTIONS_INIT;
    anywhere.device = draw_device(&state);
    CHECK_OK(comm_barrier(dup, &anywhere, NULL));
    CHECK_OK(comm_group_close(dup));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [CASES [SIZE]]]\n", argv[0]);
        return 2;
    }
    struct suite suite = {
        .backend = argv[1],
        .seed = argc > 2 && strcmp(argv[2], "fresh") != 0 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL),
        .cases = argc > 3 ? atoi(argv[3]) : 100,
        .threads = strcmp(argv[1], "cpu:loopback") == 0,
    };
    struct ranks_options options = { .threads = suite.threads, .limit_s = 100, .name = "collectives" };
    if (suite.threads && comm_backend_register(loopback_entry) != COMM_OK) {
        fprintf(stderr, "%s\n", comm_last_error());
        return 1;
    }
    printf("seed %llu\n", (unsigned long long)suite.seed);
    fflush(stdout);
    int least = argc > 4 ? atoi(argv[4]) : 1, most = argc > 4 ? least : gpu_in(suite.backend) ? 8 : 9;
    for (int size = least; size <= most; size++)
        if (ranks_run(size, &options, rank_main, &suite) != 0)
            return 1;
    return 0;
}

#include "waves.h"

#include <stdlib.h>

#include "calls.h"
#include "gpu.h"
#include "ranks.h"

enum { WAVE_MAX = 4 };
enum mode { WAITING, ASYNC, COALESCED };

struct wave {
    size_t count;
    struct one cases[WAVE_MAX];
    struct memory memory[WAVE_MAX];
    comm_work *works[WAVE_MAX];
    bool refused[WAVE_MAX];
    bool may_refuse;
};

/* Note whether call `i` was refused; any other failure is one. */
static void note_refusal(struct wave *w, size_t i, comm_status status)
{
    w->refused[i] = w->may_refuse && status == COMM_ERR_UNSUPPORTED;
    if (!w->refused[i])
        CHECK_OK(status);
}

static void make_calls(struct wave *w, comm_group *g, enum mode mode, int number)
{
    if (mode == COALESCED)
        CHECK_OK(comm_coalesce_begin(g));
    for (size_t i = 0; i < w->count; i++)
        note_refusal(w, i, call(&w->cases[i], g, &w->memory[i], mode == ASYNC ? &w->works[i] : NULL));
    if (mode != COALESCED)
        return;
    comm_status status = comm_coalesce_end(g, NULL, number % 2 ? &w->works[0] : NULL);
    for (size_t i = 0; i < w->count; i++) /* all or none */
        if (!w->refused[i])
            note_refusal(w, i, status);
}

/* A few calls, in one of the three ways. */
static void run_wave(uint64_t *state, comm_group *g, int number, bool may_refuse)
{
    struct wave *w = calloc(1, sizeof *w);
    enum mode mode = (enum mode)below(state, 3);
    w->may_refuse = may_refuse;
    w->count = mode == WAITING ? 1 : 1 + below(state, WAVE_MAX);
    comm_device device = draw_device(state);
    for (size_t i = 0; i < w->count; i++) {
        struct one *c = &w->cases[i];
        *c = draw_one(state, comm_group_size(g), device);
        device = mode == COALESCED ? device : draw_device(state); /* a batch is for one device */
        if (mode == WAITING && c->kind == SEND_RECV)
            c->kind = BARRIER; /* a ring of waiting sends may wait for ever */
        prepare(c, g, &w->memory[i]);
    }
    make_calls(w, g, mode, number);
    CHECK_OK(comm_work_wait_all(w->works, w->count, 30000));
    for (size_t i = 0; i < w->count; i++) {
        comm_work_release(w->works[i]);
        if (w->refused[i])
            forget(&w->cases[i], &w->memory[i]);
        else
            compare(&w->cases[i], g, &w->memory[i], number);
    }
    free(w);
}

/* The ranks of the same parity, the last one first. */
static comm_group *part_of(comm_group *world, int rank)
{
    int32_t ranks[RANKS_MAX];
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

void waves_run(int rank, int size, const struct waves *waves)
{
    gpu_open(waves->backend, rank);
    comm_group *world = ranks_world(waves->backend), *dup, *part;
    uint64_t state = waves->seed + (uint64_t)size;
    calls_begin(world);
    CHECK_OK(comm_group_dup(world, NULL, &dup));
    part = part_of(world, rank);
    for (int i = 0; i < waves->count; i++) {
        /* Each group has a sequence of its own, because the parts have different sizes. */
        uint64_t mine = draw(&state), which = mine % 4;
        run_wave(&mine, which == 0 ? dup : which == 1 ? part : world, i, waves->may_refuse);
    }
    ranks_quiet(world);
    CHECK_OK(comm_group_close(part));
    CHECK_OK(comm_group_close(world)); /* before one of its children */
    comm_op_options anywhere = COMM_OP_OPTIONS_INIT;
    anywhere.device = draw_device(&state);
    comm_status status = comm_barrier(dup, &anywhere, NULL);
    if (!waves->may_refuse || status != COMM_ERR_UNSUPPORTED)
        CHECK_OK(status);
    CHECK_OK(comm_group_close(dup));
}

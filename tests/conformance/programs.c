/* Random programs: several threads per rank, each with groups of its own that overlap, nest and repeat lists of ranks,
 * and many operations under way that are waited for in any order. Usage: programs BACKEND [SEED|fresh [STEPS [SIZE]]].
 *
 * All ranks draw the same program; how a rank waits is its own affair. The seed is printed. */
#include <comm/comm.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "gpu.h"
#include "ranks.h"
#include "suite.h"

enum { GROUPS_MAX = 9, THREADS_MAX = 3, FLYING_MAX = 6, WAIT_MS = 60000 };

struct suite {
    const char *backend;
    uint64_t seed;
    int steps;
    bool threads;
};

struct subset {
    int32_t ranks[RANKS_MAX]; /* of the world */
    int32_t size;
    comm_group *group; /* NULL: this rank is none of them */
};

struct program {
    const struct suite *suite;
    struct subset groups[GROUPS_MAX];
    int group_count, thread_count;
    int rank;
};

struct lane {
    struct program *program;
    int index;
    pthread_t id;
};

/* ---- Groups ---- */

/* Some of `parent`'s ranks in any order; or the list of an earlier group again, which makes another group. */
static void draw_subset(uint64_t *state, const struct subset *parent, struct subset *ret)
{
    int32_t rest[RANKS_MAX], left = parent->size;
    memcpy(rest, parent->ranks, sizeof rest);
    ret->size = 1 + (int32_t)below(state, (size_t)left);
    for (int32_t i = 0; i < ret->size; i++) {
        int32_t at = (int32_t)below(state, (size_t)left);
        ret->ranks[i] = rest[at];
        rest[at] = rest[--left];
    }
}

static int32_t index_of(const struct subset *s, int32_t world_rank)
{
    for (int32_t i = 0; i < s->size; i++)
        if (s->ranks[i] == world_rank)
            return i;
    return -1;
}

static void create(const struct subset *parent, struct subset *s, int rank)
{
    int32_t ranks[RANKS_MAX], own = index_of(s, rank);
    s->group = NULL;
    if (!parent->group) /* not even in the parent */
        return;
    for (int32_t i = 0; i < s->size; i++)
        ranks[i] = index_of(parent, s->ranks[i]);
    CHECK_OK(comm_group_create(parent->group, ranks, (size_t)s->size, NULL, &s->group));
    CHECK((s->group != NULL) == (own >= 0));
    if (!s->group)
        return;
    CHECK(comm_group_rank(s->group) == own && comm_group_size(s->group) == s->size);
    for (int32_t i = 0; i < s->size; i++) {
        int32_t world_rank, back;
        CHECK_OK(comm_group_world_rank(s->group, i, &world_rank));
        CHECK_OK(comm_group_rank_of(s->group, s->ranks[i], &back));
        CHECK(world_rank == s->ranks[i] && back == i);
    }
}

static void draw_groups(uint64_t *state, struct program *p, comm_group *world, int size)
{
    struct subset *g = p->groups;
    for (int r = 0; r < size; r++)
        g[0].ranks[r] = r;
    g[0].size = size;
    g[0].group = world;
    p->group_count = 4 + (int)below(state, GROUPS_MAX - 3);
    for (int i = 1; i < p->group_count; i++) {
        const struct subset *parent = &g[below(state, (size_t)i)];
        if (below(state, 3) == 0) {
            memcpy(g[i].ranks, parent->ranks, sizeof g[i].ranks);
            g[i].size = parent->size;
        } else {
            draw_subset(state, parent, &g[i]);
        }
        create(parent, &g[i], p->rank);
    }
}

/* ---- One thread ---- */

struct flying {
    comm_group *group;
    struct one call;
    struct memory memory;
    comm_work *work;
    int number;
};

static void count_up(comm_work *work, comm_status status, void *context)
{
    (void)work;
    __atomic_fetch_add((int *)context, status == COMM_OK ? 1 : 1000, __ATOMIC_RELEASE);
}

/* Learn that it is done in one of the ways that there are, and its status. */
static comm_status await(uint64_t *own, struct flying *f)
{
    int32_t done = 0, fd, called = 0;
    comm_status status;
    switch (below(own, 5)) {
    case 0:
        do
            status = comm_work_test(f->work, &done);
        while (status == COMM_OK && !done);
        return status;
    case 1: {
        CHECK_OK(comm_work_fd(f->work, &fd));
        struct pollfd poller = { .fd = fd, .events = POLLIN };
        CHECK(poll(&poller, 1, WAIT_MS) == 1);
        return comm_work_status(f->work);
    }
    case 2:
        CHECK_OK(comm_work_on_complete(f->work, count_up, &called));
        status = comm_work_wait(f->work, WAIT_MS);
        /* The callback may still be running on the thread that completed the work; `called` must outlive it. */
        while (status == COMM_OK && __atomic_load_n(&called, __ATOMIC_ACQUIRE) == 0)
            CHECK_OK(comm_work_test(f->work, &done));
        CHECK(status != COMM_OK || called == 1);
        return status;
    case 3:
        while ((status = comm_work_wait(f->work, 1)) == COMM_ERR_TIMEOUT)
            ;
        return status;
    default:
        return comm_work_wait(f->work, WAIT_MS);
    }
}

/* `work` is NULL for a call that has waited or was refused. */
static void must_be_ok(comm_status status, const comm_work *work, const struct one *c, const comm_group *group,
                       int number)
{
    char what[DESCRIBED_BYTES];
    if (status == COMM_OK)
        return;
    const char *why = comm_work_error(work); /* "" if it is not complete: then the wait has said why */
    describe(c, group, what);
    ranks_fail(__FILE__, __LINE__, "case %d: %s: %s: %s", number, what, comm_status_name(status),
               *why ? why : comm_last_error());
}

static void land(struct flying *flying, int *count, int at, uint64_t *own)
{
    struct flying *f = &flying[at];
    must_be_ok(await(own, f), f->work, &f->call, f->group, f->number);
    compare(&f->call, f->group, &f->memory, f->number);
    comm_work_release(f->work);
    *f = flying[--*count];
}

static void batch(uint64_t *state, comm_group *group, int32_t size, int number)
{
    struct one calls[3];
    struct memory memory[3];
    size_t count = below(state, 4);
    comm_device device = draw_device(state);
    comm_work *work = NULL;
    for (size_t i = 0; i < count; i++)
        calls[i] = draw_one(state, size, device);
    if (!group)
        return;
    for (size_t i = 0; i < count; i++)
        prepare(&calls[i], group, &memory[i]);
    CHECK_OK(comm_coalesce_begin(group));
    for (size_t i = 0; i < count; i++)
        must_be_ok(call(&calls[i], group, &memory[i], NULL), NULL, &calls[i], group, number);
    CHECK_OK(comm_coalesce_end(group, NULL, number % 2 ? &work : NULL));
    if (work)
        CHECK_OK(comm_work_wait(work, WAIT_MS));
    comm_work_release(work);
    for (size_t i = 0; i < count; i++)
        compare(&calls[i], group, &memory[i], number);
}

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    struct program *p = lane->program;
    gpu_thread();
    uint64_t state = p->suite->seed * 31 + (uint64_t)(lane->index * 77 + p->groups[0].size);
    uint64_t own = state + (uint64_t)p->rank * 999;
    struct flying *flying = calloc(FLYING_MAX, sizeof *flying);
    int count = 0;
    for (int step = 0; step < p->suite->steps; step++) {
        uint64_t mine = draw(&state), how = draw(&mine) % 8;
        int lanes_groups = (p->group_count - lane->index + p->thread_count - 1) / p->thread_count;
        struct subset *s = &p->groups[lane->index + (int)below(&mine, (size_t)lanes_groups) * p->thread_count];
        if (how == 0) {
            batch(&mine, s->group, s->size, step);
            continue;
        }
        comm_device device = draw_device(&mine);
        struct one c = draw_one(&mine, s->size, device);
        if (!s->group)
            continue;
        while (count == FLYING_MAX || (count > 0 && below(&own, 3) == 0))
            land(flying, &count, (int)below(&own, (size_t)count), &own);
        struct flying *f = &flying[count];
        *f = (struct flying){ .group = s->group, .call = c, .number = step };
        prepare(&f->call, s->group, &f->memory);
        if (how == 1 && c.kind != SEND_RECV) { /* a ring of waiting sends may wait for ever */
            must_be_ok(call(&f->call, s->group, &f->memory, NULL), NULL, &f->call, s->group, step);
            compare(&f->call, s->group, &f->memory, step);
        } else {
            must_be_ok(call(&f->call, s->group, &f->memory, &f->work), NULL, &f->call, s->group, step);
            count++;
        }
    }
    while (count > 0)
        land(flying, &count, (int)below(&own, (size_t)count), &own);
    free(flying);
    return NULL;
}

/* ---- One rank ---- */

static void rank_main(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    struct program p = { .suite = suite, .rank = rank };
    uint64_t state = suite->seed + (uint64_t)size;
    gpu_open(suite->backend, rank);
    comm_group *world = ranks_world(suite->backend);
    calls_begin(world);
    draw_groups(&state, &p, world, size);
    p.thread_count = 1 + (int)below(&state, THREADS_MAX);
    struct lane lanes[THREADS_MAX];
    for (int t = 0; t < p.thread_count; t++) {
        lanes[t] = (struct lane){ .program = &p, .index = t };
        CHECK(pthread_create(&lanes[t].id, NULL, lane_main, &lanes[t]) == 0);
    }
    for (int t = 0; t < p.thread_count; t++)
        CHECK(pthread_join(lanes[t].id, NULL) == 0);
    ranks_quiet(p.groups[0].group);
    for (int g = p.group_count - 1; g >= 0; g--)
        CHECK_OK(comm_group_close(p.groups[g].group));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [STEPS [SIZE]]]\n", argv[0]);
        return 2;
    }
    struct suite suite = {
        .backend = argv[1],
        .seed = suite_seed(argc, argv),
        .steps = argc > 3 ? atoi(argv[3]) : 60,
        .threads = suite_has_threads(argv[1]),
    };
    int least = argc > 4 ? atoi(argv[4]) : 1, most = argc > 4 ? least : gpu_in(suite.backend) ? 8 : 9;
    struct ranks_options options = { .threads = suite.threads, .limit_s = 300, .name = "programs" };
    for (int size = least; size <= most; size++)
        if (ranks_run(size, &options, rank_main, &suite) != 0)
            return 1;
    return 0;
}

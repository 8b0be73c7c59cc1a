/* Whole vectors in memory of different kinds, each rank choosing its own: private, from comm_mem_alloc, in the middle
 * of it, in place or not; of lengths around those at which a backend changes its way. Two operations are under way at a
 * time, on two groups in which the ranks have different places. What lies beside the vectors must stay as it is.
 * Usage: registered BACKEND [SEED or "fresh" [CASES [RANKS]]]. */
#include <comm/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "ranks.h"
#include "suite.h"

enum { BESIDE = 4096, BYTES_MAX = 3 << 20, SIDES = 2, GROUPS = 2 };

struct setup {
    const char *backend;
    uint64_t seed;
    int cases;
};

/* Memory with BESIDE bytes on both sides of the vector, which begins `odd` elements later. */
struct area {
    uint8_t *data;
    comm_memory *memory; /* NULL: private */
};

struct operation {
    comm_dtype dtype;
    comm_redop redop;
    int in_place, is_reduce; /* to one rank */
    size_t count, odd;
    comm_work *work;
    uint8_t *send, *recv;
};

static size_t bytes_of(comm_dtype dtype)
{
    return dtype == COMM_DTYPE_F64 ? 8 : dtype == COMM_DTYPE_BF16 ? 2 : 4;
}

static void put(uint8_t *at, comm_dtype dtype, int value)
{
    double f64 = value;
    float f32 = (float)value;
    int32_t i32 = value;
    uint32_t bits;
    memcpy(&bits, &f32, sizeof bits);
    uint16_t bf16 = (uint16_t)(bits >> 16); /* of few digits: nothing is rounded */
    const void *as = dtype == COMM_DTYPE_F64 ? (void *)&f64 : dtype == COMM_DTYPE_F32 ? (void *)&f32
                     : dtype == COMM_DTYPE_I32 ? (void *)&i32 : (void *)&bf16;
    memcpy(at, as, bytes_of(dtype));
}

/* An average has no remainder. */
static int value_of(const struct operation *o, int32_t rank, size_t i, int32_t size)
{
    return (int)((i * 7 + i / 1000 + (size_t)rank * 5) % 8) * (o->redop == COMM_REDOP_AVG ? size : 1);
}

static int result_of(const struct operation *o, size_t i, int32_t size)
{
    int sum = 0, most = 0;
    for (int32_t r = 0; r < size; r++) {
        int value = value_of(o, r, i, size);
        sum += value;
        most = value > most ? value : most;
    }
    return o->redop == COMM_REDOP_MAX ? most : o->redop == COMM_REDOP_AVG ? sum / size : sum;
}

static void draw(struct operation *o, uint64_t *state)
{
    static const comm_dtype dtypes[] = { COMM_DTYPE_F32, COMM_DTYPE_F32, COMM_DTYPE_I32, COMM_DTYPE_BF16,
                                         COMM_DTYPE_F64 };
    static const comm_redop redops[] = { COMM_REDOP_SUM, COMM_REDOP_SUM, COMM_REDOP_MAX, COMM_REDOP_AVG };
    static const size_t limits[] = { 4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20 };
    o->dtype = dtypes[random_below(state, 5)];
    o->redop = redops[random_below(state, 4)];
    if (o->redop == COMM_REDOP_AVG && o->dtype != COMM_DTYPE_F64)
        o->dtype = COMM_DTYPE_F32;
    o->in_place = (int)random_below(state, 2);
    o->is_reduce = random_below(state, 5) == 0;
    size_t which = random_below(state, 10), element = bytes_of(o->dtype);
    o->count = which < 8 ? limits[which] / element + random_below(state, 5) - 2
                         : random_below(state, BYTES_MAX / element);
}

/* This rank's own choice. */
static uint8_t *choose(const struct area *areas, struct operation *o, uint64_t *own)
{
    return areas[random_below(own, 2)].data + BESIDE + o->odd * bytes_of(o->dtype);
}

static void begin(comm_group *g, struct operation *o, const struct area areas[SIDES][2], int32_t root, uint64_t *own)
{
    size_t element = bytes_of(o->dtype), bytes = o->count * element;
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    o->odd = random_below(own, 3) == 0 ? random_below(own, 50) : 0;
    o->recv = choose(areas[0], o, own);
    o->send = o->in_place ? o->recv : choose(areas[1], o, own);
    memset(o->recv - BESIDE, 0xa5, bytes + 2 * BESIDE);
    memset(o->send - BESIDE, 0xa5, bytes + 2 * BESIDE);
    for (size_t i = 0; i < o->count; i++)
        put(o->send + i * element, o->dtype, value_of(o, rank, i, size));
    if (o->is_reduce)
        CHECK_OK(comm_reduce(g, o->send, o->recv, o->count, o->dtype, o->redop, root, NULL, &o->work));
    else
        CHECK_OK(comm_all_reduce(g, o->send, o->recv, o->count, o->dtype, o->redop, NULL, &o->work));
}

static void check_beside(const uint8_t *data, size_t bytes)
{
    for (size_t i = 1; i <= BESIDE; i++)
        if (data[-(ptrdiff_t)i] != 0xa5 || data[bytes + i - 1] != 0xa5)
            ranks_fail(__FILE__, __LINE__, "%zu bytes beside a vector of %zu have been written", i, bytes);
}

static void finish(comm_group *g, struct operation *o, int32_t root)
{
    size_t element = bytes_of(o->dtype);
    int32_t size = comm_group_size(g), rank = comm_group_rank(g);
    CHECK_OK(comm_work_wait(o->work, 0));
    comm_work_release(o->work);
    check_beside(o->recv, o->count * element);
    check_beside(o->send, o->count * element);
    for (size_t i = 0; i < o->count; i++) {
        uint8_t expected[8];
        put(expected, o->dtype, result_of(o, i, size));
        if ((!o->is_reduce || rank == root) && memcmp(o->recv + i * element, expected, element) != 0)
            ranks_fail(__FILE__, __LINE__, "element %zu of %zu is wrong (dtype %d, redop %d, in place %d)", i, o->count,
                       (int)o->dtype, (int)o->redop, o->in_place);
        put(expected, o->dtype, value_of(o, rank, i, size));
        if (!o->in_place && memcmp(o->send + i * element, expected, element) != 0)
            ranks_fail(__FILE__, __LINE__, "element %zu of %zu of the input has been written", i, o->count);
    }
}

static void open_areas(comm_group *g, struct area areas[SIDES][2])
{
    const size_t bytes = BYTES_MAX + 3 * BESIDE;
    for (int side = 0; side < SIDES; side++) {
        void *data;
        areas[side][0] = (struct area){ .data = malloc(bytes) };
        areas[side][1].memory = NULL;
        if (comm_mem_alloc(g, bytes, COMM_DEVICE_CPU, &data, &areas[side][1].memory) != COMM_OK)
            data = malloc(bytes);
        areas[side][1].data = data;
    }
}

static void close_areas(struct area areas[SIDES][2])
{
    for (int side = 0; side < SIDES; side++) {
        if (!areas[side][1].memory)
            free(areas[side][1].data);
        CHECK_OK(comm_mem_release(areas[side][1].memory));
        free(areas[side][0].data);
    }
}

static void rank_main(int rank, int size, void *arg)
{
    const struct setup *s = arg;
    uint64_t state = s->seed, own = s->seed * 31 + (uint64_t)rank;
    comm_group *groups[GROUPS] = { ranks_world(s->backend) };
    struct area areas[GROUPS][SIDES][2];
    CHECK_OK(comm_group_split(groups[0], 0, size - rank, NULL, &groups[1])); /* the other way round */
    for (int i = 0; i < GROUPS; i++)
        open_areas(groups[i], areas[i]);
    for (int number = 0; number < s->cases; number++) {
        struct operation o[GROUPS];
        int32_t root = (int32_t)random_below(&state, (uint64_t)size);
        for (int i = 0; i < GROUPS; i++)
            draw(&o[i], &state);
        for (int i = 0; i < GROUPS; i++)
            begin(groups[i], &o[i], areas[i], root, &own);
        for (int i = 0; i < GROUPS; i++)
            finish(groups[i], &o[i], root);
    }
    for (int i = 0; i < GROUPS; i++)
        close_areas(areas[i]);
    CHECK_OK(comm_group_close(groups[1]));
    CHECK_OK(comm_group_close(groups[0]));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [CASES [RANKS]]]\n", argv[0]);
        return 2;
    }
    struct setup s = { .backend = argv[1], .seed = suite_seed(argc, argv), .cases = argc > 3 ? atoi(argv[3]) : 8 };
    struct ranks_options options = { .limit_s = 100, .name = "registered" };
    options.threads = suite_has_threads(argv[1]);
    for (int size = argc > 4 ? atoi(argv[4]) : 1; size <= (argc > 4 ? atoi(argv[4]) : 9); size++)
        if (ranks_run(size, &options, rank_main, &s) != 0)
            return 1;
    return 0;
}

/* Reductions to the bit: every legal pair of reduce op and dtype on random data. Usage: reductions BACKEND [SEED
 * [ROUNDS]].
 *
 * Where the result does not depend on the order (integers, BOOL, MIN, MAX) or the order is given (16- and 8-bit floats,
 * one rounding; COMM_OP_FLAG_RANK_ORDER) it must be that of tests/support/reference.c bit for bit. Sums and products of
 * wider floats may be made in any order: they must be near the reference. In all cases all ranks must have the same
 * bits, and a second run must give them again.
 *
 * On a GPU, NCCL reduces: 16- and 8-bit floats are rounded at each step, so these must be near, too; what it does to
 * NaN in MIN and MAX is not asked. Every pair that NCCL has must be supported, and is tried in all three operations. */
#include <comm/comm.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "ranks.h"
#include "reference.h"
#include "suite.h"

enum { RANKS_MAX = 9, POISON = 0xa5 };

struct suite {
    const char *backend;
    uint64_t seed;
    int rounds;
    bool threads, on_gpu;
};

static const char *const names[] = { "all_reduce", "reduce", "reduce_scatter" };
enum kind_of_call { ALL_REDUCE, REDUCE, REDUCE_SCATTER };

struct reduction {
    enum kind_of_call kind;
    comm_redop redop;
    comm_dtype dtype;
    size_t count; /* elements of each rank's input */
    int32_t root;
    bool rank_order, on_gpu;
    comm_device device;
    uint8_t *inputs[RANKS_MAX];
    uint8_t factors[RANKS_MAX][REFERENCE_ELEMENT_MAX];
};

/* ---- Data: the same on all ranks ---- */

static void draw_moderate(uint64_t *state, comm_dtype dtype, void *element)
{
    uint64_t random = reference_random(state);
    struct number n = { 0, 0, 0 };
    n.integer = (int64_t)(random % 251) - 125;
    n.re = ldexp((double)(random % 2001) - 1000, (int)(random >> 20 & 7) - 12);
    n.im = ldexp((double)((random >> 32) % 2001) - 1000, (int)(random >> 50 & 7) - 12);
    reference_store(dtype, n, element);
}

/* Powers of two, whose products NCCL does not round: in 8 bits from 2^-8 to 2^8. */
static void draw_power(uint64_t *state, comm_dtype dtype, void *element)
{
    uint64_t random = reference_random(state);
    struct number n = { 0, ldexp(random % 2 ? 1 : -1, (int)(random >> 8) % 3 - 1), 0 };
    reference_store(dtype, n, element);
}

static bool is_narrow_on_gpu(const struct reduction *r)
{
    return r->on_gpu && reference_format(r->dtype);
}

/* So that nothing overflows on the way, in whatever order. */
static bool needs_powers(const struct reduction *r)
{
    bool multiplies = r->redop == COMM_REDOP_PRODUCT || r->redop == COMM_REDOP_PREMUL_SUM;
    return r->on_gpu && multiplies && reference_kind(r->dtype) == FLOAT;
}

/* Any bits are fine where the result is exact; a NaN or infinity now and then everywhere. */
static void draw_input(uint64_t *state, const struct reduction *r, bool exact, void *element)
{
    uint64_t how = reference_random(state) % 64;
    bool specials = !r->on_gpu || r->redop == COMM_REDOP_SUM;
    struct number special = { 0, how == 0 ? NAN : how == 1 ? INFINITY : how == 2 ? -0.0 : 0, 0 };
    if (how < 4 && reference_kind(r->dtype) >= FLOAT && r->redop != COMM_REDOP_PRODUCT && specials &&
        !is_narrow_on_gpu(r))
        reference_store(r->dtype, special, element);
    else if (needs_powers(r))
        draw_power(state, r->dtype, element);
    else if (is_narrow_on_gpu(r) || (r->on_gpu && reference_kind(r->dtype) >= FLOAT))
        draw_moderate(state, r->dtype, element);
    else if (r->on_gpu && r->dtype == COMM_DTYPE_BOOL)
        *(uint8_t *)element = (uint8_t)(how % 2); /* NCCL's bool is a byte, and its "or" the larger one */
    else if (exact)
        reference_draw(state, r->dtype, element);
    else
        draw_moderate(state, r->dtype, element);
}

static bool is_exact(const struct reduction *r)
{
    bool is_rounded_once = reference_format(r->dtype) && !r->on_gpu;
    return reference_kind(r->dtype) <= BOOLEAN || is_rounded_once || r->redop == COMM_REDOP_MIN ||
           r->redop == COMM_REDOP_MAX || r->rank_order;
}

/* 16- and 8-bit floats are summed in fp32, in any order unless one is asked for, and rounded once. */
static bool is_summed_in_any_order(const struct reduction *r, int size)
{
    return size > 2 && reference_format(r->dtype) && !r->rank_order &&
           (r->redop == COMM_REDOP_SUM || r->redop == COMM_REDOP_AVG || r->redop == COMM_REDOP_PREMUL_SUM);
}

static void draw_inputs(uint64_t *state, struct reduction *r, int size)
{
    size_t bytes = comm_dtype_bytes(r->dtype);
    for (int rank = 0; rank < size; rank++) {
        r->inputs[rank] = gpu_buffer(r->device, r->count * bytes + 1);
        for (size_t i = 0; i < r->count; i++)
            draw_input(state, r, is_exact(r) && !is_summed_in_any_order(r, size), r->inputs[rank] + i * bytes);
        (needs_powers(r) ? draw_power : draw_moderate)(state, r->dtype, r->factors[rank]);
    }
}

/* ---- The reference ---- */

static struct number input(const struct reduction *r, int rank, size_t i)
{
    struct number n = reference_load(r->dtype, r->inputs[rank] + i * comm_dtype_bytes(r->dtype));
    if (r->redop != COMM_REDOP_PREMUL_SUM)
        return n;
    uint8_t product[REFERENCE_ELEMENT_MAX]; /* rounded to the dtype before it is summed */
    n = reference_combine(COMM_REDOP_PRODUCT, r->dtype, n, reference_load(r->dtype, r->factors[rank]));
    reference_store(r->dtype, n, product);
    return reference_load(r->dtype, product);
}

static struct number expected(const struct reduction *r, int size, size_t i, double *ret_magnitude)
{
    struct number n = input(r, 0, i), next;
    *ret_magnitude = fabs(n.re) + fabs(n.im);
    for (int rank = 1; rank < size; rank++) {
        next = input(r, rank, i);
        double magnitude = fabs(next.re) + fabs(next.im);
        *ret_magnitude = r->redop == COMM_REDOP_PRODUCT ? *ret_magnitude * magnitude : *ret_magnitude + magnitude;
        n = reference_combine(r->redop == COMM_REDOP_AVG || r->redop == COMM_REDOP_PREMUL_SUM ? COMM_REDOP_SUM
                                                                                              : r->redop,
                              r->dtype, n, next);
        if (r->redop != COMM_REDOP_AVG)
            n = reference_wrapped(r->dtype, n);
    }
    return r->redop == COMM_REDOP_AVG ? reference_divide(r->dtype, n, size) : n;
}

static double rounded(comm_dtype dtype, double value)
{
    uint8_t bits[REFERENCE_ELEMENT_MAX];
    reference_store(dtype, (struct number){ .re = value }, bits);
    return reference_load(dtype, bits).re;
}

/* `n` is what one order gives, before it is rounded: then what any other one gives lies between these two. */
static bool is_rounded_once(const struct reduction *r, struct number n, double magnitude, int size, double got)
{
    double most = size * 0x1p-23 * magnitude + fabs(n.re) * 0x1p-23, want = rounded(r->dtype, n.re);
    double low = rounded(r->dtype, n.re - most), high = rounded(r->dtype, n.re + most);
    if (!isfinite(n.re))
        return isnan(want) ? isnan(got) : got == want;
    if (isnan(low) || isnan(high)) /* e4m3 has no infinity */
        return isnan(got) || got >= low || got <= high;
    return got >= low && got <= high;
}

static bool near(double got, double wanted, double tolerance)
{
    if (isnan(wanted) || isinf(wanted))
        return isnan(wanted) ? isnan(got) : got == wanted;
    return got == wanted || fabs(got - wanted) <= tolerance;
}

static void check(const struct reduction *r, comm_group *g, const uint8_t *got, size_t first, size_t count)
{
    int size = comm_group_size(g);
    size_t bytes = comm_dtype_bytes(r->dtype);
    double unit = r->dtype == COMM_DTYPE_F64 || r->dtype == COMM_DTYPE_C128 ? 0x1p-52 : 0x1p-23;
    if (reference_format(r->dtype))
        unit = ldexp(1, -reference_format(r->dtype)->mantissa_bits);
    /* One rank computes nothing, so a NaN keeps its bits. */
    bool untouched = size == 1 && r->redop != COMM_REDOP_PREMUL_SUM && r->redop != COMM_REDOP_MIN &&
                     r->redop != COMM_REDOP_MAX && r->dtype != COMM_DTYPE_BOOL;
    for (size_t i = 0; i < count; i++) {
        uint8_t wanted[REFERENCE_ELEMENT_MAX];
        double magnitude;
        struct number n = expected(r, size, first + i, &magnitude), m = reference_load(r->dtype, got + i * bytes);
        reference_store(r->dtype, n, wanted);
        if (untouched)
            memcpy(wanted, r->inputs[0] + (first + i) * bytes, bytes);
        double tolerance = 4 * size * unit * magnitude;
        bool right = is_summed_in_any_order(r, size) && !r->on_gpu
                         ? is_rounded_once(r, n, magnitude, size, m.re)
                     : is_exact(r) || size == 1 ? memcmp(wanted, got + i * bytes, bytes) == 0
                                                : near(m.re, n.re, tolerance) && near(m.im, n.im, tolerance);
        if (right)
            continue;
        ranks_fail(
            __FILE__, __LINE__, "%s of %s %s%s, %zu elements: element %zu is %a %a, not %a %a (integer %lld, not %lld)",
            names[r->kind], comm_redop_name(r->redop), comm_dtype_name(r->dtype), r->rank_order ? " in rank order" : "",
            r->count, first + i, m.re, m.im, n.re, n.im, (long long)m.integer, (long long)n.integer);
    }
}

/* ---- Calling ---- */

static void run(const struct reduction *r, comm_group *g, uint8_t *recv)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t rank = comm_group_rank(g);
    options.premul = r->redop == COMM_REDOP_PREMUL_SUM ? r->factors[rank] : NULL;
    options.device = r->device;
    options.flags = r->rank_order ? COMM_OP_FLAG_RANK_ORDER : 0;
    comm_status status =
        r->kind == ALL_REDUCE
            ? comm_all_reduce(g, r->inputs[rank], recv, r->count, r->dtype, r->redop, &options, NULL)
        : r->kind == REDUCE
            ? comm_reduce(g, r->inputs[rank], recv, r->count, r->dtype, r->redop, r->root, &options, NULL)
            : comm_reduce_scatter(g, r->inputs[rank], recv, r->count / (size_t)comm_group_size(g), r->dtype, r->redop,
                                  &options, NULL);
    if (status != COMM_OK)
        ranks_fail(__FILE__, __LINE__, "%s of %s %s%s, %zu elements gave %s: %s", names[r->kind],
                   comm_redop_name(r->redop), comm_dtype_name(r->dtype), r->rank_order ? " in rank order" : "",
                   r->count, comm_status_name(status), comm_last_error());
}

static void all_ranks_agree(const struct reduction *r, comm_group *g, const uint8_t *recv, size_t bytes)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    uint64_t hash = 14695981039346656037u, *hashes = gpu_buffer(r->device, (RANKS_MAX + 1) * sizeof *hashes);
    options.device = r->device;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ recv[i]) * 1099511628211u;
    hashes[RANKS_MAX] = hash;
    CHECK_OK(comm_all_gather(g, hashes + RANKS_MAX, hashes, 1, COMM_DTYPE_U64, &options, NULL));
    for (int32_t i = 0; i < comm_group_size(g); i++)
        if (hashes[i] != hash)
            ranks_fail(__FILE__, __LINE__, "all_reduce of %s %s, %zu elements: other bits than on rank %d",
                       comm_redop_name(r->redop), comm_dtype_name(r->dtype), r->count, i);
    gpu_buffer_free(r->device, hashes);
}

static void run_reduction(struct reduction *r, comm_group *g)
{
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    size_t element = comm_dtype_bytes(r->dtype), block = r->count / (size_t)size;
    size_t count = r->kind == REDUCE_SCATTER ? block : r->kind == REDUCE && rank != r->root ? 0 : r->count;
    uint8_t *recv = gpu_buffer(r->device, r->count * element + 1);
    uint8_t *again = gpu_buffer(r->device, r->count * element + 1);
    memset(recv, POISON, r->count * element);
    memset(again, POISON, r->count * element);
    run(r, g, recv);
    check(r, g, recv, r->kind == REDUCE_SCATTER ? block * (size_t)rank : 0, count);
    run(r, g, again);
    CHECK(memcmp(recv, again, count * element) == 0);
    if (r->kind == ALL_REDUCE)
        all_ranks_agree(r, g, recv, count * element);
    gpu_buffer_free(r->device, recv);
    gpu_buffer_free(r->device, again);
}

static size_t draw_count(uint64_t *state, int size)
{
    static const size_t counts[] = { 1, 2, 3, 7, 16, 33, 65, 129, 257 };
    uint64_t random = reference_random(state);
    size_t count = random % 1000 == 0 ? 30011 : random % 50 == 0 ? 3001 : counts[random % 9];
    return (random & 1 << 20) == 0 ? count : count * (size_t)size;
}

static void draw_and_run(uint64_t *state, struct reduction *r, comm_group *world)
{
    int32_t size = comm_group_size(world);
    r->count = r->count ? r->count : draw_count(state, size);
    r->root = (int32_t)(reference_random(state) % (uint64_t)size);
    draw_inputs(state, r, size);
    run_reduction(r, world);
    for (int i = 0; i < size; i++)
        gpu_buffer_free(r->device, r->inputs[i]);
}

static void run_on_cpu(uint64_t *state, comm_redop redop, comm_dtype dtype, comm_group *world)
{
    if (!comm_redop_supports(redop, dtype) || (comm_group_size(world) > 4 && reference_random(state) % 2))
        return; /* takes long */
    struct reduction r = { .redop = redop, .dtype = dtype };
    r.kind = (enum kind_of_call)(reference_random(state) % 3);
    r.rank_order = reference_random(state) % 4 == 0;
    draw_and_run(state, &r, world);
}

/* NCCL multiplies by a kernel of its own where a rank is alone. From 16 KiB on it has several blocks, and some versions
 * leave out what is over when each has the same. */
static void run_alone(uint64_t *state, struct reduction *r, comm_group *world)
{
    size_t block = 16384 / comm_dtype_bytes(r->dtype), counts[] = { block + 1, 2 * block + 2, 33 * block + 31 };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        r->count = counts[i];
        draw_and_run(state, r, world);
    }
}

static void run_on_gpu(uint64_t *state, comm_redop redop, comm_dtype dtype, comm_group *world)
{
    bool has = gpu_reduces(redop, dtype, comm_group_size(world));
    if (comm_group_supports(world, COMM_OP_ALL_REDUCE, dtype, redop, COMM_DEVICE_CUDA) != has) {
        if (!has || !strstr(comm_last_error(), "came with 2.24"))
            ranks_fail(__FILE__, __LINE__, "%s of %s is %s, against NCCL's manual: %s", comm_redop_name(redop),
                       comm_dtype_name(dtype), has ? "refused" : "taken", comm_last_error());
        return;
    }
    for (int kind = ALL_REDUCE; kind <= REDUCE_SCATTER && has; kind++) {
        struct reduction r = { .redop = redop, .dtype = dtype, .kind = (enum kind_of_call)kind };
        r.on_gpu = true;
        r.device = gpu_device();
        draw_and_run(state, &r, world);
        if (redop == COMM_REDOP_PREMUL_SUM && comm_group_size(world) == 1)
            run_alone(state, &r, world);
    }
}

static void rank_main(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    gpu_open(suite->backend, rank);
    comm_group *world = ranks_world(suite->backend);
    uint64_t state = suite->seed + (uint64_t)size;
    for (int round = 0; round < suite->rounds; round++)
        for (comm_redop redop = 0; redop < COMM_REDOP_USER; redop++)
            for (comm_dtype dtype = 1; dtype < COMM_DTYPE_END; dtype++)
                (suite->on_gpu ? run_on_gpu : run_on_cpu)(&state, redop, dtype, world);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* ---- Structs: USER on BYTE with element_bytes ---- */

struct structs {
    size_t bytes;    /* of one element */
    int broken;      /* calls that did not get whole elements in rank order */
};

/* Element i of a rank's: nothing, or the rank and bytes that only this element has. */
static void write_struct(const struct structs *s, uint8_t *at, int32_t rank, size_t i)
{
    memset(at, 0, s->bytes);
    if ((i + (size_t)rank) % 3 == 0 || s->bytes == 0)
        return;
    uint64_t state = i * 1000003 + s->bytes;
    for (size_t b = 0; b < s->bytes; b++)
        at[b] = (uint8_t)reference_random(&state);
    at[0] = (uint8_t)(rank + 1);
}

/* Keep the lower rank's struct if it has something: associative, not commutative, and wrong if a struct is cut. */
static void keep_lower(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    struct structs *s = context;
    s->broken += dtype != COMM_DTYPE_BYTE;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *lower = (const uint8_t *)in + i * s->bytes;
        uint8_t *upper = (uint8_t *)inout + i * s->bytes;
        s->broken += lower[0] && upper[0] && lower[0] >= upper[0];
        if (lower[0])
            memcpy(upper, lower, s->bytes);
    }
}

/* `recv` holds elements from `first` on of the reduction of all ranks. */
static void check_structs(const struct structs *s, const uint8_t *recv, size_t first, size_t count, int32_t size)
{
    uint8_t *expected = malloc(s->bytes);
    for (size_t i = 0; i < count; i++) {
        int32_t from = 0;
        for (int found = 0; from < size && !found; from += !found) {
            write_struct(s, expected, from, first + i);
            found = expected[0] != 0;
        }
        if (memcmp(expected, recv + i * s->bytes, s->bytes) != 0)
            ranks_fail(__FILE__, __LINE__, "element %zu of %zu bytes is not that of rank %d", first + i, s->bytes,
                       from);
    }
    free(expected);
}

static void reduce_structs(comm_group *g, size_t bytes, size_t block)
{
    int32_t rank = comm_group_rank(g), size = comm_group_size(g), root = size / 2;
    size_t count = block * (size_t)size, counts[RANKS_MAX], mine = 0;
    struct structs s = { bytes, 0 };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    uint8_t *send = malloc(count * bytes + 1), *recv = malloc(count * bytes + 1);
    const void *list[RANKS_MAX];
    options.reduce_fn = keep_lower;
    options.reduce_context = &s;
    options.element_bytes = (uint32_t)bytes;
    for (size_t i = 0; i < count; i++)
        write_struct(&s, send + i * bytes, rank, i);
    CHECK_OK(comm_all_reduce(g, send, recv, count, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL));
    check_structs(&s, recv, 0, count, size);
    options.flags = COMM_OP_FLAG_RANK_ORDER;
    CHECK_OK(comm_reduce(g, send, recv, count, COMM_DTYPE_BYTE, COMM_REDOP_USER, root, &options, NULL));
    check_structs(&s, recv, 0, rank == root ? count : 0, size);
    options.flags = 0;
    CHECK_OK(comm_reduce_scatter(g, send, recv, block, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL));
    check_structs(&s, recv, block * (size_t)rank, block, size);
    /* Uneven blocks: what rank 0 has more the last one has less. */
    for (int32_t r = 0; r < size; r++) {
        counts[r] = block + (r == 0 && size > 1 ? block / 2 : 0) - (r == size - 1 && size > 1 ? block / 2 : 0);
        list[r] = send + mine * bytes;
        mine += counts[r];
    }
    mine = rank ? (size_t)((const uint8_t *)list[rank] - send) / bytes : 0;
    CHECK_OK(comm_reduce_scatter_v(g, send, recv, counts, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL));
    check_structs(&s, recv, mine, counts[rank], size);
    CHECK_OK(comm_reduce_scatter_list(g, list, recv, counts, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL));
    check_structs(&s, recv, mine, counts[rank], size);
    CHECK_OK(comm_all_reduce(g, send, send, count, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL)); /* in place */
    check_structs(&s, send, 0, count, size);
    CHECK(s.broken == 0);
    free(send);
    free(recv);
}

/* Odd sizes, none that a slice is a multiple of,
 * and one that is longer than the slices that some of these runs have. */
static void structs(int rank, int size, void *arg)
{
    static const size_t sizes[] = { 1, 3, 7, 24, 1300, 70001 };
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    (void)rank, (void)size;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        reduce_structs(world, sizes[i], 0);
        reduce_structs(world, sizes[i], 1);
        reduce_structs(world, sizes[i], sizes[i] > 1000 ? 3 : 1 + 20000 / sizes[i]);
    }
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* Illegal pairs are refused on all ranks with both names, and the group goes on. */
static void refusals(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    gpu_open(suite->backend, rank);
    comm_group *world = ranks_world(suite->backend);
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    o.device = suite->on_gpu ? gpu_device() : COMM_DEVICE_DEFAULT;
    double *send = gpu_buffer(o.device, 4 * RANKS_MAX * sizeof *send), *recv = send + 2 * RANKS_MAX;
    int64_t *came = (int64_t *)send, *sum = (int64_t *)recv;
    for (comm_redop redop = 0; redop <= COMM_REDOP_USER; redop++)
        for (comm_dtype dtype = 1; dtype < COMM_DTYPE_END; dtype++) {
            if (comm_redop_supports(redop, dtype) && (!suite->on_gpu || gpu_reduces(redop, dtype, size)))
                continue;
            comm_work *work = NULL;
            o.premul = redop == COMM_REDOP_PREMUL_SUM ? &came : NULL;
            o.reduce_fn = redop == COMM_REDOP_USER ? keep_lower : NULL;
            CHECK_STATUS(comm_all_reduce(world, send, recv, 1, dtype, redop, &o, NULL), COMM_ERR_UNSUPPORTED);
            CHECK_ERROR_SAYS(comm_redop_name(redop));
            if (redop == COMM_REDOP_USER) /* NCCL can call it for no dtype */
                continue;
            CHECK_ERROR_SAYS(comm_dtype_name(dtype));
            CHECK_STATUS(comm_reduce(world, send, recv, 1, dtype, redop, 0, &o, &work), COMM_ERR_UNSUPPORTED);
            CHECK_ERROR_SAYS(comm_redop_name(redop));
            CHECK_STATUS(comm_reduce_scatter(world, send, recv, 1, dtype, redop, &o, NULL), COMM_ERR_UNSUPPORTED);
            CHECK_ERROR_SAYS(comm_dtype_name(dtype));
            CHECK(work == NULL);
        }
    *came = rank;
    o.premul = NULL;
    o.reduce_fn = NULL;
    CHECK_OK(comm_all_reduce(world, came, sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, &o, NULL));
    CHECK(*sum == size * (size - 1) / 2);
    gpu_buffer_free(o.device, send);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [ROUNDS [SIZE]]]\n", argv[0]);
        return 2;
    }
    struct suite suite = {
        .backend = argv[1],
        .seed = suite_seed(argc, argv),
        .rounds = argc > 3 ? atoi(argv[3]) : 1,
        .threads = suite_has_threads(argv[1]),
        .on_gpu = gpu_in(argv[1]),
    };
    struct ranks_options options = { .threads = suite.threads, .limit_s = 300, .name = "reductions" };
    int least = argc > 4 ? atoi(argv[4]) : 1, most = argc > 4 ? least : suite.on_gpu ? 8 : RANKS_MAX;
    for (int size = least; size <= most; size++)
        if (ranks_run(size, &options, rank_main, &suite) != 0 ||
            (!suite.on_gpu && ranks_run(size, &options, structs, &suite) != 0)) /* NCCL cannot reduce them */
            return 1;
    return ranks_run(argc > 4 ? least : 3, &options, refusals, &suite);
}

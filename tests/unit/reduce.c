/* The reduction kernels of every variant that this machine can run, against tests/support/reference.c. Usage: reduce
 * [SEED]. */
#include "core/reduce.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <comm/comm.h>
#include "core/reduce_variant.h"
#include "reference.h"
#include "core/small_float.h"

enum { POISON = 0xa5, MARGIN = 64, SOURCES_MAX = 66, ELEMENT_MAX = REFERENCE_ELEMENT_MAX };

static uint64_t seed;

/* `count` elements at an address that is `off` bytes past an aligned one, with a margin of poison on both sides. */
struct buffer {
    uint8_t *memory, *data;
    size_t bytes;
};

static struct buffer buffer_make(comm_dtype dtype, size_t count, size_t off)
{
    struct buffer b = { .bytes = count * comm_dtype_bytes(dtype) };
    b.memory = malloc(b.bytes + 3 * MARGIN);
    assert_non_null(b.memory);
    memset(b.memory, POISON, b.bytes + 3 * MARGIN);
    b.data = b.memory + MARGIN + off;
    return b;
}

static struct buffer buffer_drawn(uint64_t *state, comm_dtype dtype, size_t count, size_t off)
{
    struct buffer b = buffer_make(dtype, count, off);
    for (size_t i = 0; i < count; i++)
        reference_draw(state, dtype, b.data + i * comm_dtype_bytes(dtype));
    return b;
}

static struct buffer buffer_copy(const struct buffer *from, size_t off)
{
    struct buffer b = buffer_make(COMM_DTYPE_BYTE, from->bytes, off);
    memcpy(b.data, from->data, from->bytes);
    return b;
}

static void hex(const uint8_t *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        sprintf(text + 2 * i, "%02x", bytes[count - 1 - i]);
}

/* Exactly `expected`, and the margins untouched. `a` and `b` (may be NULL) are shown where it differs. */
static void assert_same(const char *what, comm_redop redop, comm_dtype dtype, const struct buffer *got, size_t count,
                        const uint8_t *expected, const uint8_t *a, const uint8_t *b)
{
    size_t bytes = comm_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        char texts[4][2 * ELEMENT_MAX + 1] = { "", "", "", "" };
        if (memcmp(got->data + i * bytes, expected + i * bytes, bytes) == 0)
            continue;
        hex(got->data + i * bytes, bytes, texts[0]);
        hex(expected + i * bytes, bytes, texts[1]);
        if (a)
            hex(a + i * bytes, bytes, texts[2]);
        if (b)
            hex(b + i * bytes, bytes, texts[3]);
        fail_msg("%s, %s of %s, variant %s, element %zu of %zu (seed %llu): %s, not %s, from %s and %s", what,
                 comm_redop_name(redop), comm_dtype_name(dtype), comm_kernels(), i, count,
                 (unsigned long long)seed, texts[0], texts[1], texts[2], texts[3]);
    }
    const uint8_t *end = got->memory + got->bytes + 3 * MARGIN;
    for (const uint8_t *p = got->memory; p < end; p++)
        if ((p < got->data || p >= got->data + count * bytes) && *p != POISON)
            fail_msg("%s, %s of %s, variant %s, count %zu: wrote outside", what, comm_redop_name(redop),
                     comm_dtype_name(dtype), comm_kernels(), count);
}

/* ---- Every pair on every variant ---- */

static void each_pair(void (*fn)(comm_redop, comm_dtype))
{
    for (comm_redop redop = 0; redop < COMM_REDOP_END; redop++)
        for (comm_dtype dtype = 1; dtype < COMM_DTYPE_END; dtype++)
            fn(redop, dtype);
    assert_int_equal(comm__reduce_use(""), COMM_OK);
}

/* The references take longer than the kernels, so each is made once and then compared with all variants. */
static bool use_variant(size_t index)
{
    const char *name = comm__reduce_variant_at(index);
    if (!name)
        return false;
    assert_int_equal(comm__reduce_use(name), COMM_OK);
    assert_string_equal(comm_kernels(), name);
    return true;
}

static void reference_pair(comm_redop redop, comm_dtype dtype, const uint8_t *a, const uint8_t *b, size_t count,
                           uint8_t *dst)
{
    size_t bytes = comm_dtype_bytes(dtype);
    comm_redop step = redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM ? COMM_REDOP_SUM : redop;
    for (size_t i = 0; i < count; i++)
        reference_store(
            dtype,
            reference_combine(step, dtype, reference_load(dtype, a + i * bytes), reference_load(dtype, b + i * bytes)),
            dst + i * bytes);
}

static int is_sum_of_numbers(comm_redop redop, comm_dtype dtype)
{
    int sums = redop == COMM_REDOP_SUM || redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM;
    return sums && dtype != COMM_DTYPE_BOOL && comm__reduce_kernel(redop, dtype);
}

/* Apart from both sources, and over them, as where two ranks sum in place: each result goes to either's memory. */
static void check_to_two(comm_redop redop, comm_dtype dtype, const struct buffer *a, const struct buffer *b,
                         const uint8_t *expected, size_t count, struct buffer *dst, struct buffer *also)
{
    size_t bytes = count * comm_dtype_bytes(dtype);
    reduce_to_two_kernel kernel = comm__reduce_to_two_kernel(redop, dtype);
    assert_int_equal(kernel != NULL, is_sum_of_numbers(redop, dtype));
    for (int over = 0; kernel && over < 3; over++) {
        memcpy(dst->data, (over == 2 ? b : a)->data, bytes);
        memcpy(also->data, (over == 2 ? a : b)->data, bytes);
        kernel(dst->data, also->data, over == 0 ? a->data : over == 1 ? dst->data : also->data,
               over == 0 ? b->data : over == 1 ? also->data : dst->data, count);
        assert_same("to two places", redop, dtype, dst, count, expected, a->data, b->data);
        assert_same("the second of two places", redop, dtype, also, count, expected, a->data, b->data);
    }
    memset(dst->data, POISON, bytes);
    memset(also->data, POISON, bytes);
}

static void check_pair(comm_redop redop, comm_dtype dtype, const struct buffer *a, const struct buffer *b,
                       const uint8_t *expected, size_t count, size_t off)
{
    size_t bytes = count * comm_dtype_bytes(dtype);
    struct buffer dst = buffer_make(dtype, count, off), also = buffer_make(dtype, count, 3 * off % 64);
    for (size_t v = 0; use_variant(v); v++) {
        reduce_kernel kernel = comm__reduce_kernel(redop, dtype);
        kernel(dst.data, a->data, b->data, count);
        assert_same("dst apart", redop, dtype, &dst, count, expected, a->data, b->data);
        memcpy(dst.data, a->data, bytes);
        kernel(dst.data, dst.data, b->data, count);
        assert_same("dst is a", redop, dtype, &dst, count, expected, a->data, b->data);
        memcpy(dst.data, b->data, bytes);
        kernel(dst.data, a->data, dst.data, count);
        assert_same("dst is b", redop, dtype, &dst, count, expected, a->data, b->data);
        memset(dst.data, POISON, bytes);
        check_to_two(redop, dtype, a, b, expected, count, &dst, &also);
    }
    free(dst.memory);
    free(also.memory);
}

static void every_count_of(comm_redop redop, comm_dtype dtype)
{
    enum { COUNT_MAX = 2003 };
    static const size_t large[] = { 127, 255, 1001, COUNT_MAX };
    static uint8_t expected[COUNT_MAX * ELEMENT_MAX];
    if (!comm__reduce_kernel(redop, dtype))
        return;
    uint64_t state = seed + (uint64_t)(redop * 100 + dtype);
    size_t off = reference_random(&state) % 64, small = 71;
    struct buffer a = buffer_drawn(&state, dtype, COUNT_MAX, off),
                  b = buffer_drawn(&state, dtype, COUNT_MAX, reference_random(&state) % 64);
    reference_pair(redop, dtype, a.data, b.data, COUNT_MAX, expected);
    for (size_t count = 0; count < small; count++)
        check_pair(redop, dtype, &a, &b, expected, count, reference_random(&state) % 64);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        check_pair(redop, dtype, &a, &b, expected, large[i], reference_random(&state) % 64);
    free(a.memory);
    free(b.memory);
}

static void every_pair_at_every_count(void **state)
{
    (void)state;
    each_pair(every_count_of);
}

/* All pairs of 8-bit elements, and the special values of all dtypes with each other, in both orders. */
static void specials_of(comm_redop redop, comm_dtype dtype)
{
    if (!comm__reduce_kernel(redop, dtype))
        return;
    size_t bytes = comm_dtype_bytes(dtype), n = bytes == 1                         ? 256
                                                : reference_kind(dtype) == INTEGER ? REFERENCE_INTEGERS
                                                                                   : REFERENCE_REALS + 2;
    struct buffer a = buffer_make(dtype, n * n, 1), b = buffer_make(dtype, n * n, 3);
    for (size_t i = 0; i < n * n; i++)
        for (int side = 0; side < 2; side++) {
            size_t which = side ? i / n : i % n;
            uint8_t *at = (side ? b.data : a.data) + i * bytes;
            struct number number = { 0, 0, 0 };
            if (bytes == 1) {
                *at = (uint8_t)which;
                continue;
            }
            number.integer = reference_integers[which % REFERENCE_INTEGERS];
            number.re = reference_reals[which % REFERENCE_REALS];
            number.im = reference_reals[(which + (size_t)side) % REFERENCE_REALS];
            reference_store(dtype, number, at);
            if (reference_kind(dtype) != INTEGER && which >= REFERENCE_REALS) { /* other NaNs: negative, signalling */
                memset(at, 0xff, bytes);
                if (which == REFERENCE_REALS + 1 && bytes >= 4)
                    at[bytes - 2] = bytes == 4 ? 0xbf : 0xf7;
            }
        }
    uint8_t *expected = malloc(n * n * bytes);
    assert_non_null(expected);
    reference_pair(redop, dtype, a.data, b.data, n * n, expected);
    check_pair(redop, dtype, &a, &b, expected, n * n, 5);
    reference_pair(redop, dtype, b.data, a.data, n * n, expected);
    check_pair(redop, dtype, &b, &a, expected, n * n, 0);
    free(expected);
    free(a.memory);
    free(b.memory);
}

static void specials_meet_each_other(void **state)
{
    (void)state;
    each_pair(specials_of);
}

/* ---- Conversions ---- */

struct small {
    comm_dtype dtype;
    float (*widen)(uint32_t bits);
    uint32_t (*narrow)(float value);
};

#define SMALL(name, bits_type)                                                                                         \
    static float name##_widen(uint32_t bits)                                                                           \
    {                                                                                                                  \
        return widen_##name((bits_type)bits);                                                                          \
    }                                                                                                                  \
    static uint32_t name##_narrow(float value)                                                                         \
    {                                                                                                                  \
        return narrow_##name(value);                                                                                   \
    }
SMALL(f16, uint16_t)
SMALL(bf16, uint16_t)
SMALL(f8e4m3, uint8_t)
SMALL(f8e5m2, uint8_t)

static const struct small smalls[] = {
    { COMM_DTYPE_F16, f16_widen, f16_narrow },
    { COMM_DTYPE_BF16, bf16_widen, bf16_narrow },
    { COMM_DTYPE_F8E4M3, f8e4m3_widen, f8e4m3_narrow },
    { COMM_DTYPE_F8E5M2, f8e5m2_widen, f8e5m2_narrow },
};

static void assert_narrows(const struct small *s, float value)
{
    uint32_t got = s->narrow(value), expected = reference_encode(reference_format(s->dtype), (double)value);
    if (got != expected)
        fail_msg("%s: %a becomes %x, not %x (seed %llu)", comm_dtype_name(s->dtype), (double)value, got, expected,
                 (unsigned long long)seed);
}

static void conversions_follow_the_definition(void **state)
{
    (void)state;
    uint64_t random = seed;
    for (const struct small *s = smalls; s < smalls + sizeof smalls / sizeof *smalls; s++) {
        comm_dtype dtype = s->dtype;
        const struct format *f = reference_format(dtype);
        for (uint32_t bits = 0; bits >> 8 * comm_dtype_bytes(dtype) == 0; bits++) {
            float got = s->widen(bits);
            double expected = reference_decode(f, bits);
            if (isnan(expected) ? !isnan(got) : (double)got != expected || !signbit(got) != !signbit(expected))
                fail_msg("%s: %x becomes %a, not %a", comm_dtype_name(dtype), bits, (double)got, expected);
            /* The number itself, the middle between it and the next, and the fp32 numbers beside both. */
            float middle = (float)((expected + reference_decode(f, bits + 1)) / 2), points[] = { got, middle };
            for (int p = 0; p < 2; p++) {
                assert_narrows(s, points[p]);
                assert_narrows(s, nextafterf(points[p], INFINITY));
                assert_narrows(s, nextafterf(points[p], -INFINITY));
            }
        }
        for (size_t i = 0; i < REFERENCE_REALS; i++)
            assert_narrows(s, (float)reference_reals[i]);
        for (int i = 0; i < 50000; i++)
            assert_narrows(s, f32_of_bits((uint32_t)reference_random(&random)));
    }
}

/* The variants have conversions of their own: all bit patterns go through each of their kernels. */
static void all_patterns_through(comm_redop redop, comm_dtype dtype)
{
    enum { ALL = 65536, ROUNDS = 2 };
    if (!comm__reduce_kernel(redop, dtype) || !reference_format(dtype))
        return;
    static uint8_t expected[2 * ALL];
    uint64_t state = seed;
    struct buffer a = buffer_make(dtype, ALL, 2), b = buffer_make(dtype, ALL, 6);
    size_t bytes = comm_dtype_bytes(dtype);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < ALL; i++) {
            /* x + -0 and x * 1 are x; then anything. */
            uint32_t other = round > 0               ? (uint32_t)reference_random(&state)
                             : redop == COMM_REDOP_PRODUCT ? reference_encode(reference_format(dtype), 1)
                                                     : reference_encode(reference_format(dtype), -0.0);
            memcpy(a.data + i * bytes, &i, bytes);
            memcpy(b.data + i * bytes, &other, bytes);
        }
        reference_pair(redop, dtype, a.data, b.data, ALL, expected);
        if (round == 0 && (redop == COMM_REDOP_SUM || redop == COMM_REDOP_PRODUCT))
            for (uint32_t i = 0; i < ALL; i++) {
                uint32_t same =
                    isnan(reference_load(dtype, a.data + i * bytes).re) ? (uint32_t)reference_format(dtype)->nan : i;
                assert_memory_equal(expected + i * bytes, &same, bytes);
            }
        check_pair(redop, dtype, &a, &b, expected, ALL, (size_t)round);
    }
    free(a.memory);
    free(b.memory);
}

static int is_summed_in_fp32(comm_redop redop, comm_dtype dtype)
{
    int sums = redop == COMM_REDOP_SUM || redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM;
    return sums && (dtype == COMM_DTYPE_F16 || dtype == COMM_DTYPE_BF16 || dtype == COMM_DTYPE_F8E4M3 ||
                    dtype == COMM_DTYPE_F8E5M2);
}

static void only_narrow_floats_are_widened(void **state)
{
    (void)state;
    for (comm_redop redop = 0; redop < COMM_REDOP_END; redop++)
        for (comm_dtype dtype = 0; dtype < COMM_DTYPE_END; dtype++)
            assert_int_equal(comm__widening_kernel(redop, dtype) != NULL, is_summed_in_fp32(redop, dtype));
}

static void every_variant_converts_every_pattern(void **state)
{
    (void)state;
    each_pair(all_patterns_through);
}

/* ---- Many sources ---- */

static void reference_many(comm_redop redop, comm_dtype dtype, const struct buffer *sources, size_t source_count,
                           size_t count, uint8_t *dst)
{
    size_t bytes = comm_dtype_bytes(dtype);
    comm_redop step = redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM ? COMM_REDOP_SUM : redop;
    for (size_t i = 0; i < count; i++) {
        struct number n = reference_load(dtype, sources[0].data + i * bytes);
        for (size_t s = 1; s < source_count; s++) {
            n = reference_combine(step, dtype, n, reference_load(dtype, sources[s].data + i * bytes));
            if (redop != COMM_REDOP_AVG)
                n = reference_wrapped(dtype, n);
        }
        if (redop == COMM_REDOP_AVG)
            n = reference_divide(dtype, n, (int)source_count);
        reference_store(dtype, n, dst + i * bytes);
    }
    /* One source of a moving op is taken as it is: nothing was computed. */
    if (source_count == 1 && dtype != COMM_DTYPE_BOOL && redop != COMM_REDOP_MIN && redop != COMM_REDOP_MAX)
        memcpy(dst, sources[0].data, count * bytes);
}

/* The same sums in steps, as ranks make them that each have a part: fp32 from one to the next, rounded at the end. */
static void check_steps(comm_redop redop, comm_dtype dtype, const void *const *sources, size_t source_count,
                        size_t count, struct buffer *dst, const uint8_t *expected)
{
    reduce_kernel widening = comm__widening_kernel(redop, dtype), wide = comm__reduce_kernel(redop, COMM_DTYPE_F32);
    float *sums = malloc((count + 1) * sizeof *sums), *next = malloc((count + 1) * sizeof *next);
    assert_true(sums && next);
    sums[count] = 7;
    widening(sums, sources[0], sources[1], count);
    for (size_t s = 2; s < source_count; s++) {
        comm__widen(next, sources[s], count, dtype);
        wide(sums, sums, next, count);
    }
    if (redop == COMM_REDOP_AVG)
        comm__divide(sums, count, COMM_DTYPE_F32, (int32_t)source_count);
    memset(dst->data, POISON, dst->bytes);
    comm__narrow(dst->data, sums, count, dtype);
    assert_same("sums in steps", redop, dtype, dst, count, expected, NULL, NULL);
    assert_true(sums[count] == 7);
    free(sums);
    free(next);
}

static void check_many(uint64_t *state, comm_redop redop, comm_dtype dtype, size_t source_count, size_t count)
{
    struct buffer sources[SOURCES_MAX], dst = buffer_make(dtype, count, reference_random(state) % 64);
    const void *pointers[SOURCES_MAX];
    uint8_t *expected = malloc(dst.bytes + 1);
    assert_non_null(expected);
    for (size_t s = 0; s < source_count; s++) {
        sources[s] = buffer_drawn(state, dtype, count, reference_random(state) % 64);
        pointers[s] = sources[s].data;
    }
    reference_many(redop, dtype, sources, source_count, count, expected);
    size_t own = reference_random(state) % source_count;
    struct buffer as_it_was = buffer_copy(&sources[own], 0);
    for (size_t v = 0; use_variant(v); v++) {
        assert_int_equal(comm__reduce_many(dst.data, pointers, source_count, count, redop, dtype), COMM_OK);
        assert_same("reduce_many", redop, dtype, &dst, count, expected, NULL, NULL);
        if (source_count > 1 && comm__widening_kernel(redop, dtype))
            check_steps(redop, dtype, pointers, source_count, count, &dst, expected);
        memset(dst.data, POISON, dst.bytes);
        assert_int_equal(comm__reduce_many(sources[own].data, pointers, source_count, count, redop, dtype), COMM_OK);
        assert_same("reduce_many into a source", redop, dtype, &sources[own], count, expected, NULL, NULL);
        memcpy(sources[own].data, as_it_was.data, as_it_was.bytes);
    }
    free(as_it_was.memory);
    for (size_t s = 0; s < source_count; s++)
        free(sources[s].memory);
    free(dst.memory);
    free(expected);
}

static void many_of(comm_redop redop, comm_dtype dtype)
{
    static const size_t numbers[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, SOURCES_MAX };
    static const size_t counts[] = { 0, 1, 2, 3, 7, 15, 16, 17, 33, 63, 64, 65, 127, 255, 256, 257, 383 };
    enum { COUNTS = sizeof counts / sizeof *counts };
    if (!comm__reduce_kernel(redop, dtype))
        return;
    uint64_t state = seed + (uint64_t)(redop * 100 + dtype);
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
        for (size_t c = 0; c < 3; c++)
            check_many(&state, redop, dtype, numbers[n], counts[reference_random(&state) % COUNTS]);
    check_many(&state, redop, dtype, 3, 8192 / comm_dtype_bytes(dtype) + 1); /* beyond one block */
    check_many(&state, redop, dtype, 5, 2 * 8192 + 3);
}

static void many_sources_are_rounded_once(void **state)
{
    (void)state;
    each_pair(many_of);
}

/* The reference of AVG counts on truncation by C; here are its results in figures. */
static void averages_are_cut_toward_zero(void **state)
{
    (void)state;
    static const int32_t i32[][4] = { { INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN },
                                      { -1, 0, -2, -2 },
                                      { INT32_MAX, -1, 0, -1 },
                                      { 7, INT32_MAX, INT32_MAX, 1879048193 } };
    const void *sources[] = { i32[0], i32[1], i32[2] };
    int32_t got[4];
    assert_int_equal(comm__reduce_many(got, sources, 2, 4, COMM_REDOP_AVG, COMM_DTYPE_I32), COMM_OK);
    const int32_t halves[] = { -1073741824, -1073741824, -1073741825, -1073741825 };
    assert_memory_equal(got, halves, sizeof got);
    sources[0] = i32[1];
    sources[1] = i32[2];
    assert_int_equal(comm__reduce_many(got, sources, 2, 4, COMM_REDOP_AVG, COMM_DTYPE_I32), COMM_OK);
    const int32_t small[] = { 1073741823, 0, -1, -1 }; /* -3 / 2 is -1 */
    assert_memory_equal(got, small, sizeof got);
    const int64_t least = INT64_MIN, most = INT64_MAX;
    const void *ends[] = { &least, &least, &most };
    int64_t wide;
    assert_int_equal(comm__reduce_many(&wide, ends, 3, 1, COMM_REDOP_AVG, COMM_DTYPE_I64), COMM_OK);
    assert_true(wide == -3074457345618258603); /* (-2^63 - 1) / 3 */
    assert_int_equal(comm__reduce_many(&wide, ends, 2, 1, COMM_REDOP_AVG, COMM_DTYPE_I64), COMM_OK);
    assert_true(wide == INT64_MIN);
    const uint64_t all = UINT64_MAX;
    const void *full[] = { &all, &all, &all };
    uint64_t unsigned_wide;
    assert_int_equal(comm__reduce_many(&unsigned_wide, full, 3, 1, COMM_REDOP_AVG, COMM_DTYPE_U64), COMM_OK);
    assert_true(unsigned_wide == UINT64_MAX);
}

/* ---- Factors and divisors ---- */

static void factors_of(comm_redop redop, comm_dtype dtype)
{
    static uint8_t expected[1000 * ELEMENT_MAX];
    if (redop != COMM_REDOP_PREMUL_SUM || !comm_redop_supports(redop, dtype))
        return;
    uint64_t state = seed + (uint64_t)dtype;
    size_t bytes = comm_dtype_bytes(dtype);
    for (int round = 0; round < 80; round++) {
        size_t count = round < 70 ? (size_t)round : 999;
        struct buffer src = buffer_drawn(&state, dtype, count, reference_random(&state) % 64);
        struct buffer dst = buffer_make(dtype, count, reference_random(&state) % 64);
        uint8_t factor[ELEMENT_MAX + 1];
        reference_draw(&state, dtype, factor + 1);
        for (size_t i = 0; i < count; i++)
            reference_store(dtype,
                            reference_combine(COMM_REDOP_PRODUCT, dtype, reference_load(dtype, src.data + i * bytes),
                                              reference_load(dtype, factor + 1)),
                            expected + i * bytes);
        for (size_t v = 0; use_variant(v); v++) {
            comm__premultiply(dst.data, src.data, count, dtype, factor + 1);
            assert_same("premultiply", redop, dtype, &dst, count, expected, src.data, NULL);
            memcpy(dst.data, src.data, src.bytes);
            comm__premultiply(dst.data, dst.data, count, dtype, factor + 1);
            assert_same("premultiply in place", redop, dtype, &dst, count, expected, src.data, NULL);
            memset(dst.data, POISON, dst.bytes);
        }
        free(src.memory);
        free(dst.memory);
    }
}

static void factors_multiply(void **state)
{
    (void)state;
    each_pair(factors_of);
}

static void divisors_of(comm_redop redop, comm_dtype dtype)
{
    enum { COUNT_MAX = 1000 };
    static const int32_t divisors[] = { 1, 2, 3, 4, 5, 7, 8, 10, 64, 100, 1000, 1024, 65536, 1 << 20 };
    static uint8_t expected[COUNT_MAX * ELEMENT_MAX];
    if (redop != COMM_REDOP_AVG || reference_kind(dtype) < FLOAT || dtype == COMM_DTYPE_BYTE)
        return;
    uint64_t state = seed + (uint64_t)dtype;
    size_t bytes = comm_dtype_bytes(dtype);
    for (size_t d = 0; d < sizeof divisors / sizeof *divisors; d++)
        for (size_t count = d; count < COUNT_MAX; count = 2 * count + 1) {
            struct buffer data = buffer_drawn(&state, dtype, count, reference_random(&state) % 64),
                          was = buffer_copy(&data, 0);
            for (size_t i = 0; i < count; i++)
                reference_store(dtype,
                                reference_divide(dtype, reference_load(dtype, data.data + i * bytes), divisors[d]),
                                expected + i * bytes);
            for (size_t v = 0; use_variant(v); v++) {
                memcpy(data.data, was.data, was.bytes);
                comm__divide(data.data, count, dtype, divisors[d]);
                assert_same("divide", redop, dtype, &data, count, expected, was.data, NULL);
            }
            free(data.memory);
            free(was.memory);
        }
}

static void divisors_divide(void **state)
{
    (void)state;
    each_pair(divisors_of);
}

/* ---- Refusals and variants ---- */

static void illegal_pairs_are_refused_by_name(void **state)
{
    (void)state;
    double element[2] = { 0, 0 };
    const void *sources[] = { element, element };
    for (comm_redop redop = -1; redop <= COMM_REDOP_END; redop++)
        for (comm_dtype dtype = -1; dtype <= COMM_DTYPE_END; dtype++) {
            bool can = comm_redop_supports(redop, dtype) && redop != COMM_REDOP_USER;
            assert_int_equal(comm__reduce_kernel(redop, dtype) != NULL, can);
            assert_int_equal(comm__reduce_kernel_scalar(redop, dtype) != NULL, can);
            comm_status status = comm__reduce_many(element, sources, 2, 1, redop, dtype);
            assert_int_equal(status, can ? COMM_OK : COMM_ERR_UNSUPPORTED);
            if (can)
                continue;
            const char *op = comm_redop_name(redop), *type = comm_dtype_name(dtype);
            const char *words[] = { op && type ? op : "no", op && type ? type : "no" };
            for (int n = 0; n < 2; n++)
                if (!strstr(comm_last_error(), words[n]))
                    fail_msg("'%s' does not say %s", comm_last_error(), words[n]);
        }
}

static void too_many_sources_are_refused(void **state)
{
    (void)state;
    float element = 1;
    const void *sources[] = { &element };
    size_t too_many = ((size_t)1 << 20) + 1;
    assert_int_equal(comm__reduce_many(&element, sources, too_many, 1, COMM_REDOP_AVG, COMM_DTYPE_I32),
                     COMM_ERR_UNSUPPORTED);
    assert_non_null(strstr(comm_last_error(), "1048577"));
}

static void variants_are_named(void **state)
{
    (void)state;
    size_t count = 0;
    while (comm__reduce_variant_at(count))
        count++;
    assert_true(count >= 2);
    assert_string_equal(comm__reduce_variant_at(count - 1), "scalar");
    assert_int_equal(comm__reduce_use("mmx"), COMM_ERR_UNSUPPORTED);
    assert_non_null(strstr(comm_last_error(), "mmx"));
    assert_int_equal(comm__reduce_use(""), COMM_OK);
    assert_string_equal(comm_kernels(), comm__reduce_variant_at(0));
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_follow_the_definition),
        cmocka_unit_test(every_variant_converts_every_pattern),
        cmocka_unit_test(only_narrow_floats_are_widened),
        cmocka_unit_test(every_pair_at_every_count),
        cmocka_unit_test(specials_meet_each_other),
        cmocka_unit_test(many_sources_are_rounded_once),
        cmocka_unit_test(averages_are_cut_toward_zero),
        cmocka_unit_test(factors_multiply),
        cmocka_unit_test(divisors_divide),
        cmocka_unit_test(illegal_pairs_are_refused_by_name),
        cmocka_unit_test(too_many_sources_are_refused),
        cmocka_unit_test(variants_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The reduction kernels of every variant that this machine can run, against a reference that is written from comm.h and the
 * formats' definitions and shares no line with core/. Usage: reduce [SEED]. */
#include "reduce.h"

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

#include "dtype.h"
#include "reduce_variant.h"
#include "small_float.h"

__extension__ typedef __int128 int128;

enum { POISON = 0xa5, MARGIN = 64, SOURCES_MOST = 66, ELEMENT_MOST = 16 };

static uint64_t seed;

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- The reference: formats ---- */

struct format {
    int exponent_bits, mantissa_bits;
    bool has_infinity;
    uint64_t nan; /* the canonical one */
};

static const struct format *format_of(comm_dtype dtype)
{
    static const struct format f16 = { 5, 10, true, 0x7e00 }, bf16 = { 8, 7, true, 0x7fc0 };
    static const struct format f8e4m3 = { 4, 3, false, 0x7f }, f8e5m2 = { 5, 2, true, 0x7e };
    return dtype == COMM_DTYPE_F16      ? &f16
           : dtype == COMM_DTYPE_BF16   ? &bf16
           : dtype == COMM_DTYPE_F8E4M3 ? &f8e4m3
           : dtype == COMM_DTYPE_F8E5M2 ? &f8e5m2
                                        : NULL;
}

static int bias_of(const struct format *f)
{
    return (1 << (f->exponent_bits - 1)) - 1;
}

static double decode(const struct format *f, uint32_t bits)
{
    int exponent = (int)(bits >> f->mantissa_bits) & ((1 << f->exponent_bits) - 1);
    uint32_t mantissa = bits & ((1u << f->mantissa_bits) - 1);
    bool negative = bits >> (f->exponent_bits + f->mantissa_bits) & 1;
    double magnitude;
    if (exponent == (1 << f->exponent_bits) - 1 && (f->has_infinity || mantissa == (1u << f->mantissa_bits) - 1))
        magnitude = f->has_infinity && mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        magnitude = ldexp(mantissa, 1 - bias_of(f) - f->mantissa_bits);
    else
        magnitude = ldexp(mantissa + (1u << f->mantissa_bits), exponent - bias_of(f) - f->mantissa_bits);
    return negative ? -magnitude : magnitude;
}

static uint32_t most_finite(const struct format *f)
{
    uint32_t all = (1u << (f->exponent_bits + f->mantissa_bits)) - 1;
    return f->has_infinity ? all - (1u << f->mantissa_bits) : all - 1;
}

/* To nearest, ties to even, as if exponents had no upper end; then what is too large becomes infinity, or NaN. */
static uint32_t encode(const struct format *f, double value)
{
    if (isnan(value))
        return (uint32_t)f->nan;
    uint32_t sign = signbit(value) ? 1u << (f->exponent_bits + f->mantissa_bits) : 0;
    uint32_t overflow = f->has_infinity ? sign | (most_finite(f) + 1) : (uint32_t)f->nan;
    double magnitude = fabs(value);
    if (magnitude == 0)
        return sign;
    if (isinf(magnitude))
        return overflow;
    int exponent = ilogb(magnitude), least = 1 - bias_of(f);
    if (exponent < least)
        exponent = least;
    double units = nearbyint(ldexp(magnitude, f->mantissa_bits - exponent));
    if (ldexp(units, exponent - f->mantissa_bits) > decode(f, most_finite(f)))
        return overflow;
    if (units < 1 << f->mantissa_bits)
        return sign | (uint32_t)units; /* subnormal */
    if (units == 2 << f->mantissa_bits) {
        units /= 2;
        exponent++;
    }
    return sign | ((uint32_t)(exponent + bias_of(f)) << f->mantissa_bits) |
           ((uint32_t)units - (1u << f->mantissa_bits));
}

/* ---- The reference: elements ---- */

enum kind { INTEGER, BOOLEAN, FLOAT, COMPLEX };

static enum kind kind_of(comm_dtype dtype)
{
    return dtype == COMM_DTYPE_BOOL   ? BOOLEAN
           : dtype <= COMM_DTYPE_U64  ? INTEGER
           : dtype >= COMM_DTYPE_C64  ? COMPLEX
                                      : FLOAT;
}

static bool is_signed(comm_dtype dtype)
{
    return dtype == COMM_DTYPE_I8 || dtype == COMM_DTYPE_I16 || dtype == COMM_DTYPE_I32 || dtype == COMM_DTYPE_I64;
}

static int128 load_integer(comm_dtype dtype, const void *element)
{
    uint64_t bits = 0;
    size_t bytes = comm_dtype_bytes(dtype);
    memcpy(&bits, element, bytes);
    if (is_signed(dtype) && bits >> (8 * bytes - 1) & 1)
        return (int128)bits - ((int128)1 << 8 * bytes);
    return (int128)bits;
}

/* Keeps the low bits: that is how integers wrap. */
static void store_integer(comm_dtype dtype, int128 value, void *element)
{
    uint64_t bits = (uint64_t)value;
    memcpy(element, &bits, comm_dtype_bytes(dtype));
}

/* One real number: a float dtype, or the parts of a complex one. */
static double load_real(comm_dtype dtype, const void *element)
{
    if (format_of(dtype)) {
        uint32_t bits = 0;
        memcpy(&bits, element, comm_dtype_bytes(dtype));
        return decode(format_of(dtype), bits);
    }
    float f;
    double d;
    memcpy(&f, element, sizeof f);
    if (dtype == COMM_DTYPE_F32 || dtype == COMM_DTYPE_C64)
        return (double)f;
    memcpy(&d, element, sizeof d);
    return d;
}

static void store_real(comm_dtype dtype, double value, void *element)
{
    if (format_of(dtype)) {
        uint32_t bits = encode(format_of(dtype), value);
        memcpy(element, &bits, comm_dtype_bytes(dtype));
        return;
    }
    if (dtype == COMM_DTYPE_F32 || dtype == COMM_DTYPE_C64) {
        float f = (float)value;
        uint32_t nan = 0x7fc00000u;
        memcpy(element, isnan(value) ? (void *)&nan : &f, sizeof f);
    } else {
        uint64_t nan = 0x7ff8000000000000u;
        memcpy(element, isnan(value) ? (void *)&nan : &value, sizeof value);
    }
}

/* What arithmetic rounds to: double for f64 and c128, else fp32. A sum, product or quotient of fp32 numbers that is made
 * in double and then rounded to fp32 is the same as if made in fp32. */
static double rounded(comm_dtype dtype, double value)
{
    volatile double result = dtype == COMM_DTYPE_F64 || dtype == COMM_DTYPE_C128 ? value : (double)(float)value;
    return result;
}

struct number {
    int128 integer;
    double re, im;
};

static struct number load(comm_dtype dtype, const void *element)
{
    struct number n = { 0, 0, 0 };
    size_t bytes = comm_dtype_bytes(dtype);
    if (kind_of(dtype) == INTEGER)
        n.integer = load_integer(dtype, element);
    else if (kind_of(dtype) == BOOLEAN)
        n.integer = *(const uint8_t *)element != 0;
    else
        n.re = load_real(dtype, element);
    if (kind_of(dtype) == COMPLEX)
        n.im = load_real(dtype, (const char *)element + bytes / 2);
    return n;
}

static void store(comm_dtype dtype, struct number n, void *element)
{
    if (kind_of(dtype) == INTEGER)
        store_integer(dtype, n.integer, element);
    else if (kind_of(dtype) == BOOLEAN)
        *(uint8_t *)element = (uint8_t)n.integer;
    else
        store_real(dtype, n.re, element);
    if (kind_of(dtype) == COMPLEX)
        store_real(dtype, n.im, (char *)element + comm_dtype_bytes(dtype) / 2);
}

static int128 combine_integers(comm_redop redop, comm_dtype dtype, int128 a, int128 b)
{
    bool boolean = dtype == COMM_DTYPE_BOOL;
    switch (redop) {
    case COMM_PRODUCT:
        return (int128)((uint64_t)a * (uint64_t)b); /* the low 64 bits are right */
    case COMM_MIN:
        return a < b ? a : b;
    case COMM_MAX:
        return a > b ? a : b;
    case COMM_BAND:
        return a & b;
    case COMM_BOR:
        return a | b;
    case COMM_BXOR:
        return a ^ b;
    default:
        return boolean ? a | b : a + b;
    }
}

static double combine_reals(comm_redop redop, comm_dtype dtype, double a, double b)
{
    bool less = a < b || (a == b && signbit(a) && !signbit(b));
    switch (redop) {
    case COMM_PRODUCT:
        return rounded(dtype, a * b);
    case COMM_MIN:
        return isnan(a) || isnan(b) ? NAN : less ? a : b;
    case COMM_MAX:
        return isnan(a) || isnan(b) ? NAN : less ? b : a;
    default:
        return rounded(dtype, a + b);
    }
}

static struct number multiply_complex(comm_dtype dtype, struct number a, struct number b)
{
    struct number n = { 0, 0, 0 };
    n.re = rounded(dtype, rounded(dtype, a.re * b.re) - rounded(dtype, a.im * b.im));
    n.im = rounded(dtype, rounded(dtype, a.re * b.im) + rounded(dtype, a.im * b.re));
    return n;
}

/* Without rounding to the dtype, for sums that are rounded once. */
static struct number combine(comm_redop redop, comm_dtype dtype, struct number a, struct number b)
{
    if (kind_of(dtype) == COMPLEX && redop == COMM_PRODUCT)
        return multiply_complex(dtype, a, b);
    struct number n = { 0, 0, 0 };
    if (kind_of(dtype) == INTEGER || kind_of(dtype) == BOOLEAN)
        n.integer = combine_integers(redop, dtype, a.integer, b.integer);
    else
        n.re = combine_reals(redop, dtype, a.re, b.re);
    if (kind_of(dtype) == COMPLEX)
        n.im = combine_reals(redop, dtype, a.im, b.im);
    return n;
}

static struct number divide(comm_dtype dtype, struct number a, int divisor)
{
    a.integer /= divisor;
    a.re = rounded(dtype, a.re / divisor);
    a.im = rounded(dtype, a.im / divisor);
    return a;
}

/* Wrapping integers must wrap at each step, or MIN of a wrapped product would differ; there is no such mixture, but a
 * product of many outgrows int128. */
static struct number wrapped(comm_dtype dtype, struct number n)
{
    char element[ELEMENT_MOST];
    if (kind_of(dtype) != INTEGER)
        return n;
    store(dtype, n, element);
    return load(dtype, element);
}

/* ---- Data ---- */

/* Values where something changes. Bit patterns that a dtype cuts to its width. */
static const double special_reals[] = { 0.0,      -0.0,      1.0,     -1.0,     0.5,     1.5,   INFINITY, -INFINITY,
                                        NAN,      448.0,     464.0,   480.0,    57344.0, 61440, 65504.0,  65519.0,
                                        65520.0,  0x1p-24,   0x1p-25, 0x1p-14,  0x1p-9,  0x1p-10, 0x1p-16, -0x1p-17,
                                        0x1p-126, -0x1p-149, 3.4e38,  -3.4e38,  0x1p-133, 0x1p-1074, 1.7e308, 0x1p-1022 };
static const int64_t special_integers[] = { 0,    1,         -1,        2,         -2,        3,         127,
                                            -128, 128,       255,       32767,     -32768,    65535,     INT32_MAX,
                                            INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN, INT64_MIN + 1 };
enum {
    REALS = sizeof special_reals / sizeof *special_reals,
    INTEGERS = sizeof special_integers / sizeof *special_integers
};

static void draw_element(uint64_t *state, comm_dtype dtype, void *element)
{
    uint64_t how = draw(state) % 8, random[2] = { draw(state), draw(state) };
    struct number n = { 0, 0, 0 };
    if (how < 3) {
        memcpy(element, random, comm_dtype_bytes(dtype)); /* any bits: NaNs with payloads, booleans other than 1 */
    } else if (how < 5) {
        n.integer = special_integers[random[0] % INTEGERS];
        n.re = special_reals[random[0] % REALS];
        n.im = special_reals[random[1] % REALS];
        if (dtype == COMM_DTYPE_BOOL)
            n.integer &= 1;
        store(dtype, n, element);
    } else {
        n.integer = (int64_t)(random[0] % 201) - 100;
        n.re = ldexp((double)(random[0] % 4097) - 2048, (int)(random[1] % 12) - 10);
        n.im = ldexp((double)(random[1] % 4097) - 2048, (int)(random[0] % 12) - 10);
        if (dtype == COMM_DTYPE_BOOL)
            n.integer = random[0] % 2;
        store(dtype, n, element);
    }
}

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
        draw_element(state, dtype, b.data + i * comm_dtype_bytes(dtype));
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
        char texts[4][2 * ELEMENT_MOST + 1] = { "", "", "", "" };
        if (memcmp(got->data + i * bytes, expected + i * bytes, bytes) == 0)
            continue;
        hex(got->data + i * bytes, bytes, texts[0]);
        hex(expected + i * bytes, bytes, texts[1]);
        if (a)
            hex(a + i * bytes, bytes, texts[2]);
        if (b)
            hex(b + i * bytes, bytes, texts[3]);
        fail_msg("%s, %s of %s, variant %s, element %zu of %zu (seed %llu): %s, not %s, from %s and %s", what,
                 comm_redop_name(redop), comm_dtype_name(dtype), comm__reduce_variant(), i, count,
                 (unsigned long long)seed, texts[0], texts[1], texts[2], texts[3]);
    }
    const uint8_t *end = got->memory + got->bytes + 3 * MARGIN;
    for (const uint8_t *p = got->memory; p < end; p++)
        if ((p < got->data || p >= got->data + count * bytes) && *p != POISON)
            fail_msg("%s, %s of %s, variant %s, count %zu: wrote outside", what, comm_redop_name(redop),
                     comm_dtype_name(dtype), comm__reduce_variant(), count);
}

/* ---- Every pair on every variant ---- */

static void each_variant(void (*fn)(comm_redop, comm_dtype))
{
    const char *name;
    for (size_t i = 0; (name = comm__reduce_variant_at(i)); i++) {
        assert_int_equal(comm__reduce_use(name), COMM_OK);
        assert_string_equal(comm__reduce_variant(), name);
        for (comm_redop redop = 0; redop < COMM__REDOP_END; redop++)
            for (comm_dtype dtype = 1; dtype < COMM__DTYPE_END; dtype++)
                fn(redop, dtype);
    }
    assert_int_equal(comm__reduce_use(""), COMM_OK);
}

static void reference_pair(comm_redop redop, comm_dtype dtype, const uint8_t *a, const uint8_t *b, size_t count,
                           uint8_t *dst)
{
    size_t bytes = comm_dtype_bytes(dtype);
    comm_redop step = redop == COMM_AVG || redop == COMM_PREMUL_SUM ? COMM_SUM : redop;
    for (size_t i = 0; i < count; i++)
        store(dtype, combine(step, dtype, load(dtype, a + i * bytes), load(dtype, b + i * bytes)), dst + i * bytes);
}

static void check_pair(comm_redop redop, comm_dtype dtype, reduce_kernel kernel, const struct buffer *a,
                       const struct buffer *b, const uint8_t *expected, size_t count, size_t off)
{
    size_t bytes = comm_dtype_bytes(dtype);
    struct buffer dst = buffer_make(dtype, count, off);
    kernel(dst.data, a->data, b->data, count);
    assert_same("dst apart", redop, dtype, &dst, count, expected, a->data, b->data);
    struct buffer first = { .data = a->data, .bytes = count * bytes }, in_place = buffer_copy(&first, off);
    kernel(in_place.data, in_place.data, b->data, count);
    assert_same("dst is a", redop, dtype, &in_place, count, expected, a->data, b->data);
    struct buffer second = { .data = b->data, .bytes = count * bytes }, in_place_b = buffer_copy(&second, off);
    kernel(in_place_b.data, a->data, in_place_b.data, count);
    assert_same("dst is b", redop, dtype, &in_place_b, count, expected, a->data, b->data);
    free(dst.memory);
    free(in_place.memory);
    free(in_place_b.memory);
}

static void every_count_of(comm_redop redop, comm_dtype dtype)
{
    enum { MOST = 5003 };
    static const size_t large[] = { 127, 255, 1001, MOST };
    static uint8_t expected[MOST * ELEMENT_MOST];
    reduce_kernel kernel = comm__reduce_kernel(redop, dtype);
    if (!kernel)
        return;
    uint64_t state = seed + (uint64_t)(redop * 100 + dtype);
    size_t off = draw(&state) % 64, small = 71;
    struct buffer a = buffer_drawn(&state, dtype, MOST, off), b = buffer_drawn(&state, dtype, MOST, draw(&state) % 64);
    reference_pair(redop, dtype, a.data, b.data, MOST, expected);
    for (size_t count = 0; count < small; count++)
        check_pair(redop, dtype, kernel, &a, &b, expected, count, draw(&state) % 64);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        check_pair(redop, dtype, kernel, &a, &b, expected, large[i], draw(&state) % 64);
    free(a.memory);
    free(b.memory);
}

static void every_pair_at_every_count(void **state)
{
    (void)state;
    each_variant(every_count_of);
}

/* All pairs of 8-bit elements, and the special values of all dtypes with each other, in both orders. */
static void specials_of(comm_redop redop, comm_dtype dtype)
{
    reduce_kernel kernel = comm__reduce_kernel(redop, dtype);
    if (!kernel)
        return;
    size_t bytes = comm_dtype_bytes(dtype), n = bytes == 1 ? 256 : kind_of(dtype) == INTEGER ? INTEGERS : REALS + 2;
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
            number.integer = special_integers[which % INTEGERS];
            number.re = special_reals[which % REALS];
            number.im = special_reals[(which + (size_t)side) % REALS];
            store(dtype, number, at);
            if (kind_of(dtype) != INTEGER && which >= REALS) { /* other NaNs: negative, signalling */
                memset(at, 0xff, bytes);
                if (which == REALS + 1 && bytes >= 4)
                    at[bytes - 2] = bytes == 4 ? 0xbf : 0xf7;
            }
        }
    uint8_t *expected = malloc(n * n * bytes);
    assert_non_null(expected);
    reference_pair(redop, dtype, a.data, b.data, n * n, expected);
    check_pair(redop, dtype, kernel, &a, &b, expected, n * n, 5);
    reference_pair(redop, dtype, b.data, a.data, n * n, expected);
    check_pair(redop, dtype, kernel, &b, &a, expected, n * n, 0);
    free(expected);
    free(a.memory);
    free(b.memory);
}

static void specials_meet_each_other(void **state)
{
    (void)state;
    each_variant(specials_of);
}

/* ---- Conversions ---- */

static float widen_of(comm_dtype dtype, uint32_t bits)
{
    return dtype == COMM_DTYPE_F16      ? widen_f16((uint16_t)bits)
           : dtype == COMM_DTYPE_BF16   ? widen_bf16((uint16_t)bits)
           : dtype == COMM_DTYPE_F8E4M3 ? widen_f8e4m3((uint8_t)bits)
                                        : widen_f8e5m2((uint8_t)bits);
}

static uint32_t narrow_of(comm_dtype dtype, float value)
{
    return dtype == COMM_DTYPE_F16      ? narrow_f16(value)
           : dtype == COMM_DTYPE_BF16   ? narrow_bf16(value)
           : dtype == COMM_DTYPE_F8E4M3 ? narrow_f8e4m3(value)
                                        : narrow_f8e5m2(value);
}

static const comm_dtype small_dtypes[] = { COMM_DTYPE_F16, COMM_DTYPE_BF16, COMM_DTYPE_F8E4M3, COMM_DTYPE_F8E5M2 };

static void assert_narrows(comm_dtype dtype, float value)
{
    uint32_t got = narrow_of(dtype, value), expected = encode(format_of(dtype), (double)value);
    if (got != expected)
        fail_msg("%s: %a becomes %x, not %x (seed %llu)", comm_dtype_name(dtype), (double)value, got, expected,
                 (unsigned long long)seed);
}

static void conversions_follow_the_definition(void **state)
{
    (void)state;
    uint64_t random = seed;
    for (size_t t = 0; t < 4; t++) {
        comm_dtype dtype = small_dtypes[t];
        const struct format *f = format_of(dtype);
        for (uint32_t bits = 0; bits >> 8 * comm_dtype_bytes(dtype) == 0; bits++) {
            float got = widen_of(dtype, bits);
            double expected = decode(f, bits);
            if (isnan(expected) ? !isnan(got) : (double)got != expected || !signbit(got) != !signbit(expected))
                fail_msg("%s: %x becomes %a, not %a", comm_dtype_name(dtype), bits, (double)got, expected);
            /* The number itself, the middle between it and the next, and the fp32 numbers beside both. */
            float middle = (float)((expected + decode(f, bits + 1)) / 2), points[] = { got, middle };
            for (int p = 0; p < 2; p++) {
                assert_narrows(dtype, points[p]);
                assert_narrows(dtype, nextafterf(points[p], INFINITY));
                assert_narrows(dtype, nextafterf(points[p], -INFINITY));
            }
        }
        for (size_t i = 0; i < REALS; i++)
            assert_narrows(dtype, (float)special_reals[i]);
        for (int i = 0; i < 200000; i++)
            assert_narrows(dtype, f32_of_bits((uint32_t)draw(&random)));
    }
}

/* The variants have conversions of their own: all bit patterns go through each of their kernels. */
static void all_patterns_through(comm_redop redop, comm_dtype dtype)
{
    enum { ALL = 65536, ROUNDS = 4 };
    reduce_kernel kernel = comm__reduce_kernel(redop, dtype);
    if (!kernel || !format_of(dtype))
        return;
    static uint8_t expected[2 * ALL];
    uint64_t state = seed;
    struct buffer a = buffer_make(dtype, ALL, 2), b = buffer_make(dtype, ALL, 6);
    size_t bytes = comm_dtype_bytes(dtype);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < ALL; i++) {
            /* x + -0 and x * 1 are x; then anything. */
            uint32_t other = round > 0                ? (uint32_t)draw(&state)
                             : redop == COMM_PRODUCT ? encode(format_of(dtype), 1)
                                                     : encode(format_of(dtype), -0.0);
            memcpy(a.data + i * bytes, &i, bytes);
            memcpy(b.data + i * bytes, &other, bytes);
        }
        reference_pair(redop, dtype, a.data, b.data, ALL, expected);
        if (round == 0 && (redop == COMM_SUM || redop == COMM_PRODUCT))
            for (uint32_t i = 0; i < ALL; i++) {
                uint32_t same = isnan(load_real(dtype, a.data + i * bytes)) ? (uint32_t)format_of(dtype)->nan : i;
                assert_memory_equal(expected + i * bytes, &same, bytes);
            }
        check_pair(redop, dtype, kernel, &a, &b, expected, ALL, (size_t)round);
    }
    free(a.memory);
    free(b.memory);
}

static void every_variant_converts_every_pattern(void **state)
{
    (void)state;
    each_variant(all_patterns_through);
}

/* ---- Many sources ---- */

static void reference_many(comm_redop redop, comm_dtype dtype, const struct buffer *sources, size_t source_count,
                           size_t count, uint8_t *dst)
{
    size_t bytes = comm_dtype_bytes(dtype);
    comm_redop step = redop == COMM_AVG || redop == COMM_PREMUL_SUM ? COMM_SUM : redop;
    for (size_t i = 0; i < count; i++) {
        struct number n = load(dtype, sources[0].data + i * bytes);
        for (size_t s = 1; s < source_count; s++) {
            n = combine(step, dtype, n, load(dtype, sources[s].data + i * bytes));
            if (redop != COMM_AVG)
                n = wrapped(dtype, n);
        }
        if (redop == COMM_AVG)
            n = divide(dtype, n, (int)source_count);
        store(dtype, n, dst + i * bytes);
    }
    /* One source of a moving op is taken as it is: nothing was computed. */
    if (source_count == 1 && dtype != COMM_DTYPE_BOOL && redop != COMM_MIN && redop != COMM_MAX)
        memcpy(dst, sources[0].data, count * bytes);
}

static void check_many(uint64_t *state, comm_redop redop, comm_dtype dtype, size_t source_count, size_t count)
{
    struct buffer sources[SOURCES_MOST], dst = buffer_make(dtype, count, draw(state) % 64);
    const void *pointers[SOURCES_MOST];
    uint8_t *expected = malloc(dst.bytes + 1);
    assert_non_null(expected);
    for (size_t s = 0; s < source_count; s++) {
        sources[s] = buffer_drawn(state, dtype, count, draw(state) % 64);
        pointers[s] = sources[s].data;
    }
    reference_many(redop, dtype, sources, source_count, count, expected);
    assert_int_equal(comm__reduce_many(dst.data, pointers, source_count, count, redop, dtype), COMM_OK);
    assert_same("reduce_many", redop, dtype, &dst, count, expected, NULL, NULL);
    size_t own = draw(state) % source_count;
    assert_int_equal(comm__reduce_many(sources[own].data, pointers, source_count, count, redop, dtype), COMM_OK);
    assert_same("reduce_many into a source", redop, dtype, &sources[own], count, expected, NULL, NULL);
    for (size_t s = 0; s < source_count; s++)
        free(sources[s].memory);
    free(dst.memory);
    free(expected);
}

static void many_of(comm_redop redop, comm_dtype dtype)
{
    static const size_t numbers[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, SOURCES_MOST };
    static const size_t counts[] = { 0, 1, 2, 3, 7, 15, 16, 17, 33, 63, 64, 65, 255 };
    if (!comm__reduce_kernel(redop, dtype))
        return;
    uint64_t state = seed + (uint64_t)(redop * 100 + dtype);
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
        for (size_t c = 0; c < 3; c++)
            check_many(&state, redop, dtype, numbers[n], counts[draw(&state) % 13]);
    check_many(&state, redop, dtype, 3, 8192 / comm_dtype_bytes(dtype) + 1); /* beyond one block */
    check_many(&state, redop, dtype, 5, 2 * 8192 + 3);
}

static void many_sources_are_rounded_once(void **state)
{
    (void)state;
    each_variant(many_of);
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
    assert_int_equal(comm__reduce_many(got, sources, 2, 4, COMM_AVG, COMM_DTYPE_I32), COMM_OK);
    const int32_t halves[] = { -1073741824, -1073741824, -1073741825, -1073741825 };
    assert_memory_equal(got, halves, sizeof got);
    sources[0] = i32[1];
    sources[1] = i32[2];
    assert_int_equal(comm__reduce_many(got, sources, 2, 4, COMM_AVG, COMM_DTYPE_I32), COMM_OK);
    const int32_t small[] = { 1073741823, 0, -1, -1 }; /* -3 / 2 is -1 */
    assert_memory_equal(got, small, sizeof got);
    const int64_t least = INT64_MIN, most = INT64_MAX;
    const void *ends[] = { &least, &least, &most };
    int64_t wide;
    assert_int_equal(comm__reduce_many(&wide, ends, 3, 1, COMM_AVG, COMM_DTYPE_I64), COMM_OK);
    assert_true(wide == -3074457345618258603); /* (-2^63 - 1) / 3 */
    assert_int_equal(comm__reduce_many(&wide, ends, 2, 1, COMM_AVG, COMM_DTYPE_I64), COMM_OK);
    assert_true(wide == INT64_MIN);
    const uint64_t all = UINT64_MAX;
    const void *full[] = { &all, &all, &all };
    uint64_t unsigned_wide;
    assert_int_equal(comm__reduce_many(&unsigned_wide, full, 3, 1, COMM_AVG, COMM_DTYPE_U64), COMM_OK);
    assert_true(unsigned_wide == UINT64_MAX);
}

/* ---- Factors and divisors ---- */

static void factors_of(comm_redop redop, comm_dtype dtype)
{
    static uint8_t expected[1000 * ELEMENT_MOST];
    if (redop != COMM_PREMUL_SUM || !comm_redop_takes(redop, dtype))
        return;
    uint64_t state = seed + (uint64_t)dtype;
    size_t bytes = comm_dtype_bytes(dtype);
    for (int round = 0; round < 80; round++) {
        size_t count = round < 70 ? (size_t)round : 999;
        struct buffer src = buffer_drawn(&state, dtype, count, draw(&state) % 64);
        struct buffer dst = buffer_make(dtype, count, draw(&state) % 64);
        uint8_t factor[ELEMENT_MOST + 1];
        draw_element(&state, dtype, factor + 1);
        for (size_t i = 0; i < count; i++)
            store(dtype, combine(COMM_PRODUCT, dtype, load(dtype, src.data + i * bytes), load(dtype, factor + 1)),
                  expected + i * bytes);
        comm__premultiply(dst.data, src.data, count, dtype, factor + 1);
        assert_same("premultiply", redop, dtype, &dst, count, expected, src.data, NULL);
        struct buffer in_place = buffer_copy(&src, 0);
        comm__premultiply(in_place.data, in_place.data, count, dtype, factor + 1);
        assert_same("premultiply in place", redop, dtype, &in_place, count, expected, src.data, NULL);
        free(src.memory);
        free(dst.memory);
        free(in_place.memory);
    }
}

static void factors_multiply(void **state)
{
    (void)state;
    each_variant(factors_of);
}

static void divisors_of(comm_redop redop, comm_dtype dtype)
{
    enum { MOST = 1000 };
    static const int32_t divisors[] = { 1, 2, 3, 4, 5, 7, 8, 10, 64, 100, 1000, 1024, 65536, 1 << 20 };
    static uint8_t expected[MOST * ELEMENT_MOST];
    if (redop != COMM_AVG || kind_of(dtype) < FLOAT || dtype == COMM_DTYPE_BYTE)
        return;
    uint64_t state = seed + (uint64_t)dtype;
    size_t bytes = comm_dtype_bytes(dtype);
    for (size_t d = 0; d < sizeof divisors / sizeof *divisors; d++)
        for (size_t count = d; count < MOST; count = 2 * count + 1) {
            struct buffer data = buffer_drawn(&state, dtype, count, draw(&state) % 64), was = buffer_copy(&data, 0);
            for (size_t i = 0; i < count; i++)
                store(dtype, divide(dtype, load(dtype, data.data + i * bytes), divisors[d]), expected + i * bytes);
            comm__divide(data.data, count, dtype, divisors[d]);
            assert_same("divide", redop, dtype, &data, count, expected, was.data, NULL);
            free(data.memory);
            free(was.memory);
        }
}

static void divisors_divide(void **state)
{
    (void)state;
    each_variant(divisors_of);
}

/* ---- Refusals and variants ---- */

static void illegal_pairs_are_refused_by_name(void **state)
{
    (void)state;
    double element[2] = { 0, 0 };
    const void *sources[] = { element, element };
    for (comm_redop redop = -1; redop <= COMM__REDOP_END; redop++)
        for (comm_dtype dtype = -1; dtype <= COMM__DTYPE_END; dtype++) {
            bool can = comm_redop_takes(redop, dtype) && redop != COMM_REDOP_USER;
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
    assert_int_equal(comm__reduce_many(&element, sources, too_many, 1, COMM_AVG, COMM_DTYPE_I32), COMM_ERR_UNSUPPORTED);
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
    assert_string_equal(comm__reduce_variant(), comm__reduce_variant_at(0));
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_follow_the_definition),
        cmocka_unit_test(every_variant_converts_every_pattern),
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

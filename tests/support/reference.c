/* Written from comm.h and the formats' definitions; it shares no line with core/, which it checks. */
#include "reference.h"

#include <math.h>
#include <string.h>

__extension__ typedef __int128 int128;

uint64_t reference_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- The reference: formats ---- */

const struct format *reference_format(comm_dtype dtype)
{
    static const struct format formats[COMM_DTYPE_END] = {
        [COMM_DTYPE_F16] = { 5, 10, true, 0x7e00 },
        [COMM_DTYPE_BF16] = { 8, 7, true, 0x7fc0 },
        [COMM_DTYPE_F8E4M3] = { 4, 3, false, 0x7f },
        [COMM_DTYPE_F8E5M2] = { 5, 2, true, 0x7e },
    };
    return formats[dtype].nan ? &formats[dtype] : NULL;
}

static int bias_of(const struct format *f)
{
    return (1 << (f->exponent_bits - 1)) - 1;
}

double reference_decode(const struct format *f, uint32_t bits)
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
uint32_t reference_encode(const struct format *f, double value)
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
    if (ldexp(units, exponent - f->mantissa_bits) > reference_decode(f, most_finite(f)))
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

enum kind reference_kind(comm_dtype dtype)
{
    return dtype == COMM_DTYPE_BOOL                               ? BOOLEAN
           : dtype <= COMM_DTYPE_U64                              ? INTEGER
           : dtype == COMM_DTYPE_C64 || dtype == COMM_DTYPE_C128 ? COMPLEX
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
    if (reference_format(dtype)) {
        uint32_t bits = 0;
        memcpy(&bits, element, comm_dtype_bytes(dtype));
        return reference_decode(reference_format(dtype), bits);
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
    if (reference_format(dtype)) {
        uint32_t bits = reference_encode(reference_format(dtype), value);
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

/* What arithmetic rounds to: double for f64 and c128, else fp32. A sum, product or quotient of fp32 numbers that is
 * made in double and then rounded to fp32 is the same as if made in fp32. */
static double rounded(comm_dtype dtype, double value)
{
    volatile double result = dtype == COMM_DTYPE_F64 || dtype == COMM_DTYPE_C128 ? value : (double)(float)value;
    return result;
}

struct number reference_load(comm_dtype dtype, const void *element)
{
    struct number n = { 0, 0, 0 };
    size_t bytes = comm_dtype_bytes(dtype);
    if (reference_kind(dtype) == INTEGER)
        n.integer = load_integer(dtype, element);
    else if (reference_kind(dtype) == BOOLEAN)
        n.integer = *(const uint8_t *)element != 0;
    else
        n.re = load_real(dtype, element);
    if (reference_kind(dtype) == COMPLEX)
        n.im = load_real(dtype, (const char *)element + bytes / 2);
    return n;
}

void reference_store(comm_dtype dtype, struct number n, void *element)
{
    if (reference_kind(dtype) == INTEGER)
        store_integer(dtype, n.integer, element);
    else if (reference_kind(dtype) == BOOLEAN)
        *(uint8_t *)element = (uint8_t)n.integer;
    else
        store_real(dtype, n.re, element);
    if (reference_kind(dtype) == COMPLEX)
        store_real(dtype, n.im, (char *)element + comm_dtype_bytes(dtype) / 2);
}

static int128 combine_integers(comm_redop redop, comm_dtype dtype, int128 a, int128 b)
{
    bool boolean = dtype == COMM_DTYPE_BOOL;
    switch (redop) {
    case COMM_REDOP_PRODUCT:
        return (int128)((uint64_t)a * (uint64_t)b); /* the low 64 bits are right */
    case COMM_REDOP_MIN:
        return a < b ? a : b;
    case COMM_REDOP_MAX:
        return a > b ? a : b;
    case COMM_REDOP_BAND:
        return a & b;
    case COMM_REDOP_BOR:
        return a | b;
    case COMM_REDOP_BXOR:
        return a ^ b;
    default:
        return boolean ? a | b : a + b;
    }
}

static double combine_reals(comm_redop redop, comm_dtype dtype, double a, double b)
{
    bool less = a < b || (a == b && signbit(a) && !signbit(b));
    switch (redop) {
    case COMM_REDOP_PRODUCT:
        return rounded(dtype, a * b);
    case COMM_REDOP_MIN:
        return isnan(a) || isnan(b) ? NAN : less ? a : b;
    case COMM_REDOP_MAX:
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

struct number reference_combine(comm_redop redop, comm_dtype dtype, struct number a, struct number b)
{
    if (reference_kind(dtype) == COMPLEX && redop == COMM_REDOP_PRODUCT)
        return multiply_complex(dtype, a, b);
    struct number n = { 0, 0, 0 };
    if (reference_kind(dtype) == INTEGER || reference_kind(dtype) == BOOLEAN)
        n.integer = combine_integers(redop, dtype, a.integer, b.integer);
    else
        n.re = combine_reals(redop, dtype, a.re, b.re);
    if (reference_kind(dtype) == COMPLEX)
        n.im = combine_reals(redop, dtype, a.im, b.im);
    return n;
}

struct number reference_divide(comm_dtype dtype, struct number a, int divisor)
{
    a.integer /= divisor;
    a.re = rounded(dtype, a.re / divisor);
    a.im = rounded(dtype, a.im / divisor);
    return a;
}

struct number reference_wrapped(comm_dtype dtype, struct number n)
{
    char element[REFERENCE_ELEMENT_MAX];
    if (reference_kind(dtype) != INTEGER)
        return n;
    reference_store(dtype, n, element);
    return reference_load(dtype, element);
}

/* ---- Data ---- */

const double reference_reals[REFERENCE_REALS] = {
    0.0,     -0.0,     1.0,      -1.0,      0.5,     1.5,     INFINITY, -INFINITY, NAN,     448.0,    464.0,
    480.0,   57344.0,  61440,    65504.0,   65519.0, 65520.0, 0x1p-24,  0x1p-25,   0x1p-14, 0x1p-9,   0x1p-10,
    0x1p-16, -0x1p-17, 0x1p-126, -0x1p-149, 3.4e38,  -3.4e38, 0x1p-133, 0x1p-1074, 1.7e308, 0x1p-1022
};
const int64_t reference_integers[REFERENCE_INTEGERS] = {
    0,     1,      -1,    2,         -2,        3,          127,       -128,      128,          255,
    32767, -32768, 65535, INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN, INT64_MIN + 1
};
void reference_draw(uint64_t *state, comm_dtype dtype, void *element)
{
    uint64_t how = reference_random(state) % 8, random[2] = { reference_random(state), reference_random(state) };
    struct number n = { 0, 0, 0 };
    if (how < 3) {
        memcpy(element, random, comm_dtype_bytes(dtype)); /* any bits: NaNs with payloads, booleans other than 1 */
    } else if (how < 5) {
        n.integer = reference_integers[random[0] % REFERENCE_INTEGERS];
        n.re = reference_reals[random[0] % REFERENCE_REALS];
        n.im = reference_reals[random[1] % REFERENCE_REALS];
        if (dtype == COMM_DTYPE_BOOL)
            n.integer &= 1;
        reference_store(dtype, n, element);
    } else {
        n.integer = (int64_t)(random[0] % 201) - 100;
        n.re = ldexp((double)(random[0] % 4097) - 2048, (int)(random[1] % 12) - 10);
        n.im = ldexp((double)(random[1] % 4097) - 2048, (int)(random[0] % 12) - 10);
        if (dtype == COMM_DTYPE_BOOL)
            n.integer = random[0] % 2;
        reference_store(dtype, n, element);
    }
}

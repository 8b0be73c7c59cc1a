/* Random data that needs no memory: rank r's i-th element is a hash of (seed, r, i), so every rank can tell what every
 * other rank sent, and what a reduction of it must be. This is the independent reference of comm-bench, so nothing here
 * comes from the library's kernels; it is slow and plain on purpose. Tried by tests/tools/test_bench_data.c.
 *
 * Where an operation only moves, elements are arbitrary bits (NaNs too: moving must not change them). Where it reduces,
 * real numbers are small integers (products: +-1 and a few 2), so that the result does not depend on the order, and
 * only a last rounding to the type is left; integers are arbitrary and wrap around. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "bench.h"

enum { STRIDE = 512 }; /* elements worked on at a time */

/* What arithmetic a type needs. */
enum domain { DOMAIN_INTEGER, DOMAIN_BOOL, DOMAIN_REAL, DOMAIN_COMPLEX };

struct format {
    enum domain domain;
    int is_signed;         /* integers */
    int significand_bits;  /* real parts: with the hidden bit */
    int exponent_bits;
};

static struct format format_of(comm_dtype dtype)
{
    switch (dtype) {
    case COMM_DTYPE_I8: case COMM_DTYPE_I16: case COMM_DTYPE_I32: case COMM_DTYPE_I64:
        return (struct format){ DOMAIN_INTEGER, 1, 0, 0 };
    case COMM_DTYPE_BOOL: return (struct format){ DOMAIN_BOOL, 0, 0, 0 };
    case COMM_DTYPE_F16: return (struct format){ DOMAIN_REAL, 1, 11, 5 };
    case COMM_DTYPE_BF16: return (struct format){ DOMAIN_REAL, 1, 8, 8 };
    case COMM_DTYPE_F32: return (struct format){ DOMAIN_REAL, 1, 24, 8 };
    case COMM_DTYPE_F64: return (struct format){ DOMAIN_REAL, 1, 53, 11 };
    case COMM_DTYPE_F8E4M3: return (struct format){ DOMAIN_REAL, 1, 4, 4 };
    case COMM_DTYPE_F8E5M2: return (struct format){ DOMAIN_REAL, 1, 3, 5 };
    case COMM_DTYPE_C64: return (struct format){ DOMAIN_COMPLEX, 1, 24, 8 };
    case COMM_DTYPE_C128: return (struct format){ DOMAIN_COMPLEX, 1, 53, 11 };
    default: return (struct format){ DOMAIN_INTEGER, 0, 0, 0 }; /* U8 ... U64, BYTE */
    }
}

/* The finaliser of splitmix64 over a mix of the three. */
static uint64_t hash(uint64_t seed, int32_t rank, size_t index)
{
    uint64_t x = seed + (uint64_t)index * 0x9e3779b97f4a7c15u + ((uint64_t)rank + 1) * 0xd1342543de82ef95u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- Small floating point types, by their definition ---- */

/* The value of a float with the given fields; the encodings of infinity and NaN never occur in our data. */
static double decode_small(uint32_t bits, const struct format *f)
{
    int fraction_bits = f->significand_bits - 1;
    int exponent = (int)(bits >> fraction_bits) & ((1 << f->exponent_bits) - 1);
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    double fraction = (double)(bits & ((1u << fraction_bits) - 1));
    double value = exponent ? ldexp(fraction + (double)(1u << fraction_bits), exponent - bias - fraction_bits)
                            : ldexp(fraction, 1 - bias - fraction_bits);
    return bits >> (fraction_bits + f->exponent_bits) & 1 ? -value : value;
}

/* `value` rounded to the type's precision, to nearest even. Our values never come near its range. */
static double round_to(double value, const struct format *f)
{
    int exponent;
    double significand = frexp(value, &exponent);
    return ldexp(nearbyint(ldexp(significand, f->significand_bits)), exponent - f->significand_bits);
}

/* The bits of a value that the type holds exactly (a small integer). */
static uint32_t encode_small(double value, const struct format *f)
{
    int fraction_bits = f->significand_bits - 1;
    uint32_t sign = value < 0 ? 1u << (fraction_bits + f->exponent_bits) : 0;
    if (value == 0)
        return 0;
    int exponent;
    double significand = frexp(fabs(value), &exponent); /* in [0.5, 1) */
    uint32_t whole = (uint32_t)ldexp(significand, f->significand_bits);
    uint32_t biased = (uint32_t)(exponent - 1 + (1 << (f->exponent_bits - 1)) - 1);
    return sign | biased << fraction_bits | (whole & ((1u << fraction_bits) - 1));
}

static void store_real(char *dst, double value, const struct format *f, size_t bytes)
{
    if (bytes == 8) {
        memcpy(dst, &value, 8);
    } else if (bytes == 4) {
        float narrow = (float)value;
        memcpy(dst, &narrow, 4);
    } else {
        uint32_t bits = encode_small(value, f);
        uint16_t both = (uint16_t)bits;
        uint8_t one = (uint8_t)bits;
        memcpy(dst, bytes == 2 ? (void *)&both : (void *)&one, bytes);
    }
}

static double load_real(const char *src, const struct format *f, size_t bytes)
{
    double wide;
    float narrow;
    uint16_t both;
    uint8_t one;
    switch (bytes) {
    case 8: memcpy(&wide, src, 8); return wide;
    case 4: memcpy(&narrow, src, 4); return (double)narrow;
    case 2: memcpy(&both, src, 2); return decode_small(both, f);
    default: memcpy(&one, src, 1); return decode_small(one, f);
    }
}

/* ---- A rank's elements ---- */

/* The largest integer in our sums: with a few ranks they stay exact even in the type itself. */
static int64_t spread(const struct format *f)
{
    return f->significand_bits >= 24 ? 1000 : f->significand_bits >= 11 ? 100 : f->significand_bits >= 8 ? 20 : 2;
}

/* A real part. `h` has 64 random bits. */
static double real_part(const struct format *f, comm_redop redop, int32_t rank, uint64_t h)
{
    int64_t most = spread(f);
    if (redop == COMM_REDOP_PRODUCT) /* at most 8 in all, whatever the number of ranks */
        return (h & 1 ? 1.0 : -1.0) * (rank < 3 && (h & 2) ? 2.0 : 1.0);
    return (double)((int64_t)(h % (uint64_t)(2 * most + 1)) - most);
}

/* A complex element: products of 1, -1, i, -i stay on the unit circle. */
static void complex_parts(const struct format *f, comm_redop redop, int32_t rank, uint64_t h, double parts[2])
{
    if (redop == COMM_REDOP_PRODUCT) {
        parts[0] = h & 1 ? 0 : (h & 2 ? 1 : -1);
        parts[1] = h & 1 ? (h & 2 ? 1 : -1) : 0;
    } else {
        parts[0] = real_part(f, redop, rank, h & 0xffffffffu);
        parts[1] = real_part(f, redop, rank, h >> 32);
    }
}

static void fill_moved(char *dst, comm_dtype dtype, uint64_t seed, int32_t rank, size_t first, size_t count)
{
    size_t bytes = comm_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++, dst += bytes) {
        uint64_t h[2] = { hash(seed, rank, first + i), 0 };
        if (bytes == 16)
            h[1] = hash(~seed, rank, first + i);
        if (dtype == COMM_DTYPE_BOOL)
            h[0] &= 1;
        memcpy(dst, h, bytes); /* the low bytes: this machine is little-endian, and any others would do as well */
    }
}

void bench_data_fill(void *dst, comm_dtype dtype, comm_redop redop, uint64_t seed, int32_t rank, size_t first,
                     size_t count)
{
    struct format f = format_of(dtype);
    size_t bytes = comm_dtype_bytes(dtype);
    char *out = dst;
    if (redop < 0 || f.domain == DOMAIN_INTEGER || f.domain == DOMAIN_BOOL) {
        fill_moved(out, dtype, seed, rank, first, count);
        return;
    }
    for (size_t i = 0; i < count; i++, out += bytes) {
        uint64_t h = hash(seed, rank, first + i);
        if (f.domain == DOMAIN_REAL) {
            store_real(out, real_part(&f, redop, rank, h), &f, bytes);
        } else {
            double parts[2];
            complex_parts(&f, redop, rank, h, parts);
            store_real(out, parts[0], &f, bytes / 2);
            store_real(out + bytes / 2, parts[1], &f, bytes / 2);
        }
    }
}

void bench_data_premul(void *dst, comm_dtype dtype)
{
    struct format f = format_of(dtype);
    size_t bytes = comm_dtype_bytes(dtype);
    memset(dst, 0, bytes);
    if (f.domain == DOMAIN_REAL)
        store_real(dst, 2, &f, bytes);
    else if (f.domain == DOMAIN_COMPLEX)
        store_real(dst, 2, &f, bytes / 2);
    else
        memset(dst, 2, 1);
}

uint64_t bench_data_wrong(const void *got, comm_dtype dtype, comm_redop redop, uint64_t seed, int32_t rank,
                          size_t first, size_t count)
{
    char expected[STRIDE * 16];
    const char *in = got;
    size_t bytes = comm_dtype_bytes(dtype);
    uint64_t wrong = 0;
    for (size_t done = 0; done < count; done += STRIDE) {
        size_t n = count - done < STRIDE ? count - done : STRIDE;
        bench_data_fill(expected, dtype, redop, seed, rank, first + done, n);
        if (memcmp(in + done * bytes, expected, n * bytes) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            wrong += memcmp(in + (done + i) * bytes, expected + i * bytes, bytes) != 0;
    }
    return wrong;
}

/* ---- Reductions, from the definition in comm.h ---- */

/* What has been reduced so far. 128 bits hold any sum of 64-bit integers; doubles hold our small numbers exactly. */
union totals {
    __int128 integer[STRIDE];
    double real[2 * STRIDE]; /* two for each complex element */
};

static int64_t load_integer(const char *src, size_t bytes, int is_signed)
{
    uint64_t value = 0;
    memcpy(&value, src, bytes);
    unsigned unused = 64 - 8 * (unsigned)bytes;
    return is_signed ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

/* For BOOL the arithmetic ops are logical ones. */
static comm_redop bool_redop(comm_redop redop)
{
    switch (redop) {
    case COMM_REDOP_SUM: case COMM_REDOP_MAX: return COMM_REDOP_BOR;
    case COMM_REDOP_PRODUCT: case COMM_REDOP_MIN: return COMM_REDOP_BAND;
    default: return redop;
    }
}

static __int128 integer_step(__int128 total, int64_t next, comm_redop redop, int is_signed)
{
    __int128 wide = is_signed ? (__int128)next : (__int128)(uint64_t)next;
    switch (redop) {
    case COMM_REDOP_SUM: case COMM_REDOP_AVG: return total + wide;
    case COMM_REDOP_PREMUL_SUM: return total + 2 * wide;
    case COMM_REDOP_PRODUCT: return (__int128)((uint64_t)total * (uint64_t)next); /* the low bits are what counts */
    case COMM_REDOP_MIN: return wide < total ? wide : total;
    case COMM_REDOP_MAX: return wide > total ? wide : total;
    case COMM_REDOP_BAND: return total & wide;
    case COMM_REDOP_BOR: return total | wide;
    case COMM_REDOP_BXOR: return total ^ wide;
    default: assert(!"not a reduction of integers"); return 0;
    }
}

static void integer_add_rank(union totals *totals, const char *in, size_t n, size_t bytes, int is_signed,
                             comm_redop redop, int is_first)
{
    int is_sum = redop == COMM_REDOP_SUM || redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM;
    for (size_t i = 0; i < n; i++) {
        int64_t next = load_integer(in + i * bytes, bytes, is_signed);
        if (is_first && !is_sum)
            totals->integer[i] = is_signed ? (__int128)next : (__int128)(uint64_t)next;
        else
            totals->integer[i] = integer_step(is_first ? 0 : totals->integer[i], next, redop, is_signed);
    }
}

static uint64_t integer_wrong(const char *got, union totals *totals, size_t n, size_t bytes, int32_t ranks,
                              comm_redop redop)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        /* C divides toward zero, and so must the library. */
        uint64_t expected = (uint64_t)(redop == COMM_REDOP_AVG ? totals->integer[i] / ranks : totals->integer[i]);
        wrong += memcmp(got + i * bytes, &expected, bytes) != 0;
    }
    return wrong;
}

static double real_step(double total, double next, comm_redop redop)
{
    switch (redop) {
    case COMM_REDOP_SUM: case COMM_REDOP_AVG: return total + next;
    case COMM_REDOP_PREMUL_SUM: return total + 2 * next;
    case COMM_REDOP_PRODUCT: return total * next;
    case COMM_REDOP_MIN: return next < total ? next : total;
    case COMM_REDOP_MAX: return next > total ? next : total;
    default: assert(!"not a reduction of real numbers"); return 0;
    }
}

/* `n` real parts of `bytes` each. */
static void real_add_rank(union totals *totals, const char *in, size_t n, size_t bytes, const struct format *f,
                          comm_redop redop, int is_first)
{
    int is_sum = redop == COMM_REDOP_SUM || redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM;
    for (size_t i = 0; i < n; i++) {
        double next = load_real(in + i * bytes, f, bytes);
        totals->real[i] = is_first && !is_sum ? next : real_step(is_first ? 0 : totals->real[i], next, redop);
    }
}

static void complex_multiply_rank(union totals *totals, const char *in, size_t n, size_t bytes,
                                  const struct format *f, int is_first)
{
    for (size_t i = 0; i < n; i++) {
        double *total = &totals->real[2 * i];
        double re = load_real(in + i * bytes, f, bytes / 2), im = load_real(in + i * bytes + bytes / 2, f, bytes / 2);
        double old_re = is_first ? 1 : total[0], old_im = is_first ? 0 : total[1];
        total[0] = old_re * re - old_im * im;
        total[1] = old_re * im + old_im * re;
    }
}

/* An average may be a division or a multiplication by 1/ranks, and NCCL does the latter: two units in the last place.
 * All else is exact but for the last rounding. */
static int real_differs(double got, double expected, const struct format *f, size_t bytes, comm_redop redop)
{
    if (redop == COMM_REDOP_AVG)
        return !(fabs(got - expected) <= fabs(expected) * ldexp(2, -(f->significand_bits - 1)));
    return !(got == (bytes == 8 ? expected : bytes == 4 ? (double)(float)expected : round_to(expected, f)));
}

/* Counts elements of `parts` real parts each. */
static uint64_t real_wrong(const char *got, const union totals *totals, size_t n, size_t parts, size_t part_bytes,
                           const struct format *f, int32_t ranks, comm_redop redop)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        int differs = 0;
        for (size_t k = i * parts; k < (i + 1) * parts; k++) {
            double expected = redop == COMM_REDOP_AVG ? totals->real[k] / ranks : totals->real[k];
            differs |= real_differs(load_real(got + k * part_bytes, f, part_bytes), expected, f, part_bytes, redop);
        }
        wrong += (uint64_t)differs;
    }
    return wrong;
}

uint64_t bench_data_wrong_reduced(const void *got, comm_dtype dtype, comm_redop redop, uint64_t seed, int32_t ranks,
                                  size_t first, size_t count)
{
    struct format f = format_of(dtype);
    int is_real = f.domain == DOMAIN_REAL || f.domain == DOMAIN_COMPLEX;
    size_t bytes = comm_dtype_bytes(dtype), parts = f.domain == DOMAIN_COMPLEX ? 2 : 1;
    comm_redop op = f.domain == DOMAIN_BOOL ? bool_redop(redop) : redop;
    char input[STRIDE * 16];
    union totals totals;
    uint64_t wrong = 0;
    for (size_t done = 0; done < count; done += STRIDE) {
        size_t n = count - done < STRIDE ? count - done : STRIDE;
        const char *at = (const char *)got + done * bytes;
        for (int32_t r = 0; r < ranks; r++) {
            bench_data_fill(input, dtype, redop, seed, r, first + done, n);
            if (!is_real)
                integer_add_rank(&totals, input, n, bytes, f.is_signed, op, r == 0);
            else if (parts == 2 && op == COMM_REDOP_PRODUCT)
                complex_multiply_rank(&totals, input, n, bytes, &f, r == 0);
            else
                real_add_rank(&totals, input, n * parts, bytes / parts, &f, op, r == 0);
        }
        wrong += is_real ? real_wrong(at, &totals, n, parts, bytes / parts, &f, ranks, op)
                         : integer_wrong(at, &totals, n, bytes, ranks, op);
    }
    return wrong;
}

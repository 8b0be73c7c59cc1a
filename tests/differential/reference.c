#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

/* Elements are made and checked in pieces of this many, so that nothing large is allocated; operand i depends on its
 * place only, so pieces can be made alone. A piece is a whole number of 8-byte words for every type. */
enum { PIECE = 2048, ELEMENT_MAX = 16 };

char reference_user_contexts[REFERENCE_STRUCT_MAX + 1];

/* ---- Bytes ---- */

static uint64_t word_at(uint64_t key, size_t index)
{
    return random_mix(key + 0x9e3779b97f4a7c15u * (uint64_t)(index + 1));
}

static void bytes_at(void *dst, size_t first_byte, size_t bytes, uint64_t key)
{
    uint8_t *at = dst;
    for (size_t i = first_byte / 8; bytes > 0; i++) {
        uint64_t word = word_at(key, i);
        size_t n = bytes < 8 ? bytes : 8;
        memcpy(at, &word, n);
        at += n;
        bytes -= n;
    }
}

void reference_bytes(void *dst, size_t bytes, uint64_t key)
{
    bytes_at(dst, 0, bytes, key);
}

/* ---- Types ---- */

/* How a float is laid out; the integers of C have no row. */
struct layout {
    int bytes, exponent, mantissa, parts; /* parts: 2 for complex */
};

static const struct layout *layout_of(comm_dtype dtype)
{
    static const struct layout layouts[COMM_DTYPE_END] = {
        [COMM_DTYPE_F16] = { 2, 5, 10, 1 },  [COMM_DTYPE_BF16] = { 2, 8, 7, 1 },   [COMM_DTYPE_F32] = { 4, 8, 23, 1 },
        [COMM_DTYPE_F64] = { 8, 11, 52, 1 }, [COMM_DTYPE_F8E4M3] = { 1, 4, 3, 1 }, [COMM_DTYPE_F8E5M2] = { 1, 5, 2, 1 },
        [COMM_DTYPE_C64] = { 4, 8, 23, 2 },  [COMM_DTYPE_C128] = { 8, 11, 52, 2 },
    };
    return layouts[dtype].bytes ? &layouts[dtype] : NULL;
}

static bool is_signed(comm_dtype dtype)
{
    return dtype == COMM_DTYPE_I8 || dtype == COMM_DTYPE_I16 || dtype == COMM_DTYPE_I32 || dtype == COMM_DTYPE_I64;
}

static uint64_t read_bits(const void *from, size_t bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, from, bytes); /* little endian, as all machines that we run on */
    return bits;
}

static uint64_t low_mask(int bits)
{
    return bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}

static long double decode(const struct layout *l, bool e4m3, uint64_t bits)
{
    int bias = (1 << (l->exponent - 1)) - 1;
    uint64_t mantissa = bits & low_mask(l->mantissa);
    int exponent = (int)(bits >> l->mantissa & low_mask(l->exponent));
    int most = (int)low_mask(l->exponent);
    long double sign = bits >> (l->bytes * 8 - 1) & 1 ? -1.0L : 1.0L;
    if (e4m3 ? exponent == most && mantissa == low_mask(l->mantissa) : exponent == most)
        return mantissa ? (long double)NAN : sign * (long double)INFINITY;
    if (exponent == 0)
        return sign * ldexpl((long double)mantissa, 1 - bias - l->mantissa);
    return sign * ldexpl((long double)(mantissa | (uint64_t)1 << l->mantissa), exponent - bias - l->mantissa);
}

static uint64_t nan_bits(const struct layout *l, bool e4m3)
{
    if (e4m3)
        return low_mask(7);
    return low_mask(l->exponent) << l->mantissa | (uint64_t)1 << (l->mantissa - 1);
}

/* ---- Operands ---- */

static uint64_t special(const struct layout *l, bool e4m3, uint64_t random)
{
    uint64_t sign = (uint64_t)1 << (l->bytes * 8 - 1);
    switch (random % 5) {
    case 0:
        return nan_bits(l, e4m3);
    case 1:
        return e4m3 ? 0 : low_mask(l->exponent) << l->mantissa;
    case 2:
        return e4m3 ? sign : low_mask(l->exponent) << l->mantissa | sign;
    case 3:
        return sign;
    default:
        return 0;
    }
}

/* A float of about 1: sums and products of 9 of them are far from overflow in every type. */
static uint64_t about_one(const struct layout *l, uint64_t random, int lowest, int exponents)
{
    int bias = (1 << (l->exponent - 1)) - 1;
    uint64_t exponent = (uint64_t)(bias + lowest + (int)(random >> 56) % exponents);
    uint64_t sign = random >> 55 & 1;
    return sign << (l->bytes * 8 - 1) | exponent << l->mantissa | (random & low_mask(l->mantissa));
}

static void operand_piece(const struct reduction *r, int32_t rank, size_t first, size_t count, uint8_t *dst)
{
    const struct layout *l = layout_of(r->dtype);
    size_t element = r->element;
    uint64_t key = r->keys[rank];
    bytes_at(dst, first * element, count * element, key);
    if (r->redop == COMM_REDOP_USER)
        return;
    if (r->dtype == COMM_DTYPE_BOOL)
        for (size_t i = 0; i < count; i++)
            dst[i] = dst[i] % 3 == 0 ? 0 : dst[i]; /* true is whatever is not 0 */
    if (!l || r->redop == COMM_REDOP_MIN || r->redop == COMM_REDOP_MAX)
        return; /* all bit patterns */
    bool e4m3 = r->dtype == COMM_DTYPE_F8E4M3, product = r->redop == COMM_REDOP_PRODUCT;
    size_t part = (size_t)l->bytes, parts = (size_t)l->parts;
    for (size_t i = 0; i < count * parts; i++) {
        uint64_t random = word_at(key ^ 0x5bd1e995, first * parts + i);
        uint64_t bits = about_one(l, random, product ? -1 : -3, product ? 2 : 5);
        if (r->specials && parts == 1 && word_at(key ^ 0x2545f491, first + i) % 16 == 0)
            bits = special(l, e4m3, random >> 8);
        memcpy(dst + i * part, &bits, part);
    }
}

void reference_operand(const struct reduction *r, int32_t rank, size_t count, void *dst)
{
    size_t element = r->element;
    for (size_t at = 0; at < count; at += PIECE)
        operand_piece(r, rank, at, count - at < PIECE ? count - at : PIECE, (uint8_t *)dst + at * element);
}

void reference_factor(const struct reduction *r, int32_t rank, void *dst)
{
    const struct layout *l = layout_of(r->dtype);
    uint64_t random[2] = { word_at(r->factor_keys[rank], 0), word_at(r->factor_keys[rank], 1) };
    if (!l) {
        memcpy(dst, random, comm_dtype_bytes(r->dtype));
        return;
    }
    for (int p = 0; p < l->parts; p++) {
        uint64_t bits = about_one(l, random[p], -1, 2);
        memcpy((uint8_t *)dst + p * l->bytes, &bits, (size_t)l->bytes);
    }
}

/* ---- The user's reduction: maps x -> a x + b, one after the other ---- */

/* Half the bits are a, half b; an element of more than 8 bytes is several maps. */
static uint64_t then(uint64_t first, uint64_t second, int bits)
{
    int half = bits / 2;
    uint64_t a1 = first >> half & low_mask(half), b1 = first & low_mask(half);
    uint64_t a2 = second >> half & low_mask(half), b2 = second & low_mask(half);
    return (a1 * a2 & low_mask(half)) << half | ((a2 * b1 + b2) & low_mask(half));
}

static void user_elements(const uint8_t *in, uint8_t *inout, size_t count, size_t element)
{
    for (size_t i = 0; i < count * element; i += element)
        for (size_t at = i; at < i + element; at += 8) {
            size_t word = i + element - at < 8 ? i + element - at : 8;
            uint64_t bits = then(read_bits(in + at, word), read_bits(inout + at, word), (int)word * 8);
            memcpy(inout + at, &bits, word);
        }
}

void reference_user(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    size_t element = (size_t)((char *)context - reference_user_contexts);
    if (element > REFERENCE_STRUCT_MAX || (dtype != COMM_DTYPE_BYTE && element != comm_dtype_bytes(dtype)))
        abort();
    user_elements(in, inout, count, element);
}

/* ---- Integers ---- */

static int64_t as_signed(uint64_t bits, size_t bytes)
{
    int shift = 64 - (int)bytes * 8;
    return (int64_t)(bits << shift) >> shift;
}

static bool less(comm_dtype dtype, uint64_t a, uint64_t b, size_t bytes)
{
    return is_signed(dtype) ? as_signed(a, bytes) < as_signed(b, bytes) : a < b;
}

static uint64_t combine_integer(const struct reduction *r, uint64_t a, uint64_t b, size_t bytes)
{
    switch (r->redop) {
    case COMM_REDOP_PRODUCT:
        return a * b;
    case COMM_REDOP_MIN:
        return less(r->dtype, b, a, bytes) ? b : a;
    case COMM_REDOP_MAX:
        return less(r->dtype, a, b, bytes) ? b : a;
    case COMM_REDOP_BAND:
        return a & b;
    case COMM_REDOP_BOR:
        return a | b;
    case COMM_REDOP_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

static uint64_t combine_bool(comm_redop redop, uint64_t a, uint64_t b)
{
    switch (redop) {
    case COMM_REDOP_PRODUCT:
    case COMM_REDOP_MIN:
    case COMM_REDOP_BAND:
        return a & b;
    case COMM_REDOP_BXOR:
        return a ^ b;
    default:
        return a | b;
    }
}

static uint64_t integer_result(const struct reduction *r, uint8_t *const *operands, size_t i)
{
    size_t bytes = r->element;
    __int128 exact = 0; /* AVG */
    uint64_t result = 0;
    for (int32_t rank = 0; rank < r->size; rank++) {
        uint64_t value = read_bits(operands[rank] + i * bytes, bytes), factor = 1;
        uint8_t raw[ELEMENT_MAX];
        if (r->dtype == COMM_DTYPE_BOOL) {
            result = rank == 0 ? value != 0 : combine_bool(r->redop, result, value != 0);
            continue;
        }
        if (r->redop == COMM_REDOP_PREMUL_SUM) {
            reference_factor(r, rank, raw);
            factor = read_bits(raw, bytes);
        }
        exact += is_signed(r->dtype) ? (__int128)as_signed(value, bytes) : (__int128)value;
        result = rank == 0 ? value * factor : combine_integer(r, result, value * factor, bytes);
    }
    if (r->redop == COMM_REDOP_AVG)
        result = (uint64_t)(exact / r->size); /* C divides toward zero */
    return result & low_mask((int)bytes * 8);
}

/* ---- Floats ---- */

struct number {
    long double re, im;
};

static struct number read_number(const struct reduction *r, const struct layout *l, const uint8_t *from)
{
    bool e4m3 = r->dtype == COMM_DTYPE_F8E4M3;
    struct number n = { decode(l, e4m3, read_bits(from, (size_t)l->bytes)), 0 };
    if (l->parts == 2)
        n.im = decode(l, e4m3, read_bits(from + l->bytes, (size_t)l->bytes));
    return n;
}

static struct number times(struct number a, struct number b, bool complex)
{
    if (!complex)
        return (struct number){ a.re * b.re, 0 };
    return (struct number){ a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
}

static long double magnitude(struct number n)
{
    return fabsl(n.re) + fabsl(n.im);
}

/* The result, and in *ret_grown how large intermediate results may have been. */
static struct number float_result(const struct reduction *r, const struct layout *l, uint8_t *const *operands, size_t i,
                                  long double *ret_grown)
{
    size_t element = r->element;
    struct number result = { 0, 0 };
    long double grown = 0;
    bool complex = l->parts == 2, product = r->redop == COMM_REDOP_PRODUCT;
    for (int32_t rank = 0; rank < r->size; rank++) {
        struct number n = read_number(r, l, operands[rank] + i * element);
        if (r->redop == COMM_REDOP_PREMUL_SUM) {
            uint8_t raw[ELEMENT_MAX];
            reference_factor(r, rank, raw);
            struct number factor = read_number(r, l, raw);
            grown += magnitude(n) * magnitude(factor);
            n = times(n, factor, complex);
        } else {
            grown = product ? (rank == 0 ? 1 : grown) * magnitude(n) : grown + magnitude(n);
        }
        if (rank == 0)
            result = n;
        else if (product)
            result = times(result, n, complex);
        else
            result = (struct number){ result.re + n.re, result.im + n.im };
    }
    if (r->redop == COMM_REDOP_AVG) {
        result = (struct number){ result.re / r->size, result.im / r->size };
        grown /= r->size;
    }
    *ret_grown = grown;
    return result;
}

/* How far off a right result may be. 16- and 8-bit floats are reduced in fp32 and rounded once; of PREMUL_SUM each
 * product is rounded too. The others are rounded after every step, in whatever order. */
static long double tolerance(const struct reduction *r, const struct layout *l, long double result, long double grown)
{
    int bias = (1 << (l->exponent - 1)) - 1;
    long double least = ldexpl(1, 1 - bias - l->mantissa), half_unit = ldexpl(1, -(l->mantissa + 1));
    long double steps = r->size + 2, steps_error = steps * grown * half_unit;
    if (l->bytes > 2 || l->parts == 2)
        return 2 * steps_error + steps * least;
    long double in_f32 = 2 * steps * grown * ldexpl(1, -24);
    if (r->redop == COMM_REDOP_PREMUL_SUM)
        return fabsl(result) * half_unit + steps_error + steps * least + in_f32;
    return fabsl(result) * half_unit * 1.001L + least / 2 + in_f32;
}

static bool close_enough(long double got, long double want, long double allowed)
{
    if (isnan(want))
        return isnan(got);
    if (isinf(want))
        return got == want;
    return got == want || fabsl(got - want) <= allowed;
}

/* MIN and MAX: the same bits, whatever the order. */
static uint64_t extreme_bits(const struct reduction *r, const struct layout *l, uint8_t *const *operands, size_t i)
{
    bool e4m3 = r->dtype == COMM_DTYPE_F8E4M3;
    uint64_t best = 0;
    for (int32_t rank = 0; rank < r->size; rank++) {
        uint64_t bits = read_bits(operands[rank] + i * (size_t)l->bytes, (size_t)l->bytes);
        long double value = decode(l, e4m3, bits), so_far = decode(l, e4m3, best);
        if (isnan(value))
            return nan_bits(l, e4m3);
        bool lower = value < so_far || (value == so_far && signbit(value) && !signbit(so_far));
        bool higher = value > so_far || (value == so_far && !signbit(value) && signbit(so_far));
        if (rank == 0 || (r->redop == COMM_REDOP_MIN ? lower : higher))
            best = bits;
    }
    return best;
}

/* ((0 op 1) op 2) ... in the type itself. */
#define IN_ORDER(type)                                                                                                 \
    do {                                                                                                               \
        type result = 0, value;                                                                                        \
        for (int32_t rank = 0; rank < r->size; rank++) {                                                               \
            memcpy(&value, operands[rank] + i * sizeof value, sizeof value);                                           \
            if (rank == 0)                                                                                             \
                result = value;                                                                                        \
            else                                                                                                       \
                result = r->redop == COMM_REDOP_PRODUCT ? result * value : result + value;                             \
        }                                                                                                              \
        if (r->redop == COMM_REDOP_AVG)                                                                                \
            result /= (type)r->size;                                                                                   \
        memcpy(ret_bits, &result, sizeof result);                                                                      \
    } while (0)

static bool has_exact_order(const struct reduction *r)
{
    return r->rank_order && !r->specials && (r->dtype == COMM_DTYPE_F32 || r->dtype == COMM_DTYPE_F64) &&
           (r->redop == COMM_REDOP_SUM || r->redop == COMM_REDOP_PRODUCT || r->redop == COMM_REDOP_AVG);
}

static void ordered_bits(const struct reduction *r, uint8_t *const *operands, size_t i, uint64_t *ret_bits)
{
    if (r->dtype == COMM_DTYPE_F32)
        IN_ORDER(float);
    else
        IN_ORDER(double);
}

/* ---- Checking ---- */

static bool same_bits(uint64_t got, uint64_t want, size_t i, char *text, size_t capacity)
{
    if (got != want)
        snprintf(text, capacity, "element %zu has the bits %#llx, not %#llx", i, (unsigned long long)got,
                 (unsigned long long)want);
    return got == want;
}

static bool check_user(const struct reduction *r, uint8_t *const *operands, const uint8_t *got, size_t i, char *text,
                       size_t capacity)
{
    size_t element = r->element;
    uint8_t so_far[REFERENCE_STRUCT_MAX], next[REFERENCE_STRUCT_MAX];
    bool right = true;
    memcpy(so_far, operands[0] + i * element, element);
    for (int32_t rank = 1; rank < r->size; rank++) {
        memcpy(next, operands[rank] + i * element, element);
        user_elements(so_far, next, 1, element);
        memcpy(so_far, next, element);
    }
    for (size_t at = 0; right && at < element; at += 8) {
        size_t word = element - at < 8 ? element - at : 8;
        right = same_bits(read_bits(got + at, word), read_bits(so_far + at, word), i, text, capacity);
    }
    return right;
}

static bool check_float(const struct reduction *r, const struct layout *l, uint8_t *const *operands,
                        const uint8_t *at, size_t i, char *text, size_t capacity)
{
    uint64_t bits = 0;
    if (r->redop == COMM_REDOP_MIN || r->redop == COMM_REDOP_MAX)
        return same_bits(read_bits(at, (size_t)l->bytes), extreme_bits(r, l, operands, i), i, text, capacity);
    if (has_exact_order(r)) {
        ordered_bits(r, operands, i, &bits);
        return same_bits(read_bits(at, (size_t)l->bytes), bits, i, text, capacity);
    }
    long double grown;
    struct number want = float_result(r, l, operands, i, &grown), got = read_number(r, l, at);
    long double allowed_re = tolerance(r, l, want.re, grown), allowed_im = tolerance(r, l, want.im, grown);
    if (close_enough(got.re, want.re, allowed_re) && close_enough(got.im, want.im, allowed_im))
        return true;
    snprintf(text, capacity, "element %zu is %.12Lg%+.12Lgi, not %.12Lg%+.12Lgi (%Lg may be lost)", i, got.re, got.im,
             want.re, want.im, allowed_re);
    return false;
}

static bool check_piece(const struct reduction *r, uint8_t *const *operands, const uint8_t *got, size_t count,
                        size_t first, char *text, size_t capacity)
{
    const struct layout *l = layout_of(r->dtype);
    size_t element = r->element;
    char what[200];
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = got + i * element;
        bool right;
        if (r->redop == COMM_REDOP_USER)
            right = check_user(r, operands, at, i, what, sizeof what);
        else if (l)
            right = check_float(r, l, operands, at, i, what, sizeof what);
        else
            right = same_bits(read_bits(at, element), integer_result(r, operands, i), i, what, sizeof what);
        if (right)
            continue;
        snprintf(text, capacity, "from element %zu on: %s", first, what);
        return false;
    }
    return true;
}

bool reference_check(const struct reduction *r, const void *got, size_t count, char *text, size_t capacity)
{
    size_t element = r->element;
    uint8_t *operands[16];
    uint8_t *memory = malloc((size_t)r->size * PIECE * element);
    bool right = true;
    for (int32_t rank = 0; rank < r->size; rank++)
        operands[rank] = memory + (size_t)rank * PIECE * element;
    for (size_t at = 0; right && at < count; at += PIECE) {
        size_t here = count - at < PIECE ? count - at : PIECE;
        for (int32_t rank = 0; rank < r->size; rank++)
            operand_piece(r, rank, at, here, operands[rank]);
        right = check_piece(r, operands, (const uint8_t *)got + at * element, here, at, text, capacity);
    }
    free(memory);
    return right;
}

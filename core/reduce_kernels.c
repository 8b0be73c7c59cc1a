/* The reduction kernels of one variant: this file is compiled once per instruction set (core/meson.build), with
 * REDUCE_VARIANT as the variant's name. The loops are plain C without branches for the compiler to vectorise; only
 * 16- and 8-bit floats (reduce_lanes.h) and sums of many sources have vectors of their own. */
#include "reduce_lanes.h"
#include "reduce_variant.h"
#include "small_float.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

/* dst may be one of the sources, which is no dependence between iterations; the compiler cannot know. Clang takes this
 * for an order to vectorise, which the scalar variant must not do. */
#if defined(REDUCE_ONE_BY_ONE)
#define INDEPENDENT
#elif defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Elements as they lie in a user's buffer: at any address. */
#define ELEMENT(type, name) typedef type name __attribute__((aligned(1), may_alias))
ELEMENT(int8_t, i8);
ELEMENT(uint8_t, u8);
ELEMENT(int16_t, i16);
ELEMENT(uint16_t, u16);
ELEMENT(int32_t, i32);
ELEMENT(uint32_t, u32);
ELEMENT(int64_t, i64);
ELEMENT(uint64_t, u64);
ELEMENT(float, f32);
ELEMENT(double, f64);

/* ---- Element operations ---- */

/* A NaN from arithmetic has the bits of one operand or the other as the compiler pleases; ranks must agree, so it gets
 * one form. */
static inline float settle_f32(float value)
{
    return value == value ? value : __builtin_nanf("");
}

static inline double settle_f64(double value)
{
    return value == value ? value : __builtin_nan("");
}

/* a - b is written a + negate(b) in complex products: given "product - product, product + product", gcc 12 makes one
 * fused instruction of it in spite of -ffp-contract=off, and rounds otherwise than the other variants. */
static inline float negate_f32(float value)
{
    return f32_of_bits(bits_of_f32(value) ^ 0x80000000u);
}

static inline double negate_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits ^= 0x8000000000000000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* MIN and MAX of floats are those of integers once the bits below the sign are inverted in negative numbers: -0 lies
 * below +0, and nothing rounds. `limit` is infinity, or the number above which a magnitude is NaN. */
#define FLOAT_ORDER(bits, signed_type, unsigned_type)                                                                  \
    static inline signed_type key_##bits(unsigned_type value)                                                          \
    {                                                                                                                  \
        signed_type s = (signed_type)value;                                                                            \
        return (signed_type)(s ^ (signed_type)((unsigned_type)(s >> (bits - 1)) >> 1));                                \
    }                                                                                                                  \
    static inline unsigned_type min_float_##bits(unsigned_type a, unsigned_type b, unsigned_type limit,                \
                                                 unsigned_type nan)                                                    \
    {                                                                                                                  \
        const unsigned_type magnitude = (unsigned_type)((unsigned_type)-1 >> 1);                                       \
        unsigned_type least = key_##bits(a) < key_##bits(b) ? a : b;                                                   \
        return ((a & magnitude) > limit || (b & magnitude) > limit) ? nan : least;                                     \
    }                                                                                                                  \
    static inline unsigned_type max_float_##bits(unsigned_type a, unsigned_type b, unsigned_type limit,                \
                                                 unsigned_type nan)                                                    \
    {                                                                                                                  \
        const unsigned_type magnitude = (unsigned_type)((unsigned_type)-1 >> 1);                                       \
        unsigned_type most = key_##bits(a) > key_##bits(b) ? a : b;                                                    \
        return ((a & magnitude) > limit || (b & magnitude) > limit) ? nan : most;                                      \
    }
FLOAT_ORDER(8, int8_t, uint8_t)
FLOAT_ORDER(16, int16_t, uint16_t)
FLOAT_ORDER(32, int32_t, uint32_t)
FLOAT_ORDER(64, int64_t, uint64_t)

/* ---- Kernels of two sources ---- */

/* dst[i] = expression of a[i] and b[i], called x and y. */
#define PAIR_TO(name, result, element, expression)                                                                     \
    static void name(void *dst_bytes, const void *a_bytes, const void *b_bytes, size_t count)                          \
    {                                                                                                                  \
        result *dst = dst_bytes;                                                                                       \
        const element *a = a_bytes, *b = b_bytes;                                                                      \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++) {                                                                           \
            element x = a[i], y = b[i];                                                                                \
            dst[i] = (result)(expression);                                                                             \
        }                                                                                                              \
    }
#define PAIR(name, element, expression) PAIR_TO(name, element, element, expression)

/* The same in two places. */
#define PAIR_TO_TWO(name, element, expression)                                                                         \
    static void name(void *dst_bytes, void *also_bytes, const void *a_bytes, const void *b_bytes, size_t count)        \
    {                                                                                                                  \
        element *dst = dst_bytes, *also = also_bytes;                                                                  \
        const element *a = a_bytes, *b = b_bytes;                                                                      \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++) {                                                                           \
            element x = a[i], y = b[i];                                                                                \
            dst[i] = also[i] = (element)(expression);                                                                  \
        }                                                                                                              \
    }

/* Signed integers wrap as unsigned ones do; the 16-bit product is made in 32 bits, since uint16_t would become int. */
#define PAIR_BITS(width)                                                                                               \
    PAIR(sum_##width, u##width, x + y)                                                                                 \
    PAIR_TO_TWO(sum_to_two_##width, u##width, x + y)                                                                   \
    PAIR(product_##width, u##width, 1u * x * y)                                                                        \
    PAIR(band_##width, u##width, (x & y))                                                                              \
    PAIR(bor_##width, u##width, x | y)                                                                                 \
    PAIR(bxor_##width, u##width, x ^ y)                                                                                \
    PAIR(min_i##width, i##width, x < y ? x : y)                                                                        \
    PAIR(max_i##width, i##width, x > y ? x : y)                                                                        \
    PAIR(min_u##width, u##width, x < y ? x : y)                                                                        \
    PAIR(max_u##width, u##width, x > y ? x : y)
PAIR_BITS(8)
PAIR_BITS(16)
PAIR_BITS(32)
PAIR_BITS(64)

PAIR(or_bool, u8, (x | y) != 0)
PAIR(and_bool, u8, (x != 0) & (y != 0))
PAIR(xor_bool, u8, (x != 0) ^ (y != 0))

PAIR(sum_f32, f32, settle_f32(x + y))
PAIR_TO_TWO(sum_to_two_f32, f32, settle_f32(x + y))
PAIR(product_f32, f32, settle_f32(x *y))
PAIR(sum_f64, f64, settle_f64(x + y))
PAIR_TO_TWO(sum_to_two_f64, f64, settle_f64(x + y))
PAIR(product_f64, f64, settle_f64(x *y))

#define PAIR_ORDER(name, width, limit, nan)                                                                            \
    PAIR(min_##name, u##width, min_float_##width(x, y, limit, nan))                                                    \
    PAIR(max_##name, u##width, max_float_##width(x, y, limit, nan))
PAIR_ORDER(f16, 16, 0x7c00, 0x7e00)
PAIR_ORDER(bf16, 16, 0x7f80, 0x7fc0)
PAIR_ORDER(f32, 32, 0x7f800000u, 0x7fc00000u)
PAIR_ORDER(f64, 64, 0x7ff0000000000000u, 0x7ff8000000000000u)
PAIR_ORDER(f8e4m3, 8, 0x7e, 0x7f)
PAIR_ORDER(f8e5m2, 8, 0x7c, 0x7e)

/* Complex numbers: sums are those of twice as many reals. */
#define COMPLEX(name, real, settle, negate)                                                                            \
    static void sum_##name(void *dst, const void *a, const void *b, size_t count)                                      \
    {                                                                                                                  \
        sum_##real(dst, a, b, 2 * count);                                                                              \
    }                                                                                                                  \
    static void sum_to_two_##name(void *dst, void *also, const void *a, const void *b, size_t count)                   \
    {                                                                                                                  \
        sum_to_two_##real(dst, also, a, b, 2 * count);                                                                 \
    }                                                                                                                  \
    static void product_##name(void *dst_bytes, const void *a_bytes, const void *b_bytes, size_t count)                \
    {                                                                                                                  \
        real *dst = dst_bytes;                                                                                         \
        const real *a = a_bytes, *b = b_bytes;                                                                         \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++) {                                                                           \
            real ar = a[2 * i], ai = a[2 * i + 1], br = b[2 * i], bi = b[2 * i + 1];                                   \
            dst[2 * i] = settle(ar * br + negate(ai * bi));                                                            \
            dst[2 * i + 1] = settle(ar * bi + ai * br);                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static void premultiply_##name(void *dst_bytes, const void *src_bytes, size_t count, const void *factor)           \
    {                                                                                                                  \
        real *dst = dst_bytes;                                                                                         \
        const real *src = src_bytes;                                                                                   \
        const real fr = ((const real *)factor)[0], fi = ((const real *)factor)[1];                                     \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++) {                                                                           \
            real sr = src[2 * i], si = src[2 * i + 1];                                                                 \
            dst[2 * i] = settle(sr * fr + negate(si * fi));                                                            \
            dst[2 * i + 1] = settle(sr * fi + si * fr);                                                                \
        }                                                                                                              \
    }
COMPLEX(c64, f32, settle_f32, negate_f32)
COMPLEX(c128, f64, settle_f64, negate_f64)

/* ---- Factors and divisors ---- */

#define PREMULTIPLY(name, suffix, element, wide, finish)                                                               \
    static void premultiply_##name##suffix(void *dst_bytes, const void *src_bytes, size_t count, const void *factor)   \
    {                                                                                                                  \
        element *dst = dst_bytes;                                                                                      \
        const element *src = src_bytes;                                                                                \
        const wide y = (wide)widen_##name(*(const element *)factor);                                                   \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++)                                                                             \
            dst[i] = (element)finish((wide)widen_##name(src[i]) * y);                                                  \
    }
#define widen_8(value) (value)
#define widen_16(value) (value)
#define widen_32(value) (value)
#define widen_64(value) (value)
#define widen_f32(value) (value)
#define widen_f64(value) (value)
#define wrap(value) (value)
PREMULTIPLY(8, , u8, uint32_t, wrap)
PREMULTIPLY(16, , u16, uint32_t, wrap)
PREMULTIPLY(32, , u32, uint32_t, wrap)
PREMULTIPLY(64, , u64, uint64_t, wrap)
PREMULTIPLY(f32, , f32, float, settle_f32)
PREMULTIPLY(f64, , f64, double, settle_f64)

/* Dividing by a power of two is multiplying by its reciprocal, which is exact, and faster. */
#define DIVIDE(name, suffix, element, wide, finish)                                                                    \
    static void divide_##name##suffix(void *data_bytes, size_t count, int32_t divisor)                                 \
    {                                                                                                                  \
        element *data = data_bytes;                                                                                    \
        const wide y = (wide)divisor, reciprocal = 1 / y;                                                              \
        if ((divisor & (divisor - 1)) == 0) {                                                                          \
            INDEPENDENT                                                                                                \
            for (size_t i = 0; i < count; i++)                                                                         \
                data[i] = (element)finish((wide)widen_##name(data[i]) * reciprocal);                                   \
            return;                                                                                                    \
        }                                                                                                              \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++)                                                                             \
            data[i] = (element)finish((wide)widen_##name(data[i]) / y);                                                \
    }
DIVIDE(f32, , f32, float, settle_f32)
DIVIDE(f64, , f64, double, settle_f64)

static void divide_c64(void *data, size_t count, int32_t divisor)
{
    divide_f32(data, 2 * count, divisor);
}

static void divide_c128(void *data, size_t count, int32_t divisor)
{
    divide_f64(data, 2 * count, divisor);
}

/* ---- Sums in a wider type ---- */

#define WIDE_STEP(name, element, wide, expression)                                                                     \
    static void name(void *sum_bytes, const void *src_bytes, size_t count)                                             \
    {                                                                                                                  \
        wide *sum = sum_bytes;                                                                                         \
        const element *src = src_bytes;                                                                                \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++) {                                                                           \
            element x = src[i];                                                                                        \
            sum[i] = expression;                                                                                       \
        }                                                                                                              \
    }

#define WIDE_FINISH(name, element, wide, expression)                                                                   \
    static void finish_##name(void *dst_bytes, const void *sum_bytes, size_t count)                                    \
    {                                                                                                                  \
        element *dst = dst_bytes;                                                                                      \
        const wide *sum = sum_bytes;                                                                                   \
        INDEPENDENT                                                                                                    \
        for (size_t i = 0; i < count; i++)                                                                             \
            dst[i] = expression;                                                                                       \
    }

/* ---- 16- and 8-bit floats ---- */

/* With the machine's own conversions, in vectors; without, or for the rest that does not fill one, plain. */
#define SMALL(name, suffix, element)                                                                                   \
    PAIR(sum_##name##suffix, element, narrow_##name(widen_##name(x) + widen_##name(y)))                                \
    PAIR_TO_TWO(sum_to_two_##name##suffix, element, narrow_##name(widen_##name(x) + widen_##name(y)))                  \
    PAIR(product_##name##suffix, element, narrow_##name(widen_##name(x) * widen_##name(y)))                            \
    PREMULTIPLY(name, suffix, element, float, narrow_##name)                                                           \
    DIVIDE(name, suffix, element, float, narrow_##name)                                                                \
    PAIR_TO(sum_wide_##name##suffix, f32, element, widen_##name(x) + widen_##name(y))                                  \
    WIDE_STEP(start_##name##suffix, element, f32, widen_##name(x))                                                     \
    WIDE_STEP(add_##name##suffix, element, f32, sum[i] + widen_##name(x))                                              \
    WIDE_STEP(multiply_##name##suffix, element, f32, sum[i] * widen_##name(x))                                         \
    WIDE_FINISH(name##suffix, element, f32, narrow_##name(sum[i]))

#ifdef LANES
#define FULL_VECTORS for (; i + LANES <= count; i += LANES)
enum { PAIRS = 4, IN_PAIR = 2 * LANES };

#define LANES_PAIR(op, name, element, operator)                                                                        \
    static void op##_##name(void *dst_bytes, const void *a_bytes, const void *b_bytes, size_t count)                   \
    {                                                                                                                  \
        element *dst = dst_bytes;                                                                                      \
        const element *a = a_bytes, *b = b_bytes;                                                                      \
        size_t i = 0;                                                                                                  \
        FULL_VECTORS store_##name(dst + i, load_##name(a + i) operator load_##name(b + i));                            \
        op##_##name##_rest(dst + i, a + i, b + i, count - i);                                                          \
    }

/* Vectors two by two, four pairs of them at a time: all are loaded before the first is stored, which is a tenth faster
 * than pair by pair where another program runs on the core's other thread. Then pair by pair. */
#define EACH_PAIR for (int k = 0; k < PAIRS; k++)
#define OF_PAIRS(name, operator)                                                                                       \
    struct two_lanes result[PAIRS];                                                                                    \
    EACH_PAIR {                                                                                                        \
        const struct two_lanes x = load_two_##name(a + i + k * IN_PAIR), y = load_two_##name(b + i + k * IN_PAIR);     \
        result[k] = (struct two_lanes){ x.a operator y.a, x.b operator y.b };                                          \
    }

#define LANES_PAIR_OF_TWO(op, name, operator)                                                                          \
    static void op##_##name(void *dst_bytes, const void *a_bytes, const void *b_bytes, size_t count)                   \
    {                                                                                                                  \
        u16 *dst = dst_bytes;                                                                                          \
        const u16 *a = a_bytes, *b = b_bytes;                                                                          \
        size_t i = 0;                                                                                                  \
        for (; i + PAIRS * IN_PAIR <= count; i += PAIRS * IN_PAIR) {                                                   \
            OF_PAIRS(name, operator)                                                                                   \
            EACH_PAIR store_two_##name(dst + i + k * IN_PAIR, result[k]);                                              \
        }                                                                                                              \
        for (; i + IN_PAIR <= count; i += IN_PAIR) {                                                                   \
            const struct two_lanes x = load_two_##name(a + i), y = load_two_##name(b + i);                             \
            store_two_##name(dst + i, (struct two_lanes){ x.a operator y.a, x.b operator y.b });                       \
        }                                                                                                              \
        FULL_VECTORS store_##name(dst + i, load_##name(a + i) operator load_##name(b + i));                            \
        op##_##name##_rest(dst + i, a + i, b + i, count - i);                                                          \
    }

#define LANES_SUM_TO_TWO(name)                                                                                         \
    static void sum_to_two_##name(void *dst_bytes, void *also_bytes, const void *a_bytes, const void *b_bytes,         \
                                  size_t count)                                                                        \
    {                                                                                                                  \
        u8 *dst = dst_bytes, *also = also_bytes;                                                                       \
        const u8 *a = a_bytes, *b = b_bytes;                                                                           \
        size_t i = 0;                                                                                                  \
        FULL_VECTORS {                                                                                                 \
            const lanes sum = load_##name(a + i) + load_##name(b + i);                                                 \
            store_##name(dst + i, sum);                                                                                \
            store_##name(also + i, sum);                                                                               \
        }                                                                                                              \
        sum_to_two_##name##_rest(dst + i, also + i, a + i, b + i, count - i);                                          \
    }

#define LANES_SUM_OF_TWO_TO_TWO(name)                                                                                  \
    static void sum_to_two_##name(void *dst_bytes, void *also_bytes, const void *a_bytes, const void *b_bytes,         \
                                  size_t count)                                                                        \
    {                                                                                                                  \
        u16 *dst = dst_bytes, *also = also_bytes;                                                                      \
        const u16 *a = a_bytes, *b = b_bytes;                                                                          \
        size_t i = 0;                                                                                                  \
        for (; i + PAIRS * IN_PAIR <= count; i += PAIRS * IN_PAIR) {                                                   \
            OF_PAIRS(name, +)                                                                                          \
            EACH_PAIR {                                                                                                \
                store_two_##name(dst + i + k * IN_PAIR, result[k]);                                                    \
                store_two_##name(also + i + k * IN_PAIR, result[k]);                                                   \
            }                                                                                                          \
        }                                                                                                              \
        for (; i + IN_PAIR <= count; i += IN_PAIR) {                                                                   \
            const struct two_lanes x = load_two_##name(a + i), y = load_two_##name(b + i);                             \
            const struct two_lanes sum = { x.a + y.a, x.b + y.b };                                                     \
            store_two_##name(dst + i, sum);                                                                            \
            store_two_##name(also + i, sum);                                                                           \
        }                                                                                                              \
        sum_to_two_##name##_rest(dst + i, also + i, a + i, b + i, count - i);                                          \
    }

#define LANES_STEP(op, name, element, expression)                                                                      \
    static void op##_##name(void *sum_bytes, const void *src_bytes, size_t count)                                      \
    {                                                                                                                  \
        f32 *sum = sum_bytes;                                                                                          \
        const element *src = src_bytes;                                                                                \
        size_t i = 0;                                                                                                  \
        FULL_VECTORS lanes_store(sum + i, expression);                                                                 \
        op##_##name##_rest(sum + i, src + i, count - i);                                                               \
    }

#define LANES_WIDE_PAIR(name, element)                                                                                 \
    static void sum_wide_##name(void *sum_bytes, const void *a_bytes, const void *b_bytes, size_t count)               \
    {                                                                                                                  \
        f32 *sum = sum_bytes;                                                                                          \
        const element *a = a_bytes, *b = b_bytes;                                                                      \
        size_t i = 0;                                                                                                  \
        FULL_VECTORS lanes_store(sum + i, load_##name(a + i) + load_##name(b + i));                                    \
        sum_wide_##name##_rest(sum + i, a + i, b + i, count - i);                                                      \
    }

#define LANES_SMALL(name, element)                                                                                     \
    LANES_PAIR(sum, name, element, +)                                                                                  \
    LANES_PAIR(product, name, element, *)                                                                              \
    LANES_OTHERS(name, element)

#define LANES_OTHERS(name, element)                                                                                    \
    LANES_WIDE_PAIR(name, element)                                                                                     \
    LANES_STEP(start, name, element, load_##name(src + i))                                                             \
    LANES_STEP(add, name, element, lanes_load(sum + i) + load_##name(src + i))                                         \
    LANES_STEP(multiply, name, element, lanes_load(sum + i) * load_##name(src + i))                                    \
    static void finish_##name(void *dst_bytes, const void *sum_bytes, size_t count)                                    \
    {                                                                                                                  \
        element *dst = dst_bytes;                                                                                      \
        const f32 *sum = sum_bytes;                                                                                    \
        size_t i = 0;                                                                                                  \
        FULL_VECTORS store_##name(dst + i, lanes_load(sum + i));                                                       \
        finish_##name##_rest(dst + i, sum + i, count - i);                                                             \
    }                                                                                                                  \
    static void premultiply_##name(void *dst_bytes, const void *src_bytes, size_t count, const void *factor)           \
    {                                                                                                                  \
        element *dst = dst_bytes;                                                                                      \
        const element *src = src_bytes;                                                                                \
        const lanes y = lanes_all(widen_##name(*(const element *)factor));                                             \
        size_t i = 0;                                                                                                  \
        FULL_VECTORS store_##name(dst + i, load_##name(src + i) * y);                                                  \
        premultiply_##name##_rest(dst + i, src + i, count - i, factor);                                                \
    }                                                                                                                  \
    static void divide_##name(void *data_bytes, size_t count, int32_t divisor)                                         \
    {                                                                                                                  \
        element *data = data_bytes;                                                                                    \
        const lanes y = lanes_all((float)divisor);                                                                     \
        size_t i = 0;                                                                                                  \
        FULL_VECTORS store_##name(data + i, load_##name(data + i) / y);                                                \
        divide_##name##_rest(data + i, count - i, divisor);                                                            \
    }
SMALL(f16, _rest, u16)
SMALL(bf16, _rest, u16)
SMALL(f8e4m3, _rest, u8)
SMALL(f8e5m2, _rest, u8)
LANES_PAIR_OF_TWO(sum, f16, +)
LANES_PAIR_OF_TWO(product, f16, *)
LANES_SUM_OF_TWO_TO_TWO(f16)
LANES_OTHERS(f16, u16)
LANES_PAIR_OF_TWO(sum, bf16, +)
LANES_PAIR_OF_TWO(product, bf16, *)
LANES_SUM_OF_TWO_TO_TWO(bf16)
LANES_OTHERS(bf16, u16)
LANES_SMALL(f8e4m3, u8)
LANES_SMALL(f8e5m2, u8)
LANES_SUM_TO_TWO(f8e4m3)
LANES_SUM_TO_TWO(f8e5m2)
#else
SMALL(f16, , u16)
SMALL(bf16, , u16)
SMALL(f8e4m3, , u8)
SMALL(f8e5m2, , u8)
#endif

/* ---- Sums of many sources ---- */

/* All sources side by side, four registers of each at a time, so that no partial sum is stored. In the order of the
 * sources, and with the same roundings as above. `divisor` is that of AVG, or 1. dst may be one of the sources. */
#ifndef REDUCE_ONE_BY_ONE
#if defined(__AVX512F__)
#define REGISTER_BYTES 64
#elif defined(__AVX2__)
#define REGISTER_BYTES 32
#else
#define REGISTER_BYTES 16
#endif

#define REGISTER(name, type)                                                                                           \
    typedef type register_##name __attribute__((vector_size(REGISTER_BYTES)));                                         \
    typedef register_##name stored_##name __attribute__((aligned(1), may_alias));                                      \
    enum { IN_##name = REGISTER_BYTES / sizeof(type) };                                                                \
    static inline register_##name load_##name(const void *src)                                                         \
    {                                                                                                                  \
        return *(const stored_##name *)src;                                                                            \
    }
#define REGISTER_OF_INTEGERS(name, type)                                                                               \
    REGISTER(name, type)                                                                                               \
    static inline void store_##name(void *dst, register_##name value)                                                  \
    {                                                                                                                  \
        *(stored_##name *)dst = value;                                                                                 \
    }
#define REGISTER_OF_FLOATS(name, type, bits, nan)                                                                      \
    REGISTER(name, type)                                                                                               \
    static inline void store_##name(void *dst, register_##name value)                                                  \
    {                                                                                                                  \
        const register_##bits is_number = (register_##bits)(value == value);                                           \
        store_##bits(dst, ((register_##bits)value & is_number) | (nan & ~is_number));                                  \
    }
REGISTER_OF_INTEGERS(8, uint8_t)
REGISTER_OF_INTEGERS(16, uint16_t)
REGISTER_OF_INTEGERS(32, uint32_t)
REGISTER_OF_INTEGERS(64, uint64_t)
REGISTER_OF_FLOATS(f32, float, 32, 0x7fc00000u)
REGISTER_OF_FLOATS(f64, double, 64, 0x7ff8000000000000u)
#define narrow_8(value) (value)
#define narrow_16(value) (value)
#define narrow_32(value) (value)
#define narrow_64(value) (value)
#define narrow_f32(value) settle_f32(value)
#define narrow_f64(value) settle_f64(value)

/* Of a number or a register. An AVG of integers is not made here. */
#define WHOLE(value) (value)
#define QUOTIENT(value) (divisor == 1 ? (value) : divisor & (divisor - 1) ? (value) / y : (value)*reciprocal)

/* What does not fill so many registers: one at a time, then numbers. */
#define SUMS_REST(name, element, wide, in_register, quotient)                                                          \
    static void sums_rest_##name(element *dst, const void *const *sources, size_t source_count, size_t i,              \
                                 size_t count, int32_t divisor)                                                        \
    {                                                                                                                  \
        const element *first = sources[0];                                                                             \
        const wide y = (wide)divisor, reciprocal = 1 / y;                                                              \
        (void)reciprocal;                                                                                              \
        for (; i + IN_##name <= count; i += IN_##name) {                                                               \
            in_register sum = load_##name(first + i);                                                                  \
            for (size_t s = 1; s < source_count; s++)                                                                  \
                sum += load_##name((const element *)sources[s] + i);                                                   \
            store_##name(dst + i, quotient(sum));                                                                      \
        }                                                                                                              \
        for (; i < count; i++) {                                                                                       \
            wide sum = widen_##name(first[i]);                                                                         \
            for (size_t s = 1; s < source_count; s++)                                                                  \
                sum = (wide)(sum + widen_##name(((const element *)sources[s])[i]));                                    \
            dst[i] = narrow_##name(quotient(sum));                                                                     \
        }                                                                                                              \
    }

#define SUMS(name, element, wide, in_register, quotient)                                                               \
    SUMS_REST(name, element, wide, in_register, quotient)                                                              \
    static void sums_##name(void *dst_bytes, const void *const *sources, size_t source_count, size_t count,            \
                            int32_t divisor)                                                                           \
    {                                                                                                                  \
        const size_t in_one = IN_##name;                                                                               \
        element *dst = dst_bytes;                                                                                      \
        const element *first = sources[0];                                                                             \
        const wide y = (wide)divisor, reciprocal = 1 / y;                                                              \
        size_t i = 0;                                                                                                  \
        (void)reciprocal;                                                                                              \
        for (; i + 4 * in_one <= count; i += 4 * in_one) {                                                             \
            const element *src = first + i;                                                                            \
            in_register a = load_##name(src), b = load_##name(src + in_one), c = load_##name(src + 2 * in_one),        \
                        d = load_##name(src + 3 * in_one);                                                             \
            for (size_t s = 1; s < source_count; s++) {                                                                \
                src = (const element *)sources[s] + i;                                                                 \
                a += load_##name(src);                                                                                 \
                b += load_##name(src + in_one);                                                                        \
                c += load_##name(src + 2 * in_one);                                                                    \
                d += load_##name(src + 3 * in_one);                                                                    \
            }                                                                                                          \
            store_##name(dst + i, quotient(a));                                                                        \
            store_##name(dst + i + in_one, quotient(b));                                                               \
            store_##name(dst + i + 2 * in_one, quotient(c));                                                           \
            store_##name(dst + i + 3 * in_one, quotient(d));                                                           \
        }                                                                                                              \
        sums_rest_##name(dst, sources, source_count, i, count, divisor);                                               \
    }

SUMS(8, u8, uint8_t, register_8, WHOLE)
SUMS(16, u16, uint16_t, register_16, WHOLE)
SUMS(32, u32, uint32_t, register_32, WHOLE)
SUMS(64, u64, uint64_t, register_64, WHOLE)
SUMS(f32, f32, float, register_f32, QUOTIENT)
SUMS(f64, f64, double, register_f64, QUOTIENT)

static void sums_c64(void *dst, const void *const *sources, size_t source_count, size_t count, int32_t divisor)
{
    sums_f32(dst, sources, source_count, 2 * count, divisor);
}

static void sums_c128(void *dst, const void *const *sources, size_t source_count, size_t count, int32_t divisor)
{
    sums_f64(dst, sources, source_count, 2 * count, divisor);
}

#ifdef LANES
enum { IN_f16 = LANES, IN_bf16 = LANES }; /* 8-bit floats take as long to round; in blocks they are a little faster */

/* Eight vectors of each source at a time, two by two: as many bytes as four registers hold. */
#define SUMS_OF_TWO(name)                                                                                              \
    SUMS_REST(name, u16, float, lanes, QUOTIENT)                                                                       \
    static void sums_##name(void *dst_bytes, const void *const *sources, size_t source_count, size_t count,            \
                            int32_t divisor)                                                                           \
    {                                                                                                                  \
        u16 *dst = dst_bytes;                                                                                          \
        const float y = (float)divisor, reciprocal = 1 / y;                                                            \
        size_t i = 0;                                                                                                  \
        for (; i + PAIRS * IN_PAIR <= count; i += PAIRS * IN_PAIR) {                                                   \
            struct two_lanes sum[PAIRS];                                                                               \
            for (int k = 0; k < PAIRS; k++)                                                                            \
                sum[k] = load_two_##name((const u16 *)sources[0] + i + k * IN_PAIR);                                   \
            for (size_t s = 1; s < source_count; s++)                                                                  \
                for (int k = 0; k < PAIRS; k++) {                                                                      \
                    const struct two_lanes x = load_two_##name((const u16 *)sources[s] + i + k * IN_PAIR);             \
                    sum[k].a += x.a;                                                                                   \
                    sum[k].b += x.b;                                                                                   \
                }                                                                                                      \
            for (int k = 0; k < PAIRS; k++)                                                                            \
                store_two_##name(dst + i + k * IN_PAIR,                                                                \
                                 (struct two_lanes){ QUOTIENT(sum[k].a), QUOTIENT(sum[k].b) });                        \
        }                                                                                                              \
        sums_rest_##name(dst, sources, source_count, i, count, divisor);                                               \
    }
SUMS_OF_TWO(f16)
SUMS_OF_TWO(bf16)
#define SUMS_OF_FLOATS                                                                                                 \
    [COMM_DTYPE_F16] = sums_f16, [COMM_DTYPE_BF16] = sums_bf16, [COMM_DTYPE_F32] = sums_f32,                           \
    [COMM_DTYPE_F64] = sums_f64
#else
#define SUMS_OF_FLOATS [COMM_DTYPE_F32] = sums_f32, [COMM_DTYPE_F64] = sums_f64
#endif
#endif

/* ---- AVG of integers ---- */

/* AVG of integers. A double holds every sum of 2^20 32-bit integers, and such a sum divided by at most 2^20 never
 * rounds up to the next integer; so dividing and then cutting off the fraction gives the exact quotient, in vector
 * registers. */
#define WIDE_INTEGER(name, element)                                                                                    \
    WIDE_STEP(start_##name, element, f64, (double)x)                                                                   \
    WIDE_STEP(add_##name, element, f64, sum[i] + (double)x)                                                            \
    WIDE_FINISH(name, element, f64, (element)sum[i])
WIDE_INTEGER(i8, i8)
WIDE_INTEGER(u8, u8)
WIDE_INTEGER(i16, i16)
WIDE_INTEGER(u16, u16)
WIDE_INTEGER(i32, i32)
WIDE_INTEGER(u32, u32)

__extension__ typedef __int128 int128;

#define AVERAGE_64(name)                                                                                               \
    static void average_##name(void *dst_bytes, const void *const *sources, size_t source_count, size_t count)         \
    {                                                                                                                  \
        name *dst = dst_bytes;                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            int128 sum = 0;                                                                                            \
            for (size_t s = 0; s < source_count; s++)                                                                  \
                sum += ((const name *)sources[s])[i];                                                                  \
            dst[i] = (name)(sum / (int128)source_count);                                                               \
        }                                                                                                              \
    }
AVERAGE_64(i64)
AVERAGE_64(u64)

/* ---- The table ---- */

#define INTEGER_ROW(op)                                                                                                \
    [COMM_DTYPE_I8] = op##_8, [COMM_DTYPE_U8] = op##_8, [COMM_DTYPE_I16] = op##_16, [COMM_DTYPE_U16] = op##_16,        \
    [COMM_DTYPE_I32] = op##_32, [COMM_DTYPE_U32] = op##_32, [COMM_DTYPE_I64] = op##_64, [COMM_DTYPE_U64] = op##_64
#define SMALL_ROW(op)                                                                                                  \
    [COMM_DTYPE_F16] = op##_f16, [COMM_DTYPE_BF16] = op##_bf16, [COMM_DTYPE_F8E4M3] = op##_f8e4m3,                     \
    [COMM_DTYPE_F8E5M2] = op##_f8e5m2
#define FLOAT_ROW(op) SMALL_ROW(op), [COMM_DTYPE_F32] = op##_f32, [COMM_DTYPE_F64] = op##_f64
#define COMPLEX_ROW(op) [COMM_DTYPE_C64] = op##_c64, [COMM_DTYPE_C128] = op##_c128
#define SHORT_INTEGER_ROW(op)                                                                                          \
    [COMM_DTYPE_I8] = op##_i8, [COMM_DTYPE_U8] = op##_u8, [COMM_DTYPE_I16] = op##_i16, [COMM_DTYPE_U16] = op##_u16,    \
    [COMM_DTYPE_I32] = op##_i32, [COMM_DTYPE_U32] = op##_u32
#define ORDERED_ROW(op) SHORT_INTEGER_ROW(op), [COMM_DTYPE_I64] = op##_i64, [COMM_DTYPE_U64] = op##_u64, FLOAT_ROW(op)

#define VARIANT PASTE(comm__reduce_, REDUCE_VARIANT)
extern const struct reduce_variant VARIANT;
const struct reduce_variant VARIANT = {
    .name = TEXT(REDUCE_VARIANT),
    .pairs = {
        [COMM_REDOP_SUM] = { INTEGER_ROW(sum), FLOAT_ROW(sum), COMPLEX_ROW(sum), [COMM_DTYPE_BOOL] = or_bool },
        [COMM_REDOP_AVG] = { INTEGER_ROW(sum), FLOAT_ROW(sum), COMPLEX_ROW(sum) },
        [COMM_REDOP_PRODUCT] = { INTEGER_ROW(product), FLOAT_ROW(product), COMPLEX_ROW(product),
                           [COMM_DTYPE_BOOL] = and_bool },
        [COMM_REDOP_MIN] = { ORDERED_ROW(min), [COMM_DTYPE_BOOL] = and_bool },
        [COMM_REDOP_MAX] = { ORDERED_ROW(max), [COMM_DTYPE_BOOL] = or_bool },
        [COMM_REDOP_BAND] = { INTEGER_ROW(band), [COMM_DTYPE_BOOL] = and_bool },
        [COMM_REDOP_BOR] = { INTEGER_ROW(bor), [COMM_DTYPE_BOOL] = or_bool },
        [COMM_REDOP_BXOR] = { INTEGER_ROW(bxor), [COMM_DTYPE_BOOL] = xor_bool },
        [COMM_REDOP_PREMUL_SUM] = { INTEGER_ROW(sum), FLOAT_ROW(sum), COMPLEX_ROW(sum) },
    },
    .sum_to_two = { INTEGER_ROW(sum_to_two), FLOAT_ROW(sum_to_two), COMPLEX_ROW(sum_to_two) },
    .sum_wide = { SMALL_ROW(sum_wide) },
#ifndef REDUCE_ONE_BY_ONE
    .sums = { INTEGER_ROW(sums), SUMS_OF_FLOATS, COMPLEX_ROW(sums) },
#endif
    .premultiply = { INTEGER_ROW(premultiply), FLOAT_ROW(premultiply), COMPLEX_ROW(premultiply) },
    .divide = { FLOAT_ROW(divide), COMPLEX_ROW(divide) },
    .widen = { SHORT_INTEGER_ROW(start), SMALL_ROW(start) },
    .add = { SHORT_INTEGER_ROW(add), SMALL_ROW(add) },
    .multiply = { SMALL_ROW(multiply) },
    .narrow = { SHORT_INTEGER_ROW(finish), SMALL_ROW(finish) },
    .average = { [COMM_DTYPE_I64] = average_i64, [COMM_DTYPE_U64] = average_u64 },
};

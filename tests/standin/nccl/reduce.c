/* NCCL's arithmetic: integers wrap, small floats are rounded after each step, an average of floats is a sum of the
 * inputs times 1/ranks, and one of integers a sum that is divided at the end. */
#include <math.h>
#include <string.h>

#include "comm.h"

/* A float of 1 sign bit, `exponent` bits and `mantissa` bits. */
struct format {
    int exponent, mantissa;
    float most; /* rounding stops here; 0: at infinity */
};
static const struct format half = {5, 10, 0}, brain = {8, 7, 0}, e4m3 = {4, 3, 448}, e5m2 = {5, 2, 57344};

static float decode(uint32_t bits, struct format format)
{
    int bias = (1 << (format.exponent - 1)) - 1;
    uint32_t mantissa = bits & ((1u << format.mantissa) - 1);
    int exponent = (int)(bits >> format.mantissa & ((1u << format.exponent) - 1));
    bool negative = bits >> (format.exponent + format.mantissa) & 1;
    float value;
    bool is_top = exponent == (1 << format.exponent) - 1;
    if (format.exponent == 4 ? is_top && mantissa == 7 : is_top && mantissa)
        value = NAN;
    else if (is_top && format.exponent != 4)
        value = INFINITY;
    else if (exponent)
        value = ldexpf((float)(mantissa | 1u << format.mantissa), exponent - bias - format.mantissa);
    else
        value = ldexpf((float)mantissa, 1 - bias - format.mantissa);
    return negative ? -value : value;
}

/* To the nearest, halves to even. */
static uint32_t encode(float value, struct format format)
{
    int bias = (1 << (format.exponent - 1)) - 1;
    uint32_t sign = (uint32_t)(signbit(value) != 0) << (format.exponent + format.mantissa);
    uint32_t top = ((1u << format.exponent) - 1) << format.mantissa;
    float size = fabsf(value);
    if (isnan(value))
        return sign | top | ((1u << format.mantissa) - 1);
    if (format.most != 0 && size > format.most)
        size = format.most;
    if (isinf(size))
        return sign | top;
    if (size == 0)
        return sign;
    int exponent;
    frexpf(size, &exponent); /* size is in [2^(exponent-1), 2^exponent) */
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    uint32_t steps = (uint32_t)rintf(ldexpf(size, format.mantissa - exponent));
    uint32_t bits = steps + ((uint32_t)(exponent + bias - 1) << format.mantissa);
    if (exponent == 1 - bias && steps < 1u << format.mantissa)
        bits = steps;
    if (format.exponent != 4 && bits >= top)
        bits = format.most != 0 ? top - 1 : top;
    return sign | bits;
}

static const struct format *format_of(nccl_type type)
{
    switch (type) {
    case NCCL_F16:
        return &half;
    case NCCL_BF16:
        return &brain;
    case NCCL_F8E4M3:
        return &e4m3;
    default:
        return &e5m2;
    }
}

/* One-byte floats are calculated as halves. */
static uint32_t round_to(float value, nccl_type type)
{
    if (type == NCCL_F8E4M3 || type == NCCL_F8E5M2)
        value = decode(encode(value, half), half);
    return encode(value, *format_of(type));
}

static float load_small(const void *at, size_t i, nccl_type type)
{
    return decode(type_bytes(type) == 2 ? ((const uint16_t *)at)[i] : ((const uint8_t *)at)[i], *format_of(type));
}

static void store_small(void *at, size_t i, nccl_type type, float value)
{
    if (type_bytes(type) == 2)
        ((uint16_t *)at)[i] = (uint16_t)round_to(value, type);
    else
        ((uint8_t *)at)[i] = (uint8_t)round_to(value, type);
}

static double combine(nccl_redop redop, double a, double b)
{
    switch (redop) {
    case NCCL_PRODUCT:
        return a * b;
    case NCCL_MAX:
        return fmax(a, b);
    case NCCL_MIN:
        return fmin(a, b);
    default:
        return a + b;
    }
}

/* `wide` is an unsigned type in which sums and products wrap. */
#define INTEGER(name, type, wide)                                                         \
    static void step_##name(nccl_redop redop, type *into, const type *from, size_t count) \
    {                                                                                     \
        for (size_t i = 0; i < count; i++) {                                              \
            type a = into[i], b = from[i];                                                \
            into[i] = redop == NCCL_PRODUCT ? (type)((wide)a * (wide)b)                   \
                      : redop == NCCL_MAX   ? (a > b ? a : b)                             \
                      : redop == NCCL_MIN   ? (a < b ? a : b)                             \
                                            : (type)((wide)a + (wide)b);                    \
        }                                                                                 \
    }                                                                                     \
    static void divide_##name(type *at, int size, size_t count)                           \
    {                                                                                     \
        for (size_t i = 0; i < count; i++)                                                \
            at[i] = (type)(at[i] / (type)size);                                           \
    }                                                                                     \
    static void scale_##name(type *into, const type *from, uint64_t scalar, size_t count) \
    {                                                                                     \
        type factor;                                                                      \
        memcpy(&factor, &scalar, sizeof factor);                                          \
        for (size_t i = 0; i < count; i++)                                                \
            into[i] = (type)((wide)from[i] * (wide)factor);                               \
    }
INTEGER(i8, int8_t, uint32_t)
INTEGER(u8, uint8_t, uint32_t)
INTEGER(i32, int32_t, uint32_t)
INTEGER(u32, uint32_t, uint32_t)
INTEGER(i64, int64_t, uint64_t)
INTEGER(u64, uint64_t, uint64_t)
#undef INTEGER

static void step_f32(nccl_redop redop, float *into, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        into[i] = redop == NCCL_PRODUCT ? into[i] * from[i]
                  : redop == NCCL_MAX   ? fmaxf(into[i], from[i])
                  : redop == NCCL_MIN   ? fminf(into[i], from[i])
                                        : into[i] + from[i];
}

static void step_f64(nccl_redop redop, double *into, const double *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        into[i] = combine(redop, into[i], from[i]);
}

void reduce_step(const struct task *task, void *into, const void *from, size_t count)
{
    nccl_redop redop = task->what.redop;
    switch (task->what.type) {
    case NCCL_I8:
        step_i8(redop, into, from, count);
        break;
    case NCCL_U8:
        step_u8(redop, into, from, count);
        break;
    case NCCL_I32:
        step_i32(redop, into, from, count);
        break;
    case NCCL_U32:
        step_u32(redop, into, from, count);
        break;
    case NCCL_I64:
        step_i64(redop, into, from, count);
        break;
    case NCCL_U64:
        step_u64(redop, into, from, count);
        break;
    case NCCL_F32:
        step_f32(redop, into, from, count);
        break;
    case NCCL_F64:
        step_f64(redop, into, from, count);
        break;
    default:
        for (size_t i = 0; i < count; i++)
            store_small(
                into, i, task->what.type,
                (float)combine(redop, load_small(into, i, task->what.type), load_small(from, i, task->what.type)));
    }
}

static bool is_integer(nccl_type type)
{
    return type <= NCCL_U64;
}

/* The factor as the bytes of the type. */
static uint64_t factor_of(const struct task *task, int size)
{
    uint64_t bytes = task->premul.scalar;
    if (task->what.redop == REDOP_PREMUL) {
        if (task->premul.on_device)
            memcpy(&bytes, standin_view(task->premul.pointer), type_bytes(task->what.type));
    } else if (task->what.type == NCCL_F64) {
        double factor = 1.0 / size;
        memcpy(&bytes, &factor, sizeof factor);
    } else if (task->what.type == NCCL_F32) {
        float factor = 1.0f / (float)size;
        memcpy(&bytes, &factor, sizeof factor);
    } else {
        store_small(&bytes, 0, task->what.type, 1.0f / (float)size);
    }
    return bytes;
}

static void scale(nccl_type type, void *into, const void *from, uint64_t factor, size_t count)
{
    float single;
    double wide;
    memcpy(&single, &factor, sizeof single);
    memcpy(&wide, &factor, sizeof wide);
    switch (type) {
    case NCCL_I8:
        scale_i8(into, from, factor, count);
        break;
    case NCCL_U8:
        scale_u8(into, from, factor, count);
        break;
    case NCCL_I32:
        scale_i32(into, from, factor, count);
        break;
    case NCCL_U32:
        scale_u32(into, from, factor, count);
        break;
    case NCCL_I64:
        scale_i64(into, from, factor, count);
        break;
    case NCCL_U64:
        scale_u64(into, from, factor, count);
        break;
    case NCCL_F32:
        for (size_t i = 0; i < count; i++)
            ((float *)into)[i] = ((const float *)from)[i] * single;
        break;
    case NCCL_F64:
        for (size_t i = 0; i < count; i++)
            ((double *)into)[i] = ((const double *)from)[i] * wide;
        break;
    default:
        for (size_t i = 0; i < count; i++)
            store_small(into, i, type, load_small(from, i, type) * load_small(&factor, 0, type));
    }
}

void reduce_begin(const struct task *task, int size, void *into, const void *from, size_t count)
{
    bool averages = task->what.redop == NCCL_AVG && !is_integer(task->what.type);
    if (averages || task->what.redop == REDOP_PREMUL)
        scale(task->what.type, into, from, factor_of(task, size), count);
    else
        memcpy(into, from, count * type_bytes(task->what.type));
}

void reduce_end(const struct task *task, int size, void *into, size_t count)
{
    if (task->what.redop != NCCL_AVG)
        return;
    switch (task->what.type) {
    case NCCL_I8:
        divide_i8(into, size, count);
        break;
    case NCCL_U8:
        divide_u8(into, size, count);
        break;
    case NCCL_I32:
        divide_i32(into, size, count);
        break;
    case NCCL_U32:
        divide_u32(into, size, count);
        break;
    case NCCL_I64:
        divide_i64(into, size, count);
        break;
    case NCCL_U64:
        divide_u64(into, size, count);
        break;
    default:
        break;
    }
}

/* Independent of core/reduce.c: it is part of what is tested. */
#include "values.h"

#include <math.h>
#include <string.h>

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint32_t x = a * 0x9e3779b1u ^ (b + 0x85ebca6bu);
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    return x ^ x >> 13;
}

double value_of(comm_redop redop, comm_dtype dtype, int32_t rank, int32_t size, size_t i)
{
    uint32_t random = mix((uint32_t)rank + 1, (uint32_t)i);
    if (dtype == COMM_DTYPE_BOOL)
        return redop == COMM_REDOP_PRODUCT || redop == COMM_REDOP_MIN || redop == COMM_REDOP_BAND ? random % 8 != 0
                                                                                                  : random % 4 == 0;
    switch (redop) {
    case COMM_REDOP_AVG: {
        /* The average is 2 + i % 2 exactly: two ranks chosen by i move apart by one. */
        int32_t more = (int32_t)(i % (size_t)size), less = (int32_t)((i + 1) % (size_t)size);
        return 2 + (double)(i % 2) + (rank == more) - (rank == less);
    }
    case COMM_REDOP_PRODUCT:
        return rank == (int32_t)(i % (size_t)size) ? 3 : rank % 4 == 1 ? 2 : 1;
    case COMM_REDOP_SUM:
    case COMM_REDOP_PREMUL_SUM:
        return random % 2;
    default:
        return random % 8; /* MIN MAX and the bitwise ones do not grow */
    }
}

double value_factor(comm_dtype dtype, int32_t rank)
{
    int narrow = dtype == COMM_DTYPE_F8E4M3 || dtype == COMM_DTYPE_F8E5M2;
    return narrow ? 1 + (rank == 0) : 1 + rank % 3;
}

static double combine(comm_redop redop, double a, double b)
{
    int64_t x = (int64_t)a, y = (int64_t)b;
    switch (redop) {
    case COMM_REDOP_PRODUCT:
        return a * b;
    case COMM_REDOP_MIN:
        return a < b ? a : b;
    case COMM_REDOP_MAX:
        return a > b ? a : b;
    case COMM_REDOP_BAND:
        return (double)(x & y);
    case COMM_REDOP_BOR:
        return (double)(x | y);
    case COMM_REDOP_BXOR:
        return (double)(x ^ y);
    default:
        return a + b;
    }
}

double value_reduced(comm_redop redop, comm_dtype dtype, int32_t size, size_t i)
{
    double result = 0;
    for (int32_t r = 0; r < size; r++) {
        double value = value_of(redop, dtype, r, size, i);
        if (redop == COMM_REDOP_PREMUL_SUM)
            value *= value_factor(dtype, r);
        result = r == 0 ? value : combine(redop, result, value);
    }
    if (redop == COMM_REDOP_AVG)
        result /= size;
    return dtype == COMM_DTYPE_BOOL ? result != 0 : result;
}

/* An IEEE-like float of any width, for values it holds exactly or to nearest even. */
static uint32_t small_float(double value, int exponent_bits, int mantissa_bits)
{
    if (value == 0)
        return 0;
    int exponent, bias = (1 << (exponent_bits - 1)) - 1;
    double fraction = frexp(value, &exponent); /* 0.5 <= fraction < 1 */
    long mantissa = lrint(ldexp(fraction * 2 - 1, mantissa_bits));
    return (uint32_t)((exponent - 1 + bias) << mantissa_bits) + (uint32_t)mantissa; /* a carry goes into the exponent */
}

#define WRITE(type)                                                                                                    \
    do {                                                                                                               \
        type typed = (type)value;                                                                                      \
        memcpy(element, &typed, sizeof typed);                                                                         \
    } while (0)

void value_write(comm_dtype dtype, double value, void *element)
{
    memset(element, 0, comm_dtype_bytes(dtype));
    switch (dtype) {
    case COMM_DTYPE_I16:
        WRITE(int16_t);
        break;
    case COMM_DTYPE_U16:
        WRITE(uint16_t);
        break;
    case COMM_DTYPE_I32:
        WRITE(int32_t);
        break;
    case COMM_DTYPE_U32:
        WRITE(uint32_t);
        break;
    case COMM_DTYPE_I64:
        WRITE(int64_t);
        break;
    case COMM_DTYPE_U64:
        WRITE(uint64_t);
        break;
    case COMM_DTYPE_F32:
    case COMM_DTYPE_C64:
        WRITE(float);
        break;
    case COMM_DTYPE_F64:
    case COMM_DTYPE_C128:
        WRITE(double);
        break;
    case COMM_DTYPE_F16: {
        uint16_t bits = (uint16_t)small_float(value, 5, 10);
        memcpy(element, &bits, sizeof bits);
        break;
    }
    case COMM_DTYPE_BF16: {
        uint16_t bits = (uint16_t)small_float(value, 8, 7);
        memcpy(element, &bits, sizeof bits);
        break;
    }
    case COMM_DTYPE_F8E4M3:
        *(uint8_t *)element = (uint8_t)small_float(value, 4, 3);
        break;
    case COMM_DTYPE_F8E5M2:
        *(uint8_t *)element = (uint8_t)small_float(value, 5, 2);
        break;
    default:
        WRITE(uint8_t);
        break;
    }
}

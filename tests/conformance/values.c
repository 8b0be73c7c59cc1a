/* Independent of core/reduce.c: it is part of what is tested. */
#include "values.h"

#include <string.h>

#include "reference.h"

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
    int narrow = comm_dtype_bytes(dtype) == 1 && reference_format(dtype) != NULL;
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

#define WRITE(type)                                                                                                    \
    do {                                                                                                               \
        type typed = (type)value;                                                                                      \
        memcpy(element, &typed, sizeof typed);                                                                         \
    } while (0)

void value_write(comm_dtype dtype, double value, void *element)
{
    const struct format *f = reference_format(dtype);
    memset(element, 0, comm_dtype_bytes(dtype));
    if (f) {
        uint32_t bits = reference_encode(f, value);
        memcpy(element, &bits, comm_dtype_bytes(dtype));
        return;
    }
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
    default:
        WRITE(uint8_t);
        break;
    }
}

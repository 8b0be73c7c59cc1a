/* One set of reduction kernels, compiled for one instruction set. reduce_kernels.c is compiled once per set, and every
 * set gives the same bits: no fused multiply-add, one canonical NaN. */
#ifndef COMM_CORE_REDUCE_VARIANT_H
#define COMM_CORE_REDUCE_VARIANT_H

#include <comm/comm.h>
#include "reduce.h"

struct reduce_variant {
    const char *name;
    reduce_kernel pairs[COMM_REDOP_END][COMM_DTYPE_END];
    /* dst[i] = also[i] = a[i] + b[i]; NULL for BOOL. */
    reduce_to_two_kernel sum_to_two[COMM_DTYPE_END];
    /* sum[i] = a[i] + b[i], of 16- and 8-bit floats in fp32. */
    reduce_kernel sum_wide[COMM_DTYPE_END];
    /* dst[i] = the sum of all sources' [i], made in their order, divided by `divisor` (1 for integers); of 16-bit
     * floats in fp32, rounded once at the end. NULL: the kernels of two sources, or those of a wider type, make it. */
    void (*sums[COMM_DTYPE_END])(void *dst, const void *const *sources, size_t source_count, size_t count,
                                 int32_t divisor);
    /* dst[i] = src[i] * *factor. */
    void (*premultiply[COMM_DTYPE_END])(void *dst, const void *src, size_t count, const void *factor);
    /* data[i] /= divisor, for floats (a complex is two of them). */
    void (*divide[COMM_DTYPE_END])(void *data, size_t count, int32_t divisor);
    /* Sums in a wider type: fp32 for 16- and 8-bit floats, double for AVG of integers up to 32 bits. widen starts a
     * sum, add and multiply go on with it, narrow rounds the result (a double toward zero). */
    void (*widen[COMM_DTYPE_END])(void *sum, const void *src, size_t count);
    void (*add[COMM_DTYPE_END])(void *sum, const void *src, size_t count);
    void (*multiply[COMM_DTYPE_END])(void *product, const void *src, size_t count);
    void (*narrow[COMM_DTYPE_END])(void *dst, const void *sum, size_t count);
    /* AVG of 64-bit integers, in 128 bits. */
    void (*average[COMM_DTYPE_END])(void *dst, const void *const *sources, size_t source_count, size_t count);
};

/* Use the variant of this name from now on; "" means the best one. UNSUPPORTED if this machine or build has none such.
 * For tests: kernels that are already held stay what they were. */
comm_status comm__reduce_use(const char *name);

/* The names, best first, that this machine can use; NULL past the last. */
const char *comm__reduce_variant_at(size_t index);

#endif

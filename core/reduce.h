/* Reduction kernels: one per legal (redop, dtype), SIMD picked once at run time. Pure functions; any thread.
 *
 * A 16- or 8-bit float is widened to fp32, reduced, and rounded to nearest even. `dst` may be `a` or `b` (not overlap
 * otherwise). Operand order is kept (a is from lower ranks), so that every rank that computes a OP b gets the same
 * bits. */
#ifndef COMM_CORE_REDUCE_H
#define COMM_CORE_REDUCE_H

#include <comm/comm.h>

/* dst[i] = a[i] OP b[i]. For AVG and PREMUL_SUM this is the SUM kernel. NULL for an illegal pair and for USER. */
typedef void (*reduce_kernel)(void *dst, const void *a, const void *b, size_t count);
reduce_kernel comm__reduce_kernel(comm_redop redop, comm_dtype dtype);

/* dst[i] = also[i] = a[i] + b[i]: the same bits as the kernel's. Each of dst and also may be a or b, but they are apart
 * from each other. For SUM, AVG and PREMUL_SUM; else, and for BOOL, NULL. */
typedef void (*reduce_to_two_kernel)(void *dst, void *also, const void *a, const void *b, size_t count);
reduce_to_two_kernel comm__reduce_to_two_kernel(comm_redop redop, comm_dtype dtype);

/* Sums of 16- and 8-bit floats that are made in several steps and rounded at the end: in fp32. For SUM, AVG and
 * PREMUL_SUM. Products are not made so: in another order than the ranks' they may be infinite on the way.
 *   widening_kernel  sum[i] = a[i] + b[i], a and b of the dtype, sum apart from both; NULL for other dtypes and ops
 *   widen, narrow    from the dtype to fp32 and, to nearest even, back; apart from each other */
reduce_kernel comm__widening_kernel(comm_redop redop, comm_dtype dtype);
void comm__widen(float *sum, const void *src, size_t count, comm_dtype dtype);
void comm__narrow(void *dst, const float *sum, size_t count, comm_dtype dtype);

/* dst[i] = sources[0][i] OP sources[1][i] OP ... in this order, with one rounding at the end: fp32 accumulation for 16-
 * and 8-bit floats; for AVG the division by `source_count` is included, and integers are summed in a type that cannot
 * overflow (64 bits, or 128 for 64-bit types) before they are divided toward zero. `dst` may be one of the sources.
 * Returns UNSUPPORTED for an illegal pair. source_count is at least 1. */
comm_status comm__reduce_many(void *dst, const void *const *sources, size_t source_count, size_t count,
                              comm_redop redop, comm_dtype dtype);

/* dst[i] = src[i] * factor[0], factor of the same dtype (PREMUL_SUM).  dst may be src. */
void comm__premultiply(void *dst, const void *src, size_t count, comm_dtype dtype, const void *factor);

/* data[i] = data[i] / divisor: the last step of AVG for f32, f64 and complex sums that were made pairwise. */
void comm__divide(void *data, size_t count, comm_dtype dtype, int32_t divisor);

/* The same functions in plain C, for tests. comm_kernels tells which variant is in force. */
reduce_kernel comm__reduce_kernel_scalar(comm_redop redop, comm_dtype dtype);

#endif

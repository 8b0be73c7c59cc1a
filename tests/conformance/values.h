/* Test data that every dtype holds exactly, and what the reduce ops make of it, computed one element at a time in
 * double. */
#ifndef COMM_TESTS_VALUES_H
#define COMM_TESTS_VALUES_H

#include <comm/comm.h>
#include <stddef.h>
#include <stdint.h>

/* Element `i` of what `rank` of `size` gives to a reduction with `redop`; small, so that no result is rounded in any
 * dtype. */
double value_of(comm_redop redop, comm_dtype dtype, int32_t rank, int32_t size, size_t i);

/* Rank's factor for PREMUL_SUM. */
double value_factor(comm_dtype dtype, int32_t rank);

/* Element `i` of the reduction over ranks 0 .. size - 1. */
double value_reduced(comm_redop redop, comm_dtype dtype, int32_t size, size_t i);

/* Write `value` as one element; an imaginary part is 0. */
void value_write(comm_dtype dtype, double value, void *element);

#endif

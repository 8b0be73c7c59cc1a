/* What the reduce ops make of two elements, one element at a time and independent of the library's kernels. Tests that
 * compare bits use it. */
#ifndef COMM_TESTS_REFERENCE_H
#define COMM_TESTS_REFERENCE_H

#include <comm/comm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REFERENCE_ELEMENT_MAX = 16, REFERENCE_REALS = 32, REFERENCE_INTEGERS = 19 };

/* A 16- or 8-bit float. */
struct format {
    int exponent_bits, mantissa_bits;
    bool has_infinity;
    uint64_t nan; /* the canonical one */
};

/* NULL for other dtypes. */
const struct format *reference_format(comm_dtype dtype);
double reference_decode(const struct format *f, uint32_t bits);
/* To nearest, ties to even, as if exponents had no upper end; then what is too large becomes infinity, or NaN. */
uint32_t reference_encode(const struct format *f, double value);

enum kind { INTEGER, BOOLEAN, FLOAT, COMPLEX };
enum kind reference_kind(comm_dtype dtype);

/* One element: the integer (or boolean), or the real and imaginary part. */
struct number {
    __extension__ __int128 integer;
    double re, im;
};
struct number reference_load(comm_dtype dtype, const void *element);
/* Integers keep their low bits; floats are rounded; every NaN takes its one form. */
void reference_store(comm_dtype dtype, struct number n, void *element);

/* a OP b in the type that the dtype is reduced in, which for 16- and 8-bit floats is fp32; integers are not cut. */
struct number reference_combine(comm_redop redop, comm_dtype dtype, struct number a, struct number b);
/* Integers toward zero. */
struct number reference_divide(comm_dtype dtype, struct number a, int divisor);
/* An integer cut to its width, so that products of many do not outgrow 128 bits; other kinds unchanged. */
struct number reference_wrapped(comm_dtype dtype, struct number n);

/* A pseudo-random number (splitmix64), and an element: any bits, a value where something changes, or a plain one. */
uint64_t reference_random(uint64_t *state);
void reference_draw(uint64_t *state, comm_dtype dtype, void *element);
extern const double reference_reals[REFERENCE_REALS];
extern const int64_t reference_integers[REFERENCE_INTEGERS];

#endif

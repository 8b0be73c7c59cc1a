/* The sequential reference: what each rank gives, and what comes of it, from a key. Integers are exact, floats are
 * computed in long double, and a result may differ by as many roundings as the type's contract in comm.h allows.
 * Independent of core/, which is what is tested. */
#ifndef COMM_TESTS_DIFFERENTIAL_REFERENCE_H
#define COMM_TESTS_DIFFERENTIAL_REFERENCE_H

#include <comm/comm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Any bytes: for operations that move data. */
void reference_bytes(void *dst, size_t bytes, uint64_t key);

/* A reduction, as all ranks know it. Rank r's operand has the key keys[r]. */
struct reduction {
    comm_dtype dtype;
    size_t element; /* bytes of one: of the dtype, or of the structs that USER reduces on BYTE */
    comm_redop redop;
    bool rank_order; /* COMM_OP_FLAG_RANK_ORDER */
    bool specials;   /* some NaN, infinity, -0 and 0 among the operands */
    int32_t size;
    uint64_t keys[16];
    uint64_t factor_keys[16]; /* PREMUL_SUM */
};

/* Rank's operand, its factor for PREMUL_SUM. */
void reference_operand(const struct reduction *r, int32_t rank, size_t count, void *dst);
void reference_factor(const struct reduction *r, int32_t rank, void *dst);
/* For COMM_REDOP_USER: associative, not commutative;
 * the context must be reference_user_contexts + the size of an element. */
enum { REFERENCE_STRUCT_MAX = 40 };
void reference_user(const void *in, void *inout, size_t count, comm_dtype dtype, void *context);
extern char reference_user_contexts[REFERENCE_STRUCT_MAX + 1];

/* Is `got` a right result? If not, say in `text` which element is not, and why. */
bool reference_check(const struct reduction *r, const void *got, size_t count, char *text, size_t capacity);

#endif

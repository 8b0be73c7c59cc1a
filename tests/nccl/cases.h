/* What the programs of this folder share: cases that run by name, and vectors in device memory. */
#ifndef COMM_TESTS_NCCL_CASES_H
#define COMM_TESTS_NCCL_CASES_H

#include <comm/comm.h>
#include <stdint.h>

#include "gpu.h"
#include "ranks.h"

struct nccl_case {
    const char *name;
    void (*fn)(int rank, int size, void *arg);
    int size;
};

/* PROGRAM [BACKEND [CASE]]: run all cases, or one, on "cuda:nccl" or another backend string. */
int cases_main(int argc, char **argv, const struct nccl_case *cases, size_t count);

/* Is it the stand-in that COMM_NCCL_LIBRARY names? Its variables say what fails; a real NCCL has none. */
bool cases_on_standin(void);

/* In a case: the world on the program's backend and `more`, options such as "?windows=1"; NULL: none. */
comm_group *cases_world(int rank, const char *more);
/* Options of an operation on this rank's GPU. */
comm_op_options on_gpu(void);
comm_op_options on_stream(cuda_stream stream);

/* A vector in device memory, every element `value`. gpu_memory_free releases it. */
int32_t *vector_new(size_t count, int32_t value);
void vector_fill(int32_t *vector, size_t count, int32_t value);
void vector_check(const int32_t *vector, size_t count, int32_t value, const char *file, int line);
#define CHECK_VECTOR(vector, count, value) vector_check(vector, count, value, __FILE__, __LINE__)

/* Waits, and lets go of the work. */
void finish(comm_work *work);
/* rank + 1 over all ranks. */
int32_t sum_of_ranks(int size);

#endif

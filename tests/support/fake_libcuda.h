/* What a test finds in fake_libcuda.c with dlsym, beside the driver's own call. */
#ifndef COMM_TESTS_FAKE_LIBCUDA_H
#define COMM_TESTS_FAKE_LIBCUDA_H

#include <stddef.h>

enum { FAKE_CUDA_DEVICE, FAKE_CUDA_MANAGED, FAKE_CUDA_PINNED };

typedef void *(*fake_cuda_alloc_fn)(size_t bytes, int kind, int index); /* "fake_cuda_alloc" */
typedef int (*fake_cuda_asked_fn)(void); /* "fake_cuda_asked": how often the driver was asked */

#endif

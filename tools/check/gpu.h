/* The programs' memory: here of the CPU only, and watched (memory.c). */
#ifndef COMM_CHECK_GPU_H
#define COMM_CHECK_GPU_H

#include <comm/comm.h>
#include <stdbool.h>

bool gpu_in(const char *backend);
void gpu_open(const char *backend, int rank);
comm_device gpu_device(void);
void gpu_thread(void);
bool gpu_reduces(comm_redop redop, comm_dtype dtype, int32_t size);
void *gpu_buffer(comm_device device, size_t bytes);
void gpu_buffer_free(comm_device device, void *buffer);

#endif

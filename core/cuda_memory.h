/* Which pointers lead to the memory of a CUDA device, where the CPU would crash. libcomm links to nothing of CUDA: if
 * the process has CUDA's driver, that is asked. Any thread. */
#ifndef COMM_CORE_CUDA_MEMORY_H
#define COMM_CORE_CUDA_MEMORY_H

#include <stdint.h>

/* Has the process loaded the driver? A library may be loaded at any time, so this is looked up again while there is
 * none: 15 ns. */
int comm__cuda_is_there(void);

/* The index of the device whose memory it is; -1: none, or the CPU can read it, too (managed memory). */
int32_t comm__cuda_device_of(const void *pointer);

#endif

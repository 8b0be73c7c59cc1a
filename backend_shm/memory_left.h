/* How much memory may still be taken. A file of shared memory gets its pages when it is made, and the kernel does not
 * refuse what there is not: it ends processes instead. */
#ifndef COMM_SHM_MEMORY_LEFT_H
#define COMM_SHM_MEMORY_LEFT_H

#include <stdint.h>

/* Bytes: of the machine, with its swap, or of this process's control group (version 2), if that has less. What only
 * caches files counts as left. Processes that ask at the same time are told the same. UINT64_MAX: it is not known. */
uint64_t memory_left(void);

/* The same, with these instead of /proc and /sys/fs/cgroup. */
uint64_t memory_left_in(const char *proc, const char *groups);

#endif

/* Notices fork: a handle that was made before it works in the parent only. */
#ifndef COMM_CORE_FORK_H
#define COMM_CORE_FORK_H

#include <stdatomic.h>
#include <stdint.h>

/* How many forks lie between this process and the one that loaded the library. Cheaper to compare than getpid(). */
extern _Atomic uint32_t comm__fork_generation;

/* Begin to count; call before the first handle is made. */
void comm__fork_watch(void);

static inline int comm__forked_since(uint32_t generation)
{
    return atomic_load_explicit(&comm__fork_generation, memory_order_relaxed) != generation;
}

#endif

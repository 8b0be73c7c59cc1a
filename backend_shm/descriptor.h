/* Descriptors: closing them, and bells, which are eventfds. */
#ifndef COMM_SHM_DESCRIPTOR_H
#define COMM_SHM_DESCRIPTOR_H

#include <stdint.h>
#include <unistd.h>

/* Close what *fd says, unless that is -1. It is forgotten first, for a child of fork() that has a snapshot from now. */
static inline void descriptor_close(int *fd)
{
    int closing = *fd;
    *(volatile int *)fd = -1;
    if (closing >= 0)
        close(closing);
}

/* The thread that sleeps at this bell wakes up. */
static inline void bell_ring(int bell)
{
    const uint64_t once = 1;
    ssize_t written = write(bell, &once, sizeof once);
    (void)written; /* it fails only if it has rung 2^64 times */
}

#endif

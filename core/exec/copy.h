/* Copies of blocks. What is too long to stay in the caches (cache.h) is written past them: otherwise the processor
 * reads each line before it writes it, and a copy moves three bytes for one, not two. The C library does that too, but
 * on a virtual machine from hundreds of MiB on only, for it takes the host's cache for its own. */
#ifndef COMM_EXEC_COPY_H
#define COMM_EXEC_COPY_H

#include <stddef.h>

/* A part of a block that is too long, or of another. The memory may overlap. */
void copy_part(void *to, const void *from, size_t bytes, int is_long);

#endif

/* Copies of blocks. What is too long to stay in the caches is written past them: otherwise the processor reads each
 * line before it writes it, and a copy moves three bytes for one, not two. The C library does that too, but on a
 * virtual machine from hundreds of MiB on only, for it takes the host's cache for its own. */
#ifndef COMM_EXEC_COPY_H
#define COMM_EXEC_COPY_H

#include <stddef.h>

/* Is a block too long? Measured: of 1 MiB it is not, of 2 MiB and more it is. */
static inline int copy_is_long(size_t block_bytes)
{
    enum { LONG_BYTES = 2 << 20 };
    return block_bytes >= LONG_BYTES;
}

/* Is a result, of which another rank writes a part? Measured: of 4 MiB it is not, of 8 MiB and more it is. */
static inline int copy_result_is_long(size_t buffer_bytes)
{
    enum { LONG_BYTES = 8 << 20 };
    return buffer_bytes >= LONG_BYTES;
}

/* A part of such a block, or of another. The memory may overlap. */
void copy_part(void *to, const void *from, size_t bytes, int is_long);

#endif

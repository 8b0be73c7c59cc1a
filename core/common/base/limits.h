/* Every limit has a name here, and the reason for its number. */
#ifndef COMM_BASE_LIMITS_H
#define COMM_BASE_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* PyTorch's TCPStore server closes the connection of a client that sends more; 8192 less the "/" it puts in front. */
#define LIMIT_STORE_KEY_BYTES ((size_t)8191)
#define LIMIT_STORE_VALUE_BYTES ((size_t)8 << 20)
/* A buffer. No 64-bit machine of today gives a process more than 2^57 bytes of addresses (five levels of page tables),
 * so more is a wrong number. */
#define LIMIT_BUFFER_BYTES ((size_t)(sizeof(size_t) > 4 ? PTRDIFF_MAX >> 6 : PTRDIFF_MAX))
/* Keys in one check, wait, multi_get or multi_set: the same server's limit. */
#define LIMIT_STORE_KEYS ((size_t)131072)

#endif

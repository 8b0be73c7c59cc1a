/* Compares memory in blocks: under a sanitizer a loop over bytes takes longer than all that it checks. */
#ifndef COMM_TESTS_DIFFERENCE_H
#define COMM_TESTS_DIFFERENCE_H

#include <stddef.h>
#include <string.h>

/* Where the first byte is that differs; `bytes` if none does. */
static inline size_t first_difference(const void *a, const void *b, size_t bytes)
{
    enum { BLOCK_BYTES = 4096 };
    const unsigned char *left = a, *right = b;
    size_t at = 0;
    if (bytes == 0) /* both may be NULL */
        return 0;
    while (bytes - at > BLOCK_BYTES && memcmp(left + at, right + at, BLOCK_BYTES) == 0)
        at += BLOCK_BYTES;
    if (memcmp(left + at, right + at, bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES) == 0)
        return bytes;
    while (left[at] == right[at])
        at++;
    return at;
}

#endif

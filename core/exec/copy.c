#include "copy.h"

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifdef __SSE2__
enum { LINE = 64, FEW_BYTES = 1 << 10 };

static void copy_past_caches(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t first = -(uintptr_t)to % LINE;
    memcpy(to, from, first);
    for (to += first, from += first, bytes -= first; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + 32)), d = _mm_loadu_si128((const __m128i *)(from + 48));
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)(to + 16), b);
        _mm_stream_si128((__m128i *)(to + 32), c);
        _mm_stream_si128((__m128i *)(to + 48), d);
    }
    memcpy(to, from, bytes);
    _mm_sfence(); /* whoever is told that the operation is done sees it */
}
#endif

void copy_part(void *to, const void *from, size_t bytes, int is_long)
{
#ifdef __SSE2__
    uintptr_t between = (uintptr_t)to > (uintptr_t)from ? (uintptr_t)to - (uintptr_t)from
                                                        : (uintptr_t)from - (uintptr_t)to;
    if (is_long && bytes >= FEW_BYTES && between >= bytes) {
        copy_past_caches(to, from, bytes);
        return;
    }
#else
    (void)is_long;
#endif
    memmove(to, from, bytes);
}

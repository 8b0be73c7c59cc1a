/* What fuzz targets share. A target is a file with LLVMFuzzerTestOneInput. With clang's libFuzzer, in the source
 * folder:
 *
 *     clang -g -O1 -std=c11 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -Iinclude -Icore -Istore -Itests/fuzz \
 *         tests/fuzz/TARGET.c SOURCES -o /tmp/TARGET && /tmp/TARGET -max_len=2000 /tmp/corpus tests/fuzz/corpus/TARGET
 *
 * where SOURCES are named at the top of the target. The tests build each target with replay.c instead, which plays the
 * corpus in tests/fuzz/corpus/TARGET, whole and cut off at every byte. */
#ifndef COMM_TESTS_FUZZ_H
#define COMM_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition);                                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { FUZZ_ARENA_BYTES = 1 << 20 };

/* A copy of the bytes that ends where a page begins that must not be touched: reading one byte too many is a fault.
 * Valid until the next call. */
static inline const uint8_t *fuzz_before_the_cliff(const uint8_t *data, size_t bytes)
{
    static uint8_t *arena;
    if (!arena) {
        void *map = mmap(NULL, FUZZ_ARENA_BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        FUZZ_CHECK(map != MAP_FAILED && mprotect((char *)map + FUZZ_ARENA_BYTES, 4096, PROT_NONE) == 0);
        arena = map;
    }
    FUZZ_CHECK(bytes <= FUZZ_ARENA_BYTES);
    uint8_t *at = arena + FUZZ_ARENA_BYTES - bytes;
    if (bytes)
        memcpy(at, data, bytes);
    return at;
}

#endif

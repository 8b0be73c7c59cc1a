/* Memory with a zone behind each block that nothing may write to: a write of one byte too many is found when the block
 * is freed or made longer, without a sanitizer. The linker puts these in place of the library's and the test's
 * allocators (red_zone_arguments in meson.build). Blocks of other libraries go through unchanged; they are known by
 * what stands before them. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_ON = 0 }; /* they have zones of their own, and do not like ours */
#else
enum { IS_ON = 1 };
#endif

enum { FRONT_BYTES = 32, ZONE_BYTES = 16, FILL = 0xa5 };

struct front {
    uint64_t mark; /* of a block of ours, at this address */
    size_t bytes;
    uint64_t unused[2]; /* keeps malloc's alignment */
};
_Static_assert(sizeof(struct front) == FRONT_BYTES, "malloc's alignment");

void *__real_malloc(size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t most);

static uint64_t mark_of(const void *memory)
{
    return (uint64_t)(uintptr_t)memory ^ 0x7265645f7a6f6e65u;
}

static struct front *front_of(void *memory)
{
    if (!IS_ON || !memory)
        return NULL;
    struct front *front = (struct front *)((char *)memory - FRONT_BYTES);
    return front->mark == mark_of(memory) ? front : NULL;
}

/* Mark a fresh block, or one that has moved. */
static void *finish(struct front *front, size_t bytes)
{
    if (!front)
        return NULL;
    char *memory = (char *)front + FRONT_BYTES;
    front->mark = mark_of(memory);
    front->bytes = bytes;
    memset(memory + bytes, FILL, ZONE_BYTES);
    return memory;
}

static void check(const struct front *front)
{
    const uint8_t *zone = (const uint8_t *)front + FRONT_BYTES + front->bytes;
    for (size_t i = 0; i < ZONE_BYTES; i++)
        if (zone[i] != FILL) {
            fprintf(stderr, "red_zone.c: byte %zu behind a block of %zu bytes was written to (now 0x%02x)\n", i,
                    front->bytes, zone[i]);
            abort();
        }
}

void *__wrap_malloc(size_t bytes)
{
    if (!IS_ON || bytes > SIZE_MAX / 2)
        return __real_malloc(bytes);
    return finish(__real_malloc(FRONT_BYTES + bytes + ZONE_BYTES), bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total))
        return NULL;
    void *memory = __wrap_malloc(total);
    return memory ? memset(memory, 0, total) : NULL;
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    struct front *front = front_of(memory);
    if (!memory)
        return __wrap_malloc(bytes);
    if (!front || bytes > SIZE_MAX / 2)
        return __real_realloc(memory, bytes);
    check(front);
    front->mark = 0;
    struct front *grown = __real_realloc(front, FRONT_BYTES + bytes + ZONE_BYTES);
    if (!grown)
        front->mark = mark_of(memory);
    return finish(grown, bytes);
}

void __wrap_free(void *memory)
{
    struct front *front = front_of(memory);
    if (front) {
        check(front);
        front->mark = 0;
    }
    __real_free(front ? (void *)front : memory);
}

char *__wrap_strndup(const char *text, size_t most)
{
    size_t bytes = strnlen(text, most);
    char *copy = __wrap_malloc(bytes + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

char *__wrap_strdup(const char *text)
{
    return __wrap_strndup(text, SIZE_MAX);
}

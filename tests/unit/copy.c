/* Copies of parts of blocks: lengths around every limit in the code, every alignment, memory that overlaps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "copy.h"

enum { LINE = 64, MOST_BYTES = (64 << 10) + 13, MARGIN = 2 * LINE };

static const size_t lengths[] = { 0,    1,    15,   16,   63,   64,   65,   127,  128,  129,
                                  4095, 4096, 4097, 4159, 4160, 4161, 8191, 8192, MOST_BYTES };
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 24 ^ i);
}

/* Beside the part nothing is written, and all of the part is. */
static void every_length_and_alignment(void **state)
{
    const size_t room = MOST_BYTES + 2 * MARGIN;
    uint8_t *from = malloc(room), *to = malloc(room);
    (void)state;
    for (size_t i = 0; i < room; i++)
        from[i] = byte_at(i);
    for (int l = 0; l < LENGTHS; l++)
        for (size_t shift = 0; shift < LINE; shift++)
            for (int is_long = 0; is_long < 2; is_long++) {
                const uint8_t *source = from + (shift * 7 + (size_t)is_long) % LINE;
                uint8_t *part = to + MARGIN + shift;
                memset(part - MARGIN, 0xee, lengths[l] + 2 * MARGIN - LINE);
                copy_part(part, source, lengths[l], is_long);
                assert_memory_equal(part, source, lengths[l]);
                for (size_t i = 1; i <= LINE; i++)
                    assert_true(part[-(ptrdiff_t)i] == 0xee && (i == LINE || part[lengths[l] + i - 1] == 0xee));
            }
    free(from);
    free(to);
}

static void memory_that_overlaps(void **state)
{
    static const ptrdiff_t distances[] = { 0, 1, -1, 16, -16, 64, -64, 4096, -4096, 8191, -8191, 8192, -8192 };
    enum { BYTES = 8192, ROOM = 3 * BYTES };
    uint8_t *memory = malloc(ROOM), *expected = malloc(ROOM);
    (void)state;
    for (size_t d = 0; d < sizeof distances / sizeof *distances; d++) {
        for (size_t i = 0; i < ROOM; i++)
            memory[i] = expected[i] = byte_at(i);
        memmove(expected + BYTES + distances[d], expected + BYTES, BYTES);
        copy_part(memory + BYTES + distances[d], memory + BYTES, BYTES, 1);
        assert_memory_equal(memory, expected, ROOM);
    }
    free(memory);
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_and_alignment),
        cmocka_unit_test(memory_that_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

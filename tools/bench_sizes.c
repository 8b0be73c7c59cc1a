/* Sizes as people write them: "64K", "8,1024,1M", "8:64M". Pure functions, tried by tests/tools/test_bench_parse.c. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int refuse(char *error, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(char *error, size_t capacity, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, capacity, format, arguments);
    va_end(arguments);
    return -1;
}

static unsigned suffix_shift(char suffix)
{
    switch (toupper((unsigned char)suffix)) {
    case 'K': return 10;
    case 'M': return 20;
    case 'G': return 30;
    default: return 0;
    }
}

int bench_parse_bytes(const char *text, size_t *ret_bytes)
{
    if (!isdigit((unsigned char)*text)) /* strtoull would take blanks and signs */
        return -1;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = suffix_shift(*end);
    if (shift)
        end++;
    /* Half of the address space: sums of two sizes must not wrap around. */
    if (errno || *end || value > (SIZE_MAX / 2) >> shift)
        return -1;
    *ret_bytes = (size_t)value << shift;
    return 0;
}

/* One item of the list: a number or a range, appended to sizes[*count]. */
static int parse_item(char *item, double factor, size_t *sizes, int *count, char *error, size_t capacity)
{
    size_t from, to;
    char *colon = strchr(item, ':');
    if (colon)
        *colon = '\0';
    if (bench_parse_bytes(item, &from) != 0)
        return refuse(error, capacity, "'%s' is not a number of bytes (such as 8, 64K or 1M)", item);
    to = from;
    if (colon && bench_parse_bytes(colon + 1, &to) != 0)
        return refuse(error, capacity, "'%s' is not a number of bytes (such as 8, 64K or 1M)", colon + 1);
    if (colon && (from == 0 || from > to))
        return refuse(error, capacity, "the range %s:%s must go upwards from at least 1", item, colon + 1);
    for (;;) {
        if (*count == BENCH_SIZES_MAX)
            return refuse(error, capacity, "more than %d sizes", BENCH_SIZES_MAX);
        sizes[(*count)++] = from;
        if (from == to)
            return 0;
        double next = (double)from * factor;
        size_t step = next >= (double)to ? to : (size_t)next;
        from = step > from ? step : from + 1; /* a small factor of a small number must still move */
    }
}

int bench_parse_sizes(const char *text, double factor, size_t *ret_sizes, char *error, size_t capacity)
{
    if (!(factor > 1))
        return refuse(error, capacity, "a range needs a factor over 1");
    char *copy = strdup(text), *rest = copy, *item;
    if (!copy)
        return refuse(error, capacity, "out of memory");
    int count = 0, result = 0;
    while (result == 0 && (item = strsep(&rest, ",")))
        result = parse_item(item, factor, ret_sizes, &count, error, capacity);
    free(copy);
    return result == 0 ? count : -1;
}

#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const comm_host *exec_host;

comm_status exec_fail(comm_status status, const char *format, ...)
{
    char text[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return exec_host->fail(status, text);
}

void exec_log(int32_t level, const char *format, ...)
{
    if (!exec_host->log_wanted(level))
        return;
    char text[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    exec_host->log(level, text);
}

enum { RING = 8, RANK_TEXT_BYTES = 160 };

static char *next_buffer(void)
{
    static _Thread_local char ring[RING][RANK_TEXT_BYTES];
    static _Thread_local unsigned next;
    return ring[next++ % RING];
}

const char *say_rank(int32_t rank, int32_t world_rank, const char *where)
{
    char *text = next_buffer();
    if (rank != world_rank)
        snprintf(text, RANK_TEXT_BYTES, "rank %d (world rank %d%s%s)", (int)rank, (int)world_rank, *where ? ", " : "",
                 where);
    else
        snprintf(text, RANK_TEXT_BYTES, "rank %d%s%s%s", (int)rank, *where ? " (" : "", where, *where ? ")" : "");
    return text;
}

void text_add(char *text, size_t capacity, const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, capacity - used, format, arguments);
    va_end(arguments);
}

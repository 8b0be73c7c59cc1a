#include "say.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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

struct ring {
    unsigned next;
    char texts[RING][RANK_TEXT_BYTES];
};

static pthread_key_t ring_key; /* thread-local variables of the library must be small */

static void make_key(void)
{
    pthread_key_create(&ring_key, free);
}

static struct ring *ring_of_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    struct ring *ring = pthread_getspecific(ring_key);
    if (!ring && (ring = calloc(1, sizeof *ring)) && pthread_setspecific(ring_key, ring) != 0) {
        free(ring);
        ring = NULL;
    }
    return ring;
}

static char *next_buffer(void)
{
    static char without_memory[RANK_TEXT_BYTES];
    struct ring *ring = ring_of_thread();
    return ring ? ring->texts[ring->next++ % RING] : without_memory;
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

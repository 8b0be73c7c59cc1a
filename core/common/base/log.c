/* Logging to a callback or to stderr; see comm_log_set. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/param.h"
#include "base/utf8.h"

static const char *const level_names[] = { "off", "error", "warn", "info", "debug" };

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER; /* guards sink and sink_context */
static comm_log_fn sink;
static void *sink_context;
static _Atomic int32_t level_in_force = -1; /* -1: not read from COMM_LOG yet */

/* -1: it is none. */
static int32_t level_from_text(const char *text)
{
    for (int32_t i = 0; i <= COMM_LOG_DEBUG; i++)
        if (strcmp(text, level_names[i]) == 0)
            return i;
    return -1;
}

static int32_t read_level(void)
{
    const char *text = comm__param_text("log");
    const int32_t level = level_from_text(text), most = level < 0 ? COMM_LOG_WARN : level;
    atomic_store_explicit(&level_in_force, most, memory_order_relaxed);
    if (level < 0)
        comm__log(COMM_LOG_WARN, "COMM_LOG: '%s' is none of off, error, warn, info and debug; using warn", text);
    return most;
}

int comm__log_wanted(int32_t level)
{
    int32_t most = atomic_load_explicit(&level_in_force, memory_order_relaxed);
    return level <= (most < 0 ? read_level() : most);
}

void comm__log(int32_t level, const char *format, ...)
{
    if (!comm__log_wanted(level))
        return;
    char text[COMM_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    utf8_clean_string(text);

    pthread_mutex_lock(&sink_lock);
    comm_log_fn fn = sink;
    void *context = sink_context;
    pthread_mutex_unlock(&sink_lock);
    if (fn)
        fn(level, text, context);
    else
        fprintf(stderr, "libcomm %s: %s\n", level_names[level], text);
}

void comm_log_set(comm_log_fn fn, void *context)
{
    pthread_mutex_lock(&sink_lock);
    sink = fn;
    sink_context = context;
    pthread_mutex_unlock(&sink_lock);
}

void comm_log_set_level(int32_t level)
{
    if (level < 0)
        level = 0;
    if (level > COMM_LOG_DEBUG)
        level = COMM_LOG_DEBUG;
    atomic_store_explicit(&level_in_force, level, memory_order_relaxed);
}

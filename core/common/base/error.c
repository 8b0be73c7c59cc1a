/* Statuses and the per-thread error text. Nothing is printed here: the library returns errors. */
#include <comm/comm.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

_Thread_local uint64_t comm__fails;

/* A thread's text. Not a thread-local variable: error.h says why. */
static pthread_key_t text_key;
static _Thread_local uint8_t lost_text; /* there was no memory for the last one */

static void make_key(void)
{
    pthread_key_create(&text_key, free);
}

/* NULL if this thread has none yet. */
static char *text_of_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    return pthread_getspecific(text_key);
}

static void keep_text(const char *text)
{
    char *kept = text_of_thread();
    if (!kept && (kept = malloc(COMM_ERROR_BYTES)) && pthread_setspecific(text_key, kept) != 0) {
        free(kept);
        kept = NULL;
    }
    lost_text = !kept;
    if (kept)
        memcpy(kept, text, COMM_ERROR_BYTES);
}

int32_t comm_status_scope(comm_status status)
{
    if (status >= 0)
        return COMM_SCOPE_NONE;
    if (status > -20)
        return COMM_SCOPE_CALL;
    return status > -40 ? COMM_SCOPE_OBJECT : COMM_SCOPE_PROCESS;
}

static const char unknown_status[] = "unknown status";

int comm__status_known(comm_status status)
{
    return comm_status_name(status) != unknown_status;
}

const char *comm_status_name(comm_status status)
{
    static const struct {
        comm_status status;
        const char *name;
    } names[] = {
#define NAME(s) { s, #s }
        NAME(COMM_OK), NAME(COMM_IN_PROGRESS),
        NAME(COMM_ERR_INVALID), NAME(COMM_ERR_UNSUPPORTED), NAME(COMM_ERR_NO_MEMORY), NAME(COMM_ERR_NOT_FOUND),
        NAME(COMM_ERR_TIMEOUT), NAME(COMM_ERR_SYSTEM), NAME(COMM_ERR_VERSION), NAME(COMM_ERR_TRUNCATED),
        NAME(COMM_ERR_PEER_LOST), NAME(COMM_ERR_DEADLINE), NAME(COMM_ERR_MISMATCH), NAME(COMM_ERR_PROTOCOL),
        NAME(COMM_ERR_ABORTED), NAME(COMM_ERR_BACKEND),
        NAME(COMM_ERR_FORKED), NAME(COMM_ERR_BUG),
#undef NAME
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].status == status)
            return names[i].name;
    return unknown_status;
}

__attribute__((format(printf, 2, 0))) static comm_status vfail(comm_status status, const char *format,
                                                               va_list arguments)
{
    /* The arguments may point into this thread's text itself. */
    char text[COMM_ERROR_BYTES];
    vsnprintf(text, sizeof text, format, arguments);
    /* host names, keys and what other ranks wrote; and it may have been cut within a character */
    utf8_clean_string(text);
    if (!*text) /* the reason itself was lost, for want of memory */
        snprintf(text, sizeof text, "%s", comm_status_name(status));
    keep_text(text);
    comm__fails++;
    return status;
}

comm_status comm__fail(comm_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfail(status, format, arguments);
    va_end(arguments);
    return status;
}

comm_status comm__fail_while(comm_status status, const char *format, ...)
{
    char text[COMM_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return comm__fail(status, "%s: %s", text, comm_last_error());
}

const char *comm_last_error(void)
{
    const char *text = lost_text ? "out of memory for the text of an error" : text_of_thread();
    return text ? text : "";
}

void comm__error_before(char text[COMM_ERROR_BYTES])
{
    snprintf(text, COMM_ERROR_BYTES, "%s", comm_last_error());
    if (!text_of_thread()) { /* now there is memory for one */
        keep_text(text);
        lost_text = 0;
    }
}

comm_status comm__error_after(comm_status status, const char text[COMM_ERROR_BYTES])
{
    if (status == COMM_OK && strcmp(comm_last_error(), text) != 0)
        keep_text(text);
    return status;
}

void comm_free(void *memory)
{
    free(memory);
}

void *comm_alloc(size_t bytes)
{
    return malloc(bytes ? bytes : 1);
}

#define TEXT_OF(x) #x
#define DOTTED(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *comm_version(void)
{
    return DOTTED(COMM_VERSION_MAJOR, COMM_VERSION_MINOR, COMM_VERSION_PATCH);
}

int32_t comm_version_number(void)
{
    return COMM_VERSION_MAJOR * 10000 + COMM_VERSION_MINOR * 100 + COMM_VERSION_PATCH;
}

/* The one way to fail: write the text where the fact is known, and return the status. */
#ifndef COMM_BASE_ERROR_H
#define COMM_BASE_ERROR_H

#include <comm/comm.h>

#define COMM_ERROR_BYTES 1024 /* longest error text, with its NUL; longer ones are cut */

/* Keep the text for comm_last_error() of this thread and return `status`. */
comm_status comm__fail(comm_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Add what only the caller knows in front of this thread's text: "while X: <text>". */
comm_status comm__fail_while(comm_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Around something that tries several ways: what failed on the way is no error if it goes well, and the thread has the
 * text that it had before. */
void comm__error_before(char text[COMM_ERROR_BYTES]);
comm_status comm__error_after(comm_status status, const char text[COMM_ERROR_BYTES]);

/* The initial-exec model makes thread-local variables cost one load. It takes all those of the library from the static
 * space, of which a library that is loaded late (by Python) gets little: so they must stay few and small, and what is
 * longer is allocated. */
#define COMM__THREAD_VARIABLE __attribute__((tls_model("initial-exec")))

/* How many texts this thread has kept so far: tells whether a function has left one. */
extern _Thread_local uint64_t comm__fails COMM__THREAD_VARIABLE;
static inline uint64_t comm__fail_count(void)
{
    return comm__fails;
}

/* Is it one of comm.h's? */
int comm__status_known(comm_status status);

#endif

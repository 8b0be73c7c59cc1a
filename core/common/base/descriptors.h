/* libuv ends the process, by abort(), if its first loop finds no descriptors for a pipe of its own. Look before it
 * does. */
#ifndef COMM_BASE_DESCRIPTORS_H
#define COMM_BASE_DESCRIPTORS_H

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { DESCRIPTORS_OF_A_LOOP = 7 };

/* 0 if so many descriptors can be had for a loop, else the errno that says why not. (Another thread may take them in
 * between.) */
static inline int descriptors_for_loop(void)
{
    int taken[DESCRIPTORS_OF_A_LOOP], count = 0, error = 0;
    while (count < DESCRIPTORS_OF_A_LOOP && !error) {
        taken[count] = eventfd(0, EFD_CLOEXEC);
        error = taken[count] < 0 ? errno : 0;
        count += !error;
    }
    while (count)
        close(taken[--count]);
    return error;
}

/* What an error text has behind the system's words for `error`. */
static inline const char *descriptors_cure(int error)
{
    return error == EMFILE ? " (raise the limit: ulimit -n)" : "";
}

#endif

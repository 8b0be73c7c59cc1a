/* Runs a function as several ranks: real processes, or threads of one process. Every test that needs more than one rank
 * uses it.
 *
 *     static void two_plus_two(int rank, int size, void *arg)
 *     {
 *         comm_group *world = ranks_world("tcp");
 *         CHECK_OK(comm_barrier(world, NULL, NULL));
 *         CHECK_OK(comm_group_close(world));
 *     }
 *     ...
 *     return ranks_run(4, NULL, two_plus_two, NULL);
 */
#ifndef COMM_TESTS_RANKS_H
#define COMM_TESTS_RANKS_H

#include <comm/comm.h>
#include <comm/store.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranks_options {
    int limit_s;       /* then all ranks are killed; 0: 60. With sanitizers it is four times as long */
    int threads;       /* 1: threads of this process, which share a hash:// store; 0: processes and a file:// store */
    uint64_t may_fail; /* bit r: rank r may end as it likes (tests that kill ranks) */
    const char *name;  /* in messages; NULL: "ranks" */
};

/* Run fn as ranks 0 .. size - 1 with a rendezvous of their own. A process that returns from fn exits with 0. Returns 0
 * if all ranks did so, else prints which rank failed first, with the end of its output, and returns 1. What is left is
 * killed. Where tests/mpi/launch.py has started the program, its processes are the ranks, and runs of other sizes are
 * left out. */
int ranks_run(int size, const struct ranks_options *options, void (*fn)(int rank, int size, void *arg), void *arg);

/* Inside fn: open the world of these ranks, or fail the rank. `backend` may be NULL. */
comm_group *ranks_world(const char *backend);
/* The same with another name, rank or size or other options; store, rank and world_size are filled in. */
comm_status ranks_init(comm_init_options *options, comm_group **ret_world);
/* A fresh handle to the ranks' store, and a folder that they share ("" for threads). */
comm_store *ranks_store(void);
const char *ranks_folder(void);

/* All ranks call it when all that was sent has been received. In programs with flow.c, flow_check; else nothing. */
void ranks_quiet(comm_group *world);

/* Print "rank 2: file:line: ..." and end the process with 1. */
void ranks_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ranks_fail(__FILE__, __LINE__, "%s is not so", #condition);                                                \
    } while (0)

#define CHECK_OK(call) CHECK_STATUS(call, COMM_OK)

/* `call` gives the status `expected`, and every error about a time limit says "timed out". */
#define CHECK_STATUS(call, expected)                                                                                   \
    do {                                                                                                               \
        comm_status check_status_ = (call);                                                                            \
        if (check_status_ != (expected))                                                                               \
            ranks_fail(__FILE__, __LINE__, "%s gave %s, not %s: %s", #call, comm_status_name(check_status_),           \
                       comm_status_name(expected), check_status_ == COMM_OK ? "" : comm_last_error());                 \
        if ((check_status_ == COMM_ERR_TIMEOUT || check_status_ == COMM_ERR_DEADLINE) &&                               \
            !strstr(comm_last_error(), "timed out"))                                                                   \
            ranks_fail(__FILE__, __LINE__, "%s: '%s' does not say 'timed out'", #call, comm_last_error());             \
    } while (0)

/* The last error's text must contain these words. */
#define CHECK_ERROR_SAYS(words)                                                                                        \
    do {                                                                                                               \
        if (!strstr(comm_last_error(), (words)))                                                                       \
            ranks_fail(__FILE__, __LINE__, "'%s' does not say '%s'", comm_last_error(), (words));                      \
    } while (0)

#endif

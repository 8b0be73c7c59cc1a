/* What the programs of this folder make of their arguments: BACKEND [SEED|fresh ...]. */
#ifndef COMM_TESTS_SUITE_H
#define COMM_TESTS_SUITE_H

#include <comm/comm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loopback.h"
#include "ranks.h"

/* A seed that no run has had, if none is given. It is printed, so that a run can be repeated. */
static inline uint64_t suite_seed(int argc, char **argv)
{
    uint64_t seed = argc > 2 && strcmp(argv[2], "fresh") != 0 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

/* Whether the ranks are threads, as on loopback, which is registered then. */
static inline bool suite_has_threads(const char *backend)
{
    if (strcmp(backend, "cpu:loopback") != 0)
        return false;
    if (comm_backend_register(loopback_entry) != COMM_OK) {
        fprintf(stderr, "%s\n", comm_last_error());
        exit(1);
    }
    return true;
}

/* Run it, with argv, in worlds of these sizes. 0, or 1 as soon as one fails. */
static inline int suite_run_sizes(const char *name, char **argv, const int *sizes, int count,
                                  void (*fn)(int rank, int size, void *arg))
{
    struct ranks_options options = { .threads = suite_has_threads(argv[1]), .limit_s = 100, .name = name };
    for (int i = 0; i < count; i++)
        if (ranks_run(sizes[i], &options, fn, argv) != 0)
            return 1;
    return 0;
}

#endif

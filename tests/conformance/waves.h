/* A rank's way through random calls (calls.h): a few at a time, waiting, asynchronous or coalesced, on the world and on
 * groups made from it. */
#ifndef COMM_TESTS_WAVES_H
#define COMM_TESTS_WAVES_H

#include <stdbool.h>
#include <stdint.h>

struct waves {
    const char *backend;
    uint64_t seed;
    int count;
    bool may_refuse; /* what the backend refuses, on all ranks alike, is left out */
};

/* The world is opened and closed here. */
void waves_run(int rank, int size, const struct waves *waves);

#endif

/* The seed of a random suite: its second argument; without one, or with "fresh", a number that no run has had. */
#ifndef COMM_TESTS_SEED_H
#define COMM_TESTS_SEED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Prints it, so that a run can be repeated. */
static inline uint64_t seed_of(int argc, char **argv)
{
    uint64_t seed = argc > 2 && strcmp(argv[2], "fresh") != 0 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

#endif

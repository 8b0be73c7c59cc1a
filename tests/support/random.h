/* Random numbers that depend on nothing but their arguments, so that a step's numbers do not change when other steps
 * are left out. */
#ifndef COMM_TESTS_DIFFERENTIAL_RANDOM_H
#define COMM_TESTS_DIFFERENTIAL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A new key from a key and a number. */
static inline uint64_t random_key(uint64_t key, uint64_t number)
{
    return random_mix(key + 0x9e3779b97f4a7c15u * (number + 1));
}

/* A sequence: the next number below `end`, which is not 0. */
static inline size_t random_below(uint64_t *state, size_t end)
{
    *state += 0x9e3779b97f4a7c15u;
    return (size_t)(random_mix(*state) % end);
}

static inline int random_one_in(uint64_t *state, size_t n)
{
    return random_below(state, n) == 0;
}

#endif

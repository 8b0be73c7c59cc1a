/* Counters that must not go below zero: references, threads within, what is still to come. */
#ifndef COMM_BASE_COUNTER_H
#define COMM_BASE_COUNTER_H

#include <assert.h>
#include <stdatomic.h>

/* One less; gives what is left. */
static inline int count_down(atomic_int *counter)
{
    int before = atomic_fetch_sub(counter, 1);
    assert(before > 0);
    return before - 1;
}

#endif

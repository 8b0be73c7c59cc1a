/* Time at the cost of one instruction: the processor's counter, if it runs evenly, else CLOCK_MONOTONIC. A tick becomes
 * nanoseconds when it is read. */
#ifndef COMM_CORE_TICKS_H
#define COMM_CORE_TICKS_H

#include <stdint.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/clock.h"

/* Call before the first ticks_now. */
void comm__ticks_begin(void);

extern int comm__ticks_are_raw; /* constant after comm__ticks_begin */

static inline int64_t ticks_now(void)
{
#if defined(__x86_64__)
    if (comm__ticks_are_raw)
        return (int64_t)__rdtsc();
#elif defined(__aarch64__)
    if (comm__ticks_are_raw) {
        int64_t ticks;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    return clock_now_ns();
}

/* How long a tick is, as well as it is known by now. */
double comm__ns_per_tick(void);

/* The nanoseconds between two readings; 0 if the later one, of another core, is less. */
static inline int64_t ticks_between_ns(int64_t from, int64_t to, double ns_per_tick)
{
    return to > from ? (int64_t)((double)(to - from) * ns_per_tick) : 0;
}

#endif

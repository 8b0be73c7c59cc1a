/* How long a tick is: measured against CLOCK_MONOTONIC from the first use on, until that has given a rate that is exact
 * enough. */
#include "base/ticks.h"

#include <pthread.h>
#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define EXACT_ENOUGH_NS ((int64_t)1000000000)

int comm__ticks_are_raw;

static int64_t first_ticks, first_ns;
static _Atomic double exact; /* nanoseconds per tick; 0 until it is known for good */

/* Does the counter run at one rate in all states of power, and alike on all cores? */
static int runs_evenly(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
#elif defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

static void begin(void)
{
    comm__ticks_are_raw = runs_evenly();
    first_ns = clock_now_ns();
    first_ticks = ticks_now();
}

void comm__ticks_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
}

/* Until a second has passed, the rate is that of the time so far. All ticks lie in it, so the error of a difference is
 * never more than that of the two readings. After that the rate stays: should the machine sleep, the clocks part. */
double comm__ns_per_tick(void)
{
    double known = comm__ticks_are_raw ? atomic_load_explicit(&exact, memory_order_relaxed) : 1;
    if (known > 0)
        return known;
    int64_t ns = clock_now_ns() - first_ns, ticks = ticks_now() - first_ticks;
    double rate = ticks > 0 && ns > 0 ? (double)ns / (double)ticks : 1;
    if (ns >= EXACT_ENOUGH_NS)
        atomic_store_explicit(&exact, rate, memory_order_relaxed);
    return rate;
}

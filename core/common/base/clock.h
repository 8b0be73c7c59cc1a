/* Time: monotonic for deadlines, wall clock for records. A deadline is absolute, in nanoseconds; DEADLINE_NEVER is no
 * deadline. */
#ifndef COMM_BASE_CLOCK_H
#define COMM_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define DEADLINE_NEVER INT64_MAX

static inline int64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t clock_wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Now or some milliseconds after, at a fifth of the price: for what is due, not for what is measured. */
static inline int64_t clock_soon_ns(void)
{
    enum { STEP_NS = 10000000 }; /* the coarse clock's, at most */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec + STEP_NS;
}

/* A timeout in ms (negative: none) as a deadline from now. */
static inline int64_t clock_deadline_ns(int64_t timeout_ms)
{
    int64_t now = clock_now_ns();
    if (timeout_ms < 0 || timeout_ms > (INT64_MAX - now) / 1000000)
        return DEADLINE_NEVER;
    return now + timeout_ms * 1000000;
}

/* Milliseconds left, rounded up, 0 if it has passed; -1 for never. */
static inline int64_t clock_left_ms(int64_t deadline_ns)
{
    if (deadline_ns == DEADLINE_NEVER)
        return -1;
    int64_t left = deadline_ns - clock_now_ns();
    return left <= 0 ? 0 : (left + 999999) / 1000000;
}

#endif

/* A condition variable whose timed waits end at times of clock_now_ns. The plugins, which do not know base/, have their
 * own. */
#ifndef COMM_BASE_MONOTONIC_COND_H
#define COMM_BASE_MONOTONIC_COND_H

#include <pthread.h>
#include <time.h>

static inline void monotonic_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

#endif

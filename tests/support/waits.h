/* Two ways to let time pass. */
#ifndef COMM_TESTS_WAITS_H
#define COMM_TESTS_WAITS_H

#include <poll.h>
#include <time.h>

#include "ranks.h"

static inline void pause_ms(int ms)
{
    struct timespec t = { 0, ms * 1000000L };
    nanosleep(&t, NULL);
}

/* Wait for the work as an event loop does, by its descriptor, without helping; then release it. */
static inline void await_descriptor(comm_work *work)
{
    int32_t fd;
    CHECK_OK(comm_work_fd(work, &fd));
    struct pollfd poller = { fd, POLLIN, 0 };
    CHECK(poll(&poller, 1, 20000) == 1);
    CHECK_OK(comm_work_status(work));
    comm_work_release(work);
}

#endif

/* A rank that is late once, for longer than the others poll, does not have them sleep in each wait after that. */
#include <string.h>
#include <time.h>

#include "core/exec/waiting.h"
#include "ranks.h"

int __real_waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since);
int __wrap_waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since);

enum { LATE_MS = 60, TIMES = 20 };

static int is_new, begins_anew; /* the next look is the first one of a wait; that may poll on */

int __wrap_waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since)
{
    if (is_new)
        begins_anew += w->poll_until_ns == 0;
    is_new = 0;
    return __real_waiting_look_again(w, now, idle_since);
}

/* The first rank waits for the second one. */
static void wait_for_late_rank(comm_group *world, int rank, int late_ms)
{
    const struct timespec late = { .tv_nsec = late_ms * 1000000L };
    int32_t value = 1;
    if (rank)
        nanosleep(&late, NULL);
    is_new = 1;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
}

static void long_waits_are_polled_after_one_that_was_too_long(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    int looked = 0;
    (void)size;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int i = 0; i < TIMES; i++) {
        wait_for_late_rank(world, rank, LATE_MS);
        begins_anew = 0;
        wait_for_late_rank(world, rank, 5);
        CHECK(is_new || rank || begins_anew);
        looked += !is_new;
    }
    CHECK(looked || rank); /* else it was late itself, each time */
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    return ranks_run(2, NULL, long_waits_are_polled_after_one_that_was_too_long, "cpu:shm") ||
           ranks_run(2, NULL, long_waits_are_polled_after_one_that_was_too_long, "cpu:tcp");
}

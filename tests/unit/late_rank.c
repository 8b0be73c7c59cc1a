/* A rank that is late once, for longer than the others poll, does not have them sleep in each wait after that; and for
 * one that is late the others wait where they do small operations at once. */
#include <string.h>
#include <time.h>

#include "core/exec/waiting.h"
#include "ranks.h"

int __real_waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since);
int __wrap_waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since);
int __real_waiting_polls_on(struct waiting *w, int64_t now, int64_t idle_since);
int __wrap_waiting_polls_on(struct waiting *w, int64_t now, int64_t idle_since);

enum { LATE_MS = 60, TIMES = 20 };

static int is_new, begins_anew; /* the next look is the first one of a wait; that may poll on */
static int engine_looks;

void __real_waiting_choose(struct waiting *w, const char *backend, const comm_world_info *info);
void __wrap_waiting_choose(struct waiting *w, const char *backend, const comm_world_info *info);

/* As with a core for each rank. */
void __wrap_waiting_choose(struct waiting *w, const char *backend, const comm_world_info *info)
{
    __real_waiting_choose(w, backend, info);
    w->is_crowded = w->yields = 0;
    w->yield_until_ns = 0;
    w->spin_ns = 100000;
    w->poll_ns = 20000000;
}

int __real_fabric_waits_on(void *fabric, int64_t idle_since);
int __wrap_fabric_waits_on(void *fabric, int64_t idle_since);

static int waits_on;

int __wrap_fabric_waits_on(void *fabric, int64_t idle_since)
{
    waits_on++;
    return __real_fabric_waits_on(fabric, idle_since);
}

static void look(const struct waiting *w)
{
    if (is_new)
        begins_anew += w->poll_until_ns == 0;
    is_new = 0;
}

/* In the engine. */
int __wrap_waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since)
{
    look(w);
    engine_looks++;
    return __real_waiting_look_again(w, now, idle_since);
}

/* Where an operation is done at once. */
int __wrap_waiting_polls_on(struct waiting *w, int64_t now, int64_t idle_since)
{
    look(w);
    w->no_poll_until_ns = 0; /* on a busy machine a yield may take long */
    return __real_waiting_polls_on(w, now, idle_since);
}

static void be_late(int late_ms)
{
    const struct timespec late = { .tv_nsec = late_ms * 1000000L };
    nanosleep(&late, NULL);
}

/* The first rank waits for the second one. */
static void wait_for_late_rank(comm_group *world, int rank, int late_ms)
{
    int32_t value = 1;
    if (rank)
        be_late(late_ms);
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
        for (int again = 0; again < 2; again++) { /* the first of these has polled, too */
            begins_anew = 0;
            wait_for_late_rank(world, rank, 5);
            CHECK(is_new || rank || begins_anew);
            looked += !is_new;
        }
    }
    CHECK(looked || rank); /* else it was late itself, each time */
    CHECK_OK(comm_group_close(world));
}

enum { VALUES = 64 << 10 };

static int32_t values[VALUES], sums[VALUES];

/* Of each kind that is done at once one. The last rank is late. */
static void meet_late_rank(comm_group *world, int kind, int rank, int size)
{
    static const int counts[] = { 1, 4 << 10, VALUES };
    if (rank == size - 1)
        be_late(2);
    if (kind < 3)
        CHECK_OK(comm_all_reduce(world, values, sums, (size_t)counts[kind], COMM_DTYPE_I32, COMM_REDOP_SUM, NULL,
                                 NULL));
    else if (rank == size - 1)
        CHECK_OK(comm_send(world, values, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    else if (rank == 0)
        CHECK_OK(comm_recv(world, sums, 1, COMM_DTYPE_I32, size - 1, NULL, NULL));
}

/* Once is enough: on a busy machine the first rank has the engine wait instead, and every 100 ms it looks around. Long
 * sums are done at once between two ranks only. */
static void late_ranks_are_waited_for_at_once(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    for (int kind = 0; kind < 4; kind++)
        for (int32_t again = kind != 2 || size == 2; again;) {
            CHECK_OK(comm_barrier(world, NULL, NULL));
            engine_looks = 0;
            is_new = 1;
            meet_late_rank(world, kind, rank, size);
            again = engine_looks || is_new;
            CHECK_OK(comm_broadcast(world, &again, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        }
    CHECK_OK(comm_group_close(world));
}

/* Where several ranks' messages are to be read, who is on time does not wait for who is late: the engine reads it. */
static void ranks_on_time_do_not_wait_for_late_ones(int rank, int size, void *arg)
{
    static int32_t gathered[3 * VALUES / 2];
    comm_group *world = ranks_world(arg);
    for (int i = 0; i < TIMES; i++) {
        CHECK_OK(comm_barrier(world, NULL, NULL));
        waits_on = 0;
        if (rank == 1)
            be_late(2);
        CHECK_OK(comm_gather(world, values, rank ? NULL : gathered, VALUES / 2, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK(rank || size == 2 || !waits_on);
    }
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    return ranks_run(2, NULL, long_waits_are_polled_after_one_that_was_too_long, "cpu:shm") ||
           ranks_run(2, NULL, long_waits_are_polled_after_one_that_was_too_long, "cpu:tcp") ||
           ranks_run(2, NULL, late_ranks_are_waited_for_at_once, "cpu:shm") ||
           ranks_run(3, NULL, late_ranks_are_waited_for_at_once, "cpu:shm?algo=all_reduce:recursive_doubling") ||
           ranks_run(3, NULL, ranks_on_time_do_not_wait_for_late_ones, "cpu:shm");
}

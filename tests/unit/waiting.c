/* How soon a waiting thread notices what it waits for. A lost wake-up fails nothing: some timer repairs it after 5 ms to 1 s. So each claim
 * here measures many wake-ups and bounds their median, which a loaded machine leaves far below the time of a repair. */
#include <comm/comm.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "ranks.h"

enum { TIMES = 200 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_median(const char *what, double *times_ms, size_t count, double most_ms)
{
    qsort(times_ms, count, sizeof *times_ms, compare_doubles);
    fprintf(stderr, "%s: median %.3f ms, most %.3f ms\n", what, times_ms[count / 2], times_ms[count - 1]);
    fflush(stdout);
    CHECK(times_ms[count / 2] < most_ms);
}

static comm_group *world_of(const char *backend)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.backend = backend;
    CHECK_OK(ranks_init(&options, &world));
    return world;
}

/* ---- Spinning ---- */

/* A rank that spins keeps the other one from running: two barriers would take twice the time that each may spin. */
static void ranks_on_one_core_do_not_spin_against_each_other(int rank, int size, void *arg)
{
    double times_ms[TIMES];
    cpu_set_t all, one;
    (void)size, (void)arg;
    comm_group *world = world_of("tcp?spin_us=2000");
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    for (int i = 0; i < TIMES; i++) {
        double begun_ms = now_ms();
        for (int k = 0; k < 4; k++) /* every other one may find that the message has come already */
            CHECK_OK(comm_barrier(world, NULL, NULL));
        times_ms[i] = now_ms() - begun_ms;
    }
    if (rank == 0)
        check_median("four barriers of two ranks on one core", times_ms, TIMES, 2);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options options = { .limit_s = 60, .name = "waiting" };
    return ranks_run(2, &options, ranks_on_one_core_do_not_spin_against_each_other, NULL);
}

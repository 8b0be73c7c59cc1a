/* A backend's helper thread leaves the cores to ranks that call one operation after the other: it looks less and less
 * often whether they still do. Each look takes the core from a rank for some microseconds: at one every 5 ms, with 4
 * ranks on 2 cores, the 99th percentile of operations of 10 us was twice as long. Counted is how often threads other
 * than the caller have gone to sleep, and so were awake. */
#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "ranks.h"

enum { RUN_MS = 400, ATTEMPTS = 5, BEGINS = 8, LOOK_MS = 15 };

static long sleeps_of(const char *thread)
{
    char name[300], line[200];
    long count = 0;
    snprintf(name, sizeof name, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
            break;
    if (file)
        fclose(file);
    return count;
}

static long sleeps_of_others(void)
{
    long own = syscall(SYS_gettid), sum = 0;
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads);
    for (const struct dirent *d; (d = readdir(threads)) != NULL;)
        if (*d->d_name != '.' && strtol(d->d_name, NULL, 10) != own)
            sum += sleeps_of(d->d_name);
    closedir(threads);
    return sum;
}

/* Of all ranks. */
static int32_t least(comm_group *world, int32_t value)
{
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_MIN, NULL, NULL));
    return value;
}

static void helper_lets_ranks_run(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    long sleeps = 0, most = 0;
    int is_seldom = 0;
    (void)rank;
    (void)size;
    for (int attempt = 0; attempt < ATTEMPTS && !is_seldom; attempt++) {
        int64_t began = clock_now_ns(), ms = 0;
        sleeps = -sleeps_of_others();
        while (least(world, ms < RUN_MS))
            ms = (clock_now_ns() - began) / 1000000;
        sleeps += sleeps_of_others();
        most = BEGINS + (clock_now_ns() - began) / 1000000 / LOOK_MS;
        is_seldom = least(world, sleeps <= most);
    }
    if (!is_seldom)
        ranks_fail(__FILE__, __LINE__, "other threads were awake %ld times, not %ld at most", sleeps, most);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    struct ranks_options options = { .limit_s = 20 };
    return ranks_run(2, &options, helper_lets_ranks_run, "cpu:shm") ||
           ranks_run(2, &options, helper_lets_ranks_run, "cpu:tcp");
}

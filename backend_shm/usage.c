#include "usage.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "greeting.h"

/* -1: it cannot be asked. Its cores are added. */
static int64_t used_by(pid_t pid, cpu_set_t *cores)
{
    clockid_t clock;
    struct timespec t;
    cpu_set_t its;
    if (pid <= 0 || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0 ||
        sched_getaffinity(pid, sizeof its, &its) != 0)
        return -1;
    CPU_OR(cores, cores, &its);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int contains(const pid_t *pids, int count, pid_t pid)
{
    while (count > 0 && pids[count - 1] != pid)
        count--;
    return count > 0;
}

int64_t usage_of_ranks(const void *fabric, int32_t *ret_cores)
{
    enum { MOST = 64 };
    const struct fabric *f = fabric;
    pid_t pids[MOST], mine = getpid();
    int count = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    int64_t used = used_by(mine, &cores);
    for (int32_t i = 0; i < f->up_count && used >= 0; i++) {
        pid_t pid = greeting_peer(f->up[i]->watch.fd);
        if (pid == mine || contains(pids, count, pid))
            continue; /* ranks may be threads of one process */
        int64_t its = count < MOST ? used_by(pid, &cores) : -1;
        if (its < 0)
            return -1;
        pids[count++] = pid;
        used += its;
    }
    *ret_cores = CPU_COUNT(&cores);
    return used;
}

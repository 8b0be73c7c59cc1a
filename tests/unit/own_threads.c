/* The program's signals are for its own threads: one that blocks a signal to wait for it, or to have it handled where
 * it likes, must not lose it to a thread of the library's. */
#include <dirent.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "ranks.h"

#if defined(__SANITIZE_THREAD__)
enum { BY_TSAN = 1 }; /* it has a thread, too, which blocks all */
#else
enum { BY_TSAN = 0 };
#endif

static int blocks(uint64_t mask, int signal)
{
    return (int)(mask >> (signal - 1) & 1);
}

static uint64_t blocked_by(const char *thread)
{
    char path[320], line[256];
    uint64_t mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file))
        sscanf(line, "SigBlk: %" SCNx64, &mask);
    fclose(file);
    return mask;
}

/* Gives how many threads there are beside this one. */
static int check_threads(void)
{
    static const int programs[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM, SIGPROF };
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
    int others = 0;
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads != NULL);
    for (struct dirent *e; (e = readdir(threads));) {
        if (e->d_name[0] == '.' || atoi(e->d_name) == (int)getpid())
            continue;
        others++;
        uint64_t mask;
        do /* a thread that begins has all of them blocked, for a moment */
            mask = blocked_by(e->d_name);
        while (blocks(mask, SIGSEGV) && !BY_TSAN && sched_yield() == 0);
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
            CHECK(blocks(mask, programs[i]));
        for (size_t i = 0; i < sizeof faults / sizeof *faults && !BY_TSAN; i++)
            CHECK(!blocks(mask, faults[i]));
    }
    closedir(threads);
    return others;
}

/* The server of a store; the helper, which an operation begins for which no thread waits; the watchdog. */
static void threads_leave_signals_alone(int rank, int size, void *backend)
{
    comm_store *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    comm_work *work;
    int32_t value = 1;
    (void)rank;
    options.serve = 1;
    CHECK_OK(comm_store_open("tcp://127.0.0.1:0", &options, &store));
    comm_group *world = ranks_world(backend);
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work));
    while (comm_work_status(work) == COMM_IN_PROGRESS)
        sched_yield();
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(value == size);
    comm_work_release(work);
    CHECK(check_threads() >= 1);
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

int main(void)
{
    if (access("/proc/self/task", R_OK) != 0)
        return 77;
    return ranks_run(2, NULL, threads_leave_signals_alone, "cpu:tcp") ||
           ranks_run(2, NULL, threads_leave_signals_alone, "cpu:shm");
}

/* Results of an all_reduce that the kernel writes to the other rank's memory: all lengths around the limits, in place
 * and not; kernels that refuse to write, or write less; a rank that stops as it is about to write, or has written, and
 * goes on after the other one's operation has ended and its memory is used for something else; and one that is
 * killed. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "vm_writes.h"

enum { MOST = 3 << 20, MOST_REFUSED = 16 /* those that are under way when a rank is refused first */ };

enum trouble { NONE, MAY_NOT, WRITES_LESS, STOPS_BEFORE, STOPS_AFTER, IS_KILLED, TROUBLES };

static const char *const names[TROUBLES] = {
    "no trouble", "may not write", "writes less", "stopped before it writes", "stopped after it has written", "killed",
};

static enum trouble trouble;
static const char *const backend = "cpu:shm?cma_measured=0";

ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                                 const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    struct iovec less = { local->iov_base, local->iov_len / 2 };
    if (vm_is_probe(local))
        return __real_process_vm_writev(pid, local, local_count, remote, remote_count, flags);
    int own = (int)getpid(), is_armed = atomic_compare_exchange_strong(&shared->armed, &own, 0);
    atomic_fetch_add(&shared->calls, 1);
    if (trouble == MAY_NOT) {
        errno = EPERM;
        return -1;
    }
    if (trouble == IS_KILLED && is_armed)
        raise(SIGKILL);
    if (trouble == STOPS_BEFORE && is_armed)
        vm_stop();
    ssize_t n = __real_process_vm_writev(pid, trouble == WRITES_LESS ? &less : local, local_count, remote,
                                         remote_count, flags);
    if (trouble == STOPS_AFTER && is_armed)
        vm_stop();
    if (is_armed)
        atomic_fetch_add(&shared->resumed, 1);
    return n;
}

static int32_t value_of(int rank, size_t i, int round)
{
    return (int32_t)(i * 2654435761u % 1000003 + (unsigned)(rank * 7 + round));
}

static void fill(int32_t *data, int rank, size_t count, int round)
{
    for (size_t i = 0; i < count; i++)
        data[i] = value_of(rank, i, round);
}

static void check_sum(const int32_t *data, size_t count, int round)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != value_of(0, i, round) + value_of(1, i, round))
            ranks_fail(__FILE__, __LINE__, "%zu elements, round %d: element %zu is %d", count, round, i, data[i]);
}

static void all_lengths(int rank, int size, void *arg)
{
    static const size_t limits[] = { 8 << 10, 32 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2500000 };
    int32_t *in = malloc(MOST), *out = malloc(MOST);
    comm_group *world = ranks_world(backend);
    int round = 0;
    (void)size, (void)arg;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (int more = -3; more <= 3; more++, round++) {
            size_t count = limits[i] / sizeof *in + (size_t)more;
            int in_place = round % 2;
            fill(in, rank, count, round);
            out[count] = 77;
            comm_op_options options = COMM_OP_OPTIONS_INIT;
            comm_work *work = NULL;
            CHECK_OK(comm_all_reduce(world, in, in_place ? in : out, count, COMM_DTYPE_I32, COMM_REDOP_SUM, &options,
                                     round % 3 ? NULL : &work));
            if (work)
                CHECK_OK(comm_work_wait(work, -1));
            comm_work_release(work);
            check_sum(in_place ? in : out, count, round);
            CHECK(in_place || out[count] == 77);
            for (size_t k = 0; !in_place && k < count; k++)
                CHECK(in[k] == value_of(rank, k, round));
        }
    CHECK_OK(comm_group_close(world));
    free(in);
    free(out);
}

/* Rank 1 stops. Rank 0's operation ends, and it uses the memory for something else before rank 1 goes on. */
static void stopped_writer(int rank, int size, void *arg)
{
    enum { COUNT = 128 << 10 };
    int32_t *data = malloc(COUNT * sizeof *data);
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    (void)size, (void)arg;
    for (int round = 0; round < 3; round++) {
        fill(data, rank, COUNT, round);
        CHECK_OK(comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        check_sum(data, COUNT, round);
    }
    fill(data, rank, COUNT, 0);
    if (rank == 1)
        atomic_store(&shared->armed, (int)getpid());
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 1) {
        options.timeout_ms = 20000;
        comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL);
    } else {
        options.timeout_ms = 300;
        comm_status status = comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL);
        CHECK(status != COMM_OK);
        memset(data, 0x11, COUNT * sizeof *data);
        int stopped = atomic_load(&shared->stopped);
        CHECK(stopped && stopped != getpid());
        kill((pid_t)stopped, SIGCONT);
        while (!atomic_load(&shared->resumed))
            sched_yield();
        for (size_t i = 0; i < COUNT; i++)
            CHECK(data[i] == 0x11111111);
    }
    comm_group_close(world);
    free(data);
}

static void killed_writer(int rank, int size, void *arg)
{
    enum { COUNT = 128 << 10 };
    int32_t *data = calloc(COUNT, sizeof *data);
    comm_status status = COMM_OK;
    comm_group *world = ranks_world(backend);
    (void)size, (void)arg;
    for (int round = 0; round < 1000 && status == COMM_OK; round++) {
        if (round == 10 && rank == 1)
            atomic_store(&shared->armed, (int)getpid());
        status = comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
    }
    CHECK(status == COMM_ERR_PEER_LOST);
    comm_group_close(world);
    free(data);
}

/* 1: a rank failed, none wrote, or what was refused was asked for again and again. */
static int run_as(enum trouble of_these, void (*fn)(int rank, int size, void *arg), uint64_t may_fail, int threads)
{
    struct ranks_options options = { .limit_s = 30, .name = names[of_these], .may_fail = may_fail, .threads = threads };
    trouble = of_these;
    memset(shared, 0, sizeof *shared);
    if (ranks_run(2, &options, fn, NULL))
        return 1;
    int calls = atomic_load(&shared->calls), most = of_these == MAY_NOT ? MOST_REFUSED : INT_MAX;
    if (calls == 0 || calls > most)
        printf("%s: the kernel was asked %d times to write a result\n", options.name, calls);
    return calls == 0 || calls > most;
}

static int run(enum trouble of_these, void (*fn)(int rank, int size, void *arg))
{
    return run_as(of_these, fn, of_these == IS_KILLED ? 3 : 0, 0);
}

int main(void)
{
    if (!vm_open())
        return 1;
    return run(NONE, all_lengths) || run_as(NONE, all_lengths, 0, 1) || run(MAY_NOT, all_lengths) ||
           run(WRITES_LESS, all_lengths) || run(STOPS_BEFORE, stopped_writer) || run(STOPS_AFTER, stopped_writer) ||
           run(IS_KILLED, killed_writer);
}

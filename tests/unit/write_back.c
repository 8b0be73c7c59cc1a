/* Results of an all_reduce that the kernel writes to the other rank's memory: all lengths around the limits, in place
 * and not, waited for or not, averages, and with another one in front; kernels that refuse to write, or write less; a
 * rank that stops as it is about to write, or has written, and goes on in time, or after the other one's operation has
 * ended and its memory is used for something else; and one that is killed. Of a length that is done in the thread that
 * calls, and of one that takes several slices. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
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
static const char *const backend = "cpu:shm?cma_measured=0&eager_bytes=4K"; /* a second round is never eager */

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
                                     (round + rank) % 3 ? NULL : &work));
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

/* Lengths that are done at once: but an average is divided, and what is in front is of another group. */
static void others(int rank, int size, void *arg)
{
    enum { COUNT = 40000 };
    static float values[COUNT];
    static int32_t data[COUNT], second[COUNT];
    comm_group *world = ranks_world(backend), *other = NULL;
    (void)size, (void)arg;
    CHECK_OK(comm_group_dup(world, NULL, &other));
    for (int round = 0; round < 10; round++) {
        comm_work *work = NULL;
        for (int i = 0; i < COUNT; i++)
            values[i] = (float)(i + rank);
        CHECK_OK(comm_all_reduce(world, values, values, COUNT, COMM_DTYPE_F32, COMM_REDOP_AVG, NULL, NULL));
        for (int i = 0; i < COUNT; i++)
            CHECK(values[i] == (float)i + 0.5f);
        fill(data, rank, COUNT, round);
        fill(second, rank, COUNT, round + 1);
        if (rank == 1)
            CHECK_OK(comm_all_reduce(other, second, second, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work));
        CHECK_OK(comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        check_sum(data, COUNT, round);
        if (rank == 0)
            CHECK_OK(comm_all_reduce(other, second, second, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(rank == 0 || comm_work_wait(work, -1) == COMM_OK);
        comm_work_release(work);
        check_sum(second, COUNT, round + 1);
    }
    CHECK_OK(comm_group_close(other));
    CHECK_OK(comm_group_close(world));
}

/* Elements. Of either a part is longer than an eager message. */
enum { AT_ONCE = 48 << 10, SLICED = 128 << 10 };
static const size_t counts[] = { AT_ONCE, SLICED };

static void warm_up(comm_group *world, int rank, int32_t *data, size_t count)
{
    for (int round = 0; round < 3; round++) {
        fill(data, rank, count, round);
        CHECK_OK(comm_all_reduce(world, data, data, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        check_sum(data, count, round);
    }
}

/* The next one in which rank 1 writes stops it. */
static void arm(comm_group *world, int rank, int32_t *data, size_t count)
{
    warm_up(world, rank, data, count);
    fill(data, rank, count, 0);
    if (rank == 1)
        atomic_store(&shared->armed, (int)getpid());
    CHECK_OK(comm_barrier(world, NULL, NULL));
}

static _Atomic int is_watched, is_submitted; /* rank 0's operation: it no longer waits in the call */

comm_work *__real_comm__work_take(comm_group *group);
comm_work *__wrap_comm__work_take(comm_group *group);

comm_work *__wrap_comm__work_take(comm_group *group)
{
    atomic_store(&is_submitted, atomic_load(&is_watched));
    return __real_comm__work_take(group);
}

static void *resume(void *unused)
{
    while (!atomic_load(&shared->stopped) || !atomic_load(&is_submitted))
        sched_yield();
    vm_go_on(atomic_load(&shared->stopped));
    return unused;
}

static void late_writer(int rank, int size, void *arg)
{
    const size_t count = *(const size_t *)arg;
    int32_t *data = malloc(count * sizeof *data);
    comm_group *world = ranks_world(backend);
    pthread_t thread;
    (void)size;
    arm(world, rank, data, count);
    atomic_store(&is_watched, 1);
    CHECK(rank != 0 || pthread_create(&thread, NULL, resume, NULL) == 0);
    CHECK_OK(comm_all_reduce(world, data, data, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    check_sum(data, count, 0);
    CHECK(rank != 0 || pthread_join(thread, NULL) == 0);
    warm_up(world, rank, data, count);
    CHECK_OK(comm_group_close(world));
    free(data);
}

/* Rank 1 stops. Rank 0's operation ends, and it uses the memory for something else before rank 1 goes on. */
static void stopped_writer(int rank, int size, void *arg)
{
    const size_t count = *(const size_t *)arg;
    int32_t *data = malloc(count * sizeof *data);
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    (void)size;
    arm(world, rank, data, count);
    if (rank == 1) {
        options.timeout_ms = 20000;
        comm_all_reduce(world, data, data, count, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL);
    } else {
        options.timeout_ms = 300;
        comm_status status = comm_all_reduce(world, data, data, count, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL);
        CHECK(status != COMM_OK);
        memset(data, 0x11, count * sizeof *data);
        int stopped = atomic_load(&shared->stopped);
        CHECK(stopped && stopped != getpid());
        vm_go_on(stopped);
        for (size_t i = 0; i < count; i++)
            CHECK(data[i] == 0x11111111);
    }
    comm_group_close(world);
    free(data);
}

static void killed_writer(int rank, int size, void *arg)
{
    const size_t count = *(const size_t *)arg;
    int32_t *data = calloc(count, sizeof *data);
    comm_status status = COMM_OK;
    comm_group *world = ranks_world(backend);
    (void)size;
    for (int round = 0; round < 1000 && status == COMM_OK; round++) {
        if (round == 10 && rank == 1)
            atomic_store(&shared->armed, (int)getpid());
        status = comm_all_reduce(world, data, data, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
    }
    CHECK(status == COMM_ERR_PEER_LOST);
    comm_group_close(world);
    free(data);
}

/* 1: a rank failed, none wrote, or what was refused was asked for again and again. */
static int run_as(enum trouble of_these, void (*fn)(int rank, int size, void *arg), size_t count, uint64_t may_fail,
                  int threads)
{
    struct ranks_options options = { .limit_s = 30, .name = names[of_these], .may_fail = may_fail, .threads = threads };
    trouble = of_these;
    memset(shared, 0, sizeof *shared);
    if (ranks_run(2, &options, fn, &count))
        return 1;
    int calls = atomic_load(&shared->calls), most = of_these == MAY_NOT ? MOST_REFUSED : INT_MAX;
    if (calls == 0 || calls > most)
        printf("%s: the kernel was asked %d times to write a result\n", options.name, calls);
    return calls == 0 || calls > most;
}

static int run(enum trouble of_these, void (*fn)(int rank, int size, void *arg))
{
    int failed = 0;
    for (size_t i = 0; !failed && i < sizeof counts / sizeof *counts; i++)
        failed = run_as(of_these, fn, counts[i], of_these == IS_KILLED ? 3 : 0, 0);
    return failed;
}

int main(void)
{
    if (!vm_open())
        return 1;
    return run_as(NONE, others, 0, 0, 0) || run_as(NONE, all_lengths, 0, 0, 0) ||
           run_as(NONE, all_lengths, 0, 0, 1) || run_as(MAY_NOT, all_lengths, 0, 0, 0) ||
           run_as(WRITES_LESS, all_lengths, 0, 0, 0) || run(STOPS_BEFORE, late_writer) ||
           run(STOPS_AFTER, late_writer) || run(STOPS_BEFORE, stopped_writer) || run(STOPS_AFTER, stopped_writer) ||
           run(IS_KILLED, killed_writer);
}

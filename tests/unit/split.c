/* Long messages of which the sender, while it waits, writes parts to the receiver's memory: all lengths around the
 * limits; a sender that stops before it writes, and goes on after the receiver has used the memory for something else;
 * one that is killed; and kernels that refuse to write, or write less. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "ranks.h"
#include "vm_writes.h"

enum { MOST = 4 << 20 };

enum trouble { NONE, STOPS, STOPS_LATER, IS_KILLED, MAY_NOT, WRITES_LESS, LESS_AND_STOPS, TROUBLES };

static const char *const names[TROUBLES] = {
    "no trouble", "stopped before it writes", "stopped after it has written", "killed", "may not write", "writes less",
    "writes less, and would stop before the next part",
};

/* Calls of process_vm_writev. On a busy machine a sender is seldom there in time. */
enum { WANTED = 10, ROUNDS_MAX = 4000 };

static enum trouble trouble;
static _Thread_local uint8_t behind; /* what lies behind a message: something else at each rank */

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags);

ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                                 const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    struct iovec less = { local->iov_base, local->iov_len - 1 };
    if (vm_is_probe(local))
        return __real_process_vm_writev(pid, local, local_count, remote, remote_count, flags);
    int is_armed = atomic_exchange(&shared->armed, 0);
    atomic_fetch_add(&shared->calls, 1);
    if (trouble == MAY_NOT) {
        errno = EPERM;
        return -1;
    }
    if (trouble == IS_KILLED && is_armed)
        raise(SIGKILL);
    if ((trouble == STOPS && is_armed) || (trouble == LESS_AND_STOPS && !is_armed))
        vm_stop();
    if (trouble == WRITES_LESS || (trouble == LESS_AND_STOPS && is_armed))
        local = &less;
    ssize_t n = __real_process_vm_writev(pid, local, local_count, remote, remote_count, flags);
    if (trouble == STOPS_LATER && is_armed)
        vm_stop();
    atomic_fetch_add(&shared->resumed, 1);
    return n;
}

/* The receiver gives the sender some time for a part. */
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    int before = atomic_load(&shared->calls);
    for (int turn = 0; local->iov_len >= 32 << 10 && turn < 20 && atomic_load(&shared->calls) == before; turn++)
        sched_yield();
    return __real_process_vm_readv(pid, local, local_count, remote, remote_count, flags);
}

/* Do both ranks go on? */
static int is_next(comm_group *world, int rank, uint32_t round)
{
    const int wanted = trouble == MAY_NOT ? 1 : WANTED;
    if (rank == 0)
        atomic_store(&shared->done, atomic_load(&shared->calls) >= wanted || round >= ROUNDS_MAX);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    int done = atomic_load(&shared->done);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    return !done;
}

static uint32_t value_of(size_t i, uint32_t round)
{
    return (uint32_t)i * 2654435761u + round;
}

static void fill(uint32_t *data, size_t bytes, uint32_t round)
{
    for (size_t i = 0; i < bytes / 4; i++)
        data[i] = value_of(i, round);
}

static void check(const uint32_t *data, size_t bytes, uint32_t round)
{
    for (size_t i = 0; i < bytes / 4; i++)
        CHECK(data[i] == value_of(i, round));
    CHECK(((const uint8_t *)data)[bytes] == behind);
}

static uint32_t *new_data(int rank)
{
    behind = (uint8_t)(0xe0 + rank);
    return malloc(MOST + 64);
}

/* At once, or by the engine. */
static void receive(comm_group *world, uint32_t *data, size_t bytes, int at_once)
{
    comm_work *work = NULL;
    CHECK_OK(comm_recv(world, data, bytes, COMM_DTYPE_U8, 0, NULL, at_once ? NULL : &work));
    if (work)
        CHECK_OK(comm_work_wait(work, -1));
    comm_work_release(work);
}

/* From 0 to 1, and a broadcast of 1's. */
static void send_and_broadcast(comm_group *world, int rank, uint32_t *data, size_t bytes, uint32_t round)
{
    memset(data, behind, bytes + 1);
    if (rank == 0) {
        fill(data, bytes, round);
        CHECK_OK(comm_send(world, data, bytes, COMM_DTYPE_U8, 1, NULL, NULL));
    } else {
        receive(world, data, bytes, round % 4 == 0);
        check(data, bytes, round);
        fill(data, bytes, round + 1);
    }
    CHECK_OK(comm_broadcast(world, data, bytes, COMM_DTYPE_U8, 1, NULL, NULL));
    check(data, bytes, round + 1);
}

static void all_lengths(int rank, int size, void *arg)
{
    static const size_t limits[] = { 64 << 10, 96 << 10, 128 << 10, 192 << 10, 256 << 10, 1000000, 1 << 20,
                                      3000000, MOST };
    uint32_t *data = new_data(rank), round = 0;
    comm_group *world = ranks_world(arg ? arg : "cpu:shm?cma_measured=0&eager_bytes=16K");
    (void)size;
    do
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
            for (int more = -4; more <= 4; more += 4, round += 2)
                if (limits[i] + (size_t)more <= MOST)
                    send_and_broadcast(world, rank, data, limits[i] + (size_t)more, round);
    while (is_next(world, rank, round));
    CHECK_OK(comm_group_close(world));
    free(data);
}

/* The receiver has what was sent, and uses the memory for something else, before the sender goes on. */
static void use_memory_again(uint32_t *data, size_t bytes, uint32_t round)
{
    check(data, bytes, round);
    memset(data, 0x11, bytes);
    if (!atomic_load(&shared->stopped))
        return;
    vm_go_on(atomic_exchange(&shared->stopped, 0));
    for (size_t i = 0; i < bytes; i++)
        CHECK(((const uint8_t *)data)[i] == 0x11);
}

static void stopped_sender(int rank, int size, void *arg)
{
    enum { BYTES = 512 << 10 };
    uint32_t *data = new_data(rank);
    comm_group *world = ranks_world("cpu:shm?cma_measured=0");
    (void)size, (void)arg;
    for (uint32_t round = 0; is_next(world, rank, round); round++) {
        memset(data, behind, BYTES + 1);
        if (rank == 0) {
            fill(data, BYTES, round);
            atomic_store(&shared->armed, 1);
            CHECK_OK(comm_send(world, data, BYTES, COMM_DTYPE_U8, 1, NULL, NULL));
            atomic_store(&shared->armed, 0);
        } else {
            CHECK_OK(comm_recv(world, data, BYTES, COMM_DTYPE_U8, 0, NULL, NULL));
            use_memory_again(data, BYTES, round);
        }
    }
    CHECK_OK(comm_group_close(world));
    free(data);
}

static void killed_sender(int rank, int size, void *arg)
{
    enum { BYTES = 512 << 10 };
    uint32_t *data = new_data(rank);
    comm_status status = COMM_OK;
    comm_group *world = ranks_world("cpu:shm?cma_measured=0");
    (void)size, (void)arg;
    memset(data, 1, BYTES);
    for (int round = 0; round < ROUNDS_MAX && status == COMM_OK; round++) {
        atomic_store(&shared->armed, 1);
        status = rank == 0 ? comm_send(world, data, BYTES, COMM_DTYPE_U8, 1, NULL, NULL)
                           : comm_recv(world, data, BYTES, COMM_DTYPE_U8, 0, NULL, NULL);
    }
    CHECK(status == COMM_ERR_PEER_LOST);
    CHECK_OK(comm_group_close(world));
    free(data);
}

/* 1: a rank failed, or no sender wrote a part. */
static int run_as(enum trouble of_these, void (*fn)(int rank, int size, void *arg), void *arg, uint64_t may_fail,
                  int threads)
{
    struct ranks_options options = { .limit_s = 20, .name = names[of_these], .may_fail = may_fail, .threads = threads };
    trouble = of_these;
    memset(shared, 0, sizeof *shared);
    if (ranks_run(2, &options, fn, arg))
        return 1;
    if (!atomic_load(&shared->calls))
        printf("%s: no sender wrote a part\n", options.name);
    return !atomic_load(&shared->calls);
}

static int run(enum trouble of_these, void (*fn)(int rank, int size, void *arg))
{
    return run_as(of_these, fn, NULL, of_these == IS_KILLED, 0);
}

int main(void)
{
    if (!vm_open())
        return 1;
    return run(NONE, all_lengths) || run_as(NONE, all_lengths, "cpu:shm?cma_measured=0&eager_bytes=128K", 0, 0) ||
           run_as(NONE, all_lengths, NULL, 0, 1) || run(WRITES_LESS, all_lengths) || run(MAY_NOT, all_lengths) ||
           run(STOPS, stopped_sender) || run(STOPS_LATER, stopped_sender) || run(LESS_AND_STOPS, stopped_sender) ||
           run(IS_KILLED, killed_sender);
}

/* A rank that has no descriptor left when others lend it memory that it would have to map: registered memory, staging
 * areas, copies for several. All goes on as before, another way. And one that has none when it connects. */
#include <comm/comm.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks.h"

enum { MOST = 100000 /* elements */, MOST_DESCRIPTORS = 128 };

static int taken[MOST_DESCRIPTORS], taken_count;
static struct rlimit before;

/* No descriptor can be made any more; those that there are stay. */
static void take_descriptors(void)
{
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const struct rlimit few = { .rlim_cur = MOST_DESCRIPTORS, .rlim_max = before.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (int fd; (fd = dup(STDIN_FILENO)) >= 0;)
        taken[taken_count++] = fd;
}

static void give_descriptors(void)
{
    while (taken_count)
        close(taken[--taken_count]);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

static void fill(int32_t *data, size_t count, int32_t first)
{
    for (size_t i = 0; i < count; i++)
        data[i] = first + (int32_t)i;
}

static void check(const int32_t *data, size_t count, int32_t first, int32_t step)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != first + step * (int32_t)i)
            ranks_fail(__FILE__, __LINE__, "element %zu of %zu: %d, not %d", i, count, (int)data[i],
                       (int)(first + step * (int32_t)i));
}

static void reduce_and_gather(comm_group *world, int rank, int size, int32_t *in, int32_t *out)
{
    static const size_t counts[] = { 1, 2000, 6000, 15000, 30000, MOST };
    const int32_t sum = size * (size - 1) / 2;
    for (int step = 0; step < 60; step++) {
        const size_t count = counts[step % 6], part = count / (size_t)size;
        fill(in, count, rank + step);
        CHECK_OK(comm_all_reduce(world, in, out, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        check(out, count, sum + size * step, size);
        CHECK_OK(comm_all_gather(world, in, out, part, COMM_DTYPE_I32, NULL, NULL));
        for (int i = 0; i < size; i++)
            check(out + (size_t)i * part, part, i + step, 1);
        if (rank == step % size)
            fill(out, count, step);
        CHECK_OK(comm_broadcast(world, out, count, COMM_DTYPE_I32, step % size, NULL, NULL));
        check(out, count, step, 1);
    }
}

static int warnings;

static void count_warnings(int32_t level, const char *text, void *context)
{
    (void)context;
    warnings += level == COMM_LOG_WARN && strstr(text, "shares: Too many open files. ") != NULL;
}

/* It says so once for each peer that lends to it: of what is registered all do. */
static void one_has_no_descriptors(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    int32_t *in = malloc(MOST * sizeof *in), *out = malloc(MOST * sizeof *out);
    comm_memory *memory[2];
    void *shared_in, *shared_out;
    CHECK(in && out);
    CHECK_OK(comm_mem_alloc(world, MOST * sizeof *in, COMM_DEVICE_DEFAULT, &shared_in, &memory[0]));
    CHECK_OK(comm_mem_alloc(world, MOST * sizeof *out, COMM_DEVICE_DEFAULT, &shared_out, &memory[1]));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    comm_log_set(count_warnings, NULL);
    if (rank == size - 1)
        take_descriptors();
    CHECK_OK(comm_barrier(world, NULL, NULL));
    reduce_and_gather(world, rank, size, in, out);
    reduce_and_gather(world, rank, size, shared_in, shared_out);
    if (rank == size - 1)
        give_descriptors();
    CHECK(warnings == (rank == size - 1 ? size - 1 : 0));
    CHECK_OK(comm_mem_release(memory[0]));
    CHECK_OK(comm_mem_release(memory[1]));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
    free(in);
    free(out);
}

static _Atomic int *turn; /* of the two ranks */
static atomic_int loses_its_core; /* each time that it has greeted a rank */

int __real_greeting_send(int fd, const void *data, size_t bytes, const int *fds, int fd_count);
int __wrap_greeting_send(int fd, const void *data, size_t bytes, const int *fds, int fd_count);

int __wrap_greeting_send(int fd, const void *data, size_t bytes, const int *fds, int fd_count)
{
    enum { A_WHILE_US = 12000 };
    int sent = __real_greeting_send(fd, data, bytes, fds, fd_count);
    if (loses_its_core)
        usleep(A_WHILE_US);
    return sent;
}

static void await_turn(int number)
{
    while (atomic_load(turn) < number)
        sched_yield();
}

/* Rank 1 has `few` when it connects, or when rank 0 connects to it. It, or both, try until there are some again. */
struct few {
    int left, rank_0_is_first, rank_0_is_slow;
    const char *backend;
};

static void one_waits_for_descriptors(int rank, int size, void *arg)
{
    enum { A_WHILE_MS = 50 };
    const struct few *few = arg;
    comm_group *world = ranks_world(few->backend);
    int32_t data = rank, other = -1;
    comm_work *work = NULL;
    (void)size;
    loses_its_core = rank == 0 && few->rank_0_is_slow;
    if (rank == 1) {
        take_descriptors();
        for (int i = 0; i < few->left; i++)
            close(taken[--taken_count]);
        atomic_store(turn, 1);
    }
    await_turn(few->rank_0_is_first ? 1 : 1 + (rank == 0));
    if (rank == 1 && few->rank_0_is_first)
        await_turn(2);
    else
        CHECK_OK(rank == 0 ? comm_send(world, &data, 1, COMM_DTYPE_I32, 1, NULL, &work)
                           : comm_recv(world, &other, 1, COMM_DTYPE_I32, 0, NULL, &work));
    if (work) {
        comm_status status = comm_work_wait(work, A_WHILE_MS);
        CHECK(status == COMM_ERR_TIMEOUT || status == COMM_OK);
    }
    atomic_fetch_add(turn, 1);
    if (rank == 1) {
        give_descriptors();
        if (!work)
            CHECK_OK(comm_recv(world, &other, 1, COMM_DTYPE_I32, 0, NULL, &work));
    }
    CHECK_OK(comm_work_wait(work, COMM_TIMEOUT_DEFAULT));
    CHECK(rank == 0 || other == 0);
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

/* Descriptors of the program's: the library must not touch them, though it had these numbers. */
enum { FILES = 40, FILE_BYTES = 38 };

static void open_files(int fds[FILES])
{
    for (int i = 0; i < FILES; i++) {
        fds[i] = memfd_create("program", MFD_CLOEXEC);
        CHECK(fds[i] >= 0 && ftruncate(fds[i], FILE_BYTES) == 0);
    }
}

static void check_files(const int fds[FILES])
{
    struct stat s;
    for (int i = 0; i < FILES; i++)
        CHECK(fstat(fds[i], &s) == 0 && s.st_size == FILE_BYTES && lseek(fds[i], 0, SEEK_CUR) == 0);
}

/* As a program does that becomes a daemon after comm_init. */
static void one_closes_all_descriptors(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    comm_memory *memory;
    void *data;
    int32_t number = rank;
    int fds[FILES];
    (void)size;
    CHECK_OK(comm_mem_alloc(world, 4096, COMM_DEVICE_DEFAULT, &data, &memory));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 0) {
        CHECK_STATUS(comm_recv(world, &number, 1, COMM_DTYPE_I32, 1, NULL, NULL), COMM_ERR_PEER_LOST);
        CHECK_OK(comm_group_close(world));
        return;
    }
    CHECK(close_range(STDERR_FILENO + 1, ~0u, 0) == 0);
    CHECK(comm_recv(world, &number, 1, COMM_DTYPE_I32, 0, NULL, NULL) != COMM_OK);
    CHECK_ERROR_SAYS("cannot be heard any more: this rank's program has closed libcomm's descriptors");
    open_files(fds);
    CHECK_OK(comm_mem_release(memory));
    poll(NULL, 0, 250); /* the helper thread would look meanwhile */
    check_files(fds);
    _exit(0);
}

static int few_descriptors(const char *backend)
{
    enum { MOST_LEFT = 5 };
    for (int i = 0; i < 4 * MOST_LEFT; i++) {
        struct few few = { .left = i / 4, .rank_0_is_first = i % 2, .rank_0_is_slow = i / 2 % 2, .backend = backend };
        atomic_store(turn, 0);
        if (ranks_run(2, NULL, one_waits_for_descriptors, &few)) {
            printf("%d descriptors left, rank %d is first, %s\n", few.left, !few.rank_0_is_first, backend);
            return 1;
        }
    }
    return 0;
}

/* Whatever the last one was wanted for, the error says what to do. */
static void opening_says_what_to_raise(int rank, int size, void *arg)
{
    static const char *const meeting_points[] = { "hash://", "tcp://127.0.0.1:0" };
    (void)rank, (void)size;
    setenv("COMM_LOG", "error", 1);
    for (int i = 0; i < 2; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world;
        comm_status status = COMM_ERR_SYSTEM;
        options.world_size = 1;
        options.rendezvous = meeting_points[i];
        options.backend = arg;
        options.timeout_ms = 1000;
        for (int left = 0; status != COMM_OK; left++) {
            take_descriptors();
            CHECK(left < taken_count);
            for (int k = 0; k < left; k++)
                close(taken[--taken_count]);
            status = comm_init(&options, &world);
            if (status != COMM_OK)
                CHECK_ERROR_SAYS("(raise the limit: ulimit -n)");
            give_descriptors();
        }
        CHECK_OK(comm_group_close(world));
    }
}

int main(void)
{
    turn = mmap(NULL, sizeof *turn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(turn != MAP_FAILED);
    if (ranks_run(2, NULL, one_closes_all_descriptors, "cpu:shm") || few_descriptors("cpu:shm") ||
        few_descriptors("cpu:shm-tcp"))
        return 1;
    if (ranks_run(1, NULL, opening_says_what_to_raise, "cpu:tcp") ||
        ranks_run(1, NULL, opening_says_what_to_raise, "cpu:shm"))
        return 1;
    for (int size = 2; size <= 4; size++)
        if (ranks_run(size, NULL, one_has_no_descriptors, "cpu:shm") ||
            ranks_run(size, NULL, one_has_no_descriptors, "cpu:shm?cma_bytes=0") ||
            ranks_run(size, NULL, one_has_no_descriptors, "cpu:shm-tcp"))
            return 1;
    return 0;
}

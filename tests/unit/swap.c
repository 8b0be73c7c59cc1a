/* Sums of two ranks that are begun in the call and go on in the engine, where something happens in between: the other
 * rank completes and closes its world; there is no memory for the operation. And ranks that differ in whether they may
 * read each other's memory. */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "exec_group.h"
#include "ranks.h"

struct shared {
    _Atomic int arrived;  /* ranks that are about to call */
    _Atomic int given_up; /* times that rank 0 waits no longer, and perhaps had summed and written before */
    _Atomic int done;     /* rank 0 has its memory again */
    _Atomic int ended;    /* rank 1's operation */
};

static struct shared *shared;
static int is_armed, has_no_memory, waits; /* in rank 0 */
static int has_begun;               /* its operation goes on in the engine */
static comm_work *never;            /* a receive that ends when the other rank has gone */

int __real_duplex_is_read(void *duplex, void *tx);
int __wrap_duplex_is_read(void *duplex, void *tx);
comm_status __real_swap_run(const void *swap, void *fabric, struct exec_group *g, const void *op, const void *head,
                            int64_t ns);
comm_status __wrap_swap_run(const void *swap, void *fabric, struct exec_group *g, const void *op, const void *head,
                            int64_t ns);
comm_work *__real_comm__work_take(comm_group *group);
comm_work *__wrap_comm__work_take(comm_group *group);
comm_status __real_queue_expect(void *domain, size_t count);
comm_status __wrap_queue_expect(void *domain, size_t count);

int __wrap_duplex_is_read(void *duplex, void *tx)
{
    return is_armed ? 0 : __real_duplex_is_read(duplex, tx);
}

comm_status __wrap_swap_run(const void *swap, void *fabric, struct exec_group *g, const void *op, const void *head,
                            int64_t ns)
{
    comm_status status = __real_swap_run(swap, fabric, g, op, head, ns);
    has_begun = is_armed && status == COMM_IN_PROGRESS;
    if (has_begun && g->begun.received)
        atomic_fetch_add(&shared->given_up, 1);
    return status;
}

/* Between `run` and `submit`, without a lock: until the other rank has gone. Another thread notices that. */
comm_work *__wrap_comm__work_take(comm_group *group)
{
    enum { LIMIT_S = 5 };
    const time_t until = time(NULL) + LIMIT_S;
    if (waits)
        atomic_store(&shared->given_up, 1);
    while ((has_begun || waits) && !has_no_memory && never && comm_work_status(never) == COMM_IN_PROGRESS &&
           time(NULL) < until)
        sched_yield();
    return __real_comm__work_take(group);
}

comm_status __wrap_queue_expect(void *domain, size_t count)
{
    return has_begun && has_no_memory ? COMM_ERR_NO_MEMORY : __real_queue_expect(domain, count);
}

/* ---- The ranks ---- */

enum { COUNT = 48 << 10, ROUNDS = 3 };

static void fill(int32_t *data, int rank)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = i * (rank + 1);
}

static void check_sum(const int32_t *data)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(data[i] == 3 * i);
}

static void sum(comm_group *world, int rank, int32_t *data)
{
    fill(data, rank);
    CHECK_OK(comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    check_sum(data);
}

static void meet(void)
{
    atomic_fetch_add(&shared->arrived, 1);
    while (atomic_load(&shared->arrived) < 2)
        sched_yield();
}

static void other_leaves(int rank, int size, void *arg)
{
    static int32_t data[COUNT], nothing;
    comm_group *world = ranks_world(arg), *other = NULL;
    (void)size;
    CHECK_OK(comm_group_dup(world, NULL, &other));
    for (int i = 0; i < ROUNDS; i++)
        sum(world, rank, data);
    if (rank == 0) /* as long as it waits for this, a thread looks */
        CHECK_OK(comm_recv(other, &nothing, 1, COMM_DTYPE_I32, 1, NULL, &never));
    meet();
    is_armed = rank == 0;
    sum(world, rank, data);
    is_armed = 0;
    comm_work_release(never);
    comm_group_close(other);
    comm_group_close(world);
}

/* Without the broadcast that rank 0 has begun in the call: then that must not be complete. */
static void other_leaves_without_it(int rank, int size, void *arg)
{
    static int32_t data[4 * COUNT], nothing;
    comm_group *world = ranks_world(arg), *other = NULL;
    (void)size;
    CHECK_OK(comm_group_dup(world, NULL, &other));
    for (int i = 0; i < 3 * ROUNDS; i++)
        CHECK_OK(comm_broadcast(world, data, 4 * COUNT, COMM_DTYPE_I32, 0, NULL, NULL));
    if (rank == 0)
        CHECK_OK(comm_recv(other, &nothing, 1, COMM_DTYPE_I32, 1, NULL, &never));
    meet();
    if (rank == 0) {
        waits = 1;
        CHECK_STATUS(comm_broadcast(world, data, 4 * COUNT, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_PEER_LOST);
        waits = 0;
    }
    while (rank == 1 && !atomic_load(&shared->given_up))
        sched_yield();
    comm_work_release(never);
    comm_group_close(other);
    comm_group_close(world);
}

static void no_memory(int rank, int size, void *arg)
{
    static int32_t data[COUNT];
    comm_group *world = ranks_world(arg);
    (void)size;
    for (int i = 0; i < ROUNDS; i++)
        sum(world, rank, data);
    fill(data, rank);
    if (rank == 0) {
        is_armed = has_no_memory = 1;
        comm_status status = comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
        is_armed = has_no_memory = 0;
        CHECK(status != COMM_OK);
        memset(data, 0x11, sizeof data);
        atomic_store(&shared->done, 1);
        while (!atomic_load(&shared->ended))
            sched_yield();
        for (int i = 0; i < COUNT; i++)
            CHECK(data[i] == 0x11111111);
    } else {
        while (!atomic_load(&shared->done))
            sched_yield();
        comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
        atomic_store(&shared->ended, 1);
    }
    comm_group_close(world);
}

/* It is a setting of each process. */
static void some_read(int rank, int size, void *arg)
{
    enum { LONG = 1 << 20 };
    int32_t *data = malloc(LONG * sizeof *data);
    CHECK(data);
    if (rank == 1)
        setenv("COMM_SHM_CMA_BYTES", "0", 1);
    comm_group *world = ranks_world(arg);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LONG; i++)
            data[i] = i + rank;
        CHECK_OK(comm_all_reduce(world, data, data, LONG, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        for (int i = 0; i < LONG; i++)
            CHECK(data[i] == size * i + size * (size - 1) / 2);
    }
    CHECK_OK(comm_group_close(world));
    free(data);
}

/* ---- Runs ---- */

static int run(int size, const char *name, void (*fn)(int rank, int size, void *arg), char *backend)
{
    memset(shared, 0, sizeof *shared);
    return ranks_run(size, &(struct ranks_options){ .limit_s = 20, .name = name }, fn, backend);
}

/* The other one may be late, and rank 0 give up earlier: then once more. */
static int run_leaving(char *backend)
{
    enum { TIMES = 30 };
    int failed = 0, given_up = 0;
    for (int i = 0; i < TIMES && !failed && !given_up; i++) {
        failed = run(2, "the other one leaves", other_leaves, backend);
        given_up = atomic_load(&shared->given_up);
    }
    if (!failed && !given_up)
        printf("the other one leaves, %s: rank 0 never gave up after it had summed\n", backend);
    return failed || !given_up;
}

int main(void)
{
    static char by_kernel[] = "cpu:shm?cma_measured=0", staged[] = "cpu:shm?cma_bytes=0", usual[] = "cpu:shm";
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    return run(2, "the other one leaves without it", other_leaves_without_it, by_kernel) || run_leaving(by_kernel) ||
           run_leaving(staged) || run(2, "no memory, by the kernel", no_memory, by_kernel) ||
           run(2, "no memory, staged", no_memory, staged) || run(4, "some read", some_read, usual);
}

/* A rank that only sends yields its core now and then where ranks share cores, and never where each has its own; also
 * when the engine does the op, as for messages above 16 KiB. What is sent fits into the rings, and who receives does
 * not run meanwhile, so that nothing else lets a rank yield. One that sends to several yields sooner.
 *
 * And when there is no room for more it waits for some, before the engine announces a message: who receives does not
 * run until it does. Several that send short messages to one wait in the same operations. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "backend_shm/room.h"
#include "ranks.h"

enum { BYTES_MAX = 72 << 10 };

static const struct row {
    size_t bytes;
    int calls, yields, of_several; /* messages in each call */
} rows[] = {
    { 8, 300, 0, 0 },      { 4092, 64, 0, 0 },   { 4096, 64, 16, 32 }, { 8192, 16, 4, 8 },  { 12000, 12, 3, 6 },
    { 16 << 10, 8, 2, 4 }, { 20 << 10, 9, 3, 9 }, { 33 << 10, 5, 5, 5 }, { 64 << 10, 5, 5, 5 }, { BYTES_MAX, 5, 0, 0 },
};

struct run {
    pthread_barrier_t *meeting; /* of all ranks, in the kernel */
    const char *backend;
    int shares_cores, from;
};

static int yields;

int __real_sched_yield(void);
int __wrap_sched_yield(void);

int __wrap_sched_yield(void)
{
    yields++;
    return __real_sched_yield();
}

static pthread_barrier_t *is_full; /* NULL: nobody waits for that */

int __real_room_await(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns);
int __wrap_room_await(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns);

int __wrap_room_await(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns)
{
    if (is_full)
        pthread_barrier_wait(is_full);
    is_full = NULL;
    return __real_room_await(f, p, bytes, spin_ns, until_ns);
}

static int batches; /* that were waited for */

int __real_room_await_batch(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns);
int __wrap_room_await_batch(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns);

int __wrap_room_await_batch(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns)
{
    batches++;
    return __real_room_await_batch(f, p, bytes, spin_ns, until_ns);
}

/* Broadcasts of rank 0, or sends of rank 1 to a reduce. */
static void call(comm_group *world, const struct run *run, float *values, size_t bytes)
{
    static float sums[BYTES_MAX / sizeof(float)];
    size_t count = bytes / sizeof(float);
    if (run->from == 0)
        CHECK_OK(comm_broadcast(world, values, count, COMM_DTYPE_F32, 0, NULL, NULL));
    else
        CHECK_OK(comm_reduce(world, values, sums, count, COMM_DTYPE_F32, COMM_REDOP_SUM, 0, NULL, NULL));
}

/* Three calls, and then one that waits. */
static void a_wait_ends_the_turn(comm_group *world, const struct run *run, int rank, float *values)
{
    enum { TIMES = 6, BYTES = 4096 };
    int seen = 0;
    for (int k = 0; k < TIMES; k++) {
        yields = 0;
        for (int i = 0; i < 3; i++)
            call(world, run, values, BYTES);
        seen += yields;
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    if (rank == run->from && seen)
        ranks_fail(__FILE__, __LINE__, "%d yields in three calls at a time", seen);
}

static void send_or_receive(comm_group *world, const struct run *run, int rank, void *values, size_t bytes)
{
    if (rank == run->from)
        CHECK_OK(comm_send(world, values, bytes, COMM_DTYPE_U8, 1 - rank, NULL, NULL));
    else
        CHECK_OK(comm_recv(world, values, bytes, COMM_DTYPE_U8, 1 - rank, NULL, NULL));
}

static void streams_wait_for_room(comm_group *world, const struct run *run, int rank, float *values)
{
    enum { ALL = 3 << 20 }; /* more than the ring and the credit */
    static const size_t sizes[] = { 4096, 16 << 10, 40 << 10 };
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i / 2];
        int is_message = i % 2;
        if (is_message)
            send_or_receive(world, run, rank, values, bytes);
        else
            call(world, run, values, bytes);
        CHECK_OK(comm_barrier(world, NULL, NULL));
        if (rank == run->from)
            is_full = run->meeting;
        else
            pthread_barrier_wait(run->meeting);
        for (size_t sent = 0; sent < ALL; sent += bytes)
            if (is_message)
                send_or_receive(world, run, rank, values, bytes);
            else
                call(world, run, values, bytes);
        CHECK(!is_full);
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
}

/* On a busy machine some of the calls are the engine's, which waits for no batch. */
static void streams_wait_for_batches(comm_group *world, const struct run *run, int rank, int size, float *values)
{
    enum { BYTES = 2048, BATCH = 128, BATCHES = 20 };
    int waits = run->shares_cores && run->from != 0 && size > 2;
    batches = 0;
    for (int i = 0; i < BATCHES * BATCH; i++)
        call(world, run, values, BYTES);
    if (rank == run->from && (waits ? batches < 1 || batches > BATCHES + 1 : batches))
        ranks_fail(__FILE__, __LINE__, "%d batches were waited for", batches);
    CHECK_OK(comm_barrier(world, NULL, NULL));
}

static void stay_on_one_core(void)
{
    cpu_set_t allowed, one;
    int first = 0;
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    while (!CPU_ISSET(first, &allowed))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static void senders_yield(int rank, int size, void *arg)
{
    static float values[BYTES_MAX / sizeof(float)];
    const struct run *run = arg;
    if (run->shares_cores)
        stay_on_one_core();
    comm_group *world = ranks_world(run->backend);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        call(world, run, values, rows[i].bytes);
        CHECK_OK(comm_barrier(world, NULL, NULL));
        pthread_barrier_wait(run->meeting);
        yields = 0;
        for (int k = 0; rank == run->from && k < rows[i].calls; k++)
            call(world, run, values, rows[i].bytes);
        int turns = size > 2 && run->from == 0 ? rows[i].of_several : rows[i].yields;
        if (rank == run->from && yields != (run->shares_cores ? turns : 0))
            ranks_fail(__FILE__, __LINE__, "%d yields in %d calls of %zu bytes", yields, rows[i].calls, rows[i].bytes);
        pthread_barrier_wait(run->meeting);
        for (int k = 0; rank != run->from && k < rows[i].calls; k++)
            call(world, run, values, rows[i].bytes);
    }
    if (size == 2) {
        a_wait_ends_the_turn(world, run, rank, values);
        streams_wait_for_room(world, run, rank, values);
    }
    streams_wait_for_batches(world, run, rank, size, values);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    cpu_set_t allowed;
    pthread_barrierattr_t shared;
    int failed = 0;
    pthread_barrier_t *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 1;
    setenv("COMM_SHM_EAGER_BYTES", "128K", 1); /* all rows are sent before the other rank asks for them */
    setenv("COMM_TCP_EAGER_BYTES", "128K", 1);
    setenv("COMM_SHM_MULTICAST_BYTES", "0", 1); /* of one copy for all not so many are under way */
    setenv("COMM_SHM_ALGO", "reduce:direct,broadcast:direct", 1);
    setenv("COMM_TCP_ALGO", "reduce:direct,broadcast:direct", 1);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    for (int size = 2; size <= 3; size++)
        for (int shares_cores = CPU_COUNT(&allowed) < size; shares_cores <= 1; shares_cores++)
            for (int i = 0; i < 4 && !failed; i++) {
                struct run run = { meeting, i / 2 ? "cpu:shm-tcp" : "cpu:shm", shares_cores, i % 2 };
                struct ranks_options options = { .limit_s = 10, .name = shares_cores ? "one core" : "a core each" };
                pthread_barrier_init(meeting, &shared, (unsigned)size);
                failed |= ranks_run(size, &options, senders_yield, &run);
            }
    return failed;
}

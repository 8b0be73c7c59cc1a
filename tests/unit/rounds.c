/* Collectives of several rounds at once, which the engine takes over in a round that has not begun, as there is no room
 * for what this rank sends in it: in one without local steps, and in one whose local step is done already. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "exec_group.h"
#include "ranks.h"

struct shared {
    pthread_barrier_t meeting; /* of two ranks, in the kernel: who waits there does not look at its rings */
    _Atomic int filled;        /* a ring, but for room for one record of 1 KiB */
    _Atomic int late;          /* ranks that have begun, and do not read until rank 0 has run */
    _Atomic int has_run;       /* rank 0, as far as it goes at once */
    _Atomic int unsent;        /* times that it was handed over in the second round, and nothing of that was sent */
};

static struct shared *shared;
static int is_late; /* with submitting what `run` has begun: until then nothing is read */

/* ---- A chain ---- */

enum { CHAIN_RANKS = 4, COUNT = 512, FIT = 6 /* so many broadcasts fit into a ring */, CALLS = FIT + 4 };

static void broadcast_all(comm_group *world, int rank)
{
    static int32_t values[CALLS][COUNT];
    memset(values, 0, sizeof values);
    for (int call = 0; call < CALLS; call++) {
        for (int32_t i = 0; i < COUNT && rank == 0; i++)
            values[call][i] = call * COUNT + i;
        CHECK_OK(comm_broadcast(world, values[call], COUNT, COMM_DTYPE_I32, 0, NULL, NULL));
        for (int32_t i = 0; i < COUNT; i++)
            CHECK(values[call][i] == call * COUNT + i);
    }
}

static void chain_with_a_late_end(int rank, int size, void *arg)
{
    int32_t value = 7;
    comm_group *world = ranks_world("cpu:shm?ring_bytes=16K&algo=broadcast:chain");
    (void)arg;
    for (int i = 0; i < 3; i++) { /* all are connected */
        CHECK_OK(comm_broadcast(world, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    if (rank == size - 1)
        pthread_barrier_wait(&shared->meeting);
    broadcast_all(world, rank);
    if (rank == 0)
        pthread_barrier_wait(&shared->meeting);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* ---- A reduction in rank order, and an exchange of what came of it ---- */

enum { SUM_RANKS = 3, SUM_COUNT = SUM_RANKS * 256, MESSAGE = 1024, MESSAGES_MOST = 16 };

comm_status __wrap_submit_ops(struct exec_group *g, const void *ops, const void *works, size_t count, int *ret_async);
comm_status __real_submit_ops(struct exec_group *g, const void *ops, const void *works, size_t count, int *ret_async);
int __wrap_rounds_run(void *rounds, void *fabric, struct exec_group *g, const void *op, const void *head, int64_t ns);
int __real_rounds_run(void *rounds, void *fabric, struct exec_group *g, const void *op, const void *head, int64_t ns);

comm_status __wrap_submit_ops(struct exec_group *g, const void *ops, const void *works, size_t count, int *ret_async)
{
    if (g->rank == 0 && atomic_load(&shared->filled))
        atomic_store(&shared->has_run, 1);
    if (is_late)
        atomic_fetch_add(&shared->late, 1);
    while (is_late && !atomic_load(&shared->has_run))
        sched_yield();
    return __real_submit_ops(g, ops, works, count, ret_async);
}

int __wrap_rounds_run(void *rounds, void *fabric, struct exec_group *g, const void *op, const void *head, int64_t ns)
{
    int status = __real_rounds_run(rounds, fabric, g, op, head, ns);
    if (g->rank == 0 && atomic_load(&shared->filled)) {
        shared->unsent += status == COMM_IN_PROGRESS && g->begun.round == 1 && g->begun.not_sent;
        atomic_store(&shared->has_run, 1);
    }
    return status;
}

static void sum(comm_group *world, int rank, int in_place)
{
    static int32_t values[SUM_COUNT], results[SUM_COUNT];
    int32_t *recv = in_place ? values : results;
    for (int32_t i = 0; i < SUM_COUNT; i++)
        values[i] = (rank + 1) * i;
    memset(results, 0x55, sizeof results);
    CHECK_OK(comm_all_reduce(world, values, recv, SUM_COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    for (int32_t i = 0; i < SUM_COUNT; i++)
        CHECK(recv[i] == 6 * i);
}

/* Rank 0 sends to rank 1, which does not receive yet; with one number of messages its record of the first round is the
 * last that fits. */
static void fill(comm_group *world, int rank, const uint8_t *message, int messages)
{
    for (int i = 0; rank == 0 && i < messages; i++)
        CHECK_OK(comm_send(world, message, MESSAGE, COMM_DTYPE_U8, 1, NULL, NULL));
    if (rank == 0)
        atomic_store(&shared->filled, 1);
    while (!atomic_load(&shared->filled))
        sched_yield();
}

struct sum_case {
    int in_place, messages;
};

static void sum_without_room_for_the_second_round(int rank, int size, void *arg)
{
    static uint8_t message[MESSAGE];
    const struct sum_case *c = arg;
    comm_group *world = ranks_world("cpu:shm?ring_bytes=16K&algo=all_reduce:direct");
    (void)size;
    for (int i = 0; i < 5; i++) { /* all are connected, and the shape is known */
        sum(world, rank, c->in_place);
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    fill(world, rank, message, c->messages);
    is_late = rank != 0;
    while (rank == 0 && atomic_load(&shared->late) < SUM_RANKS - 1)
        sched_yield();
    sum(world, rank, c->in_place);
    is_late = 0;
    for (int i = 0; rank == 1 && i < c->messages; i++)
        CHECK_OK(comm_recv(world, message, MESSAGE, COMM_DTYPE_U8, 0, NULL, NULL));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* On a busy machine rank 1 may read meanwhile after all, and make room: then once more. */
static int sum_by(int in_place)
{
    enum { TIMES = 20 };
    struct ranks_options options = { .limit_s = 10, .name = in_place ? "a sum in place" : "a sum" };
    int failed = 0, unsent = 0;
    for (int time = 0; time < TIMES * MESSAGES_MOST && !failed && !unsent; time++) {
        struct sum_case c = { in_place, 1 + time % MESSAGES_MOST };
        memset(&shared->filled, 0, sizeof *shared - offsetof(struct shared, filled));
        failed = ranks_run(SUM_RANKS, &options, sum_without_room_for_the_second_round, &c);
        unsent += atomic_load(&shared->unsent);
    }
    if (!failed && !unsent)
        printf("rounds: %s was never handed over in the second round\n", options.name);
    return failed || !unsent;
}

int main(void)
{
    enum { TIMES = 20 };
    pthread_barrierattr_t between_processes;
    int failed = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    pthread_barrierattr_init(&between_processes);
    pthread_barrierattr_setpshared(&between_processes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->meeting, &between_processes, 2);
    for (int time = 0; time < TIMES && !failed; time++) /* the scheduler decides how far the others come */
        failed = ranks_run(CHAIN_RANKS, &(struct ranks_options){ .limit_s = 10 }, chain_with_a_late_end, NULL);
    return failed || sum_by(0) || sum_by(1);
}

/* Eager messages that are lent to a rank that does not look are taken back, and come through the ring. Here a root
 * gathers blocks of which one was sent so, and another one not: it takes neither before it has both. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ranks.h"

enum { RANKS = 3, COUNT = 4096, WORDS = RANKS * COUNT, TIMES = 30 };

struct run {
    pthread_barrier_t *meeting; /* of all ranks, in the kernel: who waits there does not look at its rings */
    int late;                   /* the rank whose block is taken back */
};

/* A send that is taken back as well: for a while after that this rank's messages go through the ring. */
static void send_to_root(comm_group *world, const struct run *run, int rank, int32_t *block)
{
    if (rank == RANKS - run->late)
        CHECK_OK(comm_send(world, block, COUNT, COMM_DTYPE_I32, 0, NULL, NULL));
    pthread_barrier_wait(run->meeting);
}

static void gather_what_was_taken_back(int rank, int size, void *arg)
{
    static int32_t block[COUNT], all[WORDS], sent[COUNT];
    const struct run *run = arg;
    comm_group *world = ranks_world("cpu:shm?cma_measured=0");
    (void)size;
    for (int32_t i = 0; i < COUNT; i++)
        block[i] = rank * COUNT + i;
    for (int i = 0; i < 3; i++) { /* all are connected, and the root has seen that blocks are lent */
        CHECK_OK(comm_gather(world, block, all, COUNT, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    memset(all, 0, sizeof all);
    pthread_barrier_wait(run->meeting);
    send_to_root(world, run, rank, block);
    if (rank)
        CHECK_OK(comm_gather(world, block, NULL, COUNT, COMM_DTYPE_I32, 0, NULL, NULL));
    pthread_barrier_wait(run->meeting);
    if (rank == 0) {
        CHECK_OK(comm_recv(world, sent, COUNT, COMM_DTYPE_I32, RANKS - run->late, NULL, NULL));
        CHECK_OK(comm_gather(world, block, all, COUNT, COMM_DTYPE_I32, 0, NULL, NULL));
        for (int32_t i = 0; i < COUNT; i++)
            CHECK(sent[i] == (RANKS - run->late) * COUNT + i);
        for (int32_t i = 0; i < WORDS; i++)
            CHECK(all[i] == i);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    pthread_barrierattr_t shared;
    int failed = 0;
    pthread_barrier_t *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        return 1;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(meeting, &shared, RANKS);
    for (int time = 0; time < TIMES && !failed; time++) { /* the scheduler decides what is lent, and read in time */
        int late = 1 + time % 2;
        struct run run = { meeting, late };
        struct ranks_options options = { .limit_s = 10, .name = late == 1 ? "rank 1 is late" : "rank 2 is late" };
        failed = ranks_run(RANKS, &options, gather_what_was_taken_back, &run);
    }
    return failed;
}

/* The first threads of processes end, and others go on with the group: also where ranks read each other's memory by the
 * kernel, which finds none by the number of a thread that has ended. */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <unistd.h>

#include "faults.h"

enum { SIZE = 3, LONGEST = 300000, TURNS = 12 };

static const size_t counts[] = { 10, 3000, 10000, 65536, 250000, LONGEST };

static void operate(comm_group *world)
{
    static float data[LONGEST], all[SIZE * LONGEST];
    const int rank = comm_group_rank(world);
    for (size_t i = 0; i < TURNS * sizeof counts / sizeof *counts; i++) {
        const size_t count = counts[i / TURNS];
        for (size_t k = 0; k < count; k++)
            data[k] = (float)(rank + (int)(k % 100));
        CHECK_OK(comm_all_gather(world, data, all, count, COMM_DTYPE_F32, NULL, NULL));
        for (size_t r = 0; r < SIZE; r++)
            CHECK(all[r * count] == (float)r && all[r * count + count - 1] == (float)(r + (count - 1) % 100));
        CHECK_OK(comm_all_reduce(world, data, data, count, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL));
        for (size_t k = 0; k < count; k++)
            CHECK(data[k] == (float)(SIZE * (SIZE - 1) / 2 + SIZE * (int)(k % 100)));
        if (rank == SIZE - 1)
            data[count - 1] = -1;
        CHECK_OK(comm_broadcast(world, data, count, COMM_DTYPE_F32, SIZE - 1, NULL, NULL));
        CHECK(data[count - 1] == -1);
    }
}

static void *go_on(void *world)
{
    char state[] = "/proc/self/stat", text[256] = "";
    for (int is_first_there = 1; is_first_there; sched_yield()) {
        FILE *f = fopen(state, "r");
        CHECK(f && fgets(text, sizeof text, f));
        fclose(f);
        is_first_there = strstr(text, ") Z") == NULL;
    }
    operate(world);
    CHECK_OK(fault_close(world));
    exit(0);
}

static void first_thread_ends(int rank, int size, void *arg)
{
    comm_group *world = fault_world();
    pthread_t thread;
    (void)size;
    (void)arg;
    operate(world);
    if (rank == 0) {
        operate(world);
        CHECK_OK(fault_close(world));
        return;
    }
    CHECK(pthread_create(&thread, NULL, go_on, world) == 0);
    pthread_exit(NULL);
}

int main(void)
{
    struct ranks_options ends = { .limit_s = 40, .name = "first threads end" };
    return fault_run(SIZE, &ends, first_thread_ends, NULL);
}

/* core_distance.h - how far two cores are from each other: the time that a line of memory takes from one to the other.
 * On one die it is 20 to 100 ns, between two dies or sockets two to five times as long, and a virtual machine's host
 * moves its cores while it runs. Shared by comm-bench and mpi_bench.c; tools/compare --by-distance makes the file. */
#ifndef CORE_DISTANCE_H
#define CORE_DISTANCE_H
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct core_line {
    _Alignas(256) _Atomic uint32_t turn;
};

/* Of ranks 0 and 1. */
struct core_distance {
    struct core_line *lines; /* what rank 0 writes, and what rank 1 does; NULL: not open */
    uint32_t turn;
};

/* FILE is empty when the first rank opens it. 0, or -1 with errno. */
static inline int core_distance_open(struct core_distance *d, const char *file)
{
    int fd = open(file, O_RDWR | O_CLOEXEC);
    void *lines = fd >= 0 && ftruncate(fd, 4096) == 0 ? mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                                                      : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (lines == MAP_FAILED)
        return -1;
    *d = (struct core_distance){ .lines = lines };
    return 0;
}

/* Called by ranks 0 and 1 at the same time, each on a core of its own. Nanoseconds one way: the least of some batches,
 * as what interrupts one is no distance. -1: the other rank has not come for some seconds. */
static inline double core_distance_ns(struct core_distance *d, int rank)
{
    enum { BATCHES = 8, ROUNDS = 200, OFTEN = 10000, PATIENCE_S = 20 };
    double least = 1e18;
    time_t began = time(NULL);
    for (int batch = 0; batch < BATCHES; batch++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int round = 0; round < ROUNDS; round++) {
            uint32_t turn = ++d->turn;
            if (rank == 0)
                atomic_store_explicit(&d->lines[0].turn, turn, memory_order_release);
            for (unsigned looks = 1; atomic_load_explicit(&d->lines[!rank].turn, memory_order_acquire) != turn; looks++)
                if (looks % OFTEN == 0) {
                    sched_yield(); /* the other rank may want this core after all */
                    if (time(NULL) - began > PATIENCE_S)
                        return -1;
                }
            if (rank == 1)
                atomic_store_explicit(&d->lines[1].turn, turn, memory_order_release);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        double ns = 1e9 * (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec);
        least = ns < least ? ns : least;
    }
    return least / ROUNDS / 2;
}
#endif

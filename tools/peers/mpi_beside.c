/* mpi_beside.c - what libcomm's backend mpi adds to the MPI that it uses. Both are measured in one process, in turns,
 * on the same buffers, so what else runs on the machine disturbs both alike. A cell is the least of many rounds; a
 * round's time is that of the slowest rank. tools/compare --beside builds and starts it.
 * Arguments: BACKEND OPS SIZES ROUNDS, the lists with commas. Output: BESIDE,op,bytes,libcomm_us,mpi_us */
#include <comm/comm.h>
#include <mpi.h>

#include "bench_common.h"

static int rank, size;
static comm_group *world;
static float *a, *b;

static void check(comm_status status)
{
    if (status == COMM_OK)
        return;
    fprintf(stderr, "mpi_beside: %s\n", comm_last_error());
    exit(1);
}

static void comm_pingpong(size_t count, size_t block)
{
    (void)block;
    if (rank == 0) {
        check(comm_send(world, a, count, COMM_DTYPE_F32, 1, NULL, NULL));
        check(comm_recv(world, b, count, COMM_DTYPE_F32, 1, NULL, NULL));
    } else if (rank == 1) {
        check(comm_recv(world, b, count, COMM_DTYPE_F32, 0, NULL, NULL));
        check(comm_send(world, a, count, COMM_DTYPE_F32, 0, NULL, NULL));
    }
}

static void mpi_pingpong(size_t count, size_t block)
{
    (void)block;
    if (rank == 0) {
        MPI_Send(a, (int)count, MPI_FLOAT, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(b, (int)count, MPI_FLOAT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(b, (int)count, MPI_FLOAT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(a, (int)count, MPI_FLOAT, 0, 1, MPI_COMM_WORLD);
    }
}

/* Both sides of a collective. */
#define OPERATION(name, ours, theirs)                                                                                  \
    static void comm_##name##_(size_t count, size_t block)                                                             \
    {                                                                                                                  \
        (void)count;                                                                                                   \
        (void)block;                                                                                                   \
        check(ours);                                                                                                   \
    }                                                                                                                  \
    static void mpi_##name##_(size_t count, size_t block)                                                              \
    {                                                                                                                  \
        (void)count;                                                                                                   \
        (void)block;                                                                                                   \
        theirs;                                                                                                        \
    }
#define F32 COMM_DTYPE_F32
#define SUM COMM_REDOP_SUM
#define WORLD MPI_COMM_WORLD

OPERATION(all_reduce, comm_all_reduce(world, a, a, count, F32, SUM, NULL, NULL),
          MPI_Allreduce(MPI_IN_PLACE, a, (int)count, MPI_FLOAT, MPI_SUM, WORLD))
OPERATION(broadcast, comm_broadcast(world, a, count, F32, 0, NULL, NULL),
          MPI_Bcast(a, (int)count, MPI_FLOAT, 0, WORLD))
OPERATION(reduce, comm_reduce(world, a, rank ? NULL : a, count, F32, SUM, 0, NULL, NULL),
          MPI_Reduce(rank ? a : MPI_IN_PLACE, rank ? NULL : a, (int)count, MPI_FLOAT, MPI_SUM, 0, WORLD))
OPERATION(all_gather, comm_all_gather(world, b, a, block, F32, NULL, NULL),
          MPI_Allgather(b, (int)block, MPI_FLOAT, a, (int)block, MPI_FLOAT, WORLD))
OPERATION(reduce_scatter, comm_reduce_scatter(world, b, a, block, F32, SUM, NULL, NULL),
          MPI_Reduce_scatter_block(b, a, (int)block, MPI_FLOAT, MPI_SUM, WORLD))
OPERATION(all_to_all, comm_all_to_all(world, b, a, block, F32, NULL, NULL),
          MPI_Alltoall(b, (int)block, MPI_FLOAT, a, (int)block, MPI_FLOAT, WORLD))
OPERATION(gather, comm_gather(world, b, a, block, F32, 0, NULL, NULL),
          MPI_Gather(b, (int)block, MPI_FLOAT, a, (int)block, MPI_FLOAT, 0, WORLD))
OPERATION(scatter, comm_scatter(world, b, a, block, F32, 0, NULL, NULL),
          MPI_Scatter(b, (int)block, MPI_FLOAT, a, (int)block, MPI_FLOAT, 0, WORLD))
OPERATION(barrier, comm_barrier(world, NULL, NULL), MPI_Barrier(WORLD))

static const struct operation {
    const char *name;
    void (*ours)(size_t count, size_t block), (*theirs)(size_t count, size_t block);
} operations[] = {
    { "all_reduce", comm_all_reduce_, mpi_all_reduce_ },
    { "broadcast", comm_broadcast_, mpi_broadcast_ },
    { "reduce", comm_reduce_, mpi_reduce_ },
    { "all_gather", comm_all_gather_, mpi_all_gather_ },
    { "reduce_scatter", comm_reduce_scatter_, mpi_reduce_scatter_ },
    { "all_to_all", comm_all_to_all_, mpi_all_to_all_ },
    { "gather", comm_gather_, mpi_gather_ },
    { "scatter", comm_scatter_, mpi_scatter_ },
    { "barrier", comm_barrier_, mpi_barrier_ },
    { "pingpong", comm_pingpong, mpi_pingpong },
};

static double round_us(void (*call)(size_t, size_t), size_t count, size_t block, int times)
{
    double took, slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    call(count, block);
    MPI_Barrier(MPI_COMM_WORLD);
    took = now_s();
    for (int i = 0; i < times; i++)
        call(count, block);
    took = (now_s() - took) / times;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest * 1e6;
}

static void measure(const struct operation *op, size_t bytes, int rounds)
{
    enum { ROUND_US = 200 };
    int is_barrier = strcmp(op->name, "barrier") == 0, parts = strcmp(op->name, "pingpong") == 0 ? 2 : 1;
    size_t count = bytes / sizeof *a, block = count / (size_t)size ? count / (size_t)size : 1;
    double ours = 1e99, theirs = 1e99, once;
    a = xalloc((block * (size_t)size + count) * sizeof *a);
    b = xalloc((block * (size_t)size + count) * sizeof *b);
    once = round_us(op->theirs, count, block, 4);
    int times = once < ROUND_US / 4 ? (int)(ROUND_US / once) : 4;
    times = times > 200 ? 200 : times;
    for (int i = 0; i < rounds; i++) {
        double us = round_us(op->theirs, count, block, times);
        theirs = us < theirs ? us : theirs;
        us = round_us(op->ours, count, block, times);
        ours = us < ours ? us : ours;
    }
    if (rank == 0)
        printf("BESIDE,%s,%zu,%.3f,%.3f\n", op->name, is_barrier ? 0 : bytes, ours / parts, theirs / parts);
    free(a);
    free(b);
}

int main(int argc, char **argv)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    int level;
    if (argc != 5)
        return 2;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    options.backend = argv[1];
    check(comm_init(&options, &world));
    char *next_op = NULL;
    for (char *name = strtok_r(argv[2], ",", &next_op); name; name = strtok_r(NULL, ",", &next_op))
        for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
            char *sizes = strdup(argv[3]), *next_size = NULL;
            int is_barrier = strcmp(name, "barrier") == 0;
            if (strcmp(operations[i].name, name) == 0)
                for (char *bytes = strtok_r(sizes, ",", &next_size); bytes;
                     bytes = is_barrier ? NULL : strtok_r(NULL, ",", &next_size))
                    measure(&operations[i], strtoull(bytes, NULL, 0), atoi(argv[4]));
            free(sizes);
        }
    check(comm_group_close(world));
    MPI_Finalize();
    return 0;
}

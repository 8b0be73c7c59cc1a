/* A program that initialises MPI itself. Usage: own_init BACKEND LEVEL (multiple, serialized or single), or
 * own_init BACKEND finalised: it finalises MPI and opens another world. */
#include <mpi.h>

#include "ranks.h"

static void check_sum(comm_group *g)
{
    int32_t one = 1, sum = 0;
    CHECK_OK(comm_all_reduce(g, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(sum == comm_group_size(g));
}

/* The world's ranks are not MPI's, and some of MPI's processes are in no world. */
static void use(const char *backend, const char *url, int mpi_rank, int mpi_size)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    comm_store *store;
    int32_t from = -1;
    if (mpi_rank == 0)
        return;
    CHECK_OK(comm_store_open(url, NULL, &store));
    options.store = store;
    options.backend = backend;
    options.world_size = mpi_size - 1;
    options.rank = mpi_size - 1 - mpi_rank;
    CHECK_OK(comm_init(&options, &world));
    check_sum(world);
    if (options.world_size > 1 && options.rank == 0)
        CHECK_OK(comm_send(world, &mpi_rank, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    if (options.rank == 1) {
        CHECK_OK(comm_recv(world, &from, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK(from == mpi_size - 1);
    }
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

static void refuse(const char *backend, const char *url, int mpi_rank, int mpi_size, const char *why, const char *cure)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    comm_store *store;
    CHECK_OK(comm_store_open(url, NULL, &store));
    options.store = store;
    options.backend = backend;
    options.world_size = mpi_size;
    options.rank = mpi_rank;
    CHECK(comm_init(&options, &world) == COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS(why);
    CHECK_ERROR_SAYS(cure);
    comm_store_close(store);
}

int main(int argc, char **argv)
{
    char url[300];
    int provided, rank, size, sum = 0, one = 1;
    if (argc < 3)
        return 2;
    int wanted = strcmp(argv[2], "serialized") == 0 ? MPI_THREAD_SERIALIZED
                 : strcmp(argv[2], "single") == 0   ? MPI_THREAD_SINGLE
                                                    : MPI_THREAD_MULTIPLE;
    MPI_Init_thread(&argc, &argv, wanted, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    snprintf(url, sizeof url, "file://%s/own-%d", getenv("RANKS_LAUNCHED"), provided);
    if (wanted == MPI_THREAD_SINGLE && provided == MPI_THREAD_SINGLE)
        refuse(argv[1], url, rank, size, "MPI_THREAD_SINGLE", "MPI_Init_thread");
    else
        use(argv[1], url, rank, size);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); /* libcomm has not finalised MPI */
    CHECK(sum == size);
    if (MPI_Finalize() != MPI_SUCCESS)
        return 1;
    if (strcmp(argv[2], "finalised") == 0)
        refuse(argv[1], url, rank, size, "MPI_Finalize", "cannot be initialised again");
    return 0;
}

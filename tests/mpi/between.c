/* A library between the plugin and an MPI, which COMM_MPI_LIBRARY names: an MPI that takes long, and that notices when
 * it is called by two threads at a time. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "between.h"

static atomic_int inside; /* threads that are in MPI */
static _Thread_local int depth; /* MPI may call itself */

static void enter(const char *name)
{
    atomic_fetch_add(&between_calls, 1);
    if (depth++ > 0 || atomic_fetch_add(&inside, 1) == 0 || !atomic_load(&between_one))
        return;
    fprintf(stderr, "MPI_%s is called while another thread is in MPI\n", name);
    abort();
}

static void leave(void)
{
    if (--depth == 0)
        atomic_fetch_sub(&inside, 1);
}

#define CALL(name, parameters, arguments)                                                                              \
    int MPI_##name parameters                                                                                          \
    {                                                                                                                  \
        enter(#name);                                                                                                  \
        int result = PMPI_##name arguments;                                                                            \
        leave();                                                                                                       \
        return result;                                                                                                 \
    }

CALL(Test, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status))
CALL(Cancel, (MPI_Request * request), (request))
CALL(Isend, (const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request),
     (data, count, type, to, tag, comm, request))
CALL(Irecv, (void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request),
     (data, count, type, from, tag, comm, request))
CALL(Improbe, (int from, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
     (from, tag, comm, flag, message, status))
CALL(Imrecv, (void *data, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request),
     (data, count, type, message, request))
CALL(Get_elements_x, (const MPI_Status *status, MPI_Datatype type, MPI_Count *count), (status, type, count))
CALL(Type_create_hindexed,
     (int count, const int *lengths, const MPI_Aint *places, MPI_Datatype old, MPI_Datatype *type),
     (count, lengths, places, old, type))
CALL(Type_commit, (MPI_Datatype * type), (type))
CALL(Type_free, (MPI_Datatype * type), (type))
CALL(Error_string, (int error, char *text, int *length), (error, text, length))
CALL(Comm_rank, (MPI_Comm comm, int *rank), (comm, rank))
CALL(Comm_size, (MPI_Comm comm, int *size), (comm, size))
CALL(Comm_dup, (MPI_Comm comm, MPI_Comm *copy), (comm, copy))
CALL(Comm_free, (MPI_Comm * comm), (comm))
CALL(Ibarrier, (MPI_Comm comm, MPI_Request *request), (comm, request))
CALL(Ibcast, (void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request),
     (data, count, type, root, comm, request))
CALL(Iallreduce,
     (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op by, MPI_Comm comm, MPI_Request *request),
     (send, recv, count, type, by, comm, request))

int MPI_Comm_create_group(MPI_Comm from, MPI_Group group, int tag, MPI_Comm *comm)
{
    int ms = atomic_load(&between_slow_ms);
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    enter("Comm_create_group");
    atomic_fetch_add(&between_made, 1);
    nanosleep(&t, NULL);
    int error = PMPI_Comm_create_group(from, group, tag, comm);
    leave();
    return error;
}

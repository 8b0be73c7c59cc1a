/* What an operation needs while it runs: requests, memory, types; and messages: one, or blocks between all ranks. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

MPI_Request *request_next(struct flight *f)
{
    if (f->request_count == f->request_capacity) {
        int capacity = f->request_capacity * 2;
        MPI_Request *more = malloc((size_t)capacity * sizeof *more);
        if (!more) {
            fail(COMM_ERR_NO_MEMORY, "the requests of an operation");
            return NULL;
        }
        memcpy(more, f->requests, (size_t)f->request_count * sizeof *more);
        if (f->requests != f->few)
            free(f->requests);
        f->requests = more;
        f->request_capacity = capacity;
    }
    return &f->requests[f->request_count++];
}

void *flight_memory(struct flight *f, size_t bytes)
{
    void *memory = f->block_count < BLOCKS_MAX ? malloc(bytes ? bytes : 1) : NULL;
    if (memory)
        f->blocks[f->block_count++] = memory;
    else
        fail(COMM_ERR_NO_MEMORY, "%zu bytes for an operation", bytes);
    return memory;
}

comm_status begun(int error, const char *call, MPI_Request *request)
{
    if (error != MPI_SUCCESS)
        *request = MPI_REQUEST_NULL;
    return fail_mpi(error, call);
}

static comm_status room_for_types(struct flight *f)
{
    if (f->type_count < f->type_capacity)
        return COMM_OK;
    int capacity = f->type_capacity ? 2 * f->type_capacity : 4;
    MPI_Datatype *types = realloc(f->types, (size_t)capacity * sizeof *types);
    if (!types)
        return fail(COMM_ERR_NO_MEMORY, "the types of an operation");
    f->types = types;
    f->type_capacity = capacity;
    return COMM_OK;
}

/* `bytes` bytes, in pieces that an int can count. */
static comm_status type_for(struct flight *f, size_t bytes, MPI_Datatype *ret_type)
{
    size_t most = (size_t)f->group->max_count, pieces = (bytes + most - 1) / most;
    comm_status status = room_for_types(f);
    if (status != COMM_OK)
        return status;
    if (pieces > INT_MAX)
        return fail(COMM_ERR_UNSUPPORTED, "a block of %zu bytes needs more pieces than MPI can count", bytes);
    int *lengths = malloc(pieces * sizeof *lengths);
    MPI_Aint *places = malloc(pieces * sizeof *places);
    for (size_t i = 0; lengths && places && i < pieces; i++) {
        lengths[i] = (int)(i + 1 < pieces ? most : bytes - i * most);
        places[i] = (MPI_Aint)(i * most);
    }
    MPI_Datatype type;
    int error = MPI_SUCCESS;
    if (!lengths || !places)
        status = fail(COMM_ERR_NO_MEMORY, "the type of a block of %zu bytes", bytes);
    else
        error = mpi.Type_create_hindexed((int)pieces, lengths, places, MPI_BYTE, &type);
    free(lengths);
    free(places);
    if (status != COMM_OK || error != MPI_SUCCESS)
        return status != COMM_OK ? status : fail_mpi(error, "MPI_Type_create_hindexed");
    f->types[f->type_count++] = type;
    *ret_type = type;
    return fail_mpi(mpi.Type_commit(&f->types[f->type_count - 1]), "MPI_Type_commit");
}

comm_status counted(struct flight *f, size_t bytes, int *ret_count, MPI_Datatype *ret_type)
{
    *ret_count = (int)bytes;
    *ret_type = MPI_BYTE;
    if (bytes <= (size_t)f->group->max_count)
        return COMM_OK;
    *ret_count = 1;
    return type_for(f, bytes, ret_type);
}

/* ---- Messages ---- */

static void *address(void *data)
{
    static char nothing[16]; /* where MPI wants an address for no data */
    return data ? data : nothing;
}

comm_status send_bytes(struct flight *f, void *data, size_t bytes, int to, int tag, MPI_Comm comm)
{
    int count;
    MPI_Datatype type;
    comm_status status = counted(f, bytes, &count, &type);
    MPI_Request *request = status == COMM_OK ? request_next(f) : NULL;
    if (!request)
        return status != COMM_OK ? status : COMM_ERR_NO_MEMORY;
    return begun(mpi.Isend(address(data), count, type, to, tag, comm, request), "MPI_Isend", request);
}

/* Of a message that is not longer than the room: else Open MPI writes behind it. */
comm_status recv_bytes(struct flight *f, void *data, size_t bytes, int from, int tag, MPI_Comm comm)
{
    int count;
    MPI_Datatype type;
    comm_status status = counted(f, bytes, &count, &type);
    MPI_Request *request = status == COMM_OK ? request_next(f) : NULL;
    if (!request)
        return status != COMM_OK ? status : COMM_ERR_NO_MEMORY;
    return begun(mpi.Irecv(address(data), count, type, from, tag, comm, request), "MPI_Irecv", request);
}

/* Two flights that are under way at a time must not have one tag: the second one's receives are posted before what the
 * first one exchanges last. */
static int tag_of(const struct flight *f)
{
    uint64_t tags = (uint64_t)start_tag_max() - TAG_FLIGHT + 1;
    return TAG_FLIGHT + (int)(f->op.seq % tags);
}

/* Blocks between all pairs of ranks; empty ones are not sent. All exchanges of a flight have its tag: those of one pair
 * come one after the other. */
comm_status exchange(struct flight *f, block_fn *send, block_fn *recv)
{
    struct group *g = f->group;
    int rank = g->info->rank, size = g->info->size, tag = tag_of(f);
    size_t bytes, own_bytes;
    comm_status status = COMM_OK;
    for (int i = 1; i < size && status == COMM_OK; i++) {
        int from = (rank + size - i) % size;
        char *at = recv(f, from, &bytes);
        if (bytes)
            status = recv_bytes(f, at, bytes, from, tag, g->own);
    }
    f->receive_count = f->request_count;
    for (int i = 1; i < size && status == COMM_OK; i++) {
        int to = (rank + i) % size;
        char *at = send(f, to, &bytes);
        if (bytes)
            status = send_bytes(f, at, bytes, to, tag, g->own);
    }
    char *to = recv(f, rank, &bytes), *from = send(f, rank, &own_bytes);
    if (bytes && own_bytes && to != from)
        memcpy(to, from, bytes < own_bytes ? bytes : own_bytes);
    return status;
}

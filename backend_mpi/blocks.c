/* What an operation needs while it runs: requests, memory, types; and the exchange of blocks of any sizes at any
 * places. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

MPI_Request *request_next(struct flight *f)
{
    if (f->request_count == f->request_room) {
        int room = f->request_room * 2;
        MPI_Request *more = malloc((size_t)room * sizeof *more);
        if (!more) {
            fail(COMM_ERR_NO_MEMORY, "the requests of an operation");
            return NULL;
        }
        memcpy(more, f->requests, (size_t)f->request_count * sizeof *more);
        if (f->requests != f->few)
            free(f->requests);
        f->requests = more;
        f->request_room = room;
    }
    return &f->requests[f->request_count++];
}

void *flight_memory(struct flight *f, size_t bytes)
{
    void *memory = f->block_count < BLOCKS_MOST ? malloc(bytes ? bytes : 1) : NULL;
    if (memory)
        f->blocks[f->block_count++] = memory;
    else
        fail(COMM_ERR_NO_MEMORY, "%zu bytes for an operation", bytes);
    return memory;
}

static comm_status room_for_types(struct flight *f)
{
    if (f->type_count < f->type_room)
        return COMM_OK;
    int room = f->type_room ? 2 * f->type_room : 4;
    MPI_Datatype *types = realloc(f->types, (size_t)room * sizeof *types);
    if (!types)
        return fail(COMM_ERR_NO_MEMORY, "the types of an operation");
    f->types = types;
    f->type_room = room;
    return COMM_OK;
}

/* `bytes` bytes that begin `displacement` bytes from where MPI is told, in pieces that an int can count. */
comm_status type_for(struct flight *f, MPI_Aint displacement, size_t bytes, MPI_Datatype *ret_type)
{
    size_t most = (size_t)f->group->most_count, pieces = (bytes + most - 1) / most;
    comm_status status = room_for_types(f);
    if (status != COMM_OK)
        return status;
    if (pieces > INT_MAX)
        return fail(COMM_ERR_UNSUPPORTED, "a block of %zu bytes needs more pieces than MPI can count", bytes);
    int *lengths = malloc(pieces * sizeof *lengths);
    MPI_Aint *places = malloc(pieces * sizeof *places);
    for (size_t i = 0; lengths && places && i < pieces; i++) {
        lengths[i] = (int)(i + 1 < pieces ? most : bytes - i * most);
        places[i] = displacement + (MPI_Aint)(i * most);
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

/* ---- The exchange: MPI_Ialltoallw ---- */

struct side {
    int *counts, *places;
    MPI_Datatype *types;
    char *base;
};

static comm_status describe(struct flight *f, block_fn *block, struct side *side)
{
    int size = f->group->info->size;
    side->base = NULL;
    for (int r = 0; r < size; r++) {
        size_t bytes;
        char *at = block(f, r, &bytes);
        side->counts[r] = side->places[r] = 0;
        side->types[r] = MPI_BYTE;
        if (bytes == 0)
            continue;
        if (!side->base)
            side->base = at;
        ptrdiff_t place = at - side->base;
        side->counts[r] = 1;
        if (bytes <= (size_t)f->group->most_count && place >= 0 && place <= INT_MAX) {
            side->counts[r] = (int)bytes;
            side->places[r] = (int)place;
            continue;
        }
        comm_status status = type_for(f, (MPI_Aint)place, bytes, &side->types[r]);
        if (status != COMM_OK)
            return status;
    }
    if (!side->base)
        side->base = (char *)side; /* nothing is read or written */
    return COMM_OK;
}

comm_status exchange(struct flight *f, block_fn *send, block_fn *recv)
{
    struct group *g = f->group;
    size_t size = (size_t)g->info->size;
    struct side sides[2];
    MPI_Datatype *types = flight_memory(f, size * 2 * (sizeof *types + 2 * sizeof(int)));
    if (!types)
        return COMM_ERR_NO_MEMORY;
    int *numbers = (int *)(types + 2 * size);
    for (size_t i = 0; i < 2; i++)
        sides[i] = (struct side){ numbers + 2 * i * size, numbers + (2 * i + 1) * size, types + i * size, NULL };
    comm_status status = describe(f, send, &sides[0]);
    if (status == COMM_OK)
        status = describe(f, recv, &sides[1]);
    MPI_Request *request = status == COMM_OK ? request_next(f) : NULL;
    if (!request)
        return status != COMM_OK ? status : COMM_ERR_NO_MEMORY;
    return fail_mpi(mpi.Ialltoallw(sides[0].base, sides[0].counts, sides[0].places, sides[0].types, sides[1].base,
                                   sides[1].counts, sides[1].places, sides[1].types, g->comm, request),
                    "MPI_Ialltoallw");
}

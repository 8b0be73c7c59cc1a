/* One operation as calls of MPI. All ranks must come to the same calls, so what is chosen here depends on what they
 * have alike: never on a rank's own addresses, offsets or lists. */
#include <limits.h>
#include <string.h>

#include "state.h"

/* Where MPI wants addresses for no data, and not the same one for both sides. */
static char nothing[16], nothing_received[16];

static void *address(void *data)
{
    return data ? data : nothing;
}

static void *receiving(void *data, size_t bytes)
{
    return data && bytes ? data : nothing_received;
}

/* ---- Messages ---- */

/* Tags below COMM_ANY_TAG are libcomm's. They have a communicator of their own, so that a receive with any tag takes
 * none of these. */
static comm_status send_or_recv(struct flight *f)
{
    const comm_op *op = &f->op;
    int is_own = op->tag < COMM_ANY_TAG;
    if (op->kind == COMM_OP_RECV && !is_own)
        return match_posted(f);
    MPI_Comm comm = is_own ? f->group->own : f->group->comm;
    int tag = is_own ? TAG_LIBRARY - 2 - op->tag : op->tag;
    int peer = op->root == COMM_ANY_SOURCE ? MPI_ANY_SOURCE : op->root;
    if (op->kind == COMM_OP_SEND)
        return send_bytes(f, op->send.data, op->send.count * op->element_bytes, peer, tag, comm);
    f->receive_count = 1;
    return recv_bytes(f, op->recv.data, op->recv.count * op->element_bytes, peer, tag, comm);
}

/* ---- Moves ---- */

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from)
        memcpy(to, from, bytes);
}

static char *send_block(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t count;
    char *at = comm_op_block(&f->op.send, f->op.element_bytes, rank, &count);
    *ret_bytes = count * f->op.element_bytes;
    return at;
}

static char *recv_block(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t count;
    char *at = comm_op_block(&f->op.recv, f->op.element_bytes, rank, &count);
    *ret_bytes = count * f->op.element_bytes;
    return at;
}

static char *send_whole(const struct flight *f, int rank, size_t *ret_bytes)
{
    (void)rank;
    *ret_bytes = f->op.send.count * f->op.element_bytes;
    return f->op.send.data;
}

static char *nothing_at(const struct flight *f, int rank, size_t *ret_bytes)
{
    (void)f;
    (void)rank;
    *ret_bytes = 0;
    return NULL;
}

static char *send_to_root(const struct flight *f, int rank, size_t *ret_bytes)
{
    return rank == f->op.root ? send_whole(f, rank, ret_bytes) : nothing_at(f, rank, ret_bytes);
}

static char *recv_from_root(const struct flight *f, int rank, size_t *ret_bytes)
{
    *ret_bytes = rank == f->op.root ? f->op.recv.count * f->op.element_bytes : 0;
    return f->op.recv.data;
}

/* The plain form matches the uneven ones, which only the root can tell apart: so all are messages. */
static comm_status gather(struct flight *f)
{
    return exchange(f, send_to_root, f->group->info->rank == f->op.root ? recv_block : nothing_at);
}

static comm_status scatter(struct flight *f)
{
    return exchange(f, f->group->info->rank == f->op.root ? send_block : nothing_at, recv_from_root);
}

static comm_status broadcast(struct flight *f)
{
    enum { SMALL_BYTES = 8192 };
    struct group *g = f->group;
    int is_root = g->info->rank == f->op.root;
    const comm_buffers *side = is_root ? &f->op.send : &f->op.recv;
    size_t bytes = side->count * f->op.element_bytes, most = (size_t)g->max_count, at = 0;
    comm_status status = COMM_OK;
    if (g->info->size <= g->direct_ranks && (bytes <= SMALL_BYTES || g->info->size == 2))
        return exchange(f, is_root ? send_whole : nothing_at, is_root ? nothing_at : recv_from_root);
    do {
        size_t now = bytes - at < most ? bytes - at : most;
        MPI_Request *request = request_next(f);
        if (!request)
            return COMM_ERR_NO_MEMORY;
        status = begun(mpi.Ibcast(side->data ? (char *)side->data + at : nothing, (int)now, MPI_BYTE, f->op.root,
                                  g->comm, request), "MPI_Ibcast", request);
        at += now;
    } while (at < bytes && status == COMM_OK);
    return status;
}

static comm_status unpack(struct flight *f)
{
    const char *at = f->scratch;
    for (int r = 0; r < f->group->info->size; r++) {
        size_t bytes;
        char *block = recv_block(f, r, &bytes);
        copy(block, at, bytes);
        at += bytes;
    }
    return COMM_OK;
}

static comm_status all_gather_uneven(struct flight *f)
{
    struct group *g = f->group;
    const comm_op *op = &f->op;
    size_t element = op->element_bytes, whole = 0, size = (size_t)g->info->size, count;
    char *own = comm_op_block(&op->recv, element, g->info->rank, &count);
    for (size_t r = 0; r < size; r++) {
        comm_op_block(&op->recv, element, (int32_t)r, &count);
        whole += count * element;
    }
    if (whole > (size_t)g->max_count)
        return exchange(f, send_whole, recv_block);
    int is_packed = !op->recv.list && !op->recv.offsets, *numbers = flight_memory(f, 2 * size * sizeof *numbers);
    f->scratch = is_packed ? op->recv.data : flight_memory(f, whole);
    f->then = is_packed ? NULL : unpack;
    MPI_Request *request = numbers && (f->scratch || is_packed) ? request_next(f) : NULL;
    if (!request)
        return COMM_ERR_NO_MEMORY;
    for (size_t r = 0, at = 0; r < size; at += count * element, r++) {
        comm_op_block(&op->recv, element, (int32_t)r, &count);
        numbers[r] = (int)(count * element);
        numbers[size + r] = (int)at;
    }
    int is_in_place = is_packed && own == op->send.data;
    return begun(mpi.Iallgatherv(is_in_place ? MPI_IN_PLACE : address(op->send.data),
                                 (int)(op->send.count * element), MPI_BYTE, receiving(f->scratch, whole), numbers,
                                 numbers + size, MPI_BYTE, g->comm, request), "MPI_Iallgatherv", request);
}

static comm_status all_gather(struct flight *f)
{
    const comm_op *op = &f->op;
    if (f->group->info->size <= f->group->direct_ranks)
        return exchange(f, send_whole, recv_block);
    if (op->flags & COMM_OP_FLAG_UNEVEN)
        return all_gather_uneven(f);
    size_t bytes = op->send.count * op->element_bytes, own;
    void *block = comm_op_block(&op->recv, op->element_bytes, f->group->info->rank, &own);
    int count, is_in_place = op->send.data == block;
    MPI_Datatype type;
    comm_status status = counted(f, bytes, &count, &type);
    MPI_Request *request = status == COMM_OK ? request_next(f) : NULL;
    if (!request)
        return status != COMM_OK ? status : COMM_ERR_NO_MEMORY;
    return begun(mpi.Iallgather(is_in_place ? MPI_IN_PLACE : address(op->send.data), count, type,
                                receiving(op->recv.data, bytes), count, type, f->group->comm, request),
                 "MPI_Iallgather", request);
}

static comm_status all_to_all(struct flight *f)
{
    comm_op *op = &f->op;
    size_t bytes = op->send.count * op->element_bytes, whole = bytes * (size_t)f->group->info->size;
    int is_uneven = (op->flags & COMM_OP_FLAG_UNEVEN) != 0;
    if (op->send.data == op->recv.data && whole && !is_uneven) {
        void *taken = flight_memory(f, whole);
        if (!taken)
            return COMM_ERR_NO_MEMORY;
        op->send.data = memcpy(taken, op->send.data, whole);
    }
    if (is_uneven || f->group->info->size <= f->group->direct_ranks)
        return exchange(f, send_block, recv_block);
    int count;
    MPI_Datatype type;
    comm_status status = counted(f, bytes, &count, &type);
    MPI_Request *request = status == COMM_OK ? request_next(f) : NULL;
    if (!request)
        return status != COMM_OK ? status : COMM_ERR_NO_MEMORY;
    return begun(mpi.Ialltoall(address(op->send.data), count, type, receiving(op->recv.data, bytes), count, type,
                               f->group->comm, request), "MPI_Ialltoall", request);
}

static comm_status barrier(struct flight *f)
{
    MPI_Request *request = request_next(f);
    return request ? begun(mpi.Ibarrier(f->group->comm, request), "MPI_Ibarrier", request) : COMM_ERR_NO_MEMORY;
}

/* ---- Reductions ---- */

static comm_status finish_reduction(struct flight *f)
{
    const comm_op *op = &f->op;
    if (f->scratch)
        copy(op->recv.data, f->scratch, op->recv.count * op->element_bytes);
    if (op->redop == COMM_REDOP_AVG && op->recv.count)
        host->divide(op->recv.data, op->recv.count, op->dtype, f->group->info->size);
    return COMM_OK;
}

/* The send side as one buffer, times the factor. Afterwards it does not overlap with the recv side. */
static comm_status take_send_side(struct flight *f, int multiplies)
{
    comm_op *op = &f->op;
    size_t count = op->send.count, whole = 0;
    int blocks = op->kind == COMM_OP_REDUCE_SCATTER ? f->group->info->size : 1;
    for (int r = 0; r < blocks; whole += count, r++)
        comm_op_block(&op->send, op->element_bytes, r, &count);
    char *taken = flight_memory(f, whole * op->element_bytes), *at = taken;
    if (!taken)
        return COMM_ERR_NO_MEMORY;
    for (int r = 0; r < blocks; at += count * op->element_bytes, r++) {
        const void *block = comm_op_block(&op->send, op->element_bytes, r, &count);
        if (count && multiplies)
            host->premultiply(at, block, count, op->dtype, op->premul);
        else
            copy(at, block, count * op->element_bytes);
    }
    op->send.data = taken;
    op->send.list = NULL;
    op->send.offsets = NULL;
    return COMM_OK;
}

static comm_status reduce_pieces(struct flight *f, char *from, char *to, size_t count, int root)
{
    struct group *g = f->group;
    const comm_op *op = &f->op;
    MPI_Datatype type = type_of(op->dtype);
    MPI_Op by = op_of(g, op->redop, op->dtype);
    size_t most = (size_t)g->max_count, at = 0;
    comm_status status;
    do {
        size_t now = count - at < most ? count - at : most;
        MPI_Request *request = request_next(f);
        if (!request)
            return COMM_ERR_NO_MEMORY;
        void *target = to ? to + at * op->element_bytes : nothing_received;
        void *source = from && from == to ? MPI_IN_PLACE : from ? from + at * op->element_bytes : nothing;
        if (root < 0)
            status = begun(mpi.Iallreduce(source, target, (int)now, type, by, g->comm, request), "MPI_Iallreduce",
                           request);
        else
            status = begun(mpi.Ireduce(source, target, (int)now, type, by, root, g->comm, request), "MPI_Ireduce",
                           request);
        at += now;
    } while (at < count && status == COMM_OK);
    return status;
}

/* Where the counts do not fit into MPI's: a reduce to each rank. */
static comm_status reduce_scatter_by_ranks(struct flight *f, char *to)
{
    comm_status status = COMM_OK;
    for (int r = 0; r < f->group->info->size && status == COMM_OK; r++) {
        size_t count;
        char *block = comm_op_block(&f->op.send, f->op.element_bytes, r, &count);
        if (count)
            status = reduce_pieces(f, block, r == f->group->info->rank ? to : NULL, count, r);
    }
    return status;
}

static comm_status reduce_scatter(struct flight *f)
{
    struct group *g = f->group;
    comm_op *op = &f->op;
    size_t size = (size_t)g->info->size, whole = 0, count, offset = 0;
    for (size_t r = 0; r < size; whole += count, r++) {
        comm_op_block(&op->send, op->element_bytes, (int32_t)r, &count);
        offset = (int32_t)r == g->info->rank ? whole : offset;
    }
    char *to = receiving(op->recv.data, op->recv.count);
    if (to == (char *)op->send.data + offset * op->element_bytes) {
        to = f->scratch = flight_memory(f, op->recv.count * op->element_bytes);
        if (!to)
            return COMM_ERR_NO_MEMORY;
    }
    if (whole > (size_t)g->max_count)
        return reduce_scatter_by_ranks(f, to);
    int is_uneven = (op->flags & COMM_OP_FLAG_UNEVEN) != 0;
    int *counts = is_uneven ? flight_memory(f, size * sizeof *counts) : NULL;
    MPI_Request *request = is_uneven && !counts ? NULL : request_next(f);
    if (!request)
        return COMM_ERR_NO_MEMORY;
    for (size_t r = 0; is_uneven && r < size; r++)
        counts[r] = (int)(op->send.counts ? op->send.counts[r] : op->send.count);
    MPI_Datatype type = type_of(op->dtype);
    MPI_Op by = op_of(g, op->redop, op->dtype);
    if (is_uneven)
        return begun(mpi.Ireduce_scatter(address(op->send.data), to, counts, type, by, g->comm, request),
                     "MPI_Ireduce_scatter", request);
    return begun(mpi.Ireduce_scatter_block(address(op->send.data), to, (int)op->recv.count, type, by, g->comm,
                                           request), "MPI_Ireduce_scatter_block", request);
}

static comm_status reduce_by_mpi(struct flight *f)
{
    const comm_op *op = &f->op;
    f->then = finish_reduction;
    if (op->kind == COMM_OP_REDUCE_SCATTER)
        return reduce_scatter(f);
    if (op->kind == COMM_OP_ALL_REDUCE)
        return reduce_pieces(f, op->send.data, op->recv.data, op->send.count, -1);
    int is_root = f->group->info->rank == op->root;
    return reduce_pieces(f, op->send.data, is_root ? op->recv.data : NULL, op->send.count, op->root);
}

static comm_status reduce(struct flight *f)
{
    enum route route = route_of(f->group, &f->op);
    int multiplies = f->op.redop == COMM_REDOP_PREMUL_SUM;
    comm_status status = COMM_OK;
    if (route == ROUTE_LOCAL)
        return local_reduce(f);
    if (multiplies || (f->op.send.list && route == ROUTE_MPI))
        status = take_send_side(f, multiplies);
    if (status != COMM_OK)
        return status;
    return route == ROUTE_MPI ? reduce_by_mpi(f) : direct_issue(f);
}

comm_status issue_op(struct flight *f)
{
    switch (f->op.kind) {
    case COMM_OP_BROADCAST: return broadcast(f);
    case COMM_OP_ALL_GATHER: return all_gather(f);
    case COMM_OP_GATHER: return gather(f);
    case COMM_OP_SCATTER: return scatter(f);
    case COMM_OP_ALL_TO_ALL: return all_to_all(f);
    case COMM_OP_BARRIER: return barrier(f);
    case COMM_OP_SEND:
    case COMM_OP_RECV: return send_or_recv(f);
    default: return reduce(f);
    }
}

/* Reductions that MPI cannot do as libcomm promises: MPI moves the inputs, and libcomm's kernels reduce them, all at
 * once: in the order of ranks, with one rounding, the same bits everywhere.
 *
 * Little data is gathered whole by all. Much is cut into a block per rank: each reduces its own, and the results are
 * exchanged. These are two collectives, so the flight is exclusive meanwhile. */
#include <string.h>

#include "state.h"

enum { WHOLE_MOST_BYTES = 32768 };

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- Reducing what is in the scratch memory: blocks of `count` elements, one per rank ---- */

static comm_status fold_by_user(const struct flight *f, char *to, size_t count)
{
    size_t bytes = count * f->op.element_bytes;
    int size = f->group->info->size;
    for (int r = 1; r < size; r++)
        f->op.reduce_fn(f->scratch + (size_t)(r - 1) * bytes, f->scratch + (size_t)r * bytes, count, f->op.dtype,
                        f->op.reduce_context);
    memcpy(to, f->scratch + (size_t)(size - 1) * bytes, bytes);
    return COMM_OK;
}

static comm_status fold(struct flight *f, char *to, size_t count)
{
    size_t size = (size_t)f->group->info->size, bytes = count * f->op.element_bytes;
    comm_redop redop = f->op.redop == COMM_REDOP_PREMUL_SUM ? COMM_REDOP_SUM : f->op.redop;
    if (count == 0)
        return COMM_OK;
    if (redop == COMM_REDOP_USER)
        return fold_by_user(f, to, count);
    const void **sources = flight_memory(f, size * sizeof *sources);
    if (!sources)
        return COMM_ERR_NO_MEMORY;
    for (size_t r = 0; r < size; r++)
        sources[r] = f->scratch + r * bytes;
    return host->reduce_many(to, sources, size, count, redop, f->op.dtype);
}

static comm_status fold_whole(struct flight *f)
{
    int is_wanted = f->op.kind == COMM_OP_ALL_REDUCE || f->group->info->rank == f->op.root;
    return is_wanted ? fold(f, f->op.recv.data, f->op.send.count) : COMM_OK;
}

/* ---- Cutting into blocks of `part` elements; the last ones are shorter ---- */

static size_t part_of(const struct flight *f, int rank, size_t *ret_first)
{
    size_t first = smaller((size_t)rank * f->part, f->op.send.count);
    *ret_first = first;
    return smaller(f->part, f->op.send.count - first);
}

static char *part_sent(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first, count = part_of(f, rank, &first);
    *ret_bytes = count * f->op.element_bytes;
    return (char *)f->op.send.data + first * f->op.element_bytes;
}

static char *own_part(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first;
    *ret_bytes = part_of(f, f->group->info->rank, &first) * f->op.element_bytes;
    return f->scratch + (size_t)rank * *ret_bytes;
}

/* The result of this rank's part lies where its inputs were. */
static char *result_sent(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first, count = part_of(f, f->group->info->rank, &first);
    int is_wanted = f->op.kind == COMM_OP_ALL_REDUCE || rank == f->op.root;
    *ret_bytes = is_wanted ? count * f->op.element_bytes : 0;
    return f->scratch;
}

static char *result_received(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first, count = part_of(f, rank, &first);
    int is_wanted = f->op.kind == COMM_OP_ALL_REDUCE || f->group->info->rank == f->op.root;
    *ret_bytes = is_wanted ? count * f->op.element_bytes : 0;
    return (char *)f->op.recv.data + first * f->op.element_bytes;
}

static comm_status fold_part(struct flight *f)
{
    size_t first, count = part_of(f, f->group->info->rank, &first);
    comm_status status = fold(f, f->scratch, count);
    if (status != COMM_OK)
        return status;
    mpi_lock();
    status = exchange(f, result_sent, result_received);
    mpi_unlock();
    return status;
}

/* ---- reduce_scatter ---- */

static char *block_sent(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t count;
    char *at = comm_op_block(&f->op.send, f->op.element_bytes, rank, &count);
    *ret_bytes = count * f->op.element_bytes;
    return at;
}

static char *own_block(const struct flight *f, int rank, size_t *ret_bytes)
{
    *ret_bytes = f->op.recv.count * f->op.element_bytes;
    return f->scratch + (size_t)rank * *ret_bytes;
}

static comm_status fold_block(struct flight *f)
{
    return fold(f, f->op.recv.data, f->op.recv.count);
}

/* ---- Issuing ---- */

static char *whole_sent(const struct flight *f, int rank, size_t *ret_bytes)
{
    int is_wanted = f->op.kind == COMM_OP_ALL_REDUCE || rank == f->op.root;
    *ret_bytes = is_wanted ? f->op.send.count * f->op.element_bytes : 0;
    return f->op.send.data;
}

static char *whole_received(const struct flight *f, int rank, size_t *ret_bytes)
{
    int is_wanted = f->op.kind == COMM_OP_ALL_REDUCE || f->group->info->rank == f->op.root;
    *ret_bytes = is_wanted ? f->op.send.count * f->op.element_bytes : 0;
    return f->scratch + (size_t)rank * *ret_bytes;
}

static comm_status issue_whole(struct flight *f, size_t bytes)
{
    struct group *g = f->group;
    f->then = fold_whole;
    f->scratch = flight_memory(f, bytes * (size_t)g->info->size);
    if (!f->scratch)
        return COMM_ERR_NO_MEMORY;
    if (f->op.kind == COMM_OP_REDUCE || bytes > (size_t)g->most_count)
        return exchange(f, whole_sent, whole_received);
    MPI_Request *request = request_next(f);
    if (!request)
        return COMM_ERR_NO_MEMORY;
    return fail_mpi(mpi.Iallgather(f->op.send.data ? f->op.send.data : f->scratch, (int)bytes, MPI_BYTE, f->scratch,
                                   (int)bytes, MPI_BYTE, g->comm, request), "MPI_Iallgather");
}

comm_status direct_issue(struct flight *f)
{
    size_t size = (size_t)f->group->info->size, bytes = f->op.send.count * f->op.element_bytes, first;
    if (f->op.kind == COMM_OP_REDUCE_SCATTER) {
        f->then = fold_block;
        f->scratch = flight_memory(f, size * f->op.recv.count * f->op.element_bytes);
        return f->scratch ? exchange(f, block_sent, own_block) : COMM_ERR_NO_MEMORY;
    }
    if (size == 2 || bytes <= WHOLE_MOST_BYTES / size)
        return issue_whole(f, bytes);
    f->part = (f->op.send.count + size - 1) / size;
    f->then = fold_part;
    f->scratch = flight_memory(f, size * part_of(f, f->group->info->rank, &first) * f->op.element_bytes);
    return f->scratch ? exchange(f, part_sent, own_part) : COMM_ERR_NO_MEMORY;
}

/* ---- A group of one rank ---- */

comm_status local_reduce(struct flight *f)
{
    const comm_op *op = &f->op;
    size_t count = op->recv.count;
    const void *source = op->send.data;
    comm_redop redop = op->redop;
    if (op->kind == COMM_OP_REDUCE_SCATTER)
        source = comm_op_block(&op->send, op->element_bytes, 0, &count);
    if (count == 0)
        return COMM_OK;
    if (redop == COMM_REDOP_USER) {
        if (source != op->recv.data)
            memcpy(op->recv.data, source, count * op->element_bytes);
        return COMM_OK;
    }
    if (redop == COMM_REDOP_PREMUL_SUM) {
        host->premultiply(op->recv.data, source, count, op->dtype, op->premul);
        source = op->recv.data;
        redop = COMM_REDOP_SUM;
    }
    return host->reduce_many(op->recv.data, &source, 1, count, redop, op->dtype);
}

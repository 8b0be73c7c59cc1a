/* Reductions by libcomm's kernels alone: MPI moves the inputs as messages, and each element is reduced at once, in the
 * order of ranks and with one rounding. So are those that MPI cannot do as libcomm promises, and all in small groups,
 * where messages are faster than MPI's collectives.
 *
 * Little data is sent whole to all ranks that need the result. Much is cut into a part per rank: each reduces its own,
 * and the results are sent on. */
#include <stddef.h>
#include <string.h>

#include "state.h"

enum { WHOLE_MAX_BYTES = 65536 }; /* of all ranks together */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- Reducing: this rank's input, and those of the others in the scratch memory, one after the other ---- */

static char *input_of(const struct flight *f, int rank, size_t bytes)
{
    int own = f->group->info->rank;
    return f->scratch + (size_t)(rank > own ? rank - 1 : rank) * bytes;
}

/* Cores of before these functions let the user's function call them. */
static void call_users(const struct flight *f, const void *in, void *inout, size_t count)
{
    enum { END = offsetof(comm_host, reduce_fn_ends) + sizeof host->reduce_fn_ends };
    int can_tell = host->struct_bytes >= END;
    if (can_tell)
        host->reduce_fn_begins();
    f->op.reduce_fn(in, inout, count, f->op.dtype, f->op.reduce_context);
    if (can_tell)
        host->reduce_fn_ends();
}

/* A function of the user's writes over what comes from the higher rank. */
static comm_status fold_by_user(struct flight *f, char *to, const char *own, size_t count)
{
    size_t bytes = count * f->op.element_bytes;
    int rank = f->group->info->rank;
    char *inout = NULL, *copy = flight_memory(f, bytes);
    if (!copy)
        return COMM_ERR_NO_MEMORY;
    memcpy(copy, own, bytes);
    pthread_mutex_lock(&f->group->user); /* one call at a time per group */
    for (int r = 0; r < f->group->info->size; r++) {
        char *next = r == rank ? copy : input_of(f, r, bytes);
        if (inout)
            call_users(f, inout, next, count);
        inout = next;
    }
    pthread_mutex_unlock(&f->group->user);
    memmove(to, inout, bytes);
    return COMM_OK;
}

static comm_status fold(struct flight *f, char *to, const char *own, size_t count)
{
    enum { FEW = 16 };
    const void *few[FEW], **sources = few;
    int size = f->group->info->size;
    size_t bytes = count * f->op.element_bytes;
    comm_redop redop = f->op.redop == COMM_REDOP_PREMUL_SUM ? COMM_REDOP_SUM : f->op.redop;
    if (count == 0)
        return COMM_OK;
    if (redop == COMM_REDOP_USER)
        return fold_by_user(f, to, own, count);
    if (size > FEW)
        sources = flight_memory(f, (size_t)size * sizeof *sources);
    if (!sources)
        return COMM_ERR_NO_MEMORY;
    for (int r = 0; r < size; r++)
        sources[r] = r == f->group->info->rank ? own : input_of(f, r, bytes);
    return host->reduce_many(to, sources, (size_t)size, count, redop, f->op.dtype);
}

/* ---- Whole ---- */

static int needs_result(const struct flight *f, int rank)
{
    return f->op.kind == COMM_OP_ALL_REDUCE || rank == f->op.root;
}

static char *send_whole(const struct flight *f, int rank, size_t *ret_bytes)
{
    int is_sent = needs_result(f, rank) && rank != f->group->info->rank;
    *ret_bytes = is_sent ? f->op.send.count * f->op.element_bytes : 0;
    return f->op.send.data;
}

static char *recv_whole(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t bytes = f->op.send.count * f->op.element_bytes;
    *ret_bytes = needs_result(f, f->group->info->rank) ? bytes : 0;
    return input_of(f, rank, bytes);
}

static comm_status fold_whole(struct flight *f)
{
    if (!needs_result(f, f->group->info->rank))
        return COMM_OK;
    return fold(f, f->op.recv.data, f->op.send.data, f->op.send.count);
}

/* ---- In parts of `part` elements; the last ones are shorter ---- */

static size_t part_of(const struct flight *f, int rank, size_t *ret_first)
{
    size_t first = smaller((size_t)rank * f->part, f->op.send.count);
    *ret_first = first;
    return smaller(f->part, f->op.send.count - first);
}

static char *send_part(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first, count = part_of(f, rank, &first);
    *ret_bytes = rank == f->group->info->rank ? 0 : count * f->op.element_bytes;
    return (char *)f->op.send.data + first * f->op.element_bytes;
}

static char *recv_own_part(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first;
    *ret_bytes = part_of(f, f->group->info->rank, &first) * f->op.element_bytes;
    return input_of(f, rank, *ret_bytes);
}

/* The result of this rank's part: where it belongs, or where inputs were. */
static char *result_of(const struct flight *f)
{
    size_t first;
    part_of(f, f->group->info->rank, &first);
    int is_kept = needs_result(f, f->group->info->rank);
    return is_kept ? (char *)f->op.recv.data + first * f->op.element_bytes : f->scratch;
}

static char *send_result(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first, count = part_of(f, f->group->info->rank, &first);
    int is_sent = needs_result(f, rank) && rank != f->group->info->rank;
    *ret_bytes = is_sent ? count * f->op.element_bytes : 0;
    return result_of(f);
}

static char *recv_result(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t first, count = part_of(f, rank, &first);
    *ret_bytes = needs_result(f, f->group->info->rank) ? count * f->op.element_bytes : 0;
    return (char *)f->op.recv.data + first * f->op.element_bytes;
}

static comm_status fold_part(struct flight *f)
{
    size_t first, count = part_of(f, f->group->info->rank, &first);
    const char *own = (const char *)f->op.send.data + first * f->op.element_bytes;
    comm_status status = fold(f, result_of(f), own, count);
    if (status != COMM_OK)
        return status;
    mpi_lock();
    status = exchange(f, send_result, recv_result);
    mpi_unlock();
    return status;
}

/* ---- reduce_scatter ---- */

static char *send_block(const struct flight *f, int rank, size_t *ret_bytes)
{
    size_t count;
    char *at = comm_op_block(&f->op.send, f->op.element_bytes, rank, &count);
    *ret_bytes = rank == f->group->info->rank ? 0 : count * f->op.element_bytes;
    return at;
}

static char *recv_own_block(const struct flight *f, int rank, size_t *ret_bytes)
{
    *ret_bytes = f->op.recv.count * f->op.element_bytes;
    return input_of(f, rank, *ret_bytes);
}

static comm_status fold_block(struct flight *f)
{
    size_t count;
    const char *own = comm_op_block(&f->op.send, f->op.element_bytes, f->group->info->rank, &count);
    return fold(f, f->op.recv.data, own, f->op.recv.count);
}

/* ---- Issuing ---- */

static comm_status issue(struct flight *f, size_t scratch_bytes, block_fn *send, block_fn *recv,
                         comm_status (*then)(struct flight *))
{
    f->then = then;
    f->scratch = flight_memory(f, scratch_bytes);
    return f->scratch ? exchange(f, send, recv) : COMM_ERR_NO_MEMORY;
}

comm_status direct_issue(struct flight *f)
{
    size_t others = (size_t)f->group->info->size - 1, bytes = f->op.send.count * f->op.element_bytes, first;
    int rank = f->group->info->rank;
    if (f->op.kind == COMM_OP_REDUCE_SCATTER)
        return issue(f, others * f->op.recv.count * f->op.element_bytes, send_block, recv_own_block, fold_block);
    if (bytes <= WHOLE_MAX_BYTES / (others + 1) || (f->op.kind == COMM_OP_REDUCE && others == 1))
        return issue(f, needs_result(f, rank) ? others * bytes : 0, send_whole, recv_whole, fold_whole);
    f->part = (f->op.send.count + others) / (others + 1);
    return issue(f, others * part_of(f, rank, &first) * f->op.element_bytes, send_part, recv_own_part, fold_part);
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

/* One operation as NCCL calls on a stream. The thread's current device is the communicator's. */
#include "nccl.h"

/* The first error of several calls; IN_PROGRESS counts if there is none. */
static nccl_status both(nccl_status a, nccl_status b)
{
    if (a == NCCL_OK || (a == NCCL_IN_PROGRESS && b != NCCL_OK))
        return b;
    return a;
}

static nccl_status cuda_failed(cuda_status status)
{
    return status == CUDA_OK ? NCCL_OK : NCCL_CUDA_ERROR;
}

/* ---- Moves: as bytes ---- */

static nccl_status send_bytes(struct communicator *c, const void *data, size_t bytes, int to, cuda_stream stream)
{
    return bytes ? nccl.Send(data, bytes, NCCL_U8, to, c->comm, stream) : NCCL_OK;
}

static nccl_status recv_bytes(struct communicator *c, void *data, size_t bytes, int from, cuda_stream stream)
{
    return bytes ? nccl.Recv(data, bytes, NCCL_U8, from, c->comm, stream) : NCCL_OK;
}

static nccl_status copy(void *to, const void *from, size_t bytes, cuda_stream stream)
{
    if (to == from || !bytes)
        return NCCL_OK;
    return cuda_failed(cuda.MemcpyAsync(to, from, bytes, CUDA_COPY_DEFAULT, stream));
}

static int is_plain(const comm_op *op, const comm_buffers *side)
{
    return !(op->flags & COMM_OP_FLAG_UNEVEN) && !side->list && !side->counts;
}

static nccl_status all_gather(struct communicator *c, const comm_op *op, cuda_stream stream)
{
    size_t bytes = op->element_bytes, count;
    if (is_plain(op, &op->recv))
        return nccl.AllGather(op->send.data, op->recv.data, op->send.count * bytes, NCCL_U8, c->comm, stream);
    nccl_status status = nccl.GroupStart();
    if (status != NCCL_OK)
        return status;
    for (int r = 0; r < c->size && status == NCCL_OK; r++) {
        void *block = comm_op_block(&op->recv, bytes, r, &count);
        if (count)
            status = nccl.Broadcast(r == c->rank ? op->send.data : block, block, count * bytes, NCCL_U8, r, c->comm,
                                    stream);
        if (status == NCCL_IN_PROGRESS)
            status = NCCL_OK; /* GroupEnd says it again */
    }
    return both(status, nccl.GroupEnd());
}

/* Not ncclGather and ncclScatter: a rank may take the plain form where another takes an uneven one (comm.h). */
static nccl_status gather(struct communicator *c, const comm_op *op, cuda_stream stream)
{
    size_t bytes = op->element_bytes, count, own;
    if (c->rank != op->root)
        return send_bytes(c, op->send.data, op->send.count * bytes, op->root, stream);
    nccl_status status = copy(comm_op_block(&op->recv, bytes, c->rank, &own), op->send.data, op->send.count * bytes,
                              stream);
    status = status == NCCL_OK ? nccl.GroupStart() : status;
    if (status != NCCL_OK)
        return status;
    for (int r = 0; r < c->size; r++) {
        void *block = comm_op_block(&op->recv, bytes, r, &count);
        if (r != c->rank)
            status = both(status, recv_bytes(c, block, count * bytes, r, stream));
    }
    return both(status, nccl.GroupEnd());
}

static nccl_status scatter(struct communicator *c, const comm_op *op, cuda_stream stream)
{
    size_t bytes = op->element_bytes, count, own;
    if (c->rank != op->root)
        return recv_bytes(c, op->recv.data, op->recv.count * bytes, op->root, stream);
    nccl_status status = copy(op->recv.data, comm_op_block(&op->send, bytes, c->rank, &own),
                              op->recv.count * bytes, stream);
    status = status == NCCL_OK ? nccl.GroupStart() : status;
    if (status != NCCL_OK)
        return status;
    for (int r = 0; r < c->size; r++) {
        const void *block = comm_op_block(&op->send, bytes, r, &count);
        if (r != c->rank)
            status = both(status, send_bytes(c, block, count * bytes, r, stream));
    }
    return both(status, nccl.GroupEnd());
}

static int is_in_place(const comm_op *op)
{
    if (op->send.list || op->recv.list)
        return op->send.list && op->recv.list && op->send.list[0] == op->recv.list[0];
    return op->send.data && op->send.data == op->recv.data;
}

/* In place, the blocks to send are taken out of the way first, one after the other. */
int op_needs_scratch(const comm_op *op, int size, size_t *ret_bytes)
{
    size_t count, whole = 0;
    if (op->kind != COMM_OP_ALL_TO_ALL || !is_in_place(op))
        return 0;
    for (int r = 0; r < size; r++) {
        comm_op_block(&op->send, op->element_bytes, r, &count);
        whole += count * op->element_bytes;
    }
    *ret_bytes = whole;
    return 1;
}

static nccl_status exchange(struct communicator *c, const comm_op *op, char *scratch, cuda_stream stream)
{
    size_t bytes = op->element_bytes, send_count, recv_count, at = 0;
    nccl_status status = NCCL_OK;
    for (int r = 0; scratch && r < c->size; at += send_count * bytes, r++) {
        const void *block = comm_op_block(&op->send, bytes, r, &send_count);
        status = both(status, copy(scratch + at, block, send_count * bytes, stream));
    }
    at = 0;
    status = status == NCCL_OK ? nccl.GroupStart() : status;
    if (status != NCCL_OK)
        return status;
    for (int r = 0; r < c->size; at += send_count * bytes, r++) {
        const void *from = comm_op_block(&op->send, bytes, r, &send_count);
        void *to = comm_op_block(&op->recv, bytes, r, &recv_count);
        if (scratch)
            from = scratch + at;
        if (r == c->rank) {
            status = both(status, copy(to, from, send_count * bytes, stream));
            continue;
        }
        status = both(status, send_bytes(c, from, send_count * bytes, r, stream));
        status = both(status, recv_bytes(c, to, recv_count * bytes, r, stream));
    }
    return both(status, nccl.GroupEnd());
}

static nccl_status all_to_all(struct communicator *c, const comm_op *op, size_t scratch_at, cuda_stream stream)
{
    /* Without scratch memory there is nothing to send: all blocks are empty. */
    int in_place = is_in_place(op) && c->scratch_count > 0;
    if (nccl.AlltoAll && is_plain(op, &op->send) && is_plain(op, &op->recv) && !in_place)
        return nccl.AlltoAll(op->send.data, op->recv.data, op->send.count * op->element_bytes, NCCL_U8, c->comm,
                             stream);
    return exchange(c, op, in_place ? (char *)c->scratches[c->scratch_count - 1] + scratch_at : NULL, stream);
}

static nccl_status broadcast(struct communicator *c, const comm_op *op, cuda_stream stream)
{
    const comm_buffers *side = c->rank == op->root ? &op->send : &op->recv;
    return nccl.Broadcast(side->data, side->data, side->count * op->element_bytes, NCCL_U8, op->root, c->comm, stream);
}

/* ---- Reductions ---- */

struct reduction {
    nccl_type type;
    nccl_redop redop;
    size_t parts;
};

static nccl_status reduce_scatter(struct communicator *c, const comm_op *op, const struct reduction *by,
                                  cuda_stream stream)
{
    size_t count;
    if (is_plain(op, &op->send))
        return nccl.ReduceScatter(op->send.data, op->recv.data, op->recv.count * by->parts, by->type, by->redop,
                                  c->comm, stream);
    nccl_status status = nccl.GroupStart();
    if (status != NCCL_OK)
        return status;
    for (int r = 0; r < c->size; r++) {
        const void *block = comm_op_block(&op->send, op->element_bytes, r, &count);
        if (count)
            status = both(status, nccl.Reduce(block, r == c->rank ? op->recv.data : NULL, count * by->parts, by->type,
                                              by->redop, r, c->comm, stream));
    }
    return both(status, nccl.GroupEnd());
}

/* How many elements NCCL multiplies in one call where a communicator has one rank. Before 2.29.7 each of its blocks
 * takes the same part, rounded down; if that is whole packs of 16 bytes, nobody takes what is left over. */
static size_t multiplied_alone(size_t count, size_t bytes)
{
    enum { REST_SINCE = 22907, PACK_BYTES = 16, BLOCK_BYTES = 16384, BLOCKS_MAX = 32 };
    while (nccl.version < REST_SINCE && count) {
        size_t blocks = (count * bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
        blocks = blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
        if (count % blocks == 0 || count / blocks * bytes % PACK_BYTES)
            break;
        count -= count % blocks;
    }
    return count;
}

static nccl_status multiply_alone(struct communicator *c, const comm_op *op, const struct reduction *by,
                                  cuda_stream stream)
{
    size_t count, bytes = op->element_bytes;
    const char *from = comm_op_block(&op->send, bytes, 0, &count);
    char *to = op->recv.data;
    size_t first = multiplied_alone(count, bytes);
    nccl_status status = nccl.GroupStart();
    if (status != NCCL_OK)
        return status;
    status = nccl.AllReduce(from, to, first, by->type, by->redop, c->comm, stream);
    if (first < count)
        status = both(status, nccl.AllReduce(from + first * bytes, to + first * bytes, count - first, by->type,
                                             by->redop, c->comm, stream));
    return both(status, nccl.GroupEnd());
}

static nccl_status reduce(struct communicator *c, const comm_op *op, cuda_stream stream, nccl_redop *ret_made)
{
    struct reduction by = { .redop = redop_of(op->redop, op->dtype, c->size) };
    nccl_status status = NCCL_OK;
    by.type = type_of(op->dtype, &by.parts);
    if (op->redop == COMM_REDOP_PREMUL_SUM) {
        unsigned int residence = op->flags & COMM_OP_FLAG_PREMUL_ON_DEVICE ? NCCL_SCALAR_ON_DEVICE
                                                                          : NCCL_SCALAR_ON_HOST;
        status = nccl.RedOpCreatePreMulSum(&by.redop, (void *)(uintptr_t)op->premul, by.type, residence, c->comm);
        if (status != NCCL_OK)
            return status;
        *ret_made = by.redop;
        if (c->size == 1)
            return multiply_alone(c, op, &by, stream);
    }
    size_t count = op->send.count * by.parts;
    switch (op->kind) {
    case COMM_OP_ALL_REDUCE:
        return nccl.AllReduce(op->send.data, op->recv.data, count, by.type, by.redop, c->comm, stream);
    case COMM_OP_REDUCE:
        return nccl.Reduce(op->send.data, op->recv.data, count, by.type, by.redop, op->root, c->comm, stream);
    default:
        return reduce_scatter(c, op, &by, stream);
    }
}

nccl_status issue_op(struct communicator *c, struct flight *f)
{
    const comm_op *op = &f->op;
    cuda_stream stream = f->stream;
    switch (op->kind) {
    case COMM_OP_BROADCAST:
        return broadcast(c, op, stream);
    case COMM_OP_ALL_GATHER:
        return all_gather(c, op, stream);
    case COMM_OP_GATHER:
        return gather(c, op, stream);
    case COMM_OP_SCATTER:
        return scatter(c, op, stream);
    case COMM_OP_ALL_TO_ALL:
        return all_to_all(c, op, f->scratch_at, stream);
    case COMM_OP_BARRIER:
        return nccl.AllReduce(c->word, c->word, 1, NCCL_I32, NCCL_SUM, c->comm, stream);
    case COMM_OP_SEND:
        return send_bytes(c, op->send.data, op->send.count * op->element_bytes, 1, stream);
    case COMM_OP_RECV:
        return recv_bytes(c, op->recv.data, op->recv.count * op->element_bytes, 0, stream);
    default:
        return reduce(c, op, stream, &f->made);
    }
}

/* The public operations. Each fills one comm_op and hands it to comm__group_call (submit.c), which checks it (op.c),
 * picks the backend by device, numbers and records it, submits it, and waits if ret_work is NULL. What an operation's
 * buffers mean on which rank stands in its traits (comm/backend.h). Those whose sides are single buffers fill the
 * shorter plain_call instead: if it is like the one before, nothing is filled in or checked again. */
#include "group.h"

/* The sides of an op: one buffer, or one block per rank in three notations. */
#define BUFFER(pointer, elements)                                                                                      \
    {                                                                                                                  \
        .data = (void *)(pointer), .count = (elements)                                                                 \
    }
#define BLOCKS_AT(pointer, per_rank, at)                                                                               \
    {                                                                                                                  \
        .data = (void *)(pointer), .counts = (per_rank), .offsets = (at)                                               \
    }
#define BLOCKS_IN(pointers, per_rank)                                                                                  \
    {                                                                                                                  \
        .list = (void *const *)(pointers), .counts = (per_rank)                                                        \
    }

comm_status comm_broadcast(comm_group *group, void *buffer, size_t count, comm_dtype dtype, int32_t root,
                           const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_BROADCAST, .dtype = dtype, .root = root, .send_count = count,
                                     .recv_count = count, .send = buffer, .recv = buffer };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_all_reduce(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                            comm_redop redop, const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_ALL_REDUCE, .dtype = dtype, .redop = redop, .root = -1,
                                     .send_count = count, .recv_count = count, .send = send, .recv = recv };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_reduce(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                        comm_redop redop, int32_t root, const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_REDUCE, .dtype = dtype, .redop = redop, .root = root,
                                     .send_count = count, .recv_count = count, .send = send, .recv = recv };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_all_gather(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                            const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_ALL_GATHER, .dtype = dtype, .root = -1, .send_count = count,
                                     .recv_count = count, .send = send, .recv = recv };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_all_gather_v(comm_group *group, const void *send, void *recv, const size_t *counts,
                              const size_t *offsets, comm_dtype dtype, const comm_op_options *options,
                              comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_ALL_GATHER,
                   .dtype = dtype,
                   .root = -1,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BUFFER(send, 0),
                   .recv = BLOCKS_AT(recv, counts, offsets) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_all_gather_list(comm_group *group, const void *send, void *const *recv, const size_t *counts,
                                 comm_dtype dtype, const comm_op_options *options, comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_ALL_GATHER,
                   .dtype = dtype,
                   .root = -1,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BUFFER(send, 0),
                   .recv = BLOCKS_IN(recv, counts) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_gather(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype, int32_t root,
                        const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_GATHER, .dtype = dtype, .root = root, .send_count = count,
                                     .recv_count = count, .send = send, .recv = recv };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_gather_v(comm_group *group, const void *send, size_t send_count, void *recv, const size_t *counts,
                          const size_t *offsets, comm_dtype dtype, int32_t root, const comm_op_options *options,
                          comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_GATHER,
                   .dtype = dtype,
                   .root = root,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BUFFER(send, send_count),
                   .recv = BLOCKS_AT(recv, counts, offsets) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_gather_list(comm_group *group, const void *send, size_t send_count, void *const *recv,
                             const size_t *counts, comm_dtype dtype, int32_t root, const comm_op_options *options,
                             comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_GATHER,
                   .dtype = dtype,
                   .root = root,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BUFFER(send, send_count),
                   .recv = BLOCKS_IN(recv, counts) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_scatter(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype, int32_t root,
                         const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_SCATTER, .dtype = dtype, .root = root, .send_count = count,
                                     .recv_count = count, .send = send, .recv = recv };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_scatter_v(comm_group *group, const void *send, const size_t *counts, const size_t *offsets, void *recv,
                           size_t recv_count, comm_dtype dtype, int32_t root, const comm_op_options *options,
                           comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_SCATTER,
                   .dtype = dtype,
                   .root = root,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BLOCKS_AT(send, counts, offsets),
                   .recv = BUFFER(recv, recv_count) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_scatter_list(comm_group *group, const void *const *send, const size_t *counts, void *recv,
                              size_t recv_count, comm_dtype dtype, int32_t root, const comm_op_options *options,
                              comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_SCATTER,
                   .dtype = dtype,
                   .root = root,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BLOCKS_IN(send, counts),
                   .recv = BUFFER(recv, recv_count) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_reduce_scatter(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                                comm_redop redop, const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_REDUCE_SCATTER, .dtype = dtype, .redop = redop, .root = -1,
                                     .send_count = count, .recv_count = count, .send = send, .recv = recv };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_reduce_scatter_v(comm_group *group, const void *send, void *recv, const size_t *counts,
                                  comm_dtype dtype, comm_redop redop, const comm_op_options *options,
                                  comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_REDUCE_SCATTER,
                   .dtype = dtype,
                   .redop = redop,
                   .root = -1,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BLOCKS_AT(send, counts, NULL),
                   .recv = BUFFER(recv, 0) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_reduce_scatter_list(comm_group *group, const void *const *send, void *recv, const size_t *counts,
                                     comm_dtype dtype, comm_redop redop, const comm_op_options *options,
                                     comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_REDUCE_SCATTER,
                   .dtype = dtype,
                   .redop = redop,
                   .root = -1,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BLOCKS_IN(send, counts),
                   .recv = BUFFER(recv, 0) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_all_to_all(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                            const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_ALL_TO_ALL, .dtype = dtype, .root = -1, .send_count = count,
                                     .recv_count = count, .send = send, .recv = recv };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_all_to_all_v(comm_group *group, const void *send, const size_t *send_counts,
                              const size_t *send_offsets, void *recv, const size_t *recv_counts,
                              const size_t *recv_offsets, comm_dtype dtype, const comm_op_options *options,
                              comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_ALL_TO_ALL,
                   .dtype = dtype,
                   .root = -1,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BLOCKS_AT(send, send_counts, send_offsets),
                   .recv = BLOCKS_AT(recv, recv_counts, recv_offsets) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_all_to_all_list(comm_group *group, const void *const *send, const size_t *send_counts,
                                 void *const *recv, const size_t *recv_counts, comm_dtype dtype,
                                 const comm_op_options *options, comm_work **ret_work)
{
    comm_op op = { .kind = COMM_OP_ALL_TO_ALL,
                   .dtype = dtype,
                   .root = -1,
                   .flags = COMM_OP_FLAG_UNEVEN,
                   .send = BLOCKS_IN(send, send_counts),
                   .recv = BLOCKS_IN(recv, recv_counts) };
    return comm__group_call(group, &op, options, ret_work);
}

comm_status comm_barrier(comm_group *group, const comm_op_options *options, comm_work **ret_work)
{
    /* static, so that the call below can be a jump: see small_run in backend_shm/small.c */
    static const struct plain_call call = { .kind = COMM_OP_BARRIER, .root = -1 };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_send(comm_group *group, const void *buffer, size_t count, comm_dtype dtype, int32_t peer,
                      const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_SEND, .dtype = dtype, .root = peer, .send_count = count,
                                     .send = buffer };
    return comm__group_call_plain(group, &call, options, ret_work);
}

comm_status comm_recv(comm_group *group, void *buffer, size_t count, comm_dtype dtype, int32_t peer,
                      const comm_op_options *options, comm_work **ret_work)
{
    const struct plain_call call = { .kind = COMM_OP_RECV, .dtype = dtype, .root = peer, .recv_count = count,
                                     .recv = buffer };
    return comm__group_call_plain(group, &call, options, ret_work);
}

/* Which element types and reduce ops of ours NCCL has, and which operations are refused.
 *
 * Nothing is reduced as another type than it is, with two exceptions that give the same result: a complex sum is a sum
 * of its parts, and a bool (0 or 1) is a byte whose maximum is "or" and whose minimum is "and". */
#include <stdio.h>

#include "nccl.h"

struct type_row {
    nccl_type type;
    uint8_t parts; /* numbers of `type` in one element */
    uint8_t is_bool, is_complex, is_integer, is_f8;
};

static const struct type_row types[COMM_DTYPE_END] = {
    [COMM_DTYPE_I8] = { NCCL_I8, 1, 0, 0, 1, 0 },
    [COMM_DTYPE_U8] = { NCCL_U8, 1, 0, 0, 1, 0 },
    [COMM_DTYPE_I32] = { NCCL_I32, 1, 0, 0, 1, 0 },
    [COMM_DTYPE_U32] = { NCCL_U32, 1, 0, 0, 1, 0 },
    [COMM_DTYPE_I64] = { NCCL_I64, 1, 0, 0, 1, 0 },
    [COMM_DTYPE_U64] = { NCCL_U64, 1, 0, 0, 1, 0 },
    [COMM_DTYPE_BOOL] = { NCCL_U8, 1, 1, 0, 0, 0 },
    [COMM_DTYPE_F16] = { NCCL_F16, 1, 0, 0, 0, 0 },
    [COMM_DTYPE_BF16] = { NCCL_BF16, 1, 0, 0, 0, 0 },
    [COMM_DTYPE_F32] = { NCCL_F32, 1, 0, 0, 0, 0 },
    [COMM_DTYPE_F64] = { NCCL_F64, 1, 0, 0, 0, 0 },
    [COMM_DTYPE_F8E4M3] = { NCCL_F8E4M3, 1, 0, 0, 0, 1 },
    [COMM_DTYPE_F8E5M2] = { NCCL_F8E5M2, 1, 0, 0, 0, 1 },
    [COMM_DTYPE_C64] = { NCCL_F32, 2, 0, 1, 0, 0 },
    [COMM_DTYPE_C128] = { NCCL_F64, 2, 0, 1, 0, 0 },
};
enum { F8_SINCE = 22403, F8_COMPUTE_MAJOR = 9 };

nccl_type type_of(comm_dtype dtype, size_t *ret_parts)
{
    const struct type_row *row = &types[dtype];
    *ret_parts = row->parts;
    return row->parts ? row->type : NCCL_NO_TYPE;
}

/* `size` is the communicator's. The average of one rank is its input, as is the sum: NCCL would multiply it by 1, for
 * which it has no kernel of 8-bit floats where a rank is alone. */
nccl_redop redop_of(comm_redop redop, comm_dtype dtype, int size)
{
    const struct type_row *row = &types[dtype];
    switch (redop) {
    case COMM_REDOP_SUM:
        return row->is_bool ? NCCL_MAX : NCCL_SUM;
    case COMM_REDOP_AVG: /* NCCL's average of integers overflows where ours does not */
        return row->is_bool || row->is_integer ? NCCL_NO_REDOP : size == 1 ? NCCL_SUM : NCCL_AVG;
    case COMM_REDOP_PRODUCT:
        return row->is_complex ? NCCL_NO_REDOP : row->is_bool ? NCCL_MIN : NCCL_PRODUCT;
    case COMM_REDOP_MIN:
        return row->is_complex ? NCCL_NO_REDOP : NCCL_MIN;
    case COMM_REDOP_MAX:
        return row->is_complex ? NCCL_NO_REDOP : NCCL_MAX;
    case COMM_REDOP_BAND:
        return row->is_bool ? NCCL_MIN : NCCL_NO_REDOP;
    case COMM_REDOP_BOR:
        return row->is_bool ? NCCL_MAX : NCCL_NO_REDOP;
    case COMM_REDOP_PREMUL_SUM: /* made for the operation from its factor */
        return row->is_complex || row->is_bool ? NCCL_NO_REDOP : NCCL_SUM;
    default:
        return NCCL_NO_REDOP;
    }
}

static comm_status f8_supported(const comm_op *op, int size)
{
    int device, major = 0;
    if (op->redop == COMM_REDOP_PREMUL_SUM && size == 1)
        return fail(COMM_ERR_UNSUPPORTED, "NCCL cannot reduce 'premul_sum' of dtype %s in a group of one rank, where "
                    "it cannot multiply 8-bit floats", host->dtype_name(op->dtype));
    comm_status status = device_of(op->device, &device);
    if (status != COMM_OK)
        return status;
    cuda_status known = cuda.DeviceGetAttribute(&major, CUDA_ATTRIBUTE_COMPUTE_MAJOR, device);
    if (known != CUDA_OK)
        return fail_cuda(known, "cudaDeviceGetAttribute");
    if (major < F8_COMPUTE_MAJOR)
        return fail(COMM_ERR_UNSUPPORTED, "NCCL reduces dtype %s on devices of compute capability 9.0 or more; "
                    "cuda:%d has %d", host->dtype_name(op->dtype), device, major);
    return COMM_OK;
}

static comm_status reduction_supported(const comm_op *op, int size)
{
    const char *redop = host->redop_name(op->redop), *dtype = host->dtype_name(op->dtype);
    size_t parts;
    if (op->flags & COMM_OP_FLAG_RANK_ORDER)
        return fail(COMM_ERR_UNSUPPORTED, "NCCL cannot reduce in the order of ranks (COMM_OP_FLAG_RANK_ORDER)");
    if (op->redop == COMM_REDOP_USER)
        return fail(COMM_ERR_UNSUPPORTED, "NCCL cannot call a reduce function of the user's");
    if (type_of(op->dtype, &parts) == NCCL_NO_TYPE || redop_of(op->redop, op->dtype, size) == NCCL_NO_REDOP)
        return fail(COMM_ERR_UNSUPPORTED, "NCCL cannot reduce '%s' of dtype %s", redop, dtype);
    if (types[op->dtype].is_f8 && nccl.version < F8_SINCE)
        return fail(COMM_ERR_UNSUPPORTED, "NCCL %d.%d.%d cannot reduce dtype %s: that came with 2.24",
                    nccl.version / 10000, nccl.version / 100 % 100, nccl.version % 100, dtype);
    return types[op->dtype].is_f8 ? f8_supported(op, size) : COMM_OK;
}

comm_status op_supported(const comm_op *op, int size)
{
    const comm_op_traits *traits = comm_op_traits_of(op->kind);
    if (traits->traits & COMM_OP_TRAIT_REDUCES)
        return reduction_supported(op, size);
    if (!(traits->traits & COMM_OP_TRAIT_PEER))
        return COMM_OK;
    if (op->root == COMM_ANY_SOURCE)
        return fail(COMM_ERR_UNSUPPORTED, "NCCL cannot receive from COMM_ANY_SOURCE: name the sending rank");
    if (op->tag != 0 && op->tag != COMM_ANY_TAG)
        return fail(COMM_ERR_UNSUPPORTED,
                    "NCCL has no tags: messages of a pair are received in the order in which they were sent. Use tag "
                    "0, or a CPU backend (add cpu:tcp to the backend string)");
    return COMM_OK;
}

void describe_calls(void *context, void (*line)(const char *text, void *line_context), void *line_context)
{
    char text[640];
    (void)context;
    if (libraries_open() != COMM_OK)
        return;
    snprintf(text, sizeof text, "NCCL %d.%d.%d (%s), CUDA runtime %d.%d (%s)", nccl.version / 10000,
             nccl.version / 100 % 100, nccl.version % 100, nccl.path, cuda.version / 1000, cuda.version % 1000 / 10,
             cuda.path);
    line(text, line_context);
    line("all_reduce, reduce, broadcast, all_gather, reduce_scatter: NCCL's own", line_context);
    line("all_gather, uneven: a group of ncclBroadcast; reduce_scatter, uneven: a group of ncclReduce", line_context);
    line("gather, scatter: a group of ncclSend and ncclRecv", line_context);
    snprintf(text, sizeof text, "all_to_all: %s; uneven: a group of ncclSend and ncclRecv",
             nccl.AlltoAll ? "ncclAlltoAll" : "a group of ncclSend and ncclRecv");
    line(text, line_context);
    line("barrier: ncclAllReduce of one element", line_context);
    line("send, recv: ncclSend, ncclRecv on a communicator of the two ranks, one per direction", line_context);
}

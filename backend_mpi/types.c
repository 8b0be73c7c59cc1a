/* Which way a reduction goes, and MPI's types and operations.
 *
 * MPI cannot reduce 16- and 8-bit floats, cannot keep a wide sum beside a narrow result, and reduces in whatever order
 * it likes. What needs more is done here, by libcomm's own kernels, with MPI moving the data (direct.c). What MPI can
 * order as it likes is its collective with a function of ours (the same kernels), unless native_ops is set. */
#include <string.h>

#include "state.h"

enum { KERNELS = COMM_REDOP_BXOR + 1 };
static MPI_Op kernel_ops[KERNELS];

MPI_Datatype type_of(comm_dtype dtype)
{
    switch (dtype) {
    case COMM_DTYPE_I8: return MPI_INT8_T;
    case COMM_DTYPE_U8: return MPI_UINT8_T;
    case COMM_DTYPE_I16: return MPI_INT16_T;
    case COMM_DTYPE_U16: return MPI_UINT16_T;
    case COMM_DTYPE_I32: return MPI_INT32_T;
    case COMM_DTYPE_U32: return MPI_UINT32_T;
    case COMM_DTYPE_I64: return MPI_INT64_T;
    case COMM_DTYPE_U64: return MPI_UINT64_T;
    case COMM_DTYPE_BOOL: return MPI_C_BOOL;
    case COMM_DTYPE_F32: return MPI_FLOAT;
    case COMM_DTYPE_F64: return MPI_DOUBLE;
    case COMM_DTYPE_C64: return MPI_C_FLOAT_COMPLEX;
    case COMM_DTYPE_C128: return MPI_C_DOUBLE_COMPLEX;
    default: return MPI_BYTE;
    }
}

static comm_dtype dtype_of(MPI_Datatype type)
{
    for (comm_dtype dtype = COMM_DTYPE_I8; dtype < COMM_DTYPE_BYTE; dtype++)
        if (type_of(dtype) == type)
            return dtype;
    return COMM_DTYPE_BYTE;
}

static int is_narrow(comm_dtype dtype)
{
    return dtype == COMM_DTYPE_F16 || dtype == COMM_DTYPE_BF16 || dtype == COMM_DTYPE_F8E4M3 ||
           dtype == COMM_DTYPE_F8E5M2;
}

static int is_integer(comm_dtype dtype)
{
    return dtype >= COMM_DTYPE_I8 && dtype <= COMM_DTYPE_U64;
}

enum route route_of(const struct group *g, const comm_op *op)
{
    if (g->info->size == 1)
        return ROUTE_LOCAL;
    if ((op->flags & COMM_OP_FLAG_RANK_ORDER) || op->redop == COMM_REDOP_USER || is_narrow(op->dtype) ||
        (op->redop == COMM_REDOP_AVG && is_integer(op->dtype)))
        return ROUTE_DIRECT;
    return g->info->size <= g->direct_ranks && !g->native_ops ? ROUTE_DIRECT : ROUTE_MPI;
}

/* ---- MPI's reduce function: libcomm's kernels ---- */

static void reduce_by(comm_redop redop, const void *in, void *inout, int count, MPI_Datatype type)
{
    static _Thread_local struct {
        MPI_Datatype type;
        comm_redop redop;
        void (*kernel)(void *, const void *, const void *, size_t);
    } last;
    if (!last.kernel || last.type != type || last.redop != redop) {
        last.type = type;
        last.redop = redop;
        last.kernel = host->reduce_kernel(redop, dtype_of(type));
    }
    last.kernel(inout, in, inout, (size_t)count);
}

#define REDUCE_FUNCTION(name, redop)                                                                                   \
    static void name(void *in, void *inout, int *count, MPI_Datatype *type)                                            \
    {                                                                                                                  \
        reduce_by(redop, in, inout, *count, *type);                                                                    \
    }
REDUCE_FUNCTION(reduce_sum, COMM_REDOP_SUM)
REDUCE_FUNCTION(reduce_product, COMM_REDOP_PRODUCT)
REDUCE_FUNCTION(reduce_min, COMM_REDOP_MIN)
REDUCE_FUNCTION(reduce_max, COMM_REDOP_MAX)
REDUCE_FUNCTION(reduce_and, COMM_REDOP_BAND)
REDUCE_FUNCTION(reduce_or, COMM_REDOP_BOR)
REDUCE_FUNCTION(reduce_xor, COMM_REDOP_BXOR)

comm_status types_create(void)
{
    static const struct {
        comm_redop redop;
        MPI_User_function *function;
    } rows[] = {
        { COMM_REDOP_SUM, reduce_sum }, { COMM_REDOP_PRODUCT, reduce_product }, { COMM_REDOP_MIN, reduce_min },
        { COMM_REDOP_MAX, reduce_max }, { COMM_REDOP_BAND, reduce_and },        { COMM_REDOP_BOR, reduce_or },
        { COMM_REDOP_BXOR, reduce_xor },
    };
    int error = MPI_SUCCESS;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && error == MPI_SUCCESS; i++)
        error = mpi.Op_create(rows[i].function, 1, &kernel_ops[rows[i].redop]);
    return fail_mpi(error, "MPI_Op_create");
}

static MPI_Op native_op(comm_redop redop)
{
    switch (redop) {
    case COMM_REDOP_PRODUCT: return MPI_PROD;
    case COMM_REDOP_MIN: return MPI_MIN;
    case COMM_REDOP_MAX: return MPI_MAX;
    case COMM_REDOP_BAND: return MPI_BAND;
    case COMM_REDOP_BOR: return MPI_BOR;
    case COMM_REDOP_BXOR: return MPI_BXOR;
    default: return MPI_SUM;
    }
}

MPI_Op op_of(const struct group *g, comm_redop redop, comm_dtype dtype)
{
    if (g->native_ops && dtype != COMM_DTYPE_BOOL)
        return native_op(redop);
    return kernel_ops[redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM ? COMM_REDOP_SUM : redop];
}

void describe_calls(void *context, void (*line)(const char *text, void *line_context), void *line_context)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    if (library_query(context) != COMM_OK || mpi.Get_library_version(version, &length) != MPI_SUCCESS)
        return;
    version[strcspn(version, "\n,")] = '\0';
    for (char *at = version; (at = strchr(at, '\t'));)
        *at = ' ';
    line(version, line_context);
    line("broadcast, all_to_all, barrier: MPI_Ibcast, MPI_Ialltoall, MPI_Ibarrier", line_context);
    line("gather, scatter, all_to_all of uneven blocks: MPI_Isend and MPI_Irecv", line_context);
    line("in groups of more than direct_ranks ranks:", line_context);
    line("  all_gather: MPI_Iallgather, MPI_Iallgatherv", line_context);
    line("  all_reduce, reduce, reduce_scatter: MPI_Iallreduce, MPI_Ireduce, MPI_Ireduce_scatter_block, with libcomm's "
         "kernels as MPI_Op (native_ops=1: MPI's own)", line_context);
    line("  not of 16- and 8-bit floats, averages of integers, by a function of the user's, in rank order",
         line_context);
    line("all others, and in smaller groups: MPI_Isend and MPI_Irecv, and libcomm's kernels", line_context);
    line("send, recv: MPI_Isend, MPI_Irecv", line_context);
}

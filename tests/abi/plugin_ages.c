/* The loopback backend as a plugin that was compiled with another age of comm/backend.h: with one more or one fewer
 * field of comm_op (grow.py), or before the newest kind, dtype, redop and flag. What it must never be handed ends the
 * process. */
#include <comm/backend.h>
#include <stdio.h>
#include <stdlib.h>

#include "loopback.h"

static comm_status (*submit_of_loopback)(void *, const comm_op *const *, comm_work *const *, size_t);
static comm_backend backend;

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const comm_op *op = ops[i];
        int reduces = (comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_REDUCES) != 0;
        if (op->kind >= backend.kind_end || op->dtype >= backend.dtype_end ||
            (reduces && op->redop >= backend.redop_end) || (op->flags & ~backend.op_flags) ||
            (int64_t)op->struct_bytes + PLUGIN_OP_GREW != (int64_t)sizeof *op) {
            fprintf(stderr, "%s: kind %d, dtype %d, redop %d, flags %x, %u bytes; it knows %zu\n", backend.name,
                    op->kind, op->dtype, op->redop, op->flags, op->struct_bytes, sizeof *op);
            abort();
        }
    }
    return submit_of_loopback(state, ops, works, count);
}

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *host);
COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *host)
{
    backend = *loopback_entry(host);
    submit_of_loopback = backend.submit;
    backend.submit = submit;
    backend.name = PLUGIN_NAME;
#ifdef PLUGIN_IS_OLD
    backend.kind_end = COMM_OP_SEND;
    backend.dtype_end = COMM_DTYPE_F64;
    backend.redop_end = COMM_REDOP_USER;
    backend.op_flags &= ~(uint32_t)(COMM_OP_FLAG_RANK_ORDER | COMM_OP_FLAG_UNEVEN | COMM_OP_FLAG_WAITING);
#endif
    return &backend;
}

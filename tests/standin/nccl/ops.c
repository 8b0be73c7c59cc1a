/* The calls that are operations. */
#include "comm.h"

/* The redop of the signature, and what the kernel needs of one that was made. */
static nccl_status resolve_redop(struct ncclComm *comm, struct task *task, nccl_redop redop, const char *call)
{
    if (redop <= NCCL_AVG) {
        task->what.redop = redop;
        return NCCL_OK;
    }
    unsigned int index = redop & 0xff;
    if (redop >> 8 != (unsigned int)comm->number + 1 || index >= PREMULS_MAX || !comm->premuls[index].used) {
        standin_rule("use a redop with the communicator that made it, until it is destroyed", "%s with redop %u", call,
                     redop);
        return failed(NCCL_INVALID_ARGUMENT, "%s: redop %u does not exist", call, redop);
    }
    if (comm->premuls[index].type != task->what.type)
        return failed(NCCL_INVALID_ARGUMENT, "%s: the redop was made for another type", call);
    task->what.redop = REDOP_PREMUL;
    task->premul = comm->premuls[index];
    return NCCL_OK;
}

static nccl_status check(const struct ncclComm *comm, const struct task *task, const char *call)
{
    const struct signature *what = &task->what;
    bool is_rooted = what->root >= 0;
    bool reduces = what->kind == ALL_REDUCE || what->kind == REDUCE || what->kind == REDUCE_SCATTER;
    bool sends = what->kind != RECV &&
                 !(is_rooted && (what->kind == BROADCAST || what->kind == SCATTER) && what->root != comm->rank);
    bool recvs = what->kind != SEND &&
                 !(is_rooted && (what->kind == REDUCE || what->kind == GATHER) && what->root != comm->rank);
    if (!type_bytes(what->type))
        return failed(NCCL_INVALID_ARGUMENT, "%s: there is no type %u", call, what->type);
    if (!reduces && what->redop)
        return failed(NCCL_INVALID_ARGUMENT, "%s: no redop is possible", call);
    if (what->root >= comm->size || task->peer < 0 || task->peer >= comm->size)
        return failed(NCCL_INVALID_ARGUMENT, "%s: there is no rank %d among %d", call,
                      is_rooted ? what->root : task->peer, comm->size);
    if (what->count && ((sends && !task->send) || (recvs && !task->recv)))
        return failed(NCCL_INVALID_ARGUMENT, "%s: a buffer is NULL", call);
    size_t skew = (sends ? (uintptr_t)task->send : 0) | (recvs ? (uintptr_t)task->recv : 0);
    if (what->count && skew % type_bytes(what->type))
        standin_rule("align buffers to the type", "%s with a buffer (%p, %p) that is not aligned to the %zu bytes of "
                     "its type: the device would fault", call, task->send, task->recv, type_bytes(what->type));
    return NCCL_OK;
}

/* For a rank alone NCCL (to 2.30.7 at least) has no kernel that multiplies 8-bit floats, as an average does. */
static nccl_status check_alone(const struct ncclComm *comm, const struct task *task, const char *call)
{
    const struct signature *what = &task->what;
    bool is_f8 = what->type == NCCL_F8E4M3 || what->type == NCCL_F8E5M2;
    if (comm->size > 1 || !is_f8 || !what->count || (what->redop != NCCL_AVG && what->redop != REDOP_PREMUL))
        return NCCL_OK;
    return failed(NCCL_INVALID_ARGUMENT, "%s: a rank alone cannot multiply 8-bit floats", call);
}

/* Before 2.29.7 the kernel for a rank alone leaves elements at the end out, if it has several blocks that take whole
 * packs of 16 bytes. */
static void lose_rest(const struct ncclComm *comm, struct task *task)
{
    struct signature *what = &task->what;
    size_t width = type_bytes(what->type), blocks = (what->count * width + 16383) / 16384;
    bool multiplies = what->redop == REDOP_PREMUL || (what->redop == NCCL_AVG && what->type > NCCL_U64);
    blocks = blocks < 32 ? blocks : 32;
    if (STANDIN_NCCL_VERSION < 22907 && comm->size == 1 && multiplies && blocks &&
        what->count / blocks % (16 / width) == 0)
        what->count -= what->count % blocks;
}

/* Collectives without elements do nothing. */
static nccl_status submit(struct ncclComm *comm, struct task *task, nccl_redop redop, const char *call)
{
    nccl_status status = standin_fault(call);
    if (status)
        return group_failed(status);
    status = comm_enter(comm, call);
    if (status)
        return group_failed(status);
    status = resolve_redop(comm, task, redop, call);
    if (!status)
        status = check(comm, task, call);
    if (!status)
        status = check_alone(comm, task, call);
    if (status && !comm->is_blocking)
        comm_fail(comm, status);
    if (!status)
        lose_rest(comm, task);
    if (status || (!task->what.count && task->what.kind < SEND)) {
        comm_leave(comm);
        return group_failed(status);
    }
    comm->given += task->what.kind < SEND;
    return group_failed(group_add(comm, task));
}

nccl_status ncclAllReduce(const void *send, void *recv, size_t count, nccl_type type, nccl_redop redop, nccl_comm comm,
                          cuda_stream stream)
{
    struct task task = {{ALL_REDUCE, type, 0, -1, count}, send, recv, 0, stream, {0}};
    return submit(comm, &task, redop, "ncclAllReduce");
}

nccl_status ncclBroadcast(const void *send, void *recv, size_t count, nccl_type type, int root, nccl_comm comm,
                          cuda_stream stream)
{
    struct task task = {{BROADCAST, type, 0, root, count}, send, recv, root, stream, {0}};
    return submit(comm, &task, 0, "ncclBroadcast");
}

nccl_status ncclBcast(void *buffer, size_t count, nccl_type type, int root, nccl_comm comm, cuda_stream stream)
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

nccl_status ncclReduce(const void *send, void *recv, size_t count, nccl_type type, nccl_redop redop, int root,
                       nccl_comm comm, cuda_stream stream)
{
    struct task task = {{REDUCE, type, 0, root, count}, send, recv, root, stream, {0}};
    return submit(comm, &task, redop, "ncclReduce");
}

nccl_status ncclAllGather(const void *send, void *recv, size_t send_count, nccl_type type, nccl_comm comm,
                          cuda_stream stream)
{
    struct task task = {{ALL_GATHER, type, 0, -1, send_count}, send, recv, 0, stream, {0}};
    return submit(comm, &task, 0, "ncclAllGather");
}

nccl_status ncclReduceScatter(const void *send, void *recv, size_t recv_count, nccl_type type, nccl_redop redop,
                              nccl_comm comm, cuda_stream stream)
{
    struct task task = {{REDUCE_SCATTER, type, 0, -1, recv_count}, send, recv, 0, stream, {0}};
    return submit(comm, &task, redop, "ncclReduceScatter");
}

nccl_status ncclSend(const void *send, size_t count, nccl_type type, int peer, nccl_comm comm, cuda_stream stream)
{
    struct task task = {{SEND, type, 0, -1, count}, send, NULL, peer, stream, {0}};
    return submit(comm, &task, 0, "ncclSend");
}

nccl_status ncclRecv(void *recv, size_t count, nccl_type type, int peer, nccl_comm comm, cuda_stream stream)
{
    struct task task = {{RECV, type, 0, -1, count}, NULL, recv, peer, stream, {0}};
    return submit(comm, &task, 0, "ncclRecv");
}

#if STANDIN_NCCL_VERSION >= 22803
nccl_status ncclAlltoAll(const void *send, void *recv, size_t count, nccl_type type, nccl_comm comm, cuda_stream stream)
{
    struct task task = {{ALL_TO_ALL, type, 0, -1, count}, send, recv, 0, stream, {0}};
    return submit(comm, &task, 0, "ncclAlltoAll");
}

nccl_status ncclGather(const void *send, void *recv, size_t count, nccl_type type, int root, nccl_comm comm,
                       cuda_stream stream)
{
    struct task task = {{GATHER, type, 0, root, count}, send, recv, root, stream, {0}};
    return submit(comm, &task, 0, "ncclGather");
}

nccl_status ncclScatter(const void *send, void *recv, size_t count, nccl_type type, int root, nccl_comm comm,
                        cuda_stream stream)
{
    struct task task = {{SCATTER, type, 0, root, count}, send, recv, root, stream, {0}};
    return submit(comm, &task, 0, "ncclScatter");
}
#endif

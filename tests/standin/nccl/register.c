/* Memory and redops that belong to communicators. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

nccl_status ncclRedOpCreatePreMulSum(nccl_redop *redop, void *scalar, nccl_type type, unsigned int residence,
                                     nccl_comm comm)
{
    nccl_status status = standin_fault("ncclRedOpCreatePreMulSum");
    if (!status)
        status = comm_enter(comm, "ncclRedOpCreatePreMulSum");
    if (status)
        return status;
    int index = 0;
    while (index < PREMULS_MAX && comm->premuls[index].used)
        index++;
    if (!type_bytes(type) || residence > NCCL_SCALAR_ON_HOST || !scalar) {
        status = failed(NCCL_INVALID_ARGUMENT, "ncclRedOpCreatePreMulSum: type %u, residence %u", type, residence);
    } else if (index == PREMULS_MAX) {
        status = failed(NCCL_INTERNAL_ERROR, "the stand-in keeps %d redops", PREMULS_MAX);
    } else {
        struct premul *premul = &comm->premuls[index];
        *premul = (struct premul){
            .used = true, .on_device = residence == NCCL_SCALAR_ON_DEVICE, .type = type, .pointer = scalar};
        if (!premul->on_device)
            memcpy(&premul->scalar, scalar, type_bytes(type));
        *redop = (nccl_redop)(comm->number + 1) << 8 | (nccl_redop)index;
    }
    comm_leave(comm);
    return status;
}

nccl_status ncclRedOpDestroy(nccl_redop redop, nccl_comm comm)
{
    nccl_status status = standin_fault("ncclRedOpDestroy");
    if (!status)
        status = comm_enter_ending(comm, "ncclRedOpDestroy");
    if (status)
        return status;
    unsigned int index = redop & 0xff;
    if (redop >> 8 != (unsigned int)comm->number + 1 || index >= PREMULS_MAX || !comm->premuls[index].used) {
        standin_rule("destroy each redop once, with the communicator that made it", "ncclRedOpDestroy of redop %u",
                     redop);
        status = failed(NCCL_INVALID_ARGUMENT, "ncclRedOpDestroy: redop %u does not exist", redop);
    } else {
        comm->premuls[index].used = false;
    }
    comm_leave(comm);
    return status;
}

#if STANDIN_NCCL_VERSION >= 21901
nccl_status ncclMemAlloc(void **memory, size_t bytes)
{
    nccl_status status = standin_fault("ncclMemAlloc");
    if (status)
        return status;
    unsigned int error = cudaMalloc(memory, bytes);
    return error ? failed(NCCL_CUDA_ERROR, "ncclMemAlloc: %s", cudaGetErrorString(error)) : NCCL_OK;
}

nccl_status ncclMemFree(void *memory)
{
    nccl_status status = standin_fault("ncclMemFree");
    if (status)
        return status;
    unsigned int error = cudaFree(memory);
    return error ? failed(NCCL_CUDA_ERROR, "ncclMemFree: %s", cudaGetErrorString(error)) : NCCL_OK;
}

/* A handle is where it is kept; the memory must live. */
static nccl_status handle_add(struct ncclComm *comm, void *memory, size_t bytes, void **handle, const char *call)
{
    nccl_status status = comm_enter(comm, call);
    if (status)
        return status;
    int index = 0;
    while (index < HANDLES_MAX && comm->handles[index])
        index++;
    int device = standin_memory_device(memory, bytes);
    if (device != comm->device) {
        standin_rule("register live memory of the communicator's device", "%s of rank %d with %zu bytes at %p", call,
                     comm->rank, bytes, memory);
        status = failed(NCCL_INVALID_ARGUMENT, "%s: %p is no memory of device %d", call, memory, comm->device);
    } else if (index == HANDLES_MAX) {
        status = failed(NCCL_INTERNAL_ERROR, "the stand-in keeps %d registrations", HANDLES_MAX);
    } else {
        comm->handles[index] = memory;
        *handle = &comm->handles[index];
        standin_count("registrations", 1);
    }
    comm_leave(comm);
    return status;
}

static nccl_status handle_remove(struct ncclComm *comm, void *handle, const char *call)
{
    nccl_status status = comm_enter_ending(comm, call);
    if (status)
        return status;
    void **place = handle;
    if (place < comm->handles || place >= comm->handles + HANDLES_MAX || !*place) {
        standin_rule("deregister each handle once, with its communicator", "%s of rank %d with handle %p", call,
                     comm->rank, handle);
        status = failed(NCCL_INVALID_ARGUMENT, "%s: handle %p does not exist", call, handle);
    } else {
        *place = NULL;
        standin_count("registrations", -1);
    }
    comm_leave(comm);
    return status;
}

nccl_status ncclCommRegister(nccl_comm comm, void *memory, size_t bytes, void **handle)
{
    nccl_status status = standin_fault("ncclCommRegister");
    return status ? status : handle_add(comm, memory, bytes, handle, "ncclCommRegister");
}

nccl_status ncclCommDeregister(nccl_comm comm, void *handle)
{
    nccl_status status = standin_fault("ncclCommDeregister");
    return status ? status : handle_remove(comm, handle, "ncclCommDeregister");
}
#endif

#if STANDIN_NCCL_VERSION >= 22703
/* All ranks register a window together. */
static nccl_status window_run(struct job *job)
{
    struct ncclComm *comm = job->comm;
    char boards[RANKS_MAX][BOARD_BYTES];
    bool takes_part[RANKS_MAX];
    memset(takes_part, true, sizeof takes_part);
    int32_t kind = BOARD_WINDOW;
    nccl_status status = board_exchange(comm, takes_part, &kind, sizeof kind, boards);
    for (int rank = 0; rank < comm->size && !status; rank++)
        if (memcmp(boards[rank], &kind, sizeof kind)) {
            standin_rule("let all ranks register their windows at the same place",
                         "rank %d calls ncclCommWindowRegister, and rank %d another function of all ranks", comm->rank,
                         rank);
            status = failed(NCCL_INVALID_USAGE, "rank %d does not register a window", rank);
        }
    return status;
}

static void window_release(struct job *job)
{
    free(job);
}

nccl_status ncclCommWindowRegister(nccl_comm comm, void *memory, size_t bytes, nccl_window *window, int flags)
{
    nccl_status status = standin_fault("ncclCommWindowRegister");
    (void)flags;
    if (!status)
        status = handle_add(comm, memory, bytes, (void **)window, "ncclCommWindowRegister");
    if (status)
        return group_failed(status);
    struct job *job = malloc(sizeof *job);
    *job = (struct job){.comm = comm, .run = window_run, .release = window_release};
    return group_failed(job_submit(job));
}

nccl_status ncclCommWindowDeregister(nccl_comm comm, nccl_window window)
{
    nccl_status status = standin_fault("ncclCommWindowDeregister");
    return status ? status : handle_remove(comm, window, "ncclCommWindowDeregister");
}
#endif

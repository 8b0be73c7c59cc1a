/* Communicators: how they come, go, and what may be called meanwhile. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm.h"

struct ncclComm *comm_create(int rank, int size, int device)
{
    static atomic_int created;
    struct ncclComm *comm = calloc(1, sizeof *comm);
    comm->live = comm->is_blocking = true;
    comm->flag = calloc(1, sizeof *comm->flag);
    atomic_store(&comm->flag->refs, 1);
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    comm->number = atomic_fetch_add(&created, 1);
    atomic_store(&comm->refs, 1);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    standin_salt((uint32_t)rank + 1);
    standin_count("communicators", 1);
    return comm;
}

static void flag_release(struct abort_flag *flag)
{
    if (atomic_fetch_sub(&flag->refs, 1) == 1)
        free(flag);
}

void comm_share_flag(struct ncclComm *child, struct ncclComm *parent)
{
    flag_release(child->flag);
    child->flag = parent->flag;
    atomic_fetch_add(&child->flag->refs, 1);
}

void comm_release(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->refs, 1) != 1)
        return;
    if (comm->segment)
        munmap(comm->segment, sizeof *comm->segment);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->changed);
    free(comm->scratch);
    flag_release(comm->flag);
    standin_quarantine(comm);
}

bool comm_is_live(struct ncclComm *comm, const char *call)
{
    if (comm && comm->live)
        return true;
    standin_rule("use a communicator between its initialisation and ncclCommDestroy or ncclCommAbort",
                 "%s of communicator %p, which does not exist", call, (void *)comm);
    return false;
}

static unsigned long long self(void)
{
    static _Thread_local unsigned long long id;
    if (!id)
        id = (unsigned long long)syscall(SYS_gettid);
    return id;
}

static bool own(struct ncclComm *comm, const char *call)
{
    unsigned long long none = 0;
    if (!atomic_compare_exchange_strong(&comm->owner, &none, self()) && none != self()) {
        standin_rule(
            "let one thread at a time use a communicator, from ncclGroupStart to ncclGroupEnd if there is a group",
            "%s of rank %d in two threads at once", call, comm->rank);
        return false;
    }
    comm->owner_depth++;
    return true;
}

void comm_leave(struct ncclComm *comm)
{
    if (!--comm->owner_depth)
        atomic_store(&comm->owner, 0);
}

nccl_status comm_enter_ending(struct ncclComm *comm, const char *call)
{
    if (!comm_is_live(comm, call) || !own(comm, call))
        return failed(NCCL_INVALID_ARGUMENT, "%s: no communicator", call);
    return NCCL_OK;
}

nccl_status comm_enter(struct ncclComm *comm, const char *call)
{
    nccl_status status = comm_enter_ending(comm, call);
    if (status)
        return status;
    unsigned int result = atomic_load(&comm->result);
    if (comm->is_finalized) {
        standin_rule("call it before ncclCommFinalize", "%s of rank %d after ncclCommFinalize", call, comm->rank);
        status = failed(NCCL_INVALID_USAGE, "%s after ncclCommFinalize", call);
    } else if (result == NCCL_IN_PROGRESS) {
        standin_rule("poll ncclCommGetAsyncError until it is not ncclInProgress any more",
                     "%s of rank %d while the call before is in progress", call, comm->rank);
        status = failed(NCCL_INVALID_ARGUMENT, "%s while the call before is in progress", call);
    } else if (result) {
        status = failed(result, "%s: the communicator has failed", call);
    }
    if (status)
        comm_leave(comm);
    return status;
}

struct init_job {
    struct job job;
    struct segment_id id;
};

static nccl_status init_run(struct job *job)
{
    struct segment_id *id = &((struct init_job *)job)->id;
    nccl_status status = segment_attach(job->comm, id);
    return status ? status : segment_gather(job->comm, id);
}

static void init_release(struct job *job)
{
    free(job);
}

static nccl_status init(nccl_comm *made, int size, const nccl_id *id, int rank, const nccl_config *config,
                        const char *call)
{
    nccl_status status = standin_fault(call);
    int device;
    if (status)
        return group_failed(status);
    *made = NULL;
    if (size < 1 || size > RANKS_MAX || rank < 0 || rank >= size)
        return group_failed(
            failed(NCCL_INVALID_ARGUMENT, "%s: rank %d of %d (the stand-in takes %d)", call, rank, size, RANKS_MAX));
    cudaGetDevice(&device);
    struct ncclComm *comm = comm_create(rank, size, device);
    status = config_read(comm, config, NULL);
    if (!status) {
        struct init_job *job = malloc(sizeof *job);
        job->job = (struct job){.comm = comm, .run = init_run, .release = init_release};
        memcpy(&job->id, id, sizeof job->id);
        *made = comm;
        status = job_submit(&job->job);
    }
    if (status && status != NCCL_IN_PROGRESS) {
        *made = NULL;
        comm->live = false;
        segment_leave(comm, SEAT_ABORTED);
        standin_count("communicators", -1);
        comm_release(comm);
    }
    return group_failed(status);
}

nccl_status ncclGetUniqueId(nccl_id *id)
{
    nccl_status status = standin_fault("ncclGetUniqueId");
    struct segment_id own_id;
    if (!status)
        status = segment_create(&own_id);
    memset(id, 0, sizeof *id);
    if (!status)
        memcpy(id, &own_id, sizeof own_id);
    return status;
}

nccl_status ncclCommInitRankConfig(nccl_comm *comm, int size, nccl_id id, int rank, nccl_config *config)
{
    return init(comm, size, &id, rank, config, "ncclCommInitRankConfig");
}

nccl_status ncclCommInitRank(nccl_comm *comm, int size, nccl_id id, int rank)
{
    return init(comm, size, &id, rank, NULL, "ncclCommInitRank");
}

nccl_status ncclCommInitAll(nccl_comm *comms, int count, const int *devices)
{
    nccl_id id;
    int before;
    cudaGetDevice(&before);
    nccl_status status = ncclGetUniqueId(&id);
    ncclGroupStart();
    for (int i = 0; i < count && !status; i++) {
        if (cudaSetDevice(devices ? devices[i] : i))
            status = failed(NCCL_INVALID_ARGUMENT, "ncclCommInitAll: there is no device %d", devices ? devices[i] : i);
        else
            status = init(&comms[i], count, &id, i, NULL, "ncclCommInitAll");
    }
    nccl_status end = ncclGroupEnd();
    cudaSetDevice(before);
    return status ? status : end;
}

nccl_status ncclCommGetAsyncError(nccl_comm comm, nccl_status *status)
{
    nccl_status fault = standin_fault("ncclCommGetAsyncError");
    if (fault)
        return fault;
    if (!comm_is_live(comm, "ncclCommGetAsyncError"))
        return NCCL_INVALID_ARGUMENT;
    if (atomic_load(&comm->result) != NCCL_IN_PROGRESS)
        peers_check(comm);
    *status = atomic_load(&comm->result);
    return NCCL_OK;
}

nccl_status ncclCommCount(nccl_comm comm, int *count)
{
    if (!comm_is_live(comm, "ncclCommCount"))
        return NCCL_INVALID_ARGUMENT;
    *count = comm->size;
    return standin_fault("ncclCommCount");
}

nccl_status ncclCommUserRank(nccl_comm comm, int *rank)
{
    if (!comm_is_live(comm, "ncclCommUserRank"))
        return NCCL_INVALID_ARGUMENT;
    *rank = comm->rank;
    return standin_fault("ncclCommUserRank");
}

nccl_status ncclCommCuDevice(nccl_comm comm, int *device)
{
    if (!comm_is_live(comm, "ncclCommCuDevice"))
        return NCCL_INVALID_ARGUMENT;
    *device = comm->device;
    return standin_fault("ncclCommCuDevice");
}

static nccl_status finalize_run(struct job *job)
{
    standin_chain_wait(&job->comm->chain);
    bool aborted = atomic_load(&job->comm->flag->aborted);
    return aborted ? failed(NCCL_INTERNAL_ERROR, "the communicator was aborted") : NCCL_OK;
}

nccl_status ncclCommFinalize(nccl_comm comm)
{
    nccl_status status = standin_fault("ncclCommFinalize");
    if (!status)
        status = comm_enter(comm, "ncclCommFinalize");
    if (status)
        return group_failed(status);
    comm->is_finalized = true;
    struct job *job = malloc(sizeof *job);
    *job = (struct job){.comm = comm, .run = finalize_run, .release = init_release};
    comm_leave(comm);
    return group_failed(job_submit(job));
}

/* Nothing of the communicator runs any more. */
static void come_to_rest(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->jobs || comm->running)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static void end(struct ncclComm *comm, enum seat_state state)
{
    comm->live = false;
    segment_leave(comm, state);
    standin_count("communicators", -1);
    comm_release(comm);
}

nccl_status ncclCommDestroy(nccl_comm comm)
{
    nccl_status status = standin_fault("ncclCommDestroy");
    if (status || !comm)
        return status;
    if (!comm_is_live(comm, "ncclCommDestroy") || !own(comm, "ncclCommDestroy"))
        return NCCL_INVALID_ARGUMENT;
    if (atomic_load(&comm->result) == NCCL_IN_PROGRESS)
        standin_rule("poll ncclCommGetAsyncError until it is not ncclInProgress any more, or call ncclCommAbort",
                     "ncclCommDestroy of rank %d while the call before is in progress", comm->rank);
    pthread_mutex_lock(&comm->lock);
    bool hangs = comm->running && atomic_load(&comm->result);
    pthread_mutex_unlock(&comm->lock);
    if (hangs)
        standin_rule("end a communicator that has failed with ncclCommAbort",
                     "ncclCommDestroy of rank %d, which has failed with an operation under way, would not return",
                     comm->rank);
    standin_chain_wait(&comm->chain);
    come_to_rest(comm);
    standin_chain_end(&comm->chain);
    atomic_store(&comm->gone, true);
    comm_leave(comm);
    end(comm, SEAT_LEFT);
    return NCCL_OK;
}

/* They go with a communicator that is aborted: one that has failed takes no call to deregister them. */
static void drop_registrations(struct ncclComm *comm)
{
    for (int i = 0; i < HANDLES_MAX; i++)
        if (comm->handles[i])
            standin_count("registrations", -1);
}

nccl_status ncclCommAbort(nccl_comm comm)
{
    nccl_status status = standin_fault("ncclCommAbort");
    if (status || !comm)
        return status;
    if (!comm_is_live(comm, "ncclCommAbort"))
        return NCCL_INVALID_ARGUMENT;
    unsigned long long owner = atomic_load(&comm->owner);
    if (comm->is_blocking && owner && owner != self())
        standin_rule("have that thread leave its call before, by another communicator that shares the flag of abort",
                     "ncclCommAbort of rank %d, which blocks, while another thread is within a call: it would be freed "
                     "under that thread", comm->rank);
    pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->flag->aborted, true);
    pthread_mutex_unlock(&comm->lock);
    segment_leave(comm, SEAT_ABORTED);
    come_to_rest(comm);
    drop_registrations(comm);
    standin_chain_end(&comm->chain);
    end(comm, SEAT_ABORTED);
    return NCCL_OK;
}

/* Communicators made of communicators. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

struct split_board {
    int32_t kind, color, key, rank;
    uint64_t given;
};

struct split_job {
    struct job job;
    struct ncclComm *parent, *child;
    nccl_comm *made;
    int color, key;
    bool is_shrink, is_given, takes_part[RANKS_MAX];
};

static int by_key(const void *a, const void *b)
{
    const struct split_board *first = a, *second = b;
    if (first->key != second->key)
        return first->key < second->key ? -1 : 1;
    return first->rank - second->rank;
}

/* The ranks of the parent that are in the child, in its order. Returns how many. */
static int members_of(const struct split_job *split, char boards[RANKS_MAX][BOARD_BYTES], struct split_board *members)
{
    int count = 0;
    for (int rank = 0; rank < split->parent->size; rank++) {
        struct split_board board;
        memcpy(&board, boards[rank], sizeof board);
        if (!split->takes_part[rank])
            continue;
        if (board.kind != (split->is_shrink ? BOARD_SHRINK : BOARD_SPLIT)) {
            standin_rule("let all ranks call the same", "rank %d and rank %d call different functions of all ranks",
                         split->parent->rank, rank);
            return 0;
        }
        if (board.given != split->parent->given) {
            standin_rule("let all ranks call the same", "rank %d splits a communicator after %llu collectives, and "
                         "rank %d after %llu", split->parent->rank, (unsigned long long)split->parent->given, rank,
                         (unsigned long long)board.given);
            return 0;
        }
        if (board.color == split->color)
            members[count++] = board;
    }
    qsort(members, (size_t)count, sizeof *members, by_key);
    return count;
}

static nccl_status child_open(struct split_job *split, const struct segment_id *id)
{
    nccl_status status = segment_attach(split->child, id);
    split->child->parent = split->parent;
    if (!status)
        status = segment_gather(split->child, id);
    split->child->parent = NULL;
    return status;
}

static nccl_status make_child(struct split_job *split)
{
    struct ncclComm *parent = split->parent, *child = split->child;
    char boards[RANKS_MAX][BOARD_BYTES];
    struct split_board own = {split->is_shrink ? BOARD_SHRINK : BOARD_SPLIT, split->color, split->key, parent->rank,
                              parent->given};
    struct split_board members[RANKS_MAX];
    nccl_status status = board_exchange(parent, split->takes_part, &own, sizeof own, boards);
    int size = status ? 0 : members_of(split, boards, members);
    struct segment_id id = {.pid = 0};
    if (!status && child && size && members[0].rank == parent->rank)
        status = segment_create(&id);
    if (status)
        return status;
    status = board_exchange(parent, split->takes_part, &id, sizeof id, boards);
    if (status || !child || !size)
        return status;
    memcpy(&id, boards[members[0].rank], sizeof id);
    child->size = size;
    for (int rank = 0; rank < size; rank++)
        if (members[rank].rank == parent->rank)
            child->rank = rank;
    return child_open(split, &id);
}

/* The result is written at the very end, by this thread, as in NCCL; also that of a failure, which is to be aborted. */
static nccl_status split_run(struct job *job)
{
    struct split_job *split = (struct split_job *)job;
    nccl_status status = make_child(split);
    if (!status)
        standin_pass("split", &split->parent->flag->aborted);
    if (split->child) {
        if (status)
            comm_fail(split->child, status);
        split->is_given = true;
        __atomic_store_n(split->made, split->child, __ATOMIC_RELEASE);
    }
    return status;
}

static void split_release(struct job *job)
{
    struct split_job *split = (struct split_job *)job;
    if (split->child && !split->is_given) {
        split->child->live = false;
        standin_count("communicators", -1);
        comm_release(split->child);
    }
    free(split);
}

static nccl_status submit(struct split_job *split, const nccl_config *config, nccl_comm *made)
{
    nccl_status status = NCCL_OK;
    *made = NULL;
    split->made = made;
    split->job = (struct job){.comm = split->parent, .run = split_run, .release = split_release};
    if (split->color != NCCL_SPLIT_NO_COLOR) {
        split->child = comm_create(0, split->parent->size, split->parent->device);
        status = config_read(split->child, config, split->parent);
        if (split->parent->shares && !split->is_shrink) /* the parent's config says so, not the child's */
            comm_share_flag(split->child, split->parent);
    }
    comm_leave(split->parent);
    if (!status)
        return job_submit(&split->job);
    split->job.status = status;
    split_release(&split->job);
    return status;
}

nccl_status ncclCommSplit(nccl_comm comm, int color, int key, nccl_comm *made, nccl_config *config)
{
    nccl_status status = standin_fault("ncclCommSplit");
    if (!status)
        status = comm_enter(comm, "ncclCommSplit");
    if (status)
        return group_failed(status);
    struct split_job *split = calloc(1, sizeof *split);
    split->parent = comm;
    split->color = color;
    split->key = key;
    for (int rank = 0; rank < comm->size; rank++)
        split->takes_part[rank] = true;
    if (color < 0 && color != NCCL_SPLIT_NO_COLOR) {
        comm_leave(comm);
        free(split);
        return group_failed(failed(NCCL_INVALID_ARGUMENT, "ncclCommSplit: color %d is negative", color));
    }
    return group_failed(submit(split, config, made));
}

#if STANDIN_NCCL_VERSION >= 22703
/* The kernels of the parent leave; it can only be destroyed or aborted then. */
static void abort_kernels(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->flag->aborted, true);
    pthread_mutex_unlock(&comm->lock);
    bell_ring(comm, comm->rank);
    pthread_mutex_lock(&comm->lock);
    while (comm->running)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    standin_chain_end(&comm->chain);
    atomic_store(&comm->flag->aborted, false);
}

nccl_status ncclCommShrink(nccl_comm comm, int *excluded, int excluded_count, nccl_comm *made, nccl_config *config,
                           int flags)
{
    nccl_status status = standin_fault("ncclCommShrink");
    if (status)
        return group_failed(status);
    if (flags & NCCL_SHRINK_ABORT && comm_is_live(comm, "ncclCommShrink")) {
        abort_kernels(comm);
        if (atomic_load(&comm->result) != NCCL_IN_PROGRESS)
            atomic_store(&comm->result, NCCL_OK);
    }
    status = comm_enter(comm, "ncclCommShrink");
    if (status)
        return group_failed(status);
    struct split_job *split = calloc(1, sizeof *split);
    split->parent = comm;
    split->is_shrink = true;
    split->key = comm->rank;
    for (int rank = 0; rank < comm->size; rank++)
        split->takes_part[rank] = true;
    for (int i = 0; i < excluded_count; i++)
        if (excluded[i] >= 0 && excluded[i] < comm->size)
            split->takes_part[excluded[i]] = false;
    if (!excluded_count || !split->takes_part[comm->rank]) {
        comm_leave(comm);
        free(split);
        return group_failed(failed(NCCL_INVALID_ARGUMENT, "ncclCommShrink: excluded are no ranks, or the caller"));
    }
    return group_failed(submit(split, config, made));
}
#endif

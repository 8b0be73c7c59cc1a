/* Groups: what a thread calls between ncclGroupStart and ncclGroupEnd is done at the end; a call outside is a group of
 * its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

/* A call that waits for the end of its group. */
struct entry {
    struct entry *next;
    struct ncclComm *comm;
    struct task task;
};

static _Thread_local struct group {
    int depth;
    nccl_status failure; /* the first of a call inside */
    struct entry *head, **tail;
    struct job *jobs, **jobs_tail;
} group;

static void job_over(struct job *job)
{
    struct ncclComm *comm = job->comm;
    pthread_mutex_lock(&comm->lock);
    if (comm->jobs == 1) {
        unsigned int in_progress = NCCL_IN_PROGRESS;
        atomic_compare_exchange_strong(&comm->result, &in_progress, job->status);
    }
    comm->jobs--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    comm_release(comm);
}

static void *job_main(void *argument)
{
    struct job *job = argument;
    standin_delay();
    job->status = job->run(job);
    job_over(job);
    return NULL;
}

static void *job_main_detached(void *argument)
{
    struct job *job = argument;
    job_main(job);
    job->release(job);
    return NULL;
}

static void job_begin(struct job *job)
{
    atomic_fetch_add(&job->comm->refs, 1);
    pthread_mutex_lock(&job->comm->lock);
    job->comm->jobs++;
    if (!job->comm->is_blocking) {
        unsigned int good = NCCL_OK;
        atomic_compare_exchange_strong(&job->comm->result, &good, NCCL_IN_PROGRESS);
    }
    pthread_mutex_unlock(&job->comm->lock);
}

static nccl_status job_detach(struct job *job)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, job_main_detached, job))
        abort();
    pthread_detach(thread);
    return NCCL_IN_PROGRESS;
}

/* The first failure, else whether something is still in progress. */
static nccl_status status_of(nccl_status before, nccl_status now)
{
    bool has_failed = before && before != NCCL_IN_PROGRESS;
    return has_failed || !now ? before : now;
}

/* All jobs of blocking communicators run at once, and are awaited. */
static nccl_status jobs_run(struct job *jobs)
{
    nccl_status status = NCCL_OK;
    bool is_alone = jobs && !jobs->next;
    for (struct job *job = jobs; job && !is_alone; job = job->next)
        if (job->comm->is_blocking && pthread_create(&job->thread, NULL, job_main, job))
            abort();
    for (struct job *job = jobs, *next; job; job = next) {
        next = job->next;
        if (!job->comm->is_blocking) {
            status = status_of(status, job_detach(job));
            continue;
        }
        if (is_alone)
            job_main(job);
        else
            pthread_join(job->thread, NULL);
        status = status_of(status, job->status);
        job->release(job);
    }
    return status;
}

nccl_status job_submit(struct job *job)
{
    job_begin(job);
    job->next = NULL;
    if (!group.depth)
        return jobs_run(job);
    if (!group.jobs)
        group.jobs_tail = &group.jobs;
    *group.jobs_tail = job;
    group.jobs_tail = &job->next;
    return job->comm->is_blocking ? NCCL_OK : NCCL_IN_PROGRESS;
}

/* What an operation reads and writes on its rank. */
static int accesses_of(const struct ncclComm *comm, const struct task *task, struct standin_access *accesses)
{
    size_t block = task->what.count * type_bytes(task->what.type), all = block * (size_t)comm->size;
    bool is_root = task->what.root == comm->rank;
    enum kind kind = task->what.kind;
    size_t in = block, out = block;
    if (kind == REDUCE_SCATTER || kind == ALL_TO_ALL)
        in = all;
    else if (kind == SCATTER)
        in = is_root ? all : 0;
    else if ((kind == BROADCAST && !is_root) || kind == RECV)
        in = 0;
    if (kind == ALL_GATHER || kind == ALL_TO_ALL)
        out = all;
    else if (kind == GATHER)
        out = is_root ? all : 0;
    else if ((kind == REDUCE && !is_root) || kind == SEND)
        out = 0;
    accesses[0] = (struct standin_access){task->send, in, false};
    accesses[1] = (struct standin_access){task->recv, out, true};
    accesses[2] =
        (struct standin_access){task->premul.pointer, task->premul.on_device ? type_bytes(task->what.type) : 0, false};
    return 3;
}

static nccl_status kernel_launch(struct kernel *kernel)
{
    cuda_stream *streams = malloc((size_t)kernel->count * sizeof *streams);
    struct standin_access *accesses = malloc(3 * (size_t)kernel->count * sizeof *accesses);
    int stream_count = 0, access_count = 0;
    for (int i = 0; i < kernel->count; i++) {
        int known = 0;
        while (known < stream_count && streams[known] != kernel->tasks[i].stream)
            known++;
        streams[known] = kernel->tasks[i].stream;
        stream_count += known == stream_count;
        access_count += accesses_of(kernel->comm, &kernel->tasks[i], accesses + access_count);
    }
    struct standin_launch launch = {.streams = streams,
                                    .stream_count = stream_count,
                                    .device = kernel->comm->device,
                                    .accesses = accesses,
                                    .access_count = access_count,
                                    .chain = &kernel->comm->chain,
                                    .run = kernel_run,
                                    .release = kernel_release,
                                    .argument = kernel,
                                    .text = kernel->text};
    unsigned int status = standin_launch(&launch);
    free(streams);
    free(accesses);
    if (!status)
        return NCCL_OK;
    failed(NCCL_CUDA_ERROR, "%s cannot be launched: %s", kernel->text, cudaGetErrorString(status));
    kernel_release(kernel);
    return NCCL_CUDA_ERROR;
}

/* Takes the entries of a communicator out of the list. */
static struct kernel *kernel_create(struct entry **list, struct ncclComm *comm)
{
    int count = 0;
    for (struct entry *entry = *list; entry; entry = entry->next)
        count += entry->comm == comm;
    struct kernel *kernel = calloc(1, sizeof *kernel + (size_t)count * sizeof *kernel->tasks);
    kernel->comm = comm;
    atomic_fetch_add(&comm->refs, 1);
    while (*list) {
        struct entry *entry = *list;
        if (entry->comm != comm) {
            list = &entry->next;
            continue;
        }
        kernel->tasks[kernel->count++] = entry->task;
        *list = entry->next;
        free(entry);
        comm_leave(comm);
    }
    char text[TEXT_BYTES];
    snprintf(kernel->text, sizeof kernel->text, "%s%s of rank %d of %d",
             describe(&kernel->tasks[0].what, text, sizeof text), count > 1 ? " and others" : "", comm->rank,
             comm->size);
    return kernel;
}

/* STANDIN_ASYNC is "nth:status". */
static nccl_status async_fault(int operations)
{
    static atomic_long count;
    const char *text = getenv("STANDIN_ASYNC");
    long nth, before = text ? atomic_fetch_add(&count, operations) : 0;
    unsigned int status;
    return text && sscanf(text, "%ld:%u", &nth, &status) == 2 && nth > before && nth <= before + operations ? status
                                                                                                            : 0;
}

struct launch_job {
    struct job job;
    struct kernel *kernel;
};

static void hold_streams(struct kernel *kernel, int change)
{
    for (int i = 0; i < kernel->count; i++)
        standin_hold(kernel->tasks[i].stream, kernel->comm->device, change, kernel->text);
}

static nccl_status launch_job_run(struct job *job)
{
    struct kernel *kernel = ((struct launch_job *)job)->kernel;
    standin_pass("launch", &kernel->comm->flag->aborted);
    hold_streams(kernel, -1);
    return kernel_launch(kernel);
}

static void launch_job_release(struct job *job)
{
    free(job);
}

/* The first operation of a kind connects, in the caller's thread. */
static nccl_status connect_and_launch(struct kernel *kernel)
{
    nccl_status status = NCCL_OK;
    /* The others come connected: one thread may have several ranks, which would wait for each other. */
    bool is_split = atomic_load(&kernel->comm->flag->refs) > 1;
    for (int i = 0; i < kernel->count && !status && is_split; i++)
        status = segment_connect(kernel->comm, &kernel->tasks[i]);
    if (!status)
        return kernel_launch(kernel);
    kernel_release(kernel);
    return status;
}

/* With a communicator that does not block, another thread launches. */
static nccl_status entries_launch(struct entry *entries)
{
    nccl_status status = NCCL_OK;
    for (struct entry *entry = entries; entry; entry = entry->next) /* all, before one is awaited */
        if (entry->comm->is_blocking)
            segment_announce(entry->comm, &entry->task);
    while (entries) {
        struct ncclComm *comm = entries->comm;
        if (comm->is_blocking)
            comm->owner_depth++; /* this thread is within the call until it has launched */
        struct kernel *kernel = kernel_create(&entries, comm);
        nccl_status own;
        kernel->fault = async_fault(kernel->count);
        if (comm->is_blocking) {
            own = connect_and_launch(kernel);
            comm_leave(comm);
        } else {
            struct launch_job *job = malloc(sizeof *job);
            *job = (struct launch_job){{.comm = comm, .run = launch_job_run, .release = launch_job_release}, kernel};
            hold_streams(kernel, 1);
            job_begin(&job->job);
            own = job_detach(&job->job);
        }
        status = status_of(status, own);
    }
    return status;
}

static void entries_drop(struct entry *entries)
{
    while (entries) {
        struct entry *next = entries->next;
        comm_leave(entries->comm);
        free(entries);
        entries = next;
    }
}

nccl_status group_add(struct ncclComm *comm, const struct task *task)
{
    for (const struct entry *entry = group.depth ? group.head : NULL; entry; entry = entry->next)
        if (entry->comm->is_blocking != comm->is_blocking) {
            comm_leave(comm);
            return failed(NCCL_INVALID_ARGUMENT, "communicators that block and those that do not are in one group");
        }
    struct entry *entry = malloc(sizeof *entry);
    *entry = (struct entry){NULL, comm, *task};
    if (!group.depth)
        return entries_launch(entry);
    if (!group.head)
        group.tail = &group.head;
    *group.tail = entry;
    group.tail = &entry->next;
    return NCCL_OK;
}

nccl_status group_failed(nccl_status status)
{
    if (group.depth && status && status != NCCL_IN_PROGRESS && !group.failure)
        group.failure = status;
    return status;
}

nccl_status ncclGroupStart(void)
{
    nccl_status status = standin_fault("ncclGroupStart");
    if (status)
        return status;
    group.depth++;
    standin_group(1);
    return NCCL_OK;
}

nccl_status ncclGroupEnd(void)
{
    if (!group.depth) {
        standin_rule("pair each ncclGroupEnd with an ncclGroupStart of the same thread",
                     "ncclGroupEnd without ncclGroupStart");
        return failed(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    }
    nccl_status status = standin_fault("ncclGroupEnd");
    standin_group(-1);
    if (--group.depth)
        return status;
    struct group now = group;
    memset(&group, 0, sizeof group);
    status = status ? status : now.failure;
    nccl_status jobs = now.jobs ? jobs_run(now.jobs) : NCCL_OK;
    if (!status && jobs && jobs != NCCL_IN_PROGRESS)
        status = jobs;
    if (status) {
        entries_drop(now.head);
        return status;
    }
    status = entries_launch(now.head);
    return status ? status : jobs;
}

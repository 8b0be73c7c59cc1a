/* Communicators: how they are made, by a thread of their own, and how they go.
 *
 * NCCL's calls are non-blocking (ncclConfig_t.blocking = 0): they return IN_PROGRESS, the thread asks until NCCL is
 * ready, and can stop when the group ends. With blocking=1 operations go to a second ncclComm_t, which blocks, so that
 * NCCL starts no thread for each call. ncclCommAbort of it would free it under a thread that is within a call: so that
 * thread is made to leave by aborting the first one, whose flag it looks at (ncclConfig_t.splitShare). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

enum {
    ASK_FIRST_NS = 20000,
    ASK_LAST_NS = 1000000,
    LEAVING_NS = 100000000,
    CHILD_NS = 2000000000,
    FINALIZE_NS = 2000000000,
    LEAVE_CALL_NS = 5000000000LL,
    GET_ID_MS = 1000,
};

/* ---- On the communicator's thread, without the group's lock ---- */

/* Until NCCL has done what it said IN_PROGRESS to, or the group has ended. */
nccl_status communicator_wait_for_nccl(const struct communicator *c, nccl_comm comm, int64_t deadline_ns)
{
    nccl_status status = NCCL_IN_PROGRESS;
    int64_t pause_ns = ASK_FIRST_NS;
    if (is_to_self(c))
        return NCCL_OK;
    for (;;) {
        nccl_status asked = nccl.CommGetAsyncError(comm, &status);
        if (asked != NCCL_OK || status != NCCL_IN_PROGRESS)
            return asked != NCCL_OK ? asked : status;
        if ((deadline_ns == INT64_MAX && atomic_load(&c->group->ended)) || host->now_ns() > deadline_ns)
            return NCCL_IN_PROGRESS;
        pause_for(pause_ns);
        pause_ns = pause_ns * 5 / 4 < ASK_LAST_NS ? pause_ns * 5 / 4 : ASK_LAST_NS;
    }
}

void communicator_key(const struct communicator *c, char key[KEY_BYTES])
{
    unsigned long long id = (unsigned long long)c->group->info->id;
    if (c->source < 0)
        snprintf(key, KEY_BYTES, "id.%llx.%d", id, c->number);
    else
        snprintf(key, KEY_BYTES, "id.%llx.%d-%d.%d", id, c->source, c->target, c->number);
}

/* Rank 0 of the communicator makes the id, the others get it from the store. */
static comm_status exchange_id(struct communicator *c, nccl_id *id)
{
    struct group *g = c->group;
    void *store = g->world->info->store, *data;
    char key[KEY_BYTES], who[64];
    size_t bytes;
    comm_status status = COMM_OK;
    communicator_key(c, key);
    if (c->rank == 0) {
        nccl_status made = nccl.GetUniqueId(id);
        if (made != NCCL_OK)
            return fail_nccl(c, made, "ncclGetUniqueId");
        if (c->size > 1)
            status = host->store_set(store, key, id, sizeof *id);
        return status == COMM_OK ? COMM_OK : fail(status, "giving NCCL's unique id to the other ranks by the store: %s",
                                                  host->last_error());
    }
    do {
        status = host->store_get(store, g->info->token, key, GET_ID_MS, &data, &bytes);
        if (status == COMM_ERR_TIMEOUT && atomic_load(&g->ended))
            return COMM_ERR_ABORTED;
    } while (status == COMM_ERR_TIMEOUT);
    say_rank(g, c->source < 0 ? 0 : c->source, who, sizeof who);
    if (status != COMM_OK)
        return fail(status, "getting NCCL's unique id from %s by the store: %s", who, host->last_error());
    if (bytes == sizeof *id)
        memcpy(id, data, sizeof *id);
    else
        status = fail(COMM_ERR_BACKEND, "NCCL's unique id from %s has %zu bytes in place of %zu", who, bytes,
                      sizeof *id);
    host->free_memory(data);
    return status;
}

/* The parent's config says whether a split shares its resources. */
static void config_of(const struct communicator *c, int blocking, nccl_config *config)
{
    const struct group *g = c->group;
    *config = (nccl_config){
        .size = sizeof *config,
        .magic = (unsigned int)NCCL_MAGIC,
        .version = (unsigned int)nccl.version,
        .blocking = blocking,
        .cga_cluster_size = NCCL_NOT_SET,
        .min_ctas = NCCL_NOT_SET,
        .max_ctas = g->max_ctas > 0 ? g->max_ctas : NCCL_NOT_SET,
        .split_share = g->share || g->blocking,
        .traffic_class = NCCL_NOT_SET,
        .collnet_enable = NCCL_NOT_SET,
        .cta_policy = NCCL_NOT_SET,
        .shrink_share = NCCL_NOT_SET,
        .nvls_ctas = NCCL_NOT_SET,
    };
    /* The library defaults what lies behind the size that its version had. */
    if (nccl.version < 22700)
        config->size = offsetof(nccl_config, traffic_class);
}

/* Until it is given back. Where NCCL is not done then, its own thread takes over. */
void communicator_hold(struct communicator *p)
{
    p->state = COMMUNICATOR_WORKING;
    p->began_ns = host->now_ns();
}

void communicator_borrow(struct communicator *p)
{
    p->borrowed = 1;
    communicator_hold(p);
}

void communicator_give_back(struct communicator *p)
{
    struct group *g = p->group;
    p->borrowed = 0;
    p->state = p->makes_orphan ? COMMUNICATOR_WORKING : COMMUNICATOR_READY;
    if ((p->makes_orphan || p->queued.first) && !atomic_load(&g->ended) && communicator_start_thread(p) != COMM_OK)
        group_end(g, COMM_ERR_BACKEND, host->last_error(), 0);
    pthread_cond_broadcast(&g->changed);
}

/* The child ended before NCCL was done with p->made. The other ranks may have theirs, and take leave of it. */
static comm_status end_orphan(struct communicator *p)
{
    nccl_status status = communicator_wait_for_nccl(p, p->root, INT64_MAX);
    if (status == NCCL_IN_PROGRESS)
        return COMM_ERR_ABORTED;
    if (status != NCCL_OK)
        return fail_nccl(p, status, "making a communicator for a group that has ended");
    if (p->made)
        nccl.CommDestroy(p->made); /* to abort it would abort p, too, if they share */
    p->made = NULL;
    return COMM_OK;
}

/* The one that operations are given to. */
static comm_status make_comm(struct communicator *c)
{
    nccl_config config;
    if (!c->group->blocking) {
        c->comm = c->root;
        return COMM_OK;
    }
    config_of(c, 1, &config);
    nccl_status made = nccl.CommSplit(c->root, 0, c->rank, &c->comm, &config);
    if (made == NCCL_OK || made == NCCL_IN_PROGRESS)
        made = communicator_wait_for_nccl(c, c->root, INT64_MAX);
    if (made == NCCL_IN_PROGRESS)
        return COMM_ERR_ABORTED;
    return made == NCCL_OK ? COMM_OK : fail_nccl(c, made, "ncclCommSplit for blocking=1");
}

static comm_status connect_root(struct communicator *c)
{
    nccl_config config;
    nccl_id id;
    int done;
    config_of(c, 0, &config);
    comm_status status = communicator_derive(c, &config, &done);
    if (status == COMM_OK && !done && (status = exchange_id(c, &id)) == COMM_ERR_PEER_LOST)
        atomic_store(&c->group->store_failed, 1);
    if (status != COMM_OK)
        return status;
    nccl_status made = done ? NCCL_IN_PROGRESS : nccl.CommInitRankConfig(&c->root, c->size, id, c->rank, &config);
    if (made == NCCL_OK || made == NCCL_IN_PROGRESS)
        made = communicator_wait_for_nccl(c, c->root, INT64_MAX);
    if (made == NCCL_IN_PROGRESS)
        return COMM_ERR_ABORTED;
    if (made != NCCL_OK)
        return fail_nccl(c, made, "connecting");
    if (c->rank == 0 && c->size > 1 && !done) {
        char key[KEY_BYTES];
        communicator_key(c, key);
        host->store_delete(c->group->world->info->store, key);
    }
    return COMM_OK;
}

static comm_status connect(struct communicator *c)
{
    const char *share = getenv("NCCL_COMM_SPLIT_SHARE_RESOURCES");
    if (c->group->blocking && share && strcmp(share, "0") == 0)
        return fail(COMM_ERR_UNSUPPORTED, "blocking=1 needs communicators that share resources, which "
                    "NCCL_COMM_SPLIT_SHARE_RESOURCES=0 forbids: unset it");
    comm_status status = connect_root(c);
    return status == COMM_OK ? make_comm(c) : status;
}

static comm_status reserve(struct communicator *c, size_t bytes)
{
    size_t capacity = c->scratch_bytes ? c->scratch_bytes : 1 << 20;
    while (capacity < bytes)
        capacity *= 2;
    if (c->scratch_bytes >= bytes)
        return COMM_OK;
    if (c->scratch_count == SCRATCHES_MAX)
        return fail(COMM_ERR_NO_MEMORY, "%zu bytes of scratch memory", bytes);
    cuda_status status = cuda.Malloc(&c->scratches[c->scratch_count], capacity);
    if (status != CUDA_OK)
        return fail_cuda(status, "cudaMalloc of scratch memory for an operation in place");
    c->scratch_count++;
    c->scratch_bytes = capacity;
    return COMM_OK;
}

/* The queued flights of one batch. */
static struct flight_list next_batch(struct communicator *c)
{
    struct flight_list batch = { NULL, NULL };
    uint32_t number = c->queued.first->batch;
    while (c->queued.first && c->queued.first->batch == number)
        flight_append(&batch, flight_remove_first(&c->queued));
    return batch;
}

/* NCCL has what is in c->issuing; the callers' streams are to know. */
static comm_status leave(struct communicator *c)
{
    comm_status status = flights_issued(c);
    while (status == COMM_OK && c->issuing.first && !atomic_load(&c->group->ended)) {
        pthread_cond_wait(&c->group->changed, &c->group->lock);
        status = flights_issued(c);
    }
    return status;
}

/* Issue what is queued until nothing is. The lock is held, but while NCCL or the device is waited for. */
static comm_status issue_queue(struct communicator *c)
{
    struct group *g = c->group;
    comm_status status = COMM_OK;
    nccl_status says = NCCL_OK;
    while (status == COMM_OK && !atomic_load(&g->ended) && (c->issuing.first || c->queued.first)) {
        if (!c->issuing.first) {
            size_t wanted = flights_scratch(c, c->queued.first);
            if (wanted > c->scratch_bytes) {
                pthread_mutex_unlock(&g->lock);
                status = reserve(c, wanted);
                pthread_mutex_lock(&g->lock);
                continue;
            }
            if (flights_must_wait(c->queued.first)) {
                pthread_cond_wait(&g->changed, &g->lock);
                continue;
            }
            struct flight_list batch = next_batch(c);
            status = flights_issue(c, &batch, &says);
            for (struct flight *f; (f = flight_remove_first(&batch));)
                flight_append(&c->queued, f); /* not issued: the end of the group completes them */
        }
        if (status == COMM_OK && c->issuing.first) {
            pthread_mutex_unlock(&g->lock);
            says = communicator_wait_for_nccl(c, c->comm, INT64_MAX);
            pthread_mutex_lock(&g->lock);
            if (says == NCCL_OK)
                status = leave(c);
            else if (says != NCCL_IN_PROGRESS)
                status = fail_nccl(c, says, "an operation");
        }
    }
    return status;
}

static void *thread_main(void *context)
{
    struct communicator *c = context;
    struct group *g = c->group;
    comm_status status = COMM_OK;
    capture_relax();
    cuda_status set = cuda.SetDevice(c->device);
    if (set != CUDA_OK)
        status = fail_cuda(set, "cudaSetDevice");
    int connects = !c->root && !is_to_self(c); /* else it waits for a call that is in progress */
    if (status == COMM_OK && connects)
        status = connect(c);
    if (status == COMM_OK && c->makes_orphan)
        status = end_orphan(c);
    pthread_mutex_lock(&g->lock);
    if (status == COMM_OK)
        c->makes_orphan = 0;
    if (status == COMM_OK && connects && !atomic_load(&g->ended))
        memories_register(c);
    c->connected |= status == COMM_OK;
    do {
        if (status == COMM_OK)
            status = issue_queue(c);
        if (status != COMM_OK)
            group_end_failed(g, status);
        pthread_mutex_unlock(&g->lock);
        group_finish(g);
        pthread_mutex_lock(&g->lock);
    } while (!atomic_load(&g->ended) && (c->queued.first || c->issuing.first));
    if (!atomic_load(&g->ended))
        c->state = COMMUNICATOR_READY;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return NULL; /* a thread that sees READY may join this one with the lock held */
}

/* ---- With the group's lock ---- */

comm_status communicator_start_thread(struct communicator *c)
{
    if (c->has_thread)
        pthread_join(c->thread, NULL); /* it has left, or is about to: it said READY */
    c->state = COMMUNICATOR_WORKING;
    c->began_ns = host->now_ns();
    int error = pthread_create(&c->thread, NULL, thread_main, c);
    c->has_thread = error == 0;
    return error == 0 ? COMM_OK : fail(COMM_ERR_NO_MEMORY, "a thread that connects cannot be started: error %d", error);
}

static comm_status open_device(struct communicator *c)
{
    struct device_scope scope;
    int least = 0, greatest = 0;
    comm_status status = device_enter(&scope, c->device);
    if (status != COMM_OK)
        return status;
    cuda_status failed = cuda.DeviceGetStreamPriorityRange(&least, &greatest);
    if (failed == CUDA_OK)
        failed = cuda.StreamCreateWithPriority(&c->stream, CUDA_STREAM_NON_BLOCKING,
                                               c->group->high_priority ? greatest : least);
    if (failed == CUDA_OK)
        failed = cuda.EventCreateWithFlags(&c->entry, CUDA_EVENT_DISABLE_TIMING);
    if (failed == CUDA_OK && !is_to_self(c))
        failed = cuda.Malloc(&c->word, sizeof(int64_t));
    device_leave(&scope);
    return failed == CUDA_OK ? COMM_OK : fail_cuda(failed, "a stream of the communicator");
}

static comm_status make(struct group *g, int device, int source, int target, int number, struct communicator **ret_c)
{
    struct communicator *c = calloc(1, sizeof *c);
    if (!c)
        return fail(COMM_ERR_NO_MEMORY, "a communicator");
    c->group = g;
    c->device = device;
    c->source = source;
    c->target = target;
    c->number = number;
    atomic_init(&c->decide_ns, INT64_MAX);
    c->size = source < 0 ? g->info->size : 2;
    c->rank = source < 0 ? g->info->rank : source != g->info->rank;
    comm_status status = open_device(c);
    if (status == COMM_OK && is_to_self(c))
        c->state = COMMUNICATOR_READY;
    else if (status == COMM_OK)
        status = communicator_start_thread(c);
    if (status != COMM_OK) {
        struct device_scope scope;
        if (device_enter(&scope, device) == COMM_OK) {
            communicator_free(c);
            device_leave(&scope);
        }
        return status;
    }
    c->next = g->communicators;
    g->communicators = c;
    *ret_c = c;
    return COMM_OK;
}

comm_status communicator_want(struct group *g, int device, int source, int target, struct communicator **ret_c)
{
    int number = 0;
    for (struct communicator *c = g->communicators; c; c = c->next) {
        if (c->source != source || c->target != target)
            continue;
        if (c->device == device) {
            *ret_c = c;
            return COMM_OK;
        }
        number++;
    }
    return make(g, device, source, target, number, ret_c);
}

comm_status communicator_wait_ready(struct communicator *c, int64_t deadline_ns)
{
    struct group *g = c->group;
    struct timespec t = { deadline_ns / 1000000000, deadline_ns % 1000000000 };
    int error = 0;
    communicator_hurry(c, deadline_ns);
    c->wanted++;
    while (c->state == COMMUNICATOR_WORKING && !atomic_load(&g->ended) && error != ETIMEDOUT)
        error = deadline_ns == INT64_MAX ? pthread_cond_wait(&g->changed, &g->lock)
                                         : pthread_cond_timedwait(&g->changed, &g->lock, &t);
    c->wanted--;
    if (atomic_load(&g->ended))
        return group_ended_why(g);
    if (c->state != COMMUNICATOR_WORKING)
        return COMM_OK;
    char where[128];
    say_communicator(c, where, sizeof where);
    return fail(COMM_ERR_TIMEOUT, "timed out: %s has not come together yet: a rank has not called comm_group_connect, "
                "or no operation on such a device", where);
}

void communicator_settle(struct communicator *c)
{
    struct group *g = c->group;
    int64_t until_ns = host->now_ns() + (communicator_makes_child(c) ? CHILD_NS : LEAVING_NS);
    struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
    int error = 0;
    c->wanted++;
    while (c->state != COMMUNICATOR_READY && c->connected && !atomic_load(&g->ended) && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&g->changed, &g->lock, &t);
    c->wanted--;
}

int communicator_connects(const struct communicator *c)
{
    return c->state == COMMUNICATOR_WORKING && !c->connected;
}

int communicator_makes_child(const struct communicator *c)
{
    return c->voter || c->borrowed || c->makes_orphan;
}

int communicator_can_block(const struct communicator *c)
{
    return c->comm != c->root;
}

/* ---- The end: on the ender's thread, without the lock ---- */

/* No thread may be within a call when a communicator is freed. The root goes first only where one is: it sets the flag
 * that the thread looks at, and NCCL counts who uses what the two share. */
static void drive_out(struct communicator *c, int abort)
{
    struct group *g = c->group;
    int64_t until_ns = host->now_ns() + LEAVE_CALL_NS;
    struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
    char where[128], text[TEXT_BYTES];
    int error = 0;
    pthread_mutex_lock(&g->lock);
    while (c->borrowed)
        pthread_cond_wait(&g->changed, &g->lock);
    if (abort && c->is_called && c->root) {
        nccl_comm root = c->root;
        c->root = NULL;
        pthread_mutex_unlock(&g->lock);
        nccl.CommAbort(root);
        pthread_mutex_lock(&g->lock);
    }
    while (c->is_called && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&g->changed, &g->lock, &t);
    c->is_stuck = c->is_called;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (!c->is_stuck)
        return;
    say_communicator(c, where, sizeof where);
    snprintf(text, sizeof text, "nccl: a thread has been within a call of NCCL for 5 s after %s was to end "
             "(blocking=1): neither the communicator nor the group's memory is freed", where);
    host->log(COMM_LOG_ERROR, text);
}

/* 0: it has to be aborted. */
static int finalize(const struct communicator *c, nccl_comm comm)
{
    nccl_status status = NCCL_OK;
    if (nccl.CommGetAsyncError(comm, &status) == NCCL_OK && status == NCCL_OK)
        status = nccl.CommFinalize(comm);
    if (status == NCCL_IN_PROGRESS)
        status = communicator_wait_for_nccl(c, comm, host->now_ns() + FINALIZE_NS);
    return status == NCCL_OK;
}

static void go(nccl_comm comm, int abort)
{
    if (abort)
        nccl.CommAbort(comm);
    else
        nccl.CommDestroy(comm);
}

/* Before the root; 0: both have to be aborted. To finalize it would wait for the device without a limit. */
static int end_what_blocks(struct communicator *c, int abort)
{
    if (!abort)
        abort = !flights_wait_for_device(c->pending.first, host->now_ns() + FINALIZE_NS) || !finalize(c, c->comm);
    memories_forget(c);
    go(c->comm, abort);
    c->comm = NULL;
    return !abort;
}

void communicator_end(struct communicator *c, int abort)
{
    drive_out(c, abort);
    if (c->is_stuck)
        return;
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    c->has_thread = 0;
    if (!c->root && !c->comm)
        return;
    cuda.SetDevice(c->device);
    if (c->connected && communicator_can_block(c))
        abort = !end_what_blocks(c, abort);
    if (c->root && !abort)
        abort = !finalize(c, c->root);
    memories_forget(c);
    if (c->root)
        go(c->root, abort);
    if (c->comm && c->comm != c->root) /* a split that was under way has given it */
        nccl.CommAbort(c->comm);
    if (c->made) /* likewise for a child */
        nccl.CommAbort(c->made);
    c->is_finalized = !abort;
    c->comm = c->root = c->made = NULL;
}

/* The device is current; where there is none, what it held is gone with it. */
void communicator_free(struct communicator *c)
{
    if (c->stream)
        cuda.StreamDestroy(c->stream);
    if (c->entry)
        cuda.EventDestroy(c->entry);
    if (c->word)
        cuda.Free(c->word);
    while (c->scratch_count > 0)
        cuda.Free(c->scratches[--c->scratch_count]);
    free(c);
}

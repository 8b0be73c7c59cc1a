/* Memory that operations use often: ncclMemAlloc, ncclCommRegister, and with windows=1 ncclCommWindowRegister. */
#include <stdio.h>
#include <stdlib.h>

#include "nccl.h"

enum { BY_NCCL = 1, BY_CUDA = 2 };
enum { LOOK_NS = 100000 };

static struct communicator *of_all_ranks(struct group *g, int device)
{
    struct communicator *c = g->communicators;
    while (c && (c->source >= 0 || c->device != device))
        c = c->next;
    return c;
}

/* Without NCCL's calls, or where NCCL refuses (plain cudaMalloc'ed memory on some transports), memory works all the
 * same, and is only slower. */
static void register_with(struct memory *m, struct communicator *c)
{
    if (!nccl.CommRegister || m->comm)
        return;
    if (nccl.CommRegister(c->comm, m->data, m->bytes, &m->handle) == NCCL_OK)
        m->comm = c->comm;
}

static int64_t deadline_of(const struct group *g)
{
    return g->info->timeout_ms > 0 ? host->now_ns() + g->info->timeout_ms * 1000000 : INT64_MAX;
}

/* Without the lock: NCCL waits for the other ranks. IN_PROGRESS: they have not come in time, or the group has ended. */
static nccl_status register_window(struct memory *m, struct communicator *c)
{
    int64_t deadline_ns = deadline_of(c->group);
    nccl_status asked = NCCL_OK;
    nccl_status status = nccl.CommWindowRegister(c->comm, m->data, m->bytes, &m->window, NCCL_WINDOW_SYMMETRIC);
    while (status == NCCL_IN_PROGRESS && asked == NCCL_OK && !atomic_load(&c->group->ended) &&
           host->now_ns() < deadline_ns) {
        pause_for(LOOK_NS);
        asked = nccl.CommGetAsyncError(c->comm, &status);
    }
    return asked == NCCL_OK ? status : asked;
}

/* The ranks make windows together, in one order. After a failure on one of them its next window would meet this one of
 * the others. Returns the reason of the end, which may be another rank's. */
static comm_status end_without_window(struct group *g, comm_status status)
{
    char why[TEXT_BYTES / 2];
    snprintf(why, sizeof why, "%s", host->last_error());
    fail(status, "%s. The ranks' windows would not match any more, so the group ends (windows=1)", why);
    group_end_failed(g, status);
    return group_ended_why(g);
}

/* The ranks do it together, as a window spans all of them. The lock is released meanwhile. */
static comm_status make_window(struct memory *m, struct communicator *c)
{
    struct group *g = c->group;
    comm_status status = COMM_OK;
    communicator_borrow(c);
    c->windows++;
    pthread_mutex_unlock(&g->lock);
    nccl_status made = register_window(m, c);
    pthread_mutex_lock(&g->lock);
    if (atomic_load(&g->ended))
        status = group_ended_why(g);
    else if (made == NCCL_IN_PROGRESS)
        status = fail(COMM_ERR_DEADLINE, "ncclCommWindowRegister timed out: windows=1, and a rank has not registered "
                      "its part of the window within %lld ms", (long long)g->info->timeout_ms);
    else if (made != NCCL_OK)
        status = fail_nccl(c, made, "ncclCommWindowRegister");
    if (made == NCCL_IN_PROGRESS) /* before others may use it: NCCL takes nothing else until this is over */
        group_end(g, COMM_ERR_DEADLINE, host->last_error(), 0);
    m->comm = status == COMM_OK ? c->comm : NULL;
    communicator_give_back(c);
    return status == COMM_OK || atomic_load(&g->ended) ? status : end_without_window(g, status);
}

/* Before anything is done. */
static comm_status check_windows(struct group *g, int device)
{
    struct communicator *c = of_all_ranks(g, device);
    if (g->windows && !nccl.CommWindowRegister)
        return fail(COMM_ERR_UNSUPPORTED, "windows=1 needs NCCL 2.27.3 or newer; this is %d", nccl.version);
    if (g->windows && g->blocking)
        return fail(COMM_ERR_UNSUPPORTED, "windows=1 needs blocking=0: to make a window waits for the other ranks");
    if (g->windows && (!c || communicator_connects(c)))
        return fail(COMM_ERR_INVALID, "windows=1: a window belongs to connected ranks: call comm_group_connect before");
    return COMM_OK;
}

static comm_status make_known(struct group *g, struct memory *m)
{
    struct communicator *c = of_all_ranks(g, m->device);
    comm_status status = COMM_OK;
    if (!g->windows && c && c->state == COMMUNICATOR_READY)
        register_with(m, c);
    if (!g->windows)
        return COMM_OK;
    if (c->state != COMMUNICATOR_READY)
        status = communicator_wait_ready(c, deadline_of(g));
    if (status == COMM_ERR_TIMEOUT)
        return end_without_window(g, fail(COMM_ERR_DEADLINE, "ncclCommWindowRegister timed out: within %lld ms the "
                                          "ranks have not come together for what was called before",
                                          (long long)g->info->timeout_ms));
    return status == COMM_OK ? make_window(m, c) : status;
}

static comm_status allocate(struct memory *m)
{
    nccl_status status = nccl.MemAlloc ? nccl.MemAlloc(&m->data, m->bytes) : NCCL_INVALID_USAGE;
    m->owned = BY_NCCL;
    if (status == NCCL_OK)
        return COMM_OK;
    m->owned = BY_CUDA;
    cuda_status plain = cuda.Malloc(&m->data, m->bytes);
    if (plain == CUDA_OK)
        return COMM_OK;
    m->owned = 0;
    return fail(COMM_ERR_NO_MEMORY, "allocating %zu bytes on cuda:%d: %s", m->bytes, m->device,
                cuda.GetErrorString(plain));
}

static void release(struct memory *m)
{
    if (m->owned == BY_NCCL)
        nccl.MemFree(m->data);
    else if (m->owned == BY_CUDA)
        cuda.Free(m->data);
    free(m);
}

static void forget(struct memory *m)
{
    if (m->comm && m->window)
        nccl.CommWindowDeregister(m->comm, m->window);
    else if (m->comm && m->handle)
        nccl.CommDeregister(m->comm, m->handle);
    m->comm = NULL;
    m->window = NULL;
    m->handle = NULL;
}

/* Before there is anything to make a window of. */
static comm_status fail_here(struct group *g, comm_status status)
{
    pthread_mutex_lock(&g->lock);
    if (g->windows && !atomic_load(&g->ended))
        status = end_without_window(g, status);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* The device is entered. */
static comm_status fill(struct group *g, struct memory *m)
{
    comm_status status = m->data ? COMM_OK : allocate(m);
    if (status != COMM_OK)
        return fail_here(g, status);
    pthread_mutex_lock(&g->lock);
    status = make_known(g, m);
    if (status == COMM_OK) {
        m->next = g->memories;
        g->memories = m;
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* What is refused first is so on all ranks (comm.h); what fails after it may fail on this one alone. */
comm_status nccl_memory_open(void *state, comm_memory_info *info, void **ret_handle)
{
    struct group *g = state;
    struct device_scope scope;
    int device;
    comm_status status = device_of(info->device, &device);
    pthread_mutex_lock(&g->lock);
    if (status == COMM_OK)
        status = check_windows(g, device);
    pthread_mutex_unlock(&g->lock);
    if (status != COMM_OK)
        return status;
    struct memory *m = calloc(1, sizeof *m);
    if (!m)
        return fail_here(g, fail(COMM_ERR_NO_MEMORY, "a piece of memory"));
    m->data = info->data;
    m->bytes = info->bytes;
    m->device = device;
    if (m->data)
        status = device_check_buffer(m->data, device, "registered");
    if (status == COMM_OK)
        status = device_enter(&scope, device);
    if (status != COMM_OK) {
        free(m);
        return fail_here(g, status);
    }
    status = fill(g, m);
    info->data = m->data;
    *ret_handle = m;
    if (status != COMM_OK)
        release(m);
    device_leave(&scope);
    return status;
}

/* The communicator that it belongs to, if a thread is within a call of it. The end of the group drives that out. */
static const struct communicator *in_use(const struct group *g, const struct memory *m)
{
    for (const struct communicator *c = g->communicators; c; c = c->next)
        if (m->comm && c->comm == m->comm && c->is_called)
            return c;
    return NULL;
}

void nccl_memory_close(void *state, void *handle, int32_t forked)
{
    struct group *g = state;
    struct memory *m = handle;
    struct device_scope scope;
    if (forked)
        return;
    pthread_mutex_lock(&g->lock);
    const struct communicator *user;
    while ((user = in_use(g, m)) && !user->is_stuck)
        pthread_cond_wait(&g->changed, &g->lock);
    if (user)
        m->comm = NULL; /* it is never freed */
    for (struct memory **at = &g->memories; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    comm_status status = device_enter(&scope, m->device);
    forget(m);
    pthread_mutex_unlock(&g->lock);
    release(m);
    if (status == COMM_OK)
        device_leave(&scope);
}

/* What was registered before the ranks were connected. */
void memories_register(struct communicator *c)
{
    for (struct memory *m = c->group->memories; m && c->source < 0; m = m->next)
        if (m->device == c->device && !m->comm)
            register_with(m, c);
}

/* Before the communicator goes. */
void memories_forget(struct communicator *c)
{
    for (struct memory *m = c->group->memories; m; m = m->next)
        if (m->comm == c->comm)
            forget(m);
}

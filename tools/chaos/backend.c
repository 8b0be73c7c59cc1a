/* The table: worlds and groups of the other backend, opened with the infos of the core, and its slots called with ours.
 * Which backend that is says the option "of", when a world opens; so this table declares what is true of all, has all
 * slots, and does itself what the core does for a backend without them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chaos.h"

const comm_host *chaos_host;

enum { TEXT_BYTES = 400 };

/* Memory of a backend that has no slots for it. */
struct memory {
    void *plain; /* allocated here */
};

/* ---- Worlds and groups ---- */

static comm_status find_inner(const void *options, const comm_backend **ret_inner)
{
    const char *name = chaos_host->param_text(options, "chaos", "of");
    if (strcmp(name, "chaos") == 0)
        return chaos_host->fail(COMM_ERR_INVALID, "the option of is 'chaos': chaos cannot wrap itself");
    return chaos_host->backend_find(name, ret_inner);
}

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context;
    struct world *w = calloc(1, sizeof *w);
    comm_status status = w ? find_inner(info->options, &w->inner) : chaos_host->fail(COMM_ERR_NO_MEMORY, "a world");
    if (status == COMM_OK)
        status = w->inner->world_open(w->inner->context, info, &w->state);
    if (status != COMM_OK) {
        free(w);
        return status;
    }
    w->id = info->id;
    *ret_world = w;
    return COMM_OK;
}

static void world_close(void *world, int32_t forked)
{
    struct world *w = world;
    w->inner->world_close(w->state, forked);
    free(w);
}

/* A group can be opened with a backend string of its own, but its world has one backend. */
static comm_status check_inner(const struct world *w, const void *options)
{
    char text[TEXT_BYTES];
    const comm_backend *inner;
    comm_status status = find_inner(options, &inner);
    if (status != COMM_OK || inner == w->inner)
        return status;
    snprintf(text, sizeof text, "the option of is '%s', but chaos wraps '%s' in this world already", inner->name,
             w->inner->name);
    return chaos_host->fail(COMM_ERR_INVALID, text);
}

static void tell_seed(const struct group *g, const comm_group_info *info)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "chaos: group '%s' draws from seed=%" PRIu64, info->name, g->plan.seed);
    chaos_host->log(COMM_LOG_WARN, text);
}

static comm_status open_inner(struct group *g, const comm_group_info *info)
{
    comm_group_info theirs = { 0 };
    size_t bytes = info->struct_bytes < sizeof theirs ? info->struct_bytes : sizeof theirs;
    memcpy(&theirs, info, bytes);
    theirs.struct_bytes = (uint32_t)bytes;
    theirs.parent = info->parent ? ((struct group *)info->parent)->state : NULL;
    comm_status status = g->inner->group_open(g->world->state, &theirs, &g->state);
    if (status == COMM_OK && (status = chaos_queue_start(g)) != COMM_OK)
        g->inner->group_close(g->state, 0);
    return status;
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    const struct world *w = world;
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return chaos_host->fail(COMM_ERR_NO_MEMORY, "a group");
    g->world = w;
    g->inner = w->inner;
    g->token = info->token;
    g->rank = info->rank;
    g->size = info->size;
    g->world_ranks = info->world_ranks;
    comm_status status = check_inner(w, info->options);
    if (status == COMM_OK)
        status = chaos_plan_read(info, w->id & INT64_MAX, &g->plan);
    if (status == COMM_OK)
        status = open_inner(g, info);
    if (status != COMM_OK) {
        free(g);
        return status;
    }
    if (chaos_host->param_int(info->options, "chaos", "seed") == 0 && info->rank == 0)
        tell_seed(g, info);
    *ret_state = g;
    return COMM_OK;
}

static comm_status group_connect(void *state, comm_device device, int64_t deadline_ns)
{
    struct group *g = state;
    return HAS(g->inner, group_connect) ? g->inner->group_connect(g->state, device, deadline_ns) : COMM_OK;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    chaos_end(state, status, reason);
}

static void group_close(void *state, int32_t forked)
{
    struct group *g = state;
    if (!forked) /* else the thread is not here, and may have held the locks */
        chaos_queue_stop(g);
    g->inner->group_close(g->state, forked);
    if (!forked)
        chaos_queue_finish(g);
    free(g->end_reason);
    free(g);
}

/* ---- Ops ---- */

/* The kinds of device that libcomm has names for. */
#define DEVICES "cpu,cuda,hip,xpu,npu,hpu,metal,other"
static const char *const device_names[] = {
    [COMM_DEVICE_CPU] = "cpu",     [COMM_DEVICE_CUDA] = "cuda",   [COMM_DEVICE_HIP] = "hip",
    [COMM_DEVICE_XPU] = "xpu",     [COMM_DEVICE_NPU] = "npu",     [COMM_DEVICE_HPU] = "hpu",
    [COMM_DEVICE_METAL] = "metal", [COMM_DEVICE_OTHER] = "other",
};

static bool lists(const char *devices, const char *name)
{
    size_t length = strlen(name);
    for (; *devices; devices += strspn(devices, ",")) {
        size_t of_this = strcspn(devices, ",");
        if (of_this == length && memcmp(devices, name, length) == 0)
            return true;
        devices += of_this;
    }
    return false;
}

static bool serves(const comm_backend *inner, comm_device device)
{
    int32_t kind = comm_device_kind(device);
    return kind > 0 && kind < (int32_t)(sizeof device_names / sizeof *device_names) && device_names[kind] &&
           lists(inner->devices, device_names[kind]);
}

/* What the core asks of a backend's declarations it has asked of ours, which know everything. */
static comm_status check_known(const comm_backend *inner, const comm_op *op)
{
    const uint32_t demands = COMM_OP_FLAG_RANK_ORDER | COMM_OP_FLAG_ON_STREAM | COMM_OP_FLAG_PREMUL_ON_DEVICE |
                             COMM_OP_FLAG_UNEVEN;
    char text[TEXT_BYTES];
    const char *what = NULL;
    if (!serves(inner, op->device))
        what = "serve the device";
    else if (op->kind >= inner->kind_end)
        what = "know the operation";
    else if (op->dtype >= inner->dtype_end)
        what = "know the type";
    else if ((comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_REDUCES) && op->redop >= inner->redop_end)
        what = "know the reduction";
    else if (op->flags & demands & ~inner->op_flags)
        what = "know one of the flags";
    if (!what)
        return COMM_OK;
    snprintf(text, sizeof text, "the backend '%s', on which it stands, does not %s", inner->name, what);
    return chaos_host->fail(COMM_ERR_UNSUPPORTED, text);
}

static comm_status supports(void *state, const comm_op *op)
{
    struct group *g = state;
    comm_status status = check_known(g->inner, op);
    return status == COMM_OK && HAS(g->inner, supports) ? g->inner->supports(g->state, op) : status;
}

/* What comes after a dropped collective waits for it. */
static bool is_stuck(const struct group *g, const comm_op *op)
{
    return g->is_stuck && !(comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_PEER);
}

/* The core takes it that a backend that fails so has ended the group itself. */
static comm_status end_with_fault(struct group *g, comm_status status)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%s", chaos_host->last_error());
    chaos_end(g, status, text);
    return chaos_host->fail(status, text);
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct group *g = state;
    bool gets_stuck = g->is_stuck;
    struct batch *batch = calloc(1, sizeof *batch + count * sizeof *batch->ops);
    comm_status status = batch ? COMM_OK : chaos_host->fail(COMM_ERR_NO_MEMORY, "a batch");
    for (size_t i = 0; status == COMM_OK && i < count; i++) {
        struct op *op = chaos_op_create(g, ops[i], works[i]);
        if (!op) {
            status = chaos_host->fail(COMM_ERR_NO_MEMORY, "an operation");
            break;
        }
        batch->ops[batch->count++] = op;
        status = chaos_disturb(g, op);
        if (status <= COMM_ERR_PEER_LOST)
            status = end_with_fault(g, status);
        op->is_dropped |= is_stuck(g, ops[i]);
        g->is_stuck |= op->is_dropped && !(comm_op_traits_of(ops[i]->kind)->traits & COMM_OP_TRAIT_PEER);
    }
    if (status == COMM_OK)
        status = chaos_queue_add(g, batch);
    else if (batch)
        chaos_batch_destroy(g, batch);
    if (status != COMM_OK)
        g->is_stuck = gets_stuck;
    return status;
}

/* While the other backend has the op, help there; then sleep until it is due. Holds the lock. */
static void help(struct group *g, comm_work *work, int64_t deadline_ns)
{
    struct op *op = *chaos_host->work_slot(work);
    if (!op || op->place != OP_IS_THERE || !HAS(g->inner, progress)) {
        if (deadline_ns)
            chaos_wait(g, deadline_ns);
        return;
    }
    op->references++;
    pthread_mutex_unlock(&g->lock);
    g->inner->progress(g->state, op->inner, deadline_ns);
    pthread_mutex_lock(&g->lock);
    chaos_op_unref(op);
}

static comm_status progress(void *state, comm_work *work, int64_t deadline_ns)
{
    struct group *g = state;
    pthread_mutex_lock(&g->lock);
    int aborts = g->aborts;
    do
        if (!chaos_host->work_done(work))
            help(g, work, deadline_ns);
    while (!chaos_host->work_done(work) && g->aborts == aborts && chaos_host->now_ns() < deadline_ns);
    pthread_mutex_unlock(&g->lock);
    return COMM_OK;
}

/* An op that is not there yet is waited for, as is one of a backend without streams. */
static comm_status wait_stream(void *state, comm_work *work, void *stream)
{
    struct group *g = state;
    comm_status status = COMM_OK;
    struct op *op;
    pthread_mutex_lock(&g->lock);
    while ((op = *chaos_host->work_slot(work)) != NULL && op->place != OP_IS_BACK &&
           (op->place != OP_IS_THERE || !HAS(g->inner, wait_stream)))
        help(g, work, INT64_MAX);
    if (op && HAS(g->inner, wait_stream)) {
        op->references++;
        pthread_mutex_unlock(&g->lock);
        status = g->inner->wait_stream(g->state, op->inner, stream);
        pthread_mutex_lock(&g->lock);
        chaos_op_unref(op);
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- Memory ---- */

static comm_status memory_open(void *state, comm_memory_info *info, void **ret_handle)
{
    struct group *g = state;
    if (HAS(g->inner, memory_open))
        return g->inner->memory_open(g->state, info, ret_handle);
    struct memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return chaos_host->fail(COMM_ERR_NO_MEMORY, "memory");
    if (!info->data && comm_device_kind(info->device) != COMM_DEVICE_CPU) {
        free(memory);
        return chaos_host->fail(COMM_ERR_UNSUPPORTED, "the backend on which it stands does not allocate such memory");
    }
    if (!info->data && (info->data = memory->plain = malloc(info->bytes)) == NULL) {
        free(memory);
        return chaos_host->fail(COMM_ERR_NO_MEMORY, "memory");
    }
    *ret_handle = memory;
    return COMM_OK;
}

static void memory_close(void *state, void *handle, int32_t forked)
{
    struct group *g = state;
    struct memory *memory = handle;
    if (HAS(g->inner, memory_open)) {
        g->inner->memory_close(g->state, handle, forked);
        return;
    }
    free(memory->plain);
    free(memory);
}

/* ---- The table ---- */

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given);
COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given)
{
    static const comm_backend table = { COMM_BACKEND_INIT,
                                        .name = "chaos",
                                        .version = "1",
                                        .license = "Apache-2.0",
                                        .devices = DEVICES,
                                        .traits = COMM_BACKEND_KEEPS_DEADLINES,
                                        .params = chaos_params,
                                        .world_open = world_open,
                                        .world_close = world_close,
                                        .group_open = group_open,
                                        .group_connect = group_connect,
                                        .group_abort = group_abort,
                                        .group_close = group_close,
                                        .supports = supports,
                                        .submit = submit,
                                        .progress = progress,
                                        .wait_stream = wait_stream,
                                        .memory_open = memory_open,
                                        .memory_close = memory_close };
    chaos_host = given;
    return &table;
}

/* The shm backend's vtable: see include/comm/backend.h for what each slot promises. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena.h"
#include "base/descriptors.h"
#include "base/likely.h"
#include "base/param_rows.h"
#include "ending.h"
#include "groups.h"
#include "message.h"
#include "dial.h"
#include "driver.h"
#include "queue.h"
#include "registered.h"
#include "say.h"
#include "segment.h"
#include "select.h"
#include "small.h"
#include "submit.h"

struct shm_group {
    struct exec_group *exec;
    struct arena *arena;
    struct small small;
};

/* Where no memory can be shared at all, "auto" takes another backend. */
static comm_status shm_query(void *context)
{
    size_t ring_bytes = segment_ring_least();
    (void)context;
    int failed = segment_try(ring_bytes);
    if (failed)
        return exec_fail(COMM_ERR_UNSUPPORTED,
                         "ranks cannot share memory here: neither memfd_create nor a file in /dev/shm gives %zu "
                         "bytes: %s%s",
                         2 * ring_bytes, segment_error(-failed), descriptors_cure(-failed));
    return COMM_OK;
}

static comm_status shm_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    struct arena *a = NULL;
    (void)context;
    comm_status status = arena_open(info, &a);
    *ret_world = a;
    return status;
}

static void shm_world_close(void *world, int32_t forked)
{
    arena_close(world, forked);
}

/* The first of these ranks that is not on the host of the first one, or -1. `members` are places in `hosts`; NULL:
 * all. */
static int32_t first_elsewhere(const int32_t *hosts, const int32_t *members, int32_t size)
{
    for (int32_t r = 1; r < size; r++)
        if (hosts[members ? members[r] : r] != hosts[members ? members[0] : 0])
            return r;
    return -1;
}

/* Asked by "auto". */
static comm_status shm_serves_hosts(void *context, const int32_t *hosts, int32_t size)
{
    int32_t r = first_elsewhere(hosts, NULL, size);
    (void)context;
    return r < 0 ? COMM_OK : exec_fail(COMM_ERR_UNSUPPORTED, "ranks 0 and %d are on different hosts", (int)r);
}

static comm_status check_hosts(const struct arena *a, const comm_group_info *info)
{
    int32_t r = first_elsewhere(a->domain.hosts, info->world_ranks, info->size);
    if (r < 0)
        return COMM_OK;
    return exec_fail(COMM_ERR_UNSUPPORTED,
                     "group '%s': ranks 0 and %d are on different hosts, and shm serves ranks of one host; use "
                     "cpu:tcp, or groups of the ranks of one host (COMM_HOST_ID says which host a rank is on)",
                     info->name, (int)r);
}

static comm_status shm_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct arena *a = world;
    comm_status status = check_hosts(a, info);
    struct shm_group *g = status == COMM_OK ? calloc(1, sizeof *g) : NULL;
    if (status == COMM_OK)
        status = g ? group_create(&a->domain, info, &g->exec) : exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    if (status == COMM_OK)
        status = dial_all_read(&a->fabric, info, &g->exec->kernel_reads);
    if (status != COMM_OK) {
        if (g && g->exec)
            group_destroy(g->exec);
        free(g);
        return status;
    }
    g->arena = a;
    driver_enter(a);
    driver_look_around(a); /* what members have said of the group, such as why it has ended: they may have left since */
    group_enter(g->exec);
    driver_leave(a);
    *ret_state = g;
    return COMM_OK;
}

static void shm_group_abort(void *state, comm_status status, const char *reason)
{
    struct shm_group *g = state;
    driver_enter(g->arena);
    group_fail(g->exec, status, reason ? reason : "");
    driver_leave(g->arena);
}

static void shm_group_close(void *state, int32_t forked)
{
    struct shm_group *g = state;
    if (forked)
        return; /* a thread of the parent may have held the lock: its memory is left alone */
    driver_enter(g->arena);
    group_close(g->exec);
    driver_leave(g->arena);
    small_finish(&g->small);
    free(g);
}

static comm_status shm_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct shm_group *g = state;
    struct arena *a = g->arena;
    int async = 0;
    driver_enter(a);
    comm_status status = submit_ops(g->exec, ops, works, count, &async);
    /* Not handed over here: the core holds the group's lock, and another group's work may be among them. */
    if (async)
        driver_leave_to_helper(a);
    else
        driver_leave_quietly(a);
    small_end_turn(&g->small);
    return status;
}

ON_EACH_CALL static comm_status shm_run(void *state, const comm_op *op, int64_t spin_ns)
{
    struct shm_group *g = state;
    if (!futex_lock_try(&g->arena->lock))
        return COMM_ERR_UNSUPPORTED;
    int is_message = op->kind == COMM_OP_SEND || op->kind == COMM_OP_RECV;
    struct fabric *f = &g->arena->fabric;
    comm_status status = is_message ? message_run(f, g->exec, op, spin_ns)
                                    : small_run(&g->small, f, g->exec, op, spin_ns);
    futex_lock_release(&g->arena->lock);
    if (status == COMM_OK)
        small_end_turn(&g->small);
    return status;
}

static comm_status shm_progress(void *state, comm_work *work, int64_t deadline_ns)
{
    return driver_wait(((struct shm_group *)state)->arena, work, deadline_ns);
}

static comm_status shm_memory_open(void *state, comm_memory_info *info, void **ret_handle)
{
    return registered_open(&((struct shm_group *)state)->arena->fabric, info, ret_handle);
}

static void shm_memory_close(void *state, void *handle, int32_t forked)
{
    if (!forked) /* a thread of the parent may have held the lock: its memory is left alone */
        registered_close(&((struct shm_group *)state)->arena->fabric, handle);
}

static void shm_describe_routes(void *context, void (*line)(const char *text, void *line_context), void *line_context)
{
    (void)context;
    select_describe(SELECT_MEMORY_ALL, "COMM_SHM_ALGO", line, line_context);
}

static const comm_backend_param *const params[] = {
#include "param.def"
    NULL
};

static const comm_backend shm_backend = {
    COMM_BACKEND_INIT,
    .traits = COMM_BACKEND_KEEPS_DEADLINES | COMM_BACKEND_CHECKS_SIGNATURES | COMM_BACKEND_NOTICES_LOSS,
    .name = "shm",
    .version = "0.1.0",
    .license = "Apache-2.0",
    .devices = "cpu",
    .preference = 200, /* before tcp */
    .params = params,
    .query = shm_query,
    .world_open = shm_world_open,
    .world_close = shm_world_close,
    .group_open = shm_group_open,
    .group_abort = shm_group_abort,
    .group_close = shm_group_close,
    .submit = shm_submit,
    .run = shm_run,
    .progress = shm_progress,
    .memory_open = shm_memory_open,
    .memory_close = shm_memory_close,
    .describe_routes = shm_describe_routes,
    .serves_hosts = shm_serves_hosts,
};

const comm_backend *comm__shm_entry(const comm_host *host);

const comm_backend *comm__shm_entry(const comm_host *host)
{
    exec_host = host;
    return &shm_backend;
}

/* The shm backend's vtable: see include/comm/backend.h for what each slot promises. */
#include <stdio.h>

#include "arena.h"
#include "base/param_rows.h"
#include "ending.h"
#include "groups.h"
#include "driver.h"
#include "queue.h"
#include "say.h"
#include "submit.h"

static struct arena *arena_of(const struct exec_group *g)
{
    return (struct arena *)g->domain;
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

/* All members must be on one host. */
static comm_status check_hosts(const struct arena *a, const comm_group_info *info)
{
    const int32_t *hosts = a->domain.hosts, *members = info->world_ranks;
    for (int32_t r = 0; r < info->size; r++)
        if (hosts[members[r]] != hosts[members[0]])
            return exec_fail(COMM_ERR_UNSUPPORTED,
                             "group '%s': ranks 0 and %d are on different hosts, and shm serves ranks of one host; use "
                             "cpu:tcp, or groups of the ranks of one host (COMM_HOST_ID says which host a rank is on)",
                             info->name, (int)r);
    return COMM_OK;
}

static comm_status shm_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct arena *a = world;
    struct exec_group *g;
    comm_status status = check_hosts(a, info);
    if (status == COMM_OK)
        status = group_create(&a->domain, info, &g);
    if (status != COMM_OK)
        return status;
    driver_enter(a);
    group_enter(g);
    driver_leave(a);
    *ret_state = g;
    return COMM_OK;
}

static void shm_group_abort(void *state, comm_status status, const char *reason)
{
    struct exec_group *g = state;
    driver_enter(arena_of(g));
    group_fail(g, status, reason ? reason : "");
    driver_leave(arena_of(g));
}

static void shm_group_close(void *state, int32_t forked)
{
    struct exec_group *g = state;
    struct arena *a = arena_of(g);
    if (forked)
        return; /* a thread of the parent may have held the lock: its memory is left alone */
    driver_enter(a);
    group_close(g);
    driver_leave(a);
}

static comm_status shm_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct exec_group *g = state;
    struct arena *a = arena_of(g);
    int async = 0;
    driver_enter(a);
    comm_status status = submit_ops(g, ops, works, count, &async);
    /* Not handed over here: the core holds the group's lock, and another group's work may be among them. */
    if (async)
        driver_leave_to_helper(a);
    else
        driver_leave_quietly(a);
    return status;
}

static comm_status shm_progress(void *state, comm_work *work, int64_t deadline_ns)
{
    return driver_wait(arena_of(state), work, deadline_ns);
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
    .params = params,
    .world_open = shm_world_open,
    .world_close = shm_world_close,
    .group_open = shm_group_open,
    .group_abort = shm_group_abort,
    .group_close = shm_group_close,
    .submit = shm_submit,
    .progress = shm_progress,
};

const comm_backend *comm__shm_entry(const comm_host *host);

const comm_backend *comm__shm_entry(const comm_host *host)
{
    exec_host = host;
    return &shm_backend;
}

/* The tcp backend's vtable: see include/comm/backend.h for what each slot promises. */
#include <stdlib.h>

#include "base/param_rows.h"
#include "ending.h"
#include "groups.h"
#include "mesh.h"
#include "progress.h"
#include "queue.h"
#include "say.h"
#include "submit.h"

static struct mesh *mesh_of(const struct exec_group *g)
{
    return (struct mesh *)g->domain;
}

static comm_status open_world(const comm_world_info *info, int with_shm, void **ret_world)
{
    struct mesh *m = NULL;
    comm_status status = mesh_open(info, with_shm, &m);
    *ret_world = m;
    return status;
}

static comm_status tcp_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context;
    return open_world(info, 0, ret_world);
}

static comm_status shm_tcp_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context;
    return open_world(info, 1, ret_world);
}

static void tcp_world_close(void *world, int32_t forked)
{
    mesh_close(world, forked);
}

static comm_status tcp_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct mesh *m = world;
    struct exec_group *g;
    comm_status status = group_create(&m->domain, info, &g);
    if (status != COMM_OK)
        return status;
    progress_enter(m);
    progress_look_around(m); /* what members have said of the group, such as why it has ended: they may have left
                              * since */
    group_enter(g);
    progress_leave(m);
    *ret_state = g;
    return COMM_OK;
}

static void tcp_group_abort(void *state, comm_status status, const char *reason)
{
    struct exec_group *g = state;
    progress_enter(mesh_of(g));
    group_fail(g, status, reason ? reason : "");
    progress_leave(mesh_of(g));
}

static void tcp_group_close(void *state, int32_t forked)
{
    struct exec_group *g = state;
    struct mesh *m = mesh_of(g);
    if (forked)
        return; /* a thread of the parent may have held the lock: its memory is left alone */
    progress_enter(m);
    group_close(g);
    progress_leave(m);
}

static comm_status tcp_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct exec_group *g = state;
    struct mesh *m = mesh_of(g);
    int async = 0;
    progress_enter(m);
    comm_status status = submit_ops(g, ops, works, count, &async);
    /* Not handed over here: the core holds the group's lock, and another group's work may be among them. */
    if (async)
        progress_leave_to_helper(m);
    else
        progress_leave_quietly(m);
    if (m->local)
        m->local->ops->end_turn(g);
    return status;
}

static comm_status shm_tcp_run(void *state, const comm_op *op, int64_t spin_ns)
{
    return progress_run(mesh_of(state), state, op, spin_ns);
}

static comm_status shm_tcp_memory_open(void *state, comm_memory_info *info, void **ret_handle)
{
    struct carrier *local = mesh_of(state)->local;
    return local->ops->memory_open(local, info, ret_handle);
}

static void shm_tcp_memory_close(void *state, void *handle, int32_t forked)
{
    struct carrier *local = mesh_of(state)->local;
    if (!forked) /* a thread of the parent may have held the lock: its memory is left alone */
        local->ops->memory_close(local, handle);
}

static comm_status tcp_progress(void *state, comm_work *work, int64_t deadline_ns)
{
    return progress_wait(mesh_of(state), work, deadline_ns);
}

static void tcp_describe_routes(void *context, void (*line)(const char *text, void *line_context), void *line_context)
{
    (void)context;
    select_describe(SELECT_MEMORY_NONE, "COMM_TCP_ALGO", line, line_context);
}

/* Its groups of one host take the algorithms that shm would, those of one rank per host tcp's. */
static void shm_tcp_describe_routes(void *context, void (*line)(const char *text, void *line_context),
                                    void *line_context)
{
    (void)context;
    select_describe(SELECT_MEMORY_HOSTS, "COMM_TCP_ALGO", line, line_context);
}

static const comm_backend_param *const params[] = {
#include "param.def"
    NULL
};

/* Asked by "auto", where there is shm for groups of one host. */
static comm_status shm_tcp_serves_hosts(void *context, const int32_t *hosts, int32_t size)
{
    int32_t most = 0, count = 0;
    (void)context;
    for (int32_t r = 0; r < size; r++)
        most = hosts[r] > most ? hosts[r] : most;
    uint8_t *seen = calloc((size_t)most + 1, 1);
    if (!seen)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for the hosts of %d ranks", (int)size);
    for (int32_t r = 0; r < size; r++) {
        count += !seen[hosts[r]];
        seen[hosts[r]] = 1;
    }
    free(seen);
    if (count > 1 && count < size)
        return COMM_OK;
    return exec_fail(COMM_ERR_UNSUPPORTED, count > 1 ? "no two ranks share a host" : "all ranks are on one host");
}

static comm_status shm_tcp_query(void *context)
{
    const comm_backend *shm;
    (void)context;
    return exec_host->backend_find("shm", &shm);
}

/* Ranks of one host through memory that they share, as in backend_shm, and those of different hosts over TCP. It takes
 * the parameters of the two: their variables, or the options of "auto". It has none of its own. */
static const comm_backend shm_tcp_backend = {
    COMM_BACKEND_INIT,
    .traits = COMM_BACKEND_KEEPS_DEADLINES | COMM_BACKEND_CHECKS_SIGNATURES | COMM_BACKEND_NOTICES_LOSS,
    .name = "shm-tcp",
    .version = "0.1.0",
    .license = "Apache-2.0",
    .devices = "cpu",
    .preference = 150, /* after shm */
    .query = shm_tcp_query,
    .world_open = shm_tcp_world_open,
    .world_close = tcp_world_close,
    .group_open = tcp_group_open,
    .group_abort = tcp_group_abort,
    .group_close = tcp_group_close,
    .submit = tcp_submit,
    .run = shm_tcp_run,
    .progress = tcp_progress,
    .memory_open = shm_tcp_memory_open,
    .memory_close = shm_tcp_memory_close,
    .describe_routes = shm_tcp_describe_routes,
    .serves_hosts = shm_tcp_serves_hosts,
};

static const comm_backend tcp_backend = {
    COMM_BACKEND_INIT,
    .traits = COMM_BACKEND_KEEPS_DEADLINES | COMM_BACKEND_CHECKS_SIGNATURES | COMM_BACKEND_NOTICES_LOSS,
    .name = "tcp",
    .version = "0.1.0",
    .license = "Apache-2.0",
    .devices = "cpu",
    .preference = 100,
    .params = params,
    .world_open = tcp_world_open,
    .world_close = tcp_world_close,
    .group_open = tcp_group_open,
    .group_abort = tcp_group_abort,
    .group_close = tcp_group_close,
    .submit = tcp_submit,
    .progress = tcp_progress,
    .describe_routes = tcp_describe_routes,
    .next = &shm_tcp_backend,
};

const comm_backend *comm__tcp_entry(const comm_host *host);

const comm_backend *comm__tcp_entry(const comm_host *host)
{
    exec_host = host;
    return &tcp_backend;
}

/* The tcp backend's vtable: see include/comm/backend.h for what each slot promises. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tcp.h"

/* Frames that came before the group was opened here now find it. */
static void adopt_orphans(struct tcp_group *g)
{
    struct mesh *m = g->mesh;
    struct early *next;
    for (struct early *e = m->orphans.head; e; e = next) {
        next = e->next;
        if (e->header.group != g->id)
            continue;
        struct early_list *list = e->from < 0 || g->status != COMM_OK ? NULL : early_list_of(g, e->from, e->header.kind);
        if (list)
            early_move(e, list);
        else
            early_drop(m, e); /* Its sender is gone, or not a member; or the group has ended. */
    }
}

static comm_status tcp_group_open(const comm_group_info *info, void **ret_state)
{
    struct tcp_group *g, *world = info->world_state;
    struct mesh *m = NULL;
    comm_status status = world ? COMM_OK : mesh_open(info, &m);
    if (status != COMM_OK)
        return status;
    if (world)
        m = world->mesh;
    status = group_create(m, info, &g);
    if (status != COMM_OK) {
        if (!world)
            mesh_close(m, 0);
        return status;
    }
    progress_enter(m);
    group_enter(m, g);
    adopt_orphans(g);
    progress_leave(m);
    *ret_state = g;
    return COMM_OK;
}

static void tcp_group_abort(void *state, comm_status status, const char *reason)
{
    struct tcp_group *g = state;
    progress_enter(g->mesh);
    group_fail(g, status, reason ? reason : "");
    progress_leave(g->mesh);
}

static void tcp_group_close(void *state, int32_t forked)
{
    struct tcp_group *g = state;
    struct mesh *m = g->mesh;
    int is_world = g->id == m->world;
    if (!forked) {
        progress_enter(m);
        if (g->head || g->recvs.head || g->sends.head)
            group_fail(g, COMM_ERR_ABORTED, "the group was closed with operations unfinished");
        early_lists_clear(m, g->early, g->size);
        early_lists_clear(m, g->early_p2p, g->size);
        group_leave(g);
        group_turn_end(m);
        group_destroy(g);
        progress_leave(m);
    }
    if (is_world)
        mesh_close(m, forked);
}

static comm_status tcp_supports(void *state, const comm_op *op)
{
    (void)state;
    if (op->kind > 0 && op->kind < COMM_OP_KIND_END)
        return COMM_OK;
    return exec_fail(COMM_ERR_UNSUPPORTED, "backend tcp does not know operation %d", (int)op->kind);
}

static struct tcp_op *op_new(struct tcp_group *g, const comm_op *o, comm_work *work)
{
    struct tcp_op *op = op_get(g->mesh);
    if (!op)
        return NULL;
    op->group = g;
    op->op = *o;
    op->call = group_call(o);
    op->work = work;
    op->element_bytes = o->kind == COMM_OP_BARRIER ? 1 : exec_host->dtype_bytes(o->dtype);
    if (o->kind == COMM_OP_BROADCAST && !op->op.send.data)
        op->op.send = op->op.recv; /* One buffer, however the core says it. */
    if (o->kind == COMM_OP_BROADCAST && !op->op.recv.data)
        op->op.recv = op->op.send;
    return op;
}

/* What members have sent for this collective before we called it must be for the same one. A member's frames come in the
 * order of its collectives. */
static void check_early(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    for (int32_t r = 0; r < g->size; r++)
        for (struct early *e = g->early[r].head; e && e->header.seq <= op->op.seq; e = e->next)
            if (e->header.seq == op->op.seq && e->from >= 0 &&
                !group_matches_call(g, &g->mesh->links[e->from], &e->header, &op->call))
                return;
}

static void begin(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    if (!(op->op.flags & COMM_OP_FLAG_WAITING))
        atomic_fetch_add(&g->mesh->async_works, 1);
    if (op->op.deadline_ns != INT64_MAX)
        progress_rearm(g->mesh, op->op.deadline_ns);
    if (op->op.kind == COMM_OP_SEND || op->op.kind == COMM_OP_RECV) {
        p2p_submit(op);
        return;
    }
    op->begun_tick = g->mesh->ticks;
    g->entered = op->call;
    op->next = NULL;
    *g->tail = op;
    g->tail = &op->next;
    check_early(op); /* If they are not, this ends the group, and the op with it. */
    if (g->head == op)
        group_ready(g);
}

static comm_status tcp_submit(void *state, const comm_op *ops, comm_work *const *works, size_t count)
{
    struct tcp_group *g = state;
    struct mesh *m = g->mesh;
    struct tcp_op *made = NULL;
    comm_status status = COMM_OK;
    progress_enter(m);
    if (g->status != COMM_OK)
        status = exec_fail(g->status, "%s", g->error);
    else
        status = progress_expect(m, count);
    int expected = status == COMM_OK;
    for (size_t i = count; i-- > 0 && status == COMM_OK;) {
        struct tcp_op *op = op_new(g, &ops[i], works[i]);
        if (!op) {
            status = exec_fail(COMM_ERR_NO_MEMORY, "no memory for an operation");
            break;
        }
        op->next = made;
        made = op;
    }
    if (expected && status != COMM_OK)
        progress_expect_not(m, count);
    int async = 0;
    while (made) {
        struct tcp_op *op = made;
        made = op->next;
        op->next = NULL;
        if (status != COMM_OK) {
            op->next = m->op_pool;
            m->op_pool = op;
            continue;
        }
        async |= !(op->op.flags & COMM_OP_FLAG_WAITING);
        if (g->status != COMM_OK) {
            /* An earlier op of the batch ended the group. */
            progress_done(m, op->work, g->status, g->error);
            op->next = m->op_pool;
            m->op_pool = op;
        } else {
            begin(op);
        }
    }
    group_turn_end(m);
    /* Not handed over here: the core holds the group's lock, and another group's work may be among them. */
    if (async)
        progress_leave_to_helper(m);
    else
        progress_leave_quietly(m);
    return status;
}

static comm_status tcp_progress(void *state, comm_work *work, int64_t deadline_ns)
{
    struct tcp_group *g = state;
    return progress_wait(g->mesh, work, deadline_ns);
}

static const comm_backend tcp_backend = {
    .struct_bytes = sizeof(comm_backend),
    .abi_major = COMM_BACKEND_ABI_MAJOR,
    .abi_minor = COMM_BACKEND_ABI_MINOR,
    .name = "tcp",
    .version = "0.1.0",
    .license = "Apache-2.0",
    .devices = 1u << COMM_DEVICE_CPU,
    .group_open = tcp_group_open,
    .group_abort = tcp_group_abort,
    .group_close = tcp_group_close,
    .supports = tcp_supports,
    .submit = tcp_submit,
    .progress = tcp_progress,
};

const comm_backend *comm__tcp_entry(const comm_host *host);

const comm_backend *comm__tcp_entry(const comm_host *host)
{
    exec_host = host;
    return &tcp_backend;
}

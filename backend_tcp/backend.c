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

static comm_status tcp_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    struct mesh *m = NULL;
    (void)context;
    comm_status status = mesh_open(info, &m);
    *ret_world = m;
    return status;
}

static void tcp_world_close(void *world, int32_t forked)
{
    mesh_close(world, forked);
}

static comm_status tcp_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct mesh *m = world;
    struct tcp_group *g;
    comm_status status = group_create(m, info, &g);
    if (status != COMM_OK)
        return status;
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
    if (forked)
        return; /* a thread of the parent may have held the lock: its memory is left alone */
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

static struct tcp_op *op_new(struct tcp_group *g, const comm_op *o, comm_work *work)
{
    struct tcp_op *op = op_get(g->mesh);
    if (!op)
        return NULL;
    op->group = g;
    op->op = *o;
    op->call = group_call(o);
    op->work = work;
    op->element_bytes = o->element_bytes;
    int64_t begun_ns = o->submitted_ns ? o->submitted_ns : clock_now_ns();
    op->deadline_ns = o->timeout_ns > INT64_MAX - begun_ns ? INT64_MAX : begun_ns + o->timeout_ns;
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
    if (op->deadline_ns != INT64_MAX)
        progress_rearm(g->mesh, op->deadline_ns);
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

static comm_status tcp_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
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
        struct tcp_op *op = op_new(g, ops[i], works[i]);
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

static void tcp_describe_routes(void *context, void (*line)(const char *text, void *line_context), void *line_context)
{
    const struct algo *algo;
    const char *rule;
    char text[256];
    (void)context;
    line("algorithms:", line_context);
    for (size_t i = 0; (algo = select_algo_at(i)); i++) {
        snprintf(text, sizeof text, "  %-14s %-20s %s", comm_op_traits_of(algo->kind)->name, algo->name, algo->help);
        line(text, line_context);
    }
    line("rules, the first that fits counts (COMM_TCP_ALGO goes before them):", line_context);
    for (size_t i = 0; (rule = select_rule_at(i)); i++) {
        snprintf(text, sizeof text, "  %s", rule);
        line(text, line_context);
    }
}

/* Compound literals at file scope live as long as the program. */
#define PARAM(...) &(const comm_backend_param){ sizeof(comm_backend_param), __VA_ARGS__ },
#define PARAM_INT(name, initial, minimum, maximum, help) PARAM(COMM_PARAM_INT, name, #initial, minimum, maximum, help)
#define PARAM_BYTES(name, initial, minimum, maximum, help) PARAM(COMM_PARAM_BYTES, name, #initial, minimum, maximum, help)
#define PARAM_TEXT(name, initial, help) PARAM(COMM_PARAM_TEXT, name, initial, 0, 0, help)
static const comm_backend_param *const params[] = {
#include "param.def"
    NULL
};

static const comm_backend tcp_backend = {
    COMM_BACKEND_INIT,
    .traits = COMM_BACKEND_KEEPS_DEADLINES | COMM_BACKEND_CHECKS_SIGNATURES,
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
};

const comm_backend *comm__tcp_entry(const comm_host *host);

const comm_backend *comm__tcp_entry(const comm_host *host)
{
    exec_host = host;
    return &tcp_backend;
}

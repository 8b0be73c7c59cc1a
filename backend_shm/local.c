/* A fabric as the carrier of another driver's domain: carrier.h. */
#include <stdlib.h>

#include "dial.h"
#include "duplex.h"
#include "events.h"
#include "fabric.h"
#include "message.h"
#include "registered.h"
#include "say.h"
#include "small.h"

struct local {
    struct carrier carrier; /* first: fabric_of */
    struct fabric fabric;
};

static struct fabric *fabric_of(struct carrier *c)
{
    return &((struct local *)c)->fabric;
}

static comm_status local_open(struct carrier *c)
{
    comm_status status = fabric_open(fabric_of(c));
    c->fd = fabric_of(c)->epoll;
    return status;
}

static int local_look(struct port *p)
{
    return duplex_look(duplex_of(p));
}

static int local_look_around(struct carrier *c)
{
    return fabric_look_around(fabric_of(c));
}

static int local_asleep(struct carrier *c)
{
    return events_asleep(fabric_of(c));
}

static void local_awake(struct carrier *c)
{
    events_awake(fabric_of(c));
}

/* In one piece, which is free()d with the group. */
static struct small *small_with_rounds(void)
{
    struct {
        struct small small;
        struct rounds rounds[SMALL_SHAPES];
    } *both = calloc(1, sizeof *both);
    if (!both)
        return NULL;
    both->small.rounds = both->rounds;
    return &both->small;
}

static comm_status local_run(struct carrier *c, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    struct fabric *f = fabric_of(c);
    if (op->kind == COMM_OP_SEND || op->kind == COMM_OP_RECV) {
        int is_here = op->root >= 0 && g->hosts && g->hosts[op->root] == g->hosts[g->rank];
        return is_here ? message_run(f, g, op, spin_ns) : COMM_ERR_UNSUPPORTED;
    }
    if (!g->at_once)
        g->at_once = small_with_rounds();
    return g->at_once ? small_run(g->at_once, f, g, op, spin_ns) : COMM_ERR_UNSUPPORTED;
}

static void local_end_turn(struct exec_group *g)
{
    if (g->at_once)
        small_end_turn(g->at_once);
}

static comm_status local_memory_open(struct carrier *c, comm_memory_info *info, void **ret_handle)
{
    return registered_open(fabric_of(c), info, ret_handle);
}

static void local_memory_close(struct carrier *c, void *handle)
{
    registered_close(fabric_of(c), handle);
}

static void local_timer(struct carrier *c, int64_t now_ns)
{
    fabric_timer(fabric_of(c), now_ns);
}

static int64_t local_due_ns(const struct carrier *c)
{
    return fabric_due_ns(&((const struct local *)c)->fabric);
}

static void local_resolve(struct carrier *c, const atomic_int *stop)
{
    if (atomic_load(&fabric_of(c)->resolving))
        dial_resolve(fabric_of(c), stop);
}

static int local_leave(struct carrier *c)
{
    return fabric_leave(fabric_of(c));
}

static void local_close(struct carrier *c)
{
    fabric_close(fabric_of(c));
    c->fd = -1;
}

static void local_destroy(struct carrier *c)
{
    fabric_finish(fabric_of(c));
    free(c);
}

static void local_close_descriptors(struct carrier *c)
{
    fabric_close_descriptors(fabric_of(c));
}

static const struct carrier_ops local_ops = {
    .open = local_open,
    .look = local_look,
    .look_around = local_look_around,
    .asleep = local_asleep,
    .awake = local_awake,
    .run = local_run,
    .end_turn = local_end_turn,
    .memory_open = local_memory_open,
    .memory_close = local_memory_close,
    .timer = local_timer,
    .due_ns = local_due_ns,
    .resolve = local_resolve,
    .leave = local_leave,
    .close = local_close,
    .destroy = local_destroy,
    .close_descriptors = local_close_descriptors,
};

comm_status carrier_create_shm(struct domain *d, const struct carrier_driver *driver, const struct carrier_looks *looks,
                               const comm_world_info *info, struct carrier **ret_carrier)
{
    struct local *local = calloc(1, sizeof *local);
    if (!local)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    local->carrier = (struct carrier){ &local_ops, -1 };
    comm_status status = fabric_init(&local->fabric, d, driver, looks, info);
    if (status == COMM_OK)
        *ret_carrier = &local->carrier;
    else
        local_destroy(&local->carrier);
    return status;
}

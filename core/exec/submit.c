#include "submit.h"

#include "p2p.h"
#include "queue.h"
#include "say.h"

/* What members have sent for this collective before we called it must be for the same one. A member's frames come in
 * the order of its collectives. */
static void check_unexpected(struct exec_op *op, const struct unexpected *u)
{
    while (u && u->head.seq < op->call.seq)
        u = u->next;
    if (u && u->head.seq == op->call.seq)
        queue_matches_call(op->group, u->port, &u->head, &op->call);
}

static void begin(struct exec_op *op)
{
    struct exec_group *g = op->group;
    if (!(op->op.flags & COMM_OP_FLAG_WAITING))
        atomic_fetch_add(&g->domain->async_works, 1);
    domain_due(g->domain, op->deadline_ns);
    if (op_is_p2p(op)) {
        p2p_submit(op);
        return;
    }
    queue_append(op);
    for (int32_t r = 0; g->early && r < g->size && g->status == COMM_OK; r++) {
        check_unexpected(op, g->boxes[r].unexpected.head);
        check_unexpected(op, g->boxes[r].cleared.head);
    }
}

/* All of them, or none without memory. */
static struct exec_op *make_ops(struct exec_group *g, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct exec_op *made = NULL;
    for (size_t i = count; i-- > 0;) {
        struct exec_op *op = queue_op(g, ops[i], works[i]);
        if (op) {
            op->next = made;
            made = op;
            continue;
        }
        while (made) {
            op = made;
            made = op->next;
            queue_put_back(g->domain, op);
        }
        break;
    }
    return made;
}

static comm_status prepare_ops(struct exec_group *g, const comm_op *const *ops, comm_work *const *works, size_t count,
                               struct exec_op **ret_made)
{
    if (g->status != COMM_OK)
        return exec_fail(g->status, "%s", g->error);
    comm_status status = queue_expect(g->domain, count);
    if (status != COMM_OK || count == 0)
        return status;
    *ret_made = make_ops(g, ops, works, count);
    if (*ret_made)
        return COMM_OK;
    queue_expect_not(g->domain, count);
    return exec_fail(COMM_ERR_NO_MEMORY, "no memory for an operation");
}

comm_status submit_ops(struct exec_group *g, const comm_op *const *ops, comm_work *const *works, size_t count,
                       int *ret_async)
{
    struct exec_op *made = NULL;
    comm_status status = prepare_ops(g, ops, works, count, &made);
    *ret_async = 0;
    if (status != COMM_OK && count && ops[0]->flags & COMM_OP_FLAG_BEGUN) {
        /* What `run` has lent is the user's again when this returns, and peers may have read it, or write to it. */
        g->begun = (struct begun){ 0 };
        if (g->status == COMM_OK)
            group_fail(g, status, exec_host->last_error());
    }
    while (made) {
        struct exec_op *op = made;
        made = op->next;
        *ret_async |= !(op->op.flags & COMM_OP_FLAG_WAITING);
        if (g->status == COMM_OK) {
            begin(op);
            continue;
        }
        /* An earlier op of the batch ended the group. */
        queue_done(g->domain, op->work, g->status, g->error);
        queue_put_back(g->domain, op);
    }
    return status;
}

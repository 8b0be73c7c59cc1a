/* What a collective needs before its first round: the route and its plan, slices, scratch memory, and its input as the plan wants it. All
 * of it is kept by the group from op to op, so that the same shape again allocates nothing. */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

static uint32_t needs_of(const struct tcp_op *op)
{
    const comm_op *o = &op->op;
    uint32_t needs = 0;
    int reduces = o->kind == COMM_OP_ALL_REDUCE || o->kind == COMM_OP_REDUCE || o->kind == COMM_OP_REDUCE_SCATTER;
    int narrow = o->dtype == COMM_DTYPE_F16 || o->dtype == COMM_DTYPE_BF16 || o->dtype == COMM_DTYPE_F8E4M3 ||
                 o->dtype == COMM_DTYPE_F8E5M2;
    int integer = o->dtype <= COMM_DTYPE_BOOL;
    int rounds = o->redop == COMM_REDOP_SUM || o->redop == COMM_REDOP_AVG || o->redop == COMM_REDOP_PRODUCT || o->redop == COMM_REDOP_PREMUL_SUM;
    if (reduces && ((narrow && rounds) || (integer && o->redop == COMM_REDOP_AVG) || o->redop == COMM_REDOP_USER ||
                    (o->flags & COMM_OP_FLAG_RANK_ORDER) || op->group->size == 1))
        needs |= ALGO_ONE_ROUNDING; /* with one rank the others only copy: no NaN or BOOL would get its one form */
    if (o->flags & COMM_OP_FLAG_UNEVEN)
        needs |= o->kind == COMM_OP_ALL_GATHER || o->kind == COMM_OP_REDUCE_SCATTER ? ALGO_AGREED : ALGO_UNEVEN;
    return needs;
}

static uint32_t widest_round(const struct plan *p)
{
    uint32_t most = 1, n = 0;
    for (size_t i = 0; i < p->step_count; i++) {
        n = i && p->steps[i].round == p->steps[i - 1].round ? n + 1 : 1;
        most = n > most ? n : most;
    }
    return most;
}

static const struct plan_entry *plan_for(struct tcp_group *g, const struct algo *algo, int32_t root)
{
    for (struct plan_entry *e = g->plans; e; e = e->next)
        if (e->algo == algo && e->root == root)
            return e;
    struct plan_entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->algo = algo;
    e->root = root;
    plan_init(&e->plan, g->rank, g->size, root);
    if (algo->traits & ALGO_LEVELS)
        plan_set_hosts(&e->plan, g->hosts);
    algo->build(&e->plan);
    if (e->plan.failed) {
        plan_finish(&e->plan);
        free(e);
        return NULL;
    }
    e->widest = widest_round(&e->plan);
    e->next = g->plans;
    g->plans = e;
    return e;
}

/* Memory that is kept from op to op; NULL if there is none. */
static uint8_t *grow(uint8_t **memory, size_t *room, size_t bytes)
{
    if (*room < bytes) {
        free(*memory);
        *room = 0;
        *memory = NULL;
        if (posix_memalign((void **)memory, 4096, bytes) != 0) {
            *memory = NULL;
            return NULL;
        }
        *room = bytes;
    }
    return *memory;
}

/* PREMUL_SUM multiplies this rank's input; an in-place all_to_all must read what it overwrites: both work on a copy. */
static int prepare_input(struct tcp_op *op)
{
    struct tcp_group *g = op->group;
    const comm_op *o = &op->op;
    op->in = o->send;
    int in_place_exchange = o->kind == COMM_OP_ALL_TO_ALL && o->send.data && o->send.data == o->recv.data;
    int premul = o->redop == COMM_REDOP_PREMUL_SUM &&
                 (o->kind == COMM_OP_ALL_REDUCE || o->kind == COMM_OP_REDUCE || o->kind == COMM_OP_REDUCE_SCATTER);
    if (!premul && !in_place_exchange)
        return 1;
    int per_rank = operand_per_rank(o->kind, 1);
    size_t total = per_rank ? 0 : o->send.count;
    for (int32_t r = 0; per_rank && r < g->size; r++) {
        size_t n;
        comm_op_block(&o->send, op->element_bytes, r, &n);
        total += n;
    }
    uint8_t *copy = grow(&g->prepared, &g->prepared_bytes, total * op->element_bytes + 1);
    if (!copy)
        return 0;
    uint8_t *at = copy;
    for (int32_t r = 0; r < (per_rank ? g->size : 1); r++) {
        size_t n = o->send.count;
        void *from = per_rank ? comm_op_block(&o->send, op->element_bytes, r, &n) : o->send.data;
        if (n && premul)
            exec_host->premultiply(at, from, n, o->dtype, o->premul);
        else if (n)
            memcpy(at, from, n * op->element_bytes);
        at += n * op->element_bytes;
    }
    op->in = (comm_buffers){ .data = copy, .count = o->send.count, .counts = o->send.counts };
    return 1;
}

static int prepare_slots(struct tcp_op *op, const struct plan_entry *entry)
{
    struct tcp_group *g = op->group;
    size_t scratch = (size_t)entry->plan.scratch_slots * operand_largest_chunk(op, op->slice_elements) * op->element_bytes;
    size_t steps = (size_t)entry->widest * op->slot_count * sizeof(struct step);
    uint8_t *step_memory = (uint8_t *)g->step_pool;
    int grown = grow(&step_memory, &g->step_pool_room, steps) != NULL;
    g->step_pool = (struct step *)step_memory;
    if (!grown)
        return 0;
    if (scratch && !grow(&g->scratch, &g->scratch_bytes, scratch * op->slot_count))
        return 0;
    for (uint32_t i = 0; i < op->slot_count; i++) {
        op->slots[i].active = 0;
        op->slots[i].steps = g->step_pool + (size_t)i * entry->widest;
        op->slots[i].scratch = scratch ? g->scratch + i * scratch : NULL;
    }
    return 1;
}

static void choose_slices(struct tcp_op *op, size_t total)
{
    struct tcp_group *g = op->group;
    size_t slice_bytes = g->slice_bytes ? (size_t)g->slice_bytes : op->route.slice_bytes;
    int may_slice = !(operand_is_blocks(op->op.kind) && (op->plan->ranged || (op->op.flags & COMM_OP_FLAG_UNEVEN)));
    op->slice_count = 1;
    op->slice_elements = total;
    if (slice_bytes && may_slice && total * op->element_bytes > slice_bytes) {
        op->slice_count = (uint32_t)((total * op->element_bytes + slice_bytes - 1) / slice_bytes);
        op->slice_elements = (total + op->slice_count - 1) / op->slice_count;
        op->slice_count = (uint32_t)((total + op->slice_elements - 1) / op->slice_elements);
    }
    op->slot_count = op->slice_count < g->lanes ? op->slice_count : g->lanes;
}

const char *prepare_op(struct tcp_op *op, size_t total)
{
    struct tcp_group *g = op->group;
    size_t bytes = total * op->element_bytes * (operand_is_blocks(op->op.kind) ? (size_t)g->size : 1);
    struct select_query query = { op->op.kind, g->size, g->host_count, bytes, needs_of(op) };
    op->route = select_route(&query, g->overrides);
    if (!op->route.algo)
        return "no algorithm fits";
    const struct plan_entry *entry = plan_for(g, op->route.algo, op->op.root);
    if (!entry)
        return "no memory for its plan";
    op->plan = &entry->plan;
    op->slices_done = op->slice_next = 0;
    choose_slices(op, total);
    return prepare_slots(op, entry) && prepare_input(op) ? NULL : "no memory for its buffers";
}

#include "prepare.h"

#include <stdlib.h>
#include <string.h>

#include "exec_group.h"
#include "operands.h"
#include "say.h"

/* AVG of integers, and what rounds of 16- and 8-bit floats: partial results do not fit the dtype. Integers are known by
 * their bitwise reduce ops. Of two ranks there are no partial results. */
static int sums_in_a_wider_type(const comm_op *o, int32_t ranks)
{
    int is_one_step = (o->redop == COMM_REDOP_SUM || o->redop == COMM_REDOP_PRODUCT) && ranks == 2;
    if (is_one_step)
        return 0;
    int rounds = o->redop == COMM_REDOP_SUM || o->redop == COMM_REDOP_AVG || o->redop == COMM_REDOP_PRODUCT ||
                 o->redop == COMM_REDOP_PREMUL_SUM;
    int may_be_narrow = rounds && o->element_bytes < sizeof(float);
    if (!may_be_narrow && o->redop != COMM_REDOP_AVG)
        return 0;
    int is_integer = exec_host->reduce_kernel(COMM_REDOP_BXOR, o->dtype) != NULL;
    return is_integer ? o->redop == COMM_REDOP_AVG : may_be_narrow;
}

static uint32_t needs_of(const struct exec_op *op)
{
    const comm_op *o = &op->op;
    uint32_t needs = 0;
    int is_wider = op_reduces(op) && sums_in_a_wider_type(o, op->group->size);
    if (is_wider && op->group->size > 2 && exec_host->widening_kernel(o->redop, o->dtype))
        needs |= ALGO_WIDE_SUMS; /* two ranks swap no partial sums */
    else if (is_wider)
        needs |= ALGO_ONE_ROUNDING;
    if (op_reduces(op) &&
        (o->redop == COMM_REDOP_USER || (o->flags & COMM_OP_FLAG_RANK_ORDER) || op->group->size == 1))
        needs |= ALGO_ONE_ROUNDING; /* with one rank the others only copy: no NaN or BOOL would get its one form */
    if (o->flags & COMM_OP_FLAG_UNEVEN)
        needs |= op->traits->traits & COMM_OP_TRAIT_COUNTS_AGREE ? ALGO_AGREED : ALGO_UNEVEN;
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

static const struct plan_entry *plan_for(struct exec_group *g, const struct algo *algo, int32_t root, uint8_t widens)
{
    for (struct plan_entry *e = g->plans; e; e = e->next)
        if (e->algo == algo && e->root == root && e->widens == widens)
            return e;
    struct plan_entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->algo = algo;
    e->root = root;
    e->widens = widens;
    plan_init(&e->plan, g->rank, g->size, root);
    e->plan.widens = widens;
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
static uint8_t *grow(uint8_t **memory, size_t *capacity, size_t bytes)
{
    if (*capacity < bytes) {
        free(*memory);
        *capacity = 0;
        *memory = NULL;
        if (posix_memalign((void **)memory, 4096, bytes) != 0) {
            *memory = NULL;
            return NULL;
        }
        *capacity = bytes;
    }
    return *memory;
}

/* Blocks with counts lie one after the other unless offsets say otherwise: say it, so that each is found in one
 * step. */
static size_t *fill_offsets(comm_buffers *side, int32_t size, size_t *offsets)
{
    size_t at = 0;
    if (!side->counts || side->offsets || side->list)
        return offsets;
    for (int32_t r = 0; r < size; r++) {
        offsets[r] = at;
        at += side->counts[r];
    }
    side->offsets = offsets;
    return offsets + size;
}

/* There is memory for the blocks' offsets: of both sides, and of the prepared copy. */
static int prepare_offsets(struct exec_op *op)
{
    struct exec_group *g = op->group;
    uint8_t *memory = (uint8_t *)g->offsets;
    op->in = op->op.send;
    if (!op->op.send.counts && !op->op.recv.counts)
        return 1;
    int grown = grow(&memory, &g->offsets_bytes, 3 * (size_t)g->size * sizeof *g->offsets) != NULL;
    g->offsets = (size_t *)memory;
    if (!grown)
        return 0;
    size_t *offsets = fill_offsets(&op->op.recv, g->size, g->offsets);
    fill_offsets(&op->op.send, g->size, offsets);
    op->in = op->op.send;
    return 1;
}

/* PREMUL_SUM multiplies this rank's input; an in-place all_to_all must read what it overwrites: both work on a copy. */
static int prepare_input(struct exec_op *op)
{
    struct exec_group *g = op->group;
    const comm_op *o = &op->op;
    int in_place_exchange = o->kind == COMM_OP_ALL_TO_ALL && o->send.data && o->send.data == o->recv.data;
    int premul = o->redop == COMM_REDOP_PREMUL_SUM && op_reduces(op);
    if (!premul && !in_place_exchange)
        return 1;
    int per_rank = op->traits->send == COMM_OP_SIDE_BLOCKS;
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
    if (op->in.counts)
        fill_offsets(&op->in, g->size, g->offsets + 2 * (size_t)g->size);
    return 1;
}

static int prepare_kept(struct exec_group *g, size_t slots)
{
    uint8_t *memory = (uint8_t *)g->kept;
    size_t bytes = slots * (size_t)g->size * sizeof *g->kept;
    int grown = grow(&memory, &g->kept_bytes, bytes) != NULL;
    g->kept = (struct kept *)memory;
    if (grown)
        memset(memory, 0, bytes);
    return grown;
}

static int prepare_slots(struct exec_op *op, const struct plan_entry *entry)
{
    struct exec_group *g = op->group;
    size_t scratch = operand_scratch_bytes(op, op->slice_elements);
    size_t steps = (size_t)entry->widest * op->slot_count * sizeof(struct step);
    uint8_t *step_memory = (uint8_t *)g->step_pool;
    int grown = grow(&step_memory, &g->step_pool_bytes, steps) != NULL;
    g->step_pool = (struct step *)step_memory;
    if (!grown)
        return 0;
    int may_keep = g->domain->keeps_from && g->size >= g->domain->keeps_from;
    int keeps = entry->plan.keeps && may_keep && op->op.redop != COMM_REDOP_USER;
    if (keeps && !prepare_kept(g, op->slot_count))
        return 0;
    if (scratch && !grow(&g->scratch, &g->scratch_bytes, scratch * op->slot_count))
        return 0;
    for (uint32_t i = 0; i < op->slot_count; i++) {
        op->slots[i].op = op;
        op->slots[i].active = 0;
        op->slots[i].steps = g->step_pool + (size_t)i * entry->widest;
        op->slots[i].kept = keeps ? g->kept + (size_t)i * (size_t)g->size : NULL;
        op->slots[i].scratch = scratch ? g->scratch + i * scratch : NULL;
    }
    return 1;
}

static void choose_slices(struct exec_op *op)
{
    struct exec_group *g = op->group;
    size_t total = op->total, slice_bytes = g->slice_bytes ? (size_t)g->slice_bytes : op->route.slice_bytes;
    int same_total = !(op->op.flags & COMM_OP_FLAG_UNEVEN) || op->traits->traits & COMM_OP_TRAIT_COUNTS_AGREE;
    int may_slice = !op_has_blocks(op) || (!op->plan->ranged && same_total);
    op->slice_count = 1;
    op->slice_elements = total;
    if (slice_bytes && may_slice && total * op->element_bytes > slice_bytes) {
        enum { MOST_SLICES = 1 << 30 };
        const size_t slices = (total * op->element_bytes - 1) / slice_bytes + 1;
        op->slice_count = (uint32_t)(slices < MOST_SLICES ? slices : MOST_SLICES);
        op->slice_elements = (total + op->slice_count - 1) / op->slice_count;
        op->slice_count = (uint32_t)((total + op->slice_elements - 1) / op->slice_elements);
    }
    op->slot_count = op->slice_count < g->lanes ? op->slice_count : g->lanes;
}

static void choose_kernels(struct exec_op *op)
{
    if (!op_reduces(op))
        return;
    op->kernel = exec_host->reduce_kernel(op->op.redop, op->op.dtype);
    op->to_two = exec_host->reduce_to_two_kernel(op->op.redop, op->op.dtype);
    if (!op->plan->widens)
        return;
    op->wide_kernel = exec_host->reduce_kernel(op->op.redop, COMM_DTYPE_F32);
    op->widening_kernel = exec_host->widening_kernel(op->op.redop, op->op.dtype);
}

/* A broadcast has one buffer, however the core says it. */
static void one_buffer(comm_op *o)
{
    if (!o->send.data)
        o->send = o->recv;
    if (!o->recv.data)
        o->recv = o->send;
}

const char *prepare_op(struct exec_op *op)
{
    struct exec_group *g = op->group;
    if (op->op.kind == COMM_OP_BROADCAST)
        one_buffer(&op->op);
    if (!prepare_offsets(op))
        return "no memory for its blocks";
    op->total = operand_total(op);
    op->largest_block = operand_largest_block(op);
    uint32_t needs = needs_of(op);
    size_t known = needs & ALGO_UNEVEN ? 0 : op->total * (op_has_blocks(op) ? (size_t)g->size : 1);
    struct select_query query = { .kind = op->op.kind,
                                  .size = g->size,
                                  .hosts = g->host_count,
                                  .bytes = known * op->element_bytes,
                                  .needs = needs,
                                  .memory = g->memory,
                                  .shares_cores = g->domain->shares_cores,
                                  .kernel_reads = g->kernel_reads };
    op->route = select_route(&query, g->overrides, g->domain->tuning);
    if (!op->route.algo)
        return "no algorithm fits";
    const uint8_t widens = needs & ALGO_WIDE_SUMS && !(op->route.algo->traits & ALGO_ONE_ROUNDING);
    const struct plan_entry *entry = plan_for(g, op->route.algo, op->op.root, widens);
    if (!entry)
        return "no memory for its plan";
    op->plan = &entry->plan;
    choose_kernels(op);
    op->slices_done = op->slice_next = 0;
    choose_slices(op);
    if (!prepare_slots(op, entry) || !prepare_input(op))
        return "no memory for its buffers";
    operand_note_long(op);
    return NULL;
}

#include "operands.h"

#include <string.h>

#include "copy.h"
#include "exec_group.h"
#include "say.h"

/* ---- Where a region lies ---- */

/* Block `chunk` of one side, as a pointer and its elements. */
static uint8_t *block(const struct exec_op *op, const comm_buffers *side, int send_side, int32_t chunk,
                      size_t *ret_count)
{
    int has_blocks = (send_side ? op->traits->send : op->traits->recv) == COMM_OP_SIDE_BLOCKS;
    if (has_blocks && (side->data || side->list || side->counts))
        return comm_op_block(side, op->element_bytes, chunk, ret_count);
    *ret_count = side->count;
    return side->data;
}

/* How long chunk `chunk` of a block op is, whatever buffer it lies in. */
static size_t block_elements(const struct exec_op *op, int32_t chunk)
{
    size_t count = 0;
    switch (op->op.kind) {
    case COMM_OP_ALL_GATHER:
        block(op, &op->op.recv, 0, chunk, &count);
        return count;
    case COMM_OP_REDUCE_SCATTER:
        block(op, &op->op.send, 1, chunk, &count);
        return count;
    case COMM_OP_GATHER:
        return op->op.send.count;
    case COMM_OP_SCATTER:
        return op->op.recv.count;
    case COMM_OP_ALL_TO_ALL:
        return op->op.send.count;
    default:
        return 0;
    }
}

size_t operand_largest_block(const struct exec_op *op)
{
    size_t most = 0;
    for (int32_t r = 0; op_has_blocks(op) && r < op->group->size; r++) {
        size_t n = block_elements(op, r);
        most = n > most ? n : most;
    }
    return most;
}

size_t operand_largest_chunk(const struct exec_op *op, size_t slice_elements)
{
    if (!op_has_blocks(op)) {
        size_t begin, end;
        plan_cut(slice_elements, op->group->size, 0, &begin, &end);
        return end - begin;
    }
    return op->largest_block < slice_elements ? op->largest_block : slice_elements;
}

size_t operand_element_bytes(const struct exec_op *op, const struct plan_region *r)
{
    return plan_is_wide(op->plan, r) ? sizeof(float) : op->element_bytes;
}

size_t operand_message_element_bytes(const struct exec_op *op, const struct plan_step *step)
{
    return operand_element_bytes(op, step->kind == PLAN_STEP_RECV ? &step->dst : &step->source);
}

reduce_kernel_fn operand_kernel(const struct exec_op *op, const struct plan_step *step)
{
    if (plan_is_wide(op->plan, &step->source))
        return op->wide_kernel;
    return plan_is_wide(op->plan, &step->dst) ? op->widening_kernel : op->kernel;
}

static size_t scratch_element_bytes(const struct exec_op *op)
{
    return op->plan->widens ? sizeof(float) : op->element_bytes;
}

size_t operand_stride(const struct exec_op *op, size_t slice_elements)
{
    return operand_largest_chunk(op, slice_elements) * scratch_element_bytes(op);
}

size_t operand_scratch_bytes(const struct exec_op *op, size_t slice_elements)
{
    size_t slots = (size_t)op->plan->scratch_slots * operand_stride(op, slice_elements);
    return slots + (op->plan->widens ? slice_elements * sizeof(float) : 0);
}

/* Elements [begin, end) of a block of `count`, cut down to the slice. */
static void cut_slice(const struct slot *slot, size_t count, size_t *ret_begin, size_t *ret_count)
{
    size_t begin = slot->begin < count ? slot->begin : count;
    size_t end = slot->end < count ? slot->end : count;
    *ret_begin = begin;
    *ret_count = end - begin;
}

uint8_t *operand_region(const struct exec_op *op, const struct slot *slot, const struct plan_region *r,
                        size_t *ret_count)
{
    int32_t size = op->group->size;
    size_t count = 0;
    if (r->count <= 0) {
        *ret_count = 0;
        return NULL;
    }
    if (!op_has_blocks(op)) {
        size_t begin, end, unused;
        plan_cut(slot->end - slot->begin, size, r->first, &begin, &unused);
        plan_cut(slot->end - slot->begin, size, r->first + r->count - 1, &unused, &end);
        *ret_count = end - begin;
        if (r->buffer == PLAN_SCRATCH)
            return slot->scratch + (size_t)r->slot * slot->stride;
        if (r->buffer == PLAN_SUMS)
            return slot->scratch + (size_t)op->plan->scratch_slots * slot->stride + begin * sizeof(float);
        const comm_buffers *side = r->buffer == PLAN_SEND ? &op->in : &op->op.recv;
        return side->data ? (uint8_t *)side->data + (slot->begin + begin) * op->element_bytes : NULL;
    }
    uint8_t *at = NULL;
    size_t total = 0, begin = 0;
    for (int32_t c = r->first; c < r->first + r->count; c++) {
        uint8_t *data = NULL;
        if (r->buffer == PLAN_SCRATCH)
            count = block_elements(op, c);
        else
            data = block(op, r->buffer == PLAN_SEND ? &op->in : &op->op.recv, r->buffer == PLAN_SEND, c, &count);
        size_t n;
        size_t from;
        cut_slice(slot, count, &from, &n);
        if (c == r->first) {
            at = data;
            begin = from;
        }
        total += n;
    }
    *ret_count = total;
    if (r->buffer == PLAN_SCRATCH)
        return slot->scratch + (size_t)r->slot * slot->stride;
    return at ? at + begin * op->element_bytes : NULL;
}

size_t operand_total(const struct exec_op *op)
{
    if (!op_has_blocks(op))
        return op->op.kind == COMM_OP_BROADCAST || op->op.send.data ? op->op.send.count : op->op.recv.count;
    size_t most = 0, n = 0;
    for (int32_t r = 0; r < op->group->size; r++) {
        block(op, &op->op.send, 1, r, &n);
        most = n > most ? n : most;
        block(op, &op->op.recv, 0, r, &n);
        most = n > most ? n : most;
    }
    return most;
}

static size_t blocks_of(const comm_buffers *side, int32_t kind, int32_t size)
{
    int is_there = side->data || side->list;
    return !is_there || kind == COMM_OP_SIDE_NONE ? 0 : kind == COMM_OP_SIDE_BLOCKS ? (size_t)size : 1;
}

int operand_is_long(const struct exec_op *op)
{
    const struct exec_group *g = op->group;
    const comm_op_traits *t = comm_op_traits_of(op->op.kind);
    size_t block_bytes = op->total * op->element_bytes, blocks = blocks_of(&op->op.recv, t->recv, g->size);
    if (!op->op.recv.data || op->op.send.data != op->op.recv.data)
        blocks += blocks_of(&op->op.send, t->send, g->size);
    return cache_is_passed(&g->domain->cache, block_bytes, blocks * block_bytes, g->size);
}

static void note_side(const struct exec_op *op, const comm_buffers *side, int32_t kind)
{
    size_t bytes = 0, n, blocks = blocks_of(side, kind, op->group->size);
    for (size_t b = 0; b < blocks; b++) {
        comm_op_block(side, op->element_bytes, (int32_t)b, &n);
        bytes += n * op->element_bytes;
    }
    if (bytes < HUGE_PAGES_LONG_BYTES)
        return;
    for (size_t b = 0; b < blocks; b++) {
        const void *block = comm_op_block(side, op->element_bytes, (int32_t)b, &n);
        huge_pages_moved(&op->group->domain->huge_pages, block, n * op->element_bytes);
    }
}

void operand_note_long(const struct exec_op *op)
{
    const struct exec_group *g = op->group;
    if (!g->domain->huge_pages.uses || op->total * op->element_bytes < HUGE_PAGES_LONG_BYTES / (size_t)g->size)
        return;
    const comm_op_traits *t = comm_op_traits_of(op->op.kind);
    note_side(op, &op->op.recv, t->recv);
    if (op->op.send.data != op->op.recv.data || !op->op.recv.data)
        note_side(op, &op->op.send, t->send);
}

/* ---- Local steps ---- */

static void user_reduce(const struct exec_op *op, void *dst, const void **sources, size_t count)
{
    /* inout[i] = in[i] OP inout[i] with `in` from lower ranks: the running result is always `in`, the next rank's
     * part always `inout`. Every source but this rank's own is scratch, which may be overwritten. */
    const void *running = sources[0];
    for (int32_t r = 1; r < op->group->size; r++) {
        exec_host->reduce_fn_begins();
        op->op.reduce_fn(running, (void *)sources[r], count, op->op.dtype, op->op.reduce_context);
        exec_host->reduce_fn_ends();
        running = sources[r];
    }
    if (running != dst)
        memcpy(dst, running, count * op->element_bytes);
}

/* Part of what rank r has sent, from byte `at` on: where it has been kept, or in its place. Up to the next piece. */
static const uint8_t *part_of(const struct slot *slot, int32_t r, const uint8_t *place, size_t at)
{
    const struct kept *k = slot->kept ? &slot->kept[r] : NULL;
    return k && k->pieces ? k->piece[at / k->piece_bytes] + at % k->piece_bytes : place + at;
}

/* How much of what ranks have sent lies in one piece at each of them; `bytes`: nothing is kept. */
static size_t shortest_piece(const struct slot *slot, int32_t size, size_t bytes)
{
    size_t least = bytes;
    for (int32_t r = 0; slot->kept && r < size; r++)
        if (slot->kept[r].pieces && slot->kept[r].piece_bytes < least)
            least = slot->kept[r].piece_bytes;
    return least;
}

static void let_all_go(const struct exec_group *g, struct slot *slot)
{
    for (int32_t r = 0; slot->kept && r < g->size; r++)
        if (slot->kept[r].pieces)
            group_port(g, r)->ops->let_go(group_port(g, r), &slot->kept[r]);
}

static void reduce_ranks(struct exec_op *op, struct slot *slot, const struct plan_step *step)
{
    int32_t size = op->group->size;
    const void **sources = op->group->sources;
    size_t count, own_count;
    uint8_t *dst = operand_region(op, slot, &step->dst, &count);
    uint8_t *own = operand_region(op, slot, &step->source, &own_count);
    if (count == 0)
        return;
    size_t stride = slot->stride * (size_t)step->source.count;
    uint8_t *first = slot->scratch + (size_t)step->other.slot * slot->stride;
    for (int32_t r = 0; r < size; r++)
        sources[r] = r == op->group->rank ? own : first + (size_t)r * stride;
    if (op->op.redop == COMM_REDOP_USER) { /* of which nothing is kept */
        uint8_t *mine = first + (size_t)op->group->rank * stride;
        memcpy(mine, own, count * op->element_bytes);
        sources[op->group->rank] = mine;
        user_reduce(op, dst, sources, count);
        return;
    }
    const size_t bytes = count * op->element_bytes, part = shortest_piece(slot, size, bytes);
    for (size_t at = 0; at < bytes; at += part) {
        size_t n = bytes - at < part ? bytes - at : part;
        for (int32_t r = 0; r < size; r++)
            sources[r] = r == op->group->rank ? own + at : part_of(slot, r, first + (size_t)r * stride, at);
        exec_host->reduce_many(dst + at, sources, (size_t)size, n / op->element_bytes, op->op.redop, op->op.dtype);
    }
    let_all_go(op->group, slot);
}

static void copy(const struct exec_op *op, const struct plan_step *step, uint8_t *dst, const uint8_t *source,
                 size_t count)
{
    const int to_wide = plan_is_wide(op->plan, &step->dst), is_wide = plan_is_wide(op->plan, &step->source);
    if (to_wide && !is_wide)
        exec_host->widen((float *)(void *)dst, source, count, op->op.dtype);
    else if (is_wide && !to_wide)
        exec_host->narrow(dst, (const float *)(const void *)source, count, op->op.dtype);
    else if (source != dst)
        copy_part(dst, source, count * operand_element_bytes(op, &step->dst), operand_is_long(op));
}

void operand_local_step(struct exec_op *op, struct slot *slot, const struct plan_step *step)
{
    size_t count, n;
    if (step->kind == PLAN_STEP_REDUCE_RANKS) {
        reduce_ranks(op, slot, step);
        return;
    }
    uint8_t *dst = operand_region(op, slot, &step->dst, &count);
    if (count == 0 || !dst)
        return;
    if (step->kind == PLAN_STEP_COPY) {
        uint8_t *source = operand_region(op, slot, &step->source, &n);
        copy(op, step, dst, source, n < count ? n : count);
    } else if (step->kind == PLAN_STEP_REDUCE) {
        uint8_t *a = operand_region(op, slot, &step->source, &n);
        uint8_t *b = operand_region(op, slot, &step->other, &n);
        operand_kernel(op, step)(dst, a, b, count);
    } else if (step->kind == PLAN_STEP_AVERAGE && op->op.redop == COMM_REDOP_AVG) {
        exec_host->divide(dst, count, plan_is_wide(op->plan, &step->dst) ? COMM_DTYPE_F32 : op->op.dtype,
                          op->group->size);
    }
}

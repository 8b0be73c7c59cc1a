/* The buffers of the simulated ranks, what is in them, and what should be in the end.
 *
 * Each rank has one piece of memory. Vectors and blocks lie in it with guards before and after each, so that whatever
 * is written out of bounds shows in the comparison, as does a write to a side that the op must leave alone. */
#include <comm/backend.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

enum { GUARD = 3 };

int fail(struct world *w, const char *format, ...)
{
    va_list arguments;
    if (w->outcome->error[0])
        return -1;
    va_start(arguments, format);
    vsnprintf(w->outcome->error, sizeof w->outcome->error, format, arguments);
    va_end(arguments);
    return -1;
}

uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int is_vector_op(int32_t kind)
{
    return kind == COMM_OP_BROADCAST || kind == COMM_OP_ALL_REDUCE || kind == COMM_OP_REDUCE;
}

static int is_reducing(int32_t kind)
{
    return kind == COMM_OP_ALL_REDUCE || kind == COMM_OP_REDUCE || kind == COMM_OP_REDUCE_SCATTER;
}

/* ---- Arithmetic ------------------------------------------------------------------------------- */

enum { PRIME = 65521 };

static uint64_t matrix_product(uint64_t a, uint64_t b)
{
    uint64_t p = a & 0xffff, q = a >> 16 & 0xffff, r = a >> 32 & 0xffff, s = a >> 48;
    uint64_t t = b & 0xffff, u = b >> 16 & 0xffff, v = b >> 32 & 0xffff, x = b >> 48;
    return (p * t + q * v) % PRIME | (p * u + q * x) % PRIME << 16 | (r * t + s * v) % PRIME << 32 |
           (r * u + s * x) % PRIME << 48;
}

void element_reduce(struct element *dst, const struct element *a, const struct element *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = (a[i].hash ^ b[i].hash << 1 ^ b[i].hash >> 63) * 0x9e3779b97f4a7c15u;
        dst[i] = (struct element){ .sum = a[i].sum + b[i].sum,
                                   .average = a[i].average + b[i].average,
                                   .product = matrix_product(a[i].product, b[i].product),
                                   .hash = hash ^ hash >> 29 };
    }
}

void element_divide(struct element *data, size_t count, int32_t divisor)
{
    for (size_t i = 0; i < count; i++)
        data[i].average /= divisor;
}

static struct element random_element(struct world *w)
{
    uint64_t a = next_random(&w->random), b = next_random(&w->random);
    return (struct element){ .sum = (int64_t)(a >> 16),
                             .average = (int64_t)(a >> 8 & 0xffffffff) - 0x7fffffff,
                             .product = (b & 0xffff) % PRIME | (b >> 16 & 0xffff) % PRIME << 16 |
                                        (a & 0xffff) % PRIME << 32 | (b >> 48) % PRIME << 48,
                             .hash = b };
}

/* ---- Layout ----------------------------------------------------------------------------------- */

/* Which blocks of a side a rank has: none, its own (or, of a vector, all), or all. */
enum share { NONE, OWN, WHOLE };

static enum share share_of(const struct setting *s, int32_t rank, int recv)
{
    int is_root = rank == s->root;
    switch (s->kind) {
    case COMM_OP_BROADCAST:
        return is_root != recv ? WHOLE : NONE;
    case COMM_OP_REDUCE:
        return !recv || is_root ? WHOLE : NONE;
    case COMM_OP_ALL_GATHER:
        return recv ? WHOLE : OWN;
    case COMM_OP_GATHER:
        return !recv ? OWN : is_root ? WHOLE : NONE;
    case COMM_OP_SCATTER:
        return recv ? OWN : is_root ? WHOLE : NONE;
    case COMM_OP_REDUCE_SCATTER:
        return recv ? OWN : WHOLE;
    case COMM_OP_BARRIER:
        return NONE;
    default:
        return WHOLE;
    }
}

static size_t block_count(const struct setting *s, int32_t from, int32_t to)
{
    return s->lengths ? s->lengths[from * s->size + to] : s->count;
}

/* Give a side its place from element `at` on; without memory only count. Plain blocks lie one after the other. */
static size_t place_side(struct world *w, int32_t rank, int recv, size_t at)
{
    const struct setting *s = w->setting;
    enum share share = share_of(s, rank, recv);
    struct side *side = recv ? &w->recv[rank] : &w->send[rank];
    struct element *memory = w->memory[rank];
    at += GUARD;
    if (is_vector_op(s->kind)) {
        if (share != NONE) {
            side->vector = memory ? memory + at : NULL;
            at += s->count;
        }
        return at + GUARD;
    }
    for (int32_t r = 0; r < s->size; r++) {
        side->blocks[r] = NULL;
        side->counts[r] = s->kind == COMM_OP_ALL_TO_ALL && recv ? block_count(s, r, rank) : block_count(s, rank, r);
        if (share == NONE || (share == OWN && r != rank))
            continue;
        side->blocks[r] = memory ? memory + at : NULL;
        at += side->counts[r] + (s->lengths ? GUARD : 0);
    }
    return at + GUARD;
}

/* In place: the user gives the same memory for both sides. */
static void join_sides(struct world *w, int32_t rank)
{
    const struct setting *s = w->setting;
    struct side *send = &w->send[rank], *recv = &w->recv[rank];
    switch (s->kind) {
    case COMM_OP_ALL_REDUCE:
    case COMM_OP_REDUCE:
        if (recv->vector)
            recv->vector = send->vector;
        break;
    case COMM_OP_ALL_GATHER:
    case COMM_OP_GATHER:
        if (recv->blocks[rank])
            send->blocks[rank] = recv->blocks[rank];
        break;
    case COMM_OP_SCATTER:
    case COMM_OP_REDUCE_SCATTER:
        if (send->blocks[rank])
            recv->blocks[rank] = send->blocks[rank];
        break;
    default:
        break;
    }
}

size_t slot_count(const struct world *w, int32_t slice)
{
    const struct setting *s = w->setting;
    size_t begin, end, most = 0;
    if (is_vector_op(s->kind)) {
        plan_cut(s->count, s->slices, slice, &begin, &end);
        plan_cut(end - begin, s->size, 0, &begin, &end);
        return end - begin;
    }
    for (int32_t r = 0; r < s->size; r++) {
        plan_cut(block_count(s, 0, r), s->slices, slice, &begin, &end);
        most = end - begin > most ? end - begin : most;
    }
    return most;
}

/* Elements of SUMS, which is RECV unless the plan widens. */
static size_t sums_count(const struct world *w, int32_t rank, int32_t slice)
{
    size_t begin, end;
    plan_cut(w->setting->count, w->setting->slices, slice, &begin, &end);
    return w->plans[rank].widens ? end - begin : 0;
}

static int open_rank(struct world *w, int32_t rank)
{
    const struct setting *s = w->setting;
    size_t size = (size_t)s->size;
    for (int recv = 0; recv < 2; recv++) {
        struct side *side = recv ? &w->recv[rank] : &w->send[rank];
        side->blocks = calloc(size, sizeof *side->blocks);
        side->counts = calloc(size, sizeof *side->counts);
        if (!side->blocks || !side->counts)
            return fail(w, "out of memory");
    }
    size_t count = place_side(w, rank, 1, place_side(w, rank, 0, 0));
    w->memory_count[rank] = count;
    w->memory[rank] = malloc(count * sizeof **w->memory);
    w->expected[rank] = malloc(count * sizeof **w->expected);
    w->is_result[rank] = calloc(count, 1);
    if (!w->memory[rank] || !w->expected[rank] || !w->is_result[rank])
        return fail(w, "out of memory");
    place_side(w, rank, 1, place_side(w, rank, 0, 0));
    if (s->in_place)
        join_sides(w, rank);
    for (size_t i = 0; i < count; i++)
        w->memory[rank][i] = random_element(w);
    memcpy(w->expected[rank], w->memory[rank], count * sizeof **w->expected);

    for (int32_t slice = 0; slice < s->slices; slice++) {
        size_t capacity = (size_t)w->plans[rank].scratch_slots * slot_count(w, slice) + sums_count(w, rank, slice);
        struct element *scratch = malloc((capacity + 1) * sizeof *scratch);
        w->scratch[rank * s->slices + slice] = scratch;
        if (!scratch)
            return fail(w, "out of memory");
        for (size_t i = 0; i < capacity; i++)
            scratch[i] = (struct element){ .sum = -1, .average = -1, .product = UINT64_MAX, .hash = UINT64_MAX };
    }
    return 0;
}

/* ---- The reference ---------------------------------------------------------------------------- */

/* Write down that `count` elements from `at` of a rank should be `data` in the end. */
static void expect(struct world *w, int32_t rank, const struct element *at, const struct element *data, size_t count)
{
    if (count == 0)
        return;
    size_t offset = (size_t)(at - w->memory[rank]);
    memcpy(w->expected[rank] + offset, data, count * sizeof *data);
    memset(w->is_result[rank] + offset, 1, count);
}

/* The reduction of block `block` of every rank (-1: of the vectors), in rank order, as the definition has it. */
static void reduce_all(struct world *w, int32_t block, size_t count, struct element *ret_data)
{
    for (int32_t r = 0; r < w->setting->size; r++) {
        const struct element *share = block < 0 ? w->send[r].vector : w->send[r].blocks[block];
        if (r == 0 && count > 0)
            memcpy(ret_data, share, count * sizeof *ret_data);
        else
            element_reduce(ret_data, ret_data, share, count);
    }
    element_divide(ret_data, count, w->setting->size);
}

static void expect_vectors(struct world *w, struct element *result)
{
    const struct setting *s = w->setting;
    if (s->kind == COMM_OP_BROADCAST)
        memcpy(result, w->send[s->root].vector, s->count * sizeof *result);
    else
        reduce_all(w, -1, s->count, result);
    for (int32_t r = 0; r < s->size; r++)
        if (w->recv[r].vector)
            expect(w, r, w->recv[r].vector, result, s->count);
}

static void expect_blocks(struct world *w, struct element *result)
{
    const struct setting *s = w->setting;
    for (int32_t r = 0; r < s->size; r++) {
        if (s->kind == COMM_OP_REDUCE_SCATTER) {
            reduce_all(w, r, w->recv[r].counts[r], result);
            expect(w, r, w->recv[r].blocks[r], result, w->recv[r].counts[r]);
            continue;
        }
        for (int32_t from = 0; from < s->size; from++) {
            /* Block `from` of r's RECV, or of a scatter r's own, is this block of that rank's SEND. */
            int32_t owner = s->kind == COMM_OP_SCATTER ? s->root : from;
            int32_t to = s->kind == COMM_OP_ALL_GATHER || s->kind == COMM_OP_GATHER ? from : r;
            int32_t block = s->kind == COMM_OP_SCATTER ? r : from;
            if (w->recv[r].blocks[block])
                expect(w, r, w->recv[r].blocks[block], w->send[owner].blocks[to], w->recv[r].counts[block]);
        }
    }
}

int world_open(struct world *w)
{
    const struct setting *s = w->setting;
    size_t size = (size_t)s->size, most = s->count;
    w->random = s->seed;
    w->memory = calloc(size, sizeof *w->memory);
    w->expected = calloc(size, sizeof *w->expected);
    w->is_result = calloc(size, sizeof *w->is_result);
    w->memory_count = calloc(size, sizeof *w->memory_count);
    w->send = calloc(size, sizeof *w->send);
    w->recv = calloc(size, sizeof *w->recv);
    w->scratch = calloc(size * (size_t)s->slices, sizeof *w->scratch);
    if (!w->memory || !w->expected || !w->is_result || !w->memory_count || !w->send || !w->recv || !w->scratch)
        return fail(w, "out of memory");
    for (int32_t r = 0; r < s->size; r++)
        if (open_rank(w, r))
            return -1;
    for (size_t i = 0; s->lengths && i < size * size; i++)
        most = s->lengths[i] > most ? s->lengths[i] : most;
    struct element *result = malloc((most + 1) * sizeof *result);
    if (!result)
        return fail(w, "out of memory");
    if (is_vector_op(s->kind))
        expect_vectors(w, result);
    else if (s->kind != COMM_OP_BARRIER)
        expect_blocks(w, result);
    free(result);
    return 0;
}

void world_close(struct world *w)
{
    for (int32_t r = 0; r < w->setting->size; r++) {
        for (int32_t slice = 0; w->scratch && slice < w->setting->slices; slice++)
            free(w->scratch[r * w->setting->slices + slice]);
        if (w->memory)
            free(w->memory[r]);
        if (w->expected)
            free(w->expected[r]);
        if (w->is_result)
            free(w->is_result[r]);
        for (int recv = 0; w->send && w->recv && recv < 2; recv++) {
            free(recv ? w->recv[r].blocks : w->send[r].blocks);
            free(recv ? w->recv[r].counts : w->send[r].counts);
        }
    }
    free(w->memory);
    free(w->expected);
    free(w->is_result);
    free(w->memory_count);
    free(w->send);
    free(w->recv);
    free(w->scratch);
}

/* ---- Regions ---------------------------------------------------------------------------------- */

/* Where slice `slice` of chunks [first, first + count) of a vector of `total` elements lies in it. */
static void cut_vector(const struct setting *s, int32_t slice, struct plan_region region, size_t *ret_begin,
                       size_t *ret_end)
{
    size_t begin, end, unused;
    plan_cut(s->count, s->slices, slice, &begin, &end);
    plan_cut(end - begin, s->size, region.first, ret_begin, &unused);
    plan_cut(end - begin, s->size, region.first + region.count - 1, &unused, ret_end);
    *ret_begin += begin;
    *ret_end += begin;
}

static int find_sums(struct world *w, int32_t rank, int32_t slice, struct plan_region region, struct span *ret_span)
{
    const struct setting *s = w->setting;
    size_t begin, end, slice_begin, unused, slots = (size_t)w->plans[rank].scratch_slots * slot_count(w, slice);
    if (!w->plans[rank].widens || !is_vector_op(s->kind))
        return fail(w, "rank %d names SUMS, which it has not", rank);
    plan_cut(s->count, s->slices, slice, &slice_begin, &unused);
    cut_vector(s, slice, region, &begin, &end);
    ret_span->data = w->scratch[rank * s->slices + slice] + slots + (begin - slice_begin);
    ret_span->count = end - begin;
    return 0;
}

static int find_scratch(struct world *w, int32_t rank, int32_t slice, struct plan_region region, struct span *ret_span)
{
    const struct setting *s = w->setting;
    size_t begin = 0, end = 0, count = 0;
    if (region.slot < 0 || region.slot + region.count > w->plans[rank].scratch_slots)
        return fail(w, "rank %d uses scratch slots %d .. %d of %d", rank, region.slot, region.slot + region.count - 1,
                    w->plans[rank].scratch_slots);
    if (is_vector_op(s->kind)) {
        cut_vector(s, slice, region, &begin, &end);
        count = end - begin;
    } else if (s->lengths && s->kind == COMM_OP_ALL_TO_ALL) {
        return fail(w, "rank %d uses scratch for blocks whose lengths it does not know", rank);
    } else {
        for (int32_t c = region.first; c < region.first + region.count; c++, count += end - begin)
            plan_cut(block_count(s, 0, c), s->slices, slice, &begin, &end);
    }
    ret_span->data = w->scratch[rank * s->slices + slice] + (size_t)region.slot * slot_count(w, slice);
    ret_span->count = count;
    return 0;
}

int find_region(struct world *w, int32_t rank, int32_t slice, struct plan_region region, struct span *ret_span)
{
    const struct setting *s = w->setting;
    const struct side *side = region.buffer == PLAN_SEND ? &w->send[rank] : &w->recv[rank];
    const char *name = region.buffer == PLAN_SEND ? "SEND" : "RECV";
    size_t begin, end;
    *ret_span = (struct span){ NULL, 0 };
    if (region.first < 0 || region.count < 0 || region.first + region.count > s->size)
        return fail(w, "rank %d names chunks %d .. %d of %d", rank, region.first, region.first + region.count - 1,
                    s->size);
    if (region.count == 0)
        return 0;
    if (region.buffer == PLAN_SCRATCH)
        return find_scratch(w, rank, slice, region, ret_span);
    if (region.buffer == PLAN_SUMS)
        return find_sums(w, rank, slice, region, ret_span);
    if (is_vector_op(s->kind)) {
        if (!side->vector)
            return fail(w, "rank %d has no %s", rank, name);
        cut_vector(s, slice, region, &begin, &end);
        *ret_span = (struct span){ side->vector + begin, end - begin };
        return 0;
    }
    if (region.count > 1 && (s->slices > 1 || s->lengths))
        return fail(w, "rank %d takes %d blocks of %s as one piece, which they are not", rank, region.count, name);
    for (int32_t c = region.first; c < region.first + region.count; c++)
        if (!side->blocks[c])
            return fail(w, "rank %d has no block %d of %s", rank, c, name);
    plan_cut(side->counts[region.first], s->slices, slice, &begin, &end);
    ret_span->data = side->blocks[region.first] + begin;
    ret_span->count = (end - begin) * (size_t)region.count;
    return 0;
}

/* ---- The end ---------------------------------------------------------------------------------- */

static const char *difference(const struct world *w, const struct element *is, const struct element *should, int result)
{
    int exact = !result || !is_reducing(w->setting->kind);
    if (is->sum != should->sum)
        return "sum";
    if (is->average != should->average)
        return "average";
    if ((exact || w->setting->keeps_order) && is->product != should->product)
        return "product";
    if ((exact || w->setting->one_rounding) && is->hash != should->hash)
        return "hash";
    return NULL;
}

int world_compare(struct world *w)
{
    const struct setting *s = w->setting;
    uint64_t digest = 0;
    for (int32_t r = 0; r < s->size; r++)
        for (size_t i = 0; i < w->memory_count[r]; i++) {
            const struct element *is = &w->memory[r][i];
            const char *what = difference(w, is, &w->expected[r][i], w->is_result[r][i]);
            if (what)
                return fail(w, "rank %d: element %zu of its memory (%s): the %s is wrong", r, i,
                            w->is_result[r][i] ? "a result" : "not to be touched", what);
            if (w->is_result[r][i])
                digest = (digest ^ is->hash ^ is->product << 7) * 0x9e3779b97f4a7c15u;
        }
    if (s->kind == COMM_OP_ALL_REDUCE && s->count > 0)
        for (int32_t r = 1; r < s->size; r++)
            if (memcmp(w->recv[r].vector, w->recv[0].vector, s->count * sizeof(struct element)) != 0)
                return fail(w, "rank %d's bits differ from rank 0's", r);
    w->outcome->digest = digest;
    return 0;
}

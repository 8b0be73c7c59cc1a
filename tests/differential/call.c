#include "call.h"

#include <stdlib.h>
#include <string.h>

#include "difference.h"
#include "gpu.h"
#include "random.h"

enum { MARGIN = 64, POISON = 0xa5 };

static const size_t unchanged = SIZE_MAX;

/* ---- Memory ---- */

static void region_make(struct region *r, size_t bytes, size_t shift)
{
    r->bytes = bytes + 2 * MARGIN + shift;
    r->memory = gpu_buffer(r->device, r->bytes);
    r->image = malloc(r->bytes);
    memset(r->memory, POISON, r->bytes);
    r->data = r->memory + MARGIN + shift;
}

/* Blocks in a random order with random gaps, or one after the other. */
static void region_make_blocks(struct region *r, const size_t *counts, int32_t size, size_t element, bool offsets,
                               size_t shift, uint64_t *random)
{
    size_t at = 0;
    int32_t order[RANKS_MAX];
    r->counts = malloc((size_t)size * sizeof *r->counts);
    r->offsets = malloc((size_t)size * sizeof *r->offsets);
    memcpy(r->counts, counts, (size_t)size * sizeof *r->counts);
    for (int32_t i = 0; i < size; i++)
        order[i] = i;
    for (int32_t i = size - 1; offsets && i > 0; i--) {
        int32_t j = (int32_t)random_below(random, (size_t)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (int32_t i = 0; i < size; i++) {
        at += offsets ? random_below(random, 20) : 0;
        r->offsets[order[i]] = at;
        at += counts[order[i]];
    }
    region_make(r, at * element, shift);
}

static void region_finish(struct region *r)
{
    if (r->memory)
        gpu_buffer_free(r->device, r->memory);
    free(r->image);
    free(r->counts);
    free(r->offsets);
}

static uint8_t *block_of(const struct call *c, const struct region *r, int32_t rank)
{
    return r->data + r->offsets[rank] * program_element(c->step);
}

/* The same place in what the region must become. */
static uint8_t *in_image(const struct region *r, const uint8_t *at)
{
    return r->image + (at - r->memory);
}

static uint64_t data_key(const struct step *s, int32_t from, int32_t to)
{
    return random_key(s->key, (uint64_t)(from * 64 + to));
}

static void fill(const struct call *c, uint8_t *at, int32_t from, int32_t to, size_t count)
{
    reference_bytes(at, count * program_element(c->step), data_key(c->step, from, to));
}

static struct reduction reduction_of(const struct call *c, int32_t block)
{
    const struct step *s = c->step;
    struct reduction r = { .dtype = s->dtype,
                           .element = program_element(s),
                           .redop = s->redop,
                           .rank_order = s->rank_order,
                           .specials = s->specials,
                           .size = c->size };
    for (int32_t rank = 0; rank < c->size; rank++) {
        r.keys[rank] = data_key(s, rank, block);
        r.factor_keys[rank] = data_key(s, rank, 63);
    }
    return r;
}

/* ---- What each rank has ---- */

static bool is_root(const struct call *c)
{
    return c->rank == c->step->root;
}

static bool has_blocks(const struct call *c, bool sending)
{
    switch (c->step->kind) {
    case ALL_TO_ALL:
        return true;
    case SCATTER:
        return sending && is_root(c);
    case REDUCE_SCATTER:
        return sending;
    case ALL_GATHER:
        return !sending;
    case GATHER:
        return !sending && is_root(c);
    default:
        return false;
    }
}

/* Elements of block `peer` on one side. */
static size_t block_count(const struct call *c, bool sending, int32_t peer)
{
    const struct step *s = c->step;
    switch (s->kind) {
    case ALL_TO_ALL:
        return sending ? program_count(s, c->rank, peer) : program_count(s, peer, c->rank);
    case GATHER:
    case ALL_GATHER:
        return program_count(s, peer, 0);
    case SCATTER:
    case REDUCE_SCATTER:
        return program_count(s, 0, peer);
    default:
        return s->count;
    }
}

/* Elements of a side that is one buffer; `unchanged` if there is none. */
static size_t buffer_count(const struct call *c, bool sending)
{
    const struct step *s = c->step;
    switch (s->kind) {
    case BROADCAST:
        return sending ? unchanged : s->count;
    case ALL_REDUCE:
    case REDUCE:
        return s->count;
    case ALL_GATHER:
    case GATHER:
        return sending ? program_count(s, c->rank, 0) : unchanged;
    case SCATTER:
    case REDUCE_SCATTER:
        return sending ? unchanged : program_count(s, 0, c->rank);
    case MESSAGE:
        if (sending)
            return c->half == SENDING_HALF ? s->count : unchanged;
        return c->half == RECEIVING_HALF ? s->capacity : unchanged;
    default:
        return unchanged;
    }
}

bool call_takes_part(const struct step *step, int32_t rank)
{
    if (step->kind == MESSAGE || step->kind == MESSAGE_BYTES)
        return rank == step->root || rank == step->peer;
    return true;
}

/* ---- Filling and expecting ---- */

static void fill_send(struct call *c)
{
    const struct step *s = c->step;
    uint8_t *at = (uint8_t *)c->send_at;
    if (!at)
        return;
    if (program_reduces(s->kind)) {
        for (int32_t block = 0; block < (s->kind == REDUCE_SCATTER ? c->size : 1); block++) {
            struct reduction r = reduction_of(c, block);
            bool blocks = s->kind == REDUCE_SCATTER;
            reference_operand(&r, c->rank, blocks ? c->send.counts[block] : s->count,
                              blocks ? block_of(c, &c->send, block) : at);
        }
        return;
    }
    if (!has_blocks(c, true)) {
        fill(c, at, c->rank, 0, buffer_count(c, true));
        return;
    }
    for (int32_t to = 0; to < c->size; to++) {
        const struct region *r = s->kind == ALL_TO_ALL && s->in_place ? &c->recv : &c->send;
        fill(c, block_of(c, r, to), c->rank, to, r->counts[to]);
    }
}

static void expect_block(struct call *c, uint8_t *at, int32_t from, int32_t to, size_t count)
{
    const struct region *r = at >= c->recv.memory && at < c->recv.memory + c->recv.bytes ? &c->recv : &c->send;
    fill(c, in_image(r, at), from, to, count);
}

/* What will be written, into the images. */
static void expect(struct call *c)
{
    const struct step *s = c->step;
    switch (s->kind) {
    case BROADCAST:
        expect_block(c, c->recv.data, s->root, 0, s->count);
        break;
    case ALL_GATHER:
    case GATHER:
    case ALL_TO_ALL:
        for (int32_t from = 0; has_blocks(c, false) && from < c->size; from++)
            expect_block(c, block_of(c, &c->recv, from), from, s->kind == ALL_TO_ALL ? c->rank : 0,
                         c->recv.counts[from]);
        break;
    case SCATTER:
        if (c->recv_at)
            expect_block(c, c->recv_at, s->root, c->rank, program_count(s, 0, c->rank));
        break;
    case MESSAGE:
        if (c->half == RECEIVING_HALF)
            expect_block(c, c->recv_at, s->root, 0, s->count < s->capacity ? s->count : s->capacity);
        break;
    case ALL_REDUCE:
    case REDUCE_SCATTER:
        c->reduced = c->recv_at;
        break;
    case REDUCE:
        c->reduced = is_root(c) ? c->recv_at : NULL;
        break;
    default:
        break;
    }
    c->reduced_block = s->kind == REDUCE_SCATTER ? c->rank : 0;
    c->reduced_count = s->kind == REDUCE_SCATTER ? program_count(s, 0, c->rank) : s->count;
}

/* ---- Laying out ---- */

static void make_side(struct call *c, bool sending, uint64_t *random)
{
    const struct step *s = c->step;
    size_t element = program_element(s), counts[RANKS_MAX];
    size_t shift = random_below(random, 4) * element; /* elements need not lie better than their type asks for */
    struct region *r = sending ? &c->send : &c->recv;
    if (has_blocks(c, sending)) {
        /* reduce_scatter_v has no offsets. */
        bool gaps = s->form == LIST || (s->form == UNEVEN && s->offsets && s->kind != REDUCE_SCATTER);
        for (int32_t peer = 0; peer < c->size; peer++)
            counts[peer] = block_count(c, sending, peer);
        region_make_blocks(r, counts, c->size, element, gaps, shift, random);
    } else if (buffer_count(c, sending) != unchanged) {
        region_make(r, buffer_count(c, sending) * element, shift);
    }
}

static void **list_of(const struct call *c, const struct region *r)
{
    void **list = malloc((size_t)c->size * sizeof *list);
    for (int32_t i = 0; i < c->size; i++)
        list[i] = r->counts[i] ? block_of(c, r, i) : NULL;
    return list;
}

/* Let the sides share memory, in the way that the operation allows. */
static void go_in_place(struct call *c)
{
    switch (c->step->kind) {
    case ALL_REDUCE:
    case REDUCE: /* elsewhere recv is not touched, and frameworks give the same buffer on all ranks */
        c->send_at = c->recv.data;
        break;
    case ALL_TO_ALL:
        c->send_at = c->recv.data;
        break;
    case ALL_GATHER:
    case GATHER:
        if (has_blocks(c, false))
            c->send_at = block_of(c, &c->recv, c->rank);
        break;
    case SCATTER:
    case REDUCE_SCATTER:
        if (has_blocks(c, true))
            c->recv_at = block_of(c, &c->send, c->rank);
        break;
    default:
        break;
    }
}

static void keep_image(struct region *r)
{
    if (r->memory)
        memcpy(r->image, r->memory, r->bytes);
}

/* For nothing, a pointer may be NULL. */
static void drop_empty(struct call *c, uint64_t *random)
{
    const struct step *s = c->step;
    if (s->form != PLAIN || !random_one_in(random, 2))
        return;
    if (s->count == 0)
        c->send_at = NULL;
    if (s->kind == MESSAGE ? s->capacity == 0 : s->count == 0)
        c->recv_at = NULL;
}

static void set_options(struct call *c)
{
    const struct step *s = c->step;
    c->options = (comm_op_options)COMM_OP_OPTIONS_INIT;
    c->options.device = c->device;
    if (s->kind == MESSAGE)
        c->options.tag = s->tag;
    if (!program_reduces(s->kind))
        return;
    struct reduction r = reduction_of(c, 0);
    reference_factor(&r, c->rank, c->factor);
    c->options.premul = s->redop == COMM_REDOP_PREMUL_SUM ? c->factor : NULL;
    c->options.reduce_fn = s->redop == COMM_REDOP_USER ? reference_user : NULL;
    c->options.reduce_context = reference_user_contexts + program_element(s);
    c->options.element_bytes = (uint32_t)s->struct_bytes;
    c->options.flags = s->rank_order ? COMM_OP_FLAG_RANK_ORDER : 0;
}

void call_prepare(struct call *c, const struct step *step, comm_device device, enum half half, int32_t rank,
                  int32_t size, uint64_t *random)
{
    memset(c, 0, sizeof *c);
    c->step = step;
    c->device = c->send.device = c->recv.device = device;
    c->half = half;
    if (half == OWN_HALF && step->kind == MESSAGE)
        c->half = rank == step->root ? SENDING_HALF : RECEIVING_HALF;
    c->rank = rank;
    c->size = size;
    make_side(c, true, random);
    make_side(c, false, random);
    c->send_at = c->send.data;
    c->recv_at = c->recv.data;
    if (step->in_place)
        go_in_place(c);
    else if (step->kind == REDUCE && !is_root(c) && random_one_in(random, 2))
        c->recv_at = NULL;
    if (c->send.offsets && step->form == LIST)
        c->send_list = list_of(c, &c->send);
    if (c->recv.offsets && step->form == LIST)
        c->recv_list = list_of(c, &c->recv);
    if (step->kind == BROADCAST && is_root(c))
        fill(c, c->recv.data, rank, 0, step->count);
    fill_send(c);
    keep_image(&c->send);
    keep_image(&c->recv);
    expect(c);
    drop_empty(c, random);
    set_options(c);
}

/* ---- Calling ---- */

/* Offsets are left out where the blocks lie one after the other. */
static const size_t *offsets_of(const struct call *c, const struct region *r)
{
    return c->step->offsets ? r->offsets : NULL;
}

static comm_status receive(struct call *c, comm_group *g, comm_work **work)
{
    const struct step *s = c->step;
    c->options.tag = s->naming == BY_SOURCE ? COMM_ANY_TAG : s->tag;
    return comm_recv(g, c->recv_at, s->capacity, s->dtype, s->naming == BY_TAG ? COMM_ANY_SOURCE : s->root, &c->options,
                     work);
}

static comm_status submit_uneven(struct call *c, comm_group *g, comm_work **work)
{
    const struct step *s = c->step;
    const struct region *in = &c->send, *out = &c->recv;
    const comm_op_options *o = &c->options;
    switch (s->kind) {
    case ALL_GATHER:
        return comm_all_gather_v(g, c->send_at, c->recv_at, out->counts, offsets_of(c, out), s->dtype, o, work);
    case GATHER:
        return comm_gather_v(g, c->send_at, buffer_count(c, true), c->recv_at, out->counts, offsets_of(c, out),
                             s->dtype, s->root, o, work);
    case SCATTER:
        return comm_scatter_v(g, c->send_at, in->counts, offsets_of(c, in), c->recv_at, buffer_count(c, false),
                              s->dtype, s->root, o, work);
    case REDUCE_SCATTER:
        return comm_reduce_scatter_v(g, c->send_at, c->recv_at, in->counts, s->dtype, s->redop, o, work);
    default:
        return comm_all_to_all_v(g, c->send_at, in->counts, offsets_of(c, in), c->recv_at, out->counts,
                                 offsets_of(c, out), s->dtype, o, work);
    }
}

static comm_status submit_list(struct call *c, comm_group *g, comm_work **work)
{
    const struct step *s = c->step;
    const void *const *send = (const void *const *)c->send_list;
    void *const *recv = c->recv_list;
    const comm_op_options *o = &c->options;
    switch (s->kind) {
    case ALL_GATHER:
        return comm_all_gather_list(g, c->send_at, recv, c->recv.counts, s->dtype, o, work);
    case GATHER:
        return comm_gather_list(g, c->send_at, buffer_count(c, true), recv, c->recv.counts, s->dtype, s->root, o,
                                work);
    case SCATTER:
        return comm_scatter_list(g, send, c->send.counts, c->recv_at, buffer_count(c, false), s->dtype, s->root, o,
                                 work);
    case REDUCE_SCATTER:
        return comm_reduce_scatter_list(g, send, c->recv_at, c->send.counts, s->dtype, s->redop, o, work);
    default:
        return comm_all_to_all_list(g, send, c->send.counts, recv, c->recv.counts, s->dtype, o, work);
    }
}

comm_status call_submit(struct call *c, comm_group *g, comm_work **work)
{
    const struct step *s = c->step;
    const comm_op_options *o = &c->options;
    if (s->form == UNEVEN)
        return submit_uneven(c, g, work);
    if (s->form == LIST)
        return submit_list(c, g, work);
    switch (s->kind) {
    case BROADCAST:
        return comm_broadcast(g, c->recv_at, s->count, s->dtype, s->root, o, work);
    case ALL_REDUCE:
        return comm_all_reduce(g, c->send_at, c->recv_at, s->count, s->dtype, s->redop, o, work);
    case REDUCE:
        return comm_reduce(g, c->send_at, c->recv_at, s->count, s->dtype, s->redop, s->root, o, work);
    case ALL_GATHER:
        return comm_all_gather(g, c->send_at, c->recv_at, s->count, s->dtype, o, work);
    case GATHER:
        return comm_gather(g, c->send_at, c->recv_at, s->count, s->dtype, s->root, o, work);
    case SCATTER:
        return comm_scatter(g, c->send_at, c->recv_at, s->count, s->dtype, s->root, o, work);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(g, c->send_at, c->recv_at, s->count, s->dtype, s->redop, o, work);
    case ALL_TO_ALL:
        return comm_all_to_all(g, c->send_at, c->recv_at, s->count, s->dtype, o, work);
    case MESSAGE:
        return c->half == RECEIVING_HALF ? receive(c, g, work)
                                         : comm_send(g, c->send_at, s->count, s->dtype, s->peer, o, work);
    default:
        return comm_barrier(g, o, work);
    }
}

/* ---- Checking ---- */

static bool same_image(const struct region *r, const char *name, char *text, size_t capacity)
{
    size_t i = first_difference(r->memory, r->image, r->bytes);
    if (i == r->bytes)
        return true;
    ptrdiff_t at = r->memory + i - r->data;
    snprintf(text, capacity, "%s: byte %td of %td is %02x, not %02x", name, at,
             (ptrdiff_t)r->bytes - (r->data - r->memory) - MARGIN, r->memory[i], r->image[i]);
    return false;
}

static uint64_t hash_of(const uint8_t *bytes, size_t count)
{
    uint64_t hash = 1;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return random_mix(hash);
}

bool call_check(struct call *c, char *text, size_t capacity, uint64_t *ret_hash)
{
    *ret_hash = 0;
    if (c->reduced) {
        struct reduction r = reduction_of(c, c->reduced_block);
        const struct region *region = c->step->in_place && c->step->kind == REDUCE_SCATTER ? &c->send : &c->recv;
        size_t bytes = c->reduced_count * program_element(c->step);
        if (!reference_check(&r, c->reduced, c->reduced_count, text, capacity))
            return false;
        memcpy(in_image(region, c->reduced), c->reduced, bytes);
        *ret_hash = hash_of(c->reduced, bytes);
    }
    return same_image(&c->send, "send", text, capacity) && same_image(&c->recv, "recv", text, capacity);
}

void call_finish(struct call *c)
{
    region_finish(&c->send);
    region_finish(&c->recv);
    free(c->send_list);
    free(c->recv_list);
}

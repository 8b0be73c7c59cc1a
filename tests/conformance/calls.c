/* calls.h. Every output is poisoned before the call and compared whole, margins and gaps included. */
#include "calls.h"

#include <stdlib.h>
#include <string.h>

#include "difference.h"
#include "gpu.h"
#include "ranks.h"
#include "values.h"

/* ---- Devices ---- */

static struct {
    bool has_cpu, has_gpu;
    _Atomic bool refuses[KIND_COUNT]; /* kinds that the backend cannot do at all */
    bool reduces[COMM_REDOP_END][COMM_DTYPE_END]; /* on the GPU */
} served;

/* A backend may do some kinds only. */
static void look_for_refusals(comm_group *world)
{
    static const int32_t kinds[KIND_COUNT] = {
        COMM_OP_BROADCAST, COMM_OP_ALL_REDUCE, COMM_OP_REDUCE,         COMM_OP_ALL_GATHER, COMM_OP_GATHER,
        COMM_OP_SCATTER,   COMM_OP_REDUCE_SCATTER, COMM_OP_ALL_TO_ALL, COMM_OP_BARRIER,    COMM_OP_SEND,
    };
    bool refuses[KIND_COUNT];
    int left = 0;
    for (int k = 0; k < KIND_COUNT; k++) {
        refuses[k] =
            !comm_group_supports(world, kinds[k], COMM_DTYPE_I32, COMM_REDOP_SUM, COMM_DEVICE_DEFAULT) ||
            (k == SEND_RECV &&
             !comm_group_supports(world, COMM_OP_RECV, COMM_DTYPE_I32, COMM_REDOP_SUM, COMM_DEVICE_DEFAULT));
        left += !refuses[k];
    }
    for (int k = 0; k < KIND_COUNT; k++) /* if all are, the calls will say why */
        served.refuses[k] = refuses[k] && left > 0;
}

void calls_begin(comm_group *world)
{
    if (comm_group_device(world) != COMM_DEVICE_DEFAULT)
        look_for_refusals(world);
    if (!comm_group_supports(world, COMM_OP_BARRIER, 0, 0, COMM_DEVICE_CUDA))
        return;
    served.has_gpu = true;
    served.has_cpu = comm_group_supports(world, COMM_OP_BARRIER, 0, 0, COMM_DEVICE_CPU);
    for (comm_redop redop = 0; redop < COMM_REDOP_END; redop++)
        for (comm_dtype dtype = 1; dtype < COMM_DTYPE_END; dtype++)
            served.reduces[redop][dtype] =
                comm_group_supports(world, COMM_OP_ALL_REDUCE, dtype, redop, COMM_DEVICE_CUDA);
}

static bool on_gpu(const struct one *c)
{
    return comm_device_kind(c->device) == COMM_DEVICE_CUDA;
}

static bool is_supported(const struct one *c, int32_t size)
{
    if (!on_gpu(c))
        return comm_redop_supports(c->redop, c->dtype);
    /* NCCL multiplies by 1 / size, which must not be rounded here; reductions.c tries other sizes. */
    return served.reduces[c->redop][c->dtype] && gpu_reduces(c->redop, c->dtype, size) &&
           (c->redop != COMM_REDOP_AVG || (size & (size - 1)) == 0);
}

/* ---- Drawing ---- */

uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

size_t below(uint64_t *state, size_t end)
{
    return (size_t)(draw(state) % end);
}

static size_t draw_count(uint64_t *state)
{
    static const size_t counts[] = { 0, 1, 1, 2, 3, 5, 8, 13, 64, 257, 1000, 1023, 4096, 10007, 40000, 150001 };
    return counts[below(state, below(state, 8) == 0 ? 16 : 12)];
}

/* Elements around a size at which a backend may change its way, or up to 3 MiB. */
static size_t draw_about_limit(uint64_t *state, size_t element)
{
    static const size_t limits[] = { 64 << 10, 128 << 10, 256 << 10, 1 << 20 };
    size_t which = below(state, 5);
    return which == 4 ? below(state, ((size_t)3 << 20) / element) : limits[which] / element - 1 + below(state, 3);
}

static bool reduces(enum kind kind)
{
    return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
}

/* About a limit: all blocks, a part of each, or a few among short ones. */
static void draw_long(uint64_t *state, struct one *c, int32_t size)
{
    enum { MAX_BYTES = 12 << 20, MAX_REDUCED = 1 << 20 };
    size_t element = comm_dtype_bytes(c->dtype), count = draw_about_limit(state, element), parts = (size_t)size;
    size_t most = reduces(c->kind) ? MAX_REDUCED / parts : MAX_BYTES / element / parts;
    if (c->form == PLAIN)
        c->count = count < most ? count : most;
    if (c->form == PLAIN && count * parts < most && below(state, 3) == 0)
        c->count = count * parts;
    for (size_t i = 0; c->form != PLAIN && i < 2; i++)
        c->counts[c->kind == ALL_TO_ALL ? below(state, parts) : 0][below(state, parts)] =
            i == 0 ? count : draw_about_limit(state, element);
}

comm_device draw_device(uint64_t *state)
{
    if (!served.has_gpu)
        return COMM_DEVICE_DEFAULT;
    return served.has_cpu && below(state, 2) ? COMM_DEVICE_CPU : gpu_device();
}

struct one draw_one(uint64_t *state, int32_t size, comm_device device)
{
    struct one c = { .device = device };
    do
        c.kind = (enum kind)below(state, KIND_COUNT);
    while (served.refuses[c.kind]);
    do {
        c.dtype = (comm_dtype)(1 + below(state, COMM_DTYPE_END - 1));
        c.redop = (comm_redop)below(state, COMM_REDOP_USER + 1);
    } while (reduces(c.kind) && !is_supported(&c, size));
    c.count = draw_count(state);
    c.root = (int32_t)below(state, (size_t)size);
    c.in_place = below(state, 2);
    c.rank_order = below(state, 4) == 0 && !on_gpu(&c);
    c.layout = draw(state);
    if (c.kind >= ALL_GATHER && c.kind <= ALL_TO_ALL)
        c.form = (enum form)below(state, 3);
    for (int i = 0; i < RANKS_MAX; i++)
        for (int j = 0; j < RANKS_MAX; j++)
            c.counts[i][j] = below(state, 4) == 0 ? 0 : draw_count(state) % 5000;
    if (below(state, reduces(c.kind) ? 20 : 8) == 0)
        draw_long(state, &c, size);
    if (c.form != PLAIN && c.kind == ALL_TO_ALL)
        c.in_place = false;
    if (c.form == LIST)
        c.in_place = false;
    return c;
}

/* ---- What the call moves, worked out from comm.h alone ---- */

/* How many elements rank `from` gives to rank `to`. */
static size_t moved(const struct one *c, int32_t from, int32_t to)
{
    if (c->form == PLAIN)
        return c->count;
    return c->kind == ALL_TO_ALL                             ? c->counts[from][to]
           : c->kind == SCATTER || c->kind == REDUCE_SCATTER ? c->counts[0][to]
                                                             : c->counts[0][from];
}

/* What `from` has for `to`, for operations that only move: any bits, whatever the dtype. */
static void write_moving(const struct one *c, uint8_t *at, int32_t from, int32_t to, size_t count)
{
    uint64_t state = c->layout + (uint64_t)(from * RANKS_MAX + to);
    size_t bytes = count * comm_dtype_bytes(c->dtype);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = draw(&state);
        memcpy(at + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static bool sends_blocks(const struct one *c)
{
    return c->kind == SCATTER || c->kind == REDUCE_SCATTER || c->kind == ALL_TO_ALL;
}

static bool receives_blocks(const struct one *c)
{
    return c->kind == ALL_GATHER || c->kind == GATHER || c->kind == ALL_TO_ALL;
}

/* The user's operation: associative, not commutative: keep the lower rank's element unless it is 0. */
static void first_nonzero(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    size_t bytes = comm_dtype_bytes(dtype);
    static const uint8_t zero[16];
    (void)context;
    for (size_t i = 0; i < count; i++)
        if (memcmp((const uint8_t *)in + i * bytes, zero, bytes) != 0)
            memcpy((uint8_t *)inout + i * bytes, (const uint8_t *)in + i * bytes, bytes);
}

static double reduced(const struct one *c, int32_t size, size_t i)
{
    if (c->redop != COMM_REDOP_USER)
        return value_reduced(c->redop, c->dtype, size, i);
    for (int32_t r = 0; r < size; r++)
        if (value_of(COMM_REDOP_MAX, c->dtype, r, size, i) != 0)
            return value_of(COMM_REDOP_MAX, c->dtype, r, size, i);
    return 0;
}

/* Lay blocks of these counts out: one after the other, or if `layout` is not 0 in any order with gaps. Returns the
 * number of elements from the first to the end of the last. */
static size_t lay_out(const size_t *counts, int32_t blocks, uint64_t layout, size_t *ret_offsets)
{
    int32_t order[RANKS_MAX];
    size_t at = 0;
    for (int32_t r = 0; r < blocks; r++)
        order[r] = r;
    for (int32_t r = blocks - 1; layout && r > 0; r--) {
        int32_t other = (int32_t)below(&layout, (size_t)r + 1), swapped = order[r];
        order[r] = order[other];
        order[other] = swapped;
    }
    for (int32_t r = 0; r < blocks; r++) {
        at += layout ? below(&layout, 4) : 0;
        ret_offsets[order[r]] = at;
        at += counts[order[r]];
    }
    return at;
}

/* 0: the blocks lie one after the other. */
static uint64_t layout_of(const struct one *c, int32_t rank, bool sending)
{
    bool has_offsets =
        c->form == UNEVEN && (sending ? sends_blocks(c) : receives_blocks(c)) && c->kind != REDUCE_SCATTER;
    return has_offsets && c->layout % 2 ? c->layout + (uint64_t)rank * 2 + sending : 0;
}

/* Hardly ever aligned; but a GPU reduces whole elements. */
static size_t skew_of(const struct one *c, uint64_t drawn)
{
    return drawn % 5 * (reduces(c->kind) && comm_device_kind(c->device) == COMM_DEVICE_CUDA ? 16 : 1);
}

static void fill_send(const struct one *c, struct memory *m, int32_t rank, int32_t size)
{
    size_t element = comm_dtype_bytes(c->dtype);
    int32_t blocks = sends_blocks(c) ? size : 1;
    for (int32_t to = 0; to < blocks; to++)
        m->send_counts[to] = moved(c, rank, to);
    m->send_bytes = lay_out(m->send_counts, blocks, layout_of(c, rank, true), m->send_offsets) * element;
    m->send_memory = gpu_buffer(c->device, m->send_bytes + MARGIN);
    m->send = m->send_memory + skew_of(c, c->layout / 2);
    memset(m->send_memory, POISON, m->send_bytes + MARGIN);
    for (int32_t to = 0; to < blocks; to++) {
        m->send_list[to] = m->send + m->send_offsets[to] * element;
        if (!reduces(c->kind))
            write_moving(c, m->send_list[to], rank, sends_blocks(c) ? to : 0, m->send_counts[to]);
    }
    comm_redop values = c->redop == COMM_REDOP_USER ? COMM_REDOP_MAX : c->redop;
    for (size_t i = 0; reduces(c->kind) && i * element < m->send_bytes; i++)
        value_write(c->dtype, value_of(values, c->dtype, rank, size, i), m->send + i * element);
}

static bool receives(const struct one *c, int32_t rank)
{
    return c->kind == BARRIER ? false : c->kind == REDUCE || c->kind == GATHER ? rank == c->root : true;
}

static int32_t source_of(const struct one *c, int32_t block, int32_t rank, int32_t size)
{
    return receives_blocks(c) ? block : c->kind == SEND_RECV ? (rank + size - 1) % size : c->root;
}

static void fill_expected(const struct one *c, struct memory *m, int32_t rank, int32_t size)
{
    size_t element = comm_dtype_bytes(c->dtype), first = 0;
    int32_t blocks = receives_blocks(c) ? size : 1;
    for (int32_t b = 0; b < blocks; b++)
        m->recv_counts[b] = moved(c, reduces(c->kind) ? rank : source_of(c, b, rank, size), rank);
    m->recv_bytes = lay_out(m->recv_counts, blocks, layout_of(c, rank, false), m->recv_offsets) * element;
    size_t skew = MARGIN + skew_of(c, c->layout / 16);
    m->recv_capacity = skew + m->recv_bytes + MARGIN;
    m->recv_memory = gpu_buffer(c->device, m->recv_capacity);
    m->expected = malloc(m->recv_capacity);
    memset(m->recv_memory, POISON, m->recv_capacity);
    memset(m->expected, POISON, m->recv_capacity);
    m->recv = m->recv_memory + skew;
    for (int32_t to = 0; c->kind == REDUCE_SCATTER && to < rank; to++)
        first += moved(c, 0, to);
    for (int32_t b = 0; b < blocks; b++) {
        uint8_t *at = m->expected + skew + m->recv_offsets[b] * element;
        m->recv_list[b] = m->recv + m->recv_offsets[b] * element;
        if (receives(c, rank) && !reduces(c->kind))
            write_moving(c, at, source_of(c, b, rank, size), sends_blocks(c) ? rank : 0, m->recv_counts[b]);
        for (size_t i = 0; receives(c, rank) && reduces(c->kind) && i < m->recv_counts[b]; i++)
            value_write(c->dtype, reduced(c, size, first + i), at + i * element);
    }
}

/* Move this rank's contribution to where the in-place form wants it. */
static void go_in_place(const struct one *c, struct memory *m, int32_t rank)
{
    bool at_root = rank == c->root;
    uint8_t *own;
    switch (c->kind) {
    case ALL_REDUCE:
    case ALL_TO_ALL:
        own = m->recv;
        break;
    case REDUCE:
        own = at_root ? m->recv : NULL;
        break;
    case ALL_GATHER:
        own = m->recv_list[rank];
        break;
    case GATHER:
        own = at_root ? m->recv_list[rank] : NULL;
        break;
    default:
        own = NULL; /* those whose long side is the sender's: recv_in_send */
        break;
    }
    if (!own)
        return;
    memcpy(own, m->send, m->send_bytes);
    m->send = own;
}

/* recv inside send: the own block of reduce_scatter and, at the root, of scatter. */
static uint8_t *recv_in_send(const struct one *c, const struct memory *m, int32_t rank)
{
    bool long_send = c->kind == REDUCE_SCATTER || (c->kind == SCATTER && rank == c->root);
    return c->in_place && long_send ? m->send_list[rank] : NULL;
}

/* ---- Calling ---- */

comm_status call(const struct one *c, comm_group *g, struct memory *m, comm_work **work)
{
    const comm_op_options *o = &m->options;
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    uint8_t *inside = recv_in_send(c, m, rank);
    void *recv = inside ? inside : receives(c, rank) ? m->recv : NULL;
    const size_t *send_offsets = layout_of(c, rank, true) ? m->send_offsets : NULL;
    const size_t *recv_offsets = layout_of(c, rank, false) ? m->recv_offsets : NULL;
    void *const *send_list = m->send_list, *const *recv_list = m->recv_list;
    const void *const *const_list = (const void *const *)send_list;
    switch (c->kind) {
    case BROADCAST:
        if (rank == c->root)
            memcpy(m->recv, m->send, m->send_bytes);
        return comm_broadcast(g, m->recv, c->count, c->dtype, c->root, o, work);
    case ALL_REDUCE:
        return comm_all_reduce(g, m->send, recv, c->count, c->dtype, c->redop, o, work);
    case REDUCE:
        return comm_reduce(g, m->send, recv, c->count, c->dtype, c->redop, c->root, o, work);
    case ALL_GATHER:
        return c->form == PLAIN ? comm_all_gather(g, m->send, recv, c->count, c->dtype, o, work)
               : c->form == UNEVEN
                   ? comm_all_gather_v(g, m->send, recv, m->recv_counts, recv_offsets, c->dtype, o, work)
                   : comm_all_gather_list(g, m->send, recv_list, m->recv_counts, c->dtype, o, work);
    case GATHER:
        return c->form == PLAIN    ? comm_gather(g, m->send, recv, c->count, c->dtype, c->root, o, work)
               : c->form == UNEVEN ? comm_gather_v(g, m->send, m->send_counts[0], recv, m->recv_counts, recv_offsets,
                                                   c->dtype, c->root, o, work)
                                   : comm_gather_list(g, m->send, m->send_counts[0], recv_list, m->recv_counts,
                                                      c->dtype, c->root, o, work);
    case SCATTER:
        return c->form == PLAIN    ? comm_scatter(g, m->send, recv, c->count, c->dtype, c->root, o, work)
               : c->form == UNEVEN ? comm_scatter_v(g, m->send, m->send_counts, send_offsets, recv, m->recv_counts[0],
                                                    c->dtype, c->root, o, work)
                                   : comm_scatter_list(g, const_list, m->send_counts, recv, m->recv_counts[0], c->dtype,
                                                       c->root, o, work);
    case REDUCE_SCATTER:
        return c->form == PLAIN ? comm_reduce_scatter(g, m->send, recv, c->count, c->dtype, c->redop, o, work)
               : c->form == UNEVEN
                   ? comm_reduce_scatter_v(g, m->send, recv, m->send_counts, c->dtype, c->redop, o, work)
                   : comm_reduce_scatter_list(g, const_list, recv, m->send_counts, c->dtype, c->redop, o, work);
    case ALL_TO_ALL:
        return c->form == PLAIN ? comm_all_to_all(g, m->send, recv, c->count, c->dtype, o, work)
               : c->form == UNEVEN
                   ? comm_all_to_all_v(g, m->send, m->send_counts, send_offsets, recv, m->recv_counts, recv_offsets,
                                       c->dtype, o, work)
                   : comm_all_to_all_list(g, const_list, m->send_counts, recv_list, m->recv_counts, c->dtype, o, work);
    case SEND_RECV: { /* a ring, and so a rank alone sends to itself */
        comm_status status = comm_send(g, m->send, c->count, c->dtype, (rank + 1) % size, o, work ? &m->sent : NULL);
        return status != COMM_OK
                   ? status
                   : comm_recv(g, recv, c->count, c->dtype, (rank + size - 1) % size, o, work);
    }
    default:
        return comm_barrier(g, o, work);
    }
}

void prepare(const struct one *c, comm_group *g, struct memory *m)
{
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    memset(m, 0, sizeof *m);
    m->options = (comm_op_options)COMM_OP_OPTIONS_INIT;
    m->options.tag = c->kind == SEND_RECV && !on_gpu(c) ? (int32_t)(c->count % 7) : 0;
    m->options.device = c->device;
    m->options.reduce_fn = reduces(c->kind) && c->redop == COMM_REDOP_USER ? first_nonzero : NULL;
    m->options.flags = c->rank_order ? COMM_OP_FLAG_RANK_ORDER : 0;
    value_write(c->dtype, value_factor(c->dtype, rank), m->factor);
    m->options.premul = reduces(c->kind) && c->redop == COMM_REDOP_PREMUL_SUM ? m->factor : NULL;
    fill_send(c, m, rank, size);
    fill_expected(c, m, rank, size);
    if (c->in_place)
        go_in_place(c, m, rank);
    m->send_copy = malloc(m->send_bytes + MARGIN);
    memcpy(m->send_copy, m->send_memory, m->send_bytes + MARGIN);
}

void forget(const struct one *c, struct memory *m)
{
    gpu_buffer_free(c->device, m->send_memory);
    free(m->send_copy);
    gpu_buffer_free(c->device, m->recv_memory);
    free(m->expected);
}

void describe(const struct one *c, const comm_group *g, char text[DESCRIBED_BYTES])
{
    static const char *const names[] = { "broadcast", "all_reduce",     "reduce",     "all_gather", "gather",
                                         "scatter",   "reduce_scatter", "all_to_all", "barrier",    "send_recv" };
    static const char *const forms[] = { "", "_v", "_list" };
    snprintf(text, DESCRIBED_BYTES, "%s%s %s %s count %zu root %d%s%s on '%s'", names[c->kind], forms[c->form],
             comm_dtype_name(c->dtype), comm_redop_name(c->redop), c->count, c->root, c->in_place ? " in place" : "",
             c->rank_order ? " in rank order" : "", comm_group_name(g));
}

void compare(const struct one *c, comm_group *g, struct memory *m, int number)
{
    char what[DESCRIBED_BYTES];
    int32_t rank = comm_group_rank(g);
    uint8_t *inside = recv_in_send(c, m, rank);
    size_t skew = (size_t)(m->recv - m->recv_memory);
    describe(c, g, what);
    if (m->sent)
        CHECK_OK(comm_work_wait(m->sent, 30000));
    comm_work_release(m->sent);
    if (inside)
        memcpy(m->recv, inside, m->recv_bytes);
    size_t i = first_difference(m->recv_memory, m->expected, m->recv_capacity);
    if (i < m->recv_capacity)
        ranks_fail(__FILE__, __LINE__, "case %d, rank %d: %s: byte %td of %zu is %02x, not %02x", number, rank,
                   what, (ptrdiff_t)i - (ptrdiff_t)skew, m->recv_bytes, m->recv_memory[i], m->expected[i]);
    if (!inside && memcmp(m->send_memory, m->send_copy, m->send_bytes + MARGIN) != 0)
        ranks_fail(__FILE__, __LINE__, "case %d, rank %d: %s: it has changed its input", number, rank, what);
    forget(c, m);
}

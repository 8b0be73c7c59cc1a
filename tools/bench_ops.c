/* The operations that comm-bench knows, as one table, and the buffers that each needs. What it takes to add one: its
 * row and its call. The data in the buffers is bench_data.c's. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { GUARD_BYTES = 64, POISON = 0xa5, GUARD = 0x5a, PINGPONG_TAG = 7 };

/* ---- The calls ---- */

static comm_status run_broadcast(struct bench_call *c, comm_work **ret_work)
{
    return comm_broadcast(c->group, c->recv, c->count, c->dtype, c->root, &c->options, ret_work);
}

static comm_status run_all_reduce(struct bench_call *c, comm_work **ret_work)
{
    return comm_all_reduce(c->group, c->send, c->recv, c->count, c->dtype, c->redop, &c->options, ret_work);
}

static comm_status run_reduce(struct bench_call *c, comm_work **ret_work)
{
    return comm_reduce(c->group, c->send, c->recv, c->count, c->dtype, c->redop, c->root, &c->options, ret_work);
}

static comm_status run_all_gather(struct bench_call *c, comm_work **ret_work)
{
    return comm_all_gather(c->group, c->send, c->recv, c->count, c->dtype, &c->options, ret_work);
}

static comm_status run_gather(struct bench_call *c, comm_work **ret_work)
{
    return comm_gather(c->group, c->send, c->recv, c->count, c->dtype, c->root, &c->options, ret_work);
}

static comm_status run_scatter(struct bench_call *c, comm_work **ret_work)
{
    return comm_scatter(c->group, c->send, c->recv, c->count, c->dtype, c->root, &c->options, ret_work);
}

static comm_status run_reduce_scatter(struct bench_call *c, comm_work **ret_work)
{
    return comm_reduce_scatter(c->group, c->send, c->recv, c->count, c->dtype, c->redop, &c->options, ret_work);
}

static comm_status run_all_to_all(struct bench_call *c, comm_work **ret_work)
{
    return comm_all_to_all(c->group, c->send, c->recv, c->count, c->dtype, &c->options, ret_work);
}

static comm_status run_barrier(struct bench_call *c, comm_work **ret_work)
{
    return comm_barrier(c->group, &c->options, ret_work);
}

/* There and back; the other ranks have nothing to do. It always waits. */
static comm_status run_pingpong(struct bench_call *c, comm_work **ret_work)
{
    if (ret_work)
        *ret_work = NULL;
    if (c->rank > 1)
        return COMM_OK;
    int32_t peer = 1 - c->rank;
    comm_status status = COMM_OK;
    if (c->rank == 0)
        status = comm_send(c->group, c->send, c->count, c->dtype, peer, &c->options, NULL);
    if (status == COMM_OK)
        status = comm_recv(c->group, c->recv, c->count, c->dtype, peer, &c->options, NULL);
    if (status == COMM_OK && c->rank == 1)
        status = comm_send(c->group, c->send, c->count, c->dtype, peer, &c->options, NULL);
    return status;
}

/* ---- Bus factors: bytes on the busiest link per byte of the operation, as in nccl-tests' PERFORMANCE.md ---- */

static double bus_one(int32_t ranks)
{
    (void)ranks;
    return 1;
}

static double bus_shared(int32_t ranks)
{
    return (double)(ranks - 1) / ranks;
}

static double bus_twice(int32_t ranks)
{
    return 2 * bus_shared(ranks);
}

static const struct bench_op table[] = {
    { "all_reduce", "reduce; everyone gets all of it", BENCH_ONE, BENCH_ONE, BENCH_EVERYWHERE, BENCH_EVERYWHERE,
      BENCH_FROM_ALL, 0, 1, bus_twice, run_all_reduce },
    { "broadcast", "the root's message to everyone", BENCH_NOTHING, BENCH_ONE, BENCH_EVERYWHERE, BENCH_EVERYWHERE,
      BENCH_FROM_ROOT, 0, 0, bus_one, run_broadcast },
    { "reduce", "reduce; the root gets it", BENCH_ONE, BENCH_ONE, BENCH_EVERYWHERE, BENCH_AT_ROOT,
      BENCH_FROM_ALL, 0, 1, bus_one, run_reduce },
    { "all_gather", "everyone's block to everyone", BENCH_ONE, BENCH_PER_RANK, BENCH_EVERYWHERE, BENCH_EVERYWHERE,
      BENCH_FROM_BLOCKS, 0, 0, bus_shared, run_all_gather },
    { "reduce_scatter", "reduce; everyone gets a block of it", BENCH_PER_RANK, BENCH_ONE, BENCH_EVERYWHERE,
      BENCH_EVERYWHERE, BENCH_FROM_ALL, 1, 0, bus_shared, run_reduce_scatter },
    { "all_to_all", "a block from everyone to everyone", BENCH_PER_RANK, BENCH_PER_RANK, BENCH_EVERYWHERE,
      BENCH_EVERYWHERE, BENCH_FROM_BLOCKS, 1, 0, bus_shared, run_all_to_all },
    { "gather", "everyone's block to the root", BENCH_ONE, BENCH_PER_RANK, BENCH_EVERYWHERE, BENCH_AT_ROOT,
      BENCH_FROM_BLOCKS, 0, 0, bus_shared, run_gather },
    { "scatter", "a block of the root's to everyone", BENCH_PER_RANK, BENCH_ONE, BENCH_AT_ROOT, BENCH_EVERYWHERE,
      BENCH_FROM_ROOT, 1, 0, bus_shared, run_scatter },
    { "barrier", "returns once every rank has called it", BENCH_NOTHING, BENCH_NOTHING, BENCH_EVERYWHERE,
      BENCH_EVERYWHERE, BENCH_FROM_NONE, 0, 0, bus_one, run_barrier },
    { "pingpong", "a message between ranks 0 and 1, one way", BENCH_ONE, BENCH_ONE, BENCH_PAIR, BENCH_PAIR,
      BENCH_FROM_PEER, 0, 0, bus_one, run_pingpong },
};

const struct bench_op *bench_op_at(size_t index)
{
    return index < sizeof table / sizeof *table ? &table[index] : NULL;
}

const struct bench_op *bench_op_find(const char *name)
{
    const struct bench_op *op;
    for (size_t i = 0; (op = bench_op_at(i)); i++)
        if (strcmp(op->name, name) == 0)
            return op;
    return NULL;
}

/* ---- Buffers ---- */

static int is_here(enum bench_where where, const struct bench_call *c)
{
    return where == BENCH_EVERYWHERE || (where == BENCH_AT_ROOT ? c->rank == c->root : c->rank < 2);
}

static size_t side_count(enum bench_side side, enum bench_where where, const struct bench_call *c)
{
    if (side == BENCH_NOTHING || !is_here(where, c))
        return 0;
    return side == BENCH_ONE ? c->count : c->count * (size_t)c->ranks;
}

static int is_on_device(const struct bench_call *c)
{
    return comm_device_kind(c->options.device) == COMM_DEVICE_CUDA;
}

/* Memory for `count` elements (at least one byte, so that every side a rank has is an address) and a guard behind. */
static comm_status allocate(struct bench_call *c, int index, size_t count)
{
    size_t bytes = count * comm_dtype_bytes(c->dtype), capacity = (bytes + GUARD_BYTES + 4095) & ~(size_t)4095;
    comm_status status = COMM_OK;
    void *data = NULL;
    if (c->wants_registered && !is_on_device(c))
        status = comm_mem_alloc(c->group, capacity, c->options.device, &data, &c->registered[index]);
    else if (!(data = aligned_alloc(4096, capacity)))
        status = COMM_ERR_NO_MEMORY;
    if (status != COMM_OK)
        return status;
    c->memory[index] = data;
    c->memory_bytes[index] = bytes;
    memset(c->memory[index], 0, bytes);
    memset(c->memory[index] + bytes, GUARD, GUARD_BYTES);
    if (!is_on_device(c))
        return COMM_OK;
    status = comm_mem_alloc(c->group, capacity, c->options.device, &c->device_data[index], &c->registered[index]);
    if (status == COMM_OK)
        bench_device_copy(c->device_data[index], c->memory[index], bytes + GUARD_BYTES);
    return status;
}

/* A side of the call begins at this byte of what was allocated. */
static void place(const struct bench_call *c, int index, size_t offset, char **ret_side, char **ret_host)
{
    *ret_host = c->memory[index] + offset;
    *ret_side = (is_on_device(c) ? c->device_data[index] : c->memory[index]) + offset;
}

/* One buffer for both sides: where they differ in length, the shorter one is this rank's block of the longer. */
static comm_status allocate_in_place(struct bench_call *c)
{
    size_t most = c->send_count > c->recv_count ? c->send_count : c->recv_count;
    size_t own = (size_t)c->rank * c->count * comm_dtype_bytes(c->dtype);
    comm_status status = allocate(c, 0, most);
    if (status != COMM_OK)
        return status;
    place(c, 0, c->send_count < most ? own : 0, &c->send, &c->send_host);
    place(c, 0, c->recv_count < most ? own : 0, &c->recv, &c->recv_host);
    return COMM_OK;
}

comm_status bench_call_init(struct bench_call *c, const struct bench_op *op, comm_group *group, size_t bytes,
                            const struct bench_call_options *o)
{
    *c = (struct bench_call){ .op = op, .group = group, .root = o->root, .dtype = o->dtype, .redop = -1,
                              .options = COMM_OP_OPTIONS_INIT };
    c->options.device = o->device;
    c->options.stream = o->stream;
    c->wants_registered = o->registered;
    c->options.flags = o->on_stream ? COMM_OP_FLAG_ON_STREAM : 0;
    c->rank = comm_group_rank(group);
    c->ranks = comm_group_size(group);
    if (op->from == BENCH_FROM_ALL)
        c->redop = o->redop;
    if (c->redop == COMM_REDOP_PREMUL_SUM) {
        bench_data_premul(c->premul, c->dtype);
        c->options.premul = c->premul;
    }
    if (op->from == BENCH_FROM_PEER && !is_on_device(c)) /* NCCL has no tags */
        c->options.tag = PINGPONG_TAG;
    size_t elements = bytes / comm_dtype_bytes(c->dtype);
    int has_blocks = op->send == BENCH_PER_RANK || op->recv == BENCH_PER_RANK;
    c->count = has_blocks ? elements / (size_t)c->ranks : elements;
    if (c->count == 0 && bytes > 0)
        c->count = 1;
    c->send_count = side_count(op->send, op->send_where, c);
    c->recv_count = side_count(op->recv, op->recv_where, c);
    int wants = o->in_place < 0 ? op->in_place_by_default : o->in_place;
    int has_send = op->send != BENCH_NOTHING && is_here(op->send_where, c);
    int has_recv = op->recv != BENCH_NOTHING && is_here(op->recv_where, c);
    c->in_place = wants && has_send && has_recv && op->from != BENCH_FROM_PEER;
    comm_status status = COMM_OK;
    if (c->in_place)
        return allocate_in_place(c);
    if (has_send)
        status = allocate(c, 0, c->send_count);
    if (status == COMM_OK && has_send)
        place(c, 0, 0, &c->send, &c->send_host);
    if (status == COMM_OK && has_recv)
        status = allocate(c, 1, c->recv_count);
    if (status == COMM_OK && has_recv)
        place(c, 1, 0, &c->recv, &c->recv_host);
    return status;
}

void bench_call_finish(struct bench_call *c)
{
    if (c->graph)
        bench_device_destroy_graph(c->graph);
    for (int i = 0; i < 2; i++) {
        if (!c->registered[i] || is_on_device(c))
            free(c->memory[i]);
        comm_mem_release(c->registered[i]);
    }
    memset(c, 0, sizeof *c);
}

/* The device gets what the CPU's memory has. */
static void upload(const struct bench_call *c)
{
    for (int i = 0; i < 2; i++)
        if (c->device_data[i])
            bench_device_copy(c->device_data[i], c->memory[i], c->memory_bytes[i] + GUARD_BYTES);
}

static void download(const struct bench_call *c)
{
    for (int i = 0; i < 2; i++)
        if (c->device_data[i])
            bench_device_copy(c->memory[i], c->device_data[i], c->memory_bytes[i] + GUARD_BYTES);
}

void bench_call_clear(struct bench_call *c)
{
    for (int i = 0; i < 2; i++)
        if (c->memory[i])
            memset(c->memory[i], 0, c->memory_bytes[i]);
    upload(c);
}

comm_status bench_reduce_values(const struct bench_call *c, void *values, size_t count, comm_dtype dtype,
                                comm_redop redop)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    size_t bytes = count * comm_dtype_bytes(dtype);
    comm_memory *memory = NULL;
    comm_status status = COMM_OK;
    void *data = values;
    options.device = c->options.device;
    if (is_on_device(c)) {
        status = comm_mem_alloc(c->group, bytes, options.device, &data, &memory);
        if (status != COMM_OK)
            return status;
        bench_device_copy(data, values, bytes);
    }
    status = comm_all_reduce(c->group, data, data, count, dtype, redop, &options, NULL);
    if (status == COMM_OK && is_on_device(c))
        bench_device_copy(values, data, bytes);
    comm_mem_release(memory);
    return status;
}

/* ---- Checking ---- */

void bench_call_prepare(struct bench_call *c, uint64_t seed)
{
    for (int i = 0; i < 2; i++)
        if (c->memory[i])
            memset(c->memory[i], POISON, c->memory_bytes[i]);
    if (c->send)
        bench_data_fill(c->send_host, c->dtype, c->redop, seed, c->rank, 0, c->send_count);
    else if (c->op->from == BENCH_FROM_ROOT && c->op->send == BENCH_NOTHING && c->rank == c->root)
        bench_data_fill(c->recv_host, c->dtype, c->redop, seed, c->rank, 0, c->recv_count); /* broadcast */
    upload(c);
}

static uint64_t wrong_guards(const struct bench_call *c)
{
    uint64_t wrong = 0;
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; c->memory[i] && k < GUARD_BYTES; k++)
            wrong += (unsigned char)c->memory[i][c->memory_bytes[i] + k] != GUARD;
    return wrong;
}

uint64_t bench_call_wrong(const struct bench_call *c, uint64_t seed)
{
    download(c);
    uint64_t wrong = wrong_guards(c);
    size_t first = c->op->own_part ? (size_t)c->rank * c->count : 0;
    size_t element_bytes = comm_dtype_bytes(c->dtype);
    if (c->send && !c->in_place) /* an input must stay as it was */
        wrong += bench_data_wrong(c->send_host, c->dtype, c->redop, seed, c->rank, 0, c->send_count);
    if (!c->recv)
        return wrong;
    switch (c->op->from) {
    case BENCH_FROM_NONE:
        break;
    case BENCH_FROM_ROOT:
        wrong += bench_data_wrong(c->recv_host, c->dtype, c->redop, seed, c->root, first, c->recv_count);
        break;
    case BENCH_FROM_PEER:
        wrong += bench_data_wrong(c->recv_host, c->dtype, c->redop, seed, 1 - c->rank, first, c->recv_count);
        break;
    case BENCH_FROM_ALL:
        wrong += bench_data_wrong_reduced(c->recv_host, c->dtype, c->redop, seed, c->ranks, first, c->recv_count);
        break;
    case BENCH_FROM_BLOCKS:
        for (int32_t r = 0; r < c->ranks; r++)
            wrong += bench_data_wrong(c->recv_host + (size_t)r * c->count * element_bytes, c->dtype, c->redop, seed, r,
                                      first, c->count);
        break;
    }
    return wrong;
}

/* Collectives: drawn at random, with uneven blocks in all their forms, and compared with what one process alone works
 * out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_tcp/tcp.h"
#include "engine.h"
#include "core/op.h"

enum form { PLAIN, UNEVEN, LIST };

/* One collective, as all ranks call it. */
struct collective {
    struct collective *next;
    struct team *team;
    int32_t kind, root;
    enum form form;
    comm_dtype dtype;
    comm_redop redop;
    size_t element_bytes;
    size_t count;     /* vectors, and blocks of plain forms */
    size_t *counts;   /* [size * size]: from rank i to rank j; of a vector, counts[0] */
    size_t *columns;  /* [size * size]: the same, by receiver */
    int in_place, rank_order;
    uint64_t content;
    uint8_t factor[16];
    uint8_t **reduced; /* [size]: the result's block r, once a caller has asked; of a vector only [0] */
    int32_t parts_left;
};

/* ---- Elements ---- */

static int reduces(int32_t kind)
{
    return kind == COMM_OP_ALL_REDUCE || kind == COMM_OP_REDUCE || kind == COMM_OP_REDUCE_SCATTER;
}

static int is_vector(int32_t kind)
{
    return kind == COMM_OP_BROADCAST || kind == COMM_OP_ALL_REDUCE || kind == COMM_OP_REDUCE;
}

static int is_rooted(int32_t kind)
{
    return kind == COMM_OP_BROADCAST || kind == COMM_OP_REDUCE || kind == COMM_OP_GATHER || kind == COMM_OP_SCATTER;
}

/* Does each rank have the same for all others (one block), or a block for each? */
static int sends_blocks(int32_t kind)
{
    return kind == COMM_OP_SCATTER || kind == COMM_OP_REDUCE_SCATTER || kind == COMM_OP_ALL_TO_ALL;
}

static int receives_blocks(int32_t kind)
{
    return kind == COMM_OP_ALL_GATHER || kind == COMM_OP_GATHER || kind == COMM_OP_ALL_TO_ALL;
}

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a + 0x9e3779b97f4a7c15u * (b + 1);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void content_write(uint8_t *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = mix(seed, i);
        memcpy(at + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static uint64_t block_content(const struct collective *c, int32_t from, int32_t to)
{
    return mix(c->content, (uint64_t)from * 1000 + (uint64_t)(sends_blocks(c->kind) ? to : 0));
}

/* What rank `from` brings for block `to` to a reduction: whole numbers, also as complex ones,
 * so that no order rounds. */
static uint64_t value(uint64_t content, size_t i)
{
    return mix(content, i) >> 24;
}

static void write_value(const struct collective *c, uint8_t *at, uint64_t v)
{
    if (c->dtype == COMM_DTYPE_C128) {
        double pair[2] = { (double)(v & 0xfffff), 0 };
        memcpy(at, pair, sizeof pair);
    } else {
        memcpy(at, &v, c->element_bytes); /* little-endian, as x86 and arm64 are */
    }
}

static uint64_t masked(const struct collective *c, uint64_t v)
{
    if (c->dtype == COMM_DTYPE_C128)
        return v & 0xfffff;
    return c->element_bytes < 8 ? v & (((uint64_t)1 << 8 * c->element_bytes) - 1) : v;
}

static void user_reduce(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    const uint32_t *a = in;
    uint32_t *b = inout;
    (void)dtype;
    (void)context;
    for (size_t i = 0; i < count; i++)
        b[i] += 3 * a[i];
}

static uint64_t combine(const struct collective *c, uint64_t a, uint64_t b)
{
    switch (c->redop) {
    case COMM_REDOP_MAX:
        return a > b ? a : b;
    case COMM_REDOP_BXOR:
        return a ^ b;
    case COMM_REDOP_USER:
        return 3 * a + b;
    default:
        return a + b;
    }
}

static size_t block_count(const struct collective *c, int32_t from, int32_t to)
{
    return c->counts[from * c->team->size + to];
}

static uint8_t *reduced_block(struct collective *c, int32_t block)
{
    int32_t size = c->team->size, at = sends_blocks(c->kind) ? block : 0;
    if (c->reduced[at])
        return c->reduced[at];
    size_t count = block_count(c, 0, at);
    c->reduced[at] = malloc(count * c->element_bytes + 8);
    for (size_t i = 0; i < count; i++) {
        uint64_t result = 0;
        for (int32_t r = 0; r < size; r++) {
            uint64_t v = masked(c, value(block_content(c, r, at), i)) * (c->redop == COMM_REDOP_PREMUL_SUM ? 3 : 1);
            result = r == 0 ? v : combine(c, result, v);
            if (c->dtype != COMM_DTYPE_C128)
                result = masked(c, result);
        }
        uint8_t *element = c->reduced[at] + i * c->element_bytes;
        if (c->dtype == COMM_DTYPE_C128)
            memcpy(element, (const double[]){ (double)result, 0 }, 2 * sizeof(double));
        else
            write_value(c, element, result);
    }
    return c->reduced[at];
}

static void write_block(const struct collective *c, uint8_t *at, int32_t from, int32_t to)
{
    size_t count = block_count(c, from, to);
    uint64_t content = block_content(c, from, to);
    if (!reduces(c->kind)) {
        content_write(at, count * c->element_bytes, content);
        return;
    }
    for (size_t i = 0; i < count; i++)
        write_value(c, at + i * c->element_bytes, masked(c, value(content, i)));
}

/* ---- Drawing ---- */

size_t draw_bytes(size_t most)
{
    static const size_t limits[] = {
        0, 64, MATCH_UNEXPECTED_INLINE, 1000, 4096, TCP_RX_BYTES, 100000, 256 << 10, 300000, 1 << 20,
        1125000, 3 << 20, TCP_RX_BYTES - PORT_FRAME_COST, (1 << 20) - PORT_FRAME_COST,
    };
    enum { LIMITS = sizeof limits / sizeof limits[0] };
    if (one_in(3))
        return below(most < 2000 ? most + 1 : 2000);
    size_t limit = one_in(4) ? (size_t)world->eager_bytes : limits[below(LIMITS)];
    size_t bytes = limit + below(3);
    bytes = bytes ? bytes - 1 : 0;
    return bytes <= most ? bytes : below(most + 1);
}

static void draw_type(struct collective *c)
{
    static const comm_dtype types[] = { COMM_DTYPE_U8, COMM_DTYPE_U16, COMM_DTYPE_U32, COMM_DTYPE_U64,
                                        COMM_DTYPE_C128 };
    static const comm_redop ops[] = { COMM_REDOP_SUM,  COMM_REDOP_SUM,        COMM_REDOP_MAX,
                                      COMM_REDOP_BXOR, COMM_REDOP_PREMUL_SUM, COMM_REDOP_USER };
    c->dtype = types[below(5)];
    c->redop = reduces(c->kind) ? ops[below(6)] : COMM_REDOP_SUM;
    if (c->dtype == COMM_DTYPE_C128 && c->redop != COMM_REDOP_PREMUL_SUM)
        c->redop = COMM_REDOP_SUM;
    if (c->redop == COMM_REDOP_USER)
        c->dtype = COMM_DTYPE_U32;
    c->element_bytes = comm_dtype_bytes(c->dtype);
    c->rank_order = reduces(c->kind) && one_in(6);
    write_value(c, c->factor, 3);
}

/* Counts that every rank knows, in elements; `most` bytes for a block. */
static void draw_counts(struct collective *c, size_t most)
{
    int32_t size = c->team->size;
    int a_long_one = one_in(2); /* one long block among short ones */
    int32_t which = (int32_t)below((size_t)size);
    c->count = draw_bytes(most) / c->element_bytes;
    for (int32_t i = 0; i < size; i++)
        for (int32_t j = 0; j < size; j++) {
            size_t bytes = draw_bytes(a_long_one && (i + j) % size != which ? most / 50 : most);
            c->counts[i * size + j] = c->form == PLAIN ? c->count : bytes / c->element_bytes;
        }
    /* A block for all is the same in the whole row; a reduction's block is the same in the whole column. */
    for (int32_t i = 0; i < size; i++)
        for (int32_t j = 0; j < size; j++) {
            if (!sends_blocks(c->kind))
                c->counts[i * size + j] = c->counts[i * size];
            else if (c->kind != COMM_OP_ALL_TO_ALL)
                c->counts[i * size + j] = c->counts[j];
        }
    for (int32_t i = 0; i < size; i++)
        for (int32_t j = 0; j < size; j++)
            c->columns[j * size + i] = c->counts[i * size + j];
}

/* ---- Buffers ---- */

/* Lay `blocks` blocks out in an area, in any order and with gaps unless they are `dense`. */
static void lay_out(const struct collective *c, const size_t *counts, int dense, struct area *area,
                    size_t **ret_offsets)
{
    int32_t size = c->team->size;
    size_t at = 0, *offsets = malloc((size_t)size * sizeof *offsets);
    int32_t *order = malloc((size_t)size * sizeof *order);
    for (int32_t r = 0; r < size; r++)
        order[r] = r;
    for (int32_t r = size; r-- > 1 && !dense;) {
        int32_t other = (int32_t)below((size_t)r + 1), kept = order[r];
        order[r] = order[other];
        order[other] = kept;
    }
    for (int32_t i = 0; i < size; i++) {
        at += dense ? 0 : below(4);
        offsets[order[i]] = at;
        at += counts[order[i]];
    }
    area_open(area, at * c->element_bytes);
    free(order);
    *ret_offsets = offsets;
}

static void **list_of(const struct collective *c, const struct area *area, const size_t *offsets)
{
    void **list = malloc((size_t)c->team->size * sizeof *list);
    for (int32_t r = 0; r < c->team->size; r++)
        list[r] = area->memory + MARGIN + offsets[r] * c->element_bytes;
    return list;
}

/* A side that has a block for each rank. */
static void make_blocks(struct collective *c, struct area *area, const size_t *counts, size_t **ret_offsets,
                        void ***ret_list, comm_buffers *ret_side)
{
    int dense = c->form == PLAIN || (c->form == UNEVEN && (c->kind == COMM_OP_REDUCE_SCATTER || one_in(2)));
    lay_out(c, counts, dense, area, ret_offsets);
    if (c->form == PLAIN) {
        *ret_side = (comm_buffers){ .data = area->memory + MARGIN, .count = c->count };
    } else if (c->form == UNEVEN) {
        *ret_side = (comm_buffers){ .data = area->memory + MARGIN, .counts = counts };
        ret_side->offsets = dense ? NULL : *ret_offsets;
    } else {
        *ret_list = list_of(c, area, *ret_offsets);
        *ret_side = (comm_buffers){ .list = *ret_list, .counts = counts };
    }
}

static int has_send(const struct collective *c, int32_t rank)
{
    int only_root = c->kind == COMM_OP_BROADCAST || c->kind == COMM_OP_SCATTER;
    return c->kind != COMM_OP_BARRIER && (!only_root || rank == c->root);
}

static int has_recv(const struct collective *c, int32_t rank)
{
    int only_root = c->kind == COMM_OP_REDUCE || c->kind == COMM_OP_GATHER;
    return c->kind != COMM_OP_BARRIER && (!only_root || rank == c->root) &&
           (c->kind != COMM_OP_BROADCAST || rank != c->root);
}

static void make_send(struct collective *c, struct part *part)
{
    int32_t rank = part->member->rank;
    const size_t *row = c->counts + rank * c->team->size;
    if (sends_blocks(c->kind)) {
        make_blocks(c, &part->send, row, &part->send_offsets, &part->send_list, &part->op.send);
        for (int32_t to = 0; to < c->team->size; to++)
            write_block(c, part->send.memory + MARGIN + part->send_offsets[to] * c->element_bytes, rank, to);
        return;
    }
    area_open(&part->send, row[0] * c->element_bytes);
    write_block(c, part->send.memory + MARGIN, rank, 0);
    /* The core knows the count of all_gather's own block from the others. */
    size_t count = c->form != PLAIN && c->kind == COMM_OP_ALL_GATHER ? 0 : row[0];
    part->op.send = (comm_buffers){ .data = part->send.memory + MARGIN, .count = count };
}

static void make_recv(struct collective *c, struct part *part)
{
    int32_t rank = part->member->rank;
    const size_t *column = c->columns + rank * c->team->size;
    if (receives_blocks(c->kind)) {
        make_blocks(c, &part->recv, column, &part->recv_offsets, &part->recv_list, &part->op.recv);
        return;
    }
    size_t bytes = column[0] * c->element_bytes;
    area_open(&part->recv, bytes);
    size_t count = c->form != PLAIN && c->kind == COMM_OP_REDUCE_SCATTER ? 0 : column[0];
    part->op.recv = (comm_buffers){ .data = part->recv.memory + MARGIN, .count = count };
}

/* In place: what is sent lies where the result will be. */
static void make_in_place(struct collective *c, struct part *part)
{
    int32_t rank = part->member->rank, size = c->team->size;
    make_recv(c, part);
    uint8_t *at = part->recv.memory + MARGIN;
    if (c->kind == COMM_OP_ALL_GATHER)
        at += part->recv_offsets[rank] * c->element_bytes;
    part->op.send = (comm_buffers){ .data = at, .count = c->count };
    for (int32_t to = 0; to < (c->kind == COMM_OP_ALL_TO_ALL ? size : 1); to++)
        write_block(c, at + (size_t)to * c->count * c->element_bytes, rank, to);
}

static int may_be_in_place(const struct collective *c, int32_t rank)
{
    return c->in_place && c->form == PLAIN &&
           (c->kind == COMM_OP_ALL_REDUCE || (c->kind == COMM_OP_REDUCE && rank == c->root) ||
            c->kind == COMM_OP_ALL_GATHER || c->kind == COMM_OP_ALL_TO_ALL);
}

static void add_part(struct collective *c, int32_t rank)
{
    struct member *member = &c->team->members[rank];
    struct part *part = part_new(member, c);
    part->op = (comm_op){ .kind = c->kind, .dtype = c->dtype, .redop = c->redop };
    part->op.root = is_rooted(c->kind) ? c->root : -1;
    part->op.flags = (c->form != PLAIN ? COMM_OP_FLAG_UNEVEN : 0) | (c->rank_order ? COMM_OP_FLAG_RANK_ORDER : 0);
    part->op.premul = c->redop == COMM_REDOP_PREMUL_SUM ? c->factor : NULL;
    part->op.reduce_fn = c->redop == COMM_REDOP_USER ? user_reduce : NULL;
    if (may_be_in_place(c, rank)) {
        make_in_place(c, part);
    } else {
        if (has_send(c, rank))
            make_send(c, part);
        if (has_recv(c, rank))
            make_recv(c, part);
        if (c->kind == COMM_OP_BROADCAST) /* one buffer, as the core says it; what the rank has not is dropped */
            part->op.send = part->op.recv = has_send(c, rank) ? part->op.send : part->op.recv;
    }
    member_append(member, part);
}

static struct collective *call_new(struct team *team, int32_t kind, enum form form)
{
    size_t size = (size_t)team->size;
    struct collective *c = calloc(1, sizeof *c);
    c->team = team;
    c->kind = kind ? kind : 1 + (int32_t)below(COMM_OP_BARRIER);
    c->root = (int32_t)below(size);
    c->form = is_vector(c->kind) || c->kind == COMM_OP_BARRIER ? PLAIN : form;
    c->in_place = one_in(2);
    c->content = draw();
    c->counts = calloc(size * size, sizeof *c->counts);
    c->columns = calloc(size * size, sizeof *c->columns);
    c->reduced = calloc(size, sizeof *c->reduced);
    c->parts_left = team->size;
    draw_type(c);
    /* Of all ranks' buffers together no more than the budget,
     * and no more slices than can be gone through in a while. */
    size_t shares = is_vector(c->kind) ? size : size * size, most = world->budget / shares;
    if (team->slice_bytes && most > 64 * (size_t)team->slice_bytes)
        most = 64 * (size_t)team->slice_bytes;
    draw_counts(c, most < 3 << 20 ? most : 3 << 20);
    c->next = world->calls;
    world->calls = c;
    for (int32_t r = 0; r < team->size; r++)
        add_part(c, r);
    return c;
}

void call_draw(struct team *team, int32_t kind)
{
    call_new(team, kind, (enum form)below(3));
}

void call_draw_disagreeing(struct team *team, int32_t rank)
{
    struct collective *c = call_new(team, COMM_OP_ALL_TO_ALL, UNEVEN);
    size_t *column = c->columns + rank * team->size; /* what it expects; the others read their own */
    for (int32_t from = 0; from < team->size; from++)
        if (from != rank && column[from] > 0 && one_in(2))
            column[from]--;
}

/* ---- Checking ---- */

static void complain_about(const struct part *part, const char *what)
{
    static const char *const forms[] = { [PLAIN] = "", [UNEVEN] = "_v", [LIST] = "_list" };
    const struct collective *c = part->call;
    complain("group %s (algo %s), rank %d of %d: %s #%llu%s, root %d, count %zu of %s, %s%s: %s", c->team->name,
             c->team->algo, part->member->rank, c->team->size, comm__op_name(c->kind), (unsigned long long)part->op.seq,
             forms[c->form], c->root, c->count, comm_dtype_name(c->dtype),
             reduces(c->kind) ? comm_redop_name(c->redop) : "",
             may_be_in_place(c, part->member->rank) ? ", in place" : "", what);
}

static void write_result(struct collective *c, const struct part *part, uint8_t *at)
{
    int32_t rank = part->member->rank;
    if (reduces(c->kind)) {
        memcpy(at, reduced_block(c, rank), block_count(c, 0, sends_blocks(c->kind) ? rank : 0) * c->element_bytes);
    } else if (!receives_blocks(c->kind)) {
        write_block(c, at, c->root, rank);
    } else {
        for (int32_t from = 0; from < c->team->size; from++)
            write_block(c, at + part->recv_offsets[from] * c->element_bytes, from, rank);
    }
}

static void check_recv(struct collective *c, const struct part *part)
{
    struct area right;
    area_open(&right, part->recv.bytes);
    write_result(c, part, right.memory + MARGIN);
    size_t bytes = right.bytes + 2 * MARGIN;
    for (size_t i = 0; i < bytes && memcmp(right.memory, part->recv.memory, bytes) != 0; i++)
        if (right.memory[i] != part->recv.memory[i]) {
            char what[128];
            snprintf(what, sizeof what, "byte %zd of %zu of the result is %d, not %d", (ssize_t)i - MARGIN, right.bytes,
                     part->recv.memory[i], right.memory[i]);
            complain_about(part, what);
            break;
        }
    area_close(&right);
}

static void check_send(const struct collective *c, const struct part *part)
{
    struct area right;
    area_open(&right, part->send.bytes);
    for (int32_t to = 0; to < (sends_blocks(c->kind) ? c->team->size : 1); to++)
        write_block(c, right.memory + MARGIN + (part->send_offsets ? part->send_offsets[to] * c->element_bytes : 0),
                    part->member->rank, to);
    if (memcmp(right.memory, part->send.memory, right.bytes + 2 * MARGIN) != 0)
        complain_about(part, "what was to be sent has changed");
    area_close(&right);
}

void call_check(struct part *part)
{
    struct collective *c = part->call;
    if (part->status != COMM_OK && !c->team->doomed)
        complain_about(part, part->error);
    if (part->status == COMM_OK && part->recv.memory)
        check_recv(c, part);
    if (part->status == COMM_OK && part->send.memory)
        check_send(c, part);
    if (--c->parts_left > 0)
        return;
    for (int32_t r = 0; r < c->team->size; r++) {
        free(c->reduced[r]);
        c->reduced[r] = NULL;
    }
}

void calls_free(void)
{
    while (world->calls) {
        struct collective *c = world->calls;
        world->calls = c->next;
        for (int32_t r = 0; r < c->team->size; r++)
            free(c->reduced[r]);
        free(c->counts);
        free(c->columns);
        free(c->reduced);
        free(c);
    }
}

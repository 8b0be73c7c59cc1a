/* Does a backend do what comm.h says? Usage: collectives BACKEND [SEED [CASES]].
 *
 * Cases are drawn at random from all operations, dtypes, reduce ops, counts, roots, forms (plain, _v, _list), in and
 * out of place, waiting, asynchronous and coalesced, on the world and on groups made from it. All ranks draw the same
 * sequence. The seed is printed; give it again to repeat a failure. Every result is compared with values.c, and every
 * output is poisoned first, with a margin behind it that must stay poisoned. */
#include <comm/comm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loopback.h"
#include "ranks.h"
#include "values.h"

enum { POISON = 0xa5, MARGIN = 64, RANKS_MOST = 16, WAVE_MOST = 4 };

struct suite {
    const char *backend;
    uint64_t seed;
    int cases;
    bool threads;
};

enum form { PLAIN, UNEVEN, LIST };
enum mode { WAITING, ASYNC, COALESCED };

enum kind {
    BROADCAST,
    ALL_REDUCE,
    REDUCE,
    ALL_GATHER,
    GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BARRIER,
    SEND_RECV,
    KIND_COUNT,
};

/* One call, as all ranks draw it. */
struct one {
    enum kind kind;
    enum form form;
    comm_dtype dtype;
    comm_redop redop;
    size_t count;                          /* plain forms */
    size_t counts[RANKS_MOST][RANKS_MOST]; /* [from][to] of all_to_all; else [0] */
    int32_t root;
    bool in_place;
};

/* One rank's memory for it. */
struct memory {
    uint8_t *send, *recv, *expected; /* recv and expected with MARGIN behind */
    size_t send_bytes, recv_bytes;
    void *send_list[RANKS_MOST], *recv_list[RANKS_MOST];
    size_t send_counts[RANKS_MOST], recv_counts[RANKS_MOST];
    uint8_t factor[16];
    comm_op_options options;
};

/* ---- Drawing ---- */

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(uint64_t *state, size_t end)
{
    return (size_t)(draw(state) % end);
}

static size_t draw_count(uint64_t *state)
{
    static const size_t counts[] = { 0, 1, 1, 2, 3, 5, 8, 13, 64, 257, 1000, 1023, 4096, 10007, 40000, 150001 };
    return counts[below(state, below(state, 8) == 0 ? 16 : 12)];
}

static bool reduces(enum kind kind)
{
    return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
}

static struct one draw_one(uint64_t *state, int32_t size)
{
    struct one c = { .kind = (enum kind)below(state, KIND_COUNT) };
    do {
        c.dtype = (comm_dtype)(1 + below(state, COMM_DTYPE_BYTE));
        c.redop = (comm_redop)below(state, COMM_REDOP_USER + 1);
    } while (reduces(c.kind) && !comm_redop_takes(c.redop, c.dtype));
    c.count = draw_count(state);
    c.root = (int32_t)below(state, (size_t)size);
    c.in_place = below(state, 2);
    if (c.kind >= ALL_GATHER && c.kind <= ALL_TO_ALL)
        c.form = (enum form)below(state, 3);
    for (int i = 0; i < RANKS_MOST; i++)
        for (int j = 0; j < RANKS_MOST; j++)
            c.counts[i][j] = below(state, 4) == 0 ? 0 : draw_count(state) % 5000;
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

/* Element `i` of what `from` has for `to`; for those that only move. */
static double moving(int32_t from, int32_t to, size_t i)
{
    return (double)((size_t)from * 5 + (size_t)to * 3 + i * 7) -
           7 * (double)(((size_t)from * 5 + (size_t)to * 3 + i * 7) / 7);
}

static void write_moving(const struct one *c, uint8_t *at, int32_t from, int32_t to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        value_write(c->dtype, c->dtype == COMM_DTYPE_BOOL ? (int)moving(from, to, i) & 1 : moving(from, to, i),
                    at + i * comm_dtype_bytes(c->dtype));
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
        if (value_of(COMM_MAX, c->dtype, r, size, i) != 0)
            return value_of(COMM_MAX, c->dtype, r, size, i);
    return 0;
}

static void fill_send(const struct one *c, struct memory *m, int32_t rank, int32_t size)
{
    size_t element = comm_dtype_bytes(c->dtype), at = 0;
    int32_t blocks = sends_blocks(c) ? size : 1;
    for (int32_t to = 0; to < blocks; to++)
        m->send_bytes += moved(c, rank, to) * element;
    if (c->kind == REDUCE_SCATTER || c->kind == ALL_REDUCE || c->kind == REDUCE) {
        m->send = malloc(m->send_bytes + MARGIN);
        comm_redop values = c->redop == COMM_REDOP_USER ? COMM_MAX : c->redop;
        for (size_t i = 0; i * element < m->send_bytes; i++)
            value_write(c->dtype, value_of(values, c->dtype, rank, size, i), m->send + i * element);
        for (int32_t to = 0; to < blocks; at += m->send_counts[to++] * element) {
            m->send_counts[to] = moved(c, rank, to);
            m->send_list[to] = m->send + at;
        }
        return;
    }
    m->send = malloc(m->send_bytes + MARGIN);
    for (int32_t to = 0; to < blocks; to++) {
        m->send_counts[to] = moved(c, rank, to);
        m->send_list[to] = m->send + at;
        write_moving(c, m->send + at, rank, sends_blocks(c) ? to : 0, m->send_counts[to]);
        at += m->send_counts[to] * element;
    }
}

static bool receives(const struct one *c, int32_t rank)
{
    return c->kind == BARRIER ? false : c->kind == REDUCE || c->kind == GATHER ? rank == c->root : true;
}

static void fill_expected(const struct one *c, struct memory *m, int32_t rank, int32_t size)
{
    size_t element = comm_dtype_bytes(c->dtype), at = 0, first = 0;
    int32_t blocks = receives_blocks(c) ? size : 1;
    for (int32_t from = 0; from < blocks; from++) {
        int32_t source = receives_blocks(c) ? from : c->kind == SEND_RECV ? (rank + size - 1) % size : c->root;
        m->recv_counts[from] = reduces(c->kind) ? moved(c, rank, rank) : moved(c, source, rank);
        m->recv_bytes += m->recv_counts[from] * element;
    }
    m->recv = malloc(m->recv_bytes + MARGIN);
    m->expected = malloc(m->recv_bytes + MARGIN);
    memset(m->recv, POISON, m->recv_bytes + MARGIN);
    memset(m->expected, POISON, m->recv_bytes + MARGIN);
    for (int32_t to = 0; c->kind == REDUCE_SCATTER && to < rank; to++)
        first += moved(c, 0, to);
    for (int32_t from = 0; from < blocks; at += m->recv_counts[from++] * element) {
        int32_t source = receives_blocks(c) ? from : c->kind == SEND_RECV ? (rank + size - 1) % size : c->root;
        m->recv_list[from] = m->recv + at;
        if (!receives(c, rank))
            continue;
        if (!reduces(c->kind))
            write_moving(c, m->expected + at, source, sends_blocks(c) ? rank : 0, m->recv_counts[from]);
        for (size_t i = 0; reduces(c->kind) && i < m->recv_counts[from]; i++)
            value_write(c->dtype, reduced(c, size, first + i), m->expected + i * element);
    }
}

/* Move this rank's contribution to where the in-place form wants it. */
static void go_in_place(const struct one *c, struct memory *m, int32_t rank)
{
    size_t element = comm_dtype_bytes(c->dtype), before = 0;
    bool at_root = rank == c->root;
    uint8_t *own;
    switch (c->kind) {
    case ALL_REDUCE:
    case ALL_TO_ALL:
    case REDUCE:
        if (c->kind == REDUCE && !at_root)
            return;
        own = m->recv;
        break;
    case ALL_GATHER:
    case GATHER:
        if (c->kind == GATHER && !at_root)
            return;
        for (int32_t r = 0; r < rank; r++)
            before += m->recv_counts[r] * element;
        own = m->recv + before;
        break;
    default:
        return; /* those whose long side is the sender's are done in run_one */
    }
    memcpy(own, m->send, m->send_bytes);
    free(m->send);
    m->send = own;
}

/* recv inside send: the own block of reduce_scatter and, at the root, of scatter. */
static uint8_t *recv_in_send(const struct one *c, const struct memory *m, int32_t rank)
{
    bool long_send = c->kind == REDUCE_SCATTER || (c->kind == SCATTER && rank == c->root);
    return c->in_place && long_send ? m->send_list[rank] : NULL;
}

/* ---- Calling ---- */

static comm_status call(const struct one *c, comm_group *g, struct memory *m, comm_work **work)
{
    const comm_op_options *o = &m->options;
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    uint8_t *inside = recv_in_send(c, m, rank);
    void *recv = inside ? inside : receives(c, rank) ? m->recv : NULL;
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
        return c->form == PLAIN    ? comm_all_gather(g, m->send, recv, c->count, c->dtype, o, work)
               : c->form == UNEVEN ? comm_all_gather_v(g, m->send, recv, m->recv_counts, NULL, c->dtype, o, work)
                                   : comm_all_gather_list(g, m->send, recv_list, m->recv_counts, c->dtype, o, work);
    case GATHER:
        return c->form == PLAIN    ? comm_gather(g, m->send, recv, c->count, c->dtype, c->root, o, work)
               : c->form == UNEVEN ? comm_gather_v(g, m->send, m->send_counts[0], recv, m->recv_counts, NULL, c->dtype,
                                                   c->root, o, work)
                                   : comm_gather_list(g, m->send, m->send_counts[0], recv_list, m->recv_counts,
                                                      c->dtype, c->root, o, work);
    case SCATTER:
        return c->form == PLAIN    ? comm_scatter(g, m->send, recv, c->count, c->dtype, c->root, o, work)
               : c->form == UNEVEN ? comm_scatter_v(g, m->send, m->send_counts, NULL, recv, m->recv_counts[0], c->dtype,
                                                    c->root, o, work)
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
                   ? comm_all_to_all_v(g, m->send, m->send_counts, NULL, recv, m->recv_counts, NULL, c->dtype, o, work)
                   : comm_all_to_all_list(g, const_list, m->send_counts, recv_list, m->recv_counts, c->dtype, o, work);
    case SEND_RECV: { /* a ring, and so a rank alone sends to itself */
        comm_work *sent = NULL;
        CHECK_OK(comm_send(g, m->send, c->count, c->dtype, (rank + 1) % size, o, work ? &sent : NULL));
        comm_status status = comm_recv(g, recv, c->count, c->dtype, (rank + size - 1) % size, o, work);
        comm_work_release(sent);
        return status;
    }
    default:
        return comm_barrier(g, NULL, work);
    }
}

static void prepare(const struct one *c, comm_group *g, struct memory *m)
{
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    memset(m, 0, sizeof *m);
    m->options = (comm_op_options)COMM_OP_OPTIONS_INIT;
    m->options.tag = c->kind == SEND_RECV ? (int32_t)(c->count % 7) : 0;
    m->options.reduce_fn = first_nonzero;
    value_write(c->dtype, value_factor(c->dtype, rank), m->factor);
    m->options.premul = m->factor;
    fill_send(c, m, rank, size);
    fill_expected(c, m, rank, size);
    if (c->in_place)
        go_in_place(c, m, rank);
}

static void compare(const struct one *c, comm_group *g, struct memory *m, int number)
{
    static const char *const names[] = { "broadcast", "all_reduce",     "reduce",     "all_gather", "gather",
                                         "scatter",   "reduce_scatter", "all_to_all", "barrier",    "send_recv" };
    int32_t rank = comm_group_rank(g);
    uint8_t *inside = recv_in_send(c, m, rank);
    if (inside)
        memcpy(m->recv, inside, m->recv_bytes);
    for (size_t i = 0; i < m->recv_bytes + MARGIN; i++)
        if (m->recv[i] != m->expected[i])
            ranks_fail(__FILE__, __LINE__,
                       "case %d: %s form %d %s %s count %zu root %d%s on '%s': byte %zu of %zu is %02x, not %02x",
                       number, names[c->kind], c->form, comm_dtype_name(c->dtype), comm_redop_name(c->redop), c->count,
                       c->root, c->in_place ? " in place" : "", comm_group_name(g), i, m->recv_bytes, m->recv[i],
                       m->expected[i]);
    if (m->send < m->recv || m->send > m->recv + m->recv_bytes)
        free(m->send);
    free(m->recv);
    free(m->expected);
}

/* A few calls, in one of the three ways. */
static void run_wave(uint64_t *state, comm_group *g, int number)
{
    struct one *cases = calloc(WAVE_MOST, sizeof *cases);
    struct memory memory[WAVE_MOST];
    comm_work *works[WAVE_MOST] = { NULL };
    enum mode mode = (enum mode)below(state, 3);
    size_t count = mode == WAITING ? 1 : 1 + below(state, WAVE_MOST);
    for (size_t i = 0; i < count; i++) {
        cases[i] = draw_one(state, comm_group_size(g));
        if (mode == WAITING && cases[i].kind == SEND_RECV)
            cases[i].kind = BARRIER; /* a ring of waiting sends may wait for ever */
        prepare(&cases[i], g, &memory[i]);
    }
    if (mode == COALESCED)
        CHECK_OK(comm_coalesce_begin(g));
    for (size_t i = 0; i < count; i++)
        CHECK_OK(call(&cases[i], g, &memory[i], mode == ASYNC ? &works[i] : NULL));
    if (mode == COALESCED)
        CHECK_OK(comm_coalesce_end(g, number % 2 ? &works[0] : NULL));
    CHECK_OK(comm_work_wait_all(works, count, 30000));
    if (mode == ASYNC)
        CHECK_OK(comm_group_flush(g, 30000)); /* the sends whose works were released */
    for (size_t i = 0; i < count; i++) {
        comm_work_release(works[i]);
        compare(&cases[i], g, &memory[i], number);
    }
    free(cases);
}

static void rank_main(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend), *dup, *part;
    uint64_t state = suite->seed + (uint64_t)size;
    CHECK_OK(comm_group_dup(world, NULL, &dup));
    CHECK_OK(comm_group_split(world, rank % 2, -rank, NULL, &part));
    for (int i = 0; i < suite->cases; i++) {
        /* Each group has a sequence of its own, because the parts have different sizes. */
        uint64_t mine = draw(&state), which = mine % 4;
        run_wave(&mine, which == 0 ? dup : which == 1 ? part : world, i);
    }
    CHECK_OK(comm_group_close(part));
    CHECK_OK(comm_group_close(world)); /* before one of its children */
    CHECK_OK(comm_barrier(dup, NULL, NULL));
    CHECK_OK(comm_group_close(dup));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED [CASES]]\n", argv[0]);
        return 2;
    }
    struct suite suite = {
        .backend = argv[1],
        .seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL),
        .cases = argc > 3 ? atoi(argv[3]) : 100,
        .threads = strcmp(argv[1], "cpu:loopback") == 0,
    };
    struct ranks_options options = { .threads = suite.threads, .limit_s = 100, .name = "collectives" };
    if (suite.threads && comm_backend_register(loopback_entry) != COMM_OK) {
        fprintf(stderr, "%s\n", comm_last_error());
        return 1;
    }
    printf("seed %llu\n", (unsigned long long)suite.seed);
    fflush(stdout);
    for (int size = 1; size <= 9; size++)
        if (ranks_run(size, &options, rank_main, &suite) != 0)
            return 1;
    return 0;
}

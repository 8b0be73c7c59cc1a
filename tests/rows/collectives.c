/* Collectives: each waiting and with a work, in its plain, uneven and list forms. Rank r has r + 1 elements where they
 * are uneven; an element says where it comes from and for whom it is. */
#include <string.h>

#include "rows.h"

enum { COUNT_MAX = 16 };

static int32_t mark(int from, int to, int i)
{
    return from * 10000 + to * 100 + i;
}

/* counts[r] = r + 1; returns where rank's block begins. */
static size_t uneven(const struct place *p, size_t *counts)
{
    size_t at = 0;
    IS(p->size <= COUNT_MAX);
    for (int r = 0; r < p->size; r++) {
        counts[r] = (size_t)r + 1;
        at += r < p->rank ? counts[r] : 0;
    }
    return at;
}

static void broadcast(const struct place *p)
{
    comm_work *work;
    int32_t data[3];
    for (int root = 0; root < p->size; root++)
        for (int async = 0; async < 2; async++) {
            for (int i = 0; i < 3; i++)
                data[i] = p->rank == root ? mark(root, async, i) : -1;
            OK(comm_broadcast(p->world, data, 3, COMM_DTYPE_I32, root, NULL, async ? &work : NULL));
            if (async)
                rows_finish(work);
            for (int i = 0; i < 3; i++)
                IS(data[i] == mark(root, async, i));
        }
}

static void all_reduce(const struct place *p)
{
    comm_work *work;
    int64_t in[2] = { p->rank, 1 }, out[2] = { -1, -1 };
    const int64_t sum = (int64_t)p->size * (p->size - 1) / 2;
    OK(comm_all_reduce(p->world, in, out, 2, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    IS(out[0] == sum && out[1] == p->size && in[0] == p->rank);
    OK(comm_all_reduce(p->world, in, in, 2, COMM_DTYPE_I64, COMM_REDOP_MAX, NULL, &work)); /* in place */
    rows_finish(work);
    IS(in[0] == p->size - 1 && in[1] == 1);
    OK(comm_all_reduce(p->world, NULL, NULL, 0, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL)); /* nothing */
}

static void reduce(const struct place *p)
{
    comm_work *work;
    for (int root = 0; root < p->size; root++)
        for (int async = 0; async < 2; async++) {
            int64_t in = p->rank + 1, out = -5;
            OK(comm_reduce(p->world, &in, &out, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, root, NULL, async ? &work : NULL));
            if (async)
                rows_finish(work);
            IS(out == (p->rank == root ? (int64_t)p->size * (p->size + 1) / 2 : -5));
        }
}

static void check_all(const struct place *p, const int32_t *data, const size_t *counts, int to)
{
    for (int r = 0; r < p->size; r++)
        for (size_t i = 0; i < counts[r]; i++)
            IS(*data++ == mark(r, to, (int)i));
}

static void all_gather(const struct place *p)
{
    comm_work *work;
    size_t even[COUNT_MAX], counts[COUNT_MAX];
    int32_t mine[COUNT_MAX], all[COUNT_MAX * COUNT_MAX], blocks[COUNT_MAX][COUNT_MAX];
    void *list[COUNT_MAX];
    uneven(p, counts);
    for (int r = 0; r < COUNT_MAX; r++) {
        even[r] = 2;
        list[r] = blocks[r];
        mine[r] = mark(p->rank, 0, r);
    }
    OK(comm_all_gather(p->world, mine, all, 2, COMM_DTYPE_I32, NULL, NULL));
    check_all(p, all, even, 0);
    memset(all, 0xee, sizeof all);
    OK(comm_all_gather(p->world, mine, all, 2, COMM_DTYPE_I32, NULL, &work));
    rows_finish(work);
    check_all(p, all, even, 0);
    OK(comm_all_gather_v(p->world, mine, all, counts, NULL, COMM_DTYPE_I32, NULL, NULL));
    check_all(p, all, counts, 0);
    OK(comm_all_gather_list(p->world, mine, list, counts, COMM_DTYPE_I32, NULL, &work));
    rows_finish(work);
    for (int r = 0; r < p->size; r++)
        for (size_t i = 0; i < counts[r]; i++)
            IS(blocks[r][i] == mark(r, 0, (int)i));
}

static void gather(const struct place *p)
{
    comm_work *work;
    size_t even[COUNT_MAX], counts[COUNT_MAX], mine_count = (size_t)p->rank + 1;
    int32_t mine[COUNT_MAX], all[COUNT_MAX * COUNT_MAX], blocks[COUNT_MAX][COUNT_MAX];
    void *list[COUNT_MAX];
    uneven(p, counts);
    for (int r = 0; r < COUNT_MAX; r++) {
        even[r] = 2;
        list[r] = blocks[r];
        mine[r] = mark(p->rank, 0, r);
    }
    for (int root = 0; root < p->size; root++) {
        int here = p->rank == root;
        OK(comm_gather(p->world, mine, here ? all : NULL, 2, COMM_DTYPE_I32, root, NULL, NULL));
        if (here)
            check_all(p, all, even, 0);
        OK(comm_gather_v(p->world, mine, mine_count, here ? all : NULL, here ? counts : NULL, NULL, COMM_DTYPE_I32,
                         root, NULL, &work));
        rows_finish(work);
        if (here)
            check_all(p, all, counts, 0);
        OK(comm_gather_list(p->world, mine, mine_count, here ? list : NULL, here ? counts : NULL, COMM_DTYPE_I32, root,
                            NULL, NULL));
        for (int r = 0; here && r < p->size; r++)
            IS(blocks[r][r] == mark(r, 0, r));
    }
}

static void scatter(const struct place *p)
{
    comm_work *work;
    size_t counts[COUNT_MAX], mine_count = (size_t)p->rank + 1;
    uneven(p, counts);
    for (int root = 0; root < p->size; root++) {
        int32_t all[COUNT_MAX * COUNT_MAX], got[COUNT_MAX], blocks[COUNT_MAX][COUNT_MAX];
        const void *list[COUNT_MAX];
        int here = p->rank == root, at = 0;
        for (int r = 0; r < p->size; r++) {
            list[r] = blocks[r];
            for (int i = 0; i <= r; i++)
                all[at++] = blocks[r][i] = mark(root, r, i);
        }
        OK(comm_scatter(p->world, here ? all : NULL, got, 1, COMM_DTYPE_I32, root, NULL, &work));
        rows_finish(work);
        IS(got[0] == all[p->rank]); /* every rank wrote the same down */
        memset(got, 0xee, sizeof got);
        OK(comm_scatter_v(p->world, here ? all : NULL, here ? counts : NULL, NULL, got, mine_count, COMM_DTYPE_I32,
                          root, NULL, NULL));
        for (int i = 0; i <= p->rank; i++)
            IS(got[i] == mark(root, p->rank, i));
        memset(got, 0xee, sizeof got);
        OK(comm_scatter_list(p->world, here ? list : NULL, here ? counts : NULL, got, mine_count, COMM_DTYPE_I32, root,
                             NULL, &work));
        rows_finish(work);
        for (int i = 0; i <= p->rank; i++)
            IS(got[i] == mark(root, p->rank, i));
    }
}

static void reduce_scatter(const struct place *p)
{
    comm_work *work;
    size_t counts[COUNT_MAX];
    int64_t in[COUNT_MAX * COUNT_MAX], out[COUNT_MAX], blocks[COUNT_MAX][COUNT_MAX];
    const void *list[COUNT_MAX];
    size_t begin = uneven(p, counts);
    for (int i = 0; i < COUNT_MAX * COUNT_MAX; i++)
        in[i] = i + p->rank;
    for (int r = 0, at = 0; r < p->size; r++) {
        list[r] = blocks[r];
        for (int i = 0; i <= r; i++)
            blocks[r][i] = in[at++];
    }
    const int64_t ranks_sum = (int64_t)p->size * (p->size - 1) / 2;
    OK(comm_reduce_scatter(p->world, in, out, 2, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    for (int i = 0; i < 2; i++)
        IS(out[i] == (int64_t)p->size * (p->rank * 2 + i) + ranks_sum);
    OK(comm_reduce_scatter_v(p->world, in, out, counts, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, &work));
    rows_finish(work);
    for (int i = 0; i <= p->rank; i++)
        IS(out[i] == (int64_t)p->size * ((int64_t)begin + i) + ranks_sum);
    memset(out, 0xee, sizeof out);
    OK(comm_reduce_scatter_list(p->world, list, out, counts, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    for (int i = 0; i <= p->rank; i++)
        IS(out[i] == (int64_t)p->size * ((int64_t)begin + i) + ranks_sum);
}

static void all_to_all(const struct place *p)
{
    comm_work *work;
    size_t to[COUNT_MAX], from[COUNT_MAX];
    int32_t in[COUNT_MAX * COUNT_MAX], out[COUNT_MAX * COUNT_MAX], in_blocks[COUNT_MAX][COUNT_MAX],
        out_blocks[COUNT_MAX][COUNT_MAX];
    const void *in_list[COUNT_MAX];
    void *out_list[COUNT_MAX];
    for (int r = 0; r < p->size; r++)
        in[r] = mark(p->rank, r, 0);
    OK(comm_all_to_all(p->world, in, out, 1, COMM_DTYPE_I32, NULL, NULL));
    for (int r = 0; r < p->size; r++)
        IS(out[r] == mark(r, p->rank, 0));
    OK(comm_all_to_all(p->world, in, in, 1, COMM_DTYPE_I32, NULL, &work)); /* in place */
    rows_finish(work);
    IS(memcmp(in, out, (size_t)p->size * sizeof *in) == 0);
    /* With splits: rank a sends a + b elements to rank b; none from 0 to 0. */
    int at = 0;
    for (int r = 0; r < p->size; r++) {
        to[r] = from[r] = (size_t)(p->rank + r);
        in_list[r] = in_blocks[r];
        out_list[r] = out_blocks[r];
        for (int i = 0; i < p->rank + r; i++)
            in[at++] = in_blocks[r][i] = mark(p->rank, r, i);
    }
    OK(comm_all_to_all_v(p->world, in, to, NULL, out, from, NULL, COMM_DTYPE_I32, NULL, NULL));
    OK(comm_all_to_all_list(p->world, in_list, to, out_list, from, COMM_DTYPE_I32, NULL, &work));
    rows_finish(work);
    for (int r = 0, i = 0; r < p->size; r++)
        for (int j = 0; j < p->rank + r; j++, i++)
            IS(out[i] == mark(r, p->rank, j) && out_blocks[r][j] == out[i]);
}

static void barrier(const struct place *p)
{
    comm_work *work;
    OK(comm_barrier(p->world, NULL, NULL));
    OK(comm_barrier(p->world, NULL, &work));
    rows_finish(work);
}

/* The others come too late; rank 0 says so when it is in the next one. */
static void monitored_barrier(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    OK(comm_monitored_barrier(p->world, NULL));
    options.timeout_ms = 100;
    if (p->rank == 0 && p->size > 1) {
        GIVES(COMM_ERR_TIMEOUT, comm_monitored_barrier(p->world, &options));
        SAYS("not come within 100 ms: 1");
    }
    OK(comm_barrier(p->world, NULL, NULL));
    options.timeout_ms = 30000;
    if (p->rank != 0)
        GIVES(COMM_ERR_TIMEOUT, comm_monitored_barrier(p->world, &options));
    OK(comm_monitored_barrier(p->world, &options));
}

static void redops(const struct place *p)
{
    const int32_t mine = p->rank + 2;
    int32_t all = 0, any = 0, odd = 0, product = 1, out = -1;
    for (int r = 0; r < p->size; r++) {
        all = r == 0 ? r + 2 : all & (r + 2);
        any |= r + 2;
        odd ^= r + 2;
        product *= r + 2;
    }
    const int32_t sum = p->size * (p->size + 3) / 2;
    const struct {
        comm_redop redop;
        int32_t expected;
    } cases[] = {
        { COMM_REDOP_SUM, sum }, { COMM_REDOP_AVG, sum / p->size }, { COMM_REDOP_PRODUCT, product },
        { COMM_REDOP_MIN, 2 },   { COMM_REDOP_MAX, p->size + 1 },   { COMM_REDOP_BAND, all },
        { COMM_REDOP_BOR, any }, { COMM_REDOP_BXOR, odd },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm_redop parsed = -1;
        OK(comm_all_reduce(p->world, &mine, &out, 1, COMM_DTYPE_I32, cases[i].redop, NULL, NULL));
        IS(out == cases[i].expected);
        OK(comm_redop_parse(comm_redop_name(cases[i].redop), &parsed));
        IS(parsed == cases[i].redop);
    }
    IS(comm_redop_supports(COMM_REDOP_BAND, COMM_DTYPE_I32) == 1 &&
       comm_redop_supports(COMM_REDOP_BAND, COMM_DTYPE_F32) == 0);
    float in = 1, result = -1;
    GIVES(COMM_ERR_UNSUPPORTED,
          comm_all_reduce(p->world, &in, &result, 1, COMM_DTYPE_F32, COMM_REDOP_BAND, NULL, NULL));
    SAYS("f32");
    GIVES(COMM_ERR_INVALID, comm_redop_parse("median", &(comm_redop){ 0 }));
}

static void premul_sum(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    double in = 1, out = -1, factor = p->rank + 0.5;
    options.premul = &factor;
    OK(comm_all_reduce(p->world, &in, &out, 1, COMM_DTYPE_F64, COMM_REDOP_PREMUL_SUM, &options, NULL));
    IS(out == p->size * (p->size - 1) / 2 + p->size * 0.5);
}

/* Maps x -> ax + b modulo 2^32, two numbers in one element. Applying one after the other is associative, but the order
 * of ranks shows. */
static uint64_t chain(uint64_t f, uint64_t g)
{
    uint32_t a = (uint32_t)(f >> 32), b = (uint32_t)f;
    return (uint64_t)(uint32_t)(a * (uint32_t)(g >> 32)) << 32 | (uint32_t)(a * (uint32_t)g + b);
}

static uint64_t map_of(int rank, int i)
{
    return (uint64_t)(2 * rank + 3) << 32 | (uint64_t)(rank + i);
}

static void chain_all(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    const uint64_t *lower = in;
    uint64_t *higher = inout;
    IS(dtype == COMM_DTYPE_U64 && *(int *)context == 42);
    for (size_t i = 0; i < count; i++)
        higher[i] = chain(lower[i], higher[i]);
}

static void chain_five(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    IS(dtype == COMM_DTYPE_BYTE);
    chain_all(in, inout, 5 * count, COMM_DTYPE_U64, context);
}

static void user_redop(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    uint64_t in[5], out[5];
    int context = 42;
    options.reduce_fn = chain_all;
    options.reduce_context = &context;
    for (int i = 0; i < 5; i++)
        in[i] = map_of(p->rank, i);
    OK(comm_all_reduce(p->world, in, out, 5, COMM_DTYPE_U64, COMM_REDOP_USER, &options, NULL));
    for (int i = 0; i < 5; i++) {
        uint64_t expected = map_of(0, i);
        for (int r = 1; r < p->size; r++)
            expected = chain(expected, map_of(r, i));
        IS(out[i] == expected);
    }
    /* Structs: the same elements as one of 40 bytes. */
    struct five {
        uint64_t maps[5];
    } all, one;
    memcpy(&one, in, sizeof one);
    options.reduce_fn = chain_five;
    options.element_bytes = sizeof one;
    OK(comm_all_reduce(p->world, &one, &all, 1, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL));
    IS(memcmp(&all, out, sizeof out) == 0);
    options.reduce_fn = chain_all;
    GIVES(COMM_ERR_INVALID, comm_all_reduce(p->world, in, out, 5, COMM_DTYPE_U64, COMM_REDOP_USER, &options, NULL));
    SAYS("element_bytes");
    options.element_bytes = 0;
    options.reduce_fn = NULL;
    GIVES(COMM_ERR_INVALID, comm_all_reduce(p->world, in, out, 5, COMM_DTYPE_U64, COMM_REDOP_USER, &options, NULL));
}

/* Every dtype moves; every one but BYTE adds up: 1 from each rank, in its own representation. */
static void dtypes(const struct place *p)
{
    static const uint8_t ones[COMM_DTYPE_END][16] = {
        [COMM_DTYPE_I8] = { 1 },
        [COMM_DTYPE_U8] = { 1 },
        [COMM_DTYPE_I16] = { 1 },
        [COMM_DTYPE_U16] = { 1 },
        [COMM_DTYPE_I32] = { 1 },
        [COMM_DTYPE_U32] = { 1 },
        [COMM_DTYPE_I64] = { 1 },
        [COMM_DTYPE_U64] = { 1 },
        [COMM_DTYPE_BOOL] = { 1 },
        [COMM_DTYPE_F16] = { 0, 0x3c },
        [COMM_DTYPE_BF16] = { 0x80, 0x3f },
        [COMM_DTYPE_F32] = { 0, 0, 0x80, 0x3f },
        [COMM_DTYPE_F64] = { 0, 0, 0, 0, 0, 0, 0xf0, 0x3f },
        [COMM_DTYPE_F8E4M3] = { 0x38 },
        [COMM_DTYPE_F8E5M2] = { 0x3c },
        [COMM_DTYPE_C64] = { 0, 0, 0x80, 0x3f },
        [COMM_DTYPE_C128] = { 0, 0, 0, 0, 0, 0, 0xf0, 0x3f },
    };
    for (comm_dtype d = COMM_DTYPE_I8; d < COMM_DTYPE_END; d++) {
        comm_dtype parsed = -1;
        uint8_t moved[16];
        size_t bytes = comm_dtype_bytes(d);
        IS(bytes >= 1 && bytes <= 16 && comm_dtype_name(d) != NULL);
        OK(comm_dtype_parse(comm_dtype_name(d), &parsed));
        IS(parsed == d);
        memset(moved, p->rank == 0 ? 0xa5 : 0, sizeof moved);
        OK(comm_broadcast(p->world, moved, 1, d, 0, NULL, NULL));
        for (size_t i = 0; i < bytes; i++)
            IS(moved[i] == 0xa5);
        if (d == COMM_DTYPE_BYTE)
            continue;
        uint8_t out[16] = { 0 }, max[16] = { 0 };
        OK(comm_all_reduce(p->world, ones[d], out, 1, d, COMM_REDOP_PRODUCT, NULL, NULL));
        IS(memcmp(out, ones[d], bytes) == 0); /* 1 times 1 is 1 in all of them */
        if (comm_redop_supports(COMM_REDOP_MAX, d)) {
            OK(comm_all_reduce(p->world, ones[d], max, 1, d, COMM_REDOP_MAX, NULL, NULL));
            IS(memcmp(max, ones[d], bytes) == 0);
        }
    }
    GIVES(COMM_ERR_UNSUPPORTED,
          comm_all_reduce(p->world, ones[1], (uint8_t[1]){ 0 }, 1, COMM_DTYPE_BYTE, COMM_REDOP_SUM, NULL, NULL));
    GIVES(COMM_ERR_INVALID, comm_dtype_parse("f17", &(comm_dtype){ 0 }));
    IS(comm_dtype_bytes(999) == 0 && comm_dtype_name(999) == NULL);
}

static void coalescing(const struct place *p)
{
    comm_work *work;
    int64_t a = 1, b = p->rank, gathered[COUNT_MAX] = { 0 };
    OK(comm_coalesce_begin(p->world));
    OK(comm_all_reduce(p->world, &a, &a, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    OK(comm_all_gather(p->world, &b, gathered, 1, COMM_DTYPE_I64, NULL, NULL));
    IS(a == 1); /* only written down */
    OK(comm_coalesce_end(p->world, NULL, &work));
    IS(strcmp(comm_work_op(work), "coalesced") == 0);
    rows_finish(work);
    IS(a == p->size);
    for (int r = 0; r < p->size; r++)
        IS(gathered[r] == r);
    OK(comm_coalesce_begin(p->world));
    OK(comm_barrier(p->world, NULL, NULL));
    OK(comm_coalesce_cancel(p->world));
    GIVES(COMM_ERR_INVALID, comm_coalesce_end(p->world, NULL, NULL));
}

const struct row_case rows_collectives[] = {
    { "broadcast", broadcast },
    { "all_reduce", all_reduce },
    { "reduce", reduce },
    { "all_gather", all_gather },
    { "gather", gather },
    { "scatter", scatter },
    { "reduce_scatter", reduce_scatter },
    { "all_to_all", all_to_all },
    { "barrier", barrier },
    { "monitored_barrier", monitored_barrier },
    { "redops", redops },
    { "premul_sum", premul_sum },
    { "user_redop", user_redop },
    { "dtypes", dtypes },
    { "coalescing", coalescing },
    { NULL, NULL },
};

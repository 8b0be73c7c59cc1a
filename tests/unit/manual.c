/* What the manual (comm/comm.h) promises and no other test tries: which calls match, what may overlap, what is
 * recorded, what options are borrowed for, what a batch leaves undone. */
#include <comm/comm.h>
#include <dirent.h>
#include <stdatomic.h>
#include <string.h>

#include "ranks.h"

enum { COUNT_MAX = 8 };

/* ---- Which calls match ---- */

/* The same operation in two forms: rank 0 calls one, the others the other one. */
enum form { PLAIN, UNEVEN, LISTED };

struct buffers {
    int32_t send[COUNT_MAX], recv[COUNT_MAX];
    size_t counts[COUNT_MAX], offsets[COUNT_MAX];
    const void *send_list[COUNT_MAX];
    void *recv_list[COUNT_MAX];
};

/* One element per rank; the _v forms have the blocks in their order, with offsets of this rank's own on odd ranks. */
static void fill(struct buffers *b, int rank, int size)
{
    memset(b, 0, sizeof *b);
    for (int r = 0; r < size; r++) {
        b->send[r] = 10 * rank + r;
        b->counts[r] = 1;
        b->offsets[r] = (size_t)r;
        b->send_list[r] = &b->send[r];
        b->recv_list[r] = &b->recv[r];
    }
}

static comm_status gather(comm_group *g, struct buffers *b, enum form form)
{
    return form == PLAIN    ? comm_gather(g, b->send, b->recv, 1, COMM_DTYPE_I32, 0, NULL, NULL)
           : form == UNEVEN ? comm_gather_v(g, b->send, 1, b->recv, b->counts, NULL, COMM_DTYPE_I32, 0, NULL, NULL)
                            : comm_gather_list(g, b->send, 1, b->recv_list, b->counts, COMM_DTYPE_I32, 0, NULL, NULL);
}

static comm_status scatter(comm_group *g, struct buffers *b, enum form form)
{
    return form == PLAIN    ? comm_scatter(g, b->send, b->recv, 1, COMM_DTYPE_I32, 0, NULL, NULL)
           : form == UNEVEN ? comm_scatter_v(g, b->send, b->counts, NULL, b->recv, 1, COMM_DTYPE_I32, 0, NULL, NULL)
                            : comm_scatter_list(g, b->send_list, b->counts, b->recv, 1, COMM_DTYPE_I32, 0, NULL, NULL);
}

static comm_status all_gather(comm_group *g, struct buffers *b, enum form form)
{
    const size_t *offsets = comm_group_rank(g) % 2 ? b->offsets : NULL;
    return form == PLAIN    ? comm_all_gather(g, b->send, b->recv, 1, COMM_DTYPE_I32, NULL, NULL)
           : form == UNEVEN ? comm_all_gather_v(g, b->send, b->recv, b->counts, offsets, COMM_DTYPE_I32, NULL, NULL)
                            : comm_all_gather_list(g, b->send, b->recv_list, b->counts, COMM_DTYPE_I32, NULL, NULL);
}

static comm_status reduce_scatter(comm_group *g, struct buffers *b, enum form form)
{
    return form == PLAIN ? comm_reduce_scatter(g, b->send, b->recv, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL)
           : form == UNEVEN
               ? comm_reduce_scatter_v(g, b->send, b->recv, b->counts, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL)
               : comm_reduce_scatter_list(g, b->send_list, b->recv, b->counts, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL,
                                          NULL);
}

static comm_status all_to_all(comm_group *g, struct buffers *b, enum form form)
{
    return form == PLAIN ? comm_all_to_all(g, b->send, b->recv, 1, COMM_DTYPE_I32, NULL, NULL)
           : form == UNEVEN
               ? comm_all_to_all_v(g, b->send, b->counts, NULL, b->recv, b->counts, NULL, COMM_DTYPE_I32, NULL, NULL)
               : comm_all_to_all_list(g, b->send_list, b->counts, b->recv_list, b->counts, COMM_DTYPE_I32, NULL, NULL);
}

static const struct {
    const char *name;
    comm_status (*call)(comm_group *g, struct buffers *b, enum form form);
    int plain_matches;
} forms[] = {
    { "gather", gather, 1 },
    { "scatter", scatter, 1 },
    { "all_gather", all_gather, 0 },
    { "reduce_scatter", reduce_scatter, 0 },
    { "all_to_all", all_to_all, 0 },
};

/* A group of its own for each attempt, as a mismatch ends it. A rank that has all it needs learns of the mismatch by
 * its next call, the barrier. */
static void try_forms(comm_group *world, size_t i, enum form of_rank_0, enum form of_others, int matches)
{
    struct buffers b;
    comm_group *group;
    int rank = comm_group_rank(world);
    fill(&b, rank, comm_group_size(world));
    CHECK_OK(comm_group_dup(world, NULL, &group));
    comm_status status = forms[i].call(group, &b, rank == 0 ? of_rank_0 : of_others);
    if (status == COMM_OK)
        status = comm_barrier(group, NULL, NULL);
    if (status != (matches ? COMM_OK : COMM_ERR_MISMATCH))
        ranks_fail(__FILE__, __LINE__, "%s, forms %d and %d: %s: %s", forms[i].name, of_rank_0, of_others,
                   comm_status_name(status), comm_last_error());
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(group));
}

static void forms_match_as_the_manual_says(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        try_forms(world, i, UNEVEN, LISTED, 1);
        try_forms(world, i, LISTED, UNEVEN, 1);
        try_forms(world, i, PLAIN, UNEVEN, forms[i].plain_matches);
        try_forms(world, i, LISTED, PLAIN, forms[i].plain_matches);
    }
    CHECK_OK(comm_group_close(world));
}

static void rank_order_on_one_side_is_a_mismatch(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("tcp"), *group;
    comm_op_options ordered = COMM_OP_OPTIONS_INIT;
    ordered.flags = COMM_OP_FLAG_RANK_ORDER;
    float value = 1;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    CHECK_OK(comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, &ordered, NULL));
    comm_status status =
        comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, rank == 1 ? &ordered : NULL, NULL);
    CHECK_STATUS(status == COMM_OK ? comm_barrier(group, NULL, NULL) : status, COMM_ERR_MISMATCH);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_group_close(world));
}

static void take_lower(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    (void)dtype;
    memcpy(inout, in, count * *(const size_t *)context);
}

/* The same number of elements of another size. */
static void structs_of_two_sizes_are_a_mismatch(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("tcp"), *group;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    char send[24] = "", recv[24];
    size_t bytes = rank == 0 ? 12 : 8;
    options.reduce_fn = take_lower;
    options.reduce_context = &bytes;
    options.element_bytes = (uint32_t)bytes;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    CHECK_STATUS(comm_all_reduce(group, send, recv, 2, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL),
                 COMM_ERR_MISMATCH);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(group));
    /* And it is for structs only. */
    CHECK_STATUS(comm_all_reduce(world, send, recv, 2, COMM_DTYPE_I32, COMM_REDOP_USER, &options, NULL),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("options->element_bytes is");
    CHECK_STATUS(comm_all_reduce(world, send, recv, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL),
                 COMM_ERR_INVALID);
    CHECK_STATUS(comm_broadcast(world, send, 2, COMM_DTYPE_BYTE, 0, &options, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_barrier(world, &options, NULL), COMM_ERR_INVALID);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* The message of another call is here before this rank calls: it must not be taken for its own,
 * though it has the same length. */
static void a_message_that_came_before_the_call_is_compared(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    int32_t value = 7;
    if (rank == 0) {
        CHECK_OK(comm_broadcast(world, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_I32, 1, NULL, NULL)); /* behind it, on the same connection */
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_MISMATCH);
    } else {
        CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK_STATUS(comm_broadcast(world, &value, 1, COMM_DTYPE_F32, 0, NULL, NULL), COMM_ERR_MISMATCH);
        CHECK_ERROR_SAYS("i32");
        CHECK_ERROR_SAYS("f32");
    }
    CHECK_OK(comm_group_close(world));
}

/* ---- In place, overlap, alignment ---- */

static void in_place_is_the_own_block(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("tcp");
    struct buffers b;
    int root = size - 1;
    fill(&b, rank, size);
    CHECK_OK(comm_scatter(world, b.send, rank == root ? &b.send[root] : b.recv, 1, COMM_DTYPE_I32, root, NULL, NULL));
    CHECK(rank == root ? b.send[root] == 11 * root : b.recv[0] == 10 * root + rank);
    CHECK_OK(comm_scatter_v(world, b.send, b.counts, b.offsets, rank == root ? &b.send[root] : b.recv, 1,
                            COMM_DTYPE_I32, root, NULL, NULL));
    CHECK(rank == root ? b.send[root] == 11 * root : b.recv[0] == 10 * root + rank);
    CHECK_OK(comm_scatter_list(world, b.send_list, b.counts, rank == root ? &b.send[root] : b.recv, 1, COMM_DTYPE_I32,
                               root, NULL, NULL));
    CHECK_OK(comm_gather_v(world, rank == root ? &b.recv[root] : &b.send[0], 1, b.recv, b.counts, b.offsets,
                           COMM_DTYPE_I32, root, NULL, NULL));
    fill(&b, rank, size);
    b.recv[rank] = rank + 100;
    CHECK_OK(comm_all_gather_v(world, &b.recv[rank], b.recv, b.counts, b.offsets, COMM_DTYPE_I32, NULL, NULL));
    CHECK_OK(comm_all_gather_list(world, &b.recv[rank], b.recv_list, b.counts, COMM_DTYPE_I32, NULL, NULL));
    for (int r = 0; r < size; r++)
        CHECK(b.recv[r] == r + 100);
    fill(&b, rank, size);
    CHECK_OK(comm_reduce_scatter_v(world, b.send, &b.send[rank], b.counts, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(b.send[rank] == 5 * size * (size - 1) + rank * size);
    fill(&b, rank, size);
    CHECK_OK(comm_reduce_scatter_list(world, b.send_list, &b.send[rank], b.counts, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL,
                                      NULL));
    CHECK(b.send[rank] == 5 * size * (size - 1) + rank * size);
    CHECK_STATUS(comm_all_to_all_v(world, b.send, b.counts, NULL, b.send, b.counts, NULL, COMM_DTYPE_I32, NULL, NULL),
                 COMM_ERR_INVALID);
    CHECK_STATUS(comm_all_gather(world, &b.recv[(rank + 1) % size], b.recv, 1, COMM_DTYPE_I32, NULL, NULL),
                 COMM_ERR_INVALID);
    CHECK_OK(comm_group_close(world));
}

static void blocks_that_are_read_may_overlap(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("tcp");
    struct buffers b;
    fill(&b, rank, size);
    memset(b.offsets, 0, sizeof b.offsets);
    CHECK_OK(comm_scatter_v(world, b.send, b.counts, b.offsets, b.recv, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    CHECK(b.recv[0] == 10);
    CHECK_OK(comm_all_to_all_v(world, b.send, b.counts, b.offsets, b.recv, b.counts, NULL, COMM_DTYPE_I32, NULL, NULL));
    for (int r = 0; r < size; r++)
        CHECK(b.recv[r] == 10 * r);
    CHECK_OK(comm_group_close(world));
}

struct seen {
    size_t alignment; /* the least */
};

static void add_and_look(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    struct seen *seen = context;
    (void)dtype;
    for (size_t i = 0; i < count; i++) { /* by memcpy: nothing is promised about the addresses */
        double a, b;
        memcpy(&a, (const char *)in + i * sizeof a, sizeof a);
        memcpy(&b, (char *)inout + i * sizeof b, sizeof b);
        b += a;
        memcpy((char *)inout + i * sizeof b, &b, sizeof b);
    }
    for (size_t bit = 1; bit < seen->alignment; bit *= 2)
        if (((uintptr_t)in | (uintptr_t)inout) & bit)
            seen->alignment = bit;
}

static void any_alignment_works(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("tcp");
    static const size_t counts[] = { 1, 7, 100, 3000, 40000, 300000 };
    struct seen aligned = { 64 };
    for (size_t i = 0; i < 2 * sizeof counts / sizeof counts[0]; i++) {
        size_t count = counts[i / 2], shift = i % 2;
        struct seen seen = { 64 };
        comm_op_options options = COMM_OP_OPTIONS_INIT;
        options.reduce_fn = add_and_look;
        options.reduce_context = &seen;
        char *memory = malloc(count * sizeof(double) + 16), *data = memory + shift;
        CHECK(memory != NULL);
        for (size_t j = 0; j < count; j++)
            memcpy(data + j * sizeof(double), &(double){ (double)(j % 1000) + rank }, sizeof(double));
        CHECK_OK(comm_all_reduce(world, data, data, count, COMM_DTYPE_F64, COMM_REDOP_USER, &options, NULL));
        for (size_t j = 0; j < count; j++) {
            double got, expected = (double)(j % 1000) * size + size * (size - 1) / 2;
            memcpy(&got, data + j * sizeof got, sizeof got);
            CHECK(got == expected);
        }
        CHECK_OK(comm_all_reduce(world, data, data, count, COMM_DTYPE_F64, COMM_REDOP_MAX, NULL, NULL));
        if (shift == 0 && seen.alignment < aligned.alignment)
            aligned = seen;
        free(memory);
    }
    CHECK(aligned.alignment >= sizeof(double)); /* aligned buffers: reduce_fn may use the element type */
    CHECK_OK(comm_group_close(world));
}

/* What a thread that is in a reduce_fn would wait for may be that thread. */
struct from_reduce_fn {
    comm_group *world;
    comm_work *pending;
};

static void call_libcomm(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    const struct from_reduce_fn *f = context;
    comm_group *world = f->world, *other;
    comm_work *work;
    int32_t is_done;
    float data = 0;
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("barrier: a reduce_fn must not call libcomm");
    CHECK_STATUS(comm_barrier(world, NULL, &work), COMM_ERR_INVALID);
    CHECK_STATUS(comm_send(world, &data, 1, COMM_DTYPE_F32, 0, NULL, &work), COMM_ERR_INVALID);
    CHECK_STATUS(comm_coalesce_begin(world), COMM_ERR_INVALID);
    CHECK_STATUS(comm_monitored_barrier(world, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_flush(world, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_dup(world, NULL, &other), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_close(world), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_abort(world, "no"), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_abort_all(world, "no"), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_test(f->pending, &is_done), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_wait(f->pending, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_wait_stream(f->pending, NULL), COMM_ERR_INVALID);
    CHECK(comm_work_status(f->pending) == COMM_IN_PROGRESS);
    CHECK(comm_group_size(world) > 1);
    *(float *)inout += *(const float *)in;
    (void)count, (void)dtype;
}

static void a_reduce_fn_calls_libcomm(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    struct from_reduce_fn f = { .world = world };
    float value = (float)rank;
    options.reduce_fn = call_libcomm;
    options.reduce_context = &f;
    CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, COMM_ANY_SOURCE, NULL, &f.pending));
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_USER, &options, NULL));
    CHECK(value == (float)(size * (size - 1) / 2));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_send(world, NULL, 0, COMM_DTYPE_BYTE, (rank + 1) % size, NULL, NULL));
    CHECK_OK(comm_work_wait(f.pending, 0));
    comm_work_release(f.pending);
    CHECK_OK(comm_group_close(world));
}

/* ---- What is recorded, and what hooks see ---- */

static void records_keep_what_was_asked_for(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_op_options any = COMM_OP_OPTIONS_INIT;
    comm_record records[3];
    comm_work *work;
    size_t count;
    int32_t data[4] = { 0 }, done;
    any.tag = COMM_ANY_TAG;
    CHECK_OK(comm_recv(world, data, 4, COMM_DTYPE_I32, COMM_ANY_SOURCE, &any, &work));
    CHECK(comm_work_source_rank(work) == -1 && comm_work_tag(work) == -1);
    CHECK(comm_work_received_count(work) == 0 && comm_work_duration_ns(work) == -1);
    CHECK(comm_work_seq(work) == 1 && comm_work_timeout(work) == comm_group_timeout(world));
    CHECK_OK(comm_work_test(work, &done));
    CHECK_OK(comm_send(world, &(int32_t){ 7 }, 1, COMM_DTYPE_I32, comm_group_rank(world), NULL, NULL));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(comm_work_source_rank(work) == comm_group_rank(world) && comm_work_tag(work) == 0);
    CHECK(comm_work_received_count(work) == 1);
    comm_work_release(work);
    CHECK_OK(comm_group_records(world, records, sizeof(comm_record), 3, &count));
    CHECK(count == 2 && strcmp(records[0].op, "recv") == 0 && strcmp(records[1].op, "send") == 0);
    CHECK(records[0].peer == COMM_ANY_SOURCE && records[0].tag == COMM_ANY_TAG && records[0].count == 4);
    CHECK(records[0].status == COMM_OK);
    /* Of a work that receives nothing, the facts of a receive stay what they were. */
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(comm_work_source_rank(work) == -1 && comm_work_tag(work) == -1 && comm_work_received_count(work) == 0);
    comm_work_release(work);
    /* Less room than records: the newest, the oldest of them first. */
    CHECK_OK(comm_group_records(world, records, sizeof(comm_record), 2, &count));
    CHECK(count == 2 && strcmp(records[0].op, "send") == 0 && strcmp(records[1].op, "barrier") == 0);
    CHECK_OK(comm_group_close(world));
}

/* A caller that was compiled with another header has shorter or longer records. */
static void records_have_the_callers_size(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_record whole[2];
    struct longer {
        comm_record record;
        uint64_t added[3];
    } longer[2];
    enum { SHORT = offsetof(comm_record, peer) };
    char shorter[2 * SHORT + 1];
    size_t count;
    options.label = "labelled";
    CHECK_OK(comm_barrier(world, &options, NULL));
    CHECK_OK(comm_all_reduce(world, &(float){ 1 }, &(float){ 0 }, 1, COMM_DTYPE_F32, COMM_REDOP_MAX, &options, NULL));
    CHECK_OK(comm_group_records(world, whole, sizeof(comm_record), 2, &count));
    memset(longer, 0x55, sizeof longer);
    CHECK_OK(comm_group_records(world, (comm_record *)longer, sizeof longer[0], 2, &count));
    for (int i = 0; i < 2; i++) {
        CHECK(count == 2 && longer[i].record.seq == (uint64_t)i + 1 && strcmp(longer[i].record.label, "labelled") == 0);
        CHECK(strcmp(longer[i].record.op, whole[i].op) == 0);
        CHECK(longer[i].added[0] == 0 && longer[i].added[2] == 0);
    }
    memset(shorter, 0x55, sizeof shorter);
    CHECK_OK(comm_group_records(world, (comm_record *)shorter, SHORT, SIZE_MAX / SHORT, &count));
    CHECK(count == 2 && memcmp(shorter, &whole[0], SHORT) == 0 && memcmp(shorter + SHORT, &whole[1], SHORT) == 0);
    CHECK(shorter[2 * SHORT] == 0x55);
    CHECK_STATUS(comm_group_records(world, whole, 0, 2, &count), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("sizeof(comm_record)");
    CHECK_OK(comm_group_close(world));
}

struct told {
    int count;
    char ops[8][24];
};

static void write_down(const comm_event *event, void *context)
{
    struct told *told = context;
    if (told->count < 8)
        snprintf(told->ops[told->count++], sizeof told->ops[0], "%s", event->record->op);
    CHECK(event->record_bytes == sizeof(comm_record) && event->struct_bytes == sizeof(comm_event));
}

/* Forget what was told; it must have been these two. */
static void was_told(struct told *told, const char *first, const char *second)
{
    CHECK(told->count == 2 && strcmp(told->ops[0], first) == 0 && strcmp(told->ops[1], second) == 0);
    told->count = 0;
}

static void a_byte_string_is_two_operations(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("tcp");
    struct told told = { 0 };
    int32_t hook;
    void *data;
    size_t *lengths, bytes;
    CHECK_OK(comm_group_hook_add(world, COMM_EVENT_SUBMIT, write_down, &told, &hook));
    CHECK_OK(comm_all_gather_bytes(world, "ab", 2, NULL, &data, &lengths));
    comm_free(data);
    comm_free(lengths);
    was_told(&told, "all_gather", "all_gather");
    CHECK_OK(comm_broadcast_bytes(world, "ab", 2, 0, NULL, &data, &bytes));
    comm_free(data);
    was_told(&told, "broadcast", "broadcast");
    CHECK(comm_group_seq(world) == 4);
    if (rank == 0) {
        CHECK_OK(comm_send_bytes(world, "abc", 3, 1, NULL));
        was_told(&told, "send", "send");
    } else if (rank == 1) {
        CHECK_OK(comm_recv_bytes(world, 0, NULL, &data, &bytes, NULL));
        comm_free(data);
        was_told(&told, "recv", "recv");
    }
    CHECK_OK(comm_monitored_barrier(world, NULL));
    CHECK(told.count == 0 && size > 1);
    CHECK_OK(comm_group_close(world));
}

static void wait_for_a_work_that_is_done(comm_work *work, comm_status status, void *context)
{
    comm_work *done = context;
    CHECK_OK(status);
    CHECK_OK(comm_work_wait(work, 0));
    CHECK_OK(comm_work_wait(done, 1));
    CHECK_OK(comm_work_wait_all(&done, 1, 0));
}

static void a_callback_may_wait_for_what_is_done(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_work *done, *work;
    CHECK_OK(comm_barrier(world, NULL, &done));
    CHECK_OK(comm_work_wait(done, 0));
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK_OK(comm_work_on_complete(work, wait_for_a_work_that_is_done, done));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK_OK(comm_group_close(world)); /* the callback has returned */
    comm_work_release(work);
    comm_work_release(done);
}

/* ---- Names ---- */

static void the_newest_group_of_a_name_is_found(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp"), *first, *second, *found;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.name = "twice";
    CHECK_OK(comm_group_dup(world, &options, &first));
    CHECK_OK(comm_group_dup(world, &options, &second));
    CHECK_OK(comm_group_find(world, "twice", &found));
    CHECK(found == second);
    CHECK_OK(comm_barrier(first, NULL, NULL)); /* they are two groups all the same */
    CHECK_OK(comm_barrier(second, NULL, NULL));
    CHECK_OK(comm_group_close(second));
    CHECK_OK(comm_group_find(world, "twice", &found));
    CHECK(found == first);
    CHECK_OK(comm_group_close(first));
    CHECK_STATUS(comm_group_find(world, "twice", &found), COMM_ERR_NOT_FOUND);
    CHECK_OK(comm_group_close(world));
}

/* ---- Batches ---- */

static void a_batch_borrows_options_and_arrays_during_the_call(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_record record;
    size_t count, counts[COUNT_MAX], offsets[COUNT_MAX];
    float factor = 2, value = 1;
    char label[] = "mine";
    int32_t mine = comm_group_rank(world), all[2 * COUNT_MAX];
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    for (int r = 0; r < size; r++) {
        counts[r] = 1;
        offsets[r] = 2 * (size_t)r;
    }
    options.label = label;
    options.premul = &factor;
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_all_gather_v(world, &mine, all, counts, offsets, COMM_DTYPE_I32, NULL, NULL));
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, &options, NULL));
    memset(counts, 0xff, sizeof counts);
    memset(offsets, 0, sizeof offsets);
    memset(label, 'x', sizeof label - 1);
    memset(&options, 0xff, sizeof options);
    factor = 99;
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK(value == 2 * (float)size);
    for (int r = 0; r < size; r++)
        CHECK(all[2 * r] == r);
    CHECK_OK(comm_group_records(world, &record, sizeof(comm_record), 1, &count));
    CHECK(count == 1 && strcmp(record.label, "mine") == 0);
    CHECK_OK(comm_group_close(world));
}

/* And it is the first of its failures that a batch reports; a label stands in the text. */
static void a_batch_reports_its_first_failure(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *sends[2];
    int32_t data[4] = { 0 }, received[4];
    for (int i = 0; i < 2; i++)
        CHECK_OK(comm_send(world, data, 4, COMM_DTYPE_I32, rank, NULL, &sends[i]));
    CHECK_OK(comm_coalesce_begin(world));
    options.label = "the first";
    CHECK_OK(comm_recv(world, received, 1, COMM_DTYPE_I32, rank, &options, NULL));
    options.label = "the second";
    CHECK_OK(comm_recv(world, received + 2, 1, COMM_DTYPE_I32, rank, &options, NULL));
    CHECK_STATUS(comm_coalesce_end(world, NULL, NULL), COMM_ERR_TRUNCATED);
    CHECK_ERROR_SAYS("recv 'the first' #3");
    for (int i = 0; i < 2; i++) {
        CHECK_OK(comm_work_wait(sends[i], 0));
        comm_work_release(sends[i]);
    }
    CHECK_OK(comm_group_close(world));
}

/* Of a limit of the operation's own and one of the batch the shorter one counts; rank 1 never comes. */
static void a_batch_has_a_limit_for_its_operations(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    static const struct {
        int64_t own, of_batch;
        const char *says;
    } cases[] = { { 0, 40, "limit of 40 ms" }, { 60000, 40, "limit of 40 ms" }, { 40, 60000, "limit of 40 ms" },
                  { COMM_TIMEOUT_INFINITE, 40, "limit of 40 ms" }, { 40, 0, "limit of 40 ms" } };
    comm_group *world = ranks_world("tcp"), *group;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        comm_op_options own = COMM_OP_OPTIONS_INIT, of_batch = COMM_OP_OPTIONS_INIT;
        comm_work *work;
        own.timeout_ms = cases[i].own;
        of_batch.timeout_ms = cases[i].of_batch;
        CHECK_OK(comm_group_dup(world, NULL, &group));
        if (rank == 0) {
            CHECK_OK(comm_coalesce_begin(group));
            CHECK_OK(comm_barrier(group, &own, NULL));
            CHECK_OK(comm_coalesce_end(group, &of_batch, &work));
            CHECK(comm_work_timeout(work) == (cases[i].of_batch ? cases[i].of_batch : COMM_TIMEOUT_INFINITE));
            CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_DEADLINE);
            CHECK_ERROR_SAYS(cases[i].says);
            comm_work_release(work);
        }
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_group_close(group));
    }
    CHECK_OK(comm_group_close(world));
}

static void a_batch_has_a_label_for_its_operations(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_op_options own = COMM_OP_OPTIONS_INIT, of_batch = COMM_OP_OPTIONS_INIT;
    char label[] = "of the batch";
    comm_record records[2];
    comm_work *work;
    size_t count;
    own.label = "its own";
    of_batch.label = label;
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_barrier(world, &own, NULL));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_coalesce_end(world, &of_batch, &work));
    memset(label, 'x', sizeof label - 1); /* borrowed */
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    CHECK_OK(comm_group_records(world, records, sizeof(comm_record), 2, &count));
    CHECK(strcmp(records[0].label, "its own") == 0 && strcmp(records[1].label, "of the batch") == 0);
    /* The next batch has none of it. */
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK_OK(comm_group_records(world, records, sizeof(comm_record), 1, &count));
    CHECK(strcmp(records[0].label, "") == 0);
    CHECK_OK(comm_group_close(world));
}

/* What belongs to one call is refused, and the batch stays open. */
static void other_options_are_not_the_batch_s(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_op_options wrong[8];
    float value = 1;
    for (size_t i = 0; i < 8; i++)
        wrong[i] = (comm_op_options)COMM_OP_OPTIONS_INIT;
    wrong[0].flags = COMM_OP_FLAG_RANK_ORDER;
    wrong[1].tag = 1;
    wrong[2].device = COMM_DEVICE_CPU;
    wrong[3].premul = &value;
    wrong[4].reduce_fn = add_and_look;
    wrong[5].element_bytes = 8;
    wrong[6].timeout_ms = -2;
    wrong[7].label = "a\nb";
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL));
    for (size_t i = 0; i < 8; i++) {
        CHECK_STATUS(comm_coalesce_end(world, &wrong[i], NULL), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("comm_coalesce_end");
    }
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK(value == (float)size);
    CHECK_OK(comm_group_close(world));
}

static void options_of_a_backend_are_checked(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp"), *group = NULL;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    static const char *const wrong[] = { "cpu:tcp?lanes=0", "cpu:tcp?lanes=17", "cpu:tcp?lanes=x", "cpu:tcp?lane=4" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options.backend = wrong[i];
        CHECK_STATUS(comm_group_dup(world, &options, &group), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("lane");
    }
    options.backend = "cpu:tcp?lanes=16";
    CHECK_OK(comm_group_dup(world, &options, &group));
    CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_group_close(world));
}

static void flush_does_not_see_an_open_batch(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world("tcp");
    int32_t value = 1;
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(comm_group_seq(world) == 0);
    CHECK_OK(comm_group_flush(world, 0));
    CHECK(value == 1);
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK(value == size);
    CHECK_OK(comm_group_close(world));
}

/* What was written down in it is forgotten, on a round-robin group, too; this thread may go on with other groups. */
static void close_forgets_an_open_batch(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world("tcp"), *copy, *turns;
    int32_t value = 1;
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    CHECK_OK(comm_group_round_robin(&world, 1, NULL, &turns));
    CHECK_OK(comm_coalesce_begin(copy));
    CHECK_OK(comm_all_reduce(copy, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK_OK(comm_coalesce_begin(turns));
    CHECK_OK(comm_all_reduce(turns, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK_OK(comm_group_close(copy));
    CHECK_OK(comm_group_close(turns));
    /* Not in a batch: it is done when the call returns. */
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(value == size);
    CHECK_OK(comm_group_close(world));
}

/* ---- monitored_barrier ---- */

static void who_is_late_for_a_monitored_barrier_is_told(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    comm_op_options brief = COMM_OP_OPTIONS_INIT;
    brief.timeout_ms = 50;
    if (rank == 0) {
        CHECK_STATUS(comm_monitored_barrier(world, &brief), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("2 ranks have not come within 50 ms: 1, 2");
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 1) { /* rank 0 is not in another one */
        CHECK_STATUS(comm_monitored_barrier(world, &brief), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("no answer from rank 0");
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 2) { /* rank 0 is: the answer comes long before the limit of this group, 30 min */
        CHECK_STATUS(comm_monitored_barrier(world, NULL), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("rank 0 says");
    }
    CHECK_OK(comm_monitored_barrier(world, NULL));
    /* A rank that has given up for itself has come all the same. */
    if (rank == 1)
        CHECK_STATUS(comm_monitored_barrier(world, &brief), COMM_ERR_TIMEOUT);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank != 1)
        CHECK_OK(comm_monitored_barrier(world, NULL));
    CHECK_OK(comm_monitored_barrier(world, NULL));
    CHECK_OK(comm_group_close(world));
}

/* ---- What stays ---- */

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void two_descriptors_stay_after_the_last_close(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world;
    comm_store *store;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    int before = count_descriptors(), after[3];
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ranks_init(&options, &world));
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_group_close(world));
        comm_store_options serving = COMM_STORE_OPTIONS_INIT;
        serving.serve = 1;
        CHECK_OK(comm_store_open("tcp://127.0.0.1:0", &serving, &store));
        comm_store_close(store);
        after[i] = count_descriptors();
    }
    CHECK(after[0] <= before + 2 && after[2] == after[0]);
}

int main(void)
{
    const struct ranks_options how = { .limit_s = 60, .name = "manual" };
    return ranks_run(3, &how, forms_match_as_the_manual_says, NULL) ||
           ranks_run(2, &how, rank_order_on_one_side_is_a_mismatch, NULL) ||
           ranks_run(2, &how, structs_of_two_sizes_are_a_mismatch, NULL) ||
           ranks_run(2, &how, a_message_that_came_before_the_call_is_compared, NULL) ||
           ranks_run(3, &how, in_place_is_the_own_block, NULL) ||
           ranks_run(4, &how, blocks_that_are_read_may_overlap, NULL) ||
           ranks_run(3, &how, any_alignment_works, NULL) || ranks_run(5, &how, any_alignment_works, NULL) ||
           ranks_run(3, &how, a_reduce_fn_calls_libcomm, (void *)"tcp") ||
           ranks_run(3, &how, a_reduce_fn_calls_libcomm, (void *)"shm") ||
           ranks_run(1, &how, records_keep_what_was_asked_for, NULL) ||
           ranks_run(3, &how, a_byte_string_is_two_operations, NULL) ||
           ranks_run(3, &how, a_callback_may_wait_for_what_is_done, NULL) ||
           ranks_run(2, &how, the_newest_group_of_a_name_is_found, NULL) ||
           ranks_run(3, &how, a_batch_borrows_options_and_arrays_during_the_call, NULL) ||
           ranks_run(1, &how, a_batch_reports_its_first_failure, NULL) ||
           ranks_run(1, &how, records_have_the_callers_size, NULL) ||
           ranks_run(2, &how, a_batch_has_a_limit_for_its_operations, NULL) ||
           ranks_run(2, &how, a_batch_has_a_label_for_its_operations, NULL) ||
           ranks_run(2, &how, other_options_are_not_the_batch_s, NULL) ||
           ranks_run(2, &how, options_of_a_backend_are_checked, NULL) ||
           ranks_run(3, &how, flush_does_not_see_an_open_batch, NULL) ||
           ranks_run(3, &how, close_forgets_an_open_batch, NULL) ||
           ranks_run(3, &how, who_is_late_for_a_monitored_barrier_is_told, NULL) ||
           ranks_run(2, &how, two_descriptors_stay_after_the_last_close, NULL);
}

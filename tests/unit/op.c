/* Checks of an op: what is refused, with which words; and which ops have the same signature. */
#include "core/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static const struct op_place place = { "world", 1, 4, 1 };
static float memory[64], other[64];

static comm_op all_reduce(const void *send, void *recv, size_t count)
{
    return (comm_op){ .kind = COMM_OP_ALL_REDUCE,
                      .dtype = COMM_DTYPE_F32,
                      .redop = COMM_REDOP_SUM,
                      .root = -1,
                      .send = { .data = (void *)send, .count = count },
                      .recv = { .data = recv, .count = count } };
}

static comm_op all_gather(const void *send, void *recv, size_t count)
{
    comm_op op = all_reduce(send, recv, count);
    op.kind = COMM_OP_ALL_GATHER;
    return op;
}

static void assert_refused(comm_op op, const comm_op_options *options, comm_status expected, const char *words)
{
    comm_status status = comm__op_prepare(&op, &place, options);
    if (status != expected || !strstr(comm_last_error(), words))
        fail_msg("%s '%s'; it should be %s and say '%s'", comm_status_name(status), comm_last_error(),
                 comm_status_name(expected), words);
}

static void assert_taken(comm_op op, const comm_op_options *options)
{
    if (comm__op_prepare(&op, &place, options) != COMM_OK)
        fail_msg("%s", comm_last_error());
}

static void texts_name_op_group_and_rank(void **state)
{
    (void)state;
    comm_op op = all_reduce(memory, other, 4);
    op.dtype = 99;
    assert_refused(op, NULL, COMM_ERR_INVALID, "all_reduce on group 'world' (rank 1 of 4): there is no dtype 99");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.label = "loss";
    assert_refused(op, &options, COMM_ERR_INVALID, "all_reduce 'loss' on group");
    op.dtype = COMM_DTYPE_F32;
    options.timeout_ms = -7;
    assert_refused(op, &options, COMM_ERR_INVALID, "options->timeout_ms is -7");
    options.struct_bytes = 0;
    assert_refused(op, &options, COMM_ERR_INVALID,
                   "all_reduce on group 'world' (rank 1 of 4): comm_op_options: struct");
}

static void reduce_nothing(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    (void)in, (void)inout, (void)count, (void)dtype, (void)context;
}

static void types_and_reduce_ops_are_checked(void **state)
{
    (void)state;
    comm_op op = all_reduce(memory, other, 4);
    op.redop = 77;
    assert_refused(op, NULL, COMM_ERR_INVALID, "no reduce op 77");
    op.redop = COMM_REDOP_BXOR;
    assert_refused(op, NULL, COMM_ERR_UNSUPPORTED, "'bxor' is not defined for dtype f32");
    op.redop = COMM_REDOP_USER;
    assert_refused(op, NULL, COMM_ERR_INVALID, "reduce_fn");
    op.redop = COMM_REDOP_PREMUL_SUM;
    assert_refused(op, NULL, COMM_ERR_INVALID, "premul");
    op.redop = COMM_REDOP_SUM;
    op.dtype = COMM_DTYPE_BYTE;
    assert_refused(op, NULL, COMM_ERR_UNSUPPORTED, "byte");
    op.dtype = COMM_DTYPE_F32;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.premul = memory;
    assert_refused(op, &options, COMM_ERR_INVALID,
                   "options->premul is given, but it is for COMM_REDOP_PREMUL_SUM; the reduce op is sum");
    options.premul = NULL;
    options.reduce_fn = reduce_nothing;
    assert_refused(op, &options, COMM_ERR_INVALID,
                   "options->reduce_fn is given, but it is for COMM_REDOP_USER; the reduce op is sum");
    op.redop = COMM_REDOP_USER;
    assert_taken(op, &options);
    op = all_gather(memory, other, 4);
    assert_refused(op, &options, COMM_ERR_INVALID, "options->reduce_fn is given");
    options.reduce_fn = NULL;
    options.premul = memory;
    assert_refused(op, &options, COMM_ERR_INVALID, "options->premul is given");
}

static void buffers_are_checked(void **state)
{
    (void)state;
    assert_refused(all_reduce(NULL, other, 4), NULL, COMM_ERR_INVALID, "send buffer is NULL, but 16 bytes");
    assert_refused(all_reduce(memory, NULL, 4), NULL, COMM_ERR_INVALID, "recv buffer is NULL");
    assert_taken(all_reduce(NULL, NULL, 0), NULL);
    assert_refused(all_reduce(memory, other, SIZE_MAX / 2), NULL, COMM_ERR_INVALID, "longer than the address space");
    assert_refused(all_reduce(memory, other, (size_t)-4), NULL, COMM_ERR_INVALID, "is it negative?");
    assert_refused(all_gather(memory, other, SIZE_MAX / 8), NULL, COMM_ERR_INVALID, "longer than the address space");
    /* Not that the buffers overlap, nor that there is none. */
    assert_refused(all_reduce(memory, other, (size_t)1 << 60), NULL, COMM_ERR_INVALID,
                   "the count 1152921504606846976 is absurd: 4611686018427387904 bytes of f32");
    assert_refused(all_reduce(NULL, other, (size_t)1 << 62), NULL, COMM_ERR_INVALID,
                   "the count 4611686018427387904 is absurd: more than 18446744073709551615 bytes of f32");
    assert_refused(all_gather(memory, memory, (size_t)1 << 56), NULL, COMM_ERR_INVALID,
                   "the count 72057594037927936 is absurd: 288230376151711744 bytes of f32");
}

static void only_the_named_overlaps_are_taken(void **state)
{
    (void)state;
    assert_taken(all_reduce(memory, memory, 8), NULL);
    assert_taken(all_reduce(memory, memory + 8, 8), NULL);
    assert_refused(all_reduce(memory, memory + 4, 8), NULL, COMM_ERR_INVALID, "overlap");
    assert_refused(all_reduce(memory, (char *)memory + 8 * sizeof *memory - 1, 8), NULL, COMM_ERR_INVALID, "overlap");
    assert_refused(all_reduce((char *)memory + 8 * sizeof *memory - 1, memory, 8), NULL, COMM_ERR_INVALID, "overlap");
    assert_taken(all_gather(memory + 8, memory, 8), NULL); /* rank 1's own block */
    assert_refused(all_gather(memory, memory, 8), NULL, COMM_ERR_INVALID, "overlap");
    assert_refused(all_gather(memory + 9, memory, 8), NULL, COMM_ERR_INVALID, "overlap");
    assert_taken(all_gather(memory + 32, memory, 8), NULL);

    const size_t counts[] = { 4, 2, 0, 1 };
    comm_op op = all_gather(memory + 4, memory, 0);
    op.flags = COMM_OP_FLAG_UNEVEN;
    op.recv.counts = counts;
    assert_taken(op, NULL);
    op.send.data = memory + 5;
    assert_refused(op, NULL, COMM_ERR_INVALID, "overlap");
    op.recv.counts = NULL;
    assert_refused(op, NULL, COMM_ERR_INVALID, "counts are NULL");
}

static void what_a_rank_sends_itself_is_what_it_expects(void **state)
{
    (void)state;
    const size_t sent[] = { 1, 2, 3, 4 }, unlike[] = { 1, 3, 3, 4 }, same[] = { 5, 2, 6, 7 };
    comm_op op = { .kind = COMM_OP_ALL_TO_ALL, .dtype = COMM_DTYPE_F32, .root = -1, .flags = COMM_OP_FLAG_UNEVEN,
                   .send = { .data = memory, .counts = sent }, .recv = { .data = memory + 32, .counts = same } };
    assert_taken(op, NULL);
    op.recv.counts = unlike;
    assert_refused(op, NULL, COMM_ERR_INVALID, "this rank sends itself 2 elements, but expects 3 of itself");
    op = (comm_op){ .kind = COMM_OP_GATHER, .dtype = COMM_DTYPE_F32, .root = place.rank, .flags = COMM_OP_FLAG_UNEVEN,
                    .send = { .data = memory + 60, .count = 2 }, .recv = { .data = memory, .counts = sent } };
    assert_taken(op, NULL);
    op.send.count = 1;
    assert_refused(op, NULL, COMM_ERR_INVALID, "sends itself 1 elements, but expects 2");
    op.root = place.rank + 1; /* elsewhere only the root has counts */
    assert_taken(op, NULL);
    op = (comm_op){ .kind = COMM_OP_SCATTER, .dtype = COMM_DTYPE_F32, .root = place.rank, .flags = COMM_OP_FLAG_UNEVEN,
                    .send = { .data = memory, .counts = sent }, .recv = { .data = memory + 60, .count = 2 } };
    assert_taken(op, NULL);
    op.recv.count = 3;
    assert_refused(op, NULL, COMM_ERR_INVALID, "sends itself 2 elements, but expects 3");
}

static void sides_that_a_rank_does_not_have_are_dropped(void **state)
{
    (void)state;
    comm_op op = { .kind = COMM_OP_GATHER,
                   .dtype = COMM_DTYPE_F32,
                   .root = 2,
                   .send = { .data = memory, .count = 4 },
                   .recv = { .data = NULL, .count = 4 } };
    assert_int_equal(comm__op_prepare(&op, &place, NULL), COMM_OK);
    assert_int_equal(op.recv.count, 0);
    op = (comm_op){ .kind = COMM_OP_BROADCAST,
                    .dtype = COMM_DTYPE_F32,
                    .root = 1,
                    .send = { .data = memory, .count = 4 },
                    .recv = { .data = memory, .count = 4 } };
    assert_int_equal(comm__op_prepare(&op, &place, NULL), COMM_OK);
    assert_null(op.recv.data);
    assert_ptr_equal(op.send.data, memory);
    op.root = 4;
    assert_refused(op, NULL, COMM_ERR_INVALID, "root is 4; the ranks are 0 to 3");
}

static void peers_and_tags_are_checked(void **state)
{
    (void)state;
    comm_op send = {
        .kind = COMM_OP_SEND, .dtype = COMM_DTYPE_F32, .root = COMM_ANY_SOURCE, .send = { .data = memory, .count = 4 }
    };
    comm_op recv = {
        .kind = COMM_OP_RECV, .dtype = COMM_DTYPE_F32, .root = COMM_ANY_SOURCE, .recv = { .data = memory, .count = 4 }
    };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    assert_refused(send, NULL, COMM_ERR_INVALID, "peer is -1");
    assert_taken(recv, NULL);
    options.tag = COMM_ANY_TAG;
    send.root = 0;
    assert_refused(send, &options, COMM_ERR_INVALID, "tag is -1");
    assert_taken(recv, &options);
    options.tag = -2; /* the library's own */
    assert_refused(send, &options, COMM_ERR_INVALID, "tag is -2");
    assert_refused(recv, &options, COMM_ERR_INVALID, "tag is -2");
    recv.root = -2;
    assert_refused(recv, NULL, COMM_ERR_INVALID, "peer is -2");
}

static void options_of_another_version_are_told_apart(void **state)
{
    (void)state;
    comm_op_options none = { 0 };
    assert_refused(all_reduce(memory, other, 4), &none, COMM_ERR_INVALID, "COMM_OP_OPTIONS_INIT");
    struct {
        comm_op_options known;
        uint64_t newer;
    } newer = { COMM_OP_OPTIONS_INIT, 0 };
    newer.known.struct_bytes = sizeof newer;
    assert_taken(all_reduce(memory, other, 4), &newer.known);
    newer.newer = 1;
    assert_refused(all_reduce(memory, other, 4), &newer.known, COMM_ERR_VERSION, "does not know");
    comm_op_options flags = COMM_OP_OPTIONS_INIT;
    flags.flags = 0x40;
    assert_refused(all_reduce(memory, other, 4), &flags, COMM_ERR_INVALID, "0x40");
}

static uint64_t signature(comm_op op, int32_t rank)
{
    struct op_place here = { "world", rank, 4, rank };
    assert_int_equal(comm__op_prepare(&op, &here, NULL), COMM_OK);
    return op.signature;
}

static void signatures_agree_where_calls_match(void **state)
{
    (void)state;
    comm_op op = all_reduce(memory, other, 4), different = op;
    assert_true(signature(op, 0) == signature(op, 3));
    different.send.count = different.recv.count = 5;
    assert_true(signature(op, 0) != signature(different, 0));
    different = op;
    different.redop = COMM_REDOP_MAX;
    assert_true(signature(op, 0) != signature(different, 0));
    different = op;
    different.dtype = COMM_DTYPE_I32;
    assert_true(signature(op, 0) != signature(different, 0));

    /* The root of a gather knows all counts, the others only their own. */
    const size_t counts[] = { 1, 2, 3, 4 };
    comm_op root = { .kind = COMM_OP_GATHER,
                     .dtype = COMM_DTYPE_F32,
                     .root = 0,
                     .flags = COMM_OP_FLAG_UNEVEN,
                     .send = { .data = memory, .count = 1 },
                     .recv = { .data = other, .counts = counts } };
    comm_op leaf = root;
    leaf.send.count = 3;
    leaf.recv.counts = NULL;
    assert_true(signature(root, 0) == signature(leaf, 2));

    const size_t counts_too[] = { 1, 2, 3, 5 };
    comm_op gathered = all_gather(memory, other, 0), gathered_too;
    gathered.flags = COMM_OP_FLAG_UNEVEN;
    gathered.recv.counts = counts;
    gathered_too = gathered;
    assert_true(signature(gathered, 1) == signature(gathered_too, 3));
    gathered_too.recv.counts = counts_too;
    assert_true(signature(gathered, 1) != signature(gathered_too, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_name_op_group_and_rank),
        cmocka_unit_test(types_and_reduce_ops_are_checked),
        cmocka_unit_test(buffers_are_checked),
        cmocka_unit_test(only_the_named_overlaps_are_taken),
        cmocka_unit_test(sides_that_a_rank_does_not_have_are_dropped),
        cmocka_unit_test(what_a_rank_sends_itself_is_what_it_expects),
        cmocka_unit_test(peers_and_tags_are_checked),
        cmocka_unit_test(options_of_another_version_are_told_apart),
        cmocka_unit_test(signatures_agree_where_calls_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Two ranks execute a plan step by step. all_reduce by "ring" has two rounds between two ranks: in each, both send a
 * half of the vector and receive the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/exec/groups.h"
#include "core/exec/queue.h"
#include "pair.h"

enum { COUNT_MAX = 256 };

static uint32_t input[2][COUNT_MAX], output[2][COUNT_MAX];
static struct pair_work works[2][2]; /* by rank and number of the op */

static void open_with(int64_t lanes, int64_t slice_bytes)
{
    memset(works, 0, sizeof works);
    memset(output, 0, sizeof output);
    for (uint32_t i = 0; i < COUNT_MAX; i++) {
        input[0][i] = i + 1;
        input[1][i] = 1000 * i;
    }
    pair_open("all_reduce:ring", lanes, slice_bytes);
}

static int setup(void **state)
{
    (void)state;
    open_with(1, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pair_close();
    return 0;
}

static void submit(int32_t rank, uint64_t seq, size_t count)
{
    comm_op op = { .struct_bytes = sizeof op,
                   .kind = COMM_OP_ALL_REDUCE, .dtype = COMM_DTYPE_U32, .redop = COMM_REDOP_SUM,
                   .root = -1, .element_bytes = 4, .seq = seq, .group_seq = seq, .signature = 9,
                   .timeout_ns = INT64_MAX,
                   .send = { .data = input[rank], .count = count },
                   .recv = { .data = output[rank], .count = count } };
    assert_int_equal(pair_submit(rank, &op, &works[rank][seq - 1]), COMM_OK);
}

static void start_both(size_t count)
{
    submit(0, 1, count);
    submit(1, 1, count);
    pair_turn(0);
    pair_turn(1);
}

static void finish_both(void)
{
    pair_deliver_all();
    pair_turn(0);
    pair_turn(1);
}

static void both_have_the_sum(size_t count)
{
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(works[rank][0].completed, 1);
        assert_int_equal(works[rank][0].status, COMM_OK);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(output[rank][i], input[0][i] + input[1][i]);
    }
}

static int round_of(int32_t rank)
{
    return pair_group(rank)->head->slots[0].round;
}

static void quiet(void)
{
    const char *unrest = pair_unrest();
    if (unrest)
        fail_msg("%s", unrest);
}

/* ---- Rounds ---- */

static void a_round_begins_when_the_one_before_is_done(void **state)
{
    (void)state;
    start_both(4);
    assert_int_equal(pair_next(0)->round, 0);
    assert_int_equal(pair_deliver(0), FRAME_EAGER);
    assert_null(pair_next(0)); /* Round 1 waits for the message of the other. */
    assert_int_equal(round_of(0), 0);
    assert_int_equal(round_of(1), 1);
    assert_int_equal(pair_deliver(1), FRAME_EAGER);
    assert_int_equal(round_of(0), 1);
    assert_int_equal(pair_next(0)->round, 1);
    finish_both();
    both_have_the_sum(4);
    quiet();
}

static void a_collective_starts_and_ends_with_the_turn(void **state)
{
    (void)state;
    submit(0, 1, 4);
    assert_null(pair_next(0));
    submit(1, 1, 4);
    pair_turn(0);
    pair_turn(1);
    pair_deliver_all();
    assert_null(pair_group(0)->head);
    assert_int_equal(works[0][0].completed, 0);
    pair_turn(0);
    assert_int_equal(works[0][0].completed, 1);
}

static void the_next_collective_waits_for_its_turn(void **state)
{
    (void)state;
    submit(0, 1, 4);
    submit(0, 2, 4);
    submit(1, 1, 4);
    pair_turn(0);
    pair_turn(1);
    pair_deliver_all();
    assert_int_equal(pair_group(0)->head->started, 0);
    pair_turn(0);
    assert_int_equal(pair_group(0)->head->started, 1);
    assert_int_equal(pair_next(0)->seq, 2);
    submit(1, 2, 4);
    pair_turn(1);
    finish_both();
    both_have_the_sum(4);
    assert_int_equal(works[0][1].completed, 1);
    quiet();
}

static void a_queued_send_keeps_its_round_open(void **state)
{
    (void)state;
    pair_slow(0, 1);
    start_both(4);
    assert_int_equal(pair_deliver(1), FRAME_EAGER);
    assert_int_equal(round_of(0), 0); /* All has come, but not all is sent. */
    pair_flush(0);
    assert_int_equal(round_of(0), 1);
    pair_deliver_all();
    assert_non_null(pair_group(0)->head);
    pair_flush(0);
    assert_null(pair_group(0)->head);
    finish_both();
    both_have_the_sum(4);
    quiet();
}

static void a_message_comes_for_a_later_round(void **state)
{
    (void)state;
    pair_slow(1, 1);
    start_both(4);
    pair_move(1); /* Rank 1 is not told: it stays in round 0. */
    pair_deliver(1);
    pair_deliver(0);
    assert_int_equal(pair_next(0)->round, 1);
    pair_deliver(0);
    assert_int_equal(round_of(1), 0);
    assert_int_equal(pair_port(1)->unexpected_count, 1);
    assert_int_equal(output[1][2], 0); /* It is not in its place before its round. */
    pair_flush(1);
    assert_int_equal(pair_port(1)->unexpected_count, 0);
    pair_flush(1);
    finish_both();
    both_have_the_sum(4);
    quiet();
}

static void a_message_comes_before_the_call(void **state)
{
    (void)state;
    submit(0, 1, 4);
    pair_turn(0);
    pair_deliver(0);
    assert_int_equal(pair_port(1)->unexpected_count, 1);
    submit(1, 1, 4);
    pair_turn(1);
    finish_both();
    both_have_the_sum(4);
    quiet();
}

/* ---- Slices ---- */

static void as_many_slices_as_lanes_are_under_way(void **state)
{
    (void)state;
    pair_close();
    open_with(2, 64); /* 4 slices of 16 elements, and one of 3 */
    start_both(67);
    assert_int_equal(pair_group(0)->head->slice_count, 5);
    assert_int_equal(pair_next(0)->slice, 0);
    pair_deliver(0);
    assert_int_equal(pair_next(0)->slice, 1);
    pair_deliver(0);
    assert_null(pair_next(0)); /* Slice 2 waits for one of the two. */
    pair_deliver(1);
    assert_int_equal(pair_next(0)->round, 1);
    assert_int_equal(pair_next(0)->slice, 0);
    finish_both();
    both_have_the_sum(67);
    assert_int_equal(output[0][67], 0);
    quiet();
}

static void long_messages_are_cleared_unasked(void **state)
{
    size_t count = COUNT_MAX;
    (void)state;
    pair_group(0)->domain->matching.eager_bytes = pair_group(1)->domain->matching.eager_bytes = 100;
    submit(1, 1, count);
    pair_turn(1);
    assert_int_equal(pair_next(1)->type, FRAME_CTS); /* before its own message */
    pair_deliver(1);
    submit(0, 1, count);
    pair_turn(0);
    assert_int_equal(pair_deliver(0), FRAME_CTS);
    assert_int_equal(pair_next(0)->type, FRAME_DATA);
    finish_both();
    both_have_the_sum(count);
    quiet();
}

/* ---- Failing ---- */

static void a_failure_completes_the_op_once_at_the_end_of_the_turn(void **state)
{
    (void)state;
    start_both(4);
    pair_deliver_head(1);
    group_fail(pair_group(0), COMM_ERR_ABORTED, "first");
    group_fail(pair_group(0), COMM_ERR_TIMEOUT, "second");
    pair_deliver_rest(1); /* All of round 0 is done, but no round begins any more. */
    assert_int_equal(round_of(0), 0);
    assert_int_equal(works[0][0].completed, 0);
    pair_turn(0);
    assert_int_equal(works[0][0].completed, 1);
    assert_int_equal(works[0][0].status, COMM_ERR_ABORTED);
    assert_non_null(strstr(works[0][0].error, "first"));
    assert_int_equal(pair_port(0)->interest, 0);
    pair_deliver_all();
    pair_turn(0);
    pair_turn(1);
    assert_int_equal(works[0][0].completed, 1);
    assert_int_equal(works[1][0].completed, 1);
    assert_int_equal(works[1][0].status, COMM_ERR_ABORTED);
    assert_null(pair_group(0)->head);
}

/* What came before the call is of another length: the round fails at its receive and sends nothing. */
static void a_round_that_fails_does_not_go_on(void **state)
{
    (void)state;
    submit(1, 1, 8);
    pair_turn(1);
    pair_deliver(1);
    submit(0, 1, 4);
    pair_turn(0);
    assert_int_equal(works[0][0].completed, 1);
    assert_int_equal(works[0][0].status, COMM_ERR_MISMATCH);
    assert_int_equal(pair_deliver(0), FRAME_FAIL);
    pair_turn(1);
    assert_int_equal(works[1][0].status, COMM_ERR_MISMATCH);
}

/* A send was offered at once. Before it is submitted the peer leaves, and what was offered to it is dropped. */
static void submit_begun_send_to_a_peer_that_left(void)
{
    comm_op op = { .struct_bytes = sizeof op, .kind = COMM_OP_SEND, .dtype = COMM_DTYPE_U32, .root = 1,
                   .element_bytes = 4, .group_seq = 1, .flags = COMM_OP_FLAG_BEGUN, .timeout_ns = INT64_MAX,
                   .send = { .data = input[0], .count = COUNT_MAX } };
    port_left(pair_port(0));
    pair_turn(0);
    assert_int_equal(pair_group(0)->status, COMM_OK);
    assert_int_equal(pair_submit(0, &op, &works[0][0]), COMM_OK);
    pair_turn(0);
}

static void a_send_is_begun_and_its_peer_leaves(void **state)
{
    (void)state;
    submit_begun_send_to_a_peer_that_left();
    assert_int_equal(works[0][0].completed, 1);
    assert_int_equal(works[0][0].status, COMM_ERR_PEER_LOST);
    assert_non_null(strstr(works[0][0].error, "has closed its world"));
    assert_int_equal(pair_port(0)->interest, 0);
    assert_int_equal(pair_port(0)->announced, 0);
}

static enum port_begun it_is_read(struct port *p, struct message *m)
{
    (void)p, (void)m;
    return PORT_READ;
}

/* The same, but the peer has read it before. */
static void a_send_is_read_before_its_peer_leaves(void **state)
{
    struct port_ops ops = *pair_port(0)->ops;
    const struct port_ops *before = pair_port(0)->ops;
    (void)state;
    ops.adopt = it_is_read;
    pair_port(0)->ops = &ops;
    submit_begun_send_to_a_peer_that_left();
    pair_port(0)->ops = before;
    assert_int_equal(works[0][0].completed, 1);
    assert_int_equal(works[0][0].status, COMM_OK);
    assert_int_equal(pair_port(0)->announced, 0);
}

/* A message that comes between the end of the world's group and the BYE. */
static void a_world_that_is_closed_says_so(void **state)
{
    (void)state;
    pair_close_world(1);
    submit(0, 1, 4);
    pair_turn(0);
    pair_deliver_all();
    pair_turn(1);
    pair_deliver_all();
    pair_turn(0);
    assert_int_equal(works[0][0].completed, 1);
    assert_int_equal(works[0][0].status, COMM_ERR_PEER_LOST);
    assert_non_null(strstr(works[0][0].error, " has closed its world before "));
    assert_non_null(strstr(works[0][0].error, "; it has called no collective"));
    assert_int_equal(pair_lost(), 1);
}

/* ---- Hosts ---- */

/* A group's ranks are not the world's. */
static void a_group_knows_the_hosts_of_its_own_ranks(void **state)
{
    static const int32_t hosts[] = { 0, 0, 1, 1, 2, 2 };
    static const struct {
        int32_t size, world_ranks[3], hosts[3], host_count, memory;
    } cases[] = { { 3, { 5, 3, 0 }, { 2, 1, 0 }, 3, SELECT_MEMORY_NONE },
                  { 2, { 3, 2 }, { 1, 1 }, 1, SELECT_MEMORY_ALL },
                  { 3, { 3, 1, 2 }, { 1, 0, 1 }, 2, SELECT_MEMORY_HOSTS } };
    static struct domain d;
    (void)state;
    assert_true(domain_init(&d, "tcp", 3, 6, NULL));
    d.hosts = hosts;
    d.memory = SELECT_MEMORY_HOSTS;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm_group_info info = { .struct_bytes = sizeof info, .size = cases[i].size,
                                 .world_ranks = cases[i].world_ranks, .id = 1, .name = "g" };
        struct exec_group *g;
        assert_int_equal(group_create(&d, &info, &g), COMM_OK);
        assert_int_equal(g->host_count, cases[i].host_count);
        for (int32_t r = 0; r < cases[i].size; r++)
            assert_int_equal(g->hosts[r], cases[i].hosts[r]);
        assert_int_equal(g->memory, cases[i].memory);
        group_destroy(g);
    }
    domain_finish(&d);
}

/* ---- No round within another ---- */

static void messages_are_sent_within_rounds(void **state)
{
    (void)state;
    start_both(4);
    assert_int_equal(pair_group(0)->domain->peers.in_round, 0);
    pair_deliver_all();
    assert_int_equal(pair_sent(1), 4);
    assert_int_equal(pair_sent(0), 0);
    assert_int_equal(pair_group(0)->domain->peers.in_round, 0);
    finish_both();
}

#ifndef NDEBUG
/* It calls back within send, which port.h forbids. */
static int rude_send(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m)
{
    (void)h;
    (void)payload;
    (void)bytes;
    p->table->events->sent(m);
    return 0;
}
#endif

static void a_port_that_calls_back_is_noticed(void **state)
{
    (void)state;
#ifdef NDEBUG
    skip(); /* An assertion notices it. */
#else
    struct port_ops rude = *pair_port(0)->ops;
    int ended;
    rude.send = rude_send;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        pair_port(0)->ops = &rude;
        submit(0, 1, 4);
        pair_turn(0);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT);
#endif
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_round_begins_when_the_one_before_is_done),
        TEST(a_collective_starts_and_ends_with_the_turn),
        TEST(the_next_collective_waits_for_its_turn),
        TEST(a_queued_send_keeps_its_round_open),
        TEST(a_message_comes_for_a_later_round),
        TEST(a_message_comes_before_the_call),
        TEST(as_many_slices_as_lanes_are_under_way),
        TEST(long_messages_are_cleared_unasked),
        TEST(a_failure_completes_the_op_once_at_the_end_of_the_turn),
        TEST(a_round_that_fails_does_not_go_on),
        TEST(a_send_is_begun_and_its_peer_leaves),
        TEST(a_send_is_read_before_its_peer_leaves),
        TEST(a_world_that_is_closed_says_so),
        TEST(a_group_knows_the_hosts_of_its_own_ranks),
        TEST(messages_are_sent_within_rounds),
        TEST(a_port_that_calls_back_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

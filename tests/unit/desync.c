/* An operation's time is over: the other rank is asked, and the verdict says the truth about it. Time is what the test
 * says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "core/exec/desync.h"
#include "core/exec/queue.h"
#include "pair.h"

static const int64_t MS = 1000000, LIMIT_NS = 1000 * 1000000ll, STEP_NS = PAIR_ANSWER_MS * 1000000ll / 4;

static uint32_t values[2];
static struct pair_work work;

static int setup(void **state)
{
    (void)state;
    memset(&work, 0, sizeof work);
    pair_open("all_reduce:ring", 1, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pair_close();
    return 0;
}

static void look(int32_t rank, int64_t now_ns)
{
    desync_check(pair_group(rank)->domain, now_ns);
    pair_turn(rank);
}

/* Of two numbers; the first collective, called at MS. */
static comm_op all_reduce_of(uint32_t *data, int64_t timeout_ns)
{
    return (comm_op){ .struct_bytes = sizeof(comm_op), .kind = COMM_OP_ALL_REDUCE, .dtype = COMM_DTYPE_U32,
                      .redop = COMM_REDOP_SUM, .root = -1, .element_bytes = 4, .seq = 1, .group_seq = 1, .signature = 9,
                      .submitted_ns = MS, .timeout_ns = timeout_ns, .send = { .data = data, .count = 2 },
                      .recv = { .data = data, .count = 2 } };
}

/* Rank 0 calls what rank 1 does not, and asks at its limit. */
static void ask(void)
{
    const comm_op op = all_reduce_of(values, LIMIT_NS);
    assert_int_equal(pair_submit(0, &op, &work), COMM_OK);
    pair_turn(0);
    look(0, LIMIT_NS);
    assert_null(pair_group(0)->asks_for);
    look(0, LIMIT_NS + MS);
    assert_non_null(pair_group(0)->asks_for);
}

static void ended_saying(const char *words)
{
    assert_int_equal(work.completed, 1);
    assert_int_equal(work.status, COMM_ERR_DEADLINE);
    if (!strstr(work.error, words))
        fail_msg("'%s' does not say '%s'", work.error, words);
}

static void an_answer_ends_the_question(void **state)
{
    (void)state;
    ask();
    while (pair_deliver(0))
        ;
    assert_int_equal(pair_deliver(1), FRAME_ANSWER);
    look(0, LIMIT_NS + 2 * MS);
    ended_saying(" has called no collective yet");
}

/* All steps have passed, and one that answers nothing is said to have had all of that time. */
static void silence_lasts_for_all_steps(void **state)
{
    int64_t now = LIMIT_NS + MS;
    (void)state;
    ask();
    for (int i = 0; i < 3; i++) {
        now += STEP_NS - 1;
        look(0, now);
        look(0, ++now);
    }
    look(0, now + STEP_NS - 1);
    assert_int_equal(work.completed, 0);
    look(0, now + STEP_NS);
    ended_saying(" has not answered within 400 ms: it is stopped, or gets no time on a core");
}

/* A rank that does not run for long cannot tell whether the other did. */
static void a_time_without_running_is_one_step(void **state)
{
    (void)state;
    ask();
    look(0, 100 * LIMIT_NS);
    assert_int_equal(work.completed, 0);
    while (pair_deliver(0))
        ;
    assert_int_equal(pair_deliver(1), FRAME_ANSWER);
    look(0, 100 * LIMIT_NS + MS);
    ended_saying(" has called no collective yet");
}

static void trouble(const struct port *p, char *text, size_t capacity)
{
    (void)p;
    snprintf(text, capacity, "10.0.0.3:4711: no answer");
}

/* Rank 1 is in it, too, and has trouble with the rank that it waits for: rank 0, which may reach both, says so. */
static void the_other_tells_of_its_trouble(void **state)
{
    static const struct port_ops *before;
    static struct port_ops ops;
    static uint32_t others[2];
    static struct pair_work theirs;
    const comm_op op = all_reduce_of(others, 100 * LIMIT_NS);
    (void)state;
    before = pair_port(1)->ops;
    ops = *before;
    ops.describe_trouble = trouble;
    pair_port(1)->ops = &ops;
    assert_int_equal(pair_submit(1, &op, &theirs), COMM_OK);
    pair_turn(1);
    while (pair_next(1))
        pair_drop(1);
    ask();
    while (pair_next(0) && pair_next(0)->type != FRAME_QUERY)
        pair_drop(0);
    assert_int_equal(pair_deliver(0), FRAME_QUERY);
    assert_int_equal(pair_next(1)->flags & FRAME_ANSWER_HELD_UP, FRAME_ANSWER_HELD_UP);
    assert_int_equal(pair_deliver(1), FRAME_ANSWER);
    look(0, LIMIT_NS + 2 * MS);
    ended_saying("is in all_reduce #1, and waits for rank 0: 10.0.0.3:4711: no answer");
    pair_port(1)->ops = before;
}

/* It is done in the call, or on its way from there to the engine. */
static void an_operation_in_its_call_is_known(void **state)
{
    static uint32_t others[2];
    const comm_op op = all_reduce_of(others, 100 * LIMIT_NS);
    (void)state;
    ask();
    queue_runs(pair_group(1), &op);
    while (pair_next(0) && pair_next(0)->type != FRAME_QUERY)
        pair_drop(0);
    assert_int_equal(pair_deliver(0), FRAME_QUERY);
    assert_int_equal(pair_next(1)->flags & FRAME_ANSWER_ENTERED, FRAME_ANSWER_ENTERED);
    assert_int_equal(pair_deliver(1), FRAME_ANSWER);
    look(0, LIMIT_NS + 2 * MS);
    ended_saying(": all ranks have called it; rank 0 waits for rank 1");
}

/* Rank 0 receives from rank 1, which is in a collective, and waits there: for rank 0. */
static void the_peer_of_a_receive_waits_in_a_collective(void **state)
{
    static uint32_t others[2];
    static struct pair_work theirs;
    const comm_op op = all_reduce_of(others, 100 * LIMIT_NS);
    comm_op receive = { .struct_bytes = sizeof op, .kind = COMM_OP_RECV, .dtype = COMM_DTYPE_U32, .root = 1,
                        .element_bytes = 4, .seq = 1, .group_seq = 1, .submitted_ns = MS, .timeout_ns = LIMIT_NS,
                        .recv = { .data = values, .count = 2 } };
    (void)state;
    assert_int_equal(pair_submit(1, &op, &theirs), COMM_OK);
    pair_turn(1);
    assert_int_equal(pair_submit(0, &receive, &work), COMM_OK);
    pair_turn(0);
    look(0, LIMIT_NS);
    look(0, LIMIT_NS + MS);
    assert_non_null(pair_group(0)->asks_for);
    pair_deliver_all();
    look(0, LIMIT_NS + 2 * MS);
    ended_saying(" is in all_reduce #1; rank 1 waits for rank 0");
}

/* The timer may go off before the sockets are read. */
static void an_answer_that_nobody_has_read_counts(void **state)
{
    int64_t now = LIMIT_NS + MS;
    (void)state;
    ask();
    for (int i = 0; i < 3; i++)
        look(0, now += STEP_NS);
    while (pair_deliver(0))
        ;
    assert_non_null(pair_next(1));
    look(0, now + STEP_NS);
    ended_saying(" has called no collective yet");
}

/* What the operation waited for comes with the answer: its time is over, but the group goes on. */
static void what_comes_at_last_is_no_reason_to_end(void **state)
{
    int64_t now = LIMIT_NS + MS;
    static struct pair_work theirs;
    static uint32_t other[2];
    const comm_op op = all_reduce_of(other, INT64_MAX);
    (void)state;
    ask();
    for (int i = 0; i < 3; i++)
        look(0, now += STEP_NS);
    assert_int_equal(pair_submit(1, &op, &theirs), COMM_OK);
    pair_turn(1);
    while (pair_deliver(0))
        ;
    assert_non_null(pair_next(1));
    look(0, now + STEP_NS);
    look(0, now + 10 * STEP_NS);
    pair_deliver_all();
    pair_turn(0);
    pair_turn(1);
    assert_int_equal(work.completed, 1);
    assert_int_equal(work.status, COMM_OK);
    assert_int_equal(theirs.status, COMM_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_answer_ends_the_question, setup, teardown),
        cmocka_unit_test_setup_teardown(the_peer_of_a_receive_waits_in_a_collective, setup, teardown),
        cmocka_unit_test_setup_teardown(silence_lasts_for_all_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(a_time_without_running_is_one_step, setup, teardown),
        cmocka_unit_test_setup_teardown(the_other_tells_of_its_trouble, setup, teardown),
        cmocka_unit_test_setup_teardown(an_operation_in_its_call_is_known, setup, teardown),
        cmocka_unit_test_setup_teardown(an_answer_that_nobody_has_read_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(what_comes_at_last_is_no_reason_to_end, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Messages between two ranks: eager and rendezvous in every order of arrival, credit, limits, and messages that are
 * over before they are through. Rank 0 sends, rank 1 receives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "pair.h"

enum { COUNT_MAX = 4096, LONG = PAIR_EAGER + 1, POISON = 0xa5 };

static struct {
    int done, wrong;
} told[2]; /* by rank */

static struct frame head;
static uint8_t outgoing[COUNT_MAX], incoming[COUNT_MAX];
static struct message out, in;

static void on_done(struct message *m)
{
    told[m->port->table->rank].done++;
}

static void on_wrong_length(struct message *m, const struct frame *h)
{
    (void)h;
    told[m->port->table->rank].wrong++;
}

static const struct message_user strict = { .done = on_done, .wrong_length = on_wrong_length };
static const struct message_user lenient = { .done = on_done };

static struct message message(int32_t rank, uint8_t *data, size_t bytes)
{
    struct exec_group *g = pair_group(rank);
    return (struct message){ .user = &strict, .owner = g, .port = pair_port(rank), .box = &g->boxes[1 - rank],
                             .head = &head, .data = data, .bytes = bytes, .element_bytes = 1, .result_bytes = 1 };
}

static int setup(void **state)
{
    (void)state;
    pair_open(NULL, 1, 0);
    memset(told, 0, sizeof told);
    head = (struct frame){ .kind = COMM_OP_ALL_REDUCE, .group = 7, .seq = 5, .signature = 1 };
    memset(incoming, POISON, sizeof incoming);
    for (size_t i = 0; i < COUNT_MAX; i++)
        outgoing[i] = (uint8_t)(i * 7 + 1);
    out = message(0, outgoing, 0);
    in = message(1, incoming, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pair_close();
    return 0;
}

static void lengths(size_t bytes)
{
    out.bytes = in.bytes = bytes;
}

/* As the engine posts. */
static int post(struct message *m)
{
    struct unexpected *u = match_find_unexpected(m);
    if (u && m->user->wrong_length && u->head.bytes != m->bytes) {
        m->user->wrong_length(m, &u->head);
        return 0;
    }
    return match_post(m, u);
}

/* The first `bytes` have come, and nothing was written behind them. */
static void has_come(size_t bytes)
{
    assert_memory_equal(incoming, outgoing, bytes);
    for (size_t i = bytes; i < COUNT_MAX; i++)
        assert_int_equal(incoming[i], POISON);
}

static void quiet(void)
{
    const char *unrest = pair_unrest();
    if (unrest)
        fail_msg("%s", unrest);
}

static int next_type(int32_t rank)
{
    const struct frame *h = pair_next(rank);
    return h ? h->type : 0;
}

/* As if all but so much credit had been used, and received there. */
static void leave_credit(int64_t left)
{
    struct port *there = pair_port(1);
    there->eager_held = PORT_CREDIT_WINDOW - left;
    there->credit_owed = (uint32_t)there->eager_held;
    pair_port(0)->credit = left;
}

/* ---- Eager ---- */

static void eager_meets_a_posted_receive(void **state)
{
    (void)state;
    lengths(PAIR_EAGER);
    assert_int_equal(post(&in), 0);
    assert_int_equal(next_type(1), 0); /* A short message needs no clearance. */
    assert_int_equal(match_send(&out), 1);
    assert_int_equal(pair_deliver(0), FRAME_EAGER);
    assert_int_equal(told[1].done, 1);
    assert_int_equal(told[0].done, 0); /* match_send has said it. */
    assert_int_equal(in.came, PAIR_EAGER);
    has_come(PAIR_EAGER);
    quiet();
}

static void eager_is_kept_until_its_receive(void **state)
{
    static const size_t sizes[] = { 0, 1, MATCH_UNEXPECTED_INLINE, MATCH_UNEXPECTED_INLINE + 1, PAIR_EAGER };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        lengths(sizes[i]);
        memset(incoming, POISON, COUNT_MAX);
        assert_int_equal(match_send(&out), 1);
        assert_int_equal(pair_deliver(0), FRAME_EAGER);
        assert_int_equal(pair_port(1)->unexpected_count, 1);
        assert_int_equal(post(&in), 1);
        assert_int_equal(in.state, MESSAGE_DONE);
        has_come(sizes[i]);
        quiet();
    }
    assert_int_equal(told[1].done, 0); /* match_post has said it. */
}

/* Only messages of this group's collectives keep its next one from being done at once. */
static void what_comes_early_is_counted_by_groups(void **state)
{
    (void)state;
    lengths(8);
    match_send(&out);
    pair_deliver(0);
    assert_int_equal(pair_group(1)->early, 1);
    post(&in);
    assert_int_equal(pair_group(1)->early, 0);
    head.kind = COMM_OP_SEND;
    out.box = &pair_group(0)->p2p_boxes[1];
    match_send(&out);
    pair_deliver(0);
    assert_int_equal(pair_port(1)->unexpected_count, 1);
    assert_int_equal(pair_group(1)->early, 0);
    boxes_clear(pair_group(1)->p2p_boxes, 2);
    quiet();
}

/* It is kept, as the group may be opened yet, until the sender says that it has ended. */
static void what_comes_for_a_group_that_is_never_opened(void **state)
{
    struct frame end = { .type = FRAME_FAIL, .group = 8, .status = COMM_ERR_DEADLINE };
    (void)state;
    lengths(8);
    for (head.group = 8; head.group <= 9; head.group++) {
        match_send(&out);
        pair_deliver(0);
    }
    assert_int_equal(pair_port(1)->unexpected_count, 2);
    pair_port(0)->ops->send_text(pair_port(0), &end, "", 0);
    pair_deliver(0);
    assert_int_equal(pair_port(1)->unexpected_count, 1);
    end.group = 9;
    pair_port(0)->ops->send_text(pair_port(0), &end, "", 0);
    pair_deliver(0);
    quiet();
}

static void a_receive_is_posted_while_its_message_comes(void **state)
{
    (void)state;
    lengths(800);
    match_send(&out);
    pair_deliver_head(0);
    assert_int_equal(post(&in), 0);
    struct message second = message(1, incoming, 800);
    assert_null(match_find_unexpected(&second)); /* It is taken. */
    assert_int_equal(told[1].done, 0);
    pair_deliver_rest(0);
    assert_int_equal(told[1].done, 1);
    has_come(800);
    quiet();
}

static void a_message_of_another_key_is_left_alone(void **state)
{
    (void)state;
    lengths(10);
    in.round = 1;
    post(&in);
    match_send(&out);
    pair_deliver(0);
    assert_int_equal(told[1].done, 0);
    struct message right = message(1, incoming, 10);
    assert_int_equal(post(&right), 1);
    out.round = 1;
    match_send(&out);
    pair_deliver(0);
    assert_int_equal(told[1].done, 1);
    quiet();
}

static void eager_ends_at_its_limit(void **state)
{
    (void)state;
    lengths(PAIR_EAGER);
    assert_int_equal(match_send(&out), 1);
    out.bytes = LONG;
    assert_int_equal(match_send(&out), 0);
    assert_int_equal(out.state, MESSAGE_AWAITS_CTS);
    assert_int_equal(pair_port(0)->interest, 1); /* the clearance is looked for */
    pair_deliver(0);
    assert_int_equal(next_type(0), FRAME_RTS);
    match_cancel(&out);
    assert_int_equal(pair_port(0)->interest, 0);
}

static void collectives_may_have_limits_of_their_own(void **state)
{
    const struct matching m = { .eager_bytes = 10, .eager_reduced_bytes = 40, .eager_spread_bytes = 30,
                                .eager_swapped_bytes = 20 };
    const struct matching same = { .eager_bytes = 10 };
    static const struct {
        int32_t kind;
        int64_t bytes;
    } limits[] = {
        { COMM_OP_ALL_REDUCE, 40 }, { COMM_OP_REDUCE, 40 }, { COMM_OP_REDUCE_SCATTER, 40 },
        { COMM_OP_BROADCAST, 30 },  { COMM_OP_SCATTER, 30 }, { COMM_OP_GATHER, 20 },
        { COMM_OP_ALL_GATHER, 20 }, { COMM_OP_ALL_TO_ALL, 20 }, { COMM_OP_SEND, 30 },
        { COMM_OP_RECV, 30 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        assert_int_equal(match_eager_bytes(&m, limits[i].kind), limits[i].bytes);
        assert_int_equal(match_eager_bytes(&same, limits[i].kind), 10);
    }
}

static void credit_is_used_to_the_last_byte(void **state)
{
    (void)state;
    lengths(500);
    leave_credit(500 + PORT_FRAME_COST);
    assert_int_equal(match_send(&out), 1);
    assert_int_equal(next_type(0), FRAME_EAGER);
    assert_int_equal(pair_port(0)->credit, 0);
    pair_deliver(0);
    assert_int_equal(post(&in), 1);
    pair_deliver_all(); /* A frame gives the credit back. */
    assert_int_equal(pair_port(0)->credit, PORT_CREDIT_WINDOW);
    quiet();
}

static void without_credit_a_short_message_is_announced(void **state)
{
    (void)state;
    lengths(501);
    leave_credit(500 + PORT_FRAME_COST);
    assert_int_equal(match_send(&out), 0);
    assert_int_equal(next_type(0), FRAME_RTS);
    post(&in);
    assert_int_equal(next_type(1), 0);
    pair_deliver(0);
    assert_int_equal(next_type(1), FRAME_CTS); /* Asked for now. */
    pair_deliver_all();
    assert_int_equal(told[0].done, 1);
    assert_int_equal(told[1].done, 1);
    has_come(501);
    quiet();
}

static void more_than_the_credit_ends_the_link(void **state)
{
    (void)state;
    leave_credit(500 + PORT_FRAME_COST);
    struct frame h = head;
    h.type = FRAME_EAGER;
    h.bytes = 501;
    port_begins(pair_port(1), &h);
    assert_int_equal(pair_port(1)->state, PORT_LOST);
    assert_int_equal(pair_port(1)->lost_status, COMM_ERR_PROTOCOL);
}

/* ---- Rendezvous ---- */

/* S: send. P: post. >: a frame of the sender's arrives. <: one of the receiver's. Returns how many RTS arrived. */
static int play(const char *moves)
{
    int rts = 0, cts = 0, data = 0;
    for (; *moves; moves++) {
        int type = 0;
        if (*moves == 'S')
            match_send(&out);
        else if (*moves == 'P')
            assert_int_equal(post(&in), 0);
        else
            assert_int_not_equal(type = pair_deliver(*moves == '<'), 0);
        rts += type == FRAME_RTS;
        cts += type == FRAME_CTS;
        data += type == FRAME_DATA;
        assert_int_equal(told[1].done, data);
    }
    assert_int_equal(cts, 1);
    assert_int_equal(data, 1);
    return rts;
}

static void rendezvous_in_every_order(void **state)
{
    static const char *const orders[] = { "S>P<>", "SP><>", "SP<>>", "PS<>>", "PS><>", "P<S>" };
    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        int cleared_first = orders[i][1] == '<';
        out = message(0, outgoing, LONG);
        in = message(1, incoming, LONG);
        memset(told, 0, sizeof told);
        memset(incoming, POISON, COUNT_MAX);
        assert_int_equal(play(orders[i]), !cleared_first);
        assert_int_equal(told[0].done, !cleared_first); /* else match_send has said it */
        assert_int_equal(out.state, MESSAGE_DONE);
        has_come(LONG);
        quiet();
        head.seq++;
    }
}

static void a_send_is_done_when_all_of_it_is_sent(void **state)
{
    (void)state;
    lengths(LONG);
    pair_slow(0, 1);
    post(&in);
    match_send(&out);
    pair_deliver(1);
    assert_int_equal(out.state, MESSAGE_MOVING);
    assert_int_equal(told[0].done, 0);
    pair_flush(0);
    assert_int_equal(told[0].done, 1);
    pair_deliver_all();
    has_come(LONG);
    quiet();
}

static void clearance_of_earlier_collectives_is_forgotten(void **state)
{
    (void)state;
    lengths(LONG);
    post(&in);
    pair_deliver(1);
    match_cancel(&in);
    assert_int_equal(pair_port(0)->unexpected_count, 1);
    head.seq++;
    assert_int_equal(match_send(&out), 0);
    assert_int_equal(next_type(0), FRAME_RTS);
    assert_int_equal(pair_port(0)->unexpected_count, 0);
    match_cancel(&out);
}

/* ---- Lengths ---- */

static void wrong_lengths_are_told(void **state)
{
    static const size_t sizes[] = { 99, 101, LONG };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        out.bytes = sizes[i];
        in.bytes = 100;
        post(&in);
        match_send(&out);
        pair_deliver(0);
        assert_int_equal(told[1].wrong, i + 1);
        assert_int_equal(told[1].done, 0);
        assert_int_equal(next_type(1), 0); /* It is not cleared. */
        match_cancel(&out);
        match_cancel(&in);
        has_come(0);
        quiet();
    }
}

static void a_longer_message_is_cut(void **state)
{
    (void)state;
    in.user = &lenient;
    for (int is_long = 0; is_long < 2; is_long++)
        for (int is_early = 0; is_early < 2; is_early++) {
            out.bytes = is_long ? LONG : 200;
            in.bytes = 100;
            in.cleared = 0;
            memset(incoming, POISON, COUNT_MAX);
            if (is_early) {
                match_send(&out);
                pair_deliver(0);
                post(&in);
            } else {
                post(&in);
                match_send(&out);
            }
            pair_deliver_all();
            assert_int_equal(in.state, MESSAGE_DONE);
            assert_int_equal(in.came, out.bytes);
            has_come(100);
            quiet();
        }
}

static void subtract(void *dst, const void *a, const void *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)dst)[i] = (uint8_t)(((const uint8_t *)a)[i] - ((const uint8_t *)b)[i]);
}

static void what_comes_is_reduced_in_the_order_of_ranks(void **state)
{
    (void)state;
    for (int is_lower = 0; is_lower < 2; is_lower++)
        for (int is_early = 0; is_early < 2; is_early++) {
            uint8_t mine = 50;
            in = message(1, incoming, 1);
            in.kernel = subtract;
            in.local = &mine;
            in.local_is_lower = (uint8_t)is_lower;
            out.bytes = 1;
            if (!is_early)
                post(&in);
            match_send(&out);
            pair_deliver(0);
            if (is_early)
                post(&in);
            assert_int_equal(incoming[0], (uint8_t)(is_lower ? 50 - outgoing[0] : outgoing[0] - 50));
            quiet();
        }
}

static int sums_to_two; /* calls */

static void subtract_to_two(void *dst, void *also, const void *a, const void *b, size_t count)
{
    sums_to_two++;
    subtract(dst, a, b, count);
    memcpy(also, dst, count);
}

/* Also more than the block that is copied at a time, in parts, and where what comes lies where the results go. */
static void what_is_reduced_to_two_places_is_so_in_the_order_of_ranks(void **state)
{
    enum { BYTES = 5000, FIRST = 3000 };
    uint8_t local[BYTES], came[BYTES], expected[BYTES];
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct sink s = { .kind = SINK_REDUCE, .dst = local, .local = local, .local_is_lower = way & 1,
                          .element_bytes = 1, .result_bytes = 1, .kernel = subtract, .total = BYTES,
                          .to_two = way & 2 ? subtract_to_two : NULL };
        for (int i = 0; i < BYTES; i++) {
            local[i] = (uint8_t)(7 * i);
            came[i] = (uint8_t)(i * i);
            expected[i] = (uint8_t)(way & 1 ? local[i] - came[i] : came[i] - local[i]);
        }
        sums_to_two = 0;
        sink_feed_to_two(&s, came, came, FIRST);
        sink_feed_to_two(&s, came + FIRST, came + FIRST, BYTES - FIRST);
        assert_int_equal(sink_left(&s), 0);
        assert_int_equal(sums_to_two, way & 2 ? 2 : 0);
        assert_memory_equal(local, expected, BYTES);
        assert_memory_equal(came, expected, BYTES);
    }
}

/* ---- Cancelling ---- */

static void a_cancelled_receive_gets_nothing(void **state)
{
    (void)state;
    lengths(100);
    post(&in);
    assert_int_equal(pair_port(1)->interest, 1);
    match_cancel(&in);
    assert_int_equal(pair_port(1)->interest, 0);
    match_send(&out);
    pair_deliver(0);
    assert_int_equal(told[1].done, 0);
    has_come(0);
    unexpected_list_clear(&in.box->unexpected);
    quiet();
}

static void a_receive_is_cancelled_while_its_message_comes(void **state)
{
    (void)state;
    for (int is_early = 0; is_early < 2; is_early++) {
        in = message(1, incoming, 100);
        out.bytes = 100;
        if (!is_early)
            post(&in);
        match_send(&out);
        pair_deliver_head(0);
        if (is_early)
            post(&in);
        in.port->ops->forget(in.port, in.owner);
        match_cancel(&in);
        unexpected_list_clear(&in.box->unexpected);
        assert_int_equal(pair_port(1)->interest, 0);
        pair_deliver_rest(0);
        assert_int_equal(told[1].done, 0);
        has_come(0);
        quiet();
    }
}

static void a_cancelled_announcement_is_not_sent(void **state)
{
    (void)state;
    lengths(LONG);
    match_send_in_order(&out);
    assert_int_equal(pair_port(0)->announced, 1);
    match_cancel(&out);
    assert_int_equal(pair_port(0)->announced, 0);
    assert_int_equal(pair_port(0)->interest, 0);
    post(&in);
    pair_deliver(0);
    pair_deliver(1);
    assert_int_equal(next_type(0), 0);
    assert_int_equal(told[0].done, 0);
    match_cancel(&in);
    unexpected_list_clear(&out.box->cleared);
    quiet();
}

static void a_queued_send_gives_its_credit_back(void **state)
{
    (void)state;
    lengths(100);
    pair_slow(0, 1);
    assert_int_equal(match_send(&out), 0);
    assert_int_equal(out.state, MESSAGE_MOVING);
    out.port->ops->forget(out.port, out.owner);
    match_cancel(&out);
    pair_flush(0);
    assert_int_equal(told[0].done, 0);
    assert_int_equal(pair_port(0)->credit, PORT_CREDIT_WINDOW);
    quiet();
}

/* ---- Limits ---- */

static struct message many[MATCH_ANNOUNCED_MAX];

static void announce_as_many_as_may_be(void)
{
    for (uint32_t i = 0; i < MATCH_ANNOUNCED_MAX; i++) {
        many[i] = message(0, outgoing, LONG);
        many[i].slice = i;
        match_send_in_order(&many[i]);
        assert_int_equal(many[i].state, MESSAGE_AWAITS_CTS);
        pair_drop(0);
    }
}

static void hear_clearance(uint32_t slice)
{
    struct frame h = head;
    h.type = FRAME_CTS;
    h.slice = slice;
    port_begins(pair_port(0), &h);
}

static void held_sends_are_released_in_order(void **state)
{
    struct message last = message(0, outgoing, 10);
    (void)state;
    announce_as_many_as_may_be();
    out.bytes = LONG;
    out.slice = MATCH_ANNOUNCED_MAX;
    last.slice = MATCH_ANNOUNCED_MAX + 1;
    match_send_in_order(&out);
    match_send_in_order(&last);
    assert_int_equal(out.state, MESSAGE_HELD);
    assert_int_equal(last.state, MESSAGE_HELD); /* It may go at once, but not past the one before. */
    assert_int_equal(next_type(0), 0);
    hear_clearance(0);
    assert_int_equal(next_type(0), FRAME_DATA);
    pair_drop(0);
    assert_int_equal(next_type(0), FRAME_RTS);
    assert_int_equal(pair_next(0)->slice, out.slice);
    pair_drop(0);
    assert_int_equal(next_type(0), FRAME_EAGER);
    pair_drop(0);
    assert_int_equal(told[0].done, 2);
    assert_int_equal(pair_port(0)->announced, MATCH_ANNOUNCED_MAX);
    for (uint32_t i = 1; i < MATCH_ANNOUNCED_MAX; i++)
        match_cancel(&many[i]);
    match_cancel(&out);
    assert_int_equal(pair_port(0)->announced, 0);
    assert_int_equal(pair_port(0)->interest, 0);
}

static void short_sends_pass_the_limit_of_announced_ones(void **state)
{
    (void)state;
    announce_as_many_as_may_be();
    lengths(10);
    match_send_in_order(&out);
    assert_int_equal(out.state, MESSAGE_DONE);
    assert_int_equal(told[0].done, 1);
    for (uint32_t i = 0; i < MATCH_ANNOUNCED_MAX; i++)
        match_cancel(&many[i]);
}

static void a_held_send_is_cancelled(void **state)
{
    struct message last = message(0, outgoing, LONG);
    (void)state;
    announce_as_many_as_may_be();
    lengths(LONG);
    match_send_in_order(&out);
    match_send_in_order(&last);
    match_cancel(&out);
    assert_int_equal(pair_port(0)->announced, MATCH_ANNOUNCED_MAX); /* It was not announced. */
    match_cancel(&many[0]);
    match_release(pair_port(0));
    assert_int_equal(out.state, MESSAGE_DONE);
    assert_int_equal(last.state, MESSAGE_AWAITS_CTS);
    for (uint32_t i = 1; i < MATCH_ANNOUNCED_MAX; i++)
        match_cancel(&many[i]);
    match_cancel(&last);
    assert_int_equal(pair_port(0)->interest, 0);
}

static void too_many_unexpected_frames_end_the_link(void **state)
{
    struct frame h = head;
    (void)state;
    h.type = FRAME_RTS;
    h.bytes = LONG;
    for (uint32_t i = 0; i < MATCH_UNEXPECTED_MAX; i++) {
        h.slice = i;
        port_begins(pair_port(1), &h);
    }
    assert_int_equal(pair_port(1)->unexpected_count, MATCH_UNEXPECTED_MAX);
    assert_int_equal(pair_port(1)->state, PORT_UP);
    port_begins(pair_port(1), &h);
    assert_int_equal(pair_port(1)->state, PORT_LOST);
    assert_int_equal(pair_port(1)->lost_status, COMM_ERR_PROTOCOL);
    pair_turn(1);
    assert_int_equal(pair_port(1)->unexpected_count, 0);
}

/* Enough to use the window several times; receives are posted before and after. */
static void credit_is_whole_when_all_is_quiet(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6000; i++) {
        head.seq++;
        out = message(0, outgoing, i * 37 % (LONG + 100));
        in = message(1, incoming, out.bytes);
        if (i % 3 == 0)
            post(&in);
        match_send(&out);
        if (i % 3 == 1)
            pair_deliver_all();
        if (i % 3 != 0)
            post(&in);
        pair_deliver_all();
        assert_int_equal(in.state, MESSAGE_DONE);
        assert_int_equal(out.state, MESSAGE_DONE);
    }
    quiet();
    assert_true(pair_port(0)->credit > PORT_CREDIT_WINDOW * 3 / 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(eager_meets_a_posted_receive),
        TEST(eager_is_kept_until_its_receive),
        TEST(what_comes_early_is_counted_by_groups),
        TEST(what_comes_for_a_group_that_is_never_opened),
        TEST(a_receive_is_posted_while_its_message_comes),
        TEST(a_message_of_another_key_is_left_alone),
        TEST(eager_ends_at_its_limit),
        TEST(collectives_may_have_limits_of_their_own),
        TEST(credit_is_used_to_the_last_byte),
        TEST(without_credit_a_short_message_is_announced),
        TEST(more_than_the_credit_ends_the_link),
        TEST(rendezvous_in_every_order),
        TEST(a_send_is_done_when_all_of_it_is_sent),
        TEST(clearance_of_earlier_collectives_is_forgotten),
        TEST(wrong_lengths_are_told),
        TEST(a_longer_message_is_cut),
        TEST(what_comes_is_reduced_in_the_order_of_ranks),
        TEST(what_is_reduced_to_two_places_is_so_in_the_order_of_ranks),
        TEST(a_cancelled_receive_gets_nothing),
        TEST(a_receive_is_cancelled_while_its_message_comes),
        TEST(a_cancelled_announcement_is_not_sent),
        TEST(a_queued_send_gives_its_credit_back),
        TEST(held_sends_are_released_in_order),
        TEST(short_sends_pass_the_limit_of_announced_ones),
        TEST(a_held_send_is_cancelled),
        TEST(too_many_unexpected_frames_end_the_link),
        TEST(credit_is_whole_when_all_is_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

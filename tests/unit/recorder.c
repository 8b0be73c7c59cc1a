/* The flight record's ring. */
#include "core/recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void the_ring_keeps_the_last_ones_oldest_first(void **state)
{
    (void)state;
    struct recorder r;
    comm_record records[8];
    uint64_t first = 0, last = 0;
    assert_int_equal(comm__recorder_init(&r, 4), COMM_OK);
    assert_int_equal(comm__recorder_read(&r, records, 8), 0);
    for (uint64_t seq = 1; seq <= 10; seq++) {
        comm_op op = {
            .kind = COMM_OP_ALL_REDUCE, .group_seq = seq, .root = -1, .label = "a label longer than the room for it"
        };
        last = recorder_begin(&r, &op, ticks_now())->number;
        if (seq == 1)
            first = last;
    }
    comm__recorder_end(&r, first, COMM_ERR_ABORTED, ticks_now()); /* dropped since: must not mark another */
    comm__recorder_end(&r, last, COMM_OK, ticks_now() + 1);
    assert_int_equal(comm__recorder_read(&r, records, 8), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(records[i].seq, 7 + i);
        assert_string_equal(records[i].op, "all_reduce");
        assert_int_equal(records[i].status, i == 3 ? COMM_OK : COMM_IN_PROGRESS);
        assert_string_equal(records[i].label, "a label longer than the");
    }
    assert_true(records[3].completed_ns >= records[3].submitted_ns &&
                records[3].submitted_ns >= records[0].submitted_ns);
    assert_true(records[2].completed_ns == 0);
    assert_int_equal(comm__recorder_read(&r, records, 2), 2); /* the newest ones */
    assert_int_equal(records[0].seq, 9);
    comm__recorder_finish(&r);
}

/* The ring begins small; while it grows, nothing is lost, and what has completed since is still found. */
static void the_ring_grows_to_its_size(void **state)
{
    (void)state;
    enum { COUNT_MAX = 100 };
    for (size_t ops = 1; ops <= 250; ops++) {
        struct recorder r;
        comm_record records[COUNT_MAX + 1];
        uint64_t numbers[251];
        assert_int_equal(comm__recorder_init(&r, COUNT_MAX), COMM_OK);
        for (size_t i = 1; i <= ops; i++) {
            comm_op op = { .kind = COMM_OP_BARRIER, .group_seq = i, .root = -1 };
            op.label = i % 3 ? NULL : i % 2 ? "odd" : "even";
            numbers[i] = recorder_begin(&r, &op, ticks_now())->number;
        }
        size_t kept = ops < COUNT_MAX ? ops : COUNT_MAX;
        for (size_t i = 1; i <= ops; i++)
            comm__recorder_end(&r, numbers[i], COMM_OK, ticks_now());
        assert_int_equal(comm__recorder_read(&r, records, COUNT_MAX + 1), kept);
        for (size_t i = 0; i < kept; i++) {
            assert_int_equal(records[i].seq, ops - kept + 1 + i);
            assert_int_equal(records[i].status, COMM_OK);
            uint64_t seq = records[i].seq;
            assert_string_equal(records[i].label, seq % 3 ? "" : seq % 2 ? "odd" : "even");
        }
        comm__recorder_finish(&r);
    }
}

/* Ticks become times that lie between what the clocks said before and after. */
static void times_are_those_of_the_clock(void **state)
{
    (void)state;
    struct recorder r;
    comm_record record;
    comm_op op = { .kind = COMM_OP_BARRIER, .root = -1 };
    assert_int_equal(comm__recorder_init(&r, 16), COMM_OK);
    for (int i = 0; i < 50; i++) {
        int64_t before = clock_now_ns(), wall_before = clock_wall_ns();
        struct record_slot *slot = recorder_begin(&r, &op, ticks_now());
        for (volatile int k = 0; k < 100000; k++)
            ;
        comm__recorder_end(&r, slot->number, COMM_OK, ticks_now());
        int64_t took = clock_now_ns() - before, wall_after = clock_wall_ns();
        assert_int_equal(comm__recorder_read(&r, &record, 1), 1);
        /* The readings of two clocks are some time apart, for which is bounded by seconds on the busiest machine. */
        assert_true(record.completed_ns - record.submitted_ns <= took + took / 100 + 1000);
        assert_true(record.submitted_ns >= wall_before - 10000000000 &&
                    record.submitted_ns <= wall_after + 10000000000);
    }
    comm__recorder_finish(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_ring_keeps_the_last_ones_oldest_first),
                                        cmocka_unit_test(the_ring_grows_to_its_size),
                                        cmocka_unit_test(times_are_those_of_the_clock) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

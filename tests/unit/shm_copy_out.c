/* backend_shm's copies to a ring: whether they go through the caches or past them, on a machine whose copies take as
 * long as the test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "backend_shm/copy_out.h"
#include "core/exec/copy.h"

enum { BYTES = 32 << 10, LEAST = 1 << 10, BRIEFER = 2 << 10, LEAST_LONG = 4 << 10 };
enum { LAP_SHIFT = 21, LAP = (1 << LAP_SHIFT) / BYTES, TRIED_LAPS = 64 /* two of so many */ };

/* What COPY_OUT_UNIT bytes take: two cores with one cache, and two on different dies; and what any copy past the caches
 * takes besides. */
struct cost {
    int64_t cached_ns, past_ns, there_ns;
};
static const struct cost near = { 3000, 3800, 0 }, far = { 14000, 3000, 0 };

static struct cost cost;
static int64_t now_ns;
static size_t copy_bytes;
static int is_timed; /* the clock has been read before the copy */
static int is_past;  /* the copy went past the caches */

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
void __real_copy_part(void *to, const void *from, size_t bytes, int is_long);
void __wrap_copy_part(void *to, const void *from, size_t bytes, int is_long);

void __wrap_copy_part(void *to, const void *from, size_t bytes, int is_long)
{
    is_past = 1;
    assert_true(is_long);
    __real_copy_part(to, from, bytes, is_long);
}

/* The second look of a measurement comes after the copy. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    if (is_timed)
        now_ns += (is_past ? cost.past_ns : cost.cached_ns) * (int64_t)copy_bytes / COPY_OUT_UNIT +
                  (is_past ? cost.there_ns : 0);
    is_timed = !is_timed;
    *t = (struct timespec){ .tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000 };
    return 0;
}

static uint8_t from[BYTES + 64], to[BYTES + 64];

/* Returns how many of the copies went past the caches. */
static int copy_many(struct copy_out *c, int count, size_t bytes)
{
    int past = 0;
    copy_bytes = bytes;
    for (int i = 0; i < count; i++) {
        is_past = 0;
        copy_out(c, to, from, bytes);
        assert_false(is_timed);
        past += is_past;
    }
    return past;
}

static struct copy_out measured(const struct cost *at)
{
    cost = *at;
    return (struct copy_out){ .way = COPY_OUT_MEASURED, .lap_shift = LAP_SHIFT,
                              .bytes = (uint64_t)COPY_OUT_NEW_LAPS << LAP_SHIFT };
}

static void what_is_faster_is_found(void **state)
{
    (void)state;
    struct copy_out c = measured(&near);
    assert_in_range(copy_many(&c, 4096, BYTES), 32, 64);
    assert_int_equal(copy_out_ns(&c, 1), near.cached_ns);
    c = measured(&far);
    assert_in_range(copy_many(&c, 64, BYTES), 16, 64);
    assert_in_range(copy_many(&c, TRIED_LAPS * LAP, BYTES), (TRIED_LAPS - 2) * LAP - 64, (TRIED_LAPS - 2) * LAP - 32);
    assert_true(copy_out_ns(&c, 1) > far.past_ns && copy_out_ns(&c, 1) < far.cached_ns);
    assert_true(copy_out_is_past(&c, LEAST_LONG, 0));
    assert_false(copy_out_is_past(&c, LEAST_LONG - 1, 0)); /* nothing is known of those */
}

/* Two copies of 32 at first, of 4096 at last. */
static void tries_get_rare(void **state)
{
    (void)state;
    struct copy_out c = measured(&near);
    assert_in_range(copy_many(&c, 256, BYTES), 12, 20);
    assert_in_range(copy_many(&c, 256, BYTES), 6, 10);
    copy_many(&c, (1 << 16) - 512, BYTES);
    assert_in_range(copy_many(&c, 1 << 16, BYTES), 24, 40);
    c.times.copies = UINT64_MAX - 4095;
    assert_in_range(copy_many(&c, 4096, BYTES), 1, 4);
}

static void how_often_to_try(void **state)
{
    static const struct {
        uint64_t seen, in;
    } cases[] = { { 0, 8 }, { 31, 8 }, { 63, 8 }, { 64, 16 }, { 127, 16 }, { 128, 32 }, { 4 * 255, 128 },
                  { 4 * 256 - 1, 128 }, { 4 * 256, 256 }, { UINT64_MAX, 256 } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(copy_out_tries_in(cases[i].seen, 8, 256), cases[i].in);
}

/* The system has moved a rank. */
static void a_change_is_noticed(void **state)
{
    (void)state;
    struct copy_out c = measured(&near);
    copy_many(&c, 4096, BYTES);
    cost = far;
    copy_many(&c, 128, BYTES);
    assert_true(copy_out_is_past(&c, BYTES, 0));
    cost = near;
    copy_many(&c, TRIED_LAPS * LAP, BYTES);
    assert_false(copy_out_is_past(&c, BYTES, 0));
}

/* Alone, a copy through the caches is slow where others go past them: only that it is fast says something, and soon. */
static void a_slow_copy_into_main_memory_says_nothing(void **state)
{
    (void)state;
    struct copy_out c = measured(&far);
    copy_many(&c, 4 * LAP, BYTES);
    assert_true(copy_out_is_past(&c, BYTES, 0));
    c.bytes = (uint64_t)(TRIED_LAPS + 2) << LAP_SHIFT;
    cost.cached_ns = 3 * far.cached_ns;
    enum { COPIES = (TRIED_LAPS - 4) * LAP };
    assert_in_range(copy_many(&c, COPIES, BYTES), COPIES - 64, COPIES - 4);
    assert_int_equal(c.times.cached_ns, far.cached_ns);
    c.bytes = (uint64_t)(TRIED_LAPS + 2) << LAP_SHIFT;
    c.times.copies = 4096;
    cost = near;
    copy_many(&c, LAP, BYTES);
    assert_false(copy_out_is_past(&c, BYTES, 0));
    c = measured(&far);
    c.way = COPY_OUT_PAST;
    assert_int_equal(copy_many(&c, LAP, BYTES), LAP);
}

/* Copies through the caches into lines that were written past them are slow, so those of a lap are not measured. */
static void a_lap_fills_the_caches(void **state)
{
    enum { BEFORE = 13 }; /* of a lap, so that others are measured */
    (void)state;
    struct copy_out c = measured(&far);
    copy_many(&c, TRIED_LAPS * LAP - 2 * LAP, BYTES);
    assert_true(copy_out_is_past(&c, BYTES, 0));
    c.bytes = ((uint64_t)TRIED_LAPS * TRIED_LAPS << LAP_SHIFT) - BYTES;
    c.times.cached_ns = far.cached_ns;
    cost.cached_ns = 10 * far.cached_ns;
    assert_int_equal(copy_many(&c, LAP, BYTES), 0);
    assert_int_equal(c.times.cached_ns, far.cached_ns);
    cost.cached_ns = far.cached_ns;
    cost.past_ns = 2 * far.past_ns;
    assert_int_equal(copy_many(&c, LAP - BEFORE, BYTES), 0);
    cost.cached_ns = far.cached_ns / 10 * 9;
    assert_int_equal(copy_many(&c, BEFORE, BYTES), 0);
    assert_true(c.times.cached_ns < far.cached_ns && c.times.past_ns == far.past_ns);
    c.times.cached_ns = far.cached_ns;
    assert_in_range(copy_many(&c, LAP, BYTES), LAP - 2, LAP);
    assert_true(c.times.past_ns > far.past_ns);
}

/* Whoever tries the ring says which way copies go, and whether they are measured. */
static void tries_go_the_way_that_is_said(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int is_far = i % 2, goes_past = i / 2 % 2, is_measured = i / 4;
        struct copy_out c = measured(is_far ? &far : &near);
        copy_many(&c, 1024, BYTES);
        const int64_t cached_ns = c.times.cached_ns, past_ns = c.times.past_ns;
        cost = (struct cost){ 1000, 1000, 0 };
        c.looks = 1; /* of others */
        c.tries.copies = LAP;
        c.tries.way = goes_past ? COPY_OUT_PAST : COPY_OUT_CACHED;
        c.tries.is_measured = is_measured;
        assert_int_equal(copy_many(&c, LAP, BYTES), goes_past ? LAP : 0);
        assert_int_equal(c.tries.copies, 0);
        assert_int_equal(c.times.cached_ns < cached_ns, is_measured && !goes_past);
        assert_int_equal(c.times.past_ns < past_ns, is_measured && goes_past);
        c.tries.copies = 1;
        c.times.past_ns = past_ns;
        copy_many(&c, 1, LEAST_LONG - 1);
        assert_int_equal(c.times.past_ns, past_ns);
        c.tries.copies = 1;
        c.way = goes_past ? COPY_OUT_CACHED : COPY_OUT_PAST; /* that is ordered */
        assert_int_equal(copy_many(&c, 1, BYTES), !goes_past);
    }
}

static void one_slow_copy_changes_nothing(void **state)
{
    (void)state;
    struct copy_out c = measured(&near);
    copy_many(&c, 4100, BYTES); /* the next copy is no try */
    cost.cached_ns = 10000000;
    c.looks = 1;
    copy_many(&c, 1, BYTES);
    assert_int_equal(c.looks, 0);
    assert_true(c.times.cached_ns > near.cached_ns);
    assert_false(copy_out_is_past(&c, BYTES, 0));
}

/* However slow it was. */
static void a_slow_copy_counts_twice_at_most(void **state)
{
    int64_t known_ns = 0;
    (void)state;
    copy_out_note(&known_ns, 3000, COPY_OUT_UNIT);
    copy_out_note(&known_ns, 300000, COPY_OUT_UNIT);
    assert_int_equal(known_ns, 3375);
}

/* Where each sends and receives the slower rank's part counts, whichever that is. */
static void the_slower_rank_counts(void **state)
{
    static const struct cost cost_of_both = { 4000, 1500, 0 };
    _Atomic uint32_t told_ns[COPY_OUT_READERS][COPY_OUT_WAYS] = { { 0, 0 } };
    int64_t taken_ns[COPY_OUT_WAYS] = { 0, 0 };
    (void)state;
    struct copy_out c = measured(&cost_of_both);
    copy_many(&c, 1024, BYTES);
    c.reader_ns = told_ns;
    c.taken_ns = taken_ns;
    told_ns[COPY_OUT_SENDER][COPY_OUT_CACHED] = told_ns[COPY_OUT_SENDER][COPY_OUT_PAST] = 2000;
    assert_true(copy_out_is_past(&c, BYTES, 0));
    assert_int_equal(copy_out_ns(&c, 0), 3500);
    taken_ns[COPY_OUT_PAST] = 3000;
    assert_int_equal(copy_out_ns(&c, 0), 4500);
    taken_ns[COPY_OUT_PAST] = 9000;
    assert_int_equal(copy_out_ns(&c, 0), 6000); /* through the caches */
    taken_ns[COPY_OUT_CACHED] = 1000;
    assert_int_equal(copy_out_ns(&c, 0), 6000); /* the other one's is slower */
    told_ns[COPY_OUT_SENDER][COPY_OUT_CACHED] = told_ns[COPY_OUT_SENDER][COPY_OUT_PAST] = 0;
    assert_int_equal(copy_out_ns(&c, 0), 6000); /* it has not told: assumed */
}

/* Whoever knows that there will be few copies asks for both ways. */
static void looks_go_both_ways(void **state)
{
    (void)state;
    struct copy_out c = measured(&near);
    copy_many(&c, 4100, BYTES);
    cost = (struct cost){ 2000, 1000, 0 };
    c.looks = 20;
    assert_int_equal(copy_many(&c, 20, BYTES), 10);
    assert_int_equal(c.looks, 0);
    assert_in_range(c.times.cached_ns, 2000, 2010);
    assert_in_range(c.times.past_ns, 1000, 1010);
}

/* What the first copies take is of pages that this process has not used yet, and of lines that are in no cache. All go
 * through the caches, but for some that are tries. */
static void cold_copies_are_not_measured(void **state)
{
    enum { COLD = COPY_OUT_COLD_LAPS * LAP, NEW = COPY_OUT_NEW_LAPS * LAP };
    static const struct cost cold = { 200000, 100000, 0 };
    (void)state;
    struct copy_out c = measured(&cold);
    c.bytes = 0;
    assert_int_equal(copy_many(&c, COLD, BYTES), 0);
    assert_int_equal(c.times.cached_ns, 0);
    cost = far;
    assert_in_range(copy_many(&c, NEW - COLD - 1, BYTES), 4, 32);
    assert_int_equal(copy_out_ns(&c, 1), 0);
    assert_int_equal(copy_out_write_ns(&c, BYTES), 0);
    assert_int_equal(c.times.cached_ns, far.cached_ns);
    assert_int_equal(c.times.past_ns, far.past_ns);
    assert_true(copy_out_is_new(&c));
    assert_false(copy_out_is_past(&c, BYTES, 0));
    copy_many(&c, 1, BYTES);
    assert_false(copy_out_is_new(&c));
    assert_true(copy_out_is_past(&c, BYTES, 0));
    assert_true(copy_out_ns(&c, 1) > 0 && copy_out_write_ns(&c, BYTES) > 0);
    c = measured(&near); /* laps of a short ring count as long ones */
    c.bytes = 0;
    c.lap_shift = 14;
    copy_many(&c, (1 << 20) / BYTES - 1, BYTES);
    assert_true(copy_out_is_new(&c));
    copy_many(&c, 1, BYTES);
    assert_false(copy_out_is_new(&c));
}

/* A process that was stopped meanwhile, and a clock that went back. */
static void senseless_times_are_forgotten(void **state)
{
    static const int64_t times_ns[] = { -5, 0, 1, 10000000000000 };
    (void)state;
    for (size_t i = 0; i < sizeof times_ns / sizeof *times_ns; i++) {
        int64_t known_ns = 0;
        copy_out_note(&known_ns, times_ns[i], BYTES);
        assert_in_range(known_ns, 1, 1000000000);
        for (int k = 0; k < 100; k++)
            copy_out_note(&known_ns, 3000, BYTES);
        assert_in_range(known_ns, 5900, 6100);
    }
}

/* The reader of what went past the caches pays for it, too. */
static void a_small_gain_is_none(void **state)
{
    static const struct cost costs[] = { { 7900, 3000, 0 }, { 8100, 3000, 0 }, { 15900, 8000, 0 }, { 16100, 8000, 0 } };
    (void)state;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        struct copy_out c = measured(&costs[i]);
        copy_many(&c, 1024, BYTES);
        assert_int_equal(copy_out_is_past(&c, BYTES, 0), i % 2);
    }
}

/* In a message of many pieces both copy at a time: the slower one counts, by what the reader tells. */
static void the_slower_of_two_counts(void **state)
{
    static const struct {
        struct cost write, read;
        int is_past;
        int64_t ns;
    } cases[] = {
        { { 5600, 1900, 0 }, { 1500, 3500, 0 }, 1, 3500 }, /* two cores of one die of Zen 4 */
        { { 3000, 3800, 0 }, { 2700, 6100, 0 }, 0, 3000 }, /* of Zen 3 */
        { { 5600, 1900, 0 }, { 1500, 5000, 0 }, 0, 5600 }, /* not clearly */
        { { 5600, 1900, 0 }, { 5600, 4800, 0 }, 1, 4800 },
        { { 2000, 1900, 0 }, { 9000, 4800, 0 }, 1, 4800 }, /* the reader is the slower one both ways */
        { { 5600, 1900, 0 }, { 1500, 4000000000, 0 }, 0, 5600 }, /* senseless */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        _Atomic uint32_t told_ns[COPY_OUT_READERS][COPY_OUT_WAYS] = { { 0, 0 } };
        struct copy_out c = measured(&cases[i].write);
        c.reader_ns = told_ns;
        copy_many(&c, 1024, BYTES);
        c.reduces = (int)i % 2;
        told_ns[i % 2][COPY_OUT_CACHED] = (uint32_t)cases[i].read.cached_ns;
        told_ns[i % 2][COPY_OUT_PAST] = (uint32_t)cases[i].read.past_ns;
        assert_int_equal(copy_out_is_past(&c, BYTES, 1), cases[i].is_past);
        assert_int_equal(copy_out_ns(&c, 1), cases[i].ns);
        assert_false(copy_out_is_past(&c, BYTES, 0));
        c.overlaps = 1;
        int past = copy_many(&c, 1024, BYTES);
        assert_in_range(past, cases[i].is_past ? 1024 - 40 : 4, cases[i].is_past ? 1024 - 4 : 40);
    }
}

static void short_copies_are_cached(void **state)
{
    (void)state;
    struct copy_out c = measured(&far);
    assert_int_equal(copy_many(&c, 4096, LEAST - 1), 0);
    assert_int_equal(copy_out_ns(&c, 1), 0);
}

/* Mostly they take the time until a line is there, so it is not said for each byte, and longer copies know nothing of
 * it. */
static void shorter_copies_are_measured_apart(void **state)
{
    static const struct cost dies = { 16000, 3000, 400 };
    (void)state;
    struct copy_out c = measured(&near);
    assert_in_range(copy_many(&c, 4096, LEAST_LONG - 1), 32, 64);
    assert_false(copy_out_is_past(&c, LEAST_LONG - 1, 0));
    c = measured(&dies);
    assert_in_range(copy_many(&c, 4096, LEAST), 32, 64); /* 250 ns, and 445 */
    assert_in_range(c.brief[0].cached_ns, 245, 255);
    assert_in_range(c.brief[0].past_ns, 440, 450);
    assert_in_range(copy_many(&c, 4096, LEAST_LONG - 1), 4096 - 512, 4096 - 8); /* 1000 and 587 */
    assert_false(copy_out_is_past(&c, BRIEFER, 0));
    assert_true(copy_out_is_past(&c, BRIEFER + 1, 0));
    assert_int_equal(c.times.cached_ns, 0);
    assert_int_equal(c.times.past_ns, 0);
    assert_int_equal(copy_out_ns(&c, 1), 0);
    cost = near; /* that is found out, not at once */
    copy_many(&c, 2 * TRIED_LAPS * (1 << LAP_SHIFT) / LEAST_LONG, LEAST_LONG - 1);
    assert_in_range(copy_many(&c, 256, LEAST_LONG - 1), 0, 2);
}

/* A first copy that is interrupted does not send all after it past the caches. */
static void one_slow_shorter_copy_changes_nothing(void **state)
{
    enum { OFTEN = 8 };
    (void)state;
    struct copy_out c = measured(&near);
    copy_many(&c, OFTEN, LEAST);
    cost.cached_ns = 1000 * near.cached_ns;
    assert_int_equal(copy_many(&c, 1, LEAST), 0);
    assert_true(c.brief[0].cached_ns > 10 * c.brief[0].past_ns);
    cost = near;
    assert_in_range(copy_many(&c, 4096, LEAST), 32, 64);
}

/* Copies past the caches have been tried, too. */
static void shorter_copies_go_past_the_caches_only_if_that_has_been_seen(void **state)
{
    (void)state;
    struct copy_out c = measured(&far);
    c.brief[0] = (struct copy_out_times){ .cached_ns = 300, .past_ns = 100, .seen = { 16, 2 } };
    assert_true(copy_out_is_past(&c, LEAST, 0));
    c.brief[0].seen[COPY_OUT_CACHED] = 15;
    assert_false(copy_out_is_past(&c, LEAST, 0));
    c.brief[0].seen[COPY_OUT_CACHED] = 16;
    c.brief[0].seen[COPY_OUT_PAST] = 1;
    assert_false(copy_out_is_past(&c, LEAST, 0));
    c.brief[0].seen[COPY_OUT_PAST] = 2;
    c.brief[0].cached_ns = 178; /* what its reader pays: 78 ns for 1 KiB */
    assert_false(copy_out_is_past(&c, LEAST, 0));
    c.brief[0].cached_ns = 179;
    assert_true(copy_out_is_past(&c, LEAST, 0));
}

static void a_way_can_be_ordered(void **state)
{
    (void)state;
    struct copy_out c = measured(&far);
    c.way = COPY_OUT_CACHED;
    assert_int_equal(copy_many(&c, 1024, BYTES), 0);
    assert_int_equal(copy_out_ns(&c, 1), far.cached_ns);
    c = measured(&near);
    c.way = COPY_OUT_PAST;
    assert_int_equal(copy_many(&c, 1024, BYTES), 1024);
    assert_int_equal(copy_many(&c, 1024, LEAST), 1024);
    assert_int_equal(copy_many(&c, 1024, LEAST - 1), 0);
}

static void all_bytes_arrive(void **state)
{
    static const size_t sizes[] = { 1, 255, 256, LEAST - 1, LEAST, LEAST + 1, LEAST + 63, BYTES - 1, BYTES };
    (void)state;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 31 + i / 251);
    for (int way = COPY_OUT_CACHED; way <= COPY_OUT_PAST; way++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t at = 0; at < 64; at += 7) {
                struct copy_out c = { .way = (enum copy_out_way)way, .lap_shift = LAP_SHIFT };
                memset(to, 0xee, sizeof to);
                copy_out(&c, to + 63 - at, from + at, sizes[i]);
                assert_memory_equal(to + 63 - at, from + at, sizes[i]);
                assert_true(at == 63 || to[62 - at] == 0xee);
                assert_true(at == 0 || to[63 - at + sizes[i]] == 0xee);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_faster_is_found),
        cmocka_unit_test(tries_get_rare),
        cmocka_unit_test(how_often_to_try),
        cmocka_unit_test(a_change_is_noticed),
        cmocka_unit_test(a_slow_copy_into_main_memory_says_nothing),
        cmocka_unit_test(a_lap_fills_the_caches),
        cmocka_unit_test(tries_go_the_way_that_is_said),
        cmocka_unit_test(one_slow_copy_changes_nothing),
        cmocka_unit_test(a_slow_copy_counts_twice_at_most),
        cmocka_unit_test(the_slower_rank_counts),
        cmocka_unit_test(looks_go_both_ways),
        cmocka_unit_test(cold_copies_are_not_measured),
        cmocka_unit_test(senseless_times_are_forgotten),
        cmocka_unit_test(a_small_gain_is_none),
        cmocka_unit_test(the_slower_of_two_counts),
        cmocka_unit_test(short_copies_are_cached),
        cmocka_unit_test(shorter_copies_are_measured_apart),
        cmocka_unit_test(one_slow_shorter_copy_changes_nothing),
        cmocka_unit_test(shorter_copies_go_past_the_caches_only_if_that_has_been_seen),
        cmocka_unit_test(a_way_can_be_ordered),
        cmocka_unit_test(all_bytes_arrive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

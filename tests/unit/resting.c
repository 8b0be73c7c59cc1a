/* Which threads yield, and how long one rests that has yielded its core to a program that kept it. Time is what the
 * test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/common/base/clock.h"
#include "core/exec/say.h"
#include "core/exec/waiting.h"

static const int64_t MS = 1000000;

/* A yield that has taken long by now, as this machine has run for longer: since `begun_ns`. Returns the rest. */
static int64_t yield_since(struct waiting *w, int64_t begun_ns)
{
    waiting_yield(w, begun_ns);
    return w->rest_until_ns - begun_ns;
}

static void a_program_that_stays_is_tried_seldom(void **state)
{
    struct waiting w = { .yield_ns = MS };
    int64_t begun_ns = MS, rest_ns = yield_since(&w, begun_ns), before_ns = 0;
    (void)state;
    assert_int_equal(rest_ns, 5 * MS);
    assert_true(waiting_rests(&w, begun_ns + rest_ns - 1) && !waiting_rests(&w, begun_ns + rest_ns));
    for (int i = 0; i < 10; i++) {
        before_ns = rest_ns;
        begun_ns += rest_ns + MS;
        rest_ns = yield_since(&w, begun_ns);
        assert_true(rest_ns == 2 * before_ns || rest_ns == 320 * MS);
    }
    assert_int_equal(rest_ns, 320 * MS);
    begun_ns += 2 * rest_ns;
    assert_int_equal(yield_since(&w, begun_ns), 5 * MS); /* it had been gone for as long as the rest */
}

struct ranks {
    int64_t used_ns;
    int32_t cores;
};

static int64_t used_by_ranks(const void *ranks, int32_t *ret_cores)
{
    *ret_cores = ((const struct ranks *)ranks)->cores;
    return ((const struct ranks *)ranks)->used_ns;
}

/* A long yield, for which the ranks have used so much of the two cores in the last 50 ms. Does the thread rest? */
static int rests_after(struct waiting *w, struct ranks *ranks, int64_t percent)
{
    int64_t now = clock_now_ns();
    w->usage.asked_ns = now - 50 * MS;
    ranks->used_ns = w->usage.used_ns + 50 * MS * ranks->cores / 100 * percent;
    w->rest_until_ns = 0;
    w->got_back_ns = now - 2 * MS;
    waiting_yield(w, now - 2 * MS);
    return w->rest_until_ns != 0;
}

static void ranks_that_work_are_no_reason_to_rest(void **state)
{
    struct ranks ranks = { .cores = 2 };
    struct waiting w = { .yield_ns = MS, .usage = { .of_ranks = used_by_ranks, .ranks = &ranks } };
    (void)state;
    w.got_back_ns = clock_now_ns() - 2 * MS;
    waiting_yield(&w, w.got_back_ns); /* what they do is not known yet */
    assert_true(w.rest_until_ns != 0);
    assert_false(rests_after(&w, &ranks, 1000)); /* however long this took */
    assert_true(rests_after(&w, &ranks, 85));
    assert_true(rests_after(&w, &ranks, 0));
    assert_int_equal(w.usage.used_ns, ranks.used_ns);
    ranks.used_ns = -1;
    w.rest_until_ns = 0;
    w.got_back_ns = clock_now_ns() - 2 * MS;
    waiting_yield(&w, w.got_back_ns); /* nobody knows */
    assert_true(w.rest_until_ns != 0);
}

/* Does a thread rest that had the core for `had_ns`, waited so often, and then gave it away for `took_ns` or somewhat
 * longer? */
static int rests_with(int64_t had_ns, int64_t waits, int64_t took_ns)
{
    int64_t now = clock_now_ns();
    struct waiting w = { .yield_ns = MS, .got_back_ns = now - took_ns - had_ns, .waits = waits };
    waiting_yield(&w, now - took_ns);
    assert_true(w.got_back_ns >= now);
    assert_int_equal(w.waits, 0);
    return w.rest_until_ns != 0;
}

/* As where the scheduler shares the cores between sessions, or containers. */
static void a_fair_share_is_no_reason_to_rest_if_waits_are_short(void **state)
{
    (void)state;
    assert_false(rests_with(3000 * MS, 600000, 3000 * MS));
    assert_false(rests_with(1000 * MS, 200000, 3000 * MS));
    assert_true(rests_with(1000 * MS, 10000, 3000 * MS));
    assert_true(rests_with(MS / 10, 100, 3 * MS));
    assert_true(rests_with(200 * MS, 100000, 3000 * MS));
    assert_true(rests_with(3000 * MS, 0, 3000 * MS));
}

static void waits_are_counted_from_the_end_of_a_rest(void **state)
{
    int64_t now = clock_now_ns();
    struct waiting w = { .yield_ns = MS, .got_back_ns = now - 5000 * MS, .rest_until_ns = now - 4000 * MS };
    (void)state;
    for (int i = 0; i < 1000000; i++)
        waiting_begins(&w);
    waiting_yield(&w, now - 3 * MS); /* right after the rest, at the first yield */
    assert_true(w.rest_until_ns > now - 3 * MS);
}

static void a_short_yield_is_no_reason_to_rest(void **state)
{
    struct waiting w = { .yield_ns = MS };
    (void)state;
    waiting_yield(&w, clock_now_ns() + 1000 * MS); /* however busy this machine is */
    assert_int_equal(w.rest_until_ns, 0);
}

/* A short yield, however busy this machine is. How many after it need not be measured? */
static int unmeasured_after_one(struct waiting *w)
{
    int unmeasured = 0;
    w->yielded_ns = clock_now_ns();
    waiting_yield(w, w->yielded_ns + 1000 * MS);
    while (waiting_yield_unmeasured(w))
        unmeasured++;
    return unmeasured;
}

/* After so many yields; 0: not after `most`. */
static int becomes_unmeasured(struct waiting *w, int most)
{
    for (int yields = 1; yields <= most; yields++)
        if (unmeasured_after_one(w))
            return yields;
    return 0;
}

static void short_yields_are_seldom_measured_where_ranks_share_cores(void **state)
{
    enum { TRIES = 100000, SHORT_YIELDS = 64 }; /* a slice of another program begins the count anew */
    struct waiting w = { .yield_ns = MS, .is_crowded = 1 }, alone = { .yield_ns = MS };
    (void)state;
    assert_true(becomes_unmeasured(&w, TRIES) >= SHORT_YIELDS);
    for (int tries = 1; unmeasured_after_one(&w) != 7; tries++)
        assert_true(tries < TRIES);
    w.yielded_ns = clock_now_ns() - 2 * MS; /* there was much else to do, or another program had the core */
    waiting_yield(&w, clock_now_ns());
    assert_false(waiting_yield_unmeasured(&w));
    assert_true(becomes_unmeasured(&w, TRIES) >= SHORT_YIELDS);
    assert_int_equal(becomes_unmeasured(&alone, 2 * SHORT_YIELDS), 0);
}

static void spinning_in_vain_ends_in_rests(void **state)
{
    struct waiting w = { .spin_ns = MS, .rest_ns = 100 * MS };
    (void)state;
    assert_true(waiting_look_again(&w, 10 * MS - 1, 9 * MS));
    for (int i = 0; i < 2; i++) {
        assert_false(waiting_look_again(&w, 10 * MS, 9 * MS));
        assert_false(waiting_rests(&w, 10 * MS));
    }
    assert_false(waiting_look_again(&w, 10 * MS, 9 * MS));
    assert_true(waiting_rests(&w, 110 * MS - 1) && !waiting_rests(&w, 110 * MS));
    assert_false(waiting_look_again(&w, 20 * MS, 20 * MS));
    assert_true(waiting_look_again(&w, 111 * MS, 111 * MS));
    assert_false(waiting_look_again(&w, 112 * MS, 111 * MS)); /* one try is enough by now */
    assert_true(waiting_rests(&w, 113 * MS));
}

/* Ranks that share a core yield to each other before they rest: the scheduler, which sees both, may move one. */
static void spinning_in_vain_ends_in_yields_first(void **state)
{
    struct waiting w = { .spin_ns = MS, .yield_ns = 2 * MS, .rest_ns = 100 * MS, .share_ns = 50 * MS };
    const int64_t begun_ns = clock_now_ns() + 1000 * MS; /* a yield takes no time, however busy this machine is */
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_true(waiting_spins(&w));
        assert_false(waiting_look_again(&w, begun_ns, begun_ns - MS));
    }
    assert_false(waiting_spins(&w));
    assert_true(waiting_look_again(&w, begun_ns + 2 * MS - 1, begun_ns));
    assert_false(waiting_spins(&w) || waiting_rests(&w, begun_ns + 2 * MS));
    assert_true(waiting_look_again(&w, begun_ns + 50 * MS, begun_ns + 50 * MS)); /* that was long enough */
    assert_true(waiting_spins(&w));
    assert_false(waiting_look_again(&w, begun_ns + 51 * MS, begun_ns + 50 * MS));
    assert_false(waiting_spins(&w));
    assert_false(waiting_look_again(&w, begun_ns + 53 * MS, begun_ns + 51 * MS)); /* nor did yielding help */
    assert_true(waiting_rests(&w, begun_ns + 153 * MS - 1) && !waiting_rests(&w, begun_ns + 153 * MS));
}

/* What comes while the thread runs says that spinning is worth it. What comes while it does not run may have been sent
 * because it does not: by a rank that waited for this core. */
static void a_message_that_was_not_waited_for_ends_no_rests(void **state)
{
    struct waiting w = { .vain = 2 };
    const struct timespec nap = { .tv_nsec = 100000 };
    (void)state;
    waiting_begins(&w);
    nanosleep(&nap, NULL);
    waiting_came(&w);
    assert_int_equal(w.vain, 2);
    for (int tries = 1; w.vain; tries++) {
        assert_true(tries < 1000); /* unless it really loses the core right there */
        waiting_begins(&w);
        for (int64_t begun_ns = clock_now_ns(); clock_now_ns() - begun_ns < 50000;)
            continue; /* a long copy */
        waiting_came(&w);
    }
}

/* ---- Spin, or yield to the other ranks? ---- */

static int64_t one_per_name(const void *options, const char *backend, const char *name)
{
    (void)options;
    assert_string_equal(backend, "shm");
    return strcmp(name, "spin_us") == 0 ? 7 : 9;
}

static uint32_t info_bytes = sizeof(comm_world_info);

/* Of ranks on two hosts, the first of which has as many as `local`. */
static int is_crowded(int32_t local, int32_t cores, int32_t launched)
{
    enum { RANKS = 5 };
    int32_t hosts[RANKS];
    struct waiting w = { 0 };
    comm_world_info info = { .struct_bytes = info_bytes, .size = RANKS, .local_size = launched, .hosts = hosts,
                             .local_cores = cores };
    for (int32_t r = 0; r < RANKS; r++)
        hosts[r] = r >= local;
    waiting_choose(&w, "shm", &info);
    assert_int_equal(w.spin_ns, w.is_crowded ? 0 : 7000);
    assert_int_equal(w.yield_ns, 9000);
    assert_int_equal(w.yields, w.is_crowded);
    /* The ranks of a host must agree on this: what one of them sees of the machine does not count. */
    int has_cores = info_bytes == sizeof info && cores > 0;
    assert_int_equal(waiting_shares_cores(&info), has_cores && local > cores);
    return w.is_crowded;
}

static void ranks_yield_if_there_are_more_than_their_cores(void **state)
{
    static const comm_host fake = { .param_int = one_per_name };
    const int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    (void)state;
    exec_host = &fake;
    assert_false(is_crowded(1, 1, 0));
    assert_true(is_crowded(2, 1, 0)); /* however many cores this machine has */
    assert_false(is_crowded(2, 2, 0));
    assert_true(is_crowded(3, 2, 0));
    assert_false(is_crowded(5, 5, 0));
    assert_true(is_crowded(5, 4, online));
    assert_true(is_crowded(1, 1, online + 1)); /* others of the job share the machine */
    assert_false(is_crowded(1, 0, online));
    assert_int_equal(is_crowded(5, 0, 0), online < 5);
    info_bytes = offsetof(comm_world_info, local_cores); /* of an older core */
    assert_false(is_crowded(1, -1, 0));
    assert_int_equal(is_crowded(2, 1, 0), online < 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_that_stays_is_tried_seldom),
        cmocka_unit_test(ranks_that_work_are_no_reason_to_rest),
        cmocka_unit_test(short_yields_are_seldom_measured_where_ranks_share_cores),
        cmocka_unit_test(spinning_in_vain_ends_in_rests),
        cmocka_unit_test(spinning_in_vain_ends_in_yields_first),
        cmocka_unit_test(a_message_that_was_not_waited_for_ends_no_rests),
        cmocka_unit_test(a_fair_share_is_no_reason_to_rest_if_waits_are_short),
        cmocka_unit_test(waits_are_counted_from_the_end_of_a_rest),
        cmocka_unit_test(a_short_yield_is_no_reason_to_rest),
        cmocka_unit_test(ranks_yield_if_there_are_more_than_their_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* When a rank yields its core that waits for one on another core, or on its own. Calls of sched_yield are counted, and
 * ranks run where the test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend_shm/duplex.h"
#include "backend_shm/fabric.h"

static const int64_t LONG_NS = 3600000000000;
static int yields, core;

int __wrap_sched_yield(void);
int __wrap_sched_getcpu(void);

int __wrap_sched_yield(void)
{
    yields++;
    return 0;
}

int __wrap_sched_getcpu(void)
{
    return core;
}

static struct waiting waiting;
static atomic_int contenders;
static struct ring_shared theirs, ours;
static struct fabric fabric = { .looks = { .waiting = &waiting, .contenders = &contenders } };
static struct duplex pair = { .fabric = &fabric, .in.shared = &theirs, .out.shared = &ours };

static int open_pair(void **state)
{
    (void)state;
    yields = 0;
    core = 3;
    waiting = (struct waiting){ .yields = 1, .yield_until_ns = INT64_MAX, .is_crowded = 1 };
    atomic_store(&contenders, 0);
    atomic_store(&theirs.core, 0);
    atomic_store(&ours.core, 0);
    pair.said_core = 0;
    return 0;
}

static int yields_in(unsigned turns, unsigned looks)
{
    int64_t until_ns = 0;
    int before = yields;
    for (unsigned turn = 1; turn <= turns; turn++) {
        assert_true(fabric_look_again(&fabric, turn, looks, LONG_NS, &until_ns));
        waiting.rest_until_ns = 0; /* on a busy machine a yield may take long */
    }
    return yields - before;
}

static void for_another_core_it_looks_some_times_before(void **state)
{
    (void)state;
    assert_int_equal(yields_in(31, FABRIC_LOOKS_LONG), 0);
    assert_int_equal(yields_in(64, FABRIC_LOOKS_LONG), 2);
    assert_int_equal(yields_in(7, FABRIC_LOOKS_SHORT), 0);
    assert_int_equal(yields_in(16, FABRIC_LOOKS_SHORT), 2);
    assert_int_equal(yields_in(10, FABRIC_LOOKS_ONCE), 10);
    waiting = (struct waiting){ .spin_ns = LONG_NS };
    assert_int_equal(yields_in(64, FABRIC_LOOKS_ONCE), 0);
}

static int is_elsewhere(uint32_t said)
{
    atomic_store(&theirs.core, said);
    return duplex_is_elsewhere(&pair, duplex_own_core(&fabric));
}

static void ranks_tell_each_other_where_they_run(void **state)
{
    (void)state;
    assert_false(is_elsewhere(0)); /* it has not said */
    assert_false(is_elsewhere(4));
    assert_true(is_elsewhere(3));
    duplex_say_core(&pair, duplex_own_core(&fabric));
    assert_int_equal(atomic_load(&ours.core), 4);
    core = 0;
    assert_true(is_elsewhere(4));
    duplex_say_core(&pair, duplex_own_core(&fabric));
    assert_int_equal(atomic_load(&ours.core), 1);
    core = -1; /* the kernel does not say */
    assert_false(is_elsewhere(4));
    core = 0;
    waiting = (struct waiting){ .spin_ns = LONG_NS };
    assert_false(is_elsewhere(4)); /* one that spins does not ask, nor say */
    duplex_say_core(&pair, duplex_own_core(&fabric));
    assert_int_equal(atomic_load(&ours.core), 1);
}

/* A wait that has begun with such yields counts as one. Its time begins with the first look at the clock. */
static void a_yield_that_is_not_measured_begins_a_wait(void **state)
{
    int64_t until_ns = 0;
    (void)state;
    waiting.unmeasured = 2;
    assert_true(fabric_look_again(&fabric, 1, FABRIC_LOOKS_ONCE, 0, &until_ns));
    assert_true(fabric_look_again(&fabric, 2, FABRIC_LOOKS_ONCE, 0, &until_ns));
    assert_int_equal(yields, 2);
    assert_int_equal(waiting.waits, 1);
    assert_true(fabric_look_again(&fabric, 3, FABRIC_LOOKS_ONCE, LONG_NS, &until_ns)); /* looks at the clock */
    assert_true(until_ns > LONG_NS);
    assert_int_equal(waiting.waits, 1);
    until_ns = -1;
    assert_false(fabric_look_again(&fabric, 4, FABRIC_LOOKS_ONCE, 0, &until_ns));
    assert_int_equal(waiting.waits, 1);
    yields = 2;
    waiting.rest_until_ns = 0;
    waiting.unmeasured = 1;
    atomic_store(&contenders, 1); /* another thread wants the lock */
    assert_false(fabric_look_again(&fabric, 1, FABRIC_LOOKS_ONCE, LONG_NS, &until_ns));
    assert_int_equal(yields, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(for_another_core_it_looks_some_times_before, open_pair),
        cmocka_unit_test_setup(ranks_tell_each_other_where_they_run, open_pair),
        cmocka_unit_test_setup(a_yield_that_is_not_measured_begins_a_wait, open_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How a rank of backend_shm tells its peers that it sleeps: with a barrier in the kernel, so that they need no fence,
 * or without one; and what it learns about spinning from when something came. The kernel does what the test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>

#include <cmocka.h>

#include "backend_shm/duplex.h"
#include "backend_shm/events.h"
#include "backend_shm/fabric.h"
#include "core/common/base/clock.h"

static const int64_t MS = 1000000;

static int barriers; /* that were passed */
static int fails;    /* the kernel has no memory for one */

long __wrap_syscall(long number, ...);

long __wrap_syscall(long number, ...)
{
    va_list arguments;
    va_start(arguments, number);
    int command = va_arg(arguments, int);
    va_end(arguments);
    assert_int_equal(number, SYS_membarrier);
    if (command == MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
        return 0;
    assert_int_equal(command, MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    barriers++;
    return fails ? -1 : 0;
}

static void rouse_helper(struct domain *d)
{
    (void)d;
}

static const struct carrier_driver driver = { .rouse_helper = rouse_helper };
static struct waiting waiting;
static atomic_int contenders;
static struct ring_shared shared; /* of the ring from the one peer */
static struct duplex pair, *up[] = { &pair };
static struct fabric fabric;

/* A rank that polls for `spin_us` before it sleeps, and one peer that has sent nothing. */
static void open_with(int64_t spin_us)
{
    static struct ring_record nothing;
    barriers = fails = 0;
    waiting = (struct waiting){ .spin_ns = spin_us * 1000 };
    fabric = (struct fabric){ .driver = &driver, .up = up, .up_count = 1 };
    fabric.looks = (struct carrier_looks){ .waiting = &waiting, .contenders = &contenders };
    pair = (struct duplex){ .fabric = &fabric };
    pair.in.shared = &shared;
    pair.in.next = &nothing;
    pair.in.next_stamp = 5;
    atomic_store(&shared.is_barred, 0);
    assert_int_equal(events_open(&fabric), COMM_OK);
}

/* Returns how many barriers that took. */
static int go_to_sleep(void)
{
    int before = barriers, may = events_asleep(&fabric);
    assert_int_equal(may, !fails || barriers == before); /* else it looks once more */
    assert_int_equal(atomic_load(&shared.asleep), may);
    events_awake(&fabric);
    assert_int_equal(atomic_load(&shared.asleep), 0);
    return barriers - before;
}

static void rest(void)
{
    waiting.rest_until_ns = clock_now_ns() + 3600000 * MS;
}

static void expect_barred(unsigned is_barred)
{
    assert_int_equal(atomic_load(&shared.is_barred), is_barred);
}

static void a_rank_that_spins_passes_a_barrier(void **state)
{
    (void)state;
    open_with(100);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(go_to_sleep(), 1);
        expect_barred(1);
    }
    events_close(&fabric);
}

static void a_rank_that_rests_leaves_fences_to_its_peers(void **state)
{
    int64_t until_ns = 0;
    (void)state;
    open_with(100);
    assert_int_equal(go_to_sleep(), 1);
    rest();
    assert_int_equal(go_to_sleep(), 1); /* for a peer that last saw that it needs none */
    expect_barred(0);
    assert_int_equal(go_to_sleep(), 0);
    assert_false(fabric_look_at_clock(&fabric, MS, &until_ns));
    expect_barred(0);
    waiting.rest_until_ns = 0;
    assert_true(fabric_look_at_clock(&fabric, MS, &until_ns));
    expect_barred(1); /* before it sleeps: it may spin from now on */
    assert_int_equal(go_to_sleep(), 1);
    events_close(&fabric);
}

/* It spun, yields for a while, and spins again. */
static void a_rank_that_yields_for_a_while_passes_none(void **state)
{
    int64_t until_ns = 0;
    (void)state;
    open_with(100);
    assert_int_equal(go_to_sleep(), 1);
    waiting.yields = 1;
    waiting.yield_until_ns = clock_now_ns() + 3600000 * MS;
    assert_int_equal(go_to_sleep(), 1); /* for a peer that last saw that it needs none */
    expect_barred(0);
    assert_true(fabric_look_at_clock(&fabric, 1000 * MS, &until_ns));
    expect_barred(0);
    assert_int_equal(go_to_sleep(), 0);
    waiting.yield_until_ns = waiting.rest_until_ns = 0; /* a yield may have taken long on a machine that others use */
    assert_true(fabric_look_at_clock(&fabric, 1000 * MS, &until_ns)); /* sees that the while is over */
    waiting.rest_until_ns = 0;
    assert_true(fabric_look_at_clock(&fabric, 1000 * MS, &until_ns));
    expect_barred(1);
    events_close(&fabric);
}

static void a_rank_that_yields_passes_none(void **state)
{
    (void)state;
    open_with(0);
    assert_int_equal(go_to_sleep(), 0);
    expect_barred(0);
    rest();
    assert_int_equal(go_to_sleep(), 0);
    expect_barred(0);
    events_close(&fabric);
}

static void without_memory_for_a_barrier_there_are_fences(void **state)
{
    int64_t until_ns = 0;
    (void)state;
    open_with(100);
    assert_int_equal(go_to_sleep(), 1);
    fails = 1;
    assert_int_equal(go_to_sleep(), 1);
    expect_barred(0);
    assert_true(fabric_look_at_clock(&fabric, MS, &until_ns));
    expect_barred(0);
    assert_int_equal(go_to_sleep(), 0);
    events_close(&fabric);
}

/* Something was found in this turn. Does that say that spinning is worth it? */
static int pays(unsigned turn, int64_t until_ns)
{
    waiting.vain = 2;
    fabric_found(&fabric, turn, until_ns);
    return waiting.vain == 0;
}

static void what_the_thread_has_not_waited_for_is_no_reason_to_spin(void **state)
{
    const struct timespec nap = { .tv_nsec = 100000 };
    int64_t until_ns = 0;
    (void)state;
    open_with(100);
    assert_true(pays(2, 0));
    assert_false(pays(1, 0));
    waiting.vain = 2;
    assert_true(fabric_look_at_clock(&fabric, 1000 * MS, &until_ns));
    nanosleep(&nap, NULL);
    assert_false(pays(40, until_ns)); /* the other rank may have had the core meanwhile */
    until_ns = 0;
    for (int tries = 1; !pays(40, until_ns); tries++, until_ns = 0) {
        assert_true(tries < 1000); /* unless this one really loses the core right there */
        waiting.vain = 2;
        fabric_look_at_clock(&fabric, 1000 * MS, &until_ns);
    }
    events_close(&fabric);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_spins_passes_a_barrier),
        cmocka_unit_test(a_rank_that_rests_leaves_fences_to_its_peers),
        cmocka_unit_test(a_rank_that_yields_for_a_while_passes_none),
        cmocka_unit_test(a_rank_that_yields_passes_none),
        cmocka_unit_test(without_memory_for_a_barrier_there_are_fences),
        cmocka_unit_test(what_the_thread_has_not_waited_for_is_no_reason_to_spin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

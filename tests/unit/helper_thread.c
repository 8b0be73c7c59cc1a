/* The thread of core/exec/helper.c, with a domain that is none: when it takes the lock, parks, sleeps and wakes up. To
 * park ends by being woken, unless the test says otherwise, and to sleep ends at once, unless it does; both are
 * counted. */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "helper.h"

enum { PATIENCE_S = 20 };

static atomic_int async_works;
static struct helper helper;
static sem_t rounds, parks;                       /* posted at each */
static atomic_int round_count, locks, turns, driven_turns, sleeps, asked; /* how often */
static int lock_is_free, parks_briefly, turn_ms, sleeps_long;
static sem_t beds; /* posted before it sleeps long */
static atomic_int slept_at; /* so many descriptors */
static int sleep_ms;
static int64_t naps_ns;
static void (*in_round)(int number);
static void (*in_turn)(void);

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms);
int __real_poll(struct pollfd *fds, nfds_t count, int wait_ms);

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until)
{
    (void)until;
    sem_post(&parks);
    return parks_briefly ? ETIMEDOUT : pthread_cond_wait(cond, lock);
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms)
{
    (void)wait_ms;
    sleeps++;
    if (!sleeps_long)
        return 0;
    slept_at += (int)count;
    sem_post(&beds);
    return __real_poll(fds, count, sleep_ms);
}

static int try_lock(struct domain *d)
{
    (void)d;
    return lock_is_free;
}

static void lock(struct domain *d)
{
    (void)d;
    locks++;
}

static int turn(struct domain *d, int is_driven)
{
    (void)d;
    turns++;
    driven_turns += is_driven;
    if (in_turn)
        in_turn();
    atomic_store(&helper.polls, turn_ms && !is_driven);
    return is_driven ? 0 : turn_ms;
}

static void resolve(struct domain *d, const atomic_int *stop)
{
    (void)d, (void)stop;
    int number = ++round_count;
    if (in_round)
        in_round(number);
    sem_post(&rounds);
}

static int64_t nap_ns(struct domain *d, int64_t now)
{
    (void)d, (void)now;
    asked++;
    return naps_ns;
}

static const struct helper_ops ops = { .try_lock = try_lock, .lock = lock, .nap_ns = nap_ns, .turn = turn,
                                       .resolve = resolve };

static void await(sem_t *event)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += PATIENCE_S;
    assert_int_equal(sem_timedwait(event, &t), 0);
}

/* From now on. */
static void await_rounds(int count)
{
    while (sem_trywait(&rounds) == 0)
        ;
    while (count-- > 0)
        await(&rounds);
}

/* A thread drives, and has just looked around. */
static int open_helper(void **state)
{
    (void)state;
    helper = (struct helper){ 0 };
    helper_init(&helper, &ops, NULL, &async_works);
    atomic_store(&helper.signs.waiter_drives, 1);
    atomic_store(&helper.signs.looked_ns, INT64_MAX / 2);
    sem_init(&rounds, 0, 0);
    sem_init(&parks, 0, 0);
    sem_init(&beds, 0, 0);
    round_count = locks = turns = sleeps = asked = 0;
    async_works = driven_turns = 0;
    naps_ns = 0;
    lock_is_free = parks_briefly = turn_ms = sleeps_long = 0;
    slept_at = 0;
    sleep_ms = PATIENCE_S * 1000;
    in_round = NULL;
    in_turn = NULL;
    return 0;
}

static void wake_in_first(int number)
{
    if (number == 1)
        helper_wake(&helper);
}

static void a_wake_up_just_before_it_parks_is_not_lost(void **state)
{
    (void)state;
    in_round = wake_in_first;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await(&rounds);
    await(&rounds);
    helper_stop(&helper);
}

static void it_is_woken_where_it_is_parked(void **state)
{
    (void)state;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await(&parks);
    await(&rounds);
    helper_wake(&helper);
    await(&rounds);
    helper_stop(&helper);
    assert_int_equal(locks + turns, 0);
}

static void stop_it(void)
{
    atomic_store(&helper.stop, 1);
}

static void it_does_not_sleep_when_it_is_to_stop(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    lock_is_free = 1;
    turn_ms = 100;
    in_turn = stop_it;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    pthread_join(helper.thread, NULL);
    helper.runs = 0;
    assert_int_equal(turns, 1);
    assert_int_equal(sleeps, 0);
    helper_stop(&helper);
}

static void where_nobody_drives_it_sleeps_between_its_turns(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    lock_is_free = 1;
    turn_ms = 100;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await_rounds(4);
    assert_true(sleeps >= 3);
    helper_stop(&helper);
    assert_int_equal(sem_trywait(&parks), -1);
    assert_int_equal(atomic_load(&helper.polls), 0);
}

/* Whoever takes the event that it sleeps for rouses it, and it sleeps again. */
static void it_is_roused_where_it_sleeps(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    lock_is_free = sleeps_long = 1;
    turn_ms = 100;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    for (int i = 1; i <= 3; i++) {
        await(&beds);
        assert_int_equal(turns, i);
        helper_rouse(&helper);
    }
    await(&beds);
    helper_stop(&helper);
    assert_int_equal(turns, 4);
    assert_int_equal(helper.bell, -1);
}

/* The program has closed them, and has others by these numbers, which are always ready. */
static void it_sleeps_without_descriptors(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    lock_is_free = sleeps_long = 1;
    turn_ms = 100;
    sleep_ms = 10;
    helper_forget_descriptors(&helper);
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    int bell = helper.bell;
    helper_forget_descriptors(&helper);
    await(&beds);
    helper_rouse(&helper);
    await(&beds);
    assert_int_equal(slept_at, 0);
    helper_stop(&helper);
    assert_int_equal(close(bell), 0); /* it is the program's */
}

static void it_is_not_roused_where_it_does_not_sleep(void **state)
{
    (void)state;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await(&parks);
    helper_rouse(&helper);
    struct pollfd bell = { .fd = helper.bell, .events = POLLIN };
    assert_int_equal(__real_poll(&bell, 1, 0), 0);
    helper_stop(&helper);
}

/* What is to be told is told by the thread that waits. */
static void it_leaves_the_lock_to_a_thread_that_waits(void **state)
{
    (void)state;
    atomic_store(&helper.signs.looked_ns, 0);
    parks_briefly = 1;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await_rounds(3);
    helper_stop(&helper);
    assert_int_equal(locks + turns, 0);
}

static void drive_at_once(int number)
{
    (void)number;
    atomic_fetch_add(&helper.signs.runs, 1);
}

static void it_looks_around_though_ranks_drive(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    in_round = drive_at_once;
    parks_briefly = 1;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await_rounds(3);
    assert_int_equal(locks, 0); /* the lock is not free, and there is no need */
    atomic_store(&helper.signs.looked_ns, clock_now_ns() - 2 * (int64_t)HELPER_LOOK_AROUND_NS);
    await_rounds(3);
    helper_stop(&helper);
    assert_true(locks > 0);
    assert_int_equal(turns, locks);
    assert_int_equal(sleeps, 0);
}

/* It would be woken for each message. */
static void beside_a_program_that_computes_it_naps(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    lock_is_free = async_works = 1;
    turn_ms = 100;
    naps_ns = 1000;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await_rounds(4);
    helper_stop(&helper);
    assert_true(turns >= 3 && asked >= turns);
    assert_int_equal(driven_turns, turns);
    assert_int_equal(sleeps, 0);
    assert_int_equal(sem_trywait(&parks), -1);
}

static void find(void)
{
    helper.finds = HELPER_FINDS;
}

static void it_naps_briefly_if_something_has_come(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    lock_is_free = async_works = 1;
    in_turn = find;
    naps_ns = (int64_t)PATIENCE_S * 2000000000;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await_rounds(4);
    helper_stop(&helper);
    assert_int_equal(driven_turns, turns);
}

static void it_does_not_nap_without_operations(void **state)
{
    (void)state;
    atomic_store(&helper.signs.waiter_drives, 0);
    lock_is_free = parks_briefly = 1;
    turn_ms = 100;
    naps_ns = (int64_t)PATIENCE_S * 2000000000;
    assert_int_equal(helper_start(&helper, -1), COMM_OK);
    await_rounds(4);
    atomic_store(&helper.signs.waiter_drives, 1); /* nor where a thread drives */
    await_rounds(2);
    async_works = 1;
    await_rounds(4);
    helper_stop(&helper);
    assert_int_equal(asked, 0);
    assert_true(sleeps > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_wake_up_just_before_it_parks_is_not_lost, open_helper),
        cmocka_unit_test_setup(it_is_woken_where_it_is_parked, open_helper),
        cmocka_unit_test_setup(it_does_not_sleep_when_it_is_to_stop, open_helper),
        cmocka_unit_test_setup(where_nobody_drives_it_sleeps_between_its_turns, open_helper),
        cmocka_unit_test_setup(it_is_roused_where_it_sleeps, open_helper),
        cmocka_unit_test_setup(it_sleeps_without_descriptors, open_helper),
        cmocka_unit_test_setup(it_is_not_roused_where_it_does_not_sleep, open_helper),
        cmocka_unit_test_setup(it_leaves_the_lock_to_a_thread_that_waits, open_helper),
        cmocka_unit_test_setup(it_looks_around_though_ranks_drive, open_helper),
        cmocka_unit_test_setup(beside_a_program_that_computes_it_naps, open_helper),
        cmocka_unit_test_setup(it_naps_briefly_if_something_has_come, open_helper),
        cmocka_unit_test_setup(it_does_not_nap_without_operations, open_helper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

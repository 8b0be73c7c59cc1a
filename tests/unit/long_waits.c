/* How long a thread polls that waits for longer than it spins. Time, how long a yield takes, who has had the core, and
 * what a control group allows are what the test says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/exec/control_group.h"
#include "core/exec/say.h"
#include "core/exec/waiting.h"

static const int64_t MS = 1000000;

static int64_t now_ns, yield_ns;
static int yields, cpu_asked;
static int64_t used_ns, own_ns; /* CPU time of the process, and of this thread */
static long switches;
static uint64_t millicores;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_sched_yield(void);
int __wrap_getrusage(int who, struct rusage *usage);
uint64_t __wrap_control_group_millicores(const char *proc, const char *groups);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    if (clock == CLOCK_PROCESS_CPUTIME_ID) {
        cpu_asked++;
        *t = (struct timespec){ .tv_sec = used_ns / 1000000000, .tv_nsec = used_ns % 1000000000 };
        return 0;
    }
    if (clock == CLOCK_THREAD_CPUTIME_ID) {
        *t = (struct timespec){ .tv_sec = own_ns / 1000000000, .tv_nsec = own_ns % 1000000000 };
        return 0;
    }
    *t = (struct timespec){ .tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000 };
    return 0;
}

int __wrap_sched_yield(void)
{
    now_ns += yield_ns;
    yields++;
    return 0;
}

int __wrap_getrusage(int who, struct rusage *usage)
{
    assert_int_equal(who, RUSAGE_THREAD);
    *usage = (struct rusage){ .ru_nivcsw = switches };
    return 0;
}

uint64_t __wrap_control_group_millicores(const char *proc, const char *groups)
{
    assert_string_equal(proc, "/proc");
    assert_string_equal(groups, "/sys/fs/cgroup");
    return millicores;
}

static struct waiting polling(void)
{
    now_ns = 1000 * MS;
    yield_ns = MS / 1000;
    return (struct waiting){ .spin_ns = MS, .yield_ns = MS, .rest_ns = 100 * MS, .poll_ns = 20 * MS };
}

/* Nothing comes for so long. Returns for how much of that it polled, from the beginning. */
static int64_t wait_for(struct waiting *w, int64_t ns)
{
    const int64_t step_ns = MS / 100, begun_ns = now_ns;
    waiting_begins(w);
    while (now_ns < begun_ns + ns && waiting_look_again(w, now_ns, begun_ns))
        now_ns += step_ns;
    return now_ns - begun_ns;
}

static void comes(struct waiting *w)
{
    waiting_came(w);
    waiting_anew(w);
}

static void a_long_wait_is_polled_as_long_as_nobody_else_wants_the_core(void **state)
{
    (void)state;
    struct waiting w = polling();
    for (int i = 0; i < 10; i++) {
        assert_in_range(wait_for(&w, 3000 * MS), 20 * MS, 21 * MS);
        switches++;
        assert_int_equal(w.vain, 0); /* who wanted the core had it */
        comes(&w);
        assert_in_range(wait_for(&w, 10 * MS), 10 * MS, 11 * MS);
        comes(&w);
    }
    w.poll_ns = 0;
    assert_in_range(wait_for(&w, 10 * MS), MS, 2 * MS);
    assert_int_equal(w.vain, 1);
}

/* At once, and then seldom, as it is blind meanwhile; but often enough for who wants the core. */
static void a_long_wait_is_seldom_interrupted(void **state)
{
    (void)state;
    struct waiting w = polling();
    yields = 0;
    wait_for(&w, MS);
    assert_true(waiting_polls_on(&w, now_ns, now_ns - MS + 1)); /* as it spins */
    assert_int_equal(yields, 0);
    comes(&w);
    wait_for(&w, MS + MS / 100);
    assert_int_equal(yields, 1);
    comes(&w);
    yields = 0;
    wait_for(&w, 3 * MS);
    assert_in_range(yields, 60, 101);
}

/* A thread that waits for hours does not poll for 20 ms each second. */
static void a_thread_that_has_slept_polls_on_when_something_has_come(void **state)
{
    (void)state;
    struct waiting w = polling();
    wait_for(&w, 3000 * MS);
    for (int i = 0; i < 2; i++) {
        now_ns += 1000 * MS; /* it has slept */
        assert_in_range(wait_for(&w, 10 * MS), MS, 2 * MS);
    }
    assert_int_equal(w.vain, 0);
    comes(&w);
    assert_in_range(wait_for(&w, 3000 * MS), 20 * MS, 21 * MS);
}

/* That a yield took so long says it. Short waits go on as before. */
static void nobody_polls_on_where_another_program_wants_the_core(void **state)
{
    (void)state;
    struct waiting w = polling();
    int64_t rest_ns = 80 * MS;
    for (int i = 0; i < 5; i++) {
        yield_ns = 2 * MS;
        int64_t begun_ns = now_ns + MS;
        assert_in_range(wait_for(&w, 10 * MS), 3 * MS, 4 * MS);
        assert_in_range(w.no_poll_until_ns - begun_ns, rest_ns, rest_ns + MS / 10);
        assert_int_equal(w.rest_until_ns, 0);
        comes(&w);
        yield_ns = 0;
        assert_in_range(wait_for(&w, 10 * MS), MS, 2 * MS);
        comes(&w);
        assert_in_range(wait_for(&w, MS / 2), MS / 2, MS);
        w.vain = 0;
        comes(&w);
        now_ns = w.no_poll_until_ns;
        rest_ns = rest_ns < 320 * MS ? 2 * rest_ns : rest_ns;
    }
    assert_in_range(wait_for(&w, 10 * MS), 10 * MS, 11 * MS); /* it has gone */
}

/* Ranks on cores of their own use nearly all of these when they poll, so that says nothing. */
static int64_t all_of_two_cores(const void *ranks, int32_t *ret_cores)
{
    (void)ranks;
    *ret_cores = 2;
    return 2 * now_ns;
}

static void other_programs_are_noticed_beside_ranks_that_poll(void **state)
{
    (void)state;
    struct waiting w = polling();
    w.usage.of_ranks = all_of_two_cores;
    w.waits = 1000000;
    yield_ns = 2 * MS;
    wait_for(&w, 10 * MS);
    assert_true(w.no_poll_until_ns > now_ns);
}

/* Another rank may have had the core: that it waited for this one to stop spinning. */
static void a_long_wait_without_the_core_is_in_vain(void **state)
{
    (void)state;
    struct waiting w = polling();
    wait_for(&w, 3 * MS / 2);
    switches++;
    comes(&w); /* no yield took so long that another rank can have run */
    assert_int_equal(w.vain, 0);
    yield_ns = MS / 100;
    for (int i = 1; i <= 2; i++) {
        wait_for(&w, 3 * MS / 2);
        switches++;
        comes(&w);
        assert_int_equal(w.vain, i);
        assert_int_equal(w.polls_on_ns, 0);
    }
    wait_for(&w, 3 * MS / 2);
    comes(&w); /* this thread had it all the time */
    assert_int_equal(w.vain, 0);
    w.vain = 1;
    wait_for(&w, 3 * MS);
    switches++;
    comes(&w); /* the other rank was late for itself */
    assert_int_equal(w.vain, 0);
    wait_for(&w, 3 * MS / 2);
    switches++;
    wait_for(&w, 0); /* the next wait begins */
    comes(&w);
    assert_int_equal(w.vain, 0);
    yield_ns = MS / 1000;
    wait_for(&w, 3 * MS / 2);
    switches++;
    comes(&w);
    assert_int_equal(w.vain, 0);
}

/* ---- Who polls on ---- */

static int64_t spin_us;

static int64_t param(const void *options, const char *backend, const char *name)
{
    (void)options, (void)backend;
    return strcmp(name, "spin_us") == 0 ? spin_us : strcmp(name, "poll_us") == 0 ? 11 : 9;
}

/* Of 3 ranks, of which so many are on the first one's host, on so many cores. */
static int64_t polls_for(int32_t local, int32_t cores, int32_t launched)
{
    const int32_t hosts[3] = { 0, local < 2, local < 3 };
    struct waiting w = { 0 };
    comm_world_info info = { .struct_bytes = sizeof info, .size = 3, .local_size = launched, .hosts = hosts,
                             .local_cores = cores };
    waiting_choose(&w, "shm", &info);
    return w.poll_ns;
}

/* Of one of `ranks` on so many cores, which has used so much CPU time in 10 ms. */
static int computes(int32_t ranks, int32_t cores, int64_t used_us)
{
    const int32_t hosts[8] = { 0 };
    struct waiting w = { 0 };
    comm_world_info info = { .struct_bytes = sizeof info, .size = ranks, .hosts = hosts, .local_cores = cores };
    waiting_choose(&w, "shm", &info);
    waiting_computes(&w, now_ns);
    now_ns += 10 * MS;
    used_ns += used_us * 1000;
    return waiting_computes(&w, now_ns);
}

static void a_program_computes_that_uses_its_share_of_the_cores(void **state)
{
    static const comm_host fake = { .param_int = param };
    (void)state;
    exec_host = &fake;
    now_ns = 1000 * MS;
    assert_true(computes(2, 2, 5100)); /* one core each */
    assert_false(computes(2, 2, 4900));
    assert_false(computes(2, 4, 14900)); /* two: the helper has one for itself */
    assert_true(computes(2, 4, 15100));
    assert_true(computes(4, 2, 2600)); /* half of one */
    assert_false(computes(4, 2, 2400));
    assert_true(computes(2, 3, 10100));
    assert_false(computes(2, 3, 9900));
    own_ns += 5 * MS; /* what it does itself, such as reducing, is not the program's */
    used_ns += 5 * MS;
    assert_true(computes(2, 2, 5100));
    struct waiting w = { .process.share = 1000 };
    waiting_computes(&w, now_ns);
    now_ns += 10 * MS;
    own_ns += 8 * MS;
    used_ns += 9 * MS;
    assert_false(waiting_computes(&w, now_ns));
}

/* What so little time says is nothing. */
static void whether_a_program_computes_is_not_asked_at_once_again(void **state)
{
    struct waiting w = { .process.share = 1000 };
    (void)state;
    now_ns += 10 * MS;
    waiting_computes(&w, now_ns);
    now_ns += MS;
    used_ns += MS;
    assert_true(waiting_computes(&w, now_ns));
    cpu_asked = 0;
    now_ns += MS / 50;
    assert_true(waiting_computes(&w, now_ns));
    assert_int_equal(cpu_asked, 0);
    now_ns += MS / 20;
    assert_false(waiting_computes(&w, now_ns));
    assert_int_equal(cpu_asked, 1);
}

static void only_ranks_that_have_cores_and_time_poll_on(void **state)
{
    static const comm_host fake = { .param_int = param };
    const int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    (void)state;
    exec_host = &fake;
    spin_us = 7;
    millicores = UINT64_MAX;
    assert_int_equal(polls_for(3, 3, 0), 11000);
    assert_int_equal(polls_for(3, 2, 0), 0);
    millicores = 3000;
    assert_int_equal(polls_for(3, 3, 0), 11000);
    millicores = 2999;
    assert_int_equal(polls_for(3, 3, 0), 0);
    millicores = 1000;
    assert_int_equal(polls_for(3, 3, 0), 0);
    assert_int_equal(polls_for(1, 3, 0), 11000);
    assert_int_equal(polls_for(1, 3, online), online > 1 ? 0 : 11000); /* others of the job share the group */
    millicores = UINT64_MAX;
    spin_us = 0;
    assert_int_equal(polls_for(3, 3, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_wait_is_polled_as_long_as_nobody_else_wants_the_core),
        cmocka_unit_test(a_long_wait_is_seldom_interrupted),
        cmocka_unit_test(a_thread_that_has_slept_polls_on_when_something_has_come),
        cmocka_unit_test(nobody_polls_on_where_another_program_wants_the_core),
        cmocka_unit_test(other_programs_are_noticed_beside_ranks_that_poll),
        cmocka_unit_test(a_long_wait_without_the_core_is_in_vain),
        cmocka_unit_test(a_program_computes_that_uses_its_share_of_the_cores),
        cmocka_unit_test(whether_a_program_computes_is_not_asked_at_once_again),
        cmocka_unit_test(only_ranks_that_have_cores_and_time_poll_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

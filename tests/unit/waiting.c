/* How soon a waiting thread notices what it waits for. A lost wake-up fails nothing: some timer repairs it after 1 ms
 * to 1 s. So each claim here measures many wake-ups and bounds their median, which a loaded machine leaves far below
 * the time of a repair; or it asks what has ended the waiting, by a pthread_cond_timedwait in the place of libc's
 * (--wrap). */
#include <comm/comm.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "ranks.h"
#include "waits.h"

enum { TIMES = 200 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_median(const char *what, double *times_ms, size_t count, double most_ms)
{
    qsort(times_ms, count, sizeof *times_ms, compare_doubles);
    fprintf(stderr, "%s: median %.3f ms, most %.3f ms\n", what, times_ms[count / 2], times_ms[count - 1]);
    fflush(stdout);
    CHECK(times_ms[count / 2] < most_ms);
}

/* Where only some wake-ups can be lost: so few may be late, whatever else the machine does. */
struct tally {
    const char *what;
    int times, late;
    double most_ms;
};

static void count_late(struct tally *tally, double took_ms)
{
    enum { LATE_MS = 200, LATE_MAX = 4 };
    tally->times++;
    tally->most_ms = took_ms > tally->most_ms ? took_ms : tally->most_ms;
    if (took_ms < LATE_MS)
        return;
    fprintf(stderr, "%s: the %dth took %.3f ms\n", tally->what, tally->times, took_ms);
    CHECK(++tally->late <= LATE_MAX);
}

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static comm_group *world_of(const char *backend)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.backend = backend;
    CHECK_OK(ranks_init(&options, &world));
    return world;
}

/* ---- Spinning ---- */

/* A rank that spins keeps the other one from running: two barriers would take twice the time that each may spin. */
static void ranks_on_one_core_do_not_spin_against_each_other(int rank, int size, void *arg)
{
    double times_ms[TIMES];
    cpu_set_t all, one;
    (void)size, (void)arg;
    comm_group *world = world_of("tcp?spin_us=2000");
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    for (int i = 0; i < TIMES; i++) {
        double begun_ms = now_ms();
        for (int k = 0; k < 10; k++) /* every other one may find that the message has come already */
            CHECK_OK(comm_barrier(world, NULL, NULL));
        times_ms[i] = now_ms() - begun_ms;
    }
    if (rank == 0)
        check_median("ten barriers of two ranks on one core", times_ms, TIMES, 8);
    CHECK_OK(comm_group_close(world));
}

/* ---- Two threads of a rank ---- */

static void busy(uint32_t ns)
{
    for (double end_ms = now_ms() + 1e-6 * ns; now_ms() < end_ms;)
        ;
}

static comm_work *receive(comm_group *group, int32_t from, int32_t tag)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    options.tag = tag;
    CHECK_OK(comm_recv(group, NULL, 0, COMM_DTYPE_BYTE, from, &options, &work));
    return work;
}

static void wait_and_release(comm_work *work)
{
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
}

static void send_now(comm_group *group, int32_t to, int32_t tag)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.tag = tag;
    CHECK_OK(comm_send(group, NULL, 0, COMM_DTYPE_BYTE, to, &options, NULL));
}

/* Two works are done at once, and the first one's callback takes its time:
 * meanwhile another thread begins to wait for the second. */
struct handed_over {
    comm_work *second;
    uint32_t busy_ns; /* how long the callback goes on when the other thread begins to wait; 0: until that sleeps */
    atomic_int held_up, waits;
    double late_ms;
};

static void hold_up(comm_work *work, comm_status status, void *context)
{
    struct handed_over *h = context;
    (void)work, (void)status;
    atomic_store(&h->held_up, 1);
    while (!atomic_load(&h->waits))
        sched_yield();
    if (h->busy_ns)
        busy(h->busy_ns);
    else
        pause_ms(2);
    h->late_ms = -now_ms();
}

static void *wait_for_second(void *context)
{
    struct handed_over *h = context;
    while (!atomic_load(&h->held_up))
        sched_yield();
    atomic_store(&h->waits, 1);
    CHECK_OK(comm_work_wait(h->second, 0));
    h->late_ms += now_ms();
    return NULL;
}

static double hand_over(comm_group *world, uint32_t ns)
{
    struct handed_over h = { .busy_ns = ns };
    pthread_t thread;
    comm_work *first = receive(world, 0, 1);
    h.second = receive(world, 0, 2);
    CHECK_OK(comm_work_on_complete(first, hold_up, &h));
    CHECK(pthread_create(&thread, NULL, wait_for_second, &h) == 0);
    CHECK_OK(comm_coalesce_begin(world));
    send_now(world, 0, 1);
    send_now(world, 0, 2);
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    comm_work_release(first);
    comm_work_release(h.second);
    return h.late_ms;
}

static void a_thread_that_sleeps_hears_of_works_that_another_hands_over(int rank, int size, void *arg)
{
    double times_ms[20];
    (void)rank, (void)size, (void)arg;
    comm_group *world = world_of("tcp?spin_us=0");
    for (int i = 0; i < 20; i++)
        times_ms[i] = hand_over(world, 0);
    check_median("handed over to a thread that sleeps", times_ms, 20, 20);
    CHECK_OK(comm_group_close(world));
}

static void a_thread_that_is_about_to_sleep_hears_of_works_that_another_hands_over(int rank, int size, void *arg)
{
    (void)rank, (void)size;
    comm_group *world = world_of("tcp?spin_us=0");
    struct tally tally = { .what = "handed over to a thread that is about to sleep" };
    for (int i = 0; i < 6000; i++)
        count_late(&tally, hand_over(world, 1 + draw(arg) % 12000));
    CHECK_OK(comm_group_close(world));
}

static atomic_int told, given_up; /* waits of threads that are watched: ended by another thread, and by the time */
static _Thread_local int watched;

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until)
{
    int status = __real_pthread_cond_timedwait(cond, lock, until);
    if (watched)
        atomic_fetch_add(status == 0 ? &told : &given_up, 1);
    return status;
}

static void *wait_for_work(void *work)
{
    watched = 1;
    CHECK_OK(comm_work_wait(work, 0));
    return NULL;
}

static void a_thread_that_sleeps_makes_room_for_one_that_submits(int rank, int size, void *arg)
{
    comm_group *world = world_of("tcp?spin_us=0");
    struct tally tally = { .what = "submitted beside a thread that sleeps" };
    pthread_t thread;
    (void)rank, (void)size;
    comm_work *last = receive(world, 0, 9);
    CHECK(pthread_create(&thread, NULL, wait_for_work, last) == 0);
    for (int i = 0; i < 5000; i++) {
        double begun_ms = now_ms();
        comm_work *work = receive(world, 0, 1);
        busy(draw(arg) % 12000);
        send_now(world, 0, 1);
        wait_and_release(work);
        count_late(&tally, now_ms() - begun_ms);
    }
    send_now(world, 0, 9);
    CHECK(pthread_join(thread, NULL) == 0);
    comm_work_release(last);
    CHECK_OK(comm_group_close(world));
}

/* Two threads of rank 0 wait for messages of rank 1. One of them reads for both; the other one is told, and need not
 * look again by itself. */
static void who_does_not_read_is_told(int rank, int size, void *arg)
{
    enum { ROUNDS = 5000, ENOUGH = 10 };
    comm_group *world = world_of("tcp");
    pthread_t thread;
    int32_t more = 1;
    (void)size, (void)arg;
    comm_work *last = rank == 0 ? receive(world, 1, 9) : NULL;
    if (rank == 0)
        CHECK(pthread_create(&thread, NULL, wait_for_work, last) == 0);
    watched = 1;
    for (int i = 0; more; i++) {
        comm_work *work = rank == 0 ? receive(world, 1, 1) : NULL;
        more = i < ROUNDS && atomic_load(&told) < ENOUGH;
        CHECK_OK(comm_broadcast(world, &more, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        if (rank == 0)
            wait_and_release(work);
        else
            send_now(world, 0, 1);
    }
    watched = 0;
    if (rank == 1)
        send_now(world, 0, 9);
    else
        CHECK(pthread_join(thread, NULL) == 0);
    comm_work_release(last);
    if (rank == 0)
        fprintf(stderr, "%d waits ended by another thread, %d by the time\n", atomic_load(&told),
                atomic_load(&given_up));
    CHECK(rank != 0 || atomic_load(&told) >= ENOUGH);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* ---- No thread waits ---- */

/* Each round finds the helper thread asleep. */
static void what_a_call_completes_is_told_at_once(int rank, int size, void *arg)
{
    double times_ms[TIMES];
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("tcp");
    for (int i = 0; i < TIMES; i++) {
        comm_work *recv = receive(world, rank, 0), *send;
        pause_ms(8);
        double begun_ms = now_ms();
        CHECK_OK(comm_send(world, NULL, 0, COMM_DTYPE_BYTE, rank, NULL, &send));
        await_descriptor(recv);
        await_descriptor(send);
        times_ms[i] = now_ms() - begun_ms;
    }
    check_median("told by the helper thread", times_ms, TIMES, 20);
    CHECK_OK(comm_group_close(world));
}

static void a_time_limit_is_kept(int rank, int size, void *arg)
{
    enum { ROUNDS = 20, LIMIT_MS = 30 };
    double times_ms[ROUNDS];
    comm_group *world = ranks_world("tcp");
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    limit.timeout_ms = LIMIT_MS;
    (void)size, (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        comm_group *group;
        comm_work *work;
        int32_t fd;
        CHECK_OK(comm_group_dup(world, NULL, &group));
        pause_ms(20); /* the helper sleeps, and for longer than the limit */
        double begun_ms = now_ms();
        CHECK_OK(comm_recv(group, NULL, 0, COMM_DTYPE_BYTE, rank, &limit, &work));
        CHECK_OK(comm_work_fd(work, &fd));
        CHECK(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 20000) == 1);
        times_ms[i] = now_ms() - begun_ms;
        CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_DEADLINE);
        comm_work_release(work);
        CHECK_OK(comm_group_close(group));
    }
    check_median("a time limit of 30 ms", times_ms, ROUNDS, LIMIT_MS + 30);
    CHECK_OK(comm_group_close(world));
}

static void closing_wakes_the_helper(int rank, int size, void *arg)
{
    double times_ms[20];
    (void)rank, (void)size, (void)arg;
    for (int i = 0; i < 20; i++) {
        comm_group *world = ranks_world("tcp");
        pause_ms(20);
        double begun_ms = now_ms();
        CHECK_OK(comm_group_close(world));
        times_ms[i] = now_ms() - begun_ms;
    }
    check_median("closed", times_ms, 20, 20);
}

/* ---- Many links ---- */

/* Rank 0 always awaits something from all the others: from so many that it does not look at each link. The others send
 * when told to. */
static void hear_one_of_many(int rank, int size, const char *backend, uint32_t *seed)
{
    enum { RANKS_MAX = 16, ROUNDS = 1000 };
    struct tally tally = { .what = backend };
    comm_work *awaited[RANKS_MAX];
    comm_group *world = world_of(backend);
    for (int r = 1; rank == 0 && r < size; r++)
        awaited[r] = receive(world, r, 0);
    for (int i = 0; rank == 0 && i < ROUNDS; i++) {
        int from = 1 + i % (size - 1);
        comm_work *work = awaited[from];
        awaited[from] = receive(world, from, 0);
        send_now(world, from, 0);
        busy(draw(seed) % 100000);
        double begun_ms = now_ms();
        wait_and_release(work);
        count_late(&tally, now_ms() - begun_ms);
    }
    for (int i = rank - 1; rank > 0 && i < ROUNDS; i += size - 1) {
        wait_and_release(receive(world, 0, 0));
        send_now(world, 0, 0);
    }
    if (rank > 0)
        send_now(world, 0, 0);
    for (int r = 1; rank == 0 && r < size; r++)
        wait_and_release(awaited[r]);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static void one_of_many_ranks_is_heard_at_once(int rank, int size, void *arg)
{
    hear_one_of_many(rank, size, "tcp?spin_us=0&yield_us=0", arg);
}

/* Those with even numbers are on one host, the others on another one. */
static void one_of_many_ranks_here_and_there_is_heard_at_once(int rank, int size, void *arg)
{
    setenv("COMM_HOST_ID", rank % 2 ? "odd" : "even", 1);
    hear_one_of_many(rank, size, "shm-tcp?tcp.spin_us=0&tcp.yield_us=0", arg);
}

int main(int argc, char **argv)
{
    const struct ranks_options options = { .limit_s = 60, .name = "waiting" };
    uint32_t seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : (uint32_t)time(NULL);
    printf("seed %u\n", seed);
    fflush(stdout);
    return ranks_run(2, &options, ranks_on_one_core_do_not_spin_against_each_other, NULL) ||
           ranks_run(1, &options, a_thread_that_sleeps_hears_of_works_that_another_hands_over, NULL) ||
           ranks_run(1, &options, a_thread_that_is_about_to_sleep_hears_of_works_that_another_hands_over, &seed) ||
           ranks_run(1, &options, a_thread_that_sleeps_makes_room_for_one_that_submits, &seed) ||
           ranks_run(2, &options, who_does_not_read_is_told, NULL) ||
           ranks_run(1, &options, what_a_call_completes_is_told_at_once, NULL) ||
           ranks_run(1, &options, a_time_limit_is_kept, NULL) ||
           ranks_run(1, &options, closing_wakes_the_helper, NULL) ||
           ranks_run(10, &options, one_of_many_ranks_is_heard_at_once, &seed) ||
           ranks_run(10, &options, one_of_many_ranks_here_and_there_is_heard_at_once, &seed);
}

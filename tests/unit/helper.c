/* A backend's helper thread (core/exec/helper.h) leaves the cores to ranks that call one operation after the other, and
 * does even then what only it can do. */
#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "helper.h"
#include "ranks.h"

enum { RUN_MS = 400, ATTEMPTS = 5, BEGINS = 8, LOOK_MS = 12, PATIENCE_MS = 5000 };

static long sleeps_of(const char *thread)
{
    char name[300], line[200];
    long count = 0;
    snprintf(name, sizeof name, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
            break;
    if (file)
        fclose(file);
    return count;
}

static long sleeps_of_others(void)
{
    long own = syscall(SYS_gettid), sum = 0;
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads);
    for (const struct dirent *d; (d = readdir(threads)) != NULL;)
        if (*d->d_name != '.' && strtol(d->d_name, NULL, 10) != own)
            sum += sleeps_of(d->d_name);
    closedir(threads);
    return sum;
}

/* Of all ranks of the group. */
static int32_t least(comm_group *world, int32_t value)
{
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_MIN, NULL, NULL));
    return value;
}

static void stream_for(comm_group *world, int64_t run_ms)
{
    int64_t began = clock_now_ns(), ms = 0;
    while (least(world, ms < run_ms))
        ms = (clock_now_ns() - began) / 1000000;
}

/* Counted is how often threads other than the caller have gone to sleep, and so were awake. */
static void helper_lets_ranks_run(int rank, int size, void *backend)
{
    comm_group *world = ranks_world(backend);
    long sleeps = 0, most = 0;
    int is_seldom = 0;
    (void)rank;
    (void)size;
    for (int attempt = 0; attempt < ATTEMPTS && !is_seldom; attempt++) {
        int64_t began = clock_now_ns();
        sleeps = -sleeps_of_others();
        stream_for(world, RUN_MS);
        sleeps += sleeps_of_others();
        most = BEGINS + (clock_now_ns() - began) / 1000000 / LOOK_MS;
        is_seldom = least(world, sleeps <= most);
    }
    if (!is_seldom)
        ranks_fail(__FILE__, __LINE__, "other threads were awake %ld times, not %ld at most", sleeps, most);
    CHECK_OK(comm_group_close(world));
}

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* What is due each second comes in that time. It takes a millisecond of the core's, and a helper that rouses itself
 * until it is due takes 100. */
static void world_without_operations_takes_no_time(int rank, int size, void *backend)
{
    enum { IDLE_MS = 1200, MOST_MS = IDLE_MS / 40 };
    const struct timespec idle = { IDLE_MS / 1000, IDLE_MS % 1000 * 1000000 };
    comm_group *world = ranks_world(backend);
    int64_t took_ns = -1;
    (void)rank;
    (void)size;
    for (int attempt = 0; attempt < 2 && (took_ns < 0 || took_ns > MOST_MS * INT64_C(1000000)); attempt++) {
        CHECK_OK(comm_barrier(world, NULL, NULL));
        took_ns = -cpu_ns();
        nanosleep(&idle, NULL);
        took_ns += cpu_ns();
    }
    if (took_ns > MOST_MS * INT64_C(1000000))
        ranks_fail(__FILE__, __LINE__, "%lld us of a core in %d ms", (long long)took_ns / 1000, IDLE_MS);
    CHECK_OK(comm_group_close(world));
}

static _Atomic int64_t told_ns;

static void tell(comm_work *work, comm_status status, void *context)
{
    (void)work, (void)context;
    CHECK(status == COMM_OK);
    atomic_store(&told_ns, clock_now_ns());
}

/* It is done when it is submitted, and its thread does something else then. The shortest of some times, as other
 * programs may have the cores: to rest once more takes the helper 5 ms at least. */
static void work_is_told_at_once_after_a_stream(int rank, int size, void *backend)
{
    enum { TIMES = 7, STREAM_MS = 60, REST_MS = 5 };
    comm_group *world = ranks_world(backend);
    int64_t shortest_ns = INT64_MAX;
    float value = 1;
    (void)size;
    for (int i = 0; i < TIMES; i++) {
        stream_for(world, STREAM_MS);
        int64_t began = clock_now_ns();
        atomic_store(&told_ns, 0);
        if (rank == 0) {
            comm_work *work;
            CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_F32, 1, NULL, &work));
            CHECK_OK(comm_work_on_complete(work, tell, NULL));
            comm_work_release(work);
            while (!atomic_load(&told_ns) && clock_now_ns() - began < PATIENCE_MS * INT64_C(1000000))
                ;
            CHECK(atomic_load(&told_ns));
            shortest_ns = told_ns - began < shortest_ns ? told_ns - began : shortest_ns;
        } else {
            CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_F32, 0, NULL, NULL));
        }
    }
    if (rank == 0 && shortest_ns >= REST_MS * INT64_C(1000000))
        ranks_fail(__FILE__, __LINE__, "told after %lld us", (long long)shortest_ns / 1000);
    CHECK_OK(comm_group_close(world));
}

struct late {
    const char *backend;
    atomic_int *has_sent;
};

/* Rank 2 has not been connected to rank 0 yet, which is in a stream of operations with rank 1. */
static void rank_connects_to_one_in_a_stream(int rank, int size, void *arg)
{
    static const int32_t two[] = { 0, 1 };
    const struct late *late = arg;
    comm_group *world = ranks_world(late->backend), *pair = NULL;
    float value = 1;
    (void)size;
    if (rank == 2) {
        CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_F32, 0, NULL, NULL));
        atomic_store(late->has_sent, 1);
    } else {
        CHECK_OK(comm_group_create(world, two, 2, NULL, &pair));
        int64_t began = clock_now_ns(), ms = 0;
        while (least(pair, ms < PATIENCE_MS && !atomic_load(late->has_sent)))
            ms = (clock_now_ns() - began) / 1000000;
        CHECK(atomic_load(late->has_sent));
        CHECK_OK(comm_group_close(pair));
    }
    if (rank == 0)
        CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_F32, 2, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* One look of the helper, `ms` after the one before, while a thread runs ops at once or not. Returns how long it rests
 * then, in ms; 0: a nap. */
static int rest_after(struct helper_memory *h, struct helper_signs *signs, int64_t *now, int ms, int runs)
{
    *now += (int64_t)ms * 1000000;
    atomic_fetch_add(&signs->runs, (unsigned)runs);
    int is_driven = helper_sees_driver(h, signs, 0, 0, *now);
    if (is_driven != (runs > 0))
        ranks_fail(__FILE__, __LINE__, "%d runs, driven: %d", runs, is_driven);
    return (int)(helper_rest_ns(h, signs, is_driven, *now) / 1000000);
}

static void rests_get_longer(int rank, int size, void *arg)
{
    static const int expected[] = { 5, 5, 10, 5, 20, 5, 40, 5, 40, 5, 40 };
    struct helper_memory h = { 0 };
    struct helper_signs signs = { 0 };
    int64_t now = 1000000000;
    int rest = 5;
    (void)rank, (void)size, (void)arg;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        rest = rest_after(&h, &signs, &now, rest, 1);
        CHECK(rest == expected[i]);
    }
    CHECK(rest_after(&h, &signs, &now, rest, 0) == 5); /* nobody drives, but has the lock */
    CHECK(rest_after(&h, &signs, &now, 5, 1) == 5 && rest_after(&h, &signs, &now, 5, 1) == 5);
    CHECK(rest_after(&h, &signs, &now, 5, 1) == 10);
    atomic_store(&signs.driven_ns, now - 1000000);
    CHECK(helper_sees_driver(&h, &signs, 0, 0, now) && !helper_sees_driver(&h, &signs, 0, 1, now));
    CHECK(helper_rest_ns(&h, &signs, 1, now) == HELPER_NAP_NS);
    atomic_store(&signs.waiter_drives, 1); /* it may sleep meanwhile */
    CHECK(helper_sees_driver(&h, &signs, 0, 1, now));
    atomic_store(&signs.waiter_drives, 0);
    CHECK(rest_after(&h, &signs, &now, 6, 1) == 5);
    CHECK(rest_after(&h, &signs, &now, 5, 1) == 5 && rest_after(&h, &signs, &now, 5, 1) == 10);
    now += 10000000;
    CHECK(!helper_sees_driver(&h, &signs, 0, 0, now)); /* it drives, and does not rest */
    CHECK(rest_after(&h, &signs, &now, 5, 1) == 5 && rest_after(&h, &signs, &now, 5, 1) == 5);
    now += 10000000;
    helper_sees_driver(&h, &signs, 1, 0, now);
    CHECK(helper_rest_ns(&h, &signs, 1, now) == HELPER_NAP_NS);
    atomic_store(&signs.looked_ns, now - 99000000);
    CHECK(!helper_must_look(&signs, now) && helper_must_look(&signs, now + 2000000));
    atomic_store(&signs.has_done, 1);
    CHECK(helper_must_look(&signs, now) && helper_rest_ns(&h, &signs, 1, now) == HELPER_NAP_NS);
}

int main(void)
{
    static const char *const backends[] = { "cpu:shm", "cpu:tcp", "cpu:shm-tcp" };
    struct ranks_options options = { .limit_s = 30 };
    atomic_int *has_sent = mmap(NULL, sizeof *has_sent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = has_sent == MAP_FAILED || ranks_run(1, &options, rests_get_longer, NULL);
    for (size_t i = 0; i < sizeof backends / sizeof *backends && !failed; i++) {
        struct late late = { backends[i], has_sent };
        options.name = backends[i];
        atomic_store(has_sent, 0);
        failed = ranks_run(2, &options, helper_lets_ranks_run, (void *)backends[i]) ||
                 ranks_run(2, &options, world_without_operations_takes_no_time, (void *)backends[i]) ||
                 ranks_run(2, &options, work_is_told_at_once_after_a_stream, (void *)backends[i]) ||
                 ranks_run(3, &options, rank_connects_to_one_in_a_stream, &late);
    }
    return failed;
}

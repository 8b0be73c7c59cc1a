/* What only the mpi backend has. Usage: own BACKEND CASE ...; launch.py starts it. */
#include <comm/comm.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "between.h"
#include "ranks.h"
#include "scarce.h"

static const char *backend;
atomic_int scarce_left = -1, between_slow_ms, between_one, between_calls, between_made;

/* launch.py counts it, and keeps the mpiexec of MPICH from seeing until then that a rank was killed. */
static void say_expected(int rank)
{
    char path[300];
    printf("rank %d: as expected\n", rank);
    fflush(stdout);
    snprintf(path, sizeof path, "%s/over-%d", getenv("RANKS_LAUNCHED"), rank);
    FILE *file = fopen(path, "w");
    CHECK(file && fclose(file) == 0);
}

/* Of the same ranks. */
static comm_group *another_world(const char *name, int timeout_ms)
{
    comm_group *world;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.backend = backend;
    options.name = name;
    options.timeout_ms = timeout_ms;
    CHECK_OK(ranks_init(&options, &world));
    return world;
}

static void pause_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

static void check_sum(comm_group *g)
{
    int32_t one = 1, sum = 0;
    CHECK_OK(comm_all_reduce(g, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(sum == comm_group_size(g));
}

/* Groups that share ranks, first used in different orders, by a receive of one rank that others know nothing of. */
static void orders(int rank, int size, void *arg)
{
    enum { GROUPS = 3 };
    static const int32_t members[GROUPS][2] = { { 0, 1 }, { 1, 2 }, { 0, 2 } };
    comm_group *world = ranks_world(backend), *groups[GROUPS];
    comm_work *works[GROUPS] = { NULL };
    int32_t ones[GROUPS] = { 1, 1, 1 }, sums[GROUPS] = { 0 };
    (void)size;
    (void)arg;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < GROUPS; i++)
            CHECK_OK(comm_group_create(world, members[i], 2, NULL, &groups[i]));
        for (int i = 0; i < GROUPS; i++) {
            int at = (rank + (rank == 1 ? GROUPS - i : i)) % GROUPS;
            if (groups[at])
                CHECK_OK(comm_all_reduce(groups[at], &ones[at], &sums[at], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL,
                                         &works[at]));
        }
        CHECK_OK(comm_work_wait_all(works, GROUPS, 0));
        for (int i = 0; i < GROUPS; i++) {
            CHECK(!groups[i] || sums[i] == 2);
            comm_work_release(works[i]);
            works[i] = NULL;
            CHECK_OK(comm_group_close(groups[i]));
        }
    }
    CHECK_OK(comm_group_close(world));
}

/* Two ranks exchange a message in a group of three, while the third one does something else. */
static void third_rank_is_elsewhere(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *all;
    int32_t value = 0;
    (void)size;
    (void)arg;
    CHECK_OK(comm_group_dup(world, NULL, &all));
    if (rank == 0)
        CHECK_OK(comm_send(all, &value, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    if (rank == 1)
        CHECK_OK(comm_recv(all, &value, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, NULL, NULL));
    check_sum(world); /* rank 2 waits here from the beginning */
    CHECK_OK(comm_group_close(all));
    CHECK_OK(comm_group_close(world));
}

/* A rank that does not come: the others' operation ends at its limit, and so does the group. */
static void missing(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *all;
    comm_op_options brief = COMM_OP_OPTIONS_INIT;
    int32_t one = 1, sum;
    (void)size;
    (void)arg;
    brief.timeout_ms = 700;
    CHECK_OK(comm_group_dup(world, NULL, &all));
    CHECK_OK(comm_group_connect(all, COMM_DEVICE_DEFAULT, 0));
    if (rank != 1) {
        CHECK_STATUS(comm_all_reduce(all, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &brief, NULL),
                     COMM_ERR_DEADLINE);
        CHECK_STATUS(comm_group_status(all), COMM_ERR_DEADLINE);
    }
    CHECK_OK(comm_monitored_barrier(world, NULL)); /* the world goes on */
    if (rank == 1) { /* the others' part of the first one may have come; then it is told */
        comm_status status = comm_all_reduce(all, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
        if (status == COMM_OK)
            status = comm_all_reduce(all, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
        CHECK_STATUS(status, COMM_ERR_DEADLINE);
    }
    CHECK_OK(comm_group_close(all));
    CHECK_OK(comm_group_close(world));
}

/* A rank that never makes the group. */
static void unmade(int rank, int size, void *arg)
{
    static const int32_t ranks[] = { 0, 1, 2 };
    comm_group *world = ranks_world(backend), *all = NULL;
    (void)size;
    (void)arg;
    if (rank != 1) {
        CHECK_OK(comm_group_create(world, ranks, 3, NULL, &all));
        CHECK_STATUS(comm_group_connect(all, COMM_DEVICE_DEFAULT, 300), COMM_ERR_TIMEOUT);
    }
    CHECK_OK(comm_group_close(all)); /* leaves no rank inside MPI */
    check_sum(world);
    if (rank == 1) { /* too late: the others have left */
        CHECK_OK(comm_group_create(world, ranks, 3, NULL, &all));
        CHECK_STATUS(comm_barrier(all, NULL, NULL), COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS("has closed the group");
        CHECK_OK(comm_group_close(all));
    }
    check_sum(world);
    CHECK_OK(comm_group_close(world));
}

/* The reason of an abort reaches ranks that wait. */
static void aborted(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *all;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t value = 0;
    (void)size;
    (void)arg;
    options.timeout_ms = 20000;
    CHECK_OK(comm_group_dup(world, NULL, &all));
    check_sum(all);
    check_sum(world);
    if (rank == 0) {
        CHECK_OK(comm_group_abort(all, "enough of it"));
    } else {
        CHECK_STATUS(comm_recv(all, &value, 1, COMM_DTYPE_I32, 0, &options, NULL), COMM_ERR_ABORTED);
        CHECK_ERROR_SAYS("enough of it");
        CHECK_ERROR_SAYS("rank 0");
    }
    CHECK_OK(comm_group_close(all));
    check_sum(world);
    CHECK_OK(comm_group_close(world));
}

/* Works that are released at once: what they do is done, in order. */
static void dropped(int rank, int size, void *arg)
{
    enum { ROUNDS = 50, COUNT = 5000 };
    static int32_t values[ROUNDS][COUNT], sums[ROUNDS][COUNT];
    comm_group *world = ranks_world(backend);
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        comm_work *work;
        for (int j = 0; j < COUNT; j++)
            values[i][j] = rank + i * j;
        CHECK_OK(comm_all_reduce(world, values[i], sums[i], COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work));
        comm_work_release(work);
    }
    CHECK_OK(comm_group_flush(world, 30000));
    for (int i = 0; i < ROUNDS; i++)
        for (int j = 0; j < COUNT; j++)
            CHECK(sums[i][j] == size * i * j + size * (size - 1) / 2);
    CHECK_OK(comm_group_close(world));
}

/* A rank that is killed is named, and the others go on without it. */
static void killed(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *rest;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t one = 1, sum, lost[3];
    size_t count = 0;
    (void)arg;
    options.timeout_ms = 30000;
    check_sum(world);
    if (rank == 1)
        raise(SIGKILL);
    CHECK_STATUS(comm_all_reduce(world, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL),
                 COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    CHECK_OK(comm_group_lost_ranks(world, lost, 3, &count));
    CHECK(size < 3 || (count == 1 && lost[0] == 1));
    CHECK_OK(comm_group_shrink(world, lost, count, NULL, &rest));
    check_sum(rest);
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
    say_expected(rank);
}

/* Rank 1 has done its part of a gather, and closes its world in good order, while rank 2 has not come to it: that is
 * missed only in what it has not called. */
static void leaves(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t one = 1, all[3] = { 0 }, sum, lost[3] = { -1 };
    size_t count = 0;
    (void)size, (void)arg;
    options.timeout_ms = 30000;
    check_sum(world);
    if (rank == 2)
        sleep(6);
    CHECK_OK(comm_gather(world, &one, all, 1, COMM_DTYPE_I32, 0, &options, NULL));
    CHECK(rank != 0 || all[0] + all[1] + all[2] == 3);
    CHECK_OK(comm_group_lost_ranks(world, lost, 3, &count));
    CHECK(count == 0);
    if (rank == 1) {
        CHECK_OK(comm_group_close(world));
        _exit(1); /* the others do not finalise MPI, as they lose it; launch.py lets them go on */
    }
    CHECK_STATUS(comm_all_reduce(world, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL),
                 COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    CHECK_ERROR_SAYS("closed its world before");
    CHECK_OK(comm_group_lost_ranks(world, lost, 3, &count));
    CHECK(count == 1 && lost[0] == 1);
    CHECK_OK(comm_group_close(world));
    say_expected(rank);
}

/* Rank 2 believes that another one is lost, which chaos draws; mpi does not know why it has to end. The third is told
 * who it is all the same. */
static void seems_lost(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:chaos?of=mpi&ranks=2&abort=@3");
    int32_t one = 1, sum, gone, lost[3];
    size_t count;
    (void)size, (void)arg;
    for (int i = 0; i < 2; i++)
        check_sum(world);
    CHECK_STATUS(comm_all_reduce(world, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL),
                 COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("is lost, as the option abort has asked for");
    CHECK(sscanf(strstr(comm_last_error(), "(world rank") - 2, "%d", &gone) == 1);
    CHECK_OK(comm_group_lost_ranks(world, lost, 3, &count));
    CHECK(rank == gone ? count == 0 : count == 1 && lost[0] == gone);
    CHECK_OK(comm_group_close(world));
    if (rank != gone)
        say_expected(rank);
}

/* How often the threads of this process, but for the first one, have gone to sleep. */
static long sleeps_of_others(void)
{
    long sum = 0, count;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    while ((entry = readdir(tasks))) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = atoi(entry->d_name) > 0 && atoi(entry->d_name) != getpid() ? fopen(path, "r") : NULL;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
                sum += count;
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return sum;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void set_flag(comm_work *work, comm_status status, void *context)
{
    (void)work;
    CHECK(status == COMM_OK);
    atomic_store((atomic_int *)context, 1);
}

/* A thread that waits moves the data itself: the poller, which would look 10000 times a second, leaves it its core. The
 * poller does look after operations that no thread waits for any more. */
static void waiting(int rank, int size, void *arg)
{
    enum { FEW = 1000 };
    comm_group *world = ranks_world(backend);
    int32_t value = 0;
    comm_work *work;
    atomic_int is_over = 0;
    (void)size;
    (void)arg;
    check_sum(world);
    if (rank == 0) {
        double began = seconds();
        while (seconds() - began < 1)
            ;
        CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_I32, 1, NULL, NULL));
        CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_I32, 1, NULL, NULL));
        CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    } else {
        long before = sleeps_of_others();
        CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK(sleeps_of_others() - before < FEW);
        CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_I32, 0, NULL, &work));
        CHECK_STATUS(comm_work_wait(work, 50), COMM_ERR_TIMEOUT);
        CHECK_OK(comm_work_on_complete(work, set_flag, &is_over));
        CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        while (!atomic_load(&is_over))
            sched_yield();
        comm_work_release(work);
    }
    CHECK_OK(comm_group_close(world));
}

/* Tags that MPI does not have. */
static void tags(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t value = rank;
    (void)size;
    (void)arg;
    CHECK_OK(comm_group_connect(world, COMM_DEVICE_DEFAULT, 0));
    options.tag = INT32_MAX; /* Open MPI has it */
    comm_status status = comm_send(world, &value, 1, COMM_DTYPE_I32, rank, &options, NULL);
    if (status == COMM_OK) {
        CHECK_OK(comm_recv(world, &value, 1, COMM_DTYPE_I32, rank, &options, NULL));
    } else {
        CHECK(status == COMM_ERR_UNSUPPORTED);
        CHECK_ERROR_SAYS("MPI_TAG_UB");
    }
    check_sum(world);
    CHECK_OK(comm_group_close(world));
}

static void own_handler(int signal)
{
    (void)signal;
}

/* The program's handlers, and the lack of one, stay when MPI's libraries come. */
static void signals(int rank, int size, void *arg)
{
    enum { FLAGS = SA_SIGINFO | SA_RESTART | SA_NODEFER | SA_ONSTACK }; /* the C library has another one */
    static struct sigaction before[NSIG], now[NSIG];
    (void)rank;
    (void)size;
    (void)arg;
    signal(SIGSEGV, own_handler);
    signal(SIGFPE, SIG_IGN);
    signal(SIGUSR1, own_handler);
    for (int i = 1; i < NSIG; i++)
        sigaction(i, NULL, &before[i]);
    comm_group *world = ranks_world(backend);
    check_sum(world);
    for (int i = 1; i < NSIG; i++) {
        sigaction(i, NULL, &now[i]);
        if (now[i].sa_handler != before[i].sa_handler || ((now[i].sa_flags ^ before[i].sa_flags) & FLAGS))
            ranks_fail(__FILE__, __LINE__, "MPI's handler of signal %d stays", i);
    }
    CHECK_OK(comm_group_close(world));
}

/* What MPI has given and no receive fits must be kept: without memory for that the receive fails, and no message gets
 * lost, to be taken for another. */
static void unkept(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *pair;
    comm_op_options first = COMM_OP_OPTIONS_INIT, second = COMM_OP_OPTIONS_INIT;
    int32_t values[2] = { 7, 8 };
    comm_work *work;
    (void)size;
    (void)arg;
    first.tag = 1;
    second.tag = 2;
    CHECK_OK(comm_group_dup(world, NULL, &pair));
    check_sum(pair); /* an operation's memory is used again */
    if (rank == 0) {
        CHECK_OK(comm_send(pair, &values[0], 1, COMM_DTYPE_I32, 1, &first, &work));
        comm_work_release(work);
        CHECK_OK(comm_send(pair, &values[1], 1, COMM_DTYPE_I32, 1, &second, &work));
        comm_work_release(work);
        check_sum(world);
    } else {
        check_sum(world); /* the messages are on their way */
        atomic_store(&scarce_left, 0);
        comm_status status = comm_recv(pair, &values[1], 1, COMM_DTYPE_I32, 0, &second, NULL);
        atomic_store(&scarce_left, -1);
        CHECK(status != COMM_OK);
        CHECK_ERROR_SAYS("no memory");
    }
    check_sum(world); /* else rank 0 might close the group before the receive begins, which would be the reason */
    CHECK_OK(comm_group_close(pair));
    check_sum(world);
    CHECK_OK(comm_group_close(world));
}

static void *abort_soon(void *context)
{
    struct timespec t = { 0, rand() % 20000 * 1000 };
    nanosleep(&t, NULL);
    CHECK_OK(comm_group_abort(context, "in between"));
    return NULL;
}

/* The group ends while a call that waits reduces. What it then goes on with is cut off: it must not say OK. */
static void cut_off(int rank, int size, void *arg)
{
    enum { ROUNDS = 20, COUNT = 1 << 22 };
    static uint8_t ones[COUNT], sums[COUNT];
    comm_group *world = ranks_world(backend), *g;
    (void)size, (void)arg;
    for (int i = 0; i < COUNT; i++)
        ones[i] = 0x38;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        CHECK_OK(comm_group_dup(world, NULL, &g));
        CHECK_OK(comm_group_connect(g, COMM_DEVICE_DEFAULT, 0));
        memset(sums, 0, sizeof sums);
        check_sum(world);
        CHECK(rank != 0 || pthread_create(&thread, NULL, abort_soon, g) == 0);
        comm_status status = comm_all_reduce(g, ones, sums, COUNT, COMM_DTYPE_F8E4M3, COMM_REDOP_SUM, NULL, NULL);
        CHECK(status == COMM_OK || status == COMM_ERR_ABORTED);
        for (int i = 0; status == COMM_OK && i < COUNT; i++)
            CHECK(sums[i] == 0x40);
        CHECK(rank != 0 || pthread_join(thread, NULL) == 0);
        CHECK_OK(comm_group_close(g));
        check_sum(world);
    }
    CHECK_OK(comm_group_close(world));
    say_expected(rank); /* messages that were cut off may stay in MPI, which is not finalised then */
}

static atomic_int is_submitted;

static void add_late(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    const int32_t *from = in;
    int32_t *to = inout;
    (void)dtype;
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
    while (*(int *)context == 0 && !atomic_load(&is_submitted))
        pause_ms(1);
}

/* Of two operations that are 16384 apart and under way at a time, the first one has reduced on rank 1 only, which sends
 * its result while rank 0 waits for the second one's input. */
static void many(int rank, int size, void *arg)
{
    enum { MANY = 16384, COUNT = 50000 };
    static int32_t values[COUNT], first[COUNT], last[COUNT], one;
    static comm_work *works[MANY + 1];
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    (void)size, (void)arg;
    for (int i = 0; i < COUNT; i++)
        values[i] = rank + i;
    options.reduce_fn = add_late;
    options.reduce_context = &rank;
    check_sum(world);
    CHECK_OK(comm_all_reduce(world, values, first, COUNT, COMM_DTYPE_I32, COMM_REDOP_USER, &options, &works[0]));
    for (int i = 1; i < MANY; i++)
        CHECK_OK(comm_broadcast(world, &one, 1, COMM_DTYPE_I32, 1, NULL, &works[i]));
    CHECK_OK(comm_all_reduce(world, values, last, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, &works[MANY]));
    pause_ms(500); /* the other one's last messages come */
    atomic_store(&is_submitted, 1);
    for (int i = 0; i <= MANY; i++) {
        CHECK_OK(comm_work_wait(works[i], 0));
        comm_work_release(works[i]);
    }
    for (int i = 0; i < COUNT; i++)
        CHECK(first[i] == 2 * i + 1 && last[i] == i + 1);
    CHECK_OK(comm_group_close(world));
}

/* Returns when MPI makes it, which takes that long. */
static void make_slowly(comm_group *world, const int32_t *ranks, int count, int ms, comm_group **ret_group)
{
    int made = atomic_load(&between_made);
    atomic_store(&between_slow_ms, ms);
    CHECK_OK(ranks ? comm_group_create(world, ranks, count, NULL, ret_group) : comm_group_dup(world, NULL, ret_group));
    while (atomic_load(&between_made) == made)
        pause_ms(10);
    atomic_store(&between_slow_ms, 0);
}

/* A communicator takes long to be made. The group is aborted meanwhile: the others are told. And of two groups, the
 * second one is left by a member before its turn comes: the third one has a turn all the same. */
static void while_made(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *groups[4];
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    int32_t value;
    (void)size, (void)arg;
    options.timeout_ms = 20000;
    check_sum(world);
    make_slowly(world, NULL, 0, 1000, &groups[0]);
    if (rank == 0) {
        CHECK_OK(comm_group_abort(groups[0], "while it is made"));
    } else {
        CHECK_STATUS(comm_recv(groups[0], &value, 1, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_ABORTED);
        CHECK_ERROR_SAYS("while it is made");
    }
    check_sum(world);
    make_slowly(world, NULL, 0, 6000, &groups[1]); /* it has the turn */
    CHECK_OK(comm_group_dup(world, &options, &groups[2]));
    pause_ms(500);
    if (rank == 1) {
        CHECK_OK(comm_group_close(groups[2]));
    } else {
        CHECK_STATUS(comm_barrier(groups[2], NULL, NULL), COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS("has closed the group");
        CHECK_OK(comm_group_close(groups[2]));
    }
    CHECK_OK(comm_group_dup(world, &options, &groups[3]));
    check_sum(groups[3]);
    check_sum(groups[1]);
    CHECK_OK(comm_group_close(groups[3]));
    CHECK_OK(comm_group_close(groups[1]));
    CHECK_OK(comm_group_close(groups[0]));
    CHECK_OK(comm_group_close(world));
    CHECK(atomic_load(&between_calls) > 0);
}

static void *call_often(void *context)
{
    enum { ROUNDS = 60, COUNT = 2000 };
    comm_group *g = context;
    static _Thread_local int32_t values[COUNT], all[3 * COUNT];
    comm_work *work;
    int rank = comm_group_rank(g), size = comm_group_size(g);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_OK(comm_all_gather(g, values, all, COUNT, COMM_DTYPE_I32, NULL, NULL));
        CHECK_OK(comm_send(g, values, COUNT, COMM_DTYPE_I32, (rank + 1) % size, NULL, &work));
        CHECK_OK(comm_recv(g, all, COUNT, COMM_DTYPE_I32, COMM_ANY_SOURCE, NULL, NULL));
        CHECK_OK(comm_work_wait(work, 0));
        comm_work_release(work);
    }
    return NULL;
}

/* An MPI that can be called by one thread at a time is not called by two. */
static void serial(int rank, int size, void *arg)
{
    enum { THREADS = 3 };
    comm_group *world = ranks_world(backend), *groups[THREADS];
    pthread_t threads[THREADS];
    (void)rank, (void)size, (void)arg;
    check_sum(world);
    atomic_store(&between_one, 1);
    for (int i = 0; i < THREADS; i++)
        CHECK_OK(comm_group_dup(world, NULL, &groups[i]));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, call_often, groups[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_OK(comm_monitored_barrier(world, NULL));
    for (int i = 0; i < THREADS; i++)
        CHECK_OK(comm_group_close(groups[i]));
    CHECK_OK(comm_group_close(world));
    CHECK(atomic_load(&between_calls) > 0);
}

/* A rank has died before the communicators of a group are made, which take all. */
static void killed_before(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *groups[2], *rest;
    int32_t lost[3];
    size_t count = 0;
    (void)size, (void)arg;
    check_sum(world);
    if (rank == 1)
        raise(SIGKILL);
    for (int i = 0; i < 2; i++)
        CHECK_OK(comm_group_dup(world, NULL, &groups[i]));
    CHECK_STATUS(comm_barrier(groups[0], NULL, NULL), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    CHECK_STATUS(comm_group_connect(groups[1], COMM_DEVICE_DEFAULT, 0), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    CHECK_OK(comm_group_lost_ranks(world, lost, 3, &count));
    CHECK(count == 1 && lost[0] == 1);
    CHECK_OK(comm_group_shrink(world, lost, count, NULL, &rest));
    check_sum(rest);
    for (int i = 0; i < 2; i++)
        CHECK_OK(comm_group_close(groups[i]));
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
    say_expected(rank);
}

/* Other groups while a communicator takes long to be made, and when it was given up. */
static void meanwhile(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *slow, *second, *others, *single;
    int32_t alone = rank;
    (void)size, (void)arg;
    check_sum(world);
    second = another_world("second", 20000);
    check_sum(second);
    make_slowly(world, NULL, 0, 15000, &slow);
    CHECK_OK(comm_group_dup(second, NULL, &others));
    CHECK_STATUS(comm_group_connect(others, COMM_DEVICE_DEFAULT, 1500), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("is still making another group's communicators");
    CHECK_OK(comm_group_create(world, &alone, 1, NULL, &single));
    check_sum(single);
    CHECK_OK(comm_group_close(single));
    CHECK_OK(comm_group_close(slow));
    check_sum(others);
    CHECK_OK(comm_group_dup(world, NULL, &slow));
    check_sum(slow);
    say_expected(rank);
    CHECK_OK(comm_group_close(slow));
    CHECK_OK(comm_group_close(others));
    CHECK_OK(comm_group_close(second));
    CHECK_OK(comm_group_close(world));
}

/* A rank dies when it has made a group, but before its process is taken for it. Nobody waits for that group, and those
 * of another world are made all the same. */
static void killed_between(int rank, int size, void *arg)
{
    static const int32_t ranks[] = { 0, 2 };
    comm_group *world = ranks_world(backend), *second, *slow = NULL, *all, *rest;
    (void)size, (void)arg;
    check_sum(world);
    second = another_world("second", 20000);
    check_sum(second);
    if (rank != 1)
        make_slowly(world, ranks, 2, 5000, &slow); /* it has the turn */
    else
        CHECK_OK(comm_group_create(world, ranks, 2, NULL, &slow));
    CHECK_OK(comm_group_dup(world, NULL, &all));
    pause_ms(1500);
    if (rank == 1)
        raise(SIGKILL);
    check_sum(slow);
    pause_ms(1000); /* `all` has its turn */
    CHECK_OK(comm_group_create(second, ranks, 2, NULL, &rest));
    check_sum(rest);
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(all));
    CHECK_OK(comm_group_close(slow));
    CHECK_OK(comm_group_close(second));
    CHECK_OK(comm_group_close(world));
    say_expected(rank);
}

/* Groups of one rank while a communicator takes long to be made, with an MPI that takes one call at a time. */
static void one_meanwhile(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *slow, *single;
    int32_t alone = rank;
    (void)size, (void)arg;
    check_sum(world);
    make_slowly(world, NULL, 0, 6000, &slow);
    CHECK_OK(comm_group_create(world, &alone, 1, NULL, &single));
    CHECK_STATUS(comm_group_connect(single, COMM_DEVICE_DEFAULT, 500), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("this process is still making another group's communicators");
    CHECK_OK(comm_group_close(single));
    check_sum(slow);
    CHECK_OK(comm_group_create(world, &alone, 1, NULL, &single));
    check_sum(single);
    CHECK_OK(comm_group_close(single));
    CHECK_OK(comm_group_close(slow));
    CHECK_OK(comm_group_close(world));
}

/* With an MPI that takes one call at a time: a world is opened while a communicator takes long to be made. */
static void opened_meanwhile(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *g, *other;
    (void)size, (void)arg;
    check_sum(world);
    atomic_store(&between_slow_ms, rank == 1 ? 6000 : 0); /* rank 0 waits for it in MPI */
    CHECK_OK(comm_group_dup(world, NULL, &g));
    pause_ms(500);
    double began = seconds();
    other = another_world("other", 10000);
    CHECK(seconds() - began < 4);
    check_sum(g);
    check_sum(other);
    CHECK_OK(comm_group_close(other));
    CHECK_OK(comm_group_close(g));
    CHECK_OK(comm_group_close(world));
}

/* Group and world are closed while a communicator is made, which MPI cannot cancel: its thread comes back later. */
static void abandoned(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(backend), *g;
    (void)size, (void)arg;
    check_sum(world);
    atomic_store(&between_slow_ms, rank == 0 ? 5500 : 0);
    CHECK_OK(comm_group_dup(world, NULL, &g));
    pause_ms(500);
    CHECK_OK(comm_group_close(g));
    CHECK_OK(comm_group_close(world));
    pause_ms(4000);
    say_expected(rank);
}

/* Groups of one rank, made at the same time. */
static void singles(int rank, int size, void *arg)
{
    enum { GROUPS = 16, ROUNDS = 8 };
    comm_group *world = ranks_world(backend), *groups[GROUPS];
    comm_work *works[GROUPS];
    int32_t alone = rank, sent[GROUPS], got[GROUPS];
    (void)size, (void)arg;
    check_sum(world);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < GROUPS; i++) {
            sent[i] = round * GROUPS + i;
            CHECK_OK(comm_group_create(world, &alone, 1, NULL, &groups[i]));
            CHECK_OK(comm_recv(groups[i], &got[i], 1, COMM_DTYPE_I32, 0, NULL, &works[i]));
        }
        for (int i = GROUPS - 1; i >= 0; i--)
            CHECK_OK(comm_send(groups[i], &sent[i], 1, COMM_DTYPE_I32, 0, NULL, NULL));
        for (int i = 0; i < GROUPS; i++) {
            CHECK_OK(comm_work_wait(works[i], 0));
            comm_work_release(works[i]);
            CHECK(got[i] == sent[i]);
            CHECK_OK(comm_group_close(groups[i]));
        }
    }
    CHECK_OK(comm_group_close(world));
}

struct many_groups {
    comm_group *world;
    int number;
};

static void *make_groups(void *context)
{
    enum { ROUNDS = 10 };
    const struct many_groups *m = context;
    comm_group *g;
    for (int i = 0; i < ROUNDS; i++) {
        int32_t value = 1000 * m->number + i, sum = 0;
        CHECK_OK(comm_group_dup(m->world, NULL, &g));
        CHECK_OK(comm_all_reduce(g, &value, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(sum == value * comm_group_size(g));
        CHECK_OK(comm_group_close(g));
    }
    return NULL;
}

/* Worlds of the same processes, which make groups at the same time. */
static void worlds(int rank, int size, void *arg)
{
    enum { WORLDS = 3 };
    struct many_groups m[WORLDS];
    pthread_t threads[WORLDS];
    char name[16];
    (void)size, (void)arg;
    for (int i = 0; i < WORLDS; i++) {
        m[i].number = i;
        snprintf(name, sizeof name, "world-%d", i);
        m[i].world = another_world(name, 30000);
    }
    for (int i = 0; i < WORLDS; i++)
        CHECK(pthread_create(&threads[i], NULL, make_groups, &m[(rank + i) % WORLDS]) == 0);
    for (int i = 0; i < WORLDS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < WORLDS; i++)
        CHECK_OK(comm_group_close(m[i].world));
}

/* Groups of one rank while communicators of another world are made. */
static void singles_beside(int rank, int size, void *arg)
{
    enum { ROUNDS = 100 };
    comm_group *world = ranks_world(backend), *single;
    struct many_groups m = { .number = 1 };
    pthread_t thread;
    int32_t alone = rank;
    (void)size, (void)arg;
    m.world = another_world("second", 30000);
    CHECK(pthread_create(&thread, NULL, make_groups, &m) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_OK(comm_group_create(world, &alone, 1, NULL, &single));
        check_sum(single);
        CHECK_OK(comm_group_close(single));
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(comm_group_close(m.world));
    CHECK_OK(comm_group_close(world));
}

static const struct {
    const char *name;
    void (*fn)(int, int, void *);
    int size;
} cases[] = {
    { "orders", orders, 3 },   { "elsewhere", third_rank_is_elsewhere, 3 }, { "missing", missing, 3 },
    { "unmade", unmade, 3 },   { "aborted", aborted, 3 },                   { "dropped", dropped, 3 },
    { "killed", killed, 3 },   { "tags", tags, 2 },                         { "seems_lost", seems_lost, 3 },
    { "waiting", waiting, 2 }, { "signals", signals, 2 }, { "unkept", unkept, 2 },
    { "leaves", leaves, 3 },
    { "cut_off", cut_off, 2 },
    { "many", many, 2 },
    { "while_made", while_made, 3 },
    { "serial", serial, 3 },
    { "killed_before", killed_before, 3 },
    { "abandoned", abandoned, 2 },
    { "killed_between", killed_between, 3 },
    { "meanwhile", meanwhile, 2 },
    { "one_meanwhile", one_meanwhile, 2 },
    { "opened_meanwhile", opened_meanwhile, 2 },
    { "singles", singles, 2 },
    { "singles_beside", singles_beside, 2 },
    { "worlds", worlds, 3 },
};

int main(int argc, char **argv)
{
    struct ranks_options options = { .limit_s = 60 };
    int done = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: %s BACKEND CASE ...\n", argv[0]);
        return 2;
    }
    backend = argv[1];
    for (int i = 2; i < argc; i++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            if (strcmp(cases[c].name, argv[i]) == 0) {
                options.name = argv[i];
                if (ranks_run(cases[c].size, &options, cases[c].fn, NULL) != 0)
                    return 1;
                done++;
            }
    return done == argc - 2 ? 0 : 2;
}

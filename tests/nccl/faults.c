/* What goes wrong on GPUs: ranks that die, do not come, or are told to stop; calls of CUDA and NCCL that fail. The
 * variables of tests/standin say what fails; the cases that need them are skipped on a real GPU, and it is said which.
 * Usage: faults [CASE]. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "faults.h"

enum { COUNT = 2000, LIMIT_S = 30, ANSWER_MS = 700, OUTLIVE_MS = 450, VICTIM = 1, MULTI_RANK_SINCE = 23003 };

struct fault_case {
    const char *name;
    void (*fn)(int rank, int size, void *arg);
    int size;
    const char *backend, *variables; /* "NAME=value NAME=value" */
    int on_rank;                     /* the variables' rank; -1: all */
    uint64_t may_fail;
    enum { ANYWHERE, ON_STANDIN, ON_NEW_NCCL } runs;
};

struct run {
    const struct fault_case *is;
    struct page *page;
};

static void set_variables(const struct run *run, int rank)
{
    char text[300], *rest = text;
    if (!run->is->variables || (run->is->on_rank >= 0 && run->is->on_rank != rank))
        return;
    snprintf(text, sizeof text, "%s", run->is->variables);
    for (char *one; (one = strsep(&rest, " "));) {
        char *value = strchr(one, '=');
        *value = '\0';
        setenv(one, value + 1, 1);
    }
}

static comm_init_options ready(const struct run *run, int rank)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    set_variables(run, rank);
    gpu_open(run->is->backend, rank);
    options.backend = run->is->backend;
    options.timeout_ms = 20000;
    return options;
}

static comm_group *open_world(const struct run *run, int rank, int64_t timeout_ms)
{
    comm_init_options options = ready(run, rank);
    comm_group *world;
    CHECK_OK(ranks_init(&options, &world));
    CHECK_OK(comm_group_set_timeout(world, timeout_ms));
    return world;
}

static comm_status all_reduce(comm_group *group, int32_t *vector)
{
    comm_op_options o = on_gpu();
    return comm_all_reduce(group, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL);
}

static comm_status until_it_ends(comm_group *group, int32_t *vector)
{
    comm_status status;
    do
        status = all_reduce(group, vector);
    while (status == COMM_OK);
    return status;
}

/* The same, by a rank that calls nothing: the others are within an operation unlike those that it would make. */
static comm_status until_it_has_ended(comm_group *group)
{
    while (comm_group_status(group) == COMM_OK)
        usleep(1000);
    return comm_group_status(group);
}

/* The group has ended, and says so again; no operation uses the memory any more. */
static void leave(comm_group *world, int32_t *vector)
{
    CHECK(all_reduce(world, vector) != COMM_OK);
    CHECK(comm_group_status(world) != COMM_OK);
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
}

/* ---- Ranks that die ---- */

static void *dies(void *context)
{
    const struct run *run = context;
    fault_await(run->page, 0);
    raise(SIGKILL);
    return NULL;
}

/* It is the one rank that is known to be lost. */
static void check_lost(comm_group *world, int32_t rank)
{
    int32_t lost[8];
    size_t count;
    char error[600];
    snprintf(error, sizeof error, "%s", comm_last_error());
    CHECK_OK(comm_group_lost_ranks(world, lost, 8, &count));
    if (count != 1 || lost[0] != rank)
        ranks_fail(__FILE__, __LINE__, "%zu ranks are known to be lost, the first is %d: %s", count,
                   count ? lost[0] : -1, error);
}

static void survive(comm_group *world, int32_t *vector)
{
    int32_t victim = VICTIM;
    comm_group *rest;
    CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    check_lost(world, victim);
    CHECK_OK(comm_group_shrink(world, &victim, 1, NULL, &rest));
    CHECK_OK(all_reduce(rest, vector));
    CHECK_OK(comm_group_close(rest));
    leave(world, vector);
}

static void killed_within(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 15000);
    int32_t *vector = vector_new(COUNT, 1);
    pthread_t killer;
    (void)size;
    CHECK_OK(all_reduce(world, vector));
    fault_meet(run->page);
    if (rank == VICTIM) {
        CHECK(pthread_create(&killer, NULL, dies, run) == 0);
        for (;;)
            all_reduce(world, vector);
    }
    for (int i = 0; rank == 0 && i < 5; i++)
        CHECK_OK(all_reduce(world, vector));
    if (rank == 0)
        fault_raise(run->page, 0);
    survive(world, vector);
}

/* The process ends before its connections do: they are closed by the kernel one after the other, behind memory and
 * devices, and by its last thread. Here a child has them, which handlers of fork() do not know of, nor does
 * ThreadSanitizer. */
static void die_slowly(void)
{
    const struct timespec outlive = { 0, OUTLIVE_MS * 1000000L };
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
        syscall(SYS_nanosleep, &outlive, NULL);
        syscall(SYS_exit_group, 0);
    }
    raise(SIGKILL);
}

static int is_slow(const struct run *run)
{
    return strstr(run->is->name, "slowly") != NULL;
}

static void killed_between(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 15000);
    int32_t *vector = vector_new(COUNT, 1);
    (void)size;
    CHECK_OK(all_reduce(world, vector));
    fault_meet(run->page);
    if (rank == VICTIM && is_slow(run))
        die_slowly();
    if (rank == VICTIM)
        raise(SIGKILL);
    survive(world, vector);
}

/* Before the communicator is made. */
static void killed_before(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 15000);
    int32_t *vector = vector_new(COUNT, 1);
    (void)size;
    fault_meet(run->page);
    if (rank == VICTIM)
        raise(SIGKILL);
    survive(world, vector);
}

/* The world's store ends with its rank. */
static comm_group *open_world_at_rank_0(const struct run *run, int rank, int size)
{
    comm_init_options options = ready(run, rank);
    comm_store_options serve = COMM_STORE_OPTIONS_INIT;
    comm_store *told = ranks_store();
    comm_group *world;
    char url[64] = "";
    void *at;
    size_t bytes;
    if (rank == 0) {
        serve.serve = 1;
        CHECK_OK(comm_store_open("tcp://127.0.0.1:0", &serve, &options.store));
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", comm_store_port(options.store));
    }
    CHECK_OK(comm_store_broadcast(told, "url", url, strlen(url), 0, rank, size, 20000, &at, &bytes));
    if (rank != 0)
        CHECK_OK(comm_store_open(at, NULL, &options.store));
    comm_free(at);
    options.rank = rank;
    options.world_size = size;
    CHECK_OK(comm_init(&options, &world));
    comm_store_close(options.store);
    comm_store_close(told);
    CHECK_OK(comm_group_set_timeout(world, 15000));
    return world;
}

/* The others name it. They cannot make a new communicator, whose id goes through the store, and learn that at once. */
static void killed_with_the_store(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world_at_rank_0(run, rank, size), *rest;
    int32_t *vector = vector_new(COUNT, 1), victim = 0;
    CHECK_OK(all_reduce(world, vector));
    fault_meet(run->page);
    if (rank == 0 && is_slow(run))
        die_slowly();
    if (rank == 0)
        raise(SIGKILL);
    CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 0");
    check_lost(world, victim);
    fault_raise(run->page, rank); /* one that has closed its world would be lost too */
    fault_await(run->page, 3 - rank);
    CHECK_OK(comm_group_shrink(world, &victim, 1, NULL, &rest));
    CHECK_STATUS(all_reduce(rest, vector), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("NCCL's unique id");
    CHECK_ERROR_SAYS("the store at 127.0.0.1");
    CHECK_OK(comm_group_close(rest));
    leave(world, vector);
}

/* Rank 2 believes that another one is lost, which chaos draws, and its nccl backend does not know why it has to end:
 * the rest are told who it is all the same. */
static void one_seems_lost(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 15000);
    int32_t *vector = vector_new(COUNT, 1), lost[8], gone;
    size_t count;
    (void)size;
    CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("is lost, as the option abort has asked for");
    CHECK(sscanf(strstr(comm_last_error(), "(world rank") - 2, "%d", &gone) == 1);
    CHECK_OK(comm_group_lost_ranks(world, lost, 8, &count));
    CHECK(rank == gone ? count == 0 : count == 1 && lost[0] == gone);
    fault_meet(run->page);
    leave(world, vector);
}

/* ---- Ranks that do not come ---- */

/* All but the victim call: the text names the operation and the rank that has not called it. */
static void one_does_not_call(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 20000);
    int32_t *vector = vector_new(COUNT, 1);
    CHECK_OK(all_reduce(world, vector));
    CHECK_OK(comm_group_set_timeout(world, ANSWER_MS));
    if (rank != VICTIM) {
        CHECK_STATUS(all_reduce(world, vector), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("all_reduce #2");
        if (strstr(comm_last_error(), "reports:") == NULL) /* this rank has asked the others itself */
            CHECK_ERROR_SAYS("rank 1 has not called it");
    }
    fault_meet(run->page);
    CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_DEADLINE);
    CHECK_ERROR_SAYS("all_reduce #2");
    (void)size;
    leave(world, vector);
}

/* The same with an operation unlike those before: with blocking=1 a thread waits for the others within NCCL. */
static void one_does_not_call_another(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 20000);
    int32_t *vector = vector_new(COUNT, 1);
    comm_op_options o = on_gpu();
    (void)size;
    CHECK_OK(all_reduce(world, vector));
    CHECK_OK(comm_group_set_timeout(world, ANSWER_MS));
    if (rank != VICTIM) {
        CHECK_STATUS(comm_all_reduce(world, vector, vector, 8, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL),
                     COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("all_reduce #2");
    }
    fault_meet(run->page);
    CHECK_STATUS(until_it_has_ended(world), COMM_ERR_DEADLINE);
    leave(world, vector);
}

/* What is submitted returns before the other ranks call it, also if it is unlike what came before. */
static void one_calls_later(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 20000);
    int32_t *vector = vector_new(COUNT, 1);
    comm_op_options o = on_gpu();
    comm_work *work;
    (void)size;
    CHECK_OK(all_reduce(world, vector));
    if (rank == VICTIM)
        fault_await(run->page, 0);
    CHECK_OK(comm_all_reduce(world, vector, vector, 8, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, &work));
    if (rank == 0)
        fault_raise(run->page, 0);
    finish(work);
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
}

/* The same as one_does_not_call, but no rank has connected yet. */
static void one_does_not_connect(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, ANSWER_MS);
    int32_t *vector = vector_new(COUNT, 1);
    (void)size;
    if (rank != VICTIM) {
        CHECK_STATUS(all_reduce(world, vector), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("all_reduce #1");
        CHECK_ERROR_SAYS("rank 1 has called nothing on a GPU yet");
    }
    fault_meet(run->page);
    CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_DEADLINE);
    leave(world, vector);
}

/* A store without alarms, in which nobody finds them: NCCL fails before the rank has heard why the others ended. */
static comm_status text_of(comm_status status, char *error, size_t capacity)
{
    if (status != COMM_OK)
        snprintf(error, capacity, "%s", comm_last_error());
    return status;
}

static comm_status deaf_set(void *context, const char *key, const void *data, size_t bytes, char *error,
                            size_t capacity)
{
    return text_of(comm_store_set(context, key, data, bytes), error, capacity);
}

static comm_status deaf_get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                            char *error, size_t capacity)
{
    const char *found = strstr(key, "alarm.") ? "a key that nobody sets" : key;
    return text_of(comm_store_get(context, found, timeout_ms, ret_data, ret_bytes), error, capacity);
}

static comm_status deaf_add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                            size_t capacity)
{
    return text_of(comm_store_add(context, key, amount, ret_value), error, capacity);
}

static comm_status deaf_compare_set(void *context, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                                    char *error, size_t capacity)
{
    return text_of(comm_store_compare_set(context, key, expected, expected_bytes, desired, desired_bytes, ret_data,
                                          ret_bytes), error, capacity);
}

static comm_status deaf_check(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                              size_t capacity)
{
    return text_of(comm_store_check(context, keys, count, ret_all), error, capacity);
}

static comm_status deaf_remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
{
    return text_of(comm_store_delete(context, key, ret_existed), error, capacity);
}

static void deaf_close(void *context)
{
    comm_store_close(context);
}

static comm_store *deaf_store(void)
{
    comm_store_ops ops = { .struct_bytes = sizeof ops, .name = "deaf", .set = deaf_set, .get = deaf_get,
                           .add = deaf_add, .compare_set = deaf_compare_set, .check = deaf_check,
                           .remove = deaf_remove, .close = deaf_close };
    comm_store *store;
    CHECK_OK(comm_store_create(&ops, ranks_store(), &store));
    return store;
}

static comm_group *open_world_of_deaf(const struct run *run, int rank, int size, int64_t timeout_ms)
{
    comm_init_options options = ready(run, rank);
    comm_group *world;
    options.rank = rank;
    options.world_size = size;
    options.store = rank == VICTIM ? deaf_store() : ranks_store();
    CHECK_OK(comm_init(&options, &world));
    comm_store_close(options.store);
    CHECK_OK(comm_group_set_timeout(world, timeout_ms));
    return world;
}

/* One connects when the others have left. NCCL fails then, in its own words; the rank says why the others ended. */
static void one_connects_too_late(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world_of_deaf(run, rank, size, ANSWER_MS);
    int32_t *vector = vector_new(COUNT, 1);
    if (rank != VICTIM) {
        CHECK_STATUS(all_reduce(world, vector), COMM_ERR_DEADLINE);
        leave(world, vector);
        fault_meet(run->page);
    } else {
        fault_meet(run->page);
        CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS(" reports: all_reduce #1");
        if (run->is->variables)
            CHECK_ERROR_SAYS("; on this rank: connecting on the communicator of 3 ranks");
        leave(world, vector);
    }
    fault_meet(run->page); /* the stand-in's unique id is a file of rank 0 */
}

/* The same, with a group that the rank makes when the others have ended it: alarms are of no use then, as it passes
 * over those of groups that it does not have. */
static void one_makes_a_group_too_late(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world_of_deaf(run, rank, size, 20000), *copy;
    int32_t *vector = vector_new(COUNT, 1);
    CHECK_OK(all_reduce(world, vector));
    if (rank == VICTIM)
        fault_meet(run->page);
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    CHECK_OK(comm_group_set_timeout(copy, ANSWER_MS));
    CHECK_STATUS(until_it_ends(copy, vector), COMM_ERR_DEADLINE);
    if (rank == VICTIM)
        CHECK_ERROR_SAYS(" reports: all_reduce #1");
    CHECK_OK(comm_group_close(copy));
    if (rank != VICTIM)
        fault_meet(run->page);
    CHECK_OK(all_reduce(world, vector));
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
}

/* A group whose communicator nobody else has joined can be closed, and who comes later is told. */
static void closed_while_connecting(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, ANSWER_MS), *copy;
    int32_t *vector = vector_new(COUNT, 1);
    (void)size;
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    if (rank == 0) {
        CHECK_STATUS(comm_group_connect(copy, gpu_device(), 300), COMM_ERR_TIMEOUT);
        CHECK_OK(comm_group_close(copy));
        fault_raise(run->page, 0);
    } else {
        fault_await(run->page, 0);
        CHECK_STATUS(until_it_ends(copy, vector), COMM_ERR_ABORTED);
        CHECK_ERROR_SAYS("the group was closed before ");
        CHECK_ERROR_SAYS("rank 0");
        CHECK_OK(comm_group_close(copy));
    }
    CHECK_OK(all_reduce(world, vector));
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
}

/* ---- Aborts ---- */

static void *aborts(void *context)
{
    comm_group *world = context;
    comm_group_abort(world, "that is enough");
    return NULL;
}

static void aborted_within(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 20000);
    int32_t *vector = vector_new(COUNT, 1);
    comm_op_options o = on_gpu();
    comm_work *works[3];
    pthread_t thread;
    CHECK_OK(all_reduce(world, vector));
    if (rank != VICTIM) {
        for (int i = 0; i < 3; i++)
            CHECK_OK(comm_all_reduce(world, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, &works[i]));
        fault_raise(run->page, rank);
        for (int other = VICTIM; rank == 0 && other < size; other++) /* the victim is done with the first one, too */
            fault_await(run->page, other);
        if (rank == 0)
            CHECK(pthread_create(&thread, NULL, aborts, world) == 0);
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(comm_work_wait(works[i], 0), COMM_ERR_ABORTED);
            CHECK(strstr(comm_work_error(works[i]), "that is enough"));
            comm_work_release(works[i]);
        }
        if (rank == 0)
            pthread_join(thread, NULL);
    } else {
        fault_raise(run->page, rank);
    }
    fault_meet(run->page);
    CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("that is enough");
    leave(world, vector);
}

/* By then the caller is within NCCL, which shows it by nothing; if it is not, the case passes and tries less. */
static void *aborts_later(void *context)
{
    const struct timespec later = { 0, 200000000 };
    nanosleep(&later, NULL);
    return aborts(context);
}

/* With blocking=1, the thread that calls waits for the others within NCCL: what is captured is never queued. */
static void ended_within_a_capture(int rank, int size, void *arg)
{
    struct run *run = arg;
    int is_abort = strstr(run->is->name, "aborted") != NULL;
    comm_status ends = is_abort ? COMM_ERR_ABORTED : COMM_ERR_DEADLINE;
    comm_group *world = open_world(run, rank, 20000);
    int32_t *vector = vector_new(COUNT, 1);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream);
    cuda_graph graph = NULL;
    pthread_t thread;
    (void)size;
    CHECK_OK(all_reduce(world, vector));
    CHECK_OK(comm_group_set_timeout(world, is_abort ? 20000 : ANSWER_MS));
    if (rank != VICTIM) {
        CHECK_CUDA(gpu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
        if (is_abort && rank == 0)
            CHECK(pthread_create(&thread, NULL, aborts_later, world) == 0);
        CHECK_STATUS(comm_all_reduce(world, vector, vector, 8, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL), ends);
        CHECK_ERROR_SAYS(is_abort ? "that is enough" : "all_reduce #2");
        if (is_abort && rank == 0)
            pthread_join(thread, NULL);
        gpu.StreamEndCapture(stream, &graph);
        if (graph)
            gpu.GraphDestroy(graph);
    }
    fault_meet(run->page);
    CHECK_STATUS(until_it_has_ended(world), ends);
    leave(world, vector);
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* The connections break before the reason is known: a call at that moment gets the reason, nothing else. */
static void aborted_while_calling(int rank, int size, void *arg)
{
    enum { MANY = 400 };
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 20000);
    int32_t *vector = vector_new(COUNT, 1);
    comm_op_options o = on_gpu();
    comm_work *works[MANY];
    comm_status status = COMM_OK;
    int begun = 0;
    (void)size;
    CHECK_OK(all_reduce(world, vector));
    fault_meet(run->page);
    if (rank == 0)
        comm_group_abort(world, "that is enough");
    while (begun < MANY && status == COMM_OK) {
        status = comm_all_reduce(world, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, &works[begun]);
        begun += status == COMM_OK;
    }
    if (status != COMM_OK) {
        CHECK(status == COMM_ERR_ABORTED);
        CHECK_ERROR_SAYS("that is enough");
    }
    for (int i = 0; i < begun; i++) {
        status = comm_work_wait(works[i], 0);
        if (status != COMM_OK && (status != COMM_ERR_ABORTED || !strstr(comm_work_error(works[i]), "that is enough")))
            ranks_fail(__FILE__, __LINE__, "work %d: %s: %s", i, comm_status_name(status), comm_work_error(works[i]));
        comm_work_release(works[i]);
    }
    fault_meet(run->page);
    leave(world, vector);
}

static void aborted_while_connecting(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 20000);
    int32_t *vector = vector_new(COUNT, 1);
    pthread_t thread;
    (void)size;
    if (rank != VICTIM) {
        if (rank == 0)
            CHECK(pthread_create(&thread, NULL, aborts, world) == 0);
        CHECK_STATUS(comm_group_connect(world, gpu_device(), 0), COMM_ERR_ABORTED);
        CHECK_ERROR_SAYS("that is enough");
        if (rank == 0)
            pthread_join(thread, NULL);
    }
    fault_meet(run->page);
    CHECK_STATUS(until_it_ends(world, vector), COMM_ERR_ABORTED);
    leave(world, vector);
}

/* ---- Errors of the libraries ---- */

static void error_later(int rank, int size, void *arg)
{
    struct run *run = arg;
    comm_group *world = open_world(run, rank, 15000);
    int32_t *vector = vector_new(COUNT, 1);
    (void)size;
    comm_status status = until_it_ends(world, vector);
    CHECK(status == COMM_ERR_BACKEND || status == COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("NCCL error");
    fault_meet(run->page);
    leave(world, vector);
}

/* Two ranks with one GPU. */
static void one_gpu_for_two(int rank, int size, void *arg)
{
    struct run *run = arg;
    unsetenv("NCCL_HOSTID"); /* tools/test-gpu sets one of the cures */
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    comm_group *world = open_world(run, rank, 15000);
    int32_t *vector = vector_new(COUNT, 1);
    (void)size;
    CHECK_STATUS(all_reduce(world, vector), COMM_ERR_BACKEND);
    CHECK_ERROR_SAYS("same GPU");
    CHECK_ERROR_SAYS("cudaSetDevice");
    CHECK_ERROR_SAYS("CUDA_VISIBLE_DEVICES");
    CHECK_ERROR_SAYS("NCCL_MULTI_RANK_GPU_ENABLE=1");
    CHECK_ERROR_SAYS("NCCL_HOSTID");
    fault_meet(run->page);
    leave(world, vector);
}

/* The cures work. */
static void works(int rank, int size, void *arg)
{
    struct run *run = arg;
    unsetenv("NCCL_HOSTID"); /* one cure at a time */
    if (strcmp(run->is->name, "host ids cure it") == 0)
        setenv("NCCL_HOSTID", rank ? "b" : "a", 1);
    comm_group *world = open_world(run, rank, 15000);
    int32_t *vector = vector_new(COUNT, rank + 1);
    CHECK_OK(all_reduce(world, vector));
    CHECK_VECTOR(vector, COUNT, size);
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
}

static void does_not_open(const struct run *run, int rank, const char *words)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    set_variables(run, rank);
    options.backend = run->is->backend;
    options.timeout_ms = 10000;
    comm_status status = ranks_init(&options, &world);
    CHECK(status != COMM_OK);
    CHECK_ERROR_SAYS(words);
}

static void no_nccl(int rank, int size, void *arg)
{
    (void)size;
    does_not_open(arg, rank, "NCCL is missing");
    CHECK_ERROR_SAYS("/nowhere/libnccl.so.2");
    CHECK_ERROR_SAYS("COMM_NCCL_LIBRARY");
}

static void no_cuda(int rank, int size, void *arg)
{
    (void)size;
    does_not_open(arg, rank, "the CUDA runtime is missing");
    CHECK_ERROR_SAYS("/nowhere/libcudart.so.13");
    CHECK_ERROR_SAYS("COMM_NCCL_CUDART");
}

static void no_gpu(int rank, int size, void *arg)
{
    (void)size;
    does_not_open(arg, rank, "no GPU");
}

static void old_cuda(int rank, int size, void *arg)
{
    (void)size;
    does_not_open(arg, rank, "11.0 or newer is needed");
}

/* ---- Cases ---- */

#define NET "STANDIN_PEERS=net"
#define SILENT "STANDIN_PEERS=silent"
#define BOTH "cpu:tcp,cuda:nccl"
#define GPUS "cuda:nccl"
static const struct fault_case cases[] = {
    { "killed within", killed_within, 3, GPUS, NET, -1, 1 << VICTIM, ANYWHERE },
    { "killed within, silently", killed_within, 3, GPUS, SILENT, -1, 1 << VICTIM, ANYWHERE },
    { "killed within, beside tcp", killed_within, 3, BOTH, NET, -1, 1 << VICTIM, ANYWHERE },
    { "killed within, silently, beside tcp", killed_within, 3, BOTH, SILENT, -1, 1 << VICTIM, ANYWHERE },
    { "killed between", killed_between, 4, GPUS, NET, -1, 1 << VICTIM, ANYWHERE },
    { "killed between, silently", killed_between, 2, GPUS, SILENT, -1, 1 << VICTIM, ANYWHERE },
    { "killed between, beside tcp", killed_between, 3, BOTH, SILENT, -1, 1 << VICTIM, ANYWHERE },
    { "killed between, slowly", killed_between, 3, GPUS, NET, -1, 1 << VICTIM, ANYWHERE },
    { "killed between, slowly, beside tcp", killed_between, 3, BOTH, NET, -1, 1 << VICTIM, ANYWHERE },
    { "killed before", killed_before, 3, GPUS, SILENT, -1, 1 << VICTIM, ANYWHERE },
    { "killed with the store", killed_with_the_store, 3, GPUS, SILENT, -1, 1 << 0, ANYWHERE },
    { "killed with the store, beside tcp", killed_with_the_store, 3, BOTH, NET, -1, 1 << 0, ANYWHERE },
    { "killed with the store, slowly", killed_with_the_store, 3, GPUS, NET, -1, 1 << 0, ANYWHERE },
    { "killed with the store, slowly, beside tcp", killed_with_the_store, 3, BOTH, NET, -1, 1 << 0, ANYWHERE },
    { "one seems lost", one_seems_lost, 4, "cuda:chaos?of=nccl&ranks=2&abort=@3", NULL, -1, 0, ANYWHERE },
    { "one does not call", one_does_not_call, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "one does not call another", one_does_not_call_another, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "one calls later", one_calls_later, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "one does not call, beside tcp", one_does_not_call, 3, BOTH, NULL, -1, 0, ANYWHERE },
    { "one does not connect", one_does_not_connect, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "one connects too late", one_connects_too_late, 3, GPUS, NULL, -1, 0, ON_STANDIN },
    { "one connects too late, to nothing", one_connects_too_late, 3, GPUS,
      "STANDIN_FAIL=ncclCommInitRankConfig:1:2", VICTIM, 0, ON_STANDIN },
    { "one makes a group too late", one_makes_a_group_too_late, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "one makes a group too late, of nothing", one_makes_a_group_too_late, 3, GPUS,
      "STANDIN_FAIL=ncclCommInitRankConfig:2:2", VICTIM, 0, ON_STANDIN },
    { "closed while connecting", closed_while_connecting, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "aborted within", aborted_within, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "aborted within, beside tcp", aborted_within, 3, BOTH, NULL, -1, 0, ANYWHERE },
    { "aborted while calling", aborted_while_calling, 4, GPUS, NET, -1, 0, ANYWHERE },
    { "aborted within a capture", ended_within_a_capture, 3, "cuda:nccl?blocking=1", NULL, -1, 0, ON_STANDIN },
    { "a deadline within a capture", ended_within_a_capture, 3, "cuda:nccl?blocking=1", NULL, -1, 0, ON_STANDIN },
    { "aborted while connecting", aborted_while_connecting, 3, GPUS, NULL, -1, 0, ANYWHERE },
    { "an error later", error_later, 3, GPUS, "STANDIN_ASYNC=3:3", 1, 0, ON_STANDIN },
    { "a network error later", error_later, 3, GPUS, "STANDIN_ASYNC=2:6", 2, 0, ON_STANDIN },
    { "one GPU for two", one_gpu_for_two, 2, GPUS, "STANDIN_DEVICES=1 CUDA_VISIBLE_DEVICES=0", -1, 0, ANYWHERE },
    { "several ranks on one GPU allowed", works, 2, GPUS,
      "STANDIN_DEVICES=1 CUDA_VISIBLE_DEVICES=0 NCCL_MULTI_RANK_GPU_ENABLE=1", -1, 0, ON_NEW_NCCL },
    { "host ids cure it", works, 2, GPUS, "STANDIN_DEVICES=1 CUDA_VISIBLE_DEVICES=0", -1, 0, ANYWHERE },
    { "no NCCL", no_nccl, 2, GPUS, "COMM_NCCL_LIBRARY=/nowhere/libnccl.so.2", -1, 0, ANYWHERE },
    { "no CUDA", no_cuda, 2, GPUS, "COMM_NCCL_CUDART=/nowhere/libcudart.so.13", -1, 0, ANYWHERE },
    { "no GPU", no_gpu, 2, GPUS, "STANDIN_DEVICES=0 CUDA_VISIBLE_DEVICES=-1", -1, 0, ANYWHERE },
    { "a CUDA that is too old", old_cuda, 2, GPUS, "STANDIN_CUDA_VERSION=10020", -1, 0, ON_STANDIN },
};

/* 0: there is none to ask. */
static int nccl_version(void)
{
    const char *library = getenv("COMM_NCCL_LIBRARY");
    int (*get)(int *version), version = 0;
    void *object = dlopen(library && *library ? library : "libnccl.so.2", RTLD_NOW), *symbol;
    if (object && (symbol = dlsym(object, "ncclGetVersion"))) {
        memcpy(&get, &symbol, sizeof get);
        get(&version);
    }
    if (object)
        dlclose(object);
    return version;
}

/* NULL: it can run here. */
static const char *why_not(const struct fault_case *c)
{
    if (c->runs == ON_STANDIN && !cases_on_standin())
        return "only the stand-in fails so";
    if (c->runs == ON_NEW_NCCL && nccl_version() < MULTI_RANK_SINCE)
        return "NCCL has it from 2.30.3 on";
    return NULL;
}

int main(int argc, char **argv)
{
    int failed = 0, ran = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct fault_case *c = &cases[i];
        if (argc > 1 ? strcmp(argv[1], c->name) != 0 : strstr(c->backend, "chaos") != NULL)
            continue; /* the plugin chaos is there when its case is named */
        ran++;
        if (why_not(c)) {
            printf("skipped: %s: %s\n", c->name, why_not(c));
            continue;
        }
        struct run run = { c, page_new(c->size) };
        struct ranks_options options = { .limit_s = LIMIT_S, .name = c->name, .may_fail = c->may_fail };
        int64_t began_ns = fault_now_ns();
        failed |= ranks_run(c->size, &options, c->fn, &run);
        printf("%s: %.1f s\n", c->name, (double)(fault_now_ns() - began_ns) / 1e9);
        page_free(run.page);
    }
    return failed || ran == 0;
}

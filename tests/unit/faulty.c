/* What a faulty backend does to the core: every fault becomes a status with a text that says which backend, no work is
 * lost, none is completed twice, and no thread waits for ever. Ranks are threads. */
#include <comm/comm.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "faulty.h"
#include "loopback.h"
#include "ranks.h"

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void set_fault(int fault, comm_status status, const char *text)
{
    faulty_status = status;
    faulty_text = text;
    atomic_store(&faulty_fault, fault);
}

/* Wait as an event loop does: without helping. */
static void await(comm_work *work)
{
    int32_t fd;
    CHECK_OK(comm_work_fd(work, &fd));
    struct pollfd poller = { fd, POLLIN, 0 };
    CHECK(poll(&poller, 1, 30000) == 1);
}

/* ---- Deadlines ---- */

static void a_deadline_reaches_what_nobody_waits_for(int rank, int size, void *arg)
{
    (void)size;
    comm_group *world = ranks_world(arg);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    options.timeout_ms = 50;
    if (rank == 0) {
        double begun = seconds();
        CHECK_OK(comm_barrier(world, &options, &work));
        await(work);
        double took = seconds() - begun;
        CHECK(took >= 0.05 && took < 15);
        CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("barrier #1 on group 'world' (rank 0 of 2): timed out: not finished within 50 ms");
        CHECK_STATUS(comm_group_status(world), COMM_ERR_DEADLINE);
        comm_work_release(work);
    }
    CHECK_OK(comm_group_close(world));
}

/* Later works are due earlier than what the watchdog waits for, and a work without a limit never is. */
static void each_work_has_its_own_deadline(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:loopback"), *group[3];
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    const int64_t limits[] = { COMM_TIMEOUT_INFINITE, 60000, 20 };
    comm_work *works[3];
    for (int i = 0; i < 3; i++) {
        CHECK_OK(comm_group_dup(world, NULL, &group[i]));
        options.timeout_ms = limits[i];
        CHECK_OK(comm_recv(group[i], NULL, 0, COMM_DTYPE_BYTE, 0, &options, &works[i]));
    }
    await(works[2]);
    CHECK(comm_work_status(works[2]) == COMM_ERR_DEADLINE);
    CHECK(comm_work_status(works[0]) == COMM_IN_PROGRESS && comm_work_status(works[1]) == COMM_IN_PROGRESS);
    CHECK_OK(comm_group_status(group[1]));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(comm_group_close(group[i]));
        comm_work_release(works[i]);
    }
    CHECK_OK(comm_group_close(world));
}

/* A backend that never completes anything, not even when it is told to end: the core completes without it, and what it
 * does later is ignored. */
static void what_a_backend_never_completes_ends_all_the_same(int rank, int size, void *arg)
{
    (void)rank, (void)size;
    comm_group *world = ranks_world(arg);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *works[3];
    options.timeout_ms = 50;
    set_fault(FAULTY_KEEPS, COMM_OK, NULL);
    for (int i = 0; i < 3; i++)
        CHECK_OK(comm_barrier(world, i == 1 ? &options : NULL, &works[i]));
    for (int i = 0; i < 3; i++) {
        await(works[i]);
        CHECK_STATUS(comm_work_wait(works[i], 0), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("timed out: not finished within 50 ms");
        CHECK_ERROR_SAYS("has not completed the operation");
    }
    comm_work_release(works[0]);
    comm_work_release(works[1]);
    faulty_complete_kept();
    CHECK(comm_work_status(works[2]) == COMM_ERR_DEADLINE);
    comm_work_release(works[2]);
    CHECK_OK(comm_group_close(world));
}

static void waiting_ends_too(int rank, int size, void *arg)
{
    (void)rank, (void)size;
    comm_group *world = ranks_world(arg);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.timeout_ms = 50;
    set_fault(FAULTY_KEEPS, COMM_OK, NULL);
    CHECK_STATUS(comm_barrier(world, &options, NULL), COMM_ERR_DEADLINE);
    CHECK_OK(comm_group_close(world));
    faulty_complete_kept();
}

static void closing_does_not_wait_for_a_backend_that_keeps_its_works(int rank, int size, void *arg)
{
    (void)rank, (void)size;
    comm_group *world = ranks_world(arg);
    comm_work *work;
    set_fault(FAULTY_KEEPS, COMM_OK, NULL);
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK_OK(comm_group_close(world));
    CHECK(comm_work_status(work) == COMM_ERR_ABORTED);
    comm_work_release(work);
    faulty_complete_kept();
}

/* ---- Statuses and texts ---- */

static void check_completion(const char *backend, comm_status given, const char *text, comm_status expected,
                             const char *words)
{
    comm_group *world = ranks_world(backend);
    comm_work *work;
    set_fault(FAULTY_COMPLETES, given, text);
    CHECK_STATUS(comm_barrier(world, NULL, NULL), expected);
    CHECK_ERROR_SAYS(words);
    if (comm_status_scope(expected) == COMM_SCOPE_OBJECT) {
        CHECK_STATUS(comm_group_status(world), expected);
        CHECK_ERROR_SAYS(words);
    } else {
        CHECK_OK(comm_barrier(world, NULL, &work));
        CHECK(comm_work_status(work) == expected);
        CHECK(strstr(comm_work_error(work), "barrier #2 on group 'world' (rank 0 of 1): backend 'faulty") != NULL);
        comm_work_release(work);
    }
    set_fault(FAULTY_NOT, COMM_OK, NULL);
    CHECK_OK(comm_group_close(world));
}

static void a_failed_work_says_what_and_which_backend(int rank, int size, void *backend)
{
    (void)rank, (void)size;
    check_completion(backend, COMM_ERR_BACKEND, "the wire melted", COMM_ERR_BACKEND,
                     "barrier #1 on group 'world' (rank 0 of 1): backend 'faulty");
    CHECK_ERROR_SAYS("': the wire melted");
    check_completion(backend, COMM_ERR_NO_MEMORY, "no room", COMM_ERR_NO_MEMORY, "': no room");
    check_completion(backend, COMM_ERR_BACKEND, NULL, COMM_ERR_BACKEND, "it gave no reason");
    const char *whole = "barrier #1 on group 'world' (rank 0 of 1): it says all of this itself";
    check_completion(backend, COMM_ERR_BACKEND, whole, COMM_ERR_BACKEND, whole);
    CHECK(strncmp(comm_last_error(), whole, strlen(whole)) == 0); /* not once more in front */
    check_completion(backend, 12345, "very bad", COMM_ERR_BACKEND,
                     "completed it with the status 12345, which is no error");
    CHECK_ERROR_SAYS("very bad");
    check_completion(backend, -15, NULL, COMM_ERR_BACKEND, "with the status -15, which is no error");
    check_completion(backend, COMM_IN_PROGRESS, NULL, COMM_ERR_BACKEND, "with the status 1, which is no error");
    check_completion(backend, COMM_OK, "all is lost", COMM_ERR_BACKEND,
                     "completed it with COMM_OK and the error text 'all is lost'");
}

static void check_refusal(comm_group *world, int fault, comm_status given, const char *text, comm_status expected,
                          const char *words)
{
    uint64_t before = comm_group_seq(world);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    options.label = "asked";
    /* A text of another call, which must not come back. */
    CHECK_STATUS(comm_group_set_timeout(world, 0), COMM_ERR_INVALID);
    set_fault(fault, given, text);
    /* With a label, supports is asked even if a call before was like this one. */
    CHECK_STATUS(comm_barrier(world, fault == FAULTY_SUPPORTS ? &options : NULL, &work), expected);
    CHECK_ERROR_SAYS("barrier");
    CHECK_ERROR_SAYS("on group 'world' (rank 0 of ");
    CHECK_ERROR_SAYS("backend 'faulty");
    CHECK_ERROR_SAYS(words);
    CHECK(!strstr(comm_last_error(), "set_timeout"));
    CHECK(comm_group_seq(world) == before);
    set_fault(FAULTY_NOT, COMM_OK, NULL);
}

/* The second rank is told when the first has had all its refusals: both must be at the same number then. */
static void what_is_refused_takes_no_number(int rank, int size, void *backend)
{
    (void)size;
    comm_group *world = ranks_world(backend), *lanes[2], *turns;
    int64_t one = 1, sum = 0;
    CHECK_OK(comm_group_dup(world, NULL, &lanes[0]));
    CHECK_OK(comm_group_dup(world, NULL, &lanes[1]));
    CHECK_OK(comm_group_round_robin(lanes, 2, NULL, &turns));
    for (int i = 0; i < 3; i++) {
        if (rank == 0) {
            check_refusal(world, FAULTY_SUBMIT, COMM_ERR_UNSUPPORTED, "not today", COMM_ERR_UNSUPPORTED,
                          "': not today");
            check_refusal(world, FAULTY_SUBMIT, COMM_ERR_NO_MEMORY, NULL, COMM_ERR_NO_MEMORY, "it gave no reason");
            check_refusal(world, FAULTY_SUPPORTS, COMM_ERR_UNSUPPORTED, "too long", COMM_ERR_UNSUPPORTED,
                          "': too long");
            check_refusal(world, FAULTY_SUPPORTS, COMM_ERR_UNSUPPORTED, NULL, COMM_ERR_UNSUPPORTED,
                          "it gave no reason");
            /* Nor a turn, whether the op is alone or in a batch. */
            set_fault(FAULTY_SUBMIT, COMM_ERR_UNSUPPORTED, "not today");
            CHECK_STATUS(comm_barrier(turns, NULL, NULL), COMM_ERR_UNSUPPORTED);
            CHECK_OK(comm_coalesce_begin(turns));
            CHECK_OK(comm_barrier(turns, NULL, NULL));
            CHECK_OK(comm_barrier(turns, NULL, NULL));
            CHECK_STATUS(comm_coalesce_end(turns, NULL, NULL), COMM_ERR_UNSUPPORTED);
            set_fault(FAULTY_NOT, COMM_OK, NULL);
            CHECK(comm_group_seq(turns) == (uint64_t)i);
            CHECK_OK(comm_store_set(comm_group_store(world), i == 0 ? "0" : i == 1 ? "1" : "2", "x", 1));
        }
        const char *key = i == 0 ? "0" : i == 1 ? "1" : "2";
        CHECK_OK(comm_store_wait(comm_group_store(world), &key, 1, 20000));
        CHECK_OK(comm_all_reduce(world, &one, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
        CHECK(sum == 2);
        CHECK_OK(comm_all_reduce(turns, &one, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
        CHECK(sum == 2 && comm_group_seq(lanes[0]) == (uint64_t)(i / 2 + 1));
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    CHECK_OK(comm_group_close(turns));
    CHECK_OK(comm_group_close(lanes[0]));
    CHECK_OK(comm_group_close(lanes[1]));
    CHECK_OK(comm_group_close(world));
}

static void a_status_that_does_not_exist_ends_the_group(int rank, int size, void *backend)
{
    (void)rank, (void)size;
    const int faults[] = { FAULTY_SUBMIT, FAULTY_SUPPORTS };
    for (int i = 0; i < 2; i++) {
        comm_group *world = ranks_world(backend);
        check_refusal(world, faults[i], 12345, "very bad", COMM_ERR_BACKEND, "returned 12345, which is no status");
        CHECK_OK(comm_group_close(world));
        world = ranks_world(backend);
        check_refusal(world, faults[i], 1, NULL, COMM_ERR_BACKEND, "returned 1, which is no status");
        CHECK_OK(comm_group_close(world));
        faulty_complete_kept(); /* what it had begun after all */
    }
}

static void a_group_that_does_not_open_says_why(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:faulty"), *dup = NULL;
    CHECK_STATUS(comm_group_set_timeout(world, 0), COMM_ERR_INVALID); /* a text that must not come back */
    set_fault(FAULTY_OPEN, COMM_ERR_SYSTEM, "no more cables");
    CHECK_STATUS(comm_group_dup(world, NULL, &dup), COMM_ERR_SYSTEM);
    CHECK_ERROR_SAYS("opening backend 'faulty': no more cables");
    set_fault(FAULTY_OPEN, COMM_ERR_SYSTEM, NULL);
    CHECK_STATUS(comm_group_dup(world, NULL, &dup), COMM_ERR_SYSTEM);
    CHECK_ERROR_SAYS("opening backend 'faulty': it gave no reason");
    set_fault(FAULTY_OPEN, 12345, "very bad");
    CHECK_STATUS(comm_group_dup(world, NULL, &dup), COMM_ERR_BACKEND);
    CHECK_ERROR_SAYS("opening backend 'faulty': group_open returned 12345, which is no status: very bad");
    set_fault(FAULTY_OPEN, COMM_OK, NULL);
    CHECK_STATUS(comm_group_dup(world, NULL, &dup), COMM_ERR_BACKEND);
    CHECK_ERROR_SAYS("opening backend 'faulty': group_open gave no state");
    CHECK(dup == NULL);
    set_fault(FAULTY_NOT, COMM_OK, NULL);
    CHECK_OK(comm_group_dup(world, NULL, &dup));
    CHECK_OK(comm_group_close(dup));
    CHECK_OK(comm_group_close(world));
}

/* The op is still running in the backend: it must not be released before the backend has let go of it. */
static void progress_that_fails_ends_the_group(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_work *work;
    int32_t done = 0;
    for (int test = 0; test < 2; test++) {
        comm_group *world = ranks_world("cpu:faulty_driven");
        set_fault(FAULTY_PROGRESS, test ? 12345 : COMM_ERR_PROTOCOL, "a strange byte");
        if (test) {
            CHECK_OK(comm_barrier(world, NULL, &work));
            CHECK_STATUS(comm_work_test(work, &done), COMM_ERR_BACKEND);
            CHECK(done == 1);
            comm_work_release(work);
        } else {
            CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_PROTOCOL);
        }
        CHECK_ERROR_SAYS("barrier #1 on group 'world' (rank 0 of 1): ");
        CHECK_ERROR_SAYS("backend 'faulty_driven': progress");
        CHECK_ERROR_SAYS("a strange byte");
        CHECK_STATUS(comm_group_status(world), test ? COMM_ERR_BACKEND : COMM_ERR_PROTOCOL);
        set_fault(FAULTY_NOT, COMM_OK, NULL);
        CHECK_OK(comm_group_close(world));
    }
}

static void an_op_is_whole_when_the_backend_looks_at_it(int rank, int size, void *backend)
{
    (void)rank, (void)size;
    comm_group *world = ranks_world(backend);
    atomic_store(&faulty_fault, FAULTY_LOOKS); /* by all ranks, so without the rest */
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_monitored_barrier(world, NULL)); /* the library's own messages */
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* no rank changes the fault before all are through */
    CHECK_OK(comm_group_close(world));
}

/* ---- Two backends in one group ---- */

static comm_work *post(comm_group *world, comm_device device)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    options.device = device;
    CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, COMM_ANY_SOURCE, &options, &work));
    return work;
}

static void a_group_that_one_backend_ends_ends_on_the_other(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp,xpu:faulty");
    comm_op_options xpu = COMM_OP_OPTIONS_INIT;
    comm_work *on_tcp = post(world, COMM_DEVICE_CPU), *on_xpu;
    xpu.device = COMM_DEVICE_XPU;
    set_fault(FAULTY_ENDS_GROUP, COMM_ERR_PEER_LOST, "the cable is cut");
    CHECK_OK(comm_barrier(world, &xpu, &on_xpu));
    await(on_tcp);
    await(on_xpu);
    CHECK_STATUS(comm_work_wait(on_tcp, 0), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("recv #1 from any rank with tag 0 on group 'world' (rank 0 of 1): the cable is cut");
    CHECK_STATUS(comm_work_wait(on_xpu, 0), COMM_ERR_PEER_LOST);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_PEER_LOST);
    comm_work_release(on_tcp);
    comm_work_release(on_xpu);
    CHECK_OK(comm_group_close(world));
    set_fault(FAULTY_NOT, COMM_OK, NULL);
}

static void what_fails_on_tcp_ends_the_other_backend(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp,xpu:loopback");
    comm_op_options cpu = COMM_OP_OPTIONS_INIT, xpu = COMM_OP_OPTIONS_INIT;
    cpu.device = COMM_DEVICE_CPU;
    xpu.device = COMM_DEVICE_XPU;
    CHECK_OK(comm_barrier(world, &cpu, NULL));
    CHECK_OK(comm_barrier(world, &xpu, NULL));
    if (rank == 0) { /* the other leaves, which tcp notices and loopback does not */
        comm_work *on_xpu = post(world, COMM_DEVICE_XPU);
        CHECK_STATUS(comm_barrier(world, &cpu, NULL), COMM_ERR_PEER_LOST);
        await(on_xpu);
        CHECK_STATUS(comm_work_wait(on_xpu, 0), COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS("rank 1");
        comm_work_release(on_xpu);
        CHECK_STATUS(comm_barrier(world, &xpu, NULL), COMM_ERR_PEER_LOST);
    }
    CHECK_OK(comm_group_close(world));
}

/* The scalar is read by the CPU. */
static void a_scalar_on_the_device_is_refused(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:loopback");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    float value = 2, factor = 3;
    void *device = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    comm_work *work;
    CHECK(device != MAP_FAILED);
    options.premul = device;
    CHECK_STATUS(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, &options, &work),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("options->premul must be in memory that the CPU can read");
    options.premul = &factor;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, &options, NULL));
    CHECK(value == 6);
    munmap(device, 4096);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "faulty" };
    if (comm_backend_register(loopback_entry) != COMM_OK || comm_backend_register(faulty_entry) != COMM_OK ||
        comm_backend_register(faulty_driven_entry) != COMM_OK)
        return 1;
    static char *const both[] = { "cpu:faulty", "cpu:faulty_driven" };
    for (int i = 0; i < 2; i++)
        if (ranks_run(1, &threads, what_a_backend_never_completes_ends_all_the_same, both[i]) ||
            ranks_run(1, &threads, waiting_ends_too, both[i]) ||
            ranks_run(1, &threads, closing_does_not_wait_for_a_backend_that_keeps_its_works, both[i]) ||
            ranks_run(1, &threads, a_failed_work_says_what_and_which_backend, both[i]) ||
            ranks_run(2, &threads, what_is_refused_takes_no_number, both[i]) ||
            ranks_run(1, &threads, a_status_that_does_not_exist_ends_the_group, both[i]) ||
            ranks_run(3, &threads, an_op_is_whole_when_the_backend_looks_at_it, both[i]))
            return 1;
    return ranks_run(2, &threads, a_deadline_reaches_what_nobody_waits_for, "cpu:loopback") ||
           ranks_run(1, &threads, a_group_that_does_not_open_says_why, NULL) ||
           ranks_run(1, &threads, each_work_has_its_own_deadline, NULL) ||
           ranks_run(1, &threads, progress_that_fails_ends_the_group, NULL) ||
           ranks_run(1, &threads, a_group_that_one_backend_ends_ends_on_the_other, NULL) ||
           ranks_run(2, &threads, what_fails_on_tcp_ends_the_other_backend, NULL) ||
           ranks_run(1, &threads, a_scalar_on_the_device_is_refused, NULL);
}

/* The way of a call to its backend: what the same call again skips and what it does not, and operations that the
 * backend does inside the call. On a backend that keeps what it is given. */
#include <comm/comm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/work.h"
#include "keeper.h"
#include "ranks.h"

/* ---- The same call again ---- */

/* One finished call; was the backend asked whether it can do it? */
static int asked(comm_group *group, comm_status status, comm_work *work)
{
    static int before;
    CHECK_OK(status);
    (void)group;
    if (work) {
        keeper_complete(COMM_OK, NULL);
        CHECK_OK(comm_work_wait(work, 0));
        comm_work_release(work);
    }
    int now = keeper_asked, was = now > before;
    before = now;
    return was;
}

#define ASKED(call) (status = (call), asked(world, status, work))

static void only_an_equal_call_is_not_checked_again(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work = NULL;
    comm_status status;
    double a[8] = { 0 }, b[8];
    size_t counts[] = { 2 };
    CHECK(ASKED(comm_all_reduce(world, a, b, 2, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work)));
    CHECK(!ASKED(comm_all_reduce(world, a, b, 2, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work)));
    CHECK(!ASKED(comm_all_reduce(world, b, b, 2, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work)));
    CHECK(ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work)));
    CHECK(ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, &work)));
    CHECK(ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, NULL, &work)));
    CHECK(ASKED(comm_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, 0, NULL, &work)));
    CHECK(!ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, NULL, &work)));
    CHECK(!ASKED(comm_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, 0, NULL, &work)));
    CHECK(!ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, &options, &work)));
    options.device = COMM_DEVICE_CPU;
    CHECK(!ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, &options, &work)));
    options.timeout_ms = 1000;
    CHECK(ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, &options, &work)));
    CHECK(!ASKED(comm_all_reduce(world, a, b, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, NULL, &work)));
    CHECK(ASKED(comm_all_gather_v(world, a, b, counts, NULL, COMM_DTYPE_F64, NULL, &work)));
    CHECK(!ASKED(comm_all_reduce(world, b, a, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, NULL, &work)));
    CHECK(comm_group_seq(world) == 15);
    options = (comm_op_options)COMM_OP_OPTIONS_INIT;
    options.tag = 7;
    CHECK(ASKED(comm_send(world, a, 2, COMM_DTYPE_F64, 0, &options, &work)));
    CHECK(!ASKED(comm_send(world, b, 2, COMM_DTYPE_F64, 0, &options, &work)));
    CHECK(ASKED(comm_send(world, b, 2, COMM_DTYPE_F64, 0, NULL, &work)));
    CHECK(ASKED(comm_send(world, b, 2, COMM_DTYPE_F64, 0, &options, &work)));
    options.tag = COMM_ANY_TAG;
    CHECK_STATUS(comm_send(world, b, 2, COMM_DTYPE_F64, 0, &options, &work), COMM_ERR_INVALID);
    CHECK(!ASKED(comm_all_reduce(world, b, a, 3, COMM_DTYPE_I64, COMM_REDOP_MAX, &options, &work))); /* has no tag */
    CHECK_OK(comm_group_close(world));
}

/* Those of an older header end before fields that this library knows. What comes after them cannot be read here. */
static void options_are_read_to_their_end(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    const long page = sysconf(_SC_PAGESIZE);
    comm_group *world = ranks_world("cpu:keeper");
    comm_op_options newest = COMM_OP_OPTIONS_INIT;
    int32_t value = 1;
    char *memory = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mprotect(memory + page, (size_t)page, PROT_NONE) == 0);
    for (uint32_t bytes = sizeof newest; bytes >= offsetof(comm_op_options, device); bytes -= 8) {
        comm_op_options *older = (comm_op_options *)(memory + page - bytes);
        memcpy(older, &newest, bytes);
        older->struct_bytes = bytes;
        for (int again = 0; again < 2; again++) {
            comm_work *work;
            CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, older, &work));
            keeper_complete(COMM_OK, NULL);
            CHECK_OK(comm_work_wait(work, 0));
            comm_work_release(work);
        }
    }
    munmap(memory, 2 * (size_t)page);
    CHECK_OK(comm_group_close(world));
}

static void buffers_numbers_and_limits_are_new_each_time(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    comm_work *work;
    double a[8] = { 0 };
    for (int i = 0; i < 3; i++) {
        CHECK_OK(comm_group_set_timeout(world, 1000 * (i + 1)));
        CHECK_OK(comm_all_reduce(world, a + i, a + i + 4, 1, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work));
        struct kept kept = keeper_take(0);
        CHECK(kept.op.send.data == a + i && kept.op.recv.data == a + i + 4 && kept.op.seq == (uint64_t)i + 1);
        CHECK(kept.op.timeout_ns == 1000000000LL * (i + 1) && comm_work_timeout(work) == 1000 * (i + 1));
        keeper_host->work_complete(kept.work, COMM_OK, NULL);
        comm_work_release(work);
    }
    /* What is wrong is refused with words, and takes no number. */
    CHECK_STATUS(comm_all_reduce(world, a, NULL, 1, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the recv buffer is NULL");
    CHECK_STATUS(comm_all_reduce(world, a, (char *)a + 4, 1, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("overlap");
    CHECK_OK(comm_group_abort(world, "enough"));
    CHECK_STATUS(comm_all_reduce(world, a, a, 1, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, &work), COMM_ERR_ABORTED);
    CHECK(comm_group_seq(world) == 3 && keeper_count() == 0);
    CHECK_OK(comm_group_close(world));
}

/* ---- Inside the call ---- */

static atomic_int runs;
static comm_status run_says;
static int run_tells; /* how often it says that it waits */

static comm_status run_briefly(const comm_op *op, int64_t spin_ns)
{
    CHECK(op->seq > 0 && spin_ns > 0 && (op->flags & COMM_OP_FLAG_WAITING) && !(op->flags & COMM_OP_FLAG_BEGUN));
    atomic_fetch_add(&runs, 1);
    for (int i = 0; i < run_tells; i++)
        keeper_host->run_waits();
    return run_says < 0 ? keeper_host->fail(run_says, "it does not run") : run_says;
}

static comm_status last_record(comm_group *group)
{
    comm_record record;
    size_t count;
    CHECK_OK(comm_group_records(group, &record, sizeof record, 1, &count));
    CHECK(count == 1);
    return record.status;
}

static void run_does_small_operations_in_the_call(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper_run");
    int submitted = keeper_submitted;
    keeper_runs = run_briefly;
    run_says = COMM_OK;
    for (int i = 0; i < 40; i++)
        CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK(runs == 40 && keeper_submitted == submitted && comm_group_seq(world) == 40);
    CHECK_OK(last_record(world));
    run_says = COMM_ERR_NO_MEMORY; /* refused: no number */
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_NO_MEMORY);
    CHECK_ERROR_SAYS("barrier");
    CHECK_ERROR_SAYS("backend 'keeper_run': it does not run");
    CHECK(last_record(world) == COMM_ERR_NO_MEMORY && comm_group_seq(world) == 40);
    run_says = COMM_OK;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK(comm_group_seq(world) == 41);
    run_says = COMM_ERR_PEER_LOST;
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_PEER_LOST);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_PEER_LOST);
    int before = runs;
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_PEER_LOST);
    CHECK(runs == before);
    CHECK_OK(comm_group_close(world));
}

/* Another thread completes what is submitted. */
static void *complete_kept(void *context)
{
    comm_status status = *(comm_status *)context;
    while (keeper_count() == 0)
        ;
    struct kept kept = keeper_take(0);
    CHECK(!(kept.op.flags & COMM_OP_FLAG_BEGUN) == (run_says == COMM_ERR_UNSUPPORTED));
    keeper_host->work_complete(kept.work, status, status == COMM_OK ? NULL : "late trouble");
    return NULL;
}

static void what_outlives_the_spin_gets_a_work(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper_run");
    comm_status ends[] = { COMM_OK, COMM_ERR_TRUNCATED, COMM_OK };
    keeper_runs = run_briefly;
    run_says = COMM_IN_PROGRESS;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, complete_kept, &ends[i]) == 0);
        CHECK_STATUS(comm_barrier(world, NULL, NULL), ends[i]);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(last_record(world) == ends[i] && comm_group_seq(world) == (uint64_t)i + 1);
    }
    keeper_submits = COMM_ERR_NO_MEMORY; /* it has begun, so this ends the group */
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_BACKEND);
    CHECK_ERROR_SAYS("the keeper keeps nothing");
    keeper_submits = COMM_OK;
    CHECK_STATUS(comm_group_status(world), COMM_ERR_BACKEND);
    CHECK_OK(comm_group_close(world));
    world = ranks_world("cpu:keeper_run"); /* the limit holds, too */
    CHECK_OK(comm_group_set_timeout(world, 20));
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_DEADLINE);
    CHECK_OK(comm_group_close(world));
}

static atomic_int is_in_run, may_leave;

static comm_status run_until_told(const comm_op *op, int64_t spin_ns)
{
    (void)op, (void)spin_ns;
    atomic_store(&is_in_run, 1);
    while (!atomic_load(&may_leave))
        ;
    return run_says;
}

static void *call_barrier(void *group)
{
    comm_status status = comm_barrier(group, NULL, NULL);
    CHECK(status == (run_says == COMM_OK ? COMM_OK : COMM_ERR_ABORTED));
    return NULL;
}

static void *abort_it(void *group)
{
    CHECK_OK(comm_group_abort(group, "from another thread"));
    atomic_store(&may_leave, 1);
    return NULL;
}

static void *close_it(void *group)
{
    CHECK_OK(comm_group_close(group));
    return NULL;
}

/* Close waits for a thread that is in run; what goes on then is aborted by the close. An abort does not wait. */
static void groups_end_while_an_operation_runs(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    keeper_runs = run_until_told;
    for (int i = 0; i < 60; i++) {
        comm_group *world = ranks_world("cpu:keeper_run");
        pthread_t caller, ender;
        int closes = i % 3 != 0;
        run_says = i % 3 == 1 ? COMM_OK : COMM_IN_PROGRESS;
        atomic_store(&is_in_run, 0);
        atomic_store(&may_leave, 0);
        CHECK(pthread_create(&caller, NULL, call_barrier, world) == 0);
        while (!atomic_load(&is_in_run))
            ;
        CHECK(pthread_create(&ender, NULL, closes ? close_it : abort_it, world) == 0);
        if (closes)
            atomic_store(&may_leave, 1);
        if (!closes) { /* the keeper ends with the abort what it has by then; the rest, the core */
            CHECK(pthread_join(ender, NULL) == 0);
            while (keeper_count() == 0)
                ;
            keeper_complete(COMM_ERR_ABORTED, "late");
        }
        CHECK(pthread_join(caller, NULL) == 0);
        if (closes)
            CHECK(pthread_join(ender, NULL) == 0);
        else
            CHECK_OK(comm_group_close(world));
    }
}

/* Whether a backend says that it waits, and however often. */
static void an_operation_has_one_record(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    enum { MOST = 32 };
    static const comm_status says[] = { COMM_OK, COMM_ERR_UNSUPPORTED, COMM_IN_PROGRESS, COMM_ERR_NO_MEMORY };
    comm_group *world = ranks_world("cpu:keeper_run");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_record records[MOST];
    size_t count, expected = 0;
    keeper_runs = run_briefly;
    for (run_tells = 0; run_tells < 3; run_tells++)
        for (int i = 0; i < 4; i++) {
            comm_status ends = COMM_OK;
            pthread_t thread;
            int is_kept = says[i] == COMM_ERR_UNSUPPORTED || says[i] == COMM_IN_PROGRESS;
            char label[16];
            snprintf(label, sizeof label, "call %d", (int)expected);
            options.label = label;
            run_says = says[i];
            if (is_kept)
                CHECK(pthread_create(&thread, NULL, complete_kept, &ends) == 0);
            CHECK_STATUS(comm_barrier(world, &options, NULL), is_kept ? COMM_OK : says[i]);
            if (is_kept)
                CHECK(pthread_join(thread, NULL) == 0);
            CHECK_OK(comm_group_records(world, records, sizeof *records, MOST, &count));
            CHECK(count == ++expected);
            CHECK(records[count - 1].status == (is_kept ? COMM_OK : says[i]) && records[count - 1].submitted_ns > 0);
            CHECK(strcmp(records[count - 1].label, label) == 0);
        }
    run_tells = 0;
    keeper_host->run_waits(); /* outside of `run` it does nothing */
    CHECK_OK(comm_group_records(world, records, sizeof *records, MOST, &count));
    CHECK(count == expected);
    CHECK_OK(comm_group_close(world));
}

/* ---- Waiting on, in the call ---- */

static atomic_int waits_on;

static void *call_barrier_well(void *group)
{
    CHECK_OK(comm_barrier(group, NULL, NULL));
    return NULL;
}

/* As a backend does that waits for a rank which is late. */
static comm_status run_while_it_may(const comm_op *op, int64_t spin_ns)
{
    (void)op, (void)spin_ns;
    while (keeper_host->run_may_wait())
        atomic_store(&waits_on, 1);
    return run_says;
}

/* Another thread's operations come first, in the order of the calls. */
static void a_waiting_run_ends_when_another_thread_wants_the_group(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper_run");
    CHECK_OK(comm_group_set_timeout(world, 3600000));
    CHECK(!keeper_host->run_may_wait()); /* outside of `run` */
    keeper_runs = run_while_it_may;
    for (int i = 0; i < 20; i++) {
        pthread_t caller;
        comm_work *work;
        int32_t value = 1;
        run_says = i % 2 ? COMM_IN_PROGRESS : COMM_ERR_UNSUPPORTED;
        atomic_store(&waits_on, 0);
        CHECK(pthread_create(&caller, NULL, call_barrier_well, world) == 0);
        while (!atomic_load(&waits_on))
            ;
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work));
        CHECK(keeper_count() == 2);
        struct kept first = keeper_take(0), second = keeper_take(0);
        CHECK(first.op.kind == COMM_OP_BARRIER && second.op.kind == COMM_OP_ALL_REDUCE);
        CHECK(first.op.seq + 1 == second.op.seq && second.op.submitted_ns == 0);
        CHECK(first.op.submitted_ns > 0 && first.work->due_ns == first.op.submitted_ns + first.op.timeout_ns);
        keeper_host->work_complete(first.work, COMM_OK, NULL);
        keeper_host->work_complete(second.work, COMM_OK, NULL);
        CHECK(pthread_join(caller, NULL) == 0);
        comm_work_release(work);
    }
    comm_work *work;
    CHECK_OK(comm_barrier(world, NULL, &work)); /* as before, but it does not wait */
    struct kept kept = keeper_take(0);
    CHECK(kept.op.submitted_ns == 0);
    keeper_host->work_complete(kept.work, COMM_OK, NULL);
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

static comm_status run_for_a_while(const comm_op *op, int64_t spin_ns)
{
    (void)op, (void)spin_ns;
    int64_t until_ns = keeper_host->now_ns() + 1000000;
    keeper_host->run_waits();
    while (keeper_host->now_ns() < until_ns)
        CHECK(keeper_host->run_may_wait());
    return run_says;
}

/* What has waited for another rank takes its time in the record, whoever does it then. */
static void a_record_has_the_wait(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    static const comm_status says[] = { COMM_OK, COMM_ERR_UNSUPPORTED, COMM_IN_PROGRESS };
    comm_group *world = ranks_world("cpu:keeper_run");
    keeper_runs = run_for_a_while;
    for (int i = 0; i < 3; i++) {
        comm_status ends = COMM_OK;
        comm_record record;
        pthread_t thread;
        size_t count;
        run_says = says[i];
        if (i)
            CHECK(pthread_create(&thread, NULL, complete_kept, &ends) == 0);
        CHECK_OK(comm_barrier(world, NULL, NULL));
        if (i)
            CHECK(pthread_join(thread, NULL) == 0);
        CHECK_OK(comm_group_records(world, &record, sizeof record, 1, &count));
        CHECK(count == 1 && record.completed_ns - record.submitted_ns >= 900000);
    }
    CHECK_OK(comm_group_close(world));
}

/* Other threads of such a group wait for the turn, which it does not know. */
static void a_round_robin_group_is_not_waited_for(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper_run"), *turns;
    CHECK_OK(comm_group_round_robin((comm_group *const[]){ world }, 1, NULL, &turns));
    keeper_runs = run_while_it_may;
    run_says = COMM_OK;
    atomic_store(&waits_on, 0);
    CHECK_OK(comm_barrier(turns, NULL, NULL));
    CHECK(!atomic_load(&waits_on));
    keeper_runs = run_for_a_while;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(turns));
    CHECK_OK(comm_group_close(world));
}

/* It waits for all of the limit, and then the core ends the group. */
static void a_waiting_run_ends_with_the_limit(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    keeper_runs = run_while_it_may;
    for (int i = 0; i < 2; i++) {
        comm_group *world = ranks_world("cpu:keeper_run");
        CHECK_OK(comm_group_set_timeout(world, 20));
        run_says = i ? COMM_IN_PROGRESS : COMM_ERR_UNSUPPORTED;
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_DEADLINE);
        CHECK_OK(comm_group_close(world));
    }
}

static void *call_often(void *group)
{
    for (int i = 0; i < 2000; i++)
        CHECK_OK(comm_barrier(group, NULL, NULL));
    return NULL;
}

static void threads_take_turns(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper_run");
    pthread_t threads[4];
    keeper_runs = run_briefly;
    run_says = COMM_OK;
    for (int t = 0; t < 4; t++)
        CHECK(pthread_create(&threads[t], NULL, call_often, world) == 0);
    for (int t = 0; t < 4; t++)
        CHECK(pthread_join(threads[t], NULL) == 0);
    CHECK(comm_group_seq(world) == 8000);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "submit" };
    if (comm_backend_register(keeper_entry) != COMM_OK || comm_backend_register(keeper_run_entry) != COMM_OK)
        return 1;
    return ranks_run(1, &threads, only_an_equal_call_is_not_checked_again, NULL) ||
           ranks_run(1, &threads, options_are_read_to_their_end, NULL) ||
           ranks_run(1, &threads, buffers_numbers_and_limits_are_new_each_time, NULL) ||
           ranks_run(1, &threads, run_does_small_operations_in_the_call, NULL) ||
           ranks_run(1, &threads, what_outlives_the_spin_gets_a_work, NULL) ||
           ranks_run(1, &threads, an_operation_has_one_record, NULL) ||
           ranks_run(1, &threads, groups_end_while_an_operation_runs, NULL) ||
           ranks_run(1, &threads, a_waiting_run_ends_when_another_thread_wants_the_group, NULL) ||
           ranks_run(1, &threads, a_waiting_run_ends_with_the_limit, NULL) ||
           ranks_run(1, &threads, a_record_has_the_wait, NULL) ||
           ranks_run(1, &threads, a_round_robin_group_is_not_waited_for, NULL) ||
           ranks_run(1, &threads, threads_take_turns, NULL);
}

/* Works, their callbacks, descriptors and hooks, and coalescing: on the loopback backend, where ranks are threads, and
 * on tcp, where they are processes. */
#include <comm/comm.h>
#include <poll.h>
#include <stdatomic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "loopback.h"
#include "ranks.h"

static const char *backend; /* set before the ranks start */

struct told {
    int times;
    comm_status status;
};

static void tell(comm_work *work, comm_status status, void *context)
{
    struct told *told = context;
    CHECK(comm_work_status(work) == status);
    told->times++;
    told->status = status;
}

static void completion_is_told_once_in_every_way(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend);
    comm_work *work;
    struct told told = { 0, 1 };
    float value = 1;
    int32_t fd = -1, done = 1;
    if (rank == 0) {
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, &work));
        CHECK(comm_work_status(work) == COMM_IN_PROGRESS);
        CHECK_OK(comm_work_on_complete(work, tell, &told));
        CHECK_STATUS(comm_work_on_complete(work, tell, &told), COMM_ERR_INVALID);
        CHECK_OK(comm_work_fd(work, &fd));
        CHECK_OK(comm_work_test(work, &done));
        CHECK(!done);
        CHECK_STATUS(comm_work_wait(work, 1), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("all_reduce #1 on group 'world' (rank 0 of");
        CHECK_OK(comm_send(world, NULL, 0, COMM_DTYPE_BYTE, 1, NULL, NULL)); /* now the others may come */
        struct pollfd poller = { fd, POLLIN, 0 };
        CHECK(poll(&poller, 1, 20000) == 1);
    } else {
        if (rank == 1)
            CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, 0, NULL, NULL));
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, &work));
    }
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(value == (float)size);
    if (rank == 0) { /* told is another thread's until the barrier */
        CHECK_OK(comm_work_test(work, &done));
        CHECK(done == 1);
    } else {
        CHECK_OK(comm_work_on_complete(work, tell, &told)); /* too late: told at once */
        CHECK(told.times == 1);
        CHECK_OK(comm_work_fd(work, &fd));
        struct pollfd poller = { fd, POLLIN, 0 };
        CHECK(poll(&poller, 1, 0) == 1);
    }
    CHECK(comm_work_seq(work) == 1 && comm_work_duration_ns(work) >= 0);
    CHECK(strcmp(comm_work_op(work), "all_reduce") == 0);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
    CHECK_OK(comm_work_status(work)); /* readable after its group */
    CHECK(strcmp(comm_work_error(work), "") == 0);
    comm_work_release(work);
    CHECK(rank != 0 || told.times == 1);
}

static void an_unfinished_work_may_be_dropped(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    int32_t mine = rank, theirs = -1;
    comm_work *work;
    if (rank == 0) {
        CHECK_OK(comm_recv(world, &theirs, 1, COMM_DTYPE_I32, 1, NULL, &work));
        comm_work_release(work);
        CHECK_STATUS(comm_group_flush(world, 1), COMM_ERR_TIMEOUT);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 1)
        CHECK_OK(comm_send(world, &mine, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    if (rank == 0) {
        CHECK_OK(comm_group_flush(world, 0));
        CHECK(theirs == 1);
    }
    CHECK_OK(comm_group_close(world));
}

static void a_long_message_is_truncated_and_the_group_goes_on(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    int32_t data[4] = { 1, 2, 3, 4 }, got[4] = { 0, 0, 9, 9 };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.tag = rank == 0 ? COMM_ANY_TAG : 5;
    if (rank == 1) {
        CHECK_OK(comm_send(world, data, 4, COMM_DTYPE_I32, 0, &options, NULL));
        CHECK_OK(comm_send(world, data, 3, COMM_DTYPE_I32, 0, &options, NULL));
    } else if (rank == 0) {
        comm_work *work;
        CHECK_STATUS(comm_recv(world, got, 2, COMM_DTYPE_I32, 1, &options, NULL), COMM_ERR_TRUNCATED);
        CHECK(got[0] == 1 && got[1] == 2 && got[2] == 9);
        CHECK_OK(comm_recv(world, got, 4, COMM_DTYPE_I32, COMM_ANY_SOURCE, &options, &work));
        CHECK_OK(comm_work_wait(work, 0));
        CHECK(comm_work_received_count(work) == 3 && comm_work_source_rank(work) == 1 && comm_work_tag(work) == 5);
        comm_work_release(work);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* What must not be done in a callback is refused, and leaves everything as it was. */
struct inside {
    comm_group *world;
    comm_mesh *mesh;
    comm_work *done; /* another work, which has completed */
    int times, depth;
};

static void try_everything(comm_work *work, comm_status status, void *context)
{
    struct inside *inside = context;
    struct told nested = { 0, 1 };
    CHECK_OK(status);
    CHECK(++inside->depth == 1);
    CHECK_OK(comm_work_wait(work, 0)); /* it is done, so this waits for nothing */
    CHECK_STATUS(comm_barrier(inside->world, NULL, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("a work's callback or a hook must not wait");
    CHECK_STATUS(comm_monitored_barrier(inside->world, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_flush(inside->world, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mesh_destroy(inside->mesh), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_close(inside->world), COMM_ERR_INVALID);
    if (inside->done) {
        CHECK_OK(comm_work_on_complete(inside->done, tell, &nested));
        CHECK(nested.times == 1);
        CHECK_STATUS(comm_group_close(inside->world), COMM_ERR_INVALID); /* still inside, after the nested one */
        comm_work_release(work);
    }
    inside->depth--;
    inside->times++;
}

static void a_callback_cannot_wait_nor_close(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world(backend);
    struct inside inside = { .world = world };
    comm_work *work, *batch;
    const int32_t shape[] = { size };
    CHECK_OK(comm_mesh_create(world, NULL, 0, shape, NULL, 1, NULL, &inside.mesh));
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK_OK(comm_barrier(world, NULL, &inside.done));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK_OK(comm_work_wait(inside.done, 0));
    CHECK_OK(comm_work_on_complete(work, try_everything, &inside)); /* at once, on this thread */
    CHECK(inside.times == 1);
    comm_work_release(inside.done);
    inside.done = NULL;
    /* The work of a batch, when it is done and when it is not. */
    for (int finished = 0; finished < 2; finished++) {
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_coalesce_end(world, NULL, &batch));
        if (finished)
            CHECK_OK(comm_work_wait(batch, 0));
        CHECK_OK(comm_work_on_complete(batch, try_everything, &inside));
        CHECK_OK(comm_work_wait(batch, 0));
        comm_work_release(batch);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_mesh_destroy(inside.mesh));
    CHECK_OK(comm_group_close(world)); /* waits for the callbacks */
    CHECK(inside.times == 3);
}

/* ---- Hooks ---- */

struct seen {
    atomic_int submitted, completed, ended;
    char last[32]; /* the op of the last SUBMIT: the hook runs on the calling thread, so no other thread writes it */
    pthread_t caller;
    comm_group *group;
    _Atomic int64_t received; /* of the last receive: source * 1000 + count */
    _Atomic int32_t failure;
    atomic_int wrong;
};

static void see(const comm_event *event, void *context)
{
    struct seen *seen = context;
    const comm_record *record = event->record;
    int wrong = event->struct_bytes < sizeof *event || event->group != seen->group || !event->error;
    if (event->kind == COMM_EVENT_SUBMIT) {
        atomic_fetch_add(&seen->submitted, 1);
        wrong |= !pthread_equal(pthread_self(), seen->caller) || event->status != COMM_IN_PROGRESS;
        wrong |= record->status != COMM_IN_PROGRESS || record->completed_ns != 0;
        snprintf(seen->last, sizeof seen->last, "%s:%s", record->op, record->label);
    } else if (event->kind == COMM_EVENT_COMPLETE) {
        atomic_fetch_add(&seen->completed, 1);
        wrong |= record->status != event->status || record->completed_ns < record->submitted_ns;
        wrong |= (event->status == COMM_OK) != (event->error[0] == '\0');
        if (strcmp(record->op, "recv") == 0 && event->status == COMM_OK)
            atomic_store(&seen->received, record->peer * 1000 + (int64_t)record->count);
        if (event->status != COMM_OK)
            atomic_store(&seen->failure, event->status);
    } else {
        atomic_fetch_add(&seen->ended, 1);
        wrong |= event->kind != COMM_EVENT_END || record != NULL || !strstr(event->error, "that will do");
    }
    if (wrong)
        atomic_store(&seen->wrong, 1);
}

static void hooks_are_told_of_everything(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend);
    struct seen all = { .caller = pthread_self(), .group = world };
    struct seen some = { .caller = pthread_self(), .group = world };
    int32_t all_id = -1, some_id = -1, value = 1, got[8];
    comm_work *work = NULL;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    CHECK_STATUS(comm_group_hook_add(world, 0, see, &all, &all_id), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_hook_add(world, 8, see, &all, &all_id), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_hook_add(world, COMM_EVENT_END, NULL, &all, &all_id), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_hook_remove(world, 1), COMM_ERR_NOT_FOUND);
    CHECK_OK(comm_group_hook_add(world, COMM_EVENT_SUBMIT | COMM_EVENT_COMPLETE | COMM_EVENT_END, see, &all, &all_id));
    CHECK_OK(comm_group_hook_add(world, COMM_EVENT_SUBMIT, see, &some, &some_id));
    CHECK(all_id != some_id);
    options.label = "first";
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL));
    CHECK(all.submitted == 1 && all.completed == 1 && some.submitted == 1 && some.completed == 0);
    CHECK(strcmp(all.last, "all_reduce:first") == 0);
    CHECK_OK(comm_group_hook_remove(world, some_id));
    CHECK_STATUS(comm_group_hook_remove(world, some_id), COMM_ERR_NOT_FOUND);
    /* A refused call is no operation; a batch is as many as it holds; our own messages are none. */
    CHECK_STATUS(comm_broadcast(world, &value, 1, COMM_DTYPE_I32, 99, NULL, NULL), COMM_ERR_INVALID);
    CHECK(all.submitted == 1);
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < 3; i++)
        CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK(all.submitted == 1);
    CHECK_OK(comm_coalesce_end(world, NULL, &work));
    CHECK(all.submitted == 4);
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    CHECK(all.completed == 4 && strcmp(all.last, "barrier:") == 0);
    CHECK_OK(comm_monitored_barrier(world, NULL));
    CHECK(all.submitted == 4 && some.submitted == 1);
    /* What a receive was to take from anywhere, and what it got. */
    if (rank == 1)
        CHECK_OK(comm_send(world, got, 3, COMM_DTYPE_I32, 0, NULL, NULL));
    if (rank == 0) {
        CHECK_OK(comm_recv(world, got, 8, COMM_DTYPE_I32, COMM_ANY_SOURCE, NULL, NULL));
        CHECK(all.received == 1003);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK(all.ended == 0 && all.failure == 0 && all.completed == all.submitted);
    /* The end is told once, and so is the failure of what was pending. */
    CHECK_OK(comm_recv(world, got, 8, COMM_DTYPE_I32, rank, NULL, &work));
    if (rank != 0) /* not before all have posted theirs */
        CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    for (int r = 1; rank == 0 && r < size; r++)
        CHECK_OK(comm_recv(world, got, 1, COMM_DTYPE_I32, r, NULL, NULL));
    if (rank == 0)
        CHECK_OK(comm_group_abort(world, "that will do"));
    CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_ABORTED);
    comm_work_release(work);
    CHECK(all.ended == 1 && all.failure == COMM_ERR_ABORTED && all.completed == all.submitted);
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_ABORTED);
    CHECK(all.ended == 1 && all.completed == all.submitted && all.wrong == 0 && some.wrong == 0);
    CHECK_OK(comm_group_hook_remove(world, all_id));
    CHECK_OK(comm_group_close(world));
}

struct meddler {
    comm_group *group;
    int32_t id;
    atomic_int times;
};

static void meddle(const comm_event *event, void *context)
{
    struct meddler *m = context;
    comm_work *work;
    int32_t id;
    (void)event;
    CHECK_STATUS(comm_barrier(m->group, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_barrier(m->group, NULL, &work), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("a hook may not call this");
    CHECK_STATUS(comm_group_flush(m->group, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_hook_add(m->group, COMM_EVENT_END, meddle, m, &id), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_hook_remove(m->group, m->id), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_close(m->group), COMM_ERR_INVALID);
    atomic_fetch_add(&m->times, 1);
}

static void a_hook_cannot_submit_wait_nor_close(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend);
    struct meddler m = { .group = world };
    CHECK_OK(comm_group_hook_add(world, COMM_EVENT_SUBMIT | COMM_EVENT_COMPLETE | COMM_EVENT_END, meddle, &m, &m.id));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK(m.times == 2 && comm_group_seq(world) == 1);
    CHECK_OK(comm_monitored_barrier(world, NULL));
    if (rank != 0) /* not before all have left the barrier */
        CHECK_OK(comm_send(world, NULL, 0, COMM_DTYPE_BYTE, 0, NULL, NULL));
    for (int r = 1; rank == 0 && r < size; r++)
        CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, r, NULL, NULL));
    if (rank == 0)
        CHECK_OK(comm_group_abort(world, "enough"));
    else
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_ABORTED);
    CHECK(m.times >= 3);
    CHECK_OK(comm_group_hook_remove(world, m.id));
    CHECK_OK(comm_group_close(world));
}

/* ---- Everything that a work can be asked ---- */

static void a_work_answers_every_question(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *works[3] = { NULL, NULL, NULL };
    int64_t value = rank, sum = -1, got[4] = { -1, -1, -1, -1 };
    int32_t done = -1, fd = -1;
    options.timeout_ms = 25000;
    options.tag = 7;
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    CHECK_OK(comm_recv(world, got, 4, COMM_DTYPE_I64, before, &options, &works[0]));
    CHECK(comm_work_timeout(works[0]) == 25000 && comm_work_seq(works[0]) == 1);
    CHECK(strcmp(comm_work_op(works[0]), "recv") == 0);
    if (comm_work_status(works[0]) == COMM_IN_PROGRESS) {
        CHECK(comm_work_source_rank(works[0]) == -1 && comm_work_tag(works[0]) == -1);
        CHECK(comm_work_received_count(works[0]) == 0 && comm_work_duration_ns(works[0]) == -1);
        CHECK(strcmp(comm_work_error(works[0]), "") == 0);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_I64, next, &options, &works[2]));
    CHECK_STATUS(comm_work_wait_all(NULL, 3, 0), COMM_ERR_INVALID);
    CHECK_OK(comm_work_wait_all(works, 3, 0)); /* a NULL among them */
    CHECK(got[0] == before && got[1] == -1);
    CHECK(comm_work_source_rank(works[0]) == before && comm_work_tag(works[0]) == 7);
    CHECK(comm_work_received_count(works[0]) == 1 && comm_work_duration_ns(works[0]) > 0);
    CHECK(strcmp(comm_work_op(works[2]), "send") == 0 && comm_work_seq(works[2]) == 2);
    comm_work_release(works[0]);
    comm_work_release(works[2]);

    CHECK_OK(comm_all_reduce(world, &value, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, &works[0]));
    CHECK(comm_work_timeout(works[0]) == comm_group_timeout(world) && comm_work_seq(works[0]) == 2);
    CHECK_OK(comm_work_fd(works[0], &fd));
    struct pollfd poller = { fd, POLLIN, 0 };
    CHECK(poll(&poller, 1, 30000) == 1); /* only the backend drives it */
    CHECK_OK(comm_work_status(works[0]));
    CHECK_OK(comm_work_test(works[0], &done));
    CHECK(done == 1 && sum == (int64_t)size * (size - 1) / 2);
    CHECK_OK(comm_work_wait_stream(works[0], NULL));
    CHECK_OK(comm_work_wait(works[0], COMM_TIMEOUT_INFINITE));
    /* Time that is left, computed wrongly, must not become a wait for ever. */
    CHECK_STATUS(comm_work_wait(works[0], -5), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_wait_all(works, 1, -5), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_flush(world, -5), COMM_ERR_INVALID);
    comm_work_release(works[0]);
    comm_work_release(NULL);
    CHECK_STATUS(comm_work_wait(NULL, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_test(NULL, &done), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_status(NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_on_complete(NULL, tell, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_work_fd(NULL, &fd), COMM_ERR_INVALID);
    CHECK(comm_work_timeout(NULL) == COMM_TIMEOUT_INFINITE && comm_work_duration_ns(NULL) == -1);

    /* A failed work keeps its text when the group is gone. */
    comm_group *self;
    CHECK_OK(comm_group_split(world, rank, 0, NULL, &self));
    CHECK_OK(comm_recv(self, got, 4, COMM_DTYPE_I64, 0, NULL, &works[0]));
    CHECK_OK(comm_group_close(self));
    CHECK_OK(comm_group_close(world));
    CHECK_STATUS(comm_work_status(works[0]), COMM_ERR_ABORTED);
    CHECK_STATUS(comm_work_wait(works[0], 0), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS(comm_work_error(works[0]));
    CHECK(strstr(comm_work_error(works[0]), "closed") != NULL);
    comm_work_release(works[0]);
}

static void flush_waits_for_all_that_was_submitted(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    enum { OPS = 64 };
    comm_group *world = ranks_world(backend);
    int32_t sums[OPS];
    CHECK_OK(comm_group_flush(world, 0)); /* nothing is pending */
    for (int i = 0; i < OPS; i++) {
        comm_work *work;
        sums[i] = i;
        CHECK_OK(comm_all_reduce(world, &sums[i], &sums[i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work));
        comm_work_release(work);
    }
    CHECK_OK(comm_group_flush(world, 0));
    for (int i = 0; i < OPS; i++)
        CHECK(sums[i] == i * size);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The least of several, so that what else the machine does is left out. */
static double time_of_flushes(comm_group *world)
{
    double least = 1e9;
    for (int i = 0; i < 5; i++) {
        double begun = seconds();
        for (int j = 0; j < 200; j++) {
            comm_work *work;
            CHECK_OK(comm_barrier(world, NULL, &work));
            CHECK_OK(comm_group_flush(world, 0));
            comm_work_release(work);
        }
        double took = seconds() - begun;
        least = took < least ? took : least;
    }
    return least;
}

/* Works that are done and have not been released cost a flush nothing. */
static void flush_does_not_look_at_finished_works(int rank, int size, void *arg)
{
    enum { HELD = 50000 };
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    comm_work **held = calloc(HELD, sizeof *held);
    double before = time_of_flushes(world);
    for (int i = 0; i < HELD; i++)
        CHECK_OK(comm_barrier(world, NULL, &held[i]));
    double after = time_of_flushes(world);
    if (after > 5 * before + 0.005)
        ranks_fail(__FILE__, __LINE__, "200 flushes took %.3f ms, and %.3f ms beside %d finished works", before * 1e3,
                   after * 1e3, HELD);
    for (int i = 0; i < HELD; i++)
        comm_work_release(held[i]);
    free(held);
    CHECK_OK(comm_group_close(world));
}

static void a_deadline_ends_the_group(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.timeout_ms = 20;
    if (rank == 0) { /* loopback knows no deadlines, so this is the core's own, after its grace */
        CHECK_STATUS(comm_barrier(world, &options, NULL), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("barrier #1 on group 'world' (rank 0 of 3): timed out: not finished within 20 ms");
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("the group ended earlier: ");
        CHECK_STATUS(comm_group_status(world), COMM_ERR_DEADLINE);
    }
    CHECK_OK(comm_group_close(world));
}

static void coalescing_is_checked(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    comm_work *work = NULL;
    float value = 1;
    CHECK_STATUS(comm_coalesce_end(world, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_coalesce_cancel(world), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_STATUS(comm_coalesce_begin(world), COMM_ERR_INVALID);
    CHECK_STATUS(comm_barrier(world, NULL, &work), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("ret_work must be NULL");
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(value == 1); /* only written down */
    CHECK_OK(comm_coalesce_cancel(world));
    CHECK(comm_group_seq(world) == 0);
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_coalesce_end(world, NULL, &work)); /* an empty batch is done at once */
    CHECK_OK(comm_work_status(work));
    comm_work_release(work);
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < 20; i++)
        CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_coalesce_end(world, NULL, &work));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(strcmp(comm_work_op(work), "coalesced") == 0);
    comm_work_release(work);
    CHECK(comm_group_seq(world) == 20);
    CHECK_OK(comm_group_close(world));
}

/* A callback that submits: it must not run while the library holds a lock that it needs. */
static void chain(comm_work *work, comm_status status, void *context)
{
    comm_work *next;
    (void)work;
    if (status == COMM_OK && comm_barrier(context, NULL, &next) == COMM_OK)
        comm_work_release(next);
}

static void a_callback_may_submit(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    for (int i = 0; i < 50; i++) {
        comm_work *work;
        CHECK_OK(comm_barrier(world, NULL, &work));
        CHECK_OK(comm_work_on_complete(work, chain, world));
        CHECK_OK(comm_work_wait(work, 0));
        comm_work_release(work);
        while (comm_group_seq(world) < (uint64_t)(2 * i + 2))
            ; /* until the callback has submitted its own */
        CHECK_OK(comm_group_flush(world, 0));
    }
    CHECK_OK(comm_group_close(world));
}

static void let_go(comm_work *work, comm_status status, void *context)
{
    if (status == COMM_OK)
        atomic_fetch_add((atomic_int *)context, 1);
    comm_work_release(work);
}

/* Fire and forget: only the callback has the work. */
static void a_callback_may_release_its_work(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    atomic_int completed = 0;
    for (int i = 0; i < 50; i++) {
        comm_work *work;
        CHECK_OK(comm_barrier(world, NULL, &work));
        CHECK_OK(comm_work_on_complete(work, let_go, &completed));
        CHECK_OK(i % 2 ? comm_group_flush(world, 0) : comm_barrier(world, NULL, NULL));
    }
    while (atomic_load(&completed) < 50)
        ; /* a helper thread may be on its way to the last one */
    CHECK_OK(comm_group_close(world));
}

static int run(const struct ranks_options *how)
{
    return ranks_run(3, how, completion_is_told_once_in_every_way, NULL) ||
           ranks_run(2, how, an_unfinished_work_may_be_dropped, NULL) ||
           ranks_run(3, how, a_long_message_is_truncated_and_the_group_goes_on, NULL) ||
           ranks_run(3, how, a_callback_cannot_wait_nor_close, NULL) ||
           ranks_run(3, how, hooks_are_told_of_everything, NULL) ||
           ranks_run(3, how, a_hook_cannot_submit_wait_nor_close, NULL) ||
           ranks_run(3, how, a_work_answers_every_question, NULL) ||
           ranks_run(1, how, flush_waits_for_all_that_was_submitted, NULL) ||
           ranks_run(4, how, flush_waits_for_all_that_was_submitted, NULL) ||
           ranks_run(3, how, coalescing_is_checked, NULL) || ranks_run(3, how, a_callback_may_submit, NULL) ||
           ranks_run(3, how, a_callback_may_release_its_work, NULL);
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "works, loopback" };
    const struct ranks_options processes = { .limit_s = 60, .name = "works, tcp" };
    if (comm_backend_register(loopback_entry) != COMM_OK)
        return 1;
    backend = "cpu:loopback";
    if (run(&threads) || ranks_run(1, &threads, flush_does_not_look_at_finished_works, NULL) ||
        ranks_run(3, &threads, a_deadline_ends_the_group, NULL))
        return 1;
    backend = "cpu:tcp";
    return run(&processes);
}

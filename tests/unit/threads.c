/* Threads that wait, submit, call back, abort and close at the same time, and works that no thread waits for: on tcp,
 * with ranks as processes, where the test does not say otherwise. Most of what can go wrong here shows as a rank that
 * is killed when its time is over, or in a sanitizer's report. */
#include <comm/comm.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "loopback.h"
#include "ranks.h"
#include "waits.h"

/* ---- No thread waits ---- */

static void long_messages_travel_while_nobody_waits(int rank, int size, void *arg)
{
    enum { ROUNDS = 24 };
    const size_t bytes = 8 << 20;
    comm_group *world = ranks_world("tcp");
    (void)size, (void)arg;
    uint8_t *out = malloc(bytes), *in = malloc(bytes);
    CHECK(out && in);
    for (int i = 0; i < ROUNDS; i++) {
        comm_work *send, *recv;
        memset(out, rank + i, bytes);
        memset(in, 0xee, bytes);
        CHECK_OK(comm_recv(world, in, bytes, COMM_DTYPE_BYTE, 1 - rank, NULL, &recv));
        CHECK_OK(comm_send(world, out, bytes, COMM_DTYPE_BYTE, 1 - rank, NULL, &send));
        await_descriptor(recv);
        await_descriptor(send);
        CHECK(in[0] == (uint8_t)(1 - rank + i) && in[bytes - 1] == in[0]);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
    free(out);
    free(in);
}

/* ---- Many wait ---- */

enum { THREADS = 6, OPS = 600 };

static void reduce_once(comm_group *group, int async)
{
    float value[16];
    int32_t size = comm_group_size(group);
    for (int k = 0; k < 16; k++)
        value[k] = (float)(comm_group_rank(group) + k);
    comm_work *work = NULL;
    CHECK_OK(comm_all_reduce(group, value, value, 16, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, async ? &work : NULL));
    if (work)
        CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    for (int k = 0; k < 16; k++)
        CHECK(value[k] == (float)(size * (size - 1) / 2 + size * k));
}

static void *reduce_often(void *context)
{
    for (int i = 0; i < OPS; i++)
        reduce_once(context, i % 3 == 0);
    return NULL;
}

struct share {
    comm_work **works;
    int first;
};

static void *wait_for_share(void *context)
{
    struct share *share = context;
    for (int i = share->first; i < OPS; i += THREADS) {
        comm_status status = comm_work_wait(share->works[i], i % 2 ? 1 : 0); /* some give up before it is done */
        CHECK(status == COMM_OK || (i % 2 && status == COMM_ERR_TIMEOUT));
        CHECK_OK(comm_work_wait(share->works[i], 0));
    }
    return NULL;
}

static void threads_wait_each_for_its_own(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("tcp"), *groups[THREADS];
    pthread_t threads[THREADS];
    (void)rank, (void)size, (void)arg;
    for (int i = 0; i < THREADS; i++)
        CHECK_OK(comm_group_dup(world, NULL, &groups[i]));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, reduce_often, groups[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_OK(comm_group_close(groups[i]));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* Sends and receives, so that a rank's works can end in any order. */
static void threads_wait_for_works_of_one_group(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("tcp");
    comm_work *works[OPS];
    int32_t value[OPS];
    pthread_t threads[THREADS];
    struct share shares[THREADS];
    (void)size, (void)arg;
    for (int i = 0; i < OPS; i++) {
        comm_op_options tagged = COMM_OP_OPTIONS_INIT;
        tagged.tag = rank == 0 ? i : OPS - 1 - i;
        value[i] = rank == 0 ? i : -1;
        if (rank == 0)
            CHECK_OK(comm_send(world, &value[i], 1, COMM_DTYPE_I32, 1, &tagged, &works[i]));
        else
            CHECK_OK(comm_recv(world, &value[i], 1, COMM_DTYPE_I32, 0, &tagged, &works[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        shares[i] = (struct share){ works, i };
        CHECK(pthread_create(&threads[i], NULL, wait_for_share, &shares[i]) == 0);
    }
    for (int i = 0; i < OPS; i++) /* this thread submits meanwhile */
        reduce_once(world, i % 2);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < OPS; i++) {
        CHECK(value[i] == (rank == 0 ? i : OPS - 1 - i));
        comm_work_release(works[i]);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* ---- Close ---- */

struct late {
    atomic_int entered, closed, left;
};

static void dawdle(comm_work *work, comm_status status, void *context)
{
    struct late *late = context;
    (void)work, (void)status;
    atomic_store(&late->entered, 1);
    for (int i = 0; i < 100 && !atomic_load(&late->closed); i++)
        pause_ms(1);
    CHECK(!atomic_load(&late->closed));
    atomic_store(&late->left, 1);
}

static void close_waits_for_callbacks(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("tcp"), *group;
    struct late late = { 0 };
    comm_work *work;
    (void)size, (void)arg;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    if (rank == 0) {
        CHECK_OK(comm_recv(group, NULL, 0, COMM_DTYPE_BYTE, 1, NULL, &work));
        CHECK_OK(comm_work_on_complete(work, dawdle, &late));
        CHECK_OK(comm_barrier(world, NULL, NULL));
        while (!atomic_load(&late.entered)) /* in the helper thread: no other is there to complete it */
            sched_yield();
        comm_work_release(work);
    } else {
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_send(group, NULL, 0, COMM_DTYPE_BYTE, 0, NULL, NULL));
    }
    CHECK_OK(comm_group_close(group));
    atomic_store(&late.closed, 1);
    CHECK(rank != 0 || atomic_load(&late.left));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

struct forbidden {
    comm_group *world;
    comm_work *unfinished;
    atomic_int left;
};

static void try_to_wait(comm_work *work, comm_status status, void *context)
{
    struct forbidden *f = context;
    int32_t done;
    CHECK_OK(status);
    CHECK_OK(comm_work_wait(work, 0)); /* it is done: there is no wait */
    CHECK_STATUS(comm_work_wait(f->unfinished, 0), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("must not wait");
    CHECK_OK(comm_work_test(f->unfinished, &done));
    CHECK_STATUS(comm_barrier(f->world, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_monitored_barrier(f->world, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_flush(f->world, 0), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_close(f->world), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_begin(f->world));
    CHECK_STATUS(comm_coalesce_end(f->world, NULL, NULL), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_cancel(f->world));
    atomic_store(&f->left, 1);
}

static void callbacks_cannot_wait(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    struct forbidden f = { .world = ranks_world("tcp") };
    comm_op_options other = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    other.tag = 1;
    CHECK_OK(comm_recv(f.world, NULL, 0, COMM_DTYPE_BYTE, 1 - rank, &other, &f.unfinished));
    CHECK_OK(comm_recv(f.world, NULL, 0, COMM_DTYPE_BYTE, 1 - rank, NULL, &work));
    CHECK_OK(comm_work_on_complete(work, try_to_wait, &f));
    CHECK_OK(comm_send(f.world, NULL, 0, COMM_DTYPE_BYTE, 1 - rank, NULL, NULL));
    while (!atomic_load(&f.left))
        sched_yield();
    CHECK_OK(comm_barrier(f.world, NULL, NULL)); /* no number was used up */
    CHECK_OK(comm_send(f.world, NULL, 0, COMM_DTYPE_BYTE, 1 - rank, &other, NULL));
    CHECK_OK(comm_work_wait(f.unfinished, 0));
    comm_work_release(f.unfinished);
    comm_work_release(work);
    CHECK_OK(comm_barrier(f.world, NULL, NULL));
    CHECK_OK(comm_group_close(f.world));
}

/* The answers of rank 0 are sends that no thread waits for; it may close before the others have them. */
static void closing_may_follow_a_monitored_barrier_at_once(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:loopback");
    (void)rank, (void)size, (void)arg;
    for (int i = 0; i < 1500; i++) {
        comm_group *group;
        CHECK_OK(comm_group_dup(world, NULL, &group));
        CHECK_OK(comm_monitored_barrier(group, NULL));
        CHECK_OK(comm_group_close(group));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* ---- Abort ---- */

static void *abort_group(void *context)
{
    CHECK_OK(comm_group_abort(context, "enough"));
    return NULL;
}

/* A thread that is told of the abort may close the world when the thread that aborts is not back yet. */
static void closing_may_follow_an_abort_at_once(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    for (int i = 0; i < 40; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world;
        comm_work *work;
        pthread_t thread;
        options.backend = "tcp";
        CHECK_OK(ranks_init(&options, &world));
        CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, 0, NULL, &work));
        CHECK(pthread_create(&thread, NULL, abort_group, world) == 0);
        CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_ABORTED);
        CHECK_OK(comm_group_close(world));
        CHECK(strstr(comm_work_error(work), "enough"));
        comm_work_release(work);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

/* ---- All of it together ---- */

enum { CHAOS_NONE, CHAOS_ABORT, CHAOS_DEADLINE, CHAOS_END };
enum { CHAOS_OPS = 30, CHAOS_THREADS = 3 };

struct chaos {
    comm_group *group;
    int kind;
    uint32_t common, own; /* random numbers that are the same on all ranks, or not */
    atomic_int called, expected;
};

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void count_call(comm_work *work, comm_status status, void *context)
{
    (void)work, (void)status;
    atomic_fetch_add(&((struct chaos *)context)->called, 1);
}

static comm_status begin_any(struct chaos *c, float *data, comm_work **ret_work)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.timeout_ms = c->kind == CHAOS_DEADLINE ? 20 : 0;
    comm_status status, ended;
    switch (draw(&c->common) % 4) {
    case 0:
        return comm_barrier(c->group, &options, ret_work);
    case 1:
        return comm_broadcast(c->group, data, 100, COMM_DTYPE_F32, 0, &options, ret_work);
    case 2:
        return comm_all_reduce(c->group, data, data, 200, COMM_DTYPE_F32, COMM_REDOP_SUM, &options, ret_work);
    default:
        status = comm_coalesce_begin(c->group);
        if (status != COMM_OK)
            return status;
        status = comm_all_reduce(c->group, data, data, 10, COMM_DTYPE_F32, COMM_REDOP_SUM, &options, NULL);
        if (status == COMM_OK)
            status = comm_barrier(c->group, &options, NULL);
        ended = comm_coalesce_end(c->group, NULL, ret_work);
        return ended == COMM_OK ? COMM_OK : status == COMM_OK ? ended : status;
    }
}

/* Give the work away, or some other use of it. Returns 1 if the handle is kept. */
static int use_any(struct chaos *c, comm_work *work)
{
    int32_t done, fd;
    if (draw(&c->own) % 3 == 0) {
        atomic_fetch_add(&c->expected, 1);
        CHECK_OK(comm_work_on_complete(work, count_call, c));
    }
    switch (draw(&c->own) % 5) {
    case 0:
        comm_work_release(work);
        return 0;
    case 1:
        (void)comm_work_wait(work, 1);
        return 1;
    case 2:
        (void)comm_work_test(work, &done);
        return 1;
    case 3:
        CHECK_OK(comm_work_fd(work, &fd));
        return 1;
    default:
        return 1;
    }
}

static void *do_anything(void *context)
{
    struct chaos *c = context;
    static _Thread_local float data[CHAOS_OPS][200];
    comm_work *works[CHAOS_OPS];
    int kept = 0;
    if (c->kind == CHAOS_DEADLINE && comm_group_rank(c->group) == 1)
        pause_ms(40); /* longer than the others' operations may take */
    for (int i = 0; i < CHAOS_OPS; i++) {
        comm_status status = begin_any(c, data[i], &works[kept]);
        CHECK(status == COMM_OK || c->kind != CHAOS_NONE);
        if (status != COMM_OK)
            break;
        kept += use_any(c, works[kept]);
    }
    while (kept-- > 0) {
        comm_status status = draw(&c->own) % 2 ? comm_work_wait(works[kept], 0) : COMM_OK;
        CHECK(status == COMM_OK || c->kind != CHAOS_NONE);
        comm_work_release(works[kept]);
    }
    if (c->kind == CHAOS_NONE)
        CHECK_OK(comm_group_flush(c->group, 0));
    return NULL;
}

static void *abort_soon(void *context)
{
    pause_ms(1);
    return abort_group(context);
}

/* Ranks are threads here, each with several worlds one after the other and several threads in each. */
static void much_happens_at_once(int rank, int size, void *arg)
{
    const uint32_t seed = *(const uint32_t *)arg;
    for (int round = 0; round < 8 * CHAOS_END; round++) {
        comm_group *world = ranks_world("tcp");
        struct chaos chaos[CHAOS_THREADS] = { 0 };
        pthread_t threads[CHAOS_THREADS], aborts;
        int kind = round % CHAOS_END, i_abort = kind == CHAOS_ABORT && round / CHAOS_END % size == rank;
        for (int i = 0; i < CHAOS_THREADS; i++) {
            struct chaos *c = &chaos[i];
            c->kind = i == 1 ? kind : CHAOS_NONE; /* the other groups must not notice */
            c->common = seed + (uint32_t)(round * CHAOS_THREADS + i);
            c->own = c->common * 31 + (uint32_t)rank;
            CHECK_OK(comm_group_dup(world, NULL, &c->group));
        }
        for (int i = 0; i < CHAOS_THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, do_anything, &chaos[i]) == 0);
        if (i_abort)
            CHECK(pthread_create(&aborts, NULL, abort_soon, chaos[1].group) == 0);
        for (int i = 0; i < CHAOS_THREADS; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
        if (i_abort)
            CHECK(pthread_join(aborts, NULL) == 0);
        for (int i = 0; i < CHAOS_THREADS; i++) {
            CHECK_OK(comm_group_close(chaos[i].group));
            CHECK(atomic_load(&chaos[i].called) == atomic_load(&chaos[i].expected));
        }
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_group_close(world));
    }
}

int main(int count, char **arguments)
{
    const struct ranks_options options = { .limit_s = 60, .name = "threads" };
    const struct ranks_options loopback = { .threads = 1, .limit_s = 60, .name = "threads on loopback" };
    const struct ranks_options chaos = { .threads = 1, .limit_s = 60, .name = "threads: much at once" };
    uint32_t seed = count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : (uint32_t)time(NULL);
    printf("seed %u\n", seed);
    fflush(stdout);
    if (comm_backend_register(loopback_entry) != COMM_OK)
        return 1;
    return ranks_run(2, &options, long_messages_travel_while_nobody_waits, NULL) ||
           ranks_run(2, &options, threads_wait_each_for_its_own, NULL) ||
           ranks_run(2, &options, threads_wait_for_works_of_one_group, NULL) ||
           ranks_run(2, &options, close_waits_for_callbacks, NULL) ||
           ranks_run(2, &options, callbacks_cannot_wait, NULL) ||
           ranks_run(3, &loopback, closing_may_follow_a_monitored_barrier_at_once, NULL) ||
           ranks_run(1, &options, closing_may_follow_an_abort_at_once, NULL) ||
           ranks_run(3, &chaos, much_happens_at_once, &seed);
}

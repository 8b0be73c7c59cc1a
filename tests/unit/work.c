/* A work by itself: completed, abandoned, taken back, asked and let go of in every order, by one thread and by two.
 * The backend
 * completes nothing by itself. */
#include "core/work.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/group.h"
#include "keeper.h"
#include "ranks.h"

static comm_work *begin(comm_group *world)
{
    comm_work *work;
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK(keeper_take(0).work == work);
    return work;
}

static uint32_t references(comm_work *work)
{
    return atomic_load(&work->state) / WORK_REFERENCE;
}

/* The watchdog may hold a work for a moment, when it looks at it. */
static int comes_down_to(comm_work *work, int32_t count)
{
    while ((int32_t)references(work) > count)
        sched_yield();
    return (int32_t)references(work) == count;
}

static int is_readable(comm_work *work)
{
    int32_t fd;
    CHECK_OK(comm_work_fd(work, &fd));
    struct pollfd poller = { fd, POLLIN, 0 };
    return poll(&poller, 1, 0) == 1;
}

struct told {
    atomic_int times;
    comm_status status;
};

static void tell(comm_work *work, comm_status status, void *context)
{
    struct told *told = context;
    CHECK(comm_work_status(work) == status);
    told->status = status;
    told->times++;
}

/* ---- Every order ---- */

enum { COMPLETE, ABANDON, LISTEN, DESCRIPTOR, RELEASE, STEPS };

struct model {
    comm_work *work;
    struct told told;
    comm_status status; /* COMM_IN_PROGRESS until the first of COMPLETE and ABANDON */
    int listens, has_fd;
    uint32_t references;
};

static void step(struct model *m, int what)
{
    int first = m->status == COMM_IN_PROGRESS;
    if (what == COMPLETE) {
        m->status = first ? COMM_OK : m->status;
        m->references--;
        comm__work_complete(m->work, COMM_OK, NULL);
    } else if (what == ABANDON) {
        m->status = first ? COMM_ERR_TRUNCATED : m->status;
        CHECK(comm__work_abandon(m->work, COMM_ERR_TRUNCATED, "given up") == first);
    } else if (what == LISTEN) {
        m->listens = 1;
        CHECK_OK(comm_work_on_complete(m->work, tell, &m->told));
        CHECK_STATUS(comm_work_on_complete(m->work, tell, &m->told), COMM_ERR_INVALID);
    } else if (what == DESCRIPTOR) {
        m->has_fd = 1;
        CHECK(is_readable(m->work) == !first);
    } else {
        m->references--;
        comm_work_release(m->work);
    }
    int is_done = m->status != COMM_IN_PROGRESS;
    CHECK(m->told.times == (is_done && m->listens));
    CHECK(m->told.times == 0 || m->told.status == m->status);
    CHECK(comm__some_are_told() == (!is_done && (m->listens || m->has_fd)));
    if (m->references == 0)
        return;
    CHECK(comes_down_to(m->work, (int32_t)m->references));
    CHECK(comm_work_status(m->work) == m->status);
    CHECK((strstr(comm_work_error(m->work), "given up") != NULL) == (m->status == COMM_ERR_TRUNCATED));
    if (is_done)
        CHECK_STATUS(comm_work_wait(m->work, 0), m->status);
    else
        CHECK_STATUS(comm_work_wait(m->work, 1), COMM_ERR_TIMEOUT);
}

/* `retained`: one more reference, so that the steps may come after the release. */
static void play(comm_group *world, const int *order, int retained)
{
    struct model m = { .work = begin(world), .status = COMM_IN_PROGRESS, .references = 2 + (uint32_t)retained };
    if (retained)
        CHECK(comm_work_retain(m.work) == m.work);
    for (int i = 0; i < STEPS; i++)
        if (m.references > 0)
            step(&m, order[i]);
    if (retained) {
        CHECK(is_readable(m.work));
        comm_work_release(m.work);
    }
    CHECK(world->work_count == WORKS_AT_ONCE); /* it went back to the pool each time */
}

static void permute(comm_group *world, int *order, int from)
{
    if (from == STEPS) {
        play(world, order, 0);
        play(world, order, 1);
        return;
    }
    for (int i = from; i < STEPS; i++) {
        int given = order[from];
        order[from] = order[i];
        order[i] = given;
        permute(world, order, from + 1);
        order[i] = order[from];
        order[from] = given;
    }
}

static void every_order_of_steps(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    int order[STEPS] = { COMPLETE, ABANDON, LISTEN, DESCRIPTOR, RELEASE };
    permute(world, order, 0);
    CHECK_OK(comm_group_close(world));
}

/* ---- The completing side ---- */

static void a_second_completion_changes_nothing(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    for (int fails = 0; fails < 2; fails++) {
        comm_work *work = begin(world);
        comm_status first = fails ? COMM_ERR_TRUNCATED : COMM_OK, second = fails ? COMM_OK : COMM_ERR_TRUNCATED;
        comm__work_complete(work, first, fails ? "the first" : NULL);
        comm__work_complete(work, second, fails ? NULL : "the second");
        CHECK(comm_work_status(work) == first && comes_down_to(work, 1));
        CHECK((strstr(comm_work_error(work), "the first") != NULL) == fails);
        comm_work_release(work);
    }
    CHECK_OK(comm_group_close(world));
}

static void what_is_taken_back_is_done_and_the_backend_has_no_part(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    comm_work *work = begin(world);
    CHECK(comm__work_take_back(work, COMM_ERR_UNSUPPORTED) == 1);
    CHECK(comm_work_status(work) == COMM_ERR_UNSUPPORTED && comes_down_to(work, 1));
    CHECK(comm__work_take_back(work, COMM_ERR_UNSUPPORTED) == 0 && comes_down_to(work, 1));
    comm_work_release(work);
    work = begin(world);
    comm__work_complete(work, COMM_OK, NULL);
    CHECK(comm__work_take_back(work, COMM_ERR_UNSUPPORTED) == 0);
    CHECK(comm_work_status(work) == COMM_OK && comes_down_to(work, 1));
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

/* ---- Two threads ---- */

struct race {
    comm_work *work;
    pthread_barrier_t start;
    int turns;
};

static void *complete_many(void *context)
{
    struct race *race = context;
    for (int i = 0; i < race->turns; i++) {
        pthread_barrier_wait(&race->start);
        comm__work_complete(race->work, COMM_OK, NULL);
        pthread_barrier_wait(&race->start);
    }
    return NULL;
}

static void completion_meets_everything_else(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    struct race race = { .turns = 600 };
    pthread_t thread;
    CHECK(pthread_barrier_init(&race.start, NULL, 2) == 0);
    CHECK(pthread_create(&thread, NULL, complete_many, &race) == 0);
    for (int i = 0; i < race.turns; i++) {
        struct told told = { 0 };
        comm_work *work = race.work = begin(world);
        int abandoned = 0;
        pthread_barrier_wait(&race.start);
        if (i % 4 == 0)
            CHECK_OK(comm_work_wait(work, 0));
        else if (i % 4 == 1)
            CHECK_OK(comm_work_on_complete(work, tell, &told));
        else if (i % 4 == 2)
            abandoned = comm__work_abandon(work, COMM_ERR_TRUNCATED, "given up");
        else
            is_readable(work);
        pthread_barrier_wait(&race.start);
        CHECK(comm_work_status(work) == (abandoned ? COMM_ERR_TRUNCATED : COMM_OK));
        CHECK(comes_down_to(work, 1) && is_readable(work) && told.times == (i % 4 == 1));
        comm_work_release(work);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    pthread_barrier_destroy(&race.start);
    CHECK(!comm__some_are_told());
    CHECK(world->work_count == WORKS_AT_ONCE);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options how = { .threads = 1, .limit_s = 60, .name = "work" };
    if (comm_backend_register(keeper_entry) != COMM_OK)
        return 1;
    return ranks_run(1, &how, every_order_of_steps, NULL) ||
           ranks_run(1, &how, a_second_completion_changes_nothing, NULL) ||
           ranks_run(1, &how, what_is_taken_back_is_done_and_the_backend_has_no_part, NULL) ||
           ranks_run(1, &how, completion_meets_everything_else, NULL);
}

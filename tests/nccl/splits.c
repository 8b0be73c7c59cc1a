/* Communicators that NCCL makes of another one (from_parent=1, or for blocking=1). splits [BACKEND [CASE]]
 *
 * Groups that end meanwhile: NCCL still has the place where it writes the result, and the communicator that it makes it
 * of takes nothing else. The stand-in stops NCCL there. And groups of one parent that the ranks come to at different
 * times, in different orders, or not at all: none waits for what the parent alone would need, or meets another one. */
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "cases.h"

enum { COUNT = 3000, LARGE = 400000, LONG_MS = 20000, LOOK_US = 1000, WAITS_US = 300000, SHORT_MS = 1990 };

static struct {
    void (*stop)(const char *what);
    void (*go_on)(void);
    int (*stopped)(void);
} standin;

static void take(void *library, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol);
    memcpy(function, &symbol, bytes);
}

static comm_store *store;
static int meetings;

static void meet(int size)
{
    char key[40];
    snprintf(key, sizeof key, "meeting.%d", ++meetings);
    CHECK_OK(comm_store_barrier(store, key, size, LONG_MS));
}

/* All ranks have used the groups: the votes have left nothing. */
static void check_keys(int size)
{
    char **keys;
    size_t count;
    meet(size);
    CHECK_OK(comm_store_list_keys(store, &keys, &count));
    for (size_t i = 0; i < count; i++)
        if (strstr(keys[i], "/way.") || strstr(keys[i], "/from.") || strstr(keys[i], "/read."))
            ranks_fail(__FILE__, __LINE__, "%s is left in the store", keys[i]);
    comm_free(keys);
}

static void check_sum(comm_group *group)
{
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, comm_group_rank(group) + 1);
    CHECK_OK(comm_all_reduce(group, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
    CHECK_VECTOR(vector, COUNT, sum_of_ranks(comm_group_size(group)));
    gpu_memory_free(vector);
}

static void take_standin(void)
{
    void *cudart = dlopen(getenv("COMM_NCCL_CUDART"), RTLD_NOW | RTLD_LOCAL);
    CHECK(cudart);
    take(cudart, "standin_stop", &standin.stop, sizeof standin.stop);
    take(cudart, "standin_go_on", &standin.go_on, sizeof standin.go_on);
    take(cudart, "standin_stopped", &standin.stopped, sizeof standin.stopped);
}

/* 1: NCCL has stopped. 0: the operation is over, as a rank came so late that the ranks agreed on a unique id; all ranks
 * of the group see the same. */
static int is_stopped(const comm_work *work)
{
    while (standin.stopped() == 0) {
        if (comm_work_status(work) != COMM_IN_PROGRESS)
            return 0;
        usleep(LOOK_US);
    }
    return 1;
}

/* A group, and one made of it of which NCCL makes the communicator, and has stopped. */
struct family {
    comm_group *world, *parent, *child; /* NULL: this rank is not in the child */
    comm_work *work;                    /* of the child's first operation */
    int32_t *vector;
};

static void child_new(struct family *f, int is_shrink)
{
    enum { TRIES = 5 };
    comm_op_options o = on_gpu();
    const int32_t last = comm_group_size(f->parent) - 1;
    for (int turn = 0; turn < TRIES; turn++) {
        vector_fill(f->vector, COUNT, comm_group_rank(f->parent) + 1);
        if (is_shrink)
            CHECK_OK(comm_group_shrink(f->parent, &last, 1, NULL, &f->child));
        else
            CHECK_OK(comm_group_dup(f->parent, NULL, &f->child));
        CHECK_OK(comm_all_reduce(f->child, f->vector, f->vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &f->work));
        if (is_stopped(f->work))
            return;
        finish(f->work);
        CHECK_OK(comm_group_close(f->child));
    }
    ranks_fail(__FILE__, __LINE__, "the ranks have come together for none of %d groups in time", TRIES);
}

static struct family family_new(int rank, int size, int is_shrink)
{
    struct family f = { .world = cases_world(rank, "?from_parent=1") };
    take_standin();
    store = ranks_store();
    CHECK_OK(comm_group_dup(f.world, NULL, &f.parent));
    check_sum(f.parent);
    f.vector = vector_new(COUNT, rank + 1);
    meet(size);
    standin.stop("split");
    if (!is_shrink || rank != size - 1)
        child_new(&f, is_shrink);
    meet(size);
    return f;
}

static void abort_child(struct family *f)
{
    if (!f->child)
        return;
    comm_group_abort(f->child, "that is enough");
    CHECK_STATUS(comm_work_wait(f->work, LONG_MS), COMM_ERR_ABORTED);
    comm_work_release(f->work);
    CHECK_OK(comm_group_close(f->child));
}

static void family_free(struct family *f)
{
    gpu_memory_free(f->vector);
    CHECK_OK(comm_group_close(f->world));
    comm_store_close(store);
}

/* It ends, and is gone, while NCCL is stopped; what the parent is given meanwhile is done later. */
static void child_is_aborted(int rank, int size, int is_shrink)
{
    struct family f = family_new(rank, size, is_shrink);
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank + 1);
    comm_work *work;
    abort_child(&f);
    CHECK_OK(comm_all_reduce(f.parent, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
    standin.go_on();
    finish(work);
    CHECK_VECTOR(vector, COUNT, sum_of_ranks(size));
    check_sum(f.parent);
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(f.parent));
    family_free(&f);
}

/* NCCL is never told to go on: it leaves when the parent's communicator is aborted. */
static void both_end(int rank, int size, int is_shrink)
{
    struct family f = family_new(rank, size, is_shrink);
    abort_child(&f);
    if (rank == 0)
        comm_group_abort(f.parent, "that, too");
    CHECK_OK(comm_group_close(f.parent));
    family_free(&f);
}

/* With blocking=1 a group that is split connects without its parent. */
static int is_of_parent(int is_shrink)
{
    const char *blocking = getenv("COMM_NCCL_BLOCKING");
    return is_shrink || !blocking || strcmp(blocking, "1") != 0;
}

/* Its child, which needs it, ends with it. */
static void parent_is_closed(int rank, int size, int is_shrink)
{
    struct family f = family_new(rank, size, is_shrink);
    CHECK_OK(comm_group_close(f.parent));
    if (f.child && is_of_parent(is_shrink)) {
        CHECK_STATUS(comm_work_wait(f.work, LONG_MS), COMM_ERR_ABORTED);
        comm_work_release(f.work);
        CHECK_OK(comm_group_close(f.child));
    } else {
        abort_child(&f);
    }
    family_free(&f);
}

static void *close_it(void *group)
{
    gpu_thread();
    CHECK_OK(comm_group_close(group));
    return NULL;
}

/* It waits for a while, in which NCCL goes on: its child has what it needs. */
static void parent_is_closed_in_time(int rank, int size, int is_shrink)
{
    struct family f = family_new(rank, size, is_shrink);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, close_it, f.parent) == 0);
    standin.go_on();
    if (f.child) {
        int members = comm_group_size(f.child);
        finish(f.work);
        CHECK_VECTOR(f.vector, COUNT, sum_of_ranks(members));
        check_sum(f.child);
    }
    pthread_join(thread, NULL);
    CHECK_OK(comm_group_close(f.child));
    family_free(&f);
}

static void *go_on_later(void *none)
{
    usleep(WAITS_US);
    standin.go_on();
    return none;
}

static void capture(comm_group *group, cuda_stream stream, int32_t *vector)
{
    comm_op_options o = on_stream(stream);
    cuda_graph graph;
    CHECK_CUDA(gpu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
    CHECK_OK(comm_all_reduce(group, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
    CHECK_CUDA(gpu.StreamEndCapture(stream, &graph));
    CHECK_CUDA(gpu.GraphDestroy(graph));
}

/* A capture on it is not refused, but waits; also for what was queued before. */
static void parent_is_captured(int rank, int size, int is_shrink)
{
    struct family f = family_new(rank, size, is_shrink);
    comm_op_options o = on_gpu();
    cuda_stream stream = gpu_stream();
    int32_t *vector = vector_new(COUNT, rank + 1);
    comm_work *work;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, go_on_later, NULL) == 0);
    if (!f.child) /* NCCL may need the others to begin with the operation */
        capture(f.parent, stream, vector);
    CHECK_OK(comm_all_reduce(f.parent, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
    if (f.child)
        capture(f.parent, stream, vector);
    pthread_join(thread, NULL);
    finish(work);
    CHECK_VECTOR(vector, COUNT, sum_of_ranks(size));
    if (f.child) {
        finish(f.work);
        check_sum(f.child);
    }
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(f.child));
    CHECK_OK(comm_group_close(f.parent));
    family_free(&f);
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

#define CASE(name)                                                                                                     \
    static void name##_split(int rank, int size, void *arg)                                                            \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        name(rank, size, 0);                                                                                           \
    }                                                                                                                  \
    static void name##_shrink(int rank, int size, void *arg)                                                           \
    {                                                                                                                  \
        (void)arg;                                                                                                     \
        name(rank, size, 1);                                                                                           \
    }
CASE(child_is_aborted)
CASE(both_end)
CASE(parent_is_closed)
CASE(parent_is_closed_in_time)
CASE(parent_is_captured)

/* ---- Groups of one parent ---- */

/* Their first operations are under way at once, on some ranks in the other order. */
static void children_at_once(int rank, int size, void *arg)
{
    enum { TRIES = 6, CHILDREN = 3 };
    comm_group *world = cases_world(rank, "?from_parent=1"), *children[CHILDREN];
    comm_op_options o = on_gpu();
    (void)arg;
    comm_work *works[CHILDREN];
    int32_t *vectors[CHILDREN];
    store = ranks_store();
    check_sum(world);
    for (int turn = 0; turn < TRIES; turn++) {
        for (int i = 0; i < CHILDREN; i++) {
            CHECK_OK(comm_group_dup(world, NULL, &children[i]));
            vectors[i] = vector_new(COUNT, (rank + 1) * (i + 1));
        }
        for (int i = 0; i < CHILDREN; i++) {
            int k = (rank + turn) % 2 ? CHILDREN - 1 - i : i;
            CHECK_OK(comm_all_reduce(children[k], vectors[k], vectors[k], COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o,
                                     &works[k]));
        }
        for (int i = 0; i < CHILDREN; i++) {
            finish(works[i]);
            CHECK_VECTOR(vectors[i], COUNT, sum_of_ranks(size) * (i + 1));
            gpu_memory_free(vectors[i]);
            CHECK_OK(comm_group_close(children[i]));
        }
        check_sum(world);
    }
    check_keys(size);
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

/* The halves of a group are made of it by one call, and are two groups. */
static void halves(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, "?from_parent=1"), *half, *list, *twin;
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank + 1), order[] = { 2, 0, 3, 1 };
    const size_t counts[] = { 3, 1 };
    comm_work *work;
    (void)arg;
    take_standin();
    store = ranks_store();
    check_sum(world);
    CHECK_OK(comm_group_dup(world, NULL, &twin)); /* before another call on some ranks */
    if (rank % 2)
        check_sum(twin);
    CHECK_OK(comm_group_subgroups(world, 2, NULL, &half));
    if (rank % 2 == 0)
        check_sum(twin);
    standin.stop("split");
    CHECK_OK(comm_all_reduce(half, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
    is_stopped(work);
    standin.go_on();
    finish(work);
    CHECK_VECTOR(vector, COUNT, rank < 2 ? 3 : 7);
    CHECK_OK(comm_group_subgroups_list(world, order, counts, 2, NULL, &list));
    CHECK(comm_group_size(list) == (rank == 1 ? 1 : 3));
    check_sum(list);
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(list));
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(twin));
    check_keys(size);
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

/* Only the ranks of one half use it, with a limit that is shorter than they would vote for. */
static void half_stays_away(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, "?from_parent=1"), *half;
    (void)arg;
    store = ranks_store();
    check_sum(world);
    CHECK_OK(comm_group_subgroups(world, 2, NULL, &half));
    if (rank < 2) {
        comm_op_options o = on_gpu();
        int32_t *vector = vector_new(COUNT, rank + 1);
        o.timeout_ms = SHORT_MS;
        CHECK_OK(comm_all_reduce(half, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
        CHECK_VECTOR(vector, COUNT, 3);
        gpu_memory_free(vector);
    }
    meet(size);
    if (rank >= 2)
        check_sum(half);
    check_sum(world);
    CHECK_OK(comm_group_close(half));
    check_keys(size);
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

/* One rank comes to the child first, and waits for the others there when it goes on with the parent; the others come to
 * an operation of the parent's first, of a kind that NCCL has to connect. */
static void parent_goes_on(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, "?from_parent=1"), *child;
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank + 1), *large = vector_new(LARGE, rank + 1);
    comm_work *work = NULL;
    (void)arg;
    store = ranks_store();
    check_sum(world);
    CHECK_OK(comm_group_dup(world, NULL, &child));
    if (rank == 0) {
        CHECK_OK(comm_all_reduce(child, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
        usleep(WAITS_US);
    }
    CHECK_OK(comm_all_reduce(world, large, large, LARGE, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
    if (rank != 0)
        CHECK_OK(comm_all_reduce(child, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
    finish(work);
    CHECK_VECTOR(vector, COUNT, sum_of_ranks(size));
    CHECK_VECTOR(large, LARGE, sum_of_ranks(size));
    gpu_memory_free(vector);
    gpu_memory_free(large);
    CHECK_OK(comm_group_close(child));
    check_keys(size);
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

/* One rank has voted on the child, and captures operations of the parent. */
static void parent_is_captured_in_a_vote(int rank, int size, void *arg)
{
    enum { TRIES = 4 };
    comm_group *world = cases_world(rank, "?from_parent=1"), *child;
    comm_op_options o = on_gpu();
    cuda_stream stream = gpu_stream();
    int32_t *vector = vector_new(COUNT, 0);
    comm_work *work;
    (void)arg;
    check_sum(world);
    for (int turn = 0; turn < TRIES; turn++) {
        vector_fill(vector, COUNT, rank + 1);
        CHECK_OK(comm_group_dup(world, NULL, &child));
        if (rank != turn % size)
            capture(world, stream, vector);
        CHECK_OK(comm_all_reduce(child, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
        if (rank == turn % size) {
            usleep(WAITS_US);
            capture(world, stream, vector);
        }
        finish(work);
        CHECK_VECTOR(vector, COUNT, sum_of_ranks(size));
        CHECK_OK(comm_group_close(child));
    }
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* The ranks come to the child at different places in the order of the parent's operations. */
static void parent_is_behind(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, "?from_parent=1"), *child;
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank + 1);
    comm_work *work;
    (void)arg;
    store = ranks_store();
    check_sum(world);
    CHECK_OK(comm_group_dup(world, NULL, &child));
    if (rank == 0)
        check_sum(child);
    CHECK_OK(comm_all_reduce(world, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
    if (rank != 0)
        check_sum(child);
    finish(work);
    CHECK_VECTOR(vector, COUNT, sum_of_ranks(size));
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(child));
    check_keys(size);
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

/* One rank closes the parent before its child connects, and one while it does. */
static void parent_is_closed_early(int rank, int size, void *arg)
{
    comm_group *world = cases_world(rank, "?from_parent=1"), *parent, *child;
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, rank + 1);
    comm_work *work;
    (void)arg;
    store = ranks_store();
    for (int turn = 0; turn < 2; turn++) {
        vector_fill(vector, COUNT, rank + 1);
        CHECK_OK(comm_group_dup(world, NULL, &parent));
        check_sum(parent);
        CHECK_OK(comm_group_dup(parent, NULL, &child));
        if (rank == turn)
            CHECK_OK(comm_group_close(parent));
        meet(size);
        CHECK_OK(comm_all_reduce(child, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &work));
        if (rank == 1 - turn)
            CHECK_OK(comm_group_close(parent));
        finish(work);
        CHECK_VECTOR(vector, COUNT, sum_of_ranks(size));
        CHECK_OK(comm_group_close(child));
        if (rank > 1)
            CHECK_OK(comm_group_close(parent));
    }
    gpu_memory_free(vector);
    check_keys(size);
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

static void *connect_and_close(void *group)
{
    gpu_thread();
    CHECK_STATUS(comm_group_connect(group, gpu_device(), LONG_MS), COMM_ERR_ABORTED);
    return close_it(group);
}

/* By two threads, of a rank that has voted on the child, and both have ended: the vote goes on for a moment. */
static void both_are_closed_at_once(int rank, int size, void *arg)
{
    enum { TRIES = 6, VOTES_US = 50000, AFTER_US = 1000 };
    comm_group *world = cases_world(rank, "?from_parent=1"), *parent, *child;
    pthread_t thread;
    (void)arg;
    store = ranks_store();
    for (int turn = 0; turn < TRIES; turn++) {
        CHECK_OK(comm_group_dup(world, NULL, &parent));
        check_sum(parent);
        CHECK_OK(comm_group_dup(parent, NULL, &child));
        meet(size);
        if (rank == 0) {
            CHECK(pthread_create(&thread, NULL, connect_and_close, child) == 0);
            usleep(VOTES_US);
            comm_group_abort(parent, "that is enough");
            comm_group_abort(child, "that, too");
            usleep(AFTER_US);
        } else {
            CHECK_OK(comm_group_close(child));
        }
        CHECK_OK(comm_group_close(parent));
        if (rank == 0)
            pthread_join(thread, NULL);
    }
    CHECK_OK(comm_group_close(world));
    comm_store_close(store);
}

static const struct nccl_case cases[] = {
    { "child aborted in a split", child_is_aborted_split, 3 },
    { "child aborted in a shrink", child_is_aborted_shrink, 3 },
    { "both end in a split", both_end_split, 3 },
    { "both end in a shrink", both_end_shrink, 3 },
    { "parent closed in a split", parent_is_closed_split, 3 },
    { "parent closed in a shrink", parent_is_closed_shrink, 3 },
    { "parent closed in time for a split", parent_is_closed_in_time_split, 3 },
    { "parent closed in time for a shrink", parent_is_closed_in_time_shrink, 3 },
    { "parent captured in a split", parent_is_captured_split, 3 },
    { "parent captured in a shrink", parent_is_captured_shrink, 3 },
    { "children at once", children_at_once, 3 },
    { "halves", halves, 4 },
    { "a half stays away", half_stays_away, 4 },
    { "the parent goes on", parent_goes_on, 3 },
    { "the parent is captured in a vote", parent_is_captured_in_a_vote, 3 },
    { "the parent is behind", parent_is_behind, 3 },
    { "both closed at once", both_are_closed_at_once, 3 },
    { "parent closed early", parent_is_closed_early, 3 },
};

int main(int argc, char **argv)
{
    if (cases_on_standin())
        return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
    printf("skipped: NCCL does not stop where it is wanted\n");
    return 77;
}

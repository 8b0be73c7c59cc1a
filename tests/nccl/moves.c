/* Messages, batches, groups and memory on GPUs. Usage: moves [BACKEND [CASE]]. */
#include "cases.h"

enum { COUNT = 3000, LARGE = 400000, RANKS_MAX = 8 };

/* Every rank sends to all others and receives from all, large messages, with works in different orders. */
static void messages_in_both_directions(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *in[RANKS_MAX], *out = vector_new(LARGE, rank + 1);
    comm_work *works[2 * RANKS_MAX];
    int count = 0;
    for (int turn = 1; turn < size; turn++)
        CHECK_OK(comm_send(world, out, LARGE, COMM_DTYPE_I32, (rank + turn) % size, &o, &works[count++]));
    for (int peer = 0; peer < size; peer++) {
        in[peer] = vector_new(LARGE, -1);
        if (peer != rank)
            CHECK_OK(comm_recv(world, in[peer], LARGE, COMM_DTYPE_I32, peer, &o, &works[count++]));
    }
    while (count > 0)
        finish(works[--count]);
    for (int peer = 0; peer < size; peer++) {
        CHECK_VECTOR(in[peer], LARGE, peer == rank ? -1 : peer + 1);
        gpu_memory_free(in[peer]);
    }
    gpu_memory_free(out);
    CHECK_OK(comm_group_close(world));
}

/* Messages of a pair are received in the order in which they were sent; a ring of batches cannot block. */
static void messages_keep_their_order(int rank, int size, void *arg)
{
    enum { MESSAGES = 5 };
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *out[MESSAGES], *in[MESSAGES];
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < MESSAGES; i++) {
        out[i] = vector_new(COUNT, rank * 100 + i);
        in[i] = vector_new(COUNT, -1);
        CHECK_OK(comm_send(world, out[i], COUNT, COMM_DTYPE_I32, next, &o, NULL));
        CHECK_OK(comm_recv(world, in[i], COUNT, COMM_DTYPE_I32, before, &o, NULL));
    }
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    for (int i = 0; i < MESSAGES; i++) {
        CHECK_VECTOR(in[i], COUNT, before * 100 + i);
        gpu_memory_free(in[i]);
        gpu_memory_free(out[i]);
    }
    CHECK_OK(comm_group_close(world));
}

/* Nobody receives before all have sent: a call that waits for the receiver hangs. A message of nothing connects no
 * ranks, so the one after it is the first that could wait. */
static void something_follows_nothing(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *out = vector_new(COUNT, rank + 1), *in = vector_new(COUNT, -1);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (size_t count = 0; count <= COUNT; count += COUNT) {
        comm_work *works[2];
        CHECK_OK(comm_send(world, out, count, COMM_DTYPE_I32, next, &o, &works[0]));
        CHECK_OK(comm_recv(world, in, count, COMM_DTYPE_I32, before, &o, &works[1]));
        finish(works[0]);
        finish(works[1]);
    }
    CHECK_VECTOR(in, COUNT, before + 1);
    gpu_memory_free(in);
    gpu_memory_free(out);
    CHECK_OK(comm_group_close(world));
}

/* The messages of a batch cannot block each other, in one stream either. */
static void batch_in_a_stream(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream);
    int32_t *out = vector_new(LARGE, 0), *in = vector_new(LARGE, -1);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int turn = 0; turn < 3; turn++) {
        vector_fill(out, LARGE, rank * 10 + turn);
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_send(world, out, LARGE, COMM_DTYPE_I32, next, &o, NULL));
        CHECK_OK(comm_recv(world, in, LARGE, COMM_DTYPE_I32, before, &o, NULL));
        CHECK_OK(comm_coalesce_end(world, NULL, NULL));
        CHECK_CUDA(gpu.StreamSynchronize(stream));
        CHECK_VECTOR(in, LARGE, before * 10 + turn);
    }
    gpu_memory_free(in);
    gpu_memory_free(out);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* Collectives and messages of one batch, in one stream: what depends on the stream alone sees all of them. */
static void mixed_batch_in_a_stream(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream);
    int32_t *out = vector_new(LARGE, 0), *in = vector_new(LARGE, -1);
    int32_t *sum = vector_new(LARGE, 0), *most = vector_new(COUNT, 0);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int turn = 0; turn < 4; turn++) {
        vector_fill(out, LARGE, rank * 10 + turn);
        vector_fill(sum, LARGE, rank + 1);
        vector_fill(most, COUNT, rank + turn);
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_recv(world, in, LARGE, COMM_DTYPE_I32, before, &o, NULL));
        CHECK_OK(comm_all_reduce(world, sum, sum, LARGE, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
        CHECK_OK(comm_send(world, out, LARGE, COMM_DTYPE_I32, next, &o, NULL));
        CHECK_OK(comm_all_reduce(world, most, most, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL));
        CHECK_OK(comm_coalesce_end(world, NULL, NULL));
        CHECK_OK(comm_all_reduce(world, sum, sum, LARGE, COMM_DTYPE_I32, COMM_REDOP_MIN, &o, NULL)); /* after them */
        CHECK_CUDA(gpu.StreamSynchronize(stream));
        CHECK_VECTOR(in, LARGE, before * 10 + turn);
        CHECK_VECTOR(sum, LARGE, sum_of_ranks(size));
        CHECK_VECTOR(most, COUNT, size - 1 + turn);
    }
    gpu_memory_free(in);
    gpu_memory_free(out);
    gpu_memory_free(sum);
    gpu_memory_free(most);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* Not a batch: they run in the order of the calls, also while the first ones are not enqueued yet. The message to this
 * rank itself is copied after the sum, and the next sum comes after the copy. */
static void order_in_a_stream(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream);
    int32_t *sum = vector_new(LARGE, 0), *copy = vector_new(LARGE, -1), *in = vector_new(LARGE, -1);
    int next = (rank + 1) % size, before = (rank + size - 1) % size, first = sum_of_ranks(size);
    comm_work *works[6];
    for (int turn = 0; turn < 4; turn++) {
        vector_fill(sum, LARGE, rank + 1);
        CHECK_OK(comm_all_reduce(world, sum, sum, LARGE, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &works[0]));
        CHECK_OK(comm_send(world, sum, LARGE, COMM_DTYPE_I32, rank, &o, &works[1]));
        CHECK_OK(comm_recv(world, copy, LARGE, COMM_DTYPE_I32, rank, &o, &works[2]));
        CHECK_OK(comm_all_reduce(world, copy, sum, LARGE, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &works[3]));
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_send(world, sum, LARGE, COMM_DTYPE_I32, next, &o, NULL));
        CHECK_OK(comm_recv(world, in, LARGE, COMM_DTYPE_I32, before, &o, NULL));
        CHECK_OK(comm_coalesce_end(world, NULL, &works[4]));
        CHECK_OK(comm_all_reduce(world, in, in, LARGE, COMM_DTYPE_I32, COMM_REDOP_MIN, &o, &works[5]));
        for (int i = 0; i < 6; i++)
            finish(works[i]);
        CHECK_CUDA(gpu.StreamSynchronize(stream));
        CHECK_VECTOR(copy, LARGE, first);
        CHECK_VECTOR(in, LARGE, first * size);
    }
    gpu_memory_free(sum);
    gpu_memory_free(copy);
    gpu_memory_free(in);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* group_batches=1: the collectives of a batch are one NCCL group. */
static void batch_as_one_group(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, "?group_batches=1");
    comm_op_options o = on_gpu();
    int32_t *sum = vector_new(LARGE, rank + 1), *most = vector_new(COUNT, rank), *all = vector_new(COUNT * size, -1);
    for (int turn = 0; turn < 2; turn++) {
        vector_fill(sum, LARGE, rank + 1);
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_all_reduce(world, sum, sum, LARGE, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
        CHECK_OK(comm_all_reduce(world, most, most, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL));
        CHECK_OK(comm_all_gather(world, most, all, COUNT, COMM_DTYPE_I32, &o, NULL));
        CHECK_OK(comm_coalesce_end(world, NULL, NULL));
        CHECK_VECTOR(sum, LARGE, sum_of_ranks(size));
        CHECK_VECTOR(most, COUNT, size - 1);
    }
    gpu_memory_free(sum);
    gpu_memory_free(most);
    gpu_memory_free(all);
    CHECK_OK(comm_group_close(world));
}

/* It is seen by a call of NCCL's that fails: one by one, no collective of these would begin a group. */
static void batch_begins_a_group(int rank, int size, void *arg)
{
    bool can_fail = cases_on_standin();
    (void)arg, (void)size;
    setenv("STANDIN_FAIL", "ncclGroupStart:1:3", 1);
    for (int one = 0; one < 2; one++) {
        comm_group *world = cases_world(rank, one ? "?group_batches=1" : NULL);
        comm_op_options o = on_gpu();
        int32_t *sum = vector_new(COUNT, rank + 1);
        /* The other rank may fail at any moment. */
        comm_status status = comm_all_reduce(world, sum, sum, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL);
        if (status == COMM_OK)
            status = comm_coalesce_begin(world);
        if (status == COMM_OK)
            status = comm_all_reduce(world, sum, sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL);
        if (status == COMM_OK)
            status = comm_barrier(world, &o, NULL);
        if (status == COMM_OK)
            status = comm_coalesce_end(world, NULL, NULL);
        CHECK((status != COMM_OK) == (one && can_fail));
        CHECK_OK(comm_group_close(world));
        gpu_memory_free(sum);
    }
    unsetenv("STANDIN_FAIL");
}

/* To this rank itself, in either order. */
static void messages_to_oneself(int rank, int size, void *arg)
{
    (void)arg, (void)size;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *out = vector_new(COUNT, rank + 7), *in = vector_new(COUNT, -1);
    comm_work *send, *recv;
    for (int turn = 0; turn < 4; turn++) {
        vector_fill(out, COUNT, rank + turn);
        if (turn % 2)
            CHECK_OK(comm_send(world, out, COUNT, COMM_DTYPE_I32, rank, &o, &send));
        CHECK_OK(comm_recv(world, in, COUNT, COMM_DTYPE_I32, rank, &o, &recv));
        if (turn % 2 == 0)
            CHECK_OK(comm_send(world, out, COUNT, COMM_DTYPE_I32, rank, &o, &send));
        CHECK_OK(comm_work_wait(recv, 0));
        CHECK(comm_work_source_rank(recv) == rank && comm_work_received_count(recv) == COUNT);
        comm_work_release(recv);
        finish(send);
        CHECK_VECTOR(in, COUNT, rank + turn);
    }
    gpu_memory_free(in);
    gpu_memory_free(out);
    CHECK_OK(comm_group_close(world));
}

/* From one of its devices to another: what follows in the receiver's stream comes after the copy. */
static void messages_between_own_devices(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options here = on_gpu(), there;
    comm_work *send, *recv;
    int other = (rank + size) % gpu_count();
    for (int turn = 0; turn < 4 && comm_device_at(COMM_DEVICE_CUDA, other) != here.device; turn++) {
        int32_t *out = vector_new(LARGE, rank + turn), *in;
        CHECK_CUDA(gpu.SetDevice(other));
        cuda_stream stream = gpu_stream();
        in = vector_new(LARGE, -1);
        there = on_stream(stream);
        there.device = comm_device_at(COMM_DEVICE_CUDA, other);
        gpu_thread();
        if (turn % 2)
            CHECK_OK(comm_send(world, out, LARGE, COMM_DTYPE_I32, rank, &here, &send));
        CHECK_OK(comm_recv(world, in, LARGE, COMM_DTYPE_I32, rank, &there, &recv));
        if (turn % 2 == 0)
            CHECK_OK(comm_send(world, out, LARGE, COMM_DTYPE_I32, rank, &here, &send));
        finish(recv);
        CHECK_CUDA(gpu.StreamSynchronize(stream));
        CHECK_VECTOR(in, LARGE, rank + turn);
        finish(send);
        CHECK_CUDA(gpu.StreamDestroy(stream));
        gpu_memory_free(in);
        gpu_memory_free(out);
    }
    CHECK_OK(comm_group_close(world));
}

/* Each rank takes any form of a gather or a scatter. */
static void forms_meet(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *one = vector_new(COUNT, 0), *all = vector_new((size_t)size * COUNT, -1);
    size_t counts[RANKS_MAX];
    for (int r = 0; r < size; r++)
        counts[r] = COUNT;
    for (int turn = 0; turn < 2 * size; turn++) {
        int root = turn % size;
        vector_fill(one, COUNT, rank + turn);
        if ((rank + turn / size) % 2)
            CHECK_OK(comm_gather_v(world, one, COUNT, all, counts, NULL, COMM_DTYPE_I32, root, &o, NULL));
        else
            CHECK_OK(comm_gather(world, one, all, COUNT, COMM_DTYPE_I32, root, &o, NULL));
        for (int r = 0; r < size && rank == root; r++)
            CHECK_VECTOR(all + (size_t)r * COUNT, COUNT, r + turn);
        if ((rank + turn / size) % 2)
            CHECK_OK(comm_scatter(world, all, one, COUNT, COMM_DTYPE_I32, root, &o, NULL));
        else
            CHECK_OK(comm_scatter_v(world, all, counts, NULL, one, COUNT, COMM_DTYPE_I32, root, &o, NULL));
        CHECK_VECTOR(one, COUNT, rank + turn);
    }
    gpu_memory_free(one);
    gpu_memory_free(all);
    CHECK_OK(comm_group_close(world));
}

/* Tags and COMM_ANY_SOURCE are refused with the way out. */
static void tags_are_refused(int rank, int size, void *arg)
{
    (void)arg, (void)size;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(1, 0);
    comm_work *work = NULL;
    o.tag = 3;
    CHECK_STATUS(comm_send(world, vector, 1, COMM_DTYPE_I32, 0, &o, &work), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("cpu:tcp");
    o.tag = 0;
    CHECK_STATUS(comm_recv(world, vector, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, &o, &work), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("COMM_ANY_SOURCE");
    CHECK_OK(comm_all_reduce(world, vector, vector, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
}

/* In place, so with scratch memory, which grows while smaller operations are under way. */
static void all_to_all_in_place(int rank, int size, void *arg)
{
    enum { TURNS = 8 };
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t *vectors[TURNS];
    comm_work *works[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        size_t block = (size_t)100 << turn << (turn > 4 ? 4 : 0);
        vectors[turn] = gpu_memory(block * (size_t)size * sizeof(int32_t));
        for (int to = 0; to < size; to++)
            vector_fill(vectors[turn] + (size_t)to * block, block, rank * 10 + to + turn);
        CHECK_OK(comm_all_to_all(world, vectors[turn], vectors[turn], block, COMM_DTYPE_I32, &o, &works[turn]));
    }
    for (int turn = TURNS - 1; turn >= 0; turn--) {
        size_t block = (size_t)100 << turn << (turn > 4 ? 4 : 0);
        finish(works[turn]);
        for (int from = 0; from < size; from++)
            CHECK_VECTOR(vectors[turn] + (size_t)from * block, block, from * 10 + rank + turn);
        gpu_memory_free(vectors[turn]);
    }
    CHECK_OK(comm_group_close(world));
}

/* Memory of the backend's and memory of ours, known to it before and after the ranks are connected. */
static void use_memory(comm_group *world, int before_connect, int expect_windows)
{
    comm_op_options o = on_gpu();
    comm_memory *pieces[2];
    int32_t *own = vector_new(COUNT, 0);
    void *given;
    int rank = comm_group_rank(world), size = comm_group_size(world);
    if (!before_connect)
        CHECK_OK(comm_group_connect(world, gpu_device(), 0));
    comm_status status = comm_mem_alloc(world, COUNT * sizeof *own, gpu_device(), &given, &pieces[0]);
    if (expect_windows && status == COMM_ERR_UNSUPPORTED) { /* an older NCCL, or calls that block */
        CHECK_ERROR_SAYS(getenv("COMM_NCCL_BLOCKING") ? "blocking=0" : "2.27.3");
        gpu_memory_free(own);
        return;
    }
    if (before_connect && expect_windows) {
        CHECK_STATUS(status, COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("comm_group_connect");
        gpu_memory_free(own);
        return;
    }
    CHECK_OK(status);
    if (expect_windows)
        pieces[1] = NULL; /* plain memory makes no window */
    else
        CHECK_OK(comm_mem_register(world, own, COUNT * sizeof *own, gpu_device(), &pieces[1]));
    for (int turn = 0; turn < 3; turn++) {
        vector_fill(own, COUNT, rank + 1);
        vector_fill(given, COUNT, -1);
        CHECK_OK(comm_all_reduce(world, own, given, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
        CHECK_VECTOR(given, COUNT, sum_of_ranks(size));
    }
    CHECK_OK(comm_mem_release(pieces[0]));
    CHECK_OK(comm_mem_release(pieces[1]));
    gpu_memory_free(own);
}

static void registered_memory(int rank, int size, void *arg)
{
    (void)arg, (void)size;
    comm_group *world = cases_world(rank, NULL);
    comm_memory *left;
    int32_t *own = vector_new(COUNT, 0);
    use_memory(world, 1, 0);
    use_memory(world, 0, 0);
    CHECK_OK(comm_mem_register(world, own, COUNT * sizeof *own, gpu_device(), &left)); /* closing releases it */
    CHECK_OK(comm_group_close(world));
    gpu_memory_free(own);
}

static void windows(int rank, int size, void *arg)
{
    (void)arg, (void)size;
    comm_group *world = cases_world(rank, "?windows=1");
    use_memory(world, 1, 1);
    use_memory(world, 0, 1);
    use_memory(world, 0, 1);
    CHECK_OK(comm_group_close(world));
}

/* It ends the group everywhere: the window that this rank makes next would meet the one that the others make now. */
static void window_fails_on_one_rank(int rank, int size, void *arg)
{
    (void)arg;
    if (!cases_on_standin())
        return;
    if (rank == 1)
        setenv("STANDIN_FAIL", "ncclCommWindowRegister:1:3", 1);
    comm_group *world = cases_world(rank, "?windows=1");
    comm_store *store = ranks_store();
    comm_memory *piece;
    void *given;
    CHECK_OK(comm_group_connect(world, gpu_device(), 0));
    CHECK_OK(comm_store_barrier(store, "connected", size, 20000));
    comm_store_close(store);
    comm_status status = comm_mem_alloc(world, COUNT, gpu_device(), &given, &piece);
    if (status != COMM_ERR_UNSUPPORTED) {
        CHECK(status == COMM_ERR_BACKEND);
        CHECK_ERROR_SAYS("windows would not match");
        CHECK_STATUS(comm_mem_alloc(world, COUNT, gpu_device(), &given, &piece), COMM_ERR_BACKEND);
    }
    CHECK_OK(comm_group_close(world));
    unsetenv("STANDIN_FAIL");
}

/* So it is if the rank has come to no window, as its memory cannot be one. */
static void window_is_refused_on_one_rank(int rank, int size, void *arg)
{
    static int32_t of_cpu[COUNT];
    (void)arg;
    comm_group *world = cases_world(rank, "?windows=1");
    comm_store *store = ranks_store();
    comm_memory *piece;
    void *given;
    CHECK_OK(comm_group_connect(world, gpu_device(), 0));
    CHECK_OK(comm_store_barrier(store, "connected", size, 20000));
    comm_store_close(store);
    comm_status status = rank == 1 ? comm_mem_register(world, of_cpu, sizeof of_cpu, gpu_device(), &piece)
                                   : comm_mem_alloc(world, COUNT, gpu_device(), &given, &piece);
    if (status != COMM_ERR_UNSUPPORTED) {
        CHECK_ERROR_SAYS("windows would not match");
        CHECK(status == COMM_ERR_BACKEND);
        CHECK_STATUS(comm_mem_alloc(world, COUNT, gpu_device(), &given, &piece), COMM_ERR_BACKEND);
    }
    CHECK_OK(comm_group_close(world));
}

static void check_group(comm_group *group)
{
    comm_op_options o = on_gpu();
    int32_t *vector = vector_new(COUNT, comm_group_rank(group) + 1);
    CHECK_OK(comm_all_reduce(group, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
    CHECK_VECTOR(vector, COUNT, sum_of_ranks(comm_group_size(group)));
    gpu_memory_free(vector);
}

/* Groups that exist side by side: made by lists, subgroups, dup and shrink. */
static void make_and_use_groups(comm_group *world, int rank, int size)
{
    int32_t last = size - 1, reversed[RANKS_MAX];
    comm_group *half, *twin, *rest = NULL, *list;
    for (int r = 0; r < size; r++)
        reversed[r] = size - 1 - r;
    check_group(world);
    CHECK_OK(comm_group_subgroups(world, 2, NULL, &half));
    check_group(half);
    CHECK_OK(comm_group_dup(world, NULL, &twin));
    check_group(twin);
    if (rank != last) {
        CHECK_OK(comm_group_shrink(world, &last, 1, NULL, &rest));
        check_group(rest);
    }
    CHECK_OK(comm_group_create(world, reversed, (size_t)size, NULL, &list));
    CHECK(comm_group_rank(list) == size - 1 - rank);
    check_group(list);
    check_group(half);
    check_group(world);
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
    check_group(twin);
    CHECK_OK(comm_group_close(twin));
    check_group(half);
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(list));
}

static void groups(int rank, int size, void *arg)
{
    (void)arg;
    make_and_use_groups(cases_world(rank, NULL), rank, size);
}

static void groups_from_their_parent(int rank, int size, void *arg)
{
    (void)arg;
    make_and_use_groups(cases_world(rank, "?from_parent=1"), rank, size);
}

static void groups_that_share(int rank, int size, void *arg)
{
    (void)arg;
    make_and_use_groups(cases_world(rank, "?from_parent=1&share=1"), rank, size);
}

/* A connect that timed out leaves the group as it was, and can be repeated. */
static void connect_in_time(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_store *store = ranks_store();
    void *word;
    size_t bytes;
    if (rank == 0) {
        CHECK_STATUS(comm_group_connect(world, gpu_device(), 50), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("has not come together yet");
        CHECK_OK(comm_store_set(store, "tried", "1", 1));
    }
    CHECK_OK(comm_store_get(store, "tried", 20000, &word, &bytes));
    comm_free(word);
    CHECK_OK(comm_group_connect(world, gpu_device(), 20000));
    check_group(world);
    comm_store_close(store);
    CHECK_OK(comm_group_close(world));
    (void)size;
}

/* Two worlds of one process at the same time. */
static void two_worlds(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL), *second;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_op_options o = on_gpu();
    int32_t *a = vector_new(LARGE, rank + 1), *b = vector_new(LARGE, rank + 1);
    comm_work *works[2];
    options.backend = comm_group_backend(world);
    options.name = "second";
    options.device = gpu_device();
    CHECK_OK(ranks_init(&options, &second));
    CHECK_OK(comm_all_reduce(world, a, a, LARGE, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &works[0]));
    CHECK_OK(comm_all_reduce(second, b, b, LARGE, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, &works[1]));
    finish(works[1]);
    finish(works[0]);
    CHECK_VECTOR(a, LARGE, sum_of_ranks(size));
    CHECK_VECTOR(b, LARGE, size);
    CHECK_OK(comm_group_close(world));
    check_group(second);
    CHECK_OK(comm_group_close(second));
    gpu_memory_free(a);
    gpu_memory_free(b);
}

/* Buffers that are somewhere else are refused with the cure, and the group goes on. */
static void buffers_elsewhere(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    comm_op_options o = on_gpu();
    int32_t ordinary[4] = { 0 }, *vector = vector_new(COUNT, rank + 1), *other, foreign = (rank + 1) % gpu_count();
    CHECK_STATUS(comm_all_reduce(world, ordinary, vector, 4, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("send buffer");
    CHECK_ERROR_SAYS("ordinary CPU memory");
    CHECK_ERROR_SAYS("COMM_DEVICE_CPU");
    CHECK_STATUS(comm_all_gather(world, vector, ordinary, 1, COMM_DTYPE_I32, &o, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("recv buffer");
    size_t none[2] = { 0, 0 };
    CHECK_OK(comm_reduce_scatter_v(world, ordinary, vector, none, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
    int32_t *skewed = (int32_t *)((char *)vector + 2);
    CHECK_STATUS(comm_all_reduce(world, skewed, skewed, 4, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("not aligned to 4 bytes");
    if (gpu_count() > 1) {
        char where[32];
        CHECK_CUDA(gpu.SetDevice(foreign));
        other = vector_new(COUNT, 0);
        gpu_thread();
        CHECK_STATUS(comm_broadcast(world, other, COUNT, COMM_DTYPE_I32, 0, &o, NULL), COMM_ERR_INVALID);
        snprintf(where, sizeof where, "cuda:%d", foreign);
        CHECK_ERROR_SAYS(where);
        CHECK_ERROR_SAYS("options.device");
        CHECK_ERROR_SAYS("cudaSetDevice");
        gpu_memory_free(other);
    }
    o.device = comm_device_at(COMM_DEVICE_CUDA, gpu_count());
    CHECK_STATUS(comm_barrier(world, &o, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("CUDA_VISIBLE_DEVICES");
    gpu_memory_free(vector);
    check_group(world);
    CHECK_OK(comm_group_close(world));
    (void)size;
}

static const struct nccl_case cases[] = {
    { "messages in both directions", messages_in_both_directions, 4 },
    { "messages keep their order", messages_keep_their_order, 3 },
    { "something follows nothing", something_follows_nothing, 3 },
    { "a batch in a stream", batch_in_a_stream, 3 },
    { "a mixed batch in a stream", mixed_batch_in_a_stream, 3 },
    { "order in a stream", order_in_a_stream, 3 },
    { "a batch as one group", batch_as_one_group, 3 },
    { "a batch begins a group", batch_begins_a_group, 2 },
    { "messages to oneself", messages_to_oneself, 2 },
    { "messages between own devices", messages_between_own_devices, 2 },
    { "forms meet", forms_meet, 3 },
    { "tags are refused", tags_are_refused, 2 },
    { "all_to_all in place", all_to_all_in_place, 3 },
    { "registered memory", registered_memory, 3 },
    { "windows", windows, 3 },
    { "a window fails on one rank", window_fails_on_one_rank, 3 },
    { "a window is refused on one rank", window_is_refused_on_one_rank, 3 },
    { "groups", groups, 4 },
    { "groups from their parent", groups_from_their_parent, 4 },
    { "groups that share", groups_that_share, 4 },
    { "connect in time", connect_in_time, 3 },
    { "two worlds", two_worlds, 2 },
    { "buffers elsewhere", buffers_elsewhere, 2 },
};

int main(int argc, char **argv)
{
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

/* Operations and streams: what the caller's stream has before is seen, what it has later sees the result; works
 * complete in any order; graphs. Usage: streams [BACKEND [CASE]]. */
#include <poll.h>
#include <stdatomic.h>

#include "cases.h"

enum { COUNT = 5000, LARGE = 300000, REPLAYS = 3 };

/* A copy in, the operation and a copy out in one stream, without a wait of the host between them. */
static void operation_in_a_stream(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream);
    int32_t *device = vector_new(COUNT, -1), *host;
    CHECK_CUDA(gpu.HostAlloc((void **)&host, COUNT * sizeof *host, 0));
    for (int turn = 0; turn < 4; turn++) {
        for (size_t i = 0; i < COUNT; i++)
            host[i] = rank + 1 + turn;
        CHECK_CUDA(gpu.MemcpyAsync(device, host, COUNT * sizeof *host, CUDA_COPY_DEFAULT, stream));
        CHECK_OK(comm_all_reduce(world, device, device, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
        CHECK_CUDA(gpu.MemcpyAsync(host, device, COUNT * sizeof *host, CUDA_COPY_DEFAULT, stream));
        CHECK_CUDA(gpu.StreamSynchronize(stream));
        for (size_t i = 0; i < COUNT; i++)
            CHECK(host[i] == sum_of_ranks(size) + turn * size);
    }
    CHECK_CUDA(gpu.FreeHost(host));
    gpu_memory_free(device);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* With a work: it completes when the operation has been enqueued, while earlier work holds the stream up. */
static void work_completes_when_enqueued(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream);
    int32_t *device = vector_new(COUNT, rank + 1);
    comm_work *works[20];
    for (int i = 0; i < 20; i++)
        CHECK_OK(comm_all_reduce(world, device, device, i % 2 ? COUNT : 1, COMM_DTYPE_I32, COMM_REDOP_MAX, &o,
                                 &works[i]));
    for (int i = 19; i >= 0; i--)
        finish(works[i]);
    CHECK_CUDA(gpu.StreamSynchronize(stream));
    CHECK_VECTOR(device, COUNT, size);
    gpu_memory_free(device);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* Another stream waits for the work, which is not over yet, or not even connected; or has long been over. */
static void another_stream_waits(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream(), other = gpu_stream();
    int32_t *device = vector_new(LARGE, rank + 1), *copy = vector_new(LARGE, -1);
    for (int turn = 0; turn < 3; turn++) {
        comm_op_options o = on_gpu();
        comm_work *work;
        o.stream = stream;
        CHECK_OK(comm_all_reduce(world, device, device, LARGE, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, &work));
        if (turn == 2)
            CHECK_OK(comm_work_wait(work, 0));
        CHECK_OK(comm_work_wait_stream(work, other));
        CHECK_CUDA(gpu.MemcpyAsync(copy, device, LARGE * sizeof *copy, CUDA_COPY_DEFAULT, other));
        CHECK_CUDA(gpu.StreamSynchronize(other));
        CHECK_VECTOR(copy, LARGE, size);
        finish(work);
    }
    gpu_memory_free(device);
    gpu_memory_free(copy);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
    CHECK_CUDA(gpu.StreamDestroy(other));
}

static void count_up(comm_work *work, comm_status status, void *context)
{
    (void)work;
    atomic_fetch_add((atomic_int *)context, status == COMM_OK ? 1 : 1000);
}

/* Works on the buffers of several streams, and all ways to learn that one is over. */
static void ways_to_wait(int rank, int size, void *arg)
{
    enum { STREAMS = 3, WORKS = 12 };
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream streams[STREAMS];
    int32_t *vectors[WORKS], done = 0, fd;
    comm_work *works[WORKS];
    atomic_int called = 0;
    for (int s = 0; s < STREAMS; s++)
        streams[s] = gpu_stream();
    for (int i = 0; i < WORKS; i++) {
        comm_op_options o = on_gpu();
        o.stream = streams[i % STREAMS];
        vectors[i] = vector_new(COUNT, rank + 1 + i);
        CHECK_OK(comm_all_reduce(world, vectors[i], vectors[i], COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, &works[i]));
    }
    CHECK_OK(comm_work_on_complete(works[7], count_up, &called));
    CHECK_OK(comm_work_fd(works[WORKS - 1], &fd));
    struct pollfd item = { fd, POLLIN, 0 };
    CHECK(poll(&item, 1, 30000) == 1);
    CHECK(comm_work_status(works[WORKS - 1]) == COMM_OK);
    while (!done)
        CHECK_OK(comm_work_test(works[3], &done));
    while (atomic_load(&called) == 0)
        CHECK_OK(comm_work_test(works[7], &done));
    CHECK(atomic_load(&called) == 1);
    for (int i = WORKS - 1; i >= 0; i--) {
        finish(works[i]);
        CHECK_VECTOR(vectors[i], COUNT, sum_of_ranks(size) + i * size);
        gpu_memory_free(vectors[i]);
    }
    CHECK_OK(comm_group_close(world));
    for (int s = 0; s < STREAMS; s++)
        CHECK_CUDA(gpu.StreamDestroy(streams[s]));
}

/* Two ranks with two GPUs each: operations on both are under way, and are awaited the other way round. */
static void several_devices_in_a_process(int rank, int size, void *arg)
{
    enum { TURNS = 6 };
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    int32_t *vectors[TURNS][2];
    comm_work *works[TURNS][2];
    comm_op_options o = on_gpu();
    for (int turn = 0; turn < TURNS; turn++)
        for (int d = 0; d < 2; d++) {
            int device = (rank + d * size) % gpu_count();
            o.device = comm_device_at(COMM_DEVICE_CUDA, device);
            CHECK_CUDA(gpu.SetDevice(device));
            vectors[turn][d] = vector_new(COUNT, (rank + 1) * (d + 1));
            gpu_thread(); /* options.device counts, not the thread's current one */
            CHECK_OK(comm_all_reduce(world, vectors[turn][d], vectors[turn][d], COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM,
                                     &o, &works[turn][d]));
        }
    for (int turn = TURNS - 1; turn >= 0; turn--)
        for (int d = 1; d >= 0; d--) {
            finish(works[turn][d]);
            CHECK_VECTOR(vectors[turn][d], COUNT, sum_of_ranks(size) * (d + 1));
            gpu_memory_free(vectors[turn][d]);
        }
    int now;
    CHECK_CUDA(gpu.GetDevice(&now));
    CHECK(now == comm_device_index(gpu_device())); /* the backend has put it back */
    CHECK_OK(comm_group_close(world));
}

static void capture_once(comm_group *world, cuda_stream stream, int32_t *in, int32_t *out, cuda_graph *graph)
{
    comm_op_options o = on_stream(stream);
    int size = comm_group_size(world);
    CHECK_CUDA(gpu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_GLOBAL));
    CHECK_OK(comm_all_reduce(world, in, out, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL));
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_broadcast(world, out, 1, COMM_DTYPE_I32, size - 1, &o, NULL));
    CHECK_OK(comm_all_reduce(world, out + 1, out + 1, COUNT - 1, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL));
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK_CUDA(gpu.StreamEndCapture(stream, graph));
}

/* A graph of operations, launched with other data each time, and operations outside of it between. */
static void graph_is_launched_again(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_gpu();
    int32_t *in = vector_new(COUNT, 0), *out = vector_new(COUNT, -1), *word = vector_new(1, 1);
    cuda_graph graph;
    cuda_graph_exec exec;
    CHECK_OK(comm_group_connect(world, gpu_device(), 0));
    capture_once(world, stream, in, out, &graph);
    CHECK_CUDA(gpu.GraphInstantiate(&exec, graph, 0));
    for (int turn = 0; turn < REPLAYS; turn++) {
        vector_fill(in, COUNT, rank + 1 + turn);
        CHECK_CUDA(gpu.GraphLaunch(exec, stream));
        CHECK_CUDA(gpu.StreamSynchronize(stream));
        CHECK_VECTOR(out, COUNT, sum_of_ranks(size) + turn * size);
        CHECK_OK(comm_all_reduce(world, word, word, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL));
    }
    CHECK_CUDA(gpu.GraphExecDestroy(exec));
    CHECK_CUDA(gpu.GraphDestroy(graph));
    gpu_memory_free(in);
    gpu_memory_free(out);
    gpu_memory_free(word);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* Captured right after the first operation, which has connected the ranks: nothing else need be awaited. */
static void capture_after_the_first_operation(int rank, int size, void *arg)
{
    enum { GROUPS = 12 };
    (void)arg;
    comm_group *world = cases_world(rank, NULL), *group;
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream);
    int32_t *vector = vector_new(COUNT, 1);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int turn = 0; turn < GROUPS; turn++) {
        cuda_graph graph;
        CHECK_OK(comm_group_dup(world, NULL, &group));
        for (int captured = 0; captured < 2; captured++) {
            if (captured)
                CHECK_CUDA(gpu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
            if (turn % 2 == 0) {
                CHECK_OK(comm_all_reduce(group, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL));
                continue;
            }
            CHECK_OK(comm_coalesce_begin(group));
            CHECK_OK(comm_send(group, vector, 1, COMM_DTYPE_I32, next, &o, NULL));
            CHECK_OK(comm_recv(group, vector + 1, 1, COMM_DTYPE_I32, before, &o, NULL));
            CHECK_OK(comm_coalesce_end(group, NULL, NULL));
        }
        CHECK_CUDA(gpu.StreamEndCapture(stream, &graph));
        CHECK_CUDA(gpu.GraphDestroy(graph));
        CHECK_CUDA(gpu.StreamSynchronize(stream));
        CHECK_OK(comm_group_close(group));
    }
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

/* What cannot be in a graph is refused, with the cure, and the group and the capture go on. */
static void capture_is_refused(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = cases_world(rank, NULL);
    cuda_stream stream = gpu_stream();
    comm_op_options o = on_stream(stream), waits = on_stream(stream);
    int32_t *vector = vector_new(COUNT, rank + 1);
    cuda_graph graph;
    comm_work *work;
    waits.flags = 0;
    CHECK_CUDA(gpu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
    CHECK_STATUS(comm_all_reduce(world, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("comm_group_connect");
    CHECK_STATUS(comm_all_reduce(world, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &waits, &work),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("COMM_OP_FLAG_ON_STREAM");
    CHECK_CUDA(gpu.StreamEndCapture(stream, &graph));
    CHECK_CUDA(gpu.GraphDestroy(graph));
    CHECK_OK(comm_all_reduce(world, vector, vector, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &waits, NULL));
    CHECK_VECTOR(vector, COUNT, sum_of_ranks(size));
    gpu_memory_free(vector);
    CHECK_OK(comm_group_close(world));
    CHECK_CUDA(gpu.StreamDestroy(stream));
}

static const struct nccl_case cases[] = {
    { "an operation in a stream", operation_in_a_stream, 3 },
    { "a work completes when it is enqueued", work_completes_when_enqueued, 2 },
    { "another stream waits for a work", another_stream_waits, 3 },
    { "ways to wait", ways_to_wait, 3 },
    { "several devices in a process", several_devices_in_a_process, 2 },
    { "a graph is launched again", graph_is_launched_again, 3 },
    { "a capture after the first operation", capture_after_the_first_operation, 2 },
    { "a capture is refused", capture_is_refused, 2 },
};

int main(int argc, char **argv)
{
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}

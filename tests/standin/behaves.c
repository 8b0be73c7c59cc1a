/* What the stand-in does: order of streams, events and graphs, ways of communicators to come and go, faults on demand.
 * behaves CUDART NCCL [NAME] */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"

enum { FLOATS = 1024, BYTES = FLOATS * 4 };

static int own_rank, own_size, version;
static int turns[2]; /* a pipe: a rank tells the others that they may go on */
static const nccl_id *own_ids;
static cuda_stream stream, other;
static cuda_event event;
static nccl_comm comm;
static float *memory, *more;

static void *allocate(size_t bytes)
{
    void *made;
    OK(cu.Malloc(&made, bytes));
    return made;
}

static void prepare_cuda(void)
{
    OK(cu.SetDevice(own_rank % 8));
    OK(cu.StreamCreateWithFlags(&stream, CUDA_STREAM_NON_BLOCKING));
    OK(cu.StreamCreateWithFlags(&other, CUDA_STREAM_NON_BLOCKING));
    OK(cu.EventCreateWithFlags(&event, CUDA_EVENT_DISABLE_TIMING));
    memory = allocate(BYTES);
    more = allocate(BYTES);
}

static void prepare(void)
{
    prepare_cuda();
    OK(nc.CommInitRank(&comm, own_size, own_ids[0], own_rank));
}

static void set(float *device, size_t count, float value, cuda_stream on)
{
    float *host = malloc(count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] = value;
    OK(cu.MemcpyAsync(device, host, count * sizeof *host, CUDA_COPY_DEFAULT, on));
    free(host);
}

static float first(const float *device, cuda_stream on)
{
    float value;
    OK(cu.MemcpyAsync(&value, device, sizeof value, CUDA_COPY_DEFAULT, on));
    OK(cu.StreamSynchronize(on));
    return value;
}

static void reduce_on(cuda_stream on)
{
    OK(nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, on));
}

static nccl_config config_of(int blocking)
{
    return (nccl_config){.size = 48,
                         .magic = (unsigned int)NCCL_MAGIC,
                         .version = 21800,
                         .blocking = blocking,
                         .cga_cluster_size = NCCL_NOT_SET,
                         .min_ctas = NCCL_NOT_SET,
                         .max_ctas = NCCL_NOT_SET,
                         .split_share = NCCL_NOT_SET,
                         .traffic_class = NCCL_NOT_SET,
                         .collnet_enable = NCCL_NOT_SET,
                         .cta_policy = NCCL_NOT_SET,
                         .shrink_share = NCCL_NOT_SET,
                         .nvls_ctas = NCCL_NOT_SET};
}

static nccl_status poll_comm(nccl_comm polled)
{
    nccl_status status = NCCL_IN_PROGRESS;
    while (status == NCCL_IN_PROGRESS) {
        OK(nc.CommGetAsyncError(polled, &status));
        usleep(200);
    }
    return status;
}

static void wait_for_failure(nccl_status wanted)
{
    nccl_status status = NCCL_OK;
    while (!status) {
        OK(nc.CommGetAsyncError(comm, &status));
        usleep(1000);
    }
    CHECK(wanted, status);
}

/* A call of the host that blocks a stream until the test opens the gate. */
static atomic_int gate;
static void wait_for_gate(void *argument)
{
    (void)argument;
    while (!atomic_load(&gate))
        usleep(100);
}

static void streams_run_beside_each_other(void)
{
    prepare_cuda();
    OK(cu.LaunchHostFunc(stream, wait_for_gate, NULL));
    CHECK(CUDA_NOT_READY, cu.StreamQuery(stream));
    OK(cu.StreamSynchronize(other));
    atomic_store(&gate, 1);
    OK(cu.StreamSynchronize(stream));
    OK(cu.StreamQuery(stream));
}

static void events_are_points(void)
{
    prepare_cuda();
    OK(cu.EventQuery(event)); /* not recorded: complete */
    OK(cu.EventRecord(event, stream));
    OK(cu.EventSynchronize(event));
    OK(cu.StreamWaitEvent(other, event, 0));
    OK(cu.LaunchHostFunc(stream, wait_for_gate, NULL));
    OK(cu.EventRecord(event, stream));
    CHECK(CUDA_NOT_READY, cu.EventQuery(event));
    OK(cu.StreamSynchronize(other)); /* waited for the point before */
    OK(cu.StreamWaitEvent(other, event, 0));
    CHECK(CUDA_NOT_READY, cu.StreamQuery(other));
    atomic_store(&gate, 1);
    OK(cu.EventSynchronize(event));
    OK(cu.StreamSynchronize(other));
}

static void the_default_stream_waits_for_blocking_streams(void)
{
    prepare_cuda();
    cuda_stream blocking;
    OK(cu.StreamCreate(&blocking));
    OK(cu.LaunchHostFunc(blocking, wait_for_gate, NULL));
    OK(cu.MemsetAsync(memory, 0, BYTES, NULL));
    OK(cu.MemsetAsync(more, 0, BYTES, blocking)); /* after the one before */
    CHECK(CUDA_NOT_READY, cu.StreamQuery(NULL));
    OK(cu.StreamSynchronize(stream));
    atomic_store(&gate, 1);
    OK(cu.DeviceSynchronize());
    OK(cu.StreamQuery(blocking));
    OK(cu.StreamDestroy(blocking));
}

static void kernels_wait_for_their_peers(void)
{
    char turn = 0;
    prepare();
    set(memory, FLOATS, 1, stream);
    OK(cu.StreamSynchronize(stream));
    if (own_rank)
        TRUE(read(turns[0], &turn, 1) == 1);
    reduce_on(stream);
    if (!own_rank) {
        CHECK(CUDA_NOT_READY, cu.StreamQuery(stream));
        TRUE(write(turns[1], &turn, 1) == 1);
    }
    TRUE(first(memory, stream) == (float)own_size);
    OK(nc.CommDestroy(comm));
}

static void one_communicator_on_two_streams(void)
{
    prepare();
    set(memory, FLOATS, 1, stream);
    OK(cu.EventRecord(event, stream));
    OK(cu.StreamWaitEvent(other, event, 0));
    for (int i = 0; i < 10; i++)
        reduce_on(i % 2 ? stream : other);
    OK(cu.StreamSynchronize(other));
    TRUE(first(memory, stream) == powf((float)own_size, 10));
    OK(nc.CommDestroy(comm));
}

static void a_graph_is_launched_again(void)
{
    cuda_graph graph;
    cuda_graph_exec exec;
    prepare();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
    OK(cu.EventRecord(event, stream));
    OK(cu.StreamWaitEvent(other, event, 0));
    reduce_on(other);
    OK(cu.EventRecord(event, other));
    OK(cu.StreamWaitEvent(stream, event, 0));
    OK(cu.MemcpyAsync(more, memory, BYTES, CUDA_COPY_DEFAULT, stream));
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphInstantiate(&exec, graph, 0));
    OK(cu.GraphDestroy(graph));
    set(memory, FLOATS, 1, stream);
    for (int i = 0; i < 3; i++)
        OK(cu.GraphLaunch(exec, stream));
    TRUE(first(more, stream) == powf((float)own_size, 3));
    OK(cu.GraphExecDestroy(exec));
    OK(nc.CommDestroy(comm));
}

static void several_devices_in_a_thread(void)
{
    enum { DEVICES = 4 };
    nccl_comm comms[DEVICES];
    cuda_stream streams[DEVICES];
    float *buffers[DEVICES];
    OK(nc.CommInitAll(comms, DEVICES, NULL));
    for (int i = 0; i < DEVICES; i++) {
        OK(cu.SetDevice(i));
        OK(cu.StreamCreate(&streams[i]));
        buffers[i] = allocate(BYTES);
        set(buffers[i], FLOATS, (float)i, streams[i]);
    }
    OK(nc.GroupStart());
    for (int i = 0; i < DEVICES; i++)
        OK(nc.AllReduce(buffers[i], buffers[i], FLOATS, NCCL_F32, NCCL_SUM, comms[i], streams[i]));
    OK(nc.GroupEnd());
    for (int i = 0; i < DEVICES; i++)
        TRUE(first(buffers[i], streams[i]) == 6);
    for (int i = 0; i < DEVICES; i++)
        OK(nc.CommDestroy(comms[i]));
}

static void nothing_blocks(void)
{
    nccl_config config = config_of(0);
    nccl_comm child;
    prepare_cuda();
    CHECK(NCCL_IN_PROGRESS, nc.CommInitRankConfig(&comm, own_size, own_ids[0], own_rank, &config));
    OK(poll_comm(comm));
    set(memory, FLOATS, 2, stream);
    CHECK(NCCL_IN_PROGRESS, nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_PRODUCT, comm, stream));
    OK(poll_comm(comm));
    TRUE(first(memory, stream) == powf(2, (float)own_size));
    CHECK(NCCL_IN_PROGRESS, nc.CommSplit(comm, 0, 0, &child, NULL));
    OK(poll_comm(comm));
    OK(poll_comm(child));
    CHECK(NCCL_IN_PROGRESS, nc.CommFinalize(child));
    OK(poll_comm(child));
    OK(nc.CommDestroy(child));
    CHECK(NCCL_IN_PROGRESS, nc.CommFinalize(comm));
    OK(poll_comm(comm));
    OK(nc.CommDestroy(comm));
}

static void an_aborted_initialisation_ends(void)
{
    nccl_config config = config_of(0);
    prepare_cuda();
    CHECK(NCCL_IN_PROGRESS, nc.CommInitRankConfig(&comm, 2, own_ids[0], 0, &config));
    OK(nc.CommAbort(comm));
}

static void an_aborted_split_ends(void)
{
    nccl_config config = config_of(0);
    nccl_comm child;
    prepare_cuda();
    CHECK(NCCL_IN_PROGRESS, nc.CommInitRankConfig(&comm, own_size, own_ids[0], own_rank, &config));
    OK(poll_comm(comm));
    if (own_rank) /* does not come */
        pause();
    CHECK(NCCL_IN_PROGRESS, nc.CommSplit(comm, 0, 0, &child, NULL));
    OK(nc.CommAbort(comm));
    TRUE(child);
    OK(nc.CommAbort(child));
}

static void a_peer_that_dies_in_a_split_is_a_remote_error(void)
{
    nccl_comm child;
    prepare();
    if (own_rank)
        raise(SIGKILL);
    CHECK(NCCL_REMOTE_ERROR, nc.CommSplit(comm, 0, 0, &child, NULL));
    TRUE(child);
    OK(nc.CommAbort(comm));
    OK(nc.CommAbort(child));
}

static void wrong_arguments_fail_what_does_not_block(void)
{
    nccl_config config = config_of(0);
    prepare_cuda();
    CHECK(NCCL_IN_PROGRESS, nc.CommInitRankConfig(&comm, 1, own_ids[0], 0, &config));
    OK(poll_comm(comm));
    CHECK(NCCL_INVALID_ARGUMENT, nc.AllReduce(memory, memory, 1, 50, NCCL_SUM, comm, stream));
    CHECK(NCCL_INVALID_ARGUMENT, poll_comm(comm));
    OK(nc.CommAbort(comm));
}

static void an_aborted_operation_leaves(void)
{
    prepare();
    set(memory, FLOATS, 1, stream);
    if (own_rank) /* does not come */
        pause();
    reduce_on(stream);
    reduce_on(other);
    usleep(20000);
    CHECK(CUDA_NOT_READY, cu.StreamQuery(stream));
    OK(nc.CommAbort(comm));
    OK(cu.StreamSynchronize(stream));
    OK(cu.StreamSynchronize(other));
    TRUE(first(memory, stream) == 1);
    OK(cu.Free(memory));
}

static void a_dead_peer_is_a_remote_error(void)
{
    prepare();
    if (own_rank)
        raise(SIGKILL);
    reduce_on(stream);
    wait_for_failure(NCCL_REMOTE_ERROR);
    TRUE(strstr(nc.GetLastError(comm), "rank 1"));
    CHECK(CUDA_NOT_READY, cu.StreamQuery(stream));
    OK(nc.CommAbort(comm));
    OK(cu.StreamSynchronize(stream));
}

static void a_peer_that_aborts_is_a_remote_error(void)
{
    prepare();
    if (own_rank) {
        OK(nc.CommAbort(comm));
        pause();
    }
    reduce_on(stream);
    wait_for_failure(NCCL_REMOTE_ERROR);
    OK(nc.CommAbort(comm));
}

static void a_silent_peer_is_none(void)
{
    nccl_status status;
    setenv("STANDIN_PEERS", "silent", 1);
    prepare();
    if (own_rank)
        raise(SIGKILL);
    reduce_on(stream);
    usleep(200000);
    OK(nc.CommGetAsyncError(comm, &status));
    OK(status);
    OK(nc.CommAbort(comm));
}

static void shrinking_leaves_the_dead_behind(void)
{
    nccl_comm smaller;
    int excluded = 1, rank, size;
    prepare();
    if (own_rank == 1)
        raise(SIGKILL);
    if (!nc.CommShrink)
        return;
    reduce_on(stream);
    wait_for_failure(NCCL_REMOTE_ERROR);
    OK(nc.CommShrink(comm, &excluded, 1, &smaller, NULL, NCCL_SHRINK_ABORT));
    OK(nc.CommAbort(comm));
    OK(cu.StreamSynchronize(stream));
    OK(nc.CommUserRank(smaller, &rank));
    OK(nc.CommCount(smaller, &size));
    TRUE(size == own_size - 1 && rank == (own_rank ? own_rank - 1 : 0));
    set(memory, FLOATS, 1, stream);
    OK(nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, smaller, stream));
    TRUE(first(memory, stream) == (float)size);
    OK(nc.CommDestroy(smaller));
}

static void calls_fail_on_demand(void)
{
    setenv("STANDIN_FAIL", "cudaMalloc:3:2,ncclAllReduce:2:3", 1);
    prepare();
    void *third;
    CHECK(2, cu.Malloc(&third, 8));
    CHECK(2, cu.GetLastError());
    reduce_on(stream);
    CHECK(3, nc.AllReduce(memory, memory, 8, NCCL_F32, NCCL_SUM, comm, stream));
    reduce_on(stream);
    OK(nc.CommDestroy(comm));
}

static void operations_fail_on_demand(void)
{
    setenv("STANDIN_ASYNC", "2:3", 1);
    prepare();
    reduce_on(stream);
    OK(cu.StreamSynchronize(stream));
    reduce_on(stream);
    wait_for_failure(NCCL_INTERNAL_ERROR);
    OK(nc.CommAbort(comm));
    OK(cu.StreamSynchronize(stream));
}

static void one_device_for_two_ranks(void)
{
    OK(cu.SetDevice(3));
    CHECK(NCCL_INVALID_USAGE, nc.CommInitRank(&comm, 2, own_ids[0], own_rank));
    TRUE(strstr(nc.GetLastError(NULL), "Duplicate GPU"));
    char name[] = "a";
    name[0] = (char)(name[0] + own_rank);
    setenv("NCCL_HOSTID", name, 1);
    OK(nc.CommInitRank(&comm, 2, own_ids[1], own_rank));
    OK(nc.CommDestroy(comm));
    setenv("NCCL_HOSTID", "a", 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    CHECK(version >= 23003 ? NCCL_OK : NCCL_INVALID_USAGE, nc.CommInitRank(&comm, 2, own_ids[2], own_rank));
    if (version >= 23003)
        OK(nc.CommDestroy(comm));
}

static void messages_need_each_other(void)
{
    prepare();
    int next = (own_rank + 1) % own_size, before = (own_rank + own_size - 1) % own_size;
    for (int i = 0; i < 20; i++) {
        set(memory, FLOATS, (float)(100 * i + own_rank), stream);
        OK(nc.GroupStart());
        OK(nc.Send(memory, FLOATS / 2, NCCL_F32, next, comm, stream));
        OK(nc.Send(memory + FLOATS / 2, FLOATS / 4, NCCL_F32, next, comm, stream));
        OK(nc.Send(memory, 1, NCCL_F32, own_rank, comm, stream));
        OK(nc.Recv(more, FLOATS / 2, NCCL_F32, before, comm, stream));
        OK(nc.Recv(more + FLOATS / 2, FLOATS / 4, NCCL_F32, before, comm, stream));
        OK(nc.Recv(more + FLOATS - 1, 1, NCCL_F32, own_rank, comm, stream));
        OK(nc.GroupEnd());
        TRUE(first(more, stream) == (float)(100 * i + before));
        TRUE(first(more + FLOATS - 1, stream) == (float)(100 * i + own_rank));
    }
    OK(nc.Send(memory, 1, NCCL_F32, 0, comm, stream));
    if (!own_rank) {
        usleep(20000);
        CHECK(CUDA_NOT_READY, cu.StreamQuery(stream));
    }
    OK(nc.CommAbort(comm));
}

static void premul_sum(void)
{
    nccl_redop on_host, on_device;
    float scalar = (float)(own_rank + 1);
    prepare();
    OK(nc.RedOpCreatePreMulSum(&on_host, &scalar, NCCL_F32, NCCL_SCALAR_ON_HOST, comm));
    set(memory, FLOATS, 2, stream);
    set(more, 1, scalar, stream);
    scalar = 77;
    OK(nc.RedOpCreatePreMulSum(&on_device, more, NCCL_F32, NCCL_SCALAR_ON_DEVICE, comm));
    OK(nc.AllReduce(memory, memory, FLOATS, NCCL_F32, on_host, comm, stream));
    OK(nc.RedOpDestroy(on_host, comm));
    float ranks = (float)(own_size * (own_size + 1) / 2);
    TRUE(first(memory, stream) == 2 * ranks);
    OK(nc.AllReduce(memory, memory, FLOATS, NCCL_F32, on_device, comm, stream));
    TRUE(first(memory, stream) == 2 * ranks * ranks);
    OK(nc.RedOpDestroy(on_device, comm));
    OK(nc.CommDestroy(comm));
}

/* Bytes of one element in, and what must come out after all ranks reduce them. */
static void expect_bytes(nccl_type type, nccl_redop redop, const void *in, const void *out, size_t bytes)
{
    unsigned char got[8];
    OK(cu.MemcpyAsync(memory, in, bytes, CUDA_COPY_DEFAULT, stream));
    OK(nc.AllReduce(memory, memory, 1, type, redop, comm, stream));
    OK(cu.MemcpyAsync(got, memory, bytes, CUDA_COPY_DEFAULT, stream));
    OK(cu.StreamSynchronize(stream));
    if (memcmp(got, out, bytes)) {
        fprintf(stderr, "type %u, redop %u: %02x %02x\n", type, redop, got[0], got[1]);
        exit(1);
    }
}

#define EXPECT(type, c, redop, in, out) expect_bytes(type, redop, &(c){in}, &(c){out}, sizeof(c))

/* Of two ranks with the same input. */
static void arithmetic(void)
{
    prepare();
    EXPECT(NCCL_I8, int8_t, NCCL_SUM, 100, -56);
    EXPECT(NCCL_I8, int8_t, NCCL_AVG, -3, -3);
    EXPECT(NCCL_U8, uint8_t, NCCL_PRODUCT, 20, 144);
    EXPECT(NCCL_I32, int32_t, NCCL_MIN, -5, -5);
    EXPECT(NCCL_U64, uint64_t, NCCL_SUM, UINT64_MAX, UINT64_MAX - 1);
    EXPECT(NCCL_F64, double, NCCL_AVG, 0.1, 0.1);
    EXPECT(NCCL_F16, uint16_t, NCCL_SUM, 0x3c01, 0x4001);     /* 1 + 1/1024 */
    EXPECT(NCCL_F16, uint16_t, NCCL_SUM, 0x7bff, 0x7c00);     /* infinity */
    EXPECT(NCCL_F16, uint16_t, NCCL_AVG, 0x0001, 0x0000);     /* half of the smallest is even */
    EXPECT(NCCL_F16, uint16_t, NCCL_SUM, 0x0201, 0x0402);     /* out of the subnormal numbers */
    EXPECT(NCCL_F16, uint16_t, NCCL_PRODUCT, 0xbe00, 0x4080); /* -1.5 */
    EXPECT(NCCL_BF16, uint16_t, NCCL_SUM, 0x3f81, 0x4001);
    EXPECT(NCCL_BF16, uint16_t, NCCL_PRODUCT, 0x3f81, 0x3f82);
    if (version >= 22403) {
        EXPECT(NCCL_F8E4M3, uint8_t, NCCL_SUM, 0x39, 0x41); /* 1.125 */
        EXPECT(NCCL_F8E4M3, uint8_t, NCCL_SUM, 0x7e, 0x7e); /* 448 is the most */
        EXPECT(NCCL_F8E5M2, uint8_t, NCCL_SUM, 0xbd, 0xc1); /* -1.25 */
        EXPECT(NCCL_F8E5M2, uint8_t, NCCL_SUM, 0x7b, 0x7b);
    } else {
        CHECK(NCCL_INVALID_ARGUMENT, nc.AllReduce(memory, memory, 1, NCCL_F8E4M3, NCCL_SUM, comm, stream));
    }
    OK(nc.CommDestroy(comm));
}

/* NCCL has no kernel for it; sums, and a count of 0, need none. */
static void a_rank_alone_multiplies_no_8_bit_floats(void)
{
    nccl_redop redop;
    uint8_t one = 0x38;
    prepare();
    if (version < 22403)
        return;
    OK(nc.RedOpCreatePreMulSum(&redop, &one, NCCL_F8E4M3, NCCL_SCALAR_ON_HOST, comm));
    CHECK(NCCL_INVALID_ARGUMENT, nc.AllReduce(memory, memory, 1, NCCL_F8E4M3, redop, comm, stream));
    CHECK(NCCL_INVALID_ARGUMENT, nc.Reduce(memory, memory, 1, NCCL_F8E5M2, NCCL_AVG, 0, comm, stream));
    CHECK(NCCL_INVALID_ARGUMENT, nc.ReduceScatter(memory, memory, 1, NCCL_F8E4M3, NCCL_AVG, comm, stream));
    OK(nc.AllReduce(memory, memory, 0, NCCL_F8E4M3, redop, comm, stream));
    OK(nc.RedOpDestroy(redop, comm));
    EXPECT(NCCL_F8E4M3, uint8_t, NCCL_SUM, 0x39, 0x39);
    EXPECT(NCCL_F16, uint16_t, NCCL_AVG, 0x3c01, 0x3c01);
    OK(nc.CommDestroy(comm));
}

static void a_rank_alone_multiplies_whole_packs(void)
{
    enum { COUNT = 4097 }; /* a little over 16 KiB: two blocks */
    prepare();
    float *many = allocate(COUNT * sizeof *many);
    set(many, COUNT, 2, stream);
    OK(nc.AllReduce(many, more, FLOATS, NCCL_F32, NCCL_AVG, comm, stream));
    TRUE(first(more + FLOATS - 1, stream) == 2);
    float *into = allocate(COUNT * sizeof *into);
    set(into, COUNT, 7, stream);
    OK(nc.AllReduce(many, into, COUNT, NCCL_F32, NCCL_AVG, comm, stream));
    TRUE(first(into + COUNT - 2, stream) == 2);
    TRUE(first(into + COUNT - 1, stream) == (version < 22907 ? 7 : 2));
    OK(nc.CommDestroy(comm));
}

static void wrong_arguments_are_refused(void)
{
    prepare();
    nccl_comm second;
    nccl_config config = config_of(7);
    CHECK(NCCL_INVALID_ARGUMENT, nc.CommInitRankConfig(&second, 1, own_ids[1], 0, &config));
    config = config_of(1);
    config.magic = 0;
    CHECK(NCCL_INVALID_ARGUMENT, nc.CommInitRankConfig(&second, 1, own_ids[1], 0, &config));
    CHECK(NCCL_INVALID_ARGUMENT, nc.CommInitRank(&second, 1, own_ids[1], 1));
    CHECK(NCCL_INVALID_ARGUMENT, nc.Broadcast(memory, memory, 1, NCCL_F32, 9, comm, stream));
    OK(nc.GroupStart());
    CHECK(NCCL_INVALID_ARGUMENT, nc.AllReduce(memory, memory, 1, 50, NCCL_SUM, comm, stream));
    CHECK(NCCL_INVALID_ARGUMENT, nc.GroupEnd());
    OK(nc.AllReduce(memory, memory, 0, NCCL_F32, NCCL_SUM, comm, stream));
    OK(cu.StreamQuery(stream));
    CHECK(CUDA_INVALID_DEVICE, cu.SetDevice(8));
    OK(nc.CommDestroy(comm));
}

static void pointers_have_attributes(void)
{
    cuda_pointer_attributes attributes;
    void *host, *managed;
    prepare_cuda();
    OK(cu.HostAlloc(&host, 8, 0));
    OK(cu.MallocManaged(&managed, 8, 1));
    OK(cu.PointerGetAttributes(&attributes, (char *)memory + 5));
    TRUE(attributes.type == CUDA_MEMORY_DEVICE && attributes.device == own_rank && !attributes.host_pointer);
    OK(cu.PointerGetAttributes(&attributes, host));
    TRUE(attributes.type == CUDA_MEMORY_HOST);
    OK(cu.PointerGetAttributes(&attributes, managed));
    TRUE(attributes.type == CUDA_MEMORY_MANAGED && attributes.host_pointer == managed);
    OK(cu.PointerGetAttributes(&attributes, &attributes));
    TRUE(attributes.type == CUDA_MEMORY_UNREGISTERED);
    OK(cu.FreeHost(host));
    OK(cu.Free(managed));
}

static void windows_and_registrations(void)
{
    void *handle, *symmetric;
    nccl_window window;
    prepare();
    if (nc.MemAlloc) {
        OK(nc.MemAlloc(&symmetric, BYTES));
        OK(nc.CommRegister(comm, symmetric, BYTES, &handle));
        if (nc.CommWindowRegister) {
            OK(nc.CommWindowRegister(comm, symmetric, BYTES, &window, NCCL_WINDOW_SYMMETRIC));
            OK(nc.CommWindowDeregister(comm, window));
        }
        OK(nc.CommDeregister(comm, handle));
        OK(nc.MemFree(symmetric));
    }
    OK(nc.CommDestroy(comm));
}

static void streams_without_names(void)
{
    cuda_stream legacy = (cuda_stream)1, per_thread = (cuda_stream)2, blocking;
    unsigned int state;
    prepare_cuda();
    OK(cu.LaunchHostFunc(per_thread, wait_for_gate, NULL));
    OK(cu.MemsetAsync(memory, 0, BYTES, legacy));
    CHECK(CUDA_NOT_READY, cu.StreamQuery(legacy));
    OK(cu.StreamSynchronize(stream));
    atomic_store(&gate, 1);
    OK(cu.StreamSynchronize(legacy));
    OK(cu.StreamQuery(per_thread));
    OK(cu.StreamCreate(&blocking));
    OK(cu.StreamBeginCapture(blocking, CUDA_CAPTURE_MODE_RELAXED));
    CHECK(CUDA_CAPTURE_IMPLICIT, cu.StreamIsCapturing(legacy, &state));
    OK(cu.StreamIsCapturing(blocking, &state));
    TRUE(state == CUDA_CAPTURE_ACTIVE);
    OK(cu.StreamIsCapturing(stream, &state));
    TRUE(state == CUDA_CAPTURE_NONE);
}

static void leave_things(void)
{
    setenv("STANDIN_LEAKS", "1", 1);
    prepare();
    OK(cu.Free(more));
    exit(0);
}

static void leaks_are_listed(void)
{
    char text[1024] = "";
    int ends[2], status;
    TRUE(pipe(ends) == 0);
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], STDERR_FILENO);
        leave_things();
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t now = 1; now > 0; length += now > 0 ? (size_t)now : 0)
        now = read(ends[0], text + length, sizeof text - 1 - length);
    waitpid(child, &status, 0);
    TRUE(status == 0 && strstr(text, "standin: LEAK: 2 streams\n") && strstr(text, "standin: LEAK: 1 events\n"));
    TRUE(strstr(text, "standin: LEAK: 1 communicators\n") && strstr(text, "standin: LEAK: 1 pieces of memory\n"));
}

static const struct behaviour {
    const char *name;
    int ranks, ends; /* ranks that end by themselves, from 0 on; the others are killed */
    void (*run)(void);
} behaviours[] = {
#define ROW(name, ranks, ends)   \
    {                            \
#name, ranks, ends, name \
    }
    ROW(streams_run_beside_each_other, 1, 1),
    ROW(events_are_points, 1, 1),
    ROW(the_default_stream_waits_for_blocking_streams, 1, 1),
    ROW(kernels_wait_for_their_peers, 2, 2),
    ROW(one_communicator_on_two_streams, 3, 3),
    ROW(a_graph_is_launched_again, 2, 2),
    ROW(several_devices_in_a_thread, 1, 1),
    ROW(nothing_blocks, 3, 3),
    ROW(an_aborted_initialisation_ends, 1, 1),
    ROW(an_aborted_split_ends, 2, 1),
    ROW(a_peer_that_dies_in_a_split_is_a_remote_error, 2, 1),
    ROW(wrong_arguments_fail_what_does_not_block, 1, 1),
    ROW(an_aborted_operation_leaves, 2, 1),
    ROW(a_dead_peer_is_a_remote_error, 2, 1),
    ROW(a_peer_that_aborts_is_a_remote_error, 2, 1),
    ROW(a_silent_peer_is_none, 2, 1),
    ROW(shrinking_leaves_the_dead_behind, 2, 1),
    ROW(calls_fail_on_demand, 1, 1),
    ROW(operations_fail_on_demand, 2, 2),
    ROW(one_device_for_two_ranks, 2, 2),
    ROW(messages_need_each_other, 3, 3),
    ROW(premul_sum, 3, 3),
    ROW(arithmetic, 2, 2),
    ROW(a_rank_alone_multiplies_no_8_bit_floats, 1, 1),
    ROW(a_rank_alone_multiplies_whole_packs, 1, 1),
    ROW(wrong_arguments_are_refused, 1, 1),
    ROW(pointers_have_attributes, 1, 1),
    ROW(windows_and_registrations, 3, 3),
    ROW(streams_without_names, 1, 1),
    ROW(leaks_are_listed, 1, 1),
#undef ROW
};

/* Whether it went wrong. */
static bool try_behaviour(const struct behaviour *behaviour)
{
    nccl_id ids[3];
    pid_t ranks[8];
    bool wrong = false;
    for (int i = 0; i < 3; i++)
        OK(nc.GetUniqueId(&ids[i]));
    TRUE(pipe(turns) == 0);
    for (int rank = 0; rank < behaviour->ranks; rank++) {
        ranks[rank] = fork();
        if (ranks[rank])
            continue;
        own_rank = rank;
        own_size = behaviour->ranks;
        own_ids = ids;
        behaviour->run();
        exit(0);
    }
    for (int rank = 0; rank < behaviour->ranks; rank++) {
        int status;
        if (rank >= behaviour->ends)
            kill(ranks[rank], SIGKILL);
        waitpid(ranks[rank], &status, 0);
        if (rank < behaviour->ends && status)
            fprintf(stderr, "%s: rank %d: status %#x\n", behaviour->name, rank, (unsigned int)status);
        wrong |= rank < behaviour->ends && status;
    }
    close(turns[0]);
    close(turns[1]);
    return wrong;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    calls_open(argv[1], argv[2]);
    OK(nc.GetVersion(&version));
    int wrong = 0, tried = 0;
    for (size_t i = 0; i < sizeof behaviours / sizeof *behaviours; i++)
        if (argc < 4 || !strcmp(argv[3], behaviours[i].name)) {
            wrong += try_behaviour(&behaviours[i]);
            tried++;
        }
    printf("%d behaviours, %d wrong\n", tried, wrong);
    return wrong || !tried;
}

/* Each rule is violated on purpose, in processes of their own, and found. With STANDIN_RULES=log the processes go on,
 * and end by themselves; there, rules are left out whose violation hangs. rules CUDART NCCL [NAME] */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

enum { VIOLATION = 97, BYTES = 4096, FLOATS = BYTES / 4, LIMIT_MS = 20000 };

static int own_rank, own_size;
static bool only_logged;
static const nccl_id *own_ids;
static cuda_stream stream, other;
static cuda_event event;
static nccl_comm comm;
static void *memory, *more;

/* What most cases need: two streams that do not block, an event, two pieces of memory. */
static void prepare_cuda(void)
{
    OK(cu.SetDevice(own_rank));
    OK(cu.StreamCreateWithFlags(&stream, CUDA_STREAM_NON_BLOCKING));
    OK(cu.StreamCreateWithFlags(&other, CUDA_STREAM_NON_BLOCKING));
    OK(cu.EventCreateWithFlags(&event, CUDA_EVENT_DISABLE_TIMING));
    OK(cu.Malloc(&memory, BYTES));
    OK(cu.Malloc(&more, BYTES));
}

static void prepare(void)
{
    prepare_cuda();
    OK(nc.CommInitRank(&comm, own_size, own_ids[0], own_rank));
}

static void reduce_on(cuda_stream on)
{
    OK(nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, on));
}

static void unordered_streams(void)
{
    prepare();
    reduce_on(stream);
    cu.MemsetAsync(memory, 0, BYTES, other);
}

static void event_before_the_operation(void)
{
    prepare();
    OK(cu.EventRecord(event, stream));
    reduce_on(stream);
    OK(cu.StreamWaitEvent(other, event, 0));
    cu.MemsetAsync(memory, 0, BYTES, other);
}

static void copy_before_the_event(void)
{
    void *host;
    prepare_cuda();
    OK(cu.HostAlloc(&host, BYTES, 0));
    OK(cu.MemcpyAsync(memory, host, BYTES, CUDA_COPY_DEFAULT, stream));
    cu.MemcpyAsync(host, more, BYTES, CUDA_COPY_DEFAULT, other);
}

static void free_in_use(void)
{
    prepare();
    reduce_on(stream);
    cu.Free(memory);
}

static void free_twice(void)
{
    prepare_cuda();
    OK(cu.Free(memory));
    cu.Free(memory);
}

static void freed_memory(void)
{
    prepare();
    void *gone = memory;
    OK(cu.Free(memory));
    nc.AllReduce(gone, gone, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
}

static void host_memory(void)
{
    static float host[FLOATS];
    prepare();
    nc.AllReduce(host, host, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
}

static void over_the_end(void)
{
    prepare();
    nc.AllReduce(memory, memory, FLOATS + 1, NCCL_F32, NCCL_SUM, comm, stream);
}

static void memory_of_another_device(void)
{
    prepare();
    OK(cu.SetDevice(7));
    OK(cu.Malloc(&memory, BYTES));
    nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
}

static void stream_of_another_device(void)
{
    prepare();
    OK(cu.SetDevice(7));
    OK(cu.StreamCreate(&other));
    nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, other);
}

static void event_of_another_device(void)
{
    prepare_cuda();
    OK(cu.SetDevice(7));
    OK(cu.EventCreate(&event));
    cu.EventRecord(event, stream);
}

static void destroyed_stream(void)
{
    prepare_cuda();
    OK(cu.StreamDestroy(other));
    cu.EventRecord(event, other);
}

static void destroyed_event(void)
{
    prepare_cuda();
    OK(cu.EventDestroy(event));
    cu.EventQuery(event);
}

static void destroyed_communicator(void)
{
    prepare();
    OK(nc.CommDestroy(comm));
    nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
}

static void aborted_communicator(void)
{
    nccl_status status;
    prepare();
    OK(nc.CommAbort(comm));
    nc.CommGetAsyncError(comm, &status);
}

static void finalized_communicator(void)
{
    prepare();
    OK(nc.CommFinalize(comm));
    nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
}

static nccl_config config_of(size_t size, unsigned int version)
{
    return (nccl_config){.size = size,
                         .magic = (unsigned int)NCCL_MAGIC,
                         .version = version,
                         .blocking = NCCL_NOT_SET,
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

static void in_progress(void)
{
    prepare_cuda();
    nccl_config config = config_of(48, 21800);
    config.blocking = 0;
    CHECK(NCCL_IN_PROGRESS, nc.CommInitRankConfig(&comm, 2, own_ids[0], 0, &config));
    nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
}

static void launch_in_progress(void)
{
    prepare_cuda();
    nccl_config config = config_of(48, 21800);
    config.blocking = 0;
    nccl_status status = nc.CommInitRankConfig(&comm, 1, own_ids[0], 0, &config);
    while (status == NCCL_IN_PROGRESS)
        OK(nc.CommGetAsyncError(comm, &status));
    stop_here("launch");
    CHECK(NCCL_IN_PROGRESS, nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, stream));
    cu.EventRecord(event, stream);
}

static void *reduce_in_thread(void *argument)
{
    (void)argument;
    reduce_on(other);
    return NULL;
}

static void two_threads(void)
{
    pthread_t thread;
    prepare();
    OK(nc.GroupStart());
    reduce_on(stream);
    pthread_create(&thread, NULL, reduce_in_thread, NULL);
    pthread_join(thread, NULL);
}

static void end_without_start(void)
{
    nc.GroupEnd();
}

static void wait_in_a_group(void)
{
    prepare();
    OK(nc.GroupStart());
    reduce_on(stream);
    cu.StreamSynchronize(stream);
}

static void different_operations(void)
{
    prepare();
    if (own_rank)
        nc.Broadcast(memory, memory, FLOATS, NCCL_F32, 0, comm, stream);
    else
        nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
    cu.StreamSynchronize(stream);
}

static void different_counts(void)
{
    prepare();
    nc.AllReduce(memory, memory, (size_t)(FLOATS - own_rank), NCCL_F32, NCCL_SUM, comm, stream);
    cu.StreamSynchronize(stream);
}

static void different_types(void)
{
    prepare();
    nc.AllGather(more, memory, 4, own_rank ? NCCL_I32 : NCCL_F32, comm, stream);
    cu.StreamSynchronize(stream);
}

static void different_roots(void)
{
    prepare();
    nc.Broadcast(memory, memory, FLOATS, NCCL_F32, own_rank, comm, stream);
    cu.StreamSynchronize(stream);
}

static void different_messages(void)
{
    prepare();
    if (own_rank)
        nc.Send(memory, 5, NCCL_F32, 0, comm, stream);
    else
        nc.Recv(memory, 6, NCCL_F32, 1, comm, stream);
    cu.StreamSynchronize(stream);
}

static void different_sizes(void)
{
    prepare_cuda();
    nc.CommInitRank(&comm, own_size + own_rank, own_ids[0], own_rank);
}

static void same_rank(void)
{
    prepare_cuda();
    nc.CommInitRank(&comm, own_size, own_ids[0], 0);
}

static void capture_and_wait(void)
{
    prepare_cuda();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    cu.StreamSynchronize(stream);
}

static void capture_and_allocate(void)
{
    prepare_cuda();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
    cu.Malloc(&memory, 1);
}

static void *query_in_thread(void *argument)
{
    (void)argument;
    cu.EventQuery(event);
    return NULL;
}

static void capture_and_query_elsewhere(void)
{
    pthread_t thread;
    prepare_cuda();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_GLOBAL));
    pthread_create(&thread, NULL, query_in_thread, NULL);
    pthread_join(thread, NULL);
}

static void captured_event(void)
{
    prepare_cuda();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    OK(cu.EventRecord(event, stream));
    cu.EventQuery(event);
}

static void event_from_outside(void)
{
    prepare_cuda();
    OK(cu.EventRecord(event, other));
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    cu.StreamWaitEvent(stream, event, 0);
}

static void unjoined_stream(void)
{
    cuda_graph graph;
    prepare_cuda();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    OK(cu.EventRecord(event, stream));
    OK(cu.StreamWaitEvent(other, event, 0));
    OK(cu.MemsetAsync(memory, 0, BYTES, other));
    cu.StreamEndCapture(stream, &graph);
}

static void race_in_a_graph(void)
{
    prepare();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    OK(cu.EventRecord(event, stream));
    OK(cu.StreamWaitEvent(other, event, 0));
    reduce_on(stream);
    cu.MemsetAsync(memory, 0, BYTES, other);
}

static void default_stream_in_a_capture(void)
{
    prepare_cuda();
    OK(cu.StreamCreate(&stream));
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    cu.MemsetAsync(memory, 0, BYTES, NULL);
}

static void graph_after_its_communicator(void)
{
    cuda_graph graph;
    cuda_graph_exec exec;
    prepare();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    reduce_on(stream);
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphInstantiate(&exec, graph, 0));
    OK(nc.CommDestroy(comm));
    cu.GraphLaunch(exec, stream);
    cu.StreamSynchronize(stream);
}

static void graph_after_its_memory(void)
{
    cuda_graph graph;
    cuda_graph_exec exec;
    prepare();
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_RELAXED));
    reduce_on(stream);
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphInstantiate(&exec, graph, 0));
    OK(cu.Free(memory));
    cu.GraphLaunch(exec, stream);
}

static void newer_field(void)
{
    int version;
    prepare_cuda();
    OK(nc.GetVersion(&version));
    nccl_config config = config_of(sizeof config, 23200);
    config.comm_name = version < 22703 ? "too new" : NULL;
    struct {
        nccl_config known;
        int later[16];
    } larger = {.known = config};
    larger.later[15] = 1;
    larger.known.size = sizeof larger;
    nc.CommInitRankConfig(&comm, 1, own_ids[0], 0, &larger.known);
}

static void unaligned_buffer(void)
{
    prepare();
    nc.AllReduce((char *)memory + 2, (char *)memory + 2, FLOATS / 2, NCCL_F32, NCCL_SUM, comm, stream);
}

static void foreign_redop(void)
{
    nccl_comm second;
    nccl_redop redop;
    float scalar = 2;
    prepare();
    OK(nc.CommInitRank(&second, 1, own_ids[1], 0));
    OK(nc.RedOpCreatePreMulSum(&redop, &scalar, NCCL_F32, NCCL_SCALAR_ON_HOST, second));
    nc.AllReduce(memory, memory, FLOATS, NCCL_F32, redop, comm, stream);
}

static void destroyed_redop(void)
{
    nccl_redop redop;
    float scalar = 2;
    prepare();
    OK(nc.RedOpCreatePreMulSum(&redop, &scalar, NCCL_F32, NCCL_SCALAR_ON_HOST, comm));
    OK(nc.RedOpDestroy(redop, comm));
    nc.AllReduce(memory, memory, FLOATS, NCCL_F32, redop, comm, stream);
}

static void scalar_overwritten(void)
{
    nccl_redop redop;
    prepare();
    OK(nc.RedOpCreatePreMulSum(&redop, more, NCCL_F32, NCCL_SCALAR_ON_DEVICE, comm));
    OK(nc.AllReduce(memory, memory, FLOATS, NCCL_F32, redop, comm, stream));
    cu.MemsetAsync(more, 0, 4, other);
}

static void destroy_while_it_hangs(void)
{
    setenv("STANDIN_ASYNC", "1:2", 1);
    prepare();
    reduce_on(stream);
    nccl_status status = NCCL_OK;
    while (status == NCCL_OK)
        OK(nc.CommGetAsyncError(comm, &status));
    nc.CommDestroy(comm);
}

static void call_cuda(void *argument)
{
    cu.EventQuery(argument);
}

static void call_in_a_host_function(void)
{
    prepare_cuda();
    OK(cu.LaunchHostFunc(stream, call_cuda, event));
    cu.StreamSynchronize(stream);
}

static void call_after_fork(void)
{
    int status;
    prepare_cuda();
    pid_t child = fork();
    if (!child) {
        cu.EventQuery(event);
        _exit(0);
    }
    waitpid(child, &status, 0);
    _exit(WEXITSTATUS(status));
}

static void register_freed_memory(void)
{
    void *handle;
    prepare();
    OK(cu.Free(memory));
    if (nc.CommRegister)
        nc.CommRegister(comm, memory, BYTES, &handle);
    else
        nc.AllReduce(memory, memory, FLOATS, NCCL_F32, NCCL_SUM, comm, stream);
}

static void deregister_twice(void)
{
    void *handle;
    prepare();
    if (!nc.CommRegister) {
        nc.RedOpDestroy(300, comm);
        return;
    }
    OK(nc.CommRegister(comm, memory, BYTES, &handle));
    OK(nc.CommDeregister(comm, handle));
    nc.CommDeregister(comm, handle);
}

static const struct rule {
    const char *name;
    int ranks;
    void (*violate)(void);
    const char *text;
} rules[] = {
    {"unordered_streams", 1, unordered_streams, "data race"},
    {"event_before_the_operation", 1, event_before_the_operation, "data race"},
    {"copy_before_the_event", 1, copy_before_the_event, "data race"},
    {"free_in_use", 1, free_in_use, "before the memory is freed"},
    {"free_twice", 1, free_twice, "free each piece once"},
    {"freed_memory", 1, freed_memory, "no live device memory"},
    {"host_memory", 1, host_memory, "no live device memory"},
    {"over_the_end", 1, over_the_end, "ends 4 bytes earlier"},
    {"memory_of_another_device", 1, memory_of_another_device, "memory of device 7"},
    {"stream_of_another_device", 1, stream_of_another_device, "on a stream of device 7"},
    {"event_of_another_device", 1, event_of_another_device, "of an event of device 7"},
    {"destroyed_stream", 1, destroyed_stream, "which does not exist"},
    {"destroyed_event", 1, destroyed_event, "which does not exist"},
    {"destroyed_communicator", 1, destroyed_communicator, "which does not exist"},
    {"aborted_communicator", 1, aborted_communicator, "which does not exist"},
    {"finalized_communicator", 1, finalized_communicator, "after ncclCommFinalize"},
    {"in_progress", 1, in_progress, "in progress"},
    {"launch_in_progress", 1, launch_in_progress, "still being launched"},
    {"two_threads", 1, two_threads, "in two threads at once"},
    {"end_without_start", 1, end_without_start, "ncclGroupEnd without ncclGroupStart"},
    {"wait_in_a_group", 1, wait_in_a_group, "nothing is launched yet"},
    {"different_operations", 2, different_operations, "calls ncclBroadcast(1024 of f32, root 0)"},
    {"different_counts", 2, different_counts, "calls ncclAllReduce(1023 of f32, sum)"},
    {"different_types", 2, different_types, "calls ncclAllGather(4 of i32)"},
    {"different_roots", 2, different_roots, "calls ncclBroadcast(1024 of f32, root 1)"},
    {"different_messages", 2, different_messages, "calls ncclRecv(6 of f32), and rank 1 calls ncclSend(5 of f32)"},
    {"different_sizes", 2, different_sizes, "give all ranks the same size"},
    {"same_rank", 2, same_rank, "rank 0 of a communicator is there already"},
    {"capture_and_wait", 1, capture_and_wait, "while a stream captures"},
    {"capture_and_allocate", 1, capture_and_allocate, "while a stream captures"},
    {"capture_and_query_elsewhere", 1, capture_and_query_elsewhere, "while a stream captures"},
    {"captured_event", 1, captured_event, "the event was recorded in a capturing stream"},
    {"event_from_outside", 1, event_from_outside, "a dependency from outside"},
    {"unjoined_stream", 1, unjoined_stream, "was not joined"},
    {"race_in_a_graph", 1, race_in_a_graph, "data race"},
    {"default_stream_in_a_capture", 1, default_stream_in_a_capture, "the default stream would depend"},
    {"graph_after_its_communicator", 1, graph_after_its_communicator, "after the communicator was destroyed"},
    {"graph_after_its_memory", 1, graph_after_its_memory, "no live device memory"},
    {"newer_field", 1, newer_field, "the struct of NCCL"},
    {"unaligned_buffer", 1, unaligned_buffer, "is not aligned to the 4 bytes"},
    {"foreign_redop", 1, foreign_redop, "with redop"},
    {"destroyed_redop", 1, destroyed_redop, "with redop"},
    {"scalar_overwritten", 1, scalar_overwritten, "data race"},
    {"call_in_a_host_function", 1, call_in_a_host_function, "in a function of cudaLaunchHostFunc"},
    {"call_after_fork", 1, call_after_fork, "in the child of a process"},
    {"register_freed_memory", 1, register_freed_memory, "live"},
    {"deregister_twice", 1, deregister_twice, "once, with"},
    {"destroy_while_it_hangs", 1, destroy_while_it_hangs, "would not return"},
};

static pid_t rank_start(const struct rule *rule, int rank, const nccl_id *ids, int out)
{
    pid_t child = fork();
    if (child)
        return child;
    dup2(out, STDERR_FILENO);
    close(out);
    own_rank = rank;
    own_size = rule->ranks;
    own_ids = ids;
    rule->violate();
    if (rule->ranks > 1) /* the other rank may be the one to find it */
        sleep(LIMIT_MS / 1000);
    _exit(0);
}

/* What the ranks say, until one of them has said that a rule is violated, or all have ended. */
static void read_all(int from, char *text, size_t bytes)
{
    struct pollfd poll_fd = {from, POLLIN, 0};
    size_t length = 0;
    ssize_t now = 1;
    while (now > 0 && length < bytes - 1 && !strstr(text, "cure:") && poll(&poll_fd, 1, LIMIT_MS) > 0) {
        now = read(from, text + length, bytes - 1 - length);
        length += now > 0 ? (size_t)now : 0;
        text[length] = 0;
    }
}

/* Whether it is not found. */
static bool try_rule(const struct rule *rule)
{
    nccl_id ids[2];
    int ends[2], status = 0;
    pid_t ranks[2];
    char text[4096] = "";
    OK(nc.GetUniqueId(&ids[0]));
    OK(nc.GetUniqueId(&ids[1]));
    if (pipe(ends))
        return true;
    for (int rank = 0; rank < rule->ranks; rank++)
        ranks[rank] = rank_start(rule, rank, ids, ends[1]);
    close(ends[1]);
    read_all(ends[0], text, sizeof text);
    close(ends[0]);
    pid_t first = waitpid(-1, &status, 0);
    for (int rank = 0; rank < rule->ranks; rank++)
        if (ranks[rank] != first) {
            kill(ranks[rank], SIGKILL);
            waitpid(ranks[rank], NULL, 0);
        }
    bool ended = WIFEXITED(status) && (only_logged || WEXITSTATUS(status) == VIOLATION);
    bool found = ended && strstr(text, "standin: RULE: ") && strstr(text, rule->text) && strstr(text, "cure: ");
    if (!found)
        fprintf(stderr, "%s: status %#x, not '%s' but:\n%s\n", rule->name, (unsigned int)status, rule->text, text);
    return !found;
}

/* Ranks that disagree wait for each other; so does the host for a communicator that has failed. */
static bool may_go_on(const struct rule *rule)
{
    return rule->ranks == 1 && rule->violate != destroy_while_it_hangs;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    calls_open(argv[1], argv[2]);
    int missed = 0, tried = 0;
    const char *mode = getenv("STANDIN_RULES");
    only_logged = mode && !strcmp(mode, "log");
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (argc < 4 ? !only_logged || may_go_on(&rules[i]) : !strcmp(argv[3], rules[i].name)) {
            missed += try_rule(&rules[i]);
            tried++;
        }
    printf("%d rules, %d not found\n", tried, missed);
    return missed || !tried;
}

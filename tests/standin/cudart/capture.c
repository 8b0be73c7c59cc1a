/* Captures and graphs. A graph runs its operations one after the other, in the order of their capture. */
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

/* A graph that was captured is destroyed when its last user is: the program, an instance, a launch. */
struct CUgraph_st {
    struct graph graph;
};

struct CUgraphExec_st {
    struct graph *graph;
};

struct capture *captures;
static _Thread_local unsigned int thread_mode = CUDA_CAPTURE_MODE_GLOBAL;

struct capture *capture_find(uint64_t id)
{
    for (struct capture *capture = captures; capture; capture = capture->next)
        if (capture->id == id)
            return capture;
    return NULL;
}

cuda_status capture_spoil(struct capture *capture, cuda_status status, const char *call, const char *cure)
{
    if (capture)
        capture->spoilt = true;
    standin_rule(cure, "%s while a stream captures: %s", call, cudaGetErrorString(status));
    return status;
}

static bool forbids(const struct capture *capture)
{
    bool own = pthread_equal(capture->thread, pthread_self());
    if (thread_mode == CUDA_CAPTURE_MODE_RELAXED || capture->mode == CUDA_CAPTURE_MODE_RELAXED)
        return false;
    return own || (thread_mode == CUDA_CAPTURE_MODE_GLOBAL && capture->mode == CUDA_CAPTURE_MODE_GLOBAL);
}

bool capture_allows(const char *call)
{
    for (struct capture *capture = captures; capture; capture = capture->next)
        if (forbids(capture)) {
            capture_spoil(
                capture, CUDA_CAPTURE_UNSUPPORTED, call,
                "call it after the capture, or between two cudaThreadExchangeStreamCaptureMode to relaxed and back");
            return false;
        }
    return true;
}

void capture_push(cuda_stream stream, struct node *node, struct standin_chain *chain)
{
    struct graph *graph = stream->capture->graph;
    node->chain = chain;
    *graph->tail = node;
    graph->tail = &node->next;
}

cuda_status capture_joins(cuda_stream stream, const struct CUevent_st *event)
{
    const char *call = "cudaStreamWaitEvent";
    struct capture *capture = capture_find(event->point->capture);
    if (!capture)
        return capture_spoil(stream->capture, event->point->capture ? CUDA_CAPTURED_EVENT : CUDA_CAPTURE_ISOLATION,
                             call,
                             "wait in a capture for events of this capture only, and record events again after it");
    if (stream->capture && stream->capture != capture)
        return capture_spoil(capture, CUDA_CAPTURE_ISOLATION, call, "do not join two captures");
    if (stream->is_default)
        return capture_spoil(capture, CUDA_CAPTURE_IMPLICIT, call, "capture in streams of your own");
    if (!stream->capture) {
        stream->before_capture = stream->clock;
        stream->capture = capture;
    }
    clock_merge(&stream->clock, &event->point->clock);
    return CUDA_OK;
}

cuda_status cudaStreamBeginCapture(cuda_stream handle, unsigned int mode)
{
    static uint64_t last_id;
    const char *call = "cudaStreamBeginCapture";
    cuda_status status = standin_fault(call);
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, call);
    if (!stream || stream->capture || stream->is_default) {
        standin_rule("capture in a stream of your own, and once at a time",
                     "%s on a default stream, or on one that captures", call);
        status = CUDA_CAPTURE_UNSUPPORTED;
    } else {
        struct CUgraph_st *made = calloc(1, sizeof *made);
        made->graph.refs = 1;
        made->graph.tail = &made->graph.head;
        struct capture *capture = malloc(sizeof *capture);
        *capture = (struct capture){.next = captures,
                                    .id = ++last_id,
                                    .mode = mode,
                                    .thread = pthread_self(),
                                    .origin = stream,
                                    .graph = &made->graph};
        captures = capture;
        stream->before_capture = stream->clock;
        stream->capture = capture;
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

static void graph_release(struct graph *graph)
{
    if (--graph->refs)
        return;
    while (graph->head) {
        struct node *node = graph->head;
        graph->head = node->next;
        if (node->release)
            node->release(node->argument);
        node_free(node);
    }
    accesses_free(graph->accesses);
    free(graph);
}

/* The streams leave the capture. */
static void leave(struct capture *capture)
{
    for (cuda_stream stream = streams; stream; stream = stream->next) {
        if (stream->capture != capture)
            continue;
        uint32_t now = stream->clock.at[stream->actor];
        stream->clock = stream->before_capture;
        stream->clock.at[stream->actor] = now;
        stream->capture = NULL;
    }
    struct capture **at = &captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
}

/* Something was captured in every other stream only if the first has waited for it. */
static bool all_joined(const struct capture *capture)
{
    for (cuda_stream other = streams; other; other = other->next) {
        uint32_t now = other->clock.at[other->actor];
        if (other->capture == capture && capture->origin->clock.at[other->actor] < now &&
            other->before_capture.at[other->actor] < now)
            return false;
    }
    return true;
}

static cuda_status end_capture(struct capture *capture, cuda_stream stream, const char *call)
{
    if (!capture || capture->origin != stream)
        return capture_spoil(capture, CUDA_CAPTURE_UNMATCHED, call, "end the capture in the stream that it began in");
    if (capture->mode != CUDA_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return capture_spoil(capture, CUDA_CAPTURE_WRONG_THREAD, call, "end the capture in the thread that began it");
    bool joined = all_joined(capture);
    leave(capture);
    if (!joined)
        standin_rule("let the first stream wait for an event at the end of each other one", "%s: %s", call,
                     cudaGetErrorString(CUDA_CAPTURE_UNJOINED));
    return capture->spoilt ? CUDA_CAPTURE_SPOILT : joined ? CUDA_OK : CUDA_CAPTURE_UNJOINED;
}

cuda_status cudaStreamEndCapture(cuda_stream handle, cuda_graph *graph)
{
    const char *call = "cudaStreamEndCapture";
    cuda_status status = standin_fault(call);
    if (status)
        return error(status);
    *graph = NULL;
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, call);
    struct capture *capture = stream ? stream->capture : NULL;
    status = end_capture(capture, stream, call);
    bool over = capture && !stream->capture;
    pthread_mutex_unlock(&lock);
    if (over && status)
        graph_release(capture->graph);
    else if (over)
        *graph = (struct CUgraph_st *)capture->graph;
    if (over)
        free(capture);
    return error(status);
}

cuda_status cudaStreamIsCapturing(cuda_stream handle, unsigned int *state)
{
    const char *call = "cudaStreamIsCapturing";
    cuda_status status = standin_fault(call);
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, call);
    for (cuda_stream blocking = streams; blocking && stream && stream->is_default; blocking = blocking->next)
        if (blocking->capture && blocking->is_blocking && blocking->device == stream->device)
            status = CUDA_CAPTURE_IMPLICIT;
    *state = !stream || !stream->capture ? CUDA_CAPTURE_NONE
             : stream->capture->spoilt   ? CUDA_CAPTURE_INVALIDATED
                                         : CUDA_CAPTURE_ACTIVE;
    pthread_mutex_unlock(&lock);
    return error(stream ? status : CUDA_INVALID_HANDLE);
}

cuda_status cudaThreadExchangeStreamCaptureMode(unsigned int *mode)
{
    cuda_status status = standin_fault("cudaThreadExchangeStreamCaptureMode");
    if (status || *mode > CUDA_CAPTURE_MODE_RELAXED)
        return error(status ? status : CUDA_INVALID_VALUE);
    unsigned int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_OK;
}

cuda_status cudaGraphInstantiate(cuda_graph_exec *exec, cuda_graph graph, unsigned long long flags)
{
    (void)flags;
    cuda_status status = standin_fault("cudaGraphInstantiate");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    *exec = malloc(sizeof **exec);
    (*exec)->graph = &graph->graph;
    graph->graph.refs++;
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

cuda_status cudaGraphInstantiateWithFlags(cuda_graph_exec *exec, cuda_graph graph, unsigned long long flags)
{
    return cudaGraphInstantiate(exec, graph, flags);
}

static void graph_run(void *argument)
{
    struct graph *graph = argument;
    for (struct node *node = graph->head; node; node = node->next)
        node->run(node->argument);
}

static void graph_over(void *argument)
{
    struct graph *graph = argument;
    pthread_mutex_lock(&lock);
    bool last = graph->refs == 1;
    graph->refs -= !last;
    pthread_mutex_unlock(&lock);
    if (last)
        graph_release(graph);
}

/* Locked. The memory that the graph uses, once more, now in the order of the stream. */
static bool replay_accesses(const struct graph *graph, cuda_stream stream)
{
    bool may = true;
    for (const struct access *access = graph->accesses; access; access = access->next) {
        struct standin_access again = {(void *)access->from, access->to - access->from, access->write};
        may = memory_use(&again, 1, stream, -1, access->text) && may;
    }
    return may;
}

/* Locked. Operations of communicators come after what these did before, and what follows comes after the graph. */
static void chains_wait(const struct graph *graph, cuda_stream stream)
{
    for (struct node *node = graph->head; node; node = node->next)
        if (node->chain && node->chain->last) {
            clock_merge(&stream->clock, &node->chain->last->clock);
            stream_wait(stream, node->chain->last);
        }
}

static void chains_follow(const struct graph *graph, cuda_stream stream)
{
    for (struct node *node = graph->head; node; node = node->next)
        if (node->chain) {
            point_release(node->chain->last);
            node->chain->last = stream_end(stream);
        }
}

cuda_status cudaGraphLaunch(cuda_graph_exec exec, cuda_stream handle)
{
    cuda_status status = standin_fault("cudaGraphLaunch");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    cuda_stream stream = stream_find(handle, current_device, "cudaGraphLaunch");
    if (!stream || !stream_begin(stream, "cudaGraphLaunch")) {
        status = CUDA_INVALID_HANDLE;
    } else {
        chains_wait(exec->graph, stream);
        status = replay_accesses(exec->graph, stream) ? CUDA_OK : CUDA_INVALID_VALUE;
        exec->graph->refs++;
        stream_run(stream, graph_run, graph_over, exec->graph);
        chains_follow(exec->graph, stream);
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaGraphDestroy(cuda_graph graph)
{
    cuda_status status = standin_fault("cudaGraphDestroy");
    if (!status)
        graph_over(&graph->graph);
    return error(status);
}

cuda_status cudaGraphExecDestroy(cuda_graph_exec exec)
{
    cuda_status status = standin_fault("cudaGraphExecDestroy");
    if (status)
        return error(status);
    graph_over(exec->graph);
    free(exec);
    return CUDA_OK;
}

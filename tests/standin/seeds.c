/* Random programs that keep the rules: streams, events, host waits, copies, operations of two communicators, captured
 * and not, with random delays. They are never blamed, and what they calculate is right. seeds CUDART NCCL FIRST COUNT
 *
 * All ranks draw the same program from the seed, and calculate on their side what each buffer must hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

enum { BUFFERS = 4, STREAMS = 3, FLOATS = 500, STEPS = 60, RANKS = 3 };

static uint64_t state;
static int own_rank, own_size;
static nccl_comm comms[2];
static cuda_stream streams[STREAMS];
static struct buffer {
    float *device;
    float expected[RANKS]; /* of each rank; all elements are the same */
    cuda_event written;    /* after the last operation on it */
} buffers[BUFFERS];

static uint32_t draw(uint32_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % limit;
}

/* The stream waits for what was done to the buffer, and the buffer's event comes after what is done now. */
static cuda_stream stream_for(struct buffer *first, struct buffer *second)
{
    cuda_stream stream = streams[draw(STREAMS)];
    OK(cu.StreamWaitEvent(stream, first->written, 0));
    if (second)
        OK(cu.StreamWaitEvent(stream, second->written, 0));
    return stream;
}

static void done(struct buffer *first, struct buffer *second, cuda_stream stream)
{
    OK(cu.EventRecord(first->written, stream));
    if (second)
        OK(cu.EventRecord(second->written, stream));
}

static void reduce(struct buffer *from, struct buffer *into)
{
    cuda_stream stream = stream_for(from, into);
    float sum = 0, most = from->expected[0];
    bool adds = draw(2);
    OK(nc.AllReduce(from->device, into->device, FLOATS, NCCL_F32, adds ? NCCL_SUM : NCCL_MAX, comms[draw(2)], stream));
    for (int rank = 0; rank < own_size; rank++) {
        sum += from->expected[rank];
        most = from->expected[rank] > most ? from->expected[rank] : most;
    }
    for (int rank = 0; rank < own_size; rank++)
        into->expected[rank] = adds ? sum : most;
    done(from, into, stream);
}

static void set(struct buffer *buffer)
{
    float value = (float)draw(5), host[FLOATS];
    for (int rank = 0; rank < own_size; rank++)
        buffer->expected[rank] = value + (float)rank;
    for (int i = 0; i < FLOATS; i++)
        host[i] = value + (float)own_rank;
    cuda_stream stream = stream_for(buffer, NULL);
    OK(cu.MemcpyAsync(buffer->device, host, sizeof host, CUDA_COPY_DEFAULT, stream));
    done(buffer, NULL, stream);
}

static void copy(struct buffer *from, struct buffer *into)
{
    cuda_stream stream = stream_for(from, into);
    OK(cu.MemcpyAsync(into->device, from->device, FLOATS * sizeof(float), CUDA_COPY_DEFAULT, stream));
    memcpy(into->expected, from->expected, sizeof into->expected);
    done(from, into, stream);
}

static void pass_on(struct buffer *from, struct buffer *into)
{
    cuda_stream stream = stream_for(from, into);
    nccl_comm comm = comms[draw(2)];
    OK(nc.GroupStart());
    OK(nc.Send(from->device, FLOATS, NCCL_F32, (own_rank + 1) % own_size, comm, stream));
    OK(nc.Recv(into->device, FLOATS, NCCL_F32, (own_rank + own_size - 1) % own_size, comm, stream));
    OK(nc.GroupEnd());
    for (int rank = 0; rank < own_size; rank++)
        into->expected[rank] = from->expected[(rank + own_size - 1) % own_size];
    done(from, into, stream);
}

static void check(struct buffer *buffer)
{
    float host[FLOATS];
    if (draw(2)) {
        OK(cu.EventSynchronize(buffer->written));
        OK(cu.Memcpy(host, buffer->device, sizeof host, CUDA_COPY_DEFAULT));
    } else {
        cuda_stream stream = stream_for(buffer, NULL);
        OK(cu.MemcpyAsync(host, buffer->device, sizeof host, CUDA_COPY_DEFAULT, stream));
    }
    for (int i = 0; i < FLOATS; i++)
        if (host[i] != buffer->expected[own_rank]) {
            fprintf(stderr, "rank %d: %g, not %g\n", own_rank, (double)host[i], (double)buffer->expected[own_rank]);
            exit(1);
        }
}

/* Reduces a buffer in place, twice, in a graph. */
static void captured(struct buffer *buffer)
{
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_stream stream = stream_for(buffer, NULL);
    OK(cu.StreamBeginCapture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
    OK(nc.AllReduce(buffer->device, buffer->device, FLOATS, NCCL_F32, NCCL_MIN, comms[0], stream));
    OK(nc.AllReduce(buffer->device, buffer->device, FLOATS, NCCL_F32, NCCL_MIN, comms[1], stream));
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphInstantiate(&exec, graph, 0));
    OK(cu.GraphLaunch(exec, stream));
    OK(cu.GraphDestroy(graph));
    OK(cu.GraphExecDestroy(exec));
    float least = buffer->expected[0];
    for (int rank = 0; rank < own_size; rank++)
        least = buffer->expected[rank] < least ? buffer->expected[rank] : least;
    for (int rank = 0; rank < own_size; rank++)
        buffer->expected[rank] = least;
    done(buffer, NULL, stream);
}

/* The memory is another one from now on. */
static void replace(struct buffer *buffer)
{
    void *made;
    OK(cu.EventSynchronize(buffer->written));
    OK(cu.Free(buffer->device));
    OK(cu.Malloc(&made, FLOATS * sizeof(float)));
    buffer->device = made;
    set(buffer);
}

static void step(void)
{
    struct buffer *from = &buffers[draw(BUFFERS)], *into = &buffers[draw(BUFFERS)];
    switch (draw(8)) {
    case 0:
        set(from);
        break;
    case 1:
        if (from != into)
            copy(from, into);
        break;
    case 2:
        if (from != into)
            pass_on(from, into);
        break;
    case 3:
        check(from);
        break;
    case 4:
        captured(from);
        break;
    case 5:
        replace(from);
        break;
    default:
        reduce(from, into == from || draw(2) ? into : from);
    }
}

static void run(int rank, int size, const nccl_id *ids)
{
    own_rank = rank;
    own_size = size;
    OK(cu.SetDevice(rank));
    for (int i = 0; i < 2; i++)
        OK(nc.CommInitRank(&comms[i], size, ids[i], rank));
    for (int i = 0; i < STREAMS; i++)
        OK(cu.StreamCreateWithFlags(&streams[i], i ? CUDA_STREAM_NON_BLOCKING : 0));
    for (int i = 0; i < BUFFERS; i++) {
        void *made;
        OK(cu.Malloc(&made, FLOATS * sizeof(float)));
        buffers[i].device = made;
        OK(cu.EventCreateWithFlags(&buffers[i].written, CUDA_EVENT_DISABLE_TIMING));
        set(&buffers[i]);
    }
    for (int i = 0; i < STEPS; i++)
        step();
    for (int i = 0; i < BUFFERS; i++) {
        check(&buffers[i]);
        OK(cu.EventSynchronize(buffers[i].written));
        OK(cu.Free(buffers[i].device));
        OK(cu.EventDestroy(buffers[i].written));
    }
    for (int i = 0; i < 2; i++)
        OK(nc.CommDestroy(comms[i]));
    for (int i = 0; i < STREAMS; i++)
        OK(cu.StreamDestroy(streams[i]));
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    calls_open(argv[1], argv[2]);
    int start = atoi(argv[3]), count = atoi(argv[4]);
    for (int seed = start; seed < start + count; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        setenv("STANDIN_SEED", text, 1);
        setenv("STANDIN_LEAKS", "1", 1);
        state = (uint64_t)seed;
        if (ranks_run(1 + seed % RANKS, run)) {
            fprintf(stderr, "seed %d\n", seed);
            return 1;
        }
    }
    printf("%d seeds\n", count);
    return 0;
}

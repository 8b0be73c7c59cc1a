/* A correct program: every operation with every type, and the results. works CUDART NCCL SIZES... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"

static nccl_comm comm;
static cuda_stream stream;
static int own_rank, own_size;

static float *device_floats(size_t count)
{
    void *memory;
    OK(cu.Malloc(&memory, count * sizeof(float)));
    return memory;
}

static void fill(float *device, size_t count, float base)
{
    float *host = malloc(count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] = base + (float)(i % 100);
    OK(cu.MemcpyAsync(device, host, count * sizeof *host, CUDA_COPY_DEFAULT, stream));
    free(host);
}

/* Element i is `factor` * (i % 100) + base. */
static void expect(const float *device, size_t count, float factor, float base, const char *what)
{
    float *host = malloc(count * sizeof *host);
    OK(cu.MemcpyAsync(host, device, count * sizeof *host, CUDA_COPY_DEFAULT, stream));
    OK(cu.StreamSynchronize(stream));
    for (size_t i = 0; i < count; i++)
        if (host[i] != base + factor * (float)(i % 100)) {
            fprintf(stderr, "%s, rank %d of %d, element %zu of %zu: %g\n", what, own_rank, own_size, i, count,
                    (double)host[i]);
            exit(1);
        }
    free(host);
}

static void try_reductions(size_t count)
{
    size_t all = count * (size_t)own_size;
    float *in = device_floats(all), *out = device_floats(all);
    float ranks = (float)own_size, sum = ranks * (ranks + 1) / 2;
    fill(in, all, (float)own_rank + 1);
    OK(nc.AllReduce(in, out, count, NCCL_F32, NCCL_SUM, comm, stream));
    expect(out, count, ranks, sum, "all_reduce");
    OK(nc.AllReduce(in, out, count, NCCL_F32, NCCL_MAX, comm, stream));
    expect(out, count, 1, ranks, "max");
    OK(nc.Reduce(in, out, count, NCCL_F32, NCCL_SUM, own_size - 1, comm, stream));
    if (own_rank == own_size - 1)
        expect(out, count, ranks, sum, "reduce");
    fill(in, all, 0);
    OK(nc.ReduceScatter(in, out, count, NCCL_F32, NCCL_SUM, comm, stream));
    OK(nc.AllGather(out, in, count, NCCL_F32, comm, stream));
    expect(in, all, ranks, 0, "reduce_scatter");
    OK(cu.Free(in));
    OK(cu.Free(out));
}

static void try_blocks(size_t count)
{
    size_t all = count * (size_t)own_size;
    float *in = device_floats(all), *out = device_floats(all);
    fill(in, count, (float)own_rank);
    OK(nc.Broadcast(in, out, count, NCCL_F32, 0, comm, stream));
    expect(out, count, 1, 0, "broadcast");
    OK(nc.AllGather(in, out, count, NCCL_F32, comm, stream));
    for (int rank = 0; rank < own_size; rank++)
        expect(out + (size_t)rank * count, count, 1, (float)rank, "all_gather");
    OK(nc.GroupStart());
    OK(nc.Send(in, count, NCCL_F32, (own_rank + 1) % own_size, comm, stream));
    OK(nc.Recv(out, count, NCCL_F32, (own_rank + own_size - 1) % own_size, comm, stream));
    OK(nc.GroupEnd());
    expect(out, count, 1, (float)((own_rank + own_size - 1) % own_size), "ring");
    if (nc.AlltoAll) {
        for (int rank = 0; rank < own_size; rank++)
            fill(in + (size_t)rank * count, count, (float)(own_rank * 16 + rank));
        OK(nc.AlltoAll(in, out, count, NCCL_F32, comm, stream));
        for (int rank = 0; rank < own_size; rank++)
            expect(out + (size_t)rank * count, count, 1, (float)(rank * 16 + own_rank), "all_to_all");
        OK(nc.Gather(in, out, count, NCCL_F32, own_size - 1, comm, stream));
        OK(nc.Scatter(in, out, count, NCCL_F32, 0, comm, stream));
        expect(out, count, 1, (float)own_rank, "scatter");
    }
    OK(cu.StreamSynchronize(stream));
    OK(cu.Free(in));
    OK(cu.Free(out));
}

/* Two streams and an event, a split, and the time of small operations. */
static void try_others(void)
{
    float *in = device_floats(8);
    fill(in, 8, 1);
    OK(cu.StreamSynchronize(stream));
    struct timespec from, to;
    enum { TURNS = 200 };
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < TURNS; i++) {
        OK(nc.AllReduce(in, in, 8, NCCL_F32, NCCL_MAX, comm, stream));
        OK(cu.StreamSynchronize(stream));
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (!own_rank && getenv("STANDIN_TIMES"))
        printf("%d ranks: %.1f us\n", own_size,
               ((double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3) / TURNS);
    expect(in, 8, 1, 1, "in turn");
    nccl_comm half;
    OK(nc.CommSplit(comm, own_rank % 2, -own_rank, &half, NULL));
    int rank, size;
    OK(nc.CommUserRank(half, &rank));
    OK(nc.CommCount(half, &size));
    TRUE(size == (own_size + 1 - own_rank % 2) / 2 && rank == size - 1 - own_rank / 2);
    OK(nc.AllReduce(in, in, 8, NCCL_F32, NCCL_SUM, half, stream));
    expect(in, 8, (float)size, (float)size, "split");
    OK(nc.CommDestroy(half));
    OK(cu.Free(in));
}

static void run(int rank, int size, const nccl_id *ids)
{
    own_rank = rank;
    own_size = size;
    OK(cu.SetDevice(rank % 8));
    OK(cu.StreamCreateWithFlags(&stream, CUDA_STREAM_NON_BLOCKING));
    nccl_config config = {.size = 48,
                          .magic = (unsigned int)NCCL_MAGIC,
                          .version = 21800,
                          .blocking = 1,
                          .cga_cluster_size = NCCL_NOT_SET,
                          .min_ctas = NCCL_NOT_SET,
                          .max_ctas = NCCL_NOT_SET,
                          .split_share = NCCL_NOT_SET};
    OK(nc.CommInitRankConfig(&comm, size, ids[0], rank, &config));
    static const size_t counts[] = {1, 1000, 100001};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        try_reductions(counts[i]);
        try_blocks(counts[i]);
    }
    try_others();
    OK(nc.CommFinalize(comm));
    OK(nc.CommDestroy(comm));
    OK(cu.StreamDestroy(stream));
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    calls_open(argv[1], argv[2]);
    int bad = 0;
    for (int i = 3; i < argc; i++)
        bad += ranks_run(atoi(argv[i]), run);
    return bad != 0;
}

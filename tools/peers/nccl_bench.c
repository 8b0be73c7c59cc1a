/* A bare NCCL program, measured as comm-bench measures: what libcomm's calls cost over NCCL's own.
 *
 *     commrun -n 2 nccl_bench --id-file FILE [--bytes 8,1048576] [--ms 60] [--repeats 5] [--on-stream | --captured]
 *
 * all_reduce of f32 in place. Without --on-stream each iteration waits for the stream; with it, the mean is the time on
 * the stream, and the median and p99 are the host's time for a call. With --captured the call is captured into a graph,
 * and each iteration launches it. The rows are comm-bench's CSV.
 * CUDA and NCCL are opened when it runs (COMM_NCCL_CUDART and COMM_NCCL_LIBRARY name their files), so that one program
 * works with any version. FILE must not exist before; it carries NCCL's unique id. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend_nccl/nccl_api.h"

enum { SIZES_MAX = 64, REPEATS_MAX = 100, ITERATIONS_MIN = 4, ITERATIONS_MAX = 20000, SINGLES_MAX = 2000,
       CAPTURE_OF_THREAD = 1 };

struct options {
    const char *id_file;
    size_t sizes[SIZES_MAX];
    int size_count, on_stream, captured, repeats;
    double ms;
};

struct cuda_api cuda;
struct nccl_api nccl;
static int rank, ranks;
static nccl_comm comm;
static cuda_stream stream;
static void *graph; /* of one call; NULL: calls are made */

/* What only this program calls of CUDA. */
static struct {
    cuda_status (*begin_capture)(cuda_stream stream, unsigned int mode);
    cuda_status (*end_capture)(cuda_stream stream, void **graph);
    cuda_status (*instantiate)(void **executable, void *graph, unsigned long long flags);
    cuda_status (*launch)(void *executable, cuda_stream stream);
    cuda_status (*destroy)(void *graph);
    cuda_status (*exec_destroy)(void *executable);
} graphs;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "nccl_bench: rank %d: %s: %s\n", rank, what, why);
    exit(1);
}

static void check_cuda(cuda_status status, const char *what)
{
    if (status != CUDA_OK)
        die(what, cuda.GetErrorString(status));
}

static void check_nccl(nccl_status status, const char *what)
{
    if (status != NCCL_OK)
        die(what, nccl.GetLastError(comm));
}

/* ---- The libraries ---- */

static void *open_library(const char *variable, const char *const *names)
{
    const char *given = getenv(variable);
    void *object = given && *given ? dlopen(given, RTLD_NOW) : NULL;
    for (size_t i = 0; !(given && *given) && !object && names[i]; i++)
        object = dlopen(names[i], RTLD_NOW);
    if (!object)
        die(variable, dlerror());
    return object;
}

/* Calls that are newer than the library stay NULL; the few that are used here are old. */
static void take(void *object, const char *name, void *function)
{
    void *symbol = dlsym(object, name);
    memcpy(function, &symbol, sizeof symbol);
}

static void open_libraries(void)
{
    static const char *const cuda_names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", NULL };
    static const char *const nccl_names[] = { "libnccl.so.2", "libnccl.so", NULL };
    void *object = open_library("COMM_NCCL_CUDART", cuda_names);
#define CALL(result, name, arguments) take(object, "cuda" #name, &cuda.name);
#include "backend_nccl/cuda.def"
#undef CALL
    take(object, "cudaStreamBeginCapture", &graphs.begin_capture);
    take(object, "cudaStreamEndCapture", &graphs.end_capture);
    take(object, "cudaGraphInstantiateWithFlags", &graphs.instantiate);
    take(object, "cudaGraphLaunch", &graphs.launch);
    take(object, "cudaGraphDestroy", &graphs.destroy);
    take(object, "cudaGraphExecDestroy", &graphs.exec_destroy);
    object = open_library("COMM_NCCL_LIBRARY", nccl_names);
#define CALL(since, result, name, arguments) take(object, "nccl" #name, &nccl.name);
#include "backend_nccl/nccl.def"
#undef CALL
}

/* ---- Joining ---- */

static void share_id(const char *path, nccl_id *id)
{
    char partial[4096];
    FILE *file;
    snprintf(partial, sizeof partial, "%s.part", path);
    if (rank == 0) {
        check_nccl(nccl.GetUniqueId(id), "ncclGetUniqueId");
        file = fopen(partial, "wb");
        if (!file || fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) != 0 || rename(partial, path) != 0)
            die(path, "cannot be written");
        return;
    }
    for (int looks = 0; !(file = fopen(path, "rb")); looks++) {
        if (looks == 6000)
            die(path, "rank 0 has not written it");
        usleep(10000);
    }
    if (fread(id, sizeof *id, 1, file) != 1)
        die(path, "cannot be read");
    fclose(file);
}

static void join(const struct options *o)
{
    nccl_id id = { { 0 } };
    int devices = 0, version = 0;
    check_cuda(cuda.GetDeviceCount(&devices), "cudaGetDeviceCount");
    const char *local = getenv("LOCAL_RANK");
    check_cuda(cuda.SetDevice((local ? atoi(local) : rank) % (devices ? devices : 1)), "cudaSetDevice");
    check_cuda(cuda.StreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0), "cudaStreamCreateWithPriority");
    check_nccl(nccl.GetVersion(&version), "ncclGetVersion");
    nccl_config config = { .size = offsetof(nccl_config, traffic_class), .magic = (unsigned int)NCCL_MAGIC,
                           .version = 21805, .blocking = 1, .cga_cluster_size = NCCL_NOT_SET, .min_ctas = NCCL_NOT_SET,
                           .max_ctas = NCCL_NOT_SET, .split_share = NCCL_NOT_SET };
    share_id(o->id_file, &id);
    check_nccl(nccl.CommInitRankConfig(&comm, ranks, id, rank, &config), "ncclCommInitRankConfig");
}

/* ---- Measuring ---- */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void wait_for_stream(void)
{
    check_cuda(cuda.StreamSynchronize(stream), "cudaStreamSynchronize");
}

static void call(float *data, size_t count, int waits)
{
    if (graph)
        check_cuda(graphs.launch(graph, stream), "cudaGraphLaunch");
    else
        check_nccl(nccl.AllReduce(data, data, count, NCCL_F32, NCCL_SUM, comm, stream), "ncclAllReduce");
    if (waits)
        wait_for_stream();
}

/* From here on, `call` launches what it would have done. */
static void capture(float *data, size_t count)
{
    void *captured;
    call(data, count, 1);
    check_cuda(graphs.begin_capture(stream, CAPTURE_OF_THREAD), "cudaStreamBeginCapture");
    call(data, count, 0);
    check_cuda(graphs.end_capture(stream, &captured), "cudaStreamEndCapture");
    check_cuda(graphs.instantiate(&graph, captured, 0), "cudaGraphInstantiateWithFlags");
    check_cuda(graphs.destroy(captured), "cudaGraphDestroy");
}

/* The largest of all ranks. */
static double largest(double value)
{
    static double *word;
    if (!word)
        check_cuda(cuda.Malloc((void **)&word, sizeof *word), "cudaMalloc");
    check_cuda(cuda.MemcpyAsync(word, &value, sizeof value, CUDA_COPY_DEFAULT, stream), "cudaMemcpyAsync");
    check_nccl(nccl.AllReduce(word, word, 1, NCCL_F64, NCCL_MAX, comm, stream), "ncclAllReduce");
    check_cuda(cuda.MemcpyAsync(&value, word, sizeof value, CUDA_COPY_DEFAULT, stream), "cudaMemcpyAsync");
    wait_for_stream();
    return value;
}

static double mean_of(float *data, size_t count, long iterations, int on_stream)
{
    double begin = now_us();
    for (long i = 0; i < iterations; i++)
        call(data, count, !on_stream);
    wait_for_stream();
    return (now_us() - begin) / (double)iterations;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct options *o, float *data, size_t bytes)
{
    static double means[REPEATS_MAX], singles[SINGLES_MAX];
    size_t count = bytes / sizeof *data;
    if (o->captured)
        capture(data, count);
    mean_of(data, count, 2, o->on_stream);
    double estimate = largest(mean_of(data, count, 20, o->on_stream)), wanted = o->ms * 1e3 / estimate;
    long iterations = wanted > ITERATIONS_MAX ? ITERATIONS_MAX
                      : wanted < ITERATIONS_MIN ? ITERATIONS_MIN : (long)wanted;
    mean_of(data, count, iterations / 10 + 1, o->on_stream);
    for (int i = 0; i < o->repeats; i++) {
        largest(0); /* a barrier */
        means[i] = largest(mean_of(data, count, iterations, o->on_stream));
    }
    long single_count = iterations < SINGLES_MAX ? iterations : SINGLES_MAX;
    largest(0);
    for (long i = 0; i < single_count; i++) {
        double begin = now_us();
        call(data, count, !o->on_stream);
        singles[i] = now_us() - begin;
        wait_for_stream();
    }
    if (graph)
        check_cuda(graphs.exec_destroy(graph), "cudaGraphExecDestroy");
    graph = NULL;
    qsort(means, (size_t)o->repeats, sizeof *means, compare);
    qsort(singles, (size_t)single_count, sizeof *singles, compare);
    double mean = means[o->repeats / 2], bandwidth = (double)bytes / mean * 1e-3;
    if (rank == 0)
        printf("all_reduce,nccl,%d,%zu,%.3f,%.3f,%.3f,%.4f,%.4f,0\n", ranks, bytes, mean, singles[single_count / 2],
               singles[(single_count * 99 + 99) / 100 - 1], bandwidth, bandwidth * 2 * (ranks - 1) / ranks);
    fflush(stdout);
}

static void parse(int argc, char **argv, struct options *o)
{
    char *list = "8,1024,65536,1048576,16777216", *end;
    for (int i = 1; i < argc; i++) {
        char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--on-stream") == 0)
            o->on_stream = 1;
        else if (strcmp(argv[i], "--captured") == 0)
            o->on_stream = o->captured = 1;
        else if (strcmp(argv[i], "--id-file") == 0)
            o->id_file = value, i++;
        else if (strcmp(argv[i], "--bytes") == 0)
            list = value, i++;
        else if (strcmp(argv[i], "--ms") == 0)
            o->ms = atof(value), i++;
        else if (strcmp(argv[i], "--repeats") == 0)
            o->repeats = atoi(value), i++;
        else
            die(argv[i], "no such option");
    }
    for (; *list && o->size_count < SIZES_MAX; list = *end == ',' ? end + 1 : end) {
        o->sizes[o->size_count] = strtoull(list, &end, 10);
        if (end == list || o->sizes[o->size_count++] < sizeof(float))
            die(list, "--bytes takes numbers from 4 on, with commas between them");
    }
    if (!o->id_file || o->repeats < 1 || o->repeats > REPEATS_MAX || !(o->ms > 0) || o->size_count == 0)
        die("usage", "nccl_bench --id-file FILE [--bytes LIST] [--ms MS] [--repeats N] [--on-stream | --captured], "
                     "under commrun");
}

int main(int argc, char **argv)
{
    struct options o = { .ms = 60, .repeats = 5 };
    const char *own = getenv("RANK"), *all = getenv("WORLD_SIZE");
    float *data;
    rank = own ? atoi(own) : 0;
    ranks = all ? atoi(all) : 1;
    parse(argc, argv, &o);
    open_libraries();
    join(&o);
    if (rank == 0)
        printf("op,backend,ranks,bytes,mean_us,median_us,p99_us,algbw_GBps,busbw_GBps,errors\n");
    for (int i = 0; i < o.size_count; i++) {
        check_cuda(cuda.Malloc((void **)&data, o.sizes[i]), "cudaMalloc");
        measure(&o, data, o.sizes[i]);
        check_cuda(cuda.Free(data), "cudaFree");
    }
    check_nccl(nccl.CommDestroy(comm), "ncclCommDestroy");
    check_cuda(cuda.StreamDestroy(stream), "cudaStreamDestroy");
    return 0;
}

/* Each call of CUDA and NCCL fails once, on one of two ranks, in a program that uses a little of everything: both
 * ranks come to their end within the limit, a rank that fails says why, and nothing is left. On the stand-in of
 * tests/standin.
 * Usage: failing_calls [SEED [PARTS [CALL]]]: one of PARTS parts of the calls, drawn by the seed; 1: all. */
#include <time.h>

#include "cases.h"

enum { COUNT = 2000, BLOCK = COUNT / 4, LIMIT_MS = 1500, LIMIT_S = 25 };

/* The call that fails, which time, and what it returns. */
struct failure {
    char call[64];
    int nth;
    unsigned int status;
};

static const char *const names[] = {
#define CALL(result, name, arguments) "cuda" #name,
#include "cuda.def"
#undef CALL
#define CALL(since, result, name, arguments) "nccl" #name,
#include "nccl.def"
#undef CALL
};
enum { NAMES = sizeof names / sizeof *names };

struct use {
    comm_group *world;
    cuda_stream stream;
    int32_t *a, *b;
    int rank, size;
};

static comm_status in_streams(const struct use *u)
{
    comm_op_options o = on_stream(u->stream), p = on_gpu();
    int32_t factor = 2;
    comm_work *work = NULL;
    comm_status status = comm_all_reduce(u->world, u->a, u->a, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL);
    p.premul = &factor;
    if (status == COMM_OK)
        status = comm_all_reduce(u->world, u->a, u->b, COUNT, COMM_DTYPE_I32, COMM_REDOP_PREMUL_SUM, &p, &work);
    if (status == COMM_OK)
        status = comm_work_wait_stream(work, u->stream);
    if (work) {
        comm_status waited = comm_work_wait(work, 0);
        status = status == COMM_OK ? waited : status;
    }
    comm_work_release(work);
    return status;
}

static comm_status blocks(const struct use *u)
{
    comm_op_options o = on_gpu();
    size_t counts[2] = { BLOCK, BLOCK / 2 };
    comm_group *g = u->world;
    comm_status status = comm_all_to_all(g, u->a, u->a, BLOCK, COMM_DTYPE_I32, &o, NULL);
    if (status == COMM_OK)
        status = comm_all_to_all(g, u->a, u->b, BLOCK, COMM_DTYPE_I32, &o, NULL);
    if (status == COMM_OK)
        status = comm_all_gather(g, u->a, u->b, BLOCK, COMM_DTYPE_I32, &o, NULL);
    if (status == COMM_OK)
        status = comm_all_gather_v(g, u->a, u->b, counts, NULL, COMM_DTYPE_I32, &o, NULL);
    if (status == COMM_OK)
        status = comm_reduce_scatter(g, u->a, u->b, BLOCK, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL);
    if (status == COMM_OK)
        status = comm_reduce_scatter_v(g, u->a, u->b, counts, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL);
    if (status == COMM_OK)
        status = comm_gather(g, u->a, u->b, BLOCK, COMM_DTYPE_I32, 1, &o, NULL);
    if (status == COMM_OK)
        status = comm_scatter(g, u->a, u->b, BLOCK, COMM_DTYPE_I32, 0, &o, NULL);
    return status;
}

static comm_status rooted_and_messages(const struct use *u)
{
    comm_op_options o = on_gpu();
    comm_group *g = u->world;
    comm_status status = comm_reduce(g, u->a, u->b, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, 0, &o, NULL);
    if (status == COMM_OK)
        status = comm_broadcast(g, u->b, COUNT, COMM_DTYPE_I32, 1, &o, NULL);
    if (status == COMM_OK)
        status = comm_barrier(g, &o, NULL);
    if (status == COMM_OK)
        status = comm_coalesce_begin(g);
    if (status == COMM_OK)
        status = comm_send(g, u->a, COUNT, COMM_DTYPE_I32, 1 - u->rank, &o, NULL);
    if (status == COMM_OK)
        status = comm_recv(g, u->b, COUNT, COMM_DTYPE_I32, 1 - u->rank, &o, NULL);
    if (status == COMM_OK)
        status = comm_send(g, u->a, COUNT, COMM_DTYPE_I32, u->rank, &o, NULL);
    if (status == COMM_OK)
        status = comm_recv(g, u->a + COUNT, COUNT, COMM_DTYPE_I32, u->rank, &o, NULL);
    return status == COMM_OK ? comm_coalesce_end(g, NULL, NULL) : status;
}

static comm_status in_memory(const struct use *u)
{
    comm_op_options o = on_gpu();
    comm_memory *memory;
    void *data;
    comm_status status = comm_mem_alloc(u->world, COUNT * sizeof(int32_t), gpu_device(), &data, &memory);
    if (status != COMM_OK)
        return status;
    status = comm_all_reduce(u->world, u->a, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL);
    comm_status released = comm_mem_release(memory);
    return status == COMM_OK ? released : status;
}

/* Split from the parent; or, without one rank, shrunk. */
static comm_status in_a_group(const struct use *u, int shrunk)
{
    const int32_t first = 0;
    comm_op_options o = on_gpu();
    comm_group *group;
    if (shrunk && u->rank == first)
        return COMM_OK;
    comm_status status = shrunk ? comm_group_shrink(u->world, &first, 1, NULL, &group)
                                : comm_group_dup(u->world, NULL, &group);
    if (status != COMM_OK)
        return status;
    status = comm_all_reduce(group, u->a, u->b, COUNT, COMM_DTYPE_I32, COMM_REDOP_MAX, &o, NULL);
    comm_status closed = comm_group_close(group);
    return status == COMM_OK ? closed : status;
}

static comm_status use_everything(const struct use *u)
{
    comm_op_options o = on_gpu();
    comm_status status = comm_group_connect(u->world, gpu_device(), 0);
    if (status == COMM_OK)
        status = comm_all_reduce(u->world, u->a, u->b, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL);
    if (status == COMM_OK)
        status = in_streams(u);
    if (status == COMM_OK)
        status = blocks(u);
    if (status == COMM_OK)
        status = rooted_and_messages(u);
    if (status == COMM_OK)
        status = in_memory(u);
    if (status == COMM_OK)
        status = in_a_group(u, 0);
    if (status == COMM_OK)
        status = in_a_group(u, 1);
    if (status == COMM_OK)
        status = comm_barrier(u->world, &o, NULL);
    return status;
}

static void rank_main(int rank, int size, void *arg)
{
    const struct failure *f = arg;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    struct use u = { .rank = rank, .size = size };
    char text[200];
    gpu_open("cuda:nccl", rank);
    u.stream = gpu_stream();
    u.a = gpu_buffer(gpu_device(), 2 * COUNT * sizeof *u.a);
    u.b = gpu_buffer(gpu_device(), 2 * COUNT * sizeof *u.b);
    memset(u.a, 0, 2 * COUNT * sizeof *u.a);
    int registers = strcmp(f->call, "ncclCommRegister") == 0 || strcmp(f->call, "ncclCommDeregister") == 0;
    options.backend = registers ? "cuda:nccl?from_parent=1" : "cuda:nccl?from_parent=1&windows=1";
    options.timeout_ms = 10000;
    snprintf(text, sizeof text, "%s:%d:%u", f->call, f->nth, f->status);
    if (rank == 1)
        setenv("STANDIN_FAIL", text, 1);
    comm_status status = ranks_init(&options, &u.world);
    if (status == COMM_OK) {
        CHECK_OK(comm_group_set_timeout(u.world, LIMIT_MS));
        status = use_everything(&u);
    }
    if (status != COMM_OK) {
        CHECK(*comm_last_error());
        fprintf(stderr, "rank %d: %s: %s\n", rank, comm_status_name(status), comm_last_error());
    }
    if (u.world)
        CHECK_OK(comm_group_close(u.world));
    unsetenv("STANDIN_FAIL");
    CHECK_CUDA(gpu.StreamSynchronize(u.stream));
    gpu_buffer_free(gpu_device(), u.a);
    gpu_buffer_free(gpu_device(), u.b);
    CHECK_CUDA(gpu.StreamDestroy(u.stream));
}

/* What is not destroyed because the call failed is left. */
static int destroys(const char *call)
{
    static const char *const words[] = { "Destroy", "Free", "Abort", "Deregister", "Finalize" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(call, words[i]))
            return 1;
    return 0;
}

static int leaves_things;

/* Asked by LeakSanitizer when a process ends: what the stand-in still has then is lost with its tables. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return leaves_things;
}

static int fail_once(const char *call, int nth)
{
    struct failure f = { .nth = nth, .status = strncmp(call, "cuda", 4) == 0 ? CUDA_INVALID_VALUE : NCCL_SYSTEM_ERROR };
    char name[100];
    snprintf(f.call, sizeof f.call, "%s", call);
    snprintf(name, sizeof name, "%s fails when it is called for the %d. time", call, nth);
    struct ranks_options options = { .limit_s = LIMIT_S, .name = name };
    leaves_things = destroys(call);
    if (leaves_things)
        unsetenv("RANKS_REFUSE");
    else
        setenv("RANKS_REFUSE", "standin: LEAK", 1);
    return ranks_run(2, &options, rank_main, &f);
}

int main(int argc, char **argv)
{
    static const int times[] = { 1, 2, 5, 9 };
    uint64_t seed = argc > 1 && strcmp(argv[1], "fresh") != 0 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    unsigned parts = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    int failed = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    for (unsigned i = 0; i < NAMES; i++)
        for (unsigned t = 0; t < sizeof times / sizeof *times; t++)
            if ((i * 4 + t + seed) % parts == 0 && (argc <= 3 || strcmp(argv[3], names[i]) == 0))
                failed |= fail_once(names[i], times[t]);
    return failed;
}

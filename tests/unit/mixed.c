/* Groups with a backend for the CPU and one for a device, or with one of the two: where calls go, what is refused and
 * with which words, how they end, and buffers that are elsewhere than the call says. mixed LIBCUDA, a pretended
 * driver. */
#include <comm/backend.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include "fake_libcuda.h"
#include "loopback.h"
#include "ranks.h"

/* The loopback backend, for memory that is said to be CUDA's. */
static const comm_backend *pretended_entry(const comm_host *host)
{
    static comm_backend backend;
    backend = *loopback_entry(host);
    backend.name = "pretended";
    backend.devices = "cuda";
    return &backend;
}

static comm_op_options on(comm_device device)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.device = device;
    return options;
}

static void sum_on(comm_group *group, comm_device device, int size)
{
    comm_op_options options = on(device);
    int32_t value = 1;
    CHECK_OK(comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL));
    CHECK(value == size);
}

/* ---- Which backend ---- */

static void each_call_goes_where_its_buffers_are(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("cpu:tcp,cuda:pretended"), *half;
    CHECK(comm_group_device(world) == COMM_DEVICE_DEFAULT);
    for (int i = 0; i < 3; i++) {
        sum_on(world, COMM_DEVICE_CPU, size);
        sum_on(world, COMM_DEVICE_CUDA, size);
        sum_on(world, comm_device_at(COMM_DEVICE_CUDA, 1), size);
    }
    CHECK_OK(comm_monitored_barrier(world, NULL));
    CHECK_OK(comm_group_split(world, rank % 2, 0, NULL, &half));
    sum_on(half, COMM_DEVICE_CUDA, comm_group_size(half));
    sum_on(half, COMM_DEVICE_CPU, comm_group_size(half));
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(world));
}

static void a_device_that_is_not_said_or_not_there_is_refused(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp,cuda:pretended");
    comm_op_options hip = on(COMM_DEVICE_HIP), none = on(COMM_DEVICE_DEFAULT), strange = on(29);
    CHECK_STATUS(comm_barrier(world, &none, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("several devices (cpu:tcp,cuda:pretended); say in options->device");
    CHECK_STATUS(comm_barrier(world, &hip, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("no backend for device hip; it was opened with 'cpu:tcp,cuda:pretended': add hip:BACKEND to the");
    CHECK_STATUS(comm_barrier(world, &strange, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("no backend for device 29 (unknown); it was opened with 'cpu:tcp,cuda:pretended'");
    CHECK(comm_group_seq(world) == 0);
    CHECK_OK(comm_group_close(world));
    world = ranks_world("tcp");
    hip.device = COMM_DEVICE_CUDA;
    CHECK_STATUS(comm_barrier(world, &hip, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("no backend for device cuda; it was opened with 'cpu:tcp': add cuda:nccl to the backend string");
    CHECK_OK(comm_group_close(world));
}

/* ---- Without a backend for the CPU ---- */

/* What needs one says so on every rank, and no rank waits. */
static void without_the_cpu_what_needs_it_says_what_to_add(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("cuda:pretended"), *other;
    const char add[] = "it was opened with 'cuda:pretended': add cpu:auto to the backend string";
    int32_t all[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    void *data;
    size_t *lengths, length;
    CHECK_STATUS(comm_all_gather_bytes(world, "a", 1, NULL, &data, &lengths), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS(add);
    CHECK_STATUS(comm_broadcast_bytes(world, "a", 1, 0, NULL, &data, &length), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS(add);
    CHECK_STATUS(comm_send_bytes(world, "a", 1, 0, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS(add);
    CHECK_STATUS(comm_recv_bytes(world, 0, NULL, &data, &length, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS(add);
    CHECK_STATUS(comm_monitored_barrier(world, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS(add);
    CHECK_STATUS(comm_group_split(world, rank % 2, 0, NULL, &other), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("add cpu:auto to the backend string, or use comm_group_create");
    sum_on(world, COMM_DEVICE_DEFAULT, size);
    CHECK_OK(comm_group_create(world, all, (size_t)size, NULL, &other));
    sum_on(other, COMM_DEVICE_CUDA, size);
    CHECK_OK(comm_group_close(other));
    CHECK_OK(comm_group_subgroups(world, 1, NULL, &other));
    sum_on(other, COMM_DEVICE_CUDA, 1);
    CHECK_OK(comm_group_close(other));
    CHECK_OK(comm_group_close(world));
}

/* ---- A group that one of its backends ends while another one is being opened ---- */

static struct {
    const comm_host *host;
    int ends;               /* "ending" ends the groups that it opens */
    comm_status slow_opens; /* what group_open of "slow" returns, after a while */
    int fails_on;           /* COMM_ERR_NO_MEMORY on this rank; -1: on none */
    _Atomic comm_device opened_on; /* the device of the last group of "slow" */
    uint64_t call;          /* of the last group of "ending" */
    int32_t everyone;
    sem_t slow_aborted;
} brief;

static comm_status brief_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context, (void)info;
    *ret_world = &brief;
    return COMM_OK;
}

static void brief_close(void *state, int32_t forked)
{
    (void)state, (void)forked;
}

static comm_status ending_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    if (brief.ends)
        brief.host->group_failed(info->token, COMM_ERR_PEER_LOST, "rank 0 is lost");
    brief.call = info->call;
    brief.everyone = info->everyone;
    *ret_state = world;
    return COMM_OK;
}

static comm_status slow_group_open(void *world, const comm_group_info *info, void **ret_state)
{
    enum { LONG_MS = 200 }; /* the watchdog looks meanwhile */
    comm_status status = info->rank == brief.fails_on ? COMM_ERR_NO_MEMORY : brief.slow_opens;
    if (brief.ends)
        usleep(LONG_MS * 1000);
    brief.opened_on = info->device;
    *ret_state = status == COMM_OK ? world : NULL;
    return status == COMM_OK ? COMM_OK : brief.host->fail(status, "it does not open");
}

static void ending_group_abort(void *state, comm_status status, const char *reason)
{
    (void)state, (void)status, (void)reason;
}

static void slow_group_abort(void *state, comm_status status, const char *reason)
{
    (void)state;
    CHECK(status == COMM_ERR_PEER_LOST && strstr(reason, "rank 0 is lost"));
    sem_post(&brief.slow_aborted);
}

static comm_status brief_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    (void)state, (void)ops, (void)works, (void)count;
    return brief.host->fail(COMM_ERR_UNSUPPORTED, "it does nothing");
}

typedef comm_status open_fn(void *world, const comm_group_info *info, void **ret_state);
typedef void abort_fn(void *state, comm_status status, const char *reason);

static comm_backend brief_backend(const char *name, const char *devices, open_fn *open, abort_fn *abort)
{
    return (comm_backend){ COMM_BACKEND_INIT, .name = name, .version = "1", .license = "Apache-2.0",
                           .devices = devices, .world_open = brief_world_open, .world_close = brief_close,
                           .group_open = open, .group_abort = abort, .group_close = brief_close,
                           .submit = brief_submit };
}

static const comm_backend *ending_entry(const comm_host *host)
{
    static comm_backend backend;
    brief.host = host;
    backend = brief_backend("ending", "cpu", ending_group_open, ending_group_abort);
    return &backend;
}

static const comm_backend *slow_entry(const comm_host *host)
{
    static comm_backend backend;
    brief.host = host;
    backend = brief_backend("slow", "cuda", slow_group_open, slow_group_abort);
    return &backend;
}

/* It is told when it is open; if it does not open, there is nothing to tell, and nothing is left of the group. */
static void one_ends_the_group_while_another_opens(int rank, int size, void *arg)
{
    enum { PATIENCE_S = 5 };
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:ending,cuda:slow"), *copy;
    CHECK(sem_init(&brief.slow_aborted, 0, 0) == 0);
    brief.ends = 1;
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    struct timespec until;
    int more;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    CHECK(sem_timedwait(&brief.slow_aborted, &until) == 0);
    CHECK(sem_getvalue(&brief.slow_aborted, &more) == 0 && more == 0);
    CHECK_OK(comm_group_close(copy));
    brief.slow_opens = COMM_ERR_NO_MEMORY;
    CHECK_STATUS(comm_group_dup(world, NULL, &copy), COMM_ERR_NO_MEMORY);
    brief.slow_opens = COMM_OK;
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    /* Members may have heard of the one that failed by its first backend, so this one is another. */
    CHECK(strcmp(comm_group_name(copy), "world[0]#2") == 0);
    CHECK_OK(comm_group_close(copy));
    CHECK_OK(comm_group_close(world));
    sem_destroy(&brief.slow_aborted);
}

static uint64_t make_by_call(comm_group *world, int which)
{
    static const int32_t crossed[] = { 0, 3, 2, 1 }, ranks[] = { 0, 1, 2, 3 }, last = 3;
    static const size_t halves[] = { 2, 2 }, uneven[] = { 1, 3 };
    int rank = comm_group_rank(world);
    comm_group *group = NULL;
    brief.call = 0;
    brief.everyone = 0;
    switch (which % 6) {
    case 0:
        CHECK_OK(comm_group_dup(world, NULL, &group));
        break;
    case 1:
        CHECK_OK(comm_group_subgroups(world, 2, NULL, &group));
        break;
    case 2:
        CHECK_OK(comm_group_subgroups_list(world, crossed, halves, 2, NULL, &group));
        break;
    case 3:
        CHECK_OK(comm_group_subgroups_list(world, ranks, uneven, 2, NULL, &group));
        break;
    case 4: /* by its members only: the others' groups of these ranks are counted alike nevertheless */
        CHECK_OK(comm_group_create(world, ranks, rank % 2 ? 4 : 2, NULL, &group));
        CHECK(brief.call == 0 && !brief.everyone);
        CHECK_OK(comm_group_close(group));
        return 0;
    default:
        if (rank != last)
            CHECK_OK(comm_group_shrink(world, &last, 1, NULL, &group));
        CHECK(brief.call == 0 && !brief.everyone);
        CHECK_OK(comm_group_close(group));
        return 0;
    }
    CHECK(brief.everyone && brief.call != 0);
    CHECK_OK(comm_group_close(group));
    return brief.call;
}

/* Whatever the order on a rank, all ranks have the same number for one call, and another one for another. */
static void ranks_know_which_call_made_their_groups(int rank, int size, void *arg)
{
    enum { CALLS = 12 };
    comm_group *world = ranks_world("cpu:ending");
    comm_store *store = ranks_store();
    uint64_t calls[CALLS], *first;
    size_t bytes;
    (void)arg;
    for (int i = 0; i < CALLS; i++) {
        int which = i < CALLS / 2 ? (rank + i) % (CALLS / 2) : CALLS / 2 + (rank + i) % (CALLS / 2);
        calls[which] = make_by_call(world, which);
    }
    for (int i = 0; i < CALLS; i++)
        for (int k = 0; k < i; k++)
            CHECK(calls[i] != calls[k] || !calls[i]);
    if (rank == 0)
        CHECK_OK(comm_store_set(store, "calls", calls, sizeof calls));
    CHECK_OK(comm_store_get(store, "calls", 0, (void **)&first, &bytes));
    CHECK(bytes == sizeof calls && memcmp(first, calls, bytes) == 0);
    comm_free(first);
    CHECK_OK(comm_store_barrier(store, "read", size, 0));
    comm_store_close(store);
    CHECK_OK(comm_group_close(world));
}

static void what_is_made_of_groups_is_on_their_device(int rank, int size, void *arg)
{
    static const char *const names[] = { "a" };
    const int32_t shape[] = { 1 }, first[] = { 0 };
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    comm_group *world = ranks_world("cpu:ending,cuda:slow"), *lane, *turns, *copy;
    comm_mesh *mesh, *flat;
    (void)rank, (void)size, (void)arg;
    options.device = comm_device_at(COMM_DEVICE_CUDA, 1);
    CHECK_OK(comm_mesh_create(world, NULL, 0, shape, names, 1, &options, &mesh));
    CHECK(brief.opened_on == options.device);
    brief.opened_on = 0;
    CHECK_OK(comm_mesh_flatten(mesh, "b", NULL, &flat));
    CHECK(brief.opened_on == options.device);
    CHECK_OK(comm_group_create(world, first, 1, &options, &lane));
    CHECK_STATUS(comm_group_round_robin(&lane, 1, &options, &turns), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("options->device: the groups have theirs");
    CHECK_OK(comm_group_round_robin(&lane, 1, NULL, &turns));
    brief.opened_on = 0;
    CHECK_OK(comm_group_dup(turns, NULL, &copy));
    CHECK(brief.opened_on == options.device);
    CHECK_OK(comm_group_close(copy));
    CHECK_OK(comm_group_close(turns));
    CHECK_OK(comm_group_close(lane));
    CHECK_OK(comm_mesh_destroy(flat));
    CHECK_OK(comm_mesh_destroy(mesh));
    CHECK_OK(comm_group_close(world));
}

/* Nothing of it is left for the watchdog, which looks after another world then. */
static void a_world_that_has_ended_does_not_come_together(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    comm_group *world;
    comm_work *work;
    (void)rank, (void)size, (void)arg;
    options.name = "both";
    options.backend = "cpu:ending,cuda:slow";
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_NO_MEMORY);
    CHECK_ERROR_SAYS("rank 1");
    world = ranks_world("cpu:loopback");
    limit.timeout_ms = 20;
    CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, 0, &limit, &work));
    CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_DEADLINE);
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

/* ---- Memory of a device that is said to be the CPU's ---- */

static void *driver;
static fake_cuda_alloc_fn cuda_alloc;
static fake_cuda_asked_fn cuda_asked;
enum { BYTES = 4096 };
static int32_t *of_device, *of_managed, *of_pinned;

static void load_driver(const char *path)
{
    driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        ranks_fail(__FILE__, __LINE__, "%s", dlerror());
    cuda_alloc = (fake_cuda_alloc_fn)dlsym(driver, "fake_cuda_alloc");
    cuda_asked = (fake_cuda_asked_fn)dlsym(driver, "fake_cuda_asked");
    of_device = cuda_alloc(BYTES, FAKE_CUDA_DEVICE, 1);
    of_managed = cuda_alloc(BYTES, FAKE_CUDA_MANAGED, 0);
    of_pinned = cuda_alloc(BYTES, FAKE_CUDA_PINNED, 0);
    CHECK(of_device && of_managed && of_pinned);
}

static comm_status sum(comm_group *group, const int32_t *send, int32_t *recv, comm_work **ret_work)
{
    return comm_all_reduce(group, send, recv, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, ret_work);
}

/* Every way in which a pointer comes in. */
static void check_refusals(comm_group *world, int size)
{
    int32_t host[16] = { 0 };
    float value = 1;
    size_t counts[8] = { 0 }, offsets[8] = { 0 };
    void *list[8] = { NULL };
    comm_work *work;
    comm_op_options scaled = COMM_OP_OPTIONS_INIT;
    counts[size - 1] = 1; /* the others are empty, and could be anywhere */
    list[size - 1] = of_device;
    scaled.premul = of_device;
    CHECK_STATUS(sum(world, of_device, host, &work), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the send buffer is in the memory of cuda:1, but this operation runs on the CPU backend 'tcp'");
    CHECK_STATUS(sum(world, host, of_device + 8, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the recv buffer is in the memory of cuda:1");
    CHECK_STATUS(comm_broadcast(world, of_device, 1, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_send(world, of_device, 1, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_recv(world, of_device, 1, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_all_to_all_v(world, of_device, counts, NULL, host, counts, NULL, COMM_DTYPE_I32, NULL, NULL),
                 COMM_ERR_INVALID);
    CHECK_STATUS(comm_all_to_all_v(world, host, counts, NULL, of_device, counts, offsets, COMM_DTYPE_I32, NULL, NULL),
                 COMM_ERR_INVALID);
    CHECK_STATUS(comm_all_to_all_list(world, (const void *const *)list, counts, list, counts, COMM_DTYPE_I32, NULL,
                                      NULL),
                 COMM_ERR_INVALID);
    CHECK_STATUS(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, &scaled, NULL),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the scalar options->premul is in the memory of cuda:1");
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_STATUS(sum(world, host, of_device, NULL), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_cancel(world));
}

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static void cuda_memory_on_a_cpu_backend_is_refused(int rank, int size, void *path)
{
    (void)rank;
    comm_group *alone = ranks_world("cpu:tcp"), *both;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    int32_t host[2] = { 1, 1 };
    options.name = "both";
    options.backend = "cpu:tcp,cuda:pretended";
    CHECK_OK(ranks_init(&options, &both));
    for (int i = 0; i < 3; i++)
        CHECK_OK(sum(alone, host, host, NULL));
    /* The driver comes when a call like the next one has been checked already. */
    pthread_mutex_lock(&loading);
    if (!driver)
        load_driver(path);
    pthread_mutex_unlock(&loading);
    CHECK_STATUS(sum(alone, of_device, host, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("set options->device, and add cuda:nccl to the backend string, or copy it");
    check_refusals(alone, size);
    CHECK(comm_group_seq(alone) == 3); /* they have taken no number */
    for (int i = 0; i < 3; i++) {
        CHECK_OK(sum(alone, host, host, NULL));
        CHECK_STATUS(sum(alone, of_device, of_device, NULL), COMM_ERR_INVALID);
        CHECK_OK(sum(alone, host, i & 1 ? of_pinned + 2 * rank : of_managed + 2 * rank, NULL));
    }
    comm_op_options cpu = on(COMM_DEVICE_CPU);
    CHECK_STATUS(comm_all_gather(both, host, of_device, 1, COMM_DTYPE_I32, &cpu, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the CPU backend 'tcp'; set options->device, or copy it");
    CHECK_OK(comm_barrier(both, &cpu, NULL));
    CHECK_OK(comm_group_close(both));
    CHECK_OK(comm_group_close(alone));
}

/* That it cannot be read is found when the others know its length already. */
static void a_string_in_device_memory_is_told_to_all(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:tcp");
    void *data = NULL;
    size_t *lengths = NULL;
    const void *own = rank == 1 ? (const void *)of_device : "12345678";
    (void)size, (void)arg;
    CHECK_STATUS(comm_all_gather_bytes(world, own, 8, NULL, &data, &lengths), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("the lengths have been told, but not the bytes");
    CHECK_ERROR_SAYS("is in the memory of cuda:1");
    CHECK(!data && !lengths);
    CHECK_OK(comm_group_close(world));
}

/* What goes to the device's backend is its own affair, and the buffers of the call before are known. */
static void the_driver_is_asked_no_more_than_needed(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp,cuda:pretended"), *cpu = ranks_world("tcp");
    int32_t host[2] = { 1, 1 };
    int asked = cuda_asked();
    sum_on(world, COMM_DEVICE_CUDA, size);
    CHECK(cuda_asked() == asked);
    CHECK_OK(sum(cpu, host, host, NULL));
    CHECK(cuda_asked() > asked);
    asked = cuda_asked();
    for (int i = 0; i < 3; i++)
        CHECK_OK(sum(cpu, host, host, NULL));
    CHECK(cuda_asked() == asked);
    CHECK_OK(comm_group_close(cpu));
    CHECK_OK(comm_group_close(world));
}

int main(int count, char **arguments)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "mixed" };
    const struct ranks_options processes = { .limit_s = 60, .name = "mixed" };
    if (count != 2 || comm_backend_register(loopback_entry) != COMM_OK ||
        comm_backend_register(pretended_entry) != COMM_OK || comm_backend_register(ending_entry) != COMM_OK ||
        comm_backend_register(slow_entry) != COMM_OK)
        return 1;
    brief.fails_on = -1;
    int failed = ranks_run(4, &processes, ranks_know_which_call_made_their_groups, NULL) ||
                 ranks_run(1, &threads, what_is_made_of_groups_is_on_their_device, NULL) ||
                 ranks_run(1, &threads, one_ends_the_group_while_another_opens, NULL);
    brief.fails_on = 1;
    brief.ends = 1;
    mallopt(M_PERTURB, 0xa5); /* what is freed has no group's contents any more */
    return failed || ranks_run(2, &threads, a_world_that_has_ended_does_not_come_together, NULL) ||
           ranks_run(4, &threads, each_call_goes_where_its_buffers_are, NULL) ||
           ranks_run(1, &threads, a_device_that_is_not_said_or_not_there_is_refused, NULL) ||
           ranks_run(3, &threads, without_the_cpu_what_needs_it_says_what_to_add, NULL) ||
           ranks_run(2, &threads, cuda_memory_on_a_cpu_backend_is_refused, arguments[1]) ||
           ranks_run(2, &threads, a_string_in_device_memory_is_told_to_all, NULL) ||
           ranks_run(1, &threads, the_driver_is_asked_no_more_than_needed, NULL);
}

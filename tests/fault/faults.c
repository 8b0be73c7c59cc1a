#include "faults.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

const char *const menu_names[MENU_END] = { "all_reduce",    "all_reduce of 8 MiB", "all_gather",        "reduce_scatter",
                                           "broadcast",     "all_to_all",          "barrier",           "send and recv",
                                           "send of 4 MiB", "coalesced" };
const char *const waiting_names[WAIT_END] = { "in the call", "in comm_work_wait", "by callback", "by descriptor",
                                              "by comm_work_test" };

/* ---- The page ---- */

int64_t fault_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct page *page_new(int size)
{
    struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        abort();
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&page->meeting, &shared, (unsigned)size);
    pthread_barrierattr_destroy(&shared);
    return page;
}

void page_free(struct page *page)
{
    munmap(page, sizeof *page);
}

void fault_meet(struct page *page)
{
    pthread_barrier_wait(&page->meeting);
}

void fault_raise(struct page *page, int flag)
{
    atomic_store(&page->flags[flag], 1);
    syscall(SYS_futex, &page->flags[flag], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fault_await(struct page *page, int flag)
{
    while (!atomic_load(&page->flags[flag]))
        syscall(SYS_futex, &page->flags[flag], FUTEX_WAIT, 0, NULL, NULL, 0);
}

double fault_report(const struct page *page, int size, const char *what)
{
    int64_t event = atomic_load(&page->event_ns), most = 0;
    for (int r = 0; r < size; r++) {
        int64_t noticed = atomic_load(&page->noticed_ns[r]);
        if (noticed - event > most)
            most = noticed - event;
    }
    printf("%8.1f ms  %s\n", (double)most / 1e6, what);
    fflush(stdout);
    return (double)most / 1e6;
}

uint64_t fault_seed(void)
{
    static uint64_t seed;
    if (seed)
        return seed;
    const char *given = getenv("FAULT_SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)fault_now_ns() | 1;
    printf("FAULT_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

uint64_t fault_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- Operations ---- */

enum { SMALL = 16, LARGE = 1 << 21, MESSAGE = 1 << 20 }; /* floats */

static float *room(int which)
{
    /* Ranks may be threads. The memory is kept until the process ends, where leak checkers find it. */
    static _Thread_local float *rooms[2];
    static float *all[512];
    static atomic_uint count;
    if (!rooms[which]) {
        rooms[which] = calloc((size_t)LARGE, sizeof(float));
        unsigned place = atomic_fetch_add(&count, 1);
        if (!rooms[which] || place >= sizeof all / sizeof *all)
            abort();
        all[place] = rooms[which];
    }
    return rooms[which];
}

/* To the next rank, from the one before, in one batch. */
static comm_status pass_on(comm_group *group, size_t count, const comm_op_options *options, comm_work **ret_work)
{
    int32_t rank = comm_group_rank(group), size = comm_group_size(group);
    comm_status status = comm_coalesce_begin(group);
    if (status != COMM_OK)
        return status;
    status = comm_send(group, room(0), count, COMM_DTYPE_F32, (rank + 1) % size, options, NULL);
    if (status == COMM_OK)
        status = comm_recv(group, room(1), count, COMM_DTYPE_F32, (rank + size - 1) % size, options, NULL);
    if (status == COMM_OK)
        return comm_coalesce_end(group, ret_work);
    comm_coalesce_cancel(group);
    return status;
}

static comm_status several(comm_group *group, const comm_op_options *options, comm_work **ret_work)
{
    comm_status status = comm_coalesce_begin(group);
    if (status != COMM_OK)
        return status;
    for (int i = 0; i < 3 && status == COMM_OK; i++)
        status = comm_all_reduce(group, room(0) + i * SMALL, room(1) + i * SMALL, SMALL, COMM_DTYPE_F32, COMM_SUM,
                                 options, NULL);
    if (status == COMM_OK)
        status = comm_barrier(group, options, NULL);
    if (status == COMM_OK)
        return comm_coalesce_end(group, ret_work);
    comm_coalesce_cancel(group);
    return status;
}

/* ret_work NULL: the call waits. */
static comm_status begin(comm_group *g, enum menu what, const comm_op_options *o, comm_work **w)
{
    const comm_dtype f32 = COMM_DTYPE_F32;
    float *a = room(0), *b = room(1);
    switch (what) {
    case MENU_ALL_REDUCE:
        return comm_all_reduce(g, a, b, SMALL, f32, COMM_SUM, o, w);
    case MENU_ALL_REDUCE_LARGE:
        return comm_all_reduce(g, a, b, LARGE, f32, COMM_SUM, o, w);
    case MENU_ALL_GATHER:
        return comm_all_gather(g, a, b, MESSAGE / FAULT_RANKS_MOST, f32, o, w);
    case MENU_REDUCE_SCATTER:
        return comm_reduce_scatter(g, a, b, MESSAGE / FAULT_RANKS_MOST, f32, COMM_MAX, o, w);
    case MENU_BROADCAST:
        return comm_broadcast(g, a, MESSAGE, f32, 0, o, w);
    case MENU_ALL_TO_ALL:
        return comm_all_to_all(g, a, b, MESSAGE / FAULT_RANKS_MOST, f32, o, w);
    case MENU_SEND_RECV:
        return pass_on(g, SMALL, o, w);
    case MENU_SEND_RECV_LARGE:
        return pass_on(g, MESSAGE, o, w);
    case MENU_COALESCED:
        return several(g, o, w);
    default:
        return comm_barrier(g, o, w);
    }
}

comm_status menu_begin(comm_group *group, enum menu what, const comm_op_options *options, comm_work **ret_work)
{
    return begin(group, what, options, ret_work);
}

/* ---- Waiting ---- */

struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done;
};

static void on_complete(comm_work *work, comm_status status, void *context)
{
    struct told *told = context;
    CHECK(comm_work_status(work) == status);
    pthread_mutex_lock(&told->lock);
    told->done = 1;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

static void wait_for_callback(comm_work *work)
{
    struct told told = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    CHECK_OK(comm_work_on_complete(work, on_complete, &told));
    pthread_mutex_lock(&told.lock);
    while (!told.done)
        pthread_cond_wait(&told.changed, &told.lock);
    pthread_mutex_unlock(&told.lock);
}

static void wait_for_descriptor(comm_work *work)
{
    int32_t fd;
    CHECK_OK(comm_work_fd(work, &fd));
    struct pollfd p = { .fd = fd, .events = POLLIN };
    while (poll(&p, 1, -1) < 0)
        CHECK(errno == EINTR);
    CHECK(comm_work_status(work) != COMM_IN_PROGRESS);
}

comm_status menu_wait(comm_work *work, enum waiting how)
{
    int32_t done = 0;
    comm_status status;
    if (how == WAIT_CALLBACK)
        wait_for_callback(work);
    else if (how == WAIT_FD)
        wait_for_descriptor(work);
    while (how == WAIT_TEST) {
        status = comm_work_test(work, &done);
        if (done)
            return status;
        CHECK_STATUS(status, COMM_OK);
        sched_yield();
    }
    return comm_work_wait(work, 0);
}

comm_status menu_do(comm_group *group, enum menu what, enum waiting how, const comm_op_options *options)
{
    if (how == WAIT_CALL)
        return begin(group, what, options, NULL);
    comm_work *work;
    comm_status status = begin(group, what, options, &work);
    if (status != COMM_OK)
        return status;
    status = menu_wait(work, how);
    if (status != COMM_OK && strcmp(comm_work_error(work), comm_last_error()) != 0)
        ranks_fail(__FILE__, __LINE__, "the work says '%s', the call '%s'", comm_work_error(work), comm_last_error());
    comm_work_release(work);
    return status;
}

comm_status menu_until_it_ends(comm_group *group, enum menu what, const comm_op_options *options)
{
    comm_status status;
    do
        status = menu_do(group, what, WAIT_CALL, options);
    while (status == COMM_OK);
    return status;
}

/* ---- Texts ---- */

/* "rank 3 (node-b 10.0.0.7:40213)" */
void check_names(const char *text, int rank, const char *file, int line)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d (", rank);
    for (const char *at = text; (at = strstr(at, name)) != NULL; at += strlen(name)) {
        const char *end = strchr(at, ')'), *colon = strchr(at, ':');
        if (end && colon && colon < end && colon[1] >= '0' && colon[1] <= '9')
            return;
    }
    ranks_fail(file, line, "'%s' does not name rank %d with its address", text, rank);
}

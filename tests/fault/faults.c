#include "faults.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

const char *const menu_names[MENU_END] = {
    "all_reduce", "all_reduce of 8 MiB", "all_gather",    "reduce_scatter", "broadcast",
    "all_to_all", "barrier",             "send and recv", "send of 4 MiB",  "coalesced",
};
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

/* How many processes there are to each core that want it; 1 at least. */
static double crowd(void)
{
    double load = 0, cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    return getloadavg(&load, 1) == 1 && load > cores ? load / cores : 1;
}

int fault_is_stopped(int pid)
{
    char path[40], line[300] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f))
        line[0] = '\0';
    if (f)
        fclose(f);
    const char *name_end = strrchr(line, ')');
    return name_end && name_end[1] == ' ' && name_end[2] == 'T';
}

void fault_stop(int pid)
{
    CHECK(kill(pid, SIGSTOP) == 0);
    while (!fault_is_stopped(pid))
        usleep(1000);
}

int64_t fault_tolerance_ms(void)
{
    return (int64_t)(2000 * FAULT_TIME_FACTOR * crowd());
}

int fault_noticed_late(const struct page *page, int size, const char *what, int64_t limit_ms)
{
    int64_t tolerance_ms = fault_tolerance_ms();
    double ms = fault_report(page, size, what);
    if (ms <= (double)(limit_ms + tolerance_ms))
        return 0;
    fprintf(stderr, "%s: noticed after %.0f ms; the limit is %lld ms, with %lld ms more for a busy machine\n", what, ms,
            (long long)limit_ms, (long long)tolerance_ms);
    return 1;
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

long fault_resident_kib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    if (!f || fscanf(f, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * 4;
}

int fault_free_port(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &bytes) != 0)
        abort();
    close(fd);
    return ntohs(a.sin_port);
}

/* ---- The group under test ---- */

enum { BYSTANDERS = 2 };

const char *fault_backend;

const char *fault_backend_name(void)
{
    const char *name = getenv("FAULT_BACKEND");
    return name ? name : "tcp";
}

int fault_is_place(const char *text)
{
    const char *backend = fault_backend_name(), *number = text + strlen(text);
    while (number > text && number[-1] >= '0' && number[-1] <= '9')
        number--;
    size_t before = (size_t)(number - text);
    int is_pid = before >= 5 && strncmp(number - 5, " pid ", 5) == 0, is_address = before >= 1 && number[-1] == ':';
    return *number && ((is_pid && strcmp(backend, "tcp") != 0) || (is_address && strcmp(backend, "shm") != 0));
}

struct crowd {
    int size;
    int expected;        /* members that come to their end */
    _Atomic int32_t done;
    void (*fn)(int, int, void *);
    void *arg;
};

static _Thread_local struct {
    int size;            /* of the group; 0: no rank */
    struct crowd *crowd;
    comm_group *world;   /* that the group was made from */
} under_test;

int fault_permuted(void)
{
    const char *text = getenv("FAULT_PERMUTED");
    return text && *text == '1';
}

/* The ranks from behind; in a group of an even size one place further on, so that no rank has the same number twice. */
static int world_rank_of(int rank, int size)
{
    return size + (size % 2 == 0) - rank;
}

int fault_world_rank(int rank, int size)
{
    return fault_permuted() ? world_rank_of(rank, size) : rank;
}

static void open_everybody(comm_init_options *options, comm_group **ret_world)
{
    options->backend = fault_backend ? fault_backend : fault_backend_name();
    options->timeout_ms = 30000;
    options->name = "everybody";
    CHECK_OK(ranks_init(options, ret_world));
}

static void one_is_through(struct crowd *crowd)
{
    atomic_fetch_add(&crowd->done, 1);
    syscall(SYS_futex, &crowd->done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fault_vanish(void)
{
    one_is_through(under_test.crowd);
    fflush(NULL);
    _exit(0);
}

/* In a group of their own, until all members are through. */
static void stand_by(struct crowd *crowd)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world, *ours;
    const int32_t ranks[BYSTANDERS] = { 0, crowd->size % 2 == 0 ? 1 : crowd->size + 1 };
    comm_group_options o = COMM_GROUP_OPTIONS_INIT;
    o.name = "bystanders";
    open_everybody(&options, &world);
    CHECK_OK(comm_group_create(world, ranks, BYSTANDERS, &o, &ours));
    for (int32_t both = 0; both < BYSTANDERS;) {
        const struct timespec moment = { 0, 20000000 };
        int32_t done = atomic_load(&crowd->done);
        if (done < crowd->expected)
            syscall(SYS_futex, &crowd->done, FUTEX_WAIT, done, &moment, NULL, 0);
        both = atomic_load(&crowd->done) >= crowd->expected;
        CHECK_OK(comm_all_reduce(ours, &both, &both, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    }
    CHECK_OK(comm_group_status(ours));
    CHECK_OK(comm_group_close(ours));
    CHECK_OK(comm_group_close(world));
}

static void be_one_of_many(int world_rank, int world_size, void *arg)
{
    struct crowd *crowd = arg;
    int rank = world_rank_of(world_rank, crowd->size); /* its own inverse */
    (void)world_size;
    if (rank < 0 || rank >= crowd->size) {
        stand_by(crowd);
        return;
    }
    under_test.size = crowd->size;
    under_test.crowd = crowd;
    crowd->fn(rank, crowd->size, crowd->arg);
    one_is_through(crowd);
}

static void be_one_of_few(int rank, int size, void *arg)
{
    struct crowd *crowd = arg;
    under_test.size = size;
    under_test.crowd = crowd;
    crowd->fn(rank, size, crowd->arg);
}

int fault_run(int size, const struct ranks_options *options, void (*fn)(int rank, int size, void *arg), void *arg)
{
    struct ranks_options o = *options;
    struct crowd *crowd = mmap(NULL, sizeof *crowd, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (crowd == MAP_FAILED)
        abort();
    *crowd = (struct crowd){ .size = size, .fn = fn, .arg = arg };
    crowd->expected = size - __builtin_popcountll(options->may_fail);
    if (fault_permuted()) {
        o.may_fail = 0;
        for (int r = 0; r < size; r++)
            if (options->may_fail >> r & 1)
                o.may_fail |= 1ull << fault_world_rank(r, size);
    }
    int failed = fault_permuted() ? ranks_run(size + BYSTANDERS, &o, be_one_of_many, crowd)
                                  : ranks_run(size, &o, be_one_of_few, crowd);
    munmap(crowd, sizeof *crowd);
    return failed;
}

comm_group *fault_world_with(comm_init_options *options)
{
    comm_group *group;
    int32_t ranks[FAULT_RANKS_MAX];
    comm_group_options o = COMM_GROUP_OPTIONS_INIT;
    if (!fault_permuted()) {
        options->backend = fault_backend ? fault_backend : fault_backend_name();
        options->timeout_ms = 30000;
        CHECK_OK(ranks_init(options, &under_test.world));
        return under_test.world;
    }
    open_everybody(options, &under_test.world);
    o.name = "world";
    for (int r = 0; r < under_test.size; r++)
        ranks[r] = fault_world_rank(r, under_test.size);
    CHECK_OK(comm_group_create(under_test.world, ranks, (size_t)under_test.size, &o, &group));
    return group;
}

comm_group *fault_world(void)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    return fault_world_with(&options);
}

comm_status fault_close(comm_group *group)
{
    comm_status status = comm_group_close(group);
    if (fault_permuted())
        CHECK_OK(comm_group_close(under_test.world));
    return status;
}

/* ---- Operations ---- */

enum { SMALL = 16, LARGE = 1 << 21, MESSAGE = 1 << 20 }; /* floats */

static pthread_key_t buffers[2];
static pthread_once_t buffers_once = PTHREAD_ONCE_INIT;

static void make_keys(void)
{
    for (int i = 0; i < 2; i++)
        if (pthread_key_create(&buffers[i], free) != 0)
            abort();
}

/* Ranks may be threads; the memory goes with the thread. What the process kept would be copied by every fork. */
static float *buffer(int which)
{
    pthread_once(&buffers_once, make_keys);
    float *found = pthread_getspecific(buffers[which]);
    if (!found) {
        found = calloc((size_t)LARGE, sizeof(float));
        if (!found || pthread_setspecific(buffers[which], found) != 0)
            abort();
    }
    return found;
}

/* To the next rank, from the one before, in one batch. */
static comm_status pass_on(comm_group *group, size_t count, const comm_op_options *options, comm_work **ret_work)
{
    int32_t rank = comm_group_rank(group), size = comm_group_size(group);
    comm_status status = comm_coalesce_begin(group);
    if (status != COMM_OK)
        return status;
    status = comm_send(group, buffer(0), count, COMM_DTYPE_F32, (rank + 1) % size, options, NULL);
    if (status == COMM_OK)
        status = comm_recv(group, buffer(1), count, COMM_DTYPE_F32, (rank + size - 1) % size, options, NULL);
    if (status == COMM_OK)
        return comm_coalesce_end(group, NULL, ret_work);
    comm_coalesce_cancel(group);
    return status;
}

static comm_status several(comm_group *group, const comm_op_options *options, comm_work **ret_work)
{
    comm_status status = comm_coalesce_begin(group);
    if (status != COMM_OK)
        return status;
    for (int i = 0; i < 3 && status == COMM_OK; i++)
        status = comm_all_reduce(group, buffer(0) + i * SMALL, buffer(1) + i * SMALL, SMALL, COMM_DTYPE_F32,
                                 COMM_REDOP_SUM, options, NULL);
    if (status == COMM_OK)
        status = comm_barrier(group, options, NULL);
    if (status == COMM_OK)
        return comm_coalesce_end(group, NULL, ret_work);
    comm_coalesce_cancel(group);
    return status;
}

/* ret_work NULL: the call waits. */
static comm_status begin(comm_group *g, enum menu what, const comm_op_options *o, comm_work **w)
{
    const comm_dtype f32 = COMM_DTYPE_F32;
    float *a = buffer(0), *b = buffer(1);
    switch (what) {
    case MENU_ALL_REDUCE:
        return comm_all_reduce(g, a, b, SMALL, f32, COMM_REDOP_SUM, o, w);
    case MENU_ALL_REDUCE_LARGE:
        return comm_all_reduce(g, a, b, LARGE, f32, COMM_REDOP_SUM, o, w);
    case MENU_ALL_GATHER:
        return comm_all_gather(g, a, b, MESSAGE / FAULT_RANKS_MAX, f32, o, w);
    case MENU_REDUCE_SCATTER:
        return comm_reduce_scatter(g, a, b, MESSAGE / FAULT_RANKS_MAX, f32, COMM_REDOP_MAX, o, w);
    case MENU_BROADCAST:
        return comm_broadcast(g, a, MESSAGE, f32, 0, o, w);
    case MENU_ALL_TO_ALL:
        return comm_all_to_all(g, a, b, MESSAGE / FAULT_RANKS_MAX, f32, o, w);
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

comm_status menu_wait(comm_work *work, enum wait_by how)
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

comm_status menu_do(comm_group *group, enum menu what, enum wait_by how, const comm_op_options *options)
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

/* Behind "rank 3" and what stands in brackets after it; the next one in the text, or NULL.
 * In *ret_place the brackets. */
static const char *behind_rank(const char **text, int rank, char *ret_place, size_t capacity)
{
    char name[32], number[32];
    int world_rank = fault_world_rank(rank, under_test.size);
    int n = snprintf(name, sizeof name, "rank %d", rank);
    snprintf(number, sizeof number, "world rank %d", world_rank);
    for (const char *at = *text; (at = strstr(at, name)) != NULL; at += n) {
        const char *behind = at + n;
        int of_world = at - *text >= 6 && strncmp(at - 6, "world ", 6) == 0;
        *ret_place = '\0';
        if (of_world || (*behind >= '0' && *behind <= '9'))
            continue;
        if (strncmp(behind, " (", 2) == 0) {
            const char *end = strchr(behind, ')');
            if (!end)
                continue;
            snprintf(ret_place, capacity, "%.*s", (int)(end - behind - 2), behind + 2);
            behind = end + 1;
        }
        if (world_rank != rank && !strstr(ret_place, number))
            continue; /* "(rank 3 of 4)" of an operation, or a mistake */
        *text = at + n;
        return behind;
    }
    return NULL;
}

void check_names(const char *text, int rank, const char *file, int line)
{
    char place[200];
    for (const char *at = text; behind_rank(&at, rank, place, sizeof place);)
        if (fault_is_place(place))
            return;
    ranks_fail(file, line, "'%s' does not name rank %d with its address", text, rank);
}

int says_of(const char *text, int rank, const char *words)
{
    char place[200];
    const char *behind;
    for (const char *at = text; (behind = behind_rank(&at, rank, place, sizeof place)) != NULL;)
        if (strncmp(behind, words, strlen(words)) == 0)
            return 1;
    return 0;
}

void check_says_of(const char *text, int rank, const char *words, const char *file, int line)
{
    if (!says_of(text, rank, words))
        ranks_fail(file, line, "'%s' does not say '%s' of rank %d", text, words, rank);
}

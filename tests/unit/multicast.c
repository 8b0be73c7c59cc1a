/* One copy of a message for several peers (backend_shm/multicast.h): of which lengths it is made, that what is read is
 * what was sent, also if a peer reads late, in the engine, after the sender has gone, or never; and that all goes
 * through the rings where there is no memory for it. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ranks.h"

enum { RANKS = 4, RANKS_MAX = 9, BYTES_MAX = 80 << 10, WORDS_MAX = BYTES_MAX / 4 };

static pthread_barrier_t *meeting; /* of all ranks, in the kernel: who waits there does not look at its rings */
static volatile int *stopped;      /* a process that stops itself */

static int made, waited_in_vain, no_memory;
static int shares_cores = -1; /* as ranks are told; -1: as it is */

void *__real_multicast_make(void *f, const void *payload, size_t bytes);
void *__wrap_multicast_make(void *f, const void *payload, size_t bytes);
void __real_multicast_waited_in_vain(void *f);
void __wrap_multicast_waited_in_vain(void *f);
int __real_waiting_shares_cores(const void *info);
int __wrap_waiting_shares_cores(const void *info);
void *__real_region_create(const void *f, size_t bytes);
void *__wrap_region_create(const void *f, size_t bytes);

void *__wrap_multicast_make(void *f, const void *payload, size_t bytes)
{
    made++;
    return __real_multicast_make(f, payload, bytes);
}

void __wrap_multicast_waited_in_vain(void *f)
{
    waited_in_vain++;
    __real_multicast_waited_in_vain(f);
}

void *__wrap_region_create(const void *f, size_t bytes)
{
    return no_memory ? NULL : __real_region_create(f, bytes);
}

int __wrap_waiting_shares_cores(const void *info)
{
    return shares_cores < 0 ? __real_waiting_shares_cores(info) : shares_cores;
}

static int32_t value(int op, int rank, size_t i)
{
    return (int32_t)(((uint32_t)op * 2654435761u) ^ ((uint32_t)rank << 24) ^ (uint32_t)i);
}

static void fill(int32_t *values, size_t count, int op, int rank)
{
    for (size_t i = 0; i < count; i++)
        values[i] = value(op, rank, i);
}

static void check(const int32_t *values, size_t count, int op, int rank)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] != value(op, rank, i))
            ranks_fail(__FILE__, __LINE__, "operation %d: word %zu of %zu of rank %d is %d, not %d", op, i, count, rank,
                       (int)values[i], (int)value(op, rank, i));
}

/* The root's memory is its own as soon as the call returns: the next one writes there. */
static void broadcast(comm_group *world, int rank, int root, size_t count, int op)
{
    static int32_t values[WORDS_MAX];
    if (rank == root)
        fill(values, count, op, root);
    else
        memset(values, 0x5a, sizeof values);
    CHECK_OK(comm_broadcast(world, values, count, COMM_DTYPE_I32, root, NULL, NULL));
    check(values, count, op, root);
    memset(values, 0xa5, sizeof values);
}

static void all_gather(comm_group *world, int rank, int size, size_t count, int op)
{
    static int32_t block[WORDS_MAX], all[RANKS_MAX * WORDS_MAX];
    fill(block, count, op, rank);
    memset(all, 0x5a, sizeof all);
    CHECK_OK(comm_all_gather(world, block, all, count, COMM_DTYPE_I32, NULL, NULL));
    memset(block, 0xa5, sizeof block);
    for (int i = 0; i < size; i++)
        check(all + (size_t)i * count, count, op, i);
}

/* Each gets another part, so that no copy is for all. */
static void scatter(comm_group *world, int rank, int size, size_t count, int op)
{
    static int32_t all[RANKS_MAX * WORDS_MAX], block[WORDS_MAX];
    for (int i = 0; i < size; i++)
        fill(all + (size_t)i * count, count, op, i);
    memset(block, 0x5a, sizeof block);
    CHECK_OK(comm_scatter(world, rank ? NULL : all, block, count, COMM_DTYPE_I32, 0, NULL, NULL));
    check(block, count, op, rank);
}

/* All are connected, and know the shapes that are used. */
static void meet(comm_group *world, int rank, int size, size_t count)
{
    for (int i = 0; i < 3; i++) {
        broadcast(world, rank, 0, count, i);
        all_gather(world, rank, size, count, i);
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    made = 0;
}

/* ---- Which lengths ---- */

#define DIRECT "&algo=broadcast:direct;all_gather:direct"

struct lengths_run {
    const char *backend;
    size_t least; /* 0: none */
};

static const size_t lengths[] = { 4,           8188,      8192,      8196,      16380,     16384,    16388,
                                  20000,       32768,     32772,     65532,     65536,     65540,    BYTES_MAX };

/* How many copies this rank makes of its messages: a few calls of each, and so often that all ranks that should have
 * made some. On a busy machine most calls are the engine's. */
static int copies_of(comm_group *world, int rank, int size, size_t count, int root, int32_t wanted)
{
    enum { CALLS = 10, TIMES = 100 };
    int32_t lacks = 1;
    made = 0;
    for (int time = 0; time < TIMES && lacks; time++) {
        for (int op = 0; op < CALLS; op++)
            if (root < 0)
                all_gather(world, rank, size, count, op);
            else
                broadcast(world, rank, root, count, op);
        lacks = wanted && !made;
        CHECK_OK(comm_all_reduce(world, &lacks, &lacks, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, NULL));
    }
    return made;
}

static void all_lengths(int rank, int size, void *arg)
{
    enum { MOST = 64 << 10 };
    const struct lengths_run *run = arg;
    comm_group *world = ranks_world(run->backend);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int op = 0; op < 3; op++)
            scatter(world, rank, size, lengths[i] / 4, op);
        for (int root = -1; root < size; root++) {
            int is_one = run->least && lengths[i] >= run->least && lengths[i] <= MOST && (root < 0 || rank == root);
            int copies = copies_of(world, rank, size, lengths[i] / 4, root, is_one);
            if (is_one != (copies > 0))
                ranks_fail(__FILE__, __LINE__, "%d copies of %zu bytes, root %d", copies, lengths[i], root);
        }
    }
    CHECK_OK(comm_group_close(world));
}

/* By itself: where ranks share cores, and in an all_gather of many that do not. */
static void of_itself(int rank, int size, void *arg)
{
    enum { FEW_RANKS = 8 };
    const size_t count = 8192 / 4;
    const int has_cores = arg != NULL;
    shares_cores = !has_cores;
    comm_group *world = ranks_world("cpu:shm?algo=broadcast:direct;all_gather:direct");
    int is_one = !has_cores || size > FEW_RANKS;
    int copies = copies_of(world, rank, size, count, -1, 1); /* many calls, too, where none is expected */
    CHECK(is_one == (copies > 0));
    copies = copies_of(world, rank, size, 2 * count, 0, rank == 0 && !has_cores);
    CHECK((rank == 0 && !has_cores) == (copies > 0));
    CHECK_OK(comm_group_close(world));
}

/* ---- Readers ---- */

/* One in turn reads nothing until the root has sent all: more than there are copies at a time. */
static void a_late_reader(int rank, int size, void *arg)
{
    enum { CALLS = 9, TIMES = 6 };
    static const size_t counts[] = { 2048, 4096, 8192, 16384 };
    comm_group *world = ranks_world("cpu:shm?multicast_bytes=8K&eager_bytes=64K&spin_us=1000");
    (void)arg;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        meet(world, rank, size, counts[k]);
        for (int time = 0; time < TIMES; time++) {
            int late = 1 + time % (size - 1);
            if (rank == late)
                pthread_barrier_wait(meeting);
            for (int op = 0; op < CALLS; op++)
                broadcast(world, rank, 0, counts[k], op);
            CHECK(rank || made);
            if (rank != late)
                pthread_barrier_wait(meeting);
            CHECK_OK(comm_barrier(world, NULL, NULL));
        }
    }
    CHECK_OK(comm_group_close(world));
}

static void await_stop(int pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    while (!strstr(text, ") T")) {
        FILE *stat = fopen(path, "re");
        CHECK(stat && fgets(text, sizeof text, stat));
        fclose(stat);
        sched_yield();
    }
}

/* One that is in another group holds all copies: in this group they are waited for once, at most. That one is stopped,
 * lest its helper thread read. */
static void a_late_reader_of_another_group(int rank, int size, void *arg)
{
    enum { LATE = 2, HELD = 4, CALLS = 20 };
    const size_t count = 4096;
    comm_group *world = ranks_world("cpu:shm?multicast_bytes=8K&eager_bytes=64K"), *rest = NULL;
    (void)arg;
    CHECK_OK(comm_group_split(world, rank == LATE, rank, NULL, &rest));
    meet(world, rank, size, count);
    if (rank == LATE)
        *stopped = (int)getpid();
    pthread_barrier_wait(meeting);
    if (rank == LATE)
        raise(SIGSTOP);
    else
        await_stop(*stopped);
    for (int op = 0; op < HELD; op++)
        broadcast(world, rank, 0, count, op);
    waited_in_vain = 0;
    for (int op = 0; op < CALLS && rank != LATE; op++) {
        broadcast(rest, rank > LATE ? rank - 1 : rank, 0, count, op);
        CHECK_OK(comm_barrier(rest, NULL, NULL));
    }
    CHECK(waited_in_vain <= 1);
    if (rank == 0)
        kill(*stopped, SIGCONT);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
}

/* Those that receive asynchronously do so in the engine, before and after the message has come. */
static void readers_in_the_engine(int rank, int size, void *arg)
{
    enum { CALLS = 8 };
    static int32_t values[CALLS][WORDS_MAX];
    const size_t count = 5000;
    comm_group *world = ranks_world("cpu:shm?multicast_bytes=8K&eager_bytes=64K");
    (void)arg;
    meet(world, rank, size, count);
    for (int time = 0; time < 4; time++) {
        comm_work *works[CALLS];
        if (time % 2 && rank)
            pthread_barrier_wait(meeting);
        for (int op = 0; op < CALLS; op++)
            if (rank == 0)
                broadcast(world, rank, 0, count, op);
            else
                CHECK_OK(comm_broadcast(world, values[op], count, COMM_DTYPE_I32, 0, NULL, &works[op]));
        if (time % 2 && !rank)
            pthread_barrier_wait(meeting);
        for (int op = 0; op < CALLS && rank; op++) {
            CHECK_OK(comm_work_wait(works[op], -1));
            comm_work_release(works[op]);
            check(values[op], count, op, 0);
        }
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    CHECK(rank || made);
    CHECK_OK(comm_group_close(world));
}

/* The root has closed the world, and ended, before the others read. */
static void the_sender_has_gone(int rank, int size, void *arg)
{
    const size_t count = 8192;
    comm_group *world = ranks_world("cpu:shm?multicast_bytes=8K&eager_bytes=64K");
    (void)arg;
    meet(world, rank, size, count);
    if (rank)
        pthread_barrier_wait(meeting);
    for (int op = 0; op < 2; op++)
        broadcast(world, rank, 0, count, op);
    CHECK(rank || made == 2);
    CHECK_OK(comm_group_close(world));
    if (rank == 0)
        pthread_barrier_wait(meeting);
}

/* ---- A reader that is killed ---- */

/* Then the others go on in a group of theirs, in which the copies that it has not read are no obstacle once its end is
 * noticed. */
static void a_reader_is_killed(int rank, int size, void *arg)
{
    enum { VICTIM = 2, UNDER_WAY = 4 };
    static int32_t values[WORDS_MAX];
    const size_t count = 8192;
    comm_group *world = ranks_world("cpu:shm?multicast_bytes=8K&eager_bytes=64K"), *rest = NULL;
    (void)arg;
    CHECK_OK(comm_group_split(world, rank == VICTIM, rank, NULL, &rest));
    meet(world, rank, size, count);
    if (rank == VICTIM) {
        pthread_barrier_wait(meeting);
        raise(SIGKILL);
    }
    for (int op = 0; op < 2; op++)
        broadcast(world, rank, 0, count, op);
    CHECK(rank || made == 2);
    pthread_barrier_wait(meeting);
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_PEER_LOST);
    made = 0;
    for (int32_t op = 0, goes_on = 1; goes_on; op++) {
        broadcast(rest, rank > VICTIM ? rank - 1 : rank, 0, count, op);
        goes_on = made <= UNDER_WAY;
        CHECK_OK(comm_broadcast(rest, &goes_on, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    }
    CHECK_STATUS(comm_broadcast(world, values, count, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_PEER_LOST);
    CHECK_OK(comm_group_close(rest));
    comm_group_close(world);
}

/* ---- No memory ---- */

static void without_memory(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:shm?multicast_bytes=8K&eager_bytes=64K&cma_bytes=0");
    (void)arg;
    no_memory = 1;
    for (size_t count = 2048; count <= 16384; count *= 2) {
        meet(world, rank, size, count);
        for (int op = 0; op < 6; op++) {
            broadcast(world, rank, op % size, count, op);
            all_gather(world, rank, size, count, op);
        }
    }
    CHECK(made == 0 && waited_in_vain == 0);
    CHECK_OK(comm_group_close(world));
}

static int run(int size, const char *name, void (*fn)(int rank, int size, void *arg), void *arg, uint64_t may_fail)
{
    struct ranks_options options = { .limit_s = 30, .name = name, .may_fail = may_fail };
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(meeting, &shared, (unsigned)size);
    return ranks_run(size, &options, fn, arg);
}

int main(void)
{
    struct lengths_run all = { "cpu:shm?multicast_bytes=8K&eager_bytes=64K" DIRECT, 8192 },
                       some = { "cpu:shm?multicast_bytes=20000&eager_bytes=64K" DIRECT, 20000 },
                       none = { "cpu:shm?multicast_bytes=0&eager_bytes=64K" DIRECT, 0 };
    meeting = mmap(NULL, 2 * sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        return 1;
    stopped = (int *)(meeting + 1);
    return run(3, "from 8K on, three ranks", all_lengths, &all, 0) ||
           run(RANKS, "from 8K on, four ranks", all_lengths, &all, 0) ||
           run(3, "from 20000 bytes on", all_lengths, &some, 0) || run(3, "none", all_lengths, &none, 0) ||
           run(3, "of itself, on shared cores", of_itself, NULL, 0) ||
           run(8, "of itself, 8 ranks with cores", of_itself, &all, 0) ||
           run(RANKS_MAX, "of itself, 9 ranks with cores", of_itself, &all, 0) ||
           run(RANKS, "a late reader", a_late_reader, NULL, 0) ||
           run(RANKS, "a late reader of another group", a_late_reader_of_another_group, NULL, 0) ||
           run(RANKS, "readers in the engine", readers_in_the_engine, NULL, 0) ||
           run(3, "the sender has gone", the_sender_has_gone, NULL, 0) ||
           run(RANKS, "a reader is killed", a_reader_is_killed, NULL, 1 << 2) ||
           run(3, "no memory", without_memory, NULL, 0);
}

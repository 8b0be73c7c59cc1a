/* What is special about cpu:shm, and cpu:shm-tcp on one host: small operations that some ranks run at once and others
 * begin; which processes may connect. With an argument: long messages are of at most so many elements. */
#include <comm/comm.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ranks.h"

enum { RANKS_MAX = 5, COUNTS = 5, KINDS = 9 };

static const size_t counts[COUNTS] = { 1, 5, 16, 200, 3000 };
static size_t max_elements = SIZE_MAX;

/* One call of `kind`; the result goes to `out`. ret_work NULL: it waits. */
static comm_status call(comm_group *g, int kind, const int32_t *in, int32_t *out, size_t n, int root, comm_work **work)
{
    const comm_dtype i32 = COMM_DTYPE_I32;
    const comm_redop sum = COMM_REDOP_SUM;
    switch (kind) {
    case 0:
        return comm_all_reduce(g, in, out, n, i32, sum, NULL, work);
    case 1:
        return comm_barrier(g, NULL, work);
    case 2:
        return comm_broadcast(g, out, n, i32, root, NULL, work);
    case 3:
        return comm_reduce(g, in, out, n, i32, sum, root, NULL, work);
    case 4:
        return comm_all_gather(g, in, out, n, i32, NULL, work);
    case 5:
        return comm_reduce_scatter(g, in, out, n, i32, sum, NULL, work);
    case 6:
        return comm_all_to_all(g, in, out, n, i32, NULL, work);
    case 7:
        return comm_gather(g, in, out, n, i32, root, NULL, work);
    default:
        return comm_scatter(g, in, out, n, i32, root, NULL, work);
    }
}

static int32_t value(int rank, size_t i, int step)
{
    return (int32_t)(rank * 100003 + (int)i * 7 + step);
}

/* What out[i] must be; -1: whatever it was. */
static int64_t expected(int kind, int rank, int size, size_t n, size_t i, int root, int step)
{
    size_t block = i / n, within = i % n;
    /* The values of two ranks differ by the same everywhere. */
    int64_t least = value(0, kind == 5 ? (size_t)rank * n + i : i, step);
    int64_t sum = size * least + (int64_t)size * (size - 1) / 2 * (value(1, 0, 0) - value(0, 0, 0));
    switch (kind) {
    case 0:
    case 5:
        return i < n ? sum : -1;
    case 2:
        return i < n ? value(root, i, step) : -1;
    case 3:
        return i < n && rank == root ? sum : -1;
    case 4:
        return value((int)block, within, step);
    case 6:
        return value((int)block, (size_t)rank * n + within, step);
    case 7:
        return rank == root ? value((int)block, within, step) : -1;
    case 8:
        return i < n ? value(root, (size_t)rank * n + i, step) : -1;
    default:
        return -1;
    }
}

/* Which ranks wait in the call changes from step to step: they all do the same operation together. */
static void run_and_begun_are_one_operation(int rank, int size, void *arg)
{
    comm_group *world = ranks_world(arg);
    const size_t most = 3000 * RANKS_MAX;
    int32_t *in = malloc(most * sizeof *in), *out = malloc(most * sizeof *out);
    CHECK(in && out);
    for (int step = 0; step < 600; step++) {
        int kind = step % KINDS, root = step % size, waits = (step >> (rank % 4)) & 1;
        size_t n = counts[step / KINDS % COUNTS];
        comm_work *work = NULL;
        for (size_t i = 0; i < n * (size_t)size; i++) {
            in[i] = value(rank, i, step);
            out[i] = kind == 2 && rank == root ? in[i] : -1;
        }
        CHECK_OK(call(world, kind, in, out, n, root, waits ? NULL : &work));
        CHECK(!waits || !work);
        if (work)
            CHECK_OK(comm_work_wait(work, COMM_TIMEOUT_DEFAULT));
        comm_work_release(work);
        for (size_t i = 0; i < n * (size_t)size && kind != 1; i++) {
            int64_t wanted = expected(kind, rank, size, n, i, root, step);
            if (wanted != -1 && out[i] != wanted)
                ranks_fail(__FILE__, __LINE__, "step %d, kind %d, %zu elements, element %zu: %d, not %lld", step, kind,
                           n, i, (int)out[i], (long long)wanted);
        }
    }
    CHECK_OK(comm_group_close(world));
    free(in);
    free(out);
}

/* More than are connected all at once, and than small.c serves. */
static void many_ranks(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:shm");
    const size_t lengths[] = { 1, 100, 3000, 40000 };
    int32_t *data = malloc(40000 * sizeof *data);
    (void)arg;
    CHECK(data);
    for (int step = 0; step < 12; step++) {
        size_t n = lengths[step % 4];
        for (size_t i = 0; i < n; i++)
            data[i] = value(rank, i, step);
        CHECK_OK(comm_all_reduce(world, data, data, n, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        for (size_t i = 0; i < n; i++)
            CHECK(data[i] == expected(0, rank, size, n, i, 0, step));
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    CHECK_OK(comm_group_close(world));
    free(data);
}

/* The root is far ahead of the others: neither rings nor credit are endless. */
static void a_root_runs_ahead(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:shm?ring_bytes=16K");
    uint8_t data[3000];
    (void)size, (void)arg;
    for (int step = 0; step < 5000; step++) {
        size_t bytes = 1 + (size_t)step % sizeof data;
        memset(data, rank == 0 ? step : 0xee, bytes);
        CHECK_OK(comm_broadcast(world, data, bytes, COMM_DTYPE_BYTE, 0, NULL, NULL));
        CHECK(data[0] == (uint8_t)step && data[bytes - 1] == (uint8_t)step);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* Long messages, from memory that peers read in place on some ranks and not on others, which changes from step to step;
 * through the kernel where `backend` lets it. Pieces come and go. Every kind of call has every length, and again those
 * that cost little. */
static void long_messages_from_anywhere(int rank, int size, void *arg)
{
    static const size_t lengths[] = { 262144, 33000, 16385, 4097, 4096, 33000, 16385, 4097, 4096 };
    comm_group *world = ranks_world(arg);
    for (int step = 0; step < (int)(sizeof lengths / sizeof *lengths) * KINDS; step++) {
        int kind = step % KINDS, root = step % size, in_place = step % 4 == 3 && kind == 0;
        size_t n = lengths[step / KINDS], bytes = n * (size_t)size * sizeof(int32_t);
        if (n > max_elements)
            continue;
        comm_memory *in_memory = NULL, *out_memory = NULL;
        void *in_data = NULL, *out_data = NULL;
        if ((step + rank) % 3)
            CHECK_OK(comm_mem_alloc(world, bytes, COMM_DEVICE_DEFAULT, &in_data, &in_memory));
        if ((step + rank) % 2)
            CHECK_OK(comm_mem_alloc(world, bytes, COMM_DEVICE_DEFAULT, &out_data, &out_memory));
        int32_t *out = out_memory ? out_data : malloc(bytes);
        int32_t *in = in_place ? out : in_memory ? in_data : malloc(bytes);
        CHECK(in && out);
        for (size_t i = 0; i < n * (size_t)size; i++) {
            out[i] = -1;
            in[i] = value(rank, i, step);
            if (kind == 2 && rank == root)
                out[i] = in[i];
        }
        CHECK_OK(call(world, kind, in, out, n, root, NULL));
        for (size_t i = 0; i < n * (size_t)size && kind != 1; i++) {
            int64_t wanted = expected(kind, rank, size, n, i, root, step);
            if (wanted != -1 && out[i] != wanted)
                ranks_fail(__FILE__, __LINE__, "step %d, kind %d, %zu elements, element %zu: %d, not %lld", step, kind,
                           n, i, (int)out[i], (long long)wanted);
        }
        if (!in_memory && !in_place)
            free(in);
        if (!out_memory)
            free(out);
        CHECK_OK(comm_mem_release(in_memory));
        CHECK_OK(comm_mem_release(out_memory));
    }
    CHECK_OK(comm_group_close(world));
}

/* What a process that is no rank of the job gets from a rank's socket: nothing, and the end of the connection. 0 if
 * there is no such socket any more. */
static int knock(const char *name, const void *words, size_t bytes)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char answer[256], control[256];
    struct iovec iov = { answer, sizeof answer };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
                              .msg_controllen = sizeof control };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(a.sun_path + 1, name, strlen(name));
    CHECK(fd >= 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    if (connect(fd, (struct sockaddr *)&a, length) != 0 || send(fd, words, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
        close(fd);
        return 0;
    }
    ssize_t n = recvmsg(fd, &message, 0);
    CHECK(n <= 0);
    CHECK(n < 0 || message.msg_controllen == 0);
    close(fd);
    return 1;
}

/* The name of a rank's socket: of this world or of another program's. */
static void find_socket(char *ret_name)
{
    char line[512];
    FILE *sockets = fopen("/proc/net/unix", "r");
    CHECK(sockets);
    *ret_name = '\0';
    while (fgets(line, sizeof line, sockets)) {
        const char *at = strstr(line, "@libcomm-");
        if (at)
            sscanf(at + 1, "%127s", ret_name);
    }
    fclose(sockets);
}

static void strangers_get_nothing(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:shm");
    const char hello[64] = "lcommshm\1";
    char name[128];
    (void)size, (void)arg;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 0) {
        do
            find_socket(name);
        while (!knock(name, "hello", 5) || !knock(name, hello, sizeof hello));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* ---- More connections than are looked after at a time ---- */

enum { STRANGERS = 300 };

static struct shared {
    _Atomic int pid, step;
} *shared;

static void reach(int step)
{
    while (atomic_load(&shared->step) < step)
        sched_yield();
}

/* Is this socket open in that process? */
static int has_socket(int pid, unsigned long inode)
{
    char folder[64], path[400], link[64], wanted[64];
    snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *d = opendir(folder);
    int found = 0;
    CHECK(d);
    for (struct dirent *e; !found && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        found = strcmp(link, wanted) == 0;
    }
    closedir(d);
    return found;
}

/* The name of the socket at which that process listens. */
static void find_listener(int pid, char name[128])
{
    enum { LISTENS = 0x10000 };
    char line[512];
    unsigned long flags, inode;
    FILE *sockets = fopen("/proc/net/unix", "r");
    CHECK(sockets);
    *name = '\0';
    while (!*name && fgets(line, sizeof line, sockets))
        if (sscanf(line, "%*s %*s %*s %lx %*s %*s %lu @%127s", &flags, &inode, name) != 3 || flags != LISTENS ||
            strncmp(name, "libcomm-", 8) != 0 || !has_socket(pid, inode))
            *name = '\0';
    fclose(sockets);
    CHECK(*name);
}

/* As many as the kernel lets wait: net.core.somaxconn. */
static void connect_silently(const char *name, int fds[STRANGERS])
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    memcpy(a.sun_path + 1, name, strlen(name));
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        CHECK(fds[i] >= 0 && (connect(fds[i], (struct sockaddr *)&a, length) == 0 || errno == EAGAIN));
    }
}

/* Rank 0 is stopped while rank 2 connects to it, and so many that say nothing: before rank 2 does, or after that. */
static void a_crowd_at_the_door(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:shm");
    const int comes_first = arg != NULL;
    int32_t data = rank;
    (void)size;
    if (rank == 0)
        atomic_store(&shared->pid, getpid());
    if (rank == 1) {
        char name[128];
        int fds[STRANGERS];
        while (!atomic_load(&shared->pid))
            sched_yield();
        find_listener(shared->pid, name);
        CHECK(kill(shared->pid, SIGSTOP) == 0);
        atomic_store(&shared->step, comes_first ? 1 : 2);
        reach(2);
        connect_silently(name, fds);
        atomic_store(&shared->step, 3);
        reach(comes_first ? 3 : 4);
        CHECK(kill(shared->pid, SIGCONT) == 0);
        atomic_store(&shared->step, 5);
        CHECK_OK(comm_recv(world, &data, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        for (int i = 0; i < STRANGERS; i++)
            close(fds[i]);
    } else if (rank == 2) {
        enum { A_WHILE_MS = 100 };
        comm_work *work;
        reach(comes_first ? 1 : 3);
        CHECK_OK(comm_send(world, &data, 1, COMM_DTYPE_I32, 0, NULL, &work));
        comm_status status = comm_work_wait(work, A_WHILE_MS); /* it connects meanwhile */
        CHECK(status == COMM_ERR_TIMEOUT || status == COMM_OK); /* rank 0 stops soon after the signal is sent */
        atomic_store(&shared->step, comes_first ? 2 : 4);
        CHECK_OK(comm_work_wait(work, COMM_TIMEOUT_DEFAULT));
        comm_work_release(work);
    } else {
        reach(5);
        CHECK_OK(comm_recv(world, &data, 1, COMM_DTYPE_I32, 2, NULL, NULL));
        CHECK(data == 2);
        CHECK_OK(comm_send(world, &data, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    }
    CHECK_OK(comm_group_close(world));
}

static int crowds(void)
{
    static char first[] = "first";
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    if (ranks_run(3, NULL, a_crowd_at_the_door, first))
        return 1;
    memset(shared, 0, sizeof *shared);
    return ranks_run(3, NULL, a_crowd_at_the_door, NULL);
}

int main(int argc, char **argv)
{
    struct ranks_options threads = { .threads = 1 };
    int bad = 0;
    if (argc > 1)
        max_elements = strtoul(argv[1], NULL, 10);
    for (int size = 1; size <= RANKS_MAX && !bad; size++)
        bad = ranks_run(size, NULL, run_and_begun_are_one_operation, "cpu:shm") ||
              ranks_run(size, NULL, run_and_begun_are_one_operation, "cpu:shm-tcp");
    return bad || ranks_run(3, &threads, run_and_begun_are_one_operation, "cpu:shm") ||
           ranks_run(3, &threads, run_and_begun_are_one_operation, "cpu:shm-tcp") ||
           ranks_run(16, NULL, many_ranks, NULL) || ranks_run(24, NULL, many_ranks, NULL) ||
           ranks_run(2, NULL, long_messages_from_anywhere, "cpu:shm") ||
           ranks_run(5, NULL, long_messages_from_anywhere, "cpu:shm") ||
           ranks_run(3, &threads, long_messages_from_anywhere, "cpu:shm") ||
           ranks_run(3, NULL, long_messages_from_anywhere, "cpu:shm?cma_bytes=0") ||
           ranks_run(3, NULL, long_messages_from_anywhere, "cpu:shm-tcp") ||
           setenv("RANKS_HOSTS", "aba", 1) != 0 || ranks_run(4, NULL, long_messages_from_anywhere, "cpu:shm-tcp") ||
           unsetenv("RANKS_HOSTS") != 0 ||
           ranks_run(3, NULL, a_root_runs_ahead, NULL) || ranks_run(2, NULL, strangers_get_nothing, NULL) ||
           crowds();
}

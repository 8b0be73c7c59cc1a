/* In the steady state small operations over shared memory allocate nothing and make no system call: neither malloc nor
 * the kernel hears of the thread that calls them, while its peer is awake. (The helper thread looks now and then
 * whether they are still called.) malloc's place is taken by functions that count; system calls are dispatched to a
 * handler that counts and makes them. Exits with 77 where the kernel has no such dispatch. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "ranks.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_OFF 0
#define PR_SYS_DISPATCH_ON 1
#endif

enum { WARM_UP = 3000, ROUNDS = 20000, ALLOWED = 0, DISPATCHED = 1, SKIPPED = 77,
       SELDOM = 2 /* a rank that waits for one that does not run asks the kernel now and then about it */ };

/* ---- malloc ---- */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

static _Thread_local int counts;
static _Thread_local long allocations, calls;
static _Thread_local long first_call; /* its number */

void *malloc(size_t bytes)
{
    allocations += counts;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations += counts;
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    allocations += counts;
    return __libc_realloc(old, bytes);
}

/* ---- System calls ---- */

static _Thread_local volatile char selector = ALLOWED;

#ifdef __x86_64__
static long make_call(const greg_t *registers)
{
    register long r10 __asm__("r10") = registers[REG_R10], r8 __asm__("r8") = registers[REG_R8],
                  r9 __asm__("r9") = registers[REG_R9];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(registers[REG_RAX]), "D"(registers[REG_RDI]), "S"(registers[REG_RSI]),
                       "d"(registers[REG_RDX]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* The rest of the round is not counted: the way out of the handler is a call itself. */
static void on_call(int signal, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)signal;
    selector = ALLOWED;
    if (calls++ == 0)
        first_call = info->si_syscall;
    registers[REG_RAX] = info->si_syscall;
    registers[REG_RAX] = make_call(registers);
}

static int watch_calls(void)
{
    struct sigaction action = { .sa_sigaction = on_call, .sa_flags = SA_SIGINFO };
    return sigaction(SIGSYS, &action, NULL) == 0 &&
           prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) == 0;
}
#else
static int watch_calls(void)
{
    return 0;
}
#endif

/* ---- Page faults ---- */

static long faults(void)
{
    struct rusage usage = { 0 };
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
}

/* The kernel cannot fill page tables ahead. */
static int must_fault(void)
{
    enum { POPULATE_READ = 22 };
    void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fails = page == MAP_FAILED || madvise(page, 4096, POPULATE_READ) != 0;
    if (page != MAP_FAILED)
        munmap(page, 4096);
    return fails;
}

/* ---- Operations ---- */

static comm_status all_reduce(comm_group *world, int32_t *data)
{
    data[0] = 1;
    comm_status status = comm_all_reduce(world, data, data, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
    return status == COMM_OK && data[0] != comm_group_size(world) ? COMM_ERR_BUG : status;
}

static comm_status barrier(comm_group *world, int32_t *data)
{
    (void)data;
    return comm_barrier(world, NULL, NULL);
}

/* From both in turn, so that none runs ahead. */
static comm_status broadcast(comm_group *world, int32_t *data)
{
    comm_status status = comm_broadcast(world, data, 2, COMM_DTYPE_I32, 0, NULL, NULL);
    return status == COMM_OK ? comm_broadcast(world, data, 2, COMM_DTYPE_I32, 1, NULL, NULL) : status;
}

static comm_status ping_pong(comm_group *world, int32_t *data)
{
    int32_t rank = comm_group_rank(world);
    comm_status status = COMM_OK;
    if (rank == 0)
        status = comm_send(world, data, 2, COMM_DTYPE_I32, 1, NULL, NULL);
    if (status == COMM_OK)
        status = comm_recv(world, data, 2, COMM_DTYPE_I32, 1 - rank, NULL, NULL);
    if (status == COMM_OK && rank == 1)
        status = comm_send(world, data, 2, COMM_DTYPE_I32, 0, NULL, NULL);
    return status;
}

static const struct {
    const char *name;
    comm_status (*fn)(comm_group *world, int32_t *data);
} operations[] = {
    { "all_reduce", all_reduce },
    { "barrier", barrier },
    { "broadcast", broadcast },
    { "ping-pong", ping_pong },
};

/* Not even the first lap through the rings, which have 128 pages or more. */
static void no_page_faults_after_the_first_message(comm_group *world, int32_t *data)
{
    enum { LAP = 5000, FEW = 64 }; /* the flight record grows */
    comm_status status = operations[0].fn(world, data);
    long before = faults();
    for (int k = 0; k < LAP && status == COMM_OK; k++)
        status = operations[0].fn(world, data);
    CHECK_OK(status);
    long more = faults() - before;
    if (more > FEW && !must_fault())
        ranks_fail(__FILE__, __LINE__, "%ld page faults in the first %d operations", more, LAP);
}

/* An operation that meets a look of the helper takes a longer way, and may keep messages that come early. The memory
 * for that is there after the first time. */
static void go_the_longer_way(comm_group *world, int32_t *data)
{
    enum { AHEAD = 8 };
    int32_t peer = 1 - comm_group_rank(world);
    comm_work *work;
    for (int k = 0; k < AHEAD; k++)
        CHECK_OK(comm_send(world, data, 2, COMM_DTYPE_I32, peer, NULL, NULL));
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK_OK(comm_work_wait(work, COMM_TIMEOUT_INFINITE));
    comm_work_release(work);
    for (int k = 0; k < AHEAD; k++)
        CHECK_OK(comm_recv(world, data, 2, COMM_DTYPE_I32, peer, NULL, NULL));
}

static void nothing_is_allocated_or_asked_of_the_kernel(int rank, int size, void *arg)
{
    /* A rank that does not run for a while would be waited for in the kernel. */
    comm_group *world = ranks_world(arg);
    int32_t data[2] = { 0 };
    (void)size;
    no_page_faults_after_the_first_message(world, data);
    go_the_longer_way(world, data);
    CHECK(watch_calls());
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        comm_status status = COMM_OK;
        for (int k = 0; k < WARM_UP && status == COMM_OK; k++)
            status = operations[i].fn(world, data);
        calls = allocations = 0;
        for (int k = 0; k < ROUNDS && status == COMM_OK; k++) {
            counts = 1;
            selector = DISPATCHED;
            status = operations[i].fn(world, data);
            selector = ALLOWED;
            counts = 0;
        }
        CHECK_OK(status);
        if (calls > ROUNDS / SELDOM || allocations)
            ranks_fail(__FILE__, __LINE__, "%s: %ld of %d made a system call (the first: %ld); %ld allocations",
                       operations[i].name, calls, ROUNDS, first_call, allocations);
        if (rank == 0)
            printf("%d times %s: no allocation, %ld with a system call\n", ROUNDS, operations[i].name, calls);
    }
    prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2 || !watch_calls()) {
        printf("2 cores, and a kernel that dispatches system calls to the process (5.11, x86-64), are not here\n");
        return SKIPPED;
    }
    prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0);
    return ranks_run(2, NULL, nothing_is_allocated_or_asked_of_the_kernel, "cpu:shm?spin_us=1000000") ||
           ranks_run(2, NULL, nothing_is_allocated_or_asked_of_the_kernel, "cpu:shm-tcp?tcp.spin_us=1000000");
}

/* For tests of what the kernel writes to another rank's memory (linked with --wrap=process_vm_writev): memory that both
 * processes have, and a process that stops itself as it writes. */
#ifndef TESTS_VM_WRITES_H
#define TESTS_VM_WRITES_H

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

struct vm_shared {
    _Atomic int calls;   /* of process_vm_writev */
    _Atomic int stopped; /* the process that has stopped itself */
    _Atomic int resumed; /* it has gone on, and its call is over */
    _Atomic int armed;   /* the next call is in trouble, perhaps that of one process only */
    _Atomic int done;
};

static struct vm_shared *shared;

ssize_t __real_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                                 const struct iovec *remote, unsigned long remote_count, unsigned long flags);
ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                                 const struct iovec *remote, unsigned long remote_count, unsigned long flags);

/* 0: there is no memory. */
static int vm_open(void)
{
    void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = memory;
    return memory != MAP_FAILED;
}

static void vm_stop(void)
{
    atomic_store(&shared->stopped, (int)getpid());
    raise(SIGSTOP);
}

/* That process goes on, which may say that it stops before it does; and its call is over. */
static void vm_go_on(int stopped)
{
    int before = atomic_load(&shared->resumed);
    while (atomic_load(&shared->resumed) == before) {
        kill((pid_t)stopped, SIGCONT);
        sched_yield();
    }
}

/* Does it only try whether a peer's memory can be written? */
static int vm_is_probe(const struct iovec *local)
{
    enum { PROBE_BYTES = 8 };
    return local->iov_len == PROBE_BYTES;
}

#endif

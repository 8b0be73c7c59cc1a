#include "events.h"

#include <errno.h>
#include <string.h>
#include <linux/membarrier.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "descriptor.h"
#include "duplex.h"
#include "say.h"

/* It is edge-triggered, so it need not be read. */
static void on_bell(struct watch *w)
{
    (void)w;
}

/* A barrier that the threads of all processes that have registered pass, wherever they are: the rank that goes to sleep
 * pays for it, and a sender need not. ThreadSanitizer does not know it. */
static int barrier_command(int command)
{
#ifdef __SANITIZE_THREAD__
    return command < 0;
#else
    return syscall(SYS_membarrier, command, 0, 0) == 0;
#endif
}

comm_status events_open(struct fabric *f)
{
    f->has_barrier = barrier_command(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
    struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.ptr = &f->bell };
    f->bell.ready = on_bell;
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    f->bell.fd = f->epoll < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->bell.fd < 0 || epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->bell.fd, &e) != 0)
        return exec_fail(COMM_ERR_SYSTEM, "making the descriptors that a rank sleeps at: %s", strerror(errno));
    return COMM_OK;
}

void events_close(struct fabric *f)
{
    descriptor_close(&f->bell.fd);
    descriptor_close(&f->epoll);
}

int events_watch(struct fabric *f, struct watch *w)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = w };
    return epoll_ctl(f->epoll, EPOLL_CTL_ADD, w->fd, &e) == 0;
}

void events_unwatch(struct fabric *f, struct watch *w)
{
    if (w->fd >= 0 && f->epoll >= 0)
        epoll_ctl(f->epoll, EPOLL_CTL_DEL, w->fd, NULL);
}

void events_turn(struct fabric *f, int wait_ms)
{
    enum { FEW = 32 };
    struct epoll_event ready[FEW];
    int n = epoll_wait(f->epoll, ready, FEW, wait_ms);
    if (wait_ms)
        events_awake(f);
    for (int i = 0; i < n; i++) {
        struct watch *w = ready[i].data.ptr;
        if (w->fd >= 0) /* an earlier one may have closed it */
            w->ready(w);
    }
}

/* The kernel has no memory for one: from now on the peers make their own. */
static void do_without_barrier(struct fabric *f)
{
    f->has_barrier = 0;
    for (int32_t i = 0; i < f->up_count; i++)
        atomic_store_explicit(&f->up[i]->in.shared->is_barred, 0, memory_order_relaxed);
}

int events_asleep(struct fabric *f)
{
    for (int32_t i = 0; i < f->up_count; i++)
        atomic_store_explicit(&f->up[i]->in.shared->asleep, 1, memory_order_relaxed);
    f->is_asleep = 1;
    if (f->has_barrier && !barrier_command(MEMBARRIER_CMD_GLOBAL_EXPEDITED))
        do_without_barrier(f);
    if (!f->has_barrier)
        ring_fence();
    for (int32_t i = 0; i < f->up_count; i++)
        if (duplex_has_news(f->up[i])) {
            events_awake(f);
            return 0;
        }
    return 1;
}

void events_say_awake(struct fabric *f)
{
    f->is_asleep = 0;
    for (int32_t i = 0; i < f->up_count; i++)
        atomic_store_explicit(&f->up[i]->in.shared->asleep, 0, memory_order_relaxed);
    f->driver->rouse_helper(f->domain); /* it must not sleep any more */
}

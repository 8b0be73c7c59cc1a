#include "events.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <linux/membarrier.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "descriptor.h"
#include "dial.h"
#include "duplex.h"
#include "region.h"
#include "say.h"
#include "waiting.h"

/* It is edge-triggered, so it need not be read. It rings once for each rank that was told that this one sleeps. Where
 * the thread that sleeps is another one, that does not see it any more. */
static void on_bell(struct watch *w)
{
    events_awake((struct fabric *)((char *)w - offsetof(struct fabric, bell)));
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
        return exec_fail(COMM_ERR_SYSTEM, "making the descriptors that a rank sleeps at: %s%s",
                         strerror(errno), descriptors_cure(errno));
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

/* Those numbers are the program's now. */
static void forget_descriptors(struct fabric *f)
{
    f->epoll = f->bell.fd = f->listener.fd = -1;
    for (int32_t i = 0; i < f->domain->peers.size; i++)
        f->duplexes[i].watch.fd = f->duplexes[i].process.fd = f->duplexes[i].bell = -1;
    for (int i = 0; i < f->pending_places; i++)
        f->pending[i].watch.fd = f->pending[i].reserved[0] = f->pending[i].reserved[1] = -1;
    f->pending_count = 0;
    region_forget_descriptors(f);
    f->driver->forget_descriptors(f->domain);
}

/* The program has closed them: no peer can be heard, nor its end be noticed. */
static void lose_descriptors(struct fabric *f)
{
    forget_descriptors(f);
    for (int32_t i = 0; i < f->domain->peers.size; i++) {
        struct port *p = &f->duplexes[i].port;
        dial_end(&f->duplexes[i]);
        if (p->state == PORT_UP || p->state == PORT_OPENING)
            port_lose(p, COMM_ERR_SYSTEM,
                      "cannot be heard any more: this rank's program has closed libcomm's descriptors, as daemons do, "
                      "or close_range; it must close what it wants to before comm_init");
    }
}

void events_turn(struct fabric *f, int wait_ms)
{
    enum { FEW = 32 };
    struct epoll_event ready[FEW];
    int n = epoll_wait(f->epoll, ready, FEW, wait_ms);
    if (n < 0 && (errno == EBADF || errno == EINVAL))
        lose_descriptors(f);
    if (wait_ms)
        events_awake(f);
    for (int i = 0; i < n; i++) {
        struct watch *w = ready[i].data.ptr;
        if (w->fd >= 0) /* an earlier one may have closed it */
            w->ready(w);
    }
}

static void say_barred(struct fabric *f, int is_barred)
{
    f->is_barred = is_barred;
    for (int32_t i = 0; i < f->up_count; i++)
        atomic_store_explicit(&f->up[i]->in.shared->is_barred, (uint32_t)is_barred, memory_order_relaxed);
}

/* The barrier interrupts the other cores, which takes some 30 us on a virtual machine. It is for a rank that mostly
 * spins. */
static int wants_barrier(const struct fabric *f)
{
    const struct waiting *w = f->looks.waiting;
    return f->has_barrier && waiting_spins(w) && !waiting_rests(w, clock_now_ns());
}

void events_spins(struct fabric *f)
{
    say_barred(f, 1);
}

/* What senders have written is seen from now on, or they see that this rank sleeps. One that last saw is_barred has not
 * made a fence: the barrier is passed once more when they are told that there will be none. Returns 0 if the kernel had
 * no memory for it, and will not be asked again. */
static int order_looks(struct fabric *f)
{
    int was_barred = f->is_barred, wanted = wants_barrier(f);
    if (wanted != was_barred)
        say_barred(f, wanted);
    if (!wanted && !was_barred) {
        ring_fence();
        return 1;
    }
    if (barrier_command(MEMBARRIER_CMD_GLOBAL_EXPEDITED))
        return 1;
    f->has_barrier = 0;
    say_barred(f, 0);
    return 0;
}

static int has_news(const struct fabric *f)
{
    for (int32_t i = 0; i < f->up_count; i++)
        if (duplex_has_news(f->up[i]))
            return 1;
    return 0;
}

int events_asleep(struct fabric *f)
{
    for (int32_t i = 0; i < f->up_count; i++)
        atomic_store_explicit(&f->up[i]->in.shared->asleep, 1, memory_order_relaxed);
    f->is_asleep = 1;
    if (order_looks(f) && !has_news(f))
        return 1;
    events_awake(f);
    return 0;
}

void events_say_awake(struct fabric *f)
{
    f->is_asleep = 0;
    for (int32_t i = 0; i < f->up_count; i++)
        atomic_store_explicit(&f->up[i]->in.shared->asleep, 0, memory_order_relaxed);
    f->driver->rouse_helper(f->domain); /* it must not sleep any more */
}

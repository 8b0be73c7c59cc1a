#include "events.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "descriptor.h"
#include "duplex.h"
#include "say.h"

/* It is edge-triggered, so it need not be read. */
static void on_bell(struct watch *w)
{
    (void)w;
}

comm_status events_open(struct arena *a)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.ptr = &a->bell };
    a->bell.ready = on_bell;
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    a->bell.fd = a->epoll < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->bell.fd < 0 || epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->bell.fd, &e) != 0)
        return exec_fail(COMM_ERR_SYSTEM, "making the descriptors that a rank sleeps at: %s", strerror(errno));
    return COMM_OK;
}

void events_close(struct arena *a)
{
    descriptor_close(&a->bell.fd);
    descriptor_close(&a->epoll);
}

int events_watch(struct arena *a, struct watch *w)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = w };
    return epoll_ctl(a->epoll, EPOLL_CTL_ADD, w->fd, &e) == 0;
}

void events_unwatch(struct arena *a, struct watch *w)
{
    if (w->fd >= 0 && a->epoll >= 0)
        epoll_ctl(a->epoll, EPOLL_CTL_DEL, w->fd, NULL);
}

void events_turn(struct arena *a, int wait_ms)
{
    enum { FEW = 32 };
    struct epoll_event ready[FEW];
    int n = epoll_wait(a->epoll, ready, FEW, wait_ms);
    if (wait_ms)
        events_awake(a);
    for (int i = 0; i < n; i++) {
        struct watch *w = ready[i].data.ptr;
        if (w->fd >= 0) /* an earlier one may have closed it */
            w->ready(w);
    }
}

int events_asleep(struct arena *a)
{
    for (int32_t i = 0; i < a->up_count; i++)
        atomic_store_explicit(&a->up[i]->in.shared->asleep, 1, memory_order_relaxed);
    a->is_asleep = 1;
    ring_fence();
    for (int32_t i = 0; i < a->up_count; i++)
        if (duplex_has_news(a->up[i])) {
            events_awake(a);
            return 0;
        }
    return 1;
}

void events_awake(struct arena *a)
{
    if (!a->is_asleep)
        return;
    a->is_asleep = 0;
    for (int32_t i = 0; i < a->up_count; i++)
        atomic_store_explicit(&a->up[i]->in.shared->asleep, 0, memory_order_relaxed);
    if (atomic_load(&a->helper_polls)) /* it must not sleep any more */
        bell_ring(a->bell.fd);
}

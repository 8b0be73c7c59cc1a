#include "helper.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/monotonic_cond.h"
#include "base/own_thread.h"
#include "say.h"

void helper_init(struct helper *h, const struct helper_ops *ops, struct domain *d, const atomic_int *async_works)
{
    h->ops = ops;
    h->domain = d;
    h->async_works = async_works;
    h->bell = -1;
    pthread_mutex_init(&h->lock, NULL);
    monotonic_cond_init(&h->parked);
}

/* Sleep for so long, unless it has been woken since `wakes` was read. */
static void park(struct helper *h, unsigned wakes, int64_t park_ns)
{
    int64_t until_ns = clock_now_ns() + park_ns;
    struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
    pthread_mutex_lock(&h->lock);
    atomic_store(&h->is_parked, 1);
    if (atomic_load(&h->wakes) == wakes)
        pthread_cond_timedwait(&h->parked, &h->lock, &t);
    atomic_store(&h->is_parked, 0);
    pthread_mutex_unlock(&h->lock);
}

void helper_wake(struct helper *h)
{
    atomic_fetch_add(&h->wakes, 1);
    if (!atomic_load(&h->is_parked))
        return;
    pthread_mutex_lock(&h->lock);
    pthread_cond_signal(&h->parked);
    pthread_mutex_unlock(&h->lock);
}

static void ring(struct helper *h)
{
    const uint64_t once = 1;
    ssize_t written = write(atomic_load(&h->bell), &once, sizeof once);
    (void)written; /* it fails only if it has rung 2^64 times */
}

void helper_rouse(struct helper *h)
{
    if (atomic_load(&h->polls))
        ring(h);
}

static void sleep_until_it_happens(struct helper *h, int wait_ms)
{
    struct pollfd fds[] = { { .fd = h->events, .events = POLLIN }, { .fd = h->bell, .events = POLLIN } };
    const int count = atomic_load(&h->has_none) ? 0 : 2;
    uint64_t rung;
    if (poll(fds, (nfds_t)count, wait_ms) > 0 && fds[1].revents & POLLIN && !atomic_load(&h->has_none)) {
        ssize_t taken = read(fds[1].fd, &rung, sizeof rung);
        (void)taken;
    }
}

static int takes_lock(struct helper *h, int is_driven, int64_t now)
{
    int must_look = helper_must_look(&h->signs, now);
    if (is_driven && !must_look)
        return 0;
    if (h->ops->try_lock(h->domain))
        return 1;
    if (!must_look || atomic_load(&h->signs.waiter_drives))
        return 0;
    h->ops->lock(h->domain);
    return 1;
}

static int64_t nap_ns(const struct helper *h, int is_driven, int64_t now)
{
    int may = !is_driven && h->ops->nap_ns && atomic_load(h->async_works);
    return may ? h->ops->nap_ns(h->domain, now) : 0;
}

static int64_t rest_ns(const struct helper *h, struct helper_memory *memory, int is_driven, int64_t naps_ns,
                       int64_t now)
{
    if (naps_ns == 0)
        return helper_rest_ns(memory, &h->signs, is_driven, now);
    return h->finds >= HELPER_FINDS && naps_ns > HELPER_NAP_NS ? HELPER_NAP_NS : naps_ns;
}

static void nap(int64_t ns)
{
    struct timespec t = { ns / 1000000000, ns % 1000000000 };
    nanosleep(&t, NULL);
}

static void *help(void *argument)
{
    struct helper *h = argument;
    struct helper_memory memory = { 0 };
    for (;;) {
        unsigned wakes = atomic_load(&h->wakes); /* before `stop`: see park */
        if (atomic_load(&h->stop))
            return NULL;
        int64_t now = clock_now_ns();
        int is_driven = helper_sees_driver(&memory, &h->signs, wakes, atomic_load(h->async_works), now);
        h->ops->resolve(h->domain, &h->stop);
        int64_t naps_ns = nap_ns(h, is_driven, now);
        if (takes_lock(h, is_driven, now)) {
            int wait_ms = h->ops->turn(h->domain, is_driven || naps_ns);
            if (wait_ms && !atomic_load(&h->stop)) /* its bell may be heard already */
                sleep_until_it_happens(h, wait_ms);
            atomic_store(&h->polls, 0);
            if (!is_driven && !naps_ns)
                continue;
        }
        int64_t rests_ns = rest_ns(h, &memory, is_driven, naps_ns, now);
        if (naps_ns || rests_ns <= HELPER_NAP_NS)
            nap(rests_ns);
        else
            park(h, wakes, rests_ns);
    }
}

comm_status helper_start(struct helper *h, int events)
{
    h->events = events;
    h->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int failed = h->bell < 0 ? errno : own_thread_create(&h->thread, help, h);
    if (failed)
        return exec_fail(COMM_ERR_SYSTEM, "starting the helper thread: %s%s", strerror(failed),
                         descriptors_cure(failed));
    h->runs = 1;
    return COMM_OK;
}

void helper_close_descriptors(struct helper *h)
{
    int bell = atomic_exchange(&h->bell, -1); /* first: see forked.h */
    if (bell >= 0)
        close(bell);
}

void helper_forget_descriptors(struct helper *h)
{
    atomic_store(&h->bell, -1);
    atomic_store(&h->has_none, 1);
}

void helper_stop(struct helper *h)
{
    atomic_store(&h->stop, 1);
    if (h->runs) {
        ring(h);
        helper_wake(h);
        pthread_join(h->thread, NULL);
    }
    h->runs = 0;
    helper_close_descriptors(h);
    pthread_cond_destroy(&h->parked);
    pthread_mutex_destroy(&h->lock);
}

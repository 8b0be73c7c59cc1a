/* The arena's lock, and the thread that drives under it.
 *
 * A thread that waits for a work drives: it looks at the rings in a tight loop, yields after a while, and at last
 * sleeps in the kernel; its peers know that it sleeps, and ring. When no thread waits the helper thread looks after the
 * arena in the same way, but sleeps outside the lock, so that taking the lock costs a waiting thread nothing. While a
 * thread drives, the helper mostly rests.
 *
 * A completed work is handed to the core when the lock has been released (driver_leave): the user's callback may
 * then call us. */
#include "driver.h"

#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/monotonic_cond.h"
#include "dial.h"
#include "descriptor.h"
#include "desync.h"
#include "ending.h"
#include "events.h"
#include "duplex.h"
#include "fabric.h"
#include "queue.h"
#include "say.h"

static const int64_t NANOS = 1000000; /* in a millisecond */

/* ---- Completed works ---- */

/* Waiting threads: something is done, or the place of the driver is free. */
static void wake_parked(struct arena *a)
{
    if (!atomic_load(&a->parked))
        return;
    pthread_mutex_lock(&a->park_lock);
    pthread_cond_broadcast(&a->park);
    pthread_mutex_unlock(&a->park_lock);
}

/* Works are done that others may wait for: parked, or in the kernel with the lock that was free while the works were
 * handed over. A waiting thread says that it sleeps, then looks once more whether its work is done; here it is the
 * other way round. All of these are sequentially consistent, the core's state of a work too. */
static void tell_waiting(struct arena *a)
{
    if (atomic_load(&a->sleeping))
        bell_ring(a->fabric.bell.fd);
    wake_parked(a);
}

/* Release the lock; hand over what is done. */
static void unlock_and_complete(struct arena *a)
{
    enum { FEW = 64 };
    struct domain *d = &a->domain;
    for (;;) {
        struct completion few[FEW];
        size_t n = queue_take_done(d, few, FEW);
        size_t more = d->done_count;
        if (n)
            waiting_anew(&a->waiting);
        if (!more)
            atomic_store_explicit(&a->helper.signs.has_done, 0, memory_order_relaxed);
        futex_lock_release(&a->lock);
        for (size_t i = 0; i < n; i++) {
            exec_host->work_complete(few[i].work, few[i].status, few[i].error);
            free(few[i].error);
        }
        if (n)
            tell_waiting(a);
        if (!more)
            return;
        futex_lock_take(&a->lock);
    }
}

/* ---- The lock for short visits ---- */

void driver_enter(struct arena *a)
{
    if (futex_lock_try(&a->lock))
        return;
    atomic_fetch_add(&a->contenders, 1);
    if (atomic_load(&a->sleeping))
        bell_ring(a->fabric.bell.fd);
    futex_lock_take(&a->lock);
    atomic_fetch_sub(&a->contenders, 1);
}

/* What has happened has its consequences; and a deadline may be nearer now. */
static void end_turn(struct arena *a)
{
    struct domain *d = &a->domain;
    turn_end(d);
    if (d->due_ns < a->due_ns)
        a->due_ns = d->due_ns;
    d->due_ns = INT64_MAX;
}

/* The helper may sleep: for longer than it may now, or with works to hand over. */
static void tell_helper(struct arena *a, int has_work)
{
    if (has_work || a->due_ns < a->helper_until_ns)
        helper_rouse(&a->helper);
}

void driver_leave(struct arena *a)
{
    end_turn(a);
    tell_helper(a, 0);
    unlock_and_complete(a);
}

void driver_leave_quietly(struct arena *a)
{
    end_turn(a);
    futex_lock_release(&a->lock);
}

/* Something has happened that the end of the turn must see to: no time to sleep. */
static int has_news(const struct arena *a)
{
    return a->domain.done_count || turn_has_news(&a->domain) || a->domain.due_ns != INT64_MAX;
}

/* ---- Time ---- */

static void on_due(struct arena *a, int64_t now)
{
    if (now >= a->tick_due_ns) {
        desync_tick(&a->domain);
        a->tick_due_ns = now + 1000 * NANOS;
    }
    desync_check(&a->domain, now);
    fabric_timer(&a->fabric, now);
    const int64_t dues[] = { a->tick_due_ns, desync_due_ns(&a->domain), fabric_due_ns(&a->fabric) };
    a->due_ns = INT64_MAX;
    for (size_t i = 0; i < sizeof dues / sizeof *dues; i++)
        a->due_ns = dues[i] < a->due_ns ? dues[i] : a->due_ns;
    a->domain.due_ns = INT64_MAX; /* it is among them */
}

/* Milliseconds until `until_ns`, rounded up, so that no thread wakes up before the time. */
static int millis_until(int64_t until_ns, int64_t now)
{
    return until_ns <= now ? 0 : (int)((until_ns - now) / NANOS + 1);
}

/* ---- Driving ---- */

/* The peers that something is awaited from. */
static int look_at_active(struct arena *a)
{
    const struct port_table *peers = &a->domain.peers;
    int came = 0;
    for (int32_t i = 0; i < peers->active_count; i++)
        came |= duplex_look(duplex_of(peers->active[i]));
    return came;
}

int driver_look_around(struct arena *a)
{
    atomic_store_explicit(&a->helper.signs.looked_ns, clock_now_ns(), memory_order_relaxed);
    return fabric_look_around(&a->fabric);
}

void driver_turn(struct arena *a, int wait_ms)
{
    driver_look_around(a);
    end_turn(a);
    on_due(a, clock_now_ns());
    end_turn(a);
    if (wait_ms && events_asleep(&a->fabric))
        events_turn(&a->fabric, wait_ms);
}

/* With the lock, which others get by ringing. */
static void sleep_in_kernel(struct arena *a, comm_work *work, int64_t deadline_ns)
{
    int64_t now = clock_now_ns(), until_ns = deadline_ns < a->due_ns ? deadline_ns : a->due_ns;
    if (until_ns > now + 1000 * NANOS)
        until_ns = now + 1000 * NANOS;
    atomic_store(&a->sleeping, 1); /* before a last look: see tell_waiting */
    if (atomic_load(&a->contenders) == 0 && !has_news(a) && !exec_host->work_done(work) && events_asleep(&a->fabric))
        events_turn(&a->fabric, millis_until(until_ns, now));
    atomic_store(&a->sleeping, 0);
}

/* Drive until something is done, the deadline passes or another thread wants the lock. The lock is held. */
static void drive(struct arena *a, comm_work *work, int64_t deadline_ns)
{
    int64_t now = clock_now_ns(), idle_since = now;
    int missed = 0; /* we poll again: the poll before found nothing */
    for (unsigned turn = 1; !a->domain.done_count && !exec_host->work_done(work); turn++) {
        events_awake(&a->fabric);
        int came = look_at_active(a);
        if (has_news(a) || a->domain.retired)
            end_turn(a);
        if (atomic_load_explicit(&a->contenders, memory_order_relaxed)) /* may take long to get a core: look first */
            break;
        if (came || a->domain.done_count) { /* that a peer has read what was lent brings no record */
            if (missed)
                waiting_came(&a->waiting);
            waiting_anew(&a->waiting);
            idle_since = missed = 0;
            continue;
        }
        if (!missed)
            waiting_begins(&a->waiting);
        missed = 1;
        if (turn % 256 == 0)
            driver_look_around(a);
        if (turn % 16 && idle_since && waiting_spins(&a->waiting) && !waiting_rests(&a->waiting, now))
            continue;
        now = clock_now_ns();
        if (!idle_since)
            idle_since = now;
        if (now >= a->due_ns) {
            on_due(a, now);
            continue;
        }
        if (now >= deadline_ns)
            break;
        if (waiting_look_again(&a->waiting, now, idle_since))
            continue;
        sleep_in_kernel(a, work, deadline_ns);
        fabric_look(&a->fabric);
        idle_since = missed = 0;
    }
    atomic_store_explicit(&a->helper.signs.driven_ns, now, memory_order_relaxed);
}

static void park(struct arena *a, comm_work *work, int64_t until_ns)
{
    struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
    pthread_mutex_lock(&a->park_lock);
    atomic_fetch_add(&a->parked, 1); /* before a last look: see tell_waiting */
    if (!exec_host->work_done(work) && atomic_load(&a->helper.signs.waiter_drives)) /* who wakes us when it stops */
        pthread_cond_timedwait(&a->park, &a->park_lock, &t);
    atomic_fetch_sub(&a->parked, 1);
    pthread_mutex_unlock(&a->park_lock);
}

/* Take the lock to drive. The helper gives way, and a short visit ends soon; another waiting thread drives for both. */
static int try_drive(struct arena *a)
{
    if (futex_lock_try(&a->lock))
        return 1;
    if (atomic_load(&a->helper.signs.waiter_drives))
        return 0;
    driver_enter(a);
    return 1;
}

comm_status driver_wait(struct arena *a, comm_work *work, int64_t deadline_ns)
{
    for (int first = 1; !exec_host->work_done(work); first = 0) {
        int64_t now = first ? 0 : clock_now_ns();
        if (!first && now >= deadline_ns)
            break;
        if (atomic_load(&a->contenders))
            sched_yield();
        if (try_drive(a)) {
            if (deadline_ns == 0) {
                driver_look_around(a);
            } else {
                atomic_store(&a->helper.signs.waiter_drives, 1);
                drive(a, work, deadline_ns);
                atomic_store(&a->helper.signs.waiter_drives, 0);
            }
            driver_leave(a);
            wake_parked(a);
        } else if (deadline_ns) {
            /* Another thread drives, and moves our data too. */
            int64_t a_while = clock_now_ns() + NANOS;
            park(a, work, a_while < deadline_ns ? a_while : deadline_ns);
        }
        if (deadline_ns == 0)
            break;
    }
    return COMM_OK;
}

/* ---- The helper: see helper.h ---- */

static void rouse_helper(struct domain *d)
{
    helper_rouse(&arena_of(d)->helper);
}

static void wake_helper(struct domain *d)
{
    rouse_helper(d);
    helper_wake(&arena_of(d)->helper);
}

void driver_leave_to_helper(struct arena *a)
{
    end_turn(a);
    tell_helper(a, a->domain.done_count > 0);
    atomic_store(&a->helper.signs.has_done, a->domain.done_count > 0);
    futex_lock_release(&a->lock);
    helper_wake(&a->helper);
}

static void enter(struct domain *d)
{
    driver_enter(arena_of(d));
}

static void leave(struct domain *d)
{
    driver_leave(arena_of(d));
}

static void forget_descriptors(struct domain *d)
{
    helper_forget_descriptors(&arena_of(d)->helper);
}

const struct carrier_driver driver_of_arenas = { .enter = enter, .leave = leave, .wake_helper = wake_helper,
                                                 .rouse_helper = rouse_helper,
                                                 .forget_descriptors = forget_descriptors };

/* Look after the arena, with the lock, which is released. Returns how long to sleep then, in ms; the peers know of
 * it. Not at all if a thread drives. */
static int helper_turn(struct domain *d, int is_driven)
{
    enum { SLEEP_MS = 100 };
    struct arena *a = arena_of(d);
    int64_t begun = clock_now_ns(), now, spin_ns = a->waiting.spin_ns;
    spin_ns = spin_ns < HELPER_SPIN_NS ? spin_ns : HELPER_SPIN_NS;
    if (is_driven || !waiting_spins(&a->waiting) || waiting_rests(&a->waiting, begun))
        spin_ns = 0;
    events_awake(&a->fabric);
    int has_found = 0;
    do {
        has_found |= driver_look_around(a) || a->domain.done_count;
        end_turn(a);
        now = clock_now_ns();
        if (now >= a->due_ns) {
            on_due(a, now);
            end_turn(a);
        }
    } while (a->domain.peers.active_count && !a->domain.done_count && !atomic_load(&a->contenders) &&
             now - begun < spin_ns);
    a->helper.finds = has_found ? a->helper.finds + 1 : 0;
    int wait_ms = millis_until(a->due_ns, now);
    wait_ms = wait_ms > SLEEP_MS ? SLEEP_MS : wait_ms;
    if (is_driven || a->domain.done_count || has_news(a) || !events_asleep(&a->fabric))
        wait_ms = 0;
    /* It sleeps for a part of a millisecond more, but need not be roused for what is due then. */
    int64_t until_ns = now + wait_ms * NANOS;
    a->helper_until_ns = until_ns < a->due_ns ? until_ns : a->due_ns;
    atomic_store(&a->helper.polls, wait_ms != 0); /* with the lock: seen by a thread that changes something after us */
    driver_leave(a);
    return wait_ms;
}

static int try_lock(struct domain *d)
{
    return futex_lock_try(&arena_of(d)->lock);
}

static void resolve(struct domain *d, const atomic_int *stop)
{
    struct fabric *f = &arena_of(d)->fabric;
    if (atomic_load(&f->resolving))
        dial_resolve(f, stop);
}

/* To wake up for each message takes 20 us and more of the program's time (in a virtual machine), a system call of its
 * peer's, and what both have in caches. Two ranks that overlap an all_reduce of 64 KiB or 1 MiB with 2 ms of computing,
 * on two cores, took 0.12 or 0.68 ms longer so than if they did one after the other; with naps of 1 ms it was 0.05, and
 * one of 8 B added 0.16 ms, with naps of 2 ms 0.09. After three turns that have found something naps are shorter: a
 * peer may wait for each of many messages. Nor does it nap where somebody may wait to be told: steps of PyTorch's DDP,
 * which waits for callbacks, took twice as long. */
static int64_t helper_nap_ns(struct domain *d, int64_t now)
{
    struct arena *a = arena_of(d);
    return a->nap_ns && !exec_host->some_are_told() && waiting_computes(&a->waiting, now) ? a->nap_ns : 0;
}

static const struct helper_ops helper_ops = { .try_lock = try_lock, .lock = enter, .nap_ns = helper_nap_ns,
                                              .turn = helper_turn, .resolve = resolve };

void driver_start(struct arena *a)
{
    pthread_mutex_init(&a->park_lock, NULL);
    monotonic_cond_init(&a->park);
    helper_init(&a->helper, &helper_ops, &a->domain, &a->domain.async_works);
    a->tick_due_ns = a->due_ns = clock_now_ns() + 1000 * NANOS;
}

comm_status driver_helper(struct arena *a)
{
    return helper_start(&a->helper, a->fabric.epoll);
}

void driver_stop(struct arena *a)
{
    helper_stop(&a->helper);
}

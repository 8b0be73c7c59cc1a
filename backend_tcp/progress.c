/* The mesh's lock, and the thread that drives the loop under it.
 *
 * A thread that waits for a work drives: it reads the links that something is awaited from (active) in a tight loop,
 * yields after a while, and at last sleeps in the kernel. When no thread waits the helper thread looks after the mesh:
 * it sleeps outside the lock, in poll() on the loop's descriptor, so that taking the lock costs a waiting thread
 * nothing. While a thread drives, the helper mostly rests.
 *
 * A completed work is handed to the core when the lock has been released (progress_leave): the user's callback may
 * then call us. */
#include "progress.h"

#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/monotonic_cond.h"
#include "connect.h"
#include "desync.h"
#include "ending.h"
#include "exec_group.h"
#include "link.h"
#include "listen.h"
#include "loop.h"
#include "queue.h"
#include "say.h"

static const int64_t NANOS = 1000000;

/* ---- Completed works ---- */

/* Waiting threads: something is done, or the place of the driver is free. */
static void wake_parked(struct mesh *m)
{
    if (!atomic_load(&m->parked))
        return;
    pthread_mutex_lock(&m->park_lock);
    pthread_cond_broadcast(&m->park);
    pthread_mutex_unlock(&m->park_lock);
}

/* Works are done that others may wait for: parked, or in the kernel with the lock that was free while the works were
 * handed over. A waiting thread says that it sleeps, then looks once more whether its work is done; here it is the
 * other way round. All of these are sequentially consistent, the core's state of a work too. */
static void tell_waiting(struct mesh *m)
{
    if (atomic_load(&m->sleeping))
        uv_async_send(&m->wake);
    wake_parked(m);
}

/* Release the lock; hand over what is done. */
static void unlock_and_complete(struct mesh *m)
{
    enum { FEW = 64 };
    struct domain *d = &m->domain;
    for (;;) {
        struct completion few[FEW];
        size_t n = queue_take_done(d, few, FEW);
        size_t more = d->done_count;
        if (n)
            waiting_anew(&m->waiting);
        if (!more)
            atomic_store_explicit(&m->helper.signs.has_done, 0, memory_order_relaxed);
        pthread_mutex_unlock(&m->lock);
        for (size_t i = 0; i < n; i++) {
            exec_host->work_complete(few[i].work, few[i].status, few[i].error);
            free(few[i].error);
        }
        if (n)
            tell_waiting(m);
        if (!more)
            return;
        pthread_mutex_lock(&m->lock);
    }
}

/* ---- The lock for short visits ---- */

void progress_enter(struct mesh *m)
{
    if (pthread_mutex_trylock(&m->lock) == 0)
        return;
    atomic_fetch_add(&m->contenders, 1);
    if (atomic_load(&m->sleeping))
        uv_async_send(&m->wake);
    pthread_mutex_lock(&m->lock);
    atomic_fetch_sub(&m->contenders, 1);
}

/* What is queued goes out when the socket takes it: let epoll watch for that, as perhaps no thread drives. */
static void arm_links(struct mesh *m)
{
    for (int32_t i = 0; i < m->domain.peers.active_count; i++) {
        struct port *p = m->domain.peers.active[i];
        if (is_link(m, p))
            link_watch_queue(link_of(p));
    }
}

/* What has happened has its consequences; and a deadline that the timer does not know yet. */
static void end_turn(struct mesh *m)
{
    turn_end(&m->domain);
    if (m->domain.due_ns == INT64_MAX)
        return;
    loop_rearm(m, m->domain.due_ns);
    m->domain.due_ns = INT64_MAX;
}

/* The helper may sleep in poll(): what we have done brings nothing to epoll, or epoll has not been told what to look
 * for. */
static void tell_helper(struct mesh *m, int has_work)
{
    arm_links(m);
    if (has_work || m->unwatched)
        helper_rouse(&m->helper);
}

void progress_leave(struct mesh *m)
{
    end_turn(m);
    tell_helper(m, 0);
    unlock_and_complete(m);
}

void progress_leave_quietly(struct mesh *m)
{
    end_turn(m);
    pthread_mutex_unlock(&m->lock);
}

/* Something has happened that the end of the turn must see to: no time to sleep. */
static int has_news(const struct mesh *m)
{
    return m->domain.done_count || turn_has_news(&m->domain) || m->domain.due_ns != INT64_MAX;
}

/* ---- Time ---- */

static void on_due(struct mesh *m, int64_t now)
{
    if (now >= m->tick_due_ns) {
        desync_tick(&m->domain);
        connect_tick(m);
        m->tick_due_ns = now + 1000 * NANOS;
    }
    desync_check(&m->domain, now);
    listen_timer(m, now);
    connect_timer(m, now);
    if (m->local)
        m->local->ops->timer(m->local, now);
    const int64_t dues[] = { desync_due_ns(&m->domain), listen_due_ns(m, now), connect_due_ns(m, now),
                             m->local ? m->local->ops->due_ns(m->local) : INT64_MAX };
    int64_t due = m->tick_due_ns;
    for (size_t i = 0; i < sizeof dues / sizeof *dues; i++)
        due = dues[i] < due ? dues[i] : due;
    m->domain.due_ns = INT64_MAX; /* it is among them */
    loop_arm(m, due);
    if (has_news(m))
        loop_interrupt(m);
}

/* ---- Driving ---- */

static int look_at(struct link *l)
{
    if (l->port.state != PORT_UP)
        return 0;
    if (l->tx_head)
        link_flush(l);
    return link_read(&l->port);
}

/* All sockets that the loop watches, and all that the carrier has; 1 if something has come to the latter. */
static int look_around(struct mesh *m)
{
    atomic_store_explicit(&m->helper.signs.looked_ns, clock_now_ns(), memory_order_relaxed);
    loop_turn(m, UV_RUN_NOWAIT);
    return m->local && m->local->ops->look_around(m->local);
}

/* From now on no thread polls until something happens that the loop watches; 0 if something is there already. */
static int local_asleep(struct mesh *m)
{
    return !m->local || m->local->ops->asleep(m->local);
}

static void local_awake(struct mesh *m)
{
    if (m->local)
        m->local->ops->awake(m->local);
}

void progress_look_around(struct mesh *m)
{
    look_around(m);
}

/* Those of the carrier's ports that something is awaited from. */
static int poll_local(struct mesh *m)
{
    const struct port_table *peers = &m->domain.peers;
    int came = 0;
    for (int32_t i = 0; i < peers->active_count; i++)
        if (!is_link(m, peers->active[i]))
            came |= m->local->ops->look(peers->active[i]);
    return came;
}

static int32_t count_active_links(const struct mesh *m)
{
    const struct port_table *peers = &m->domain.peers;
    int32_t count = 0;
    for (int32_t i = 0; m->local && i < peers->active_count; i++)
        count += is_link(m, peers->active[i]);
    return m->local ? count : peers->active_count;
}

/* All ports that something is awaited from; if those are many links, the kernel says which of them have something. */
static int poll_active(struct mesh *m)
{
    enum { FEW = 8 };
    const struct port_table *peers = &m->domain.peers;
    int came = m->local && poll_local(m);
    if (count_active_links(m) > FEW) {
        arm_links(m);
        m->has_read = 0;
        loop_turn(m, UV_RUN_NOWAIT);
        return came || m->has_read;
    }
    for (int32_t i = 0; i < peers->active_count; i++)
        if (is_link(m, peers->active[i]))
            came |= look_at(link_of(peers->active[i]));
    return came;
}

/* Before the last driver sleeps, register all pending watches with epoll. Going through the loop for that may bring
 * more; if it does not end, the helper goes on. */
static void settle(struct mesh *m)
{
    enum { OFTEN = 4 };
    end_turn(m);
    arm_links(m);
    for (int i = 0; m->unwatched && i < OFTEN; i++) {
        loop_turn(m, UV_RUN_NOWAIT);
        end_turn(m);
        arm_links(m);
    }
}

static void sleep_in_kernel(struct mesh *m, comm_work *work, int64_t deadline_ns)
{
    int64_t left = deadline_ns == INT64_MAX ? 1000 * NANOS : deadline_ns - clock_now_ns();
    if (left > 1000 * NANOS)
        left = 1000 * NANOS;
    loop_nap_begin(m, left);
    arm_links(m);
    atomic_store(&m->sleeping, 1); /* before a last look: see tell_waiting */
    int nothing_yet = atomic_load(&m->contenders) == 0 && !has_news(m) && !exec_host->work_done(work) &&
                      local_asleep(m);
    loop_turn(m, nothing_yet ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    atomic_store(&m->sleeping, 0);
    loop_nap_end(m);
    local_awake(m);
    if (m->local)
        m->local->ops->look_around(m->local);
}

/* Drive until something is done, the deadline passes or another thread wants the lock. The lock is held. */
static void drive(struct mesh *m, comm_work *work, int64_t deadline_ns)
{
    int64_t now = clock_now_ns(), idle_since = now;
    int missed = 0; /* we poll again: the poll before found nothing */
    for (unsigned turn = 1; !m->domain.done_count && !exec_host->work_done(work); turn++) {
        local_awake(m);
        int came = poll_active(m);
        if (has_news(m) || m->domain.retired)
            end_turn(m);
        if (atomic_load_explicit(&m->contenders, memory_order_relaxed)) /* may take long to get a core: look first */
            break;
        if (came || m->domain.done_count) { /* that a peer has read what was lent brings no record */
            if (missed)
                waiting_came(&m->waiting);
            waiting_anew(&m->waiting);
            idle_since = missed = 0;
            continue;
        }
        if (!missed)
            waiting_begins(&m->waiting);
        missed = 1;
        if (turn % 64 == 0)
            look_around(m);
        if (turn % 16 && idle_since && waiting_spins(&m->waiting) && !waiting_rests(&m->waiting, now))
            continue;
        now = clock_now_ns();
        if (!idle_since)
            idle_since = now;
        if (now >= deadline_ns)
            break;
        if (waiting_look_again(&m->waiting, now, idle_since))
            continue;
        sleep_in_kernel(m, work, deadline_ns);
        idle_since = missed = 0;
    }
    atomic_store_explicit(&m->helper.signs.driven_ns, now, memory_order_relaxed);
}

static void park(struct mesh *m, comm_work *work, int64_t until_ns)
{
    struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };
    pthread_mutex_lock(&m->park_lock);
    atomic_fetch_add(&m->parked, 1); /* before a last look: see tell_waiting */
    if (!exec_host->work_done(work) && atomic_load(&m->helper.signs.waiter_drives)) /* who wakes us when it stops */
        pthread_cond_timedwait(&m->park, &m->park_lock, &t);
    atomic_fetch_sub(&m->parked, 1);
    pthread_mutex_unlock(&m->park_lock);
}

/* Take the lock to drive. The helper gives way, and a short visit ends soon; another waiting thread drives for both. */
static int try_drive(struct mesh *m)
{
    if (pthread_mutex_trylock(&m->lock) == 0)
        return 1;
    if (atomic_load(&m->helper.signs.waiter_drives))
        return 0;
    progress_enter(m);
    return 1;
}

comm_status progress_wait(struct mesh *m, comm_work *work, int64_t deadline_ns)
{
    for (int first = 1; !exec_host->work_done(work); first = 0) {
        int64_t now = first ? 0 : clock_now_ns();
        if (!first && now >= deadline_ns)
            break;
        if (atomic_load(&m->contenders))
            sched_yield();
        if (try_drive(m)) {
            if (deadline_ns == 0) {
                look_around(m);
                poll_active(m);
            } else {
                atomic_store(&m->helper.signs.waiter_drives, 1);
                drive(m, work, deadline_ns);
                atomic_store(&m->helper.signs.waiter_drives, 0);
            }
            settle(m);
            progress_leave(m);
            wake_parked(m);
        } else if (deadline_ns) {
            /* Another thread drives, and moves our data too. */
            int64_t a_while = clock_now_ns() + NANOS;
            park(m, work, a_while < deadline_ns ? a_while : deadline_ns);
        }
        if (deadline_ns == 0)
            break;
    }
    return COMM_OK;
}

void progress_leave_to_helper(struct mesh *m)
{
    end_turn(m);
    tell_helper(m, m->domain.done_count > 0);
    atomic_store(&m->helper.signs.has_done, m->domain.done_count > 0);
    pthread_mutex_unlock(&m->lock);
    helper_wake(&m->helper);
}

/* ---- For a carrier ---- */

comm_status progress_run(struct mesh *m, struct exec_group *g, const comm_op *op, int64_t spin_ns)
{
    int is_message = op->kind == COMM_OP_SEND || op->kind == COMM_OP_RECV;
    if ((!is_message && g->host_count != 1) || pthread_mutex_trylock(&m->lock) != 0)
        return COMM_ERR_UNSUPPORTED;
    comm_status status = m->local->ops->run(m->local, g, op, spin_ns);
    pthread_mutex_unlock(&m->lock);
    if (status == COMM_OK)
        m->local->ops->end_turn(g);
    return status;
}

static struct mesh *mesh_of(struct domain *d)
{
    return (struct mesh *)d;
}

static void enter(struct domain *d)
{
    progress_enter(mesh_of(d));
}

static void leave(struct domain *d)
{
    progress_leave(mesh_of(d));
}

static void rouse_helper(struct domain *d)
{
    helper_rouse(&mesh_of(d)->helper);
}

static void wake_helper(struct domain *d)
{
    rouse_helper(d);
    helper_wake(&mesh_of(d)->helper);
}

static void forget_descriptors(struct domain *d)
{
    helper_forget_descriptors(&mesh_of(d)->helper);
}

const struct carrier_driver driver_of_meshes = { .enter = enter, .leave = leave, .wake_helper = wake_helper,
                                                 .rouse_helper = rouse_helper,
                                                 .forget_descriptors = forget_descriptors };

/* ---- The helper: see helper.h ---- */

/* Look after the mesh, with the lock. Returns how long to sleep then, in ms: not at all if a thread drives. */
static int helper_turn(struct domain *d, int is_driven)
{
    struct mesh *m = mesh_of(d);
    int64_t begun = clock_now_ns(), spin_ns = m->waiting.spin_ns;
    spin_ns = spin_ns < HELPER_SPIN_NS ? spin_ns : HELPER_SPIN_NS;
    if (is_driven || waiting_rests(&m->waiting, begun))
        spin_ns = 0;
    local_awake(m);
    do {
        poll_active(m);
        arm_links(m);
        look_around(m);
        end_turn(m);
    } while (m->domain.peers.active_count && !m->domain.done_count && !atomic_load(&m->contenders) &&
             clock_now_ns() - begun < spin_ns);
    settle(m);
    int wait_ms = uv_backend_timeout(&m->loop);
    if (is_driven || m->domain.done_count || m->unwatched || !local_asleep(m))
        wait_ms = 0;
    atomic_store(&m->helper.polls, wait_ms != 0); /* with the lock: seen by a thread that changes something after us */
    progress_leave(m);
    return wait_ms < 0 || wait_ms > 100 ? 100 : wait_ms;
}

static int try_lock(struct domain *d)
{
    return pthread_mutex_trylock(&mesh_of(d)->lock) == 0;
}

static void resolve(struct domain *d, const atomic_int *stop)
{
    struct carrier *local = mesh_of(d)->local;
    if (local)
        local->ops->resolve(local, stop);
}

static const struct helper_ops helper_ops = { .try_lock = try_lock, .lock = enter, .turn = helper_turn,
                                              .resolve = resolve };

comm_status progress_start(struct mesh *m)
{
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->park_lock, NULL);
    monotonic_cond_init(&m->park);
    helper_init(&m->helper, &helper_ops, &m->domain, &m->domain.async_works);
    comm_status status = loop_open(m, on_due);
    if (status != COMM_OK)
        return status;
    m->tick_due_ns = clock_now_ns() + 1000 * NANOS;
    loop_arm(m, m->tick_due_ns);
    return COMM_OK;
}

static void on_local(uv_poll_t *poll, int status, int events)
{
    struct mesh *m = poll->data;
    (void)status, (void)events;
    m->local->ops->look_around(m->local);
}

comm_status progress_watch_local(struct mesh *m)
{
    m->local_poll = loop_poll_new(m, m->local->fd, m);
    if (!m->local_poll)
        return exec_fail(COMM_ERR_NO_MEMORY, "watching the memory that is shared with this host's ranks");
    loop_watch(m, m->local_poll, UV_READABLE, on_local);
    return COMM_OK;
}

void progress_nap(struct mesh *m, int64_t ns)
{
    loop_nap(m, local_asleep(m) ? ns : 0);
    look_around(m);
}

comm_status progress_helper(struct mesh *m)
{
    return helper_start(&m->helper, uv_backend_fd(&m->loop));
}

void progress_stop(struct mesh *m)
{
    helper_stop(&m->helper);
}

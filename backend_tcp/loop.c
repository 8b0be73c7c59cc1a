#include "loop.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "say.h"

static const int64_t NANOS = 1000000; /* in a millisecond */

/* Milliseconds, rounded up: libuv must not wake us before the time. */
static uint64_t millis(int64_t ns)
{
    return ns <= 0 ? 0 : (uint64_t)(ns / NANOS + 1);
}

/* ---- The timer ---- */

static void on_timer(uv_timer_t *timer)
{
    struct mesh *m = timer->data;
    m->on_due(m, clock_now_ns());
}

void loop_arm(struct mesh *m, int64_t due_ns)
{
    m->timer_due_ns = due_ns;
    if (due_ns == INT64_MAX) {
        uv_timer_stop(&m->timer);
        return;
    }
    int64_t left = due_ns - clock_now_ns();
    uv_update_time(&m->loop);
    uv_timer_start(&m->timer, on_timer, millis(left), 0);
}

void loop_rearm(struct mesh *m, int64_t due_ns)
{
    if (due_ns >= m->timer_due_ns)
        return;
    loop_arm(m, due_ns);
    m->unwatched = 1; /* a thread that sleeps would sleep too long */
}

void loop_interrupt(struct mesh *m)
{
    uv_stop(&m->loop);
}

/* ---- Turns ---- */

void loop_turn(struct mesh *m, uv_run_mode mode)
{
    m->unwatched = 0;
    uv_run(&m->loop, mode);
}

static void on_nap(uv_timer_t *timer)
{
    (void)timer;
}

void loop_nap_begin(struct mesh *m, int64_t ns)
{
    uv_update_time(&m->loop);
    uv_timer_start(&m->nap, on_nap, millis(ns), 0);
}

void loop_nap_end(struct mesh *m)
{
    uv_timer_stop(&m->nap);
}

void loop_nap(struct mesh *m, int64_t ns)
{
    loop_nap_begin(m, ns);
    loop_turn(m, UV_RUN_ONCE);
}

/* ---- Descriptors ---- */

static void on_closed(uv_handle_t *handle)
{
    struct mesh *m = handle->loop->data;
    m->open_handles--;
    free(handle);
}

uv_poll_t *loop_poll_new(struct mesh *m, int fd, void *data)
{
    uv_poll_t *poll = malloc(sizeof *poll);
    if (!poll || uv_poll_init(&m->loop, poll, fd) != 0) {
        free(poll);
        return NULL;
    }
    m->open_handles++;
    poll->data = data;
    return poll;
}

void loop_watch(struct mesh *m, uv_poll_t *poll, int events, uv_poll_cb fn)
{
    uv_poll_start(poll, events, fn);
    m->unwatched = 1;
}

void loop_poll_end(uv_poll_t **poll)
{
    if (!*poll)
        return;
    uv_poll_stop(*poll);
    uv_close((uv_handle_t *)*poll, on_closed);
    *poll = NULL;
}

/* ---- Open and close ---- */

static void on_wake(uv_async_t *async)
{
    (void)async;
}

comm_status loop_open(struct mesh *m, void (*on_due)(struct mesh *m, int64_t now_ns))
{
    m->timer_due_ns = INT64_MAX;
    m->on_due = on_due;
    int failed = -descriptors_for_loop();
    if (!failed)
        failed = uv_loop_init(&m->loop);
    m->loop_made = !failed;
    m->loop.data = m;
    if (!failed)
        failed = uv_async_init(&m->loop, &m->wake, on_wake);
    if (failed)
        return exec_fail(COMM_ERR_SYSTEM, "making an event loop: %s%s", uv_strerror(failed),
                         descriptors_cure(-failed));
    uv_timer_init(&m->loop, &m->timer);
    uv_timer_init(&m->loop, &m->nap);
    m->timer.data = m->nap.data = m->wake.data = m;
    return COMM_OK;
}

static void close_handle(uv_handle_t *handle, void *argument)
{
    (void)argument;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void loop_close(struct mesh *m)
{
    if (!m->loop_made)
        return;
    while (m->open_handles)
        uv_run(&m->loop, UV_RUN_ONCE);
    uv_walk(&m->loop, close_handle, NULL);
    while (uv_loop_close(&m->loop) == UV_EBUSY)
        uv_run(&m->loop, UV_RUN_ONCE);
}

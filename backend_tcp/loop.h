/* The event loop: descriptors that are watched, the timer, and the driver's sleep. libuv tells epoll which descriptors
 * it wants only when the loop runs; what it is asked for meanwhile is `unwatched`. */
#ifndef COMM_TCP_LOOP_H
#define COMM_TCP_LOOP_H

#include <comm/comm.h>

#include "tcp.h"

/* `on_due` is called when the timer goes off, from within loop_turn; it sets the timer anew. */
comm_status loop_open(struct mesh *m, void (*on_due)(struct mesh *m, int64_t now_ns));
/* After the polls of all others have ended. */
void loop_close(struct mesh *m);
/* What happened now must not wait for the loop's next event: libuv may call a timer just before it sleeps. */
void loop_interrupt(struct mesh *m);

/* Set the timer; or let it go off earlier than it would. */
void loop_arm(struct mesh *m, int64_t due_ns);
void loop_rearm(struct mesh *m, int64_t due_ns);

void loop_turn(struct mesh *m, uv_run_mode mode);
/* One turn that sleeps until something happens, for so long at most. */
void loop_nap(struct mesh *m, int64_t ns);
/* Before a turn that may be loop_turn(UV_RUN_ONCE): end it after so long. */
void loop_nap_begin(struct mesh *m, int64_t ns);
void loop_nap_end(struct mesh *m);

/* Descriptors. poll_end forgets the poll. */
uv_poll_t *loop_poll_new(struct mesh *m, int fd, void *data);
void loop_watch(struct mesh *m, uv_poll_t *poll, int events, uv_poll_cb fn);
void loop_poll_end(uv_poll_t **poll);

#endif

/* One connection of the store client: blocking reads and writes with a deadline, which another thread can end. */
#ifndef COMM_STORE_TCP_CONN_H
#define COMM_STORE_TCP_CONN_H

#include "store.h"
#include "wire.h"

/* Used by one thread at a time; only tcp_conn_wake is for any. */
struct tcp_conn {
    struct tcp_conn *next;           /* in the store's list of spares */
    struct tcp_conn *prev_open, *next_open; /* in the store's list of all, guarded by its lock */
    int fd;
    int wake_fd; /* an eventfd in every poll */
    int64_t look_ms; /* look so often whether the handle is being closed; 0: the thread that closes it wakes us */
    enum wire_dialect dialect;
    int ordered; /* the server is ours: it keeps the order of requests behind a WAIT */
    struct wire_buffer out;
    struct wire_buffer in;
    size_t taken; /* of `in` */
};

/* Takes `fd`, which is connected and non-blocking. */
comm_status tcp_conn_create(int fd, struct tcp_conn **ret_conn);
void tcp_conn_destroy(struct tcp_conn *conn); /* NULL is fine */
void tcp_conn_wake(struct tcp_conn *conn);

/* All of these end with the wait. TIMEOUT and ABORTED come without a text of their own, as only the caller knows what
 * it waited for; PEER_LOST and the others have one. After a failure the connection is out of step: destroy it, unless
 * it was a TIMEOUT of reading the first byte of a reply. */

/* Send what was put into conn->out, and empty it. */
comm_status tcp_conn_send(struct tcp_conn *conn, const struct store_wait *wait);
comm_status tcp_conn_read(struct tcp_conn *conn, const struct store_wait *wait, void *data, size_t bytes);
comm_status tcp_conn_read_u8(struct tcp_conn *conn, const struct store_wait *wait, uint8_t *ret_value);
comm_status tcp_conn_read_u64(struct tcp_conn *conn, const struct store_wait *wait, uint64_t *ret_value);
/* A value, with a NUL after it. Gives *ret_data (free). */
comm_status tcp_conn_read_value(struct tcp_conn *conn, const struct store_wait *wait, void **ret_data,
                                size_t *ret_bytes);

/* ---- Dialling (tcp_dial.c) ---- */

/* A server, and what is known of it. */
struct tcp_peer {
    const char *host; /* a name or an address */
    int32_t port;
    int hello; /* which greeting it understood, plus one; 0: not known yet */
};

/* Connect and agree on a dialect, again and again until the deadline: all addresses of the host are tried, then there
 * is a pause. TIMEOUT names the host, the address and the last refusal. PEER_LOST: it was reached before, and now
 * nothing listens there. ABORTED comes without a text. */
comm_status tcp_dial(struct tcp_peer *peer, const struct store_wait *wait, struct tcp_conn **ret_conn);

#endif

/* A tcp store's server: PyTorch's TCPStore protocol on an event loop in a thread of its own. One server can carry ten
 * thousand connections; no client, however slow or hostile, holds up the others. */
#ifndef COMM_STORE_TCP_SERVER_H
#define COMM_STORE_TCP_SERVER_H

#include <comm/comm.h>

struct tcp_server;

/* Serve on a listening socket, which is taken (also on failure). Gives *ret_server (tcp_server_stop). */
comm_status tcp_server_start(int listen_fd, struct tcp_server **ret_server);

/* Close all connections and end the thread; returns when it has ended. NULL is fine. */
void tcp_server_stop(struct tcp_server *server);

#endif

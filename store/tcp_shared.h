/* A store server that several stores of this process may have in common. */
#ifndef COMM_STORE_TCP_SHARED_H
#define COMM_STORE_TCP_SHARED_H

#include <comm/comm.h>

struct tcp_shared;

/* Serve on `bind_to` (as for tcp_listen) and *port, or join the handles that do so already in this process. Sets *port
 * to the real one. Gives *ret_shared (tcp_shared_leave). */
comm_status tcp_shared_serve(const char *bind_to, int32_t *port, struct tcp_shared **ret_shared);

/* The last one to leave ends the server. NULL is fine. */
void tcp_shared_leave(struct tcp_shared *shared);

#endif

/* Sockets of the tcp store, and a listening one for its server. */
#ifndef COMM_STORE_TCP_LISTEN_H
#define COMM_STORE_TCP_LISTEN_H

#include <comm/comm.h>

/* Listen on `bind_to` (an address, or a name; NULL: all addresses, IPv6 and IPv4 in one socket) and `port` (0: the
 * system chooses). A port in use is an error that names its owner, where /proc tells. Gives *ret_fd. */
comm_status tcp_listen(const char *bind_to, int32_t port, int *ret_fd, int32_t *ret_port);

/* Of a connection: what is sent goes out at once, and a peer whose host is gone is noticed though nothing is sent. */
void tcp_tune(int fd);

/* Is it the name of this host's loopback (RFC 6761)? It means 127.0.0.1 and ::1 whatever a resolver would say; a
 * container may have neither /etc/hosts nor a name server to ask. */
int tcp_is_localhost(const char *host);

/* The port that a socket is bound to, or -1. */
int32_t tcp_listen_port(int fd);

#endif

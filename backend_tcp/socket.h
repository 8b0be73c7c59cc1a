/* Sockets, as all connections of the backend have them. */
#ifndef COMM_TCP_SOCKET_H
#define COMM_TCP_SOCKET_H

#include <stddef.h>

/* For netaddr_connect; `mesh` has the settings. */
void socket_tune(int fd, void *mesh);
/* Handshake messages are shorter than any socket buffer: one send takes all of it (1), or the connection is no good. */
int socket_send_all(int fd, const void *data, size_t bytes);
/* Forgotten first, then closed: see forks.c. */
void socket_close(int *fd);

#endif

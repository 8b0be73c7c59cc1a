/* Coming in: see listen.c. */
#ifndef COMM_TCP_LISTEN_H
#define COMM_TCP_LISTEN_H

#include "tcp.h"

comm_status listen_open(struct mesh *m);
void listen_close(struct mesh *m); /* not the descriptor */
void listen_timer(struct mesh *m, int64_t now_ns); /* handshakes that take too long; a pause that is over */
int64_t listen_due_ns(const struct mesh *m, int64_t now_ns);
/* Has a peer sent its hello, but not yet its proof? It takes the connection for good once it has sent the proof. */
int listen_is_proving(const struct mesh *m);

#endif

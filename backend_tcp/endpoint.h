/* Where ranks are: what each of them publishes in the store, and what is made of another's. */
#ifndef COMM_TCP_ENDPOINT_H
#define COMM_TCP_ENDPOINT_H

#include "tcp.h"

/* Tell the other ranks where this one listens. */
comm_status endpoint_publish(struct mesh *m);
/* Take apart what the peer published: into link->candidates. Gives how many there are, or -1 if it
 * makes no sense. */
int endpoint_read(struct link *l, char *endpoint);
/* "10.0.0.7:40213" */
void endpoint_text(const struct sockaddr_storage *a, char *text, size_t capacity);

#endif

/* Going out: see connect.c. */
#ifndef COMM_TCP_CONNECT_H
#define COMM_TCP_CONNECT_H

#include "tcp.h"

/* Port_ops of a link that is not up. */
void connect_open(struct port *p);
void connect_describe_trouble(const struct port *p, char *text, size_t capacity);

int connect_under_way(const struct link *l);
/* Its own attempt is over. */
void connect_end(struct link *l);

void connect_tick(struct mesh *m); /* every second: dead hosts */
void connect_timer(struct mesh *m, int64_t now_ns);
int64_t connect_due_ns(const struct mesh *m, int64_t now_ns);

#endif

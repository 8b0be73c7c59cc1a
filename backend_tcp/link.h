/* A link: one connection to one peer, a port over TCP. See link.c. */
#ifndef COMM_TCP_LINK_H
#define COMM_TCP_LINK_H

#include "tcp.h"

/* The port_ops that a link has once it is up; and before, when nothing goes out yet. */
int link_send(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m);
void link_send_text(struct port *p, struct frame *h, const char *text, int is_reply);
void link_give_credit(struct port *p);
int link_read(struct port *p);
void link_forget(struct port *p, const void *owner);
void link_sweep(struct port *p);

/* The handshake is over. */
void link_up(struct link *l, int fd);
/* Write what is queued: for the driver of the loop only, as link_read. */
void link_flush(struct link *l);
/* What is queued goes out when the socket takes it: epoll shall look after that. */
void link_watch_queue(struct link *l);
/* Send BYE; nothing follows it. */
void link_leave(struct link *l);
/* Does a message of this owner wait in the queue; with `begun`, one of which some bytes are gone? */
int link_has_queued(const struct link *l, const void *owner, int begun);
/* The descriptor, and the poll. */
void link_close(struct link *l);
/* What it owns besides. */
void link_finish(struct link *l);
void link_pool_finish(struct mesh *m);

#endif

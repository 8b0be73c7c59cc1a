/* Send and receive: see p2p.c. */
#ifndef COMM_EXEC_P2P_H
#define COMM_EXEC_P2P_H

#include "exec_op.h"

struct exec_group;

void p2p_submit(struct exec_op *op);
/* The op is over, in whatever state it was. */
void p2p_cancel(struct exec_op *op);
/* EAGER or DATA. 0: no receive fits. */
int p2p_begins(struct exec_group *g, struct port *p, const struct frame *h);
/* RTS. 0: no receive fits. */
int p2p_announced(struct exec_group *g, struct port *p, const struct frame *h);
/* Some send or receive of the group needs the peer. */
int p2p_needs(const struct exec_group *g, const struct port *p);
/* Add to a text that the peer of this receive, or any rank, has sent messages that no receive has asked for. */
void p2p_say_unexpected(const struct exec_op *recv, char *text, size_t capacity);

#endif

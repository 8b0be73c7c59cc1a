/* Asking the store where a peer is. A store may be slow or far, so a thread of its own asks; the answer comes back
 * through the loop. Not libuv's pool of threads: a child of fork() that exits would wait there for threads that it
 * does not have. */
#ifndef COMM_TCP_RESOLVE_H
#define COMM_TCP_RESOLVE_H

#include "tcp.h"

/* Ask the store for a peer's endpoint. 0 without memory; else `answered` gets its text, to take apart, or NULL and why
 * there is none. */
typedef void (*resolver_fn)(struct mesh *m, int32_t peer, char *endpoint, const char *error);
int resolver_ask(struct mesh *m, int32_t peer, resolver_fn answered);
/* Fill in where a peer is from what was handed out when the world opened; of a larger world, nothing. */
void resolver_recall(struct port *p);
/* The same, without asking the store where that was not handed out. */
void resolver_recall_card(struct port *p);
void resolver_stop(struct mesh *m); /* waits for its thread */
void resolver_free(struct mesh *m); /* after the loop */

#endif

/* Payloads that are read where they have come, in the ring: what several ranks send for one of them to reduce. It would
 * else be copied to memory of its own first, as no one of them can be reduced before all are there; that is a third of
 * a reduction's time.
 *
 * As long as a payload is kept its ring's writer is not told of anything that has been read since. So payloads are kept
 * only as long as they leave space in the ring: beyond that, which is seen when the port is read and before this rank
 * sleeps, all of them are copied to their places, and the ring goes on as without them. */
#ifndef COMM_SHM_KEEP_H
#define COMM_SHM_KEEP_H

#include "shm.h"

/* The next part of the payload of the frame that is coming lies there, in the ring. 1: it is kept; else it is to be fed
 * to the port's sink, and what was kept of the same payload is in its place. */
int keep_payload(struct duplex *p, const uint8_t *payload, size_t bytes);
/* The port's let_go. */
void keep_let_go(struct port *p, struct kept *kept);
/* All go to their places: the ring's memory is needed, or goes. */
void keep_none(struct duplex *p);
/* Those of this owner are not wanted any more. */
void keep_forget(struct duplex *p, const void *owner);

#endif

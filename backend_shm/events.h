/* What the kernel tells an arena: connections that come, answer or end, and bells. */
#ifndef COMM_SHM_EVENTS_H
#define COMM_SHM_EVENTS_H

#include "shm.h"

comm_status events_open(struct arena *a);
void events_close(struct arena *a);

/* Call w->ready when something has come to w->fd, until unwatch. 0 without memory for it. */
int events_watch(struct arena *a, struct watch *w);
void events_unwatch(struct arena *a, struct watch *w);

/* Call those that are ready; wait for so long at most for the first. */
void events_turn(struct arena *a, int wait_ms);

/* Tell the peers that no thread looks at the rings, so that they ring. Returns 1 if it is so; 0: something has come
 * meanwhile, or another one was told so before. */
int events_asleep(struct arena *a);
/* A thread looks again. */
void events_awake(struct arena *a);

#endif

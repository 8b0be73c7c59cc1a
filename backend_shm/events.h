/* What the kernel tells a fabric: connections that come, answer or end, and bells. */
#ifndef COMM_SHM_EVENTS_H
#define COMM_SHM_EVENTS_H

#include "base/likely.h"
#include "shm.h"

comm_status events_open(struct fabric *f);
void events_close(struct fabric *f);

/* Call w->ready when something has come to w->fd, until unwatch. 0 without memory for it. */
int events_watch(struct fabric *f, struct watch *w);
void events_unwatch(struct fabric *f, struct watch *w);

/* Call those that are ready; wait for so long at most for the first. */
void events_turn(struct fabric *f, int wait_ms);

/* Tell the peers that no thread looks at the rings, so that they ring. Returns 1 if it is so; 0: something has come
 * meanwhile, or another one was told so before. */
int events_asleep(struct fabric *f);
void events_say_awake(struct fabric *f);
/* It will hardly sleep: its peers need not make a fence after each message. */
void events_spins(struct fabric *f);

/* A thread looks again. */
static inline void events_awake(struct fabric *f)
{
    if (UNLIKELY(f->is_asleep))
        events_say_awake(f);
}

#endif

/* Opening and closing an arena. */
#ifndef COMM_SHM_ARENA_H
#define COMM_SHM_ARENA_H

#include "shm.h"

comm_status arena_open(const comm_world_info *info, struct arena **ret_arena);
void arena_close(struct arena *a, int forked);

#endif

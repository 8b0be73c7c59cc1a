/* A child of fork() has copies of all our descriptors. If it kept them, the peers would not notice the parent's death
 * as long as the child lives (worker processes that load data do). So the child closes them at once. */
#ifndef COMM_SHM_CHILD_H
#define COMM_SHM_CHILD_H

#include "shm.h"

/* From now on, until it is taken off the list, its descriptors are closed in children. */
void child_enlist(struct arena *a);
void child_delist(const struct arena *a);
void child_close_descriptors(struct arena *a);

#endif

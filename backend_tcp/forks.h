/* A child of fork() has copies of all our descriptors. If it kept them, the peers would not notice the parent's death
 * as long as the child lives (worker processes that load data do). So the child closes them at once. It has a snapshot
 * of memory from the moment of the fork: descriptors are therefore forgotten before they are closed (socket_close), or
 * the child might close a number that means something else by then. */
#ifndef COMM_TCP_FORKS_H
#define COMM_TCP_FORKS_H

#include "tcp.h"

/* From now on, until it is taken off the list, its descriptors are closed in children. */
void forks_enlist(struct mesh *m);
void forks_delist(const struct mesh *m);
void forks_close_descriptors(struct mesh *m);

#endif

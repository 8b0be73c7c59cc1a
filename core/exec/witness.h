/* Two ranks that disagree may have nothing for each other, and both wait for a third that has not come: on two levels
 * the first rank of a host, in a tree the one above them. The third hears of both calls, and tells. */
#ifndef COMM_EXEC_WITNESS_H
#define COMM_EXEC_WITNESS_H

#include "exec_group.h"

/* The peer has called the collective that the frame is of. 0: this rank has called another, and the group has ended.
 * If it has called none yet, and another rank has called one that is not the peer's, the peer is told. `g` is NULL if
 * the group is not open here. */
int witness_agrees(struct exec_group *g, struct port *p, const struct frame *h);
/* A member's CALL: what another rank has called. If this one has called another collective, the group ends. */
void witness_told(struct exec_group *g, const struct frame *h);

#endif

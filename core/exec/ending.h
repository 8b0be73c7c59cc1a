/* The end of a turn: collectives start that have become the first of their group, groups that have failed end, and
 * groups of peers that are gone fail. Nothing of that happens on top of code that is sending or receiving. */
#ifndef COMM_EXEC_ENDING_H
#define COMM_EXEC_ENDING_H

#include "exec_group.h"

void turn_end(struct domain *d);
/* Give the group back; what is unfinished ends as aborted. */
void group_close(struct exec_group *g);
/* Is there anything for it to do? */
static inline int turn_has_news(const struct domain *d)
{
    return d->ready || d->failed || d->peers.lost_pending;
}

#endif

/* Round-robin groups: a group without a backend of its own, whose collectives take turns over other groups of the same
 * ranks. comm_group functions that reach a backend pass through here. */
#ifndef COMM_CORE_ROUND_ROBIN_H
#define COMM_CORE_ROUND_ROBIN_H

#include "group.h"

/* round_robin->lock is held while a group of the turns takes an op, so it comes before group->lock. */
struct round_robin {
    pthread_mutex_t lock;
    comm_group **groups; /* each with a memory reference */
    size_t count;
    uint64_t taken;
};

void comm__round_robin_destroy(struct round_robin *rr);

/* The group to submit to next: of a round-robin group the one whose turn it is, or the first one for what takes no
 * turn; any other group is its own. Until comm__turn_end no other thread takes the turn, which is given to the next
 * group only if something was submitted: `submitted` collectives. */
comm_group *comm__turn_begin(comm_group *group, int takes_turn);
void comm__turn_end(comm_group *group, int takes_turn, size_t submitted);

/* What comm__group_usable, comm_group_flush and comm_group_status do with such a group. */
comm_status comm__round_robin_usable(const comm_group *group, const char *call);
comm_status comm__round_robin_flush(comm_group *group, int64_t deadline_ns);
comm_status comm__round_robin_status(const comm_group *group);

#endif

/* Round-robin groups: a group without a backend of its own, whose collectives take turns over other groups of the same
 * ranks. comm_group functions that reach a backend pass through here. */
#ifndef COMM_CORE_ROUND_ROBIN_H
#define COMM_CORE_ROUND_ROBIN_H

#include "group.h"

/* turns->lock is held while a group of the turns takes an op, so it comes before group->lock. */
struct turns {
    pthread_mutex_t lock;
    comm_group **groups; /* each with a memory reference */
    size_t count;
    uint64_t taken;
};

void comm__turns_destroy(struct turns *turns);

/* What comm__group_call, comm_coalesce_begin, _end, _cancel, comm_group_flush and _status do with such a group. */
comm_status comm__turns_call(comm_group *group, const comm_op *op, const comm_op_options *options,
                             comm_work **ret_work);
comm_status comm__turns_begin(comm_group *group);
comm_status comm__turns_end(comm_group *group, comm_work **ret_work);
comm_status comm__turns_cancel(comm_group *group);
comm_status comm__turns_flush(comm_group *group, int64_t timeout_ms);
comm_status comm__turns_status(const comm_group *group);

#endif

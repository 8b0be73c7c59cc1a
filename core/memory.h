/* Pieces of memory that a group's backends know: comm_mem_alloc, comm_mem_register. */
#ifndef COMM_CORE_MEMORY_H
#define COMM_CORE_MEMORY_H

#include "group.h"

void comm__memories_init(struct memories *memories);
/* The group is being closed: release what is left, before its channels are closed. */
void comm__memories_close(comm_group *group, int32_t forked);
void comm__memories_finish(struct memories *memories);

/* Does a backend want to see any with ops? Almost never: the one branch that this costs other groups. */
static inline int comm__memory_any(const comm_group *group)
{
    return atomic_load_explicit(&group->memories.count, memory_order_relaxed) > 0;
}

/* Give the sides of an op that lie in known memory of the channel's backend its handle. */
void comm__memory_find(comm_group *group, const struct channel *channel, comm_op *op);

/* The device in whose memory a buffer of an op lies that the CPU is to read or write, and which buffer that is ("send
 * buffer"); DEFAULT if there is none. */
comm_device comm__memory_of_device(const comm_group *group, const comm_op *op, const char **ret_buffer);

#endif

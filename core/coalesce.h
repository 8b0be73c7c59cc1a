/* Batches: calls of one thread on one group that are written down and submitted together. */
#ifndef COMM_CORE_COALESCE_H
#define COMM_CORE_COALESCE_H

#include "group.h"

/* This thread's open batch on the group, or NULL. */
struct batch *comm__batch_of(const comm_group *group);

/* INVALID for a call that waits for what a batch would only write down; OK if this thread has no batch on the group. */
comm_status comm__batch_refuse(const comm_group *group, const char *call);

/* The timeout_ns of an op that waits in a batch and has no limit of its own: the batch's, or the group's, when it
 * ends. */
enum { BATCH_LIMIT = 0 };

/* Write down a prepared op; its arrays are copied. `channel` is NULL in a round-robin group. */
comm_status comm__batch_add(struct batch *batch, const comm_op *op, struct channel *channel);

/* Drop this thread's open batch on the group, if there is one. */
void comm__batch_forget(const comm_group *group);

/* A parent work's waiting and testing are those of its ops' works. */
comm_status comm__batch_drive(struct batch *batch, int64_t deadline_ns);
void comm__batch_nudge(struct batch *batch);
comm_status comm__batch_wait_stream(comm_work *parent, void *stream);

/* The parent work is gone: the batch can be used again. And the end of all of a group's. */
void comm__batch_return(struct batch *batch);
void comm__batch_free_all(comm_group *group);

/* Move the arrays of an op that must live until it completes to an arena, which must do so too. */
comm_status comm__op_keep_arrays(comm_op *op, int32_t size, struct arena *arena);

#endif

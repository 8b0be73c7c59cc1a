/* A group's operations from submission to completion: its queue of collectives, what is remembered of them, completed
 * works, and the moment at which the group fails. Nothing here moves data, and nothing calls back. */
#ifndef COMM_EXEC_QUEUE_H
#define COMM_EXEC_QUEUE_H

#include "exec_group.h"

/* Make room for the completion of `count` works that are about to be submitted; or they are not after all. */
comm_status queue_expect(struct domain *d, size_t count);
void queue_expect_not(struct domain *d, size_t count);
/* Hand a work over when the lock is released. */
void queue_done(struct domain *d, comm_work *work, comm_status status, const char *text);

/* Take so many at most of those that are done, to hand them over; returns how many. Their errors are to be freed. */
size_t queue_take_done(struct domain *d, struct completion *ret_done, size_t most);

/* An op for `o`; NULL without memory. */
struct exec_op *queue_op(struct exec_group *g, const comm_op *o, comm_work *work);
void queue_put_back(struct domain *d, struct exec_op *op);
/* Its next collective may start at the end of the turn. */
void queue_ready(struct exec_group *g);
/* A collective is the group's last from now on. */
void queue_append(struct exec_op *op);
/* For a collective that is done in its call, without being queued: when its messages are waited for, and at its end. If
 * it takes too long it is queued in the place of the second. */
void queue_runs(struct exec_group *g, const comm_op *op);
static inline void queue_ran(struct exec_group *g, uint64_t seq)
{
    g->entered_seq = g->ended_seq = seq;
}
/* An op is done. */
void queue_complete(struct exec_op *op, comm_status status, const char *text);
/* The op's work has been completed; its memory is put back at the end of the turn, for code further up the stack still
 * looks at it. */
void queue_retire(struct exec_op *op);

/* Add and remove: sends and receives. */
void op_list_init(struct op_list *list);
void op_list_append(struct op_list *list, struct exec_op *op);
void op_list_remove(struct op_list *list, struct exec_op *op);

/* The group ends, for a reason that this rank found; or that a member found. Its operations are ended at the end of the
 * turn. */
void group_fail(struct exec_group *g, comm_status status, const char *text);
void group_fail_as_reported(struct exec_group *g, const struct reason *why);
/* Why the group has ended, as this rank's error says it: its own reason, or what another rank reports. `what` is the
 * operation that it is said for, or "". */
void group_say_reason(const struct exec_group *g, const char *what, char *text, size_t capacity);

/* The collective with that number, if it is queued, running or not long over here; else NULL. */
const struct call *queue_call(const struct exec_group *g, uint64_t seq);
/* Does this frame of the peer's belong to this collective of ours? If not, both sides fail. */
int queue_matches_call(struct exec_group *g, const struct port *p, const struct frame *h, const struct call *mine);
/* Where errors of an op begin: "all_reduce #12 on group 'world' (rank 2 of 8)". */
enum { OP_TEXT_BYTES = 400 };
void queue_describe(const struct exec_group *g, const comm_op *op, char *text, size_t capacity);

#endif

/* One small operation of a kind, as the directed cases call them. */
#ifndef COMM_CHECK_SMALL_H
#define COMM_CHECK_SMALL_H

#include <comm/comm.h>
#include <stddef.h>

enum { SMALL_COUNT = 100 };

struct small {
    comm_group *group;
    int32_t kind;
    int32_t *send, *recv;
    comm_work *work;
};

/* The collective kinds that the group's backend can do, in an order in which those that wait for all ranks come first;
 * ends with 0. */
const int32_t *small_kinds(comm_group *group);
/* Of them the first one; ends the case as skipped if there is none. It waits for all ranks, if there is such a one. */
int32_t small_kind(comm_group *group);

/* Begin it; root 0. */
comm_status small_begin(struct small *s, comm_group *group, int32_t kind, const comm_op_options *options);
/* Wait for it and release the work. If it went well, the result must be right. The memory stays: of an operation that
 * failed it may be in use until the group is closed. */
comm_status small_wait(struct small *s);
void small_free(struct small *s);
/* Both. */
comm_status small_end(struct small *s);
/* All of it; ends the rank with a finding if it fails. */
void small_do(comm_group *group, int32_t kind);

#endif

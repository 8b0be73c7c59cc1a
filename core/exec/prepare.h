/* What a collective needs before its first round: the route and its plan, slices, scratch memory, and its input as the
 * plan wants it. All of it is kept by the group from op to op, so that the same shape again allocates nothing. */
#ifndef COMM_EXEC_PREPARE_H
#define COMM_EXEC_PREPARE_H

#include "exec_op.h"

/* NULL, or what is wrong. */
const char *prepare_op(struct exec_op *op);

#endif

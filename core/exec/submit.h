/* Submitting operations. */
#ifndef COMM_EXEC_SUBMIT_H
#define COMM_EXEC_SUBMIT_H

#include "exec_group.h"

/* All of them, or none; they begin by the end of the turn. *ret_async: no thread waits for some of them. */
comm_status submit_ops(struct exec_group *g, const comm_op *const *ops, comm_work *const *works, size_t count,
                       int *ret_async);

#endif

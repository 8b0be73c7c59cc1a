/* Short sends and receives at once, in the thread that calls them: see message.c. */
#ifndef COMM_SHM_MESSAGE_H
#define COMM_SHM_MESSAGE_H

#include "exec_group.h"
#include "shm.h"

/* The slot `run` for COMM_OP_SEND and _RECV, with the lock, to or from a rank that the fabric has a duplex to (or any
 * source). What is not done at once has not begun. */
comm_status message_run(struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns);

#endif

/* A backend for unit tests: it keeps the ops that it is given, and the test does with them what it likes, from whatever
 * thread. One group at a time. */
#ifndef COMM_TESTS_KEEPER_H
#define COMM_TESTS_KEEPER_H

#include <comm/backend.h>

struct kept {
    comm_op op; /* as submit had it; what it points to may be gone */
    comm_work *work;
};

/* What submit returns (COMM_OK at first); it keeps the ops only then. */
extern comm_status keeper_submits;

/* The slot `run` of the backend "keeper_run"; NULL: UNSUPPORTED. */
extern comm_status (*keeper_runs)(const comm_op *op, int64_t spin_ns);

/* How often submit, supports and group_abort were called. */
extern _Atomic int keeper_submitted, keeper_asked, keeper_aborted;

/* How many ops are kept; take the i-th of them away. */
int keeper_count(void);
struct kept keeper_take(int i);
/* Complete all with this status. */
void keeper_complete(comm_status status, const char *error);

extern const comm_host *keeper_host;
extern const comm_world_info *keeper_world; /* of the last world_open */
const comm_backend *keeper_entry(const comm_host *host);
const comm_backend *keeper_run_entry(const comm_host *host);

#endif

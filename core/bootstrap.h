/* The store of a job whose launcher names none: mpirun and srun give each rank its number, but no address. */
#ifndef COMM_CORE_BOOTSTRAP_H
#define COMM_CORE_BOOTSTRAP_H

#include <comm/store.h>

#include "launch.h"

/* Open a store that only the ranks of this job find. May wait until rank 0 has come.
 * Errors  INVALID (several hosts, and nothing to derive a meeting point from: set MASTER_ADDR and MASTER_PORT),
 * TIMEOUT, SYSTEM. */
comm_status comm__bootstrap_open(const struct comm__launch *launch, int64_t deadline_ns, comm_store **ret_store);

#endif

/* What this host's ranks use of its cores: for a thread that has yielded, and waited long for its core. */
#ifndef COMM_SHM_USAGE_H
#define COMM_SHM_USAGE_H

#include "shm.h"

/* As waiting_usage.of_ranks, of a fabric, with its lock: CPU time of the processes of this rank and of its peers that
 * are connected, and the cores that any of them may run on. -1 if there are more than 64 of them, or one cannot be
 * asked: it has ended, or is in another name space of processes. */
int64_t usage_of_ranks(const void *fabric, int32_t *ret_cores);

#endif

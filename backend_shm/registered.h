/* The slots memory_open and memory_close, over a fabric. See region.h. */
#ifndef COMM_SHM_REGISTERED_H
#define COMM_SHM_REGISTERED_H

#include "shm.h"

/* Without the lock. */
comm_status registered_open(struct fabric *f, comm_memory_info *info, void **ret_handle);
void registered_close(struct fabric *f, void *handle);

#endif

/* One time limit for several calls on a store: for joining a world, and for leaving it. The stores implement it
 * (store/store.c). */
#ifndef COMM_BASE_DEADLINE_H
#define COMM_BASE_DEADLINE_H

#include <comm/store.h>

/* From now on no call on this handle goes beyond the deadline, whatever its timeout: it ends within STORE_GRACE_MS of
 * it. Views that are made of the handle begin with its deadline. DEADLINE_NEVER takes it away. */
void comm__store_set_deadline(comm_store *store, int64_t deadline_ns);

#endif

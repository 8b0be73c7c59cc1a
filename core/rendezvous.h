/* Rendezvous: comm_rendezvous and comm_rendezvous_register of comm/store.h. */
#ifndef COMM_CORE_RENDEZVOUS_H
#define COMM_CORE_RENDEZVOUS_H

#include <comm/store.h>

/* comm_rendezvous, with arguments that are checked already. Also tells whether rank 0's process serves the store, which
 * then ends with it; a launcher's store, a file or a user's do not. */
comm_status comm__rendezvous(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms,
                             comm_store **ret_store, int32_t *ret_rank, int32_t *ret_world_size,
                             int *ret_rank_0_serves);

#endif

/* Is a rank's process still there? For backends that would not notice that it has ended. */
#ifndef COMM_CORE_RANK_CHECK_H
#define COMM_CORE_RANK_CHECK_H

#include <comm/comm.h>

struct world;
struct lifeline;

/* Before the ranks' cards are handed in: if a backend of the world needs it, this rank's lifeline stays open as long as
 * the world, and its card says where. Takes the listener of `joined` then. */
void comm__lifelines_keep(struct world *world, struct lifeline *joined);
void comm__lifelines_finish(struct world *world);
/* As comm_host.rank_check. */
comm_status comm__rank_check(struct world *world, int32_t rank);

#endif

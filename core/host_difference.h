/* Why ranks that could be thought to be on one host are not. */
#ifndef COMM_CORE_HOST_DIFFERENCE_H
#define COMM_CORE_HOST_DIFFERENCE_H

#include <stddef.h>

#include "group.h"

/* Of rank 0 and the first one on another host: "ranks 0 and 1 run on the same kernel, but as different users (0 and
 * 65534)". "" if they are on different machines, if there is no such rank, or if it cannot be told. Asks the store. */
void comm__host_difference(const comm_group *group, char *text, size_t capacity);

#endif

/* "auto": which backend a group gets for a device. The candidates are the backends that serve the device and can be
 * used in this process, by their preference. Whether they can is asked once in a world: later it may be otherwise, for
 * one rank only. All ranks of a world must have the same ones, which they compare as they join; and a group takes the
 * first of them that can serve the hosts of its members. So all members decide alike, without a message. */
#ifndef COMM_CORE_AUTO_H
#define COMM_CORE_AUTO_H

#include <stdio.h>

#include "group.h"

int comm__is_auto(const struct backend_pair *pair);

/* The first candidate of all, for as long as it is not known where the ranks are. */
comm_status comm__auto_first(struct world *world, const struct backend_pair *pair, const comm_backend **ret_backend);
/* One of the candidates must have the option, and its value must fit all that have it. */
comm_status comm__auto_check_option(struct world *world, const struct backend_pair *pair,
                                    const struct backend_option *option);
/* All candidates, for as long as the world is there. */
size_t comm__auto_candidates(struct world *world, const struct backend_pair *pair,
                             const comm_backend *const **ret_list);
/* "auto(shm,tcp)"; a single candidate is named as if the string did */
void comm__auto_write_terms(struct world *world, const struct backend_pair *pair, FILE *text);
/* Why others are no candidates, in words; "" if all are. For as long as the world is there. */
const char *comm__auto_reasons(const struct world *world);

/* The backends that some group of the world could get for the pair, once the hosts are known; *ret_count is 0 without
 * memory. `list` holds AUTO_BACKENDS_MAX. */
enum { AUTO_BACKENDS_MAX = 4 };
void comm__auto_possible(const struct world *world, const struct backend_pair *pair, const comm_backend **list,
                         size_t *ret_count);

/* The hosts are known: decide for all channels of the group that are to be decided by hosts. */
comm_status comm__auto_choose(comm_group *group);

void comm__auto_finish(struct world *world);

#endif

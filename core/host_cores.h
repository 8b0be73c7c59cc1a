/* On how many cores do the ranks of a host run? Each rank may be bound to a core of its own, all of them to the same
 * one, or a container has fewer cores than the machine: only all ranks' cores together tell. Each rank says its own,
 * and one of them counts for all (join.c). */
#ifndef COMM_CORE_HOST_CORES_H
#define COMM_CORE_HOST_CORES_H

#include <comm/comm.h>
#include <stdint.h>

enum { HOST_CORES_TEXT = 264 };

/* The cores that the calling thread may run on, as a hexadecimal number: bit 0 is core 0. "0": not known. */
void comm__host_cores_mine(char text[HOST_CORES_TEXT]);

/* How many cores the ranks of each host have together: "8,4," for two hosts; 0 if one of its ranks does not know.
 * `hosts` are the numbers of the ranks' hosts (host_id.h), masks[r] begins with what rank r has said, or is NULL. Gives
 * *ret_text (free). */
comm_status comm__host_cores_write(const int32_t *hosts, const char *const *masks, int32_t size, char **ret_text);

/* The number of one host from that text. 0: not known. */
int32_t comm__host_cores_read(const char *text, int32_t host);

#endif

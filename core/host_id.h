/* Which ranks share a host: a number per rank, 0 for the host of rank 0 and so on in the order in which hosts first
 * appear. The numbers are the same on all ranks, as one of them makes them and tells the others (join.c). */
#ifndef COMM_CORE_HOST_ID_H
#define COMM_CORE_HOST_ID_H

#include <comm/comm.h>
#include <stddef.h>
#include <stdint.h>

/* The identity of this process's host: a hash of COMM_HOST_ID, or else of the kernel, the shared memory and the
 * network name space. */
uint64_t comm__host_id(void);

/* What the identity is made of, as a line for other ranks to compare. And what differs between two such lines: "run on
 * the same kernel, but as different users (0 and 65534)"; "" if the kernels do, or it cannot be told. */
enum { HOST_PARTS_TEXT = 160, HOST_DIFFERENCE_TEXT = 240 };
void comm__host_parts_mine(char text[HOST_PARTS_TEXT]);
void comm__host_parts_differ(const char *mine, const char *theirs, char *text, size_t capacity);

/* Number the hosts that `size` ranks with these identities are on. */
comm_status comm__hosts_number(const uint64_t *ids, int32_t size, int32_t *ret_hosts);

/* The numbers as text, in runs: "4*0,4*1,"; gives *ret_text (free). And back: PROTOCOL if it is no such text for
 * `size` ranks. */
comm_status comm__hosts_write(const int32_t *hosts, int32_t size, char **ret_text);
comm_status comm__hosts_read(const char *text, int32_t size, int32_t *ret_hosts);

#endif

/* Registered memory: regions of a process's memory that its peers map, so that they read messages there with no copy
 * between (comm_mem_alloc). A peer is given a region's descriptor, over the socket, when the first message from there
 * is lent to it, and told when the region is released. It maps it for reading only. */
#ifndef COMM_SHM_REGION_H
#define COMM_SHM_REGION_H

#include "shm.h"

/* Allocate; NULL with an error. That and freeing may take long, and are done without the lock. */
struct region *region_create(const struct fabric *f, size_t bytes);
void region_destroy(struct region *r);
/* From now on payloads there are lent; no longer, and peers forget it. With the lock. */
void region_enter(struct fabric *f, struct region *r);
void region_leave(struct fabric *f, struct region *r);
uint8_t *region_data(const struct region *r);
/* All that are left; the peers are not told. */
void region_finish(struct fabric *f);

/* The region in which the payload lies, made known to the peer; NULL: none, or the peer cannot be told now. */
const struct region *region_of(struct duplex *p, const void *payload, size_t bytes);
struct ring_place region_place(const struct region *r, const void *payload);

/* What a peer says over the socket. 0: it has ended, or says what makes no sense. */
int region_notices(struct duplex *p);
/* Where the peer's payload lies in this process; NULL: nowhere. */
const uint8_t *region_find(struct duplex *p, const struct ring_place *place, uint64_t bytes);
/* The peer's regions are not read any more. */
void region_unmap_all(struct duplex *p);

#endif

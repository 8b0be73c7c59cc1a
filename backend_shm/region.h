/* Registered memory: regions of a process's memory that its peers map, so that they read messages there with no copy
 * between, and write results there (comm_mem_alloc). A peer is given a region's descriptor, over the socket, when the
 * first message from there is lent to it, and told when the region is released. */
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
uint32_t region_id(const struct region *r);
/* All that are left; the peers are not told. */
void region_finish(struct fabric *f);

/* Make it known to the peer; 0 if that cannot be done now. */
int region_tell(struct duplex *p, struct region *r);
/* The region in which the payload lies, made known to the peer; NULL: none, or the peer cannot be told now. */
const struct region *region_of(struct duplex *p, const void *payload, size_t bytes);
struct ring_place region_place(const struct region *r, const void *payload);
/* The result of what is lent there may be written to this memory of another region, or of the same one. */
void region_write_back(struct ring_place *place, const struct region *r, const void *result);
/* A peer that does not run may yet write to this memory: put other memory in its place, with what is in it now. It is
 * no region any more. */
void region_detach(struct fabric *f, const void *data, size_t bytes);

/* What a peer says over the socket. 0: it has ended, or says what makes no sense. */
int region_notices(struct duplex *p);
/* Has the peer said where that region is, and not yet that it is released? */
int region_is_known(struct duplex *p, uint32_t id);
/* Where so many bytes of the peer's region lie in this process, until its next notice; NULL: nowhere. */
uint8_t *region_find(struct duplex *p, uint32_t id, uint64_t at, uint64_t bytes);
/* The peer's regions are not read any more. */
void region_unmap_all(struct duplex *p);

#endif

/* Registered memory: regions of a process's memory that its peers map, so that they read messages there with no copy
 * between, and write results there (comm_mem_alloc). A peer is given a region's descriptor, over the socket, when a
 * message from there might be lent to it, and told when the region is released. It answers in the memory that both
 * have: only when it has mapped the region is anything lent to it from there, and until then messages go another way.
 * A peer that cannot map one, for it has no descriptor or no addresses left, loses nothing, and is told of it again
 * later, ever more seldom. */
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
/* The program has closed them. */
void region_forget_descriptors(struct fabric *f);

/* Has the peer mapped it? If not it is told of it, and again if it could not. */
int region_tell(struct duplex *p, struct region *r);
/* The region in which the payload lies, if the peer has mapped it; NULL: there is none, or it has not, yet. */
const struct region *region_of(struct duplex *p, const void *payload, size_t bytes);
struct ring_place region_place(const struct region *r, const void *payload);
/* The result of what is lent there may be written to this memory of another region, or of the same one. */
void region_write_back(struct ring_place *place, const struct region *r, const void *result);
/* A peer that does not run may yet write to this memory: put other pages in its place, with the same bytes, of which no
 * peer knows. From now on nothing is lent from this region. What is lent from it already, for other operations, stays
 * as it was: peers read, and write results, in the pages that they have mapped. 0: there is no memory for that. */
int region_detach(struct fabric *f, const void *data, size_t bytes);
/* A peer has written this result: if it lies in such a region, bring it to where it belongs. */
void region_bring(struct fabric *f, void *result, size_t bytes);

/* Tell the peer why this rank ends the connection: "rank 1 " and so on would come before it. */
void region_say_end(int socket, const char *why);
/* What a peer says over the socket, and whether that has ended. An error text if it makes no sense. */
const char *region_notices(struct duplex *p, int *ret_ended);
/* Where so many bytes of the peer's region lie in this process, until its next notice; NULL: nowhere. */
uint8_t *region_find(struct duplex *p, uint32_t id, uint64_t at, uint64_t bytes);
/* The peer's regions are not read any more. */
void region_unmap_all(struct duplex *p);

#endif

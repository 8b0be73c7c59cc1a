/* The memory that two ranks share: two rings, in a file without a name that ends with the last process that has it, so
 * nothing is left behind whenever a rank is killed. One rank makes it and hands the descriptor to the other. */
#ifndef COMM_SHM_SEGMENT_H
#define COMM_SHM_SEGMENT_H

#include "ring.h"

enum {
    SEGMENT_RING_MIN = 16 << 10, /* bytes of a ring */
    SEGMENT_RING_MAX = 64 << 20,
    SEGMENT_CAN_SHRINK = 4096, /* no errno is so large */
    SEGMENT_TOO_MANY,          /* of one peer: region.c */
    SEGMENT_NOT_LEFT,          /* so much memory */
};

/* A file of so many bytes, which are reserved: a page that cannot be had later would kill the process that touches it.
 * It has no name and cannot shrink. A descriptor, or a negative errno. */
int segment_file(size_t bytes);
/* In words: an errno of making one, or what is wrong with it. */
const char *segment_error(int error);
/* The other side's: 0 if it has so many bytes, and cannot shrink under us, as far as this rank could make such one;
 * -SEGMENT_CAN_SHRINK, or a negative errno if it makes no sense. */
int segment_check_file(int fd, uint64_t bytes);
/* Make a file for two rings of *ring_bytes, or of fewer if there is not enough memory: the bytes are then changed.
 * `nodes`, unless NULL: the NUMA nodes on which the readers of the two rings run, -1: not known; the memory is taken
 * there, if the kernel lets us say so. Returns a descriptor, or a negative errno. */
int segment_create(size_t *ring_bytes, const int32_t nodes[2]);
/* Can such a file be had? 0, or a negative errno. Takes no space of /dev/shm, as other ranks ask at the same time. */
int segment_try(size_t ring_bytes);
/* At most so many bytes for the rings of each of `pairs` pairs of ranks: where memory comes from /dev/shm, all pairs
 * share what is free there. Otherwise `ring_bytes`. */
size_t segment_share(size_t ring_bytes, uint64_t pairs);
/* Fewer bytes no ring has: whole pages in each lane. */
size_t segment_ring_least(void);
/* The NUMA node of the core on which this thread runs, -1: not known. */
int32_t segment_node(void);
/* The same of one for two rings of so many bytes. */
int segment_check(int fd, size_t ring_bytes);

struct segment {
    struct ring_shared *shared; /* [2] */
    uint8_t *ring[2];           /* of the lower rank's frames, of the higher one's; each lane twice in a row */
    size_t ring_bytes;
};

/* 0, or a negative errno. */
int segment_map(struct segment *s, int fd, size_t ring_bytes);
void segment_unmap(struct segment *s);

#endif

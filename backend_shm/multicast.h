/* One copy of an eager message for several peers. A rank that sends the same bytes to all others, as the root of a
 * broadcast does, copies them once to memory that the peers map (region.h), and lends that to each (lend.h). So the
 * lines go to another core once, and not once per rank that runs there, and the sender writes one copy, not one per
 * ring. To the peers such a message is an eager one that is lent. Its sender does not wait until it is read: the user's
 * memory is free once it is copied, as with a ring. A place is used again when all peers have read what lies there. */
#ifndef COMM_SHM_MULTICAST_H
#define COMM_SHM_MULTICAST_H

#include "shm.h"

struct multicast_copy;

enum {
    MULTICAST_PEERS_MAX = 16,
    MULTICAST_BYTES_MAX = 64 << 10, /* longest message */
};

/* Is there a place for one more, at once? The memory is made when it is asked for the first time. */
int multicast_has_place(struct fabric *f);
/* Is there room at this peer, and nothing queued for it? It is told of the memory, once. */
int multicast_has_room(struct duplex *p, size_t bytes);
/* Is it worth while to wait for that? Not after a wait in vain, until a copy has been read by all: a peer of another
 * group, too, may hold all copies for long. */
int multicast_may_wait(const struct fabric *f);
void multicast_waited_in_vain(struct fabric *f);
/* Both are there. Copy a message of that length; then send it, whose header is *h, to up to PEERS_MAX peers, without
 * ringing their bells. */
struct multicast_copy *multicast_make(struct fabric *f, const void *payload, size_t bytes);
void multicast_send(struct multicast_copy *c, struct duplex *p, struct frame *h);
/* The peers may read on: they have the memory, too. */
void multicast_finish(struct fabric *f);

#endif

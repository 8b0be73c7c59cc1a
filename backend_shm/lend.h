/* Payloads that do not go through the ring. The sender lends one: the record of its frame says where the payload
 * lies, and the receiver reads it there, straight to where it belongs: in memory that it has mapped (region.h), or
 * through the kernel (process_vm_readv, known as cross-memory attach).
 *
 * A loan has a slot in the memory that the two ranks share. The receiver writes the loan's number to `taken` when it
 * has read all. If the operation ends before that, the sender takes the loan back: it clears `valid`, and a receiver
 * that has read meanwhile throws away what it read. Its own operation ends too, by the news of the sender's end. */
#ifndef COMM_SHM_LEND_H
#define COMM_SHM_LEND_H

#include "shm.h"

/* Should the message with this header be lent to this peer? Then 1, and *ret_place says where its payload lies. */
int lend_suits(struct duplex *p, const struct frame *h, const void *payload, struct ring_place *ret_place);
/* Take a slot for it, and complete the place. */
void lend_begin(struct duplex *p, struct ring_place *place);
/* Has it been read? */
int lend_is_taken(const struct duplex *p, const struct ring_place *place);
/* It has been read, or is taken back; the slot is free. */
void lend_end(struct duplex *p, const struct ring_place *place);

/* Say to the peer whether this rank can read its memory, once that can be found out. */
void lend_probe(struct duplex *p);
/* The payload of the frame that is coming lies there. An error text if that cannot be. */
const char *lend_accept(struct duplex *p, const struct frame *h, const struct ring_place *place);
/* Read on, so far that others are looked after in time. */
void lend_read(struct duplex *p);

#endif

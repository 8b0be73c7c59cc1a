/* Long messages that both ranks copy. The kernel copies one with one core, while the sender's only waits. So a sender
 * that waits writes parts of the message to the receiver's memory, from the end on (process_vm_writev), while the
 * receiver reads others, from the beginning on: a broadcast of 256 KiB takes two ranks on Emerald Rapids 7.8 us so, and
 * else 12.5, one of 1 MiB 28 and 61, one of 4 MiB 190, and through the ring 330.
 *
 * Each takes a part by counting it in a word that both share, with the loan's number. What the sender has taken the
 * receiver waits for. If that takes long (the sender is stopped by SIGSTOP or a debugger, or does not get its core) the
 * receiver takes the parts back and reads them, too. Nothing may be written to its memory after that: see writer.h. A
 * call that has begun is waited for: until the sender says that it is done, or /proc that its thread is in no such
 * call. If neither is so for 2 s the peer is lost. Where /proc does not show the peer nothing is split.
 */
#ifndef COMM_SHM_SPLIT_H
#define COMM_SHM_SPLIT_H

#include "lend.h"

/* Bytes of a message that is worth it, and that does not keep others waiting for too long. */
enum { SPLIT_LEAST = 64 << 10, SPLIT_MOST = 4 << 20 };

/* The sender. May it take parts of so long a message, while it waits? */
int split_suits(const struct duplex *p, size_t bytes);
/* Say that it will, of this loan. */
void split_offer(struct duplex *p, const struct loan *l);
/* Write parts, if the receiver reads the loan and any are left. */
void split_write(struct duplex *p, struct loan *l);

/* The receiver. Does the sender say that it takes parts, and can this rank tell what it does? */
int split_is_offered(const struct duplex *p, const struct ring_place *place, size_t bytes);
/* Read the message that lies there, or what the sender does not write. 0: the kernel does not read it: errno;
 * ETIMEDOUT: the sender may write still. */
int split_read(struct duplex *p, const struct ring_place *place, uint8_t *to, size_t bytes);

#endif

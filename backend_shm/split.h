/* Long messages that both ranks copy. The kernel copies one with one core, while the sender's only waits. So a sender
 * that waits writes parts of the message to the receiver's memory, from the end on (process_vm_writev), while the
 * receiver reads others, from the beginning on: 256 KiB take two cores of Emerald Rapids 8 us so, and else 12, 1 MiB 30
 * and 59.
 *
 * Each takes a part by counting it in a word that both share, with the loan's number. What the sender has taken the
 * receiver waits for. If the sender stops meanwhile (SIGSTOP, a debugger), the receiver takes its parts back and reads
 * them, too. Nothing may be written to its memory after that: so the kernel is told where to write by a list in the
 * memory that both share, which the receiver clears. A call that has read the list before is waited for. */
#ifndef COMM_SHM_SPLIT_H
#define COMM_SHM_SPLIT_H

#include "lend.h"

enum { SPLIT_LEAST = 64 << 10 }; /* bytes of a message that is worth it */

/* The sender. May it take parts of so long a message, while it waits? */
int split_suits(const struct duplex *p, size_t bytes);
/* Say that it will, of this loan. */
void split_offer(struct duplex *p, const struct loan *l);
/* Write parts, if the receiver reads the loan and any are left. */
void split_write(struct duplex *p, const struct loan *l);

/* The receiver. Does the sender say so? */
int split_is_offered(const struct duplex *p, const struct ring_place *place, size_t bytes);
/* Read the message that lies there, or what the sender does not write. 0: the kernel does not read it: errno. */
int split_read(struct duplex *p, const struct ring_place *place, uint8_t *to, size_t bytes);

#endif

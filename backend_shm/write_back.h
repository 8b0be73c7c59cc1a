/* Results that the receiver of a loan writes to the sender's memory. Where two ranks reduce each other's parts
 * (plan_may_write_back) that is half of an all_reduce: the parts need not be swapped again.
 *
 * In registered memory the receiver writes each result to both places at once: each line goes to the other core once,
 * and comes back once. Other memory is copied to a staging area first, a small region of each
 * pair, and the result is copied from there. Or the kernel does it: the receiver reads the part (process_vm_readv),
 * reduces it, and writes the result to where it belongs (process_vm_writev), and the sender does nothing. That is
 * faster on Emerald Rapids, above all for what no cache holds: 4 MiB in 340 us instead of 440. Each rank measures what
 * both ways take it, and the lower one chooses for both.
 *
 * When an operation ends early the user has the memory again, and nothing may be written there any more. The receiver
 * says in `writing` that it writes, and then looks whether the loan is valid; the sender first makes the loan invalid,
 * then looks at `writing`, and waits. A receiver that is stopped meanwhile would write whenever it goes on: registered
 * memory gets other pages then, and the kernel is told of no place any more (writer.h); such a slot, and a place in the
 * staging area, is not used until the receiver says that it has stopped. */
#ifndef COMM_SHM_WRITE_BACK_H
#define COMM_SHM_WRITE_BACK_H

#include "lend.h"

/* ---- The sender ---- */

/* Can it be lent so that the result is written back? Then 1, and the place says where it lies, and that. */
int write_back_suits(struct duplex *p, const struct frame *h, struct loan *l);
/* It has a slot. */
void write_back_begin(struct duplex *p, const struct loan *l);
/* It is written: bring it to where it belongs. */
void write_back_take(struct duplex *p, const struct loan *l);
/* The loan, of such a place, is not valid any more: see to it that nothing is written to the user's memory from now on.
 * 0: the slot must not be used again. */
int write_back_end(struct duplex *p, const struct loan *l);
/* Slots that must not were such; those that may now are free. */
void write_back_free_slots(struct duplex *p);

/* ---- The receiver ---- */

/* Say to the peer whether this rank can write its memory, such as this word. */
void write_back_probe(struct duplex *p, uint64_t at, uint64_t word);
/* Of what operations' size is what is borrowed? */
uint8_t write_back_size(const struct frame *h);
/* Does the result of what is borrowed go to the sender, too? Then reduce it, or a part, and write it there. */
int write_back_is_wanted(const struct duplex *p);
void write_back_reduce(struct duplex *p);
/* The same of what is reduced at once, all of it, as this sink says: can it be written back? Then 1: it has been; 0:
 * only reduced; -1: neither, as the loan was taken back or the peer is lost. */
int write_back_can(const struct duplex *p, const struct sink *s);
int write_back_now(struct duplex *p, struct sink *s);

#endif

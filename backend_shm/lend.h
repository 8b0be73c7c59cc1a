/* Payloads that do not go through the ring. The sender lends one: the record of its frame says where the payload
 * lies, and the receiver reads it there, straight to where it belongs: in memory that it has mapped (region.h), or
 * through the kernel (process_vm_readv, known as cross-memory attach).
 *
 * A loan has a slot in the memory that the two ranks share. The receiver writes the loan's number to `taken` when it
 * has read all. If the operation ends before that, the sender takes the loan back: it clears `valid`, and a receiver
 * that has read meanwhile throws away what it read. Its own operation ends too, by the news of the sender's end.
 *
 * Eager messages. One that is sent by a rank that waits (run) may be lent as well, where the kernel is faster than two
 * copies. It is read as soon as the receiver looks, like one that lies in the ring, whether there is a receive for it
 * or not. A rank that only sends does not wait for that for long. It takes the loan back, and sends the message through
 * the ring after all, if there is credit and space for that. Both ranks must agree on which of it happens: the receiver
 * claims the loan before it reads, and what is claimed is not taken back.
 *
 * Long messages that go one way, from a rank that waits, are copied by both: see split.h.
 *
 * Where two ranks reduce each other's parts the receiver writes its result to the sender's memory as well: see
 * write_back.h.
 */
#ifndef COMM_SHM_LEND_H
#define COMM_SHM_LEND_H

#include "ring.h"
#include "shm.h"

/* How long messages of a size go. */
enum {
    WAY_KERNEL = 1, /* not through the ring */
    WAY_TRIED = 2,  /* the other way is tried now and then */
    WAY_SELDOM = 4, /* but that is much slower */
    WAY_CHOSEN = 8, /* by the lower rank, for both */
    WAY_NEW = 16,   /* one goes this way and the next one the other, until both are known */
    WAY_OFTEN = 32, /* times n, 1 to 5: 2^n times as often, as few have gone this way so far */
};

/* A payload that may be lent. */
struct loan {
    const uint8_t *payload;
    size_t bytes;
    uint8_t *write_back;     /* where the receiver's result belongs; NULL: the receiver keeps it */
    int is_long;             /* the result: for copy_part */
    int splits;              /* this rank waits until it is read, and copies parts of it meanwhile: split.h */
    int by_kernel;           /* even if the ring is faster to this peer */
    int must_write_back;     /* or it is not lent */
    uint8_t back_size;       /* write_back.c */
    struct ring_place place; /* loan 0: it is not lent, yet */
};

/* How an eager message comes to be sent. */
enum lend_flow {
    LEND_STREAM,  /* the peer reads earlier ones meanwhile */
    LEND_IN_TURN, /* the peer has answered the one before it */
    LEND_BOTH,    /* the peer sends one as well */
};

enum { LEND_EAGER_LEAST = 8 << 10 }; /* bytes of an eager message that may be lent */

/* What is read at once, in the thread that calls. */
enum {
    LEND_OFFER_BYTES = 4 << 20,  /* longest message that is offered: the lock is kept for as long as one takes */
    LEND_OFFERS_BYTES = 1 << 20, /* of several each */
    LEND_BYTES_PER_NS = 4,       /* at least so fast peers read: for how long to wait until they have */
    LEND_READ_NS_MOST = LEND_OFFERS_BYTES / LEND_BYTES_PER_NS, /* what is longer is copied by both */
};

/* For how long to wait until a message is read. */
static inline int64_t lend_read_ns(size_t bytes)
{
    int64_t ns = (int64_t)(bytes / LEND_BYTES_PER_NS);
    return ns < LEND_READ_NS_MOST ? ns : LEND_READ_NS_MOST;
}

/* Does the receiver copy pieces of this message from the ring while the sender copies others to it? */
int lend_overlaps(const struct frame *h, size_t bytes);
/* Should it be lent to this peer, as the payload of this header? Then 1, and the place says where it lies. */
int lend_suits(struct duplex *p, const struct frame *h, struct loan *l);
/* Is this eager message, with its header, sooner read by the kernel? Then the place says where it lies. */
int lend_is_sooner(struct duplex *p, const struct frame *h, struct loan *l, enum lend_flow flow);
/* An eager message that has been lent is not read yet: take the loan back, unless the peer has claimed it. */
int lend_withdraw(struct duplex *p, const struct loan *l);
/* It begins to go through the ring. */
void lend_not(struct duplex *p, const struct frame *h, const struct loan *l);
/* Is a slot free? */
int lend_has_slot(struct duplex *p);
/* May one more be lent that the peer has not asked for? */
int lend_has_offers(struct duplex *p);
/* Take a slot for it, and complete the place. */
void lend_begin(struct duplex *p, struct loan *l);
/* Has it been read? */
int lend_is_taken(const struct duplex *p, const struct loan *l);
/* It has: 1 if the result has been written back, and is where it belongs now. */
int lend_take_result(struct duplex *p, const struct loan *l);
/* It has been read, or is taken back; the slot is free, and the memory is the user's. */
void lend_end(struct duplex *p, const struct loan *l);

/* The peer is lost, and may live: what is still lent to it is not to be read any more. */
void lend_end_all(struct duplex *p);

/* For write_back.c. Does the kernel read this memory for other processes? */
int lend_kernel_reads(struct fabric *f, const void *payload, size_t bytes);
/* Can the peer read this rank's memory by the kernel, and is that wanted? */
int lend_peer_can_read(const struct duplex *p);
/* Has the sender not taken the loan back? */
static inline int lend_is_valid(const struct duplex *p, const struct ring_place *place)
{
    uint32_t valid = atomic_load_explicit(&p->in.shared->valid[place->slot], memory_order_acquire);
    return (valid & ~LOAN_CLAIMED) == place->loan;
}
/* All of what is borrowed is read, and perhaps its result written back. */
void lend_settle(struct duplex *p, int written);
/* It cannot be read. */
void lend_cannot_read(struct duplex *p, size_t bytes, int error);

/* May this process read another one's memory by the kernel, and is that wanted? As far as it can tell by itself. */
int lend_is_allowed(const struct fabric *f);
/* Say to the peer whether this rank can read its memory, once that can be found out. */
void lend_probe(struct duplex *p);
/* The kernel finds no memory (ESRCH) by the number that it was given for the peer: is another thread of its process
 * there? Then that one's number is taken from now on. */
int lend_finds_thread(struct duplex *p);
/* Read all of it by the kernel, perhaps in several calls; 0: it does not, errno says why. */
int lend_read_memory(struct duplex *p, void *to, uint64_t from, size_t bytes);
/* Can this rank write the peer's memory by the kernel? That is tried when they connect. */
static inline int lend_can_write(const struct duplex *p)
{
    return p->pid > 0 && atomic_load_explicit(&p->in.shared->can_write, memory_order_relaxed);
}
/* Write it by the kernel, to where the peer says. 0: not all of it. */
int lend_write_memory(struct duplex *p, const void *data, size_t bytes, const struct ring_part *to);
/* An error text if it is none. */
const char *lend_check(const struct ring_place *place);
/* Claim an eager message that lies there; 0: it has been taken back, and comes through the ring, or its operation has
 * ended. What is claimed is read, or the claim is given up. */
int lend_claim(struct duplex *p, const struct ring_place *place);
void lend_give_up_claim(struct duplex *p, const struct ring_place *place);
/* The payload of the frame that is coming lies there. An error text if that cannot be. */
const char *lend_accept(struct duplex *p, const struct frame *h, const struct ring_place *place);
/* The same of an offer that is read at once, to there; 0: it was taken back, or the peer is lost. */
int lend_read_now(struct duplex *p, const struct frame *h, const struct ring_place *place, void *to);
/* The same of an offer that is reduced as this sink says, which begins; *ret_written: the result has been written to
 * the peer's memory. Not what the peer does not want to have written back: 0, and nothing is done. */
int lend_reduce_now(struct duplex *p, const struct frame *h, const struct ring_place *place, struct sink *s,
                    int *ret_written);
/* Read on, so far that others are looked after in time. */
void lend_read(struct duplex *p);

#endif

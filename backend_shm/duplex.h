/* A duplex: this rank and one peer, a port over two rings. See duplex.c. */
#ifndef COMM_SHM_DUPLEX_H
#define COMM_SHM_DUPLEX_H

#include <sched.h>

#include "base/likely.h"
#include "lend.h"
#include "shm.h"
#include "waiting.h"

/* The port_ops that a duplex has once it is up; and before, when nothing goes out yet. */
int duplex_send(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m);
int duplex_offer(struct port *p, struct frame *h, struct message *m);
enum port_begun duplex_adopt(struct port *p, struct message *m);
void duplex_accept(struct port *p, uint32_t offer);
void duplex_send_text(struct port *p, struct frame *h, const char *text, int is_reply);
void duplex_give_credit(struct port *p);
void duplex_take_credit(struct port *p);
/* Take in frames that only give back credit, if they are in front; 0: another frame is, or the peer is lost. */
int duplex_read_credit(struct duplex *p);
/* The same; 1 if there were some: another frame may be in front now. 0 also if the peer is lost. */
int duplex_passes_credit(struct duplex *p);
/* Is there credit for an eager message? A rank that only sends has not taken in any. */
int duplex_has_credit(struct duplex *p, size_t bytes);
int duplex_read(struct port *p);
void duplex_forget(struct port *p, const void *owner);
void duplex_sweep(struct port *p);

/* The handshake is over: the memory is mapped, salts[0] is that of the lower rank's ring. */
void duplex_up(struct duplex *p, const uint64_t salts[2]);
/* Write what is queued: for drivers only, as duplex_read. */
void duplex_flush(struct duplex *p);
/* Both, if it is up; 1 if something has come. */
static inline int duplex_look(struct duplex *p)
{
    if (p->port.state != PORT_UP)
        return 0;
    if (p->tx_head || p->lent_head)
        duplex_flush(p);
    return duplex_read(&p->port);
}

/* Something may have come, or there is space for what is queued. */
int duplex_has_news(struct duplex *p);
/* It said that it sleeps. */
void duplex_wake(struct duplex *p);

/* Frames have been written, and a fence was passed: wake the peer if it sleeps. */
static inline void duplex_ring_bell_fenced(struct duplex *p)
{
    if (UNLIKELY(atomic_load_explicit(&p->out.shared->asleep, memory_order_relaxed)))
        duplex_wake(p);
}

/* The same, without that fence. */
static inline void duplex_ring_bell(struct duplex *p)
{
    atomic_signal_fence(memory_order_seq_cst); /* what was written before is before this look at is_barred */
    if (p->fabric->has_barrier && atomic_load_explicit(&p->out.shared->is_barred, memory_order_relaxed))
        atomic_signal_fence(memory_order_seq_cst);
    else
        ring_fence();
    duplex_ring_bell_fenced(p);
}

/* Of this thread, if it yields while it waits; else 0. Then ranks share cores, and tell each other where they run. A
 * rank that waits for one on another core looks a little longer before it yields: what it misses is often there a
 * moment later, and to yield takes longer. One on its own core has nothing to send before this one yields. */
static inline uint32_t duplex_own_core(const struct fabric *f)
{
    return waiting_spins(f->looks.waiting) ? 0 : (uint32_t)(sched_getcpu() + 1);
}

static inline void duplex_say_core(struct duplex *p, uint32_t core)
{
    if (core && p->said_core != core)
        atomic_store_explicit(&p->out.shared->core, p->said_core = core, memory_order_relaxed);
}

/* Where the peer was when it said so last; 0: not known. */
static inline uint32_t duplex_core_of(const struct duplex *p)
{
    return atomic_load_explicit(&p->in.shared->core, memory_order_relaxed);
}

static inline int duplex_is_elsewhere(const struct duplex *p, uint32_t core)
{
    if (!core)
        return 0;
    uint32_t theirs = duplex_core_of(p);
    return theirs && theirs != core;
}

/* Is nothing in front of what is sent next? */
static inline int duplex_is_clear(const struct duplex *p)
{
    return p->port.state == PORT_UP && !p->tx_head && !p->bye_sent;
}

/* Longer records are there sooner if they are all written before this rank begins to look: a fence, one for all peers.
 * One to a single peer, of up to FEW_BYTES, is there sooner without; but not on Intel's processors, where a swap of
 * 1 KiB takes 0.40 us with it and 0.46 without. Of so many messages, the longest of `bytes`, the first to p. */
static inline int duplex_wants_fence(const struct duplex *p, int messages, int receives, size_t bytes)
{
    enum { SHORT_BYTES = 64, FEW_BYTES = 1024 };
    return bytes > (messages > 1 || (receives && p->out.brings_lines) ? SHORT_BYTES : FEW_BYTES);
}

/* Has the peer sent a message since this rank's last one? */
static inline int duplex_is_in_turn(const struct duplex *p)
{
    return p->messages != p->messages_before;
}

/* A message has been sent. Does this thread wait for one now? It does if `both` send; or, where that is not known, if
 * they send in turn. */
static inline void duplex_take_next(struct duplex *p, uint32_t bytes, int both)
{
    enum ring_waits in_turn = duplex_is_in_turn(p) ? RING_WAITS_IN_TURN : RING_WAITS_NO;
    ring_take_next(&p->out, bytes, both ? RING_WAITS_BOTH : in_turn);
    p->messages_before = p->messages;
}

/* For ops that are done at once. An offer of a message with this RTS, which can be made now; NULL: it cannot. Next it
 * is made, without ringing the bell, or dropped. */
struct tx *duplex_draft_offer(struct duplex *p, const struct frame *h, const struct loan *loan);
void duplex_make_offer(struct duplex *p, struct frame *h, struct tx *tx, const void *owner);
void duplex_drop_draft(struct duplex *p, struct tx *tx);
/* The same for an eager message, with its header: if it is sooner read by the peer. */
struct tx *duplex_draft_lent(struct duplex *p, const struct frame *h, const struct loan *loan, enum lend_flow flow);
void duplex_make_lent(struct duplex *p, struct frame *h, struct tx *tx, const void *owner);
/* The same of one that nobody waits for here: it is what is lent, and its end, that the caller looks after. */
void duplex_put_lent(struct duplex *p, struct frame *h, struct loan *l);
/* The peer has not read this eager message for long: take it back, and send it through the ring, if there is credit and
 * space for all of it. 0: there is not, other frames wait, or the peer reads it. */
int duplex_send_instead(struct duplex *p, struct frame *h, struct tx *tx);
/* Has the peer read it? If both copy it, this rank does its part. Then it is ended, unless port_ops.adopt gives it to a
 * message: the peer looks in time. */
int duplex_is_read(struct duplex *p, struct tx *tx);
void duplex_end_offer(struct duplex *p, struct tx *tx);
/* Before that: the result has been written back, and is where it belongs now. */
int duplex_take_result(struct duplex *p, struct tx *tx);
/* Space has been made in the ring: the peer may wait for it, and sleep. */
void duplex_look_after_writer(struct duplex *p);
/* The message in front, of this type (EAGER, CREDIT, or RTS with an offer) and length, has been looked at in the ring
 * and is done with; so much of its payload lay there. */
static inline void duplex_took_record(struct duplex *p, uint8_t type, size_t bytes, uint32_t credit, size_t in_ring)
{
    uint64_t lines = ring_frame_lines((uint32_t)in_ring);
    p->messages += type != FRAME_CREDIT;
    if (LIKELY(port_took(&p->port, type, bytes, credit)) && UNLIKELY(ring_pop(&p->in, lines)))
        duplex_look_after_writer(p);
}

static inline void duplex_took(struct duplex *p, uint8_t type, size_t bytes, uint32_t credit)
{
    duplex_took_record(p, type, bytes, credit, type == FRAME_RTS ? 0 : bytes);
}

/* An eager message with this header is in front, and lent, in this record: claim it. 0: it was taken back, and the
 * record is done with; or the peer is lost. */
int duplex_claim_lent(struct duplex *p, const struct frame *h, const struct ring_record *record,
                      struct ring_place *ret_place);
/* Read it to there; the record, whose credit that is, is done with. 0: its operation has ended at the peer, or the peer
 * is lost. */
int duplex_read_claimed(struct duplex *p, const struct frame *h, const struct ring_place *place, uint32_t credit,
                        void *to);

void duplex_copy_long(struct duplex *p, void *to, const uint8_t *payload, size_t bytes);
/* The payload of an eager message, which lies in its record. */
static inline void duplex_copy_out(struct duplex *p, void *to, const uint8_t *payload, size_t bytes)
{
    if (LIKELY(bytes < LEND_EAGER_LEAST))
        memcpy(to, payload, bytes);
    else
        duplex_copy_long(p, to, payload, bytes);
}
/* Something for the peer is in the socket: its ring says so, without ringing its bell, as the socket wakes it. 0: not
 * now. */
int duplex_say_notice(struct duplex *p);
/* Send BYE; nothing follows it. */
void duplex_leave(struct duplex *p);
/* The descriptors and the memory. */
void duplex_close(struct duplex *p);
/* What it owns besides. */
void duplex_finish(struct duplex *p);
void duplex_pool_finish(struct fabric *f);

#endif

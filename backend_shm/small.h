/* Small collectives at once, in the thread that calls them: see small.c. */
#ifndef COMM_SHM_SMALL_H
#define COMM_SHM_SMALL_H

#include <sched.h>

#include "backoff.h"
#include "exec_group.h"
#include "rounds.h"
#include "shm.h"
#include "swap.h"

enum {
    SMALL_BYTES = RING_TAKEN, /* longest message that goes through the ring */
    SMALL_PEERS_MAX = 16,
    SMALL_SHAPES = 8,
    SMALL_TURN = 12, /* divides into 1 to 4 calls */
};

/* A message of the op: to or from `peer`, `bytes` after the beginning of the buffer that it is read from, or copied
 * to. */
struct small_message {
    struct duplex *peer;
    int32_t rank;
    size_t offset;
};

/* A plan, of which this rank has only the first round unless has_rounds is set, with all that does not change from call
 * to call. */
struct small_shape {
    int32_t redop, dtype;
    uint32_t flags;
    size_t send_count, recv_count;
    uint64_t signature;      /* the op's; head.signature has the group's settings_mark in it */
    int known, fits;
    int is_offered;          /* the messages are read in their senders' memory; else they go through the ring */
    struct frame head;
    struct ring_key_base sent, offered; /* of its keys, as EAGER and as RTS */
    size_t bytes;            /* of each message */
    int send_messages, recv_messages;
    int is_fenced;           /* its records are written before this rank looks: ring_bells */
    int is_barrier;          /* of more than two ranks, each of which sends to all others */
    int only_sends;          /* what the engine does for this op on this rank: it waits for nobody */
    int awaits_room;         /* it only sends, and is left to the engine once there is room to send it eagerly */
    int may_be_lent;         /* its message is eager, and perhaps sooner read in the sender's memory */
    int multicasts;          /* and one copy of it is for all: multicast.h */
    int has_rounds, swaps;   /* rounds.c or swap.c does it: what is said of messages here is not used */
    int is_special;          /* it is offered, may be lent, or does not fit: run_special */
    uint64_t batch;          /* it waits for room once in so many calls; 0: when there is none */
    int turn_share;          /* of SMALL_TURN: what a call takes of this rank's turn on its core; 0: it ends the turn */
    struct small_message sends[SMALL_PEERS_MAX], recvs[SMALL_PEERS_MAX];
    size_t copy_bytes, copy_from, copy_to; /* this rank's own block, if one is copied */
    size_t reduce_count;     /* elements that are reduced in rank order; 0: what comes is copied */
    size_t reduce_from, reduce_to;
    reduce_kernel_fn kernel; /* of two ranks; NULL: reduce_many */
    struct backoff backoff;
    uint32_t core;           /* duplex_own_core, of late */
    int mates;               /* the first of `recvs` are from so many ranks that may share it */
    unsigned core_calls;
};

struct small {
    struct small_shape shapes[SMALL_SHAPES];
    struct rounds *rounds; /* [SMALL_SHAPES], of those with has_rounds; NULL: there was none yet */
    struct swap swap[SMALL_SHAPES];
    int turn_taken; /* by the calls since a collective of this group last waited, or this rank yielded its core */
};

/* The slot `run`, with the lock, for a group of ranks that the fabric has duplexes to. */
comm_status small_run(struct small *s, struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns);

/* Only of one whose `rounds` were not there from the beginning (local.c). */
void small_finish(struct small *s);

/* A call that only sends is done, or submitted to the engine. If this rank has sent for as long as its turn lasts it
 * yields its core. Without the lock. */
static inline void small_end_turn(struct small *s)
{
    if (s->turn_taken < SMALL_TURN)
        return;
    s->turn_taken = 0;
    sched_yield();
}

#endif

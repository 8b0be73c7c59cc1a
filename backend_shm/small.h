/* Small collectives at once, in the thread that calls them: see small.c. */
#ifndef COMM_SHM_SMALL_H
#define COMM_SHM_SMALL_H

#include "backoff.h"
#include "exec_group.h"
#include "shm.h"

enum {
    SMALL_BYTES = RING_TAKEN, /* longest message that goes through the ring */
    SMALL_OFFER_BYTES = 256 << 10, /* and that is offered: the engine's time does not matter then, and the lock is kept
                                    * for as long as one takes */
    SMALL_BYTES_PER_NS = 4, /* at least so fast peers read: for how long to wait until they have */
    SMALL_PEERS_MAX = 16,
    SMALL_SHAPES = 8,
};

/* A message of the op: to or from `peer`, `bytes` after the beginning of the buffer that it is read from, or copied
 * to. */
struct small_message {
    struct duplex *peer;
    int32_t rank;
    size_t offset;
};

/* A plan of one round, with all that does not change from call to call. */
struct small_shape {
    int32_t redop, dtype;
    uint32_t flags;
    size_t send_count, recv_count;
    int known, fits;
    int is_offered;          /* the messages are read in their senders' memory; else they go through the ring */
    struct frame head;
    struct ring_key_base sent, offered; /* of its keys, as EAGER and as RTS */
    size_t bytes;            /* of each message */
    int send_messages, recv_messages;
    int only_sends;          /* what the engine does for this op on this rank: it waits for nobody */
    int turn, sent_in_turn;  /* calls that only send, in a row, before this rank yields its core; 0: it does not */
    struct small_message sends[SMALL_PEERS_MAX], recvs[SMALL_PEERS_MAX];
    size_t copy_bytes, copy_from, copy_to; /* this rank's own block, if one is copied */
    size_t reduce_count;     /* elements that are reduced in rank order; 0: what comes is copied */
    size_t reduce_from, reduce_to;
    reduce_kernel_fn kernel; /* of two ranks; NULL: reduce_many */
    struct backoff backoff;
};

struct small {
    struct small_shape shapes[SMALL_SHAPES];
    struct small_shape *left; /* of the op that the latest call of small_run left to the engine; NULL: it did not */
};

/* The slot `run`, with the lock, for a group of ranks that the fabric has duplexes to. */
comm_status small_run(struct small *s, struct fabric *f, struct exec_group *g, const comm_op *op, int64_t spin_ns);
/* Ops have been submitted to the engine, perhaps the one that small_run left to it. Without the lock. */
void small_submitted(struct small *s);

#endif

/* An operation under way: a collective, a send or a receive. */
#ifndef COMM_EXEC_OP_H
#define COMM_EXEC_OP_H

#include <comm/backend.h>

#include "match.h"
#include "plan.h"
#include "select.h"

enum { OP_SLOTS_MAX = 16 }; /* slices of one op under way at a time */

struct exec_group;

/* What ranks must agree on, and what errors say of an operation: all that is kept of one that is over. */
struct call {
    uint64_t seq, signature, count;
    int32_t root;
    uint8_t kind, dtype, redop;
};

/* A message of the round; a local step has none, and its state is MESSAGE_DONE. */
struct step {
    struct message message;
    struct slot *slot;
};

enum slot_written { SLOT_WAS_WRITTEN = 1, SLOT_HAS_WRITTEN = 2 };

/* One slice under way. */
struct slot {
    struct exec_op *op;
    uint8_t active;
    uint8_t written;        /* enum slot_written: a peer wrote its result here, this rank its own at the peer */
    uint32_t slice;
    size_t begin, end;      /* elements: of the vector, or of each block */
    uint16_t round;
    uint32_t first, last;   /* the round's steps in the plan */
    uint32_t pending;       /* messages of the round not done yet */
    struct step *steps;     /* by index in the plan minus first; for the widest round */
    struct kept *kept;      /* [size] of what ranks have sent; NULL: none is kept */
    uint8_t *scratch;       /* the plan's slots, and behind them its SUMS if it widens */
    size_t stride;          /* bytes of the longest chunk of this slice, which is how far apart the plan's scratch
                             * slots are */
};

/* How far a carrier's `run` has come with the operation that is submitted next. All 0: it has sent all messages of the
 * first round, and not done its local steps. */
struct begun {
    uint16_t round;         /* whose messages it awaits; the rounds before are done */
    uint8_t not_sent;       /* it has sent no message of that round */
    uint8_t did_local;      /* it has done the round's local steps: they cannot be done again, as what they read may be
                             * gone, or was never in the scratch memory */
    uint16_t received;      /* so many messages of the round, the first ones in the plan's order */
    uint8_t written;        /* of the slot: results that were written back */
};

struct exec_op {
    struct exec_op *next;   /* in the group's queue or list, or the pool */
    struct exec_op **at;    /* in an op_list: what points to it */
    struct exec_group *group;
    comm_work *work;
    comm_op op;
    const comm_op_traits *traits; /* of its kind */
    struct call call;
    int64_t deadline_ns;    /* INT64_MAX: none */
    struct frame head;      /* what its messages' frames have in common */
    size_t element_bytes;   /* of the user's buffers, and of messages from and to them */
    uint8_t started;
    struct begun begun;     /* if the flag COMM_OP_FLAG_BEGUN is set */
    uint8_t retired;        /* completed; its memory waits for the end of the turn */
    uint32_t begun_tick;    /* domain->ticks when it was submitted */
    /* Collectives. */
    const struct plan *plan;
    struct route route;
    reduce_kernel_fn kernel;
    reduce_to_two_fn to_two; /* for what is written back, in plans that do not widen; NULL: `kernel`, and a copy */
    reduce_kernel_fn wide_kernel, widening_kernel; /* if the plan widens: of sums, and of the user's elements to sums */
    uint32_t slice_count, slice_next, slices_done;
    size_t slice_elements;
    size_t total;           /* elements of the vector, or of the longest block: what slices are cut from */
    size_t largest_block;   /* block ops: elements */
    uint32_t slot_count;
    struct slot slots[OP_SLOTS_MAX];
    comm_buffers in;        /* SEND as the plan sees it: the user's, or a prepared copy */
    /* Point-to-point. */
    struct message message;
    uint8_t matched;        /* a receive: it has its message */
};

/* Sends or receives, oldest first. */
struct op_list {
    struct exec_op *head, **tail;
};

/* Does it move a block for each rank, not one vector that the plan cuts into chunks? */
static inline int traits_have_blocks(const comm_op_traits *t)
{
    return t->send == COMM_OP_SIDE_BLOCKS || t->recv == COMM_OP_SIDE_BLOCKS;
}

static inline int op_has_blocks(const struct exec_op *op)
{
    return traits_have_blocks(op->traits);
}

static inline int op_reduces(const struct exec_op *op)
{
    return (op->traits->traits & COMM_OP_TRAIT_REDUCES) != 0;
}

static inline int op_is_p2p(const struct exec_op *op)
{
    return (op->traits->traits & COMM_OP_TRAIT_PEER) != 0;
}

#endif

/* Small collectives of several rounds, at once, in the thread that calls them. */
#ifndef COMM_SHM_ROUNDS_H
#define COMM_SHM_ROUNDS_H

#include "exec_group.h"
#include "shm.h"

enum {
    ROUNDS_STEPS_MAX = 64,
    ROUNDS_MAX = 16,       /* in which this rank has something to do */
    ROUNDS_MESSAGES_MAX = 15, /* of one round, each way */
};

/* Bytes from the beginning of the buffer that the caller gives, or of the group's scratch. */
struct rounds_place {
    uint32_t offset;
    uint8_t buffer; /* enum plan_buffer */
};

/* A step of the plan, with all that does not change from call to call. */
struct rounds_step {
    uint8_t kind;            /* enum plan_step_kind */
    uint8_t source_is_lower;
    struct duplex *peer;
    int32_t rank;            /* the peer's, in the group */
    uint8_t converts, is_wide; /* a copy that widens or narrows; its result, or what is divided, is wide */
    uint32_t bytes;          /* of a message */
    size_t copy_bytes;       /* of what is copied as it is: a rank's own block may be longer than messages may */
    size_t count;            /* elements of `dst` */
    reduce_kernel_fn kernel; /* of what reduces two */
    struct ring_key_base key;
    struct rounds_place dst, source, other;
};

/* Steps of one round, from `first` on: local ones, then messages that are sent, then those that come. */
struct rounds_part {
    uint16_t round;
    uint8_t first, locals, sends, receives;
    uint8_t reduces_ranks;   /* what comes is not copied: one more step reduces it, in rank order, in the rings */
    uint8_t is_fenced;       /* what is sent is written before this rank looks: as in small.c */
};

struct rounds {
    int parts, steps;
    size_t scratch_bytes;
    struct rounds_part part[ROUNDS_MAX];
    struct rounds_step step[ROUNDS_STEPS_MAX];
};

/* What the engine would do for this operation, which is prepared and of one slice, in slots[0]. 0: that cannot be done
 * here, as a message is longer than `longest`, say. *known becomes 0 if a peer is not connected yet. */
int rounds_learn(struct rounds *r, struct exec_op *op, size_t longest, int *known);

/* As the slot `run`; `head` is that of its messages. COMM_IN_PROGRESS: the group says how far it has come. */
comm_status rounds_run(struct rounds *r, struct fabric *f, struct exec_group *g, const comm_op *op,
                       const struct frame *head, int64_t spin_ns);

#endif

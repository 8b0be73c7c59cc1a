/* A reduction of two ranks, each of which sums one half for both, at once, in the thread that calls it. */
#ifndef COMM_SHM_SWAP_H
#define COMM_SHM_SWAP_H

#include "exec_group.h"
#include "shm.h"

/* What does not change from call to call. Places are bytes from the beginning of the caller's buffers. */
struct swap {
    struct duplex *peer;
    size_t send_from, send_bytes, back_to; /* the part that the peer sums, and where its sum belongs */
    size_t sum_from, sum_bytes, sum_to;    /* the part that this rank sums */
    size_t element_bytes;
    int is_lower;                          /* this rank's elements are on the left */
    reduce_kernel_fn kernel;
    reduce_to_two_fn to_two;
};

/* What the engine would do for this operation, which is prepared and of one slice, in slots[0]. 0: something else. */
int swap_learn(struct swap *s, const struct exec_op *op);

/* As the slot `run`; `head` is that of its messages. COMM_IN_PROGRESS: the group says how far it has come. */
comm_status swap_run(const struct swap *s, struct fabric *f, struct exec_group *g, const comm_op *op,
                     const struct frame *head, int64_t spin_ns);

#endif

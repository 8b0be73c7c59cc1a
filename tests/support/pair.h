/* Two ranks of one world in one process and one thread: real domains, with a group 'g' of both, over ports in memory on
 * which nothing moves unless the test says so. */
#ifndef SUPPORT_PAIR_H
#define SUPPORT_PAIR_H

#include "core/exec/exec_group.h"

/* A submitted operation. */
struct pair_work {
    int completed; /* how often */
    comm_status status;
    char error[512];
};

enum { PAIR_EAGER = 1000, PAIR_ANSWER_MS = 400 }; /* eager_bytes, answer_ms */

/* `algo`, `lanes` and `slice_bytes` are the parameters of those names. */
void pair_open(const char *algo, int64_t lanes, int64_t slice_bytes);
void pair_close(void);
struct exec_group *pair_group(int32_t rank);
/* The rank closes its group, which is the world's. It has sent no BYE yet. */
void pair_close_world(int32_t rank);
/* The latest rank that the core was told is lost; -1: none. */
int32_t pair_lost(void);
/* The rank's port to the other one. */
struct port *pair_port(int32_t rank);

/* From now on the rank's payloads stay queued until pair_flush, and so do the frames behind them. */
void pair_slow(int32_t rank, int is_slow);
/* What is queued goes on its way; its sender is told by the next pair_flush, before new frames go. */
void pair_move(int32_t rank);
void pair_flush(int32_t rank);
/* The oldest frame that the rank has sent and that has not arrived; NULL: none, or it is queued. */
const struct frame *pair_next(int32_t rank);
/* It arrives. Returns its type; 0: there is none. */
int pair_deliver(int32_t rank);
/* It arrives in two pieces. */
int pair_deliver_head(int32_t rank);
void pair_deliver_rest(int32_t rank);
/* All that both send arrives, until nothing is left. */
void pair_deliver_all(void);
/* It is lost without a trace. */
void pair_drop(int32_t rank);
/* Frames that were sent while the engine was not in a round, and in one. */
size_t pair_sent(int in_round);

comm_status pair_submit(int32_t rank, const comm_op *op, struct pair_work *work);
/* The end of the turn, with the completion of works. */
void pair_turn(int32_t rank);
/* Nothing is awaited, queued, posted or kept, and what the one may not send the other has received and owes. NULL: so
 * it is; else what is not. */
const char *pair_unrest(void);

#endif

/* Executes collectives: see engine.c. */
#ifndef COMM_EXEC_ENGINE_H
#define COMM_EXEC_ENGINE_H

#include "exec_op.h"

void engine_start(struct exec_op *op);
/* The op is over, however far it was. */
void engine_cancel(struct exec_op *op);
/* A rank of the group that the collective waits for; -1 if none. */
int32_t engine_awaits(const struct exec_op *op);
/* 1 if the op has something to get from or to bring to that peer. */
int engine_needs(const struct exec_op *op, const struct port *p);

#endif

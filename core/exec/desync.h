/* Ranks out of step: see desync.c. */
#ifndef COMM_EXEC_DESYNC_H
#define COMM_EXEC_DESYNC_H

#include "exec_group.h"

void desync_check(struct domain *d, int64_t now_ns); /* expired deadlines, questions that have been open for long
                                                      * enough */
void desync_tick(struct domain *d);                  /* every second: collectives that take long */
int64_t desync_due_ns(const struct domain *d);
/* A peer's QUERY; `g` is NULL if the group is not open. */
void desync_query(struct exec_group *g, struct port *p, const struct frame *h);
void desync_answer(struct exec_group *g, struct port *p, const struct frame *h, const char *text);

#endif

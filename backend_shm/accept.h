/* Connections that come in: see accept.c. */
#ifndef COMM_SHM_ACCEPT_H
#define COMM_SHM_ACCEPT_H

#include "shm.h"

comm_status accept_open(struct fabric *f);
void accept_close(struct fabric *f);
void accept_timer(struct fabric *f, int64_t now_ns);
int64_t accept_due_ns(const struct fabric *f);
/* A peer is between hello and ready. */
int accept_is_proving(const struct fabric *f);

#endif

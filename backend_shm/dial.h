/* Going out to a peer: see dial.c. */
#ifndef COMM_SHM_DIAL_H
#define COMM_SHM_DIAL_H

#include "shm.h"

/* What others need to know to find this rank goes to the store. */
comm_status dial_publish(struct fabric *f);
/* By what its members have published: may all of them read others' memory by the kernel? Each member gets the same
 * answer. Waits for members that have not opened this backend, for the group's time limit. */
comm_status dial_all_read(struct fabric *f, const comm_group_info *group, int *ret_read);

/* Where a peer that has connected to this rank is, for errors, unless that is known. */
void dial_note_place(struct duplex *p);

/* port_ops */
void dial_open(struct port *p);
void dial_describe_trouble(const struct port *p, char *text, size_t capacity);
/* Fill in `where` of a peer that was never talked to, if that can be known at once. */
void dial_find_place(struct port *p);

/* Ask the store for the peers that are wanted, until *stop, if that is not NULL. Without the lock: it takes a while. */
void dial_resolve(struct fabric *f, const atomic_int *stop);
/* We are connecting to the peer: it has not proved anything yet. */
int dial_under_way(const struct duplex *p);
/* Give the attempt up, as the peer's own goes first. */
void dial_end(struct duplex *p);
void dial_timer(struct fabric *f, int64_t now_ns);
int64_t dial_due_ns(const struct fabric *f);

#endif

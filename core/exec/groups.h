/* The groups of a domain: those that are open, and those that are not open here, not yet or not any more. */
#ifndef COMM_EXEC_GROUPS_H
#define COMM_EXEC_GROUPS_H

#include "exec_group.h"

/* The domain is zeroed before. 0 without memory; what there is by then is freed by finish. The ports belong to the
 * carrier of frames. */
int domain_init(struct domain *d, const char *backend, int32_t rank, int32_t size, const struct port_events *events);
void domain_finish(struct domain *d);

comm_status group_create(struct domain *d, const comm_group_info *info, struct exec_group **ret_group);
void group_destroy(struct exec_group *g);
/* The open group of that id; else NULL. */
struct exec_group *group_find(struct domain *d, uint64_t id);
/* It is open from now on; and has ended, if another rank has said so already. Frames that came before find it. */
void group_enter(struct exec_group *g);
/* It is closed from now on; why it ended, if it did, is kept for ranks that ask. */
void group_leave(struct exec_group *g);

/* Take in what the members have said already. */
void group_hear(struct exec_group *g);

/* The group of that id that was closed here; else NULL. */
const struct past_group *group_closed(struct domain *d, uint64_t id);
/* End the group if it has this peer, and this rank or another member has said that it is lost. */
void group_end_if_lost(struct exec_group *g, const struct port *p);

/* The header of a FAIL. */
struct frame group_end_frame(uint64_t id, const struct reason *why);
/* If it is known here why that group ended, tell the peer. `g` is NULL if it is not open. Returns 1 if it is known. */
int group_tell_why(struct port *p, const struct exec_group *g, uint64_t id);
/* A message for a group that is not open here, or has ended: 1 if the group may still be opened, else the peer has
 * been told, perhaps now. */
int group_may_come(struct port *p, const struct exec_group *g, const struct frame *h);
/* A peer says why a group has ended that is not open here: not yet, or not any more. */
void group_note_end(struct port *p, uint64_t id, const struct reason *why);
/* A member says why the group has ended; the words may be those of another one. */
void group_end_as_told(struct exec_group *g, int32_t from, const struct reason *why);

#endif

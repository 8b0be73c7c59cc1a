/* A fabric: opening and closing it, and what its driver does with it. See shm.h. */
#ifndef COMM_SHM_FABRIC_H
#define COMM_SHM_FABRIC_H

#include "shm.h"

/* Ranks of this world on this host. */
int32_t fabric_local_ranks(const comm_world_info *info);

/* The duplexes become the domain's ports for ranks of this host, and for those that have none. With zeroed memory;
 * finish frees also what is half made. */
comm_status fabric_init(struct fabric *f, struct domain *d, const struct carrier_driver *driver,
                        const comm_world_info *info);
void fabric_finish(struct fabric *f);
/* What reaches outside; close takes it half done. */
comm_status fabric_open(struct fabric *f);
void fabric_close(struct fabric *f);
/* In a child of fork(). */
void fabric_close_descriptors(struct fabric *f);

/* Take in all that lies in the rings; look_around: and new connections. Returns 1 if something has come. */
int fabric_look(struct fabric *f);
int fabric_look_around(struct fabric *f);
void fabric_timer(struct fabric *f, int64_t now_ns);
int64_t fabric_due_ns(const struct fabric *f);
/* Say goodbye to those who have not heard it. Returns 1 as long as there is something to deliver. */
int fabric_leave(struct fabric *f);

#endif

/* The lock, waiting, and the helper thread: see progress.c. */
#ifndef COMM_TCP_PROGRESS_H
#define COMM_TCP_PROGRESS_H

#include "tcp.h"

comm_status progress_start(struct mesh *m);
/* What the mesh's carrier knows of its driver; and the carrier is open, so that its ranks can be heard. */
extern const struct carrier_driver driver_of_meshes;
comm_status progress_watch_local(struct mesh *m);
comm_status progress_helper(struct mesh *m);
void progress_stop(struct mesh *m);
void progress_enter(struct mesh *m);         /* take the lock for a short time */
void progress_leave(struct mesh *m);         /* release it and hand completed works to the core */
void progress_leave_quietly(struct mesh *m); /* without handing over: for callers that hold locks of the core */
void progress_leave_to_helper(struct mesh *m); /* so too, and an op that no thread waits for has begun: the helper
                                                * should look after it */
/* With the lock. Take in all that has come by now; or sleep before until something has, for so long at most. */
void progress_look_around(struct mesh *m);
void progress_nap(struct mesh *m, int64_t ns);
/* The slot `run` of a mesh with a carrier, for ops that have to do with no link. */
comm_status progress_run(struct mesh *m, struct exec_group *g, const comm_op *op, int64_t spin_ns);
comm_status progress_wait(struct mesh *m, comm_work *work, int64_t deadline_ns);

#endif

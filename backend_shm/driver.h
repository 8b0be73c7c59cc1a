/* The arena's lock, and the thread that drives under it: see driver.c. */
#ifndef COMM_SHM_DRIVER_H
#define COMM_SHM_DRIVER_H

#include "shm.h"

/* What an arena's fabric knows of its driver. */
extern const struct carrier_driver driver_of_arenas;

void driver_start(struct arena *a);
comm_status driver_helper(struct arena *a);
/* End the helper. */
void driver_stop(struct arena *a);

/* A short visit. driver_leave hands completed works to the core; after driver_leave_quietly the next thread that
 * releases the lock does it. to_helper: works were begun that perhaps no thread waits for. */
void driver_enter(struct arena *a);
void driver_leave(struct arena *a);
void driver_leave_quietly(struct arena *a);
void driver_leave_to_helper(struct arena *a);

/* The slot `progress` of a backend. */
comm_status driver_wait(struct arena *a, comm_work *work, int64_t deadline_ns);
/* Take in all that has come by now, with the lock. Returns 1 if something has. */
int driver_look_around(struct arena *a);
/* One round of what is due, to be called with the lock while the arena closes; sleeps for so long at most. */
void driver_turn(struct arena *a, int wait_ms);

#endif

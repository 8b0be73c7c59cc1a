/* A thread of a peer that writes to this rank's memory by the kernel (process_vm_writev): where to is told by a list
 * in the memory that both share, which the kernel reads as a call begins. So this rank clears the list to stop it; but
 * a call that has begun before is waited for. */
#ifndef COMM_SHM_WRITER_H
#define COMM_SHM_WRITER_H

#include <sys/types.h>

enum { WRITER_CALL_NS = 2000000000 }; /* so long a call is waited for; then the peer is lost */

/* Does /proc show what the peer's threads do? */
int writer_is_seen(pid_t pid);
/* Is the thread in no such call? It is not if it is stopped, as it stops on its way back from the kernel; is gone; or
 * waits in another call. One that runs, or wants to, may be in it. */
int writer_is_out(pid_t pid, int thread);

/* Is the process no more? */
int writer_has_ended(pid_t pid);
/* The threads of the process, as many as there is space for; -1: /proc does not say. Its first one may have ended
 * (pthread_exit) while others go on: it is listed still, and the kernel then finds no memory by its number. */
int writer_threads(pid_t pid, pid_t *threads, int space);

#endif

/* between.h: what a program asks of the library between the plugin and MPI. The program has these. */
#ifndef MPI_BETWEEN_H
#define MPI_BETWEEN_H

#include <stdatomic.h>

extern __attribute__((visibility("default"))) atomic_int between_slow_ms; /* making a communicator takes longer */
extern __attribute__((visibility("default"))) atomic_int between_one;     /* 1: two calls of MPI at a time end it */
extern __attribute__((visibility("default"))) atomic_int between_calls;   /* so many calls have come */
extern __attribute__((visibility("default"))) atomic_int between_made;    /* of them, that make a communicator */

#endif

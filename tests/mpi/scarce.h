/* scarce.h: the plugin's memory runs out */
#ifndef MPI_SCARCE_H
#define MPI_SCARCE_H

#include <stdatomic.h>

/* Allocations until all fail; -1: none does. The program has it. */
extern __attribute__((visibility("default"))) atomic_int scarce_left;

#endif

/* mpi_api.h: MPI as its header has it, but linked to nothing: functions are pointers in `mpi`, and the objects that
 * Open MPI's handles point to are looked up, too. So the plugin can be loaded, and say no, without its MPI. */
#ifndef MPI_MPI_API_H
#define MPI_MPI_API_H

#include <mpi.h>

struct mpi_api {
#define CALL(name) __typeof__(MPI_##name) *name;
#include "mpi.def"
#undef CALL
#ifdef OPEN_MPI
#define HANDLE(name) void *name;
#include "handle.def"
#undef HANDLE
#endif
};

extern struct mpi_api mpi;

#ifdef OPEN_MPI
#define VARIANT_NAME "Open MPI"
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) ((type)mpi.global)
#else
#define VARIANT_NAME "MPICH"
#endif

#endif

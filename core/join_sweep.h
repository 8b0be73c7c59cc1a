/* Deleting what earlier worlds have left in the store. */
#ifndef COMM_CORE_JOIN_SWEEP_H
#define COMM_CORE_JOIN_SWEEP_H

#include "join.h"

/* Once this rank counts as joined; does it once. Errors are logged; the joining does not depend on it. */
void comm__join_sweep(struct joining *j);

#endif

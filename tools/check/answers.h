/* What `supports` answered on each rank, to be compared: by the signature of the collective. */
#ifndef COMM_CHECK_ANSWERS_H
#define COMM_CHECK_ANSWERS_H

#include "watch.h"

void answers_note(const comm_op *op, bool yes, const char *what);

#endif

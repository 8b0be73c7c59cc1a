/* What ports tell: see receive.c. */
#ifndef COMM_EXEC_RECEIVE_H
#define COMM_EXEC_RECEIVE_H

#include "port.h"

extern const struct port_events receive_events;

#endif

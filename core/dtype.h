/* What comm.h does not show of element types, reduce ops and devices. */
#ifndef COMM_CORE_DTYPE_H
#define COMM_CORE_DTYPE_H

#include <comm/comm.h>

/* Tables are indexed by the public numbers; these are one more than the last. */
enum { COMM__DTYPE_END = COMM_DTYPE_BYTE + 1, COMM__REDOP_END = COMM_REDOP_USER + 1 };

/* The device of a name of `length` bytes, as it stands in "cpu:tcp,cuda:nccl". INVALID lists the names. */
comm_status comm__device_parse(const char *name, size_t length, comm_device *ret_device);

#endif

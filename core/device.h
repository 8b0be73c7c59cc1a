/* Kinds of device: those of comm.h, and those that backends bring. Any thread. */
#ifndef COMM_CORE_DEVICE_H
#define COMM_CORE_DEVICE_H

#include <comm/comm.h>

/* Kinds are numbers below this one. */
enum { DEVICE_KIND_END = 32, DEVICE_NAME_BYTES = 32 };

/* The kinds in a list of names such as "cuda,hip", as bits (1 << kind); a name that is new gets a number.
 * Errors  INVALID (an empty or malformed name), UNSUPPORTED (no number is left). */
comm_status comm__device_kinds(const char *names, uint32_t *ret_kinds);

/* The kind of that name; 0 if there is none. */
int32_t comm__device_kind_of(const char *name, size_t length);

/* "cuda:1", or "cuda" without an index. */
void comm__device_text(comm_device device, char *text, size_t capacity);

#endif

/* Memory that finds forbidden accesses: it is taken away after its time, and an access is a finding. */
#ifndef COMM_CHECK_MEMORY_H
#define COMM_CHECK_MEMORY_H

#include <stddef.h>

#include "check.h"

/* Once per process. */
void memory_begin(void);

/* `bytes` that end where a page ends behind which nothing can be read, for what a backend is lent. `what` is for
 * findings: "the comm_op of all_reduce #3". */
void *lent_take(size_t bytes, const char *what);
/* From now on it must not be touched: an access breaks `rule`. NULL is fine. */
void lent_end(void *memory, enum rule rule);

/* The programs' buffers (gpu_buffer, gpu_buffer_free) are such memory too. memory_holds: is it one of
 * them? memory_given_back is called when one is. */
int memory_holds(const void *address);
extern void (*memory_given_back)(const void *memory, size_t bytes);

#endif

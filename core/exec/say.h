/* What this code says, to the caller and to the log; and the host table, through which it says it. */
#ifndef COMM_EXEC_SAY_H
#define COMM_EXEC_SAY_H

#include <comm/backend.h>
#include <stddef.h>

extern const comm_host *exec_host;

/* Write an error text and keep it as the thread's; returns `status`. */
comm_status exec_fail(comm_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
void exec_log(int32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* How a rank is written: "rank 3", or with its number in the world where that is another, and its place if that is not
 * "": "rank 2 (world rank 1, node-b 10.0.0.7:40213)". In a ring of eight buffers of this thread. */
const char *say_rank(int32_t rank, int32_t world_rank, const char *where);
/* Append to a text; what does not fit is dropped. */
void text_add(char *text, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif

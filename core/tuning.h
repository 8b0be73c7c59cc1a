/* COMM_TUNING: a file of rules, such as comm-bench --tune writes, that say which algorithm a backend takes for what
 * (docs/tuning.md). A line begins with the name of its backend; the rest is that backend's to understand. The core
 * reads the file once for each world, and the ranks compare what they have read as they join: ranks with different
 * rules would take different algorithms. */
#ifndef COMM_CORE_TUNING_H
#define COMM_CORE_TUNING_H

#include <comm/comm.h>
#include <stdint.h>

/* The file's text, to be freed; NULL if the variable is not set.  Errors  INVALID (names the file, the line and the
 * cause), NO_MEMORY. */
comm_status comm__tuning_read(char **ret_text);
/* What ranks compare; 0: no text. */
uint64_t comm__tuning_mark(const char *text);
/* How many lines are for the backend. */
size_t comm__tuning_count(const char *text, const char *backend);
/* For comm-info: one call of `line` for each line that is for the backend. */
void comm__tuning_describe(const char *backend, void (*line)(const char *text, void *line_context), void *line_context);

#endif

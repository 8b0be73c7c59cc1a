/* Parameters: those of the core (base/param.def) and those that backends declare. Read from the environment at each
 * look-up. */
#ifndef COMM_BASE_PARAM_H
#define COMM_BASE_PARAM_H

#include <comm/backend.h>
#include <stdio.h>

/* A core parameter's value in force, from the environment (COMM_<NAME>) or the table. A value that makes no sense is
 * reported as a warning and the default is used. The name must be in the table. */
int64_t comm__param_int(const char *name);
const char *comm__param_text(const char *name);

/* A backend has been registered: list its parameters.  Errors  INVALID (a declaration that makes no sense),
 * NO_MEMORY. */
comm_status comm__param_declare(const comm_backend *backend);

/* All that are known: the core's first, then each backend's as it was registered. `index` is below the count. */
size_t comm__param_count(void);
comm_param_info comm__param_listed(size_t index);

int comm__param_has(const comm_backend *backend, const char *name);

/* May a backend string set the option to `text`?  Errors  INVALID (says what there is, or what the option takes). */
comm_status comm__param_check(const comm_backend *backend, const char *name, const char *text);

/* Write "COMM_SHM_ALGO=all_reduce:ring" and a line feed if the variable is set to something else than the default. */
void comm__param_write_set(const comm_backend *backend, const comm_backend_param *p, FILE *text);

/* The value of a backend's parameter: `option` from the backend string if it is not NULL, else COMM_<BACKEND>_<NAME>,
 * else the default. NULL or 0 if the backend has not declared it. */
const char *comm__param_backend_text(const comm_backend *backend, const char *name, const char *option);
int64_t comm__param_backend_int(const comm_backend *backend, const char *name, const char *option);

#endif

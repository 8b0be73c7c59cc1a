/* Parameters: one table (core/param.def), read from the environment once per look-up. */
#ifndef COMM_CORE_PARAM_H
#define COMM_CORE_PARAM_H

#include <stdint.h>

/* The value in force, from the environment or the table. A value that makes no sense is reported once as a warning
 * and the default is used. The name must be in the table. */
int64_t comm__param_int(const char *scope, const char *name);
const char *comm__param_text(const char *scope, const char *name);

/* Parse `text` as the parameter's kind, within its limits; INVALID says what it takes. */
int32_t comm__param_parse_int(const char *scope, const char *name, const char *text, int64_t *ret_value);

#endif

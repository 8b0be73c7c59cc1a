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

/* Is it in the table? And: may an init string set it to `text`? Scopes without any row in the table (other people's backends) take
 * every option; otherwise INVALID says what there is, or what the option takes. */
int comm__param_known(const char *scope, const char *name);
int32_t comm__param_check(const char *scope, const char *name, const char *text);

#endif

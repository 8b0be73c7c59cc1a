#ifndef COMM_BASE_MISSPELT_H
#define COMM_BASE_MISSPELT_H

/* Log a warning for each variable in the environment whose name is much like that of a parameter, or begins as those of
 * a backend do, and is none. To be called once the backends are registered. */
void comm__misspelt_warn(void);

#endif

/* Limits of this process's control group (version 2), and of those that it is in. `proc` and `groups` are /proc and
 * /sys/fs/cgroup, but in tests. */
#ifndef COMM_EXEC_CONTROL_GROUP_H
#define COMM_EXEC_CONTROL_GROUP_H

#include <stdint.h>

enum { CONTROL_GROUP_PATH_BYTES = 4096 };

/* The least of what `of_group` says of each, by its folder. UINT64_MAX: nothing is known. */
uint64_t control_group_least(const char *proc, const char *groups,
                             uint64_t (*of_group)(const char *folder, const void *arg), const void *arg);

/* Thousandths of a core that it may use at a time. UINT64_MAX: as many as there are. */
uint64_t control_group_millicores(const char *proc, const char *groups);

#endif

#include "control_group.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "setting.h"

uint64_t control_group_least(const char *proc, const char *groups,
                             uint64_t (*of_group)(const char *folder, const void *arg), const void *arg)
{
    char path[CONTROL_GROUP_PATH_BYTES], line[CONTROL_GROUP_PATH_BYTES / 2] = "";
    uint64_t least = UINT64_MAX;
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    FILE *f = fopen(path, "re");
    while (f && strncmp(line, "0::", 3) != 0)
        if (!fgets(line, sizeof line, f))
            strcpy(line, "0::/"); /* only version 1 */
    if (f)
        fclose(f);
    line[strcspn(line, "\n")] = '\0';
    for (char *name = line + (*line ? 3 : 0), *end = name + strlen(name); *line; *end = '\0') {
        snprintf(path, sizeof path, "%s%s", groups, name);
        uint64_t of_this = of_group(path, arg);
        least = of_this < least ? of_this : least;
        if (end == name || !(end = strrchr(name, '/')))
            break;
    }
    return least;
}

/* Its line is "max 100000", or how many of so many microseconds it may run. */
static uint64_t millicores_of(const char *folder, const void *unused)
{
    enum { ONE_CORE = 1000 };
    char path[CONTROL_GROUP_PATH_BYTES + 32], line[64];
    unsigned long long quota, period;
    (void)unused;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!setting_read(path, line, sizeof line) || sscanf(line, "%llu %llu", &quota, &period) != 2 || !period ||
        quota > UINT64_MAX / ONE_CORE)
        return UINT64_MAX;
    return quota * ONE_CORE / period;
}

uint64_t control_group_millicores(const char *proc, const char *groups)
{
    return control_group_least(proc, groups, millicores_of, NULL);
}

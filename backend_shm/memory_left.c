#include "memory_left.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control_group.h"
#include "setting.h"

enum { PATH_BYTES = CONTROL_GROUP_PATH_BYTES };

/* The number behind `name` in a file of such lines, in its unit; UINT64_MAX: there is none. */
static uint64_t read_entry(const char *path, const char *name)
{
    char line[256];
    size_t length = strlen(name);
    uint64_t value = UINT64_MAX;
    FILE *f = fopen(path, "re");
    while (f && value == UINT64_MAX && fgets(line, sizeof line, f))
        if (strncmp(line, name, length) == 0)
            value = strtoull(line + length, NULL, 10);
    if (f)
        fclose(f);
    return value;
}

/* Of a file in a group's folder that has one. "max" is none. */
static uint64_t of_group(const char *group, const char *file)
{
    char path[PATH_BYTES + 32], line[64];
    snprintf(path, sizeof path, "%s/%s", group, file);
    int is_number = setting_read(path, line, sizeof line) && line[0] >= '0' && line[0] <= '9';
    return is_number ? strtoull(line, NULL, 10) : UINT64_MAX;
}

static uint64_t more(uint64_t a, uint64_t b)
{
    return a == UINT64_MAX || b == UINT64_MAX || a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* What is not known is nothing. */
static uint64_t less(uint64_t a, uint64_t b)
{
    return a == UINT64_MAX || b == UINT64_MAX ? a : a > b ? a - b : 0;
}

/* What it may have, and its swap, without what it has and cannot give back. */
static uint64_t left_in_group(const char *group, const void *arg)
{
    const uint64_t swap = *(const uint64_t *)arg;
    char stat[PATH_BYTES + 32];
    uint64_t most = of_group(group, "memory.max");
    if (most == UINT64_MAX)
        return UINT64_MAX;
    snprintf(stat, sizeof stat, "%s/memory.stat", group);
    uint64_t used = more(read_entry(stat, "anon "), read_entry(stat, "shmem "));
    uint64_t swap_left = less(of_group(group, "memory.swap.max"), of_group(group, "memory.swap.current"));
    return less(more(most, swap_left < swap ? swap_left : swap), used);
}

/* The caches of some file systems (ZFS) shrink, but MemAvailable does not count them. So what cannot be given back is
 * taken from all. */
uint64_t memory_left_in(const char *proc, const char *groups)
{
    static const char *const taken[] = { "AnonPages:", "Shmem:", "Hugetlb:" };
    enum { UNIT = 1024 };
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/meminfo", proc);
    uint64_t kib = read_entry(path, "MemTotal:"), swap_kib = read_entry(path, "SwapFree:");
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        kib = less(kib, read_entry(path, taken[i]));
    uint64_t swap = swap_kib < UINT64_MAX / UNIT ? swap_kib * UNIT : 0;
    uint64_t left = kib < UINT64_MAX / UNIT ? more(kib * UNIT, swap) : UINT64_MAX;
    uint64_t of_groups = control_group_least(proc, groups, left_in_group, &swap);
    return of_groups < left ? of_groups : left;
}

uint64_t memory_left(void)
{
    return memory_left_in("/proc", "/sys/fs/cgroup");
}

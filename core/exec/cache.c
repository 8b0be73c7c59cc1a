#include "cache.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "setting.h"

/* 0: there is no such file. */
static int read_line(int cpu, const char *name, char *line, int capacity)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/%s", cpu, name);
    return setting_read(path, line, capacity);
}

int32_t cache_count_list(const char *text)
{
    long count = 0;
    char *end = (char *)text;
    do {
        const char *at = end + (count > 0); /* behind the comma */
        long first = strtol(at, &end, 10), last = first;
        if (end == at)
            return 0;
        at = end + 1;
        if (*end == '-' && (last = strtol(at, &end, 10), end == at))
            return 0;
        if (first < 0 || last < first || last > INT16_MAX)
            return 0;
        count += last - first + 1;
    } while (*end == ',');
    return *end == '\0' || *end == '\n' ? (int32_t)count : 0;
}

size_t cache_read_size(const char *text)
{
    char *unit;
    unsigned long long size = strtoull(text, &unit, 10);
    unsigned shift = *unit == 'K' ? 10 : *unit == 'M' ? 20 : 0;
    return size > 0 && size < 1ull << 40 ? (size_t)size << shift : 0;
}

static size_t size_of(int cpu)
{
    enum { ASSUMED_BYTES = 32 << 20 };
    char line[64];
    size_t bytes = read_line(cpu, "size", line, sizeof line) ? cache_read_size(line) : 0;
    return bytes ? bytes : ASSUMED_BYTES;
}

/* A cache of so many bytes is shared by many cores, even if a virtual machine sees only two of them, and a core reaches
 * most of it over a mesh. It is worth less. Two ranks on two cores of Emerald Rapids (260 MiB): all_gather
 * of 2, 4, 16 MiB takes 131, 305, 1120 us so, and else 144, 353, 1330, all_to_all of 2 and 4 MiB 140 and 305, and else
 * 155 and 335; other operations are as fast. */
size_t cache_worth(struct cache *c, size_t bytes)
{
    enum { OF_MANY_CORES = 100 << 20, WORTH_BYTES = 12 << 20 };
    c->is_far = bytes >= OF_MANY_CORES;
    return c->is_far ? WORTH_BYTES : bytes;
}

void cache_choose(struct cache *c, size_t bytes, int32_t local_ranks)
{
    char line[4096];
    int cpu = sched_getcpu();
    int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    cpu = cpu < 0 ? 0 : cpu;
    int32_t cores = read_line(cpu, "shared_cpu_list", line, sizeof line) ? cache_count_list(line) : 0;
    if (cores < 1 || cores > online)
        cores = online;
    /* The rest is for the rings, for what the program does between two operations, and for other programs. Measured: on
     * a virtual machine half of the cache is too much in some minutes. */
    c->is_far = 0;
    c->bytes = (bytes ? bytes : cache_worth(c, size_of(cpu))) / 8 * 3;
    /* Ranks may be side by side, or spread over all cores and several to a core. */
    int64_t spread = ((int64_t)local_ranks * cores + online - 1) / online;
    c->sharers = local_ranks < cores ? local_ranks : cores;
    c->sharers = c->sharers > spread ? c->sharers : (int32_t)spread;
}

int cache_is_passed(const struct cache *c, size_t block_bytes, size_t touched, int32_t ranks)
{
    const size_t least_bytes = c->is_far ? 1 << 20 : 2 << 20;
    int32_t sharers = ranks < c->sharers ? ranks : c->sharers;
    return block_bytes >= least_bytes && touched > c->bytes / (size_t)(sharers > 0 ? sharers : 1);
}

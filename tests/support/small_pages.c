#include "small_pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static void need(int condition, const char *what)
{
    if (condition)
        return;
    perror(what);
    exit(1);
}

struct memory memory_reserve(size_t pages)
{
    struct memory m = { .all_bytes = (pages + 2) * HUGE_BYTES, .bytes = pages * HUGE_BYTES };
    m.all = mmap(NULL, m.all_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(m.all != MAP_FAILED, "mmap");
    m.data = m.all + HUGE_BYTES - (uintptr_t)m.all % HUGE_BYTES;
    return m;
}

struct memory memory_map(size_t pages)
{
    struct memory m = memory_reserve(pages);
    need(mprotect(m.data, m.bytes, PROT_READ | PROT_WRITE) == 0, "mprotect");
    return m;
}

void memory_unmap(struct memory *m)
{
    munmap(m->all, m->all_bytes);
    m->all = m->data = NULL;
}

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 31 + i / 4096);
}

static int setting_is(const char *what)
{
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    char line[64] = "[never]";
    if (f && !fgets(line, sizeof line, f))
        line[0] = '\0';
    if (f)
        fclose(f);
    return strstr(line, what) != NULL;
}

int memory_is_huge_unasked(void)
{
    return setting_is("[always]");
}

/* Advice to the kernel would stay with the memory. */
void memory_set(void *data, uint8_t value, size_t bytes)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    memset(data, value, bytes);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

void memory_fill(const struct memory *m, size_t bytes)
{
    memory_set(m->data, 0, bytes);
    for (size_t i = 0; i < bytes; i++)
        m->data[i] = pattern(i);
}

size_t memory_changed(const struct memory *m, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && m->data[i] == pattern(i))
        i++;
    return i;
}

long memory_kib(const struct memory *m, const char *name)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[256];
    unsigned long begin = 0, from, to;
    long sum = 0, n;
    size_t length = strlen(name);
    need(f != NULL, "/proc/self/smaps");
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            begin = from;
        if (begin >= (uintptr_t)m->data && begin < (uintptr_t)m->data + m->bytes && strncmp(line, name, length) == 0 &&
            line[length] == ':' && sscanf(line + length + 1, "%ld", &n) == 1)
            sum += n;
    }
    fclose(f);
    return sum;
}

long memory_huge_pages(const struct memory *m)
{
    return memory_kib(m, "AnonHugePages") * 1024 / HUGE_BYTES;
}

int memory_can_be_huge(void)
{
    enum { COLLAPSE = 25 /* MADV_COLLAPSE */, TIMES = 20 };
    int can = 0;
    for (int i = 0; i < TIMES && !can && !setting_is("[never]"); i++) { /* it may find no memory, or its pages in use */
        struct memory m = memory_map(1);
        memory_set(m.data, 1, m.bytes);
        can = madvise(m.data, m.bytes, COLLAPSE) == 0 && memory_huge_pages(&m) == 1;
        memory_unmap(&m);
    }
    return can;
}

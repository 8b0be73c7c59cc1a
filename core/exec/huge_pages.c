#include "huge_pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef MADV_COLLAPSE
enum { MADV_COLLAPSE = 25 }; /* Linux 6.1; older C libraries do not know it */
#endif

static const int64_t PATIENCE_NS = 5000000; /* an operation waits so long for the next one; the rest has time */

int huge_pages_make(void *memory, size_t bytes)
{
    return madvise(memory, bytes, MADV_COLLAPSE) == 0;
}

/* A line of the kernel's settings; 0: there is no such file. */
static int read_setting(const char *name, char *line, int capacity)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/kernel/mm/transparent_hugepage/%s", name);
    FILE *f = fopen(path, "re");
    int done = f && fgets(line, capacity, f);
    if (f)
        fclose(f);
    return done;
}

static int are_wanted(void)
{
    char wanted[64], bytes[64];
    return read_setting("enabled", wanted, sizeof wanted) && !strstr(wanted, "[never]") &&
           read_setting("hpage_pmd_size", bytes, sizeof bytes) && atoll(bytes) == HUGE_PAGE_BYTES;
}

void huge_pages_choose(struct huge_pages *h, int64_t uses)
{
    h->uses = uses && are_wanted() ? uses : 0;
}

/* Is all of it there? What lies around the program's buffer may have been given back to the system. */
static int is_resident(void *memory)
{
    enum { PAGE_BYTES_LEAST = 4096 };
    unsigned char pages[HUGE_PAGE_BYTES / PAGE_BYTES_LEAST];
    size_t count = HUGE_PAGE_BYTES / (size_t)sysconf(_SC_PAGESIZE), there = 0;
    if (mincore(memory, HUGE_PAGE_BYTES, pages) != 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        there += pages[i] & 1;
    return there == count;
}

/* It may be other memory by now that has come to the same address: so it is asked for again, in time. That costs a
 * microsecond if it is a huge page already. */
static void ask(struct huge_pages *h, struct huge_page *page)
{
    enum { LONGER_SHARE = 2, SHORTER_SHARE = 8 };
    void *memory = (void *)(page->number * HUGE_PAGE_BYTES);
    int64_t began_ns = clock_now_ns();
    int made = is_resident(memory) && huge_pages_make(memory, HUGE_PAGE_BYTES);
    int64_t ns = clock_now_ns() - began_ns;
    page->moved = made ? 0 : INT64_MIN / 2;
    if (!h->takes_ns)
        h->takes_ns = ns;
    h->takes_ns += (ns - h->takes_ns) / (ns > h->takes_ns ? LONGER_SHARE : SHORTER_SHARE);
}

/* Has so much time been lost to small pages as a huge one takes? */
static int is_due(const struct huge_pages *h, const struct huge_page *page)
{
    const int64_t lost_ns = 40000, assumed_ns = 500000, least_uses = 4; /* lost when all of it is moved once */
    int64_t takes_ns = h->takes_ns ? h->takes_ns : assumed_ns, uses = takes_ns / lost_ns;
    uses = h->uses != HUGE_PAGES_MEASURED ? h->uses : uses > least_uses ? uses : least_uses;
    return page->moved >= uses * HUGE_PAGE_BYTES;
}

void huge_pages_moved(struct huge_pages *h, const void *memory, size_t bytes)
{
    uintptr_t at = (uintptr_t)memory, end = at + bytes;
    int64_t began_ns = 0;
    while (h->uses && at < end) {
        struct huge_page *page = &h->known[at / HUGE_PAGE_BYTES % HUGE_PAGES_KNOWN];
        if (page->number != at / HUGE_PAGE_BYTES)
            *page = (struct huge_page){ .number = at / HUGE_PAGE_BYTES };
        uintptr_t its_end = (page->number + 1) * HUGE_PAGE_BYTES;
        its_end = its_end < end ? its_end : end;
        page->moved += (int64_t)(its_end - at);
        at = its_end;
        if (!is_due(h, page) || (began_ns && clock_now_ns() - began_ns > PATIENCE_NS))
            continue;
        began_ns = began_ns ? began_ns : clock_now_ns();
        ask(h, page);
    }
}

#include "huge_pages.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "setting.h"

#ifndef MADV_COLLAPSE
enum { MADV_COLLAPSE = 25 }; /* Linux 6.1; older C libraries do not know it */
#endif

static const int64_t PATIENCE_NS = 1000000; /* an operation waits so long for the next one; the rest has time */

int huge_pages_make(void *memory, size_t bytes)
{
    return madvise(memory, bytes, MADV_COLLAPSE) == 0;
}

static int are_wanted(void)
{
    char wanted[64], bytes[64];
    return setting_read("/sys/kernel/mm/transparent_hugepage/enabled", wanted, sizeof wanted) &&
           setting_read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", bytes, sizeof bytes) &&
           !strstr(wanted, "[never]") && atoll(bytes) == HUGE_PAGE_BYTES;
}

void huge_pages_choose(struct huge_pages *h, int64_t uses)
{
    h->uses = uses && are_wanted() ? uses : 0;
}

/* Is all of it this process's own data? /proc/self/pagemap has a word for each page. What only lies beside the
 * program's buffer may have been given back to the system. */
static int is_own(uintptr_t memory)
{
    enum { PAGE_BYTES_LEAST = 4096 };
    const uint64_t is_there = 1ull << 63, is_of_file = 1ull << 61, is_exclusive = 1ull << 56;
    uint64_t pages[HUGE_PAGE_BYTES / PAGE_BYTES_LEAST];
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE), count = HUGE_PAGE_BYTES / page_bytes, own = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, pages, count * sizeof *pages, (off_t)(memory / page_bytes * sizeof *pages));
    if (fd >= 0)
        close(fd);
    if (n != (ssize_t)(count * sizeof *pages))
        return 0;
    for (size_t i = 0; i < count; i++)
        own += (pages[i] & (is_there | is_of_file | is_exclusive)) == (is_there | is_exclusive);
    return own == count;
}

/* What one has taken: one slow one is no reason to make no more. */
static void note(struct huge_pages *h, int64_t ns)
{
    enum { SHARE = 2, LONGER = 4 };
    if (!h->takes_ns)
        h->takes_ns = ns;
    if (ns > LONGER * h->takes_ns)
        ns = LONGER * h->takes_ns;
    h->takes_ns += (ns - h->takes_ns) / SHARE;
}

static void ask(struct huge_pages *h, struct huge_page *page)
{
    enum { FARTHEST = 1024 };
    const int64_t least_ns = 50000; /* in less time nothing has been copied: it is a huge page already */
    uintptr_t memory = page->number * HUGE_PAGE_BYTES;
    int64_t began_ns = clock_now_ns();
    int made = is_own(memory) && huge_pages_make((void *)memory, HUGE_PAGE_BYTES);
    int64_t ns = clock_now_ns() - began_ns;
    page->moved = 0;
    if (made && ns > least_ns) {
        note(h, ns);
        page->farther = 1;
    } else if (page->farther < FARTHEST) {
        page->farther *= 2;
    }
}

/* Has so much time been lost to small pages as a huge one takes? */
static int is_due(const struct huge_pages *h, const struct huge_page *page)
{
    const int64_t lost_ns = 40000, assumed_ns = 500000, least_uses = 4; /* lost when all of it is moved once */
    int64_t takes_ns = h->takes_ns ? h->takes_ns : assumed_ns, uses = takes_ns / lost_ns;
    uses = h->uses != HUGE_PAGES_MEASURED ? h->uses : uses > least_uses ? uses : least_uses;
    return page->moved / HUGE_PAGE_BYTES >= uses * page->farther;
}

void huge_pages_moved(struct huge_pages *h, const void *memory, size_t bytes)
{
    uintptr_t at = (uintptr_t)memory, end = at + bytes;
    int64_t began_ns = 0;
    while (h->uses && at < end) {
        struct huge_page *page = &h->known[at / HUGE_PAGE_BYTES % HUGE_PAGES_KNOWN];
        if (page->number != at / HUGE_PAGE_BYTES)
            *page = (struct huge_page){ .number = at / HUGE_PAGE_BYTES, .farther = 1 };
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

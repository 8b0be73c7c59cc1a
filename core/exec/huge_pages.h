/* Huge pages for memory that operations use again and again.
 *
 * The kernel keeps an entry for each 4 KiB of a program's memory, or one for 2 MiB. When it reads a peer's memory
 * (cross-memory attach) it looks up and holds each page, and a core that copies long blocks looks up each page, too.
 * Measured with two ranks that read from each other: 2 MiB take 160 to 185 us from small pages, 80 to 90 from huge
 * ones; 32 MiB take 7000 and 2700 us. So the kernel is asked for huge pages for memory that has been moved often
 * (MADV_COLLAPSE). Its contents and addresses stay. Only pages that this process alone has mapped and that hold data of
 * its own are asked for: so no memory is added, for pages that were never written or that a forked child has, too.
 *
 * That takes the kernel 0.5 ms for each 2 MiB, or 5 on a virtual machine whose host has to find the memory first. It is
 * asked when as much time has been lost to small pages as that takes, by what it has taken so far. What cannot be had,
 * or is there already, is asked for again later and later: other memory may have come to its address.
 *
 * Memory that the program has excluded (MADV_NOHUGEPAGE, PR_SET_THP_DISABLE) is left alone, and all of it where the
 * system says "never". */
#ifndef COMM_EXEC_HUGE_PAGES_H
#define COMM_EXEC_HUGE_PAGES_H

#include <stddef.h>
#include <stdint.h>

enum {
    HUGE_PAGE_BYTES = 2 << 20,
    HUGE_PAGES_KNOWN = 1024,         /* memory for so many is observed: 2 GiB */
    HUGE_PAGES_LONG_BYTES = 4 << 20, /* shorter copies, which stay in the caches, gain little */
    HUGE_PAGES_MEASURED = -1
};

/* Memory for one huge page. */
struct huge_page {
    uintptr_t number;
    int64_t moved;   /* bytes since it was last asked for */
    int64_t farther; /* so many times as many as usual until it is asked for */
};

struct huge_pages {
    int64_t uses;     /* so often all of it is moved before it is asked for; MEASURED; 0: never */
    int64_t takes_ns; /* the kernel to make one, of late; 0: not known */
    struct huge_page known[HUGE_PAGES_KNOWN];
};

/* `uses` as above, but 0 where the system does not want huge pages, or has others. */
void huge_pages_choose(struct huge_pages *h, int64_t uses);

/* So many bytes of the program's memory are moved now. */
void huge_pages_moved(struct huge_pages *h, const void *memory, size_t bytes);

/* Ask for this memory, which begins and ends with a huge page. 0: the kernel has not done it. */
int huge_pages_make(void *memory, size_t bytes);

#endif

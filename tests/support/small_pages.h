/* Memory that consists of small pages, and how much of it has been made of huge ones. */
#ifndef COMM_TESTS_SMALL_PAGES_H
#define COMM_TESTS_SMALL_PAGES_H

#include <stddef.h>
#include <stdint.h>

enum { HUGE_BYTES = 2 << 20 };

/* Between two pages that make it a mapping of its own; `data` begins with a place for a huge page. */
struct memory {
    uint8_t *all, *data;
    size_t all_bytes, bytes;
};

/* Memory for so many huge pages, none of it touched; exits if there is none. */
struct memory memory_map(size_t pages);
void memory_unmap(struct memory *m);

/* Fill the first bytes with a pattern: small pages, also where the system makes huge ones unasked. */
void memory_fill(const struct memory *m, size_t bytes);
/* The first byte that is not what memory_fill wrote; `bytes`: there is none. */
size_t memory_changed(const struct memory *m, size_t bytes);

/* A number of /proc/self/smaps, in KiB. */
long memory_kib(const struct memory *m, const char *name);
long memory_huge_pages(const struct memory *m);

#endif

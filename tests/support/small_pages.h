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
/* The same, none of it to be touched yet. */
struct memory memory_reserve(size_t pages);
void memory_unmap(struct memory *m);

/* Does the system make huge pages of any memory, sooner or later? Then a test cannot say that there must be none. */
int memory_is_huge_unasked(void);
/* Does it make them for a program that asks? */
int memory_can_be_huge(void);

/* Set so many bytes, on small pages. */
void memory_set(void *data, uint8_t value, size_t bytes);
/* Fill the first bytes with a pattern, on small pages. */
void memory_fill(const struct memory *m, size_t bytes);
/* The first byte that is not what memory_fill wrote; `bytes`: there is none. */
size_t memory_changed(const struct memory *m, size_t bytes);

/* A number of /proc/self/smaps, in KiB. */
long memory_kib(const struct memory *m, const char *name);
long memory_huge_pages(const struct memory *m);

#endif

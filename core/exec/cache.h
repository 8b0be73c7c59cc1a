/* The last level of this machine's caches, and whether what an operation reads and writes stays there. */
#ifndef COMM_EXEC_CACHE_H
#define COMM_EXEC_CACHE_H

#include <stddef.h>
#include <stdint.h>

struct cache {
    size_t bytes;    /* that may be filled; 0: nothing stays there */
    int32_t sharers; /* of the ranks of this host so many share it */
    int is_far;      /* shorter blocks are written past it, too */
};

/* What the kernel says of the core that this thread is on. `bytes`: the size of the cache, instead; 0: the kernel's. */
void cache_choose(struct cache *c, size_t bytes, int32_t local_ranks);

/* Is a block of an operation better written past the caches? Each of `ranks` ranks reads and writes `touched` bytes for
 * it. Measured with 2 and 4 ranks and 32 MiB of cache: where all of it stays there, an operation whose copies go past
 * it takes 1.1 to 1.2 times as long, and where it does not, one whose copies do not. Short blocks are always written to
 * the caches. */
int cache_is_passed(const struct cache *c, size_t block_bytes, size_t touched, int32_t ranks);

/* How many numbers are in "0-3,8"? 0: that is no such text. */
int32_t cache_count_list(const char *text);

/* What a cache of so many bytes counts as; sets c->is_far. */
size_t cache_worth(struct cache *c, size_t bytes);

/* Bytes, of "32768K" or "32M". 0: that is no such text. */
size_t cache_read_size(const char *text);

#endif

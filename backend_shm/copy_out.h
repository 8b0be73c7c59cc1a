/* Copies to a ring: into memory that another rank's core has read and reads next.
 *
 * A core that writes such a line must first take it from the other core. Two cores with one last-level cache do that in
 * passing. Between two dies or sockets it takes 10 to 20 ns a line, whatever instruction writes it: 5 GB/s. Stores that
 * go past the caches do not take lines. They have 20 GB/s anywhere, but the reader then reads main memory, which is
 * slower than a cache nearby. Measured (written + read, us): two ranks that swap 2 MiB on one die of Zen 3 95 + 85
 * through the caches and 120 + 195 past them, on two dies 470 + 180 and 95 + 165; 2 MiB one way on one die of Zen 4
 * 180 + 50 and 60 + 110.
 *
 * Nobody tells which cores two ranks have, and on a virtual machine that changes. So now and then a copy is measured,
 * and now and then one goes the other way. Short copies mostly take the time until a line is there, and are measured
 * apart: that of long ones says nothing of them. In a message of many pieces that goes one way both ranks copy at a
 * time, and the slower copy counts: the reader measures its copies, too, and tells the writer. */
#ifndef COMM_SHM_COPY_OUT_H
#define COMM_SHM_COPY_OUT_H

#include <stddef.h>
#include <stdint.h>

enum { COPY_OUT_UNIT = 64 << 10 }; /* bytes that times of copies are of */

enum copy_out_way { COPY_OUT_MEASURED = -1, COPY_OUT_CACHED, COPY_OUT_PAST, COPY_OUT_WAYS };

/* What the reader does meanwhile: copies what it reads, reduces it, or copies it and sends as much itself. */
enum copy_out_reader { COPY_OUT_COPIER, COPY_OUT_REDUCER, COPY_OUT_SENDER, COPY_OUT_READERS };

/* What copies take, each way, of late. */
struct copy_out_times {
    uint64_t copies;
    int64_t cached_ns, past_ns; /* 0: not known */
    uint32_t seen[COPY_OUT_WAYS]; /* so many have been measured, of the first few */
};

/* Copies of less than 4 KiB, apart by whether the writer may have asked for all their lines: up to so many bytes. */
enum { COPY_OUT_BRIEFER = 2 << 10, COPY_OUT_BRIEFS = 2 };

/* To one rank. */
struct copy_out {
    enum copy_out_way way;      /* MEASURED: whichever is faster */
    uint64_t bytes;             /* that have gone to the ring; of short ones not all are counted */
    int lap_shift;              /* the ring holds 2^lap_shift bytes */
    uint32_t looks;             /* so many of the next copies are measured, every other one the other way */
    struct {
        uint32_t copies;        /* so many of the next ones go this way, unless one is ordered */
        enum copy_out_way way;
        int is_measured;
    } tries;
    int overlaps;               /* the next copies are pieces of a message that the reader copies at the same time */
    int reduces;                /* and reduces; or else reduces */
    struct copy_out_times times; /* that COPY_OUT_UNIT bytes take */
    struct copy_out_times brief[COPY_OUT_BRIEFS]; /* that a copy of 1 to 2 KiB takes, and one of up to 4 KiB */
    /* What the reader of long messages takes for them; it is not trusted. 0: not known; NULL: it does not tell. */
    const _Atomic uint32_t (*reader_ns)[COPY_OUT_WAYS];
    const int64_t *taken_ns;    /* [COPY_OUT_WAYS]: what this rank's own part as COPY_OUT_SENDER takes; or NULL */
};

/* A copy of so many bytes has taken so long. What COPY_OUT_UNIT bytes are then known to take is what fast copies do. */
void copy_out_note(int64_t *known_ns, int64_t ns, size_t bytes);

/* How often to try what is slower by what is known, after so many copies or messages: once in `least` of them, then
 * ever more seldom, at last once in `most`, lest tries are the 99th percentile of what an operation takes. Powers of
 * two. */
static inline uint64_t copy_out_tries_in(uint64_t seen, uint64_t least, uint64_t most)
{
    enum { SHARE = 4 };
    uint64_t in = seen / SHARE < least ? least : seen / SHARE < most ? seen / SHARE : most;
    return (uint64_t)1 << (63 - __builtin_clzll(in));
}

/* How often the ring has been filled. */
static inline uint64_t copy_out_lap(const struct copy_out *c)
{
    return c->bytes >> c->lap_shift;
}

/* The first copies take up to three times as long as later ones, for the caches hold nothing yet of what they touch: in
 * the first COLD_LAPS none is measured, and in the first NEW_LAPS no time is known. */
enum { COPY_OUT_COLD_LAPS = 4, COPY_OUT_NEW_LAPS = 8 };

static inline int copy_out_is_within(const struct copy_out *c, uint64_t laps)
{
    enum { LEAST_LAP_BYTES = 128 << 10 };
    return copy_out_lap(c) < laps || c->bytes < laps * LEAST_LAP_BYTES;
}

static inline int copy_out_is_new(const struct copy_out *c)
{
    return copy_out_is_within(c, COPY_OUT_NEW_LAPS);
}

/* Through the caches. */
void copy_cached(void *to, const void *from, size_t bytes);

/* Returns the way that it went. */
enum copy_out_way copy_out(struct copy_out *c, void *to, const void *from, size_t bytes);

/* Would so many bytes go past the caches? */
int copy_out_is_past(const struct copy_out *c, size_t bytes, int overlaps);

/* Has the reader told what its part takes where each rank copies what it sends and what it receives? */
int copy_out_is_told(const struct copy_out *c);

/* What a copy of so many bytes, 4 KiB or more, takes this rank for each COPY_OUT_UNIT, the way that it would go; 0: not
 * known. */
int64_t copy_out_write_ns(const struct copy_out *c, size_t bytes);

/* What COPY_OUT_UNIT bytes of a long message take, the faster way; 0: not known. If the copies overlap: the longer one;
 * else a rank's part where each copies what it sends and what it receives. */
int64_t copy_out_ns(const struct copy_out *c, int overlaps);

#endif

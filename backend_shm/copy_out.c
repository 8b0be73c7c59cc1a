#include "copy_out.h"

#include <stdatomic.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/clock.h"
#include "copy.h"

enum {
    LEAST_PAST = 1 << 10, /* shorter copies never go past the caches: what they write is there 300 ns later */
    LEAST_LONG = 4 << 10  /* shorter ones mostly take that time: they are measured apart, and not for each byte */
};

/* The processor asks for whole lines, without their old content, if it knows that all of a line is written. Where short
 * strings are fast, too (FSRM), it knows that of them; memcpy says so for lengths from 2 KiB on. */
static int has_fast_strings(void)
{
#ifdef __x86_64__
    enum { FEATURES = 7, FSRM = 1 << 4 };
    unsigned a, b, c, d;
    return __get_cpuid_count(FEATURES, 0, &a, &b, &c, &d) && (d & FSRM);
#else
    return 0;
#endif
}

void copy_cached(void *to, const void *from, size_t bytes)
{
#ifdef __x86_64__
    enum { UNKNOWN, FAST, SLOW };
    static atomic_int strings;
    const size_t few = 256;
    if (bytes >= few) {
        int are = atomic_load_explicit(&strings, memory_order_relaxed);
        if (are == UNKNOWN)
            atomic_store_explicit(&strings, are = has_fast_strings() ? FAST : SLOW, memory_order_relaxed);
        if (are == FAST) {
            __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
            return;
        }
    }
#endif
    memcpy(to, from, bytes);
}

static enum copy_out_way copy(void *to, const void *from, size_t bytes, int is_past)
{
    if (is_past)
        copy_part(to, from, bytes, 1);
    else
        copy_cached(to, from, bytes);
    return is_past ? COPY_OUT_PAST : COPY_OUT_CACHED;
}

/* A slow copy may have been interrupted, or have met cold memory. */
void copy_out_note(int64_t *known_ns, int64_t ns, size_t bytes)
{
    enum { SLOW_SHARE = 8, FAST_SHARE = 2, LONG = 2 };
    const int64_t least_ns = 64, most_ns = 1000000000;
    int64_t unit_ns = (ns < most_ns ? ns : most_ns) * COPY_OUT_UNIT / (int64_t)bytes;
    unit_ns = unit_ns < least_ns ? least_ns : unit_ns < most_ns ? unit_ns : most_ns;
    if (!*known_ns)
        *known_ns = unit_ns;
    if (unit_ns > LONG * *known_ns)
        unit_ns = LONG * *known_ns;
    *known_ns += (unit_ns - *known_ns) / (unit_ns < *known_ns ? FAST_SHARE : SLOW_SHARE);
}

/* What the reader of COPY_OUT_UNIT bytes pays more for them if they come from main memory, and some more, lest two ways
 * that take the same time take turns. */
enum { READ_NS = 5000, ASSUMED_NS = 2500 /* past the caches, until it is known */ };

/* The reader's copy past the caches is the longer one; through them the writer's is. */
static int64_t longer_ns(const struct copy_out *c, enum copy_out_way way)
{
    int64_t read_ns = READ_NS + c->times.past_ns / 8;
    return way == COPY_OUT_CACHED ? c->times.cached_ns : read_ns > c->times.past_ns ? read_ns : c->times.past_ns;
}

static int64_t writer_ns(const struct copy_out *c, enum copy_out_way way)
{
    return way == COPY_OUT_CACHED ? c->times.cached_ns : c->times.past_ns;
}

/* 0: it has not told. */
static int64_t reader_ns(const struct copy_out *c, enum copy_out_reader reader, enum copy_out_way way)
{
    return c->reader_ns ? atomic_load_explicit(&c->reader_ns[reader][way], memory_order_relaxed) : 0;
}

/* Both copy at a time: the longer copy is all that it takes, by what the reader has told. */
static int64_t overlapping_ns(const struct copy_out *c, enum copy_out_way way)
{
    int64_t write_ns = writer_ns(c, way);
    int64_t told_ns = reader_ns(c, c->reduces ? COPY_OUT_REDUCER : COPY_OUT_COPIER, way);
    return !told_ns ? longer_ns(c, way) : write_ns > told_ns ? write_ns : told_ns;
}

/* Each copies what it sends and what it receives. What that takes a rank that sends to this one it tells, if there are
 * messages of several pieces; until then it is assumed. */
static int64_t alternating_ns(const struct copy_out *c, enum copy_out_way way)
{
    int64_t told_ns = reader_ns(c, COPY_OUT_SENDER, way), own_ns = c->taken_ns ? c->taken_ns[way] : 0;
    if (told_ns && own_ns > told_ns)
        told_ns = own_ns;
    return told_ns ? writer_ns(c, way) + told_ns
           : way == COPY_OUT_CACHED ? c->times.cached_ns / 2 * 3 : longer_ns(c, way) / 2 * 5;
}

/* Both ways? Of messages that it reduces it does not tell. */
static int sender_has_told(const struct copy_out *c)
{
    return !c->reduces && reader_ns(c, COPY_OUT_SENDER, COPY_OUT_PAST) &&
           reader_ns(c, COPY_OUT_SENDER, COPY_OUT_CACHED);
}

/* One that is interrupted takes as long as hundreds, so one alone says nothing. */
static int brief_is_past(const struct copy_out_times *t, size_t bytes)
{
    enum { LEAST_CACHED = 16, LEAST_TRIES = 2 };
    const int64_t read_ns = READ_NS * (int64_t)bytes / COPY_OUT_UNIT;
    return t->seen[COPY_OUT_CACHED] >= LEAST_CACHED && t->seen[COPY_OUT_PAST] >= LEAST_TRIES &&
           t->cached_ns > t->past_ns + read_ns;
}

int copy_out_is_past(const struct copy_out *c, size_t bytes, int overlaps)
{
    enum { CLEARLY = 7, EIGHTHS = 8 };
    if (bytes < LEAST_PAST)
        return 0;
    if (c->way != COPY_OUT_MEASURED)
        return c->way == COPY_OUT_PAST;
    if (copy_out_is_new(c))
        return 0;
    if (bytes < LEAST_LONG)
        return brief_is_past(&c->brief[bytes > COPY_OUT_BRIEFER], bytes);
    int64_t past_ns = c->times.past_ns ? c->times.past_ns : ASSUMED_NS, read_ns = past_ns > READ_NS ? past_ns : READ_NS;
    int is_known = c->times.past_ns && c->times.cached_ns && (overlaps || sender_has_told(c));
    if (!is_known)
        return c->times.cached_ns > past_ns + read_ns;
    int64_t (*ns)(const struct copy_out *, enum copy_out_way) = overlaps ? overlapping_ns : alternating_ns;
    return ns(c, COPY_OUT_PAST) < ns(c, COPY_OUT_CACHED) / EIGHTHS * CLEARLY;
}

int64_t copy_out_write_ns(const struct copy_out *c, size_t bytes)
{
    return copy_out_is_new(c) ? 0 : writer_ns(c, copy_out_is_past(c, bytes, 0) ? COPY_OUT_PAST : COPY_OUT_CACHED);
}

int copy_out_is_told(const struct copy_out *c)
{
    int is_past = copy_out_is_past(c, COPY_OUT_UNIT, 0);
    return reader_ns(c, COPY_OUT_SENDER, is_past ? COPY_OUT_PAST : COPY_OUT_CACHED) != 0;
}

int64_t copy_out_ns(const struct copy_out *c, int overlaps)
{
    enum copy_out_way way = copy_out_is_past(c, COPY_OUT_UNIT, overlaps) ? COPY_OUT_PAST : COPY_OUT_CACHED;
    int is_known = way == COPY_OUT_PAST ? c->times.past_ns != 0 : c->times.cached_ns != 0;
    return !is_known || copy_out_is_new(c) ? 0 : overlaps ? overlapping_ns(c, way) : alternating_ns(c, way);
}

static struct copy_out_times *times_of(struct copy_out *c, size_t bytes)
{
    return bytes < LEAST_LONG ? &c->brief[bytes > COPY_OUT_BRIEFER] : &c->times;
}

static enum copy_out_way copy_measured(struct copy_out *c, void *to, const void *from, size_t bytes, int is_past)
{
    enum { ENOUGH = 1 << 10 };
    struct copy_out_times *t = times_of(c, bytes);
    int64_t began_ns = clock_now_ns();
    enum copy_out_way way = copy(to, from, bytes, is_past);
    copy_out_note(is_past ? &t->past_ns : &t->cached_ns, clock_now_ns() - began_ns,
                  bytes < LEAST_LONG ? COPY_OUT_UNIT : bytes);
    t->seen[way] += t->seen[way] < ENOUGH;
    return way;
}

/* Is it this copy's turn to go the other way, alone? Two copies of 32 do at first, and of 4096 at last. */
static int is_turn_of_other(uint64_t copies)
{
    enum { OFTEN_AT_FIRST = 32, SELDOM = 4096, TRIES = 2 };
    return copies % copy_out_tries_in(copies, OFTEN_AT_FIRST, SELDOM) < TRIES;
}

/* Through the caches, into lines that are in main memory: others take less, so only a short time says something. */
static enum copy_out_way copy_cold(struct copy_out *c, void *to, const void *from, size_t bytes)
{
    struct copy_out_times *t = times_of(c, bytes);
    const int64_t known_ns = t->cached_ns;
    copy_measured(c, to, from, bytes, 0);
    if (known_ns && known_ns < t->cached_ns)
        t->cached_ns = known_ns;
    return COPY_OUT_CACHED;
}

/* Where copies go past the caches: now and then all go through them for two laps. The second is measured, for into
 * lines that were written past the caches a lap before such a copy takes up to three times as long. Two copies go
 * through them more often: two cores that are near each other now are noticed sooner so. */
static enum copy_out_way copy_past(struct copy_out *c, void *to, const void *from, size_t bytes)
{
    enum { OFTEN_AT_FIRST = 64, SELDOM = 256, LAPS = 2, OFTEN = 8 };
    uint64_t copies = times_of(c, bytes)->copies++, lap = copy_out_lap(c);
    uint64_t turn = lap % copy_out_tries_in(lap, OFTEN_AT_FIRST, SELDOM);
    int is_try = c->way == COPY_OUT_MEASURED && turn < LAPS;
    if (c->way == COPY_OUT_MEASURED && !is_try && is_turn_of_other(copies))
        return copy_cold(c, to, from, bytes);
    int is_measured = copies % OFTEN == 0 && (!is_try || turn == LAPS - 1);
    return is_measured ? copy_measured(c, to, from, bytes, !is_try) : copy(to, from, bytes, !is_try);
}

static enum copy_out_way copy_tried(struct copy_out *c, void *to, const void *from, size_t bytes)
{
    int is_past = (c->way == COPY_OUT_MEASURED ? c->tries.way : c->way) == COPY_OUT_PAST;
    c->tries.copies--;
    return c->tries.is_measured ? copy_measured(c, to, from, bytes, is_past) : copy(to, from, bytes, is_past);
}

enum copy_out_way copy_out(struct copy_out *c, void *to, const void *from, size_t bytes)
{
    enum { OFTEN = 8 };
    if (bytes < LEAST_PAST)
        return copy(to, from, bytes, 0);
    c->bytes += bytes;
    if (c->tries.copies)
        return copy_tried(c, to, from, bytes);
    if (copy_out_is_past(c, bytes, c->overlaps))
        return copy_past(c, to, from, bytes);
    uint64_t copies = times_of(c, bytes)->copies++;
    int is_turn = is_turn_of_other(copies);
    if (copy_out_is_within(c, COPY_OUT_COLD_LAPS) || (!is_turn && copies % OFTEN && !c->looks))
        return copy(to, from, bytes, 0);
    int is_other = is_turn || (c->looks && copies % 2);
    c->looks -= c->looks > 0;
    return copy_measured(c, to, from, bytes, is_other && c->way == COPY_OUT_MEASURED);
}

#include "ring.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/clock.h"

void ring_open_out(struct ring_out *r, struct ring_shared *shared, uint8_t *lines, size_t bytes, uint64_t salt)
{
    uint64_t capacity = bytes / RING_LANES / RING_LINE;
    *r = (struct ring_out){ .shared = shared, .lines = lines, .capacity = capacity, .salt = salt };
    ring_aim_out(r);
}

void ring_open_in(struct ring_in *r, struct ring_shared *shared, const uint8_t *lines, size_t bytes, uint64_t salt)
{
    uint64_t capacity = bytes / RING_LANES / RING_LINE;
    *r = (struct ring_in){ .shared = shared, .lines = lines, .capacity = capacity, .salt = salt };
    r->short_bytes = ring_holds(r, RING_TAKEN) ? RING_TAKEN : (uint32_t)(capacity - 2) * RING_LINE;
    ring_aim_in(r);
}

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

static void copy_to_lines(void *to, const void *from, size_t bytes)
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

/* The time of a copy now and then. What a copy costs is what the fast ones take: a slow one may have been interrupted,
 * or have met cold memory. */
static void measure_copy(struct ring_out *r, int64_t ns, size_t bytes)
{
    enum { SLOW_SHARE = 16, FAST_SHARE = 2, LONG = 4 };
    int64_t unit_ns = ns * RING_COPY_UNIT / (int64_t)bytes;
    if (!r->copy_ns)
        r->copy_ns = unit_ns;
    if (unit_ns > LONG * r->copy_ns)
        unit_ns = LONG * r->copy_ns;
    r->copy_ns += (unit_ns - r->copy_ns) / (unit_ns < r->copy_ns ? FAST_SHARE : SLOW_SHARE);
}

void ring_copy(struct ring_out *r, void *to, const void *from, size_t bytes)
{
    enum { MEASURED_BYTES = 8 << 10, OFTEN = 8 };
    if (bytes <= r->taken) {
        memcpy(to, from, bytes);
        return;
    }
    if (bytes < MEASURED_BYTES || r->copies++ % OFTEN) {
        copy_to_lines(to, from, bytes);
        return;
    }
    int64_t began_ns = clock_now_ns();
    copy_to_lines(to, from, bytes);
    measure_copy(r, clock_now_ns() - began_ns, bytes);
}

void ring_take_payload(struct ring_out *r, uint32_t bytes)
{
    const uint8_t *line = (const uint8_t *)(r->next + 1);
    for (uint64_t lines = ring_payload_lines(bytes); lines > 0; lines--, line += RING_LINE)
        ring_take_line(line);
    r->taken = bytes;
}

void ring_put_frame(struct ring_out *r, uint64_t key, const struct frame *h, const void *payload, uint32_t bytes)
{
    struct ring_record *record = ring_begin_frame(r, key, h->credit, bytes);
    record->frame = *h;
    ring_end_frame(r, record, payload, bytes);
}

void ring_put_lent(struct ring_out *r, uint64_t key, const struct frame *h, const struct ring_place *place)
{
    struct ring_record *record = r->next;
    record->key = key;
    record->credit = h->credit;
    record->bytes = 0;
    record->place = *place;
    record->frame = *h;
    ring_publish(r, 0, ring_frame_lines(0));
}

void ring_put_more(struct ring_out *r, const void *payload, uint32_t bytes)
{
    struct ring_record *record = r->next;
    record->bytes = bytes;
    ring_copy(r, (uint8_t *)record + RING_LINE, payload, bytes);
    ring_publish(r, 1, 1 + ring_payload_lines(bytes));
}

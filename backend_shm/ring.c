#include "ring.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

/* Intel's do. A core takes lines by stores in their order, and waits for some at a time; those that it has asked for
 * come at the same time. Swaps of 2 KiB take 0.56 us so on Emerald Rapids, and else 0.75. */
int ring_brings_lines(void)
{
#ifdef __x86_64__
    unsigned most, b, c, d;
    return __get_cpuid(0, &most, &b, &c, &d) && b == signature_INTEL_ebx && c == signature_INTEL_ecx &&
           d == signature_INTEL_edx;
#else
    return 0;
#endif
}

static void begin_at(uint64_t *positions, uint64_t first)
{
    for (unsigned lane = 0; lane < RING_LANES; lane++)
        positions[lane] = first + lane * RING_APART;
}

void ring_open_out(struct ring_out *r, struct ring_shared *shared, uint8_t *lines, size_t bytes, uint64_t salt,
                   uint64_t first)
{
    uint64_t capacity = bytes / RING_LANES / RING_LINE;
    *r = (struct ring_out){ .shared = shared, .lines = lines, .capacity = capacity, .salt = salt };
    r->copy.reader_ns = shared->take_ns;
    r->copy.lap_shift = 63 - __builtin_clzll(bytes);
    r->brings_lines = ring_brings_lines();
    begin_at(r->tail, first);
    begin_at(r->seen_head, first);
    for (unsigned lane = 0; lane < RING_LANES; lane++) /* it has read nothing yet */
        atomic_store_explicit(&shared->head[lane], r->seen_head[lane], memory_order_relaxed);
    ring_aim_out(r);
}

void ring_open_in(struct ring_in *r, struct ring_shared *shared, const uint8_t *lines, size_t bytes, uint64_t salt,
                  uint64_t first)
{
    uint64_t capacity = bytes / RING_LANES / RING_LINE;
    *r = (struct ring_in){ .shared = shared, .lines = lines, .capacity = capacity, .salt = salt };
    r->short_bytes = ring_holds(r, RING_TAKEN) ? RING_TAKEN : (uint32_t)(capacity - 2) * RING_LINE;
    begin_at(r->head, first);
    ring_aim_in(r);
}

void ring_keep(struct ring_in *r, const uint64_t *from)
{
    r->keeps = from != NULL;
    for (unsigned lane = 0; lane < RING_LANES; lane++)
        atomic_store_explicit(&r->shared->head[lane], from ? from[lane] : r->head[lane], memory_order_release);
}

/* Records go to the lanes in turn, so each lane is looked at before the next one goes to it. */
int ring_keeps_much(const struct ring_in *r)
{
    const size_t piece = ring_piece_bytes(r->capacity), longest = piece > RING_TAKEN ? piece : RING_TAKEN;
    const uint64_t lines = ring_frame_lines((uint32_t)longest), half = r->capacity / 2;
    const uint64_t left = lines < half ? lines : half;
    for (unsigned lane = 0; lane < RING_LANES; lane++)
        if (r->head[lane] - atomic_load_explicit(&r->shared->head[lane], memory_order_relaxed) > r->capacity - left)
            return 1;
    return 0;
}

enum copy_out_way ring_copy(struct ring_out *r, void *to, const void *from, size_t bytes)
{
    if (bytes > r->unmeasured)
        return copy_out(&r->copy, to, from, bytes);
    r->copy.bytes += bytes;
    size_t taken = bytes < r->taken ? bytes : r->taken;
    memcpy(to, from, taken);
    if (bytes > taken)
        copy_cached((uint8_t *)to + taken, (const uint8_t *)from + taken, bytes - taken);
    return COPY_OUT_CACHED;
}

/* Where two ranks send short messages in turn, taken lines are the faster way, whatever copies into others take: what
 * is written past the caches is there 300 ns later, and nothing else happens meanwhile: 8 KiB take 2.0 us so on two
 * dies of Zen 3, and else 2.6; 12 KiB 3.9 and 3.2. Where both send at a time a rank waits less long: the lines of 2 KiB
 * come meanwhile (1 KiB: 1.1 us, past the caches 1.35), and a string instruction takes more of the others at a time
 * than stores to each of them. Two ranks that swap 8 KiB take 0.41 us so near each other and 1.1 us far from each
 * other; with all lines taken beforehand 0.46 and 1.7 us. */
void ring_take_payload(struct ring_out *r, uint32_t bytes, enum ring_waits waits)
{
    enum { MEASURED_BYTES = 1 << 10, IN_TURN_BYTES = 8 << 10, BOTH_BYTES = 2 << 10 };
    enum { OFTEN_AT_FIRST = 8, SELDOM = 256 };
    const uint32_t most = waits == RING_WAITS_IN_TURN ? IN_TURN_BYTES : waits == RING_WAITS_BOTH ? BOTH_BYTES : 0;
    int always = bytes <= most && r->copy.way == COPY_OUT_MEASURED;
    if (!always && copy_out_is_past(&r->copy, bytes, 0))
        return;
    uint64_t sent = r->sent;
    int is_measured = !always && bytes >= MEASURED_BYTES;
    r->sent += is_measured;
    if (is_measured && sent % copy_out_tries_in(sent, OFTEN_AT_FIRST, SELDOM) == 0) {
        r->copy.looks += r->copy.looks == 0;
        return;
    }
    const uint32_t taken = waits == RING_WAITS_BOTH && bytes > BOTH_BYTES ? BOTH_BYTES : bytes;
    struct ring_record *const next = r->next; /* here, as the compiler reads what it points to after each store */
    if (waits == RING_WAITS_BOTH && r->brings_lines)
        ring_ask_for((const uint8_t *)(next + 1), ring_payload_lines(bytes));
    for (uint64_t i = 2; waits && i < 2 + ring_payload_lines(taken); i++)
        ring_take_line(next, i);
    r->unmeasured = bytes;
    r->taken = taken;
}

void ring_take_ahead(struct ring_out *r)
{
    const uint64_t lines = ring_frame_lines(0) * RING_AHEAD;
    for (unsigned lane = 0; lane < RING_LANES; lane++) {
        if (r->capacity - (r->tail[lane] - r->seen_head[lane]) < lines)
            return;
        struct ring_record *next = (struct ring_record *)(r->lines + ring_offset(r->capacity, lane, r->tail[lane]));
        for (uint64_t i = 0; i < lines; i++)
            ring_take_line(next, i);
    }
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
    record->credit = (uint32_t)ring_copy(r, (uint8_t *)record + RING_LINE, payload, bytes);
    ring_publish(r, 1, 1 + ring_payload_lines(bytes));
}

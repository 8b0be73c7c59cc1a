/* A ring carries records in one direction between two ranks, through memory that both have mapped. One rank writes,
 * the other reads; neither ever holds anything that the other waits for, but payloads that are kept as long as that
 * leaves space (keep.h).
 *
 * The memory is cut into lines of 64 bytes and mapped twice in a row, so that no record has to be cut at its end. A
 * record begins with a stamp, which is written last: a reader that sees the stamp sees the whole record, and need read
 * no other word. A stamp is made of the record's position, which never repeats, and of a random number, so that what is
 * left of an earlier lap is never taken for one.
 *
 * A ring has two lanes, and records go to each of them in turn. For the reader's core asks for more lines near those
 * that it reads. In one lane they were those of the next record, and the writer's core had to take them back: a fifth
 * of the time of 1 KiB. Now they are those of the record after that one, for which there is time.
 *
 * Lanes that are used together begin at different lines of a page. Lines whose addresses end in the same 12 bits fall
 * into one set of a core's first cache. On Zen 4 two cores that swap lines take 66 ns where the four lanes of two rings
 * begin apart, and 81 where they begin at the same line.
 *
 * The other rank is not trusted: what it wrote is copied before it is checked, and checked before it is used. */
#ifndef COMM_SHM_RING_H
#define COMM_SHM_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <comm/comm.h>

#include "base/likely.h"
#include "copy_out.h"
#include "frame.h"

enum {
    RING_LINE = 64,
    RING_WAYS = 64,
    RING_LANES = 2,     /* of a ring, which takes records in turn: see above */
    RING_APART = 16,    /* lines between the beginnings of lanes that are used together */
    RING_INLINE = 40,   /* payloads up to this size lie in the record's first line */
    RING_LOANS = 16,    /* payloads that may be lent at a time: lend.h */
    RING_PARTS = 16,    /* of a message that both copy, at most: split.h */
    RING_BACK_SIZES = 16, /* of operations whose results are written back: write_back.c */
    RING_AHEAD = 8,     /* records of a lane whose lines are taken at a time: ring_take_ahead */
    RING_ASKED = COPY_OUT_BRIEFER, /* longest payload in a stream for whose lines the writer asks a record earlier */
    RING_TAKEN = 16 << 10, /* longest payload that is sent at once, in one record */
    RING_PIECE = 32 << 10, /* payload in a record of a longer one: the reader works on one while the next is written */
};

#define RING_BACK_BY_KERNEL UINT32_MAX /* back_region: ring_shared.back_to says where */
#define RING_MAP_REFUSED 1u
#define RING_MAP_ONE 2u
#define LOAN_WRITTEN 0x80000000u
#define LOAN_CLAIMED 0x40000000u /* numbers of loans are less */

/* Where a lent payload lies, and where the receiver's result may be written back. */
struct ring_place {
    uint32_t slot, loan;
    uint64_t at;          /* in the region; else an address in the sender's process */
    uint32_t region;      /* 0: none, the kernel reads it for us */
    uint32_t back_region; /* 0: it is not written back */
    uint64_t back_at;
};

/* How a record begins. A short payload is inline, so that a small message is one line to its reader; the second line,
 * with the whole header, is for a reader that does not know yet which message comes. Else the payload follows; or it is
 * lent, and the record of the frame (DATA, RTS or EAGER) has its place instead. */
struct ring_record {
    _Alignas(RING_LINE) _Atomic uint64_t stamp;
    uint64_t key;       /* of the header: ring_key */
    uint32_t credit;    /* the header's; in a record that only goes on with a payload, the way that it was copied */
    uint32_t bytes;     /* of payload in this record */
    union {
        uint8_t inlined[RING_INLINE];
        struct ring_place place;
    };
    struct frame frame; /* the second line; a record that only goes on with a payload has none */
};

_Static_assert(sizeof(struct ring_record) == 2 * RING_LINE, "a record begins with two lines");

/* As struct iovec. */
struct ring_part {
    _Atomic uintptr_t at;
    _Atomic size_t bytes;
};

/* What the two ranks tell each other about a ring, each word on a line of its own. */
struct ring_shared {
    _Alignas(RING_LINE) _Atomic uint64_t head[RING_LANES]; /* by the reader: all before has been read, and need
                                                            * not stay; at first by the writer */
    _Alignas(RING_LINE) _Atomic uint32_t waits;  /* by the writer: it has more than there was space for */
    _Atomic uint32_t core; /* by the writer, where it yields its core: the number, from 1, of the one that it sent from
                            * last; 0: not known */
    _Atomic uint32_t awaits_credit; /* by the writer, and cleared by the reader: it has waited for room */
    _Alignas(RING_LINE) _Atomic uint32_t asleep; /* by the reader: no thread looks, so ring its bell */
    _Atomic uint32_t is_barred; /* by the reader: between saying that it sleeps and its last look all ranks' threads
                                 * pass a barrier; and once more when this ends */
    /* By the writer, once: a word of its memory, for the reader to try whether it can read that; and by the reader,
     * that it can. */
    _Alignas(RING_LINE) _Atomic uint64_t probe_at;
    uint64_t probe_word;
    _Atomic uint32_t can_read;
    _Atomic uint32_t map_answer; /* by the reader: RING_MAP_ONE for each of the writer's regions that it has been told
                                  * of, and RING_MAP_REFUSED if it has not mapped the latest of them (region.c) */
    /* By the reader: how long it takes to read COPY_OUT_UNIT bytes of the writer's memory through the kernel, of late;
     * 0: not known. First in operations in which both send, then in those that go one way: what is sent so has often
     * just been received, and lies in the sender's caches; then in messages that both copy. */
    _Atomic uint32_t read_ns[3];
    /* By the reader: how long it takes to copy COPY_OUT_UNIT bytes from the ring, or to reduce them, in messages of
     * many pieces, by the way that the writer's copy went; 0: not known. */
    _Atomic uint32_t take_ns[COPY_OUT_READERS][COPY_OUT_WAYS];
    /* By the writer, in the ring of the lower rank: the way of messages that both send, by the power of two that is
     * their size (lend.c). */
    _Alignas(RING_LINE) _Atomic uint8_t ways[RING_WAYS];
    /* By the reader: how long it takes to copy COPY_OUT_UNIT bytes out of records of eager messages; 0: not known. */
    _Atomic uint32_t record_ns;
    /* By the writer: the number of the loan in that slot, 0: none. By the reader: that it has claimed it. */
    _Alignas(RING_LINE) _Atomic uint32_t valid[RING_LOANS];
    /* By the reader: the loan that it has read, with LOAN_WRITTEN if its result has been written back. */
    _Alignas(RING_LINE) _Atomic uint32_t taken[RING_LOANS];
    /* By the reader: the loan for which it is writing its result back. */
    _Alignas(RING_LINE) _Atomic uint32_t writing[RING_LOANS];
    /* Of a message that both copy (split.c). By both: its loan, and how many parts each has taken; 0: there is none. By
     * the writer: the loan of which it will take parts, by which thread, and how many it has written. By the reader:
     * where they belong in its memory, as the kernel takes it. */
    _Alignas(RING_LINE) _Atomic uint64_t parts;
    _Alignas(RING_LINE) _Atomic uint64_t written;
    _Atomic uint32_t splits;
    _Atomic int32_t writer;
    _Alignas(RING_LINE) struct ring_part part_to[RING_PARTS];
    /* Of results that the reader writes by the kernel (write_back.c). By the writer: where that of the loan in a slot
     * belongs in its memory, as the kernel takes it; and, in the ring of the lower rank, the way of results, by the
     * size of the operation. By the reader: whether it can write there at all (split.c, too), and which thread does. */
    _Alignas(RING_LINE) struct ring_part back_to[RING_LOANS];
    _Alignas(RING_LINE) _Atomic uint8_t back_ways[RING_BACK_SIZES];
    _Atomic uint32_t can_write;
    _Atomic int32_t back_writer;
};

/* The writer's end. Positions count a lane's lines, from where the lane began. */
struct ring_out {
    struct ring_shared *shared;
    uint8_t *lines;     /* of the first lane, twice, and of the second, twice */
    uint64_t capacity;  /* lines of a lane, a power of two */
    uint64_t salt;
    struct ring_record *next; /* what is written next */
    uint64_t next_stamp;
    unsigned lane;      /* of it */
    uint32_t unmeasured; /* so many bytes of payload are copied without being measured: ring_take_payload */
    uint32_t taken;      /* to lines of which so many bytes' are taken */
    int brings_lines;    /* this processor brings a line that it is asked for: ring_ask_for_lines */
    uint64_t tail[RING_LANES], seen_head[RING_LANES];
    uint32_t sent;       /* payloads that were announced by ring_take_payload */
    struct copy_out copy;
};

/* The reader's end. */
struct ring_in {
    struct ring_shared *shared;
    const uint8_t *lines;
    uint64_t capacity;
    uint64_t salt;
    const struct ring_record *next; /* what is read next */
    uint64_t next_stamp;
    uint16_t lane;
    uint16_t keeps;       /* what is read stays, and the writer is not told of it */
    uint32_t short_bytes; /* longest payload that is read at once: RING_TAKEN, or what the ring holds */
    uint64_t head[RING_LANES];
};

/* `first`: the line where the ring's first lane begins; both ends say the same. */
void ring_open_out(struct ring_out *r, struct ring_shared *shared, uint8_t *lines, size_t bytes, uint64_t salt,
                   uint64_t first);
void ring_open_in(struct ring_in *r, struct ring_shared *shared, const uint8_t *lines, size_t bytes, uint64_t salt,
                  uint64_t first);

static inline unsigned ring_lane_behind(unsigned lane)
{
    return (lane + 1) % RING_LANES;
}

/* Of the record at that position of the lane. */
static inline size_t ring_offset(uint64_t capacity, unsigned lane, uint64_t position)
{
    return (2 * capacity * lane + (position & (capacity - 1))) * RING_LINE;
}

static inline uint64_t ring_stamp(uint64_t salt, uint64_t position)
{
    return salt + 2 * position;
}

/* What a reader that knows which message comes compares, instead of the whole header: a hash. This is the part of it
 * that is the same whenever an op comes again. */
struct ring_key_base {
    uint64_t whose, what;
};

static const uint64_t ring_key_odd = 0x9e3779b97f4a7c15u;

static inline struct ring_key_base ring_key_base(const struct frame *h)
{
    return (struct ring_key_base){
        h->group ^ h->signature * ring_key_odd,
        h->bytes ^ (uint64_t)h->slice << 32 ^ (uint64_t)h->round << 24 ^ (uint64_t)h->kind << 56 ^
            (uint64_t)h->type << 48,
    };
}

static inline uint64_t ring_key_of(struct ring_key_base base, uint64_t seq)
{
    uint64_t key = base.whose + seq;
    key = (key ^ key >> 29) * ring_key_odd;
    return (key ^ base.what) * ring_key_odd;
}

/* A receive knows a message by its tag, not by the sender's count. */
static inline uint64_t ring_key(const struct frame *h)
{
    return ring_key_of(ring_key_base(h), h->kind == COMM_OP_SEND ? (uint32_t)h->tag : h->seq);
}

/* Between "I sleep" and a last look, and between a record and the look whether its reader sleeps. ThreadSanitizer knows
 * no fences; an exchange is one as well, but slower. */
static inline void ring_fence(void)
{
#ifdef __SANITIZE_THREAD__
    static _Atomic int any;
    atomic_exchange(&any, 0);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* ---- Writing ---- */

/* How many lines of the lane are free, of `wanted` or more; reads the other's word only if it must. -1: that makes no
 * sense. */
static inline int64_t ring_free_in(struct ring_out *r, unsigned lane, uint64_t wanted)
{
    uint64_t tail = r->tail[lane], used = tail - r->seen_head[lane];
    if (LIKELY(r->capacity - used >= wanted))
        return (int64_t)(r->capacity - used);
    uint64_t head = atomic_load_explicit(&r->shared->head[lane], memory_order_acquire);
    used = tail - head;
    if (used > tail - r->seen_head[lane])
        return -1;
    r->seen_head[lane] = head;
    return (int64_t)(r->capacity - used);
}

/* For the next record. */
static inline int64_t ring_free(struct ring_out *r, uint64_t wanted)
{
    return ring_free_in(r, r->lane, wanted);
}

/* Lines, in all lanes. */
static inline uint64_t ring_written(const struct ring_out *r)
{
    return r->tail[0] + r->tail[1];
}

static inline uint64_t ring_payload_lines(uint32_t bytes)
{
    return ((uint64_t)bytes + RING_LINE - 1) / RING_LINE;
}

static inline uint64_t ring_frame_lines(uint32_t bytes)
{
    return 2 + (bytes > RING_INLINE ? ring_payload_lines(bytes) : 0);
}

/* So many pieces fill all lanes, which have so many lines each. */
static inline uint64_t ring_pieces(uint64_t capacity)
{
    return RING_LANES * capacity / (RING_PIECE / RING_LINE);
}

/* Longer payloads than RING_TAKEN go out in records of so much. */
static inline size_t ring_piece_bytes(uint64_t capacity)
{
    enum { SHARE = 4 };
    size_t share = (size_t)capacity * RING_LINE / SHARE;
    return share < RING_PIECE ? share : RING_PIECE;
}

/* What is written next is known beforehand: a thread that has written waits. */
static inline void ring_aim_out(struct ring_out *r)
{
    r->next = (struct ring_record *)(r->lines + ring_offset(r->capacity, r->lane, r->tail[r->lane]));
    r->next_stamp = ring_stamp(r->salt, r->tail[r->lane]);
}

/* The reader may have it. `more`: it goes on with a payload. */
static inline void ring_publish(struct ring_out *r, int more, uint64_t lines)
{
    atomic_store_explicit(&r->next->stamp, r->next_stamp + (more != 0), memory_order_release);
    r->unmeasured = 0;
    r->tail[r->lane] += lines;
    r->lane = ring_lane_behind(r->lane);
    ring_aim_out(r);
}

/* A record in two steps, for what is done at once; between them its header is written, field by field where it is new:
 * a header that has just been written elsewhere in parts is read as a whole only after a stall. There is space. */
static inline struct ring_record *ring_begin_frame(struct ring_out *r, uint64_t key, uint32_t credit, uint32_t bytes)
{
    struct ring_record *record = r->next;
    record->key = key;
    record->credit = credit;
    record->bytes = bytes;
    record->place.loan = 0; /* where an inlined payload comes next */
    return record;
}

/* Into lines that the other core has read. Returns the way. */
enum copy_out_way ring_copy(struct ring_out *r, void *to, const void *from, size_t bytes);

static inline void ring_end_frame(struct ring_out *r, struct ring_record *record, const void *payload, uint32_t bytes)
{
    if (bytes > RING_INLINE)
        ring_copy(r, record + 1, payload, bytes);
    else if (bytes)
        memcpy(record->inlined, payload, bytes);
    ring_publish(r, 0, ring_frame_lines(bytes));
}

/* Does this processor bring lines that it is asked for? */
int ring_brings_lines(void);

/* To take a line is to get it into this core's cache for writing, and so out of the other core's. This asks for lines.
 * Zen 4 does nothing for a line that is not in the core's first cache. */
static inline void ring_ask_for(const uint8_t *first, uint64_t lines)
{
    for (const uint8_t *line = first; line < first + lines * RING_LINE; line += RING_LINE) {
#ifdef __x86_64__
        __asm__ volatile("prefetchw %0" : : "m"(*line)); /* __builtin_prefetch leaves it with both */
#else
        __builtin_prefetch(line, 1);
#endif
    }
}

/* The first lines of a record. */
static inline void ring_ask_for_lines(const struct ring_record *record, uint64_t lines)
{
    ring_ask_for((const uint8_t *)record, lines);
}

/* This takes a line of the next record, by writing to it. The line is free, and its last byte is never part of a
 * stamp, which is all that a reader looks at in a free line. */
static inline void ring_take_line(struct ring_record *record, uint64_t number)
{
    ((volatile uint8_t *)record)[number * RING_LINE + RING_LINE - 1] = 0;
}

/* Does a thread that has sent a message wait for one now? NO; for one that the peer sends at the same time; or the two
 * send in turn. */
enum ring_waits { RING_WAITS_NO, RING_WAITS_BOTH, RING_WAITS_IN_TURN };

void ring_take_payload(struct ring_out *r, uint32_t bytes, enum ring_waits waits);
/* The lines of the short records that come next, in all lanes. */
void ring_take_ahead(struct ring_out *r);

/* Take the lines of the next record, if it is as long. The header's second one, too: a store that waits for its line
 * holds up those behind it. `waits`: this thread waits for an answer now. One that goes on at once would only wait for
 * these lines earlier. It asks for them: between two dies a stream of 512 B takes 120 ns a message so, and else 190.
 * Those of longer payloads are more than a core asks for at a time. Lines of several of the shortest records are taken
 * at a time. */
static inline void ring_take_next(struct ring_out *r, uint32_t bytes, enum ring_waits waits)
{
    int64_t lines = (int64_t)ring_frame_lines(bytes);
    if (waits && ring_free(r, (uint64_t)lines) < lines)
        waits = RING_WAITS_NO;
    if (waits) {
        ring_take_line(r->next, 0);
        ring_take_line(r->next, 1);
    } else if (bytes > RING_INLINE) {
        ring_ask_for_lines(r->next, bytes <= RING_ASKED ? (uint64_t)lines : 2);
    } else if (r->lane == 0 && r->tail[0] % (2 * RING_AHEAD) < 2) {
        ring_take_ahead(r);
    }
    if (bytes > RING_INLINE && bytes <= RING_TAKEN)
        ring_take_payload(r, bytes, waits);
}

/* A header, and the first `bytes` of its payload. */
void ring_put_frame(struct ring_out *r, uint64_t key, const struct frame *h, const void *payload, uint32_t bytes);
/* A header whose payload is lent. */
void ring_put_lent(struct ring_out *r, uint64_t key, const struct frame *h, const struct ring_place *place);
/* More of the payload. */
void ring_put_more(struct ring_out *r, const void *payload, uint32_t bytes);

/* ---- Reading ---- */

enum ring_found { RING_NOTHING, RING_FRAME, RING_MORE };

/* Is there a record? Looks when `zero`, which is 0, is known. */
static inline enum ring_found ring_look_after(const struct ring_in *r, uint64_t zero,
                                              const struct ring_record **ret_record)
{
    const struct ring_record *record = r->next + zero;
    uint64_t what = atomic_load_explicit(&record->stamp, memory_order_acquire) - r->next_stamp;
    *ret_record = record;
    return what == 0 ? RING_FRAME : what == 1 ? RING_MORE : RING_NOTHING;
}

static inline enum ring_found ring_look(const struct ring_in *r, const struct ring_record **ret_record)
{
    return ring_look_after(r, 0, ret_record);
}

/* The header of a record. The other rank may change it at any time, so it is copied, once, before it is looked at. */
static inline struct frame ring_frame(const struct ring_record *record)
{
    struct frame h = record->frame;
    atomic_signal_fence(memory_order_seq_cst);
    return h;
}

static inline struct ring_place ring_place(const struct ring_record *record)
{
    struct ring_place place = record->place;
    atomic_signal_fence(memory_order_seq_cst);
    return place;
}

/* Where the payload of a record lies. */
static inline const uint8_t *ring_payload(const struct ring_record *record, enum ring_found what, uint32_t bytes)
{
    if (what == RING_MORE)
        return (const uint8_t *)record + RING_LINE;
    return bytes > RING_INLINE ? (const uint8_t *)(record + 1) : record->inlined;
}

/* Can a payload of so many bytes lie there? */
static inline int ring_holds(const struct ring_in *r, uint32_t bytes)
{
    return ring_frame_lines(bytes) <= r->capacity;
}

static inline void ring_aim_in(struct ring_in *r)
{
    r->next = (const struct ring_record *)(r->lines + ring_offset(r->capacity, r->lane, r->head[r->lane]));
    r->next_stamp = ring_stamp(r->salt, r->head[r->lane]);
}

/* Lines, in all lanes. */
static inline uint64_t ring_lines_read(const struct ring_in *r)
{
    return r->head[0] + r->head[1];
}

/* What is read stays in the ring from there on (positions of head, no less than those before); NULL: nothing does any
 * more. The writer may run out of space, and must be looked after when it gets some. */
void ring_keep(struct ring_in *r, const uint64_t *from);
/* While something stays: has a lane less space left than a piece takes, or than half of a short lane? */
int ring_keeps_much(const struct ring_in *r);

/* The record, of so many lines, has been read. Returns 1 when, every quarter of a lane, the writer must be looked
 * after: it may wait for space. Not while something stays: ring_keep is followed by that look. */
static inline int ring_pop(struct ring_in *r, uint64_t lines)
{
    uint64_t before = r->head[r->lane], after = before + lines, quarter = r->capacity / 4;
    r->head[r->lane] = after;
    if (LIKELY(!r->keeps))
        atomic_store_explicit(&r->shared->head[r->lane], after, memory_order_release);
    r->lane = (uint16_t)ring_lane_behind(r->lane);
    ring_aim_in(r);
    return (before ^ after) >= quarter && LIKELY(!r->keeps); /* a power of two */
}

#endif

#include "split.h"

#include <errno.h>
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/likely.h"
#include "events.h"
#include "ring.h"
#include "writer.h"

enum {
    PAIR_BYTES = 256 << 10, /* of two parts: with 64K two cores take a tenth longer, with 32K a third */
    PAGE_BYTES = 4 << 10,
    PATIENCE_NS = 200000,   /* that long the sender may take after the receiver's last part */
};

/* ---- Parts ---- */

/* As many for each rank, and never more than there is a list for. */
static size_t part_bytes(size_t bytes)
{
    size_t parts = (bytes + PAIR_BYTES - 1) / PAIR_BYTES * 2;
    parts = parts < RING_PARTS ? parts : RING_PARTS;
    return ((bytes + parts - 1) / parts + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
}

static uint32_t part_count(size_t bytes)
{
    return (uint32_t)((bytes + part_bytes(bytes) - 1) / part_bytes(bytes));
}

static struct iovec part_of(const void *base, size_t bytes, uint32_t part)
{
    size_t each = part_bytes(bytes), at = part * each;
    return (struct iovec){ (uint8_t *)base + at, bytes - at < each ? bytes - at : each };
}

/* In `parts`: how many the receiver has taken, and the sender. In `written`: how many of its own the sender has
 * written; FAILED: it has not written the one after those, and writes no more. */
enum { TAKEN_ONE = 1 << 16, COUNT_MASK = 0xffff, FAILED = 1 << 15 };

static uint64_t word_of(uint32_t loan, uint32_t counts)
{
    return (uint64_t)loan << 32 | counts;
}

/* Take one, from that end; the number of parts: there is none left. */
static uint32_t take_part(_Atomic uint64_t *parts, uint32_t loan, uint32_t count, int from_end)
{
    uint64_t word = atomic_load_explicit(parts, memory_order_acquire);
    for (;;) {
        uint32_t first = (uint32_t)word >> 16, last = (uint32_t)word & COUNT_MASK;
        if (word >> 32 != loan || first + last >= count)
            return count;
        if (atomic_compare_exchange_weak(parts, &word, word + (from_end ? 1 : TAKEN_ONE)))
            return from_end ? count - 1 - last : first;
    }
}

/* Where ranks share cores it takes a turn of each. */
static int has_core(const struct fabric *f)
{
    return waiting_spins(f->looks.waiting) || !f->cma_measured;
}

/* ---- The sender ---- */

int split_suits(const struct duplex *p, size_t bytes)
{
    return bytes >= SPLIT_LEAST && bytes <= SPLIT_MOST && p->port.state == PORT_UP && lend_can_write(p) &&
           has_core(p->fabric);
}

void split_offer(struct duplex *p, const struct loan *l)
{
    struct ring_shared *shared = p->out.shared;
    atomic_store_explicit(&shared->written, word_of(l->place.loan, 0), memory_order_release);
    atomic_store_explicit(&shared->writer, (int32_t)gettid(), memory_order_relaxed);
    atomic_store_explicit(&shared->splits, l->place.loan, memory_order_relaxed);
}

/* No more than there are, whatever the peer does to the word; and none after one that was not written: the receiver
 * reads that and the next ones. */
void split_write(struct duplex *p, struct loan *l)
{
    struct ring_shared *shared = p->out.shared;
    const uint32_t loan = l->place.loan, count = part_count(l->bytes);
    if (atomic_load_explicit(&shared->parts, memory_order_relaxed) >> 32 != loan)
        return;
    for (uint32_t i = 0; i < count && l->splits; i++) {
        uint32_t part = take_part(&shared->parts, loan, count, 1);
        if (part >= count)
            return;
        uint32_t before = (uint32_t)atomic_load_explicit(&shared->written, memory_order_relaxed);
        const struct iovec from = part_of(l->payload, l->bytes, part);
        l->splits = lend_write_memory(p, from.iov_base, from.iov_len, &shared->part_to[part]);
        atomic_store_explicit(&shared->written, word_of(loan, l->splits ? before + 1 : before | FAILED),
                              memory_order_release);
    }
}

/* ---- The receiver ---- */

int split_is_offered(const struct duplex *p, const struct ring_place *place, size_t bytes)
{
    return bytes >= SPLIT_LEAST && bytes <= SPLIT_MOST && !place->region && p->sees_threads &&
           place->loan != p->split_before &&
           atomic_load_explicit(&p->in.shared->splits, memory_order_relaxed) == place->loan;
}

/* How many parts of its own the sender has written; *ret_ended: it writes no more. */
static uint32_t written(const struct duplex *p, uint32_t loan, int *ret_ended)
{
    uint64_t word = atomic_load_explicit(&p->in.shared->written, memory_order_acquire);
    *ret_ended = word >> 32 != loan || ((uint32_t)word & FAILED);
    return word >> 32 == loan ? (uint32_t)word & COUNT_MASK & ~(uint32_t)FAILED : 0;
}

/* It takes long: the sender is stopped, or does not have its core. The kernel finds nothing to write any more; a call
 * that has found it before is waited for. 0: it does not come back. */
static int take_back(const struct duplex *p, uint32_t loan, uint32_t wanted)
{
    struct ring_shared *shared = p->in.shared;
    for (int i = 0; i < RING_PARTS; i++)
        atomic_store(&shared->part_to[i].bytes, 0);
    ring_fence();
    for (int64_t until_ns = clock_now_ns() + WRITER_CALL_NS; clock_now_ns() < until_ns; sched_yield()) {
        int ended, is_out = writer_is_out(p->pid, atomic_load(&shared->writer));
        if (written(p, loan, &ended) >= wanted || ended || is_out)
            return 1;
    }
    return 0;
}

/* Wait for the sender's last part. How many of the `wanted` ones are written? -1: it may write still. */
static int64_t await_written(const struct duplex *p, uint32_t loan, uint32_t wanted)
{
    enum { OFTEN = 256 };
    int64_t until_ns = 0;
    int ended;
    for (unsigned turn = 1; written(p, loan, &ended) < wanted && !ended; turn++) {
        relax();
        if (turn % OFTEN)
            continue;
        int64_t now = clock_now_ns();
        until_ns = until_ns ? until_ns : now + PATIENCE_NS;
        if (now < until_ns)
            continue;
        if (!take_back(p, loan, wanted))
            return -1;
        break;
    }
    uint32_t count = written(p, loan, &ended);
    return count < wanted ? count : wanted;
}

int split_read(struct duplex *p, const struct ring_place *place, uint8_t *to, size_t bytes)
{
    struct ring_shared *shared = p->in.shared;
    const uint32_t loan = p->split_before = place->loan, count = part_count(bytes);
    const size_t each = part_bytes(bytes);
    for (uint32_t i = 0; i < count; i++) {
        const struct iovec part = part_of(to, bytes, i);
        atomic_store_explicit(&shared->part_to[i].at, (uintptr_t)part.iov_base, memory_order_relaxed);
        atomic_store_explicit(&shared->part_to[i].bytes, part.iov_len, memory_order_relaxed);
    }
    atomic_store_explicit(&shared->parts, word_of(loan, 0), memory_order_release);
    int is_read = 1;
    for (uint32_t i = 0; is_read && i < count; i++) { /* not more, whatever the peer does to the word */
        uint32_t part = take_part(&shared->parts, loan, count, 0);
        if (part >= count)
            break;
        const struct iovec mine = part_of(to, bytes, part);
        is_read = lend_read_memory(p, mine.iov_base, place->at + part * each, mine.iov_len);
    }
    int error = errno;
    uint32_t theirs = (uint32_t)atomic_exchange(&shared->parts, 0) & COUNT_MASK;
    theirs = theirs < count ? theirs : count;
    int64_t done = theirs ? await_written(p, loan, theirs) : 0;
    if (done < 0) {
        errno = ETIMEDOUT;
        return 0;
    }
    for (uint32_t i = (uint32_t)done; is_read && i < theirs; i++) {
        const struct iovec left = part_of(to, bytes, count - 1 - i);
        is_read = lend_read_memory(p, left.iov_base, place->at + (count - 1 - i) * each, left.iov_len);
        error = errno;
    }
    errno = error;
    return is_read;
}

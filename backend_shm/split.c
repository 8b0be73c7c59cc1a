#include "split.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/likely.h"
#include "events.h"
#include "ring.h"

enum {
    PART_BYTES = 64 << 10,  /* with 32K two cores take a fifth longer */
    PAGE_BYTES = 4 << 10,
    PATIENCE_NS = 200000,   /* that long the sender may take after the receiver's last part */
    CALL_NS = 1000000000,   /* no call takes longer, but on a machine that stands still */
};

/* ---- Parts ---- */

static size_t part_bytes(size_t bytes)
{
    size_t least = (bytes / RING_PARTS + PAGE_BYTES) & ~(size_t)(PAGE_BYTES - 1);
    return bytes <= PART_BYTES ? PART_BYTES / 2 : least > PART_BYTES ? least : PART_BYTES;
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

/* How many parts the receiver has taken, the sender has taken, and the sender has written. */
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
    return bytes >= SPLIT_LEAST && p->pid > 0 && !p->cannot_write && has_core(p->fabric);
}

void split_offer(struct duplex *p, const struct loan *l)
{
    atomic_store_explicit(&p->out.shared->written, word_of(l->place.loan, 0), memory_order_relaxed);
    atomic_store_explicit(&p->out.shared->splits, l->place.loan, memory_order_relaxed);
}

/* The receiver reads what is not written, whatever the reason. */
static int write_part(struct duplex *p, const struct loan *l, uint32_t part)
{
    const struct iovec from = part_of(l->payload, l->bytes, part);
    const struct iovec *to = (const struct iovec *)&p->out.shared->part_to[part];
    ssize_t n = process_vm_writev(p->pid, &from, 1, to, 1, 0);
    if (n < 0)
        p->cannot_write = 1;
    return n == (ssize_t)from.iov_len;
}

void split_write(struct duplex *p, const struct loan *l)
{
    struct ring_shared *shared = p->out.shared;
    const uint32_t loan = l->place.loan, count = part_count(l->bytes);
    if (atomic_load_explicit(&shared->parts, memory_order_relaxed) >> 32 != loan)
        return;
    for (uint32_t part; (part = take_part(&shared->parts, loan, count, 1)) < count;) {
        uint32_t before = (uint32_t)atomic_load_explicit(&shared->written, memory_order_relaxed);
        uint32_t now = write_part(p, l, part) && !(before & FAILED) ? before + 1 : before | FAILED;
        atomic_store_explicit(&shared->written, word_of(loan, now), memory_order_release);
    }
}

/* ---- The receiver ---- */

int split_is_offered(const struct duplex *p, const struct ring_place *place, size_t bytes)
{
    return bytes >= SPLIT_LEAST && !place->region &&
           atomic_load_explicit(&p->in.shared->splits, memory_order_relaxed) == place->loan;
}

/* All of it; what can be read is perhaps read in several calls. */
static int read_part(const struct duplex *p, uint64_t from, const struct iovec *to)
{
    for (size_t done = 0; done < to->iov_len;) {
        struct iovec local = { (uint8_t *)to->iov_base + done, to->iov_len - done };
        struct iovec remote = { (void *)(uintptr_t)(from + done), local.iov_len };
        ssize_t n = process_vm_readv(p->pid, &local, 1, &remote, 1, 0);
        if (n <= 0) {
            errno = n ? errno : EFAULT;
            return 0;
        }
        done += (size_t)n;
    }
    return 1;
}

/* How many parts of its own the sender has written, or 1 in *ret_failed: it writes no more. */
static uint32_t written(const struct duplex *p, uint32_t loan, int *ret_failed)
{
    uint64_t word = atomic_load_explicit(&p->in.shared->written, memory_order_acquire);
    *ret_failed = word >> 32 != loan || ((uint32_t)word & FAILED);
    return word >> 32 == loan ? (uint32_t)word & COUNT_MASK & ~(uint32_t)FAILED : 0;
}

/* Is it stopped, or gone? Then none of its threads is in the kernel: they stop on their way back from there. */
static int is_stopped(pid_t pid)
{
    char name[32], text[128] = "";
    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    const char *state = n > 0 ? strrchr(text, ')') : NULL;
    return (fd < 0 && errno == ENOENT) || (state && state[1] && strchr("TtZXx", state[2]));
}

/* It takes long: the sender is stopped, or does not have its core. The kernel finds nothing to write any more, but a
 * call that has begun goes on. */
static uint32_t take_back(const struct duplex *p, uint32_t loan, uint32_t wanted)
{
    struct ring_shared *shared = p->in.shared;
    int failed;
    for (int i = 0; i < RING_PARTS; i++)
        atomic_store(&shared->part_to[i].bytes, 0);
    for (int64_t until_ns = clock_now_ns() + CALL_NS; clock_now_ns() < until_ns; sched_yield())
        if (written(p, loan, &failed) >= wanted || failed || is_stopped(p->pid))
            break;
    return written(p, loan, &failed);
}

/* Wait for the sender's last part; how many of the `wanted` ones are written? */
static uint32_t await_written(const struct duplex *p, uint32_t loan, uint32_t wanted)
{
    enum { OFTEN = 256 };
    int64_t until_ns = 0;
    for (unsigned turn = 1;; turn++) {
        int failed;
        uint32_t count = written(p, loan, &failed);
        if (LIKELY(count >= wanted) || failed)
            return count < wanted ? count : wanted;
        relax();
        if (turn % OFTEN)
            continue;
        int64_t now = clock_now_ns();
        until_ns = until_ns ? until_ns : now + PATIENCE_NS;
        if (now >= until_ns)
            break;
    }
    uint32_t count = take_back(p, loan, wanted);
    return count < wanted ? count : wanted;
}

int split_read(struct duplex *p, const struct ring_place *place, uint8_t *to, size_t bytes)
{
    struct ring_shared *shared = p->in.shared;
    const uint32_t loan = place->loan, count = part_count(bytes);
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
        is_read = read_part(p, place->at + part * each, &mine);
    }
    int error = errno;
    uint32_t theirs = (uint32_t)atomic_exchange(&shared->parts, 0) & COUNT_MASK;
    theirs = theirs < count ? theirs : count;
    for (uint32_t i = await_written(p, loan, theirs); is_read && i < theirs; i++) {
        const struct iovec left = part_of(to, bytes, count - 1 - i);
        is_read = read_part(p, place->at + (count - 1 - i) * each, &left);
        error = errno;
    }
    errno = error;
    return is_read;
}

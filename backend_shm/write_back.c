#include "write_back.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "copy.h"
#include "greeting.h"
#include "region.h"
#include "ring.h"
#include "say.h"
#include "writer.h"

enum {
    STEP_BYTES = 1 << 20,      /* between looks at what else has come */
    PAGE_BYTES = 4 << 10,
    LONG_SIZE = 6,             /* write_back_size of 1 MiB: in caches small pages cost little */
    STAGING_PLACES = 4,
    STAGING_PLACE_BYTES = 256 << 10,
    BY_KERNEL_LEAST = 16 << 10, /* shorter parts lie in the peer's first cache */
    WRITER_PATIENCE_NS = 20000000,
};

/* ---- Which way ---- */

uint8_t write_back_size(const struct frame *h)
{
    enum { LEAST_SHIFT = 15 };
    uint64_t bytes = h->count * exec_host->dtype_bytes(h->dtype) >> LEAST_SHIFT;
    int size = bytes ? 64 - __builtin_clzll(bytes) : 0;
    return (uint8_t)(size < RING_BACK_SIZES ? size : RING_BACK_SIZES - 1);
}

/* So many operations of a size go one way, at least, before some go the other way. The first of them take up to twice
 * as long as the next ones, as what they touch is not in the caches: the data, and what the kernel knows of its pages.
 */
enum { ROW = 8, COLD = 4, FEW_NOTED = 8 };

static int is_lower(const struct duplex *p)
{
    return p->fabric->domain->peers.rank < p->port.peer;
}

/* The time, if a step begins that is to be measured, by the rank that chooses: of each size all are at first, and then
 * one in some. */
static int64_t begin(const struct duplex *p, const struct back_times *t, enum back_step step)
{
    enum { OFTEN = 4 };
    if (!is_lower(p))
        return 0;
    int is_other = (step == BACK_KERNEL) != ((t->way & WAY_KERNEL) != 0);
    int is_due = t->noted[step] < FEW_NOTED || is_other || t->messages % OFTEN == 0;
    return t->operations % ROW >= COLD && is_due ? clock_now_ns() : 0;
}

static void note(struct back_times *t, enum back_step step, int64_t began_ns, size_t bytes)
{
    if (!began_ns)
        return;
    copy_out_note(&t->ns[step], clock_now_ns() - began_ns, bytes);
    if (t->noted[step] < FEW_NOTED)
        t->noted[step]++;
}

/* What is not clearly faster is no reason for a change. Where parts are staged a rank also waits for the other one's
 * copies, an eighth of the time and more. */
static uint8_t choose(const struct back_times *t)
{
    enum { SIXTEENTHS = 16, CLEARLY = 15, WAITS = 8, MANY_ROWS = 32 };
    int is_staged_known = t->noted[BACK_STAGE] == FEW_NOTED && t->noted[BACK_REDUCE] == FEW_NOTED &&
                          t->noted[BACK_TAKE] == FEW_NOTED;
    int is_kernel_known = t->noted[BACK_KERNEL] == FEW_NOTED;
    if (!is_staged_known || !is_kernel_known) /* one of them never comes, if the peer cannot do it */
        return t->operations < MANY_ROWS * ROW ? WAY_NEW : is_kernel_known ? WAY_KERNEL : 0;
    int64_t staged_ns = t->ns[BACK_STAGE] + t->ns[BACK_REDUCE] + t->ns[BACK_TAKE], kernel_ns = t->ns[BACK_KERNEL];
    staged_ns += staged_ns / WAITS;
    int by_kernel = t->way & WAY_KERNEL ? kernel_ns / SIXTEENTHS * CLEARLY < staged_ns
                                        : kernel_ns < staged_ns / SIXTEENTHS * CLEARLY;
    int64_t best_ns = by_kernel ? kernel_ns : staged_ns, other_ns = by_kernel ? staged_ns : kernel_ns;
    return (uint8_t)((by_kernel ? WAY_KERNEL : 0) | (other_ns > best_ns + best_ns / 2 ? WAY_SELDOM : WAY_TRIED));
}

/* The lower rank chooses for both; until it has, the higher one copies. */
static uint8_t way_of_both(struct duplex *p, uint8_t size)
{
    struct back_times *t = &p->back[size];
    if (!is_lower(p))
        return t->way = atomic_load_explicit(&p->in.shared->back_ways[size], memory_order_relaxed);
    uint8_t way = choose(t) | WAY_CHOSEN;
    if (way != t->way)
        atomic_store_explicit(&p->out.shared->back_ways[size], t->way = way, memory_order_relaxed);
    return way;
}

/* The first row goes one way, and the second the other. Then ever fewer rows do: of huge pages, say, there may be more
 * by then. At last one of 256, or of 1024 if that is much slower, lest those are the 99th percentile. */
static int is_tried(const struct back_times *t, uint8_t way)
{
    enum { SELDOM = 256, MORE_SELDOM = 1024 };
    uint32_t row = t->operations / ROW, rows = way & WAY_SELDOM ? MORE_SELDOM : SELDOM;
    if (!(way & (WAY_TRIED | WAY_SELDOM)))
        return 0;
    return row < rows ? row > 1 && (row & (row - 1)) == 0 : row % rows == 0;
}

/* For parts that can be staged. */
static int kernel_is_faster(struct duplex *p, const struct frame *h, uint8_t size)
{
    struct back_times *t = &p->back[size];
    if (!p->fabric->cma_measured)
        return 1;
    uint8_t way = way_of_both(p, size);
    t->operations += t->seq != h->seq || t->messages == 0;
    t->seq = h->seq;
    t->messages++;
    if (way & WAY_NEW)
        return t->operations / ROW % 2 != 0;
    return is_tried(t, way) ^ ((way & WAY_KERNEL) != 0);
}

/* Can the receiver read the part and write the result by the kernel, and can this rank tell what it does? */
static int kernel_can(const struct duplex *p, const struct loan *l)
{
    return l->bytes >= BY_KERNEL_LEAST && l->bytes <= SINK_BOUNCE_BYTES && lend_peer_can_read(p) &&
           atomic_load_explicit(&p->out.shared->can_write, memory_order_relaxed) && p->pid > 0 && p->sees_threads;
}

static int goes_by_kernel(struct duplex *p, const struct frame *h, const struct loan *l)
{
    int can_be_staged = l->bytes <= STAGING_PLACE_BYTES && !p->cannot_stage;
    return kernel_can(p, l) && (!can_be_staged || kernel_is_faster(p, h, l->back_size)) &&
           lend_kernel_reads(p->fabric, l->payload, l->bytes) &&
           lend_kernel_reads(p->fabric, l->write_back, l->bytes);
}

/* ---- The sender ---- */

/* Memory for copies of payloads, and whether there is a place for one of so many bytes. */
static int can_stage(struct duplex *p, size_t bytes)
{
    if (bytes > STAGING_PLACE_BYTES || p->cannot_stage)
        return 0;
    if (!p->staging) {
        p->staging = region_create(p->fabric, STAGING_PLACES * STAGING_PLACE_BYTES);
        p->cannot_stage = !p->staging;
        if (p->staging)
            region_enter(p->fabric, p->staging);
    }
    return p->staging && p->staged != (1u << STAGING_PLACES) - 1 && region_tell(p, p->staging);
}

/* Of what the other core has written the page behind the next bytes comes while these are copied or reduced: a
 * processor does not ask beyond a page by itself. Intel's then bring more lines at a time: an all_reduce of 128 KiB
 * takes two ranks on Emerald Rapids 11.6 us so, and else 12.9. Shorter ones lie in that core's first cache, which gives
 * them away no faster. One instruction that copies 128 KiB brings them as fast, and leaves what it writes outside of
 * it. */
static int asks_for_pages(const struct duplex *p, size_t whole)
{
    enum { LEAST_BYTES = 32 << 10, MOST_BYTES = 128 << 10 };
    return p->out.brings_lines && whole >= LEAST_BYTES && whole < MOST_BYTES;
}

/* Returns how many bytes to copy before it is asked again. */
static size_t ask_for_next_page(const uint8_t *data, size_t bytes)
{
    if (bytes <= PAGE_BYTES)
        return bytes;
    size_t next = bytes - PAGE_BYTES < PAGE_BYTES ? bytes - PAGE_BYTES : PAGE_BYTES;
    for (size_t at = 0; at < next; at += RING_LINE)
        __builtin_prefetch(data + PAGE_BYTES + at, 0, 2);
    return PAGE_BYTES;
}

static size_t staging_place(const struct duplex *p)
{
    return (size_t)__builtin_ctz(~p->staged);
}

static int is_staged(const struct duplex *p, const struct loan *l)
{
    return p->staging && l->place.region == region_id(p->staging);
}

static int is_by_kernel(const struct ring_place *place)
{
    return place->back_region == RING_BACK_BY_KERNEL;
}

int write_back_suits(struct duplex *p, const struct frame *h, struct loan *l)
{
    const struct region *from = NULL, *to = NULL;
    l->back_size = write_back_size(h);
    if (p->fabric->regions && (from = region_of(p, l->payload, l->bytes)))
        to = region_of(p, l->write_back, l->bytes);
    if (to) {
        l->place = region_place(from, l->payload);
        region_write_back(&l->place, to, l->write_back);
    } else if (goes_by_kernel(p, h, l)) {
        l->place = (struct ring_place){ .at = (uintptr_t)l->payload, .back_region = RING_BACK_BY_KERNEL };
    } else if (can_stage(p, l->bytes)) {
        uint8_t *copy = region_data(p->staging) + staging_place(p) * STAGING_PLACE_BYTES;
        l->place = region_place(p->staging, copy);
        region_write_back(&l->place, p->staging, copy);
    } else {
        return 0;
    }
    return 1;
}

/* The kernel is faster with huge pages, so they are asked for before it is measured, too. */
static void ask_for_huge_pages(struct duplex *p, const struct loan *l)
{
    struct huge_pages *h = &p->fabric->domain->huge_pages;
    if (l->back_size < LONG_SIZE || !lend_peer_can_read(p) ||
        !atomic_load_explicit(&p->out.shared->can_write, memory_order_relaxed))
        return;
    huge_pages_moved(h, l->write_back, l->bytes);
    if (!is_by_kernel(&l->place) && l->payload != l->write_back)
        huge_pages_moved(h, l->payload, l->bytes); /* else lend_begin does it */
}

void write_back_begin(struct duplex *p, const struct loan *l)
{
    struct back_times *t = &p->back[l->back_size];
    struct ring_part *to = &p->out.shared->back_to[l->place.slot];
    p->staged_in[l->place.slot] = 0;
    if (is_staged(p, l)) {
        int64_t began_ns = begin(p, t, BACK_STAGE);
        p->staged_in[l->place.slot] = 1u << staging_place(p);
        p->staged |= p->staged_in[l->place.slot];
        memcpy(region_data(p->staging) + l->place.at, l->payload, l->bytes);
        note(t, BACK_STAGE, began_ns, l->bytes);
    } else if (is_by_kernel(&l->place)) {
        atomic_store_explicit(&to->at, (uintptr_t)l->write_back, memory_order_relaxed);
        atomic_store_explicit(&to->bytes, l->bytes, memory_order_relaxed);
    }
    if (is_staged(p, l) || is_by_kernel(&l->place))
        ask_for_huge_pages(p, l);
}

void write_back_take(struct duplex *p, const struct loan *l)
{
    const int asks = asks_for_pages(p, l->bytes);
    struct back_times *t = &p->back[l->back_size];
    if (!is_staged(p, l) && !is_by_kernel(&l->place))
        region_bring(p->fabric, l->write_back, l->bytes);
    if (!is_staged(p, l))
        return;
    int64_t began_ns = begin(p, t, BACK_TAKE);
    const uint8_t *from = region_data(p->staging) + l->place.at;
    for (size_t at = 0, now; at < l->bytes; at += now) {
        now = asks ? ask_for_next_page(from + at, l->bytes - at) : l->bytes;
        copy_part(l->write_back + at, from + at, now, l->is_long);
    }
    note(t, BACK_TAKE, began_ns, l->bytes);
}

static int is_writing(const struct duplex *p, const struct loan *l)
{
    return p->out.shared &&
           atomic_load_explicit(&p->out.shared->writing[l->place.slot], memory_order_acquire) == l->place.loan;
}

/* It takes the peer some microseconds, if it runs. That the connection has ended does not say that its process has. */
static int has_stopped_writing(const struct duplex *p, const struct loan *l, int64_t patience_ns)
{
    for (int64_t until_ns = clock_now_ns() + patience_ns; is_writing(p, l); sched_yield())
        if (p->hung_up && writer_has_ended(greeting_peer(p->watch.fd)))
            break;
        else if (clock_now_ns() >= until_ns)
            return 0;
    return 1;
}

static void lose_writer(struct duplex *p, const struct loan *l, const char *cure)
{
    port_lose(&p->port, COMM_ERR_PEER_LOST,
              "has not come back for 2 s from writing a result of %zu bytes to this rank's memory, and may write "
              "still; %s", l->bytes, cure);
}

/* The kernel finds no place any more; a call that has found it before is waited for. */
static int end_by_kernel(struct duplex *p, const struct loan *l)
{
    struct ring_shared *shared = p->out.shared;
    if (!shared || lend_is_taken(p, l))
        return 1;
    atomic_store(&shared->back_to[l->place.slot].bytes, 0);
    ring_fence();
    for (int64_t until_ns = 0; is_writing(p, l); sched_yield()) {
        int64_t now_ns = clock_now_ns();
        until_ns = until_ns ? until_ns : now_ns + WRITER_CALL_NS;
        if (writer_is_out(p->pid, atomic_load(&shared->back_writer)))
            break;
        if (now_ns < until_ns || !is_writing(p, l))
            continue;
        lose_writer(p, l, "set COMM_SHM_CMA_BYTES=0 if that happens again");
        break;
    }
    return !is_writing(p, l);
}

/* Nothing is copied from the place any more. */
static int end_staged(struct duplex *p, const struct loan *l)
{
    if (is_writing(p, l))
        return 0;
    p->staged &= ~p->staged_in[l->place.slot];
    return 1;
}

/* In registered memory. Where there is no memory for other pages the peer is waited for. */
static int end_in_region(struct duplex *p, const struct loan *l)
{
    if (!has_stopped_writing(p, l, WRITER_PATIENCE_NS) && !region_detach(p->fabric, l->write_back, l->bytes) &&
        !has_stopped_writing(p, l, WRITER_CALL_NS))
        lose_writer(p, l, "there was no memory to keep that away from it");
    return 1;
}

int write_back_end(struct duplex *p, const struct loan *l)
{
    int may_be_used = is_by_kernel(&l->place) ? end_by_kernel(p, l)
                      : is_staged(p, l)       ? end_staged(p, l)
                                              : end_in_region(p, l);
    if (!may_be_used)
        p->stuck |= 1u << l->place.slot;
    return may_be_used;
}

void write_back_free_slots(struct duplex *p)
{
    for (uint32_t slot = 0; slot < RING_LOANS; slot++)
        if (p->stuck & 1u << slot &&
            !atomic_load_explicit(&p->out.shared->writing[slot], memory_order_acquire)) {
            p->stuck &= ~(1u << slot);
            p->loans &= ~(1u << slot);
            p->staged &= ~p->staged_in[slot];
        }
}

/* ---- The receiver ---- */

void write_back_probe(struct duplex *p, uint64_t at, uint64_t word)
{
    struct iovec local = { &word, sizeof word }, remote = { (void *)(uintptr_t)at, sizeof word };
    if (process_vm_writev(p->pid, &local, 1, &remote, 1, 0) == sizeof word)
        atomic_store_explicit(&p->in.shared->can_write, 1, memory_order_relaxed);
}

static int may_write(const struct sink *s)
{
    return s->kind == SINK_REDUCE && s->message && s->message->may_write_back;
}

static int may_by_kernel(const struct duplex *p, const struct sink *s)
{
    return is_by_kernel(&p->borrowed) && !p->borrowed.region && s->done == 0 && s->total <= SINK_BOUNCE_BYTES;
}

int write_back_can(const struct duplex *p, const struct sink *s)
{
    return (p->borrowed_data && p->borrowed_back) || may_by_kernel(p, s);
}

int write_back_is_wanted(const struct duplex *p)
{
    return may_write(&p->port.sink) && write_back_can(p, &p->port.sink);
}

/* Each result goes to both ranks' memory at once. 0: the loan has been taken back. */
static int reduce_in_regions(struct duplex *p, struct sink *s)
{
    const struct ring_place *place = &p->borrowed;
    _Atomic uint32_t *writing = &p->in.shared->writing[place->slot];
    struct back_times *t = &p->back[p->borrowed_size];
    const int64_t began_ns = begin(p, t, BACK_REDUCE);
    size_t before = s->done;
    /* What is reduced between two registered buffers is in this core's cache, if nobody has written it since. */
    const int asks = asks_for_pages(p, s->total) && !region_of(p, s->dst, s->total);
    atomic_store_explicit(writing, place->loan, memory_order_relaxed);
    ring_fence();
    int valid = lend_is_valid(p, place);
    while (valid && sink_left(s) && s->done - before < STEP_BYTES) {
        const uint8_t *data = p->borrowed_data + s->done;
        size_t left = sink_left(s) < STEP_BYTES ? sink_left(s) : STEP_BYTES;
        sink_feed_to_two(s, p->borrowed_back + s->done, data, asks ? ask_for_next_page(data, left) : left);
    }
    atomic_store_explicit(writing, 0, memory_order_release);
    if (valid && s->done > before)
        note(t, BACK_REDUCE, began_ns, s->done - before);
    return valid;
}

/* 0: the loan is taken back, or the kernel does not write all of it. Then both parts are swapped. */
static int write_by_kernel(struct duplex *p, const void *result, size_t bytes)
{
    struct ring_shared *shared = p->in.shared;
    const struct ring_place *place = &p->borrowed;
    atomic_store_explicit(&shared->back_writer, (int32_t)gettid(), memory_order_relaxed);
    atomic_store_explicit(&shared->writing[place->slot], place->loan, memory_order_release); /* after back_writer */
    ring_fence();
    int written = lend_is_valid(p, place) && lend_write_memory(p, result, bytes, &shared->back_to[place->slot]);
    atomic_store_explicit(&shared->writing[place->slot], 0, memory_order_release);
    return written;
}

/* Read the part, with a word of the sender's: what has the same number after that has ended is another process. 1: it
 * may be written; 0: not, but all is read; -1: it cannot be read. */
static int read_by_kernel(struct duplex *p, uint8_t *to, size_t bytes)
{
    uint64_t word = 0;
    struct iovec local[2] = { { to, bytes }, { &word, sizeof word } };
    struct iovec remote[2] = { { (void *)(uintptr_t)p->borrowed.at, bytes },
                               { (void *)(uintptr_t)atomic_load(&p->in.shared->probe_at), sizeof word } };
    ssize_t n = process_vm_readv(p->thread, local, 2, remote, 2, 0);
    int is_lost = n < 0 ? errno == ESRCH : p->thread != p->pid && word != p->in.shared->probe_word;
    if (is_lost) /* what it has read is not the peer's */
        n = lend_finds_thread(p) ? process_vm_readv(p->thread, local, 2, remote, 2, 0) : -1;
    if (n == (ssize_t)(bytes + sizeof word) && word == p->in.shared->probe_word)
        return 1;
    if (n == (ssize_t)(bytes + sizeof word)) {
        lend_cannot_read(p, bytes, ESRCH);
        return -1;
    }
    size_t done = n <= 0 ? 0 : (size_t)n < bytes ? (size_t)n : bytes;
    if (n > 0 && lend_read_memory(p, to + done, p->borrowed.at + done, bytes - done))
        return 0;
    lend_cannot_read(p, bytes, n ? errno : EFAULT);
    return -1;
}

/* As write_back_now. */
static int reduce_by_kernel(struct duplex *p, struct sink *s)
{
    struct back_times *t = &p->back[p->borrowed_size];
    const size_t bytes = s->total;
    const int64_t began_ns = begin(p, t, BACK_KERNEL);
    size_t room;
    uint8_t *window = sink_window(s, p->port.table->bounce, &room), *result = s->dst;
    int may = read_by_kernel(p, window, bytes);
    if (may < 0)
        return -1;
    sink_feed(s, p->port.table->bounce, window, bytes);
    int written = may && write_by_kernel(p, result, bytes);
    if (written)
        note(t, BACK_KERNEL, began_ns, bytes);
    return written;
}

int write_back_now(struct duplex *p, struct sink *s)
{
    int valid = 1;
    if (is_by_kernel(&p->borrowed))
        return reduce_by_kernel(p, s);
    while (valid && sink_left(s))
        valid = reduce_in_regions(p, s);
    return valid ? 1 : -1;
}

void write_back_reduce(struct duplex *p)
{
    struct sink *s = &p->port.sink;
    if (is_by_kernel(&p->borrowed)) {
        int written = reduce_by_kernel(p, s);
        if (written >= 0)
            lend_settle(p, written);
    } else if (!reduce_in_regions(p, s)) {
        duplex_drop_borrowed(p);
    } else if (sink_left(s) == 0) {
        lend_settle(p, 1);
    }
}

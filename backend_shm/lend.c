#include "lend.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "duplex.h"
#include "exec_group.h"
#include "greeting.h"
#include "groups.h"
#include "region.h"
#include "say.h"
#include "split.h"
#include "write_back.h"
#include "writer.h"

enum { STEP_BYTES = 1 << 20 }; /* between looks at what else has come */

/* ---- The sender ---- */

enum { LENDABLE_PART_SHIFT = 12 /* a page, mostly */, LENDABLE_SHIFT = LENDABLE_PART_SHIFT + 6 };

static struct lendable *lendable_of(struct fabric *f, uintptr_t at)
{
    return &f->lendable[((uint64_t)(at >> LENDABLE_SHIFT) * ring_key_odd >> 32) % SHM_LENDABLE];
}

static int is_lendable(struct fabric *f, uintptr_t at)
{
    const struct lendable *known = lendable_of(f, at);
    return known->number == at >> LENDABLE_SHIFT && known->parts >> (at >> LENDABLE_PART_SHIFT) % 64 & 1;
}

static void note_lendable(struct fabric *f, uintptr_t at)
{
    struct lendable *known = lendable_of(f, at);
    if (known->number != at >> LENDABLE_SHIFT)
        *known = (struct lendable){ at >> LENDABLE_SHIFT, 0 };
    known->parts |= (uint64_t)1 << (at >> LENDABLE_PART_SHIFT) % 64;
}

/* The kernel does not read all memory for other processes (that of devices, say). What this process can be read from
 * itself, another one can. Both ends of a payload are tried, and their pages are not asked about again. */
int lend_kernel_reads(struct fabric *f, const void *payload, size_t bytes)
{
    const uintptr_t first = (uintptr_t)payload, last = first + bytes - 1;
    if (is_lendable(f, first) && is_lendable(f, last))
        return 1;
    uint8_t ends[2];
    struct iovec to = { ends, 2 };
    struct iovec from[2] = { { (void *)payload, 1 }, { (uint8_t *)payload + bytes - 1, 1 } };
    if (process_vm_readv(getpid(), &to, 1, from, 2, 0) != 2)
        return 0;
    note_lendable(f, first);
    note_lendable(f, last);
    return 1;
}

/* A peer may write any kind. */
static int goes_one_way(uint8_t kind)
{
    const comm_op_traits *t = comm_op_traits_of(kind);
    return t && (t->traits & (COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_PEER)) != 0;
}

/* What a message of so many copy units takes through the kernel. */
static double kernel_ns(const struct fabric *f, double units, int64_t copy_ns)
{
    enum { LOAN_NS = 500 };
    return LOAN_NS + (double)f->cma_call_ns + units * (double)copy_ns;
}

static double copy_units(const struct frame *h)
{
    return (double)h->bytes / COPY_OUT_UNIT;
}

/* Of which kind the times of reads are: ring_shared.read_ns. */
enum { READS_BOTH, READS_ONE_WAY, READS_SPLIT };

static int kind_of_reads(int one_way, int splits)
{
    return splits ? READS_SPLIT : one_way ? READS_ONE_WAY : READS_BOTH;
}

/* As many messages as the other way is tried with in a row: so many that they fill the ring of two ranks four times,
 * but 16 to 128. The first take up to three times as long as later ones, as the caches hold nothing of what they touch:
 * on Zen copies to a ring until it has been filled twice, or three times, and some ten reads between cores that share
 * no cache. */
static uint64_t row_of(const struct frame *h)
{
    enum { BYTES = 8 << 20, LEAST = 16, MOST = 128 };
    uint64_t row = h->bytes ? BYTES / h->bytes : MOST;
    return row < LEAST ? LEAST : row < MOST ? row : MOST;
}

static uint64_t turn_of(const struct frame *h)
{
    return h->seq + h->slice + h->round;
}

/* Is it this message's turn to go the other way? One of 256 on average, or a quarter as often if that is much slower,
 * lest tries are the 99th percentile; more often at first, for what was measured by then may have met cold caches.
 * Asked again about a message the answer is the same, and two ranks that ask about the same operation have the same. */
enum { TRIED_AT_FIRST = 8, TRIED_AT_LAST = 256, MOST_OFTEN = 5 };
_Static_assert(TRIED_AT_FIRST << MOST_OFTEN == TRIED_AT_LAST, "WAY_OFTEN times MOST_OFTEN says TRIED_AT_FIRST");

static int is_tried(const struct frame *h, uint8_t way)
{
    enum { SELDOM = 4 };
    uint64_t row = turn_of(h) / row_of(h), often = way / WAY_OFTEN;
    uint64_t rows = TRIED_AT_LAST >> often;
    if (often < MOST_OFTEN && way & WAY_SELDOM)
        rows *= SELDOM;
    return ((row + 1) * ring_key_odd >> 32) % rows == 0; /* the first is none */
}

int lend_overlaps(const struct frame *h, size_t bytes)
{
    return bytes > RING_PIECE && goes_one_way(h->kind);
}

/* What the ring takes for an eager message; 0: not known. Both ranks copy it, one after the other, unless the peer
 * reads earlier ones meanwhile. What is longer than one record is the engine's. */
static double eager_ring_ns(const struct duplex *p, const struct frame *h, enum lend_flow flow)
{
    enum { RECORD_NS = 200, ENGINE_NS = 500 };
    int64_t write_ns = copy_out_write_ns(&p->out.copy, (size_t)h->bytes);
    int64_t take_ns = atomic_load_explicit(&p->out.shared->record_ns, memory_order_relaxed);
    if (!write_ns || !take_ns)
        return 0;
    int64_t longer_ns = write_ns > take_ns ? write_ns : take_ns;
    return RECORD_NS + (h->bytes > RING_TAKEN ? ENGINE_NS : 0) +
           copy_units(h) * (double)(flow == LEND_STREAM ? longer_ns : write_ns + take_ns);
}

/* The same for a long one. If it goes one way, the receiver copies at the same time, and the last piece after that,
 * and waits for each; else each rank copies both. Then one often waits for the other one's piece, which the copies
 * do not show: to swap 512 KiB takes two ranks on Zen 3 46 us where the copies take 35, between two dies 107 and 75;
 * by the kernel 69 and 59, 79 and 68. Of several ranks more so: an all_to_all of 1 MiB takes 16 ranks 390 to 430 us
 * through the rings, where the copies take no longer than by the kernel, which takes 190 to 280. Where ranks share
 * cores another one has the core while one waits: there an all_gather of 512 KiB takes 4 ranks on 2 cores 106 us
 * through the rings, and 144 by the kernel. */
static double long_ring_ns(const struct duplex *p, const struct frame *h, int one_way)
{
    enum { RECORD_NS = 300, PIECE_NS = 150, ASKED_NS = 2500 /* it is not offered, but asked for */ };
    const double waits = one_way || p->fabric->domain->shares_cores ? 1 : p->fabric->up_count > 1 ? 2 : 1.3;
    const double last = (double)RING_PIECE / COPY_OUT_UNIT, units = copy_units(h);
    int overlaps = lend_overlaps(h, h->bytes);
    int64_t copy_ns = copy_out_ns(&p->out.copy, overlaps);
    int is_told = one_way || h->bytes <= 2 * RING_PIECE /* no piece in it is measured */ ||
                  copy_out_is_told(&p->out.copy);
    if (!copy_ns || !is_told)
        return 0;
    double pieces_ns = overlaps ? units / last * PIECE_NS : 0;
    double copies_ns = (overlaps ? units + last : units) * (double)copy_ns;
    return RECORD_NS + (one_way ? 0 : ASKED_NS) + pieces_ns + waits * copies_ns;
}

/* The faster way, by what reads have taken the peer of late, and copies to the ring and from it both ranks: that
 * depends on where the two cores are, and may change when the system moves a rank. If the latter is not known (0) the
 * ring is taken. What is not clearly faster than `before` is no reason to change it. The other way is tried now and
 * then; the kernel only if it may win, by what a read of memory that no other core has costs. */
static uint8_t choose_way(struct duplex *p, const struct frame *h, double ring_ns, int kind, uint8_t before)
{
    const int one_way = kind != READS_BOTH;
    const double clearly = one_way && h->type != FRAME_EAGER ? 7.0 / 8 : 15.0 / 16, much = 1.5;
    const double units = copy_units(h);
    const struct fabric *f = p->fabric;
    if (ring_ns == 0)
        return 0;
    int64_t read_ns = atomic_load_explicit(&p->out.shared->read_ns[kind], memory_order_relaxed);
    if (!one_way && read_ns && p->read_ns[0] > read_ns)
        read_ns = p->read_ns[0];
    read_ns = read_ns ? read_ns : kind == READS_SPLIT ? f->cma_copy_ns * 5 / 8 : f->cma_copy_ns;
    double ns = kernel_ns(f, units, read_ns);
    if (before & WAY_KERNEL ? ns * clearly < ring_ns : ns < ring_ns * clearly)
        return WAY_KERNEL | (ring_ns > much * ns ? WAY_SELDOM : WAY_TRIED);
    int64_t least_ns = f->cma_copy_ns * (kind == READS_SPLIT ? 2 : kind == READS_BOTH ? 3 /* huge pages */ : 4) / 4;
    int may_win = kernel_ns(f, units, least_ns) < ring_ns * clearly;
    return !may_win ? 0 : ns > much * ring_ns ? WAY_SELDOM : WAY_TRIED;
}

/* Of so many messages of a size `way` was chosen, since it was the other one. Among several ranks tries are seldom
 * from the beginning: one that goes another way has all others wait, and the 99th percentile of four ranks' swaps of 1
 * MiB is a third longer with many. What is much slower is tried often for a quarter as long: between dies a swap of 512
 * KiB takes 100 us by the kernel and 130 to 200 through the ring, and the first 2000 took a tenth longer. */
static uint8_t how_often(const struct duplex *p, const struct frame *h, uint8_t way, uint32_t chosen)
{
    enum { SOONER = 4 };
    if (p->fabric->up_count > 1)
        return 0;
    uint64_t seen = chosen / row_of(h) * (way & WAY_SELDOM ? SOONER : 1);
    uint64_t rows = copy_out_tries_in(seen, TRIED_AT_FIRST, TRIED_AT_LAST);
    return (uint8_t)(__builtin_ctz(TRIED_AT_LAST) - __builtin_ctzll(rows)) * WAY_OFTEN;
}

/* What is faster has to be so for some messages: the first ones of an operation, or in new memory, meet cold caches and
 * page faults, and the next ones through the ring put that right. */
static uint8_t steady_way(const struct duplex *p, const struct frame *h, struct ring_choice *c, uint8_t way)
{
    enum { DOUBTS = 64, MANY = 1 << 30 };
    int is_other = (way ^ c->way) & WAY_KERNEL;
    if (is_other && ++c->doubts < DOUBTS && c->doubts < row_of(h))
        return c->way;
    c->doubts = 0;
    c->chosen = is_other ? 0 : c->chosen + (c->chosen < MANY);
    return way | how_often(p, h, way, c->chosen);
}

/* The first message of a size goes as those of the next smaller size did. */
static void begin_as_shorter(struct ring_choice *c, int size)
{
    for (int shorter = 1; shorter <= size; shorter++)
        if (c[-shorter].asked) {
            c->way = c[-shorter].way & WAY_KERNEL;
            return;
        }
}

static int size_class(const struct frame *h)
{
    return h->bytes ? 63 - __builtin_clzll(h->bytes) : 0;
}

/* Where both ranks send they go the same way: one that copies to the ring and from it while the other one only reads
 * takes as long as if both did. The lower rank decides, unless it has sent no message of the size yet. */
static uint8_t way_of_both(struct duplex *p, const struct frame *h, double ring_ns)
{
    const int size = size_class(h);
    struct ring_choice *c = &p->choices[size];
    int is_lower = p->fabric->domain->peers.rank < p->port.peer;
    uint8_t said = is_lower ? 0 : atomic_load_explicit(&p->in.shared->ways[size], memory_order_relaxed);
    if (said & WAY_CHOSEN)
        return said;
    if (c->asked == turn_of(h) + 1)
        return c->way;
    if (!c->asked)
        begin_as_shorter(c, size);
    c->asked = turn_of(h) + 1;
    uint8_t way = steady_way(p, h, c, choose_way(p, h, ring_ns, READS_BOTH, c->way));
    if (is_lower && (way | WAY_CHOSEN) != c->way)
        atomic_store_explicit(&p->out.shared->ways[size], way | WAY_CHOSEN, memory_order_relaxed);
    return c->way = is_lower ? way | WAY_CHOSEN : way;
}

/* The next message goes through the ring, where the kernel is faster. Of a row the last quarter's copies are measured;
 * in one row all go through the caches, and in the next one past them. */
static void try_ring(struct duplex *p, const struct frame *h)
{
    if (p->tried != turn_of(h) + 1)
        p->tries++;
    p->tried = turn_of(h) + 1;
    const uint64_t row = row_of(h), tries = p->tries - 1;
    p->out.copy.tries.copies = (uint32_t)(h->bytes / ring_piece_bytes(p->out.capacity) + 1);
    p->out.copy.tries.way = tries / row % 2 ? COPY_OUT_PAST : COPY_OUT_CACHED;
    p->out.copy.tries.is_measured = tries % row >= row / 4 * 3;
}

/* Does the message go by the kernel: by that way, or as one of the tries of the other one? */
static int goes_by_kernel(struct duplex *p, const struct frame *h, uint8_t way)
{
    int is_try = (way & (WAY_TRIED | WAY_SELDOM)) && is_tried(h, way);
    if (is_try && (way & WAY_KERNEL))
        try_ring(p, h);
    return is_try ^ ((way & WAY_KERNEL) != 0);
}

/* All blocks of one that has some, if they are as long as this rank's. */
static uint64_t operation_bytes(const struct duplex *p, const struct frame *h)
{
    const comm_op_traits *t = comm_op_traits_of(h->kind);
    const struct exec_group *g = traits_have_blocks(t) ? group_find(p->fabric->domain, h->group) : NULL;
    uint64_t blocks = g ? (uint64_t)g->size : 1;
    return h->count * blocks * exec_host->dtype_bytes(h->dtype);
}

/* Neither the messages of several ranks nor the copies in their rings. What the copies of two ranks take shows that.
 * An all_to_all of 2 MiB takes 16 ranks 0.48 ms by the kernel, and 0.80 by what each pair has measured; 4 ranks on 2
 * cores 0.9 and 1.2. Both ranks of a pair decide alike, if their blocks are of one length. */
static int no_cache_holds(const struct duplex *p, const struct frame *h)
{
    enum { CACHED_BYTES = 2 << 20 };
    return p->fabric->domain->peers.size > 2 && operation_bytes(p, h) >= CACHED_BYTES;
}

static int kernel_is_faster(struct duplex *p, const struct frame *h, int one_way, int splits)
{
    if (!p->fabric->cma_measured || (!one_way && no_cache_holds(p, h)))
        return 1;
    double ring_ns = long_ring_ns(p, h, one_way);
    if (one_way)
        p->way = choose_way(p, h, ring_ns, kind_of_reads(1, splits), p->way);
    return goes_by_kernel(p, h, one_way ? p->way : way_of_both(p, h, ring_ns));
}

static int eager_kernel_is_faster(struct duplex *p, const struct frame *h, enum lend_flow flow, int splits)
{
    if (!p->fabric->cma_measured)
        return 1;
    enum { SELDOM = 64 }; /* between two copies that share a cache to ask takes a tenth of the message's time */
    double ring_ns = eager_ring_ns(p, h, flow);
    if (flow != LEND_BOTH)
        p->eager_way = choose_way(p, h, ring_ns, kind_of_reads(1, splits), p->eager_way);
    uint8_t way = flow != LEND_BOTH ? p->eager_way : way_of_both(p, h, ring_ns);
    int is_doubted = flow == LEND_BOTH && p->choices[size_class(h)].doubts;
    p->ring_for = way & (WAY_KERNEL | WAY_TRIED | WAY_SELDOM) || is_doubted ? 0 : SELDOM;
    return goes_by_kernel(p, h, way);
}

int lend_peer_can_read(const struct duplex *p)
{
    return p->fabric->cma_bytes && atomic_load_explicit(&p->out.shared->can_read, memory_order_relaxed);
}

/* What a reduction sends has just been written, and the kernel is slow to read what the other core has in its cache,
 * modified. But there is none of it left there where several ranks reduce vectors that are longer than it: an
 * all_reduce of 4 MiB takes 8 ranks 1.3 to 1.5 ms so, and 1.8 through the rings; 4 ranks on 2 cores 1.4, and 1.8. Very
 * long ones are new memory mostly, whose pages are small: 64 MiB take 4 ranks 43 ms so, and 36. */
static int is_for_the_kernel(const struct duplex *p, const struct frame *h)
{
    enum { CACHED_BYTES = 1 << 20, MOST_BYTES = 16 << 20 };
    if (!(comm_op_traits_of(h->kind)->traits & COMM_OP_TRAIT_REDUCES))
        return 1;
    uint64_t bytes = operation_bytes(p, h);
    return p->fabric->up_count > 1 && !goes_one_way(h->kind) && bytes > CACHED_BYTES && bytes <= MOST_BYTES;
}

/* Is it worth the kernel's time? One that goes one way goes faster through the ring if it is long, for then both ranks
 * copy at a time. */
static int suits_kernel(struct duplex *p, const struct frame *h, const struct loan *l)
{
    const struct fabric *f = p->fabric;
    int one_way = goes_one_way(h->kind);
    return lend_peer_can_read(p) && is_for_the_kernel(p, h) &&
           (!one_way || h->bytes <= (uint64_t)f->cma_bytes) &&
           (l->by_kernel || kernel_is_faster(p, h, one_way, l->splits)) &&
           lend_kernel_reads(p->fabric, l->payload, (size_t)h->bytes);
}

int lend_has_slot(struct duplex *p)
{
    if (p->stuck)
        write_back_free_slots(p);
    return p->loans != (1u << RING_LOANS) - 1;
}

int lend_is_sooner(struct duplex *p, const struct frame *h, struct loan *l, enum lend_flow flow)
{
    uint32_t traits = comm_op_traits_of(h->kind)->traits;
    if (!lend_peer_can_read(p) || (traits & COMM_OP_TRAIT_REDUCES) || h->bytes > (uint64_t)p->fabric->cma_bytes ||
        !lend_has_slot(p))
        return 0;
    l->place = (struct ring_place){ .at = (uintptr_t)l->payload };
    return eager_kernel_is_faster(p, h, flow, l->splits) && lend_kernel_reads(p->fabric, l->payload, l->bytes);
}

int lend_suits(struct duplex *p, const struct frame *h, struct loan *l)
{
    const struct region *r;
    if (!lend_has_slot(p))
        return 0;
    if (l->write_back && write_back_suits(p, h, l))
        return 1;
    if (l->must_write_back)
        return 0;
    if (p->fabric->regions && (r = region_of(p, l->payload, l->bytes)))
        l->place = region_place(r, l->payload);
    else if (suits_kernel(p, h, l))
        l->place = (struct ring_place){ .at = (uintptr_t)l->payload };
    else
        return 0;
    return 1;
}

/* Might the kernel read it another time, it is then faster from huge pages; so they are asked for. */
void lend_not(struct duplex *p, const struct frame *h, const struct loan *l)
{
    enum { LONG_BYTES = HUGE_PAGE_BYTES / 2 };
    if (l->bytes >= LONG_BYTES && comm_op_traits_of(h->kind) && is_for_the_kernel(p, h) && !goes_one_way(h->kind) &&
        lend_peer_can_read(p))
        huge_pages_moved(&p->fabric->domain->huge_pages, l->payload, l->bytes);
}

/* Half of the slots are for what the peer asks for. One copy is staged ahead: the next ones are in the cache still when
 * the peer reads them if they are made then. */
int lend_has_offers(struct duplex *p)
{
    if (p->stuck)
        write_back_free_slots(p);
    return !p->staged && __builtin_popcount(p->loans) - p->copies_lent < RING_LOANS / 2;
}

void lend_begin(struct duplex *p, struct loan *l)
{
    struct ring_place *place = &l->place;
    place->slot = (uint32_t)__builtin_ctz(~p->loans);
    p->loans |= 1u << place->slot;
    p->loan = p->loan == LOAN_CLAIMED - 1 ? 1 : p->loan + 1; /* 0 is none */
    place->loan = p->loan;
    if (place->back_region)
        write_back_begin(p, l);
    if (l->splits && !place->region)
        split_offer(p, l);
    if (!place->region)
        huge_pages_moved(&p->fabric->domain->huge_pages, l->payload, l->bytes);
    atomic_store_explicit(&p->out.shared->valid[place->slot], p->loan, memory_order_relaxed);
}

static uint32_t taken(const struct duplex *p, const struct loan *l)
{
    return atomic_load_explicit(&p->out.shared->taken[l->place.slot], memory_order_acquire);
}

int lend_is_taken(const struct duplex *p, const struct loan *l)
{
    return (taken(p, l) & ~LOAN_WRITTEN) == l->place.loan;
}

int lend_take_result(struct duplex *p, const struct loan *l)
{
    if (!l->place.back_region || taken(p, l) != (l->place.loan | LOAN_WRITTEN))
        return 0;
    write_back_take(p, l);
    return 1;
}

int lend_withdraw(struct duplex *p, const struct loan *l)
{
    uint32_t loan = l->place.loan;
    return atomic_compare_exchange_strong(&p->out.shared->valid[l->place.slot], &loan, 0);
}

void lend_end(struct duplex *p, const struct loan *l)
{
    if (p->out.shared) {
        /* Before the memory is the user's again: see lend_settle and write_back.c. */
        atomic_store_explicit(&p->out.shared->valid[l->place.slot], 0, memory_order_relaxed);
        ring_fence();
    }
    if (!l->place.back_region || write_back_end(p, l))
        p->loans &= ~(1u << l->place.slot);
}

void lend_end_all(struct duplex *p)
{
    for (uint32_t slot = 0; p->segment.shared && slot < RING_LOANS; slot++)
        if (p->loans >> slot & 1)
            atomic_store_explicit(&p->out.shared->valid[slot], 0, memory_order_relaxed);
    ring_fence();
}

/* ---- The receiver ---- */

/* Does this number stand for a thread of the peer's? */
static int is_peers(const struct duplex *p, pid_t thread)
{
    uint64_t word = 0;
    struct iovec local = { &word, sizeof word };
    struct iovec remote = { (void *)(uintptr_t)atomic_load(&p->in.shared->probe_at), sizeof word };
    return process_vm_readv(thread, &local, 1, &remote, 1, 0) == sizeof word && word == p->in.shared->probe_word;
}

int lend_finds_thread(struct duplex *p)
{
    enum { SOME = 64 };
    pid_t threads[SOME];
    int count = p->sees_threads ? writer_threads(p->pid, threads, SOME) : 0;
    for (int i = 0; i < count; i++)
        if (threads[i] != p->pid && is_peers(p, threads[i])) {
            p->thread = threads[i];
            return 1;
        }
    errno = ESRCH;
    return 0;
}

/* While the process lives, its own number is no other one's; that of another thread of it may be, later. */
static int may_be_another(const struct duplex *p)
{
    return p->thread != p->pid && !is_peers(p, p->thread);
}

/* Perhaps less; as process_vm_readv. */
static ssize_t read_some(struct duplex *p, void *to, uint64_t from, size_t bytes)
{
    struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };
    ssize_t n = process_vm_readv(p->thread, &local, 1, &remote, 1, 0);
    int is_lost = n < 0 ? errno == ESRCH : may_be_another(p);
    if (!is_lost)
        return n;
    return lend_finds_thread(p) ? process_vm_readv(p->thread, &local, 1, &remote, 1, 0) : -1;
}

int lend_read_memory(struct duplex *p, void *to, uint64_t from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read_some(p, (uint8_t *)to + done, from + done, bytes - done);
        if (n <= 0) {
            errno = n ? errno : EFAULT;
            return 0;
        }
        done += (size_t)n;
    }
    return 1;
}

_Static_assert(sizeof(struct ring_part) == sizeof(struct iovec) &&
                   offsetof(struct ring_part, at) == offsetof(struct iovec, iov_base) &&
                   offsetof(struct ring_part, bytes) == offsetof(struct iovec, iov_len),
               "the kernel reads the places as struct iovec");

int lend_write_memory(struct duplex *p, const void *data, size_t bytes, const struct ring_part *to)
{
    const struct iovec from = { (void *)data, bytes };
    if (may_be_another(p) && !lend_finds_thread(p))
        return 0;
    ssize_t n = process_vm_writev(p->thread, &from, 1, (const struct iovec *)to, 1, 0);
    if (n < 0 && errno == ESRCH && lend_finds_thread(p))
        n = process_vm_writev(p->thread, &from, 1, (const struct iovec *)to, 1, 0);
    if (n < 0 && (errno == EPERM || errno == ENOSYS))
        atomic_store_explicit(&p->in.shared->can_write, 0, memory_order_relaxed);
    return n == (ssize_t)bytes;
}

/* The first reads after messages that came through the ring take up to ten times as long as others, as what they read
 * and write is not in the caches. So they are measured only if there are no others. */
static int is_measured(struct duplex *p, size_t bytes)
{
    enum { MEASURED_BYTES = LEND_EAGER_LEAST, LONG_BYTES = 256 << 10, COLD = 2, MANY = 8, OFTEN = 4, LEAST_OFTEN = 32 };
    if (bytes < MEASURED_BYTES)
        return 0;
    uint32_t in_a_row = p->pieces == p->pieces_before ? p->reads_in_a_row : 0;
    p->pieces_before = p->pieces;
    p->reads_in_a_row = in_a_row + 1;
    int is_due = in_a_row >= COLD && (bytes >= LONG_BYTES || in_a_row < MANY || in_a_row % OFTEN == 0);
    p->reads_unmeasured = is_due || p->reads_unmeasured == LEAST_OFTEN ? 0 : p->reads_unmeasured + 1;
    return p->reads_unmeasured == 0;
}

/* The fastest of the first few: one of them alone may have met memory that was new. Until then nothing is told, for a
 * sender that takes the ring then learns no more for long. */
static void note_read(struct duplex *p, int64_t ns, size_t bytes)
{
    enum { FEW = 4 };
    int64_t *known_ns = &p->read_ns[p->borrowed_kind], this_ns = 0;
    uint8_t *reads = &p->reads_noted[p->borrowed_kind];
    if (*reads == FEW) {
        copy_out_note(known_ns, ns, bytes);
    } else {
        copy_out_note(&this_ns, ns, bytes);
        *known_ns = *reads == 0 || this_ns < *known_ns ? this_ns : *known_ns;
        if (++*reads < FEW)
            return;
    }
    atomic_store_explicit(&p->in.shared->read_ns[p->borrowed_kind], (uint32_t)*known_ns, memory_order_relaxed);
}

/* A part of a message. Now and then the sender is told how long it took. */
static ssize_t read_part(struct duplex *p, void *to, uint64_t from, size_t bytes)
{
    if (!is_measured(p, bytes))
        return read_some(p, to, from, bytes);
    int64_t began_ns = clock_now_ns();
    ssize_t n = read_some(p, to, from, bytes);
    if (n != (ssize_t)bytes)
        return n;
    note_read(p, clock_now_ns() - began_ns - p->fabric->cma_call_ns, bytes);
    return n;
}

/* What a read of so many bytes costs, of this process's own memory: until reads of a peer's are measured. The
 * least of a few. */
static int64_t read_ns(void *to, const void *from, size_t bytes)
{
    enum { TURNS = 5 };
    struct iovec local = { to, bytes }, remote = { (void *)from, bytes };
    int64_t least_ns = INT64_MAX;
    for (int i = 0; i < TURNS; i++) {
        int64_t began_ns = clock_now_ns();
        if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != (ssize_t)bytes)
            return 0;
        int64_t ns = clock_now_ns() - began_ns;
        least_ns = ns < least_ns ? ns : least_ns;
    }
    return least_ns;
}

/* Some 100 us, once. */
static void measure_kernel(struct fabric *f)
{
    enum { SHORT_BYTES = 64 };
    uint8_t *memory = !f->cma_measured || f->cma_copy_ns ? NULL : calloc(2, COPY_OUT_UNIT);
    if (!memory)
        return;
    memset(memory, 1, 2 * COPY_OUT_UNIT);
    int64_t long_ns = read_ns(memory, memory + COPY_OUT_UNIT, COPY_OUT_UNIT);
    f->cma_call_ns = read_ns(memory, memory + COPY_OUT_UNIT, SHORT_BYTES);
    f->cma_copy_ns = long_ns > f->cma_call_ns ? long_ns - f->cma_call_ns : 1;
    free(memory);
}

int lend_is_allowed(const struct fabric *f)
{
    int scope = '0', word = 1, copy = 0;
    FILE *yama = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (yama) {
        scope = fgetc(yama);
        fclose(yama);
    } else if (errno != ENOENT) {
        return 0;
    }
    struct iovec local = { &copy, sizeof copy }, remote = { &word, sizeof word };
    return f->cma_bytes && scope == '0' && process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == sizeof word;
}

void lend_probe(struct duplex *p)
{
    struct ring_shared *shared = p->in.shared;
    uint64_t at = atomic_load_explicit(&shared->probe_at, memory_order_acquire), word = 0;
    if (p->probed || !at)
        return;
    p->probed = 1;
    p->pid = p->thread = greeting_peer(p->watch.fd);
    if (p->pid > 0 && (!p->fabric->cma_bytes || !lend_read_memory(p, &word, at, sizeof word) ||
                       word != shared->probe_word))
        p->pid = 0;
    if (p->pid > 0) {
        p->sees_threads = writer_is_seen(p->pid);
        write_back_probe(p, at, word);
        measure_kernel(p->fabric);
        atomic_store_explicit(&shared->can_read, 1, memory_order_release);
    }
}

int lend_claim(struct duplex *p, const struct ring_place *place)
{
    uint32_t loan = place->loan;
    return atomic_compare_exchange_strong(&p->in.shared->valid[place->slot], &loan, loan | LOAN_CLAIMED);
}

void lend_give_up_claim(struct duplex *p, const struct ring_place *place)
{
    uint32_t claimed = place->loan | LOAN_CLAIMED;
    atomic_compare_exchange_strong(&p->in.shared->valid[place->slot], &claimed, place->loan);
}

const char *lend_check(const struct ring_place *place)
{
    if (place->slot >= RING_LOANS || place->loan == 0 || place->loan >= LOAN_CLAIMED)
        return "a message that is read in its memory, with a number that makes no sense";
    return NULL;
}

const char *lend_accept(struct duplex *p, const struct frame *h, const struct ring_place *place)
{
    const char *wrong = lend_check(place);
    if (wrong)
        return wrong;
    const uint32_t back_region = place->back_region != RING_BACK_BY_KERNEL ? place->back_region : 0;
    p->borrowed_data = place->region ? region_find(p, place->region, place->at, h->bytes) : NULL;
    p->borrowed_back = back_region ? region_find(p, back_region, place->back_at, h->bytes) : NULL;
    int missing = (place->region ? !p->borrowed_data : p->pid <= 0) || (back_region && !p->borrowed_back);
    /* The memory of a loan that was taken back may be gone already; lend_read drops it. */
    if (missing && lend_is_valid(p, place))
        return "a message that is read in its memory, of which it has told nothing";
    p->borrowed = *place;
    p->borrowed_size = write_back_size(h);
    p->borrowed_kind = kind_of_reads(goes_one_way(h->kind), split_is_offered(p, place, (size_t)h->bytes));
    return NULL;
}

/* All is read. Was the loan still valid then? */
void lend_settle(struct duplex *p, int written)
{
    const struct ring_place place = p->borrowed;
    ring_fence();
    if (!lend_is_valid(p, &place)) {
        duplex_drop_borrowed(p);
        return;
    }
    p->borrowed.loan = 0;
    if (written)
        p->port.sink.message->written_back = 1;
    atomic_store_explicit(&p->in.shared->taken[place.slot], place.loan | (written ? LOAN_WRITTEN : 0),
                          memory_order_release);
    duplex_ring_bell(p);
    port_complete(&p->port);
}

/* Memory of a loan that was taken back meanwhile may be gone. */
void lend_cannot_read(struct duplex *p, size_t bytes, int error)
{
    ring_fence();
    if (!lend_is_valid(p, &p->borrowed))
        duplex_drop_borrowed(p);
    else if (error == ETIMEDOUT)
        port_lose(&p->port, COMM_ERR_PEER_LOST,
                  "has not come back for 2 s from writing a part of a message of %zu bytes to this rank's memory, and "
                  "may write still; set COMM_SHM_CMA_BYTES=0 if that happens again", bytes);
    else if (error == ESRCH)
        port_lose(&p->port, COMM_ERR_PEER_LOST, "does not exist any more: its process has ended, or was killed");
    else
        port_lose(&p->port, COMM_ERR_SYSTEM, "sent %zu bytes that the kernel does not let another process read: %s; "
                  "set COMM_SHM_CMA_BYTES=0", bytes, strerror(error));
}

/* The sender copies a part of it, too. */
static int read_split(struct duplex *p, const struct ring_place *place, uint8_t *to, size_t bytes)
{
    int64_t began_ns = is_measured(p, bytes) ? clock_now_ns() : 0;
    if (!split_read(p, place, to, bytes)) {
        lend_cannot_read(p, bytes, errno);
        return 0;
    }
    if (began_ns)
        note_read(p, clock_now_ns() - began_ns - p->fabric->cma_call_ns, bytes);
    return 1;
}

/* All of it, if both ranks copy it to where it belongs: 0 if they do not. What is left then could not be read. */
static int feed_split(struct duplex *p)
{
    struct sink *s = &p->port.sink;
    int is_whole = (s->kind == SINK_COPY && s->dst_bytes >= s->total) || s->kind == SINK_UNEXPECTED;
    if (!is_whole || s->done || !split_is_offered(p, &p->borrowed, s->total)) {
        p->borrowed_kind = p->borrowed_kind == READS_SPLIT ? READS_ONE_WAY : p->borrowed_kind;
        return 0;
    }
    if (read_split(p, &p->borrowed, s->dst, s->total))
        sink_feed(s, p->port.table->bounce, s->dst, s->total);
    return 1;
}

void lend_read(struct duplex *p)
{
    struct sink *s = &p->port.sink;
    uint8_t *bounce = p->port.table->bounce;
    size_t before = s->done;
    if (!lend_is_valid(p, &p->borrowed)) {
        duplex_drop_borrowed(p);
        return;
    }
    if (write_back_is_wanted(p)) {
        write_back_reduce(p);
        return;
    }
    if (s->kind == SINK_DISCARD)
        s->done = s->total;
    if (!p->borrowed_data && feed_split(p) && sink_left(s))
        return;
    while (p->borrowed_data && sink_left(s) && s->done - before < STEP_BYTES) {
        size_t bytes = sink_takes(s, STEP_BYTES);
        sink_feed(s, bounce, p->borrowed_data + s->done, bytes);
    }
    while (sink_left(s) && s->done - before < STEP_BYTES) {
        size_t bytes;
        uint8_t *window = sink_window(s, bounce, &bytes);
        if (bytes > STEP_BYTES)
            bytes = STEP_BYTES;
        ssize_t n = read_part(p, window, p->borrowed.at + s->done, bytes);
        if (n <= 0) {
            lend_cannot_read(p, s->total, n < 0 ? errno : EFAULT);
            return;
        }
        sink_feed(s, bounce, window, (size_t)n);
    }
    if (sink_left(s) == 0)
        lend_settle(p, 0);
}

/* So many bytes of what is borrowed; 0 if the kernel does not read them. */
static int read_all(struct duplex *p, uint8_t *to, size_t bytes)
{
    if (p->borrowed_data)
        memcpy(to, p->borrowed_data, bytes);
    for (size_t done = 0; !p->borrowed_data && done < bytes;) {
        ssize_t n = read_part(p, to + done, p->borrowed.at + done, bytes - done);
        if (n <= 0) {
            lend_cannot_read(p, bytes, n < 0 ? errno : EFAULT);
            return 0;
        }
        done += (size_t)n;
    }
    return 1;
}

/* What is read at once is borrowed for as long as that takes. 0: it makes no sense, and the peer is lost. */
static int borrow_now(struct duplex *p, const struct frame *h, const struct ring_place *place)
{
    const char *wrong = lend_accept(p, h, place);
    if (wrong)
        port_lose(&p->port, COMM_ERR_PROTOCOL, "sent %s", wrong);
    return !wrong;
}

/* 0: it is not read, or has been taken back meanwhile. */
static int settle_now(struct duplex *p, const struct ring_place *place, int is_read, int written)
{
    p->borrowed.loan = 0;
    ring_fence();
    if (!is_read || !lend_is_valid(p, place))
        return 0;
    atomic_store_explicit(&p->in.shared->taken[place->slot], place->loan | (written ? LOAN_WRITTEN : 0),
                          memory_order_release);
    duplex_ring_bell(p);
    return 1;
}

int lend_read_now(struct duplex *p, const struct frame *h, const struct ring_place *place, void *to)
{
    const size_t bytes = (size_t)h->bytes;
    if (!borrow_now(p, h, place))
        return 0;
    int is_read = lend_is_valid(p, place) && (split_is_offered(p, place, bytes) ? read_split(p, place, to, bytes)
                                                                           : read_all(p, to, bytes));
    return settle_now(p, place, is_read, 0);
}

int lend_reduce_now(struct duplex *p, const struct frame *h, const struct ring_place *place, struct sink *s,
                    int *ret_written)
{
    if (!borrow_now(p, h, place))
        return 0;
    int can = lend_is_valid(p, place) && write_back_can(p, s), written = can ? write_back_now(p, s) : -1;
    *ret_written = written > 0;
    return settle_now(p, place, written >= 0, written > 0);
}

#include "lend.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <sys/uio.h>

#include "duplex.h"
#include "greeting.h"
#include "region.h"

enum { STEP_BYTES = 1 << 20 }; /* between looks at what else has come */

/* ---- The sender ---- */

/* The kernel does not read all memory for other processes (that of devices, say). What this process can be read from
 * itself, another one can. */
static int kernel_reads(struct fabric *f, const void *payload, size_t bytes)
{
    struct lendable *known = &f->lendable[((uintptr_t)payload >> 12) % SHM_LENDABLE];
    if (known->payload == payload && known->bytes == bytes)
        return 1;
    uint8_t ends[2];
    struct iovec to = { ends, 2 };
    struct iovec from[2] = { { (void *)payload, 1 }, { (uint8_t *)payload + bytes - 1, 1 } };
    if (process_vm_readv(getpid(), &to, 1, from, 2, 0) != 2)
        return 0;
    *known = (struct lendable){ payload, bytes };
    return 1;
}

/* Is it worth the kernel's time? One that goes one way goes faster through the ring if it is long, for then both ranks
 * copy at a time. What a reduction sends has just been written, and the kernel is slow to read what the other core has
 * in its cache, modified. */
static int suits_kernel(struct duplex *p, const struct frame *h, const void *payload)
{
    const struct fabric *f = p->fabric;
    uint32_t traits = comm_op_traits_of(h->kind)->traits;
    int goes_one_way = (traits & (COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_PEER)) != 0;
    return f->cma_bytes && !(traits & COMM_OP_TRAIT_REDUCES) && (!goes_one_way || h->bytes <= (uint64_t)f->cma_bytes) &&
           atomic_load_explicit(&p->out.shared->can_read, memory_order_relaxed) &&
           kernel_reads(p->fabric, payload, (size_t)h->bytes);
}

int lend_suits(struct duplex *p, const struct frame *h, const void *payload, struct ring_place *ret_place)
{
    const struct region *r;
    if (p->loans == (1u << RING_LOANS) - 1)
        return 0;
    if (p->fabric->regions && (r = region_of(p, payload, (size_t)h->bytes)))
        *ret_place = region_place(r, payload);
    else if (suits_kernel(p, h, payload))
        *ret_place = (struct ring_place){ .at = (uintptr_t)payload };
    else
        return 0;
    return 1;
}

void lend_begin(struct duplex *p, struct ring_place *place)
{
    place->slot = (uint32_t)__builtin_ctz(~p->loans);
    p->loans |= 1u << place->slot;
    p->loan += p->loan == UINT32_MAX ? 2 : 1; /* 0 is none */
    place->loan = p->loan;
    atomic_store_explicit(&p->out.shared->valid[place->slot], p->loan, memory_order_relaxed);
}

int lend_is_taken(const struct duplex *p, const struct ring_place *place)
{
    return atomic_load_explicit(&p->out.shared->taken[place->slot], memory_order_acquire) == place->loan;
}

void lend_end(struct duplex *p, const struct ring_place *place)
{
    p->loans &= ~(1u << place->slot);
    if (!p->out.shared)
        return;
    /* Before the memory is the user's again: see settle. */
    atomic_store_explicit(&p->out.shared->valid[place->slot], 0, memory_order_relaxed);
    ring_fence();
}

/* ---- The receiver ---- */

static ssize_t read_memory(const struct duplex *p, void *to, uint64_t from, size_t bytes)
{
    struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };
    return process_vm_readv(p->pid, &local, 1, &remote, 1, 0);
}

void lend_probe(struct duplex *p)
{
    struct ring_shared *shared = p->in.shared;
    uint64_t at = atomic_load_explicit(&shared->probe_at, memory_order_acquire), word = 0;
    if (p->probed || !at)
        return;
    p->probed = 1;
    p->pid = greeting_peer(p->watch.fd);
    if (p->pid > 0 && (!p->fabric->cma_bytes || read_memory(p, &word, at, sizeof word) != sizeof word ||
                       word != shared->probe_word))
        p->pid = 0;
    if (p->pid > 0)
        atomic_store_explicit(&shared->can_read, 1, memory_order_release);
}

const char *lend_accept(struct duplex *p, const struct frame *h, const struct ring_place *place)
{
    if (place->slot >= RING_LOANS || place->loan == 0)
        return "a message that is read in its memory, with a number that makes no sense";
    p->borrowed_data = place->region ? region_find(p, place, h->bytes) : NULL;
    if (place->region ? !p->borrowed_data : p->pid <= 0)
        return "a message that is read in its memory, which this rank does not have";
    p->borrowed = *place;
    return NULL;
}

/* All is read. Was the loan still valid then? */
static void settle(struct duplex *p)
{
    const struct ring_place place = p->borrowed;
    ring_fence();
    if (atomic_load_explicit(&p->in.shared->valid[place.slot], memory_order_relaxed) != place.loan) {
        duplex_drop_borrowed(p);
        return;
    }
    p->borrowed.loan = 0;
    atomic_store_explicit(&p->in.shared->taken[place.slot], place.loan, memory_order_release);
    duplex_ring_bell(p);
    port_complete(&p->port);
}

static void cannot_read(struct duplex *p, size_t bytes, int error)
{
    if (error == ESRCH)
        port_lose(&p->port, COMM_ERR_PEER_LOST, "does not exist any more: its process has ended, or was killed");
    else
        port_lose(&p->port, COMM_ERR_SYSTEM, "sent %zu bytes that the kernel does not let another process read: %s; "
                  "set COMM_SHM_CMA_BYTES=0", bytes, strerror(error));
}

void lend_read(struct duplex *p)
{
    struct sink *s = &p->port.sink;
    uint8_t *bounce = p->port.table->bounce;
    size_t before = s->done;
    if (s->kind == SINK_DISCARD)
        s->done = s->total;
    while (p->borrowed_data && sink_left(s) && s->done - before < STEP_BYTES) {
        size_t bytes = sink_takes(s, STEP_BYTES);
        sink_feed(s, bounce, p->borrowed_data + s->done, bytes);
    }
    while (sink_left(s) && s->done - before < STEP_BYTES) {
        size_t bytes;
        uint8_t *window = sink_window(s, bounce, &bytes);
        if (bytes > STEP_BYTES)
            bytes = STEP_BYTES;
        ssize_t n = read_memory(p, window, p->borrowed.at + s->done, bytes);
        if (n <= 0) {
            cannot_read(p, s->total, n < 0 ? errno : EFAULT);
            return;
        }
        sink_feed(s, bounce, window, (size_t)n);
    }
    if (sink_left(s) == 0)
        settle(p);
}

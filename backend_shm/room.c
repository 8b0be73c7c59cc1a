#include "room.h"

#include "duplex.h"
#include "fabric.h"

/* A rank stands still for a moment when it waits: one that yields gives its core to ranks that read until nothing is
 * left. If 128 messages fit into half of a ring it does so once in so many, for all its peers at the same time: then it
 * is no matter of the 99th percentile. (Broadcasts of 1 and 2 KiB between two ranks on Emerald Rapids: 0.27 and 0.47 us
 * so, and 2.4 and 3.0 when it went on after 64 KiB.) Else one that spins goes on when the peer has read a few. */
static size_t wanted_bytes(const struct duplex *p, size_t bytes)
{
    enum { SOME = 64 << 10, HALF = 2, MANY = 256 };
    size_t whole = p->out.capacity * RING_LANES * RING_LINE;
    whole = whole < PORT_CREDIT_WINDOW ? whole : PORT_CREDIT_WINDOW;
    int seldom = bytes < whole / MANY;
    size_t wanted = seldom || SOME > whole / HALF ? whole / HALF : SOME;
    return wanted > bytes ? wanted : bytes;
}

/* In the lane that the next record goes to. */
static int has_space(struct duplex *p, size_t bytes, size_t wanted)
{
    uint64_t lines = wanted / RING_LANES / RING_LINE, least = room_lines(&p->out, bytes);
    lines = lines > least ? lines : least;
    lines = lines < p->out.capacity ? lines : p->out.capacity;
    return ring_free(&p->out, lines) >= (int64_t)lines;
}

/* The peer clears it whenever it gives credit back. */
static void say_that_it_waits(struct duplex *p)
{
    _Atomic uint32_t *awaits = &p->out.shared->awaits_credit;
    if (!atomic_load_explicit(awaits, memory_order_relaxed))
        atomic_store_explicit(awaits, 1, memory_order_relaxed);
}

int room_await(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns)
{
    enum { PATIENT = 4 };
    const size_t wanted = wanted_bytes(p, bytes);
    const int64_t step_ns = waiting_spins(f->looks.waiting) ? PATIENT * spin_ns : spin_ns;
    int64_t credit = p->port.credit;
    if (room_lines(&p->out, bytes) > p->out.capacity)
        return 0;
    for (unsigned turn = 1;; turn++) {
        int others = !duplex_read_credit(p);
        if (p->port.state != PORT_UP || p->tx_head)
            return 0;
        if (port_has_credit(&p->port, wanted) && has_space(p, bytes, wanted)) {
            fabric_found(f, turn, *until_ns);
            return 1;
        }
        say_that_it_waits(p);
        if (credit != p->port.credit) /* the peer reads: the next credit is awaited as long again */
            *until_ns = 0;
        credit = p->port.credit;
        if (others || !fabric_look_again(f, turn, FABRIC_LOOKS_ONCE, step_ns, until_ns))
            return 0;
    }
}

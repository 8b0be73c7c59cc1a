#include "room.h"

#include "duplex.h"
#include "fabric.h"

/* What a peer can be sent before it reads. */
static size_t whole_bytes(const struct duplex *p)
{
    size_t ring = p->out.capacity * RING_LANES * RING_LINE;
    return ring < PORT_CREDIT_WINDOW ? ring : PORT_CREDIT_WINDOW;
}

/* In the ring, and of credit. */
static size_t message_bytes(size_t bytes)
{
    size_t lines = ring_frame_lines((uint32_t)bytes) * RING_LINE, credit = bytes + PORT_FRAME_COST;
    return lines > credit ? lines : credit;
}

/* The lanes are used in turn, and only the next one is looked at, so that the other one may have space for one message
 * less. */
static size_t batch_bytes(uint64_t batch, size_t bytes)
{
    return (batch + RING_LANES) * message_bytes(bytes);
}

uint64_t room_batch(const struct duplex *p, size_t bytes)
{
    enum { LEAST = 128, MOST = 1024, SPARE = 8, KEPT = PORT_CREDIT_WINDOW / 4 };
    size_t whole = whole_bytes(p), most = whole - whole / SPARE;
    if (most > PORT_CREDIT_WINDOW - KEPT) /* the peer gives it back in steps of up to so much */
        most = PORT_CREDIT_WINDOW - KEPT;
    uint64_t batch = LEAST;
    if (batch_bytes(batch, bytes) > most)
        return 0;
    while (batch < MOST && batch_bytes(2 * batch, bytes) <= most)
        batch *= 2;
    return batch;
}

/* A rank stands still for a moment when it waits: one that yields gives its core to ranks that read until nothing is
 * left. If 128 messages fit into half of a ring it does so once in so many, for all its peers at the same time: then it
 * is no matter of the 99th percentile. (Broadcasts of 1 and 2 KiB between two ranks on Emerald Rapids: 0.27 and 0.47 us
 * so, and 2.4 and 3.0 when it went on after 64 KiB.) Else it goes on when the peer has read a few: where ranks share
 * cores sooner, as the next wait is shorter then, too. (Reductions of 4 and 8 KiB between 4 ranks on 2 cores: 99th
 * percentile 10 and 9 us so, and 21 and 17 with 64 KiB; the mean is 1.34 us, not 1.27, and the same.) */
static size_t wanted_bytes(const struct duplex *p, size_t bytes)
{
    enum { SOME = 64 << 10, SOME_OF_CROWD = 16 << 10, HALF = 2, MANY = 256 };
    const size_t whole = whole_bytes(p), some = p->fabric->domain->shares_cores ? SOME_OF_CROWD : SOME;
    int seldom = bytes < whole / MANY;
    size_t wanted = seldom || some > whole / HALF ? whole / HALF : some;
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

static int await(struct fabric *f, struct duplex *p, size_t bytes, size_t wanted, int64_t spin_ns, int64_t *until_ns)
{
    enum { PATIENT = 4 };
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

int room_await(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns)
{
    return await(f, p, bytes, wanted_bytes(p, bytes), spin_ns, until_ns);
}

int room_await_batch(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns)
{
    return await(f, p, bytes, batch_bytes(room_batch(p, bytes), bytes), spin_ns, until_ns);
}

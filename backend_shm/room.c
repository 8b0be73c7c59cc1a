#include "room.h"

#include "duplex.h"
#include "fabric.h"

/* A rank that spins goes on when the peer has read a few messages: it stands still for a moment each time. One that
 * yields gives its core to ranks that read until nothing is left, and stands still for longer. If many messages fit
 * into a ring it does so once in so many, for all its peers at the same time: then it is no matter of the 99th
 * percentile. */
static size_t wanted_bytes(const struct duplex *p, size_t bytes)
{
    enum { SOME = 64 << 10, HALF = 2, MANY = 128 };
    size_t whole = p->out.capacity * RING_LANES * RING_LINE;
    whole = whole < PORT_CREDIT_WINDOW ? whole : PORT_CREDIT_WINDOW;
    int seldom = !waiting_spins(p->fabric->looks.waiting) && bytes < whole / MANY;
    size_t wanted = seldom || SOME > whole / HALF ? whole / HALF : SOME;
    return wanted > bytes ? wanted : bytes;
}

/* Of the lane that the next message goes to. A longer one than it holds is written in pieces as there is space. */
static int has_space(struct duplex *p, size_t bytes, size_t wanted)
{
    uint64_t lines = wanted / RING_LANES / RING_LINE, least = ring_frame_lines((uint32_t)bytes);
    lines = lines > least ? lines : least;
    lines = lines < p->out.capacity ? lines : p->out.capacity;
    return ring_free(&p->out, lines) >= (int64_t)lines;
}

int room_await(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns)
{
    const size_t wanted = wanted_bytes(p, bytes);
    for (unsigned turn = 1; p->port.state == PORT_UP; turn++) {
        int others = !duplex_read_credit(p);
        if (port_has_credit(&p->port, wanted) && has_space(p, bytes, wanted)) {
            fabric_found(f, turn, *until_ns);
            return 1;
        }
        if (others || !fabric_look_again(f, turn, FABRIC_LOOKS_ONCE, spin_ns, until_ns))
            break;
    }
    return 0;
}

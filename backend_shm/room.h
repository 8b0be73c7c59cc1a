/* Room at a peer for what is sent at once: space in the ring, and credit. A rank that only sends runs ahead of its
 * peers until there is none. The engine would announce the message then, and all that is on its way would have to be
 * read before this rank goes on. It waits for some room here instead. */
#ifndef COMM_SHM_ROOM_H
#define COMM_SHM_ROOM_H

#include "shm.h"

/* Lines of the record with a payload of so many bytes, or with its first piece, if it is too long for one record. */
static inline uint64_t room_lines(const struct ring_out *r, size_t bytes)
{
    size_t piece = ring_piece_bytes(r->capacity);
    return ring_frame_lines((uint32_t)(bytes > RING_TAKEN && bytes > piece ? piece : bytes));
}

static inline int room_for(struct duplex *p, size_t bytes, uint64_t lines)
{
    return port_finds_credit(&p->port, bytes) && ring_free(&p->out, lines) >= (int64_t)lines;
}

static inline int room_is_there(struct duplex *p, size_t bytes)
{
    return room_for(p, bytes, room_lines(&p->out, bytes));
}

/* There is none: wait for it, and for some more, as the peer's word that it has read is not looked at for each message.
 * 0: that takes too long, or the peer has sent something else, which is to be read first; there may be room for this
 * message all the same. *until_ns begins at 0, and is kept where several peers are waited for. */
int room_await(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns);
/* So many messages of this length, a power of two, may a rank that only sends have under way; 0: too few of them that
 * waiting for each batch were seldom. Then it waits for room for a whole batch, as above. */
uint64_t room_batch(const struct duplex *p, size_t bytes);
int room_await_batch(struct fabric *f, struct duplex *p, size_t bytes, int64_t spin_ns, int64_t *until_ns);

#endif

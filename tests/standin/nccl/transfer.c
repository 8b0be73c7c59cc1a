/* Bytes between ranks, through the rings: several at once, those of a pair and direction in order. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

static void ring_write(struct ring *ring, uint64_t at, const void *from, size_t bytes)
{
    size_t start = at % RING_BYTES, first = bytes < RING_BYTES - start ? bytes : RING_BYTES - start;
    memcpy(ring->bytes + start, from, first);
    memcpy(ring->bytes, (const char *)from + first, bytes - first);
}

static void ring_read(const struct ring *ring, uint64_t at, void *into, size_t bytes)
{
    size_t start = at % RING_BYTES, first = bytes < RING_BYTES - start ? bytes : RING_BYTES - start;
    memcpy(into, ring->bytes + start, first);
    memcpy((char *)into + first, ring->bytes, bytes - first);
}

static bool is_done(const struct transfer *transfer)
{
    return transfer->has_header && transfer->moved == transfer->bytes && !transfer->end;
}

/* False: nothing could be done. */
static bool move_send(struct ncclComm *comm, struct transfer *transfer)
{
    struct ring *ring = &comm->segment->rings[comm->rank][transfer->peer];
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    uint64_t read = atomic_load(&ring->read), before = written;
    if (transfer->has_header && transfer->moved == transfer->bytes) {
        bool is_read = read >= transfer->end;
        if (is_read)
            transfer->end = 0;
        return is_read;
    }
    if (!transfer->has_header && RING_BYTES - (written - read) >= sizeof transfer->what) {
        ring_write(ring, written, &transfer->what, sizeof transfer->what);
        written += sizeof transfer->what;
        transfer->has_header = true;
    }
    size_t capacity = RING_BYTES - (written - read), left = transfer->bytes - transfer->moved;
    size_t now = !transfer->has_header ? 0 : capacity < left ? capacity : left;
    ring_write(ring, written, transfer->at + transfer->moved, now);
    transfer->moved += now;
    written += now;
    transfer->end = transfer->is_eager && transfer->moved == transfer->bytes ? 0 : written;
    if (written == before)
        return false;
    atomic_store_explicit(&ring->written, written, memory_order_release);
    if (!transfer->is_quiet)
        bell_ring(comm, transfer->peer);
    return true;
}

static void check_header(struct ncclComm *comm, const struct transfer *transfer, const struct signature *sent)
{
    struct signature wanted = transfer->what;
    if (wanted.kind == RECV)
        wanted.kind = SEND;
    if (sent->kind == wanted.kind && sent->type == wanted.type && sent->count == wanted.count &&
        sent->root == wanted.root)
        return;
    char own[TEXT_BYTES], other[TEXT_BYTES];
    standin_rule("let both ranks make the calls that belong together, in the same order",
                 "rank %d calls %s, and rank %d calls %s", comm->rank, describe(&transfer->what, own, sizeof own),
                 transfer->peer, describe(sent, other, sizeof other));
    comm_fail(comm, NCCL_INTERNAL_ERROR);
}

static bool move_recv(struct ncclComm *comm, struct transfer *transfer)
{
    struct ring *ring = &comm->segment->rings[transfer->peer][comm->rank];
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed), before = read;
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
    if (!transfer->has_header && written - read >= sizeof(struct signature)) {
        struct signature sent;
        ring_read(ring, read, &sent, sizeof sent);
        read += sizeof sent;
        transfer->has_header = true;
        check_header(comm, transfer, &sent);
    }
    size_t there = written - read, left = transfer->bytes - transfer->moved;
    size_t now = !transfer->has_header ? 0 : there < left ? there : left;
    ring_read(ring, read, transfer->at + transfer->moved, now);
    transfer->moved += now;
    read += now;
    if (read == before)
        return false;
    atomic_store(&ring->read, read);
    if (atomic_exchange(&ring->is_awaited, 0))
        bell_ring(comm, transfer->peer);
    return true;
}

/* There is something to read for it, or it has been read: seen when the peer had left already. */
static bool goes_on(struct ncclComm *comm, const struct transfer *transfer)
{
    struct segment *segment = comm->segment;
    struct ring *ring = transfer->is_send ? &segment->rings[comm->rank][transfer->peer]
                                          : &segment->rings[transfer->peer][comm->rank];
    uint64_t written = atomic_load(&ring->written), read = atomic_load(&ring->read);
    return transfer->is_send ? transfer->has_header && transfer->moved == transfer->bytes && read >= transfer->end
                             : read != written;
}

/* Peers that left will neither send nor read any more. */
static void check_gone(struct ncclComm *comm, const struct transfer *transfers, int count)
{
    for (int i = 0; i < count && !peers_are_silent(); i++) {
        struct seat *seat = &comm->segment->seats[transfers[i].peer];
        uint32_t state = atomic_load(&seat->state);
        if (!is_done(&transfers[i]) && (state == SEAT_LEFT || state == SEAT_ABORTED) && !goes_on(comm, &transfers[i])) {
            failed(NCCL_REMOTE_ERROR, "rank %d has closed the communicator", transfers[i].peer);
            comm_fail(comm, NCCL_REMOTE_ERROR);
        }
    }
}

/* Returns how many are left; `moved`: something was done. */
static int move_all(struct ncclComm *comm, struct transfer *transfers, int count, bool *moved)
{
    uint32_t busy[2] = {0, 0};
    int left = 0;
    for (int i = 0; i < count; i++) {
        struct transfer *transfer = &transfers[i];
        uint32_t bit = 1u << transfer->peer, *own = &busy[transfer->is_send];
        if (is_done(transfer))
            continue;
        bool all_moved = transfer->has_header && transfer->moved == transfer->bytes;
        if (all_moved || !(*own & bit))
            *moved |= transfer->is_send ? move_send(comm, transfer) : move_recv(comm, transfer);
        if (!(transfer->has_header && transfer->moved == transfer->bytes))
            *own |= bit;
        left += !is_done(transfer);
    }
    return left;
}

/* Before the sleep; a receiver that reads meanwhile is seen, or rings. False: there is a send that does not sleep
 * yet. */
static bool announce_sleep(struct ncclComm *comm, const struct transfer *transfers, int count)
{
    bool may_sleep = true;
    for (int i = 0; i < count; i++) {
        struct ring *ring = &comm->segment->rings[comm->rank][transfers[i].peer];
        if (transfers[i].is_send && !is_done(&transfers[i]))
            may_sleep &= atomic_exchange(&ring->is_awaited, 1) == 1;
    }
    return may_sleep;
}

static bool has_failed(struct ncclComm *comm)
{
    unsigned int result = atomic_load(&comm->result);
    return result && result != NCCL_IN_PROGRESS;
}

/* A communicator that has failed moves nothing more: its kernels hang until it is aborted. */
bool transfers_run(struct ncclComm *comm, struct transfer *transfers, int count)
{
    for (;;) {
        uint32_t seen = bell_read(comm);
        bool moved = false, hangs = has_failed(comm);
        if (!hangs && !move_all(comm, transfers, count, &moved))
            return true;
        if (moved || (!hangs && !announce_sleep(comm, transfers, count)))
            continue;
        if (!hangs)
            check_gone(comm, transfers, count);
        if (!bell_await(comm, seen))
            return false;
    }
}

/* Writes what this rank sends. The rings have room for it as soon as the peers have read what came before. */
static bool write_all(struct ncclComm *comm, struct transfer *transfers, int count)
{
    struct transfer sends[RANKS_MAX];
    int send_count = 0;
    for (int i = 0; i < count; i++)
        if (transfers[i].is_send)
            sends[send_count++] = transfers[i];
    for (int i = 0; i < send_count; i++) {
        sends[i].is_quiet = true;
        while (!sends[i].has_header || sends[i].moved < sends[i].bytes) {
            uint32_t seen = bell_read(comm);
            if (has_failed(comm) || (!move_send(comm, &sends[i]) && announce_sleep(comm, &sends[i], 1)))
                if (!bell_await(comm, seen))
                    return false;
        }
    }
    return true;
}

bool transfers_exchange(struct ncclComm *comm, struct transfer *transfers, int count)
{
    if (!count)
        return transfers_run(comm, transfers, count);
    if (!write_all(comm, transfers, count))
        return false;
    uint64_t all = ++comm->exchanges * (uint64_t)comm->size;
    bool is_last = atomic_fetch_add(&comm->segment->arrivals, 1) + 1 == all;
    for (int rank = 0; rank < comm->size && is_last; rank++)
        if (rank != comm->rank)
            bell_ring(comm, rank);
    int recvs = 0;
    for (int i = 0; i < count; i++)
        if (!transfers[i].is_send)
            transfers[recvs++] = transfers[i];
    for (;;) {
        uint32_t seen = bell_read(comm);
        bool hangs = has_failed(comm);
        if (!hangs && atomic_load(&comm->segment->arrivals) >= all)
            return transfers_run(comm, transfers, recvs);
        if (!hangs)
            check_gone(comm, transfers, recvs);
        if (!bell_await(comm, seen))
            return false;
    }
}

#include "fabric.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "accept.h"
#include "base/clock.h"
#include "descriptor.h"
#include "dial.h"
#include "duplex.h"
#include "events.h"
#include "greeting.h"
#include "keep.h"
#include "multicast.h"
#include "region.h"
#include "say.h"
#include "waiting.h"

/* ---- Open ---- */

static const struct port_ops duplex_ops = {
    .open = dial_open,
    .send = duplex_send,
    .offer = duplex_offer,
    .adopt = duplex_adopt,
    .accept = duplex_accept,
    .send_text = duplex_send_text,
    .give_credit = duplex_give_credit,
    .take_credit = duplex_take_credit,
    .read = duplex_read,
    .let_go = keep_let_go,
    .forget = duplex_forget,
    .sweep = duplex_sweep,
    .describe_trouble = dial_describe_trouble,
    .find_place = dial_find_place,
};

/* Each rank may have two rings with each other rank: the more ranks, the smaller. A ring of two ranks is longer than
 * the second caches of their cores, so that its lines lie in the last cache by the time that they are written again.
 * Those of a shorter ring must be taken from the reader's core: 64 KiB between two cores of one die took 6.1 us through
 * 512 KiB, 3.7 through 2 MiB. All rings of up to four ranks together are a fraction of the last cache. Of more than
 * four that share cores all rings are in the same few caches: an all_to_all of 64 KiB takes 8 ranks on 2 cores 46 us
 * through 128 KiB, and 93 through 512 KiB. */
size_t fabric_ring_bytes(const comm_world_info *info)
{
    enum { LONGEST = 2 << 20, ALL = 8 << 20, FEW_RANKS = 8, SOME_RANKS = 16, MANY_RANKS = 32 };
    size_t wanted = (size_t)exec_host->param_int(info->options, "shm", "ring_bytes"), bytes = segment_ring_least();
    int32_t ranks = waiting_local_ranks(info);
    if (wanted == 0) {
        int is_crowded = waiting_shares_cores(info);
        size_t least = ranks <= FEW_RANKS && !is_crowded    ? 512 << 10
                       : ranks <= SOME_RANKS && !is_crowded ? 256 << 10
                       : ranks <= MANY_RANKS                ? 128 << 10
                                                            : 64 << 10;
        size_t share = ranks < 2 ? LONGEST : ALL / ((size_t)ranks * (size_t)(ranks - 1));
        wanted = share < least ? least : share < LONGEST ? share : LONGEST;
    }
    while (bytes * 2 <= wanted && bytes < SEGMENT_RING_MAX)
        bytes *= 2;
    return bytes;
}

/* A small part of a ring, so that several messages are under way. */
int64_t fabric_eager_bytes(const comm_world_info *info)
{
    enum { LEAST = 16 << 10, MOST = 64 << 10, SHARE = 32 };
    int64_t wanted = exec_host->param_int(info->options, "shm", "eager_bytes");
    int64_t share = (int64_t)fabric_ring_bytes(info) / SHARE;
    return wanted >= 0 ? wanted : share < LEAST ? LEAST : share < MOST ? share : MOST;
}

/* As long as memory goes round for all pairs of this host's ranks, if all of them connect. */
static size_t ring_bytes_here(const comm_world_info *info)
{
    const size_t wanted = fabric_ring_bytes(info);
    const uint64_t ranks = (uint64_t)waiting_local_ranks(info);
    size_t bytes = segment_share(wanted, ranks * (ranks - 1) / 2);
    if (bytes < wanted)
        exec_log(COMM_LOG_WARN, "rank %d: shared memory is short: rings of %zu KiB instead of %zu KiB; allow "
                 "memfd_create, or make /dev/shm larger", (int)info->rank, bytes >> 10, wanted >> 10);
    return bytes;
}

static int has_duplex(const struct domain *d, int32_t rank)
{
    const struct port_table *peers = &d->peers;
    return !peers->at[rank] || (rank != peers->rank && d->hosts[rank] == d->hosts[peers->rank]);
}

comm_status fabric_init(struct fabric *f, struct domain *d, const struct carrier_driver *driver,
                        const struct carrier_looks *looks, const comm_world_info *info)
{
    f->domain = d;
    f->driver = driver;
    f->looks = *looks;
    f->store = info->store;
    f->connect_ms = exec_host->param_int(info->options, "shm", "connect_ms");
    f->ring_bytes = ring_bytes_here(info);
    f->cma_bytes = exec_host->param_int(info->options, "shm", "cma_bytes");
    f->cma_measured = (int)exec_host->param_int(info->options, "shm", "cma_measured");
    f->multicast_bytes = exec_host->param_int(info->options, "shm", "multicast_bytes");
    huge_pages_choose(&f->domain->huge_pages, exec_host->param_int(info->options, "shm", "huge_pages"));
    f->copy_way = (enum copy_out_way)exec_host->param_int(info->options, "shm", "past_caches");
    greeting_random(&f->probe_word, sizeof f->probe_word);
    f->epoll = f->bell.fd = f->listener.fd = -1;
    f->secret = strdup(info->secret ? info->secret : "");
    f->duplexes = calloc((size_t)info->size, sizeof *f->duplexes);
    f->up = calloc((size_t)info->size, sizeof *f->up);
    f->pending = calloc((size_t)SHM_SILENT_MAX + (size_t)info->size, sizeof *f->pending);
    if (!f->secret || !f->duplexes || !f->up || !f->pending)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for %d peers", (int)info->size);
    for (int32_t i = 0; i < info->size; i++) {
        struct duplex *p = &f->duplexes[i];
        if (has_duplex(d, i))
            port_init(&p->port, &duplex_ops, &d->peers, i);
        p->fabric = f;
        p->watch.fd = p->process.fd = p->bell = -1;
        p->up_index = -1;
        p->tx_tail = &p->tx_head;
        p->lent_tail = &p->lent_head;
    }
    f->pending_places = SHM_SILENT_MAX + (int)info->size;
    for (int i = 0; i < f->pending_places; i++)
        f->pending[i].watch.fd = f->pending[i].reserved[0] = f->pending[i].reserved[1] = -1;
    return COMM_OK;
}

comm_status fabric_open(struct fabric *f)
{
    comm_status status = events_open(f);
    if (status == COMM_OK)
        status = accept_open(f);
    return status == COMM_OK ? dial_publish(f) : status;
}

/* ---- Driving ---- */

int fabric_look(struct fabric *f)
{
    int came = 0;
    for (int32_t i = 0; i < f->up_count; i++)
        came |= duplex_look(f->up[i]);
    return came;
}

int fabric_look_around(struct fabric *f)
{
    events_turn(f, 0);
    return fabric_look(f);
}

int fabric_look_at_clock(struct fabric *f, int64_t spin_ns, int64_t *until_ns)
{
    struct waiting *w = f->looks.waiting;
    int64_t now = clock_now_ns();
    if (!*until_ns)
        waiting_begins(w);
    if (*until_ns <= 0)
        *until_ns = now + spin_ns;
    if (now >= *until_ns || waiting_rests(w, now) || atomic_load_explicit(f->looks.contenders, memory_order_relaxed))
        return 0;
    if (!waiting_spins(w))
        waiting_yield(w, now);
    else if (f->has_barrier && !f->is_barred)
        events_spins(f);
    return 1;
}

/* Is there something to write to this peer as soon as it has room? Or has it no room itself, or too little of late?
 * Then it writes no more until this rank has read what is there, and the rank that is late may wait for it. */
static int needs_engine(struct duplex *p)
{
    const struct ring_record *unused;
    if (p->tx_head || p->port.state != PORT_UP)
        return p->tx_head != NULL;
    struct ring_shared *in = p->in.shared;
    int has_no_room = atomic_load_explicit(&in->waits, memory_order_relaxed) ||
                      atomic_load_explicit(&in->awaits_credit, memory_order_relaxed);
    return has_no_room && ring_look(&p->in, &unused) != RING_NOTHING;
}

/* Has the kernel something for the engine: a rank that connects, or one that ends? That costs a system call. */
static int kernel_has_news(struct fabric *f, int64_t now)
{
    enum { EVERY_NS = 1000000 };
    struct pollfd events = { .fd = f->epoll, .events = POLLIN };
    if (now - f->asked_ns < EVERY_NS)
        return 0;
    f->asked_ns = now;
    return poll(&events, 1, 0) > 0;
}

static int engine_is_needed(struct fabric *f, int64_t now)
{
    int is_needed = f->domain->works_out > 0;
    for (int32_t i = 0; !is_needed && i < f->domain->peers.size; i++)
        is_needed = needs_engine(&f->duplexes[i]);
    return is_needed || kernel_has_news(f, now);
}

int fabric_waits_on(struct fabric *f, int64_t idle_since)
{
    struct waiting *w = f->looks.waiting;
    int64_t now = clock_now_ns();
    if (!f->is_alone || !waiting_spins(w) || waiting_rests(w, now) ||
        atomic_load_explicit(f->looks.contenders, memory_order_relaxed) || engine_is_needed(f, now) ||
        !exec_host->run_may_wait())
        return 0;
    return waiting_polls_on(w, now, idle_since);
}

void fabric_timer(struct fabric *f, int64_t now_ns)
{
    accept_timer(f, now_ns);
    dial_timer(f, now_ns);
}

int64_t fabric_due_ns(const struct fabric *f)
{
    int64_t accept = accept_due_ns(f), dial = dial_due_ns(f);
    return accept < dial ? accept : dial;
}

/* ---- Close ---- */

/* Is there something to deliver? A BYE in a peer's ring is delivered: the memory lives as long as the peer has it. What
 * waits for a connection, such as the reason why a group ended, is waited for: without it a peer that has not come yet
 * would only find that we are gone. */
static int still_leaving(const struct fabric *f)
{
    for (int32_t i = 0; i < f->domain->peers.size; i++) {
        const struct duplex *p = &f->duplexes[i];
        if ((p->port.state == PORT_UP && (!p->bye_sent || p->tx_head)) ||
            (p->port.state == PORT_OPENING && p->tx_head))
            return 1;
    }
    return accept_is_proving(f);
}

int fabric_leave(struct fabric *f)
{
    for (int32_t i = 0; i < f->up_count; i++)
        if (!f->up[i]->bye_sent)
            duplex_leave(f->up[i]);
    return still_leaving(f);
}

void fabric_close_descriptors(struct fabric *f)
{
    for (int32_t i = 0; i < f->domain->peers.size; i++) {
        descriptor_close(&f->duplexes[i].watch.fd);
        descriptor_close(&f->duplexes[i].process.fd);
        descriptor_close(&f->duplexes[i].bell);
    }
    for (int i = 0; i < f->pending_places; i++) {
        descriptor_close(&f->pending[i].watch.fd);
        descriptor_close(&f->pending[i].reserved[0]);
        descriptor_close(&f->pending[i].reserved[1]);
    }
    descriptor_close(&f->listener.fd);
    descriptor_close(&f->bell.fd);
    descriptor_close(&f->epoll);
}

void fabric_close(struct fabric *f)
{
    accept_close(f);
    for (int32_t i = 0; i < f->domain->peers.size; i++)
        duplex_close(&f->duplexes[i]);
    events_close(f);
}

void fabric_finish(struct fabric *f)
{
    for (int32_t i = 0; f->duplexes && i < f->domain->peers.size; i++)
        duplex_finish(&f->duplexes[i]);
    duplex_pool_finish(f);
    multicast_finish(f);
    region_finish(f);
    free(f->duplexes);
    free(f->up);
    free(f->pending);
    free(f->secret);
}

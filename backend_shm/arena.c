#include "arena.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "accept.h"
#include "base/clock.h"
#include "descriptor.h"
#include "dial.h"
#include "driver.h"
#include "duplex.h"
#include "ending.h"
#include "events.h"
#include "groups.h"
#include "receive.h"
#include "say.h"

/* ---- Open ---- */

static const struct port_ops duplex_ops = {
    .open = dial_open,
    .send = duplex_send,
    .send_text = duplex_send_text,
    .give_credit = duplex_give_credit,
    .read = duplex_read,
    .forget = duplex_forget,
    .sweep = duplex_sweep,
    .describe_trouble = dial_describe_trouble,
    .find_place = dial_find_place,
};

/* Ranks of this world on this host. */
static int32_t local_ranks(const comm_world_info *info)
{
    int32_t count = 0;
    for (int32_t r = 0; r < info->size; r++)
        count += info->hosts[r] == info->hosts[info->rank];
    return count;
}

/* Each rank may have two rings with each other rank: the more ranks, the smaller. */
static size_t choose_ring_bytes(const comm_world_info *info)
{
    size_t wanted = (size_t)exec_host->param_int(info->options, "shm", "ring_bytes"), bytes = SEGMENT_RING_MIN;
    int32_t ranks = local_ranks(info);
    if (wanted == 0)
        wanted = ranks <= 8 ? 512 << 10 : ranks <= 32 ? 128 << 10 : 64 << 10;
    while (bytes * 2 <= wanted && bytes < SEGMENT_RING_MAX)
        bytes *= 2;
    return bytes < (size_t)sysconf(_SC_PAGESIZE) ? (size_t)sysconf(_SC_PAGESIZE) : bytes;
}

static void read_parameters(struct arena *a, const comm_world_info *info)
{
    a->domain.matching.eager_bytes = exec_host->param_int(info->options, "shm", "eager_bytes");
    a->linger_ms = exec_host->param_int(info->options, "shm", "linger_ms");
    a->connect_ms = exec_host->param_int(info->options, "shm", "connect_ms");
    a->ring_bytes = choose_ring_bytes(info);
}

enum {
    REST_NS = 10000000,   /* to look in vain again costs the spinning time */
    SHORT_LOOK_NS = 2000, /* a peer on another core answers in less */
};

static void arena_free(struct arena *a)
{
    for (int32_t i = 0; a->duplexes && i < a->domain.peers.size; i++)
        duplex_finish(&a->duplexes[i]);
    duplex_pool_finish(a);
    domain_finish(&a->domain);
    free(a->duplexes);
    free(a->up);
    free(a->pending);
    free(a->secret);
    free(a);
}

static comm_status arena_allocate(struct arena *a, int32_t rank, int32_t size, const char *secret)
{
    a->epoll = a->bell.fd = a->listener.fd = -1;
    int made = domain_init(&a->domain, "shm", rank, size, &receive_events);
    a->secret = strdup(secret ? secret : "");
    a->duplexes = calloc((size_t)size, sizeof *a->duplexes);
    a->up = calloc((size_t)size, sizeof *a->up);
    a->pending = calloc(SHM_PENDING_MAX, sizeof *a->pending);
    if (!made || !a->secret || !a->duplexes || !a->up || !a->pending)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for %d peers", (int)size);
    for (int32_t i = 0; i < size; i++) {
        struct duplex *p = &a->duplexes[i];
        port_init(&p->port, &duplex_ops, &a->domain.peers, i);
        p->arena = a;
        p->watch.fd = p->bell = -1;
        p->up_index = -1;
        p->tx_tail = &p->tx_head;
    }
    for (int i = 0; i < SHM_PENDING_MAX; i++)
        a->pending[i].watch.fd = -1;
    return COMM_OK;
}

static void close_in_child(struct forked *f)
{
    struct arena *a = (struct arena *)((char *)f - offsetof(struct arena, forked));
    for (int32_t i = 0; i < a->domain.peers.size; i++) {
        descriptor_close(&a->duplexes[i].watch.fd);
        descriptor_close(&a->duplexes[i].bell);
    }
    for (int i = 0; i < SHM_PENDING_MAX; i++)
        descriptor_close(&a->pending[i].watch.fd);
    descriptor_close(&a->listener.fd);
    descriptor_close(&a->bell.fd);
    descriptor_close(&a->epoll);
}

/* What reaches outside, once there is memory; arena_close takes it half done. */
static comm_status arena_start(struct arena *a)
{
    comm_status status = driver_start(a);
    forked_enlist(&a->forked, close_in_child);
    if (status == COMM_OK)
        status = accept_open(a);
    if (status == COMM_OK)
        status = dial_publish(a);
    return status == COMM_OK ? driver_helper(a) : status;
}

comm_status arena_open(const comm_world_info *info, struct arena **ret_arena)
{
    struct arena *a = calloc(1, sizeof *a);
    if (!a)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    a->world = info->id;
    a->store = info->store;
    a->domain.hosts = info->hosts;
    a->domain.memory = 1;
    gethostname(a->domain.peers.host_name, sizeof a->domain.peers.host_name - 1);
    comm_status status = arena_allocate(a, info->rank, info->size, info->secret);
    if (status != COMM_OK) {
        arena_free(a);
        return status;
    }
    read_parameters(a, info);
    waiting_choose(&a->waiting, "shm", info->options, local_ranks(info));
    a->waiting.rest_ns = REST_NS;
    a->waiting.short_look_ns = SHORT_LOOK_NS;
    status = arena_start(a);
    if (status != COMM_OK) {
        arena_close(a, 0);
        return status;
    }
    *ret_arena = a;
    return COMM_OK;
}

/* ---- Close ---- */

/* Is there something to deliver? A goodbye in a peer's ring is delivered: the memory lives as long as the peer has it.
 * What waits for a connection, such as the reason why a group ended, is waited for: without it a peer that has not come
 * yet would only find that we are gone. */
static int still_leaving(const struct arena *a)
{
    for (int32_t i = 0; i < a->domain.peers.size; i++) {
        const struct duplex *p = &a->duplexes[i];
        if ((p->port.state == PORT_UP && (!p->said_goodbye || p->tx_head)) ||
            (p->port.state == PORT_OPENING && p->tx_head))
            return 1;
    }
    return accept_is_proving(a);
}

static void say_goodbye(struct arena *a)
{
    enum { NAP_MS = 20 };
    int64_t end = clock_now_ns() + a->linger_ms * 1000000;
    a->domain.peers.closing = 1;
    for (;;) {
        for (int32_t i = 0; i < a->up_count; i++)
            if (!a->up[i]->said_goodbye)
                duplex_leave(a->up[i]);
        if (!still_leaving(a) || clock_now_ns() >= end)
            return;
        if (atomic_load(&a->resolving))
            dial_resolve(a);
        driver_turn(a, NAP_MS);
    }
}

void arena_close(struct arena *a, int forked)
{
    if (forked) {
        close_in_child(&a->forked); /* done already, unless fork() was not libc's; the thread is the parent's */
        return;
    }
    driver_stop(a);
    say_goodbye(a);
    a->domain.peers.closing = 2;
    unexpected_list_clear(&a->domain.unexpected);
    accept_close(a);
    for (int32_t i = 0; i < a->domain.peers.size; i++)
        duplex_close(&a->duplexes[i]);
    events_close(a);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->park_lock);
    pthread_cond_destroy(&a->park);
    pthread_cond_destroy(&a->helper_park);
    forked_delist(&a->forked);
    arena_free(a);
}

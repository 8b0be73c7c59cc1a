#include "arena.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "dial.h"
#include "driver.h"
#include "ending.h"
#include "fabric.h"
#include "groups.h"
#include "receive.h"
#include "say.h"
#include "select.h"
#include "usage.h"

/* ---- Open ---- */

enum { SHARE_NS = 10000000, /* some ticks of the scheduler */
       REST_NS = 10000000 }; /* to poll without result again costs the spinning time */

static void arena_free(struct arena *a)
{
    fabric_finish(&a->fabric);
    domain_finish(&a->domain);
    free(a);
}

static comm_status arena_allocate(struct arena *a, const comm_world_info *info)
{
    if (!domain_init(&a->domain, "shm", info->rank, info->size, &receive_events))
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for %d peers", (int)info->size);
    a->domain.world = info->id;
    a->domain.hosts = info->hosts;
    a->domain.memory = SELECT_MEMORY_ALL;
    a->domain.shares_cores = waiting_shares_cores(info);
    domain_keeps_payloads(&a->domain);
    waiting_choose(&a->waiting, "shm", info);
    a->nap_ns = exec_host->param_int(info->options, "shm", "nap_us") * 1000;
    a->domain.matching.eager_bytes = fabric_eager_bytes(info);
    a->domain.matching.eager_reduced_bytes = 4 * a->domain.matching.eager_bytes;
    if (a->waiting.is_crowded) { /* one that is announced waits for the receiver's turn on a core */
        a->domain.matching.eager_spread_bytes = 4 * a->domain.matching.eager_bytes;
        /* Where the kernel takes less time than two copies that is no gain: between 4 ranks on 2 cores of Emerald
         * Rapids the median of all_gather of 128 KiB is 24 us without, and else 38. */
        a->domain.matching.eager_swapped_bytes = (ring_brings_lines() ? 1 : 2) * a->domain.matching.eager_bytes;
    }
    cache_choose(&a->domain.cache, (size_t)exec_host->param_int(info->options, "shm", "cache_bytes"),
                 waiting_local_ranks(info));
    a->domain.matching.write_back_bytes = SHM_WRITE_BACK_BYTES;
    gethostname(a->domain.peers.host_name, sizeof a->domain.peers.host_name - 1);
    comm_status status = domain_tune(&a->domain, "shm", info->tuning);
    if (status != COMM_OK)
        return status;
    a->linger_ms = exec_host->param_int(info->options, "shm", "linger_ms");
    a->waiting.usage = (struct waiting_usage){ .of_ranks = usage_of_ranks, .ranks = &a->fabric };
    a->waiting.rest_ns = REST_NS;
    a->waiting.share_ns = SHARE_NS;
    const struct carrier_looks looks = { &a->waiting, &a->contenders, &a->helper.signs.runs };
    a->fabric.is_alone = 1;
    return fabric_init(&a->fabric, &a->domain, &driver_of_arenas, &looks, info);
}

static void close_in_child(struct forked *f)
{
    struct arena *a = (struct arena *)((char *)f - offsetof(struct arena, forked));
    fabric_close_descriptors(&a->fabric);
    helper_close_descriptors(&a->helper);
}

/* What reaches outside, once there is memory; arena_close takes it half done. */
static comm_status arena_start(struct arena *a)
{
    driver_start(a);
    forked_enlist(&a->forked, close_in_child);
    comm_status status = fabric_open(&a->fabric);
    return status == COMM_OK ? driver_helper(a) : status;
}

comm_status arena_open(const comm_world_info *info, struct arena **ret_arena)
{
    struct arena *a = calloc(1, sizeof *a);
    if (!a)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    comm_status status = arena_allocate(a, info);
    if (status != COMM_OK) {
        arena_free(a);
        return status;
    }
    status = arena_start(a);
    if (status != COMM_OK) {
        arena_close(a, 0);
        return status;
    }
    *ret_arena = a;
    return COMM_OK;
}

/* ---- Close ---- */

static void send_byes(struct arena *a)
{
    enum { NAP_MS = 20 };
    int64_t end = clock_now_ns() + a->linger_ms * 1000000;
    a->domain.peers.closing = 1;
    while (fabric_leave(&a->fabric) && clock_now_ns() < end) {
        if (atomic_load(&a->fabric.resolving))
            dial_resolve(&a->fabric, NULL);
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
    send_byes(a);
    a->domain.peers.closing = 2;
    unexpected_list_clear(&a->domain.unexpected);
    fabric_close(&a->fabric);
    pthread_mutex_destroy(&a->park_lock);
    pthread_cond_destroy(&a->park);
    forked_delist(&a->forked);
    arena_free(a);
}

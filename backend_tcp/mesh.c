#include "mesh.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/netaddr.h"
#include "connect.h"
#include "endpoint.h"
#include "ending.h"
#include "groups.h"
#include "link.h"
#include "listen.h"
#include "loop.h"
#include "progress.h"
#include "receive.h"
#include "resolve.h"
#include "say.h"
#include "select.h"
#include "socket.h"

/* ---- Open ---- */

static const struct port_ops link_ops = {
    .open = connect_open,
    .send = link_send,
    .send_text = link_send_text,
    .give_credit = link_give_credit,
    .read = link_read,
    .forget = link_forget,
    .sweep = link_sweep,
    .describe_trouble = connect_describe_trouble,
    .find_place = resolver_recall,
};

static void read_parameters(struct mesh *m, const void *options)
{
    m->domain.matching.eager_bytes = exec_host->param_int(options, "tcp", "eager_bytes");
    m->linger_ms = exec_host->param_int(options, "tcp", "linger_ms");
    m->connect_ms = exec_host->param_int(options, "tcp", "connect_ms");
    m->silence_ms = exec_host->param_int(options, "tcp", "silence_ms");
    const char *congestion = exec_host->param_text(options, "tcp", "congestion");
    snprintf(m->congestion, sizeof m->congestion, "%s", congestion ? congestion : "");
    const char *interfaces = exec_host->param_text(options, "tcp", "interface");
    snprintf(m->interfaces, sizeof m->interfaces, "%s", interfaces ? interfaces : "");
}

static const int64_t REST_NS = 100000000; /* to poll without result again costs a busy machine the whole spinning
                                           * time */

static void mesh_free(struct mesh *m)
{
    for (int32_t i = 0; m->links && i < m->domain.peers.size; i++)
        link_finish(&m->links[i]);
    link_pool_finish(m);
    if (m->local)
        m->local->ops->destroy(m->local);
    resolver_free(m);
    domain_finish(&m->domain);
    free(m->links);
    free(m->pending);
    free(m->secret);
    free(m);
}

comm_status mesh_allocate(struct mesh *m, int32_t rank, int32_t size, const char *secret)
{
    m->listener = -1;
    int made = domain_init(&m->domain, "tcp", rank, size, &receive_events);
    m->secret = strdup(secret ? secret : "");
    m->links = calloc((size_t)size, sizeof *m->links);
    m->pending = calloc(TCP_PENDING_CONNS_MAX, sizeof *m->pending);
    if (!made || !m->secret || !m->links || !m->pending)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for %d links", (int)size);
    for (int32_t i = 0; i < size; i++) {
        struct link *l = &m->links[i];
        port_init(&l->port, &link_ops, &m->domain.peers, i);
        l->mesh = m;
        l->fd = -1;
        l->tx_tail = &l->tx_head;
    }
    for (int i = 0; i < TCP_PENDING_CONNS_MAX; i++) {
        m->pending[i].fd = -1;
        m->pending[i].mesh = m;
    }
    return COMM_OK;
}

static void close_in_child(struct forked *f)
{
    struct mesh *m = (struct mesh *)((char *)f - offsetof(struct mesh, forked));
    for (int32_t i = 0; i < m->domain.peers.size; i++)
        socket_close(&m->links[i].fd);
    for (int i = 0; i < TCP_PENDING_CONNS_MAX; i++)
        socket_close(&m->pending[i].fd);
    socket_close(&m->listener);
    helper_close_descriptors(&m->helper);
    if (m->local)
        m->local->ops->close_descriptors(m->local);
}

/* What reaches outside, once there is memory; mesh_close takes it half done. */
static comm_status mesh_start(struct mesh *m)
{
    comm_status status = progress_start(m);
    forked_enlist(&m->forked, close_in_child);
    if (status == COMM_OK)
        status = listen_open(m);
    if (status == COMM_OK)
        status = endpoint_publish(m);
    if (status == COMM_OK && m->local)
        status = m->local->ops->open(m->local);
    if (status == COMM_OK && m->local)
        status = progress_watch_local(m);
    return status == COMM_OK ? progress_helper(m) : status;
}

comm_status mesh_open(const comm_world_info *info, int with_shm, struct mesh **ret_mesh)
{
    struct mesh *m = calloc(1, sizeof *m);
    if (!m)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    m->store = info->store;
    m->domain.world = info->id;
    m->domain.hosts = info->hosts;
    gethostname(m->domain.peers.host_name, sizeof m->domain.peers.host_name - 1);
    netaddr_identity(m->host_identity);
    comm_status status = mesh_allocate(m, info->rank, info->size, info->secret);
    if (status == COMM_OK)
        status = domain_tune(&m->domain, with_shm ? "shm-tcp" : "tcp", info->tuning);
    m->domain.memory = with_shm ? SELECT_MEMORY_HOSTS : SELECT_MEMORY_NONE;
    m->domain.shares_cores = waiting_shares_cores(info);
    if (with_shm)
        domain_keeps_payloads(&m->domain);
    const struct carrier_looks looks = { &m->waiting, &m->contenders, &m->helper.signs.runs };
    if (status == COMM_OK && with_shm)
        status = carrier_create_shm(&m->domain, &driver_of_meshes, &looks, info, &m->local);
    read_parameters(m, info->options);
    cache_choose(&m->domain.cache, (size_t)exec_host->param_int(info->options, "tcp", "cache_bytes"),
                 waiting_local_ranks(info));
    waiting_choose(&m->waiting, "tcp", info);
    m->waiting.rest_ns = REST_NS;
    if (status != COMM_OK) {
        mesh_free(m);
        return status;
    }
    status = mesh_start(m);
    if (status != COMM_OK) {
        mesh_close(m, 0);
        return status;
    }
    *ret_mesh = m;
    return COMM_OK;
}

/* ---- Close ---- */

/* A connection is under way because of something that was accepted, such as the reason why a group ended: without it a
 * peer that has not come yet would only find that we are gone. */
static int awaits_its_peer(const struct link *l)
{
    return l->tx_head && l->port.state == PORT_OPENING;
}

/* Is there a peer to send BYE to, or something to deliver first? A peer that is shaking hands takes the connection for
 * good once it has sent its proof, so it is waited for too. */
static int still_leaving(const struct mesh *m)
{
    for (int32_t i = 0; i < m->domain.peers.size; i++)
        if (m->links[i].port.state == PORT_UP || awaits_its_peer(&m->links[i]))
            return 1;
    return listen_is_proving(m);
}

/* The carrier's part. */
static int local_still_leaving(struct mesh *m)
{
    if (!m->local)
        return 0;
    pthread_mutex_unlock(&m->lock);
    m->local->ops->resolve(m->local, NULL);
    pthread_mutex_lock(&m->lock);
    m->local->ops->timer(m->local, clock_now_ns());
    return m->local->ops->leave(m->local);
}

/* Deliver what was accepted, send BYE, and wait for the peers' BYE, all within linger_ms. */
static void send_byes(struct mesh *m)
{
    int64_t end = clock_now_ns() + m->linger_ms * 1000000;
    m->domain.peers.closing = 1;
    while ((local_still_leaving(m) | still_leaving(m)) && clock_now_ns() < end) {
        for (int32_t i = 0; i < m->domain.peers.size; i++)
            if (m->links[i].port.state == PORT_UP)
                link_leave(&m->links[i]);
        progress_nap(m, 20 * 1000000);
        listen_timer(m, clock_now_ns());
        connect_timer(m, clock_now_ns());
        turn_end(&m->domain);
    }
}

static void close_connections(struct mesh *m)
{
    listen_close(m);
    loop_poll_end(&m->local_poll);
    if (m->local)
        m->local->ops->close(m->local);
    for (int32_t i = 0; i < m->domain.peers.size; i++)
        link_close(&m->links[i]);
}

void mesh_close(struct mesh *m, int forked)
{
    if (forked) {
        close_in_child(&m->forked); /* done already, unless fork() was not libc's; the loop and the thread are the
                                     * parent's */
        return;
    }
    progress_stop(m);
    pthread_mutex_lock(&m->lock);
    send_byes(m);
    m->domain.peers.closing = 2;
    unexpected_list_clear(&m->domain.unexpected);
    resolver_stop(m);
    if (m->loop_made)
        close_connections(m);
    loop_close(m);
    socket_close(&m->listener);
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_destroy(&m->lock);
    forked_delist(&m->forked);
    mesh_free(m);
}

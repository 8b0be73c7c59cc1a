#include "mesh.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/netaddr.h"
#include "connect.h"
#include "endpoint.h"
#include "ending.h"
#include "forks.h"
#include "groups.h"
#include "link.h"
#include "listen.h"
#include "loop.h"
#include "progress.h"
#include "receive.h"
#include "resolve.h"
#include "say.h"
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

/* While a rank waits it looks at its sockets for a while, then sleeps. With more ranks than cores the others need this
 * core more than we need to look again: then it yields between looks. */
static void choose_waiting(struct mesh *m, const comm_world_info *info)
{
    cpu_set_t mine;
    int32_t cores = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    int32_t local = info->local_size > 0 ? info->local_size : m->domain.peers.size;
    if (cores < local && cores * local <= online)
        cores = online; /* each rank is bound to cores of its own */
    int crowded = local > cores;
    m->spin_ns = crowded ? 0 : exec_host->param_int(info->options, "tcp", "spin_us") * 1000;
    m->yield_ns = crowded ? exec_host->param_int(info->options, "tcp", "yield_us") * 1000 : 0;
}

static void mesh_free(struct mesh *m)
{
    for (int32_t i = 0; m->links && i < m->domain.peers.size; i++)
        link_finish(&m->links[i]);
    link_pool_finish(m);
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

/* What reaches outside, once there is memory; mesh_close takes it half done. */
static comm_status mesh_start(struct mesh *m)
{
    comm_status status = progress_start(m);
    forks_enlist(m);
    if (status == COMM_OK)
        status = listen_open(m);
    if (status == COMM_OK)
        status = endpoint_publish(m);
    return status == COMM_OK ? progress_helper(m) : status;
}

comm_status mesh_open(const comm_world_info *info, struct mesh **ret_mesh)
{
    struct mesh *m = calloc(1, sizeof *m);
    if (!m)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    m->world = info->id;
    m->store = info->store;
    m->domain.hosts = info->hosts;
    gethostname(m->domain.peers.host_name, sizeof m->domain.peers.host_name - 1);
    netaddr_identity(m->host_identity);
    comm_status status = mesh_allocate(m, info->rank, info->size, info->secret);
    read_parameters(m, info->options);
    choose_waiting(m, info);
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

/* Is there somebody to say goodbye to, or something to deliver first? A peer that is shaking hands takes the
 * connection for good once it has sent its proof, so it is waited for too. */
static int still_leaving(const struct mesh *m)
{
    for (int32_t i = 0; i < m->domain.peers.size; i++)
        if (m->links[i].port.state == PORT_UP || awaits_its_peer(&m->links[i]))
            return 1;
    return listen_is_proving(m);
}

/* Say goodbye, deliver what was accepted, and wait for the peers' goodbyes, all within linger_ms. */
static void say_goodbye(struct mesh *m)
{
    int64_t end = clock_now_ns() + m->linger_ms * 1000000;
    m->domain.peers.closing = 1;
    while (still_leaving(m) && clock_now_ns() < end) {
        for (int32_t i = 0; i < m->domain.peers.size; i++)
            if (m->links[i].port.state == PORT_UP)
                link_leave(&m->links[i]);
        loop_nap(m, 20 * 1000000);
        listen_timer(m, clock_now_ns());
        connect_timer(m, clock_now_ns());
        turn_end(&m->domain);
    }
}

static void close_connections(struct mesh *m)
{
    listen_close(m);
    for (int32_t i = 0; i < m->domain.peers.size; i++)
        link_close(&m->links[i]);
}

void mesh_close(struct mesh *m, int forked)
{
    if (forked) {
        forks_close_descriptors(m); /* done already, unless fork() was not libc's; the loop and the thread are the
                                     * parent's */
        return;
    }
    progress_stop(m);
    pthread_mutex_lock(&m->lock);
    say_goodbye(m);
    m->domain.peers.closing = 2;
    unexpected_list_clear(&m->domain.unexpected);
    resolver_stop(m);
    if (m->loop_made)
        close_connections(m);
    loop_close(m);
    socket_close(&m->listener);
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_destroy(&m->lock);
    forks_delist(m);
    mesh_free(m);
}

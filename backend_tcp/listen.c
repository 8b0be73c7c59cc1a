/* Coming in: the listener, and connections that shake hands. Every process proves that it has the job's secret (or the
 * world's nonce from the store); others are dropped and counted. */
#include "listen.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/netaddr.h"
#include "connect.h"
#include "endpoint.h"
#include "link.h"
#include "loop.h"
#include "resolve.h"
#include "say.h"
#include "socket.h"

enum {
    FIRST_MS = 1000,      /* so long the lower rank's attempt at a connection goes before the higher one's */
    ACCEPT_PAUSE_MS = 50, /* when there are no more file descriptors */
};

static void pending_end(struct pending_conn *s, int refused)
{
    loop_poll_end(&s->poll);
    socket_close(&s->fd);
    assert(s->mesh->pending_count > 0);
    s->mesh->pending_count--;
    if (refused) {
        s->mesh->refused++;
        exec_log(COMM_LOG_INFO, "rank %d: a connection that is not of this job was refused (%llu so far)",
                (int)s->mesh->domain.peers.rank, (unsigned long long)s->mesh->refused);
    }
}

/* Of two connections that are being made the lower rank's is kept, and it decides which one that is. But if its own
 * has not come about for a while, it may be one that cannot: only one of the two may be able to reach the other. */
static int ours_goes_first(const struct link *l)
{
    return connect_under_way(l) && l->mesh->domain.peers.rank < l->port.peer &&
           clock_now_ns() - l->begun_ns < FIRST_MS * 1000000ll;
}

static enum wire_verdict judge(struct mesh *m, const struct wire_hello *hello)
{
    if (hello->version != WIRE_VERSION)
        return WIRE_OTHER_VERSION;
    if (hello->world != m->domain.world || hello->to != m->domain.peers.rank || hello->from < 0 ||
        hello->from >= m->domain.peers.size ||
        hello->from == m->domain.peers.rank)
        return WIRE_OTHER_WORLD;
    const struct link *l = &m->links[hello->from];
    if (m->domain.peers.at[hello->from] != &l->port || l->port.state == PORT_UP || port_is_gone(&l->port))
        return WIRE_OTHER_WORLD;
    return ours_goes_first(l) ? WIRE_DUPLICATE : WIRE_WELCOME;
}

static void answer_hello(struct pending_conn *s)
{
    struct mesh *m = s->mesh;
    struct wire_hello hello;
    if (wire_get_hello(s->hello, &hello) != 0) {
        pending_end(s, 1);
        return;
    }
    struct wire_challenge challenge = { .verdict = judge(m, &hello), .version = WIRE_VERSION };
    wire_random(challenge.nonce, sizeof challenge.nonce);
    memcpy(s->nonce, challenge.nonce, sizeof s->nonce);
    wire_prove(m->secret, 'A', s->hello, challenge.nonce, challenge.proof);
    uint8_t out[WIRE_CHALLENGE_BYTES];
    wire_put_challenge(&challenge, out);
    int sent = socket_send_all(s->fd, out, sizeof out);
    if (!sent || challenge.verdict != WIRE_WELCOME) {
        pending_end(s, challenge.verdict > WIRE_DUPLICATE);
        return;
    }
    s->from = hello.from;
    /* The peer has not proved yet that it has the secret. If this rank is the higher one and is connecting too, its
     * attempt goes on until the peer has: the peer will refuse it then. If this rank is not connecting, it must not
     * begin now, as the peer may already use this connection when its HELLO arrives. A lower rank that has sent its
     * welcome has decided for this connection: it gives up its own attempt, for which it has sent no proof, so that not
     * more than one connection remains. */
    struct link *l = &m->links[hello.from];
    if (l->port.state == PORT_IDLE || link_phase(l) == LINK_RESOLVING ||
        (connect_under_way(l) && m->domain.peers.rank < l->port.peer)) {
        connect_end(l);
        link_opening(l, LINK_AWAITED);
        l->give_up_ns = s->give_up_ns;
    }
}

/* The peer's connection has ended before it was complete. */
static void await_no_more(struct link *l)
{
    if (link_phase(l) == LINK_AWAITED)
        l->port.state = PORT_IDLE;
    if (l->tx_head || l->port.interest)
        port_want(&l->port);
}

static void admit(struct pending_conn *s)
{
    uint8_t proof[WIRE_PROOF_BYTES];
    wire_prove(s->mesh->secret, 'C', s->hello, s->nonce, proof);
    struct link *l = &s->mesh->links[s->from];
    struct port *p = &l->port;
    if (!wire_same(proof, s->proof, sizeof proof)) {
        pending_end(s, 1);
        await_no_more(l);
        return;
    }
    int fd = s->fd;
    s->fd = -1;
    struct sockaddr_storage a;
    socklen_t bytes = sizeof a;
    if (!*p->where) /* its host's name, and the port that others know it by */
        resolver_recall_card(p);
    if (!*p->where && getpeername(fd, (struct sockaddr *)&a, &bytes) == 0)
        endpoint_text(&a, p->where, sizeof p->where);
    pending_end(s, 0);
    if (p->state == PORT_UP || port_is_gone(p)) {
        close(fd);
        return;
    }
    connect_end(l); /* If we are connecting too: the peer will refuse ours, as this one is up at its side. */
    link_up(l, fd);
    p->heard = 1; /* its proof */
    struct frame admitted = { .type = FRAME_CREDIT };
    link_send(p, &admitted, NULL, 0, NULL);
}

/* It ended in the middle of the handshake. */
static void broke_off(struct pending_conn *s)
{
    struct link *l = s->from >= 0 ? &s->mesh->links[s->from] : NULL;
    pending_end(s, !l);
    if (l)
        await_no_more(l);
}

static void on_pending(uv_poll_t *poll, int status, int events)
{
    struct pending_conn *s = poll->data;
    (void)status;
    (void)events;
    for (;;) {
        int proving = s->from >= 0;
        uint8_t *into = proving ? s->proof : s->hello;
        size_t want = proving ? WIRE_PROOF_BYTES : WIRE_HELLO_BYTES;
        ssize_t n = recv(s->fd, into + s->got, want - s->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            broke_off(s);
            return;
        }
        s->got += (size_t)n;
        if (s->got < want)
            continue;
        s->got = 0;
        if (proving) {
            admit(s);
            return;
        }
        answer_hello(s);
        if (s->fd < 0)
            return;
    }
}

/* A free place. If there is none, the oldest connection that has sent no hello yet is closed: many silent connections
 * must not keep the ranks out. */
static struct pending_conn *pending_new(struct mesh *m)
{
    struct pending_conn *oldest = NULL;
    for (int i = 0; i < TCP_PENDING_CONNS_MAX; i++) {
        struct pending_conn *s = &m->pending[i];
        if (s->fd < 0)
            return s;
        if (s->from < 0 && (!oldest || s->give_up_ns < oldest->give_up_ns))
            oldest = s;
    }
    if (oldest)
        pending_end(oldest, 1);
    return oldest;
}

/* No more file descriptors. The listener stays readable, so it is not watched for a moment; a rank that connects
 * meanwhile waits in its queue. */
static void pause_listening(struct mesh *m, int error)
{
    if (!m->listening_paused)
        exec_log(COMM_LOG_WARN,
                 "rank %d: cannot accept a connection: %s; ranks that connect wait until descriptors are free "
                                "(raise the limit: ulimit -n)", (int)m->domain.peers.rank, strerror(error));
    m->listening_paused = 1;
    uv_poll_stop(m->listener_poll);
    m->listen_again_ns = clock_now_ns() + ACCEPT_PAUSE_MS * 1000000ll;
    loop_rearm(m, m->listen_again_ns);
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct mesh *m = poll->data;
    (void)status;
    (void)events;
    for (;;) {
        int fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                pause_listening(m, errno);
            return;
        }
        struct pending_conn *s = pending_new(m);
        if (!s) {
            close(fd); /* They will try again. */
            continue;
        }
        socket_tune(fd, m);
        memset(s, 0, sizeof *s);
        s->mesh = m;
        s->fd = fd;
        s->from = -1;
        s->give_up_ns = clock_now_ns() + TCP_HANDSHAKE_MS * 1000000ll;
        s->poll = loop_poll_new(m, fd, s);
        m->pending_count++;
        if (!s->poll) {
            pending_end(s, 0);
            continue;
        }
        loop_watch(m, s->poll, UV_READABLE, on_pending);
        loop_rearm(m, s->give_up_ns);
    }
}

comm_status listen_open(struct mesh *m)
{
    int port;
    m->listener = netaddr_listen(4096, &port);
    if (m->listener < 0)
        return exec_fail(COMM_ERR_SYSTEM, "listening for the other ranks: %s%s", strerror(errno),
                         descriptors_cure(errno));
    m->tcp_port = port;
    snprintf(m->links[m->domain.peers.rank].port.where, sizeof m->links[0].port.where, "%.64s:%d",
             m->domain.peers.host_name, (int)m->tcp_port);
    m->listener_poll = loop_poll_new(m, m->listener, m);
    if (!m->listener_poll)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for the listener");
    loop_watch(m, m->listener_poll, UV_READABLE, on_listener);
    return COMM_OK;
}

void listen_timer(struct mesh *m, int64_t now_ns)
{
    if (m->listen_again_ns && now_ns >= m->listen_again_ns) {
        m->listen_again_ns = 0;
        loop_watch(m, m->listener_poll, UV_READABLE, on_listener);
    }
    for (int i = 0; m->pending_count && i < TCP_PENDING_CONNS_MAX; i++)
        if (m->pending[i].fd >= 0 && now_ns >= m->pending[i].give_up_ns)
            pending_end(&m->pending[i], 1);
}

int64_t listen_due_ns(const struct mesh *m, int64_t now_ns)
{
    int64_t due = m->listen_again_ns ? m->listen_again_ns : INT64_MAX, soon = now_ns + 1000 * 1000000ll;
    return m->pending_count && soon < due ? soon : due;
}

int listen_is_proving(const struct mesh *m)
{
    for (int i = 0; m->pending_count && i < TCP_PENDING_CONNS_MAX; i++)
        if (m->pending[i].fd >= 0 && m->pending[i].from >= 0)
            return 1;
    return 0;
}

void listen_close(struct mesh *m)
{
    loop_poll_end(&m->listener_poll);
    for (int i = 0; i < TCP_PENDING_CONNS_MAX; i++)
        if (m->pending[i].fd >= 0)
            pending_end(&m->pending[i], 0);
}

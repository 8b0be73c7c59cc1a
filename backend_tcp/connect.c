/* Going out: a link that is wanted asks where its peer is, tries the addresses one after the other, and shakes hands.
 * A pair is connected when it first talks. If both sides begin at once, the lower rank's connection wins. */
#include "connect.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/netaddr.h"
#include "endpoint.h"
#include "link.h"
#include "loop.h"
#include "resolve.h"
#include "say.h"
#include "socket.h"
#include "text.h"

enum {
    CONNECT_MS = 3000,     /* an address that drops what we send must not keep us from the next one */
    AWAIT_MS = 1500,       /* so long a rank that was told to wait for the other's attempt waits: longer than that
                            * goes first (listen.c) */
    RETRY_MS = 50,         /* between two rounds through a peer's addresses */
    REFUSED_HERE_MS = 100, /* a peer of this host whose port is closed that long has ended */
    REFUSED_MS = 2000,     /* of another host: a firewall or proxy may refuse for a moment */
};

static void connect_next(struct link *l);

int connect_under_way(const struct link *l)
{
    return link_phase(l) == LINK_CONNECTING || link_phase(l) == LINK_CHALLENGED;
}

void connect_end(struct link *l)
{
    if (!connect_under_way(l))
        return;
    loop_poll_end(&l->poll);
    socket_close(&l->fd);
}

/* The store has said where a peer is, or why it cannot. */
static void resolved(struct mesh *m, int32_t peer, char *endpoint, const char *error)
{
    struct link *l = &m->links[peer];
    if (link_phase(l) != LINK_RESOLVING || m->domain.peers.closing > 1)
        return;
    int candidates = endpoint ? endpoint_read(l, endpoint) : 0;
    if (candidates > 0)
        connect_next(l);
    else if (candidates < 0)
        port_lose(&l->port, COMM_ERR_PEER_LOST, "has no usable address in the store: what it published makes no sense");
    else if (endpoint)
        port_lose(&l->port, COMM_ERR_PEER_LOST,
                  "has published no address: its host has no network interface but loopback (a container with "
                  "--network=none?), or none that COMM_TCP_INTERFACE takes");
    else /* so it is not known whether it lives */
        port_lose(&l->port, COMM_ERR_BACKEND,
                  "cannot be reached: the store, which has its address, does not answer: %s", error);
}

static void attempt_failed(struct link *l, const char *why)
{
    char address[80] = "";
    if (l->candidate_next > 0)
        endpoint_text(&l->candidates[l->candidate_next - 1], address, sizeof address);
    snprintf(l->trouble, sizeof l->trouble, "%s: %s", address, why);
    l->refusals = 0;
    connect_end(l);
    connect_next(l);
}

/* The same for an error of the system's. A refusal counts: a rank listens before it publishes where, so once none of
 * its addresses has a listener, it has ended. */
static void connect_failed(struct link *l, int error)
{
    int refusals = error == ECONNREFUSED ? l->refusals + 1 : 0;
    char address[80];
    endpoint_text(&l->candidates[l->candidate_next - 1], address, sizeof address);
    snprintf(l->trouble, sizeof l->trouble, "%s: %s", address, strerror(error));
    l->refusals = refusals;
    connect_end(l);
    connect_next(l);
}

static int has_ended(const struct link *l)
{
    int64_t patience_ms = l->same_host ? REFUSED_HERE_MS : REFUSED_MS;
    return l->refusals >= l->candidate_count * (int)(1 + patience_ms / RETRY_MS);
}

static void on_connecting(uv_poll_t *poll, int status, int events);

/* Try the next address; after the last one, all again until the time is over. */
static void connect_next(struct link *l)
{
    struct mesh *m = l->mesh;
    if (l->candidate_next >= l->candidate_count) {
        int ended = has_ended(l);
        if (ended || m->domain.peers.closing || clock_now_ns() >= l->give_up_ns) {
            port_lose(&l->port, COMM_ERR_PEER_LOST, "cannot be reached from host %s: %s%s", m->domain.peers.host_name,
                      l->trouble,
                      ended ? "; its port is closed: its process has ended, or has closed its world" : "");
            return;
        }
        l->candidate_next = 0;
        link_opening(l, LINK_CONNECTING); /* connect_timer begins the next try. */
        loop_rearm(m, clock_now_ns() + RETRY_MS * 1000000ll);
        return;
    }
    link_opening(l, LINK_CONNECTING);
    l->fd = netaddr_connect(&l->candidates[l->candidate_next++], socket_tune, m);
    if (l->fd < 0) {
        connect_failed(l, errno);
        return;
    }
    l->poll = loop_poll_new(m, l->fd, l);
    if (!l->poll) {
        attempt_failed(l, "no memory");
        return;
    }
    l->shake_got = 0;
    loop_watch(m, l->poll, UV_WRITABLE, on_connecting);
    l->attempt_end_ns = clock_now_ns() + CONNECT_MS * 1000000ll;
    loop_rearm(m, l->attempt_end_ns);
}

static void say_hello(struct link *l)
{
    struct mesh *m = l->mesh;
    struct wire_hello hello = { WIRE_VERSION, m->domain.world, m->domain.peers.rank, l->port.peer, { 0 } };
    wire_random(hello.nonce, sizeof hello.nonce);
    wire_put_hello(&hello, l->hello);
    if (!socket_send_all(l->fd, l->hello, sizeof l->hello)) {
        attempt_failed(l, strerror(errno));
        return;
    }
    link_opening(l, LINK_CHALLENGED);
    l->attempt_end_ns = clock_now_ns() + TCP_HANDSHAKE_MS * 1000000ll;
    loop_watch(m, l->poll, UV_READABLE, on_connecting);
}

static void answer_challenge(struct link *l)
{
    struct mesh *m = l->mesh;
    struct wire_challenge challenge;
    uint8_t proof[WIRE_PROOF_BYTES];
    if (wire_get_challenge(l->shake, &challenge) != 0) {
        attempt_failed(l, "what answers there is not libcomm");
        return;
    }
    wire_prove(m->secret, 'A', l->hello, challenge.nonce, proof);
    if (!wire_same(proof, challenge.proof, sizeof proof)) {
        attempt_failed(l, "what answers there does not have this job's secret");
        return;
    }
    if (challenge.verdict == WIRE_DUPLICATE) {
        connect_end(l);
        link_opening(l, LINK_AWAITED);
        l->give_up_ns = clock_now_ns() + AWAIT_MS * 1000000ll;
        loop_rearm(m, l->give_up_ns);
        return;
    }
    if (challenge.verdict != WIRE_WELCOME) {
        attempt_failed(l, challenge.verdict == WIRE_OTHER_VERSION ? "it speaks another version of the protocol"
                                                                  : "it belongs to another world, or has closed it");
        return;
    }
    wire_prove(m->secret, 'C', l->hello, challenge.nonce, proof);
    if (!socket_send_all(l->fd, proof, sizeof proof)) {
        attempt_failed(l, strerror(errno));
        return;
    }
    int fd = l->fd;
    loop_poll_end(&l->poll);
    l->fd = -1;
    endpoint_text(&l->candidates[l->candidate_next - 1], l->trouble, sizeof l->trouble);
    link_up(l, fd);
}

static void on_connecting(uv_poll_t *poll, int status, int events)
{
    struct link *l = poll->data;
    (void)status;
    (void)events;
    if (link_phase(l) == LINK_CONNECTING) {
        int failed = 0;
        socklen_t bytes = sizeof failed;
        getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &failed, &bytes);
        if (failed)
            connect_failed(l, failed);
        else
            say_hello(l);
        return;
    }
    ssize_t n = recv(l->fd, l->shake + l->shake_got, WIRE_CHALLENGE_BYTES - l->shake_got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        attempt_failed(l, n == 0 ? "it closed the connection" : strerror(errno));
        return;
    }
    l->shake_got += (size_t)n;
    if (l->shake_got == WIRE_CHALLENGE_BYTES)
        answer_challenge(l);
}

void connect_open(struct port *p)
{
    struct link *l = link_of(p);
    struct mesh *m = l->mesh;
    if (!resolver_ask(m, p->peer, resolved)) {
        port_lose(p, COMM_ERR_NO_MEMORY, "cannot be connected: no memory or no thread for it");
        return;
    }
    link_opening(l, LINK_RESOLVING);
    l->begun_ns = clock_now_ns();
    l->give_up_ns = l->begun_ns + m->connect_ms * 1000000;
}

/* Some of what was sent is not even acknowledged by the peer's host. */
static int is_unacknowledged(const struct link *l)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    return getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_unacked > 0 &&
           info.tcpi_retransmits > 0; /* else it may just be on its way */
}

void connect_describe_trouble(const struct port *p, char *text, size_t capacity)
{
    const struct link *l = (const struct link *)p;
    int phase = link_phase(l);
    const char *what = "";
    if (p->state == PORT_UP && is_unacknowledged(l))
        what = "its host does not acknowledge what it is sent: it is down, or cut off";
    if (phase != LINK_NOT_OPENING && phase != LINK_AWAITED)
        what = *l->trouble                ? l->trouble
               : phase == LINK_CHALLENGED ? "it takes the connection, but does not answer: it is stopped, or cut off"
                                          : "no answer to connecting";
    if (phase == LINK_RESOLVING && !*l->trouble)
        text_unresolved(&l->mesh->domain, text, capacity);
    else
        snprintf(text, capacity, "%s", what);
}

/* ---- Time ---- */

/* Keepalive notices a dead host while nothing is under way; what is under way would be sent again for a quarter of an
 * hour. TCP_USER_TIMEOUT is not the cure: it also ends connections to a process that is only stopped, and so does not
 * read. Its host still acknowledges; a dead one does not. Silence begins with the first thing that is not
 * acknowledged, however long nothing was said before. */
static int is_silent(struct link *l, int64_t now)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    if (getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return 0;
    int waits = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
    int64_t heard_ns = waits ? now - info.tcpi_last_ack_recv * 1000000ll : now;
    if (heard_ns > l->acknowledged_ns)
        l->acknowledged_ns = heard_ns;
    int tries = info.tcpi_retransmits > 1 || info.tcpi_probes > 1;
    return tries && now - l->acknowledged_ns > l->mesh->silence_ms * 1000000;
}

/* It may be that only one direction is cut. So the connection is reset: the peer would acknowledge a regular end again
 * and again, and take that for signs of life. */
static void give_up_silent(struct link *l)
{
    const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    port_lose(&l->port, COMM_ERR_PEER_LOST,
              "gives no sign of life: its host has not acknowledged what host %s sent it for %lld ms "
              "(COMM_TCP_SILENCE_MS)",
              l->mesh->domain.peers.host_name, (long long)l->mesh->silence_ms);
}

void connect_tick(struct mesh *m)
{
    int64_t now = clock_now_ns();
    for (int32_t i = 0; i < m->domain.peers.size; i++)
        if (m->links[i].port.state == PORT_UP && is_silent(&m->links[i], now))
            give_up_silent(&m->links[i]);
}

void connect_timer(struct mesh *m, int64_t now_ns)
{
    for (int32_t i = 0; i < m->domain.peers.size; i++) {
        struct link *l = &m->links[i];
        if (link_phase(l) == LINK_CONNECTING && l->fd < 0) {
            connect_next(l);
        } else if (link_phase(l) == LINK_AWAITED && now_ns >= l->give_up_ns) {
            l->port.state = PORT_IDLE;
            port_want(&l->port);
        } else if (connect_under_way(l) && now_ns >= l->give_up_ns) {
            l->candidate_next = l->candidate_count;
            attempt_failed(l, "no answer");
        } else if (connect_under_way(l) && now_ns >= l->attempt_end_ns) {
            attempt_failed(l, "no answer");
        }
    }
}

int64_t connect_due_ns(const struct mesh *m, int64_t now_ns)
{
    int64_t due = INT64_MAX;
    for (int32_t i = 0; i < m->domain.peers.size; i++) {
        const struct link *l = &m->links[i];
        if (link_phase(l) == LINK_CONNECTING && l->fd < 0)
            return now_ns + RETRY_MS * 1000000ll;
        int connecting = connect_under_way(l);
        if ((connecting || link_phase(l) == LINK_AWAITED) && l->give_up_ns < due)
            due = l->give_up_ns;
        if (connecting && l->attempt_end_ns < due)
            due = l->attempt_end_ns;
    }
    return due;
}

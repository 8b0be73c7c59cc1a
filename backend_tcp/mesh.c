/* Who is where, and getting connected: the listener, the addresses that ranks publish in the store, and the handshake. A pair is
 * connected when it first talks. If both sides begin at once, the lower rank's connection wins.
 *
 * Every process proves that it has the job's secret (or the world's nonce from the store); others are dropped and counted. */
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/netaddr.h"
#include "base/utf8.h"
#include "tcp.h"

/* A connection that came in and has not proved yet who it is. */
struct stranger {
    struct mesh *mesh;
    int fd;
    uv_poll_t *poll;
    int64_t give_up_ns;
    uint8_t hello[WIRE_HELLO_BYTES], nonce[WIRE_NONCE_BYTES], proof[WIRE_PROOF_BYTES];
    size_t got;
    int32_t from; /* -1: hello not complete */
};

static void connect_next(struct link *l);

/* ---- Texts ---- */

static void address_text(const struct sockaddr_storage *a, char *text, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
        int mapped = IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
        if (mapped)
            inet_ntop(AF_INET, &six->sin6_addr.s6_addr[12], host, sizeof host);
        else
            inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        snprintf(text, room, mapped ? "%s:%d" : "[%s]:%d", host, ntohs(six->sin6_port));
    } else {
        const struct sockaddr_in *four = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        snprintf(text, room, "%s:%d", host, ntohs(four->sin_port));
    }
}

/* ---- Sockets ---- */

static void tune(int fd, void *context)
{
    const struct mesh *m = context;
    int on = 1, idle = 10, interval = 5, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    /* BBR, some systems' default, halves what loopback and private networks can do. Not allowed everywhere: never mind. */
    if (*m->congestion)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, m->congestion, (socklen_t)strlen(m->congestion));
}

static void handle_closed(uv_handle_t *handle)
{
    struct mesh *m = handle->loop->data;
    m->open_handles--;
    free(handle);
}

static uv_poll_t *poll_new(struct mesh *m, int fd, void *data)
{
    uv_poll_t *poll = malloc(sizeof *poll);
    if (!poll || uv_poll_init(&m->loop, poll, fd) != 0) {
        free(poll);
        return NULL;
    }
    m->open_handles++;
    poll->data = data;
    return poll;
}

static void poll_end(uv_poll_t **poll)
{
    if (!*poll)
        return;
    uv_poll_stop(*poll);
    uv_close((uv_handle_t *)*poll, handle_closed);
    *poll = NULL;
}

/* Forgotten first, then closed: see "Forks". */
static void close_fd(int *fd)
{
    int closing = *fd;
    *(volatile int *)fd = -1;
    if (closing >= 0)
        close(closing);
}

/* Handshake messages are shorter than any socket buffer: one send takes all of it or the connection is no good. */
static int send_all(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* ---- Coming in ---- */

static void stranger_end(struct stranger *s, int refused)
{
    poll_end(&s->poll);
    close_fd(&s->fd);
    s->mesh->stranger_count--;
    if (refused) {
        s->mesh->strangers_refused++;
        exec_log(COMM_LOG_INFO, "rank %d: a connection that is not of this job was refused (%llu so far)",
                (int)s->mesh->rank, (unsigned long long)s->mesh->strangers_refused);
    }
}

static int under_way(const struct link *l)
{
    return l->state == LINK_CONNECTING || l->state == LINK_CHALLENGED;
}

static void connecting_end(struct link *l)
{
    if (!under_way(l))
        return;
    poll_end(&l->poll);
    close_fd(&l->fd);
}

/* Of two connections that are being made the lower rank's is kept, and it decides which one that is. But if its own has not come
 * about for a while, it may be one that cannot: only one of the two may be able to reach the other. */
static int ours_goes_first(const struct link *l)
{
    return under_way(l) && l->mesh->rank < l->peer && clock_now_ns() - l->begun_ns < TCP_FIRST_MS * 1000000ll;
}

static enum wire_verdict judge(struct mesh *m, const struct wire_hello *hello)
{
    if (hello->version != WIRE_VERSION)
        return WIRE_OTHER_VERSION;
    if (hello->world != m->world || hello->to != m->rank || hello->from < 0 || hello->from >= m->size ||
        hello->from == m->rank)
        return WIRE_STRANGER;
    const struct link *l = &m->links[hello->from];
    if (l->state == LINK_UP || l->state == LINK_LEFT || l->state == LINK_LOST)
        return WIRE_STRANGER;
    return ours_goes_first(l) ? WIRE_DUPLICATE : WIRE_WELCOME;
}

static void answer_hello(struct stranger *s)
{
    struct mesh *m = s->mesh;
    struct wire_hello hello;
    if (wire_get_hello(s->hello, &hello) != 0) {
        stranger_end(s, 1);
        return;
    }
    struct wire_challenge challenge = { .verdict = judge(m, &hello), .version = WIRE_VERSION };
    wire_random(challenge.nonce, sizeof challenge.nonce);
    memcpy(s->nonce, challenge.nonce, sizeof s->nonce);
    wire_prove(m->secret, 'A', s->hello, challenge.nonce, challenge.proof);
    uint8_t out[WIRE_CHALLENGE_BYTES];
    wire_put_challenge(&challenge, out);
    int sent = send_all(s->fd, out, sizeof out);
    if (!sent || challenge.verdict != WIRE_WELCOME) {
        stranger_end(s, challenge.verdict > WIRE_DUPLICATE);
        return;
    }
    s->from = hello.from;
    /* It has proved nothing yet. If the higher rank is connecting too, that goes on until it has: the peer will refuse ours. If we are not,
     * we must not begin now: it may take this connection for good before we hear of it. And the lower rank has decided with its welcome; that
     * it gives up its own attempt before, of which it has sent no proof, leaves no more than one connection. */
    struct link *l = &m->links[hello.from];
    if (l->state == LINK_IDLE || l->state == LINK_RESOLVING || (under_way(l) && m->rank < l->peer)) {
        connecting_end(l);
        l->state = LINK_AWAITED;
        l->give_up_ns = s->give_up_ns;
    }
}

static void admit(struct stranger *s)
{
    uint8_t proof[WIRE_PROOF_BYTES];
    wire_prove(s->mesh->secret, 'C', s->hello, s->nonce, proof);
    struct link *l = &s->mesh->links[s->from];
    if (!wire_same(proof, s->proof, sizeof proof)) {
        if (l->state == LINK_AWAITED)
            l->state = LINK_IDLE;
        stranger_end(s, 1);
        if (l->tx_head || l->interest)
            mesh_want(s->mesh, s->from);
        return;
    }
    int fd = s->fd;
    s->fd = -1;
    struct sockaddr_storage a;
    socklen_t bytes = sizeof a;
    if (!*l->where && getpeername(fd, (struct sockaddr *)&a, &bytes) == 0)
        address_text(&a, l->where, sizeof l->where);
    stranger_end(s, 0);
    if (l->state == LINK_UP || l->state == LINK_LEFT || l->state == LINK_LOST) {
        close(fd);
        return;
    }
    connecting_end(l); /* If we are connecting too: the peer will refuse ours, as this one is up at its side. */
    link_up(l, fd);
    l->heard = 1; /* its proof */
    struct frame admitted = { .type = FRAME_CREDIT };
    link_send(l, &admitted, NULL, 0, NULL, 0, 0);
}

static void on_stranger(uv_poll_t *poll, int status, int events)
{
    struct stranger *s = poll->data;
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
            if (proving && s->mesh->links[s->from].state == LINK_AWAITED)
                s->mesh->links[s->from].state = LINK_IDLE;
            int32_t from = s->from;
            struct mesh *m = s->mesh;
            stranger_end(s, s->from < 0);
            if (from >= 0 && (m->links[from].tx_head || m->links[from].interest))
                mesh_want(m, from);
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

/* A free place. If there is none, of those who have not even said who they are the one that has been silent for longest makes room:
 * a crowd that says nothing must not keep the ranks out. */
static struct stranger *stranger_new(struct mesh *m)
{
    struct stranger *oldest = NULL;
    for (int i = 0; i < TCP_STRANGERS_MOST; i++) {
        struct stranger *s = &m->strangers[i];
        if (s->fd < 0)
            return s;
        if (s->from < 0 && (!oldest || s->give_up_ns < oldest->give_up_ns))
            oldest = s;
    }
    if (oldest)
        stranger_end(oldest, 1);
    return oldest;
}

/* No more file descriptors: who comes waits in the queue for a moment, for meanwhile the listener stays readable. */
static void pause_listening(struct mesh *m, int error)
{
    if (!m->listening_paused)
        exec_log(COMM_LOG_WARN, "rank %d: cannot accept a connection: %s; ranks that connect wait until descriptors are free "
                                "(raise the limit: ulimit -n)", (int)m->rank, strerror(error));
    m->listening_paused = 1;
    uv_poll_stop(m->listener_poll);
    m->listen_again_ns = clock_now_ns() + TCP_ACCEPT_PAUSE_MS * 1000000ll;
    progress_rearm(m, m->listen_again_ns);
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
        struct stranger *s = stranger_new(m);
        if (!s) {
            close(fd); /* They will try again. */
            continue;
        }
        tune(fd, m);
        memset(s, 0, sizeof *s);
        s->mesh = m;
        s->fd = fd;
        s->from = -1;
        s->give_up_ns = clock_now_ns() + TCP_HANDSHAKE_MS * 1000000ll;
        s->poll = poll_new(m, fd, s);
        m->stranger_count++;
        if (!s->poll) {
            stranger_end(s, 0);
            continue;
        }
        progress_watch(m, s->poll, UV_READABLE, on_stranger);
        progress_rearm(m, s->give_up_ns);
    }
}

static comm_status listen_anywhere(struct mesh *m)
{
    int port;
    m->listener = netaddr_listen(4096, &port);
    if (m->listener < 0)
        return exec_fail(COMM_ERR_SYSTEM, "listening for the other ranks: %s", strerror(errno));
    m->port = port;
    snprintf(m->links[m->rank].where, sizeof m->links[0].where, "%.64s:%d", m->host_name, (int)m->port);
    m->listener_poll = poll_new(m, m->listener, m);
    if (!m->listener_poll)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for the listener");
    progress_watch(m, m->listener_poll, UV_READABLE, on_listener);
    return COMM_OK;
}

/* ---- The address book ---- */

/* Does a comma list of names take this interface? "eth0,ib" are prefixes, "=eth0" is exact, "^lo,docker" excludes. */
static int interface_wanted(const char *list, const char *name)
{
    if (!*list)
        return 1;
    int exclude = *list == '^';
    const char *at = list + exclude;
    while (*at) {
        size_t n = strcspn(at, ",");
        int exact = *at == '=';
        const char *word = at + exact;
        size_t length = n - (size_t)exact;
        if (length && strncmp(word, name, length) == 0 && (!exact || name[length] == '\0'))
            return !exclude;
        at += n + (at[n] == ',');
    }
    return exclude;
}

/* Where this rank is, for texts that others read: the first address that it publishes. */
static void note_own_place(struct mesh *m, const char *addresses)
{
    int bytes = (int)strcspn(addresses, "\n");
    int six = memchr(addresses, ':', (size_t)bytes) != NULL;
    snprintf(m->links[m->rank].where, sizeof m->links[0].where, "%.24s %s%.*s%s:%d", m->host_name, six ? "[" : "",
             bytes ? (bytes < 45 ? bytes : 45) : 9, bytes ? addresses : "127.0.0.1", six ? "]" : "", (int)m->port);
}

/* One line each: host name, identity, port, then the addresses. Loopback is for peers with our identity only, and implied. */
static comm_status publish(struct mesh *m)
{
    char key[32], page[4096];
    int used = snprintf(page, sizeof page, "%s\n%s\n%d\n", m->host_name, m->host_identity, (int)m->port);
    int listed = netaddr_list(page + used, sizeof page - (size_t)used, interface_wanted, m->interfaces);
    if (listed < 0)
        return exec_fail(COMM_ERR_SYSTEM, "listing this host's addresses: %s", strerror(errno));
    note_own_place(m, page + used);
    snprintf(key, sizeof key, "tcp/%d", (int)m->rank);
    return exec_host->store_set(m->store, key, page, (size_t)(used + listed));
}

/* Read a peer's page into link->candidates. */
static int read_page(struct link *l, char *page)
{
    enum { MOST = 32 };
    char *rest = page, *host = strsep(&rest, "\n"), *identity = strsep(&rest, "\n"), *port_text = strsep(&rest, "\n");
    int port = port_text ? atoi(port_text) : 0;
    free(l->candidates);
    l->candidates = calloc(MOST, sizeof *l->candidates);
    l->candidate_count = l->candidate_next = l->refusals = 0;
    if (!l->candidates || !host || !identity || port < 1 || port > 65535)
        return 0;
    l->same_host = strcmp(identity, l->mesh->host_identity) == 0;
    if (l->same_host)
        l->candidate_count += netaddr_parse("127.0.0.1", port, &l->candidates[0]);
    for (char *line; rest && l->candidate_count < MOST && (line = strsep(&rest, "\n"));)
        l->candidate_count += netaddr_parse(line, port, &l->candidates[l->candidate_count]);
    char text[64] = "no address";
    if (l->candidate_count)
        address_text(&l->candidates[0], text, sizeof text);
    host[utf8_clean(host, strnlen(host, 24))] = '\0'; /* the peer wrote it */
    snprintf(l->where, sizeof l->where, "%s %.50s", host, text);
    return l->candidate_count > 0;
}

/* The store has said where a peer is, or why it cannot. */
static void resolved(struct mesh *m, int32_t peer, char *page, const char *error)
{
    struct link *l = &m->links[peer];
    if (l->state != LINK_RESOLVING || m->closing > 1)
        return;
    if (page && read_page(l, page))
        connect_next(l);
    else if (page)
        link_lose(l, COMM_ERR_PEER_LOST, "has no usable address in the store: what it published makes no sense");
    else /* It has published one, or its comm_init would have failed. */
        link_lose(l, COMM_ERR_PEER_LOST, "cannot be reached, for the store, which has its address, does not answer: %s", error);
}

/* ---- Going out ---- */

static void attempt_failed(struct link *l, const char *why)
{
    char address[80] = "";
    if (l->candidate_next > 0)
        address_text(&l->candidates[l->candidate_next - 1], address, sizeof address);
    snprintf(l->trouble, sizeof l->trouble, "%s: %s", address, why);
    l->refusals = 0;
    connecting_end(l);
    connect_next(l);
}

/* The same for an error of the system's. A refusal counts: a rank listens before it publishes where, so once nobody listens at
 * any of its addresses, it has ended. */
static void connect_failed(struct link *l, int error)
{
    int refusals = error == ECONNREFUSED ? l->refusals + 1 : 0;
    char address[80];
    address_text(&l->candidates[l->candidate_next - 1], address, sizeof address);
    snprintf(l->trouble, sizeof l->trouble, "%s: %s", address, strerror(error));
    l->refusals = refusals;
    connecting_end(l);
    connect_next(l);
}

static int has_ended(const struct link *l)
{
    int64_t patience_ms = l->same_host ? TCP_REFUSED_HERE_MS : TCP_REFUSED_MS;
    return l->refusals >= l->candidate_count * (int)(1 + patience_ms / TCP_RETRY_MS);
}

static void on_connecting(uv_poll_t *poll, int status, int events);

/* Try the next address; after the last one, all again until the time is over. */
static void connect_next(struct link *l)
{
    struct mesh *m = l->mesh;
    if (l->candidate_next >= l->candidate_count) {
        int ended = has_ended(l);
        if (ended || m->closing || clock_now_ns() >= l->give_up_ns) {
            link_lose(l, COMM_ERR_PEER_LOST, "cannot be reached from host %s: %s%s", m->host_name, l->trouble,
                      ended ? "; nobody listens there any more: its process has ended, or has closed its world" : "");
            return;
        }
        l->candidate_next = 0;
        l->state = LINK_CONNECTING; /* mesh_timer begins the next try. */
        progress_rearm(m, clock_now_ns() + TCP_RETRY_MS * 1000000ll);
        return;
    }
    l->state = LINK_CONNECTING;
    l->fd = netaddr_connect(&l->candidates[l->candidate_next++], tune, m);
    if (l->fd < 0) {
        connect_failed(l, errno);
        return;
    }
    l->poll = poll_new(m, l->fd, l);
    if (!l->poll) {
        attempt_failed(l, "no memory");
        return;
    }
    l->shake_got = 0;
    progress_watch(m, l->poll, UV_WRITABLE, on_connecting);
    l->attempt_end_ns = clock_now_ns() + TCP_CONNECT_MS * 1000000ll;
    progress_rearm(m, l->attempt_end_ns);
}

static void say_hello(struct link *l)
{
    struct mesh *m = l->mesh;
    struct wire_hello hello = { WIRE_VERSION, m->world, m->rank, l->peer, { 0 } };
    wire_random(hello.nonce, sizeof hello.nonce);
    wire_put_hello(&hello, l->hello);
    if (!send_all(l->fd, l->hello, sizeof l->hello)) {
        attempt_failed(l, strerror(errno));
        return;
    }
    l->state = LINK_CHALLENGED;
    l->attempt_end_ns = clock_now_ns() + TCP_HANDSHAKE_MS * 1000000ll;
    progress_watch(m, l->poll, UV_READABLE, on_connecting);
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
        connecting_end(l);
        l->state = LINK_AWAITED;
        l->give_up_ns = clock_now_ns() + TCP_AWAIT_MS * 1000000ll;
        progress_rearm(m, l->give_up_ns);
        return;
    }
    if (challenge.verdict != WIRE_WELCOME) {
        attempt_failed(l, challenge.verdict == WIRE_OTHER_VERSION ? "it speaks another version of the protocol"
                                                                  : "it belongs to another world, or has closed it");
        return;
    }
    wire_prove(m->secret, 'C', l->hello, challenge.nonce, proof);
    if (!send_all(l->fd, proof, sizeof proof)) {
        attempt_failed(l, strerror(errno));
        return;
    }
    int fd = l->fd;
    poll_end(&l->poll);
    l->fd = -1;
    address_text(&l->candidates[l->candidate_next - 1], l->trouble, sizeof l->trouble);
    link_up(l, fd);
}

static void on_connecting(uv_poll_t *poll, int status, int events)
{
    struct link *l = poll->data;
    (void)status;
    (void)events;
    if (l->state == LINK_CONNECTING) {
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

void mesh_want(struct mesh *m, int32_t peer)
{
    struct link *l = &m->links[peer];
    if (l->state != LINK_IDLE || peer == m->rank || m->closing)
        return;
    if (!resolver_ask(m, peer, resolved)) {
        link_lose(l, COMM_ERR_NO_MEMORY, "cannot be connected: no memory or no thread for it");
        return;
    }
    l->state = LINK_RESOLVING;
    l->begun_ns = clock_now_ns();
    l->give_up_ns = l->begun_ns + m->connect_ms * 1000000;
}

/* ---- Time ---- */

/* Keepalive notices a dead host while nothing is under way; what is under way would be sent again for a quarter of an hour. TCP_USER_TIMEOUT is
 * not the cure: it also ends connections to a process that is only stopped, and so does not read. Its host still
 * acknowledges; a dead one does not. Silence begins with the first thing that is not acknowledged, however long nothing was said before. */
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
    return (info.tcpi_retransmits > 1 || info.tcpi_probes > 1) && now - l->acknowledged_ns > l->mesh->silence_ms * 1000000;
}

void mesh_tick(struct mesh *m)
{
    int64_t now = clock_now_ns();
    for (int32_t i = 0; i < m->size; i++)
        if (m->links[i].state == LINK_UP && is_silent(&m->links[i], now))
            link_lose(&m->links[i], COMM_ERR_PEER_LOST, "gives no sign of life: its host has not acknowledged what host %s sent it for %lld ms (COMM_TCP_SILENCE_MS)",
                      m->host_name, (long long)m->silence_ms);
}

void mesh_timer(struct mesh *m)
{
    int64_t now = clock_now_ns();
    if (m->listen_again_ns && now >= m->listen_again_ns) {
        m->listen_again_ns = 0;
        progress_watch(m, m->listener_poll, UV_READABLE, on_listener);
    }
    for (int i = 0; m->stranger_count && i < TCP_STRANGERS_MOST; i++)
        if (m->strangers[i].fd >= 0 && now >= m->strangers[i].give_up_ns)
            stranger_end(&m->strangers[i], 1);
    for (int32_t i = 0; i < m->size; i++) {
        struct link *l = &m->links[i];
        if (l->state == LINK_CONNECTING && l->fd < 0) {
            connect_next(l);
        } else if (l->state == LINK_AWAITED && now >= l->give_up_ns) {
            l->state = LINK_IDLE;
            mesh_want(m, i);
        } else if (under_way(l) && now >= l->give_up_ns) {
            l->candidate_next = l->candidate_count;
            attempt_failed(l, "no answer");
        } else if (under_way(l) && now >= l->attempt_end_ns) {
            attempt_failed(l, "no answer");
        }
    }
}

int64_t mesh_due_ns(const struct mesh *m)
{
    int64_t due = m->listen_again_ns ? m->listen_again_ns : INT64_MAX, now = clock_now_ns();
    if (m->stranger_count && now + 1000 * 1000000ll < due)
        due = now + 1000 * 1000000ll;
    for (int32_t i = 0; i < m->size; i++) {
        const struct link *l = &m->links[i];
        if (l->state == LINK_CONNECTING && l->fd < 0)
            return now + TCP_RETRY_MS * 1000000ll;
        int connecting = under_way(l);
        if ((connecting || l->state == LINK_AWAITED) && l->give_up_ns < due)
            due = l->give_up_ns;
        if (connecting && l->attempt_end_ns < due)
            due = l->attempt_end_ns;
    }
    return due;
}

/* ---- Forks ----
 *
 * A child of fork() has copies of all our descriptors. If it kept them, the peers would not notice the parent's death as long as the
 * child lives (worker processes that load data do). So the child closes them at once. It has a snapshot of memory from the moment of
 * the fork: descriptors are therefore forgotten before they are closed, or the child might close a number that means something
 * else by then. */

static pthread_mutex_t forks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mesh *forks_meshes; /* all that are open; guarded by forks_lock */

static void close_descriptors(struct mesh *m)
{
    for (int32_t i = 0; i < m->size; i++)
        close_fd(&m->links[i].fd);
    for (int i = 0; i < TCP_STRANGERS_MOST; i++)
        close_fd(&m->strangers[i].fd);
    close_fd(&m->listener);
}

static void before_fork(void)
{
    pthread_mutex_lock(&forks_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&forks_lock);
}

static void after_fork_in_child(void)
{
    for (struct mesh *m = forks_meshes; m; m = m->next)
        close_descriptors(m);
    forks_meshes = NULL;
    pthread_mutex_unlock(&forks_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void enlist(struct mesh *m)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&forks_lock);
    m->next = forks_meshes;
    forks_meshes = m;
    pthread_mutex_unlock(&forks_lock);
}

static void delist(const struct mesh *m)
{
    pthread_mutex_lock(&forks_lock);
    struct mesh **at = &forks_meshes;
    while (*at && *at != m)
        at = &(*at)->next;
    if (*at)
        *at = m->next;
    pthread_mutex_unlock(&forks_lock);
}

/* ---- Open and close ---- */

static void read_parameters(struct mesh *m, const void *options)
{
    m->eager_bytes = exec_host->param_int(options, "tcp", "eager_bytes");
    m->linger_ms = exec_host->param_int(options, "tcp", "linger_ms");
    m->connect_ms = exec_host->param_int(options, "tcp", "connect_ms");
    m->silence_ms = exec_host->param_int(options, "tcp", "silence_ms");
    const char *congestion = exec_host->param_text(options, "tcp", "congestion");
    snprintf(m->congestion, sizeof m->congestion, "%s", congestion ? congestion : "");
    const char *interfaces = exec_host->param_text(options, "tcp", "interface");
    snprintf(m->interfaces, sizeof m->interfaces, "%s", interfaces ? interfaces : "");
}

/* While a rank waits it looks at its sockets for a while, then sleeps. With more ranks than cores the others need this core more
 * than we need to look again: then it yields between looks. */
static void choose_waiting(struct mesh *m, const comm_world_info *info)
{
    cpu_set_t mine;
    int32_t cores = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    int32_t local = info->local_size > 0 ? info->local_size : m->size;
    if (cores < local && cores * local <= online)
        cores = online; /* each rank is bound to cores of its own */
    int crowded = local > cores;
    m->spin_ns = crowded ? 0 : exec_host->param_int(info->options, "tcp", "spin_us") * 1000;
    m->yield_ns = crowded ? exec_host->param_int(info->options, "tcp", "yield_us") * 1000 : 0;
}

static void mesh_free(struct mesh *m)
{
    for (int32_t i = 0; m->links && i < m->size; i++) {
        struct link *l = &m->links[i];
        while (l->tx_head) {
            struct tx *tx = l->tx_head;
            l->tx_head = tx->next;
            free(tx->owned);
            free(tx);
        }
        free(l->rx);
        free(l->candidates);
        free(l->lost_text);
    }
    while (m->tx_pool) {
        struct tx *tx = m->tx_pool;
        m->tx_pool = tx->next;
        free(tx);
    }
    while (m->op_pool) {
        struct tcp_op *op = m->op_pool;
        m->op_pool = op->next;
        free(op);
    }
    while (m->early_pool) {
        struct early *e = m->early_pool;
        m->early_pool = e->next;
        free(e);
    }
    resolver_free(m);
    group_forget_past(m);
    free(m->links);
    free(m->hot);
    free(m->strangers);
    free(m->bounce);
    free(m->done);
    free(m->secret);
    free(m);
}

comm_status mesh_allocate(struct mesh *m, const char *secret)
{
    m->secret = strdup(secret ? secret : "");
    m->links = calloc((size_t)m->size, sizeof *m->links);
    m->hot = calloc((size_t)m->size, sizeof *m->hot);
    m->strangers = calloc(TCP_STRANGERS_MOST, sizeof *m->strangers);
    int failed = posix_memalign((void **)&m->bounce, 4096, TCP_BOUNCE_BYTES);
    if (failed || !m->secret || !m->links || !m->hot || !m->strangers)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for %d links", (int)m->size);
    for (int32_t i = 0; i < m->size; i++) {
        struct link *l = &m->links[i];
        l->mesh = m;
        l->peer = i;
        l->fd = -1;
        l->hot_index = -1;
        l->tx_tail = &l->tx_head;
        l->credit = TCP_CREDIT_WINDOW;
    }
    for (int i = 0; i < TCP_STRANGERS_MOST; i++) {
        m->strangers[i].fd = -1;
        m->strangers[i].mesh = m;
    }
    return COMM_OK;
}

/* What reaches outside, once there is memory; mesh_close takes it half done. */
static comm_status mesh_start(struct mesh *m)
{
    comm_status status = progress_start(m);
    enlist(m);
    if (status == COMM_OK)
        status = listen_anywhere(m);
    if (status == COMM_OK)
        status = publish(m);
    return status == COMM_OK ? progress_helper(m) : status;
}

comm_status mesh_open(const comm_world_info *info, struct mesh **ret_mesh)
{
    struct mesh *m = calloc(1, sizeof *m);
    if (!m)
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory");
    m->rank = info->rank;
    m->size = info->size;
    m->world = info->id;
    m->store = info->store;
    m->hosts = info->hosts;
    m->listener = -1;
    early_list_init(&m->orphans);
    gethostname(m->host_name, sizeof m->host_name - 1);
    netaddr_identity(m->host_identity);
    read_parameters(m, info->options);
    choose_waiting(m, info);
    comm_status status = mesh_allocate(m, info->secret);
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

/* A connection is under way because of something that was accepted, such as the reason why a group ended: without it a peer
 * that has not come yet would only find that we are gone. */
static int awaits_its_peer(const struct link *l)
{
    return l->tx_head && (l->state == LINK_RESOLVING || l->state == LINK_CONNECTING || l->state == LINK_CHALLENGED ||
                          l->state == LINK_AWAITED);
}

/* Is there somebody to say goodbye to, or something to deliver first? A peer that is shaking hands takes the connection for
 * good once it has sent its proof, so it is waited for too. */
static int still_leaving(const struct mesh *m)
{
    for (int32_t i = 0; i < m->size; i++)
        if (m->links[i].state == LINK_UP || awaits_its_peer(&m->links[i]))
            return 1;
    for (int i = 0; m->stranger_count && i < TCP_STRANGERS_MOST; i++)
        if (m->strangers[i].fd >= 0 && m->strangers[i].from >= 0)
            return 1;
    return 0;
}

static void leave(struct link *l)
{
    struct frame bye = { .type = FRAME_BYE };
    link_send(l, &bye, NULL, 0, NULL, 0, 0);
    l->said_goodbye = 1;
    if (l->state == LINK_UP && l->tx_head)
        link_poll(l, UV_READABLE | UV_WRITABLE);
    else if (l->state == LINK_UP)
        shutdown(l->fd, SHUT_WR);
}

/* Say goodbye, deliver what was accepted, and wait for the peers' goodbyes, all within linger_ms. */
static void say_goodbye(struct mesh *m)
{
    int64_t end = clock_now_ns() + m->linger_ms * 1000000;
    m->closing = 1;
    while (still_leaving(m) && clock_now_ns() < end) {
        for (int32_t i = 0; i < m->size; i++)
            if (m->links[i].state == LINK_UP)
                leave(&m->links[i]);
        progress_nap(m, 20);
        mesh_timer(m);
        group_turn_end(m);
    }
}

static void walk_close(uv_handle_t *handle, void *argument)
{
    (void)argument;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void close_loop(struct mesh *m)
{
    poll_end(&m->listener_poll);
    for (int i = 0; i < TCP_STRANGERS_MOST; i++)
        if (m->strangers[i].fd >= 0)
            stranger_end(&m->strangers[i], 0);
    for (int32_t i = 0; i < m->size; i++) {
        connecting_end(&m->links[i]);
        link_close(&m->links[i]);
    }
    while (m->open_handles)
        uv_run(&m->loop, UV_RUN_ONCE);
    uv_walk(&m->loop, walk_close, NULL);
    while (uv_loop_close(&m->loop) == UV_EBUSY)
        uv_run(&m->loop, UV_RUN_ONCE);
}

void mesh_close(struct mesh *m, int forked)
{
    if (forked) {
        close_descriptors(m); /* done already, unless fork() was not libc's; the loop and the thread are the parent's */
        return;
    }
    progress_stop(m);
    pthread_mutex_lock(&m->lock);
    say_goodbye(m);
    m->closing = 2;
    early_list_clear(m, &m->orphans);
    resolver_stop(m);
    if (m->loop_made)
        close_loop(m);
    close_fd(&m->listener);
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_destroy(&m->lock);
    delist(m);
    mesh_free(m);
}

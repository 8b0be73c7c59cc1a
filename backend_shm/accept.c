/* Coming in: the listener, and connections that shake hands. A process of another user, or without the job's secret, is
 * dropped and counted: it never sees a descriptor of ours. */
#include "accept.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "dial.h"
#include "descriptor.h"
#include "events.h"
#include "duplex.h"
#include "greeting.h"
#include "region.h"
#include "say.h"
#include "segment.h"

enum { ACCEPT_PAUSE_MS = 50 }; /* when there are no more file descriptors */

static void give_descriptors_back(struct pending_conn *c)
{
    for (int i = 0; i < 2; i++)
        descriptor_close(&c->reserved[i]);
}

/* Those that the peer will send: what cannot be received then would be lost, and the peer with it. */
static int reserve_descriptors(struct pending_conn *c)
{
    for (int i = 0; i < 2; i++)
        if ((c->reserved[i] = fcntl(c->watch.fd, F_DUPFD_CLOEXEC, 0)) < 0)
            return 0;
    return 1;
}

static void pending_end(struct pending_conn *c, int refused)
{
    struct fabric *f = c->fabric;
    events_unwatch(f, &c->watch);
    give_descriptors_back(c);
    descriptor_close(&c->watch.fd);
    f->pending_count--;
    if (refused) {
        f->refused++;
        exec_log(COMM_LOG_INFO, "rank %d: a connection that is not of this job was refused (%llu so far)",
                 (int)f->domain->peers.rank, (unsigned long long)f->refused);
    }
}

static enum greeting_verdict judge(const struct fabric *f, const struct greeting_hello *hello)
{
    const struct port_table *peers = &f->domain->peers;
    if (hello->version != GREETING_VERSION)
        return GREETING_OTHER_VERSION;
    if (hello->world != f->domain->world || hello->to != peers->rank || hello->from < 0 || hello->from >= peers->size ||
        hello->from == peers->rank)
        return GREETING_OTHER_WORLD;
    const struct duplex *p = &f->duplexes[hello->from];
    if (p->port.state == PORT_UP || port_is_gone(&p->port))
        return GREETING_OTHER_WORLD;
    return dial_under_way(p) && peers->rank < hello->from ? GREETING_DUPLICATE : GREETING_WELCOME;
}

static void answer_hello(struct pending_conn *c, const struct greeting_hello *hello)
{
    struct fabric *f = c->fabric;
    uint8_t token[GREETING_TOKEN_BYTES];
    greeting_token(f->secret, 'C', f->name, hello, token);
    if (!greeting_is_hello(hello) || !greeting_same(token, hello->token)) {
        pending_end(c, 1);
        return;
    }
    struct greeting_answer answer = { .verdict = judge(f, hello), .version = GREETING_VERSION,
                                      .node = segment_node() };
    if (answer.verdict == GREETING_WELCOME && !reserve_descriptors(c))
        answer.verdict = GREETING_BUSY;
    greeting_token(f->secret, 'A', f->name, hello, answer.token);
    int sent = greeting_send(c->watch.fd, &answer, sizeof answer, &f->bell.fd, 1);
    if (!sent || answer.verdict != GREETING_WELCOME) {
        pending_end(c, answer.verdict > GREETING_BUSY);
        return;
    }
    /* Our own attempt, if there is one, is given up: the lower rank's wins, and it has decided. So is an earlier one of
     * that rank's, whose end may lie in its socket unread. */
    for (int i = 0; i < f->pending_places; i++)
        if (f->pending[i].watch.fd >= 0 && f->pending[i].from == hello->from)
            pending_end(&f->pending[i], 0);
    c->from = hello->from;
    struct duplex *p = &f->duplexes[c->from];
    dial_end(p);
    duplex_opening(p, DUPLEX_AWAITED);
    p->give_up_ns = c->give_up_ns;
}

/* The peer's connection came to nothing. */
static void broke_off(struct pending_conn *c)
{
    struct duplex *p = c->from >= 0 ? &c->fabric->duplexes[c->from] : NULL;
    pending_end(c, !p);
    if (!p || duplex_phase(p) != DUPLEX_AWAITED)
        return;
    p->port.state = PORT_IDLE;
    if (p->tx_head || p->port.interest)
        port_want(&p->port);
}

/* 0, or a negative errno. */
static int take_memory(struct duplex *p, const struct greeting_ready *ready, int memory)
{
    int wrong = segment_check(memory, (size_t)ready->ring_bytes);
    return wrong ? wrong : segment_map(&p->segment, memory, (size_t)ready->ring_bytes);
}

/* The peer takes itself for connected already, so that there is no other attempt. */
static void refuse_memory(struct pending_conn *c, int error)
{
    struct duplex *p = &c->fabric->duplexes[c->from];
    char why[SHM_WHY_BYTES];
    snprintf(why, sizeof why, "offered memory for two rings that cannot be mapped: %s", segment_error(error));
    region_say_end(c->watch.fd, p->port.lost_text ? p->port.lost_text : why);
    pending_end(c, 0);
    if (duplex_phase(p) == DUPLEX_AWAITED)
        port_lose(&p->port, COMM_ERR_NO_MEMORY, "%s", why);
}

static void admit(struct pending_conn *c, const struct greeting_ready *ready, int memory, int bell)
{
    struct fabric *f = c->fabric;
    struct duplex *p = &f->duplexes[c->from];
    int failed = duplex_phase(p) == DUPLEX_AWAITED ? take_memory(p, ready, memory) : -EPROTO;
    close(memory);
    if (failed) {
        close(bell);
        refuse_memory(c, -failed);
        return;
    }
    events_unwatch(f, &c->watch);
    p->watch.fd = c->watch.fd;
    c->watch.fd = -1;
    pending_end(c, 0);
    p->bell = bell;
    p->port.heard = 1; /* its proof */
    dial_note_place(p);
    duplex_up(p, ready->salts);
    struct frame admitted = { .type = FRAME_CREDIT };
    p->port.ops->send(&p->port, &admitted, NULL, 0, NULL);
}

static void on_pending(struct watch *w)
{
    struct pending_conn *c = (struct pending_conn *)w;
    struct greeting_hello hello;
    struct greeting_ready ready;
    int fds[GREETING_FDS_MAX];
    int is_ready = c->from >= 0;
    give_descriptors_back(c);
    ssize_t n = is_ready ? greeting_receive(w->fd, &ready, sizeof ready, fds, 2)
                         : greeting_receive(w->fd, &hello, sizeof hello, fds, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0 && is_ready && errno == EMFILE) /* another thread has taken those that were reserved */
        refuse_memory(c, errno);
    else if (n <= 0)
        broke_off(c);
    else if (is_ready)
        admit(c, &ready, fds[0], fds[1]);
    else
        answer_hello(c, &hello);
}

/* A place for one more that has said nothing yet. When there are enough of them it is that of the oldest one, for many
 * silent connections must not keep the ranks out; but not before that one had some time to speak. NULL, and when there
 * will be one. */
static struct pending_conn *pending_place(struct fabric *f, int64_t now_ns, int64_t *ret_again_ns)
{
    enum { SILENCE_MS = 100 };
    struct pending_conn *oldest = NULL, *free_one = NULL;
    int silent = 0;
    for (int i = 0; i < f->pending_places; i++) {
        struct pending_conn *c = &f->pending[i];
        if (c->watch.fd < 0)
            free_one = c;
        else if (c->from < 0 && (silent++ == 0 || c->give_up_ns < oldest->give_up_ns))
            oldest = c;
    }
    if (silent < SHM_SILENT_MAX && free_one)
        return free_one;
    *ret_again_ns = now_ns + ACCEPT_PAUSE_MS * 1000000ll;
    if (!oldest)
        return NULL;
    int64_t patience_ends_ns = oldest->give_up_ns - (SHM_HANDSHAKE_MS - SILENCE_MS) * 1000000ll;
    if (now_ns >= patience_ends_ns)
        return oldest;
    *ret_again_ns = patience_ends_ns;
    return NULL;
}

static void listen_again(struct fabric *f, int64_t at_ns)
{
    events_unwatch(f, &f->listener);
    f->listen_again_ns = at_ns;
    domain_due(f->domain, at_ns);
}

static void pause_listening(struct fabric *f, int error)
{
    if (!f->has_paused)
        exec_log(COMM_LOG_WARN, "rank %d: cannot accept a connection: %s; ranks that connect wait until descriptors "
                 "are free (raise the limit: ulimit -n)", (int)f->domain->peers.rank, strerror(error));
    f->has_paused = 1;
    listen_again(f, clock_now_ns() + ACCEPT_PAUSE_MS * 1000000ll);
}

/* It has mostly spoken already. */
static void begin_pending(struct pending_conn *c, struct fabric *f, int fd, int64_t now_ns)
{
    if (c->watch.fd >= 0)
        pending_end(c, 1);
    *c = (struct pending_conn){ .watch = { on_pending, fd }, .fabric = f, .from = -1,
                                .reserved = { -1, -1 } };
    c->give_up_ns = now_ns + SHM_HANDSHAKE_MS * 1000000ll;
    f->pending_count++;
    domain_due(f->domain, c->give_up_ns);
    if (greeting_peer(fd) < 0 || !events_watch(f, &c->watch))
        pending_end(c, 1);
    else
        on_pending(&c->watch);
}

static void on_listener(struct watch *w)
{
    struct fabric *f = (struct fabric *)((char *)w - offsetof(struct fabric, listener));
    for (;;) {
        int64_t now_ns = clock_now_ns(), again_ns;
        struct pending_conn *c = pending_place(f, now_ns, &again_ns);
        if (!c) {
            listen_again(f, again_ns);
            return;
        }
        int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                pause_listening(f, errno);
            return;
        }
        f->has_paused = 0;
        begin_pending(c, f, fd, now_ns);
    }
}

comm_status accept_open(struct fabric *f)
{
    struct sockaddr_un address;
    uint64_t random[2];
    greeting_random(random, sizeof random);
    snprintf(f->name, sizeof f->name, "libcomm-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    socklen_t bytes = greeting_address(f->name, &address);
    f->listener.ready = on_listener;
    f->listener.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (f->listener.fd < 0 || bind(f->listener.fd, (struct sockaddr *)&address, bytes) != 0 ||
        listen(f->listener.fd, 4096) != 0 || !events_watch(f, &f->listener))
        return exec_fail(COMM_ERR_SYSTEM, "listening for the other ranks: %s%s", strerror(errno),
                         descriptors_cure(errno));
    return COMM_OK;
}

void accept_timer(struct fabric *f, int64_t now_ns)
{
    if (f->listen_again_ns && now_ns >= f->listen_again_ns) {
        f->listen_again_ns = events_watch(f, &f->listener) ? 0 : now_ns + ACCEPT_PAUSE_MS * 1000000ll;
    }
    for (int i = 0; f->pending_count && i < f->pending_places; i++)
        if (f->pending[i].watch.fd >= 0 && now_ns >= f->pending[i].give_up_ns)
            broke_off(&f->pending[i]);
}

int64_t accept_due_ns(const struct fabric *f)
{
    int64_t due = f->listen_again_ns ? f->listen_again_ns : INT64_MAX;
    for (int i = 0; f->pending_count && i < f->pending_places; i++)
        if (f->pending[i].watch.fd >= 0 && f->pending[i].give_up_ns < due)
            due = f->pending[i].give_up_ns;
    return due;
}

int accept_is_proving(const struct fabric *f)
{
    for (int i = 0; f->pending_count && i < f->pending_places; i++)
        if (f->pending[i].watch.fd >= 0 && f->pending[i].from >= 0)
            return 1;
    return 0;
}

void accept_close(struct fabric *f)
{
    events_unwatch(f, &f->listener);
    descriptor_close(&f->listener.fd);
    for (int i = 0; i < f->pending_places; i++)
        if (f->pending[i].watch.fd >= 0)
            pending_end(&f->pending[i], 0);
}

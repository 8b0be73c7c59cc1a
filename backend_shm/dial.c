/* Going out: a peer that is wanted is looked up in the store, and greeted at its socket. A pair is connected when it
 * first talks. If both sides begin at once, the lower rank's connection wins. The connector makes the memory. */
#include "dial.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "descriptor.h"
#include "events.h"
#include "greeting.h"
#include "duplex.h"
#include "lend.h"
#include "say.h"
#include "text.h"

enum {
    ASK_MS = 20,      /* so long for one peer, then for the next one */
    AWAIT_MS = 1500,  /* so long a rank that was told to wait for the other's attempt waits */
    RETRY_MS = 5,     /* the peer's queue of connections is full */
    RECALL_RANKS_MAX = 1024, /* up to so many ranks all have what all have published, and the store is not asked */
};

#define CARD_READS "reads"

/* ---- Where ranks are ---- */

static void write_place(const struct port_table *peers, pid_t pid, char *where, size_t capacity)
{
    snprintf(where, capacity, "%.48s pid %d", peers->host_name, (int)pid);
}

comm_status dial_publish(struct fabric *f)
{
    char key[32], card[256], where[sizeof f->duplexes->port.where];
    struct port *own = f->domain->peers.at[f->domain->peers.rank];
    write_place(&f->domain->peers, getpid(), where, sizeof where);
    if (!*own->where)
        snprintf(own->where, sizeof own->where, "%s", where);
    snprintf(key, sizeof key, "shm/%d", (int)f->domain->peers.rank);
    int used = snprintf(card, sizeof card, "%s\n%s\n%s\n", f->name, where, lend_is_allowed(f) ? CARD_READS : "");
    return exec_host->store_set(f->store, key, card, (size_t)used);
}

/* A rank's card: the name of its socket, where it is, and whether it reads others' memory. 0 if that makes no sense. */
static int read_card(struct duplex *p, const char *data, size_t bytes)
{
    char card[256], *rest = card;
    if (bytes >= sizeof card)
        return 0;
    memcpy(card, data, bytes);
    card[bytes] = '\0';
    const char *name = strsep(&rest, "\n");
    char *where = rest ? strsep(&rest, "\n") : NULL;
    if (!where || !*name || strlen(name) >= sizeof p->name)
        return 0;
    snprintf(p->name, sizeof p->name, "%s", name);
    where[utf8_clean(where, strlen(where))] = '\0';
    snprintf(p->port.where, sizeof p->port.where, "%.79s", where);
    return 1;
}

static comm_status ask_store(const struct fabric *f, int32_t peer, int64_t wait_ms, void **ret_data, size_t *ret_bytes)
{
    char key[32];
    snprintf(key, sizeof key, "shm/%d", (int)peer);
    return exec_host->store_get(f->store, NULL, key, wait_ms, ret_data, ret_bytes);
}

static comm_status fail_not_open(const struct fabric *f, const comm_group_info *group, int32_t rank,
                                 comm_status status, int64_t began_ns)
{
    const char *who = say_rank(rank, group->world_ranks[rank], "");
    if (status == COMM_ERR_PEER_LOST)
        return exec_fail(status, "group '%s': %s has ended, or has closed its world, and has not opened shm for it",
                         group->name, who);
    return exec_fail(status, "group '%s' timed out after %lld ms: %s has not opened shm for it%s", group->name,
                     (long long)(clock_now_ns() - began_ns) / 1000000, who,
                     group->id == f->domain->world
                         ? "; it has joined the world: is it stopped, or short of memory or descriptors?"
                         : "; make the group on every member, with the same backend string");
}

/* The card of a member, which has it in the store once it has opened this backend. */
static comm_status await_card(const struct fabric *f, const comm_group_info *group, int32_t rank, int64_t began_ns,
                              int64_t deadline_ns, void **ret_card, size_t *ret_bytes)
{
    enum { LOOK_MS = 1000, EARLY_MS = 10 };
    for (;;) {
        const int64_t left_ms = clock_left_ms(deadline_ns);
        const int64_t ask_ms = left_ms < 0 || left_ms > LOOK_MS ? LOOK_MS : left_ms;
        const int64_t asked_until_ns = clock_deadline_ns(ask_ms);
        comm_status status = ask_store(f, group->world_ranks[rank], ask_ms ? ask_ms : 1, ret_card, ret_bytes);
        if (status != COMM_ERR_TIMEOUT)
            return status;
        if (exec_host->rank_is_lost(group->token, group->world_ranks[rank]) ||
            exec_host->rank_check(group->token, group->world_ranks[rank]) != COMM_OK)
            return fail_not_open(f, group, rank, COMM_ERR_PEER_LOST, began_ns);
        /* The store has a limit of its own while the world opens, and answers at once when that is over. */
        if (clock_left_ms(deadline_ns) == 0 || clock_left_ms(asked_until_ns) > EARLY_MS)
            return fail_not_open(f, group, rank, COMM_ERR_TIMEOUT, began_ns);
    }
}

comm_status dial_all_read(struct fabric *f, const comm_group_info *group, int *ret_read)
{
    static const char line[] = "\n" CARD_READS "\n";
    const size_t length = sizeof line - 1;
    const int64_t began_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(group->timeout_ms);
    *ret_read = group->size > 2 && f->domain->peers.size <= RECALL_RANKS_MAX; /* two ranks do not ask */
    for (int32_t r = 0; *ret_read && r < group->size; r++) {
        void *card = NULL;
        size_t bytes = 0;
        comm_status status = await_card(f, group, r, began_ns, deadline_ns, &card, &bytes);
        if (status != COMM_OK)
            return status;
        *ret_read = bytes >= length && memcmp((const char *)card + bytes - length, line, length) == 0;
        exec_host->free_memory(card);
    }
    return COMM_OK;
}

/* As store_get waits. */
static void find_place(struct port *p, int64_t wait_ms)
{
    void *data = NULL;
    size_t bytes = 0;
    if (p->table->size > RECALL_RANKS_MAX ||
        ask_store(duplex_of(p)->fabric, p->peer, wait_ms, &data, &bytes) != COMM_OK)
        return;
    read_card(duplex_of(p), data, bytes);
    exec_host->free_memory(data);
}

void dial_find_place(struct port *p)
{
    find_place(p, 1);
}

/* In another container it has another host name and number than what can be seen from here, so its card goes first. */
void dial_note_place(struct duplex *p)
{
    if (!*p->port.where)
        find_place(&p->port, COMM_HANDED_OUT);
    pid_t pid = *p->port.where ? 0 : greeting_peer(p->watch.fd);
    if (pid > 0) /* 0: it cannot be seen from here */
        write_place(p->port.table, pid, p->port.where, sizeof p->port.where);
}

/* ---- An attempt ---- */

int dial_under_way(const struct duplex *p)
{
    return duplex_phase(p) == DUPLEX_CONNECTING || duplex_phase(p) == DUPLEX_GREETED;
}

void dial_end(struct duplex *p)
{
    if (duplex_phase(p) == DUPLEX_RESOLVING)
        atomic_fetch_sub(&p->fabric->resolving, 1);
    if (duplex_phase(p) == DUPLEX_NOT_OPENING)
        return;
    events_unwatch(p->fabric, &p->watch);
    descriptor_close(&p->watch.fd);
    p->phase = DUPLEX_NOT_OPENING;
}

__attribute__((format(printf, 3, 4))) static void give_up(struct duplex *p, comm_status status, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dial_end(p);
    port_lose(&p->port, status, "cannot be reached through shared memory from pid %d: %s", (int)getpid(), text);
}

/* Without descriptors or memory for it, or if the peer has broken it off, there is another attempt soon, until the time
 * is over. 0: there is none, for it would come to nothing again. */
static int dial_again(struct duplex *p, int error)
{
    enum { BREAKS_MAX = 20 }; /* by a peer that does not take this rank for one of its job */
    const int lacks = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS || error == EBUSY ||
                      error == ETOOMANYREFS /* descriptors that are in sockets */;
    if (error == ECONNRESET ? p->dial_breaks++ == BREAKS_MAX : error != EAGAIN && !lacks)
        return 0;
    dial_end(p);
    p->dial_error = error;
    duplex_opening(p, DUPLEX_CONNECTING);
    p->again_ns = clock_now_ns() + RETRY_MS * 1000000ll;
    domain_due(p->fabric->domain, p->again_ns);
    return 1;
}

static void await_peer(struct duplex *p)
{
    dial_end(p);
    duplex_opening(p, DUPLEX_AWAITED);
    p->give_up_ns = clock_now_ns() + AWAIT_MS * 1000000ll;
    domain_due(p->fabric->domain, p->give_up_ns);
}

/* The peer has welcomed us: make the memory, and hand it over. */
static void hand_over(struct duplex *p, int bell, int32_t their_node)
{
    struct fabric *f = p->fabric;
    struct greeting_ready ready = { 0 };
    size_t ring_bytes = f->ring_bytes;
    const int32_t node = segment_node(), they_are_higher = p->port.peer > f->domain->peers.rank;
    const int32_t nodes[2] = { they_are_higher ? their_node : node, they_are_higher ? node : their_node };
    int fd = segment_create(&ring_bytes, node == their_node ? NULL : nodes);
    int failed = fd < 0 ? fd : segment_map(&p->segment, fd, ring_bytes);
    p->bell = bell;
    if (failed) {
        descriptor_close(&fd);
        descriptor_close(&p->bell);
        if ((failed == -EMFILE || failed == -ENFILE) && dial_again(p, -failed))
            return;
        give_up(p, COMM_ERR_NO_MEMORY, "no shared memory for two rings of %zu KiB: %s; set COMM_SHM_RING_BYTES "
                "to less, make /dev/shm larger, or use cpu:tcp", ring_bytes >> 10, segment_error(-failed));
        return;
    }
    if (ring_bytes < f->ring_bytes) {
        exec_log(COMM_LOG_WARN, "rank %d: shared memory is short: rings of %zu KiB instead of %zu KiB",
                 (int)f->domain->peers.rank, ring_bytes >> 10, f->ring_bytes >> 10);
        f->ring_bytes = ring_bytes;
    }
    ready.ring_bytes = ring_bytes;
    greeting_random(ready.salts, sizeof ready.salts);
    const int fds[] = { fd, f->bell.fd };
    int sent = greeting_send(p->watch.fd, &ready, sizeof ready, fds, 2), error = errno;
    close(fd);
    if (!sent) {
        segment_unmap(&p->segment);
        descriptor_close(&p->bell);
        if (error == ETOOMANYREFS && dial_again(p, error))
            return;
        give_up(p, COMM_ERR_PEER_LOST, "it closed the connection");
        return;
    }
    events_unwatch(f, &p->watch);
    duplex_up(p, ready.salts);
}

static void on_answer(struct watch *w)
{
    struct duplex *p = (struct duplex *)((char *)w - offsetof(struct duplex, watch));
    struct greeting_answer answer;
    struct greeting_hello hello;
    uint8_t token[GREETING_TOKEN_BYTES];
    int bell = -1;
    ssize_t n = greeting_receive(w->fd, &answer, sizeof answer, &bell, 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 && dial_again(p, n < 0 ? errno : ECONNRESET))
        return;
    if (n <= 0) {
        give_up(p, COMM_ERR_PEER_LOST, "%s", n == 0 ? "it closed the connection: its process has ended, or does not "
                                                      "take us for a rank of its job" : strerror(errno));
        return;
    }
    greeting_hello(p->fabric, p->port.peer, p->name, &hello);
    greeting_token(p->fabric->secret, 'A', p->name, &hello, token);
    if (!greeting_same(token, answer.token) || answer.verdict != GREETING_WELCOME) {
        descriptor_close(&bell);
        if (!greeting_same(token, answer.token))
            give_up(p, COMM_ERR_PEER_LOST, "what answers there does not have this job's secret");
        else if (answer.verdict == GREETING_DUPLICATE)
            await_peer(p);
        else if (answer.verdict == GREETING_BUSY)
            dial_again(p, EBUSY);
        else
            give_up(p, COMM_ERR_PEER_LOST, "%s", answer.verdict == GREETING_OTHER_VERSION
                                                     ? "it is of another version of libcomm"
                                                     : "it belongs to another world, or has closed it");
        return;
    }
    hand_over(p, bell, answer.node);
}

static void greet(struct duplex *p)
{
    struct fabric *f = p->fabric;
    struct sockaddr_un address;
    struct greeting_hello hello;
    socklen_t bytes = greeting_address(p->name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, bytes) != 0) {
        int failed = errno;
        close(fd);
        errno = failed;
        fd = -1;
    }
    p->watch.fd = fd;
    if (fd < 0 && dial_again(p, errno))
        return;
    if (fd < 0) {
        /* A rank listens before it publishes where. */
        give_up(p, COMM_ERR_PEER_LOST, "%s%s", strerror(errno),
                errno == ECONNREFUSED ? ": its socket is closed: its process has ended, or has closed its world, or is "
                                        "in another network name space (then it is on another host: COMM_HOST_ID)"
                                      : "");
        return;
    }
    if (greeting_peer(fd) < 0) {
        give_up(p, COMM_ERR_PEER_LOST, "its process belongs to another user, or did so when it called comm_init; all "
                "ranks of a host must be one user's, and stay it until comm_group_connect or the first operation");
        return;
    }
    greeting_hello(f, p->port.peer, p->name, &hello);
    duplex_opening(p, DUPLEX_GREETED);
    p->watch.ready = on_answer;
    if (!greeting_send(fd, &hello, sizeof hello, NULL, 0) || !events_watch(f, &p->watch)) {
        int error = errno == EPIPE ? ECONNRESET : errno;
        if (!dial_again(p, error))
            give_up(p, COMM_ERR_PEER_LOST, "%s", strerror(error));
    }
}

/* ---- Looking up ---- */

/* The store has answered; `error` is NULL if it has the card. */
static void resolved(struct duplex *p, const void *card, size_t bytes, const char *error)
{
    if (duplex_phase(p) != DUPLEX_RESOLVING)
        return;
    if (error) { /* so it is not known whether it lives */
        give_up(p, COMM_ERR_BACKEND, "the store, which knows where it is, does not answer: %s", error);
    } else if (!read_card(p, card, bytes)) {
        give_up(p, COMM_ERR_PEER_LOST, "what it published in the store makes no sense");
    } else {
        dial_end(p);
        greet(p);
    }
}

/* The next peer, after `at`, whose socket is not known yet; -1: there is none. */
static int32_t next_unresolved(struct fabric *f, int32_t at, int64_t *ret_give_up_ns)
{
    f->driver->enter(f->domain);
    do
        at++;
    while (at < f->domain->peers.size && duplex_phase(&f->duplexes[at]) != DUPLEX_RESOLVING);
    if (at == f->domain->peers.size)
        at = -1;
    else
        *ret_give_up_ns = f->duplexes[at].give_up_ns;
    f->driver->leave(f->domain);
    return at;
}

void dial_resolve(struct fabric *f, const atomic_int *stop)
{
    int64_t give_up_ns;
    for (int32_t at = -1; !(stop && atomic_load(stop)) && (at = next_unresolved(f, at, &give_up_ns)) >= 0;) {
        void *card = NULL;
        size_t bytes = 0;
        comm_status status = ask_store(f, at, ASK_MS, &card, &bytes);
        if (status == COMM_ERR_TIMEOUT && clock_now_ns() < give_up_ns)
            continue;
        f->driver->enter(f->domain);
        resolved(&f->duplexes[at], card, bytes, status == COMM_OK ? NULL : exec_host->last_error());
        f->driver->leave(f->domain);
        exec_host->free_memory(card);
    }
}

void dial_open(struct port *port)
{
    struct duplex *p = duplex_of(port);
    p->give_up_ns = clock_now_ns() + p->fabric->connect_ms * 1000000;
    domain_due(p->fabric->domain, p->give_up_ns);
    p->dial_error = p->dial_breaks = 0;
    if (*p->name) {
        greet(p);
        return;
    }
    duplex_opening(p, DUPLEX_RESOLVING);
    atomic_fetch_add(&p->fabric->resolving, 1);
    p->fabric->driver->wake_helper(p->fabric->domain);
}

void dial_describe_trouble(const struct port *port, char *text, size_t capacity)
{
    const struct duplex *p = (const struct duplex *)port;
    int phase = duplex_phase(p), error = p->dial_error;
    const char *what = phase == DUPLEX_GREETED      ? "it takes the connection, but does not answer: it is stopped, "
                                                      "or has no descriptor left for it (ulimit -n)"
                       : phase != DUPLEX_CONNECTING ? ""
                       : error == EAGAIN            ? "its queue of connections is full: it is stopped"
                       : error == ECONNRESET        ? "it breaks off each connection"
                       : error == EBUSY             ? "it has no descriptor left for the connection: raise the limit "
                                                      "there (ulimit -n)"
                       : error == ENOMEM            ? "this rank has no memory for the connection"
                                           : "this rank has no descriptor left for the connection: raise the limit "
                                             "(ulimit -n)";
    if (phase == DUPLEX_RESOLVING)
        text_unresolved(p->fabric->domain, text, capacity);
    else
        snprintf(text, capacity, "%s", what);
}

/* ---- Time ---- */

void dial_timer(struct fabric *f, int64_t now_ns)
{
    for (int32_t i = 0; i < f->domain->peers.size; i++) {
        struct duplex *p = &f->duplexes[i];
        if (duplex_phase(p) == DUPLEX_NOT_OPENING)
            continue;
        if (now_ns >= p->give_up_ns && duplex_phase(p) == DUPLEX_AWAITED) {
            p->port.state = PORT_IDLE;
            port_want(&p->port);
        } else if (now_ns >= p->give_up_ns) {
            char why[200];
            dial_describe_trouble(&p->port, why, sizeof why);
            give_up(p, COMM_ERR_PEER_LOST, "%s", why);
        } else if (duplex_phase(p) == DUPLEX_CONNECTING && now_ns >= p->again_ns) {
            greet(p);
        }
    }
}

int64_t dial_due_ns(const struct fabric *f)
{
    int64_t due = INT64_MAX;
    for (int32_t i = 0; i < f->domain->peers.size; i++) {
        const struct duplex *p = &f->duplexes[i];
        if (duplex_phase(p) == DUPLEX_NOT_OPENING)
            continue;
        if (p->give_up_ns < due)
            due = p->give_up_ns;
        if (duplex_phase(p) == DUPLEX_CONNECTING && p->again_ns < due)
            due = p->again_ns;
    }
    return due;
}

/* How the store client finds its server: resolve, connect, greet, and try again until the deadline.
 *
 * Which PyTorch the server is of shows in what it does with our greeting. Servers that do not understand one close the
 * connection, so the next greeting goes out on a new one:
 *
 *   0 VALIDATE PING CHECK     2.5 and later, and ours
 *   1 VALIDATE GETNUMKEYS*4 CHECK     2.2 to 2.4: no PING yet
 *   2 CHECK CANCEL_WAIT in 2.1's numbers
 *   3 CHECK in 1.13's numbers     1.13 and 2.0
 *
 * To the servers of the last two the first two greetings read as a SET with a key of more than 2^56 bytes. That is more
 * than any host can allocate, so it fails there and the connection is closed; a smaller number could leave it waiting
 * for the bytes. This is why the nonce has its high bit where it has, and why there are four GETNUMKEYS. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"
#include "base/log.h"
#include "base/monotonic_cond.h"
#include "base/own_thread.h"
#include "base/param.h"
#include "tcp_conn.h"
#include "tcp_listen.h"
#include "tcp_state.h"

enum hello { HELLO_MODERN, HELLO_NO_PING, HELLO_2_1, HELLO_OLD, HELLO_COUNT };
enum {
    HELLO_MS = 5000,      /* a server that says nothing for so long did not understand the greeting */
    STAGGER_MS = 200,     /* before the next address is tried beside one that does not answer */
    ADDRESSES_MAX = 16,
    LOOK_MS = 100,        /* for as long a closed handle may go unnoticed */
    PAUSE_FIRST_MS = 10,  /* between rounds; a client that is a moment early loses no more than this */
    PAUSE_LAST_MS = 1000,
};

/* ---- Resolving ---- */

/* getaddrinfo knows no deadline, so names are resolved on a thread that may be left behind: the last of the two threads
 * that uses this frees it. */
struct resolution {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int holders, done, error;
    struct addrinfo *list;
    char service[16];
    char host[];
};

static void resolution_release(struct resolution *r)
{
    pthread_mutex_lock(&r->lock);
    int left = --r->holders;
    assert(left >= 0);
    pthread_mutex_unlock(&r->lock);
    if (left > 0)
        return;
    if (r->list)
        freeaddrinfo(r->list);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    free(r);
}

static int lookup(const char *host, const char *service, int flags, struct addrinfo **ret_list)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags };
    /* Without a name, it gives the loopback's addresses. */
    return getaddrinfo(tcp_is_localhost(host) ? NULL : host, service, &hints, ret_list);
}

static void *resolve_on_thread(void *argument)
{
    struct resolution *r = argument;
    struct addrinfo *list = NULL;
    int error = lookup(r->host, r->service, 0, &list);
    pthread_mutex_lock(&r->lock);
    r->done = 1;
    r->error = error;
    r->list = list;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    resolution_release(r);
    return NULL;
}

static struct resolution *resolution_create(const char *host, const char *service)
{
    size_t bytes = strlen(host) + 1;
    struct resolution *r = calloc(1, sizeof *r + bytes);
    if (!r)
        return NULL;
    memcpy(r->host, host, bytes);
    snprintf(r->service, sizeof r->service, "%s", service);
    r->holders = 2;
    pthread_mutex_init(&r->lock, NULL);
    monotonic_cond_init(&r->changed);
    return r;
}

/* When to look up from a sleep: the handle may be being closed. */
static int64_t next_look_ns(int64_t until_ns)
{
    int64_t soon = clock_deadline_ns(LOOK_MS);
    return soon < until_ns ? soon : until_ns;
}

static int resolve_name(const char *host, const char *service, const struct store_wait *wait,
                        struct addrinfo **ret_list)
{
    struct resolution *r = resolution_create(host, service);
    if (!r)
        return EAI_MEMORY;
    pthread_t thread;
    if (own_thread_create(&thread, resolve_on_thread, r) != 0) {
        r->holders = 1;
        resolution_release(r);
        return EAI_MEMORY; /* not on this thread: it has no way back */
    }
    pthread_detach(thread);
    pthread_mutex_lock(&r->lock);
    while (!r->done && !store_wait_over(wait) && !store_wait_closed(wait)) {
        int64_t look_ns = next_look_ns(wait->deadline_ns);
        struct timespec until = { .tv_sec = look_ns / 1000000000, .tv_nsec = look_ns % 1000000000 };
        pthread_cond_timedwait(&r->changed, &r->lock, &until);
    }
    int error = r->done ? r->error : EAI_AGAIN;
    if (r->done) {
        *ret_list = r->list;
        r->list = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    resolution_release(r);
    return error;
}

static int resolve(const struct tcp_peer *peer, const struct store_wait *wait, struct addrinfo **ret_list)
{
    char service[16];
    snprintf(service, sizeof service, "%d", peer->port);
    if (lookup(peer->host, service, AI_NUMERICHOST, ret_list) == 0)
        return 0;
    return resolve_name(peer->host, service, wait, ret_list);
}

/* ---- Connecting ---- */

/* Why no address could be connected to, in the last round. */
struct refusal {
    char text[256];
    int undecided; /* another answer than "connection refused" */
    int no_loopback, no_other; /* an address of this host cannot be reached as its loopback is down; nor can others */
};

struct attempt {
    int fd;
    const struct addrinfo *address;
};

/* As in a new network name space, until somebody sets it up. */
static int loopback_is_down(const struct addrinfo *a, int error)
{
    return error == ENETUNREACH && a->ai_family == AF_INET &&
           ntohl(((const struct sockaddr_in *)a->ai_addr)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static void note_refusal(struct refusal *refusal, const struct addrinfo *a, int error)
{
    char host[64] = "?", port[16] = "?";
    int is_down = loopback_is_down(a, error);
    getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(refusal->text, sizeof refusal->text, "%s port %s: %s%s%s", host, port,
             error ? strerror(error) : "no answer", descriptors_cure(error),
             is_down ? ": the loopback interface is down: `ip link set lo up`" : "");
    refusal->undecided |= error != ECONNREFUSED;
    refusal->no_loopback |= is_down;
    refusal->no_other &= error == ENETUNREACH || error == EADDRNOTAVAIL;
}

/* Begin to connect: 1 connected, 0 under way, -1 refused (noted). */
static int attempt_begin(struct attempt *attempt, const struct addrinfo *a, struct refusal *refusal)
{
    attempt->address = a;
    attempt->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt->fd >= 0 && connect(attempt->fd, a->ai_addr, a->ai_addrlen) == 0)
        return 1;
    if (attempt->fd >= 0 && errno == EINPROGRESS)
        return 0;
    note_refusal(refusal, a, errno);
    if (attempt->fd >= 0)
        close(attempt->fd);
    attempt->fd = -1;
    return -1;
}

/* Look at the attempts under way until one succeeds (its index), all have failed or the time is up (-1). */
static int attempts_poll(struct attempt *attempts, int count, int64_t until_ns, const struct store_wait *wait,
                         struct refusal *refusal)
{
    for (;;) {
        struct pollfd fds[ADDRESSES_MAX];
        int alive = 0;
        for (int i = 0; i < count; i++) {
            fds[i] = (struct pollfd){ .fd = attempts[i].fd, .events = POLLOUT };
            alive += attempts[i].fd >= 0;
        }
        int64_t left = clock_left_ms(until_ns);
        if (alive == 0 || store_wait_closed(wait))
            return -1;
        int n = poll(fds, (nfds_t)count, (int)clock_left_ms(next_look_ns(until_ns)));
        if (n == 0 && left == 0)
            return -1;
        for (int i = 0; n > 0 && i < count; i++) {
            if (fds[i].fd < 0 || !fds[i].revents)
                continue;
            int error = 0;
            socklen_t bytes = sizeof error;
            getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
            if (error == 0)
                return i;
            note_refusal(refusal, attempts[i].address, error);
            close(attempts[i].fd);
            attempts[i].fd = -1;
        }
    }
}

/* One round over all addresses of all families; each gets a head start on the next. A socket, or -1 and the
 * refusal. */
static int connect_any(const struct addrinfo *list, const struct store_wait *wait, struct refusal *refusal)
{
    struct attempt attempts[ADDRESSES_MAX];
    int count = 0, winner = -1;
    for (const struct addrinfo *a = list; a && winner < 0 && count < ADDRESSES_MAX; a = a->ai_next) {
        int result = attempt_begin(&attempts[count], a, refusal);
        winner = result == 1 ? count : -1;
        count += result >= 0;
        int64_t stagger_ns = clock_now_ns() + STAGGER_MS * (int64_t)1000000;
        if (result == 0)
            winner = attempts_poll(attempts, count,
                                   a->ai_next && stagger_ns < wait->deadline_ns ? stagger_ns : wait->deadline_ns, wait,
                                   refusal);
    }
    if (winner < 0 && count > 0)
        winner = attempts_poll(attempts, count, wait->deadline_ns, wait, refusal);
    int fd = winner < 0 ? -1 : attempts[winner].fd;
    for (int i = 0; i < count; i++) {
        if (attempts[i].fd < 0 || i == winner)
            continue;
        note_refusal(refusal, attempts[i].address, 0);
        close(attempts[i].fd);
    }
    return fd;
}

/* ---- Greeting ---- */

static void put_check_ordered(struct tcp_conn *c)
{
    wire_put_query(&c->out, c->dialect, WIRE_CHECK);
    wire_put_u64(&c->out, 1);
    wire_put_string(&c->out, STATE_ORDERED_KEY, sizeof STATE_ORDERED_KEY - 1);
}

static comm_status greet(struct tcp_conn *c, enum hello hello, const struct store_wait *wait)
{
    int64_t patience_ns = clock_now_ns() + HELLO_MS * (int64_t)1000000;
    struct store_wait limit = *wait;
    if (patience_ns < limit.deadline_ns)
        limit.deadline_ns = patience_ns;
    uint32_t nonce = ((uint32_t)getpid() & 0x00007fff) | 0x00ff0000;
    c->dialect = hello == HELLO_OLD ? WIRE_DIALECT_OLD : hello == HELLO_2_1 ? WIRE_DIALECT_2_1 : WIRE_DIALECT_MODERN;
    if (c->dialect == WIRE_DIALECT_MODERN) {
        wire_put_u8(&c->out, WIRE_VALIDATE);
        wire_put_u32(&c->out, WIRE_MAGIC);
    }
    if (hello == HELLO_MODERN) {
        wire_put_u8(&c->out, WIRE_PING);
        wire_put_u32(&c->out, nonce);
    }
    for (int i = 0; hello == HELLO_NO_PING && i < 4; i++)
        wire_put_u8(&c->out, WIRE_NUM_KEYS);
    put_check_ordered(c);
    if (hello == HELLO_2_1)
        wire_put_query(&c->out, c->dialect, WIRE_CANCEL_WAIT);

    uint8_t reply[32];
    size_t bytes = hello == HELLO_MODERN ? 4 : hello == HELLO_NO_PING ? 32 : 0;
    uint8_t ready = WIRE_NOT_READY, canceled = WIRE_WAIT_CANCELED;
    comm_status status = tcp_conn_send(c, &limit);
    if (status == COMM_OK)
        status = tcp_conn_read(c, &limit, reply, bytes);
    if (status == COMM_OK)
        status = tcp_conn_read_u8(c, &limit, &ready);
    if (status == COMM_OK && hello == HELLO_2_1)
        status = tcp_conn_read_u8(c, &limit, &canceled);
    if (status == COMM_ERR_TIMEOUT)
        return comm__fail(COMM_ERR_TIMEOUT, "the greeting timed out");
    if (status != COMM_OK)
        return status;
    if (ready > WIRE_NOT_READY || canceled != WIRE_WAIT_CANCELED ||
        (hello == HELLO_MODERN && wire_u32(reply) != nonce))
        return comm__fail(COMM_ERR_PROTOCOL, "the answer to the greeting is not that of a store");
    c->ordered = ready == WIRE_READY;
    return COMM_OK;
}

/* Connect and greet once. Refusals are noted; *ret_understood is 0 if the connection was made but the greeting
 * failed. */
static struct tcp_conn *dial_once(const struct tcp_peer *peer, enum hello hello, const struct store_wait *wait,
                                  struct refusal *refusal, int *ret_understood)
{
    struct addrinfo *list = NULL;
    *ret_understood = 1;
    int error = resolve(peer, wait, &list);
    if (error) {
        refusal->undecided = 1;
        snprintf(refusal->text, sizeof refusal->text, "%s: %s", peer->host, gai_strerror(error));
        return NULL;
    }
    int fd = connect_any(list, wait, refusal);
    freeaddrinfo(list);
    if (fd < 0)
        return NULL;
    tcp_tune(fd);
    struct tcp_conn *c = NULL;
    comm_status status = tcp_conn_create(fd, &c);
    if (status == COMM_OK)
        status = greet(c, hello, wait);
    if (status == COMM_OK)
        return c;
    refusal->undecided = 1;
    snprintf(refusal->text, sizeof refusal->text, "connected, but %s", comm_last_error());
    tcp_conn_destroy(c);
    *ret_understood = 0;
    return NULL;
}

/* ---- Until the deadline ---- */

/* All ranks of a job start together; the jitter keeps them from coming back together. */
static void pause_before_next(int64_t *pause_ms, const struct store_wait *wait)
{
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
        random = (uint32_t)clock_now_ns();
    int64_t ns = *pause_ms * 1000000 / 2 + (int64_t)(random % 1000) * *pause_ms * 1000;
    int64_t until_ns = clock_now_ns() + ns, left_ns;
    if (until_ns > wait->deadline_ns)
        until_ns = wait->deadline_ns;
    while ((left_ns = next_look_ns(until_ns) - clock_now_ns()) > 0 && !store_wait_closed(wait)) {
        struct timespec t = { .tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000 };
        nanosleep(&t, NULL);
    }
    *pause_ms = *pause_ms * 3 / 2 < PAUSE_LAST_MS ? *pause_ms * 3 / 2 : PAUSE_LAST_MS;
}

/* A job that waits for a server should not look like one that hangs. Less and less often: there may be many clients. */
static void say_still_waiting(const struct tcp_peer *peer, int64_t began_ns, int64_t *next_ms, const char *refusal)
{
    int64_t waited_ms = (clock_now_ns() - began_ns) / 1000000;
    if (waited_ms < *next_ms)
        return;
    *next_ms = waited_ms * 2;
    comm__log(COMM_LOG_WARN, "no server at %s port %d for %lld s yet (%s); still trying", peer->host, peer->port,
              (long long)(waited_ms / 1000), refusal);
}

comm_status tcp_dial(struct tcp_peer *peer, const struct store_wait *wait, struct tcp_conn **ret_conn)
{
    struct refusal refusal = { .text = "no answer" };
    int64_t pause_ms = PAUSE_FIRST_MS, next_news_ms = comm__param_int("progress_log_ms");
    int attempts = 0;
    int hello = peer->hello ? peer->hello - 1 : HELLO_MODERN;
    for (;;) {
        int understood;
        attempts++;
        refusal.undecided = refusal.no_loopback = 0;
        refusal.no_other = 1;
        struct tcp_conn *c = dial_once(peer, (enum hello)hello, wait, &refusal, &understood);
        /* ours, which had to reset an earlier connection: greet it properly */
        if (c && c->ordered && c->dialect != WIRE_DIALECT_MODERN) {
            tcp_conn_destroy(c);
            hello = HELLO_MODERN;
            continue;
        }
        if (c) {
            peer->hello = hello + 1;
            *ret_conn = c;
            return COMM_OK;
        }
        if (peer->hello && !refusal.undecided)
            return comm__fail(COMM_ERR_PEER_LOST, "connect again to the store at %s port %d: %s; the server has ended",
                              peer->host, peer->port, refusal.text);
        if (refusal.no_loopback && refusal.no_other)
            return comm__fail(COMM_ERR_SYSTEM, "connecting to the store at %s port %d: %s", peer->host, peer->port,
                              refusal.text);
        if (store_wait_closed(wait))
            return COMM_ERR_ABORTED;
        if (store_wait_over(wait))
            break;
        say_still_waiting(peer, wait->began_ns, &next_news_ms, refusal.text);
        int last = hello == HELLO_OLD || peer->hello || understood;
        if (!understood && !peer->hello)
            hello = (hello + 1) % HELLO_COUNT;
        if (last)
            pause_before_next(&pause_ms, wait);
    }
    return comm__fail(COMM_ERR_TIMEOUT,
                      "connecting to the store at %s port %d timed out after %lld ms: no server answered (%d attempts; "
                      "the last: %s). Does the serving rank run there?",
                      peer->host, peer->port, store_wait_ms(wait), attempts, refusal.text);
}

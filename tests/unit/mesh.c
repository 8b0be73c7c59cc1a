/* How ranks find each other and shake hands: meshes of one process over loopback, and a mesh whose peer is written by
 * hand. The test holds the lock of each mesh while that is open, so it alone drives them, and nothing happens behind
 * its back but the resolver's asking the store, which is an array here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend_tcp/connect.h"
#include "backend_tcp/endpoint.h"
#include "backend_tcp/link.h"
#include "backend_tcp/listen.h"
#include "backend_tcp/loop.h"
#include "backend_tcp/mesh.h"
#include "backend_tcp/progress.h"
#include "base/clock.h"
#include "base/netaddr.h"
#include "core/registry.h"
#include "ending.h"

enum { RANKS = 4, WORLD = 77, LIMIT_S = 20, AFTER_HANDSHAKES_MS = TCP_HANDSHAKE_MS + 1000 };
static const char SECRET[] = "the job's secret";

const comm_backend *comm__tcp_entry(const comm_host *host);

/* ---- The store and the parameters ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t set;
    char endpoint[RANKS][512]; /* of tcp/RANK */
} store = { .lock = PTHREAD_MUTEX_INITIALIZER, .set = PTHREAD_COND_INITIALIZER };

static comm_status store_set(void *context, const char *key, const void *data, size_t bytes)
{
    int rank = atoi(key + 4);
    (void)context;
    pthread_mutex_lock(&store.lock);
    snprintf(store.endpoint[rank], sizeof store.endpoint[rank], "%.*s", (int)bytes, (const char *)data);
    pthread_cond_broadcast(&store.set);
    pthread_mutex_unlock(&store.lock);
    return COMM_OK;
}

static comm_status store_get(void *context, void *group, const char *key, int64_t timeout_ms, void **ret_data,
                             size_t *ret_bytes)
{
    struct timespec until;
    int rank = atoi(key + 4), late = 0;
    (void)context;
    (void)group;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&store.lock);
    while (!*store.endpoint[rank] && !late)
        late = pthread_cond_timedwait(&store.set, &store.lock, &until);
    *ret_data = *store.endpoint[rank] ? strdup(store.endpoint[rank]) : NULL;
    *ret_bytes = strlen(store.endpoint[rank]);
    pthread_mutex_unlock(&store.lock);
    return *ret_data ? COMM_OK : COMM_ERR_TIMEOUT;
}

static int64_t param_int(const void *options, const char *backend, const char *name)
{
    (void)options;
    (void)backend;
    return strcmp(name, "linger_ms") == 0 ? 50 : strstr(name, "_ms") ? 30000 : 0;
}

static const char *param_text(const void *options, const char *backend, const char *name)
{
    (void)options;
    (void)backend;
    (void)name;
    return "";
}

/* ---- Meshes ---- */

static struct mesh *meshes[RANKS];

static struct mesh *open_mesh(int32_t rank, const char *secret)
{
    static const int32_t hosts[RANKS];
    comm_world_info info = { .struct_bytes = sizeof info, .rank = rank, .size = RANKS, .id = WORLD, .name = "world",
                             .secret = secret, .hosts = hosts, .store = &store, .timeout_ms = 1000 };
    assert_int_equal(mesh_open(&info, 0, &meshes[rank]), COMM_OK);
    progress_enter(meshes[rank]);
    return meshes[rank];
}

static void turn(struct mesh *m)
{
    loop_turn(m, UV_RUN_NOWAIT);
    turn_end(&m->domain);
}

static void turn_all(void)
{
    for (int i = 0; i < RANKS; i++)
        if (meshes[i])
            turn(meshes[i]);
}

/* Drive all meshes until it holds. */
#define UNTIL(condition)                                                     \
    do {                                                                     \
        int64_t end_ = clock_now_ns() + LIMIT_S * 1000000000ll;              \
        while (!(condition) && clock_now_ns() < end_)                        \
            turn_all();                                                      \
        assert_true(condition);                                              \
    } while (0)

static int set_up(void **state)
{
    static comm_host host;
    (void)state;
    host = comm__host;
    host.store_set = store_set;
    host.store_get = store_get;
    host.param_int = param_int;
    host.param_text = param_text;
    comm__tcp_entry(&host);
    memset(store.endpoint, 0, sizeof store.endpoint);
    return 0;
}

static void close_mesh(struct mesh *m)
{
    meshes[m->domain.peers.rank] = NULL;
    progress_leave(m);
    mesh_close(m, 0);
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < RANKS; i++)
        if (meshes[i])
            close_mesh(meshes[i]);
    return 0;
}

/* ---- The peer that is written by hand ---- */

static int dial(const struct mesh *m)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)m->tcp_port) };
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static void say(int fd, const void *data, size_t bytes)
{
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

/* All of it has come, or the end (0), while the meshes are driven. */
static int hear(int fd, void *data, size_t bytes)
{
    size_t got = 0;
    ssize_t n = 1;
    int64_t end = clock_now_ns() + LIMIT_S * 1000000000ll;
    while (got < bytes && n != 0) {
        turn_all();
        n = recv(fd, (char *)data + got, bytes - got, MSG_DONTWAIT);
        got += n > 0 ? (size_t)n : 0;
        if (n < 0 && errno == ECONNRESET)
            n = 0;
        assert_true(clock_now_ns() < end);
    }
    return got == bytes;
}

static int is_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno == ECONNRESET);
}

struct shake {
    int fd;
    uint8_t hello[WIRE_HELLO_BYTES];
    struct wire_challenge challenge;
};

static struct wire_hello hello_of(int32_t from, int32_t to)
{
    struct wire_hello hello = { WIRE_VERSION, WORLD, from, to, { 0 } };
    wire_random(hello.nonce, sizeof hello.nonce);
    return hello;
}

/* Say hello and hear the challenge. */
static struct shake begin_shake(const struct mesh *m, struct wire_hello hello)
{
    struct shake s = { .fd = dial(m) };
    uint8_t in[WIRE_CHALLENGE_BYTES], proof[WIRE_PROOF_BYTES];
    wire_put_hello(&hello, s.hello);
    say(s.fd, s.hello, sizeof s.hello);
    assert_true(hear(s.fd, in, sizeof in));
    assert_int_equal(wire_get_challenge(in, &s.challenge), 0);
    wire_prove(m->secret, 'A', s.hello, s.challenge.nonce, proof);
    assert_memory_equal(proof, s.challenge.proof, sizeof proof);
    return s;
}

static void prove(const struct shake *s, const char *secret)
{
    uint8_t proof[WIRE_PROOF_BYTES];
    wire_prove(secret, 'C', s->hello, s->challenge.nonce, proof);
    say(s->fd, proof, sizeof proof);
}

/* The mesh takes a peer that knows the secret; gives the connection. */
static int admitted(const struct mesh *m, int32_t from)
{
    struct frame h;
    uint8_t header[WIRE_HEADER_BYTES];
    struct shake s = begin_shake(m, hello_of(from, m->domain.peers.rank));
    assert_int_equal(s.challenge.verdict, WIRE_WELCOME);
    assert_int_not_equal(m->links[from].port.state, PORT_UP);
    prove(&s, SECRET);
    assert_true(hear(s.fd, header, sizeof header));
    assert_null(wire_get_header(header, &h));
    assert_int_equal(h.type, FRAME_CREDIT);
    assert_int_equal(m->links[from].port.state, PORT_UP);
    assert_true(m->links[from].port.heard);
    return s.fd;
}

/* ---- Coming in ---- */

static void who_has_the_secret_is_admitted(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    (void)state;
    int low = admitted(m, 0), high = admitted(m, 3);
    assert_true(m->refused == 0 && m->pending_count == 0);
    close(low);
    close(high);
}

static void who_lacks_the_secret_is_refused(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    (void)state;
    struct shake s = begin_shake(m, hello_of(0, 1));
    prove(&s, "another secret");
    UNTIL(is_closed(s.fd));
    assert_int_equal(m->refused, 1);
    assert_int_equal(m->links[0].port.state, PORT_IDLE); /* and its place is still free */
    close(s.fd);
    close(admitted(m, 0));
}

static void who_wants_another_is_refused(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    struct wire_hello wrong[9];
    struct port *linked = m->domain.peers.at[2], not_a_link = *linked;
    (void)state;
    for (size_t i = 0; i < 9; i++)
        wrong[i] = hello_of(0, 1);
    wrong[0].world ^= 1;
    wrong[1].to = 2;
    wrong[2].from = RANKS;
    wrong[3].from = -1;
    wrong[4].from = INT32_MIN;
    wrong[5].from = 1; /* the mesh itself */
    wrong[6].from = 3; /* connected already */
    wrong[7].version = WIRE_VERSION + 1;
    wrong[8].from = 2; /* the port to it is another carrier's */
    m->domain.peers.at[2] = &not_a_link;
    int third = admitted(m, 3);
    for (size_t i = 0; i < 9; i++) {
        struct shake s = begin_shake(m, wrong[i]);
        assert_int_equal(s.challenge.verdict, i == 7 ? WIRE_OTHER_VERSION : WIRE_OTHER_WORLD);
        UNTIL(is_closed(s.fd));
        assert_int_equal(m->refused, i + 1);
        close(s.fd);
    }
    assert_int_equal(m->links[3].port.state, PORT_UP);
    assert_true(m->links[0].port.state == PORT_IDLE && m->pending_count == 0);
    m->domain.peers.at[2] = linked;
    close(third);
}

static void garbage_is_refused(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    char noise[WIRE_HELLO_BYTES] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    (void)state;
    int fd = dial(m);
    say(fd, noise, sizeof noise);
    UNTIL(is_closed(fd));
    assert_int_equal(m->refused, 1);
    close(fd);
    fd = dial(m);
    say(fd, noise, 5);
    shutdown(fd, SHUT_WR); /* too short to be a hello, and the end */
    UNTIL(is_closed(fd));
    assert_int_equal(m->refused, 2);
    close(fd);
    close(admitted(m, 0));
}

static void silence_holds_nobody_up(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    struct wire_hello hello = hello_of(2, 1);
    uint8_t bytes[WIRE_HELLO_BYTES];
    (void)state;
    int nothing = dial(m), half = dial(m);
    wire_put_hello(&hello, bytes);
    say(half, bytes, sizeof bytes / 2);
    struct shake unproven = begin_shake(m, hello_of(3, 1));
    int peer = admitted(m, 0);
    assert_int_equal(m->pending_count, 3);
    assert_true(!is_closed(nothing) && !is_closed(half) && !is_closed(unproven.fd));
    listen_timer(m, clock_now_ns() + AFTER_HANDSHAKES_MS * 1000000ll);
    assert_true(m->pending_count == 0 && m->refused == 3);
    UNTIL(is_closed(nothing) && is_closed(half) && is_closed(unproven.fd));
    assert_int_equal(m->links[0].port.state, PORT_UP);
    close(nothing);
    close(half);
    close(unproven.fd);
    close(peer);
}

static void strangers_are_bounded(void **state)
{
    enum { CROWD = TCP_PENDING_CONNS_MAX + 30 };
    struct mesh *m = open_mesh(1, SECRET);
    int crowd[CROWD];
    (void)state;
    struct shake unproven = begin_shake(m, hello_of(3, 1)); /* the oldest of all, but it has sent its hello */
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = dial(m);
        UNTIL((int)m->refused + m->pending_count == i + 2);
    }
    assert_int_equal(m->pending_count, TCP_PENDING_CONNS_MAX);
    for (int i = 0; i < CROWD; i++)
        assert_int_equal(is_closed(crowd[i]), i < CROWD + 1 - TCP_PENDING_CONNS_MAX); /* the oldest made room */
    close(admitted(m, 0));
    prove(&unproven, SECRET);
    UNTIL(m->links[3].port.state == PORT_UP);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    close(unproven.fd);
}

/* ---- Going out ---- */

/* A listener by hand, which the store says is that rank. */
static int listen_as(const struct mesh *m, int32_t rank)
{
    int port = 0, fd = netaddr_listen(8, &port);
    assert_true(fd >= 0 && ioctl(fd, FIONBIO, &(int){ 1 }) == 0);
    snprintf(store.endpoint[rank], sizeof store.endpoint[rank], "by-hand\n%s\n%d\n", m->host_identity, port);
    return fd;
}

static int accept_from(int listener)
{
    int fd = -1;
    UNTIL(fd >= 0 || (fd = accept(listener, NULL, NULL)) >= 0);
    return fd;
}

/* Answer the mesh's hello. */
static void answer(int fd, const char *secret, uint32_t verdict, uint8_t hello[WIRE_HELLO_BYTES],
                   struct wire_challenge *challenge)
{
    uint8_t out[WIRE_CHALLENGE_BYTES];
    struct wire_hello got;
    assert_true(hear(fd, hello, WIRE_HELLO_BYTES));
    assert_int_equal(wire_get_hello(hello, &got), 0);
    assert_true(got.version == WIRE_VERSION && got.world == WORLD && got.from == 1 && got.to == 0);
    *challenge = (struct wire_challenge){ .verdict = verdict, .version = WIRE_VERSION };
    wire_random(challenge->nonce, sizeof challenge->nonce);
    wire_prove(secret, 'A', hello, challenge->nonce, challenge->proof);
    wire_put_challenge(challenge, out);
    say(fd, out, sizeof out);
}

static void a_rank_that_is_wanted_is_connected(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    uint8_t hello[WIRE_HELLO_BYTES], proof[WIRE_PROOF_BYTES], expected[WIRE_PROOF_BYTES];
    struct wire_challenge challenge;
    int listener = listen_as(m, 0);
    (void)state;
    port_want(&m->links[0].port);
    int fd = accept_from(listener);
    answer(fd, SECRET, WIRE_WELCOME, hello, &challenge);
    assert_true(hear(fd, proof, sizeof proof));
    wire_prove(SECRET, 'C', hello, challenge.nonce, expected);
    assert_memory_equal(proof, expected, sizeof proof);
    assert_int_equal(m->links[0].port.state, PORT_UP);
    assert_non_null(strstr(m->links[0].port.where, "by-hand 127.0.0.1:"));
    close(fd);
    close(listener);
}

static void an_acceptor_that_is_not_ours_gets_no_proof(void **state)
{
    static const struct {
        const char *secret;
        uint32_t verdict;
        const char *trouble;
    } cases[] = { { "another secret", WIRE_WELCOME, "does not have this job's secret" },
                  { SECRET, WIRE_OTHER_WORLD, "another world" },
                  { SECRET, WIRE_OTHER_VERSION, "another version" },
                  { SECRET, WIRE_OTHER_VERSION + 1, "is not libcomm" } };
    struct mesh *m = open_mesh(1, SECRET);
    struct link *l = &m->links[0];
    uint8_t hello[WIRE_HELLO_BYTES];
    struct wire_challenge challenge;
    char byte, text[300];
    int listener = listen_as(m, 0);
    (void)state;
    port_want(&l->port);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) { /* it tries again and again */
        int fd = accept_from(listener);
        answer(fd, cases[i].secret, cases[i].verdict, hello, &challenge);
        assert_false(hear(fd, &byte, 1));
        connect_describe_trouble(&l->port, text, sizeof text);
        assert_non_null(strstr(text, cases[i].trouble));
        assert_int_equal(l->port.state, PORT_OPENING);
        close(fd);
    }
    close(listener);
}

/* The mesh is connecting to the rank, and has said hello; gives the connection. */
static int being_connected(const struct mesh *m, int32_t rank, int listener)
{
    uint8_t hello[WIRE_HELLO_BYTES];
    port_want(&m->links[rank].port);
    int fd = accept_from(listener);
    assert_true(hear(fd, hello, sizeof hello));
    assert_int_equal(link_phase(&m->links[rank]), LINK_CHALLENGED);
    return fd;
}

/* Both connect at the same time. */
static void the_lower_rank_goes_first_for_a_while(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    struct link *lower = &m->links[0], *higher = &m->links[3];
    int listeners[] = { listen_as(m, 0), listen_as(m, 3) };
    (void)state;
    int to_lower = being_connected(m, 0, listeners[0]), to_higher = being_connected(m, 3, listeners[1]);
    higher->begun_ns = clock_now_ns() + LIMIT_S * 1000000000ll; /* begun just now, however slow this test is */
    struct shake s = begin_shake(m, hello_of(3, 1));
    assert_int_equal(s.challenge.verdict, WIRE_DUPLICATE);
    UNTIL(is_closed(s.fd));
    close(s.fd);
    assert_true(m->pending_count == 0 && m->refused == 0);
    assert_true(link_phase(higher) == LINK_CHALLENGED && !is_closed(to_higher));
    /* The lower one is welcome, but has not proved that it is. */
    s = begin_shake(m, hello_of(0, 1));
    assert_int_equal(s.challenge.verdict, WIRE_WELCOME);
    assert_true(link_phase(lower) == LINK_CHALLENGED && !is_closed(to_lower));
    prove(&s, SECRET);
    UNTIL(lower->port.state == PORT_UP && is_closed(to_lower));
    close(s.fd);
    /* Our attempt may be one that cannot come about. */
    higher->begun_ns = clock_now_ns() - 2000 * 1000000ll;
    s = begin_shake(m, hello_of(3, 1));
    assert_int_equal(s.challenge.verdict, WIRE_WELCOME);
    assert_int_equal(link_phase(higher), LINK_AWAITED);
    UNTIL(is_closed(to_higher));
    prove(&s, SECRET);
    UNTIL(higher->port.state == PORT_UP);
    close(s.fd);
    close(to_lower);
    close(to_higher);
    close(listeners[0]);
    close(listeners[1]);
}

/* Does this end of a connection belong to that one? */
static int same_connection(int a, int b)
{
    struct sockaddr_storage here, there, its_here, its_there;
    socklen_t bytes[4] = { sizeof here, sizeof here, sizeof here, sizeof here };
    char text[4][80];
    if (getsockname(a, (struct sockaddr *)&here, &bytes[0]) || getpeername(a, (struct sockaddr *)&there, &bytes[1]) ||
        getsockname(b, (struct sockaddr *)&its_here, &bytes[2]) ||
        getpeername(b, (struct sockaddr *)&its_there, &bytes[3]))
        return 0;
    endpoint_text(&here, text[0], sizeof text[0]);
    endpoint_text(&its_there, text[1], sizeof text[1]);
    endpoint_text(&there, text[2], sizeof text[2]);
    endpoint_text(&its_here, text[3], sizeof text[3]);
    return strcmp(text[0], text[1]) == 0 && strcmp(text[2], text[3]) == 0;
}

/* Whichever side goes on first, and how far: one connection is left, the same at both sides. */
static void of_two_connections_one_is_left(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 60; seed++) {
        struct mesh *m[] = { open_mesh(0, SECRET), open_mesh(1, SECRET) };
        struct link *low = &m[0]->links[1], *high = &m[1]->links[0];
        unsigned random = seed * 2654435761u + 1;
        port_want(seed & 1 ? &low->port : &high->port);
        port_want(seed & 1 ? &high->port : &low->port);
        int64_t end = clock_now_ns() + LIMIT_S * 1000000000ll;
        while (!(low->port.state == PORT_UP && high->port.state == PORT_UP && low->port.heard && high->port.heard &&
                 m[0]->pending_count + m[1]->pending_count == 0) && clock_now_ns() < end) {
            random = random * 1664525u + 1013904223u;
            for (unsigned i = random >> 29; i; i--)
                turn(m[random >> 28 & 1]);
            if (low->port.state == PORT_UP && high->port.state == PORT_UP) { /* the connector is told nothing more */
                struct frame h = { .type = FRAME_CREDIT };
                link_send(&low->port, &h, NULL, 0, NULL);
                link_send(&high->port, &h, NULL, 0, NULL);
            }
        }
        assert_true(low->port.state == PORT_UP && high->port.state == PORT_UP);
        assert_true(m[0]->pending_count == 0 && m[1]->pending_count == 0);
        assert_true(same_connection(low->fd, high->fd));
        tear_down(state);
    }
}

/* ---- Endpoint records ---- */

static int reads(struct link *l, const char *endpoint)
{
    char copy[2048];
    snprintf(copy, sizeof copy, "%s", endpoint);
    return endpoint_read(l, copy) > 0;
}

static void a_record_has_several_addresses(void **state)
{
    struct mesh *m = open_mesh(1, SECRET);
    struct link *l = &m->links[0];
    char endpoint[512], text[80];
    static const char *const expected[] = { "10.0.0.7:4021", "[fd00::7]:4021", "192.168.1.9:4021" };
    (void)state;
    assert_true(reads(l, "node-b\nsome other host\n4021\n10.0.0.7\nfd00::7\nno address\n192.168.1.9\n"));
    assert_int_equal(l->candidate_count, 3);
    for (int i = 0; i < 3; i++) {
        endpoint_text(&l->candidates[i], text, sizeof text);
        assert_string_equal(text, expected[i]);
    }
    assert_string_equal(l->port.where, "node-b 10.0.0.7:4021");
    assert_false(l->same_host);
    snprintf(endpoint, sizeof endpoint, "node-a\n%s\n4021\n10.0.0.7\n", m->host_identity);
    assert_true(reads(l, endpoint));
    assert_true(l->same_host && l->candidate_count == 2); /* loopback first */
    endpoint_text(&l->candidates[0], text, sizeof text);
    assert_string_equal(text, "127.0.0.1:4021");
    assert_true(reads(l, store.endpoint[1])); /* its own */
    endpoint_text(&l->candidates[0], text, sizeof text);
    assert_int_equal(atoi(strchr(text, ':') + 1), m->tcp_port);
}

static void a_record_without_sense_is_refused(void **state)
{
    static const char *const pages[] = { "", "node-b", "node-b\nx", "node-b\nx\n", "node-b\nx\n0\n10.0.0.7\n",
        "node-b\nx\n-5\n10.0.0.7\n", "node-b\nx\n65536\n10.0.0.7\n", "node-b\nx\nport\n10.0.0.7\n", "node-b\nx\n4021\n",
        "node-b\nx\n4021\n10.0.0\n::g\n\n" };
    struct mesh *m = open_mesh(1, SECRET);
    struct link *l = &m->links[0];
    char many[2048] = "a-host-whose-name-is-longer-than-anybody-needs\nx\n4021\n";
    (void)state;
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        assert_false(reads(l, pages[i]));
    char none[] = "node-b\nx\n4021\n", nonsense[] = "node-b\nx\n4021\nnone\n";
    assert_int_equal(endpoint_read(l, none), 0);
    assert_string_equal(l->port.where, "node-b");
    assert_int_equal(endpoint_read(l, nonsense), -1);
    for (int i = 0; i < 100; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "10.0.0.%d\n", i);
    assert_true(reads(l, many));
    assert_int_equal(l->candidate_count, 32);
    assert_string_equal(l->port.where, "a-host-whose-name-is-lon 10.0.0.0:4021");
    snprintf(store.endpoint[0], sizeof store.endpoint[0], "nonsense");
    port_want(&l->port);
    UNTIL(l->port.state == PORT_LOST);
    assert_int_equal(l->port.lost_status, COMM_ERR_PEER_LOST);
    assert_non_null(strstr(l->port.lost_text, "makes no sense"));
}

/* ---- Open and close ---- */

static int descriptors(void)
{
    DIR *all = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

static void all_that_is_half_made_is_closed(void **state)
{
    int before = descriptors();
    struct mesh *m = open_mesh(1, SECRET);
    struct wire_hello hello = hello_of(2, 1);
    uint8_t bytes[WIRE_HELLO_BYTES];
    int listener = listen_as(m, 0);
    (void)state;
    port_want(&m->links[0].port); /* is connected, and hears no challenge */
    int silent = accept_from(listener), nothing = dial(m), half = dial(m);
    assert_true(hear(silent, bytes, sizeof bytes));
    wire_put_hello(&hello, bytes);
    say(half, bytes, sizeof bytes / 2);
    struct shake unproven = begin_shake(m, hello_of(3, 1));
    port_want(&m->links[2].port); /* has published nothing */
    assert_int_equal(m->pending_count, 3);
    assert_int_equal(link_phase(&m->links[0]), LINK_CHALLENGED);
    assert_int_equal(link_phase(&m->links[2]), LINK_RESOLVING);
    assert_int_equal(link_phase(&m->links[3]), LINK_AWAITED);
    for (int i = 0; i < TCP_PENDING_CONNS_MAX; i++)
        m->pending[i].give_up_ns = INT64_MAX; /* it is not their own time that ends them */
    close_mesh(m);
    assert_true(is_closed(silent) && is_closed(nothing) && is_closed(half) && is_closed(unproven.fd));
    close(silent);
    close(nothing);
    close(half);
    close(unproven.fd);
    close(listener);
    assert_int_equal(descriptors(), before);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(who_has_the_secret_is_admitted),
        TEST(who_lacks_the_secret_is_refused),
        TEST(who_wants_another_is_refused),
        TEST(garbage_is_refused),
        TEST(silence_holds_nobody_up),
        TEST(strangers_are_bounded),
        TEST(a_rank_that_is_wanted_is_connected),
        TEST(an_acceptor_that_is_not_ours_gets_no_proof),
        TEST(the_lower_rank_goes_first_for_a_while),
        TEST(of_two_connections_one_is_left),
        TEST(a_record_has_several_addresses),
        TEST(a_record_without_sense_is_refused),
        TEST(all_that_is_half_made_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

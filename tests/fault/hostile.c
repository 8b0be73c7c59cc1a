/* Strangers at the port that ranks listen on, and a rank that has the secret but lies. Strangers are refused and
 * disturb no rank. A liar's connection ends with PROTOCOL and a text that names it; groups that it is not in go on;
 * nothing crashes or grows without limit.
 *
 * The liar is a real rank of the world: once it is connected, it takes the connection to rank 0 away from its library
 * and sends what it likes. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "faults.h"
#include "core/exec/exec_group.h"
#include "backend_tcp/link.h"
#include "backend_tcp/progress.h"
#include "core/group.h"

static const char SECRET[] = "the job's secret";

struct scenario {
    struct page *page;
    uint64_t seed;
    int which;
};

/* ---- The liar's own connections ---- */

static int port_of(comm_group *world, int rank)
{
    char key[32];
    void *page;
    size_t bytes;
    snprintf(key, sizeof key, "tcp/%d", fault_world_rank(rank, 3));
    CHECK_OK(comm_store_get(world->world->backends[0].store, key, 5000, &page, &bytes));
    char *copy = strndup(page, bytes), *rest = copy;
    comm_free(page);
    strsep(&rest, "\n");
    strsep(&rest, "\n");
    int port = atoi(strsep(&rest, "\n"));
    free(copy);
    CHECK(port > 0);
    return port;
}

static int dial(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

/* 0 if the other side has closed. */
static int send_bytes(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) /* EAGAIN: under short_io */
            continue;
        if (n <= 0)
            return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

static int recv_bytes(int fd, void *data, size_t bytes)
{
    char *at = data;
    while (bytes) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) /* EAGAIN: under short_io */
            continue;
        if (n <= 0)
            return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

/* Read whatever comes until the other side closes. */
static void until_closed(int fd)
{
    char sink[4096];
    while (recv_bytes(fd, sink, 1))
        ;
    close(fd);
}

static struct mesh *mesh_of(comm_group *world)
{
    return (struct mesh *)((struct exec_group *)world->channels[0].state)->domain;
}

static struct wire_hello hello_of(comm_group *world)
{
    const struct mesh *mesh = mesh_of(world);
    struct wire_hello hello = { WIRE_VERSION, mesh->domain.world, mesh->domain.peers.rank, fault_world_rank(0, 3),
                                { 0 } };
    wire_random(hello.nonce, sizeof hello.nonce);
    return hello;
}

/* Shake hands; returns the verdict, or -1 if the other side closed instead. */
static int shake(int fd, const struct wire_hello *hello, const char *secret)
{
    uint8_t out[WIRE_HELLO_BYTES], in[WIRE_CHALLENGE_BYTES], proof[WIRE_PROOF_BYTES];
    struct wire_challenge challenge;
    wire_put_hello(hello, out);
    if (!send_bytes(fd, out, sizeof out) || !recv_bytes(fd, in, sizeof in) || wire_get_challenge(in, &challenge) != 0)
        return -1;
    if (challenge.verdict != WIRE_WELCOME)
        return (int)challenge.verdict;
    wire_prove(secret, 'C', out, challenge.nonce, proof);
    return send_bytes(fd, proof, sizeof proof) ? 0 : -1;
}

/* The connection to rank 0, which the library will not touch again: the lock is kept. */
static int take_connection(comm_group *world)
{
    struct mesh *m = mesh_of(world);
    struct link *l = &m->links[fault_world_rank(0, 3)];
    progress_enter(m);
    while (l->port.state == PORT_UP && l->tx_head) /* under short_io */
        link_flush(l);
    CHECK(l->port.state == PORT_UP);
    int fd = l->fd;
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0);
    return fd;
}

static int send_frame(int fd, const struct frame *h, const void *payload, size_t bytes)
{
    uint8_t out[WIRE_HEADER_BYTES];
    wire_put_header(h, out);
    return send_bytes(fd, out, sizeof out) && (!bytes || send_bytes(fd, payload, bytes));
}

/* ---- The honest side ---- */

/* The same, and all ranks are connected. */
static comm_group *join_and_meet(void)
{
    comm_group *world = fault_world();
    CHECK_OK(comm_barrier(world, NULL, NULL));
    return world;
}

/* The liar's end: its library is locked up. */
static void vanish(void)
{
    fault_vanish();
}

static comm_group *honest_pair(comm_group *world)
{
    const int32_t pair[] = { 0, 1 };
    comm_group *group;
    CHECK_OK(comm_group_create(world, pair, 2, NULL, &group));
    return group;
}

/* Ranks 0 and 1 work on until the flag is up. */
static void work_until(struct page *page, comm_group *pair, int flag)
{
    for (int more = 1; more;) {
        int32_t values[2] = { 1, !atomic_load(&page->flags[flag]) };
        CHECK_OK(comm_all_reduce(pair, values, values, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(values[0] == 2);
        more = values[1];
    }
}

/* ---- Strangers ---- */

static void say_anything(int port, uint64_t *random)
{
    uint8_t noise[600];
    size_t n = 1 + fault_random(random) % sizeof noise;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)fault_random(random);
    int fd = dial(port);
    send_bytes(fd, noise, n);
    shutdown(fd, SHUT_WR);
    until_closed(fd);
}

static void say_http(int port)
{
    static const char get[] =
        "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that lost its way\r\nAccept: */*\r\n\r\n";
    int fd = dial(port);
    send_bytes(fd, get, sizeof get - 1);
    until_closed(fd);
}

static void strange_handshakes(comm_group *world, int port)
{
    struct wire_hello hello = hello_of(world);
    uint8_t recorded[WIRE_HELLO_BYTES], proof[WIRE_PROOF_BYTES] = { 0 }, in[WIRE_CHALLENGE_BYTES];
    int fd = dial(port);
    hello.version = 77;
    CHECK(shake(fd, &hello, SECRET) == WIRE_OTHER_VERSION);
    until_closed(fd);
    hello = hello_of(world);
    hello.world ^= 1;
    fd = dial(port);
    CHECK(shake(fd, &hello, SECRET) == WIRE_OTHER_WORLD);
    until_closed(fd);
    const int32_t from[] = { -1, mesh_of(world)->domain.peers.size, INT32_MAX, INT32_MIN, fault_world_rank(0, 3) };
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        hello = hello_of(world);
        hello.from = from[i];
        fd = dial(port);
        CHECK(shake(fd, &hello, SECRET) == WIRE_OTHER_WORLD);
        until_closed(fd);
    }
    hello = hello_of(world);
    hello.to = fault_world_rank(1, 3);
    fd = dial(port);
    CHECK(shake(fd, &hello, SECRET) == WIRE_OTHER_WORLD);
    until_closed(fd);
    hello = hello_of(world);
    hello.from = fault_world_rank(1, 3); /* a rank that is connected already */
    fd = dial(port);
    CHECK(shake(fd, &hello, world->world->secret) == WIRE_OTHER_WORLD);
    until_closed(fd);
    /* The wrong secret; then a proof that was right for another challenge. */
    hello = hello_of(world);
    fd = dial(port);
    CHECK(shake(fd, &hello, "another secret") == WIRE_WELCOME);
    until_closed(fd);
    fd = dial(port);
    wire_put_hello(&hello, recorded);
    CHECK(send_bytes(fd, recorded, sizeof recorded) && recv_bytes(fd, in, sizeof in));
    wire_prove(world->world->secret, 'C', recorded, hello.nonce, proof);
    send_bytes(fd, proof, sizeof proof);
    until_closed(fd);
}

/* Has the other side closed? Waits for it if it is to. */
static int is_closed(int fd, int waits)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, waits ? 20000 : 0) == 1;
}

static void strangers_come(comm_group *world, uint64_t seed)
{
    enum { HALF_OPEN = TCP_PENDING_CONNS_MAX + 44, NEWEST = 20 };
    int port = port_of(world, 0), idle[HALF_OPEN];
    uint64_t random = seed;
    for (int i = 0; i < 100; i++)
        say_anything(port, &random);
    say_http(port);
    strange_handshakes(world, port);
    /* More silent connections than there is room for: those that come after them must get in all the same. */
    for (int i = 0; i < HALF_OPEN; i++)
        idle[i] = dial(port);
    for (int i = 0; i < HALF_OPEN - TCP_PENDING_CONNS_MAX; i++)
        CHECK(is_closed(idle[i], 1)); /* the oldest made room */
    for (int i = HALF_OPEN - NEWEST; i < HALF_OPEN; i++)
        CHECK(!is_closed(idle[i], 0));
    static const int32_t answer = 42;
    comm_op_options soon = COMM_OP_OPTIONS_INIT;
    soon.timeout_ms = 5000; /* half of what each of them may take for its handshake */
    CHECK_OK(comm_send(world, &answer, 1, COMM_DTYPE_I32, 0, &soon, NULL));
    for (int i = 0; i < HALF_OPEN; i++)
        close(idle[i]);
}

static void strangers(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *pair = honest_pair(world);
    int32_t answer = 0;
    if (pair)
        CHECK_OK(comm_barrier(pair, NULL, NULL)); /* connects them */
    fault_meet(s->page);
    if (rank == 2) {
        strangers_come(world, s->seed);
        fault_raise(s->page, 0);
    } else {
        work_until(s->page, pair, 0);
    }
    if (rank == 0) {
        CHECK_OK(comm_recv(world, &answer, 1, COMM_DTYPE_I32, 2, NULL, NULL));
        CHECK(answer == 42);
    }
    (void)size;
    fault_meet(s->page);
    CHECK_OK(comm_group_close(pair));
    CHECK_OK(fault_close(world));
}

/* ---- The liar ---- */

static struct frame message(comm_group *g, uint8_t type, uint64_t bytes)
{
    return (struct frame){ .type = type, .kind = COMM_OP_SEND, .dtype = COMM_DTYPE_U8, .group = g->id, .seq = 1,
                                 .tag = 0, .count = bytes, .bytes = bytes };
}

static struct frame collective(comm_group *g, uint8_t type, uint64_t bytes)
{
    struct frame h = message(g, type, bytes);
    h.kind = COMM_OP_ALL_REDUCE;
    h.seq = 3;
    return h;
}

static uint8_t junk[1 << 20];

static void flood(int fd, struct frame h, size_t payload, int times, int numbered)
{
    for (int i = 0; i < times; i++) {
        if (numbered)
            h.seq++;
        if (!send_frame(fd, &h, junk, payload))
            return;
    }
}

enum lie {
    NOISE,
    UNKNOWN_TYPE,
    ZERO_TYPE,
    ROUND_TOO_LARGE,
    ROUND_OF_A_MESSAGE,
    UNASKED_DATA,
    UNASKED_DATA_OF_COLLECTIVE,
    DATA_FOR_NO_GROUP,
    ENDLESS_DATA_FOR_NO_GROUP,
    EAGER_TOO_LONG,
    EAGER_OVER_CREDIT,
    EAGER_OVER_CREDIT_NO_GROUP,
    EAGER_EMPTY_FLOOD,
    CREDIT_TOO_MUCH,
    NOT_A_MEMBER,
    NOT_A_MEMBER_FAIL,
    NOT_A_MEMBER_RTS,
    RTS_FLOOD,
    RTS_FLOOD_COLLECTIVE,
    CTS_FLOOD,
    RTS_FLOOD_NO_GROUP,
    QUERY_FLOOD,
    FAIL_TEXT_TOO_LONG,
    HALF_A_MESSAGE,
    LIE_END
};

static void tell_lie(comm_group *world, comm_group *pair_id_only, int fd, enum lie lie, uint64_t *random)
{
    struct frame h;
    switch (lie) {
    case NOISE:
        for (size_t i = 0; i < 4096; i++)
            junk[i] = (uint8_t)fault_random(random);
        junk[0] = 0;
        send_bytes(fd, junk, 4096);
        break;
    case UNKNOWN_TYPE:
    case ZERO_TYPE:
        h = message(world, lie == ZERO_TYPE ? 0 : FRAME_TYPE_END, 0);
        send_frame(fd, &h, NULL, 0);
        break;
    case ROUND_TOO_LARGE: {
        uint8_t raw[WIRE_HEADER_BYTES];
        h = message(world, FRAME_RTS, 10);
        wire_put_header(&h, raw);
        raw[39] = 1;
        send_bytes(fd, raw, sizeof raw);
        break;
    }
    case ROUND_OF_A_MESSAGE:
        h = message(world, FRAME_EAGER, 4);
        h.tag = 5; /* there is a receive for it */
        h.round = 1;
        send_frame(fd, &h, junk, 4);
        break;
    case UNASKED_DATA:
        h = message(world, FRAME_DATA, 5000);
        send_frame(fd, &h, junk, 5000);
        break;
    case UNASKED_DATA_OF_COLLECTIVE:
        h = collective(world, FRAME_DATA, 5000);
        send_frame(fd, &h, junk, 5000);
        break;
    case DATA_FOR_NO_GROUP:
    case ENDLESS_DATA_FOR_NO_GROUP:
        h = message(world, FRAME_DATA, lie == DATA_FOR_NO_GROUP ? sizeof junk : UINT64_MAX);
        h.group ^= 0x5555;
        send_frame(fd, &h, junk, sizeof junk);
        break;
    case EAGER_TOO_LONG:
        h = message(world, FRAME_EAGER, FRAME_EAGER_MAX + 1);
        send_frame(fd, &h, NULL, 0);
        break;
    case EAGER_OVER_CREDIT:
    case EAGER_OVER_CREDIT_NO_GROUP:
        h = message(world, FRAME_EAGER, 60000);
        h.tag = 99;
        if (lie == EAGER_OVER_CREDIT_NO_GROUP)
            h.group ^= 0x77;
        flood(fd, h, 60000, 2000, 1);
        break;
    case EAGER_EMPTY_FLOOD:
        h = message(world, FRAME_EAGER, 0);
        h.tag = 99;
        flood(fd, h, 0, 100000, 1);
        break;
    case CREDIT_TOO_MUCH:
        h = message(world, FRAME_CREDIT, 0);
        h.credit = 1 << 20;
        send_frame(fd, &h, NULL, 0);
        break;
    case NOT_A_MEMBER:
    case NOT_A_MEMBER_RTS:
        h = message(pair_id_only, lie == NOT_A_MEMBER ? FRAME_EAGER : FRAME_RTS, 4);
        send_frame(fd, &h, junk, lie == NOT_A_MEMBER ? 4 : 0);
        break;
    case NOT_A_MEMBER_FAIL:
        h = message(pair_id_only, FRAME_FAIL, 4);
        h.tag = COMM_ERR_ABORTED;
        send_frame(fd, &h, "stop", 4);
        break;
    case RTS_FLOOD:
        h = message(world, FRAME_RTS, 1 << 30);
        h.tag = 99;
        flood(fd, h, 0, 100000, 1);
        break;
    case RTS_FLOOD_COLLECTIVE:
    case CTS_FLOOD:
        h = collective(world, lie == CTS_FLOOD ? FRAME_CTS : FRAME_RTS, lie == CTS_FLOOD ? 0 : 1 << 30);
        h.seq = 1000;
        flood(fd, h, 0, 100000, 1);
        break;
    case RTS_FLOOD_NO_GROUP:
        h = message(world, FRAME_RTS, 1 << 30);
        h.group ^= 0x99;
        flood(fd, h, 0, 100000, 1);
        break;
    case QUERY_FLOOD:
        h = message(world, FRAME_QUERY, 0);
        flood(fd, h, 0, 1000000, 0);
        break;
    case HALF_A_MESSAGE: /* of one that no receive is posted for; then the connection ends */
        h = message(world, FRAME_EAGER, 5000);
        h.tag = 99;
        send_frame(fd, &h, junk, 2000);
        shutdown(fd, SHUT_WR);
        break;
    default:
        h = message(world, FRAME_FAIL, FRAME_TEXT_MAX + 1);
        send_frame(fd, &h, junk, FRAME_TEXT_MAX + 1);
    }
}

static void liar(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = join_and_meet(), *pair = honest_pair(world);
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    comm_work *work = NULL, *pair_work = NULL;
    int32_t answer = 0;
    o.tag = 5;
    if (rank == 0) {
        atomic_store(&s->page->values[0], (int64_t)pair->id);
        CHECK_OK(comm_recv(world, &answer, 1, COMM_DTYPE_I32, 2, &o, &work));
        CHECK_OK(comm_recv(pair, &answer, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, &o, &pair_work));
    }
    fault_meet(s->page);
    if (rank == 2) {
        comm_group only_its_id;
        only_its_id.id = (uint64_t)atomic_load(&s->page->values[0]);
        int fd = take_connection(world);
        tell_lie(world, &only_its_id, fd, (enum lie)s->which, &s->seed);
        until_closed(fd);
        fault_raise(s->page, 0);
        fault_meet(s->page);
        vanish();
    } else {
        long before = fault_resident_kib();
        work_until(s->page, pair, 0);
        long grown = fault_resident_kib() - before;
        if (rank == 0) {
            CHECK_STATUS(comm_work_wait(work, 0), s->which == HALF_A_MESSAGE ? COMM_ERR_PEER_LOST : COMM_ERR_PROTOCOL);
            CHECK_NAMES(comm_last_error(), 2);
            snprintf(s->page->text[0], sizeof s->page->text[0], "%s", comm_last_error());
            comm_work_release(work);
            atomic_store(&s->page->values[1], grown);
        }
    }
    if (rank == 1) {
        o.tag = 5;
        answer = 17;
        CHECK_OK(comm_send(pair, &answer, 1, COMM_DTYPE_I32, 0, &o, NULL));
    } else if (rank == 0) {
        CHECK_OK(comm_work_wait(pair_work, 0));
        CHECK(answer == 17);
        comm_work_release(pair_work);
    }
    (void)size;
    fault_meet(s->page);
    CHECK_OK(comm_group_close(pair));
    CHECK_OK(fault_close(world));
}

/* A receive from any source has its message announced, and then the sender leaves: others of the group are there, but
 * they cannot bring it. */
static void announced_and_left(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = join_and_meet();
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    comm_work *work = NULL;
    uint8_t byte;
    o.tag = 5;
    (void)size;
    if (rank == 0)
        CHECK_OK(comm_recv(world, &byte, 1, COMM_DTYPE_U8, COMM_ANY_SOURCE, &o, &work));
    fault_meet(s->page);
    if (rank == 2) {
        int fd = take_connection(world);
        struct frame h = message(world, FRAME_RTS, 1);
        h.tag = 5;
        CHECK(send_frame(fd, &h, NULL, 0));
        h = message(world, FRAME_BYE, 0);
        CHECK(send_frame(fd, &h, NULL, 0));
        fault_meet(s->page);
        vanish();
    }
    if (rank == 0) {
        CHECK_STATUS(comm_work_wait(work, 20000), COMM_ERR_PEER_LOST);
        CHECK_NAMES(comm_last_error(), 2);
        comm_work_release(work);
    }
    fault_meet(s->page);
    CHECK_OK(fault_close(world));
}

/* ---- The end of a connection ---- */

static void await_early_of_liar(comm_group *world)
{
    struct mesh *m = mesh_of(world);
    for (size_t seen = 0; seen == 0;) {
        progress_enter(m);
        seen = m->links[fault_world_rank(2, 3)].port.unexpected_count;
        progress_leave(m);
        sched_yield();
    }
}

/* The liar ends in the middle of a message for a group that rank 0 has not opened yet: a receive there must not wait
 * for the rest. */
static void half_a_message_for_a_later_group(int rank, int size, void *arg)
{
    static const int32_t everybody[] = { 0, 1, 2 };
    struct scenario *s = arg;
    comm_group *world = join_and_meet(), *later;
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    static uint8_t data[5000];
    o.tag = 5;
    o.timeout_ms = 10000;
    (void)size;
    if (rank == 2) {
        CHECK_OK(comm_group_create(world, everybody, 3, NULL, &later));
        int fd = take_connection(world);
        struct frame h = message(later, FRAME_EAGER, sizeof data);
        h.tag = 5;
        CHECK(send_frame(fd, &h, data, 2000));
        fault_await(s->page, 0);
        shutdown(fd, SHUT_RDWR);
        fault_meet(s->page);
        vanish();
    }
    if (rank == 0) {
        await_early_of_liar(world);
        fault_raise(s->page, 0);
        CHECK_STATUS(comm_recv(world, data, 1, COMM_DTYPE_U8, 2, &o, NULL), COMM_ERR_PEER_LOST);
        CHECK_OK(comm_group_create(world, everybody, 3, NULL, &later));
        CHECK_STATUS(comm_recv(later, data, sizeof data, COMM_DTYPE_U8, 2, &o, NULL), COMM_ERR_PEER_LOST);
        CHECK_NAMES(comm_last_error(), 2);
        CHECK_OK(comm_group_close(later));
    }
    fault_meet(s->page);
    CHECK_OK(fault_close(world));
}

static void await_bytes(const struct mesh *m, int rank)
{
    struct pollfd p = { .fd = m->links[fault_world_rank(rank, 3)].fd, .events = POLLIN };
    CHECK(poll(&p, 1, 20000) == 1);
}

/* Rank 0 finds that the liar is lost, and has not read yet why: rank 1 has said so before. */
static void a_loss_comes_after_its_reason(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = join_and_meet();
    comm_work *work;
    uint8_t byte;
    (void)size;
    int fd = rank == 2 ? take_connection(world) : -1; /* it passes nothing on */
    if (rank == 0) {
        struct mesh *m = mesh_of(world);
        CHECK_OK(comm_recv(world, &byte, 1, COMM_DTYPE_U8, 2, NULL, &work));
        progress_enter(m);
        fault_meet(s->page);
        await_bytes(m, 1);
        fault_raise(s->page, 0);
        await_bytes(m, 2);
        link_read(&m->links[fault_world_rank(2, 3)].port);
        progress_leave(m);
        CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_ABORTED);
        CHECK_SAYS_OF(comm_last_error(), 1, " of group 'world' called comm_group_abort: the reason");
        comm_work_release(work);
    } else {
        fault_meet(s->page);
    }
    if (rank == 1)
        CHECK_OK(comm_group_abort(world, "the reason"));
    if (rank == 2) {
        fault_await(s->page, 0);
        shutdown(fd, SHUT_RDWR);
        fault_meet(s->page);
        vanish();
    }
    fault_meet(s->page);
    CHECK_OK(fault_close(world));
}

/* ---- Too much for one step ---- */

/* The next frame that rank 0 sends to the liar for a collective, without its payload. */
static struct frame next_of_collective(int fd)
{
    for (;;) {
        uint8_t raw[WIRE_HEADER_BYTES];
        struct frame h;
        CHECK(recv_bytes(fd, raw, sizeof raw) && wire_get_header(raw, &h) == NULL);
        if (h.type == FRAME_EAGER || h.type == FRAME_DATA)
            for (uint64_t left = h.bytes; left;) {
                size_t n = left < sizeof junk ? (size_t)left : sizeof junk;
                CHECK(recv_bytes(fd, junk, n));
                left -= n;
            }
        if (h.kind == COMM_OP_ALL_REDUCE)
            return h;
    }
}

/* In a round in which rank 0 also waits for rank 1, the liar sends its message twice, or asks twice for that of rank 0:
 * the second one is not for this step. */
static void all_of_it_twice(int rank, int size, void *arg)
{
    enum { SHORT = 100, LONG = 100000 };
    struct scenario *s = arg;
    size_t count = s->which ? LONG : SHORT;
    comm_group *world = join_and_meet();
    int32_t *values = calloc(count, sizeof *values);
    comm_work *work;
    (void)size;
    for (size_t i = 0; i < count; i++)
        values[i] = 1 + rank;
    int fd = rank == 2 ? take_connection(world) : -1; /* before rank 0 sends what the library must not read */
    fault_meet(s->page);
    if (rank == 2) {
        struct frame h = next_of_collective(fd);
        size_t bytes = count * sizeof *values;
        h.credit = 0;
        if (s->which) {
            for (int i = 0; i < 2; i++) {
                h.type = FRAME_CTS;
                h.bytes = 0;
                CHECK(send_frame(fd, &h, NULL, 0));
            }
            for (struct frame data = { 0 }; data.type != FRAME_DATA;)
                data = next_of_collective(fd);
        }
        h.type = s->which ? FRAME_DATA : FRAME_EAGER;
        h.bytes = bytes;
        for (int i = 0; i < (s->which ? 1 : 2); i++)
            CHECK(send_frame(fd, &h, values, bytes));
        /* Rank 0 has read all of it when it has read what follows. */
        h = message(world, FRAME_EAGER, 1);
        h.tag = 5;
        CHECK(send_frame(fd, &h, junk, 1));
        fault_meet(s->page);
        vanish();
    }
    if (rank == 0) {
        uint8_t byte;
        comm_op_options o = COMM_OP_OPTIONS_INIT;
        o.tag = 5;
        CHECK_OK(comm_all_reduce(world, values, values, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work));
        CHECK_OK(comm_recv(world, &byte, 1, COMM_DTYPE_U8, 2, &o, NULL));
        CHECK(comm_work_status(work) == COMM_IN_PROGRESS);
        fault_raise(s->page, 1);
        CHECK_OK(comm_work_wait(work, 0));
        for (size_t i = 0; i < count; i++)
            CHECK(values[i] == 1 + 2 + 3);
        comm_work_release(work);
        fault_raise(s->page, 2);
    } else {
        fault_await(s->page, 1);
        CHECK_OK(comm_all_reduce(world, values, values, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work));
        fault_await(s->page, 2);
        CHECK_OK(comm_group_abort(world, "nothing comes from the liar"));
        CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_ABORTED);
        comm_work_release(work);
    }
    fault_meet(s->page);
    CHECK_OK(fault_close(world));
    free(values);
}

/* Legal frames that are about nothing, or say odd things: the group may end, but in order. */
static void oddities(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = join_and_meet(), *pair = honest_pair(world);
    fault_meet(s->page);
    if (rank == 2) {
        int fd = take_connection(world);
        struct frame h = collective(world, FRAME_CTS, 0);
        for (int type = FRAME_RTS; type < FRAME_TYPE_END; type++) {
            if (type == FRAME_DATA || type == FRAME_FAIL || type == FRAME_BYE)
                continue;
            h = collective(world, (uint8_t)type, 0);
            h.seq = 0;
            CHECK(send_frame(fd, &h, NULL, 0));
            h = message(world, (uint8_t)type, 0);
            h.tag = 98;
            CHECK(send_frame(fd, &h, NULL, 0));
        }
        /* An all_reduce of 2^60 elements in no bytes, of a type, an op and a kind that do not exist. */
        h = (struct frame){ .type = FRAME_EAGER, .kind = 250, .dtype = 251, .redop = 252, .group = world->id, .seq = 2,
                                  .signature = 3, .slice = UINT32_MAX, .round = UINT16_MAX, .tag = INT32_MIN,
                                  .count = 1ull << 60 };
        CHECK(send_frame(fd, &h, NULL, 0));
        fault_raise(s->page, 0);
        fault_meet(s->page);
        vanish();
    } else {
        work_until(s->page, pair, 0);
    }
    if (rank == 0) {
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_MISMATCH);
        CHECK_SAYS_OF(comm_last_error(), 0, " called barrier(), ");
        CHECK_SAYS_OF(comm_last_error(), 2, " called an unknown operation(1152921504606846976 x ?");
    }
    fault_meet(s->page);
    CHECK_OK(comm_group_close(pair));
    CHECK_OK(fault_close(world));
    (void)size;
}

static void reason_with_odd_bytes(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = join_and_meet();
    static const char text[] = "%s%n\033[2J\n\0 and \177 more \302\233 \342\200\256 \377 \303\274";
    int32_t answer;
    fault_meet(s->page);
    if (rank == 2) {
        int fd = take_connection(world);
        struct frame h = message(world, FRAME_FAIL, sizeof text);
        h.tag = COMM_OK;
        h.slice = (uint32_t)s->which;
        CHECK(send_frame(fd, &h, text, sizeof text));
        fault_meet(s->page);
        vanish();
    } else {
        CHECK_STATUS(comm_recv(world, &answer, 1, COMM_DTYPE_I32, rank == 0 ? 2 : 0, NULL, NULL), COMM_ERR_PROTOCOL);
        /* Rank 2 may pass on what rank 1 wrote; rank 0 has not written it, and there is no rank 7. */
        int reporter = s->which != 1 ? 2 : rank == 0 ? 1 : 0;
        CHECK_SAYS_OF(comm_last_error(), reporter, " reports: %s%n?[2J?? and ? more ? ? ? \303\274?");
        fault_meet(s->page);
    }
    (void)size;
    CHECK_OK(fault_close(world));
}

/* The liar says that rank 1 is lost: rank 1, or no rank, is said to have seen it; or the liar, in a group without
 * rank 1. */
static void invented_loss(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    const int32_t two[] = { 0, 2 };
    comm_group *world = join_and_meet(), *pair = honest_pair(world), *without = NULL;
    CHECK_OK(comm_group_create(world, two, 2, NULL, &without));
    comm_group *told = s->which == 2 ? without : world;
    (void)size;
    fault_meet(s->page);
    if (rank == 2) {
        int fd = take_connection(world);
        struct frame h = message(told, FRAME_FAIL, 4);
        h.status = COMM_ERR_PEER_LOST;
        h.reporter = s->which == 2 ? comm_group_rank(told) : s->which;
        h.lost = (uint64_t)fault_world_rank(1, 3) + 1;
        CHECK(send_frame(fd, &h, "lost", 4));
        fault_meet(s->page);
        vanish();
    }
    if (rank == 0) {
        int32_t lost[3] = { -1, -1, -1 };
        size_t count = 0;
        uint8_t byte;
        comm_status status = comm_recv(told, &byte, 1, COMM_DTYPE_U8, comm_group_size(told) - 1, NULL, NULL);
        CHECK_STATUS(status, COMM_ERR_PEER_LOST);
        CHECK_OK(comm_group_lost_ranks(world, lost, 3, &count));
        if (count != 0)
            ranks_fail(__FILE__, __LINE__, "rank %d, which lives, counts as lost", (int)lost[0]);
        fault_raise(s->page, 0);
    }
    work_until(s->page, pair, 0);
    fault_meet(s->page);
    CHECK_OK(comm_group_close(without));
    CHECK_OK(comm_group_close(pair));
    CHECK_OK(fault_close(world));
}

/* Random frames with fields that are nearly right, while rank 0 does all sorts of things. */
static void random_liar(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = join_and_meet(), *pair = honest_pair(world);
    uint64_t random = s->seed;
    comm_work *works[6] = { NULL };
    static uint8_t buffers[6][4096], one[64], other[192];
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    if (rank == 0)
        for (int i = 0; i < 6; i++) {
            o.tag = i < 5 ? i : COMM_ANY_TAG;
            comm_recv(world, buffers[i], sizeof buffers[i] >> i, COMM_DTYPE_U8, i % 2 ? 2 : COMM_ANY_SOURCE, &o,
                      &works[i]);
        }
    fault_meet(s->page);
    if (rank == 2) {
        int fd = take_connection(world);
        for (int i = 0; i < 300; i++) {
            uint64_t r = fault_random(&random);
            struct frame h = { .type = (uint8_t)(1 + r % 8),
                               .kind = (uint8_t)(r >> 8 & 1 ? COMM_OP_SEND : 1 + (r >> 9) % 12),
                               .dtype = COMM_DTYPE_U8,
                               .group = r >> 16 & 7 ? world->id : (r >> 20),
                               .seq = (r >> 24) % 5,
                               .slice = (uint32_t)((r >> 28) % 2),
                               .round = (uint16_t)((r >> 30) % 3),
                               .tag = (int32_t)((r >> 34) % 7) - 1,
                               .count = (r >> 40) % 64 };
            h.bytes = r >> 50 & 1 ? 64 : fault_random(&random) % 5000;
            if (h.type == FRAME_DATA && fault_random(&random) % 4)
                h.type = FRAME_RTS;
            if (h.type == FRAME_FAIL && fault_random(&random) % 16)
                h.type = FRAME_CTS;
            if (h.type == FRAME_FAIL || h.type == FRAME_ANSWER)
                h.bytes %= FRAME_TEXT_MAX + 1;
            int with = h.type == FRAME_EAGER || h.type == FRAME_DATA || h.type == FRAME_FAIL || h.type == FRAME_ANSWER;
            if (!send_frame(fd, &h, junk, with ? (size_t)h.bytes : 0))
                break;
            struct pollfd p = { .fd = fd, .events = POLLIN };
            while (poll(&p, 1, 0) > 0 && recv(fd, junk + 8192, 8192, MSG_DONTWAIT) > 0)
                ;
        }
        shutdown(fd, SHUT_RDWR);
        fault_raise(s->page, 0);
        fault_meet(s->page);
        vanish();
    } else {
        work_until(s->page, pair, 0);
    }
    if (rank == 0) {
        comm_status status = COMM_OK;
        while (status == COMM_OK)
            status = comm_all_gather(world, one, other, 64, COMM_DTYPE_U8, NULL, NULL);
        CHECK(comm_status_scope(status) == COMM_SCOPE_OBJECT);
        for (int i = 0; i < 6; i++)
            if (works[i]) {
                comm_work_wait(works[i], 0);
                comm_work_release(works[i]);
            }
    }
    (void)size;
    fault_meet(s->page);
    CHECK_OK(comm_group_close(pair));
    CHECK_OK(fault_close(world));
}

static int run(void (*fn)(int, int, void *), int which, uint64_t seed, const char *name)
{
    struct scenario s = { .page = page_new(3), .which = which, .seed = seed };
    struct ranks_options options = { .limit_s = 60, .name = name };
    char title[100];
    snprintf(title, sizeof title, "%s %d", name, which);
    options.name = title;
    int failed = fault_run(3, &options, fn, &s);
    if (fn == liar) {
        printf("lie %2d: %6lld KiB more, %.300s\n", which, (long long)atomic_load(&s.page->values[1]), s.page->text[0]);
        if (atomic_load(&s.page->values[1]) > (48 << 10) * FAULT_MEMORY_FACTOR) {
            fprintf(stderr, "lie %d made rank 0 grow by %lld KiB\n", which, (long long)atomic_load(&s.page->values[1]));
            failed = 1;
        }
    }
    fflush(stdout);
    page_free(s.page);
    return failed;
}

int main(void)
{
    uint64_t random = fault_seed();
    setenv("COMM_SECRET", SECRET, 1);
    int failed = run(strangers, 0, fault_random(&random), "strangers");
    for (int lie = 0; lie < LIE_END; lie++)
        failed |= run(liar, lie, fault_random(&random), "the liar");
    failed |= run(announced_and_left, 0, 0, "announced and left");
    failed |= run(half_a_message_for_a_later_group, 0, 0, "half a message for a later group");
    /* With short reads, one that finds nothing, though there is something, is the end of what was said. */
    if (!getenv("SHORT_IO_RUNS"))
        failed |= run(a_loss_comes_after_its_reason, 0, 0, "a loss comes after its reason");
    setenv("COMM_TCP_ALGO", "all_reduce:one_shot", 1);
    setenv("COMM_TCP_EAGER_BYTES", "1000", 1);
    for (int asks = 0; asks < 2; asks++)
        failed |= run(all_of_it_twice, asks, 0, "all of it twice");
    unsetenv("COMM_TCP_ALGO");
    unsetenv("COMM_TCP_EAGER_BYTES");
    failed |= run(oddities, 0, 0, "oddities");
    static const int reporters[] = { 0, 1, 2, 7 };
    for (int i = 0; i < 4; i++)
        failed |= run(reason_with_odd_bytes, reporters[i], 0, "a reason with odd bytes, from rank");
    static const int seen_by[] = { 1, 7, 2 };
    for (int i = 0; i < 3; i++)
        failed |= run(invented_loss, seen_by[i], 0, "an invented loss, seen by rank");
    for (int i = 0; i < 20; i++)
        failed |= run(random_liar, i, fault_random(&random), "random frames");
    return failed;
}

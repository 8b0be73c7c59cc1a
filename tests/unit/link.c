/* One connection: frames out, bytes in. The link under test writes to one end of a socketpair; the test is the peer at
 * the other end, and the port_events too. How much the link's socket takes is the test's to say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backend_tcp/link.h"
#include "backend_tcp/mesh.h"
#include "backend_tcp/progress.h"
#include "core/registry.h"
#include "match.h"

enum { EVENTS_MAX = 2048, PAYLOAD = 300 /* beyond what is received by way of the read buffer */ };

const comm_backend *comm__tcp_entry(const comm_host *host);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);

/* ---- What the socket takes ---- */

static size_t budget, most_at_once; /* bytes: in all; by one system call */

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct iovec iov[64];
    struct msghdr part = *message;
    size_t left = budget < most_at_once ? budget : most_at_once, n = 0;
    if (!left) {
        errno = EAGAIN;
        return -1;
    }
    for (; n < message->msg_iovlen && left; n++) {
        iov[n] = message->msg_iov[n];
        if (iov[n].iov_len > left)
            iov[n].iov_len = left;
        left -= iov[n].iov_len;
    }
    part.msg_iov = iov;
    part.msg_iovlen = n;
    ssize_t sent = __real_sendmsg(fd, &part, flags);
    if (sent > 0)
        budget -= (size_t)sent;
    return sent;
}

/* ---- What the link tells ---- */

static struct told {
    char what; /* b begins, c complete, f frame, s sent */
    uint8_t type;
    uint64_t seq;
    char text[40];
    const struct message *message;
} told[EVENTS_MAX];
static size_t told_count;
static uint8_t received[4096]; /* where payloads go */
static size_t received_capacity;
static struct message *receive;

static void note(char what, const struct frame *h, const char *text, const struct message *m)
{
    assert_true(told_count < EVENTS_MAX);
    struct told *t = &told[told_count++];
    memset(t, 0, sizeof *t);
    t->what = what;
    t->type = h ? h->type : 0;
    t->seq = h ? h->seq : 0;
    t->message = m;
    snprintf(t->text, sizeof t->text, "%s", text ? text : "");
}

static void on_begins(struct port *p, const struct frame *h)
{
    note('b', h, NULL, NULL);
    p->sink.kind = SINK_COPY;
    p->sink.dst = received;
    p->sink.dst_bytes = received_capacity;
    p->sink.message = receive;
}

static void on_complete(struct port *p, const struct frame *h)
{
    note('c', h, NULL, p->sink.message);
}

static void on_frame(struct port *p, const struct frame *h, const char *text)
{
    note('f', h, text, NULL);
    if (h->type == FRAME_BYE)
        port_left(p);
}

static void on_sent(struct message *m)
{
    note('s', NULL, NULL, m);
}

static const struct port_events events = { on_begins, on_complete, on_frame, on_sent };

/* What was told, as text: "b1 c1 f7". */
static const char *story(void)
{
    static char text[EVENTS_MAX * 8];
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < told_count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%c%d", i ? " " : "", told[i].what,
                                 (int)told[i].seq);
    return text;
}

/* ---- The link and its peer ---- */

struct pair {
    struct mesh *mesh;
    struct link *link;
    struct port *port;
    int fd; /* the peer's */
};

static struct pair pair_open(void)
{
    struct pair s = { .mesh = calloc(1, sizeof *s.mesh) };
    int fds[2];
    comm__tcp_entry(&comm__host);
    assert_int_equal(mesh_allocate(s.mesh, 0, 2, "secret"), COMM_OK);
    assert_int_equal(progress_start(s.mesh), COMM_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    s.mesh->domain.peers.events = &events;
    s.link = &s.mesh->links[1];
    s.port = &s.link->port;
    s.fd = fds[1];
    budget = most_at_once = SIZE_MAX;
    told_count = 0;
    receive = NULL;
    received_capacity = sizeof received;
    memset(received, 0xee, sizeof received);
    link_up(s.link, fds[0]);
    assert_int_equal(s.port->state, PORT_UP);
    return s;
}

static void pair_close(struct pair *s)
{
    s->port->state = PORT_LOST;
    link_sweep(s->port);
    assert_true(s->link->fd < 0 && !s->link->tx_head && s->link->replies == 0 && s->port->interest == 0);
    if (s->fd >= 0)
        close(s->fd);
    mesh_close(s->mesh, 0);
}

static struct frame frame_of(uint8_t type, uint64_t seq, size_t bytes)
{
    return (struct frame){ .type = type, .group = 9, .seq = seq, .bytes = bytes };
}

static void fill(uint8_t *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + seed * 31 + 1);
}

/* Append a frame as bytes; returns where the next one goes. */
static uint8_t *put_frame(uint8_t *at, struct frame h, const void *payload)
{
    wire_put_header(&h, at);
    if (payload)
        memcpy(at + WIRE_HEADER_BYTES, payload, h.bytes);
    return at + WIRE_HEADER_BYTES + (payload ? h.bytes : 0);
}

static void say(const struct pair *s, const void *data, size_t bytes)
{
    assert_int_equal(send(s->fd, data, bytes, MSG_NOSIGNAL), bytes);
}

/* The peer reads a frame that is here, with its payload. */
static struct frame hear(const struct pair *s, void *payload, size_t capacity)
{
    struct frame h;
    uint8_t header[WIRE_HEADER_BYTES];
    assert_int_equal(recv(s->fd, header, sizeof header, 0), sizeof header);
    assert_null(wire_get_header(header, &h));
    if (capacity) {
        assert_true(h.bytes <= capacity);
        assert_int_equal(recv(s->fd, payload, h.bytes, 0), h.bytes);
    }
    return h;
}

static int is_quiet(const struct pair *s)
{
    char byte;
    return recv(s->fd, &byte, 1, 0) < 0 && errno == EAGAIN;
}

/* ---- Frames out ---- */

static void a_frame_goes_out_in_any_two_pieces(void **state)
{
    uint8_t payload[PAYLOAD], expected[WIRE_HEADER_BYTES + PAYLOAD], got[sizeof expected];
    (void)state;
    fill(payload, PAYLOAD, 1);
    put_frame(expected, frame_of(FRAME_DATA, 5, PAYLOAD), payload);
    for (size_t first = 0; first <= sizeof expected; first++) {
        struct pair s = pair_open();
        struct message m = { .owner = &s };
        struct frame h = frame_of(FRAME_DATA, 5, PAYLOAD);
        budget = first;
        int sent = link_send(s.port, &h, payload, PAYLOAD, &m);
        assert_int_equal(sent, first == sizeof expected);
        assert_int_equal(told_count, 0); /* sending calls nothing back */
        assert_int_equal(s.port->interest, !sent);
        budget = SIZE_MAX;
        link_flush(s.link);
        assert_int_equal(told_count, !sent);
        assert_true(sent || (told[0].what == 's' && told[0].message == &m));
        assert_int_equal(recv(s.fd, got, sizeof got, 0), sizeof got);
        assert_memory_equal(got, expected, sizeof got);
        assert_true(is_quiet(&s));
        pair_close(&s);
    }
}

static void frames_go_out_in_pieces_of_any_size(void **state)
{
    enum { FRAMES = 3, ALL = FRAMES * (WIRE_HEADER_BYTES + PAYLOAD) };
    uint8_t payload[FRAMES][PAYLOAD], expected[ALL], got[ALL], *at = expected;
    (void)state;
    for (unsigned i = 0; i < FRAMES; i++) {
        fill(payload[i], PAYLOAD, i);
        at = put_frame(at, frame_of(FRAME_DATA, i, PAYLOAD), payload[i]);
    }
    for (size_t piece = 1; piece < ALL; piece += piece < 80 ? 1 : 37) {
        struct pair s = pair_open();
        struct message m = { .owner = &s };
        budget = 0;
        for (unsigned i = 0; i < FRAMES; i++) {
            struct frame h = frame_of(FRAME_DATA, i, PAYLOAD);
            assert_int_equal(link_send(s.port, &h, payload[i], PAYLOAD, &m), 0);
        }
        most_at_once = piece;
        for (size_t gone = 0; gone < ALL; gone += piece) {
            assert_int_equal(told_count, gone / (WIRE_HEADER_BYTES + PAYLOAD));
            budget = piece;
            link_flush(s.link);
            recv(s.fd, got + gone, ALL - gone, 0); /* now, as the socketpair holds only so many pieces */
        }
        assert_int_equal(told_count, FRAMES);
        assert_true(is_quiet(&s));
        assert_memory_equal(got, expected, sizeof got);
        pair_close(&s);
    }
}

static void queued_frames_keep_their_order(void **state)
{
    enum { FRAMES = 100 };
    struct pair s = pair_open();
    struct message m[FRAMES];
    uint8_t payload[FRAMES], byte;
    (void)state;
    memset(m, 0, sizeof m);
    for (int i = 0; i < FRAMES; i++) {
        struct frame h = frame_of(FRAME_DATA, (uint64_t)i, 1);
        payload[i] = (uint8_t)(i + 100);
        budget = i ? SIZE_MAX : 10; /* the first does not fit, so what could go at once must wait behind it */
        assert_int_equal(link_send(s.port, &h, &payload[i], 1, &m[i]), 0);
    }
    link_flush(s.link);
    assert_int_equal(told_count, FRAMES);
    for (int i = 0; i < FRAMES; i++) {
        assert_ptr_equal(told[i].message, &m[i]);
        assert_int_equal(hear(&s, &byte, 1).seq, i);
        assert_int_equal(byte, i + 100);
    }
    pair_close(&s);
}

/* ---- Many links ---- */

enum { PEERS = 20, LOOKS_MAX = 100000 };

static int peers[PEERS]; /* the other ends */
static int peer_count, looks;

/* The work that is waited for is done when all peers have their frame. */
static int32_t all_have_heard(const comm_work *work)
{
    uint8_t header[WIRE_HEADER_BYTES];
    int heard = 0;
    (void)work;
    for (int i = 0; i < peer_count; i++)
        heard += recv(peers[i], header, sizeof header, MSG_PEEK) == (ssize_t)sizeof header;
    assert_true(++looks < LOOKS_MAX);
    return heard == peer_count;
}

/* By a thread that never sleeps: one that sleeps has told epoll before what it wants. */
static void who_spins_writes_to_all_awaited_links(int count)
{
    static comm_host host;
    struct mesh *m = calloc(1, sizeof *m);
    host = comm__host;
    host.work_done = all_have_heard;
    comm__tcp_entry(&host);
    assert_int_equal(mesh_allocate(m, 0, count + 1, "secret"), COMM_OK);
    assert_int_equal(progress_start(m), COMM_OK);
    m->domain.peers.events = &events;
    m->waiting.spin_ns = INT64_MAX;
    peer_count = count;
    looks = 0;
    budget = 0;
    for (int i = 0; i < count; i++) {
        struct frame h = frame_of(FRAME_CTS, 1, 0);
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        peers[i] = fds[1];
        link_up(&m->links[1 + i], fds[0]);
        link_send(&m->links[1 + i].port, &h, NULL, 0, NULL);
    }
    assert_int_equal(m->domain.peers.active_count, count);
    budget = most_at_once = SIZE_MAX;
    assert_int_equal(progress_wait(m, NULL, INT64_MAX), COMM_OK);
    for (int i = 0; i < count; i++) {
        m->links[1 + i].port.state = PORT_LOST;
        link_sweep(&m->links[1 + i].port);
        close(peers[i]);
    }
    mesh_close(m, 0);
}

static void queued_frames_go_out_on_few_links_and_on_many(void **state)
{
    (void)state;
    who_spins_writes_to_all_awaited_links(2);
    who_spins_writes_to_all_awaited_links(PEERS);
}

/* ---- Bytes in ---- */

static void bytes_come_in_any_two_pieces(void **state)
{
    uint8_t payload[PAYLOAD], stream[4 * WIRE_HEADER_BYTES + 2 * PAYLOAD];
    (void)state;
    fill(payload, PAYLOAD, 3);
    uint8_t *at = put_frame(stream, frame_of(FRAME_EAGER, 1, PAYLOAD), payload);
    at = put_frame(at, frame_of(FRAME_CTS, 2, 0), NULL);
    at = put_frame(at, frame_of(FRAME_FAIL, 3, 11), "in a breath");
    at = put_frame(at, frame_of(FRAME_DATA, 4, 5), "hello");
    size_t all = (size_t)(at - stream);
    for (size_t first = 1; first < all; first++) {
        struct pair s = pair_open();
        say(&s, stream, first);
        assert_int_equal(link_read(s.port), 1);
        assert_int_equal(told_count >= 1, first >= WIRE_HEADER_BYTES);
        assert_int_equal(told_count >= 2, first >= WIRE_HEADER_BYTES + PAYLOAD);
        if (told_count >= 2 && told_count < 5)
            assert_memory_equal(received, payload, PAYLOAD);
        say(&s, stream + first, all - first);
        assert_int_equal(link_read(s.port), 1);
        assert_string_equal(story(), "b1 c1 f2 f3 b4 c4");
        assert_string_equal(told[3].text, "in a breath");
        assert_memory_equal(received, "hello", 5);
        assert_memory_equal(received + 5, payload + 5, PAYLOAD - 5);
        assert_int_equal(received[PAYLOAD], 0xee);
        assert_int_equal(link_read(s.port), 0);
        pair_close(&s);
    }
}

static void bytes_come_one_by_one(void **state)
{
    uint8_t payload[PAYLOAD], stream[2 * WIRE_HEADER_BYTES + PAYLOAD];
    struct pair s = pair_open();
    (void)state;
    fill(payload, PAYLOAD, 4);
    put_frame(put_frame(stream, frame_of(FRAME_DATA, 1, PAYLOAD), payload), frame_of(FRAME_RTS, 2, 7), NULL);
    for (size_t i = 0; i < sizeof stream; i++) {
        say(&s, stream + i, 1);
        assert_int_equal(link_read(s.port), 1);
    }
    assert_string_equal(story(), "b1 c1 f2");
    assert_memory_equal(received, payload, PAYLOAD);
    pair_close(&s);
}

/* More than the read buffer holds, and always with a begun frame at its end. The first frame is longer by a text, so
 * that no header begins where the buffer ends. */
static void the_read_buffer_never_fills_up(void **state)
{
    enum { FRAMES = EVENTS_MAX, PIECE = WIRE_HEADER_BYTES, TEXT = 3 };
    static uint8_t stream[FRAMES * WIRE_HEADER_BYTES + TEXT];
    struct pair s = pair_open();
    (void)state;
    _Static_assert((int)sizeof stream > (int)TCP_RX_BYTES, "it would fit");
    uint8_t *end = put_frame(stream, frame_of(FRAME_FAIL, 0, TEXT), "odd");
    for (size_t i = 1; i < FRAMES; i++)
        end = put_frame(end, frame_of(FRAME_CTS, i, 0), NULL);
    say(&s, stream, 1);
    for (size_t at = 1; at < sizeof stream; at += PIECE) {
        say(&s, stream + at, sizeof stream - at < PIECE ? sizeof stream - at : PIECE);
        link_read(s.port);
    }
    assert_int_equal(s.port->state, PORT_UP);
    assert_int_equal(told_count, FRAMES);
    for (size_t i = 0; i < FRAMES; i++)
        assert_int_equal(told[i].seq, i);
    pair_close(&s);
}

static void a_header_without_sense_loses_the_peer(void **state)
{
    (void)state;
    for (size_t broken = 0; broken < 5; broken++) {
        struct pair s = pair_open();
        uint8_t stream[2 * WIRE_HEADER_BYTES];
        put_frame(put_frame(stream, frame_of(FRAME_CTS, 1, 0), NULL), frame_of(FRAME_CTS, 2, 0), NULL);
        stream[WIRE_HEADER_BYTES + broken] ^= 0x40; /* the magic's bytes, the type */
        say(&s, stream, sizeof stream);
        link_read(s.port);
        assert_string_equal(story(), "f1");
        assert_int_equal(s.port->state, PORT_LOST);
        assert_int_equal(s.port->lost_status, COMM_ERR_PROTOCOL);
        assert_non_null(strstr(s.port->lost_text, broken < 4 ? "no frame" : "unknown type"));
        assert_true(s.mesh->domain.peers.lost_pending);
        pair_close(&s);
    }
}

/* The receive is shorter than what comes: the rest is dropped, and what follows is understood. */
static void a_payload_may_be_longer_than_its_place(void **state)
{
    enum { LONG = 2000, CAPACITY = 500 };
    uint8_t payload[LONG], stream[2 * WIRE_HEADER_BYTES + LONG];
    (void)state;
    fill(payload, LONG, 5);
    put_frame(put_frame(stream, frame_of(FRAME_DATA, 1, LONG), payload), frame_of(FRAME_CTS, 2, 0), NULL);
    for (size_t first = 1; first < sizeof stream; first += 7) {
        struct pair s = pair_open();
        received_capacity = CAPACITY;
        say(&s, stream, first);
        link_read(s.port);
        say(&s, stream + first, sizeof stream - first);
        link_read(s.port);
        assert_string_equal(story(), "b1 c1 f2");
        assert_memory_equal(received, payload, CAPACITY);
        for (size_t i = CAPACITY; i < sizeof received; i++)
            assert_int_equal(received[i], 0xee);
        pair_close(&s);
    }
}

/* ---- Credit ---- */

static void eager_comes(const struct pair *s, uint64_t seq, size_t bytes)
{
    static uint8_t stream[WIRE_HEADER_BYTES + 4096], payload[4096];
    uint8_t *end = put_frame(stream, frame_of(FRAME_EAGER, seq, bytes), payload);
    say(s, stream, (size_t)(end - stream));
    link_read(s->port);
}

static void any_frame_gives_credit_back(void **state)
{
    struct pair s = pair_open();
    struct frame h = frame_of(FRAME_CTS, 1, 0);
    (void)state;
    eager_comes(&s, 1, 100);
    assert_int_equal(s.port->eager_held, 100 + PORT_FRAME_COST);
    port_consumed(s.port, 100);
    link_flush(s.link);
    assert_true(is_quiet(&s)); /* so little is not worth a frame of its own */
    link_send(s.port, &h, NULL, 0, NULL);
    assert_int_equal(hear(&s, NULL, 0).credit, 100 + PORT_FRAME_COST);
    assert_int_equal(s.port->eager_held, 0);
    link_send(s.port, &h, NULL, 0, NULL);
    assert_int_equal(hear(&s, NULL, 0).credit, 0);
    pair_close(&s);
}

static void much_credit_gets_a_frame_unless_others_wait(void **state)
{
    struct pair s = pair_open();
    struct frame h = frame_of(FRAME_CTS, 1, 0), got;
    uint32_t owed = 0;
    (void)state;
    for (; owed < PORT_CREDIT_WINDOW / 4; owed += 4096 + PORT_FRAME_COST) {
        assert_true(is_quiet(&s));
        eager_comes(&s, 1, 4096);
        port_consumed(s.port, 4096);
    }
    got = hear(&s, NULL, 0);
    assert_true(got.type == FRAME_CREDIT && got.credit == owed);
    budget = 0;
    link_send(s.port, &h, NULL, 0, NULL);
    for (owed = 0; owed < PORT_CREDIT_WINDOW / 4; owed += 4096 + PORT_FRAME_COST) {
        eager_comes(&s, 1, 4096);
        port_consumed(s.port, 4096);
    }
    link_send(s.port, &h, NULL, 0, NULL);
    budget = SIZE_MAX;
    link_flush(s.link);
    assert_int_equal(hear(&s, NULL, 0).type, FRAME_CTS);
    got = hear(&s, NULL, 0);
    assert_true(got.type == FRAME_CTS && got.credit == owed);
    assert_true(is_quiet(&s));
    pair_close(&s);
}

static void credit_that_comes_counts_once_and_within_the_window(void **state)
{
    struct pair s = pair_open();
    struct frame h = frame_of(FRAME_CTS, 1, 0);
    uint8_t bytes[WIRE_HEADER_BYTES];
    (void)state;
    port_spend(s.port, 1000);
    h.credit = 1000 + PORT_FRAME_COST;
    put_frame(bytes, h, NULL);
    say(&s, bytes, sizeof bytes);
    link_read(s.port);
    assert_int_equal(s.port->credit, PORT_CREDIT_WINDOW);
    assert_int_equal(s.port->state, PORT_UP);
    say(&s, bytes, sizeof bytes);
    link_read(s.port);
    assert_string_equal(story(), "f1");
    assert_int_equal(s.port->lost_status, COMM_ERR_PROTOCOL);
    pair_close(&s);
}

/* ---- Groups that are over ---- */

static void a_begun_frame_of_a_forgotten_group_is_finished(void **state)
{
    (void)state;
    for (size_t first = 1; first < WIRE_HEADER_BYTES + PAYLOAD; first += 9) {
        struct pair s = pair_open();
        int ours, others;
        struct message over = { .owner = &ours }, goes_on = { .owner = &others };
        struct frame h = frame_of(FRAME_DATA, 1, PAYLOAD);
        uint8_t payload[PAYLOAD], expected[PAYLOAD], got[PAYLOAD];
        fill(payload, PAYLOAD, 6);
        memcpy(expected, payload, PAYLOAD);
        budget = first;
        link_send(s.port, &h, payload, PAYLOAD, &over);
        h.seq = 2;
        link_send(s.port, &h, payload, PAYLOAD, &over);
        h = frame_of(FRAME_EAGER, 3, 1);
        port_spend(s.port, 1);
        link_send(s.port, &h, "x", 1, &over);
        h = frame_of(FRAME_DATA, 4, 1);
        link_send(s.port, &h, "y", 1, &goes_on);
        assert_true(link_has_queued(s.link, &ours, 1) && !link_has_queued(s.link, &others, 1));
        link_forget(s.port, &ours);
        memset(payload, 0xdd, PAYLOAD); /* the group's memory is the user's again */
        assert_true(!link_has_queued(s.link, &ours, 0) && link_has_queued(s.link, &others, 0));
        assert_int_equal(s.port->credit, PORT_CREDIT_WINDOW); /* that was not spent after all */
        h = frame_of(FRAME_CTS, 5, 0);
        link_send(s.port, &h, NULL, 0, NULL);
        budget = SIZE_MAX;
        link_flush(s.link);
        assert_int_equal(hear(&s, got, sizeof got).seq, 1);
        assert_memory_equal(got, expected, PAYLOAD);
        assert_int_equal(hear(&s, got, sizeof got).seq, 4);
        assert_int_equal(got[0], 'y');
        assert_int_equal(hear(&s, NULL, 0).seq, 5);
        assert_true(is_quiet(&s));
        assert_int_equal(told_count, 1);
        assert_ptr_equal(told[0].message, &goes_on);
        pair_close(&s);
    }
}

static void what_follows_a_forgotten_frame_is_sent(void **state)
{
    struct pair s = pair_open();
    int ours;
    struct message over = { .owner = &ours };
    struct frame h = frame_of(FRAME_CTS, 1, 0);
    (void)state;
    budget = 1;
    link_send(s.port, &h, NULL, 0, NULL);
    h = frame_of(FRAME_DATA, 2, 1);
    link_send(s.port, &h, "x", 1, &over);
    link_forget(s.port, &ours);
    h = frame_of(FRAME_CTS, 3, 0);
    link_send(s.port, &h, NULL, 0, NULL);
    budget = SIZE_MAX;
    link_flush(s.link);
    assert_int_equal(hear(&s, NULL, 0).seq, 1);
    assert_int_equal(hear(&s, NULL, 0).seq, 3);
    assert_true(is_quiet(&s));
    pair_close(&s);
}

static void a_payload_that_comes_for_a_forgotten_group_is_dropped(void **state)
{
    uint8_t payload[PAYLOAD], stream[2 * WIRE_HEADER_BYTES + PAYLOAD];
    (void)state;
    fill(payload, PAYLOAD, 7);
    put_frame(put_frame(stream, frame_of(FRAME_DATA, 1, PAYLOAD), payload), frame_of(FRAME_CTS, 2, 0), NULL);
    for (size_t first = WIRE_HEADER_BYTES; first < WIRE_HEADER_BYTES + PAYLOAD; first++) {
        struct pair s = pair_open();
        int ours, others;
        struct message m = { .owner = &ours };
        receive = &m;
        say(&s, stream, first);
        link_read(s.port);
        link_forget(s.port, &others);
        assert_ptr_equal(s.port->sink.message, &m);
        link_forget(s.port, &ours);
        memset(received, 0xee, sizeof received);
        say(&s, stream + first, sizeof stream - first);
        link_read(s.port);
        for (size_t i = 0; i < sizeof received; i++)
            assert_int_equal(received[i], 0xee);
        assert_string_equal(story(), "b1 c1 f2");
        assert_null(told[1].message);
        pair_close(&s);
    }
}

/* ---- Ends ---- */

static void after_bye_nothing_goes_out(void **state)
{
    struct pair s = pair_open();
    struct frame h = frame_of(FRAME_CTS, 1, 0);
    uint8_t bytes[WIRE_HEADER_BYTES], byte;
    (void)state;
    link_leave(s.link);
    assert_int_equal(link_send(s.port, &h, NULL, 0, NULL), 1);
    assert_int_equal(hear(&s, NULL, 0).type, FRAME_BYE);
    assert_int_equal(recv(s.fd, &byte, 1, 0), 0); /* the end, not silence */
    put_frame(bytes, frame_of(FRAME_CTS, 7, 0), NULL);
    say(&s, bytes, sizeof bytes);
    put_frame(bytes, frame_of(FRAME_BYE, 8, 0), NULL);
    say(&s, bytes, sizeof bytes);
    link_read(s.port); /* what the peer says before its own BYE is taken in */
    assert_string_equal(story(), "f7 f8");
    assert_int_equal(s.port->state, PORT_LEFT);
    link_sweep(s.port);
    assert_true(s.link->fd < 0);
    pair_close(&s);
}

static void bye_comes_after_what_is_queued(void **state)
{
    struct pair s = pair_open();
    struct frame h = frame_of(FRAME_CTS, 1, 0);
    (void)state;
    budget = 3;
    link_send(s.port, &h, NULL, 0, NULL);
    link_leave(s.link);
    budget = SIZE_MAX;
    link_flush(s.link);
    assert_int_equal(hear(&s, NULL, 0).seq, 1);
    assert_int_equal(hear(&s, NULL, 0).type, FRAME_BYE);
    assert_int_equal(s.port->state, PORT_UP); /* it reads until the peer says it too */
    pair_close(&s);
}

/* The peer says why and is gone; only then do we send. */
static void what_a_peer_said_before_it_went_is_heard(void **state)
{
    struct pair s = pair_open();
    struct frame h = frame_of(FRAME_CTS, 1, 0);
    uint8_t bytes[WIRE_HEADER_BYTES + 3];
    (void)state;
    put_frame(bytes, frame_of(FRAME_FAIL, 4, 3), "why");
    say(&s, bytes, sizeof bytes);
    close(s.fd);
    s.fd = -1;
    assert_int_equal(link_send(s.port, &h, NULL, 0, NULL), 0);
    assert_int_equal(s.port->state, PORT_UP); /* not lost yet */
    assert_true(s.mesh->domain.peers.lost_pending);
    link_sweep(s.port);
    assert_string_equal(story(), "f4");
    assert_string_equal(told[0].text, "why");
    assert_int_equal(s.port->state, PORT_LOST);
    assert_int_equal(s.port->lost_status, COMM_ERR_PEER_LOST);
    assert_true(s.link->fd < 0 && !s.link->tx_head);
    assert_int_equal(link_send(s.port, &h, NULL, 0, NULL), 0);
    assert_null(s.link->tx_head);
    pair_close(&s);
}

static void replies_are_bounded(void **state)
{
    enum { REPLIES = 256 }; /* link.c's REPLIES_MAX */
    struct pair s = pair_open();
    struct frame h = frame_of(FRAME_ANSWER, 1, 0);
    char text[8];
    (void)state;
    for (int round = 0; round < 2; round++) {
        budget = 0;
        for (int i = 0; i < REPLIES; i++)
            link_send_text(s.port, &h, "busy", 1);
        for (int i = 0; i < REPLIES; i++)
            link_send_text(s.port, &h, "news", 0); /* not a reply: not counted */
        assert_int_equal(s.port->state, PORT_UP);
        assert_int_equal(s.link->replies, REPLIES);
        if (round)
            break;
        budget = SIZE_MAX;
        for (int i = 0; i < 2 * REPLIES; i++) { /* read by read, as the socketpair holds only so many */
            link_flush(s.link);
            assert_int_equal(hear(&s, text, sizeof text).bytes, 4);
            assert_memory_equal(text, i < REPLIES ? "busy" : "news", 4);
        }
        assert_int_equal(s.link->replies, 0);
    }
    link_send_text(s.port, &h, "busy", 1);
    assert_int_equal(s.port->state, PORT_LOST);
    assert_int_equal(s.port->lost_status, COMM_ERR_PROTOCOL);
    pair_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_goes_out_in_any_two_pieces),
        cmocka_unit_test(frames_go_out_in_pieces_of_any_size),
        cmocka_unit_test(queued_frames_keep_their_order),
        cmocka_unit_test(queued_frames_go_out_on_few_links_and_on_many),
        cmocka_unit_test(bytes_come_in_any_two_pieces),
        cmocka_unit_test(bytes_come_one_by_one),
        cmocka_unit_test(the_read_buffer_never_fills_up),
        cmocka_unit_test(a_header_without_sense_loses_the_peer),
        cmocka_unit_test(a_payload_may_be_longer_than_its_place),
        cmocka_unit_test(any_frame_gives_credit_back),
        cmocka_unit_test(much_credit_gets_a_frame_unless_others_wait),
        cmocka_unit_test(credit_that_comes_counts_once_and_within_the_window),
        cmocka_unit_test(a_begun_frame_of_a_forgotten_group_is_finished),
        cmocka_unit_test(what_follows_a_forgotten_frame_is_sent),
        cmocka_unit_test(a_payload_that_comes_for_a_forgotten_group_is_dropped),
        cmocka_unit_test(after_bye_nothing_goes_out),
        cmocka_unit_test(bye_comes_after_what_is_queued),
        cmocka_unit_test(what_a_peer_said_before_it_went_is_heard),
        cmocka_unit_test(replies_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

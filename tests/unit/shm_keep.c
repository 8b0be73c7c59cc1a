/* Payloads that are kept in the ring until they are read: they stay where they came, the writer is told of nothing
 * meanwhile but never runs out of space, and what is needed elsewhere goes to its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/duplex.h"
#include "backend_shm/events.h"
#include "backend_shm/keep.h"
#include "core/exec/groups.h"
#include "core/exec/say.h"

enum { MESSAGES_MAX = 64, BYTES_MAX = 12000 };

static struct domain domain;
static struct fabric fabric;
static struct duplex pair;
static struct duplex *up[2];
static struct ring_out theirs; /* the peer's end of what comes here */
static struct segment peer_segment;
static int begun, complete;
static int keeps; /* whether messages that begin may be kept */

/* What message i is for. */
static struct kept kept[MESSAGES_MAX];
static struct message messages[MESSAGES_MAX];
static uint8_t place[MESSAGES_MAX][BYTES_MAX];
static uint8_t payload[MESSAGES_MAX][BYTES_MAX];

static void on_begins(struct port *p, const struct frame *h)
{
    struct sink *s = &p->sink;
    int i = begun++;
    memset(place[i], 0xee, sizeof place[i]);
    s->kind = SINK_COPY;
    s->dst = place[i];
    s->dst_bytes = (size_t)h->bytes;
    s->message = &messages[i];
    kept[i] = (struct kept){ 0 };
    s->kept = keeps ? &kept[i] : NULL;
}

static void on_complete(struct port *p, const struct frame *h)
{
    (void)p, (void)h;
    complete++;
}

static void on_frame(struct port *p, const struct frame *h, const char *text)
{
    (void)p, (void)h, (void)text;
}

static void on_sent(struct message *m)
{
    (void)m;
}

static int64_t host_param_int(const void *options, const char *backend, const char *name)
{
    (void)options, (void)backend, (void)name;
    return 0;
}

static void host_log(int32_t level, const char *text)
{
    (void)level, (void)text;
}

static int32_t host_log_wanted(int32_t level)
{
    (void)level;
    return 1;
}

static const comm_host host = { .struct_bytes = sizeof host, .log = host_log, .log_wanted = host_log_wanted,
                                .param_int = host_param_int };
static const struct port_events events = { on_begins, on_complete, on_frame, on_sent };
static const struct port_ops operations = { .send = duplex_send, .give_credit = duplex_give_credit,
                                            .take_credit = duplex_take_credit, .read = duplex_read,
                                            .let_go = keep_let_go, .forget = duplex_forget };
static const uint64_t salts[2] = { 1000, 2000 };
static int owner, other_owner;

static int open_pair(void **state)
{
    size_t bytes = SEGMENT_RING_MIN;
    int fd = segment_create(&bytes, NULL);
    (void)state;
    exec_host = &host;
    begun = complete = 0;
    keeps = 1;
    memset(&domain, 0, sizeof domain);
    fabric = (struct fabric){ .domain = &domain, .up = up };
    memset(&pair, 0, sizeof pair);
    assert_true(domain_init(&domain, "shm", 0, 2, &events));
    assert_int_equal(events_open(&fabric), COMM_OK);
    port_init(&pair.port, &operations, &domain.peers, 1);
    pair.fabric = &fabric;
    pair.tx_tail = &pair.tx_head;
    pair.bell = pair.process.fd = -1;
    pair.watch.fd = eventfd(0, EFD_CLOEXEC); /* it never ends */
    assert_int_equal(segment_map(&pair.segment, fd, bytes), 0);
    assert_int_equal(segment_map(&peer_segment, fd, bytes), 0);
    close(fd);
    duplex_up(&pair, salts);
    ring_open_out(&theirs, &peer_segment.shared[1], peer_segment.ring[1], bytes, salts[1], pair.in.head[0]);
    for (int i = 0; i < MESSAGES_MAX; i++) {
        messages[i].owner = &owner;
        for (int k = 0; k < BYTES_MAX; k++)
            payload[i][k] = (uint8_t)(k * 7 + k / 256 + i);
    }
    return 0;
}

static void close_port(void)
{
    if (pair.segment.shared)
        duplex_close(&pair);
}

static int close_pair(void **state)
{
    (void)state;
    close_port();
    duplex_finish(&pair);
    duplex_pool_finish(&fabric);
    events_close(&fabric);
    domain_finish(&domain);
    segment_unmap(&peer_segment);
    return 0;
}

/* ---- The peer ---- */

static int sent;

static void give_credit(void)
{
    pair.port.credit_owed = 0;
    pair.port.eager_held = 0;
}

/* Message `sent` in pieces of so many bytes; the first is `first` long. 0: there is no space. */
static int send_cut(size_t bytes, size_t first, size_t piece)
{
    const struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_REDUCE, .group = 7, .bytes = bytes };
    size_t at = first < bytes ? first : bytes;
    give_credit();
    if (ring_free(&theirs, ring_frame_lines((uint32_t)at)) < (int64_t)ring_frame_lines((uint32_t)at))
        return 0;
    ring_put_frame(&theirs, ring_key(&h), &h, payload[sent], (uint32_t)at);
    while (at < bytes) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        duplex_read(&pair.port);
        if (ring_free(&theirs, 1 + ring_payload_lines((uint32_t)n)) < (int64_t)(1 + ring_payload_lines((uint32_t)n)))
            return 0;
        ring_put_more(&theirs, payload[sent] + at, (uint32_t)n);
        at += n;
    }
    sent++;
    return 1;
}

static int send_next(size_t bytes)
{
    size_t piece = ring_piece_bytes(theirs.capacity);
    return send_cut(bytes, piece, piece);
}

static void receive(void)
{
    duplex_read(&pair.port);
    assert_int_equal(pair.port.state, PORT_UP);
    assert_int_equal(complete, sent);
}

/* ---- What is seen ---- */

static int is_in_place(int i, size_t bytes)
{
    return memcmp(place[i], payload[i], bytes) == 0;
}

static int is_untouched(int i)
{
    for (int k = 0; k < BYTES_MAX; k++)
        if (place[i][k] != 0xee)
            return 0;
    return 1;
}

/* All of it lies where it came, in pieces of one length. */
static int is_kept(int i, size_t bytes)
{
    const struct kept *k = &kept[i];
    size_t at = 0;
    for (int n = 0; n < k->pieces; n++) {
        size_t here = bytes - at < k->piece_bytes ? bytes - at : k->piece_bytes;
        if (memcmp(k->piece[n], payload[i] + at, here) != 0)
            return 0;
        at += here;
    }
    return k->pieces && at == bytes && k->bytes == bytes;
}

static int writer_knows_all(void)
{
    for (unsigned lane = 0; lane < RING_LANES; lane++)
        if (atomic_load(&pair.in.shared->head[lane]) != pair.in.head[lane])
            return 0;
    return 1;
}

/* ---- Tests ---- */

static void a_payload_stays_until_it_is_let_go(void **state)
{
    static const size_t lengths[] = { 16, 17, 39, 40, 41, 64, 100, 1000, 2047, 2048 };
    (void)state;
    sent = 0;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        int i = sent;
        assert_true(send_next(lengths[l]));
        receive();
        assert_true(is_kept(i, lengths[l]));
        assert_true(is_untouched(i));
        assert_false(writer_knows_all());
        keep_let_go(&pair.port, &kept[i]);
        assert_int_equal(kept[i].pieces, 0);
        assert_null(pair.kept);
        assert_true(writer_knows_all());
    }
}

/* A source is read in parts of one length, and an element is not cut. */
static void a_long_payload_stays_in_its_pieces(void **state)
{
    const size_t piece = ring_piece_bytes(theirs.capacity);
    (void)state;
    sent = 0;
    for (size_t bytes = piece; bytes <= 3 * piece; bytes += piece / 2 + 1) {
        int i = sent;
        assert_true(send_next(bytes));
        receive();
        assert_true(is_kept(i, bytes));
        assert_true(bytes == piece || kept[i].piece_bytes == piece);
        keep_let_go(&pair.port, &kept[i]);
    }
    assert_true(writer_knows_all());
}

static void what_is_too_short_or_may_not_stay_goes_to_its_place(void **state)
{
    (void)state;
    sent = 0;
    assert_true(send_next(15)); /* less than the longest element */
    receive();
    assert_true(is_in_place(0, 15));
    keeps = 0;
    assert_true(send_next(1000));
    receive();
    assert_true(is_in_place(1, 1000));
    assert_null(pair.kept);
    assert_true(writer_knows_all());
}

/* As one who does not cut as this rank does. */
static void a_payload_in_other_pieces_goes_to_its_place(void **state)
{
    static const struct {
        size_t bytes, first, more;
    } cuts[] = { { 1000, 100, 200 }, { 1000, 1, 100 }, { 1000, 512, 100 }, { 1000, 256, 512 }, { 1000, 64, 100 },
                 { 1000, 8, 64 }, { 700, 100, 100 }, { 3000, 1024, 1025 }, { 4000, 256, 256 }, { 1040, 512, 527 } };
    (void)state;
    sent = 0;
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        int i = sent;
        assert_true(send_cut(cuts[c].bytes, cuts[c].first, cuts[c].more));
        receive();
        assert_true(is_in_place(i, cuts[c].bytes));
        assert_int_equal(kept[i].pieces, 0);
        assert_null(pair.kept);
        assert_true(writer_knows_all());
    }
}

/* However many are kept, another message has space, if this rank reads. */
static void the_writer_never_runs_out_of_space(void **state)
{
    static const size_t lengths[] = { 100, 700, 2048, 5000 };
    (void)state;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        begun = complete = sent = 0;
        while (sent < MESSAGES_MAX) {
            assert_true(send_next(lengths[l]));
            receive();
            duplex_read(&pair.port); /* it finds nothing, and that much is kept */
        }
        for (int i = 0; i < sent; i++) {
            assert_true(kept[i].pieces ? is_kept(i, lengths[l]) && is_untouched(i) : is_in_place(i, lengths[l]));
            if (kept[i].pieces)
                keep_let_go(&pair.port, &kept[i]);
        }
        assert_true(writer_knows_all());
    }
}

/* Others that come meanwhile are not kept: they count all the same. */
static void what_is_read_past_it_takes_its_space(void **state)
{
    (void)state;
    sent = 0;
    assert_true(send_next(100));
    receive();
    keeps = 0;
    while (sent < MESSAGES_MAX) {
        assert_true(send_next(1000));
        receive();
        duplex_read(&pair.port);
    }
    assert_int_equal(kept[0].pieces, 0);
    assert_true(is_in_place(0, 100));
    for (int i = 1; i < sent; i++)
        assert_true(is_in_place(i, 1000));
}

static void a_writer_that_waits_for_space_is_woken(void **state)
{
    (void)state;
    sent = 0;
    assert_true(send_next(500));
    receive();
    atomic_store(&pair.in.shared->waits, 1);
    keep_let_go(&pair.port, &kept[0]);
    assert_int_equal(atomic_load(&pair.in.shared->waits), 0);
}

static void they_are_let_go_in_any_order(void **state)
{
    static const int orders[][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 2, 0 }, { 1, 0, 2 } };
    (void)state;
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        begun = complete = sent = 0;
        for (int i = 0; i < 3; i++)
            assert_true(send_next(500));
        receive();
        for (int i = 0; i < 3; i++) {
            assert_false(writer_knows_all());
            assert_true(is_kept(orders[o][i], 500));
            keep_let_go(&pair.port, &kept[orders[o][i]]);
        }
        assert_true(writer_knows_all());
    }
}

static void the_writer_is_told_up_to_the_oldest(void **state)
{
    (void)state;
    sent = 0;
    for (int i = 0; i < 3; i++)
        assert_true(send_next(500));
    receive();
    keep_let_go(&pair.port, &kept[1]);
    for (int i = 0; i < RING_LANES; i++)
        assert_int_equal(atomic_load(&pair.in.shared->head[i]), kept[0].from[i]);
    keep_let_go(&pair.port, &kept[0]);
    for (int i = 0; i < RING_LANES; i++)
        assert_int_equal(atomic_load(&pair.in.shared->head[i]), kept[2].from[i]);
    assert_true(pair.in.keeps);
    assert_true(send_next(500));
    receive();
    assert_true(is_kept(2, 500) && is_kept(3, 500));
    keep_let_go(&pair.port, &kept[2]);
    keep_let_go(&pair.port, &kept[3]);
    assert_true(writer_knows_all());
}

/* What is done with at once, beside the port's reading, and then this rank sleeps. */
static void what_is_taken_at_once_takes_its_space_too(void **state)
{
    const struct ring_record *record;
    int looked = 0;
    (void)state;
    sent = 0;
    assert_true(send_next(1000));
    receive();
    for (int i = 1; i < MESSAGES_MAX; i++) {
        assert_true(send_next(1000));
        assert_int_equal(ring_look(&pair.in, &record), RING_FRAME);
        duplex_took(&pair, FRAME_EAGER, 1000, 0);
        if (duplex_has_news(&pair)) {
            looked++;
            duplex_read(&pair.port);
        }
    }
    assert_int_equal(looked, 1);
    assert_true(is_in_place(0, 1000));
    assert_null(pair.kept);
    assert_true(writer_knows_all());
}

/* A frame that gives back more credit than there is. It has a payload, too, which is for nobody. */
static void send_refused(size_t bytes)
{
    const struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_REDUCE, .group = 7, .bytes = bytes,
                             .credit = 0x7fffffff };
    ring_put_frame(&theirs, ring_key(&h), &h, payload[1], (uint32_t)bytes);
    duplex_read(&pair.port);
    assert_int_equal(pair.port.state, PORT_LOST);
}

static void what_is_over_is_not_looked_at(void **state)
{
    (void)state;
    sent = 0;
    assert_true(send_next(500));
    receive();
    keep_let_go(&pair.port, &kept[0]);
    kept[0].pieces = 1; /* its memory is another's now */
    send_refused(500);
    assert_int_equal(kept[0].pieces, 1);
}

static void a_peer_that_lies_writes_nowhere(void **state)
{
    const size_t piece = ring_piece_bytes(theirs.capacity);
    (void)state;
    sent = 0;
    assert_true(send_next(2 * piece));
    receive();
    send_refused(piece);
    close_port();
    assert_true(is_in_place(0, 2 * piece));
    for (size_t i = 2 * piece; i < BYTES_MAX; i++)
        assert_int_equal(place[0][i], 0xee);
}

/* An operation that has ended: its memory is not written, and what others keep stays. */
static void what_an_owner_forgets_is_gone(void **state)
{
    (void)state;
    sent = 0;
    messages[1].owner = &other_owner;
    for (int i = 0; i < 3; i++)
        assert_true(send_next(500));
    receive();
    duplex_forget(&pair.port, &owner);
    assert_true(is_untouched(0) && is_untouched(2));
    assert_false(writer_knows_all());
    assert_true(is_kept(1, 500));
    duplex_forget(&pair.port, &other_owner);
    assert_true(is_untouched(1));
    assert_null(pair.kept);
    assert_true(writer_knows_all());
}

/* In the middle of a message: what comes of it afterwards is not kept. */
static void half_a_payload_is_forgotten(void **state)
{
    const size_t piece = ring_piece_bytes(theirs.capacity);
    const struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_REDUCE, .group = 7, .bytes = 2 * piece };
    (void)state;
    sent = 0;
    ring_put_frame(&theirs, ring_key(&h), &h, payload[0], (uint32_t)piece);
    duplex_read(&pair.port);
    assert_int_equal(kept[0].pieces, 1);
    duplex_forget(&pair.port, &owner);
    assert_null(pair.kept);
    kept[0].pieces = 1; /* its memory is another's now */
    ring_put_more(&theirs, payload[0] + piece, (uint32_t)piece);
    duplex_read(&pair.port);
    assert_int_equal(pair.port.state, PORT_UP);
    assert_int_equal(complete, 1);
    assert_null(pair.kept);
    assert_true(is_untouched(0));
    assert_true(writer_knows_all());
}

/* The peer has gone, and the operation can do without more of it. */
static void they_are_in_their_places_once_the_memory_is_gone(void **state)
{
    (void)state;
    sent = 0;
    assert_true(send_next(500));
    assert_true(send_next(5000));
    receive();
    assert_true(is_kept(0, 500) && is_kept(1, 5000));
    close_port();
    assert_true(is_in_place(0, 500) && is_in_place(1, 5000));
    assert_int_equal(kept[0].pieces + kept[1].pieces, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_payload_stays_until_it_is_let_go),
        TEST(a_long_payload_stays_in_its_pieces),
        TEST(what_is_too_short_or_may_not_stay_goes_to_its_place),
        TEST(a_payload_in_other_pieces_goes_to_its_place),
        TEST(the_writer_never_runs_out_of_space),
        TEST(what_is_read_past_it_takes_its_space),
        TEST(a_writer_that_waits_for_space_is_woken),
        TEST(they_are_let_go_in_any_order),
        TEST(the_writer_is_told_up_to_the_oldest),
        TEST(what_is_taken_at_once_takes_its_space_too),
        TEST(a_peer_that_lies_writes_nowhere),
        TEST(what_is_over_is_not_looked_at),
        TEST(what_an_owner_forgets_is_gone),
        TEST(half_a_payload_is_forgotten),
        TEST(they_are_in_their_places_once_the_memory_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

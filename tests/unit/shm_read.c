/* What a rank takes in from a ring, and what it leaves there: no more than is awaited, and credit when it is short of
 * it. */
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
#include "core/exec/groups.h"
#include "core/exec/say.h"

static struct domain domain;
static struct fabric fabric;
static struct duplex pair;
static struct duplex *up[2];
static struct ring_out theirs; /* the peer's end of what comes here */
static struct segment peer_segment;
static int begun, complete, told; /* messages, and frames without one */
static uint8_t received[1000];

/* Each thing that is awaited is one message, or one frame. */
static void awaited_came(struct port *p)
{
    if (p->interest)
        port_interest(p, -1);
}

static int is_awaited_no_more_at_begin;

static void on_begins(struct port *p, const struct frame *h)
{
    begun++;
    p->sink.kind = SINK_COPY;
    p->sink.dst = received;
    p->sink.dst_bytes = (size_t)h->bytes;
    if (is_awaited_no_more_at_begin)
        awaited_came(p);
}

static void on_complete(struct port *p, const struct frame *h)
{
    (void)h;
    complete++;
    if (!is_awaited_no_more_at_begin)
        awaited_came(p);
}

static void on_frame(struct port *p, const struct frame *h, const char *text)
{
    (void)text;
    told++;
    if (h->type != FRAME_CREDIT)
        awaited_came(p);
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
                                            .take_credit = duplex_take_credit, .read = duplex_read };
static const uint64_t salts[2] = { 1000, 2000 };

static int open_pair(void **state)
{
    size_t bytes = SEGMENT_RING_MIN;
    int fd = segment_create(&bytes, NULL);
    (void)state;
    exec_host = &host;
    begun = complete = told = is_awaited_no_more_at_begin = 0;
    memset(&domain, 0, sizeof domain);
    fabric = (struct fabric){ .domain = &domain, .up = up };
    memset(&pair, 0, sizeof pair);
    assert_true(domain_init(&domain, "shm", 0, 2, &events));
    domain.shares_cores = 1;
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
    return 0;
}

static int close_pair(void **state)
{
    (void)state;
    while (pair.port.interest)
        port_interest(&pair.port, -1);
    duplex_close(&pair);
    duplex_finish(&pair);
    duplex_pool_finish(&fabric);
    events_close(&fabric);
    domain_finish(&domain);
    segment_unmap(&peer_segment);
    return 0;
}

static struct frame message(size_t bytes)
{
    return (struct frame){ .type = FRAME_EAGER, .kind = COMM_OP_REDUCE, .group = 7, .bytes = bytes };
}

static void peer_sends(int messages)
{
    const uint8_t payload[100] = { 1 };
    const struct frame h = message(sizeof payload);
    for (int i = 0; i < messages; i++)
        ring_put_frame(&theirs, ring_key(&h), &h, payload, sizeof payload);
}

static void peer_gives(uint32_t credit)
{
    const struct frame h = { .type = FRAME_CREDIT, .credit = credit };
    ring_put_frame(&theirs, ring_key(&h), &h, NULL, 0);
}

/* ---- What is awaited ---- */

/* A root that waits for one message of each rank leaves those of later operations in the rings. */
static void no_more_is_read_than_is_awaited(void **state)
{
    (void)state;
    peer_sends(5);
    for (int i = 1; i <= 2; i++) {
        port_interest(&pair.port, +1);
        assert_int_equal(duplex_read(&pair.port), 1);
        assert_int_equal(complete, i);
    }
    port_interest(&pair.port, +2);
    duplex_read(&pair.port);
    assert_int_equal(complete, 4);
}

/* As before it sleeps, or when it looks around after waiting for long: then its peers may wait for space. */
static void where_nothing_is_awaited_all_is_read(void **state)
{
    (void)state;
    peer_sends(5);
    assert_int_equal(duplex_read(&pair.port), 1);
    assert_int_equal(complete, 5);
}

static void what_comes_before_it_is_read(void **state)
{
    (void)state;
    peer_gives(0);
    peer_gives(0);
    peer_sends(2);
    port_interest(&pair.port, +1);
    duplex_read(&pair.port);
    assert_int_equal(told, 2);
    assert_int_equal(complete, 1);
}

static void a_message_is_read_to_its_end(void **state)
{
    const uint8_t payload[100] = { 1 };
    const struct frame h = message(sizeof payload);
    (void)state;
    is_awaited_no_more_at_begin = 1;
    ring_put_frame(&theirs, ring_key(&h), &h, payload, 60);
    ring_put_more(&theirs, payload + 60, 40);
    peer_sends(1);
    port_interest(&pair.port, +1);
    duplex_read(&pair.port);
    assert_int_equal(begun, 1);
    assert_int_equal(complete, 1);
    assert_memory_equal(received, payload, sizeof payload);
}

/* ---- Credit ---- */

enum { SENT = 5000 };

/* A rank that only sends reads nothing, and its peer has given back credit. */
static void credit_is_found_when_it_is_short(void **state)
{
    (void)state;
    pair.port.credit = 100;
    peer_gives(1000);
    peer_gives(SENT);
    assert_true(port_finds_credit(&pair.port, 30)); /* without a look */
    assert_int_equal(pair.port.credit, 100);
    assert_true(port_finds_credit(&pair.port, 4000));
    assert_int_equal(pair.port.credit, 100 + 1000 + SENT);
    assert_false(port_finds_credit(&pair.port, 10000));
    assert_int_equal(told, 0);
    peer_sends(1); /* the ring goes on after them */
    duplex_read(&pair.port);
    assert_int_equal(complete, 1);
}

/* There, to announce a message costs little. */
static void credit_is_not_looked_for_with_a_core_each(void **state)
{
    (void)state;
    domain.shares_cores = 0;
    pair.port.credit = 100;
    peer_gives(SENT);
    assert_false(port_finds_credit(&pair.port, 4000));
    assert_int_equal(pair.port.credit, 100);
}

/* Messages are told to operations, which may be in the middle of something. */
static void credit_behind_a_message_is_left_there(void **state)
{
    (void)state;
    pair.port.credit = 0;
    peer_sends(1);
    peer_gives(SENT);
    assert_false(port_finds_credit(&pair.port, 100));
    assert_int_equal(begun, 0);
    duplex_read(&pair.port);
    assert_int_equal(complete, 1);
    assert_int_equal(pair.port.credit, SENT);
}

static void credit_is_not_looked_for_in_a_payload(void **state)
{
    const uint8_t payload[100] = { 1 };
    const struct frame h = message(sizeof payload);
    (void)state;
    pair.port.credit = 0;
    ring_put_frame(&theirs, ring_key(&h), &h, payload, 60);
    duplex_read(&pair.port);
    peer_gives(SENT); /* which breaks the protocol, and is said when it is read */
    assert_false(port_finds_credit(&pair.port, 100));
    duplex_read(&pair.port);
    assert_int_equal(pair.port.state, PORT_LOST);
}

static void more_credit_than_there_was_loses_the_peer(void **state)
{
    (void)state;
    pair.port.credit = 10;
    peer_gives(PORT_CREDIT_WINDOW);
    assert_false(port_finds_credit(&pair.port, 100));
    assert_int_equal(pair.port.state, PORT_LOST);
    assert_int_equal(pair.port.lost_status, COMM_ERR_PROTOCOL);
    assert_non_null(strstr(pair.port.lost_text, "gave back more credit than it had received"));
}

static void a_frame_of_credit_with_a_payload_is_left_to_be_refused(void **state)
{
    const struct frame h = { .type = FRAME_CREDIT, .credit = SENT };
    const uint8_t payload[8] = { 0 };
    (void)state;
    pair.port.credit = 0;
    ring_put_frame(&theirs, ring_key(&h), &h, payload, sizeof payload);
    assert_false(port_finds_credit(&pair.port, 100));
    duplex_read(&pair.port);
    assert_int_equal(pair.port.state, PORT_LOST);
    assert_non_null(strstr(pair.port.lost_text, "a payload that does not belong to its frame"));
}

int main(void)
{
#define READ(test) cmocka_unit_test_setup_teardown(test, open_pair, close_pair)
    const struct CMUnitTest tests[] = {
        READ(no_more_is_read_than_is_awaited),
        READ(where_nothing_is_awaited_all_is_read),
        READ(what_comes_before_it_is_read),
        READ(a_message_is_read_to_its_end),
        READ(credit_is_found_when_it_is_short),
        READ(credit_is_not_looked_for_with_a_core_each),
        READ(credit_behind_a_message_is_left_there),
        READ(credit_is_not_looked_for_in_a_payload),
        READ(more_credit_than_there_was_loses_the_peer),
        READ(a_frame_of_credit_with_a_payload_is_left_to_be_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

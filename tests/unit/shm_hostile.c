/* A peer that writes what it likes into the memory that it shares with this rank: it is lost with PROTOCOL, whatever
 * it writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/duplex.h"
#include "backend_shm/events.h"
#include "backend_shm/message.h"
#include "backend_shm/small.h"
#include "core/exec/groups.h"
#include "core/exec/receive.h"
#include "core/exec/say.h"
#include "core/exec/select.h"

static struct domain domain;
static struct fabric fabric;
static struct duplex pair;
static struct duplex *up[2];
static struct ring_out theirs; /* the peer's end of what comes here */
static struct segment peer_segment;

static void host_log(int32_t level, const char *text)
{
    (void)level, (void)text;
}

static int32_t host_log_wanted(int32_t level)
{
    (void)level;
    return 1;
}

static int32_t host_run_may_wait(void)
{
    return 0;
}

static void host_run_waits(void)
{
}

static int64_t host_param_int(const void *options, const char *backend, const char *name)
{
    (void)options, (void)backend;
    return strcmp(name, "lanes") == 0;
}

static const char *host_param_text(const void *options, const char *backend, const char *name)
{
    (void)options, (void)backend, (void)name;
    return "";
}

static const comm_host host = { .struct_bytes = sizeof host, .log = host_log, .log_wanted = host_log_wanted,
                                .param_int = host_param_int, .param_text = host_param_text,
                                .run_waits = host_run_waits,
                                .run_may_wait = host_run_may_wait };
static const struct port_ops operations = { .send = duplex_send, .send_text = duplex_send_text,
                                            .give_credit = duplex_give_credit, .read = duplex_read,
                                            .forget = duplex_forget, .sweep = duplex_sweep };
static void nobody_sleeps(struct domain *d)
{
    (void)d;
}

static const struct carrier_driver driver = { .rouse_helper = nobody_sleeps };
static const uint64_t salts[2] = { 0x1111222233334444u, 0x5555666677778888u };

static int open_pair(void **state)
{
    size_t bytes = SEGMENT_RING_MIN;
    int fd = segment_create(&bytes, NULL);
    (void)state;
    exec_host = &host;
    memset(&domain, 0, sizeof domain);
    fabric = (struct fabric){ .domain = &domain, .driver = &driver, .up = up };
    memset(&pair, 0, sizeof pair);
    assert_true(domain_init(&domain, "shm", 0, 2, &receive_events));
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
    unexpected_list_clear(&domain.unexpected);
    duplex_close(&pair);
    duplex_finish(&pair);
    duplex_pool_finish(&fabric);
    events_close(&fabric);
    domain_finish(&domain);
    segment_unmap(&peer_segment);
    return 0;
}

static void write_record(const struct frame *h, uint32_t bytes, int is_more)
{
    struct ring_record *record = theirs.next;
    record->key = ring_key(h);
    record->bytes = bytes;
    record->frame = *h;
    atomic_store(&record->stamp, theirs.next_stamp + (is_more != 0));
}

static void expect_lost(const char *words)
{
    duplex_read(&pair.port);
    assert_int_equal(pair.port.state, PORT_LOST);
    assert_int_equal(pair.port.lost_status, COMM_ERR_PROTOCOL);
    assert_non_null(strstr(pair.port.lost_text, words));
}

static void refuse(struct frame h, uint32_t bytes, int is_more, const char *words)
{
    write_record(&h, bytes, is_more);
    expect_lost(words);
}

static void an_unknown_type(void **state)
{
    (void)state;
    refuse((struct frame){ .type = FRAME_TYPE_END }, 0, 0, "a frame of unknown type");
}

static void an_eager_message_that_is_too_long(void **state)
{
    (void)state;
    refuse((struct frame){ .type = FRAME_EAGER, .bytes = FRAME_EAGER_MAX + 1 }, 8, 0, "beyond the limit");
}

static void a_text_that_is_too_long(void **state)
{
    (void)state;
    refuse((struct frame){ .type = FRAME_FAIL, .bytes = FRAME_TEXT_MAX + 1 }, 8, 0, "a text beyond the limit");
}

static void a_message_with_a_round(void **state)
{
    (void)state;
    refuse((struct frame){ .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .round = 1, .bytes = 8 }, 8, 0,
           "with a round");
}

/* ---- What runs at once ---- */

static struct waiting waiting;
static atomic_int contenders;
static atomic_uint runs;
static const int32_t ranks[] = { 0, 1, 1 };
static uint8_t to[RING_TAKEN];

/* It leaves alone what is in front of the ring. */
static void receive_nothing_at_once(size_t bytes, int32_t tag)
{
    struct box boxes[2] = { { .unexpected.head = NULL } };
    struct exec_group g = { .domain = &domain, .id = 7, .size = 2, .world_ranks = (int32_t *)ranks,
                            .p2p_boxes = boxes };
    const comm_op op = { .kind = COMM_OP_RECV, .root = 1, .tag = tag, .element_bytes = 1,
                         .recv = { .data = to, .count = bytes } };
    fabric.looks = (struct carrier_looks){ .waiting = &waiting, .contenders = &contenders, .runs = &runs };
    assert_int_equal(message_run(&fabric, &g, &op, 0), COMM_ERR_UNSUPPORTED);
}

/* The engine refuses it then. */
static void one_that_is_received_at_once(void **state)
{
    const struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .round = 1, .bytes = 8 };
    (void)state;
    write_record(&h, 8, 0);
    receive_nothing_at_once(8, 0);
    expect_lost("with a round");
}

/* Of the lane that ends where the mapping does. */
static void write_beyond_the_ring(uint8_t kind, uint64_t seq, uint64_t signature, uint16_t round)
{
    const struct frame h = { .type = FRAME_EAGER, .kind = kind, .group = 7, .seq = seq, .signature = signature,
                             .round = round, .bytes = sizeof to };
    const struct frame credit = { .type = FRAME_CREDIT };
    ring_put_frame(&theirs, 0, &credit, NULL, 0);
    assert_int_equal(duplex_read(&pair.port), 1);
    assert_false(ring_holds(&pair.in, sizeof to));
    write_record(&h, sizeof to, 0);
}

static void one_that_is_longer_than_the_ring(void **state)
{
    (void)state;
    write_beyond_the_ring(COMM_OP_SEND, 1, 0, 0);
    receive_nothing_at_once(sizeof to, 0);
    receive_nothing_at_once(sizeof to, COMM_ANY_TAG);
    expect_lost("makes no sense");
}

/* A group of the two ranks; or of three, of which the peer is the last one, and this rank does not meet the other. */
static struct exec_group *open_group(int32_t size)
{
    static struct port own;
    const comm_group_info info = { .struct_bytes = sizeof info, .rank = 0, .size = size, .world_ranks = ranks, .id = 7,
                                   .name = "g" };
    struct exec_group *g;
    port_init(&own, &operations, &domain.peers, 0);
    domain.matching.eager_bytes = sizeof to;
    domain.memory = SELECT_MEMORY_ALL;
    fabric.looks = (struct carrier_looks){ .waiting = &waiting, .contenders = &contenders, .runs = &runs };
    assert_int_equal(group_create(&domain, &info, &g), COMM_OK);
    group_enter(g);
    return g;
}

static void close_group(struct exec_group *g)
{
    group_leave(g);
    group_destroy(g);
}

static comm_status broadcast_at_once(struct exec_group *g, int32_t root, uint64_t seq, size_t bytes)
{
    static struct small small;
    comm_op op = { .struct_bytes = sizeof op, .kind = COMM_OP_BROADCAST, .dtype = COMM_DTYPE_U8, .root = root,
                   .element_bytes = 1, .seq = seq, .signature = (uint64_t)root, .timeout_ns = INT64_MAX };
    *(root ? &op.recv : &op.send) = (comm_buffers){ .data = to, .count = bytes };
    memset(&small, 0, sizeof small);
    comm_status status = small_run(&small, &fabric, g, &op, 0);
    small_finish(&small);
    return status;
}

static void a_broadcast_that_is_longer_than_the_ring(void **state)
{
    struct exec_group *g = open_group(2);
    (void)state;
    write_beyond_the_ring(COMM_OP_BROADCAST, 1, 1, 0);
    assert_int_equal(broadcast_at_once(g, 1, 1, sizeof to), COMM_ERR_UNSUPPORTED);
    expect_lost("makes no sense");
    close_group(g);
}

/* Down a tree, to this rank in the second round. */
static void a_broadcast_of_two_rounds_that_is_longer_than_the_ring(void **state)
{
    struct exec_group *g = open_group(3);
    (void)state;
    write_beyond_the_ring(COMM_OP_BROADCAST, 1, 2, 1);
    assert_int_equal(broadcast_at_once(g, 2, 1, sizeof to), COMM_ERR_UNSUPPORTED);
    expect_lost("makes no sense");
    close_group(g);
}

static void a_broadcast_of_two_rounds(void **state)
{
    const struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_BROADCAST, .group = 7, .seq = 1, .signature = 2,
                             .round = 1, .bytes = 1000 };
    static const uint8_t data[1000] = "1000 bytes";
    struct exec_group *g = open_group(3);
    (void)state;
    ring_put_frame(&theirs, ring_key(&h), &h, data, sizeof data);
    assert_int_equal(broadcast_at_once(g, 2, 1, sizeof data), COMM_OK);
    assert_string_equal(to, "1000 bytes");
    close_group(g);
}

/* While a part of another message is in the ring, or one is read in the peer's memory; and without credit. */
static void a_broadcast_in_the_middle_of_another_message(void **state)
{
    const struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_BROADCAST, .group = 7, .seq = 1, .signature = 1,
                             .bytes = 8 };
    struct frame other = { .type = FRAME_DATA, .kind = COMM_OP_SEND, .group = 7, .bytes = 2 * sizeof to };
    static const uint8_t data[2 * sizeof to];
    struct exec_group *g = open_group(2);
    (void)state;
    ring_put_frame(&theirs, ring_key(&h), &h, "8 bytes", 8);
    pair.port.in.type = FRAME_DATA;
    assert_int_equal(broadcast_at_once(g, 1, 1, 8), COMM_ERR_UNSUPPORTED);
    pair.port.in.type = 0;
    assert_int_equal(broadcast_at_once(g, 1, 1, 8), COMM_OK);
    assert_string_equal(to, "8 bytes");
    assert_int_equal(broadcast_at_once(g, 0, 2, 8), COMM_OK);
    pair.port.credit = 8 + PORT_FRAME_COST;
    assert_int_equal(broadcast_at_once(g, 0, 3, 9), COMM_ERR_UNSUPPORTED);
    assert_int_equal(broadcast_at_once(g, 0, 3, 8), COMM_OK);
    pair.port.credit = PORT_CREDIT_WINDOW;
    assert_int_equal(duplex_send(&pair.port, &other, data, sizeof data, NULL), 0);
    for (int lane = 0; lane < RING_LANES; lane++) /* the peer has read all of that */
        atomic_store(&peer_segment.shared[0].head[lane], pair.out.tail[lane]);
    assert_int_equal(broadcast_at_once(g, 0, 4, 8), COMM_ERR_UNSUPPORTED);
    close_group(g);
}

/* Of another group, with a tag of the library's own, or longer. */
static void one_that_is_not_for_the_receive(void **state)
{
    const struct frame others[] = {
        { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 8, .bytes = 8 },
        { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .tag = COMM_ANY_TAG - 1, .bytes = 8 },
        { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = 9 },
        { .type = FRAME_EAGER, .kind = COMM_OP_BROADCAST, .group = 7, .bytes = 8 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_record(&others[i], (uint32_t)others[i].bytes, 0);
        receive_nothing_at_once(8, COMM_ANY_TAG);
        receive_nothing_at_once(8, 0);
    }
}

/* What is announced has no payload in its record, as a message of nothing. */
static void one_that_is_only_announced(void **state)
{
    (void)state;
    for (uint64_t bytes = 1; bytes < 8; bytes++) {
        const struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_SEND, .group = 7, .tag = 3, .bytes = bytes };
        write_record(&h, 0, 0);
        receive_nothing_at_once(0, 3);
    }
}

static void more_payload_than_the_frame_has(void **state)
{
    (void)state;
    refuse((struct frame){ .type = FRAME_EAGER, .bytes = 8 }, 9, 0, "does not belong to its frame");
}

static void a_payload_that_a_frame_cannot_have(void **state)
{
    (void)state;
    refuse((struct frame){ .type = FRAME_RTS, .bytes = 8 }, 8, 0, "does not belong to its frame");
}

static void a_record_that_is_longer_than_the_ring(void **state)
{
    (void)state;
    refuse((struct frame){ .type = FRAME_EAGER, .bytes = FRAME_EAGER_MAX }, UINT32_MAX, 0, "makes no sense");
}

static void a_payload_without_a_frame(void **state)
{
    (void)state;
    refuse((struct frame){ 0 }, 8, 1, "makes no sense");
}

static void more_than_the_frame_said(void **state)
{
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = 100 };
    uint8_t payload[100] = { 0 };
    (void)state;
    ring_put_frame(&theirs, ring_key(&h), &h, payload, 60);
    duplex_read(&pair.port);
    assert_int_equal(pair.port.state, PORT_UP);
    refuse((struct frame){ 0 }, 41, 1, "more than its frame said");
}

static void a_frame_within_a_payload(void **state)
{
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = 100 };
    uint8_t payload[100] = { 0 };
    (void)state;
    ring_put_frame(&theirs, ring_key(&h), &h, payload, 60);
    duplex_read(&pair.port);
    refuse((struct frame){ .type = FRAME_CREDIT }, 0, 0, "makes no sense");
}

static void space_that_was_never_used(void **state)
{
    struct frame h = { .type = FRAME_CREDIT };
    (void)state;
    atomic_store(&peer_segment.shared[0].head[0], 1u << 20);
    for (int i = 0; i < 1000 && pair.port.state == PORT_UP; i++)
        duplex_send(&pair.port, &h, NULL, 0, NULL);
    assert_int_equal(pair.port.state, PORT_LOST);
    assert_int_equal(pair.port.lost_status, COMM_ERR_PROTOCOL);
}

int main(void)
{
#define HOSTILE(test) cmocka_unit_test_setup_teardown(test, open_pair, close_pair)
    const struct CMUnitTest tests[] = {
        HOSTILE(an_unknown_type),
        HOSTILE(an_eager_message_that_is_too_long),
        HOSTILE(a_text_that_is_too_long),
        HOSTILE(a_message_with_a_round),
        HOSTILE(one_that_is_received_at_once),
        HOSTILE(one_that_is_longer_than_the_ring),
        HOSTILE(a_broadcast_that_is_longer_than_the_ring),
        HOSTILE(a_broadcast_of_two_rounds_that_is_longer_than_the_ring),
        HOSTILE(a_broadcast_of_two_rounds),
        HOSTILE(a_broadcast_in_the_middle_of_another_message),
        HOSTILE(one_that_is_not_for_the_receive),
        HOSTILE(one_that_is_only_announced),
        HOSTILE(more_payload_than_the_frame_has),
        HOSTILE(a_payload_that_a_frame_cannot_have),
        HOSTILE(a_record_that_is_longer_than_the_ring),
        HOSTILE(a_payload_without_a_frame),
        HOSTILE(more_than_the_frame_said),
        HOSTILE(a_frame_within_a_payload),
        HOSTILE(space_that_was_never_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

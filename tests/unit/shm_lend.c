/* backend_shm's payloads that are read in the sender's memory: through the kernel and in regions; what happens when the
 * sender takes one back, when it has too many, and when a peer lies about where one lies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/duplex.h"
#include "backend_shm/events.h"
#include "backend_shm/greeting.h"
#include "backend_shm/lend.h"
#include "backend_shm/region.h"
#include "core/exec/groups.h"
#include "core/exec/say.h"

enum { BYTES = 100003, GROUPS = 2 };

/* Two ranks in one process: number 0 sends, number 1 receives. */
static struct side {
    struct domain domain;
    struct fabric fabric;
    struct duplex pairs[2], *pair; /* by the peer's rank */
    struct duplex *up[2];
} sides[2];

static struct message messages[RING_LOANS + 4]; /* of the sends */
static uint8_t received[BYTES];
static int received_count, sent_count;
static const char groups[GROUPS]; /* owners */

static void host_log(int32_t level, const char *text)
{
    (void)level, (void)text;
}

static int32_t host_log_wanted(int32_t level)
{
    (void)level;
    return 1;
}

static const comm_host host = { .struct_bytes = sizeof host, .log = host_log, .log_wanted = host_log_wanted };

static void on_begins(struct port *p, const struct frame *h)
{
    (void)h;
    p->sink.kind = SINK_COPY;
    p->sink.dst = received;
    p->sink.dst_bytes = sizeof received;
}

static void on_complete(struct port *p, const struct frame *h)
{
    (void)p, (void)h;
    received_count++;
}

static void on_frame(struct port *p, const struct frame *h, const char *text)
{
    (void)p, (void)h, (void)text;
}

static void on_sent(struct message *m)
{
    (void)m;
    sent_count++;
}

static const struct port_events events = { on_begins, on_complete, on_frame, on_sent };
static const struct port_ops operations = { .send = duplex_send, .give_credit = duplex_give_credit,
                                            .read = duplex_read, .forget = duplex_forget, .sweep = duplex_sweep };

static void open_side(struct side *s, int rank, int memory, int socket)
{
    const uint64_t salts[2] = { 1000, 2000 };
    assert_true(domain_init(&s->domain, "shm", rank, 2, &events));
    s->fabric.domain = &s->domain;
    assert_int_equal(events_open(&s->fabric), COMM_OK);
    s->fabric.up = s->up;
    s->fabric.duplexes = s->pairs;
    s->pair = &s->pairs[1 - rank];
    s->fabric.cma_bytes = 1 << 20;
    s->fabric.probe_word = 77 + (uint64_t)rank;
    port_init(&s->pair->port, &operations, &s->domain.peers, 1 - rank);
    s->pair->fabric = &s->fabric;
    s->pair->tx_tail = &s->pair->tx_head;
    s->pair->lent_tail = &s->pair->lent_head;
    s->pair->bell = -1;
    s->pair->watch.fd = socket;
    assert_int_equal(segment_map(&s->pair->segment, memory, SEGMENT_RING_MIN), 0);
    duplex_up(s->pair, salts);
}

static int open_sides(void **state)
{
    size_t bytes = SEGMENT_RING_MIN;
    int memory = segment_create(&bytes), sockets[2];
    (void)state;
    exec_host = &host;
    memset(sides, 0, sizeof sides);
    memset(received, 0, sizeof received);
    received_count = sent_count = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, sockets), 0);
    open_side(&sides[0], 0, memory, sockets[0]);
    open_side(&sides[1], 1, memory, sockets[1]);
    lend_probe(sides[0].pair);
    close(memory);
    return 0;
}

static int close_sides(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct side *s = &sides[i];
        region_finish(&s->fabric);
        duplex_finish(s->pair);
        duplex_close(s->pair);
        duplex_pool_finish(&s->fabric);
        events_close(&s->fabric);
        domain_finish(&s->domain);
    }
    return 0;
}

static uint8_t *random_bytes(uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 31 + i / 251);
    return data;
}

/* 1 if all of it is sent. */
static int send_number(int i, int kind, const void *payload, size_t bytes)
{
    struct frame h = { .type = FRAME_DATA, .kind = (uint8_t)kind, .group = 7, .seq = (uint64_t)i, .bytes = bytes };
    messages[i] = (struct message){ .owner = &groups[i % GROUPS] };
    return sides[0].pair->port.ops->send(&sides[0].pair->port, &h, payload, bytes, &messages[i]);
}

static void look(int side)
{
    struct duplex *p = sides[side].pair;
    duplex_flush(p);
    while (duplex_read(&p->port))
        ;
}

static void one_is_read_and_then_sent(void **state)
{
    uint8_t *data = random_bytes(malloc(BYTES), BYTES);
    (void)state;
    assert_int_equal(send_number(0, COMM_OP_SEND, data, BYTES), 0);
    assert_int_equal(sides[0].pair->out.tail, 2); /* a record without the payload */
    look(0);
    assert_int_equal(sent_count, 0);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, data, BYTES);
    look(0);
    assert_int_equal(sent_count, 1);
    assert_null(sides[0].pair->lent_head);
    assert_int_equal(sides[0].pair->loans, 0);
    free(data);
}

static void the_sender_learns_of_it_before_the_goodbye(void **state)
{
    uint8_t *data = random_bytes(malloc(BYTES), BYTES);
    (void)state;
    send_number(0, COMM_OP_SEND, data, BYTES);
    look(1);
    duplex_leave(sides[1].pair);
    while (duplex_read(&sides[0].pair->port)) /* no flush before */
        ;
    assert_int_equal(sent_count, 1);
    free(data);
}

/* The group of number 0 ends while it is lent, and its memory is used for something else; number 1 is of another
 * group. */
static void one_that_is_taken_back_is_not_received(void **state)
{
    uint8_t *data = random_bytes(malloc(BYTES), BYTES), *other = random_bytes(malloc(BYTES), BYTES);
    (void)state;
    other[5]++;
    send_number(0, COMM_OP_SEND, data, BYTES);
    send_number(1, COMM_OP_SEND, other, BYTES);
    duplex_forget(&sides[0].pair->port, &groups[0]);
    memset(data, 0xee, BYTES);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, other, BYTES);
    look(0);
    assert_int_equal(sent_count, 1);
    assert_int_equal(sides[0].pair->loans, 0);
    free(data);
    free(other);
}

static void more_than_there_are_slots_go_through_the_ring(void **state)
{
    uint8_t *data = random_bytes(malloc(BYTES), BYTES);
    int count = RING_LOANS + 4;
    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < count; i++)
            send_number(i, COMM_OP_ALL_GATHER, data, BYTES);
        for (int i = 0; i < 1000 && sent_count < count * (round + 1); i++) {
            look(1);
            assert_memory_equal(received, data, BYTES);
            look(0);
        }
        assert_int_equal(sent_count, count * (round + 1));
        assert_int_equal(received_count, count * (round + 1));
    }
    free(data);
}

/* What the kernel does not read for others goes through the ring: here a page without access, which it refuses as it
 * does a device's memory. */
static void memory_that_the_kernel_does_not_read(void **state)
{
    uint8_t *data = mmap(NULL, 2 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ring_place place;
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_SEND, .bytes = 65536 + 100 };
    (void)state;
    assert_true(data != MAP_FAILED);
    assert_int_equal(mprotect(data + 65536, 65536, PROT_NONE), 0);
    assert_int_equal(lend_suits(sides[0].pair, &h, data, &place), 0);
    h.bytes = 65536;
    assert_int_equal(lend_suits(sides[0].pair, &h, data, &place), 1);
    munmap(data, 2 * 65536);
}

static void what_is_lent(void **state)
{
    static uint8_t data[2 << 20];
    struct ring_place place;
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_REDUCE, .bytes = 100000 };
    struct duplex *p = sides[0].pair;
    (void)state;
    assert_int_equal(lend_suits(p, &h, data, &place), 0); /* a reduction: only from a region */
    h.kind = COMM_OP_BROADCAST;
    assert_int_equal(lend_suits(p, &h, data, &place), 1);
    h.bytes = sizeof data; /* longer than cma_bytes, one way */
    assert_int_equal(lend_suits(p, &h, data, &place), 0);
    h.kind = COMM_OP_ALL_GATHER;
    assert_int_equal(lend_suits(p, &h, data, &place), 1);
    atomic_store(&p->out.shared->can_read, 0);
    assert_int_equal(lend_suits(p, &h, data, &place), 0);
}

/* ---- Regions ---- */

static struct region *make_region(size_t bytes)
{
    struct region *r = region_create(&sides[0].fabric, bytes);
    assert_non_null(r);
    region_enter(&sides[0].fabric, r);
    return r;
}

static void a_region_is_read_where_it_is(void **state)
{
    (void)state;
    atomic_store(&sides[0].pair->out.shared->can_read, 0); /* so that the kernel is not asked */
    for (int round = 0; round < 3; round++) {
        struct region *r = make_region(BYTES + 10);
        random_bytes(region_data(r), BYTES + 10);
        send_number(0, COMM_OP_ALL_REDUCE, region_data(r) + 10, BYTES);
        look(1);
        assert_int_equal(received_count, round + 1);
        assert_memory_equal(received, region_data(r) + 10, BYTES);
        look(0);
        assert_int_equal(sent_count, round + 1);
        region_leave(&sides[0].fabric, r);
        region_destroy(r);
        assert_int_equal(region_notices(sides[1].pair), 1);
        assert_int_equal(sides[1].pair->mapping_count, 0);
    }
}

/* Long ones are read in steps. The group of this one ends after the first, and its memory is released. */
static void a_region_may_go_while_it_is_read(void **state)
{
    static uint8_t other[] = "the next message";
    (void)state;
    struct region *r = make_region(4 << 20);
    send_number(0, COMM_OP_ALL_REDUCE, region_data(r), 4 << 20);
    duplex_read(&sides[1].pair->port);
    assert_int_not_equal(sides[1].pair->borrowed.loan, 0); /* in the middle of it */
    duplex_forget(&sides[0].pair->port, &groups[0]);
    region_leave(&sides[0].fabric, r);
    region_destroy(r);
    assert_int_equal(region_notices(sides[1].pair), 1);
    look(1);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    assert_int_equal(received_count, 0);
    send_number(1, COMM_OP_ALL_REDUCE, other, sizeof other);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, other, sizeof other);
}

static void what_is_not_all_in_a_region_is_not_of_it(void **state)
{
    struct region *r = make_region(1000);
    (void)state;
    assert_ptr_equal(region_of(sides[0].pair, region_data(r), 1000), r);
    assert_ptr_equal(region_of(sides[0].pair, region_data(r) + 999, 1), r);
    assert_null(region_of(sides[0].pair, region_data(r) + 1, 1000));
    assert_null(region_of(sides[0].pair, region_data(r) - 1, 10));
    assert_null(region_of(sides[0].pair, region_data(r) + 1000, 1));
}

/* ---- Lies ---- */

static void lie(struct ring_place place, uint64_t bytes)
{
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_SEND, .group = 7, .bytes = bytes };
    ring_put_lent(&sides[0].pair->out, ring_key(&h), &h, &place);
    while (duplex_read(&sides[1].pair->port))
        ;
    assert_int_equal(sides[1].pair->port.state, PORT_LOST);
    assert_int_equal(received_count, 0);
}

static void a_slot_that_there_is_not(void **state)
{
    (void)state;
    lie((struct ring_place){ .slot = RING_LOANS, .loan = 1, .at = (uintptr_t)groups }, 1);
}

static void no_number(void **state)
{
    (void)state;
    lie((struct ring_place){ .loan = 0, .at = (uintptr_t)groups }, 1);
}

static void a_region_that_there_is_not(void **state)
{
    (void)state;
    lie((struct ring_place){ .loan = 1, .region = 9 }, 10);
}

static void beyond_a_region(void **state)
{
    struct region *r = make_region(4096);
    (void)state;
    assert_non_null(region_of(sides[0].pair, region_data(r), 10));
    lie((struct ring_place){ .loan = 1, .region = 1, .at = 4090 }, 10);
}

static void far_beyond_a_region(void **state)
{
    struct region *r = make_region(4096);
    (void)state;
    assert_non_null(region_of(sides[0].pair, region_data(r), 10));
    lie((struct ring_place){ .loan = 1, .region = 1, .at = UINT64_MAX - 4 }, 10);
}

static void an_address_that_nobody_has(void **state)
{
    (void)state;
    lie((struct ring_place){ .loan = 1, .at = 8 }, 10);
    assert_string_equal(sides[1].pair->port.lost_text,
                        "sent 10 bytes that the kernel does not let another process read: "
                        "Bad address; set COMM_SHM_CMA_BYTES=0");
}

/* A file that could shrink would kill whoever reads it. */
static void a_region_that_can_shrink(void **state)
{
    struct {
        uint32_t kind, id;
        uint64_t bytes;
    } notice = { 1, 1, 4096 };
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    (void)state;
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_true(greeting_send(sides[0].pair->watch.fd, &notice, sizeof notice, &fd, 1));
    assert_int_equal(region_notices(sides[1].pair), 0);
    close(fd);
    lie((struct ring_place){ .loan = 1, .region = 1 }, 10);
}

int main(void)
{
#define LENT(test) cmocka_unit_test_setup_teardown(test, open_sides, close_sides)
    const struct CMUnitTest tests[] = {
        LENT(one_is_read_and_then_sent),
        LENT(the_sender_learns_of_it_before_the_goodbye),
        LENT(one_that_is_taken_back_is_not_received),
        LENT(more_than_there_are_slots_go_through_the_ring),
        LENT(memory_that_the_kernel_does_not_read),
        LENT(what_is_lent),
        LENT(a_region_is_read_where_it_is),
        LENT(a_region_may_go_while_it_is_read),
        LENT(what_is_not_all_in_a_region_is_not_of_it),
        LENT(a_slot_that_there_is_not),
        LENT(no_number),
        LENT(a_region_that_there_is_not),
        LENT(beyond_a_region),
        LENT(far_beyond_a_region),
        LENT(an_address_that_nobody_has),
        LENT(a_region_that_can_shrink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How a rank that only sends waits for room at its peer, which reads meanwhile, reads nothing, has sent something else,
 * or lies. It yields its core while it waits: what the peer does then is the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/descriptor.h"
#include "backend_shm/duplex.h"
#include "backend_shm/events.h"
#include "backend_shm/fabric.h"
#include "backend_shm/room.h"
#include "base/clock.h"
#include "core/exec/groups.h"
#include "core/exec/say.h"

enum { LONGEST = 64 << 10 };

static const int64_t LONG_NS = 3600000000000, SECOND_NS = 1000000000;

/* Two ranks in one process: number 0 sends, number 1 receives. */
static struct side {
    struct domain domain;
    struct fabric fabric;
    struct waiting waiting;
    atomic_int contenders;
    struct duplex pairs[2], *pair; /* by the peer's rank */
    struct duplex *up[2];
} sides[2];

static uint8_t data[LONGEST], received[LONGEST];
static int sent_count, received_count, read_at_a_time, yields;

static void read_messages(int count)
{
    struct duplex *p = sides[1].pair;
    for (int until = received_count + count; received_count < until && duplex_read(&p->port);)
        sides[1].domain.done_count = 0;
}

int __wrap_sched_yield(void);

int __wrap_sched_yield(void)
{
    yields++;
    read_messages(read_at_a_time);
    sides[0].waiting.rest_until_ns = 0; /* on a busy machine a yield may take long */
    return 0;
}

static void on_begins(struct port *p, const struct frame *h)
{
    (void)h;
    p->sink.kind = SINK_COPY;
    p->sink.dst = received;
    p->sink.dst_bytes = sizeof received;
}

/* A reader reads one message at a time. */
static void on_complete(struct port *p, const struct frame *h)
{
    port_consumed(p, (size_t)h->bytes);
    assert_memory_equal(received, data, h->bytes);
    received_count++;
    duplex_of(p)->fabric->domain->done_count++;
}

static void on_frame(struct port *p, const struct frame *h, const char *text)
{
    (void)p, (void)h, (void)text;
}

static void on_sent(struct message *m)
{
    (void)m;
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

static int32_t may_wait;

static int32_t host_run_may_wait(void)
{
    return may_wait;
}

static const comm_host host = { .struct_bytes = sizeof host, .log = host_log, .log_wanted = host_log_wanted,
                                .run_may_wait = host_run_may_wait };
static const struct port_events events = { on_begins, on_complete, on_frame, on_sent };
static const struct port_ops operations = { .send = duplex_send, .give_credit = duplex_give_credit,
                                            .take_credit = duplex_take_credit, .read = duplex_read,
                                            .forget = duplex_forget, .sweep = duplex_sweep };

static void open_side(int rank, int memory, size_t ring_bytes, int socket)
{
    const uint64_t salts[2] = { 1000, 2000 };
    struct side *s = &sides[rank];
    assert_true(domain_init(&s->domain, "shm", rank, 2, &events));
    s->fabric.domain = &s->domain;
    assert_int_equal(events_open(&s->fabric), COMM_OK);
    s->fabric.up = s->up;
    s->fabric.duplexes = s->pairs;
    s->fabric.is_alone = 1;
    s->waiting = (struct waiting){ .yields = 1, .yield_until_ns = INT64_MAX, .is_crowded = 1 };
    s->fabric.looks = (struct carrier_looks){ .waiting = &s->waiting, .contenders = &s->contenders };
    s->pair = &s->pairs[1 - rank];
    port_init(&s->pair->port, &operations, &s->domain.peers, 1 - rank);
    s->pair->fabric = &s->fabric;
    s->pair->tx_tail = &s->pair->tx_head;
    s->pair->lent_tail = &s->pair->lent_head;
    s->pair->bell = -1;
    s->pair->watch.fd = socket;
    assert_int_equal(segment_map(&s->pair->segment, memory, ring_bytes), 0);
    duplex_up(s->pair, salts);
}

static void open_sides(size_t ring_bytes)
{
    int memory = segment_create(&ring_bytes, NULL), sockets[2];
    exec_host = &host;
    memset(sides, 0, sizeof sides);
    sent_count = received_count = yields = 0;
    read_at_a_time = 1;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 31 + i / 251);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, sockets), 0);
    for (int rank = 0; rank < 2; rank++)
        open_side(rank, memory, ring_bytes, sockets[rank]);
    close(memory);
}

static void close_sides(void)
{
    for (int i = 0; i < 2; i++) {
        struct side *s = &sides[i];
        duplex_finish(s->pair);
        duplex_close(s->pair);
        duplex_pool_finish(&s->fabric);
        events_close(&s->fabric);
        domain_finish(&s->domain);
    }
}

static int has_room(size_t bytes)
{
    return room_is_there(sides[0].pair, bytes);
}

static void send_one(int from, size_t bytes)
{
    struct port *p = &sides[from].pair->port;
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_BROADCAST, .group = 7, .bytes = bytes };
    port_spend(p, bytes);
    int is_sent = duplex_send(p, &h, data, bytes, NULL);
    assert_true(is_sent || bytes > RING_TAKEN);
    sent_count += from == 0;
}

static int await(size_t bytes, int64_t spin_ns)
{
    int64_t until_ns = 0;
    return room_await(&sides[0].fabric, sides[0].pair, bytes, spin_ns, &until_ns);
}

/* On a busy machine a yield may take long, and the rank rests then. */
static int await_long(size_t bytes)
{
    enum { MANY = 1000 };
    int found = 0;
    for (int i = 0; i < MANY && !(found = await(bytes, LONG_NS)); i++)
        sides[0].waiting.rest_until_ns = 0;
    return found;
}

/* What the ring and the credit hold, many times over, in rings of several lengths. Nothing is queued, and credit is
 * neither lost nor made. */
static void a_stream_goes_on_when_the_peer_has_read(void **state)
{
    static const size_t rings[] = { 32 << 10, 512 << 10, 2 << 20 };
    static const size_t sizes[] = { 0, 8, 41, 1000, 4096, 4097, 8000, 16 << 10 };
    (void)state;
    for (size_t r = 0; r < sizeof rings / sizeof *rings; r++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            const size_t bytes = sizes[k];
            size_t both = rings[r] + PORT_CREDIT_WINDOW;
            open_sides(rings[r]);
            if (ring_frame_lines((uint32_t)bytes) > sides[0].pair->out.capacity) {
                close_sides();
                continue;
            }
            int waits = 0;
            for (size_t gone = 0; gone < 3 * both; gone += bytes + RING_LINE) {
                if (!has_room(bytes)) {
                    waits++;
                    assert_true(await_long(bytes));
                    assert_true(has_room(bytes));
                    assert_null(sides[0].pair->tx_head);
                }
                send_one(0, bytes);
            }
            assert_true(waits > 0);
            assert_true(yields >= waits);
            read_messages(sent_count);
            assert_int_equal(received_count, sent_count);
            duplex_read_credit(sides[0].pair);
            assert_int_equal(sides[0].pair->port.credit + sides[1].pair->port.eager_held, PORT_CREDIT_WINDOW);
            close_sides();
        }
}

/* Messages of which a ring holds many are waited for seldom, until half of it is free; of longer ones a few are. */
static void how_much_room_is_waited_for(void **state)
{
    static const struct row {
        size_t bytes, ring;
        int spins, shares_cores;
        size_t room;
    } rows[] = {
        { 2000, 512 << 10, 0, 0, 256 << 10 }, { 3000, 512 << 10, 0, 0, 64 << 10 }, { 8000, 512 << 10, 0, 0, 64 << 10 },
        { 2000, 512 << 10, 1, 0, 256 << 10 }, { 3000, 512 << 10, 1, 0, 64 << 10 }, { 4000, 2 << 20, 1, 0, 512 << 10 },
        { 4000, 2 << 20, 0, 0, 512 << 10 },   { 2000, 512 << 10, 0, 1, 256 << 10 }, { 3000, 512 << 10, 0, 1, 16 << 10 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_sides(rows[i].ring);
        sides[0].domain.shares_cores = rows[i].shares_cores;
        for (int k = 0; k < 2; k++) { /* the peer learns that it is waited for */
            while (has_room(rows[i].bytes))
                send_one(0, rows[i].bytes);
            assert_true(k || await_long(rows[i].bytes));
        }
        size_t each = RING_LINE * ring_frame_lines((uint32_t)rows[i].bytes);
        sides[0].waiting.spin_ns = rows[i].spins ? LONG_NS : 0;
        sides[0].waiting.yields = !rows[i].spins;
        int before = received_count, wanted = (int)(rows[i].room / each);
        while (!await(rows[i].bytes, 0) && received_count < sent_count)
            read_messages(1);
        assert_in_range(received_count - before, wanted - 4, wanted + (rows[i].room < 64 << 10 ? 8 : 18));
        close_sides();
    }
}

/* The batch is a power of two of messages that fit into most of the ring, and waited for as a whole. */
static void a_batch_is_waited_for(void **state)
{
    static const struct {
        size_t bytes, ring;
        int batch;
    } rows[] = {
        { 0, 512 << 10, 1024 }, { 1000, 512 << 10, 256 }, { 2048, 512 << 10, 128 }, { 3072, 512 << 10, 128 },
        { 4096, 512 << 10, 0 }, { 1000, 64 << 10, 0 },    { 4096, 2 << 20, 128 },   { 16 << 10, 2 << 20, 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t bytes = rows[i].bytes;
        int64_t until_ns = 0;
        open_sides(rows[i].ring);
        assert_int_equal(room_batch(sides[0].pair, bytes), rows[i].batch);
        while (rows[i].batch && has_room(bytes))
            send_one(0, bytes);
        while (rows[i].batch && !room_await_batch(&sides[0].fabric, sides[0].pair, bytes, 0, &until_ns) &&
               received_count < sent_count)
            read_messages(1);
        /* Credit comes in steps, and may be short before the ring is full. */
        assert_in_range(received_count, rows[i].batch ? rows[i].batch - 16 : 0, rows[i].batch * 2);
        for (int k = 0; k < rows[i].batch; k++) {
            assert_true(has_room(bytes));
            send_one(0, bytes);
        }
        close_sides();
    }
}

/* More than is waited for behind others. */
static void there_is_room_for_a_long_message_behind_short_ones(void **state)
{
    (void)state;
    open_sides(32 << 10);
    while (has_room(500))
        send_one(0, 500);
    assert_true(await_long(12000));
    assert_true(has_room(12000));
    close_sides();
}

/* It goes out in pieces, and waits for room for the first. One that is one record and never fits is not waited for. */
static void messages_that_are_longer_than_a_lane(void **state)
{
    (void)state;
    open_sides(64 << 10);
    assert_true(ring_frame_lines(40 << 10) > sides[0].pair->out.capacity);
    while (has_room(1000))
        send_one(0, 1000);
    assert_false(has_room(40 << 10));
    assert_true(await_long(40 << 10));
    assert_true(has_room(40 << 10));
    close_sides();
    open_sides(16 << 10);
    assert_false(has_room(16 << 10));
    yields = 0;
    assert_false(await(16 << 10, SECOND_NS));
    assert_int_equal(yields, 0);
    close_sides();
}

static void nobody_reads(void **state)
{
    (void)state;
    open_sides(512 << 10);
    read_at_a_time = 0;
    while (has_room(4096))
        send_one(0, 4096);
    assert_false(await(4096, 0));
    atomic_store(&sides[0].contenders, 1); /* another thread wants the lock */
    assert_false(await(4096, LONG_NS));
    close_sides();
}

/* The credit is behind it: it is not read here, and not waited for. */
static void another_message_is_in_front(void **state)
{
    (void)state;
    open_sides(2 << 20);
    send_one(1, 100);
    while (has_room(4096))
        send_one(0, 4096);
    assert_false(await(4096, SECOND_NS));
    assert_int_equal(yields, 0);
    read_messages(sent_count);
    assert_false(has_room(4096));
    assert_false(await(4096, SECOND_NS));
    sides[0].domain.done_count = 0;
    assert_int_equal(duplex_read(&sides[0].pair->port), 1); /* it is still there */
    assert_true(await_long(4096));
    close_sides();
}

/* A peer that has waited gets it back in smaller steps for a while. */
static void credit_comes_back_in_steps(void **state)
{
    enum { EACH = 4096 + PORT_FRAME_COST };
    const struct port *p = &sides[1].pair->port;
    (void)state;
    open_sides(2 << 20);
    assert_int_equal(p->credit_step, PORT_CREDIT_WINDOW / 4);
    while (has_room(4096))
        send_one(0, 4096);
    assert_true(await_long(4096));
    assert_int_equal(p->credit_step, PORT_CREDIT_WINDOW / 16);
    for (int steps = 255; steps >= 0; steps--) { /* it has not waited since */
        for (int i = 0; i < PORT_CREDIT_WINDOW / 16 / EACH + 1; i++) {
            send_one(0, 4096);
            read_messages(1);
        }
        duplex_read_credit(sides[0].pair);
        assert_int_equal(p->credit_owed, 0);
        assert_int_equal(p->credit_step, PORT_CREDIT_WINDOW / (steps ? 16 : 4));
    }
    close_sides();
}

static void credit_in_front_is_passed(void **state)
{
    (void)state;
    open_sides(2 << 20);
    for (int i = 0; i < 80; i++)
        send_one(0, 4096);
    read_messages(80); /* and gives back what 64 have cost, and more */
    send_one(1, 100);
    const struct ring_record *record;
    assert_int_equal(ring_look(&sides[0].pair->in, &record), RING_FRAME);
    assert_int_equal(record->frame.type, FRAME_CREDIT);
    assert_true(duplex_passes_credit(sides[0].pair));
    assert_int_equal(ring_look(&sides[0].pair->in, &record), RING_FRAME);
    assert_int_equal(record->frame.type, FRAME_EAGER);
    assert_false(duplex_passes_credit(sides[0].pair));
    close_sides();
}

static void a_peer_that_lies_or_is_lost_is_not_waited_for(void **state)
{
    (void)state;
    open_sides(512 << 10);
    while (has_room(4096))
        send_one(0, 4096);
    read_at_a_time = 0;
    for (int lane = 0; lane < RING_LANES; lane++)
        atomic_store(&sides[0].pair->out.shared->head[lane], UINT64_MAX);
    assert_false(await(4096, 0));
    sides[0].pair->port.state = PORT_LOST;
    yields = 0;
    assert_false(await(4096, SECOND_NS));
    assert_int_equal(yields, 0);
    close_sides();
}

/* There is space, and it says that it gives back more than it has got. */
static void a_peer_that_lies_about_credit_has_no_room(void **state)
{
    struct frame h = { .type = FRAME_CREDIT };
    (void)state;
    open_sides(2 << 20);
    sides[0].pair->port.credit = 0;
    sides[1].pair->port.credit_owed = UINT32_MAX;
    sides[1].pair->port.eager_held = UINT32_MAX;
    duplex_send(&sides[1].pair->port, &h, NULL, 0, NULL);
    assert_false(await(4096, SECOND_NS));
    assert_int_equal(sides[0].pair->port.state, PORT_LOST);
    close_sides();
}

/* ---- A thread that waits in an operation which it does at once ---- */

static int receiver_waits_on(void)
{
    struct waiting *w = &sides[1].waiting;
    w->no_poll_until_ns = 0; /* on a busy machine a yield may take long */
    return fabric_waits_on(&sides[1].fabric, clock_now_ns());
}

static void a_thread_waits_on_unless_it_is_wanted_elsewhere(void **state)
{
    struct side *s = &sides[1];
    (void)state;
    open_sides(512 << 10);
    read_at_a_time = 0;
    s->waiting = (struct waiting){ .spin_ns = SECOND_NS, .poll_ns = LONG_NS };
    may_wait = 1;
    assert_true(receiver_waits_on());
    s->waiting.rest_until_ns = INT64_MAX;
    assert_false(receiver_waits_on());
    s->waiting.rest_until_ns = 0;
    atomic_store(&s->contenders, 1);
    assert_false(receiver_waits_on());
    atomic_store(&s->contenders, 0);
    s->domain.works_out = 1; /* the engine has an operation, too */
    assert_false(receiver_waits_on());
    s->domain.works_out = 0;
    may_wait = 0;
    assert_false(receiver_waits_on());
    may_wait = 1;
    s->waiting.poll_until_ns = 1; /* it has polled for long enough */
    assert_false(receiver_waits_on());
    s->waiting.poll_until_ns = 0;
    assert_true(receiver_waits_on());
    s->fabric.is_alone = 0; /* there are sockets, too */
    assert_false(receiver_waits_on());
    s->fabric.is_alone = 1;
    s->waiting.yields = 1; /* it may share its core with the rank that is late */
    assert_false(receiver_waits_on());
    s->waiting.yields = 0;
    s->waiting.poll_until_ns = s->waiting.poll_ns = 0;
    assert_false(receiver_waits_on());
    close_sides();
}

static void a_thread_does_not_wait_on_while_something_is_to_be_sent(void **state)
{
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_BROADCAST, .group = 7, .bytes = 4096 };
    (void)state;
    open_sides(512 << 10);
    read_at_a_time = 0;
    sides[0].waiting = (struct waiting){ .spin_ns = SECOND_NS, .poll_ns = LONG_NS };
    may_wait = 1;
    while (has_room(4096))
        send_one(0, 4096);
    assert_true(fabric_waits_on(&sides[0].fabric, clock_now_ns()));
    while (!sides[0].pair->tx_head)
        duplex_send(&sides[0].pair->port, &h, data, 4096, NULL);
    sides[0].waiting.no_poll_until_ns = 0;
    assert_false(fabric_waits_on(&sides[0].fabric, clock_now_ns()));
    close_sides();
}

/* Another rank may stand still until this one reads, and the rank that this one waits for may wait for that. */
static void a_thread_does_not_wait_on_while_a_peer_waits_for_room(void **state)
{
    (void)state;
    open_sides(512 << 10);
    read_at_a_time = 0;
    sides[1].waiting = (struct waiting){ .spin_ns = SECOND_NS, .poll_ns = LONG_NS };
    may_wait = 1;
    while (has_room(4096))
        send_one(0, 4096);
    assert_true(receiver_waits_on()); /* the peer does something else */
    assert_false(await(4096, 0));
    assert_false(receiver_waits_on());
    sides[1].pair->port.state = PORT_LOST;
    assert_true(receiver_waits_on());
    sides[1].pair->port.state = PORT_UP;
    assert_false(receiver_waits_on());
    atomic_store(&sides[1].pair->in.shared->awaits_credit, 0); /* nor does it wait for that; it has more to send */
    assert_true(receiver_waits_on());
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_BROADCAST, .group = 7, .bytes = 4096 };
    while (!atomic_load(&sides[1].pair->in.shared->waits)) {
        duplex_send(&sides[0].pair->port, &h, data, 4096, NULL);
        sent_count++;
    }
    assert_false(receiver_waits_on());
    while (received_count < sent_count) {
        read_messages(1);
        duplex_look(sides[0].pair);
    }
    atomic_store(&sides[1].pair->in.shared->awaits_credit, 1); /* not taken back, but all is read */
    assert_true(receiver_waits_on());
    close_sides();
}

/* A rank connects, or ends. The kernel is asked now and then. */
static void a_thread_does_not_wait_on_while_the_kernel_has_something(void **state)
{
    struct side *s = &sides[1];
    (void)state;
    open_sides(512 << 10);
    s->waiting = (struct waiting){ .spin_ns = SECOND_NS, .poll_ns = LONG_NS };
    may_wait = 1;
    assert_true(receiver_waits_on());
    bell_ring(s->fabric.bell.fd);
    s->fabric.asked_ns = clock_now_ns() + SECOND_NS;
    assert_true(receiver_waits_on()); /* not asked */
    s->fabric.asked_ns = 0;
    assert_false(receiver_waits_on());
    events_turn(&s->fabric, 0);
    s->fabric.asked_ns = 0;
    assert_true(receiver_waits_on());
    close_sides();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_goes_on_when_the_peer_has_read),
        cmocka_unit_test(how_much_room_is_waited_for),
        cmocka_unit_test(a_batch_is_waited_for),
        cmocka_unit_test(there_is_room_for_a_long_message_behind_short_ones),
        cmocka_unit_test(messages_that_are_longer_than_a_lane),
        cmocka_unit_test(nobody_reads),
        cmocka_unit_test(another_message_is_in_front),
        cmocka_unit_test(credit_comes_back_in_steps),
        cmocka_unit_test(credit_in_front_is_passed),
        cmocka_unit_test(a_peer_that_lies_or_is_lost_is_not_waited_for),
        cmocka_unit_test(a_peer_that_lies_about_credit_has_no_room),
        cmocka_unit_test(a_thread_waits_on_unless_it_is_wanted_elsewhere),
        cmocka_unit_test(a_thread_does_not_wait_on_while_something_is_to_be_sent),
        cmocka_unit_test(a_thread_does_not_wait_on_while_a_peer_waits_for_room),
        cmocka_unit_test(a_thread_does_not_wait_on_while_the_kernel_has_something),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

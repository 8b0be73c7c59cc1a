/* backend_shm's payloads that are read in the sender's memory: through the kernel and in regions; what happens when the
 * sender takes one back, when it has too many, and when a peer lies about where one lies. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/duplex.h"
#include "backend_shm/events.h"
#include "backend_shm/greeting.h"
#include "backend_shm/lend.h"
#include "backend_shm/message.h"
#include "backend_shm/region.h"
#include "backend_shm/write_back.h"
#include "core/exec/groups.h"
#include "core/exec/say.h"

enum { BYTES = 100003, GROUPS = 2 };

/* Two ranks in one process: number 0 sends, number 1 receives. */
static struct side {
    struct domain domain;
    struct fabric fabric;
    struct duplex pairs[2], *pair; /* by the peer's rank */
    struct duplex *up[2];
    struct exec_group group; /* 0, that of all frames that say none */
} sides[2];

static struct message messages[RING_LOANS + 4]; /* of the sends */
static uint8_t received[BYTES];
static int received_count, sent_count;
static const char groups[GROUPS]; /* owners */

static char warning[1000]; /* the latest */
static int warning_count;

static void host_log(int32_t level, const char *text)
{
    if (level != COMM_LOG_WARN)
        return;
    warning_count++;
    snprintf(warning, sizeof warning, "%s", text);
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

static const comm_host host = { .struct_bytes = sizeof host, .log = host_log, .log_wanted = host_log_wanted,
                                .dtype_bytes = comm_dtype_bytes, .run_waits = host_run_waits,
                                .run_may_wait = host_run_may_wait };

static float local[BYTES]; /* what the receiver reduces with, if it does */
static struct message reduction = { .may_write_back = 1 };
static int reduces;

void __real_copy_part(void *to, const void *from, size_t bytes, int is_long);
void __wrap_copy_part(void *to, const void *from, size_t bytes, int is_long);
static int copied_past; /* so many copies went past the caches */

void __wrap_copy_part(void *to, const void *from, size_t bytes, int is_long)
{
    copied_past += is_long;
    __real_copy_part(to, from, bytes, is_long);
}

static int no_addresses; /* mmap fails */

void *__real_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (!no_addresses)
        return __real_mmap64(at, bytes, protection, flags, fd, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

static void (*meanwhile)(void); /* what the sender does while the receiver reads */
static void (*after_read)(void); /* and when the kernel has read */

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
                                unsigned long from_count, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
                                unsigned long from_count, unsigned long flags);

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
                                unsigned long from_count, unsigned long flags)
{
    ssize_t bytes = __real_process_vm_readv(pid, to, to_count, from, from_count, flags);
    if (after_read)
        after_read();
    return bytes;
}

static void add(void *dst, const void *a, const void *b, size_t count)
{
    if (meanwhile)
        meanwhile();
    for (size_t i = 0; i < count; i++)
        ((float *)dst)[i] = ((const float *)a)[i] + ((const float *)b)[i];
}

static int keeps; /* the receiver has no receive for what comes */
static struct unexpected_list kept;

static void on_begins(struct port *p, const struct frame *h)
{
    if (keeps) {
        struct unexpected *u = unexpected_add(&kept, p, h);
        assert_non_null(u);
        p->sink.kind = SINK_UNEXPECTED;
        p->sink.unexpected = u;
        p->sink.dst = u->data;
        return;
    }
    if (reduces) {
        p->sink.kind = SINK_REDUCE;
        p->sink.dst = (uint8_t *)local;
        p->sink.local = (const uint8_t *)local;
        p->sink.element_bytes = p->sink.result_bytes = sizeof *local;
        p->sink.kernel = add;
        p->sink.message = &reduction;
        return;
    }
    p->sink.kind = SINK_COPY;
    p->sink.dst = received;
    p->sink.dst_bytes = sizeof received;
}

static int completes; /* a work, with each message */

static void on_complete(struct port *p, const struct frame *h)
{
    received_count++;
    if (h->type == FRAME_EAGER)
        port_consumed(p, (size_t)h->bytes);
    duplex_of(p)->fabric->domain->done_count += (size_t)completes;
}

static uint32_t offers[RING_LOANS + 4]; /* of the messages that were announced, in order */
static int announced_count;
static int accepts; /* as soon as they are announced */

static void on_frame(struct port *p, const struct frame *h, const char *text)
{
    (void)text;
    if (h->type != FRAME_RTS)
        return;
    offers[announced_count++] = p->offer;
    if (accepts && p->offer)
        duplex_accept(p, p->offer);
}

static int sent_needs_credit; /* the operation goes on with another message */

static void on_sent(struct message *m)
{
    (void)m;
    sent_count++;
    if (sent_needs_credit)
        port_finds_credit(&sides[0].pair->port, 100);
}

static const struct port_events events = { on_begins, on_complete, on_frame, on_sent };
static const struct port_ops operations = { .send = duplex_send, .give_credit = duplex_give_credit,
                                            .take_credit = duplex_take_credit, .read = duplex_read,
                                            .forget = duplex_forget, .sweep = duplex_sweep };

static size_t ring_bytes = SEGMENT_RING_MIN;

static void open_side(struct side *s, int rank, int memory, int socket)
{
    const uint64_t salts[2] = { 1000, 2000 };
    assert_true(domain_init(&s->domain, "shm", rank, 2, &events));
    s->group = (struct exec_group){ .size = 2 };
    s->domain.buckets[0] = &s->group;
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
    assert_int_equal(segment_map(&s->pair->segment, memory, ring_bytes), 0);
    duplex_up(s->pair, salts);
}

static int open_sides(void **state)
{
    int memory = segment_create(&ring_bytes, NULL), sockets[2];
    (void)state;
    exec_host = &host;
    memset(sides, 0, sizeof sides);
    memset(received, 0, sizeof received);
    received_count = sent_count = reduces = announced_count = accepts = sent_needs_credit = warning_count = 0;
    meanwhile = NULL;
    reduction.written_back = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, sockets), 0);
    open_side(&sides[0], 0, memory, sockets[0]);
    open_side(&sides[1], 1, memory, sockets[1]);
    lend_probe(sides[0].pair);
    close(memory);
    return 0;
}

static int open_sides_with_long_rings(void **state)
{
    ring_bytes = 64 << 10;
    return open_sides(state);
}

static int close_sides(void **state)
{
    (void)state;
    ring_bytes = SEGMENT_RING_MIN;
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

/* A message of BYTES; two of different numbers differ in one byte. */
static uint8_t *message_bytes(int number)
{
    uint8_t *data = random_bytes(malloc(BYTES), BYTES);
    data[BYTES / 2] = (uint8_t)(data[BYTES / 2] + number);
    return data;
}

/* 1 if all of it is sent. */
static int send_number(int i, int kind, const void *payload, size_t bytes)
{
    struct frame h = { .type = FRAME_DATA, .kind = (uint8_t)kind, .group = 7, .seq = (uint64_t)i, .bytes = bytes };
    messages[i] = (struct message){ .owner = &groups[i % GROUPS] };
    return sides[0].pair->port.ops->send(&sides[0].pair->port, &h, payload, bytes, &messages[i]);
}

/* The group of number 0 ends. */
static void take_back(void)
{
    duplex_forget(&sides[0].pair->port, &groups[0]);
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
    uint8_t *data = message_bytes(0);
    (void)state;
    const uint64_t *tail = &sides[0].pair->out.tail[0], before = *tail;
    assert_int_equal(send_number(0, COMM_OP_SEND, data, BYTES), 0);
    assert_int_equal(*tail - before, 2); /* a record without the payload */
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

static void the_sender_learns_of_it_before_the_bye(void **state)
{
    uint8_t *data = message_bytes(0);
    (void)state;
    send_number(0, COMM_OP_SEND, data, BYTES);
    look(1);
    duplex_leave(sides[1].pair);
    while (duplex_read(&sides[0].pair->port)) /* no flush before */
        ;
    assert_int_equal(sent_count, 1);
    free(data);
}

/* Its operation goes on, and takes in the credit that is in front; what follows that is not passed over. */
static void credit_is_taken_in_once_when_one_is_sent(void **state)
{
    enum { OWED = 5000, SHORT = 100 };
    uint8_t *data = message_bytes(0), *other = message_bytes(1);
    struct port *back = &sides[1].pair->port, *port = &sides[0].pair->port;
    struct frame credit = { .type = FRAME_CREDIT };
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = SHORT };
    (void)state;
    sides[0].domain.shares_cores = 1;
    sent_needs_credit = 1;
    send_number(0, COMM_OP_SEND, data, BYTES);
    look(1);
    assert_int_equal(received_count, 1);
    port->credit = 0;
    back->credit_owed = OWED;
    back->eager_held = OWED;
    assert_int_equal(duplex_send(back, &credit, NULL, 0, NULL), 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(duplex_send(back, &h, other, SHORT, NULL), 1);
    while (duplex_read(port)) /* no flush before */
        ;
    assert_int_equal(sent_count, 1);
    assert_int_equal(port->state, PORT_UP);
    assert_int_equal(port->credit, OWED);
    assert_int_equal(received_count, 3);
    free(data);
    free(other);
}

/* The group of number 0 ends while it is lent, and its memory is used for something else; number 1 is of another
 * group. */
static void one_that_is_taken_back_is_not_received(void **state)
{
    uint8_t *data = message_bytes(0), *other = message_bytes(1);
    (void)state;
    send_number(0, COMM_OP_SEND, data, BYTES);
    send_number(1, COMM_OP_SEND, other, BYTES);
    take_back();
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
    uint8_t *data = message_bytes(0);
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

static int suits(struct duplex *p, const struct frame *h, const uint8_t *data)
{
    struct loan l = { .payload = data, .bytes = (size_t)h->bytes };
    return lend_suits(p, h, &l);
}

/* What the kernel does not read for others goes through the ring: here a page without access, which it refuses as it
 * does a device's memory. */
static void memory_that_the_kernel_does_not_read(void **state)
{
    uint8_t *data = mmap(NULL, 2 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_SEND, .bytes = 65536 + 100 };
    (void)state;
    assert_true(data != MAP_FAILED);
    assert_int_equal(mprotect(data + 65536, 65536, PROT_NONE), 0);
    assert_int_equal(suits(sides[0].pair, &h, data), 0);
    h.bytes = 65536;
    assert_int_equal(suits(sides[0].pair, &h, data), 1);
    munmap(data, 2 * 65536);
}

static void what_is_lent(void **state)
{
    static uint8_t data[2 << 20];
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_REDUCE, .bytes = 100000 };
    struct duplex *p = sides[0].pair;
    (void)state;
    assert_int_equal(suits(p, &h, data), 0); /* a reduction: only from a region */
    for (int several = 0; several < 2; several++) { /* or of long vectors, among several ranks */
        const size_t bytes[] = { 1 << 20, (1 << 20) + 4, 16 << 20, (16 << 20) + 4 };
        sides[0].fabric.up_count = several ? 2 : 1;
        for (size_t i = 0; i < 4; i++) {
            h.dtype = COMM_DTYPE_F32;
            h.count = bytes[i] / 4;
            h.kind = COMM_OP_ALL_REDUCE;
            assert_int_equal(suits(p, &h, data), several && (i == 1 || i == 2));
            h.kind = COMM_OP_REDUCE_SCATTER; /* whose count is that of a block, of two or one */
            assert_int_equal(suits(p, &h, data), several && i < 2);
            h.kind = COMM_OP_REDUCE;
            assert_int_equal(suits(p, &h, data), 0);
        }
    }
    sides[0].fabric.up_count = 1;
    h.count = 0;
    h.kind = COMM_OP_BROADCAST;
    assert_int_equal(suits(p, &h, data), 1);
    h.bytes = sizeof data; /* longer than cma_bytes, one way */
    assert_int_equal(suits(p, &h, data), 0);
    h.kind = COMM_OP_ALL_GATHER;
    assert_int_equal(suits(p, &h, data), 1);
    atomic_store(&p->out.shared->can_read, 0);
    assert_int_equal(suits(p, &h, data), 0);
}

/* A thread whose work is complete goes on before the messages for its next operations are read. */
static void what_follows_a_complete_work_waits(void **state)
{
    const uint8_t data[100] = { 0 };
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(send_number(i, COMM_OP_ALL_REDUCE, data, sizeof data), 1);
    completes = 1;
    duplex_read(&sides[1].pair->port);
    assert_int_equal(received_count, 1);
    completes = 0;
    look(1);
    assert_int_equal(received_count, 3);
    sides[1].domain.done_count = 0;
}

enum { MANY = 16384, NOT_NEW = 100 << 20 /* bytes that have gone through a ring */ };
enum { DOUBTS = 64, LONG_DOUBTS = 16, MOST_TRIES = 512 };

/* Of so many. Whoever asks again about a message is told the same. */
static int lent_of_many(struct duplex *p, struct frame *h, uint8_t *data)
{
    int lent = 0;
    for (int i = 0; i < MANY; i++) {
        h->seq++;
        int lends = suits(p, h, data);
        assert_int_equal(suits(p, h, data), lends);
        lent += lends;
    }
    return lent;
}

/* The kernel or the ring, by what they cost: and the other one is tried again, about one message of 256 in
 * the end. */
static void what_is_faster(void **state)
{
    static uint8_t data[1 << 20];
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_BROADCAST, .seq = 100000, .bytes = 65536 };
    struct fabric *f = &sides[0].fabric;
    struct duplex *p = sides[0].pair;
    (void)state;
    assert_int_equal(f->cma_copy_ns, 0);
    f->cma_measured = 1;
    p->probed = 0;
    lend_probe(p);
    assert_true(f->cma_call_ns > 0 && f->cma_copy_ns > 0);
    p->out.copy.times.cached_ns = 0;
    assert_int_equal(suits(p, &h, data), 0); /* not known: the ring */
    f->cma_call_ns = 2000;
    f->cma_copy_ns = 6000;
    p->out.copy.times.cached_ns = 6000;
    p->out.copy.bytes = NOT_NEW;
    assert_int_equal(suits(p, &h, data), 0); /* 8.5 us against 9.3: not clearly */
    p->out.copy.times.cached_ns = 7000;
    assert_int_equal(suits(p, &h, data), 1); /* 8.5 against 10.8 */
    p->out.copy.times.cached_ns = 5000;
    assert_int_equal(suits(p, &h, data), 1); /* 8.5 against 7.8: not clearly either */
    p->out.copy.times.cached_ns = 4500;
    assert_int_equal(suits(p, &h, data), 0); /* 8.5 against 7.1 */
    h.bytes = 8192;
    p->out.copy.times.cached_ns = 6000;
    assert_int_equal(suits(p, &h, data), 0); /* the call costs too much */
    h.bytes = 1 << 20;
    assert_int_equal(suits(p, &h, data), 0); /* both copy at the same time: 98 us against 104 */
    h.kind = COMM_OP_BROADCAST;
    p->out.copy.times.cached_ns = 7500;
    p->out.copy.looks = 0;
    assert_in_range(lent_of_many(p, &h, data), MANY - 96, MANY - 32);
    assert_true(p->out.copy.tries.copies > 0); /* what goes to the ring is to be measured, or fills it */
    p->out.copy.tries.copies = 0;
    /* The peer has found it so: 154 us against 129. */
    atomic_store(&sides[1].pair->in.shared->read_ns[1], 9500);
    assert_in_range(lent_of_many(p, &h, data), 32, 96);
    h.seq = 0;
    assert_in_range(lent_of_many(p, &h, data), 32, 96); /* not more often at first */
    atomic_store(&sides[1].pair->in.shared->read_ns[1], 20000);
    assert_in_range(lent_of_many(p, &h, data), 4, 31); /* much slower */
    assert_int_equal(p->out.copy.tries.copies, 0);
    p->out.copy.times.cached_ns = 5000;
    assert_int_equal(lent_of_many(p, &h, data), 0); /* the kernel could not win if it were as fast as it can be */
    p->out.copy.way = COPY_OUT_MEASURED;
    p->out.copy.times.cached_ns = 30000;
    p->out.copy.times.past_ns = 3000;
    assert_int_equal(copy_out_ns(&p->out.copy, 1), 5375); /* past the caches */
    assert_int_equal(lent_of_many(p, &h, data), 0);
    atomic_store(&sides[1].pair->in.shared->take_ns[0][COPY_OUT_PAST], 25000); /* 322 us against 417 */
    assert_in_range(lent_of_many(p, &h, data), MANY - 96, MANY - 32);
}

static void note_copies(struct duplex *p, int64_t cached_ns, uint32_t reader_ns)
{
    p->out.copy = (struct copy_out){ .way = COPY_OUT_CACHED, .bytes = NOT_NEW, .times.cached_ns = cached_ns,
                                     .reader_ns = p->out.copy.reader_ns, .taken_ns = p->out.copy.taken_ns };
    atomic_store(&p->out.shared->take_ns[COPY_OUT_SENDER][COPY_OUT_CACHED], reader_ns);
}

/* Where both ranks send each copies twice if it is the ring. The lower rank decides for both, for each size. */
static void both_go_the_same_way(void **state)
{
    static uint8_t data[1 << 20];
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_GATHER, .dtype = COMM_DTYPE_F32, .count = 1 << 18,
                       .seq = 100000, .bytes = 1 << 20 };
    struct duplex *lower = sides[0].pair, *higher = sides[1].pair;
    (void)state;
    lend_probe(higher);
    for (int i = 0; i < 2; i++) {
        sides[i].fabric.cma_measured = 1;
        sides[i].fabric.cma_call_ns = 2000;
        sides[i].fabric.cma_copy_ns = 5000;
        atomic_store(&sides[i].pair->in.shared->read_ns[0], 6000);
    }
    note_copies(higher, 1000000, 1000000);
    note_copies(lower, 1000000, 0);
    assert_int_equal(suits(lower, &h, data), 0); /* nothing is known of the reader */
    note_copies(lower, 2700, 2064);
    assert_int_equal(suits(lower, &h, data), 0); /* the kernel takes 98.5 us, the ring 101.9: not clearly more */
    assert_in_range(lent_of_many(lower, &h, data), 1, MOST_TRIES);
    assert_in_range(lent_of_many(higher, &h, data), 1, MOST_TRIES); /* though its own copies are slow */
    lower->take_ns[COPY_OUT_SENDER][COPY_OUT_CACHED] = 2305; /* 106.9: its own part is the longer one */
    assert_in_range(lent_of_many(lower, &h, data), MANY - MOST_TRIES, MANY - 1);
    lower->take_ns[COPY_OUT_SENDER][COPY_OUT_CACHED] = 0;
    lower->read_ns[0] = 8000; /* 130.5 */
    assert_in_range(lent_of_many(lower, &h, data), 1, MOST_TRIES);
    lower->read_ns[0] = 5000; /* the other one's is longer */
    note_copies(lower, 2700, 2305);
    assert_in_range(lent_of_many(lower, &h, data), MANY - MOST_TRIES, MANY - 1); /* 106.9 */
    note_copies(lower, 2700, 1988);
    assert_in_range(lent_of_many(lower, &h, data), MANY - MOST_TRIES, MANY - 1); /* 100.3: it is in use */
    note_copies(higher, 1000, 1000);
    assert_in_range(lent_of_many(higher, &h, data), MANY - MOST_TRIES, MANY - 1);
    h.seq -= MANY;
    assert_in_range(lent_of_many(lower, &h, data), MANY - MOST_TRIES, MANY - 1);
    for (int i = 0; i < MANY; i++, h.seq++) /* those that are tries, too */
        assert_int_equal(suits(lower, &h, data), suits(higher, &h, data));
    h.bytes = 1 << 18;
    assert_int_equal(suits(higher, &h, data), 0); /* nothing is known of that size yet */
    note_copies(lower, 1000, 1000);
    h.bytes = 1 << 20;
    assert_in_range(lent_of_many(lower, &h, data), 1, LONG_DOUBTS);
    assert_int_equal(lent_of_many(lower, &h, data), 0); /* the kernel could not win */
    assert_int_equal(lent_of_many(higher, &h, data), 0);
    const size_t block = (2 << 20) / 4 / 3 + 1; /* of an operation that no cache holds, among several ranks */
    for (int several = 0; several < 2; several++)
        for (h.count = block - 1; h.count <= block; h.count++) {
            sides[0].domain.peers.size = sides[1].domain.peers.size = 2 + 14 * several;
            sides[0].group.size = sides[1].group.size = 2 + several;
            assert_int_equal(suits(lower, &h, data), several && h.count == block);
            assert_int_equal(suits(higher, &h, data), several && h.count == block);
        }
    sides[0].domain.peers.size = sides[1].domain.peers.size = sides[0].group.size = sides[1].group.size = 2;
    for (h.bytes = 1, h.count = 1; h.bytes; h.bytes <<= 1) { /* any size that a peer may say */
        suits(lower, &h, data);
        suits(higher, &h, data);
    }
}

/* Whether the kernel reads the next `count` messages of so many bytes; each is asked for once. */
static int lent_of(int count, struct frame *h, uint8_t *data)
{
    int lent = 0;
    for (int i = 0; i < count; i++, h->seq++)
        lent += suits(sides[0].pair, h, data);
    return lent;
}

static void know_reads(void)
{
    lend_probe(sides[1].pair);
    sides[0].fabric.cma_measured = 1;
    sides[0].fabric.cma_call_ns = 2000;
    sides[0].fabric.cma_copy_ns = 5000;
    atomic_store(&sides[1].pair->in.shared->read_ns[0], 6000);
}

static int goes_by_kernel(const struct frame *h)
{
    return sides[0].pair->choices[63 - __builtin_clzll(h->bytes)].way & WAY_KERNEL;
}

/* The first messages of an operation, or in new memory, are slow; the next ones say more: 64, or 16 that are long. */
static void a_way_changes_when_it_has_been_slower_for_some_messages(void **state)
{
    static uint8_t data[1 << 20];
    (void)state;
    know_reads();
    for (int is_long = 0; is_long < 2; is_long++) {
        struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_GATHER, .dtype = COMM_DTYPE_F32, .count = 1 << 18,
                           .seq = 100000, .bytes = is_long ? 1 << 20 : 100000 };
        const int doubts = is_long ? LONG_DOUBTS : DOUBTS;
        sides[0].pair->choices[16].asked = 0;
        for (int way = 0; way < 2; way++) {
            const int64_t slow_ns = way ? 1000 : 3400, fast_ns = 4400 - slow_ns; /* of the ring */
            note_copies(sides[0].pair, slow_ns, (uint32_t)slow_ns);
            lent_of(doubts - 1, &h, data);
            assert_int_equal(goes_by_kernel(&h), way ? WAY_KERNEL : 0);
            note_copies(sides[0].pair, fast_ns, (uint32_t)fast_ns); /* it was nothing */
            lent_of(1, &h, data);
            note_copies(sides[0].pair, slow_ns, (uint32_t)slow_ns);
            lent_of(doubts - 1, &h, data);
            assert_int_equal(goes_by_kernel(&h), way ? WAY_KERNEL : 0);
            lent_of(1, &h, data);
            assert_int_equal(goes_by_kernel(&h), way ? 0 : WAY_KERNEL);
        }
    }
}

/* A row of 8, and of 256 at last. */
static void a_new_way_is_doubted_more_often(void **state)
{
    enum { ROW = 16 };
    static uint8_t data[1 << 20];
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_GATHER, .dtype = COMM_DTYPE_F32, .count = 1 << 18,
                       .seq = 100000, .bytes = 1 << 20 };
    (void)state;
    know_reads();
    note_copies(sides[0].pair, 1000, 1000);
    lent_of(1 << 20, &h, data); /* another way is an old one */
    note_copies(sides[0].pair, 3400, 3400);
    lent_of(LONG_DOUBTS, &h, data);
    assert_true(goes_by_kernel(&h));
    int early = 256 * ROW - lent_of(256 * ROW, &h, data);
    lent_of(4096 * ROW, &h, data);
    int late = 4096 * ROW - lent_of(4096 * ROW, &h, data);
    assert_in_range(early, 8 * ROW, 40 * ROW);
    assert_in_range(late, 8 * ROW, 32 * ROW);
    for (int much = 0; much < 2; much++) { /* and for longer if the other one is not much slower */
        note_copies(sides[0].pair, 1000, 1000);
        lent_of(LONG_DOUBTS, &h, data);
        note_copies(sides[0].pair, much ? 6000 : 3400, much ? 6000 : 3400);
        lent_of(LONG_DOUBTS, &h, data);
        int first = 16 * ROW - lent_of(16 * ROW, &h, data), next = 48 * ROW - lent_of(48 * ROW, &h, data);
        assert_in_range(first, ROW, 4 * ROW);
        assert_in_range(next, (much ? 0 : 4) * ROW, (much ? 2 : 12) * ROW);
    }
    sides[0].fabric.up_count = 2; /* but not among several ranks */
    note_copies(sides[0].pair, 500, 500);
    lent_of(LONG_DOUBTS, &h, data);
    assert_false(goes_by_kernel(&h));
    assert_int_equal(sides[0].pair->choices[20].way / WAY_OFTEN, 0);
    sides[0].fabric.up_count = 1;
}

/* Several ranks wait for each other's pieces; those that share cores let others run meanwhile. */
static void waits_of_ranks_that_share_cores_cost_nothing(void **state)
{
    static uint8_t data[1 << 20];
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_GATHER, .dtype = COMM_DTYPE_F32, .count = 1 << 18,
                       .seq = 100000, .bytes = 1 << 20 };
    (void)state;
    know_reads();
    note_copies(sides[0].pair, 2500, 2500); /* together a sixth less than a read by the kernel */
    for (int several = 0; several < 2; several++)
        for (int shares_cores = 0; shares_cores < 2; shares_cores++) {
            sides[0].fabric.up_count = several ? 2 : 1;
            sides[0].domain.shares_cores = shares_cores;
            sides[0].pair->choices[20] = (struct ring_choice){ 0 };
            lent_of(2 * LONG_DOUBTS, &h, data);
            assert_int_equal(goes_by_kernel(&h), shares_cores ? 0 : WAY_KERNEL);
        }
    sides[0].fabric.up_count = 1;
    sides[0].domain.shares_cores = 0;
}

static void the_first_of_a_size_goes_as_shorter_ones_did(void **state)
{
    static uint8_t data[1 << 20];
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_GATHER, .dtype = COMM_DTYPE_F32, .count = 1 << 18 };
    (void)state;
    know_reads();
    note_copies(sides[0].pair, 3400, 3400);
    h.bytes = 1 << 17;
    lent_of(DOUBTS, &h, data);
    note_copies(sides[0].pair, 1000, 1000);
    h.bytes = 1 << 16;
    lent_of(1, &h, data);
    assert_false(goes_by_kernel(&h));
    h.bytes = 1 << 20;
    lent_of(1, &h, data);
    assert_true(goes_by_kernel(&h));
}

/* Where the ring is tried the first messages of the row fill it, and the copies of the last ones are measured, all
 * pieces of each: in one row through the caches, and in the next one past them. Also if only one in some messages is of
 * the size, and each is asked about again. */
static void copies_to_a_ring_that_is_tried_are_measured_late(void **state)
{
    static uint8_t data[1 << 20];
    static const size_t sizes[] = { 64 << 10, 256 << 10, 1 << 20 };
    struct duplex *p = sides[0].pair;
    (void)state;
    know_reads();
    for (size_t i = 0; i < 3; i++)
        for (uint64_t stride = 1; stride <= 3; stride += 2) {
            struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_GATHER, .dtype = COMM_DTYPE_F32,
                               .count = 1 << 18, .bytes = sizes[i] };
            const size_t row = (8 << 20) / sizes[i] < 16 ? 16 : (8 << 20) / sizes[i];
            size_t tries = 0;
            memset(p->choices, 0, sizeof p->choices);
            note_copies(p, 9000, 9000);
            lent_of(DOUBTS, &h, data);
            p->tries = 0;
            for (h.seq = 10000; h.seq < 10000 + 512 * stride * row; h.seq += stride) {
                p->out.copy.tries.copies = 0;
                int lends = suits(p, &h, data);
                assert_int_equal(suits(p, &h, data), lends);
                if (lends)
                    continue;
                assert_int_equal(p->out.copy.tries.way, tries / row % 2 ? COPY_OUT_PAST : COPY_OUT_CACHED);
                assert_int_equal(p->out.copy.tries.is_measured, tries % row >= row / 4 * 3);
                assert_true(p->out.copy.tries.copies * ring_piece_bytes(p->out.capacity) >= sizes[i]);
                tries++;
            }
            assert_true(tries >= row);
        }
}

/* The ways that a peer has said may be anything. */
static void senseless_ways(void **state)
{
    static uint8_t data[1 << 20];
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_TO_ALL, .bytes = 1 << 20 };
    (void)state;
    lend_probe(sides[1].pair);
    sides[1].fabric.cma_measured = 1;
    for (unsigned way = 0; way < 256; way++) {
        atomic_store(&sides[0].pair->out.shared->ways[20], (uint8_t)way);
        for (h.seq = 0; h.seq < 100; h.seq++)
            assert_in_range(suits(sides[1].pair, &h, data), 0, 1);
    }
}

/* ---- Offers ---- */

/* 1 if it is offered, and not only announced. */
static int announce(int i, int kind, uint8_t *payload, size_t bytes)
{
    struct frame h = { .type = FRAME_RTS, .kind = (uint8_t)kind, .group = 7, .seq = (uint64_t)i, .bytes = bytes };
    messages[i] = (struct message){ .owner = &groups[i % GROUPS], .data = payload, .bytes = bytes };
    return duplex_offer(&sides[0].pair->port, &h, &messages[i]);
}

/* What the kernel takes to read its messages the receiver measures, and the sender knows. */
static void the_sender_knows_what_reads_take(void **state)
{
    uint8_t *data = message_bytes(0);
    struct ring_shared *shared = sides[0].pair->out.shared;
    (void)state;
    accepts = 1;
    for (int i = 0; i < 10; i++) { /* two are cold, and four are needed */
        assert_int_equal(announce(0, COMM_OP_SEND, data, i < 4 ? LEND_EAGER_LEAST - 1 : BYTES), 1);
        look(1);
        look(0);
        assert_int_equal(sides[1].pair->read_ns[1] > 0, i >= 6);
        assert_int_equal(atomic_load(&shared->read_ns[1]) > 0, i >= 9);
    }
    /* Each after a piece from the ring, and so each cold. */
    atomic_store(&shared->read_ns[1], 0);
    for (int i = 0; i <= 32; i++) {
        sides[1].pair->pieces++;
        announced_count = 0;
        assert_int_equal(announce(0, COMM_OP_SEND, data, BYTES), 1);
        look(1);
        look(0);
        assert_int_equal(atomic_load(&shared->read_ns[1]) > 0, i == 32);
    }
    free(data);
}

/* What it takes to copy from the ring the receiver measures, too, for each way that the sender's copies went. */
static void the_sender_knows_what_copies_from_the_ring_take(void **state)
{
    enum { LONG = 1 << 20 };
    uint8_t *data = calloc(1, LONG);
    struct ring_shared *shared = sides[0].pair->out.shared;
    (void)state;
    assert_non_null(data);
    sides[0].fabric.cma_bytes = 0;
    for (int way = COPY_OUT_CACHED; way < COPY_OUT_WAYS; way++) {
        sides[0].pair->out.copy.way = (enum copy_out_way)way;
        for (int both = 0; both < 2; both++) {
            const enum copy_out_reader reader = both ? COPY_OUT_SENDER : COPY_OUT_COPIER;
            const int number = 2 * way + both;
            assert_int_equal(atomic_load(&shared->take_ns[reader][way]), 0);
            send_number(number, both ? COMM_OP_ALL_GATHER : COMM_OP_BROADCAST, data, LONG);
            for (int i = 0; i < 1000 && received_count <= number; i++) {
                look(1);
                look(0);
            }
            assert_int_equal(received_count, number + 1);
            assert_true(atomic_load(&shared->take_ns[reader][way]) > 0);
            assert_int_equal(atomic_load(&shared->take_ns[COPY_OUT_REDUCER][way]), 0);
        }
    }
    free(data);
}

/* Memory that the kernel might read is observed, also while it goes through the ring. */
static void huge_pages_are_asked_for_what_may_be_lent(void **state)
{
    enum { LONG = HUGE_PAGE_BYTES / 2 };
    static const struct {
        int kind;
        size_t bytes;
        int can_read, is_observed;
    } cases[] = { { COMM_OP_ALL_GATHER, LONG, 1, 1 },     { COMM_OP_ALL_TO_ALL, LONG + 1, 1, 1 },
                  { COMM_OP_ALL_GATHER, LONG - 1, 1, 0 }, { COMM_OP_ALL_GATHER, LONG, 0, 0 },
                  { COMM_OP_BROADCAST, LONG, 1, 0 },      { COMM_OP_REDUCE_SCATTER, LONG, 1, 0 },
                  { COMM_OP_SEND, LONG, 1, 0 } };
    struct huge_pages *h = &sides[0].domain.huge_pages;
    (void)state;
    h->uses = 1000;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct huge_page *page = &h->known[7];
        const struct loan loan = { .payload = (const uint8_t *)((uintptr_t)7 * HUGE_PAGE_BYTES),
                                   .bytes = cases[i].bytes };
        const struct frame head = { .type = FRAME_DATA, .kind = (uint8_t)cases[i].kind, .bytes = cases[i].bytes };
        *page = (struct huge_page){ .number = 7, .farther = 1 };
        atomic_store(&sides[0].pair->out.shared->can_read, (uint32_t)cases[i].can_read);
        lend_not(sides[0].pair, &head, &loan);
        assert_int_equal(page->moved, cases[i].is_observed ? cases[i].bytes : 0);
    }
}

/* In a message that goes one way both copy at a time: two cores of one die of Zen 4. Where each sends and receives, it
 * is what both copies take together, by what such a reader has told. */
static void the_slower_copy_decides_where_both_copy_at_a_time(void **state)
{
    enum { LONG = 1 << 20, UNMEASURED = 1026 };
    static const struct {
        int kind, is_past;
    } cases[] = { { COMM_OP_BROADCAST, 1 }, { COMM_OP_ALL_GATHER, 0 }, { COMM_OP_SEND, 1 }, { COMM_OP_ALL_TO_ALL, 0 } };
    uint8_t *data = calloc(1, LONG);
    struct ring_out *out = &sides[0].pair->out;
    (void)state;
    assert_non_null(data);
    sides[0].fabric.cma_bytes = 0;
    for (int i = 0; i < 4; i++) {
        out->copy.way = COPY_OUT_MEASURED;
        out->copy.times.copies = UNMEASURED; /* the next five are */
        out->copy.bytes = NOT_NEW;
        out->copy.times.cached_ns = 5600;
        out->copy.times.past_ns = 1900;
        atomic_store(&out->shared->take_ns[0][COPY_OUT_CACHED], 1500);
        atomic_store(&out->shared->take_ns[0][COPY_OUT_PAST], 3500);
        atomic_store(&out->shared->take_ns[COPY_OUT_SENDER][COPY_OUT_CACHED], 1500);
        atomic_store(&out->shared->take_ns[COPY_OUT_SENDER][COPY_OUT_PAST], 6000);
        copied_past = 0;
        send_number(i, cases[i].kind, data, LONG);
        assert_true(cases[i].is_past ? copied_past >= 5 : copied_past == 0);
        assert_int_equal(out->copy.overlaps, 0); /* what is written at once next does not */
        for (int k = 0; k < 1000 && received_count <= i; k++) {
            look(1);
            look(0);
        }
        assert_int_equal(received_count, i + 1);
    }
    free(data);
}

static void one_is_read_when_it_is_announced(void **state)
{
    uint8_t *data = message_bytes(0);
    (void)state;
    accepts = 1;
    for (int i = 0; i < 3; i++) {
        memset(received, 0, sizeof received);
        assert_int_equal(announce(0, COMM_OP_SEND, data, BYTES), 1);
        look(1);
        assert_int_equal(received_count, i + 1);
        assert_memory_equal(received, data, BYTES);
        look(0);
        assert_int_equal(sent_count, i + 1);
        assert_int_equal(sides[0].pair->loans, 0);
    }
    free(data);
}

/* In another order than that in which they were announced, and while another message comes through the ring. */
static void one_is_read_when_it_is_wanted(void **state)
{
    uint8_t *data = message_bytes(0), *other = message_bytes(1);
    (void)state;
    assert_int_equal(announce(0, COMM_OP_SEND, data, BYTES), 1);
    assert_int_equal(announce(1, COMM_OP_SEND, other, BYTES), 1);
    look(1);
    assert_int_equal(announced_count, 2);
    assert_int_equal(received_count, 0);
    duplex_accept(&sides[1].pair->port, offers[1]);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, other, BYTES);
    sides[0].fabric.cma_bytes = 0;
    assert_int_equal(send_number(2, COMM_OP_SEND, other, BYTES), 0);
    duplex_read(&sides[1].pair->port); /* its beginning, as far as the ring holds it */
    assert_int_not_equal(sides[1].pair->port.in.type, 0);
    duplex_accept(&sides[1].pair->port, offers[0]);
    for (int i = 0; i < 1000 && sent_count < 3; i++) {
        look(1);
        look(0);
    }
    assert_int_equal(received_count, 3);
    assert_memory_equal(received, data, BYTES);
    assert_int_equal(sides[0].pair->loans, 0);
    free(data);
    free(other);
}

/* The group of number 0 ends before its message is read; the slot is used for number 1, which is of another group. */
static void an_offer_that_is_taken_back_is_not_received(void **state)
{
    uint8_t *data = message_bytes(0), *other = message_bytes(1);
    (void)state;
    announce(0, COMM_OP_SEND, data, BYTES);
    look(1);
    take_back();
    memset(data, 0xee, BYTES);
    duplex_accept(&sides[1].pair->port, offers[0]);
    look(1);
    assert_int_equal(received_count, 0);
    announce(2, COMM_OP_SEND, data, BYTES);
    look(1);
    take_back();
    announce(1, COMM_OP_SEND, other, BYTES);
    look(1);
    assert_int_equal(sides[1].pair->offers[0].place.loan, offers[2]);
    duplex_accept(&sides[1].pair->port, offers[1]);
    look(1);
    assert_int_equal(received_count, 0);
    duplex_accept(&sides[1].pair->port, offers[2]);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, other, BYTES);
    free(data);
    free(other);
}

/* Numbers of loans come again. One that was taken back long ago, in another slot, has the number of this one. */
static void the_number_of_an_old_offer_comes_again(void **state)
{
    uint8_t *data = message_bytes(0), *other = message_bytes(1);
    (void)state;
    announce(0, COMM_OP_SEND, data, BYTES);
    announce(2, COMM_OP_SEND, data, BYTES);
    look(1);
    take_back();
    assert_int_equal(sides[0].pair->loans, 0);
    sides[0].pair->loan = offers[0];
    announce(1, COMM_OP_SEND, other, BYTES);
    look(1);
    assert_int_equal(offers[2], offers[1]);
    duplex_accept(&sides[1].pair->port, offers[2]);
    assert_int_equal(sides[1].pair->accepted, 1 << 0);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, other, BYTES);
    free(data);
    free(other);
}

/* An offer without a message, for group 0; its record is in front of the other side's ring. */
static struct tx *offer_at_once(struct frame *h, const struct loan *loan, struct ring_place *ret_place)
{
    const struct ring_record *record;
    struct tx *tx = duplex_draft_offer(sides[0].pair, h, loan);
    assert_non_null(tx);
    duplex_make_offer(sides[0].pair, h, tx, &groups[0]);
    assert_int_equal(ring_look(&sides[1].pair->in, &record), RING_FRAME);
    *ret_place = ring_place(record);
    return tx;
}

/* It is read; it is taken back; it is read, and then given to a message. */
static void one_that_is_read_at_once(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_SEND, .group = 7, .bytes = BYTES };
    struct duplex *from = sides[0].pair, *to = sides[1].pair;
    const struct loan loan = { .payload = data, .bytes = BYTES };
    struct ring_place place;
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct tx *tx = offer_at_once(&h, &loan, &place);
        assert_int_equal(duplex_is_read(from, tx), 0);
        memset(received, 0, BYTES);
        if (i == 1) {
            duplex_forget(&from->port, &groups[0]);
            assert_int_equal(lend_read_now(to, &h, &place, received), 0);
            duplex_took(to, FRAME_RTS, (size_t)h.bytes, h.credit);
            continue;
        }
        assert_int_equal(lend_read_now(to, &h, &place, received), 1);
        assert_memory_equal(received, data, BYTES);
        assert_int_equal(duplex_is_read(from, tx), 1);
        duplex_took(to, FRAME_RTS, (size_t)h.bytes, h.credit);
        look(0); /* which has no message for it */
        assert_int_equal(sent_count, 0);
        if (i == 0)
            duplex_end_offer(from, tx);
        messages[0] = (struct message){ .owner = &groups[0], .data = data };
        assert_int_equal(duplex_adopt(&from->port, &messages[0]), i == 2);
        look(0);
        assert_int_equal(sent_count, i == 2);
        assert_int_equal(from->loans, 0);
    }
    free(data);
}

/* Between its being read and its receiver's saying so: what was read may be anything. */
static void one_that_is_taken_back_while_it_is_read_at_once(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_SEND, .group = 7, .bytes = BYTES };
    struct ring_place place;
    (void)state;
    offer_at_once(&h, &(struct loan){ .payload = data, .bytes = BYTES }, &place);
    after_read = take_back;
    assert_int_equal(lend_read_now(sides[1].pair, &h, &place, received), 0);
    after_read = NULL;
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    assert_int_not_equal(atomic_load(&sides[0].pair->out.shared->taken[place.slot]), place.loan);
    free(data);
}

/* The receiver reads what was offered at once and leaves, before the sender has submitted its op. */
static void one_that_is_read_by_a_peer_that_leaves(void **state)
{
    uint8_t *data = message_bytes(0), *other = message_bytes(1), *third = message_bytes(2);
    struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_SEND, .group = 7, .bytes = BYTES };
    struct duplex *from = sides[0].pair, *to = sides[1].pair;
    struct ring_place place;
    (void)state;
    offer_at_once(&h, &(struct loan){ .payload = data, .bytes = BYTES }, &place);
    assert_int_equal(lend_read_now(to, &h, &place, received), 1);
    duplex_took(to, FRAME_RTS, (size_t)h.bytes, h.credit);
    offer_at_once(&h, &(struct loan){ .payload = other, .bytes = BYTES }, &place);
    assert_int_equal(lend_read_now(to, &h, &place, received), 1);
    duplex_took(to, FRAME_RTS, (size_t)h.bytes, h.credit);
    offer_at_once(&h, &(struct loan){ .payload = third, .bytes = BYTES }, &place);
    port_left(&from->port);
    duplex_sweep(&from->port);
    assert_int_equal(from->port.interest, 0);
    uint8_t *const all[] = { data, third, data, other };
    static const enum port_begun are[] = { PORT_READ, PORT_OFFERED, PORT_NOT_OFFERED, PORT_NOT_OFFERED };
    for (int i = 0; i < 4; i++) {
        messages[i] = (struct message){ .owner = &groups[0], .data = all[i] };
        assert_int_equal(duplex_adopt(&from->port, &messages[i]), are[i]);
        if (i == 2)
            take_back();
    }
    free(data);
    free(other);
    free(third);
}

/* A peer that is lost to this rank may live, and must not read what is then written over that. */
static void one_that_nobody_waits_for_as_the_peer_is_lost(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_BROADCAST, .group = 7, .bytes = LEND_EAGER_LEAST };
    struct loan loan = { .payload = data, .bytes = LEND_EAGER_LEAST, .place = { .at = (uintptr_t)data } };
    struct duplex *from = sides[0].pair, *to = sides[1].pair;
    (void)state;
    duplex_put_lent(from, &h, &loan);
    assert_int_equal(lend_is_valid(to, &loan.place), 1);
    port_left(&from->port);
    duplex_sweep(&from->port);
    assert_int_equal(lend_is_valid(to, &loan.place), 0);
    assert_int_equal(lend_claim(to, &loan.place), 0);
    free(data);
}

/* What nothing is waiting for must not keep others from being lent. */
static void a_half_of_the_slots_is_for_offers(void **state)
{
    uint8_t *data = message_bytes(0);
    (void)state;
    for (int i = 0; i < RING_LOANS; i++)
        assert_int_equal(announce(i, COMM_OP_SEND, data, BYTES), i < RING_LOANS / 2);
    look(1);
    assert_int_equal(announced_count, RING_LOANS);
    for (int i = 0; i < RING_LOANS; i++)
        assert_int_equal(offers[i] != 0, i < RING_LOANS / 2);
    assert_int_equal(send_number(RING_LOANS, COMM_OP_SEND, data, BYTES), 0);
    assert_non_null(sides[0].pair->lent_head);
    assert_int_equal(__builtin_popcount(sides[0].pair->loans), RING_LOANS / 2 + 1);
    free(data);
}

static void the_kernel_does_not_write(void)
{
    atomic_store(&sides[0].pair->out.shared->can_write, 0);
}

/* The receiver has mapped the staging area. */
static void make_staging_area(void)
{
    static const uint8_t payload[8];
    static uint8_t result[8];
    struct frame h = { .kind = COMM_OP_ALL_REDUCE };
    struct loan l = { .payload = payload, .bytes = sizeof payload, .write_back = result };
    the_kernel_does_not_write();
    assert_int_equal(lend_suits(sides[0].pair, &h, &l), 0);
    look(1);
    assert_int_equal(lend_suits(sides[0].pair, &h, &l), 1);
}

/* One copy is staged at a time. */
static void an_offer_that_is_staged(void **state)
{
    static uint8_t data[1000];
    (void)state;
    make_staging_area();
    for (int i = 0; i < 2; i++) {
        struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_ALL_REDUCE, .group = 7, .bytes = sizeof data };
        messages[i] = (struct message){ .owner = groups, .data = data, .bytes = sizeof data, .write_back = data };
        assert_int_equal(duplex_offer(&sides[0].pair->port, &h, &messages[i]), i == 0);
    }
}

/* ---- Who sleeps is woken ---- */

static int roused;

static void count_rousing(struct domain *d)
{
    (void)d;
    roused++;
}

/* The helper sleeps, and another thread takes the ring of the bell for itself. The next message must ring again, or the
 * helper look for it. */
static void a_bell_that_another_thread_hears(void **state)
{
    static const struct carrier_driver driver = { .rouse_helper = count_rousing };
    struct fabric *f = &sides[1].fabric;
    static const uint8_t data[8];
    (void)state;
    roused = f->has_barrier = 0;
    f->driver = &driver;
    sides[0].pair->bell = dup(f->bell.fd);
    assert_int_equal(events_asleep(f), 1);
    send_number(0, COMM_OP_SEND, data, sizeof data);
    assert_int_equal(atomic_load(&sides[0].pair->out.shared->asleep), 0);
    events_turn(f, 0);
    assert_int_equal(f->is_asleep, 0);
    assert_int_equal(roused, 1);
    look(1);
    assert_int_equal(received_count, 1);
    assert_int_equal(events_asleep(f), 1);
    send_number(1, COMM_OP_SEND, data, sizeof data);
    events_turn(f, 0);
    assert_int_equal(roused, 2);
}

/* Its receive comes when the helper sleeps already, and the peer has rung. */
static void an_offer_that_is_wanted_while_the_helper_sleeps(void **state)
{
    static const struct carrier_driver driver = { .rouse_helper = count_rousing };
    struct fabric *f = &sides[1].fabric;
    uint8_t *data = message_bytes(0);
    (void)state;
    assert_int_equal(announce(0, COMM_OP_SEND, data, BYTES), 1);
    look(1);
    roused = f->has_barrier = 0;
    f->driver = &driver;
    assert_int_equal(events_asleep(f), 1);
    duplex_accept(&sides[1].pair->port, offers[0]);
    assert_int_equal(roused, 1);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, data, BYTES);
    free(data);
}

/* This side sleeps; and, after what the other side has done: was its bell rung? */
static void sleep_at(int side)
{
    atomic_store(&sides[side].pair->in.shared->asleep, 1);
}

static void expect_rung(int side)
{
    assert_int_equal(atomic_load(&sides[side].pair->in.shared->asleep), 0);
}

static void a_receiver_that_sleeps_is_woken(void **state)
{
    uint8_t *data = message_bytes(0);
    (void)state;
    sleep_at(1);
    assert_int_equal(send_number(0, COMM_OP_SEND, data, BYTES), 0); /* lent */
    expect_rung(1);
    sleep_at(1);
    assert_int_equal(send_number(1, COMM_OP_SEND, data, 0), 1);
    expect_rung(1);
    sleep_at(1);
    assert_int_equal(announce(2, COMM_OP_SEND, data, BYTES), 1);
    expect_rung(1);
    free(data);
}

static void a_sender_that_sleeps_is_woken_when_all_is_read(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_SEND, .group = 7, .bytes = BYTES };
    struct ring_place place;
    (void)state;
    send_number(0, COMM_OP_SEND, data, BYTES);
    sleep_at(0);
    look(1);
    expect_rung(0);
    struct tx *tx = offer_at_once(&h, &(struct loan){ .payload = data, .bytes = BYTES }, &place);
    sleep_at(0);
    assert_int_equal(lend_read_now(sides[1].pair, &h, &place, received), 1);
    expect_rung(0);
    duplex_end_offer(sides[0].pair, tx);
    free(data);
}

/* It cannot be lent, and the ring is too small for it. */
static void a_sender_that_sleeps_is_woken_when_there_is_space(void **state)
{
    uint8_t *data = message_bytes(0);
    (void)state;
    sides[0].fabric.cma_bytes = 0;
    assert_int_equal(send_number(0, COMM_OP_SEND, data, BYTES), 0);
    assert_int_equal(atomic_load(&sides[0].pair->out.shared->waits), 1);
    sleep_at(0);
    look(1);
    expect_rung(0);
    assert_int_equal(duplex_has_news(sides[0].pair), 1);
    sleep_at(1);
    duplex_flush(sides[0].pair);
    expect_rung(1);
    free(data);
}

/* ---- At once ---- */

static struct box boxes[2];

/* A group as it is on that side, without any op. */
static struct exec_group group_at(int side)
{
    static int32_t ranks[] = { 0, 1 };
    static struct waiting waiting;
    static atomic_int contenders;
    static atomic_uint runs;
    memset(boxes, 0, sizeof boxes);
    sides[side].fabric.looks = (struct carrier_looks){ &waiting, &contenders, &runs };
    return (struct exec_group){ .domain = &sides[side].domain, .id = 7, .rank = side, .size = 2,
                                .world_ranks = ranks, .p2p_boxes = boxes };
}

static comm_status send_at_once(struct exec_group *g, uint8_t *data, size_t bytes)
{
    const comm_op op = { .kind = COMM_OP_SEND, .root = 1, .element_bytes = 1,
                         .send = { .data = data, .count = bytes } };
    return message_run(&sides[0].fabric, g, &op, 0);
}

static comm_status receive_at_once(struct exec_group *g)
{
    const comm_op op = { .kind = COMM_OP_RECV, .element_bytes = 1, .recv = { .data = received, .count = BYTES } };
    return message_run(&sides[1].fabric, g, &op, 0);
}

/* What is offered is not read soon, and then it is. */
static void a_rank_that_sleeps_is_woken_at_once(void **state)
{
    uint8_t *data = message_bytes(0);
    struct exec_group from = group_at(0), to = group_at(1);
    (void)state;
    sleep_at(1);
    assert_int_equal(send_at_once(&from, data, BYTES), COMM_IN_PROGRESS);
    expect_rung(1);
    sleep_at(0);
    assert_int_equal(receive_at_once(&to), COMM_OK);
    expect_rung(0);
    assert_memory_equal(received, data, BYTES);
    free(data);
}

/* Messages of one rank for another come in the order of their sends: one that is held back, and one that waits for
 * space. And what the peer has to keep has a limit. */
static void a_send_at_once_passes_no_other(void **state)
{
    uint8_t *data = message_bytes(0);
    struct port *p = &sides[0].pair->port;
    struct message held = { .next = NULL };
    struct exec_group g = group_at(0);
    (void)state;
    sides[0].domain.matching.eager_bytes = BYTES;
    assert_int_equal(send_at_once(&g, data, 8), COMM_OK);
    p->held.head = &held;
    assert_int_equal(send_at_once(&g, data, 8), COMM_ERR_UNSUPPORTED);
    assert_int_equal(send_at_once(&g, data, BYTES), COMM_ERR_UNSUPPORTED);
    p->held.head = NULL;
    assert_int_equal(send_at_once(&g, data, 8), COMM_OK);
    sides[0].fabric.cma_bytes = 0;
    p->credit = 8 + PORT_FRAME_COST;
    assert_int_equal(send_at_once(&g, data, 9), COMM_ERR_UNSUPPORTED);
    assert_int_equal(send_at_once(&g, data, 8), COMM_OK);
    p->credit = PORT_CREDIT_WINDOW / 2;
    assert_int_equal(send_number(0, COMM_OP_SEND, data, BYTES), 0);
    duplex_flush(sides[0].pair);
    look(1);
    assert_non_null(sides[0].pair->tx_head); /* and there is space */
    assert_int_equal(send_at_once(&g, data, 8), COMM_ERR_UNSUPPORTED);
    assert_int_equal(g.sends_begun, 3);
    free(data);
}

/* A peer that sends nothing else does not keep it for longer than it may look. */
static void a_receive_at_once_passes_some_credit(void **state)
{
    enum { FRAMES = 100 };
    struct frame credit = { .type = FRAME_CREDIT };
    struct exec_group to = group_at(1);
    const struct ring_record *record;
    (void)state;
    for (int i = 0; i < FRAMES; i++)
        assert_int_equal(duplex_send(&sides[0].pair->port, &credit, NULL, 0, NULL), 1);
    uint64_t before = ring_lines_read(&sides[1].pair->in);
    assert_int_equal(receive_at_once(&to), COMM_ERR_UNSUPPORTED);
    assert_true(ring_lines_read(&sides[1].pair->in) > before);
    assert_int_equal(ring_look(&sides[1].pair->in, &record), RING_FRAME);
}

/* A message is for the receive that was posted first, and a receive takes the message that was sent first. */
static void a_receive_at_once_passes_no_other(void **state)
{
    uint8_t *data = message_bytes(0);
    struct exec_op posted = { .next = NULL };
    struct unexpected earlier = { .next = NULL };
    struct exec_group from = group_at(0), to = group_at(1);
    (void)state;
    assert_int_equal(send_at_once(&from, data, BYTES), COMM_IN_PROGRESS);
    to.recvs.head = &posted;
    assert_int_equal(receive_at_once(&to), COMM_ERR_UNSUPPORTED);
    to.recvs.head = NULL;
    boxes[0].unexpected.head = &earlier;
    assert_int_equal(receive_at_once(&to), COMM_ERR_UNSUPPORTED);
    boxes[0].unexpected.head = NULL;
    sides[1].pair->port.in.type = FRAME_DATA; /* which is read where it lies: this one is in front */
    assert_int_equal(receive_at_once(&to), COMM_ERR_UNSUPPORTED);
    sides[1].pair->port.in.type = 0;
    assert_int_equal(receive_at_once(&to), COMM_OK);
    free(data);
}

/* ---- Eager messages ---- */

enum { EAGER = 30000 };

/* The group at that side, of a rank with a core of its own, whose messages up to EAGER are eager. */
static struct exec_group spinning_group_at(int side)
{
    static struct waiting spins = { .spin_ns = 1 };
    struct exec_group g = group_at(side);
    sides[side].fabric.looks.waiting = &spins;
    sides[side].domain.matching.eager_bytes = EAGER;
    return g;
}

static struct tx *lend_eager(struct frame *h, const uint8_t *data)
{
    const struct loan loan = { .payload = data, .bytes = EAGER };
    sides[0].pair->lends_later = 0;
    struct tx *tx = duplex_draft_lent(sides[0].pair, h, &loan, LEND_STREAM);
    assert_non_null(tx);
    duplex_make_lent(sides[0].pair, h, tx, &groups[0]);
    return tx;
}

/* All that a peer has sent is consumed, or was taken back: it has its credit, or is owed it. */
static void expect_credit(void)
{
    const struct port *from = &sides[0].pair->port, *to = &sides[1].pair->port;
    assert_int_equal(to->eager_held, to->credit_owed);
    assert_int_equal(from->credit + to->credit_owed, PORT_CREDIT_WINDOW);
    assert_int_equal(to->state, PORT_UP);
}

/* By whom looks, and by a receive at once. */
static void an_eager_message_is_lent(void **state)
{
    uint8_t *data = message_bytes(0);
    struct exec_group to = spinning_group_at(1);
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = EAGER };
        struct tx *tx = lend_eager(&h, data);
        memset(received, 0, sizeof received);
        if (i == 0)
            look(1);
        else
            assert_int_equal(receive_at_once(&to), COMM_OK);
        assert_int_equal(received_count, 1);
        assert_memory_equal(received, data, EAGER);
        assert_int_equal(sides[1].pair->messages, i + 1);
        assert_int_equal(sides[1].pair->peer_lends, 1);
        assert_int_equal(duplex_is_read(sides[0].pair, tx), 1);
        assert_int_equal(duplex_send_instead(sides[0].pair, &h, tx), 0); /* it is read */
        duplex_end_offer(sides[0].pair, tx);
        expect_credit();
    }
    free(data);
}

/* It is taken back, and goes through the ring; or its operation ends. */
static void an_eager_message_is_taken_back(void **state)
{
    uint8_t *data = message_bytes(0);
    struct exec_group to = spinning_group_at(1);
    (void)state;
    for (int i = 0; i < 4; i++) {
        int ends = i / 2, at_once = i % 2, before = received_count;
        struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = EAGER };
        struct tx *tx = lend_eager(&h, data);
        if (ends)
            take_back();
        else
            assert_int_equal(duplex_send_instead(sides[0].pair, &h, tx), 1);
        assert_null(sides[0].pair->lent_head);
        memset(received, 0, sizeof received);
        if (at_once)
            assert_int_equal(receive_at_once(&to), COMM_ERR_UNSUPPORTED); /* it is longer than what is read at once */
        look(1);
        assert_int_equal(received_count - before, !ends);
        assert_int_equal(memcmp(received, data, EAGER) == 0, !ends);
        expect_credit();
    }
    free(data);
}

static struct tx *claimed;

static void try_to_take_it_back(void)
{
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = EAGER };
    after_read = NULL;
    assert_int_equal(duplex_send_instead(sides[0].pair, &h, claimed), 0);
}

/* The receiver is about to say that it has read it. */
static void an_eager_message_that_is_being_read_is_not_taken_back(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = EAGER };
    (void)state;
    claimed = lend_eager(&h, data);
    after_read = try_to_take_it_back;
    look(1);
    assert_null(after_read);
    assert_int_equal(received_count, 1);
    assert_int_equal(duplex_is_read(sides[0].pair, claimed), 1);
    expect_credit();
    duplex_end_offer(sides[0].pair, claimed);
    free(data);
}

static void end_its_group(void)
{
    after_read = NULL;
    take_back();
}

/* Its operation ends at the sender while it is being read: its credit is not lost. */
static void an_eager_message_whose_group_ends_while_it_is_read(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = EAGER };
    (void)state;
    for (int i = 0; i < 50; i++) { /* more than the window */
        lend_eager(&h, data);
        after_read = end_its_group;
        look(1);
        assert_int_equal(received_count, 0);
        expect_credit();
        sides[0].pair->port.credit += port_take_owed(&sides[1].pair->port);
    }
    free(data);
}

/* The same of one that has no receive: its memory is kept, and so is its credit, until it is dropped. */
static void an_unexpected_message_whose_group_ends_while_it_is_read(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = EAGER };
    const struct port *to = &sides[1].pair->port;
    (void)state;
    unexpected_list_init(&kept, NULL);
    keeps = 1;
    for (int i = 0; i < 3; i++)
        lend_eager(&h, data);
    after_read = end_its_group;
    look(1);
    keeps = 0;
    assert_int_equal(to->unexpected_count, 1); /* the others have been taken back as well */
    assert_int_equal(to->eager_held - to->credit_owed, EAGER + PORT_FRAME_COST);
    unexpected_list_clear(&kept);
    expect_credit();
    free(data);
}

/* A rank that only sends has not looked for the credit that has come. */
static void credit_that_has_come_is_found(void **state)
{
    uint8_t *data = message_bytes(0);
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = EAGER };
    struct frame credit = { .type = FRAME_CREDIT };
    struct port *from = &sides[0].pair->port, *to = &sides[1].pair->port;
    (void)state;
    from->credit = 0;
    to->credit_owed = PORT_CREDIT_WINDOW;
    to->eager_held = PORT_CREDIT_WINDOW;
    assert_int_equal(duplex_send(to, &credit, NULL, 0, NULL), 1);
    struct tx *tx = lend_eager(&h, data);
    assert_int_equal(from->credit, PORT_CREDIT_WINDOW - EAGER - PORT_FRAME_COST);
    duplex_end_offer(sides[0].pair, tx);
    free(data);
}

/* A send that nobody reads goes to the ring, as long as there is room for all of it. */
static void a_send_of_an_eager_message_waits_for_nobody(void **state)
{
    uint8_t *data = message_bytes(0);
    struct exec_group from = spinning_group_at(0);
    (void)state;
    assert_int_equal(send_at_once(&from, data, EAGER), COMM_OK);
    assert_null(sides[0].pair->lent_head);
    assert_int_equal(from.sends_begun, 1);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, data, EAGER);
    expect_credit();
    assert_int_equal(sides[0].pair->lends_later, 32); /* not tried for so many */
    assert_int_equal(send_at_once(&from, data, EAGER), COMM_ERR_UNSUPPORTED); /* the engine's */
    assert_int_equal(sides[0].pair->lends_later, 31);
    sides[0].pair->lends_later = 0;
    sides[0].pair->port.credit = EAGER + PORT_FRAME_COST; /* it is spent twice */
    assert_int_equal(send_at_once(&from, data, EAGER), COMM_IN_PROGRESS);
    assert_non_null(sides[0].pair->lent_head);
    assert_int_equal(sides[0].pair->lends_later, 64);
    duplex_end_offer(sides[0].pair, sides[0].pair->lent_head); /* as if it had been read */
    assert_int_equal(sides[0].pair->lends_later_next, 0);
    free(data);
}

/* By what both ranks' copies take, one after the other or at the same time, and the kernel's. */
static void eager_messages_go_the_faster_way(void **state)
{
    uint8_t *data = message_bytes(0);
    struct duplex *p = sides[0].pair;
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .seq = 100000, .bytes = 32768 };
    struct loan loan = { .payload = data, .bytes = 32768 };
    (void)state;
    sides[0].fabric.cma_measured = 1;
    sides[0].fabric.cma_call_ns = 500;
    sides[0].fabric.cma_copy_ns = 3000;
    p->out.copy.way = COPY_OUT_CACHED;
    p->out.copy.bytes = NOT_NEW;
    p->out.copy.times.cached_ns = 4000;
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_IN_TURN), 0); /* nothing is known of the reader */
    atomic_store(&sides[1].pair->in.shared->record_ns, 5000);
    atomic_store(&sides[1].pair->in.shared->read_ns[1], 5000); /* 3.5 us */
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_IN_TURN), 1); /* 5.2 us */
    assert_int_equal(p->ring_for, 0);
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_STREAM), 0); /* 3.2 us */
    assert_int_equal(p->ring_for, 0); /* the kernel could take 2.5 us, and is tried */
    p->out.copy.times.cached_ns = 1000;
    atomic_store(&sides[1].pair->in.shared->record_ns, 1000);
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_STREAM), 0); /* 1.2 us */
    assert_int_equal(p->ring_for, 64);
    atomic_store(&sides[1].pair->in.shared->record_ns, 5000);
    p->out.copy.times.cached_ns = 8000;
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_STREAM), 1); /* 4.7 us */
    h.kind = COMM_OP_REDUCE;
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_STREAM), 0);
    h.kind = COMM_OP_ALL_GATHER;
    atomic_store(&sides[1].pair->in.shared->read_ns[0], 20000);
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_BOTH), 0);
    atomic_store(&sides[1].pair->in.shared->read_ns[0], 5000);
    memset(p->choices, 0, sizeof p->choices);
    for (int i = 1; i <= DOUBTS && h.seq++; i++) {
        assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_BOTH), i == DOUBTS);
        assert_int_equal(p->ring_for, 0); /* the next one is asked about, too */
    }
    atomic_store(&p->out.shared->can_read, 0);
    assert_int_equal(lend_is_sooner(p, &h, &loan, LEND_BOTH), 0);
    free(data);
}

/* What it takes to copy them out of their records the receiver measures, and the sender knows. */
static void the_sender_knows_what_records_take(void **state)
{
    uint8_t *data = message_bytes(0);
    struct ring_shared *shared = sides[0].pair->out.shared;
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = LEND_EAGER_LEAST };
    (void)state;
    for (int i = 0; i < 9; i++) {
        assert_int_equal(atomic_load(&shared->record_ns), 0);
        port_spend(&sides[0].pair->port, LEND_EAGER_LEAST);
        duplex_send(&sides[0].pair->port, &h, data, LEND_EAGER_LEAST, NULL);
        look(1);
    }
    assert_true(atomic_load(&shared->record_ns) > 0);
    free(data);
}

/* ---- Regions ---- */

static struct region *make_untold_region(size_t bytes)
{
    struct region *r = region_create(&sides[0].fabric, bytes);
    assert_non_null(r);
    region_enter(&sides[0].fabric, r);
    return r;
}

/* Side i tells of it, and the other one maps it. */
static void tell(int i, struct region *r)
{
    assert_int_equal(region_tell(sides[i].pair, r), 0);
    look(1 - i);
    assert_int_equal(region_tell(sides[i].pair, r), 1);
}

static struct region *make_region(size_t bytes)
{
    struct region *r = make_untold_region(bytes);
    tell(0, r);
    return r;
}

/* Side 1 looks at the socket. */
static void hear(void)
{
    int has_ended;
    assert_null(region_notices(sides[1].pair, &has_ended));
    assert_int_equal(has_ended, 0);
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
        hear();
        assert_int_equal(sides[1].pair->mapping_count, 0);
    }
}

static struct loan loan_of(struct region *r)
{
    return (struct loan){ .payload = region_data(r), .bytes = BYTES };
}

/* Also by a rank that never looks at its socket by itself. */
static void a_region_is_not_lent_from_before_it_is_mapped(void **state)
{
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_REDUCE, .bytes = BYTES };
    struct region *r = make_untold_region(BYTES), *other = make_untold_region(BYTES);
    struct loan l = loan_of(r), m = loan_of(other);
    (void)state;
    random_bytes(region_data(r), BYTES);
    assert_int_equal(lend_suits(sides[0].pair, &h, &l), 0);
    assert_int_equal(send_number(0, COMM_OP_ALL_REDUCE, region_data(r), BYTES), 0);
    look(1);
    assert_int_equal(lend_suits(sides[0].pair, &h, &m), 0); /* one is mapped, and not the other one */
    while (!received_count) { /* it comes through the ring */
        look(0);
        look(1);
    }
    assert_memory_equal(received, region_data(r), BYTES);
    assert_int_equal(lend_suits(sides[0].pair, &h, &l), 1);
    lend_suits(sides[0].pair, &h, &m); /* the ring was full when it was told of */
    look(1);
    assert_int_equal(lend_suits(sides[0].pair, &h, &m), 1);
    assert_int_equal(l.place.region, region_id(r));
    assert_int_equal(m.place.region, region_id(other));
}

static void release(struct region *r)
{
    region_leave(&sides[0].fabric, r);
    region_destroy(r);
}

/* The last numbers that there are: 0 says that there is no region, and the greatest one that the kernel writes. */
static void numbers_of_regions_come_again(void **state)
{
    const uint32_t ids[] = { UINT32_MAX - 2, UINT32_MAX - 1, 1, 3 };
    struct region *r[4];
    (void)state;
    sides[0].fabric.region_id = 1;
    struct region *old = make_region(BYTES);
    assert_int_equal(region_id(old), 2);
    sides[0].fabric.region_id = UINT32_MAX - 3;
    for (int i = 0; i < 4; i++) {
        r[i] = make_region(BYTES);
        assert_int_equal(region_id(r[i]), ids[i]);
    }
    assert_int_equal(sides[1].pair->mapping_count, 5);
    for (int i = 0; i < 4; i++)
        release(r[i]);
    assert_int_equal(region_tell(sides[0].pair, old), 1);
    hear();
    assert_int_equal(sides[1].pair->mapping_count, 1);
}

/* As many have been told of and mapped before as are counted; one that is used all the time is told of once. */
static void the_count_of_maps_begins_again(void **state)
{
    struct duplex *p = sides[0].pair;
    (void)state;
    struct region *old = make_region(BYTES);
    const uint32_t counts[] = { (uint32_t)1 << 31, UINT32_MAX - 5 };
    for (int i = 0; i < 2; i++) {
        p->maps_told = sides[1].pair->maps_heard = counts[i];
        atomic_store(&p->out.shared->map_answer, counts[i]);
        for (int times = 0; times < 6; times++) {
            struct region *r = make_region(BYTES);
            assert_int_equal(region_tell(p, r), 1);
            assert_int_equal(region_tell(p, old), 1);
            look(1);
            assert_int_equal(sides[1].pair->mapping_count, 2);
            release(r);
        }
    }
    assert_int_equal(p->maps_told, 3 * RING_MAP_ONE);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
}

/* Its answer is of no use then, and the next one is told of. */
static void a_region_that_goes_before_it_is_mapped(void **state)
{
    struct region *r = make_untold_region(BYTES), *next = make_untold_region(BYTES);
    (void)state;
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    assert_int_equal(region_tell(sides[0].pair, next), 0);
    release(r);
    look(1);
    assert_int_equal(region_tell(sides[0].pair, next), 0);
    look(1);
    assert_int_equal(region_tell(sides[0].pair, next), 1);
    assert_int_equal(sides[1].pair->mapping_count, 1);
    assert_non_null(region_find(sides[1].pair, region_id(next), 0, BYTES));
}

/* The peer has not heard that it was released: its socket was full. */
static void a_number_that_comes_again_is_of_the_new_region(void **state)
{
    struct region *r = make_region(4 << 20);
    (void)state;
    uint32_t id = region_id(r);
    send_number(0, COMM_OP_ALL_REDUCE, region_data(r), 4 << 20);
    duplex_read(&sides[1].pair->port);
    assert_int_not_equal(sides[1].pair->borrowed.loan, 0); /* in the middle of it */
    take_back();
    sides[0].pair->port.state = PORT_OPENING; /* so that nothing is told */
    release(r);
    sides[0].pair->port.state = PORT_UP;
    sides[0].fabric.region_id = id - 1;
    r = make_untold_region(BYTES);
    memset(region_data(r), 7, BYTES);
    assert_int_equal(region_id(r), id);
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    hear();
    assert_int_equal(sides[1].pair->borrowed.loan, 0);
    assert_int_equal(region_tell(sides[0].pair, r), 1);
    assert_int_equal(sides[1].pair->mapping_count, 1);
    const uint8_t *theirs = region_find(sides[1].pair, id, 0, BYTES);
    assert_non_null(theirs);
    assert_int_equal(theirs[0], 7);
}

/* In front of what waits for space in the ring, but not in the middle of a message. */
static void a_notice_does_not_part_a_message(void **state)
{
    struct region *r = make_untold_region(BYTES);
    static uint8_t data[BYTES];
    (void)state;
    random_bytes(data, BYTES);
    assert_int_equal(send_number(0, COMM_OP_ALL_REDUCE, data, BYTES), 0);
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    assert_int_equal(sides[0].pair->notice_is_due, 1);
    while (!received_count) {
        look(1);
        look(0);
    }
    assert_memory_equal(received, data, BYTES);
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    assert_int_equal(sides[0].pair->notice_is_due, 0);
    look(1);
    assert_int_equal(region_tell(sides[0].pair, r), 1);
}

/* Messages from there come another way until it is tried again, which is ever more seldom. Other regions are mapped. */
static void it_is_told_again(struct region *mapped, struct region *refused)
{
    struct duplex *p = sides[0].pair;
    struct region *later = make_region(BYTES);
    assert_int_equal(region_tell(p, mapped), 1);
    assert_int_equal(warning_count, 1);
    for (int times = 1, pause = 64; times <= 3; times++, pause *= 2) {
        for (int i = times > 1; i < pause; i++) { /* or one has been asked for already */
            assert_int_equal(region_tell(p, refused), 0);
            assert_null(p->awaited);
        }
        assert_int_equal(region_tell(p, refused), 0);
        assert_ptr_equal(p->awaited, refused);
        no_addresses = times < 3;
        look(1);
        no_addresses = 0;
        assert_int_equal(region_tell(p, refused), times == 3);
    }
    assert_int_equal(warning_count, 2); /* of two in a row */
    assert_int_equal(sides[1].pair->mapping_count, 3);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    release(refused);
    release(mapped);
    release(later);
    hear();
    assert_int_equal(sides[1].pair->mapping_count, 0);
}

static void a_receiver_without_descriptors(void **state)
{
    struct region *mapped = make_region(BYTES), *r = make_untold_region(BYTES);
    struct rlimit before, none;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    none = (struct rlimit){ .rlim_cur = 0, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    look(1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_string_equal(warning, "rank 1 cannot map 102400 bytes of memory that rank 0 shares: Too many open files. "
                                 "Until it can, messages from there are copied, which is slower. More descriptors "
                                 "(ulimit -n) or addresses (ulimit -v, vm.max_map_count) prevent this");
    it_is_told_again(mapped, r);
}

static void a_receiver_without_addresses(void **state)
{
    struct region *mapped = make_region(BYTES), *r = make_untold_region(BYTES);
    (void)state;
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    no_addresses = 1;
    look(1);
    no_addresses = 0;
    assert_non_null(strstr(warning, "rank 0 shares: Cannot allocate memory. "));
    it_is_told_again(mapped, r);
}

/* More than a correct peer has at a time; when there is room again the next one is mapped. */
static void a_receiver_that_has_mapped_very_many(void **state)
{
    enum { VERY_MANY = 4096 };
    struct region *r = make_untold_region(BYTES);
    (void)state;
    sides[1].pair->mapping_count = VERY_MANY;
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    look(1);
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    assert_int_equal(warning_count, 1);
    sides[1].pair->mapping_count = 0;
    make_region(BYTES);
    assert_int_equal(sides[1].pair->mapping_count, 1);
    release(r);
    hear();
    assert_int_equal(sides[1].pair->mapping_count, 1);
}

/* The peer hears of both at once. */
static void a_region_that_goes_before_it_is_refused(void **state)
{
    struct region *r = make_untold_region(BYTES);
    (void)state;
    assert_int_equal(region_tell(sides[0].pair, r), 0);
    release(r);
    no_addresses = 1;
    look(1);
    no_addresses = 0;
    assert_int_equal(warning_count, 1);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    make_region(BYTES);
    assert_int_equal(sides[1].pair->mapping_count, 1);
}

/* Results are staged again when the peer can map that. */
static void a_staging_area_that_was_refused(void **state)
{
    static uint8_t data[BYTES];
    struct duplex *p = sides[0].pair;
    const struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_REDUCE, .bytes = 4096 };
    struct loan l = { .payload = data, .bytes = 4096, .write_back = data };
    int asked = 0;
    (void)state;
    the_kernel_does_not_write();
    assert_int_equal(write_back_suits(p, &h, &l), 0);
    no_addresses = 1;
    look(1);
    no_addresses = 0;
    for (; asked < 1000 && !write_back_suits(p, &h, &l); asked++)
        look(1);
    assert_int_equal(asked, 65); /* 64 are a pause, and one tells of it */
}

/* Its socket then says first that it was reset, and after that what the owner had said. */
static void a_region_of_a_peer_that_ends_with_something_unread(void **state)
{
    int has_ended;
    struct region *theirs = make_untold_region(BYTES), *mine = region_create(&sides[1].fabric, BYTES);
    (void)state;
    assert_non_null(mine);
    region_enter(&sides[1].fabric, mine);
    assert_int_equal(region_tell(sides[0].pair, theirs), 0);
    assert_int_equal(region_tell(sides[1].pair, mine), 0);
    events_unwatch(&sides[0].fabric, &sides[0].pair->watch);
    close(sides[0].pair->watch.fd);
    sides[0].pair->watch.fd = -1;
    assert_null(region_notices(sides[1].pair, &has_ended));
    assert_int_equal(has_ended, 1);
    assert_non_null(region_find(sides[1].pair, region_id(theirs), 0, BYTES));
}

/* The operation that lent from it ends, and the region is released. The connection is as good as before. */
static void release_early(struct region *r)
{
    static uint8_t other[] = "the next message";
    take_back();
    region_leave(&sides[0].fabric, r);
    region_destroy(r);
    hear();
    look(1);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    assert_int_equal(received_count, 0);
    send_number(1, COMM_OP_ALL_REDUCE, other, sizeof other);
    look(1);
    assert_int_equal(received_count, 1);
    assert_memory_equal(received, other, sizeof other);
}

/* Long ones are read in steps. The group of this one ends after the first, and its memory is released. */
static void a_region_may_go_while_it_is_read(void **state)
{
    (void)state;
    struct region *r = make_region(4 << 20);
    send_number(0, COMM_OP_ALL_REDUCE, region_data(r), 4 << 20);
    duplex_read(&sides[1].pair->port);
    assert_int_not_equal(sides[1].pair->borrowed.loan, 0); /* in the middle of it */
    release_early(r);
}

/* The receiver hears of the region's release before it comes to the message. */
static void a_region_may_go_before_it_is_read(void **state)
{
    (void)state;
    struct region *r = make_region(65536);
    send_number(0, COMM_OP_ALL_REDUCE, region_data(r), 65536);
    release_early(r);
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

/* ---- Written back ---- */

enum { ELEMENTS = 20000 };

static void send_to_be_reduced(int i, const float *payload, float *write_back)
{
    const size_t bytes = ELEMENTS * sizeof *payload;
    struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_ALL_REDUCE, .group = 7, .seq = (uint64_t)i, .bytes = bytes };
    messages[i] = (struct message){ .owner = &groups[i % GROUPS], .write_back = (uint8_t *)write_back };
    assert_int_equal(duplex_send(&sides[0].pair->port, &h, payload, bytes, &messages[i]), 0);
}

static void fill(float *payload)
{
    reduces = 1;
    for (int i = 0; i < ELEMENTS; i++) {
        payload[i] = (float)i;
        local[i] = 1;
    }
}

static void check_sums(const float *sums, float more)
{
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(sums[i] == (float)i + more);
}

/* Results are written in the staging area, or in regions. */
/* Private memory goes through the staging area, and a result to memory of its own as well as over the payload. */
static void a_result_comes_back(void **state)
{
    static float payload[ELEMENTS], result[ELEMENTS];
    (void)state;
    make_staging_area();
    for (int i = 0; i < 10; i++) {
        sides[0].pair->out.brings_lines = sides[1].pair->out.brings_lines = i / 2 % 2; /* a page at a time, too */
        fill(payload);
        send_to_be_reduced(0, payload, i % 2 ? result : payload);
        look(1);
        assert_int_equal(received_count, i + 1);
        assert_int_equal(reduction.written_back, 1);
        check_sums(local, 1);
        look(0);
        assert_int_equal(sent_count, i + 1);
        assert_int_equal(messages[0].written_back, 1);
        check_sums(i % 2 ? result : payload, 1);
        assert_int_equal(sides[0].pair->staged, 0);
        assert_int_equal(sides[0].pair->loans, 0);
    }
}

static void a_result_comes_back_to_a_region(void **state)
{
    struct region *from = make_region(ELEMENTS * sizeof(float) + 64), *to = make_region(ELEMENTS * sizeof(float));
    float *payload = (float *)region_data(from) + 16, *result = (float *)region_data(to);
    (void)state;
    fill(payload);
    send_to_be_reduced(0, payload, result);
    assert_null(sides[0].pair->staging);
    look(1);
    check_sums(result, 1); /* there before this side has looked */
    check_sums(payload, 0);
    look(0);
    assert_int_equal(messages[0].written_back, 1);
    fill(payload);
    send_to_be_reduced(1, payload, payload); /* in place */
    look(1);
    check_sums(payload, 1);
    look(0);
    assert_int_equal(sent_count, 2);
    struct region *other = make_region(ELEMENTS * sizeof(float));
    fill(payload);
    send_to_be_reduced(0, payload, (float *)region_data(other)); /* from a region that is known to one that is not */
    look(1);
    check_sums((float *)region_data(other), 1);
    look(0);
    assert_int_equal(sent_count, 3);
}

/* The receiver may have another use for it: then it is not written back, and the sender is told so. */
static void a_result_that_is_not_for_the_sender(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    fill(payload);
    reduction.may_write_back = 0;
    send_to_be_reduced(0, payload, payload);
    look(1);
    reduction.may_write_back = 1;
    check_sums(local, 1);
    look(0);
    assert_int_equal(sent_count, 1);
    assert_int_equal(messages[0].written_back, 0);
    check_sums(payload, 0);
}

static void what_does_not_fit_the_staging_area(void **state)
{
    static float payload[ELEMENTS];
    struct duplex *p = sides[0].pair;
    (void)state;
    make_staging_area();
    fill(payload);
    struct frame h = { .kind = COMM_OP_ALL_REDUCE };
    struct loan l = { .payload = (uint8_t *)payload, .bytes = (256 << 10) + 1, .write_back = (uint8_t *)payload };
    assert_int_equal(lend_suits(p, &h, &l), 0);
    l.bytes = 256 << 10;
    assert_int_equal(lend_suits(p, &h, &l), 1);
    for (int i = 0; i < 4; i++)
        send_to_be_reduced(i, payload, payload);
    assert_int_equal(lend_suits(p, &h, &l), 0);
    look(1);
    look(0);
    assert_int_equal(sent_count, 4);
    assert_int_equal(lend_suits(p, &h, &l), 1);
}

/* Its operation has ended before the receiver looked: its memory must not be written to. */
static void nothing_is_written_to_what_was_taken_back(void **state)
{
    struct region *r = make_region(ELEMENTS * sizeof(float));
    float *payload = (float *)region_data(r);
    (void)state;
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    take_back();
    look(1);
    check_sums(payload, 0);
    assert_int_equal(received_count, 0);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    assert_int_equal(atomic_load(&sides[0].pair->out.shared->writing[0]), 0);
}

static void what_is_taken_back_meanwhile_is_not_received(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    fill(payload);
    reduction.may_write_back = 0;
    send_to_be_reduced(0, payload, payload);
    meanwhile = take_back;
    look(1);
    reduction.may_write_back = 1;
    assert_int_equal(received_count, 0);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
}

static uint8_t *lent_memory;
enum { LENT_BYTES = 384 << 10 }; /* more than one of the sink's buffers */

static void take_back_and_unmap(void)
{
    meanwhile = NULL;
    take_back();
    munmap(lent_memory, LENT_BYTES);
}

/* The kernel reads it in parts. Between two of them its operation ends, and the memory is gone. */
static void memory_may_go_while_the_kernel_reads_it(void **state)
{
    (void)state;
    lent_memory = mmap(NULL, LENT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(lent_memory != MAP_FAILED);
    reduces = 1;
    reduction.may_write_back = 0;
    send_number(0, COMM_OP_ALL_GATHER, lent_memory, LENT_BYTES);
    meanwhile = take_back_and_unmap;
    look(1);
    reduction.may_write_back = 1;
    assert_null(meanwhile);
    assert_int_equal(received_count, 0);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
}

/* A receiver was stopped while it wrote: what it yet writes must not come to the user's memory. */
static void a_writer_that_does_not_run(void **state)
{
    struct region *r = make_region(ELEMENTS * sizeof(float));
    float *payload = (float *)region_data(r);
    (void)state;
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    hear();
    float *theirs = (float *)region_find(sides[1].pair, 1, 0, ELEMENTS * sizeof(float));
    atomic_store(&sides[0].pair->out.shared->writing[0], 1);
    take_back();
    theirs[5] = 77;
    check_sums(payload, 0);
    assert_null(region_of(sides[0].pair, payload, 4));
    assert_int_equal(warning_count, 1);
    region_leave(&sides[0].fabric, r); /* as comm_mem_release does */
    region_destroy(r);
}

/* In the same region, with results that begin in a page where others end. */
enum { NEIGHBOURS = 3, NEIGHBOUR_AT = ELEMENTS + 100 };

static float *send_neighbours(struct region *r)
{
    float *data = (float *)region_data(r);
    for (int i = 0; i < NEIGHBOURS; i++) {
        fill(data + i * NEIGHBOUR_AT);
        send_to_be_reduced(i, data + i * NEIGHBOUR_AT, data + i * NEIGHBOUR_AT);
    }
    return data;
}

/* As the receiver has them mapped. */
static float *their_neighbours(const struct region *r)
{
    return (float *)region_find(sides[1].pair, region_id(r), 0, NEIGHBOURS * NEIGHBOUR_AT * sizeof(float));
}

/* The writer of number 0 is stopped, while number 1, of another group, goes on, and number 2 ends as well. */
static void others_write_to_the_region_of_a_writer_that_does_not_run(void **state)
{
    struct region *r = make_region(NEIGHBOURS * NEIGHBOUR_AT * sizeof(float));
    float *data = send_neighbours(r);
    (void)state;
    _Atomic uint32_t *writing = sides[0].pair->out.shared->writing;
    float *theirs = their_neighbours(r);
    atomic_store(&writing[0], 1);
    take_back();
    data[NEIGHBOUR_AT - 50] = 5; /* between them: what the user writes now */
    look(1);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    assert_int_equal(received_count, 1);
    look(0);
    assert_int_equal(sent_count, 1);
    check_sums(data + NEIGHBOUR_AT, 1);
    check_sums(data, 0);
    assert_true(data[NEIGHBOUR_AT - 50] == 5);
    theirs[5] = 77;
    check_sums(data, 0);
    assert_int_equal(warning_count, 1);
}

/* Two of them are stopped: neither must write to what its operation has left. */
static void two_writers_that_do_not_run(void **state)
{
    struct region *r = make_region(NEIGHBOURS * NEIGHBOUR_AT * sizeof(float));
    float *data = send_neighbours(r);
    (void)state;
    _Atomic uint32_t *writing = sides[0].pair->out.shared->writing;
    float *theirs = their_neighbours(r);
    atomic_store(&writing[0], 1);
    atomic_store(&writing[2], 3);
    take_back(); /* both are of group 0 */
    theirs[5] = theirs[2 * NEIGHBOUR_AT + 7] = 77;
    check_sums(data, 0);
    check_sums(data + 2 * NEIGHBOUR_AT, 0);
    assert_int_equal(warning_count, 1);
    look(1);
    look(0);
    assert_int_equal(sent_count, 1);
    check_sums(data + NEIGHBOUR_AT, 1);
}

/* What the program writes between the ends of two such operations stays, though their results share a page. */
static void one_after_the_other_that_do_not_run(void **state)
{
    struct region *r = make_region(NEIGHBOURS * NEIGHBOUR_AT * sizeof(float));
    float *data = send_neighbours(r);
    (void)state;
    _Atomic uint32_t *writing = sides[0].pair->out.shared->writing;
    float *theirs = their_neighbours(r);
    atomic_store(&writing[0], 1);
    atomic_store(&writing[1], 2);
    take_back();
    data[NEIGHBOUR_AT - 50] = 5;
    data[ELEMENTS - 1] = 6;
    duplex_forget(&sides[0].pair->port, &groups[1]);
    theirs[ELEMENTS - 2] = theirs[NEIGHBOUR_AT + 1] = theirs[2 * NEIGHBOUR_AT - 200] = 77;
    assert_true(data[NEIGHBOUR_AT - 50] == 5);
    assert_true(data[ELEMENTS - 1] == 6);
    assert_true(data[ELEMENTS - 2] == ELEMENTS - 2);
    check_sums(data + NEIGHBOUR_AT, 0);
}

/* It comes back within two seconds, or its connection ends. */
static void a_writer_where_there_is_no_memory_for_other_pages(void **state)
{
    struct region *r = make_region(ELEMENTS * sizeof(float));
    float *payload = (float *)region_data(r);
    (void)state;
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    atomic_store(&sides[0].pair->out.shared->writing[0], 1);
    no_addresses = 1;
    take_back();
    no_addresses = 0;
    assert_int_equal(sides[0].pair->port.state, PORT_LOST);
    assert_non_null(strstr(sides[0].pair->port.lost_text, "has not come back for 2 s from writing a result"));
}

/* A place in the staging area that such a receiver may write to is not used until it has stopped. */
static void a_staging_place_that_is_written_to(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    make_staging_area();
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    atomic_store(&sides[0].pair->out.shared->writing[0], 1);
    take_back();
    assert_int_equal(sides[0].pair->staged, 1);
    assert_int_equal(sides[0].pair->loans, 1);
    assert_int_equal(lend_has_offers(sides[0].pair), 0);
    atomic_store(&sides[0].pair->out.shared->writing[0], 0); /* it goes on at last */
    assert_int_equal(lend_has_offers(sides[0].pair), 1);
    assert_int_equal(sides[0].pair->staged, 0);
    assert_int_equal(sides[0].pair->loans, 0);
}

/* ---- Written back by the kernel ---- */

static void a_result_comes_back_by_the_kernel(void **state)
{
    static float payload[ELEMENTS], result[ELEMENTS];
    (void)state;
    for (int i = 0; i < 2 * RING_LOANS; i++) {
        float *to = i % 2 ? result : payload;
        fill(payload);
        send_to_be_reduced(0, payload, to);
        look(1);
        assert_int_equal(received_count, i + 1);
        assert_int_equal(reduction.written_back, 1);
        check_sums(local, 1);
        check_sums(to, 1); /* there before this side has looked */
        look(0);
        assert_int_equal(sent_count, i + 1);
        assert_int_equal(messages[0].written_back, 1);
        assert_null(sides[0].pair->staging);
        assert_int_equal(sides[0].pair->loans, 0);
        reduction.written_back = 0;
    }
}

static int goes_back_by_kernel(struct duplex *p, const struct frame *h, size_t bytes)
{
    static uint8_t data[SINK_BOUNCE_BYTES + 1];
    struct loan l = { .payload = data, .bytes = bytes, .write_back = data };
    return lend_suits(p, h, &l) && l.place.back_region == RING_BACK_BY_KERNEL;
}

/* One that is short, longer than the receiver's buffer, or whose memory the kernel does not read. */
static void what_does_not_go_back_by_the_kernel(void **state)
{
    struct duplex *p = sides[0].pair;
    struct frame h = { .kind = COMM_OP_ALL_REDUCE };
    (void)state;
    make_staging_area();
    atomic_store(&p->out.shared->can_write, 1);
    assert_int_equal(goes_back_by_kernel(p, &h, (16 << 10) - 1), 0);
    assert_int_equal(goes_back_by_kernel(p, &h, 16 << 10), 1);
    assert_int_equal(goes_back_by_kernel(p, &h, SINK_BOUNCE_BYTES), 1);
    assert_int_equal(goes_back_by_kernel(p, &h, SINK_BOUNCE_BYTES + 1), 0);
    p->sees_threads = 0;
    assert_int_equal(goes_back_by_kernel(p, &h, SINK_BOUNCE_BYTES), 0);
    p->sees_threads = 1;
    p->fabric->cma_bytes = 0;
    assert_int_equal(goes_back_by_kernel(p, &h, SINK_BOUNCE_BYTES), 0);
    p->fabric->cma_bytes = 1 << 20;
    struct loan l = { .payload = (uint8_t *)64, .bytes = 16 << 10, .write_back = (uint8_t *)64 };
    assert_int_equal(lend_suits(p, &h, &l), 1);
    assert_int_not_equal(l.place.back_region, RING_BACK_BY_KERNEL);
}

static void make_the_place_shorter(void)
{
    _Atomic size_t *bytes = &sides[0].pair->out.shared->back_to[0].bytes;
    after_read = NULL;
    atomic_store(bytes, atomic_load(bytes) - 4);
}

/* Then the parts are swapped. */
static void the_kernel_writes_less(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    after_read = make_the_place_shorter;
    look(1);
    after_read = NULL;
    assert_int_equal(received_count, 1);
    assert_int_equal(reduction.written_back, 0);
    check_sums(local, 1);
    look(0);
    assert_int_equal(sent_count, 1);
    assert_int_equal(messages[0].written_back, 0);
}

/* Its process has ended, and another one has its number. */
static void nothing_is_written_to_another_process(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    sides[0].fabric.probe_word++;
    look(1);
    sides[0].fabric.probe_word--;
    check_sums(payload, 0);
    assert_int_equal(received_count, 0);
    assert_int_equal(sides[1].pair->port.state, PORT_LOST);
}

static void take_back_once(void)
{
    after_read = NULL;
    take_back();
}

/* Its operation ends when the kernel has read: nothing is written any more. */
static void nothing_is_written_by_the_kernel_to_what_was_taken_back(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    after_read = take_back_once;
    look(1);
    after_read = NULL;
    check_sums(payload, 0);
    assert_int_equal(received_count, 0);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    assert_int_equal(sides[0].pair->loans, 0);
    assert_int_equal(atomic_load(&sides[0].pair->out.shared->back_to[0].bytes), 0);
}

static float later[ELEMENTS];

static void take_back_and_lend_another(void)
{
    take_back_once();
    send_to_be_reduced(1, later, later);
}

/* And the slot is another one's by then, with another place. */
static void nothing_is_written_to_the_place_of_a_later_loan(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    fill(later);
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    after_read = take_back_and_lend_another;
    look(1);
    assert_null(after_read);
    check_sums(payload, 0);
    assert_int_equal(received_count, 1);
    assert_int_equal(reduction.written_back, 1);
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(later[i] == local[i] && later[i] < (float)(2 * i + 2));
}

/* Number 0's operation ends while a process says that it writes: it is stopped, or it runs on. */
static void take_back_while_it_writes(float *payload, int is_stopped)
{
    struct duplex *p = sides[0].pair;
    pid_t child = fork();
    if (child == 0)
        for (volatile int runs = 1; runs;)
            ;
    if (is_stopped) {
        kill(child, SIGSTOP);
        waitpid(child, NULL, WUNTRACED);
    }
    fill(payload);
    send_to_be_reduced(0, payload, payload);
    p->pid = child;
    atomic_store(&p->out.shared->writing[0], 1);
    atomic_store(&p->out.shared->back_writer, (int32_t)child);
    take_back();
    p->pid = getpid();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* It does not find the place any more when it goes on. The slot must wait for it. */
static void a_writer_by_the_kernel_that_is_stopped(void **state)
{
    static float payload[ELEMENTS];
    struct duplex *p = sides[0].pair;
    (void)state;
    take_back_while_it_writes(payload, 1);
    assert_int_equal(p->port.state, PORT_UP);
    assert_int_equal(atomic_load(&p->out.shared->back_to[0].bytes), 0);
    assert_int_equal(p->loans, 1);
    send_to_be_reduced(1, payload, payload);
    assert_int_equal(p->loans, 3);
    atomic_store(&p->out.shared->writing[0], 0);
    send_to_be_reduced(2, payload, payload);
    assert_int_equal(p->loans, 3); /* it has slot 0 */
}

/* One that may be in the kernel, and does not come back. */
static void a_writer_by_the_kernel_that_does_not_come_back(void **state)
{
    static float payload[ELEMENTS];
    (void)state;
    take_back_while_it_writes(payload, 0);
    assert_int_equal(sides[0].pair->port.state, PORT_LOST);
    assert_non_null(strstr(sides[0].pair->port.lost_text, "may write still"));
}

/* Operations, one after the other; returns how many go by the kernel. */
static int back_by_kernel_of(struct duplex *p, int ops)
{
    struct frame h = { .kind = COMM_OP_ALL_REDUCE, .dtype = COMM_DTYPE_F32, .count = 1 << 16 };
    static uint64_t seq;
    int count = 0;
    for (int i = 0; i < ops; i++) {
        h.seq = ++seq;
        count += goes_back_by_kernel(p, &h, 128 << 10);
    }
    return count;
}

static void know(struct back_times *t, int64_t staged_ns, int64_t kernel_ns)
{
    const int64_t ns[BACK_STEPS] = { staged_ns / 4, staged_ns / 2, staged_ns / 4, kernel_ns };
    memcpy(t->ns, ns, sizeof ns);
    memset(t->noted, 8, sizeof t->noted);
}

/* Until both ways are known they take turns; then the lower rank chooses for both, and tries the other one ever more
 * seldom. */
static void results_go_back_the_faster_way(void **state)
{
    struct duplex *lower = sides[0].pair, *higher = sides[1].pair;
    const struct frame h = { .dtype = COMM_DTYPE_F32, .count = 1 << 16 };
    struct back_times *t = &lower->back[write_back_size(&h)];
    (void)state;
    sides[0].fabric.cma_measured = sides[1].fabric.cma_measured = 1;
    lend_probe(higher);
    assert_int_equal(back_by_kernel_of(higher, 100), 0); /* nobody has chosen */
    assert_int_equal(back_by_kernel_of(lower, 160), 80);
    know(t, 8000, 8500); /* 9000, with waits: the kernel is not clearly faster */
    assert_int_equal(back_by_kernel_of(lower, 95), 0);
    assert_int_equal(back_by_kernel_of(lower, 8), 8); /* row 32 */
    assert_int_equal(back_by_kernel_of(lower, 248), 0);
    know(t, 8000, 8300);
    assert_int_equal(back_by_kernel_of(lower, 8), 0); /* row 64: now the other way is tried */
    know(t, 8000, 9500); /* the kernel is in use */
    assert_int_equal(back_by_kernel_of(lower, 56), 56);
    assert_in_range(back_by_kernel_of(higher, 1000), 950, 999);
    know(t, 8000, 9700);
    assert_int_equal(back_by_kernel_of(lower, 1), 0);
    assert_in_range(back_by_kernel_of(higher, 1000), 0, 50);
    know(t, 8000, 30000);
    back_by_kernel_of(lower, 8 * 1024);
    assert_int_equal(back_by_kernel_of(lower, 8 * 1024 * 4), 8 * 4);
    know(t, 8000, 10500);
    assert_int_equal(back_by_kernel_of(lower, 8 * 1024 * 4), 8 * 4 * 4);
}

/* What cannot be measured is not awaited for ever; and what cannot be staged goes by the kernel. */
static void results_that_can_only_go_one_way(void **state)
{
    struct duplex *lower = sides[0].pair;
    const struct frame h = { .dtype = COMM_DTYPE_F32, .count = 1 << 16 };
    struct back_times *t = &lower->back[write_back_size(&h)];
    (void)state;
    sides[0].fabric.cma_measured = 1;
    assert_int_equal(back_by_kernel_of(lower, 255), 128);
    assert_int_equal(back_by_kernel_of(lower, 100), 0); /* nothing is known */
    t->noted[BACK_KERNEL] = 8;
    assert_int_equal(back_by_kernel_of(lower, 100), 100);
    t->noted[BACK_KERNEL] = 0;
    assert_int_equal(back_by_kernel_of(lower, 100), 0);
    lower->cannot_stage = 1;
    assert_int_equal(back_by_kernel_of(lower, 100), 100);
    lower->cannot_stage = 0;
    assert_int_equal(back_by_kernel_of(lower, 100), 0);
}

/* What the lower rank measures, and not the first operations of a row. */
static void what_results_take_is_measured(void **state)
{
    static float payload[ELEMENTS];
    struct duplex *lower = sides[0].pair;
    const struct frame h = { 0 };
    struct back_times *t = &lower->back[write_back_size(&h)];
    (void)state;
    make_staging_area();
    atomic_store(&lower->out.shared->can_write, 1);
    sides[0].fabric.cma_measured = sides[1].fabric.cma_measured = 1;
    for (int i = 0; i < 31; i++) {
        fill(payload);
        send_to_be_reduced(i % 16, payload, payload);
        look(1);
        look(0);
        check_sums(payload, 1);
        if (t->operations < 8)
            assert_int_equal(t->noted[BACK_STAGE], t->operations < 4 ? 0 : t->operations - 3);
    }
    assert_int_equal(t->operations, 31);
    assert_int_equal(t->noted[BACK_STAGE], 8);
    assert_int_equal(t->noted[BACK_TAKE], 8);
    assert_int_equal(t->noted[BACK_KERNEL], 0); /* that is the other rank's */
    assert_int_equal(sides[1].pair->back[write_back_size(&h)].noted[BACK_KERNEL], 0); /* which does not choose */
}

/* ---- Lies about parts that both copy ---- */

enum { SPLIT_BYTES = 300000 };

/* A send of number 0 to 1 whose sender waits and may write parts, with number 1's answer in the ring's memory. */
static struct tx *offer_parts(const uint8_t *data)
{
    struct duplex *p = sides[0].pair;
    struct frame h = { .type = FRAME_RTS, .kind = COMM_OP_SEND, .group = 7, .bytes = SPLIT_BYTES };
    const struct loan loan = { .payload = data, .bytes = SPLIT_BYTES, .splits = 1 };
    struct tx *tx = duplex_draft_offer(p, &h, &loan);
    assert_non_null(tx);
    duplex_make_offer(p, &h, tx, &groups[0]);
    assert_int_equal(atomic_load(&p->out.shared->splits), p->loan);
    return tx;
}

/* Whatever the receiver says of its parts, the sender goes on, and writes no more of them than there are. */
static void a_receiver_that_lies_about_its_parts(void **state)
{
    static uint8_t data[SPLIT_BYTES];
    static const uint32_t counts[] = { 0, 1, 0xffff, 0x10000, 0xffff0000, 0xffffffff, 0x7fff7fff, 0x30001 };
    static const uintptr_t places[] = { 0, 64, UINTPTR_MAX, UINTPTR_MAX / 2 };
    struct duplex *p = sides[0].pair;
    struct ring_shared *shared = p->out.shared;
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
            struct tx *tx = offer_parts(data);
            for (int part = 0; part < RING_PARTS; part++) {
                atomic_store(&shared->part_to[part].at, places[k]);
                atomic_store(&shared->part_to[part].bytes, k % 2 ? SIZE_MAX : SPLIT_BYTES);
            }
            atomic_store(&shared->parts, (uint64_t)p->loan << 32 | counts[i]);
            assert_int_equal(duplex_is_read(p, tx), 0);
            assert_int_equal(duplex_is_read(p, tx), 0);
            assert_int_equal((uint32_t)atomic_load(&shared->written) & 0x7fff, 0);
            duplex_end_offer(p, tx);
        }
    assert_int_equal(p->loans, 0);
    assert_int_equal(p->port.state, PORT_UP);
}

static uint32_t claimed_parts, claimed_written;

/* As the sender, while the receiver reads its first part. */
static void claim_parts(void)
{
    struct ring_shared *shared = sides[0].pair->out.shared;
    const uint64_t loan = (uint64_t)sides[0].pair->loan << 32;
    after_read = NULL;
    atomic_fetch_add(&shared->parts, claimed_parts);
    atomic_store(&shared->written, loan | claimed_written);
}

/* Whatever the sender says of what it has written, the receiver goes on: what is not there is read, or was not sent. */
static void a_sender_that_lies_about_its_parts(void **state)
{
    static uint8_t data[SPLIT_BYTES], to[SPLIT_BYTES + 1];
    static const uint32_t written[] = { 0, 1, 2, 0x7fff, 0x8000, 0x8001, 0xffff, 0xffffffff };
    (void)state;
    random_bytes(data, sizeof data);
    for (uint32_t parts = 0; parts < 6; parts++)
        for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
            struct duplex *p = sides[1].pair;
            const struct frame h = { .type = FRAME_DATA, .kind = COMM_OP_SEND, .bytes = SPLIT_BYTES };
            struct tx *tx = offer_parts(data);
            const struct ring_record *record;
            assert_int_equal(ring_look(&p->in, &record), RING_FRAME);
            const struct ring_place place = ring_place(record);
            memset(to, 0x77, sizeof to);
            claimed_parts = parts == 5 ? 0xffff : parts;
            claimed_written = written[i];
            atomic_store(&sides[0].pair->out.shared->writer, -1); /* no thread */
            after_read = claim_parts;
            assert_int_equal(lend_read_now(p, &h, &place, to), 1);
            assert_null(after_read);
            assert_int_equal(to[SPLIT_BYTES], 0x77);
            assert_int_equal(memcmp(to, data, SPLIT_BYTES) == 0, (written[i] & 0x7fff) == 0 || parts == 0);
            duplex_took(p, FRAME_RTS, SPLIT_BYTES, record->credit);
            duplex_end_offer(sides[0].pair, tx);
        }
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
}

/* ---- Lies ---- */

static void lie_in(uint8_t type, struct ring_place place, uint64_t bytes)
{
    struct frame h = { .type = type, .kind = COMM_OP_SEND, .group = 7, .bytes = bytes };
    if (place.slot < RING_LOANS)
        atomic_store(&sides[0].pair->out.shared->valid[place.slot], place.loan);
    ring_put_lent(&sides[0].pair->out, ring_key(&h), &h, &place);
    while (duplex_read(&sides[1].pair->port))
        ;
    assert_int_equal(sides[1].pair->port.state, PORT_LOST);
    assert_int_equal(received_count, 0);
}

static void lie(struct ring_place place, uint64_t bytes)
{
    lie_in(FRAME_DATA, place, bytes);
}

/* Nothing has looked at the kind yet when the payload's place is: what becomes of it is the engine's to say. */
static void an_operation_that_there_is_not(void **state)
{
    static const uint8_t kinds[] = { 0, 99, 200, 255 };
    uint8_t *data = message_bytes(0);
    (void)state;
    for (size_t i = 0; i < sizeof kinds; i++) {
        const struct ring_place place = { .loan = (uint32_t)i + 1, .at = (uintptr_t)data };
        struct frame h = { .type = FRAME_DATA, .kind = kinds[i], .group = 7, .bytes = BYTES };
        atomic_store(&sides[0].pair->out.shared->valid[0], place.loan);
        ring_put_lent(&sides[0].pair->out, ring_key(&h), &h, &place);
        look(1);
        assert_int_equal(sides[1].pair->port.state, PORT_UP);
        assert_int_equal(received_count, i + 1);
        assert_memory_equal(received, data, BYTES);
    }
    free(data);
}

static void an_offer_in_a_slot_that_there_is_not(void **state)
{
    (void)state;
    lie_in(FRAME_RTS, (struct ring_place){ .slot = RING_LOANS, .loan = 1, .at = (uintptr_t)groups }, 1);
}

static void an_offer_with_a_number_that_says_written(void **state)
{
    (void)state;
    lie_in(FRAME_RTS, (struct ring_place){ .loan = LOAN_WRITTEN | 1, .at = (uintptr_t)groups }, 1);
}

static void an_eager_message_in_a_slot_that_there_is_not(void **state)
{
    (void)state;
    lie_in(FRAME_EAGER, (struct ring_place){ .slot = RING_LOANS, .loan = 1, .at = (uintptr_t)groups }, 1);
}

static void an_eager_message_that_is_nowhere(void **state)
{
    (void)state;
    lie_in(FRAME_EAGER, (struct ring_place){ .at = (uintptr_t)groups }, 1);
}

static void an_eager_message_with_a_number_that_says_claimed(void **state)
{
    (void)state;
    lie_in(FRAME_EAGER, (struct ring_place){ .loan = LOAN_CLAIMED | 1, .at = (uintptr_t)groups }, 1);
}

static void credit_that_there_cannot_be(void **state)
{
    struct duplex *p = sides[1].pair;
    (void)state;
    duplex_took(p, FRAME_RTS, BYTES, 0);
    assert_int_equal(p->port.state, PORT_UP);
    duplex_took(p, FRAME_RTS, BYTES, 1);
    assert_int_equal(p->port.state, PORT_LOST);
}

static void an_offer_of_nothing(void **state)
{
    (void)state;
    accepts = 1;
    lie_in(FRAME_RTS, (struct ring_place){ .loan = 1, .at = (uintptr_t)groups }, 0);
}

static void an_offer_of_a_region_that_there_is_not(void **state)
{
    (void)state;
    accepts = 1;
    lie_in(FRAME_RTS, (struct ring_place){ .loan = 1, .region = 9 }, 10);
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

/* The notices that tell of the second region tell that the first one is no more. */
static void a_region_that_is_gone_when_the_other_is_known(void **state)
{
    struct region *first = make_region(4096);
    (void)state;
    assert_non_null(region_of(sides[0].pair, region_data(first), 10));
    hear();
    region_leave(&sides[0].fabric, first);
    region_destroy(first);
    struct region *second = make_region(4096);
    assert_non_null(region_of(sides[0].pair, region_data(second), 10));
    reduces = 1;
    lie((struct ring_place){ .loan = 1, .region = 1, .back_region = 2 }, 400);
}

static void a_number_that_says_written(void **state)
{
    (void)state;
    lie((struct ring_place){ .loan = LOAN_WRITTEN | 1, .at = (uintptr_t)groups }, 1);
}

static void a_result_for_a_region_that_there_is_not(void **state)
{
    struct region *r = make_region(4096);
    (void)state;
    assert_non_null(region_of(sides[0].pair, region_data(r), 10));
    lie((struct ring_place){ .loan = 1, .region = 1, .back_region = 7 }, 10);
}

static void a_result_beyond_a_region(void **state)
{
    struct region *r = make_region(4096);
    (void)state;
    assert_non_null(region_of(sides[0].pair, region_data(r), 10));
    lie((struct ring_place){ .loan = 1, .region = 1, .back_region = 1, .back_at = 4087 }, 10);
}

/* The kernel is to read the payload, at an address that there is not, and the result is for a region. */
static void a_result_of_what_is_not_in_a_region(void **state)
{
    struct region *r = make_region(4096);
    (void)state;
    assert_non_null(region_of(sides[0].pair, region_data(r), 10));
    reduces = 1;
    lie((struct ring_place){ .loan = 1, .at = 8, .back_region = 1 }, 400);
}

static void an_address_that_nobody_has(void **state)
{
    (void)state;
    lie((struct ring_place){ .loan = 1, .at = 8 }, 10);
    assert_string_equal(sides[1].pair->port.lost_text,
                        "sent 10 bytes that the kernel does not let another process read: "
                        "Bad address; set COMM_SHM_CMA_BYTES=0");
}

static void send_region(uint64_t bytes, off_t file_bytes)
{
    struct {
        uint32_t kind, id;
        uint64_t bytes;
        char why[SHM_WHY_BYTES];
    } notice = { .kind = 1, .id = 1, .bytes = bytes };
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, file_bytes), 0);
    assert_true(greeting_send(sides[0].pair->watch.fd, &notice, sizeof notice, &fd, 1));
    close(fd);
    events_turn(&sides[1].fabric, 0);
}

/* A file that could shrink would kill the process that reads it. */
static void a_region_that_can_shrink(void **state)
{
    (void)state;
    send_region(4096, 4096);
    assert_int_equal(sides[1].pair->port.state, PORT_UP);
    assert_int_equal(atomic_load(&sides[0].pair->out.shared->map_answer), RING_MAP_ONE | RING_MAP_REFUSED);
    assert_non_null(strstr(warning, "rank 0 shares: it is a file that can shrink, as that rank may not use "
                                    "memfd_create; allow it there, or nowhere. Until it can, messages from there are "
                                    "copied, which is slower"));
    lie((struct ring_place){ .loan = 1, .region = 1 }, 10);
}

static void a_region_of_another_length(void **state)
{
    (void)state;
    send_region(4096, 8192);
    assert_int_equal(sides[1].pair->port.state, PORT_LOST);
    assert_string_equal(sides[1].pair->port.lost_text, "sent a notice of shared memory that makes no sense");
    assert_int_equal(atomic_load(&sides[0].pair->out.shared->map_answer), 0);
}

/* It comes after what the peer has sent before. */
static void a_peer_that_says_why_it_ends(void **state)
{
    uint8_t *data = message_bytes(0);
    (void)state;
    struct frame h = { .type = FRAME_EAGER, .kind = COMM_OP_SEND, .group = 7, .bytes = 100 };
    duplex_send(&sides[0].pair->port, &h, data, 100, NULL);
    port_lose(&sides[0].pair->port, COMM_ERR_SYSTEM, "sent what \x01 nobody can read");
    duplex_sweep(&sides[0].pair->port);
    events_turn(&sides[1].fabric, 0);
    look(1);
    assert_int_equal(received_count, 1);
    assert_int_equal(sides[1].pair->port.state, PORT_LOST);
    assert_int_equal(sides[1].pair->port.lost_status, COMM_ERR_PEER_LOST);
    assert_string_equal(sides[1].pair->port.lost_text, "has given this rank up, which sent what ? nobody can read");
    free(data);
}

#define LENT(test) cmocka_unit_test_setup_teardown(test, open_sides, close_sides)
#define LENT_LONG_RINGS(test) cmocka_unit_test_setup_teardown(test, open_sides_with_long_rings, close_sides)

static const struct CMUnitTest tests[] = {
    LENT(one_is_read_and_then_sent),
    LENT(the_sender_learns_of_it_before_the_bye),
    LENT(credit_is_taken_in_once_when_one_is_sent),
    LENT(one_that_is_taken_back_is_not_received),
    LENT(more_than_there_are_slots_go_through_the_ring),
    LENT(memory_that_the_kernel_does_not_read),
    LENT(what_is_lent),
    LENT(what_is_faster),
    LENT(both_go_the_same_way),
    LENT(a_way_changes_when_it_has_been_slower_for_some_messages),
    LENT(a_new_way_is_doubted_more_often),
    LENT(waits_of_ranks_that_share_cores_cost_nothing),
    LENT(the_first_of_a_size_goes_as_shorter_ones_did),
    LENT(copies_to_a_ring_that_is_tried_are_measured_late),
    LENT(huge_pages_are_asked_for_what_may_be_lent),
    LENT(senseless_ways),
    LENT(the_sender_knows_what_reads_take),
    LENT_LONG_RINGS(the_slower_copy_decides_where_both_copy_at_a_time),
    LENT_LONG_RINGS(the_sender_knows_what_copies_from_the_ring_take),
    LENT(what_follows_a_complete_work_waits),
    LENT(one_is_read_when_it_is_announced),
    LENT(one_is_read_when_it_is_wanted),
    LENT(an_offer_that_is_taken_back_is_not_received),
    LENT(the_number_of_an_old_offer_comes_again),
    LENT(a_half_of_the_slots_is_for_offers),
    LENT(an_offer_that_is_staged),
    LENT(one_that_is_read_at_once),
    LENT(one_that_is_taken_back_while_it_is_read_at_once),
    LENT(one_that_is_read_by_a_peer_that_leaves),
    LENT(one_that_nobody_waits_for_as_the_peer_is_lost),
    LENT(an_offer_that_is_wanted_while_the_helper_sleeps),
    LENT(a_bell_that_another_thread_hears),
    LENT(a_receiver_that_sleeps_is_woken),
    LENT(a_sender_that_sleeps_is_woken_when_all_is_read),
    LENT(a_sender_that_sleeps_is_woken_when_there_is_space),
    LENT(a_rank_that_sleeps_is_woken_at_once),
    LENT(a_send_at_once_passes_no_other),
    LENT(a_receive_at_once_passes_no_other),
    LENT(a_receive_at_once_passes_some_credit),
    LENT_LONG_RINGS(an_eager_message_is_lent),
    LENT_LONG_RINGS(an_eager_message_is_taken_back),
    LENT_LONG_RINGS(an_eager_message_that_is_being_read_is_not_taken_back),
    LENT(an_eager_message_whose_group_ends_while_it_is_read),
    LENT(an_unexpected_message_whose_group_ends_while_it_is_read),
    LENT(credit_that_has_come_is_found),
    LENT_LONG_RINGS(a_send_of_an_eager_message_waits_for_nobody),
    LENT(eager_messages_go_the_faster_way),
    LENT_LONG_RINGS(the_sender_knows_what_records_take),
    LENT(a_region_is_read_where_it_is),
    LENT(a_region_may_go_while_it_is_read),
    LENT(a_region_is_not_lent_from_before_it_is_mapped),
    LENT(a_notice_does_not_part_a_message),
    LENT(numbers_of_regions_come_again),
    LENT(the_count_of_maps_begins_again),
    LENT(a_region_that_goes_before_it_is_mapped),
    LENT(a_number_that_comes_again_is_of_the_new_region),
    LENT(a_receiver_without_descriptors),
    LENT(a_receiver_without_addresses),
    LENT(a_receiver_that_has_mapped_very_many),
    LENT(a_region_that_goes_before_it_is_refused),
    LENT(a_staging_area_that_was_refused),
    LENT(a_region_of_a_peer_that_ends_with_something_unread),
    LENT(a_region_may_go_before_it_is_read),
    LENT(what_is_not_all_in_a_region_is_not_of_it),
    LENT(a_result_comes_back),
    LENT(a_result_comes_back_to_a_region),
    LENT(a_result_that_is_not_for_the_sender),
    LENT(what_does_not_fit_the_staging_area),
    LENT(nothing_is_written_to_what_was_taken_back),
    LENT(what_is_taken_back_meanwhile_is_not_received),
    LENT(memory_may_go_while_the_kernel_reads_it),
    LENT(a_writer_that_does_not_run),
    LENT(others_write_to_the_region_of_a_writer_that_does_not_run),
    LENT(two_writers_that_do_not_run),
    LENT(one_after_the_other_that_do_not_run),
    LENT(a_writer_where_there_is_no_memory_for_other_pages),
    LENT(a_staging_place_that_is_written_to),
    LENT(a_result_comes_back_by_the_kernel),
    LENT(what_does_not_go_back_by_the_kernel),
    LENT(the_kernel_writes_less),
    LENT(nothing_is_written_by_the_kernel_to_what_was_taken_back),
    LENT(nothing_is_written_to_another_process),
    LENT(nothing_is_written_to_the_place_of_a_later_loan),
    LENT(a_writer_by_the_kernel_that_is_stopped),
    LENT(a_writer_by_the_kernel_that_does_not_come_back),
    LENT(results_go_back_the_faster_way),
    LENT(results_that_can_only_go_one_way),
    LENT(what_results_take_is_measured),
    LENT(a_receiver_that_lies_about_its_parts),
    LENT(a_sender_that_lies_about_its_parts),
    LENT(an_operation_that_there_is_not),
    LENT(an_offer_in_a_slot_that_there_is_not),
    LENT(an_offer_with_a_number_that_says_written),
    LENT(an_eager_message_in_a_slot_that_there_is_not),
    LENT(an_eager_message_that_is_nowhere),
    LENT(an_eager_message_with_a_number_that_says_claimed),
    LENT(credit_that_there_cannot_be),
    LENT(an_offer_of_nothing),
    LENT(an_offer_of_a_region_that_there_is_not),
    LENT(a_slot_that_there_is_not),
    LENT(a_region_that_is_gone_when_the_other_is_known),
    LENT(a_number_that_says_written),
    LENT(a_result_for_a_region_that_there_is_not),
    LENT(a_result_beyond_a_region),
    LENT(a_result_of_what_is_not_in_a_region),
    LENT(no_number),
    LENT(a_region_that_there_is_not),
    LENT(beyond_a_region),
    LENT(far_beyond_a_region),
    LENT(an_address_that_nobody_has),
    LENT(a_region_that_can_shrink),
    LENT(a_region_of_another_length),
    LENT(a_peer_that_says_why_it_ends),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}

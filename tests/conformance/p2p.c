/* Point-to-point messages: does a backend do what comm.h says in section 6? Usage:
 * p2p BACKEND [SEED|fresh [ROUNDS]]. */
#include <comm/comm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "difference.h"
#include "ranks.h"
#include "reference.h"
#include "suite.h"

enum { POISON = 0xa5, MARGIN = 64, WAIT_MS = 60000, RANKS_MAX = 9 };

struct suite {
    const char *backend;
    uint64_t seed;
    int rounds;
    bool threads;
};

static size_t below(uint64_t *state, size_t end)
{
    return (size_t)(reference_random(state) % end);
}

/* Short and long, around the sizes where protocols change. */
static size_t draw_bytes(uint64_t *state)
{
    static const size_t sizes[] = { 0, 1, 7, 64, 1000, 4096, 20000, 65535, 65536, 65537, 100000, 300001 };
    return sizes[below(state, below(state, 4) == 0 ? 12 : 6)];
}

/* A part of a message, a multiple of 8 bytes unless it is the last. */
static void write_part(uint8_t *at, size_t bytes, uint64_t *key)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = reference_random(key);
        memcpy(at + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static void write_message(uint8_t *at, size_t bytes, uint64_t key)
{
    write_part(at, bytes, &key);
}

/* A buffer of `capacity` bytes with a margin that must stay as it is. */
static uint8_t *poisoned(size_t capacity)
{
    uint8_t *buffer = malloc(capacity + MARGIN);
    memset(buffer, POISON, capacity + MARGIN);
    return buffer;
}

/* The first `bytes` are the message's, the rest is untouched. */
static void check_message(const char *what, const uint8_t *got, size_t capacity, size_t bytes, uint64_t key)
{
    uint8_t wanted[4096];
    size_t written = bytes < capacity ? bytes : capacity, n;
    for (size_t at = 0; at < capacity + MARGIN; at += n) {
        n = capacity + MARGIN - at < sizeof wanted ? capacity + MARGIN - at : sizeof wanted;
        memset(wanted, POISON, n);
        if (at < written)
            write_part(wanted, written - at < n ? written - at : n, &key);
        size_t i = first_difference(got + at, wanted, n);
        if (i < n)
            ranks_fail(__FILE__, __LINE__, "%s: byte %zu of a message of %zu in room for %zu is %02x, not %02x", what,
                       at + i, bytes, capacity, got[at + i], wanted[i]);
    }
}

static comm_op_options tagged(int32_t tag)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.tag = tag;
    return options;
}

static comm_work *isend(comm_group *g, const void *data, size_t bytes, int32_t peer, int32_t tag)
{
    comm_op_options options = tagged(tag);
    comm_work *work;
    CHECK_OK(comm_send(g, data, bytes, COMM_DTYPE_BYTE, peer, &options, &work));
    return work;
}

static comm_work *irecv(comm_group *g, void *data, size_t bytes, int32_t peer, int32_t tag)
{
    comm_op_options options = tagged(tag);
    comm_work *work;
    CHECK_OK(comm_recv(g, data, bytes, COMM_DTYPE_BYTE, peer, &options, &work));
    return work;
}

static void finish(comm_work *work)
{
    CHECK_OK(comm_work_wait(work, WAIT_MS));
    comm_work_release(work);
}

static void finish_recv(comm_work *work, int32_t source, int32_t tag, size_t bytes)
{
    CHECK_OK(comm_work_wait(work, WAIT_MS));
    CHECK(comm_work_source_rank(work) == source);
    CHECK(comm_work_tag(work) == tag);
    CHECK(comm_work_received_count(work) == bytes);
    comm_work_release(work);
}

/* ---- Random traffic with named sources and tags ---- */

enum { MESSAGES = 80, TAGS = 3 };
static int32_t tags[TAGS] = { 0, 7, INT32_MAX }; /* P2P_TAG_MAX: where a backend has fewer */

struct message {
    int32_t from, to, tag;
    size_t bytes, capacity;
    uint64_t key;
    uint8_t *data;
    comm_work *work;
    bool posted;
};

/* Messages of one pair and tag are posted in the order of the list, others in any order. */
static size_t next_to_post(uint64_t *own, struct message *m, size_t count)
{
    size_t at = below(own, count);
    while (m[at].posted)
        at = (at + 1) % count;
    for (size_t i = 0; i < count; i++)
        if (!m[i].posted && m[i].from == m[at].from && m[i].to == m[at].to && m[i].tag == m[at].tag)
            return i;
    return at;
}

static void traffic_round(uint64_t *state, uint64_t *own, comm_group *g)
{
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    struct message mine[2 * MESSAGES];
    size_t count = 0;
    for (int i = 0; i < MESSAGES; i++) {
        struct message m = { .from = (int32_t)below(state, (size_t)size), .to = (int32_t)below(state, (size_t)size) };
        m.tag = tags[below(state, TAGS)];
        m.bytes = draw_bytes(state);
        m.capacity = m.bytes + (below(state, 3) == 0 ? below(state, 100) : 0);
        m.key = reference_random(state);
        for (int side = 0; side < 2; side++) {
            if (rank != (side ? m.to : m.from))
                continue;
            mine[count] = m;
            mine[count].data = side ? poisoned(m.capacity) : malloc(m.bytes + 1);
            if (!side)
                write_message(mine[count].data, m.bytes, m.key);
            mine[count++].capacity = side ? m.capacity : SIZE_MAX; /* marks a send */
        }
    }
    /* To oneself, a send and a receive have the same pair and tag; each keeps its own order. */
    for (size_t n = 0; n < count; n++) {
        struct message *m = &mine[next_to_post(own, mine, count)];
        m->posted = true;
        m->work = m->capacity == SIZE_MAX ? isend(g, m->data, m->bytes, m->to, m->tag)
                                      : irecv(g, m->data, m->capacity, m->from, m->tag);
    }
    for (; count > 0; count--) {
        struct message *m = &mine[below(own, count)];
        if (m->capacity == SIZE_MAX) {
            finish(m->work);
        } else {
            finish_recv(m->work, m->from, m->tag, m->bytes);
            check_message("traffic", m->data, m->capacity, m->bytes, m->key);
        }
        free(m->data);
        *m = mine[count - 1];
    }
}

static void traffic(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    uint64_t state = suite->seed + (uint64_t)size, own = state + (uint64_t)rank * 77;
    for (int i = 0; i < 5 * suite->rounds; i++)
        traffic_round(&state, &own, world);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* ---- Any source, any tag ---- */

struct envelope {
    int32_t from, tag;
    uint32_t number; /* of this source and tag */
    uint32_t zero;
};

/* Every rank but 0 sends; rank 0 also to itself. The receives are of all four kinds. */
static void wildcards(int rank, int size, void *arg)
{
    enum { EACH = 60 };
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    uint64_t own = suite->seed + (uint64_t)(rank * 31 + size);
    static _Thread_local struct envelope sent[EACH];
    static _Thread_local uint8_t padding[70000];
    uint32_t numbers[TAGS] = { 0 };
    comm_work *works[EACH];
    for (int i = 0; i < EACH; i++) {
        size_t t = below(&own, TAGS);
        sent[i] = (struct envelope){ rank, tags[t], numbers[t]++, 0 };
        works[i] = isend(world, &sent[i], sizeof sent[i], 0, tags[t]);
    }
    /* The counts per source and tag, so that rank 0 can also ask by name. */
    uint32_t all[RANKS_MAX * TAGS];
    CHECK_OK(comm_all_gather(world, numbers, all, TAGS, COMM_DTYPE_U32, NULL, NULL));
    uint32_t next[RANKS_MAX][TAGS] = { { 0 } };
    for (int i = 0; rank == 0 && i < EACH * size; i++) {
        /* Named ones only as long as such a message is left. */
        int32_t from = (int32_t)below(&own, (size_t)size), t = (int32_t)below(&own, TAGS);
        bool any_source = below(&own, 2), any_tag = below(&own, 2);
        uint32_t left = 0;
        for (int32_t s = any_source ? 0 : from; s < (any_source ? size : from + 1); s++)
            for (int32_t u = any_tag ? 0 : t; u < (any_tag ? TAGS : t + 1); u++)
                left += all[s * TAGS + u] - next[s][u];
        if (left == 0) {
            i--;
            continue;
        }
        struct envelope got;
        size_t capacity = below(&own, 2) ? sizeof got : sizeof padding;
        comm_work *work =
            irecv(world, padding, capacity, any_source ? COMM_ANY_SOURCE : from, any_tag ? COMM_ANY_TAG : tags[t]);
        CHECK_OK(comm_work_wait(work, WAIT_MS));
        memcpy(&got, padding, sizeof got);
        CHECK(comm_work_received_count(work) == sizeof got);
        CHECK(comm_work_source_rank(work) == got.from && (any_source || got.from == from));
        CHECK(comm_work_tag(work) == got.tag && (any_tag || got.tag == tags[t]));
        comm_work_release(work);
        for (t = 0; tags[t] != got.tag;)
            t++;
        if (got.number != next[got.from][t]++)
            ranks_fail(__FILE__, __LINE__, "message %u of rank %d with tag %d came as number %u", got.number, got.from,
                       got.tag, next[got.from][t] - 1);
    }
    for (int i = 0; i < EACH; i++)
        finish(works[i]);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* Receives that were posted before anything came: a message takes the first that fits. */
static void first_posted_is_served(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    int32_t values[6] = { -1, -1, -1, -1, -1, -1 };
    if (rank == 0) {
        comm_work *works[6];
        works[0] = irecv(world, &values[0], 4, size - 1, 5);
        works[1] = irecv(world, &values[1], 4, COMM_ANY_SOURCE, 0); /* 0 is an ordinary tag */
        works[2] = irecv(world, &values[2], 4, size - 1, COMM_ANY_TAG);
        works[3] = irecv(world, &values[3], 4, COMM_ANY_SOURCE, COMM_ANY_TAG);
        works[4] = irecv(world, &values[4], 4, size - 1, 5);
        works[5] = irecv(world, &values[5], 4, COMM_ANY_SOURCE, 0);
        CHECK_OK(comm_barrier(world, NULL, NULL));
        static const int32_t expected_tags[6] = { 5, 0, 9, 5, 5, 0 };
        static const int32_t expected_values[6] = { 101, 103, 100, 102, 104, 105 };
        for (int i = 0; i < 6; i++) {
            finish_recv(works[i], size - 1, expected_tags[i], 4);
            CHECK(values[i] == expected_values[i]);
        }
    } else {
        CHECK_OK(comm_barrier(world, NULL, NULL));
    }
    if (rank == size - 1 && size > 1) {
        static const int32_t order[6] = { 9, 5, 5, 0, 5, 0 };
        for (int i = 0; i < 6; i++) {
            int32_t value = 100 + i;
            finish(isend(world, &value, 4, 0, order[i]));
        }
    }
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* ---- Truncation ---- */

static void post_three(comm_group *g, const uint8_t *data, size_t bytes, comm_work **ret_works)
{
    for (int i = 0; i < 2; i++)
        ret_works[i] = isend(g, data, bytes, 0, 3);
    ret_works[2] = isend(g, "*", 1, 0, 3);
}

static void finish_truncated(comm_work *work, int32_t source, size_t bytes, size_t capacity)
{
    char numbers[2][24];
    CHECK_STATUS(comm_work_wait(work, WAIT_MS), COMM_ERR_TRUNCATED);
    CHECK(comm_work_source_rank(work) == source && comm_work_tag(work) == 3);
    CHECK(comm_work_received_count(work) == capacity);
    snprintf(numbers[0], sizeof numbers[0], "%zu", bytes);
    snprintf(numbers[1], sizeof numbers[1], "%zu", capacity);
    CHECK(strstr(comm_work_error(work), numbers[0]) && strstr(comm_work_error(work), numbers[1]));
    comm_work_release(work);
}

/* A longer message fills the room, says so, and disturbs nothing after it; posted before and after the message came. */
static void truncate_one(comm_group *g, size_t bytes, size_t capacity, bool late)
{
    int32_t rank = comm_group_rank(g), from = comm_group_size(g) - 1;
    uint8_t *data = malloc(bytes + 8), *got = poisoned(capacity), *whole = poisoned(bytes), *star = poisoned(1);
    comm_work *sends[3] = { NULL }, *recvs[3] = { NULL };
    write_message(data, bytes, bytes + capacity);
    if (late && rank == from)
        post_three(g, data, bytes, sends);
    if (late)
        CHECK_OK(comm_barrier(g, NULL, NULL));
    if (rank == 0) {
        recvs[0] = irecv(g, got, capacity, from, 3);
        recvs[1] = irecv(g, whole, bytes, COMM_ANY_SOURCE, 3);
        recvs[2] = irecv(g, star, 1, from, COMM_ANY_TAG);
    }
    if (!late)
        CHECK_OK(comm_barrier(g, NULL, NULL));
    if (!late && rank == from)
        post_three(g, data, bytes, sends);
    if (rank == 0) {
        finish_truncated(recvs[0], from, bytes, capacity);
        finish_recv(recvs[1], from, 3, bytes);
        finish_recv(recvs[2], from, 3, 1);
        check_message("truncated", got, capacity, bytes, bytes + capacity);
        check_message("after a truncated one", whole, bytes, bytes, bytes + capacity);
        CHECK(star[0] == '*' && star[1] == POISON);
    }
    for (int i = 0; rank == from && i < 3; i++)
        finish(sends[i]); /* the sender is not concerned */
    CHECK_OK(comm_group_status(g));
    free(data);
    free(got);
    free(whole);
    free(star);
}

static void truncation(int rank, int size, void *arg)
{
    static const size_t cases[][2] = { { 100, 10 },    { 100, 0 },    { 1, 0 },          { 65536, 65535 },
                                       { 300000, 10 }, { 300000, 0 }, { 300000, 299999 } };
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int late = 0; late < 2; late++)
            truncate_one(world, cases[c][0], cases[c][1], late);
    if (size > 1 && rank < 2) { /* a call that waits says so itself */
        uint64_t value = 7;
        uint32_t half;
        if (rank == 1)
            CHECK_OK(comm_send(world, &value, 1, COMM_DTYPE_U64, 0, NULL, NULL));
        else
            CHECK_STATUS(comm_recv(world, &half, 1, COMM_DTYPE_U32, 1, NULL, NULL), COMM_ERR_TRUNCATED);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* ---- Many ---- */

static long resident_kb(void)
{
    char line[256];
    long kb = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && kb < 0 && fgets(line, sizeof line, file))
        sscanf(line, "VmRSS: %ld kB", &kb);
    if (file)
        fclose(file);
    return kb;
}

/* 96 MiB come before their receives: the sender waits, the receiver does not grow, and collectives go on. */
static void unexpected_messages_are_bounded(int rank, int size, void *arg)
{
    enum { COUNT = 3000, BYTES = 32768, MAX_KB = 48 * 1024 };
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    comm_work **works = calloc(COUNT, sizeof *works);
    uint8_t *data = malloc(BYTES);
    write_message(data, BYTES, 1);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    long before_kb = resident_kb();
    for (int i = 0; rank == 1 && i < COUNT; i++)
        works[i] = isend(world, data, BYTES, 0, 0);
    for (int i = 0; i < 200; i++) {
        int32_t one = 1, sum;
        CHECK_OK(comm_all_reduce(world, &one, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(sum == size);
    }
    if (!suite->threads) {
        if (rank == 1)
            CHECK(comm_work_status(works[COUNT - 1]) == COMM_IN_PROGRESS);
        if (rank == 0 && resident_kb() - before_kb > MAX_KB)
            ranks_fail(__FILE__, __LINE__, "from %ld to %ld KiB", before_kb, resident_kb());
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int i = 0; rank == 0 && i < COUNT; i++) {
        uint8_t *got = poisoned(BYTES);
        finish_recv(irecv(world, got, BYTES, 1, 0), 1, 0, BYTES);
        check_message("flood", got, BYTES, BYTES, 1);
        free(got);
    }
    for (int i = 0; rank == 1 && i < COUNT; i++)
        finish(works[i]);
    free(works);
    free(data);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* Many short ones are under way in both directions, some before and some after their receives. */
static void many_outstanding(int rank, int size, void *arg)
{
    enum { EACH = 1500 };
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    size_t count = (size_t)(EACH * suite->rounds);
    uint64_t *out = calloc(count, sizeof *out), *in = calloc(count, sizeof *in);
    comm_work **works = calloc(2 * count, sizeof *works);
    int32_t to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint64_t)rank * 1000003 + i;
        if (rank % 2)
            works[2 * i] = isend(world, &out[i], sizeof out[i], to, (int32_t)(i % 3));
        else
            works[2 * i + 1] = irecv(world, &in[i], sizeof in[i], from, (int32_t)(i % 3));
    }
    for (size_t i = 0; i < count; i++) {
        if (rank % 2)
            works[2 * i + 1] = irecv(world, &in[i], sizeof in[i], from, (int32_t)(i % 3));
        else
            works[2 * i] = isend(world, &out[i], sizeof out[i], to, (int32_t)(i % 3));
    }
    CHECK_OK(comm_work_wait_all(works, 2 * count, WAIT_MS));
    for (size_t i = 0; i < count; i++) {
        CHECK(in[i] == (uint64_t)from * 1000003 + i);
        comm_work_release(works[2 * i]);
        comm_work_release(works[2 * i + 1]);
    }
    free(out);
    free(in);
    free(works);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* More than any backend would keep at the receiver: the rest has to wait at the sender, in order,
 * and passes nothing. */
static void very_many_unexpected(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    const uint32_t count = suite->threads ? 3000 : 70000; /* the loopback backend looks through all of them */
    comm_group *world = ranks_world(suite->backend);
    uint32_t *values = malloc(count * sizeof *values), got;
    comm_work **works = malloc(count * sizeof(*works));
    CHECK(size == 2);
    for (uint32_t i = 0; i < count && rank == 0; i++) {
        values[i] = i;
        works[i] = isend(world, &values[i], sizeof values[i], 1, 5);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (uint32_t i = 0; i < count && rank == 1; i++) {
        comm_op_options options = tagged(5);
        got = UINT32_MAX;
        CHECK_OK(comm_recv(world, &got, sizeof got, COMM_DTYPE_BYTE, 0, &options, NULL));
        CHECK(got == i);
    }
    for (size_t i = 0; i < count && rank == 0; i++)
        finish(works[i]);
    free(works);
    free(values);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* ---- Ways of calling ---- */

static void handles_may_be_dropped(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    static _Thread_local uint8_t out[20][100000], in[20][100000];
    for (int i = 0; i < 20; i++) {
        memset(out[i], rank * 20 + i, sizeof out[i]);
        comm_work_release(isend(world, out[i], sizeof out[i], (rank + 1) % size, i));
    }
    for (int i = 0; i < 20; i++)
        comm_work_release(irecv(world, in[i], sizeof in[i], (rank + size - 1) % size, i));
    CHECK_OK(comm_group_flush(world, WAIT_MS));
    for (int i = 0; i < 20; i++)
        for (size_t b = 0; b < sizeof in[i]; b++)
            CHECK(in[i][b] == (uint8_t)((rank + size - 1) % size * 20 + i));
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* A receive that has not been served yet holds no collective up, nor the other way round. */
static void collectives_are_independent(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    int32_t got = -1, sum, next = (rank + 1) % size, last = (rank + size - 1) % size;
    comm_work *recv = irecv(world, &got, sizeof got, last, 1), *reduced = NULL;
    for (int i = 0; i < 5; i++)
        CHECK_OK(comm_all_reduce(world, &rank, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, NULL));
    CHECK(comm_work_status(recv) == COMM_IN_PROGRESS);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank != 0) /* rank 0 comes to it only after the messages */
        CHECK_OK(comm_all_reduce(world, &rank, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, &reduced));
    finish(isend(world, &rank, sizeof rank, next, 1));
    finish_recv(recv, last, 1, sizeof got);
    CHECK(got == last);
    if (rank == 0)
        CHECK_OK(comm_all_reduce(world, &rank, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, &reduced));
    finish(reduced);
    CHECK(sum == size - 1);
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

static void to_oneself(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    (void)size;
    static const size_t sizes[] = { 0, 1, 1000, 65537, 1000000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i];
        uint8_t *out = malloc(bytes + 8), *in = poisoned(bytes);
        write_message(out, bytes, bytes);
        comm_op_options tag = tagged(4);
        comm_work *recv = irecv(world, in, bytes, rank, 4); /* posted: then the send may wait */
        CHECK_OK(comm_send(world, out, bytes, COMM_DTYPE_BYTE, rank, &tag, NULL));
        finish_recv(recv, rank, 4, bytes);
        check_message("to oneself", in, bytes, bytes, bytes);
        memset(in, POISON, bytes);
        comm_work *send = isend(world, out, bytes, rank, 4); /* with a work: then the receive may wait */
        CHECK_OK(comm_recv(world, in, bytes, COMM_DTYPE_BYTE, COMM_ANY_SOURCE, &tag, NULL));
        finish(send);
        check_message("to oneself", in, bytes, bytes, bytes);
        memset(in, POISON, bytes);
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_send(world, out, bytes, COMM_DTYPE_BYTE, rank, &tag, NULL));
        CHECK_OK(comm_recv(world, in, bytes, COMM_DTYPE_BYTE, rank, &tag, NULL));
        CHECK_OK(comm_coalesce_end(world, NULL, NULL));
        check_message("to oneself", in, bytes, bytes, bytes);
        free(out);
        free(in);
    }
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* Every rank sends to every rank and then receives from every rank, all in one batch: no order of these can block. */
static void batches_cannot_block(int rank, int size, void *arg)
{
    enum { COUNT_MAX = 300000 };
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    for (int round = 0; round < 3; round++) {
        size_t bytes = round == 0 ? 10 : round == 1 ? 5000 : COUNT_MAX;
        uint8_t *out = malloc(bytes + 8), *in[RANKS_MAX];
        write_message(out, bytes, (uint64_t)rank);
        comm_work *work = NULL;
        int32_t sum;
        CHECK_OK(comm_coalesce_begin(world));
        for (int r = 0; r < size; r++)
            CHECK_OK(comm_send(world, out, bytes, COMM_DTYPE_BYTE, r, NULL, NULL));
        CHECK_OK(comm_all_reduce(world, &rank, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        for (int r = size - 1; r >= 0; r--) {
            in[r] = poisoned(bytes);
            CHECK_OK(comm_recv(world, in[r], bytes, COMM_DTYPE_BYTE, r, NULL, NULL));
        }
        CHECK_OK(comm_coalesce_end(world, NULL, round % 2 ? &work : NULL));
        if (work)
            finish(work);
        CHECK(sum == size * (size - 1) / 2);
        for (int r = 0; r < size; r++) {
            check_message("batch", in[r], bytes, bytes, (uint64_t)r);
            free(in[r]);
        }
        free(out);
    }
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

static const struct {
    const char *name;
    void (*fn)(int, int, void *);
    int least, most;
} cases[] = {
    { "traffic", traffic, 1, 9 },
    { "wildcards", wildcards, 1, 6 },
    { "first posted is served", first_posted_is_served, 2, 3 },
    { "truncation", truncation, 1, 3 },
    { "unexpected messages are bounded", unexpected_messages_are_bounded, 2, 3 },
    { "many outstanding", many_outstanding, 2, 2 },
    { "very many unexpected", very_many_unexpected, 2, 2 },
    { "handles may be dropped", handles_may_be_dropped, 1, 3 },
    { "collectives are independent", collectives_are_independent, 2, 4 },
    { "to oneself", to_oneself, 1, 2 },
    { "batches cannot block", batches_cannot_block, 1, 5 },
};

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [ROUNDS]]\n", argv[0]);
        return 2;
    }
    struct suite suite = {
        .backend = argv[1],
        .seed = suite_seed(argc, argv),
        .rounds = argc > 3 ? atoi(argv[3]) : 1,
        .threads = suite_has_threads(argv[1]),
    };
    if (getenv("P2P_TAG_MAX"))
        tags[TAGS - 1] = atoi(getenv("P2P_TAG_MAX"));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int size = cases[c].least; size <= cases[c].most; size++) {
            struct ranks_options options = { .threads = suite.threads, .limit_s = 100, .name = cases[c].name };
            if (ranks_run(size, &options, cases[c].fn, &suite) != 0)
                return 1;
        }
    return 0;
}

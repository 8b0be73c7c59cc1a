/* Sends and receives. Each receiver takes its messages in one of three ways: each by its source and tag, by its tag
 * from any source, or any message; so what a receive must get follows from the order of the sends and
 * of the receives. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum way { BY_SOURCE_AND_TAG, BY_TAG, ANYTHING, WAYS };
enum { TAGS = 3, MANY = 100, BUCKETS = 256 };

/* A message. Those from one rank to another in one group stand in a list, in the order sent. */
struct letter {
    struct letter *next;
    struct team *team;
    int32_t from, to, tag;
    size_t bytes;
    uint64_t content;
};

static struct letter *buckets[BUCKETS], *lasts[BUCKETS];
static struct part **receives;
static size_t receive_count, receive_capacity;

static size_t bucket_of(const struct team *team, int32_t from, int32_t to)
{
    return (size_t)(mix(team->id, (uint64_t)from << 32 | (uint32_t)to) % BUCKETS);
}

static void message_append(struct letter *m)
{
    size_t b = bucket_of(m->team, m->from, m->to);
    *(buckets[b] ? &lasts[b]->next : &buckets[b]) = m;
    lasts[b] = m;
}

static void add_receive(struct letter *m, enum way way, size_t most)
{
    struct member *member = &m->team->members[m->to];
    struct part *part = part_new(member, NULL);
    size_t capacity = one_in(8) ? below(m->bytes + 1) : m->bytes;
    if (way != BY_SOURCE_AND_TAG)
        capacity = draw_bytes(most); /* whatever comes */
    area_open(&part->recv, capacity);
    part->op = (comm_op){ .kind = COMM_OP_RECV,
                          .dtype = COMM_DTYPE_U8,
                          .root = way == BY_SOURCE_AND_TAG ? m->from : COMM_ANY_SOURCE,
                          .tag = way == ANYTHING ? COMM_ANY_TAG : m->tag,
                          .recv = { .data = part->recv.memory + MARGIN, .count = capacity } };
    member_append(member, part);
    if (receive_count == receive_capacity) {
        receive_capacity = 2 * receive_capacity + 64;
        receives = realloc(receives, receive_capacity * sizeof *receives);
    }
    receives[receive_count++] = part;
}

static void add_send(struct letter *m)
{
    struct member *member = &m->team->members[m->from];
    struct part *part = part_new(member, NULL);
    area_open(&part->send, m->bytes);
    content_write(part->send.memory + MARGIN, m->bytes, m->content);
    part->content = m->content;
    part->op = (comm_op){ .kind = COMM_OP_SEND,
                          .dtype = COMM_DTYPE_U8,
                          .root = m->to,
                          .tag = m->tag,
                          .send = { .data = part->send.memory + MARGIN, .count = m->bytes } };
    member_append(member, part);
}

static struct letter *message_new(struct team *team, int32_t from, int32_t to, size_t bytes)
{
    struct letter *m = calloc(1, sizeof *m);
    m->team = team;
    m->from = from;
    m->to = to;
    m->tag = (int32_t)below(TAGS);
    m->bytes = bytes;
    m->content = draw();
    message_append(m);
    add_send(m);
    return m;
}

/* Receives come in an order of their own; a rank keeps to its way. */
static void add_receives(struct letter **drawn, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        size_t j = below(i + 1);
        struct letter *m = drawn[j];
        drawn[j] = drawn[i];
        add_receive(m, (enum way)(mix(world->seed, m->team->id + (uint64_t)m->to) % WAYS), count > MANY ? 8 : 1 << 18);
    }
}

void messages_draw(struct team *team, size_t count)
{
    struct letter **drawn = malloc(count * sizeof *drawn);
    int one_receiver = one_in(4);
    for (size_t i = 0; i < count; i++) {
        int32_t from = (int32_t)below((size_t)team->size), to = one_receiver ? 0 : (int32_t)below((size_t)team->size);
        drawn[i] = message_new(team, from, to, count > MANY ? below(4) : draw_bytes(one_in(6) ? 3 << 20 : 70000));
    }
    add_receives(drawn, count);
    free(drawn);
}

void messages_flood(struct team *team, int32_t from, int32_t to, size_t count)
{
    struct letter **drawn = malloc(count * sizeof *drawn);
    for (size_t i = 0; i < count; i++)
        drawn[i] = message_new(team, from, to, 1 + below(3));
    add_receives(drawn, count);
    free(drawn);
}

/* Take the first message from there that fits this receive; NULL if there is none. */
static struct letter *take_for(const struct part *part)
{
    struct team *team = part->member->team;
    size_t b = bucket_of(team, part->from, part->member->rank);
    struct letter *previous = NULL;
    for (struct letter *m = buckets[b]; m; previous = m, m = m->next) {
        if (m->team != team || m->to != part->member->rank || m->from != part->from ||
            (part->op.tag != COMM_ANY_TAG && part->op.tag != m->tag))
            continue;
        *(previous ? &previous->next : &buckets[b]) = m->next;
        if (lasts[b] == m)
            lasts[b] = previous;
        return m;
    }
    return NULL;
}

static void check_receive(struct part *part)
{
    struct letter *m = take_for(part);
    if (!m) {
        complain("rank %d received from rank %d what was never sent", part->member->rank, part->from);
        return;
    }
    size_t capacity = part->op.recv.count, n = m->bytes < capacity ? m->bytes : capacity;
    comm_status expected = m->bytes > capacity ? COMM_ERR_TRUNCATED : COMM_OK;
    if (part->status != expected || part->tag != m->tag || part->count != n)
        complain("group %s, rank %d: a receive from rank %d says %s, tag %d, %zu B, not %s, tag %d, %zu B",
                 part->member->team->name, part->member->rank, part->from, comm_status_name(part->status), part->tag,
                 part->count, comm_status_name(expected), m->tag, n);
    struct area right;
    area_open(&right, capacity);
    uint8_t *whole = malloc(m->bytes + 1);
    content_write(whole, m->bytes, m->content);
    memcpy(right.memory + MARGIN, whole, n);
    if (memcmp(part->got.memory, right.memory, capacity + 2 * MARGIN) != 0)
        complain("group %s, rank %d: a receive of %zu B from rank %d with tag %d has wrong data",
                 part->member->team->name, part->member->rank, n, part->from, part->tag);
    free(whole);
    free(m);
    area_close(&right);
}

void messages_check(void)
{
    for (size_t i = 0; i < receive_count; i++) {
        struct part *part = receives[i];
        if (!part->member->team->doomed && part->state == PART_DONE)
            check_receive(part);
    }
    for (size_t b = 0; b < BUCKETS; b++)
        while (buckets[b]) {
            struct letter *m = buckets[b];
            buckets[b] = m->next;
            free(m);
        }
    free(receives);
    receives = NULL;
    receive_count = receive_capacity = 0;
}

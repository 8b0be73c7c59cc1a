/* The parser of the store's protocol (SOURCES: store/wire.c). The first byte of the input says how the rest, what a
 * client sends, is cut into pieces. Parsed in pieces and as a whole it must come to the same, each request that was
 * understood must be what the encoder makes of it, and nothing behind the bytes that are there may be read. */
#include "fuzz.h"
#include "store/wire.h"

enum { REQUESTS_MAX = 4096 };

struct outcome {
    enum wire_verdict verdict; /* the last one: MORE or BAD */
    enum wire_dialect dialect;
    size_t requests, bytes; /* that were understood */
    uint64_t digest;        /* of the requests and their fields */
};

static void digest(struct outcome *o, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        o->digest = (o->digest ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    o->digest = (o->digest ^ bytes) * 1099511628211u;
}

static void put_string(struct wire_buffer *b, struct outcome *o, struct wire_bytes s)
{
    digest(o, s.data, s.bytes);
    wire_put_string(b, s.data, s.bytes);
}

static void put_list(struct wire_buffer *b, struct outcome *o, const struct wire_request *r, int pairs)
{
    struct wire_list list = r->list;
    wire_put_u64(b, r->count);
    for (size_t i = 0; i < r->count * (pairs ? 2 : 1); i++) {
        FUZZ_CHECK(list.left >= 8);
        struct wire_bytes s = wire_list_next(&list);
        FUZZ_CHECK(s.bytes <= (pairs && i % 2 ? WIRE_VALUE_MAX : WIRE_KEY_MAX));
        put_string(b, o, s);
    }
    FUZZ_CHECK(list.left == 0);
}

static void put_fields(struct wire_buffer *b, struct outcome *o, const struct wire_request *r)
{
    switch (r->query) {
    case WIRE_VALIDATE: wire_put_u32(b, WIRE_MAGIC); return;
    case WIRE_PING: wire_put_u32(b, (uint32_t)r->number); return;
    case WIRE_CHECK: case WIRE_WAIT: case WIRE_MULTI_GET: put_list(b, o, r, 0); return;
    case WIRE_MULTI_SET: put_list(b, o, r, 1); return;
    case WIRE_NUM_KEYS: case WIRE_CANCEL_WAIT: case WIRE_LIST_KEYS: return;
    default: put_string(b, o, r->key);
    }
    if (r->query == WIRE_SET || r->query == WIRE_APPEND || r->query == WIRE_QUEUE_PUSH || r->query == WIRE_COMPARE_SET)
        put_string(b, o, r->value);
    if (r->query == WIRE_COMPARE_SET)
        put_string(b, o, r->desired);
    if (r->query == WIRE_ADD || r->query == WIRE_BARRIER)
        wire_put_u64(b, (uint64_t)r->number);
}

static void check_request(struct outcome *o, enum wire_dialect dialect, const uint8_t *data,
                          const struct wire_request *r)
{
    struct wire_buffer again = { 0 };
    FUZZ_CHECK((unsigned)r->query < WIRE_QUERY_COUNT && wire_query_name(r->query) != NULL);
    digest(o, &r->query, sizeof r->query);
    digest(o, &r->number, sizeof r->number);
    FUZZ_CHECK(wire_put_query(&again, dialect, r->query) == 0);
    put_fields(&again, o, r);
    FUZZ_CHECK(!again.failed && again.bytes == r->bytes && memcmp(again.data, data, again.bytes) == 0);
    wire_buffer_finish(&again);
}

/* Parse with `piece` bytes more each time; 0: all at once. */
static struct outcome parse(const uint8_t *data, size_t bytes, size_t piece)
{
    struct outcome o = { .verdict = WIRE_MORE, .digest = 14695981039346656037u };
    struct wire_parser parser = { 0 };
    for (size_t there = piece ? 0 : bytes; o.requests < REQUESTS_MAX;) {
        size_t count = there - o.bytes;
        const uint8_t *at = fuzz_before_the_cliff(data + o.bytes, count);
        struct wire_request request;
        memset(&request, 0xee, sizeof request);
        o.verdict = wire_parse(&parser, at, count, &request);
        o.dialect = parser.dialect;
        if (o.verdict == WIRE_BAD) {
            FUZZ_CHECK(parser.reason != NULL);
            break;
        }
        if (o.verdict == WIRE_COMPLETE) {
            FUZZ_CHECK(request.bytes >= 1 && request.bytes <= count && request.bytes <= WIRE_REQUEST_MAX);
            check_request(&o, parser.dialect, at, &request);
            o.bytes += request.bytes;
            o.requests++;
        } else if (there == bytes) {
            break;
        } else {
            there = bytes - there < piece ? bytes : there + piece;
        }
    }
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1 || bytes > 1 << 16)
        return 0;
    struct outcome whole = parse(data + 1, bytes - 1, 0);
    struct outcome cut = parse(data + 1, bytes - 1, 1u + data[0] % 64);
    /* Which of the old dialects it is may show in what came together with an 8; see wire.h. */
    if (whole.dialect == WIRE_DIALECT_OLD || whole.dialect == WIRE_DIALECT_2_1 || cut.dialect == WIRE_DIALECT_2_1)
        return 0;
    FUZZ_CHECK(whole.verdict == cut.verdict && whole.requests == cut.requests && whole.bytes == cut.bytes);
    FUZZ_CHECK(whole.dialect == cut.dialect && whole.digest == cut.digest);
    return 0;
}

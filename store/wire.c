/* Parser and encoder of the store protocol; see wire.h. The parser is a table of layouts and a cursor that survives
 * any cut between two bytes. Every length is held against its limit before a byte of what it announces is awaited. */
#include "wire.h"

#include <stdlib.h>
#include <string.h>

/* Fields: k key, v value, n i64, m u32, K list of keys, P list of keys and values. */
static const struct {
    const char *name;
    const char *layout;
} queries[WIRE_QUERY_COUNT] = {
    [WIRE_VALIDATE] = { "VALIDATE", "m" },
    [WIRE_SET] = { "SET", "kv" },
    [WIRE_COMPARE_SET] = { "COMPARE_SET", "kvv" },
    [WIRE_GET] = { "GET", "k" },
    [WIRE_ADD] = { "ADD", "kn" },
    [WIRE_CHECK] = { "CHECK", "K" },
    [WIRE_WAIT] = { "WAIT", "K" },
    [WIRE_NUM_KEYS] = { "GETNUMKEYS", "" },
    [WIRE_DELETE] = { "DELETE_KEY", "k" },
    [WIRE_APPEND] = { "APPEND", "kv" },
    [WIRE_MULTI_GET] = { "MULTI_GET", "K" },
    [WIRE_MULTI_SET] = { "MULTI_SET", "P" },
    [WIRE_CANCEL_WAIT] = { "CANCEL_WAIT", "" },
    [WIRE_PING] = { "PING", "m" },
    [WIRE_QUEUE_PUSH] = { "QUEUE_PUSH", "kv" },
    [WIRE_QUEUE_POP] = { "QUEUE_POP", "k" },
    [WIRE_QUEUE_LEN] = { "QUEUE_LEN", "k" },
    [WIRE_LIST_KEYS] = { "LIST_KEYS", "" },
    [WIRE_BARRIER] = { "BARRIER", "kn" },
    [WIRE_WATCH_KEY] = { "WATCH_KEY", "k" },
};

/* The bytes of queries that are not their numbers: 1.13 begins at SET, and 7 is WATCH_KEY, so DELETE_KEY has its number
 * of today. In 2.1 WATCH_KEY was gone and VALIDATE not there yet: all numbers are one less. */
enum { OLD_GETNUMKEYS = 6, OLD_WATCH_KEY = 7, OLD_DELETE_KEY = 8, BYTE_MAX_2_1 = WIRE_CANCEL_WAIT - 1 };

static const uint8_t magic_bytes[4] = { 0xce, 0xf7, 0x85, 0x3c };

uint32_t wire_u32(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

uint64_t wire_u64(const uint8_t *data)
{
    return (uint64_t)wire_u32(data) | (uint64_t)wire_u32(data + 4) << 32;
}

const char *wire_query_name(enum wire_query query)
{
    return (unsigned)query < WIRE_QUERY_COUNT ? queries[query].name : "unknown query";
}

static enum wire_verdict bad(struct wire_parser *p, const char *reason, uint64_t culprit)
{
    p->reason = reason;
    p->culprit = culprit;
    return WIRE_BAD;
}

/* How many of `bytes` agree with the magic, up to its four; -1 if one does not. */
static int magic_prefix(const uint8_t *data, size_t bytes)
{
    size_t n = bytes < sizeof magic_bytes ? bytes : sizeof magic_bytes;
    return memcmp(data, magic_bytes, n) == 0 ? (int)n : -1;
}

static enum wire_verdict detect_dialect(struct wire_parser *p, const uint8_t *data, size_t bytes)
{
    if (data[0] == magic_bytes[0]) {
        p->dialect = WIRE_DIALECT_MAGIC_EACH;
    } else if (data[0] == 0) {
        int agree = magic_prefix(data + 1, bytes - 1);
        if (agree >= 0 && agree < 4)
            return WIRE_MORE;
        p->dialect = agree == 4 ? WIRE_DIALECT_MODERN : WIRE_DIALECT_OLD;
    } else if (data[0] <= BYTE_MAX_2_1) {
        p->dialect = WIRE_DIALECT_OLD;
    } else {
        return bad(p, "the first byte is not that of a store client", data[0]);
    }
    return WIRE_COMPLETE;
}

/* The query, or -1. A byte of the old dialects may show which of them it is. `first` of the connection: clients of 1.13
 * watch keys on connections of their own, and do nothing else there. */
static int query_of_byte(struct wire_parser *p, uint8_t byte, int first)
{
    if (p->dialect == WIRE_DIALECT_MODERN)
        return byte <= WIRE_BARRIER ? byte : -1;
    if (byte > BYTE_MAX_2_1)
        return -1;
    if (p->dialect != WIRE_DIALECT_OLD || byte <= OLD_GETNUMKEYS)
        return byte + 1;
    if (byte == OLD_WATCH_KEY && first)
        return WIRE_WATCH_KEY;
    if (byte == OLD_DELETE_KEY)
        return WIRE_DELETE; /* or APPEND: see wire_parse */
    p->dialect = WIRE_DIALECT_2_1;
    return byte + 1;
}

/* The magic where the dialect wants it, and the query byte. */
static enum wire_verdict parse_head(struct wire_parser *p, const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return WIRE_MORE;
    int first = p->dialect == WIRE_DIALECT_UNKNOWN;
    if (first) {
        enum wire_verdict verdict = detect_dialect(p, data, bytes);
        if (verdict != WIRE_COMPLETE)
            return verdict;
    }
    size_t at = 0;
    if (p->dialect == WIRE_DIALECT_MAGIC_EACH) {
        int agree = magic_prefix(data, bytes);
        if (agree < 0)
            return bad(p, "the magic before a query is wrong", data[0]);
        if (bytes < sizeof magic_bytes + 1)
            return WIRE_MORE;
        at = sizeof magic_bytes;
    }
    uint8_t byte = data[at];
    int query = query_of_byte(p, byte, first);
    if (query < 0)
        return bad(p, "there is no query with this number", byte);
    if (query == WIRE_VALIDATE && !first)
        return bad(p, "VALIDATE came twice", byte);
    p->query = (enum wire_query)query;
    p->offset = at + 1;
    p->headed = 1;
    return WIRE_COMPLETE;
}

/* A length and what it announces, at p->offset; moves past it. */
static enum wire_verdict parse_string(struct wire_parser *p, const uint8_t *data, size_t bytes, int is_key,
                                      size_t *ret_start, size_t *ret_length)
{
    if (bytes - p->offset < 8)
        return WIRE_MORE;
    uint64_t length = wire_u64(data + p->offset);
    if (length > (is_key ? WIRE_KEY_MAX : WIRE_VALUE_MAX))
        return bad(p, is_key ? "a key is too long (limit 8 KiB)" : "a value is too long (limit 8 MiB)", length);
    if (p->offset + 8 + length > WIRE_REQUEST_MAX)
        return bad(p, "one request is too long (limit 64 MiB)", p->offset + 8 + length);
    if (bytes - p->offset - 8 < length)
        return WIRE_MORE;
    *ret_start = p->offset + 8;
    *ret_length = (size_t)length;
    p->offset += 8 + (size_t)length;
    return WIRE_COMPLETE;
}

static enum wire_verdict parse_list(struct wire_parser *p, const uint8_t *data, size_t bytes, int pairs)
{
    if (!p->list_headed) {
        if (bytes - p->offset < 8)
            return WIRE_MORE;
        uint64_t count = wire_u64(data + p->offset);
        if (count > WIRE_KEYS_MAX)
            return bad(p, "a list has too many keys (limit 131072)", count);
        p->offset += 8;
        p->start[0] = p->offset;
        p->count = (size_t)count;
        p->items_left = (uint32_t)count * (pairs ? 2 : 1);
        p->list_headed = 1;
    }
    for (; p->items_left > 0; p->items_left--) {
        size_t start, length;
        enum wire_verdict verdict =
            parse_string(p, data, bytes, !pairs || p->items_left % 2 == 0, &start, &length);
        if (verdict != WIRE_COMPLETE)
            return verdict;
    }
    p->length[0] = p->offset - p->start[0];
    return WIRE_COMPLETE;
}

static enum wire_verdict parse_field(struct wire_parser *p, const uint8_t *data, size_t bytes, char kind)
{
    size_t width = kind == 'm' ? 4 : 8;
    switch (kind) {
    case 'k':
    case 'v':
        return parse_string(p, data, bytes, kind == 'k', &p->start[p->field], &p->length[p->field]);
    case 'K':
    case 'P':
        return parse_list(p, data, bytes, kind == 'P');
    default:
        if (bytes - p->offset < width)
            return WIRE_MORE;
        p->number = width == 4 ? (int64_t)wire_u32(data + p->offset) : (int64_t)wire_u64(data + p->offset);
        p->offset += width;
        return WIRE_COMPLETE;
    }
}

static struct wire_bytes field_bytes(const struct wire_parser *p, const uint8_t *data, int field)
{
    return (struct wire_bytes){ data + p->start[field], p->length[field] };
}

enum wire_verdict wire_parse(struct wire_parser *p, const uint8_t *data, size_t bytes,
                             struct wire_request *ret_request)
{
    if (!p->headed) {
        enum wire_verdict verdict = parse_head(p, data, bytes);
        if (verdict != WIRE_COMPLETE)
            return verdict;
    }
    const char *layout = queries[p->query].layout;
    for (; layout[p->field]; p->field++) {
        enum wire_verdict verdict = parse_field(p, data, bytes, layout[p->field]);
        if (verdict != WIRE_COMPLETE)
            return verdict;
        if (p->query == WIRE_DELETE && p->dialect == WIRE_DIALECT_OLD && bytes > p->offset) {
            p->query = WIRE_APPEND;
            p->dialect = WIRE_DIALECT_2_1;
            layout = queries[p->query].layout;
        }
    }
    struct wire_request request = { .query = p->query, .number = p->number, .count = p->count, .bytes = p->offset };
    if (layout[0] == 'K' || layout[0] == 'P') {
        request.list = (struct wire_list){ data + p->start[0], p->length[0] };
    } else if (layout[0] == 'k') {
        request.key = field_bytes(p, data, 0);
        if (layout[1] == 'v')
            request.value = field_bytes(p, data, 1);
        if (layout[1] && layout[2] == 'v')
            request.desired = field_bytes(p, data, 2);
    }
    *ret_request = request;
    wire_parser_rewind(p);
    return WIRE_COMPLETE;
}

void wire_parser_rewind(struct wire_parser *p)
{
    enum wire_dialect dialect = p->dialect;
    *p = (struct wire_parser){ .dialect = dialect };
}

struct wire_bytes wire_list_next(struct wire_list *list)
{
    struct wire_bytes item = { list->next + 8, (size_t)wire_u64(list->next) };
    list->next += 8 + item.bytes;
    list->left -= 8 + item.bytes;
    return item;
}

int wire_reserve(struct wire_buffer *b, size_t bytes)
{
    if (b->failed)
        return -1;
    if (b->capacity - b->bytes >= bytes)
        return 0;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity - b->bytes < bytes)
        capacity *= 2;
    uint8_t *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = 1;
        return -1;
    }
    b->data = data;
    b->capacity = capacity;
    return 0;
}

void wire_put_bytes(struct wire_buffer *b, const void *data, size_t bytes)
{
    if (bytes == 0 || wire_reserve(b, bytes) != 0)
        return;
    memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
}

void wire_put_u8(struct wire_buffer *b, uint8_t value)
{
    wire_put_bytes(b, &value, 1);
}

void wire_put_u32(struct wire_buffer *b, uint32_t value)
{
    uint8_t bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    wire_put_bytes(b, bytes, sizeof bytes);
}

void wire_put_u64(struct wire_buffer *b, uint64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    wire_put_bytes(b, bytes, sizeof bytes);
}

void wire_put_string(struct wire_buffer *b, const void *data, size_t bytes)
{
    wire_put_u64(b, bytes);
    wire_put_bytes(b, data, bytes);
}

int wire_put_query(struct wire_buffer *b, enum wire_dialect dialect, enum wire_query query)
{
    int byte = query, last = WIRE_BARRIER;
    if (dialect != WIRE_DIALECT_MODERN) {
        byte = query == WIRE_WATCH_KEY ? OLD_WATCH_KEY : query - 1;
        last = BYTE_MAX_2_1;
    }
    if (dialect == WIRE_DIALECT_OLD && query == WIRE_DELETE)
        byte = OLD_DELETE_KEY;
    else if (dialect == WIRE_DIALECT_OLD && query > WIRE_DELETE && query != WIRE_WATCH_KEY)
        byte = -1;
    if (byte < 0 || byte > last)
        return -1;
    if (dialect == WIRE_DIALECT_MAGIC_EACH)
        wire_put_u32(b, WIRE_MAGIC);
    wire_put_u8(b, (uint8_t)byte);
    return 0;
}

void wire_buffer_finish(struct wire_buffer *b)
{
    free(b->data);
    *b = (struct wire_buffer){ 0 };
}

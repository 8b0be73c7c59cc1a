/* The bytes of PyTorch's TCPStore protocol: a parser for what clients send, and an encoder for what we send. No I/O
 * here, so that the parser can be fuzzed and tested from a buffer that ends at an unmapped page.
 *
 * A request is a query byte and fields, with no length in front. All numbers are little-endian. Three dialects are
 * told apart by the first bytes of a connection:
 *
 *   modern (2.2 and later)      00 ce f7 85 3c        VALIDATE and the magic, once
 *   magic-each (mid 2023)       ce f7 85 3c           the magic before every query
 *   old (1.13 to 2.1)           anything else         byte 0 is SET, whose next eight bytes are a key length
 *
 * 2.1 has other numbers than 1.13 and 2.0 from 7 on, and nothing in the first bytes that tells. It shows when it uses
 * a number that only it has, or when a value comes behind what would be a DELETE_KEY of 1.13 (8) and is its APPEND:
 * its clients send both in one go, and a 1.13 client sends nothing more before it has the reply.
 *
 * The parser gives query numbers of the modern dialect whatever the connection speaks. */
#ifndef COMM_STORE_WIRE_H
#define COMM_STORE_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* The first three are the limits of PyTorch's libuv server, which is what its clients live with. */
#define WIRE_KEY_MAX 8192u
#define WIRE_VALUE_MAX (8u << 20)
#define WIRE_KEYS_MAX 131072u
#define WIRE_REQUEST_MAX ((size_t)64 << 20) /* one MULTI_SET or one list of keys: what a client may make us hold */
#define WIRE_MAGIC 0x3C85F7CEu

enum wire_query {
    WIRE_VALIDATE = 0,
    WIRE_SET = 1,
    WIRE_COMPARE_SET = 2,
    WIRE_GET = 3,
    WIRE_ADD = 4,
    WIRE_CHECK = 5,
    WIRE_WAIT = 6,
    WIRE_NUM_KEYS = 7,
    WIRE_DELETE = 8,
    WIRE_APPEND = 9,
    WIRE_MULTI_GET = 10,
    WIRE_MULTI_SET = 11,
    WIRE_CANCEL_WAIT = 12,
    WIRE_PING = 13,
    WIRE_QUEUE_PUSH = 14,
    WIRE_QUEUE_POP = 15,
    WIRE_QUEUE_LEN = 16,
    WIRE_LIST_KEYS = 17,
    WIRE_BARRIER = 18,
    WIRE_WATCH_KEY = 19, /* 1.13 only; the number is ours */
    WIRE_QUERY_COUNT
};

/* One-byte replies. */
enum { WIRE_READY = 0, WIRE_NOT_READY = 1 };            /* to CHECK */
enum { WIRE_STOP_WAITING = 0, WIRE_WAIT_CANCELED = 1 }; /* to WAIT, BARRIER; to CANCEL_WAIT */
enum { WIRE_CALLBACK_REGISTERED = 3 };                  /* to WATCH_KEY */

enum wire_dialect {
    WIRE_DIALECT_UNKNOWN,
    WIRE_DIALECT_OLD,        /* 1.13, 2.0; or 2.1 that has not shown it */
    WIRE_DIALECT_2_1,
    WIRE_DIALECT_MAGIC_EACH, /* the numbers of 2.1 */
    WIRE_DIALECT_MODERN
};

/* Bytes inside the buffer that was parsed. */
struct wire_bytes {
    const uint8_t *data;
    size_t bytes;
};

/* Strings one after the other, each behind its length: keys, or a key and a value in turns. */
struct wire_list {
    const uint8_t *next;
    size_t left;
};

struct wire_request {
    enum wire_query query;
    struct wire_bytes key;
    struct wire_bytes value;   /* COMPARE_SET: what is expected */
    struct wire_bytes desired; /* COMPARE_SET */
    int64_t number;            /* amount, world size, nonce, magic */
    struct wire_list list;     /* CHECK WAIT MULTI_GET: keys; MULTI_SET: keys and values */
    size_t count;              /* of the list: keys, or pairs */
    size_t bytes;              /* how long the request was */
};

/* Where a connection's parser stands inside a request that is not there entirely. Zeroed memory is a fresh one. */
struct wire_parser {
    enum wire_dialect dialect;
    enum wire_query query;
    uint8_t headed;      /* the query is known */
    uint8_t field;       /* of the query's layout */
    uint8_t list_headed; /* the count of the list is known */
    uint32_t items_left; /* of the list */
    size_t offset;       /* of the next byte to look at, from the beginning of the request */
    size_t start[3];     /* of the fields' contents */
    size_t length[3];
    size_t count;
    int64_t number;
    const char *reason; /* WIRE_BAD: what was wrong, and the number that was */
    uint64_t culprit;
};

enum wire_verdict { WIRE_MORE, WIRE_COMPLETE, WIRE_BAD };

/* Look at the `bytes` that are there from the beginning of a request on. WIRE_COMPLETE fills in *ret_request, which
 * points into `data`, and makes the parser ready for the next one. After WIRE_MORE, call again with the same bytes and
 * more of them, at any address; nothing is looked at twice. After WIRE_BAD the connection is of no use. */
enum wire_verdict wire_parse(struct wire_parser *parser, const uint8_t *data, size_t bytes,
                             struct wire_request *ret_request);

/* Forget a half-parsed request, to begin again at its first byte. The dialect stays. */
void wire_parser_rewind(struct wire_parser *parser);

/* The next string of a list that wire_parse gave; do not ask for more than there are. */
struct wire_bytes wire_list_next(struct wire_list *list);

const char *wire_query_name(enum wire_query query);

/* A growing buffer to encode into. Running out of memory is remembered in `failed`, and later puts do nothing. */
struct wire_buffer {
    uint8_t *data;
    size_t bytes, capacity;
    int failed;
};

/* Make room for `bytes` more; -1 and `failed` if there is no memory. */
int wire_reserve(struct wire_buffer *buffer, size_t bytes);
void wire_put_bytes(struct wire_buffer *buffer, const void *data, size_t bytes);
void wire_put_u8(struct wire_buffer *buffer, uint8_t value);
void wire_put_u32(struct wire_buffer *buffer, uint32_t value);
void wire_put_u64(struct wire_buffer *buffer, uint64_t value);
/* A length and the bytes. */
void wire_put_string(struct wire_buffer *buffer, const void *data, size_t bytes);
/* The query byte as `dialect` writes it; -1 if that dialect has no such query. */
int wire_put_query(struct wire_buffer *buffer, enum wire_dialect dialect, enum wire_query query);
void wire_buffer_finish(struct wire_buffer *buffer);

uint32_t wire_u32(const uint8_t *data);
uint64_t wire_u64(const uint8_t *data);

#endif

/* Requests of the store's protocol as bytes: a query number, then lengths (8 bytes, little-endian) and data. The old
 * dialect has other numbers and no greeting. */
#include <endian.h>
#include <string.h>

#include "bench_store.h"

static const char magic[4] = { (char)0xce, (char)0xf7, (char)0x85, 0x3c };

/* Query numbers. */
enum { NEW_VALIDATE = 0, NEW_SET = 1, NEW_GET = 3, NEW_ADD = 4, NEW_CHECK = 5, NEW_WAIT = 6 };

static size_t put_query(const struct bench_wire *wire, char *out, int query)
{
    *out = (char)(wire->is_old ? query - 1 : query); /* these five moved up by one when VALIDATE came */
    return 1;
}

static size_t put_u64(char *out, uint64_t value)
{
    value = htole64(value);
    memcpy(out, &value, 8);
    return 8;
}

static size_t put_bytes(char *out, const void *data, size_t bytes)
{
    size_t n = put_u64(out, bytes);
    memcpy(out + n, data, bytes);
    return n + bytes;
}

static size_t put_keyed(const struct bench_wire *wire, char *out, int query, const char *key)
{
    size_t n = put_query(wire, out, query);
    return n + put_bytes(out + n, key, strlen(key));
}

/* A query of a list of keys, of which we have one. */
static size_t put_listed(const struct bench_wire *wire, char *out, int query, const char *key)
{
    size_t n = put_query(wire, out, query);
    n += put_u64(out + n, 1);
    return n + put_bytes(out + n, key, strlen(key));
}

size_t bench_wire_start(const struct bench_wire *wire, char *out)
{
    if (wire->is_old)
        return 0;
    *out = NEW_VALIDATE;
    memcpy(out + 1, magic, sizeof magic);
    return 1 + sizeof magic;
}

size_t bench_wire_set(const struct bench_wire *wire, char *out, const char *key, const void *value, size_t bytes)
{
    size_t n = put_keyed(wire, out, NEW_SET, key);
    return n + put_bytes(out + n, value, bytes);
}

size_t bench_wire_get(const struct bench_wire *wire, char *out, const char *key)
{
    return put_keyed(wire, out, NEW_GET, key);
}

size_t bench_wire_add(const struct bench_wire *wire, char *out, const char *key, int64_t amount)
{
    size_t n = put_keyed(wire, out, NEW_ADD, key);
    return n + put_u64(out + n, (uint64_t)amount);
}

size_t bench_wire_check(const struct bench_wire *wire, char *out, const char *key)
{
    return put_listed(wire, out, NEW_CHECK, key);
}

size_t bench_wire_wait(const struct bench_wire *wire, char *out, const char *key)
{
    return put_listed(wire, out, NEW_WAIT, key);
}

/* The tcp store's calls that the server answers at once; see tcp_store.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "tcp_store.h"

#define JOINED_KEY "init/"

enum {
    MULTI_SET_BYTES = 16 << 20, /* of one MULTI_SET: servers limit a request */
    KEY_BYTES_MAX = 1 << 20,    /* of a listed key: PyTorch's older servers know no limit */
};
#define LIST_BYTES_MAX ((size_t)1 << 30) /* of all listed keys, in one block */

/* ---- Presence ---- */

/* CHECK, then read whether all are there. */
static comm_status ask_check(struct tcp_request *r, const char *const *keys, size_t count, uint8_t *ret_ready)
{
    tcp_put_listed(r->c, WIRE_CHECK, keys, count);
    comm_status status = tcp_conn_send(r->c, &r->wait);
    return status == COMM_OK ? tcp_conn_read_u8(r->c, &r->wait, ret_ready) : status;
}

comm_status tcp_check(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                      int32_t *ret_all)
{
    struct tcp_request r;
    uint8_t ready = WIRE_NOT_READY;
    if (count == 0) { /* PyTorch's server looks at the first key, whatever the count */
        *ret_all = 1;
        return COMM_OK;
    }
    comm_status status = tcp_check_keys_fit("check", keys, count);
    if (status == COMM_OK)
        status = tcp_begin(&r, s, "check", keys[0], wait);
    if (status != COMM_OK)
        return status;
    status = tcp_end(&r, ask_check(&r, keys, count, &ready));
    if (status == COMM_OK)
        *ret_all = ready == WIRE_READY;
    return status;
}

comm_status tcp_ask_each(struct tcp_request *r, const char *const *keys, size_t count, uint8_t *ready)
{
    comm_status status = COMM_OK;
    for (size_t sent = 0, read = 0; read < count && status == COMM_OK;) {
        for (; sent < count && (sent == read || r->c->out.bytes < TCP_BATCH_BYTES); sent++)
            tcp_put_listed(r->c, WIRE_CHECK, &keys[sent], 1);
        status = tcp_conn_send(r->c, &r->wait);
        if (status == COMM_OK)
            status = tcp_conn_read(r->c, &r->wait, ready + read, sent - read);
        read = sent;
    }
    return status;
}

/* COMPARE_SET tells the two apart: it gives what it expected if the key is not there, and what it expects is no key's
 * value. */
static comm_status read_empty(struct tcp_request *r, const char *nonce, void **data, size_t *bytes)
{
    void *now = NULL;
    size_t now_bytes = 0;
    comm_status status = tcp_conn_read_value(r->c, &r->wait, &now, &now_bytes);
    if (status != COMM_OK)
        return status;
    int there = now_bytes != strlen(nonce) || memcmp(now, nonce, now_bytes) != 0;
    free(*data);
    *data = there ? now : NULL;
    *bytes = there ? now_bytes : 0;
    if (!there)
        free(now);
    return COMM_OK;
}

comm_status tcp_ask_empty(struct tcp_request *r, const char *const *keys, size_t count, void **data, size_t *bytes)
{
    const size_t batch = r->c->ordered ? TCP_BATCH_BYTES : TCP_CAREFUL_BYTES;
    char nonce[STORE_NONCE_BYTES];
    comm_status status = COMM_OK;
    store_nonce(nonce);
    for (size_t sent = 0, read = 0; read < count && status == COMM_OK;) {
        for (; sent < count && r->c->out.bytes < batch; sent++) {
            if (bytes[sent] > 0)
                continue;
            tcp_put_keyed(r->c, WIRE_COMPARE_SET, keys[sent]);
            wire_put_string(&r->c->out, nonce, strlen(nonce));
            wire_put_string(&r->c->out, nonce, strlen(nonce));
        }
        status = tcp_conn_send(r->c, &r->wait);
        for (; read < sent && status == COMM_OK; read++)
            if (bytes[read] == 0)
                status = read_empty(r, nonce, &data[read], &bytes[read]);
    }
    return status;
}

/* A request whose reply is one number. `key` may be NULL. */
static comm_status ask_number(comm_store *s, enum wire_query query, const char *what, const char *key,
                              const struct store_wait *wait, int64_t *ret_value)
{
    struct tcp_request r;
    uint64_t value = 0;
    comm_status status = tcp_begin(&r, s, what, key, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_query(r.c, query);
    if (key)
        tcp_put_key(r.c, key);
    status = tcp_conn_send(r.c, &r.wait);
    if (status == COMM_OK)
        status = tcp_conn_read_u64(r.c, &r.wait, &value);
    status = tcp_end(&r, status);
    if (status == COMM_OK)
        *ret_value = (int64_t)value;
    return status;
}

comm_status tcp_remove(comm_store *s, const char *key, const struct store_wait *wait, int32_t *ret_existed)
{
    int64_t removed = 0;
    comm_status status = ask_number(s, WIRE_DELETE, "delete", key, wait, &removed);
    if (status == COMM_OK && ret_existed)
        *ret_existed = removed > 0;
    return status;
}

comm_status tcp_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count)
{
    return ask_number(s, WIRE_NUM_KEYS, "num_keys", NULL, wait, ret_count);
}

/* ---- Listing ---- */

/* One key into `keys`, without the "/" in front and with a NUL behind. Not "init/" nor what else has no "/", nor what
 * has a NUL inside, as it could not be told from a shorter one. */
static comm_status read_listed(struct tcp_request *r, struct wire_buffer *keys, size_t *count)
{
    uint64_t bytes;
    comm_status status = tcp_conn_read_u64(r->c, &r->wait, &bytes);
    if (status != COMM_OK)
        return status;
    if (bytes > KEY_BYTES_MAX || keys->bytes + bytes > LIST_BYTES_MAX)
        return comm__fail(COMM_ERR_PROTOCOL,
                          "the server lists a key of %" PRIu64 " B after %zu B of others (limits 1 MiB, 1 GiB)", bytes,
                          keys->bytes);
    if (wire_reserve(keys, bytes + 1) != 0)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a list of keys");
    uint8_t *key = keys->data + keys->bytes;
    status = tcp_conn_read(r->c, &r->wait, key, bytes);
    if (status != COMM_OK || bytes < 2 || *key != '/' || memchr(key, '\0', bytes))
        return status;
    memmove(key, key + 1, bytes - 1);
    key[bytes - 1] = '\0';
    keys->bytes += bytes;
    ++*count;
    return COMM_OK;
}

/* An array and its strings in one block. */
static comm_status block_of(const struct wire_buffer *keys, size_t count, char ***ret_keys)
{
    char **block = malloc(count * sizeof *block + keys->bytes + 1);
    if (!block)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a list of %zu keys", count);
    char *text = (char *)(block + count);
    if (keys->bytes)
        memcpy(text, keys->data, keys->bytes);
    for (size_t i = 0; i < count; i++, text += strlen(text) + 1)
        block[i] = text;
    *ret_keys = block;
    return COMM_OK;
}

comm_status tcp_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count)
{
    struct tcp_request r;
    struct wire_buffer keys = { 0 };
    uint64_t listed = 0;
    size_t count = 0;
    comm_status status = tcp_needs((struct tcp_store *)s, WIRE_LIST_KEYS, TCP_LIST_KEYS, wait);
    if (status == COMM_OK)
        status = tcp_begin(&r, s, "list_keys", NULL, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_query(r.c, WIRE_LIST_KEYS);
    status = tcp_conn_send(r.c, &r.wait);
    if (status == COMM_OK)
        status = tcp_conn_read_u64(r.c, &r.wait, &listed);
    for (uint64_t i = 0; i < listed && status == COMM_OK; i++)
        status = i > 0 && store_wait_over(wait) ? COMM_ERR_TIMEOUT : read_listed(&r, &keys, &count);
    status = tcp_end(&r, status);
    if (status == COMM_OK)
        status = block_of(&keys, count, ret_keys);
    wire_buffer_finish(&keys);
    if (status == COMM_OK)
        *ret_count = count;
    return status;
}

/* ---- Storing ---- */

static comm_status store_value(comm_store *s, enum wire_query query, const char *what, const char *key,
                               const void *data, size_t bytes, const struct store_wait *wait)
{
    struct tcp_request r;
    comm_status status = tcp_begin(&r, s, what, key, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_keyed(r.c, query, key);
    wire_put_string(&r.c->out, data, bytes);
    return tcp_end(&r, tcp_conn_send(r.c, &r.wait));
}

comm_status tcp_set(comm_store *s, const char *key, const void *data, size_t bytes, const struct store_wait *wait)
{
    return store_value(s, WIRE_SET, "set", key, data, bytes, wait);
}

comm_status tcp_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                           const struct store_wait *wait)
{
    comm_status status = tcp_needs((struct tcp_store *)s, WIRE_QUEUE_PUSH, TCP_QUEUES, wait);
    return status == COMM_OK ? store_value(s, WIRE_QUEUE_PUSH, "queue_push", key, data, bytes, wait) : status;
}

comm_status tcp_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count)
{
    comm_status status = tcp_needs((struct tcp_store *)s, WIRE_QUEUE_LEN, TCP_QUEUES, wait);
    return status == COMM_OK ? ask_number(s, WIRE_QUEUE_LEN, "queue_len", key, wait, ret_count) : status;
}

static size_t pair_bytes(const char *key, size_t value_bytes)
{
    return strlen(key) + 1 + value_bytes + 16;
}

/* The pairs that go into one request. */
static size_t pairs_at_once(const char *const *keys, const size_t *bytes, size_t count)
{
    size_t n = 0;
    for (size_t total = 0; n < count && (n == 0 || total + pair_bytes(keys[n], bytes[n]) <= MULTI_SET_BYTES); n++)
        total += pair_bytes(keys[n], bytes[n]);
    return n;
}

comm_status tcp_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                          const size_t *bytes, const struct store_wait *wait)
{
    struct tcp_request r;
    comm_status status = tcp_begin(&r, s, "multi_set", count ? keys[0] : NULL, wait);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < count && status == COMM_OK;) {
        size_t end = i + pairs_at_once(keys + i, bytes + i, count - i);
        int old = r.c->dialect == WIRE_DIALECT_OLD; /* it has no MULTI_SET: as many SETs */
        if (!old) {
            tcp_put_query(r.c, WIRE_MULTI_SET);
            wire_put_u64(&r.c->out, end - i);
        }
        for (; i < end; i++) {
            if (old)
                tcp_put_query(r.c, WIRE_SET);
            tcp_put_key(r.c, keys[i]);
            wire_put_string(&r.c->out, data[i], bytes[i]);
        }
        status = tcp_conn_send(r.c, &r.wait);
    }
    return tcp_end(&r, status);
}

comm_status tcp_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                            const void *desired, size_t desired_bytes, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    struct tcp_request r;
    comm_status status = tcp_begin(&r, s, "compare_set", key, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_keyed(r.c, WIRE_COMPARE_SET, key);
    wire_put_string(&r.c->out, expected, expected_bytes);
    wire_put_string(&r.c->out, desired, desired_bytes);
    status = tcp_conn_send(r.c, &r.wait);
    if (status == COMM_OK)
        status = tcp_conn_read_value(r.c, &r.wait, ret_data, ret_bytes);
    return tcp_end(&r, status);
}

/* ---- Requests that a server may refuse ----
 *
 * The protocol has no error replies: a server that cannot do as it was told closes the connection. Look, on a new one,
 * whether it had a reason to; then the caller is told, and the store is as good as before. */

comm_status tcp_ask_value(struct tcp_request *r, const char *key, void **ret_data, size_t *ret_bytes)
{
    uint8_t ready = WIRE_NOT_READY;
    *ret_data = NULL;
    *ret_bytes = 0;
    comm_status status = ask_check(r, &key, 1, &ready);
    if (status != COMM_OK || ready != WIRE_READY)
        return status;
    tcp_put_keyed(r->c, WIRE_GET, key);
    status = tcp_conn_send(r->c, &r->wait);
    return status == COMM_OK ? tcp_conn_read_value(r->c, &r->wait, ret_data, ret_bytes) : status;
}

/* Connect again, and see what the key holds. */
static comm_status reread(struct tcp_request *r, const char *key, void **ret_data, size_t *ret_bytes)
{
    struct tcp_store *t = r->t;
    tcp_close_conn(t, t->quick);
    r->c = t->quick = NULL;
    *ret_data = NULL;
    comm_status status = tcp_open_conn(t, &r->wait, &t->quick);
    r->c = t->quick;
    return status == COMM_OK ? tcp_ask_value(r, key, ret_data, ret_bytes) : status;
}

/* PEER_LOST, without a reason of the caller's making. */
static comm_status closed_on(enum wire_query query)
{
    return comm__fail(COMM_ERR_PEER_LOST, "the server closed the connection in answer to %s", wire_query_name(query));
}

/* End a request that was refused (INVALID, on a connection that is new) or not. */
static comm_status end_judged(struct tcp_request *r, comm_status status)
{
    if (status != COMM_ERR_INVALID)
        return tcp_end(r, status);
    tcp_end(r, COMM_OK);
    return status;
}

comm_status tcp_judge_number(const char *what, const char *key, const char *text, int64_t amount)
{
    char *end;
    int64_t sum;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno)
        return comm__fail(COMM_ERR_INVALID, "%s: add %" PRId64 " to '%s': its value, '%.64s', is not a 64-bit number",
                          what, amount, key, text);
    if (__builtin_add_overflow((int64_t)value, amount, &sum))
        return comm__fail(COMM_ERR_INVALID, "%s: add %" PRId64 " to '%s': %lld would overflow", what, amount, key,
                          value);
    return COMM_OK;
}

static comm_status ask_add(struct tcp_request *r, int64_t amount, uint64_t *ret_value)
{
    wire_put_u64(&r->c->out, (uint64_t)amount);
    comm_status status = tcp_conn_send(r->c, &r->wait);
    return status == COMM_OK ? tcp_conn_read_u64(r->c, &r->wait, ret_value) : status;
}

comm_status tcp_add(comm_store *s, const char *key, int64_t amount, const struct store_wait *wait, int64_t *ret_value)
{
    struct tcp_request r;
    uint64_t value = 0;
    void *data;
    size_t bytes;
    comm_status status = tcp_begin(&r, s, "add", key, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_keyed(r.c, WIRE_ADD, key);
    status = ask_add(&r, amount, &value);
    if (status == COMM_ERR_PEER_LOST) {
        status = reread(&r, key, &data, &bytes);
        if (status == COMM_OK && data)
            status = tcp_judge_number("add", key, data, amount);
        if (status != COMM_ERR_INVALID)
            status = closed_on(WIRE_ADD);
        free(data);
    }
    status = end_judged(&r, status);
    if (status == COMM_OK)
        *ret_value = (int64_t)value;
    return status;
}

comm_status tcp_join_add(comm_store *s, int64_t amount, const struct store_wait *wait, int64_t *ret_joined)
{
    struct tcp_request r;
    uint64_t value = 0;
    comm_status status = tcp_begin(&r, s, "joining", NULL, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_query(r.c, WIRE_ADD);
    wire_put_string(&r.c->out, JOINED_KEY, strlen(JOINED_KEY));
    status = ask_add(&r, amount, &value);
    *ret_joined = (int64_t)value;
    return tcp_end(&r, status);
}

/* APPEND has no reply. A CHECK behind it has, and shows that the value did not become too long. */
comm_status tcp_append(comm_store *s, const char *key, const void *data, size_t bytes, const struct store_wait *wait)
{
    struct tcp_request r;
    uint8_t ready;
    void *value;
    size_t value_bytes;
    comm_status status = tcp_needs_append((struct tcp_store *)s);
    if (status == COMM_OK)
        status = tcp_begin(&r, s, "append", key, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_keyed(r.c, WIRE_APPEND, key);
    wire_put_string(&r.c->out, data, bytes);
    status = ask_check(&r, &key, 1, &ready);
    if (status == COMM_ERR_PEER_LOST) {
        status = reread(&r, key, &value, &value_bytes);
        if (status == COMM_OK && value && value_bytes + bytes > LIMIT_STORE_VALUE_BYTES)
            status = comm__fail(COMM_ERR_INVALID, "append to '%s': the value would be %zu B; the longest is %zu B", key,
                                value_bytes + bytes, LIMIT_STORE_VALUE_BYTES);
        else
            status = closed_on(WIRE_APPEND);
        free(value);
    }
    return end_judged(&r, status);
}

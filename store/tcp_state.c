/* The table and the waits of a tcp store's server; see tcp_state.h.
 *
 * A WAIT counts down, as PyTorch's does: each key that is missing when it comes gets one waiter, and a key that
 * is there once is not looked at again. A BARRIER is a waiter with a number. Awaited keys that no client has set are in
 * a hash table of their own, seeded, so that no client can choose keys that collide. */
#include "tcp_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/error.h"
#include "table.h"

/* How much memory waits may take in all: with the limits of a request, one client can ask for 80 MiB of it. */
#define WAIT_BYTES_MAX ((size_t)512 << 20)

enum { MULTI_GET_TURN_BYTES = 1 << 20 }; /* then others have their turn */

/* A key for which a client waits. */
struct state_awaited {
    struct state_awaited *next; /* in its bucket */
    struct state_waiter *first, *last;
    uint64_t hash;
    size_t key_bytes;
    uint8_t key[];
};

struct state {
    struct table *table;
    struct state_awaited **buckets;
    size_t bucket_count; /* a power of two */
    size_t awaited_count;
    size_t wait_bytes;
    uint64_t seed;
    struct state_client *ready_first, *ready_last;
};

static struct table_bytes as_table(struct wire_bytes b)
{
    return (struct table_bytes){ b.data, b.bytes };
}

/* ---- Awaited keys ---- */

static struct state_awaited *awaited_find(struct state *state, struct wire_bytes key, uint64_t hash)
{
    for (struct state_awaited *a = state->buckets[hash & (state->bucket_count - 1)]; a; a = a->next)
        if (a->hash == hash && a->key_bytes == key.bytes && memcmp(a->key, key.data, key.bytes) == 0)
            return a;
    return NULL;
}

/* More buckets; if there is no memory for them, the chains just get longer. */
static void awaited_grow(struct state *state)
{
    size_t count = state->bucket_count * 2;
    struct state_awaited **buckets = calloc(count, sizeof *buckets);
    if (!buckets)
        return;
    for (size_t i = 0; i < state->bucket_count; i++) {
        for (struct state_awaited *a = state->buckets[i], *next; a; a = next) {
            next = a->next;
            a->next = buckets[a->hash & (count - 1)];
            buckets[a->hash & (count - 1)] = a;
        }
    }
    free(state->buckets);
    state->buckets = buckets;
    state->bucket_count = count;
}

static struct state_awaited *awaited_get(struct state *state, struct wire_bytes key)
{
    uint64_t hash = XXH3_64bits_withSeed(key.data, key.bytes, state->seed);
    struct state_awaited *a = awaited_find(state, key, hash);
    if (a)
        return a;
    if (state->awaited_count >= state->bucket_count)
        awaited_grow(state);
    a = malloc(sizeof *a + key.bytes);
    if (!a)
        return NULL;
    struct state_awaited **bucket = &state->buckets[hash & (state->bucket_count - 1)];
    *a = (struct state_awaited){ .next = *bucket, .hash = hash, .key_bytes = key.bytes };
    memcpy(a->key, key.data, key.bytes);
    *bucket = a;
    state->awaited_count++;
    state->wait_bytes += sizeof *a + key.bytes;
    return a;
}

static void awaited_drop(struct state *state, struct state_awaited *a)
{
    struct state_awaited **at = &state->buckets[a->hash & (state->bucket_count - 1)];
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    assert(state->awaited_count > 0);
    state->awaited_count--;
    assert(state->wait_bytes >= sizeof *a + a->key_bytes);
    state->wait_bytes -= sizeof *a + a->key_bytes;
    free(a);
}

/* ---- Waiters ---- */

static void waiter_link(struct state_awaited *a, struct state_waiter *w)
{
    w->awaited = a;
    w->prev = a->last;
    w->next = NULL;
    *(a->last ? &a->last->next : &a->first) = w;
    a->last = w;
}

/* Take it out of its key's queue; the key itself is dropped by the caller when no waiter is left. */
static void waiter_unlink(struct state_waiter *w)
{
    struct state_awaited *a = w->awaited;
    *(w->prev ? &w->prev->next : &a->first) = w->next;
    *(w->next ? &w->next->prev : &a->last) = w->prev;
    w->awaited = NULL;
}

static void forget_waiters(struct state *state, struct state_client *client)
{
    for (size_t i = 0; i < client->waiter_count; i++) {
        struct state_awaited *a = client->waiters[i].awaited;
        if (!a)
            continue;
        waiter_unlink(&client->waiters[i]);
        if (!a->first)
            awaited_drop(state, a);
    }
    if (client->waiters != &client->one) {
        state->wait_bytes -= client->waiter_count * sizeof *client->waiters;
        free(client->waiters);
    }
    client->waiters = NULL;
    client->waiter_count = 0;
    client->missing = 0;
}

static void ready_push(struct state *state, struct state_client *client)
{
    client->ready = 1;
    client->ready_prev = state->ready_last;
    client->ready_next = NULL;
    *(state->ready_last ? &state->ready_last->ready_next : &state->ready_first) = client;
    state->ready_last = client;
}

static void ready_remove(struct state *state, struct state_client *client)
{
    *(client->ready_prev ? &client->ready_prev->ready_next : &state->ready_first) = client->ready_next;
    *(client->ready_next ? &client->ready_next->ready_prev : &state->ready_last) = client->ready_prev;
    client->ready = 0;
}

struct state_client *state_take_ready(struct state *state)
{
    struct state_client *client = state->ready_first;
    if (client)
        ready_remove(state, client);
    return client;
}

/* One of the client's keys has come. */
static void release(struct state *state, struct state_waiter *w)
{
    struct state_client *client = w->client;
    waiter_unlink(w);
    assert(client->missing > 0);
    if (--client->missing > 0)
        return;
    forget_waiters(state, client);
    ready_push(state, client);
}

/* The key holds a value now: release all clients that wait for that, and the barriers that it completes. */
static void wake(struct state *state, struct wire_bytes key)
{
    if (state->awaited_count == 0)
        return;
    struct state_awaited *a = awaited_find(state, key, XXH3_64bits_withSeed(key.data, key.bytes, state->seed));
    if (!a)
        return;
    int64_t number = -1; /* read once, when a barrier waits here */
    for (struct state_waiter *w = a->first, *next; w; w = next) {
        next = w->next;
        if (w->at_least > 0) {
            if (number < 0 && table_add(state->table, as_table(key), 0, &number) != COMM_OK)
                number = 0;
            if (number < w->at_least)
                continue;
        }
        release(state, w);
    }
    if (!a->first)
        awaited_drop(state, a);
}

/* The queue got an item, or one that was meant for a client that left: release one client that waits for the queue. One
 * that waits for other keys, too, does not take the item yet, so the next one has its turn. */
static void wake_one(struct state *state, struct wire_bytes key)
{
    if (state->awaited_count == 0)
        return;
    struct state_awaited *a = awaited_find(state, key, XXH3_64bits_withSeed(key.data, key.bytes, state->seed));
    struct state_client *woken = NULL;
    for (struct state_waiter *w = a ? a->first : NULL, *next; w && !woken; w = next) {
        struct state_client *client = w->client;
        next = w->next;
        if (w->at_least > 0)
            continue;
        release(state, w);
        woken = client->ready ? client : NULL;
    }
    if (woken && !woken->queue_key) {
        woken->queue_key = malloc(key.bytes + 1);
        if (woken->queue_key)
            memcpy(woken->queue_key, key.data, key.bytes);
        woken->queue_key_bytes = key.bytes;
    }
    if (a && !a->first)
        awaited_drop(state, a);
}

/* The client was released by a push and will not pop: without this, no other client would be told of that item. */
static void pass_on(struct state *state, struct state_client *client)
{
    struct wire_bytes key = { client->queue_key, client->queue_key_bytes };
    client->queue_key = NULL;
    if (!key.data)
        return;
    if (table_queue_len(state->table, as_table(key)) > 0)
        wake_one(state, key);
    free((void *)key.data);
}

/* A client of ours that has not popped by now wanted to know only whether there is something. PyTorch's may pop yet. */
void state_told(struct state *state, struct state_client *client)
{
    if (client->ordered)
        pass_on(state, client);
}

/* ---- Requests ---- */

static int is_present(const struct state *state, struct wire_bytes key)
{
    return table_get(state->table, as_table(key), NULL) || table_queue_len(state->table, as_table(key)) > 0;
}

static size_t count_missing(const struct state *state, const struct wire_request *request)
{
    struct wire_list list = request->list;
    size_t missing = 0;
    for (size_t i = 0; i < request->count; i++)
        missing += !is_present(state, wire_list_next(&list));
    return missing;
}

static comm_status do_check(struct state *state, struct state_client *client, const struct wire_request *request,
                            struct wire_buffer *reply)
{
    size_t missing = count_missing(state, request);
    if (missing == 1 && request->count == 1) {
        struct wire_list list = request->list;
        struct wire_bytes key = wire_list_next(&list);
        if (key.bytes == sizeof STATE_ORDERED_KEY - 1 && memcmp(key.data, STATE_ORDERED_KEY, key.bytes) == 0) {
            client->ordered = 1;
            missing = 0;
        }
    }
    wire_put_u8(reply, missing ? WIRE_NOT_READY : WIRE_READY);
    return COMM_OK;
}

/* Room for `count` waiters of the client. */
static comm_status take_waiters(struct state *state, struct state_client *client, size_t count)
{
    client->waiters = &client->one;
    if (count > 1) {
        if (state->wait_bytes > WAIT_BYTES_MAX)
            return comm__fail(COMM_ERR_NO_MEMORY, "the waits of all clients hold %zu MiB", state->wait_bytes >> 20);
        client->waiters = calloc(count, sizeof *client->waiters);
        if (!client->waiters)
            return comm__fail(COMM_ERR_NO_MEMORY, "no memory to wait for %zu keys", count);
        state->wait_bytes += count * sizeof *client->waiters;
    }
    client->waiter_count = count;
    memset(client->waiters, 0, count * sizeof *client->waiters);
    return COMM_OK;
}

static comm_status wait_for(struct state *state, struct state_client *client, struct wire_bytes key, int64_t at_least)
{
    struct state_awaited *a = awaited_get(state, key);
    if (!a) {
        forget_waiters(state, client);
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory to wait for a key");
    }
    struct state_waiter *w = &client->waiters[client->missing++];
    w->client = client;
    w->at_least = at_least;
    waiter_link(a, w);
    return COMM_IN_PROGRESS;
}

static comm_status do_wait(struct state *state, struct state_client *client, const struct wire_request *request,
                           struct wire_buffer *reply)
{
    size_t missing = count_missing(state, request);
    if (missing == 0) {
        wire_put_u8(reply, WIRE_STOP_WAITING);
        return COMM_OK;
    }
    comm_status status = take_waiters(state, client, missing);
    struct wire_list list = request->list;
    for (size_t i = 0; i < request->count && status >= COMM_OK; i++) {
        struct wire_bytes key = wire_list_next(&list);
        if (!is_present(state, key))
            status = wait_for(state, client, key, 0);
    }
    return status;
}

static comm_status do_barrier(struct state *state, struct state_client *client, const struct wire_request *request,
                              struct wire_buffer *reply)
{
    int64_t arrived;
    comm_status status = table_add(state->table, as_table(request->key), 1, &arrived);
    if (status != COMM_OK)
        return status;
    wake(state, request->key);
    if (arrived >= request->number) {
        wire_put_u8(reply, WIRE_STOP_WAITING);
        return COMM_OK;
    }
    status = take_waiters(state, client, 1);
    if (status != COMM_OK)
        return status;
    return wait_for(state, client, request->key, request->number);
}

static comm_status do_set(struct state *state, const struct wire_request *request)
{
    comm_status status = table_set(state->table, as_table(request->key), as_table(request->value));
    if (status == COMM_OK)
        wake(state, request->key);
    return status;
}

static comm_status do_append(struct state *state, const struct wire_request *request)
{
    comm_status status = table_append(state->table, as_table(request->key), as_table(request->value));
    if (status == COMM_OK)
        wake(state, request->key);
    return status;
}

static comm_status do_multi_set(struct state *state, const struct wire_request *request)
{
    struct wire_list list = request->list;
    for (size_t i = 0; i < request->count; i++) {
        struct wire_bytes key = wire_list_next(&list);
        struct wire_bytes value = wire_list_next(&list);
        comm_status status = table_set(state->table, as_table(key), as_table(value));
        if (status != COMM_OK)
            return status;
        wake(state, key);
    }
    return COMM_OK;
}

static comm_status do_compare_set(struct state *state, const struct wire_request *request, struct wire_buffer *reply)
{
    struct table_bytes value;
    int changed = 0;
    comm_status status = table_compare_set(state->table, as_table(request->key), as_table(request->value),
                                           as_table(request->desired), &value, &changed);
    if (status != COMM_OK)
        return status;
    wire_put_string(reply, value.data, value.bytes);
    if (changed)
        wake(state, request->key);
    return COMM_OK;
}

static comm_status do_add(struct state *state, const struct wire_request *request, struct wire_buffer *reply)
{
    int64_t value;
    comm_status status = table_add(state->table, as_table(request->key), request->number, &value);
    if (status != COMM_OK)
        return status;
    wire_put_u64(reply, (uint64_t)value);
    wake(state, request->key);
    return COMM_OK;
}

/* The value, or an empty one: a missing key is no reason to lose the connection. */
static void reply_value(const struct state *state, struct wire_bytes key, struct wire_buffer *reply)
{
    struct table_bytes value = { NULL, 0 };
    table_get(state->table, as_table(key), &value);
    wire_put_string(reply, value.data, value.bytes);
}

static comm_status do_multi_get(const struct state *state, struct state_client *client,
                                const struct wire_request *request, struct wire_buffer *reply)
{
    struct wire_list list = request->list;
    size_t begin = reply->bytes, i = 0;
    for (; i < client->values_sent; i++)
        wire_list_next(&list);
    for (; i < request->count && reply->bytes - begin < MULTI_GET_TURN_BYTES && !reply->failed; i++)
        reply_value(state, wire_list_next(&list), reply);
    client->values_sent = i < request->count ? i : 0;
    return COMM_OK;
}

static comm_status do_queue_push(struct state *state, const struct wire_request *request)
{
    comm_status status = table_queue_push(state->table, as_table(request->key), as_table(request->value));
    if (status == COMM_OK)
        wake_one(state, request->key);
    return status;
}

static comm_status do_queue_pop(struct state *state, struct state_client *client, const struct wire_request *request,
                                struct wire_buffer *reply)
{
    free(client->queue_key);
    client->queue_key = NULL;
    void *data = NULL;
    size_t bytes = 0;
    wire_put_u64(reply, table_queue_len(state->table, as_table(request->key)));
    if (table_queue_pop(state->table, as_table(request->key), &data, &bytes)) {
        wire_put_string(reply, data, bytes);
        free(data);
    }
    return COMM_OK;
}

static comm_status do_list_keys(const struct state *state, struct wire_buffer *reply)
{
    struct table_bytes key, value;
    wire_put_u64(reply, table_count(state->table));
    for (size_t cursor = 0; table_next(state->table, &cursor, &key, &value);)
        wire_put_string(reply, key.data, key.bytes);
    return COMM_OK;
}

static comm_status execute(struct state *state, struct state_client *client, const struct wire_request *request,
                           struct wire_buffer *reply)
{
    switch (request->query) {
    case WIRE_VALIDATE:
        return COMM_OK;
    case WIRE_SET:
        return do_set(state, request);
    case WIRE_COMPARE_SET:
        return do_compare_set(state, request, reply);
    case WIRE_GET:
        reply_value(state, request->key, reply);
        return COMM_OK;
    case WIRE_ADD:
        return do_add(state, request, reply);
    case WIRE_CHECK:
        return do_check(state, client, request, reply);
    case WIRE_WAIT:
        return do_wait(state, client, request, reply);
    case WIRE_NUM_KEYS:
        wire_put_u64(reply, table_count(state->table));
        return COMM_OK;
    case WIRE_DELETE:
        wire_put_u64(reply, (uint64_t)table_remove(state->table, as_table(request->key)));
        return COMM_OK;
    case WIRE_APPEND:
        return do_append(state, request);
    case WIRE_MULTI_GET:
        return do_multi_get(state, client, request, reply);
    case WIRE_MULTI_SET:
        return do_multi_set(state, request);
    case WIRE_CANCEL_WAIT: /* a pending wait was dropped before this comes here */
        wire_put_u8(reply, WIRE_WAIT_CANCELED);
        return COMM_OK;
    case WIRE_PING:
        wire_put_u32(reply, (uint32_t)request->number);
        return COMM_OK;
    case WIRE_QUEUE_PUSH:
        return do_queue_push(state, request);
    case WIRE_QUEUE_POP:
        return do_queue_pop(state, client, request, reply);
    case WIRE_QUEUE_LEN:
        wire_put_u64(reply, table_queue_len(state->table, as_table(request->key)));
        return COMM_OK;
    case WIRE_LIST_KEYS:
        return do_list_keys(state, reply);
    case WIRE_BARRIER:
        return do_barrier(state, client, request, reply);
    case WIRE_WATCH_KEY: /* registered, and never called: nothing in PyTorch's own collectives needs it */
        wire_put_u8(reply, WIRE_CALLBACK_REGISTERED);
        return COMM_OK;
    case WIRE_QUERY_COUNT:
        break;
    }
    return comm__fail(COMM_ERR_BUG, "query %d has no code", (int)request->query);
}

static int takes_its_item(const struct state_client *client, const struct wire_request *request)
{
    return request->query == WIRE_QUEUE_POP && request->key.bytes == client->queue_key_bytes &&
           memcmp(request->key.data, client->queue_key, client->queue_key_bytes) == 0;
}

comm_status state_execute(struct state *state, struct state_client *client, const struct wire_request *request,
                          struct wire_buffer *reply)
{
    if (client->queue_key && !takes_its_item(client, request))
        pass_on(state, client);
    comm_status status = execute(state, client, request, reply);
    if (status >= COMM_OK && reply->failed)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for the reply to %s", wire_query_name(request->query));
    return status < COMM_OK ? comm__fail_while(status, "%s", wire_query_name(request->query)) : status;
}

void state_cancel(struct state *state, struct state_client *client)
{
    if (client->waiters)
        forget_waiters(state, client);
    pass_on(state, client);
}

void state_leave(struct state *state, struct state_client *client)
{
    if (client->ready)
        ready_remove(state, client);
    state_cancel(state, client);
}

comm_status state_create(struct state **ret_state)
{
    struct state *state = calloc(1, sizeof *state);
    if (!state)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store server");
    state->bucket_count = 1024;
    state->buckets = calloc(state->bucket_count, sizeof *state->buckets);
    comm_status status = COMM_OK;
    if (!state->buckets)
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store server");
    else
        status = table_create(&state->table);
    if (status != COMM_OK) {
        state_destroy(state);
        return status;
    }
    if (getrandom(&state->seed, sizeof state->seed, GRND_NONBLOCK) != (ssize_t)sizeof state->seed)
        state->seed = (uint64_t)(uintptr_t)state * 0x9E3779B97F4A7C15u;
    *ret_state = state;
    return COMM_OK;
}

void state_destroy(struct state *state)
{
    if (!state)
        return;
    for (size_t i = 0; state->buckets && i < state->bucket_count; i++) {
        for (struct state_awaited *a = state->buckets[i], *next; a; a = next) {
            next = a->next;
            free(a);
        }
    }
    free(state->buckets);
    table_destroy(state->table);
    free(state);
}

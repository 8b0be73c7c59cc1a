/* The table and the waits of a tcp store's server; see hub.h.
 *
 * A WAIT counts down, as PyTorch's does: each key that is missing when it comes gets one waiter, and a key that
 * is there once is not looked at again. A BARRIER is a waiter with a number. Awaited keys that no client has set are in
 * a hash table of their own, seeded so that strangers cannot choose keys that collide. */
#include "hub.h"

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
struct hub_awaited {
    struct hub_awaited *next; /* in its bucket */
    struct hub_waiter *first, *last;
    uint64_t hash;
    size_t key_bytes;
    uint8_t key[];
};

struct hub {
    struct table *table;
    struct hub_awaited **buckets;
    size_t bucket_count; /* a power of two */
    size_t awaited_count;
    size_t wait_bytes;
    uint64_t seed;
    struct hub_client *ready_first, *ready_last;
};

static struct table_bytes as_table(struct wire_bytes b)
{
    return (struct table_bytes){ b.data, b.bytes };
}

/* ---- Awaited keys ---- */

static struct hub_awaited *awaited_find(struct hub *hub, struct wire_bytes key, uint64_t hash)
{
    for (struct hub_awaited *a = hub->buckets[hash & (hub->bucket_count - 1)]; a; a = a->next)
        if (a->hash == hash && a->key_bytes == key.bytes && memcmp(a->key, key.data, key.bytes) == 0)
            return a;
    return NULL;
}

/* More buckets; if there is no memory for them, the chains just get longer. */
static void awaited_grow(struct hub *hub)
{
    size_t count = hub->bucket_count * 2;
    struct hub_awaited **buckets = calloc(count, sizeof *buckets);
    if (!buckets)
        return;
    for (size_t i = 0; i < hub->bucket_count; i++) {
        for (struct hub_awaited *a = hub->buckets[i], *next; a; a = next) {
            next = a->next;
            a->next = buckets[a->hash & (count - 1)];
            buckets[a->hash & (count - 1)] = a;
        }
    }
    free(hub->buckets);
    hub->buckets = buckets;
    hub->bucket_count = count;
}

static struct hub_awaited *awaited_get(struct hub *hub, struct wire_bytes key)
{
    uint64_t hash = XXH3_64bits_withSeed(key.data, key.bytes, hub->seed);
    struct hub_awaited *a = awaited_find(hub, key, hash);
    if (a)
        return a;
    if (hub->awaited_count >= hub->bucket_count)
        awaited_grow(hub);
    a = malloc(sizeof *a + key.bytes);
    if (!a)
        return NULL;
    struct hub_awaited **bucket = &hub->buckets[hash & (hub->bucket_count - 1)];
    *a = (struct hub_awaited){ .next = *bucket, .hash = hash, .key_bytes = key.bytes };
    memcpy(a->key, key.data, key.bytes);
    *bucket = a;
    hub->awaited_count++;
    hub->wait_bytes += sizeof *a + key.bytes;
    return a;
}

static void awaited_drop(struct hub *hub, struct hub_awaited *a)
{
    struct hub_awaited **at = &hub->buckets[a->hash & (hub->bucket_count - 1)];
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    assert(hub->awaited_count > 0);
    hub->awaited_count--;
    assert(hub->wait_bytes >= sizeof *a + a->key_bytes);
    hub->wait_bytes -= sizeof *a + a->key_bytes;
    free(a);
}

/* ---- Waiters ---- */

static void waiter_link(struct hub_awaited *a, struct hub_waiter *w)
{
    w->awaited = a;
    w->prev = a->last;
    w->next = NULL;
    *(a->last ? &a->last->next : &a->first) = w;
    a->last = w;
}

/* Take it out of its key's queue; the key itself is dropped by the caller when no waiter is left. */
static void waiter_unlink(struct hub_waiter *w)
{
    struct hub_awaited *a = w->awaited;
    *(w->prev ? &w->prev->next : &a->first) = w->next;
    *(w->next ? &w->next->prev : &a->last) = w->prev;
    w->awaited = NULL;
}

static void forget_waiters(struct hub *hub, struct hub_client *client)
{
    for (size_t i = 0; i < client->waiter_count; i++) {
        struct hub_awaited *a = client->waiters[i].awaited;
        if (!a)
            continue;
        waiter_unlink(&client->waiters[i]);
        if (!a->first)
            awaited_drop(hub, a);
    }
    if (client->waiters != &client->one) {
        hub->wait_bytes -= client->waiter_count * sizeof *client->waiters;
        free(client->waiters);
    }
    client->waiters = NULL;
    client->waiter_count = 0;
    client->missing = 0;
}

static void ready_push(struct hub *hub, struct hub_client *client)
{
    client->ready = 1;
    client->ready_prev = hub->ready_last;
    client->ready_next = NULL;
    *(hub->ready_last ? &hub->ready_last->ready_next : &hub->ready_first) = client;
    hub->ready_last = client;
}

static void ready_remove(struct hub *hub, struct hub_client *client)
{
    *(client->ready_prev ? &client->ready_prev->ready_next : &hub->ready_first) = client->ready_next;
    *(client->ready_next ? &client->ready_next->ready_prev : &hub->ready_last) = client->ready_prev;
    client->ready = 0;
}

struct hub_client *hub_take_ready(struct hub *hub)
{
    struct hub_client *client = hub->ready_first;
    if (client)
        ready_remove(hub, client);
    return client;
}

/* One of the client's keys has come. */
static void release(struct hub *hub, struct hub_waiter *w)
{
    struct hub_client *client = w->client;
    waiter_unlink(w);
    assert(client->missing > 0);
    if (--client->missing > 0)
        return;
    forget_waiters(hub, client);
    ready_push(hub, client);
}

/* The key holds a value now: release all clients that wait for that, and the barriers that it completes. */
static void wake(struct hub *hub, struct wire_bytes key)
{
    if (hub->awaited_count == 0)
        return;
    struct hub_awaited *a = awaited_find(hub, key, XXH3_64bits_withSeed(key.data, key.bytes, hub->seed));
    if (!a)
        return;
    int64_t number = -1; /* read once, when a barrier waits here */
    for (struct hub_waiter *w = a->first, *next; w; w = next) {
        next = w->next;
        if (w->at_least > 0) {
            if (number < 0 && table_add(hub->table, as_table(key), 0, &number) != COMM_OK)
                number = 0;
            if (number < w->at_least)
                continue;
        }
        release(hub, w);
    }
    if (!a->first)
        awaited_drop(hub, a);
}

/* The queue got an item, or one that was meant for a client that left: release one client that waits for the queue. */
static void wake_one(struct hub *hub, struct wire_bytes key)
{
    if (hub->awaited_count == 0)
        return;
    struct hub_awaited *a = awaited_find(hub, key, XXH3_64bits_withSeed(key.data, key.bytes, hub->seed));
    struct hub_waiter *w = a ? a->first : NULL;
    while (w && w->at_least > 0)
        w = w->next;
    if (!w)
        return;
    struct hub_client *client = w->client;
    release(hub, w);
    if (client->ready && !client->queue_key) {
        client->queue_key = malloc(key.bytes + 1);
        if (client->queue_key)
            memcpy(client->queue_key, key.data, key.bytes);
        client->queue_key_bytes = key.bytes;
    }
    if (!a->first)
        awaited_drop(hub, a);
}

/* The client was released by a push and will not pop: without this, no other client would be told of that item. */
static void pass_on(struct hub *hub, struct hub_client *client)
{
    struct wire_bytes key = { client->queue_key, client->queue_key_bytes };
    client->queue_key = NULL;
    if (!key.data)
        return;
    if (table_queue_len(hub->table, as_table(key)) > 0)
        wake_one(hub, key);
    free((void *)key.data);
}

/* ---- Requests ---- */

static int is_present(const struct hub *hub, struct wire_bytes key)
{
    return table_get(hub->table, as_table(key), NULL) || table_queue_len(hub->table, as_table(key)) > 0;
}

static size_t count_missing(const struct hub *hub, const struct wire_request *request)
{
    struct wire_list list = request->list;
    size_t missing = 0;
    for (size_t i = 0; i < request->count; i++)
        missing += !is_present(hub, wire_list_next(&list));
    return missing;
}

static comm_status do_check(struct hub *hub, const struct wire_request *request, struct wire_buffer *reply)
{
    size_t missing = count_missing(hub, request);
    if (missing == 1 && request->count == 1) {
        struct wire_list list = request->list;
        struct wire_bytes key = wire_list_next(&list);
        if (key.bytes == sizeof HUB_ORDERED_KEY - 1 && memcmp(key.data, HUB_ORDERED_KEY, key.bytes) == 0)
            missing = 0;
    }
    wire_put_u8(reply, missing ? WIRE_NOT_READY : WIRE_READY);
    return COMM_OK;
}

/* Room for `count` waiters of the client. */
static comm_status take_waiters(struct hub *hub, struct hub_client *client, size_t count)
{
    client->waiters = &client->one;
    if (count > 1) {
        if (hub->wait_bytes > WAIT_BYTES_MAX)
            return comm__fail(COMM_ERR_NO_MEMORY, "the waits of all clients hold %zu MiB", hub->wait_bytes >> 20);
        client->waiters = calloc(count, sizeof *client->waiters);
        if (!client->waiters)
            return comm__fail(COMM_ERR_NO_MEMORY, "no memory to wait for %zu keys", count);
        hub->wait_bytes += count * sizeof *client->waiters;
    }
    client->waiter_count = count;
    memset(client->waiters, 0, count * sizeof *client->waiters);
    return COMM_OK;
}

static comm_status wait_for(struct hub *hub, struct hub_client *client, struct wire_bytes key, int64_t at_least)
{
    struct hub_awaited *a = awaited_get(hub, key);
    if (!a) {
        forget_waiters(hub, client);
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory to wait for a key");
    }
    struct hub_waiter *w = &client->waiters[client->missing++];
    w->client = client;
    w->at_least = at_least;
    waiter_link(a, w);
    return COMM_IN_PROGRESS;
}

static comm_status do_wait(struct hub *hub, struct hub_client *client, const struct wire_request *request,
                           struct wire_buffer *reply)
{
    size_t missing = count_missing(hub, request);
    if (missing == 0) {
        wire_put_u8(reply, WIRE_STOP_WAITING);
        return COMM_OK;
    }
    comm_status status = take_waiters(hub, client, missing);
    struct wire_list list = request->list;
    for (size_t i = 0; i < request->count && status >= COMM_OK; i++) {
        struct wire_bytes key = wire_list_next(&list);
        if (!is_present(hub, key))
            status = wait_for(hub, client, key, 0);
    }
    return status;
}

static comm_status do_barrier(struct hub *hub, struct hub_client *client, const struct wire_request *request,
                              struct wire_buffer *reply)
{
    int64_t arrived;
    comm_status status = table_add(hub->table, as_table(request->key), 1, &arrived);
    if (status != COMM_OK)
        return status;
    wake(hub, request->key);
    if (arrived >= request->number) {
        wire_put_u8(reply, WIRE_STOP_WAITING);
        return COMM_OK;
    }
    status = take_waiters(hub, client, 1);
    if (status != COMM_OK)
        return status;
    return wait_for(hub, client, request->key, request->number);
}

static comm_status do_set(struct hub *hub, const struct wire_request *request)
{
    comm_status status = table_set(hub->table, as_table(request->key), as_table(request->value));
    if (status == COMM_OK)
        wake(hub, request->key);
    return status;
}

static comm_status do_append(struct hub *hub, const struct wire_request *request)
{
    comm_status status = table_append(hub->table, as_table(request->key), as_table(request->value));
    if (status == COMM_OK)
        wake(hub, request->key);
    return status;
}

static comm_status do_multi_set(struct hub *hub, const struct wire_request *request)
{
    struct wire_list list = request->list;
    for (size_t i = 0; i < request->count; i++) {
        struct wire_bytes key = wire_list_next(&list);
        struct wire_bytes value = wire_list_next(&list);
        comm_status status = table_set(hub->table, as_table(key), as_table(value));
        if (status != COMM_OK)
            return status;
        wake(hub, key);
    }
    return COMM_OK;
}

static comm_status do_compare_set(struct hub *hub, const struct wire_request *request, struct wire_buffer *reply)
{
    struct table_bytes value;
    int changed = 0;
    comm_status status = table_compare_set(hub->table, as_table(request->key), as_table(request->value),
                                           as_table(request->desired), &value, &changed);
    if (status != COMM_OK)
        return status;
    wire_put_string(reply, value.data, value.bytes);
    if (changed)
        wake(hub, request->key);
    return COMM_OK;
}

static comm_status do_add(struct hub *hub, const struct wire_request *request, struct wire_buffer *reply)
{
    int64_t value;
    comm_status status = table_add(hub->table, as_table(request->key), request->number, &value);
    if (status != COMM_OK)
        return status;
    wire_put_u64(reply, (uint64_t)value);
    wake(hub, request->key);
    return COMM_OK;
}

/* The value, or an empty one: a missing key is no reason to lose the connection. */
static void reply_value(const struct hub *hub, struct wire_bytes key, struct wire_buffer *reply)
{
    struct table_bytes value = { NULL, 0 };
    table_get(hub->table, as_table(key), &value);
    wire_put_string(reply, value.data, value.bytes);
}

static void do_multi_get(const struct hub *hub, struct hub_client *client, const struct wire_request *request,
                         struct wire_buffer *reply)
{
    struct wire_list list = request->list;
    size_t begin = reply->bytes, i = 0;
    for (; i < client->values_sent; i++)
        wire_list_next(&list);
    for (; i < request->count && reply->bytes - begin < MULTI_GET_TURN_BYTES && !reply->failed; i++)
        reply_value(hub, wire_list_next(&list), reply);
    client->values_sent = i < request->count ? i : 0;
}

static comm_status do_queue_push(struct hub *hub, const struct wire_request *request)
{
    comm_status status = table_queue_push(hub->table, as_table(request->key), as_table(request->value));
    if (status == COMM_OK)
        wake_one(hub, request->key);
    return status;
}

static void do_queue_pop(struct hub *hub, struct hub_client *client, const struct wire_request *request,
                         struct wire_buffer *reply)
{
    free(client->queue_key);
    client->queue_key = NULL;
    void *data = NULL;
    size_t bytes = 0;
    wire_put_u64(reply, table_queue_len(hub->table, as_table(request->key)));
    if (table_queue_pop(hub->table, as_table(request->key), &data, &bytes)) {
        wire_put_string(reply, data, bytes);
        free(data);
    }
}

static void do_list_keys(const struct hub *hub, struct wire_buffer *reply)
{
    struct table_bytes key, value;
    wire_put_u64(reply, table_count(hub->table));
    for (size_t cursor = 0; table_next(hub->table, &cursor, &key, &value);)
        wire_put_string(reply, key.data, key.bytes);
}

static comm_status execute(struct hub *hub, struct hub_client *client, const struct wire_request *request,
                           struct wire_buffer *reply)
{
    switch (request->query) {
    case WIRE_VALIDATE:
        return COMM_OK;
    case WIRE_SET:
        return do_set(hub, request);
    case WIRE_COMPARE_SET:
        return do_compare_set(hub, request, reply);
    case WIRE_GET:
        reply_value(hub, request->key, reply);
        return COMM_OK;
    case WIRE_ADD:
        return do_add(hub, request, reply);
    case WIRE_CHECK:
        return do_check(hub, request, reply);
    case WIRE_WAIT:
        return do_wait(hub, client, request, reply);
    case WIRE_NUM_KEYS:
        wire_put_u64(reply, table_count(hub->table));
        return COMM_OK;
    case WIRE_DELETE:
        wire_put_u64(reply, (uint64_t)table_remove(hub->table, as_table(request->key)));
        return COMM_OK;
    case WIRE_APPEND:
        return do_append(hub, request);
    case WIRE_MULTI_GET:
        do_multi_get(hub, client, request, reply);
        return COMM_OK;
    case WIRE_MULTI_SET:
        return do_multi_set(hub, request);
    case WIRE_CANCEL_WAIT: /* a pending wait was dropped before this comes here */
        wire_put_u8(reply, WIRE_WAIT_CANCELED);
        return COMM_OK;
    case WIRE_PING:
        wire_put_u32(reply, (uint32_t)request->number);
        return COMM_OK;
    case WIRE_QUEUE_PUSH:
        return do_queue_push(hub, request);
    case WIRE_QUEUE_POP:
        do_queue_pop(hub, client, request, reply);
        return COMM_OK;
    case WIRE_QUEUE_LEN:
        wire_put_u64(reply, table_queue_len(hub->table, as_table(request->key)));
        return COMM_OK;
    case WIRE_LIST_KEYS:
        do_list_keys(hub, reply);
        return COMM_OK;
    case WIRE_BARRIER:
        return do_barrier(hub, client, request, reply);
    case WIRE_WATCH_KEY: /* registered, and never called: nothing in PyTorch's own collectives needs it */
        wire_put_u8(reply, WIRE_CALLBACK_REGISTERED);
        return COMM_OK;
    case WIRE_QUERY_COUNT:
        break;
    }
    return comm__fail(COMM_ERR_BUG, "query %d has no code", (int)request->query);
}

comm_status hub_execute(struct hub *hub, struct hub_client *client, const struct wire_request *request,
                        struct wire_buffer *reply)
{
    if (client->queue_key && request->query != WIRE_QUEUE_POP)
        pass_on(hub, client);
    comm_status status = execute(hub, client, request, reply);
    if (status >= COMM_OK && reply->failed)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for the reply to %s", wire_query_name(request->query));
    return status < COMM_OK ? comm__fail_while(status, "%s", wire_query_name(request->query)) : status;
}

void hub_cancel(struct hub *hub, struct hub_client *client)
{
    if (client->waiters)
        forget_waiters(hub, client);
    pass_on(hub, client);
}

void hub_leave(struct hub *hub, struct hub_client *client)
{
    if (client->ready)
        ready_remove(hub, client);
    hub_cancel(hub, client);
}

comm_status hub_create(struct hub **ret_hub)
{
    struct hub *hub = calloc(1, sizeof *hub);
    if (!hub)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store server");
    hub->bucket_count = 1024;
    hub->buckets = calloc(hub->bucket_count, sizeof *hub->buckets);
    comm_status status = COMM_OK;
    if (!hub->buckets)
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store server");
    else
        status = table_create(&hub->table);
    if (status != COMM_OK) {
        hub_destroy(hub);
        return status;
    }
    if (getrandom(&hub->seed, sizeof hub->seed, GRND_NONBLOCK) != (ssize_t)sizeof hub->seed)
        hub->seed = (uint64_t)(uintptr_t)hub * 0x9E3779B97F4A7C15u;
    *ret_hub = hub;
    return COMM_OK;
}

void hub_destroy(struct hub *hub)
{
    if (!hub)
        return;
    for (size_t i = 0; hub->buckets && i < hub->bucket_count; i++) {
        for (struct hub_awaited *a = hub->buckets[i], *next; a; a = next) {
            next = a->next;
            free(a);
        }
    }
    free(hub->buckets);
    table_destroy(hub->table);
    free(hub);
}

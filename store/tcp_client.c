/* The tcp store: a client of PyTorch's TCPStore protocol, and of our own server.
 *
 * Quick requests share one connection, `quick`, under a lock that is held for one round trip. A call that has to wait
 * takes that connection away with it; whoever comes next gets a spare or a new one. So one thread needs one
 * connection, and a waiting thread blocks nobody. A connection is only taken away after the server has answered on it:
 * what was set before is then in force, whichever connection is used next.
 *
 * Every user key has "/" in front on the wire, as PyTorch's clients do it; "init/", the count of those who joined, has none. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/param.h"
#include "store.h"
#include "tcp_conn.h"
#include "tcp_listen.h"
#include "tcp_server.h"
#include "tcp_shared.h"
#include "url.h"

#define JOINED_KEY "init/"

enum {
    SPARES_MAX = 8,
    CANCEL_MS = 10000,           /* how long the answer to a CANCEL_WAIT may take */
    BATCH_BYTES = 256 << 10,     /* of GETs or CHECKs that are sent before their replies are read */
    MULTI_SET_BYTES = 16 << 20,  /* of one MULTI_SET; servers limit a request */
    MISSING_NAMED_MAX = 64,      /* keys that a timeout looks at to say which are missing */
    JOIN_POLL_MS = 5,
    RECONNECT_MS = 30000,        /* for a further connection to a server that has been reached before */
};

struct tcp_store {
    comm_store base;
    struct tcp_server *server; /* NULL unless serving alone */
    struct tcp_shared *shared; /* NULL unless serving with others */
    char *connect_host;        /* where clients of this process find the server */
    struct tcp_peer peer;
    int ordered; /* as in struct tcp_conn */
    enum wire_dialect dialect;

    pthread_mutex_t lock; /* guards what follows; held for a round trip */
    struct tcp_conn *quick;
    struct tcp_conn *spares;
    int spare_count;
    comm_status lost; /* the server has gone: this status and text for ever */
    char lost_text[256];

    pthread_mutex_t open_lock; /* guards `open`; never held for long. Inside `lock`, if both are taken */
    struct tcp_conn *open;     /* all connections, for interrupt */
};

/* ---- Connections ---- */

static void conn_register(struct tcp_store *t, struct tcp_conn *c)
{
    pthread_mutex_lock(&t->open_lock);
    c->next_open = t->open;
    if (c->next_open)
        c->next_open->prev_open = c;
    t->open = c;
    pthread_mutex_unlock(&t->open_lock);
}

static void conn_close(struct tcp_store *t, struct tcp_conn *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&t->open_lock);
    *(c->prev_open ? &c->prev_open->next_open : &t->open) = c->next_open;
    if (c->next_open)
        c->next_open->prev_open = c->prev_open;
    pthread_mutex_unlock(&t->open_lock);
    tcp_conn_destroy(c);
}

static comm_status conn_open(struct tcp_store *t, int64_t began_ns, int64_t deadline_ns, struct tcp_conn **ret_conn)
{
    comm_status status = tcp_dial(&t->peer, began_ns, deadline_ns, ret_conn);
    if (status == COMM_OK)
        conn_register(t, *ret_conn);
    return status;
}

static void tcp_interrupt(comm_store *s)
{
    struct tcp_store *t = (struct tcp_store *)s;
    pthread_mutex_lock(&t->open_lock);
    for (struct tcp_conn *c = t->open; c; c = c->next_open)
        tcp_conn_wake(c);
    pthread_mutex_unlock(&t->open_lock);
}

/* The text for a failure of a request, in the words of tcp_conn.h. */
static comm_status explain(struct tcp_store *t, comm_status status, const char *what, int64_t began_ns)
{
    switch (status) {
    case COMM_ERR_TIMEOUT:
        return comm__fail(status, "%s: the server at %s port %d has not answered for %lld ms", what, t->peer.host,
                          t->peer.port, (long long)((clock_now_ns() - began_ns) / 1000000));
    case COMM_ERR_ABORTED:
        return comm__fail(status, "%s: the store %s was closed", what, t->base.url);
    case COMM_ERR_PEER_LOST:
        return comm__fail_while(status, "%s on the store at %s port %d", what, t->peer.host, t->peer.port);
    default:
        return comm__fail_while(status, "%s", what);
    }
}

/* One quick request, from tcp_begin to tcp_end; the lock is held between. */
struct request {
    struct tcp_store *t;
    struct tcp_conn *c;
    struct tcp_limit limit;
    int64_t began_ns;
    const char *what;
};

static comm_status tcp_begin(struct request *r, comm_store *s, const char *what)
{
    struct tcp_store *t = (struct tcp_store *)s;
    int64_t now = clock_now_ns();
    *r = (struct request){ .t = t, .began_ns = now, .what = what };
    r->limit = (struct tcp_limit){ .deadline_ns = clock_deadline_ns(atomic_load(&s->timeout_ms)), .store = s };
    pthread_mutex_lock(&t->lock);
    comm_status status = t->lost;
    if (status != COMM_OK)
        comm__fail(status, "%s", t->lost_text);
    if (status == COMM_OK && !t->quick && t->spares) {
        t->quick = t->spares;
        t->spares = t->quick->next;
        t->spare_count--;
    }
    if (status == COMM_OK && !t->quick) {
        int64_t soon = clock_deadline_ns(RECONNECT_MS);
        status = conn_open(t, now, soon < r->limit.deadline_ns ? soon : r->limit.deadline_ns, &t->quick);
    }
    if (status != COMM_OK) {
        pthread_mutex_unlock(&t->lock);
        return status;
    }
    r->c = t->quick;
    return COMM_OK;
}

/* The server has gone: remember the text, for all later calls. */
static void remember_lost(struct tcp_store *t)
{
    t->lost = COMM_ERR_PEER_LOST;
    snprintf(t->lost_text, sizeof t->lost_text, "%s", comm_last_error());
}

static comm_status tcp_end(struct request *r, comm_status status)
{
    struct tcp_store *t = r->t;
    if (status != COMM_OK) {
        conn_close(t, t->quick);
        t->quick = NULL;
        status = explain(t, status, r->what, r->began_ns);
        if (status == COMM_ERR_PEER_LOST)
            remember_lost(t);
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* Take the quick connection away, to wait on it. The lock is free then. */
static void lend(struct request *r)
{
    r->t->quick = NULL;
    pthread_mutex_unlock(&r->t->lock);
}

/* Give it back; with NULL it has been closed. */
static void give_back(struct request *r, struct tcp_conn *c)
{
    struct tcp_store *t = r->t;
    if (!c)
        return;
    pthread_mutex_lock(&t->lock);
    if (!t->quick) {
        t->quick = c;
        c = NULL;
    } else if (t->spare_count < SPARES_MAX) {
        c->next = t->spares;
        t->spares = c;
        t->spare_count++;
        c = NULL;
    }
    pthread_mutex_unlock(&t->lock);
    conn_close(t, c);
}

/* ---- Encoding ---- */

static void put_query(struct tcp_conn *c, enum wire_query query)
{
    wire_put_query(&c->out, c->dialect, query);
}

static void put_key(struct tcp_conn *c, const char *key)
{
    size_t bytes = strlen(key);
    wire_put_u64(&c->out, bytes + 1);
    wire_put_u8(&c->out, '/');
    wire_put_bytes(&c->out, key, bytes);
}

static void put_keys(struct tcp_conn *c, enum wire_query query, const char *const *keys, size_t count)
{
    put_query(c, query);
    wire_put_u64(&c->out, count);
    for (size_t i = 0; i < count; i++)
        put_key(c, keys[i]);
}

static void put_get(struct tcp_conn *c, const char *key)
{
    put_query(c, WIRE_GET);
    put_key(c, key);
}

/* Queries above DELETE_KEY do not exist in the old dialect; store.c makes them from the others then. */
static comm_status needs(const struct tcp_store *t, enum wire_query query, int ours_only)
{
    if (t->dialect == WIRE_DIALECT_OLD || (ours_only && !t->ordered))
        return comm__fail(COMM_ERR_UNSUPPORTED, "the server at %s port %d is a PyTorch that has no %s query",
                          t->peer.host, t->peer.port, wire_query_name(query));
    return COMM_OK;
}

/* ---- Quick requests ---- */

static comm_status tcp_set(comm_store *s, const char *key, const void *data, size_t bytes)
{
    struct request r;
    comm_status status = tcp_begin(&r, s, "set");
    if (status != COMM_OK)
        return status;
    put_query(r.c, WIRE_SET);
    put_key(r.c, key);
    wire_put_string(&r.c->out, data, bytes);
    return tcp_end(&r, tcp_conn_send(r.c, &r.limit));
}

static comm_status tcp_append(comm_store *s, const char *key, const void *data, size_t bytes)
{
    comm_status status = needs((struct tcp_store *)s, WIRE_APPEND, 0);
    struct request r;
    if (status == COMM_OK)
        status = tcp_begin(&r, s, "append");
    if (status != COMM_OK)
        return status;
    put_query(r.c, WIRE_APPEND);
    put_key(r.c, key);
    wire_put_string(&r.c->out, data, bytes);
    return tcp_end(&r, tcp_conn_send(r.c, &r.limit));
}

/* CHECK, then read whether all are there. */
static comm_status ask_check(struct request *r, const char *const *keys, size_t count, uint8_t *ret_ready)
{
    put_keys(r->c, WIRE_CHECK, keys, count);
    comm_status status = tcp_conn_send(r->c, &r->limit);
    return status == COMM_OK ? tcp_conn_read_u8(r->c, &r->limit, ret_ready) : status;
}

static comm_status tcp_check(comm_store *s, const char *const *keys, size_t count, int32_t *ret_all)
{
    struct request r;
    uint8_t ready = WIRE_NOT_READY;
    if (count == 0) { /* PyTorch's server looks at the first key, whatever the count */
        *ret_all = 1;
        return COMM_OK;
    }
    comm_status status = tcp_begin(&r, s, "check");
    if (status != COMM_OK)
        return status;
    status = tcp_end(&r, ask_check(&r, keys, count, &ready));
    if (status == COMM_OK)
        *ret_all = ready == WIRE_READY;
    return status;
}

/* A request whose reply is one number. `key` may be NULL. */
static comm_status ask_number(comm_store *s, enum wire_query query, const char *what, const char *key,
                              int64_t *ret_value)
{
    struct request r;
    uint64_t value = 0;
    comm_status status = tcp_begin(&r, s, what);
    if (status != COMM_OK)
        return status;
    put_query(r.c, query);
    if (key)
        put_key(r.c, key);
    status = tcp_conn_send(r.c, &r.limit);
    if (status == COMM_OK)
        status = tcp_conn_read_u64(r.c, &r.limit, &value);
    status = tcp_end(&r, status);
    if (status == COMM_OK)
        *ret_value = (int64_t)value;
    return status;
}

static comm_status tcp_remove(comm_store *s, const char *key, int32_t *ret_existed)
{
    int64_t removed = 0;
    comm_status status = ask_number(s, WIRE_DELETE, "delete", key, &removed);
    if (status == COMM_OK && ret_existed)
        *ret_existed = removed > 0;
    return status;
}

static comm_status tcp_num_keys(comm_store *s, int64_t *ret_count)
{
    return ask_number(s, WIRE_NUM_KEYS, "num_keys", NULL, ret_count);
}

/* Keys as they come, packed behind one another with their NULs. */
struct key_list {
    char *text;
    size_t bytes, room, count;
};

static comm_status key_list_add(struct key_list *list, const char *key, size_t key_bytes)
{
    if (key_bytes + 1 > list->room - list->bytes) {
        size_t room = list->room * 2 + key_bytes + 256;
        char *text = realloc(list->text, room);
        if (!text)
            return comm__fail(COMM_ERR_NO_MEMORY, "no memory for %zu keys", list->count);
        list->text = text;
        list->room = room;
    }
    memcpy(list->text + list->bytes, key, key_bytes);
    list->text[list->bytes + key_bytes] = '\0';
    list->bytes += key_bytes + 1;
    list->count++;
    return COMM_OK;
}

/* The reply to LIST_KEYS. Users' keys have "/" in front; others, such as "init/", are not for them. */
static comm_status read_keys(struct request *r, struct key_list *list)
{
    uint64_t count = 0;
    comm_status status = tcp_conn_read_u64(r->c, &r->limit, &count);
    for (uint64_t i = 0; i < count && status == COMM_OK; i++) {
        void *key = NULL;
        size_t bytes = 0;
        status = tcp_conn_read_value(r->c, &r->limit, &key, &bytes);
        if (status == COMM_OK && bytes > 1 && *(char *)key == '/' && !memchr(key, '\0', bytes))
            status = key_list_add(list, (char *)key + 1, bytes - 1);
        free(key);
    }
    return status;
}

static comm_status tcp_list_keys(comm_store *s, char ***ret_keys, size_t *ret_count)
{
    struct request r;
    struct key_list list = { 0 };
    comm_status status = needs((struct tcp_store *)s, WIRE_LIST_KEYS, 1);
    if (status == COMM_OK)
        status = tcp_begin(&r, s, "list_keys");
    if (status != COMM_OK)
        return status;
    put_query(r.c, WIRE_LIST_KEYS);
    status = tcp_conn_send(r.c, &r.limit);
    if (status == COMM_OK)
        status = read_keys(&r, &list);
    status = tcp_end(&r, status);
    char **keys = status == COMM_OK ? malloc(list.count * sizeof *keys + list.bytes + 1) : NULL;
    if (status == COMM_OK && !keys)
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for %zu keys", list.count);
    if (status == COMM_OK) {
        char *at = (char *)(keys + list.count);
        if (list.bytes)
            memcpy(at, list.text, list.bytes);
        for (size_t i = 0; i < list.count; i++, at += strlen(at) + 1)
            keys[i] = at;
        *ret_keys = keys;
        *ret_count = list.count;
    }
    free(list.text);
    return status;
}

static comm_status tcp_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                   const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes)
{
    struct request r;
    comm_status status = tcp_begin(&r, s, "compare_set");
    if (status != COMM_OK)
        return status;
    put_query(r.c, WIRE_COMPARE_SET);
    put_key(r.c, key);
    wire_put_string(&r.c->out, expected, expected_bytes);
    wire_put_string(&r.c->out, desired, desired_bytes);
    status = tcp_conn_send(r.c, &r.limit);
    if (status == COMM_OK)
        status = tcp_conn_read_value(r.c, &r.limit, ret_data, ret_bytes);
    return tcp_end(&r, status);
}

/* ---- Adding ---- */

static comm_status ask_add(struct request *r, const char *key, int64_t amount, uint64_t *ret_value)
{
    put_query(r->c, WIRE_ADD);
    put_key(r->c, key);
    wire_put_u64(&r->c->out, (uint64_t)amount);
    comm_status status = tcp_conn_send(r->c, &r->limit);
    return status == COMM_OK ? tcp_conn_read_u64(r->c, &r->limit, ret_value) : status;
}

/* INVALID if `text` explains why a server refused to add to it. */
static comm_status check_number(const char *key, const char *text, int64_t amount)
{
    char *end;
    int64_t sum;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno)
        return comm__fail(COMM_ERR_INVALID, "add %" PRId64 " to '%s': its value, '%.64s', is not a 64-bit number",
                          amount, key, text);
    if (__builtin_add_overflow((int64_t)value, amount, &sum))
        return comm__fail(COMM_ERR_INVALID, "add %" PRId64 " to '%s': %lld would overflow", amount, key, value);
    return COMM_OK;
}

/* The protocol has no error replies: a server that cannot add closes the connection. Look, on a new one, whether it
 * had a reason to. */
static comm_status diagnose_add(struct request *r, const char *key, int64_t amount)
{
    struct tcp_store *t = r->t;
    void *data = NULL;
    size_t bytes;
    uint8_t ready = WIRE_NOT_READY;
    int64_t now = clock_now_ns(), deadline_ns = clock_deadline_ns(CANCEL_MS);
    conn_close(t, t->quick);
    t->quick = NULL;
    comm_status status = conn_open(t, now, deadline_ns < r->limit.deadline_ns ? deadline_ns : r->limit.deadline_ns,
                                   &t->quick);
    if (status == COMM_OK) {
        r->c = t->quick;
        status = ask_check(r, &key, 1, &ready);
    }
    if (status == COMM_OK && ready == WIRE_READY) {
        put_get(r->c, key);
        status = tcp_conn_send(r->c, &r->limit);
        if (status == COMM_OK)
            status = tcp_conn_read_value(r->c, &r->limit, &data, &bytes);
    }
    if (status == COMM_OK && data)
        status = check_number(key, data, amount);
    free(data);
    return status == COMM_ERR_INVALID
               ? status
               : comm__fail(COMM_ERR_PEER_LOST, "the server closed the connection in answer to ADD");
}

static comm_status tcp_add(comm_store *s, const char *key, int64_t amount, int64_t *ret_value)
{
    struct request r;
    uint64_t value = 0;
    comm_status status = tcp_begin(&r, s, "add");
    if (status != COMM_OK)
        return status;
    status = ask_add(&r, key, amount, &value);
    if (status == COMM_ERR_PEER_LOST)
        status = diagnose_add(&r, key, amount);
    if (status == COMM_ERR_INVALID) { /* the new connection is as good as the old one was */
        pthread_mutex_unlock(&r.t->lock);
        return status;
    }
    status = tcp_end(&r, status);
    if (status == COMM_OK)
        *ret_value = (int64_t)value;
    return status;
}

/* ---- Waiting ---- */

/* What goes behind a WAIT: nothing, GET or QUEUE_POP of the same key. */
enum tail { TAIL_NONE, TAIL_GET, TAIL_POP };

struct answer {
    void *data; /* malloc; NULL if there is none */
    size_t bytes;
};

static void put_tail(struct tcp_conn *c, enum tail tail, const char *key)
{
    if (tail == TAIL_NONE)
        return;
    put_query(c, tail == TAIL_GET ? WIRE_GET : WIRE_QUEUE_POP);
    put_key(c, key);
}

static comm_status read_tail(struct tcp_conn *c, const struct tcp_limit *limit, enum tail tail, struct answer *answer)
{
    if (tail == TAIL_NONE)
        return COMM_OK;
    uint64_t length = 1;
    comm_status status = tail == TAIL_POP ? tcp_conn_read_u64(c, limit, &length) : COMM_OK;
    if (status == COMM_OK && length > 0)
        status = tcp_conn_read_value(c, limit, &answer->data, &answer->bytes);
    return status;
}

/* The time is up: cancel. The wake-up may have crossed; *ret_came says so, and the answer is good then. */
static comm_status cancel(struct tcp_conn *c, enum tail tail_sent, struct answer *answer, int *ret_came)
{
    struct tcp_limit limit = { .deadline_ns = clock_deadline_ns(CANCEL_MS) };
    uint8_t first = 0, second = WIRE_WAIT_CANCELED;
    put_query(c, WIRE_CANCEL_WAIT);
    comm_status status = tcp_conn_send(c, &limit);
    if (status == COMM_OK)
        status = tcp_conn_read_u8(c, &limit, &first);
    if (status == COMM_OK)
        status = read_tail(c, &limit, tail_sent, answer);
    *ret_came = first == WIRE_STOP_WAITING;
    if (status == COMM_OK && *ret_came)
        status = tcp_conn_read_u8(c, &limit, &second);
    if (status == COMM_OK && (first > WIRE_WAIT_CANCELED || second != WIRE_WAIT_CANCELED))
        status = COMM_ERR_PROTOCOL;
    if (status == COMM_OK && !*ret_came && answer->data && tail_sent == TAIL_GET) {
        free(answer->data); /* an empty value, of a key that is not there */
        answer->data = NULL;
    }
    return status == COMM_OK || *ret_came ? status : COMM_ERR_TIMEOUT;
}

/* Read what a WAIT or a BARRIER answers, and its tail. COMM_ERR_TIMEOUT leaves the connection in step if *ret_keep. */
static comm_status await(struct tcp_conn *c, const struct tcp_limit *limit, enum tail tail, const char *key,
                         struct answer *answer, int *ret_keep)
{
    enum tail sent = c->ordered ? tail : TAIL_NONE;
    uint8_t reply = WIRE_STOP_WAITING;
    int came = 1;
    *ret_keep = 0;
    put_tail(c, sent, key);
    comm_status status = tcp_conn_send(c, limit);
    if (status == COMM_OK) {
        status = tcp_conn_read_u8(c, limit, &reply);
        if (status == COMM_ERR_TIMEOUT && c->dialect != WIRE_DIALECT_OLD) {
            status = cancel(c, sent, answer, &came);
            *ret_keep = status == COMM_OK;
            if (status != COMM_OK || !came)
                return status == COMM_OK && !answer->data ? COMM_ERR_TIMEOUT : status;
        } else if (status == COMM_OK) {
            status = read_tail(c, limit, sent, answer);
        }
    }
    if (status == COMM_OK && reply != WIRE_STOP_WAITING)
        status = comm__fail(COMM_ERR_PROTOCOL, "the server answered a WAIT with %d", reply);
    if (status == COMM_OK && sent != tail) {
        put_tail(c, tail, key);
        struct tcp_limit soon = { .deadline_ns = clock_deadline_ns(CANCEL_MS), limit->wait, limit->store };
        status = tcp_conn_send(c, &soon);
        if (status == COMM_OK)
            status = read_tail(c, &soon, tail, answer);
    }
    *ret_keep = status == COMM_OK;
    return status;
}

/* TIMEOUT, with those of the keys that are not there. */
static comm_status fail_missing(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    const char *missing[MISSING_NAMED_MAX];
    size_t missing_count = 0;
    for (size_t i = 0; i < count && missing_count < MISSING_NAMED_MAX && count > 1; i++) {
        int32_t there = 0;
        if (tcp_check(s, &keys[i], 1, &there) != COMM_OK)
            break;
        if (!there)
            missing[missing_count++] = keys[i];
    }
    if (missing_count == 0)
        return store_fail_timeout(wait, keys, count < MISSING_NAMED_MAX ? count : MISSING_NAMED_MAX, NULL);
    return store_fail_timeout(wait, missing, missing_count, NULL);
}

/* The keys were not there a moment ago: WAIT, on the connection of `r`, which this ends. */
static comm_status wait_for_keys(struct request *r, const char *const *keys, size_t count,
                                 const struct store_wait *wait, enum tail tail, struct answer *answer)
{
    struct tcp_conn *c = r->c;
    struct tcp_limit limit = { .deadline_ns = wait->deadline_ns, .wait = wait, .store = &r->t->base };
    int keep = 0;
    lend(r);
    put_keys(c, WIRE_WAIT, keys, count);
    comm_status status = await(c, &limit, tail, keys[0], answer, &keep);
    if (status == COMM_ERR_TIMEOUT && c->ordered)
        keep = 1;
    if (!keep) {
        conn_close(r->t, c);
        c = NULL;
    }
    give_back(r, c);
    if (status == COMM_ERR_TIMEOUT)
        return fail_missing(&r->t->base, keys, count, wait);
    if (status == COMM_ERR_ABORTED)
        return store_fail_closed(wait);
    return status == COMM_OK ? status : explain(r->t, status, r->what, r->began_ns);
}

static comm_status tcp_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                           size_t *ret_bytes)
{
    struct request r;
    struct answer answer = { NULL, 0 };
    comm_status status = tcp_begin(&r, s, "get");
    if (status != COMM_OK)
        return status;
    status = wait_for_keys(&r, &key, 1, wait, TAIL_GET, &answer);
    if (status != COMM_OK) {
        free(answer.data);
        return status;
    }
    *ret_data = answer.data;
    *ret_bytes = answer.bytes;
    return COMM_OK;
}

static comm_status tcp_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    struct request r;
    struct answer answer = { NULL, 0 };
    if (count == 0)
        return COMM_OK;
    comm_status status = tcp_begin(&r, s, "wait");
    return status == COMM_OK ? wait_for_keys(&r, keys, count, wait, TAIL_NONE, &answer) : status;
}

static comm_status tcp_queue_push(comm_store *s, const char *key, const void *data, size_t bytes)
{
    struct request r;
    comm_status status = needs((struct tcp_store *)s, WIRE_QUEUE_PUSH, 1);
    if (status == COMM_OK)
        status = tcp_begin(&r, s, "queue_push");
    if (status != COMM_OK)
        return status;
    put_query(r.c, WIRE_QUEUE_PUSH);
    put_key(r.c, key);
    wire_put_string(&r.c->out, data, bytes);
    return tcp_end(&r, tcp_conn_send(r.c, &r.limit));
}

static comm_status tcp_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                 void **ret_data, size_t *ret_bytes)
{
    struct request r;
    struct answer answer = { NULL, 0 };
    comm_status status = needs((struct tcp_store *)s, WIRE_QUEUE_POP, 1);
    while (status == COMM_OK && !answer.data) {
        status = tcp_begin(&r, s, "queue_pop");
        if (status != COMM_OK)
            return status;
        if (may_wait) {
            status = wait_for_keys(&r, &key, 1, wait, TAIL_POP, &answer);
            continue;
        }
        put_tail(r.c, TAIL_POP, key);
        status = tcp_conn_send(r.c, &r.limit);
        if (status == COMM_OK)
            status = read_tail(r.c, &r.limit, TAIL_POP, &answer);
        status = tcp_end(&r, status);
        if (status == COMM_OK && !answer.data)
            return comm__fail(COMM_ERR_NOT_FOUND, "queue_pop: the queue '%s' is empty", key);
    }
    if (status == COMM_OK) {
        *ret_data = answer.data;
        *ret_bytes = answer.bytes;
    }
    return status;
}

static comm_status tcp_queue_len(comm_store *s, const char *key, int64_t *ret_count)
{
    comm_status status = needs((struct tcp_store *)s, WIRE_QUEUE_LEN, 1);
    return status == COMM_OK ? ask_number(s, WIRE_QUEUE_LEN, "queue_len", key, ret_count) : status;
}

/* ---- Life ---- */

static void tcp_close(comm_store *s)
{
    struct tcp_store *t = (struct tcp_store *)s;
    conn_close(t, t->quick);
    while (t->spares) {
        struct tcp_conn *c = t->spares;
        t->spares = c->next;
        conn_close(t, c);
    }
    tcp_server_stop(t->server);
    tcp_shared_leave(t->shared);
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->open_lock);
    free(t->connect_host);
    store_finish(s);
    free(t);
}

static comm_status tcp_clone(comm_store *s, comm_store **ret_store);

static const struct store_kind tcp_kind = {
    .name = "tcp",
    .set = tcp_set,
    .get = tcp_get,
    .add = tcp_add,
    .compare_set = tcp_compare_set,
    .check = tcp_check,
    .remove = tcp_remove,
    .wait = tcp_wait,
    .append = tcp_append,
    .num_keys = tcp_num_keys,
    .list_keys = tcp_list_keys,
    .queue_push = tcp_queue_push,
    .queue_pop = tcp_queue_pop,
    .queue_len = tcp_queue_len,
    .clone = tcp_clone,
    .interrupt = tcp_interrupt,
    .close = tcp_close,
};

/* A store object that is not connected yet. */
static comm_status tcp_new(const char *url, const char *host, const char *connect_host, int32_t port,
                           int64_t timeout_ms, struct tcp_store **ret_store)
{
    struct tcp_store *t = calloc(1, sizeof *t);
    if (!t)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store");
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->open_lock, NULL);
    comm_status status = store_init(&t->base, &tcp_kind, url, host, port, timeout_ms);
    t->connect_host = strdup(connect_host);
    if (status == COMM_OK && !t->connect_host)
        status = comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store");
    if (status != COMM_OK) {
        tcp_close(&t->base);
        return status;
    }
    t->peer = (struct tcp_peer){ .host = t->connect_host, .port = port };
    *ret_store = t;
    return COMM_OK;
}

static comm_status tcp_connect(struct tcp_store *t)
{
    int64_t now = clock_now_ns();
    comm_status status = conn_open(t, now, clock_deadline_ns(atomic_load(&t->base.timeout_ms)), &t->quick);
    if (status == COMM_OK) {
        t->dialect = t->quick->dialect;
        t->ordered = t->quick->ordered;
    }
    return status;
}

static comm_status tcp_clone(comm_store *s, comm_store **ret_store)
{
    struct tcp_store *t = (struct tcp_store *)s, *other;
    comm_status status = tcp_new(s->url, s->host, t->connect_host, s->port, atomic_load(&s->timeout_ms), &other);
    if (status != COMM_OK)
        return status;
    status = tcp_connect(other);
    if (status != COMM_OK) {
        tcp_close(&other->base);
        return status;
    }
    *ret_store = &other->base;
    return COMM_OK;
}

/* Count ourselves in under the key that PyTorch's clients count under, which has no "/". */
static comm_status join_add(struct tcp_store *t, int64_t amount, int64_t *ret_joined)
{
    struct request r;
    uint64_t value = 0;
    comm_status status = tcp_begin(&r, &t->base, "joining");
    if (status != COMM_OK)
        return status;
    put_query(r.c, WIRE_ADD);
    wire_put_string(&r.c->out, JOINED_KEY, strlen(JOINED_KEY));
    wire_put_u64(&r.c->out, (uint64_t)amount);
    status = tcp_conn_send(r.c, &r.limit);
    if (status == COMM_OK)
        status = tcp_conn_read_u64(r.c, &r.limit, &value);
    *ret_joined = (int64_t)value;
    return tcp_end(&r, status);
}

static comm_status tcp_join(struct tcp_store *t, int32_t world_size, int serve)
{
    int64_t joined = 0, deadline_ns = clock_deadline_ns(atomic_load(&t->base.timeout_ms));
    comm_status status = join_add(t, 1, &joined);
    while (status == COMM_OK && serve && joined < world_size) {
        if (clock_now_ns() >= deadline_ns)
            return comm__fail(COMM_ERR_TIMEOUT, "opening %s: %lld of %d clients have joined in time", t->base.url,
                              (long long)joined, (int)world_size);
        struct timespec pause = { 0, JOIN_POLL_MS * 1000000 };
        nanosleep(&pause, NULL);
        status = join_add(t, 0, &joined);
    }
    return status;
}

/* Sets t->server or t->shared, the real port, and where this process's clients find it. */
static comm_status tcp_serve(struct tcp_store *t, const char *host, const comm_store_options *options, int32_t *port,
                             const char **ret_connect_host)
{
    struct in6_addr raw;
    int is_address = inet_pton(AF_INET, host, &raw) == 1 || inet_pton(AF_INET6, host, &raw) == 1;
    const char *bind_to = options->bind ? options->bind : is_address ? host : NULL;
    int everywhere = !bind_to || strcmp(bind_to, "0.0.0.0") == 0 || strcmp(bind_to, "::") == 0;
    *ret_connect_host = everywhere ? "127.0.0.1" : bind_to;
    int fd = options->listen_fd_plus_one - 1;
    if (fd < 0 && options->multi_tenant)
        return tcp_shared_serve(bind_to, port, &t->shared);
    comm_status status = COMM_OK;
    if (fd >= 0)
        *port = tcp_listen_port(fd);
    else
        status = tcp_listen(bind_to, *port, &fd, port);
    return status == COMM_OK ? tcp_server_start(fd, &t->server) : status;
}

comm_status store_tcp_open(const char *url, const comm_store_options *options, comm_store **ret_store)
{
    struct comm__url parsed;
    char host[URL_HOST_BYTES], whole[URL_HOST_BYTES + 32];
    int32_t port;
    comm_status status = comm__url_parse(url, &parsed);
    if (status == COMM_OK)
        status = comm__url_host_port(&parsed, host, &port);
    if (status != COMM_OK)
        return status;
    if (!options->serve && port == 0)
        return comm__fail(COMM_ERR_INVALID, "%s: port 0 is for the server only; give the port that it has published", url);
    const char *connect_host = host;
    struct tcp_store served = { 0 };
    if (options->serve)
        status = tcp_serve(&served, host, options, &port, &connect_host);
    if (status != COMM_OK)
        return status;
    snprintf(whole, sizeof whole, strchr(host, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d", host, (int)port);
    struct tcp_store *t;
    status = tcp_new(whole, host, connect_host, port, options->timeout_ms, &t);
    if (status != COMM_OK) {
        tcp_server_stop(served.server);
        tcp_shared_leave(served.shared);
        return status;
    }
    t->server = served.server;
    t->shared = served.shared;
    status = tcp_connect(t);
    if (status == COMM_OK && options->world_size > 0)
        status = tcp_join(t, options->world_size, options->serve);
    if (status != COMM_OK) {
        tcp_close(&t->base);
        return status;
    }
    *ret_store = &t->base;
    return COMM_OK;
}

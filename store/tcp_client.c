/* The tcp store's handle: its connections, opening and closing; see tcp_store.h. */
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
#include "base/monotonic_cond.h"
#include "tcp_listen.h"
#include "tcp_server.h"
#include "tcp_shared.h"
#include "tcp_store.h"
#include "base/url.h"

enum {
    SPARES_MAX = 8,
    JOIN_POLL_MS = 5,
};

/* ---- Connections ---- */

static void conn_register(struct tcp_store *t, struct tcp_conn *c)
{
    pthread_mutex_lock(&t->lock);
    c->next_open = t->open;
    if (c->next_open)
        c->next_open->prev_open = c;
    t->open = c;
    pthread_mutex_unlock(&t->lock);
    c->look_ms = 0;
}

void tcp_close_conn(struct tcp_store *t, struct tcp_conn *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&t->lock);
    *(c->prev_open ? &c->prev_open->next_open : &t->open) = c->next_open;
    if (c->next_open)
        c->next_open->prev_open = c->prev_open;
    pthread_mutex_unlock(&t->lock);
    tcp_conn_destroy(c);
}

comm_status tcp_open_conn(struct tcp_store *t, const struct store_wait *wait, struct tcp_conn **ret_conn)
{
    comm_status status = tcp_dial(&t->peer, wait, ret_conn);
    if (status == COMM_OK)
        conn_register(t, *ret_conn);
    return status;
}

static void tcp_interrupt(comm_store *s)
{
    struct tcp_store *t = (struct tcp_store *)s;
    pthread_mutex_lock(&t->lock);
    for (struct tcp_conn *c = t->open; c; c = c->next_open)
        tcp_conn_wake(c);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* The text for a failure of a request, in the words of tcp_conn.h. */
static comm_status explain(const struct tcp_request *r, comm_status status)
{
    const struct tcp_peer *peer = &r->t->peer;
    const char *quote = r->key ? "'" : "", *blank = r->key ? " " : "", *key = r->key ? r->key : "";
    switch (status) {
    case COMM_ERR_TIMEOUT:
        return comm__fail(status, "%s%s%s%.60s%s timed out after %lld ms: the server at %s port %d has not answered",
                          r->what, blank, quote, key, quote, store_wait_ms(&r->wait), peer->host, peer->port);
    case COMM_ERR_ABORTED:
        return store_fail_closed(&r->wait);
    case COMM_ERR_PEER_LOST:
        return comm__fail_while(status, "%s on the store at %s port %d", r->what, peer->host, peer->port);
    default:
        return comm__fail_while(status, "%s", r->what);
    }
}

/* ---- Turns ---- */

/* With the lock. TIMEOUT and ABORTED come without a text. */
static comm_status take_turn(struct tcp_store *t, const struct store_wait *wait)
{
    struct timespec until = { wait->deadline_ns / 1000000000, wait->deadline_ns % 1000000000 };
    while (t->busy) {
        if (store_wait_closed(wait))
            return COMM_ERR_ABORTED;
        if (store_wait_over(wait))
            return COMM_ERR_TIMEOUT;
        if (wait->deadline_ns == DEADLINE_NEVER)
            pthread_cond_wait(&t->changed, &t->lock);
        else
            pthread_cond_timedwait(&t->changed, &t->lock, &until);
    }
    t->busy = 1;
    return COMM_OK;
}

static void end_turn(struct tcp_store *t)
{
    pthread_mutex_lock(&t->lock);
    t->busy = 0;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

comm_status tcp_begin(struct tcp_request *r, comm_store *s, const char *what, const char *key,
                      const struct store_wait *wait)
{
    struct tcp_store *t = (struct tcp_store *)s;
    *r = (struct tcp_request){ .t = t, .wait = *wait, .what = what, .key = key };
    pthread_mutex_lock(&t->lock);
    comm_status status = take_turn(t, wait);
    if (status != COMM_OK) {
        pthread_mutex_unlock(&t->lock);
        return explain(r, status);
    }
    if (!t->quick && t->spares) {
        t->quick = t->spares;
        t->spares = t->quick->next;
        t->spare_count--;
    }
    status = t->lost;
    if (status != COMM_OK)
        comm__fail(status, "%s", t->lost_text);
    pthread_mutex_unlock(&t->lock);
    if (status == COMM_OK && !t->quick) {
        status = tcp_open_conn(t, wait, &t->quick);
        if (status == COMM_ERR_ABORTED)
            store_fail_closed(wait);
        else if (status == COMM_ERR_PEER_LOST)
            tcp_lose(t);
        else if (status != COMM_OK)
            comm__fail_while(status, "%s", what);
    }
    if (status != COMM_OK)
        end_turn(t);
    r->c = t->quick;
    return status;
}

comm_status tcp_end(struct tcp_request *r, comm_status status)
{
    struct tcp_store *t = r->t;
    if (status != COMM_OK) {
        tcp_close_conn(t, t->quick);
        t->quick = NULL;
        status = explain(r, status);
        if (status == COMM_ERR_PEER_LOST)
            tcp_lose(t);
    }
    end_turn(t);
    return status;
}

void tcp_lend(struct tcp_request *r)
{
    r->t->quick = NULL;
    end_turn(r->t);
}

comm_status tcp_give_back(struct tcp_request *r, struct tcp_conn *c, comm_status status)
{
    struct tcp_store *t = r->t;
    if (c) {
        pthread_mutex_lock(&t->lock);
        if (t->spare_count < SPARES_MAX) {
            c->next = t->spares;
            t->spares = c;
            t->spare_count++;
            c = NULL;
        }
        pthread_mutex_unlock(&t->lock);
        tcp_close_conn(t, c);
    }
    return status == COMM_OK || status == COMM_IN_PROGRESS ? status : explain(r, status);
}

comm_status tcp_lose(struct tcp_store *t)
{
    pthread_mutex_lock(&t->lock);
    t->lost = COMM_ERR_PEER_LOST;
    snprintf(t->lost_text, sizeof t->lost_text, "%s", comm_last_error());
    pthread_mutex_unlock(&t->lock);
    return COMM_ERR_PEER_LOST;
}

/* ---- What the server knows ---- */

static comm_status lacks(const struct tcp_store *t, enum wire_query query)
{
    return comm__fail(COMM_ERR_UNSUPPORTED, "the server at %s port %d is a PyTorch without the query %s", t->peer.host,
                      t->peer.port, wire_query_name(query));
}

comm_status tcp_needs_append(const struct tcp_store *t)
{
    return t->dialect == WIRE_DIALECT_OLD ? lacks(t, WIRE_APPEND) : COMM_OK;
}

/* A request that shows whether the server has the feature, and changes nothing; gives how long the reply is at
 * least. */
static size_t put_probe(struct tcp_conn *c, enum tcp_feature feature)
{
    char key[64];
    size_t bytes = (size_t)snprintf(key, sizeof key, "libcomm/probe/%d/%lld", (int)getpid(), (long long)clock_now_ns());
    switch (feature) {
    case TCP_QUEUES:
        tcp_put_query(c, WIRE_QUEUE_LEN);
        wire_put_string(&c->out, key, bytes);
        return 8;
    case TCP_BARRIER:
        tcp_put_query(c, WIRE_BARRIER);
        wire_put_string(&c->out, key, bytes);
        wire_put_u64(&c->out, 1);
        tcp_put_query(c, WIRE_DELETE);
        wire_put_string(&c->out, key, bytes);
        return 1 + 8;
    default:
        tcp_put_query(c, WIRE_LIST_KEYS);
        return 8;
    }
}

/* Older servers close the connection on a query that they do not know. */
static comm_status probe(struct tcp_request *r, enum tcp_feature feature)
{
    struct tcp_store *t = r->t;
    struct tcp_conn *c;
    uint8_t reply[16];
    comm_status status = tcp_open_conn(t, &r->wait, &c);
    if (status != COMM_OK)
        return status;
    size_t bytes = put_probe(c, feature);
    status = tcp_conn_send(c, &r->wait);
    if (status == COMM_OK)
        status = tcp_conn_read(c, &r->wait, reply, bytes);
    tcp_close_conn(t, c);
    if (status != COMM_OK && status != COMM_ERR_PEER_LOST)
        return status;
    t->features[feature] = status == COMM_OK ? TCP_HAS : TCP_LACKS;
    return COMM_OK;
}

comm_status tcp_needs(struct tcp_store *t, enum wire_query query, enum tcp_feature feature,
                      const struct store_wait *wait)
{
    struct tcp_request r;
    if (t->dialect != WIRE_DIALECT_MODERN)
        return lacks(t, query);
    if (t->ordered)
        return COMM_OK;
    comm_status status = tcp_begin(&r, &t->base, wire_query_name(query), NULL, wait);
    if (status != COMM_OK)
        return status;
    if (t->features[feature] == TCP_UNKNOWN)
        status = probe(&r, feature);
    enum tcp_knowledge known = t->features[feature];
    status = tcp_end(&r, status);
    return status == COMM_OK && known == TCP_LACKS ? lacks(t, query) : status;
}

/* ---- Encoding ---- */

comm_status tcp_check_keys_fit(const char *what, const char *const *keys, size_t count)
{
    size_t bytes = 9;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(keys[i]) + 9;
    if (bytes > WIRE_REQUEST_MAX)
        return comm__fail(COMM_ERR_INVALID, "%s: the names of %zu keys take %zu B; a request has at most %zu B", what,
                          count, bytes, WIRE_REQUEST_MAX);
    return COMM_OK;
}

void tcp_put_query(struct tcp_conn *c, enum wire_query query)
{
    wire_put_query(&c->out, c->dialect, query);
}

void tcp_put_key(struct tcp_conn *c, const char *key)
{
    size_t bytes = strlen(key);
    wire_put_u64(&c->out, bytes + 1);
    wire_put_u8(&c->out, '/');
    wire_put_bytes(&c->out, key, bytes);
}

void tcp_put_keyed(struct tcp_conn *c, enum wire_query query, const char *key)
{
    tcp_put_query(c, query);
    tcp_put_key(c, key);
}

void tcp_put_listed(struct tcp_conn *c, enum wire_query query, const char *const *keys, size_t count)
{
    tcp_put_query(c, query);
    wire_put_u64(&c->out, count);
    for (size_t i = 0; i < count; i++)
        tcp_put_key(c, keys[i]);
}

/* ---- Life ---- */

static void tcp_close(comm_store *s)
{
    struct tcp_store *t = (struct tcp_store *)s;
    tcp_close_conn(t, t->quick);
    while (t->spares) {
        struct tcp_conn *c = t->spares;
        t->spares = c->next;
        tcp_close_conn(t, c);
    }
    tcp_server_stop(t->server);
    tcp_shared_leave(t->shared);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t->connect_host);
    store_finish(s);
    free(t);
}

static comm_status tcp_clone(comm_store *s, const struct store_wait *wait, comm_store **ret_store);

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
    .multi_get = tcp_multi_get,
    .multi_set = tcp_multi_set,
    .barrier = tcp_barrier,
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
    monotonic_cond_init(&t->changed);
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

static comm_status tcp_connect(struct tcp_store *t, const struct store_wait *wait)
{
    comm_status status = tcp_open_conn(t, wait, &t->quick);
    if (status == COMM_ERR_ABORTED)
        return store_fail_closed(wait);
    if (status == COMM_OK) {
        t->dialect = t->quick->dialect;
        t->ordered = t->quick->ordered;
    }
    return status;
}

static comm_status tcp_clone(comm_store *s, const struct store_wait *wait, comm_store **ret_store)
{
    struct tcp_store *t = (struct tcp_store *)s, *other;
    comm_status status = tcp_new(s->url, s->host, t->connect_host, s->port, atomic_load(&s->timeout_ms), &other);
    if (status != COMM_OK)
        return status;
    status = tcp_connect(other, wait);
    if (status != COMM_OK) {
        tcp_close(&other->base);
        return status;
    }
    *ret_store = &other->base;
    return COMM_OK;
}

/* Count ourselves in, as PyTorch's clients do. With `serve` the server is in this process, so clients are what is
 * missing, even if the limit passes in a query. */
static comm_status tcp_join(struct tcp_store *t, int32_t world_size, int serve, const struct store_wait *wait)
{
    int64_t joined = 0, now_joined = 0;
    comm_status status = tcp_join_add(&t->base, 1, wait, &joined);
    while (status == COMM_OK && serve && joined < world_size) {
        struct timespec pause = { 0, JOIN_POLL_MS * 1000000 };
        nanosleep(&pause, NULL);
        status = store_wait_over(wait) ? COMM_ERR_TIMEOUT : tcp_join_add(&t->base, 0, wait, &now_joined);
        if (status == COMM_OK)
            joined = now_joined;
        else if (status == COMM_ERR_TIMEOUT)
            comm__fail(status, "opening %s timed out after %lld ms: %lld of %d clients have joined", t->base.url,
                       store_wait_ms(wait), (long long)joined, (int)world_size);
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
        return comm__fail(COMM_ERR_INVALID, "%s: port 0 is for the server only; give the port that it has published",
                          url);
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
    struct store_wait wait = store_wait_of(&t->base, 0);
    status = tcp_connect(t, &wait);
    if (status == COMM_OK && options->world_size > 0)
        status = tcp_join(t, options->world_size, options->serve, &wait);
    if (status != COMM_OK) {
        tcp_close(&t->base);
        return status;
    }
    *ret_store = &t->base;
    return COMM_OK;
}

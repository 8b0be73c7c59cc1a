/* The tcp store from inside: its connections, and how a request is made on one.
 *   tcp_client.c    connections, opening and closing the store
 *   tcp_requests.c  calls that are answered at once
 *   tcp_wait.c      calls that may wait
 *   tcp_dial.c      finding the server and greeting it;  tcp_conn.c  bytes with a deadline
 *
 * Quick requests share one connection, `quick`, and have their turn on it one after the other, each for one round trip.
 * A call that has to wait takes that connection away with it; the next call gets a spare or a new one. So one thread
 * needs one connection, and a waiting thread blocks no other. A connection is only taken away after the server has
 * answered on it: what was set before is then in force, whichever connection is used next.
 *
 * A call's time limit holds for all that it does: for its turn, for a new connection and the greeting on it, for
 * request and reply. When the time of a waiting call is over, it asks the server to cancel, within store_grace: the
 * answer also shows whether the keys were not there or the server does not answer.
 *
 * Every user key has "/" in front on the wire, as PyTorch's clients do it; "init/", the count of the clients that
 * joined, has none. */
#ifndef COMM_STORE_TCP_STORE_H
#define COMM_STORE_TCP_STORE_H

#include <pthread.h>

#include "store.h"
#include "tcp_conn.h"

enum {
    TCP_CAREFUL_BYTES = 16 << 10, /* of those whose replies are long, to servers that do not read while we do not */
    TCP_BATCH_BYTES = 256 << 10, /* of requests that are sent before their replies are read; a server reads that much
                                    while its replies are not read */
};

/* What a PyTorch server of the modern dialect may have or lack; ours has all. */
enum tcp_feature { TCP_QUEUES, TCP_LIST_KEYS, TCP_BARRIER, TCP_FEATURE_COUNT };
enum tcp_knowledge { TCP_UNKNOWN, TCP_HAS, TCP_LACKS };

struct tcp_store {
    comm_store base;
    struct tcp_server *server; /* NULL unless serving alone */
    struct tcp_shared *shared; /* NULL unless serving with others */
    char *connect_host;        /* where clients of this process find the server */
    struct tcp_peer peer;
    int ordered; /* as in struct tcp_conn */
    enum wire_dialect dialect;

    pthread_mutex_t lock; /* guards what follows; never held for long */
    pthread_cond_t changed; /* `busy` has become 0, or a handle is being closed */
    int busy;               /* a thread has its turn: `quick` and `features` are that thread's */
    struct tcp_conn *quick;
    struct tcp_conn *spares;
    int spare_count;
    enum tcp_knowledge features[TCP_FEATURE_COUNT];
    comm_status lost; /* the server has gone: this status and text for ever */
    char lost_text[256];
    struct tcp_conn *open; /* all connections, for interrupt */
};

/* ---- Connections and requests (tcp_client.c) ---- */

/* One more connection to the server, with tcp_dial's errors. In one's turn. */
comm_status tcp_open_conn(struct tcp_store *t, const struct store_wait *wait, struct tcp_conn **ret_conn);
void tcp_close_conn(struct tcp_store *t, struct tcp_conn *c); /* NULL is fine */

/* One quick request, from tcp_begin to tcp_end; it is our turn between. What is sent must be answered, or have no
 * answer, by the end: after a failure the connection is closed. */
struct tcp_request {
    struct tcp_store *t;
    struct tcp_conn *c;
    struct store_wait wait;
    const char *what, *key; /* for texts; key may be NULL */
};
comm_status tcp_begin(struct tcp_request *r, comm_store *s, const char *what, const char *key,
                      const struct store_wait *wait);
comm_status tcp_end(struct tcp_request *r, comm_status status);

/* Instead of tcp_end: take the connection away, to wait on it; others have their turn then. Give it back, or NULL for
 * one that has been closed, with how the wait ended. */
void tcp_lend(struct tcp_request *r);
comm_status tcp_give_back(struct tcp_request *r, struct tcp_conn *c, comm_status status);

/* The server has gone, with the last error's text: all later calls say so at once. */
comm_status tcp_lose(struct tcp_store *t);

/* INVALID if a list of these keys is longer than what servers take for a request. */
comm_status tcp_check_keys_fit(const char *what, const char *const *keys, size_t count);

/* UNSUPPORTED if the server does not know `query`. Asks a PyTorch server, once, on a connection that it may close. */
comm_status tcp_needs(struct tcp_store *t, enum wire_query query, enum tcp_feature feature,
                      const struct store_wait *wait);
comm_status tcp_needs_append(const struct tcp_store *t);

/* ---- Encoding ---- */

void tcp_put_query(struct tcp_conn *c, enum wire_query query);
void tcp_put_key(struct tcp_conn *c, const char *key);
void tcp_put_keyed(struct tcp_conn *c, enum wire_query query, const char *key);
void tcp_put_listed(struct tcp_conn *c, enum wire_query query, const char *const *keys, size_t count);

/* ---- Calls that are answered at once (tcp_requests.c) ---- */

comm_status tcp_set(comm_store *s, const char *key, const void *data, size_t bytes, const struct store_wait *wait);
comm_status tcp_append(comm_store *s, const char *key, const void *data, size_t bytes, const struct store_wait *wait);
comm_status tcp_add(comm_store *s, const char *key, int64_t amount, const struct store_wait *wait, int64_t *ret_value);
comm_status tcp_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                            const void *desired, size_t desired_bytes, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes);
comm_status tcp_check(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                      int32_t *ret_all);
comm_status tcp_remove(comm_store *s, const char *key, const struct store_wait *wait, int32_t *ret_existed);
comm_status tcp_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count);
comm_status tcp_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count);
comm_status tcp_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                          const size_t *bytes, const struct store_wait *wait);
comm_status tcp_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                           const struct store_wait *wait);
comm_status tcp_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count);
/* Count ourselves in (amount 1), or see how many have been (0). */
comm_status tcp_join_add(comm_store *s, int64_t amount, const struct store_wait *wait, int64_t *ret_joined);

/* Within a request: the value of `key`, or NULL if it is not there. Gives *ret_data (free). */
comm_status tcp_ask_value(struct tcp_request *r, const char *key, void **ret_data, size_t *ret_bytes);
/* Of keys with empty values as GET gave them (bytes[i] is 0): the values that they have. data[i] becomes NULL if there
 * is no such key: a server gives an empty value then, too. Frees what it replaces. */
comm_status tcp_ask_empty(struct tcp_request *r, const char *const *keys, size_t count, void **data, size_t *bytes);
/* Which of the keys are there: ready[i] is WIRE_READY or not. */
comm_status tcp_ask_each(struct tcp_request *r, const char *const *keys, size_t count, uint8_t *ready);
/* INVALID, if a server refuses to add `amount` to this value. */
comm_status tcp_judge_number(const char *what, const char *key, const char *text, int64_t amount);

/* ---- Calls that may wait (tcp_wait.c) ---- */

comm_status tcp_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data, size_t *ret_bytes);
comm_status tcp_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait);
comm_status tcp_multi_get(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                          void **data, size_t *bytes);
comm_status tcp_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                          void **ret_data, size_t *ret_bytes);
comm_status tcp_barrier(comm_store *s, const char *key, int32_t world_size, const struct store_wait *wait);

#endif

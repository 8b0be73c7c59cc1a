/* The tcp store's calls that may wait; see tcp_store.h.
 *
 * A waiting call has a connection to itself. When its time is up, it cancels on that connection, and reads what the
 * server answers: so no reply is ever left behind for the next request. A server of the old dialect cannot cancel; the
 * connection is closed then. A server that does not answer in store_grace is what the error is about, not the keys.
 *
 * Inside, COMM_IN_PROGRESS means that the time is over and the server has said that it still waits; COMM_ERR_TIMEOUT
 * that it has said nothing. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "tcp_store.h"

enum {
    MISSING_NAMED_MAX = 64,        /* keys that a timeout names, at most */
    MULTI_GET_BYTES = 16 << 20,    /* of one MULTI_GET: our server limits a request */
    AGAIN_NS = 5000000,            /* before a get that found no value after its wait looks again */
};

/* What goes behind a WAIT: nothing, GET or QUEUE_POP of the same key. */
enum tail { TAIL_NONE, TAIL_GET, TAIL_POP };

struct answer {
    void *data; /* malloc; NULL if there is none */
    size_t bytes;
};

static void put_tail(struct tcp_conn *c, enum tail tail, const char *key)
{
    if (tail != TAIL_NONE)
        tcp_put_keyed(c, tail == TAIL_GET ? WIRE_GET : WIRE_QUEUE_POP, key);
}

static comm_status read_tail(struct tcp_conn *c, const struct store_wait *wait, enum tail tail, struct answer *answer)
{
    if (tail == TAIL_NONE)
        return COMM_OK;
    uint64_t length = 1;
    comm_status status = tail == TAIL_POP ? tcp_conn_read_u64(c, wait, &length) : COMM_OK;
    if (status == COMM_OK && length > 0)
        status = tcp_conn_read_value(c, wait, &answer->data, &answer->bytes);
    return status;
}

/* The time is up: cancel. OK if the wake-up has crossed: the answer is good then. */
static comm_status cancel(struct tcp_conn *c, const struct store_wait *wait, enum tail tail_sent, struct answer *answer)
{
    struct store_wait grace = store_grace(wait);
    uint8_t first = 0, second = WIRE_WAIT_CANCELED;
    tcp_put_query(c, WIRE_CANCEL_WAIT);
    comm_status status = tcp_conn_send(c, &grace);
    if (status == COMM_OK)
        status = tcp_conn_read_u8(c, &grace, &first);
    if (status == COMM_OK)
        status = read_tail(c, &grace, tail_sent, answer);
    int came = first == WIRE_STOP_WAITING;
    if (status == COMM_OK && came)
        status = tcp_conn_read_u8(c, &grace, &second);
    if (status == COMM_OK && (first > WIRE_WAIT_CANCELED || second != WIRE_WAIT_CANCELED))
        return comm__fail(COMM_ERR_PROTOCOL, "the server answered CANCEL_WAIT with %d %d", first, second);
    if (status == COMM_OK && !came && answer->data && tail_sent == TAIL_GET) {
        free(answer->data); /* an empty value, of a key that is not there */
        answer->data = NULL;
    }
    return status == COMM_OK && !came && !answer->data ? COMM_IN_PROGRESS : status;
}

/* Read what a WAIT or a BARRIER answers, and its tail. *ret_keep: the connection is in step. */
static comm_status await(struct tcp_conn *c, const struct store_wait *wait, enum tail tail, const char *key,
                         struct answer *answer, int *ret_keep)
{
    enum tail sent = c->ordered ? tail : TAIL_NONE;
    uint8_t reply = WIRE_STOP_WAITING;
    *ret_keep = 0;
    put_tail(c, sent, key);
    comm_status status = tcp_conn_send(c, wait);
    if (status != COMM_OK)
        return status;
    status = tcp_conn_read_u8(c, wait, &reply);
    if (status == COMM_OK && reply != WIRE_STOP_WAITING)
        return comm__fail(COMM_ERR_PROTOCOL, "the server answered a WAIT with %d", reply);
    if (status == COMM_OK)
        status = read_tail(c, wait, sent, answer);
    else if (status == COMM_ERR_TIMEOUT && c->dialect != WIRE_DIALECT_OLD)
        status = cancel(c, wait, sent, answer);
    if (status == COMM_OK && sent != tail) {
        struct store_wait grace = store_grace(wait);
        put_tail(c, tail, key);
        status = tcp_conn_send(c, &grace);
        if (status == COMM_OK)
            status = read_tail(c, &grace, tail, answer);
    }
    *ret_keep = status == COMM_OK || status == COMM_IN_PROGRESS;
    return status;
}

/* The WAIT or BARRIER has been put into the connection of `r`, which this ends: send it, and wait. */
static comm_status wait_on(struct tcp_request *r, enum tail tail, const char *key, struct answer *answer)
{
    struct tcp_conn *c = r->c;
    int keep = 0;
    tcp_lend(r);
    comm_status status = await(c, &r->wait, tail, key, answer, &keep);
    if (tail == TAIL_POP && !c->ordered)
        keep = 0; /* PyTorch's server goes on counting this connection as one that waits for the queue */
    if (status == COMM_ERR_TIMEOUT && c->dialect == WIRE_DIALECT_OLD)
        status = COMM_IN_PROGRESS; /* it cannot say; the caller, which names the missing keys, finds out */
    if (!keep) {
        tcp_close_conn(r->t, c);
        c = NULL;
    }
    return tcp_give_back(r, c, status);
}

/* TIMEOUT, with those of the keys that are not there. */
static comm_status fail_missing(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    const char *missing[MISSING_NAMED_MAX];
    size_t missing_count = 0;
    struct tcp_request r;
    struct store_wait grace = store_grace(wait);
    int unsure = ((struct tcp_store *)s)->dialect == WIRE_DIALECT_OLD; /* whether the server answers */
    uint8_t *ready = count > 1 || unsure ? malloc(count) : NULL;
    comm_status status = ready ? tcp_begin(&r, s, "wait", keys[0], &grace) : COMM_ERR_NO_MEMORY;
    if (status == COMM_OK)
        status = tcp_end(&r, tcp_ask_each(&r, keys, count, ready));
    if (status != COMM_OK && unsure) {
        free(ready);
        return status;
    }
    if (status == COMM_OK)
        for (size_t i = 0; i < count && missing_count < MISSING_NAMED_MAX; i++)
            if (ready[i] != WIRE_READY)
                missing[missing_count++] = keys[i];
    free(ready);
    if (missing_count == 0)
        return store_fail_timeout(wait, keys, count < MISSING_NAMED_MAX ? count : MISSING_NAMED_MAX, NULL);
    return store_fail_timeout(wait, missing, missing_count, NULL);
}

static comm_status wait_for_keys(comm_store *s, const char *what, const char *const *keys, size_t count,
                                 const struct store_wait *wait, enum tail tail, struct answer *answer)
{
    struct tcp_request r;
    comm_status status = tcp_check_keys_fit(what, keys, count);
    if (status == COMM_OK)
        status = tcp_begin(&r, s, what, keys[0], wait);
    if (status != COMM_OK)
        return status;
    tcp_put_listed(r.c, WIRE_WAIT, keys, count);
    status = wait_on(&r, tail, keys[0], answer);
    if (status == COMM_IN_PROGRESS)
        return tail == TAIL_POP ? store_fail_queue_timeout(wait, keys[0], NULL) : fail_missing(s, keys, count, wait);
    return status == COMM_ERR_PEER_LOST ? tcp_lose((struct tcp_store *)s) : status;
}

/* ---- The calls ---- */

/* An empty value may stand for none: another client has deleted the key since the wait ended, or a queue of that name
 * ended it. OK without data then, after a pause, for the caller to wait again. */
static comm_status look_again(comm_store *s, const char *key, const struct store_wait *wait, struct answer *answer)
{
    struct tcp_request r;
    struct store_wait grace = store_grace(wait);
    comm_status status = tcp_begin(&r, s, "get", key, &grace);
    if (status == COMM_OK)
        status = tcp_end(&r, tcp_ask_empty(&r, &key, 1, &answer->data, &answer->bytes));
    if (status != COMM_OK || answer->data)
        return status;
    if (store_wait_closed(wait))
        return store_fail_closed(wait);
    if (store_wait_over(wait))
        return store_fail_timeout(wait, &key, 1, NULL);
    nanosleep(&(struct timespec){ 0, AGAIN_NS }, NULL);
    return COMM_OK;
}

comm_status tcp_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data, size_t *ret_bytes)
{
    struct answer answer = { NULL, 0 };
    comm_status status;
    do {
        status = wait_for_keys(s, "get", &key, 1, wait, TAIL_GET, &answer);
        if (status == COMM_OK && answer.bytes == 0)
            status = look_again(s, key, wait, &answer);
    } while (status == COMM_OK && !answer.data);
    if (status != COMM_OK) {
        free(answer.data);
        return status;
    }
    *ret_data = answer.data;
    *ret_bytes = answer.bytes;
    return COMM_OK;
}

comm_status tcp_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    struct answer answer = { NULL, 0 };
    return count == 0 ? COMM_OK : wait_for_keys(s, "wait", keys, count, wait, TAIL_NONE, &answer);
}

/* One MULTI_GET, or as many GETs as an old server needs, for the first few of the keys. */
static comm_status get_some(struct tcp_request *r, const char *const *keys, size_t count, void **data, size_t *bytes,
                            size_t *got)
{
    size_t limit = r->c->ordered ? MULTI_GET_BYTES : TCP_CAREFUL_BYTES, n = 0;
    for (size_t total = 0; n < count && (n == 0 || total + strlen(keys[n]) + 10 <= limit); n++)
        total += strlen(keys[n]) + 10;
    if (r->c->dialect != WIRE_DIALECT_OLD)
        tcp_put_listed(r->c, WIRE_MULTI_GET, keys, n);
    for (size_t i = 0; i < n && r->c->dialect == WIRE_DIALECT_OLD; i++)
        tcp_put_keyed(r->c, WIRE_GET, keys[i]);
    comm_status status = tcp_conn_send(r->c, &r->wait);
    for (size_t i = 0; i < n && status == COMM_OK; i++) {
        status = tcp_conn_read_value(r->c, &r->wait, &data[i], &bytes[i]);
        *got += status == COMM_OK;
    }
    return status;
}

comm_status tcp_multi_get(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                          void **data, size_t *bytes)
{
    struct tcp_request r;
    size_t got = 0;
    comm_status status = tcp_wait(s, keys, count, wait);
    if (status == COMM_OK && count > 0)
        status = tcp_begin(&r, s, "multi_get", keys[0], wait);
    if (status != COMM_OK || count == 0)
        return status;
    while (status == COMM_OK && got < count)
        status = get_some(&r, keys + got, count - got, data + got, bytes + got, &got);
    size_t empty = 0;
    while (status == COMM_OK && empty < count && bytes[empty] > 0)
        empty++;
    if (status == COMM_OK && empty < count)
        status = tcp_ask_empty(&r, keys, count, data, bytes);
    status = tcp_end(&r, status);
    for (size_t i = empty; i < count && status == COMM_OK; i++)
        if (!data[i])
            status = tcp_get(s, keys[i], wait, &data[i], &bytes[i]);
    while (status != COMM_OK && got > 0) {
        free(data[--got]);
        data[got] = NULL;
    }
    return status;
}

static comm_status pop_at_once(comm_store *s, const char *key, const struct store_wait *wait, struct answer *answer)
{
    struct tcp_request r;
    comm_status status = tcp_begin(&r, s, "queue_pop", key, wait);
    if (status != COMM_OK)
        return status;
    put_tail(r.c, TAIL_POP, key);
    status = tcp_conn_send(r.c, &r.wait);
    if (status == COMM_OK)
        status = read_tail(r.c, &r.wait, TAIL_POP, answer);
    status = tcp_end(&r, status);
    if (status == COMM_OK && !answer->data)
        return comm__fail(COMM_ERR_NOT_FOUND, "queue_pop: the queue '%s' is empty", key);
    return status;
}

comm_status tcp_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                          void **ret_data, size_t *ret_bytes)
{
    struct answer answer = { NULL, 0 };
    comm_status status = tcp_needs((struct tcp_store *)s, WIRE_QUEUE_POP, TCP_QUEUES, wait);
    if (status == COMM_OK && !may_wait)
        status = pop_at_once(s, key, wait, &answer);
    while (status == COMM_OK && !answer.data) /* another client may have been quicker: wait again */
        status = wait_for_keys(s, "queue_pop", &key, 1, wait, TAIL_POP, &answer);
    if (status == COMM_OK) {
        *ret_data = answer.data;
        *ret_bytes = answer.bytes;
    } else {
        free(answer.data);
    }
    return status;
}

/* The server closed the connection in answer to a BARRIER: because the key holds something else than a count? */
static comm_status judge_barrier(comm_store *s, const char *key, const struct store_wait *wait)
{
    struct tcp_request r;
    void *data = NULL;
    size_t bytes;
    comm_status status = tcp_begin(&r, s, "barrier", key, wait);
    if (status == COMM_OK)
        status = tcp_end(&r, tcp_ask_value(&r, key, &data, &bytes));
    if (status == COMM_OK && data)
        status = tcp_judge_number("barrier", key, data, 1);
    free(data);
    if (status == COMM_OK)
        status = comm__fail(COMM_ERR_PEER_LOST, "the server closed the connection in answer to BARRIER");
    return status == COMM_ERR_INVALID ? status : tcp_lose((struct tcp_store *)s);
}

comm_status tcp_barrier(comm_store *s, const char *key, int32_t world_size, const struct store_wait *wait)
{
    struct tcp_request r;
    struct answer answer = { NULL, 0 };
    struct store_wait grace = store_grace(wait);
    int64_t came = -1;
    comm_status status = tcp_needs((struct tcp_store *)s, WIRE_BARRIER, TCP_BARRIER, wait);
    if (status == COMM_OK)
        status = tcp_begin(&r, s, "barrier", key, wait);
    if (status != COMM_OK)
        return status;
    tcp_put_keyed(r.c, WIRE_BARRIER, key);
    wire_put_u64(&r.c->out, (uint64_t)world_size);
    status = wait_on(&r, TAIL_NONE, key, &answer);
    if (status == COMM_ERR_PEER_LOST)
        return judge_barrier(s, key, wait);
    if (status != COMM_IN_PROGRESS)
        return status;
    status = tcp_add(s, key, 0, &grace, &came);
    return status == COMM_OK ? store_fail_barrier(wait, key, came, world_size) : status;
}

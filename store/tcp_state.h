/* What a tcp store's server knows: the table, and which client waits for which key. It executes requests and says which
 * clients have been woken; sockets belong to tcp_server.c. Owned by the server's thread; nothing here blocks. */
#ifndef COMM_STORE_TCP_STATE_H
#define COMM_STORE_TCP_STATE_H

#include "wire.h"

#include <comm/comm.h>

struct state;

/* One place in the queue of clients that wait for a key. */
struct state_waiter {
    struct state_waiter *prev, *next;
    struct state_awaited *awaited; /* NULL when it no longer waits */
    struct state_client *client;
    int64_t at_least; /* BARRIER: the number that the key must hold; 0 for a WAIT */
};

/* Embedded in each connection; zeroed memory is a fresh one. */
struct state_client {
    struct state_waiter one; /* the usual case: one key */
    struct state_waiter *waiters;
    size_t waiter_count;
    size_t missing; /* keys; while > 0 the client waits, and no other request of it may be executed */
    struct state_client *ready_prev, *ready_next;
    int ready;        /* woken, and not yet taken by state_take_ready */
    size_t values_sent; /* of a MULTI_GET whose reply is too long for one turn */
    int ordered;      /* it knows what STATE_ORDERED_KEY says, so a QUEUE_POP of it comes together with its WAIT */
    void *queue_key;  /* a QUEUE_PUSH released this client, and it has not popped yet */
    size_t queue_key_bytes;
};

/* A CHECK of this one key is answered READY, though no other query sees the key. It tells our client that this
 * server keeps the order of requests behind a WAIT, so that it may send WAIT and GET in one go; PyTorch's servers
 * answer NOT_READY. PyTorch's clients put "/" before every key, so none can mean this one. */
#define STATE_ORDERED_KEY "libcomm/ordered"

comm_status state_create(struct state **ret_state);
void state_destroy(struct state *state); /* after every client has left; NULL is fine */

/* Execute; the reply, if there is one yet, goes to the end of `reply`. COMM_IN_PROGRESS: the client now waits. An error
 * (its text says what the client did) means that the connection must be closed: the protocol knows no error replies.
 *
 * A MULTI_GET may ask for more than should be in memory at once, or hold up the others: if client->values_sent is not 0
 * afterwards, execute the same request again when the reply so far has been sent. */
comm_status state_execute(struct state *state, struct state_client *client, const struct wire_request *request,
                          struct wire_buffer *reply);

/* The next client whose wait is over, or NULL. It is owed one byte, WIRE_STOP_WAITING. */
struct state_client *state_take_ready(struct state *state);

/* The client of state_take_ready has its byte, and what it sent behind the WAIT has been executed. */
void state_told(struct state *state, struct state_client *client);

/* Stop waiting (CANCEL_WAIT). */
void state_cancel(struct state *state, struct state_client *client);

/* The connection is gone. */
void state_leave(struct state *state, struct state_client *client);

#endif

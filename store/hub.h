/* What a tcp store's server knows: the table, and which client waits for which key. It executes requests and says which
 * clients have been woken; sockets are tcp_server.c's affair. Owned by the server's thread; nothing here blocks. */
#ifndef COMM_STORE_HUB_H
#define COMM_STORE_HUB_H

#include "wire.h"

#include <comm/comm.h>

struct hub;

/* One place in the queue of clients that wait for a key. */
struct hub_waiter {
    struct hub_waiter *prev, *next;
    struct hub_awaited *awaited; /* NULL when it no longer waits */
    struct hub_client *client;
    int64_t at_least; /* BARRIER: the number that the key must hold; 0 for a WAIT */
};

/* Embedded in each connection; zeroed memory is a fresh one. */
struct hub_client {
    struct hub_waiter one; /* the usual case: one key */
    struct hub_waiter *waiters;
    size_t waiter_count;
    size_t missing; /* keys; while > 0 the client waits, and no other request of it may be executed */
    struct hub_client *ready_prev, *ready_next;
    int ready;        /* woken, and not yet taken by hub_take_ready */
    size_t values_sent; /* of a MULTI_GET whose reply is too long for one turn */
    void *queue_key;  /* a QUEUE_PUSH released this client, and it has not popped yet */
    size_t queue_key_bytes;
};

/* A CHECK of this one key is answered READY, though no other query sees the key. It tells our client that this
 * server keeps the order of requests behind a WAIT, so that it may send WAIT and GET in one go; PyTorch's servers
 * answer NOT_READY. PyTorch's clients put "/" before every key, so none can mean this one. */
#define HUB_ORDERED_KEY "libcomm/ordered"

comm_status hub_create(struct hub **ret_hub);
void hub_destroy(struct hub *hub); /* after every client has left; NULL is fine */

/* Execute; the reply, if there is one yet, goes to the end of `reply`. COMM_IN_PROGRESS: the client now waits. An error
 * (its text says what the client did) means that the connection must be closed: the protocol knows no error replies.
 *
 * A MULTI_GET may ask for more than should be in memory at once, or hold up the others: if client->values_sent is not 0
 * afterwards, execute the same request again when the reply so far has been sent. */
comm_status hub_execute(struct hub *hub, struct hub_client *client, const struct wire_request *request,
                        struct wire_buffer *reply);

/* The next client whose wait is over, or NULL. It is owed one byte, WIRE_STOP_WAITING. */
struct hub_client *hub_take_ready(struct hub *hub);

/* Stop waiting (CANCEL_WAIT). */
void hub_cancel(struct hub *hub, struct hub_client *client);

/* The connection is gone. */
void hub_leave(struct hub *hub, struct hub_client *client);

#endif

/* A port is this rank's end of what connects it with one peer. A carrier of frames (a TCP link, memory shared with the
 * peer, the simulator) embeds a struct port and fills in port_ops; messages, groups and errors know nothing else of it.
 *
 * Sending calls nothing back: `send` takes what it can and queues the rest. What was sent and what has come is told
 * through port_events, and only by the driver (progress.c); so no operation is told anything while it is in the middle
 * of sending.
 *
 * A port that fails only says so (port_lose). Groups are told at the end of the turn (ending.c), so that no operation
 * is completed while code further up the stack is still sending for it. */
#ifndef COMM_EXEC_PORT_H
#define COMM_EXEC_PORT_H

#include <assert.h>
#include <comm/comm.h>
#include <stddef.h>
#include <stdint.h>

#include "base/likely.h"
#include "frame.h"
#include "sink.h"

enum {
    PORT_CREDIT_WINDOW = 1 << 20, /* bytes that a peer may send before they are asked for: bounds memory to 1 MiB a
                                   * peer */
    PORT_FRAME_COST = 64,         /* what an eager frame costs besides its payload */
};

struct matching;
struct port;

enum port_state {
    PORT_IDLE,    /* never needed yet */
    PORT_OPENING,
    PORT_UP,
    PORT_LEFT,    /* the peer has sent BYE */
    PORT_LOST,
};

/* What has become of a message of an op that the carrier has begun at once. */
enum port_begun {
    PORT_NOT_OFFERED, /* it was sent in another way */
    PORT_OFFERED,     /* and perhaps read; or not, and never will be, as the peer has gone: the port is lost or left */
    PORT_READ,        /* and the offer is no more, as the peer has gone since */
};

/* What a port can do. */
struct port_ops {
    /* Begin to open it; called when it is idle. */
    void (*open)(struct port *p);
    /* Put a frame on its way. Returns 1 if it was sent already; else 0, and events->sent is told of the message when
     * the rest is, unless it is NULL. The payload must stay until then. Fills in h->credit. */
    int (*send)(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m);
    /* Send this RTS. A peer that can read the message in this rank's memory may do so as soon as it knows where it
     * goes: then 1, and events->sent is told when it has. NULL: no way. */
    int (*offer)(struct port *p, struct frame *h, struct message *m);
    /* What has become of this message, of an op that the carrier has begun at once? If it is OFFERED, events->sent will
     * be told. With `offer`. */
    enum port_begun (*adopt)(struct port *p, struct message *m);
    /* The message of that RTS (port->offer) is to be read now: it will come as a DATA frame does. */
    void (*accept)(struct port *p, uint32_t offer);
    /* A frame with a text, which is copied. With `is_reply` it answers a frame of the peer's: bounded, should the peer
     * only ask. */
    void (*send_text)(struct port *p, struct frame *h, const char *text, int is_reply);
    /* Give back credit in a frame of its own, if no other frame is due that will carry it. */
    void (*give_credit)(struct port *p);
    /* Take in frames that only give back credit, if they are in front, and if that is better than to announce messages:
     * nothing is told to operations. For a rank that only sends, and so reads nothing. NULL: no way. */
    void (*take_credit)(struct port *p);
    /* Take in what has come; 1 if something has. For the driver only. */
    int (*read)(struct port *p);
    /* What it has kept (sink.h) has been read: it need not any longer. NULL: it keeps nothing. */
    void (*let_go)(struct port *p, struct kept *kept);
    /* The messages of this owner are over: their memory must not be read or written any more. */
    void (*forget)(struct port *p, const void *owner);
    /* It may be broken: take in what the peer said before it went. If it is lost or left, drop what is queued and
     * close. */
    void (*sweep)(struct port *p);
    /* What keeps it from opening, or, once it is up, the peer's host from answering; "" if nothing is known. */
    void (*describe_trouble)(const struct port *p, char *text, size_t capacity);
    /* Fill in `where`, if that can be known at once: of a peer that was never talked to, for errors. NULL: no way. */
    void (*find_place)(struct port *p);
};

/* What a port reports, and to whom. */
struct port_events {
    /* A message begins: EAGER or DATA. Says in p->sink where its payload goes. */
    void (*begins)(struct port *p, const struct frame *h);
    /* The payload that p->sink was for is complete. */
    void (*complete)(struct port *p, const struct frame *h);
    /* Any other frame, with its text if it has one. */
    void (*frame)(struct port *p, const struct frame *h, const char *text);
    /* All of a message that was queued is sent. */
    void (*sent)(struct message *m);
};

/* All ports of one process in one world. */
struct port_table {
    int32_t rank, size;     /* in the world */
    const struct port_events *events;
    struct port **at;       /* [size], by world rank; this rank's own is never opened */
    struct port **active;   /* [size]: ports that something is awaited from */
    int32_t active_count;
    int lost_pending;       /* some port has failed and its groups must be told */
    int closing;            /* 1: no new connections, but those begun for what was accepted go on; 2: nothing does */
    uint8_t in_round;       /* the engine goes through rounds: nothing may be told to operations now, which is
                             * asserted */
    char host_name[64];
    uint8_t *bounce;        /* SINK_BOUNCE_BYTES */
    struct matching *matching; /* match.h; ports do not look */
};

/* Messages, oldest first. */
struct message_list {
    struct message *head, **tail;
};

struct port {
    const struct port_ops *ops;
    struct port_table *table;
    int32_t peer;           /* world rank */
    uint8_t state;          /* enum port_state */
    uint8_t heard;          /* the peer has said something: it knows of this connection */
    uint8_t loss_told;      /* all groups have been told that this peer is lost */
    int32_t said_lost_by;   /* the world rank, plus 1, that has said that this peer is lost; 0: none */
    int32_t active_index;   /* in table->active while interest > 0, else -1 */
    uint32_t interest;      /* receives and CTS frames awaited from the peer, and 1 for queued frames */
    int64_t credit;         /* eager bytes that may still be sent */
    int64_t eager_held;     /* eager bytes received and not given back: more than the window breaks the protocol */
    uint32_t credit_owed;   /* eager bytes consumed here and not given back yet */
    uint32_t credit_step;   /* so many are given back in a frame of their own */
    uint32_t announced;     /* point-to-point sends that wait for the peer's CTS */
    struct message_list held; /* sends that wait until they may be announced, or go at once; later ones must not pass
                               * them */
    size_t unexpected_count;
    uint64_t closed_told;   /* the latest group of which the peer was told that it is closed here */
    struct frame in;        /* the frame whose payload is coming; type 0: none */
    uint32_t offer;         /* of the RTS that is told of: for port_ops.accept; 0: none */
    struct sink sink;       /* where that goes */
    char where[80];         /* "node-b 10.0.0.7:40213", for errors */
    comm_status lost_status;
    char *lost_text;
};

/* 0 without memory; what there is by then is freed by finish. */
int port_table_init(struct port_table *t, int32_t rank, int32_t size, const struct port_events *events);
void port_table_finish(struct port_table *t);
void port_init(struct port *p, const struct port_ops *ops, struct port_table *t, int32_t peer);
void port_finish(struct port *p);
/* The peer with its address, where there is no group: "rank 3 (node-b 10.0.0.7:40213)". Lends one of the buffers of
 * say_rank. */
const char *port_text(const struct port *p);
/* Make sure that it is up or on its way; or that its loss is noticed at the end of the turn. */
void port_want(struct port *p);
/* The text follows the peer's name: "closed the connection". Each group that is told puts the name in its own terms. */
void port_lose(struct port *p, comm_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The peer has sent BYE. */
void port_left(struct port *p);
void port_interest(struct port *p, int change);
/* An eager message of so many bytes has been consumed. */
void port_consumed(struct port *p, size_t payload_bytes);
/* What port_took leaves: there is much credit to give back, or a header lied; 0: it did, and the port is lost. */
int port_settle(struct port *p);
/* A frame's header is here: all that it brings about, unless it has a payload, of which port->in.type and port->sink
 * tell. */
void port_begins(struct port *p, const struct frame *h);
/* The payload is complete, and has been fed to the sink. */
void port_complete(struct port *p);
/* It will not go out after all: neither what it cost nor what it gave back has been used. */
void port_untake(struct port *p, const struct frame *h);

static inline int port_is_gone(const struct port *p)
{
    return p->state == PORT_LOST || p->state == PORT_LEFT;
}

/* Is there credit for an eager message of so many bytes? */
static inline int port_has_credit(const struct port *p, size_t bytes)
{
    return p->credit >= (int64_t)(bytes + PORT_FRAME_COST);
}

/* The same; if there is none, what has come of it is taken in. */
static inline int port_finds_credit(struct port *p, size_t bytes)
{
    if (LIKELY(port_has_credit(p, bytes)))
        return 1;
    if (p->ops->take_credit)
        p->ops->take_credit(p);
    return port_has_credit(p, bytes) && !port_is_gone(p);
}

static inline void port_spend(struct port *p, size_t bytes)
{
    p->credit -= (int64_t)(bytes + PORT_FRAME_COST);
    assert(p->credit >= 0);
}

/* A frame has been dealt with that was not told through port_begins: an eager message that is consumed, an RTS, or
 * CREDIT. 0 if the port is lost, as its header lies. */
static inline int port_took(struct port *p, uint8_t type, size_t bytes, uint32_t credit)
{
    uint32_t cost = type == FRAME_EAGER ? (uint32_t)(bytes + PORT_FRAME_COST) : 0;
    p->heard = 1;
    p->credit += credit;
    p->eager_held += cost;
    p->credit_owed += cost;
    assert(p->credit_owed <= p->eager_held);
    return LIKELY(p->credit <= PORT_CREDIT_WINDOW && p->eager_held <= PORT_CREDIT_WINDOW &&
                  p->credit_owed < p->credit_step) || port_settle(p);
}

/* The credit that a frame which is about to go out gives back. */
static inline uint32_t port_take_owed(struct port *p)
{
    uint32_t owed = p->credit_owed;
    p->eager_held -= owed;
    p->credit_owed = 0;
    assert(p->eager_held >= 0);
    return owed;
}

#endif

/* Messages: which of those that come belongs to which receive, and how a send gets across. Operations (engine.c,
 * p2p.c) are made of messages, and know nothing of the protocol; ports carry frames, and know nothing of operations.
 *
 *   eager        a message of up to eager_bytes goes out at once while there is credit. If its receive is not posted
 *                yet, it is kept as unexpected;
 *   rendezvous   a longer one is announced (RTS) and waits for the receiver's CTS; then its DATA goes straight to its
 *                place. The receiver of a collective's message sends CTS unasked as soon as the receive is posted,
 *                for both sides know the plan;
 *   offer        where the peer can read this rank's memory, RTS says where the message lies. The receiver reads it
 *                there as soon as the receive is posted; there is no CTS, and no DATA.
 *
 * A box holds what one member of a group and this rank have for each other: one for the messages of collectives, whose
 * key (seq, slice, round) both sides know; one for point-to-point, where the key (seq, the sender's count) is known
 * once a receive is matched, which p2p.c does by source and tag. Unexpected frames are bounded by the eager window
 * (payloads) and MATCH_UNEXPECTED_MAX. */
#ifndef COMM_EXEC_MATCH_H
#define COMM_EXEC_MATCH_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"
#include "port.h"

enum {
    MATCH_UNEXPECTED_MAX = 65536,    /* frames of one peer waiting for their receive; beyond it the peer misbehaves */
    MATCH_UNEXPECTED_INLINE = 256,   /* payloads up to this size need no allocation of their own */
    MATCH_ANNOUNCED_MAX = 16384,     /* point-to-point sends to one peer that are announced; more wait here, so that
                                      * the peer need not keep so many */
};

struct message;

/* ---- Unexpected frames ---- */

/* A frame that came before its receive was posted, or a CTS that came before its send. */
struct unexpected {
    struct unexpected *next, **at;
    struct unexpected_list *list; /* that it stands in */
    struct port *port;
    struct frame head;
    uint64_t arrival;        /* counts up over all senders: a receive from any source takes the lowest */
    uint32_t offer;          /* RTS: port->offer of then */
    uint8_t complete;        /* the payload is here; that of a peer that is lost may never be */
    uint8_t *data;           /* inline_data or heap */
    struct message *claimed; /* posted while the payload was still coming */
    uint8_t inline_data[MATCH_UNEXPECTED_INLINE];
};

struct unexpected_list {
    struct unexpected *head, **tail;
    size_t *count; /* of those in this list and others; NULL: nobody asks */
};

enum { MATCH_ANNOUNCED_BUCKETS = 1024 };

/* What all boxes of a process share. */
struct matching {
    int64_t eager_bytes;
    int64_t eager_reduced_bytes; /* the same for messages of reductions, if that is more: others of that length are
                                  * better read by the peer in the sender's memory */
    /* the same where only one rank sends (messages between two ranks, those of a root), and for other collectives */
    int64_t eager_spread_bytes, eager_swapped_bytes;
    int64_t write_back_bytes;    /* shortest message that is not eager because its result may be written back; 0: that
                                  * makes no difference */
    uint64_t arrivals;
    struct unexpected *pool;
    size_t count;            /* unexpected frames of all peers */
    struct message_list announced[MATCH_ANNOUNCED_BUCKETS]; /* sends that wait for CTS, which may come in any order */
};

void matching_init(struct matching *matching);

void matching_finish(struct matching *matching);

void unexpected_list_init(struct unexpected_list *list, size_t *count);
void unexpected_list_clear(struct unexpected_list *list);
/* Keep it; NULL if the peer has too many, or without memory. An EAGER's payload then goes to ->data. */
struct unexpected *unexpected_add(struct unexpected_list *list, struct port *p, const struct frame *h);
void unexpected_move(struct unexpected *u, struct unexpected_list *list);
/* Take it out of its list and forget it. */
void unexpected_drop(struct unexpected *u);

/* ---- Messages ---- */

enum message_state {
    MESSAGE_TODO,       /* nothing has happened yet */
    MESSAGE_HELD,       /* a send that may not be announced yet */
    MESSAGE_AWAITS_CTS, /* an announced send; if it is offered, it awaits that it is read */
    MESSAGE_POSTED,     /* a receive without a message */
    MESSAGE_MOVING,     /* its bytes are on the way, or at least it is matched */
    MESSAGE_DONE,
};

/* The owner of messages: it is told what becomes of them. */
struct message_user {
    /* It is sent, or received: of `came` bytes. Not called if match_send or match_post has said so. */
    void (*done)(struct message *m);
    /* The message for this receive is not of m->bytes; NULL: that is no error. */
    void (*wrong_length)(struct message *m, const struct frame *h);
};

struct message {
    struct message *next, **at;
    struct message_list *list;  /* of its box or port, that it stands in; NULL: none */
    const struct message_user *user;
    const void *owner;          /* the group, for port_ops.forget */
    struct port *port;          /* the peer's; NULL: a receive from any source that is not matched */
    struct box *box;            /* the peer's; NULL as long as port is */
    const struct frame *head;   /* group, seq and all that the message's frames have in common */
    uint32_t slice;
    uint16_t round;
    uint8_t state;              /* enum message_state */
    uint8_t cleared;            /* a receive: CTS has been sent */
    uint8_t offered;            /* a send that is announced: the peer reads it without asking */
    uint8_t awaited;            /* it is counted in port->interest */
    uint8_t in_order;           /* a send that must not pass earlier ones: held back, counted in port->announced */
    uint8_t local_is_lower;
    uint8_t is_long;            /* what comes here, or is written back here, is part of a long block: for copy_part */
    uint8_t may_write_back;     /* what the receiver makes of it belongs to the sender, too; the port may see to that */
    uint8_t written_back;       /* it has */
    uint8_t *data;
    uint8_t *write_back;        /* a send that may: where that belongs */
    size_t bytes;
    struct kept *kept;          /* a receive: the port may keep what comes; NULL: it may not */
    size_t came;                /* a receive: the message's bytes, which may be more */
    const uint8_t *local;       /* if `kernel`: data = what comes OP local */
    reduce_kernel_fn kernel;
    reduce_to_two_fn to_two;    /* for what is written back; NULL: `kernel`, and a copy */
    size_t element_bytes, result_bytes; /* of an element of what comes and of `local`, and of `data` */
};

struct box {
    struct message_list posted;    /* receives that know their key */
    struct unexpected_list unexpected; /* EAGER and RTS, in order of arrival */
    struct unexpected_list cleared;    /* CTS */
};

/* [size] empty ones; NULL without memory. `count`: of what is unexpected in them; NULL: nobody asks. */
struct box *boxes_create(int32_t size, size_t *count);
void boxes_clear(struct box *boxes, int32_t size); /* drops what is unexpected */

/* Begin to send. Returns 1 if it is sent already; else user->done will be called. */
int match_send(struct message *m);
/* The same, behind all earlier ones to that peer; user->done may be called within. */
void match_send_in_order(struct message *m);
/* The same of a message that the carrier has sent at once, or offered. `in_order`: as match_send_in_order; then it has
 * been offered. */
int match_adopt(struct message *m, int in_order);
/* Let go what may go by now of the sends that were held back. */
void match_release(struct port *p);

/* Longest message of such an operation that is eager where its credit and write_back_bytes allow it. */
int64_t match_eager_bytes(const struct matching *m, int32_t kind);
/* The first unexpected frame with this receive's key, or NULL. */
struct unexpected *match_find_unexpected(const struct message *m);
/* Wait for a message of m->port's, or of any port's if that is NULL; the caller finds out which one. */
void match_await(struct message *m);
/* Post a receive that knows its key. `u`, unless NULL, is its message and of a fitting length. Returns 1 if the
 * message has been received; else user->done will be called. */
int match_post(struct message *m, struct unexpected *u);
/* The message is over, in whatever state it was. The port's frames are forgotten by port_ops.forget. */
void match_cancel(struct message *m);

/* ---- Arrivals ---- */

/* The posted receive with the key of this EAGER, RTS or DATA; NULL: there is none (yet, or any more). */
struct message *match_find_posted(const struct box *box, const struct frame *h);
/* EAGER or DATA for this receive: fill in its port's sink. */
void match_begins(struct message *m, struct port *p, const struct frame *h);
/* RTS for this receive. */
void match_announced(struct message *m, const struct frame *h);
/* CTS. 0: no send waits for it (yet). */
int match_cleared(struct port *p, const struct box *box, const struct frame *h);
/* A payload is complete: that of a receive, or of an unexpected frame. */
void match_received(struct message *m);
void match_unexpected_complete(struct unexpected *u);
/* Of a queued send all is sent. */
void match_sent(struct message *m);

#endif

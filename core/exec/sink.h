/* Where the payload of an incoming frame goes. A port asks for the window to receive into, or feeds bytes that it has
 * already; a message that is to be reduced is reduced as it comes. */
#ifndef COMM_EXEC_SINK_H
#define COMM_EXEC_SINK_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"

enum {
    SINK_BOUNCE_BYTES = 256 << 10, /* what is received before it is reduced: fits L2; smaller reads cost 15 % */
    KEPT_PIECES_MAX = 8,           /* a payload in more of them is not kept */
};

typedef void (*reduce_kernel_fn)(void *dst, const void *a, const void *b, size_t count);
typedef void (*reduce_to_two_fn)(void *dst, void *also, const void *a, const void *b, size_t count);

struct message;
struct unexpected;

enum sink_kind { SINK_NONE, SINK_DISCARD, SINK_COPY, SINK_REDUCE, SINK_UNEXPECTED, SINK_TEXT };

/* A payload that is read once, soon, and by one who can read it in pieces. A port may keep it where it has come, until
 * it is told that it has been read (port_ops.let_go), and may put it to its place at any time before. */
struct kept {
    struct kept *next;     /* of the port's, older */
    uint64_t from[2];      /* the port's: where it begins */
    const void *owner;     /* of the message */
    uint8_t *dst;          /* its place */
    size_t bytes;
    int pieces;            /* 0: it is not kept */
    size_t piece_bytes;    /* of each but the last one: a power of two, and no less than an element */
    const uint8_t *piece[KEPT_PIECES_MAX];
};

struct sink {
    enum sink_kind kind;
    uint8_t *dst;          /* COPY, REDUCE, UNEXPECTED, TEXT */
    size_t dst_bytes;      /* COPY: what does not fit is dropped (a truncated receive) */
    int is_long;           /* COPY: for copy_part */
    const uint8_t *local;  /* REDUCE: the other operand */
    int local_is_lower;
    size_t element_bytes, result_bytes; /* of an element of what comes and of `local`, and of `dst` */
    reduce_kernel_fn kernel;
    reduce_to_two_fn to_two; /* NULL: `kernel`, and a copy */
    struct kept *kept;     /* COPY: the port may keep it; NULL: it may not */
    struct message *message;       /* COPY, REDUCE: the receive; NULL: it is over */
    struct unexpected *unexpected; /* UNEXPECTED */
    size_t total, done;    /* payload bytes */
    uint32_t carry_bytes;
    uint8_t carry[16];     /* REDUCE: the begun element */
    uint8_t text[FRAME_TEXT_MAX + 1];
};

/* For another frame. */
void sink_reset(struct sink *s);
/* Where the next payload bytes should be received to, and how many. `bounce` has SINK_BOUNCE_BYTES, and is in use
 * until they are fed. */
uint8_t *sink_window(struct sink *s, uint8_t *bounce, size_t *ret_bytes);
/* How many of so many bytes that lie elsewhere can be fed at once. */
size_t sink_takes(const struct sink *s, size_t bytes);
/* `n` payload bytes have come, at `data`: the window itself or anywhere else. */
void sink_feed(struct sink *s, uint8_t *bounce, const uint8_t *data, size_t n);
/* The same where what comes is reduced: the results are written to `also` as well. For whole elements whose results are
 * of the same type, if all that came before them was fed so. */
void sink_feed_to_two(struct sink *s, uint8_t *also, const uint8_t *data, size_t n);

static inline size_t sink_left(const struct sink *s)
{
    return s->total - s->done;
}

#endif

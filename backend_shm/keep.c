#include "keep.h"

#include <string.h>

#include "duplex.h"

_Static_assert(sizeof((struct kept *)0)->from == sizeof((struct ring_in *)0)->head, "a position in each lane");

/* Up to the oldest that is kept. */
static void writer_goes_on(struct duplex *p)
{
    const struct kept *oldest = p->kept;
    while (oldest && oldest->next)
        oldest = oldest->next;
    ring_keep(&p->in, oldest ? oldest->from : NULL);
    duplex_look_after_writer(p);
}

static void take_out(struct duplex *p, struct kept *kept)
{
    struct kept **at = &p->kept;
    while (*at != kept)
        at = &(*at)->next;
    *at = kept->next;
    kept->pieces = 0;
}

static void put_to_place(struct duplex *p, struct kept *k)
{
    size_t at = 0;
    for (int i = 0; i < k->pieces; i++) {
        size_t left = k->bytes - at, n = left < k->piece_bytes ? left : k->piece_bytes;
        memcpy(k->dst + at, k->piece[i], n);
        at += n;
    }
    take_out(p, k);
}

/* The payload is cut into pieces of one length, which comes with the first one. */
static int is_next_piece(const struct sink *s, size_t bytes)
{
    const struct kept *k = s->kept;
    int is_last = bytes == sink_left(s), fits = s->kind == SINK_COPY && s->total <= s->dst_bytes && bytes > 0;
    if (!fits || bytes > sink_left(s))
        return 0;
    if (s->done == 0)
        return (is_last || (bytes & (bytes - 1)) == 0) && bytes >= sizeof s->carry;
    return k->pieces && k->pieces < KEPT_PIECES_MAX && s->done == (size_t)k->pieces * k->piece_bytes &&
           (bytes == k->piece_bytes || (is_last && bytes < k->piece_bytes));
}

int keep_payload(struct duplex *p, const uint8_t *payload, size_t bytes)
{
    struct sink *s = &p->port.sink;
    struct kept *k = s->kept;
    if (!is_next_piece(s, bytes)) {
        if (s->done && k->pieces) {
            put_to_place(p, k);
            writer_goes_on(p);
        }
        return 0;
    }
    if (s->done == 0) {
        *k = (struct kept){ .next = p->kept, .owner = s->message->owner, .dst = s->dst };
        k->piece_bytes = bytes == sink_left(s) ? (size_t)1 << (64 - __builtin_clzll(bytes)) : bytes;
        memcpy(k->from, p->in.head, sizeof k->from);
        p->kept = k;
        if (!k->next)
            ring_keep(&p->in, k->from);
    }
    k->piece[k->pieces++] = payload;
    k->bytes += bytes;
    s->done += bytes;
    if (sink_left(s) == 0)
        port_complete(&p->port);
    return 1;
}

void keep_let_go(struct port *port, struct kept *kept)
{
    struct duplex *p = duplex_of(port);
    take_out(p, kept);
    writer_goes_on(p);
}

void keep_none(struct duplex *p)
{
    if (!p->kept)
        return;
    while (p->kept)
        put_to_place(p, p->kept);
    writer_goes_on(p);
}

void keep_forget(struct duplex *p, const void *owner)
{
    int was_kept = p->kept != NULL;
    for (struct kept **at = &p->kept, *k; (k = *at);)
        if (k->owner == owner)
            take_out(p, k);
        else
            at = &k->next;
    if (was_kept)
        writer_goes_on(p);
}

/* One connection to one peer: a queue of frames out, a state machine of bytes in. Links know no groups and no
 * operations: what a message is for is asked through port_events when its header is here, and from then on the payload
 * goes straight to its place.
 *
 * Only link_flush and link_read tell that something was sent or has come, and only the driver of the loop calls those
 * two. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/utf8.h"
#include "loop.h"
#include "socket.h"

_Static_assert((int)PORT_FRAME_COST == (int)WIRE_HEADER_BYTES,
               "what an eager frame costs besides its payload is its header");

enum {
    SEND_MAX = 1 << 20,      /* bytes per system call: more spills the cache without saving calls */
    REPLIES_MAX = 256,       /* answers waiting for a peer to read them; a correct one asks once per group and
                              * deadline */
    DIRECT_BYTES = 256,      /* more than so many are received straight to their place */
};

/* A frame on its way out. */
struct tx {
    struct tx *next;
    uint8_t header[WIRE_HEADER_BYTES];
    const uint8_t *payload;
    size_t payload_bytes;
    size_t sent;             /* of header and payload together */
    struct message *message; /* to be told when it is sent; NULL: none */
    const void *owner;       /* the message's */
    void *owned;             /* payload memory to free */
    uint8_t is_reply;        /* counted in link->replies */
};

/* ---- Frames out ---- */

static struct tx *tx_get(struct mesh *m)
{
    struct tx *tx = m->tx_pool;
    if (tx)
        m->tx_pool = tx->next;
    else
        tx = malloc(sizeof *tx);
    return tx;
}

static void tx_put(struct link *l, struct tx *tx)
{
    free(tx->owned);
    assert(l->replies >= tx->is_reply);
    l->replies -= tx->is_reply;
    tx->next = l->mesh->tx_pool;
    l->mesh->tx_pool = tx;
}

static void tx_drop_all(struct link *l)
{
    if (l->tx_head)
        port_interest(&l->port, -1);
    while (l->tx_head) {
        struct tx *tx = l->tx_head;
        l->tx_head = tx->next;
        tx_put(l, tx);
    }
    l->tx_tail = &l->tx_head;
}

/* Point `iov` at what is left of the frame; returns how many pieces. */
static int tx_pieces(const struct tx *tx, struct iovec *iov, size_t most)
{
    int n = 0;
    size_t header_left = tx->sent < WIRE_HEADER_BYTES ? WIRE_HEADER_BYTES - tx->sent : 0;
    if (header_left)
        iov[n++] = (struct iovec){ (void *)(tx->header + WIRE_HEADER_BYTES - header_left), header_left };
    size_t payload_sent = header_left ? 0 : tx->sent - WIRE_HEADER_BYTES;
    size_t left = tx->payload_bytes - payload_sent;
    if (left > most)
        left = most;
    if (left)
        iov[n++] = (struct iovec){ (void *)(tx->payload + payload_sent), left };
    return n;
}

static size_t tx_left(const struct tx *tx)
{
    return WIRE_HEADER_BYTES + tx->payload_bytes - tx->sent;
}

/* One system call's worth. Returns bytes, 0 if the socket takes none. A broken connection is not lost yet: what the
 * peer said before it went, such as why, may still be unread (read_the_rest). */
static size_t write_pieces(struct link *l, struct iovec *iov, int pieces)
{
    while (!l->broken) {
        struct msghdr message = { .msg_iov = iov, .msg_iovlen = (size_t)pieces };
        ssize_t n = sendmsg(l->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            return (size_t)n;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno != EINTR) {
            l->broken = errno;
            l->port.table->lost_pending = 1;
        }
    }
    return 0;
}

/* Frames that are queued will carry it, and such frames do not pile up. */
void link_give_credit(struct port *p)
{
    struct frame h = { .type = FRAME_CREDIT };
    if (p->credit_owed >= p->credit_step && p->state == PORT_UP && !link_of(p)->tx_head)
        link_send(p, &h, NULL, 0, NULL);
}

/* Write from the queue, one system call's worth; 0 if the socket takes none. */
static size_t write_queued(struct link *l)
{
    enum { PIECES = 32 };
    struct iovec iov[PIECES];
    int pieces = 0;
    size_t total = 0;
    for (struct tx *tx = l->tx_head; tx && pieces + 2 <= PIECES && total < SEND_MAX; tx = tx->next) {
        int first = pieces;
        pieces += tx_pieces(tx, iov + pieces, SEND_MAX);
        for (int i = first; i < pieces; i++)
            total += iov[i].iov_len;
        if (tx_left(tx) > SEND_MAX)
            break;
    }
    return write_pieces(l, iov, pieces);
}

/* So many bytes of the queue have been written. All of it is noted before any operation is told: what that brings
 * about, such as the end of a group, must find in the queue which frames are begun. */
static void note_written(struct link *l, size_t bytes)
{
    for (struct tx *tx = l->tx_head; bytes; tx = tx->next) {
        size_t left = tx_left(tx), n = bytes < left ? bytes : left;
        tx->sent += n;
        bytes -= n;
    }
    while (l->tx_head && tx_left(l->tx_head) == 0) {
        struct tx *tx = l->tx_head;
        struct message *m = tx->message;
        l->tx_head = tx->next;
        if (!l->tx_head) {
            l->tx_tail = &l->tx_head;
            port_interest(&l->port, -1);
        }
        tx_put(l, tx);
        if (m)
            l->port.table->events->sent(m);
    }
}

void link_flush(struct link *l)
{
    assert(!l->port.table->in_round);
    while (l->port.state == PORT_UP && l->tx_head) {
        size_t bytes = write_queued(l);
        if (!bytes)
            return;
        note_written(l, bytes);
    }
    link_give_credit(&l->port);
}

/* Write a frame, as far as the socket takes it. */
static void write_frame(struct link *l, struct tx *tx)
{
    struct iovec iov[2];
    size_t bytes;
    do {
        bytes = write_pieces(l, iov, tx_pieces(tx, iov, SEND_MAX));
        tx->sent += bytes;
    } while (bytes && tx_left(tx));
}

/* The rest of a frame waits for the socket. NULL without memory: the link is lost then. */
static struct tx *enqueue(struct link *l, const struct tx *draft)
{
    struct tx *tx = tx_get(l->mesh);
    if (!tx) {
        port_lose(&l->port, COMM_ERR_NO_MEMORY, "cannot be sent a message: no memory to queue it");
        return NULL;
    }
    *tx = *draft;
    if (!l->tx_head)
        port_interest(&l->port, +1);
    *l->tx_tail = tx;
    l->tx_tail = &tx->next;
    return tx;
}

int link_send(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m)
{
    struct link *l = link_of(p);
    if (port_is_gone(p)) {
        p->table->lost_pending = 1;
        return 0;
    }
    if (l->bye_sent)
        return 1; /* Nothing follows a BYE; all that is left is to read until the peer sends it too. */
    h->credit = port_take_owed(p);
    struct tx draft;
    draft.sent = 0;
    draft.payload = payload;
    draft.payload_bytes = bytes;
    wire_put_header(h, draft.header);
    if (p->state == PORT_UP && !l->tx_head) {
        write_frame(l, &draft);
        if (tx_left(&draft) == 0)
            return 1;
    }
    draft.next = NULL;
    draft.message = m;
    draft.owner = m ? m->owner : NULL;
    draft.owned = NULL;
    draft.is_reply = 0;
    enqueue(l, &draft);
    return 0;
}

void link_send_text(struct port *p, struct frame *h, const char *text, int is_reply)
{
    struct link *l = link_of(p);
    if (is_reply && l->replies >= REPLIES_MAX) {
        port_lose(p, COMM_ERR_PROTOCOL, "sent %d queries without reading the replies", REPLIES_MAX);
        return;
    }
    size_t bytes = strlen(text);
    if (bytes > FRAME_TEXT_MAX)
        bytes = utf8_cut(text, FRAME_TEXT_MAX);
    char *copy = port_is_gone(p) ? NULL : malloc(bytes + 1);
    if (!copy)
        return;
    memcpy(copy, text, bytes);
    h->bytes = bytes;
    struct tx **place = l->tx_tail;
    if (link_send(p, h, copy, bytes, NULL) || *place == NULL) {
        free(copy); /* It is gone already, or could not be sent. */
        return;
    }
    (*place)->owned = copy;
    (*place)->is_reply = is_reply != 0;
    l->replies += is_reply != 0;
}

/* ---- Bytes in ---- */

/* Feed what is in the read buffer to the frame that it belongs to. */
static void parse_payload(struct link *l, const uint8_t *data, size_t have)
{
    struct sink *s = &l->port.sink;
    size_t n = sink_takes(s, have);
    sink_feed(s, l->port.table->bounce, data, n);
    l->rx_begin += n;
    if (sink_left(s) == 0)
        port_complete(&l->port);
}

/* Work off what is in the read buffer. */
static void parse(struct link *l)
{
    while (l->port.state == PORT_UP && l->rx_begin < l->rx_end) {
        const uint8_t *data = l->rx + l->rx_begin;
        size_t have = l->rx_end - l->rx_begin;
        if (l->port.in.type) {
            parse_payload(l, data, have);
            continue;
        }
        if (have < WIRE_HEADER_BYTES)
            break;
        struct frame h;
        const char *wrong = wire_get_header(data, &h);
        if (wrong) {
            port_lose(&l->port, COMM_ERR_PROTOCOL, "sent %s", wrong);
            return;
        }
        l->rx_begin += WIRE_HEADER_BYTES;
        port_begins(&l->port, &h);
    }
    if (l->rx_begin == l->rx_end) {
        l->rx_begin = l->rx_end = 0;
    } else if (l->rx_begin) {
        memmove(l->rx, l->rx + l->rx_begin, l->rx_end - l->rx_begin);
        l->rx_end -= l->rx_begin;
        l->rx_begin = 0;
    }
}

static void read_failed(struct link *l, ssize_t n)
{
    if (n == 0)
        port_lose(&l->port, COMM_ERR_PEER_LOST, "closed the connection: its process has ended, or was killed");
    else if (errno == EFAULT)
        port_lose(&l->port, COMM_ERR_BACKEND, "cannot be received from: this rank's buffer is memory that cannot be "
                                              "written, at least in part (is it freed, too short, or on a device?)");
    else
        port_lose(&l->port, COMM_ERR_PEER_LOST, "is lost: the connection broke: %s", strerror(errno));
}

/* One system call: a payload that is coming goes straight to its place, what follows it to the read buffer. Returns as
 * recv, and *ret_direct, how many bytes have a place; *ret_capacity, how many could have come. */
static ssize_t read_once(struct link *l, struct iovec iov[2], size_t *ret_direct, size_t *ret_capacity)
{
    struct sink *s = &l->port.sink;
    int pieces = 0;
    *ret_direct = *ret_capacity = 0;
    if (l->port.in.type && l->rx_end == 0 && sink_left(s) > DIRECT_BYTES) {
        uint8_t *window = sink_window(s, l->port.table->bounce, ret_direct);
        iov[pieces++] = (struct iovec){ window, *ret_direct };
    }
    if (!*ret_direct || *ret_direct == sink_left(s))
        iov[pieces++] = (struct iovec){ l->rx + l->rx_end, TCP_RX_BYTES - l->rx_end };
    for (int i = 0; i < pieces; i++)
        *ret_capacity += iov[i].iov_len;
    return pieces == 1 ? recv(l->fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT) : readv(l->fd, iov, pieces);
}

int link_read(struct port *p)
{
    struct link *l = link_of(p);
    assert(!p->table->in_round);
    int came = 0;
    for (int turn = 0; turn < 16 && p->state == PORT_UP; turn++) {
        struct iovec iov[2];
        size_t direct, capacity;
        ssize_t n = read_once(l, iov, &direct, &capacity);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            read_failed(l, n);
            return 1;
        }
        came = 1;
        size_t got = (size_t)n;
        if (direct) {
            size_t fed = got < direct ? got : direct;
            sink_feed(&p->sink, p->table->bounce, iov[0].iov_base, fed);
            got -= fed;
            if (sink_left(&p->sink) == 0)
                port_complete(&l->port);
        }
        l->rx_end += got;
        parse(l);
        if ((size_t)n < capacity)
            break; /* The socket is empty. */
    }
    return came;
}

/* ---- Operations that are over ---- */

/* Half of it is gone already: the rest must follow, or the peer could not read what comes after. 0 without memory. */
static int keep_rest(struct tx *tx)
{
    uint8_t *copy = malloc(tx->payload_bytes ? tx->payload_bytes : 1);
    if (!copy)
        return 0;
    if (tx->payload_bytes)
        memcpy(copy, tx->payload, tx->payload_bytes);
    tx->payload = tx->owned = copy;
    return 1;
}

/* A frame that will not go out. */
static void unsend(struct link *l, struct tx *tx)
{
    struct frame h;
    if (!wire_get_header(tx->header, &h))
        port_untake(&l->port, &h);
    tx_put(l, tx);
    if (!l->tx_head)
        port_interest(&l->port, -1);
}

void link_forget(struct port *p, const void *owner)
{
    struct link *l = link_of(p);
    if (l->port.in.type && p->sink.message && p->sink.message->owner == owner) {
        p->sink.kind = SINK_DISCARD;
        p->sink.message = NULL;
    }
    struct tx **at = &l->tx_head;
    while (*at) {
        struct tx *tx = *at;
        if (!tx->message || tx->owner != owner) {
            at = &tx->next;
            continue;
        }
        if (tx->sent == 0) {
            *at = tx->next;
            unsend(l, tx);
            continue;
        }
        tx->message = NULL;
        at = &tx->next;
        if (tx_left(tx) && !keep_rest(tx)) {
            port_lose(p, COMM_ERR_NO_MEMORY, "cannot be sent a message: no memory to finish it");
            return;
        }
    }
    l->tx_tail = at;
}

int link_has_queued(const struct link *l, const void *owner, int begun)
{
    for (const struct tx *tx = l->tx_head; tx; tx = tx->next)
        if (tx->message && tx->owner == owner && (tx->sent > 0) >= begun)
            return 1;
    return 0;
}

/* ---- Life ---- */

static void on_poll(uv_poll_t *handle, int status, int events);

static void watch(struct link *l, int events)
{
    if (l->poll && l->poll_events != events && l->port.state == PORT_UP) {
        l->poll_events = events;
        loop_watch(l->mesh, l->poll, events, on_poll);
    }
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct link *l = handle->data;
    if (status < 0)
        events = UV_READABLE; /* The read will say what is wrong. */
    if (events & UV_WRITABLE) {
        link_flush(l);
        if (!l->tx_head)
            watch(l, UV_READABLE);
    }
    if (events & UV_READABLE)
        l->mesh->has_read |= link_read(&l->port);
}

void link_watch_queue(struct link *l)
{
    if (l->tx_head)
        watch(l, UV_READABLE | UV_WRITABLE);
}

void link_close(struct link *l)
{
    loop_poll_end(&l->poll);
    socket_close(&l->fd);
    l->port.in.type = 0;
    l->rx_begin = l->rx_end = 0;
}

void link_up(struct link *l, int fd)
{
    if (!l->rx)
        l->rx = malloc(TCP_RX_BYTES);
    l->poll = l->rx ? loop_poll_new(l->mesh, fd, l) : NULL;
    if (!l->poll) {
        socket_close(&fd);
        port_lose(&l->port, COMM_ERR_NO_MEMORY, "cannot be connected: no memory");
        return;
    }
    l->fd = fd;
    l->port.state = PORT_UP;
    l->poll_events = 0;
    watch(l, UV_READABLE);
    link_flush(l);
}

void link_leave(struct link *l)
{
    struct frame bye = { .type = FRAME_BYE };
    link_send(&l->port, &bye, NULL, 0, NULL);
    l->bye_sent = 1;
    link_watch_queue(l);
    if (l->port.state == PORT_UP && !l->tx_head)
        shutdown(l->fd, SHUT_WR);
}

/* Sending has failed. Take in what the peer sent before; then the link is lost, unless the peer has sent BYE. */
static void read_the_rest(struct link *l)
{
    while (l->port.state == PORT_UP && link_read(&l->port))
        ;
    if (l->port.state == PORT_UP && l->broken == EFAULT)
        port_lose(&l->port, COMM_ERR_BACKEND, "cannot be sent to: this rank's buffer is memory that cannot be read, at "
                                              "least in part (is it freed, too short, or on a device?)");
    else if (l->port.state == PORT_UP)
        port_lose(&l->port, COMM_ERR_PEER_LOST, "is lost: sending to it failed: %s", strerror(l->broken));
}

void link_sweep(struct port *p)
{
    struct link *l = link_of(p);
    if (p->state == PORT_UP && l->broken)
        read_the_rest(l);
    if (!port_is_gone(p))
        return;
    if (l->fd >= 0)
        link_close(l);
    tx_drop_all(l);
}

void link_finish(struct link *l)
{
    while (l->tx_head) {
        struct tx *tx = l->tx_head;
        l->tx_head = tx->next;
        tx_put(l, tx);
    }
    free(l->rx);
    free(l->candidates);
    port_finish(&l->port);
}

void link_pool_finish(struct mesh *m)
{
    while (m->tx_pool) {
        struct tx *tx = m->tx_pool;
        m->tx_pool = tx->next;
        free(tx);
    }
}

/* One connection to one peer: a queue of frames out, a state machine of bytes in. Links know no collectives: what a message is for is asked of
 * engine.c and p2p.c when its header is here, and from then on the payload goes straight to its place.
 *
 * Sending never calls back: link_send writes what the socket takes and queues the rest. Only link_flush and link_read tell operations
 * that something of theirs was sent or has come, and only the driver of the loop calls those two; so no operation is told anything
 * while it is in the middle of sending.
 *
 * A link that fails only says so (link_lose); its groups are told by link_sweep_lost at the end of the turn, so that nobody's
 * operation is completed under the feet of the code that is sending for it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/utf8.h"
#include "tcp.h"

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
    l->replies -= tx->reply;
    tx->next = l->mesh->tx_pool;
    l->mesh->tx_pool = tx;
}

static void tx_drop_all(struct link *l)
{
    if (l->tx_head)
        link_interest(l, -1);
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

/* One system call's worth. Returns bytes, 0 if the socket takes none. A broken connection is not lost yet: what the peer said before it
 * went, such as why, may still be unread (read_the_rest). */
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
            l->mesh->lost_pending = 1;
        }
    }
    return 0;
}

static void tx_done(struct link *l, struct tx *tx)
{
    struct tcp_op *op = tx->op;
    uint32_t slot = tx->slot, step = tx->step;
    tx_put(l, tx);
    if (!op)
        return;
    if (op->op.kind == COMM_OP_SEND)
        p2p_sent(op);
    else
        engine_sent(op, slot, step);
}

/* Give back credit in a frame of its own, unless frames are queued: theirs will carry it, and such frames do not pile up. */
static void give_credit(struct link *l)
{
    struct frame h = { .type = FRAME_CREDIT };
    if (l->credit_owed >= TCP_CREDIT_WINDOW / 4 && l->state == LINK_UP && !l->tx_head)
        link_send(l, &h, NULL, 0, NULL, 0, 0);
}

/* Write from the queue, one system call's worth; 0 if the socket takes none. */
static size_t write_queued(struct link *l)
{
    enum { PIECES = 32 };
    struct iovec iov[PIECES];
    int pieces = 0;
    size_t total = 0;
    for (struct tx *tx = l->tx_head; tx && pieces + 2 <= PIECES && total < TCP_SEND_MOST; tx = tx->next) {
        int first = pieces;
        pieces += tx_pieces(tx, iov + pieces, TCP_SEND_MOST);
        for (int i = first; i < pieces; i++)
            total += iov[i].iov_len;
        if (tx_left(tx) > TCP_SEND_MOST)
            break;
    }
    return write_pieces(l, iov, pieces);
}

/* So many bytes of the queue have been written. All of it is noted before any operation is told: what that brings about, such as the
 * end of a group, must find in the queue which frames are begun. */
static void note_written(struct link *l, size_t bytes)
{
    for (struct tx *tx = l->tx_head; bytes; tx = tx->next) {
        size_t left = tx_left(tx), n = bytes < left ? bytes : left;
        tx->sent += n;
        bytes -= n;
    }
    while (l->tx_head && tx_left(l->tx_head) == 0) {
        struct tx *tx = l->tx_head;
        l->tx_head = tx->next;
        if (!l->tx_head) {
            l->tx_tail = &l->tx_head;
            link_interest(l, -1);
        }
        tx_done(l, tx);
    }
}

void link_flush(struct link *l)
{
    assert(!l->mesh->in_round);
    while (l->state == LINK_UP && l->tx_head) {
        size_t bytes = write_queued(l);
        if (!bytes)
            return;
        note_written(l, bytes);
    }
    give_credit(l);
}

/* Write a frame, as far as the socket takes it. */
static void write_frame(struct link *l, struct tx *tx)
{
    struct iovec iov[2];
    size_t bytes;
    do {
        bytes = write_pieces(l, iov, tx_pieces(tx, iov, TCP_SEND_MOST));
        tx->sent += bytes;
    } while (bytes && tx_left(tx));
}

int link_send(struct link *l, struct frame *h, const void *payload, size_t bytes, struct tcp_op *op,
              uint32_t slot, uint32_t step)
{
    if (l->state == LINK_LOST || l->state == LINK_LEFT) {
        l->mesh->lost_pending = 1;
        return 0;
    }
    if (l->said_goodbye)
        return 1; /* Nothing follows a BYE; all that is left is to read until the peer says it too. */
    h->credit = l->credit_owed;
    l->eager_held -= l->credit_owed;
    l->credit_owed = 0;
    struct tx draft;
    draft.sent = 0;
    draft.payload = payload;
    draft.payload_bytes = bytes;
    wire_put_header(h, draft.header);
    if (l->state == LINK_UP && !l->tx_head) {
        write_frame(l, &draft);
        if (tx_left(&draft) == 0)
            return 1;
    }
    struct tx *tx = tx_get(l->mesh);
    if (!tx) {
        link_lose(l, COMM_ERR_NO_MEMORY, "cannot be sent a message: no memory to queue it");
        return 0;
    }
    memcpy(tx->header, draft.header, sizeof tx->header);
    tx->payload = payload;
    tx->payload_bytes = bytes;
    tx->sent = draft.sent;
    tx->op = op;
    tx->slot = slot;
    tx->step = step;
    tx->owned = NULL;
    tx->reply = 0;
    tx->next = NULL;
    if (!l->tx_head)
        link_interest(l, +1);
    *l->tx_tail = tx;
    l->tx_tail = &tx->next;
    return 0;
}

/* The frame that was queued, or NULL: it is gone already, or could not be sent. */
static struct tx *send_text(struct link *l, struct frame *h, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes > FRAME_TEXT_MAX)
        bytes = utf8_cut(text, FRAME_TEXT_MAX);
    char *copy = malloc(bytes + 1);
    if (!copy || l->state == LINK_LOST || l->state == LINK_LEFT) {
        free(copy);
        return NULL;
    }
    memcpy(copy, text, bytes);
    h->bytes = bytes;
    struct tx **place = l->tx_tail;
    if (link_send(l, h, copy, bytes, NULL, 0, 0) || *place == NULL) {
        free(copy);
        return NULL;
    }
    (*place)->owned = copy;
    return *place;
}

void link_send_text(struct link *l, struct frame *h, const char *text)
{
    send_text(l, h, text);
}

void link_reply_text(struct link *l, struct frame *h, const char *text)
{
    if (l->replies >= TCP_REPLIES_MOST) {
        link_lose(l, COMM_ERR_PROTOCOL, "asks and asks, but does not read the answers");
        return;
    }
    struct tx *tx = send_text(l, h, text);
    if (tx) {
        tx->reply = 1;
        l->replies++;
    }
}

/* ---- Bytes in ---- */

/* Where the next payload bytes should be received to. */
static uint8_t *sink_window(struct link *l, size_t *ret_bytes)
{
    struct sink *s = &l->sink;
    size_t left = s->total - s->done;
    switch (s->kind) {
    case SINK_EARLY:
        *ret_bytes = left;
        return s->dst + s->done;
    case SINK_TEXT:
        *ret_bytes = left;
        return l->text + s->done;
    case SINK_COPY:
        if (s->done < s->dst_bytes) {
            *ret_bytes = left < s->dst_bytes - s->done ? left : s->dst_bytes - s->done;
            return s->dst + s->done;
        }
        break;
    case SINK_REDUCE:
        memcpy(l->mesh->bounce, s->carry, s->carry_bytes);
        *ret_bytes = left < TCP_BOUNCE_BYTES - s->carry_bytes ? left : TCP_BOUNCE_BYTES - s->carry_bytes;
        return l->mesh->bounce + s->carry_bytes;
    default:
        break;
    }
    *ret_bytes = left < TCP_BOUNCE_BYTES ? left : TCP_BOUNCE_BYTES;
    return l->mesh->bounce;
}

/* Reduce what lies at `data`, which begins with the carried bytes; keep a begun element for later. */
static void sink_reduce(struct sink *s, const uint8_t *data, size_t bytes)
{
    size_t whole = bytes / s->element_bytes, offset = s->done - s->carry_bytes;
    if (whole) {
        const uint8_t *local = s->local + offset;
        if (s->local_is_lower)
            s->kernel(s->dst + offset, local, data, whole);
        else
            s->kernel(s->dst + offset, data, local, whole);
    }
    s->carry_bytes = (uint32_t)(bytes - whole * s->element_bytes);
    memmove(s->carry, data + whole * s->element_bytes, s->carry_bytes);
}

/* `n` payload bytes have come, at `data`: the window itself or somewhere in the read buffer. */
static void sink_feed(struct link *l, const uint8_t *data, size_t n)
{
    struct sink *s = &l->sink;
    uint8_t *bounce = l->mesh->bounce;
    switch (s->kind) {
    case SINK_EARLY:
        if (data != s->dst + s->done)
            memcpy(s->dst + s->done, data, n);
        break;
    case SINK_TEXT:
        if (data != l->text + s->done)
            memcpy(l->text + s->done, data, n);
        break;
    case SINK_COPY:
        if (s->done < s->dst_bytes && data != s->dst + s->done)
            memcpy(s->dst + s->done, data, n < s->dst_bytes - s->done ? n : s->dst_bytes - s->done);
        break;
    case SINK_REDUCE:
        if (data == bounce + s->carry_bytes) {
            sink_reduce(s, bounce, s->carry_bytes + n);
        } else if (s->carry_bytes == 0) {
            sink_reduce(s, data, n);
        } else {
            memcpy(bounce, s->carry, s->carry_bytes);
            memcpy(bounce + s->carry_bytes, data, n);
            sink_reduce(s, bounce, s->carry_bytes + n);
        }
        break;
    default:
        break;
    }
    s->done += n;
}

/* The payload is complete: tell whoever it was for. */
static void sink_complete(struct link *l)
{
    struct sink s = l->sink;
    struct frame h = l->in;
    l->in.type = 0;
    l->sink.kind = SINK_NONE;
    l->sink.op = NULL;
    if (h.type == FRAME_EAGER && s.kind != SINK_EARLY)
        link_consumed(l, (size_t)h.bytes);
    switch (s.kind) {
    case SINK_COPY:
    case SINK_REDUCE:
        if (s.op && s.op->op.kind == COMM_OP_RECV)
            p2p_received(s.op, s.total);
        else if (s.op)
            engine_received(s.op, s.slot, s.step);
        break;
    case SINK_EARLY:
        early_completed(l->mesh, l, s.early);
        break;
    case SINK_TEXT:
        l->text[utf8_clean((char *)l->text, s.total)] = '\0'; /* It goes to terminals and logs. */
        group_frame(l, &h, (const char *)l->text);
        break;
    default:
        break;
    }
}

static void sink_keep_early(struct link *l, struct early_list *list, const struct frame *h)
{
    struct early *e = early_add(l->mesh, list, l->peer, h);
    if (!e) {
        link_lose(l, COMM_ERR_PROTOCOL, "sent more than %d messages that nobody has asked for, or memory ran out",
                  TCP_EARLY_MOST);
        l->sink.kind = SINK_DISCARD;
        return;
    }
    l->sink.kind = SINK_EARLY;
    l->sink.early = e;
    l->sink.dst = e->data;
}

/* A message: find its receive, or a place to keep it. */
static void message_frame(struct link *l, const struct frame *h)
{
    struct mesh *m = l->mesh;
    struct tcp_group *g = group_find(m, h->group);
    l->sink.kind = SINK_DISCARD;
    if (!g || g->status != COMM_OK) {
        /* DATA was asked for, so the group was open here. */
        if (group_may_come(l, g, h) && h->type == FRAME_EAGER)
            sink_keep_early(l, &m->orphans, h);
        return;
    }
    struct early_list *early = early_list_of(g, l->peer, h->kind);
    if (!early) {
        link_lose(l, COMM_ERR_PROTOCOL, "is not in group '%s' but sends to it", g->name);
        return;
    }
    int p2p = h->kind == COMM_OP_SEND;
    if (p2p ? p2p_sink(g, l, h, &l->sink) : engine_sink(g, l, h, &l->sink))
        return;
    if (g->status != COMM_OK || l->state != LINK_UP)
        return;
    if (h->type == FRAME_DATA)
        link_lose(l, COMM_ERR_PROTOCOL, "sent data that nobody asked for");
    else
        sink_keep_early(l, early, h);
}

static void frame_begins(struct link *l, const struct frame *h)
{
    l->heard = 1;
    l->credit += h->credit;
    if (l->credit > TCP_CREDIT_WINDOW) {
        link_lose(l, COMM_ERR_PROTOCOL, "gave back more credit than it had received");
        return;
    }
    l->in = *h;
    memset(&l->sink, 0, offsetof(struct sink, carry));
    l->sink.carry_bytes = 0;
    l->sink.op = NULL;
    switch (h->type) {
    case FRAME_EAGER:
        l->eager_held += (int64_t)h->bytes + TCP_FRAME_COST;
        if (l->eager_held > TCP_CREDIT_WINDOW) {
            link_lose(l, COMM_ERR_PROTOCOL, "sent more than it had credit for");
            l->in.type = 0;
            return;
        }
        /* fall through */
    case FRAME_DATA:
        message_frame(l, h);
        l->sink.total = (size_t)h->bytes;
        break;
    case FRAME_FAIL:
    case FRAME_ANSWER:
        l->sink.kind = SINK_TEXT;
        l->sink.total = (size_t)h->bytes;
        break;
    default:
        l->in.type = 0;
        group_frame(l, h, NULL);
        return;
    }
    if (l->sink.total == 0 && l->state == LINK_UP)
        sink_complete(l);
}

/* Work off what is in the read buffer. */
static void parse(struct link *l)
{
    while (l->state == LINK_UP && l->rx_begin < l->rx_end) {
        uint8_t *data = l->rx + l->rx_begin;
        size_t have = l->rx_end - l->rx_begin;
        if (l->in.type) {
            size_t left = l->sink.total - l->sink.done, n = have < left ? have : left;
            if (l->sink.kind == SINK_REDUCE && l->sink.carry_bytes + n > TCP_BOUNCE_BYTES)
                n = TCP_BOUNCE_BYTES - l->sink.carry_bytes;
            sink_feed(l, data, n);
            l->rx_begin += n;
            if (l->sink.done == l->sink.total)
                sink_complete(l);
            continue;
        }
        if (have < WIRE_HEADER_BYTES)
            break;
        struct frame h;
        const char *wrong = wire_get_header(data, &h);
        if (wrong) {
            link_lose(l, COMM_ERR_PROTOCOL, "sent %s", wrong);
            return;
        }
        l->rx_begin += WIRE_HEADER_BYTES;
        frame_begins(l, &h);
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
        link_lose(l, COMM_ERR_PEER_LOST, "closed the connection: its process has ended, or was killed");
    else
        link_lose(l, COMM_ERR_PEER_LOST, "is lost, for the connection broke: %s", strerror(errno));
}

int link_read(struct link *l)
{
    assert(!l->mesh->in_round);
    int came = 0;
    for (int turn = 0; turn < 16 && l->state == LINK_UP; turn++) {
        struct iovec iov[2];
        int pieces = 0;
        size_t direct = 0;
        if (l->in.type && l->rx_end == 0 && l->sink.total - l->sink.done > TCP_EARLY_INLINE) {
            uint8_t *window = sink_window(l, &direct);
            iov[pieces++] = (struct iovec){ window, direct };
        }
        if (!direct || direct == l->sink.total - l->sink.done)
            iov[pieces++] = (struct iovec){ l->rx + l->rx_end, TCP_RX_BYTES - l->rx_end };
        size_t room = iov[0].iov_len + (pieces > 1 ? iov[1].iov_len : 0);
        ssize_t n = pieces == 1 ? recv(l->fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT) : readv(l->fd, iov, pieces);
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
            sink_feed(l, iov[0].iov_base, fed);
            got -= fed;
            if (l->sink.done == l->sink.total)
                sink_complete(l);
        }
        l->rx_end += got;
        parse(l);
        if ((size_t)n < room)
            break; /* The socket is empty. */
    }
    return came;
}

/* ---- Credit and interest ---- */

void link_consumed(struct link *l, size_t payload_bytes)
{
    l->credit_owed += (uint32_t)(payload_bytes + TCP_FRAME_COST);
    give_credit(l);
}

void link_interest(struct link *l, int change)
{
    struct mesh *m = l->mesh;
    l->interest = (uint32_t)((int)l->interest + change);
    if (l->interest && l->hot_index < 0) {
        l->hot_index = m->hot_count;
        m->hot[m->hot_count++] = l;
    } else if (!l->interest && l->hot_index >= 0) {
        struct link *last = m->hot[--m->hot_count];
        m->hot[l->hot_index] = last;
        last->hot_index = l->hot_index;
        l->hot_index = -1;
    }
}

/* A frame that will not go out: neither what it cost nor what it gave back has been used. */
static void take_back_credit(struct link *l, const struct tx *tx)
{
    struct frame h;
    if (wire_get_header(tx->header, &h))
        return;
    if (h.type == FRAME_EAGER)
        l->credit += (int64_t)(tx->payload_bytes + TCP_FRAME_COST);
    l->credit_owed += h.credit;
    l->eager_held += h.credit;
}

void link_forget(struct link *l, const struct tcp_group *g)
{
    if (l->in.type && l->sink.op && l->sink.op->group == g) {
        l->sink.kind = SINK_DISCARD;
        l->sink.op = NULL;
    }
    struct tx **at = &l->tx_head;
    while (*at) {
        struct tx *tx = *at;
        if (!tx->op || tx->op->group != g) {
            at = &tx->next;
            continue;
        }
        if (tx->sent == 0) {
            *at = tx->next;
            take_back_credit(l, tx);
            tx_put(l, tx);
            if (!l->tx_head)
                link_interest(l, -1);
            continue;
        }
        tx->op = NULL;
        at = &tx->next;
        if (tx_left(tx) == 0)
            continue;
        /* Half of it is gone already: the rest must follow, or the peer could not read what comes after. */
        uint8_t *copy = malloc(tx->payload_bytes ? tx->payload_bytes : 1);
        if (!copy) {
            link_lose(l, COMM_ERR_NO_MEMORY, "cannot be sent a message: no memory to finish it");
            return;
        }
        if (tx->payload_bytes)
            memcpy(copy, tx->payload, tx->payload_bytes);
        tx->payload = tx->owned = copy;
    }
    l->tx_tail = at;
}

/* ---- Life ---- */

static void handle_closed(uv_handle_t *handle)
{
    struct mesh *m = handle->loop->data;
    m->open_handles--;
    free(handle);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct link *l = handle->data;
    if (status < 0)
        events = UV_READABLE; /* The read will say what is wrong. */
    if (events & UV_WRITABLE) {
        link_flush(l);
        if (!l->tx_head)
            link_poll(l, UV_READABLE);
    }
    if (events & UV_READABLE)
        link_read(l);
}

void link_poll(struct link *l, int events)
{
    if (l->poll && l->poll_events != events && l->state == LINK_UP) {
        l->poll_events = events;
        progress_watch(l->mesh, l->poll, events, on_poll);
    }
}

void link_close(struct link *l)
{
    if (l->poll) {
        uv_poll_stop(l->poll);
        uv_close((uv_handle_t *)l->poll, handle_closed);
        l->poll = NULL;
    }
    int fd = l->fd;
    *(volatile int *)&l->fd = -1; /* before it is closed: see "Forks" in mesh.c */
    if (fd >= 0)
        close(fd);
    l->in.type = 0;
    l->rx_begin = l->rx_end = 0;
}

void link_up(struct link *l, int fd)
{
    struct mesh *m = l->mesh;
    if (!l->rx)
        l->rx = malloc(TCP_RX_BYTES);
    l->poll = malloc(sizeof *l->poll);
    if (!l->rx || !l->poll || uv_poll_init(&m->loop, l->poll, fd) != 0) {
        free(l->poll);
        l->poll = NULL;
        close(fd);
        link_lose(l, COMM_ERR_NO_MEMORY, "cannot be connected: no memory");
        return;
    }
    m->open_handles++;
    l->poll->data = l;
    l->fd = fd;
    l->state = LINK_UP;
    l->poll_events = 0;
    link_poll(l, UV_READABLE);
    link_flush(l);
}

void link_lose(struct link *l, comm_status status, const char *format, ...)
{
    if (l->state == LINK_LOST)
        return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int left = l->state == LINK_LEFT;
    l->state = left ? LINK_LEFT : LINK_LOST;
    l->mesh->lost_pending = 1;
    if (left)
        return;
    l->lost_status = status;
    free(l->lost_text);
    l->lost_text = strdup(text);
    exec_log(COMM_LOG_INFO, "rank %d: %s %s", (int)l->mesh->rank, mesh_peer_text(l->mesh, l->peer), text);
}

/* Sending has failed. Take in what the peer said before; then the link is lost, if it has not said goodbye. */
static void read_the_rest(struct link *l)
{
    while (l->state == LINK_UP && link_read(l))
        ;
    if (l->state == LINK_UP)
        link_lose(l, COMM_ERR_PEER_LOST, "is lost, for sending to it failed: %s", strerror(l->broken));
}

void link_sweep_lost(struct mesh *m)
{
    while (m->lost_pending) {
        m->lost_pending = 0;
        for (int32_t i = 0; i < m->size; i++) {
            struct link *l = &m->links[i];
            if (l->state == LINK_UP && l->broken)
                read_the_rest(l);
            if (l->state != LINK_LOST && l->state != LINK_LEFT)
                continue;
            if (l->fd >= 0) {
                /* An early frame whose payload will never be complete is of no use to anybody. */
                if (l->in.type && l->sink.kind == SINK_EARLY)
                    l->sink.early->from = -1;
                link_close(l);
            }
            tx_drop_all(l);
            group_peer_gone(m, l, l->state == LINK_LEFT ? COMM_ERR_PEER_LOST : l->lost_status,
                            l->lost_text ? l->lost_text : "is lost");
        }
    }
}

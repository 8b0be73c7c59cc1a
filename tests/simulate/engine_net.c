/* Sockets in memory: one bounded queue for each direction of each pair of ranks, behind the system calls that link.c makes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "backend_tcp/link.h"
#include "backend_tcp/progress.h"
#include "engine.h"

enum { FD_FIRST = 1 << 20 }; /* no descriptor of this process is so high */

struct queue {
    uint8_t *bytes;
    size_t room, begin, fill;
    size_t until_cut; /* bytes; SIZE_MAX: never */
};

static struct queue *queues; /* [size * size], by sender and receiver */
static uint8_t *cut;         /* by pair, both ways */
static int32_t net_size;
static size_t net_room;
static struct link **wanted; /* links that are to come up */
static size_t wanted_count;

int net_generous;

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap_readv(int fd, const struct iovec *iov, int pieces);

void net_open(int32_t size, size_t most_room)
{
    net_size = size;
    net_room = most_room;
    queues = calloc((size_t)size * (size_t)size, sizeof *queues);
    cut = calloc((size_t)size * (size_t)size, 1);
    wanted = calloc(2 * (size_t)size * (size_t)size, sizeof *wanted);
    wanted_count = 0;
    net_generous = 0;
    for (int32_t i = 0; i < size * size; i++)
        queues[i].until_cut = SIZE_MAX;
}

void net_close(void)
{
    for (int32_t i = 0; i < net_size * net_size; i++)
        free(queues[i].bytes);
    free(queues);
    free(cut);
    free(wanted);
}

static struct queue *queue_of(int32_t from, int32_t to)
{
    struct queue *q = &queues[from * net_size + to];
    if (!q->bytes) {
        q->room = net_room;
        q->bytes = malloc(q->room);
    }
    return q;
}

static void cut_pair(int32_t a, int32_t b)
{
    cut[a * net_size + b] = cut[b * net_size + a] = 1;
}

void net_cut(int32_t from, int32_t to, size_t after_bytes)
{
    queue_of(from, to)->until_cut = after_bytes;
    if (after_bytes == 0)
        cut_pair(from, to);
}

int net_is_empty(void)
{
    for (int32_t i = 0; i < net_size * net_size; i++)
        if (queues[i].fill && world->meshes[i % net_size]->links[i / net_size].port.state != PORT_LOST)
            return 0;
    return 1;
}

/* ---- What the adversary lets through ---- */

/* 0 to go on, or the errno of a call that does nothing. */
static int whim(void)
{
    if (net_generous)
        return 0;
    size_t r = below(32);
    return r < 4 ? EAGAIN : r < 6 ? EINTR : 0;
}

/* How many of so many bytes: often nearly none, or about a header. */
static size_t some_of(size_t bytes)
{
    size_t most = bytes;
    if (net_generous || bytes <= 1)
        return bytes;
    switch (below(8)) {
    case 0:
        most = 1 + below(8);
        break;
    case 1:
        most = WIRE_HEADER_BYTES - 1 + below(3);
        break;
    case 2:
        most = 1 + below(3 * WIRE_HEADER_BYTES);
        break;
    case 3:
        most = 1 + below(bytes);
        break;
    default:
        break;
    }
    return most < bytes ? most : bytes;
}

static size_t total_of(const struct iovec *iov, size_t pieces)
{
    size_t total = 0;
    for (size_t i = 0; i < pieces; i++)
        total += iov[i].iov_len;
    return total;
}

/* Copy between a queue's place `at` and memory. */
static void queue_copy(struct queue *q, size_t at, uint8_t *data, size_t bytes, int into_queue)
{
    at %= q->room;
    size_t first = bytes < q->room - at ? bytes : q->room - at;
    if (into_queue) {
        memcpy(q->bytes + at, data, first);
        memcpy(q->bytes, data + first, bytes - first);
    } else {
        memcpy(data, q->bytes + at, first);
        memcpy(data + first, q->bytes, bytes - first);
    }
}

/* ---- The system calls ---- */

static int refused(int error)
{
    errno = error;
    return -1;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    int32_t pair = fd - FD_FIRST;
    struct queue *q = queue_of(pair / net_size, pair % net_size);
    size_t total = total_of(message->msg_iov, message->msg_iovlen), room = q->room - q->fill;
    int error = whim();
    (void)flags;
    if (cut[pair])
        return refused(EPIPE);
    if (error || room == 0)
        return refused(error ? error : EAGAIN);
    size_t n = some_of(total < room ? total : room), left = n;
    if (n >= q->until_cut) {
        n = left = q->until_cut;
        cut_pair(pair / net_size, pair % net_size);
    }
    for (size_t i = 0; left; i++) {
        size_t piece = message->msg_iov[i].iov_len < left ? message->msg_iov[i].iov_len : left;
        queue_copy(q, q->begin + q->fill, message->msg_iov[i].iov_base, piece, 1);
        q->fill += piece;
        left -= piece;
    }
    if (q->until_cut != SIZE_MAX)
        q->until_cut -= n;
    world->moves++;
    return (ssize_t)n;
}

ssize_t __wrap_readv(int fd, const struct iovec *iov, int pieces)
{
    int32_t pair = fd - FD_FIRST, self = pair / net_size, peer = pair % net_size;
    struct queue *q = queue_of(peer, self);
    size_t total = total_of(iov, (size_t)pieces);
    int error = whim();
    if (error)
        return refused(error);
    if (q->fill == 0 && cut[pair]) {
        world->moves++;
        return below(2) ? 0 : refused(ECONNRESET);
    }
    if (q->fill == 0)
        return refused(EAGAIN);
    size_t n = some_of(total < q->fill ? total : q->fill), left = n;
    for (int i = 0; left; i++) {
        size_t piece = iov[i].iov_len < left ? iov[i].iov_len : left;
        queue_copy(q, q->begin, iov[i].iov_base, piece, 0);
        q->begin = (q->begin + piece) % q->room;
        q->fill -= piece;
        left -= piece;
    }
    world->moves++;
    return (ssize_t)n;
}

ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
    struct iovec iov = { data, bytes };
    (void)flags;
    return __wrap_readv(fd, &iov, 1);
}

/* ---- Connecting ---- */

static void want(struct link *l)
{
    if (l->port.state != PORT_IDLE || l->port.table->closing)
        return;
    l->port.state = PORT_OPENING;
    wanted[wanted_count++] = l;
}

/* Each side comes up at a time of its own, as it does with real handshakes. */
void net_want(struct port *p)
{
    want(link_of(p));
    want(&world->meshes[p->peer]->links[p->table->rank]);
}

int net_connect_one(void)
{
    if (wanted_count == 0)
        return 0;
    size_t i = below(wanted_count);
    struct link *l = wanted[i];
    struct mesh *m = l->mesh;
    wanted[i] = wanted[--wanted_count];
    world->moves++;
    progress_enter(m);
    l->rx = malloc(TCP_RX_BYTES);
    l->fd = FD_FIRST + m->domain.peers.rank * net_size + l->port.peer;
    l->port.state = PORT_UP;
    l->port.heard = 1;
    link_flush(l);
    progress_leave(m);
    return 1;
}

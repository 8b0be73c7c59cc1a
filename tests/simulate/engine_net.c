/* Sockets in memory: one bounded queue for each direction of each pair of ranks, behind the system calls that link.c
 * makes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "backend_tcp/link.h"
#include "backend_tcp/mesh.h"
#include "backend_tcp/progress.h"
#include "engine.h"

enum { FD_FIRST = 1 << 20 }; /* no descriptor of this process is so high */

struct queue {
    uint8_t *bytes;
    size_t capacity, begin, fill;
    size_t until_cut; /* bytes; SIZE_MAX: never */
};

static struct queue *queues; /* [size * size], by sender and receiver */
static uint8_t *cut;         /* by pair, both ways */
static int32_t net_size;
static size_t net_capacity;

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap_readv(int fd, const struct iovec *iov, int pieces);

void net_open(int32_t size, size_t most_capacity)
{
    net_size = size;
    net_capacity = most_capacity;
    queues = calloc((size_t)size * (size_t)size, sizeof *queues);
    cut = calloc((size_t)size * (size_t)size, 1);
    for (int32_t i = 0; i < size * size; i++)
        queues[i].until_cut = SIZE_MAX;
}

void net_close(void)
{
    for (int32_t i = 0; i < net_size * net_size; i++)
        free(queues[i].bytes);
    free(queues);
    free(cut);
}

static struct queue *queue_of(int32_t from, int32_t to)
{
    struct queue *q = &queues[from * net_size + to];
    if (!q->bytes) {
        q->capacity = net_capacity;
        q->bytes = malloc(q->capacity);
    }
    return q;
}

static void cut_pair(int32_t a, int32_t b)
{
    cut[a * net_size + b] = cut[b * net_size + a] = 1;
}

static void net_cut(int32_t from, int32_t to, size_t after_bytes)
{
    queue_of(from, to)->until_cut = after_bytes;
    if (after_bytes == 0)
        cut_pair(from, to);
}

static int net_is_empty(void)
{
    for (int32_t i = 0; i < net_size * net_size; i++)
        if (queues[i].fill && world->domains[i % net_size]->peers.at[i / net_size]->state != PORT_LOST)
            return 0;
    return 1;
}

/* ---- What the adversary lets through ---- */

/* 0 to go on, or the errno of a call that does nothing. */
static int whim(void)
{
    if (generous)
        return 0;
    size_t r = below(32);
    return r < 4 ? EAGAIN : r < 6 ? EINTR : 0;
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
    at %= q->capacity;
    size_t first = bytes < q->capacity - at ? bytes : q->capacity - at;
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
    size_t total = total_of(message->msg_iov, message->msg_iovlen), capacity = q->capacity - q->fill;
    int error = whim();
    (void)flags;
    if (cut[pair])
        return refused(EPIPE);
    if (error || capacity == 0)
        return refused(error ? error : EAGAIN);
    size_t n = some_of(total < capacity ? total : capacity), left = n;
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
        q->begin = (q->begin + piece) % q->capacity;
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

/* ---- The backend over them ---- */

static const struct port_ops ports = {
    .open = world_want,
    .send = link_send,
    .send_text = link_send_text,
    .give_credit = link_give_credit,
    .read = link_read,
    .forget = link_forget,
    .sweep = link_sweep,
};

static struct mesh *mesh_of(struct domain *d)
{
    return (struct mesh *)d;
}

/* What mesh_open makes, without a listener, threads and the store. */
static struct domain *net_mesh(int32_t rank)
{
    struct mesh *m = calloc(1, sizeof *m);
    m->domain.world = 1;
    if (mesh_allocate(m, rank, world->size, "") != COMM_OK || progress_start(m) != COMM_OK)
        abort();
    for (int32_t i = 0; i < world->size; i++)
        m->links[i].port.ops = &ports;
    return &m->domain;
}

static void net_silence(struct domain *d)
{
    for (int32_t i = 0; i < world->size; i++) {
        d->peers.at[i]->state = PORT_LOST;
        link_of(d->peers.at[i])->fd = -1;
    }
}

static void net_close_mesh(struct domain *d)
{
    mesh_close(mesh_of(d), 0);
}

static comm_status net_group_open(struct domain *d, const comm_group_info *info, void **ret_state)
{
    return backend->group_open(mesh_of(d), info, ret_state);
}

static void net_group_close(void *state)
{
    backend->group_close(state, 0);
}

static void net_group_abort(void *state)
{
    backend->group_abort(state, COMM_ERR_ABORTED, "because");
}

static comm_status net_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    return backend->submit(state, ops, works, count);
}

static void net_enter(struct domain *d)
{
    progress_enter(mesh_of(d));
}

static void net_leave(struct domain *d)
{
    progress_leave(mesh_of(d));
}

static void net_visit(struct port *p)
{
    if (link_of(p)->tx_head && (generous || !one_in(4)))
        link_flush(link_of(p));
    if (p->state == PORT_UP && (generous || !one_in(4)))
        link_read(p);
}

static void net_up(struct port *p)
{
    struct link *l = link_of(p);
    progress_enter(l->mesh);
    l->rx = malloc(TCP_RX_BYTES);
    l->fd = FD_FIRST + p->table->rank * net_size + p->peer;
    p->state = PORT_UP;
    p->heard = 1;
    link_flush(l);
    progress_leave(l->mesh);
}

static int net_has_queued(const struct port *p, const void *owner, int begun)
{
    const struct link *l = (const struct link *)p;
    return owner ? link_has_queued(l, owner, begun) : l->tx_head != NULL;
}

static void net_check(const struct port *p)
{
    const struct link *l = (const struct link *)p;
    if (l->replies || l->rx_end)
        complain("link %d -> %d: %u answers and %zu B that were read are left", p->table->rank, p->peer, l->replies,
                 l->rx_end);
}

const struct sim_carrier sockets = {
    .name = "links",
    .open = net_mesh,
    .silence = net_silence,
    .close = net_close_mesh,
    .group_open = net_group_open,
    .group_close = net_group_close,
    .group_abort = net_group_abort,
    .submit = net_submit,
    .enter = net_enter,
    .visit = net_visit,
    .leave = net_leave,
    .up = net_up,
    .has_queued = net_has_queued,
    .check = net_check,
    .is_empty = net_is_empty,
    .cut = net_cut,
};

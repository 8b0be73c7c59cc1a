/* Reads and writes of one connection of the store client; see tcp_conn.h. */
#include "tcp_conn.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "base/error.h"

enum {
    LOOK_MS = 100,     /* until the connection can be woken */
    READ_BYTES = 4096,       /* what is asked for beyond what is needed: most replies fit */
    OUT_KEEP_BYTES = 1 << 20 /* a larger send buffer is freed when it is empty */
};

comm_status tcp_conn_create(int fd, struct tcp_conn **ret_conn)
{
    struct tcp_conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a connection to the store");
    }
    c->fd = fd;
    c->look_ms = LOOK_MS;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake_fd < 0) {
        comm_status status = comm__fail(COMM_ERR_SYSTEM, "eventfd: %s%s", strerror(errno),
                                        descriptors_cure(errno));
        tcp_conn_destroy(c);
        return status;
    }
    *ret_conn = c;
    return COMM_OK;
}

void tcp_conn_destroy(struct tcp_conn *c)
{
    if (!c)
        return;
    close(c->fd);
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    wire_buffer_finish(&c->out);
    wire_buffer_finish(&c->in);
    free(c);
}

void tcp_conn_wake(struct tcp_conn *c)
{
    eventfd_write(c->wake_fd, 1);
}

/* Wait until the socket is ready for `events`. */
static comm_status poll_for(struct tcp_conn *c, const struct store_wait *wait, short events)
{
    for (;;) {
        if (store_wait_closed(wait))
            return COMM_ERR_ABORTED;
        int64_t left = clock_left_ms(wait->deadline_ns);
        int64_t look = c->look_ms && (left < 0 || left > c->look_ms) ? c->look_ms : left;
        struct pollfd fds[2] = { { .fd = c->fd, .events = events }, { .fd = c->wake_fd, .events = POLLIN } };
        int n = poll(fds, 2, look > INT_MAX ? INT_MAX : (int)look);
        if (n < 0 && errno != EINTR)
            return comm__fail(COMM_ERR_SYSTEM, "poll: %s", strerror(errno));
        if (n == 0 && left == 0)
            return COMM_ERR_TIMEOUT;
        if (n > 0 && fds[0].revents)
            return COMM_OK;
        if (n > 0 && fds[1].revents) {
            eventfd_t ignored; /* a handle is being closed; the loop asks whether it is ours */
            eventfd_read(c->wake_fd, &ignored);
        }
    }
}

static comm_status lost(const char *what)
{
    return comm__fail(COMM_ERR_PEER_LOST, "the server closed the connection (%s)", what);
}

comm_status tcp_conn_send(struct tcp_conn *c, const struct store_wait *wait)
{
    if (c->out.failed)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a request to the store");
    size_t sent = 0;
    comm_status status = COMM_OK;
    while (sent < c->out.bytes && status == COMM_OK) {
        ssize_t n = send(c->fd, c->out.data + sent, c->out.bytes - sent, MSG_NOSIGNAL);
        if (n >= 0)
            sent += (size_t)n;
        else if (errno == EAGAIN)
            status = poll_for(c, wait, POLLOUT);
        else if (errno != EINTR)
            status = lost(strerror(errno));
    }
    c->out.bytes = 0;
    if (c->out.capacity > OUT_KEEP_BYTES)
        wire_buffer_finish(&c->out);
    return status;
}

/* One recv into `data`; *ret_bytes >= 1. */
static comm_status receive(struct tcp_conn *c, const struct store_wait *wait, void *data, size_t capacity,
                           size_t *ret_bytes)
{
    for (;;) {
        ssize_t n = recv(c->fd, data, capacity, 0);
        if (n > 0) {
            *ret_bytes = (size_t)n;
            return COMM_OK;
        }
        if (n == 0)
            return lost("end of stream");
        if (errno == EAGAIN) {
            comm_status status = poll_for(c, wait, POLLIN);
            if (status != COMM_OK)
                return status;
        } else if (errno != EINTR) {
            return lost(strerror(errno));
        }
    }
}

static size_t take(struct tcp_conn *c, uint8_t *to, size_t bytes)
{
    size_t n = c->in.bytes - c->taken < bytes ? c->in.bytes - c->taken : bytes;
    if (n > 0)
        memcpy(to, c->in.data + c->taken, n);
    c->taken += n;
    if (c->taken == c->in.bytes)
        c->taken = c->in.bytes = 0;
    return n;
}

comm_status tcp_conn_read(struct tcp_conn *c, const struct store_wait *wait, void *data, size_t bytes)
{
    uint8_t *to = data;
    size_t have = take(c, to, bytes);
    for (int first = 1; have < bytes; first = 0) {
        size_t n;
        comm_status status;
        if (!first && store_wait_over(wait)) /* a server may go on and on */
            return COMM_ERR_TIMEOUT;
        if (bytes - have >= READ_BYTES) { /* a large value goes straight where it belongs */
            status = receive(c, wait, to + have, bytes - have, &n);
            if (status != COMM_OK)
                return status;
            have += n;
            continue;
        }
        if (wire_reserve(&c->in, READ_BYTES) != 0)
            return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a reply of the store");
        status = receive(c, wait, c->in.data, READ_BYTES, &n);
        if (status != COMM_OK)
            return status;
        c->in.bytes = n;
        have += take(c, to + have, bytes - have);
    }
    return COMM_OK;
}

comm_status tcp_conn_read_u8(struct tcp_conn *c, const struct store_wait *wait, uint8_t *ret_value)
{
    return tcp_conn_read(c, wait, ret_value, 1);
}

comm_status tcp_conn_read_u64(struct tcp_conn *c, const struct store_wait *wait, uint64_t *ret_value)
{
    uint8_t bytes[8];
    comm_status status = tcp_conn_read(c, wait, bytes, sizeof bytes);
    if (status == COMM_OK)
        *ret_value = wire_u64(bytes);
    return status;
}

comm_status tcp_conn_read_value(struct tcp_conn *c, const struct store_wait *wait, void **ret_data, size_t *ret_bytes)
{
    uint64_t bytes;
    comm_status status = tcp_conn_read_u64(c, wait, &bytes);
    if (status != COMM_OK)
        return status;
    if (bytes > WIRE_REQUEST_MAX)
        return comm__fail(COMM_ERR_PROTOCOL, "the server sent a value of %llu B (limit 64 MiB)",
                          (unsigned long long)bytes);
    char *data = malloc(bytes + 1);
    if (!data)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a value of %llu B", (unsigned long long)bytes);
    status = tcp_conn_read(c, wait, data, bytes);
    if (status != COMM_OK) {
        free(data);
        return status;
    }
    data[bytes] = '\0';
    *ret_data = data;
    *ret_bytes = bytes;
    return COMM_OK;
}

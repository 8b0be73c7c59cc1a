#include "socket.h"

#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "tcp.h"

void socket_tune(int fd, void *mesh)
{
    const struct mesh *m = mesh;
    int on = 1, idle = 10, interval = 5, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    /* BBR, some systems' default, halves what loopback and private networks can do. Not allowed everywhere: never
     * mind. */
    if (*m->congestion)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, m->congestion, (socklen_t)strlen(m->congestion));
}

int socket_send_all(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

void socket_close(int *fd)
{
    int closing = *fd;
    *(volatile int *)fd = -1;
    if (closing >= 0)
        close(closing);
}

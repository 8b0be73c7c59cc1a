/* Each rank that joins listens at a port of its own, says in the store where, and closes it when it has come together
 * with the others, or has given up. The rank does not accept: the kernel completes the connections. A rank that has
 * waited for a moment connects to a few others (join.c says to which), and holds the connection: it ends with the
 * process. Works whatever the store is, and costs nothing as long as no rank has to wait. What it cannot tell: that a
 * process is stopped. A host that is cut off is noticed by keepalive. */
#include "lifeline.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>

#include "base/netaddr.h"

enum { BACKLOG = 128, KEEPALIVE_S = 1, KEEPALIVE_PROBES = 4, REFUSED_OFTEN = 3 };

void comm__lifeline_open(struct lifeline *l)
{
    char identity[NETADDR_IDENTITY_BYTES];
    int port = 0;
    l->endpoint[0] = '\0';
    l->listener = netaddr_listen(BACKLOG, &port);
    if (l->listener < 0)
        return;
    netaddr_identity(identity);
    int used = snprintf(l->endpoint, sizeof l->endpoint, "%s\n%d\n", identity, port);
    /* Without an address, the endpoint is for ranks of this host. */
    (void)netaddr_list(l->endpoint + used, sizeof l->endpoint - (size_t)used, NULL, NULL);
}

void comm__lifeline_close(struct lifeline *l)
{
    if (l->listener >= 0)
        close(l->listener);
    l->listener = -1;
}

/* ---- Watching ---- */

void comm__watch_begin(struct watch *w, const char *endpoint)
{
    char identity[NETADDR_IDENTITY_BYTES], copy[LIFELINE_ENDPOINT_BYTES];
    snprintf(copy, sizeof copy, "%s", endpoint);
    netaddr_identity(identity);
    *w = (struct watch){ .begun = 1, .fd = -1 };
    char *rest = copy, *theirs = strsep(&rest, "\n"), *port_text = strsep(&rest, "\n");
    int port = port_text ? atoi(port_text) : 0;
    if (port < 1 || port > 65535)
        return;
    w->same_host = strcmp(theirs, identity) == 0;
    if (w->same_host)
        w->count = netaddr_parse("127.0.0.1", port, &w->addresses[0]);
    for (char *line; !w->same_host && w->count < LIFELINE_ADDRESSES_MAX && (line = strsep(&rest, "\n"));)
        w->count += netaddr_parse(line, port, &w->addresses[w->count]);
}

static void hang_up(struct watch *w)
{
    if (w->begun && w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    w->connecting = w->connected = 0;
}

void comm__watch_end(struct watch *w)
{
    hang_up(w);
    w->begun = 0;
}

static void tune(int fd, void *context)
{
    int on = 1, seconds = KEEPALIVE_S, probes = KEEPALIVE_PROBES;
    (void)context;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* The attempt at an address is over: remember how, and go on to the next one at the next look. */
static void attempt_failed(struct watch *w, int error)
{
    int closed = error == ECONNREFUSED, no_way = error == ENETUNREACH || error == EHOSTUNREACH;
    hang_up(w);
    w->failures = closed || no_way ? w->failures + 1 : 0;
    w->refused = closed || (no_way && w->refused);
    w->next = (w->next + 1) % w->count;
}

static void look_at_attempt(struct watch *w)
{
    struct pollfd p = { .fd = w->fd, .events = POLLOUT };
    int error = 0;
    socklen_t bytes = sizeof error;
    if (poll(&p, 1, 0) <= 0)
        return;
    getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error) {
        attempt_failed(w, error);
        return;
    }
    w->connecting = 0;
    w->connected = 1;
}

static void begin_attempt(struct watch *w)
{
    w->fd = netaddr_connect(&w->addresses[w->next], tune, NULL);
    if (w->fd < 0)
        attempt_failed(w, errno);
    else
        w->connecting = 1;
}

int comm__watch_refused(const struct watch *w)
{
    return w->refused && w->failures >= REFUSED_OFTEN * w->count;
}

int comm__watch_look(struct watch *w)
{
    char byte;
    if (!w->begun || w->count == 0)
        return 0;
    if (!w->connecting && !w->connected)
        begin_attempt(w);
    if (w->connecting)
        look_at_attempt(w);
    if (w->connected) {
        ssize_t n = recv(w->fd, &byte, 1, MSG_DONTWAIT);
        return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    }
    return w->refused && w->same_host;
}

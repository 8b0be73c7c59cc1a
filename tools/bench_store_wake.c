/* How long it takes a server to wake many clients that wait for one key. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench_store.h"

enum { PATIENCE_MS = 20000 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int dial(const struct bench_load *load)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)load->port),
                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char hello[BENCH_REQUEST_BYTES];
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    size_t n = bench_wire_start(&load->wire, hello);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 && send(fd, hello, n, MSG_NOSIGNAL) == (ssize_t)n)
        return fd;
    close(fd);
    return -1;
}

/* Read one reply byte from every descriptor; 0, or -1 if somebody was not answered in time. */
static int read_all(struct pollfd *fds, int count)
{
    int left = count;
    for (int i = 0; i < count; i++)
        fds[i].events = POLLIN;
    while (left) {
        if (poll(fds, (nfds_t)count, PATIENCE_MS) <= 0)
            return -1;
        for (int i = 0; i < count; i++) {
            char reply;
            if (!(fds[i].revents & (POLLIN | POLLHUP | POLLERR)) || !fds[i].events)
                continue;
            if (recv(fds[i].fd, &reply, 1, 0) != 1)
                return -1;
            fds[i].events = 0;
            left--;
        }
    }
    return 0;
}

static int wake_once(const struct bench_load *load, struct pollfd *fds, int waiters, int setter, const char *key,
                     double *ret_us)
{
    char request[BENCH_REQUEST_BYTES + 8];
    for (int i = 0; i < waiters; i++) {
        size_t n = bench_wire_wait(&load->wire, request, key);
        if (send(fds[i].fd, request, n, MSG_NOSIGNAL) != (ssize_t)n)
            return -1;
    }
    /* All WAITs have been read when a later request of each waiter's neighbour on the same loop has been answered: a CHECK
     * round trip on the setter's own connection after a pause the length of one is what a client can see. */
    for (int i = 0; i < 50; i++) {
        char reply;
        size_t n = bench_wire_check(&load->wire, request, key);
        if (send(setter, request, n, MSG_NOSIGNAL) != (ssize_t)n || recv(setter, &reply, 1, 0) != 1)
            return -1;
    }
    size_t n = bench_wire_set(&load->wire, request, key, "x", 1);
    double begin = now_us();
    if (send(setter, request, n, MSG_NOSIGNAL) != (ssize_t)n || read_all(fds, waiters) != 0)
        return -1;
    *ret_us = now_us() - begin;
    return 0;
}

int bench_wake_run(const struct bench_load *load, int waiters, int repeats, double *ret_us, char *error, size_t room)
{
    struct pollfd *fds = calloc((size_t)waiters, sizeof *fds);
    int setter = dial(load), connected = 0, failed = !fds || setter < 0;
    while (!failed && connected < waiters) {
        fds[connected].fd = dial(load);
        failed = fds[connected].fd < 0;
        connected += !failed;
    }
    for (int r = 0; r < repeats && !failed; r++) {
        char key[BENCH_KEY_BYTES];
        snprintf(key, sizeof key, "wake%d.%d", waiters, r);
        failed = wake_once(load, fds, waiters, setter, key, &ret_us[r]) != 0;
    }
    if (failed)
        snprintf(error, room, "%d of %d clients could connect, or one was not woken within %d s", connected, waiters,
                 PATIENCE_MS / 1000);
    for (int i = 0; i < connected; i++)
        close(fds[i].fd);
    if (setter >= 0)
        close(setter);
    free(fds);
    return failed ? -1 : 0;
}

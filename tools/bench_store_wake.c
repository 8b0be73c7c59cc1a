/* How long it takes a server to wake many clients that wait for one key. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench_store.h"

enum { PATIENCE_MS = 20000, EVENTS = 256, ROUND_TRIPS = 2 };

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
    struct timeval limit = { .tv_sec = PATIENCE_MS / 1000 };
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    size_t n = bench_wire_start(&load->wire, hello);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 && send(fd, hello, n, MSG_NOSIGNAL) == (ssize_t)n)
        return fd;
    close(fd);
    return -1;
}

static void allow_descriptors(int count)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)count)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int bench_wake_prepare(struct bench_wake *wake, const struct bench_load *load, int waiters, char *error,
                       size_t capacity)
{
    *wake = (struct bench_wake){ .wire = load->wire, .setter = -1, .epoll = epoll_create1(EPOLL_CLOEXEC) };
    wake->fds = calloc((size_t)waiters, sizeof *wake->fds);
    allow_descriptors(waiters + 64);
    wake->setter = dial(load);
    while (wake->fds && wake->epoll >= 0 && wake->setter >= 0 && wake->waiters < waiters) {
        struct epoll_event event = { .events = EPOLLIN, .data.u32 = (uint32_t)wake->waiters };
        int fd = dial(load);
        if (fd < 0)
            break;
        wake->fds[wake->waiters++] = fd;
        if (epoll_ctl(wake->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
            break;
    }
    if (wake->waiters == waiters)
        return 0;
    snprintf(error, capacity, "%d of %d clients could connect: %s", wake->waiters, waiters, strerror(errno));
    return -1;
}

void bench_wake_finish(struct bench_wake *wake)
{
    for (int i = 0; i < wake->waiters; i++)
        close(wake->fds[i]);
    if (wake->setter >= 0)
        close(wake->setter);
    if (wake->epoll >= 0)
        close(wake->epoll);
    free(wake->fds);
}

/* Read one reply byte from every waiter; 0, or -1 if one was not answered in time, or wrongly. */
static int read_all(const struct bench_wake *wake)
{
    struct epoll_event events[EVENTS];
    for (int left = wake->waiters; left > 0;) {
        int n = epoll_wait(wake->epoll, events, EVENTS, PATIENCE_MS);
        if (n <= 0)
            return -1;
        for (int i = 0; i < n; i++, left--) {
            char reply = 1;
            if (recv(wake->fds[events[i].data.u32], &reply, 1, 0) != 1 || reply != 0)
                return -1;
        }
    }
    return 0;
}

static int wake_once(const struct bench_wake *wake, const char *key, double *ret_us)
{
    char request[BENCH_REQUEST_BYTES + 8];
    for (int i = 0; i < wake->waiters; i++) {
        size_t n = bench_wire_wait(&wake->wire, request, key);
        if (send(wake->fds[i], request, n, MSG_NOSIGNAL) != (ssize_t)n)
            return -1;
    }
    /* When the server has answered two later requests on another connection, it has been through all its sockets. */
    for (int i = 0; i < ROUND_TRIPS; i++) {
        char reply;
        size_t n = bench_wire_check(&wake->wire, request, key);
        if (send(wake->setter, request, n, MSG_NOSIGNAL) != (ssize_t)n || recv(wake->setter, &reply, 1, 0) != 1)
            return -1;
    }
    size_t n = bench_wire_set(&wake->wire, request, key, "x", 1);
    double begin = now_us();
    if (send(wake->setter, request, n, MSG_NOSIGNAL) != (ssize_t)n || read_all(wake) != 0)
        return -1;
    *ret_us = now_us() - begin;
    return 0;
}

int bench_wake_run(struct bench_wake *wake, double *ret_us, char *error, size_t capacity)
{
    char key[BENCH_KEY_BYTES];
    snprintf(key, sizeof key, "wake%d.%d", wake->waiters, wake->runs++);
    if (wake_once(wake, key, ret_us) == 0)
        return 0;
    snprintf(error, capacity, "a client was not woken within %d s, or was told something else", PATIENCE_MS / 1000);
    return -1;
}

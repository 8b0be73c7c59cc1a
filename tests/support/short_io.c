/* Reads and writes that stop anywhere. The linker puts these in place of the library's calls (--wrap): each moves a
 * random number of bytes, most often far fewer than the kernel would, and now and then says EAGAIN or EINTR though it
 * need not. The seed is SHORT_IO in the environment, else of the clock; it is printed. A number depends only on the
 * seed, the process (counted by fork) and how often it has called. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "random.h"

enum { PIECES_MAX = 64, WHOLE_BYTES = 128 };

static uint64_t key;
static atomic_uint_fast64_t calls;
static uint64_t forks;

static void count_fork(void)
{
    forks++;
}

static void forked(void)
{
    key = random_key(key, forks);
}

__attribute__((constructor)) static void begin(void)
{
    const char *given = getenv("SHORT_IO");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    printf("SHORT_IO=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    key = random_key(seed, 0);
    setenv("SHORT_IO_RUNS", "1", 1); /* for tests of which some part makes no sense then */
    pthread_atfork(count_fork, NULL, forked);
}

/* One call in 8 is put off, one in 16 interrupted; returns 0 with errno then. */
static int goes(uint64_t *state)
{
    *state = random_key(key, atomic_fetch_add(&calls, 1));
    size_t fate = random_below(state, 16);
    errno = fate < 2 ? EAGAIN : EINTR;
    return fate > 2;
}

/* 1 to `bytes`; every order of magnitude is as likely as another. */
static size_t shorter(uint64_t *state, size_t bytes)
{
    size_t bits = 0;
    while (bytes >> bits)
        bits++;
    size_t most = (size_t)1 << random_below(state, bits + 1);
    return bytes == 0 ? 0 : 1 + random_below(state, most < bytes ? most : bytes);
}

/* The first bytes of `from`, as long as they are to be; returns how many pieces. */
static int cut(uint64_t *state, const struct iovec *from, size_t count, struct iovec *to)
{
    size_t total = 0;
    int pieces = 0;
    if (count > PIECES_MAX)
        abort();
    for (size_t i = 0; i < count; i++)
        total += from[i].iov_len;
    for (size_t left = shorter(state, total); left; pieces++) {
        to[pieces] = from[pieces];
        if (to[pieces].iov_len > left)
            to[pieces].iov_len = left;
        left -= to[pieces].iov_len;
    }
    return pieces;
}

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __real_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __real_readv(int fd, const struct iovec *pieces, int count);
int __real_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap_readv(int fd, const struct iovec *pieces, int count);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    uint64_t state;
    struct iovec pieces[PIECES_MAX];
    struct msghdr less = *message;
    if (!goes(&state))
        return -1;
    less.msg_iov = pieces;
    less.msg_iovlen = (size_t)cut(&state, message->msg_iov, message->msg_iovlen, pieces);
    return __real_sendmsg(fd, &less, flags);
}

ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags)
{
    uint64_t state;
    /* A message of the handshake finds the socket's buffer empty, so the kernel takes it whole: see send_all in
     * mesh.c. */
    if ((flags & MSG_DONTWAIT) && bytes <= WHOLE_BYTES)
        return __real_send(fd, data, bytes, flags);
    return goes(&state) ? __real_send(fd, data, shorter(&state, bytes), flags) : -1;
}

ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
    uint64_t state;
    return goes(&state) ? __real_recv(fd, data, shorter(&state, bytes), flags) : -1;
}

ssize_t __wrap_readv(int fd, const struct iovec *pieces, int count)
{
    uint64_t state;
    struct iovec less[PIECES_MAX];
    return goes(&state) ? __real_readv(fd, less, cut(&state, pieces, (size_t)count, less)) : -1;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    uint64_t state;
    return goes(&state) ? __real_accept4(fd, address, bytes, flags) : -1;
}

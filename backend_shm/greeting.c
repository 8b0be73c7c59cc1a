#include "greeting.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char magic[8] = { 'l', 'c', 'o', 'm', 'm', 's', 'h', 'm' };

socklen_t greeting_address(const char *name, struct sockaddr_un *ret_address)
{
    size_t length = strlen(name);
    memset(ret_address, 0, sizeof *ret_address);
    ret_address->sun_family = AF_UNIX;
    memcpy(ret_address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

void greeting_token(const char *secret, char side, const char *name, const struct greeting_hello *hello,
                    uint8_t ret_token[GREETING_TOKEN_BYTES])
{
    _Static_assert(GREETING_TOKEN_BYTES == crypto_auth_hmacsha256_BYTES, "a token is a MAC");
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, (const unsigned char *)secret, strlen(secret));
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)&side, 1);
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)hello, offsetof(struct greeting_hello, token));
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)name, strlen(name));
    crypto_auth_hmacsha256_final(&state, ret_token);
}

int greeting_same(const uint8_t *a, const uint8_t *b)
{
    return sodium_memcmp(a, b, GREETING_TOKEN_BYTES) == 0;
}

void greeting_hello(const struct fabric *f, int32_t to, const char *name, struct greeting_hello *ret_hello)
{
    *ret_hello = (struct greeting_hello){ .version = GREETING_VERSION, .from = f->domain->peers.rank, .to = to,
                                          .world = f->domain->world };
    memcpy(ret_hello->magic, magic, sizeof magic);
    greeting_token(f->secret, 'C', name, ret_hello, ret_hello->token);
}

int greeting_is_hello(const struct greeting_hello *hello)
{
    return memcmp(hello->magic, magic, sizeof magic) == 0;
}

void greeting_random(void *out, size_t bytes)
{
    randombytes_buf(out, bytes);
}

pid_t greeting_peer(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    int is_ours = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
    return is_ours ? peer.pid : -1;
}

/* Aligned as its header wants it. */
union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(GREETING_FDS_MAX * sizeof(int))];
};

int greeting_send(int fd, const void *data, size_t bytes, const int *fds, int fd_count)
{
    union control control;
    struct iovec iov = { (void *)data, bytes };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
    if (fd_count) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof *fds);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof *fds);
        memcpy(CMSG_DATA(head), fds, (size_t)fd_count * sizeof *fds);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* Take the descriptors out of a message; those that are too many are closed. Returns how many there are. */
static int take_fds(struct msghdr *message, int *ret_fds, int most)
{
    int count = 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
            if (count < most)
                ret_fds[count] = fd;
            else
                close(fd);
            count++;
        }
    }
    return count;
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

ssize_t greeting_receive_any(int fd, void *data, size_t bytes, int *ret_fds, int *ret_count)
{
    union control control;
    struct iovec iov = { data, bytes };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control };
    *ret_count = 0;
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return n;
    int count = take_fds(&message, ret_fds, GREETING_FDS_MAX);
    int is_whole = (size_t)n == bytes && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && count <= GREETING_FDS_MAX;
    *ret_count = count <= GREETING_FDS_MAX ? count : GREETING_FDS_MAX;
    if (is_whole)
        return n;
    close_all(ret_fds, *ret_count);
    *ret_count = 0;
    errno = message.msg_flags & MSG_CTRUNC ? EMFILE : EPROTO;
    return -1;
}

ssize_t greeting_receive(int fd, void *data, size_t bytes, int *ret_fds, int fd_count)
{
    int fds[GREETING_FDS_MAX], count;
    ssize_t n = greeting_receive_any(fd, data, bytes, fds, &count);
    if (n <= 0)
        return n;
    if (count == fd_count) {
        memcpy(ret_fds, fds, (size_t)count * sizeof *fds);
        return n;
    }
    close_all(fds, count);
    errno = EPROTO;
    return -1;
}

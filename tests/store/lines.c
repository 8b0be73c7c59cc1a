/* See lines.h. */
#include "lines.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ranks.h"

static int nibble(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* One word without its end; gives where the next begins. */
static const char *parse_word(const char *word, uint8_t *bytes, uint8_t *any, size_t *n)
{
    if (*word == '\'') {
        for (word++; *word && *word != '\''; word++)
            bytes[(*n)++] = (uint8_t)*word;
        return word + 1;
    }
    if (strncmp(word, "??", 2) == 0) {
        CHECK(any != NULL);
        any[*n] = 1;
        bytes[(*n)++] = 0;
        return word + 2;
    }
    uint64_t value = 0;
    const char *begin = word;
    for (; nibble(*word) >= 0; word++)
        value = value << 4 | (uint64_t)nibble(*word);
    size_t width = strncmp(word, "..", 2) == 0 ? 8 : 1;
    CHECK(word > begin && word - begin <= 16 && (width == 8 || word - begin == 2));
    for (size_t i = 0; i < width; i++)
        bytes[(*n)++] = (uint8_t)(value >> (8 * i));
    return width == 8 ? word + 2 : word;
}

size_t lines_parse(const char *text, uint8_t bytes[LINES_BYTES_MAX], uint8_t any[LINES_BYTES_MAX])
{
    size_t n = 0;
    if (any)
        memset(any, 0, LINES_BYTES_MAX);
    while (*text) {
        text = *text == ' ' ? text + 1 : parse_word(text, bytes, any, &n);
        CHECK(n + 64 < LINES_BYTES_MAX);
    }
    return n;
}

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                 .sin_addr = { htonl(INADDR_LOOPBACK) } };
}

static int prepared(int fd)
{
    int on = 1;
    struct timeval limit = { .tv_sec = LINES_LIMIT_MS / 1000 };
    CHECK(fd >= 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return fd;
}

int lines_connect(int port)
{
    struct sockaddr_in a = loopback(port);
    int fd = prepared(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

int lines_listen(int *ret_port)
{
    struct sockaddr_in a = loopback(0);
    socklen_t bytes = sizeof a;
    int fd = prepared(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &bytes) == 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

int lines_accept(int listener)
{
    return prepared(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
}

void lines_send(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            ranks_fail(__FILE__, __LINE__, "sending to the other side: %s", strerror(errno));
        at += n;
        bytes -= (size_t)n;
    }
}

void lines_say(int fd, const char *text)
{
    uint8_t bytes[LINES_BYTES_MAX];
    lines_send(fd, bytes, lines_parse(text, bytes, NULL));
}

void lines_hear(int fd, const char *text)
{
    uint8_t want[LINES_BYTES_MAX], any[LINES_BYTES_MAX], got[LINES_BYTES_MAX];
    size_t count = lines_parse(text, want, any), n = 0;
    while (n < count) {
        ssize_t more = recv(fd, got + n, count - n, 0);
        if (more <= 0)
            ranks_fail(__FILE__, __LINE__, "after %zu of the %zu bytes of '%s': %s", n, count, text,
                       more == 0 ? "end of stream" : strerror(errno));
        for (size_t end = n + (size_t)more; n < end; n++)
            if (!any[n] && got[n] != want[n])
                ranks_fail(__FILE__, __LINE__, "byte %zu of '%s' is %02x, not %02x", n, text, got[n], want[n]);
    }
}

void lines_hear_end(int fd)
{
    uint8_t byte;
    ssize_t n = recv(fd, &byte, 1, 0);
    if (n > 0)
        ranks_fail(__FILE__, __LINE__, "it says %02x instead of closing the connection", byte);
    if (n < 0 && errno != ECONNRESET)
        ranks_fail(__FILE__, __LINE__, "the connection is not closed: %s", strerror(errno));
}

void lines_hear_nothing(int fd)
{
    uint8_t byte;
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
    if (n >= 0 || errno != EAGAIN)
        ranks_fail(__FILE__, __LINE__, "expected silence, got %s %02x", n > 0 ? "byte" : "the end", n > 0 ? byte : 0);
}

/* Make the store server's listening socket, and explain a port that is taken. */
#include "tcp_listen.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/error.h"

enum {
    BACKLOG = 65535, /* the kernel cuts it down to somaxconn: a whole job may connect in one moment */
    KEEPALIVE_IDLE_S = 60, /* a server may have ten thousand clients that only wait */
    KEEPALIVE_INTERVAL_S = 15,
    KEEPALIVE_PROBES = 4,
};

void tcp_tune(int fd)
{
    int on = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S, probes = KEEPALIVE_PROBES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int tcp_is_localhost(const char *host)
{
    static const char name[] = "localhost";
    size_t bytes = strlen(host), own = sizeof name - 1;
    bytes -= bytes > 0 && host[bytes - 1] == '.';
    if (bytes < own || strncasecmp(host + bytes - own, name, own) != 0)
        return 0;
    return bytes == own || host[bytes - own - 1] == '.';
}

int32_t tcp_listen_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return -1;
    if (address.ss_family == AF_INET)
        return ntohs(((struct sockaddr_in *)&address)->sin_port);
    if (address.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return -1;
}

/* The inode of the socket that listens on `port`, from one of the kernel's tables; 0 if there is none. */
static uint64_t listening_inode(const char *path, int32_t port)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    char line[512];
    uint64_t found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        unsigned local_port, state;
        uint64_t inode;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*d %" SCNu64, &local_port,
                   &state, &inode) == 3 &&
            state == 0x0A && local_port == (unsigned)port)
            found = inode;
    }
    fclose(file);
    return found;
}

static int process_has_socket(const char *pid, uint64_t inode)
{
    char path[320], want[64], have[64];
    snprintf(want, sizeof want, "socket:[%" PRIu64 "]", inode);
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    int found = 0;
    for (struct dirent *entry; !found && (entry = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, have, sizeof have - 1);
        if (n <= 0)
            continue;
        have[n] = '\0';
        found = strcmp(have, want) == 0;
    }
    closedir(dir);
    return found;
}

/* "; process 123 (python3) has it", or nothing if it cannot be told: other users' processes are hidden from us. */
static void describe_owner(int32_t port, char *text, size_t capacity)
{
    text[0] = '\0';
    uint64_t inode = listening_inode("/proc/net/tcp", port);
    if (!inode)
        inode = listening_inode("/proc/net/tcp6", port);
    DIR *dir = inode ? opendir("/proc") : NULL;
    if (!dir)
        return;
    for (struct dirent *entry; !text[0] && (entry = readdir(dir));) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !process_has_socket(entry->d_name, inode))
            continue;
        char path[320], name[64] = "?";
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file) {
            if (fgets(name, sizeof name, file))
                name[strcspn(name, "\n")] = '\0';
            fclose(file);
        }
        snprintf(text, capacity, "; process %.32s (%.32s) has it", entry->d_name, name);
    }
    closedir(dir);
}

static comm_status cannot_listen(const char *host, int32_t port, int error)
{
    char owner[128];
    if (error != EADDRINUSE)
        return comm__fail(COMM_ERR_SYSTEM, "serve a store on %s port %d: %s%s", host, port, strerror(error),
                          descriptors_cure(error));
    describe_owner(port, owner, sizeof owner);
    return comm__fail(COMM_ERR_SYSTEM,
                      "serve a store on %s port %d: the port is in use%s; choose another one, or port 0 to let the "
                      "system choose",
                      host, port, owner);
}

/* 0 and a socket, or the errno. */
static int listen_on(const struct sockaddr *address, socklen_t bytes, int *ret_fd)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6 &&
        IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr))
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, bytes) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        close(fd);
        return error;
    }
    *ret_fd = fd;
    return 0;
}

/* All addresses: one dual-stack socket, or IPv4 alone where the host has no IPv6. */
static comm_status listen_everywhere(int32_t port, int *ret_fd)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    int error = listen_on((struct sockaddr *)&six, sizeof six, ret_fd);
    if (error == 0)
        return COMM_OK;
    if (error != EADDRINUSE && error != EACCES) {
        struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
        error = listen_on((struct sockaddr *)&four, sizeof four, ret_fd);
    }
    return error ? cannot_listen("all addresses,", port, error) : COMM_OK;
}

static comm_status listen_at(const char *host, int32_t port, int *ret_fd)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    struct addrinfo *list = NULL;
    if (tcp_is_localhost(host))
        host = "127.0.0.1"; /* the first that clients try after ::1 has refused, and the one that every host has */
    int failure = getaddrinfo(host, service, &hints, &list);
    if (failure)
        return comm__fail(COMM_ERR_INVALID, "serve a store on '%s': %s", host, gai_strerror(failure));
    int error = EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a && error; a = a->ai_next)
        error = listen_on(a->ai_addr, a->ai_addrlen, ret_fd);
    freeaddrinfo(list);
    return error ? cannot_listen(host, port, error) : COMM_OK;
}

comm_status tcp_listen(const char *bind_to, int32_t port, int *ret_fd, int32_t *ret_port)
{
    comm_status status =
        bind_to && *bind_to ? listen_at(bind_to, port, ret_fd) : listen_everywhere(port, ret_fd);
    if (status == COMM_OK)
        *ret_port = tcp_listen_port(*ret_fd);
    return status;
}

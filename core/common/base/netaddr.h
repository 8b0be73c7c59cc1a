/* Where this process can be reached: the host's addresses as text, socket addresses from text, a listener. Header-only,
 * for core and for the tcp backend, which links to nothing of core's. */
#ifndef COMM_BASE_NETADDR_H
#define COMM_BASE_NETADDR_H

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NETADDR_IDENTITY_BYTES = 96 };

/* Equal texts: same kernel and network namespace, so loopback reaches. */
static inline void netaddr_identity(char text[NETADDR_IDENTITY_BYTES])
{
    char boot[65] = "", net[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (fgets(boot, sizeof boot, f))
            boot[strcspn(boot, "\n")] = '\0';
        fclose(f);
    }
    if (!*boot)
        gethostname(boot, sizeof boot - 1);
    ssize_t n = readlink("/proc/self/ns/net", net, sizeof net - 1);
    net[n > 0 ? n : 0] = '\0';
    snprintf(text, NETADDR_IDENTITY_BYTES, "%.40s %.40s", boot, net);
}

/* The host's addresses, a line each, as far as they fit: without loopback, link-local ones, and interfaces that
 * `wanted` (may be NULL) does not take. Gives the length, or -1 with errno. */
static inline int netaddr_list(char *text, size_t capacity, int (*wanted)(const char *list, const char *interface),
                               const char *list)
{
    struct ifaddrs *all = NULL;
    size_t used = 0;
    if (getifaddrs(&all) != 0)
        return -1;
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        char one[INET6_ADDRSTRLEN];
        const void *raw = NULL;
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK) ||
            (wanted && !wanted(list, i->ifa_name)))
            continue;
        if (i->ifa_addr->sa_family == AF_INET)
            raw = &((struct sockaddr_in *)i->ifa_addr)->sin_addr;
        else if (i->ifa_addr->sa_family == AF_INET6 &&
                 !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr))
            raw = &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr;
        if (raw && inet_ntop(i->ifa_addr->sa_family, raw, one, sizeof one) && used + strlen(one) + 2 < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "%s\n", one);
    }
    freeifaddrs(all);
    return (int)used;
}

/* 1, or 0 if the text is no address. */
static inline int netaddr_parse(const char *text, int port, struct sockaddr_storage *ret)
{
    struct sockaddr_in *four = (struct sockaddr_in *)ret;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret;
    memset(ret, 0, sizeof *ret);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return 1;
    }
    if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        return 1;
    }
    return 0;
}

/* Begin to connect to the address with a fresh socket, which is closed if that fails at once. Gives it, or -1 with
 * errno. */
static inline int netaddr_connect(const struct sockaddr_storage *a, void (*tune)(int fd, void *context), void *context)
{
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    tune(fd, context);
    socklen_t bytes = a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (connect(fd, (const struct sockaddr *)a, bytes) == 0 || errno == EINPROGRESS)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Listen at all addresses, at a port that the system chooses. Gives the socket, or -1 with errno. */
static inline int netaddr_listen(int backlog, int *ret_port)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
    struct sockaddr_in four = { .sin_family = AF_INET };
    struct sockaddr_storage a;
    socklen_t bytes = sizeof a;
    int off = 0, bound = 1, error;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (bind(fd, (struct sockaddr *)&six, sizeof six) != 0) {
            close(fd);
            fd = -1;
        }
    }
    if (fd < 0) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        bound = fd >= 0 && bind(fd, (struct sockaddr *)&four, sizeof four) == 0;
    }
    if (bound && listen(fd, backlog) == 0 && getsockname(fd, (struct sockaddr *)&a, &bytes) == 0) {
        *ret_port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                                  : ((struct sockaddr_in *)&a)->sin_port);
        return fd;
    }
    error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

#endif

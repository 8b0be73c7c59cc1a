#include "endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptors.h"
#include "base/netaddr.h"
#include "base/utf8.h"
#include "say.h"

void endpoint_text(const struct sockaddr_storage *a, char *text, size_t capacity)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
        int mapped = IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
        if (mapped)
            inet_ntop(AF_INET, &six->sin6_addr.s6_addr[12], host, sizeof host);
        else
            inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        snprintf(text, capacity, mapped ? "%s:%d" : "[%s]:%d", host, ntohs(six->sin6_port));
    } else {
        const struct sockaddr_in *four = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        snprintf(text, capacity, "%s:%d", host, ntohs(four->sin_port));
    }
}

/* Does a comma list of names take this interface? "eth0,ib" are prefixes, "=eth0" is exact, "^lo,docker" excludes. */
static int interface_wanted(const char *list, const char *name)
{
    if (!*list)
        return 1;
    int exclude = *list == '^';
    const char *at = list + exclude;
    while (*at) {
        size_t n = strcspn(at, ",");
        int exact = *at == '=';
        const char *word = at + exact;
        size_t length = n - (size_t)exact;
        if (length && strncmp(word, name, length) == 0 && (!exact || name[length] == '\0'))
            return !exclude;
        at += n + (at[n] == ',');
    }
    return exclude;
}

/* Where this rank is, for texts that others read: the first address that it publishes. */
static void note_own_place(struct mesh *m, const char *addresses)
{
    int bytes = (int)strcspn(addresses, "\n");
    int six = memchr(addresses, ':', (size_t)bytes) != NULL;
    snprintf(m->links[m->domain.peers.rank].port.where, sizeof m->links[0].port.where, "%.24s %s%.*s%s:%d",
             m->domain.peers.host_name, six ? "[" : "",
             bytes ? (bytes < 45 ? bytes : 45) : 9, bytes ? addresses : "127.0.0.1", six ? "]" : "", (int)m->tcp_port);
}

/* One line each: host name, identity, port, then the addresses. Loopback is not listed: peers with our identity try it
 * anyway. */
comm_status endpoint_publish(struct mesh *m)
{
    char key[32], endpoint[4096];
    int used = snprintf(endpoint, sizeof endpoint, "%s\n%s\n%d\n", m->domain.peers.host_name, m->host_identity,
                        (int)m->tcp_port);
    int listed = netaddr_list(endpoint + used, sizeof endpoint - (size_t)used, interface_wanted, m->interfaces);
    if (listed < 0)
        return exec_fail(COMM_ERR_SYSTEM, "listing this host's addresses: %s%s", strerror(errno),
                         descriptors_cure(errno));
    note_own_place(m, endpoint + used);
    snprintf(key, sizeof key, "tcp/%d", (int)m->domain.peers.rank);
    return exec_host->store_set(m->store, key, endpoint, (size_t)(used + listed));
}

int endpoint_read(struct link *l, char *endpoint)
{
    enum { CANDIDATES_MAX = 32 };
    char *rest = endpoint, *host = strsep(&rest, "\n"), *identity = strsep(&rest, "\n");
    char *port_text = strsep(&rest, "\n");
    int port = port_text ? atoi(port_text) : 0;
    free(l->candidates);
    l->candidates = calloc(CANDIDATES_MAX, sizeof *l->candidates);
    l->candidate_count = l->candidate_next = l->refusals = 0;
    if (!l->candidates || !host || !identity || port < 1 || port > 65535 || !rest)
        return -1;
    const int lists_any = *rest != '\0';
    l->same_host = strcmp(identity, l->mesh->host_identity) == 0;
    if (l->same_host)
        l->candidate_count += netaddr_parse("127.0.0.1", port, &l->candidates[0]);
    for (char *line; l->candidate_count < CANDIDATES_MAX && (line = strsep(&rest, "\n"));)
        l->candidate_count += netaddr_parse(line, port, &l->candidates[l->candidate_count]);
    char text[64] = "";
    if (l->candidate_count)
        endpoint_text(&l->candidates[0], text, sizeof text);
    host[utf8_clean(host, strnlen(host, 24))] = '\0'; /* the peer wrote it */
    snprintf(l->port.where, sizeof l->port.where, "%s%s%.50s", host, *text ? " " : "", text);
    return lists_any && l->candidate_count == 0 ? -1 : l->candidate_count;
}

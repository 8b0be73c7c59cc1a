/* The rule: two processes are on one host if they run on the same kernel as the same user, see the same /dev/shm, and
 * are in the same network name space. Then they can share memory, and reach each other by loopback. Containers have a
 * /dev/shm and a network name space of their own, so each is a host, unless they were given the same ones (a pod's
 * containers, or --ipc=host --network=host). Neither host names, which repeat among containers, nor the kernel's boot
 * id alone, which all containers of a machine have, would tell. In doubt the rule says "another host": that costs
 * speed, while memory that cannot be shared would be a failure. */
#include "host_id.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/netaddr.h"
#include "base/param.h"

enum { HOST_GIVEN_SHOWN = 40 };

struct identity {
    char network[NETADDR_IDENTITY_BYTES]; /* the kernel and the network name space */
    uint64_t memory, users, user;
};

static void read_identity(struct identity *i)
{
    struct stat memory = { 0 }, users = { 0 };
    netaddr_identity(i->network);
    if (stat("/dev/shm", &memory) != 0)
        memory.st_dev = 0;
    if (stat("/proc/self/ns/user", &users) != 0) /* in which name space geteuid counts */
        users.st_ino = 0;
    i->memory = (uint64_t)memory.st_dev;
    i->users = (uint64_t)users.st_ino;
    i->user = (uint64_t)geteuid();
}

uint64_t comm__host_id(void)
{
    char text[NETADDR_IDENTITY_BYTES + 96];
    const char *given = comm__param_text("host_id");
    struct identity own;
    if (*given)
        return XXH64(given, strlen(given), 1); /* another seed: no such text is a host's own identity */
    read_identity(&own);
    int bytes = snprintf(text, sizeof text, "%s %" PRIu64 " %" PRIu64 " %" PRIu64, own.network, own.memory, own.users,
                         own.user);
    return XXH64(text, (size_t)bytes, 0);
}

/* ---- What tells two hosts apart ---- */

void comm__host_parts_mine(char text[HOST_PARTS_TEXT])
{
    const char *given = comm__param_text("host_id");
    struct identity own;
    read_identity(&own);
    char *network = strrchr(own.network, ' ');
    *network++ = '\0';
    int used = snprintf(text, HOST_PARTS_TEXT, "%08" PRIx64 " %08" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " ",
                        XXH64(own.network, strlen(own.network), 0) >> 32, XXH64(network, strlen(network), 0) >> 32,
                        own.memory, own.users, own.user);
    snprintf(text + used, HOST_PARTS_TEXT - (size_t)used, "%.*s", HOST_GIVEN_SHOWN, given);
    for (char *at = text + used; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = '?';
}

struct parts {
    uint64_t kernel, network, memory, users, user;
    int given; /* where what COMM_HOST_ID says begins */
};

static int read_parts(const char *text, struct parts *p)
{
    return sscanf(text, "%" SCNx64 " %" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &p->kernel, &p->network,
                  &p->memory, &p->users, &p->user, &p->given) == 5 && text[p->given++] == ' ';
}

static void quote(const char *given, char text[HOST_PARTS_TEXT])
{
    if (*given)
        snprintf(text, HOST_PARTS_TEXT, "'%.40s%s'", given, strlen(given) < HOST_GIVEN_SHOWN ? "" : "...");
    else
        snprintf(text, HOST_PARTS_TEXT, "not set");
}

void comm__host_parts_differ(const char *mine, const char *theirs, char *text, size_t capacity)
{
    struct parts a, b;
    char given[2][HOST_PARTS_TEXT], user[80];
    *text = '\0';
    if (!read_parts(mine, &a) || !read_parts(theirs, &b))
        return;
    if (mine[a.given] || theirs[b.given]) {
        quote(mine + a.given, given[0]);
        quote(theirs + b.given, given[1]);
        snprintf(text, capacity, "have different values of COMM_HOST_ID (%s and %s)", given[0], given[1]);
        return;
    }
    snprintf(user, sizeof user, "as different users (%" PRIu64 " and %" PRIu64 ")", a.user, b.user);
    const struct {
        int differ;
        const char *what;
    } each[] = { { a.user != b.user, user },
                 { a.users != b.users, "in different user name spaces" },
                 { a.memory != b.memory, "with different file systems at /dev/shm" },
                 { a.network != b.network, "in different network name spaces" } };
    size_t used = 0;
    for (size_t i = 0; i < sizeof each / sizeof *each && a.kernel == b.kernel; i++)
        if (each[i].differ && used < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "%s %s",
                                     used ? " and" : "run on the same kernel, but", each[i].what);
}

/* ---- Numbers ---- */

struct seat {
    uint64_t id;
    int32_t rank;
};

static int by_id_and_rank(const void *a, const void *b)
{
    const struct seat *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

comm_status comm__hosts_number(const uint64_t *ids, int32_t size, int32_t *ret_hosts)
{
    struct seat *seats = malloc((size_t)size * sizeof *seats);
    int32_t first = 0, count = 0;
    if (!seats)
        return comm__fail(COMM_ERR_NO_MEMORY, "the hosts of %d ranks", size);
    for (int32_t r = 0; r < size; r++)
        seats[r] = (struct seat){ ids[r], r };
    qsort(seats, (size_t)size, sizeof *seats, by_id_and_rank);
    for (int32_t i = 0; i < size; i++) {
        if (i == 0 || seats[i].id != seats[i - 1].id)
            first = seats[i].rank;
        ret_hosts[seats[i].rank] = first;
    }
    free(seats);
    /* ret_hosts[r] is the first rank on r's host, which has its number already if it is not r. */
    for (int32_t r = 0; r < size; r++)
        ret_hosts[r] = ret_hosts[r] == r ? count++ : ret_hosts[ret_hosts[r]];
    return COMM_OK;
}

/* ---- As text ---- */

comm_status comm__hosts_write(const int32_t *hosts, int32_t size, char **ret_text)
{
    size_t bytes = 0;
    FILE *text = open_memstream(ret_text, &bytes);
    for (int32_t begin = 0, end; text && begin < size; begin = end) {
        for (end = begin + 1; end < size && hosts[end] == hosts[begin]; end++)
            continue;
        fprintf(text, "%d*%d,", end - begin, hosts[begin]);
    }
    if (text && fclose(text) == 0)
        return COMM_OK;
    return comm__fail(COMM_ERR_NO_MEMORY, "the hosts of %d ranks", size);
}

/* "4*0,"; 0 if it is not there. */
static int read_run(const char **at, long *ret_ranks, long *ret_host)
{
    char *end;
    *ret_ranks = strtol(*at, &end, 10);
    if (end == *at || *end != '*')
        return 0;
    *at = end + 1;
    *ret_host = strtol(*at, &end, 10);
    if (end == *at || *end != ',')
        return 0;
    *at = end + 1;
    return 1;
}

comm_status comm__hosts_read(const char *text, int32_t size, int32_t *ret_hosts)
{
    long ranks, host, count = 0;
    int32_t done = 0;
    for (const char *at = text; done < size; count += host == count) {
        if (!read_run(&at, &ranks, &host) || ranks < 1 || ranks > size - done || host < 0 || host > count)
            return comm__fail(COMM_ERR_PROTOCOL, "'%.40s' does not say which of %d ranks share a host", text, size);
        while (ranks-- > 0)
            ret_hosts[done++] = (int32_t)host;
    }
    return COMM_OK;
}

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

uint64_t comm__host_id(void)
{
    char network[NETADDR_IDENTITY_BYTES], text[NETADDR_IDENTITY_BYTES + 96];
    const char *given = comm__param_text("host_id");
    struct stat memory = { 0 }, users = { 0 };
    if (*given)
        return XXH64(given, strlen(given), 1); /* another seed: no such text is a host's own identity */
    netaddr_identity(network);
    if (stat("/dev/shm", &memory) != 0)
        memory.st_dev = 0;
    if (stat("/proc/self/ns/user", &users) != 0) /* in which name space geteuid counts */
        users.st_ino = 0;
    int bytes = snprintf(text, sizeof text, "%s %" PRIu64 " %" PRIu64 " %" PRIu64, network, (uint64_t)memory.st_dev,
                         (uint64_t)users.st_ino, (uint64_t)geteuid());
    return XXH64(text, (size_t)bytes, 0);
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

/* "auto" on several hosts with several ranks each, which COMM_HOST_ID pretends: ranks of one host share memory, those
 * of different ones are linked by TCP, and all of it is one group. Usage: two_levels [CASE]. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ranks.h"

/* Connections of this process, of a kind. A pair of ranks that share memory has one that is AF_UNIX. */
static int connections(int domain)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage peer;
        socklen_t bytes = sizeof peer, word = sizeof(int);
        int type;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &type, &word) == 0 && getpeername(fd, (void *)&peer, &bytes) == 0)
            count += type == domain || (domain == AF_INET && type == AF_INET6);
    }
    return count;
}

static int unix_before;

/* The host of each rank is a letter. */
static comm_group *world_on(const char *hosts, int rank, const char *backend)
{
    const char host[] = { hosts[rank], '\0' };
    setenv("COMM_HOST_ID", host, 1);
    unix_before = connections(AF_UNIX);
    return ranks_world(backend);
}

static void check_backend(comm_group *group, const char *expected)
{
    if (strcmp(comm_group_backend(group), expected) != 0)
        ranks_fail(__FILE__, __LINE__, "group '%s' is on '%s', not on '%s'", comm_group_name(group),
                   comm_group_backend(group), expected);
}

/* Every rank has something for every other one; so all are connected. (Blocks that are short would be passed on.) */
static void exchange(comm_group *group)
{
    enum { BLOCK = 2048, RANKS_MAX = 16 };
    static int32_t in[RANKS_MAX * BLOCK], out[RANKS_MAX * BLOCK];
    int32_t size = comm_group_size(group), rank = comm_group_rank(group);
    for (int32_t i = 0; i < size * BLOCK; i++)
        in[i] = rank * 100 + i / BLOCK;
    CHECK_OK(comm_all_to_all(group, in, out, BLOCK, COMM_DTYPE_I32, NULL, NULL));
    for (int32_t i = 0; i < size * BLOCK; i++)
        CHECK(out[i] == i / BLOCK * 100 + rank);
}

/* Each rank has so many peers that it shares memory with, and is linked to the others. Pairs that have begun from both
 * sides have two connections for a moment. */
static void check_connections(comm_group *world, int fellows)
{
    enum { TIMES_MAX = 3000 };
    int32_t right = 0;
    for (int i = 0; i < TIMES_MAX && !right; i++) {
        exchange(world);
        right = connections(AF_UNIX) - unix_before == fellows &&
                connections(AF_INET) == comm_group_size(world) - 1 - fellows;
        CHECK_OK(comm_all_reduce(world, &right, &right, 1, COMM_DTYPE_I32, COMM_REDOP_MIN, NULL, NULL));
    }
    if (!right)
        ranks_fail(__FILE__, __LINE__, "%d connections to ranks of this host, not %d, and %d to others",
                   connections(AF_UNIX) - unix_before, fellows, connections(AF_INET));
}

static void sum(comm_group *group, size_t count)
{
    int32_t size = comm_group_size(group), rank = comm_group_rank(group), *data = malloc(count * sizeof *data);
    CHECK(data);
    for (size_t i = 0; i < count; i++)
        data[i] = (int32_t)i + rank;
    CHECK_OK(comm_all_reduce(group, data, data, count, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    for (size_t i = 0; i < count; i++)
        CHECK(data[i] == (int32_t)i * size + size * (size - 1) / 2);
    free(data);
}

static int on_host(const char *hosts, int size, char host)
{
    int count = 0;
    for (int r = 0; r < size; r++)
        count += hosts[r] == host;
    return count;
}

static void local_ranks_share_memory(int rank, int size, void *arg)
{
    const char *hosts = arg;
    comm_group *world = world_on(hosts, rank, NULL);
    check_backend(world, "cpu:shm-tcp");
    check_connections(world, on_host(hosts, size, hosts[rank]) - 1);
    for (size_t count = 1; count <= 1000000; count *= 10)
        sum(world, count);
    CHECK_OK(comm_group_close(world));
}

static void groups_of_both_kinds(int rank, int size, void *arg)
{
    const char *hosts = arg;
    comm_group *world = world_on(hosts, rank, NULL), *host, *across;
    CHECK_OK(comm_group_split(world, hosts[rank], 0, NULL, &host));
    /* the first of each host, the second of each host ... */
    CHECK_OK(comm_group_split(world, on_host(hosts, rank, hosts[rank]), 0, NULL, &across));
    CHECK(strcmp(comm_group_backend(host), "cpu:shm-tcp") != 0);
    CHECK(strcmp(comm_group_backend(across), "cpu:shm-tcp") != 0);
    (void)size;
    for (int i = 0; i < 20; i++) {
        sum(world, 1000);
        sum(host, 1000);
        sum(across, 100000);
        exchange(world);
    }
    CHECK_OK(comm_group_close(across));
    CHECK_OK(comm_group_close(host));
    CHECK_OK(comm_group_close(world));
}

/* Is this address in memory that other processes can map? */
static int is_shared(const void *data)
{
    unsigned long long begin, end;
    char line[512], rights[8];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (!found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%llx-%llx %7s", &begin, &end, rights) == 3 && (uintptr_t)data >= begin &&
                (uintptr_t)data < end && rights[3] == 's';
    fclose(maps);
    return found;
}

/* Ranks of this host read it in place, those of others get it over TCP. */
static void registered_memory_is_shared(int rank, int size, void *arg)
{
    enum { COUNT = 300000 };
    comm_group *world = world_on(arg, rank, NULL);
    for (int turn = 0; turn < 3; turn++) {
        comm_memory *memory;
        void *data;
        CHECK_OK(comm_mem_alloc(world, COUNT * sizeof(int32_t), COMM_DEVICE_DEFAULT, &data, &memory));
        CHECK(is_shared(data));
        int32_t *values = data;
        for (int32_t i = 0; i < COUNT; i++)
            values[i] = i % 1000 + rank;
        CHECK_OK(comm_all_reduce(world, values, values, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        for (int32_t i = 0; i < COUNT; i++)
            CHECK(values[i] == i % 1000 * size + size * (size - 1) / 2);
        CHECK_OK(comm_mem_release(memory));
    }
    CHECK_OK(comm_group_close(world));
}

static void tcp_by_name_is_tcp_only(int rank, int size, void *arg)
{
    comm_group *world = world_on(arg, rank, "cpu:tcp");
    (void)size;
    check_backend(world, "cpu:tcp");
    check_connections(world, 0);
    CHECK_OK(comm_group_close(world));
}

/* By name it serves any hosts. */
static void one_host_by_name(int rank, int size, void *arg)
{
    comm_group *world = world_on(arg, rank, "cpu:shm-tcp");
    check_connections(world, size - 1);
    sum(world, 300000);
    CHECK_OK(comm_group_close(world));
}

/* It has the parameters of tcp and shm, and no others. */
static void options_reach_both(int rank, int size, void *arg)
{
    static const char *const wrong[] = { "cpu:auto?algo=nonesuch", "cpu:shm-tcp?tcp.algo=nonesuch" };
    (void)size;
    for (int i = 0; i < 2; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world;
        const char host[] = { ((const char *)arg)[rank], '\0' }, name[] = { 'w', (char)('0' + i), '\0' };
        setenv("COMM_HOST_ID", host, 1);
        options.backend = wrong[i];
        options.name = name;
        CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("nonesuch");
    }
}

static const struct {
    const char *name;
    void (*fn)(int rank, int size, void *arg);
    const char *hosts;
} cases[] = {
    { "2 and 2", local_ranks_share_memory, "aabb" },
    { "in turn", local_ranks_share_memory, "abab" },
    { "3 and 1", local_ranks_share_memory, "aaab" },
    { "1, 1 and 2", local_ranks_share_memory, "abcc" },
    { "3, 3 and 2", local_ranks_share_memory, "aaabbbcc" },
    { "3, 3 and 2 mixed", local_ranks_share_memory, "abcabcab" },
    { "groups", groups_of_both_kinds, "aabbab" },
    { "registered memory", registered_memory_is_shared, "aabba" },
    { "tcp by name", tcp_by_name_is_tcp_only, "aabb" },
    { "one host by name", one_host_by_name, "aaa" },
    { "options", options_reach_both, "aab" },
};

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ranks_options options = { .limit_s = 30, .name = cases[i].name };
        if (argc < 2 || strcmp(argv[1], cases[i].name) == 0)
            failed |= ranks_run((int)strlen(cases[i].hosts), &options, cases[i].fn, (void *)cases[i].hosts);
    }
    return failed;
}

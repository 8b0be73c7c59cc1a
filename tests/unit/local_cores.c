/* What a backend is told of the cores that the ranks of its host have: those of all of them, each counted once. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "keeper.h"
#include "ranks.h"

/* Which of two cores each rank may run on (a bit each), and its host; on a machine with one core, both are that one. */
struct scenario {
    const char *name;
    int32_t size;
    const char *cores, *hosts;
};

static const struct scenario scenarios[] = {
    { "one rank that is bound", 1, "2", "a" },
    { "one rank that is free", 1, "3", "a" },
    { "each has its own core", 2, "12", "aa" },
    { "both have the same core", 2, "22", "aa" },
    { "one is bound", 3, "313", "aaa" },
    { "three have the same core", 3, "111", "aaa" },
    { "each on a host of its own", 3, "121", "abc" },
    { "two hosts, by turns", 5, "12131", "ababa" },
    { "two hosts, the same cores", 4, "1133", "aabb" },
};

static cpu_set_t cores_of(char bits, const cpu_set_t *allowed)
{
    int first = 0, second;
    cpu_set_t chosen;
    while (!CPU_ISSET(first, allowed))
        first++;
    for (second = first + 1; second < CPU_SETSIZE && !CPU_ISSET(second, allowed);)
        second++;
    second = second < CPU_SETSIZE ? second : first;
    CPU_ZERO(&chosen);
    if (bits != '2')
        CPU_SET(first, &chosen);
    if (bits != '1')
        CPU_SET(second, &chosen);
    return chosen;
}

static void they_are_told(int rank, int size, void *arg)
{
    const struct scenario *s = arg;
    cpu_set_t allowed, mine, together;
    char host[] = { s->hosts[rank], '\0' };
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    mine = cores_of(s->cores[rank], &allowed);
    CPU_ZERO(&together);
    for (int r = 0; r < size; r++) {
        cpu_set_t theirs = cores_of(s->cores[r], &allowed);
        if (s->hosts[r] == *host)
            CPU_OR(&together, &together, &theirs);
    }
    CHECK(sched_setaffinity(0, sizeof mine, &mine) == 0);
    setenv("COMM_HOST_ID", host, 1);
    CHECK_OK(comm_backend_register(keeper_entry));
    comm_group *world = ranks_world("keeper");
    CHECK(keeper_world->local_cores == CPU_COUNT(&together));
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        struct scenario s = scenarios[i];
        struct ranks_options options = { .limit_s = 20, .name = s.name };
        failed |= ranks_run(s.size, &options, they_are_told, &s);
    }
    return failed;
}

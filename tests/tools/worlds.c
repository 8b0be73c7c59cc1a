/* A rank for launchers.py: opens worlds, one after the other and two at once, adds up in each, and says how many.
 * worlds fail-first: the first attempt of torchrun fails after it has met. */
#include <comm/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, comm_last_error());
    return 1;
}

static int add_up(comm_group *world)
{
    int32_t size = comm_group_size(world), value = comm_group_rank(world) + 1;
    if (comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL) != COMM_OK)
        return fail("all_reduce");
    if (value == size * (size + 1) / 2)
        return 0;
    fprintf(stderr, "the sum is %d\n", value);
    return 1;
}

int main(int argc, char **argv)
{
    enum { WORLDS = 4 };
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    comm_group *last = NULL;
    int32_t rank = -1, size = -1;
    for (int i = 0; i < WORLDS; i++) {
        comm_group *world;
        if (comm_init(NULL, &world) != COMM_OK)
            return fail("comm_init");
        if (add_up(world) || (last && add_up(last)))
            return 1;
        if (argc > 1 && strcmp(argv[1], "fail-first") == 0 && attempt && strcmp(attempt, "0") == 0)
            return 1;
        if (comm_group_close(last) != COMM_OK)
            return fail("comm_group_close");
        last = world;
        rank = comm_group_rank(world);
        size = comm_group_size(world);
    }
    if (comm_group_close(last) != COMM_OK)
        return fail("comm_group_close");
    printf("rank %d of %d: %d worlds\n", rank, size, WORLDS);
    return 0;
}

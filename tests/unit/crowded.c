/* Routes are asked for by what all ranks of the host know of its cores, on each backend that shares memory. */
#include <sched.h>
#include <stdlib.h>

#include "core/exec/select.h"
#include "ranks.h"

static const char *const backends[] = { "cpu:shm", "cpu:shm-tcp" };
static struct select_query asked; /* the last one */

struct route __real_select_route(const struct select_query *query, const struct select_overrides *overrides,
                                 const struct select_overrides *tuning);
struct route __wrap_select_route(const struct select_query *query, const struct select_overrides *overrides,
                                 const struct select_overrides *tuning);

struct route __wrap_select_route(const struct select_query *query, const struct select_overrides *overrides,
                                 const struct select_overrides *tuning)
{
    asked = *query;
    return __real_select_route(query, overrides, tuning);
}

static void routes_are_for_few_cores(int rank, int size, void *arg)
{
    const char *backend = arg;
    (void)rank;
    float value = 1;
    cpu_set_t allowed, mine;
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    int cores = CPU_COUNT(&allowed), first = 0;
    while (!CPU_ISSET(first, &allowed))
        first++;
    CPU_ZERO(&mine);
    CPU_SET(first, &mine);
    setenv("COMM_HOST_ID", "one", 1);
    for (int shares_cores = 1; shares_cores >= 0; shares_cores--) {
        CHECK(sched_setaffinity(0, sizeof mine, shares_cores ? &mine : &allowed) == 0);
        comm_group *world = ranks_world(backend);
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(asked.kind == COMM_OP_ALL_REDUCE && asked.size == size && asked.memory == SELECT_MEMORY_ALL);
        CHECK(asked.shares_cores == (shares_cores || cores < size));
        CHECK_OK(comm_group_close(world));
    }
}

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        struct ranks_options options = { .limit_s = 20, .name = backends[i] };
        failed |= ranks_run(2, &options, routes_are_for_few_cores, (void *)backends[i]);
    }
    return failed;
}

/* What ranks know of their host's cores, on each backend that shares memory: routes are asked for by that, and payloads
 * are left where they have come. */
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

enum { AS_IT_IS = -1 };
static int shares = AS_IT_IS; /* what ranks are told */
static int kept;              /* pieces of payloads */

int __real_waiting_shares_cores(const void *info);
int __wrap_waiting_shares_cores(const void *info);
int __real_keep_payload(void *p, const uint8_t *payload, size_t bytes);
int __wrap_keep_payload(void *p, const uint8_t *payload, size_t bytes);

int __wrap_waiting_shares_cores(const void *info)
{
    return shares == AS_IT_IS ? __real_waiting_shares_cores(info) : shares;
}

int __wrap_keep_payload(void *p, const uint8_t *payload, size_t bytes)
{
    int is_kept = __real_keep_payload(p, payload, bytes);
    kept += is_kept;
    return is_kept;
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

/* Those that have come before the operation has begun are not, so it is tried until all ranks have kept some. */
static void payloads_are_kept(int rank, int size, void *arg)
{
    enum { BLOCK = 16 << 10, MOST_TIMES = 1000 };
    static float blocks[3 * BLOCK], sum[BLOCK];
    setenv("COMM_HOST_ID", "one", 1);
    setenv("COMM_SHM_ALGO", "reduce_scatter:direct/64K", 1);
    setenv("COMM_TCP_ALGO", "reduce_scatter:direct/64K", 1);
    for (shares = 0; shares < 2; shares++) {
        int is_kept = shares || size > 2;
        comm_group *world = ranks_world(arg);
        int32_t lacks = 1;
        kept = 0;
        for (int time = 0; time < MOST_TIMES && lacks; time++) {
            for (int i = 0; i < size * BLOCK; i++)
                blocks[i] = (float)(i % 251 + rank);
            CHECK_OK(comm_reduce_scatter(world, blocks, sum, BLOCK, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL));
            for (int i = 0; i < BLOCK; i++)
                CHECK(sum[i] == (float)(size * ((rank * BLOCK + i) % 251) + size * (size - 1) / 2));
            lacks = is_kept ? !kept : time < 9;
            CHECK_OK(comm_all_reduce(world, &lacks, &lacks, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, NULL));
        }
        CHECK(is_kept == (kept > 0));
        CHECK_OK(comm_group_close(world));
    }
}

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        struct ranks_options options = { .limit_s = 20, .name = backends[i] };
        failed |= ranks_run(2, &options, routes_are_for_few_cores, (void *)backends[i]);
        failed |= ranks_run(2, &options, payloads_are_kept, (void *)backends[i]);
        failed |= ranks_run(3, &options, payloads_are_kept, (void *)backends[i]);
    }
    return failed;
}

/* Going on with the survivors: ranks are killed in the middle of work, the others shrink their groups and compute on.
 * And groups that overlap, nest and are used at the same time. Processes on tcp. */
#include <comm/comm.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

static int64_t sum_over(comm_group *group, int64_t value)
{
    int64_t sum = -7;
    CHECK_OK(comm_all_reduce(group, &value, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    return sum;
}

/* Which ranks die, as bits; set before the ranks start. */
struct deaths {
    unsigned first, second;
};

static int32_t list_of(unsigned bits, int32_t *ranks)
{
    int32_t count = 0;
    for (int32_t r = 0; r < 32; r++)
        if (bits >> r & 1)
            ranks[count++] = r;
    return count;
}

/* A rank dies only when all have left what they were in: this test is about what comes after. */
static void die_if(unsigned bits, int rank, comm_group *group)
{
    CHECK_OK(comm_store_barrier(comm_group_store(group), "before the death", comm_group_size(group), 0));
    if (bits >> rank & 1)
        kill(getpid(), SIGKILL);
}

/* Calls until one fails. It must be for a lost peer, and every later call says so too. */
static void use_until_lost(comm_group *group)
{
    comm_status status = COMM_OK;
    int64_t value = 1;
    while (status == COMM_OK)
        status = comm_all_reduce(group, &value, &(int64_t){ 0 }, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL);
    CHECK_STATUS(status, COMM_ERR_PEER_LOST);
    CHECK_STATUS(comm_barrier(group, NULL, NULL), COMM_ERR_PEER_LOST);
    CHECK_STATUS(comm_group_status(group), COMM_ERR_PEER_LOST);
}

static void survivors_go_on(int rank, int size, void *arg)
{
    const struct deaths *deaths = arg;
    comm_group *world = ranks_world("cpu:tcp"), *rest = NULL, *fewer = NULL, *pair = NULL;
    int32_t dead[8], dead_count = list_of(deaths->first, dead), mine = -1;
    CHECK(sum_over(world, 1) == size);
    die_if(deaths->first, rank, world);
    use_until_lost(world);
    CHECK_OK(comm_group_shrink(world, dead, (size_t)dead_count, NULL, &rest));
    const int left = size - dead_count;
    CHECK(comm_group_size(rest) == left);
    CHECK_OK(comm_group_world_rank(rest, comm_group_rank(rest), &mine));
    CHECK(mine == rank);
    for (int i = 0; i < 20; i++)
        CHECK(sum_over(rest, i) == i * left);
    /* Everything works on it: a split, messages, another death, and then a shrink of what was shrunk. */
    CHECK_OK(comm_group_split(rest, comm_group_rank(rest) / 2, 0, NULL, &pair));
    CHECK(sum_over(pair, 1) == comm_group_size(pair));
    CHECK_OK(comm_group_close(pair));
    if (deaths->second) {
        unsigned gone = 0;
        for (int32_t r = 0; r < left; r++) {
            CHECK_OK(comm_group_world_rank(rest, r, &mine));
            gone |= (deaths->second >> mine & 1) << r;
        }
        die_if(deaths->second, rank, rest);
        use_until_lost(rest);
        dead_count = list_of(gone, dead);
        CHECK_OK(comm_group_shrink(rest, dead, (size_t)dead_count, NULL, &fewer));
        CHECK(sum_over(fewer, 2) == 2 * (left - dead_count));
        CHECK_OK(comm_barrier(fewer, NULL, NULL));
        CHECK_OK(comm_group_close(fewer));
    }
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
}

static int has(const int32_t *ranks, size_t count, int32_t rank)
{
    for (size_t i = 0; i < count; i++)
        if (ranks[i] == rank)
            return 1;
    return 0;
}

/* The recipe of comm_group_lost_ranks: the survivors are not told which ranks died, and do not ask each other. */
static comm_group *shrink_by_the_recipe(comm_group *group, int32_t *lost, size_t capacity, size_t *ret_count)
{
    comm_group *rest = NULL;
    comm_status status;
    do {
        CHECK_OK(comm_group_close(rest));
        rest = NULL;
        CHECK_OK(comm_group_lost_ranks(group, lost, capacity, ret_count));
        status = comm_group_shrink(group, lost, *ret_count, NULL, &rest);
        if (status == COMM_OK)
            status = comm_barrier(rest, NULL, NULL);
    } while (status == COMM_ERR_PEER_LOST);
    CHECK_OK(status);
    return rest;
}

static void the_lost_are_known(int rank, int size, void *arg)
{
    const struct deaths *deaths = arg;
    comm_group *world = ranks_world("cpu:tcp"), *backwards;
    int32_t dead[8], lost[8], order[8];
    size_t dead_count = (size_t)list_of(deaths->first, dead), count;
    for (int r = 0; r < size; r++)
        order[r] = size - 1 - r;
    CHECK_OK(comm_group_create(world, order, (size_t)size, NULL, &backwards));
    CHECK(sum_over(world, 1) == size);
    die_if(deaths->first, rank, world);
    use_until_lost(world);
    comm_group *rest = shrink_by_the_recipe(world, lost, 8, &count);
    CHECK(count == dead_count && memcmp(lost, dead, count * sizeof *dead) == 0);
    CHECK(sum_over(rest, 1) == size - (int)dead_count);
    /* The same by the ranks of another group; and how many there are, without room for them. */
    CHECK_OK(comm_group_lost_ranks(backwards, lost, 8, &count));
    CHECK(count == dead_count);
    for (size_t i = 0; i < count; i++)
        CHECK(has(lost, count, size - 1 - dead[i]) && (i == 0 || lost[i] > lost[i - 1]));
    lost[0] = -7;
    CHECK_OK(comm_group_lost_ranks(world, lost, 0, &count));
    CHECK(count == dead_count && lost[0] == -7);
    CHECK_OK(comm_group_lost_ranks(rest, lost, 8, &count));
    CHECK(count == 0);
    CHECK_OK(comm_group_close(backwards));
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
}

/* A death is felt only by the groups that the dead rank was in. */
static void other_groups_are_not_touched(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp"), *half, *all;
    CHECK_OK(comm_group_split(world, rank / 2, 0, NULL, &half)); /* {0 1} {2 3} */
    CHECK_OK(comm_group_dup(world, NULL, &all));
    CHECK(sum_over(half, 1) == 2 && sum_over(all, 1) == 4);
    die_if(8, rank, world);
    if (rank == 2)
        use_until_lost(half);
    use_until_lost(all);
    if (rank < 2)
        for (int i = 0; i < 50; i++)
            CHECK(sum_over(half, i) == 2 * i);
    CHECK_OK(comm_group_close(all));
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(world));
}

/* ---- Many groups at once ---- */

struct worker {
    comm_group *group;
    pthread_t thread;
};

static void *work_on(void *context)
{
    struct worker *worker = context;
    const int size = comm_group_size(worker->group);
    for (int i = 0; i < 30; i++)
        CHECK(sum_over(worker->group, i) == (int64_t)i * size);
    return NULL;
}

/* Every rank is in several groups that overlap, in different orders of ranks, one nested in another, each with a
 * thread. */
static void groups_overlap_and_run_at_once(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world("cpu:tcp");
    struct worker workers[6];
    int32_t backwards[8], odd[8], count = 0, used = 0;
    for (int32_t r = 0; r < size; r++) {
        backwards[r] = size - 1 - r;
        if (r % 2)
            odd[count++] = r;
    }
    CHECK_OK(comm_group_dup(world, NULL, &workers[used++].group));
    CHECK_OK(comm_group_create(world, backwards, (size_t)size, NULL, &workers[used++].group));
    CHECK_OK(comm_group_create(workers[1].group, backwards, (size_t)size - 1, NULL, &workers[used].group)); /* nested */
    used += workers[used].group != NULL;
    CHECK_OK(comm_group_create(world, odd, (size_t)count, NULL, &workers[used].group));
    used += workers[used].group != NULL;
    CHECK_OK(comm_group_split(world, rank < 2, 0, NULL, &workers[used++].group));
    CHECK(comm_group_count(world) == used + 1);
    for (int i = 0; i < used; i++)
        CHECK(pthread_create(&workers[i].thread, NULL, work_on, &workers[i]) == 0);
    for (int i = 0; i < used; i++)
        pthread_join(workers[i].thread, NULL);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int i = 0; i < used; i++)
        CHECK_OK(comm_group_close(workers[i].group));
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    /* The first, the last, two at once, and one after the other; the server of the ranks' store is a file. */
    static struct deaths cases[] = { { 1, 0 }, { 8, 0 }, { 6, 0 }, { 2, 4 }, { 1, 6 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ranks_options may_die = { .may_fail = cases[i].first | cases[i].second, .name = "shrink" };
        if (ranks_run(4, &may_die, survivors_go_on, &cases[i]))
            return 1;
    }
    static struct deaths lost[] = { { 1, 0 }, { 32, 0 }, { 6, 0 }, { 41, 0 } };
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        const struct ranks_options may_die = { .may_fail = lost[i].first, .name = "lost" };
        if (ranks_run(6, &may_die, the_lost_are_known, &lost[i]))
            return 1;
    }
    const struct ranks_options last = { .may_fail = 8 };
    return ranks_run(4, &last, other_groups_are_not_touched, NULL) ||
           ranks_run(3, NULL, groups_overlap_and_run_at_once, NULL) ||
           ranks_run(5, NULL, groups_overlap_and_run_at_once, NULL);
}

/* tests/support/ranks.c itself: a rank that fails, dies or hangs makes the run fail, unless it may. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

static void all_is_well(int rank, int size, void *arg)
{
    (void)arg;
    CHECK(rank >= 0 && rank < size);
}

static void rank_1_fails(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    CHECK(rank != 1);
}

static void rank_1_dies(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    if (rank == 1)
        raise(SIGKILL);
}

static void rank_0_hangs(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    if (rank == 0)
        for (;;)
            pause();
}

static void the_store_is_shared(int rank, int size, void *arg)
{
    (void)arg;
    comm_store *store = ranks_store();
    int64_t came;
    CHECK_OK(comm_store_add(store, "came", 1, &came));
    if (came == size)
        CHECK_OK(comm_store_set(store, "all", "1", 1));
    const char *all[] = { "all" };
    CHECK_OK(comm_store_wait(store, all, 1, 20000));
    CHECK(rank < size);
    comm_store_close(store);
}

int main(void)
{
    const struct ranks_options short_limit = { .limit_s = 1 }, may_die = { .may_fail = 2 };
    return ranks_run(3, NULL, all_is_well, NULL) != 0 || ranks_run(3, NULL, rank_1_fails, NULL) != 1 ||
           ranks_run(3, NULL, rank_1_dies, NULL) != 1 || ranks_run(3, &may_die, rank_1_dies, NULL) != 0 ||
           ranks_run(3, &short_limit, rank_0_hangs, NULL) != 1 || ranks_run(4, NULL, the_store_is_shared, NULL) != 0;
}

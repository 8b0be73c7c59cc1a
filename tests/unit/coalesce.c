/* What a batch gives to its backend: copies of the caller's arrays and what its end was given; and that
 * it is used again. */
#include "core/coalesce.h"

#include <string.h>

#include "keeper.h"
#include "ranks.h"

static void end_and_finish(comm_group *group, int count)
{
    comm_work *work;
    CHECK_OK(comm_coalesce_end(group, NULL, &work));
    CHECK(keeper_count() == count);
    keeper_complete(COMM_OK, NULL);
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
}

static void the_backend_sees_copies_until_the_end(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    int32_t in = 1, out = 2;
    size_t counts[] = { 1 }, offsets[] = { 3 };
    void *list[] = { &out };
    float factor = 2, value = 1;
    char label[] = "mine";
    comm_work *work;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.label = label;
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_all_gather_v(world, &in, &out, counts, offsets, COMM_DTYPE_I32, &options, NULL));
    CHECK_OK(comm_all_gather_list(world, &in, list, counts, COMM_DTYPE_I32, NULL, NULL));
    options.premul = &factor;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, &options, NULL));
    counts[0] = offsets[0] = 99;
    list[0] = NULL;
    factor = 99;
    memset(label, 'x', sizeof label - 1);
    memset(&options, 0xff, sizeof options);
    CHECK(keeper_count() == 0);
    CHECK_OK(comm_coalesce_end(world, NULL, &work));
    CHECK(keeper_count() == 3);
    for (int i = 0; i < 3; i++) {
        struct kept kept = keeper_take(0);
        CHECK(i != 0 || (kept.op.recv.counts[0] == 1 && kept.op.recv.offsets[0] == 3));
        CHECK(i != 1 || kept.op.recv.list[0] == &out);
        CHECK(i != 2 || *(const float *)kept.op.premul == 2);
        CHECK(i == 1 || strcmp(kept.op.label, "mine") == 0);
        CHECK(comm_work_status(work) == COMM_IN_PROGRESS);
        keeper_host->work_complete(kept.work, COMM_OK, NULL);
    }
    CHECK_OK(comm_work_status(work));
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

/* And not that of the first operation, nor of the one that ended last. */
static void the_first_failure_is_the_batch_s(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    comm_work *work;
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < 3; i++)
        CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_coalesce_end(world, NULL, &work));
    keeper_host->work_complete(keeper_take(1).work, COMM_OK, NULL);
    keeper_host->work_complete(keeper_take(1).work, COMM_ERR_TRUNCATED, "the third");
    CHECK(comm_work_status(work) == COMM_IN_PROGRESS);
    keeper_host->work_complete(keeper_take(0).work, COMM_ERR_UNSUPPORTED, "the first");
    CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_TRUNCATED);
    CHECK_ERROR_SAYS("the third");
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

static void a_batch_is_used_again(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper");
    struct batch *batch = NULL;
    size_t works = 0;
    for (int round = 0; round < 4; round++) {
        CHECK_OK(comm_coalesce_begin(world));
        CHECK(round == 0 || comm__batch_of(world) == batch);
        batch = comm__batch_of(world);
        for (int i = 0; i < 20; i++)
            CHECK_OK(comm_barrier(world, NULL, NULL));
        if (round == 2)
            CHECK_OK(comm_coalesce_cancel(world));
        else
            end_and_finish(world, 20);
        CHECK(keeper_count() == 0 && comm__batch_of(world) == NULL);
        works = round == 0 ? world->work_count : works;
        CHECK(world->work_count == works);
    }
    CHECK_OK(comm_group_close(world));
}

static void two_groups_have_a_batch_each(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:keeper"), *copy;
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_coalesce_begin(copy));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_barrier(copy, NULL, NULL));
    CHECK_OK(comm_barrier(copy, NULL, NULL));
    end_and_finish(world, 1); /* the one that was begun first */
    end_and_finish(copy, 2);
    CHECK_OK(comm_group_close(copy));
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options how = { .threads = 1, .limit_s = 60, .name = "coalesce" };
    if (comm_backend_register(keeper_entry) != COMM_OK)
        return 1;
    return ranks_run(1, &how, the_backend_sees_copies_until_the_end, NULL) ||
           ranks_run(1, &how, the_first_failure_is_the_batch_s, NULL) ||
           ranks_run(1, &how, a_batch_is_used_again, NULL) || ranks_run(1, &how, two_groups_have_a_batch_each, NULL);
}

/* Round-robin groups: whose turn it is, on the loopback backend with threads and on tcp with processes. */
#include <comm/comm.h>
#include <string.h>

#include "loopback.h"
#include "ranks.h"

enum { LANES = 3 };

static const char *backend; /* set before the ranks start */

struct three {
    comm_group *world, *lanes[LANES], *turns;
};

static void open_three(struct three *t)
{
    t->world = ranks_world(backend);
    for (int i = 0; i < LANES; i++)
        CHECK_OK(comm_group_dup(t->world, NULL, &t->lanes[i]));
    CHECK_OK(comm_group_round_robin(t->lanes, LANES, NULL, &t->turns));
}

static void close_three(struct three *t)
{
    CHECK_OK(comm_group_close(t->turns));
    for (int i = 0; i < LANES; i++)
        CHECK_OK(comm_group_close(t->lanes[i]));
    CHECK_OK(comm_group_close(t->world));
}

static void check_seqs(const struct three *t, uint64_t a, uint64_t b, uint64_t c)
{
    CHECK(comm_group_seq(t->lanes[0]) == a && comm_group_seq(t->lanes[1]) == b && comm_group_seq(t->lanes[2]) == c);
}

static int32_t sum_over(comm_group *group, int32_t value)
{
    int32_t sum = -7;
    CHECK_OK(comm_all_reduce(group, &value, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    return sum;
}

static void collectives_take_turns(int rank, int size, void *arg)
{
    enum { OPS = 10 };
    (void)arg;
    struct three t;
    comm_group *found = NULL, *pair = NULL;
    comm_work *works[OPS];
    int32_t values[OPS], ranks[8];
    open_three(&t);
    CHECK(comm_group_rank(t.turns) == rank && comm_group_size(t.turns) == size);
    CHECK_OK(comm_group_ranks(t.turns, ranks));
    for (int r = 0; r < size; r++)
        CHECK(ranks[r] == r);
    CHECK(strncmp(comm_group_name(t.turns), "turns over 3 of world", 21) == 0);
    CHECK_OK(comm_group_find(t.world, comm_group_name(t.turns), &found));
    CHECK(found == t.turns && comm_group_device(t.turns) == COMM_DEVICE_CPU);
    CHECK(strcmp(comm_group_backend(t.turns), comm_group_backend(t.world)) == 0);
    for (int i = 0; i < OPS; i++) { /* all under way at once, on three groups */
        values[i] = rank + i;
        CHECK_OK(comm_all_reduce(t.turns, &values[i], &values[i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &works[i]));
        CHECK(comm_work_seq(works[i]) == (uint64_t)(i / LANES + 1));
        CHECK(comm_work_timeout(works[i]) == comm_group_timeout(t.turns));
    }
    CHECK_OK(comm_work_wait_all(works, OPS, 0));
    for (int i = 0; i < OPS; i++) {
        CHECK(values[i] == size * (size - 1) / 2 + i * size);
        comm_work_release(works[i]);
    }
    check_seqs(&t, 4, 3, 3);
    CHECK(comm_group_seq(t.turns) == OPS);
    CHECK(sum_over(t.turns, 1) == size); /* one that waits */
    check_seqs(&t, 4, 4, 3);
    /* The groups can be used on their own meanwhile. */
    CHECK(sum_over(t.lanes[0], 2) == 2 * size);
    check_seqs(&t, 5, 4, 3);
    /* Byte strings are two collectives each. */
    void *data = NULL;
    size_t bytes = 0;
    CHECK_OK(comm_broadcast_bytes(t.turns, "abc", rank == 0 ? 3 : 0, 0, NULL, &data, &bytes));
    CHECK(bytes == 3 && memcmp(data, "abc", 3) == 0);
    comm_free(data);
    check_seqs(&t, 6, 4, 4);
    /* A group made from it is an ordinary one. */
    CHECK_OK(comm_group_split(t.turns, rank % 2, 0, NULL, &pair));
    check_seqs(&t, 6, 5, 4);
    CHECK(sum_over(pair, 1) == (size + 1 - rank % 2) / 2);
    CHECK_OK(comm_group_close(pair));
    CHECK_OK(comm_monitored_barrier(t.turns, NULL));
    CHECK_OK(comm_group_flush(t.turns, 0));
    check_seqs(&t, 6, 5, 4);
    CHECK_OK(comm_barrier(t.world, NULL, NULL));
    close_three(&t);
}

static void only_what_happens_takes_a_turn(int rank, int size, void *arg)
{
    (void)arg;
    struct three t;
    comm_work *work = NULL;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t value = 1, got = -1;
    open_three(&t);
    CHECK_STATUS(comm_broadcast(t.turns, &value, 1, COMM_DTYPE_I32, size, NULL, NULL), COMM_ERR_INVALID);
    options.struct_bytes = 1;
    CHECK_STATUS(comm_barrier(t.turns, &options, NULL), COMM_ERR_INVALID);
    options.struct_bytes = sizeof options;
    CHECK(sum_over(t.turns, 1) == size);
    check_seqs(&t, 1, 0, 0);
    /* Point-to-point goes to the first group, on every rank. */
    if (rank == 1)
        CHECK_OK(comm_send(t.turns, &rank, 1, COMM_DTYPE_I32, 0, NULL, NULL));
    if (rank == 0) {
        CHECK_OK(comm_recv(t.lanes[0], &got, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, NULL, NULL));
        CHECK(got == 1);
    }
    /* A batch of collectives goes to one group; its own mistakes, an empty one and one of messages take no turn. */
    CHECK_STATUS(comm_coalesce_end(t.turns, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_coalesce_cancel(t.turns), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_begin(t.turns));
    CHECK_STATUS(comm_coalesce_begin(t.turns), COMM_ERR_INVALID);
    CHECK_STATUS(comm_broadcast(t.turns, &value, 1, COMM_DTYPE_I32, -1, NULL, NULL), COMM_ERR_INVALID);
    CHECK_OK(comm_coalesce_end(t.turns, NULL, &work));
    CHECK_OK(comm_work_status(work));
    comm_work_release(work);
    CHECK_OK(comm_coalesce_begin(t.turns));
    CHECK_STATUS(comm_barrier(t.turns, NULL, &work), COMM_ERR_INVALID);
    for (int i = 0; i < 5; i++) /* one turn, not five */
        CHECK_OK(comm_barrier(t.turns, NULL, NULL));
    CHECK_STATUS(comm_send(t.turns, &value, 1, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("not both");
    CHECK_OK(comm_coalesce_end(t.turns, NULL, &work));
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    check_seqs(&t, 1, 5, 0);
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    value = rank;
    CHECK_OK(comm_coalesce_begin(t.turns));
    CHECK_OK(comm_send(t.turns, &value, 1, COMM_DTYPE_I32, next, NULL, NULL));
    CHECK_OK(comm_recv(t.turns, &got, 1, COMM_DTYPE_I32, before, NULL, NULL));
    CHECK_OK(comm_coalesce_end(t.turns, NULL, NULL));
    CHECK(got == before);
    CHECK_OK(comm_coalesce_begin(t.turns));
    CHECK_OK(comm_barrier(t.turns, NULL, NULL));
    CHECK_OK(comm_coalesce_cancel(t.turns)); /* it has taken neither a turn nor a number */
    CHECK(comm_group_seq(t.turns) == 6);
    CHECK(sum_over(t.turns, 1) == size);
    check_seqs(&t, 1, 5, 1);
    CHECK_OK(comm_barrier(t.world, NULL, NULL));
    close_three(&t);
}

/* A batch that does not come to its end is this rank's own affair: nothing that the others could notice. */
static void a_batch_takes_its_turn_when_it_ends(int rank, int size, void *arg)
{
    (void)arg;
    struct three t;
    void *data;
    size_t *bytes;
    comm_work *work = NULL;
    int32_t one = 1, sums[4] = { 0 };
    open_three(&t);
    for (int round = 0; round < 7; round++) {
        if (rank == 0) {
            CHECK_OK(comm_coalesce_begin(t.turns));
            for (int i = 0; i < 3; i++)
                CHECK_OK(comm_barrier(t.turns, NULL, NULL));
            CHECK_OK(comm_coalesce_cancel(t.turns));
        }
        CHECK(sum_over(t.turns, 1) == size);
        CHECK(comm_group_seq(t.turns) == (uint64_t)round + 1);
    }
    check_seqs(&t, 3, 2, 2);
    /* What this thread does on a group of its own in between does not disturb the batch, nor it that. */
    CHECK_OK(comm_coalesce_begin(t.turns));
    CHECK_OK(comm_all_reduce(t.turns, &one, &sums[0], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(sum_over(t.lanes[1], 1) == size);
    CHECK_STATUS(comm_monitored_barrier(t.turns, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_all_gather_bytes(t.turns, "x", 1, NULL, &data, &bytes), COMM_ERR_INVALID);
    CHECK_OK(comm_all_reduce(t.turns, &one, &sums[1], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK_OK(comm_coalesce_end(t.turns, NULL, &work));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(sums[0] == size && sums[1] == size && comm_group_seq(t.turns) == 9);
    comm_work_release(work);
    check_seqs(&t, 3, 5, 2);
    CHECK_OK(comm_barrier(t.world, NULL, NULL));
    /* Closing drops what was only written down. */
    CHECK_OK(comm_coalesce_begin(t.turns));
    CHECK_OK(comm_barrier(t.turns, NULL, NULL));
    CHECK_OK(comm_coalesce_begin(t.lanes[2]));
    CHECK_OK(comm_barrier(t.lanes[2], NULL, NULL));
    close_three(&t);
}

static void end_in_callback(comm_work *work, comm_status status, void *context)
{
    (void)work, (void)status;
    CHECK_STATUS(comm_coalesce_end(context, NULL, NULL), COMM_ERR_INVALID);
}

static void an_end_that_is_refused_leaves_the_batch(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    struct three t;
    comm_work *work;
    open_three(&t);
    CHECK_OK(comm_barrier(t.world, NULL, &work));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK_OK(comm_coalesce_begin(t.turns));
    CHECK_OK(comm_barrier(t.turns, NULL, NULL));
    CHECK_OK(comm_work_on_complete(work, end_in_callback, t.turns));
    comm_work_release(work);
    CHECK(comm_group_seq(t.turns) == 0);
    CHECK_OK(comm_barrier(t.turns, NULL, NULL));
    CHECK_OK(comm_coalesce_end(t.turns, NULL, NULL));
    CHECK(comm_group_seq(t.turns) == 2);
    check_seqs(&t, 2, 0, 0);
    CHECK_OK(comm_barrier(t.world, NULL, NULL));
    close_three(&t);
}

static void mistakes_and_ends(int rank, int size, void *arg)
{
    (void)arg;
    struct three t;
    comm_group *other = NULL, *none = NULL;
    int32_t id = 0;
    open_three(&t);
    comm_group *const twice[] = { t.lanes[0], t.lanes[0] }, *const nested[] = { t.turns }, *const holes[] = { NULL };
    int32_t reversed[8];
    for (int r = 0; r < size; r++)
        reversed[r] = size - 1 - r;
    CHECK_OK(comm_group_create(t.world, reversed, (size_t)size, NULL, &other));
    comm_group *const different[] = { t.lanes[0], other };
    CHECK_STATUS(comm_group_round_robin(NULL, 2, NULL, &none), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_round_robin(t.lanes, 0, NULL, &none), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_round_robin(t.lanes, 3, NULL, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_round_robin(holes, 1, NULL, &none), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_round_robin(twice, 2, NULL, &none), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("is listed twice");
    CHECK_STATUS(comm_group_round_robin(nested, 1, NULL, &none), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_round_robin(different, 2, NULL, &none), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("do not have the same ranks in the same order");
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.backend = "cpu:tcp";
    CHECK_STATUS(comm_group_round_robin(t.lanes, 3, &options, &none), COMM_ERR_INVALID);
    CHECK(none == NULL);
    options.backend = NULL;
    options.name = "carousel";
    options.description = "round and round";
    options.timeout_ms = 2345;
    CHECK_OK(comm_group_round_robin(t.lanes, 3, &options, &none));
    CHECK(strcmp(comm_group_name(none), "carousel") == 0 && comm_group_timeout(none) == 2345);
    CHECK(strcmp(comm_group_description(none), "round and round") == 0);
    CHECK_OK(comm_group_close(none));
    CHECK_STATUS(comm_group_hook_add(t.turns, COMM_EVENT_END, (comm_event_fn)(void (*)(void))comm_free, NULL, &id),
                 COMM_ERR_UNSUPPORTED);
    /* One that is closed too early is named. */
    CHECK_OK(comm_group_round_robin(&other, 1, NULL, &none));
    CHECK(sum_over(none, 1) == size);
    CHECK_OK(comm_barrier(t.world, NULL, NULL));
    CHECK_OK(comm_group_close(other));
    CHECK_STATUS(comm_barrier(none, NULL, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("was closed before it");
    CHECK_OK(comm_group_close(none));
    /* An abort on one rank ends the groups on all. */
    for (int r = 1; r < size; r++) {
        if (rank == 0)
            CHECK_OK(comm_recv(t.world, NULL, 0, COMM_DTYPE_BYTE, r, NULL, NULL));
        if (rank == r)
            CHECK_OK(comm_send(t.world, NULL, 0, COMM_DTYPE_BYTE, 0, NULL, NULL));
    }
    CHECK_OK(comm_group_status(t.turns));
    if (rank == 0)
        CHECK_OK(comm_group_abort(t.turns, "enough of this"));
    else
        CHECK_STATUS(comm_barrier(t.turns, NULL, NULL), COMM_ERR_ABORTED);
    CHECK_STATUS(comm_group_status(t.turns), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("enough of this");
    CHECK_STATUS(comm_barrier(t.turns, NULL, NULL), COMM_ERR_ABORTED);
    CHECK_STATUS(comm_coalesce_begin(t.turns), COMM_ERR_ABORTED);
    CHECK_OK(comm_barrier(t.world, NULL, NULL)); /* the world goes on */
    close_three(&t);
}

/* A callback that submits to the group again must find no lock held. */
static void chain(comm_work *work, comm_status status, void *context)
{
    comm_work *next;
    (void)work;
    if (status == COMM_OK && comm_barrier(context, NULL, &next) == COMM_OK)
        comm_work_release(next);
}

static void a_callback_may_submit(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    struct three t;
    open_three(&t);
    for (uint64_t i = 0; i < 50; i++) {
        comm_work *work;
        CHECK_OK(comm_barrier(t.turns, NULL, &work));
        CHECK_OK(comm_work_on_complete(work, chain, t.turns));
        CHECK_OK(comm_work_wait(work, 0));
        comm_work_release(work);
        while (comm_group_seq(t.turns) < 2 * i + 2)
            ; /* until the callback has submitted its own */
        CHECK_OK(comm_group_flush(t.turns, 0));
    }
    CHECK(comm_group_seq(t.turns) == 100);
    check_seqs(&t, 34, 33, 33);
    CHECK_OK(comm_barrier(t.world, NULL, NULL));
    close_three(&t);
}

/* Groups that are made from one and from another of the same groups are not the same. */
static void two_over_the_same_groups(int rank, int size, void *arg)
{
    struct three t;
    comm_group *again, *copies[2], *found;
    comm_work *works[2];
    int32_t values[2] = { 1, 100 };
    (void)arg;
    open_three(&t);
    for (int round = 0; round < 3; round++) { /* both at a time, and one after the other */
        CHECK_OK(comm_group_round_robin(t.lanes, LANES, NULL, &again));
        CHECK_OK(comm_group_find(t.world, comm_group_name(again), &found));
        CHECK(found == again && strcmp(comm_group_name(again), comm_group_name(t.turns)) != 0);
        CHECK_OK(comm_group_dup(round == 1 ? again : t.turns, NULL, &copies[0]));
        CHECK_OK(comm_group_dup(round == 1 ? t.turns : again, NULL, &copies[1]));
        for (int i = 0; i < 2; i++) /* rank 1 does not come to the first one before the others are in the second one */
            CHECK_OK(comm_all_reduce(copies[rank == 1 ? 1 - i : i], &values[rank == 1 ? 1 - i : i],
                                     &values[rank == 1 ? 1 - i : i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL,
                                     &works[i]));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(comm_work_wait(works[i], 0));
            comm_work_release(works[i]);
        }
        CHECK(values[0] == size && values[1] == 100 * size);
        values[0] = 1;
        values[1] = 100;
        for (int i = 0; i < 2; i++)
            CHECK_OK(comm_group_close(copies[i]));
        CHECK_OK(comm_group_close(again));
    }
    CHECK_OK(comm_barrier(t.world, NULL, NULL));
    close_three(&t);
}

static int run(const struct ranks_options *how)
{
    for (int size = 1; size <= 5; size++)
        if (ranks_run(size, how, collectives_take_turns, NULL))
            return 1;
    return ranks_run(2, how, only_what_happens_takes_a_turn, NULL) ||
           ranks_run(3, how, only_what_happens_takes_a_turn, NULL) ||
           ranks_run(3, how, a_batch_takes_its_turn_when_it_ends, NULL) ||
           ranks_run(2, how, an_end_that_is_refused_leaves_the_batch, NULL) ||
           ranks_run(2, how, two_over_the_same_groups, NULL) ||
           ranks_run(3, how, two_over_the_same_groups, NULL) || ranks_run(3, how, mistakes_and_ends, NULL) ||
           ranks_run(3, how, a_callback_may_submit, NULL);
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "round_robin, loopback" };
    const struct ranks_options processes = { .limit_s = 60, .name = "round_robin, tcp" };
    if (comm_backend_register(loopback_entry) != COMM_OK)
        return 1;
    backend = "cpu:loopback";
    if (run(&threads))
        return 1;
    backend = "cpu:tcp";
    return run(&processes);
}

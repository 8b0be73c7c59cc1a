/* Works that a backend does not take, and several that end badly: the numbers that the ranks count, and which error is
 * told. */
#include <comm/comm.h>
#include <string.h>

#include "loopback.h"
#include "ranks.h"

/* ---- Loopback, but it may refuse ---- */

static const comm_host *host;
static comm_status (*submit_of_loopback)(void *, const comm_op *const *, comm_work *const *, size_t);
static _Thread_local int refuses; /* ranks are threads */

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    if (refuses > 0) {
        refuses--;
        return host->fail(COMM_ERR_NO_MEMORY, "no memory for it");
    }
    return submit_of_loopback(state, ops, works, count);
}

static const comm_backend *refusing_entry(const comm_host *given)
{
    static comm_backend backend;
    backend = *loopback_entry(given);
    backend.name = "refusing";
    submit_of_loopback = backend.submit;
    backend.submit = submit;
    host = given;
    return &backend;
}

static void check_sum(comm_group *world, int size)
{
    int32_t one = 1;
    CHECK_OK(comm_all_reduce(world, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(one == size);
}

/* What is refused on one rank has no number there either, or that rank would be ahead of the others. */
static void what_is_refused_is_not_counted(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:refusing");
    int32_t in[2] = { rank, rank }, out[2] = { -1, -1 };
    comm_work *work;
    (void)arg;
    check_sum(world, size);
    if (rank == 0) {
        refuses = 3;
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_NO_MEMORY);
        CHECK_STATUS(comm_all_reduce(world, in, out, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work),
                     COMM_ERR_NO_MEMORY);
        CHECK_STATUS(comm_send(world, in, 1, COMM_DTYPE_I32, 1, NULL, NULL), COMM_ERR_NO_MEMORY);
        CHECK(comm_group_seq(world) == 1);
        CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_barrier(world, NULL, NULL));
        CHECK_OK(comm_barrier(world, NULL, NULL));
        refuses = 1;
        CHECK_STATUS(comm_coalesce_end(world, NULL, NULL), COMM_ERR_NO_MEMORY);
        CHECK(comm_group_seq(world) == 1);
    }
    check_sum(world, size);
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK(comm_work_seq(work) == 3);
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    /* Point-to-point messages have a count of their own. */
    CHECK_OK(comm_send(world, in, 1, COMM_DTYPE_I32, (rank + 1) % size, NULL, &work));
    CHECK(comm_work_seq(work) == 1);
    CHECK_OK(comm_recv(world, out, 1, COMM_DTYPE_I32, (rank + size - 1) % size, NULL, NULL));
    CHECK(out[0] == (rank + size - 1) % size);
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    CHECK_OK(comm_group_close(world));
}

/* comm_work_wait_all tells the first error of the array, whichever ended first. */
static void wait_all_tells_the_first_error(int rank, int size, void *arg)
{
    enum { WORKS = 4 };
    comm_group *world = ranks_world("cpu:tcp");
    uint8_t data[64] = { 0 }, in[WORKS][64];
    comm_work *works[WORKS];
    (void)size, (void)arg;
    for (int i = WORKS - 1; i >= 0; i--) {
        comm_op_options o = COMM_OP_OPTIONS_INIT;
        o.tag = 70 + i;
        if (rank == 0)
            CHECK_OK(comm_send(world, data, 50, COMM_DTYPE_U8, 1, &o, NULL));
        else
            CHECK_OK(comm_recv(world, in[i], i == 0 ? 50 : 10, COMM_DTYPE_U8, 0, &o, &works[i]));
    }
    if (rank == 1) {
        CHECK_STATUS(comm_work_wait_all(works, WORKS, 20000), COMM_ERR_TRUNCATED);
        CHECK_ERROR_SAYS("tag 71");
        for (int i = 0; i < WORKS; i++)
            comm_work_release(works[i]);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1 };
    if (comm_backend_register(refusing_entry) != COMM_OK)
        return 1;
    return ranks_run(3, &threads, what_is_refused_is_not_counted, NULL) ||
           ranks_run(2, NULL, wait_all_tells_the_first_error, NULL);
}

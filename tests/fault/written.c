/* A rank is stopped while it may be writing its result to another rank's registered memory. That one's time limit ends
 * the operation, as late as ever; and what the stopped rank writes when it goes on does not come to memory that its
 * owner uses again by then. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "faults.h"

enum { ROUNDS = 8, LIMIT_MS = 300, FAULT_INQUEST_MS = 750, BYTES = 1 << 20, PATTERN = 0x5a };

struct scenario {
    struct page *page;
    int64_t delay_ns;
    size_t begin; /* of the vector in its memory: in the middle of a page, or not */
};

/* Some operations go well; in the next one the victim is stopped. */
static comm_status until_it_ends(comm_group *world, float *data, const struct scenario *s, int victim)
{
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    comm_status status = COMM_OK;
    const size_t count = BYTES / sizeof *data;
    limit.timeout_ms = LIMIT_MS;
    for (int i = 0; status == COMM_OK; i++) {
        comm_work *work;
        int32_t done;
        status = comm_all_reduce(world, data, data, count, COMM_DTYPE_F32, COMM_REDOP_SUM, &limit, &work);
        if (status != COMM_OK)
            break;
        if (victim >= 0 && i == 10) {
            for (int64_t end = fault_now_ns() + s->delay_ns; fault_now_ns() < end;)
                comm_work_test(work, &done);
            atomic_store(&s->page->event_ns, fault_now_ns());
            fault_stop(victim);
        }
        status = comm_work_wait(work, 0);
        comm_work_release(work);
    }
    return status;
}

static void one_is_stopped(int rank, int size, void *arg)
{
    const struct scenario *s = arg;
    const size_t bytes = BYTES + 2 * s->begin;
    comm_group *world = fault_world();
    comm_memory *memory;
    void *data;
    (void)size;
    CHECK_OK(comm_mem_alloc(world, bytes, COMM_DEVICE_CPU, &data, &memory));
    memset(data, 0, bytes);
    atomic_store(&s->page->pids[rank], getpid());
    CHECK_OK(comm_all_reduce(world, data, data, BYTES / 4, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL));
    fault_meet(s->page);
    int victim = rank == 0 ? atomic_load(&s->page->pids[1]) : -1;
    CHECK_STATUS(until_it_ends(world, (float *)((char *)data + s->begin), s, victim), COMM_ERR_DEADLINE);
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    if (rank == 0) {
        CHECK_NAMES(comm_last_error(), 1);
        memset(data, PATTERN, bytes);
        CHECK(kill(victim, SIGCONT) == 0);
    }
    fault_meet(s->page);
    for (size_t i = 0; rank == 0 && i < bytes; i++)
        if (((unsigned char *)data)[i] != PATTERN)
            ranks_fail(__FILE__, __LINE__, "byte %zu of memory that is in use again has been written", i);
    CHECK_OK(comm_mem_release(memory));
    CHECK_OK(fault_close(world));
}

int main(void)
{
    uint64_t random = fault_seed();
    int failed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct scenario s = { .page = page_new(2) };
        s.delay_ns = (int64_t)(fault_random(&random) % 40000);
        s.begin = round % 2 ? 4 * (fault_random(&random) % 2000) : 0;
        struct ranks_options options = { .limit_s = 25, .name = "rank 1 stopped while it writes" };
        failed |= fault_run(2, &options, one_is_stopped, &s);
        failed |= fault_noticed_late(s.page, 1, options.name, LIMIT_MS + FAULT_INQUEST_MS);
        page_free(s.page);
    }
    return failed;
}

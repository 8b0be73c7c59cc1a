/* Which operations of cpu:shm have their memory made of huge pages, that what they move stays right, and that none have
 * it when they must not. Exits with 77 where the system has no huge pages for programs. */
#include <comm/comm.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ranks.h"
#include "small_pages.h"

enum { PAGES = 4, LONG = PAGES * HUGE_BYTES, SHORT = HUGE_BYTES, TURNS = 8, SKIPPED = 77 };

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND_RECV };

struct one {
    const char *backend;
    enum kind kind;
    size_t bytes;  /* of the longer side */
    int in, out;   /* is that side to be made of huge pages? */
    int by_kernel; /* only if that reads the other rank's memory */
};

static comm_status call(comm_group *g, const struct one *o, const uint8_t *in, uint8_t *out)
{
    const comm_dtype u8 = COMM_DTYPE_U8;
    switch (o->kind) {
    case ALL_REDUCE:
        return comm_all_reduce(g, in, out, o->bytes, u8, COMM_REDOP_SUM, NULL, NULL);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(g, in, out, o->bytes / 2, u8, COMM_REDOP_SUM, NULL, NULL);
    case ALL_GATHER:
        return comm_all_gather(g, in, out, o->bytes / 2, u8, NULL, NULL);
    case ALL_TO_ALL:
        return comm_all_to_all(g, in, out, o->bytes / 2, u8, NULL, NULL);
    case BROADCAST:
        return comm_broadcast(g, out, o->bytes, u8, 0, NULL, NULL);
    default:
        return comm_group_rank(g) == 0 ? comm_send(g, in, o->bytes, u8, 1, NULL, NULL)
                                       : comm_recv(g, out, o->bytes, u8, 0, NULL, NULL);
    }
}

static uint8_t expected(const struct one *o, size_t i)
{
    if (o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER)
        return 3;
    return o->kind == BROADCAST || o->kind == SEND_RECV || i < o->bytes / 2 ? 1 : 2;
}

static size_t out_bytes(const struct one *o, int rank)
{
    return o->kind == REDUCE_SCATTER ? o->bytes / 2 : o->kind == SEND_RECV && rank == 0 ? 0 : o->bytes;
}

static int may_read_the_other(comm_group *g, const void *here)
{
    struct {
        int64_t pid;
        uint64_t at;
    } mine = { getpid(), (uintptr_t)here }, all[2];
    uint8_t byte;
    CHECK_OK(comm_all_gather(g, &mine, all, sizeof mine, COMM_DTYPE_U8, NULL, NULL));
    int other = 1 - comm_group_rank(g);
    struct iovec to = { &byte, 1 }, from = { (void *)(uintptr_t)all[other].at, 1 };
    int32_t may = process_vm_readv((pid_t)all[other].pid, &to, 1, &from, 1, 0) == 1;
    CHECK_OK(comm_all_reduce(g, &may, &may, 1, COMM_DTYPE_I32, COMM_REDOP_MIN, NULL, NULL));
    return may;
}

/* They are alike. TSan looks at each access of a loop over them. */
static void check_bytes(const struct one *o, const uint8_t *out, size_t begin, size_t end, int turn)
{
    if (begin == end || (out[begin] == expected(o, begin) && !memcmp(out + begin, out + begin + 1, end - begin - 1)))
        return;
    for (size_t i = begin; i < end; i++)
        if (out[i] != expected(o, i))
            ranks_fail(__FILE__, __LINE__, "turn %d, byte %zu: %d", turn, i, out[i]);
}

static void check_pages(const struct memory *m, int are_huge)
{
    long count = memory_huge_pages(m);
    CHECK(are_huge ? count > 0 : count == 0 || memory_is_huge_unasked());
}

static void run(int rank, int size, void *arg)
{
    const struct one *o = arg;
    struct memory in = memory_map(PAGES), out = memory_map(PAGES);
    comm_group *world = ranks_world(o->backend);
    (void)size;
    memory_set(in.data, (uint8_t)(rank + 1), in.bytes); /* no result depends on where an element lies */
    memory_set(out.data, 0, out.bytes);
    int is_left_out = o->by_kernel && !may_read_the_other(world, in.data);
    for (int turn = 0; turn < TURNS && !is_left_out; turn++) {
        size_t bytes = out_bytes(o, rank);
        memset(out.data, o->kind == BROADCAST ? rank + 1 : 0, bytes);
        CHECK_OK(call(world, o, in.data, out.data));
        size_t first = bytes < o->bytes / 2 ? bytes : o->bytes / 2;
        check_bytes(o, out.data, 0, first, turn);
        check_bytes(o, out.data, first, bytes, turn);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (is_left_out && rank == 0)
        printf("skipped in part: %s: the kernel does not let ranks read each other's memory\n", o->backend);
    if (!is_left_out) {
        check_pages(&in, o->in && !(o->kind == SEND_RECV && rank == 1));
        check_pages(&out, o->out && out_bytes(o, rank) > 0);
    }
    CHECK_OK(comm_group_close(world));
    memory_unmap(&in);
    memory_unmap(&out);
}

static const struct one cases[] = {
    { "cpu:shm?huge_pages=2", ALL_REDUCE, LONG, 1, 1, 0 },
    { "cpu:shm?huge_pages=2", REDUCE_SCATTER, LONG, 1, 1, 0 },
    { "cpu:shm?huge_pages=2", ALL_GATHER, LONG, 1, 1, 0 },
    { "cpu:shm?huge_pages=2", ALL_TO_ALL, LONG, 1, 1, 0 },
    { "cpu:shm?huge_pages=2", BROADCAST, LONG, 0, 1, 0 },
    { "cpu:shm?huge_pages=2", SEND_RECV, LONG, 1, 1, 0 },
    { "cpu:shm?huge_pages=2&cma_measured=0", ALL_TO_ALL, SHORT, 1, 0, 1 }, /* the kernel reads it */
    { "cpu:shm?huge_pages=2&cma_measured=0", SEND_RECV, SHORT / 2, 1, 0, 1 },
    { "cpu:shm-tcp?shm.huge_pages=2", ALL_GATHER, LONG, 1, 1, 0 },
    { "cpu:shm?huge_pages=2", ALL_REDUCE, SHORT, 1, 1, 1 }, /* the kernel might */
    { "cpu:shm?huge_pages=2&cma_bytes=0", ALL_REDUCE, SHORT, 0, 0, 0 }, /* it stays in the caches */
    { "cpu:shm?huge_pages=2&cma_bytes=0", ALL_TO_ALL, SHORT, 0, 0, 0 },
    { "cpu:shm?huge_pages=0", ALL_REDUCE, LONG, 0, 0, 0 },
    { "cpu:shm?huge_pages=0&cma_measured=0", ALL_TO_ALL, LONG, 0, 0, 0 },
    { "cpu:shm?huge_pages=1000", ALL_REDUCE, LONG, 0, 0, 0 },
    { "cpu:tcp", ALL_REDUCE, LONG, 0, 0, 0 },
};

int main(void)
{
    if (!memory_can_be_huge()) {
        printf("skipped: the system has no huge pages for programs\n");
        return SKIPPED;
    }
    if (memory_is_huge_unasked())
        printf("skipped in part: where there must be none, as the system makes huge pages unasked\n");
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        snprintf(name, sizeof name, "case %zu, kind %d on %s", i, (int)cases[i].kind, cases[i].backend);
        struct ranks_options options = { .name = name };
        failed |= ranks_run(2, &options, run, (void *)&cases[i]);
    }
    return failed;
}

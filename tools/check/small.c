#include "small.h"

#include <time.h>

#include "check.h"
#include "gpu.h"
#include "watch.h"

const int32_t *small_kinds(comm_group *group)
{
    static const int32_t all[] = { COMM_OP_ALL_REDUCE, COMM_OP_BARRIER, COMM_OP_ALL_GATHER,     COMM_OP_ALL_TO_ALL,
                                   COMM_OP_BROADCAST,  COMM_OP_REDUCE,  COMM_OP_REDUCE_SCATTER, COMM_OP_GATHER,
                                   COMM_OP_SCATTER };
    static _Thread_local int32_t can[10];
    int count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (comm_group_supports(group, all[i], COMM_DTYPE_I32, COMM_REDOP_SUM, COMM_DEVICE_CPU))
            can[count++] = all[i];
    can[count] = 0;
    return can;
}

int32_t small_kind(comm_group *group)
{
    const int32_t *kinds = small_kinds(group);
    if (!kinds[0])
        skip("the backend has no collective of i32 by sum");
    return kinds[0];
}

static comm_status call(struct small *s, comm_group *g, int32_t kind, const comm_op_options *o)
{
    const comm_dtype type = COMM_DTYPE_I32;
    const size_t count = SMALL_COUNT;
    bool at_root = comm_group_rank(g) == 0;
    switch (kind) {
    case COMM_OP_BROADCAST:
        return comm_broadcast(g, s->recv, count, type, 0, o, &s->work);
    case COMM_OP_ALL_REDUCE:
        return comm_all_reduce(g, s->send, s->recv, count, type, COMM_REDOP_SUM, o, &s->work);
    case COMM_OP_REDUCE:
        return comm_reduce(g, s->send, at_root ? s->recv : NULL, count, type, COMM_REDOP_SUM, 0, o, &s->work);
    case COMM_OP_ALL_GATHER:
        return comm_all_gather(g, s->send, s->recv, count, type, o, &s->work);
    case COMM_OP_GATHER:
        return comm_gather(g, s->send, at_root ? s->recv : NULL, count, type, 0, o, &s->work);
    case COMM_OP_SCATTER:
        return comm_scatter(g, at_root ? s->send : NULL, s->recv, count, type, 0, o, &s->work);
    case COMM_OP_REDUCE_SCATTER:
        return comm_reduce_scatter(g, s->send, s->recv, count, type, COMM_REDOP_SUM, o, &s->work);
    case COMM_OP_ALL_TO_ALL:
        return comm_all_to_all(g, s->send, s->recv, count, type, o, &s->work);
    default:
        return comm_barrier(g, o, &s->work);
    }
}

/* ---- What comes of it ---- */

/* Element `i` of what `from` gives to `to`, or to all. */
static int32_t given(int32_t from, int32_t to, int i)
{
    return from * 10000 + to * 1000 + i;
}

static void fill(struct small *s)
{
    int32_t rank = comm_group_rank(s->group), size = comm_group_size(s->group);
    for (int32_t to = 0; to < size; to++)
        for (int i = 0; i < SMALL_COUNT; i++) {
            s->send[to * SMALL_COUNT + i] = given(rank, to, i);
            s->recv[to * SMALL_COUNT + i] = s->kind == COMM_OP_BROADCAST && rank == 0 ? given(0, 0, i) : -1;
        }
}

static int32_t sum_of(int32_t size, int32_t to, int i)
{
    int32_t sum = 0;
    for (int32_t from = 0; from < size; from++)
        sum += given(from, to, i);
    return sum;
}

/* Element `i` of block `b` of the receive buffer, and -1 where nothing is received. */
static int32_t expected(const struct small *s, int32_t b, int i)
{
    int32_t rank = comm_group_rank(s->group), size = comm_group_size(s->group);
    bool first = b == 0, at_root = rank == 0;
    switch (s->kind) {
    case COMM_OP_BROADCAST:
        return first || at_root ? given(0, 0, i) : -1;
    case COMM_OP_ALL_REDUCE:
        return first ? sum_of(size, 0, i) : -1;
    case COMM_OP_REDUCE:
        return first && at_root ? sum_of(size, 0, i) : -1;
    case COMM_OP_ALL_GATHER:
        return given(b, 0, i);
    case COMM_OP_GATHER:
        return at_root ? given(b, 0, i) : -1;
    case COMM_OP_SCATTER:
        return first ? given(0, rank, i) : -1;
    case COMM_OP_REDUCE_SCATTER:
        return first ? sum_of(size, rank, i) : -1;
    case COMM_OP_ALL_TO_ALL:
        return given(b, rank, i);
    default:
        return -1;
    }
}

static void check(const struct small *s)
{
    const struct timespec moment = { 0, 100000000 };
    for (int32_t b = 0; b < comm_group_size(s->group); b++)
        for (int i = 0; i < SMALL_COUNT; i++) {
            int32_t got = s->recv[b * SMALL_COUNT + i];
            if (got == expected(s, b, i))
                continue;
            nanosleep(&moment, NULL);
            finding_ends(watch_late_writes() ? RULE_complete_visible : RULE_result,
                         "%s of %d i32 (by sum, root 0) on '%s': element %d of block %d is %d, not %d",
                         comm_op_traits_of(s->kind)->name, SMALL_COUNT, comm_group_name(s->group), i, b, got,
                         expected(s, b, i));
        }
}

/* ---- Its way ---- */

void small_free(struct small *s)
{
    gpu_buffer_free(COMM_DEVICE_CPU, s->send);
    gpu_buffer_free(COMM_DEVICE_CPU, s->recv);
    s->send = s->recv = NULL;
}

comm_status small_begin(struct small *s, comm_group *g, int32_t kind, const comm_op_options *options)
{
    size_t bytes = SMALL_COUNT * sizeof(int32_t) * (size_t)comm_group_size(g);
    *s = (struct small){ .group = g, .kind = kind };
    s->send = gpu_buffer(COMM_DEVICE_CPU, bytes);
    s->recv = gpu_buffer(COMM_DEVICE_CPU, bytes);
    fill(s);
    comm_status status = call(s, g, kind, options);
    if (status != COMM_OK)
        small_free(s);
    return status;
}

comm_status small_wait(struct small *s)
{
    comm_status status = comm_work_wait(s->work, 0);
    comm_work_release(s->work);
    s->work = NULL;
    if (status == COMM_OK)
        check(s);
    return status;
}

comm_status small_end(struct small *s)
{
    comm_status status = small_wait(s);
    small_free(s);
    return status;
}

void small_do(comm_group *g, int32_t kind)
{
    struct small s;
    comm_status status = small_begin(&s, g, kind, NULL);
    if (status == COMM_OK)
        status = small_end(&s);
    if (status != COMM_OK)
        finding_ends(RULE_result, "an operation of %d i32 failed with %s: %s", SMALL_COUNT, comm_status_name(status),
                     comm_last_error());
}

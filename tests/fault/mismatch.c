/* Ranks that call different operations: all of them get MISMATCH with both calls spelled out and both ranks named.
 * Wrong lengths of messages between two ranks are an error of that message only. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "faults.h"

enum { FEW = 24, MIDDLE = 12 << 10, MANY = 1 << 19 }; /* floats; MANY takes clearances */

/* Mapped: LeakSanitizer would read all of a static array when a rank ends. */
static float *send_buffer, *recv_buffer;

/* One side of a disagreement. */
typedef comm_status (*call_fn)(comm_group *g, const comm_op_options *o, comm_work **w);
#define CALL(name, expression)                                                                                         \
    static comm_status name(comm_group *g, const comm_op_options *o, comm_work **w)                                    \
    {                                                                                                                  \
        float *a = send_buffer, *b = recv_buffer;                                                                      \
        const comm_dtype f32 = COMM_DTYPE_F32;                                                                         \
        (void)a, (void)b, (void)f32;                                                                                   \
        return expression;                                                                                             \
    }
CALL(all_reduce, comm_all_reduce(g, a, b, FEW, f32, COMM_REDOP_SUM, o, w))
CALL(all_reduce_more, comm_all_reduce(g, a, b, FEW + 1, f32, COMM_REDOP_SUM, o, w))
CALL(all_reduce_none, comm_all_reduce(g, a, b, 0, f32, COMM_REDOP_SUM, o, w))
CALL(all_reduce_max, comm_all_reduce(g, a, b, FEW, f32, COMM_REDOP_MAX, o, w))
CALL(all_reduce_int, comm_all_reduce(g, a, b, FEW, COMM_DTYPE_I32, COMM_REDOP_SUM, o, w))
CALL(all_reduce_large, comm_all_reduce(g, a, b, MANY, f32, COMM_REDOP_SUM, o, w))
CALL(all_reduce_middle, comm_all_reduce(g, a, b, MIDDLE, f32, COMM_REDOP_SUM, o, w))
CALL(all_reduce_large_min, comm_all_reduce(g, a, b, MANY, f32, COMM_REDOP_MIN, o, w))
CALL(all_gather, comm_all_gather(g, a, b, FEW, f32, o, w))
CALL(reduce_scatter, comm_reduce_scatter(g, a, b, FEW, f32, COMM_REDOP_SUM, o, w))
CALL(barrier, comm_barrier(g, o, w))
CALL(broadcast_0, comm_broadcast(g, a, FEW, f32, 0, o, w))
CALL(broadcast_1, comm_broadcast(g, a, FEW, f32, 1, o, w))
CALL(broadcast_large_0, comm_broadcast(g, a, MANY, f32, 0, o, w))
CALL(broadcast_large_1, comm_broadcast(g, a, MANY, f32, 1, o, w))
CALL(reduce_0, comm_reduce(g, a, b, FEW, f32, COMM_REDOP_SUM, 0, o, w))
CALL(reduce_1, comm_reduce(g, a, b, FEW, f32, COMM_REDOP_SUM, 1, o, w))
CALL(gather_0, comm_gather(g, a, b, FEW, f32, 0, o, w))
CALL(gather_1, comm_gather(g, a, b, FEW, f32, 1, o, w))
CALL(scatter_0, comm_scatter(g, a, b, FEW, f32, 0, o, w))
CALL(scatter_1, comm_scatter(g, a, b, FEW, f32, 1, o, w))
CALL(all_to_all, comm_all_to_all(g, a, b, FEW, f32, o, w))
CALL(all_to_all_more, comm_all_to_all(g, a, b, FEW + 8, f32, o, w))

static const size_t *even(size_t count)
{
    static size_t counts[FAULT_RANKS_MAX];
    for (int r = 0; r < FAULT_RANKS_MAX; r++)
        counts[r] = count;
    return counts;
}

static const size_t *uneven(size_t count)
{
    static size_t counts[FAULT_RANKS_MAX];
    for (int r = 0; r < FAULT_RANKS_MAX; r++)
        counts[r] = count + (size_t)(r == 0);
    return counts;
}

CALL(all_gather_v, comm_all_gather_v(g, a, b, even(FEW), NULL, f32, o, w))
CALL(all_gather_v_other, comm_all_gather_v(g, a, b, uneven(FEW), NULL, f32, o, w))
CALL(reduce_scatter_v, comm_reduce_scatter_v(g, a, b, even(FEW), f32, COMM_REDOP_SUM, o, w))
CALL(reduce_scatter_v_other, comm_reduce_scatter_v(g, a, b, uneven(FEW), f32, COMM_REDOP_SUM, o, w))
CALL(gather_v, comm_gather_v(g, a, FEW, b, even(FEW), NULL, f32, 0, o, w))
CALL(gather_v_short, comm_gather_v(g, a, FEW - 1, b, even(FEW), NULL, f32, 0, o, w))
CALL(gather_v_large, comm_gather_v(g, a, MANY, b, even(MANY), NULL, f32, 0, o, w))
CALL(gather_v_large_short, comm_gather_v(g, a, MANY - 1, b, even(MANY), NULL, f32, 0, o, w))
CALL(scatter_v, comm_scatter_v(g, a, even(FEW), NULL, b, FEW, f32, 0, o, w))
CALL(scatter_v_more, comm_scatter_v(g, a, even(FEW), NULL, b, FEW + 1, f32, 0, o, w))
CALL(all_to_all_v, comm_all_to_all_v(g, a, even(FEW), NULL, b, even(FEW), NULL, f32, o, w))
CALL(all_to_all_v_other, comm_all_to_all_v(g, a, uneven(FEW), NULL, b, uneven(FEW), NULL, f32, o, w))

static const struct disagreement {
    call_fn ours, theirs;
    /* in the error; of a block's length: behind the names of rank 0 and of the odd one */
    const char *ours_text, *theirs_text;
} table[] = {
    { all_reduce, all_gather, "all_reduce(24 x f32, sum)", "all_gather(24 x f32)" },
    { all_reduce, barrier, "all_reduce(24 x f32, sum)", "barrier()" },
    { all_reduce, all_reduce_more, "all_reduce(24 x f32, sum)", "all_reduce(25 x f32, sum)" },
    { all_reduce, all_reduce_max, "all_reduce(24 x f32, sum)", "all_reduce(24 x f32, max)" },
    { all_reduce, all_reduce_int, "all_reduce(24 x f32, sum)", "all_reduce(24 x i32, sum)" },
    { all_reduce_large, all_reduce_large_min, "all_reduce(524288 x f32, sum)", "all_reduce(524288 x f32, min)" },
    { all_reduce_large, barrier, "all_reduce(524288 x f32, sum)", "barrier()" },
    { reduce_scatter, all_to_all, "reduce_scatter(24 x f32, sum)", "all_to_all(24 x f32)" },
    { all_reduce, all_reduce_none, "all_reduce(24 x f32, sum)", "all_reduce(0 x f32, sum)" },
    { all_to_all, all_to_all_more, "all_to_all(24 x f32)", "all_to_all(32 x f32)" },
    { broadcast_0, broadcast_1, "broadcast(24 x f32, root 0)", "broadcast(24 x f32, root 1)" },
    { broadcast_1, broadcast_0, "broadcast(24 x f32, root 1)", "broadcast(24 x f32, root 0)" },
    { broadcast_large_0, broadcast_large_1, "broadcast(524288 x f32, root 0)", "broadcast(524288 x f32, root 1)" },
    { broadcast_0, gather_0, "broadcast(24 x f32, root 0)", "gather(24 x f32, root 0)" },
    { reduce_0, reduce_1, "reduce(24 x f32, sum, root 0)", "reduce(24 x f32, sum, root 1)" },
    { gather_0, gather_1, "gather(24 x f32, root 0)", "gather(24 x f32, root 1)" },
    { scatter_0, scatter_1, "scatter(24 x f32, root 0)", "scatter(24 x f32, root 1)" },
    { scatter_1, scatter_0, "scatter(24 x f32, root 1)", "scatter(24 x f32, root 0)" },
    { all_gather_v, all_gather_v_other, "all_gather(", "all_gather(" },
    { reduce_scatter_v, reduce_scatter_v_other, "reduce_scatter(", "reduce_scatter(" },
    { gather_v, gather_v_short, " called gather(24 x f32, root 0) and expects 96 B from rank ",
      " called gather(23 x f32, root 0) and sends it 92 B" },
    { gather_v_large, gather_v_large_short, " called gather(524288 x f32, root 0) and expects 2097152 B from rank ",
      " called gather(524287 x f32, root 0) and sends it 2097148 B" },
    { scatter_v, scatter_v_more, " called scatter(24 x f32, root 0) and sends it 96 B",
      " called scatter(25 x f32, root 0) and expects 100 B from rank 0" },
    { all_to_all_v, all_to_all_v_other, " called all_to_all(f32) and ", " called all_to_all(f32) and " },
};

enum { ALL_NEED_ALL = 7 }; /* of the table's first ones no rank is done without the others */

static int is_of_lengths(const struct disagreement *d)
{
    return d->ours_text[0] == ' ';
}

struct scenario {
    struct page *page;
    const struct disagreement *d;
    enum wait_by how;
    int odd, late; /* late: a bit per rank */
};

static comm_status call(comm_group *world, call_fn fn, enum wait_by how)
{
    comm_work *work;
    if (how == WAIT_CALL)
        return fn(world, NULL, NULL);
    comm_status status = fn(world, NULL, &work);
    if (status != COMM_OK)
        return status;
    status = menu_wait(work, how);
    comm_work_release(work);
    return status;
}

/* A rooted operation that needs no answer may be over here before the others disagree, and so may the next barrier, if
 * what tells comes from a rank that it does not wait for. The second one needs all ranks to have left the first one,
 * which those that disagree do not. */
static comm_status call_until_told(comm_group *world, call_fn fn, enum wait_by how)
{
    comm_status status = call(world, fn, how);
    for (int i = 0; i < 2 && status == COMM_OK; i++)
        status = comm_barrier(world, NULL, NULL);
    return status;
}

static void they_disagree(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    const struct disagreement *d = s->d;
    comm_group *world = fault_world(), *other;
    int32_t one = 1;
    CHECK_OK(comm_group_dup(world, NULL, &other));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    fault_meet(s->page);
    atomic_store(&s->page->event_ns, fault_now_ns());
    comm_status status = call_until_told(world, rank == s->odd ? d->theirs : d->ours, s->how);
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK_STATUS(status, COMM_ERR_MISMATCH);
    const char *text = comm_last_error();
    if (!is_of_lengths(d)) {
        char theirs[80], ours[80];
        int one_of_us = -1;
        snprintf(theirs, sizeof theirs, " called %s", d->theirs_text);
        snprintf(ours, sizeof ours, " called %s", d->ours_text);
        CHECK_SAYS_OF(text, s->odd, theirs);
        for (int r = 0; r < size; r++)
            if (r != s->odd && says_of(text, r, ours))
                one_of_us = r;
        CHECK(one_of_us >= 0);
        CHECK(strstr(text, " (127.0.0.1:") || strstr(text, " 127.0.0.1:") || strstr(text, " pid "));
    } else {
        CHECK_SAYS_OF(text, s->odd, d->theirs_text);
        CHECK_SAYS_OF(text, 0, d->ours_text);
        CHECK_SAYS(text, " and expects ");
        CHECK_SAYS(text, " and sends it ");
        CHECK_SAYS(text, "their counts must be the same");
    }
    CHECK_SAYS(text, "the ranks of group 'world' disagree on collective #2: rank ");
    if (d->ours == all_gather_v || d->ours == reduce_scatter_v) /* the counts shown need not be those that differ */
        CHECK_SAYS(text, "the _v form");
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_MISMATCH);
    /* Another group of the same ranks goes on. */
    CHECK_OK(comm_all_reduce(other, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(one == size);
    CHECK_OK(comm_group_close(other));
    CHECK_OK(fault_close(world));
}

/* Some have not come. Those that have do not wait for them: they may have nothing for each other, and the rank that
 * they both wait for be one of the late ones. */
static void some_are_late(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    const struct disagreement *d = s->d;
    comm_group *world = fault_world();
    char theirs[80];
    snprintf(theirs, sizeof theirs, " called %s", d->theirs_text);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    fault_meet(s->page);
    atomic_store(&s->page->event_ns, fault_now_ns());
    if (s->late >> rank & 1)
        fault_meet(s->page);
    CHECK_STATUS(call(world, rank == s->odd ? d->theirs : d->ours, s->how), COMM_ERR_MISMATCH);
    if (!(s->late >> rank & 1)) {
        atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
        fault_meet(s->page);
    }
    CHECK_ERROR_SAYS("the ranks of group 'world' disagree on collective #2: rank ");
    CHECK_SAYS_OF(comm_last_error(), s->odd, theirs);
    int one_of_us = -1;
    char ours[80];
    snprintf(ours, sizeof ours, " called %s", d->ours_text);
    for (int r = 0; r < size; r++)
        if (r != s->odd && says_of(comm_last_error(), r, ours))
            one_of_us = r;
    CHECK(one_of_us >= 0);
    CHECK_OK(fault_close(world));
}

/* ---- Order ---- */

static void wrong_order(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_work *works[2] = { NULL, NULL };
    comm_status status[2];
    call_fn order[2] = { rank == s->odd ? barrier : all_reduce, rank == s->odd ? all_reduce : barrier };
    /* A rank that comes late may be told at once. */
    for (int i = 0; i < 2; i++)
        status[i] = order[i](world, NULL, &works[i]);
    for (int i = 0; i < 2; i++)
        status[i] = status[i] == COMM_OK ? comm_work_wait(works[i], 0) : status[i];
    for (int i = 0; i < 2; i++)
        if (status[i] != COMM_ERR_MISMATCH)
            ranks_fail(__FILE__, __LINE__, "operation %d gave %s: %s", i, comm_status_name(status[i]),
                       comm_last_error());
    CHECK_ERROR_SAYS("disagree on collective #1");
    CHECK_SAYS_OF(comm_last_error(), s->odd, " called barrier()");
    comm_work_release(works[0]);
    comm_work_release(works[1]);
    (void)size;
    CHECK_OK(fault_close(world));
}

/* One calls on a copy of the group what the others call on the group: within each group the calls agree, so it takes
 * the time limit, and the text says where the odd one is. */
static void wrong_group(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *copy;
    comm_group_options o = COMM_GROUP_OPTIONS_INIT;
    o.name = "copy";
    CHECK_OK(comm_group_dup(world, &o, &copy));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_barrier(copy, NULL, NULL));
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    limit.timeout_ms = rank == s->odd ? 30000 : 500;
    comm_work *work;
    CHECK_OK(comm_barrier(rank == s->odd ? copy : world, &limit, &work));
    fault_meet(s->page);
    if (rank == s->odd) {
        fault_meet(s->page);
        CHECK_STATUS(menu_until_it_ends(world, MENU_BARRIER, &limit), COMM_ERR_DEADLINE);
        CHECK_OK(comm_group_abort(copy, "it was a mistake"));
        CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_ABORTED);
    } else {
        CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_DEADLINE);
        CHECK_NAMES(comm_last_error(), s->odd);
        CHECK_ERROR_SAYS("has finished barrier #1 and called no collective since; it is in barrier #2 of group 'copy'");
        fault_meet(s->page);
    }
    (void)size;
    fault_meet(s->page); /* a rank that leaves first would be missed in the copy */
    comm_work_release(work);
    CHECK_OK(comm_group_close(copy));
    CHECK_OK(fault_close(world));
}

/* ---- Other settings ---- */

/* One rank's group has other messages for the same call. They may be as long as those that are awaited: nobody may take
 * them for these. */
static void other_settings(int rank, int size, void *arg)
{
    static const struct {
        const char *setting;
        call_fn call;
    } cases[] = {
        { "algo=all_reduce:direct", all_reduce_large },
        { "algo=all_reduce:halving_doubling", all_reduce_large },
        { "algo=all_reduce:ring", all_reduce_middle },
        { "algo=all_reduce:ring", all_reduce },
        { "algo=reduce_scatter:ring", reduce_scatter },
        { "algo=reduce:chain", reduce_0 },
        { "algo=all_to_all:pairwise", all_to_all },
        { "algo=barrier:dissemination", barrier },
        { "slice_bytes=1000", all_reduce },
        { "slice_bytes=1000", broadcast_large_0 },
    };
    struct scenario *s = arg;
    comm_group *world = fault_world();
    const char *backend = fault_backend_name();
    (void)size;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        comm_group *copy;
        comm_group_options o = COMM_GROUP_OPTIONS_INIT;
        snprintf(text, sizeof text, "cpu:%s%s%s%s", backend, rank == s->odd ? "?" : "",
                 rank == s->odd && strcmp(backend, "shm-tcp") == 0 ? "tcp." : "",
                 rank == s->odd ? cases[i].setting : "");
        o.backend = text;
        CHECK_OK(comm_group_dup(world, &o, &copy));
        comm_status status = cases[i].call(copy, NULL, NULL);
        if (status == COMM_OK) /* it had only to send */
            status = comm_barrier(copy, NULL, NULL);
        CHECK_STATUS(status, COMM_ERR_MISMATCH);
        CHECK_ERROR_SAYS("other settings that choose algorithms and slices (algo and slice_bytes, and ");
        CHECK_NAMES(comm_last_error(), s->odd);
        fault_meet(s->page);
        CHECK_OK(comm_group_close(copy));
    }
    CHECK_OK(fault_close(world));
}

/* ---- Messages between two ranks ---- */

static void messages_of_other_lengths(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = fault_world();
    static const size_t sent[] = { 10, 4, 10, MANY, MANY / 2, MANY, 0, 10, 3, MANY };
    static const size_t capacity[] = { 10, 10, 4, MANY / 2, MANY, MANY, 10, 0, 3, 0 };
    float *buffer = recv_buffer;
    for (size_t i = 0; i < 2 * sizeof sent / sizeof *sent; i++) {
        size_t n = sent[i / 2], m = capacity[i / 2], got = n < m ? n : m;
        if (rank == 0 && i % 2)
            CHECK_OK(comm_barrier(world, NULL, NULL)); /* the receive is posted, or the message is there, first */
        if (rank == 0) {
            for (size_t k = 0; k < n; k++)
                send_buffer[k] = (float)(k + i);
            CHECK_OK(comm_send(world, send_buffer, n, COMM_DTYPE_F32, 1, NULL, NULL));
        } else {
            comm_work *work;
            for (size_t k = 0; k < m + 8; k++)
                buffer[k] = -7;
            CHECK_OK(comm_recv(world, buffer, m, COMM_DTYPE_F32, 0, NULL, &work));
            if (i % 2)
                CHECK_OK(comm_barrier(world, NULL, NULL));
            CHECK_STATUS(comm_work_wait(work, 0), n > m ? COMM_ERR_TRUNCATED : COMM_OK);
            if (n > m) {
                CHECK_ERROR_SAYS("the message from rank 0");
                CHECK(comm_status_scope(COMM_ERR_TRUNCATED) == COMM_SCOPE_CALL);
            }
            CHECK(comm_work_received_count(work) == got && comm_work_source_rank(work) == 0);
            for (size_t k = 0; k < m + 8; k++)
                CHECK(buffer[k] == (k < got ? (float)(k + i) : -7));
            comm_work_release(work);
        }
    }
    CHECK_OK(comm_group_status(world));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
}

static int run_scenario(int size, struct scenario s, void (*fn)(int, int, void *), const char *name)
{
    struct ranks_options options = { .limit_s = 20, .name = name };
    s.page = page_new(size);
    int failed = fault_run(size, &options, fn, &s);
    if (s.d)
        failed |= fault_noticed_late(s.page, size, name, FAULT_NOTICE_MS);
    page_free(s.page);
    return failed;
}

static int run(int size, int odd, const struct disagreement *d, enum wait_by how, void (*fn)(int, int, void *),
               const char *what)
{
    struct scenario s = { .d = d, .odd = odd, .how = how };
    char name[200];
    snprintf(name, sizeof name, "%s%s%s, rank %d of %d is the odd one, waiting %s", what,
             d && !is_of_lengths(d) ? ": " : "", d && !is_of_lengths(d) ? d->theirs_text : "", odd, size,
             waiting_names[how]);
    return run_scenario(size, s, fn, name);
}

static int run_late(int size, int odd, int late, const struct disagreement *d, enum wait_by how)
{
    struct scenario s = { .d = d, .odd = odd, .how = how, .late = late };
    char name[200];
    snprintf(name, sizeof name, "%s: %s, rank %d of %d is the odd one, late are (bits) %#x, waiting %s", d->ours_text,
             d->theirs_text, odd, size, (unsigned)late, waiting_names[how]);
    return run_scenario(size, s, some_are_late, name);
}

/* Of 3 to 5 ranks at least two come, the odd one among them, and at least one does not. */
static int run_any_late(uint64_t *random)
{
    int size = 3 + (int)(fault_random(random) % 3), odd = (int)(fault_random(random) % (unsigned)size);
    int other = (odd + 1 + (int)(fault_random(random) % (unsigned)(size - 1))) % size, late = 0;
    while (!late)
        late = (int)(fault_random(random) % (1u << size)) & ~(1 << odd | 1 << other);
    return run_late(size, odd, late, &table[fault_random(random) % ALL_NEED_ALL],
                    (enum wait_by)(fault_random(random) % WAIT_END));
}

static float *map_buffer(void)
{
    const size_t bytes = (size_t)FAULT_RANKS_MAX * MANY * sizeof(float);
    void *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        abort();
    return buffer;
}

int main(void)
{
    uint64_t random = fault_seed();
    int failed = 0;
    send_buffer = map_buffer();
    recv_buffer = map_buffer();
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        int size = 2 + (int)(fault_random(&random) % 4);
        /* The root notices a wrong length, so another rank must be the odd one there. */
        int odd = !is_of_lengths(&table[i]) ? (int)(fault_random(&random) % (unsigned)size) : size - 1;
        failed |= run(size, odd, &table[i], (enum wait_by)(i % WAIT_END), they_disagree,
                      !is_of_lengths(&table[i]) ? table[i].ours_text : "a block of another length");
    }
    /* Both wait for the same rank, or each for another one, and have sent nothing to any other. */
    for (int late = 0; late < 3; late++)
        failed |= run_late(3, (late + 1) % 3, 1 << late, &table[late], WAIT_CALL);
    failed |= run_late(4, 1, 1 << 0 | 1 << 2, &table[3], WAIT_CALL);
    for (int i = 0; i < 4; i++)
        failed |= run_any_late(&random);
    for (int size = 2; size <= 5; size++)
        failed |= run(size, size - 1, NULL, WAIT_CALL, wrong_order, "the wrong order");
    failed |= run(2, 1, NULL, WAIT_CALL, wrong_group, "the wrong group");
    failed |= run(4, 0, NULL, WAIT_CALL, wrong_group, "the wrong group");
    for (int size = 2; size <= 4; size++)
        failed |= run(size, size / 2, NULL, WAIT_CALL, other_settings, "other settings");
    failed |= run(2, 0, NULL, WAIT_CALL, messages_of_other_lengths, "messages of other lengths");
    return failed;
}

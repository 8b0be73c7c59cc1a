/* What comm/backend.h answers to authors of backends, tried: a backend that wraps loopback, and looks at what the core
 * hands over. Each function below stands for one sentence of the header. Ranks are threads. */
#include <comm/backend.h>
#include <stdatomic.h>

#include "loopback.h"
#include "ranks.h"

static const comm_host *host;
static comm_backend inner;
static atomic_int opened, aborts, last_abort;

struct state {
    void *inner;
    int32_t rank;
    uint64_t asked_signature;
};

static _Thread_local struct state *latest;
static _Thread_local void *store;
static _Thread_local comm_op seen; /* the last op that this rank submitted */
static _Thread_local const void *seen_state;
static _Thread_local const void *seen_own_block;
static _Thread_local int64_t connect_left_ns;

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    char key[20];
    store = info->store;
    snprintf(key, sizeof key, "early/%d", info->rank);
    CHECK_OK(host->store_set(store, key, "card", 4));
    return inner.world_open(context, info, ret_world);
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct state *s = calloc(1, sizeof *s);
    s->rank = info->rank;
    atomic_fetch_add(&opened, 1);
    latest = s;
    *ret_state = s;
    return inner.group_open(world, info, &s->inner);
}

static comm_status group_connect(void *state, comm_device device, int64_t deadline_ns)
{
    (void)state, (void)device;
    connect_left_ns = deadline_ns - host->now_ns();
    return COMM_OK;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    atomic_store(&last_abort, status);
    atomic_fetch_add(&aborts, 1);
    inner.group_abort(((struct state *)state)->inner, status, reason);
}

static void group_close(void *state, int32_t forked)
{
    inner.group_close(((struct state *)state)->inner, forked);
    free(state);
}

static comm_status supports(void *state, const comm_op *op)
{
    CHECK(op->seq == 0 && op->group_seq == 0 && op->submitted_ns == 0 && !(op->flags & COMM_OP_FLAG_BEGUN));
    ((struct state *)state)->asked_signature = op->signature;
    return COMM_OK;
}

static int has_side(uint8_t shape, uint32_t traits, int sending, int at_root)
{
    if (shape == COMM_OP_SIDE_NONE)
        return 0;
    if (sending)
        return !(traits & COMM_OP_TRAIT_SEND_AT_ROOT) || at_root;
    return !((traits & COMM_OP_TRAIT_RECV_AT_ROOT) && !at_root) && !((traits & COMM_OP_TRAIT_RECV_BUT_ROOT) && at_root);
}

static comm_status submit(void *opaque, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    static const comm_buffers none;
    struct state *s = opaque;
    for (size_t i = 0; i < count; i++) {
        const comm_op_traits *t = comm_op_traits_of(ops[i]->kind);
        int at_root = ops[i]->root == s->rank;
        size_t length;
        if (!has_side(t->send, t->traits, 1, at_root))
            CHECK(memcmp(&ops[i]->send, &none, sizeof none) == 0);
        else
            CHECK(ops[i]->send.data && (ops[i]->send.count || ops[i]->send.counts));
        if (!has_side(t->recv, t->traits, 0, at_root))
            CHECK(memcmp(&ops[i]->recv, &none, sizeof none) == 0);
        else
            CHECK(ops[i]->recv.data && (ops[i]->recv.count || ops[i]->recv.counts));
        if (t->in_place == COMM_OP_IN_PLACE_OWN)
            seen_own_block = comm_op_block(t->send == COMM_OP_SIDE_BLOCKS ? &ops[i]->send : &ops[i]->recv,
                                           ops[i]->element_bytes, s->rank, &length);
        CHECK(ops[i]->seq > 0 && ops[i]->group_seq > 0);
        seen = *ops[i];
        seen_state = s;
    }
    return inner.submit(s->inner, ops, works, count);
}

static const comm_backend *answers_entry(const comm_host *given)
{
    static comm_backend backend;
    host = given;
    inner = *loopback_entry(given);
    backend = inner;
    backend.name = "answers";
    backend.world_open = world_open;
    backend.group_open = group_open;
    backend.group_connect = group_connect;
    backend.group_abort = group_abort;
    backend.group_close = group_close;
    backend.supports = supports;
    backend.submit = submit;
    return &backend;
}

/* ---- Which side each rank has; a barrier's dtype ---- */

static void all_kinds(comm_group *g, int32_t *send, int32_t *recv, int32_t root)
{
    CHECK_OK(comm_broadcast(g, send, 2, COMM_DTYPE_I32, root, NULL, NULL));
    CHECK(seen.kind == COMM_OP_BROADCAST);
    CHECK((comm_group_rank(g) == root ? seen.send.data : seen.recv.data) == send);
    CHECK_OK(comm_all_reduce(g, send, recv, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK_OK(comm_reduce(g, send, recv, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, root, NULL, NULL));
    CHECK_OK(comm_all_gather(g, send, recv, 2, COMM_DTYPE_I32, NULL, NULL));
    CHECK(seen.redop == 0);
    CHECK_OK(comm_gather(g, send, recv, 2, COMM_DTYPE_I32, root, NULL, NULL));
    CHECK_OK(comm_scatter(g, send, recv, 2, COMM_DTYPE_I32, root, NULL, NULL));
    CHECK_OK(comm_reduce_scatter(g, send, recv, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK_OK(comm_all_to_all(g, send, recv, 2, COMM_DTYPE_I32, NULL, NULL));
    CHECK_OK(comm_barrier(g, NULL, NULL));
    CHECK(seen.kind == COMM_OP_BARRIER && seen.dtype == 0 && seen.redop == 0 && seen.element_bytes == 1);
    CHECK(seen.root == -1);
}

static void each_rank_has_the_sides_of_its_part(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:answers");
    int32_t send[16] = { rank }, recv[16];
    (void)arg;
    for (int32_t root = 0; root < size; root++)
        all_kinds(world, send, recv, root);
    CHECK_OK(comm_group_close(world));
}

/* ---- In place ---- */

/* By the sentence of the header. */
static int is_in_place(void)
{
    const comm_op_traits *t = comm_op_traits_of(seen.kind);
    if (t->in_place == COMM_OP_IN_PLACE_SAME)
        return seen.recv.data == seen.send.data;
    return (t->send == COMM_OP_SIDE_ONE ? seen.send.data : seen.recv.data) == seen_own_block;
}

static void in_place_is_seen_by_the_addresses(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:answers");
    int32_t a[16] = { 0 }, b[16] = { 0 };
    size_t counts[4] = { 1, 3, 2, 0 };
    (void)size, (void)arg;
    const size_t own = rank == 0 ? 0 : rank == 1 ? 1 : 4;
    for (int in_place = 0; in_place < 2; in_place++) {
        int32_t *other = in_place ? a : b;
        CHECK_OK(comm_all_reduce(world, a, other, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(is_in_place() == in_place);
        CHECK_OK(comm_all_to_all(world, a, other, 2, COMM_DTYPE_I32, NULL, NULL));
        CHECK(is_in_place() == in_place);
        CHECK_OK(comm_all_gather(world, in_place ? a + 2 * rank : b, a, 2, COMM_DTYPE_I32, NULL, NULL));
        CHECK(is_in_place() == in_place);
        CHECK_OK(comm_reduce_scatter(world, a, in_place ? a + 2 * rank : b, 2, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL,
                                     NULL));
        CHECK(is_in_place() == in_place);
        CHECK_OK(comm_all_gather_v(world, in_place ? a + own : b, a, counts, NULL, COMM_DTYPE_I32, NULL, NULL));
        CHECK(is_in_place() == in_place);
    }
    CHECK_OK(comm_group_close(world));
}

/* ---- supports ---- */

static void supports_sees_the_signature_and_no_number(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:answers");
    (void)size, (void)arg;
    for (int i = 1; i < 4; i++) { /* another count each time, so that it is asked */
        int32_t more[4] = { rank }, sums[4];
        CHECK_OK(comm_all_reduce(world, more, sums, (size_t)i, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(latest->asked_signature != 0 && latest->asked_signature == seen.signature);
    }
    CHECK_OK(comm_group_close(world));
}

/* ---- One state for several devices ---- */

static void a_group_of_two_devices_has_one_state(int rank, int size, void *arg)
{
    comm_op_options on = COMM_OP_OPTIONS_INIT;
    int32_t value = 1, sum;
    int before = atomic_load(&opened);
    comm_group *world = ranks_world("cpu:answers,xpu:answers");
    const struct state *state = latest;
    (void)rank, (void)arg;
    CHECK(atomic_load(&opened) - before <= size);
    for (int i = 0; i < 4; i++) {
        on.device = i % 2 ? COMM_DEVICE_XPU : COMM_DEVICE_CPU;
        CHECK_OK(comm_all_reduce(world, &value, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &on, NULL));
        CHECK(seen_state == state && comm_device_kind(seen.device) == on.device);
        CHECK(seen.seq == (uint64_t)i + 1 && sum == size); /* and one count for both */
    }
    CHECK_OK(comm_group_close(world));
}

/* ---- The store ---- */

static void a_key_can_be_deleted_that_is_not_there(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:answers");
    int32_t exists = -1;
    void *data;
    size_t bytes;
    (void)arg;
    if (rank == 0) {
        CHECK_OK(host->store_delete(store, "never there"));
        CHECK_OK(host->store_delete(store, "early/0"));
        CHECK_OK(host->store_check(store, "early/0", &exists));
        CHECK(exists == 0);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int r = 0; r < size; r++) { /* set while world_open ran: known without the store */
        char key[20];
        snprintf(key, sizeof key, "early/%d", r);
        CHECK_OK(host->store_get(store, NULL, key, 100, &data, &bytes));
        CHECK(bytes == 4 && memcmp(data, "card", 4) == 0);
        host->free_memory(data);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* ---- Deadlines ---- */

static void the_core_ends_the_group_at_the_limit(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:answers");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    (void)rank, (void)size, (void)arg;
    int before = atomic_load(&aborts);
    options.timeout_ms = 50;
    CHECK_OK(comm_group_connect(world, COMM_DEVICE_CPU, 5000));
    CHECK(connect_left_ns > 0 && connect_left_ns <= (int64_t)5000 * 1000000);
    CHECK_STATUS(comm_recv(world, &options, 1, COMM_DTYPE_BYTE, COMM_ANY_SOURCE, &options, NULL), COMM_ERR_DEADLINE);
    CHECK(atomic_load(&aborts) > before && atomic_load(&last_abort) == COMM_ERR_DEADLINE);
    CHECK_OK(comm_group_close(world));
}

/* ---- Kernels ---- */

static void reduce_many_only_sums_for_premul_sum(void)
{
    for (comm_dtype dtype = 1; dtype < COMM_DTYPE_END; dtype++) {
        uint8_t a[64], b[64], c[64], sum[64], premul[64];
        const void *sources[] = { a, b, c };
        for (int i = 0; i < 64; i++)
            a[i] = (uint8_t)(i * 7), b[i] = (uint8_t)(i * 3 + 1), c[i] = (uint8_t)(i + 5);
        CHECK(host->reduce_many(sum, sources, 3, 4, COMM_REDOP_USER, dtype) == COMM_ERR_UNSUPPORTED);
        if (!comm_redop_supports(COMM_REDOP_PREMUL_SUM, dtype))
            continue;
        CHECK_OK(host->reduce_many(sum, sources, 3, 4, COMM_REDOP_SUM, dtype));
        CHECK_OK(host->reduce_many(premul, sources, 3, 4, COMM_REDOP_PREMUL_SUM, dtype));
        CHECK(memcmp(sum, premul, 4 * comm_dtype_bytes(dtype)) == 0);
        CHECK_OK(host->reduce_many(b, sources, 3, 4, COMM_REDOP_SUM, dtype)); /* dst is a source */
        CHECK(memcmp(sum, b, 4 * comm_dtype_bytes(dtype)) == 0);
    }
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "answers" };
    if (comm_backend_register(loopback_entry) != COMM_OK || comm_backend_register(answers_entry) != COMM_OK)
        return 2;
    reduce_many_only_sums_for_premul_sum();
    return ranks_run(3, &threads, each_rank_has_the_sides_of_its_part, NULL) ||
           ranks_run(3, &threads, in_place_is_seen_by_the_addresses, NULL) ||
           ranks_run(2, &threads, supports_sees_the_signature_and_no_number, NULL) ||
           ranks_run(2, &threads, a_group_of_two_devices_has_one_state, NULL) ||
           ranks_run(2, &threads, a_key_can_be_deleted_that_is_not_there, NULL) ||
           ranks_run(1, &threads, the_core_ends_the_group_at_the_limit, NULL);
}

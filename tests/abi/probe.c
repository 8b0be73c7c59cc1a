/* What reaches a backend, looked at from inside one: it wraps loopback and notes what the core hands over. Ranks are
 * threads. */
#include <comm/backend.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "loopback.h"
#include "ranks.h"

static const comm_host *host;
static comm_backend inner;

struct state {
    void *inner, *token, *store;
    uint64_t seq, peer_seq, group_seq;
    pthread_t waiter;
    comm_work *waits;
};

/* What the next op of this rank must look like. */
static _Thread_local struct {
    const void *premul;
    uint32_t flags;
    uint32_t element_bytes;
    int seen;
} expected;
static _Thread_local int waits_for_a_key;
static _Thread_local void *world_store;
static atomic_int worlds_opened, waiter_status;

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    atomic_fetch_add(&worlds_opened, 1);
    CHECK(info->rank >= 0 && info->rank < info->size && info->hosts != NULL);
    world_store = info->store;
    return inner.world_open(context, info, ret_world);
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct state *s = calloc(1, sizeof *s);
    s->token = info->token;
    s->store = world_store;
    *ret_state = s;
    return inner.group_open(world, info, &s->inner);
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    inner.group_abort(((struct state *)state)->inner, status, reason);
}

static void group_close(void *state, int32_t forked)
{
    struct state *s = state;
    if (s->waits)
        pthread_join(s->waiter, NULL);
    inner.group_close(s->inner, forked);
    free(s);
}

/* The numbers of this backend have no gaps, whatever goes to others. */
static void check_numbers(struct state *s, const comm_op *op)
{
    if (comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_PEER) {
        CHECK(op->seq == ++s->peer_seq);
        return;
    }
    CHECK(op->seq == ++s->seq);
    CHECK(op->group_seq > s->group_seq && op->group_seq >= op->seq);
    s->group_seq = op->group_seq;
}

static void *wait_for_key(void *state)
{
    struct state *s = state;
    void *data;
    size_t bytes;
    comm_status status = host->store_get(s->store, s->token, "nobody sets this", 60000, &data, &bytes);
    atomic_store(&waiter_status, status);
    host->work_complete(s->waits, status, host->last_error());
    return NULL;
}

static void check_store(void *store)
{
    int32_t exists = -1;
    int64_t value = 0;
    CHECK_OK(host->store_check(store, "key", &exists));
    CHECK(exists == 0);
    CHECK_OK(host->store_set(store, "key", "value", 5));
    CHECK_OK(host->store_check(store, "key", &exists));
    CHECK(exists == 1);
    CHECK_OK(host->store_delete(store, "key"));
    CHECK_OK(host->store_check(store, "key", &exists));
    CHECK(exists == 0);
    CHECK_OK(host->store_add(store, "count", 2, &value));
    CHECK(value == 2);
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct state *s = state;
    for (size_t i = 0; i < count; i++) {
        check_numbers(s, ops[i]);
        if (!expected.element_bytes)
            continue;
        CHECK(ops[i]->premul == expected.premul && ops[i]->element_bytes == expected.element_bytes);
        CHECK((ops[i]->flags & COMM_OP_FLAG_PREMUL_ON_DEVICE) == expected.flags);
        expected.seen = 1;
        expected.element_bytes = 0;
        if (ops[i]->flags & COMM_OP_FLAG_PREMUL_ON_DEVICE) { /* loopback could not read it */
            host->work_complete(works[i], COMM_OK, NULL);
            return COMM_OK;
        }
    }
    if (waits_for_a_key) {
        check_store(s->store);
        s->waits = works[0];
        CHECK(pthread_create(&s->waiter, NULL, wait_for_key, s) == 0);
        return COMM_OK;
    }
    return inner.submit(s->inner, ops, works, count);
}

static const comm_backend *probe_entry(const comm_host *given)
{
    static comm_backend backend;
    host = given;
    inner = *loopback_entry(given);
    backend = inner;
    backend.name = "probe";
    backend.world_open = world_open;
    backend.group_open = group_open;
    backend.group_abort = group_abort;
    backend.group_close = group_close;
    backend.submit = submit;
    return &backend;
}

/* ---- Two backends in one group ---- */

static void each_backend_has_numbers_of_its_own(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:tcp,xpu:probe");
    comm_op_options on[2] = { COMM_OP_OPTIONS_INIT, COMM_OP_OPTIONS_INIT };
    int32_t value;
    comm_work *work, *batch;
    (void)arg;
    on[0].device = COMM_DEVICE_CPU;
    on[1].device = COMM_DEVICE_XPU;
    for (int i = 0; i < 12; i++) {
        value = 1;
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &on[i % 3 == 1], &work));
        CHECK(comm_work_seq(work) == (uint64_t)i + 1); /* what users see counts over both */
        CHECK_OK(comm_work_wait(work, 0));
        CHECK(value == size);
        comm_work_release(work);
        int32_t to = (rank + 1) % size, from = (rank + size - 1) % size, got = -1;
        CHECK_OK(comm_send(world, &rank, 1, COMM_DTYPE_I32, to, &on[i % 2], &work));
        CHECK_OK(comm_recv(world, &got, 1, COMM_DTYPE_I32, from, &on[i % 2], NULL));
        CHECK_OK(comm_work_wait(work, 0));
        CHECK(got == from);
        comm_work_release(work);
    }
    int32_t values[6];
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < 6; i++) {
        values[i] = i;
        CHECK_OK(comm_all_reduce(world, &values[i], &values[i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &on[1], NULL));
    }
    CHECK_OK(comm_coalesce_end(world, NULL, &batch));
    CHECK_OK(comm_work_wait(batch, 0));
    for (int i = 0; i < 6; i++)
        CHECK(values[i] == i * size);
    comm_work_release(batch);
    CHECK(comm_group_seq(world) == 18);
    CHECK_OK(comm_group_close(world));
}

/* ---- Ops ---- */

static void expect(const void *premul, uint32_t flags, uint32_t element_bytes)
{
    expected.premul = premul;
    expected.flags = flags;
    expected.element_bytes = element_bytes;
    expected.seen = 0;
}

/* The core touches no scalar that lies on the device. On the CPU the flag means nothing. */
static void a_scalar_on_the_device_goes_through(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:loopback,xpu:probe");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    float value = 2, factor = 3;
    void *device = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    comm_work *work;
    (void)rank, (void)size, (void)arg;
    CHECK(device != MAP_FAILED);
    options.device = COMM_DEVICE_XPU;
    options.premul = device;
    options.flags = COMM_OP_FLAG_PREMUL_ON_DEVICE;
    for (int i = 0; i < 3; i++) {
        expect(device, COMM_OP_FLAG_PREMUL_ON_DEVICE, sizeof value);
        if (i == 1)
            CHECK_OK(comm_coalesce_begin(world));
        CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, &options,
                                 i == 2 ? &work : NULL));
        if (i == 1)
            CHECK_OK(comm_coalesce_end(world, NULL, NULL));
        CHECK(expected.seen);
    }
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    options.device = COMM_DEVICE_CPU;
    options.premul = &factor;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_PREMUL_SUM, &options, NULL));
    CHECK(value == 6);
    munmap(device, 4096);
    CHECK_OK(comm_group_close(world));
}

struct element {
    int32_t key, a, b;
};

static void take_larger_key(const void *from, void *to, size_t count, comm_dtype dtype, void *context)
{
    struct element *kept = to;
    const struct element *other = from;
    CHECK(dtype == COMM_DTYPE_BYTE && context == NULL);
    for (size_t i = 0; i < count; i++)
        if (other[i].key > kept[i].key)
            kept[i] = other[i];
}

static void elements_of_the_users_own_reach_it(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("xpu:probe");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    struct element elements[5];
    (void)arg;
    for (int i = 0; i < 5; i++)
        elements[i] = (struct element){ (rank + i) % size, rank, i };
    options.reduce_fn = take_larger_key;
    options.element_bytes = sizeof *elements;
    expect(NULL, 0, sizeof *elements);
    CHECK_OK(comm_all_reduce(world, elements, elements, 5, COMM_DTYPE_BYTE, COMM_REDOP_USER, &options, NULL));
    CHECK(expected.seen);
    for (int i = 0; i < 5; i++)
        CHECK(elements[i].key == size - 1 && (elements[i].a + i) % size == size - 1 && elements[i].b == i);
    CHECK_OK(comm_group_close(world));
}

/* ---- A backend that is new to the world ---- */

/* Its world is opened where a group needs it, by this rank alone, and all members meet in whatever order they come. */
static void a_subgroup_brings_a_backend(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:tcp"), *groups[3];
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    (void)arg;
    options.backend = "xpu:probe";
    int before = atomic_load(&worlds_opened);
    for (int i = 0; i < 3; i++) { /* {0,1}, {0,2}, {1,2}; rank 1 makes its own in the opposite order */
        int which = rank == 1 ? 2 - i : i;
        int32_t ranks[2] = { which == 2, which == 0 ? 1 : 2 };
        groups[which] = NULL;
        if (rank == ranks[0] || rank == ranks[1])
            CHECK_OK(comm_group_create(world, ranks, 2, &options, &groups[which]));
    }
    for (int i = 0; i < 3; i++) {
        int32_t value = 1;
        if (!groups[i])
            continue;
        CHECK_OK(comm_all_reduce(groups[i], &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(value == 2);
        CHECK_OK(comm_group_close(groups[i]));
    }
    CHECK(atomic_load(&worlds_opened) > before);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK(atomic_load(&worlds_opened) == size); /* once per rank, for all of its groups */
    CHECK_OK(comm_group_close(world));
}

/* ---- The store ---- */

static void waiting_for_a_key_ends_with_the_group(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("xpu:probe");
    comm_work *work;
    (void)rank, (void)size, (void)arg;
    waits_for_a_key = 1;
    CHECK_OK(comm_barrier(world, NULL, &work));
    CHECK_OK(comm_group_abort(world, "no more waiting"));
    CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS("no more waiting");
    comm_work_release(work);
    CHECK_OK(comm_group_close(world)); /* joins the thread */
    CHECK(atomic_load(&waiter_status) == COMM_ERR_ABORTED);
    waits_for_a_key = 0;
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "probe" };
    if (comm_backend_register(loopback_entry) != COMM_OK || comm_backend_register(probe_entry) != COMM_OK)
        return 2;
    return ranks_run(3, &threads, a_subgroup_brings_a_backend, NULL) ||
           ranks_run(3, &threads, each_backend_has_numbers_of_its_own, NULL) ||
           ranks_run(1, &threads, a_scalar_on_the_device_goes_through, NULL) ||
           ranks_run(3, &threads, elements_of_the_users_own_reach_it, NULL) ||
           ranks_run(1, &threads, waiting_for_a_key_ends_with_the_group, NULL);
}

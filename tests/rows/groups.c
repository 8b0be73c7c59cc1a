/* Worlds, backends and groups. */
#include <comm/backend.h>
#include <string.h>

#include "rows.h"

enum { COUNT_MAX = 16 };

/* A second world of the same ranks, over a store of the caller's. */
static void world(const struct place *p)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *second = NULL, *none = NULL;
    options.store = comm_group_store(p->world);
    options.rank = p->rank;
    options.world_size = p->size;
    options.name = "second";
    options.backend = "CPU:tcp";
    options.timeout_ms = 30000;
    OK(comm_init(&options, &second));
    IS(comm_group_rank(second) == p->rank && comm_group_size(second) == p->size);
    IS(strcmp(comm_group_name(second), "second") == 0 && strcmp(comm_group_backend(second), "cpu:tcp") == 0);
    IS(comm_group_timeout(second) == 30000 && rows_sum(second, 1) == p->size);
    OK(comm_group_close(second));
    /* Every way to get it wrong. */
    options.backend = "cpu:carrier-pigeon";
    GIVES(COMM_ERR_NOT_FOUND, comm_init(&options, &none));
    SAYS("carrier-pigeon");
    options.backend = "cpu:tcp,cpu:tcp";
    GIVES(COMM_ERR_INVALID, comm_init(&options, &none));
    options.backend = NULL;
    options.rank = p->size;
    GIVES(COMM_ERR_INVALID, comm_init(&options, &none));
    options.store = NULL;
    options.rank = 0;
    options.rendezvous = "tcp//nonsense";
    GIVES(COMM_ERR_INVALID, comm_init(&options, &none));
    options.rendezvous = "warp://host:1";
    GIVES(COMM_ERR_NOT_FOUND, comm_init(&options, &none));
    SAYS("warp");
    if (p->rank == 0) { /* port 1 has no listener */
        options.rendezvous = "tcp://127.0.0.1:1";
        options.rank = 1;
        options.world_size = 2;
        options.timeout_ms = 100;
        GIVES(COMM_ERR_TIMEOUT, comm_init(&options, &none));
        SAYS("127.0.0.1");
    }
    IS(none == NULL);
}

static void count_line(const char *text, void *context)
{
    (void)text;
    ++*(int *)context;
}

static void backends(const struct place *p)
{
    int found = 0;
    (void)p;
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info info = { .struct_bytes = sizeof info };
        OK(comm_backend_query(i, &info));
        found |= strcmp(info.name, "tcp") == 0 && info.usable && strstr(info.devices, "cpu") != NULL;
    }
    IS(found);
    GIVES(COMM_ERR_NOT_FOUND,
          comm_backend_query(comm_backend_count(), &(comm_backend_info){ .struct_bytes = sizeof(comm_backend_info) }));
    IS(comm_backend_load("/no/such/plugin.so") != COMM_OK);
    SAYS("/no/such/plugin.so");
    IS(strcmp(comm_device_name(COMM_DEVICE_CUDA), "cuda") == 0 && comm_device_name(77) == NULL);
    comm_device device;
    OK(comm_device_parse("cuda:1", &device));
    IS(device == comm_device_at(COMM_DEVICE_CUDA, 1) && comm_device_kind(device) == COMM_DEVICE_CUDA);
    IS(comm_device_index(device) == 1 && comm_device_index(COMM_DEVICE_CUDA) == -1);
    GIVES(COMM_ERR_INVALID, comm_device_parse("cuda:", &device));
    GIVES(COMM_ERR_INVALID, comm_device_parse("cudo", &device));
    int lines = 0;
    for (size_t i = 0; i < comm_backend_count(); i++)
        OK(comm_backend_routes(i, count_line, &lines));
    IS(lines > 20);
    GIVES(COMM_ERR_NOT_FOUND, comm_backend_routes(comm_backend_count(), count_line, &lines));
}

/* A backend of this program's own, which says that it cannot be used here. */
static const comm_host *host;

static comm_status absent_query(void *context)
{
    (void)context;
    return host->fail(COMM_ERR_UNSUPPORTED, "the hardware was sold");
}

static comm_status absent_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)info, (void)ret_world;
    return absent_query(context);
}

static comm_status absent_open(void *world, const comm_group_info *info, void **ret_state)
{
    (void)world, (void)info, (void)ret_state;
    return absent_query(NULL);
}

static void absent_abort(void *state, comm_status status, const char *reason)
{
    (void)state, (void)status, (void)reason;
}

static void absent_close(void *state, int32_t forked)
{
    (void)state, (void)forked;
}

static comm_status absent_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    (void)state, (void)ops, (void)works, (void)count;
    return absent_query(NULL);
}

static const comm_backend *absent_entry(const comm_host *given)
{
    static const comm_backend backend = {
        COMM_BACKEND_INIT,
        .name = "absent",
        .version = "1",
        .license = "any",
        .devices = "xpu",
        .query = absent_query,
        .world_open = absent_world_open,
        .world_close = absent_close,
        .group_open = absent_open,
        .group_abort = absent_abort,
        .group_close = absent_close,
        .submit = absent_submit,
    };
    host = given;
    return &backend;
}

static void backend_register(const struct place *p)
{
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    comm_group *none = NULL;
    int found = 0;
    OK(comm_backend_register(absent_entry));
    GIVES(COMM_ERR_INVALID, comm_backend_register(absent_entry)); /* the name is taken */
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info info = { .struct_bytes = sizeof info };
        OK(comm_backend_query(i, &info));
        found |= strcmp(info.name, "absent") == 0 && !info.usable && strstr(info.reason, "was sold") != NULL;
    }
    IS(found);
    options.backend = "xpu:absent";
    GIVES(COMM_ERR_UNSUPPORTED, comm_group_dup(p->world, &options, &none));
    SAYS("was sold");
    options.backend = "cuda:tcp";
    GIVES(COMM_ERR_UNSUPPORTED, comm_group_dup(p->world, &options, &none));
    SAYS("does not serve device 'cuda'");
}

static void group_create(const struct place *p)
{
    comm_group *group = NULL, *nested = NULL;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    int32_t even[COUNT_MAX], count = 0;
    for (int32_t r = p->size - 1; r >= 0; r--) /* any order: backwards */
        if (r % 2 == 0)
            even[count++] = r;
    options.name = "even";
    options.description = "those with even ranks";
    options.timeout_ms = 20000;
    options.backend = "cpu:tcp?lanes=2";
    OK(comm_group_create(p->world, even, (size_t)count, &options, &group));
    IS((group != NULL) == (p->rank % 2 == 0));
    if (group) {
        IS(comm_group_size(group) == count && even[comm_group_rank(group)] == p->rank);
        IS(strcmp(comm_group_description(group), "those with even ranks") == 0);
        IS(comm_group_timeout(group) == 20000 && strcmp(comm_group_backend(group), "cpu:tcp?lanes=2") == 0);
        IS(rows_sum(group, 1) == count);
        OK(comm_group_create(group, &(int32_t){ 0 }, 1, NULL, &nested)); /* of the group's ranks */
        IS((nested != NULL) == (comm_group_rank(group) == 0));
        if (nested)
            IS(rows_sum(nested, 5) == 5);
    }
    OK(comm_group_close(nested));
    OK(comm_group_close(group));
    const int32_t twice[] = { 0, 0 };
    GIVES(COMM_ERR_INVALID, comm_group_create(p->world, twice, 2, NULL, &nested));
    GIVES(COMM_ERR_INVALID, comm_group_create(p->world, &p->size, 1, NULL, &nested));
    GIVES(COMM_ERR_INVALID, comm_group_create(p->world, even, 0, NULL, &nested));
    GIVES(COMM_ERR_INVALID, comm_group_create(NULL, even, 1, NULL, &nested));
}

static void group_split(const struct place *p)
{
    comm_group *group = NULL, *none = p->world;
    OK(comm_group_split(p->world, p->rank % 2, -p->rank, NULL, &group)); /* backwards again */
    const int members = (p->size + 1 - p->rank % 2) / 2;
    IS(comm_group_size(group) == members && comm_group_rank(group) == members - 1 - p->rank / 2);
    IS(rows_sum(group, 1) == members);
    OK(comm_group_split(p->world, -1, 0, NULL, &none));
    IS(none == NULL);
    OK(comm_group_close(group));
}

static void group_subgroups(const struct place *p)
{
    comm_group *group = NULL;
    for (int32_t each = 1; each <= p->size; each++) {
        if (p->size % each) {
            GIVES(COMM_ERR_INVALID, comm_group_subgroups(p->world, each, NULL, &group));
            continue;
        }
        OK(comm_group_subgroups(p->world, each, NULL, &group));
        IS(comm_group_size(group) == each && comm_group_rank(group) == p->rank % each && rows_sum(group, 1) == each);
        OK(comm_group_close(group));
    }
}

static void group_subgroups_list(const struct place *p)
{
    comm_group *group = NULL;
    int32_t ranks[COUNT_MAX];
    const size_t counts[] = { 1, (size_t)p->size - 1 };
    for (int32_t r = 0; r < p->size; r++)
        ranks[r] = p->size - 1 - r;
    OK(comm_group_subgroups_list(p->world, ranks, counts, p->size > 1 ? 2 : 1, NULL, &group));
    IS(comm_group_size(group) == (p->rank == p->size - 1 ? 1 : p->size - 1));
    IS(rows_sum(group, 1) == comm_group_size(group));
    OK(comm_group_close(group));
    ranks[0] = ranks[p->size - 1] = 0;
    if (p->size > 1)
        GIVES(COMM_ERR_INVALID, comm_group_subgroups_list(p->world, ranks, counts, 2, NULL, &group));
}

static void group_dup(const struct place *p)
{
    comm_group *group;
    OK(comm_group_dup(p->world, NULL, &group));
    IS(comm_group_size(group) == p->size && comm_group_rank(group) == p->rank && comm_group_seq(group) == 0);
    IS(rows_sum(group, 1) == p->size && comm_group_seq(group) == 1);
    OK(comm_group_close(group));
}

static void group_shrink(const struct place *p)
{
    comm_group *rest = NULL;
    const int32_t last = p->size - 1;
    if (p->size == 1) {
        OK(comm_group_shrink(p->world, NULL, 0, NULL, &rest));
    } else if (p->rank == last) {
        GIVES(COMM_ERR_INVALID, comm_group_shrink(p->world, &last, 1, NULL, &rest)); /* excluded ranks do not call */
        return;
    } else {
        OK(comm_group_shrink(p->world, &last, 1, NULL, &rest));
    }
    IS(comm_group_size(rest) == (p->size == 1 ? 1 : last) && rows_sum(rest, 1) == comm_group_size(rest));
    OK(comm_group_close(rest));
}

static void group_abort(const struct place *p)
{
    comm_group *group;
    OK(comm_group_dup(p->world, NULL, &group));
    OK(comm_barrier(group, NULL, NULL));
    OK(comm_barrier(p->world, NULL, NULL)); /* all have left that one */
    if (p->rank == 0)
        OK(comm_group_abort(group, "for the sake of the test"));
    else
        GIVES(COMM_ERR_ABORTED, comm_barrier(group, NULL, NULL));
    GIVES(COMM_ERR_ABORTED, comm_group_status(group));
    SAYS("for the sake of the test");
    GIVES(COMM_ERR_ABORTED, comm_barrier(group, NULL, NULL));
    OK(comm_group_close(group));
    OK(comm_group_status(p->world));
    OK(comm_group_close(NULL));
}

static void group_abort_all(const struct place *p)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world, *copy;
    options.name = "rows, all aborted";
    OK(comm_init(&options, &world));
    OK(comm_group_dup(world, NULL, &copy));
    OK(comm_group_abort_all(copy, "for the sake of the test"));
    GIVES(COMM_ERR_ABORTED, comm_group_status(world));
    GIVES(COMM_ERR_ABORTED, comm_barrier(copy, NULL, NULL));
    SAYS("for the sake of the test");
    OK(comm_group_close(copy));
    OK(comm_group_close(world));
    OK(comm_group_status(p->world)); /* is of another family */
}

static void group_connect(const struct place *p)
{
    comm_group *group;
    OK(comm_group_dup(p->world, NULL, &group));
    OK(comm_group_connect(group, COMM_DEVICE_CPU, 0));
    OK(comm_group_connect(group, COMM_DEVICE_DEFAULT, 10000));
    GIVES(COMM_ERR_UNSUPPORTED, comm_group_connect(group, COMM_DEVICE_CUDA, 0));
    OK(comm_barrier(group, NULL, NULL));
    OK(comm_group_close(group));
}

static void group_lost_ranks(const struct place *p)
{
    int32_t lost[COUNT_MAX];
    size_t count = 99;
    OK(comm_group_lost_ranks(p->world, lost, COUNT_MAX, &count));
    IS(count == 0);
    count = 99;
    OK(comm_group_lost_ranks(p->world, NULL, 0, &count));
    IS(count == 0);
    GIVES(COMM_ERR_INVALID, comm_group_lost_ranks(p->world, NULL, 1, &count));
}

static void group_supports(const struct place *p)
{
    IS(comm_group_supports(p->world, COMM_OP_ALL_REDUCE, COMM_DTYPE_BF16, COMM_REDOP_SUM, COMM_DEVICE_CPU) == 1);
    IS(comm_group_supports(p->world, COMM_OP_ALL_REDUCE, COMM_DTYPE_F32, COMM_REDOP_BXOR, COMM_DEVICE_CPU) == 0);
    SAYS("'bxor' is not defined for dtype f32");
    IS(comm_group_supports(p->world, COMM_OP_SEND, COMM_DTYPE_F32, COMM_REDOP_SUM, COMM_DEVICE_CUDA) == 0);
}

static void memory(const struct place *p)
{
    comm_memory *own, *known;
    void *data;
    int64_t sum = 0;
    OK(comm_mem_alloc(p->world, sizeof(int64_t), COMM_DEVICE_CPU, &data, &own));
    OK(comm_mem_register(p->world, &sum, sizeof sum, COMM_DEVICE_DEFAULT, &known));
    *(int64_t *)data = 1;
    OK(comm_all_reduce(p->world, data, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    IS(sum == p->size);
    OK(comm_mem_release(known));
    OK(comm_mem_release(own));
    GIVES(COMM_ERR_UNSUPPORTED, comm_mem_alloc(p->world, 8, COMM_DEVICE_CUDA, &data, &own));
}

static void group_queries(const struct place *p)
{
    comm_group *group;
    OK(comm_group_dup(p->world, NULL, &group));
    IS(comm_group_count(p->world) == 2);
    IS(comm_group_device(group) == COMM_DEVICE_CPU && strcmp(comm_group_description(group), "") == 0);
    OK(comm_group_set_timeout(group, 12345));
    IS(comm_group_timeout(group) == 12345 && comm_group_timeout(p->world) != 12345);
    GIVES(COMM_ERR_INVALID, comm_group_set_timeout(group, 0));
    OK(comm_group_set_timeout(group, COMM_TIMEOUT_INFINITE));
    IS(comm_group_seq(group) == 0 && rows_sum(group, 1) == p->size && comm_group_seq(group) == 1);
    OK(comm_group_close(group));
    IS(comm_group_rank(NULL) == -1 && comm_group_size(NULL) == -1);
}

static void group_ranks(const struct place *p)
{
    comm_group *group;
    int32_t backwards[COUNT_MAX], listed[COUNT_MAX], rank = -1;
    for (int32_t r = 0; r < p->size; r++)
        backwards[r] = p->size - 1 - r;
    OK(comm_group_create(p->world, backwards, (size_t)p->size, NULL, &group));
    OK(comm_group_ranks(group, listed));
    IS(memcmp(listed, backwards, (size_t)p->size * sizeof *listed) == 0);
    OK(comm_group_world_rank(group, 0, &rank));
    IS(rank == p->size - 1);
    OK(comm_group_rank_of(group, 0, &rank));
    IS(rank == p->size - 1);
    GIVES(COMM_ERR_NOT_FOUND, comm_group_world_rank(group, p->size, &rank));
    GIVES(COMM_ERR_NOT_FOUND, comm_group_rank_of(group, p->size, &rank));
    OK(comm_group_close(group));
}

static void group_hosts(const struct place *p)
{
    int32_t hosts[COUNT_MAX];
    memset(hosts, 0x55, sizeof hosts);
    OK(comm_group_hosts(p->world, hosts)); /* the launcher started all ranks here */
    for (int32_t r = 0; r < p->size; r++)
        IS(hosts[r] == 0);
    IS(p->size == COUNT_MAX || hosts[p->size] == 0x55555555);
    GIVES(COMM_ERR_INVALID, comm_group_hosts(p->world, NULL));
    GIVES(COMM_ERR_INVALID, comm_group_hosts(NULL, hosts));
}

static void group_find(const struct place *p)
{
    comm_group *group, *found = NULL;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.name = "needle";
    OK(comm_group_dup(p->world, &options, &group));
    OK(comm_group_find(p->world, "needle", &found));
    IS(found == group);
    OK(comm_group_close(group));
    GIVES(COMM_ERR_NOT_FOUND, comm_group_find(p->world, "needle", &found));
    SAYS("needle");
}

static void group_store(const struct place *p)
{
    comm_store *store = comm_group_store(p->world);
    const char *key = rows_fresh_key();
    void *data;
    size_t bytes;
    if (p->rank == 0)
        OK(comm_store_set(store, key, "told", 4));
    OK(comm_store_get(store, key, 0, &data, &bytes));
    IS(bytes == 4 && memcmp(data, "told", 4) == 0);
    comm_free(data);
}

static void round_robin(const struct place *p)
{
    comm_group *lanes[3], *turns;
    for (int i = 0; i < 3; i++)
        OK(comm_group_dup(p->world, NULL, &lanes[i]));
    OK(comm_group_round_robin(lanes, 3, NULL, &turns));
    for (int i = 0; i < 4; i++)
        IS(rows_sum(turns, 1) == p->size);
    IS(comm_group_seq(lanes[0]) == 2 && comm_group_seq(lanes[1]) == 1 && comm_group_seq(lanes[2]) == 1);
    OK(comm_group_close(turns));
    for (int i = 0; i < 3; i++)
        OK(comm_group_close(lanes[i]));
}

static void launch(const struct place *p)
{
    comm_launch_info info = { .struct_bytes = sizeof info };
    OK(comm_launch_query(&info));
    IS(info.rank == p->rank && info.world_size == p->size && info.local_rank >= 0 && info.launcher[0]);
    /* A caller of an older header has a shorter struct; what is behind it is not ours. */
    memset(&info, 0x55, sizeof info);
    info.struct_bytes = offsetof(comm_launch_info, local_rank);
    OK(comm_launch_query(&info));
    IS(info.rank == p->rank && info.world_size == p->size && info.local_rank == 0x55555555);
    info.struct_bytes = 0;
    GIVES(COMM_ERR_INVALID, comm_launch_query(&info));
    SAYS("sizeof(comm_launch_info)");
    GIVES(COMM_ERR_INVALID, comm_launch_query(NULL));
}

const struct row_case rows_groups[] = {
    { "world", world },
    { "launch", launch },
    { "backends", backends },
    { "backend_register", backend_register },
    { "group_create", group_create },
    { "group_split", group_split },
    { "group_subgroups", group_subgroups },
    { "group_subgroups_list", group_subgroups_list },
    { "group_dup", group_dup },
    { "group_shrink", group_shrink },
    { "group_abort", group_abort },
    { "group_abort_all", group_abort_all },
    { "group_connect", group_connect },
    { "group_lost_ranks", group_lost_ranks },
    { "group_supports", group_supports },
    { "memory", memory },
    { "group_queries", group_queries },
    { "group_ranks", group_ranks },
    { "group_hosts", group_hosts },
    { "group_find", group_find },
    { "group_store", group_store },
    { "round_robin", round_robin },
    { NULL, NULL },
};

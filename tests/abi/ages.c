/* Plugins of other ages, in C, and one in C++ that brings a device and parameters. argv: FOLDER of plugins, and "c++"
 * if mine.cc was compiled. Ranks are threads. */
#include <comm/comm.h>

#include "ranks.h"

static const char *folder;

static void load(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libcomm_%s.so", folder, name);
    CHECK_OK(comm_backend_load(path));
}

/* ---- Ages ---- */

/* Each op of a batch is another one: a plugin that reckons with its own size of comm_op would read nonsense from the
 * second on. */
static void a_batch_is_right(int rank, int size, void *backend)
{
    enum { OPS = 4 };
    comm_group *world = ranks_world(backend);
    int32_t sums[OPS], got[OPS] = { -1, -1, -1, -1 };
    comm_work *batch;
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < OPS; i++) {
        sums[i] = rank * i;
        CHECK_OK(comm_all_reduce(world, &sums[i], &sums[i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    }
    CHECK_OK(comm_coalesce_end(world, NULL, &batch));
    CHECK_OK(comm_work_wait(batch, 0));
    comm_work_release(batch);
    CHECK_OK(comm_coalesce_begin(world));
    for (int i = 0; i < OPS; i++) {
        CHECK_OK(comm_send(world, &sums[i], 1, COMM_DTYPE_I32, (rank + 1) % size, NULL, NULL));
        CHECK_OK(comm_recv(world, &got[i], 1, COMM_DTYPE_I32, (rank + size - 1) % size, NULL, NULL));
    }
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    for (int i = 0; i < OPS; i++)
        CHECK(sums[i] == i * size * (size - 1) / 2 && got[i] == sums[i]);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static void reduce_nothing(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    (void)in, (void)inout, (void)count, (void)dtype, (void)context;
}

static void check_unknown(comm_status status, const char *what)
{
    CHECK_STATUS(status, COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("backend 'loopback_old'");
    CHECK_ERROR_SAYS(what);
    CHECK_ERROR_SAYS("it was built with an older libcomm");
}

static void what_it_does_not_know_is_refused(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:loopback_old");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t one = 1, many[8] = { 0 };
    const size_t counts[] = { 1, 1, 1 };
    comm_work *work;
    double wide = 1;
    (void)arg;
    check_unknown(comm_send(world, &one, 1, COMM_DTYPE_I32, (rank + 1) % size, NULL, &work), "does not know send");
    check_unknown(comm_all_reduce(world, &wide, &wide, 1, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, NULL),
                  "does not know f64");
    options.reduce_fn = reduce_nothing;
    check_unknown(comm_all_reduce(world, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_USER, &options, NULL),
                  "does not know user");
    options.reduce_fn = NULL;
    options.flags = COMM_OP_FLAG_RANK_ORDER;
    check_unknown(comm_all_reduce(world, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL), "flags");
    check_unknown(comm_all_gather_v(world, &one, many, counts, NULL, COMM_DTYPE_I32, NULL, NULL), "flags");
    check_unknown(comm_monitored_barrier(world, NULL), "does not know"); /* the library's own messages */
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_OK(comm_all_reduce(world, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    check_unknown(comm_all_reduce(world, &wide, &wide, 1, COMM_DTYPE_F64, COMM_REDOP_SUM, NULL, NULL),
                  "does not know f64");
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK(one == size && comm_group_seq(world) == 1);
    CHECK(comm_group_supports(world, COMM_OP_ALL_REDUCE, COMM_DTYPE_I32, COMM_REDOP_SUM, COMM_DEVICE_CPU) == 1);
    CHECK(comm_group_supports(world, COMM_OP_SEND, COMM_DTYPE_I32, COMM_REDOP_SUM, COMM_DEVICE_CPU) == 0);
    CHECK(comm_group_supports(world, COMM_OP_ALL_REDUCE, COMM_DTYPE_F64, COMM_REDOP_SUM, COMM_DEVICE_CPU) == 0);
    one = 1; /* hints such as WAITING are left out, and nothing is refused */
    CHECK_OK(comm_all_reduce(world, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(one == size);
    CHECK_OK(comm_group_close(world));
}

/* ---- A device and parameters of its own ---- */

static comm_status open_with(const char *backend, comm_group **ret_world)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.backend = backend;
    options.timeout_ms = 30000;
    return ranks_init(&options, ret_world);
}

/* What the backend says of its device and its parameters. */
static void check_says(comm_group *world, const char *words)
{
    int32_t one = 1;
    CHECK_STATUS(comm_all_reduce(world, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, NULL),
                 COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("all_reduce on group 'world' (rank 0 of 1): backend 'mine': no maximum");
    CHECK_ERROR_SAYS(words);
}

static void a_device_that_nobody_knew(int rank, int size, void *arg)
{
    comm_device device;
    comm_group *world;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t from = 7, to = 0;
    (void)rank, (void)size, (void)arg;
    CHECK_STATUS(comm_device_parse("npu2", &device), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("there is no device 'npu2'; the names are cpu, cuda");
    CHECK_OK(open_with("cpu:tcp,npu2:mine", &world)); /* loads it */
    CHECK_OK(comm_device_parse("npu2:3", &device));
    CHECK(comm_device_index(device) == 3 && strcmp(comm_device_name(device), "npu2") == 0);
    options.device = device;
    CHECK_OK(comm_all_reduce(world, &from, &to, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL));
    CHECK(to == 7);
    CHECK_STATUS(comm_all_reduce(world, &from, &to, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, &options, NULL),
                 COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("device 3,");
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the group has several devices (cpu:tcp,npu2:mine)");
    options.device = COMM_DEVICE_CUDA;
    CHECK_STATUS(comm_barrier(world, &options, NULL), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("no backend for device cuda");
    CHECK_OK(comm_group_close(world));
    CHECK_STATUS(open_with("cpu:mine", &world), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("backend 'mine' does not serve device 'cpu'; it serves npu2");
    CHECK_OK(open_with("npu2:auto", &world));
    CHECK(strcmp(comm_group_backend(world), "npu2:mine") == 0);
    CHECK_OK(comm_group_close(world));
}

static void check_listed(const char *name, const char *env, const char *initial, const char *help)
{
    comm_param_info info;
    for (size_t i = 0; i < comm_param_count(); i++) {
        info = (comm_param_info){ .struct_bytes = sizeof info };
        CHECK_OK(comm_param_query(i, &info));
        if (strcmp(info.scope, "mine") != 0 || strcmp(info.name, name) != 0)
            continue;
        CHECK(strcmp(info.env, env) == 0 && strcmp(info.initial, initial) == 0 && strcmp(info.help, help) == 0);
        return;
    }
    CHECK(!"the parameter is listed");
}

static void parameters_of_its_own(int rank, int size, void *arg)
{
    comm_group *world;
    (void)rank, (void)size, (void)arg;
    check_listed("depth", "COMM_MINE_DEPTH", "4", "how deep");
    check_listed("room", "COMM_MINE_ROOM", "1M", "how much");
    check_listed("mode", "COMM_MINE_MODE", "plain", "how");
    CHECK_OK(open_with("mine", &world));
    check_says(world, "depth 4, room 1048576, mode plain");
    CHECK_OK(comm_group_close(world));
    setenv("COMM_MINE_DEPTH", "5", 1);
    setenv("COMM_MINE_MODE", "odd", 1);
    CHECK_OK(open_with("mine?room=2K", &world));
    check_says(world, "depth 5, room 2048, mode odd");
    CHECK_OK(comm_group_close(world));
    CHECK_OK(open_with("npu2:mine?depth=6&mode=fast", &world)); /* the string goes before the variable */
    check_says(world, "depth 6, room 1048576, mode fast");
    CHECK_OK(comm_group_close(world));
    setenv("COMM_MINE_DEPTH", "9", 1); /* a bad variable is logged, and the default holds */
    CHECK_OK(open_with("mine", &world));
    check_says(world, "depth 4,");
    CHECK_OK(comm_group_close(world));
    unsetenv("COMM_MINE_DEPTH");
    unsetenv("COMM_MINE_MODE");
    CHECK_STATUS(open_with("mine?depth=9", &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("'9' is not a number from 1 to 8");
    CHECK_STATUS(open_with("mine?room=much", &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("'much' is not a number of bytes");
    CHECK_STATUS(open_with("mine?height=1", &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("there is no option 'height' of 'mine'; it has depth, room, mode");
}

int main(int argc, char **argv)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "ages" };
    static char more[] = "cpu:loopback_more", fewer[] = "cpu:loopback_fewer", same[] = "cpu:loopback_same";
    if (argc < 2)
        return 2;
    folder = argv[1];
    setenv("COMM_PLUGIN_PATH", folder, 1);
    load("loopback_more");
    load("loopback_fewer");
    load("loopback_old");
    if (ranks_run(3, &threads, a_batch_is_right, same) || ranks_run(3, &threads, a_batch_is_right, more) ||
        ranks_run(3, &threads, a_batch_is_right, fewer) ||
        ranks_run(3, &threads, what_it_does_not_know_is_refused, NULL))
        return 1;
    return argc > 2 && strcmp(argv[2], "c++") == 0 &&
           (ranks_run(1, &threads, a_device_that_nobody_knew, NULL) ||
            ranks_run(1, &threads, parameters_of_its_own, NULL));
}

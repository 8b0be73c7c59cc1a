/* Memory that backends know: which backend gets a handle with which op, to which it belongs, and when it ends. */
#include <comm/backend.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loopback.h"
#include "pretend.h"
#include "ranks.h"

enum { COUNT = 64 };

/* Without slots of the backend's, the CPU has plain memory, and registering has no effect. */
static void the_cpu_has_plain_memory(int rank, int size, void *arg)
{
    (void)rank;
    comm_group *world = ranks_world(arg);
    comm_memory *memory, *left, *known;
    void *data, *more;
    int32_t sum = 1;
    CHECK_OK(comm_mem_alloc(world, COUNT * sizeof(int32_t), COMM_DEVICE_DEFAULT, &data, &memory));
    CHECK((uintptr_t)data % 64 == 0);
    for (int i = 0; i < COUNT; i++)
        ((int32_t *)data)[i] = i;
    CHECK_OK(comm_mem_register(world, &sum, sizeof sum, COMM_DEVICE_CPU, &known));
    CHECK_OK(comm_all_reduce(world, data, data, COUNT, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK_OK(comm_all_reduce(world, &sum, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(((int32_t *)data)[COUNT - 1] == size * (COUNT - 1) && sum == size);
    CHECK_OK(comm_mem_release(known));
    CHECK_OK(comm_mem_release(memory));
    CHECK_OK(comm_mem_release(NULL));
    CHECK_OK(comm_mem_alloc(world, 1, COMM_DEVICE_CPU, &more, &left));
    memset(more, 1, 1);
    CHECK_OK(comm_group_close(world)); /* releases what is left */
}

static void wrong_calls_are_refused(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("cpu:tcp,xpu:loopback"), *turns;
    comm_memory *memory;
    void *data;
    char byte;
    CHECK_STATUS(comm_mem_alloc(world, 8, COMM_DEVICE_DEFAULT, &data, &memory), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("several devices");
    CHECK_STATUS(comm_mem_alloc(world, 8, COMM_DEVICE_CUDA, &data, &memory), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("no backend for device cuda");
    CHECK_STATUS(comm_mem_alloc(world, 8, COMM_DEVICE_XPU, &data, &memory), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("backend 'loopback' does not allocate memory of device xpu");
    CHECK_STATUS(comm_mem_alloc(world, 0, COMM_DEVICE_CPU, &data, &memory), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mem_alloc(world, (size_t)-8, COMM_DEVICE_CPU, &data, &memory), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("is it negative?");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these abort instead */
    CHECK_STATUS(comm_mem_alloc(world, (size_t)1 << 60, COMM_DEVICE_CPU, &data, &memory), COMM_ERR_NO_MEMORY);
#endif
    CHECK_STATUS(comm_mem_alloc(world, 8, COMM_DEVICE_CPU, NULL, &memory), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mem_alloc(NULL, 8, COMM_DEVICE_CPU, &data, &memory), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mem_register(world, NULL, 8, COMM_DEVICE_CPU, &memory), COMM_ERR_INVALID);
    CHECK_STATUS(comm_mem_register(world, &byte, 1, COMM_DEVICE_CPU, NULL), COMM_ERR_INVALID);
    CHECK_OK(comm_mem_register(world, &byte, 1, COMM_DEVICE_XPU, &memory)); /* a hint without effect */
    CHECK_OK(comm_mem_release(memory));
    CHECK_OK(comm_group_round_robin(&world, 1, NULL, &turns));
    CHECK_STATUS(comm_mem_register(turns, &byte, 1, COMM_DEVICE_CPU, &memory), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("round-robin");
    CHECK_OK(comm_group_close(turns));
    CHECK_OK(comm_group_abort(world, "enough"));
    CHECK_STATUS(comm_mem_register(world, &byte, 1, COMM_DEVICE_CPU, &memory), COMM_ERR_ABORTED);
    CHECK_OK(comm_group_close(world));
}

static void reduce(comm_group *group, const float *send, float *recv, size_t count)
{
    CHECK_OK(comm_all_reduce(group, send, recv, count, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL));
}

static void ops_get_the_handle_of_where_they_lie(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend"), *other;
    comm_memory *in, *out;
    float *send, recv[COUNT] = { 0 };
    const size_t counts[1] = { 4 }, offsets[1] = { COUNT - 4 };
    void *list[1], *data;
    CHECK_OK(comm_group_dup(world, NULL, &other));
    CHECK_OK(comm_mem_alloc(world, COUNT * sizeof(float), COMM_DEVICE_DEFAULT, &data, &in));
    CHECK(pretend_pieces == 1 && pretend_device == COMM_DEVICE_XPU);
    send = list[0] = data;
    memset(send, 0, COUNT * sizeof *send);
    CHECK_OK(comm_mem_register(world, recv + 8, (COUNT - 8) * sizeof *recv, COMM_DEVICE_XPU, &out));
    reduce(world, send, recv + 8, COUNT - 8);
    void *in_handle = pretend_last.send.memory, *out_handle = pretend_last.recv.memory;
    CHECK(in_handle && out_handle && in_handle != out_handle);
    reduce(world, send + COUNT - 1, recv + COUNT - 1, 1); /* the last element of each */
    CHECK(pretend_last.send.memory == in_handle && pretend_last.recv.memory == out_handle);
    reduce(world, recv + 8, send, 1);
    CHECK(pretend_last.send.memory == out_handle && pretend_last.recv.memory == in_handle);
    reduce(world, send, recv + 7, 2); /* begins before it */
    CHECK(pretend_last.send.memory == in_handle && pretend_last.recv.memory == NULL);
    reduce(world, recv, send, COUNT); /* only its end lies within */
    CHECK(pretend_last.send.memory == NULL && pretend_last.recv.memory == in_handle);
    reduce(world, send, recv + 8, 0); /* no elements lie nowhere */
    CHECK(pretend_last.send.memory == NULL && pretend_last.recv.memory == NULL);
    CHECK_OK(comm_all_gather_v(world, recv, send, counts, offsets, COMM_DTYPE_F32, NULL, NULL));
    CHECK(pretend_last.send.memory == NULL && pretend_last.recv.memory == in_handle);
    CHECK_OK(comm_all_gather_v(world, send, recv, counts, offsets, COMM_DTYPE_F32, NULL, NULL));
    CHECK(pretend_last.send.memory == in_handle && pretend_last.recv.memory == out_handle); /* though recv[0] is not */
    CHECK_OK(comm_all_gather_list(world, recv, list, counts, COMM_DTYPE_F32, NULL, NULL));
    CHECK(pretend_last.recv.memory == NULL);
    reduce(other, send, recv + 8, 1); /* it is of one group */
    CHECK(pretend_last.send.memory == NULL && pretend_last.recv.memory == NULL);
    CHECK_OK(comm_coalesce_begin(world));
    reduce(world, send, recv + 8, 1);
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK(pretend_last.send.memory == in_handle && pretend_last.recv.memory == out_handle);
    CHECK_OK(comm_mem_release(out));
    for (int i = 0; i < 2; i++) { /* the same call again */
        reduce(world, send, recv + 8, 1);
        CHECK(pretend_last.send.memory == in_handle && pretend_last.recv.memory == NULL);
    }
    CHECK(pretend_pieces == 1);
    CHECK_OK(comm_mem_register(world, recv, sizeof recv, COMM_DEVICE_XPU, &out));
    reduce(world, send, recv + 8, 1);
    CHECK(pretend_last.recv.memory != NULL);
    CHECK_OK(comm_group_close(world));
    CHECK(pretend_pieces == 0);
    CHECK_OK(comm_group_close(other));
}

static void what_the_backend_says_is_told(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    comm_memory *memory;
    void *data;
    pretend_status = COMM_ERR_NO_MEMORY;
    pretend_text = "no pages are left";
    CHECK_STATUS(comm_mem_alloc(world, 8, COMM_DEVICE_XPU, &data, &memory), COMM_ERR_NO_MEMORY);
    CHECK_ERROR_SAYS("comm_mem_alloc on group 'world': backend 'pretend': no pages are left");
    pretend_status = COMM_OK;
    pretend_no_handle = 1;
    CHECK_STATUS(comm_mem_register(world, &memory, 8, COMM_DEVICE_XPU, &memory), COMM_ERR_BACKEND);
    CHECK_ERROR_SAYS("memory_open gave no handle");
    CHECK_OK(comm_group_status(world));
    pretend_no_handle = 0;
    pretend_status = COMM_ERR_BACKEND;
    pretend_text = "the device has fallen off";
    CHECK_STATUS(comm_mem_alloc(world, 8, COMM_DEVICE_XPU, &data, &memory), COMM_ERR_BACKEND);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_BACKEND); /* such a status ends a group */
    CHECK_ERROR_SAYS("fallen off");
    pretend_status = COMM_OK;
    CHECK_OK(comm_group_close(world));
}

static void a_forked_child_only_closes(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world("xpu:pretend");
    comm_memory *memory;
    void *data;
    int status;
    CHECK_OK(comm_mem_alloc(world, 8, COMM_DEVICE_XPU, &data, &memory));
    pid_t child = fork();
    if (child == 0) {
        CHECK_STATUS(comm_mem_release(memory), COMM_ERR_FORKED);
        CHECK_STATUS(comm_mem_alloc(world, 8, COMM_DEVICE_XPU, &data, &memory), COMM_ERR_FORKED);
        CHECK_STATUS(comm_group_close(world), COMM_ERR_FORKED);
        _exit(pretend_pieces == 0 && pretend_pieces_forked == 1 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_OK(comm_mem_release(memory));
    CHECK(pretend_pieces == 0 && pretend_pieces_forked == 0);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    const struct ranks_options how = { .name = "memory" };
    CHECK_OK(comm_backend_register(loopback_entry));
    CHECK_OK(comm_backend_register(pretend_entry));
    return ranks_run(2, &how, the_cpu_has_plain_memory, "cpu:tcp") ||
           ranks_run(1, &how, wrong_calls_are_refused, NULL) ||
           ranks_run(1, &how, ops_get_the_handle_of_where_they_lie, NULL) ||
           ranks_run(1, &how, what_the_backend_says_is_told, NULL) ||
           ranks_run(1, &how, a_forked_child_only_closes, NULL);
}

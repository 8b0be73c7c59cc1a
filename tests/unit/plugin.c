/* A plugin that is wrong in one way, chosen when it is compiled; registry.c loads them all. It links to nothing of
 * libcomm. */
#include <comm/backend.h>
#include <stddef.h>

#ifndef PLUGIN_ABI_OFFSET
#define PLUGIN_ABI_OFFSET 0
#endif
#ifndef PLUGIN_LACKS_ABORT
#define PLUGIN_LACKS_ABORT 0
#endif
#ifndef PLUGIN_REFUSES
#define PLUGIN_REFUSES 0
#endif
#ifndef PLUGIN_CANNOT
#define PLUGIN_CANNOT NULL
#endif
#ifndef PLUGIN_ENTRY
#define PLUGIN_ENTRY comm_backend_entry
#endif

static const comm_host *host;

static comm_status query(void *context)
{
    return context ? host->fail(COMM_ERR_UNSUPPORTED, context) : COMM_OK;
}

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context;
    *ret_world = (void *)info;
    return COMM_OK;
}

static void world_close(void *world, int32_t forked)
{
    (void)world, (void)forked;
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    (void)world;
    *ret_state = (void *)info;
    return COMM_OK;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    (void)state;
    (void)status;
    (void)reason;
}

static void group_close(void *state, int32_t forked)
{
    (void)state;
    (void)forked;
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    (void)state;
    (void)ops;
    (void)works;
    (void)count;
    return COMM_ERR_UNSUPPORTED;
}

static const comm_backend backend = {
    .struct_bytes = offsetof(comm_backend, progress), /* an older one, without the later slots */
    .abi_major = COMM_BACKEND_ABI_MAJOR + PLUGIN_ABI_OFFSET,
    .abi_minor = COMM_BACKEND_ABI_MINOR,
    .op_bytes = sizeof(comm_op),
    .op_flags = COMM_OP_FLAGS_KNOWN,
    .kind_end = COMM_OP_KIND_END,
    .dtype_end = COMM_DTYPE_END,
    .redop_end = COMM_REDOP_END,
    .name = PLUGIN_NAME,
    .version = "3.1",
    .devices = "cpu",
    .context = PLUGIN_CANNOT,
    .query = query,
    .world_open = world_open,
    .world_close = world_close,
    .group_open = group_open,
    .group_abort = PLUGIN_LACKS_ABORT ? NULL : group_abort,
    .group_close = group_close,
    .submit = submit,
};

COMM_BACKEND_EXPORT const comm_backend *PLUGIN_ENTRY(const comm_host *host);
COMM_BACKEND_EXPORT const comm_backend *PLUGIN_ENTRY(const comm_host *given)
{
    host = given;
    if (PLUGIN_REFUSES) {
        host->fail(COMM_ERR_UNSUPPORTED, "there is no such hardware");
        return NULL;
    }
    return &backend;
}

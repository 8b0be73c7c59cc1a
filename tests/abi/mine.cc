// A backend in C++, from comm/backend.h alone, for a device that libcomm has never heard of. Its groups have one rank,
// so that every operation is a copy; what there is to see of its parameters it says when it refuses to take the
// maximum.
#include <comm/backend.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>

namespace
{

const comm_host *host;

struct World {
    std::string name;
};

struct Group {
    int64_t depth, room;
    std::string mode;
};

// No exception may leave a slot.
template <class Function> comm_status guarded(Function function) noexcept
{
    try {
        return function();
    } catch (const std::bad_alloc &) {
        return host->fail(COMM_ERR_NO_MEMORY, "a state");
    } catch (...) {
        return host->fail(COMM_ERR_BUG, "an exception");
    }
}

comm_status world_open(void *, const comm_world_info *info, void **ret_world)
{
    return guarded([&] {
        *ret_world = new World{ info->name };
        return COMM_OK;
    });
}

void world_close(void *world, int32_t)
{
    delete static_cast<World *>(world);
}

comm_status group_open(void *, const comm_group_info *info, void **ret_state)
{
    if (info->size != 1)
        return host->fail(COMM_ERR_UNSUPPORTED, "its groups have one rank");
    return guarded([&] {
        *ret_state =
            new Group{ host->param_int(info->options, "mine", "depth"), host->param_int(info->options, "mine", "room"),
                       host->param_text(info->options, "mine", "mode") };
        return COMM_OK;
    });
}

void group_abort(void *, comm_status, const char *)
{
} // nothing is ever pending

void group_close(void *state, int32_t)
{
    delete static_cast<Group *>(state);
}

comm_status supports(void *state, const comm_op *op)
{
    if (!(comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_REDUCES) || op->redop != COMM_REDOP_MAX)
        return COMM_OK;
    const auto *g = static_cast<const Group *>(state);
    return guarded([&] {
        const std::string text = "no maximum; device " + std::to_string(comm_device_index(op->device)) + ", depth " +
                                 std::to_string(g->depth) + ", room " + std::to_string(g->room) + ", mode " + g->mode;
        return host->fail(COMM_ERR_UNSUPPORTED, text.c_str());
    });
}

comm_status submit(void *, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const comm_op &op = *ops[i];
        if (op.recv.data && op.send.data && op.recv.data != op.send.data)
            std::memcpy(op.recv.data, op.send.data, op.send.count * op.element_bytes);
        host->work_complete(works[i], COMM_OK, nullptr);
    }
    return COMM_OK;
}

comm_status query(void *context)
{
    return std::strcmp(static_cast<const char *>(context), "mine") == 0 ? COMM_OK
                                                                        : host->fail(COMM_ERR_BUG, "another context");
}

void describe_routes(void *, void (*line)(const char *, void *), void *line_context)
{
    line("everything: by memcpy", line_context);
}

const comm_backend_param depth = { sizeof depth, COMM_PARAM_INT, "depth", "4", 1, 8, "how deep" };
const comm_backend_param room = { sizeof room, COMM_PARAM_BYTES, "room", "1M", 0, int64_t(1) << 40, "how much" };
const comm_backend_param mode = { sizeof mode, COMM_PARAM_TEXT, "mode", "plain", 0, 0, "how" };
const comm_backend_param *const params[] = { &depth, &room, &mode, nullptr };
char context[] = "mine";

} // namespace

extern "C" COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given)
{
    static comm_backend backend = comm_backend_begun();
    host = given;
    backend.name = "mine";
    backend.version = "2";
    backend.license = "Apache-2.0";
    backend.devices = "npu2";
    backend.preference = 10;
    backend.context = context;
    backend.params = params;
    backend.query = query;
    backend.world_open = world_open;
    backend.world_close = world_close;
    backend.group_open = group_open;
    backend.group_abort = group_abort;
    backend.group_close = group_close;
    backend.supports = supports;
    backend.submit = submit;
    backend.describe_routes = describe_routes;
    return &backend;
}

/* Memory that is made known to backends, and how an op's buffers are found in it. */
#include "memory.h"

#include <stdlib.h>

#include "base/error.h"
#include "cuda_memory.h"
#include "fork.h"
#include "registry.h"

enum { MEMORY_ALIGNMENT = 64 };

struct comm_memory {
    comm_group *group;
    struct channel *channel;
    void *handle; /* the backend's; NULL: it has no slots for memory */
    void *plain;  /* the core has allocated it, and frees it */
    const char *data;
    size_t bytes;
    struct comm_memory *next, **at; /* in group->memories */
};

void comm__memories_init(struct memories *memories)
{
    pthread_mutex_init(&memories->lock, NULL);
}

void comm__memories_finish(struct memories *memories)
{
    pthread_mutex_destroy(&memories->lock);
}

/* ---- Pieces ---- */

static int has_slots(const comm_backend *backend)
{
    return backend->memory_open && backend->memory_close;
}

static comm_status slot_failed(comm_group *group, const struct channel *channel, const char *call, comm_status status,
                               uint64_t fail_count)
{
    status = comm__slot_failed("memory_open", status, fail_count);
    comm__fail_while(status, "%s on group '%s': backend '%s'", call, group->name, channel->backend->name);
    return comm__group_end_for(group, channel, status);
}

/* data NULL: allocate. */
static comm_status open_in_backend(struct comm_memory *memory, const char *call, comm_device device, void *data)
{
    const struct channel *channel = memory->channel;
    comm_memory_info info = { .struct_bytes = sizeof info, .device = device, .data = data, .bytes = memory->bytes };
    uint64_t fail_count = comm__fail_count();
    comm_status status = channel->backend->memory_open(channel->state, &info, &memory->handle);
    if (status != COMM_OK)
        return slot_failed(memory->group, channel, call, status, fail_count);
    memory->data = info.data;
    if (memory->handle && info.data)
        return COMM_OK;
    if (memory->handle)
        channel->backend->memory_close(channel->state, memory->handle, 0);
    return comm__fail(COMM_ERR_BACKEND, "%s on group '%s': backend '%s': memory_open gave no %s", call,
                      memory->group->name, channel->backend->name, memory->handle ? "memory" : "handle");
}

static comm_status open_plain(struct comm_memory *memory, const char *call, comm_device device, void *data)
{
    size_t whole = (memory->bytes + MEMORY_ALIGNMENT - 1) & ~(size_t)(MEMORY_ALIGNMENT - 1);
    char name[DEVICE_NAME_BYTES + 16];
    memory->data = data;
    if (data)
        return COMM_OK;
    comm__device_text(device, name, sizeof name);
    if (comm_device_kind(device) != COMM_DEVICE_CPU)
        return comm__fail(COMM_ERR_UNSUPPORTED, "%s on group '%s': backend '%s' does not allocate memory of device %s",
                          call, memory->group->name, memory->channel->backend->name, name);
    memory->data = memory->plain = aligned_alloc(MEMORY_ALIGNMENT, whole);
    return memory->plain ? COMM_OK
                         : comm__fail(COMM_ERR_NO_MEMORY, "%s on group '%s': %zu bytes", call, memory->group->name,
                                      memory->bytes);
}

static void enter(struct comm_memory *memory)
{
    struct memories *all = &memory->group->memories;
    pthread_mutex_lock(&all->lock);
    memory->next = all->first;
    memory->at = &all->first;
    if (memory->next)
        memory->next->at = &memory->next;
    all->first = memory;
    if (memory->handle)
        atomic_fetch_add(&all->count, 1);
    pthread_mutex_unlock(&all->lock);
}

static void leave(struct comm_memory *memory)
{
    struct memories *all = &memory->group->memories;
    pthread_mutex_lock(&all->lock);
    *memory->at = memory->next;
    if (memory->next)
        memory->next->at = memory->at;
    if (memory->handle)
        atomic_fetch_sub(&all->count, 1);
    pthread_mutex_unlock(&all->lock);
}

static void destroy(struct comm_memory *memory, int32_t forked)
{
    const struct channel *channel = memory->channel;
    if (memory->handle)
        channel->backend->memory_close(channel->state, memory->handle, forked);
    free(memory->plain);
    free(memory);
}

void comm__memories_close(comm_group *group, int32_t forked)
{
    while (group->memories.first) {
        struct comm_memory *memory = group->memories.first;
        group->memories.first = memory->next;
        destroy(memory, forked);
    }
}

/* ---- Calls ---- */

static comm_status check_call(const comm_group *group, const char *call, size_t bytes, comm_memory **ret_memory)
{
    comm_status status = comm__group_usable(group, call);
    if (status != COMM_OK)
        return status;
    if (!ret_memory)
        return comm__fail(COMM_ERR_INVALID, "%s on group '%s': ret_memory is NULL", call, group->name);
    if (bytes == 0 || bytes > PTRDIFF_MAX - MEMORY_ALIGNMENT)
        return comm__fail(COMM_ERR_INVALID, "%s on group '%s': bytes is %zu%s", call, group->name, bytes,
                          bytes ? "; is it negative?" : "");
    if (group->round_robin)
        return comm__fail(COMM_ERR_UNSUPPORTED,
                          "%s on group '%s': it is a round-robin group; use the groups that it takes turns over", call,
                          group->name);
    return COMM_OK;
}

static comm_status open_memory(comm_group *group, const char *call, void *data, size_t bytes, comm_device device,
                               comm_memory **ret_memory)
{
    struct channel *channel;
    comm_status status = comm__group_channel(group, call, device, &channel, &device);
    if (status != COMM_OK)
        return status;
    struct comm_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return comm__fail(COMM_ERR_NO_MEMORY, "%s on group '%s'", call, group->name);
    memory->group = group;
    memory->channel = channel;
    memory->bytes = bytes;
    status = has_slots(channel->backend) ? open_in_backend(memory, call, device, data)
                                         : open_plain(memory, call, device, data);
    if (status != COMM_OK) {
        free(memory);
        return status;
    }
    enter(memory);
    *ret_memory = memory;
    return COMM_OK;
}

comm_status comm_mem_alloc(comm_group *group, size_t bytes, comm_device device, void **ret_data,
                           comm_memory **ret_memory)
{
    static const char call[] = "comm_mem_alloc";
    comm_status status = check_call(group, call, bytes, ret_memory);
    if (status == COMM_OK && !ret_data)
        status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': ret_data is NULL", call, group->name);
    if (status == COMM_OK)
        status = open_memory(group, call, NULL, bytes, device, ret_memory);
    if (status == COMM_OK)
        *ret_data = (void *)(*ret_memory)->data;
    return status;
}

comm_status comm_mem_register(comm_group *group, void *data, size_t bytes, comm_device device, comm_memory **ret_memory)
{
    static const char call[] = "comm_mem_register";
    comm_status status = check_call(group, call, bytes, ret_memory);
    if (status == COMM_OK && !data)
        status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': the memory is NULL", call, group->name);
    return status == COMM_OK ? open_memory(group, call, data, bytes, device, ret_memory) : status;
}

comm_status comm_mem_release(comm_memory *memory)
{
    if (!memory)
        return COMM_OK;
    if (comm__forked_since(memory->group->generation))
        return comm__fail_forked(memory->group, "comm_mem_release");
    comm_status status = comm__refuse_in_reduce_fn("comm_mem_release");
    if (status != COMM_OK)
        return status;
    leave(memory);
    destroy(memory, 0);
    return COMM_OK;
}

/* ---- The buffers of an op ---- */

/* The elements from the first to the one after the last that a side has. */
struct extent {
    size_t first, end;
};

static struct extent extent_of(const comm_buffers *side, int is_blocks, int32_t size)
{
    struct extent e = { 0, is_blocks ? side->count * (size_t)size : side->count };
    if (!is_blocks || !side->counts)
        return e;
    e = (struct extent){ side->offsets ? SIZE_MAX : 0, 0 };
    for (int32_t r = 0; r < size; r++) {
        size_t at = side->offsets ? side->offsets[r] : e.end;
        if (side->counts[r] == 0)
            continue;
        e.first = at < e.first ? at : e.first;
        e.end = at + side->counts[r] > e.end ? at + side->counts[r] : e.end;
    }
    return e;
}

/* Holds the lock. */
static void *find(const comm_group *group, const struct channel *channel, const char *begin, size_t bytes)
{
    for (const struct comm_memory *m = group->memories.first; m; m = m->next)
        if (m->channel == channel && m->handle && begin >= m->data && bytes <= m->bytes &&
            (size_t)(begin - m->data) <= m->bytes - bytes)
            return m->handle;
    return NULL;
}

static void find_side(const comm_group *group, const struct channel *channel, comm_buffers *side, int is_blocks,
                      size_t element_bytes)
{
    struct extent e = extent_of(side, is_blocks, group->size);
    side->memory = NULL;
    if (side->data && !side->list && e.end > e.first)
        side->memory = find(group, channel, (const char *)side->data + e.first * element_bytes,
                            (e.end - e.first) * element_bytes);
}

void comm__memory_find(comm_group *group, const struct channel *channel, comm_op *op)
{
    const comm_op_traits *traits = comm_op_traits_of(op->kind);
    pthread_mutex_lock(&group->memories.lock);
    find_side(group, channel, &op->send, traits->send == COMM_OP_SIDE_BLOCKS, op->element_bytes);
    find_side(group, channel, &op->recv, traits->recv == COMM_OP_SIDE_BLOCKS, op->element_bytes);
    pthread_mutex_unlock(&group->memories.lock);
}

static int32_t device_of_list(const comm_buffers *side, int32_t size)
{
    int32_t index = -1;
    for (int32_t r = 0; index < 0 && r < size; r++)
        if (side->counts[r] > 0)
            index = comm__cuda_device_of(side->list[r]);
    return index;
}

static int32_t device_of_side(const comm_buffers *side, int is_blocks, int32_t size, size_t element_bytes)
{
    if (side->list)
        return device_of_list(side, size);
    struct extent e = extent_of(side, is_blocks, size);
    const char *begin = (const char *)side->data + e.first * element_bytes;
    return side->data && e.end > e.first ? comm__cuda_device_of(begin) : -1;
}

comm_device comm__memory_of_device(const comm_group *group, const comm_op *op, const char **ret_buffer)
{
    const comm_op_traits *traits = comm_op_traits_of(op->kind);
    if (!comm__cuda_is_there())
        return COMM_DEVICE_DEFAULT;
    *ret_buffer = "send buffer";
    int32_t index = device_of_side(&op->send, traits->send == COMM_OP_SIDE_BLOCKS, group->size, op->element_bytes);
    if (index < 0) {
        *ret_buffer = "recv buffer";
        index = device_of_side(&op->recv, traits->recv == COMM_OP_SIDE_BLOCKS, group->size, op->element_bytes);
    }
    if (index < 0 && op->premul) {
        *ret_buffer = "scalar options->premul";
        index = comm__cuda_device_of(op->premul);
    }
    return index < 0 ? COMM_DEVICE_DEFAULT : comm_device_at(COMM_DEVICE_CUDA, index);
}

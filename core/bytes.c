/* Byte strings of unequal length: the lengths first, then the bytes. Built from the collectives, and so works on every
 * backend. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "coalesce.h"
#include "group.h"

/* The options without what only reductions use; the device is the CPU, as the buffers are ours. */
static comm_op_options cpu_options(const comm_op_options *given)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    if (given)
        memcpy(&options, given, given->struct_bytes < sizeof options ? given->struct_bytes : sizeof options);
    options.struct_bytes = sizeof options;
    options.device = COMM_DEVICE_CPU;
    return options;
}

static comm_status check_call(const comm_group *group, const char *call, const comm_op_options *options,
                              const void *data, size_t bytes, int has_results)
{
    comm_status status = comm__group_usable(group, call);
    if (status == COMM_OK)
        status = comm__batch_refuse(group, call);
    if (status == COMM_OK)
        status = comm__check_struct(options, sizeof *options, "comm_op_options");
    if (status == COMM_OK && !data && bytes)
        status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': the data is NULL, but it has %zu bytes", call,
                            group->name, bytes);
    if (status == COMM_OK && !has_results)
        status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': a pointer for the results is NULL", call, group->name);
    return status;
}

/* Memory that is never NULL for 0 bytes, with a NUL after the data, so that it can be printed as text. */
static void *allocate(size_t bytes)
{
    char *memory = bytes < PTRDIFF_MAX ? malloc(bytes + 1) : NULL;
    if (memory)
        memory[bytes] = '\0';
    return memory;
}

static comm_status no_memory(comm_group *group, const char *call)
{
    /* The others are in the second half already; without this they would wait until the deadline. */
    comm_group_abort(group, "out of memory in a byte string collective");
    return comm__fail(COMM_ERR_NO_MEMORY, "%s on group '%s'", call, group->name);
}

static comm_status total_of(const comm_group *group, const char *call, const size_t *bytes, size_t *ret_total)
{
    *ret_total = 0;
    for (int32_t r = 0; r < group->size; r++)
        if (__builtin_add_overflow(*ret_total, bytes[r], ret_total))
            return comm__fail(COMM_ERR_PROTOCOL, "%s on group '%s': the lengths add up to more than memory holds", call,
                              group->name);
    return COMM_OK;
}

comm_status comm_all_gather_bytes(comm_group *group, const void *send, size_t send_bytes,
                                  const comm_op_options *options, void **ret_data, size_t **ret_bytes)
{
    static const char call[] = "comm_all_gather_bytes";
    comm_status status = check_call(group, call, options, send, send_bytes, ret_data && ret_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    size_t *bytes = malloc((size_t)group->size * sizeof *bytes), total;
    if (!bytes)
        return comm__fail(COMM_ERR_NO_MEMORY, "%s on group '%s'", call, group->name);
    void *data = NULL;
    status = comm_all_gather(group, &send_bytes, bytes, 1, COMM_DTYPE_U64, &cpu, NULL);
    if (status == COMM_OK)
        status = total_of(group, call, bytes, &total);
    if (status == COMM_OK && !(data = allocate(total)))
        status = no_memory(group, call);
    if (status == COMM_OK)
        status = comm_all_gather_v(group, send, data, bytes, NULL, COMM_DTYPE_BYTE, &cpu, NULL);
    if (status != COMM_OK) {
        free(bytes);
        free(data);
        return status;
    }
    *ret_data = data;
    *ret_bytes = bytes;
    return COMM_OK;
}

comm_status comm_gather_bytes(comm_group *group, const void *send, size_t send_bytes, int32_t root,
                              const comm_op_options *options, void **ret_data, size_t **ret_bytes)
{
    static const char call[] = "comm_gather_bytes";
    comm_status status = check_call(group, call, options, send, send_bytes, ret_data && ret_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    int is_root = group->rank == root;
    size_t *bytes = is_root ? malloc((size_t)group->size * sizeof *bytes) : NULL, total = 0;
    if (is_root && !bytes)
        return comm__fail(COMM_ERR_NO_MEMORY, "%s on group '%s'", call, group->name);
    void *data = NULL;
    status = comm_gather(group, &send_bytes, bytes, 1, COMM_DTYPE_U64, root, &cpu, NULL);
    if (status == COMM_OK && is_root)
        status = total_of(group, call, bytes, &total);
    if (status == COMM_OK && is_root && !(data = allocate(total)))
        status = no_memory(group, call);
    if (status == COMM_OK)
        status = comm_gather_v(group, send, send_bytes, data, bytes, NULL, COMM_DTYPE_BYTE, root, &cpu, NULL);
    if (status != COMM_OK) {
        free(bytes);
        free(data);
        return status;
    }
    *ret_data = data;
    *ret_bytes = bytes;
    return COMM_OK;
}

comm_status comm_broadcast_bytes(comm_group *group, const void *data, size_t bytes, int32_t root,
                                 const comm_op_options *options, void **ret_data, size_t *ret_bytes)
{
    static const char call[] = "comm_broadcast_bytes";
    int is_root = group && group->rank == root;
    comm_status status =
        check_call(group, call, options, is_root ? data : NULL, is_root ? bytes : 0, ret_data && ret_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    void *copy = NULL;
    status = comm_broadcast(group, &bytes, 1, COMM_DTYPE_U64, root, &cpu, NULL);
    if (status == COMM_OK && !(copy = allocate(bytes)))
        status = no_memory(group, call);
    if (status == COMM_OK && is_root && bytes)
        memcpy(copy, data, bytes);
    if (status == COMM_OK)
        status = comm_broadcast(group, copy, bytes, COMM_DTYPE_BYTE, root, &cpu, NULL);
    if (status != COMM_OK) {
        free(copy);
        return status;
    }
    *ret_data = copy;
    *ret_bytes = bytes;
    return COMM_OK;
}

comm_status comm_scatter_bytes(comm_group *group, const void *const *send, const size_t *send_bytes, int32_t root,
                               const comm_op_options *options, void **ret_data, size_t *ret_bytes)
{
    static const char call[] = "comm_scatter_bytes";
    comm_status status = check_call(group, call, options, NULL, 0, ret_data && ret_bytes);
    if (status == COMM_OK && group->rank == root && (!send || !send_bytes))
        status =
            comm__fail(COMM_ERR_INVALID, "%s on group '%s': send or send_bytes is NULL at the root", call, group->name);
    for (int32_t r = 0; status == COMM_OK && group->rank == root && r < group->size; r++)
        if (!send[r] && send_bytes[r])
            status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': send[%d] is NULL, but has %zu bytes", call,
                                group->name, r, send_bytes[r]);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    void *data = NULL;
    size_t bytes = 0;
    status = comm_scatter(group, send_bytes, &bytes, 1, COMM_DTYPE_U64, root, &cpu, NULL);
    if (status == COMM_OK && !(data = allocate(bytes)))
        status = no_memory(group, call);
    if (status == COMM_OK)
        status = comm_scatter_list(group, send, send_bytes, data, bytes, COMM_DTYPE_BYTE, root, &cpu, NULL);
    if (status != COMM_OK) {
        free(data);
        return status;
    }
    *ret_data = data;
    *ret_bytes = bytes;
    return COMM_OK;
}

comm_status comm_send_bytes(comm_group *group, const void *data, size_t bytes, int32_t peer,
                            const comm_op_options *options)
{
    comm_status status = check_call(group, "comm_send_bytes", options, data, bytes, 1);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    uint64_t length = bytes;
    status = comm_send(group, &length, 1, COMM_DTYPE_U64, peer, &cpu, NULL);
    return status == COMM_OK ? comm_send(group, data, bytes, COMM_DTYPE_BYTE, peer, &cpu, NULL) : status;
}

static comm_status fail_other_message(const comm_group *group, const char *call, int32_t source, int32_t tag)
{
    char who[GROUP_RANK_BYTES];
    comm__group_rank_text(group, source, who);
    return comm__fail(COMM_ERR_MISMATCH, "%s on group '%s': %s sent something else with tag %d", call, group->name, who,
                      tag);
}

comm_status comm_recv_bytes(comm_group *group, int32_t peer, const comm_op_options *options, void **ret_data,
                            size_t *ret_bytes, int32_t *ret_source)
{
    static const char call[] = "comm_recv_bytes";
    comm_status status = check_call(group, call, options, NULL, 0, ret_data && ret_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    uint64_t length;
    comm_work *work;
    status = comm_recv(group, &length, 1, COMM_DTYPE_U64, peer, &cpu, &work);
    if (status != COMM_OK)
        return status;
    status = comm_work_wait(work, 0);
    /* The bytes come from the same rank, with the same tag. */
    int32_t source = comm_work_source_rank(work);
    cpu.tag = comm_work_tag(work);
    if (status == COMM_OK && comm_work_received_count(work) != 1)
        status = fail_other_message(group, call, source, cpu.tag);
    comm_work_release(work);
    void *data = NULL;
    if (status == COMM_OK && !(data = allocate((size_t)length)))
        status = no_memory(group, call);
    if (status == COMM_OK)
        status = comm_recv(group, data, (size_t)length, COMM_DTYPE_BYTE, source, &cpu, NULL);
    if (status != COMM_OK) {
        free(data);
        return status;
    }
    *ret_data = data;
    *ret_bytes = (size_t)length;
    if (ret_source)
        *ret_source = source;
    return COMM_OK;
}

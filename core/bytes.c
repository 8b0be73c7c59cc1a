/* Byte strings of unequal length: the lengths first, then the bytes. Built from the collectives, and so works on every
 * backend. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "coalesce.h"
#include "group.h"
#include "round_robin.h"

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

/* A number that no string in memory can have is refused before the other ranks hear of it. */
static comm_status check_length(const comm_group *group, const char *call, const char *name, const void *data,
                                size_t bytes)
{
    if (bytes > PTRDIFF_MAX)
        return comm__fail(COMM_ERR_INVALID, "%s on group '%s': %s is %zu: is it negative?", call, group->name, name,
                          bytes);
    if (bytes > LIMIT_BUFFER_BYTES)
        return comm__fail(COMM_ERR_INVALID, "%s on group '%s': %s is %zu, more than the address space holds", call,
                          group->name, name, bytes);
    if (!data && bytes)
        return comm__fail(COMM_ERR_INVALID, "%s on group '%s': the data is NULL, but it has %zu bytes", call,
                          group->name, bytes);
    return COMM_OK;
}

static comm_status check_call(const comm_group *group, const char *call, const comm_op_options *options,
                              int has_results)
{
    comm_status status = comm__group_usable(group, call);
    if (status == COMM_OK)
        status = comm__refuse_in_callback(call);
    if (status == COMM_OK)
        status = comm__batch_refuse(group, call);
    if (status == COMM_OK)
        status = comm__check_struct(options, sizeof *options, "comm_op_options");
    if (status == COMM_OK && !has_results)
        status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': a pointer for the results is NULL", call, group->name);
    return status;
}

/* Memory that is never NULL for 0 bytes, with a NUL after the data, so that it can be printed as text. */
static void *allocate(size_t bytes)
{
    char *memory = malloc(bytes + 1);
    if (memory)
        memory[bytes] = '\0';
    return memory;
}

/* The other ranks may be in the second half already; without this they would wait until the deadline. */
__attribute__((format(printf, 4, 5))) static comm_status end_group(comm_group *group, const char *call,
                                                                   comm_status status, const char *format, ...)
{
    char reason[COMM_ERROR_BYTES], where[OP_PLACE_BYTES], text[COMM_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    comm__group_place(group, where);
    snprintf(text, sizeof text, "%s on %s: %.*s", call, where, (int)sizeof text / 2, reason);
    comm__group_abort(group, status, text);
    return comm__fail(status, "%s", text);
}

/* Not NO_MEMORY, after which the group would go on. */
static comm_status no_memory(comm_group *group, const char *call, size_t total, int32_t rank, size_t bytes)
{
    char who[GROUP_RANK_BYTES];
    comm__group_rank_text(group, rank, who);
    return end_group(group, call, COMM_ERR_ABORTED,
                     "out of memory: could not allocate %zu bytes for what was sent, of which %s gave %zu; this ends "
                     "the group",
                     total, who, bytes);
}

static comm_status no_memory_for_lengths(const comm_group *group, const char *call)
{
    return comm__fail(COMM_ERR_NO_MEMORY, "%s on group '%s': could not allocate %zu bytes for the lengths of %d ranks",
                      call, group->name, (size_t)group->size * sizeof(size_t), group->size);
}

static comm_status absurd_length(comm_group *group, const char *call, int32_t rank, size_t bytes)
{
    char who[GROUP_RANK_BYTES];
    comm__group_rank_text(group, rank, who);
    return end_group(group, call, COMM_ERR_PROTOCOL,
                     "%s gave the length %zu: that, or the sum of all lengths, is more than the address space holds",
                     who, bytes);
}

/* Memory for one string, whose length `rank` gave. */
static comm_status allocate_string(comm_group *group, const char *call, int32_t rank, size_t bytes, void **ret_data)
{
    if (bytes > LIMIT_BUFFER_BYTES)
        return absurd_length(group, call, rank, bytes);
    void *data = allocate(bytes);
    if (!data)
        return no_memory(group, call, bytes, rank, bytes);
    *ret_data = data;
    return COMM_OK;
}

static comm_status allocate_strings(comm_group *group, const char *call, const size_t *bytes, void **ret_data)
{
    size_t total = 0;
    int32_t longest = 0;
    int overflows = 0;
    for (int32_t r = 0; r < group->size; r++) {
        overflows |= __builtin_add_overflow(total, bytes[r], &total);
        if (bytes[r] > bytes[longest])
            longest = r;
    }
    if (overflows || total > LIMIT_BUFFER_BYTES)
        return absurd_length(group, call, longest, bytes[longest]);
    void *data = allocate(total);
    if (!data)
        return no_memory(group, call, total, longest, bytes[longest]);
    *ret_data = data;
    return COMM_OK;
}

/* What has become of it. If this rank alone has refused it, the others are in it, and would take this rank's next
 * operation for it. */
static comm_status second_half(comm_group *group, const char *call, comm_status status)
{
    char text[COMM_ERROR_BYTES];
    if (status == COMM_OK || status == COMM_ERR_UNSUPPORTED || comm_status_scope(status) >= COMM_SCOPE_OBJECT)
        return status;
    snprintf(text, sizeof text, "%s", comm_last_error());
    return end_group(group, call, COMM_ERR_ABORTED, "the lengths have been told, but not the bytes: %s", text);
}

comm_status comm_all_gather_bytes(comm_group *group, const void *send, size_t send_bytes,
                                  const comm_op_options *options, void **ret_data, size_t **ret_bytes)
{
    static const char call[] = "comm_all_gather_bytes";
    comm_status status = check_call(group, call, options, ret_data && ret_bytes);
    if (status == COMM_OK)
        status = check_length(group, call, "send_bytes", send, send_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    size_t *bytes = malloc((size_t)group->size * sizeof *bytes);
    if (!bytes)
        return no_memory_for_lengths(group, call);
    void *data = NULL;
    status = comm_all_gather(group, &send_bytes, bytes, 1, COMM_DTYPE_U64, &cpu, NULL);
    if (status == COMM_OK)
        status = allocate_strings(group, call, bytes, &data);
    if (status == COMM_OK)
        status = second_half(group, call, comm_all_gather_v(group, send, data, bytes, NULL, COMM_DTYPE_BYTE, &cpu,
                                                             NULL));
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
    comm_status status = check_call(group, call, options, ret_data && ret_bytes);
    if (status == COMM_OK)
        status = check_length(group, call, "send_bytes", send, send_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    int is_root = group->rank == root;
    size_t *bytes = is_root ? malloc((size_t)group->size * sizeof *bytes) : NULL;
    if (is_root && !bytes)
        return no_memory_for_lengths(group, call);
    void *data = NULL;
    status = comm_gather(group, &send_bytes, bytes, 1, COMM_DTYPE_U64, root, &cpu, NULL);
    if (status == COMM_OK && is_root)
        status = allocate_strings(group, call, bytes, &data);
    if (status == COMM_OK)
        status = second_half(group, call, comm_gather_v(group, send, send_bytes, data, bytes, NULL, COMM_DTYPE_BYTE,
                                                         root, &cpu, NULL));
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
    comm_status status = check_call(group, call, options, ret_data && ret_bytes);
    if (status == COMM_OK && is_root)
        status = check_length(group, call, "bytes", data, bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    void *copy = NULL;
    status = comm_broadcast(group, &bytes, 1, COMM_DTYPE_U64, root, &cpu, NULL);
    if (status == COMM_OK)
        status = allocate_string(group, call, root, bytes, &copy);
    if (status == COMM_OK && is_root && bytes)
        memcpy(copy, data, bytes);
    if (status == COMM_OK)
        status = second_half(group, call, comm_broadcast(group, copy, bytes, COMM_DTYPE_BYTE, root, &cpu, NULL));
    if (status != COMM_OK) {
        free(copy);
        return status;
    }
    *ret_data = copy;
    *ret_bytes = bytes;
    return COMM_OK;
}

static comm_status check_parts(const comm_group *group, const char *call, const void *const *send,
                               const size_t *send_bytes)
{
    size_t total = 0;
    if (!send || !send_bytes)
        return comm__fail(COMM_ERR_INVALID, "%s on group '%s': send or send_bytes is NULL at the root", call,
                          group->name);
    for (int32_t r = 0; r < group->size; r++) {
        char name[32];
        snprintf(name, sizeof name, "send_bytes[%d]", r);
        if (!send[r] && send_bytes[r] && send_bytes[r] <= LIMIT_BUFFER_BYTES)
            return comm__fail(COMM_ERR_INVALID, "%s on group '%s': send[%d] is NULL, but has %zu bytes", call,
                              group->name, r, send_bytes[r]);
        comm_status status = check_length(group, call, name, send[r], send_bytes[r]);
        if (status != COMM_OK)
            return status;
        total += send_bytes[r]; /* of two that are not above the limit */
        if (total > LIMIT_BUFFER_BYTES)
            return comm__fail(COMM_ERR_INVALID, "%s on group '%s': send_bytes[0] to send_bytes[%d] are %zu bytes, more "
                              "than the address space holds", call, group->name, r, total);
    }
    return COMM_OK;
}

comm_status comm_scatter_bytes(comm_group *group, const void *const *send, const size_t *send_bytes, int32_t root,
                               const comm_op_options *options, void **ret_data, size_t *ret_bytes)
{
    static const char call[] = "comm_scatter_bytes";
    comm_status status = check_call(group, call, options, ret_data && ret_bytes);
    if (status == COMM_OK && group->rank == root)
        status = check_parts(group, call, send, send_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    void *data = NULL;
    size_t bytes = 0;
    status = comm_scatter(group, send_bytes, &bytes, 1, COMM_DTYPE_U64, root, &cpu, NULL);
    if (status == COMM_OK)
        status = allocate_string(group, call, root, bytes, &data);
    if (status == COMM_OK)
        status = second_half(group, call, comm_scatter_list(group, send, send_bytes, data, bytes, COMM_DTYPE_BYTE,
                                                             root, &cpu, NULL));
    if (status != COMM_OK) {
        free(data);
        return status;
    }
    *ret_data = data;
    *ret_bytes = bytes;
    return COMM_OK;
}

/* Wait for a work, which may be NULL, and let go of it. */
static comm_status end_of(comm_work *work)
{
    comm_status status = work ? comm_work_wait(work, 0) : COMM_OK;
    comm_work_release(work);
    return status;
}

comm_status comm_send_bytes(comm_group *group, const void *data, size_t bytes, int32_t peer,
                            const comm_op_options *options)
{
    static const char call[] = "comm_send_bytes";
    comm_status status = check_call(group, call, options, 1);
    if (status == COMM_OK)
        status = check_length(group, call, "bytes", data, bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    uint64_t length = bytes;
    comm_work *of_length = NULL, *of_data = NULL;
    pthread_mutex_t *lock = &(group->round_robin ? group->round_robin->groups[0] : group)->strings_lock;
    pthread_mutex_lock(lock);
    status = comm_send(group, &length, 1, COMM_DTYPE_U64, peer, &cpu, &of_length);
    if (status == COMM_OK)
        status = second_half(group, call, comm_send(group, data, bytes, COMM_DTYPE_BYTE, peer, &cpu, &of_data));
    pthread_mutex_unlock(lock);
    comm_status sent = end_of(of_data), first = end_of(of_length);
    return status != COMM_OK ? status : first != COMM_OK ? first : sent;
}

/* A message that has come, or what fitted of it. */
struct arrival {
    int32_t source, tag;
    size_t bytes;
};

static comm_status not_a_string(comm_group *group, const char *call, const struct arrival *came, const char *why)
{
    char who[GROUP_RANK_BYTES];
    comm__group_rank_text(group, came->source, who);
    return end_group(group, call, COMM_ERR_MISMATCH,
                     "what came from %s with tag %d was not sent with comm_send_bytes: %s; receive with comm_recv what "
                     "comm_send sends. This ends the group",
                     who, came->tag, why);
}

/* A message of exactly so many bytes. */
static comm_status receive(comm_group *group, const char *call, void *data, size_t bytes, int32_t peer,
                           const comm_op_options *options, struct arrival *ret_came)
{
    comm_work *work;
    comm_status status = comm_recv(group, data, bytes, COMM_DTYPE_BYTE, peer, options, &work);
    if (status != COMM_OK)
        return status;
    status = comm_work_wait(work, 0);
    *ret_came = (struct arrival){ comm_work_source_rank(work), comm_work_tag(work), comm_work_received_count(work) };
    comm_work_release(work);
    char why[COMM_ERROR_BYTES];
    if (status == COMM_ERR_TRUNCATED)
        snprintf(why, sizeof why, "%s", comm_last_error());
    else if (status == COMM_OK && ret_came->bytes != bytes)
        snprintf(why, sizeof why, "it has %zu bytes instead of %zu", ret_came->bytes, bytes);
    else
        return status;
    return not_a_string(group, call, ret_came, why);
}

comm_status comm_recv_bytes(comm_group *group, int32_t peer, const comm_op_options *options, void **ret_data,
                            size_t *ret_bytes, int32_t *ret_source)
{
    static const char call[] = "comm_recv_bytes";
    comm_status status = check_call(group, call, options, ret_data && ret_bytes);
    if (status != COMM_OK)
        return status;
    comm_op_options cpu = cpu_options(options);
    struct arrival came;
    uint64_t length;
    status = receive(group, call, &length, sizeof length, peer, &cpu, &came);
    if (status != COMM_OK)
        return status;
    char text[GROUP_RANK_BYTES + 80];
    if (length > LIMIT_BUFFER_BYTES) {
        snprintf(text, sizeof text, "its 8 bytes are %" PRIu64 ", which is no length", length);
        return not_a_string(group, call, &came, text);
    }
    void *data = allocate((size_t)length);
    cpu.tag = came.tag; /* the bytes come from the same rank, with the same tag */
    if (!data) {
        comm__group_rank_text(group, came.source, text);
        status = end_group(group, call, COMM_ERR_ABORTED,
                           "out of memory: could not allocate %" PRIu64 " bytes, the length that came from %s with tag "
                           "%d; was it sent with comm_send_bytes? This ends the group",
                           length, text, came.tag);
    } else {
        status = receive(group, call, data, (size_t)length, came.source, &cpu, &came);
    }
    if (status != COMM_OK) {
        free(data);
        return status;
    }
    *ret_data = data;
    *ret_bytes = (size_t)length;
    if (ret_source)
        *ret_source = came.source;
    return COMM_OK;
}

/* Connecting a group's backends to the other ranks before the first operation. */
#include "base/clock.h"
#include "coalesce.h"
#include "group.h"
#include "registry.h"
#include "round_robin.h"

static const char call[] = "comm_group_connect";

/* The backend could not: why, or why the group has ended meanwhile. */
static comm_status failed(comm_group *group, const struct channel *channel, comm_status status, uint64_t fail_count)
{
    char where[OP_PLACE_BYTES];
    comm_status ended = comm__group_usable(group, call);
    if (ended != COMM_OK)
        return ended;
    comm__group_place(group, where);
    status = comm__slot_failed("group_connect", status, fail_count);
    comm__fail_while(status, "%s on %s: backend '%s'", call, where, channel->backend->name);
    return comm__group_end_for(group, channel, status);
}

static comm_status connect_kind(comm_group *group, comm_device device, int64_t deadline_ns)
{
    struct channel *channel;
    comm_status status = comm__group_channel(group, call, device, &channel, &device);
    if (status != COMM_OK || !channel->backend->group_connect)
        return status;
    uint64_t fail_count = comm__fail_count();
    status = channel->backend->group_connect(channel->state, device, deadline_ns);
    if (status != COMM_OK)
        return failed(group, channel, status, fail_count);
    return comm__group_usable(group, call); /* it may have been aborted when all was done */
}

static comm_status connect_until(comm_group *group, comm_device device, int64_t deadline_ns)
{
    comm_status status = COMM_OK;
    for (size_t i = 0; group->round_robin && status == COMM_OK && i < group->round_robin->count; i++)
        status = connect_until(group->round_robin->groups[i], device, deadline_ns);
    if (group->round_robin)
        return status;
    if (device != COMM_DEVICE_DEFAULT)
        return connect_kind(group, device, deadline_ns);
    for (int32_t kind = COMM_DEVICE_CPU; status == COMM_OK && kind < DEVICE_KIND_END; kind++)
        if (group->routes[kind])
            status = connect_kind(group, kind, deadline_ns);
    return status;
}

static comm_status check_idle(comm_group *group)
{
    comm_work *work = comm__pending_oldest(group, UINT64_MAX);
    char what[COMM_ERROR_BYTES / 2];
    if (!work)
        return COMM_OK;
    comm__work_describe(work, what, sizeof what);
    comm_work_release(work);
    return comm__fail(COMM_ERR_INVALID,
                      "%s on group '%s': %s has not finished; connect before the first operation, or wait for it", call,
                      group->name, what);
}

comm_status comm_group_connect(comm_group *group, comm_device device, int64_t timeout_ms)
{
    comm_status status = comm__refuse_in_callback(call);
    if (status == COMM_OK)
        status = comm__group_usable(group, call);
    if (status == COMM_OK)
        status = comm__batch_refuse(group, call);
    if (status == COMM_OK && timeout_ms < COMM_TIMEOUT_INFINITE)
        status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': timeout_ms is %lld; it is milliseconds, 0 or "
                            "COMM_TIMEOUT_INFINITE", call, group->name, (long long)timeout_ms);
    if (status == COMM_OK)
        status = check_idle(group);
    if (status != COMM_OK)
        return status;
    int64_t limit_ns = comm__group_limit_ns(group, timeout_ms), now_ns = clock_now_ns();
    return connect_until(group, device, limit_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + limit_ns);
}

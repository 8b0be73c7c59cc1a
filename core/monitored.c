/* The monitored barrier: rank 0 hears from everybody, then answers everybody; on timeout it knows who did not come.
 *
 * Messages are point-to-point, with tags of the library's own. They are numbered by barrier, because a barrier that
 * timed out leaves messages behind: a receive that was not answered stays posted and serves the next barrier, and a
 * rank that comes late to one that rank 0 has given up is told so as soon as rank 0 is in a barrier again. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coalesce.h"
#include "group.h"
#include "round_robin.h"

enum { TAG_COME = COMM_ANY_TAG - 1, TAG_ANSWER = COMM_ANY_TAG - 2 };

struct message {
    uint64_t number; /* of the barrier, from 1 */
    int32_t status;  /* of an answer */
    int32_t missing; /* of an answer: how many ranks, and one of them */
    int32_t missing_rank;
    int32_t zero;
};

/* A receive that may outlive the barrier that posted it. */
struct inbox {
    comm_work *work; /* NULL: nothing posted */
    struct message message;
};

struct monitor {
    uint64_t number;       /* of barriers so far */
    struct inbox *inboxes; /* rank 0: one per rank; others: [0] for answers */
    int32_t inbox_count;
};

void comm__monitor_destroy(struct monitor *monitor)
{
    if (!monitor)
        return;
    /* The group is being closed, and its works have ended; only their handles are left. */
    for (int32_t i = 0; i < monitor->inbox_count; i++)
        comm_work_release(monitor->inboxes[i].work);
    free(monitor->inboxes);
    free(monitor);
}

/* ---- Messages ---- */

static void free_message(comm_work *work, comm_status status, void *message)
{
    (void)work;
    (void)status;
    free(message);
}

/* Send a copy that lives until it has gone; nobody waits for it. */
static comm_status post(comm_group *group, int32_t peer, int32_t tag, const struct message *message)
{
    struct message *copy = malloc(sizeof *copy);
    if (!copy)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_monitored_barrier on group '%s'", group->name);
    *copy = *message;
    comm_op op = { .kind = COMM_OP_SEND,
                   .dtype = COMM_DTYPE_BYTE,
                   .root = peer,
                   .tag = tag,
                   .device = COMM_DEVICE_CPU,
                   .label = "monitored_barrier",
                   .send = { .data = copy, .count = sizeof *copy } };
    comm_work *work;
    comm_status status = comm__group_call_internal(group, &op, &work);
    if (status != COMM_OK) {
        free(copy);
        return status;
    }
    comm_work_on_complete(work, free_message, copy);
    comm_work_release(work);
    return COMM_OK;
}

static comm_status listen_to(comm_group *group, struct inbox *inbox, int32_t peer, int32_t tag)
{
    if (inbox->work)
        return COMM_OK;
    comm_op op = { .kind = COMM_OP_RECV,
                   .dtype = COMM_DTYPE_BYTE,
                   .root = peer,
                   .tag = tag,
                   .device = COMM_DEVICE_CPU,
                   .label = "monitored_barrier",
                   .recv = { .data = &inbox->message, .count = sizeof inbox->message } };
    return comm__group_call_internal(group, &op, &inbox->work);
}

/* Wait for the next message; TIMEOUT leaves the receive posted. */
static comm_status hear(comm_group *group, struct inbox *inbox, int32_t peer, int32_t tag, int64_t deadline_ns)
{
    comm_status status = listen_to(group, inbox, peer, tag);
    if (status == COMM_OK)
        status = comm__work_drive(inbox->work, deadline_ns);
    if (status != COMM_OK)
        return status;
    status = comm__work_result(inbox->work);
    comm_work_release(inbox->work);
    inbox->work = NULL;
    return status;
}

/* ---- Rank 0 ---- */

/* Wait until `peer` has come to this barrier; tell it about those it missed. */
static comm_status await(comm_group *group, struct monitor *m, int32_t peer, int64_t deadline_ns)
{
    struct inbox *inbox = &m->inboxes[peer];
    for (;;) {
        comm_status status = hear(group, inbox, peer, TAG_COME, deadline_ns);
        if (status != COMM_OK || inbox->message.number >= m->number)
            return status;
        struct message late = {
            .number = inbox->message.number, .status = COMM_ERR_TIMEOUT, .missing = 1, .missing_rank = peer
        };
        status = post(group, peer, TAG_ANSWER, &late);
        if (status != COMM_OK)
            return status;
    }
}

static comm_status answer_all(comm_group *group, struct monitor *m, const uint8_t *came, int32_t missing,
                              int32_t missing_rank)
{
    struct message answer = { .number = m->number,
                              .status = missing ? COMM_ERR_TIMEOUT : COMM_OK,
                              .missing = missing,
                              .missing_rank = missing_rank };
    comm_status status = COMM_OK;
    for (int32_t r = 1; status == COMM_OK && r < group->size; r++)
        if (came[r])
            status = post(group, r, TAG_ANSWER, &answer);
    return status;
}

static comm_status lead(comm_group *group, struct monitor *m, int64_t timeout_ms, int64_t deadline_ns)
{
    char names[512] = "";
    size_t used = 0;
    int32_t missing = 0, missing_rank = -1;
    uint8_t *came = calloc((size_t)group->size, 1);
    comm_status status = came ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "comm_monitored_barrier");
    /* All receives first: they are heard in any order while we wait for one. */
    for (int32_t r = 1; status == COMM_OK && r < group->size; r++)
        status = listen_to(group, &m->inboxes[r], r, TAG_COME);
    for (int32_t r = 1; status == COMM_OK && r < group->size; r++) {
        status = await(group, m, r, deadline_ns);
        came[r] = status == COMM_OK;
        if (status != COMM_ERR_TIMEOUT)
            continue;
        status = COMM_OK;
        missing_rank = r;
        missing++;
        if (used < sizeof names - 16)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", r);
    }
    if (status == COMM_OK)
        status = answer_all(group, m, came, missing, missing_rank);
    free(came);
    if (status != COMM_OK || missing == 0)
        return status;
    return comm__fail(
        COMM_ERR_TIMEOUT,
        "monitored_barrier #%" PRIu64 " on group '%s' (rank 0 of %d): %d %s not come within %" PRId64 " ms: %s",
        m->number, group->name, group->size, missing, missing == 1 ? "rank has" : "ranks have", timeout_ms, names);
}

/* ---- The others ---- */

static comm_status follow(comm_group *group, struct monitor *m, int64_t timeout_ms, int64_t deadline_ns)
{
    struct message come = { .number = m->number };
    struct inbox *inbox = &m->inboxes[0];
    comm_status status = post(group, 0, TAG_COME, &come);
    /* Answers to earlier barriers, which we gave up, come first. */
    do {
        if (status == COMM_OK)
            status = hear(group, inbox, 0, TAG_ANSWER, deadline_ns);
    } while (status == COMM_OK && inbox->message.number < m->number);
    if (status == COMM_ERR_TIMEOUT)
        return comm__fail(status,
                          "monitored_barrier #%" PRIu64 " on group '%s' (rank %d of %d): no word from rank 0 within "
                          "%" PRId64 " ms",
                          m->number, group->name, group->rank, group->size, timeout_ms);
    if (status != COMM_OK || inbox->message.status == COMM_OK)
        return status;
    return comm__fail(COMM_ERR_TIMEOUT,
                      "monitored_barrier #%" PRIu64
                      " on group '%s' (rank %d of %d): rank 0 says that %d %s not come in "
                      "time, such as rank %d",
                      m->number, group->name, group->rank, group->size, inbox->message.missing,
                      inbox->message.missing == 1 ? "rank has" : "ranks have", inbox->message.missing_rank);
}

static struct monitor *monitor_of(comm_group *group)
{
    if (group->monitor)
        return group->monitor;
    struct monitor *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->inbox_count = group->rank == 0 ? group->size : 1;
    m->inboxes = calloc((size_t)m->inbox_count, sizeof *m->inboxes);
    if (!m->inboxes) {
        free(m);
        return NULL;
    }
    group->monitor = m;
    return m;
}

comm_status comm_monitored_barrier(comm_group *group, const comm_op_options *options)
{
    comm_status status = comm__group_usable(group, "monitored_barrier");
    if (status == COMM_OK && group->turns) /* it is made of sends and receives, and those go to the first group */
        return comm_monitored_barrier(group->turns->groups[0], options);
    if (status == COMM_OK)
        status = comm__batch_refuse(group, "monitored_barrier");
    if (status == COMM_OK)
        status = comm__check_struct(options, sizeof *options, "comm_op_options");
    if (status != COMM_OK)
        return status;
    int64_t timeout_ms = options ? options->timeout_ms : 0;
    if (timeout_ms == 0)
        timeout_ms = comm_group_timeout(group);
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    pthread_mutex_lock(&group->monitor_lock);
    struct monitor *m = monitor_of(group);
    if (m) {
        m->number++;
        status = group->rank == 0 ? lead(group, m, timeout_ms, deadline_ns) : follow(group, m, timeout_ms, deadline_ns);
    } else {
        status = comm__fail(COMM_ERR_NO_MEMORY, "monitored_barrier on group '%s'", group->name);
    }
    pthread_mutex_unlock(&group->monitor_lock);
    return status;
}

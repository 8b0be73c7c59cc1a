/* The monitored barrier: rank 0 hears from every rank, then answers every rank; on timeout it knows which ranks did not
 * come.
 *
 * Messages are point-to-point, with tags of the library's own. They are numbered by barrier, because a barrier that
 * timed out leaves messages behind: a rank that comes late to one that rank 0 has given up is told so as soon as rank 0
 * is in a barrier again. A receive that was not answered stays posted and serves the next barrier. There is one, from
 * any rank, so that closing the group can end it by a message to itself: a pending receive would be taken for work that
 * is unfinished, and the other ranks would be told of an abort. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/counter.h"
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
    uint64_t number;  /* of barriers so far */
    atomic_int going; /* messages that have not gone yet */
    struct inbox inbox;
    uint64_t heard[]; /* rank 0: the latest barrier that each rank has come to */
};

void comm__monitor_destroy(struct monitor *monitor)
{
    if (!monitor)
        return;
    comm_work_release(monitor->inbox.work);
    free(monitor);
}

/* ---- Messages ---- */

/* A message on its way. */
struct parcel {
    struct message message;
    struct monitor *monitor;
};

static void has_gone(comm_work *work, comm_status status, void *context)
{
    struct parcel *parcel = context;
    (void)work;
    (void)status;
    count_down(&parcel->monitor->going);
    free(parcel);
}

/* Send a copy that lives until it has gone. */
static comm_status post_work(comm_group *group, int32_t peer, int32_t tag, const struct message *message,
                             comm_work **ret_work)
{
    struct parcel *parcel = malloc(sizeof *parcel);
    if (!parcel)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_monitored_barrier on group '%s'", group->name);
    *parcel = (struct parcel){ *message, group->monitor };
    atomic_fetch_add(&group->monitor->going, 1);
    comm_op op = { .kind = COMM_OP_SEND,
                   .dtype = COMM_DTYPE_BYTE,
                   .root = peer,
                   .tag = tag,
                   .device = COMM_DEVICE_CPU,
                   .label = "monitored_barrier",
                   .send = { .data = &parcel->message, .count = sizeof parcel->message } };
    comm_status status = comm__group_call_internal(group, &op, ret_work);
    if (status == COMM_OK)
        comm_work_on_complete(*ret_work, has_gone, parcel);
    else
        has_gone(NULL, status, parcel);
    return status;
}

/* The same, without waiting for it. */
static comm_status post(comm_group *group, int32_t peer, int32_t tag, const struct message *message)
{
    comm_work *work;
    comm_status status = post_work(group, peer, tag, message, &work);
    if (status == COMM_OK)
        comm_work_release(work);
    return status;
}

static int32_t tag_heard(const comm_group *group)
{
    return group->rank == 0 ? TAG_COME : TAG_ANSWER;
}

static comm_status listen(comm_group *group, struct inbox *inbox)
{
    if (inbox->work)
        return COMM_OK;
    comm_op op = { .kind = COMM_OP_RECV,
                   .dtype = COMM_DTYPE_BYTE,
                   .root = COMM_ANY_SOURCE,
                   .tag = tag_heard(group),
                   .device = COMM_DEVICE_CPU,
                   .label = "monitored_barrier",
                   .recv = { .data = &inbox->message, .count = sizeof inbox->message } };
    return comm__group_call_internal(group, &op, &inbox->work);
}

/* Wait for the next message; TIMEOUT leaves the receive posted. */
static comm_status hear(comm_group *group, struct inbox *inbox, int64_t deadline_ns, int32_t *ret_source)
{
    comm_status status = listen(group, inbox);
    if (status == COMM_OK)
        status = comm__work_drive(inbox->work, deadline_ns);
    if (status != COMM_OK)
        return status;
    status = comm__work_result(inbox->work);
    *ret_source = comm_work_source_rank(inbox->work);
    comm_work_release(inbox->work);
    inbox->work = NULL;
    return status;
}

/* The last answers may still be on their way to ranks that wait for them; those ranks should not be told of an abort
 * instead. */
static void see_off(struct monitor *m)
{
    int64_t deadline_ns = clock_deadline_ns(1000);
    while (atomic_load(&m->going) > 0 && clock_now_ns() < deadline_ns) {
        struct timespec pause = { 0, 50000 };
        nanosleep(&pause, NULL);
    }
}

void comm__monitor_hush(comm_group *group)
{
    struct monitor *m = group->monitor;
    if (!m || comm__group_usable(group, "comm_group_close") != COMM_OK)
        return;
    see_off(m);
    if (!m->inbox.work)
        return;
    struct message nothing = { 0 };
    comm_work *to_self;
    int32_t source;
    if (work_is_done(m->inbox.work) || post_work(group, group->rank, tag_heard(group), &nothing, &to_self) != COMM_OK)
        return;
    /* The receive may have got another message in the meantime; then the next one gets ours. */
    while (!work_is_done(to_self) && hear(group, &m->inbox, clock_deadline_ns(1000), &source) == COMM_OK)
        ;
    comm_work_release(to_self);
}

/* ---- Rank 0 ---- */

/* Take in one message; if its barrier is over, its sender is told so. */
static comm_status take(comm_group *group, struct monitor *m, int64_t deadline_ns)
{
    int32_t source;
    comm_status status = hear(group, &m->inbox, deadline_ns, &source);
    if (status != COMM_OK)
        return status;
    uint64_t number = m->inbox.message.number;
    if (number > m->heard[source])
        m->heard[source] = number;
    if (number >= m->number)
        return COMM_OK;
    struct message late = { .number = number, .status = COMM_ERR_TIMEOUT, .missing = 1, .missing_rank = source };
    return post(group, source, TAG_ANSWER, &late);
}

static int32_t count_missing(const comm_group *group, const struct monitor *m, int32_t *ret_one)
{
    int32_t missing = 0;
    for (int32_t r = 1; r < group->size; r++)
        if (m->heard[r] < m->number) {
            missing++;
            *ret_one = r;
        }
    return missing;
}

static comm_status answer_all(comm_group *group, const struct monitor *m, int32_t missing, int32_t missing_rank)
{
    struct message answer = { .number = m->number,
                              .status = missing ? COMM_ERR_TIMEOUT : COMM_OK,
                              .missing = missing,
                              .missing_rank = missing_rank };
    comm_status status = COMM_OK;
    for (int32_t r = 1; status == COMM_OK && r < group->size; r++)
        if (m->heard[r] >= m->number)
            status = post(group, r, TAG_ANSWER, &answer);
    return status;
}

__attribute__((format(printf, 3, 4))) static comm_status timed_out(const comm_group *group, const struct monitor *m,
                                                                   const char *format, ...)
{
    char where[OP_PLACE_BYTES], text[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    comm__group_place(group, where);
    return comm__fail(COMM_ERR_TIMEOUT, "monitored_barrier #%" PRIu64 " on %s timed out: %s", m->number, where, text);
}

static void write_missing(const comm_group *group, const struct monitor *m, char *names, size_t capacity)
{
    char name[GROUP_RANK_BYTES];
    size_t used = 0;
    *names = '\0';
    for (int32_t r = 1; r < group->size; r++) {
        if (m->heard[r] >= m->number)
            continue;
        if (used + GROUP_RANK_BYTES >= capacity) {
            snprintf(names + used, capacity - used, ", ...");
            return;
        }
        comm__group_rank_text(group, r, name);
        used += (size_t)snprintf(names + used, capacity - used, "%s%s", used ? ", " : "", name + strlen("rank "));
    }
}

static comm_status lead(comm_group *group, struct monitor *m, int64_t timeout_ms, int64_t deadline_ns)
{
    char names[512];
    int32_t missing_rank = -1, missing;
    comm_status status = COMM_OK;
    while ((missing = count_missing(group, m, &missing_rank)) > 0 && status == COMM_OK)
        status = take(group, m, deadline_ns);
    if (status != COMM_OK && status != COMM_ERR_TIMEOUT)
        return status;
    status = answer_all(group, m, missing, missing_rank);
    if (status != COMM_OK || missing == 0)
        return status;
    write_missing(group, m, names, sizeof names);
    return timed_out(group, m, "%d %s not come within %" PRId64 " ms: %s", missing,
                     missing == 1 ? "rank has" : "ranks have", timeout_ms, names);
}

/* ---- The others ---- */

/* Rank 0 decides when its own limit is over. If it came later than this rank, that is as much later, and then its
 * answer has to get here: a rank that gave up at its own limit would call rank 0 missing, which knows who is. */
enum { VERDICT_MS = 1000 };

static int64_t verdict_deadline_ns(int64_t deadline_ns)
{
    return deadline_ns < INT64_MAX - VERDICT_MS * INT64_C(1000000) ? deadline_ns + VERDICT_MS * INT64_C(1000000)
                                                                   : INT64_MAX;
}

static comm_status follow(comm_group *group, struct monitor *m, int64_t timeout_ms, int64_t deadline_ns)
{
    struct message come = { .number = m->number };
    struct inbox *inbox = &m->inbox;
    char leader[GROUP_RANK_BYTES], name[GROUP_RANK_BYTES];
    int32_t source;
    comm_status status = post(group, 0, TAG_COME, &come);
    if (status != COMM_OK) { /* rank 0 waits for this one still */
        m->number--;
        return status;
    }
    /* Answers to earlier barriers, which we gave up, come first. */
    do {
        status = hear(group, inbox, verdict_deadline_ns(deadline_ns), &source);
    } while (status == COMM_OK && inbox->message.number < m->number);
    comm__group_rank_text(group, 0, leader);
    if (status == COMM_ERR_TIMEOUT)
        return timed_out(group, m,
                         "no answer from %s within %" PRId64 " ms, nor in the %d ms after that: it has not come, has "
                         "given this barrier up, or has more time left than this rank and waits for another one",
                         leader, timeout_ms, VERDICT_MS);
    if (status != COMM_OK || inbox->message.status == COMM_OK)
        return status;
    int32_t missing = inbox->message.missing_rank;
    comm__group_rank_text(group, missing > 0 && missing < group->size ? missing : 0, name);
    return timed_out(group, m, "%s says that %d %s not come in time, such as %s", leader, inbox->message.missing,
                     inbox->message.missing == 1 ? "rank has" : "ranks have", name);
}

static struct monitor *monitor_of(comm_group *group)
{
    size_t heard = group->rank == 0 ? (size_t)group->size : 0;
    if (!group->monitor)
        group->monitor = calloc(1, sizeof *group->monitor + heard * sizeof group->monitor->heard[0]);
    return group->monitor;
}

comm_status comm_monitored_barrier(comm_group *group, const comm_op_options *options)
{
    comm_status status = comm__group_usable(group, "monitored_barrier");
    if (status == COMM_OK)
        status = comm__refuse_in_callback("monitored_barrier");
    if (status == COMM_OK)
        status = comm__batch_refuse(group, "monitored_barrier");
    if (status == COMM_OK && group->round_robin) /* it is made of sends and receives, and those go to the first group */
        return comm_monitored_barrier(group->round_robin->groups[0], options);
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

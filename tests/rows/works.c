/* Works: all that can be asked of one, and the ways of being told. */
#include <poll.h>
#include <stdatomic.h>
#include <string.h>

#include "rows.h"

/* A receive that is not complete until finish_late sends to it. */
static comm_work *late(const struct place *p, int32_t *buffer)
{
    comm_work *work;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.tag = 4321;
    *buffer = -1;
    OK(comm_recv(p->world, buffer, 1, COMM_DTYPE_I32, p->rank, &options, &work));
    IS(comm_work_status(work) == COMM_IN_PROGRESS);
    return work;
}

static void send_late(const struct place *p, comm_group *group)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.tag = 4321;
    OK(comm_send(group, &p->rank, 1, COMM_DTYPE_I32, comm_group_rank(group), &options, NULL));
}

static void work_test(const struct place *p)
{
    int32_t got, done = -1;
    comm_work *work = late(p, &got);
    OK(comm_work_test(work, &done));
    IS(done == 0);
    send_late(p, p->world);
    while (!done)
        OK(comm_work_test(work, &done));
    IS(got == p->rank);
    comm_work_release(work);
}

static void work_wait(const struct place *p)
{
    int32_t got, other = 1;
    comm_work *work = late(p, &got), *works[3] = { work, NULL, NULL };
    GIVES(COMM_ERR_TIMEOUT, comm_work_wait(work, 1));
    OK(comm_all_reduce(p->world, &other, &other, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &works[2]));
    GIVES(COMM_ERR_TIMEOUT, comm_work_wait_all(works, 3, 1));
    send_late(p, p->world);
    OK(comm_work_wait_all(works, 3, 0));
    IS(got == p->rank && other == p->size);
    OK(comm_work_wait(work, COMM_TIMEOUT_INFINITE));
    OK(comm_work_wait_stream(work, NULL));
    comm_work_release(works[2]);
    comm_work_release(work);
}

static void work_status(const struct place *p)
{
    comm_group *group;
    comm_work *work;
    int32_t got = -1;
    OK(comm_group_split(p->world, p->rank, 0, NULL, &group));
    OK(comm_recv(group, &got, 1, COMM_DTYPE_I32, 0, NULL, &work));
    IS(comm_work_status(work) == COMM_IN_PROGRESS && strcmp(comm_work_error(work), "") == 0);
    OK(comm_group_abort(group, "no more"));
    GIVES(COMM_ERR_ABORTED, comm_work_wait(work, 0));
    GIVES(COMM_ERR_ABORTED, comm_work_status(work));
    IS(strstr(comm_work_error(work), "no more") != NULL);
    OK(comm_group_close(group));
    IS(comm_work_status(work) == COMM_ERR_ABORTED); /* readable after its group */
    comm_work_release(work);
}

static void work_facts(const struct place *p)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    int64_t value = 1, sum = -1;
    uint64_t seq = comm_group_seq(p->world);
    options.timeout_ms = 22222;
    OK(comm_all_reduce(p->world, &value, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, &options, &work));
    IS(comm_work_seq(work) == seq + 1 && comm_work_timeout(work) == 22222);
    IS(strcmp(comm_work_op(work), "all_reduce") == 0);
    OK(comm_work_wait(work, 0));
    IS(comm_work_duration_ns(work) > 0 && sum == p->size); /* the result is in the caller's buffer */
    comm_work_release(work);
    int32_t got;
    work = late(p, &got);
    IS(comm_work_source_rank(work) == -1 && comm_work_received_count(work) == 0);
    send_late(p, p->world);
    OK(comm_work_wait(work, 0));
    IS(comm_work_source_rank(work) == p->rank && comm_work_tag(work) == 4321 && comm_work_received_count(work) == 1);
    comm_work_release(work);
}

static void count_call(comm_work *work, comm_status status, void *context)
{
    if (status == COMM_OK && comm_work_status(work) == COMM_OK)
        atomic_fetch_add((atomic_int *)context, 1);
}

static void work_callback(const struct place *p)
{
    atomic_int told = 0;
    int32_t got;
    comm_work *work = late(p, &got);
    OK(comm_work_on_complete(work, count_call, &told));
    GIVES(COMM_ERR_INVALID, comm_work_on_complete(work, count_call, &told));
    IS(told == 0);
    send_late(p, p->world);
    OK(comm_work_wait(work, 0));
    while (told == 0)
        ; /* the thread that completed it may still be about to call */
    comm_work_release(work);
    OK(comm_barrier(p->world, NULL, &work));
    OK(comm_work_wait(work, 0));
    OK(comm_work_on_complete(work, count_call, &told)); /* complete already: called at once */
    IS(told == 2);
    comm_work_release(work);
}

static void work_descriptor(const struct place *p)
{
    int32_t got, fd = -1;
    comm_work *work = late(p, &got);
    OK(comm_work_fd(work, &fd));
    struct pollfd poller = { fd, POLLIN, 0 };
    IS(poll(&poller, 1, 0) == 0);
    send_late(p, p->world);
    IS(poll(&poller, 1, 30000) == 1 && got == p->rank);
    comm_work_release(work);
}

static void work_drop(const struct place *p)
{
    int32_t got;
    comm_work *work = late(p, &got);
    comm_work_release(comm_work_retain(work)); /* one handle of two */
    comm_work_release(work);                   /* the buffer is still kept */
    send_late(p, p->world);
    OK(comm_group_flush(p->world, 0));
    IS(got == p->rank);
    comm_work_release(NULL);
}

static void flush(const struct place *p)
{
    int32_t values[8], got;
    comm_work *work = late(p, &got);
    GIVES(COMM_ERR_TIMEOUT, comm_group_flush(p->world, 1));
    for (int i = 0; i < 8; i++) {
        comm_work *dropped;
        values[i] = i;
        OK(comm_all_reduce(p->world, &values[i], &values[i], 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &dropped));
        comm_work_release(dropped);
    }
    send_late(p, p->world);
    OK(comm_group_flush(p->world, 0));
    IS(comm_work_status(work) == COMM_OK);
    for (int i = 0; i < 8; i++)
        IS(values[i] == i * p->size);
    comm_work_release(work);
}

struct events {
    atomic_int submitted, completed, ended;
};

static void count_event(const comm_event *event, void *context)
{
    struct events *events = context;
    atomic_fetch_add(event->kind == COMM_EVENT_SUBMIT     ? &events->submitted
                     : event->kind == COMM_EVENT_COMPLETE ? &events->completed
                                                          : &events->ended,
                     1);
}

static void hooks(const struct place *p)
{
    struct events events = { 0 };
    comm_group *group;
    int32_t hook;
    OK(comm_group_dup(p->world, NULL, &group));
    OK(comm_group_hook_add(group, COMM_EVENT_SUBMIT | COMM_EVENT_COMPLETE | COMM_EVENT_END, count_event, &events,
                           &hook));
    IS(rows_sum(group, 1) == p->size);
    IS(events.submitted == 1 && events.completed == 1 && events.ended == 0);
    OK(comm_barrier(p->world, NULL, NULL));
    OK(comm_group_abort(group, NULL));
    IS(events.ended == 1);
    OK(comm_group_hook_remove(group, hook));
    GIVES(COMM_ERR_NOT_FOUND, comm_group_hook_remove(group, hook));
    OK(comm_group_close(group));
}

const struct row_case rows_works[] = {
    { "work_test", work_test },
    { "work_wait", work_wait },
    { "work_status", work_status },
    { "work_facts", work_facts },
    { "work_callback", work_callback },
    { "work_descriptor", work_descriptor },
    { "work_drop", work_drop },
    { "flush", flush },
    { "hooks", hooks },
    { NULL, NULL },
};

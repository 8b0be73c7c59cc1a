/* Execution: everything that may happen next lies in one bag, and a random one is taken out and done. What may happen:
 * a lane (one slice of one rank) begins its next round, or a message whose send and receive are both posted arrives. */
#include <comm/backend.h>
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

struct message {
    struct message *next; /* in the receiver's inbox */
    struct element *copy; /* eager: the bytes as they were when the send was posted */
    struct span source;
    int32_t from_lane, to_lane;
    int32_t round;
    uint8_t is_wide, is_result; /* where it is from: elements of the wider type, or RECV */
};

struct lane {
    int32_t rank, slice;
    int32_t round; /* the one that it is in; -1 before the first */
    size_t next_step;
    int32_t pending;                 /* messages of the round that are not done */
    const struct plan_step **posted; /* [size] the receive from each rank that waits for its message */
    struct message **inbox;          /* [size] sends to it that wait for their receive */
};

struct event {
    int32_t lane;            /* begins its next round */
    struct message *message; /* or, if not NULL: arrives */
};

struct run {
    struct world *w;
    struct lane *lanes;
    int32_t lane_count, finished;
    int32_t begun;     /* lanes that have begun: for the barrier */
    int32_t slow_rank; /* -1: none */
    struct event *bag;
    size_t bag_count, bag_capacity;
    size_t in_flight; /* messages posted and not arrived */
    size_t *sent;     /* [size] */
};

static int put(struct run *run, struct event event)
{
    if (run->bag_count == run->bag_capacity) {
        size_t capacity = run->bag_capacity ? 2 * run->bag_capacity : 256;
        struct event *bag = realloc(run->bag, capacity * sizeof *bag);
        if (!bag)
            return fail(run->w, "out of memory");
        run->bag = bag;
        run->bag_capacity = capacity;
    }
    run->bag[run->bag_count++] = event;
    return 0;
}

static int is_slow(const struct run *run, const struct event *event)
{
    return !event->message && run->lanes[event->lane].rank == run->slow_rank;
}

static struct event take(struct run *run)
{
    size_t i = next_random(&run->w->random) % run->bag_count;
    for (size_t tries = 0; tries < run->bag_count && is_slow(run, &run->bag[i]); tries++)
        i = (i + 1) % run->bag_count;
    struct event event = run->bag[i];
    run->bag[i] = run->bag[--run->bag_count];
    return event;
}

static void average(struct world *w, struct span span)
{
    element_divide(span.data, span.count, w->setting->size);
}

static int reduce_ranks(struct world *w, const struct lane *lane, const struct plan_step *step, struct span dst,
                        struct span source)
{
    struct element *sum = malloc((dst.count + 1) * sizeof *sum);
    if (!sum)
        return fail(w, "out of memory");
    for (int32_t r = 0; r < w->setting->size; r++) {
        struct span share = source;
        struct plan_region region = step->other;
        region.slot += r * step->source.count;
        if (r != lane->rank && find_region(w, lane->rank, lane->slice, region, &share))
            break;
        if (r == 0 && dst.count > 0)
            memcpy(sum, share.data, dst.count * sizeof *sum);
        else
            element_reduce(sum, sum, share.data, dst.count);
    }
    if (dst.count > 0)
        memcpy(dst.data, sum, dst.count * sizeof *sum);
    free(sum);
    average(w, dst);
    return w->outcome->error[0] ? -1 : 0;
}

static int do_local(struct world *w, const struct lane *lane, const struct plan_step *step)
{
    struct span dst, source, other;
    if (find_region(w, lane->rank, lane->slice, step->dst, &dst) ||
        find_region(w, lane->rank, lane->slice, step->source, &source) ||
        find_region(w, lane->rank, lane->slice, step->other, &other))
        return -1;
    switch (step->kind) {
    case PLAN_STEP_COPY:
        if (dst.count > 0)
            memmove(dst.data, source.data, dst.count * sizeof *dst.data);
        return 0;
    case PLAN_STEP_REDUCE:
        element_reduce(dst.data, source.data, other.data, dst.count);
        return 0;
    case PLAN_STEP_REDUCE_RANKS:
        return reduce_ranks(w, lane, step, dst, source);
    default:
        average(w, dst);
        return 0;
    }
}

/* ---- Messages --------------------------------------------------------------------------------- */

static int post_send(struct run *run, int32_t index, const struct plan_step *step)
{
    struct world *w = run->w;
    struct lane *lane = &run->lanes[index], *to;
    struct message *m = calloc(1, sizeof *m);
    if (!m)
        return fail(w, "out of memory");
    m->from_lane = index;
    m->to_lane = step->peer * w->setting->slices + lane->slice;
    m->round = step->round;
    m->is_wide = (uint8_t)plan_is_wide(&w->plans[lane->rank], &step->source);
    m->is_result = step->source.buffer == PLAN_RECV;
    to = &run->lanes[m->to_lane];
    m->next = to->inbox[lane->rank]; /* from now on the inbox owns it */
    to->inbox[lane->rank] = m;
    run->in_flight++;
    if (find_region(w, lane->rank, lane->slice, step->source, &m->source))
        return -1;
    run->sent[lane->rank] += m->source.count;
    if (w->setting->hosts && w->setting->hosts[lane->rank] != w->setting->hosts[step->peer])
        w->outcome->crossed += m->source.count;
    if (w->setting->rendezvous) {
        lane->pending++;
    } else {
        m->copy = malloc((m->source.count + 1) * sizeof *m->copy);
        if (!m->copy)
            return fail(w, "out of memory");
        if (m->source.count > 0)
            memcpy(m->copy, m->source.data, m->source.count * sizeof *m->copy);
        m->source.data = m->copy;
    }
    if (to->posted[lane->rank] && to->round == m->round)
        return put(run, (struct event){ -1, m });
    return 0;
}

static int post_recv(struct run *run, int32_t index, const struct plan_step *step)
{
    struct lane *lane = &run->lanes[index];
    lane->pending++;
    if (lane->posted[step->peer])
        return fail(run->w, "rank %d: two receives from %d in round %d", lane->rank, step->peer, step->round);
    lane->posted[step->peer] = step;
    for (struct message *m = lane->inbox[step->peer]; m; m = m->next)
        if (m->round == step->round)
            return put(run, (struct event){ -1, m });
    return 0;
}

/* A message of the lane's round is done; after the last one the next round may begin. */
static int finish_one(struct run *run, int32_t index)
{
    if (--run->lanes[index].pending > 0)
        return 0;
    return put(run, (struct event){ index, NULL });
}

/* A message has its sender's elements. */
static int check_elements(struct world *w, const struct message *m, int32_t rank, const struct plan_step *step)
{
    const struct plan *p = &w->plans[rank];
    const struct plan_region *here = step->kind == PLAN_STEP_RECV ? &step->dst : &step->source;
    if (!p->widens || here->count == 0)
        return 0;
    if (plan_is_wide(p, here) != m->is_wide)
        return fail(w, "round %d: rank %d is sent elements of another type", m->round, rank);
    if (step->kind == PLAN_STEP_RECV_REDUCE && m->is_result)
        return fail(w, "round %d: rank %d sums what has been rounded", m->round, rank);
    return 0;
}

static int arrive(struct run *run, struct message *m)
{
    struct world *w = run->w;
    struct lane *from = &run->lanes[m->from_lane], *to = &run->lanes[m->to_lane];
    const struct plan_step *step = to->posted[from->rank];
    struct message **link = &to->inbox[from->rank];
    struct span dst, source;
    if (!step)
        return fail(w, "rank %d, round %d: two messages from rank %d", to->rank, m->round, from->rank);
    if (find_region(w, to->rank, to->slice, step->dst, &dst) ||
        find_region(w, to->rank, to->slice, step->source, &source) || check_elements(w, m, to->rank, step))
        return -1;
    if (dst.count != m->source.count)
        return fail(w, "round %d: rank %d sends %zu elements, rank %d receives %zu", m->round, from->rank,
                    m->source.count, to->rank, dst.count);
    if (step->kind == PLAN_STEP_RECV_REDUCE && step->source_is_lower)
        element_reduce(dst.data, source.data, m->source.data, dst.count);
    else if (step->kind == PLAN_STEP_RECV_REDUCE)
        element_reduce(dst.data, m->source.data, source.data, dst.count);
    else if (dst.count > 0)
        memmove(dst.data, m->source.data, dst.count * sizeof *dst.data);
    to->posted[from->rank] = NULL;
    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    int32_t from_lane = m->from_lane, to_lane = m->to_lane;
    free(m->copy);
    free(m);
    run->in_flight--;
    if (w->setting->rendezvous && finish_one(run, from_lane))
        return -1;
    return finish_one(run, to_lane);
}

/* ---- Rounds ----------------------------------------------------------------------------------- */

static int finish_lane(struct run *run, const struct lane *lane)
{
    run->finished++;
    if (run->w->setting->kind == COMM_OP_BARRIER && run->begun < run->lane_count)
        return fail(run->w, "rank %d leaves the barrier before everybody has come", lane->rank);
    return 0;
}

static int begin_round(struct run *run, int32_t index)
{
    struct lane *lane = &run->lanes[index];
    const struct plan *p = &run->w->plans[lane->rank];
    run->begun += lane->round < 0;
    if (++lane->round >= p->round)
        return finish_lane(run, lane);
    lane->pending = 1; /* this function's own, so that the round cannot end while it is being posted */
    for (; lane->next_step < p->step_count && p->steps[lane->next_step].round == lane->round; lane->next_step++) {
        const struct plan_step *step = &p->steps[lane->next_step];
        int result = step->kind > PLAN_STEP_RECV_REDUCE ? do_local(run->w, lane, step)
                     : step->kind == PLAN_STEP_SEND     ? 0
                                                        : post_recv(run, index, step);
        if (result)
            return -1;
    }
    /* Sends last: the local steps of the round come before them, wherever in the list they are. */
    for (size_t i = lane->next_step; i > 0 && p->steps[i - 1].round == lane->round; i--)
        if (p->steps[i - 1].kind == PLAN_STEP_SEND && post_send(run, index, &p->steps[i - 1]))
            return -1;
    return finish_one(run, index);
}

static int run_open(struct run *run)
{
    const struct setting *s = run->w->setting;
    size_t size = (size_t)s->size;
    run->lane_count = s->size * s->slices;
    run->lanes = calloc((size_t)run->lane_count, sizeof *run->lanes);
    run->sent = calloc(size, sizeof *run->sent);
    if (!run->lanes || !run->sent)
        return fail(run->w, "out of memory");
    for (int32_t i = 0; i < run->lane_count; i++) {
        struct lane *lane = &run->lanes[i];
        *lane = (struct lane){ .rank = i / s->slices, .slice = i % s->slices, .round = -1 };
        lane->posted = calloc(size, sizeof *lane->posted);
        lane->inbox = calloc(size, sizeof *lane->inbox);
        if (!lane->posted || !lane->inbox || put(run, (struct event){ i, NULL }))
            return fail(run->w, "out of memory");
    }
    return 0;
}

static void run_close(struct run *run)
{
    for (int32_t i = 0; run->lanes && i < run->lane_count; i++) {
        for (int32_t r = 0; run->lanes[i].inbox && r < run->w->setting->size; r++)
            for (struct message *m = run->lanes[i].inbox[r], *next; m; m = next) {
                next = m->next;
                free(m->copy);
                free(m);
            }
        free(run->lanes[i].posted);
        free(run->lanes[i].inbox);
    }
    free(run->lanes);
    free(run->sent);
    free(run->bag);
}

int execute(struct world *w)
{
    uint64_t random = next_random(&w->random), size = (uint64_t)w->setting->size;
    struct run run = { .w = w, .slow_rank = random & 1 ? (int32_t)((random >> 1) % size) : -1 };
    int result = run_open(&run);
    while (result == 0 && run.bag_count > 0) {
        struct event event = take(&run);
        result = event.message ? arrive(&run, event.message) : begin_round(&run, event.lane);
    }
    for (int32_t i = 0; result == 0 && i < run.lane_count; i++)
        if (run.lanes[i].round < w->plans[run.lanes[i].rank].round)
            result = fail(w, "deadlock: rank %d waits in round %d for %d messages", run.lanes[i].rank,
                          run.lanes[i].round, run.lanes[i].pending);
    if (result == 0 && run.in_flight > 0)
        result = fail(w, "%zu messages were sent and never received", run.in_flight);
    for (int32_t r = 0; result == 0 && r < w->setting->size; r++) {
        w->outcome->sent_total += run.sent[r];
        if (run.sent[r] > w->outcome->sent_most)
            w->outcome->sent_most = run.sent[r];
    }
    run_close(&run);
    return result;
}

/* ---- The whole -------------------------------------------------------------------------------- */

int32_t message_rounds(const struct plan *plans, int32_t size)
{
    static uint8_t has_messages[UINT16_MAX + 1];
    int32_t count = 0;
    memset(has_messages, 0, sizeof has_messages);
    for (int32_t r = 0; r < size; r++)
        for (size_t i = 0; i < plans[r].step_count; i++)
            if (plans[r].steps[i].peer >= 0)
                has_messages[plans[r].steps[i].round] = 1;
    for (int32_t i = 0; i <= UINT16_MAX; i++)
        count += has_messages[i];
    return count;
}

int simulate(const struct setting *setting, const struct plan *plans, struct outcome *ret_outcome)
{
    struct world w = { .setting = setting, .plans = plans, .outcome = ret_outcome };
    memset(ret_outcome, 0, sizeof *ret_outcome);
    int result = world_open(&w);
    for (int32_t r = 0; r < setting->size; r++)
        for (int32_t slice = 0; slice < setting->slices && result == 0; slice++)
            result = check_plan(&w, r, slice);
    if (result == 0)
        result = execute(&w);
    if (result == 0)
        result = world_compare(&w);
    world_close(&w);
    return result;
}

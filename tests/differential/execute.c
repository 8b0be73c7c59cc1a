/* A rank goes through the program with one or two threads per lane: one submits at a time, in the order of the lane's
 * steps, while the other waits for what it submitted before. Why that cannot block for ever, whatever each rank draws:
 * in a lane all ranks begin their steps in the same order, a call that waits waits only for other ranks to begin the
 * same step, a wait is for a step that was begun, and what is written down in a batch is submitted before anything
 * waits. So of all ranks the one that is furthest behind can always go on. */
#include "execute.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"
#include "gpu.h"
#include "random.h"
#include "ranks.h"

enum { PENDING_MAX = 40, WINDOW_MAX = 12, BATCH_MAX = 16, WORKERS_MAX = 2, PATIENCE_S = 60 };

struct lane;

enum telling { BY_HANDLE, BY_CALLBACK, DROPPED };

/* What was submitted and has not been checked yet. */
struct pending {
    struct lane *lane;
    comm_work *work; /* NULL: dropped */
    enum telling telling;
    int group;
    int count;
    struct call calls[BATCH_MAX];
    bool left_out[BATCH_MAX];
    pthread_mutex_t lock; /* of what the callback tells */
    pthread_cond_t told;
    int fired;
    comm_status fired_status;
};

struct digest {
    int64_t step;
    uint64_t hash;
};

struct rank_state {
    const struct execution *execution;
    const struct program *program;
    int rank;
    bool slow;
    comm_group *groups[GROUPS_MAX]; /* NULL: not a member */
    _Atomic uint64_t hashes[STEPS_MAX]; /* of a reduction's result on this rank; 0: none */
};

/* What the threads of a lane share. */
struct queue {
    pthread_mutex_t lock; /* held while submitting */
    int next;
};

/* One thread of a lane. */
struct lane {
    struct rank_state *state;
    struct queue *queue;
    int number;
    pthread_t thread;
    uint64_t random; /* this rank's own */
    struct pending *pending[PENDING_MAX];
    int pending_count;
    const struct step *step; /* under way */
    struct digest *digests[GROUPS_MAX];
    size_t digest_counts[GROUPS_MAX];
};

/* ---- Failing ---- */

__attribute__((format(printf, 3, 4), noreturn)) static void fail(const struct lane *lane, const struct step *step,
                                                                 const char *format, ...)
{
    const struct rank_state *state = lane->state;
    const struct program *p = state->program;
    char text[1200], line[400] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    FILE *in_memory = fmemopen(line, sizeof line, "w");
    if (in_memory) {
        program_print_step(p, step, in_memory);
        fclose(in_memory);
    }
    flockfile(stderr);
    fprintf(stderr, "world rank %d of %d, step %d: %s\n", state->rank, p->size, step->number, text);
    fprintf(stderr, "again: %s\n", state->execution->again);
    program_print_groups(p, stderr);
    int shown = 0;
    for (int n = step->number; n >= 0 && shown < 8; n--) /* the lane's steps before it */
        shown += p->groups[p->steps[n].group].lane == lane->number;
    for (int n = 0, skip = 0; n < p->step_count && skip < shown + 3; n++) {
        if (p->groups[p->steps[n].group].lane != lane->number)
            continue;
        int before = 0;
        for (int k = n; k < step->number; k++)
            before += p->groups[p->steps[k].group].lane == lane->number;
        if (n < step->number && before >= shown)
            continue;
        fprintf(stderr, "%s", n == step->number ? " -> " : "    ");
        program_print_step(p, &p->steps[n], stderr);
        fprintf(stderr, "\n");
        skip++;
    }
    for (int i = 0; i < lane->pending_count; i++)
        fprintf(stderr, "    pending: step %d (%d calls)\n", lane->pending[i]->calls[0].step->number,
                lane->pending[i]->count);
    funlockfile(stderr);
    ranks_fail(__FILE__, __LINE__, "%s: %s", line, text);
}

static void must(const struct lane *lane, const struct step *step, comm_status status, const char *what)
{
    if (status != COMM_OK)
        fail(lane, step, "%s gave %s: %s", what, comm_status_name(status), comm_last_error());
}

/* Has the backend refused what it cannot do? All ranks refuse the same: the step is left out. */
static bool is_left_out(const struct lane *lane, comm_status status)
{
    return lane->state->execution->may_refuse && status == COMM_ERR_UNSUPPORTED;
}

/* ---- This rank's own chance ---- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void dawdle(struct lane *lane)
{
    if (lane->state->program->hurried || !random_one_in(&lane->random, lane->state->slow ? 4 : 20))
        return;
    int64_t until = now_ns() + (int64_t)random_below(&lane->random, 400000);
    while (now_ns() < until)
        if (random_one_in(&lane->random, 2))
            sched_yield();
}

static bool chance(struct lane *lane, size_t n)
{
    return random_one_in(&lane->random, n);
}

/* ---- Finishing ---- */

static void told(comm_work *work, comm_status status, void *context)
{
    struct pending *p = context;
    if (comm_work_status(work) != status)
        abort();
    pthread_mutex_lock(&p->lock);
    p->fired++;
    p->fired_status = status;
    pthread_cond_signal(&p->told);
    pthread_mutex_unlock(&p->lock);
}

static comm_status await_callback(struct pending *p)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&p->lock);
    while (p->fired == 0)
        if (pthread_cond_timedwait(&p->told, &p->lock, &until) != 0)
            fail(p->lane, p->calls[0].step, "its callback was not called");
    pthread_mutex_unlock(&p->lock);
    return p->fired_status;
}

static comm_status await_descriptor(struct pending *p)
{
    int32_t fd;
    must(p->lane, p->calls[0].step, comm_work_fd(p->work, &fd), "comm_work_fd");
    struct pollfd item = { .fd = fd, .events = POLLIN };
    if (poll(&item, 1, PATIENCE_S * 1000) != 1)
        fail(p->lane, p->calls[0].step, "its descriptor did not become readable");
    return comm_work_status(p->work);
}

static comm_status await_testing(struct pending *p)
{
    int32_t done = 0;
    int64_t until = now_ns() + (int64_t)PATIENCE_S * 1000000000;
    for (;;) {
        comm_status status = comm_work_test(p->work, &done);
        if (done || status != COMM_OK)
            return status;
        if (now_ns() > until)
            fail(p->lane, p->calls[0].step, "comm_work_test never finds it done");
        sched_yield();
    }
}

static comm_status await_shortly(struct pending *p)
{
    for (int i = 0; i < PATIENCE_S * 500; i++) {
        comm_status status = comm_work_wait(p->work, 1 + (int64_t)random_below(&p->lane->random, 3));
        if (status != COMM_ERR_TIMEOUT)
            return status;
    }
    fail(p->lane, p->calls[0].step, "comm_work_wait never finds it done");
}

/* A flush also reports the errors of other works that it waited for: of receives that are to be too short. */
static comm_status flush(const struct pending *p)
{
    comm_status status = comm_group_flush(p->lane->state->groups[p->group], PATIENCE_S * 1000);
    return status == COMM_ERR_TRUNCATED ? COMM_OK : status;
}

static comm_status await(struct pending *p)
{
    if (p->telling == DROPPED)
        return flush(p);
    if (p->telling == BY_CALLBACK)
        return await_callback(p);
    switch (random_below(&p->lane->random, 6)) {
    case 0:
        return await_descriptor(p);
    case 1:
        return await_testing(p);
    case 2:
        return await_shortly(p);
    default:
        return comm_work_wait(p->work, 0);
    }
}

static bool is_truncated(const struct call *c)
{
    return c->step->kind == MESSAGE && c->half == RECEIVING_HALF && c->step->capacity < c->step->count;
}

static void keep_digest(struct lane *lane, const struct call *c, uint64_t hash)
{
    const struct step *s = c->step;
    struct rank_state *state = lane->state;
    state->hashes[s->number] = hash;
    uint64_t before = s->repeats >= 0 ? state->hashes[s->repeats] : 0;
    if (before && before != hash)
        fail(lane, s, "the result has other bits than that of step %d, which was the same call", s->repeats);
    if (s->kind != ALL_REDUCE)
        return;
    size_t *count = &lane->digest_counts[s->group];
    struct digest **digests = &lane->digests[s->group];
    *digests = realloc(*digests, (*count + 1) * sizeof **digests);
    (*digests)[(*count)++] = (struct digest){ s->number, hash };
}

static void check_facts(struct lane *lane, const struct pending *p, comm_status status)
{
    const struct call *c = &p->calls[0];
    const struct step *s = c->step;
    if (comm_work_status(p->work) != status)
        fail(lane, s, "comm_work_status is %s after %s", comm_status_name(comm_work_status(p->work)),
             comm_status_name(status));
    if (p->count != 1 || s->batch || s->kind != MESSAGE || c->half != RECEIVING_HALF)
        return;
    size_t got = s->count < s->capacity ? s->count : s->capacity;
    if (comm_work_source_rank(p->work) != s->root || comm_work_tag(p->work) != s->tag ||
        comm_work_received_count(p->work) != got)
        fail(lane, s, "received %zu elements from %d with tag %d, not %zu from %d with tag %d",
             comm_work_received_count(p->work), comm_work_source_rank(p->work), comm_work_tag(p->work), got, s->root,
             s->tag);
}

static void drop_pending(struct pending *p)
{
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->told);
    free(p);
}

/* Its step is left out. */
static void forget(struct pending *p)
{
    for (int i = 0; i < p->count; i++)
        call_finish(&p->calls[i]);
    drop_pending(p);
}

/* Check and forget. */
static void settle(struct lane *lane, struct pending *p, comm_status status)
{
    comm_status want = p->count == 1 && is_truncated(&p->calls[0]) ? COMM_ERR_TRUNCATED : COMM_OK;
    if (status != want)
        fail(lane, p->calls[0].step, "it ended with %s, not %s: %s", comm_status_name(status), comm_status_name(want),
             p->work ? comm_work_error(p->work) : comm_last_error());
    if (p->work)
        check_facts(lane, p, status);
    for (int i = 0; i < p->count; i++) {
        char text[1000];
        uint64_t hash = 0;
        if (!p->left_out[i] && !call_check(&p->calls[i], text, sizeof text, &hash))
            fail(lane, p->calls[i].step, "%s", text);
        if (hash)
            keep_digest(lane, &p->calls[i], hash);
        call_finish(&p->calls[i]);
    }
    comm_work_release(p->work);
    pthread_mutex_lock(&p->lock); /* the callback may still hold it */
    int fired = p->fired;
    pthread_mutex_unlock(&p->lock);
    if (p->telling == BY_CALLBACK && fired != 1)
        fail(lane, p->calls[0].step, "its callback was called %d times", fired);
    drop_pending(p);
}

static void finish_one(struct lane *lane, int index)
{
    struct pending *p = lane->pending[index];
    comm_status status = await(p);
    lane->pending[index] = lane->pending[--lane->pending_count];
    settle(lane, p, status);
}

static void finish_together(struct lane *lane)
{
    comm_work *works[PENDING_MAX + 1];
    bool fails = false;
    int count = lane->pending_count;
    for (int i = 0; i < count; i++) {
        works[i] = lane->pending[i]->work; /* NULL if it was dropped */
        fails |= is_truncated(&lane->pending[i]->calls[0]);
    }
    works[count] = NULL;
    comm_status status = comm_work_wait_all(works, (size_t)count + 1, PATIENCE_S * 1000);
    if (status != COMM_OK && !(fails && status == COMM_ERR_TRUNCATED))
        fail(lane, lane->step, "comm_work_wait_all gave %s: %s", comm_status_name(status), comm_last_error());
    while (lane->pending_count > 0)
        finish_one(lane, lane->pending_count - 1);
}

static void finish_some(struct lane *lane, int most_left)
{
    if (lane->pending_count > most_left && chance(lane, 6))
        finish_together(lane);
    while (lane->pending_count > most_left)
        finish_one(lane, (int)random_below(&lane->random, (size_t)lane->pending_count));
}

/* ---- Submitting ---- */

static struct pending *new_pending(struct lane *lane, int group)
{
    struct pending *p = calloc(1, sizeof *p);
    p->lane = lane;
    p->group = group;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->told, NULL);
    return p;
}

static comm_group *group_of(const struct lane *lane, int group)
{
    return lane->state->groups[group];
}

/* It need be said only where the group has several devices. */
static comm_device device_of_cpu(const struct lane *lane)
{
    return lane->state->program->has_gpu ? COMM_DEVICE_CPU : COMM_DEVICE_DEFAULT;
}

static void prepare(struct lane *lane, struct pending *p, const struct step *s, enum half half)
{
    comm_group *g = group_of(lane, s->group);
    comm_device device = s->on_gpu ? gpu_device() : device_of_cpu(lane);
    call_prepare(&p->calls[p->count++], s, device, half, comm_group_rank(g), comm_group_size(g), &lane->random);
}

/* What was submitted is under way: decide how to hear of its end. */
static void expect_end(struct lane *lane, struct pending *p, comm_work *work)
{
    p->work = work;
    if (chance(lane, 5)) {
        p->telling = BY_CALLBACK;
        must(lane, p->calls[0].step, comm_work_on_complete(work, told, p), "comm_work_on_complete");
    } else if (chance(lane, 8) && !is_truncated(&p->calls[0])) {
        p->telling = DROPPED;
        comm_work_release(work);
        p->work = NULL;
    }
    lane->pending[lane->pending_count++] = p;
}

static void submit(struct lane *lane, const struct step *s, enum half half, bool may_wait)
{
    struct pending *p = new_pending(lane, s->group);
    comm_work *work = NULL;
    prepare(lane, p, s, half);
    bool waits = may_wait && chance(lane, 2);
    comm_status status = call_submit(&p->calls[0], group_of(lane, s->group), waits ? NULL : &work);
    if (is_left_out(lane, status)) {
        forget(p);
    } else if (waits) {
        settle(lane, p, status);
    } else {
        must(lane, s, status, "the call");
        expect_end(lane, p, work);
    }
}

static bool is_to_self(const struct step *s)
{
    return s->kind == MESSAGE && s->root == s->peer;
}

static void submit_step(struct lane *lane, const struct step *s)
{
    if (!call_takes_part(s, comm_group_rank(group_of(lane, s->group))))
        return;
    if (!is_to_self(s)) {
        submit(lane, s, OWN_HALF, true);
        return;
    }
    bool send_first = chance(lane, 2);
    struct pending *first = new_pending(lane, s->group);
    comm_work *work = NULL;
    prepare(lane, first, s, send_first ? SENDING_HALF : RECEIVING_HALF);
    comm_status status = call_submit(&first->calls[0], group_of(lane, s->group), &work);
    if (is_left_out(lane, status)) {
        forget(first);
        return;
    }
    must(lane, s, status, "the first half");
    submit(lane, s, send_first ? RECEIVING_HALF : SENDING_HALF, true);
    expect_end(lane, first, work);
}

/* Those that are refused are none of the batch. */
static void write_down(struct lane *lane, struct pending *p, comm_group *g)
{
    for (int i = 0; i < p->count; i++) {
        comm_status status = call_submit(&p->calls[i], g, NULL);
        p->left_out[i] = is_left_out(lane, status);
        if (!p->left_out[i])
            must(lane, p->calls[i].step, status, "the coalesced call");
    }
}

/* Write the calls down and forget them; the same memory is used again right after. */
static void cancel_once(struct lane *lane, struct pending *p, comm_group *g)
{
    must(lane, p->calls[0].step, comm_coalesce_begin(g), "comm_coalesce_begin");
    write_down(lane, p, g);
    must(lane, p->calls[0].step, comm_coalesce_cancel(g), "comm_coalesce_cancel");
}

static void submit_batch(struct lane *lane, const struct step *const *steps, int count)
{
    comm_group *g = group_of(lane, steps[0]->group);
    struct pending *p = new_pending(lane, steps[0]->group);
    for (int i = 0; i < count; i++) {
        if (!call_takes_part(steps[i], comm_group_rank(g)))
            continue;
        bool self = is_to_self(steps[i]), send_first = chance(lane, 2);
        prepare(lane, p, steps[i], !self ? OWN_HALF : send_first ? SENDING_HALF : RECEIVING_HALF);
        if (self)
            prepare(lane, p, steps[i], send_first ? RECEIVING_HALF : SENDING_HALF);
    }
    if (p->count == 0) { /* an empty batch is legal; it needs a step to speak of */
        must(lane, steps[0], comm_coalesce_begin(g), "comm_coalesce_begin");
        must(lane, steps[0], comm_coalesce_end(g, NULL, NULL), "comm_coalesce_end");
        drop_pending(p);
        return;
    }
    if (chance(lane, 8))
        cancel_once(lane, p, g);
    must(lane, steps[0], comm_coalesce_begin(g), "comm_coalesce_begin");
    write_down(lane, p, g);
    comm_work *work = NULL;
    bool waits = chance(lane, 3);
    comm_status status = comm_coalesce_end(g, NULL, waits ? NULL : &work);
    if (is_left_out(lane, status)) {
        forget(p);
        return;
    }
    if (waits) {
        settle(lane, p, status);
        return;
    }
    must(lane, steps[0], status, "comm_coalesce_end");
    expect_end(lane, p, work);
}

/* ---- Steps that wait in any case ---- */

static size_t string_bytes(const struct step *s, int32_t from, int32_t to)
{
    uint64_t random = random_key(s->key, (uint64_t)(5000 + from * 64 + to));
    return random % 5 == 0 ? 0 : (random >> 8) % (s->count + 2);
}

static uint8_t *make_string(const struct step *s, int32_t from, int32_t to, size_t *ret_bytes)
{
    *ret_bytes = string_bytes(s, from, to);
    uint8_t *data = malloc(*ret_bytes + 1);
    reference_bytes(data, *ret_bytes, random_key(s->key, (uint64_t)(from * 64 + to)));
    return data;
}

static void check_string(struct lane *lane, const struct step *s, int32_t from, int32_t to, const void *got,
                         size_t got_bytes)
{
    size_t bytes;
    uint8_t *want = make_string(s, from, to, &bytes);
    if (got_bytes != bytes || memcmp(got, want, bytes) != 0)
        fail(lane, s, "the string from rank %d has %zu bytes, not %zu, or other ones", from, got_bytes, bytes);
    free(want);
}

static void gather_bytes(struct lane *lane, const struct step *s, comm_group *g)
{
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    size_t mine, *lengths = NULL, at = 0;
    void *data = NULL;
    uint8_t *send = make_string(s, rank, 0, &mine);
    comm_status status = s->kind == GATHER_BYTES ? comm_gather_bytes(g, send, mine, s->root, NULL, &data, &lengths)
                                                 : comm_all_gather_bytes(g, send, mine, NULL, &data, &lengths);
    free(send);
    if (is_left_out(lane, status))
        return;
    must(lane, s, status, "the call");
    bool has_result = s->kind == ALL_GATHER_BYTES || rank == s->root;
    if (has_result != (data != NULL) || has_result != (lengths != NULL))
        fail(lane, s, "it gave %s", data ? "a result that is not this rank's" : "no result");
    for (int32_t r = 0; has_result && r < size; r++) {
        check_string(lane, s, r, 0, (uint8_t *)data + at, lengths[r]);
        at += lengths[r];
    }
    comm_free(data);
    comm_free(lengths);
}

static void scatter_bytes(struct lane *lane, const struct step *s, comm_group *g)
{
    int32_t rank = comm_group_rank(g), size = comm_group_size(g);
    size_t lengths[RANKS_MAX], bytes = 0;
    void *strings[RANKS_MAX], *data = NULL;
    bool at_root = rank == s->root;
    for (int32_t r = 0; at_root && r < size; r++)
        strings[r] = make_string(s, s->root, r, &lengths[r]);
    comm_status status =
        s->kind == SCATTER_BYTES
            ? comm_scatter_bytes(g, at_root ? (const void *const *)strings : NULL, at_root ? lengths : NULL, s->root,
                                 NULL, &data, &bytes)
            : comm_broadcast_bytes(g, at_root ? strings[0] : NULL, at_root ? lengths[0] : 0, s->root, NULL, &data,
                                   &bytes);
    if (!is_left_out(lane, status)) {
        must(lane, s, status, "the call");
        check_string(lane, s, s->root, s->kind == SCATTER_BYTES ? rank : 0, data, bytes);
        comm_free(data);
    }
    for (int32_t r = 0; at_root && r < size; r++)
        free(strings[r]);
}

static void message_bytes(struct lane *lane, const struct step *s, comm_group *g)
{
    int32_t rank = comm_group_rank(g), source = -1;
    size_t bytes;
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    o.tag = s->tag;
    if (s->root == s->peer)
        return; /* both halves wait */
    if (rank == s->root) {
        uint8_t *data = make_string(s, s->root, s->peer, &bytes);
        must(lane, s, comm_send_bytes(g, data, bytes, s->peer, &o), "comm_send_bytes");
        free(data);
    } else if (rank == s->peer) {
        void *data;
        o.tag = s->naming == BY_SOURCE ? COMM_ANY_TAG : s->tag;
        must(lane, s,
             comm_recv_bytes(g, s->naming == BY_TAG ? COMM_ANY_SOURCE : s->root, &o, &data, &bytes, &source),
             "comm_recv_bytes");
        if (source != s->root)
            fail(lane, s, "the source is %d, not %d", source, s->root);
        check_string(lane, s, s->root, s->peer, data, bytes);
        comm_free(data);
    }
}

/* Does `rank` send in a FAN_IN? */
static bool fans_in(const struct step *s, int32_t rank)
{
    return rank != s->root && random_key(s->key, 300 + (uint64_t)rank) % 3 != 0;
}

static void receive_fan(struct lane *lane, const struct step *s, comm_group *g, int32_t senders)
{
    size_t capacity = (s->count + 2) * sizeof(uint8_t);
    uint8_t *buffers[RANKS_MAX];
    comm_work *works[RANKS_MAX];
    bool seen[RANKS_MAX] = { false };
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    o.tag = s->tag;
    o.device = device_of_cpu(lane);
    for (int32_t i = 0; i < senders; i++) {
        buffers[i] = malloc(capacity);
        memset(buffers[i], 0xa5, capacity);
        must(lane, s, comm_recv(g, buffers[i], capacity, COMM_DTYPE_BYTE, COMM_ANY_SOURCE, &o, &works[i]), "comm_recv");
    }
    for (int32_t i = senders - 1; i >= 0; i--) {
        must(lane, s, comm_work_wait(works[i], 0), "receiving from any source");
        int32_t source = comm_work_source_rank(works[i]);
        if (source < 0 || source >= comm_group_size(g) || !fans_in(s, source) || seen[source])
            fail(lane, s, "a message comes from rank %d, which %s", source,
                 source >= 0 && source < RANKS_MAX && seen[source] ? "sent one only" : "did not send");
        seen[source] = true;
        check_string(lane, s, source, s->root, buffers[i], comm_work_received_count(works[i]));
        comm_work_release(works[i]);
        free(buffers[i]);
    }
}

static void fan_in(struct lane *lane, const struct step *s, comm_group *g)
{
    int32_t rank = comm_group_rank(g), senders = 0;
    if (fans_in(s, rank)) {
        size_t bytes;
        comm_op_options o = COMM_OP_OPTIONS_INIT;
        o.tag = s->tag;
        o.device = device_of_cpu(lane);
        uint8_t *data = make_string(s, rank, s->root, &bytes);
        must(lane, s, comm_send(g, data, bytes, COMM_DTYPE_BYTE, s->root, &o, NULL), "comm_send");
        free(data);
    }
    for (int32_t r = 0; r < comm_group_size(g); r++)
        senders += fans_in(s, r);
    if (rank == s->root)
        receive_fan(lane, s, g, senders);
}

/* A group of some of the group's ranks; NULL if this rank is not in it. */
static comm_group *make_child(struct lane *lane, const struct step *s, comm_group *g)
{
    int32_t size = comm_group_size(g), rank = comm_group_rank(g), list[RANKS_MAX], count = 0;
    comm_group *child = NULL;
    comm_status status;
    switch (random_key(s->key, 1) % 3) {
    case 0:
        must(lane, s, comm_group_dup(g, NULL, &child), "comm_group_dup");
        break;
    case 1:
        status = comm_group_split(g, (int32_t)(random_key(s->key, 20 + (uint64_t)rank) % 3) - 1, -rank, NULL, &child);
        if (!is_left_out(lane, status))
            must(lane, s, status, "comm_group_split");
        break;
    default:
        for (int32_t r = 0; r < size; r++)
            if (random_key(s->key, 40 + (uint64_t)r) % 3 != 0)
                list[count++] = size - 1 - r;
        for (int32_t i = 0; i < count; i++)
            if (list[i] == rank || chance(lane, 4)) {
                must(lane, s, comm_group_create(g, list, (size_t)count, NULL, &child), "comm_group_create");
                break;
            }
        break;
    }
    return child;
}

static void use_child(struct lane *lane, const struct step *s, comm_group *g)
{
    comm_group *child = make_child(lane, s, g);
    if (!child)
        return;
    int32_t size = comm_group_size(child), sum = 0, world_rank, mine = lane->state->rank;
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    o.device = device_of_cpu(lane);
    for (int32_t r = 0; r < size; r++) {
        must(lane, s, comm_group_world_rank(child, r, &world_rank), "comm_group_world_rank");
        sum += world_rank;
    }
    if (chance(lane, 2))
        dawdle(lane);
    comm_status status = comm_all_reduce(child, &mine, &mine, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &o, NULL);
    if (is_left_out(lane, status))
        mine = sum;
    else
        must(lane, s, status, "all_reduce in a child");
    if (mine != sum)
        fail(lane, s, "the sum of the child's world ranks is %d, not %d", mine, sum);
    if (chance(lane, 2)) /* what is under way on the parent does not matter to the child */
        finish_some(lane, (int)random_below(&lane->random, WINDOW_MAX));
    must(lane, s, comm_group_close(child), "closing a child");
}

static void run_waiting(struct lane *lane, const struct step *s, comm_group *g)
{
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    comm_status status;
    switch (s->kind) {
    case ALL_GATHER_BYTES:
    case GATHER_BYTES:
        gather_bytes(lane, s, g);
        break;
    case BROADCAST_BYTES:
    case SCATTER_BYTES:
        scatter_bytes(lane, s, g);
        break;
    case MESSAGE_BYTES:
        message_bytes(lane, s, g);
        break;
    case FAN_IN:
        fan_in(lane, s, g);
        break;
    case MONITORED_BARRIER:
        o.timeout_ms = PATIENCE_S * 1000;
        status = comm_monitored_barrier(g, &o);
        if (!is_left_out(lane, status))
            must(lane, s, status, "comm_monitored_barrier");
        break;
    default:
        use_child(lane, s, g);
        break;
    }
}

/* ---- Lanes ---- */

static bool is_mine(const struct lane *lane, const struct step *s)
{
    const struct execution *e = lane->state->execution;
    return lane->state->program->groups[s->group].lane == lane->number && group_of(lane, s->group) &&
           s->number >= e->first_step && s->number <= e->last_step && (!e->takes || e->takes(s));
}

/* The next step, or all of a batch's. */
static void run_step(struct lane *lane, int *next)
{
    const struct program *p = lane->state->program;
    const struct step *s = &p->steps[*next], *batch[BATCH_MAX];
    int count = 0;
    lane->step = s;
    for (; s->batch && *next < p->step_count && p->steps[*next].batch == s->batch; ++*next)
        if (is_mine(lane, &p->steps[*next]))
            batch[count++] = &p->steps[*next];
    dawdle(lane);
    if (s->batch && chance(lane, 4)) {
        for (int i = 0; i < count; i++)
            submit_step(lane, batch[i]);
    } else if (s->batch) {
        if (count > 0)
            submit_batch(lane, batch, count);
    } else {
        ++*next;
        if (s->kind <= MESSAGE)
            submit_step(lane, s);
        else
            run_waiting(lane, s, group_of(lane, s->group));
    }
}

/* all_reduce gives the same bits on all ranks. `lane` has the digests of all threads of the lane. */
static void compare_digests(struct lane *lane, int group)
{
    comm_group *g = group_of(lane, group);
    void *data;
    size_t *lengths, bytes = lane->digest_counts[group] * sizeof(struct digest);
    if (!lane->state->program->has_cpu) { /* byte strings need one */
        free(lane->digests[group]);
        return;
    }
    comm_status status = comm_all_gather_bytes(g, lane->digests[group], bytes, NULL, &data, &lengths);
    if (is_left_out(lane, status)) {
        free(lane->digests[group]);
        return;
    }
    must(lane, lane->step, status, "comparing results");
    for (int32_t r = 1; r < comm_group_size(g); r++)
        if (lengths[r] != lengths[0])
            fail(lane, lane->step, "rank %d has another number of results", r);
    const struct digest *all = data, *mine = lane->digests[group];
    size_t count = lane->digest_counts[group];
    for (int32_t r = 0; r < comm_group_size(g); r++)
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < count; k++) /* ranks finish in orders of their own */
                if (all[(size_t)r * count + i].step == mine[k].step && all[(size_t)r * count + i].hash != mine[k].hash)
                    fail(lane, &lane->state->program->steps[mine[k].step],
                         "rank %d of the group has other bits than this one", r);
    comm_free(data);
    comm_free(lengths);
    free(lane->digests[group]);
}

static bool take_step(struct lane *lane)
{
    const struct program *p = lane->state->program;
    struct queue *queue = lane->queue;
    pthread_mutex_lock(&queue->lock);
    while (queue->next < p->step_count && !is_mine(lane, &p->steps[queue->next]))
        queue->next++;
    bool any = queue->next < p->step_count;
    if (any)
        run_step(lane, &queue->next);
    pthread_mutex_unlock(&queue->lock);
    return any;
}

static void *run_lane(void *context)
{
    struct lane *lane = context;
    gpu_thread();
    lane->step = &lane->state->program->steps[0];
    while (take_step(lane))
        finish_some(lane, (int)random_below(&lane->random, WINDOW_MAX));
    finish_some(lane, 0);
    return NULL;
}

static void merge_digests(struct lane *into, struct lane *from)
{
    for (int i = 0; i < GROUPS_MAX; i++) {
        size_t count = into->digest_counts[i], more = from->digest_counts[i];
        if (more == 0)
            continue;
        into->digests[i] = realloc(into->digests[i], (count + more) * sizeof **into->digests);
        memcpy(into->digests[i] + count, from->digests[i], more * sizeof **into->digests);
        into->digest_counts[i] = count + more;
        free(from->digests[i]);
    }
}

/* All lanes at once, then a comparison between ranks. */
static void run_lanes(struct rank_state *state, uint64_t *random)
{
    const struct program *p = state->program;
    struct lane lanes[LANES_MAX][WORKERS_MAX];
    struct queue queues[LANES_MAX];
    int workers[LANES_MAX];
    memset(lanes, 0, sizeof lanes);
    for (int i = 0; i < p->lane_count; i++) {
        pthread_mutex_init(&queues[i].lock, NULL);
        queues[i].next = 0;
        workers[i] = 1 + (int)random_below(random, WORKERS_MAX);
        for (int k = 0; k < workers[i]; k++)
            lanes[i][k] = (struct lane){
                .state = state, .queue = &queues[i], .number = i, .random = random_key(*random, (uint64_t)(i * 10 + k))
            };
    }
    for (int i = 0; i < p->lane_count; i++)
        for (int k = 0; k < workers[i]; k++)
            if (pthread_create(&lanes[i][k].thread, NULL, run_lane, &lanes[i][k]) != 0)
                abort();
    for (int i = 0; i < p->lane_count; i++)
        for (int k = 0; k < workers[i]; k++)
            pthread_join(lanes[i][k].thread, NULL);
    for (int i = 0; i < p->lane_count; i++) {
        if (workers[i] == 2)
            merge_digests(&lanes[i][0], &lanes[i][1]);
        pthread_mutex_destroy(&queues[i].lock);
    }
    for (int i = 0; i < p->group_count; i++)
        if (state->groups[i])
            compare_digests(&lanes[p->groups[i].lane][0], i);
}

/* ---- Groups ---- */

static comm_status call_making(const struct making *m, comm_group *parent, uint64_t *random, comm_group **ret_group)
{
    int32_t rank = comm_group_rank(parent);
    *ret_group = NULL;
    switch (m->how) {
    case BY_SPLIT:
        return comm_group_split(parent, m->color[rank], m->key[rank], NULL, ret_group);
    case BY_DUP:
        return comm_group_dup(parent, NULL, ret_group);
    case BY_SUBGROUPS:
        return comm_group_subgroups(parent, m->group_size, NULL, ret_group);
    default:
        for (int32_t i = 0; i < m->list_size; i++)
            if (m->list[i] == rank)
                return comm_group_create(parent, m->list, (size_t)m->list_size, NULL, ret_group);
        return random_one_in(random, 2) /* others may call too */
                   ? comm_group_create(parent, m->list, (size_t)m->list_size, NULL, ret_group)
                   : COMM_OK;
    }
}

static bool is_member(const struct group_def *g, int rank)
{
    for (int32_t i = 0; i < g->size; i++)
        if (g->world_ranks[i] == rank)
            return true;
    return false;
}

/* What a split would give, without asking the others. */
static comm_status make_by_list(const struct program *p, const struct making *m, comm_group *parent, int rank,
                                comm_group **ret_group)
{
    int32_t ranks[RANKS_MAX];
    for (int i = m->first; i < m->first + m->count; i++) {
        const struct group_def *g = &p->groups[i];
        for (int32_t r = 0; r < g->size; r++)
            CHECK_OK(comm_group_rank_of(parent, g->world_ranks[r], &ranks[r]));
        if (is_member(g, rank))
            return comm_group_create(parent, ranks, (size_t)g->size, NULL, ret_group);
    }
    return COMM_OK;
}

/* Which of the groups of this making is this one? Its members must be the expected ones. */
static int find_group(const struct program *p, const struct making *m, const comm_group *group)
{
    int32_t ranks[RANKS_MAX];
    CHECK_OK(comm_group_ranks(group, ranks));
    for (int i = m->first; i < m->first + m->count; i++)
        if (p->groups[i].size == comm_group_size(group) &&
            memcmp(p->groups[i].world_ranks, ranks, (size_t)p->groups[i].size * sizeof *ranks) == 0)
            return i;
    ranks_fail(__FILE__, __LINE__, "group '%s' has other members than it should", comm_group_name(group));
}

static void make_groups(struct rank_state *state, uint64_t *random)
{
    const struct program *p = state->program;
    state->groups[0] = ranks_world(p->backend);
    for (int i = 0; i < p->making_count; i++) {
        const struct making *m = &p->makings[i];
        comm_group *group;
        if (!state->groups[m->parent])
            continue;
        comm_status status = call_making(m, state->groups[m->parent], random, &group);
        if (state->execution->may_refuse && status == COMM_ERR_UNSUPPORTED)
            status = make_by_list(p, m, state->groups[m->parent], state->rank, &group);
        CHECK_OK(status);
        if (group)
            state->groups[find_group(p, m, group)] = group;
    }
    for (int i = 0; i < p->group_count; i++)
        if (is_member(&p->groups[i], state->rank) != (state->groups[i] != NULL))
            ranks_fail(__FILE__, __LINE__, "rank %d is %s of group %d", state->rank,
                       state->groups[i] ? "wrongly a member" : "not a member", i);
}

/* In any order, and without waiting for the others. */
static void close_groups(struct rank_state *state, uint64_t *random)
{
    int left = state->program->group_count;
    while (left > 0) {
        int i = (int)random_below(random, (size_t)left);
        CHECK_OK(comm_group_close(state->groups[i]));
        state->groups[i] = state->groups[--left];
    }
}

void execute(int rank, int size, void *arg)
{
    const struct execution *e = arg;
    (void)size;
    gpu_open(e->program->backend, rank);
    struct rank_state *state = calloc(1, sizeof *state);
    uint64_t random = random_key(e->program->seed, 500 + (uint64_t)rank);
    state->execution = e;
    state->program = e->program;
    state->rank = rank;
    state->slow = random_one_in(&random, 4);
    make_groups(state, &random);
    run_lanes(state, &random);
    ranks_quiet(state->groups[0]);
    close_groups(state, &random);
    free(state);
}

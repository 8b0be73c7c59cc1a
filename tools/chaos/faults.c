/* What is done to an op. */
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "chaos.h"

enum { TEXT_BYTES = 600, DESCRIBED_BYTES = 256 };

void chaos_tell(int32_t level, const struct group *g, const struct op *op, const char *format, ...)
{
    char what[TEXT_BYTES / 2], which[DESCRIBED_BYTES], text[TEXT_BYTES];
    if (!chaos_host->log_wanted(level))
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    chaos_host->describe(g->token, &op->op, which, sizeof which);
    snprintf(text, sizeof text, "chaos: world rank %d, op %" PRIu64 " (seed %" PRIu64 "): %s: %s", g->plan.rank,
             op->number, g->plan.seed, which, what);
    chaos_host->log(level, text);
}

/* ---- The process ---- */

void chaos_kill(const struct group *g, const struct op *op, const char *when)
{
    chaos_tell(COMM_LOG_WARN, g, op, "killed %s", when);
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Stop the process. The kernel's timer lets it go on, as no thread of it runs. */
static void stall(const struct group *g, const struct op *op)
{
    int64_t ns = g->plan.stall_ns;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT };
    struct timespec span = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
    struct itimerspec when = { span, span }; /* more than once: the first may come before the stop */
    timer_t timer;
    if (ns > 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
        chaos_tell(COMM_LOG_WARN, g, op, "not stopped: there is no timer to let the process go on");
        return;
    }
    if (ns > 0)
        chaos_tell(COMM_LOG_WARN, g, op, "stopped for %" PRId64 " ms", ns / 1000000);
    else
        chaos_tell(COMM_LOG_WARN, g, op, "stopped for ever");
    if (ns > 0)
        timer_settime(timer, 0, &when, NULL);
    kill(getpid(), SIGSTOP);
    if (ns > 0)
        timer_delete(timer);
}

/* ---- Bits ---- */

static void flip(const struct group *g, const struct op *op, void *data, size_t bytes, const char *of_what)
{
    uint64_t bit = chaos_draw(&g->plan, op->number, DRAW_WHERE) % (bytes * 8);
    ((unsigned char *)data)[bit / 8] ^= (unsigned char)(1u << bit % 8);
    chaos_tell(COMM_LOG_WARN, g, op, "bit %d of byte %" PRIu64 " of %s flipped", (int)(bit % 8), bit / 8, of_what);
}

/* The user's buffer is not ours to change: the other backend sends a copy. */
static bool flip_payload(const struct group *g, struct op *op)
{
    comm_buffers *send = &op->op.send;
    size_t bytes = send->count * op->op.element_bytes;
    if (comm_op_traits_of(op->op.kind)->send != COMM_OP_SIDE_ONE || !send->data || bytes == 0)
        return false;
    op->copy = malloc(bytes);
    if (!op->copy)
        return false;
    memcpy(op->copy, send->data, bytes);
    flip(g, op, op->copy, bytes, "the payload");
    send->data = op->copy;
    send->memory = NULL;
    return true;
}

/* Of a message: what has come. Else one of the blocks that are not empty. */
static void *result_of(const struct group *g, const struct op *op, size_t *ret_bytes)
{
    const comm_op *o = &op->op;
    size_t count = o->recv.count;
    void *data = o->recv.data;
    if (o->kind == COMM_OP_RECV) {
        int32_t source, tag;
        chaos_host->work_facts(op->inner, &source, &tag, &count);
    } else if (comm_op_traits_of(o->kind)->recv == COMM_OP_SIDE_BLOCKS) {
        int32_t first = (int32_t)(chaos_draw(&g->plan, op->number, DRAW_PEER) % (uint64_t)g->size);
        count = 0;
        for (int32_t i = 0; count == 0 && i < g->size; i++)
            data = comm_op_block(&o->recv, o->element_bytes, (first + i) % g->size, &count);
    }
    *ret_bytes = data ? count * o->element_bytes : 0;
    return data;
}

static bool has_result(const struct op *op)
{
    return op->op.recv.data || op->op.recv.list;
}

void chaos_flip_result(const struct group *g, struct op *op)
{
    size_t bytes;
    void *data = has_result(op) ? result_of(g, op, &bytes) : NULL;
    if (data && bytes > 0)
        flip(g, op, data, bytes, "the result");
}

static void corrupt(const struct group *g, struct op *op)
{
    if (comm_device_kind(op->op.device) != COMM_DEVICE_CPU) {
        chaos_tell(COMM_LOG_WARN, g, op, "no bit flips: its buffers are not in the CPU's memory");
        return;
    }
    bool takes_result = chaos_draw(&g->plan, op->number, DRAW_WHEN) & 1;
    if ((takes_result && has_result(op)) || !flip_payload(g, op))
        op->flips = true;
}

/* ---- Errors ---- */

/* As if a peer had gone. */
static comm_status lose_peer(const struct group *g, const struct op *op)
{
    char text[TEXT_BYTES];
    if (g->size == 1)
        return COMM_OK;
    uint64_t others = (uint64_t)g->size - 1;
    int32_t peer = (int32_t)(chaos_draw(&g->plan, op->number, DRAW_PEER) % others);
    peer += peer >= g->rank;
    snprintf(text, sizeof text, "rank %d (world rank %d) is lost, as the option abort has asked for (op %" PRIu64
             ", seed %" PRIu64 ")", peer, g->world_ranks[peer], op->number, g->plan.seed);
    chaos_tell(COMM_LOG_WARN, g, op, "%s", text);
    chaos_host->rank_lost(g->token, g->world_ranks[peer], text);
    return chaos_host->fail(COMM_ERR_PEER_LOST, text);
}

static comm_status fail_now(const struct group *g, const struct op *op)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "an error, as the option error has asked for (op %" PRIu64 ", seed %" PRIu64 ")",
             op->number, g->plan.seed);
    chaos_tell(COMM_LOG_WARN, g, op, "%s", text);
    return chaos_host->fail(g->plan.status, text);
}

/* ---- Drawing ---- */

static bool hits(const struct group *g, const struct op *op, enum fault fault)
{
    return chaos_hits(&g->plan, op->number, fault);
}

static void end_or_stop(const struct group *g, struct op *op)
{
    if (hits(g, op, FAULT_KILL)) {
        op->kills = chaos_draw(&g->plan, op->number, DRAW_WHEN) & 1;
        if (!op->kills)
            chaos_kill(g, op, "before it begins");
    }
    if (hits(g, op, FAULT_STALL))
        stall(g, op);
}

comm_status chaos_disturb(struct group *g, struct op *op)
{
    end_or_stop(g, op);
    if (hits(g, op, FAULT_ABORT)) {
        comm_status status = lose_peer(g, op);
        if (status != COMM_OK)
            return status;
    }
    if (hits(g, op, FAULT_ERROR)) {
        op->fails = chaos_draw(&g->plan, op->number, DRAW_WHEN) & 1;
        if (!op->fails)
            return fail_now(g, op);
    }
    if (hits(g, op, FAULT_CORRUPT))
        corrupt(g, op);
    if (hits(g, op, FAULT_DROP)) {
        op->is_dropped = true;
        chaos_tell(COMM_LOG_WARN, g, op, "dropped: it never begins");
    } else if (op->op.kind == COMM_OP_SEND && hits(g, op, FAULT_LOSE)) {
        op->is_lost = true;
        chaos_tell(COMM_LOG_WARN, g, op, "lost: the message is not sent");
    }
    if (hits(g, op, FAULT_REORDER)) {
        op->is_held = true;
        chaos_tell(COMM_LOG_INFO, g, op, "its end is held back until another operation overtakes it");
    }
    return COMM_OK;
}

/* The builder of plans: appends steps and remembers the first failure, so that an algorithm needs no error checks. It
 * knows no algorithm and executes nothing; see plan.h for what a plan means. Callers: algo/, and whoever keeps plans.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_ROOM_FIRST = 16 };

void plan_init(struct plan *p, int32_t rank, int32_t size, int32_t root)
{
    memset(p, 0, sizeof *p);
    p->rank = rank;
    p->size = size;
    p->root = root;
    p->failed = size < 1 || rank < 0 || rank >= size;
}

void plan_finish(struct plan *p)
{
    free(p->steps);
    memset(p, 0, sizeof *p);
}

struct plan_region plan_range(enum plan_buffer buffer, int32_t first, int32_t count)
{
    return (struct plan_region){ .buffer = (uint8_t)buffer, .first = first, .count = count };
}

struct plan_region plan_chunk(enum plan_buffer buffer, int32_t chunk)
{
    return plan_range(buffer, chunk, 1);
}

struct plan_region plan_all(const struct plan *p, enum plan_buffer buffer)
{
    return plan_range(buffer, 0, p->size);
}

struct plan_region plan_slot(int32_t slot, int32_t first, int32_t count)
{
    return (struct plan_region){ .buffer = PLAN_SCRATCH, .first = first, .count = count, .slot = slot };
}

/* The scratch from `slot` on is used for `count` slots. */
static void use_slots(struct plan *p, int64_t slot, int64_t count)
{
    if (slot < 0 || slot + count > INT32_MAX)
        p->failed = 1;
    else if (slot + count > p->scratch_slots)
        p->scratch_slots = (int32_t)(slot + count);
}

static void use_region(struct plan *p, struct plan_region region)
{
    if (region.first < 0 || region.count < 0 || region.count > p->size - region.first)
        p->failed = 1;
    else if (region.buffer == PLAN_SCRATCH)
        use_slots(p, region.slot, region.count);
    else if (region.count > 1)
        p->ranged = 1;
}

static void append(struct plan *p, struct plan_step step)
{
    use_region(p, step.dst);
    use_region(p, step.source);
    use_region(p, step.other);
    /* The user's SEND is const; an empty region lies nowhere. */
    if (step.kind != PLAN_STEP_SEND && step.dst.buffer == PLAN_SEND && step.dst.count > 0)
        p->failed = 1;
    if (p->failed)
        return;
    if (p->step_count == p->step_room) {
        size_t room = p->step_room ? 2 * p->step_room : STEP_ROOM_FIRST;
        struct plan_step *steps = realloc(p->steps, room * sizeof *steps);
        if (!steps) {
            p->failed = 1;
            return;
        }
        p->steps = steps;
        p->step_room = room;
    }
    step.round = p->round;
    p->steps[p->step_count++] = step;
}

static void append_message(struct plan *p, struct plan_step step)
{
    if (step.peer < 0 || step.peer >= p->size || step.peer == p->rank)
        p->failed = 1;
    append(p, step);
}

void plan_send(struct plan *p, int32_t peer, struct plan_region source)
{
    append_message(p, (struct plan_step){ .kind = PLAN_STEP_SEND, .peer = peer, .source = source });
}

void plan_recv(struct plan *p, int32_t peer, struct plan_region dst)
{
    append_message(p, (struct plan_step){ .kind = PLAN_STEP_RECV, .peer = peer, .dst = dst });
}

void plan_recv_reduce(struct plan *p, int32_t peer, struct plan_region dst, struct plan_region source,
                      int source_is_lower)
{
    append_message(p, (struct plan_step){ .kind = PLAN_STEP_RECV_REDUCE,
                                          .source_is_lower = source_is_lower != 0,
                                          .peer = peer,
                                          .dst = dst,
                                          .source = source });
}

void plan_copy(struct plan *p, struct plan_region dst, struct plan_region source)
{
    append(p, (struct plan_step){ .kind = PLAN_STEP_COPY, .peer = -1, .dst = dst, .source = source });
}

void plan_reduce(struct plan *p, struct plan_region dst, struct plan_region source, struct plan_region other)
{
    append(p, (struct plan_step){ .kind = PLAN_STEP_REDUCE, .peer = -1, .dst = dst, .source = source, .other = other });
}

void plan_reduce_ranks(struct plan *p, struct plan_region dst, struct plan_region source, int32_t first_slot)
{
    struct plan_region ranks = plan_slot(first_slot, source.first, source.count);
    use_slots(p, first_slot, (int64_t)p->size * source.count);
    append(p, (struct plan_step){
                  .kind = PLAN_STEP_REDUCE_RANKS, .peer = -1, .dst = dst, .source = source, .other = ranks });
}

void plan_average(struct plan *p, struct plan_region dst)
{
    append(p, (struct plan_step){ .kind = PLAN_STEP_AVERAGE, .peer = -1, .dst = dst });
}

void plan_next_round(struct plan *p)
{
    if (p->round == UINT16_MAX)
        p->failed = 1;
    else
        p->round++;
}

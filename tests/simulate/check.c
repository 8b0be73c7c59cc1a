/* What is wrong with a plan can often be seen without executing it, and then for every order of events at once. */
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

/* What a step reads and writes. */
struct touch {
    struct span write, reads[3];
    int is_message;
};

static int is_message(const struct plan_step *step)
{
    return step->kind <= PLAN_STEP_RECV_REDUCE;
}

static int overlap(struct span a, struct span b)
{
    return a.count > 0 && b.count > 0 && a.data < b.data + b.count && b.data < a.data + a.count;
}

static int find_touch(struct world *w, int32_t rank, int32_t slice, const struct plan_step *step, struct touch *t)
{
    int reads = step->kind != PLAN_STEP_RECV && step->kind != PLAN_STEP_AVERAGE;
    memset(t, 0, sizeof *t);
    t->is_message = is_message(step);
    if (step->kind != PLAN_STEP_SEND && find_region(w, rank, slice, step->dst, &t->write))
        return -1;
    if (reads && find_region(w, rank, slice, step->source, &t->reads[0]))
        return -1;
    if (step->kind == PLAN_STEP_REDUCE && find_region(w, rank, slice, step->other, &t->reads[1]))
        return -1;
    if (step->kind == PLAN_STEP_REDUCE_RANKS) {
        struct span last;
        struct plan_region region = step->other;
        region.slot += (w->setting->size - 1) * step->source.count;
        if (find_region(w, rank, slice, step->other, &t->reads[1]) || find_region(w, rank, slice, region, &last))
            return -1;
        t->reads[1].count = (size_t)(last.data + last.count - t->reads[1].data);
    }
    if (t->write.count > 0 && step->dst.buffer == PLAN_SEND)
        return fail(w, "rank %d writes to SEND", rank);
    if (reads && step->kind != PLAN_STEP_SEND && t->write.count != t->reads[0].count)
        return fail(w, "rank %d, round %d: %zu elements become %zu", rank, step->round, t->reads[0].count,
                    t->write.count);
    /* One step's own regions are the same or apart; only REDUCE_RANKS may write into the middle of what it reads. */
    for (int i = 0; i < 2; i++)
        if (overlap(t->write, t->reads[i]) && t->write.data != t->reads[i].data &&
            !(step->kind == PLAN_STEP_REDUCE_RANKS && i == 1))
            return fail(w, "rank %d, round %d: a step's regions overlap", rank, step->round);
    return 0;
}

/* Of elements that are rounded at the end only: sums are wide, and what is summed is a rank's own or such a sum. */
static int check_types(struct world *w, int32_t rank, const struct plan_step *step)
{
    const struct plan *p = &w->plans[rank];
    int is_sum = step->kind == PLAN_STEP_REDUCE || step->kind == PLAN_STEP_RECV_REDUCE;
    if (!p->widens)
        return 0;
    if (step->write_back)
        return fail(w, "rank %d, round %d: what is written back is not rounded", rank, step->round);
    if (step->kind == PLAN_STEP_REDUCE_RANKS)
        return fail(w, "rank %d, round %d: a plan that widens reduces in rank order", rank, step->round);
    if ((is_sum || step->kind == PLAN_STEP_AVERAGE) && step->dst.count > 0 && !plan_is_wide(p, &step->dst))
        return fail(w, "rank %d, round %d: a sum is rounded on the way", rank, step->round);
    if (is_sum && step->source.count > 0 && step->source.buffer == PLAN_RECV)
        return fail(w, "rank %d, round %d: what has been rounded is summed", rank, step->round);
    if (step->kind == PLAN_STEP_REDUCE && step->source.count > 0 &&
        plan_is_wide(p, &step->source) != plan_is_wide(p, &step->other))
        return fail(w, "rank %d, round %d: elements of two types are summed", rank, step->round);
    return 0;
}

/* No message writes what another step of the round touches. Local steps run one after the other. */
static int check_hazards(struct world *w, int32_t rank, int32_t round, const struct touch *touches, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; touches[i].is_message && touches[i].write.count > 0 && k < count; k++) {
            if (k == i)
                continue;
            int clash = overlap(touches[i].write, touches[k].write);
            for (int j = 0; j < 3; j++)
                clash |= overlap(touches[i].write, touches[k].reads[j]);
            if (clash)
                return fail(w, "rank %d, round %d: a message writes what another step touches", rank, round);
        }
    return 0;
}

/* One message to and one from each peer. `seen` has a place for each rank and direction. */
static int check_pairs(struct world *w, int32_t rank, const struct plan_step *steps, size_t count, uint8_t *seen)
{
    memset(seen, 0, 2 * (size_t)w->setting->size);
    for (size_t i = 0; i < count; i++) {
        if (!is_message(&steps[i]))
            continue;
        if (steps[i].peer < 0 || steps[i].peer >= w->setting->size || steps[i].peer == rank)
            return fail(w, "rank %d, round %d: peer %d", rank, steps[i].round, steps[i].peer);
        uint8_t *mark = &seen[2 * steps[i].peer + (steps[i].kind == PLAN_STEP_SEND)];
        if ((*mark)++)
            return fail(w, "rank %d, round %d: two messages with rank %d", rank, steps[i].round, steps[i].peer);
    }
    return 0;
}

int check_plan(struct world *w, int32_t rank, int32_t slice)
{
    const struct plan *p = &w->plans[rank];
    if (p->failed)
        return fail(w, "rank %d's plan has failed", rank);
    struct touch *touches = malloc((p->step_count + 1) * sizeof *touches);
    uint8_t *seen = malloc(2 * (size_t)w->setting->size);
    int result = touches && seen ? 0 : fail(w, "out of memory");
    for (size_t begin = 0, end; begin < p->step_count && result == 0; begin = end) {
        int32_t round = p->steps[begin].round;
        for (end = begin; end < p->step_count && p->steps[end].round == round && result == 0; end++)
            result = find_touch(w, rank, slice, &p->steps[end], &touches[end]) ||
                     check_types(w, rank, &p->steps[end]);
        if (result == 0 && (round >= p->round || (begin > 0 && p->steps[begin - 1].round > round)))
            result = fail(w, "rank %d: round %d is not closed or out of order", rank, round);
        if (result == 0)
            result = check_pairs(w, rank, p->steps + begin, end - begin, seen);
        if (result == 0)
            result = check_hazards(w, rank, round, touches + begin, end - begin);
    }
    free(touches);
    free(seen);
    return result;
}

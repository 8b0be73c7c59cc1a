/* Can the simulator fail? Every algorithm is built right, then one thing in one rank's plan is made wrong (or, for a
 * missing wait, in the plans of all ranks), and some run must say so. A fault that nothing notices is a hole in the
 * simulator, and fails this test. */
#include <comm/backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

enum { RANK_COUNT = 7, TRIES = 6 };

static int is_message(const struct plan_step *step)
{
    return step->kind <= PLAN_STEP_RECV_REDUCE;
}

static void remove_step(struct plan *p, size_t at)
{
    memmove(p->steps + at, p->steps + at + 1, (--p->step_count - at) * sizeof *p->steps);
}

static void shift_chunk(struct plan_region *region, int32_t size)
{
    region->first = (region->first + 1) % size;
}

/* Each spoils the step (or everything from its round on) and says 1, or says 0 if the step is not of the kind that it
 * spoils. */
static int peer_off_by_one(struct plan *plans, int32_t rank, size_t at)
{
    struct plan_step *step = &plans[rank].steps[at];
    if (!is_message(step))
        return 0;
    do
        step->peer = (step->peer + 1) % RANK_COUNT;
    while (step->peer == rank);
    return 1;
}

static int sent_chunk_off_by_one(struct plan *plans, int32_t rank, size_t at)
{
    struct plan_step *step = &plans[rank].steps[at];
    if (step->kind != PLAN_STEP_SEND || step->source.count != 1 || step->source.buffer == PLAN_SCRATCH)
        return 0;
    shift_chunk(&step->source, RANK_COUNT);
    return 1;
}

static int received_chunk_off_by_one(struct plan *plans, int32_t rank, size_t at)
{
    struct plan_step *step = &plans[rank].steps[at];
    if (!is_message(step) || step->kind == PLAN_STEP_SEND || step->dst.count != 1 || step->dst.buffer == PLAN_SCRATCH)
        return 0;
    shift_chunk(&step->dst, RANK_COUNT);
    return 1;
}

static int slot_off_by_one(struct plan *plans, int32_t rank, size_t at)
{
    struct plan_step *step = &plans[rank].steps[at];
    struct plan_region *region = step->kind == PLAN_STEP_SEND ? &step->source : &step->dst;
    if (region->buffer != PLAN_SCRATCH || region->count == 0)
        return 0;
    region->slot++;
    return 1;
}

static int send_forgotten(struct plan *plans, int32_t rank, size_t at)
{
    if (plans[rank].steps[at].kind != PLAN_STEP_SEND)
        return 0;
    remove_step(&plans[rank], at);
    return 1;
}

static int receive_forgotten(struct plan *plans, int32_t rank, size_t at)
{
    if (!is_message(&plans[rank].steps[at]) || plans[rank].steps[at].kind == PLAN_STEP_SEND)
        return 0;
    remove_step(&plans[rank], at);
    return 1;
}

static int local_step_forgotten(struct plan *plans, int32_t rank, size_t at)
{
    if (is_message(&plans[rank].steps[at]))
        return 0;
    remove_step(&plans[rank], at);
    return 1;
}

static int averaged_twice(struct plan *plans, int32_t rank, size_t at)
{
    struct plan *p = &plans[rank];
    if (p->steps[at].kind != PLAN_STEP_AVERAGE || p->step_count == p->step_capacity)
        return 0;
    memmove(p->steps + at + 1, p->steps + at, (p->step_count++ - at) * sizeof *p->steps);
    return 1;
}

static int reduction_forgotten(struct plan *plans, int32_t rank, size_t at)
{
    if (plans[rank].steps[at].kind != PLAN_STEP_RECV_REDUCE)
        return 0;
    plans[rank].steps[at].kind = PLAN_STEP_RECV;
    return 1;
}

/* A sum of some ranks goes where elements are narrow. */
static int rounded_on_the_way(struct plan *plans, int32_t rank, size_t at)
{
    struct plan_step *step = &plans[rank].steps[at];
    if (step->kind != PLAN_STEP_RECV_REDUCE || step->dst.buffer != PLAN_SUMS)
        return 0;
    step->dst.buffer = PLAN_RECV;
    return 1;
}

/* A rank's own vector where the other expects a sum, which may be of the same ranks. */
static int sent_unwidened(struct plan *plans, int32_t rank, size_t at)
{
    struct plan_step *step = &plans[rank].steps[at];
    if (step->kind != PLAN_STEP_SEND || !plan_is_wide(&plans[rank], &step->source))
        return 0;
    step->source.buffer = PLAN_SEND;
    return 1;
}

/* Noticed only where an order is promised. */
static int operands_swapped(struct plan *plans, int32_t rank, size_t at)
{
    if (plans[rank].steps[at].kind != PLAN_STEP_RECV_REDUCE)
        return 0;
    plans[rank].steps[at].source_is_lower ^= 1;
    return 1;
}

/* What comes in is put where what goes out still lies. */
static int receives_into_what_it_sends(struct plan *plans, int32_t rank, size_t at)
{
    struct plan *p = &plans[rank];
    struct plan_step *step = &p->steps[at];
    for (size_t i = 0; i < p->step_count; i++) {
        const struct plan_region *source = &p->steps[i].source;
        if (p->steps[i].kind != PLAN_STEP_SEND || p->steps[i].round != step->round || source->buffer == PLAN_SEND ||
            source->count == 0 || source->count != step->dst.count || step->kind == PLAN_STEP_SEND ||
            !is_message(step) || memcmp(source, &step->dst, sizeof *source) == 0)
            continue;
        step->dst = *source;
        return 1;
    }
    return 0;
}

/* One rank does not wait at the end of a round, and so counts its rounds unlike the others. */
static int round_skipped(struct plan *plans, int32_t rank, size_t at)
{
    struct plan *p = &plans[rank];
    uint16_t round = p->steps[at].round;
    if (round == 0 || !is_message(&p->steps[at]))
        return 0;
    for (size_t i = 0; i < p->step_count; i++)
        if (p->steps[i].round >= round)
            p->steps[i].round--;
    return 1;
}

/* No rank waits for the messages of the round before. */
static int wait_forgotten_by_all(struct plan *plans, int32_t rank, size_t at)
{
    int32_t round = plans[rank].steps[at].round, messages_before = 0;
    for (int32_t r = 0; r < RANK_COUNT; r++)
        for (size_t i = 0; i < plans[r].step_count; i++)
            messages_before |= plans[r].steps[i].round == round - 1 && is_message(&plans[r].steps[i]);
    for (int32_t r = 0; r < RANK_COUNT && messages_before; r++) {
        for (size_t i = 0; i < plans[r].step_count; i++)
            if (plans[r].steps[i].round >= round)
                plans[r].steps[i].round--;
        plans[r].round--;
    }
    return messages_before;
}

static const struct mutation {
    const char *name;
    int (*spoil)(struct plan *plans, int32_t rank, size_t at);
    const char *harmless; /* where it changes nothing that is promised */
} mutations[] = {
    { "peer off by one", peer_off_by_one, "" },
    { "sent chunk off by one", sent_chunk_off_by_one, "" },
    { "received chunk off by one", received_chunk_off_by_one, "" },
    { "slot off by one", slot_off_by_one, "" },
    { "send forgotten", send_forgotten, "" },
    { "receive forgotten", receive_forgotten, "" },
    { "local step forgotten", local_step_forgotten, "" },
    { "averaged twice", averaged_twice, "" },
    { "reduction forgotten", reduction_forgotten, "" },
    { "rounded on the way", rounded_on_the_way, "" },
    { "sent unwidened", sent_unwidened, "" },
    { "operands swapped", operands_swapped, "" },
    { "receives into what it sends", receives_into_what_it_sends, "" },
    { "round skipped", round_skipped, "" },
    /* The rounds of pairwise are there for the switch's sake only; where hosts are uneven, some of two_level's bring
     * some ranks nothing. */
    { "wait forgotten by all", wait_forgotten_by_all, "all_to_all pairwise, all_gather two_level" },
};

/* Does any setting notice? */
static int is_noticed(const struct algo *algo, const struct plan *plans, int32_t root, const int32_t *hosts,
                      uint64_t *random)
{
    for (int i = 0; i < 32; i++) {
        struct outcome o;
        struct setting s = { .size = RANK_COUNT,
                             .root = root,
                             .hosts = hosts,
                             .count = i % 8 < 4 ? 5 * RANK_COUNT + 3 : RANK_COUNT,
                             .in_place = i & 1,
                             .rendezvous = i >> 1 & 1,
                             .slices = 1,
                             .seed = next_random(random) };
        set_claims(algo, &s);
        if (simulate(&s, plans, &o))
            return 1;
    }
    return 0;
}

/* Spoil a random fitting step; 1 if there was one. */
static int spoil_one(const struct mutation *m, struct plan *plans, uint64_t *random, int32_t *ret_rank, size_t *ret_at)
{
    for (int i = 0; i < 60; i++) {
        *ret_rank = (int32_t)(next_random(random) % RANK_COUNT);
        if (plans[*ret_rank].step_count == 0)
            continue;
        *ret_at = next_random(random) % plans[*ret_rank].step_count;
        if (m->spoil(plans, *ret_rank, *ret_at))
            return 1;
    }
    return 0;
}

static int planted, missed;

static void plant(const struct algo *algo, const struct mutation *m, int32_t root, const int32_t *hosts, int widens,
                  uint64_t *random)
{
    static struct plan plans[RANK_COUNT];
    struct setting promised = { .size = RANK_COUNT, .root = root, .hosts = hosts };
    int32_t rank;
    size_t at;
    set_claims(algo, &promised);
    if (m->spoil == operands_swapped && !promised.keeps_order)
        return;
    build_plans(algo, RANK_COUNT, root, hosts, widens, plans);
    if (spoil_one(m, plans, random, &rank, &at)) {
        planted++;
        if (!is_noticed(algo, plans, root, hosts, random)) {
            fprintf(stderr, "%s %s, root %d: not noticed: %s, rank %d, step %zu\n", op_name(algo->kind), algo->name,
                    root, m->name, rank, at);
            missed++;
        }
    }
    free_plans(plans, RANK_COUNT);
}

int main(void)
{
    /* Uneven, in order and not; four of something, as a tree over three does not need all of its waits. */
    static const int32_t layouts[3][RANK_COUNT] = { { 0, 0, 0, 0, 1, 1, 1 },
                                                    { 0, 1, 0, 0, 1, 0, 1 },
                                                    { 0, 1, 2, 3, 0, 1, 2 } };
    const struct algo *algo;
    uint64_t random = 7;
    for (size_t a = 0; (algo = select_algo_at(a)); a++)
        for (size_t i = 0; i < sizeof mutations / sizeof *mutations; i++) {
            char name[128];
            snprintf(name, sizeof name, "%s %s", op_name(algo->kind), algo->name);
            for (int32_t try = 0; try < TRIES && !strstr(mutations[i].harmless, name); try++)
                plant(algo, &mutations[i], is_rooted(algo->kind) && try % 2 ? 2 : 0,
                      algo->traits & ALGO_LEVELS ? layouts[try % 3] : NULL,
                      algo->traits & ALGO_WIDE_SUMS && try % 3 > 0, &random);
        }
    printf("%d faults planted, %d not noticed\n", planted, missed);
    return missed > 0 || planted < 500;
}

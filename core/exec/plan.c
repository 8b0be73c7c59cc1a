/* The builder of plans: appends steps and remembers the first failure, so that an algorithm needs no error checks. It
 * knows no algorithm and executes nothing; see plan.h for what a plan means. Callers: algo/, and the code that keeps
 * plans. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_CAPACITY_FIRST = 16 };

void plan_init(struct plan *p, int32_t rank, int32_t size, int32_t root)
{
    memset(p, 0, sizeof *p);
    p->rank = rank;
    p->size = size;
    p->root = root;
    p->host_count = 1;
    p->host_least = p->host_most = size;
    p->failed = size < 1 || rank < 0 || rank >= size;
}

void plan_finish(struct plan *p)
{
    free(p->steps);
    free(p->host_of);
    memset(p, 0, sizeof *p);
}

/* Number the hosts as they first appear; `seen` has room for a rank of each. */
static void number_hosts(struct plan *p, const int32_t *hosts, int32_t *seen)
{
    p->host_count = 0;
    for (int32_t r = 0; r < p->size; r++) {
        int32_t h = r > 0 && hosts[r] == hosts[r - 1] ? p->host_of[r - 1] : 0;
        while (h < p->host_count && hosts[seen[h]] != hosts[r])
            h++;
        if (h == p->host_count)
            seen[p->host_count++] = r;
        p->host_of[r] = h;
    }
}

void plan_set_hosts(struct plan *p, const int32_t *hosts)
{
    size_t size = (size_t)p->size;
    if (p->failed || !hosts)
        return;
    p->host_of = calloc(4 * size + 1, sizeof *p->host_of);
    if (!p->host_of) {
        p->failed = 1;
        return;
    }
    p->place = p->host_of + size;
    p->members = p->place + size;
    p->host = p->members + size;
    number_hosts(p, hosts, p->members);
    for (int32_t r = 0; r < p->size; r++)
        p->place[r] = p->host[p->host_of[r] + 1]++;
    p->host_most = 0;
    for (int32_t h = 0; h < p->host_count; h++) {
        int32_t count = p->host[h + 1];
        p->host_least = count < p->host_least ? count : p->host_least;
        p->host_most = count > p->host_most ? count : p->host_most;
        p->host[h + 1] += p->host[h];
    }
    for (int32_t r = 0; r < p->size; r++)
        p->members[p->host[p->host_of[r]] + p->place[r]] = r;
}

static int32_t head_of(const struct plan *p, int32_t host)
{
    return host == plan_host_of(p, p->root) ? p->root : plan_member(p, host, 0);
}

int32_t plan_host_number(const struct plan *p)
{
    int32_t hosts = p->host_count;
    return (plan_host_of(p, p->rank) - plan_host_of(p, p->root) + hosts) % hosts;
}

int32_t plan_head(const struct plan *p, int32_t host_number)
{
    return head_of(p, (plan_host_of(p, p->root) + host_number) % p->host_count);
}

int32_t plan_member_number(const struct plan *p)
{
    int32_t host = plan_host_of(p, p->rank), members = plan_host_size(p, host);
    return (plan_place(p, p->rank) - plan_place(p, head_of(p, host)) + members) % members;
}

int32_t plan_fellow(const struct plan *p, int32_t member_number)
{
    int32_t host = plan_host_of(p, p->rank);
    return plan_member(p, host, (plan_place(p, head_of(p, host)) + member_number) % plan_host_size(p, host));
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

static struct plan_region placed(const struct plan *p, struct plan_region region)
{
    if (region.buffer == PLAN_SUMS && !p->widens)
        region.buffer = PLAN_RECV;
    return region;
}

static void append(struct plan *p, struct plan_step step)
{
    step.dst = placed(p, step.dst);
    step.source = placed(p, step.source);
    step.other = placed(p, step.other);
    use_region(p, step.dst);
    use_region(p, step.source);
    use_region(p, step.other);
    /* The user's SEND is const; an empty region lies nowhere. */
    if (step.kind != PLAN_STEP_SEND && step.dst.buffer == PLAN_SEND && step.dst.count > 0)
        p->failed = 1;
    if (p->failed)
        return;
    if (p->step_count == p->step_capacity) {
        size_t capacity = p->step_capacity ? 2 * p->step_capacity : STEP_CAPACITY_FIRST;
        struct plan_step *steps = realloc(p->steps, capacity * sizeof *steps);
        if (!steps) {
            p->failed = 1;
            return;
        }
        p->steps = steps;
        p->step_capacity = capacity;
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

/* Mark the send and the receive at the end of the plan. */
static void mark(struct plan *p, enum plan_step_kind receive, enum plan_write_back write_back)
{
    struct plan_step *s = p->steps + p->step_count;
    if (p->failed || p->step_count < 2 || s[-2].kind != PLAN_STEP_SEND || s[-1].kind != receive ||
        s[-2].peer != s[-1].peer || s[-2].round != p->round || s[-1].round != p->round) {
        p->failed = 1;
        return;
    }
    s[-2].write_back = s[-1].write_back = (uint8_t)write_back;
}

void plan_may_write_back(struct plan *p, struct plan_region dst)
{
    if (p->widens) /* what is reduced is not what the peer gets in the end */
        return;
    use_region(p, dst);
    mark(p, PLAN_STEP_RECV_REDUCE, PLAN_MAY_WRITE_BACK);
    if (!p->failed)
        p->steps[p->step_count - 2].dst = dst;
}

void plan_unless_written(struct plan *p)
{
    if (p->widens)
        return;
    mark(p, PLAN_STEP_RECV, PLAN_UNLESS_WRITTEN);
}

void plan_copy(struct plan *p, struct plan_region dst, struct plan_region source)
{
    append(p, (struct plan_step){ .kind = PLAN_STEP_COPY, .peer = -1, .dst = dst, .source = source });
}

void plan_reduce(struct plan *p, struct plan_region dst, struct plan_region source, struct plan_region other)
{
    append(p, (struct plan_step){ .kind = PLAN_STEP_REDUCE, .peer = -1, .dst = dst, .source = source, .other = other });
}

void plan_reduce_shares(struct plan *p, struct plan_region dst, struct plan_region mine, int32_t place, int32_t count,
                        int32_t first_slot)
{
    struct plan_region beside = plan_slot(first_slot + place * mine.count, mine.first, mine.count), sum = mine;
    if (count == 1 && (dst.buffer != mine.buffer || dst.buffer == PLAN_SCRATCH || dst.first != mine.first))
        plan_copy(p, dst, mine);
    for (int32_t i = 0; i < count; i++) {
        struct plan_region share = i == place ? mine : plan_slot(first_slot + i * mine.count, mine.first, mine.count);
        struct plan_region to = i == count - 1 ? dst : beside;
        if (i > 0)
            plan_reduce(p, to, sum, share);
        sum = i > 0 ? to : share;
    }
}

/* What the round before has brought to these slots. */
static void mark_as_staying(struct plan *p, int32_t first_slot, int32_t slots)
{
    for (size_t i = p->step_count; i-- > 0 && p->steps[i].round + 1 >= p->round;) {
        struct plan_step *s = &p->steps[i];
        int is_read = s->dst.buffer == PLAN_SCRATCH && s->dst.slot >= first_slot && s->dst.slot < first_slot + slots;
        if (s->kind == PLAN_STEP_RECV && s->round + 1 == p->round && is_read)
            p->keeps = s->may_stay = 1;
    }
}

void plan_reduce_ranks(struct plan *p, struct plan_region dst, struct plan_region source, int32_t first_slot)
{
    struct plan_region ranks = plan_slot(first_slot, source.first, source.count);
    use_slots(p, first_slot, (int64_t)p->size * source.count);
    if (!p->failed)
        mark_as_staying(p, first_slot, p->size * source.count);
    append(p, (struct plan_step){
                  .kind = PLAN_STEP_REDUCE_RANKS, .peer = -1, .dst = dst, .source = source, .other = ranks });
}

void plan_average(struct plan *p, struct plan_region dst)
{
    append(p, (struct plan_step){ .kind = PLAN_STEP_AVERAGE, .peer = -1, .dst = dst });
}

void plan_finish_sums(struct plan *p, int32_t first, int32_t count)
{
    plan_average(p, plan_range(PLAN_SUMS, first, count));
    if (p->widens)
        plan_copy(p, plan_range(PLAN_RECV, first, count), plan_range(PLAN_SUMS, first, count));
}

void plan_next_round(struct plan *p)
{
    if (p->round == UINT16_MAX)
        p->failed = 1;
    else
        p->round++;
}

/* The ranks of one run: their groups, which of them goes on next, faults, and what must hold when nothing moves any
 * more. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "core/op.h"
#include "core/registry.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

struct world *world;
const comm_backend *backend;
comm_host host;

int generous;
static struct port **wanted; /* ports that are to come up */
static size_t wanted_count;

const comm_backend *comm__tcp_entry(const comm_host *host);

void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!world->failed)
        fprintf(stderr, "seed %llu (repeat it with: simulate_engine %llu)\n", (unsigned long long)world->seed,
                (unsigned long long)world->seed);
    if (world->failed++ < 20) {
        vfprintf(stderr, format, arguments);
        fprintf(stderr, "\n");
    }
    va_end(arguments);
}

/* ---- Memory ---- */

void area_open(struct area *area, size_t bytes)
{
    area->bytes = bytes;
    area->memory = malloc(bytes + 2 * MARGIN);
    memset(area->memory, POISON, bytes + 2 * MARGIN);
}

void area_retire(struct area *area)
{
    if (!area->memory)
        return;
    memset(area->memory, RETIRED, area->bytes + 2 * MARGIN);
    ASAN_POISON_MEMORY_REGION(area->memory, area->bytes + 2 * MARGIN);
}

void area_check_retired(const struct part *part, struct area *area, const char *which)
{
    if (!area->memory)
        return;
    ASAN_UNPOISON_MEMORY_REGION(area->memory, area->bytes + 2 * MARGIN);
    for (size_t i = 0; i < area->bytes + 2 * MARGIN; i++)
        if (area->memory[i] != RETIRED) {
            complain("group %s, rank %d: byte %zd of the %s buffer (%zu B) of %s #%llu was written after it had ended",
                     part->member->team->name, part->member->rank, (ssize_t)i - MARGIN, which, area->bytes,
                     comm__op_name(part->op.kind), (unsigned long long)part->op.seq);
            return;
        }
}

void area_close(struct area *area)
{
    free(area->memory);
    area->memory = NULL;
}

struct part *part_new(struct member *member, struct collective *call)
{
    struct part *part = calloc(1, sizeof *part);
    part->member = member;
    part->call = call;
    return part;
}

void part_free(struct part *part)
{
    area_close(&part->send);
    area_close(&part->recv);
    area_close(&part->got);
    free(part->send_offsets);
    free(part->recv_offsets);
    free(part->send_list);
    free(part->recv_list);
    free(part);
}

static int order_class(const struct part *part)
{
    return part->op.kind == COMM_OP_SEND ? 1 : part->op.kind == COMM_OP_RECV ? 2 : 0;
}

/* Somewhere behind the last one of its class: sends, receives and collectives keep an order each. */
void member_append(struct member *member, struct part *part)
{
    enum { NEAR = 4 };
    size_t first = member->program_count, capacity;
    while (first > 0 && order_class(member->program[first - 1]) != order_class(part))
        first--;
    capacity = member->program_count - first;
    size_t at = first + below((capacity < NEAR ? capacity : NEAR) + 1);
    member->program = realloc(member->program, (member->program_count + 1) * sizeof *member->program);
    memmove(member->program + at + 1, member->program + at, (member->program_count - at) * sizeof *member->program);
    member->program[at] = part;
    member->program_count++;
    world->parts_open++;
}

/* ---- What the backend may ask of the core ---- */

static comm_status host_fail(comm_status status, const char *text)
{
    (void)text;
    return status;
}

static int32_t host_log_wanted(int32_t level)
{
    (void)level;
    return 0;
}

static void part_ended(struct part *part)
{
    if (!part->call && part->status != COMM_OK && part->status != COMM_ERR_TRUNCATED && !part->member->team->doomed)
        complain("group %s, rank %d: %s: %s", part->member->team->name, part->member->rank,
                 comm__op_name(part->op.kind), part->error);
    if (part->op.kind == COMM_OP_RECV) {
        area_open(&part->got, part->recv.bytes);
        memcpy(part->got.memory, part->recv.memory, part->recv.bytes + 2 * MARGIN);
    } else if (part->call) {
        call_check(part);
    }
    area_retire(&part->send);
    area_retire(&part->recv);
    world->parts_open--;
    world->moves++;
}

static void host_work_complete(comm_work *work, comm_status status, const char *error)
{
    struct part *part = (struct part *)work;
    if (part->state != PART_SUBMITTED) {
        complain("group %s, rank %d: %s #%llu completed %s", part->member->team->name, part->member->rank,
                 comm__op_name(part->op.kind), (unsigned long long)part->op.seq,
                 part->state == PART_DONE ? "twice" : "although it was not submitted");
        return;
    }
    part->state = PART_DONE;
    part->status = status;
    snprintf(part->error, sizeof part->error, "%s", error ? error : "");
    part->member->unfinished--;
    part_ended(part);
}

static void host_work_received(comm_work *work, int32_t from, int32_t tag, size_t count)
{
    struct part *part = (struct part *)work;
    part->from = from;
    part->tag = tag;
    part->count = count;
}

static int32_t host_work_done(const comm_work *work)
{
    return ((const struct part *)work)->state == PART_DONE;
}

static void host_group_failed(void *token, comm_status status, const char *error)
{
    const struct member *member = token;
    if (!member->team->doomed)
        complain("group %s has ended on rank %d: %s: %s", member->team->name, member->rank, comm_status_name(status),
                 error);
    world->moves++;
}

/* The core's would take the token for a group of its own. */
static void host_rank_lost(void *token, int32_t world_rank, const char *why)
{
    (void)token, (void)world_rank, (void)why;
}

static int32_t host_rank_is_lost(void *token, int32_t world_rank)
{
    (void)token, (void)world_rank;
    return 0;
}

static void host_describe(void *token, const comm_op *op, char *text, size_t capacity)
{
    const struct member *member = token;
    snprintf(text, capacity, "%s #%llu on group '%s' (rank %d of %d)", comm__op_name(op->kind),
             (unsigned long long)op->seq, member->team->name, member->rank, member->team->size);
}

static const char *host_param_text(const void *token, const char *backend_name, const char *name)
{
    const struct member *member = token;
    (void)backend_name;
    return strcmp(name, "algo") == 0 ? member->team->algo : NULL;
}

static int64_t host_param_int(const void *token, const char *backend_name, const char *name)
{
    const struct member *member = token;
    (void)backend_name;
    if (strcmp(name, "lanes") == 0)
        return member->team->lanes;
    return strcmp(name, "slice_bytes") == 0 ? member->team->slice_bytes : 0;
}

static void host_open(void)
{
    host = comm__host; /* the kernels and names are the core's */
    host.fail = host_fail;
    host.log_wanted = host_log_wanted;
    host.work_complete = host_work_complete;
    host.work_received = host_work_received;
    host.work_done = host_work_done;
    host.group_failed = host_group_failed;
    host.rank_lost = host_rank_lost;
    host.rank_is_lost = host_rank_is_lost;
    host.describe = host_describe;
    host.param_text = host_param_text;
    host.param_int = host_param_int;
    backend = comm__tcp_entry(&host);
}

/* ---- Connecting ---- */

static void want(struct port *p)
{
    if (p->state != PORT_IDLE || p->table->closing)
        return;
    p->state = PORT_OPENING;
    wanted[wanted_count++] = p;
}

void world_want(struct port *p)
{
    want(p);
    want(world->domains[p->peer]->peers.at[p->table->rank]);
}

/* A port that is wanted comes up; 0 if none is. */
static int connect_one(void)
{
    if (wanted_count == 0)
        return 0;
    size_t i = below(wanted_count);
    struct port *p = wanted[i];
    wanted[i] = wanted[--wanted_count];
    world->moves++;
    world->carrier->up(p);
    return 1;
}

size_t some_of(size_t bytes)
{
    size_t most = bytes;
    if (generous || bytes <= 1)
        return bytes;
    switch (below(8)) {
    case 0:
        most = 1 + below(8);
        break;
    case 1:
        most = PORT_FRAME_COST - 1 + below(3);
        break;
    case 2:
        most = 1 + below(3 * PORT_FRAME_COST);
        break;
    case 3:
        most = 1 + below(bytes);
        break;
    default:
        break;
    }
    return most < bytes ? most : bytes;
}

/* ---- Groups ---- */

struct team *team_new(const int32_t *world_ranks, int32_t size, const char *name)
{
    struct team *team = calloc(1, sizeof *team);
    snprintf(team->name, sizeof team->name, "%s", name);
    team->id = world->team_count ? 100 + DOMAIN_BUCKETS * world->team_count : 1; /* all in one bucket */
    team->size = size;
    team->world_ranks = malloc((size_t)size * sizeof *world_ranks);
    memcpy(team->world_ranks, world_ranks, (size_t)size * sizeof *world_ranks);
    team->members = calloc((size_t)size, sizeof *team->members);
    for (int32_t r = 0; r < size; r++)
        team->members[r] = (struct member){ .team = team, .rank = r };
    team->lanes = 4;
    world->teams = realloc(world->teams, (world->team_count + 1) * sizeof *world->teams);
    world->teams[world->team_count++] = team;
    return team;
}

static struct domain *domain_of_member(const struct member *member)
{
    return world->domains[member->team->world_ranks[member->rank]];
}

void member_open(struct member *member)
{
    struct team *team = member->team;
    comm_group_info info = { .struct_bytes = sizeof info, .rank = member->rank, .size = team->size };
    info.world_ranks = team->world_ranks;
    info.id = team->id;
    info.name = team->name;
    info.token = member;
    info.options = member;
    comm_status status = world->carrier->group_open(domain_of_member(member), &info, &member->state);
    if (status != COMM_OK)
        complain("group %s cannot be opened on rank %d (%s)", team->name, member->rank, team->algo);
    world->moves++;
}

static void member_close(struct member *member)
{
    if (!member->state || member->closed)
        return;
    member->closed = 1;
    world->carrier->group_close(member->state);
    world->moves++;
}

void world_open(void)
{
    host_open();
    wanted = calloc(2 * (size_t)world->size * (size_t)world->size, sizeof *wanted);
    wanted_count = 0;
    generous = 0;
    world->domains = malloc((size_t)world->size * sizeof *world->domains);
    for (int32_t r = 0; r < world->size; r++) {
        world->domains[r] = world->carrier->open(r);
        world->domains[r]->matching.eager_bytes = world->eager_bytes;
    }
}

static void team_free(struct team *team)
{
    for (int32_t r = 0; r < team->size; r++) {
        struct member *member = &team->members[r];
        for (size_t i = 0; i < member->program_count; i++) {
            struct part *part = member->program[i];
            if (part->state == PART_DONE || part->state == PART_REFUSED) {
                area_check_retired(part, &part->send, "send");
                area_check_retired(part, &part->recv, "recv");
            }
            part_free(part);
        }
        free(member->program);
    }
    free(team->members);
    free(team->world_ranks);
    free(team);
}

void world_close(void)
{
    for (size_t t = world->team_count; t-- > 1;)
        for (int32_t r = 0; r < world->teams[t]->size; r++)
            member_close(&world->teams[t]->members[r]);
    for (int32_t r = 0; r < world->size; r++) {
        world->carrier->silence(world->domains[r]);
        member_close(&world->teams[0]->members[r]);
        world->carrier->close(world->domains[r]);
    }
    for (size_t t = 0; t < world->team_count; t++)
        team_free(world->teams[t]);
    free(world->teams);
    free(world->domains);
    free(wanted);
}

/* ---- Submitting ---- */

static void refuse(struct part *part)
{
    part->state = PART_REFUSED;
    if (!part->member->team->doomed)
        complain("group %s, rank %d: %s was refused", part->member->team->name, part->member->rank,
                 comm__op_name(part->op.kind));
    area_retire(&part->send);
    area_retire(&part->recv);
    world->parts_open--;
}

static void prepare(struct part *part)
{
    struct member *member = part->member;
    struct op_place place = { member->team->name, member->rank, member->team->size, member->rank };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    uint32_t flags = part->op.flags;
    options.flags = flags & COMM_OP_FLAG_RANK_ORDER ? COMM_OP_FLAG_RANK_ORDER : 0;
    options.premul = part->op.premul;
    options.reduce_fn = part->op.reduce_fn;
    options.tag = part->op.tag;
    if (comm__op_prepare(&part->op, &place, &options) != COMM_OK)
        complain("%s", comm_last_error());
    if (!comm__op_is_peer(part->op.kind))
        part->op.seq = ++member->seq;
    part->op.timeout_ns = INT64_MAX;
    if (one_in(2))
        part->op.flags |= COMM_OP_FLAG_WAITING;
    part->state = PART_SUBMITTED;
}

/* One or a few of its next operations. */
static void submit(struct member *member)
{
    enum { COUNT_MAX = 4 };
    const comm_op *ops[COUNT_MAX];
    comm_work *works[COUNT_MAX];
    size_t left = member->program_count - member->submitted, count = 1 + below(left < COUNT_MAX ? left : COUNT_MAX);
    if (!member->state)
        member_open(member);
    for (size_t i = 0; i < count; i++) {
        struct part *part = member->program[member->submitted + i];
        prepare(part);
        ops[i] = &part->op;
        works[i] = (comm_work *)part;
    }
    member->unfinished += count;
    comm_status status = world->carrier->submit(member->state, ops, works, count);
    for (size_t i = 0; i < count && status != COMM_OK; i++)
        refuse((struct part *)works[i]);
    if (status != COMM_OK)
        member->unfinished -= count;
    member->submitted += count;
    world->moves++;
}

static void refuse_the_rest(struct member *member)
{
    while (member->submitted < member->program_count)
        refuse(member->program[member->submitted++]);
}

/* ---- Going on ---- */

static void visit(struct port *p)
{
    if (p->state != PORT_UP)
        return;
    if (p->active_index < 0 && world->carrier->has_queued(p, NULL, 0))
        complain("rank %d has frames for rank %d that nobody would send", p->table->rank, p->peer);
    world->carrier->visit(p);
}

/* What a driver does: look at the ports that something is awaited from, in any order; and epoll reports another. */
static void drive(struct domain *d)
{
    world->carrier->enter(d);
    struct port_table *peers = &d->peers;
    int32_t turns = peers->active_count;
    for (int32_t i = 0; i < turns && peers->active_count; i++)
        visit(peers->active[below((size_t)peers->active_count)]);
    visit(peers->at[below((size_t)peers->size)]);
    world->carrier->leave(d);
}

static void drive_all(struct domain *d)
{
    world->carrier->enter(d);
    for (int32_t i = 0; i < world->size; i++)
        visit(d->peers.at[i]);
    world->carrier->leave(d);
}

static struct member *some_member(const struct domain *d)
{
    struct team *team = world->teams[below(world->team_count)];
    for (int32_t r = 0; r < team->size; r++)
        if (team->world_ranks[r] == d->peers.rank)
            return &team->members[r];
    return NULL;
}

static void close_early(struct member *member)
{
    if (member->team != world->teams[0] && member->submitted == member->program_count && member->unfinished == 0 &&
        member->state && !member->team->doomed)
        member_close(member);
}

static void take_turn(struct domain *d)
{
    struct member *member = one_in(3) ? some_member(d) : NULL;
    if (member && !member->closed && member->submitted < member->program_count &&
        world->moves >= member->team->starts_after)
        submit(member);
    else if (member && one_in(50))
        close_early(member);
    if (one_in(8))
        connect_one();
    drive(d);
}

/* ---- Faults ---- */

static int half_read(const struct port *p, const void *group)
{
    return p->in.type && p->sink.message && p->sink.message->owner == group && p->sink.done < p->sink.total;
}

static int moment_has_come(const struct member *member)
{
    if (world->fault == FAULT_CLOSE && member->unfinished == 0)
        return 0; /* The others would find out when they ask, which needs time to pass. */
    if (world->moment == MOMENT_ANY || world->moves > 50 * world->fault_after + 100000)
        return 1;
    for (int32_t i = 0; i < world->size; i++) {
        const struct port *p = domain_of_member(member)->peers.at[i];
        int half_sent = world->moment == MOMENT_HALF_SENT;
        if (world->moment == MOMENT_HALF_READ ? half_read(p, member->state)
                                              : world->carrier->has_queued(p, member->state, half_sent))
            return 1;
    }
    return 0;
}

/* The connection of the two is part of other groups too. */
static void cut_link(void)
{
    const struct team *team = world->fault_team;
    world->carrier->cut(team->world_ranks[world->fault_rank], team->world_ranks[world->fault_peer],
                        below(2) ? 0 : below(100000));
}

static void strike(void)
{
    if (world->fault == FAULT_NONE || world->fault == FAULT_DISAGREE || world->fault_done ||
        world->moves < world->fault_after)
        return;
    struct member *member = &world->fault_team->members[world->fault_rank];
    if (!moment_has_come(member))
        return;
    world->fault_done = 1;
    if (world->fault == FAULT_ABORT) {
        world->carrier->group_abort(member->state);
    } else if (world->fault == FAULT_CLOSE) {
        refuse_the_rest(member);
        member_close(member);
    } else {
        cut_link();
    }
}

/* ---- Ranks that are stuck ---- */

static void describe_port(const struct port *p)
{
    complain("  port %d -> %d: state %d, interest %u, credit %lld, owed %u, held %lld, announced %u, %s%s%s%s",
             p->table->rank, p->peer, p->state, p->interest, (long long)p->credit, p->credit_owed,
             (long long)p->eager_held, p->announced, world->carrier->has_queued(p, NULL, 0) ? "frames queued, " : "",
             p->held.head ? "sends held back, " : "", p->in.type ? "in a frame, " : "",
             p->unexpected_count ? "unexpected frames" : "");
}

static void describe_slots(const struct exec_op *op)
{
    for (uint32_t s = 0; op->started && s < op->slot_count; s++) {
        const struct slot *slot = &op->slots[s];
        for (uint32_t i = slot->first; slot->active && i < slot->last; i++)
            complain("    %s, slice %u, round %u: step %u of kind %d with rank %d: state %d", op->route.algo->name,
                     slot->slice, slot->round, i, op->plan->steps[i].kind, op->plan->steps[i].peer,
                     slot->steps[i - slot->first].message.state);
    }
}

static void describe_part(const struct member *member, const struct part *part)
{
    const struct exec_group *g = member->state;
    complain("  group %s%s, rank %d of %d (world rank %d): %s #%llu with %d", member->team->name,
             member->team->doomed ? " (which may fail)" : "", member->rank, member->team->size,
             member->team->world_ranks[member->rank], comm__op_name(part->op.kind), (unsigned long long)part->op.seq,
             part->op.root);
    if (part->call && g && g->head && g->head->work == (const comm_work *)part)
        describe_slots(g->head);
}

static void describe_stuck(void)
{
    static const char *const faults[] = { "no fault", "an abort", "a close", "a cut link", "other counts" };
    complain("nothing moves any more (%d ranks, %s, %s planned, %s), but these are not done:", world->size,
             world->carrier->name, faults[world->fault], world->fault_done ? "done" : "not done");
    for (size_t t = 0; t < world->team_count; t++)
        for (int32_t r = 0; r < world->teams[t]->size; r++) {
            const struct member *member = &world->teams[t]->members[r];
            for (size_t i = 0; i < member->program_count; i++)
                if (member->program[i]->state == PART_SUBMITTED)
                    describe_part(member, member->program[i]);
        }
    for (int32_t a = 0; a < world->size; a++)
        for (int32_t b = 0; b < world->size; b++)
            if (world->domains[a]->peers.at[b]->interest)
                describe_port(world->domains[a]->peers.at[b]);
}

/* ---- The run ---- */

static void submit_all(void)
{
    for (size_t t = 0; t < world->team_count; t++)
        for (int32_t r = 0; r < world->teams[t]->size; r++) {
            struct member *member = &world->teams[t]->members[r];
            while (member->submitted < member->program_count)
                submit(member);
        }
}

/* Every rank does all that it can do, and no random choice delays it. Returns 0 if that was nothing. */
static int sweep(void)
{
    uint64_t before = world->moves;
    generous = 1;
    while (connect_one())
        ;
    for (int32_t r = 0; r < world->size; r++)
        drive_all(world->domains[r]);
    generous = 0;
    return world->moves != before;
}

static struct domain *next_rank(void)
{
    int32_t r = (int32_t)below((size_t)world->size);
    if (r == world->slow_rank && !one_in(40))
        r = (r + 1) % world->size;
    return world->domains[r];
}

void world_run(void)
{
    enum { IDLE_TURNS = 100 };
    uint64_t seen = 0;
    int idle = 0;
    while (world->parts_open && !world->failed) {
        take_turn(next_rank());
        strike();
        idle = world->moves == seen ? idle + 1 : 0;
        if (idle < IDLE_TURNS) {
            seen = world->moves;
            continue;
        }
        idle = 0;
        submit_all();
        if (!sweep() && world->moves == seen) {
            describe_stuck();
            return;
        }
        seen = world->moves;
    }
    while (sweep() && !world->failed)
        ;
}

/* ---- When nothing moves any more ---- */

static void check_port(const struct port *a, const struct port *b)
{
    int32_t from = a->table->rank, to = b->table->rank;
    if (a->credit + b->eager_held != PORT_CREDIT_WINDOW)
        complain("port %d -> %d: credit %lld and %lld B received and not given back are not the window", from, to,
                 (long long)a->credit, (long long)b->eager_held);
    if (b->eager_held != b->credit_owed)
        complain("port %d -> %d: of %lld B received only %u would be given back", from, to, (long long)b->eager_held,
                 b->credit_owed);
    if (a->interest || a->active_index >= 0)
        complain("port %d -> %d: something is still awaited (%u)", from, to, a->interest);
    if (a->announced || a->held.head)
        complain("port %d -> %d: %u sends are still announced%s", from, to, a->announced,
                 a->held.head ? ", others held back" : "");
    if (world->carrier->has_queued(a, NULL, 0))
        complain("port %d -> %d: frames are still queued", from, to);
    if (a->unexpected_count)
        complain("port %d -> %d: %zu unexpected frames are left", from, to, a->unexpected_count);
    if (a->in.type)
        complain("port %d -> %d: a frame is still coming", from, to);
    world->carrier->check(a);
}

static void check_domain(const struct domain *d)
{
    int32_t rank = d->peers.rank;
    if (d->done_count || d->works_out || d->retired || d->ready || d->failed)
        complain("rank %d: works are left", rank);
    if (d->async_works)
        complain("rank %d: %d works that nobody waits for are counted", rank, (int)d->async_works);
    if (d->unexpected.head || d->matching.count)
        complain("rank %d: frames of unknown groups are left", rank);
    for (const struct exec_group *g = d->groups; g; g = g->next)
        for (int32_t r = 0; r < g->size; r++)
            if (g->boxes[r].posted.head || g->p2p_boxes[r].posted.head)
                complain("rank %d: messages of group '%s' with its rank %d are left", rank, g->name, r);
    for (size_t i = 0; i < MATCH_ANNOUNCED_BUCKETS; i++)
        if (d->matching.announced[i].head)
            complain("rank %d: a send is left that waits for its clearance", rank);
}

void world_check_quiet(void)
{
    for (int32_t a = 0; a < world->size; a++) {
        for (int32_t b = 0; b < world->size; b++) {
            const struct port *there = world->domains[a]->peers.at[b], *back = world->domains[b]->peers.at[a];
            if (there->state == PORT_UP && back->state == PORT_UP)
                check_port(there, back);
        }
        check_domain(world->domains[a]);
    }
    if (!world->carrier->is_empty())
        complain("bytes are left that nobody reads");
}

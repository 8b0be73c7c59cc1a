/* Random programs of collectives, on the world or on a permuted sub-group of it, in which one rank fails at a random
 * moment: it is killed or stopped, aborts, leaves, calls something else, or does not call at all. What completes with
 * OK must be right; every survivor must hear of the fault in time, with the right status, and its text must name the
 * rank at fault as the group and as the world number it.
 *
 *     fault_storm [--seeds=N] [--seed=FIRST] [--fault=NAME] [--verbose]
 *
 * Seed n is the same program every time; only the moment of the fault within a step is the machine's. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "faults.h"

enum fault { KILLED, STOPPED, ABORTS, CLOSES_GROUP, CLOSES_WORLD, EXITS, CALLS_ANOTHER, LATE, FAULT_END };
static const char *const fault_names[FAULT_END] = { "killed",       "stopped", "aborts",        "closes-group",
                                                    "closes-world", "exits",   "calls-another", "late" };

enum step_kind {
    ALL_REDUCE,
    BROADCAST,
    ALL_GATHER,
    ALL_GATHER_V,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    REDUCE,
    BARRIER,
    RING,
    STEP_END
};

enum { STEPS_MAX = 24, PENDING_MAX = 4, LIMIT_MS = 1500 * FAULT_TIME_FACTOR, ELEMENTS_MAX = 800000 };

/* What all ranks derive from the seed. */
struct storm {
    uint64_t seed;
    enum fault fault;
    int32_t world_size, size;
    int32_t members[FAULT_RANKS_MAX]; /* world ranks of the group */
    int32_t culprit;                   /* rank in the group */
    int steps, fault_step;
    int64_t delay_ns;
    char backend[80];
    struct page *page;
};

struct step {
    int index;
    enum step_kind kind;
    size_t count; /* elements: of the vector, or of each block */
    int32_t root;
    int async;
};

struct pending {
    struct step step;
    comm_work *works[2];
    uint32_t *send, *recv;
};

static int verbose_fd = -1; /* the ranks' own output goes to their logs */

static uint64_t draw(uint64_t *state, uint64_t below)
{
    return fault_random(state) % below;
}

/* ---- The program ---- */

static size_t draw_count(uint64_t *state, int32_t size)
{
    static const size_t limits[] = { 16384, 65536, 262144, 2 };
    size_t near = limits[draw(state, 4)] + draw(state, 3) - 1;
    switch (draw(state, 4)) {
    case 0:
        return draw(state, 40);
    case 1:
        return near;
    case 2:
        return near / (size_t)size + draw(state, 3);
    default:
        return draw(state, 5000);
    }
}

static struct step step_of(const struct storm *s, int index)
{
    uint64_t state = s->seed * 1000003 + (uint64_t)index;
    struct step step = { .index = index };
    step.kind = (enum step_kind)draw(&state, STEP_END);
    step.count = draw_count(&state, s->size);
    step.root = (int32_t)draw(&state, (uint64_t)s->size);
    step.async = draw(&state, 2) == 0;
    if (index == s->steps)
        step = (struct step){ .index = index, .kind = BARRIER };
    return step;
}

static void shuffle(uint64_t *state, int32_t *list, int32_t count)
{
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t j = (int32_t)draw(state, (uint64_t)i + 1), kept = list[i];
        list[i] = list[j];
        list[j] = kept;
    }
}

static void plan_storm(struct storm *s, uint64_t seed)
{
    static const char *const lanes[] = { "1", "3", "4" }, *const eager[] = { "65536", "1000", "0" };
    uint64_t state = seed;
    s->seed = seed;
    s->fault = (enum fault)draw(&state, FAULT_END);
    s->size = 2 + (int32_t)draw(&state, 5);
    int sub_group = draw(&state, 2) == 0;
    s->world_size = s->size + (sub_group ? (int32_t)draw(&state, 3) : 0);
    for (int32_t i = 0; i < s->world_size; i++)
        s->members[i] = i;
    if (sub_group)
        shuffle(&state, s->members, s->world_size);
    s->culprit = (int32_t)draw(&state, (uint64_t)s->size);
    s->steps = 3 + (int)draw(&state, STEPS_MAX - 3);
    s->fault_step = (int)draw(&state, (uint64_t)s->steps);
    s->delay_ns = (int64_t)draw(&state, 3) * (int64_t)draw(&state, 2000000);
    snprintf(s->backend, sizeof s->backend, "cpu:%s?lanes=%s&eager_bytes=%s", fault_backend_name(),
             lanes[draw(&state, 3)], eager[draw(&state, 3)]);
}

/* ---- Values ---- */

static uint32_t value_of(int32_t rank, int step, size_t i)
{
    return (uint32_t)rank * 1000003u + (uint32_t)step * 97u + (uint32_t)i * 7u;
}

static uint32_t sum_of(int32_t size, int step, size_t i)
{
    uint32_t sum = 0;
    for (int32_t r = 0; r < size; r++)
        sum += value_of(r, step, i);
    return sum;
}

/* Uneven blocks: rank 1's is the long one. */
static size_t block_of(const struct step *step, int32_t rank)
{
    return rank == 1 ? step->count : (step->count + (size_t)rank) % 1000;
}

static size_t block_offset(const struct step *step, int32_t rank)
{
    size_t at = 0;
    for (int32_t r = 0; r < rank; r++)
        at += block_of(step, r);
    return at;
}

static void check_range(const struct storm *s, const struct step *step, const uint32_t *got, size_t count, int32_t from,
                        size_t begin)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t wanted = from < 0 ? sum_of(s->size, step->index, begin + i) : value_of(from, step->index, begin + i);
        if (got[i] != wanted)
            ranks_fail(__FILE__, __LINE__,
                       "WRONG DATA with OK: seed %llu step %d kind %d count %zu: element %zu from %d is %u, not %u",
                       (unsigned long long)s->seed, step->index, (int)step->kind, step->count, i, (int)from, got[i],
                       wanted);
    }
}

static void check_result(const struct storm *s, int32_t me, const struct pending *p)
{
    const struct step *step = &p->step;
    size_t n = step->count;
    switch (step->kind) {
    case ALL_REDUCE:
        check_range(s, step, p->recv, n, -1, 0);
        break;
    case REDUCE:
        check_range(s, step, p->recv, me == step->root ? n : 0, -1, 0);
        break;
    case BROADCAST:
        check_range(s, step, p->recv, n, step->root, 0);
        break;
    case ALL_GATHER:
    case ALL_TO_ALL:
        for (int32_t r = 0; r < s->size; r++)
            check_range(s, step, p->recv + (size_t)r * n, n, r, step->kind == ALL_GATHER ? 0 : (size_t)me * n);
        break;
    case ALL_GATHER_V:
        for (int32_t r = 0; r < s->size; r++)
            check_range(s, step, p->recv + block_offset(step, r), block_of(step, r), r, 0);
        break;
    case REDUCE_SCATTER:
        check_range(s, step, p->recv, n, -1, (size_t)me * n);
        break;
    case RING:
        check_range(s, step, p->recv, n, (me + s->size - 1) % s->size, 0);
        break;
    default:
        break;
    }
}

/* ---- Calls ---- */

static comm_status call_step(const struct storm *s, comm_group *g, struct pending *p, int32_t me)
{
    const comm_dtype u32 = COMM_DTYPE_U32;
    const struct step *step = &p->step;
    comm_work **w = step->async ? &p->works[0] : NULL;
    size_t n = step->count, counts[FAULT_RANKS_MAX];
    comm_status status;
    switch (step->kind) {
    case ALL_REDUCE:
        return comm_all_reduce(g, p->send, p->recv, n, u32, COMM_REDOP_SUM, NULL, w);
    case REDUCE:
        return comm_reduce(g, p->send, p->recv, n, u32, COMM_REDOP_SUM, step->root, NULL, w);
    case BROADCAST:
        if (me == step->root)
            memcpy(p->recv, p->send, n * sizeof *p->recv);
        return comm_broadcast(g, p->recv, n, u32, step->root, NULL, w);
    case ALL_GATHER:
        return comm_all_gather(g, p->send, p->recv, n, u32, NULL, w);
    case ALL_GATHER_V:
        for (int32_t r = 0; r < s->size; r++)
            counts[r] = block_of(step, r);
        return comm_all_gather_v(g, p->send, p->recv, counts, NULL, u32, NULL, w);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(g, p->send, p->recv, n, u32, COMM_REDOP_SUM, NULL, w);
    case ALL_TO_ALL:
        return comm_all_to_all(g, p->send, p->recv, n, u32, NULL, w);
    case RING:
        status = comm_send(g, p->send, n, u32, (me + 1) % s->size, NULL, &p->works[1]);
        return status ? status : comm_recv(g, p->recv, n, u32, (me + s->size - 1) % s->size, NULL, w);
    default:
        return comm_barrier(g, NULL, w);
    }
}

static void pending_begin(const struct storm *s, struct pending *p, const struct step *step, int32_t me)
{
    size_t capacity = (size_t)s->size * step->count + 8192;
    *p = (struct pending){ .step = *step };
    p->send = malloc(capacity * sizeof *p->send);
    p->recv = calloc(capacity, sizeof *p->recv);
    CHECK(p->send && p->recv);
    for (size_t i = 0; i < capacity; i++)
        p->send[i] = value_of(me, step->index, i);
}

/* Wait for its works; check the data if all went well. The first error and its text hold. */
static comm_status pending_end(const struct storm *s, struct pending *p, int32_t me, comm_status begun, char *text,
                               size_t bytes)
{
    comm_status status = begun;
    if (status != COMM_OK)
        snprintf(text, bytes, "%s", comm_last_error());
    for (int i = 0; i < 2; i++) {
        if (!p->works[i])
            continue;
        comm_status ended = comm_work_wait(p->works[i], 0);
        if (ended != COMM_OK && status == COMM_OK) {
            status = ended;
            snprintf(text, bytes, "%s", comm_work_error(p->works[i]));
        }
        comm_work_release(p->works[i]);
    }
    if (status == COMM_OK)
        check_result(s, me, p);
    free(p->send);
    free(p->recv);
    return status;
}

/* ---- The culprit ---- */

static void *dies_later(void *context)
{
    const struct storm *s = context;
    int64_t end = fault_now_ns() + s->delay_ns;
    while (fault_now_ns() < end)
        ;
    atomic_store(&s->page->event_ns, fault_now_ns());
    if (s->fault == STOPPED)
        raise(SIGSTOP);
    raise(SIGKILL);
    return NULL;
}

static void call_another(const struct storm *s, comm_group *g)
{
    struct step theirs = step_of(s, s->fault_step);
    uint32_t a[4] = { 0 }, b[4] = { 0 };
    if (theirs.kind == BROADCAST)
        comm_all_reduce(g, a, b, 3, COMM_DTYPE_U32, COMM_REDOP_SUM, NULL, NULL);
    else
        comm_broadcast(g, a, 3, COMM_DTYPE_U32, 0, NULL, NULL);
}

static void commit_fault(struct storm *s, comm_group *g, comm_group *world)
{
    pthread_t thread;
    switch (s->fault) {
    case KILLED:
    case STOPPED:
        if (pthread_create(&thread, NULL, dies_later, s) != 0)
            abort();
        return; /* it goes on with the program until then */
    case ABORTS:
        comm_group_abort(g, "the storm's reason");
        break;
    case CLOSES_GROUP:
    case CLOSES_WORLD:
        comm_group_close(g);
        if (s->fault == CLOSES_WORLD && g != world)
            comm_group_close(world);
        break;
    case EXITS:
        _exit(0);
    case CALLS_ANOTHER:
        call_another(s, g);
        break;
    default:
        break;
    }
    fault_await(s->page, 0); /* until the survivors have seen what they see */
    _exit(0);
}

/* ---- Survivors ---- */

/* Does the text name the culprit as the group does: "rank 2", and if the world numbers it otherwise "rank 2 (world rank
 * 5"? */
static int names_culprit(const struct storm *s, const char *text)
{
    char name[64];
    int32_t world_rank = s->members[s->culprit];
    int bytes = snprintf(name, sizeof name, "rank %d", (int)s->culprit);
    if (world_rank != s->culprit)
        bytes += snprintf(name + bytes, sizeof name - (size_t)bytes, " (world rank %d", (int)world_rank);
    for (const char *at = text; (at = strstr(at, name)) != NULL; at += bytes)
        if ((at[bytes] < '0' || at[bytes] > '9') && (at < text + 6 || strncmp(at - 6, "world ", 6) != 0))
            return 1;
    return 0;
}

static int status_fits(const struct storm *s, comm_status status)
{
    switch (s->fault) {
    case STOPPED:
    case LATE:
        return status == COMM_ERR_DEADLINE;
    case ABORTS:
        return status == COMM_ERR_ABORTED;
    case CALLS_ANOTHER: /* or no two frames of the two operations have met */
        return status == COMM_ERR_MISMATCH || status == COMM_ERR_DEADLINE;
    case CLOSES_GROUP:
    case CLOSES_WORLD:
        return status == COMM_ERR_PEER_LOST || status == COMM_ERR_ABORTED; /* it had operations of its own under way */
    default:
        return status == COMM_ERR_PEER_LOST;
    }
}

/* How long after the fault, or after the limit, each kind may be noticed. */
static int64_t patience_ms(const struct storm *s)
{
    if (s->fault == CALLS_ANOTHER)
        return LIMIT_MS + 3000;
    return s->fault == STOPPED || s->fault == LATE ? LIMIT_MS + 500 : 2000;
}

static void judge(const struct storm *s, int32_t me, comm_status status, const char *text, int64_t waited_ms)
{
    if (verbose_fd >= 0)
        dprintf(verbose_fd, "seed %llu %s rank %d of %d (%lld ms): %s\n", (unsigned long long)s->seed,
                fault_names[s->fault], (int)me, (int)s->size, (long long)waited_ms, text);
    if (!status_fits(s, status))
        ranks_fail(__FILE__, __LINE__, "seed %llu, %s: status %s: %s", (unsigned long long)s->seed,
                   fault_names[s->fault], comm_status_name(status), text);
    if (!names_culprit(s, text))
        ranks_fail(__FILE__, __LINE__, "seed %llu, %s: '%s' does not name rank %d (world rank %d)",
                   (unsigned long long)s->seed, fault_names[s->fault], text, (int)s->culprit,
                   (int)s->members[s->culprit]);
    if (s->fault == ABORTS && !strstr(text, "the storm's reason"))
        ranks_fail(__FILE__, __LINE__, "seed %llu: '%s' lacks the reason", (unsigned long long)s->seed, text);
    if (waited_ms > patience_ms(s) + fault_tolerance_ms())
        ranks_fail(__FILE__, __LINE__, "seed %llu, %s: noticed after %lld ms: %s", (unsigned long long)s->seed,
                   fault_names[s->fault], (long long)waited_ms, text);
}

/* Run the program until it fails. Several asynchronous steps may be under way. */
static comm_status run_program(struct storm *s, comm_group *g, comm_group *world, int32_t me, char *text,
                               size_t capacity, int64_t *ret_ns)
{
    struct pending pending[PENDING_MAX];
    int count = 0;
    comm_status status = COMM_OK;
    for (int i = 0; i <= s->steps; i++) {
        if (i == s->fault_step && me == s->culprit)
            commit_fault(s, g, world);
        if (i == s->steps && me == s->culprit)
            /* its death may come later than this: the others shall not get past the last barrier */
            fault_await(s->page, 0);
        struct step step = step_of(s, i);
        struct pending *p = &pending[count++];
        pending_begin(s, p, &step, me);
        *ret_ns = fault_now_ns();
        comm_status begun = call_step(s, g, p, me);
        int last = i == s->steps || begun != COMM_OK;
        while (count && (last || !step.async || count == PENDING_MAX)) {
            char mine[1500] = "";
            comm_status ended = pending_end(s, &pending[0], me, count == 1 ? begun : COMM_OK, mine, sizeof mine);
            memmove(pending, pending + 1, (size_t)--count * sizeof *pending);
            if (ended != COMM_OK && status == COMM_OK) {
                status = ended;
                snprintf(text, capacity, "%s", mine);
            }
            last |= status != COMM_OK;
        }
        if (status != COMM_OK)
            return status;
    }
    return COMM_OK;
}

static void weather_storm(int world_rank, int world_size, void *context)
{
    struct storm *s = context;
    comm_group *world, *group;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    int32_t me;
    char text[1500] = "";
    int64_t began_ns = 0;
    (void)world_size;
    atomic_store(&s->page->pids[world_rank], getpid());
    world = ranks_world(s->backend);
    options.timeout_ms = LIMIT_MS;
    CHECK_OK(comm_group_create(world, s->members, (size_t)s->size, &options, &group));
    fault_meet(s->page);
    if (group) {
        me = comm_group_rank(group);
        comm_status status = run_program(s, group, world, me, text, sizeof text, &began_ns);
        int64_t event = atomic_load(&s->page->event_ns), from = event > began_ns ? event : began_ns;
        if (me == s->culprit)
            fault_await(s->page, 0); /* its own death has not come yet, or ended the group */
        judge(s, me, status, text, (fault_now_ns() - from) / 1000000);
        CHECK_OK(comm_group_close(group));
    }
    if (group && atomic_fetch_add(&s->page->values[0], 1) + 1 == s->size - 1) {
        kill(atomic_load(&s->page->pids[s->members[s->culprit]]), SIGKILL); /* the last survivor */
        fault_raise(s->page, 0);
    }
    fault_await(s->page, 0);
    CHECK_OK(comm_group_close(world));
}

static int run_storm(uint64_t seed, int only)
{
    struct storm s;
    plan_storm(&s, seed);
    if (only >= 0)
        s.fault = (enum fault)only;
    s.page = page_new(s.world_size);
    struct ranks_options options = { .limit_s = 40, .name = "storm", .may_fail = 1ull << s.members[s.culprit] };
    int failed = ranks_run(s.world_size, &options, weather_storm, &s);
    if (failed)
        printf("storm: seed %llu failed (%s, %d ranks of %d, culprit %d at step %d of %d, %s)\n",
               (unsigned long long)seed, fault_names[s.fault], (int)s.size, (int)s.world_size, (int)s.culprit,
               s.fault_step, s.steps, s.backend);
    page_free(s.page);
    return failed;
}

static int fault_by_name(const char *name)
{
    for (int i = 0; i < FAULT_END; i++)
        if (strcmp(name, fault_names[i]) == 0)
            return i;
    fprintf(stderr, "no fault '%s'\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    unsigned long long seeds = 20, first = fault_seed();
    int only = -1, failed = 0;
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "--seeds=%llu", &seeds) == 1 || sscanf(argv[i], "--seed=%llu", &first) == 1)
            continue;
        if (strncmp(argv[i], "--fault=", 8) == 0)
            only = fault_by_name(argv[i] + 8);
        else if (strcmp(argv[i], "--verbose") == 0)
            verbose_fd = dup(STDOUT_FILENO);
        else
            return fprintf(stderr, "unexpected argument '%s'\n", argv[i]), 2;
    }
    for (unsigned long long n = 0; n < seeds; n++)
        failed += run_storm(first + n, only);
    printf("%llu storms, %d failed\n", seeds, failed);
    return failed != 0;
}

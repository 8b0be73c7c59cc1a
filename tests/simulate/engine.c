/* The whole tcp backend over sockets or ports in memory: see engine.h.
 *
 *     simulate_engine                a sample: the same seeds each time, then fresh ones for a few seconds
 *     simulate_engine SEED [COUNT]   that run alone, as it was; or so many from there
 *     simulate_engine all [SECONDS]  more of the same seeds, then fresh ones for so long (600)
 *
 * A seed decides everything: the number of ranks, groups, algorithms, operations, sizes, faults, and which rank goes on
 * when. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "core/exec/select.h"
#include "core/op.h"

static uint64_t state;

uint64_t draw(void)
{
    state++;
    return mix(state, 0);
}

size_t below(size_t end)
{
    return (size_t)(draw() % end);
}

int one_in(size_t n)
{
    return below(n) == 0;
}

/* ---- Drawing a world ---- */

static int32_t draw_size(void)
{
    static const int32_t many[] = { 63, 64, 65, 66, 97, 128, 129, 130 };
    if (one_in(40))
        return many[below(8)];
    if (one_in(8))
        return 1 + (int32_t)below(33);
    return 1 + (int32_t)below(9);
}

/* An algorithm for each operation: those that the rules choose, or any. */
static void draw_algorithms(struct team *team)
{
    const struct algo *algo;
    size_t used = 0;
    if (one_in(4))
        return;
    for (int32_t kind = COMM_OP_BROADCAST; kind <= COMM_OP_BARRIER; kind++) {
        const struct algo *fit[16];
        size_t count = 0;
        for (size_t i = 0; (algo = select_algo_at(i)); i++)
            if (algo->kind == kind)
                fit[count++] = algo;
        algo = fit[below(count)];
        used += (size_t)snprintf(team->algo + used, sizeof team->algo - used, "%s%s:%s", used ? "," : "",
                                 comm__op_name(kind), algo->name);
    }
}

static void draw_settings(struct team *team)
{
    static const int64_t lanes[] = { 1, 2, 3, 4, 4, 16 };
    static const int64_t slices[] = { 0, 0, 0, 1000, 4097, 65536, 100000, 1 << 20 };
    draw_algorithms(team);
    team->lanes = lanes[below(6)];
    team->slice_bytes = slices[below(8)];
    team->opens_late = one_in(2);
}

/* Some of the world's ranks, in any order. */
static struct team *draw_team(int number)
{
    int32_t *ranks = malloc((size_t)world->size * sizeof *ranks), size = world->size;
    char name[32];
    for (int32_t r = 0; r < size; r++)
        ranks[r] = r;
    for (int32_t r = size; r-- > 1;) {
        int32_t other = (int32_t)below((size_t)r + 1), kept = ranks[r];
        ranks[r] = ranks[other];
        ranks[other] = kept;
    }
    if (one_in(2))
        size = 1 + (int32_t)below((size_t)size);
    snprintf(name, sizeof name, "g%d", number);
    struct team *team = team_new(ranks, size, name);
    free(ranks);
    draw_settings(team);
    return team;
}

static void draw_fault(void)
{
    struct team *team = world->teams[below(world->team_count)];
    world->fault = one_in(2) ? FAULT_NONE : (enum fault)(1 + below(FAULTS - 1));
    if (world->fault == FAULT_CLOSE && team == world->teams[0])
        world->fault = FAULT_ABORT;
    if (world->fault == FAULT_NONE || team->size < 2) {
        world->fault = FAULT_NONE;
        return;
    }
    world->moment = (enum moment)below(4);
    world->fault_team = team;
    world->fault_rank = (int32_t)below((size_t)team->size);
    world->fault_peer = (world->fault_rank + 1 + (int32_t)below((size_t)team->size - 1)) % team->size;
    world->fault_after = below((size_t)1 << below(14));
    int32_t a = team->world_ranks[world->fault_rank], b = team->world_ranks[world->fault_peer];
    for (size_t t = 0; t < world->team_count; t++) {
        struct team *other = world->teams[t];
        int has_a = 0, has_b = 0;
        for (int32_t r = 0; r < other->size; r++) {
            has_a |= other->world_ranks[r] == a;
            has_b |= other->world_ranks[r] == b;
        }
        other->doomed = other == team || (world->fault == FAULT_CUT && has_a && has_b);
    }
}

static void draw_program(struct team *team)
{
    size_t batches = 1 + below(world->size > 33 ? 2 : 4);
    for (size_t i = 0; i < batches; i++) {
        if (one_in(3))
            messages_draw(team, 1 + below(12));
        if (one_in(40))
            messages_draw(team, one_in(4) ? 20000 : 2000);
        for (size_t n = below(3) + 1; n-- > 0;)
            call_draw(team, 0);
    }
}

/* More sends to one rank than may be announced to it, and others that are held back behind them;
 * then the group of the many ends. */
static void draw_flood(void)
{
    struct team *first = world->teams[0], *many = team_new(first->world_ranks, first->size, "many");
    int32_t from = (int32_t)below((size_t)world->size), to = (from + 1) % world->size;
    world->fault = FAULT_ABORT;
    world->fault_team = many;
    world->fault_rank = from;
    world->fault_after = MATCH_ANNOUNCED_MAX + 8000 + below(8000);
    world->slow_rank = to;
    world->eager_bytes = 0;
    for (int32_t r = 0; r < world->size; r++)
        world->domains[r]->matching.eager_bytes = 0;
    many->doomed = 1;
    first->starts_after = MATCH_ANNOUNCED_MAX + 6000;
    messages_flood(many, from, to, MATCH_ANNOUNCED_MAX + 3000);
    messages_flood(first, from, to, 20);
    draw_program(first);
}

static void draw_usual(void)
{
    for (int i = 0, teams = (int)below(4); i < teams; i++)
        draw_team(i + 1);
    draw_fault();
    for (size_t t = 0; t < world->team_count; t++)
        draw_program(world->teams[t]);
    if (world->fault == FAULT_DISAGREE) {
        call_draw_disagreeing(world->fault_team, world->fault_rank);
        draw_program(world->fault_team);
    }
}

static void draw_world(void)
{
    static const int64_t eager[] = { 65536, 65536, 65536, 0, 300, 5000, 262144 };
    static const size_t rooms[] = { 700, 5000, 65536, 300000, 3 << 20 };
    int flood = world->seed % 50 == 0; /* they take long */
    world->size = flood ? 2 : draw_size();
    world->eager_bytes = eager[below(7)];
    world->slow_rank = one_in(2) ? (int32_t)below((size_t)world->size) : -1;
    world->budget = world->size > 33 ? 8 << 20 : 24 << 20;
    world->carrier = one_in(3) ? &memory_ports : &sockets;
    net_open(world->size, world->size > 33 ? 5000 : rooms[below(5)]);
    ports_open(world->size);
    world_open();
    int32_t *ranks = malloc((size_t)world->size * sizeof *ranks);
    for (int32_t r = 0; r < world->size; r++)
        ranks[r] = r;
    draw_settings(team_new(ranks, world->size, "world"));
    free(ranks);
    if (flood)
        draw_flood();
    else
        draw_usual();
    for (size_t t = 0; t < world->team_count; t++)
        for (int32_t r = 0; r < world->teams[t]->size; r++)
            if (t == 0 || world->teams[t]->doomed || !world->teams[t]->opens_late)
                member_open(&world->teams[t]->members[r]);
}

/* ---- Running ---- */

static uint64_t running;

static void on_signal(int number)
{
    char text[128];
    int n = snprintf(text, sizeof text, "seed %llu: %s (repeat it with: simulate_engine %llu)\n",
                     (unsigned long long)running, number == SIGALRM ? "it does not end" : strsignal(number),
                     (unsigned long long)running);
    if (write(2, text, (size_t)n) < 0)
        _exit(2);
    signal(number, SIG_DFL);
    raise(number);
}

static int run_seed(uint64_t seed)
{
    struct world one = { .seed = seed };
    world = &one;
    running = seed;
    state = mix(seed, 1);
    alarm(120);
    draw_world();
    world_run();
    if (!one.failed)
        world_check_quiet();
    if (!one.failed)
        messages_check();
    if (one.failed)
        _exit(1); /* What is stuck cannot be closed. */
    calls_free();
    world_close();
    net_close();
    ports_close();
    return one.failed;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* So many seeds, or as many as fit into so many seconds. */
static int run_seeds(uint64_t first, uint64_t count, double limit)
{
    double begun = seconds_now();
    uint64_t runs = 0;
    for (; runs < count && (limit == 0 || seconds_now() - begun < limit); runs++)
        if (run_seed(first + runs))
            return 1;
    if (runs >= 40 && ports_kept == 0) {
        fprintf(stderr, "no payload was ever kept until a reduction had read it\n");
        return 1;
    }
    printf("%llu runs, seeds %llu to %llu: %.1f s\n", (unsigned long long)runs, (unsigned long long)first,
           (unsigned long long)(first + runs - 1), seconds_now() - begun);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    static const int signals[] = { SIGALRM, SIGSEGV, SIGABRT, SIGBUS, SIGFPE };
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], on_signal);
    int all = argc > 1 && strcmp(argv[1], "all") == 0;
    if (argc > 1 && !all)
        return run_seeds(strtoull(argv[1], NULL, 10), argc > 2 ? strtoull(argv[2], NULL, 10) : 1, 0);
    if (run_seeds(1, all ? 5000 : 200, 0))
        return 1;
    return run_seeds((uint64_t)time(NULL) << 20, UINT64_MAX, !all ? 5 : argc > 2 ? atof(argv[2]) : 600);
}

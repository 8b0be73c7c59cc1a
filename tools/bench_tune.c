/* `comm-bench --tune`: which algorithm is the fastest on this machine, for each operation, number of bytes and backend.
 * At each size every candidate is measured in turn, several times; a candidate that is far behind in the first turn is
 * left out of the others. Written are the rules (docs/tuning.md) for the sizes at which another algorithm than the
 * library's own choice was clearly faster: by the medians, and in nearly all of the turns, so that a moment in which
 * the machine did something else makes no rule. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { CANDIDATES_MAX = 64, TURNS_MAX = 16, NAME_BYTES = 40, RULE_BYTES = 128, OWN_CHOICE = 0 };

static const double
    hopeless = 1.5, /* times as slow as the best in the first turn: not measured again */
    better = 0.94,  /* of the library's own choice: worth a rule */
    as_good = 1.03; /* times the best: what was the best at the size before stays */

/* The algorithm with slices, or the library's own choice. All ranks have the same ones in the same order. */
struct candidate {
    char name[NAME_BYTES]; /* "ring/524288" */
    comm_group *group;
    double us[TURNS_MAX];
    int turns;
};

struct tuner {
    comm_group *world;
    const struct bench_tune_options *options;
    const char *backend; /* "shm" */
    const struct bench_op *op;
    struct candidate candidates[CANDIDATES_MAX];
    size_t count;
    char limits[48];      /* " ranks=2 hosts=1" */
    size_t measured;      /* ops that had candidates */
    size_t rules;         /* written */
};

/* ---- The candidates ---- */

/* The list of algorithms as comm-info prints it: "  all_reduce     ring    what it does". */
struct algorithms {
    const char *op;
    char names[CANDIDATES_MAX][NAME_BYTES];
    size_t count;
    int over; /* the rules follow */
};

static void take_algorithm(const char *text, void *context)
{
    struct algorithms *a = context;
    char op[NAME_BYTES], name[NAME_BYTES];
    a->over |= strncmp(text, "rules", 5) == 0;
    if (!a->over && strncmp(text, "  ", 2) == 0 && sscanf(text, "%39s %39s", op, name) == 2 && strcmp(op, a->op) == 0 &&
        a->count < CANDIDATES_MAX)
        snprintf(a->names[a->count++], NAME_BYTES, "%s", name);
}

static struct algorithms algorithms_of(const char *backend, const char *op)
{
    struct algorithms a = { .op = op };
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info info = { .struct_bytes = sizeof info };
        if (comm_backend_query(i, &info) == COMM_OK && strcmp(info.name, backend) == 0)
            comm_backend_routes(i, take_algorithm, &a);
    }
    return a;
}

static comm_status add_candidate(struct tuner *t, const char *algorithm, size_t slice_bytes)
{
    struct candidate *c = &t->candidates[t->count];
    char backend[RULE_BYTES];
    if (t->count == CANDIDATES_MAX)
        return COMM_OK;
    memset(c, 0, sizeof *c);
    if (algorithm)
        snprintf(c->name, sizeof c->name, "%.24s/%zu", algorithm, slice_bytes);
    const char *option = strcmp(t->backend, "shm-tcp") == 0 ? "?tcp.algo=" : "?algo="; /* it has none of its own */
    snprintf(backend, sizeof backend, "cpu:%s%s%s%s%s", t->backend, algorithm ? option : "",
             algorithm ? t->op->name : "", algorithm ? ":" : "", c->name);
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.backend = backend;
    comm_status status = comm_group_dup(t->world, &options, &c->group);
    t->count += status == COMM_OK;
    return status;
}

static int32_t count_hosts(const comm_group *world)
{
    int32_t size = comm_group_size(world), most = -1;
    int32_t *hosts = malloc((size_t)size * sizeof *hosts);
    if (hosts && comm_group_hosts(world, hosts) == COMM_OK)
        for (int32_t r = 0; r < size; r++)
            most = hosts[r] > most ? hosts[r] : most;
    free(hosts);
    return most + 1;
}

/* A tree of a rooted operation is only right if all ranks call the plain form, which a rule cannot know. */
static int is_safe(const char *op, const char *algorithm)
{
    int is_tree = strcmp(algorithm, "binomial") == 0;
    return !is_tree || (strcmp(op, "gather") != 0 && strcmp(op, "scatter") != 0);
}

static comm_status make_candidates(struct tuner *t)
{
    static const size_t slices[] = { 0, 128 << 10, 512 << 10, 2 << 20 };
    struct algorithms algorithms = algorithms_of(t->backend, t->op->name);
    size_t slice_count = t->op->from == BENCH_FROM_NONE ? 1 : sizeof slices / sizeof *slices;
    int32_t hosts = count_hosts(t->world);
    comm_status status = algorithms.count ? add_candidate(t, NULL, 0) : COMM_OK;
    for (size_t i = 0; i < algorithms.count; i++)
        for (size_t k = 0; k < slice_count && status == COMM_OK; k++)
            if ((hosts > 1 || strncmp(algorithms.names[i], "two_level", 9) != 0) &&
                is_safe(t->op->name, algorithms.names[i]))
                status = add_candidate(t, algorithms.names[i], slices[k]);
    return status;
}

static void close_candidates(struct tuner *t)
{
    for (size_t i = 0; i < t->count; i++)
        comm_group_close(t->candidates[i].group);
    t->count = 0;
}

/* Slices as long as half the operation, or longer, are none. */
static int is_for(const struct candidate *c, size_t bytes)
{
    const char *slash = strchr(c->name, '/');
    return !slash || strtoul(slash + 1, NULL, 10) * 2 <= bytes || strcmp(slash, "/0") == 0;
}

/* ---- Measuring ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const struct candidate *c)
{
    double sorted[TURNS_MAX];
    memcpy(sorted, c->us, (size_t)c->turns * sizeof *sorted);
    qsort(sorted, (size_t)c->turns, sizeof *sorted, by_value);
    return sorted[c->turns / 2];
}

/* All ranks get the same times, so all of them leave out the same candidates. */
static comm_status measure_turn(struct tuner *t, size_t bytes, int turn, double *best)
{
    struct bench_method method = t->options->method;
    comm_status status = COMM_OK;
    method.repeats = 1;
    method.check = turn == 0;
    for (size_t i = 0; i < t->count && status == COMM_OK; i++) {
        struct candidate *c = &t->candidates[i];
        struct bench_row row;
        if (!is_for(c, bytes) || (turn > 0 && i != OWN_CHOICE && c->us[0] > hopeless * *best))
            continue;
        status = bench_measure(c->group, t->op, bytes, &t->options->call, &method, &row);
        if (status != COMM_OK)
            break;
        c->us[c->turns++] = row.mean_us;
        if (turn == 0 && (*best == 0 || row.mean_us < *best))
            *best = row.mean_us;
    }
    return status;
}

static int wins_nearly_always(const struct candidate *c, const struct candidate *other)
{
    int wins = 0;
    for (int i = 0; i < c->turns; i++)
        wins += c->us[i] < other->us[i];
    return wins >= c->turns - c->turns / 6;
}

/* *chosen: of the size before; becomes this one's. */
static comm_status choose(struct tuner *t, size_t bytes, size_t *chosen)
{
    int turns = t->options->method.repeats < TURNS_MAX ? (int)t->options->method.repeats : TURNS_MAX;
    double first = 0;
    comm_status status = COMM_OK;
    for (size_t i = 0; i < t->count; i++)
        t->candidates[i].turns = 0;
    for (int turn = 0; turn < turns && status == COMM_OK; turn++)
        status = measure_turn(t, bytes, turn, &first);
    if (status != COMM_OK)
        return status;
    size_t best = OWN_CHOICE;
    for (size_t i = 1; i < t->count; i++) /* one that was left out has no middle */
        if (t->candidates[i].turns == turns && median_of(&t->candidates[i]) < median_of(&t->candidates[best]))
            best = i;
    const struct candidate *before = &t->candidates[*chosen];
    double own = median_of(&t->candidates[OWN_CHOICE]), least = median_of(&t->candidates[best]);
    int is_faster = least <= better * own;
    int wins = is_faster && wins_nearly_always(&t->candidates[best], &t->candidates[OWN_CHOICE]);
    if (!wins)
        *chosen = OWN_CHOICE;
    else if (*chosen == OWN_CHOICE || before->turns < turns || median_of(before) > as_good * least)
        *chosen = best;
    if (comm_group_rank(t->world) == 0)
        fprintf(stderr, "comm-bench: %s %s %zu B: %.2f us as it is, %.2f us by %s%s\n", t->backend, t->op->name, bytes,
                own, least, *t->candidates[best].name ? t->candidates[best].name : "the same",
                is_faster && !wins ? ", but not in nearly every turn: no rule" : "");
    return COMM_OK;
}

/* ---- Writing ---- */

/* In the middle between two sizes, as their factor goes. */
static size_t between(size_t a, size_t b)
{
    return a ? (size_t)(sqrt((double)a) * sqrt((double)b)) : b / 2;
}

static void write_rule(struct tuner *t, const struct candidate *c, const size_t *sizes, size_t first, size_t last,
                       size_t count)
{
    FILE *out = t->options->out;
    fprintf(out, "%s%s %s:%.*s", t->backend, t->limits, t->op->name, (int)strcspn(c->name, "/"), c->name);
    if (first > 0)
        fprintf(out, "@%zu-", between(sizes[first - 1], sizes[first]));
    else if (last + 1 < count)
        fprintf(out, "@-");
    if (last + 1 < count)
        fprintf(out, "%zu", between(sizes[last], sizes[last + 1]));
    fprintf(out, "%s\n", strchr(c->name, '/'));
    t->rules++;
}

/* A rule for each run of sizes with one choice. */
static void write_rules(struct tuner *t, const size_t *sizes, const size_t *chosen, size_t count)
{
    for (size_t first = 0, last; first < count; first = last + 1) {
        for (last = first; last + 1 < count && chosen[last + 1] == chosen[first]; last++)
            continue;
        if (chosen[first] != OWN_CHOICE)
            write_rule(t, &t->candidates[chosen[first]], sizes, first, last, count);
    }
}

static comm_status tune_op(struct tuner *t)
{
    size_t chosen[BENCH_SIZES_MAX], before = OWN_CHOICE;
    size_t sizes = t->op->from == BENCH_FROM_NONE ? 1 : t->options->size_count;
    comm_status status = make_candidates(t);
    t->measured += t->count > 0;
    for (size_t i = 0; i < sizes && t->count && status == COMM_OK; i++) {
        status = choose(t, t->op->from == BENCH_FROM_NONE ? 0 : t->options->sizes[i], &before);
        chosen[i] = before;
    }
    if (status == COMM_OK && t->count && comm_group_rank(t->world) == 0)
        write_rules(t, t->options->sizes, chosen, sizes);
    close_candidates(t);
    return status;
}

static void write_head(const struct tuner *t, int32_t hosts)
{
    struct utsname machine;
    char model[128] = "", line[256], date[32];
    FILE *cpus = fopen("/proc/cpuinfo", "re"), *out = t->options->out;
    time_t now = time(NULL);
    struct tm when;
    while (cpus && !*model && fgets(line, sizeof line, cpus))
        sscanf(line, "model name : %127[^\n]", model);
    if (cpus)
        fclose(cpus);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &when));
    uname(&machine);
    fprintf(out,
            "# Rules for COMM_TUNING, by comm-bench --tune of libcomm %s, %s.\n"
            "# Measured with %d ranks on %d host%s: %s, %s, %d cores, %s %s.\n"
            "# Where there is no rule, none was both at least %.0f %% faster than the library's own choice and "
            "faster in nearly every turn.\n",
            comm_version(), date, comm_group_size(t->world), hosts, hosts == 1 ? "" : "s", machine.nodename,
            *model ? model : machine.machine, (int)sysconf(_SC_NPROCESSORS_ONLN), machine.sysname, machine.release,
            100 * (1 - better));
}

comm_status bench_tune(comm_group *world, const struct bench_tune_options *options, size_t *ret_measured)
{
    struct tuner *t = calloc(1, sizeof *t);
    if (!t)
        return COMM_ERR_NO_MEMORY;
    int32_t hosts = count_hosts(world);
    int is_first = comm_group_rank(world) == 0;
    comm_status status = COMM_OK;
    t->world = world;
    t->options = options;
    if (is_first)
        write_head(t, hosts);
    for (size_t b = 0; b < options->backend_count && status == COMM_OK; b++) {
        t->backend = options->backends[b];
        snprintf(t->limits, sizeof t->limits, " ranks=%d hosts=%d", comm_group_size(world), hosts);
        for (size_t i = 0; i < options->op_count && status == COMM_OK; i++) {
            t->op = options->ops[i];
            status = tune_op(t);
        }
    }
    if (is_first && status == COMM_OK && t->measured)
        fprintf(stderr, "comm-bench: %zu rules\n", t->rules);
    *ret_measured = t->measured;
    free(t);
    return status;
}

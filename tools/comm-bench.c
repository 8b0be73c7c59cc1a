/* comm-bench: how fast is a collective here, and is it right? This file is the command line and one rank's run; bench.h
 * is the map of the rest. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "bench_store.h"
#include "peers/core_distance.h"

enum { EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_FAILED = 3 };

struct arguments {
    const struct bench_op *ops[BENCH_OPS_MAX];
    size_t op_count;
    int all_ops; /* "all": leave out what this number of ranks cannot do */
    size_t sizes[BENCH_SIZES_MAX];
    int size_count;
    const char *bytes;
    double factor;
    struct bench_call_options call;
    struct bench_method method;
    enum bench_format format;
    const char *backend, *plot, *bind;
    comm_device device; /* --device; else the world's only one */
    int32_t ranks; /* -n, 0 if not given */
    int store_mode, kernels_mode, groups_mode, core_mode, tune_mode;
    int roofline;
    const char *distance; /* a file; NULL: not asked for */
    const char *output; /* of --tune; NULL: stdout */
    long groups; /* to be made of each kind */
    const char *only; /* of core: the rows that begin so */
    struct bench_store_options store;
};

static const char summary[] =
    "Measure collectives, check their results, and say how fast they are; or measure the store.\v"
    "OP is one of all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter barrier pingpong, "
    "several "
    "of them with commas, or all; or store; or groups, which makes, uses and closes many of them; or kernels, which is "
    "reducing alone (--bytes 256K; COMM_SIMD chooses); or core, "
    "which is a call without a backend.\n\n"
    "Run it under a launcher (commrun -n 4 comm-bench all_reduce), or with -n by itself. BYTES is what nccl-tests and "
    "tools/peers mean by it: the whole output of all_gather, the whole input of reduce_scatter and all_to_all, the "
    "root's "
    "buffer of gather and scatter, else the message. The mean is of back-to-back iterations on the slowest rank, "
    "and of the repeats the one in the middle; bandwidths are computed from it. Median and p99 are of single "
    "iterations. With --sync or --compute all three are of single iterations.\n\n"
    "Exit status: 0 all right, 1 wrong results, 2 bad arguments, 3 an operation failed.";
static const char usage[] = "OP[,OP...]\n--tune [OP...]\nstore\ngroups\nkernels\ncore";

enum { KEY_BYTES = 256, KEY_FACTOR, KEY_DTYPE, KEY_REDOP, KEY_ROOT, KEY_IN_PLACE, KEY_OUT_OF_PLACE, KEY_ITERATIONS,
       KEY_MS, KEY_REPEATS, KEY_CHECK, KEY_NO_CHECK, KEY_CSV, KEY_JSON, KEY_TABLE, KEY_PLOT, KEY_ASYNC, KEY_BIND,
       KEY_BACKEND, KEY_CLIENTS, KEY_OPS, KEY_KEYS, KEY_VALUE_BYTES, KEY_WAITERS, KEY_PEER, KEY_GROUPS, KEY_ONLY,
       KEY_DEVICE, KEY_ON_STREAM, KEY_CAPTURED, KEY_REGISTERED, KEY_TUNE,
       KEY_ROOFLINE, KEY_DISTANCE, KEY_WARM_UP, KEY_SYNC, KEY_COMPUTE, KEY_OVERLAP };

static const struct argp_option options[] = {
    { NULL, 0, NULL, 0, "What to run:", 1 },
    { "backend", KEY_BACKEND, "NAME", 0, "Such as tcp, cpu:tcp or \"cpu:tcp?lanes=4\"; default: as comm_init chooses",
      0 },
    { "device", KEY_DEVICE, "DEVICE", 0,
      "Where the buffers are, such as cuda or cuda:1, if the world has several devices; cuda: by the local rank", 0 },
    { "bytes", KEY_BYTES, "LIST", 0, "Sizes: 8,1024,1M or a range 8:64M (default 8:64M)", 0 },
    { "factor", KEY_FACTOR, "F", 0, "What a range multiplies by (default 4)", 0 },
    { "dtype", KEY_DTYPE, "TYPE", 0, "Element type (default f32)", 0 },
    { "redop", KEY_REDOP, "OP", 0, "Reduction (default sum)", 0 },
    { "root", KEY_ROOT, "RANK", 0, "Of broadcast, reduce, gather and scatter (default 0)", 0 },
    { "registered", KEY_REGISTERED, NULL, 0, "Buffers from comm_mem_alloc, which peers may read in place", 0 },
    { "in-place", KEY_IN_PLACE, NULL, 0, "One buffer for input and output, for operations that have this form", 0 },
    { "out-of-place", KEY_OUT_OF_PLACE, NULL, 0,
      "Separate buffers for input and output (default: all_reduce and reduce are in place)", 0 },
    { "async", KEY_ASYNC, "DEPTH", 0, "Keep DEPTH operations in flight, each with buffers of its own", 0 },
    { "on-stream", KEY_ON_STREAM, NULL, 0,
      "On a device: a call returns when it is enqueued. The mean is then the time on the stream, median and p99 the "
      "host's time for a call", 0 },
    { "captured", KEY_CAPTURED, NULL, 0,
      "As --on-stream, but the call is captured into a CUDA graph, once, and each iteration launches the graph", 0 },
    { NULL, 'n', "RANKS", 0, "Start the ranks here, without a launcher", 0 },
    { "bind", KEY_BIND, "core|none|auto", 0,
      "core: pin each rank to a core; none; auto: core with -n if there are enough, or each gets the same number of "
      "ranks (default)", 0 },
    { NULL, 0, NULL, 0, "How to measure:", 2 },
    { "ms", KEY_MS, "MS", 0, "Time of each repeat, roughly (default 60; with --tune 3)", 0 },
    { "warm-up", KEY_WARM_UP, "MS", 0, "Time before the first repeat, at least (default: a tenth of a repeat). Memory "
      "of long operations gets huge pages in the first seconds", 0 },
    { "iterations", KEY_ITERATIONS, "N", 0, "Number of iterations, instead of --ms", 0 },
    { "repeats", KEY_REPEATS, "N", 0,
      "How often the mean is measured; the row has the median of these (default 5). With --tune: turns of the "
      "candidates (9)", 0 },
    { "sync", KEY_SYNC, NULL, 0,
      "A barrier before each iteration, which is not counted, as OSU's benchmarks have it for broadcast: no rank runs "
      "ahead (default: back to back)", 0 },
    { "compute", KEY_COMPUTE, "US", 0,
      "Before each iteration each rank computes for 0.5 to 1.5 times US microseconds, each for another time, as in "
      "programs. An iteration counts from when the last rank calls to when the last one has returned. All ranks are on "
      "one host", 0 },
    { "overlap", KEY_OVERLAP, "US", 0,
      "In each iteration each rank starts the operation, computes what takes a core US microseconds, and waits for it. "
      "The times are what the iterations take beyond that: what the operation adds. Of collectives", 0 },
    { "check", KEY_CHECK, NULL, 0, "Check each size once against random data (default)", 0 },
    { "no-check", KEY_NO_CHECK, NULL, 0, "Do not check the results", 0 },
    { "roofline", KEY_ROOFLINE, NULL, 0,
      "After each size let all ranks copy as many bytes past the caches, and update as many in place, in memory of the "
      "same kind as the buffers (--registered), and show the algorithm bandwidth as a share of both; for sizes that "
      "leave the caches", 0 },
    { "distance", KEY_DISTANCE, "FILE", 0,
      "Before and after each row let ranks 0 and 1, on one host and each on a core of its own, send a line of memory "
      "to and fro, in FILE, which is there and empty, and show the ns that it takes one way: two cores of one die are "
      "20 to 100 ns from each other, two of different dies more", 0 },
    { NULL, 0, NULL, 0, "What to print:", 3 },
    { "table", KEY_TABLE, NULL, 0, "A table for people (default)", 0 },
    { "csv", KEY_CSV, NULL, 0, "op,backend,ranks,bytes,mean_us,median_us,p99_us,algbw_GBps,busbw_GBps,errors; with "
      "--distance also before_ns,after_ns; with --roofline also copy_GBps,of_copy,update_GBps,of_update", 0 },
    { "json", KEY_JSON, NULL, 0, "One JSON object", 0 },
    { "plot", KEY_PLOT, "FILE", 0, "Also draw FILE (png, svg or pdf) with gnuplot", 0 },
    { "tune", KEY_TUNE, NULL, 0,
      "Find the fastest algorithms of shm (on several hosts: shm-tcp) and tcp here (--backend: of one of them), and "
      "write rules for COMM_TUNING; OP: all", 0 },
    { "output", 'o', "FILE", 0, "Of --tune (default: stdout)", 0 },
    { "groups", KEY_GROUPS, "N", 0, "comm-bench groups: how many of each kind (default 1000)", 0 },
    { "only", KEY_ONLY, "TEXT", 0, "comm-bench core: only the rows that begin so in --csv, such as null,blocking,1",
      0 },
    { NULL, 0, NULL, 0, "comm-bench store:", 4 },
    { "clients", KEY_CLIENTS, "N", 0, "Clients that are busy at the same time (default 16)", 0 },
    { "ops", KEY_OPS, "N", 0, "Operations of each measurement (default 20000)", 0 },
    { "keys", KEY_KEYS, "N", 0, "Different keys (default 1000)", 0 },
    { "value-bytes", KEY_VALUE_BYTES, "BYTES", 0, "Length of a value (default 64)", 0 },
    { "waiters", KEY_WAITERS, "LIST", 0, "Numbers of clients that wait for one key (default 1,10,100,1000)", 0 },
    { "peer", KEY_PEER, "NAME", 0,
      "pytorch: measure PyTorch's server in turn with ours, by the same clients; pytorch:FILE is another Python's", 0 },
    { 0 },
};

static long parse_number(struct argp_state *state, const char *what, const char *text, long least, long most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < least || value > most)
        argp_error(state, "%s: '%s' is not a number from %ld to %ld", what, text, least, most);
    return value;
}

static double parse_real(struct argp_state *state, const char *what, const char *text, double above, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > above && value <= most))
        argp_error(state, "%s: '%s' is not a number over %g and up to %g", what, text, above, most);
    return value;
}

static void add_op(struct argp_state *state, struct arguments *a, const struct bench_op *op)
{
    if (a->op_count == BENCH_OPS_MAX)
        argp_error(state, "more than %d operations", BENCH_OPS_MAX);
    else
        a->ops[a->op_count++] = op;
}

static void parse_ops(struct argp_state *state, struct arguments *a, const char *text)
{
    if (strcmp(text, "store") == 0) {
        a->store_mode = 1;
        return;
    }
    if (strcmp(text, "groups") == 0) {
        a->groups_mode = 1;
        return;
    }
    if (strcmp(text, "kernels") == 0) {
        a->kernels_mode = 1;
        return;
    }
    if (strcmp(text, "core") == 0) {
        a->core_mode = 1;
        return;
    }
    char *copy = strdup(text), *rest = copy, *name;
    while (copy && (name = strsep(&rest, ","))) {
        const struct bench_op *op = bench_op_find(name);
        if (strcmp(name, "all") == 0) {
            a->all_ops = 1;
            for (size_t i = 0; (op = bench_op_at(i)); i++)
                add_op(state, a, op);
        } else if (op) {
            add_op(state, a, op);
        } else {
            argp_error(state, "there is no operation '%s'; --help lists them", name);
        }
    }
    free(copy);
}

static void parse_waiters(struct argp_state *state, struct arguments *a, const char *text)
{
    char error[160];
    size_t numbers[BENCH_SIZES_MAX];
    int count = bench_parse_sizes(text, 10, numbers, error, sizeof error);
    if (count < 0)
        argp_error(state, "--waiters: %s", error);
    if (count > BENCH_WAITERS_MAX)
        argp_error(state, "--waiters: more than %d numbers", BENCH_WAITERS_MAX);
    a->store.waiter_counts = 0;
    for (int i = 0; i < count && i < BENCH_WAITERS_MAX; i++) {
        if (numbers[i] == 0 || numbers[i] > BENCH_CLIENTS_MAX)
            argp_error(state, "--waiters: from 1 to %d", BENCH_CLIENTS_MAX);
        a->store.waiters[a->store.waiter_counts++] = (int)numbers[i];
    }
}

/* The options of `comm-bench store`. */
static error_t parse_store_option(int key, char *arg, struct argp_state *state, struct arguments *a)
{
    size_t bytes;
    switch (key) {
    case KEY_CLIENTS: a->store.clients = (int)parse_number(state, "--clients", arg, 1, BENCH_CLIENTS_MAX); break;
    case KEY_OPS: a->store.ops = parse_number(state, "--ops", arg, 1, 100000000); break;
    case KEY_KEYS: a->store.keys = (int)parse_number(state, "--keys", arg, 1, 10000000); break;
    case KEY_WAITERS: parse_waiters(state, a, arg); break;
    case KEY_VALUE_BYTES:
        if (bench_parse_bytes(arg, &bytes) != 0 || bytes > BENCH_VALUE_BYTES_MAX)
            argp_error(state, "--value-bytes: '%s' is not a number of bytes up to %d", arg, BENCH_VALUE_BYTES_MAX);
        else
            a->store.value_bytes = bytes;
        break;
    case KEY_PEER:
        if (strcmp(arg, "pytorch") != 0 && strncmp(arg, "pytorch:", 8) != 0)
            argp_error(state, "--peer: '%s' is not known; pytorch is", arg);
        a->store.peer = arg[7] ? arg + 8 : "/usr/bin/python3";
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case KEY_BACKEND: a->backend = arg; break;
    case KEY_BYTES: a->bytes = arg; break;
    case KEY_FACTOR: a->factor = parse_real(state, "--factor", arg, 1, 1e9); break;
    case KEY_ROOT: a->call.root = (int32_t)parse_number(state, "--root", arg, 0, INT32_MAX); break;
    case KEY_IN_PLACE: a->call.in_place = 1; break;
    case KEY_REGISTERED: a->call.registered = 1; break;
    case KEY_OUT_OF_PLACE: a->call.in_place = 0; break;
    case KEY_WARM_UP: a->method.warm_up_ms = parse_real(state, "--warm-up", arg, 0, 1e6); break;
    case KEY_MS: a->method.target_ms = parse_real(state, "--ms", arg, 0, 1e6); break;
    case KEY_ITERATIONS: a->method.iterations = parse_number(state, "--iterations", arg, 1, 100000000); break;
    case KEY_REPEATS: a->method.repeats = parse_number(state, "--repeats", arg, 1, BENCH_REPEATS_MAX); break;
    case KEY_ASYNC: a->method.depth = (size_t)parse_number(state, "--async", arg, 1, BENCH_DEPTH_MAX); break;
    case KEY_CAPTURED: a->call.captured = a->call.on_stream = 1; break;
    case KEY_ON_STREAM: a->call.on_stream = 1; break;
    case KEY_DEVICE:
        if (comm_device_parse(arg, &a->device) != COMM_OK)
            argp_error(state, "--device: %s", comm_last_error());
        break;
    case KEY_SYNC: a->method.sync = 1; break;
    case KEY_OVERLAP: a->method.overlap_us = parse_real(state, "--overlap", arg, 1, 1e7); break;
    case KEY_COMPUTE: a->method.compute_us = parse_real(state, "--compute", arg, 1, 1e7); break;
    case KEY_CHECK: a->method.check = 1; break;
    case KEY_NO_CHECK: a->method.check = 0; break;
    case KEY_TABLE: a->format = BENCH_TABLE; break;
    case KEY_CSV: a->format = BENCH_CSV; break;
    case KEY_JSON: a->format = BENCH_JSON; break;
    case KEY_PLOT: a->plot = arg; break;
    case KEY_TUNE: a->tune_mode = 1; break;
    case KEY_ROOFLINE: a->roofline = 1; break;
    case KEY_DISTANCE: a->distance = arg; break;
    case 'o': a->output = arg; break;
    case KEY_ONLY: a->only = arg; break;
    case KEY_GROUPS: a->groups = parse_number(state, "--groups", arg, 1, 100000); break;
    case 'n': a->ranks = (int32_t)parse_number(state, "-n", arg, 1, 4096); break;
    case KEY_DTYPE:
        if (comm_dtype_parse(arg, &a->call.dtype) != COMM_OK)
            argp_error(state, "--dtype: %s", comm_last_error());
        break;
    case KEY_REDOP:
        if (comm_redop_parse(arg, &a->call.redop) != COMM_OK)
            argp_error(state, "--redop: %s", comm_last_error());
        break;
    case KEY_BIND:
        if (strcmp(arg, "core") != 0 && strcmp(arg, "none") != 0 && strcmp(arg, "auto") != 0)
            argp_error(state, "--bind: '%s' is none of core, none, auto", arg);
        a->bind = arg;
        break;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "give one list of operations; unexpected argument '%s'", arg);
        parse_ops(state, a, arg);
        break;
    case ARGP_KEY_NO_ARGS:
        if (!a->tune_mode)
            argp_error(state, "which operation?");
        parse_ops(state, a, "all");
        break;
    default: return parse_store_option(key, arg, state, a);
    }
    return 0;
}

static int by_size(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* What can only be seen when all options are known. */
static void check_arguments(const struct argp *argp, struct arguments *a, int is_first)
{
    char error[320] = "";
    if (!a->bytes)
        a->bytes = a->kernels_mode ? "256K" : a->tune_mode ? "8:16M" : "8:64M";
    if (a->method.target_ms == 0)
        a->method.target_ms = a->tune_mode ? 3 : 60;
    if (a->method.repeats == 0)
        a->method.repeats = a->tune_mode ? 9 : 5;
    a->size_count = bench_parse_sizes(a->bytes, a->factor, a->sizes, error, sizeof error);
    if (a->tune_mode && a->size_count > 0) /* a rule reaches from one size to the next */
        qsort(a->sizes, (size_t)a->size_count, sizeof *a->sizes, by_size);
    if (a->tune_mode && a->backend && strchr(a->backend, '?') && !*error)
        snprintf(error, sizeof error, "--tune: name the backend without options, which rules do not have");
    for (size_t i = 0; i < a->op_count && !*error; i++)
        if (a->ops[i]->from == BENCH_FROM_ALL && !comm_redop_supports(a->call.redop, a->call.dtype))
            snprintf(error, sizeof error, "%s does not reduce %s", comm_redop_name(a->call.redop),
                     comm_dtype_name(a->call.dtype));
    if (!*error && a->call.redop == COMM_REDOP_USER)
        snprintf(error, sizeof error, "--redop: a user's reduction cannot be named here");
    if (!*error && a->call.on_stream && a->method.depth > 1)
        snprintf(error, sizeof error, "--async, and --on-stream or --captured, are two ways not to wait: give one");
    if (!*error && a->method.sync && (a->call.on_stream || a->method.depth > 1))
        snprintf(error, sizeof error, "--sync is for calls that wait: it goes neither with --async nor with "
                 "--on-stream or --captured");
    if (!*error && a->method.compute_us > 0 && (a->call.on_stream || a->method.depth > 1 || a->method.sync))
        snprintf(error, sizeof error, "--compute is for calls that wait: it goes neither with --async, --on-stream nor "
                 "--captured, nor with --sync");
    if (!*error && a->method.overlap_us > 0 &&
        (a->call.on_stream || a->method.depth > 1 || a->method.sync || a->method.compute_us > 0))
        snprintf(error, sizeof error, "--overlap goes neither with --async, --on-stream nor --captured, nor with "
                 "--sync or --compute");
    for (size_t i = 0; i < a->op_count && !*error && a->method.overlap_us > 0; i++)
        if (a->ops[i]->from == BENCH_FROM_PEER)
            snprintf(error, sizeof error, "--overlap is for collectives: %s is none", a->ops[i]->name);
    if (!*error && a->plot && is_first)
        bench_plot_possible(a->plot, error, sizeof error);
    if (!*error)
        return;
    fprintf(stderr, "comm-bench: %s\n", error);
    argp_help(argp, stderr, ARGP_HELP_SEE, (char *)"comm-bench");
    exit(EXIT_USAGE);
}

/* Point a descriptor to nowhere; returns what gives it back. */
static int hide(int fd)
{
    int saved = fcntl(fd, F_DUPFD_CLOEXEC, 3), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (saved >= 0 && nowhere >= 0)
        dup2(nowhere, fd);
    if (nowhere >= 0)
        close(nowhere);
    return saved;
}

static void show(int fd, int saved)
{
    if (saved < 0)
        return;
    dup2(saved, fd);
    close(saved);
}

/* ---- One rank ---- */

static int fail(const comm_group *world, const char *doing)
{
    const char *text = comm_last_error();
    char rank[24] = "";
    if (world)
        snprintf(rank, sizeof rank, "rank %d: ", comm_group_rank(world));
    fprintf(stderr, "comm-bench: %s%s%s%s\n", rank, doing, *doing ? ": " : "", *text ? text : "out of memory");
    return EXIT_FAILED;
}

/* Does a world of so many ranks have this? A text for people if not. */
static const char *unfit(const struct bench_op *op, const struct arguments *a, int32_t ranks)
{
    if (op->from == BENCH_FROM_PEER && ranks < 2)
        return "needs 2 ranks";
    return a->call.root >= ranks ? "has no such root" : NULL;
}

/* A barrier has no bytes, and so one row. */
static size_t size_count(const struct arguments *a, const struct bench_op *op)
{
    return op->from == BENCH_FROM_NONE ? 1 : (size_t)a->size_count;
}

/* Of ranks 0 and 1, which call this at the same time. */
static double distance_ns(struct core_distance *between, const comm_group *world)
{
    int32_t rank = comm_group_rank(world);
    return between->lines && rank < 2 && comm_group_size(world) > 1 ? core_distance_ns(between, rank) : 0;
}

/* Measure everything; rows come out on rank 0. Returns the exit status. */
static int measure_all(comm_group *world, const struct arguments *a, struct bench_report *report)
{
    int is_first = comm_group_rank(world) == 0;
    uint64_t errors = 0;
    size_t total = 0, done = 0;
    struct core_distance between = { 0 };
    if (a->distance && core_distance_open(&between, a->distance) != 0) {
        fprintf(stderr, "comm-bench: --distance: %s: %s\n", a->distance, strerror(errno));
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < a->op_count; i++)
        total += size_count(a, a->ops[i]);
    for (size_t i = 0; i < a->op_count; i++) {
        const struct bench_op *op = a->ops[i];
        const char *reason = unfit(op, a, comm_group_size(world));
        if (reason && is_first)
            fprintf(stderr, "comm-bench: %s %s (world of %d)\n", op->name, reason, comm_group_size(world));
        if (reason && !a->all_ops)
            return EXIT_USAGE;
        for (size_t k = 0; k < size_count(a, op) && !reason; k++) {
            size_t bytes = op->from == BENCH_FROM_NONE ? 0 : a->sizes[k];
            struct bench_row row;
            if (is_first)
                bench_report_progress(report, op->name, bytes, done++, total);
            double before_ns = distance_ns(&between, world);
            if (bench_measure(world, op, bytes, &a->call, &a->method, &row) != COMM_OK)
                return fail(world, "");
            row.before_ns = before_ns;
            row.after_ns = distance_ns(&between, world);
            if (before_ns < 0 || row.after_ns < 0) {
                fprintf(stderr, "comm-bench: rank %d: --distance: rank %d has not come to %s for 20 s; do both run on "
                        "one host?\n", comm_group_rank(world), 1 - comm_group_rank(world), a->distance);
                return EXIT_FAILED;
            }
            if (a->roofline && bench_roofline(world, &a->call, &a->method, &row) != COMM_OK)
                return fail(world, "the roofline");
            errors += row.errors;
            if (is_first && bench_report_row(report, &row) != 0)
                return fail(world, "keeping the rows");
        }
    }
    return errors ? EXIT_WRONG : EXIT_SUCCESS;
}

/* Buffers are on the device that --device names, or on the world's only one. */
static int choose_device(const comm_group *world, struct arguments *a, int32_t local_rank)
{
    char error[256];
    comm_device device = a->device ? a->device : comm_group_device(world);
    a->call.device = device;
    if (a->roofline && device != COMM_DEVICE_DEFAULT && comm_device_kind(device) != COMM_DEVICE_CPU) {
        snprintf(error, sizeof error, "--roofline: the buffers are not in the CPU's memory");
    } else if (comm_device_kind(device) == COMM_DEVICE_CUDA) {
        if (bench_device_open(&a->call.device, local_rank, &a->call.stream, error, sizeof error) == 0)
            return EXIT_SUCCESS;
    } else if (a->call.on_stream) {
        snprintf(error, sizeof error, "--%s: the buffers are not on a device with streams",
                 a->call.captured ? "captured" : "on-stream");
    } else {
        return EXIT_SUCCESS;
    }
    fprintf(stderr, "comm-bench: rank %d: %s\n", comm_group_rank(world), error);
    return EXIT_FAILED;
}

static int run_world(comm_group *world, struct arguments *a, int32_t local_rank)
{
    int is_first = comm_group_rank(world) == 0;
    if (choose_device(world, a, local_rank) != EXIT_SUCCESS)
        return EXIT_FAILED;
    struct bench_report report = { .format = a->format, .out = stdout, .dtype = comm_dtype_name(a->call.dtype),
                                   .redop = comm_redop_name(a->call.redop), .roofline = a->roofline,
                                   .distance = a->distance != NULL };
    if (is_first)
        bench_report_begin(&report);
    int result = measure_all(world, a, &report);
    if (is_first && bench_report_end(&report) != 0) {
        fprintf(stderr, "comm-bench: the output could not be written\n");
        result = EXIT_FAILED;
    }
    char error[256];
    if (is_first && a->plot && bench_plot(a->plot, report.rows, report.row_count, error, sizeof error) != 0) {
        fprintf(stderr, "comm-bench: %s\n", error);
        result = EXIT_FAILED;
    }
    free(report.rows);
    return result;
}

/* Who stops it keeps the rules that were there. */
static FILE *begin_rules(const char *output, char part[PATH_MAX])
{
    struct stat there; /* what a link leads to is written in place */
    int is_file = lstat(output, &there) != 0 || S_ISREG(there.st_mode);
    snprintf(part, PATH_MAX, "%s%s", output, is_file ? ".part" : "");
    FILE *out = fopen(part, "we");
    if (!out)
        fprintf(stderr, "comm-bench: %s: %s\n", part, strerror(errno));
    return out;
}

static int end_rules(FILE *out, const char *output, const char *part, int result)
{
    int failed = (out == stdout ? fflush(out) : fclose(out)) != 0;
    if (out != stdout && strcmp(part, output) != 0)
        failed |= result == EXIT_SUCCESS && !failed ? rename(part, output) != 0 : unlink(part) != 0;
    if (!failed || result != EXIT_SUCCESS)
        return result;
    fprintf(stderr, "comm-bench: the rules could not be written\n");
    return EXIT_FAILED;
}

/* The one that the user names, or those of the CPU that have algorithms to choose from: as auto has chosen, and tcp. */
static size_t tuned_backends(const comm_group *world, const char *asked, const char *backends[2])
{
    static char own[64];
    const char *name = strchr(comm_group_backend(world), ':'), *kind = asked ? strchr(asked, ':') : NULL;
    int is_named = asked && strcasecmp(kind ? kind + 1 : asked, "auto") != 0;
    snprintf(own, sizeof own, "%.*s", name ? (int)strcspn(name + 1, ",?") : 0, name ? name + 1 : "");
    size_t count = 0;
    if (is_named || strcmp(own, "shm") == 0 || strcmp(own, "shm-tcp") == 0)
        backends[count++] = own;
    if (!is_named)
        backends[count++] = "tcp";
    return count;
}

static int tune(comm_group *world, struct arguments *a)
{
    char part[PATH_MAX] = "";
    struct bench_tune_options o = { .ops = a->ops, .op_count = a->op_count, .sizes = a->sizes,
                                    .size_count = (size_t)a->size_count, .call = a->call, .method = a->method,
                                    .out = stdout };
    o.backend_count = tuned_backends(world, a->backend, o.backends);
    if (comm_group_rank(world) == 0 && a->output && !(o.out = begin_rules(a->output, part)))
        return EXIT_USAGE;
    size_t measured = 0;
    int result = bench_tune(world, &o, &measured) == COMM_OK ? EXIT_SUCCESS : fail(world, "tuning");
    if (result == EXIT_SUCCESS && !measured) {
        if (comm_group_rank(world) == 0)
            fprintf(stderr, "comm-bench: %s has no algorithms to choose from for what was asked\n",
                    comm_group_backend(world));
        result = EXIT_FAILED;
    }
    return end_rules(o.out, a->output, part, result);
}

static int join_and_run(comm_init_options *init, struct arguments *a, int is_first, int32_t local_rank)
{
    comm_group *world;
    init->backend = a->backend;
    comm_status status = comm_init(init, &world);
    /* A mistake in the command line is the same on all ranks. */
    if ((status == COMM_ERR_INVALID || status == COMM_ERR_NOT_FOUND) && !is_first)
        return EXIT_FAILED;
    if (status != COMM_OK)
        return fail(NULL, "joining");
    int result;
    if (a->tune_mode)
        result = tune(world, a);
    else if (!a->groups_mode)
        result = run_world(world, a, local_rank);
    else
        result = bench_groups(world, a->groups, a->format) == COMM_OK ? EXIT_SUCCESS : fail(world, "groups");
    if (comm_group_close(world) != COMM_OK && result == EXIT_SUCCESS)
        result = fail(NULL, "leaving");
    return result;
}

/* Rank 0 has the words of a failure that all ranks share. A launcher ends all ranks when the first one fails, so the
 * others stay for a moment: rank 0 must have spoken by then. */
static void leave_after_rank_0(int status, void *context)
{
    (void)context;
    if (status != EXIT_SUCCESS)
        sleep(1);
}

/* A rank that -n started. */
static int run_spawned(const struct bench_spawned *self, void *context)
{
    char url[64];
    comm_store *store;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", self->port);
    if (comm_store_open(url, NULL, &store) != COMM_OK)
        return fail(NULL, "meeting the others");
    comm_init_options init = COMM_INIT_OPTIONS_INIT;
    init.store = store;
    init.rank = self->rank;
    init.world_size = self->ranks;
    init.secret = self->secret;
    int result = join_and_run(&init, context, self->rank == 0, self->rank);
    comm_store_close(store);
    if (self->rank > 0)
        leave_after_rank_0(result, NULL);
    return result;
}

static int run_launched(const comm_launch_info *launch, struct arguments *a)
{
    if (strcmp(launch->launcher, "none") == 0) {
        fprintf(stderr, "comm-bench: no launcher has started this process: give -n RANKS, or run it as "
                        "commrun -n RANKS comm-bench ...\n");
        return EXIT_USAGE;
    }
    if (strcmp(a->bind, "core") == 0)
        bench_bind(launch->local_rank >= 0 ? launch->local_rank : launch->rank);
    comm_init_options init = COMM_INIT_OPTIONS_INIT;
    int32_t local_rank = launch->local_rank >= 0 ? launch->local_rank : launch->rank;
    return join_and_run(&init, a, launch->rank <= 0, local_rank);
}

int main(int argc, char **argv)
{
    static struct arguments a = {
        .factor = 4, .call = { .dtype = COMM_DTYPE_F32, .redop = COMM_REDOP_SUM, .in_place = -1 },
        .method = { .check = 1, .depth = 1 }, .bind = "auto", .groups = 1000,
        .store = { .clients = 16, .ops = 20000, .keys = 1000, .value_bytes = 64, .waiters = { 1, 10, 100, 1000 },
                   .waiter_counts = 4 },
    };
    const struct argp argp = { options, parse_option, usage, summary, NULL, NULL, NULL };
    comm_launch_info launch = { .struct_bytes = sizeof launch, .rank = -1, .launcher = "none" };
    if (comm_launch_query(&launch) != COMM_OK)
        launch.launcher = "none";
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = comm_version();
    if (launch.rank > 0)
        on_exit(leave_after_rank_0, NULL);
    /* Under a launcher one rank complains for all, and helps. */
    int hidden_out = launch.rank > 0 ? hide(STDOUT_FILENO) : -1,
        hidden_err = launch.rank > 0 ? hide(STDERR_FILENO) : -1;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    check_arguments(&argp, &a, launch.rank <= 0);
    show(STDOUT_FILENO, hidden_out);
    show(STDERR_FILENO, hidden_err);
    if (a.store_mode)
        return bench_store(&a.store, a.format);
    if (a.kernels_mode)
        return bench_kernels(a.sizes, a.size_count, &a.method, a.format);
    if (a.tune_mode) { /* "as it is" is without the user's own rules */
        unsetenv("COMM_TUNING");
        unsetenv("COMM_SHM_ALGO");
        unsetenv("COMM_TCP_ALGO");
        unsetenv("COMM_SHM_SLICE_BYTES");
        unsetenv("COMM_TCP_SLICE_BYTES");
    }
    if (a.core_mode)
        return bench_core(&a.method, a.only, a.format);
    if (!a.ranks)
        return run_launched(&launch, &a);
    int is_even = a.ranks <= bench_core_count() || a.ranks % bench_core_count() == 0;
    return bench_spawn(a.ranks, strcmp(a.bind, "core") == 0 || (strcmp(a.bind, "auto") == 0 && is_even), run_spawned,
                       &a);
}

/* The timing method, the same as that of the programs in tools/peers, so that rows can be laid side by side:
 *   1. check once with random data, then zero the buffers;
 *   2. two iterations (twenty more if they are short) give an estimate; N = clamp(target / estimate, 4, 20000);
 *      N/10 more iterations to warm up; or as many as take the time of --warm-up, by estimates that follow those, and
 *      the last of these gives N;
 *   3. barrier; N back-to-back iterations between two looks at the clock; the mean;
 *   4. the value is the largest mean of all ranks; step 3 is repeated, and the row's mean is the median of the values.
 * The median and the 99th percentile need a clock in the loop, so they come from a pass of their own, where each
 * iteration counts as long as its slowest rank took.
 *
 * With --sync there is a barrier before each iteration, which is not counted: no rank runs ahead. The mean of step 3 is
 * then that of the single times.
 *
 * With --compute each rank computes before each iteration, for 0.5 to 1.5 times as long as that says, and each for
 * another time, as in programs. An iteration is then from the time when the last rank calls to the time when the last
 * one has returned, by one clock: all ranks are on one host.
 *
 * With --overlap each iteration starts the operation, computes, and waits for it. What is to be computed takes so long
 * on a core that has nothing else to do, and that time is taken off: the row is what the operation adds.
 *
 * With --on-stream the calls return when they are enqueued. Step 3 waits for the stream after the last one, so the mean
 * is the time on the device; a single time is the host's for the call, and the stream is waited for after it. The same
 * with --captured, but the call is captured into a CUDA graph, once, and the graph is launched in its place. */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "bench.h"

enum { ITERATIONS_LEAST = 4, ITERATIONS_MAX = 20000, SINGLE_LEAST = 10 };
static const double short_us = 200; /* an operation below this is estimated again, from 20 iterations */

double bench_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* Calls that may be in flight together, each with its buffers. */
struct lane {
    struct bench_call call;
    comm_work *work;
};

struct lanes {
    struct lane *lane;
    size_t count;
};

static void lanes_finish(struct lanes *lanes)
{
    for (size_t i = 0; i < lanes->count; i++) {
        if (lanes->lane[i].work) { /* only after an error: the buffers are in use until it completes */
            comm_work_wait(lanes->lane[i].work, COMM_TIMEOUT_INFINITE);
            comm_work_release(lanes->lane[i].work);
        }
        bench_call_finish(&lanes->lane[i].call);
    }
    free(lanes->lane);
}

static comm_status lane_wait(struct lane *lane)
{
    if (!lane->work)
        return COMM_OK;
    comm_status status = comm_work_wait(lane->work, COMM_TIMEOUT_INFINITE);
    if (status == COMM_OK) {
        comm_work_release(lane->work);
        lane->work = NULL;
    }
    return status;
}

static void wait_for_stream(const struct bench_call *call)
{
    if (call->options.flags & COMM_OP_FLAG_ON_STREAM)
        bench_device_wait(call->options.stream);
}

static comm_status run(struct bench_call *call)
{
    if (!call->graph)
        return call->op->run(call, NULL);
    bench_device_launch(call->graph, call->options.stream);
    return COMM_OK;
}

/* The ranks are connected by a call before it. */
static comm_status capture(struct bench_call *call)
{
    comm_status status = call->op->run(call, NULL);
    if (status != COMM_OK)
        return status;
    bench_device_wait(call->options.stream);
    bench_device_begin_capture(call->options.stream);
    status = call->op->run(call, NULL);
    if (status == COMM_OK)
        call->graph = bench_device_end_capture(call->options.stream);
    else
        bench_device_drop_capture(call->options.stream);
    return status;
}

static comm_status iterate(struct lanes *lanes, long iterations)
{
    comm_status status = COMM_OK;
    if (lanes->count == 1) {
        struct bench_call *call = &lanes->lane[0].call;
        for (long i = 0; i < iterations && status == COMM_OK; i++)
            status = run(call);
        wait_for_stream(call);
        return status;
    }
    for (long i = 0; i < iterations && status == COMM_OK; i++) {
        struct lane *lane = &lanes->lane[(size_t)i % lanes->count];
        status = lane_wait(lane);
        if (status == COMM_OK)
            status = lane->call.op->run(&lane->call, &lane->work);
    }
    for (size_t i = 0; i < lanes->count && status == COMM_OK; i++)
        status = lane_wait(&lanes->lane[i]);
    return status;
}

/* Element by element, the largest of all ranks. */
static comm_status largest(const struct lanes *lanes, double *values, size_t count)
{
    return bench_reduce_values(&lanes->lane[0].call, values, count, COMM_DTYPE_F64, COMM_REDOP_MAX);
}

static comm_status barrier(const struct lanes *lanes)
{
    const struct bench_call *call = &lanes->lane[0].call;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.device = call->options.device;
    return comm_barrier(call->group, &options, NULL);
}

/* After a barrier each, which is not counted. */
static comm_status iterate_sync(struct lanes *lanes, long iterations, double *ret_us)
{
    comm_status status = COMM_OK;
    *ret_us = 0;
    for (long i = 0; i < iterations && status == COMM_OK; i++) {
        status = barrier(lanes);
        double begin = bench_now_us();
        if (status == COMM_OK)
            status = run(&lanes->lane[0].call);
        *ret_us += bench_now_us() - begin;
    }
    return status;
}

/* Each rank's numbers are others, and the same in each run. */
static void compute(double about_us, uint32_t *random)
{
    *random = *random * 1664525 + 1013904223;
    double until_us = bench_now_us() + about_us * (0.5 + (double)(*random >> 8) / (1 << 24));
    while (bench_now_us() < until_us)
        continue;
}

/* Times of single iterations that follow after computing. `ends` is room for as many. */
static comm_status times_after_computing(struct lanes *lanes, const struct bench_method *method, double *times,
                                         double *ends, size_t count)
{
    struct bench_call *call = &lanes->lane[0].call;
    uint32_t random = (uint32_t)call->rank * 2654435761u;
    comm_status status = COMM_OK;
    for (size_t i = 0; i < count && status == COMM_OK; i++) {
        compute(method->compute_us, &random);
        times[i] = bench_now_us();
        status = run(call);
        ends[i] = bench_now_us();
    }
    if (status == COMM_OK)
        status = largest(lanes, times, count);
    if (status == COMM_OK)
        status = largest(lanes, ends, count);
    for (size_t i = 0; i < count && status == COMM_OK; i++)
        times[i] = ends[i] - times[i];
    return status;
}

static comm_status mean_after_computing(struct lanes *lanes, const struct bench_method *method, long iterations,
                                        double *ret_us)
{
    size_t count = (size_t)iterations;
    double *times = calloc(2 * count, sizeof *times);
    comm_status status = times ? times_after_computing(lanes, method, times, times + count, count)
                               : COMM_ERR_NO_MEMORY;
    *ret_us = 0;
    for (size_t i = 0; i < count && status == COMM_OK; i++)
        *ret_us += times[i] / (double)iterations;
    free(times);
    return status;
}

static volatile double computed;

static void compute_steps(long steps)
{
    double x = 1;
    for (long i = 0; i < steps; i++)
        x = x * 1.0000001 + 0.1;
    computed = x;
}

static double thread_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* So many take a core a microsecond, at its best. */
static double measure_steps(void)
{
    enum { STEPS = 500000, TRIES = 20 };
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        double begin = thread_us();
        compute_steps(STEPS);
        double found = STEPS / (thread_us() - begin);
        best = found > best ? found : best;
    }
    return best;
}

/* That takes long, the first time. */
static double steps_per_us(void)
{
    static double steps;
    if (steps == 0)
        steps = measure_steps();
    return steps;
}

/* What each iteration takes longer than computing alone; their mean. `times` may be NULL. */
static comm_status overlap(struct lanes *lanes, const struct bench_method *method, long iterations, double *times,
                           double *ret_mean_us)
{
    const double rate = steps_per_us();
    struct lane *lane = &lanes->lane[0];
    comm_status status = COMM_OK;
    double first = bench_now_us(), begin = first, end = first;
    for (long i = 0; i < iterations && status == COMM_OK; i++) {
        status = lane->call.op->run(&lane->call, &lane->work);
        if (status == COMM_OK)
            compute_steps((long)(rate * method->overlap_us));
        if (status == COMM_OK)
            status = lane_wait(lane);
        end = bench_now_us();
        if (times)
            times[i] = end - begin - method->overlap_us;
        begin = end;
    }
    *ret_mean_us = (end - first) / (double)iterations - method->overlap_us;
    return status;
}

static comm_status mean_of(struct lanes *lanes, const struct bench_method *method, long iterations, double *ret_us)
{
    if (method->compute_us > 0)
        return mean_after_computing(lanes, method, iterations, ret_us);
    if (method->overlap_us > 0)
        return overlap(lanes, method, iterations, NULL, ret_us);
    double begin = bench_now_us();
    comm_status status = method->sync ? iterate_sync(lanes, iterations, ret_us) : iterate(lanes, iterations);
    if (!method->sync)
        *ret_us = bench_now_us() - begin;
    *ret_us /= (double)iterations;
    return status;
}

/* How long an iteration takes with all that is not counted. */
static comm_status estimate(struct lanes *lanes, const struct bench_method *method, long iterations, double *ret_us)
{
    double counted_us, begin = bench_now_us();
    comm_status status = mean_of(lanes, method, iterations, &counted_us);
    *ret_us = (bench_now_us() - begin) / (double)iterations;
    return status == COMM_OK ? largest(lanes, ret_us, 1) : status;
}

static long iterations_for(const struct bench_method *method, double us)
{
    double wanted = method->target_ms * 1e3 / (us > 1e-3 ? us : 1e-3);
    return method->iterations          ? method->iterations
           : wanted > ITERATIONS_MAX   ? ITERATIONS_MAX
           : wanted < ITERATIONS_LEAST ? ITERATIONS_LEAST
                                       : (long)wanted;
}

/* Until the time has passed. The first operations on new buffers may take ten times as long as later ones. */
static comm_status warm_up(struct lanes *lanes, const struct bench_method *method, double *us)
{
    enum { ROUNDS_MAX = 20 };
    double left_us = method->warm_up_ms * 1e3;
    comm_status status = COMM_OK;
    for (int round = 0; round < ROUNDS_MAX && left_us > 0 && status == COMM_OK; round++) {
        long count = (long)(left_us / (*us > 1e-3 ? *us : 1e-3)) + 1;
        status = estimate(lanes, method, count, us);
        left_us -= *us * (double)count;
    }
    return status;
}

/* Every rank gets the same numbers, because they come from the slowest rank's estimate. */
static comm_status choose_iterations(struct lanes *lanes, const struct bench_method *method, long *ret_iterations)
{
    double us = 0;
    if (method->overlap_us > 0)
        steps_per_us(); /* the first estimate would have it in its time */
    comm_status status = iterate(lanes, 1);
    if (status == COMM_OK)
        status = barrier(lanes);
    if (status == COMM_OK)
        status = estimate(lanes, method, 2, &us);
    if (status == COMM_OK && us < short_us)
        status = estimate(lanes, method, 20, &us);
    long tenth = iterations_for(method, us) / 10;
    if (status == COMM_OK)
        status = iterate(lanes, tenth > 1 ? tenth : 1);
    if (status == COMM_OK)
        status = warm_up(lanes, method, &us);
    *ret_iterations = iterations_for(method, us);
    return status;
}

/* Check one call of the operation; the sum of all ranks' wrong elements. */
static comm_status check(struct bench_call *call, uint64_t *ret_errors)
{
    uint64_t seed = 0x6c6962636f6d6d00u + call->count; /* any, but the same on all ranks */
    bench_call_prepare(call, seed);
    comm_status status = run(call);
    if (status != COMM_OK)
        return status;
    wait_for_stream(call);
    uint64_t wrong = bench_call_wrong(call, seed);
    status = bench_reduce_values(call, &wrong, 1, COMM_DTYPE_U64, COMM_REDOP_SUM);
    bench_call_clear(call);
    *ret_errors = wrong;
    return status;
}

/* Times of single iterations: the slowest rank's. `capacity` of them are measured into `times`, behind which there is
 * room for as many. Where one follows the other, one look at the clock ends it and begins the next. */
static comm_status single_times(struct lanes *lanes, const struct bench_method *method, double *times, size_t capacity)
{
    if (method->compute_us > 0)
        return times_after_computing(lanes, method, times, times + capacity, capacity);
    struct bench_call *call = &lanes->lane[0].call;
    const int is_apart = method->sync || (call->options.flags & COMM_OP_FLAG_ON_STREAM);
    comm_status status = barrier(lanes);
    double begin = bench_now_us(), unused;
    if (status == COMM_OK && method->overlap_us > 0) {
        status = overlap(lanes, method, (long)capacity, times, &unused);
        return status == COMM_OK ? largest(lanes, times, capacity) : status;
    }
    for (size_t i = 0; i < capacity && status == COMM_OK; i++) {
        if (method->sync)
            status = barrier(lanes);
        if (is_apart)
            begin = bench_now_us();
        if (status == COMM_OK)
            status = run(call);
        double end = bench_now_us();
        times[i] = end - begin;
        begin = end;
        wait_for_stream(call);
    }
    return status == COMM_OK ? largest(lanes, times, capacity) : status;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t count, double p)
{
    qsort(values, count, sizeof *values, compare_doubles);
    double rank = ceil(p * (double)count);
    return values[rank < 1 ? 0 : (size_t)rank - 1];
}

static double median_of(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void summarise(struct bench_row *row, double *values, size_t value_count, double *times, size_t time_count,
                      const struct bench_op *op)
{
    /* A ping-pong is there and back; its row is one way. */
    double ways = op->from == BENCH_FROM_PEER ? 2 : 1;
    row->mean_us = median_of(values, value_count) / ways;
    row->least_us = values[0] / ways;
    row->most_us = values[value_count - 1] / ways;
    row->median_us = median_of(times, time_count) / ways;
    row->p99_us = bench_quantile(times, time_count, 0.99) / ways;
    row->algbw = row->mean_us > 0 ? (double)row->bytes / row->mean_us * 1e-3 : 0;
    row->busbw = row->algbw * op->bus_factor(row->ranks);
}

/* Steps 2 to 4 on calls that are ready. */
static comm_status measure(struct lanes *lanes, const struct bench_method *method, struct bench_row *row)
{
    comm_status status = choose_iterations(lanes, method, &row->iterations);
    if (status != COMM_OK)
        return status;
    size_t repeats = (size_t)method->repeats;
    size_t singles = row->iterations > SINGLE_LEAST || method->iterations ? (size_t)row->iterations : SINGLE_LEAST;
    double *values = calloc(repeats + 2 * singles, sizeof *values), *times = values + repeats;
    if (!values)
        return COMM_ERR_NO_MEMORY;
    for (size_t i = 0; i < repeats && status == COMM_OK; i++) {
        status = barrier(lanes);
        if (status == COMM_OK)
            status = mean_of(lanes, method, row->iterations, &values[i]);
    }
    if (status == COMM_OK)
        status = largest(lanes, values, repeats);
    if (status == COMM_OK)
        status = single_times(lanes, method, times, singles);
    if (status == COMM_OK)
        summarise(row, values, repeats, times, singles, lanes->lane[0].call.op);
    free(values);
    return status;
}

comm_status bench_measure(comm_group *group, const struct bench_op *op, size_t bytes,
                          const struct bench_call_options *call_options, const struct bench_method *method,
                          struct bench_row *ret_row)
{
    struct bench_row row = { .op = op->name, .backend = comm_group_backend(group), .ranks = comm_group_size(group),
                             .bytes = bytes };
    struct lanes lanes = { calloc(method->depth, sizeof *lanes.lane), 0 };
    comm_status status = lanes.lane ? COMM_OK : COMM_ERR_NO_MEMORY;
    while (status == COMM_OK && lanes.count < method->depth)
        status = bench_call_init(&lanes.lane[lanes.count++].call, op, group, bytes, call_options);
    if (status == COMM_OK && call_options->captured)
        status = capture(&lanes.lane[0].call);
    if (status == COMM_OK && method->check)
        status = check(&lanes.lane[0].call, &row.errors);
    if (status == COMM_OK)
        status = measure(&lanes, method, &row);
    if (status == COMM_OK)
        *ret_row = row;
    lanes_finish(&lanes);
    return status;
}

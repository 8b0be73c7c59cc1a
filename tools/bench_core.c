/* `comm-bench core`: what a call costs in the core alone. Two null backends, registered by this program itself,
 * complete every op at once ("null" in submit, "null-run" in the slot run where it is called), so that what is left is
 * the path of the call through the core: checks, number, flight record, work, wait. An 8-byte all_reduce on a world of
 * one rank, which no other process takes part in. */
#include <comm/backend.h>
#include <comm/store.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { THREADS_MAX = 4, ITERATIONS_TO_ESTIMATE = 2000 };

/* ---- The null backends ---- */

static const comm_host *host;

static comm_status null_world_open(void *context, const comm_world_info *info, void **ret_world)
{
    (void)context;
    *ret_world = (void *)info;
    return COMM_OK;
}

static comm_status null_open(void *world, const comm_group_info *info, void **ret_state)
{
    (void)world;
    *ret_state = info->token;
    return COMM_OK;
}

/* Nothing is ever pending. */
static void null_abort(void *state, comm_status status, const char *reason)
{
    (void)state, (void)status, (void)reason;
}

static void null_close(void *state, int32_t forked)
{
    (void)state, (void)forked;
}

static comm_status null_submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    (void)state, (void)ops;
    for (size_t i = 0; i < count; i++)
        host->work_complete(works[i], COMM_OK, NULL);
    return COMM_OK;
}

static comm_status null_run(void *state, const comm_op *op, int64_t spin_ns)
{
    (void)state, (void)op, (void)spin_ns;
    return COMM_OK;
}

static comm_backend make_null(const char *name)
{
    return (comm_backend){
        COMM_BACKEND_INIT,
        .name = name,
        .version = "1",
        .license = "Apache-2.0",
        .devices = "cpu",
        .world_open = null_world_open,
        .world_close = null_close,
        .group_open = null_open,
        .group_abort = null_abort,
        .group_close = null_close,
        .submit = null_submit,
    };
}

static const comm_backend *null_entry(const comm_host *offered)
{
    static comm_backend backend;
    backend = make_null("null");
    host = offered;
    return &backend;
}

static const comm_backend *null_run_entry(const comm_host *offered)
{
    static comm_backend backend;
    backend = make_null("null-run");
    backend.run = null_run;
    host = offered;
    return &backend;
}

/* ---- The calls ---- */

static comm_status call_blocking(comm_group *group, int64_t *value)
{
    return comm_all_reduce(group, value, value, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL);
}

static comm_status call_async(comm_group *group, int64_t *value)
{
    comm_work *work;
    comm_status status = comm_all_reduce(group, value, value, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, &work);
    if (status != COMM_OK)
        return status;
    status = comm_work_wait(work, 0);
    comm_work_release(work);
    return status;
}

static const struct core_call {
    const char *name;
    comm_status (*fn)(comm_group *group, int64_t *value);
} calls[] = { { "blocking", call_blocking }, { "async", call_async } };
enum { CALLS = sizeof calls / sizeof *calls };

/* How many threads call, on how many groups. */
static const struct {
    int threads, groups;
} layouts[] = { { 1, 1 }, { 4, 4 }, { 4, 1 } };
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

struct core_case {
    const char *backend;
    const struct core_call *call;
    int threads, groups, hooked;
};

/* ---- One repetition ---- */

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct caller {
    pthread_t thread;
    pthread_barrier_t *begin;
    comm_group *group;
    comm_status (*fn)(comm_group *group, int64_t *value);
    long iterations;
    double began, ended, cpu; /* seconds */
    comm_status status;
    char error[512];
};

static void *call_often(void *argument)
{
    struct caller *c = argument;
    int64_t value = 0;
    pthread_barrier_wait(c->begin);
    double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
    c->began = seconds(CLOCK_MONOTONIC);
    for (long i = 0; c->status == COMM_OK && i < c->iterations; i++)
        c->status = c->fn(c->group, &value);
    c->ended = seconds(CLOCK_MONOTONIC);
    c->cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
    if (c->status != COMM_OK)
        snprintf(c->error, sizeof c->error, "%s", comm_last_error());
    return NULL;
}

/* Nanoseconds per call: of the clock, by all calls of all threads, and of the threads' CPU time. */
struct cost {
    double ns, cpu_ns;
};

static const char *repeat(const struct core_case *which, comm_group *const *groups, long iterations,
                          struct cost *ret_cost)
{
    static struct caller callers[THREADS_MAX];
    pthread_barrier_t begin;
    pthread_barrier_init(&begin, NULL, (unsigned)which->threads);
    for (int t = 1; t < which->threads; t++) {
        callers[t] = (struct caller){ .begin = &begin, .group = groups[t % which->groups], .fn = which->call->fn,
                                      .iterations = iterations };
        if (pthread_create(&callers[t].thread, NULL, call_often, &callers[t]) != 0)
            return "no thread"; /* those that were begun wait for ever: the program ends now */
    }
    callers[0] = (struct caller){ .begin = &begin, .group = groups[0], .iterations = iterations };
    callers[0].fn = which->call->fn;
    call_often(&callers[0]);
    double began = callers[0].began, ended = callers[0].ended, cpu = callers[0].cpu;
    const char *error = callers[0].status == COMM_OK ? NULL : callers[0].error;
    for (int t = 1; t < which->threads; t++) {
        pthread_join(callers[t].thread, NULL);
        began = callers[t].began < began ? callers[t].began : began;
        ended = callers[t].ended > ended ? callers[t].ended : ended;
        cpu += callers[t].cpu;
        error = callers[t].status == COMM_OK ? error : callers[t].error;
    }
    pthread_barrier_destroy(&begin);
    double all = (double)iterations * which->threads;
    *ret_cost = (struct cost){ 1e9 * (ended - began) / all, 1e9 * cpu / all };
    return error;
}

/* ---- One case ---- */

static void count_event(const comm_event *event, void *context)
{
    (void)event;
    atomic_fetch_add_explicit((atomic_long *)context, 1, memory_order_relaxed);
}

static atomic_long events;

static comm_status add_hooks(const struct core_case *which, comm_group *const *groups, int32_t *ret_hooks)
{
    comm_status status = COMM_OK;
    for (int g = 0; status == COMM_OK && which->hooked && g < which->groups; g++)
        status = comm_group_hook_add(groups[g], COMM_EVENT_SUBMIT | COMM_EVENT_COMPLETE, count_event, &events,
                                     &ret_hooks[g]);
    return status;
}

static void remove_hooks(const struct core_case *which, comm_group *const *groups, const int32_t *hooks)
{
    for (int g = 0; which->hooked && g < which->groups; g++)
        comm_group_hook_remove(groups[g], hooks[g]);
}

static long choose_iterations(const struct bench_method *method, const struct core_case *which, double ns)
{
    double wanted = method->target_ms * 1e6 / (ns > 0.1 ? ns : 0.1) / which->threads;
    return method->iterations ? method->iterations : wanted < 1 ? 1 : (long)wanted;
}

static const char *measure(const struct core_case *which, comm_group *const *groups, const struct bench_method *method,
                           enum bench_format format)
{
    static double ns[BENCH_REPEATS_MAX], cpu_ns[BENCH_REPEATS_MAX];
    int32_t hooks[THREADS_MAX] = { 0 };
    struct cost cost = { 0, 0 };
    if (add_hooks(which, groups, hooks) != COMM_OK)
        return comm_last_error();
    const char *error = method->iterations ? NULL : repeat(which, groups, ITERATIONS_TO_ESTIMATE, &cost);
    long iterations = choose_iterations(method, which, cost.ns);
    for (long r = 0; !error && r < method->repeats; r++) {
        error = repeat(which, groups, iterations, &cost);
        ns[r] = cost.ns;
        cpu_ns[r] = cost.cpu_ns;
    }
    remove_hooks(which, groups, hooks);
    if (error)
        return error;
    double median = bench_quantile(ns, (size_t)method->repeats, 0.5);
    double cpu = bench_quantile(cpu_ns, (size_t)method->repeats, 0.5);
    static const char row[] = "%-8s %-9s %7d %6d %-5s %9.1f %9.1f %9.1f %9.1f\n";
    printf(format == BENCH_CSV ? "%s,%s,%d,%d,%s,%.1f,%.1f,%.1f,%.1f\n" : row,
           which->backend, which->call->name, which->threads, which->groups, which->hooked ? "on" : "off", median, cpu,
           ns[0], ns[method->repeats - 1]);
    fflush(stdout);
    return NULL;
}

/* ---- All cases ---- */

static int is_wanted(const struct core_case *which, const char *only)
{
    char name[64];
    snprintf(name, sizeof name, "%s,%s,%d,%d,%s", which->backend, which->call->name, which->threads, which->groups,
             which->hooked ? "on" : "off");
    return !only || strncmp(name, only, strlen(only)) == 0;
}

static const char *measure_all(const char *backend, comm_group *const *groups, const struct bench_method *method,
                               const char *only, enum bench_format format)
{
    const char *error = NULL;
    for (int i = 0; !error && i < CALLS * LAYOUTS * 2; i++) {
        struct core_case which = { backend, &calls[i / 2 / LAYOUTS], layouts[i / 2 % LAYOUTS].threads,
                                   layouts[i / 2 % LAYOUTS].groups, i % 2 };
        if (is_wanted(&which, only))
            error = measure(&which, groups, method, format);
    }
    return error;
}

static comm_status open_groups(const char *backend, comm_group **groups)
{
    comm_init_options init = COMM_INIT_OPTIONS_INIT;
    comm_store *store;
    char text[32];
    snprintf(text, sizeof text, "cpu:%s", backend);
    comm_status status = comm_store_open("hash://", NULL, &store);
    if (status != COMM_OK)
        return status;
    init.store = store;
    init.rank = 0;
    init.world_size = 1;
    init.backend = text;
    status = comm_init(&init, &groups[0]);
    for (int g = 1; status == COMM_OK && g < THREADS_MAX; g++)
        status = comm_group_dup(groups[0], NULL, &groups[g]);
    comm_store_close(store);
    return status;
}

static const char *run_backend(const char *backend, comm_backend_entry_fn entry, const struct bench_method *method,
                               const char *only, enum bench_format format)
{
    comm_group *groups[THREADS_MAX] = { NULL };
    if (comm_backend_register(entry) != COMM_OK || open_groups(backend, groups) != COMM_OK)
        return comm_last_error();
    const char *error = measure_all(backend, groups, method, only, format);
    for (int g = THREADS_MAX - 1; g >= 0; g--)
        if (comm_group_close(groups[g]) != COMM_OK && !error)
            error = comm_last_error();
    return error;
}

int bench_core(const struct bench_method *method, const char *only, enum bench_format format)
{
    if (format == BENCH_CSV)
        puts("backend,call,threads,groups,hooks,ns,cpu_ns,least_ns,most_ns");
    else
        printf("An 8-byte all_reduce in the core: time by calls, of all threads; and CPU time of a call.\n"
               "%-8s %-9s %7s %6s %-5s %9s %9s %9s %9s\n",
               "backend", "call", "threads", "groups", "hooks", "ns", "cpu ns", "least ns", "most ns");
    const char *error = run_backend("null", null_entry, method, only, format);
    if (!error)
        error = run_backend("null-run", null_run_entry, method, only, format);
    if (!error)
        return 0;
    fprintf(stderr, "comm-bench: core: %s\n", error);
    return 3;
}

/* `comm-bench groups`: what it costs to make, use and close many groups. The groups are of a world of their own, whose
 * store counts what is asked of it, so that "no store operations" is a measurement. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- A store that counts ---- */

struct counter {
    comm_store *inner;
    atomic_long calls;
};

static comm_store *counted(void *context)
{
    struct counter *counter = context;
    atomic_fetch_add(&counter->calls, 1);
    return counter->inner;
}

static comm_status pass(comm_status status, char *error, size_t capacity)
{
    if (status != COMM_OK)
        snprintf(error, capacity, "%s", comm_last_error());
    return status;
}

static comm_status count_set(void *context, const char *key, const void *data, size_t bytes, char *error,
                             size_t capacity)
{
    return pass(comm_store_set(counted(context), key, data, bytes), error, capacity);
}

static comm_status count_get(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                             char *error, size_t capacity)
{
    return pass(comm_store_get(counted(context), key, timeout_ms, ret_data, ret_bytes), error, capacity);
}

static comm_status count_add(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                             size_t capacity)
{
    return pass(comm_store_add(counted(context), key, amount, ret_value), error, capacity);
}

static comm_status count_compare_set(void *context, const char *key, const void *expected, size_t expected_bytes,
                                     const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                                     char *error, size_t capacity)
{
    return pass(comm_store_compare_set(counted(context), key, expected, expected_bytes, desired, desired_bytes,
                                       ret_data, ret_bytes), error, capacity);
}

static comm_status count_check(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                               size_t capacity)
{
    return pass(comm_store_check(counted(context), keys, count, ret_all), error, capacity);
}

static comm_status count_remove(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity)
{
    return pass(comm_store_delete(counted(context), key, ret_existed), error, capacity);
}

static comm_status count_wait(void *context, const char *const *keys, size_t count, int64_t timeout_ms, char *error,
                              size_t capacity)
{
    return pass(comm_store_wait(counted(context), keys, count, timeout_ms), error, capacity);
}

static comm_status open_counted(comm_group *world, struct counter *counter, comm_group **ret_world)
{
    static const comm_store_ops ops = { .struct_bytes = sizeof ops,
                                        .name = "counting",
                                        .set = count_set,
                                        .get = count_get,
                                        .add = count_add,
                                        .compare_set = count_compare_set,
                                        .check = count_check,
                                        .remove = count_remove,
                                        .wait = count_wait };
    comm_init_options init = COMM_INIT_OPTIONS_INIT;
    comm_store *store;
    counter->inner = comm_group_store(world);
    comm_status status = comm_store_create(&ops, counter, &store);
    if (status != COMM_OK)
        return status;
    init.store = store;
    init.rank = comm_group_rank(world);
    init.world_size = comm_group_size(world);
    init.backend = comm_group_backend(world);
    init.name = "groups";
    status = comm_init(&init, ret_world);
    comm_store_close(store); /* the world keeps what it needs */
    return status;
}

/* ---- The ways of making a group ---- */

static comm_status make_dup(comm_group *world, comm_group **ret_group)
{
    return comm_group_dup(world, NULL, ret_group);
}

/* Every second rank, from the caller's own parity on. */
static comm_status make_half(comm_group *world, comm_group **ret_group)
{
    int32_t ranks[4096], count = 0;
    for (int32_t r = comm_group_rank(world) % 2; r < comm_group_size(world) && count < 4096; r += 2)
        ranks[count++] = r;
    return comm_group_create(world, ranks, (size_t)count, NULL, ret_group);
}

static comm_status make_split(comm_group *world, comm_group **ret_group)
{
    return comm_group_split(world, comm_group_rank(world) % 2, 0, NULL, ret_group);
}

static const struct kind {
    const char *name;
    comm_status (*make)(comm_group *world, comm_group **ret_group);
} kinds[] = { { "dup", make_dup }, { "create", make_half }, { "split", make_split } };
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- Measuring ---- */

enum { STEP_MAKE, STEP_FIRST_USE, STEP_NEXT_USE, STEP_CLOSE, STEPS };

struct result {
    double us[STEPS];      /* per group, on the slowest rank */
    int64_t calls[STEPS];  /* of the store, of all ranks and groups together */
};

static comm_status run_step(int step, const struct kind *kind, comm_group *world, comm_group **groups, long count)
{
    comm_status status = COMM_OK;
    for (long i = 0; status == COMM_OK && i < count; i++)
        switch (step) {
        case STEP_MAKE: status = kind->make(world, &groups[i]); break;
        case STEP_CLOSE:
            status = comm_group_close(groups[i]);
            groups[i] = NULL;
            break;
        default: status = comm_barrier(groups[i], NULL, NULL);
        }
    return status;
}

static comm_status measure(const struct kind *kind, comm_group *world, struct counter *counter, comm_group **groups,
                           long count, struct result *ret_result)
{
    comm_status status = COMM_OK;
    for (int step = 0; status == COMM_OK && step < STEPS; step++) {
        status = comm_barrier(world, NULL, NULL);
        long calls = atomic_load(&counter->calls);
        double began = now_us();
        if (status == COMM_OK)
            status = run_step(step, kind, world, groups, count);
        ret_result->us[step] = (now_us() - began) / (double)count;
        ret_result->calls[step] = atomic_load(&counter->calls) - calls;
    }
    if (status == COMM_OK)
        status = comm_all_reduce(world, ret_result->us, ret_result->us, STEPS, COMM_DTYPE_F64, COMM_REDOP_MAX, NULL,
                                 NULL);
    if (status == COMM_OK)
        status = comm_all_reduce(world, ret_result->calls, ret_result->calls, STEPS, COMM_DTYPE_I64, COMM_REDOP_SUM,
                                 NULL, NULL);
    return status;
}

static void print_row(enum bench_format format, const char *name, int32_t ranks, long count, const struct result *r)
{
    const char *line = format == BENCH_CSV ? "groups,%s,%d,%ld,%.2f,%.2f,%.2f,%.2f,%lld,%lld\n"
                                           : "%-8s %5d %7ld %10.2f %13.2f %12.2f %10.2f %16lld %15lld\n";
    printf(line, name, ranks, count, r->us[STEP_MAKE], r->us[STEP_FIRST_USE], r->us[STEP_NEXT_USE], r->us[STEP_CLOSE],
           (long long)r->calls[STEP_MAKE], (long long)r->calls[STEP_FIRST_USE]);
    fflush(stdout);
}

static void print_head(enum bench_format format)
{
    if (format == BENCH_CSV)
        puts("groups,kind,ranks,count,make_us,first_use_us,next_use_us,close_us,store_calls_make,store_calls_use");
    else
        printf(
            "Microseconds per group on the slowest rank; a use is a barrier; store calls are of all ranks and groups.\n"
            "%-8s %5s %7s %10s %13s %12s %10s %16s %15s\n",
            "made by", "ranks", "groups", "make_us", "first_use_us", "next_use_us", "close_us", "store calls made",
            "in first use");
}

comm_status bench_groups(comm_group *outer, long count, enum bench_format format)
{
    static struct counter counter; /* the world's backend may ask it until the world is closed */
    comm_group *world, **groups = calloc((size_t)count, sizeof *groups);
    int is_first = comm_group_rank(outer) == 0;
    comm_status status = groups ? open_counted(outer, &counter, &world) : COMM_ERR_NO_MEMORY;
    if (status != COMM_OK) {
        free(groups);
        return status;
    }
    if (is_first)
        print_head(format);
    /* Connections are made by whatever is used first; that is not a group's cost. */
    int32_t *warm = calloc(2 * (size_t)comm_group_size(world), sizeof *warm);
    status = warm ? comm_all_to_all(world, warm, warm + comm_group_size(world), 1, COMM_DTYPE_I32, NULL, NULL)
                  : COMM_ERR_NO_MEMORY;
    free(warm);
    for (int k = 0; status == COMM_OK && k < KINDS; k++) {
        struct result result;
        status = measure(&kinds[k], world, &counter, groups, count, &result);
        if (status == COMM_OK && is_first)
            print_row(format, kinds[k].name, comm_group_size(world), count, &result);
    }
    for (long i = 0; i < count; i++)
        comm_group_close(groups[i]);
    free(groups);
    comm_status closed = comm_group_close(world);
    return status == COMM_OK ? closed : status;
}

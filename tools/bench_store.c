/* `comm-bench store`: our server, and PyTorch's beside it if asked for, in turn under the same load; CSV for machines, else a table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_store.h"

enum { SERVERS = 2, REPEATS = 5, TEXT = 256 };

static int is_csv(enum bench_format format)
{
    return format == BENCH_CSV;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static void row(enum bench_format format, const char *server, const char *what, int clients, double value,
                const char *unit, double p50_us, double p99_us)
{
    if (is_csv(format))
        printf("store,%s,%s,%d,%.1f,%s,%.1f,%.1f\n", server, what, clients, value, unit, p50_us, p99_us);
    else
        printf("%-10s %-6s %8d %12.1f %-6s %10.1f %10.1f\n", server, what, clients, value, unit, p50_us, p99_us);
    fflush(stdout);
}

/* One kind of work on every server in turn. Returns wrong replies, or -1. */
static long measure_load(const struct bench_store_options *o, enum bench_format format, struct bench_server *servers,
                         int server_count, enum bench_work work)
{
    static const char *const names[] = { "set", "get", "add", "wait", "mix" };
    double ops[SERVERS][REPEATS], p50[SERVERS][REPEATS], p99[SERVERS][REPEATS];
    long wrong = 0;
    char error[TEXT];
    for (int r = 0; r < REPEATS; r++)
        for (int s = 0; s < server_count; s++) {
            struct bench_load load = { servers[s].port, { servers[s].is_old }, work, o->clients, o->ops / REPEATS + 1,
                                       o->keys, o->value_bytes };
            struct bench_load_result result;
            if ((r == 0 && bench_load_fill(&load, error, sizeof error) != 0) ||
                bench_load_run(&load, &result, error, sizeof error) != 0) {
                fprintf(stderr, "comm-bench: %s on the server of %s: %s\n", names[work], servers[s].name, error);
                return -1;
            }
            ops[s][r] = result.ops_per_s;
            p50[s][r] = result.p50_us;
            p99[s][r] = result.p99_us;
            wrong += result.wrong;
        }
    for (int s = 0; s < server_count; s++)
        row(format, servers[s].name, names[work], o->clients, median(ops[s], REPEATS), "ops/s", median(p50[s], REPEATS),
            median(p99[s], REPEATS));
    return wrong;
}

static int measure_waking(const struct bench_store_options *o, enum bench_format format, struct bench_server *servers,
                          int server_count, int waiters)
{
    char error[TEXT];
    for (int s = 0; s < server_count; s++) {
        double us[REPEATS];
        struct bench_load load = { .port = servers[s].port, .wire = { servers[s].is_old }, .value_bytes = o->value_bytes };
        if (bench_wake_run(&load, waiters, REPEATS, us, error, sizeof error) != 0) {
            fprintf(stderr, "comm-bench: waking %d clients of the server of %s: %s\n", waiters, servers[s].name, error);
            return -1;
        }
        row(format, servers[s].name, "wake", waiters, median(us, REPEATS), "us", 0, 0);
    }
    return 0;
}

int bench_store(const struct bench_store_options *o, enum bench_format format)
{
    struct bench_server servers[SERVERS] = { { 0 }, { 0 } };
    int server_count = o->peer ? 2 : 1, status = 0;
    long wrong = 0;
    char error[TEXT];
    for (int s = 0; s < server_count && status == 0; s++)
        if (bench_server_start(&servers[s], s, error, sizeof error) != 0) {
            fprintf(stderr, "comm-bench: %s\n", error);
            status = 3;
        }
    if (status == 0)
        printf(is_csv(format) ? "op,server,work,clients,value,unit,p50_us,p99_us\n"
                              : "server     work    clients        value unit       p50_us     p99_us\n");
    for (int work = 0; work < BENCH_WORK_END && status == 0; work++) {
        long bad = measure_load(o, format, servers, server_count, (enum bench_work)work);
        status = bad < 0 ? 3 : 0;
        wrong += bad > 0 ? bad : 0;
    }
    for (int i = 0; i < o->waiter_counts && status == 0; i++)
        status = measure_waking(o, format, servers, server_count, o->waiters[i]) == 0 ? 0 : 3;
    for (int s = 0; s < server_count; s++)
        if (servers[s].pid)
            bench_server_stop(&servers[s]);
    if (wrong)
        fprintf(stderr, "comm-bench: %ld replies were wrong\n", wrong);
    return status ? status : wrong != 0;
}

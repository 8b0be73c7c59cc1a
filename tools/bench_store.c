/* `comm-bench store`: our server, and PyTorch's beside it if asked for, in turn under the same load; CSV for machines,
 * else a table.
 *
 * Each measurement is repeated, each time on both servers, and medians are shown. Of a load they are the operations per
 * second, and what one takes as its client sees it; of waking, the time until the last one has heard. server_us is the
 * CPU time that the server needed for an operation, or for a client that waited and was woken: it says most on a
 * machine that has other things to do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_store.h"

enum { SERVERS = 2, REPEATS = 5, WAKE_REPEATS = 31, TEXT = 256 };

static int is_csv(enum bench_format format)
{
    return format == BENCH_CSV;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double quantile(double *values, int count, double q)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[(int)(q * (count - 1) + 0.5)];
}

static double median(double *values, int count)
{
    return quantile(values, count, 0.5);
}

struct row {
    const char *server, *work;
    int clients;
    double ops_per_s, p50_us, p99_us, server_us;
};

static void print_row(enum bench_format format, const struct row *r)
{
    printf(is_csv(format) ? "store,%s,%s,%d,%.0f,%.1f,%.1f,%.2f\n" : "%-10s %-6s %8d %12.0f %10.1f %10.1f %10.2f\n",
           r->server, r->work, r->clients, r->ops_per_s, r->p50_us, r->p99_us, r->server_us);
    fflush(stdout);
}

/* One kind of work on every server in turn. Returns wrong replies, or -1. */
static long measure_load(const struct bench_store_options *o, enum bench_format format, struct bench_server *servers,
                         int server_count, enum bench_work work)
{
    static const char *const names[] = { "set", "get", "add", "wait", "mix" };
    double ops[SERVERS][REPEATS], p50[SERVERS][REPEATS], p99[SERVERS][REPEATS], cpu[SERVERS][REPEATS];
    long wrong = 0;
    char error[TEXT];
    for (int r = 0; r < REPEATS; r++)
        for (int s = 0; s < server_count; s++) {
            struct bench_load load = { servers[s].port, { servers[s].is_old }, work, o->clients, o->ops / REPEATS + 1,
                                       o->keys, o->value_bytes };
            struct bench_load_result result;
            int failed = r == 0 && bench_load_fill(&load, error, sizeof error) != 0;
            double before = bench_server_cpu_us(&servers[s]);
            if (failed || bench_load_run(&load, &result, error, sizeof error) != 0) {
                fprintf(stderr, "comm-bench: %s on the server of %s: %s\n", names[work], servers[s].name, error);
                return -1;
            }
            cpu[s][r] = (bench_server_cpu_us(&servers[s]) - before) / (double)load.ops;
            ops[s][r] = result.ops_per_s;
            p50[s][r] = result.p50_us;
            p99[s][r] = result.p99_us;
            wrong += result.wrong;
        }
    for (int s = 0; s < server_count; s++)
        print_row(format, &(struct row){ servers[s].name, names[work], o->clients, median(ops[s], REPEATS),
                                         median(p50[s], REPEATS), median(p99[s], REPEATS), median(cpu[s], REPEATS) });
    return wrong;
}

static int wake_in_turn(struct bench_wake *wakes, struct bench_server *servers, int server_count,
                        double us[SERVERS][WAKE_REPEATS], double cpu[SERVERS][WAKE_REPEATS], char *error)
{
    for (int r = 0; r < WAKE_REPEATS; r++)
        for (int s = 0; s < server_count; s++) {
            double before = bench_server_cpu_us(&servers[s]);
            if (bench_wake_run(&wakes[s], &us[s][r], error, TEXT) != 0)
                return -1;
            cpu[s][r] = (bench_server_cpu_us(&servers[s]) - before) / wakes[s].waiters;
        }
    return 0;
}

static int measure_waking(const struct bench_store_options *o, enum bench_format format, struct bench_server *servers,
                          int server_count, int waiters)
{
    char error[TEXT];
    struct bench_wake wakes[SERVERS];
    double us[SERVERS][WAKE_REPEATS], cpu[SERVERS][WAKE_REPEATS];
    int failed = 0, prepared = 0;
    for (int s = 0; s < server_count && !failed; s++, prepared++) {
        struct bench_load load = { .port = servers[s].port,
                                   .wire = { servers[s].is_old },
                                   .value_bytes = o->value_bytes };
        failed = bench_wake_prepare(&wakes[s], &load, waiters, error, sizeof error) != 0;
    }
    if (!failed)
        failed = wake_in_turn(wakes, servers, server_count, us, cpu, error) != 0;
    if (failed)
        fprintf(stderr, "comm-bench: waking %d clients: %s\n", waiters, error);
    for (int s = 0; s < prepared; s++)
        bench_wake_finish(&wakes[s]);
    for (int s = 0; s < server_count && !failed; s++) {
        double p50 = median(us[s], WAKE_REPEATS);
        print_row(format, &(struct row){ servers[s].name, "wake", waiters, waiters / p50 * 1e6, p50,
                                         quantile(us[s], WAKE_REPEATS, 0.99), median(cpu[s], WAKE_REPEATS) });
    }
    return failed ? -1 : 0;
}

int bench_store(const struct bench_store_options *o, enum bench_format format)
{
    struct bench_server servers[SERVERS] = { { 0 }, { 0 } };
    int server_count = o->peer ? 2 : 1, status = 0;
    long wrong = 0;
    char error[TEXT];
    for (int s = 0; s < server_count && status == 0; s++)
        if (bench_server_start(&servers[s], s ? o->peer : NULL, error, sizeof error) != 0) {
            fprintf(stderr, "comm-bench: %s\n", error);
            status = 3;
        }
    if (status == 0) {
        bench_server_leave_room();
        printf(is_csv(format) ? "op,server,work,clients,ops_per_s,p50_us,p99_us,server_us\n"
                              : "server     work    clients        ops/s     p50 us     p99 us  server us\n");
    }
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

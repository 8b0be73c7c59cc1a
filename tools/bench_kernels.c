/* `comm-bench kernels`: how fast is reducing alone? GB/s (1e9) of output, one core, buffers of --bytes that were
 * touched just before. The kernels come as a backend gets them: through the host table. COMM_SIMD chooses the
 * variant. */
#include <comm/backend.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { SOURCES = 4, REPEATS = 5 };

static const comm_host *host;

/* The entry function of no backend: it is registered only to get the host table. */
static const comm_backend *take_host(const comm_host *offered)
{
    host = offered;
    return NULL;
}

struct subject {
    comm_redop redop;
    comm_dtype dtype;
    size_t count;
    char *sources[SOURCES], *dst;
};

static void run_pair(const struct subject *s)
{
    host->reduce_kernel(s->redop, s->dtype)(s->dst, s->sources[0], s->sources[1], s->count);
}

static void run_many(const struct subject *s)
{
    host->reduce_many(s->dst, (const void *const *)s->sources, SOURCES, s->count, s->redop, s->dtype);
}

static void run_scale(const struct subject *s)
{
    if (s->redop == COMM_REDOP_AVG)
        host->divide(s->dst, s->count, s->dtype, 3);
    else
        host->premultiply(s->dst, s->sources[0], s->count, s->dtype, s->sources[1]);
}

/* Of this thread's work, so that a busy machine's other processes count less. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of some repeats of `target_s` each: other load only ever makes it slower. */
static double gigabytes_per_second(const struct subject *s, void (*run)(const struct subject *), double target_s)
{
    double best = 0, bytes = (double)(s->count * comm_dtype_bytes(s->dtype));
    for (int r = 0; r < REPEATS; r++) {
        long iterations = 0;
        double begin = seconds(), now;
        do {
            run(s);
            iterations++;
        } while ((now = seconds()) - begin < target_s);
        double rate = bytes * (double)iterations / (now - begin) / 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}

static void print_cell(enum bench_format format, double value)
{
    if (format == BENCH_CSV)
        printf(value > 0 ? ",%.2f" : ",", value);
    else
        printf(value > 0 ? " %10.1f" : "          -", value);
}

static void measure(struct subject *s, size_t bytes, const struct bench_method *method, enum bench_format format)
{
    double target_s = method->target_ms / 1000 / REPEATS;
    int divides = s->redop == COMM_REDOP_AVG && !comm_redop_supports(COMM_REDOP_BXOR, s->dtype);
    s->count = bytes / comm_dtype_bytes(s->dtype);
    for (int i = 0; i < SOURCES; i++)
        bench_data_fill(s->sources[i], s->dtype, s->redop, 1, i, 0, s->count);
    memset(s->dst, 0, bytes);
    printf(format == BENCH_CSV ? "%s,%s,%zu" : "%-10s %-7s %10zu", comm_redop_name(s->redop), comm_dtype_name(s->dtype),
           bytes);
    /* AVG and PREMUL_SUM reduce pairs as SUM does. */
    int own_pair = s->redop != COMM_REDOP_AVG && s->redop != COMM_REDOP_PREMUL_SUM;
    print_cell(format, own_pair ? gigabytes_per_second(s, run_pair, target_s) : 0);
    print_cell(format, s->redop != COMM_REDOP_PREMUL_SUM ? gigabytes_per_second(s, run_many, target_s) : 0);
    print_cell(format, divides || s->redop == COMM_REDOP_PREMUL_SUM ? gigabytes_per_second(s, run_scale, target_s) : 0);
    printf("\n");
    fflush(stdout);
}

int bench_kernels(const size_t *sizes, int size_count, const struct bench_method *method, enum bench_format format)
{
    struct subject s = { .dst = NULL };
    size_t most = 16;
    int failed = 0;
    comm_backend_register(take_host);
    if (!host)
        return 3;
    for (int k = 0; k < size_count; k++)
        most = sizes[k] > most ? sizes[k] : most;
    for (int i = 0; i < SOURCES; i++)
        failed |= !(s.sources[i] = aligned_alloc(64, (most + 63) / 64 * 64));
    failed |= !(s.dst = aligned_alloc(64, (most + 63) / 64 * 64));
    if (failed)
        fprintf(stderr, "comm-bench: no memory for %d buffers of %zu B\n", SOURCES + 1, most);
    else
        printf(format == BENCH_CSV ? "redop,dtype,bytes,pair_GBps,many%d_GBps,scale_GBps\n"
                                   : "redop      dtype        bytes  pair GB/s  from %d GB/s  scale GB/s\n",
               SOURCES);
    for (int k = 0; !failed && k < size_count; k++)
        for (s.redop = COMM_REDOP_SUM; s.redop < COMM_REDOP_USER; s.redop++)
            for (s.dtype = COMM_DTYPE_I8; s.dtype < COMM_DTYPE_END; s.dtype++)
                if (comm_redop_supports(s.redop, s.dtype) && sizes[k] >= 16)
                    measure(&s, sizes[k], method, format);
    for (int i = 0; i < SOURCES; i++)
        free(s.sources[i]);
    free(s.dst);
    return failed ? 3 : 0;
}

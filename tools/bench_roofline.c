/* --roofline: what could the memory do at best? After a row has been measured, all ranks at once copy as many bytes as
 * the row has, with stores that go past the caches, and then update as many in place: read, add, write. Each rank does
 * so in two pieces of memory of its own, of the kind that the row's buffers are: registered, or of huge pages, which
 * those may have become. The operation's bandwidth is then shown as a share of both. That tells something of sizes that
 * leave the caches; in these a copy past them is slow. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "bench.h"

enum { LINE = 64, HUGE_PAGE = 2 << 20, ITERATIONS_LEAST = 4, ITERATIONS_MAX = 20000 };

struct pieces {
    char *to, *from;
    size_t bytes; /* whole lines */
    comm_memory *registered[2];
};

typedef void stroke(const struct pieces *p);

static void copy(const struct pieces *p)
{
#if defined(__SSE2__)
    for (size_t at = 0; at < p->bytes; at += LINE) {
        const __m128i *from = (const __m128i *)(p->from + at);
        __m128i *to = (__m128i *)(p->to + at);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128(to + i, _mm_load_si128(from + i));
    }
    _mm_sfence();
#else
    memcpy(p->to, p->from, p->bytes);
#endif
    __asm__ volatile("" : : "r"(p->to) : "memory"); /* each copy counts, also the one that changes nothing */
}

static void update(const struct pieces *p)
{
    uint64_t *words = (uint64_t *)p->to;
    for (size_t i = 0; i < p->bytes / sizeof *words; i++)
        words[i] += 1;
    __asm__ volatile("" : : "r"(words) : "memory");
}

static comm_status allocate(comm_group *group, const struct bench_call_options *o, size_t bytes, struct pieces *p)
{
    char **const data[2] = { &p->to, &p->from };
    p->bytes = (bytes + LINE - 1) / LINE * LINE;
    size_t capacity = (p->bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        comm_status status = COMM_OK;
        if (o->registered)
            status = comm_mem_alloc(group, capacity, COMM_DEVICE_CPU, &memory, &p->registered[i]);
        else if (!(memory = aligned_alloc(HUGE_PAGE, capacity)))
            status = COMM_ERR_NO_MEMORY;
        else
            madvise(memory, capacity, MADV_HUGEPAGE);
        if (status != COMM_OK)
            return status;
        *data[i] = memory;
        memset(memory, 1, capacity);
    }
    return COMM_OK;
}

static void give_back(struct pieces *p)
{
    char *const data[2] = { p->to, p->from };
    for (int i = 0; i < 2; i++) {
        if (!p->registered[i])
            free(data[i]);
        comm_mem_release(p->registered[i]);
    }
}

static comm_status largest(comm_group *group, double *values, size_t count)
{
    return comm_all_reduce(group, values, values, count, COMM_DTYPE_F64, COMM_REDOP_MAX, NULL, NULL);
}

/* Microseconds of one stroke on the slowest rank, while all of them are at it. */
static comm_status time_all(comm_group *group, stroke *once, const struct pieces *p, long iterations, double *ret_us)
{
    comm_status status = comm_barrier(group, NULL, NULL);
    double begin = bench_now_us();
    for (long i = 0; i < iterations; i++)
        once(p);
    *ret_us = (bench_now_us() - begin) / (double)iterations;
    return status == COMM_OK ? largest(group, ret_us, 1) : status;
}

static comm_status measure(comm_group *group, stroke *once, const struct pieces *p, const struct bench_method *method,
                           double *ret_gigabytes)
{
    double values[BENCH_REPEATS_MAX], us;
    comm_status status = time_all(group, once, p, 2, &us);
    double wanted = method->target_ms * 1e3 / (us > 1e-3 ? us : 1e-3);
    long iterations = wanted > ITERATIONS_MAX ? ITERATIONS_MAX
                      : wanted < ITERATIONS_LEAST ? ITERATIONS_LEAST : (long)wanted;
    if (method->iterations)
        iterations = method->iterations;
    for (long i = 0; i < method->repeats && status == COMM_OK; i++)
        status = time_all(group, once, p, iterations, &values[i]);
    if (status == COMM_OK)
        us = bench_quantile(values, (size_t)method->repeats, 0.5);
    *ret_gigabytes = us > 0 ? (double)p->bytes / us * 1e-3 : 0;
    return status;
}

comm_status bench_roofline(comm_group *group, const struct bench_call_options *o, const struct bench_method *method,
                           struct bench_row *row)
{
    struct pieces p = { NULL };
    if (row->bytes == 0)
        return COMM_OK;
    comm_status status = allocate(group, o, row->bytes, &p);
    if (status == COMM_OK)
        status = measure(group, copy, &p, method, &row->copy);
    if (status == COMM_OK)
        status = measure(group, update, &p, method, &row->update);
    give_back(&p);
    return status;
}

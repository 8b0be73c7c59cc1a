/* Chooses the variant of the kernels, once, and reduces many sources: side by side where there is a kernel for that,
 * else in blocks that stay in the L1 cache. */
#include "reduce.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/error.h"
#include "base/log.h"
#include "base/param.h"
#include "reduce_variant.h"

/* Accumulators of one block: with the blocks of two sources beside them they fit in 32 KiB. */
enum { BLOCK_BYTES = 8192 };

/* Sums of more sources than this could be inexact in a double (reduce_kernels.c). */
enum { SOURCES_MAX = 1 << 20 };

/* ---- Variants ---- */

static int32_t always(void)
{
    return 1;
}

extern const struct reduce_variant comm__reduce_scalar;
#if defined(__x86_64__)
extern const struct reduce_variant comm__reduce_sse2, comm__reduce_avx2, comm__reduce_avx512;

static int32_t has_avx2(void)
{
    /* Not every compiler knows "f16c" as a name of __builtin_cpu_supports. */
    unsigned int a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int32_t has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#elif defined(__aarch64__)
extern const struct reduce_variant comm__reduce_neon;
#else
extern const struct reduce_variant comm__reduce_vector;
#endif

static const struct {
    const struct reduce_variant *variant;
    int32_t (*usable)(void);
} variants[] = {
#if defined(__x86_64__)
    { &comm__reduce_avx512, has_avx512 },
    { &comm__reduce_avx2, has_avx2 },
    { &comm__reduce_sse2, always },
#elif defined(__aarch64__)
    { &comm__reduce_neon, always },
#else
    { &comm__reduce_vector, always },
#endif
    { &comm__reduce_scalar, always },
};
enum { VARIANT_COUNT = sizeof variants / sizeof *variants };

static const struct reduce_variant *find(const char *name)
{
    for (size_t i = 0; i < VARIANT_COUNT; i++)
        if ((*name == '\0' || strcmp(name, variants[i].variant->name) == 0) && variants[i].usable())
            return variants[i].variant;
    return NULL;
}

const char *comm__reduce_variant_at(size_t index)
{
    for (size_t i = 0; i < VARIANT_COUNT; i++)
        if (variants[i].usable() && index-- == 0)
            return variants[i].variant->name;
    return NULL;
}

/* Written more than once only with the same value, unless a test says otherwise. */
static const struct reduce_variant *_Atomic current;

comm_status comm__reduce_use(const char *name)
{
    const struct reduce_variant *found = find(name);
    if (!found)
        return comm__fail(COMM_ERR_UNSUPPORTED, "COMM_SIMD: this machine or build has no reduction kernels called '%s'",
                          name);
    atomic_store_explicit(&current, found, memory_order_relaxed);
    return COMM_OK;
}

/* The tables are constant data, so the pointer alone is enough: relaxed order. */
static const struct reduce_variant *variant(void)
{
    const struct reduce_variant *chosen = atomic_load_explicit(&current, memory_order_relaxed);
    if (chosen)
        return chosen;
    chosen = find(comm__param_text("simd"));
    if (!chosen) {
        chosen = find("");
        comm__log(COMM_LOG_WARN, "COMM_SIMD: this machine or build has no reduction kernels called '%s'; using %s",
                  comm__param_text("simd"), chosen->name);
    }
    atomic_store_explicit(&current, chosen, memory_order_relaxed);
    return chosen;
}

const char *comm_kernels(void)
{
    return variant()->name;
}

/* ---- Two sources ---- */

static reduce_kernel kernel_of(const struct reduce_variant *v, comm_redop redop, comm_dtype dtype)
{
    return comm_redop_supports(redop, dtype) ? v->pairs[redop][dtype] : NULL;
}

reduce_kernel comm__reduce_kernel(comm_redop redop, comm_dtype dtype)
{
    return kernel_of(variant(), redop, dtype);
}

reduce_kernel comm__reduce_kernel_scalar(comm_redop redop, comm_dtype dtype)
{
    return kernel_of(&comm__reduce_scalar, redop, dtype);
}

static int makes_sums(comm_redop redop, comm_dtype dtype)
{
    int sums = redop == COMM_REDOP_SUM || redop == COMM_REDOP_AVG || redop == COMM_REDOP_PREMUL_SUM;
    return sums && comm_redop_supports(redop, dtype);
}

reduce_to_two_kernel comm__reduce_to_two_kernel(comm_redop redop, comm_dtype dtype)
{
    return makes_sums(redop, dtype) ? variant()->sum_to_two[dtype] : NULL;
}

reduce_kernel comm__widening_kernel(comm_redop redop, comm_dtype dtype)
{
    return makes_sums(redop, dtype) ? variant()->sum_wide[dtype] : NULL;
}

void comm__widen(float *sum, const void *src, size_t count, comm_dtype dtype)
{
    assert(comm__widening_kernel(COMM_REDOP_SUM, dtype));
    variant()->widen[dtype](sum, src, count);
}

void comm__narrow(void *dst, const float *sum, size_t count, comm_dtype dtype)
{
    assert(comm__widening_kernel(COMM_REDOP_SUM, dtype));
    variant()->narrow[dtype](dst, sum, count);
}

void comm__premultiply(void *dst, const void *src, size_t count, comm_dtype dtype, const void *factor)
{
    assert(comm_redop_supports(COMM_REDOP_PREMUL_SUM, dtype));
    variant()->premultiply[dtype](dst, src, count, factor);
}

void comm__divide(void *data, size_t count, comm_dtype dtype, int32_t divisor)
{
    assert(dtype > 0 && dtype < COMM_DTYPE_END && variant()->divide[dtype] && divisor > 0);
    variant()->divide[dtype](data, count, divisor);
}

/* ---- Many sources ---- */

/* What is constant over the blocks. */
struct many {
    const struct reduce_variant *variant;
    const void *const *sources;
    size_t source_count;
    comm_redop redop;
    comm_dtype dtype;
    reduce_kernel kernel;
};

static const char *source_at(const struct many *m, size_t source, size_t offset_bytes)
{
    return (const char *)m->sources[source] + offset_bytes;
}

/* One block through accumulators of the same type. Only the last step writes dst, which may be any of the sources. */
static void reduce_block(const struct many *m, char *dst, size_t offset_bytes, size_t count, void *scratch)
{
    const void *sum = source_at(m, 0, offset_bytes);
    for (size_t s = 1; s < m->source_count; s++) {
        void *target = s + 1 == m->source_count ? (void *)(dst + offset_bytes) : scratch;
        m->kernel(target, sum, source_at(m, s, offset_bytes), count);
        sum = target;
    }
    if (m->redop == COMM_REDOP_AVG)
        m->variant->divide[m->dtype](dst + offset_bytes, count, (int32_t)m->source_count);
}

/* One block through accumulators of `wide` type. */
static void reduce_block_wide(const struct many *m, comm_dtype wide, char *dst, size_t offset_bytes, size_t count,
                              void *scratch)
{
    const struct reduce_variant *v = m->variant;
    void (*step)(void *, const void *, size_t) = m->redop == COMM_REDOP_PRODUCT ? v->multiply[m->dtype]
                                                                                : v->add[m->dtype];
    v->widen[m->dtype](scratch, source_at(m, 0, offset_bytes), count);
    for (size_t s = 1; s < m->source_count; s++)
        step(scratch, source_at(m, s, offset_bytes), count);
    if (m->redop == COMM_REDOP_AVG)
        v->divide[wide](scratch, count, (int32_t)m->source_count);
    v->narrow[m->dtype](dst + offset_bytes, scratch, count);
}

/* One source. A float's NaN and a BOOL's true still have to take their one form, which x OP x does for these. */
static void reduce_one(const struct many *m, void *dst, size_t count, size_t bytes)
{
    if (m->dtype == COMM_DTYPE_BOOL)
        m->variant->pairs[COMM_REDOP_BOR][m->dtype](dst, m->sources[0], m->sources[0], count);
    else if (m->redop == COMM_REDOP_MIN || m->redop == COMM_REDOP_MAX)
        m->kernel(dst, m->sources[0], m->sources[0], count);
    else if (dst != m->sources[0])
        memmove(dst, m->sources[0], count * bytes);
}

/* The accumulators of AVG of integers, and of sums and products of 16- and 8-bit floats; 0 if they are of the type
 * itself. */
static comm_dtype wide_type(const struct many *m)
{
    if (!m->variant->widen[m->dtype])
        return 0;
    if (!m->variant->multiply[m->dtype])
        return m->redop == COMM_REDOP_AVG ? COMM_DTYPE_F64 : 0;
    return m->redop == COMM_REDOP_MIN || m->redop == COMM_REDOP_MAX ? 0 : COMM_DTYPE_F32;
}

/* Is it a sum that a kernel makes of all sources at once? AVG of integers is made in a wider type. */
static int is_sum(const struct many *m, comm_dtype wide)
{
    int averages = m->redop == COMM_REDOP_AVG;
    return m->variant->sums[m->dtype] && (m->redop == COMM_REDOP_SUM || m->redop == COMM_REDOP_PREMUL_SUM ||
                                          (averages && wide != COMM_DTYPE_F64 && !m->variant->average[m->dtype]));
}

static comm_status refuse_pair(comm_redop redop, comm_dtype dtype)
{
    const char *op = comm_redop_name(redop), *type = comm_dtype_name(dtype);
    if (!op || !type)
        return comm__fail(COMM_ERR_UNSUPPORTED, "reducing: there is no %s %d", op ? "dtype" : "reduce op",
                          op ? dtype : redop);
    return comm__fail(COMM_ERR_UNSUPPORTED, "reducing: there is no kernel for '%s' of dtype %s", op, type);
}

comm_status comm__reduce_many(void *dst, const void *const *sources, size_t source_count, size_t count,
                              comm_redop redop, comm_dtype dtype)
{
    struct many m = { variant(), sources, source_count, redop, dtype, comm__reduce_kernel(redop, dtype) };
    if (!m.kernel)
        return refuse_pair(redop, dtype);
    if (source_count > SOURCES_MAX)
        return comm__fail(COMM_ERR_UNSUPPORTED, "reducing %zu buffers at once: at most %d", source_count, SOURCES_MAX);
    size_t bytes = comm_dtype_bytes(dtype);
    if (source_count == 1) {
        reduce_one(&m, dst, count, bytes);
        return COMM_OK;
    }
    comm_dtype wide = wide_type(&m);
    if (source_count == 2 && !wide && redop != COMM_REDOP_AVG) {
        m.kernel(dst, sources[0], sources[1], count);
        return COMM_OK;
    }
    if (is_sum(&m, wide)) {
        m.variant->sums[dtype](dst, sources, source_count, count,
                               redop == COMM_REDOP_AVG ? (int32_t)source_count : 1);
        return COMM_OK;
    }
    if (redop == COMM_REDOP_AVG && m.variant->average[dtype]) {
        m.variant->average[dtype](dst, sources, source_count, count);
        return COMM_OK;
    }
    _Alignas(64) char scratch[BLOCK_BYTES];
    size_t block = BLOCK_BYTES / (wide ? comm_dtype_bytes(wide) : bytes);
    for (size_t at = 0; at < count; at += block) {
        size_t here = count - at < block ? count - at : block;
        if (wide)
            reduce_block_wide(&m, wide, dst, at * bytes, here, scratch);
        else
            reduce_block(&m, dst, at * bytes, here, scratch);
    }
    return COMM_OK;
}

/* The 16- and 8-bit floats in vector registers: loads that widen to fp32 and stores that round, for AVX2 and AVX-512.
 * The results are those of small_float.h, which says why they are right; but compilers make poor code of that in
 * vectors of mixed widths.
 *
 * LANES is defined if there are any: so many fp32 in a `lanes`, which understands + * /.
 *
 * 16-bit floats are faster two `lanes` at a time. A register of bf16 is one of those at even places and one of those at
 * odd ones, with half as many instructions as to widen what lies side by side; and both are asked at once for NaN. */
#ifndef COMM_CORE_REDUCE_LANES_H
#define COMM_CORE_REDUCE_LANES_H

#include "base/likely.h"
#include "small_float.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define LANES 16
#elif defined(__AVX2__) && defined(__F16C__)
#define LANES 8
#endif

#ifdef LANES
#include <immintrin.h>

typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
struct two_lanes {
    lanes a, b;
};
#endif

#if defined(LANES) && LANES == 16
static inline lanes lanes_all(float value)
{
    return _mm512_set1_ps(value);
}

static inline lanes lanes_load(const void *src)
{
    return _mm512_loadu_ps(src);
}

static inline void lanes_store(void *dst, lanes value)
{
    _mm512_storeu_ps(dst, value);
}

static inline lanes load_f16(const void *src)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(src));
}

static inline void store_number_f16(void *dst, lanes value)
{
    _mm256_storeu_si256(dst, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void store_f16(void *dst, lanes value)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    store_number_f16(dst, _mm512_mask_mov_ps(value, is_nan, _mm512_set1_ps(__builtin_nanf(""))));
}

static inline lanes load_bf16(const void *src)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(src)), 16));
}

static inline void store_bf16(void *dst, lanes value)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    bits = _mm512_mask_mov_epi32(_mm512_srli_epi32(bits, 16), is_nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(dst, _mm512_cvtepi32_epi16(bits));
}

static inline int lanes_have_nan(struct two_lanes value)
{
    return _mm512_cmp_ps_mask(value.a, value.b, _CMP_UNORD_Q) != 0;
}

static inline struct two_lanes load_two_bf16(const void *src)
{
    __m512i both = _mm512_loadu_si512(src);
    return (struct two_lanes){
        _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
        _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000))),
    };
}

/* Rounded, in the upper halves; not of a NaN. */
static inline __m512i round_bf16(lanes value)
{
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    bits = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_add_epi32(bits, odd, bits, _mm512_set1_epi32(1));
}

static inline __m512i quiet_bf16(__m512i rounded, lanes value)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
}

static inline void store_two_bf16(void *dst, struct two_lanes value)
{
    __m512i low = round_bf16(value.a), high = round_bf16(value.b);
    if (UNLIKELY(lanes_have_nan(value))) {
        low = quiet_bf16(low, value.a);
        high = quiet_bf16(high, value.b);
    }
    __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    /* high where upper has ones, low >> 16 elsewhere */
    _mm512_storeu_si512(dst, _mm512_ternarylogic_epi32(upper, high, _mm512_srli_epi32(low, 16), 0xca));
}

/* e5m2 is the upper half of an fp16. */
static inline lanes load_f8e5m2(const void *src)
{
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(src)), 8));
}

/* e4m3 in the place of an fp16 is 2^8 too small, and its NaN would be 480. */
static inline lanes load_f8e4m3(const void *src)
{
    __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(src)), 7);
    lanes value = _mm512_cvtph_ps(_mm256_and_si256(halves, _mm256_set1_epi16((short)0xbf80))) * _mm512_set1_ps(256);
    __mmask16 is_nan = _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(480), _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(value, is_nan, _mm512_set1_ps(__builtin_nanf("")));
}

static inline void store_f8(struct small_float s, void *dst, lanes value)
{
    const int32_t shift = 23 - s.mantissa;
    const __m512i least = _mm512_set1_epi32((128 - s.bias) << 23);
    __m512i bits = _mm512_castps_si512(value);
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __m512i capped = _mm512_min_epi32(magnitude, _mm512_set1_epi32(s.top));
    __m512i exponent = _mm512_max_epi32(_mm512_and_si512(capped, _mm512_set1_epi32(0x7f800000)), least);
    __m512i power = _mm512_add_epi32(exponent, _mm512_set1_epi32(shift << 23));
    lanes sum = _mm512_castsi512_ps(capped) + _mm512_castsi512_ps(power);
    __m512i units = _mm512_sub_epi32(_mm512_castps_si512(sum), power);
    __m512i result = _mm512_add_epi32(units, _mm512_srli_epi32(_mm512_sub_epi32(exponent, least), (unsigned)shift));
    __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    if (s.special == s.nan)
        is_nan |= _mm512_cmpeq_epi32_mask(result, _mm512_set1_epi32(s.nan));
    result = _mm512_mask_mov_epi32(_mm512_or_si512(result, sign), is_nan, _mm512_set1_epi32(s.nan));
    _mm_storeu_si128(dst, _mm512_cvtepi32_epi8(result));
}

#elif defined(LANES)
static inline lanes lanes_all(float value)
{
    return _mm256_set1_ps(value);
}

static inline lanes lanes_load(const void *src)
{
    return _mm256_loadu_ps(src);
}

static inline void lanes_store(void *dst, lanes value)
{
    _mm256_storeu_ps(dst, value);
}

/* The lower halves of eight 32-bit numbers under 2^16. */
static inline __m128i lanes_halves(__m256i words)
{
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08));
}

static inline lanes load_f16(const void *src)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(src));
}

static inline void store_number_f16(void *dst, lanes value)
{
    _mm_storeu_si128(dst, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

static inline void store_f16(void *dst, lanes value)
{
    __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    store_number_f16(dst, _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), is_nan));
}

static inline lanes load_bf16(const void *src)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(src)), 16));
}

static inline int lanes_have_nan(struct two_lanes value)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(value.a, value.b, _CMP_UNORD_Q)) != 0;
}

static inline struct two_lanes load_two_bf16(const void *src)
{
    __m256i both = _mm256_loadu_si256(src);
    return (struct two_lanes){
        _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000))),
    };
}

/* Rounded, in the upper halves; not of a NaN. */
static inline __m256i round_bf16(lanes value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

static inline __m256i quiet_bf16(__m256i rounded, lanes value)
{
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan);
}

static inline void store_bf16(void *dst, lanes value)
{
    _mm_storeu_si128(dst, lanes_halves(_mm256_srli_epi32(quiet_bf16(round_bf16(value), value), 16)));
}

static inline void store_two_bf16(void *dst, struct two_lanes value)
{
    __m256i low = round_bf16(value.a), high = round_bf16(value.b);
    if (UNLIKELY(lanes_have_nan(value))) {
        low = quiet_bf16(low, value.a);
        high = quiet_bf16(high, value.b);
    }
    _mm256_storeu_si256(dst, _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa));
}

/* e5m2 is the upper half of an fp16. */
static inline lanes load_f8e5m2(const void *src)
{
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(src)), 8));
}

/* e4m3 in the place of an fp16 is 2^8 too small, and its NaN would be 480. */
static inline lanes load_f8e4m3(const void *src)
{
    __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(src)), 7);
    lanes value = _mm256_cvtph_ps(_mm_and_si128(halves, _mm_set1_epi16((short)0xbf80))) * _mm256_set1_ps(256);
    lanes magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
    lanes is_nan = _mm256_cmp_ps(magnitude, _mm256_set1_ps(480), _CMP_EQ_OQ);
    return _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), is_nan);
}

static inline void store_f8(struct small_float s, void *dst, lanes value)
{
    const int32_t shift = 23 - s.mantissa;
    const __m256i least = _mm256_set1_epi32((128 - s.bias) << 23);
    __m256i bits = _mm256_castps_si256(value);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i capped = _mm256_min_epi32(magnitude, _mm256_set1_epi32(s.top));
    __m256i exponent = _mm256_max_epi32(_mm256_and_si256(capped, _mm256_set1_epi32(0x7f800000)), least);
    __m256i power = _mm256_add_epi32(exponent, _mm256_set1_epi32(shift << 23));
    lanes sum = _mm256_castsi256_ps(capped) + _mm256_castsi256_ps(power);
    __m256i units = _mm256_sub_epi32(_mm256_castps_si256(sum), power);
    __m256i result = _mm256_add_epi32(units, _mm256_srli_epi32(_mm256_sub_epi32(exponent, least), shift));
    __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    if (s.special == s.nan)
        is_nan = _mm256_or_si256(is_nan, _mm256_cmpeq_epi32(result, _mm256_set1_epi32(s.nan)));
    result = _mm256_blendv_epi8(_mm256_or_si256(result, sign), _mm256_set1_epi32(s.nan), is_nan);
    __m128i halves = lanes_halves(result);
    _mm_storel_epi64(dst, _mm_packus_epi16(halves, halves));
}
#endif

#ifdef LANES
static inline struct two_lanes load_two_f16(const void *src)
{
    return (struct two_lanes){ load_f16(src), load_f16((const char *)src + LANES * sizeof(uint16_t)) };
}

static inline void store_two_f16(void *dst, struct two_lanes value)
{
    char *second = (char *)dst + LANES * sizeof(uint16_t);
    if (UNLIKELY(lanes_have_nan(value))) {
        store_f16(dst, value.a);
        store_f16(second, value.b);
    } else {
        store_number_f16(dst, value.a);
        store_number_f16(second, value.b);
    }
}

static inline void store_f8e4m3(void *dst, lanes value)
{
    store_f8(f8e4m3_layout, dst, value);
}

static inline void store_f8e5m2(void *dst, lanes value)
{
    store_f8(f8e5m2_layout, dst, value);
}
#endif

#endif

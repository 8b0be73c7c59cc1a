/* Conversion between fp32 and the 16- and 8-bit floats: exact one way, round to nearest even the other way. There are
 * no branches, so that compilers turn loops over these into vector code. A NaN becomes the one canonical quiet NaN. */
#ifndef COMM_CORE_SMALL_FLOAT_H
#define COMM_CORE_SMALL_FLOAT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A layout of sign, exponent and `mantissa` bits. `special` is the least magnitude, as bits, that is no finite number:
 * infinity, or NaN (then it is also `nan`). The fp32 number whose bits are `top` and all above it round to `special`.
 */
struct small_float {
    int32_t width, mantissa, bias;
    int32_t special, nan;
    int32_t top;
};

/* e4m3 "fn" has no infinity: its special is its NaN, and 480 would be the number in NaN's place. */
static const struct small_float f16_layout = { 16, 10, 15, 0x7c00, 0x7e00, 0x47800000 };
static const struct small_float f8e5m2_layout = { 8, 2, 15, 0x7c, 0x7e, 0x47800000 };
static const struct small_float f8e4m3_layout = { 8, 3, 7, 0x7f, 0x7f, 0x43f00000 };

/* Everything below is signed, because SSE2 compares no unsigned integers; nothing gets near the sign bit. No fp32 in it
 * is subnormal, so it is right under flush-to-zero too. */
static inline float small_widen(struct small_float s, uint32_t bits)
{
    uint32_t sign = bits >> (s.width - 1) << 31;
    int32_t magnitude = (int32_t)(bits & ((1u << (s.width - 1)) - 1));
    int32_t is_subnormal = magnitude < 1 << s.mantissa;
    /* A subnormal m is made as least normal * (1 + m / 2^mantissa), and the least normal taken off. */
    int32_t least = (128 - s.bias) << 23;
    int32_t value = (magnitude << (23 - s.mantissa)) + ((127 - s.bias) << 23) + (is_subnormal ? 1 << 23 : 0);
    float finite = f32_of_bits((uint32_t)value) - f32_of_bits((uint32_t)(is_subnormal ? least : 0));
    /* The exponent of all ones is fp32's exponent of all ones; e4m3 has a NaN there and nothing else. */
    int32_t up = s.special == s.nan ? 0x7fc00000 : (255 - (s.special >> s.mantissa) - 127 + s.bias) << 23;
    uint32_t result = bits_of_f32(finite);
    if (s.special == s.nan)
        result = magnitude == s.nan ? (uint32_t)up : result;
    else
        result += magnitude >= s.special ? (uint32_t)up : 0;
    return f32_of_bits(sign | result);
}

static inline uint32_t small_narrow(struct small_float s, float value)
{
    uint32_t bits = bits_of_f32(value);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    uint32_t sign = bits >> 31 << (s.width - 1);
    int32_t shift = 23 - s.mantissa, least = (128 - s.bias) << 23;

    /* A power of two, 2^shift above the number's own, has the number's last bit as its last bit: adding it lets the
     * adder do the rounding, and the difference is the number in units of that bit. */
    int32_t capped = magnitude < s.top ? magnitude : s.top;
    int32_t exponent = capped & 0x7f800000;
    exponent = exponent > least ? exponent : least;
    int32_t power = exponent + (shift << 23);
    int32_t units = (int32_t)bits_of_f32(f32_of_bits((uint32_t)capped) + f32_of_bits((uint32_t)power)) - power;
    int32_t result = units + ((exponent - least) >> shift);
    /* e4m3's overflow is its NaN, which has no sign. */
    int32_t is_nan = magnitude > 0x7f800000 || (s.special == s.nan && result == s.nan);
    return is_nan ? (uint32_t)s.nan : (uint32_t)result | sign;
}

static inline float widen_f16(uint16_t bits)
{
    return small_widen(f16_layout, bits);
}

static inline uint16_t narrow_f16(float value)
{
    return (uint16_t)small_narrow(f16_layout, value);
}

static inline float widen_f8e5m2(uint8_t bits)
{
    return small_widen(f8e5m2_layout, bits);
}

static inline uint8_t narrow_f8e5m2(float value)
{
    return (uint8_t)small_narrow(f8e5m2_layout, value);
}

static inline float widen_f8e4m3(uint8_t bits)
{
    return small_widen(f8e4m3_layout, bits);
}

static inline uint8_t narrow_f8e4m3(float value)
{
    return (uint8_t)small_narrow(f8e4m3_layout, value);
}

/* bf16 is the upper half of an fp32. */
static inline float widen_bf16(uint16_t bits)
{
    return f32_of_bits((uint32_t)bits << 16);
}

static inline uint16_t narrow_bf16(float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

#endif
